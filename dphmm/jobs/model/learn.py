"""Learning models from trajectories, and the list of their training users.

A model learned without noise violates the guarantee of its training users. The moves that are possible in it, and
therefore the constraint sets, repairs, hulls and noise, depend on their true locations in other ways than through the
releases. A private list of the training users is therefore stored next to the model's file, and releases of their data
are refused. The model itself is public and contains no names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from hashlib import blake2b
from heapq import heappush, heappushpop
from itertools import chain, islice
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import shapely

from dphmm.arrays import MAX_SCALE, FloatArray
from dphmm.errors import ConfigurationError, DataFileError, StateError
from dphmm.formatting import Result, as_plain, export_fields
from dphmm.jobs.batch.workers import Engine, Processes
from dphmm.jobs.input_data import MALFORMED, SAME_TIME, Data, DataLike, Dropped, UserTracks, in_blocks
from dphmm.jobs.model.private import MOVES_PER_USER, PrivateModel, fit_private_moves
from dphmm.jobs.model.training_data import CountingRules, TrainingData, count_block
from dphmm.jobs.progress import ProgressCallback, unwatched
from dphmm.jobs.region_map import COAST, RegionMap, build_region_map, get_credit, restrict_region
from dphmm.mechanisms.exact import Rational, rational
from dphmm.mechanisms.lattice_noise import laplace_steps
from dphmm.model.calibrated_radii import MAX_USERS, MIN_USERS, compute_calibrated_radii
from dphmm.model.fitting import Extension, ShrunkModel, extend, fit_shrunk_counts
from dphmm.model.model import MarkovModel
from dphmm.model.outside_states import create_outside_states
from dphmm.model.region_priors import NO_USERS, get_kind, region_prior
from dphmm.model.speed_limit import MAX_SPEED_KMH
from dphmm.model.time_classes import ClassScheme, TimeClasses
from dphmm.policy.zones import read_polygons
from dphmm.random import Rng, random_source
from dphmm.readers.table import read_places
from dphmm.space import Grid, LocalProjection, StateSpace, Trajectory
from dphmm.space.grid import Box, CellSize, preset_box
from dphmm.space.streets import SEGMENT_KM, WITHIN_KM, Streets
from dphmm.space.towns import town_box
from dphmm.tables import check_output, new_file, write_text
from dphmm.tables.source import get_suffix
from dphmm.tables.street_map import read_street_map
from dphmm.validation import Interval, PositiveInt, PositiveNumber, Seconds, checked

_FORMAT = "dphmm-learned-from-1"
_SUFFIX = ".PRIVATE-users.json"


def private_list_path(model: str | Path) -> Path:
    """Return the path of a model's user list: ``city.npz`` has ``city.PRIVATE-users.json``."""
    path = Path(model)
    return path.with_name(path.stem + _SUFFIX)


def write_user_list(path: Path, model: MarkovModel, users: Iterable[str], overwrite: bool = False) -> None:
    """Write the list of a model's training users atomically. Only the owner can read the file.

    Raises
    ------
    OutputError
        If the file exists and may not be replaced, or cannot be written.
    """
    about = {"format": _FORMAT, "model": model.content_hash, "users": sorted(set(users))}
    write_text(path, json.dumps(about, indent=1) + "\n", overwrite, private=True)


def find_training_users(file: str | Path | MarkovModel, model: MarkovModel) -> frozenset[str] | None:
    """Return the training users of a model, from the lists in the folder of its file.

    A list identifies its model by content, so it remains valid if the model is renamed. The training users are unknown
    if the model was copied without its list, was changed, or is not in a file. Users who appear under another name are
    not recognised.

    Parameters
    ----------
    file
        The model's file. A model without a file has no list.
    model
        The content of the file.

    Returns
    -------
    frozenset of str or None
        None if no list belongs to the model. Empty for a region prior.

    Raises
    ------
    DataFileError
        If a list in the folder cannot be read.
    """
    if (model.provenance or {}).get("learned_from") == NO_USERS:
        return frozenset()
    if isinstance(file, MarkovModel):
        return None
    folders = {Path(file).absolute().parent, Path(file).resolve().parent}
    lists = [_read_user_list(path) for folder in sorted(folders) for path in sorted(folder.glob(f"*{_SUFFIX}"))]
    matching = [users for model_hash, users in lists if model_hash == model.content_hash]
    return frozenset().union(*matching) if matching else None


