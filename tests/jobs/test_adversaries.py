"""Other adversaries than the public one: what they believe is what all paths under their own model say."""

from __future__ import annotations

import gc
import itertools
import json
import weakref

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import MarkovModel
from dphmm.audit.sequence import replay_sequence
from dphmm.calibrate.simulation import simulate
from dphmm.cli import main
from dphmm.errors import ConfigurationError
from dphmm.jobs import Adversaries, Targets, audit_event, audit_session, batch, calibrate, release
from dphmm.jobs.input_data import Data
from dphmm.jobs.models import private_list, write_list
from dphmm.jobs.stored_releases import replay
from dphmm.model.habits import with_habits, with_pull
from tests.jobs.test_identity import DAY, SETTINGS, SIZE, crowd, public_model, written

MARCH = int(np.datetime64("2024-03-01", "h").astype(int))


@pytest.fixture
def town(tmp_path, monkeypatch):
    """Three people with six days known and two released (seeds 4 and 5), in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    model, people = public_model(), crowd(3, 6, 4)
    model.save("m.npz")
    written(tmp_path / "known.csv", people, 0)
    written(tmp_path / "later.csv", crowd(3, 2, 5), 10)
    release(Data(("later.csv",)), model, SETTINGS, "r.csv", rng=6)
    return model, people


def by_paths(model: MarkovModel, rows: np.ndarray) -> np.ndarray:
    """The smoothed beliefs ``(T, N)`` by going through all paths."""
    moves, found = model.transition.toarray(), np.zeros(rows.shape)
    for path in itertools.product(range(model.size), repeat=len(rows)):
        mass = model.initial[path[0]] * np.prod([moves[a, b] for a, b in itertools.pairwise(path)])
        mass *= np.exp(rows[np.arange(len(rows)), path].sum())
        found[np.arange(len(rows)), path] += mass
    return found / found.sum(axis=1, keepdims=True)


def test_each_adversary_believes_what_all_paths_under_their_own_model_say(tmp_path, town):
    model, people = town
    later = {user: states[:5] for user, states in crowd(3, 1, 5).items()}
    written(tmp_path / "few.csv", later, 10)
    release(Data(("few.csv",)), model, SETTINGS, "few_released.csv", rng=6)
    other = MarkovModel(np.full((SIZE, SIZE), 1 / SIZE), model.initial, model.states, model.step_seconds)
    asked = Adversaries(Data(("known.csv",)), other, ("home", "1"))
    found = audit_session("few_released.csv", model, SETTINGS, adversaries=asked)
    assert found.private
    slots = MARCH + np.arange(6 * DAY)
    for one in replay("few_released.csv", model, SETTINGS):
        user = one.sequence.user
        rows = np.array([step.log_likelihood for step in replay_sequence(one.engine, one.sequence)])
        night = people[user][(slots % 24 + 7.3 / 15 < 6)]
        home = int(np.bincount(night).argmax())
        wanted = {
            "the model": model,
            "another model": other,
            "their habits": with_habits(model, slots, people[user], DAY).model,
            "their home": with_pull(model, [home]),
            "that they keep coming to 1": with_pull(model, [1]),
        }
        audits = {audit.knows: audit for audit in found.audits if audit.user == user}
        assert list(audits) == list(wanted)
        for knows, theirs in wanted.items():
            beliefs = by_paths(theirs, rows)
            np.testing.assert_allclose(audits[knows].hindsight.best, beliefs.max(axis=1), rtol=1e-9)
        assert not np.allclose(audits["their habits"].hindsight.best, by_paths(model, rows).max(axis=1)), "broken twin"
    worst = max(found.audits, key=lambda one: one.hindsight.best.mean())
    assert f"somebody who knows {worst.knows}" in found.in_words()


def test_an_event_is_as_probable_to_each_adversary_as_all_paths_say(town):
    model, people = town
    found = audit_event(
        "r.csv", model, "at:2 between 1 and 3", SETTINGS, users=["p1"], adversaries=Adversaries(Data(("known.csv",)))
    )
    (one,) = replay("r.csv", model, SETTINGS, ["p1"])
    rows = np.array([step.log_likelihood for step in replay_sequence(one.engine, one.sequence)])[:4]
    slots = MARCH + np.arange(6 * DAY)
    for audit, theirs in zip(found.audits[0], (model, with_habits(model, slots, people["p1"], DAY).model), strict=True):
        moves, happened, total = theirs.transition.toarray(), 0.0, 0.0
        for path in itertools.product(range(SIZE), repeat=4):
            mass = theirs.initial[path[0]] * np.prod([moves[a, b] for a, b in itertools.pairwise(path)])
            mass *= np.exp(rows[np.arange(4), path].sum())
            total, happened = total + mass, happened + mass * (2 in path[1:])
        assert audit.probability[3] == pytest.approx(happened / total, rel=1e-9)
    assert [audit.knows for audit in found.audits[0]] == ["the model", "their habits"]
    assert found.private


def test_an_audit_learns_the_habits_of_one_person_at_a_time(town, monkeypatch):
    """Models of thousands of people do not fit into memory, nor do beliefs at all of their releases."""
    model, _ = town
    made, alive = [], []

    def habits(*given):
        gc.collect()
        alive.append(sum(one() is not None for one in made))
        found = with_habits(*given, DAY).model
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr("dphmm.jobs.adversaries.habits", lambda public, moments: habits(public, *moments))
    asked = Adversaries(Data(("known.csv",)))
    found = audit_session("r.csv", model, SETTINGS, adversaries=asked, keep_beliefs=False)
    audit_event("r.csv", model, "at:2 between 1 and 3", SETTINGS, adversaries=asked)
    assert len(made) == 6
    assert max(alive) <= 1, "the person before"
    kept = audit_session("r.csv", model, SETTINGS, adversaries=asked)
    for slim, whole in zip(found.audits, kept.audits, strict=True):
        assert slim.filtering is None
        assert slim.facts("abcdef"[:SIZE]) == whole.facts("abcdef"[:SIZE])
        beliefs = [belief.probabilities for belief in whole.smoothed]
        np.testing.assert_allclose(slim.expected, np.sum(beliefs, axis=0))


def test_owners_see_what_who_knows_the_model_and_who_knows_their_habits_learn(town):
    model, _ = town
    done = release(Data(("later.csv",)), model, SETTINGS, rng=6, known=Data(("known.csv",)))
    private = done.private_facts()
    audits = audit_session("r.csv", model, SETTINGS, adversaries=Adversaries(Data(("known.csv",)))).audits
    for knows in ("the model", "their habits"):
        theirs, end = [one for one in audits if one.knows == knows], f"in_hindsight_knowing_{knows.replace(' ', '_')}"
        certainty = max(float(one.hindsight.best.max()) for one in theirs)
        assert private[f"private_adversary_certainty_most_{end}"] == pytest.approx(certainty)
        error = min(1000 * float(np.median(one.hindsight.error)) for one in theirs)
        assert private[f"private_adversary_error_m_median_{end}"] == pytest.approx(error, rel=0.03)
    assert not [name for name in release(Data(("later.csv",)), model, SETTINGS).private_facts() if "habits" in name]
    assert not [name for name in done.facts() if "habits" in name], "nothing of it is public"


def test_a_batch_tells_its_owner_what_releases_told(tmp_path, town):
    model, _ = town
    for workers in (1, 2):
        folder = tmp_path / f"out{workers}"
        done = batch(
            "later.csv", folder, "m.npz", SETTINGS, kind="csv", seed=3, workers=workers, known=Data(("known.csv",))
        )
        facts, audits = done.private_facts(), []
        for file in sorted(folder.rglob("*.csv")):
            asked = Adversaries(Data(("known.csv",)))
            audits += audit_session(file, model, SETTINGS, adversaries=asked).audits
        for knows in ("the model", "their habits"):
            most = max(float(one.hindsight.best.max()) for one in audits if one.knows == knows)
            key = f"private_adversary_certainty_most_in_hindsight_knowing_{knows.replace(' ', '_')}"
            assert facts[key] == pytest.approx(most)
        assert facts["private_users_without_earlier_days"] == 0
        assert not [name for name in done.facts() if "habits" in name or "in_hindsight" in name]


def test_a_target_against_who_knows_habits_needs_a_smaller_epsilon(town):
    """Figures of 16 simulated people by the habits of three (seed 0)."""
    model, people = town
    asked = {"over_seconds": 86400.0, "people": 16}
    public, known = (
        calibrate(model, SETTINGS, Targets(adversary_error=0.22), known=one, **asked)
        for one in (None, Data(("known.csv",)))
    )
    assert known.settings.epsilon < 0.9 * public.settings.epsilon
    assert (public.knows, known.knows) == ("the model", "their habits")
    slots = MARCH + np.arange(6 * DAY)
    habits = [with_habits(model, slots, people[user], DAY).model for user in people]
    engine = known.settings.engine(model)
    told = simulate(engine, known.settings.epsilon, 48, 24, seed=99, habits=habits).figure("hindsight")
    assert told.mean + told.margin > 0.22
    broken = simulate(engine, public.settings.epsilon, 48, 24, seed=99, habits=habits).figure("hindsight")
    assert broken.mean + broken.margin < 0.22, "the public target does not hold against them"


def test_a_calibration_says_of_how_many_known_people_the_model_was_learned(town):
    targets, known = Targets(day_epsilon=24.0), Data(("known.csv",))
    assert calibrate("m.npz", SETTINGS, targets, people=0, known=known).warnings() == []
    write_list(private_list("m.npz"), town[0], ["p0", "p2", "someone else"])
    found = calibrate("m.npz", SETTINGS, targets, people=0, known=known)
    assert found.facts()["known_people_that_the_model_was_learned_from"] == 2
    (said,) = found.warnings()
    assert said.startswith("the model was learned from 2 of the people whose earlier data are known")


def test_the_estimate_of_people_with_habits_is_held_against_their_paths(town):
    """48 people, seeds 1 and 2: an estimate that believed the model would be said to be of the public's error."""
    model, people = town
    engine, slots = SETTINGS.engine(model), MARCH + np.arange(6 * DAY)
    habits = [with_habits(model, slots, people[user], DAY).model for user in people]
    theirs, public = (simulate(engine, 0.5, 48, 24, 1, habits=one).figure("estimate") for one in (habits, ()))
    assert abs(theirs.mean - public.mean) > theirs.margin, "people with two places each are elsewhere"


