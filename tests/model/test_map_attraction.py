"""Tests of the attraction of a map, and of the adversary who has the map."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

from dphmm.errors import InvalidInputError
from dphmm.model import MarkovModel, TimeClasses, fit_shrunk, region_prior
from dphmm.model.map_attraction import MIN_RELATIVE_ATTRACTION, compute_map_attraction, with_map
from dphmm.model.outside_states import create_outside_states
from dphmm.space.grid import Grid

TOWN = Grid.over((45.0, 7.0, 45.04, 7.05), 0.5)


def test_attraction_is_content_on_land_with_a_floor():
    land = [1.0, 0.5, 0.0, 1.0]
    streets = [3.0, 3.0, 9.0, 0.0]
    on_land = [3.05, 3.05, 0.0, 0.05]
    mean = sum(on_land) / 4
    expected = [max(part / mean, MIN_RELATIVE_ATTRACTION) for part in on_land]
    assert compute_map_attraction(land, streets) == pytest.approx(expected, rel=1e-15)
    assert compute_map_attraction([0.0, 0.0]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("land", "content"),
    [([1.5], None), ([[1.0]], None), ([], None), ([1.0], [-1.0]), ([1.0], [np.nan]), ([1.0, 1.0], [1.0])],
)
def test_invalid_maps_are_refused(land, content):
    with pytest.raises(InvalidInputError, match="must be"):
        compute_map_attraction(land, content)


def test_region_prior_selects_targets_of_one_distance_in_proportion_to_attraction():
    attraction = np.random.default_rng(1).uniform(0.1, 3.0, TOWN.size)
    plain = region_prior(TOWN, 300)
    mapped = region_prior(TOWN, 300, attraction=attraction)
    assert ((plain.transition != 0) != (mapped.transition != 0)).nnz == 0
    assert mapped.initial == pytest.approx(attraction / attraction.sum(), rel=1e-12)
    row, old = (model.transition[[40]].toarray().ravel() for model in (mapped, plain))
    distance = np.round(np.linalg.norm(TOWN.points - TOWN.points[40], axis=1), 6)
    # The shares of the rings of distances are those without a map.
    for ring in np.unique(distance)[:6]:
        members = np.flatnonzero(distance == ring)
        share = attraction[members] / attraction[members].sum()
        assert row[members] / row[members].sum() == pytest.approx(share, rel=1e-9)
    assert row[40] == pytest.approx(old[40], rel=1e-12)


def test_attraction_of_ones_changes_no_bit():
    plain, mapped = (region_prior(TOWN, 300, attraction=attraction) for attraction in (None, np.ones(TOWN.size)))
    assert (plain.transition != mapped.transition).nnz == 0
    sequences = [[0, 1, 1, 2], [5, 6, 6]]
    plain, mapped = (fit_shrunk(sequences, TOWN, 300, attraction=part).model for part in (None, np.ones(TOWN.size)))
    assert (plain.transition != mapped.transition).nnz == 0
    assert plain.content_hash == mapped.content_hash


def test_learned_model_without_visits_has_initial_distribution_of_the_map():
    attraction = np.random.default_rng(2).uniform(0.1, 3.0, TOWN.size)
    model = fit_shrunk([[3, 3]], TOWN, 300, attraction=attraction).model
    others = np.arange(TOWN.size) != 3
    share = 0.3 * attraction / attraction.sum()
    assert model.initial[others] == pytest.approx(share[others], rel=1e-12)


def _compute_path_probability(initial, matrix, weights, path):
    """The law of a path of the adversary, from exact fractions and the definition alone."""
    mass = initial[path[0]] * weights[path[0]] / sum(p * w for p, w in zip(initial, weights, strict=True))
    for source, target in pairwise(path):
        row = matrix[source]
        if source == target:
            mass *= row[source]
        else:
            others = [state for state in range(len(row)) if state != source]
            total = sum(row[state] * weights[state] for state in others)
            mass *= (1 - row[source]) * row[target] * weights[target] / total
    return mass


def test_adversary_with_map_by_enumeration():
    """All 256 paths with exact rationals. A chain that weights stays too must differ."""
    part = Fraction(1, 20)
    matrix = [[14 * part, 2 * part, 3 * part, part], [4 * part, 10 * part, part, 5 * part]]
    matrix += [[2 * part, 2 * part, 15 * part, part], [5 * part, 5 * part, 5 * part, 5 * part]]
    initial = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 8)]
    weights = [Fraction(3, 2), Fraction(1), Fraction(1, 50), Fraction(2)]
    model = MarkovModel(np.array(matrix, dtype=float), np.array(initial, dtype=float))
    adversary = with_map(model, np.array(weights, dtype=float))
    dense = adversary.transition.toarray()
    total = Fraction(0)
    for path in product(range(4), repeat=4):
        exact = _compute_path_probability(initial, matrix, weights, path)
        total += exact
        computed = adversary.initial[path[0]] * np.prod([dense[move] for move in pairwise(path)])
        assert computed == pytest.approx(float(exact), rel=1e-12)
    assert total == 1
    broken = np.array(matrix, dtype=float) * np.array(weights, dtype=float)
    broken /= broken.sum(axis=1, keepdims=True)
    assert not np.allclose(broken, dense, atol=1e-3)


@pytest.mark.slow
def test_adversary_keeps_support_stays_and_moves_out_of_the_region():
    outside = create_outside_states(TOWN)
    size = len(outside.state_of_context)
    rng = np.random.default_rng(3)
    matrices = [rng.dirichlet(np.ones(size), size) for _ in range(24)]
    classes = TimeClasses.from_name("hour", 3600, "UTC")
    initial = rng.dirichlet(np.ones(TOWN.size), 24)
    model = MarkovModel(matrices, initial, TOWN, 3600.0, classes, outside)
    weights = rng.uniform(0.02, 3.0, TOWN.size)
    adversary = with_map(model, weights)
    for before, after in zip(model.transitions, adversary.transitions, strict=True):
        old, new = before.toarray(), after.toarray()
        assert np.diag(new) == pytest.approx(np.diag(old), rel=1e-12)
        assert new[:, TOWN.size :] == pytest.approx(old[:, TOWN.size :], rel=1e-12)
        assert ((old > 0) == (new > 0)).all()
    assert adversary.outside is model.outside
    with pytest.raises(InvalidInputError, match="positive numbers"):
        with_map(model, weights * 0)
