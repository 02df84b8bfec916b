"""Models learned from people's trajectories: region, cells and step, and who those people were.

A model learned without noise breaks the promise made to a person whose places it was learned from:
what it holds possible, and with it the constraint set, the repair, the hull and the size of the noise, depends on their
true places otherwise than through what is released. So a private list of the people stays in the folder of the model's
file, and releases refuse them. The model itself is public and holds no names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, Rng, random_source
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.facts import fact, facts_of, plain
from dphmm.jobs.input_data import Data, DataLike, Dropped, People
from dphmm.jobs.private_models import MOVES_PER_PERSON, PrivateModel, fit_private
from dphmm.mechanisms.exact import Rational, rational
from dphmm.mechanisms.lattice_noise import laplace_steps
from dphmm.model.away import away_of, twins_of
from dphmm.model.fitting import Extension, ShrunkModel, extend, fit_shrunk
from dphmm.model.left_out import LEAST_PEOPLE, held_radii
from dphmm.model.model import MarkovModel
from dphmm.model.moves import state_sequences
from dphmm.model.published_laws import NOBODY, blank, kind_of
from dphmm.model.speed_limit import MAX_SPEED_KMH
from dphmm.model.time_classes import By, TimeClasses
from dphmm.policy.zones import read_polygons
from dphmm.readers.table import read_places
from dphmm.space import Grid, LocalProjection, StateSpace, Trajectory
from dphmm.space.grid import Box, preset_box
from dphmm.space.world_map import town_box
from dphmm.tables import check_output, new_file, write_text

_FORMAT = "dphmm-learned-from-1"
_ENDING = ".PRIVATE-people.json"


def private_list(model: str | Path) -> Path:
    """Where the list of a model's file is written: ``city.npz`` has ``city.PRIVATE-people.json``."""
    path = Path(model)
    return path.with_name(path.stem + _ENDING)


def write_list(path: Path, model: MarkovModel, people: Iterable[str], overwrite: bool = False) -> None:
    """Write whose data a model has seen, readable for the owner alone, whole or not at all.

    Raises
    ------
    OutputError
        When the file exists and may not be replaced, or cannot be written.
    """
    about = {"format": _FORMAT, "model": model.content_hash, "people": sorted(set(people))}
    write_text(path, json.dumps(about, indent=1) + "\n", overwrite, private=True)


def people_seen(file: str | Path | MarkovModel, model: MarkovModel) -> frozenset[str] | None:
    """Whose data a model has seen, as far as lists in the folder of its file tell.

    A list names its model by content, so that a renamed model keeps it. That is not known of a model that was copied or
    sent without its list, that was changed since, or that is not in a file; nor of a person who goes by another name.

    Parameters
    ----------
    file
        The model's file; a model that is in none has no list.
    model
        What the file holds.

    Returns
    -------
    frozenset of str or None
        None where no list is about the model; nobody of one that says that it is blank.

    Raises
    ------
    DataFileError
        When a list in the folder cannot be read.
    """
    if (model.learned or {}).get("learned_from") == NOBODY:
        return frozenset()
    if isinstance(file, MarkovModel):
        return None
    folders = {Path(file).absolute().parent, Path(file).resolve().parent}
    found = [_read(path) for folder in sorted(folders) for path in sorted(folder.glob(f"*{_ENDING}"))]
    about = [people for seen, people in found if seen == model.content_hash]
    return frozenset().union(*about) if about else None


