"""Tests of event budgets: they keep the limit at every timestep and are nearly maximal."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.calibrate import epsilon_for_event, epsilon_for_odds, simulate
from dphmm.calibrate.epsilon_search import EventLimit
from dphmm.errors import BudgetError, EventError, InvalidInputError
from dphmm.events import Pattern, Presence
from tests.events.oracles import enumerate_paths, happens
from tests.sizes import choose_count, mark_rest_slow

PLACES = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
MOVES = np.array([[0.9, 0.08, 0.02], [0.05, 0.9, 0.05], [0.03, 0.07, 0.9]])
FIRST = np.array([0.2, 0.5, 0.3])
OUTPUTS = np.arange(-60, 63)
EVENTS = [Presence([2], 1, 3), Pattern([[1], [0, 2]], 1), ~Presence([0, 1], 0, 2), Presence([0], 2, 2)]


def make_engine(**more) -> Releaser:
    return Releaser(MarkovModel(MOVES, FIRST), PLACES, PolicyGraph.complete(3), 1.0, spacing=1, **more)


def compute_noise(epsilon: float) -> np.ndarray:
    """Return ``(3, Z)`` output probabilities by definition. The norm of two steps is one."""
    weights = np.exp(-epsilon / 2 * np.abs(OUTPUTS - np.arange(3)[:, np.newaxis]))
    return np.asarray(weights / weights[1].sum())


def compute_max_probability(event, epsilon: float, num_steps: int) -> float:
    """Return the highest event probability after one release, over timesteps and outputs."""
    all_paths, weights = enumerate_paths([MOVES] * max(num_steps, event.last + 1), FIRST)
    holds = np.array([happens(event, path) for path in all_paths.tolist()])
    table = compute_noise(epsilon)
    maxima = []
    for step in range(num_steps):
        seen = weights[:, np.newaxis] * table[all_paths[:, step]]
        possible = seen[:, seen.sum(axis=0) > 0]  # outputs farther out underflow to zero
        maxima.append((possible[holds].sum(axis=0) / possible.sum(axis=0)).max())
    return float(max(maxima))


@pytest.mark.parametrize(
    ("event", "gain", "num_steps"),
    [*((event, 0.5, 1) for event in EVENTS), *mark_rest_slow([(event, 0.1, 4) for event in EVENTS], 2)],
    ids=str,
)
def test_epsilon_for_event_keeps_limit_and_is_nearly_maximal(event, gain, num_steps):
    prior = EventLimit(make_engine(), event, 1 - 1e-9).prior
    limit = prior + gain * (1 - prior)
    try:
        epsilon = epsilon_for_event(make_engine(), event, limit, num_steps)
    except BudgetError:
        pytest.fail("some budget holds")
    assert compute_max_probability(event, epsilon, num_steps) <= limit
    assert epsilon == 100.0 or compute_max_probability(event, 1.02 * epsilon, num_steps) > limit
    assert EventLimit(make_engine(), event, limit).is_satisfied(epsilon, num_steps)
    assert epsilon == 100.0 or not EventLimit(make_engine(), event, limit).is_satisfied(1.02 * epsilon, num_steps)


@pytest.mark.slow
@pytest.mark.parametrize("event", mark_rest_slow(EVENTS, 2), ids=str)
def test_epsilon_for_event_inverts_max_event_probability(event):
    reached = compute_max_probability(event, 0.7, 3)
    assert 0.7 * 0.99 <= epsilon_for_event(make_engine(), event, reached, 3) <= 0.7001


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_epsilon_for_odds_keeps_limit_over_multiple_releases(event):
    """Enumerate all relevant outputs of three releases. The formula adds up their diameters."""
    prior = EventLimit(make_engine(), event, 1 - 1e-9).prior
    limit = prior + 0.3 * (1 - prior)
    epsilon = epsilon_for_odds(3 * 1.0, prior * (1 + 1e-12), limit)
    all_paths, weights = enumerate_paths([MOVES] * max(3, event.last + 1), FIRST)
    holds = np.array([happens(event, path) for path in all_paths.tolist()])
    table = compute_noise(epsilon)[:, 58:67]  # farther out all states differ by a constant factor only
    reached = []
    for outputs in product(range(table.shape[1]), repeat=3):
        seen = weights * np.prod([table[all_paths[:, t], z] for t, z in enumerate(outputs)], axis=0)
        reached.append(seen[holds].sum() / seen.sum())
    assert prior < max(reached) <= limit


@cache
def compute_expected_maximum() -> float:
    """Return the expected maximum probability of the first event, given that it happens.

    The maximum is over three releases.
    """
    event = EVENTS[0]
    steps = 3
    table = compute_noise(2.0)[:, 55:68]
    all_paths, weights = enumerate_paths([MOVES] * 3, FIRST)
    holds = np.array([happens(event, path) for path in all_paths.tolist()])
    total = 0.0
    for outputs in product(range(table.shape[1]), repeat=steps):
        seen, reached = weights, weights[holds].sum()
        for t, z in enumerate(outputs):
            seen = seen * table[all_paths[:, t], z]
            reached = max(reached, seen[holds].sum() / seen.sum())
        total += reached * seen[holds].sum()
    return float(total / weights[holds].sum())


@pytest.mark.slow
def test_simulated_event_probability_matches_enumeration():
    # 400 users (150 in the short run), seed 3, a 99 % interval; the omitted outputs have less than 1e-3 of the mass.
    figure = simulate(make_engine(), 2.0, choose_count(400, 150), 3, rng=3, event=EVENTS[0]).estimate_mean(
        "max_event_probability"
    )
    assert abs(figure.mean - compute_expected_maximum()) <= figure.margin + 1e-3


@pytest.mark.slow
def test_simulated_event_probability_differs_for_other_epsilon():
    figure = simulate(make_engine(), 1.0, choose_count(400, 150), 3, rng=3, event=EVENTS[0]).estimate_mean(
        "max_event_probability"
    )
    assert abs(figure.mean - compute_expected_maximum()) > figure.margin + 1e-3


def test_share_above_has_exact_interval():
    """Zero of 44 users gives an upper bound below a tenth (99 %), zero of 43 does not."""
    simulation = simulate(make_engine(), 0.01, 44, 1, event=EVENTS[0])
    assert simulation.estimate_share_above(0.9) == (0.0, pytest.approx(1 - 0.01 ** (1 / 44)))
    assert simulation.estimate_share_above(0.9)[1] < 0.1
    assert simulation.estimate_share_above(0.0) == (1.0, 1.0)
    with pytest.raises(InvalidInputError, match="event must be set"):
        simulate(make_engine(), 0.01, 2, 1).estimate_share_above(0.5)
    with pytest.raises(InvalidInputError, match="'max_event_probability'"):
        simulate(make_engine(), 0.01, 2, 1).estimate_mean("max_event_probability")


@pytest.mark.slow
def test_event_caps_are_respected_in_simulation():
    from dphmm.events import Cap

    num_users = choose_count(20, 8)
    simulation = simulate(make_engine(caps=[Cap(EVENTS[0], 0.5)]), 3.0, num_users, 4, rng=1, event=EVENTS[0])
    assert simulation.max_event_probability.max() <= 0.5
    assert simulate(make_engine(), 3.0, num_users, 4, rng=1, event=EVENTS[0]).max_event_probability.max() > 0.5
    assert (simulation.epsilon_spent < 12.0).all()


@pytest.mark.slow
def test_epsilon_for_event_is_positive_if_constraint_grows():
    """From a single initial state the set of possible states grows, and so does the noise."""
    moves = MarkovModel([[0.9, 0.1, 0], [0.1, 0.8, 0.1], [0, 0.1, 0.9]], [1, 0, 0])
    releaser = Releaser(moves, PLACES, PolicyGraph.complete(3), 1.0, spacing=1, allow_singleton=True)
    assert 0 < epsilon_for_event(releaser, Presence([2], 2, 3), 0.5, steps=4) < 100


def test_unreachable_limit_or_rare_event_raises():
    with pytest.raises(EventError, match=r"probability must be in \(0\.\d+, 1\), .* got 0\.05"):
        epsilon_for_event(make_engine(), EVENTS[0], 0.05)
    model = MarkovModel([[1 - 1e-12, 1e-12], [0, 1]], [1, 0])
    rare = Releaser(model, PLACES[:2], PolicyGraph.complete(2), 1.0, allow_singleton=True)
    with pytest.raises(EventError, match=r"event must be less rare: .* sample 2 users"):
        simulate(rare, 1.0, 2, 2, event=Presence([1], 1, 1))
