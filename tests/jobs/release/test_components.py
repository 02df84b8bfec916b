"""Tests of noise by component in every job: files, batches, streams and sessions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import shapely

from dphmm import ReleaseSettings, Trajectory
from dphmm.jobs import Data, batch, release, release_live
from dphmm.jobs.batch.run_folder import get_user_file_path
from dphmm.model.model import MarkovModel
from dphmm.space import Grid
from dphmm.writers.formats import read_releases

BOX = (44.97, -30.04, 45.03, -29.96)
MINUTE = np.timedelta64(60, "s")
START = np.datetime64("2024-03-07T09:00:00", "us")


@pytest.fixture
def town(tmp_path, monkeypatch):
    """Write a model with uniform transitions and a home zone. Other cells are open."""
    monkeypatch.chdir(tmp_path)
    grid = Grid.over(BOX, 1.0)
    MarkovModel(np.full((grid.size, grid.size), 1 / grid.size), np.full(grid.size, 1 / grid.size), grid, 60.0).save(
        tmp_path / "m.npz"
    )
    south, west, _, _ = BOX
    home = shapely.box(west, south, west + 0.03, south + 0.02)
    feature = {"type": "Feature", "properties": {"name": "home"}, "geometry": shapely.geometry.mapping(home)}
    (tmp_path / "home.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    return grid, home


def walk(home):
    """Return a track that alternates between home and a distant location."""
    at_home, away = (home.centroid.y, home.centroid.x), (BOX[2] - 0.004, BOX[3] - 0.004)
    places = np.array([at_home, away] * 6)
    times = START + np.arange(len(places)) * MINUTE
    return Trajectory("ann", times, places[:, 0], places[:, 1])


SETTINGS = ReleaseSettings(policy="zone:home.geojson", epsilon=1.0, noise_scope="component")


def test_every_job_is_exact_away_from_home_and_protects_home(town):
    grid, home = town
    track = walk(home)
    inside, outside = grid.locate(track.latitude[:2], track.longitude[:2])
    far = grid.latlon([outside])[0]
    lines = [
        f"{user},{time}Z,{latitude},{longitude}"
        for user in ("ann", "bob")
        for time, latitude, longitude in zip(track.times, track.latitude, track.longitude, strict=True)
    ]
    Path("walks.csv").write_text("\n".join(["user_id,tracked_at,latitude,longitude", *lines]) + "\n")
    ann = Data(("walks.csv",), users=("ann",))
    done = {"files": release(ann, "m.npz", SETTINGS, session="files.db", rng=1).table}
    batch("walks.csv", "all", "m.npz", SETTINGS, kind="csv", rng=1, workers=1)
    done["batch"] = read_releases(get_user_file_path(Path("all"), "ann", "csv"))
    for name, table in done.items():
        assert len(table) == 12, name
        open_ = table["unprotected"]
        assert not open_[0::2].any(), name
        assert open_[1::2].all(), name
        np.testing.assert_allclose(table["latitude"][1::2], far[0], atol=1e-5)
        assert len(set(table["latitude"][0::2].tolist())) > 1, name
        assert np.isinf(table["constrained_dp_factor"]).all(), name
        assert (table["epsilon"] == 1.0).all(), name
    with release_live("m.npz", SETTINGS, session="stream.db", rng=1) as stream:
        fixes = zip(track.times, track.latitude.tolist(), track.longitude.tolist(), strict=True)
        answers = [stream.take("ann", time, latitude, longitude) for time, latitude, longitude in fixes]
    assert [answer.record.is_unprotected for answer in answers] == [False, True] * 6
    assert inside != outside


def test_reopened_session_repeats_answers_and_continues(town):
    _, home = town
    track = walk(home)
    with release_live("m.npz", SETTINGS, session="a.db") as stream:
        first = [
            stream.take("ann", *fix)
            for fix in zip(track.times[:5], track.latitude[:5], track.longitude[:5], strict=True)
        ]
    with release_live("m.npz", SETTINGS, session="a.db") as stream:
        again = [
            stream.take("ann", *fix)
            for fix in zip(track.times, track.latitude[::-1], track.longitude[::-1], strict=True)
        ]
    assert [answer.record for answer in again[:5]] == [answer.record for answer in first]
    assert [answer.record.is_unprotected for answer in again[5:]] == [False, True] * 3 + [False]