def _read(path: Path) -> tuple[str, frozenset[str]]:
    """The content hash of a list's model, and its people."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["format"] != _FORMAT or not all(isinstance(name, str) for name in [about["model"], *about["people"]]):
            raise ValueError
        return about["model"], frozenset(about["people"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataFileError(
            path, "cannot be read as a list of whose data a model has seen; restore it, or say --allow-own-model"
        ) from None


def refuse_own(seen: Collection[str] | None, users: Iterable[str]) -> None:
    """Refuse people whose own data the model has seen.

    Raises
    ------
    ConfigurationError
        Naming them, and what to do.
    """
    own = [user for user in users if seen is not None and user in seen]
    if own:
        names = ", ".join(own[:8]) + (", …" if len(own) > 8 else "")
        verb = "is" if len(own) == 1 else "are"
        raise ConfigurationError(
            f"user {names} {verb} among those that the model was learned from, so that what it holds possible depends "
            "on their true places; learn it from other people (--exclude-users), or say --allow-own-model"
        )


def read_others(
    data: DataLike, model: Model | None, learned: MarkovModel | None, allow_own_model: bool
) -> tuple[People, str]:
    """Everyone in some data, none of whom the model has seen, as far as that is known.

    Parameters
    ----------
    data
        The data.
    model
        The model, or its file, beside which the list of the people lies; None where there is no model.
    learned
        The model.
    allow_own_model
        Whether not to look whether the model has seen them.

    Returns
    -------
    people : People
        Everyone.
    own_model : str
        What is said of whether the model was learned from them.

    Raises
    ------
    ConfigurationError
        When the model has seen one of them, and as `Data.read`.
    DataFileError
        As `Data.read` and `people_seen`.
    """
    seen = None
    if not allow_own_model and model is not None and learned is not None:
        seen = people_seen(model, learned)
    people = Data.from_any(data).read()
    refuse_own(seen, [one.user for one in people.trajectories])
    unknown = "not known: no list beside the model" if seen is None else "no"
    return people, "not checked (--allow-own-model)" if allow_own_model else unknown


MOST_STATES = 2000
"""No more states are chosen: beliefs then go through gaps of any length at once."""

OF_REGION = Fraction(1, 10)
"""The part of a budget that choosing a region takes."""

_STEPS = (60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
_CELLS = (0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
_PRIVATE_STEP = 300.0
_TILES = 2
"""Tiles per degree among which a private choice is made: 55 km from south to north."""
_NEAR_KM = 25.0
_BINS = 20
_EDGE = 0.02
_LEAST = 0.005


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Parameters
    ----------
    bbox
        South, west, north, east, degrees.
    cell
        Kilometres.
    step_seconds
        One time step.
    epsilon
        What the choice took of a budget; None where it was made without noise.
    """

    bbox: tuple[float, float, float, float]
    cell: float
    step_seconds: float
    epsilon: Fraction | None = None

    @property
    def options(self) -> str:
        """The options of the command that say the same."""
        box = " ".join(f"{side:g}" for side in self.bbox)
        return f"--bbox {box} --cell {self.cell:g} --step {self.step_seconds:g}"

    @property
    def space(self) -> Grid:
        """The grid."""
        return Grid.over(self.bbox, self.cell)


def choose(people: Sequence[Trajectory], step_seconds: float | None = None) -> Choice:
    """The city where most of the people are, without noise.

    The box holds all but the outermost hundredths of the fixes within 25 km of where most people are, each person
    counting alike. Cells are the smallest, from 250 m, of which there are at most `MOST_STATES`; the step is the
    shortest, from one minute to an hour, in which half of the people are seen anew half of the time.
    """
    latitude = np.concatenate([one.latitude for one in people])
    longitude = np.concatenate([one.longitude for one in people])
    weight = np.concatenate([np.full(len(one), 1.0 / len(one)) for one in people])
    bins = np.floor(np.stack([latitude, longitude]) * _BINS).astype(np.int64)
    found, at = np.unique(bins, axis=1, return_inverse=True)
    best = found[:, np.bincount(at.ravel(), weight).argmax()]
    centre = LocalProjection(*((best + 0.5) / _BINS).tolist())
    near = np.abs(centre.to_plane(latitude, longitude)).max(axis=1) <= _NEAR_KM
    south, north = _within(latitude[near], weight[near])
    west, east = _within(longitude[near], weight[near])
    box = south, west, north, east
    return Choice(box, _cell(box), _step(people) if step_seconds is None else float(step_seconds))


