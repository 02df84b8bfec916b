"""The coupled estimator: compared with all count paths of tiny chains and in simulations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import integrate

from dphmm.counts import count_states, least_squares, post_process, release
from dphmm.counts.chain_estimate import (
    ChainFilter,
    Start,
    compute_lattice_moments,
    compute_tilted_moments,
    filter_counts,
    smooth_counts,
)
from dphmm.counts.noisy_stream import as_transition
from tests.counts.oracles import (
    compute_count_transition,
    compute_log_multinomial,
    compute_path_moments,
    compute_posterior_mean,
    list_counts,
)
from tests.sizes import mark_slow

# The transition matrix of Cao et al. (DBSec 2023), section 6.
CYCLE = np.array([[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])


def build_smoothed_cycle(s):
    return (CYCLE + s) / (CYCLE + s).sum(axis=1, keepdims=True)


def simulate_counts(matrix, users, steps, rng):
    size, edges = len(matrix), matrix.cumsum(axis=1)
    states = [rng.integers(size, size=users)]
    for _ in range(steps - 1):
        states.append(np.minimum((rng.random(users)[:, None] > edges[states[-1]]).sum(axis=1), size - 1))
    return count_states(np.array(states).T, size)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_estimate_without_sweeps_is_best_linear_estimator(seed, whole):
    """Compared with linear regression on all noisy counts, with exact moments of all paths."""
    rng = np.random.default_rng(seed)
    users = 2
    places = 3
    steps = 3
    scale = 1.5
    matrix = rng.dirichlet(np.ones(places), size=places)
    matrix[0] = [0.0, 0.3, 0.7]
    first = rng.dirichlet(np.ones(places))
    vectors = list_counts(users, places)
    start = np.exp(compute_log_multinomial(vectors, first))
    mean, covariance = compute_path_moments(vectors, start, compute_count_transition(vectors, matrix), steps)
    noisy = rng.normal(1.0, 2.0, (steps, places))
    noisy = np.rint(noisy) if whole else noisy
    values = np.arange(-200, 201)
    chances = np.exp(-np.abs(values) / scale)
    noise = (chances * values**2).sum() / chances.sum() if whole else 2 * scale**2
    gain = covariance @ np.linalg.inv(covariance + noise * np.eye(len(mean)))
    expected = mean + gain @ (noisy.ravel() - mean)
    spread = np.diag(covariance - gain @ covariance)
    errors_of_estimate, variance = smooth_counts(
        noisy, as_transition(matrix, places), Start.multinomial(first, users), np.full(steps, scale), sweeps=0
    )
    np.testing.assert_allclose(errors_of_estimate.ravel(), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(variance.ravel(), spread, rtol=1e-9, atol=1e-10)


def test_flat_start_has_moments_of_uniform_count_vectors():
    vectors = list_counts(4, 3)
    start = Start.flat(3, 4)
    np.testing.assert_allclose(start.mean, vectors.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(start.root @ start.root.T, np.cov(vectors.T, bias=True), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize(("users", "scale", "bound"), [(5, 1.0, 1.10), mark_slow(8, 4.0, 1.03)])
def test_error_is_close_to_posterior_mean(users, scale, bound, online):
    """300 draws, seed 11: squared error compared with the exact posterior mean, the optimum.

    The exact posterior comes from all count vectors. Plain projection, the broken variant, must be far above.
    """
    rng = np.random.default_rng(11)
    matrix, steps = build_smoothed_cycle(0.1), 5
    vectors = list_counts(users, 3)
    moves = compute_count_transition(vectors, matrix)
    start = np.exp(compute_log_multinomial(vectors, np.full(3, 1 / 3)))
    errors_of_estimate = []
    exact = []
    plain = []
    for _ in range(300):
        true = simulate_counts(matrix, users, steps, rng)
        noisy = true + rng.laplace(0, scale, true.shape)
        mode = "online" if online else True
        estimate = post_process(noisy, matrix, users, scale, prior="uniform", coupled=mode)
        best = compute_posterior_mean(noisy, vectors, start, moves, scale, filtering=online)
        errors_of_estimate.append(np.mean((estimate - true) ** 2))
        exact.append(np.mean((best - true) ** 2))
        plain.append(np.mean((least_squares(noisy, users) - true) ** 2))
    assert np.mean(errors_of_estimate) < bound * np.mean(exact)
    assert np.mean(plain) > 1.2 * np.mean(exact)


@pytest.mark.slow
@pytest.mark.parametrize(("users", "epsilon", "online"), [(5, 2, False), (5, 2, True), mark_slow(8, 4, False)])
def test_integer_noise_uses_discrete_likelihood(users, epsilon, online):
    """60 draws, seed 11: squared error compared with the exact posterior mean, the optimum.

    The broken variant treats integer noise as Laplace noise in real numbers.
    """
    rng = np.random.default_rng(11)
    matrix, mode = build_smoothed_cycle(0.1), "online" if online else True
    vectors = list_counts(users, 3)
    moves = compute_count_transition(vectors, matrix)
    start = np.exp(compute_log_multinomial(vectors, np.full(3, 1 / 3)))
    errors_of_estimate = []
    errors_of_variant = []
    exact = []
    for _ in range(60):
        true = simulate_counts(matrix, users, 5, rng)
        noisy = release(true, epsilon, rng=rng)
        best = compute_posterior_mean(noisy, vectors, start, moves, 2 / epsilon, filtering=online)
        exact.append(np.mean((best - true) ** 2))
        errors_of_estimate.append(
            np.mean((post_process(noisy, matrix, users, 2 / epsilon, "uniform", coupled=mode) - true) ** 2)
        )
        real = noisy + 1e-9  # not integers
        errors_of_variant.append(
            np.mean((post_process(real, matrix, users, 2 / epsilon, "uniform", coupled=mode) - true) ** 2)
        )
    assert np.mean(errors_of_estimate) < 1.05 * np.mean(exact)
    assert np.mean(errors_of_variant) > 1.03 * np.mean(errors_of_estimate)


@pytest.mark.parametrize("epsilon", [6, 8, 12, 24])
def test_small_integer_noise_keeps_error_near_release(epsilon):
    """200 users, 60 times, seed 0: the noise is mostly zero."""
    rng = np.random.default_rng(0)
    true = simulate_counts(build_smoothed_cycle(0.01), 200, 60, rng)
    noisy = release(true, epsilon, rng=0)
    estimate = post_process(noisy, build_smoothed_cycle(0.01), 200, 2 / epsilon, coupled=True)
    assert np.mean((estimate - true) ** 2) <= np.mean((noisy - true) ** 2) + 5e-3


@pytest.mark.parametrize("coupled", [True, "online"])
@pytest.mark.parametrize("epsilon", [9, 12, 20])
def test_small_integer_noise_keeps_error_small_in_many_places(epsilon, coupled):
    """1,000 users, 20 places, 30 times: too sharp initial factors gave errors of dozens."""
    rng = np.random.default_rng(1)
    matrix = rng.dirichlet(np.full(20, 0.3), 20) + 1e-4
    matrix /= matrix.sum(axis=1, keepdims=True)
    true = simulate_counts(matrix, 1_000, 30, rng)
    noisy = release(true, epsilon, rng=2)
    estimate = post_process(noisy, matrix, 1_000, 2 / epsilon, coupled=coupled)
    assert np.abs(estimate - true).max() < np.abs(noisy - true).max() + 1


@pytest.mark.slow
def test_coupled_estimate_halves_error_of_single_estimate():
    """200 users, 3 places, s = 0.01, epsilon = 1, 4 runs of 200 times, seeds 0 to 3."""
    coupled = []
    single = []
    raw = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        true = simulate_counts(build_smoothed_cycle(0.01), 200, 200, rng)
        noisy = release(true, 1.0, rng=seed)
        arguments = (noisy, build_smoothed_cycle(0.01), 200, 2.0)
        coupled.append(np.mean((post_process(*arguments, coupled=True) - true) ** 2))
        single.append(np.mean((post_process(*arguments) - true) ** 2))
        raw.append(np.mean((noisy - true) ** 2))
    assert 7.0 < np.mean(raw) < 9.0
    assert np.mean(single) > 1.5 * np.mean(coupled)
    assert np.mean(coupled) < 3.0


@pytest.mark.slow
def test_deterministic_chain_recovers_exact_counts():
    """A permutation loses nothing between timesteps, so 400 noisy counts determine 3 counts."""
    rng = np.random.default_rng(5)
    turn = np.roll(np.eye(3), 1, axis=1)
    true = simulate_counts(turn, 100, 400, rng)
    noisy = true + rng.laplace(0, 2, true.shape)
    estimate = post_process(noisy, turn, 100, 2.0, integer=True, coupled=True)
    np.testing.assert_array_equal(estimate, true)


def test_filter_ignores_future():
    rng = np.random.default_rng(2)
    noisy, matrix = rng.normal(10, 3, (8, 3)), as_transition(build_smoothed_cycle(0.1), 3)
    changed = noisy.copy()
    changed[5:] += 50
    scales = np.full(8, 2.0)
    start = Start.flat(3, 30)
    np.testing.assert_array_equal(
        filter_counts(noisy, matrix, start, scales)[:5], filter_counts(changed, matrix, start, scales)[:5]
    )
    chain = ChainFilter(matrix, start)
    rows = [chain.update(row, 2.0)[0] for row in noisy]
    np.testing.assert_array_equal(rows, filter_counts(noisy, matrix, start, scales))


def test_filter_and_smoother_agree_at_last_timestep():
    rng = np.random.default_rng(8)
    noisy, matrix = rng.normal(10, 3, (30, 3)), as_transition(build_smoothed_cycle(0.1), 3)
    scales, start = rng.uniform(0.5, 4.0, 30), Start.multinomial(np.array([0.2, 0.5, 0.3]), 30)
    smoothed, _ = smooth_counts(noisy, matrix, start, scales, sweeps=1)
    np.testing.assert_allclose(smoothed[-1], filter_counts(noisy, matrix, start, scales)[-1], rtol=1e-9)


def test_sparse_and_dense_matrix_give_same_counts():
    size = 60
    ring = 0.5 * np.eye(size) + 0.5 * np.roll(np.eye(size), 1, axis=1)
    rng = np.random.default_rng(4)
    noisy = rng.normal(5, 3, (6, size))
    from dphmm.counts import chain_estimate

    arguments = (noisy, as_transition(ring, size), Start.flat(size, 300), np.full(6, 2.0))
    sparse, _ = smooth_counts(*arguments)
    share, chain_estimate._DENSE_SHARE = chain_estimate._DENSE_SHARE, 0.0
    try:
        dense, _ = smooth_counts(*arguments)
    finally:
        chain_estimate._DENSE_SHARE = share
    np.testing.assert_allclose(sparse, dense, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("mean", "variance", "noisy", "scale"),
    [
        (3.0, 4.0, 5.0, 2.0),
        (3.0, 4.0, -5.0, 2.0),
        (-2.0, 1.0, 1.0, 0.5),
        (50.0, 100.0, 20.0, 2.0),
        (0.1, 0.01, 8.0, 2.0),
        (10.0, 400.0, 12.0, 0.1),
        (5000.0, 1e6, 4000.0, 2.0),
        (1.0, 1e-4, 1.0, 2.0),
        (3.0, 4.0, 1e-9, 2.0),
        (-30.0, 1.0, 4.0, 2.0),
        (50.0, 1.0, 95.0, 2.0),
        (50.0, 1.0, 90.0, 0.02),
    ],
)
def test_tilted_moments_equal_numerical_integration(mean, variance, noisy, scale):
    def compute_density(r):
        return np.exp(-((r - mean) ** 2) / (2 * variance) - abs(noisy - r) / scale - peak)

    grid = np.unique(np.concatenate([np.linspace(0, 12000, 400_001), [max(noisy, 0.0), max(mean, 0.0)]]))
    log = -((grid - mean) ** 2) / (2 * variance) - np.abs(noisy - grid) / scale
    peak = log.max()
    close = grid[log > peak - 45]
    low, high = max(close[0] - 0.03, 0.0), close[-1] + 0.03
    points = sorted({low, min(max(noisy, low), high), min(max(grid[log.argmax()], low), high), high})
    moments = [
        sum(
            integrate.quad(lambda r, k=k: r**k * compute_density(r), a, b, epsabs=0, epsrel=1e-11, limit=500)[0]
            for a, b in itertools.pairwise(points)
        )
        for k in (0, 1, 2)
    ]
    centre = moments[1] / moments[0]
    spread = moments[2] / moments[0] - centre**2
    errors_of_estimate = compute_tilted_moments(*(np.array([x]) for x in (mean, variance, noisy, scale)))
    assert errors_of_estimate[0][0] == pytest.approx(centre, rel=1e-9, abs=1e-4 * np.sqrt(spread))
    assert errors_of_estimate[1][0] == pytest.approx(spread, rel=1e-4)


def test_lattice_moments_equal_sums():
    """400 random cases, scales and deviations from a tenth to forty, compared with plain sums."""
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(5, 20, 400), np.exp(rng.uniform(-8, 7, 400))
    noisy, scale = np.rint(rng.normal(5, 20, 400)), rng.choice([0.1, 0.3, 1, 2, 5, 40.0], 400)
    centre, spread = compute_lattice_moments(mean, variance, noisy, scale)
    counts = np.arange(4000)
    for at in range(400):
        log = -((counts - mean[at]) ** 2) / (2 * variance[at]) - np.abs(counts - noisy[at]) / scale[at]
        weight = np.exp(log - log.max())
        weight /= weight.sum()
        expected = (weight * counts).sum()
        second = (weight * (counts - expected) ** 2).sum()
        summed = variance[at] < 400 or scale[at] < 4
        close = 1e-9 if summed else 0.03 * np.sqrt(variance[at])
        assert centre[at] == pytest.approx(expected, abs=close, rel=1e-9)
        assert spread[at] == pytest.approx(min(second, variance[at]), rel=1e-7 if summed else 0.05, abs=1e-9)


def test_moments_are_finite_for_extreme_values():
    means, variances, noisy, scales = np.meshgrid(
        [-1e6, -1e3, 0.0, 1.0, 1e6], [1e-8, 1.0, 1e12], [-1e6, 0.0, 3.0, 1e6], [1e-3, 1.0, 1e5]
    )
    for moments in (compute_tilted_moments, compute_lattice_moments):
        centre, spread = moments(*(values.ravel() for values in (means, variances, noisy, scales)))
        assert np.isfinite(centre).all()
        assert (centre > -1e-6 * (1 + np.abs(means.ravel()))).all()
        assert ((spread >= 0) & (spread <= variances.ravel())).all()
