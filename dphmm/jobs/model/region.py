"""The states of a model: a region that is described, or selected from trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Annotated

import numpy as np
import shapely

from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError, DataFileError, StateError
from dphmm.jobs.region_map import RegionMap, build_region_map, get_credit, restrict_region
from dphmm.mechanisms.discrete_laplace import sample_discrete_laplace
from dphmm.policy.zones import read_polygons
from dphmm.random import Rng, as_random_source
from dphmm.readers.fix_tables import read_places
from dphmm.space import Grid, LocalProjection, StateSpace, Trajectory
from dphmm.space.grid import Box, CellSize, get_preset_box, join_at_date_line, turn_back
from dphmm.space.streets import SEGMENT_KM, WITHIN_KM, Streets
from dphmm.space.towns import find_town_box
from dphmm.tables.source import get_suffix
from dphmm.tables.street_map import read_street_map
from dphmm.validation import Interval, check_arguments

# The maximum number of states of an automatically selected grid. With these, gaps of any length are fast.
MAX_STATES = 2000

# The share of a budget that is spent on selecting a region.
REGION_BUDGET_SHARE = Fraction(1, 10)

# Candidate steps, in seconds, and cell sizes, in kilometres.
_STEPS = (60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
_CELLS = (0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
# Five minutes suit most data, and selecting the step from the data would cost budget.
_PRIVATE_STEP = 300.0
# Tiles per degree of a private selection: 55 km from south to north.
_TILES_PER_DEGREE = 2
# Maximum distance of the region from its densest bin: a town with its suburbs.
_NEAR_KM = 25.0
# Bins of 5.5 km: wide enough to contain a town, and narrow enough to centre on it.
_BINS_PER_DEGREE = 20
# The share of fixes along each axis that may be outside the region, half of it at each end.
_OUTLIER_SHARE = 0.02
# Margin of the box on each side, 550 m, so that no fix is on its border.
_MARGIN_DEGREES = 0.005


@dataclass(frozen=True)
class Choice:
    """An automatically selected region, cell size and step.

    Parameters
    ----------
    bbox
        South, west, north, east, in degrees.
    cell
        The cell size, in kilometres.
    step_seconds
        The timestep, in seconds.
    epsilon
        The budget spent on the selection; None without noise.
    """

    bbox: tuple[float, float, float, float]
    cell: float
    step_seconds: float
    epsilon: Fraction | None = None

    @property
    def options(self) -> str:
        """The equivalent options of ``dphmm learn``."""
        box = " ".join(f"{side:g}" for side in self.bbox)
        return f"--bbox {box} --cell {self.cell:g} --step {self.step_seconds:g}"

    @property
    def space(self) -> Grid:
        """The grid."""
        return Grid.over(self.bbox, self.cell)


def choose_city(tracks: Sequence[Trajectory], step_seconds: float | None = None) -> Choice:
    """Select the city with most of the users, without noise.

    The box contains the fixes within 25 km of the densest bin, without the outermost hundredth at each end of each
    axis. Users have equal weights. The cell size is the smallest, from 250 m on, with at most `MAX_STATES` cells. The
    step is the shortest, from one minute to an hour, that is at least the median over users of their median time
    between fixes.
    """
    latitude = np.concatenate([trajectory.latitude for trajectory in tracks])
    longitude = np.concatenate([trajectory.longitude for trajectory in tracks])
    longitude = np.where(longitude == 180.0, -180.0, longitude)
    weight = np.concatenate([np.full(len(trajectory), 1.0 / len(trajectory)) for trajectory in tracks])
    bins = np.floor(np.stack([latitude, longitude]) * _BINS_PER_DEGREE).astype(np.int64)
    distinct, at = np.unique(bins, axis=1, return_inverse=True)
    best = distinct[:, np.bincount(at.ravel(), weight).argmax()]
    middle = np.minimum((best + 0.5) / _BINS_PER_DEGREE, (90.0, 180.0))  # the pole has its own bin
    near = np.abs(LocalProjection(*middle.tolist()).to_plane(latitude, longitude)).max(axis=1) <= _NEAR_KM
    south, north = _trim_range(latitude[near], weight[near])
    # Longitudes on the other side of the 180th meridian continue those of this side.
    turns = np.round((middle[1] - longitude[near]) / 360.0)
    west, east = _wrap_sides(*_trim_range(longitude[near] + 360.0 * turns, weight[near]))
    box = max(south, -90.0), west, min(north, 90.0), east
    return Choice(
        box, find_smallest_cell(box), _find_shortest_step(tracks) if step_seconds is None else float(step_seconds)
    )


def choose_privately(
    tracks: Sequence[Trajectory], epsilon: Fraction, step_seconds: float | None = None, rng: Rng = None
) -> Choice:
    """Select the half-degree tile with most users, with differential privacy.

    Each user is counted in the tile with most of their fixes. Discrete Laplace noise of scale ``1 / epsilon`` on the
    count of each tile of the Earth makes the selection epsilon-differentially private at the user level. With fewer
    than about ``15 / epsilon`` users in the best tile, noise may select another. The step defaults to 300 s.
    """
    columns = 360 * _TILES_PER_DEGREE
    rows = 180 * _TILES_PER_DEGREE
    votes = np.zeros(columns * rows, dtype=np.int64)
    for trajectory in tracks:
        row = np.minimum(np.floor((trajectory.latitude + 90) * _TILES_PER_DEGREE).astype(np.int64), rows - 1)
        column = np.floor((trajectory.longitude + 180) * _TILES_PER_DEGREE).astype(np.int64) % columns
        tiles, counts = np.unique(row * columns + column, return_counts=True)
        votes[tiles[counts.argmax()]] += 1
    noisy = votes + sample_discrete_laplace(epsilon, votes.size, as_random_source(rng))
    south, west = divmod(int(noisy.argmax()), columns)
    box = (
        south / _TILES_PER_DEGREE - 90,
        west / _TILES_PER_DEGREE - 180,
        (south + 1) / _TILES_PER_DEGREE - 90,
        (west + 1) / _TILES_PER_DEGREE - 180,
    )
    return Choice(box, find_smallest_cell(box), _PRIVATE_STEP if step_seconds is None else float(step_seconds), epsilon)


def select_region(
    tracks: Sequence[Trajectory], budget: Fraction | None, step_seconds: float | None
) -> tuple[Choice, Fraction | None]:
    """Return the selected region, and the budget that remains for the model."""
    if budget is None:
        return choose_city(tracks, step_seconds), None
    choice = choose_privately(tracks, budget * REGION_BUDGET_SHARE, step_seconds)
    return choice, budget * (1 - REGION_BUDGET_SHARE)


def _trim_range(values: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Return the range without the outermost hundredths, rounded outwards to 0.01 degrees."""
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    low, high = values[order][np.searchsorted(share, [_OUTLIER_SHARE / 2, 1 - _OUTLIER_SHARE / 2])]
    return float(np.floor((low - _MARGIN_DEGREES) * 100) / 100), float(np.ceil((high + _MARGIN_DEGREES) * 100) / 100)


