"""The curve ``log (1 + q(e^α − 1)) / (1 + d(e^α − 1))`` of one point (d, q), in forms that never overflow or cancel.

With ``e = e^α − 1``: the loss is ``log1p(gap·e / (1 + d·e))``, and what is left of α, the *slack* ``α − loss``, is
``log1p(e·(rest + d(1 + e)) / (1 + q·e))``; from `_LARGE` on, where e nears the largest float, logarithms are added
instead. The slack grows strictly from 0, so that the supremum of leakage under a constant budget ε, which is where the
slack is ε, is unique where it exists.
"""

from __future__ import annotations

import math

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.leakage.excess import Vertex

_LARGE = 300.0
_EPS = float(np.finfo(np.float64).eps)


def loss_at(alpha: FloatArray, q: FloatArray, d: FloatArray, rest: FloatArray, gap: FloatArray) -> FloatArray:
    """The loss, elementwise, for α from 0 to the largest float."""
    e = np.expm1(np.minimum(alpha, _LARGE))
    small = np.log1p(gap * e / (1 + d * e))
    with np.errstate(divide="ignore"):
        above = np.logaddexp(np.log(q), np.log(rest) - alpha)
        below = np.logaddexp(np.log(d), np.log1p(-d) - alpha)
    loss = np.where(alpha <= _LARGE, small, above - below)
    loss = np.where(gap == 0, 0.0, np.clip(loss, 0.0, alpha))
    return np.asarray(np.where((d == 0) & (rest == 0), alpha, loss), dtype=np.float64)


def slack_at(alpha: FloatArray, q: FloatArray, d: FloatArray, rest: FloatArray, gap: FloatArray) -> FloatArray:
    """``α − loss``, elementwise, with full relative precision also where the loss is nearly α."""
    e = np.expm1(np.minimum(alpha, _LARGE))
    small = np.log1p(e * ((rest + d * (1 + e)) / (1 + q * e)))
    return np.asarray(
        np.where(alpha <= _LARGE, small, alpha - loss_at(alpha, q, d, rest, gap)),
        dtype=np.float64,
    )


def growth(vertex: Vertex, alpha: float) -> float:
    """``e^loss − 1``, by which points are compared; finite while the loss is below 700."""
    if vertex.gap == 0:
        return 0.0
    if alpha <= _LARGE:
        e = math.expm1(alpha)
        return vertex.gap * e / (1 + vertex.d * e)
    if vertex.d == 0:
        return math.exp(min(alpha + math.log(vertex.q), 700.0))
    return vertex.gap / (math.exp(-alpha) + vertex.d)


def threshold(vertex: Vertex, alpha: float) -> float:
    """The excess, at slope ``1 + growth``, that another point must pass for a larger loss: ``growth/(e^α − 1)``."""
    if alpha <= _LARGE:
        return vertex.gap / (1 + vertex.d * math.expm1(alpha))
    w = math.exp(-alpha)
    return vertex.gap if vertex.d == 0 else vertex.gap * (w / (w + vertex.d))


def margins(vertex: Vertex, alpha: float) -> tuple[float, float]:
    """A step in slope, and in threshold, that keeps rounding of the point's own excess below the threshold.

    An excess is rounded by the size of q, however small its value; where the threshold and q are far apart, a margin
    of that size on the threshold would hide other points. Asking who beats a slope larger by a share
    ``8 eps·q / (w + q)`` with ``w = 1/(e^α − 1)`` has no such cost: it changes the loss by less than 2e-15, and less
    in proportion at small α.
    """
    e = math.expm1(min(alpha, _LARGE))
    share = 8 * _EPS * vertex.q * e / (1 + vertex.q * e)
    return share * (1 + growth(vertex, alpha)), share * (threshold(vertex, alpha) + 1 / e)


def meeting(left: Vertex, right: Vertex) -> float:
    """The α at which the curve of ``right`` (smaller d) overtakes that of ``left``; 0 where it is above from the start.

    Two curves meet once: at ``e = (gap_l − gap_r) / (q_r·d_l − q_l·d_r)`` (Theorem 10 of the TPL paper rests on it).
    """
    above = max(left.gap - right.gap, 0.0)
    if above == 0:
        return 0.0
    below = right.q - left.q * (right.d / left.d) if left.d > 0 else 0.0
    if below <= 0:
        return math.inf
    exponent = math.log(above) - math.log(below) - math.log(left.d)
    return math.log1p(math.exp(exponent)) if exponent < _LARGE else exponent


def supremum_at(epsilon: float, q: float, d: float, rest: float) -> float:
    """Where the slack of one curve is ε: Theorem 11 of the TPL paper, infinite where there is no such place.

    The root of ``d·u² + ((rest + d)·t − q)·u − t = 0`` with ``t = 1/(e^ε − 1)`` and ``u = t·(e^α − 1)``, taken in the
    form that does not cancel. Erratum: with d = 0 the theorem allows ε = log(1/q), where the supremum is infinite (its
    own proof needs ε < log(1/q)); and Equation 39 of the proof has the wrong sign before its middle term.
    """
    log_t = -math.log(math.expm1(epsilon)) if epsilon <= _LARGE else -epsilon
    t = math.exp(log_t) if epsilon > _LARGE else 1 / math.expm1(epsilon)
    half = ((rest + d) * t - q) / 2
    root = math.hypot(half, math.sqrt(d) * math.sqrt(t))
    if d == 0 and half <= 4 * _EPS * q:  # at the limit itself rounding must not make it finite
        return math.inf
    u = t / (half + root) if half > 0 else (root - half) / d
    alpha = math.log(u) - log_t  # but for the one that is added to e^α − 1
    return math.log1p(u / t) if alpha < _LARGE else alpha
