"""Numbers of states in a symmetric body around each state, by raster or by tree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from operator import truediv
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.compilation import compile_if_hot
from dphmm.geometry.exact_linear_algebra import exact_product
from dphmm.geometry.measurements import Measurements, Raster
from dphmm.geometry.sensitivity_hull import Disc, ExactInequalities, Membership, SensitivityHull
from dphmm.tolerances import RELATIVE_TOLERANCE

# Bodies of at most this number of lattice rows are counted row by row; taller ones by a Fourier transform, the time of
# which does not depend on the height.
_MAX_SUMMED_ROWS = 48

# Number of pairs of the tree in a block, some 50 MB with their differences.
_PAIR_BLOCK = 1 << 20
# Mean number of later points with which each sorted point is compared. For more, the tree takes less time, as measured
# with 20,000 points.
_MAX_COMPARED = 4096
# Number of points in a leaf of the tree of balls: smaller leaves leave fewer pairs, but make larger trees.
_LEAF_SIZE = 4
# The difference from 1 at which a sum of norms is decided. It exceeds their rounding and the tolerance of membership;
# closer pairs are compared one by one.
_BALL_MARGIN = 1e-6
# Rounding of scaled coordinates, by which the search radius is enlarged: a pair on the boundary is never missed.
_ROUNDING = 8 * float(np.finfo(np.float64).eps)


class CoordinateBody:
    """A body in the coordinates of measurements.

    Parameters
    ----------
    measurements
        The measurements.
    body
        A `SensitivityHull` in coordinates, or a `Disc` in the unit of the measurements.
    membership
        The membership method of a hull: see `SensitivityHull.contains`.
    """

    def __init__(
        self, measurements: Measurements, body: SensitivityHull | Disc, membership: Membership = "halfspace"
    ) -> None:
        self.measurements = measurements
        self.body = body
        self.membership = membership
        self._wide: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None

    @property
    def reach(self) -> FloatArray:
        """The half-widths ``(d,)`` of the bounding box, in coordinates."""
        if isinstance(self.body, Disc):
            return self.body.radius / self.measurements.spacing
        return np.asarray(np.abs(self.body.vertices).max(axis=0))

    @property
    def is_flat(self) -> bool:
        """Whether the body has a smaller dimension than the measurements."""
        return not isinstance(self.body, Disc) and len(self.body.norm_form.equations) > 0

    def norm(self, vectors: FloatArray) -> FloatArray:
        """Return the norms of coordinate vectors ``(n, d)``, with the body as the unit ball."""
        return self.body.norm(vectors * self.measurements.spacing if isinstance(self.body, Disc) else vectors)

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Return closed membership of coordinate vectors ``(n, d)``."""
        if isinstance(self.body, Disc):
            return self.body.contains(vectors * self.measurements.spacing)
        return self.body.contains(vectors, method=self.membership)

    def diameter(self, constraint: BoolArray) -> float:
        """Return ``max ‖f_j - f_k‖`` over possible pairs, the constrained-DP factor (Theorem 6.3)."""
        corners = self.measurements.extremes(constraint)
        if isinstance(self.body, Disc):
            pairs = (corners[:, None] - corners[None]).reshape(-1, corners.shape[1])
            return float(self.body.norm(pairs * self.measurements.spacing).max())
        form = self.body.norm_form
        relative = corners - corners[:1]
        if len(form.equations) and not form.is_in_span(relative).all():
            return float("inf")
        if form.exact is not None and form.exact.normals.dtype.kind in "iO":
            # Python divides integers of any size to the nearest double, which a verifier recomputes digit for digit.
            widths = self._measure_widths(constraint, form.exact).tolist()
            return float(max(map(truediv, widths, form.exact.offsets.tolist()), default=0.0))
        return form.diameter(relative.astype(np.float64))

    def contains_all_differences(self, constraint: BoolArray) -> bool:
        """Return whether all differences of possible states lie in the body. Exact if it is."""
        exact = None if isinstance(self.body, Disc) else self.body.norm_form.exact
        if exact is None or self.membership != "halfspace":
            return self.membership == "halfspace" and self.diameter(constraint) <= 1.0 + RELATIVE_TOLERANCE
        corners = self.measurements.extremes(constraint)
        if len(exact.equations) and not (np.ptp(corners @ exact.equations.T, axis=0) == 0).all():
            return False
        return bool((self._measure_widths(constraint, exact) <= exact.offsets).all())

    def _measure_widths(self, constraint: BoolArray, exact: ExactInequalities) -> npt.NDArray[Any]:
        """Return the exact extents of possible states along the body's normals."""
        corners = self.measurements.extremes(constraint)
        if self._wide is None or self._wide[0] is not corners:
            self._wide = (corners, _measure_extents(exact_product(corners, exact.normals.T)) * exact.denominator)
        return self._wide[1]


