"""Who is evaluated, and whom the model of each is learned from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import BaseModel, ConfigDict, ValidationError

from dphmm.arrays import IntArray
from dphmm.errors import ConfigurationError, DataFileError, PolicyError
from dphmm.evaluation.config import EvaluationConfig, Setting
from dphmm.jobs.models import load_model, people_seen, region
from dphmm.model.fitting import extend, fit_shrunk
from dphmm.model.model import MarkovModel
from dphmm.model.moves import state_sequence
from dphmm.model.time_classes import TimeClasses
from dphmm.policy.expression import parse_policy
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import Trajectory
from dphmm.tables import new_file, read_document, write_text
from dphmm.tables.binary_files import read_npz
from dphmm.tables.json_toml import first_flaw, read_json

_STATES, _NAMES = "PRIVATE-sequences.npz", "PRIVATE-split.json"

FEWEST = 2
"""A model of fewer people than this is none: it is the record of one person's moves."""

Slotted = tuple[IntArray, IntArray]
"""Slot numbers and the states there, -1 outside the region."""


@dataclass(frozen=True)
class Split:
    """The evaluated sequences, and whom the model of each was learned from.

    Parameters
    ----------
    users
        The user of each evaluated sequence; every one is different.
    states
        ``(n, length + 1)``: the true states, the first of which is the place one step before the first release.
    firsts
        ``(n,)``: the slot of each one's first state.
    folds
        ``(n,)``: the number of the model that each is evaluated under, in ascending order.
    learned_from
        For each model the users that it was learned from; none of them is evaluated under it. Empty where a model was
        given.
    dropped
        Why users were of no use for an evaluated sequence → how many.
    """

    users: tuple[str, ...]
    states: IntArray
    firsts: IntArray
    folds: IntArray
    learned_from: tuple[tuple[str, ...], ...]
    dropped: Mapping[str, int]

    def save(self, folder: Path, models: Sequence[MarkovModel]) -> None:
        """Write who is what, the true states, and the models that workers read, all for their owner alone.

        Two models that were learned without one fold or another tell, by their difference, what each fold did. The
        names come last: a reader who finds them finds the rest.
        """
        for fold, model in enumerate(models):
            model.save(model_file(folder, fold), private=True)
        with new_file(folder / _STATES, overwrite=True, private=True) as part, part.open("wb") as file:
            np.savez_compressed(file, states=self.states, firsts=self.firsts, folds=self.folds)
        facts = {
            "evaluated": list(self.users),
            "learned_from": [list(users) for users in self.learned_from],
            "dropped_from_evaluation": dict(self.dropped),
        }
        write_text(folder / _NAMES, json.dumps(facts, indent=1, ensure_ascii=False) + "\n", private=True)

    @staticmethod
    def is_saved(folder: Path) -> bool:
        """Whether `save` came to its end."""
        return (folder / _NAMES).exists()

    @classmethod
    def load(cls, folder: Path) -> Split:
        """Read what `save` wrote.

        Raises
        ------
        DataFileError
            When the folder holds something else.
        """
        facts, arrays = read_json(read_document(folder / _NAMES)), read_npz(folder / _STATES)
        try:
            named = _SavedNames.model_validate(facts)
        except ValidationError as problem:
            key, _, said = first_flaw(problem)
            raise DataFileError(folder / _NAMES, f"is no list of who is evaluated: key '{key}' {said}") from None
        states, firsts, folds = (arrays.get(name, np.zeros(())) for name in ("states", "firsts", "folds"))
        fits = states.ndim == 2 and folds.shape == firsts.shape == states.shape[:1] == (len(named.evaluated),)
        if not fits or {states.dtype.kind, firsts.dtype.kind, folds.dtype.kind} != {"i"} or not len(states):
            raise DataFileError(folder / _STATES, f"holds no states of {len(named.evaluated)} people; begin anew")
        if states.min() < -1 or folds.min() < 0 or folds.max() >= len(named.learned_from):
            raise DataFileError(folder / _STATES, "holds states or folds that cannot be; begin anew")
        return cls(named.evaluated, states, firsts, folds, named.learned_from, named.dropped_from_evaluation)


