"""Cells of a model divided into parts, and exact integrals of densities over them.

The model's states are cells, but channels act on locations. A user who stays in a cell usually stays at one location in
it. A repeated release is then no new evidence, and independent noise around one location averages out. An adversary who
assumed a new location at each step would be wrong in both cases. The location is therefore a hidden variable: one of
equal square parts of the cell, uniform on arrival. It is kept while the user stays, except that it is sampled again at
3 % of the steps.

For a channel that acts on locations, an adversary who knows states only needs the density for a location that is
uniform in the cell, ``p(z | s) = ∫_cell p(z | x) dx / area``. This module computes these integrals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Annotated

import numpy as np
from scipy.special import log_ndtr

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import Operator, exponentiate_logs
from dphmm.space.grid import Grid
from dphmm.space.projection import wrap_longitude
from dphmm.validation import Integers, Interval, check_arguments

# Number of columns, and of rows, of parts in a cell.
PARTS = 5

# Share of the steps at which a user who stays in a cell moves to another, newly sampled part of it.
REDRAW_RATE = 0.03

# Maximum number of states: the passes use dense matrices.
MAX_STATES = 2048

# Number of gaps with cached matrices, each at most 32 MB.
_CACHE_SIZE = 32

_Parts = Annotated[int, Integers(1, 20, error=ConfigurationError)]
_Share = Annotated[float, Interval(0, 1, error=ConfigurationError)]


class Mesh:
    """Square cells of equal size in a plane. The parts of each model cell are contiguous.

    Parameters
    ----------
    grid
        The model's cells.
    parts
        Number of columns and rows of parts in each cell. 1 leaves cells whole.

    Attributes
    ----------
    points
        ``(N parts², 2)``: the centres of the parts, kilometres.
    """

    def __init__(self, grid: Grid, parts: int) -> None:
        self.projection = grid.projection
        self.cell_km = grid.cell_km / parts
        self.columns = grid.columns * parts
        self.rows = grid.rows * parts
        inner = np.stack(np.meshgrid(range(parts), range(parts)), axis=-1).reshape(-1, 2)
        self.lattice: IntArray = (grid.lattice[:, None, :] * parts + inner).reshape(-1, 2)
        self.origin = grid.origin - self.cell_km * (parts - 1) / 2
        self.points: FloatArray = self.origin + self.cell_km * self.lattice

    def locate(self, points: FloatArray) -> IntArray:
        """Return the part that contains each point of the plane ``(n, 2)``, -1 for none, ``(n,)``."""
        cells = np.floor((points - self.origin) / self.cell_km + 0.5).astype(np.int64)
        inside = np.asarray(((cells >= 0) & (cells < [self.columns, self.rows])).all(axis=1))
        column, row = np.where(inside[:, None], cells, 0).T
        return np.where(inside, self._cell_index[column, row], -1)

    @cached_property
    def _cell_index(self) -> IntArray:
        numbers = np.full((self.columns, self.rows), -1, dtype=np.int64)
        numbers[self.lattice[:, 0], self.lattice[:, 1]] = np.arange(len(self.lattice))
        return numbers

    def compute_grid_lines(self, axis: int) -> FloatArray:
        """Return the lines between columns (0) or rows (1), kilometres."""
        count = (self.columns, self.rows)[axis]
        return np.asarray(self.origin[axis] + self.cell_km * (np.arange(count + 1) - 0.5))

    def flatten(self, values: FloatArray) -> FloatArray:
        """Reorder values ``(T, columns, rows)`` by part, ``(T, N parts²)``."""
        return np.asarray(values[:, self.lattice[:, 0], self.lattice[:, 1]])


class MeshMovement:
    """Movement of users between parts of cells under a model.

    Parameters
    ----------
    model
        A model over the cells of a grid, without time classes.
    parts
        See `Mesh`.
    redraw_rate
        See `REDRAW_RATE`.

    Raises
    ------
    ConfigurationError
        If the model has time classes or other states than cells, or more than `MAX_STATES` states.
    """

    @check_arguments
    def __init__(self, model: MarkovModel, parts: _Parts = PARTS, redraw_rate: _Share = REDRAW_RATE) -> None:
        if model.time_classes is not None:
            raise ConfigurationError("model must not have time classes; train one without --time-classes")
        if not isinstance(model.space, Grid):
            raise ConfigurationError(f"model must have the cells of a grid as states, got {type(model.space).__name__}")
        if model.size > MAX_STATES:
            raise ConfigurationError(
                f"model must have at most {MAX_STATES:,} states for an attack, got {model.size:,}; train one for a "
                "smaller region or with larger cells"
            )
        self.model = model
        self.grid = model.space
        self.mesh = Mesh(model.space, parts)
        self.parts = parts
        self.redraw_rate = redraw_rate
        self.initial: FloatArray = model.initial
        one_step: FloatArray = np.ascontiguousarray(model.inside_transition.toarray())
        self._unchanged = (1.0 - redraw_rate) * one_step.diagonal()
        # The cached functions do not reference this object, so it is freed with its last user.
        self._power = lru_cache(maxsize=_CACHE_SIZE)(partial(np.linalg.matrix_power, one_step))
        self._change = lru_cache(maxsize=_CACHE_SIZE)(
            partial(_build_transition, self._power, self._unchanged, parts**2)
        )

    def transition_matrix(self, steps: int) -> FloatArray:
        """Return the transition probabilities between cells in `steps` steps.

        Parameters
        ----------
        steps
            Number of steps, at least 1.

        Returns
        -------
        FloatArray
            ``(N, N)``, row-stochastic.
        """
        return self._power(steps)

    def stay_probability(self, steps: int) -> FloatArray:
        """Return the probability of staying at one location of each cell throughout `steps` steps.

        Parameters
        ----------
        steps
            Number of steps, at least 1.

        Returns
        -------
        FloatArray
            ``(N,)``.
        """
        return np.asarray(self._unchanged**steps)

    def build_transition(self, steps: int) -> MeshTransition:
        """Build the joint transition of cells and parts in `steps` steps.

        A user who leaves a location arrives at any part of a cell with equal probability.

        Parameters
        ----------
        steps
            Number of steps, at least 1.

        Returns
        -------
        MeshTransition
            The transition.
        """
        return self._change(steps)

    @cached_property
    def initial_transition(self) -> MeshTransition:
        """The transition to the initial distribution, whatever the state before."""
        return MeshTransition(
            np.zeros((1, 1)), np.tile(self.initial, (self.grid.size, 1)), *_build_gather_and_spread(self.parts**2)
        )


def _build_transition(
    power: Callable[[int], FloatArray], unchanged: FloatArray, parts: int, steps: int
) -> MeshTransition:
    """Build the transition in some steps from matrix powers and stay probabilities."""
    kept = unchanged**steps
    cells = np.maximum(power(steps) - np.diag(kept), 0.0)
    return MeshTransition(kept[:, None], cells, *_build_gather_and_spread(parts))


def _build_gather_and_spread(parts: int) -> tuple[FloatArray, FloatArray]:
    return np.ones((parts, 1)), np.full((1, parts), 1.0 / parts)


@dataclass(frozen=True, eq=False)
class MeshTransition(Operator):
    """Joint transition of a cell and a second hidden variable, ``(N, Q)``.

    Either both stay, or both may change.

    Parameters
    ----------
    stay_probability
        ``(N, Q)`` or broadcastable: the probability that both stay.
    cells
        ``(N, N)``: the transition probabilities between cells.
    gather, spread
        ``(Q, r)`` and ``(r, Q)``: their product is the transition of the second variable. It stays if both are None.
    excess
        The part of the stay probability that is included in the product of both transitions. It is subtracted.
    """

    stay_probability: FloatArray
    cells: FloatArray
    gather: FloatArray | None = None
    spread: FloatArray | None = None
    excess: FloatArray | float = 0.0

    def with_release(self, log_row: FloatArray, is_same: bool) -> MeshTransition:
        """Add a deterministic release: while nothing changes, neither does the release.

        Parameters
        ----------
        log_row
            ``(N Q,)``: the log probability of the release. It counts for arrivals, and not again for a user who stays.
        is_same
            Whether the release equals the previous one.
        """
        row = log_row.reshape(len(self.cells), -1)
        stays = self.stay_probability * np.exp(-np.where(row > -np.inf, row, np.inf)) if is_same else np.zeros((1, 1))
        return replace(self, stay_probability=stays)

    def propagate_forward(self, logs: FloatArray) -> FloatArray:
        """Propagate log masses forward. See `Operator`."""
        masses = self._convert_to_masses(logs)
        moved = self.cells.T @ (masses if self.gather is None else masses @ self.gather)
        return self._convert_to_logs(logs, masses, moved if self.spread is None else moved @ self.spread)

    def propagate_backward(self, logs: FloatArray) -> FloatArray:
        """Propagate log masses backward. See `Operator`."""
        later = self._convert_to_masses(logs)
        moved = self.cells @ (later if self.spread is None else later @ self.spread.T)
        return self._convert_to_logs(logs, later, moved if self.gather is None else moved @ self.gather.T)

    def _convert_to_masses(self, logs: FloatArray) -> FloatArray:
        """Convert log masses to masses ``(N, Q)`` with a maximum of one."""
        return exponentiate_logs(logs - logs.max()).reshape(len(self.cells), -1)

    def _convert_to_logs(self, log_rows: FloatArray, unchanged: FloatArray, changed: FloatArray) -> FloatArray:
        masses = changed + (self.stay_probability - self.excess) * unchanged
        return np.asarray(log_or_neg_inf(np.maximum(masses, 0.0, out=masses).ravel()) + log_rows.max())


def log_or_neg_inf(shares: FloatArray) -> FloatArray:
    """Return the logarithms of shares, minus infinity for 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shares))


