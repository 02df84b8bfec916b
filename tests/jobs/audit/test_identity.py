"""Tests of identity audits: path enumeration for all candidates, and users with habits."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings
from dphmm.audit.sequence import replay_sequence
from dphmm.compilation import compile_at_first_call
from dphmm.errors import ConfigurationError
from dphmm.jobs import Adversaries, audit_identity, audit_session, release
from dphmm.jobs.audit.identity import IdentityAudit, UserLinkage
from dphmm.jobs.input_data import Data
from dphmm.jobs.release.stored import replay
from dphmm.model.habits import CANDIDATE_WEIGHTS, with_habits
from dphmm.space import Grid
from tests import command_line

GRID = Grid.over((45.0, 7.0, 45.008, 7.011), 0.5)
SIZE = GRID.size
STEP = 3600.0
DAY = 24
SETTINGS = ReleaseSettings("centres:500m", 1.0)


def build_public_model() -> MarkovModel:
    rng = np.random.default_rng(1)
    moves = 0.5 * np.eye(SIZE) + 0.5 * rng.dirichlet(np.full(SIZE, 3.0), SIZE)
    return MarkovModel(moves, np.full(SIZE, 1 / SIZE), states=GRID, step_seconds=STEP)


def sample_crowd(count: int, days: int, seed: int) -> dict[str, np.ndarray]:
    """Return hourly states of users who each alternate between two places."""
    rng, states_of_user = np.random.default_rng(seed), {}
    for number in range(count):
        home, work = number % SIZE, (number * 3 + 1) % SIZE
        hours = np.tile(np.arange(DAY), days)
        there = np.where((hours >= 8) & (hours < 17), work, home)
        states_of_user[f"p{number}"] = np.where(rng.random(len(hours)) < 0.1, rng.integers(0, SIZE, len(hours)), there)
    return states_of_user


def write_tracks(path: Path, states_by_user: dict[str, np.ndarray], first_day: int) -> str:
    lines = ["user,time,latitude,longitude"]
    for user, states in states_by_user.items():
        start = np.datetime64("2024-03-01T00:00:00") + np.timedelta64(first_day, "D")
        for hour, (latitude, longitude) in enumerate(GRID.latlon(states).tolist()):
            lines.append(f"{user},{start + np.timedelta64(hour, 'h')}Z,{latitude},{longitude}")
    path.write_text("\n".join(lines))
    return str(path)


def test_habits_are_shrunk_counts_with_cross_validated_weight():
    model, (states,) = build_public_model(), sample_crowd(1, 6, 2).values()
    slots = np.arange(len(states)) + 5 * DAY
    habits = with_habits(model, slots, states, DAY)
    base, moves = model.transition.toarray(), list(zip(states[:-1], states[1:], slots[1:] // DAY, strict=True))

    def score(weight):
        total = 0.0
        for i, j, day in moves:
            others = [(a, b) for a, b, other in moves if other != day and a == i]
            count = sum(b == j for _, b in others)
            total += np.log(base[i, j] if weight == np.inf else (count + weight * base[i, j]) / (len(others) + weight))
        return total

    best = max(CANDIDATE_WEIGHTS[::-1], key=score)
    assert habits.weight == best < np.inf
    counts = np.zeros((SIZE, SIZE))
    np.add.at(counts, (states[:-1], states[1:]), 1)
    wanted = (counts + best * base) / (counts.sum(axis=1, keepdims=True) + best)
    np.testing.assert_allclose(habits.model.transition.toarray(), wanted)
    assert (habits.moves, habits.days) == (len(states) - 1, 6)
    noise = np.random.default_rng(3).integers(0, SIZE, 40)
    alone = with_habits(model, np.arange(40) * 2, noise, 80)
    assert alone.weight == np.inf, "a single day cannot be cross-validated"


def test_candidate_probabilities_match_path_enumeration(tmp_path):
    model, states_by_user = build_public_model(), sample_crowd(3, 3, 4)
    earlier = write_tracks(tmp_path / "known.csv", states_by_user, 0)
    later = {user: states[:4] for user, states in sample_crowd(3, 1, 5).items()}
    truth = write_tracks(tmp_path / "later.csv", later, 10)
    release(Data((truth,)), model, SETTINGS, tmp_path / "released.csv", rng=6)
    audit_result = audit_identity(tmp_path / "released.csv", model, Data((earlier,)), SETTINGS)
    assert audit_result.candidates == ("p0", "p1", "p2")
    for number, (linked, replayed) in enumerate(
        zip(audit_result.users, replay(tmp_path / "released.csv", model, SETTINGS), strict=True)
    ):
        rows = np.array([step.log_likelihood for step in replay_sequence(replayed.engine, replayed.sequence)])
        logs = []
        for user in audit_result.candidates:
            slots = np.arange(3 * DAY) + int(np.datetime64("2024-03-01", "h").astype(int))
            habit_model = with_habits(model, slots, states_by_user[user], DAY).model
            moves, total = habit_model.transition.toarray(), 0.0
            for path in itertools.product(range(SIZE), repeat=4):
                mass = habit_model.initial[path[0]] * np.prod([moves[a, b] for a, b in itertools.pairwise(path)])
                total += mass * np.exp(sum(rows[t, state] for t, state in enumerate(path)))
            logs.append(np.log(total))
        wanted = np.exp(np.array(logs) - max(logs))
        np.testing.assert_allclose(linked.posterior(4), wanted / wanted.sum(), rtol=1e-9)
        assert linked.true_candidate == number
        assert linked.rank(4) == 1 + sum(value > wanted[number] for value in wanted)
        assert linked.epsilon == 4.0
    assert not np.allclose(audit_result.users[0].posterior(4), 1 / 3), (
        "a single model for all candidates would not distinguish them"
    )


@pytest.mark.slow
def test_adversary_with_habits_is_nearer_and_matches_path_enumeration(tmp_path):
    model, states_by_user = build_public_model(), sample_crowd(3, 8, 4)
    auxiliary = Data((write_tracks(tmp_path / "known.csv", states_by_user, 0),))
    later = sample_crowd(3, 2, 5)
    truth = Data((write_tracks(tmp_path / "later.csv", later, 10),))
    settings = ReleaseSettings("centres:500m", 0.5)
    release(truth, model, settings, tmp_path / "r.csv", rng=6)
    audits = audit_session(tmp_path / "r.csv", model, settings, true=truth, adversaries=Adversaries(auxiliary)).audits
    public, knowing = (
        [audit for audit in audits if audit.auxiliary_knowledge == knows] for knows in ("the model", "user habits")
    )
    for audit, other in zip(public, knowing, strict=True):
        assert other.accuracies[2].expected_error.mean() < 0.9 * audit.accuracies[2].expected_error.mean()
        assert other.prior_metrics.entropy.mean() < audit.prior_metrics.entropy.mean()
    (replayed, *_) = replay(tmp_path / "r.csv", model, settings)
    rows = np.array([step.log_likelihood for step in replay_sequence(replayed.engine, replayed.sequence)])[:4]
    slots = np.arange(8 * DAY) + int(np.datetime64("2024-03-01", "h").astype(int))
    habit_model = with_habits(model, slots, states_by_user["p0"], DAY).model
    moves, last = habit_model.transition.toarray(), np.zeros(SIZE)
    for path in itertools.product(range(SIZE), repeat=4):
        mass = habit_model.initial[path[0]] * np.prod([moves[a, b] for a, b in itertools.pairwise(path)])
        last[path[3]] += mass * np.exp(sum(rows[t, state] for t, state in enumerate(path)))
    last /= last.sum()
    assert knowing[0].filtered_metrics.top_1_probability[3] == pytest.approx(last.max())
    assert public[0].filtered_metrics.top_1_probability[3] != pytest.approx(last.max()), (
        "the public model gives another belief"
    )


@pytest.mark.slow
def test_users_are_linked_for_large_but_not_for_small_epsilon(tmp_path):
    """Users with two places each, ten known and four released days (seeds 7 and 8)."""
    model = build_public_model()
    earlier = write_tracks(tmp_path / "known.csv", sample_crowd(SIZE, 10, 7), 0)
    truth = write_tracks(tmp_path / "later.csv", sample_crowd(SIZE, 4, 8), 20)
    shares = {}
    for epsilon in (4.0, 0.001):
        file = tmp_path / f"{epsilon}.csv"
        settings = ReleaseSettings("centres:500m", epsilon)
        release(Data((truth,)), model, settings, file, rng=9)
        audit_result = audit_identity(file, model, Data((earlier,)), settings)
        all_ = audit_result.compute_linkage()
        assert all_.min_top_1_accuracy <= all_.top_1_accuracy <= all_.max_top_1_accuracy
        shares[epsilon] = all_.top_1_accuracy
        assert audit_result.is_exposed == (epsilon == 4.0)
        early = audit_result.compute_linkage(10)
        assert early.num_users == SIZE
        if epsilon == 4.0:
            assert len(audit_result.singled_out) >= SIZE - 1
            assert early.mean_max_posterior < all_.mean_max_posterior
        assert audit_result.compute_linkage(1000) is None
    assert shares[4.0] >= 1 - 1 / SIZE
    assert shares[0.001] <= 0.5
    mixed = audit_identity(
        tmp_path / "4.0.csv", model, Data((earlier,)), ReleaseSettings("centres:500m", 4.0), users=["p3"]
    )
    assert [linked.user for linked in mixed.users] == ["p3"]
    assert len(mixed.candidates) == SIZE


@pytest.mark.slow
def test_identity_command_reports_links_and_exits_with_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build_public_model()
    model.save("m.npz")
    write_tracks(tmp_path / "known.csv", sample_crowd(4, 6, 7), 0)
    truth = write_tracks(tmp_path / "later.csv", sample_crowd(4, 2, 8), 20)
    release(Data((truth,)), model, ReleaseSettings("centres:500m", 4.0), "r.csv", rng=9)
    line = [
        "audit",
        "identity",
        "r.csv",
        "--model",
        "m.npz",
        "--policy",
        "centres:500m",
        "--auxiliary-data",
        "known.csv",
    ]
    done = command_line.run(*line)
    assert done.exit_code == 1, done.output
    assert "are linked correctly to their earlier data among 4 candidates" in " ".join(done.output.split())
    assert "Do not publish" in done.output
    output = json.loads(command_line.run(*line, "--json").stdout)
    assert {user["user"] for user in output["users"]} == {"p0", "p1", "p2", "p3"}
    assert output["by_num_timesteps"][0]["num_timesteps"] == 10
    session = ["audit", "session", *line[2:], "--json"]
    # The plain and the compiled form of a loop differ in the last digit.
    with compile_at_first_call():
        both = json.loads(command_line.run(*session).stdout)
        public = json.loads(command_line.run(*session[:-3], "--json").stdout)
    assert both["private"]
    assert not public["private"]
    assert both["users"][0] == public["users"][0]
    assert [user["auxiliary_knowledge"] for user in both["users"]] == ["the model", "user habits"] * 4
    output = [user["inference"]["smoothed"]["mean_entropy_bits"] for user in both["users"][:2]]
    assert output[1] < output[0]
    assert "an informed adversary (knowing user habits)" in both["in_words"]


@pytest.mark.parametrize(
    ("states_by_user", "arguments", "words"),
    [
        (sample_crowd(1, 3, 1), {}, "must contain at least two users, got one candidate"),
        (
            {"q": np.zeros(48, dtype=int), "r": np.zeros(48, dtype=int)},
            {},
            "user p0 must have auxiliary data in the region before the first release",
        ),
        (sample_crowd(3, 3, 1), {"k": 0}, "k must be a positive integer"),
        (sample_crowd(3, 3, 1), {"max_posterior": 1.0}, r"max_posterior must be in \(0, 1\)"),
    ],
)
def test_incomparable_candidates_raise(states_by_user, arguments, words, tmp_path):
    model = build_public_model()
    truth = write_tracks(tmp_path / "later.csv", {"p0": np.zeros(6, dtype=int)}, 10)
    release(Data((truth,)), model, SETTINGS, tmp_path / "r.csv", rng=6)
    earlier = write_tracks(tmp_path / "known.csv", states_by_user, 0)
    with pytest.raises(ConfigurationError, match=words):
        audit_identity(tmp_path / "r.csv", model, Data((earlier,)), SETTINGS, **arguments)
    after = write_tracks(tmp_path / "after.csv", sample_crowd(2, 3, 1), 30)
    with pytest.raises(ConfigurationError, match="user p0"):
        audit_identity(tmp_path / "r.csv", model, Data((after,)), SETTINGS)


def test_released_users_without_earlier_data_are_omitted(tmp_path, monkeypatch):
    """The other users are linked as if the omitted users had not been released."""
    monkeypatch.chdir(tmp_path)
    model = build_public_model()
    model.save("m.npz")
    later = {user: states[:4] for user, states in sample_crowd(4, 1, 5).items()}
    truth = write_tracks(tmp_path / "later.csv", later, 10)
    release(Data((truth,)), model, SETTINGS, tmp_path / "r.csv", rng=6)
    earlier = sample_crowd(4, 3, 4)
    del earlier["p0"]
    auxiliary = write_tracks(tmp_path / "known.csv", earlier, 0)
    audit_result = audit_identity("r.csv", model, Data((auxiliary,)), SETTINGS)
    assert audit_result.users_without_earlier_data == ("p0",)
    selected = audit_identity("r.csv", model, Data((auxiliary,)), SETTINGS, users=("p1", "p2", "p3"))
    assert selected.users_without_earlier_data == ()
    for linked, alone in zip(audit_result.users, selected.users, strict=True):
        assert linked.user == alone.user
        assert linked.posterior().tolist() == alone.posterior().tolist()
    assert (
        audit_result.describe() == f"{selected.describe()} 1 released user is omitted: no earlier data in the region."
    )
    line = ["audit", "identity", "r.csv", "--model", "m.npz", "--policy", SETTINGS.policy]
    line += ["--auxiliary-data", auxiliary]
    named = command_line.run(*line)
    assert "Warning: users without earlier data in the region are omitted: p0" in named.stderr
    unnamed = command_line.run(*line, "--no-names", "--json")
    assert "p0" not in unnamed.output
    assert json.loads(unnamed.stdout)["num_users_without_earlier_data"] == 1


@pytest.mark.slow
def test_unicity_matches_brute_force_over_all_point_sets(tmp_path):
    """Three users with ten timesteps each, one of them with other times.

    Brute force over all pairs and all triples.
    """
    model, states_by_user = build_public_model(), sample_crowd(3, 6, 4)
    auxiliary = Data((write_tracks(tmp_path / "known.csv", states_by_user, 0),))
    later = {user: states[:10] for user, states in sample_crowd(3, 1, 5).items()}
    truth = Path(write_tracks(tmp_path / "later.csv", later, 10))
    lines = truth.read_text().splitlines()
    truth.write_text("\n".join(line for line in lines if "2024-03-11T03" not in line or line[:2] == "p0"))
    release(Data((str(truth),)), model, SETTINGS, tmp_path / "r.csv", rng=6)
    audit_result = audit_identity(tmp_path / "r.csv", model, auxiliary, SETTINGS, true=Data((str(truth),)))
    rows = {}
    true = {}
    slots = {}
    for replayed in replay(tmp_path / "r.csv", model, SETTINGS):
        user = replayed.sequence.user
        rows[user] = np.array([step.log_likelihood for step in replay_sequence(replayed.engine, replayed.sequence)])
        slots[user] = [int(slot) for slot in replayed.slots]
        true[user] = [int(later[user][slot - min(slots["p0"])]) for slot in slots[user]]

    def is_unique(user, points):
        def score(other):
            if not {slots[user][t] for t in points} <= set(slots[other]):
                return -np.inf, -np.inf, -np.inf
            at = [slots[other].index(slots[user][t]) for t in points]
            logs = sum(rows[other][i][true[user][t]] for i, t in zip(at, points, strict=True))
            same = all(true[other][i] == true[user][t] for i, t in zip(at, points, strict=True))
            return 0.0, logs, 0.0 if same else -np.inf

        return [score(user)[by] > max(score(other)[by] for other in rows if other != user) for by in range(3)]

    for replayed, k in zip(audit_result.uniqueness, (1, 2, 3, 5), strict=False):
        shares = [
            np.mean([is_unique(u, c) for c in itertools.combinations(range(len(rows[u])), k)], axis=0) for u in rows
        ]
        wanted = np.mean(shares, axis=0)
        assert replayed.num_known_points == k
        if k <= 2:
            assert replayed.num_samples == 0
            np.testing.assert_allclose((replayed.by_times, replayed.by_releases, replayed.by_places), wanted)
        else:
            assert replayed.min_by_releases <= wanted[1] <= replayed.max_by_releases
            assert abs(replayed.by_places - wanted[2]) < 0.04
    assert 0 < audit_result.uniqueness[0].by_times < audit_result.uniqueness[0].by_releases < 1
    broken = [is_unique("p0", (t,))[1] for t in range(10)]
    assert np.mean(broken) != pytest.approx(audit_result.uniqueness[0].by_places), (
        "releases distinguish less often than true locations"
    )


@pytest.mark.slow
def test_prior_changes_posterior_by_bayes_rule(tmp_path):
    model, states_by_user = build_public_model(), sample_crowd(3, 6, 4)
    auxiliary = Data((write_tracks(tmp_path / "known.csv", states_by_user, 0),))
    truth = Data((write_tracks(tmp_path / "later.csv", sample_crowd(3, 1, 5), 10),))
    release(truth, model, SETTINGS, tmp_path / "r.csv", rng=6)
    even, other = (
        audit_identity(tmp_path / "r.csv", model, auxiliary, SETTINGS, prior=prior) for prior in (None, [0.2, 0.7, 0.1])
    )
    for linked, changed in zip(even.users, other.users, strict=True):
        wanted = linked.posterior(5) * np.array([0.2, 0.7, 0.1])
        np.testing.assert_allclose(changed.posterior(5), wanted / wanted.sum(), rtol=1e-9)
    (tmp_path / "prior.csv").write_text("state,probability\np0,0.2\np1,0.7\np2,0.1\n")
    table = audit_identity(tmp_path / "r.csv", model, auxiliary, SETTINGS, prior=tmp_path / "prior.csv")
    np.testing.assert_allclose(table.users[0].posterior(5), other.users[0].posterior(5))


@pytest.mark.parametrize(
    ("private", "delta", "words"),
    [
        (True, 0.0, "at every timestep. Otherwise it does not limit linkage."),
        (None, 0.1, "at every timestep and they are among the most probable locations of the model. Otherwise"),
        (False, 0.0, "The noise is seeded and can be reproduced: there is no guarantee."),
    ],
)
def test_guarantee_of_linkage_states_its_conditions(private, delta, words):
    linked = [UserLinkage(user, 1.0, np.zeros((1, 2)), 0, private) for user in "ab"]
    text = IdentityAudit(tuple(linked), ("a", "b"), 1, 0.9, delta=delta).describe()
    assert words in text
    assert ("The guarantee bounds" in text) == (private is not False)


def test_calibration_puts_probability_one_into_last_bin():
    rows = np.array([[0.0, -2000.0], [-2000.0, 0.0], [0.0, -0.1]])
    linked = [UserLinkage(user, 1.0, row[None], 0) for user, row in zip("abc", rows, strict=True)]
    bins = IdentityAudit(tuple(linked), ("a", "b"), 1, 0.9, ()).compute_calibration()
    assert [(row["from"], row["to"], row["count"], row["accuracy"]) for row in bins] == [
        (0.4, 0.6, 1, 1),
        (0.8, 1, 2, 0.5),
    ]


@pytest.mark.slow
def test_no_names_omits_users_and_report_contains_pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build_public_model()
    model.save("m.npz")
    write_tracks(Path("known.csv"), sample_crowd(4, 8, 7), 0)
    write_tracks(Path("later.csv"), sample_crowd(4, 2, 8), 20)
    release(Data(("later.csv",)), model, ReleaseSettings("centres:500m", 2.0), "r.csv", rng=9)
    line = [
        "audit",
        "identity",
        "r.csv",
        "--model",
        "m.npz",
        "--policy",
        "centres:500m",
        "--auxiliary-data",
        "known.csv",
    ]
    done = command_line.run(*line, "--true", "later.csv", "--no-names")
    assert not [name for name in ("p0", "p1", "p2", "p3") if name in done.output]
    assert "unique by times" in done.output
    command_line.run(*line, "--true", "later.csv", "--no-names", "--report", "PRIVATE-shares.html")
    page = Path("PRIVATE-shares.html").read_text()
    # The encoded pictures may contain any two letters.
    text = re.sub(r'base64,[^"]*', "", page)
    assert not [name for name in ("p0", "p1", "p2", "p3", "most probable candidate") if name in text]
    assert page.count("data:image/png") == 3
    done = command_line.run(*line, "--true", "later.csv", "--report", "PRIVATE-who.html", "--json")
    output = json.loads(done.stdout)
    assert sum(row["count"] for row in output["calibration"]) >= 4
    assert output["mean_rank"] < output["mean_rank_by_chance"] == 2.5
    page = Path("PRIVATE-who.html").read_text()
    assert page.count("data:image/png") == 3
    assert "Uniqueness given known points" in page
    done = command_line.run(*line, "--report", "who.html")
    assert done.exit_code == 2
    assert "PRIVATE" in done.output
