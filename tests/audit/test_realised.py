"""What releases really told: against sums over every edge and every window, and never beyond epsilon."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.audit import ReleasedSequence, replay_sequence
from dphmm.audit import realised as module
from dphmm.audit.realised import realise
from tests.running_example import F, graph

START = np.full(6, 1 / 6)
MOVES = np.full((6, 6), 0.1) + 0.4 * np.eye(6)
LENGTH = 40


def made(policy: PolicyGraph, step_seconds: float | None = 7200.0, f=F, **settings):
    """An engine and forty releases some steps apart."""
    engine = Releaser(MarkovModel(MOVES, START, step_seconds=step_seconds), f, policy, 0.4, rng=7, **settings)
    steps = np.random.default_rng(2).integers(1, 5, size=LENGTH)
    records = [engine.release(int(t % 6), steps=int(s)) for t, s in enumerate(steps)]
    released = np.array([record.released for record in records])
    return engine, ReleasedSequence("ann", released, np.full(LENGTH, 0.4), steps), records


@pytest.mark.parametrize("policy", [graph(), PolicyGraph.complete(6)], ids=["categories", "complete"])
def test_every_figure_is_that_of_all_edges_and_windows_one_by_one(policy):
    engine, sequence, records = made(policy)
    told = realise(engine.another(), sequence)
    rows = np.array([one.log_likelihood for one in replay_sequence(engine.another(), sequence)])
    at = np.concatenate([[0], np.cumsum(sequence.steps[1:])])
    for t in range(LENGTH):
        day = at > at[t] - 12  # of two hours a step
        windows = (told.moved, [t]), (told.so_far, range(t + 1)), (told.last_day, np.flatnonzero(day[: t + 1]))
        for figure, chosen in windows:
            worst = max(abs(sum(rows[u, i] - rows[u, j] for u in chosen)) for i, j in policy.edge_array().tolist())
            assert figure[t] == pytest.approx(worst, rel=1e-9, abs=1e-12)
    assert told.certainty.tolist() == pytest.approx([record.adversary_certainty for record in records])
    assert told.error.tolist() == pytest.approx([record.adversary_error for record in records])
    i, j, t = told.worst
    assert policy.connects([i], [j]).all()
    assert abs((rows[: t + 1, i] - rows[: t + 1, j]).sum()) == pytest.approx(told.so_far.max())


def test_no_release_moves_the_odds_of_joined_places_by_more_than_epsilon_and_others_may():
    engine, sequence, _ = made(graph())
    told = realise(engine.another(), sequence)
    assert told.moved.max() <= 0.4 * (1 + 1e-9)
    assert (told.so_far <= 0.4 * np.arange(1, LENGTH + 1) + 1e-9).all()
    rows = np.array([one.log_likelihood for one in replay_sequence(engine.another(), sequence)])
    assert np.abs(rows[:, :1] - rows).max() > 0.4, "over all pairs, which the policy does not join, it would be more"


def test_a_release_compares_no_place_that_was_not_possible_before_it():
    # The walk begins in two places and spreads: the stand-ins of others are further apart than the policy says.
    moves = np.eye(6) * 0.5 + 0.5 * np.roll(np.eye(6), 1, axis=1)
    engine = Releaser(MarkovModel(moves, [0.5, 0.5, 0, 0, 0, 0]), F, PolicyGraph.complete(6), 0.4, rng=3)
    records = [engine.release(0) for _ in range(8)]
    released = np.array([record.released for record in records])
    sequence = ReleasedSequence("ann", released, np.full(8, 0.4), np.ones(8, dtype=int))
    told = realise(engine.another(), sequence)
    assert told.moved.max() <= 0.4 * (1 + 1e-9)
    assert told.moved[0] == told.so_far[0] <= 0.4 * (1 + 1e-9)
    for t, replay in enumerate(replay_sequence(engine.another(), sequence)):
        some = np.flatnonzero(replay.step.plan.constraint)
        assert told.moved[t] == pytest.approx(np.ptp(replay.log_likelihood[some]), rel=1e-12, abs=1e-12)


def test_odds_move_by_bayes_rule():
    engine, sequence, _ = made(PolicyGraph.complete(6))
    told: list[float] = []
    for one in replay_sequence(engine.another(), sequence):
        before, after = one.step.prior.probabilities, one.posterior.probabilities
        moved = np.log(after[2] / after[4]) - np.log(before[2] / before[4])
        told.append(after @ np.log2(after / before))
        assert moved == pytest.approx(one.log_likelihood[2] - one.log_likelihood[4], abs=1e-9)
    np.testing.assert_allclose(realise(engine.another(), sequence).bits, told, rtol=1e-9, atol=1e-12)


def test_with_many_edges_places_joined_by_a_path_are_looked_at_and_nothing_is_told_too_small(monkeypatch):
    engine, sequence, _ = made(graph())
    exact = realise(engine.another(), sequence)
    monkeypatch.setattr(module, "_MOST_EDGES", 1)
    wide = realise(engine.another(), sequence)
    assert exact.is_by_edge
    assert not wide.is_by_edge
    assert (wide.so_far >= exact.so_far - 1e-12).all()


LINES = np.array([[0.0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])
HOME = np.array([[0.0, 0], [1, 0], [0, 1], [5, 5], [6, 7], [9, 2]])


def on_lines():
    """Two lines of places whose noise never leaves the line: a release rules the other line out."""
    policy = PolicyGraph.from_edges(6, [[0, 1], [1, 2], [3, 4], [4, 5]])

    def level(z, s):
        return -abs(z[1] - LINES[s, 1]) if abs(z[0] - LINES[s, 0]) < 1e-9 else -np.inf

    return policy, LINES, MOVES, {}, level


def at_home():
    """A zone of three places, one of two, whose noise stays on a line, and an open place between them."""
    policy = PolicyGraph.from_edges(6, [[0, 1], [1, 2], [0, 2], [3, 4]]).with_open([5])
    moves = np.array([[3, 2, 2, 0, 0, 3]] * 3 + [[0, 0, 0, 4, 3, 3]] * 2 + [[2, 1, 1, 2, 2, 2]]) / 10

    def level(z, s):
        x, y = z - HOME[s]
        if s == 5:  # released as it is
            return 0.0 if (x, y) == (0.0, 0.0) else -np.inf
        if s > 2:
            return -abs(x) if abs(y - 2 * x) < 1e-9 else -np.inf
        return -max(abs(x), abs(y), abs(x + y))  # the gauge of the hexagon of the three places' differences

    return policy, HOME, moves, {"calibration": "component"}, level


def brute(policy, moves, sequence, level, windows):
    """Every figure by edge and window, from log densities written out by hand and sets of possible places."""
    possible, rows, held = np.ones(6, dtype=bool), [], []
    for t, z in enumerate(sequence.released):
        for _ in range(int(sequence.steps[t]) if t else 0):
            possible = (moves[possible] > 0).any(axis=0)
        rows.append([0.4 * level(z, s) for s in range(6)])
        held.append(possible)
        possible = possible & np.isfinite(rows[-1])
    found = []
    for window in windows:
        largest, apart, vacuous, by_edge = 0.0, 0, 0, {}
        for i, j in policy.edge_array().tolist():
            told, first, second, both, compared = 0.0, 0, 0, 0, 0
            for u in window:
                if held[u][i] and held[u][j]:
                    out_i, out_j = np.isinf(rows[u][i]), np.isinf(rows[u][j])
                    first, second, both = first + out_i, second + out_j, both + (out_i and out_j)
                    if not out_i and not out_j:
                        told, compared = told + rows[u][i] - rows[u][j], compared + 1
            largest = max(largest, abs(told))
            apart, vacuous = apart + ((first > 0) != (second > 0)), vacuous + (first > 0 and second > 0)
            by_edge[i, j] = abs(told), (compared, first, second, both)
        found.append((largest, apart, vacuous, by_edge))
    return found


def sums_that_take_places_for_ruled_out_for_good(policy, rows, possible, within):
    """A broken twin: sums by place, of those that were possible throughout, less what was before the window."""
    total = np.concatenate([np.zeros((1, 6)), np.cumsum(rows, axis=0)])
    with np.errstate(invalid="ignore"):
        inside = np.where(np.isneginf(total[within[0]]), 0.0, total[within[-1] + 1] - total[within[0]])
        throughout = possible[within].all(axis=0)
        pairs = [(i, j) for i, j in policy.edge_array().tolist() if throughout[i] and throughout[j]]
        return max((0.0 if inside[i] == inside[j] else abs(inside[i] - inside[j]) for i, j in pairs), default=0.0)


@pytest.mark.parametrize("example", [on_lines, at_home])
def test_what_is_told_where_places_are_ruled_out_is_that_of_every_edge_and_window_by_hand(example, monkeypatch):
    policy, points, moves, settings, level = example()
    rng = np.random.default_rng(11)
    engine = Releaser(
        MarkovModel(moves, START, step_seconds=7200.0), points, policy, 0.4, mechanism="k-norm", rng=5, **settings
    )
    state, records, steps = 0, [], rng.integers(1, 4, size=LENGTH)
    for s in steps.tolist():
        for _ in range(s if records else 0):
            state = int(rng.choice(6, p=moves[state]))
        records.append(engine.release(state, steps=s))
    released = np.array([record.released for record in records])
    sequence = ReleasedSequence("ann", released, np.full(LENGTH, 0.4), steps)
    told = realise(engine.another(), sequence)
    at = np.concatenate([[0], np.cumsum(steps[1:])])
    days = [np.flatnonzero((at > at[t] - 12) & (np.arange(LENGTH) <= t)).tolist() for t in range(LENGTH)]
    each, ever = [[t] for t in range(LENGTH)], [list(range(t + 1)) for t in range(LENGTH)]
    for column, (figure, windows) in enumerate(((told.moved, each), (told.so_far, ever), (told.last_day, days))):
        found = brute(policy, moves, sequence, level, windows)
        np.testing.assert_allclose(figure, [one[0] for one in found], rtol=1e-9, atol=1e-9)
        assert told.apart[:, column].tolist() == [one[1] for one in found]
        assert told.vacuous[:, column].tolist() == [one[2] for one in found]
        if column == 1:
            i, j, t = told.worst
            worst = found[t][3][min(i, j), max(i, j)]
            assert worst[0] == pytest.approx(told.so_far.max())
            assert worst[1] == told.worst_releases
    assert told.vacuous[:, 0].max() > 0, "places are ruled out in this example"
    assert told.moved.max() <= 0.4 * (1 + 1e-9)
    assert told.facts()["vacuous"] == told.vacuous[-1, 1]

    replays = list(replay_sequence(engine.another(), sequence))
    rows = np.array([one.log_likelihood for one in replays])
    possible = np.array([one.step.plan.constraint for one in replays])
    twin = [sums_that_take_places_for_ruled_out_for_good(policy, rows, possible, within) for within in days]
    assert not np.allclose(twin, told.last_day), "a twin that takes them for ruled out for good is found out"

    monkeypatch.setattr(module, "_MOST_EDGES", 1)
    wide = realise(engine.another(), sequence)
    for name in ("moved", "so_far", "last_day"):
        assert (getattr(wide, name) >= getattr(told, name) - 1e-9).all()
    assert not wide.is_by_edge
    assert wide.facts()["worst_releases"] is None


def test_one_end_alone_that_is_ruled_out_is_told_apart_and_not_a_number():
    row, possible = np.array([-1.0, -np.inf, -3.0, -np.inf, -np.inf, -0.5]), np.array([1, 1, 1, 1, 1, 0], dtype=bool)
    pairs = module._pairs(PolicyGraph.from_edges(6, [[0, 1], [0, 2], [3, 4], [2, 5], [4, 5]]))
    window = module._Told(np.zeros(5), np.zeros((4, 5), dtype=np.int32))
    window.add(pairs.compared(row, possible))
    assert pairs.widest(window)[:3] == (2.0, 0, 2)
    assert pairs.ruled_out(window) == (1, 1), "0 and 1 are told apart; of 3 and 4 nothing is said; 5 was not possible"
    window.add(pairs.compared(row[[1, 0, 2, 3, 4, 5]], possible))
    assert pairs.ruled_out(window) == (1, 2), "0 and 1 were both ruled out by now; of 0 and 2 only the first was"
    assert window.counts[:, 0].tolist() == [0, 1, 1, 0], "none compares 0 and 1; each of the two ruled one of them out"


def test_a_day_has_no_length_without_a_step():
    engine, sequence, _ = made(graph(), step_seconds=None)
    told = realise(engine.another(), sequence)
    assert np.isnan(told.last_day).all()
    facts = told.facts()
    assert (facts["last_day_most"], facts["last_day_is_known"]) == (None, False)
    assert facts["worst_release"] == told.worst[2] + 1
