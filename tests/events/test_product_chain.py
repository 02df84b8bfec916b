"""What releases tell of an event, against sums over all paths and all outputs."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import events
from dphmm.errors import EventError, InvalidInputError, StochasticError
from dphmm.events import AtLeast, EventOdds, Pattern, Presence, Times
from dphmm.events.product_chain import Chain, _moved
from tests.events import oracles
from tests.events.instances import random_event, random_initial, random_matrix, random_noise

CHAIN = np.array([[0.6, 0.4, 0], [0.3, 0.4, 0.3], [0, 0.5, 0.5]])
START = np.array([0.5, 0.3, 0.2])
NOISE = np.array([[0.6, 0.3, 0.1], [0.25, 0.5, 0.25], [0.1, 0.3, 0.6]])
PRESENCE, PATTERN = Presence([2], 1, 2), Pattern([[1], [2]], 1)


def seen(outputs: tuple[int, ...], noise: np.ndarray = NOISE) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(noise)[:, list(outputs)].T


def test_the_stated_values_come_out_to_their_digits():
    presence = events.log_odds(CHAIN, START, seen((0, 1, 2, 2)), PRESENCE)
    np.testing.assert_allclose(presence, [-0.590511, -0.468839, 0.690634, 1.145303], rtol=0, atol=5e-7)
    pattern = events.log_odds(CHAIN, START, seen((0, 1, 2, 2)), PATTERN)
    np.testing.assert_allclose(pattern, [-0.041325, 0.274610, 1.415043, 1.809419], rtol=0, atol=5e-7)
    worst = max(
        np.abs(events.log_odds(CHAIN, START, seen(outputs), PRESENCE)).max() for outputs in product(range(3), repeat=4)
    )
    assert worst == pytest.approx(3.585114, abs=5e-7)
    assert worst > 2 * np.log(6) - 0.01  # no promise of one step, log 6, bounds it


def test_the_stated_values_hold_in_rational_arithmetic():
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
    found = events.log_odds(CHAIN, START, seen((0, 1, 2, 2)), PRESENCE)[-1]
    assert found == pytest.approx(exact, rel=1e-13)


def test_every_output_of_small_chains_agrees_with_the_sum_over_all_paths():
    """Random automata over 2 to 4 states and up to 5 steps: all outputs, to 1e-12."""
    asked = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        size, length = int(rng.integers(2, 5)), int(rng.integers(2, 6))
        event = random_event(rng, size, length)
        matrices = [random_matrix(rng, size) for _ in range(length - 1)]
        initial, noise = random_initial(rng, size), random_noise(rng, size, 2)
        every, weights = oracles.paths(matrices, initial)
        holds = np.array([oracles.happens(event, path) for path in every.tolist()])
        if not 0 < weights[holds].sum() < weights.sum():
            with pytest.raises(EventError, match=r"probability [01] under the model"):
                EventOdds(matrices, initial, event)
            continue
        begun = EventOdds(matrices, initial, event)
        for number, outputs in enumerate(product(range(2), repeat=length)):
            rows = seen(outputs, noise)
            joint = oracles.joint(every, weights, rows, range(length))
            if joint[-1].sum() == 0:
                with pytest.raises(StochasticError, match="no possible path"):
                    events.log_odds(matrices, initial, rows, event)
                continue
            odds = begun.copy()
            found = (
                events.log_odds(matrices, initial, rows, event) if number < 4 else [odds.update(row) for row in rows]
            )
            np.testing.assert_allclose(found, oracles.odds(holds, weights, joint), rtol=1e-12, atol=1e-12)
            asked += 1
    assert asked > 500


@pytest.mark.parametrize("seed", range(20))
def test_gaps_repeats_and_releases_after_the_event_are_counted_in(seed):
    rng = np.random.default_rng(seed)
    matrix, initial, noise = random_matrix(rng, 3), random_initial(rng, 3), random_noise(rng, 3, 3)
    event = Presence([0], 1, 3) if seed % 2 else Times([0], 1, 3, 2)
    times = np.sort(rng.integers(0, 6, 5))
    rows = seen(tuple(rng.integers(0, 3, 5)), noise)
    rows[int(rng.integers(5))] = np.nan
    expected = oracles.log_odds([matrix] * 5, initial, rows, event, times)
    for given in (matrix, csr_array(matrix), [csr_array(matrix)] * 5, np.array([matrix] * 5)):
        found = events.log_odds(given, initial, rows, event, times)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_what_comes_in_one_by_one_is_what_comes_at_once():
    rng = np.random.default_rng(5)
    rows = seen(tuple(rng.integers(0, 3, 6)))
    odds = EventOdds(CHAIN, START, PRESENCE)
    told = [odds.update(row) for row in rows]
    np.testing.assert_allclose(told, events.log_odds(CHAIN, START, rows, PRESENCE), rtol=1e-14)
    assert odds.time == 5
    assert odds.log_odds == pytest.approx(odds.prior + told[-1])
    other = odds.copy()
    other.update(rows[0], steps=3)
    assert (odds.time, other.time) == (5, 8)


def test_a_split_is_the_belief_cut_by_the_event():
    rows = seen((0, 1, 2))
    odds = EventOdds(CHAIN, START, PATTERN)
    odds.update(rows[0])
    split = odds.split(steps=1)
    every, weights = oracles.paths([CHAIN] * 3, START)
    joint = oracles.joint(every, weights, rows[:1], [0])[-1]
    holds = np.array([oracles.happens(PATTERN, path) for path in every.tolist()])
    for logs, which in ((split.log_with, holds), (split.log_without, ~holds)):
        mass = np.bincount(every[which, 1], joint[which], minlength=3)
        np.testing.assert_allclose(np.exp(logs), mass * np.exp(logs).sum() / mass.sum(), rtol=1e-12)
    assert split.log_odds == pytest.approx(odds.log_odds, abs=1e-12)  # moving on tells nothing


@pytest.mark.parametrize("seed", range(8))
def test_hindsight_says_by_when_it_had_happened(seed):
    rng = np.random.default_rng(seed)
    matrix, initial, noise = random_matrix(rng, 3), random_initial(rng, 3) * 0.5 + 1 / 6, random_noise(rng, 3, 3)
    rows, event = seen(tuple(rng.integers(0, 3, 5)), noise), Presence([2], 1, 3)
    every, weights = oracles.paths([matrix] * 4, initial)
    joint = oracles.joint(every, weights, rows, range(5))[-1]
    found = events.happened_by(matrix, initial, rows, event)
    for t in range(5):
        by_then = np.array([2 in path[1 : min(t, 3) + 1] for path in every.tolist()])
        assert found[t] == pytest.approx(joint[by_then].sum() / joint.sum(), rel=1e-12, abs=1e-15)
    posterior = events.log_odds(matrix, initial, rows, event)[-1] + EventOdds(matrix, initial, event).prior
    assert found[-1] == pytest.approx(1 / (1 + np.exp(-posterior)), rel=1e-12)


# ---- nothing underflows ----------------------------------------------------------------------------------------------


def in_logs(matrix: np.ndarray, initial: np.ndarray, rows: np.ndarray, event: Presence) -> np.ndarray:
    """The same recursion with sums of logarithms, for presence in a window: slow, and of any range."""
    with np.errstate(divide="ignore"):
        log_matrix, size = np.log(matrix), len(initial)
        within = np.isin(np.arange(size), event.states)

        def odds_after(last: int) -> float:
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

        return np.array([odds_after(t) for t in range(len(rows))]) - odds_after(-1)


@pytest.mark.parametrize("spread", [50, 700, 10_000])
def test_spreads_of_ten_thousand_nats_lose_nothing(spread):
    rng = np.random.default_rng(spread)
    size, length = 6, 7
    for _ in range(6):
        matrix = random_matrix(rng, size) * np.exp(-rng.integers(0, 300, (size, size))) + 0.2 * np.eye(size)
        matrix = matrix / matrix.sum(axis=1, keepdims=True)
        initial = np.exp(-rng.integers(0, 300, size).astype(float))
        rows = -spread * rng.random((length, size))
        event = Presence(rng.choice(size, 2, replace=False), 2, 4)
        found = events.log_odds(matrix, initial / initial.sum(), rows, event)
        expected = in_logs(matrix, initial / initial.sum(), rows, event)
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-10)


def test_plain_doubles_would_lose_it():
    """The broken twin of the test above: without layers, likelihoods 10,000 nats apart leave nothing to compare."""
    rows = np.array([[0.0, -10_000.0], [-10_000.0, 0.0], [0.0, -9_990.0]])
    told = events.log_odds([[0.5, 0.5], [0.5, 0.5]], [0.5, 0.5], rows, Presence([1], 0, 0))
    np.testing.assert_allclose(told, [-10_000.0] * 3, rtol=1e-13)
    assert np.exp(rows).prod(axis=0).max() == 0


def test_an_event_that_is_all_but_certain_keeps_its_odds():
    matrix, tiny = np.array([[1 - 1e-18, 1e-18], [0.5, 0.5]]), 1e-18
    matrix[0, 0] = 1.0
    odds = EventOdds(matrix, [1 - tiny, tiny], Presence([1], 1, 2))
    assert odds.prior == pytest.approx(np.log(2.5e-18), abs=1e-9)
    assert EventOdds(matrix, [1 - tiny, tiny], ~Presence([1], 1, 2)).prior == pytest.approx(-odds.prior)


@pytest.mark.parametrize("faint", [-1.0, -900.0, -np.inf])
def test_rows_that_are_moved_together_keep_masses_however_faint(faint):
    matrix = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    logs = np.array([[0.0, -np.inf, faint], [faint, 0.0, -np.inf]])
    with np.errstate(divide="ignore"):
        expected = np.logaddexp.reduce(logs[:, :, np.newaxis] + np.log(matrix), axis=1)
    np.testing.assert_allclose(
        _moved(Chain.of_matrices(matrix, 3).operator(0, 1), logs, back=False), expected, rtol=1e-13
    )


def test_long_windows_are_worked_through_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    rows = np.log(rng.random((30, 3)))
    event = AtLeast(1, [Presence([2], 3, 8), Times([0], 5, 27, 9)])
    seldom = [0, 3, 7, 8, 14, 22, 26]  # blocks are entered in their middle too
    whole = events.log_odds(CHAIN, START, rows, event)
    some = events.log_odds(CHAIN, START, rows[: len(seldom)], event, times=seldom)
    monkeypatch.setattr("dphmm.events.product_chain._HELD", 1)
    np.testing.assert_allclose(events.log_odds(CHAIN, START, rows, event), whole, rtol=1e-13)
    found = events.log_odds(CHAIN, START, rows[: len(seldom)], event, times=seldom)
    np.testing.assert_allclose(found, some, rtol=1e-13)


def test_a_long_gap_after_the_event_costs_no_more_than_the_way_to_rest():
    told = events.log_odds(CHAIN, START, seen((0, 1, 2)), PRESENCE, times=[0, 1, 10**9])
    near = events.log_odds(CHAIN, START, seen((0, 1, 2)), PRESENCE, times=[0, 1, 500])
    np.testing.assert_allclose(told, near, rtol=1e-12)


# ---- broken twins ----------------------------------------------------------------------------------------------------


def recursion(late: int = 0, plain: bool = False) -> np.ndarray:
    """The recursion for presence of state 2 at times 1 to 2, right or broken in one of two ways.

    ``late``: mass that enters the state counts so many steps later. ``plain``: what is still to happen is weighed by
    the posterior of the state alone, as if nothing had been ruled out by 'not yet'.
    """
    rows = np.exp(seen((0, 1, 2, 2)))
    within = np.array([0.0, 0.0, 1.0])

    def to_happen(t: int) -> np.ndarray:
        value = np.zeros(3)
        for time in range(2, t, -1):
            value = CHAIN @ (np.where(within > 0, 1.0, value) if 1 <= time <= 2 else value)
        return value

    happened, not_yet, told = np.zeros(3), START.copy(), []
    everything = START.copy()
    prior = float(not_yet @ to_happen(0))
    for t, row in enumerate(rows):
        if t:
            happened, not_yet, everything = happened @ CHAIN, not_yet @ CHAIN, everything @ CHAIN
        if 1 + late <= t <= 2 + late:
            happened, not_yet = happened + not_yet * within, not_yet * (1 - within)
        happened, not_yet, everything = happened * row, not_yet * row, everything * row
        pending = everything if plain else not_yet
        yes = happened.sum() + pending @ to_happen(t)
        no = pending @ (1 - to_happen(t))
        told.append(np.log(yes / no) - np.log(prior / (1 - prior)))
    return np.array(told)


def test_the_oracle_catches_mass_that_enters_late_and_a_plain_posterior():
    expected = oracles.log_odds([CHAIN] * 3, START, seen((0, 1, 2, 2)), PRESENCE)
    np.testing.assert_allclose(recursion(), expected, rtol=1e-12)
    assert np.abs(recursion(late=1) - expected).max() > 0.1
    assert np.abs(recursion(plain=True) - expected).max() > 0.1


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (Presence([0, 1, 2], 1, 2), "probability 1 under the model"),
        (Presence([], 1, 2), "probability 0 under the model"),
        (Pattern([[0], [2]], 1), "probability 0 under the model"),
        (Presence([3], 1, 2), "names state 3; states are 0 to 2"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_line(event, message):
    with pytest.raises(EventError, match=message) as caught:
        events.log_odds(CHAIN, START, seen((0,)), event)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "more", "error", "message"),
    [
        (np.zeros((2, 4)), {}, InvalidInputError, "shape"),
        (np.zeros(3), {}, InvalidInputError, "one row per time"),
        ([[0, 0, np.nan]], {}, InvalidInputError, "row 0 holds plus infinity, or NaN in part"),
        ([[0, 0, 0], [0, np.inf, -np.inf]], {}, InvalidInputError, "row 1"),
        (np.zeros((2, 3)), {"times": [1, 0]}, InvalidInputError, "decrease"),
        (np.zeros((2, 3)), {"times": [0.5, 1]}, InvalidInputError, "whole number"),
        ([[0, 0, 0], [-np.inf] * 3], {}, StochasticError, "release 1: no possible path"),
    ],
)
def test_rows_that_are_none_are_refused(rows, more, error, message):
    with pytest.raises(error, match=message):
        events.log_odds(CHAIN, START, rows, PRESENCE, **more)


def test_too_few_matrices_are_refused():
    with pytest.raises(EventError, match="there are 1 transition matrices"):
        events.log_odds([CHAIN], START, np.zeros((1, 3)), PRESENCE)


def test_callers_arrays_stay_as_they_are():
    rows, matrix, start = seen((0, 1)), CHAIN.copy(), START.copy()
    kept = rows.copy()
    events.log_odds(matrix, start, rows, PRESENCE)
    np.testing.assert_array_equal(rows, kept)
    np.testing.assert_array_equal(matrix, CHAIN)
    np.testing.assert_array_equal(start, START)
