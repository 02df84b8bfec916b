"""The most probable counts of each time, compared with brute force and a general solver."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.special import digamma

from dphmm.counts.map_estimate import MIN_DIGAMMA, invert_digamma, solve_integer_map, solve_real_map
from dphmm.errors import CountError
from tests.counts.oracles import (
    compute_brute_force_optimum,
    compute_log_multinomial,
    compute_objective,
    compute_optimality_gap,
    list_counts,
    solve_with_slsqp,
)
from tests.sizes import mark_rest_slow


def draw_case(rng, places, users, zeros=False):
    p = rng.dirichlet(np.ones(places))
    if zeros:
        p[rng.integers(places)] = 0.0
        p /= p.sum()
    scale = float(rng.choice([0.05, 0.5, 2.0, 10.0]))
    noisy = rng.multinomial(users, p) + rng.laplace(0, scale, places)
    if rng.random() < 0.3:
        noisy = np.round(noisy)
    with np.errstate(divide="ignore"):
        return noisy[None], np.log(p)[None], p, np.array([scale])


@pytest.mark.parametrize("seed", mark_rest_slow(range(200), 60))
def test_integer_optimum_equals_brute_force(seed):
    rng = np.random.default_rng(seed)
    users, places = int(rng.integers(1, 13)), int(rng.integers(2, 5))
    noisy, log_p, p, scale = draw_case(rng, places, users, zeros=seed % 3 == 0 and places > 2)
    counts = solve_integer_map(noisy, log_p, users, scale)
    assert counts.sum() == users
    reached = np.abs(noisy - counts).sum() / scale[0] - compute_log_multinomial(counts[0], p)
    np.testing.assert_allclose(
        reached, compute_brute_force_optimum(noisy[0], p, users, scale[0]), rtol=1e-12, atol=1e-9
    )
    assert (counts[0][p == 0] == 0).all()


@pytest.mark.parametrize("seed", range(10))
def test_integer_optimum_is_posterior_mode_for_integer_noise(seed):
    """Compared with the posterior of every count vector under discrete Laplace noise."""
    rng = np.random.default_rng(seed)
    users = 9
    p = rng.dirichlet(np.ones(3))
    decay = float(rng.choice([0.2, 1.0, 3.0]))
    noisy = rng.multinomial(users, p) + rng.geometric(1 - np.exp(-decay), 3) - rng.geometric(1 - np.exp(-decay), 3)
    vectors = list_counts(users, 3)
    chance = np.tanh(decay / 2) * np.exp(-decay * np.abs(noisy - vectors))
    posterior = np.log(chance).sum(axis=1) + compute_log_multinomial(vectors, p)
    counts = solve_integer_map(noisy[None].astype(float), np.log(p)[None], users, np.array([1 / decay]))[0]
    assert posterior[(vectors == counts).all(axis=1)][0] == pytest.approx(posterior.max(), rel=1e-12)


@pytest.mark.parametrize(
    ("users", "places", "scale"), [(10**7, 50, 2.0), (300, 1000, 20.0), (5, 40, 0.01), (200, 3, 2.0)]
)
def test_integer_optimum_satisfies_marginal_costs(users, places, scale):
    """The last user in a row costs no more than another user would, computed from factorials."""
    rng = np.random.default_rng(users)
    p = rng.dirichlet(np.ones(places), size=20)
    noisy = np.array([rng.multinomial(users, row) for row in p]) + rng.laplace(0, scale, p.shape)
    counts = solve_integer_map(noisy, np.log(p), users, np.full(20, scale))
    assert (counts.sum(axis=1) == users).all()

    def compute_unit_cost(k):
        return np.log(np.maximum(k, 1)) - np.log(p) + (np.abs(noisy - k) - np.abs(noisy - k + 1)) / scale

    last = np.where(counts > 0, compute_unit_cost(counts), -np.inf).max(axis=1)
    following = compute_unit_cost(counts + 1).min(axis=1)
    assert (last <= following + 1e-6).all()


@pytest.mark.parametrize(
    ("users", "scale"), [(1, 2.0), (200, 2.0), (200, 1e-3), (200, 1e-7), (10**6, 0.5), (30, 500.0)]
)
def test_real_optimum_satisfies_optimality_conditions(users, scale):
    rng = np.random.default_rng(7)
    p = rng.dirichlet(np.ones(9), size=300)
    p[:100, 0] = 0.0
    p /= p.sum(axis=1, keepdims=True)
    noisy = np.array([rng.multinomial(users, row) for row in p]) + rng.laplace(0, scale, p.shape)
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    scales = np.full(300, scale)
    counts, multipliers = solve_real_map(noisy, log_p, users, scales)
    assert compute_optimality_gap(counts, multipliers, noisy, log_p, scales).max() < 1e-9
    np.testing.assert_allclose(counts.sum(axis=1), users, rtol=1e-8)
    assert (counts >= 0).all()
    assert (counts[:100, 0] == 0).all()


def test_optimality_gap_is_positive_for_other_solution():
    """The broken variant of the test above."""
    noisy, log_p = np.array([[5.0, 2.0, 4.0]]), np.log([[0.3, 0.3, 0.4]])
    counts, multiplier = solve_real_map(noisy, log_p, 10, np.array([2.0]))
    moved = counts + np.array([[1e-4, -1e-4, 0.0]])
    assert compute_optimality_gap(moved, multiplier, noisy, log_p, np.array([2.0]))[0] > 1e-6


@pytest.mark.parametrize("seed", range(25))
def test_real_optimum_is_at_most_objective_of_slsqp(seed):
    rng = np.random.default_rng(seed)
    noisy, log_p, p, scale = draw_case(rng, 6, 40)
    ours, _ = solve_real_map(noisy, log_p, 40, scale)
    solver = np.maximum(solve_with_slsqp(noisy[0], p, 40, scale[0]), 0.0)
    solver *= 40 / solver.sum()
    reached = compute_objective(ours, noisy, log_p, scale)[0]
    assert reached <= compute_objective(solver[None], noisy, log_p, scale)[0] + 1e-9
    assert reached >= compute_objective(solver[None], noisy, log_p, scale)[0] - 0.05 * abs(reached) - 1.0


def test_stirling_objective_has_similar_optimum_if_counts_are_large():
    rng = np.random.default_rng(3)
    p = np.array([0.2, 0.3, 0.5])
    noisy = rng.multinomial(200, p) + rng.laplace(0, 2, 3)
    ours, _ = solve_real_map(noisy[None], np.log(p)[None], 200, np.array([2.0]))
    np.testing.assert_allclose(solve_with_slsqp(noisy, p, 200, 2.0, stirling=True), ours[0], atol=0.01)


def test_small_noise_gives_counts_and_large_noise_gives_prior_mode():
    p, true = np.array([[0.2, 0.3, 0.5]]), np.array([[9.0, 1.0, 0.0]])
    assert solve_integer_map(true, np.log(p), 10, np.array([1e-6])).tolist() == [[9, 1, 0]]
    assert solve_integer_map(true, np.log(p), 10, np.array([1e9])).tolist() == [[2, 3, 5]]


def test_time_without_possible_place_raises():
    with pytest.raises(CountError, match="time 1"):
        solve_real_map(np.ones((2, 2)), np.array([[0.0, -1.0], [-np.inf, -np.inf]]), 2, np.ones(2))


@pytest.mark.parametrize("count", [0.0, 1e-7, 0.3, 1.0, 7.5, 59.0, 61.0, 1e3, 1e6])
def test_inverse_digamma_equals_high_precision(count):
    value = float(mpmath.digamma(mpmath.mpf(count) + 1))
    assert invert_digamma(np.array([value]))[0] == pytest.approx(count, rel=1e-11, abs=3e-12)
    assert digamma(count + 1) >= MIN_DIGAMMA
