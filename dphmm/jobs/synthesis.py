"""People who do not exist: trajectories out of a model, and how alike they are to people who do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, IntArray, Rng, random_source
from dphmm.errors import ConfigurationError
from dphmm.facts import fact, facts_of
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.models import Model, load_model, people_seen
from dphmm.jobs.progress import Watch, unwatched
from dphmm.model import Crowd, MarkovModel, compare_crowds, draw_like, move_probabilities, state_sequence
from dphmm.model.path_sampling import PathSampler
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import microseconds, time_zone
from dphmm.tables import check_output, new_file
from dphmm.writers.formats import check_format
from dphmm.writers.paths import PATH_FORMATS, open_paths

START = "2024-01-01"
"""The first day of people who do not exist, a Monday, unless it is said."""

_BLOCK = 1 << 20
"""About how many places are in memory at a time."""
_MOST_PEOPLE = 100_000_000
_MOST_STEPS = 1 << 24
_MOST_DAYS = 100_000
_SHORTEST = 2


@dataclass(frozen=True)
class Synthesized:
    """People who do not exist, in a file.

    Parameters
    ----------
    output
        The file.
    people, steps
        How many there are, and how many places each has.
    first
        The time of their first place, UTC.
    model
        The content hash of the model.
    promise
        What the model says that is promised to those it was learned from, in its own words: the file promises that, no
        more and no less.
    """

    output: Path
    people: int
    steps: int
    first: np.datetime64
    model: str
    promise: str


@dataclass(frozen=True, eq=False)
class Comparison:
    """How alike people who do not exist are to people who do.

    The measures are those of `dphmm.model.mobility_statistics`: divergences from 0 (alike) to 1, but for ``top_places``
    (a share) and ``rank_correlation``, where 1 is best. They are computed from true places, without noise.

    Parameters
    ----------
    synthetic
        Of the model's people, each in the same stretch of time as a real one.
    halves
        Of one half of the real people to the other half, drawn at random: about what people differ by anyway; a half
        each, they differ by more than all would from as many others. NaN for one real person.
    places_alone
        Of places drawn one by one from where people are, without any memory: what movement adds is beyond this.
    people, stretches, places
        The real people compared with, the stretches of time without a gap that they were seen within the region, and
        the places in these.
    left_out
        How many more there were whom the model was learned from.
    log_likelihood
        The mean natural logarithm of the probability that the model gives a step of the real people, over those that it
        thinks possible.
    impossible
        The share of their steps that it thinks impossible.
    real, drawn
        What was counted. Private.
    space
        The states.
    """

    synthetic: Mapping[str, float]
    halves: Mapping[str, float]
    places_alone: Mapping[str, float]
    people: int
    stretches: int
    places: int
    left_out: int
    log_likelihood: float = field(metadata=fact("log_likelihood_per_step"))
    impossible: float = field(metadata=fact("impossible_steps"))
    real: Crowd = field(repr=False)
    drawn: Crowd = field(repr=False)
    space: StateSpace = field(repr=False)

    def facts(self) -> dict[str, Any]:
        """As plain JSON values; a measure of nothing is None.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        columns = {"synthetic": self.synthetic, "other_real_people": self.halves, "places_alone": self.places_alone}
        measures = {name: {who: one[name] for who, one in columns.items()} for name in self.synthetic}
        counted = {"people": self.people, "stretches": self.stretches, "places": self.places}
        return facts_of(self, compared_with=counted | {"people_left_out": self.left_out}, measures=measures)