# Gauss–Legendre nodes and weights for the integral over the tip of planar Laplace noise.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
# Approximate number of densities computed at a time, 32 MB.
_BLOCK_NUMBERS = 1 << 22
# Shares of a unit disc below this are rounding error.
_MIN_SHARE = 1e-13


class DegreeRectangles:
    """Square cells approximated by rectangles of latitude and longitude.

    Away from the projection's centre, the axes of the plane and the meridians are not exactly parallel, so a cell is
    only approximately a rectangle of degrees. Each rectangle passes through the centres of the cell's four sides. At 35
    km from the centre and 34° N, the corners of a cell of 1 km are off by 2 m, those of smaller cells proportionally
    less.

    Attributes
    ----------
    low, high
        ``(N, 2)``: latitude and longitude of the sides, degrees. Longitudes are relative to the projection's centre.
    """

    def __init__(self, mesh: Mesh) -> None:
        half = mesh.cell_km / 2
        self._centre = mesh.projection.longitude
        ends = [mesh.projection.to_latlon(mesh.points + step) for step in np.array([[0, -half], [0, half]])]
        sides = [mesh.projection.to_latlon(mesh.points + step) for step in np.array([[-half, 0], [half, 0]])]
        self.low, self.high = (
            np.column_stack([end[:, 0], self.center_longitude(side[:, 1])])
            for end, side in zip(ends, sides, strict=True)
        )

    def center_longitude(self, longitude: FloatArray) -> FloatArray:
        """Return longitudes relative to the projection's centre, in [-180, 180)."""
        return np.asarray(wrap_longitude(longitude - self._centre))

    def compute_overlap_shares(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """Return the share of each cell in rectangles with corners ``(T, 2)``, ``(T, N)``."""
        hits = np.ones((len(low), len(self.low)))
        for axis in (0, 1):
            lower = np.maximum(low[:, axis, None], self.low[:, axis])
            upper = np.minimum(high[:, axis, None], self.high[:, axis])
            hits *= np.clip(upper - lower, 0.0, None) / (self.high[:, axis] - self.low[:, axis])
        return hits

    def compute_offset_shares(
        self, axis: int, low: float, high: float, middles: FloatArray, width: FloatArray
    ) -> FloatArray:
        """Return the probability that a cell coordinate plus an offset is in a range, ``(N, K)``.

        The coordinate is uniform in the cell, the offset uniform in an interval.

        Parameters
        ----------
        axis
            0 for latitude, 1 for longitude.
        low, high
            The range, degrees.
        middles
            ``(N, K)`` or ``(1, K)``: the centres of the intervals, degrees.
        width
            ``(N, 1)`` or ``(1, 1)``: their width, degrees.
        """
        start = self.low[:, axis, None]
        end = self.high[:, axis, None]
        first = middles - width / 2
        last = middles + width / 2

        def compute_area_below(limit: float) -> FloatArray:
            """Return the area of ``x + o < limit`` in the rectangle of coordinate and offset."""
            corners = ((start, first, 1), (end, first, -1), (start, last, -1), (end, last, 1))
            return np.asarray(sum(sign * np.maximum(limit - x - o, 0.0) ** 2 / 2 for x, o, sign in corners))

        return np.clip((compute_area_below(high) - compute_area_below(low)) / ((end - start) * width), 0.0, 1.0)


def gaussian_log_densities(mesh: Mesh, released: FloatArray, sigma: float) -> FloatArray:
    """Return the log mean density of normal noise in each cell, ``(T, N)``.

    The noise is around points ``(T, 2)``.


    ``sigma`` is the standard deviation along each axis, in kilometres as the points. The closed form is evaluated in
    logarithms, so that no cell becomes impossible.
    """
    polygons = []
    for axis, lines in enumerate([mesh.compute_grid_lines(0), mesh.compute_grid_lines(1)]):
        low, high = ((line - released[:, axis, None]) / sigma for line in (lines[:-1], lines[1:]))
        # Use the lower tail on both sides: log_ndtr keeps its precision there.
        flip = low > 0
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        top = log_ndtr(high)
        bottom = log_ndtr(low)
        polygons.append(np.asarray(top + np.log1p(-np.exp(bottom - top))))
    return np.asarray(mesh.flatten(polygons[0][:, :, None] + polygons[1][:, None, :]) - 2 * np.log(mesh.cell_km))


def compute_disc_shares(mesh: Mesh, middles: FloatArray, radius: float) -> FloatArray:
    """Return the share of each cell within discs around points ``(T, 2)``, ``(T, N)``."""
    block = max(1, _BLOCK_NUMBERS // ((mesh.columns + 1) * (mesh.rows + 1)))
    sides = [mesh.compute_grid_lines(0), mesh.compute_grid_lines(1)]
    shares = np.empty((len(middles), len(mesh.points)))
    for at in range(0, len(middles), block):
        rows = slice(at, at + block)
        x, y = ((lines - middles[rows, axis, None]) / radius for axis, lines in enumerate(sides))
        areas = np.diff(np.diff(_compute_disc_area(x[:, :, None], y[:, None, :]), axis=1), axis=2)
        areas[areas < _MIN_SHARE] = 0.0
        shares[rows] = np.clip(mesh.flatten(areas) * (radius / mesh.cell_km) ** 2, 0.0, 1.0)
    return shares


def _compute_disc_area(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the area of the unit disc to the left of ``x`` and below ``y``."""
    x, y = np.broadcast_arrays(np.clip(x, -1.0, 1.0), np.clip(y, -1.0, 1.0))
    lower, other = ((t * np.sqrt(1.0 - t * t) + np.arcsin(t)) / 2 for t in (x, y))
    inside = np.pi / 4 + lower + other + x * y
    outside = np.where(x > 0, np.where(y > 0, 2 * (lower + other), np.pi / 2 + 2 * other), np.pi / 2 + 2 * lower)
    outside = np.where((x <= 0) & (y <= 0), 0.0, outside)
    return np.asarray(np.where(x * x + y * y < 1.0, inside, outside))


def laplace_log_densities(mesh: Mesh, released: FloatArray, scale: float) -> FloatArray:
    """Return the log mean density of planar Laplace noise in each cell, ``(T, N)``.

    The noise is around points ``(T, 2)``.


    ``scale`` is 1 / epsilon, kilometres. The integrals use Gauss–Legendre quadrature. For cells within one cell side of
    the point, where the density has its tip, the cell is divided into triangles with the point as a corner. The radial
    integral of each is in closed form, and the quadrature runs along the opposite side. Other cells use three or six
    nodes along each side.
    """
    block = max(1, _BLOCK_NUMBERS // (9 * len(mesh.points)))
    parts = [released[at : at + block] for at in range(0, len(released), block)]
    return np.concatenate([_compute_laplace_block(mesh, part, scale) for part in parts])


def _compute_laplace_block(mesh: Mesh, released: FloatArray, scale: float) -> FloatArray:
    side = mesh.cell_km / scale
    away = (mesh.points - released[:, None, :]) / scale
    logs = np.empty(away.shape[:2])
    near = np.abs(away).max(axis=2) < 1.5 * side
    nodes, weights = np.polynomial.legendre.leggauss(3 if side < 0.5 else 6)
    nodes = nodes * side / 2
    far = away[~near]
    distances = np.hypot(far[:, 0, None, None] + nodes[:, None], far[:, 1, None, None] + nodes)
    minimum = distances.min(axis=(1, 2))
    sums = np.einsum("nij,i,j->n", np.exp(minimum[:, None, None] - distances), weights, weights) / 4
    logs[~near] = np.log(sums) - minimum
    low = away[near] - side / 2
    high = away[near] + side / 2
    (west, south) = low.T
    (east, north) = high.T
    area = (
        _integrate_corner(east, north)
        - _integrate_corner(west, north)
        - _integrate_corner(east, south)
        + _integrate_corner(west, south)
    )
    logs[near] = np.log(np.maximum(area, np.finfo(float).tiny)) - 2 * np.log(side)
    return np.asarray(logs - np.log(2 * np.pi * scale**2))


def _integrate_corner(x: FloatArray, y: FloatArray) -> FloatArray:
    """Integrate ``exp(-r)`` from the origin to ``(x, y)``, with the sign of ``x y``."""
    # The diagonal divides the rectangle into two triangles with a corner at the origin.
    q = (_NODES + 1) / 2
    weights = _WEIGHTS / 2
    integral = np.zeros(len(x))
    for first, other in ((x, y), (y, x)):
        far = np.hypot(first[:, None], q * other[:, None])
        small = np.maximum(far, 1e-4)
        value = np.where(far < 1e-4, 0.5 - far / 3, (1 - (1 + small) * np.exp(-small)) / small**2)
        integral += first * other * (value @ weights)
    return integral
