"""The largest posterior over a set of adversaries: a linear program over all paths, and all corners of the set."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from dphmm.audit.robust import largest_log_odds
from dphmm.errors import ConfigurationError, StochasticError
from dphmm.events import EventOdds, Pattern, Presence
from dphmm.events.event import Event
from dphmm.events.product_chain import Chain

CHAIN = np.array([[0.6, 0.4, 0.0], [0.3, 0.4, 0.3], [0.1, 0.4, 0.5]])
START = np.array([0.5, 0.3, 0.2])


def _by_program(chain, start, logs, event: Event, factor: float) -> float:
    """The largest posterior by a linear program over the masses of all beginnings of paths (Charnes and Cooper)."""
    times = max(len(logs), event.last + 1)
    beginnings = [path for length in range(times + 1) for path in product(range(len(start)), repeat=length)]
    number = {path: k for k, path in enumerate(beginnings)}
    rows, equal = [], []
    for path in beginnings:
        if len(path) == times:
            continue
        sums = np.zeros(len(number))
        sums[number[path]] = -1.0
        for state in range(len(start)):
            one, share = number[*path, state], (chain[path[-1], state] if path else start[state])
            sums[one] = 1.0
            low, high = np.zeros((2, len(number)))
            low[one], low[number[path]] = -1.0, share / factor
            high[one], high[number[path]] = 1.0, -min(1.0, factor * share) if share else 0.0
            rows += [low, high]
        equal.append(sums)
    weights = np.zeros((2, len(number)))
    automaton = Chain.of_matrices(chain, len(start)).compile(event)
    for path in beginnings:
        if len(path) == times:
            told = float(np.exp(sum(row[state] for row, state in zip(logs, path, strict=False))))
            happens = bool(automaton.happens(np.array([path]))[0])
            weights[:, number[path]] = told * happens, told
    found = linprog(
        -weights[0],
        A_ub=np.array(rows),
        b_ub=np.zeros(len(rows)),
        A_eq=np.array([*equal, weights[1]]),
        b_eq=[*np.zeros(len(equal)), 1.0],
    )
    assert found.status == 0
    return -float(found.fun)


EVENTS = {
    "at the last release": Presence([2], 3, 3),
    "at an earlier one": Presence([2], 1, 1),
    "at some": Presence([2], 1, 2),
    "after the last": Presence([0], 4, 4),
    "one after another": Pattern([[1], [2]], 1),
}


@pytest.mark.parametrize("factor", [1.0, 1.3, 2.0, 8.0, np.inf])
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_the_largest_posterior_is_that_of_a_linear_program_over_paths(event: Event, factor: float) -> None:
    logs = np.log(np.random.default_rng(3).dirichlet(np.ones(3), size=4))
    found = largest_log_odds(CHAIN, START, logs, event, factor)
    # infinity: a factor beyond which no bound binds
    expected = _by_program(CHAIN, START, logs, event, factor if factor < np.inf else 1e9)
    assert 1 / (1 + np.exp(-found)) == pytest.approx(expected, abs=1e-8)


def test_the_largest_posterior_of_a_place_now_is_that_of_a_corner_of_the_set() -> None:
    # two next states for each state: the corners of a row are two, and adversaries look at the present state alone
    chain, start, factor = np.array([[0.7, 0.3, 0.0], [0.0, 0.4, 0.6], [0.2, 0.0, 0.8]]), np.array([0.5, 0.5, 0.0]), 1.7
    logs = np.log(np.random.default_rng(5).dirichlet(np.ones(3), size=5))

    def corners(row):
        a, b = np.flatnonzero(row)
        for low, high in ((a, b), (b, a)):
            corner = np.zeros(3)
            corner[high] = min(1.0, factor * row[high], 1.0 - row[low] / factor)
            corner[low] = 1.0 - corner[high]
            yield corner

    rows = np.array([list(corners(row)) for row in chain])
    best = 0.0
    for first in corners(start):
        masses = [first * np.exp(logs[0])]
        for row in logs[1:]:  # all corners of each step, held side by side
            masses = [
                (mass @ rows[np.arange(3), list(which)]) * np.exp(row)
                for mass in masses
                for which in product(range(2), repeat=3)
            ]
        best = max(best, max(mass[2] / mass.sum() for mass in masses))
    found = largest_log_odds(chain, start, logs, Presence([2], 4, 4), factor)
    assert 1 / (1 + np.exp(-found)) == pytest.approx(best, abs=1e-9)


def test_a_factor_of_one_is_what_the_filter_says() -> None:
    rng = np.random.default_rng(7)
    chain, start = rng.dirichlet(np.ones(6), size=6), rng.dirichlet(np.ones(6))
    logs, steps = 30.0 * rng.normal(size=(12, 6)), rng.integers(0, 4, size=12)
    event = Pattern([[1, 2], [4]], 2)
    odds = EventOdds(chain, start, event)
    for row, step in zip(logs, steps, strict=True):
        odds.update(row, int(step))
    times = np.concatenate([[0], np.cumsum(steps[1:])])
    assert largest_log_odds(chain, start, logs, event, 1.0, times) == pytest.approx(odds.log_odds, rel=1e-9)


def test_nobody_drawn_from_the_set_believes_more() -> None:
    rng = np.random.default_rng(11)
    chain, start, factor = rng.dirichlet(np.ones(5), size=5), rng.dirichlet(np.ones(5)), 1.5
    logs = np.log(rng.dirichlet(np.ones(5), size=6))
    most = largest_log_odds(chain, start, logs, Presence([0, 1], 5, 5), factor)

    def within(row):
        other = np.clip(row * factor ** rng.uniform(-1, 1, size=len(row)), row / factor, np.minimum(1, factor * row))
        low, high = row / factor, np.minimum(1.0, factor * row)
        for _ in range(60):  # moved back to a sum of one inside the bounds
            other = np.clip(other + (1 - other.sum()) / len(row), low, high)
        return other

    held = []
    for _ in range(200):
        mass = within(start) * np.exp(logs[0])
        for row in logs[1:]:
            mass = (mass @ np.array([within(one) for one in chain])) * np.exp(row)
        held.append(np.log(mass[:2].sum() / mass[2:].sum()))
    assert max(held) <= most
    assert max(held) > largest_log_odds(chain, start, logs, Presence([0, 1], 5, 5), 1.0)  # and some more than the model


def test_bad_factors_and_impossible_releases_are_refused() -> None:
    logs = np.log([[0.5, 0.5, 0.5]])
    with pytest.raises(ConfigurationError, match=r"the factor is 0\.5; give one of at least 1"):
        largest_log_odds(CHAIN, START, logs, Presence([2], 0, 0), 0.5)
    with pytest.raises(StochasticError, match="no possible path"):
        largest_log_odds(CHAIN, [1.0, 0.0, 0.0], [[-np.inf, 0.0, 0.0]], Presence([0], 0, 0), 2.0)
