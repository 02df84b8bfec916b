"""Noise by a table: which of some places is released from each of them, in whole numbers."""

from __future__ import annotations

from fractions import Fraction
from math import log
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, Rng, as_floats, as_integers, as_points, check_budget, random_source
from dphmm.errors import CoordinateError, InvalidInputError, PolicyError
from dphmm.mechanisms.base import check_size
from dphmm.mechanisms.integer_table import BITS, TOTAL, integer_rows, ratio_below
from dphmm.mechanisms.joined import hops_between, is_clique
from dphmm.mechanisms.program import least_error_table

LARGEST_TABLE = 2048
"""How many places a table may have: it takes 32 MiB."""
LARGEST_PROGRAM = 400
"""For how many the program of the best one is solved, unless all of them are joined: it takes half a gigabyte."""


class TableMechanism:
    """Releases a place ``z`` from a place ``s`` with the probability ``k(z|s)`` of a table.

    The probabilities are whole numbers over ``2**62`` and a draw is one comparison of whole numbers, so that the law is
    the stated one as long as random bits are uniform. On every edge the ratio of the probabilities of every output is
    at most a fraction that is at most ``exp(epsilon)``; that is decided in whole numbers when the table is made.

    Made by `optimal` and `graph_exponential`.

    Parameters
    ----------
    points
        ``(n, d)`` different places; true values and outputs are among them, given by the same doubles.
    edges
        ``(m, 2)`` pairs of places.
    epsilon
        The budget of an edge.
    probabilities
        ``(n, n)``: row by true place. They are rounded to whole numbers that keep the promise; see `integer_rows`.
    prior
        ``(n,)``: how probable each place is, for `squared_error`.
    optimum
        What no table's squared error under the prior is below, where that is known.

    Raises
    ------
    PromiseError
        When no table near these probabilities keeps the promise.
    """

    def __init__(
        self,
        points: FloatArray,
        edges: IntArray,
        epsilon: float,
        probabilities: FloatArray,
        prior: FloatArray,
        optimum: float | None = None,
    ) -> None:
        self.epsilon = check_budget(epsilon)
        self.points, self.edges = points, edges
        self.dimension = points.shape[1]
        self.ratio = ratio_below(self.epsilon)
        """Two whole numbers whose quotient bounds every ratio on an edge; at most ``exp(epsilon)``."""
        self.weights, self.mixed = integer_rows(probabilities, edges, self.ratio)
        self.weights.setflags(write=False)
        apart = np.square(points[:, None, :] - points[None, :, :]).sum(axis=2)
        self.squared_error = float(prior / prior.sum() @ (self.weights / TOTAL * apart).sum(axis=1))
        """The expected squared distance of a release from the true place, under the prior."""
        self.optimum = optimum
        self._sums = np.cumsum(self.weights, axis=1)
        self._rows = {_key(point): row for row, point in enumerate(points)}

    @classmethod
    @checked
    def optimal(
        cls, f: npt.ArrayLike, edges: npt.ArrayLike, epsilon: float, prior: npt.ArrayLike | None = None
    ) -> TableMechanism:
        """The table with the least expected squared error under a prior: see `dphmm.mechanisms.program`.

        Parameters
        ----------
        f
            ``(n, d)`` measurements of states. States of equal measurements are one place.
        edges
            ``(m, 2)`` pairs of states. They connect all of them.
        epsilon
            The budget of an edge; a double.
        prior
            ``(n,)``, not negative and not all zero; left out, all alike.

        Raises
        ------
        PolicyError
            When the edges do not connect all states, or there are more than `LARGEST_TABLE`, or than `LARGEST_PROGRAM`
            that are not all joined with each other.
        InvalidInputError
            For measurements, a budget or a prior that are none.
        PromiseError
            When the program could not be solved.

        Examples
        --------
        >>> table = TableMechanism.optimal([[0.0], [1.0], [2.0]], [[0, 1], [1, 2]], 1.0)
        >>> bool((table.privacy_loss([[0.0], [1.0]], [[1.0], [2.0]]) <= 1.0).all())
        True
        """
        points, pairs, weights = _places(f, edges, prior)
        over, under = ratio_below(check_budget(epsilon))
        if len(points) == 1:
            return cls(points, pairs, epsilon, np.ones((1, 1)), weights, 0.0)
        if len(points) > LARGEST_PROGRAM and not is_clique(len(points), pairs):
            raise PolicyError(
                f"the program of {len(points):,} places would not fit; {LARGEST_PROGRAM} is the most, unless all are "
                "joined"
            )
        table, optimum = least_error_table(points, pairs, over / under, weights)
        return cls(points, pairs, epsilon, table, weights, optimum)

    @classmethod
    @checked
    def graph_exponential(
        cls, f: npt.ArrayLike, edges: npt.ArrayLike, epsilon: float, prior: npt.ArrayLike | None = None
    ) -> TableMechanism:
        """The table ``k(z|s)`` in proportion to ``exp(-epsilon hops(s, z) / 2)``; parameters and errors of `optimal`.

        On an edge the hops differ by one at most, and so do numerators and normalisers by ``exp(epsilon / 2)`` each.
        """
        points, pairs, weights = _places(f, edges, prior)
        rows = np.exp(-check_budget(epsilon) / 2 * hops_between(len(points), pairs))
        return cls(points, pairs, epsilon, rows / rows.sum(axis=1, keepdims=True), weights)

    @property
    def loss(self) -> float | None:
        """By what share of its squared error the table may miss the best one's; None where that is not known."""
        if self.optimum is None:
            return None
        return max(0.0, 1.0 - self.optimum / self.squared_error) if self.squared_error > 0 else 0.0

    def probability(self, z: npt.ArrayLike, x: npt.ArrayLike) -> Fraction:
        """The exact probability of a release ``z``, ``(d,)``, for a true place ``x``, ``(d,)``."""
        row, column = self._row(x), self._rows.get(_key(np.asarray(z, dtype=np.float64)))
        return Fraction(0) if column is None else Fraction(int(self.weights[row, column]), TOTAL)

    def squared_error_at(self, x: npt.ArrayLike) -> float:
        """The expected squared distance of a release of one true place ``(d,)`` from it."""
        row = self._row(x)
        apart = np.square(self.points - self.points[row]).sum(axis=1)
        return float(self.weights[row] / TOTAL @ apart)

    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: int | None = None) -> FloatArray:
        """Releases of true places: the shape of ``x``, after an axis of length ``size`` where that is given.

        Parameters are those of `dphmm.mechanisms.base.NormMechanism.sample`.
        """
        true, source = as_floats(x, "values", CoordinateError), random_source(rng)
        check_size(size)
        rows = self._found(true)
        count = 1 if size is None else size
        words = np.frombuffer(source.bytes(8 * count * rows.size), dtype=np.uint64) >> np.uint64(64 - BITS)
        numbers = words.astype(np.int64).reshape(count, rows.size)
        drawn = np.empty(numbers.shape, dtype=np.int64)
        for row in np.unique(rows):
            here = np.flatnonzero(rows.ravel() == row)
            drawn[:, here] = np.searchsorted(self._sums[row], numbers[:, here], side="right")
        found = self.points[drawn].reshape(count, *true.shape)
        return found[0] if size is None else found

    def log_density(self, z: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
        """The log-probability of releases ``z`` for true places ``x``, broadcast; minus infinity off the places."""
        released, true = as_floats(z, "values", CoordinateError), as_floats(x, "values", CoordinateError)
        rows, columns = np.broadcast_arrays(self._found(true), self._found(released, must=False))
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights[rows, columns]) - log(TOTAL)
        return np.asarray(np.where(columns < 0, -np.inf, logs))

    def privacy_loss(self, x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """The greatest log ratio of the probabilities of an output for true places ``x`` and ``y``, either way."""
        first, second = np.broadcast_arrays(
            *(self._found(as_floats(values, "values", CoordinateError)) for values in (x, y))
        )
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights)
        return np.asarray(np.abs(logs[first] - logs[second]).max(axis=-1))

    def gauge(self, loss: float, rounding: float = 0.0) -> NoReturn:
        """A table has no gauge: how far it tells two places apart is no function of their difference."""
        raise InvalidInputError(f"a table has no gauge (loss {loss}, rounding {rounding}); ask for its privacy_loss")

    def _row(self, x: npt.ArrayLike) -> int:
        return int(self._found(np.asarray(x, dtype=np.float64)))

    def _found(self, values: FloatArray, must: bool = True) -> IntArray:
        """The numbers of places ``(..., d)``; -1, or refused, where there is none."""
        if values.ndim == 0 or values.shape[-1] != self.dimension:
            raise CoordinateError(f"values have shape {values.shape}; the last axis must be {self.dimension}")
        flat = values.reshape(-1, self.dimension)
        found = np.array([self._rows.get(_key(value), -1) for value in flat], dtype=np.int64)
        if must and (found < 0).any():
            missing = flat[int(np.argmin(found))].tolist()
            raise CoordinateError(f"place {missing} is not in the table; give one of its {len(self.points)} places")
        return found.reshape(values.shape[:-1])


