"""The best guess: against a general minimiser, exact medians and vertices, and a twin that takes the mean for it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy.optimize import minimize

from dphmm.model.point_estimate import ACCURACY, expected_errors, point_estimate
from tests.forms import forms_of
from tests.sizes import few_every_day

module = sys.modules[point_estimate.__module__]


def least_distance(p: np.ndarray, x: np.ndarray) -> float:
    """The least expected distance over all points, by search from the mean, from the likeliest and over all points."""

    def distance(q: np.ndarray) -> float:
        return float(p @ np.linalg.norm(x - q, axis=1))

    found = [distance(q) for q in x]
    for start in (p @ x, x[p.argmax()]):
        options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000}
        found.append(minimize(distance, start, method="Nelder-Mead", options=options).fun)
    return min(found)


@pytest.mark.parametrize("seed", few_every_day(range(60), 20))
def test_the_least_expected_distance_is_never_told_too_large_and_hardly_too_small(seed):
    rng = np.random.default_rng(seed)
    x = 10 * rng.normal(size=(int(rng.choice([1, 2, 3, 5, 40])), int(rng.choice([1, 2, 2, 3]))))
    if seed % 4 == 1:
        x = np.rint(x / 5)  # many points in one place
    if seed % 4 == 2:
        x = x[:1] * np.linspace(0, 1, len(x))[:, np.newaxis]  # all in one line
    p = rng.dirichlet(np.full(len(x), rng.choice([0.05, 0.3, 1.0, 5.0])))
    guess, least = point_estimate(p, x), least_distance(p, x)
    assert (1 - ACCURACY) * least - 1e-9 <= guess.least_error <= least * (1 + 1e-9) + 1e-12
    np.testing.assert_allclose(guess.mean, p @ x, rtol=1e-12)
    assert guess.mean_error == pytest.approx(p @ np.linalg.norm(x - p @ x, axis=1), rel=1e-12)
    assert guess.spread == pytest.approx(np.sqrt(p @ ((x - p @ x) ** 2).sum(axis=1)), rel=1e-12)
    assert guess.certainty == min(p.max(), 1.0)


def test_whoever_takes_the_mean_for_the_best_guess_overstates_the_error():
    p, x = np.array([0.9, 0.1]), np.array([[0.0, 0.0], [10.0, 0.0]])
    guess = point_estimate(p, x)
    assert guess.mean_error == pytest.approx(1.8)
    assert guess.least_error == pytest.approx(1.0), "staying with the likelier place is right nine times out of ten"


def test_of_many_states_those_that_hardly_count_are_left_out_on_the_safe_side():
    rng = np.random.default_rng(5)
    y, x = np.divmod(np.arange(10_000), 100)
    places = np.stack([x, y], axis=1) / 4.0
    p = np.exp(-(np.linalg.norm(places - [7.1, 9.3], axis=1) ** 2)) * rng.gamma(0.5, size=len(places))
    p /= p.sum()
    guess = point_estimate(p, places)
    best = minimize(lambda q: p @ np.linalg.norm(places - q, axis=1), p @ places).fun
    assert (1 - ACCURACY) * best <= guess.least_error <= best * (1 + 1e-9)
    assert guess.mean_error == pytest.approx(p @ np.linalg.norm(places - p @ places, axis=1), rel=1e-12)


def test_who_knows_the_state_errs_by_nothing():
    guess = point_estimate(np.array([0.0, 1.0, 0.0]), np.array([[0.0, 0], [3, 4], [7, 7]]))
    assert guess == ((3.0, 4.0), 0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("seed", range(4))
def test_of_cells_the_figures_are_those_of_places_anywhere_in_them(seed):
    """40,000 places drawn from a belief over cells, seed as given; 4 standard errors (alpha 6e-5 for each figure)."""
    rng, cell = np.random.default_rng(seed), 0.5
    p = rng.dirichlet(np.full(30, 0.2)) if seed else np.eye(30)[4]
    centres = cell * rng.permutation(np.stack(np.divmod(np.arange(36), 6), axis=1))[:30].astype(float)
    guess, as_points = point_estimate(p, centres, cell), point_estimate(p, centres)
    there = centres[rng.choice(30, 40_000, p=p)] + rng.uniform(-cell / 2, cell / 2, (40_000, 2))
    away = np.linalg.norm(there - guess.mean, axis=1)
    margin = 4 * away.std() / 200
    assert away.mean() - margin <= guess.mean_error <= 1.07 * away.mean() + margin, "the root of a mean square"
    assert abs(np.mean(away**2) - guess.spread**2) <= 4 * (away**2).std() / 200
    best = min(np.linalg.norm(there - q, axis=1).mean() for q in [*centres, guess.mean])
    assert guess.least_error <= best + margin
    if not seed:
        assert guess.least_error == pytest.approx(best, abs=margin), "of one cell it is the distance from its centre"
        assert as_points.mean_error == as_points.least_error == 0.0, (
            "without the cell an open place seems known exactly"
        )


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_of_many_beliefs_each_gives_the_errors_that_it_gives_alone(dimension):
    rng = np.random.default_rng(dimension)
    rows, points = rng.dirichlet(np.full(40, 0.3), 8), rng.normal(size=(40, dimension))
    spread, error = expected_errors(rows, points)
    squares = [row @ ((points - row @ points) ** 2).sum(axis=1) for row in rows]
    np.testing.assert_allclose(spread, np.sqrt(squares), rtol=1e-12)
    np.testing.assert_array_equal(error, [point_estimate(row, points).least_error for row in rows])


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_both_forms_agree_to_the_last_bit_for_releases_are_made_anew_from_them(dimension):
    rng = np.random.default_rng(dimension)
    for size in (1, 2, 7, 300):
        columns = np.round(rng.normal(size=(dimension, size)), 1)
        masses = rng.dirichlet(np.full(size, 0.3))
        for at in (columns[:, 0].copy(), rng.normal(size=dimension)):  # on a state, and beside all
            found = []
            for form in forms_of(module._sums_about):
                force = np.full(dimension, np.nan)
                found.append((*form(masses, columns, at, force), *force.tolist()))
            assert all(one == found[0] for one in found)
