"""Who reads releases: besides those who know the public model, somebody who knows the person, or has another model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import IntArray
from dphmm.audit.sequence import PUBLIC, Adversary
from dphmm.errors import ConfigurationError
from dphmm.events.expression import place_of
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.models import Model, load_model
from dphmm.model import MarkovModel, state_sequence
from dphmm.model.habits import usual_state, with_habits, with_pull
from dphmm.release.ledger import day_steps
from dphmm.space.trajectory import Trajectory

Moments = tuple[IntArray, IntArray]
"""Slots and states ``(t,)`` of a person, of which -1 is unknown."""

_FOUND = {"home", "work"}
"""Places that are found in a person's earlier data; all others are the same for everybody."""


@checked
@dataclass(frozen=True, eq=False)
class Adversaries:
    """Whom a figure is about besides the public adversary, who knows the model and nothing of the person.

    Parameters
    ----------
    known
        Earlier data of the people, by name: one adversary has them, and thinks that each person moves as
        `dphmm.model.habits.with_habits` says. Of a person nothing from their first release on is used.
    model
        Another model of the same places, and its file: one adversary thinks that people move like that.
    knows
        Places of the person that one adversary each knows, and is drawn to in their mind
        (`dphmm.model.habits.with_pull`): ``home`` or ``work``, found in `known`, or a place such as ``clinic.geojson``,
        ``at:95,99`` or a name.

    Raises
    ------
    ConfigurationError
        When home or work are to be found and no data are given.
    """

    known: DataLike | None = None
    model: Model | None = None
    knows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.known is None and _FOUND & set(self.knows):
            raise ConfigurationError("home and work are found in earlier data; give --known too, or name the place")

    @property
    def is_private(self) -> bool:
        """Whether what is said against them is private: it tells of data of these people."""
        return self.known is not None

    def of(self, public: MarkovModel, begins: Mapping[str, int | None]) -> Mapping[str, tuple[Adversary, ...]]:
        """Who reads the releases of each person, the public adversary first.

        Everything is checked now; what somebody thinks of a person is worked out when the person is asked for.

        Parameters
        ----------
        public
            The model that releases are made with.
        begins
            Each person's name → the slot of their first release, None where it is not known.

        Returns
        -------
        Mapping
            Each person's name → the adversaries.

        Raises
        ------
        ConfigurationError
            When a person has no earlier data in the region, a place is unknown, or the other model has other places.
        DphmmError
            As the data and the model.
        """
        everybody = [PUBLIC]
        if self.model is not None:
            name = f"another model ({self.model})" if isinstance(self.model, str | Path) else "another model"
            everybody.append(Adversary(name, _of_same_places(load_model(self.model), public)))
        drawn = {place: _drawn_to(place, public) for place in self.knows if place not in _FOUND}
        moments = moments_before(tracks_of(self.known), public, begins)
        if self.known is not None and None in moments.values():
            raise nothing_known(next(user for user, known in moments.items() if known is None))
        return _Readers(public, everybody, self.knows, drawn, moments)


@dataclass(frozen=True, eq=False)
class _Readers(Mapping[str, tuple[Adversary, ...]]):
    """Who reads the releases of each of some people: models of all of them do not fit into memory."""

    public: MarkovModel
    everybody: Sequence[Adversary]
    knows: Sequence[str]
    drawn: Mapping[str, Adversary]
    moments: Mapping[str, Moments | None]

    def __len__(self) -> int:
        return len(self.moments)

    def __iter__(self) -> Iterator[str]:
        return iter(self.moments)

    def __getitem__(self, user: str) -> tuple[Adversary, ...]:
        known = self.moments[user]
        learned = [] if known is None else [Adversary(HABITS, habits(self.public, known))]
        knowing = [self.drawn.get(place) or _drawn_to(place, self.public, known) for place in self.knows]
        return (*self.everybody, *learned, *knowing)


HABITS = "their habits"
"""What somebody knows who has a person's earlier data."""


def tracks_of(known: DataLike | None) -> dict[str, Trajectory]:
    """Earlier data of people, by name; of nobody where none are given."""
    return {} if known is None else {one.user: one for one in Data.from_any(known).read().trajectories}


def moments_before(
    tracks: Mapping[str, Trajectory], model: MarkovModel, begins: Mapping[str, int | None]
) -> dict[str, Moments | None]:
    """Where each of some people was before a slot, or at all: see `before`; None for whom there are no data."""
    return {user: before(tracks[user], model, at) if user in tracks else None for user, at in begins.items()}


def habits(public: MarkovModel, moments: Moments) -> MarkovModel:
    """What somebody thinks of how a person moves who has these data of them. Errors as `with_habits`."""
    return with_habits(public, *moments, day_steps(public.step) or 1).model


@dataclass(frozen=True, eq=False)
class EachHabits(Sequence[MarkovModel | None]):
    """How each of some people moves, learned when it is asked for: models of thousands do not fit into memory.

    Parameters
    ----------
    public
        The model of all.
    moments
        Where each person was; None of whom nothing is known, and then neither is how they move.
    """

    public: MarkovModel
    moments: tuple[Moments | None, ...]

    def __len__(self) -> int:
        return len(self.moments)

    def __getitem__(self, number: Any) -> Any:
        known = self.moments[number]
        return None if known is None else habits(self.public, known)


def before(track: Trajectory, model: MarkovModel, slot: int | None) -> Moments | None:
    """Where a person was before a slot, or at all: slots and states; None where nothing is known of that."""
    slots, states = state_sequence(track, model.space, model.step, away=model.away)
    kept = slots < slot if slot is not None else np.ones(len(slots), dtype=np.bool_)
    return (slots[kept], states[kept]) if (states[kept] >= 0).any() else None


def nothing_known(user: str) -> ConfigurationError:
    """What is said where somebody who was released has no earlier data."""
    return ConfigurationError(
        f"user {user} has no data in the region before their first release among what is known; give earlier data of "
        "everybody who was released, or name others with --users"
    )


def _of_same_places(model: MarkovModel, public: MarkovModel) -> MarkovModel:
    if model.space.content_hash != public.space.content_hash or model.step != public.step:
        raise ConfigurationError(
            f"the adversary's model has {model.size:,} places every {model.step:g} s, and the releases' "
            f"{public.size:,} every {public.step:g} s; give one of the same region, cells and step"
        )
    return model


def _drawn_to(place: str, public: MarkovModel, moments: Moments | None = None) -> Adversary:
    """Somebody who knows a place that the person keeps coming to: found among their moments, or the same for all."""
    if place in _FOUND:
        assert moments is not None, "home and work are found in data"
        return Adversary(f"their {place}", with_pull(public, [usual_state(public, *moments, place)]))
    return Adversary(f"that they keep coming to {place}", with_pull(public, place_of(place).states(public.space)))