def _key(point: FloatArray) -> bytes:
    return (point + 0.0).tobytes()  # minus zero is zero


def _places(
    f: npt.ArrayLike, edges: npt.ArrayLike, prior: npt.ArrayLike | None
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Different places, the edges between them, and the prior mass of each."""
    measured = as_points(f, "measurements") + 0.0
    pairs = as_integers(edges, "edges", PolicyError).reshape(-1, 2)
    if len(pairs) and not 0 <= pairs.min() <= pairs.max() < len(measured):
        raise PolicyError(f"an edge joins a state beyond the {len(measured)}; states are 0 to {len(measured) - 1}")
    weights = np.ones(len(measured)) if prior is None else as_floats(prior, "prior")
    if weights.shape != (len(measured),) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise InvalidInputError(f"prior is no distribution over {len(measured)} states; give numbers from 0, not all 0")
    points, place = np.unique(measured, axis=0, return_inverse=True)
    place = place.ravel()
    if len(points) > LARGEST_TABLE:
        raise PolicyError(f"a table of {len(points):,} places would not fit; {LARGEST_TABLE:,} is the most")
    joined = np.unique(np.sort(place[pairs], axis=1), axis=0)
    joined = joined[joined[:, 0] != joined[:, 1]]
    if len(points) > 1:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        graph = csr_array((np.ones(len(joined)), (joined[:, 0], joined[:, 1])), shape=(len(points),) * 2)
        parts = int(connected_components(graph, directed=False)[0])
        if parts > 1:
            raise PolicyError(f"the edges leave {parts} parts; make one table for each connected component")
    masses = np.bincount(place, weights / weights.max(), len(points))
    return points, joined, np.asarray(masses, dtype=np.float64)