def _measure_extents(heights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the range of each column. Faster than `np.ptp` for few values."""
    return np.asarray(np.maximum.reduce(heights) - np.minimum.reduce(heights))


def count_within(body: CoordinateBody, constraint: BoolArray) -> IntArray:
    """Return the number of possible states in the body around each one. 0 elsewhere.

    The state itself is included. Exact if the measurements lie on a lattice and the body is a hull.
    """
    if body.contains_all_differences(constraint):
        return constraint * np.count_nonzero(constraint)
    if body.measurements.raster is not None and body.membership == "halfspace":
        on_raster = _count_on_raster(body, body.measurements.raster, constraint)
        on_raster *= constraint  # in place: large arrays take long to allocate
        return on_raster
    counts = np.zeros(len(constraint), dtype=np.int64)
    within = _count_by_heights(body, constraint)
    counts[constraint] = _count_by_tree(body, constraint) if within is None else within
    return counts


def _count_on_raster(body: CoordinateBody, raster: Raster, constraint: BoolArray) -> IntArray:
    cells = raster.count_per_cell(constraint)
    rows = _clip_lattice_rows(body, raster)
    if rows is None:
        kernel = _build_kernel(body, raster)
        rows = _select_rows(kernel) if len(kernel) <= _MAX_SUMMED_ROWS else None
    if rows is None:
        sums = _convolve(cells, kernel)
    else:
        sums = _sum_row_by_row(cells, rows)
    return sums.ravel() if raster.is_raster_order else np.asarray(sums.ravel()[raster.flat])


def _clip_lattice_rows(body: CoordinateBody, raster: Raster) -> IntArray | None:
    """Return the rows of a low polygon with integer corners, clipped to the raster. Else None.

    They are ``(k, 3)``: the offset of each row of the body, and its first and last column.
    """
    rows = body.body.lattice_rows if isinstance(body.body, SensitivityHull) else None
    a = raster.width - 1
    b = raster.height - 1
    if rows is None or 2 * min(int(rows[-1, 0]), b) + 1 > _MAX_SUMMED_ROWS:
        return None
    if int(rows[-1, 0]) <= b and int(rows[:, 2].max()) <= a:
        return rows
    kept = rows[(np.abs(rows[:, 0]) <= b) & (rows[:, 1] <= a) & (rows[:, 2] >= -a)]
    kept[:, 1:] = np.clip(kept[:, 1:], -a, a)
    return kept


def _select_rows(kernel: BoolArray) -> IntArray:
    """Return the rows of `_build_kernel`."""
    b = kernel.shape[0] // 2
    a = kernel.shape[1] // 2
    intervals = [(dy - b, np.flatnonzero(row) - a) for dy, row in enumerate(kernel)]
    return np.array([(dy, int(row[0]), int(row[-1])) for dy, row in intervals if len(row)])


def _build_kernel(body: CoordinateBody, raster: Raster) -> BoolArray:
    """Return a mask ``(2 b + 1, 2 a + 1)`` of the offsets in the body, clipped to the raster."""
    reach = np.zeros(2)
    reach[: len(body.reach)] = body.reach
    a = int(min(reach[0] * (1 + RELATIVE_TOLERANCE), raster.width - 1))
    b = int(min(reach[1] * (1 + RELATIVE_TOLERANCE), raster.height - 1))
    dx, dy = np.meshgrid(np.arange(-a, a + 1), np.arange(b + 1))
    offsets = np.stack([dx.ravel(), dy.ravel()], axis=1)[:, : body.measurements.dimension]
    # The lower half is the mirror image of the upper one.
    upper = body.contains(offsets).reshape(b + 1, 2 * a + 1)
    return np.concatenate([upper[:0:-1, ::-1], upper])


def _sum_row_by_row(cells: npt.NDArray[np.int32], rows: IntArray) -> IntArray:
    """Return sums over a body around each cell, from cumulative sums of its rows.

    Each row of the body is an interval. The rows are concatenated with enough empty cells around them.
    """
    height, width = cells.shape
    a = max(int(-rows[:, 1].min()), int(rows[:, 2].max()))
    b = int(rows[-1, 0])
    # ``a`` empty cells on either side of each row: an interval beyond its row adds zeros, so that one shift of the
    # flattened sums works for all cells.
    padded = np.zeros((height + 2 * b + 1, width + 2 * a + 1), dtype=np.int32)
    padded[b : b + height, a + 1 : a + 1 + width] = cells
    prefix = np.cumsum(padded, dtype=np.int32)
    step = padded.shape[1]
    sums = np.zeros(height * step, dtype=np.int32)
    for dy, low, high in rows.tolist():
        start = (b + dy) * step + a
        sums += prefix[start + high + 1 : start + high + 1 + len(sums)]
        sums -= prefix[start + low : start + low + len(sums)]
    return sums.reshape(height, step)[:, :width].astype(np.int64)


def _convolve(cells: npt.NDArray[np.int32], kernel: BoolArray) -> npt.NDArray[np.int64]:
    """Return sums over a body by a Fourier transform. Rounding removes its error."""
    from scipy import fft

    b = kernel.shape[0] // 2
    a = kernel.shape[1] // 2
    shape = [fft.next_fast_len(n + m, real=True) for n, m in zip(cells.shape, kernel.shape, strict=True)]
    spectrum = fft.rfft2(cells.astype(np.float64), shape) * fft.rfft2(kernel.astype(np.float64), shape)
    sums = fft.irfft2(spectrum, shape)[b : b + cells.shape[0], a : a + cells.shape[1]]
    return np.rint(sums).astype(np.int64)


def _count_by_heights(body: CoordinateBody, constraint: BoolArray) -> IntArray | None:
    """Count lattice points in a polygon around each one. None if the tree has to.

    A difference lies in the exact polygon if its heights over all facets are within the limits.
    """
    points = body.measurements.coordinates[constraint]
    exact = None if isinstance(body.body, Disc) or body.is_flat else body.body.norm_form.exact
    if exact is None or body.membership != "halfspace" or points.dtype.kind != "i" or points.shape[1] > 2:
        return None
    heights = exact_product(points - points[:1], exact.normals.T)
    limits = exact.offsets // exact.denominator
    if heights.dtype.kind != "i" or limits.dtype.kind != "i":
        return None  # the numbers exceed 64 bits
    # Points are sorted along the normal that excludes most pairs. The normals across it are compared first, because
    # they exclude most of the others.
    sharpest = np.argmin(limits / np.maximum(_measure_extents(heights), 1))
    normals = exact.normals.astype(np.float64)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    facets = np.argsort(np.abs(normals @ normals[sharpest]), kind="stable")
    order = np.argsort(heights[:, sharpest], kind="stable")
    along = heights[order, sharpest]
    stops = np.searchsorted(along, along + limits[sharpest], side="right")
    if (stops - np.arange(len(order))).mean() > _MAX_COMPARED:
        return None
    sorted_counts = np.ones(len(order), dtype=np.int64)  # the state itself
    if not _count_sorted(heights[np.ix_(order, facets)], limits[facets], stops, sorted_counts):
        return None
    counts = np.empty_like(sorted_counts)
    counts[order] = sorted_counts
    return counts


def _count_sorted_loop(heights: IntArray, limits: IntArray, stops: IntArray, counts: IntArray) -> bool:
    """Form of `_count_sorted` that numba can compile."""
    for i in range(len(stops)):
        for j in range(i + 1, stops[i]):
            is_inside = True
            for k in range(len(limits)):
                if abs(heights[j, k] - heights[i, k]) > limits[k]:
                    is_inside = False
                    break
            if is_inside:
                counts[i] += 1
                counts[j] += 1
    return True


@compile_if_hot(_count_sorted_loop, lambda heights, _, stops, __: heights.shape[1] * int(stops.sum()))
def _count_sorted(heights: IntArray, limits: IntArray, stops: IntArray, counts: IntArray) -> bool:  # noqa: ARG001 - the compiled form uses them
    """Add the number of other points in the body around each one to its count.

    Point ``i`` is compared with the points from ``i + 1`` to ``stops[i] - 1``. Without compilation nothing is added and
    False is returned, because the tree takes less time than a form of the loop in NumPy.
    """
    return False


def _count_by_tree(body: CoordinateBody, constraint: BoolArray) -> IntArray:
    points = body.measurements.coordinates[constraint]
    counts = np.ones(len(points), dtype=np.int64)  # the state itself
    if body.is_flat:
        # Norms are infinite off the span, and balls would decide nothing.
        pairs = iterate_near_pairs(points.astype(np.float64), body.reach)
    else:
        tree = _BallTree(points, body)
        counts += tree.count_decided()
        pairs = tree.iterate_undecided_pairs()
    for rows, columns in pairs:
        inside = body.contains(points[columns] - points[rows])
        counts += np.bincount(rows[inside], minlength=len(points))
        counts += np.bincount(columns[inside], minlength=len(points))
    return counts


class _BallTree:
    """A tree of balls in the norm of a body, which decides most pairs of points together.

    By the triangle inequality all differences between two balls lie in the body if the distance of the centres plus
    both radii is at most 1, and none does if the distance minus both radii exceeds 1. For points spread over an area,
    some ``N ** 1.5`` of the ``N ** 2`` pairs are left.

    Parameters
    ----------
    points
        ``(N, d)``, in coordinates.
    body
        A body of full dimension.
    """

    def __init__(self, points: npt.NDArray[Any], body: CoordinateBody) -> None:
        from scipy.spatial import cKDTree

        self.body = body
        points = (points - points[:1]).astype(np.float64)  # rounding grows with the distance from the origin
        tree = cKDTree(points / body.reach, leafsize=_LEAF_SIZE)
        # The points of all nodes: each node contains a slice.
        self.order: IntArray = np.asarray(tree.indices, dtype=np.int64)
        nodes: list[Any] = [tree.tree]
        children = []
        for node in nodes:  # the list grows by the children of each node
            children.append((len(nodes), len(nodes) + 1) if node.lesser else (-1, -1))
            nodes.extend((node.lesser, node.greater) if node.lesser else ())
        self.children: IntArray = np.array(children)
        self.slices: IntArray = np.array([(node.start_idx, node.end_idx) for node in nodes])
        points = points[self.order]
        starts = self.slices[:, 0]
        sizes = self.slices[:, 1] - starts
        first = np.cumsum(sizes) - sizes
        members = points[np.arange(sizes.sum()) - np.repeat(first - starts, sizes)]
        low, high = (reduce.reduceat(members, first) for reduce in (np.minimum, np.maximum))
        self.centres: FloatArray = (low + high) / 2
        members -= np.repeat(self.centres, sizes, axis=0)
        self.radii: FloatArray = np.maximum.reduceat(body.norm(members), first)
        self._decide()

    def _decide(self) -> None:
        """Refine pairs of nodes until each is decided or consists of leaves."""
        decided: list[IntArray] = []
        undecided: list[IntArray] = []
        pairs = np.zeros((1, 2), dtype=np.int64)
        while len(pairs):
            first, second = pairs.T
            reach = self.radii[first] + self.radii[second]
            distances = self.body.norm(self.centres[second] - self.centres[first])
            inside = distances + reach <= 1 - _BALL_MARGIN
            decided.append(pairs[inside])
            pairs = pairs[~inside & (distances - reach <= 1 + _BALL_MARGIN)]
            is_leaf = (self.children[pairs] < 0)[:, :, 0]
            undecided.append(pairs[is_leaf.all(axis=1)])
            pairs = pairs[~is_leaf.all(axis=1)]
            pairs = self._split(pairs)
        self.decided: IntArray = np.concatenate(decided)
        self.undecided: IntArray = np.concatenate(undecided)

    def _split(self, pairs: IntArray) -> IntArray:
        """Replace the larger node of each pair by its children.

        A pair of one node with itself becomes all three pairs of its children.
        """
        first, second = pairs.T
        is_same = first == second
        low, high = self.children[first[is_same]].T
        can_split = self.children[pairs][:, :, 0] >= 0
        is_first = can_split[:, 0] & (~can_split[:, 1] | (self.radii[first] >= self.radii[second]))
        split = np.where(is_first, first, second)[~is_same]
        kept = np.where(is_first, second, first)[~is_same]
        parts = [np.stack([low, low]), np.stack([low, high]), np.stack([high, high])]
        parts += [np.stack([self.children[split, k], kept]) for k in range(2)]
        return np.concatenate(parts, axis=1).T

    def count_decided(self) -> IntArray:
        """Count the other points that are known to lie in the body around each point, ``(N,)``."""
        starts, stops = self.slices.T
        changes = np.zeros(len(self.order) + 1, dtype=np.int64)
        is_same = self.decided[:, 0] == self.decided[:, 1]
        for node, other in (self.decided.T, self.decided[~is_same, ::-1].T):
            sizes = stops[other] - starts[other] - (node == other)
            np.add.at(changes, starts[node], sizes)
            np.subtract.at(changes, stops[node], sizes)
        counts = np.empty(len(self.order), dtype=np.int64)
        counts[self.order] = np.cumsum(changes[:-1])
        return counts

    def iterate_undecided_pairs(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the other pairs of points once, block by block."""
        starts, stops = self.slices.T
        first, second = self.undecided.T
        sizes = stops[first] - starts[first]
        # Each point of a first leaf is paired with all points of the second, or with the later ones of the same leaf.
        rows = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes - starts[first], sizes)
        begins = np.where(np.repeat(first == second, sizes), rows + 1, np.repeat(starts[second], sizes))
        lengths = np.repeat(stops[second], sizes) - begins
        cuts = np.searchsorted(np.cumsum(lengths), np.arange(0, lengths.sum(), _PAIR_BLOCK))
        for start, stop in pairwise(np.unique(np.r_[0, cuts, len(rows)]).tolist()):
            several = lengths[start:stop]
            offsets = np.cumsum(several) - several - begins[start:stop]
            columns = np.arange(several.sum()) - np.repeat(offsets, several)
            yield self.order[np.repeat(rows[start:stop], several)], self.order[columns]