def test_at_the_command(town):
    line = ["audit", "session", "r.csv", "--model", "m.npz", "--policy", "centres:500m"]
    done = CliRunner().invoke(main, [*line, "--known", "known.csv", "--knows", "home", "--knows", "1"])
    assert done.exit_code == 0, done.output
    assert "adversary knows" in done.output
    assert "keep it to yourself" in done.output
    assert "that they keep coming to 1" in done.output
    assert "truly off" not in done.output
    truth = CliRunner().invoke(main, [*line, "--known", "known.csv", "--true", "later.csv"])
    head, first = (row.split("  ") for row in truth.output.splitlines()[1:3])
    at = [one.strip() for one in head if one.strip()].index("right in hindsight")
    later = audit_session("r.csv", "m.npz", SETTINGS, true=Data(("later.csv",))).audits[0].accuracies[2]
    assert float([one.strip() for one in first if one.strip()][at]) == pytest.approx(later.best_hits.mean(), abs=0.006)
    done = CliRunner().invoke(main, [*line, "--adversary-model", "m.npz", "--json"])
    users = json.loads(done.stdout)["users"]
    assert users[1]["adversary_knows"] == "another model (m.npz)"
    means = [one["knowledge"]["in_hindsight"]["best_guess_probability_mean"] for one in users[:2]]
    assert means[0] == pytest.approx(means[1])
    event = ["audit", "event", *line[2:], "--event", "at:2 between 1 and 3", "--known", "known.csv", "--json"]
    assert json.loads(CliRunner().invoke(main, event).stdout)["events"][1]["adversary_knows"] == "their habits"
    words = ["calibrate", "--model", "m.npz", "--policy", "centres:500m", "--adversary-error", "220m", "--over", "12h"]
    facts = json.loads(CliRunner().invoke(main, [*words, "--known", "known.csv", "--json"]).stdout)
    assert facts["adversary_knows"] == "their habits"
    public = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    same = CliRunner().invoke(main, [*words, "--known", "known.csv", "--against", "public", "--json"])
    assert json.loads(same.stdout) == public


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--knows", "home"], "home and work are found in earlier data; give --known too"),
        (["--knows", "77"], "place '77' is unknown"),
        (["--knows", "1 and 2"], "goes on behind the place"),
        (["--adversary-model", "narrow.npz"], "give one of the same region, cells and step"),
    ],
)
def test_what_no_adversary_knows_is_refused_in_one_line(town, words, said):
    model, _ = town
    slower = MarkovModel(model.transition, model.initial, model.states, 600.0)
    slower.save("narrow.npz")
    line = ["audit", "session", "r.csv", "--model", "m.npz", "--policy", "centres:500m", *words]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_what_does_not_go_together_is_refused(tmp_path, town):
    model, _ = town
    known = Data(("known.csv",))
    with pytest.raises(ConfigurationError, match="audit session --known"):
        release(Data(("later.csv",)), model, SETTINGS, session=tmp_path / "s", known=known)
    with pytest.raises(ConfigurationError, match="leave out --known"):
        calibrate(model, SETTINGS, Targets(certainty=0.9, event="at:2 at 3"), known=known)
    far = tmp_path / "far.csv"
    far.write_text("user,time,latitude,longitude\na,2024-03-01T00:00:00Z,10,10\n")
    with pytest.raises(ConfigurationError, match="no place of the earlier data"):
        calibrate(model, SETTINGS, Targets(adversary_error=0.2), known=Data((str(far),)))
