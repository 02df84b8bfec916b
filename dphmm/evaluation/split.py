"""Evaluated sequences of an evaluation, and the training users of each model."""

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
from dphmm.jobs.model.loading import load_model
from dphmm.jobs.model.region import region
from dphmm.jobs.model.training_users import find_training_users
from dphmm.model.learning import extend, fit_shrunk
from dphmm.model.model import MarkovModel
from dphmm.model.observed_moves import state_sequence
from dphmm.model.time_classes import TimeClasses
from dphmm.policy.expression import parse_policy
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import Trajectory
from dphmm.tables import create_file, read_document, write_text
from dphmm.tables.json_toml import find_first_flaw, read_json
from dphmm.tables.numpy_files import read_npz

_STATES_FILE = "PRIVATE-sequences.npz"
_NAMES_FILE = "PRIVATE-split.json"

# Minimum number of training users: a model of a single user is a record of that user's moves.
MIN_TRAINING_USERS = 2

# Time slots and the states in them, -1 outside the region.
SlotStates = tuple[IntArray, IntArray]


@dataclass(frozen=True)
class Split:
    """The evaluated sequences and the training users of their models.

    Parameters
    ----------
    users
        User of each evaluated sequence; no user has two.
    states
        ``(n, length + 1)``: true states; the first is the location one step before the first release.
    firsts
        ``(n,)``: time slot of each sequence's first state.
    folds
        ``(n,)``: index of each sequence's model, in ascending order.
    learned_from
        Training users of each model; none of them is evaluated under it. Empty if the configuration names a model.
    dropped
        Reason why users have no evaluated sequence → number of users.
    """

    users: tuple[str, ...]
    states: IntArray
    firsts: IntArray
    folds: IntArray
    learned_from: tuple[tuple[str, ...], ...]
    dropped: Mapping[str, int]

    def save(self, folder: Path, models: Sequence[MarkovModel]) -> None:
        """Write the names of the users, the true states and the models, all private.

        The models are private because the difference of two models that were trained without different folds reveals
        the moves of these folds. The names are written last: if their file exists, the others do.
        """
        for fold, model in enumerate(models):
            model.save(get_model_path(folder, fold), private=True)
        with create_file(folder / _STATES_FILE, overwrite=True, private=True) as part, part.open("wb") as file:
            np.savez_compressed(file, states=self.states, firsts=self.firsts, folds=self.folds)
        facts = {
            "evaluated": list(self.users),
            "learned_from": [list(users) for users in self.learned_from],
            "dropped_from_evaluation": dict(self.dropped),
        }
        write_text(folder / _NAMES_FILE, json.dumps(facts, indent=1, ensure_ascii=False) + "\n", private=True)

    @staticmethod
    def is_saved(folder: Path) -> bool:
        """Return whether `save` has finished."""
        return (folder / _NAMES_FILE).exists()

    @classmethod
    def load(cls, folder: Path) -> Split:
        """Read the files written by `save`.

        Raises
        ------
        DataFileError
            If the files are missing or invalid.
        """
        facts = read_json(read_document(folder / _NAMES_FILE))
        arrays = read_npz(folder / _STATES_FILE)
        try:
            named = _SavedNames.model_validate(facts)
        except ValidationError as problem:
            key, _, message = find_first_flaw(problem)
            raise DataFileError(folder / _NAMES_FILE, f"is not a valid split: key '{key}' {message}") from None
        states, firsts, folds = (arrays.get(name, np.zeros(())) for name in ("states", "firsts", "folds"))
        fits = states.ndim == 2 and folds.shape == firsts.shape == states.shape[:1] == (len(named.evaluated),)
        if not fits or {states.dtype.kind, firsts.dtype.kind, folds.dtype.kind} != {"i"} or not len(states):
            raise DataFileError(
                folder / _STATES_FILE, f"must contain states of {len(named.evaluated)} users: use a new folder"
            )
        if states.min() < -1 or folds.min() < 0 or folds.max() >= len(named.learned_from):
            raise DataFileError(folder / _STATES_FILE, "contains invalid states or folds: use a new folder")
        return cls(named.evaluated, states, firsts, folds, named.learned_from, named.dropped_from_evaluation)


