"""Membership in a convex hull by Equation (6), the nearest convex combination of vertices.

The program is solved with CVXOPT. It is ``min ½|Vᵀw - v|²`` over ``w >= 0, sum w = 1``. In the paper ``V`` contains
all differences, here only the vertices among them. It uses no half-space.

Programs of many vectors are solved together, as one program with a block for each. With the vertices minus the vector
as the rows of ``U``, a block's objective is ``½|Uᵀw|²``, which avoids cancellation. An interior point method stops at a
distance of about 1e-7 of the body. Therefore its weights are only a guess; membership is decided by a certificate,
which is checked in floating point regardless of the solver:

* *inside*: weights with the vector as their combination, up to the tolerance;
* *outside*: a direction in which every vertex is farther than the vector, by more than the tolerance.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import import_library
from dphmm.tolerances import RELATIVE_TOLERANCE

# Number of weights in a program: fewer spend the time in Python, more exceed the processor's cache.
_MAX_VARIABLES = 20_000

# Absolute gap for each vector, and iterations. The second pass is for vectors that the first leaves undecided. Points
# exactly on the boundary are not solved to the smaller gap: their programs are degenerate, and steps then get worse.
# Points a millionth to a billionth inside need it.
_PASSES = ((1e-12, 25), (1e-18, 40))

# Weights above these shares of the largest mark the face on which the nearest point is searched.
_FACE_SHARES = (1e-2, 1e-4, 1e-6)

# Steps towards weights inside the body, each of which takes 50 µs.
_NUM_CORRECTIONS = 20

# Attempts at a certificate after each iteration for a single vector: its own weights, and those on its main face.
# Most vectors have one after a third of the iterations. Among many vectors the attempts would take more time than
# they save, as an iteration takes little more for many vectors than for one.
_NUM_EARLY_ATTEMPTS = 2

# Added to squared distances, of a body of size one: a vertex may be the vector itself.
_MIN_SQUARE = 1e-6

# The sum over the vertices of weight times dual at the start: with 0.1 there are a seventh more iterations, with
# 0.001 as many.
_FIRST_PRODUCT = 0.01

_OPTIONS = {"show_progress": False, "reltol": 1e-10, "feastol": 1e-9}


class _Decided(Exception):
    """Ends the iterations once there is a certificate."""


def is_in_convex_hull(vertices: FloatArray, vectors: FloatArray) -> BoolArray:
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
        Vectors on the boundary are inside. The tolerance is `dphmm.tolerances.RELATIVE_TOLERANCE` times the largest
        coordinate of the vector or a vertex, as a Euclidean distance from the hull.
    """
    result: BoolArray = np.zeros(len(vectors), dtype=np.bool_)
    several = max(1, _MAX_VARIABLES // len(vertices))
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


def _decide_by_certificate(
    apart: FloatArray, weights: FloatArray, attempts: int = 1 + len(_FACE_SHARES) + _NUM_CORRECTIONS
) -> bool | None:
    """Decide by a certificate derived from guessed weights ``(h,)``. None if there is none.

    Parameters
    ----------
    apart
        ``(h, d)``: the vertices less the vector, of a size of about one.
    weights
        ``(h,)``: the guess.
    attempts
        Number of attempts: the guess itself, the faces of its main weights, and then corrections.
    """
    guess = weights = weights / weights.sum()
    equations = np.concatenate([apart, np.ones((len(apart), 1))], axis=1)
    for attempt in range(attempts):
        if 0 < attempt <= len(_FACE_SHARES):
            guess = _improve_on_face(equations, weights, _FACE_SHARES[attempt - 1])
        elif attempt:
            guess = weights = _take_scaling_step(equations, weights)
        nearest = guess @ apart
        distance = float(np.linalg.norm(nearest))
        if distance <= RELATIVE_TOLERANCE:
            return True
        # All vertices lie beyond the plane through the nearest point, at right angles to the way to it.
        if float((apart @ nearest).min()) > RELATIVE_TOLERANCE * distance:
            return False
    return None


def _improve_on_face(equations: FloatArray, weights: FloatArray, share: float) -> FloatArray:
    """Improve weights on the vertices with most of the weight, by least squares.

    The result is a convex combination.

    The correction is the shortest one relative to the weights, so that small weights change least.
    """
    face = weights > share * weights.max()
    scaled = equations[face] * weights[face, None]
    wanted = np.append(np.zeros(equations.shape[1] - 1), 1.0) - weights[face] @ equations[face]
    improved = np.zeros(len(weights))
    improved[face] = weights[face] * (1.0 + np.linalg.lstsq(scaled.T, wanted, rcond=None)[0])
    improved = np.maximum(improved, 0.0)
    return np.asarray(improved / improved.sum() if improved.any() else weights)


def _take_scaling_step(equations: FloatArray, weights: FloatArray) -> FloatArray:
    """Take an affine scaling step towards weights of the vector. All weights stay positive."""
    wanted = np.append(np.zeros(equations.shape[1] - 1), 1.0) - weights @ equations
    change = np.linalg.lstsq((equations * weights[:, None]).T, wanted, rcond=None)[0]
    return np.asarray(weights * (1.0 + change * min(1.0, 0.9 / max(float(-change.min()), 1e-300))))


def _solve(apart: FloatArray, gap: float, iterations: int) -> FloatArray:
    """Minimise ``½|Uᵀw|²`` over ``w >= 0, sum w = 1`` for each block ``U`` with CVXOPT.

    Parameters
    ----------
    apart
        ``(k, h, d)``: the blocks.
    gap
        The absolute duality gap for each block.
    iterations
        The maximum number of iterations.

    Returns
    -------
    FloatArray
        ``(k, h)``: the best weights of all iterations for each block. CVXOPT returns those of the last one, which may
        be worse if some blocks are degenerate.
    """
    cvxopt = import_library("cvxopt", None)
    matrix, solvers = cvxopt.matrix, cvxopt.solvers

    blocks, height, dimension = apart.shape
    size = blocks * height
    transposed = apart.transpose(0, 2, 1)
    with_sums = np.concatenate([apart, np.ones((blocks, height, 1))], axis=2)
    identity = np.zeros((blocks, dimension, dimension + 1))
    identity[:, range(dimension), range(dimension)] = 1.0

    def as_array(values: Any, *shape: int) -> npt.NDArray[Any]:
        """View a matrix of CVXOPT as an array. Writing to it changes the matrix."""
        return np.ndarray(shape, buffer=memoryview(values))

    best: FloatArray = np.full((blocks, height), 1.0 / height)
    reached: FloatArray = np.full(blocks, np.inf)

    def apply_objective(x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        # CVXOPT evaluates the objective's gradient at each iterate.
        weights = as_array(x, blocks, height)
        nearest = (transposed @ weights[..., None])[..., 0]
        with np.errstate(all="ignore"):
            distances = np.linalg.norm(nearest, axis=1) / weights.sum(axis=1)
        better = (distances < reached) & (weights.min(axis=1) >= 0.0)
        best[better] = weights[better]
        reached[better] = distances[better]
        is_usable = blocks == 1 and weights.min() > 0.0
        if is_usable and _decide_by_certificate(apart[0], weights[0], _NUM_EARLY_ATTEMPTS) is not None:
            best[:] = weights
            raise _Decided
        result = as_array(y, blocks, height)
        result *= beta
        result += alpha * (apart @ nearest[..., None])[..., 0]

    def apply_bounds(x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0, trans: str = "N") -> None:  # noqa: ARG001 - the matrix is symmetric
        result = as_array(y, size)
        result *= beta
        result -= alpha * as_array(x, size)

    def apply_sums(x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0, trans: str = "N") -> None:
        if trans == "N":
            result = as_array(y, blocks)
            change = as_array(x, blocks, height).sum(axis=1)
        else:
            result = as_array(y, blocks, height)
            change = as_array(x, blocks)[:, None]
        result *= beta
        result += alpha * change

    def build_kkt_solver(scaling: Any) -> Any:
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
            right = as_array(x, blocks, height)
            total = as_array(y, blocks)
            slack = as_array(z, blocks, height)
            scaled = diagonal * right - slack / diagonal
            along = (scaled[:, None] @ basis)[:, 0] - total[:, None] * last
            change = scaled - (basis @ along[:, :, None])[..., 0]
            slack[:] = -(change + slack / diagonal)
            right[:] = diagonal * change
            total[:] = (last * along).sum(axis=1)

        return solve

    zeros = matrix(0.0, (size, 1))
    options = _OPTIONS | {"abstol": gap * blocks, "maxiters": iterations}
    ones = matrix(1.0, (blocks, 1))
    # Weights by the inverse squares of distances are near the solution, in which far vertices have none. Duals with
    # equal products lie on the central path, so that the first steps are long.
    start = 1.0 / ((apart**2).sum(axis=2) + _MIN_SQUARE)
    start /= start.sum(axis=1, keepdims=True)
    weights_0 = matrix(start.ravel())
    duals_0 = matrix((_FIRST_PRODUCT / height / start).ravel())
    initial = {"x": weights_0, "s": weights_0, "y": matrix(0.0, (blocks, 1)), "z": duals_0}
    with suppress(_Decided):
        solvers.qp(
            apply_objective,
            zeros,
            apply_bounds,
            zeros,
            apply_sums,
            ones,
            kktsolver=build_kkt_solver,
            options=options,
            initvals=initial,
        )
    return best
