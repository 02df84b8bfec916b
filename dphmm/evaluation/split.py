"""Who the model is learned from and who is evaluated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dphmm.arrays import IntArray
from dphmm.errors import ConfigurationError
from dphmm.evaluation.config import EvaluationConfig
from dphmm.jobs.models import region
from dphmm.markov.model import MarkovModel
from dphmm.markov.sequence import state_sequence
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import Trajectory

Slotted = tuple[IntArray, IntArray]
"""Slot numbers and the states there, -1 outside the region."""


@dataclass(frozen=True)
class Split:
    """The evaluated sequences and the model of everyone else.

    Parameters
    ----------
    users
        The user of each evaluated sequence; every one is different.
    states
        ``(n, length + 1)``: the true states, the first of which is the place one step before the first release.
    learned_from
        The users that the model was learned from; none of them is evaluated.
    dropped
        Why users were of no use for an evaluated sequence → how many.
    """

    users: tuple[str, ...]
    states: IntArray
    learned_from: tuple[str, ...]
    dropped: Mapping[str, int]

    def save(self, folder: Path) -> None:
        """Write ``split.json`` (who is what, and who was dropped why) and ``sequences.npz`` (the true states)."""
        facts = {
            "evaluated": list(self.users),
            "learned_from": list(self.learned_from),
            "dropped_from_evaluation": dict(self.dropped),
        }
        (folder / "split.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        with (folder / "sequences.npz").open("wb") as file:
            np.savez_compressed(file, states=self.states)

    @classmethod
    def load(cls, folder: Path) -> Split:
        """Read what `save` wrote."""
        facts = json.loads((folder / "split.json").read_text(encoding="utf-8"))
        with np.load(folder / "sequences.npz", allow_pickle=False) as archive:
            states = archive["states"]
        return cls(tuple(facts["evaluated"]), states, tuple(facts["learned_from"]), facts["dropped_from_evaluation"])


def space_of(config: EvaluationConfig) -> StateSpace:
    """The states of an evaluation."""
    return region(config.grid, config.bbox, config.polygon, config.places, config.within_km, config.cell_km)


def split_people(people: Sequence[Trajectory], config: EvaluationConfig) -> tuple[Split, MarkovModel]:
    """Choose the evaluated sequences at random and learn the model from all other users.

    A sequence is ``length`` time steps without a gap, within the region, after one more whose place may be known. Each
    evaluated user gives one. Where fewer users than asked for have one, all but the last of them are taken.

    Raises
    ------
    ConfigurationError
        When nobody is left to evaluate or to learn from, with how many users were dropped and why.
    """
    space = space_of(config)
    tracks = {person.user: _slotted(person, space, config.step_seconds) for person in people}
    starts = {user: _starts(track, config.length + 1) for user, track in tracks.items()}
    usable = sorted(user for user, found in starts.items() if len(found))
    dropped = _dropped(tracks, set(usable))
    rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(0,)))
    count = min(config.sequences, len(usable) if len(usable) < len(tracks) else len(usable) - 1)
    if count < 2:
        why = "; ".join(f"{number} {reason}" for reason, number in dropped.items()) or "nobody was dropped"
        raise ConfigurationError(
            f"{len(usable)} of {len(tracks)} users have a usable sequence, too few to evaluate two and learn from "
            f"others ({why}); take more data, a larger region or a smaller length"
        )
    chosen = sorted(rng.permutation(np.array(usable, dtype=object))[:count].tolist())
    firsts = [int(rng.choice(starts[user])) for user in chosen]
    states = np.stack([tracks[user][1][at : at + config.length + 1] for user, at in zip(chosen, firsts, strict=True)])
    others = sorted(user for user in tracks if user not in set(chosen) and (tracks[user][1] >= 0).any())
    if not others:
        raise ConfigurationError("nobody is left to learn the model from; evaluate fewer sequences")
    model = MarkovModel.fit(
        [tracks[user] for user in others], space.size, config.smoothing, states=space, step_seconds=config.step_seconds
    )
    return Split(tuple(chosen), states, tuple(others), dropped), model


def _slotted(person: Trajectory, space: StateSpace, step_seconds: float | None) -> Slotted:
    if step_seconds is not None:
        return state_sequence(person, space, step_seconds)
    states = space.locate(person.latitude, person.longitude)
    within = states[states >= 0]
    return np.arange(len(within)), within


def _starts(track: Slotted, length: int) -> IntArray:
    """The rows from which a sequence of so many steps without a gap stays within the region."""
    slots, states = track
    if len(slots) < length:
        return np.zeros(0, dtype=np.int64)
    outside = np.concatenate([[0], np.cumsum(states < 0)])
    last = np.arange(length, len(slots) + 1)
    first = last - length
    unbroken = slots[last - 1] - slots[first] == length - 1
    return np.flatnonzero(unbroken & (outside[last] == outside[first]))


def _dropped(tracks: Mapping[str, Slotted], usable: set[str]) -> dict[str, int]:
    absent = sum(1 for _, states in tracks.values() if not (states >= 0).any())
    short = len(tracks) - len(usable) - absent
    reasons = {"were never within the region": absent, "have no unbroken sequence long enough within the region": short}
    return {reason: number for reason, number in reasons.items() if number}
