"""Tests of stored releases: equal from a file, a batch folder or a session store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Session
from dphmm.errors import BudgetExceededError, ConfigurationError, DataFileError
from dphmm.jobs import Data, batch, certify, export_sessions, learn, read_released, region, release
from dphmm.jobs.batch.run_folder import get_user_file_path
from dphmm.jobs.release.stored import read_sessions, replay
from dphmm.release import Limits, SessionStore
from dphmm.release.settings import Schedule
from dphmm.writers import read_releases, write_releases

SETTINGS = ReleaseSettings(policy="utility:1km", epsilon=0.5)
TOWN = "data/sample/geolife"
SOME = ("000", "001")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a model, a batch, a release file and a session store."""
    here = tmp_path_factory.mktemp("released")
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    learn(Data((TOWN,), exclude_users=SOME), space, 1800, output=here / "model.npz")
    batch(Data((TOWN,), users=SOME), here / "batch", here / "model.npz", SETTINGS, workers=1)
    data = Data((TOWN,), users=SOME)
    release(data, here / "model.npz", SETTINGS, output=here / "r.csv", session=here / "s.db")
    return here


@pytest.mark.slow
def test_batch_is_read_as_tables_and_settings_of_its_users(folder):
    stored = read_released(folder / "batch")
    assert stored.settings == SETTINGS
    assert set(stored.table["user"]) == set(SOME)
    for user in SOME:
        user_table = stored.table.select(stored.table["user"].astype(str) == user)
        assert user_table == read_releases(get_user_file_path(folder / "batch", user, "parquet"))
    assert set(read_released(folder / "batch", users=["001"]).table["user"]) == {"001"}


@pytest.mark.slow
def test_sessions_match_their_export_and_settings(folder):
    stored = read_released(folder / "s.db", folder / "model.npz")
    export_sessions(folder / "s.db", folder / "export.csv", model=folder / "model.npz", overwrite=True)
    assert stored.table == read_releases(folder / "export.csv")
    assert stored.settings == SETTINGS


@pytest.mark.parametrize("num_queries", [1, 2])
def test_pruned_timesteps_are_counted_once_and_their_releases_are_unknown(tmp_path, num_queries):
    model = MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25))
    engine = Releaser(model, np.arange(4.0)[:, None], PolicyGraph.complete(4), 1.0)
    queries = {"main": engine, "other": engine.for_query(np.arange(4.0)[:, None] % 2)}
    path = tmp_path / "s.db"
    names = list(queries)[:num_queries]
    with Session.open(path, "ann", {name: queries[name] for name in names}) as session:
        for slot in (0, 1, 2000):
            for query in names:
                session.release(1, slot, query=query)
    (content,) = read_sessions(path)
    assert (content.summarize_budget()["num_timesteps"], content.summarize_budget()["num_releases"]) == (
        3,
        3 * num_queries,
    )
    with SessionStore(path) as store:
        assert store.prune(store.session("ann"), 1000) == 2 * num_queries
    (content,) = read_sessions(path)
    values = content.to_dict()
    assert (values["num_timesteps"], values["num_releases"], values["num_pruned_timesteps"]) == (3, None, 2)


@pytest.mark.parametrize("num_pruned", [0, 2])
def test_totals_of_session_reach_limits_and_do_not_exceed_them(tmp_path, num_pruned):
    """All states are adjacent to state 0, so each level in constrained DP is twice the budget."""
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3))
    engine = Releaser(model, [[0], [-1], [1]], PolicyGraph.from_edges(3, [(0, 1), (0, 2)]), 0.1)
    limits = Limits(epsilon=0.7, constrained_epsilon=1.4, window_epsilon=0.3, window_steps=3)
    with Session.open(tmp_path / "s.db", "ann", engine, limits) as session:
        for slot in (0, 1, 2, 3, 4, 5, 2000):
            session.release(1, slot)
        with pytest.raises(BudgetExceededError):
            session.release(1, 5000)
    if num_pruned:
        with SessionStore(tmp_path / "s.db") as store:
            assert store.prune(store.session("ann"), num_pruned) == num_pruned
    (content,) = read_sessions(tmp_path / "s.db")
    values = content.to_dict()
    assert (values["epsilon"], values["constrained_epsilon"]) == (0.7, 1.4)
    assert values["max_window_epsilon"] == (None if num_pruned else 0.3)


@pytest.mark.slow
def test_sessions_on_server_match_file(folder, postgres):
    release(Data((TOWN,), users=["000"]), folder / "model.npz", SETTINGS, session=postgres, output=folder / "p.csv")
    stored = read_released(postgres, folder / "model.npz")
    assert stored.table == read_releases(folder / "p.csv")
    assert stored.settings == SETTINGS
    with pytest.raises(ConfigurationError, match="sessions"):
        read_released(postgres)


DEFAULTS = ReleaseSettings.for_a_day()
OTHERS = ReleaseSettings("utility:1km", 1.0, schedule=Schedule(window_epsilon=4.0), delta=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "geojson", "gpx", "gpkg", "parquet"])
def test_file_with_default_settings_needs_no_options(folder, tmp_path, suffix):
    """The default schedule withholds timesteps, which have an epsilon of 0."""
    file = tmp_path / f"r.{suffix}"
    for settings in (DEFAULTS, SETTINGS, replace(DEFAULTS, mechanism="k-norm")):
        release(Data((TOWN,), users=SOME), folder / "model.npz", settings, output=file, overwrite=True)
        stored = read_released(file)
        assert stored.settings == settings
        assert stored.table == read_releases(file)
        assert all(replayed.engine.settings == settings for replayed in replay(file, folder / "model.npz"))
        with pytest.raises(ConfigurationError, match="use the original one"):
            list(replay(file, folder / "model.npz", replace(settings, delta=0.2)))


