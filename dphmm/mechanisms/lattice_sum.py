"""The normaliser of a discrete K-norm distribution, to double or to any wanted precision, and its mean square."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from math import exp, expm1, log, log1p
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.compilation import often
from dphmm.mechanisms import loops
from dphmm.mechanisms.decimals import decimal_context, decimal_power, whole_digits
from dphmm.mechanisms.sails import SailEdge

_LINE = SailEdge((1, 0), (0, 0), 1, 1, 0, 1)
"""What stands for the positive whole numbers where the lattice has one dimension; its ``end`` is not used."""


class LatticeSum:
    """``sum of exp(-decay ‖z‖)`` over the lattice ``Z^r``, for the norm of a symmetric lattice polytope, ``r <= 2``.

    Parameters
    ----------
    rank
        The dimension ``r``: 0 for the origin alone, 1 for ``‖z‖ = |z|`` on the integers, 2 for a polygon.
    rows
        `dphmm.mechanisms.sails.rows_of_half_sails` of the polygon where ``r = 2``, otherwise none.
    basis
        ``(r, d)`` integers: what the lattice's points are combinations of; left out, the axes.
    """

    def __init__(self, rank: int, rows: npt.NDArray[Any], basis: npt.NDArray[np.object_] | None = None) -> None:
        self.rank, self._rows = rank, rows
        self._basis = np.eye(rank, dtype=object) if basis is None else basis
        self.count = 1 if rank == 1 else len(rows)
        """How many edges there are."""
        self._known: tuple[float, FloatArray, tuple[float, float]] | None = None

    def edge(self, which: int) -> SailEdge:
        """One of the edges, in whole numbers."""
        if self.rank == 1:
            return _LINE
        x, y, dx, dy, *rest = self._rows[which].tolist()
        return SailEdge((x, y), (dx, dy), *rest)

    @property
    def edges(self) -> list[SailEdge]:
        """All of them; none where the lattice has one dimension."""
        return [self.edge(which) for which in range(len(self._rows))]

    def log_masses(self, decay: float) -> FloatArray:
        """The logarithms of the sums over one of each pair ``z, -z`` of the half-open cones of the edges."""
        return self._sums(decay)[1]

    def log_total(self, decay: float) -> float:
        """The logarithm of the sum, with an error of a few units in the last place of the sum's largest terms."""
        return self._sums(decay)[2][0]

    def mean_square(self, decay: float) -> float:
        """``E|y|²`` of ``y = z basis`` under probabilities of ``z`` proportional to ``exp(-decay ‖z‖)``."""
        return self._sums(decay)[2][1]

    def _sums(self, decay: float) -> tuple[float, FloatArray, tuple[float, float]]:
        """All three; those of the last decay are kept: the draw, the density and the error of a release need them."""
        known = self._known
        if known is None or known[0] != decay:
            masses = np.empty(self.count)
            if self.rank == 1:
                found = self._sums_on_a_line(decay, masses)
            elif self._rows.dtype == object:
                found = _sums_over_edges.plain(self._rows, self._corners, decay, masses)
            else:
                found = _sums_over_edges(self._rows, self._corners, decay, masses)
            masses.setflags(write=False)
            known = self._known = (decay, masses, found)
        return known

    def _sums_on_a_line(self, decay: float, masses: FloatArray) -> tuple[float, float]:
        beside = -expm1(-decay)
        masses[0] = -decay - (log(beside) if decay < 1.0 else log1p(-exp(-decay)))
        line = self._basis[0].astype(np.float64)
        return float(np.logaddexp(0.0, log(2.0) + masses[0])), 2.0 * exp(-decay) / beside**2 * float(line @ line)

    def masses(self, decay: Fraction, digits: int) -> list[Decimal]:
        """The sums of which `log_masses` are the logarithms, with relative errors below ``10**-digits``."""
        with localcontext(self._context(decay, digits)):
            if self.rank == 1:
                q = decimal_power(-decay)
                return [q / (1 - q)]
            return [edge.mass(decay) for edge in self.edges]

    def total(self, decay: Fraction, digits: int) -> Decimal:
        """The sum with a relative error below ``10**-digits``."""
        with localcontext(self._context(decay, digits)):
            return 1 + 2 * sum(self.masses(decay, digits + 2), Decimal(0))

    def _context(self, decay: Fraction, digits: int) -> Context:
        """Enough working digits for ``1 - exp(-x)`` at the least ``x``, ``exp(x)`` at the largest, and the sum."""
        exponents = [decay]
        for edge in self.edges:
            norms = (edge.first, edge.last, edge.slope, edge.count * edge.slope)
            exponents += [decay * abs(x) / edge.unit for x in norms if x]
        guard = whole_digits(max(exponents)) + 2 * whole_digits(1 / min(exponents)) + len(str(len(exponents)))
        return decimal_context(digits + 10 + guard)

    @cached_property
    def _corners(self) -> FloatArray:
        """Start, step and end of each edge, ``(e, 3, d)``; by integers: in a skew basis doubles would cancel."""
        rows, points = self._rows, np.empty((len(self._rows), 3, 2), dtype=self._rows.dtype)
        points[:, 0], points[:, 1] = rows[:, :2], rows[:, 2:4]
        points[:, 2] = rows[:, :2] + rows[:, 4:5] * rows[:, 2:4]
        if not self.rank or self._basis.tolist() == [[1, 0], [0, 1]]:
            return points.astype(np.float64)
        return np.asarray((points.astype(object) @ self._basis).astype(np.float64))


@often(loops.sums_over_edges)
def _sums_over_edges(edges: IntArray, corners: FloatArray, decay: float, masses: FloatArray) -> tuple[float, float]:
    """The same loop: in Python's own numbers it takes less time than arrays of a few take."""
    found = masses.tolist()
    sums = loops.sums_over_edges(edges.tolist(), corners.tolist(), decay, found)
    masses[:] = found
    return sums