class _SavedNames(BaseModel):
    """The contents of the file of names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    evaluated: tuple[str, ...]
    learned_from: tuple[tuple[str, ...], ...]
    dropped_from_evaluation: dict[str, int]


def get_model_path(folder: Path, fold: int) -> Path:
    """Return the path of a fold's model."""
    return folder / f"PRIVATE-model-{fold}.npz"


def make_space(config: EvaluationConfig) -> StateSpace:
    """Return the states of an evaluation.

    A published grid has its published cells unless `cell_km` is set.
    """
    if config.model is not None:
        return load_model(config.model).space
    if config.grid is not None and config.cell_km is None:
        # Not `region`, which defaults to larger cells for Gowalla to stay within the limits of `dphmm learn`.
        return Grid.preset(config.grid)
    return region(config.grid, config.bbox, config.polygon, config.places, config.within_km, config.cell_km)


def check_policies(config: EvaluationConfig, space: StateSpace, models: Sequence[MarkovModel] = ()) -> None:
    """Build every setting's policy graph to reject unusable policies before the first task.

    Parameters
    ----------
    config
        Configuration of the evaluation.
    space
        The states.
    models
        Models of the folds. Without them, policies that refer to transitions are not checked.

    Raises
    ------
    ConfigurationError
        If a policy connects no two states; the message names its key and the remedy.
    DataFileError
        If a file that a policy names is missing or unusable.
    """
    # Reversed: of several settings with one policy, the first determines the key in the message.
    setting_by_policy = {setting.release_settings.policy: setting for setting in reversed(config.settings())}
    for text, setting in setting_by_policy.items():
        try:
            for model in models:
                parse_policy(text, space, model.structure)
            if not models and "transition" not in text:
                parse_policy(text, space)
        except PolicyError as problem:
            raise ConfigurationError(_describe_policy_refusal(config, setting, space, problem)) from None


def _describe_policy_refusal(
    config: EvaluationConfig, setting: Setting, space: StateSpace, problem: PolicyError
) -> str:
    if setting.policy != "utility":
        return f"key 'policies': {problem}"
    key = "radius_km" if setting.radius_km == config.radius_km else "radii_km"
    return f"key '{key}': {problem}{', or a smaller cell_km' if space.cell_km else ''}"


def split_users(trajectories: Sequence[Trajectory], config: EvaluationConfig) -> tuple[Split, tuple[MarkovModel, ...]]:
    """Sample the evaluated sequences and train the model of each fold on the other folds.

    A sequence consists of ``length`` timesteps without a gap within the region, after one more timestep, the location
    of which the adversary may know. Each evaluated user has one sequence. If fewer than ``sequences`` users have one,
    all of them are evaluated.

    All users with a location in the region are divided into ``folds`` groups, or into as many groups as users if these
    are fewer. The evaluated users are dealt first, and are therefore spread evenly. The model of a group is trained on
    all other groups. If the configuration names a model, the users on the private list of its training users, if there
    is one, are not evaluated.

    Raises
    ------
    ConfigurationError
        If fewer than two users have a sequence, with the reasons, or a model would have fewer than
        `MIN_TRAINING_USERS` training users.
    """
    given_model = None if config.model is None else load_model(config.model)
    step = config.step_seconds if given_model is None else given_model.step
    space = make_space(config)
    tracks = {trajectory.user: _locate_in_slots(trajectory, space, step) for trajectory in trajectories}
    starts = {user: _find_starts(track, config.length + 1) for user, track in tracks.items()}
    usable = sorted(user for user, rows in starts.items() if len(rows))
    dropped = _count_dropped(tracks, set(usable))
    seen = frozenset() if given_model is None else find_training_users(str(config.model), given_model) or frozenset()
    if not seen.isdisjoint(usable):
        dropped["are training users of the model"] = len(seen.intersection(usable))
        usable = sorted(set(usable) - seen)
    if len(usable) < 2:
        reasons = "; ".join(f"{number} {reason}" for reason, number in dropped.items()) or "no user was dropped"
        raise ConfigurationError(
            f"an evaluation requires 2 users with a usable sequence, got {len(usable)} of {len(tracks)} ({reasons}): "
            "use more data, a larger region or a smaller length"
        )
    rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(0,)))
    chosen = rng.permutation(np.array(usable, dtype=object))[: config.sequences].tolist()
    groups = _deal_users(chosen, tracks, config.folds, rng) if given_model is None else [chosen]
    evaluated = [sorted(set(chosen).intersection(group)) for group in groups]
    folds = np.repeat(np.arange(len(groups)), [len(members) for members in evaluated])
    users = tuple(user for members in evaluated for user in members)
    rows = [int(rng.choice(starts[user])) for user in users]
    states = np.stack([tracks[user][1][at : at + config.length + 1] for user, at in zip(users, rows, strict=True)])
    firsts = np.array([int(tracks[user][0][at]) for user, at in zip(users, rows, strict=True)], dtype=np.int64)
    if given_model is not None:
        return Split(users, states, firsts, folds, (), dropped), (given_model,)
    everyone = {user for group in groups for user in group}
    others = tuple(tuple(sorted(everyone.difference(group))) for group in groups)
    models = tuple(_train_model([tracks[user] for user in training_users], space, config) for training_users in others)
    return Split(users, states, firsts, folds, others, dropped), models


