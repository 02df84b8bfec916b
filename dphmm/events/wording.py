"""An event in words: places, windows and how they are joined, before states and a clock are known."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dphmm.errors import DataFileError, EventError
from dphmm.events.calendar import Bound, Clock, Span, Window, instant_of, written
from dphmm.events.event import AtLeast, Event, Not, Pattern, Presence, States, Times
from dphmm.space.states import Places, StateSpace

_PLAIN = re.compile(r"[^\s()|&!;,\"#]+")


class EventText(ABC):
    """An event in words: what `parse_event` reads and `str` writes, before states and a clock are known."""

    @abstractmethod
    def on(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """The event over the states of a space, in steps from the first release.

        Parameters
        ----------
        space
            The states; not needed where the text numbers them (``state:3``).
        clock
            When the first release is, and how long a step is; not needed where the text counts steps. What a window
            holds before the first release is left out: the model says nothing of it.

        Raises
        ------
        EventError
            When a place is unknown or holds no state, a time lies before the first release, or something is missing.
        DataFileError
            As a file of places does.
        """

    @abstractmethod
    def is_past(self, clock: Clock) -> bool:
        """Whether all of it was over before the first release, so that the model says nothing of it."""

    @abstractmethod
    def written(self, where: Callable[[Where], str]) -> str:
        """The text, with places written by a function."""

    @property
    def canonical(self) -> str:
        """The text as it is hashed: files by the SHA-256 of their content.

        Raises
        ------
        DataFileError
            When a file that the text names cannot be read.
        """
        return self.written(Where.canonical)

    def __str__(self) -> str:
        return self.written(str)


@dataclass(frozen=True)
class Where:
    """A place in words: names, numbers of states, or polygons of a GeoJSON file.

    Parameters
    ----------
    kind
        ``"name"``, ``"state"`` or ``"file"``.
    names
        Names, numbers, or the one file.
    part
        Which of the file's polygons by name; None for all.
    """

    kind: str
    names: tuple[str, ...]
    part: str | None = None

    def states(self, space: StateSpace | None) -> States:
        """The states. Errors as `EventText.on`."""
        if self.kind == "state":
            return tuple(sorted({state_number(name) for name in self.names if name != "none"}))
        if space is None:
            raise EventError(f"'{self}' names a place, and the model does not say where its states are; give state:3")
        if self.kind == "file":
            return self._in_file(space)
        numbers = {name: state for state, name in enumerate(space.names)} if isinstance(space, Places) else None
        found = set()
        for name in self.names:
            state = numbers.get(name, -1) if numbers is not None else state_number(name) if name.isdecimal() else -1
            if not 0 <= state < space.size:
                known = (
                    f"{space.size} places, such as {next(iter(numbers))!r}"
                    if numbers
                    else f"cells 0 to {space.size - 1}"
                )
                raise EventError(f"place {name!r} is unknown; give one of the {known}, or a .geojson file")
            found.add(state)
        return tuple(sorted(found))

    def _in_file(self, space: StateSpace) -> States:
        from dphmm.policy.layer import categories

        layer = categories(self.names[0], space)
        if self.part is not None and self.part not in layer:
            names = ", ".join(repr(name) for name in list(layer)[:8])
            raise EventError(f"{self.names[0]} has no polygon named {self.part!r}; it has {names}")
        parts = layer.values() if self.part is None else [layer[self.part]]
        found = tuple(sorted({state for states in parts for state in states.tolist()}))
        if not found:
            raise EventError(f"'{self}' covers no state of the model; draw it around the point of one at least")
        return found

    def canonical(self) -> str:
        """The text with a file's content in place of its name."""
        if self.kind != "file":
            return str(self)
        path = self.names[0]
        try:
            digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError as problem:
            raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path in the event") from None
        return str(Where("file", (digest + ".geojson",), self.part))

    def __str__(self) -> str:
        names = ",".join(_spelled(name) for name in self.names)
        part = "" if self.part is None else f"#{_spelled(self.part)}"
        return f"{'state' if self.kind == 'state' else 'at'}:{names}{part}"