@pytest.mark.slow
def test_other_settings_are_in_metadata_or_in_certificate_beside(folder, tmp_path):
    model, data = folder / "model.npz", Data((TOWN,), users=SOME)
    for suffix in ("csv", "gpkg", "parquet"):
        (tmp_path / suffix).mkdir()
        release(data, model, OTHERS, output=tmp_path / suffix / f"r.{suffix}")
        settings = read_released(tmp_path / suffix / f"r.{suffix}").settings
        assert (settings is None) == (suffix == "csv")
        if settings is not None:
            assert settings.content_hash == OTHERS.content_hash
    certify(tmp_path / "csv" / "r.csv", model, tmp_path / "csv" / "proof.jsonl", OTHERS)
    (tmp_path / "csv" / "a.jsonl").write_text("not a certificate\n")
    settings = read_released(tmp_path / "csv" / "r.csv").settings
    assert settings is not None
    assert settings.content_hash == OTHERS.content_hash
    assert len(list(replay(tmp_path / "csv" / "r.csv", model))) == 2


@pytest.mark.slow
def test_changed_metadata_are_not_used(folder, tmp_path):
    """Settings are accepted only if their hash is in the rows."""
    release(Data((TOWN,), users=SOME), folder / "model.npz", OTHERS, output=tmp_path / "r.csv")
    table = read_releases(tmp_path / "r.csv")
    for text in (replace(OTHERS, delta=0.01).canonical, "[]", "{", '{"epsilon": "x"}', '{"unknown": 1}'):
        for suffix in ("gpkg", "parquet"):
            write_releases(tmp_path / f"r.{suffix}", table, overwrite=True, settings=text)
            assert read_released(tmp_path / f"r.{suffix}").settings is None


@pytest.mark.slow
def test_policy_of_a_file_completes_settings_that_contain_its_digest(folder, tmp_path):
    """Metadata contain the digest of a policy's file: its path is needed, no other option."""
    layer = tmp_path / "areas.geojson"
    corners = [[-30.04, 44.97], [-29.96, 44.97], [-29.96, 45.03], [-30.04, 45.03], [-30.04, 44.97]]
    geometry = {"type": "Polygon", "coordinates": [corners]}
    feature = {"type": "Feature", "properties": {"name": "all"}, "geometry": geometry}
    layer.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    settings = replace(OTHERS, policy=f"categorical:{layer}")
    (tmp_path / "out").mkdir()
    file = tmp_path / "out" / "r.gpkg"
    release(Data((TOWN,), users=SOME), folder / "model.npz", settings, output=file)
    assert read_released(file).settings is None
    assert {replayed.engine.settings for replayed in replay(file, folder / "model.npz", settings.policy)} == {settings}
    assert str(layer).encode() not in file.read_bytes()


def test_sessions_without_model_raise(folder):
    with pytest.raises(ConfigurationError, match="--model"):
        read_released(folder / "s.db")


def test_folder_without_batch_or_unknown_user_raises(folder, tmp_path):
    with pytest.raises(DataFileError, match=r"released\.jsonl"):
        read_released(tmp_path)
    with pytest.raises(ConfigurationError, match=r"'nobody'.*'000', '001'"):
        read_released(folder / "batch", users=["nobody"])


def test_changed_batch_file_raises_and_nothing_is_modified(folder, tmp_path):
    import shutil

    copy = tmp_path / "batch"
    shutil.copytree(folder / "batch", copy)
    with (copy / "released.jsonl").open("ab") as journal:
        journal.write(b'{"user": "cut off')
    before = (copy / "released.jsonl").read_bytes()
    assert len(read_released(copy).table) == len(read_released(folder / "batch").table)
    assert (copy / "released.jsonl").read_bytes() == before
    target = get_user_file_path(copy, "000", "parquet")
    target.write_bytes(target.read_bytes()[:-1])
    with pytest.raises(DataFileError, match="was changed after its release"):
        read_released(copy)
    target.unlink()
    with pytest.raises(DataFileError, match="was changed after its release"):
        read_released(copy)


@pytest.mark.slow
def test_geopackage_is_read_as_releases(folder):
    release(Data((TOWN,), users=["000"]), folder / "model.npz", SETTINGS, output=folder / "g.gpkg", rng=1)
    table = read_released(folder / "g.gpkg").table
    assert np.isfinite(table["estimate_latitude"]).all()


@pytest.mark.slow
def test_time_of_row_is_end_of_its_step(folder, tmp_path):
    """Fixes, read by pandas, are rounded up to their rows, not down."""
    release(Data((TOWN,), users=SOME), folder / "model.npz", SETTINGS, output=tmp_path / "r.csv")
    rows = pandas.read_csv(tmp_path / "r.csv", parse_dates=["time"], dtype={"user": str})
    row_times = set(zip(rows["user"], rows["time"], strict=True))
    rounded_up, rounded_down = set(), set()
    for user in SOME:
        for file in Path(TOWN, "Data", user, "Trajectory").glob("*.plt"):
            fixes = pandas.read_csv(file, skiprows=6, header=None)
            times = pandas.to_datetime(fixes[5] + " " + fixes[6], utc=True)
            rounded_up |= {(user, time) for time in times.dt.ceil("1800s")}
            rounded_down |= {(user, time) for time in times.dt.floor("1800s")}
    assert row_times == rounded_up
    assert row_times != rounded_down
