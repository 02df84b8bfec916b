"""Exact draws from a discrete K-norm distribution: an edge of a sail, and counts along it.

With the lattice's points other than the origin written along the edges of sails (`dphmm.mechanisms.lattice_sum`), each
in one way, as ``± ((1 + a) start + k step + b end)``, the weight ``exp(-decay ‖z‖)`` is a product of one factor for the
edge and one each for the counts a, k and b. So a draw is made of independent draws: of the origin or an edge with a
sign, by the exact sums of their weights; of a and b, geometric counts with the rates ``decay ‖start‖`` and ``decay
‖end‖``; and of k, a count with the rate ``decay ‖step‖``, which may be negative, cut off at the number of steps.
Nothing is rejected, whatever the decay, and each of these draws has exactly its distribution: see
`dphmm.mechanisms.inversion_sampling` for many at once, `dphmm.mechanisms.exact` for one. (Weights below
``exp(-10**18)`` count as none.)
"""

from __future__ import annotations

from bisect import bisect_right
from decimal import Decimal
from fractions import Fraction
from functools import cache, cached_property
from math import gcd

import numpy as np
import numpy.typing as npt

from dphmm.arrays import IntArray, RandomSource
from dphmm.mechanisms.exact import RandomBits, cut_off_exp, geometric_exp
from dphmm.mechanisms.inversion_sampling import CutOff, Geometric, Thresholds, choice
from dphmm.mechanisms.lattice_sum import LatticeSum

_DOUBT = 2**34
"""Of ``2**64``: the weights in doubles are good to a thousandth of this share of their sum."""

_MANY = 64
"""From this many draws for each edge on, tables pay."""

_BLOCK = 1 << 17
"""Draws that are made at a time."""


class LatticeNoise:
    """Draws of lattice points with probabilities exactly proportional to ``exp(-decay ‖z‖)``.

    Parameters
    ----------
    weights
        The sums over the edges of sails.
    decay
        Positive.
    basis
        ``(r, d)``: the lattice's basis, integers.
    """

    def __init__(self, weights: LatticeSum, decay: Fraction, basis: npt.NDArray[np.object_]) -> None:
        self._weights, self._decay, self.dimension = weights, decay, basis.shape[1]
        self._basis: list[list[int]] = basis.tolist()
        # What belongs to each edge is worked out when it is asked for: of many edges one draw needs one.
        self._rates, self._axes, self._geometric = cache(self._rates_of), cache(self._axes_of), cache(Geometric)

    def draw(self, count: int, source: RandomSource) -> IntArray:
        """Independent draws, ``(count, d)``."""
        if not self._weights.rank:
            return np.zeros((count, self.dimension), dtype=np.int64)
        found = np.empty((count, self.dimension), dtype=np.int64)
        if count < _MANY * len(self._weights.edges):
            bits = RandomBits(source)
            for number in range(count):
                found[number] = self._one(bits)
        else:
            for start in range(0, count, _BLOCK):
                self._fill(found[start : start + _BLOCK], source)
        return found

    def _one(self, bits: RandomBits) -> list[int]:
        place = self._place(bits)
        if place == 2 * len(self._weights.edges):
            return [0] * self.dimension
        which, sign = divmod(place, 2)
        (first, slope, last), count = self._rates(which)
        a = 1 + geometric_exp(first[0], first[1], bits)
        k = cut_off_exp(slope[0], slope[1], count, bits)
        b = geometric_exp(last[0], last[1], bits) if last[0] else 0
        if sign:
            a, k, b = -a, -k, -b
        return [a * along + k * step + b * across for along, step, across in self._axes(which)]

    def _place(self, bits: RandomBits) -> int:
        """Twice the number of an edge and, for the sign, 0 or 1; or twice the number of edges for the origin.

        Doubles settle all words but those within `_DOUBT` of a sum of weights, and how they round does not matter:
        what they leave open is settled by as many decimals as it takes.
        """
        word = bits.word() << 2 | bits.word() & 3
        low = bisect_right(self._rough, word - _DOUBT)
        if low == bisect_right(self._rough, word + _DOUBT):
            return low
        return self._exact.settled(word, 64, bits.source)

    def _axes_of(self, which: int) -> list[list[int]]:
        """The coordinates of an edge's start, step and end, axis by axis."""
        edge = self._weights.edges[which]
        points = edge.start, edge.step, edge.end
        if self._basis == [[1, 0], [0, 1]]:
            # Names of their own: where it is traced, CPython 3.13.0 takes them for those that the sum below holds.
            return [[one[k] for one in points] for k in range(2)]
        return [
            [sum(part * row[axis] for part, row in zip(point, self._basis, strict=False)) for point in points]
            for axis in range(self.dimension)
        ]

    @cached_property
    def _rough(self) -> list[float]:
        """The sums of the first weights in units of ``2**-64`` of them all, as doubles have them."""
        decay = float(self._decay)
        shares = np.exp(self._weights.log_masses(decay) - self._weights.log_total(decay)) * 2.0**64
        return list(shares.repeat(2).cumsum().tolist())

    @cached_property
    def _exact(self) -> Thresholds:
        def weights(digits: int) -> list[Decimal]:
            masses = self._weights.masses(self._decay, digits)
            return [mass for one in masses for mass in (one, one)] + [Decimal(1)]

        return choice(weights, 2 * len(self._weights.edges) + 1)

    def _rates_of(self, which: int) -> tuple[list[tuple[int, int]], int]:
        """For an edge the rates of the counts a, k and b in lowest terms, and what k stays below.

        The rate of b is 0 where there is no end.
        """
        edge = self._weights.edges[which]
        num, den = self._decay.numerator, self._decay.denominator * edge.unit
        tops = num * edge.first, num * edge.slope, num * edge.last * (self._weights.rank - 1)
        return [(top // gcd(top, den), den // gcd(top, den)) for top in tops], edge.count

    def _fill(self, out: IntArray, source: RandomSource) -> None:
        """Fills an array ``(n, d)`` with independent draws, by tables."""
        edges = len(self._weights.edges)
        places = self._exact.draw(len(out), source)
        order = np.argsort(places.astype(np.uint16) if edges < 2**15 else places, kind="stable")
        ends = [0, *np.cumsum(np.bincount(places, minlength=2 * edges)).tolist()]
        out[order[ends[2 * edges] :]] = 0
        for which in range(edges):
            start, middle, end = ends[2 * which : 2 * which + 3]
            if start == end:
                continue
            pairs, size = self._rates(which)
            first, slope, last = (Fraction(*pair) for pair in pairs)
            a = 1 + self._geometric(first).draw(end - start, source)
            k = CutOff(slope, size).draw(end - start, source) if size > 1 else 0
            b = self._geometric(last).draw(end - start, source) if last else 0
            points = np.empty((self.dimension, end - start), dtype=np.int64)
            for column, (along, step, across) in zip(points, self._axes(which), strict=True):
                np.multiply(a, along, out=column)
                column += k * step
                column += b * across
            points[:, middle - start :] *= -1
            out[order[start:end]] = points.T


def laplace_steps(decay: Fraction, count: int, source: RandomSource) -> IntArray:
    """Independent whole numbers ``x``, ``(count,)``, with probabilities exactly proportional to ``exp(-decay |x|)``.

    Those of `dphmm.mechanisms.exact.discrete_laplace`, many at once.
    """
    line = LatticeNoise(LatticeSum(1, ()), decay, np.ones((1, 1), dtype=object))
    return line.draw(count, source)[:, 0]
