"""What was released is the same, whether it is read from a file, a batch's folder or a store of sessions."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import ReleaseSettings
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs import Data, batch, export_sessions, learn, read_released, region, release
from dphmm.jobs.run_folder import user_file
from dphmm.writers import read_releases

SETTINGS = ReleaseSettings(policy="utility:1km", epsilon=0.5)
TOWN, SOME = "data/sample/geolife", ("000", "001")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, a batch and a store of sessions."""
    here = tmp_path_factory.mktemp("released")
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    learn(Data((TOWN,), exclude_users=SOME), space, 1800, output=here / "model.npz")
    batch(Data((TOWN,), users=SOME), here / "batch", here / "model.npz", SETTINGS, workers=1)
    data = Data((TOWN,), users=SOME)
    release(data, here / "model.npz", SETTINGS, output=here / "r.csv", session=here / "s.db")
    return here


def test_a_batch_is_the_tables_of_its_users_and_its_settings(folder):
    found = read_released(folder / "batch")
    assert found.settings == SETTINGS
    assert set(found.table["user"]) == set(SOME)
    for user in SOME:
        mine = found.table.select(found.table["user"].astype(str) == user)
        assert mine == read_releases(user_file(folder / "batch", user, "parquet"))
    assert set(read_released(folder / "batch", users=["001"]).table["user"]) == {"001"}


def test_sessions_are_what_their_export_says_and_agree_on_their_settings(folder):
    found = read_released(folder / "s.db", folder / "model.npz")
    export_sessions(folder / "s.db", folder / "export.csv", model=folder / "model.npz", overwrite=True)
    assert found.table == read_releases(folder / "export.csv")
    assert found.settings == SETTINGS


def test_sessions_of_a_server_are_those_of_a_file(folder, postgres):
    release(Data((TOWN,), users=["000"]), folder / "model.npz", SETTINGS, session=postgres, output=folder / "p.csv")
    found = read_released(postgres, folder / "model.npz")
    assert found.table == read_releases(folder / "p.csv")
    assert found.settings == SETTINGS
    with pytest.raises(ConfigurationError, match="the database holds sessions"):
        read_released(postgres)


def test_a_file_says_its_releases_and_no_settings(folder):
    found = read_released(folder / "r.csv")
    assert found.settings is None
    assert found.table == read_releases(folder / "r.csv")


def test_sessions_without_their_model_are_refused(folder):
    with pytest.raises(ConfigurationError, match="holds sessions, whose places need the map: give --model"):
        read_released(folder / "s.db")


def test_a_folder_that_is_no_batchs_and_users_it_has_not_are_refused(folder, tmp_path):
    with pytest.raises(DataFileError, match=r"is no folder of a batch \(there is no released.jsonl\)"):
        read_released(tmp_path)
    with pytest.raises(ConfigurationError, match=r"has no releases of 'nobody'; there are '000', '001'"):
        read_released(folder / "batch", users=["nobody"])


def test_a_file_that_is_not_what_was_released_is_refused_and_nothing_is_touched(folder, tmp_path):
    import shutil

    copy = tmp_path / "batch"
    shutil.copytree(folder / "batch", copy)
    with (copy / "released.jsonl").open("ab") as journal:
        journal.write(b'{"user": "cut off')
    before = (copy / "released.jsonl").read_bytes()
    assert len(read_released(copy).table) == len(read_released(folder / "batch").table)
    assert (copy / "released.jsonl").read_bytes() == before
    target = user_file(copy, "000", "parquet")
    target.write_bytes(target.read_bytes()[:-1])
    with pytest.raises(DataFileError, match="is not what was released"):
        read_released(copy)
    target.unlink()
    with pytest.raises(DataFileError, match="is not what was released"):
        read_released(copy)


def test_a_geopackage_is_no_store_of_sessions(folder):
    release(Data((TOWN,), users=["000"]), folder / "model.npz", SETTINGS, output=folder / "g.gpkg", rng=1)
    table = read_released(folder / "g.gpkg").table
    assert np.isfinite(table["estimate_latitude"]).all()
