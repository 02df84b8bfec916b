"""A model's cells cut into parts, and exact integrals of densities over them.

The model speaks of cells; channels act on places. A person who stays in a cell mostly stays at one place of it, so that
the same release again is no new evidence, and fresh noise about one place averages out. An adversary who took the place
as drawn anew at each step would be wrong about both. Here the place is hidden too: one of equal square parts of the
cell, even over them on arrival, kept while the person stays, but for three steps in a hundred, at which it is drawn
again.

A state is a cell, a true place a point in it. What an adversary who knows states alone needs of a channel that acts on
true places is its density with the place even within the cell, ``p(z | s) = ∫_cell p(z | x) dx / area``; this module
holds these integrals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import Operator, plain_masses
from dphmm.space.grid import Grid

PARTS = 5
"""The number of columns, and of rows, of parts that a cell is cut into."""

REDRAWN = 0.03
"""The share of the steps at which a person who stays in a cell is at another place of it, drawn anew."""

MOST_STATES = 2048
"""More states than this are refused: the passes work with dense matrices."""

_MOST_POWERS = 32
"""Matrices of at most this many numbers of steps are kept."""


class Mesh:
    """Square cells of one size in a plane, numbered so that the parts of a model's cell follow one another.

    Parameters
    ----------
    grid
        The model's cells.
    parts
        Into how many columns and rows of parts each is cut; 1 leaves them whole.

    Attributes
    ----------
    points
        ``(N parts², 2)``: the middles of the parts, kilometres.
    """

    def __init__(self, grid: Grid, parts: int) -> None:
        self.projection, self.cell_km = grid.projection, grid.cell_km / parts
        self.columns, self.rows = grid.columns * parts, grid.rows * parts
        inner = np.stack(np.meshgrid(range(parts), range(parts)), axis=-1).reshape(-1, 2)
        self.lattice: IntArray = (grid.lattice[:, None, :] * parts + inner).reshape(-1, 2)
        self.origin = grid.origin - self.cell_km * (parts - 1) / 2
        self.points: FloatArray = self.origin + self.cell_km * self.lattice

    def at(self, points: FloatArray) -> IntArray:
        """``(n,)``: which of all parts points of the plane ``(n, 2)`` lie in, -1 for none."""
        cells = np.floor((points - self.origin) / self.cell_km + 0.5).astype(np.int64)
        inside = np.asarray(((cells >= 0) & (cells < [self.columns, self.rows])).all(axis=1))
        column, row = np.where(inside[:, None], cells, 0).T
        return np.where(inside, self._numbers[column, row], -1)

    @cached_property
    def _numbers(self) -> IntArray:
        numbers = np.full((self.columns, self.rows), -1, dtype=np.int64)
        numbers[self.lattice[:, 0], self.lattice[:, 1]] = np.arange(len(self.lattice))
        return numbers

    def lines(self, axis: int) -> FloatArray:
        """The lines between columns (0) or rows (1), kilometres."""
        count = (self.columns, self.rows)[axis]
        return np.asarray(self.origin[axis] + self.cell_km * (np.arange(count + 1) - 0.5))

    def by_part(self, values: FloatArray) -> FloatArray:
        """``(T, N parts²)`` of values ``(T, columns, rows)``."""
        return np.asarray(values[:, self.lattice[:, 0], self.lattice[:, 1]])


class Moves:
    """How people move from part to part under a model.

    Parameters
    ----------
    model
        Without classes of time, over the cells of a grid.
    parts
        See `Mesh`.
    redrawn
        See `REDRAWN`.

    Raises
    ------
    ConfigurationError
        When the model is of another kind, or has more than `MOST_STATES` states.
    """

    @checked
    def __init__(self, model: MarkovModel, parts: int = PARTS, redrawn: float = REDRAWN) -> None:
        if model.time_classes is not None:
            raise ConfigurationError("the model has classes of time; an attack needs one without --by")
        if not isinstance(model.space, Grid):
            raise ConfigurationError("the model's states are named places; an attack needs the cells of a grid")
        if model.size > MOST_STATES:
            raise ConfigurationError(
                f"the model has {model.size:,} states and an attack takes at most {MOST_STATES:,}; learn one of a "
                "smaller region or with larger cells"
            )
        if not (1 <= parts <= 20 and 0 <= redrawn <= 1):
            raise ConfigurationError(f"parts are {parts}, redrawn {redrawn}; give 1 to 20 and a share from 0 to 1")
        self.model, self.grid, self.mesh = model, model.space, Mesh(model.space, parts)
        self.parts, self.redrawn = parts, redrawn
        self.initial: FloatArray = model.initial
        self._changes: dict[int, Change] = {}
        self._powers: dict[int, FloatArray] = {1: np.ascontiguousarray(model.moves_inside.toarray())}

    def matrix(self, steps: int) -> FloatArray:
        """``(N, N)``: the probabilities of going from each cell to each in `steps` steps.

        Parameters
        ----------
        steps
            At least 1.

        Returns
        -------
        FloatArray
            ``(N, N)``, row-stochastic.
        """
        if steps not in self._powers:
            if len(self._powers) > _MOST_POWERS:
                self._powers, self._changes = {1: self._powers[1]}, {}
            self._powers[steps] = np.linalg.matrix_power(self._powers[1], steps)
        return self._powers[steps]

    def kept(self, steps: int) -> FloatArray:
        """``(N,)``: the probability of being at one place of a cell throughout `steps` steps.

        Parameters
        ----------
        steps
            At least 1.

        Returns
        -------
        FloatArray
            ``(N,)``.
        """
        return np.asarray(((1.0 - self.redrawn) * self._powers[1].diagonal()) ** steps)

    def change(self, steps: int) -> Change:
        """How cells and their parts change in `steps` steps; leaving a place leads to any part of a cell.

        Parameters
        ----------
        steps
            At least 1.

        Returns
        -------
        Change
            Of cells and parts.
        """
        if steps not in self._changes:
            kept = self.kept(steps)
            cells = np.maximum(self.matrix(steps) - np.diag(kept), 0.0)
            self._changes[steps] = Change(kept[:, None], cells, *self._any_part)
        return self._changes[steps]

    @cached_property
    def beginning(self) -> Change:
        """That of a person of whom nothing is known."""
        return Change(np.zeros((1, 1)), np.tile(self.initial, (self.grid.size, 1)), *self._any_part)

    @property
    def _any_part(self) -> tuple[FloatArray, FloatArray]:
        parts = self.parts**2
        return np.ones((parts, 1)), np.full((1, parts), 1.0 / parts)


@dataclass(frozen=True, eq=False)
class Change(Operator):
    """How a cell and a second hidden variable, ``(N, Q)``, change together: nothing at all, or something.

    Parameters
    ----------
    stays
        ``(N, Q)``, or what has such a shape once repeated: the probability that nothing changes.
    cells
        ``(N, N)``: the probabilities of moves between cells.
    gather, spread
        ``(Q, r)`` and ``(r, Q)``: their product says how the other variable changes; it stays where both are left out.
    excess
        What the product of both holds of the probability that nothing changes, which is then not counted twice.
    """

    stays: FloatArray
    cells: FloatArray
    gather: FloatArray | None = None
    spread: FloatArray | None = None
    excess: FloatArray | float = 0.0

    def with_release(self, log_row: FloatArray, is_same: bool) -> Change:
        """The same where a release without randomness follows: while nothing changes, neither does the release.

        Parameters
        ----------
        log_row
            ``(N Q,)``: the log probability of the release, counted for arrivals, not twice for a person who stays.
        is_same
            Whether the release is the same as the one before.
        """
        row = log_row.reshape(len(self.cells), -1)
        stays = self.stays * np.exp(-np.where(row > -np.inf, row, np.inf)) if is_same else np.zeros((1, 1))
        return replace(self, stays=stays)

    def forward(self, logs: FloatArray) -> FloatArray:
        """See `Operator`."""
        masses = self._masses(logs)
        moved = self.cells.T @ (masses if self.gather is None else masses @ self.gather)
        return self._logs(logs, masses, moved if self.spread is None else moved @ self.spread)

    def backward(self, logs: FloatArray) -> FloatArray:
        """See `Operator`."""
        later = self._masses(logs)
        moved = self.cells @ (later if self.spread is None else later @ self.spread.T)
        return self._logs(logs, later, moved if self.gather is None else moved @ self.gather.T)

    def _masses(self, logs: FloatArray) -> FloatArray:
        """Masses ``(N, Q)`` of which the largest is one."""
        return plain_masses(logs - logs.max()).reshape(len(self.cells), -1)

    def _logs(self, given: FloatArray, unchanged: FloatArray, changed: FloatArray) -> FloatArray:
        masses = changed + (self.stays - self.excess) * unchanged
        return np.asarray(logs_of(np.maximum(masses, 0.0, out=masses).ravel()) + given.max())


def logs_of(shares: FloatArray) -> FloatArray:
    """The logarithms of shares, minus infinity of 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shares))


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_AT_ONCE = 1 << 22
_NOTHING = 1e-13
"""Parts of a unit disc below this are rounding."""


