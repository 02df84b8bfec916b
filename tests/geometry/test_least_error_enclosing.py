"""The best enclosing polygon, against all subsets of points."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings

from dphmm.geometry.least_error import compute_polygon_error, find_min_error_polygon
from tests.geometry.test_least_error import compute_corners, compute_error, vectors
from tests.sizes import choose_count


def find_smallest_error(body, points):
    """Return the smallest error over all sets of points, with a new hull for each."""
    sets = itertools.chain.from_iterable(itertools.combinations(range(len(points)), k) for k in range(len(points) + 1))
    return min(compute_error(body, points[list(chosen)]) for chosen in sets)


@settings(max_examples=choose_count(50, 20))
@given(vectors(2, 3), vectors(2, 6))
def test_best_enclosing_polygon_is_best_over_all_subsets(inner, points):
    body = compute_corners(inner)
    assume(len(body) > 2)
    spent = []
    level, chosen, complete = find_min_error_polygon(body, points.astype(float), np.inf, spent.append)
    best = find_smallest_error(body, points.astype(float))
    assert level == pytest.approx(best, rel=1e-9)
    assert compute_error(body, points[chosen]) == pytest.approx(best, rel=1e-9)
    assert complete
    assert sum(spent) > 0


def test_unreachable_level_is_returned_unchanged():
    rng = np.random.default_rng(1)
    body, points = compute_corners(np.array([[9, 1], [9, -2]])), rng.integers(-9, 9, (7, 2)).astype(float)
    best = find_smallest_error(body, points)
    assert best < 0.99 * compute_polygon_error(body)
    level, chosen, _ = find_min_error_polygon(body, points, best * (1 - 1e-6), lambda _: None)
    assert (level, chosen.tolist()) == (best * (1 - 1e-6), [])
    assert find_min_error_polygon(body, points, best * (1 + 1e-6), lambda _: None)[0] == pytest.approx(best)


def test_too_many_points_give_incomplete_result(monkeypatch):
    monkeypatch.setattr("dphmm.geometry.least_error._MAX_GRAPH_POINTS", 2)
    rng = np.random.default_rng(0)
    body, points = compute_corners(np.array([[9, 1], [-2, 2]])), rng.integers(-9, 9, (40, 2)).astype(float)
    level, chosen, complete = find_min_error_polygon(body, points, np.inf, lambda _: None)
    assert not complete
    assert level == pytest.approx(compute_error(body, points[chosen]))
