"""What an attack found of a person, held against the truth, and of all people together; and what to take from it.

The frontier is how near a reader comes at once, for how far off adversaries stay in hindsight. Somebody in hindsight
knows all that the reader at once knows, and more, so that no way of blurring puts them farther off than the reader, but
as far as models are wrong. Better is nearer at once with the adversary as far off as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray
from dphmm.attack.mesh import Moves
from dphmm.attack.noise_channel import Blurred, Channel
from dphmm.attack.posterior import Posterior, Track
from dphmm.calibrate.simulation import Figure
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.facts import plain
from dphmm.model.model import MarkovModel
from dphmm.release.engine import ReleaseSettings


@dataclass(frozen=True)
class Outcome:
    """What releases of one person gave away, and what they were good for. Private: it needs the truth.

    Parameters
    ----------
    user
        Who.
    fixes
        How many times were looked at.
    at_once_m, hindsight_m
        The mean distance of the adversary's estimate, the mean of what they believe of a time, from the true place;
        from the releases up to the time, and from all. Metres.
    certainty, right
        The mean probability in hindsight of the likeliest cell, and how often that cell is the true one.
    home_error_m
        How far from the true home the guessed one is, metres; NaN for a person without a night. The home is the mean of
        the true places at night (0 to 6 h, mean solar time) in the cell with most of them, the guess the mean place in
        the cell with the most posterior mass in these times, in hindsight; but the likeliest centre where a channel
        hides a zone about the home.
    released_error_m
        The mean distance of a release from the true place, metres; NaN where no place was released.
    length_ratio
        The length of the way through the releases over that through the true places, at neighbouring times that both
        have a release; NaN where that is nothing.
    withheld
        The share of the times for which no place was released.
    habits_m
        As ``hindsight_m``, of an adversary who knows the habits of this person; NaN where nobody knows them.
    """

    user: str
    fixes: int
    at_once_m: float
    hindsight_m: float
    certainty: float
    right: float
    home_error_m: float
    released_error_m: float
    length_ratio: float
    withheld: float
    habits_m: float = nan

    @classmethod
    def measure(cls, track: Track, blurred: Blurred, posterior: Posterior, knowing: Posterior | None = None) -> Outcome:
        """The measures of one person.

        Parameters
        ----------
        track
            The true places.
        blurred
            What was released.
        posterior
            What the adversary believes.
        knowing
            What one believes who knows the person's habits.

        Returns
        -------
        Outcome
            One person's.
        """
        told = ~np.isnan(blurred.points[:, 0])
        both = told[1:] & told[:-1] & ~track.begins[1:]
        true, released = (_way(places, both) for places in (track.points, blurred.points))
        return cls(
            track.user,
            len(track),
            _mean_distance(posterior.at_once, track.points),
            _mean_distance(posterior.estimates, track.points),
            float(posterior.hindsight.max(axis=1).mean()),
            float((posterior.hindsight.argmax(axis=1) == track.states).mean()),
            _home_error(track, posterior),
            _mean_distance(blurred.points[told], track.points[told]) if told.any() else nan,
            released / true if true > 0 else nan,
            float(1 - told.mean()),
            nan if knowing is None else _mean_distance(knowing.estimates, track.points),
        )


def _mean_distance(one: FloatArray, other: FloatArray) -> float:
    return 1000.0 * float(np.hypot(*(one - other).T).mean())


def _way(places: FloatArray, counted: BoolArray) -> float:
    return float(np.hypot(*np.diff(places, axis=0)[counted].T).sum())


def _home_error(track: Track, posterior: Posterior) -> float:
    home, guess = track.home, posterior.home
    if home is None:
        return nan
    if guess is None:
        mass, places = posterior.hindsight[track.night], posterior.places[track.night]
        cell = int(mass.sum(axis=0).argmax())
        guess = mass[:, cell] @ places[:, cell] / mass[:, cell].sum()
    return 1000.0 * float(np.hypot(*(guess - home)))


MEASURES = (
    "at_once_m",
    "hindsight_m",
    "habits_m",
    "certainty",
    "right",
    "released_error_m",
    "length_ratio",
    "withheld",
)
"""The measures that are means over people."""


@dataclass(frozen=True)
class ChannelResult:
    """What a channel gave away of some people. Private as far as they are real.

    Parameters
    ----------
    name, source
        The channel's.
    outcomes
        One per person.
    home_within_m
        How near a guess must come to the home.
    family, settings
        The channel's.
    """

    name: str
    source: str
    outcomes: tuple[Outcome, ...] = field(repr=False)
    home_within_m: float
    family: str = ""
    settings: ReleaseSettings | None = field(default=None, repr=False)

    def figure(self, name: str) -> Figure:
        """The mean of a measure over the people who have it, with its 99 % interval; NaN where no one has.

        Parameters
        ----------
        name
            One of `MEASURES`.

        Returns
        -------
        Figure
            The mean and half the width of its interval.
        """
        values = np.array([getattr(one, name) for one in self.outcomes])
        known = values[np.isfinite(values)]
        return Figure.from_values(known) if len(known) else Figure(nan, nan)

    @property
    def homes(self) -> tuple[int, int]:
        """How many homes were found, and of how many people with one."""
        known = [one.home_error_m for one in self.outcomes if isfinite(one.home_error_m)]
        return sum(error <= self.home_within_m for error in known), len(known)

    def facts(self) -> dict[str, Any]:
        """As plain JSON values; what no one has is None.

        Returns
        -------
        dict
            Means, their intervals, homes found, and the outcome of each person.
        """
        stated: dict[str, Any] = {"channel": self.name, "family": self.family, "source": self.source}
        for name in MEASURES:
            figure = self.figure(name)
            stated[name], stated[f"{name}_give_or_take"] = figure.mean, figure.margin
        found_homes, homes = self.homes
        people = [vars(one) for one in self.outcomes]
        return dict(plain({**stated, "homes_found": found_homes, "homes": homes, "people": people}))


@checked
def attack_tracks(
    tracks: Sequence[Track],
    channels: Sequence[Channel],
    moves: Moves,
    home_within_m: float,
    seed: int,
    habits: Sequence[MarkovModel | None] = (),
    watch: Callable[[Sequence[tuple[int, Channel]]], Iterable[tuple[int, Channel]]] = iter,
) -> tuple[ChannelResult, ...]:
    """Channels tried on some tracks.

    Parameters
    ----------
    tracks
        At least one.
    channels, moves
        How they are blurred, at least one way, and what the adversary thinks of moves.
    home_within_m
        How near a guess must come to a home, metres; positive.
    seed
        0 or more. A person's draws follow from it, the person's number and the channel's name.
    habits
        For each track a model of that person, over the cells of ``moves``: another adversary reads the same releases
        with it. None for a person whose habits nobody knows; left out, nobody knows those of anyone.
    watch
        Hands on what is tried, and may show how far it has come.

    Returns
    -------
    tuple of ChannelResult
        For each channel one outcome of each track.

    Raises
    ------
    InvalidInputError
        When there is no track or channel, a number is out of range, or there are habits of another number of people.
    StochasticError
        When the model and the releases do not go together.
    """
    if seed < 0 or not tracks or not channels or not home_within_m > 0 or not isfinite(home_within_m):
        raise InvalidInputError(
            f"there are {len(tracks)} tracks and {len(channels)} channels, home_within_m is {home_within_m}, seed "
            f"{seed}; give a track, a channel, a positive length, and a seed of 0 or more"
        )
    if len(habits) not in (0, len(tracks)):
        raise InvalidInputError(f"there are {len(tracks)} tracks and habits of {len(habits)} people; give them of each")
    tried = [(number, channel) for number in range(len(tracks)) for channel in channels]
    outcomes, own, theirs = list[Outcome](), None, -1
    for number, channel in watch(tried):
        track = tracks[number]
        if number != theirs:  # of one person at a time: these are dense matrices
            known, theirs = habits[number] if habits else None, number
            own = None if known is None else Moves(known, moves.parts, moves.redrawn)
        blurred = channel.blur(track, moves, np.random.default_rng([seed, number, *channel.name.encode()]))
        try:
            public = channel.posterior(blurred, track, moves)
            knowing = None if own is None else channel.posterior(blurred, track, own)
        except StochasticError as problem:
            raise StochasticError(f"{channel.name}, user {track.user}: {problem}") from None
        outcomes.append(Outcome.measure(track, blurred, public, knowing))
    return tuple(
        ChannelResult(
            one.name, one.source, tuple(outcomes[at :: len(channels)]), home_within_m, one.family, one.settings
        )
        for at, one in enumerate(channels)
    )


KNOWING = {"hindsight_m": "an adversary in hindsight", "habits_m": "an adversary who knows their habits"}
"""The adversaries that error at once is held against, the one who knows less first: measures and words."""


def protection(results: Sequence[ChannelResult]) -> str:
    """Whose error counts as protection, of `KNOWING`: the one who knows habits, where anyone's are known."""
    return "habits_m" if any(isfinite(one.figure("habits_m").mean) for one in results) else "hindsight_m"


