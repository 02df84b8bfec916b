"""Tests of the sentences about an adversary: their words match their figures."""

from __future__ import annotations

import re
import sys

import numpy as np
import pandas as pd
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, read
from dphmm.audit.sequence import SmoothingRecorder
from dphmm.cli.release import _format_inference
from dphmm.jobs.audit.session import audit_session
from dphmm.jobs.batch.batch import _infer_smoothed, batch
from dphmm.jobs.input_data import Data
from dphmm.jobs.model.learn import learn
from dphmm.jobs.model.loading import load_model
from dphmm.jobs.model.region import region
from dphmm.jobs.release.exposure import (
    VIEW_LABELS,
    InferenceFigure,
    name_extreme,
    select_exposure_rows,
    summarize_exposure,
)
from dphmm.jobs.release.guarantees import collect_warnings
from dphmm.jobs.release.release import release
from dphmm.jobs.release.stored import compute_session_hindsight
from dphmm.release.engine import ReleaseSettings
from dphmm.release.settings import Schedule
from dphmm.writers.formats import read_releases

TOWN = "data/sample/geolife"
USERS = ("000", "001")
SETTINGS = ReleaseSettings("utility:1km", 1.0)
SCHEDULED = ReleaseSettings("utility:1km", 1.0, schedule=Schedule(target_error=1.2))
WORDS = {
    "filtered": "sees only the releases up to each timestep",
    "filtered since a gap": "sees only the releases since the last long gap, up to each timestep",
    "smoothed": "sees all releases",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1)
    learn(Data((TOWN,), exclude_users=USERS), space, step_seconds=900, output=folder / "m.npz")
    return folder, folder / "m.npz", Data((TOWN,), users=USERS)


def release_by(way, world):
    """Return the result and the file or folder of its releases."""
    folder, model, data = world
    if way == "batch":
        result = batch(data, folder / "out", model, SETTINGS, kind="csv", workers=1, rng=1)
        return result, sorted((folder / "out").glob("??/*.csv"))
    session = folder / "s.db" if way == "session" else None
    return release(data, model, SETTINGS, folder / f"{way}.csv", session=session, rng=1), [folder / f"{way}.csv"]


def audit_files(model, files, settings=SETTINGS):
    """Audit the files.

    Return each view's smallest median error over users, metres, and largest posterior.
    """
    audits = [audit for file in files for audit in audit_session(file, model, settings).audits]
    views = {"filtered": "filtered_metrics", "smoothed": "smoothed_metrics"}
    return {
        view: (
            min(1000 * float(np.median(getattr(audit, name).error)) for audit in audits),
            max(float(getattr(audit, name).top_1_probability.max()) for audit in audits),
        )
        for view, name in views.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("way", ["release", "batch", "session"])
def test_sentence_names_releases_of_its_figure(way, world):
    """Both figures are those that disclose most: later releases can lower a probability."""
    result, files = release_by(way, world)
    figures = audit_files(world[1], files)
    assert not any(read_releases(file)["unprotected"].any() for file in files)
    sentence = result.summary_sentences()[1]
    error, posterior = map(float, re.findall(r"([\d,.]+) (?:m|%)", sentence.replace(",", "")))
    of_error = min(figures, key=lambda view: figures[view][0])
    of_posterior = max(figures, key=lambda view: figures[view][1])
    assert error == pytest.approx(figures[of_error][0], abs=0.6), "rounded to metres"
    assert posterior == pytest.approx(100 * figures[of_posterior][1], abs=0.6), "rounded to percent"
    assert of_error != of_posterior, "the figures are those of different adversaries"
    about_error, about_posterior = re.split(r"(?<=m\.) ", sentence)
    assert [name for name, words in WORDS.items() if words in about_error] == [of_error]
    assert [name for name, words in WORDS.items() if words in about_posterior] == [of_posterior]
    for warning in result.list_warnings():
        if "probability" in warning:
            assert [name for name, words in WORDS.items() if words in warning] == [of_posterior]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SETTINGS, SCHEDULED], ids=["constant", "scheduled"])
@pytest.mark.parametrize("session_gap", [None, 3])
def test_batch_figures_match_session_audit(session_gap, settings, world, tmp_path):
    """They use the releases before a gap that restarted the belief, too."""
    _, model, data = world
    done = batch(data, tmp_path / "b", model, settings, kind="csv", workers=1, rng=2, session_gap=session_gap)
    files = sorted((tmp_path / "b").glob("??/*.csv"))
    restarts = [np.any(np.diff(read_releases(file)["num_ignored_releases"])) for file in files]
    assert any(restarts) == (session_gap is not None)
    assert any(read_releases(file)["withheld"].any() for file in files) == (settings is SCHEDULED)
    result = done.to_dict()
    wanted = audit_files(model, files, settings)["smoothed"]
    figures = result["smoothed_min_user_median_adversary_error_m"], result["smoothed_max_posterior"]
    np.testing.assert_allclose(figures, wanted, rtol=1e-5)  # the file has 7 digits
    assert WORDS["smoothed"] in done.summary_sentences()[1]


