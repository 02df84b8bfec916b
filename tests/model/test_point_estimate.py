"""Point estimates, against a general minimizer, exact medians and vertices."""

from __future__ import annotations

import sys

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize

from dphmm.model.point_estimate import ERROR_BOUND_ACCURACY, Inference
from tests.forms import list_forms
from tests.sizes import mark_rest_slow

module = sys.modules[Inference.__module__]


def minimize_expected_distance(p: np.ndarray, x: np.ndarray) -> float:
    """Minimize the expected distance from several starts and over all points."""

    def compute_distance(q: np.ndarray) -> float:
        return float(p @ np.linalg.norm(x - q, axis=1))

    errors = [compute_distance(q) for q in x]
    for start in (p @ x, x[p.argmax()]):
        options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000}
        errors.append(minimize(compute_distance, start, method="Nelder-Mead", options=options).fun)
    return min(errors)


@pytest.mark.parametrize("seed", mark_rest_slow(range(60), 20))
def test_least_error_is_tight_lower_bound(seed):
    rng = np.random.default_rng(seed)
    x = 10 * rng.normal(size=(int(rng.choice([1, 2, 3, 5, 40])), int(rng.choice([1, 2, 2, 3]))))
    if seed % 4 == 1:
        x = np.rint(x / 5)  # many equal points
    if seed % 4 == 2:
        x = x[:1] * np.linspace(0, 1, len(x))[:, np.newaxis]  # all on one line
    p = rng.dirichlet(np.full(len(x), rng.choice([0.05, 0.3, 1.0, 5.0])))
    guess, minimum = Inference(p, x), minimize_expected_distance(p, x)
    assert (1 - ERROR_BOUND_ACCURACY) * minimum - 1e-9 <= guess.error_lower_bound <= minimum * (1 + 1e-9) + 1e-12
    np.testing.assert_allclose(guess.mean, p @ x, rtol=1e-12)
    assert guess.mean_error == pytest.approx(p @ np.linalg.norm(x - p @ x, axis=1), rel=1e-12)
    assert guess.rms_error == pytest.approx(np.sqrt(p @ ((x - p @ x) ** 2).sum(axis=1)), rel=1e-12)
    assert guess.max_probability == min(p.max(), 1.0)


def test_mean_error_exceeds_least_error_for_skewed_belief():
    p, x = np.array([0.9, 0.1]), np.array([[0.0, 0.0], [10.0, 0.0]])
    guess = Inference(p, x)
    assert guess.mean_error == pytest.approx(1.8)
    assert guess.error_lower_bound == pytest.approx(1.0), "the more probable place is correct with probability 0.9"


def test_least_error_stays_lower_bound_without_improbable_states():
    rng = np.random.default_rng(5)
    y, x = np.divmod(np.arange(10_000), 100)
    places = np.stack([x, y], axis=1) / 4.0
    p = np.exp(-(np.linalg.norm(places - [7.1, 9.3], axis=1) ** 2)) * rng.gamma(0.5, size=len(places))
    p /= p.sum()
    guess = Inference(p, places)
    best = minimize(lambda q: p @ np.linalg.norm(places - q, axis=1), p @ places).fun
    assert (1 - ERROR_BOUND_ACCURACY) * best <= guess.error_lower_bound <= best * (1 + 1e-9)
    assert guess.mean_error == pytest.approx(p @ np.linalg.norm(places - p @ places, axis=1), rel=1e-12)


def test_error_is_zero_for_point_mass_belief():
    guess = Inference(np.array([0.0, 1.0, 0.0]), np.array([[0.0, 0], [3, 4], [7, 7]]))
    assert guess.mean == (3.0, 4.0)
    assert (guess.mean_error, guess.rms_error, guess.error_lower_bound, guess.max_probability) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("largest", [1e-99, 1e-101, 1e-250])
