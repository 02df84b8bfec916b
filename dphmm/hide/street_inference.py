"""Inference of an adversary with a street map about a location in a protected zone.

The *street* adversary knows the streets and what can be a location: the addresses of the core, else its buildings, else
the metres of its streets, else its area. A user takes a near-shortest way. For a location h and a later location t of
the kept track, the way by gate g has the length ``d(h, g) + d(g, t)`` along streets, in the zone up to the gate and
outside it from there. With the excess over the shortest of these ways,

    P(g | h, t) = (1 - w) exp(-excess_g / s) / sum over gates of exp(-excess / s) + w / number of gates,

over all places where a street crosses the border of the zone. The scale s and the share w of users who wander are
`SCALE_KM` and `WANDERING`. The kept track begins near a gate, not on it: gates are weighted by a normal density of
their distance from its first point.

A user has habits, so that gates depend on each other given the location. The log-likelihoods of n gates are multiplied
by ``1 / (1 + r (n - 1))``, the weight of observations with a correlation r, `DEPENDENCE`. More regular habits than
those simulated would make the stated probabilities too high.

``scripts/street_adversary.py fit`` yields s = 0.143 km, w = 0 and r = 0.29 from 1,600 gates of 80 homes in two real
networks (Campo Grande, north of Bayreuth). Its ``measure`` uses other homes, and a third network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.hide.zone import Gate, HiddenZone, Stretch, find_gates
from dphmm.hide.zone_inference import ADVERSARIES, MIN_LIKELIHOOD, ZoneInference
from dphmm.model.point_estimate import Inference
from dphmm.tables.street_map import STREET_CLASSES, StreetMap

# The name of the adversary.
STREET = "street"

# The excess at which a way is less probable by a factor of e, kilometres.
SCALE_KM = 0.14

# The share of ways that do not depend on their length. Simulated ways have none; with some, no way excludes a home.
WANDERING = 0.01

# The dependence of gates. Together, n gates count as ``n / (1 + DEPENDENCE (n - 1))`` independent ones.
DEPENDENCE = 0.3

# The way along the kept track from the gate to the location at which the adversary assumes that the user aimed.
AHEAD_KM = 2.0

# The streets within this distance of the zone are needed.
MAP_MARGIN_KM = AHEAD_KM + 0.5

# The length of street that counts as one candidate if the map has neither addresses nor buildings.
PIECE_KM = 0.02

# Parts of streets are at most this long, so that every location on a street is within half of it of a node.
_MAX_EDGE_KM = 0.04
# Fixes stray by some metres, and a point is recorded every few seconds.
_GATE_STD_KM = 0.025
# The map has addresses if they are at least this share of the buildings. Many maps have a few of them only.
_MIN_ADDRESS_SHARE = 0.5
# The map has buildings if there is one for this length of street.
_STREET_PER_BUILDING_KM = 0.1
# A map covers a location of the track if it has a street this near, kilometres: fixes and small ways stray by less.
_MAX_STREET_KM = 0.2
# Locations this close to the border lie on it; a hundredth of a millimetre.
_BORDER_KM = 1e-8


@dataclass(frozen=True, eq=False)
class Candidates:
    """The locations in a core that can be the protected one.

    Parameters
    ----------
    points
        ``(n, 2)``: in the plane of the zone, kilometres.
    prior
        ``(n,)``: their prior probabilities.
    kind
        What they are: ``"addresses"``, ``"buildings"``, ``"places on streets"`` or ``"cells"``.
    """

    points: FloatArray
    prior: FloatArray
    kind: str

    @property
    def effective_number(self) -> float:
        """The exponential of the entropy of the prior."""
        return float(np.exp(-np.sum(self.prior * np.log(self.prior))))

    def find_nearest_cells(self, zone: HiddenZone) -> IntArray:
        """Return the nearest cell of the core for each candidate, ``(n,)``."""
        gaps = self.points[:, None] - zone.grid.points[zone.core][None]
        return np.asarray(np.abs(gaps).max(axis=2).argmin(axis=1))


def find_candidates(street_map: StreetMap, zone: HiddenZone) -> Candidates:
    """Return the candidates of a zone's core.

    Parameters
    ----------
    street_map
        The map.
    zone
        The zone. Locations that belong to the zones of other squares are omitted.

    Returns
    -------
    Candidates
        The addresses if they are at least half as many as the buildings, else the buildings if there is one per 100 m
        of street, each of the core and with equal probabilities. Otherwise places at a distance of 20 m on its streets,
        in proportion to the metres of street without motorways and paths. The cells of the core, in proportion to their
        areas, if it has none of these.
    """
    half = zone.square.side_km / 2

    def select_core(places: FloatArray) -> FloatArray:
        if not len(places):
            return np.zeros((0, 2))
        latitude, longitude = places[zone.may_be_near(places[:, 0], places[:, 1], 0.0)].T
        points = zone.projection.to_plane(latitude, longitude)
        is_inside = np.abs(points).max(axis=1, initial=0.0) <= half
        return np.asarray(points[is_inside & ~zone.belongs_to_others(latitude, longitude)])

    addresses, buildings = select_core(street_map.addresses), select_core(street_map.buildings)
    is_home = np.isin(street_map.classes, [STREET_CLASSES.index(name) for name in ("road", "street")])
    plane = zone.projection.to_plane(*street_map.nodes.T)
    edges = street_map.edges[is_home]
    # Each part counts with its middle. Parts far shorter than a piece of the raster fill it evenly.
    nodes, parts = _densify(plane, edges[_meets_square(plane[edges], half)], PIECE_KM / 4)
    ends = nodes[parts]
    middles, lengths = ends.mean(axis=1), np.hypot(*(ends[:, 1] - ends[:, 0]).T)
    on_street = np.abs(middles).max(axis=1, initial=0.0) <= half
    if on_street.any():
        on_street[on_street] = ~zone.belongs_to_others(*zone.projection.to_latlon(middles[on_street]).T)
    if len(addresses) and len(addresses) >= _MIN_ADDRESS_SHARE * len(buildings):
        return _build_uniform_candidates(addresses, "addresses")
    if len(buildings) and len(buildings) * _STREET_PER_BUILDING_KM >= lengths[on_street].sum():
        return _build_uniform_candidates(buildings, "buildings")
    if on_street.any():
        raster, place = np.unique(np.floor(middles[on_street] / PIECE_KM), axis=0, return_inverse=True)
        weights = np.bincount(place.ravel(), lengths[on_street], len(raster))
        return Candidates((raster + 0.5) * PIECE_KM, weights / weights.sum(), "places on streets")
    has_area = zone.prior > 0
    return Candidates(zone.grid.points[zone.core][has_area], zone.prior[has_area], "cells")


def _build_uniform_candidates(points: FloatArray, kind: str) -> Candidates:
    return Candidates(points, np.full(len(points), 1 / len(points)), kind)


def _meets_square(ends: FloatArray, half: float) -> BoolArray:
    """Return which edges have a bounding box that meets a square. Their ends may be outside."""
    return np.asarray((ends.min(axis=1) <= half).all(axis=1) & (ends.max(axis=1) >= -half).all(axis=1))


def _find_crossings(ends: FloatArray, half: float) -> dict[int, FloatArray]:
    """Return edge → its crossings with the border of a square, in its order."""
    crossings = dict[int, FloatArray]()
    near = np.flatnonzero(_meets_square(ends, half))
    depth = np.abs(ends[near]).max(axis=2) - half
    for edge in near[(depth > 0).any(axis=1)]:
        start, end = ends[edge]
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.concatenate([(side - start) / (end - start) for side in (-half, half)])
        shares = np.sort(shares[(shares > 0) & (shares < 1)])
        points = start + shares[:, None] * (end - start)
        on_border = np.abs(np.abs(points).max(axis=1) - half) < _BORDER_KM
        if on_border.any():
            crossings[int(edge)] = points[on_border]
    return crossings


def _densify(points: FloatArray, edges: IntArray, max_km: float) -> tuple[FloatArray, IntArray]:
    """Return points and edges after splitting the edges that are longer than a length."""
    lengths = np.hypot(*(points[edges[:, 1]] - points[edges[:, 0]]).T)
    counts = np.maximum(np.ceil(lengths / max_km), 1).astype(np.int64)
    edge = np.repeat(np.arange(len(edges)), counts)
    number = np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_last = number == counts[edge] - 1
    share = ((number + 1) / counts[edge])[~is_last, None]
    middles = points[edges[edge[~is_last], 0]] * (1 - share) + points[edges[edge[~is_last], 1]] * share
    ends = np.empty(len(edge), dtype=np.int64)
    ends[is_last] = edges[:, 1]
    ends[~is_last] = np.arange(len(points), len(points) + len(middles))
    # A part begins where the previous part of its edge ends, and the first one at the start of the edge.
    starts = np.where(number == 0, edges[edge, 0], np.roll(ends, 1))
    return np.concatenate([points, middles]), np.stack([starts, ends], axis=1)


def _build_graph(points: FloatArray, edges: IntArray) -> Any:
    """Return the graph of edges with their lengths in the plane, which are positive."""
    from scipy.sparse import csr_array

    lengths = np.maximum(np.hypot(*(points[edges[:, 1]] - points[edges[:, 0]]).T), _BORDER_KM)
    # One of the edges between two nodes, which are straight and equally long: the matrix would store their sum.
    _, unique = np.unique(np.sort(edges, axis=1), axis=0, return_index=True)
    return csr_array((lengths[unique], edges[unique].T), shape=(len(points), len(points)))


class ZoneStreets:
    """The streets in and around a zone, and the inference of an adversary who knows them.

    Parameters
    ----------
    zone
        The zone.
    street_map
        A map of the zone, and of the streets within `MAP_MARGIN_KM` of it. Motorways are omitted on foot and by
        bicycle, paths by car.
    scale_km, wandering, dependence
        The parameters of the adversary.
    """

    def __init__(
        self,
        zone: HiddenZone,
        street_map: StreetMap,
        scale_km: float = SCALE_KM,
        wandering: float = WANDERING,
        dependence: float = DEPENDENCE,
    ) -> None:
        self.zone = zone
        self.candidates = find_candidates(street_map, zone)
        self.scale_km = scale_km
        self.wandering = wandering
        self.dependence = dependence
        self._gate_logs = dict[bytes, FloatArray]()
        closed = STREET_CLASSES.index("path" if zone.kind == "driving" else "motorway")
        plane = zone.projection.to_plane(*street_map.nodes.T) if len(street_map.nodes) else np.zeros((0, 2))
        edges = street_map.edges[street_map.classes != closed]
        self._build(plane, edges[_meets_square(plane[edges], zone.half_km + MAP_MARGIN_KM)])

    def _build(self, points: FloatArray, edges: IntArray) -> None:
        """Split the edges at the border, and into parts on which every location is near a node."""
        from scipy.sparse.csgraph import connected_components

        half = self.zone.half_km
        used, edges = np.unique(edges, return_inverse=True)
        points, edges = points[used], edges.reshape(-1, 2)
        cuts, gates = list[tuple[int, int]](), list[FloatArray]()
        is_cut = np.zeros(len(edges), dtype=np.bool_)
        for edge, crossings in _find_crossings(points[edges], half).items():
            first = len(points) + len(gates)
            nodes = [edges[edge, 0], *range(first, first + len(crossings)), edges[edge, 1]]
            cuts += pairwise(nodes)
            gates += list(crossings)
            is_cut[edge] = True
        self.gates = np.arange(len(points), len(points) + len(gates))
        points = np.concatenate([points, np.array(gates).reshape(-1, 2)])
        edges = np.concatenate([edges[~is_cut], np.array(cuts, dtype=np.int64).reshape(-1, 2)])
        points, edges = _densify(points, edges, _MAX_EDGE_KM)
        is_inside = np.abs(points[edges].mean(axis=1)).max(axis=1, initial=0.0) < half
        self.points = points
        self._inside = _build_graph(points, edges[is_inside])
        self._outside = _build_graph(points, edges[~is_inside])
        # A location near the end of an unconnected street is on another one.
        _, component = connected_components(self._outside, directed=False)
        outside = np.unique(edges[~is_inside])
        self._outside_nodes = outside[np.isin(component[outside], component[self.gates])]

    @cached_property
    def gate_distances(self) -> FloatArray:
        """``(n, k)``: the way in the zone from each candidate to each gate, kilometres.

        Infinite without a way. The way from the candidate to the nearest point of a street is the same for all gates,
        and is omitted.
        """
        from scipy.sparse.csgraph import dijkstra
        from scipy.spatial import KDTree

        if not len(self.gates):
            return np.zeros((len(self.candidates.points), 0))
        ways = dijkstra(self._inside, directed=False, indices=self.gates)
        reached = np.flatnonzero(np.isfinite(ways).any(axis=0))
        _, nearest = KDTree(self.points[reached]).query(self.candidates.points)
        return np.asarray(ways[:, reached[nearest]].T)

    def gate_probabilities(self, towards: FloatArray) -> FloatArray:
        """Return the probability of each gate for each candidate, given a later location.

        Parameters
        ----------
        towards
            ``(2,)``: the location outside the zone, kilometres.

        Returns
        -------
        FloatArray
            ``(n, k)``. Uniform for a candidate or a location without a way.
        """
        from scipy.sparse.csgraph import dijkstra

        count = len(self.gates)
        node = self._outside_nodes[np.hypot(*(self.points[self._outside_nodes] - towards).T).argmin()]
        beyond = dijkstra(self._outside, directed=False, indices=node)[self.gates]
        ways = self.gate_distances + beyond
        shortest = ways.min(axis=1, keepdims=True)
        has_way = np.isfinite(shortest[:, 0])
        weights = np.ones_like(ways)
        weights[has_way] = np.exp(-(ways[has_way] - shortest[has_way]) / self.scale_km)
        weights /= weights.sum(axis=1, keepdims=True)
        return (1 - self.wandering) * weights + self.wandering / count

    def gate_weights(self, point: FloatArray) -> FloatArray:
        """Return the likelihood of the first kept point for each gate, ``(k,)``, up to a factor."""
        # If the point is farther from every gate than the standard deviation, the distance to the nearest replaces it.
        squared = ((self.points[self.gates] - point) ** 2).sum(axis=1)
        return np.asarray(np.exp(-0.5 * (squared - squared.min()) / max(_GATE_STD_KM**2, squared.min())))

    def gate_log_likelihood(self, gate: Gate) -> FloatArray:
        """Return the log-likelihood of a gate of a stop for each candidate, ``(n,)``."""
        key = gate.point.tobytes() + gate.towards.tobytes()
        if key not in self._gate_logs:
            likelihood = self.gate_probabilities(gate.towards) @ self.gate_weights(gate.point)
            self._gate_logs[key] = np.log(np.maximum(likelihood, MIN_LIKELIHOOD))
        return self._gate_logs[key]

    def _find_gates(self, stretches: Sequence[Stretch]) -> list[Gate]:
        """Return the gates of the stops."""
        return find_gates([stretch for stretch in stretches if self.zone.is_stop(stretch)])

    def covers(self, stretches: Sequence[Stretch]) -> bool:
        """Return whether the map has a street near each gate of a stop and the location ahead.

        Without one, the shortest way is not known: the map ends there, or the user did not take a street. True without
        such a gate, because the posterior is the prior with any map.

        Parameters
        ----------
        stretches
            The stretches.
        """
        places = [place for gate in self._find_gates(stretches) for place in (gate.point, gate.towards)]
        nodes = self.points[self._outside_nodes]
        return all(len(nodes) and np.hypot(*(nodes - place).T).min() <= _MAX_STREET_KM for place in places)

    def log_likelihood(self, stretches: Sequence[Stretch]) -> FloatArray:
        """Return the log-likelihood of stretches for each candidate.

        Parameters
        ----------
        stretches
            The stretches. Crossings without a stop are ignored.

        Returns
        -------
        FloatArray
            ``(n,)``: 0 if no street crosses the border.
        """
        total = np.zeros(len(self.candidates.points))
        gates = self._find_gates(stretches)
        if len(self.gates) and gates:
            for gate in gates:
                total += self.gate_log_likelihood(gate)
            total /= 1 + self.dependence * (len(gates) - 1)
        return total


def compute_candidate_posteriors(
    streets: ZoneStreets, likelihoods: Sequence[Mapping[str, FloatArray]], stretches: Sequence[Stretch]
) -> dict[str, FloatArray]:
    """Return each adversary's posterior probabilities of the candidates.

    Parameters
    ----------
    streets
        The streets of the zone.
    likelihoods
        The result of `dphmm.hide.zone_inference.compute_log_likelihoods` for each stretch.
    stretches
        The stretches.

    Returns
    -------
    dict
        Each of `ADVERSARIES`, and `STREET` if the map covers the stretches → ``(n,)``.
    """
    candidates = streets.candidates
    cells = candidates.find_nearest_cells(streets.zone)
    logs = {name: np.zeros(len(cells)) for name in ADVERSARIES}
    for likelihood in likelihoods:
        for name in ADVERSARIES:
            logs[name] += likelihood[name][cells]
    if streets.covers(stretches):
        logs[STREET] = streets.log_likelihood(stretches)
    posteriors = {}
    for name, log in logs.items():
        mass = candidates.prior * np.exp(log - log.max())
        posteriors[name] = mass / mass.sum()
    return posteriors


def infer_candidates(
    streets: ZoneStreets, likelihoods: Sequence[Mapping[str, FloatArray]], stretches: Sequence[Stretch]
) -> tuple[ZoneInference, ...]:
    """Return each adversary's inference, if all of them know which locations are possible.

    Parameters
    ----------
    streets, likelihoods, stretches
        As for `compute_candidate_posteriors`.

    Returns
    -------
    tuple of ZoneInference
        One for each of `ADVERSARIES`, and one for `STREET` if the map covers the stretches.
    """
    zone, candidates = streets.zone, streets.candidates
    cells = candidates.find_nearest_cells(zone)
    cell_km = zone.grid.cell_km if candidates.kind == "cells" else 0.0
    prior = Inference(candidates.prior, candidates.points, cell_km)
    prior_cells = np.bincount(cells, candidates.prior, len(zone.core))
    inferences = []
    for name, mass in compute_candidate_posteriors(streets, likelihoods, stretches).items():
        posterior = Inference(mass, candidates.points, cell_km)
        posterior_cells = np.asarray(np.bincount(cells, mass, len(zone.core)), dtype=np.float64)
        inferences.append(
            ZoneInference(
                name,
                float(posterior_cells.max()),
                float(prior_cells.max()),
                posterior.rms_error,
                prior.rms_error,
                posterior_cells,
                posterior.max_probability,
            )
        )
    return tuple(inferences)
