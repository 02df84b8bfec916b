"""Audit of released sequences: what each adversary infers about users' locations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.audit.blowfish import SecretsAudit as SecretsAudit
from dphmm.audit.inference_metrics import DEFAULT_TOP_K
from dphmm.audit.sequence import (
    PUBLIC,
    ReleasedSequence,
    SequenceAudit,
    Thresholds,
    audit_adversaries,
    describe_adversary,
    summarize_inference,
)
from dphmm.errors import ConfigurationError
from dphmm.formatting import Result, exported
from dphmm.jobs.audit.adversaries import Adversaries, UserAdversaries, describe_omitted_users
from dphmm.jobs.audit.target import Prior, check_prior, get_state_names
from dphmm.jobs.batch.workers import Engine, Processes
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.jobs.release.stored import ReplayResult, SettingsLike, replay_all
from dphmm.mechanisms.registry import MECHANISMS
from dphmm.model.model import MarkovModel
from dphmm.release.engine import Releaser
from dphmm.release.trajectory_release import locate_states
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.validation import PositiveInt, check_arguments


@dataclass(frozen=True, eq=False)
class SessionAudit(Result):
    """Result of `audit_session`.

    Parameters
    ----------
    space
        The states.
    replays
        The releases of each user.
    audits
        For each user, one audit for each adversary, the public one first.
    private
        Whether true locations or the users' earlier data were used. The result is then private.
    thresholds
        Limits on the inference.
    users_without_earlier_data
        Released users who are omitted, because they have no earlier data in the region.
    """

    space: StateSpace
    replays: tuple[ReplayResult, ...]
    audits: tuple[SequenceAudit, ...] = field(repr=False)
    private: bool = field(metadata=exported())
    thresholds: Thresholds = field(default_factory=Thresholds)
    users_without_earlier_data: tuple[str, ...] = field(default=(), metadata=exported())

    @property
    def is_exposed(self) -> bool:
        """Whether any state was exposed at any release, or any threshold is violated."""
        return bool(self.violations) or self.has_exposed_state

    @property
    def has_exposed_state(self) -> bool:
        """Whether any state was exposed at any release."""
        return any(audit.exposed_steps for audit in self.audits)

    @cached_property
    def violations(self) -> dict[str, tuple[str, ...]]:
        """User → violated thresholds in words, for users with violations."""
        violations: dict[str, tuple[str, ...]] = {}
        for audit in self.audits:
            adversary = (
                ""
                if audit.auxiliary_knowledge == PUBLIC.auxiliary_knowledge
                else f"for {describe_adversary(audit.auxiliary_knowledge)}, "
            )
            sentences = tuple(f"{adversary}{violation}" for violation in self.thresholds.violations(audit))
            if sentences:
                violations[audit.user] = violations.get(audit.user, ()) + sentences
        return violations

    def describe(self) -> str:
        """Summarize the audit: exposed states, the most exposed user, and violated thresholds.

        Returns
        -------
        str
            Some sentences.
        """
        exception = (
            ", except unprotected ones," if any(replay.engine.policy.open.any() for replay in self.replays) else ""
        )
        exposure = (
            "A state is exposed by some release."
            if self.has_exposed_state
            else f"No state is exposed: each release leaves every possible state{exception} "
            "indistinguishable from another one within a factor of e^epsilon."
        )
        names = sorted({replay.engine.settings.mechanism for replay in self.replays} - set(MECHANISMS))
        if names and not self.has_exposed_state:
            exposure += f" This depends on the privacy loss that {' and '.join(names)} states, which is not proven."
        if any(replay.private is False for replay in self.replays):
            exposure += " The noise is seeded and can be reproduced: it guarantees nothing."
        most_exposed = max(self.audits, key=lambda audit: float(audit.smoothed_metrics.top_1_probability.mean()))
        omitted = describe_omitted_users(self.users_without_earlier_data)
        text = f"{exposure} {most_exposed.describe()} {summarize_inference(most_exposed)}.{omitted}"
        for user, sentences in list(self.violations.items())[:1]:
            return (
                f"{text} Thresholds are violated for {len(self.violations)} of {len(self.replays)} users; {user}: "
                f"{'; '.join(sentences)}. Release less often or use a smaller epsilon ('dphmm calibrate')."
            )
        return text if self.thresholds == Thresholds() else f"{text} No threshold is violated."

    def _derive_fields(self) -> dict[str, Any]:
        names = get_state_names(self.space)
        was_private = {replay.sequence.user: replay.private for replay in self.replays}
        users = [{**audit.to_dict(names), "randomness_was_private": was_private[audit.user]} for audit in self.audits]
        fields = {"exposed": self.is_exposed, "in_words": self.describe(), "thresholds": vars(self.thresholds)}
        return {**fields, "violations": self.violations, "users": users}


@check_arguments
def audit_session(
    path: str | Path,
    model: Model,
    settings: SettingsLike | None = None,
    *,
    users: Sequence[str] = (),
    prior: Prior | None = None,
    true: DataLike | None = None,
    adversaries: Adversaries | None = None,
    top: PositiveInt = DEFAULT_TOP_K,
    thresholds: Thresholds | None = None,
    keep_beliefs: bool = True,
    engine: Engine | None = None,
    watch: ProgressCallback = suppress_progress,
) -> SessionAudit:
    """Audit what releases reveal about locations, as ``dphmm audit session`` does.

    Parameters
    ----------
    path, model, settings, users
        See `replay`.
    prior
        Another adversary's distribution of the first state. Defaults to the model's.
    true
        The released trajectories, if available. The result is then private.
    adversaries
        Adversaries in addition to the public one, such as one with earlier data of the users. The result has an audit
        for each of them and may be private. With auxiliary data, users without earlier data in the region are omitted.
    top
        Number of states for the top-k metrics.
    thresholds
        Limits on the inference. A user for whom one is violated counts as exposed.
    keep_beliefs
        Whether to keep the beliefs at each release. Without them, thousands of users fit into memory, and little is
        sent back by workers.
    engine
        Workers, such as `dphmm.jobs.batch.workers.Processes` or a Dask cluster. True locations and earlier data of the
        users are sent to them. Defaults to this process. A single user is audited in this process.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    SessionAudit
        The inference about each user without releases, given past releases, and given all releases.

    Raises
    ------
    DphmmError
        See `replay` and `dphmm.audit.sequence.audit_sequence`, and if the data are invalid.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, audit_session, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> others, town = (Data(("data/sample/geolife",), users=users) for users in (("000", "001"), ("002",)))
    >>> model = learn(others, space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = f"{folder}/releases.csv"
    ...     result = release(town, model, ReleaseSettings(policy="utility:1km", epsilon=0.5), file, rng=1)
    ...     audit = audit_session(file, model, "utility:1km", true=town)
    >>> audit.is_exposed, audit.audits[0].epsilon == 0.5 * len(result.table)
    (False, True)
    >>> smoothed, prior = audit.audits[0].smoothed_metrics, audit.audits[0].prior_metrics
    >>> bool(smoothed.entropy.mean() < prior.entropy.mean())
    True
    """
    learned = load_model(model)
    believed, replays = load_prior_and_replays(path, learned, settings, users, prior)
    others = adversaries or Adversaries()
    user_adversaries = others.build_adversaries(learned, {replay.sequence.user: replay.slots[0] for replay in replays})
    replays, omitted = select_informed(replays, user_adversaries)
    truths = repeat(None, len(replays)) if true is None else locate_true_states(true, replays)
    tasks = ReplayTasks(replays)
    auditor = partial(_audit_user, tasks.engines, replace(user_adversaries, histories={}), believed, top, keep_beliefs)
    private_parts = zip(truths, (user_adversaries.histories[replay.sequence.user] for replay in replays), strict=True)
    crew = Processes(1) if engine is None or len(replays) == 1 else engine
    audited = watch(crew.run_in_order(auditor, tasks.build(private_parts)), "Replaying", len(replays))
    audits = tuple(chain.from_iterable(audited))
    private = true is not None or others.is_private
    return SessionAudit(learned.space, replays, audits, private, thresholds or Thresholds(), omitted)


@dataclass(frozen=True, eq=False)
class ReplayTask:
    """A user's releases as a task for a worker, without their engines.

    Its representation, as in a worker's log, contains no location.

    Parameters
    ----------
    sequence
        The releases, without engines.
    engines
        Index of a release, 0 and each change of settings → index of an engine.
    private
        The true states and earlier data of the user, or other private input.
    """

    sequence: ReleasedSequence = field(repr=False)
    engines: Mapping[int, int]
    private: Any = field(default=None, repr=False)

    def restore(self, engines: Sequence[Releaser]) -> tuple[Releaser, ReleasedSequence]:
        """Return a new engine of the first settings, and the releases with engines of later ones."""
        spawned = {release: engines[number].spawn() for release, number in self.engines.items()}
        return spawned.pop(0), replace(self.sequence, engines=spawned)


class ReplayTasks:
    """Tasks for the replays of users, which share their engines.

    Workers receive each engine, and with it the model, once.

    Attributes
    ----------
    engines
        The engines, one for each of the users' settings.
    """

    def __init__(self, replays: Sequence[ReplayResult]) -> None:
        self._replays = replays
        engines = [engine for replay in replays for engine in (replay.engine, *replay.sequence.engines.values())]
        distinct = {engine.settings: engine for engine in engines}
        self._numbers = {settings: number for number, settings in enumerate(distinct)}
        self.engines = tuple(distinct.values())

    def build(self, private_parts: Iterable[Any] | None = None) -> Iterator[ReplayTask]:
        """Yield the task of each user, with their private part."""
        parts = repeat(None) if private_parts is None else private_parts
        for replay, private in zip(self._replays, parts, strict=False):
            changes = {0: replay.engine, **replay.sequence.engines}
            numbers = {release: self._numbers[engine.settings] for release, engine in changes.items()}
            yield ReplayTask(replace(replay.sequence, engines={}), numbers, private)


def _audit_user(
    engines: Sequence[Releaser],
    adversaries: UserAdversaries,
    prior: FloatArray | None,
    top: int,
    keep_beliefs: bool,
    task: ReplayTask,
) -> tuple[SequenceAudit, ...]:
    """Return the audits of a user for each adversary."""
    truth, history = task.private
    engine, sequence = task.restore(engines)
    with_prior = [replace(adversary, prior=prior) for adversary in adversaries.build(history)]
    audits = audit_adversaries(engine, sequence, with_prior, truth, top)
    if not keep_beliefs:
        audits = tuple(replace(audit, filtering=None, smoothed=()) for audit in audits)
    return audits


def locate_true_states(data: DataLike, replays: Sequence[ReplayResult]) -> list[IntArray]:
    """Return the true states of each user at each release, ``(T,)`` each. Private."""
    users = tuple(replay.sequence.user for replay in replays)
    region = replays[0].engine.model.space if replays else None
    chosen = replace(Data.from_any(data), users=users, region=region)
    by_user = dict(zip(users, replays, strict=True))
    truths: dict[str, IntArray] = {}
    for trajectory in chosen.stream([]):
        user = trajectory.user
        replay = by_user[user]
        space = replay.engine.model.space
        track = trajectory.resample(replay.engine.model.step)
        states, _ = locate_states(space, track.latitude, track.longitude, replay.engine.settings.outside)
        at = dict(zip(track.slots.tolist(), states.tolist(), strict=True))
        truth = np.array([at.get(slot, OUTSIDE) for slot in replay.slots])
        if (truth < 0).any():
            raise ConfigurationError(
                f"user {user}: the true trajectory must have a location in the region at every release, got none at "
                f"release {int((truth < 0).argmax()) + 1}; use the data that was released"
            )
        truths[user] = truth
    return [truths[user] for user in users]


def select_informed(
    replays: tuple[ReplayResult, ...], adversaries: Mapping[str, object]
) -> tuple[tuple[ReplayResult, ...], tuple[str, ...]]:
    """Return the replays of the users with adversaries, and the names of the omitted users."""
    selected = tuple(replay for replay in replays if replay.sequence.user in adversaries)
    return selected, tuple(replay.sequence.user for replay in replays if replay.sequence.user not in adversaries)


def load_prior_and_replays(
    path: str | Path, model: MarkovModel, settings: SettingsLike | None, users: Sequence[str], prior: Any
) -> tuple[FloatArray | None, tuple[ReplayResult, ...]]:
    """Return another adversary's prior, and the releases of at least one user."""
    return check_prior(prior, get_state_names(model.space)), replay_all(path, model, settings, users)