def _wrap_sides(west: float, east: float) -> tuple[float, float]:
    """Return the sides in [-180, 180]. Across the 180th meridian, west is beyond east."""
    if round(east - west, 2) >= 360.0:
        return -180.0, 180.0
    return west if west >= -180.0 else round(west + 360.0, 2), east if east <= 180.0 else round(east - 360.0, 2)


def find_smallest_cell(box: tuple[float, float, float, float]) -> float:
    """Return the smallest cell size for which a box has at most `MAX_STATES` cells."""
    cell = next((cell for cell in _CELLS if Grid.over(box, cell).size <= MAX_STATES), None)
    if cell is None:
        raise ConfigurationError(f"region {box} is too large for automatic cells: use --bbox and --cell")
    return cell


def _find_shortest_step(tracks: Sequence[Trajectory]) -> float:
    """Return the shortest step that is at least the median time between fixes."""
    intervals = [
        float(np.median(np.diff(trajectory.times).astype(np.int64)) / 1e6)
        for trajectory in tracks
        if len(trajectory) > 1
    ]
    median = float(np.median(intervals)) if intervals else _STEPS[-1]
    return next((step for step in _STEPS if step >= median), _STEPS[-1])


# Default cell sizes of presets that differ from the published ones; see `region`. Evaluations do not use them.
_PRESET_CELLS = {"gowalla": 2.0}