@dataclass(frozen=True)
class Visit(EventText):
    """Being at a place in a window, at all or so often."""

    where: Where
    when: Window
    least: int | None = None
    unit: str = "times"

    def on(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """As `EventText.on`."""
        states, timed = self.where.states(space), clock or Clock()
        if self.least is None:
            return _presence(states, self.when.spans(timed))
        if self.unit == "days":
            days = self.when.days(timed)
            if len(days) < self.least:
                raise EventError(f"'{self}' asks for {self.least} days, and the window has {len(days)}")
            return AtLeast(self.least, [_presence(states, day) for day in days])
        spans = self.when.spans(timed)
        if len(spans) == 1:
            return Times(states, *spans[0], self.least, self.unit == "visits")
        if self.unit == "visits":
            raise EventError(f"'{self}' counts visits within hours of a day; count 'times' or 'days' there")
        moments = [step for first, last in spans for step in range(first, last + 1)]
        if len(moments) < self.least:
            raise EventError(f"'{self}' asks for {self.least} times, and the window has {len(moments)} steps")
        return AtLeast(self.least, [Presence(states, step, step) for step in moments])

    def is_past(self, clock: Clock) -> bool:
        """As `EventText.is_past`."""
        return self.when.is_past(clock)

    def written(self, where: Callable[[Where], str]) -> str:
        """As `EventText.written`."""
        count = "" if self.least is None else f" at least {self.least} {self.unit}"
        return f"{where(self.where)}{count} {self.when}"


@dataclass(frozen=True)
class Sequence(EventText):
    """Places step by step."""

    places: tuple[Where, ...]
    start: Bound
    zone: str

    def on(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """As `EventText.on`."""
        timed = clock or Clock()
        first = self.start if isinstance(self.start, int) else timed.step_at(instant_of(self.start, self.zone))
        if first < 0:
            raise EventError(f"'{self}' begins before the first release, at {timed.instant(0)}; give a later time")
        return Pattern([place.states(space) for place in self.places], first)

    def is_past(self, clock: Clock) -> bool:
        """As `EventText.is_past`."""
        if isinstance(self.start, int):
            return False
        return clock.step_at(instant_of(self.start, self.zone)) + len(self.places) <= 0

    def written(self, where: Callable[[Where], str]) -> str:
        """As `EventText.written`."""
        zone = "" if self.zone == "UTC" else f" in {self.zone}"
        return f"{' then '.join(where(place) for place in self.places)} from {written(self.start)}{zone}"


@dataclass(frozen=True)
class Negated(EventText):
    """Not an event."""

    event: EventText

    def on(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """As `EventText.on`."""
        return Not(self.event.on(space, clock))

    def is_past(self, clock: Clock) -> bool:
        """As `EventText.is_past`."""
        return self.event.is_past(clock)

    def written(self, where: Callable[[Where], str]) -> str:
        """As `EventText.written`."""
        text = self.event.written(where)
        return f"!({text})" if isinstance(self.event, Joined) and self.event.sign != "of" else f"!{text}"


@dataclass(frozen=True)
class Joined(EventText):
    """At least so many of several events: joined by ``|`` (one), ``&`` (all) or ``of``."""

    count: int
    events: tuple[EventText, ...]
    sign: str

    def on(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """As `EventText.on`."""
        return AtLeast(self.count, [event.on(space, clock) for event in self.events])

    def is_past(self, clock: Clock) -> bool:
        """As `EventText.is_past`."""
        return all(event.is_past(clock) for event in self.events)

    def written(self, where: Callable[[Where], str]) -> str:
        """As `EventText.written`."""
        if self.sign == "of":
            return f"{self.count} of ({'; '.join(event.written(where) for event in self.events)})"
        inner = [
            f"({event.written(where)})"
            if self.sign == "&" and isinstance(event, Joined) and event.sign == "|"
            else event.written(where)
            for event in self.events
        ]
        return f" {self.sign} ".join(inner)


def _presence(states: States, spans: list[Span]) -> Event:
    parts = [Presence(states, first, last) for first, last in spans]
    return parts[0] if len(parts) == 1 else AtLeast(1, parts)


def state_number(text: str) -> int:
    """A state's number in a text.

    Raises
    ------
    EventError
        When it is none.
    """
    if not (text.isdecimal() and len(text) < 12):
        raise EventError(f"state {text!r} is no number; number states from 0, as in state:3,4")
    return int(text)


def _spelled(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)
