"""Tests of realized leakage against sums over all edges and windows, bounded by epsilon."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.audit import ReleasedSequence, replay_sequence
from dphmm.audit import realized_leakage as module
from dphmm.audit.realized_leakage import compute_realized_leakage
from tests.running_example import F, build_graph

START = np.full(6, 1 / 6)
MOVES = np.full((6, 6), 0.1) + 0.4 * np.eye(6)
LENGTH = 40


def make_releases(policy: PolicyGraph, step_seconds: float | None = 7200.0, f=F, **settings):
    """Return an engine and forty releases some timesteps apart."""
    engine = Releaser(MarkovModel(MOVES, START, step_seconds=step_seconds), f, policy, 0.4, rng=7, **settings)
    steps = np.random.default_rng(2).integers(1, 5, size=LENGTH)
    records = [engine.release(int(t % 6), steps=int(s)) for t, s in enumerate(steps)]
    released = np.array([record.released for record in records])
    return engine, ReleasedSequence("ann", released, np.full(LENGTH, 0.4), steps), records


@pytest.mark.parametrize("policy", [build_graph(), PolicyGraph.complete(6)], ids=["categories", "complete"])
def test_realized_leakage_matches_all_edges_and_windows(policy):
    engine, sequence, records = make_releases(policy)
    leakage = compute_realized_leakage(engine.spawn(), sequence)
    rows = np.array([replay.log_likelihood for replay in replay_sequence(engine.spawn(), sequence)])
    at = np.concatenate([[0], np.cumsum(sequence.steps[1:])])
    for t in range(LENGTH):
        day = at > at[t] - 12  # twelve timesteps of two hours
        windows = (
            (leakage.release_log_odds, [t]),
            (leakage.total_log_odds, range(t + 1)),
            (leakage.log_odds_24h, np.flatnonzero(day[: t + 1])),
        )
        for figure, chosen in windows:
            worst = max(abs(sum(rows[u, i] - rows[u, j] for u in chosen)) for i, j in policy.edge_array().tolist())
            assert figure[t] == pytest.approx(worst, rel=1e-9, abs=1e-12)
    assert leakage.max_posterior.tolist() == pytest.approx([record.max_posterior_probability for record in records])
    assert leakage.error.tolist() == pytest.approx([record.adversary_error for record in records])
    i, j, t = leakage.worst_pair
    assert policy.connects([i], [j]).all()
    assert abs((rows[: t + 1, i] - rows[: t + 1, j]).sum()) == pytest.approx(leakage.total_log_odds.max())


def test_leakage_of_adjacent_states_is_bounded_by_epsilon_and_of_others_is_not():
    engine, sequence, _ = make_releases(build_graph())
    leakage = compute_realized_leakage(engine.spawn(), sequence)
    assert leakage.release_log_odds.max() <= 0.4 * (1 + 1e-9)
    assert (leakage.total_log_odds <= 0.4 * np.arange(1, LENGTH + 1) + 1e-9).all()
    rows = np.array([replay.log_likelihood for replay in replay_sequence(engine.spawn(), sequence)])
    assert np.abs(rows[:, :1] - rows).max() > 0.4, "over all pairs, including nonadjacent ones, it exceeds epsilon"


def test_release_compares_only_previously_possible_states():
    # The walk begins in two states and spreads: surrogates of other states are farther apart than the policy states.
    moves = np.eye(6) * 0.5 + 0.5 * np.roll(np.eye(6), 1, axis=1)
    engine = Releaser(MarkovModel(moves, [0.5, 0.5, 0, 0, 0, 0]), F, PolicyGraph.complete(6), 0.4, rng=3)
    records = [engine.release(0) for _ in range(8)]
    released = np.array([record.released for record in records])
    sequence = ReleasedSequence("ann", released, np.full(8, 0.4), np.ones(8, dtype=int))
    leakage = compute_realized_leakage(engine.spawn(), sequence)
    assert leakage.release_log_odds.max() <= 0.4 * (1 + 1e-9)
    assert leakage.release_log_odds[0] == leakage.total_log_odds[0] <= 0.4 * (1 + 1e-9)
    for t, replay in enumerate(replay_sequence(engine.spawn(), sequence)):
        possible = np.flatnonzero(replay.step.constraint)
        assert leakage.release_log_odds[t] == pytest.approx(
            np.ptp(replay.log_likelihood[possible]), rel=1e-12, abs=1e-12
        )


def test_odds_follow_bayes_rule():
    engine, sequence, _ = make_releases(PolicyGraph.complete(6))
    gains: list[float] = []
    for replay in replay_sequence(engine.spawn(), sequence):
        before, after = replay.step.prior.probabilities, replay.posterior.probabilities
        moved = np.log(after[2] / after[4]) - np.log(before[2] / before[4])
        gains.append(after @ np.log2(after / before))
        assert moved == pytest.approx(replay.log_likelihood[2] - replay.log_likelihood[4], abs=1e-9)
    np.testing.assert_allclose(compute_realized_leakage(engine.spawn(), sequence).bits, gains, rtol=1e-9, atol=1e-12)


def test_leakage_is_not_underestimated_if_edges_exceed_limit(monkeypatch):
    engine, sequence, _ = make_releases(build_graph())
    exact = compute_realized_leakage(engine.spawn(), sequence)
    monkeypatch.setattr(module, "_MAX_EDGES", 1)
    wide = compute_realized_leakage(engine.spawn(), sequence)
    assert exact.is_by_edge
    assert not wide.is_by_edge
    assert (wide.total_log_odds >= exact.total_log_odds - 1e-12).all()


LINES = np.array([[0.0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])
HOME = np.array([[0.0, 0], [1, 0], [0, 1], [5, 5], [6, 7], [9, 2]])


def make_line_example():
    """Return two lines of states with noise along the line. A release excludes one line."""
    policy = PolicyGraph.from_edges(6, [[0, 1], [1, 2], [3, 4], [4, 5]])

    def compute_level(z, s):
        return -abs(z[1] - LINES[s, 1]) if abs(z[0] - LINES[s, 0]) < 1e-9 else -np.inf

    return policy, LINES, MOVES, {}, compute_level


def make_home_example():
    """Return a zone of three states, one of two with noise along a line, and an open state."""
    policy = PolicyGraph.from_edges(6, [[0, 1], [1, 2], [0, 2], [3, 4]]).with_open([5])
    moves = np.array([[3, 2, 2, 0, 0, 3]] * 3 + [[0, 0, 0, 4, 3, 3]] * 2 + [[2, 1, 1, 2, 2, 2]]) / 10

    def compute_level(z, s):
        x, y = z - HOME[s]
        if s == 5:  # released exactly
            return 0.0 if (x, y) == (0.0, 0.0) else -np.inf
        if s > 2:
            return -abs(x) if abs(y - 2 * x) < 1e-9 else -np.inf
        return -max(abs(x), abs(y), abs(x + y))  # the gauge of the hexagon of the three states' differences

    return policy, HOME, moves, {"noise_scope": "component"}, compute_level


def enumerate_leakage(policy, moves, sequence, level, windows):
    """Compute all figures by edge and window from log densities and sets of possible states."""
    possible = np.ones(6, dtype=bool)
    rows = []
    constraints = []
    for t, z in enumerate(sequence.released):
        for _ in range(int(sequence.steps[t]) if t else 0):
            possible = (moves[possible] > 0).any(axis=0)
        rows.append([0.4 * level(z, s) for s in range(6)])
        constraints.append(possible)
        possible = possible & np.isfinite(rows[-1])
    figures = []
    for window in windows:
        largest = 0.0
        apart = 0
        vacuous = 0
        by_edge = {}
        for i, j in policy.edge_array().tolist():
            total = 0.0
            first = 0
            second = 0
            both = 0
            compared = 0
            for u in window:
                if constraints[u][i] and constraints[u][j]:
                    out_i, out_j = np.isinf(rows[u][i]), np.isinf(rows[u][j])
                    first = first + out_i
                    second = second + out_j
                    both = both + (out_i and out_j)
                    if not out_i and not out_j:
                        total, compared = total + rows[u][i] - rows[u][j], compared + 1
            largest = max(largest, abs(total))
            apart, vacuous = apart + ((first > 0) != (second > 0)), vacuous + (first > 0 and second > 0)
            by_edge[i, j] = abs(total), (compared, first, second, both)
        figures.append((largest, apart, vacuous, by_edge))
    return figures


def sum_treating_exclusion_as_permanent(policy, rows, possible, within):
    """Sum by state over always possible states (wrong variant).

    The sum before the window is subtracted.
    """
    total = np.concatenate([np.zeros((1, 6)), np.cumsum(rows, axis=0)])
    with np.errstate(invalid="ignore"):
        inside = np.where(np.isneginf(total[within[0]]), 0.0, total[within[-1] + 1] - total[within[0]])
        throughout = possible[within].all(axis=0)
        pairs = [(i, j) for i, j in policy.edge_array().tolist() if throughout[i] and throughout[j]]
        return max((0.0 if inside[i] == inside[j] else abs(inside[i] - inside[j]) for i, j in pairs), default=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("example", [make_line_example, make_home_example])
def test_leakage_with_excluded_states_matches_brute_force(example, monkeypatch):
    policy, points, moves, settings, level = example()
    rng = np.random.default_rng(11)
    engine = Releaser(
        MarkovModel(moves, START, step_seconds=7200.0), points, policy, 0.4, mechanism="k-norm", rng=5, **settings
    )
    state = 0
    records = []
    steps = rng.integers(1, 4, size=LENGTH)
    for s in steps.tolist():
        for _ in range(s if records else 0):
            state = int(rng.choice(6, p=moves[state]))
        records.append(engine.release(state, steps=s))
    released = np.array([record.released for record in records])
    sequence = ReleasedSequence("ann", released, np.full(LENGTH, 0.4), steps)
    leakage = compute_realized_leakage(engine.spawn(), sequence)
    at = np.concatenate([[0], np.cumsum(steps[1:])])
    days = [np.flatnonzero((at > at[t] - 12) & (np.arange(LENGTH) <= t)).tolist() for t in range(LENGTH)]
    each, ever = [[t] for t in range(LENGTH)], [list(range(t + 1)) for t in range(LENGTH)]
    for column, (figure, windows) in enumerate(
        ((leakage.release_log_odds, each), (leakage.total_log_odds, ever), (leakage.log_odds_24h, days))
    ):
        figures = enumerate_leakage(policy, moves, sequence, level, windows)
        np.testing.assert_allclose(figure, [values[0] for values in figures], rtol=1e-9, atol=1e-9)
        assert leakage.num_distinguished[:, column].tolist() == [values[1] for values in figures]
        assert leakage.num_vacuous[:, column].tolist() == [values[2] for values in figures]
        if column == 1:
            i, j, t = leakage.worst_pair
            worst = figures[t][3][min(i, j), max(i, j)]
            assert worst[0] == pytest.approx(leakage.total_log_odds.max())
            assert worst[1] == leakage.worst_pair_counts
    assert leakage.num_vacuous[:, 0].max() > 0, "states are ruled out in this example"
    assert leakage.release_log_odds.max() <= 0.4 * (1 + 1e-9)
    assert leakage.to_dict()["num_vacuous"] == leakage.num_vacuous[-1, 1]

    replays = list(replay_sequence(engine.spawn(), sequence))
    rows = np.array([replay.log_likelihood for replay in replays])
    possible = np.array([replay.step.constraint for replay in replays])
    permanent = [sum_treating_exclusion_as_permanent(policy, rows, possible, within) for within in days]
    assert not np.allclose(permanent, leakage.log_odds_24h), "permanent exclusion gives other values"

    monkeypatch.setattr(module, "_MAX_EDGES", 1)
    wide = compute_realized_leakage(engine.spawn(), sequence)
    for name in ("release_log_odds", "total_log_odds", "log_odds_24h"):
        assert (getattr(wide, name) >= getattr(leakage, name) - 1e-9).all()
    assert not wide.is_by_edge
    assert wide.to_dict()["worst_pair_counts"] is None


def test_edge_with_one_excluded_end_counts_as_distinguished():
    row, possible = np.array([-1.0, -np.inf, -3.0, -np.inf, -np.inf, -0.5]), np.array([1, 1, 1, 1, 1, 0], dtype=bool)
    pairs = module._build_pairs(PolicyGraph.from_edges(6, [[0, 1], [0, 2], [3, 4], [2, 5], [4, 5]]))
    window = module._Comparison(np.zeros(5), np.zeros((4, 5), dtype=np.int32))
    window.add(pairs.compare(row, possible))
    assert pairs.find_widest(window)[:3] == (2.0, 0, 2)
    assert pairs.count_ruled_out(window) == (1, 1), (
        "0 and 1 are distinguished; 3 and 4 are both excluded; 5 was not possible"
    )
    window.add(pairs.compare(row[[1, 0, 2, 3, 4, 5]], possible))
    assert pairs.count_ruled_out(window) == (1, 2), "0 and 1 were both ruled out by now; of 0 and 2 only the first was"
    assert window.counts[:, 0].tolist() == [0, 1, 1, 0], (
        "no release compares 0 and 1; each of the two excluded one of them"
    )


def test_medians_of_releases_omit_withheld_timesteps():
    engine, sequence, _ = make_releases(build_graph())
    is_released = np.arange(LENGTH) % 3 == 0
    thinned = replace(sequence, epsilons=np.where(is_released, 0.4, 0.0))
    leakage = compute_realized_leakage(engine.spawn(), thinned)
    assert (leakage.release_log_odds[~is_released] == 0).all()
    exported = leakage.to_dict()
    assert exported["median_release_log_odds"] == np.median(leakage.release_log_odds[is_released]) > 0
    assert exported["median_bits"] == np.median(leakage.bits[is_released]) > np.median(leakage.bits)
    nothing = compute_realized_leakage(engine.spawn(), replace(sequence, epsilons=np.zeros(LENGTH))).to_dict()
    assert (nothing["median_release_log_odds"], nothing["median_bits"]) == (None, None)


def test_last_day_is_unknown_without_step_duration():
    engine, sequence, _ = make_releases(build_graph(), step_seconds=None)
    leakage = compute_realized_leakage(engine.spawn(), sequence)
    assert np.isnan(leakage.log_odds_24h).all()
    facts = leakage.to_dict()
    assert (facts["max_log_odds_24h"], facts["is_24h_known"]) == (None, False)
    assert facts["worst_timestep"] == leakage.worst_pair[2] + 1