class _SavedNames(BaseModel):
    """What the file of names says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    evaluated: tuple[str, ...]
    learned_from: tuple[tuple[str, ...], ...]
    dropped_from_evaluation: dict[str, int]


def model_file(folder: Path, fold: int) -> Path:
    """Where the model of a fold is."""
    return folder / f"PRIVATE-model-{fold}.npz"


def space_of(config: EvaluationConfig) -> StateSpace:
    """Return the states of an evaluation.

    A published grid has its published cells unless `cell_km` says otherwise.
    """
    if config.model is not None:
        return load_model(config.model).space
    if config.grid is not None and config.cell_km is None:
        # Grid.preset, not region: region defaults to larger cells for Gowalla, so that `dphmm learn` fits its limits.
        return Grid.preset(config.grid)
    return region(config.grid, config.bbox, config.polygon, config.places, config.within_km, config.cell_km)


def check_policies(config: EvaluationConfig, space: StateSpace, models: Sequence[MarkovModel] = ()) -> None:
    """Build the policy graph of every setting, so that an unusable one is refused before the first task.

    Parameters
    ----------
    config
        The settings.
    space
        The states.
    models
        The models of the folds. Without them, policies that refer to transitions are not checked.

    Raises
    ------
    ConfigurationError
        If a policy connects no two states, naming the key that it comes from and what to change.
    DataFileError
        If a file that a policy names is missing or unusable.
    """
    # Reversed, so that the first setting of several with one policy names the key.
    of_policy = {setting.release_settings.policy: setting for setting in reversed(config.settings())}
    for text, setting in of_policy.items():
        try:
            for model in models:
                parse_policy(text, space, model.structure)
            if not models and "transition" not in text:
                parse_policy(text, space)
        except PolicyError as problem:
            raise ConfigurationError(_policy_refusal(config, setting, space, problem)) from None


def _policy_refusal(config: EvaluationConfig, setting: Setting, space: StateSpace, problem: PolicyError) -> str:
    if setting.policy != "utility":
        return f"key 'policies': {problem}"
    key = "radius_km" if setting.radius_km == config.radius_km else "radii_km"
    return f"key '{key}': {problem}{', or a smaller cell_km' if space.cell_km else ''}"


def split_people(people: Sequence[Trajectory], config: EvaluationConfig) -> tuple[Split, tuple[MarkovModel, ...]]:
    """Choose the evaluated sequences at random, and learn a model for each from users of other folds.

    A sequence is ``length`` time steps without a gap, within the region, after one more whose place may be known. Each
    evaluated user gives one. Where fewer users than asked for have one, all of them are taken.

    Everybody who was within the region is dealt into ``folds`` groups (as many as there are people, if they are
    fewer), those who are evaluated first, so that they are spread evenly; the model of a group is learned from all
    others. A model that was given is that of everybody but those whom it was learned from, as far as the list beside
    its file tells: they are not evaluated.

    Raises
    ------
    ConfigurationError
        When fewer than two users have a sequence, with how many were dropped and why, or a model would be learned from
        fewer than `FEWEST`.
    """
    given = None if config.model is None else load_model(config.model)
    step = config.step_seconds if given is None else given.step
    space = space_of(config)
    tracks = {person.user: _slotted(person, space, step) for person in people}
    starts = {user: _starts(track, config.length + 1) for user, track in tracks.items()}
    usable = sorted(user for user, found in starts.items() if len(found))
    dropped = _dropped(tracks, set(usable))
    seen = frozenset() if given is None else people_seen(str(config.model), given) or frozenset()
    if not seen.isdisjoint(usable):
        dropped["are among those that the model was learned from"] = len(seen.intersection(usable))
        usable = sorted(set(usable) - seen)
    if len(usable) < 2:
        why = "; ".join(f"{number} {reason}" for reason, number in dropped.items()) or "no person was dropped"
        raise ConfigurationError(
            f"{len(usable)} of {len(tracks)} users have a usable sequence, and an evaluation needs two ({why}); take "
            "more data, a larger region or a smaller length"
        )
    rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(0,)))
    chosen = rng.permutation(np.array(usable, dtype=object))[: config.sequences].tolist()
    groups = _dealt(chosen, tracks, config.folds, rng) if given is None else [chosen]
    evaluated = [sorted(set(chosen).intersection(group)) for group in groups]
    folds = np.repeat(np.arange(len(groups)), [len(found) for found in evaluated])
    users = tuple(user for found in evaluated for user in found)
    rows = [int(rng.choice(starts[user])) for user in users]
    states = np.stack([tracks[user][1][at : at + config.length + 1] for user, at in zip(users, rows, strict=True)])
    firsts = np.array([int(tracks[user][0][at]) for user, at in zip(users, rows, strict=True)], dtype=np.int64)
    if given is not None:
        return Split(users, states, firsts, folds, (), dropped), (given,)
    everyone = {user for group in groups for user in group}
    others = tuple(tuple(sorted(everyone.difference(group))) for group in groups)
    models = tuple(_learned([tracks[user] for user in some], space, config) for some in others)
    return Split(users, states, firsts, folds, others, dropped), models


def _dealt(
    chosen: Sequence[str], tracks: Mapping[str, Slotted], folds: int, rng: np.random.Generator
) -> list[list[str]]:
    """Everybody who was within the region, in groups of nearly the same size with nearly as many of the chosen."""
    rest = sorted(user for user, (_, states) in tracks.items() if user not in set(chosen) and (states >= 0).any())
    everyone = [*chosen, *rng.permutation(np.array(rest, dtype=object)).tolist()]
    groups = [everyone[first :: min(folds, len(everyone))] for first in range(min(folds, len(everyone)))]
    fewest = len(everyone) - max(map(len, groups))
    if fewest < FEWEST:
        raise ConfigurationError(
            f"{len(everyone)} users were within the region, so that a model would be learned from {fewest}; take more "
            "data, or give a 'model'"
        )
    return groups


_ADDED = 0.5
"""Added to each move seen where steps have no length, so that no speed says what is possible."""


def _learned(tracks: Sequence[Slotted], space: StateSpace, config: EvaluationConfig) -> MarkovModel:
    step = config.step_seconds
    if config.smoothing is None and step is not None:
        model = fit_shrunk(tracks, space, step).model
    else:
        added = _ADDED if config.smoothing is None else config.smoothing
        model = MarkovModel.fit(tracks, space.size, added, states=space, step_seconds=step)
    if config.by is None or config.zone is None or step is None:  # `by` comes with both others
        return model
    return extend(model, tracks, TimeClasses.of(config.by, step, config.zone)).model


def _slotted(person: Trajectory, space: StateSpace, step_seconds: float | None) -> Slotted:
    if step_seconds is not None:
        return state_sequence(person, space, step_seconds)
    states = space.locate(person.latitude, person.longitude)
    within = states[states >= 0]
    return np.arange(len(within)), within


def _starts(track: Slotted, length: int) -> IntArray:
    """The rows from which a sequence of `length` steps without a gap stays within the region."""
    slots, states = track
    if len(slots) < length:
        return np.zeros(0, dtype=np.int64)
    unbroken = slots[length - 1 :] - slots[: len(slots) - length + 1] == length - 1
    return np.flatnonzero(unbroken & sliding_window_view(states >= 0, length).all(axis=1))


def _dropped(tracks: Mapping[str, Slotted], usable: set[str]) -> dict[str, int]:
    absent = sum(1 for _, states in tracks.values() if not (states >= 0).any())
    short = len(tracks) - len(usable) - absent
    reasons = {"were never within the region": absent, "have no unbroken sequence long enough within the region": short}
    return {reason: number for reason, number in reasons.items() if number}
