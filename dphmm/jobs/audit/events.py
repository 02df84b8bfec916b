"""Audit of events over time: what releases reveal about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.audit.blowfish import SecretsAudit as SecretsAudit
from dphmm.audit.realized_leakage import EventAudit, audit_events, get_first_step
from dphmm.audit.sequence import ReleasedSequence
from dphmm.errors import ConfigurationError, EventError
from dphmm.events import Event, EventText, parse_event
from dphmm.events.chain_start import has_ended
from dphmm.formatting import Result, exported
from dphmm.jobs.audit.adversaries import Adversaries, UserAdversaries
from dphmm.jobs.audit.session import ReplayTask, ReplayTasks, load_prior_and_replays, select_informed
from dphmm.jobs.audit.target import Prior
from dphmm.jobs.batch.workers import Engine, Processes
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.jobs.release.stored import ReplayResult, SettingsLike
from dphmm.model.model import MarkovModel
from dphmm.release.engine import Releaser
from dphmm.tables.values import iso_time, shorten
from dphmm.validation import Interval, check_arguments

# An event in words, or as a value with times in steps from the first release.
EventLike = str | EventText | Event


# Default probability above which an event counts as learned.
LEARNED_PROBABILITY = 0.9


@dataclass(frozen=True, eq=False)
class EventAudits(Result):
    """Audits of events for several users and adversaries.

    Parameters
    ----------
    replays
        The releases of each user.
    audits
        For each user, one audit for each adversary and event.
    max_posterior, min_posterior
        An event counts as learned above or below these probabilities.
    private
        Whether the users' earlier data were used. The result is then private.
    users_without_earlier_data
        Released users who are omitted, because they have no earlier data in the region.
    users_after_event
        Released users with an event that ended before their first release, at a time of which the model contains
        nothing. It is not audited for them. Users without another event are omitted.
    """

    replays: tuple[ReplayResult, ...]
    audits: tuple[tuple[EventAudit, ...], ...] = field(repr=False)
    max_posterior: float = field(metadata=exported())
    min_posterior: float = field(metadata=exported())
    private: bool = field(default=False, metadata=exported())
    users_without_earlier_data: tuple[str, ...] = field(default=(), metadata=exported())
    users_after_event: tuple[str, ...] = field(default=(), metadata=exported())

    @property
    def is_exposed(self) -> bool:
        """Whether any event was learned at any release."""
        return any(self.is_learned(audit) for audits in self.audits for audit in audits)

    def is_learned(self, audit: EventAudit) -> bool:
        """Return whether an event's probability passed a threshold at any release.

        Parameters
        ----------
        audit
            The audit of one event for one user.

        Returns
        -------
        bool
            Whether a threshold was passed.
        """
        probability = audit.probability
        return bool((probability > self.max_posterior).any() or (probability < self.min_posterior).any())

    def format_time(self, replay: ReplayResult, audit: EventAudit, release: int) -> str:
        """Format the time of a release: in UTC, or its step if the model has no step length.

        Parameters
        ----------
        replay
            The releases of a user.
        audit
            The audit of an event.
        release
            Index of the release, from 0.

        Returns
        -------
        str
            For example ``2024-03-07T09:00:00Z`` or ``step 12``.
        """
        seconds = replay.engine.model.step_seconds
        if seconds is None:
            return f"step {int(audit.times[release])}"
        return iso_time(np.datetime64(round(replay.slots[release] * seconds * 1_000_000), "us"))

    def _derive_fields(self) -> dict[str, Any]:
        events = []
        for replay, audits in zip(self.replays, self.audits, strict=True):
            for audit in audits:
                fields = audit.to_dict()
                for change in fields["largest_changes"]:
                    change["time"] = self.format_time(replay, audit, change["release"] - 1)
                events.append({**fields, "learned": self.is_learned(audit), "randomness_was_private": replay.private})
        return {"exposed": self.is_exposed, "events": events}


@check_arguments
def audit_event(
    path: str | Path,
    model: Model,
    event: EventLike | Sequence[EventLike],
    settings: SettingsLike | None = None,
    *,
    users: Sequence[str] = (),
    prior: Prior | None = None,
    adversaries: Adversaries | None = None,
    max_posterior: Annotated[float, Interval(0, 1, error=ConfigurationError)] | None = None,
    min_posterior: Annotated[float, Interval(0, 1, error=ConfigurationError)] = 0.0,
    engine: Engine | None = None,
    watch: ProgressCallback = suppress_progress,
) -> EventAudits:
    """Audit what releases reveal about events, as ``dphmm audit event`` does.

    Parameters
    ----------
    path, model, settings, users
        See `dphmm.jobs.replay`.
    event
        One or more events, in words (see `dphmm.events.parse_event`) or as values. Windows in dates are counted from
        each user's first release. An event that ended before it, at a time of which the model contains nothing, is not
        audited for this user.
    prior
        Another adversary's distribution of the first state. Defaults to the model's.
    adversaries
        Adversaries in addition to the public one. The result may then be private. With auxiliary data, users without
        earlier data in the region are omitted.
    max_posterior, min_posterior
        An event counts as learned above or below these probabilities. `max_posterior` defaults to the largest event cap
        on these events in the settings of the releases, or 0.9 without one.
    engine
        Workers, such as `dphmm.jobs.batch.workers.Processes` or a Dask cluster. Earlier data of the users are sent to
        them. Defaults to this process. A single user is audited in this process.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    EventAudits
        One audit for each user, adversary and event.

    Raises
    ------
    EventError
        If an event is invalid, begins after the last release of every user, ended before the first release of every
        user, or is certain or impossible before any release.
    ConfigurationError
        If the thresholds are invalid; also see `dphmm.jobs.replay`.
    DphmmError
        See `dphmm.jobs.replay`, and if the table of the prior is invalid.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, audit_event, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> model = learn(Data(("data/sample/geolife",), exclude_users=("002",)), space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = f"{folder}/releases.csv"
    ...     town = Data(("data/sample/geolife",), users=("002",))
    ...     result = release(town, model, ReleaseSettings(policy="utility:1km", epsilon=0.5), file, rng=1)
    ...     audit = audit_event(file, model, "at:95,99 between 5 and 30", "utility:1km")
    >>> len(audit.audits[0][0].log_odds_change) == len(result.table)
    True
    """
    _check_thresholds(min_posterior, 1.0 if max_posterior is None else max_posterior)
    if not isinstance(event, str | EventText | Event | Sequence):
        raise ConfigurationError(f"event must be a string, an event, or a list of them, got {shorten(event)}")
    requested = event if isinstance(event, Sequence) and not isinstance(event, str) else [event]
    if not requested:
        raise ConfigurationError("event must be given, such as 'at:clinic.geojson on 2024-03-04', got an empty list")
    worded = [
        (str(event_spec), parse_event(event_spec) if isinstance(event_spec, str) else event_spec)
        for event_spec in requested
    ]
    learned = load_model(model)
    others = adversaries or Adversaries()
    believed, replays = load_prior_and_replays(path, learned, settings, users, prior)
    if max_posterior is None:
        events = {str(read) for _, read in worded}
        caps = [cap for replay in replays for cap in replay.engine.settings.caps if str(cap.event) in events]
        max_posterior = max((cap.probability for cap in caps), default=LEARNED_PROBABILITY)
        _check_thresholds(min_posterior, max_posterior)
    user_adversaries = others.build_adversaries(learned, {replay.sequence.user: replay.slots[0] for replay in replays})
    replays, omitted = select_informed(replays, user_adversaries)
    _check_reached(replays, worded, learned)
    ended_events = _find_ended_events(replays, [event for _, event in worded], learned)
    replays = tuple(replay for replay in replays if len(ended_events.get(replay.sequence.user, ())) < len(worded))
    tasks = ReplayTasks(replays)
    no_histories = replace(user_adversaries, histories={})
    auditor = partial(_audit_user, tasks.engines, no_histories, worded, ended_events, believed)
    histories = (user_adversaries.histories[replay.sequence.user] for replay in replays)
    crew = Processes(1) if engine is None or len(replays) == 1 else engine
    event_audits = tuple(watch(crew.run_in_order(auditor, tasks.build(histories)), "Replaying", len(replays)))
    limits = float(max_posterior), float(min_posterior)
    return EventAudits(replays, event_audits, *limits, others.is_private, omitted, tuple(ended_events))


def _check_reached(
    replays: Sequence[ReplayResult], worded: Sequence[tuple[str, EventText | Event]], model: MarkovModel
) -> None:
    """Refuse an event that begins after the last release of every user.

    Its window is probably wrong. The releases of a user before an event change its odds, so users whose releases end
    earlier are audited.
    """
    for wording, event in worded:
        problems = (_describe_late_event(replay.sequence, wording, event, model) for replay in replays)
        if (problem := next(problems, None)) is not None and all(problems):
            raise EventError(f"{problem}; use a window that the releases reach")


def _describe_late_event(
    sequence: ReleasedSequence, wording: str, event: EventText | Event, model: MarkovModel
) -> str | None:
    """Return how late an event begins for a user, None if not after the last release."""
    last = int(sequence.steps[1:].sum())
    try:
        first = get_first_step(event, model, sequence.first_slot)
    except EventError:  # reported by the audit, or the event has ended for this user
        return None
    if first <= last:
        return None
    return f"user {sequence.user}: '{wording}' begins at step {first}, after the last release at step {last}"


def _find_ended_events(
    replays: Sequence[ReplayResult], events: Sequence[EventText | Event], model: MarkovModel
) -> dict[str, frozenset[int]]:
    """Return the indices of events that ended before a user's first release.

    Users without any are not included. An event that ended for every user is not included: its audit raises an error.
    """
    ended_events: dict[str, frozenset[int]] = {}
    for index, event in enumerate(events):
        users = []
        with suppress(EventError):  # reported by the audit, with the user
            sequences = (replay.sequence for replay in replays)
            users = [sequence.user for sequence in sequences if has_ended(event, model, sequence.first_slot)]
        if len(users) < len(replays):
            for user in users:
                ended_events[user] = ended_events.get(user, frozenset()) | {index}
    return ended_events


def _audit_user(
    engines: Sequence[Releaser],
    adversaries: UserAdversaries,
    worded: Sequence[tuple[str, EventText | Event]],
    ended_events: Mapping[str, frozenset[int]],
    prior: FloatArray | None,
    task: ReplayTask,
) -> tuple[EventAudit, ...]:
    """Return the audits of a user for each adversary and event."""
    engine, sequence = task.restore(engines)
    ended = ended_events.get(sequence.user, frozenset())
    lasting = [pair for index, pair in enumerate(worded) if index not in ended]
    audits = list[EventAudit]()
    for adversary in adversaries.build(task.private):
        audits += audit_events(engine, sequence, lasting, prior, adversary)
    return tuple(audits)


def _check_thresholds(min_posterior: float, max_posterior: float) -> None:
    if not 0 <= min_posterior < max_posterior <= 1:
        raise ConfigurationError(
            "min_posterior and max_posterior must be increasing probabilities, got "
            f"{min_posterior:g} and {max_posterior:g}"
        )
