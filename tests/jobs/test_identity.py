"""Whose releases are these: against enumeration of all paths under every candidate, and a crowd with known habits."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import MarkovModel, ReleaseSettings
from dphmm.audit.sequence import replay_sequence
from dphmm.cli import main
from dphmm.errors import ConfigurationError
from dphmm.jobs import Adversaries, audit_identity, audit_session, release
from dphmm.jobs.identity import IdentityAudit, Linked
from dphmm.jobs.input_data import Data
from dphmm.jobs.stored_releases import replay
from dphmm.model.habits import WEIGHTS, with_habits
from dphmm.space import Grid

GRID = Grid.over((45.0, 7.0, 45.008, 7.011), 0.5)
SIZE, STEP, DAY = GRID.size, 3600.0, 24
SETTINGS = ReleaseSettings("centres:500m", 1.0)


def public_model() -> MarkovModel:
    rng = np.random.default_rng(1)
    moves = 0.5 * np.eye(SIZE) + 0.5 * rng.dirichlet(np.full(SIZE, 3.0), SIZE)
    return MarkovModel(moves, np.full(SIZE, 1 / SIZE), states=GRID, step_seconds=STEP)


def crowd(count: int, days: int, seed: int) -> dict[str, np.ndarray]:
    """The states of people by hour, each of whom goes between two places of their own."""
    rng, found = np.random.default_rng(seed), {}
    for number in range(count):
        home, work = number % SIZE, (number * 3 + 1) % SIZE
        hours = np.tile(np.arange(DAY), days)
        there = np.where((hours >= 8) & (hours < 17), work, home)
        found[f"p{number}"] = np.where(rng.random(len(hours)) < 0.1, rng.integers(0, SIZE, len(hours)), there)
    return found


def written(path: Path, people: dict[str, np.ndarray], first_day: int) -> str:
    lines = ["user,time,latitude,longitude"]
    for user, states in people.items():
        start = np.datetime64("2024-03-01T00:00:00") + np.timedelta64(first_day, "D")
        for hour, (latitude, longitude) in enumerate(GRID.latlon(states).tolist()):
            lines.append(f"{user},{start + np.timedelta64(hour, 'h')}Z,{latitude},{longitude}")
    path.write_text("\n".join(lines))
    return str(path)


def test_habits_are_counts_shrunk_by_the_weight_that_predicts_days_left_out():
    model, (states,) = public_model(), crowd(1, 6, 2).values()
    slots = np.arange(len(states)) + 5 * DAY
    found = with_habits(model, slots, states, DAY)
    base, moves = model.transition.toarray(), list(zip(states[:-1], states[1:], slots[1:] // DAY, strict=True))

    def score(weight):
        total = 0.0
        for i, j, day in moves:
            others = [(a, b) for a, b, other in moves if other != day and a == i]
            count = sum(b == j for _, b in others)
            total += np.log(base[i, j] if weight == np.inf else (count + weight * base[i, j]) / (len(others) + weight))
        return total

    best = max(WEIGHTS[::-1], key=score)
    assert found.weight == best < np.inf
    counts = np.zeros((SIZE, SIZE))
    np.add.at(counts, (states[:-1], states[1:]), 1)
    wanted = (counts + best * base) / (counts.sum(axis=1, keepdims=True) + best)
    np.testing.assert_allclose(found.model.transition.toarray(), wanted)
    assert (found.moves, found.days) == (len(states) - 1, 6)
    noise = np.random.default_rng(3).integers(0, SIZE, 40)
    alone = with_habits(model, np.arange(40) * 2, noise, 80)
    assert alone.weight == np.inf, "one day predicts no other"


def test_the_probability_of_each_candidate_is_that_of_all_paths_under_their_model(tmp_path):
    model, people = public_model(), crowd(3, 3, 4)
    known = written(tmp_path / "known.csv", people, 0)
    later = {user: states[:4] for user, states in crowd(3, 1, 5).items()}
    truth = written(tmp_path / "later.csv", later, 10)
    release(Data((truth,)), model, SETTINGS, tmp_path / "released.csv", rng=6)
    found = audit_identity(tmp_path / "released.csv", model, Data((known,)), SETTINGS)
    assert found.candidates == ("p0", "p1", "p2")
    for number, (one, replayed) in enumerate(
        zip(found.people, replay(tmp_path / "released.csv", model, SETTINGS), strict=True)
    ):
        rows = np.array([step.log_likelihood for step in replay_sequence(replayed.engine, replayed.sequence)])
        logs = []
        for user in found.candidates:
            slots = np.arange(3 * DAY) + int(np.datetime64("2024-03-01", "h").astype(int))
            own = with_habits(model, slots, people[user], DAY).model
            moves, total = own.transition.toarray(), 0.0
            for path in itertools.product(range(SIZE), repeat=4):
                mass = own.initial[path[0]] * np.prod([moves[a, b] for a, b in itertools.pairwise(path)])
                total += mass * np.exp(sum(rows[t, state] for t, state in enumerate(path)))
            logs.append(np.log(total))
        wanted = np.exp(np.array(logs) - max(logs))
        np.testing.assert_allclose(one.posterior(4), wanted / wanted.sum(), rtol=1e-9)
        assert one.own == number
        assert one.rank(4) == 1 + sum(value > wanted[number] for value in wanted)
        assert one.epsilon == 4.0
    assert not np.allclose(found.people[0].posterior(4), 1 / 3), (
        "the broken twin, one model for all, tells no one apart"
    )


def test_somebody_who_knows_the_habits_of_a_person_is_nearer_and_believes_what_paths_say(tmp_path):
    model, people = public_model(), crowd(3, 8, 4)
    known = Data((written(tmp_path / "known.csv", people, 0),))
    later = crowd(3, 2, 5)
    truth = Data((written(tmp_path / "later.csv", later, 10),))
    settings = ReleaseSettings("centres:500m", 0.5)
    release(truth, model, settings, tmp_path / "r.csv", rng=6)
    audits = audit_session(tmp_path / "r.csv", model, settings, true=truth, adversaries=Adversaries(known)).audits
    public, knowing = ([one for one in audits if one.knows == knows] for knows in ("the model", "their habits"))
    for one, other in zip(public, knowing, strict=True):
        assert other.accuracies[2].expected_error.mean() < 0.9 * one.accuracies[2].expected_error.mean()
        assert other.uninformed.entropy.mean() < one.uninformed.entropy.mean()
    (replayed, *_) = replay(tmp_path / "r.csv", model, settings)
    rows = np.array([step.log_likelihood for step in replay_sequence(replayed.engine, replayed.sequence)])[:4]
    slots = np.arange(8 * DAY) + int(np.datetime64("2024-03-01", "h").astype(int))
    own = with_habits(model, slots, people["p0"], DAY).model
    moves, last = own.transition.toarray(), np.zeros(SIZE)
    for path in itertools.product(range(SIZE), repeat=4):
        mass = own.initial[path[0]] * np.prod([moves[a, b] for a, b in itertools.pairwise(path)])
        last[path[3]] += mass * np.exp(sum(rows[t, state] for t, state in enumerate(path)))
    last /= last.sum()
    assert knowing[0].online.best[3] == pytest.approx(last.max())
    assert public[0].online.best[3] != pytest.approx(last.max()), "the broken twin knows the public model alone"


def test_people_are_linked_by_many_releases_of_a_large_budget_and_not_by_a_small_one(tmp_path):
    """People with two places each, ten days known, four released (seeds 7 and 8)."""
    model = public_model()
    known = written(tmp_path / "known.csv", crowd(SIZE, 10, 7), 0)
    truth = written(tmp_path / "later.csv", crowd(SIZE, 4, 8), 20)
    shares = {}
    for epsilon in (4.0, 0.001):
        file = tmp_path / f"{epsilon}.csv"
        settings = ReleaseSettings("centres:500m", epsilon)
        release(Data((truth,)), model, settings, file, rng=9)
        found = audit_identity(file, model, Data((known,)), settings)
        all_ = found.found()
        assert all_.first_least <= all_.first <= all_.first_most
        shares[epsilon] = all_.first
        assert found.is_exposed == (epsilon == 4.0)
        early = found.found(10)
        assert early.people == SIZE
        if epsilon == 4.0:
            assert len(found.singled_out) >= SIZE - 1
            assert early.stated < all_.stated
        assert found.found(1000) is None
    assert shares[4.0] >= 1 - 1 / SIZE
    assert shares[0.001] <= 0.5
    mixed = audit_identity(
        tmp_path / "4.0.csv", model, Data((known,)), ReleaseSettings("centres:500m", 4.0), users=["p3"]
    )
    assert [one.user for one in mixed.people] == ["p3"]
    assert len(mixed.candidates) == SIZE


def test_the_command_says_who_is_found_and_leaves_with_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = public_model()
    model.save("m.npz")
    written(tmp_path / "known.csv", crowd(4, 6, 7), 0)
    truth = written(tmp_path / "later.csv", crowd(4, 2, 8), 20)
    release(Data((truth,)), model, ReleaseSettings("centres:500m", 4.0), "r.csv", rng=9)
    line = ["audit", "identity", "r.csv", "--model", "m.npz", "--policy", "centres:500m", "--known", "known.csv"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 1, done.output
    assert "are linked to their earlier data among 4 candidates" in " ".join(done.output.split())
    assert "keep it to yourself" in done.output
    told = json.loads(CliRunner().invoke(main, [*line, "--json"]).stdout)
    assert {one["user"] for one in told["users"]} == {"p0", "p1", "p2", "p3"}
    assert told["by_moments"][0]["moments"] == 10
    session = ["audit", "session", *line[2:], "--json"]
    both = json.loads(CliRunner().invoke(main, session).stdout)
    public = json.loads(CliRunner().invoke(main, [*session[:-3], "--json"]).stdout)
    assert both["private"]
    assert not public["private"]
    assert both["users"][0] == public["users"][0]
    assert [one["adversary_knows"] for one in both["users"]] == ["the model", "their habits"] * 4
    told = [one["knowledge"]["in_hindsight"]["entropy_bits_mean"] for one in both["users"][:2]]
    assert told[1] < told[0]
    assert "somebody who knows their habits" in both["in_words"]


@pytest.mark.parametrize(
    ("people", "given", "words"),
    [
        (crowd(1, 3, 1), {}, "there is one candidate"),
        ({"q": np.zeros(48, dtype=int), "r": np.zeros(48, dtype=int)}, {}, "user p0 has no data in the region before"),
        (crowd(3, 3, 1), {"k": 0}, "k is 0; give 1 or more"),
        (crowd(3, 3, 1), {"most_certainty": 1.0}, "most_certainty is 1; give a number between 0 and 1"),
    ],
)
def test_candidates_that_cannot_be_compared_are_refused(people, given, words, tmp_path):
    model = public_model()
    truth = written(tmp_path / "later.csv", {"p0": np.zeros(6, dtype=int)}, 10)
    release(Data((truth,)), model, SETTINGS, tmp_path / "r.csv", rng=6)
    known = written(tmp_path / "known.csv", people, 0)
    with pytest.raises(ConfigurationError, match=words):
        audit_identity(tmp_path / "r.csv", model, Data((known,)), SETTINGS, **given)
    after = written(tmp_path / "after.csv", crowd(2, 3, 1), 30)
    with pytest.raises(ConfigurationError, match="user p0 has no data in the region before their first release"):
        audit_identity(tmp_path / "r.csv", model, Data((after,)), SETTINGS)


def test_known_points_tell_a_record_apart_as_often_as_all_of_them_gone_through_one_by_one(tmp_path):
    """Three people, ten moments each, one of them with other times; brute force over all pairs and all triples."""
    model, people = public_model(), crowd(3, 6, 4)
    known = Data((written(tmp_path / "known.csv", people, 0),))
    later = {user: states[:10] for user, states in crowd(3, 1, 5).items()}
    truth = Path(written(tmp_path / "later.csv", later, 10))
    lines = truth.read_text().splitlines()
    truth.write_text("\n".join(line for line in lines if "2024-03-11T03" not in line or line[:2] == "p0"))
    release(Data((str(truth),)), model, SETTINGS, tmp_path / "r.csv", rng=6)
    found = audit_identity(tmp_path / "r.csv", model, known, SETTINGS, true=Data((str(truth),)))
    rows, true, slots = {}, {}, {}
    for one in replay(tmp_path / "r.csv", model, SETTINGS):
        user = one.sequence.user
        rows[user] = np.array([step.log_likelihood for step in replay_sequence(one.engine, one.sequence)])
        slots[user] = [int(slot) for slot in one.slots]
        true[user] = [int(later[user][slot - min(slots["p0"])]) for slot in slots[user]]

    def told(user, points):
        def score(other):
            if not {slots[user][t] for t in points} <= set(slots[other]):
                return -np.inf, -np.inf, -np.inf
            at = [slots[other].index(slots[user][t]) for t in points]
            logs = sum(rows[other][i][true[user][t]] for i, t in zip(at, points, strict=True))
            same = all(true[other][i] == true[user][t] for i, t in zip(at, points, strict=True))
            return 0.0, logs, 0.0 if same else -np.inf

        return [score(user)[by] > max(score(other)[by] for other in rows if other != user) for by in range(3)]

    for one, k in zip(found.unique, (1, 2, 3, 5), strict=False):
        shares = [np.mean([told(u, c) for c in itertools.combinations(range(len(rows[u])), k)], axis=0) for u in rows]
        wanted = np.mean(shares, axis=0)
        assert one.k == k
        if k <= 2:
            assert one.drawn == 0
            np.testing.assert_allclose((one.by_times, one.by_releases, one.by_places), wanted)
        else:
            assert one.least <= wanted[1] <= one.most
            assert abs(one.by_places - wanted[2]) < 0.04
    assert 0 < found.unique[0].by_times < found.unique[0].by_releases < 1
    broken = [told("p0", (t,))[1] for t in range(10)]
    assert np.mean(broken) != pytest.approx(found.unique[0].by_places), "the broken twin looks at true places"


def test_probabilities_before_move_the_posterior_by_bayes_rule(tmp_path):
    model, people = public_model(), crowd(3, 6, 4)
    known = Data((written(tmp_path / "known.csv", people, 0),))
    truth = Data((written(tmp_path / "later.csv", crowd(3, 1, 5), 10),))
    release(truth, model, SETTINGS, tmp_path / "r.csv", rng=6)
    even, other = (
        audit_identity(tmp_path / "r.csv", model, known, SETTINGS, prior=prior) for prior in (None, [0.2, 0.7, 0.1])
    )
    for one, changed in zip(even.people, other.people, strict=True):
        wanted = one.posterior(5) * np.array([0.2, 0.7, 0.1])
        np.testing.assert_allclose(changed.posterior(5), wanted / wanted.sum(), rtol=1e-9)
    (tmp_path / "prior.csv").write_text("state,probability\np0,0.2\np1,0.7\np2,0.1\n")
    table = audit_identity(tmp_path / "r.csv", model, known, SETTINGS, prior=tmp_path / "prior.csv")
    np.testing.assert_allclose(table.people[0].posterior(5), other.people[0].posterior(5))


def test_who_is_sure_counts_in_the_last_fifth_of_probabilities():
    rows = np.array([[0.0, -2000.0], [-2000.0, 0.0], [0.0, -0.1]])
    sure = [Linked(user, 1.0, row[None], 0) for user, row in zip("abc", rows, strict=True)]
    found = IdentityAudit(tuple(sure), ("a", "b"), 1, 0.9, ()).calibration()
    assert [(one["from"], one["to"], one["count"], one["right"]) for one in found] == [
        (0.4, 0.6, 1, 1),
        (0.8, 1, 2, 0.5),
    ]


def test_without_names_nothing_is_said_of_single_people_and_a_report_has_pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = public_model()
    model.save("m.npz")
    written(Path("known.csv"), crowd(4, 8, 7), 0)
    written(Path("later.csv"), crowd(4, 2, 8), 20)
    release(Data(("later.csv",)), model, ReleaseSettings("centres:500m", 2.0), "r.csv", rng=9)
    line = ["audit", "identity", "r.csv", "--model", "m.npz", "--policy", "centres:500m", "--known", "known.csv"]
    done = CliRunner().invoke(main, [*line, "--true", "later.csv", "--no-names"])
    assert not [name for name in ("p0", "p1", "p2", "p3") if name in done.output]
    assert "told apart by times alone" in done.output
    done = CliRunner().invoke(main, [*line, "--true", "later.csv", "--report", "PRIVATE-who.html", "--json"])
    told = json.loads(done.stdout)
    assert sum(one["count"] for one in told["calibration"]) >= 4
    assert told["rank_mean"] < told["rank_mean_by_chance"] == 2.5
    page = Path("PRIVATE-who.html").read_text()
    assert page.count("data:image/png") == 3
    assert "Told from all others by known points" in page
    done = CliRunner().invoke(main, [*line, "--report", "who.html"])
    assert done.exit_code == 2
    assert "PRIVATE" in done.output
