"""Tests of simulated users against sums over all paths and outputs.

The model has three states and runs for five timesteps.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.calibrate import MeanEstimate, largest_epsilon, simulate
from dphmm.calibrate.simulation import PathReleaser, Simulation, compute_errors_without_releases, compute_max_prior
from dphmm.errors import BudgetError, InvalidInputError
from dphmm.model import TimeClasses
from dphmm.model.outside_states import OutsideStates
from tests.sizes import choose_count

PLACES = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
MOVES = np.array([[0.9, 0.08, 0.02], [0.05, 0.9, 0.05], [0.03, 0.07, 0.9]])
FIRST = np.array([0.2, 0.5, 0.3])
STEPS = 5
EPSILON = 3.0
OUTPUTS = np.arange(-4, 7)  # less than 1e-3 of the mass lies outside


def make_engine() -> Releaser:
    return Releaser(MarkovModel(MOVES, FIRST), PLACES, PolicyGraph.complete(3), 1.0, spacing=1)


@cache
def compute_exact_figures() -> dict[str, float]:
    """Return the exact expectations of the figures: all output sequences, weighted.

    Medians on a line are attained at states.
    """
    noise = np.exp(-EPSILON / 2 * np.abs(OUTPUTS - np.arange(3)[:, np.newaxis]))
    emission = noise / noise.sum(axis=1, keepdims=True)  # (3, 11)
    sequences = np.array(list(product(range(len(OUTPUTS)), repeat=STEPS)))
    ahead = np.empty((STEPS, len(sequences), 3))
    for t in range(STEPS):
        prior = np.tile(FIRST, (len(sequences), 1)) if t == 0 else ahead[t - 1] @ MOVES
        ahead[t] = prior * emission[:, sequences[:, t]].T
    weight = ahead[-1].sum(axis=1)
    back = np.ones((STEPS, len(sequences), 3))
    for t in range(STEPS - 2, -1, -1):
        back[t] = (back[t + 1] * emission[:, sequences[:, t + 1]].T) @ MOVES.T
    x = PLACES[:, 0]

    def compute_min_error(beliefs: np.ndarray) -> np.ndarray:
        p = beliefs / beliefs.sum(axis=2, keepdims=True)
        return np.min([p @ np.abs(x - q) for q in x], axis=0)

    def compute_error_of_mean(beliefs: np.ndarray) -> np.ndarray:
        p = beliefs / beliefs.sum(axis=2, keepdims=True)
        return (p * np.abs(x - (p @ x)[..., np.newaxis])).sum(axis=2)

    later = ahead * back
    confidence = (later / later.sum(axis=2, keepdims=True)).max(axis=2)
    figures = {
        "estimate_error": compute_error_of_mean(ahead),
        "filtered_error": compute_min_error(ahead),
        "smoothed_error": compute_min_error(later),
        "smoothed_max_posterior": confidence,
    }
    return {name: float((values.mean(axis=0) @ weight) / weight.sum()) for name, values in figures.items()}


@cache
def run_simulation():
    return simulate(make_engine(), EPSILON, num_users=choose_count(300, 120), steps=STEPS, rng=5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["estimate_error", "filtered_error", "smoothed_error", "smoothed_max_posterior"])
def test_simulated_figures_match_enumeration(name):
    # 300 users (120 in the short run), seed 5, 99 % intervals. Errors of the point estimate may be 2 % too small;
    # 1e-3 of the mass is omitted.
    figure, true = run_simulation().estimate_mean(name), compute_exact_figures()[name]
    slack = 1e-3 + (0.02 * true if name in ("filtered_error", "smoothed_error") else 0.0)
    assert abs(figure.mean - true) <= figure.margin + slack


def test_filtered_error_differs_from_smoothed_error():
    figure = run_simulation().estimate_mean("filtered_error")
    assert (
        abs(figure.mean - compute_exact_figures()["smoothed_error"])
        > figure.margin + 0.02 * compute_exact_figures()["smoothed_error"] + 1e-3
    )


@pytest.mark.slow
def test_smoothed_error_differs_for_half_epsilon():
    figure = simulate(make_engine(), EPSILON / 2, num_users=choose_count(300, 120), steps=STEPS, rng=5).estimate_mean(
        "smoothed_error"
    )
    assert (
        abs(figure.mean - compute_exact_figures()["smoothed_error"])
        > figure.margin + 0.02 * compute_exact_figures()["smoothed_error"] + 1e-3
    )


def test_estimate_error_of_users_with_habits_matches_enumeration():
    """Half of such users are outside the region, 4 km from the last state. 200 users, seed 3."""
    chain = np.array([[0.6, 0.2, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.1, 0.6, 0.2], [0.05, 0.05, 0.1, 0.8]])
    outside = [OutsideStates(3, [2], [4.0], [17.0], [share]) for share in (0.1, 0.6)]
    public, habit = (
        MarkovModel(chain.T / chain.sum(axis=0)[:, np.newaxis], FIRST, outside=outside[0]),
        MarkovModel(chain, [0.1, 0.1, 0.8], outside=outside[1]),
    )
    releaser = Releaser(public, PLACES, PolicyGraph.complete(3), 1.0, spacing=1)
    figure = simulate(releaser, EPSILON, 200, 3, rng=3, habits=[habit]).estimate_mean("estimate_error")
    noise = np.exp(-EPSILON / 2 * np.abs(OUTPUTS - np.arange(3)[:, np.newaxis]))
    emission = (noise / noise.sum(axis=1, keepdims=True))[[0, 1, 2, 2]]
    sequences = np.array(list(product(range(len(OUTPUTS)), repeat=3)))
    x = np.array([0.0, 1.0, 2.0, 2.0])
    beliefs = []
    errors = []
    for t, column in enumerate(sequences.T):
        for k, (start, moves) in enumerate(
            (([0.2, 0.5, 0.27, 0.03], public.transitions[0].toarray()), ([0.1, 0.1, 0.32, 0.48], chain))
        ):
            prior = np.tile(start, (len(sequences), 1)) if t == 0 else beliefs[k] @ moves
            beliefs[k : k + 1] = [prior * emission[:, column].T]
        estimates = beliefs[0] @ x / beliefs[0].sum(axis=1)
        distances = np.abs(x - estimates[:, np.newaxis]) + np.array([0.0, 0.0, 0.0, 4.0])
        # Each sequence of outputs up to this timestep occurs once for all later outputs.
        errors.append((beliefs[1] * distances).sum() / len(OUTPUTS) ** (2 - t))
    assert figure.margin < 0.3
    assert abs(figure.mean - np.mean(errors)) <= figure.margin + 1e-2


def test_without_releases_uses_propagated_belief():
    beliefs = [FIRST @ np.linalg.matrix_power(MOVES, t) for t in range(STEPS)]
    min_expected_error = [min(p @ np.abs(PLACES[:, 0] - q) for q in PLACES[:, 0]) for p in beliefs]
    error, _ = compute_errors_without_releases(make_engine(), STEPS)
    assert error == pytest.approx(np.mean(min_expected_error), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("matrix", "initial"),
    [
        (MOVES, FIRST),
        (np.roll(np.eye(3), 1, axis=1), FIRST),
        (np.array([[0.999, 0.001, 0.0], [0.0, 0.999, 0.001], [0.0, 0.0, 1.0]]), [0.6, 0.4, 0.0]),
    ],
    ids=["settles", "repeats", "settles late"],
)
def test_max_prior_is_largest_probability_at_any_timestep(matrix, initial):
    masses = np.array(initial)
    largest = 0.0
    for _ in range(50_000):
        largest = max(largest, masses.max())
        masses = masses @ matrix
    assert largest * (1 - 1e-9) <= compute_max_prior(MarkovModel(matrix, initial)) <= largest * 1.01


@pytest.mark.slow
@pytest.mark.parametrize("share", [1e-3, 1e-4])
def test_max_prior_of_a_slow_chain_is_a_bound(share):
    """The largest probability is that at rest, 0.9, which is approached for 100,000 steps."""
    model = MarkovModel([[1 - share, share], [share / 9, 1 - share / 9]], [0.5, 0.5])
    assert 0.9 <= compute_max_prior(model) <= 0.9 * 1.01
    assert compute_max_prior(model, max_work=1e6) is None


def test_max_prior_with_time_classes_that_takes_too_long_is_unknown():
    classes = TimeClasses(tuple(int(hour >= 120) for hour in range(168)), 3600.0)
    model = MarkovModel([MOVES, MOVES[::-1]], [FIRST, FIRST], step_seconds=3600.0, time_classes=classes)
    assert compute_max_prior(model, max_work=1e6) is None
    assert compute_max_prior(model) == pytest.approx(compute_max_prior(model, first=0), rel=0.5)


def test_simulation_is_reproducible_for_equal_seeds():
    first, again, others = (simulate(make_engine(), EPSILON, 3, STEPS, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(again.smoothed_error, first.smoothed_error)
    assert not np.array_equal(others.smoothed_error, again.smoothed_error)


def test_largest_epsilon_meets_target_and_is_nearly_maximal():
    seen = []

    def estimate_figure(epsilon: float, is_check: bool) -> MeanEstimate:
        seen.append(is_check)
        return MeanEstimate(2.0 / epsilon, 0.1 if is_check else 0.0)

    for start in (0.001, 1.0, 700.0):
        search = largest_epsilon(estimate_figure, 0.5, start)
        assert search.estimate.lower_bound >= 0.5
        assert 2.8 <= search.epsilon <= 4.0, "the interval costs 0.1, and the result has two digits"
    assert seen[-1], "the last evaluation uses other users"


def test_search_that_cannot_reach_target_raises():
    with pytest.raises(BudgetError, match=r"\b1 .*0\.2"):
        largest_epsilon(lambda epsilon, is_check: MeanEstimate(1.0, 0.2), 0.9)
    with pytest.raises(InvalidInputError, match="num_users must be an integer of at least 2"):
        simulate(make_engine(), 1.0, 1, 5)


def test_figure_simulated_alone_equals_that_of_full_simulation():
    full = simulate(make_engine(), EPSILON, num_users=3, steps=STEPS)
    for name in ("estimate_error", "filtered_error", "smoothed_error", "smoothed_max_posterior", "released_error"):
        alone = simulate(make_engine(), EPSILON, num_users=3, steps=STEPS, metric=name)
        np.testing.assert_array_equal(getattr(alone, name), getattr(full, name))
        with pytest.raises(InvalidInputError, match="simulated"):
            alone.estimate_mean("smoothed_error" if name == "estimate_error" else "estimate_error")


@pytest.mark.parametrize("hours", [None, [0] * 84 + [1] * 84], ids=["one_matrix", "two_classes"])
def test_rms_error_of_components_follows_from_beliefs_of_path(hours):
    """Squared errors of noise with two lengths are averaged over the belief before a release."""
    places = np.array([[0.0, 0.0], [1.0, 0.0], [10.0, 0.0], [15.0, 0.0]])
    matrices = [np.full((4, 4), 0.1) + 0.6 * np.eye(4), np.full((4, 4), 0.2) + 0.2 * np.eye(4)]
    first, slot = np.array([0.4, 0.3, 0.2, 0.1]), 10  # the class changes after two steps
    model = MarkovModel(matrices[0], first)
    if hours is not None:
        model = MarkovModel(matrices, [first] * 2, None, 3600.0, TimeClasses(tuple(hours), 3600.0))
    policy = PolicyGraph.from_groups(4, [[0, 1], [2, 3]])
    releaser = PathReleaser(
        Releaser(model, places, policy, 1.0, spacing=1, noise_scope="component"), 1.0, steps=4, first=slot
    )
    assert not releaser.is_sequential
    rows, *_, error = releaser.release(np.array([0, 1, 3, 0]), np.random.default_rng(2))
    powers = np.exp(-1.0 / np.array([1.0, 1.0, 5.0, 5.0]))
    squares = 2 * powers / (1 - powers) ** 2  # of discrete Laplace noise on the line
    belief, mean_squares = first, []
    for step, row in enumerate(rows):
        mean_squares.append(belief @ squares)
        belief = belief * np.exp(row - row.max())
        matrix = matrices[0 if hours is None else hours[(slot + step + 72) % 168]]  # 1970 began on a Thursday
        belief = belief / belief.sum() @ matrix
    assert error == pytest.approx(np.sqrt(np.mean(mean_squares)), rel=1e-12)


def test_released_error_of_users_is_a_root_mean_square():
    """Squares of 1 and 49 have mean 25. The interval is within 10 % of the bootstrap."""
    errors = np.tile([1.0, 7.0], 200)
    simulation = Simulation(1.0, 5, "released_error", *(errors * np.nan for _ in range(6)), errors)
    estimate = simulation.estimate_mean("released_error")
    assert estimate.mean == 5.0
    roots = np.sqrt((np.random.default_rng(1).choice(errors, (4000, 400)) ** 2).mean(axis=1))
    assert estimate.margin == pytest.approx(np.quantile(np.abs(roots - 5.0), 0.99), rel=0.1)
