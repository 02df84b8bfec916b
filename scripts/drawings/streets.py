"""Errors of drives, with segments of streets as states and with square cells.

A user drives at 30 km/h along shortest ways to random destinations, and releases a location every minute with a model
without users' data. The errors of releases and of estimates are distances in a straight line, and for estimates also
along streets, from the nearest segment of 25 m. ``one_release.csv`` compares mechanisms by the mean error along
streets of one release from a uniform location, in the largest square around the map's middle with few segments.

MAP is a street map as for ``dphmm model blank --streets``.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from functools import cache, cached_property
from math import inf

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from dphmm import MarkovModel, ReleaseSettings
from dphmm.errors import StateError
from dphmm.jobs import build_blank_model
from dphmm.space import Grid, StateSpace, Streets
from dphmm.tables.street_map import StreetMap, read_street_map
from scripts.drawings.sheet import write

DATA = ("map",)
RUNS = 40
MINUTES = 20
SPEED_KM = 0.5  # a minute, 30 km/h
STATE_KM = 0.1
FINE_KM = 0.025
# Segments of the comparison of mechanisms, their largest numbers, and releases from each. `optimal` allows 64 states.
SMALL_KM = 0.15
SMALL_SIZES = {64: ("lattice", "graph-exponential", "optimal"), 300: ("lattice", "graph-exponential")}
DRAWS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bbox", type=float, nargs=4, metavar=("S", "W", "N", "E"), help="a part of the map")


class Network:
    """Distances and shortest ways between the segments of a space, from middle to middle."""

    def __init__(self, space: Streets) -> None:
        self.space = space
        first, second = space.adjacency().T
        lengths = (space.lengths_km[first] + space.lengths_km[second]) / 2
        self._graph = csr_array((lengths, (first, second)), shape=(space.size, space.size))
        self.measure = cache(self._measure)

    def _measure(self, state: int) -> tuple[np.ndarray, np.ndarray]:
        """Return distances from a segment in kilometres, and predecessors on shortest ways."""
        return dijkstra(self._graph, directed=False, indices=state, return_predecessors=True)

    @cached_property
    def middles(self) -> np.ndarray:
        """The middles of the segments, degrees."""
        return self.space.projection.to_latlon(self.space.points)

    def locate(self, places: np.ndarray) -> np.ndarray:
        """Return the nearest segments of places in degrees, however far they are."""
        return self.space.locate_plane(self.space.projection.to_plane(*places.T))

    def drive(self, rng: np.random.Generator, minutes: int) -> np.ndarray:
        """Return the segment at each minute of a drive."""
        ways, driven = [int(rng.integers(self.space.size))], [0.0]
        while driven[-1] <= minutes * SPEED_KM:
            distances, before = self.measure(ways[-1])
            way = [int(rng.integers(self.space.size))]
            while way[-1] != ways[-1]:
                way.append(int(before[way[-1]]))
            driven += (driven[-1] + distances[way[-2::-1]]).tolist()
            ways += way[-2::-1]
        return np.array(ways)[np.searchsorted(driven, SPEED_KM * np.arange(minutes))]


def draw(options: argparse.Namespace) -> None:
    street_map = read_street_map(options.map)
    network = Network(Streets.from_map(street_map, FINE_KM, inf, options.bbox))
    middles = network.middles
    segments = Streets.from_map(street_map, STATE_KM, inf, options.bbox)
    box = (*middles.min(axis=0), *middles.max(axis=0))
    rng = np.random.default_rng(options.seed)
    drives = [network.drive(rng, 3 if options.small else MINUTES) for _ in range(options.runs)]
    rows = []
    for space, policy in (
        (segments, "streets:300m"),
        (segments, "utility:300m"),
        (Grid.over(box, STATE_KM), "utility:300m"),
    ):
        means = np.array(
            [measure_drive(network, space, policy, path, options.seed + k) for k, path in enumerate(drives)]
        )
        margins = 1.96 * means.std(axis=0, ddof=1) / len(means) ** 0.5 if len(means) > 1 else np.full(3, np.nan)
        rows.append([space.kind, policy, space.size, *means.mean(axis=0).round(3), *margins.round(3)])
        print(*rows[-1])
    errors = ["release_km", "estimate_km", "estimate_along_km"]
    header = ["states", "policy", "num_states", *errors, *(f"{name}_margin" for name in errors)]
    write(options.folder / "streets.csv", header, rows)
    rows = [
        row
        for largest in [*SMALL_SIZES][: 1 if options.small else None]
        for row in compare_mechanisms(
            choose_part(street_map, middles.mean(axis=0), largest),
            SMALL_SIZES[largest],
            1 if options.small else DRAWS,
            options.seed,
        )
    ]
    write(options.folder / "one_release.csv", ["segments", "policy", "mechanism", "release_along_km"], rows)


@cache
def build_model(space: StateSpace) -> MarkovModel:
    return build_blank_model(space, 60, "driving").model


def measure_drive(network: Network, space: StateSpace, policy: str, path: np.ndarray, seed: int) -> list[float]:
    """Return the mean errors of releases and of estimates, and the latter along streets."""
    engine = ReleaseSettings(policy, 1.0).engine(build_model(space), seed)
    places = network.middles[path]
    states = space.locate_plane(space.projection.to_plane(*places.T))
    records = [engine.release(state) for state in states.tolist()]
    true = network.space.points[path]
    released, estimates = (
        space.projection.to_latlon(np.array(points))
        for points in zip(*((record.released, record.estimate) for record in records), strict=True)
    )
    straight = [
        float(np.linalg.norm(network.space.projection.to_plane(*at.T) - true, axis=1).mean())
        for at in (released, estimates)
    ]
    along = [network.measure(state)[0][guess] for state, guess in zip(path, network.locate(estimates), strict=True)]
    return [*straight, float(np.mean(along))]


def compare_mechanisms(space: Streets, mechanisms: tuple[str, ...], draws: int, seed: int) -> list[list[object]]:
    """Return the mean error along streets of one release for each mechanism."""
    rows: list[list[object]] = []
    network = Network(space)
    uniform = np.full(space.size, 1 / space.size)
    model = MarkovModel(build_model(space).transition, uniform, space, 60)
    for policy in ("streets:300m", "utility:300m"):
        for mechanism in mechanisms:
            engine = ReleaseSettings(policy, 1.0, mechanism=mechanism).engine(model, seed)
            errors = []
            for state in range(space.size):
                for _ in range(draws):
                    engine.restart()
                    released = engine.release(state).released
                    errors.append(network.measure(state)[0][space.locate_plane(np.array([released]))[0]])
            rows.append([space.size, policy, mechanism, round(float(np.mean(errors)), 3)])
            print(*rows[-1])
    return rows


def choose_part(street_map: StreetMap, middle: np.ndarray, largest: int) -> Streets:
    """Return the segments in the largest square around a location with few segments."""
    parts = []
    for step in range(1, 200):
        half = 0.0005 * step * np.array([1.0, 1 / np.cos(np.radians(middle[0]))])
        with suppress(StateError):  # a square without a street
            parts.append(Streets.from_map(street_map, SMALL_KM, inf, (*(middle - half), *(middle + half))))
        if parts and parts[-1].size > largest:
            break
    return max((part for part in parts if part.size <= largest), key=lambda part: part.size)
