"""Outcomes of attacks per user and per channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.attack.mesh import MeshMovement
from dphmm.attack.noise_channel import Channel, ObfuscatedTrack
from dphmm.attack.posterior import Posterior, Track
from dphmm.calibrate.simulation import MeanEstimate
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.formatting import Result, as_plain
from dphmm.model.model import MarkovModel
from dphmm.random import derive_seed
from dphmm.release.engine import ReleaseSettings
from dphmm.validation import PositiveNumber, SeedOrGenerator, check_arguments


@dataclass(frozen=True, kw_only=True)
class AttackOutcome:
    """Disclosure and utility of the releases of one user. Private: it uses the true locations.

    Parameters
    ----------
    user
        The user.
    num_fixes
        Number of evaluated times.
    filtered_error_m, smoothed_error_m
        The mean distance between the adversary's posterior mean and the true location, given past releases and given
        all releases. Metres.
    max_posterior, top_1_accuracy
        The mean smoothed probability of the most probable cell, and the share of times at which this cell is correct.
    home_error_m
        The distance between the true and the estimated home, metres. NaN for a user without a night. The true home is
        the mean of the true locations at night (0 to 6 h, mean solar time) in their most frequent cell. The estimate is
        the smoothed mean location at these times in the cell with the largest posterior mass. For a channel with a zone
        around home, it is the most probable centre.
    released_error_m
        The mean distance between released and true locations, metres. NaN without releases.
    length_ratio
        The length of the released track divided by that of the true track, both over all times with a release: the sum
        of the distances between consecutive ones, also across withheld times and gaps. NaN if the latter is 0, as with
        fewer than two releases.
    withheld_share
        The share of times without a release.
    informed_error_m
        The smoothed error of the informed adversary, with the user's habits. NaN without known habits.
    """

    user: str
    num_fixes: int
    filtered_error_m: float
    smoothed_error_m: float
    max_posterior: float
    top_1_accuracy: float
    home_error_m: float
    released_error_m: float
    length_ratio: float
    withheld_share: float
    informed_error_m: float = nan

    @classmethod
    def from_posterior(
        cls, track: Track, obfuscated: ObfuscatedTrack, posterior: Posterior, informed: Posterior | None = None
    ) -> AttackOutcome:
        """Compute the metrics of one user.

        Parameters
        ----------
        track
            The true locations.
        obfuscated
            The released locations.
        posterior
            The posterior of the public adversary.
        informed
            The posterior of the informed adversary, with the user's habits.

        Returns
        -------
        AttackOutcome
            The metrics.
        """
        published = ~np.isnan(obfuscated.points[:, 0])
        true, released = (_compute_path_length(places[published]) for places in (track.points, obfuscated.points))
        return cls(
            user=track.user,
            num_fixes=len(track),
            filtered_error_m=_compute_mean_distance_m(posterior.filtered_means, track.points),
            smoothed_error_m=_compute_mean_distance_m(posterior.smoothed_means, track.points),
            max_posterior=float(posterior.smoothed.max(axis=1).mean()),
            top_1_accuracy=float((posterior.smoothed.argmax(axis=1) == track.states).mean()),
            home_error_m=_compute_home_error_m(track, posterior),
            released_error_m=_compute_mean_distance_m(obfuscated.points[published], track.points[published])
            if published.any()
            else nan,
            length_ratio=released / true if true > 0 else nan,
            withheld_share=float(1 - published.mean()),
            informed_error_m=nan
            if informed is None
            else _compute_mean_distance_m(informed.smoothed_means, track.points),
        )


def _compute_mean_distance_m(first: FloatArray, other: FloatArray) -> float:
    return 1000.0 * float(np.hypot(*(first - other).T).mean())


def _compute_path_length(places: FloatArray) -> float:
    return float(np.hypot(*np.diff(places, axis=0).T).sum())


def _compute_home_error_m(track: Track, posterior: Posterior) -> float:
    home = track.home
    guess = posterior.home
    if home is None:
        return nan
    if guess is None:
        mass = posterior.smoothed[track.is_night]
        places = posterior.smoothed_cell_means[track.is_night]
        cell = int(mass.sum(axis=0).argmax())
        guess = mass[:, cell] @ places[:, cell] / mass[:, cell].sum()
    return 1000.0 * float(np.hypot(*(guess - home)))


# Metrics that are averaged over users.
MEASURES = (
    "filtered_error_m",
    "smoothed_error_m",
    "informed_error_m",
    "max_posterior",
    "top_1_accuracy",
    "released_error_m",
    "length_ratio",
    "withheld_share",
)


@dataclass(frozen=True)
class ChannelResult(Result):
    """Outcomes of one channel for several users. Private if the users are real.

    Parameters
    ----------
    name, source
        Name and source of the channel.
    outcomes
        One element per user.
    home_within_m
        Largest error of an estimated home that counts as found.
    family, settings
        Family and settings of the channel.
    """

    name: str
    source: str
    outcomes: tuple[AttackOutcome, ...] = field(repr=False)
    home_within_m: float
    family: str = ""
    settings: ReleaseSettings | None = field(default=None, repr=False)

    def estimate_mean(self, name: str) -> MeanEstimate:
        """Estimate the mean of a metric over the users that have it, with a 99 % interval.

        Parameters
        ----------
        name
            An element of `MEASURES`.

        Returns
        -------
        MeanEstimate
            The mean and half the width of its interval. NaN if no user has the metric.
        """
        values = np.array([getattr(outcome, name) for outcome in self.outcomes])
        finite = values[np.isfinite(values)]
        return MeanEstimate.from_values(finite) if len(finite) else MeanEstimate(nan, nan)

    @property
    def homes(self) -> tuple[int, int]:
        """Number of homes found, and number of users with a home."""
        errors = [outcome.home_error_m for outcome in self.outcomes if isfinite(outcome.home_error_m)]
        return sum(error <= self.home_within_m for error in errors), len(errors)

    def _derive_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"channel": self.name, "family": self.family, "source": self.source}
        for name in MEASURES:
            estimate = self.estimate_mean(name)
            fields[name] = estimate.mean
            fields[f"{name}_margin"] = estimate.margin
        num_found, num_homes = self.homes
        users = [vars(outcome) for outcome in self.outcomes]
        return dict(as_plain({**fields, "num_homes_found": num_found, "num_homes": num_homes, "users": users}))


@check_arguments
def attack_tracks(
    tracks: Sequence[Track],
    channels: Sequence[Channel],
    moves: MeshMovement,
    home_within_m: PositiveNumber,
    rng: SeedOrGenerator,
    habits: Sequence[MarkovModel | None] = (),
    watch: Callable[[Sequence[tuple[int, Channel]]], Iterable[tuple[int, Channel]]] = iter,
) -> tuple[ChannelResult, ...]:
    """Attack users under several channels.

    Parameters
    ----------
    tracks
        The users' tracks, at least one.
    channels, moves
        The channels, at least one, and the adversary's movement model.
    home_within_m
        Largest error of an estimated home that counts as found, metres; positive.
    rng
        Seed or generator. A user's noise follows from it, the user's index and the channel's name.
    habits
        A movement model for each track, over the cells of ``moves``, or None. The informed adversary uses it for the
        same releases. By default there is no informed adversary.
    watch
        Iterates over the attacks and may show the progress.

    Returns
    -------
    tuple of ChannelResult
        One result for each channel, with an outcome for each track.

    Raises
    ------
    InvalidInputError
        If there is no track or channel, a number is out of range, or the number of habits differs from that of tracks.
    StochasticError
        If the model excludes the releases.
    """
    seed = derive_seed(rng)
    if not tracks or not channels:
        raise InvalidInputError(
            f"there must be a track and a channel, got {len(tracks)} tracks and {len(channels)} channels"
        )
    if len(habits) not in (0, len(tracks)):
        raise InvalidInputError(f"habits must have one entry for each of {len(tracks)} tracks, got {len(habits)}")
    attacks = [(index, channel) for index in range(len(tracks)) for channel in channels]
    outcomes = list[AttackOutcome]()
    informed_moves = None
    model_index = -1
    for number, channel in watch(attacks):
        track = tracks[number]
        if number != model_index:  # one user at a time: the matrices are dense
            habit_model = habits[number] if habits else None
            model_index = number
            informed_moves = None if habit_model is None else MeshMovement(habit_model, moves.parts, moves.redraw_rate)
        # The channel's name is part of the seed, so that each channel has its own noise.
        obfuscated = channel.obfuscate(track, moves, np.random.default_rng([seed, number, *channel.name.encode()]))
        try:
            public = channel.posterior(obfuscated, track, moves)
            informed = None if informed_moves is None else channel.posterior(obfuscated, track, informed_moves)
        except StochasticError as problem:
            raise StochasticError(f"{channel.name}, user {track.user}: {problem}") from None
        outcomes.append(AttackOutcome.from_posterior(track, obfuscated, public, informed))
    return tuple(
        ChannelResult(
            channel.name,
            channel.source,
            tuple(outcomes[at :: len(channels)]),
            home_within_m,
            channel.family,
            channel.settings,
        )
        for at, channel in enumerate(channels)
    )
