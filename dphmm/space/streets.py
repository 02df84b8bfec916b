"""The streets of a map as a state space: short segments, with distances along streets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from math import inf
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import shapely
from shapely.affinity import translate

from dphmm.arrays import FloatArray, IntArray, as_integers, copy_read_only, make_read_only
from dphmm.errors import ConfigurationError, CoordinateError, StateError
from dphmm.space.grid import Box, check_box
from dphmm.space.projection import LocalProjection, build_centred_projection, unwrap_longitudes
from dphmm.space.states import OUTSIDE, REACH_KM, StateSpace, check_size
from dphmm.space.trajectory import check_places
from dphmm.tables.street_map import STREET_CLASSES, StreetMap
from dphmm.tables.values import is_text, shorten
from dphmm.tolerances import RELATIVE_TOLERANCE
from dphmm.validation import Interval, check_arguments

# The default of the largest length of a segment, kilometres.
SEGMENT_KM = 0.1

# The largest number of segments. The moves between more of them do not fit into a model at usual speeds and steps.
MAX_SEGMENTS = 20_000

# The largest number of pairs of segments within a distance. So many edges of a policy take about a gigabyte.
MAX_PAIRS = 20_000_000

# The default of the largest distance of a location from its segment, kilometres.
WITHIN_KM = 0.2

# About a centimetre, the resolution of OpenStreetMap. Ends of segments are equal integers, or do not meet.
_STEPS_PER_DEGREE = 10**7
_STEPS_PER_TURN = 360 * _STEPS_PER_DEGREE
# Rows of distances that are computed together: 5 MB with the largest number of segments. Memory that is new to the
# process for every block would take as long as the distances.
_BLOCK_STATES = 32

_Length = Annotated[float, Interval(0.001, inf, "left", "kilometres", ConfigurationError)]
_Distance = Annotated[float, Interval(0, inf, "right", "kilometres", ConfigurationError)]


@check_arguments
class Streets(StateSpace):
    """Segments of streets. A location belongs to the nearest segment within a distance.

    The point of a state is the middle of its segment along the street. Segments are adjacent if they have an end in
    common. A street can be used in both directions.

    Parameters
    ----------
    vertices
        ``(V, 2)`` integers: latitude and longitude of the vertices of all segments, in units of 1e-7 degrees.
    counts
        ``(N,)`` integers: the number of vertices of each segment, at least two, in the order of `vertices`.
    within_km
        The maximum distance of a location from its segment in kilometres; positive, or infinite for no limit.
    projection
        The plane. Defaults to the projection around the middle of the vertices.
    credit
        The attribution of the map, which its licence may require.

    Attributes
    ----------
    lengths_km
        ``(N,)``: the length of each segment, kilometres.

    Raises
    ------
    StateError
        If there is no segment, or vertices and counts do not agree.
    CoordinateError
        If a coordinate is out of range, or a vertex lies more than 2000 km from the centre.
    ConfigurationError
        If there are more than `MAX_SEGMENTS` segments, the distance is not positive, or the credit is not a string.

    Examples
    --------
    >>> corner = Streets([[450000000, 70000000], [450009000, 70000000], [450009000, 70012700]], [3])
    >>> corner
    Streets(1 segment, 0.2 km in total)
    """

    kind = "streets"

    def __init__(
        self,
        vertices: npt.ArrayLike,
        counts: npt.ArrayLike,
        within_km: _Distance = WITHIN_KM,
        projection: LocalProjection | None = None,
        credit: str = "",
    ) -> None:
        self._vertices = copy_read_only(as_integers(vertices, "vertices", StateError))
        self._counts = copy_read_only(as_integers(counts, "counts", StateError))
        if not is_text(credit):
            raise ConfigurationError(f"credit must be a valid string, got {shorten(repr(credit))}")
        self.within_km = float(within_km)
        self.credit = credit
        _check_shapes(self._vertices, self._counts)
        degrees = self._vertices / _STEPS_PER_DEGREE
        check_places(degrees[:, 0], degrees[:, 1], "vertices of streets")
        self.projection = projection or build_centred_projection(degrees[:, 0], degrees[:, 1])
        self._plane = make_read_only(self.projection.to_plane(degrees[:, 0], degrees[:, 1]))
        far = np.hypot(*self._plane.T).max()
        if far > REACH_KM:
            raise CoordinateError(f"streets must lie within {REACH_KM:.0f} km of their centre, got {far:.0f} km")
        shapes = shapely.linestrings(self._plane, indices=np.repeat(np.arange(len(self._counts)), self._counts))
        self._shapes = shapes
        self.lengths_km: FloatArray = make_read_only(shapely.length(shapes))
        self.points = make_read_only(
            shapely.get_coordinates(shapely.line_interpolate_point(shapes, 0.5, normalized=True))
        )
        self._sealed = True

    @classmethod
    @check_arguments
    def from_map(
        cls,
        street_map: StreetMap,
        segment_km: _Length = SEGMENT_KM,
        within_km: _Distance = WITHIN_KM,
        bounds: Box | None = None,
        credit: str = "",
    ) -> Streets:
        """Split the streets of a map at their junctions, and into segments of at most a length.

        Paths are omitted, because they are not open to cars, and footways double most streets. Of streets that are not
        connected with each other, only those of the part with the largest total length are kept, and the length of the
        others is logged.

        Parameters
        ----------
        street_map
            The map.
        segment_km
            The largest length of a segment, in kilometres; at least a metre. The parts of a street between two
            junctions have equal lengths.
        within_km
            The maximum distance of a location from its segment, in kilometres.
        bounds
            South, west, north, east in degrees: pieces of streets with their middle outside are omitted. Defaults to
            the whole map.
        credit
            The attribution of the map.

        Returns
        -------
        Streets
            The segments.

        Raises
        ------
        StateError
            If the map contains no street.
        ConfigurationError
            If there are more than `MAX_SEGMENTS` segments.
        CoordinateError
            If the bounds are invalid.
        """
        is_kept = street_map.classes != STREET_CLASSES.index("path")
        if bounds is not None:
            south, west, north, east = check_box(tuple(bounds))
            start, end = street_map.nodes[street_map.edges].transpose(1, 0, 2)
            latitude, longitude = (start + unwrap_longitudes(end, start[:, 1])).T / 2
            is_kept &= (latitude >= south) & (latitude <= north)
            is_kept &= (longitude - west) % 360 <= ((east - west) % 360 or 360.0)
        edges = _find_largest_component(
            street_map.edges[is_kept], street_map.lengths_km[is_kept], len(street_map.nodes)
        )
        if not len(edges):
            raise StateError("the map must contain a street other than paths in the region, got none")
        ends = street_map.nodes[edges.ravel()]
        # A street across the date line is one line only if its longitudes do not jump there.
        pieces = shapely.linestrings(unwrap_longitudes(ends, ends[0, 1]).reshape(-1, 2, 2))
        # Lines are merged where two pieces meet, and end at junctions, which equal coordinates define.
        streets = shapely.get_parts(shapely.line_merge(shapely.multilinestrings(pieces)))
        vertices, line = shapely.get_coordinates(streets, return_index=True)
        projection = build_centred_projection(vertices[:, 0], vertices[:, 1])
        return cls(*_split(vertices, line, projection, float(segment_km)), within_km, projection, credit)

    def __repr__(self) -> str:
        segments = "1 segment" if self.size == 1 else f"{self.size} segments"
        return f"Streets({segments}, {self.lengths_km.sum():.3g} km in total)"

    @property
    def extent_km(self) -> float:
        """The largest length of a segment: a segment lies within half of it around its point."""
        return float(self.lengths_km.max())

    def lines(self) -> list[FloatArray]:
        """Return the vertices of each segment in the plane.

        Returns
        -------
        list of FloatArray
            ``(k, 2)`` each: kilometres east and north of the projection's centre, k at least two.
        """
        return np.split(self._plane, np.cumsum(self._counts)[:-1])

    def latlon_lines(self) -> list[FloatArray]:
        """Return the vertices of each segment in degrees.

        Returns
        -------
        list of FloatArray
            ``(k, 2)`` each: latitude and longitude, k at least two.
        """
        return np.split(self._vertices / _STEPS_PER_DEGREE, np.cumsum(self._counts)[:-1])

    def share_within(self, polygon: shapely.Geometry) -> FloatArray:
        """Return the share of each segment's length in a polygon. See `StateSpace.share_within`.

        A segment that touches the polygon without any length in it has the share zero.
        """
        degrees = unwrap_longitudes(self._vertices / _STEPS_PER_DEGREE, self.projection.longitude)[:, ::-1]
        lines = shapely.linestrings(degrees, indices=np.repeat(np.arange(self.size), self._counts))
        # Near the date line, the polygon or a part of it may lie a turn away from the segments.
        turns = shapely.union_all([translate(polygon, turn) for turn in (-360.0, 0.0, 360.0)])
        return np.asarray(shapely.length(shapely.intersection(lines, turns)) / shapely.length(lines))

    @cached_property
    def _ends(self) -> IntArray:
        """The nodes at the ends of each segment, ``(N, 2)``."""
        last = np.cumsum(self._counts) - 1
        corners = self._vertices[np.concatenate([last - self._counts + 1, last])]
        corners[:, 1] %= _STEPS_PER_TURN  # -180° is 180°
        nodes = np.unique(corners, axis=0, return_inverse=True)[1]
        return np.asarray(nodes.reshape(2, -1).T, dtype=np.int64)

    @cached_property
    def _network(self) -> Any:
        """The graph of adjacent segments with the distances of their middles, symmetric."""
        from scipy.sparse import csr_array

        ends = self._ends
        state = np.repeat(np.arange(self.size), 2)
        ones = np.ones(len(state), dtype=np.int64)
        incidence = csr_array((ones, (state, ends.ravel())), shape=(self.size, int(ends.max()) + 1))
        meets = (incidence @ incidence.T).tocoo()
        different = meets.row != meets.col
        first = meets.row[different]
        second = meets.col[different]
        apart = (self.lengths_km[first] + self.lengths_km[second]) / 2
        return csr_array((apart, (first, second)), shape=(self.size, self.size))

    def adjacency(self) -> IntArray:
        """Return the pairs of segments that have an end in common.

        Returns
        -------
        IntArray
            ``(m, 2)``: pairs of states, the smaller one first.
        """
        pairs = self._network.tocoo()
        return np.asarray(np.stack([pairs.row, pairs.col], axis=1)[pairs.row < pairs.col], dtype=np.int64)

    def iterate_pairs_within(
        self, distance_km: float, states: slice = slice(None)
    ) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
        """Iterate over the pairs of segments with two locations within a distance along streets.

        Parameters
        ----------
        distance_km
            The largest distance of their nearest ends along streets, in kilometres; 0 for adjacent segments.
        states
            The first states of the pairs. Defaults to all.

        Yields
        ------
        tuple of IntArray, IntArray and FloatArray
            ``(m,)`` each, for a block of states: the first states in ascending order; the second ones, ascending for
            each first one, which is among them; the distances of their middles along streets, kilometres.
        """
        from scipy.sparse.csgraph import dijkstra

        half = self.lengths_km / 2
        limit = (distance_km + 2 * half.max()) * (1 + RELATIVE_TOLERANCE)
        selected = np.arange(self.size)[states]
        for start in range(0, len(selected), _BLOCK_STATES):
            block = selected[start : start + _BLOCK_STATES]
            middles = dijkstra(self._network, indices=block, limit=limit)
            # Few of them are finite. A flat array is searched twice as fast as a table.
            flat = np.flatnonzero(np.isfinite(middles))
            lengths = middles.ravel()[flat]
            first, second = np.divmod(flat, self.size)
            sources = block[first]
            gaps = lengths - half[sources] - half[second]
            is_near = gaps <= distance_km + RELATIVE_TOLERANCE * limit
            yield sources[is_near], second[is_near], lengths[is_near]

    def pairs_within(self, distance_km: float) -> IntArray:
        """Return the pairs of segments with two locations within a distance along streets.

        Parameters
        ----------
        distance_km
            The largest distance of their nearest ends along streets, in kilometres.

        Returns
        -------
        IntArray
            ``(m, 2)``: pairs of different states, the smaller one first.

        Raises
        ------
        ConfigurationError
            If there are more than `MAX_PAIRS` pairs.
        """
        blocks = list[IntArray]()
        count = 0
        for first, second, _ in self.iterate_pairs_within(distance_km):
            blocks.append(np.stack([first, second], axis=1)[first < second])
            count += len(blocks[-1])
            if count > MAX_PAIRS:
                raise ConfigurationError(
                    f"at most {MAX_PAIRS:,} pairs of segments may be within {distance_km:g} km, got more: "
                    "use a shorter distance or longer segments"
                )
        return np.concatenate(blocks)

    def locate_plane(self, plane: FloatArray) -> IntArray:
        """Return the nearest segments of points. See `StateSpace.locate_plane`."""
        states = np.full(len(plane), OUTSIDE, dtype=np.int64)
        limit = None if np.isinf(self.within_km) else self.within_km
        row, state = self._line_tree.query_nearest(shapely.points(plane), max_distance=limit)
        # Of several nearest segments, such as at a junction, the first one is chosen.
        states[row[::-1]] = state[::-1]
        return states

    @cached_property
    def _line_tree(self) -> shapely.STRtree:
        return shapely.STRtree(self._shapes)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable dictionary. See `StateSpace.to_json`."""
        return {
            "kind": self.kind,
            "projection": asdict(self.projection),
            "within_km": self.within_km if np.isfinite(self.within_km) else None,
            "credit": self.credit,
            "counts": self._counts.tolist(),
            "latitude": self._vertices[:, 0].tolist(),
            "longitude": self._vertices[:, 1].tolist(),
        }

    @classmethod
    def build(cls, data: Mapping[str, Any], size: int | None) -> Streets:
        """Build streets from the dictionary of `to_json`. See `StateSpace.build`."""
        check_size(len(data["counts"]), size)
        within = inf if data["within_km"] is None else data["within_km"]
        columns: Sequence[Any] = [as_integers(data[name], name, StateError) for name in ("latitude", "longitude")]
        projection = LocalProjection(**data["projection"])
        return cls(np.stack(columns, axis=1), data["counts"], within, projection, data["credit"])