def choose_privately(
    people: Sequence[Trajectory], epsilon: Fraction, step_seconds: float | None = None, rng: Rng = None
) -> Choice:
    """The tile of half a degree in which most people spend most of their fixes, by noisy counts.

    Each person counts in one tile, so that discrete Laplace noise of scale ``1 / epsilon`` on each of the Earth's
    tiles makes the choice epsilon-differentially private for whole people. With fewer than some ``15 / epsilon``
    people in it noise alone may choose another. The step is 300 s unless it is said.
    """
    wide, high = 360 * _TILES, 180 * _TILES
    votes = np.zeros(wide * high, dtype=np.int64)
    for one in people:
        row = np.minimum(np.floor((one.latitude + 90) * _TILES).astype(np.int64), high - 1)
        column = np.floor((one.longitude + 180) * _TILES).astype(np.int64) % wide
        tiles, counts = np.unique(row * wide + column, return_counts=True)
        votes[tiles[counts.argmax()]] += 1
    noisy = votes + laplace_steps(epsilon, votes.size, random_source(rng))
    south, west = divmod(int(noisy.argmax()), wide)
    box = south / _TILES - 90, west / _TILES - 180, (south + 1) / _TILES - 90, (west + 1) / _TILES - 180
    return Choice(box, _cell(box), _PRIVATE_STEP if step_seconds is None else float(step_seconds), epsilon)