@pytest.mark.slow
@pytest.mark.parametrize("session_gap", [None, 3])
def test_batch_with_costly_gaps_is_filtered(session_gap, world, tmp_path, monkeypatch):
    """The sentence states that the releases since a gap are used if a gap restarted."""
    _, model, data = world
    monkeypatch.setattr(sys.modules[batch.__module__], "_MAX_GAP_SECONDS", -1.0)
    done = batch(data, tmp_path / "b", model, SETTINGS, kind="csv", workers=1, rng=2, session_gap=session_gap)
    result = done.to_dict()
    view = "filtered" if session_gap is None else "filtered since a gap"
    assert (result["num_timesteps_after_gap"] > 0) == (session_gap is not None)
    assert not any(key.startswith("smoothed_") for key in result)
    assert [name for name, words in WORDS.items() if words in done.summary_sentences()[1]] == [view]
    again = batch(
        data, tmp_path / "b", model, SETTINGS, kind="csv", workers=1, rng=2, session_gap=session_gap, resume=True
    )
    assert (again.done, again.before) == ((), len(done.done))
    for run in (result, again.to_dict()):
        row = {**run, **{name_extreme(key): 1.0 for key in ("median_adversary_error_m",)}}
        assert _format_inference(row, "median_adversary_error_m") == f"1 m {VIEW_LABELS[view]}"
    names = "num_timesteps_after_gap", "num_users_with_gap"
    assert [again.to_dict()[name] for name in names] == [result[name] for name in names]


@pytest.mark.slow
def test_session_figures_use_releases_of_earlier_runs(world, tmp_path):
    """They equal those of an audit of the whole session at the timesteps of the second run."""
    model = world[1]
    track = next(track for track in read(TOWN).trajectories if track.user == USERS[0])
    columns = {"user": track.user, "time": track.times, "latitude": track.latitude, "longitude": track.longitude}
    for number, half in enumerate(np.array_split(np.arange(len(track)), 2)):
        frame = pd.DataFrame(columns).iloc[half]
        done = release(Data((frame,)), model, SCHEDULED, session=tmp_path / "s.db", rng=number)
    (audit,) = audit_session(tmp_path / "s.db", model, SCHEDULED).audits
    count = len(done.table)
    assert 0 < count < len(audit.steps)
    np.testing.assert_allclose(done.hindsight.error_m, 1000 * audit.smoothed_metrics.error[-count:], rtol=1e-9)
    np.testing.assert_allclose(
        done.hindsight.max_posterior, audit.smoothed_metrics.top_1_probability[-count:], rtol=1e-9
    )
    engine = SCHEDULED.engine(load_model(model))
    assert compute_session_hindsight(tmp_path / "s.db", done.table, engine, len(audit.steps) - 1) is None
    assert compute_session_hindsight(tmp_path / "s.db", done.table, engine, len(audit.steps)) is not None


def test_batch_of_excluded_releases_is_filtered():
    """A user has no smoothed metrics if the model excludes the releases together."""
    model = MarkovModel(np.eye(2), [0.5, 0.5])
    engine = Releaser(model, [[0.0, 0.0], [1.0, 0.0]], PolicyGraph.from_edges(2, [(0, 1)]), 1.0, rng=0)
    recorder = SmoothingRecorder(model)
    for row in ([0.0, -np.inf], [-np.inf, 0.0]):
        recorder._log_likelihoods.append(np.array(row))
    recorder._slots = [0, 600]
    assert _infer_smoothed(recorder, engine, model) is None
    few = []
    for row in (make_row("ann", **SMOOTHED), make_row("bob"), make_row("cid", **SMOOTHED)):
        few = select_exposure_rows([*few, row])
    assert "bob" in [row["user"] for row in few]
    assert not summarize_exposure(few).keys() & SMOOTHED
    assert WORDS["filtered"] in collect_warnings(few, "utility:1km")[0]


def make_row(user, **changes):
    row = {"user": user, "max_epsilon_24h": 1.0, "median_estimate_error_m": 2000.0}
    row |= {"median_adversary_error_m": 601.0, "min_adversary_error_m": 90.0}
    return row | {"median_max_posterior": 0.2, "max_posterior": 0.52} | changes


SMOOTHED = {"smoothed_median_adversary_error_m": 458.0, "smoothed_max_posterior": 0.64}


@pytest.mark.parametrize("changes", [({}, {}), (SMOOTHED, SMOOTHED), (SMOOTHED, {})], ids=["none", "all", "some"])
def test_smoothed_words_need_smoothed_figures_of_all_users(changes):
    rows = [make_row(user, **change) for user, change in zip(("ann", "bob"), changes, strict=True)]
    view = "smoothed" if all(changes) else "filtered"
    (warning,) = collect_warnings(rows, "utility:1km")
    assert [name for name, words in WORDS.items() if words in warning] == [view]
    assert ("64 %" if all(changes) else "52 %") in warning


@pytest.mark.parametrize("view", WORDS)
@pytest.mark.parametrize(
    ("statistic", "value"),
    [("median_adversary_error_m", "1,234 m"), ("min_adversary_error_m", "1,234 m"), ("max_posterior", "52 %")],
)
def test_sentence_states_value_adversary_and_users(statistic, value, view):
    figure = InferenceFigure(statistic, view, 1234.4 if value.endswith("m") else 0.52, "ann", "user habits")
    sentence = figure.describe()
    assert value in sentence
    assert f"n adversary who knows the model and user habits, and {WORDS[view]} " in sentence
    assert "user" in sentence.replace("user habits", ""), "states the users whom it describes"
    assert WORDS[view] not in figure.describe(figure), "the adversary of the previous sentence is not repeated"
    other = InferenceFigure(statistic, "filtered" if view == "smoothed" else "smoothed", figure.value)
    assert WORDS[view] in figure.describe(other)
