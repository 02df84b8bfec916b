"""Membership in a convex hull by Equation (6): the nearest convex combination of the vertices, solved by CVXOPT.

The program of the paper is ``min ½|Vᵀw - v|²`` over ``w >= 0, sum w = 1``, where the paper has all differences and
this module the vertices among them. It uses no half-space.

Programs of many vectors are solved together, as one program with a block for each. With the rows of ``U`` the vertices
less the vector, a block's objective is ``½|Uᵀw|²``, which loses no digits to cancellation. An interior point method
stops at a distance of about 1e-7 of the body, so that its weights are only a guess; membership is decided by a
certificate, which is checked in floating point whatever the solver did:

* *inside*: weights whose combination is the vector, up to the tolerance;
* *outside*: a direction in which every vertex is farther than the vector, by more than the tolerance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray
from dphmm.errors import need

_VARIABLES = 20_000
"""Weights that are solved for at a time. Fewer take more time each in Python, more leave the cache."""

_PASSES = ((1e-12, 25), (1e-18, 40))
"""Absolute gap for each vector, and iterations. The second pass is for vectors that the first leaves undecided.

Points exactly on the boundary are not solved to the smaller gap: their programs are degenerate, and steps then get
worse. Points a millionth to a billionth inside need it.
"""

_MAIN_WEIGHTS = (1e-2, 1e-4, 1e-6)
"""Weights above these shares of the largest mark the face that the nearest point is looked for on."""

_CORRECTIONS = 20
"""Steps towards weights inside the body, each of which takes 50 µs."""

_OPTIONS = {"show_progress": False, "reltol": 1e-10, "feastol": 1e-9}


def in_convex_hull(vertices: FloatArray, vectors: FloatArray) -> BoolArray:
    """Decide whether vectors are convex combinations of vertices.

    Parameters
    ----------
    vertices
        ``(h, d)``, at least one.
    vectors
        ``(n, d)``.

    Returns
    -------
    ndarray of bool, shape (n,)
        Vectors on the boundary are inside. The tolerance is `dphmm.arrays.RELATIVE_TOLERANCE` times the largest
        coordinate of the vector or a vertex, as a Euclidean distance from the hull.
    """
    result: BoolArray = np.zeros(len(vectors), dtype=np.bool_)
    several = max(1, _VARIABLES // len(vertices))
    for start in range(0, len(vectors), several):
        result[start : start + several] = _decide(vertices, vectors[start : start + several])
    return result


def _decide(vertices: FloatArray, vectors: FloatArray) -> BoolArray:
    size = np.maximum(np.abs(vertices).max(), np.abs(vectors).max(axis=1, initial=0.0))
    inside: BoolArray = size == 0.0
    waiting = np.flatnonzero(~inside)
    for gap, iterations in _PASSES:
        if not len(waiting):
            break
        apart = (vertices - vectors[waiting, None]) / size[waiting, None, None]
        weights = _solve(apart, gap, iterations)
        verdicts = [_decide_by_certificate(*block) for block in zip(apart, weights, strict=True)]
        inside[waiting] = [verdict is True for verdict in verdicts]
        waiting = waiting[[verdict is None for verdict in verdicts]]
    # A vector without either certificate is not known to be a combination of the vertices.
    return inside


def _decide_by_certificate(apart: FloatArray, weights: FloatArray) -> bool | None:
    """Decide by a certificate that a guess of the weights ``(h,)`` leads to; None if it leads to neither.

    Parameters
    ----------
    apart
        ``(h, d)``: the vertices less the vector, of a size of about one.
    """
    guess = weights = weights / weights.sum()
    equations = np.concatenate([apart, np.ones((len(apart), 1))], axis=1)
    for attempt in range(1 + len(_MAIN_WEIGHTS) + _CORRECTIONS):
        if 0 < attempt <= len(_MAIN_WEIGHTS):
            guess = _on_face(equations, weights, _MAIN_WEIGHTS[attempt - 1])
        elif attempt:
            guess = weights = _corrected(equations, weights)
        nearest = guess @ apart
        distance = float(np.linalg.norm(nearest))
        if distance <= RELATIVE_TOLERANCE:
            return True
        # All vertices lie beyond the plane through the nearest point, at right angles to the way to it.
        if float((apart @ nearest).min()) > RELATIVE_TOLERANCE * distance:
            return False
    return None


def _on_face(equations: FloatArray, weights: FloatArray, share: float) -> FloatArray:
    """Improve weights on the vertices that carry most of them, by least squares; weights stay a convex combination.

    The correction is the shortest in units of the weights, so that small ones change least.
    """
    face = weights > share * weights.max()
    scaled = equations[face] * weights[face, None]
    wanted = np.append(np.zeros(equations.shape[1] - 1), 1.0) - weights[face] @ equations[face]
    improved = np.zeros(len(weights))
    improved[face] = weights[face] * (1.0 + np.linalg.lstsq(scaled.T, wanted, rcond=None)[0])
    improved = np.maximum(improved, 0.0)
    return np.asarray(improved / improved.sum() if improved.any() else weights)


def _corrected(equations: FloatArray, weights: FloatArray) -> FloatArray:
    """Take an affine scaling step towards weights whose combination is the vector; all stay positive."""
    wanted = np.append(np.zeros(equations.shape[1] - 1), 1.0) - weights @ equations
    change = np.linalg.lstsq((equations * weights[:, None]).T, wanted, rcond=None)[0]
    return np.asarray(weights * (1.0 + change * min(1.0, 0.9 / max(float(-change.min()), 1e-300))))


def _solve(apart: FloatArray, gap: float, iterations: int) -> FloatArray:
    """Minimise ``½|Uᵀw|²`` over ``w >= 0, sum w = 1`` for each block ``U``, with ``cvxopt.solvers.qp``.

    Parameters
    ----------
    apart
        ``(k, h, d)``: the blocks.
    gap
        The absolute duality gap for each block.
    iterations
        The most iterations.

    Returns
    -------
    FloatArray
        ``(k, h)``: for each block the best weights of all iterations. CVXOPT returns those of the last one, which may
        be worse where some blocks are degenerate.
    """
    cvxopt = need("cvxopt", None)
    matrix, solvers = cvxopt.matrix, cvxopt.solvers

    blocks, height, dimension = apart.shape
    count = blocks * height
    transposed = apart.transpose(0, 2, 1)
    with_sums = np.concatenate([apart, np.ones((blocks, height, 1))], axis=2)
    identity = np.zeros((blocks, dimension, dimension + 1))
    identity[:, range(dimension), range(dimension)] = 1.0

    def as_array(values: Any, *shape: int) -> npt.NDArray[Any]:
        """View a matrix of CVXOPT as an array; writing to it changes the matrix."""
        return np.ndarray(shape, buffer=memoryview(values))

    best: FloatArray = np.full((blocks, height), 1.0 / height)
    reached: FloatArray = np.full(blocks, np.inf)

    def objective(x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        # CVXOPT evaluates the objective's gradient at each iterate.
        weights = as_array(x, blocks, height)
        nearest = (transposed @ weights[..., None])[..., 0]
        with np.errstate(all="ignore"):
            distances = np.linalg.norm(nearest, axis=1) / weights.sum(axis=1)
        better = (distances < reached) & (weights.min(axis=1) >= 0.0)
        best[better], reached[better] = weights[better], distances[better]
        result = as_array(y, blocks, height)
        result *= beta
        result += alpha * (apart @ nearest[..., None])[..., 0]

    def bounds(x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0, trans: str = "N") -> None:  # noqa: ARG001
        result = as_array(y, count)
        result *= beta
        result -= alpha * as_array(x, count)

    def sums(x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0, trans: str = "N") -> None:
        if trans == "N":
            result, change = as_array(y, blocks), as_array(x, blocks, height).sum(axis=1)
        else:
            result, change = as_array(y, blocks, height), as_array(x, blocks)[:, None]
        result *= beta
        result += alpha * change

    def kkt(scaling: Any) -> Any:
        # (U Uᵀ + D⁻²) x + 1 y = b with sum x = c. In x = D t it is a least squares problem with the matrix of D U and
        # D 1 over the identity. Its QR factors keep the digits of the small residual Uᵀx that normal equations lose:
        # entries of D differ by sixteen orders of magnitude near the solution.
        diagonal = as_array(scaling["d"], blocks, height).copy()
        factor, triangle = np.linalg.qr(np.concatenate([with_sums * diagonal[:, :, None], identity], axis=1))
        basis = factor[:, :height]
        try:
            last = np.linalg.inv(triangle)[:, -1]
        except np.linalg.LinAlgError:
            raise ArithmeticError("singular KKT matrix") from None  # CVXOPT then ends with the weights so far

        def solve(x: Any, y: Any, z: Any) -> None:
            right, total, slack = as_array(x, blocks, height), as_array(y, blocks), as_array(z, blocks, height)
            scaled = diagonal * right - slack / diagonal
            along = (scaled[:, None] @ basis)[:, 0] - total[:, None] * last
            change = scaled - (basis @ along[:, :, None])[..., 0]
            slack[:] = -(change + slack / diagonal)
            right[:] = diagonal * change
            total[:] = (last * along).sum(axis=1)

        return solve

    zeros = matrix(0.0, (count, 1))
    options = _OPTIONS | {"abstol": gap * blocks, "maxiters": iterations}
    solvers.qp(objective, zeros, bounds, zeros, sums, matrix(1.0, (blocks, 1)), kktsolver=kkt, options=options)
    return best