def _within(values: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """From where to where all but the outermost hundredths lie, rounded outwards to hundredths of a degree."""
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    low, high = values[order][np.searchsorted(share, [_EDGE / 2, 1 - _EDGE / 2])]
    return float(np.floor((low - _LEAST) * 100) / 100), float(np.ceil((high + _LEAST) * 100) / 100)


def _cell(box: tuple[float, float, float, float]) -> float:
    cell = next((cell for cell in _CELLS if Grid.over(box, cell).size <= MOST_STATES), None)
    if cell is None:
        raise ConfigurationError(f"the region {box} is too large to choose cells for; give --bbox and --cell")
    return cell


def _step(people: Sequence[Trajectory]) -> float:
    usual = [float(np.median(np.diff(one.times).astype(np.int64)) / 1e6) for one in people if len(one) > 1]
    wanted = float(np.median(usual)) if usual else _STEPS[-1]
    return next((step for step in _STEPS if step >= wanted), _STEPS[-1])


Model = MarkovModel | str | Path
"""A model, or the file that holds one."""


@dataclass(frozen=True)
class Learned:
    """A model with what it was learned from.

    Parameters
    ----------
    model
        The model.
    people
        Whose moves were counted.
    places
        How many places they had on the model's clock.
    outside
        How many of those lie outside the region.
    visited
        How many states anybody was in.
    moves
        How many moves from one step to the next were counted.
    extension
        How it varies with time; None where it does not.
    shrunk
        What the moves were shrunk towards, and how far; None for a model that was smoothed, or is private.
    private
        What the promise of a private model is made of; None for any other.
    choice
        The region, cells and step where they were chosen; None where a space was given.
    """

    model: MarkovModel
    people: People
    places: int = field(metadata=fact("places_on_the_clock"))
    outside: int = field(metadata=fact("of_them_outside_the_region"))
    visited: int = field(metadata=fact("states_visited"))
    moves: int = field(metadata=fact("moves_counted"))
    extension: Extension | None = None
    shrunk: ShrunkModel | None = None
    private: PrivateModel | None = None
    choice: Choice | None = None

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """What of the data the model does not count, and why. Private."""
        return self.people.dropped(self.model.space, self.model.step, self.model.away is not None)

    def facts(self) -> dict[str, Any]:
        """What was learned, and of what.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        model, people, made = self.model, self.people, self.extension
        read = {"users": len(people.trajectories), "fixes": people.fixes}
        read |= {"fixes_skipped": people.skipped, "fixes_at_the_same_time": people.merged}
        found = {**_size_of(model), **read, **facts_of(self)}
        if model.away is not None:
            square = float(model.away.share @ model.away.square / model.away.share.sum())
            found |= {"states_outside_the_region": len(model.away.border), "distance_outside_m_rms": 1000 * square**0.5}
        if model.held_radii is not None:
            found["factors_of_circles_that_hold_90_%"] = ", ".join(f"{one:.2f}" for one in model.held_radii.factors)
        if made is not None:
            assert model.time_classes is not None, "extended by them"
            found |= {"it": model.in_words, "zone": model.time_classes.zone}
            found["weight_of_all_hours_in_moves"] = plain(made.class_weight)
        if self.private is not None:
            return found | self.private.facts
        return found if self.shrunk is None else found | facts_of(self.shrunk)


def _size_of(model: MarkovModel) -> dict[str, Any]:
    return {"states": model.size, "transitions": model.possible_moves, "step_seconds": model.step_seconds}


_MOST_CELLS = {"gowalla": 2.0}
"""Region → the default cell size where it is not the published one, see `region`. Evaluations do not use it."""


@checked
def load_model(model: Model) -> MarkovModel:
    """A model that knows its states and its time step.

    Parameters
    ----------
    model
        The model, or its file.

    Returns
    -------
    MarkovModel
        The model, with states and step.

    Raises
    ------
    ConfigurationError
        When it does not.
    DataFileError
        When the file holds no model.
    """
    loaded = model if isinstance(model, MarkovModel) else MarkovModel.load(model)
    if loaded.states is None or loaded.step_seconds is None:
        name = "the model" if isinstance(model, MarkovModel) else f"{model}: the model"
        raise ConfigurationError(f"{name} has no map or no time step; make one with 'dphmm learn'")
    return loaded


@checked
def region(
    preset: str | None = None,
    bbox: tuple[float, float, float, float] | None = None,
    polygon: str | Path | None = None,
    places: str | Path | None = None,
    within: float | None = None,
    cell: float | None = None,
    town: str | None = None,
    extent: str | Path | None = None,
) -> StateSpace:
    """The states that exactly one of six descriptions of a region gives.

    Parameters
    ----------
    preset
        A region of `dphmm.space.grid.PRESETS`: ``"geolife"``, ``"gowalla"`` or ``"cabspotting"``. The cell size
        defaults to that of the preset, but to 2 km for Gowalla: on the paper's 0.89 km a step of an hour, the default
        of ``dphmm learn`` there, allows more moves than a model may have. `Grid.preset` has the published cells.
    bbox
        South, west, north, east, degrees; with `cell`.
    polygon
        A layer of polygons (GeoJSON, KML, GeoPackage); with `cell`.
    places
        A CSV of named places: name, latitude, longitude.
    within
        With `places`: how far from its place a fix may lie, kilometres; left out, any distance.
    cell
        The side of a grid's cell, kilometres.
    town
        A town on the shipped map: the square of 20 km around it. See `dphmm.space.world_map.town_box`.
    extent
        A file whose places are *not* private, such as a layer of districts: the box around them.

    Returns
    -------
    StateSpace
        A grid, or named places.

    Raises
    ------
    ConfigurationError
        When not exactly one region is given, or a cell size is missing or too many.
    CoordinateError, StateError, DataFileError
        As the region says.

    Examples
    --------
    >>> region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    Grid(182 states of 0.5 km in 13 columns and 14 rows)
    """
    if sum(choice is not None for choice in (preset, bbox, polygon, places, town, extent)) != 1:
        raise ConfigurationError(
            "no single region is given; give one of --preset, --bbox, --town, --polygon, --extent and --places"
        )
    if places is not None:
        if cell is not None:
            raise ConfigurationError("--cell is for grids; leave it out with --places")
        return read_places(places, float("inf") if within is None else within)
    if within is not None:
        raise ConfigurationError("--within goes with --places; leave it out")
    if preset is not None:
        cell = _MOST_CELLS.get(preset) if cell is None else cell
        return Grid.preset(preset) if cell is None else Grid.over(preset_box(preset), cell)
    if cell is None:
        raise ConfigurationError("no cell size is given; give --cell in kilometres, such as --cell 0.5")
    if bbox is not None or town is not None or extent is not None:
        return Grid.over(_box(bbox, town, extent), cell)
    return Grid.over(shapely.union_all([shape for _, shape in read_polygons(str(polygon))]), cell)


def _box(bbox: Box | None, town: str | None, extent: str | Path | None) -> Box:
    """The box of a region that is described by one."""
    if bbox is not None:
        return bbox
    if town is not None:
        return town_box(town)
    west, south, east, north = shapely.total_bounds([shape for _, shape in read_polygons(str(extent))]).tolist()
    return south, west, north, east


@dataclass(frozen=True)
class Blank:
    """A model of a region alone, with what it assumes.

    Parameters
    ----------
    model
        The model.
    """

    model: MarkovModel

    def facts(self) -> dict[str, Any]:
        """What the model holds possible, assumes and costs.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        return {**_size_of(self.model), **(self.model.learned or {}), "costs": BLANK_COSTS}


BLANK_COSTS = (
    "at the same promise, estimates of people not seen were from 7 % nearer to 29 % farther off than with a model of "
    "others of their city (GeoLife, Gowalla, by kind); somebody who knows the region better is nearer than it says"
)
"""What a blank model costs beside one that was learned; docs/explanation/models.md says how that was measured."""


@checked
def blank_model(
    space: StateSpace | None = None,
    step_seconds: float | None = None,
    kind: str = "everyday",
    max_speed_kmh: float | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    *,
    bbox: Box | None = None,
    town: str | None = None,
    extent: str | Path | None = None,
) -> Blank:
    """A model of a region alone, without data of people, as ``dphmm model blank`` makes it.

    Parameters
    ----------
    space
        The states; see `region`. Left out, cells of the box that is given next: the smallest, from 250 m, of which
        there are at most `MOST_STATES`.
    step_seconds
        One time step; left out, 300 for everyday life, otherwise 60.
    kind
        How people move: ``"everyday"`` (all day, with long rests), ``"walking"``, ``"cycling"`` or ``"driving"``
        (recordings of people on their way); see `dphmm.model.published_laws`.
    max_speed_kmh
        What decides which moves a person can make; left out, that of the kind.
    output, overwrite
        A ``.npz`` file for the model, and whether one that exists may be replaced.
    bbox, town, extent
        In place of the space: one of them, as for `region`.

    Returns
    -------
    Blank
        The model, and what it assumes.

    Raises
    ------
    ConfigurationError
        When there is not one region, the kind is another, or too many moves are possible.
    OutputError
        When the output exists.
    DataFileError, CoordinateError
        As the region says.

    Examples
    --------
    >>> made = blank_model(bbox=(44.97, -30.04, 45.03, -29.96), kind="cycling")
    >>> made.model
    MarkovModel(states=702, transitions=62636)
    """
    about = kind_of(kind)
    if output is not None:
        check_model_output(output, overwrite)
    if (space is None) != (sum(one is not None for one in (bbox, town, extent)) == 1):
        raise ConfigurationError("no single region is given; give a space, or one of --bbox, --town and --extent")
    if space is None:
        box = _box(bbox, town, extent)
        space = Grid.over(box, _cell(box))
    made = Blank(blank(space, about.step_seconds if step_seconds is None else step_seconds, kind, max_speed_kmh))
    if output is not None:
        with new_file(output, overwrite) as part:
            made.model.save(part)
    return made


def check_model_output(output: str | Path, overwrite: bool) -> None:
    """Refuse the path of a model's file before any work is done for it.

    Raises
    ------
    ConfigurationError, OutputError
        When it is no ``.npz`` file, or as `dphmm.tables.check_output`.
    """
    if Path(output).suffix != ".npz":
        raise ConfigurationError(f"{output}: a model is a .npz file; name it so")
    check_output(output, overwrite)


@checked
def learn(
    data: DataLike,
    space: StateSpace | None = None,
    step_seconds: float | None = None,
    gap_seconds: float | None = None,
    smoothing: float | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    by: By | None = None,
    zone: str | None = None,
    max_speed_kmh: float | None = None,
    user_epsilon: Rational | None = None,
    moves_per_person: int | None = None,
    least_people: int | None = None,
    away: bool | None = None,
    radii: bool | None = None,
) -> Learned:
    """Learn how people move, as ``dphmm learn`` does.

    The model is public: learn it from people other than those whose places are to be released. Who they are is written
    beside it, in a private list (see `dphmm.jobs.models`) that keeps releases from being made of their places.

    Parameters
    ----------
    data
        Whose moves to count.
    space
        The states; see `region`. Left out, the city where most of the people are is chosen, with cells to match: of
        the data, or out of a tenth of `user_epsilon`.
    step_seconds
        One time step of the model. Left out, 60 where a space is given, otherwise chosen with it.
    gap_seconds
        A person seen again within this time has stayed until then; a longer gap cuts. Left out, one step.
    smoothing
        Left out, every move that a person can make within a step is possible, and moves are shrunk towards what the
        region has in common: see `dphmm.model.fit_shrunk`. A number is added to each move seen, both ways, and to
        staying, and no other move is possible; other people are then often where the model thinks that no one can be.
    output, overwrite
        A ``.npz`` file for the model, and whether one that exists may be replaced. It appears whole or not at all, and
        never without its list.
    by
        Classes of time with a matrix each: ``"hours"``, or ``"weekday-hours"``; left out, one matrix serves all day.
    zone
        With `by`: the time zone of the hours, such as ``"Asia/Shanghai"`` or ``"+08:00"``.
    max_speed_kmh
        What decides which moves a person can make; left out, 150. Not with smoothing.
    user_epsilon
        The model then is differentially private for whole people, with this budget: see `fit_private`. Choose the
        space, the step and the speed without looking at the data. Not with `by`.
    moves_per_person
        With `user_epsilon`: how many moves of one person count at most; left out, 20.
    least_people
        Moves of fewer people than this are left out, which is no guarantee for anybody.
    away
        Whether people outside a grid have states of their own, as `dphmm.model.away` says, so that releases know how
        far outside they may be. Left out, where anybody is, and nothing that these do not go with is asked for:
        smoothing and `least_people` take everybody to be inside. With a budget nothing may follow from
        whether anybody is outside: only if asked for, and then of what is said of all border cells alike.
    radii
        Whether people are left out by quarters and followed, so that published circles hold 90 % of the moments of
        people like them (`dphmm.model.point_estimate`); some seconds. Left out, of 20 people or more, where moves are
        shrunk and no budget is kept.

    Returns
    -------
    Learned
        The model, and what it was learned from.

    Raises
    ------
    ConfigurationError, OutputError
        When `by` and `zone` do not come together, options are given that do not go together, or
        the output is no ``.npz`` file, or exists; before anything is read. When too many moves are possible.
    BudgetError
        When the budget is not positive.
    DataFileError
        When data are missing or malformed.
    StochasticError, InvalidInputError
        As `MarkovModel.fit`.
    """
    if output is not None:
        check_model_output(output, overwrite)
        check_output(private_list(output), overwrite)
    kinds = [one for one in (user_epsilon, smoothing, least_people) if one is not None]
    _refuse_together(kinds, by, zone, smoothing, max_speed_kmh, user_epsilon, moves_per_person, away, radii)
    budget = None if user_epsilon is None else rational(user_epsilon)
    people, choice = Data.from_any(data).read(), None
    if space is None and budget is None:
        choice = choose(people.trajectories, step_seconds)
    elif space is None and budget is not None:
        choice = choose_privately(people.trajectories, budget * OF_REGION, step_seconds)
        budget *= 1 - OF_REGION
    if choice is not None:
        space, step_seconds = choice.space, choice.step_seconds
    assert space is not None, "given or chosen"
    step = 60.0 if step_seconds is None else float(step_seconds)
    time_classes = None if by is None or zone is None else TimeClasses.of(by, step, zone)
    twins, outside = None, None
    if user_epsilon is not None and away:
        twins = twins_of(space)
        outside = [] if twins is None else [twins.seen(one, space, step)[1] for one in people.trajectories]
    elif not kinds and away is not False:
        twins = away_of(people.trajectories, space, step)
    if away and twins is None:
        raise ConfigurationError(
            "--away is given, and no one is outside a grid; leave it out, or give a smaller region"
        )
    sequences = state_sequences(people.trajectories, space, step, gap_seconds, twins)
    speed = MAX_SPEED_KMH if max_speed_kmh is None else max_speed_kmh
    private = shrunk = extension = None
    if budget is not None:
        most = MOVES_PER_PERSON if moves_per_person is None else moves_per_person
        private = fit_private(sequences, space, step, budget, most, speed, outside=outside)
        private = private.with_spending("region", None if choice is None else choice.epsilon)
        model = private.model
    elif smoothing is not None:
        model = MarkovModel.fit(sequences, space.size, smoothing, states=space, step_seconds=step)
        model = model.saying({"promise": _NO_PROMISE, "smoothing": smoothing})
    else:
        least = 1 if least_people is None else least_people
        shrunk = fit_shrunk(sequences, space, step, speed, least_people=least, away=twins)
        said = {"promise": _NO_PROMISE, "max_speed_kmh": speed, "weight": shrunk.weight}
        if least > 1:
            said |= {"promise": _NO_GUARANTEE, "least_people": least}
        model = shrunk.model.saying(said)
    if time_classes is not None:  # never with a budget: `_refuse_together`
        extension = extend(model, sequences, time_classes)
        model = extension.model
    if radii is not False and not kinds:

        def fit(some: Sequence[Trajectory]) -> MarkovModel:
            outer = None if twins is None else away_of(some, space, step)
            found = state_sequences(some, space, step, gap_seconds, outer)
            made = fit_shrunk(found, space, step, speed, away=outer).model
            return made if time_classes is None else extend(made, found, time_classes).model

        model = model.holding(held_radii(fit, people.trajectories))
        if radii and model.held_radii is None:
            raise ConfigurationError(f"--radii needs {LEAST_PEOPLE} people or more in the region; leave it out")
    if output is not None:
        with new_file(output, overwrite) as part:
            model.save(part)
            write_list(private_list(output), model, [one.user for one in people.trajectories], overwrite)
    states = np.concatenate([found for _, found in sequences])
    beyond = (states < 0) | (states >= space.size)
    moves = sum(int(((np.diff(slots) == 1) & (found[1:] >= 0) & (found[:-1] >= 0)).sum()) for slots, found in sequences)
    visited = len(np.unique(states[~beyond]))
    return Learned(model, people, len(states), int(beyond.sum()), visited, moves, extension, shrunk, private, choice)


_NO_PROMISE = "none: moves were counted without noise"
_NO_GUARANTEE = (
    "none: moves were counted without noise; those of fewer people than 'least_people' were left out, which guarantees "
    "nothing to anybody"
)


def _refuse_together(
    kinds: Collection[Any],
    by: By | None,
    zone: str | None,
    smoothing: float | None,
    max_speed_kmh: float | None,
    user_epsilon: Rational | None,
    moves_per_person: int | None,
    away: bool | None,
    radii: bool | None,
) -> None:
    """Refuse options of `learn` that do not go together, of which `kinds` are those that exclude each other."""
    if user_epsilon is not None and by is not None:
        raise ConfigurationError(
            "--user-epsilon makes a model that is the same all day; leave out --by, or learn without --user-epsilon"
        )
    if smoothing is not None and max_speed_kmh is not None:
        raise ConfigurationError("--max-speed and --smoothing are both given; smoothing makes possible what was seen")
    if moves_per_person is not None and user_epsilon is None:
        raise ConfigurationError("--moves-per-person bounds what --user-epsilon hides; give that too")
    if len(kinds) > 1:
        raise ConfigurationError("--user-epsilon, --smoothing and --least-people exclude each other; give one")
    if away and kinds and user_epsilon is None:
        raise ConfigurationError("--away does not go with --smoothing and --least-people; leave out those")
    if radii and kinds:
        raise ConfigurationError(
            "--radii follows people without a promise, by shrunk moves; leave out --user-epsilon, --smoothing, "
            "--least-people, or --radii"
        )
    if by is None and zone is not None:
        raise ConfigurationError("--zone is for classes of time; give --by hours or --by weekday-hours too")
    if by is not None:
        if zone is None:
            raise ConfigurationError("--by needs the time zone of its hours; give --zone, such as --zone Asia/Shanghai")
        TimeClasses.of(by, 60.0, zone)  # refuses a zone that is unknown
