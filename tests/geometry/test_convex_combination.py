"""Membership by Equation (6) with CVXOPT, against least squares and known norms."""

from __future__ import annotations

import cvxopt
import numpy as np
import pytest
from scipy.optimize import lsq_linear

from dphmm import PolicyGraph, SensitivityHull, degree_of_protection
from dphmm.geometry.convex_combination import is_in_convex_hull
from tests.running_example import F


def compute_distance(vertices: np.ndarray, vector: np.ndarray) -> float:
    """Compute the distance to the hull by bounded least squares.

    The unit is the largest coordinate.
    """
    size = max(np.abs(vertices).max(), np.abs(vector).max())
    apart = (vertices - vector).T / size
    whole = np.vstack([apart, np.ones(apart.shape[1])])
    weights = lsq_linear(whole, np.append(np.zeros(len(apart)), 1.0), (0, np.inf), method="bvls", tol=1e-14).x
    return float(np.linalg.norm(apart @ (weights / weights.sum())))


def sample_boundary(hull: SensitivityHull, rng: np.random.Generator, count: int) -> np.ndarray:
    cones = hull.cones[rng.integers(0, len(hull.cones), count)]
    weights = rng.dirichlet(np.full(cones.shape[1], rng.choice([0.05, 1.0])), count)
    return np.einsum("kr,krd->kd", weights, cones)


@pytest.mark.parametrize("seed", range(24))
def test_boundary_is_inside_and_relative_excess_of_1e_7_is_outside(seed):
    rng, dimension = np.random.default_rng(seed), 1 + seed % 4
    differences = (
        rng.integers(-9, 10, (4 + 3 * seed, dimension)) if seed % 3 else rng.normal(size=(9 + seed, dimension))
    )
    hull = SensitivityHull(differences)
    edge = sample_boundary(hull, rng, 30)
    for share in (1.0, 1 - 1e-9, 1 - 1e-8, 1 - 1e-7, 1 - 1e-4, 0.5, 0.0):
        assert hull.contains(edge * share, method="qp").all(), share
    for share in (1 + 1e-7, 1 + 1e-6, 1 + 1e-4, 2.0, 1e6):
        assert not hull.contains(edge * share, method="qp").any(), share
    assert hull.contains(hull.vertices, method="qp").all()


@pytest.mark.parametrize("seed", range(12))
def test_membership_matches_least_squares(seed):
    rng = np.random.default_rng(100 + seed)
    vertices = rng.normal(size=(3 + seed, 1 + seed % 3))  # not symmetric: only the quadratic program applies
    vectors = rng.normal(size=(40, vertices.shape[1]))
    expected = np.array([compute_distance(vertices, vector) for vector in vectors])
    decided = (expected < 1e-12) | (expected > 1e-7)
    assert decided.sum() > 30
    np.testing.assert_array_equal(is_in_convex_hull(vertices, vectors)[decided], (expected < 1e-12)[decided])


def test_vectors_off_flat_body_are_outside():
    segment = SensitivityHull([[3, 1]])
    assert segment.contains([[3, 1], [1.5, 0.5], [0, 0], [3, 1 + 1e-7], [6, 2]], method="qp").tolist() == [
        1,
        1,
        1,
        0,
        0,
    ]
    point = SensitivityHull(np.zeros((0, 2)))
    assert point.contains([[0, 0], [1e-9, 0]], method="qp").tolist() == [True, False]


def test_quadratic_program_uses_no_half_space(monkeypatch):
    hull = SensitivityHull([[2, 1], [0, 3]])

    def refuse(_: object) -> None:
        raise AssertionError("a half-space was asked for")

    monkeypatch.setattr(SensitivityHull, "norm_form", property(refuse))
    assert hull.contains([[2, 1], [1, 2], [2, 2]], method="qp").tolist() == [True, True, False]
    with pytest.raises(AssertionError, match="half-space"):
        hull.contains([[2, 1]])


def test_cvxopt_options_are_unchanged(monkeypatch, capsys):
    monkeypatch.setattr(cvxopt.solvers, "options", {"abstol": 0.5, "maxiters": 1})
    assert SensitivityHull([[2, 1], [0, 3]]).contains([1, 2], method="qp")
    assert cvxopt.solvers.options == {"abstol": 0.5, "maxiters": 1}
    assert capsys.readouterr().out == ""


def test_failed_solver_gives_no_false_member(monkeypatch):
    """A vector is inside only by weights that reach it. Here CVXOPT returns no weights."""
    monkeypatch.setattr(cvxopt.solvers, "qp", lambda *_, **__: {})
    square = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    inside = is_in_convex_hull(square, np.array([[0.2, 0.1], [3.0, 0.0], [1.0 + 1e-6, 0.0]]))
    assert not inside[1:].any()


def test_running_example_degrees_match_paper():
    policy = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
    assert degree_of_protection(policy, F, membership="qp").tolist() == [4, 6, 3, 5, 4, 4]
