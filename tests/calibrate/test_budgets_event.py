"""Budgets for events: no output of a release passes the limit at any moment, a little more budget would."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.calibrate import epsilon_for_event, epsilon_for_odds, simulate
from dphmm.calibrate.budgets import EventLimit
from dphmm.errors import BudgetError, EventError, InvalidInputError
from dphmm.events import Pattern, Presence
from tests.events.oracles import happens, paths
from tests.sizes import few_every_day, fewer

PLACES = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
MOVES = np.array([[0.9, 0.08, 0.02], [0.05, 0.9, 0.05], [0.03, 0.07, 0.9]])
FIRST = np.array([0.2, 0.5, 0.3])
OUTPUTS = np.arange(-60, 63)
EVENTS = [Presence([2], 1, 3), Pattern([[1], [0, 2]], 1), ~Presence([0, 1], 0, 2), Presence([0], 2, 2)]


def engine(**more) -> Releaser:
    return Releaser(MarkovModel(MOVES, FIRST), PLACES, PolicyGraph.complete(3), 1.0, spacing=1, **more)


def noise(epsilon: float) -> np.ndarray:
    """``(3, Z)``: the probability of each output, by the definition: the norm of two steps is one."""
    weights = np.exp(-epsilon / 2 * np.abs(OUTPUTS - np.arange(3)[:, np.newaxis]))
    return np.asarray(weights / weights[1].sum())


def worst(event, epsilon: float, moments: int) -> float:
    """The highest probability of an event after one release, over all moments and outputs, summing over all paths."""
    every, weights = paths([MOVES] * max(moments, event.last + 1), FIRST)
    holds = np.array([happens(event, path) for path in every.tolist()])
    table = noise(epsilon)
    found = []
    for moment in range(moments):
        seen = weights[:, np.newaxis] * table[every[:, moment]]
        possible = seen[:, seen.sum(axis=0) > 0]  # farther out doubles hold nothing
        found.append((possible[holds].sum(axis=0) / possible.sum(axis=0)).max())
    return float(max(found))


@pytest.mark.parametrize(
    ("event", "gain", "moments"),
    [*((event, 0.5, 1) for event in EVENTS), *few_every_day([(event, 0.1, 4) for event in EVENTS], 2)],
    ids=str,
)
def test_no_output_passes_the_limit_and_a_little_more_budget_would(event, gain, moments):
    prior = EventLimit(engine(), event, 1 - 1e-9).prior
    limit = prior + gain * (1 - prior)
    try:
        epsilon = epsilon_for_event(engine(), event, limit, moments)
    except BudgetError:
        pytest.fail("some budget holds")
    assert worst(event, epsilon, moments) <= limit
    assert epsilon == 100.0 or worst(event, 1.02 * epsilon, moments) > limit
    assert EventLimit(engine(), event, limit).holds(epsilon, moments)
    assert epsilon == 100.0 or not EventLimit(engine(), event, limit).holds(1.02 * epsilon, moments)


@pytest.mark.parametrize("event", few_every_day(EVENTS, 2), ids=str)
def test_what_an_output_can_do_leads_back_to_its_budget(event):
    reached = worst(event, 0.7, 3)
    assert 0.7 * 0.99 <= epsilon_for_event(engine(), event, reached, 3) <= 0.7001


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_all_releases_together_keep_the_limit_of_the_formula(event):
    """Three releases, all outputs that count: the formula adds up their diameters."""
    prior = EventLimit(engine(), event, 1 - 1e-9).prior
    limit = prior + 0.3 * (1 - prior)
    epsilon = epsilon_for_odds(3 * 1.0, prior * (1 + 1e-12), limit)
    every, weights = paths([MOVES] * max(3, event.last + 1), FIRST)
    holds = np.array([happens(event, path) for path in every.tolist()])
    table = noise(epsilon)[:, 58:67]  # farther out nothing changes but by a factor for all
    reached = []
    for outputs in product(range(table.shape[1]), repeat=3):
        seen = weights * np.prod([table[every[:, t], z] for t, z in enumerate(outputs)], axis=0)
        reached.append(seen[holds].sum() / seen.sum())
    assert prior < max(reached) <= limit


@cache
def peak() -> float:
    """The expected highest probability of the first event over three releases, of those who do it."""
    event, steps, table = EVENTS[0], 3, noise(2.0)[:, 55:68]
    every, weights = paths([MOVES] * 3, FIRST)
    holds = np.array([happens(event, path) for path in every.tolist()])
    total = 0.0
    for outputs in product(range(table.shape[1]), repeat=steps):
        seen, reached = weights, weights[holds].sum()
        for t, z in enumerate(outputs):
            seen = seen * table[every[:, t], z]
            reached = max(reached, seen[holds].sum() / seen.sum())
        total += reached * seen[holds].sum()
    return float(total / weights[holds].sum())


def test_people_who_do_it_are_as_likely_suspected_as_the_enumeration_says():
    # 400 people, every day 150, seed 3, a 99 % interval; outputs beyond hold less than 1e-3.
    figure = simulate(engine(), 2.0, fewer(400, 150), 3, seed=3, event=EVENTS[0]).figure("reached")
    assert abs(figure.mean - peak()) <= figure.margin + 1e-3


def test_another_budget_is_found_out():
    figure = simulate(engine(), 1.0, fewer(400, 150), 3, seed=3, event=EVENTS[0]).figure("reached")
    assert abs(figure.mean - peak()) > figure.margin + 1e-3


def test_a_share_of_people_has_its_exact_interval():
    """Clopper and Pearson: of 44 people none means less than a tenth with 99 %, of 43 it does not."""
    some = simulate(engine(), 0.01, 44, 1, event=EVENTS[0])
    assert some.share_above(0.9) == (0.0, pytest.approx(1 - 0.01 ** (1 / 44)))
    assert some.share_above(0.9)[1] < 0.1
    assert some.share_above(0.0) == (1.0, 1.0)
    with pytest.raises(InvalidInputError, match="was without an event"):
        simulate(engine(), 0.01, 2, 1).share_above(0.5)
    with pytest.raises(InvalidInputError, match="figure 'reached' was not simulated"):
        simulate(engine(), 0.01, 2, 1).figure("reached")


def test_capped_people_are_simulated_too_and_never_suspected_more():
    from dphmm.events import Cap

    people = fewer(20, 8)
    some = simulate(engine(caps=[Cap(EVENTS[0], 0.5)]), 3.0, people, 4, seed=1, event=EVENTS[0])
    assert some.reached.max() <= 0.5
    assert simulate(engine(), 3.0, people, 4, seed=1, event=EVENTS[0]).reached.max() > 0.5
    assert (some.spent < 12.0).all()


def test_one_release_is_limited_where_several_plans_follow_one_another():
    """From one state on possible states grow, and so does the noise."""
    moves = MarkovModel([[0.9, 0.1, 0], [0.1, 0.8, 0.1], [0, 0.1, 0.9]], [1, 0, 0])
    releaser = Releaser(moves, PLACES, PolicyGraph.complete(3), 1.0, spacing=1, allow_known=True)
    assert 0 < epsilon_for_event(releaser, Presence([2], 2, 3), 0.5, steps=4) < 100


def test_what_cannot_be_limited_is_refused():
    with pytest.raises(EventError, match=r"has probability 0\.\d+ before anything is released"):
        epsilon_for_event(engine(), EVENTS[0], 0.05)
    model = MarkovModel([[1 - 1e-12, 1e-12], [0, 1]], [1, 0])
    rare = Releaser(model, PLACES[:2], PolicyGraph.complete(2), 1.0, allow_known=True)
    with pytest.raises(EventError, match="too little to draw 2 people"):
        simulate(rare, 1.0, 2, 2, event=Presence([1], 1, 1))
