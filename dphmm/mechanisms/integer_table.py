"""Tables of probabilities as whole numbers, of which every edge is decided without rounding.

A row is the law of a release from one state: whole numbers that sum to ``2**62``, so that a random word of 62 digits
draws from it exactly. The promise on an edge ``jl`` is ``k(z|j) <= exp(epsilon) k(z|l)`` for every output, and the
other way round. It is kept with a rational number at most ``exp(epsilon)``, so that comparing whole numbers decides it.
"""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray, check_budget
from dphmm.errors import PromiseError
from dphmm.mechanisms.decimals import decimal_context

BITS = 62
TOTAL = 1 << BITS
"""What the weights of a row sum to."""
_LIMB = 31
_MOST = (1 << _LIMB) - 1
_BLOCK = 1 << 20
_MOST_MIXED = 0.01
LEAST_ROOM = 1e-6
"""Where the ratio is nearer to one, budgets below a millionth, an output tells nothing at all: all rows are alike."""


def ratio_below(epsilon: float) -> tuple[int, int]:
    """A fraction at most ``exp(epsilon)``, below it by a share of about ``2**-31``; both parts are below ``2**31``.

    For budgets above 21 it is ``2**31 - 1``: a stronger promise than asked for, with next to no noise.

    Examples
    --------
    >>> from fractions import Fraction
    >>> Fraction(*ratio_below(1.0)) < Fraction("2.718281828459045")
    True
    >>> ratio_below(50.0), ratio_below(1e-12)
    ((2147483647, 1), (1, 1))
    """
    exact = Decimal(check_budget(epsilon))  # a double as it is, not as it is written
    if exact > 22:
        return _MOST, 1
    with localcontext(decimal_context(60)):
        power = exact.exp()
        under = int(Decimal(_MOST) / power)
        over = int(power * under * (1 - Decimal(10) ** -50))
    return (over, under) if over > under else (1, 1)


def broken(weights: IntArray, edges: IntArray, ratio: tuple[int, int]) -> BoolArray:
    """Which edges some output tells apart by more than a ratio, ``(m,)``, decided in integers.

    Parameters
    ----------
    weights
        ``(n, outputs)``, from 0 to ``2**62``.
    edges
        ``(m, 2)`` pairs of rows.
    ratio
        Two whole numbers from 1 to below ``2**31``; the ratio is their quotient.
    """
    over, under = ratio
    found = np.zeros(len(edges), dtype=np.bool_)
    step = max(1, _BLOCK // max(1, weights.shape[1]))
    high, low = weights >> _LIMB, weights & _MOST
    tops = _times(high, low, under)
    limits = _times(high, low, over)
    for start in range(0, len(edges), step):
        first, second = edges[start : start + step].T
        for one, other in ((first, second), (second, first)):
            found[start : start + step] |= _above(tops, one, limits, other).any(axis=1)
    return found


def _times(high: IntArray, low: IntArray, factor: int) -> tuple[IntArray, IntArray]:
    """Products as a part in units of ``2**31``, and what is left: neither leaves 64 bits."""
    product = low * factor
    return high * factor + (product >> _LIMB), product & _MOST


def _above(
    tops: tuple[IntArray, IntArray], one: IntArray, limits: tuple[IntArray, IntArray], other: IntArray
) -> BoolArray:
    high, limit = tops[0][one], limits[0][other]
    return np.asarray((high > limit) | ((high == limit) & (tops[1][one] > limits[1][other])))


def integer_rows(probabilities: FloatArray, edges: IntArray, ratio: tuple[int, int]) -> tuple[IntArray, float]:
    """Probabilities near the edges' promise as whole numbers that keep it.

    Rounding breaks an edge that was tight. So as little as needed of the even table, in which no output tells anything
    and which leaves every edge room, is mixed in before rounding, until all edges hold.

    Parameters
    ----------
    probabilities
        ``(n, outputs)``, not negative; rows sum to about one.
    edges, ratio
        As for `broken`.

    Returns
    -------
    weights, mixed
        ``(n, outputs)`` whole numbers that sum to ``2**62`` in every row, and the share of the even table in them.

    Raises
    ------
    PromiseError
        When the probabilities are nowhere near the promise.
    """
    rows = np.maximum(probabilities, 0.0)
    rows = rows / rows.sum(axis=1, keepdims=True)
    outputs = rows.shape[1]
    room = ratio[0] / ratio[1] - 1
    if room < LEAST_ROOM:  # equal rows keep every promise
        rows = np.broadcast_to(rows.mean(axis=0), rows.shape)
    mixed = outputs * 2.0**-50 / max(room, LEAST_ROOM)
    while mixed < _MOST_MIXED:
        weights = _whole((1 - mixed) * rows + mixed / outputs)
        if not broken(weights, edges, ratio).any():
            return weights, mixed
        mixed *= 4
    raise PromiseError("no table near the one that was worked out keeps the promise on every edge; nothing was drawn")


def _whole(rows: FloatArray) -> IntArray:
    """Whole numbers in proportion to rows of probabilities; what rounding leaves goes to the largest of each row."""
    weights = np.floor(rows * (TOTAL >> 1)).astype(np.int64)  # half, so that no double reaches beyond 64 bits
    weights *= 2
    largest = rows.argmax(axis=1)
    weights[np.arange(len(rows)), largest] += TOTAL - weights.sum(axis=1)
    return weights
