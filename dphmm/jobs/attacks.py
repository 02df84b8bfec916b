"""What ways of blurring give away of people, deployed ones and one's own beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.attack.deployed_channels import DEFAULT_CHANNELS, parse_channel
from dphmm.attack.measures import MEASURES, ChannelResult, advice, attack_tracks
from dphmm.attack.mesh import Moves
from dphmm.attack.noise_channel import Channel, Samples, TableChannel
from dphmm.attack.posterior import Track
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.facts import fact, facts_of
from dphmm.jobs.adversaries import EachHabits, Moments, before
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.models import Model, load_model, read_others, region
from dphmm.jobs.progress import Watch, unwatched
from dphmm.model import MarkovModel, fit_shrunk, state_sequences
from dphmm.readers.synthetic_city import build_city, synthetic_trajectories
from dphmm.release.ledger import DAY_SECONDS
from dphmm.space import OUTSIDE, Trajectory
from dphmm.tables import new_file, write_csv

HOME_WITHIN_KM = 0.2
"""How near a guess must come to a home, unless it is said."""
MOST_STEPS = 288
"""How many times of each person are looked at unless it is said: two days of ten minutes."""
LEAST_DAYS = 4
"""Days with a place that a person needs for habits to be learned from the earlier half of them."""

_CITY_PEOPLE, _CITY_ATTACKED, _CITY_DAYS, _CITY_MINUTES = 24, 8, 8, 10.0
_CITY_CELL_KM = 0.25
_CITY = "people of the synthetic city, who do not exist"


@dataclass(frozen=True, eq=False)
class Attacked:
    """What channels gave away of some people. Private as far as the people are real.

    Parameters
    ----------
    results
        One per channel, in the order asked for.
    people, fixes
        How many people were looked at, and how many times of them in all.
    left_out
        How many people had no fix within the region.
    habits_known
        Of how many people the habits were learned, from the earlier half of their days.
    about
        Who they are, in words.
    is_invented
        Whether they do not exist.
    cell_km, part_km
        The sides of the model's cells, and of the parts of them that the adversary tells apart.
    step_seconds
        The model's step.
    home_within_km
        How near a guess of a home must come.
    learned_from_them
        Whether the model was learned from these people, as far as that is known.
    seed
        Which draws.
    """

    about: str = field(metadata=fact())
    people: int = field(metadata=fact())
    fixes: int = field(metadata=fact())
    left_out: int = field(metadata=fact("people_left_out"))
    habits_known: int = field(metadata=fact("people_with_known_habits"))
    cell_km: float = field(metadata=fact())
    part_km: float = field(metadata=fact("adversary_resolution_km"))
    step_seconds: float = field(metadata=fact())
    home_within_km: float = field(metadata=fact("home_within_m", times=1000))
    learned_from_them: str = field(metadata=fact("model_learned_from_these_people"))
    seed: int = field(metadata=fact())
    results: tuple[ChannelResult, ...] = field(metadata=fact("channels"))
    is_invented: bool

    def facts(self) -> dict[str, Any]:
        """As plain JSON values; a figure that no person has is None.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        return facts_of(self, which_to_take=self.advice)

    @property
    def advice(self) -> list[str]:
        """Which of this package's settings to take, and how many homes the usual one gives away: see `advice`."""
        return advice(self.results)

    def warnings(self) -> list[str]:
        """What a reader of the table should know first.

        Returns
        -------
        list of str
            Sentences; none where there is nothing to know.
        """
        if self.part_km <= self.home_within_km:
            return []
        return [
            f"the adversary tells apart squares of {1000 * self.part_km:,.0f} m, more than the "
            f"{1000 * self.home_within_km:,.0f} m within which a home counts as found; learn a model with smaller cells"
        ]

    def write_table(self, path: str | Path, overwrite: bool = False) -> None:
        """Write a CSV with a row for each channel: means over people, their 99 % intervals, and homes found.

        Parameters
        ----------
        path
            The .csv file.
        overwrite
            Whether a file that exists may be replaced.

        Raises
        ------
        OutputError
            When the file exists and may not be replaced, or cannot be written.
        """
        measures = [name for one in MEASURES for name in (one, f"{one}_give_or_take")]
        header = ["channel", *measures, "homes_found", "homes", "source"]
        with new_file(path, overwrite, private=not self.is_invented) as part:
            rows = ([_cell(facts[name]) for name in header] for facts in (one.facts() for one in self.results))
            write_csv(part, header, rows)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


