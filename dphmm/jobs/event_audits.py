"""What released files tell of events over time: 'was she at the clinic this week?'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.audit.event import EventAudit, audit_events
from dphmm.errors import ConfigurationError, EventError
from dphmm.events import Clock, Event, EventText, parse_event
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.replays import Replayed, name_of, replay
from dphmm.jobs.subjects import Prior, checked_prior, state_names
from dphmm.jobs.watch import Watch, unwatched
from dphmm.release.settings import ReleaseSettings
from dphmm.tables.values import iso_time, shorten

EventLike = str | EventText | Event
"""An event, in words or as a value whose times are steps from the first release."""

CERTAINTY = 0.9
"""A probability above which an event counts as learned, unless another is given."""


@dataclass(frozen=True, eq=False)
class EventAudits:
    """What somebody's releases tell of some events, for each of some people.

    Attributes
    ----------
    people
        Their releases.
    audits
        For each of the people, one for each event.
    most_certainty, least_certainty
        Above and below which probability an event counts as learned.
    """

    people: tuple[Replayed, ...]
    audits: tuple[tuple[EventAudit, ...], ...] = field(repr=False)
    most_certainty: float
    least_certainty: float

    @property
    def is_exposed(self) -> bool:
        """Whether some event was learned at some release."""
        return any(self.is_learned(audit) for audits in self.audits for audit in audits)

    def is_learned(self, audit: EventAudit) -> bool:
        """Whether at some release an event was more probable than the most, or less than the least."""
        probability = audit.probability
        return bool((probability > self.most_certainty).any() or (probability < self.least_certainty).any())

    def when(self, person: Replayed, audit: EventAudit, release: int) -> str:
        """When a release was, as text: its time in UTC, or its step where the model does not say how long one is."""
        seconds = person.engine.model.step_seconds
        if seconds is None:
            return f"step {int(audit.times[release])}"
        return iso_time(np.datetime64(round(person.slots[release] * seconds * 1_000_000), "us"))

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values."""
        found = []
        for person, audits in zip(self.people, self.audits, strict=True):
            for audit in audits:
                stated = audit.facts()
                for mover in stated["moved_most"]:
                    mover["time"] = self.when(person, audit, mover["release"] - 1)
                found.append({**stated, "learned": self.is_learned(audit), "randomness_was_private": person.private})
        return {
            "exposed": self.is_exposed,
            "most_certainty": self.most_certainty,
            "least_certainty": self.least_certainty,
            "events": found,
        }


@checked
def audit_event(
    path: str | Path,
    model: Model,
    event: EventLike | Sequence[EventLike],
    settings: ReleaseSettings | str | None = None,
    *,
    users: Sequence[str] = (),
    prior: Prior | None = None,
    most_certainty: float = CERTAINTY,
    least_certainty: float = 0.0,
    watch: Watch = unwatched,
) -> EventAudits:
    """What releases tell of events, as ``dphmm audit event`` does.

    Parameters
    ----------
    path, model, settings, users
        As in `dphmm.jobs.replay`.
    event
        One event or several, in words (see `dphmm.events.parse_event`) or as values. Windows in dates are counted from
        each person's first release; what they hold before it is left out, because the model says nothing of it.
    prior
        The distribution of the first state that another adversary holds; left out, the model's.
    most_certainty, least_certainty
        Above and below which probability an event counts as learned.
    watch
        Who is shown the progress.

    Raises
    ------
    EventError
        When an event cannot be read, lies outside somebody's releases, or is certain or impossible before anything is
        released.
    ConfigurationError
        When the certainties are none, or as `dphmm.jobs.replay`.
    DphmmError
        As `dphmm.jobs.replay`, and the table of the prior.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, audit_event, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> model = learn(Data(("data/sample/geolife",), exclude_users=("002",)), space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = f"{folder}/releases.csv"
    ...     town = Data(("data/sample/geolife",), users=("002",))
    ...     made = release(town, model, ReleaseSettings(policy="utility:1km", epsilon=0.5), file, rng=1)
    ...     found = audit_event(file, model, "at:95,99 between 5 and 30", "utility:1km")
    >>> len(found.audits[0][0].told) == len(made.table)
    True
    """
    if not 0 <= least_certainty < most_certainty <= 1:
        raise ConfigurationError(
            f"the certainties are {least_certainty:g} and {most_certainty:g}; give probabilities, the least below the "
            "most"
        )
    if not isinstance(event, str | EventText | Event | Sequence):
        raise ConfigurationError(f"event is {shorten(event)}; give a text or an event, or a list of them")
    asked = [event] if isinstance(event, str | EventText | Event) else list(event)
    if not asked:
        raise ConfigurationError("no event is given; give one such as 'at:clinic.geojson on 2024-03-04'")
    worded = [(str(one), parse_event(one) if isinstance(one, str) else one) for one in asked]
    learned = load_model(model)
    believed = None if prior is None else checked_prior(prior, state_names(learned.space))
    people = tuple(replay(path, learned, settings, users))
    if not people:
        raise ConfigurationError(f"{name_of(path)} holds no release; there is nothing to audit")
    found = []
    for one in watch(people, "Replaying", len(people)):
        events = [(text, _resolved(what, one)) for text, what in worded]
        found.append(audit_events(one.engine, one.sequence, events, believed))
    return EventAudits(people, tuple(found), float(most_certainty), float(least_certainty))


def _resolved(event: EventText | Event, person: Replayed) -> Event:
    """An event in steps from a person's first release."""
    if isinstance(event, Event):
        return event
    model = person.engine.model
    try:
        return event.on(model.states, Clock(model.step_seconds, person.slots[0]))
    except EventError as problem:
        raise EventError(f"user {person.sequence.user}: {problem}") from None
