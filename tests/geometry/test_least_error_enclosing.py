"""The best polygon around another, against every set of points tried in turn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings

from dphmm.geometry.least_error import best_enclosing, polygon_error
from tests.geometry.test_least_error import corners, error, vectors
from tests.sizes import fewer


def cheapest_subset(body, points):
    """The least error over all sets of points, each hull made anew."""
    sets = itertools.chain.from_iterable(itertools.combinations(range(len(points)), k) for k in range(len(points) + 1))
    return min(error(body, points[list(chosen)]) for chosen in sets)


@settings(max_examples=fewer(50, 20))
@given(vectors(2, 3), vectors(2, 6))
def test_best_enclosing_polygon_is_the_best_over_all_sets_of_points(inner, points):
    body = corners(inner)
    assume(len(body) > 2)
    spent = []
    level, chosen, complete = best_enclosing(body, points.astype(float), np.inf, spent.append)
    best = cheapest_subset(body, points.astype(float))
    assert level == pytest.approx(best, rel=1e-9)
    assert error(body, points[chosen]) == pytest.approx(best, rel=1e-9)
    assert complete
    assert sum(spent) > 0


def test_a_level_that_no_enclosing_polygon_beats_stays():
    rng = np.random.default_rng(1)
    body, points = corners(np.array([[9, 1], [9, -2]])), rng.integers(-9, 9, (7, 2)).astype(float)
    best = cheapest_subset(body, points)
    assert best < 0.99 * polygon_error(body)
    level, chosen, _ = best_enclosing(body, points, best * (1 - 1e-6), lambda _: None)
    assert (level, chosen.tolist()) == (best * (1 - 1e-6), [])
    assert best_enclosing(body, points, best * (1 + 1e-6), lambda _: None)[0] == pytest.approx(best)


def test_with_too_many_points_for_one_graph_nothing_is_proven(monkeypatch):
    monkeypatch.setattr("dphmm.geometry.least_error._MANY", 2)
    rng = np.random.default_rng(0)
    body, points = corners(np.array([[9, 1], [-2, 2]])), rng.integers(-9, 9, (40, 2)).astype(float)
    level, chosen, complete = best_enclosing(body, points, np.inf, lambda _: None)
    assert not complete
    assert level == pytest.approx(error(body, points[chosen]))
