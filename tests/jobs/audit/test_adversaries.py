"""Tests of adversaries: beliefs match path enumeration under each adversary's model."""

from __future__ import annotations

import gc
import itertools
import json
import re
import weakref
from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel
from dphmm.audit.sequence import replay_sequence
from dphmm.calibrate.simulation import simulate
from dphmm.compilation import compile_at_first_call
from dphmm.errors import ConfigurationError
from dphmm.jobs import Adversaries, CalibrationTargets, audit_event, audit_session, batch, calibrate, release
from dphmm.jobs.input_data import Data
from dphmm.jobs.model.training_users import get_private_list_path, write_user_list
from dphmm.jobs.release.stored import replay
from dphmm.model.habits import with_habits, with_return_bias
from tests import command_line
from tests.jobs.audit.test_identity import DAY, SETTINGS, SIZE, build_public_model, sample_crowd, write_tracks

MARCH = int(np.datetime64("2024-03-01", "h").astype(int))


@pytest.fixture
def town(tmp_path, monkeypatch):
    """Three users with six known and two released days (seeds 4 and 5).

    The folder becomes the current directory.
    """
    monkeypatch.chdir(tmp_path)
    model, states_by_user = build_public_model(), sample_crowd(3, 6, 4)
    model.save("m.npz")
    write_tracks(tmp_path / "known.csv", states_by_user, 0)
    write_tracks(tmp_path / "later.csv", sample_crowd(3, 2, 5), 10)
    release(Data(("later.csv",)), model, SETTINGS, "r.csv", rng=6)
    return model, states_by_user


def smooth_by_enumeration(model: MarkovModel, rows: np.ndarray) -> np.ndarray:
    """Return the smoothed beliefs ``(T, N)`` by enumeration of all paths."""
    moves, beliefs = model.transition.toarray(), np.zeros(rows.shape)
    for path in itertools.product(range(model.size), repeat=len(rows)):
        mass = model.initial[path[0]] * np.prod([moves[a, b] for a, b in itertools.pairwise(path)])
        mass *= np.exp(rows[np.arange(len(rows)), path].sum())
        beliefs[np.arange(len(rows)), path] += mass
    return beliefs / beliefs.sum(axis=1, keepdims=True)


@pytest.mark.slow
def test_beliefs_of_each_adversary_match_path_enumeration(tmp_path, town):
    model, states_by_user = town
    later = {user: states[:5] for user, states in sample_crowd(3, 1, 5).items()}
    write_tracks(tmp_path / "few.csv", later, 10)
    release(Data(("few.csv",)), model, SETTINGS, "few_released.csv", rng=6)
    other = MarkovModel(np.full((SIZE, SIZE), 1 / SIZE), model.initial, model.states, model.step_seconds)
    adversaries = Adversaries(Data(("known.csv",)), other, ("home", "1"))
    audit_result = audit_session("few_released.csv", model, SETTINGS, adversaries=adversaries)
    assert audit_result.private
    slots = MARCH + np.arange(6 * DAY)
    for replayed in replay("few_released.csv", model, SETTINGS):
        user = replayed.sequence.user
        rows = np.array([step.log_likelihood for step in replay_sequence(replayed.engine, replayed.sequence)])
        night = states_by_user[user][(slots % 24 + 7.3 / 15 < 6)]
        home = int(np.bincount(night).argmax())
        wanted = {
            "the model": model,
            "another model": other,
            "user habits": with_habits(model, slots, states_by_user[user], DAY).model,
            "the user's home": with_return_bias(model, [home]),
            "that the user returns to 1": with_return_bias(model, [1]),
        }
        audits = {audit.auxiliary_knowledge: audit for audit in audit_result.audits if audit.user == user}
        assert list(audits) == list(wanted)
        for knows, adversary_model in wanted.items():
            beliefs = smooth_by_enumeration(adversary_model, rows)
            np.testing.assert_allclose(audits[knows].smoothed_metrics.top_1_probability, beliefs.max(axis=1), rtol=1e-9)
        assert not np.allclose(
            audits["user habits"].smoothed_metrics.top_1_probability, smooth_by_enumeration(model, rows).max(axis=1)
        ), "habits matter"
    worst = max(audit_result.audits, key=lambda audit: audit.smoothed_metrics.top_1_probability.mean())
    assert f"an informed adversary (knowing {worst.auxiliary_knowledge})" in audit_result.describe()


