"""Public and informed adversaries: auxiliary data, auxiliary locations and other models."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import IntArray
from dphmm.audit.sequence import PUBLIC, Adversary
from dphmm.errors import ConfigurationError
from dphmm.events.expression import parse_place
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.region_map import COAST, build_region_map
from dphmm.model import MarkovModel, state_sequence
from dphmm.model.habits import find_usual_state, with_habits, with_return_bias
from dphmm.model.map_attraction import with_map
from dphmm.release.ledger import steps_per_day
from dphmm.space.trajectory import Trajectory
from dphmm.validation import check_arguments

# Slots and states ``(t,)`` of a user. State -1 is unknown.
LocationHistory = tuple[IntArray, IntArray]

# Auxiliary locations that are inferred from a user's earlier data. All others are equal for all users.
_INFERRED_LOCATIONS = {"home", "work"}


@check_arguments
@dataclass(frozen=True, eq=False)
class Adversaries:
    """Specification of adversaries in addition to the public one.

    The public adversary knows the model and has no auxiliary data.

    Parameters
    ----------
    auxiliary_data
        Earlier data of the users, by name. One informed adversary has them and models each user's movement by
        `dphmm.model.habits.with_habits`. Data from a user's first release on are not used. Users without earlier data
        in the region are omitted from an audit.
    model
        Another model of the same states, or its file. One adversary uses it for all users.
    auxiliary_locations
        Locations that one informed adversary each knows for every user and expects the user to return to
        (`dphmm.model.habits.with_return_bias`): ``home`` or ``work``, inferred from `auxiliary_data`, or a location
        such as ``clinic.geojson``, ``at:95,99`` or a name.
    region_map
        A public map that one adversary has: ``"coast"`` or a map file; see `dphmm.jobs.region_map.build_region_map`.
        This adversary weights the model by land (`dphmm.model.map_attraction.with_map`).

    Raises
    ------
    ConfigurationError
        If home or work is specified without auxiliary data.
    """

    auxiliary_data: DataLike | None = None
    model: Model | None = None
    auxiliary_locations: tuple[str, ...] = ()
    region_map: str | Path | None = None

    def __post_init__(self) -> None:
        if self.auxiliary_data is None and _INFERRED_LOCATIONS & set(self.auxiliary_locations):
            raise ConfigurationError(
                "auxiliary locations home and work are inferred from earlier data: use --auxiliary-data, or name a "
                "place"
            )

    @property
    def is_private(self) -> bool:
        """Whether results about these adversaries are private, because they depend on users' data."""
        return self.auxiliary_data is not None

    def build_adversaries(self, public: MarkovModel, begins: Mapping[str, int | None]) -> UserAdversaries:
        """Build the adversaries of each user, the public adversary first.

        All arguments are validated here. Models of single users are built on access.

        Parameters
        ----------
        public
            The model of the releases.
        begins
            Name of each user → slot of the first release, None if unknown.

        Returns
        -------
        UserAdversaries
            Name of each user → the adversaries. With auxiliary data, users without earlier data in the region are
            omitted.

        Raises
        ------
        ConfigurationError
            If no user has earlier data in the region, a location is unknown, or the other model has other states.
        DphmmError
            If the data or the model are invalid.
        """
        shared = [PUBLIC]
        if self.model is not None:
            name = f"another model, {self.model}" if isinstance(self.model, str | Path) else "another model"
            shared.append(Adversary(name, _check_same_space(load_model(self.model), public)))
        if self.region_map is not None:
            shared.append(build_map_adversary(self.region_map, public))
        location_adversaries = {
            place: _build_location_adversary(place, public)
            for place in self.auxiliary_locations
            if place not in _INFERRED_LOCATIONS
        }
        histories = read_histories(read_tracks_by_user(self.auxiliary_data), public, begins)
        if self.auxiliary_data is not None:
            histories = {user: history for user, history in histories.items() if history is not None}
            if begins and not histories:
                raise build_missing_history_error(next(iter(begins)))
        return UserAdversaries(public, shared, self.auxiliary_locations, location_adversaries, histories)


@dataclass(frozen=True, eq=False)
class UserAdversaries(Mapping[str, tuple[Adversary, ...]]):
    """Adversaries of each user, built on access: the models of all do not fit into memory."""

    public: MarkovModel
    shared: Sequence[Adversary]
    auxiliary_locations: Sequence[str]
    location_adversaries: Mapping[str, Adversary]
    histories: Mapping[str, LocationHistory | None]

    def __len__(self) -> int:
        return len(self.histories)

    def __iter__(self) -> Iterator[str]:
        return iter(self.histories)

    def __contains__(self, user: object) -> bool:
        return user in self.histories  # the default would build the models

    def __getitem__(self, user: str) -> tuple[Adversary, ...]:
        return self.build(self.histories[user])

    def build(self, history: LocationHistory | None) -> tuple[Adversary, ...]:
        """Build the adversaries of a user with a history."""
        with_data = [] if history is None else [Adversary(HABITS, build_habit_model(self.public, history))]
        with_location = [
            self.location_adversaries.get(place) or _build_location_adversary(place, self.public, history)
            for place in self.auxiliary_locations
        ]
        return (*self.shared, *with_data, *with_location)


