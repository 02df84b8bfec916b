"""Tests of the files of users with long, foreign, reserved and similar names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.jobs.batch.run_folder import JOURNAL, Published, get_user_file_path
from dphmm.jobs.release.stored import read_released
from tests import command_line

CYRILLIC = (
    "\u0410\u043b\u0435\u043a\u0441\u0430\u043d\u0434\u0440 "
    + "\u041f\u0440\u0435\u043e\u0431\u0440\u0430\u0436\u0435\u043d\u0441\u043a\u0438\u0439-" * 4
)
USERS = (CYRILLIC, "ann", "Ann", "con", "\u6771" * 300)
MAX_NAME_BYTES = 200
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400) | st.sampled_from(USERS)


@given(user=names, kind=st.sampled_from(["parquet", "geojson", "csv", "gpkg"]))
def test_file_name_is_short_and_portable(user, kind):
    path = get_user_file_path(Path("f"), user, kind)
    assert len(path.name.encode()) <= MAX_NAME_BYTES
    assert path.name.isascii()
    assert not set(path.name) & set('<>:"/\\|?*% ')
    assert path.name.split(".")[0].lower() not in ("con", "nul", "com1", "")
    assert path.parent.parent == Path("f")


@given(users=st.lists(names | st.text("aA.-0f", min_size=1, max_size=4), min_size=2, max_size=20, unique=True))
def test_files_of_different_users_differ_if_case_is_ignored(users):
    files = {get_user_file_path(Path("f"), user, "csv").name.lower() for user in users}
    assert len(files) == len(users)


def test_name_that_ends_like_a_hash_is_not_that_of_another_user():
    hashed = get_user_file_path(Path("f"), "Ann", "csv").stem
    assert get_user_file_path(Path("f"), hashed, "csv").stem != hashed
    assert get_user_file_path(Path("f"), hashed.lower(), "csv").stem != hashed.lower()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the releases of `USERS`, their model and their certificate."""
    folder = tmp_path_factory.mktemp("batch")
    rows = [f"{user},2024-03-07T09:0{minute}:00Z,45.0,-30.0" for user in USERS for minute in range(2)]
    (folder / "walks.csv").write_text("\n".join(["user,time,lat,lon", *rows]) + "\n", encoding="utf-8")
    model = folder / "m.npz"
    invoke("model", "blank", "--bbox", 44.99, -30.02, 45.01, -29.98, "--cell", 1, "-o", model)
    command = ("batch", folder / "walks.csv", "--model", model, "--policy", "utility:2km", "--epsilon", 1)
    invoke(*command, "--workers", 1, "--format", "csv", "-o", folder / "all", "--certificate", folder / "c.jsonl")
    return folder


def invoke(*words):
    result = command_line.run(*words)
    assert result.exit_code == 0, result.output
    return result


def test_journal_lists_users_with_their_files(folder):
    entries = [json.loads(line) for line in (folder / "all" / JOURNAL).read_text(encoding="utf-8").splitlines()]
    assert {entry["user"] for entry in entries} == set(USERS)
    for entry in entries:
        path = folder / "all" / entry["file"]
        assert path == get_user_file_path(folder / "all", entry["user"], "csv")
        assert entry["user"] in path.read_text(encoding="utf-8")
    assert len(list((folder / "all").glob("??/*.csv"))) == len(USERS)
    assert all(Published(folder / "all", "csv").has(user) for user in USERS)


@pytest.mark.slow
def test_readers_of_folder_find_users_by_their_names(folder):
    assert set(read_released(folder / "all").table["user"]) == set(USERS)
    assert set(read_released(folder / "all", users=(CYRILLIC,)).table["user"]) == {CYRILLIC}
    audit = invoke("audit", "session", folder / "all", "--model", folder / "m.npz", "--users", CYRILLIC, "--json")
    assert CYRILLIC in json.dumps(json.loads(audit.stdout), ensure_ascii=False)
    invoke("show", folder / "all", "--users", CYRILLIC, "-o", folder / "map.html")
    assert CYRILLIC in (folder / "map.html").read_text(encoding="utf-8")
    verified = subprocess.run(
        [sys.executable, "scripts/dphmm-verify", str(folder / "c.jsonl"), "--fast"], capture_output=True, text=True
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