@pytest.mark.slow
def test_event_probability_of_each_adversary_matches_path_enumeration(town):
    model, states_by_user = town
    audit_result = audit_event(
        "r.csv", model, "at:2 between 1 and 3", SETTINGS, users=["p1"], adversaries=Adversaries(Data(("known.csv",)))
    )
    (replayed,) = replay("r.csv", model, SETTINGS, ["p1"])
    rows = np.array([step.log_likelihood for step in replay_sequence(replayed.engine, replayed.sequence)])[:4]
    slots = MARCH + np.arange(6 * DAY)
    for audit, adversary_model in zip(
        audit_result.audits[0], (model, with_habits(model, slots, states_by_user["p1"], DAY).model), strict=True
    ):
        moves = adversary_model.transition.toarray()
        happened = 0.0
        total = 0.0
        for path in itertools.product(range(SIZE), repeat=4):
            mass = adversary_model.initial[path[0]] * np.prod([moves[a, b] for a, b in itertools.pairwise(path)])
            mass *= np.exp(rows[np.arange(4), path].sum())
            total, happened = total + mass, happened + mass * (2 in path[1:])
        assert audit.probability[3] == pytest.approx(happened / total, rel=1e-9)
    assert [audit.auxiliary_knowledge for audit in audit_result.audits[0]] == ["the model", "user habits"]
    assert audit_result.private


@pytest.mark.slow
def test_audit_learns_habits_of_one_user_at_a_time(town, monkeypatch):
    """Models and beliefs of thousands of users do not fit into memory."""
    model, _ = town
    references, alive = [], []

    def learn_habits(*arguments):
        gc.collect()
        alive.append(sum(reference() is not None for reference in references))
        habit_model = with_habits(*arguments, DAY).model
        references.append(weakref.ref(habit_model))
        return habit_model

    monkeypatch.setattr(
        "dphmm.jobs.audit.adversaries.build_habit_model", lambda public, history: learn_habits(public, *history)
    )
    adversaries = Adversaries(Data(("known.csv",)))
    slim_result = audit_session("r.csv", model, SETTINGS, adversaries=adversaries, keep_beliefs=False)
    audit_event("r.csv", model, "at:2 between 1 and 3", SETTINGS, adversaries=adversaries)
    assert len(references) == 6
    assert max(alive) <= 1, "at most the previous user's model is alive"
    kept = audit_session("r.csv", model, SETTINGS, adversaries=adversaries)
    for slim, whole in zip(slim_result.audits, kept.audits, strict=True):
        assert slim.filtering is None
        assert slim.to_dict("abcdef"[:SIZE]) == whole.to_dict("abcdef"[:SIZE])
        beliefs = [belief.probabilities for belief in whole.smoothed]
        np.testing.assert_allclose(slim.expected_counts, np.sum(beliefs, axis=0))


@pytest.mark.slow
def test_private_summary_states_knowledge_of_each_adversary(town):
    model, _ = town
    done = release(Data(("later.csv",)), model, SETTINGS, rng=6, auxiliary_data=Data(("known.csv",)))
    private = done.to_private_dict()
    audits = audit_session("r.csv", model, SETTINGS, adversaries=Adversaries(Data(("known.csv",)))).audits
    for knows in ("the model", "user habits"):
        user_audits, end = (
            [audit for audit in audits if audit.auxiliary_knowledge == knows],
            f"knowing_{knows.replace(' ', '_')}",
        )
        max_posterior = max(float(audit.smoothed_metrics.top_1_probability.max()) for audit in user_audits)
        assert private[f"smoothed_max_posterior_{end}"] == pytest.approx(max_posterior)
        error = min(1000 * float(np.median(audit.smoothed_metrics.error)) for audit in user_audits)
        assert private[f"smoothed_min_user_median_adversary_error_m_{end}"] == pytest.approx(error, rel=0.03)
    assert not [name for name in release(Data(("later.csv",)), model, SETTINGS).to_private_dict() if "habits" in name]
    assert not [name for name in done.to_dict() if "habits" in name], "nothing of it is public"


