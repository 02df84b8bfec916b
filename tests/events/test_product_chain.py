"""Log odds of an event after releases, compared with sums over all paths and all outputs."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import events
from dphmm.errors import EventError, InvalidInputError, StochasticError
from dphmm.events import AtLeast, EventOdds, Pattern, Presence, Times
from dphmm.events.product_chain import Chain, _move_rows
from tests.events import oracles
from tests.events.instances import draw_event, draw_initial, draw_matrix, draw_noise

CHAIN = np.array([[0.6, 0.4, 0], [0.3, 0.4, 0.3], [0, 0.5, 0.5]])
START = np.array([0.5, 0.3, 0.2])
NOISE = np.array([[0.6, 0.3, 0.1], [0.25, 0.5, 0.25], [0.1, 0.3, 0.6]])
PRESENCE = Presence([2], 1, 2)
PATTERN = Pattern([[1], [2]], 1)


def build_rows(outputs: tuple[int, ...], noise: np.ndarray = NOISE) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(noise)[:, list(outputs)].T


def test_stated_values_are_reproduced():
    presence = events.log_odds(CHAIN, START, build_rows((0, 1, 2, 2)), PRESENCE)
    np.testing.assert_allclose(presence, [-0.590511, -0.468839, 0.690634, 1.145303], rtol=0, atol=5e-7)
    pattern = events.log_odds(CHAIN, START, build_rows((0, 1, 2, 2)), PATTERN)
    np.testing.assert_allclose(pattern, [-0.041325, 0.274610, 1.415043, 1.809419], rtol=0, atol=5e-7)
    worst = max(
        np.abs(events.log_odds(CHAIN, START, build_rows(outputs), PRESENCE)).max()
        for outputs in product(range(3), repeat=4)
    )
    assert worst == pytest.approx(3.585114, abs=5e-7)
    assert worst > 2 * np.log(6) - 0.01  # the guarantee of one timestep, log 6, does not bound it


def test_stated_values_equal_rational_arithmetic():
    matrix = [[Fraction(str(x)) for x in row] for row in CHAIN.tolist()]
    noise = [[Fraction(str(x)) for x in row] for row in NOISE.tolist()]
    happens = {True: Fraction(0), False: Fraction(0)}
    before = dict(happens)
    for path in product(range(3), repeat=4):
        weight = Fraction(str(START[path[0]]))
        for a, b in pairwise(path):
            weight *= matrix[a][b]
        before[2 in path[1:3]] += weight
        for state, output in zip(path, (0, 1, 2, 2), strict=True):
            weight *= noise[state][output]
        happens[2 in path[1:3]] += weight
    exact = np.log(float(happens[True] / happens[False])) - np.log(float(before[True] / before[False]))
    log_odds = events.log_odds(CHAIN, START, build_rows((0, 1, 2, 2)), PRESENCE)[-1]
    assert log_odds == pytest.approx(exact, rel=1e-13)


@pytest.mark.slow
def test_log_odds_equal_sum_over_all_paths():
    """Random automata over 2 to 4 states and up to 5 timesteps: all outputs, to 1e-12."""
    compared = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        size, length = int(rng.integers(2, 5)), int(rng.integers(2, 6))
        event = draw_event(rng, size, length)
        matrices = [draw_matrix(rng, size) for _ in range(length - 1)]
        initial, noise = draw_initial(rng, size), draw_noise(rng, size, 2)
        all_paths, weights = oracles.enumerate_paths(matrices, initial)
        holds = np.array([oracles.happens(event, path) for path in all_paths.tolist()])
        if not 0 < weights[holds].sum() < weights.sum():
            with pytest.raises(EventError, match=r"probability [01]\b"):
                EventOdds(matrices, initial, event)
            continue
        start_odds = EventOdds(matrices, initial, event)
        for number, outputs in enumerate(product(range(2), repeat=length)):
            rows = build_rows(outputs, noise)
            joint = oracles.compute_joint(all_paths, weights, rows, range(length))
            if joint[-1].sum() == 0:
                with pytest.raises(StochasticError, match="the release is impossible under the model"):
                    events.log_odds(matrices, initial, rows, event)
                continue
            odds = start_odds.copy()
            log_odds = (
                events.log_odds(matrices, initial, rows, event) if number < 4 else [odds.update(row) for row in rows]
            )
            np.testing.assert_allclose(log_odds, oracles.compute_odds(holds, weights, joint), rtol=1e-12, atol=1e-12)
            compared += 1
    assert compared > 500


@pytest.mark.parametrize("seed", range(20))
def test_gaps_repeats_and_releases_after_event_are_included(seed):
    rng = np.random.default_rng(seed)
    matrix = draw_matrix(rng, 3)
    initial = draw_initial(rng, 3)
    noise = draw_noise(rng, 3, 3)
    event = Presence([0], 1, 3) if seed % 2 else Times([0], 1, 3, 2)
    times = np.sort(rng.integers(0, 6, 5))
    rows = build_rows(tuple(rng.integers(0, 3, 5)), noise)
    rows[int(rng.integers(5))] = np.nan
    expected = oracles.compute_log_odds([matrix] * 5, initial, rows, event, times)
    for chain in (matrix, csr_array(matrix), [csr_array(matrix)] * 5, np.array([matrix] * 5)):
        log_odds = events.log_odds(chain, initial, rows, event, times)
        np.testing.assert_allclose(log_odds, expected, rtol=1e-12, atol=1e-12)


def test_updates_one_by_one_equal_log_odds_of_all_rows():
    rng = np.random.default_rng(5)
    rows = build_rows(tuple(rng.integers(0, 3, 6)))
    odds = EventOdds(CHAIN, START, PRESENCE)
    log_odds = [odds.update(row) for row in rows]
    np.testing.assert_allclose(log_odds, events.log_odds(CHAIN, START, rows, PRESENCE), rtol=1e-14)
    assert odds.last_step == 5
    assert odds.log_odds == pytest.approx(odds.prior + log_odds[-1])
    other = odds.copy()
    other.update(rows[0], steps=3)
    assert (odds.last_step, other.last_step) == (5, 8)


def test_split_is_belief_with_and_without_event():
    rows = build_rows((0, 1, 2))
    odds = EventOdds(CHAIN, START, PATTERN)
    odds.update(rows[0])
    split = odds.split(steps=1)
    all_paths, weights = oracles.enumerate_paths([CHAIN] * 3, START)
    joint = oracles.compute_joint(all_paths, weights, rows[:1], [0])[-1]
    holds = np.array([oracles.happens(PATTERN, path) for path in all_paths.tolist()])
    for logs, which in ((split.log_with, holds), (split.log_without, ~holds)):
        mass = np.bincount(all_paths[which, 1], joint[which], minlength=3)
        np.testing.assert_allclose(np.exp(logs), mass * np.exp(logs).sum() / mass.sum(), rtol=1e-12)
    assert split.log_odds == pytest.approx(odds.log_odds, abs=1e-12)  # prediction changes nothing


@pytest.mark.parametrize("seed", range(8))
def test_happened_by_equals_sum_over_all_paths(seed):
    rng = np.random.default_rng(seed)
    matrix = draw_matrix(rng, 3)
    initial = draw_initial(rng, 3) * 0.5 + 1 / 6
    noise = draw_noise(rng, 3, 3)
    rows, event = build_rows(tuple(rng.integers(0, 3, 5)), noise), Presence([2], 1, 3)
    all_paths, weights = oracles.enumerate_paths([matrix] * 4, initial)
    joint = oracles.compute_joint(all_paths, weights, rows, range(5))[-1]
    probabilities = events.compute_smoothed_event_probabilities(matrix, initial, rows, event)
    for t in range(5):
        by_then = np.array([2 in path[1 : min(t, 3) + 1] for path in all_paths.tolist()])
        assert probabilities[t] == pytest.approx(joint[by_then].sum() / joint.sum(), rel=1e-12, abs=1e-15)
    posterior = events.log_odds(matrix, initial, rows, event)[-1] + EventOdds(matrix, initial, event).prior
    assert probabilities[-1] == pytest.approx(1 / (1 + np.exp(-posterior)), rel=1e-12)


# ---- nothing underflows ----------------------------------------------------------------------------------------------


def compute_log_odds_in_logs(matrix: np.ndarray, initial: np.ndarray, rows: np.ndarray, event: Presence) -> np.ndarray:
    """The same recursion with sums of logarithms, for presence in a window.

    It is slow, and works for any range.
    """
    with np.errstate(divide="ignore"):
        log_matrix, size = np.log(matrix), len(initial)
        within = np.isin(np.arange(size), event.states)

        def compute_odds_after(last: int) -> float:
            masses = np.stack([np.log(initial), np.full(size, -np.inf)])
            for t in range(max(event.last, last) + 1):
                if t:
                    masses = np.logaddexp.reduce(masses[:, :, np.newaxis] + log_matrix, axis=1)
                if event.first <= t <= event.last:
                    masses[1, within] = np.logaddexp(masses[1, within], masses[0, within])
                    masses[0, within] = -np.inf
                if t <= last:
                    masses = masses + rows[t]
            totals = np.logaddexp.reduce(masses, axis=1)
            return float(totals[1] - totals[0])

        return np.array([compute_odds_after(t) for t in range(len(rows))]) - compute_odds_after(-1)


@pytest.mark.parametrize("spread", [50, 700, 10_000])
def test_spreads_of_ten_thousand_nats_stay_exact(spread):
    rng = np.random.default_rng(spread)
    size, length = 6, 7
    for _ in range(6):
        matrix = draw_matrix(rng, size) * np.exp(-rng.integers(0, 300, (size, size))) + 0.2 * np.eye(size)
        matrix = matrix / matrix.sum(axis=1, keepdims=True)
        initial = np.exp(-rng.integers(0, 300, size).astype(float))
        rows = -spread * rng.random((length, size))
        event = Presence(rng.choice(size, 2, replace=False), 2, 4)
        log_odds = events.log_odds(matrix, initial / initial.sum(), rows, event)
        expected = compute_log_odds_in_logs(matrix, initial / initial.sum(), rows, event)
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(log_odds, expected, rtol=1e-12, atol=1e-10)


def test_plain_doubles_underflow_at_ten_thousand_nats():
    """A broken variant of the test above: without layers, the likelihoods underflow to zero."""
    rows = np.array([[0.0, -10_000.0], [-10_000.0, 0.0], [0.0, -9_990.0]])
    log_odds = events.log_odds([[0.5, 0.5], [0.5, 0.5]], [0.5, 0.5], rows, Presence([1], 0, 0))
    np.testing.assert_allclose(log_odds, [-10_000.0] * 3, rtol=1e-13)
    assert np.exp(rows).prod(axis=0).max() == 0


def test_nearly_certain_event_keeps_its_odds():
    matrix, tiny = np.array([[1 - 1e-18, 1e-18], [0.5, 0.5]]), 1e-18
    matrix[0, 0] = 1.0
    odds = EventOdds(matrix, [1 - tiny, tiny], Presence([1], 1, 2))
    assert odds.prior == pytest.approx(np.log(2.5e-18), abs=1e-9)
    assert EventOdds(matrix, [1 - tiny, tiny], ~Presence([1], 1, 2)).prior == pytest.approx(-odds.prior)


@pytest.mark.parametrize("faint", [-1.0, -900.0, -np.inf])
def test_moved_rows_keep_faint_masses(faint):
    matrix = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    logs = np.array([[0.0, -np.inf, faint], [faint, 0.0, -np.inf]])
    with np.errstate(divide="ignore"):
        expected = np.logaddexp.reduce(logs[:, :, np.newaxis] + np.log(matrix), axis=1)
    np.testing.assert_allclose(
        _move_rows(Chain.from_matrices(matrix, 3).operator(0, 1), logs, back=False), expected, rtol=1e-13
    )


def test_long_windows_in_blocks_equal_whole_windows(monkeypatch):
    rng = np.random.default_rng(0)
    rows = np.log(rng.random((30, 3)))
    event = AtLeast(1, [Presence([2], 3, 8), Times([0], 5, 27, 9)])
    seldom = [0, 3, 7, 8, 14, 22, 26]  # some of them lie inside blocks
    whole = events.log_odds(CHAIN, START, rows, event)
    part = events.log_odds(CHAIN, START, rows[: len(seldom)], event, release_steps=seldom)
    monkeypatch.setattr("dphmm.events.product_chain._CACHE_VALUES", 1)
    np.testing.assert_allclose(events.log_odds(CHAIN, START, rows, event), whole, rtol=1e-13)
    log_odds = events.log_odds(CHAIN, START, rows[: len(seldom)], event, release_steps=seldom)
    np.testing.assert_allclose(log_odds, part, rtol=1e-13)


def test_long_gap_after_event_stops_at_stationary_distribution():
    log_odds = events.log_odds(CHAIN, START, build_rows((0, 1, 2)), PRESENCE, release_steps=[0, 1, 10**9])
    near = events.log_odds(CHAIN, START, build_rows((0, 1, 2)), PRESENCE, release_steps=[0, 1, 500])
    np.testing.assert_allclose(log_odds, near, rtol=1e-12)


# ---- broken variants -------------------------------------------------------------------------------------------------


def run_recursion(late: int = 0, plain: bool = False) -> np.ndarray:
    """The recursion for presence of state 2 at timesteps 1 to 2, correct or broken.

    ``late``: entering mass counts some timesteps late. ``plain``: the later part of the event is weighted by the
    posterior of the state alone, without the condition "not yet".
    """
    rows = np.exp(build_rows((0, 1, 2, 2)))
    within = np.array([0.0, 0.0, 1.0])

    def to_happen(t: int) -> np.ndarray:
        value = np.zeros(3)
        for time in range(2, t, -1):
            value = CHAIN @ (np.where(within > 0, 1.0, value) if 1 <= time <= 2 else value)
        return value

    happened = np.zeros(3)
    not_yet = START.copy()
    log_odds = []
    everything = START.copy()
    prior = float(not_yet @ to_happen(0))
    for t, row in enumerate(rows):
        if t:
            happened = happened @ CHAIN
            not_yet = not_yet @ CHAIN
            everything = everything @ CHAIN
        if 1 + late <= t <= 2 + late:
            happened, not_yet = happened + not_yet * within, not_yet * (1 - within)
        happened = happened * row
        not_yet = not_yet * row
        everything = everything * row
        pending = everything if plain else not_yet
        yes = happened.sum() + pending @ to_happen(t)
        no = pending @ (1 - to_happen(t))
        log_odds.append(np.log(yes / no) - np.log(prior / (1 - prior)))
    return np.array(log_odds)


def test_oracle_detects_late_mass_and_plain_posterior():
    expected = oracles.compute_log_odds([CHAIN] * 3, START, build_rows((0, 1, 2, 2)), PRESENCE)
    np.testing.assert_allclose(run_recursion(), expected, rtol=1e-12)
    assert np.abs(run_recursion(late=1) - expected).max() > 0.1
    assert np.abs(run_recursion(plain=True) - expected).max() > 0.1


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (Presence([0, 1, 2], 1, 2), "neither certain nor impossible .*got probability 1"),
        (Presence([], 1, 2), "neither certain nor impossible .*got probability 0"),
        (Pattern([[0], [2]], 1), "neither certain nor impossible .*got probability 0"),
        (Presence([3], 1, 2), "states of an event must be from 0 to 2, got 3"),
    ],
)
def test_impossible_or_certain_event_raises(event, message):
    with pytest.raises(EventError, match=message) as caught:
        events.log_odds(CHAIN, START, build_rows((0,)), event)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "more", "error", "message"),
    [
        (np.zeros((2, 4)), {}, InvalidInputError, "shape"),
        (np.zeros(3), {}, InvalidInputError, "a row per release"),
        ([[0, 0, np.nan]], {}, InvalidInputError, "got plus infinity or some NaN in row 0"),
        ([[0, 0, 0], [0, np.inf, -np.inf]], {}, InvalidInputError, "row 1"),
        (np.zeros((2, 3)), {"release_steps": [1, 0]}, InvalidInputError, "decrease"),
        (np.zeros((2, 3)), {"release_steps": [0.5, 1]}, InvalidInputError, "release_steps must be .*integer"),
        ([[0, 0, 0], [-np.inf] * 3], {}, StochasticError, "release 1: the release is impossible under the model"),
    ],
)
def test_invalid_rows_raise(rows, more, error, message):
    with pytest.raises(error, match=message):
        events.log_odds(CHAIN, START, rows, PRESENCE, **more)


def test_too_few_matrices_raise():
    with pytest.raises(EventError, match="transition matrix for each of 2 steps, or one for all, got 1"):
        events.log_odds([CHAIN], START, np.zeros((1, 3)), PRESENCE)


def test_arguments_are_not_modified():
    rows = build_rows((0, 1))
    matrix = CHAIN.copy()
    start = START.copy()
    kept = rows.copy()
    events.log_odds(matrix, start, rows, PRESENCE)
    np.testing.assert_array_equal(rows, kept)
    np.testing.assert_array_equal(matrix, CHAIN)
    np.testing.assert_array_equal(start, START)
