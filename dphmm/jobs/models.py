"""The region that a model is about, and a model learned from people's trajectories."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import shapely

from dphmm.arguments import checked
from dphmm.arrays import IntArray
from dphmm.errors import ConfigurationError
from dphmm.jobs.choices import OF_REGION, Choice, choose, choose_privately
from dphmm.jobs.learned_from import private_list, write_list
from dphmm.jobs.people import Data, DataLike, Dropped, People
from dphmm.jobs.private_models import MOVES_PER_PERSON, PrivateModel, fit_private
from dphmm.markov.extending import Extension, extend
from dphmm.markov.model import MarkovModel
from dphmm.markov.reach import MAX_SPEED_KMH
from dphmm.markov.rhythm import By, Rhythm
from dphmm.markov.sequence import state_sequences
from dphmm.markov.shrinkage import ShrunkModel, fit_shrunk
from dphmm.mechanisms.exact import Rational, rational
from dphmm.policy.layer import read_polygons
from dphmm.readers.places import read_places
from dphmm.space.grid import Grid, preset_box
from dphmm.space.states import StateSpace
from dphmm.tables import check_output, new_file

Model = MarkovModel | str | Path
"""A model, or the file that holds one."""


@dataclass(frozen=True)
class Learned:
    """A model with what it was learned from.

    Attributes
    ----------
    model
        It.
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
        How it varies with time or looks back two steps; None where it does neither.
    shrunk
        What the moves were shrunk towards, and how far; None for a model that was smoothed, or is private.
    private
        What the promise of a private model is made of; None for any other.
    choice
        The region, cells and step where they were chosen; None where a space was given.
    """

    model: MarkovModel
    people: People
    places: int
    outside: int
    visited: int
    moves: int
    extension: Extension | None = None
    shrunk: ShrunkModel | None = None
    private: PrivateModel | None = None
    choice: Choice | None = None

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """What of the data the model does not count, and why. Private."""
        assert self.model.states is not None
        return self.people.dropped(self.model.states, self.model.step)


_CELLS = {"gowalla": 2.0}
"""A region → the cell size where it is not that of the paper."""


@checked
def load_model(model: Model) -> MarkovModel:
    """A model that knows its states and its time step.

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
) -> StateSpace:
    """The states that exactly one of four descriptions of a region gives.

    Parameters
    ----------
    preset
        A region of `dphmm.space.grid.PRESETS`: ``"geolife"``, ``"gowalla"`` or ``"cabspotting"``, with its cell size
        unless `cell` is given; but 2 km for Gowalla, whose people are months apart: over the paper's 0.89 km (use
        `Grid.preset`) such a gap takes a minute.
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
    if sum(choice is not None for choice in (preset, bbox, polygon, places)) != 1:
        raise ConfigurationError("no single region is given; give one of --preset, --bbox, --polygon and --places")
    if places is not None:
        if cell is not None:
            raise ConfigurationError("--cell is for grids; leave it out with --places")
        return read_places(places, float("inf") if within is None else within)
    if within is not None:
        raise ConfigurationError("--within goes with --places; leave it out")
    if preset is not None:
        cell = _CELLS.get(preset) if cell is None else cell
        return Grid.preset(preset) if cell is None else Grid.over(preset_box(preset), cell)
    if cell is None:
        raise ConfigurationError("no cell size is given; give --cell in kilometres, such as --cell 0.5")
    if bbox is not None:
        return Grid.over(bbox, cell)
    return Grid.over(shapely.union_all([shape for _, shape in read_polygons(str(polygon))]), cell)


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
    order: int = 1,
    max_speed_kmh: float | None = None,
    user_epsilon: Rational | None = None,
    moves_per_person: int | None = None,
    least_people: int | None = None,
) -> Learned:
    """Learn how people move, as ``dphmm learn`` does.

    The model is public: learn it from people other than those whose places are to be released. Who they are is written
    beside it, in a private list (see `dphmm.jobs.learned_from`) that keeps releases from being made of their places.

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
        Who is seen again within this time has stayed until then; a longer gap cuts. Left out, one step.
    smoothing
        Left out, every move that a person can make within a step is possible, and moves are shrunk towards what the
        region has in common: see `dphmm.markov.fit_shrunk`. A number is added to each move seen, both ways, and to
        staying, and no other move is possible; other people are then often where the model thinks that nobody can be.
    output, overwrite
        A ``.npz`` file for the model, and whether one that exists may be replaced. It appears whole or not at all, and
        never without its list.
    by
        Classes of time with a matrix each: ``"hours"``, or ``"weekday-hours"``; left out, one matrix serves all day.
    zone
        With `by`: the time zone of the hours, such as ``"Asia/Shanghai"`` or ``"+08:00"``.
    order
        1, or 2 to look back two steps: see `dphmm.markov.extend`.
    max_speed_kmh
        What decides which moves a person can make; left out, 150. Not with smoothing.
    user_epsilon
        The model then is differentially private for whole people, with this budget: see `fit_private`. Choose the
        space, the step and the speed without looking at the data.
    moves_per_person
        With `user_epsilon`: how many moves of one person count at most; left out, 20.
    least_people
        Moves of fewer people than this are left out, which is no guarantee for anybody.

    Raises
    ------
    ConfigurationError, OutputError
        When `by` and `zone` do not come together, the order is another, options are given that do not go together, or
        the output is no ``.npz`` file, or exists; before anything is read. When too many moves are possible.
    BudgetError
        When the budget is not positive.
    DataFileError
        When data are missing or malformed.
    StochasticError, InvalidInputError
        As `MarkovModel.fit`.
    """
    if output is not None:
        if Path(output).suffix != ".npz":
            raise ConfigurationError(f"{output}: a model is a .npz file; name it so")
        for path in (Path(output), private_list(output)):
            check_output(path, overwrite)
    way = _Way(smoothing, max_speed_kmh, user_epsilon, moves_per_person, least_people)
    people = Data.of(data).read()
    choice = None
    if space is None:
        choice, way = way.choose(people, step_seconds)
        space, step_seconds = choice.space, choice.step_seconds
    step_seconds = 60.0 if step_seconds is None else float(step_seconds)
    rhythm = _rhythm(by, zone, step_seconds)
    sequences = state_sequences(people.trajectories, space, step_seconds, gap_seconds)
    model, shrunk, private = way.fit(sequences, space, step_seconds, rhythm, order)
    if choice is not None and private is not None:
        private = private.after("region", choice.epsilon)
        model = private.model
    extension = None
    if private is None and (rhythm is not None or order != 1):
        extension = extend(model, sequences, rhythm, order)
        model = extension.model
    model = model.prepared()
    if output is not None:
        with new_file(output, overwrite) as part:
            model.save(part)
            write_list(private_list(output), model, [one.user for one in people.trajectories], overwrite)
    states = np.concatenate([found for _, found in sequences])
    moves = sum(int(((np.diff(slots) == 1) & (found[1:] >= 0) & (found[:-1] >= 0)).sum()) for slots, found in sequences)
    visited = len(np.unique(states[states >= 0]))
    return Learned(
        model, people, len(states), int((states < 0).sum()), visited, moves, extension, shrunk, private, choice
    )


@dataclass(frozen=True)
class _Way:
    """How a model is made of moves: what `learn` is told of it."""

    smoothing: float | None
    max_speed_kmh: float | None
    user_epsilon: Rational | None
    moves_per_person: int | None
    least_people: int | None

    def __post_init__(self) -> None:
        private, smooth = self.user_epsilon is not None, self.smoothing is not None
        if smooth and self.max_speed_kmh is not None:
            raise ConfigurationError(
                "--max-speed and --smoothing are both given; smoothing makes possible what was seen"
            )
        if self.moves_per_person is not None and not private:
            raise ConfigurationError("--moves-per-person bounds what --user-epsilon hides; give that too")
        if sum((private, smooth, self.least_people is not None)) > 1:
            raise ConfigurationError("--user-epsilon, --smoothing and --least-people exclude each other; give one")

    def choose(self, people: People, step_seconds: float | None) -> tuple[Choice, _Way]:
        """A region, cells and a step out of the data, and what is left of the budget."""
        if self.user_epsilon is None:
            return choose(people.trajectories, step_seconds), self
        budget = rational(self.user_epsilon)
        made = choose_privately(people.trajectories, budget * OF_REGION, step_seconds)
        return made, replace(self, user_epsilon=budget * (1 - OF_REGION))

    def fit(
        self,
        sequences: list[tuple[IntArray, IntArray]],
        space: StateSpace,
        step_seconds: float,
        rhythm: Rhythm | None,
        order: int,
    ) -> tuple[MarkovModel, ShrunkModel | None, PrivateModel | None]:
        """The model, and what it was made of; of first order and without a rhythm, unless it is private."""
        speed = MAX_SPEED_KMH if self.max_speed_kmh is None else self.max_speed_kmh
        if self.user_epsilon is not None:
            most = MOVES_PER_PERSON if self.moves_per_person is None else self.moves_per_person
            budget = self.user_epsilon
            private = fit_private(sequences, space, step_seconds, budget, most, speed, rhythm=rhythm, order=order)
            return private.model, None, private
        if self.smoothing is not None:
            step = float(step_seconds)
            model = MarkovModel.fit(sequences, space.size, self.smoothing, states=space, step_seconds=step)
            return model.saying({"promise": _NO_PROMISE, "smoothing": self.smoothing}), None, None
        least = 1 if self.least_people is None else self.least_people
        shrunk = fit_shrunk(sequences, space, step_seconds, speed, least_people=least)
        said = {"promise": _NO_PROMISE, "max_speed_kmh": speed, "weight": shrunk.weight}
        if least > 1:
            said |= {"promise": _NO_GUARANTEE, "least_people": least}
        return shrunk.model.saying(said), shrunk, None


_NO_PROMISE = "none: moves were counted without noise"
_NO_GUARANTEE = (
    "none: moves were counted without noise; those of fewer people than 'least_people' were left out, which guarantees "
    "nothing to anybody"
)


def _rhythm(by: By | None, zone: str | None, step_seconds: float) -> Rhythm | None:
    if by is None:
        if zone is not None:
            raise ConfigurationError("--zone is for classes of time; give --by hours or --by weekday-hours too")
        return None
    if zone is None:
        raise ConfigurationError("--by needs the time zone of its hours; give --zone, such as --zone Asia/Shanghai")
    return Rhythm.of(by, float(step_seconds), zone)
