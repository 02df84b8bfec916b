"""No job opens the files of a store by other means than SQLite.

Closing them would drop the locks of this process.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from itertools import islice

import numpy as np
import pytest

from dphmm import Session, Trajectory, read
from dphmm.errors import DphmmError
from dphmm.jobs import (
    Data,
    audit_session,
    audit_utility,
    certify,
    export_sessions,
    learn,
    load_model,
    read_released,
    read_sessions,
    region,
    release,
    replay,
)
from dphmm.jobs.release.stored import rewind_session
from dphmm.plots.release import show
from dphmm.plots.release_report import report
from dphmm.release.engine import ReleaseSettings
from dphmm.release.session_transfer import export_store, import_store, migrate_store, plan_migration

OPENED: list[str] = []


def note_opened(event, arguments):
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        OPENED.append(os.path.abspath(os.fsdecode(arguments[0])))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with open("data/sample/table.csv", encoding="utf-8") as table:
        (folder / "table.csv").write_text("".join(islice(table, 9)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model():
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1)
    return learn(Data(("data/sample/geolife",), users=("000", "001")), space, step_seconds=300).model


@pytest.mark.slow
def test_no_job_opens_a_store_that_is_in_use(tmp_path, folder, model, blank):
    store = folder / "users.db"
    data = Data((str(folder),))
    (link := folder / "link").symlink_to(store)
    files = {str(store), f"{store}-wal", f"{store}-shm", str(link)}
    latitude, longitude = model.space.latlon()[5]
    zed = Trajectory("zed", [np.datetime64(100 * 300, "s")], [latitude], [longitude])
    sys.addaudithook(note_opened)  # cannot be removed
    # It is no recording and no model, and no release is after the present time.
    refused = "read the store", "load_model", "load_model of a link", "rewind_session"
    actions = {
        "release": lambda: release(data, model, ReleaseSettings(), session=str(store)),
        "read": lambda: read(folder),
        "read the store": lambda: read(store),
        "load_model": lambda: load_model(store),
        "load_model of a link": lambda: load_model(link),
        "read_sessions": lambda: list(read_sessions(store)),
        "read_released": lambda: read_released(store, model),
        "replay": lambda: list(replay(store, model)),
        "export_sessions": lambda: export_sessions(store, tmp_path / "x.csv", model=model),
        "export_store": lambda: export_store(store, tmp_path / "backup", backup=True),
        "import_store": lambda: import_store(store, tmp_path / "new.db", withhold=True),
        "plan_migration": lambda: plan_migration(store),
        "migrate_store": lambda: migrate_store(store),
        "rewind_session": lambda: rewind_session(store, "zed", model),
        "certify": lambda: certify(store, model, tmp_path / "c.jsonl"),
        "audit_session": lambda: audit_session(store, model),
        "audit_utility": lambda: audit_utility(store, model, [*read(folder).trajectories, zed]),
        "show": lambda: show(store, tmp_path / "map.html", model=model),
        "report": lambda: report(store, tmp_path / "report.html", model),
    }
    with Session.open(store, "zed", ReleaseSettings().engine(model)) as session:
        session.release(5, 100)
        for name, action in actions.items():
            OPENED.clear()
            with pytest.raises(DphmmError) if name in refused else nullcontext():
                action()
            assert not files.intersection(OPENED), name
            assert (folder / "users.db-wal").exists(), name
        OPENED.clear()
        store.open("rb").close()
        assert files.intersection(OPENED), "a plain open is noticed"