def build_map_adversary(region_map: str | Path, public: MarkovModel) -> Adversary:
    """Build the adversary who combines the public model with land and water of a map.

    Raises
    ------
    ConfigurationError, DataFileError
        See `dphmm.jobs.region_map.build_region_map`.
    """
    name = "the coast" if region_map == COAST else f"the map {Path(region_map).name}"
    weights = build_region_map(region_map, public.space).land_attraction
    return Adversary(name, with_map(public, weights))


# Auxiliary knowledge of an adversary who has a user's earlier data.
HABITS = "user habits"


def read_tracks_by_user(auxiliary_data: DataLike | None) -> dict[str, Trajectory]:
    """Read the earlier data of users, by name. Empty without auxiliary data."""
    return (
        {}
        if auxiliary_data is None
        else {track.user: track for track in Data.from_any(auxiliary_data).read().trajectories}
    )


def read_histories(
    tracks: Mapping[str, Trajectory], model: MarkovModel, begins: Mapping[str, int | None]
) -> dict[str, LocationHistory | None]:
    """Return each user's history before the first release, None for users without data."""
    histories = {
        user: extract_history(tracks[user], model, at) if user in tracks else None for user, at in begins.items()
    }
    warn_of_single_days([history for history in histories.values() if history is not None], model)
    return histories


def warn_of_single_days(histories: Collection[LocationHistory], model: MarkovModel) -> None:
    """Log a warning about histories of one day, from which `with_habits` learns nothing."""
    if count := sum(has_single_day(history, model) for history in histories):
        logging.getLogger(__name__).warning("%s", format_single_day_warning(count, len(histories)))


def has_single_day(history: LocationHistory, model: MarkovModel) -> bool:
    """Return whether the known states of a history are from one day."""
    slots, states = history
    return len(np.unique(slots[states >= 0] // (steps_per_day(model.step) or 1))) == 1


def format_single_day_warning(count: int, num_users: int) -> str:
    """Return the warning about users with histories of one day."""
    return (
        f"the auxiliary data of {count:,} of {num_users:,} users are from one day: habits are learned from days that "
        "predict each other, so the adversary knows no more than the model about these users; use data of several days"
    )


def build_habit_model(public: MarkovModel, history: LocationHistory) -> MarkovModel:
    """Build the movement model of an adversary who has a user's history. See `with_habits`."""
    return with_habits(public, *history, steps_per_day(public.step) or 1).model


@dataclass(frozen=True, eq=False)
class HabitModels(Sequence[MarkovModel | None]):
    """Movement models of users, built on access: those of thousands do not fit into memory.

    Parameters
    ----------
    public
        The model of all users.
    histories
        The history of each user. None gives no model.
    """

    public: MarkovModel
    histories: tuple[LocationHistory | None, ...]

    def __len__(self) -> int:
        return len(self.histories)

    def __getitem__(self, index: Any) -> Any:
        history = self.histories[index]
        return None if history is None else build_habit_model(self.public, history)


def extract_history(track: Trajectory, model: MarkovModel, slot: int | None) -> LocationHistory | None:
    """Return a user's history before a slot, or the whole history. None without a known state."""
    slots, states = state_sequence(track, model.space, model.step, outside=model.outside)
    kept = slots < slot if slot is not None else np.ones(len(slots), dtype=np.bool_)
    return (slots[kept], states[kept]) if (states[kept] >= 0).any() else None


def build_missing_history_error(user: str) -> ConfigurationError:
    """Build the error for a released user without earlier data."""
    return ConfigurationError(
        f"user {user} must have auxiliary data in the region before the first release: use earlier data of the "
        "released users, or select others with --users"
    )


def describe_omitted_users(users: Sequence[str]) -> str:
    """Return a sentence about omitted users, with a leading space. Empty without any."""
    if not users:
        return ""
    subject = "user is" if len(users) == 1 else "users are"
    return f" {len(users):,} released {subject} omitted: no earlier data in the region."


def _check_same_space(model: MarkovModel, public: MarkovModel) -> MarkovModel:
    if model.space.content_hash != public.space.content_hash or model.step != public.step:
        raise ConfigurationError(
            "the adversary's model must have the region, cells and step of the releases' model, got "
            f"{model.size:,} states every {model.step:g} s instead of {public.size:,} every {public.step:g} s"
        )
    return model


def _build_location_adversary(place: str, public: MarkovModel, history: LocationHistory | None = None) -> Adversary:
    """Build an informed adversary who knows a location that the user returns to.

    Home and work are inferred from the history. Other locations are equal for all users.
    """
    if place in _INFERRED_LOCATIONS:
        assert history is not None, "home and work are inferred from data"
        return Adversary(f"the user's {place}", with_return_bias(public, [find_usual_state(public, *history, place)]))
    return Adversary(
        f"that the user returns to {place}", with_return_bias(public, parse_place(place).resolve_states(public.space))
    )
