"""Exact sampling of discrete K-norm noise: an edge of a sail, and counts along it.

The non-zero lattice points lie along the edges of sails (`dphmm.mechanisms.lattice_normalizer`), each with a unique
representation ``± ((1 + a) start + k step + b end)``. The weight ``exp(-decay ‖z‖)`` is a product of one factor for the
edge and one each for the counts a, k and b. Therefore a sample consists of independent samples: the origin or an edge
with a sign, by the exact sums of their weights; a and b, geometric counts with the rates ``decay ‖start‖`` and ``decay
‖end‖``; and k, a count with the rate ``decay ‖step‖``, which may be negative, truncated at the number of steps. Nothing
is rejected, for any decay, and each part has exactly its distribution: see `dphmm.mechanisms.inversion_sampling` for
many samples and `dphmm.mechanisms.exact_sampling` for one. (Weights below ``exp(-10**18)`` are treated as zero.)
"""

from __future__ import annotations

from bisect import bisect_right
from decimal import Decimal
from fractions import Fraction
from functools import cache, cached_property
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import IntArray
from dphmm.mechanisms.exact_sampling import RandomBits, sample_geometric, sample_truncated_geometric
from dphmm.mechanisms.inversion_sampling import CutOff, Geometric, Thresholds, build_choice_thresholds
from dphmm.mechanisms.lattice_normalizer import LatticeSum
from dphmm.random import RandomSource

# In units of ``2**-64``: the error of weights in doubles is a thousandth of this share of their sum.
_WEIGHT_ERROR = 2**34

# Tables are faster from this number of samples per edge on.
_MIN_TABLE_DRAWS = 64

# Number of samples in a block, so that it stays in the cache.
_DRAW_BLOCK = 1 << 17


class LatticeNoise:
    """Samples of lattice points with probability exactly proportional to ``exp(-decay ‖z‖)``.

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
        self._weights = weights
        self._decay = decay
        self.dimension = basis.shape[1]
        self._basis: list[list[int]] = basis.tolist()
        # Data of an edge are computed on request: a single sample needs one of many edges.
        self._rates = cache(self._list_rates)
        self._axes = cache(self._list_axes)
        self._geometric = cache(Geometric)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the data of edges, which are computed again on request.
        basis = np.array(self._basis, dtype=object).reshape(-1, self.dimension)
        return LatticeNoise, (self._weights, self._decay, basis)

    def draw(self, count: int, source: RandomSource) -> IntArray:
        """Sample independently, ``(count, d)``."""
        if not self._weights.rank:
            return np.zeros((count, self.dimension), dtype=np.int64)
        result = np.empty((count, self.dimension), dtype=np.int64)
        if count < _MIN_TABLE_DRAWS * len(self._weights.edges):
            bits = RandomBits(source)
            for number in range(count):
                result[number] = self._draw_singly(bits)
        else:
            for start in range(0, count, _DRAW_BLOCK):
                self._fill(result[start : start + _DRAW_BLOCK], source)
        return result

    def _draw_singly(self, bits: RandomBits) -> list[int]:
        place = self._sample_signed_edge(bits)
        if place == 2 * len(self._weights.edges):
            return [0] * self.dimension
        which, sign = divmod(place, 2)
        # The unique representation is ± ((1 + a) start + k step + b end): see the module.
        (first, slope, last), count = self._rates(which)
        a = 1 + sample_geometric(first[0], first[1], bits)
        k = sample_truncated_geometric(slope[0], slope[1], count, bits)
        b = sample_geometric(last[0], last[1], bits) if last[0] else 0
        if sign:
            a = -a
            k = -k
            b = -b
        return [a * along + k * step + b * across for along, step, across in self._axes(which)]

    def _sample_signed_edge(self, bits: RandomBits) -> int:
        """Return twice the index of an edge plus its sign bit.

        The origin has twice the number of edges as its index.

        Doubles decide for all words except those within `_WEIGHT_ERROR` of a sum of weights, whatever their rounding.
        The remaining words are decided with as many decimals as necessary.
        """
        # A word has 62 bits.
        word = bits.sample_word() << 2 | bits.sample_word() & 3
        low = bisect_right(self._rough, word - _WEIGHT_ERROR)
        if low == bisect_right(self._rough, word + _WEIGHT_ERROR):
            return low
        return self._exact.resolve_sample(word, 64, bits.source)

    def _list_axes(self, which: int) -> list[list[int]]:
        """Return the coordinates of an edge's start, step and end, axis by axis."""
        edge = self._weights.edges[which]
        points = edge.start, edge.step, edge.end
        if self._basis == [[1, 0], [0, 1]]:
            # Separate variable names: under tracing, CPython 3.13.0 confuses them with those in the sum below.
            return [[vector[k] for vector in points] for k in range(2)]
        return [
            [sum(part * row[axis] for part, row in zip(point, self._basis, strict=False)) for point in points]
            for axis in range(self.dimension)
        ]

    @cached_property
    def _rough(self) -> list[float]:
        """Cumulative sums of the first weights in units of ``2**-64`` of the total, as doubles."""
        decay = float(self._decay)
        shares = np.exp(self._weights.log_masses(decay) - self._weights.log_total(decay)) * 2.0**64
        return list(shares.repeat(2).cumsum().tolist())

    @cached_property
    def _exact(self) -> Thresholds:
        def list_weights(digits: int) -> list[Decimal]:
            masses = self._weights.masses(self._decay, digits)
            return [mass for mass in masses for _ in range(2)] + [Decimal(1)]

        return build_choice_thresholds(list_weights, 2 * len(self._weights.edges) + 1)

    def _list_rates(self, which: int) -> tuple[list[tuple[int, int]], int]:
        """Return the rates of an edge's counts a, k and b in lowest terms, and the bound on k.

        The rate of b is 0 if there is no end.
        """
        edge = self._weights.edges[which]
        num = self._decay.numerator
        den = self._decay.denominator * edge.unit
        tops = num * edge.first, num * edge.slope, num * edge.last * (self._weights.rank - 1)
        return [(top // gcd(top, den), den // gcd(top, den)) for top in tops], edge.count

    def _fill(self, out: IntArray, source: RandomSource) -> None:
        """Fill an array ``(n, d)`` with independent samples, by tables."""
        edges = len(self._weights.edges)
        places = self._exact.draw(len(out), source)
        # Sort by index, so that each edge's counts are sampled together; numpy sorts 16-bit integers by radix.
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
