"""Membership in a convex hull by the quadratic program of Equation (6), solved with CVXOPT.

It needs no facets, works in any dimension, and shares no code with the half-space test: the independent check of it.
"""

from __future__ import annotations

import numpy as np

from dphmm.arrays import BoolArray, FloatArray

DISTANCE_RESOLUTION = 1e-6
"""Distances from the hull below this fraction of its size count as none: the solver minimises a squared distance to
about ``1e-13`` and cannot tell smaller ones apart."""


def in_convex_hull(points: FloatArray, vectors: FloatArray) -> BoolArray:
    """Whether each row of ``vectors`` ``(n, d)`` is a convex combination of the rows of ``points`` ``(k, d)``."""
    return np.array([_distance(points, v) <= DISTANCE_RESOLUTION for v in vectors], dtype=np.bool_)


def _distance(points: FloatArray, vector: FloatArray) -> float:
    """The distance of a vector from the convex hull, in units of the largest coordinate of either."""
    from cvxopt import matrix, solvers

    size = max(float(np.abs(points).max(initial=0.0)), float(np.abs(vector).max()))
    if size == 0.0:
        return 0.0
    if not len(points):
        return 1.0
    delta = points.T / size
    target = vector / size
    count = delta.shape[1]
    options = {"show_progress": False, "abstol": 1e-14, "reltol": 1e-14, "feastol": 1e-12, "maxiters": 200}
    solution = solvers.qp(
        matrix(delta.T @ delta + 1e-15 * np.eye(count)),
        matrix(-delta.T @ target),
        matrix(-np.eye(count)),
        matrix(np.zeros(count)),
        matrix(np.ones((1, count))),
        matrix(np.ones(1)),
        options=options,
    )
    weights = np.maximum(np.array(solution["x"]).ravel(), 0.0)
    weights /= weights.sum()
    return float(np.linalg.norm(delta @ weights - target))
