"""Mean densities and areas of noise in the cells of a model.

For a channel that acts on locations, an adversary who knows states only needs the density for a location that is
uniform in the cell, ``p(z | s) = ∫_cell p(z | x) dx / area``. This module computes these integrals.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr

from dphmm.arrays import FloatArray
from dphmm.attack.mesh import Mesh
from dphmm.space.projection import wrap_longitude

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
    axis_logs = []
    for axis, lines in enumerate([mesh.compute_grid_lines(0), mesh.compute_grid_lines(1)]):
        low, high = ((line - released[:, axis, None]) / sigma for line in (lines[:-1], lines[1:]))
        # Use the lower tail on both sides: log_ndtr keeps its precision there.
        flip = low > 0
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        top = log_ndtr(high)
        bottom = log_ndtr(low)
        axis_logs.append(np.asarray(top + np.log1p(-np.exp(bottom - top))))
    return np.asarray(mesh.flatten(axis_logs[0][:, :, None] + axis_logs[1][:, None, :]) - 2 * np.log(mesh.cell_km))


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
    # The density's tip lies in the cell or less than a side away: nodes of a product rule would miss it.
    near = np.abs(away).max(axis=2) < 1.5 * side
    # Compared with 60 nodes, the relative error is at most 5e-6 for sides below half the scale, 3e-6 up to 8 and 9e-4
    # at 16 times the scale.
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
        # The closed form of (1 - (1 + r) exp(-r)) / r² loses its digits near zero: its Taylor polynomial is used there.
        value = np.where(far < 1e-4, 0.5 - far / 3, (1 - (1 + small) * np.exp(-small)) / small**2)
        integral += first * other * (value @ weights)
    return integral