@checked
def synthesize(
    model: Model,
    output: str | Path,
    people: int = 1000,
    days: float = 7.0,
    start: str = START,
    *,
    rng: Rng = None,
    overwrite: bool = False,
    watch: Watch = unwatched,
) -> Synthesized:
    """Write trajectories of people who do not exist, as ``dphmm synthesize`` does.

    They are drawn from the model: where they begin, where they stay and for how long, where they go, at what time of
    day as far as the model tells. A file of them says nothing that the model does not say, and is as private as the
    model is, no more and no less: with one that was counted without noise it is not private.

    Parameters
    ----------
    model
        A model that knows its states and its step, or its file.
    output
        A ``.csv``, ``.parquet`` or ``.gpkg`` file: user, time in UTC, latitude, longitude; one row per person and step,
        at the centre of a cell. It appears whole or not at all.
    people
        How many, at least 1.
    days
        For how long.
    start
        The first day, such as ``"2024-01-01"``, in the time zone of the model's hours (UTC where it has none); or an
        instant, ISO 8601.
    rng
        Left out, the operating system's randomness. A seed makes the file repeatable.
    overwrite
        Whether a file that exists may be replaced.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    Synthesized
        Where they are, and how many.

    Raises
    ------
    ConfigurationError
        When the file's name has another extension, a number is out of range, or the day is none; before anything is
        drawn.
    DataFileError
        When the file holds no model.
    OutputError, MissingDependencyError
        When the output exists or cannot be written, or a library is missing.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from dphmm.jobs import learn, region, synthesize
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300, by="hours", zone="Europe/Lisbon").model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = synthesize(model, f"{folder}/people.csv", people=3, days=1, rng=1)
    ...     rows = Path(folder, "people.csv").read_text().splitlines()
    >>> made.steps, len(rows), rows[1].split(",")[:2]
    (288, 865, ['synthetic-1', '2024-01-01T00:00:00Z'])
    """
    path = check_output(check_format(output, PATH_FORMATS), overwrite)
    learned = load_model(model)
    step = microseconds(learned.step, "step_seconds")
    length = int(days * 86_400_000_000 / step) if abs(days) < _MOST_DAYS else 0
    if not 1 <= people <= _MOST_PEOPLE or not 1 <= length <= _MOST_STEPS:
        raise ConfigurationError(
            f"{people} people of {days:g} days are asked for; give at least one person and one step of "
            f"{learned.step:g} s, and at most {_MOST_PEOPLE} people of {_MOST_STEPS} steps"
        )
    first = -(-_instant(start, learned) // step)
    slots = first + np.arange(length)
    walker, width = PathSampler(learned, rng), len(str(people))
    some = max(1, _BLOCK // length)
    with new_file(path, overwrite) as part, open_paths(part, learned.space, step, slots) as add:
        for begin in watch(range(0, people, some), "Drawing people", -(-people // some)):
            count = min(some, people - begin)
            states = walker.paths(np.full(count, first), length)
            add([f"synthetic-{begin + k + 1:0{width}d}" for k in range(count)], states)
    return Synthesized(path, people, length, np.datetime64(first * step, "us"), learned.content_hash, _promise(learned))


def _promise(model: MarkovModel) -> str:
    said = (model.learned or {}).get("promise")
    return said if isinstance(said, str) else "not known: the model does not say how it was learned"


def _instant(start: str, model: MarkovModel) -> int:
    """Microseconds from 1970 to a day's beginning in the model's zone, or to an instant."""
    zone = UTC if model.time_classes is None else time_zone(model.time_classes.zone)
    try:
        moment = datetime.fromisoformat(start)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        since = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except (ValueError, OverflowError):
        raise ConfigurationError(f"start {start!r:.40} is no day; give one such as {START}") from None
    return round(since) * 1_000_000


@checked
def compare_people(
    model: Model, data: DataLike, gap_seconds: float | None = None, *, rng: Rng = None, watch: Watch = unwatched
) -> Comparison:
    """How alike a model's people are to real ones whom it has not seen, as ``dphmm synthesize --compare`` does.

    Real people are seen for some of the time only, so each stretch of time that one is seen within the region without a
    gap is held against one of a person who does not exist: in the same steps of the clock, of the same length. People
    whom the model was learned from, as far as the list beside its file tells, are left out.

    Parameters
    ----------
    model
        A model that knows its states and its step, or its file.
    data
        The real people.
    gap_seconds
        Who is seen again within this time has stayed until then, as in `learn`; left out, one step.
    rng
        Left out, the operating system's randomness.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    Comparison
        Measures of likeness.

    Raises
    ------
    ConfigurationError
        When no one is left, or no one was seen for two steps in a row within the region.
    DataFileError, DphmmError
        As `load_model` and the data.
    """
    learned = load_model(model)
    space, source = learned.space, random_source(rng)
    seen = people_seen(model, learned) or frozenset()
    everyone = Data.from_any(data).read().trajectories
    others = [one for one in everyone if one.user not in seen]
    if not others:
        raise ConfigurationError(
            f"all {len(everyone)} people are among those that the model was learned from; compare with others"
        )
    stretches: list[tuple[int, int, IntArray]] = []
    for who, person in enumerate(watch(others, "Reading people", len(others))):
        stretches += stretches_of(who, *state_sequence(person, space, learned.step, gap_seconds))
    if not stretches:
        raise ConfigurationError(
            "no one was seen for two steps in a row within the model's region; take more data, or give a longer --gap"
        )
    owners, firsts = (np.array(column) for column in list(zip(*stretches, strict=True))[:2])
    true = [states for _, _, states in stretches]
    lengths = np.array([len(states) for states in true])
    classes = hours_of(learned, firsts, lengths)
    crowd = Crowd.of(true, space.points, classes)
    drawn = Crowd.of(draw_like(learned, firsts, lengths, source), space.points, classes)
    probabilities = move_probabilities(learned, true, firsts)
    alone = np.minimum(np.searchsorted(np.cumsum(learned.initial), source.uniform(int(lengths.sum()))), space.size - 1)
    apart = Crowd.of(np.split(alone, np.cumsum(lengths)[:-1]), space.points, classes)
    return Comparison(
        compare_crowds(drawn, crowd),
        _of_halves(owners, true, space, classes, source.uniform(len(others))),
        compare_crowds(apart, crowd),
        len(np.unique(owners)),
        len(true),
        int(lengths.sum()),
        len(everyone) - len(others),
        float(np.log(probabilities[probabilities > 0]).mean()) if probabilities.any() else float("nan"),
        float((probabilities == 0).mean()),
        crowd,
        drawn,
        space,
    )


def stretches_of(who: int, slots: IntArray, states: IntArray) -> list[tuple[int, int, IntArray]]:
    """The stretches of a sequence without a gap within the region, of two places or more, with their first slots."""
    within = states >= 0
    cut = np.flatnonzero((np.diff(slots) != 1) | ~within[1:] | ~within[:-1]) + 1
    parts = zip(np.split(slots, cut), np.split(states, cut), strict=True)
    return [(who, int(at[0]), found) for at, found in parts if len(found) >= _SHORTEST and found[0] >= 0]


def hours_of(model: MarkovModel, firsts: IntArray, lengths: IntArray) -> list[IntArray]:
    """The hour of each step: the model's class of it, or the hour in UTC where it has none."""
    whole = np.repeat(firsts, lengths) + np.concatenate([np.arange(length) for length in lengths.tolist()])
    if model.time_classes is not None:
        found = model.time_classes.classes_of(whole)
    else:
        found = (whole - 1) * microseconds(model.step, "step_seconds") // 3_600_000_000 % 24
    return np.split(found, np.cumsum(lengths)[:-1])


def _of_halves(
    owners: IntArray, stretches: Sequence[IntArray], space: StateSpace, classes: Sequence[IntArray], draws: Any
) -> dict[str, float]:
    """The measures of one half of the people to the other."""

    def crowd(chosen: BoolArray) -> Crowd:
        numbers = np.flatnonzero(chosen).tolist()
        return Crowd.of([stretches[k] for k in numbers], space.points, [classes[k] for k in numbers])

    present = np.unique(owners)
    order = present[np.argsort(draws[present])]
    first = np.isin(owners, order[: len(order) // 2])
    if len(order) < 2:
        return dict.fromkeys(compare_crowds(crowd(~first), crowd(~first)), float("nan"))
    return compare_crowds(crowd(first), crowd(~first))