def _deal_users(
    chosen: Sequence[str], tracks: Mapping[str, SlotStates], folds: int, rng: np.random.Generator
) -> list[list[str]]:
    """Divide the users with a location in the region into groups of nearly equal size.

    The chosen users are spread over the groups evenly.
    """
    rest = sorted(user for user, (_, states) in tracks.items() if user not in set(chosen) and (states >= 0).any())
    everyone = [*chosen, *rng.permutation(np.array(rest, dtype=object)).tolist()]
    groups = [everyone[first :: min(folds, len(everyone))] for first in range(min(folds, len(everyone)))]
    min_training_users = len(everyone) - max(map(len, groups))
    if min_training_users < MIN_TRAINING_USERS:
        raise ConfigurationError(
            f"a model must have at least {MIN_TRAINING_USERS} training users, but with {len(everyone)} users within "
            f"the region one would have {min_training_users}: use more data, or set 'model'"
        )
    return groups


# Without a step length there are no speeds to decide which transitions are possible, so observed ones are smoothed.
_DEFAULT_SMOOTHING = 0.5


def _train_model(tracks: Sequence[SlotStates], space: StateSpace, config: EvaluationConfig) -> MarkovModel:
    step = config.step_seconds
    if config.smoothing is None and step is not None:
        model = fit_shrunk(tracks, space, step).model
    else:
        smoothing = _DEFAULT_SMOOTHING if config.smoothing is None else config.smoothing
        model = MarkovModel.fit(tracks, space.size, smoothing, states=space, step_seconds=step)
    if config.by is None or config.zone is None or step is None:  # `by` requires both others
        return model
    return extend(model, tracks, TimeClasses.from_name(config.by, step, config.zone)).model


def _locate_in_slots(trajectory: Trajectory, space: StateSpace, step_seconds: float | None) -> SlotStates:
    if step_seconds is not None:
        return state_sequence(trajectory, space, step_seconds)
    states = space.locate(trajectory.latitude, trajectory.longitude)
    within = states[states >= 0]
    return np.arange(len(within)), within


def _find_starts(track: SlotStates, length: int) -> IntArray:
    """Return the rows that start `length` steps without a gap and within the region."""
    slots, states = track
    if len(slots) < length:
        return np.zeros(0, dtype=np.int64)
    unbroken = slots[length - 1 :] - slots[: len(slots) - length + 1] == length - 1
    return np.flatnonzero(unbroken & sliding_window_view(states >= 0, length).all(axis=1))


def _count_dropped(tracks: Mapping[str, SlotStates], usable: set[str]) -> dict[str, int]:
    absent = sum(1 for _, states in tracks.values() if not (states >= 0).any())
    short = len(tracks) - len(usable) - absent
    reasons = {"were never within the region": absent, "have no unbroken sequence long enough within the region": short}
    return {reason: number for reason, number in reasons.items() if number}