@check_arguments
def region(
    preset: str | None = None,
    bbox: tuple[float, float, float, float] | None = None,
    polygon: str | Path | None = None,
    places: str | Path | None = None,
    within_km: Annotated[float, Interval(0, inf, "right", "kilometres", ConfigurationError)] | None = None,
    cell_km: CellSize | None = None,
    town: str | None = None,
    extent: str | Path | None = None,
    streets: str | Path | None = None,
) -> StateSpace:
    """Create the state space of a region from exactly one of seven descriptions.

    Parameters
    ----------
    preset
        A region of `dphmm.space.grid.PRESETS`: ``"geolife"``, ``"gowalla"`` or ``"cabspotting"``. The cell size
        defaults to that of the preset, except for Gowalla, where it is 2 km: with the paper's 0.89 km and a step of one
        hour, the default of ``dphmm learn``, a model would have too many moves. `Grid.preset` has the published cells.
    bbox
        South, west, north, east, in degrees. Requires `cell_km`.
    polygon
        A layer of polygons (GeoJSON, KML, GeoPackage). Requires `cell_km`.
    places
        A CSV of named places: name, latitude, longitude.
    within_km
        With `places` or `streets`: the maximum distance of a fix from its place or segment, in kilometres. Defaults to
        any distance from a place, and to 0.2 km from a segment.
    cell_km
        The side of a grid cell, in kilometres. With `streets`: the largest length of a segment; 0.1 km by default.
    town
        A town on the bundled map: the square of 20 km around it. See `dphmm.space.towns.find_town`.
    extent
        A file with *public* locations, such as a layer of districts: the box around them.
    streets
        A public map file with streets: the states are segments of its streets (`dphmm.space.Streets`). It can be
        combined with `bbox`, `town` or `extent`, which then bound the streets.

    Returns
    -------
    StateSpace
        A grid, named places, or segments of streets.

    Raises
    ------
    ConfigurationError
        If there is not exactly one description, or a cell size is missing or superfluous.
    CoordinateError, StateError, DataFileError
        If the description is invalid.

    Examples
    --------
    >>> region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    Grid(182 states of 0.5 km in 13 columns and 14 rows)
    """
    num_boxes = sum(box is not None for box in (bbox, town, extent))
    num_others = sum(choice is not None for choice in (preset, polygon, places, streets))
    if num_others + num_boxes != 1 and not (streets is not None and num_others == num_boxes == 1):
        raise ConfigurationError(
            "exactly one region is required: use one of --preset, --bbox, --town, --polygon, --places, extent and "
            "--streets, which one of --bbox, --town and extent may bound"
        )
    if streets is not None:
        return _read_streets(
            Path(streets), cell_km, within_km, get_bounding_box(bbox, town, extent) if num_boxes else None
        )
    if places is not None:
        if cell_km is not None:
            raise ConfigurationError("--cell cannot be combined with --places: named places have no cells")
        return read_places(places, float("inf") if within_km is None else within_km)
    if within_km is not None:
        raise ConfigurationError("within_km requires --places or --streets")
    if preset is not None:
        cell_km = _PRESET_CELLS.get(preset) if cell_km is None else cell_km
        return Grid.preset(preset) if cell_km is None else Grid.over(get_preset_box(preset), cell_km)
    if cell_km is None:
        raise ConfigurationError("a grid needs a cell size: use --cell with kilometres, such as --cell 0.5")
    if bbox is not None or town is not None or extent is not None:
        return Grid.over(get_bounding_box(bbox, town, extent), cell_km)
    return Grid.over(shapely.union_all([shape for _, shape in read_polygons(str(polygon))]), cell_km)


def _read_streets(path: Path, segment: float | None, within: float | None, bounds: Box | None) -> Streets:
    """Return the segments of the streets of a map file."""
    try:
        return Streets.from_map(
            read_street_map(path, bounds),
            SEGMENT_KM if segment is None else segment,
            WITHIN_KM if within is None else within,
            bounds,
            get_credit(path),
        )
    except StateError as problem:
        raise DataFileError(path, str(problem)) from None


# Files with the locations of a user, not with the polygons of a region.
_RECORDING_SUFFIXES = frozenset({".gpx", ".fit", ".tcx", ".rec", ".plt", ".csv", ".jsonl"})


def get_bounding_box(bbox: Box | None, town: str | None, extent: str | Path | None) -> Box:
    """Return the box of a region."""
    if bbox is not None:
        return bbox
    if town is not None:
        return find_town_box(town)
    if get_suffix(Path(str(extent))) in _RECORDING_SUFFIXES:
        raise ConfigurationError(
            f"extent must be a public layer of polygons, got the recording {extent}, and its bounding box would reveal "
            "its outermost locations: use --town NAME or --bbox SOUTH WEST NORTH EAST"
        )
    outline = join_at_date_line(shapely.union_all([shape for _, shape in read_polygons(str(extent))]))
    west, south, east, north = outline.bounds
    return south, west, north, float(turn_back(east))


def prepare_region(
    space: StateSpace, region_map: str | Path | None, only_on: str | Path | None
) -> tuple[StateSpace, RegionMap | None, tuple[str, ...]]:
    """Return the region restricted to a layer, its informative map, and warnings."""
    mapped_region = None if region_map is None else build_region_map(region_map, space)
    warnings: tuple[str, ...] = ()
    if only_on is not None:
        space, warnings = restrict_region(space, only_on, mapped_region)
        mapped_region = None if region_map is None else build_region_map(region_map, space)
    return space, None if mapped_region is None or mapped_region.is_uninformative else mapped_region, warnings