@pytest.mark.slow
def test_batch_private_summary_matches_session_audits(tmp_path, town):
    model, _ = town
    for workers in (1, 2):
        folder = tmp_path / f"out{workers}"
        done = batch(
            "later.csv",
            folder,
            "m.npz",
            SETTINGS,
            kind="csv",
            rng=3,
            workers=workers,
            auxiliary_data=Data(("known.csv",)),
        )
        facts, audits = done.to_private_dict(), []
        for file in sorted(folder.rglob("*.csv")):
            adversaries = Adversaries(Data(("known.csv",)))
            audits += audit_session(file, model, SETTINGS, adversaries=adversaries).audits
        for knows in ("the model", "user habits"):
            maximum = max(
                float(audit.smoothed_metrics.top_1_probability.max())
                for audit in audits
                if audit.auxiliary_knowledge == knows
            )
            key = f"smoothed_max_posterior_knowing_{knows.replace(' ', '_')}"
            assert facts[key] == pytest.approx(maximum)
        assert facts["num_users_without_earlier_days"] == 0
        assert facts["warnings"] == []
        assert not [name for name in done.to_dict() if "habits" in name]


def test_batch_warns_of_auxiliary_data_from_one_day(tmp_path, town):
    header, *rows = Path("known.csv").read_text().splitlines(keepends=True)
    day = min(re.findall(r"\d{4}-\d\d-\d\d", "".join(rows)))
    Path("day.csv").write_text(header + "".join(row for row in rows if day in row))
    done = batch("later.csv", tmp_path / "out", "m.npz", SETTINGS, kind="csv", rng=3, auxiliary_data=Data(("day.csv",)))
    assert [warning for warning in done.to_private_dict()["warnings"] if "are from one day" in warning]


@pytest.mark.slow
def test_public_summary_of_batch_does_not_depend_on_auxiliary_data(tmp_path, town):
    """The belief restarts every day, since the hours from 10 to 19 are missing."""
    lines = Path("later.csv").read_text().splitlines(keepends=True)
    Path("gaps.csv").write_text("".join(line for line in lines if "T1" not in line))
    results = []
    for data in (None, Data(("known.csv",))):
        done = batch("gaps.csv", tmp_path / str(data), "m.npz", SETTINGS, rng=3, session_gap=1, auxiliary_data=data)
        results.append({key: value for key, value in done.to_dict().items() if key not in ("folder", "seconds")})
    assert results[0] == results[1]


@pytest.mark.slow
def test_target_against_informed_adversary_needs_smaller_epsilon(town):
    """16 simulated users with the habits of three known users (seed 0)."""
    model, states_by_user = town
    arguments = {"horizon_seconds": 86400.0, "num_users": 16}
    public, informed = (
        calibrate(model, SETTINGS, CalibrationTargets(adversary_error=0.22), auxiliary_data=auxiliary, **arguments)
        for auxiliary in (None, Data(("known.csv",)))
    )
    assert informed.settings.epsilon < 0.9 * public.settings.epsilon
    assert (public.auxiliary_knowledge, informed.auxiliary_knowledge) == ("the model", "user habits")
    slots = MARCH + np.arange(6 * DAY)
    habits = [with_habits(model, slots, states_by_user[user], DAY).model for user in states_by_user]
    engine = informed.settings.engine(model)
    error = simulate(engine, informed.settings.epsilon, 48, 24, rng=99, habits=habits).estimate_mean("smoothed_error")
    assert error.mean + error.margin > 0.22
    broken = simulate(engine, public.settings.epsilon, 48, 24, rng=99, habits=habits).estimate_mean("smoothed_error")
    assert broken.mean + broken.margin < 0.22, "the public target is missed against this adversary"