def iterate_near_pairs(points: FloatArray, reach: FloatArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield pairs of rows of ``points`` within ``reach`` on each axis, block by block.

    Every pair occurs once, the smaller row first, and so do some with slightly larger differences. Memory is bounded
    for any number of pairs.
    """
    from scipy.spatial import cKDTree

    points = points - points[:1]  # differences of scaled points far from the origin would be rounded
    size = max(float(np.abs(points).max(initial=0.0)), float(reach.max(initial=0.0)), 1e-300)
    scaled = points / np.maximum(reach, RELATIVE_TOLERANCE * size)
    radius = 1 + RELATIVE_TOLERANCE + _ROUNDING * float(np.abs(scaled).max(initial=0.0))
    tree = cKDTree(scaled)
    if tree.count_neighbors(tree, radius, p=np.inf) <= 2 * _PAIR_BLOCK:
        pairs = tree.query_pairs(radius, p=np.inf, output_type="ndarray")
        yield pairs[:, 0], pairs[:, 1]
        return
    lengths = np.asarray(tree.query_ball_point(scaled, radius, p=np.inf, return_length=True), dtype=np.int64)
    cuts = np.searchsorted(np.cumsum(lengths), np.arange(0, lengths.sum(), _PAIR_BLOCK))
    for start, stop in pairwise(np.unique(np.r_[0, cuts, len(points)]).tolist()):
        neighbours = tree.query_ball_point(scaled[start:stop], radius, p=np.inf, return_sorted=False)
        rows = np.repeat(np.arange(start, stop), lengths[start:stop])
        columns = np.concatenate([np.asarray(near, dtype=np.int64) for near in neighbours])
        yield rows[rows < columns], columns[rows < columns]