def _read_user_list(path: Path) -> tuple[str, frozenset[str]]:
    """Return the content hash of a list's model, and its users."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["format"] != _FORMAT or not all(isinstance(name, str) for name in [about["model"], *about["users"]]):
            raise ValueError
        return about["model"], frozenset(about["users"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataFileError(
            path, "is not a valid list of training users: restore it, or set allow_training_users"
        ) from None


def refuse_training_users(seen: Collection[str] | None, users: Iterable[str]) -> None:
    """Raise an error if the model was trained on some of the users.

    Raises
    ------
    ConfigurationError
        If a user is a training user.
    """
    overlap = [user for user in users if seen is not None and user in seen]
    if overlap:
        noun = "training user" if len(overlap) == 1 else "training users"
        names = ", ".join(overlap[:8]) + (", …" if len(overlap) > 8 else "")
        raise ConfigurationError(
            f"the model must not be trained on the users to protect, got {noun} {names}: its constraint sets "
            "depend on their true locations. Learn it from other users (--exclude-users), or set allow_training_users"
        )


def read_unseen_users(
    data: DataLike, model: Model | None, learned: MarkovModel | None, allow_training_users: bool
) -> tuple[UserTracks, str]:
    """Read data, and refuse users that the model was trained on, if these are known.

    Parameters
    ----------
    data
        The data.
    model
        The model, or its file, next to which its user list is stored; None without a model.
    learned
        The loaded model.
    allow_training_users
        Whether to skip the check.

    Returns
    -------
    user_tracks : UserTracks
        All users of the data.
    training_users : str
        A description of the result of the check.

    Raises
    ------
    ConfigurationError
        If the model was trained on a user, or the data are configured wrongly; see `Data.read`.
    DataFileError
        If the data or a user list cannot be read.
    """
    seen = None
    if not allow_training_users and model is not None and learned is not None:
        seen = find_training_users(model, learned)
    space = None if learned is None else learned.states
    user_tracks = Data.from_any(data).within(space).read()
    refuse_training_users(seen, [trajectory.user for trajectory in user_tracks.trajectories])
    answer = "unknown: no user list next to the model" if seen is None else "no"
    return user_tracks, "not checked (allow_training_users)" if allow_training_users else answer


MAX_STATES = 2000
"""The maximum number of states of an automatically selected grid. With these, gaps of any length are fast."""

REGION_BUDGET_SHARE = Fraction(1, 10)
"""The share of a budget that is spent on selecting a region."""

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


def choose(tracks: Sequence[Trajectory], step_seconds: float | None = None) -> Choice:
    """Select the city with most of the users, without noise.

    The box contains the fixes within 25 km of the densest bin, without the outermost hundredth at each end of each
    axis. Users have equal weights. The cell size is the smallest, from 250 m on, with at most `MAX_STATES` cells. The
    step is the shortest, from one minute to an hour, that is at least the median over users of their median time
    between fixes.
    """
    latitude = np.concatenate([trajectory.latitude for trajectory in tracks])
    longitude = np.concatenate([trajectory.longitude for trajectory in tracks])
    weight = np.concatenate([np.full(len(trajectory), 1.0 / len(trajectory)) for trajectory in tracks])
    bins = np.floor(np.stack([latitude, longitude]) * _BINS_PER_DEGREE).astype(np.int64)
    distinct, at = np.unique(bins, axis=1, return_inverse=True)
    best = distinct[:, np.bincount(at.ravel(), weight).argmax()]
    centre = LocalProjection(*((best + 0.5) / _BINS_PER_DEGREE).tolist())
    near = np.abs(centre.to_plane(latitude, longitude)).max(axis=1) <= _NEAR_KM
    south, north = _trimmed_range(latitude[near], weight[near])
    west, east = _trimmed_range(longitude[near], weight[near])
    box = south, west, north, east
    return Choice(box, _smallest_cell(box), _shortest_step(tracks) if step_seconds is None else float(step_seconds))


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
    noisy = votes + laplace_steps(epsilon, votes.size, random_source(rng))
    south, west = divmod(int(noisy.argmax()), columns)
    box = (
        south / _TILES_PER_DEGREE - 90,
        west / _TILES_PER_DEGREE - 180,
        (south + 1) / _TILES_PER_DEGREE - 90,
        (west + 1) / _TILES_PER_DEGREE - 180,
    )
    return Choice(box, _smallest_cell(box), _PRIVATE_STEP if step_seconds is None else float(step_seconds), epsilon)


def _trimmed_range(values: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Return the range without the outermost hundredths, rounded outwards to 0.01 degrees."""
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    low, high = values[order][np.searchsorted(share, [_OUTLIER_SHARE / 2, 1 - _OUTLIER_SHARE / 2])]
    return float(np.floor((low - _MARGIN_DEGREES) * 100) / 100), float(np.ceil((high + _MARGIN_DEGREES) * 100) / 100)