def frontier_lines(results: Sequence[ChannelResult], measure: str) -> dict[str, FloatArray]:
    """Family, or the name of a channel by itself → errors at once and of an adversary, ``(k, 2)`` m, nearest first."""
    found: dict[str, list[list[float]]] = {}
    for one in results:
        found.setdefault(one.family or one.name, []).append([one.figure(k).mean for k in ("at_once_m", measure)])
    return {name: np.array(sorted(points)) for name, points in found.items()}


def usual(results: Sequence[ChannelResult]) -> ChannelResult | None:
    """The channel that is what ``dphmm release`` does unless told otherwise; None where it was not tried."""
    return next((one for one in results if one.settings == ReleaseSettings.for_a_day()), None)


def advice(
    results: Sequence[ChannelResult], default: ChannelResult | None = None, called: str = "the default"
) -> list[str]:
    """Which of this package's settings to take, what else is nearer and protects as much, and homes that are found.

    Of the settings that protect at least as much as one of them (see `protection`) that one is taken which is nearest
    at once: as the usual one (see `usual`), unless another is given and what it is called. It is kept unless another is
    nearer by more than the 99 % interval of the people's differences. Sentences; none where the usual setting was not
    tried.
    """
    default, measure = default or usual(results), protection(results)
    if default is None:
        return []
    tried = [(one.figure("at_once_m").mean, one.figure(measure).mean, one) for one in results]
    near, far, _ = next(row for row in tried if row[2] is default)
    ours = [row for row in tried if row[2].settings is not None]
    at_once, later, best = min((row for row in ours if row[1] >= far), key=lambda row: (row[0], row[2] is not default))
    pairs = zip(default.outcomes, best.outcomes, strict=True)  # the same people
    nearer = Figure.from_values(np.array([one.at_once_m - other.at_once_m for one, other in pairs]))
    count = f"{len(best.outcomes)} people" if len(best.outcomes) > 1 else "one person"
    if nearer.least > 0.0:
        said = (
            f"Take {best.name}: a reader is {at_once:,.0f} m off at once instead of {near:,.0f} m with {called}, "
            f"{default.name} ({nearer.mean:,.0f} ± {nearer.margin:,.0f} m nearer, of {count}), and {KNOWING[measure]} "
            f"{later:,.0f} m instead of {far:,.0f} m."
        )
    else:
        others = f"of the {len(ours)} settings of dphmm that were tried none is nearer at once and protects as much"
        if len(ours) == 1:
            others = "no other setting of dphmm was tried"
        elif best is not default:
            others = f"{best.name} was {nearer.mean:,.0f} m nearer at once, too little to tell from chance ({count})"
        at_once, later = near, far
        said = (
            f"Keep {called}, {default.name}: a reader is {near:,.0f} m off at once and {KNOWING[measure]} {far:,.0f} "
            f"m; {others}."
        )
    better = [
        f"{one.name} ({first:,.0f} and {last:,.0f} m)"
        for first, last, one in tried
        if one.settings is None and first <= at_once and last >= later
    ]
    if better:
        said += f" Nearer at once and no less protected from this adversary, without a promise: {', '.join(better)}."
    homes, people = default.homes
    if not people:
        return [said]
    fewer = [f"{one.name} ({one.homes[0]})" for first, _, one in tried if first <= near and one.homes[0] < homes]
    others = f"fewer with {', '.join(fewer)}" if fewer else "no channel gives away fewer"
    return [said, f"With {called} {homes} of {people} homes are found; of what is as near at once, {others}."]