@checked
def attack(
    data: DataLike | None = None,
    model: Model | None = None,
    channels: Sequence[str | Channel] = DEFAULT_CHANNELS,
    *,
    home_within_km: float = HOME_WITHIN_KM,
    most_steps: int = MOST_STEPS,
    allow_own_model: bool = False,
    seed: int = 0,
    watch: Watch = unwatched,
) -> Attacked:
    """Try what ways of blurring give away of people, as ``dphmm attack`` does.

    Every channel blurs the same true places, and one adversary, who knows the channel and the model, says where the
    people were: at once, and in hindsight (see `dphmm.attack`). Of people with `LEAST_DAYS` days or more the later half
    is blurred; another adversary has learned the person's habits from the earlier half (`dphmm.model.habits`).

    Parameters
    ----------
    data
        Whose places; left out, eight people of the synthetic city with a model of sixteen others.
    model
        The model that the adversary knows, or its file: over the cells of a grid.
    channels
        Texts as `dphmm.attack.parse_channel` takes them, or ``table:FILE`` for a table of ``k(z | s)`` (see
        `dphmm.attack.TableChannel.read`), or ``samples:FILE`` for what an app really released of these people (see
        `dphmm.attack.Samples`); or channels themselves.
    home_within_km
        How near a guess must come to a home to count as finding it.
    most_steps
        The largest number of times of each person that are looked at: the first ones within the region, of the later
        half of the days.
    allow_own_model
        Whether to go on with people whose own data the model has seen: the adversary then knows them already.
    seed
        Which draws; nothing here is published.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    Attacked
        What each channel gave away.

    Raises
    ------
    ConfigurationError
        When data are given without a model or the other way round, a channel is none, the model is of another kind, it
        was learned from these people, or no one has a fix within its region.
    DataFileError, DphmmError
        As the data, the model's file and those of channels say.

    Examples
    --------
    >>> found = attack(channels=("round:3", "disc:2km"), most_steps=48)
    >>> [result.name for result in found.results]
    ['rounded to 3 digits', 'fresh within 2 km']
    >>> sharp, fresh = (result.figure("hindsight_m").mean for result in found.results)
    >>> sharp < fresh < found.results[1].figure("released_error_m").mean
    True
    """
    if (data is None) != (model is None):
        raise ConfigurationError("data and a model go together; give both (--model), or neither for the synthetic city")
    if not home_within_km > 0 or not isfinite(home_within_km) or most_steps < 1 or seed < 0:
        raise InvalidInputError(
            f"home_within_km is {home_within_km}, most_steps {most_steps} and seed {seed}; give a positive length, at "
            "least one step, and a seed of 0 or more"
        )
    if isinstance(channels, str) or not isinstance(channels, Sequence) or not channels:
        raise ConfigurationError("no channel is given; give a list of at least one, such as ['round:3']")
    if data is None or model is None:
        everyone, learned = _invented()
        about, own = _CITY, "no"
    else:
        learned, about = load_model(model), "people of the data"
    moves, truths = Moves(learned), dict[str, Trajectory]()
    made = [_channel(one, moves, truths) for one in channels]  # refused before data are read
    if data is not None:
        people, own = read_others(data, model, learned, allow_own_model)
        everyone = people.trajectories
    truths.update((one.user, one) for one in everyone)
    found = [both for person in everyone if (both := halves(person, moves, most_steps)) is not None]
    if not found:
        raise ConfigurationError("no place of the data lies in the model's region; learn a model of that region")
    tracks, known = zip(*found, strict=True)
    theirs = EachHabits(learned, known)
    within = 1000 * home_within_km
    results = attack_tracks(
        tracks, made, moves, within, seed, theirs, lambda items: watch(items, "Attacking", len(items))
    )
    return Attacked(
        about=about if len(tracks) > 1 else about.replace("people", "person"),
        people=len(tracks),
        fixes=sum(map(len, tracks)),
        left_out=len(everyone) - len(tracks),
        habits_known=sum(one is not None for one in known),
        cell_km=moves.grid.cell_km,
        part_km=moves.mesh.cell_km,
        step_seconds=learned.step,
        home_within_km=home_within_km,
        learned_from_them=own,
        seed=seed,
        results=results,
        is_invented=data is None,
    )


def halves(person: Trajectory, moves: Moves, most: int) -> tuple[Track, Moments | None] | None:
    """The later half of a person's days, and where they were in the earlier half.

    Days are of UTC. Of a person with fewer than `LEAST_DAYS` that have a place all are taken, and no habits are known;
    None where no fix lies within the region.
    """
    slotted, day = person.resample(moves.model.step), int(DAY_SECONDS // moves.model.step)
    inside = slotted.slots[moves.grid.locate(slotted.latitude, slotted.longitude) != OUTSIDE]
    days = np.unique(inside // max(1, day))
    begins = int(days[len(days) // 2]) * day if day and len(days) >= LEAST_DAYS else None
    track = Track.from_trajectory(person, moves, most, begins)
    known = None if begins is None else before(person, moves.model, begins)
    return None if track is None else (track, known)


def _invented() -> tuple[tuple[Trajectory, ...], MarkovModel]:
    """People of the synthetic city, and a model of others there."""
    city = build_city()
    people = synthetic_trajectories(_CITY_PEOPLE, _CITY_DAYS, _CITY_MINUTES / 2, city=city)
    grid = region(bbox=city.box, cell=_CITY_CELL_KM)
    step = 60 * _CITY_MINUTES
    return people[:_CITY_ATTACKED], fit_shrunk(state_sequences(people[_CITY_ATTACKED:], grid, step), grid, step).model


def _channel(given: str | Channel, moves: Moves, truths: Mapping[str, Trajectory]) -> Channel:
    if isinstance(given, Channel):
        return given
    if not isinstance(given, str):
        raise ConfigurationError(
            f"channel {given!r} is a {type(given).__name__}; give a text or a dphmm.attack.Channel"
        )
    kind, _, file = given.partition(":")
    if kind == "table" and file:
        return TableChannel.read(file, moves.grid.size)
    if kind == "samples" and file:
        released = {one.user: one for one in Data.from_any(file).read().trajectories}
        return Samples(f"samples {Path(file).stem}", released, truths)
    return parse_channel(given)
