"""Tests of session audits: Python and command agree, also off the published lattice."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from dphmm import Grid, Releaser, ReleaseSettings, Schedule
from dphmm.errors import ConfigurationError, DataFileError, SessionMismatchError, StochasticError
from dphmm.jobs import (
    AuditTarget,
    audit_policy,
    audit_session,
    batch,
    learn,
    load_model,
    region,
    release,
    replay,
)
from dphmm.jobs.batch.run_folder import get_user_file_path
from dphmm.model.model import MarkovModel
from dphmm.tables import write_csv
from dphmm.writers import read_releases
from tests.jobs.audit.town import ANNA, BBOX, POLICY, SETTINGS, TOWN, run_audit

_SEEDED = " The noise is seeded and can be reproduced: it guarantees nothing."


def is_off_lattice(model: MarkovModel) -> bool:
    return bool((np.abs(model.space.points * 1000 - np.rint(model.space.points * 1000)) > 1e-3).any())


@pytest.mark.slow
def test_session_audit_is_equal_in_python_and_command(town, monkeypatch):
    monkeypatch.chdir(town)
    assert is_off_lattice(load_model("m.npz"))
    output = run_audit("session", "s.session", "--model", "m.npz", "--true", TOWN)
    audit_result = audit_session("s.session", "m.npz", true=ANNA)
    assert json.loads(json.dumps(audit_result.to_dict())) == output
    (anna,) = output["users"]
    assert (anna["user"], anna["randomness_was_private"], output["private"]) == ("002", False, True)
    assert _SEEDED in output["in_words"]
    assert max(len(sentence.split()) for sentence in re.split(r"[.:] ", output["in_words"])) <= 30
    assert anna["num_releases"] > 20
    assert anna["epsilon"] == pytest.approx(0.8 * anna["num_releases"])
    bits = [anna["inference"][key]["mean_entropy_bits"] for key in ("without_releases", "filtered", "smoothed")]
    assert bits[0] > bits[1] > bits[2] > 0
    from_table = audit_session("r.csv", "m.npz", POLICY).audits[0]
    assert from_table.smoothed_metrics.entropy == pytest.approx(
        audit_result.audits[0].smoothed_metrics.entropy, rel=1e-9
    )
    assert audit_session("r.csv", "m.npz", SETTINGS).audits[0].epsilon == from_table.epsilon


@pytest.mark.slow
def test_replayed_engine_reproduces_releases(town):
    (replayed,) = replay(town / "s.session", town / "m.npz")
    assert replayed.engine.settings == SETTINGS
    assert replayed.private is False
    again = release(ANNA, town / "m.npz", replayed.engine.settings, rng=4).table
    assert np.stack([again["x_km"], again["y_km"]], axis=1).tolist() == replayed.sequence.released.tolist()
    assert (again["time"].astype("datetime64[s]").astype(np.int64) // 1800).tolist() == list(replayed.slots)


def test_settings_other_than_those_of_file_raise(town):
    model = town / "m.npz"
    for settings, words in (
        ("utility:2km", "was released with settings"),
        (ReleaseSettings(POLICY, 0.7), "was released with settings"),
        (ReleaseSettings(POLICY, 0.8, delta=0.1), "was released with settings"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            list(replay(town / "r.csv", model, settings))
    for settings, words in (
        ("utility:2km", "started with policy"),
        (ReleaseSettings(POLICY, 0.7), "started with epsilon 0.8, got 0.7"),
        (ReleaseSettings(POLICY, 0.8, repair_objective="volume"), "started with repair_objective error, got volume"),
    ):
        with pytest.raises(SessionMismatchError, match=words):
            list(replay(town / "s.session", model, settings))
    learned = load_model(model)
    other = MarkovModel(learned.transition, np.full(learned.size, 1 / learned.size), learned.states, 1800.0)
    with pytest.raises(ConfigurationError, match="model"):
        list(replay(town / "r.csv", other, SETTINGS))
    with pytest.raises(SessionMismatchError, match="started with model"):
        list(replay(town / "s.session", other))


def test_releases_of_graph_engine_are_audited_with_policy_text(tmp_path):
    from dphmm import parse_policy, release_trajectory
    from dphmm.writers.formats import write_releases
    from dphmm.writers.release_table import ReleaseTable

    space = region(bbox=BBOX, cell_km=0.5)
    model = learn(TOWN, space, step_seconds=1800, smoothing=0.5).model
    engine = Releaser(model, space.points, parse_policy(POLICY, space), 0.8, "k-norm", rng=1)
    track = ANNA.read().trajectories[0].resample(1800.0)
    write_releases(tmp_path / "r.csv", ReleaseTable.from_releases(release_trajectory(engine, space, track)))
    (replayed,) = replay(tmp_path / "r.csv", model, POLICY)
    assert len(replayed.sequence) > 20
    with pytest.raises(ConfigurationError, match="released with settings"):
        list(replay(tmp_path / "r.csv", model, "complete"))


def test_audit_excepts_unprotected_states_only_if_policy_has_them(town, tmp_path):
    west, east = -30.02, -29.99
    ring = [[west, 44.98], [east, 44.98], [east, 45.01], [west, 45.01], [west, 44.98]]
    zone = tmp_path / "zone.geojson"
    zone.write_text(json.dumps({"type": "Polygon", "coordinates": [ring]}))
    for policy, is_excepted in ((POLICY, False), (f"zone:{zone}", True)):
        out = tmp_path / f"{is_excepted}.csv"
        settings = ReleaseSettings(policy=policy, epsilon=0.8, noise_scope="component")
        release(ANNA, town / "m.npz", settings, out, rng=4)
        audit_result = audit_session(out, town / "m.npz", settings)
        assert not audit_result.has_exposed_state
        assert ("except unprotected ones" in audit_result.describe()) is is_excepted


@pytest.mark.slow
def test_scheduled_releases_need_their_schedule(town, tmp_path):
    model = load_model(town / "m.npz")
    release(ANNA, model, ReleaseSettings(POLICY, 1.0, schedule=Schedule(window_epsilon=4)), tmp_path / "r.csv")
    with pytest.raises(DataFileError, match=r"provide all settings of the release, such as its --window-epsilon"):
        list(replay(tmp_path / "r.csv", model, POLICY))
    with pytest.raises(ConfigurationError, match="must contain the settings of its releases, or they must be"):
        list(replay(tmp_path / "r.csv", model))


@pytest.mark.slow
def test_batch_is_audited_with_its_settings(town, tmp_path):
    """A batch contains its settings. Another policy is refused."""
    settings = ReleaseSettings(POLICY, 1.0, schedule=Schedule(window_epsilon=4), delta=0.001)
    batch(ANNA, tmp_path / "batch", town / "m.npz", settings, workers=1, rng=3)
    (user_file,) = (tmp_path / "batch").glob("*/*.parquet")
    (replayed,) = replay(tmp_path / "batch", town / "m.npz")
    assert replayed.engine.settings == settings
    by_folder = audit_session(tmp_path / "batch", town / "m.npz").to_dict()
    by_file = audit_session(user_file, town / "m.npz", settings).to_dict()
    # only the folder states that the noise is seeded
    assert [audit["users"][0].pop("randomness_was_private") for audit in (by_folder, by_file)] == [False, None]
    by_folder["in_words"] = by_folder["in_words"].replace(_SEEDED, "")
    assert by_folder == by_file
    with pytest.raises(ConfigurationError, match="released with settings"):
        list(replay(tmp_path / "batch", town / "m.npz", "utility:2km"))


@pytest.mark.slow
def test_prior_is_read_from_table_or_array(town, tmp_path):
    model = load_model(town / "m.npz")
    prior = np.zeros(model.size)
    prior[[3, 5]] = 0.25, 0.75
    names = AuditTarget.from_model(model, POLICY).names
    (tmp_path / "prior.csv").write_text(f"state,probability\n{names[3]},0.25\n{names[5]},0.75\n")
    by_table = audit_session(town / "s.session", model, prior=tmp_path / "prior.csv")
    by_array = audit_session(town / "s.session", model, prior=prior)
    assert by_table.to_dict() == by_array.to_dict()
    assert by_table.to_dict() != audit_session(town / "s.session", model).to_dict()
    (tmp_path / "half.csv").write_text(f"state,probability\n{names[3]},0.5\n")
    with pytest.raises(DataFileError, match="must sum to 1, got 0\\.5"):
        audit_session(town / "s.session", model, prior=tmp_path / "half.csv")
    for wrong, words in (([0.5] * model.size, "must sum to 1"), ([1.0], f"{model.size} states")):
        with pytest.raises(StochasticError, match=words):
            audit_policy(AuditTarget.from_model(model, POLICY), prior=wrong)


def test_batch_with_restarts_is_audited_for_adversary_without_restarts(tmp_path):
    """The engine restarts after the gap. The adversary's belief uses dense matrices."""
    grid = Grid.over((45.0, -30.05, 45.03, -30.0), 0.5)
    near = np.linalg.norm(grid.points[:, None] - grid.points[None], axis=2) < 0.6
    matrix, first = near / near.sum(axis=1, keepdims=True), np.full(grid.size, 1 / grid.size)
    MarkovModel(matrix, first, grid, 60.0).save(tmp_path / "m.npz")
    slots, states = np.array([1, 2, 3, 20, 21]), [0, 0, 1, 2, 2]
    places = grid.latlon(states)
    times = np.datetime64("2024-03-07T09:00", "us") + slots * np.timedelta64(60, "s")
    write_csv(
        tmp_path / "anna.csv",
        ["user", "time", "latitude", "longitude"],
        [["anna", f"{time}Z", *place] for time, place in zip(times, places.tolist(), strict=True)],
    )
    settings = ReleaseSettings("utility:600m", 2.0, "k-norm", delta=0.3)
    done = batch(
        tmp_path / "anna.csv",
        tmp_path / "all",
        tmp_path / "m.npz",
        settings,
        kind="csv",
        session_gap=10,
        workers=1,
        rng=4,
    )
    assert done.to_dict()["num_timesteps_after_gap"] == 2
    assert done.to_dict()["num_users_with_gap"] == 1
    file = get_user_file_path(tmp_path / "all", "anna", "csv")
    table = read_releases(file)
    assert table["num_ignored_releases"].tolist() == [0, 0, 0, 3, 3]

    engine = settings.engine(load_model(tmp_path / "m.npz"))
    belief = first
    likelihoods = []
    for t, z in enumerate(np.stack([table["x_km"], table["y_km"]], axis=1)):
        if t == 3:
            engine.restart()
        step = engine.prepare(None, 1 if t in (0, 3) else int(slots[t] - slots[t - 1]))
        likelihoods.append(engine.log_likelihood(step, z))
        engine.resume(step.prior.update(likelihoods[-1]), t + 1)
        belief = belief if t == 0 else belief @ np.linalg.matrix_power(matrix, int(slots[t] - slots[t - 1]))
        belief = belief * np.exp(likelihoods[-1])
        belief /= belief.sum()
    (audit,) = audit_session(file, tmp_path / "m.npz", settings).audits
    np.testing.assert_allclose(audit.filtering.filtered[-1].probabilities, belief, rtol=1e-9)
    assert not np.allclose(engine.belief.probabilities, belief, rtol=1e-3), (
        "an adversary who restarts has another belief"
    )