def test_nearly_impossible_states_change_no_figure(largest):
    """Most states are nearly impossible. Exact sums contain them."""
    rng = np.random.default_rng(2)
    p = np.concatenate([rng.dirichlet(np.ones(9)), largest * rng.random(300)])
    places = rng.normal(size=(309, 2)) * 1e6
    guess, without = Inference(p, places), Inference(p[:9], places[:9])
    with mpmath.workdps(60):
        rows = [[mpmath.mpf(x) for x in row] for row in places.tolist()]
        masses = [mpmath.mpf(mass) for mass in p.tolist()]
        mean = [mpmath.fsum(m * row[k] for m, row in zip(masses, rows, strict=True)) for k in range(2)]
        error = mpmath.fsum(
            m * mpmath.hypot(row[0] - mean[0], row[1] - mean[1]) for m, row in zip(masses, rows, strict=True)
        )
    np.testing.assert_allclose(guess.mean, [float(x) for x in mean], rtol=1e-9)
    assert guess.mean_error == pytest.approx(float(error), rel=1e-9)
    # The search may take another path, and ends within the accuracy.
    assert guess.error_lower_bound == pytest.approx(without.error_lower_bound, rel=ERROR_BOUND_ACCURACY)


@pytest.mark.parametrize("seed", range(4))
def test_cell_errors_match_uniform_locations_in_cells(seed):
    """Sample 40,000 locations from a belief over cells. The seed is the parameter.

    4 standard errors (alpha 6e-5 for each value).
    """
    rng, cell = np.random.default_rng(seed), 0.5
    p = rng.dirichlet(np.full(30, 0.2)) if seed else np.eye(30)[4]
    centres = cell * rng.permutation(np.stack(np.divmod(np.arange(36), 6), axis=1))[:30].astype(float)
    guess, as_points = Inference(p, centres, cell), Inference(p, centres)
    there = centres[rng.choice(30, 40_000, p=p)] + rng.uniform(-cell / 2, cell / 2, (40_000, 2))
    away = np.linalg.norm(there - guess.mean, axis=1)
    margin = 4 * away.std() / 200
    assert away.mean() - margin <= guess.mean_error <= 1.07 * away.mean() + margin, "the bound is a root mean square"
    assert abs(np.mean(away**2) - guess.rms_error**2) <= 4 * (away**2).std() / 200
    best = min(np.linalg.norm(there - q, axis=1).mean() for q in [*centres, guess.mean])
    assert guess.error_lower_bound <= best + margin
    if not seed:
        assert guess.error_lower_bound == pytest.approx(best, abs=margin), (
            "for one cell it is the distance from its centre"
        )
        assert as_points.mean_error == as_points.error_lower_bound == 0.0, (
            "without the cell size an unprotected state has no error"
        )


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_batched_beliefs_match_single_ones(dimension):
    rng = np.random.default_rng(dimension)
    rows, points = rng.dirichlet(np.full(40, 0.3), 8), rng.normal(size=(40, dimension))
    adversaries = [Inference(row, np.asfortranarray(points)) for row in rows]
    spread, error = zip(*((adversary.rms_error, adversary.error_lower_bound) for adversary in adversaries), strict=True)
    squares = [row @ ((points - row @ points) ** 2).sum(axis=1) for row in rows]
    np.testing.assert_allclose(spread, np.sqrt(squares), rtol=1e-12)
    np.testing.assert_array_equal(error, [Inference(row, points).error_lower_bound for row in rows])


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_compiled_and_numpy_forms_agree_to_last_bit(dimension):
    rng = np.random.default_rng(dimension)
    for size in (1, 2, 7, 300):
        columns = np.round(rng.normal(size=(dimension, size)), 1)
        masses = rng.dirichlet(np.full(size, 0.3))
        for at in (columns[:, 0].copy(), rng.normal(size=dimension)):  # on a state, and off all states
            results = []
            for form in list_forms(module._compute_point_sums):
                force = np.full(dimension, np.nan)
                results.append((*form(masses, columns, at, force), *force.tolist()))
            assert all(result == results[0] for result in results)
