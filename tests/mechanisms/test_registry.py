"""The catalogue of mechanisms and their common protocol."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dphmm import (
    KNormMechanism,
    LaplaceMechanism,
    LatticeKNormMechanism,
    PlanarIsotropicMechanism,
    PlanarLaplaceMechanism,
    SensitivityHull,
)
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.noise_tables import TableMechanism, compute_min_error_table
from dphmm.mechanisms.registry import BODY_BY_MECHANISM, EXACT_COLUMN, MECHANISMS, PLANAR_MECHANISMS, TABLE_MECHANISMS

EPSILON = 0.8
# Differences across the edges of a graph. The body of every mechanism contains them.
EDGES = np.array([[3, 0], [1, 2], [0, 1]])

HULL = SensitivityHull(EDGES)
# The places of a table. `EDGES` connects the first four with the first.
PLACES = np.array([[0, 0], [3, 0], [1, 2], [0, 1], [3, 4], [5, 6]], dtype=float)
JOINED = np.array([(0, 1), (0, 2), (0, 3), (2, 4), (4, 5)])
FIRST = np.array([1.0, 0, 0, 0, 0, 0])
BEST = compute_min_error_table(PLACES, JOINED, np.exp(EPSILON) * (1 - 1e-9), np.ones(6))[0]
EVERY: dict[str, Mechanism] = {
    "lattice": LatticeKNormMechanism(HULL, EPSILON),
    "k-norm": KNormMechanism(HULL, EPSILON),
    "laplace": LaplaceMechanism(3.0, EPSILON, 2),
    "planar-isotropic": PlanarIsotropicMechanism(HULL, EPSILON),
    "planar-laplace": PlanarLaplaceMechanism(EPSILON, 3.0),
    "optimal": TableMechanism(PLACES, JOINED, EPSILON, BEST, FIRST),
    "graph-exponential": TableMechanism.graph_exponential(PLACES, JOINED, EPSILON, FIRST),
}


def test_catalogue_is_complete():
    assert set(EVERY) == set(MECHANISMS) == set(BODY_BY_MECHANISM)
    assert set(MECHANISMS) > EXACT_COLUMN | PLANAR_MECHANISMS | TABLE_MECHANISMS


@pytest.mark.parametrize("name", MECHANISMS)
def test_shapes_match_protocol(name):
    mechanism = EVERY[name]
    assert float(mechanism.epsilon) == EPSILON
    assert mechanism.dimension == 2
    assert mechanism.sample([1, 2], rng=0).shape == (2,)
    assert mechanism.sample([1, 2], rng=0, size=5).shape == (5, 2)
    assert mechanism.sample([[1, 2], [3, 4], [5, 6]], rng=0).shape == (3, 2)
    assert mechanism.sample([[1, 2], [3, 4], [5, 6]], rng=0, size=4).shape == (4, 3, 2)
    assert mechanism.sample([1, 2], rng=0, size=0).shape == (0, 2)
    assert mechanism.log_density([1, 2], [1, 2]).shape == ()
    assert mechanism.log_density([1, 2], [[1, 2], [3, 4], [5, 6]]).shape == (3,)
    assert mechanism.privacy_loss([[1, 2], [3, 4]], [1, 2]).shape == (2,)


@pytest.mark.parametrize("name", MECHANISMS)
def test_seed_is_reproducible_and_input_is_unchanged(name):
    true = np.array([[1, 2], [3, 4]])
    first, again = (EVERY[name].sample(true, rng=11) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert true.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("name", MECHANISMS)
def test_privacy_loss_is_at_most_epsilon_and_bounds_log_ratios(name):
    mechanism = EVERY[name]
    releases = mechanism.sample([0, 0], rng=5, size=2000)
    for edge in EDGES:
        loss = mechanism.privacy_loss([0, 0], edge)
        assert loss <= EPSILON * (1 + 1e-12)
        ratios = mechanism.log_density(releases, [0, 0]) - mechanism.log_density(releases, edge)
        assert np.abs(ratios).max() <= loss + 1e-12
        if name in TABLE_MECHANISMS:  # some output attains it, not every one
            continue
        attained = mechanism.log_density([0, 0], [0, 0]) - mechanism.log_density([0, 0], edge)
        np.testing.assert_allclose(attained, loss, rtol=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
def test_squared_error_matches_draws(name):
    """Within five standard errors of the mean of 40,000 draws, seed 1.

    Alpha is below 1e-6 for each mechanism.
    """
    mechanism = EVERY[name]
    squares = (mechanism.sample([0, 0], rng=1, size=40_000).astype(float) ** 2).sum(axis=1)
    assert abs(squares.mean() - mechanism.squared_error) < 5 * squares.std() / math.sqrt(len(squares))


@pytest.mark.parametrize("name", MECHANISMS)
def test_values_of_other_dimension_raise(name):
    from dphmm.errors import CoordinateError

    with pytest.raises(CoordinateError, match="shape"):
        EVERY[name].sample([1, 2, 3])