def _check_shapes(vertices: IntArray, counts: IntArray) -> None:
    if vertices.ndim != 2 or vertices.shape[1] != 2:
        raise StateError(f"vertices must have two columns, latitude and longitude, got shape {vertices.shape}")
    if counts.ndim != 1 or not len(counts) or counts.min() < 2 or counts.sum() != len(vertices):
        raise StateError(
            f"counts must be at least 2 for each segment and sum to the {len(vertices)} vertices, got shape "
            f"{counts.shape} with the sum {counts.sum()}"
        )
    if len(counts) > MAX_SEGMENTS:
        raise ConfigurationError(
            f"streets must have at most {MAX_SEGMENTS:,} segments, got {len(counts):,}: use a smaller region (--bbox) "
            "or longer segments (--cell)"
        )
    first = np.cumsum(counts) - counts
    moves = (vertices != np.repeat(vertices[first], counts, axis=0)).any(axis=1)
    if not np.logical_or.reduceat(moves, first).all():
        raise StateError("every segment must have two different vertices")


def _find_largest_component(edges: IntArray, lengths: FloatArray, num_nodes: int) -> IntArray:
    """Return the edges of the connected part with the largest total length.

    The total length of the others is logged.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    if not len(edges):
        return edges
    graph: Any = csr_array((np.ones(len(edges)), edges.T), shape=(num_nodes, num_nodes))
    component = connected_components(graph, directed=False)[1][edges[:, 0]]
    totals = np.bincount(component, lengths)
    omitted = totals.sum() - totals.max()
    if omitted:
        logging.getLogger(__name__).warning(
            "%.3g km of streets are omitted, because they are not connected with the other %.3g km",
            omitted,
            totals.max(),
        )
    return np.asarray(edges[component == totals.argmax()])


def _split(
    vertices: FloatArray, line: IntArray, projection: LocalProjection, segment_km: float
) -> tuple[IntArray, IntArray]:
    """Split lines into equal segments of at most a length.

    Parameters
    ----------
    vertices
        ``(V, 2)``: latitude and longitude of the vertices of all lines, degrees. Longitudes may be beyond 180°.
    line
        ``(V,)``: the line of each vertex, ascending.
    projection
        The plane in which lengths are measured.
    segment_km
        The largest length of a segment.

    Returns
    -------
    vertices : IntArray
        ``(W, 2)`` in units of 1e-7 degrees, with longitudes from -180° to below 180°.
    counts : IntArray
        ``(N,)``: the number of vertices of each segment.
    """
    plane = projection.to_plane(*unwrap_longitudes(vertices, 0.0).T)
    steps = np.hypot(*np.diff(plane, axis=0).T) * (line[1:] == line[:-1])
    along = np.concatenate([[0.0], np.cumsum(steps)])
    first = np.searchsorted(line, np.arange(line[-1] + 1))
    last = np.append(first[1:], len(line)) - 1
    lengths = along[last] - along[first]
    # Rounding must not add a segment to a street of exactly the length of some segments.
    parts = np.maximum(np.ceil(lengths / segment_km * (1 - RELATIVE_TOLERANCE)), 1).astype(np.int64)
    if parts.sum() > MAX_SEGMENTS:
        raise ConfigurationError(
            f"streets must have at most {MAX_SEGMENTS:,} segments, got {parts.sum():,} of at most {segment_km:g} km: "
            "use a smaller region (--bbox) or longer segments (--cell)"
        )
    of_cut = np.repeat(np.arange(len(parts)), parts - 1)
    number = np.arange(len(of_cut)) - np.repeat(np.cumsum(parts - 1) - (parts - 1), parts - 1) + 1
    cuts = along[first[of_cut]] + number / parts[of_cut] * lengths[of_cut]
    places = np.stack([np.interp(cuts, along, degrees) for degrees in vertices.T], axis=1)
    # A cut is the end of one segment and the start of the next one.
    position = np.concatenate([along, cuts, cuts])
    order = np.lexsort((position, np.concatenate([line, of_cut, of_cut])))
    points = np.concatenate([vertices, places, places])[order]
    is_start = np.diff(np.concatenate([line, of_cut, of_cut])[order], prepend=-1) > 0
    is_start |= order >= len(vertices) + len(cuts)
    corners = np.rint(points * _STEPS_PER_DEGREE).astype(np.int64)
    # A cut may round to the vertex before it.
    is_kept = is_start | (np.diff(corners, axis=0, prepend=corners[:1]) != 0).any(axis=1)
    segment = np.cumsum(is_start) - 1
    corners[:, 1] = (corners[:, 1] + _STEPS_PER_TURN // 2) % _STEPS_PER_TURN - _STEPS_PER_TURN // 2
    return corners[is_kept], np.bincount(segment[is_kept])