def test_calibration_states_number_of_known_training_users(town):
    targets, auxiliary = CalibrationTargets(window_epsilon=24.0), Data(("known.csv",))
    assert calibrate("m.npz", SETTINGS, targets, num_users=0, auxiliary_data=auxiliary).list_warnings() == []
    write_user_list(get_private_list_path("m.npz"), town[0], ["p0", "p2", "someone else"])
    calibration = calibrate("m.npz", SETTINGS, targets, num_users=0, auxiliary_data=auxiliary)
    assert calibration.to_dict()["num_training_users"] == 2
    (warning,) = calibration.list_warnings()
    assert warning.startswith("the model was trained on 2 of the users with earlier data")


@pytest.mark.slow
def test_estimate_error_of_users_with_habits_differs_from_public_error(town):
    """48 users, seeds 1 and 2: an estimate from the model alone would have the public error."""
    model, states_by_user = town
    engine, slots = SETTINGS.engine(model), MARCH + np.arange(6 * DAY)
    habits = [with_habits(model, slots, states_by_user[user], DAY).model for user in states_by_user]
    habit_error, public = (
        simulate(engine, 0.5, 48, 24, 1, habits=habit_models).estimate_mean("estimate_error")
        for habit_models in (habits, ())
    )
    assert abs(habit_error.mean - public.mean) > habit_error.margin, "users with two places each are elsewhere"


@pytest.mark.slow
def test_session_event_and_calibrate_commands_accept_adversaries(town):
    line = ["audit", "session", "r.csv", "--model", "m.npz", "--policy", "centres:500m"]
    done = command_line.run(
        *line, "--auxiliary-data", "known.csv", "--auxiliary-location", "home", "--auxiliary-location", "1"
    )
    assert done.exit_code == 0, done.output
    assert "adversary knows" in done.output
    assert "Do not publish" in done.output
    assert "that the user returns to 1" in done.output
    assert "true error" not in done.output
    truth = command_line.run(*line, "--auxiliary-data", "known.csv", "--true", "later.csv")
    table = truth.output.split("Private: accuracy of the inference given all releases\n")[1].splitlines()
    first = next(line for line in table if line.startswith("p0"))
    correct, _, _ = re.split(r" {2,}", first)[-3:]  # the correct most probable location, and two errors
    later = audit_session("r.csv", "m.npz", SETTINGS, true=Data(("later.csv",))).audits[0].accuracies[2]
    assert float(correct) == pytest.approx(later.top_1_hits.mean(), abs=0.006)
    done = command_line.run(*line, "--adversary-model", "m.npz", "--json")
    users = json.loads(done.stdout)["users"]
    assert users[1]["auxiliary_knowledge"] == "another model, m.npz"
    means = [user["inference"]["smoothed"]["mean_top_1_probability"] for user in users[:2]]
    assert means[0] == pytest.approx(means[1])
    event = ["audit", "event", *line[2:], "--event", "at:2 between 1 and 3", "--auxiliary-data", "known.csv", "--json"]
    assert json.loads(command_line.run(*event).stdout)["events"][1]["auxiliary_knowledge"] == "user habits"
    words = [
        "calibrate",
        "--model",
        "m.npz",
        "--policy",
        "centres:500m",
        "--adversary-error",
        "220m",
        "--horizon",
        "6h",
    ]
    facts = json.loads(command_line.run(*words, "--auxiliary-data", "known.csv", "--json").stdout)
    assert facts["auxiliary_knowledge"] == "user habits"
    public = json.loads(command_line.run(*words, "--json").stdout)
    same = command_line.run(*words, "--auxiliary-data", "known.csv", {"adversary": "public"}, "--json")
    assert json.loads(same.stdout) == public