def _smallest_cell(box: tuple[float, float, float, float]) -> float:
    """Return the smallest cell size for which a box has at most `MAX_STATES` cells."""
    cell = next((cell for cell in _CELLS if Grid.over(box, cell).size <= MAX_STATES), None)
    if cell is None:
        raise ConfigurationError(f"region {box} is too large for automatic cells: use --bbox and --cell")
    return cell


def _shortest_step(tracks: Sequence[Trajectory]) -> float:
    """Return the shortest step that is at least the median time between fixes."""
    intervals = [
        float(np.median(np.diff(trajectory.times).astype(np.int64)) / 1e6)
        for trajectory in tracks
        if len(trajectory) > 1
    ]
    median = float(np.median(intervals)) if intervals else _STEPS[-1]
    return next((step for step in _STEPS if step >= median), _STEPS[-1])


Model = MarkovModel | str | Path
"""A model, or its file."""


@dataclass(frozen=True)
class LearnResult:
    """A learned model, with statistics of its training data.

    Parameters
    ----------
    model
        The model.
    training
        Statistics of the training users. Private.
    dropped
        The data that were not counted, and the reasons. Private.
    extension
        The extension by classes of time; None without classes.
    shrunk
        The shrinkage of the counts; None for a smoothed or private model.
    private
        The parameters of the differential privacy of a private model; None for any other.
    choice
        The automatically selected region, cells and step; None if a space was provided.
    warnings
        Warnings about the region.
    """

    model: MarkovModel
    training: TrainingData = field(repr=False)
    dropped: tuple[Dropped, ...] = field(repr=False)
    extension: Extension | None = None
    shrunk: ShrunkModel | None = None
    private: PrivateModel | None = None
    choice: Choice | None = None
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a summary of the model and its training data.

        Returns
        -------
        dict
            Plain JSON values by name.
        """
        model = self.model
        training = self.training
        extension = self.extension
        not_read = {dropped.reason: dropped.fixes for dropped in self.dropped}
        read = {
            "users": len(training.users),
            "fixes": training.num_fixes,
            "num_skipped_fixes": not_read.get(MALFORMED, 0),
            "num_merged_fixes": not_read.get(SAME_TIME, 0),
            "num_locations": training.num_timesteps,
            "num_locations_outside": training.num_outside,
            "num_states_visited": int(training.is_visited.sum()),
            "num_moves": training.num_moves,
        }
        if self.private is not None:  # exact numbers, which the guarantee does not cover
            read = {f"private_{name}": value for name, value in read.items()}
        summary = {**_model_size(model), **read}
        if model.outside is not None:
            outside = model.outside
            mean_square = float(outside.outside_shares @ outside.mean_squares / outside.outside_shares.sum())
            summary |= {
                "num_outside_states": len(outside.border),
                "rms_distance_outside_m": 1000 * mean_square**0.5,
            }
        if model.calibrated_radii is not None:
            radii = model.calibrated_radii
            for name, factors in (("radius", radii.factors), ("error", radii.error_factors)):
                summary[f"calibrated_{name}_factors"] = ", ".join(f"{factor:.2f}" for factor in factors)
        if extension is not None:
            assert model.time_classes is not None, "an extension has classes of time"
            summary |= {"num_time_classes": model.time_classes.count, "zone": model.time_classes.zone}
            summary["class_weight_moves"] = as_plain(extension.class_weight)
        if "map_credit" in (model.provenance or {}):
            summary["map_credit"] = (model.provenance or {})["map_credit"]
        if self.private is not None:
            return summary | self.private.to_dict()
        return summary if self.shrunk is None else summary | export_fields(self.shrunk)


def _model_size(model: MarkovModel) -> dict[str, Any]:
    size = {"states": model.size, "transitions": model.num_possible_moves, "step_seconds": model.step_seconds}
    # Shows whether a part of the streets is missing, because it is not connected with the others.
    return size | ({"street_km": float(model.states.lengths_km.sum())} if isinstance(model.states, Streets) else {})


# Default cell sizes of presets that differ from the published ones; see `region`. Evaluations do not use them.
_PRESET_CELLS = {"gowalla": 2.0}


@checked
def load_model(model: Model) -> MarkovModel:
    """Load a model that has state locations and a timestep.

    Parameters
    ----------
    model
        The model, or its file.

    Returns
    -------
    MarkovModel
        The model.

    Raises
    ------
    ConfigurationError
        If the model has no state locations or no timestep.
    DataFileError
        If the file is not a model file.
    """
    loaded = model if isinstance(model, MarkovModel) else MarkovModel.load(model)
    if loaded.states is None or loaded.step_seconds is None:
        name = "the model" if isinstance(model, MarkovModel) else f"{model}: the model"
        raise ConfigurationError(f"{name} must have state locations and step_seconds: learn it with 'dphmm learn'")
    return loaded


@checked
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
        return _read_streets(Path(streets), cell_km, within_km, _box(bbox, town, extent) if num_boxes else None)
    if places is not None:
        if cell_km is not None:
            raise ConfigurationError("--cell cannot be combined with --places: named places have no cells")
        return read_places(places, float("inf") if within_km is None else within_km)
    if within_km is not None:
        raise ConfigurationError("within_km requires --places or --streets")
    if preset is not None:
        cell_km = _PRESET_CELLS.get(preset) if cell_km is None else cell_km
        return Grid.preset(preset) if cell_km is None else Grid.over(preset_box(preset), cell_km)
    if cell_km is None:
        raise ConfigurationError("a grid needs a cell size: use --cell with kilometres, such as --cell 0.5")
    if bbox is not None or town is not None or extent is not None:
        return Grid.over(_box(bbox, town, extent), cell_km)
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


def _box(bbox: Box | None, town: str | None, extent: str | Path | None) -> Box:
    """Return the box of a region."""
    if bbox is not None:
        return bbox
    if town is not None:
        return town_box(town)
    if get_suffix(Path(str(extent))) in _RECORDING_SUFFIXES:
        raise ConfigurationError(
            f"extent must be a public layer of polygons, got the recording {extent}, and its bounding box would reveal "
            "its outermost locations: use --town NAME or --bbox SOUTH WEST NORTH EAST"
        )
    west, south, east, north = shapely.total_bounds([shape for _, shape in read_polygons(str(extent))]).tolist()
    return south, west, north, east


def _prepare_region(
    space: StateSpace, region_map: str | Path | None, only_on: str | Path | None
) -> tuple[StateSpace, RegionMap | None, tuple[str, ...]]:
    """Return the region restricted to a layer, its informative map, and warnings."""
    mapped_region = None if region_map is None else build_region_map(region_map, space)
    warnings: tuple[str, ...] = ()
    if only_on is not None:
        space, warnings = restrict_region(space, only_on, mapped_region)
        mapped_region = None if region_map is None else build_region_map(region_map, space)
    return space, None if mapped_region is None or mapped_region.is_uninformative else mapped_region, warnings


@dataclass(frozen=True)
class RegionModelResult(Result):
    """A mobility model of a region without data of users.

    Parameters
    ----------
    model
        The model.
    warnings
        Warnings about the region.
    """

    model: MarkovModel
    warnings: tuple[str, ...] = ()

    def _derived(self) -> dict[str, Any]:
        # Measured with grids.
        accuracy = {"accuracy": REGION_MODEL_ACCURACY} if isinstance(self.model.states, Grid) else {}
        return {**_model_size(self.model), **(self.model.provenance or {}), **accuracy}


REGION_MODEL_ACCURACY = (
    "with the same guarantee, the errors of estimates for new users were 7 % smaller to 29 % larger than with a model "
    "learned from other users of their city (GeoLife, Gowalla, by type); an adversary who knows the region better has "
    "smaller errors than reported"
)
"""The accuracy of a region model of a grid, compared with learned ones; see docs/explanation/models.md."""


@checked
def blank_model(
    space: StateSpace | None = None,
    step_seconds: Seconds | None = None,
    kind: str = "everyday",
    max_speed_kmh: PositiveNumber | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    *,
    bbox: Box | None = None,
    town: str | None = None,
    extent: str | Path | None = None,
    region_map: str | Path | None = COAST,
    only_on: str | Path | None = None,
) -> RegionModelResult:
    """Build a mobility model of a region without data of users, as ``dphmm model blank`` does.

    Parameters
    ----------
    space
        The states; see `region`. Defaults to cells of the box that `bbox`, `town` or `extent` defines: the smallest,
        from 250 m on, with at most `MAX_STATES` cells.
    step_seconds
        The timestep, in seconds. Defaults to 300 for everyday movement, otherwise 60.
    kind
        The type of movement: ``"everyday"`` (all day, with long rests), ``"walking"``, ``"cycling"`` or ``"driving"``
        (recordings of trips); see `dphmm.model.region_prior`.
    max_speed_kmh
        The speed limit, which determines the possible moves. Defaults to that of the type.
    output, overwrite
        A ``.npz`` file for the model, and whether an existing file may be replaced.
    bbox, town, extent
        One of them instead of the space; see `region`.
    region_map
        The map that determines the attraction of each cell (`dphmm.jobs.region_map.build_region_map`); None for equal
        attraction. Defaults to the bundled coasts and lakes. Named places have equal attraction by default. The map
        does not change which moves are possible.
    only_on
        A public layer of polygons: cells that share no area with it are removed, except those with streets of the map
        (`dphmm.jobs.region_map.restrict_region`).

    Returns
    -------
    RegionModelResult
        The model.

    Raises
    ------
    ConfigurationError
        If there is not exactly one region, the type is unknown, or too many moves are possible.
    OutputError
        If the output exists and may not be replaced.
    DataFileError, CoordinateError
        If the region is invalid.

    Examples
    --------
    >>> result = blank_model(bbox=(44.97, -30.04, 45.03, -29.96), kind="cycling")
    >>> result.model
    MarkovModel(states=702, transitions=62636)
    """
    parameters = get_kind(kind)
    if output is not None:
        check_model_output(output, overwrite)
    if (space is None) != (sum(region is not None for region in (bbox, town, extent)) == 1):
        raise ConfigurationError("exactly one region is required: pass space, or use one of --bbox, --town and extent")
    if space is None:
        box = _box(bbox, town, extent)
        space = Grid.over(box, _smallest_cell(box))
    step = parameters.step_seconds if step_seconds is None else step_seconds
    is_default_of_places = region_map == COAST and not isinstance(space, Grid)
    space, mapped_region, warnings = _prepare_region(space, None if is_default_of_places else region_map, only_on)
    model = region_prior(space, step, kind, max_speed_kmh, None if mapped_region is None else mapped_region.attraction)
    if mapped_region is not None:
        model = model.with_provenance(
            {**(model.provenance or {}), "guarantee": _MAP_GUARANTEE, "map_credit": mapped_region.credit}
        )
    result = RegionModelResult(_credit_streets(model), warnings)
    if output is not None:
        with new_file(output, overwrite) as part:
            result.model.save(part)
    return result


def _credit_streets(model: MarkovModel) -> MarkovModel:
    """Return a model with the credit of the map of its streets, if it has any."""
    if not isinstance(model.states, Streets) or not model.states.credit:
        return model
    return model.with_provenance({**(model.provenance or {}), "map_credit": model.states.credit})


_MAP_GUARANTEE = (
    "independent of all users' data: it depends on the region, a public map, the step, the speed limit and published "
    "distributions only"
)


def check_model_output(output: str | Path, overwrite: bool) -> None:
    """Check the path of a model's file before any work is done.

    Raises
    ------
    ConfigurationError, OutputError
        If the extension is not ``.npz``, or the file cannot be written; see `dphmm.tables.check_output`.
    """
    if Path(output).suffix != ".npz":
        raise ConfigurationError(f"the file of a model must have the extension .npz, got {output}")
    check_output(output, overwrite)


@checked
def learn(
    data: DataLike,
    space: StateSpace | None = None,
    step_seconds: Seconds | None = None,
    gap_seconds: Seconds | None = None,
    smoothing: Annotated[float, Interval(0, MAX_SCALE)] | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    time_classes: ClassScheme | None = None,
    zone: str | None = None,
    max_speed_kmh: PositiveNumber | None = None,
    user_epsilon: Rational | None = None,
    moves_per_user: PositiveInt | None = None,
    min_users: PositiveInt | None = None,
    outside_states: bool | None = None,
    calibrate_radii: bool | None = None,
    region_map: str | Path | None = None,
    only_on: str | Path | None = None,
    *,
    engine: Engine | None = None,
    watch: ProgressCallback = unwatched,
) -> LearnResult:
    """Learn a mobility model from trajectories, as ``dphmm learn`` does.

    With a space, the users of one large Parquet file are counted in blocks as they are read (see `Data.stream`).
    Without one, all trajectories are in memory. The model is equal for any number and type of workers.

    The model is public. Learn it from other users than those to protect. The training users are written to a private
    list next to the model (see `dphmm.jobs.model.learn`), with which releases of their data are refused.

    Parameters
    ----------
    data
        The trajectories of the training users.
    space
        The states; see `region`. Defaults to the city with most of the users, selected from the data, or with a tenth
        of `user_epsilon`.
    step_seconds
        The timestep, in seconds. Defaults to 60 if a space is provided, otherwise it is selected with the region.
    gap_seconds
        Gaps up to this length are filled with the state before the gap. Longer gaps split a trajectory. Defaults to one
        step.
    smoothing
        By default every move below the speed limit is possible, and counts are shrunk towards a kernel of the region;
        see `dphmm.model.fit_shrunk`. With smoothing, this number is added to the count of each observed move, of its
        reverse and of staying, and no other move is possible. Other users are then often in states that are impossible
        in the model.
    output, overwrite
        A ``.npz`` file for the model, and whether an existing file may be replaced. It is written atomically, after its
        user list.
    time_classes
        Classes of time with separate matrices: ``"hour"`` or ``"weekday-hour"``. Defaults to one matrix for all times.
    zone
        With `time_classes`: the time zone of the hours, such as ``"Asia/Shanghai"`` or ``"+08:00"``.
    max_speed_kmh
        The speed limit, which determines the possible moves. Defaults to 150. Cannot be combined with smoothing.
    user_epsilon
        The budget of user-level differential privacy of the model; see `fit_private`. Select the space, the step and
        the speed limit without looking at the data. Cannot be combined with `time_classes`.
    moves_per_user
        With `user_epsilon`: the maximum number of moves of each user that are counted. Defaults to 20.
    min_users
        Moves of fewer users are omitted. This is not a privacy guarantee.
    outside_states
        Whether users outside a grid have separate states (`dphmm.model.outside_states`), from which estimates account
        for their distance. Defaults to true if a user is outside, except with smoothing, `min_users` or
        `user_epsilon`. Smoothing and `min_users` treat all users as inside. With a budget the decision must not depend
        on the data, so outside states must be requested, and all border states have the same parameters.
    calibrate_radii
        Whether to calibrate the published errors and radii by cross-validation over users, so that radii contain 90 %
        of the timesteps of exchangeable users (`dphmm.model.calibrated_radii`). Provide whole days of the training
        users, inside and outside the region, if whole days are released. It takes some seconds, up to minutes for
        `dphmm.model.calibrated_radii.MAX_USERS`. Of more users, those with the smallest hashes of their names are
        simulated. Defaults to true with 20 users or more, if counts are shrunk without `min_users` and there is no
        budget.
    region_map
        A public map that determines the attraction of cells without data
        (`dphmm.jobs.region_map.build_region_map`). It does not change which moves are possible. Defaults to equal
        attraction. Cannot be combined with smoothing.
    only_on
        A public layer of polygons: cells that share no area with it are removed, except those with streets of the map
        (`dphmm.jobs.region_map.restrict_region`).
    engine
        Workers, such as `dphmm.jobs.batch.workers.Processes` or a Dask cluster, to which true locations are sent.
        Defaults to this process.
    watch
        Shows the progress; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    LearnResult
        The model, with statistics of its training data.

    Raises
    ------
    ConfigurationError, OutputError
        If options cannot be combined, `time_classes` or `zone` is missing, or the output is not a ``.npz`` file or
        exists; these are checked before data are read. Also if too many moves are possible.
    BudgetError
        If the budget is not positive.
    DataFileError
        If data are missing or malformed.
    StochasticError, InvalidInputError
        If the data contain no state; see `MarkovModel.fit`.
    EngineError
        If workers keep dying.
    """
    if output is not None:
        check_model_output(output, overwrite)
        check_output(private_list_path(output), overwrite)
    exclusive = [option for option in (user_epsilon, smoothing, min_users) if option is not None]
    _check_options(
        exclusive,
        time_classes,
        zone,
        smoothing,
        max_speed_kmh,
        user_epsilon,
        moves_per_user,
        outside_states,
        calibrate_radii,
        region_map,
    )
    budget = None if user_epsilon is None else rational(user_epsilon)
    crew = Processes(1) if engine is None else engine
    with ExitStack() as stack:
        selected = Data.from_any(data).within(space)
        not_read = list[Dropped]()
        choice = None
        if space is None:
            user_tracks = selected.read(may_be_empty=budget is not None)
            not_read += user_tracks.not_read
            choice, budget = _select_region(user_tracks.trajectories, budget, step_seconds)
            space = choice.space
            step_seconds = choice.step_seconds
            tracks = iter(user_tracks.trajectories)
        else:
            tracks = selected.stream(not_read, may_be_empty=budget is not None)
        step = 60.0 if step_seconds is None else float(step_seconds)
        space, mapped_region, warnings = _prepare_region(space, region_map, only_on)
        attraction = None if mapped_region is None else mapped_region.attraction
        classes = None if time_classes is None or zone is None else TimeClasses.from_name(time_classes, step, zone)
        outside = None
        if outside_states if user_epsilon is not None else not exclusive and outside_states is not False:
            outside = create_outside_states(space)
        max_moves = None
        if budget is not None:
            max_moves = MOVES_PER_USER if moves_per_user is None else moves_per_user
        rules = CountingRules(space, step, gap_seconds, outside, max_moves, classes is not None)
        sample = _UserSample(0 if calibrate_radii is False or exclusive else MAX_USERS)
        blocks = in_blocks(sample.watch(tracks))
        first_blocks = list(islice(blocks, 2))
        # Workers that start before most locations are read are copies of this process without these locations. A single
        # block is counted sooner than workers start.
        if len(first_blocks) > 1:
            stack.enter_context(crew.started())
        counter = crew if len(first_blocks) > 1 else Processes(1)
        counted = watch(counter.run(partial(count_block, rules=rules), chain(first_blocks, blocks)), "Counting")
        training = TrainingData.concatenate([part for _, part in sorted(counted, key=itemgetter(0))]).sort_users()
        if outside is not None and budget is None:
            outside = training.fit_outside(outside)
        if outside_states and outside is None:
            raise ConfigurationError(
                "outside_states requires a grid and a user outside of it: remove it, or use a smaller region"
            )
        speed = MAX_SPEED_KMH if max_speed_kmh is None else max_speed_kmh
        private = shrunk = extension = None
        if budget is not None:
            assert max_moves is not None, "set with a budget"
            distances = None if outside is None else training.distances
            private = fit_private_moves(
                list(training.thinned), space, step, budget, max_moves, speed, outside=distances, attraction=attraction
            )
            private = private.with_spending("region", None if choice is None else choice.epsilon)
            model = private.model
        elif smoothing is not None:
            model = MarkovModel.fit_counts(training.counts, space.size, smoothing, states=space, step_seconds=step)
            model = model.with_provenance({"guarantee": _NO_GUARANTEE, "smoothing": smoothing})
        else:
            required_users = 1 if min_users is None else min_users
            shrunk = fit_shrunk_counts(
                training.counts, space, step, speed, min_users=required_users, outside=outside, attraction=attraction
            )
            provenance = {"guarantee": _NO_GUARANTEE, "max_speed_kmh": speed, "weight": shrunk.weight}
            if required_users > 1:
                provenance |= {"guarantee": _NO_GUARANTEE_MIN_USERS, "min_users": required_users}
            model = shrunk.model.with_provenance(provenance)
        if mapped_region is not None:
            model = model.with_provenance({**(model.provenance or {}), "map_credit": mapped_region.credit})
        model = _credit_streets(model)
        if classes is not None:  # never with a budget; see `_check_options`
            extension = extend(model, training.sequences, classes)
            model = extension.model
        if sample.size:

            def fit(held_out: Sequence[int]) -> MarkovModel:
                excluded = {sample.tracks[index].user for index in held_out}
                is_kept = np.array([user not in excluded for user in training.users])
                kept = np.flatnonzero(is_kept).tolist()
                fold_outside = training.fit_outside(outside, kept)
                counts = training.counts.select_users(is_kept)
                fold_model = fit_shrunk_counts(
                    counts, space, step, speed, outside=fold_outside, attraction=attraction
                ).model
                if classes is None:
                    return fold_model
                return extend(fold_model, [training.sequences[user] for user in kept], classes).model

            model = model.with_calibrated_radii(compute_calibrated_radii(fit, sample.tracks, run=crew.run))
            if calibrate_radii and model.calibrated_radii is None:
                raise ConfigurationError(f"calibrate_radii requires at least {MIN_USERS} users in the region")
    if output is not None:
        with new_file(output, overwrite) as part:
            model.save(part)
            write_user_list(private_list_path(output), model, training.users, overwrite)
    dropped = (*not_read, *training.loss.describe(model.outside is not None))
    return LearnResult(model, training, dropped, extension, shrunk, private, choice, warnings)


class _UserSample:
    """The `size` users with the smallest hashes of their names, or all.

    The selection depends neither on the order of the users nor on their locations. A hash is not related to movement,
    so the users are as exchangeable as all.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._heap: list[tuple[int, str, Trajectory]] = []  # the largest hash first

    def watch(self, tracks: Iterable[Trajectory]) -> Iterator[Trajectory]:
        """Yield the trajectories of all users, and keep those of the sample."""
        for track in tracks:
            digest = blake2b(track.user.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            entry = (-int.from_bytes(digest), track.user, track)
            if len(self._heap) < self.size:
                heappush(self._heap, entry)
            elif self.size:
                heappushpop(self._heap, entry)
            yield track

    @cached_property
    def tracks(self) -> list[Trajectory]:
        """The trajectories of the users, in the order of their names."""
        return [track for _, _, track in sorted(self._heap, key=itemgetter(1))]


def _select_region(
    tracks: Sequence[Trajectory], budget: Fraction | None, step_seconds: float | None
) -> tuple[Choice, Fraction | None]:
    """Return the selected region, and the budget that remains for the model."""
    if budget is None:
        return choose(tracks, step_seconds), None
    choice = choose_privately(tracks, budget * REGION_BUDGET_SHARE, step_seconds)
    return choice, budget * (1 - REGION_BUDGET_SHARE)


_NO_GUARANTEE = "none: moves were counted without noise"
_NO_GUARANTEE_MIN_USERS = (
    "none: moves were counted without noise; moves of fewer than min_users users were omitted, which is not a privacy "
    "guarantee"
)


def _check_options(
    exclusive: Collection[Any],
    time_classes: ClassScheme | None,
    zone: str | None,
    smoothing: float | None,
    max_speed_kmh: PositiveNumber | None,
    user_epsilon: Rational | None,
    moves_per_user: PositiveInt | None,
    outside_states: bool | None,
    calibrate_radii: bool | None,
    region_map: str | Path | None,
) -> None:
    """Check the combination of options. At most one of the `exclusive` ones may be set."""
    if user_epsilon is not None and time_classes is not None:
        raise ConfigurationError(
            "--user-epsilon cannot be combined with --time-classes: a private model has one matrix for all times"
        )
    if smoothing is not None and max_speed_kmh is not None:
        raise ConfigurationError(
            "--max-speed cannot be combined with --smoothing: smoothing makes only observed moves possible"
        )
    if smoothing is not None and region_map is not None:
        raise ConfigurationError(
            "--map cannot be combined with --smoothing: smoothing makes only observed moves possible"
        )
    if moves_per_user is not None and user_epsilon is None:
        raise ConfigurationError("moves_per_user requires --user-epsilon")
    if len(exclusive) > 1:
        raise ConfigurationError("--user-epsilon, --smoothing and min_users cannot be combined: use one of them")
    if outside_states and exclusive and user_epsilon is None:
        raise ConfigurationError(
            "outside_states cannot be combined with --smoothing and min_users: these treat all users as inside"
        )
    if calibrate_radii and exclusive:
        raise ConfigurationError(
            "calibrate_radii cannot be combined with --user-epsilon, --smoothing and min_users: it simulates users "
            "with shrunk counts, without noise"
        )
    if time_classes is None and zone is not None:
        raise ConfigurationError("--zone requires --time-classes hour or --time-classes weekday-hour")
    if time_classes is not None:
        if zone is None:
            raise ConfigurationError(
                "--time-classes requires the time zone of its hours: use --zone, such as Asia/Shanghai"
            )
        TimeClasses.from_name(time_classes, 60.0, zone)  # raises an error if the zone is unknown