class Upright:
    """Square cells as rectangles of latitude and longitude.

    The plane's axes and the meridians are not quite parallel away from the plane's centre, so that a cell is a
    rectangle of degrees only nearly: each is taken upright through the middles of its four sides. At 35 km from the
    centre and 34° N the corners of a cell of 1 km lie 2 m off, and those of smaller cells less in proportion.

    Attributes
    ----------
    low, high
        ``(N, 2)``: latitude and longitude of the sides, degrees; longitudes from the projection's centre.
    """

    def __init__(self, mesh: Mesh) -> None:
        half = mesh.cell_km / 2
        self._centre = mesh.projection.longitude
        ends = [mesh.projection.to_latlon(mesh.points + step) for step in np.array([[0, -half], [0, half]])]
        sides = [mesh.projection.to_latlon(mesh.points + step) for step in np.array([[-half, 0], [half, 0]])]
        self.low, self.high = (
            np.column_stack([end[:, 0], self.along(side[:, 1])]) for end, side in zip(ends, sides, strict=True)
        )

    def along(self, longitude: FloatArray) -> FloatArray:
        """Longitudes as degrees from the projection's centre, where the date line is no edge."""
        return np.asarray((longitude - self._centre + 180.0) % 360.0 - 180.0)

    def shares(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """``(T, N)``: the share of each cell that lies in rectangles with corners ``(T, 2)``, as `low` and `high`."""
        found = np.ones((len(low), len(self.low)))
        for axis in (0, 1):
            lower = np.maximum(low[:, axis, None], self.low[:, axis])
            upper = np.minimum(high[:, axis, None], self.high[:, axis])
            found *= np.clip(upper - lower, 0.0, None) / (self.high[:, axis] - self.low[:, axis])
        return found

    def blurred_shares(self, axis: int, low: float, high: float, middles: FloatArray, width: FloatArray) -> FloatArray:
        """``(N, K)``: how probably a coordinate even in a cell plus an offset even in an interval is in a range.

        Parameters
        ----------
        axis
            0 for latitude, 1 for longitude.
        low, high
            The range, degrees.
        middles
            ``(N, K)`` or ``(1, K)``: the intervals' middles, degrees.
        width
            ``(N, 1)`` or ``(1, 1)``: their width, degrees.
        """
        start, end = self.low[:, axis, None], self.high[:, axis, None]
        first, last = middles - width / 2, middles + width / 2

        def below(most: float) -> FloatArray:
            """The area of ``x + o < most`` in the rectangle of both."""
            corners = ((start, first, 1), (end, first, -1), (start, last, -1), (end, last, 1))
            return np.asarray(sum(sign * np.maximum(most - x - o, 0.0) ** 2 / 2 for x, o, sign in corners))

        return np.clip((below(high) - below(low)) / ((end - start) * width), 0.0, 1.0)


def gaussian_logs(mesh: Mesh, released: FloatArray, sigma: float) -> FloatArray:
    """``(T, N)``: the log share of normal noise about points ``(T, 2)`` in each cell, over the cell's area.

    ``sigma`` is the standard deviation along each axis, kilometres, as the points are. In closed form, in logarithms:
    no cell becomes impossible.
    """
    found = []
    for axis, lines in enumerate([mesh.lines(0), mesh.lines(1)]):
        low, high = ((line - released[:, axis, None]) / sigma for line in (lines[:-1], lines[1:]))
        flip = low > 0
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        top, bottom = log_ndtr(high), log_ndtr(low)
        found.append(np.asarray(top + np.log1p(-np.exp(bottom - top))))
    return np.asarray(mesh.by_part(found[0][:, :, None] + found[1][:, None, :]) - 2 * np.log(mesh.cell_km))


def disc_shares(mesh: Mesh, middles: FloatArray, radius: float) -> FloatArray:
    """``(T, N)``: the area of each cell within discs about points ``(T, 2)``, over the cell's; in closed form."""
    block, sides = max(1, _AT_ONCE // ((mesh.columns + 1) * (mesh.rows + 1))), [mesh.lines(0), mesh.lines(1)]
    found = np.empty((len(middles), len(mesh.points)))
    for at in range(0, len(middles), block):
        some = slice(at, at + block)
        x, y = ((lines - middles[some, axis, None]) / radius for axis, lines in enumerate(sides))
        areas = np.diff(np.diff(_disc_below(x[:, :, None], y[:, None, :]), axis=1), axis=2)
        areas[areas < _NOTHING] = 0.0
        found[some] = np.clip(mesh.by_part(areas) * (radius / mesh.cell_km) ** 2, 0.0, 1.0)
    return found


def _disc_below(x: FloatArray, y: FloatArray) -> FloatArray:
    """The area of the unit disc to the left of ``x`` and below ``y``."""
    x, y = np.broadcast_arrays(np.clip(x, -1.0, 1.0), np.clip(y, -1.0, 1.0))
    one, other = ((t * np.sqrt(1.0 - t * t) + np.arcsin(t)) / 2 for t in (x, y))
    inside = np.pi / 4 + one + other + x * y
    outside = np.where(x > 0, np.where(y > 0, 2 * (one + other), np.pi / 2 + 2 * other), np.pi / 2 + 2 * one)
    outside = np.where((x <= 0) & (y <= 0), 0.0, outside)
    return np.asarray(np.where(x * x + y * y < 1.0, inside, outside))


def laplace_logs(mesh: Mesh, released: FloatArray, scale: float) -> FloatArray:
    """``(T, N)``: the log share of planar Laplace noise about points ``(T, 2)`` in each cell, over the cell's area.

    ``scale`` is 1 / epsilon, kilometres. By Gauss-Legendre quadrature: in cells within a cell's side of the point,
    where the density has its tip, along the sides of the triangles that the point makes with them, whose radial
    integral is in closed form; elsewhere with three or six nodes along each side of the cell.
    """
    block = max(1, _AT_ONCE // (9 * len(mesh.points)))
    parts = [released[at : at + block] for at in range(0, len(released), block)]
    return np.concatenate([_laplace_block(mesh, part, scale) for part in parts])


def _laplace_block(mesh: Mesh, released: FloatArray, scale: float) -> FloatArray:
    side = mesh.cell_km / scale
    away = (mesh.points - released[:, None, :]) / scale
    logs = np.empty(away.shape[:2])
    near = np.abs(away).max(axis=2) < 1.5 * side
    nodes, weights = np.polynomial.legendre.leggauss(3 if side < 0.5 else 6)
    nodes = nodes * side / 2
    far = away[~near]
    distances = np.hypot(far[:, 0, None, None] + nodes[:, None], far[:, 1, None, None] + nodes)
    least = distances.min(axis=(1, 2))
    sums = np.einsum("nij,i,j->n", np.exp(least[:, None, None] - distances), weights, weights) / 4
    logs[~near] = np.log(sums) - least
    low, high = away[near] - side / 2, away[near] + side / 2
    (west, south), (east, north) = low.T, high.T
    found = _tip(east, north) - _tip(west, north) - _tip(east, south) + _tip(west, south)
    logs[near] = np.log(np.maximum(found, np.finfo(float).tiny)) - 2 * np.log(side)
    return np.asarray(logs - np.log(2 * np.pi * scale**2))


def _tip(x: FloatArray, y: FloatArray) -> FloatArray:
    """``∫∫ exp(-r)`` over the rectangle from the origin to ``(x, y)``, with the sign of ``x y``: two triangles."""
    q, weights = (_NODES + 1) / 2, _WEIGHTS / 2
    found = np.zeros(len(x))
    for one, other in ((x, y), (y, x)):
        far = np.hypot(one[:, None], q * other[:, None])
        small = np.maximum(far, 1e-4)
        value = np.where(far < 1e-4, 0.5 - far / 3, (1 - (1 + small) * np.exp(-small)) / small**2)
        found += one * other * (value @ weights)
    return found