@pytest.mark.slow
def test_users_without_earlier_data_are_omitted_from_session_and_event_audits(tmp_path, town):
    """The audits of the other users are those of a selection by --users."""
    _, states_by_user = town
    write_tracks(tmp_path / "two.csv", {user: states_by_user[user] for user in ("p1", "p2")}, 0)
    shared = ["r.csv", "--model", "m.npz", "--policy", "centres:500m", "--auxiliary-data", "two.csv"]
    for line in (["session", *shared], ["event", *shared, "--event", "at:2 between 1 and 3"]):
        done = command_line.run("audit", *line)
        assert done.exit_code in (0, 1), done.output  # 1: an event was learned
        assert done.stderr.count("users without earlier data in the region are omitted: p0\n") == 1
        with compile_at_first_call():  # a loop that is compiled between the two audits changes last digits
            both, selected = (
                json.loads(command_line.run("audit", *line, *users, "--json").stdout)
                for users in ((), ("--users", "p1,p2"))
            )
        assert both.pop("users_without_earlier_data") == ["p0"]
        assert selected.pop("users_without_earlier_data") == []
        sentence = " 1 released user is omitted: no earlier data in the region."
        assert (line[0] == "event") or both["in_words"] == selected["in_words"] + sentence
        both.pop("in_words", None)
        selected.pop("in_words", None)
        assert both == selected
    done = command_line.run("audit", "session", *shared, "--users", "p0")
    assert done.exit_code == 2
    assert "user p0 must have auxiliary data in the region" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--auxiliary-location", "home"], "home and work are inferred from earlier data: use --auxiliary-data"),
        (["--auxiliary-location", "77"], "location must be one of the cells 0 to 3, or a .geojson file, got '77'"),
        (["--auxiliary-location", "1 and 2"], "continues after the location"),
        (["--adversary-model", "narrow.npz"], "the adversary's model must have the region, cells and step"),
    ],
)
def test_invalid_adversary_options_print_one_error(town, words, message):
    model, _ = town
    slower = MarkovModel(model.transition, model.initial, model.states, 600.0)
    slower.save("narrow.npz")
    line = ["audit", "session", "r.csv", "--model", "m.npz", "--policy", "centres:500m", *words]
    done = command_line.run(*line)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_conflicting_arguments_raise(tmp_path, town):
    model, _ = town
    auxiliary = Data(("known.csv",))
    with pytest.raises(ConfigurationError, match="audit session --auxiliary-data"):
        release(Data(("later.csv",)), model, SETTINGS, session=tmp_path / "s", auxiliary_data=auxiliary)
    with pytest.raises(ConfigurationError, match="--auxiliary-data"):
        calibrate(model, SETTINGS, CalibrationTargets(max_posterior=0.9, event="at:2 at 3"), auxiliary_data=auxiliary)
    far = tmp_path / "far.csv"
    far.write_text("user,time,latitude,longitude\na,2024-03-01T00:00:00Z,10,10\n")
    with pytest.raises(ConfigurationError, match="auxiliary data"):
        calibrate(model, SETTINGS, CalibrationTargets(adversary_error=0.2), auxiliary_data=Data((str(far),)))


@pytest.mark.parametrize(("num_days", "count"), [(1, 3), (2, 0)])
def test_habits_of_single_day_equal_model_with_warning(tmp_path, town, caplog, num_days, count):
    """One day predicts no other, so the adversary with habits is only the public one."""
    model, states_by_user = town
    first_days = {user: states[: num_days * DAY] for user, states in states_by_user.items()}
    write_tracks(tmp_path / "days.csv", first_days, 0)
    audit_result = audit_session("r.csv", model, SETTINGS, adversaries=Adversaries(Data(("days.csv",))))
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == (count > 0)
    assert all(f"{count} of 3 users are from one day" in line for line in warned)
    for user in states_by_user:
        public, informed = (
            audit.smoothed_metrics.top_1_probability for audit in audit_result.audits if audit.user == user
        )
        if count:
            np.testing.assert_allclose(informed, public, rtol=1e-9)
        else:
            assert not np.allclose(informed, public)
