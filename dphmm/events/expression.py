"""Events as text: locations, windows and their combination, before resolving states."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dphmm.errors import EventError
from dphmm.events.calendar import (
    Bound,
    Clock,
    Span,
    Window,
    format_bound,
    get_zone,
    parse_bound,
    parse_daily,
    to_instant,
)
from dphmm.events.event import AtLeast, Event, Not, Pattern, Presence, States, Times
from dphmm.space.states import Places, StateSpace
from dphmm.tables.source import hash_file
from dphmm.validation import check_arguments

_UNQUOTED = re.compile(r"[^\s()|&!;,\"#]+")


Part = TypeVar("Part")


class EventText(ABC):
    """An event in text form, as `parse_event` parses and `str` formats it.

    It can be resolved once the states and the clock are known.
    """

    @abstractmethod
    def resolve(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """Resolve the event over the states of a space, in steps from step 0 of a clock.

        Parameters
        ----------
        space
            The states. Not needed if the text contains state indices (``state:3``).
        clock
            Time of the first release and length of a step. Not needed if the text contains steps. Without a lead, step
            0 is the first release, and a window that begins before it raises an error. If the text contains ``from the
            first release``, the earlier part is ignored instead.

        Returns
        -------
        Event
            The event, in steps.

        Raises
        ------
        EventError
            If a location is unknown or contains no state, a time precedes the first release, or an argument is missing.
        DataFileError
            If a file of locations cannot be read.
        """

    @abstractmethod
    def first_step(self, clock: Clock) -> int:
        """Return the first step of the event, negative before the first release.

        Parts that are clipped begin at the first release.

        Parameters
        ----------
        clock
            Time of the first release, without a lead.

        Returns
        -------
        int
            The step, counted from the first release; 0 if it is later.
        """

    @abstractmethod
    def is_past(self, clock: Clock) -> bool:
        """Return whether the whole event was over before the first release.

        The model contains nothing about it then.

        Parameters
        ----------
        clock
            Time of the first release.

        Returns
        -------
        bool
            Whether nothing of it is left.
        """

    @abstractmethod
    def format_with(self, where: Callable[[PlaceSpec], str]) -> str:
        """Return the text, with locations formatted by a function.

        Parameters
        ----------
        where
            Function that formats a location.

        Returns
        -------
        str
            The text.
        """

    @property
    def canonical(self) -> str:
        """The text for hashing, with files replaced by the SHA-256 of their content.

        Raises
        ------
        DataFileError
            If a file in the text cannot be read.
        """
        return self.format_with(PlaceSpec.format_canonical)

    def __str__(self) -> str:
        return self.format_with(str)


@dataclass(frozen=True)
class PlaceSpec:
    """A location in text form: names, state indices, or polygons of a GeoJSON file.

    Parameters
    ----------
    kind
        ``"name"``, ``"state"`` or ``"file"``.
    names
        Names, indices, or the single file.
    part
        Name of one of the file's polygons; None for all.
    """

    kind: str
    names: tuple[str, ...]
    part: str | None = None

    def resolve_states(self, space: StateSpace | None) -> States:
        """Return the states. Raises the errors of `EventText.resolve`."""
        if self.kind == "state":
            return tuple(sorted({parse_state(name) for name in self.names if name != "none"}))
        if space is None:
            raise EventError(f"'{self}' needs a model with state locations: use state indices such as state:3")
        if self.kind == "file":
            return self._read_layer_states(space)
        numbers = {name: state for state, name in enumerate(space.names)} if isinstance(space, Places) else None
        states = set()
        for name in self.names:
            state = numbers.get(name, -1) if numbers is not None else parse_state(name) if name.isdecimal() else -1
            if not 0 <= state < space.size:
                options = (
                    f"{space.size} places, such as {next(iter(numbers))!r}"
                    if numbers
                    else f"cells 0 to {space.size - 1}"
                )
                raise EventError(f"location must be one of the {options}, or a .geojson file, got {name!r}")
            states.add(state)
        return tuple(sorted(states))

    def _read_layer_states(self, space: StateSpace) -> States:
        from dphmm.policy.zones import find_categories

        layer = find_categories(self.names[0], space, centres=False)
        if self.part is not None and self.part not in layer:
            names = ", ".join(repr(name) for name in list(layer)[:8])
            raise EventError(f"polygon of {self.names[0]} must be one of {names}, got {self.part!r}")
        parts = layer.values() if self.part is None else [layer[self.part]]
        members = tuple(sorted({state for states in parts for state in states.tolist()}))
        if not members:
            raise EventError(f"'{self}' must overlap at least one state of the model")
        return members

    def format_canonical(self) -> str:
        """Return the text with the hash of a file's content in place of its name."""
        if self.kind != "file":
            return str(self)
        return str(PlaceSpec("file", (hash_file(self.names[0], "in the event") + ".geojson",), self.part))

    def __str__(self) -> str:
        names = ",".join(_quote(name) for name in self.names)
        part = "" if self.part is None else f"#{_quote(self.part)}"
        return f"{'state' if self.kind == 'state' else 'at'}:{names}{part}"


@dataclass(frozen=True)
class Visit(EventText):
    """Presence at a location in a window, once or several times."""

    where: PlaceSpec
    when: Window
    min_count: int | None = None
    unit: str = "times"

    def resolve(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """Resolve the event. See `EventText.resolve`."""
        states = self.where.resolve_states(space)
        clock = clock or Clock()
        if self.min_count is None:
            return _make_presence(states, self.when.list_spans(clock))
        if self.unit == "days":
            days = self.when.list_spans_by_day(clock)
            if len(days) < self.min_count:
                raise EventError(f"'{self}': the window must have at least {self.min_count} days, got {len(days)}")
            return AtLeast(self.min_count, [_make_presence(states, day) for day in days])
        spans = self.when.list_spans(clock)
        if len(spans) == 1:
            return Times(states, *spans[0], self.min_count, self.unit == "visits")
        if self.unit == "visits":
            raise EventError(f"'{self}': visits cannot be combined with hours of a day; use 'times' or 'days'")
        steps = [step for first, last in spans for step in range(first, last + 1)]
        if len(steps) < self.min_count:
            raise EventError(f"'{self}': the window must have at least {self.min_count} steps, got {len(steps)}")
        return AtLeast(self.min_count, [Presence(states, step, step) for step in steps])

    def first_step(self, clock: Clock) -> int:
        """Return the first step. See `EventText.first_step`."""
        return min(0, self.when.find_first_step(clock))

    def is_past(self, clock: Clock) -> bool:
        """Return whether the event is past. See `EventText.is_past`."""
        return self.when.is_past(clock)

    def format_with(self, where: Callable[[PlaceSpec], str]) -> str:
        """Return the text. See `EventText.format_with`."""
        count = "" if self.min_count is None else f" at least {self.min_count} {self.unit}"
        return f"{where(self.where)}{count} {self.when}"


@dataclass(frozen=True)
class Sequence(EventText):
    """Locations at consecutive steps."""

    places: tuple[PlaceSpec, ...]
    start: Bound
    zone: str

    def resolve(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """Resolve the event. See `EventText.resolve`."""
        clock = clock or Clock()
        if isinstance(self.start, int):
            first = self.start + clock.lead
        else:
            first = clock.step_at(to_instant(self.start, self.zone))
        if first < 0:
            raise EventError(
                f"'{self}' must not begin before the first release, at {clock.format_instant(clock.lead)}, unless "
                "the model "
                "starts in its stationary distribution; use a later time"
            )
        return Pattern([place.resolve_states(space) for place in self.places], first)

    def first_step(self, clock: Clock) -> int:
        """Return the first step. See `EventText.first_step`."""
        return 0 if isinstance(self.start, int) else min(0, clock.step_at(to_instant(self.start, self.zone)))

    def is_past(self, clock: Clock) -> bool:
        """Return whether the event is past. See `EventText.is_past`."""
        if isinstance(self.start, int):
            return False
        return clock.step_at(to_instant(self.start, self.zone)) + len(self.places) <= clock.lead

    def format_with(self, where: Callable[[PlaceSpec], str]) -> str:
        """Return the text. See `EventText.format_with`."""
        zone = "" if self.zone == "UTC" else f" in {self.zone}"
        return f"{' then '.join(where(place) for place in self.places)} from {format_bound(self.start)}{zone}"


@dataclass(frozen=True)
class Negated(EventText):
    """The complement of an event."""

    event: EventText

    def resolve(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """Resolve the event. See `EventText.resolve`."""
        return Not(self.event.resolve(space, clock))

    def first_step(self, clock: Clock) -> int:
        """Return the first step. See `EventText.first_step`."""
        return self.event.first_step(clock)

    def is_past(self, clock: Clock) -> bool:
        """Return whether the event is past. See `EventText.is_past`."""
        return self.event.is_past(clock)

    def format_with(self, where: Callable[[PlaceSpec], str]) -> str:
        """Return the text. See `EventText.format_with`."""
        text = self.event.format_with(where)
        return f"!({text})" if isinstance(self.event, Combination) and self.event.sign != "of" else f"!{text}"


@dataclass(frozen=True)
class Combination(EventText):
    """A minimum number of several events, combined by ``|`` (one), ``&`` (all) or ``of``."""

    count: int
    events: tuple[EventText, ...]
    sign: str

    def resolve(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """Resolve the event. See `EventText.resolve`."""
        return AtLeast(self.count, [event.resolve(space, clock) for event in self.events])

    def first_step(self, clock: Clock) -> int:
        """Return the first step. See `EventText.first_step`."""
        return min(event.first_step(clock) for event in self.events)

    def is_past(self, clock: Clock) -> bool:
        """Return whether the event is past. See `EventText.is_past`."""
        # Each is evaluated: an event that needs the date raises an error without it, whatever the order of the events.
        are_past = [event.is_past(clock) for event in self.events]
        return all(are_past)

    def format_with(self, where: Callable[[PlaceSpec], str]) -> str:
        """Return the text. See `EventText.format_with`."""
        if self.sign == "of":
            return f"{self.count} of ({'; '.join(event.format_with(where) for event in self.events)})"
        inner = [
            f"({event.format_with(where)})"
            if self.sign == "&" and isinstance(event, Combination) and event.sign == "|"
            else event.format_with(where)
            for event in self.events
        ]
        return f" {self.sign} ".join(inner)


def _make_presence(states: States, spans: list[Span]) -> Event:
    parts = [Presence(states, first, last) for first, last in spans]
    return parts[0] if len(parts) == 1 else AtLeast(1, parts)


def parse_state(text: str) -> int:
    """Parse a state index.

    Raises
    ------
    EventError
        If the text is not a non-negative integer.
    """
    if not (text.isdecimal() and len(text) < 12):
        raise EventError(f"state must be a non-negative integer, as in state:3,4, got {text!r}")
    return int(text)


def _quote(name: str) -> str:
    return name if _UNQUOTED.fullmatch(name) else json.dumps(name, ensure_ascii=False)


# The syntax of events in short, for help texts and messages.
GRAMMAR = (
    "at:PLACE between TIME and TIME [any weekday 9-12] [in ZONE] [from the first release], "
    "at:PLACE at least 3 visits on DAY, at:PLACE then at:PLACE from TIME, joined by |, & and !"
)

UNITS = ("times", "visits", "days")

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PLACE = re.compile(rf"(?:at|state):(?:{_QUOTED}|[^\s()|&!;\"])+", re.IGNORECASE)
_TOKEN = re.compile(rf"\s*({_PLACE.pattern}|[()|&!;]|[^\s()|&!;]+)", re.IGNORECASE)
# The largest nesting depth of parentheses and negations.
_MAX_DEPTH = 64
_MAX_DIGITS = 18
_ITEM = re.compile(rf"(?:{_QUOTED}|[^,\"])+")
_FILE = re.compile(rf"({_QUOTED}|[^\"#]+?\.(?:geo)?json)(?:#(.+))?", re.IGNORECASE)


@check_arguments
def parse_event(text: str) -> EventText:
    """Parse an event.

    Parameters
    ----------
    text
        ``at:PLACE WINDOW``: the path is in PLACE at some step of the window.

        A place is a name or several (``at:home,work``; cell indices for a grid), all polygons of a file
        (``at:FILE.geojson``), or one of them (``at:FILE.geojson#oncology``). ``state:3,4`` are state indices. Names
        with blanks are quoted.

        A window is ``between 2024-03-04 and 2024-03-10``, ``on 2024-03-04``, or steps counted from the first release
        (``between 0 and 9``, ``at 3``). Days and steps are included. Of instants, such as ``2024-03-04T08:30Z``, the
        second one ends the window. It may be followed by ``any weekday 9-12`` (also ``day``, ``weekend``, ``monday``,
        …; hours may cross midnight), by ``in Europe/Berlin``, the zone of days, hours and instants without a zone, and
        by ``from the first release``, which ignores the part of the window before it.

        ``at:PLACE at least 3 times WINDOW`` counts steps, ``3 visits`` counts entries, and ``3 days`` counts days.
        ``at:A then at:B then at:B from TIME`` is a place for each of several consecutive steps.

        ``|`` is the union, ``&`` the intersection, which binds more tightly, and ``!`` the complement. ``2 of (… ; … ;
        …)`` counts events.

    Returns
    -------
    EventText
        The event in text form. `EventText.resolve` resolves it over states.

    Raises
    ------
    EventError
        If the text is not an event.

    Examples
    --------
    >>> event = parse_event("at:clinic.geojson between 2024-03-04 and 2024-03-10 any weekday 9–12 in Europe/Berlin")
    >>> print(event)
    at:clinic.geojson between 2024-03-04 and 2024-03-10 any weekday 9-12 in Europe/Berlin
    >>> print(parse_event("state:2 between 1 and 2 | !state:0 at 3").resolve())
    state:2 between 1 and 2 | !state:0 at 3
    """
    return _Parser(text).parse_text()


def parse_place(text: str) -> PlaceSpec:
    """Parse a location in the form that follows ``at:`` in an event.

    Parameters
    ----------
    text
        Such as ``home``, ``95,99``, ``clinic.geojson`` or ``state:3``. A leading ``at:`` is optional.

    Returns
    -------
    PlaceSpec
        The location. `PlaceSpec.resolve_states` returns its states.

    Raises
    ------
    EventError
        If the text is not a location.
    """
    return _Parser(text if text.lower().startswith(("at:", "state:")) else f"at:{text}").parse_single_place()


class _Parser:
    """A recursive-descent parser of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._build_error(f"cannot be parsed at {text[position:].strip()[:20]!r}")
            self._tokens.append(match[1])
            position = match.end()
        self._at = self._depth = 0

    def parse_text(self) -> EventText:
        event = self._parse_union()
        if self._at < len(self._tokens):
            raise self._build_error(f"continues with {self._tokens[self._at]!r} after its end")
        return event

    def parse_single_place(self) -> PlaceSpec:
        place = self._parse_place()
        if self._at < len(self._tokens):
            raise self._build_error("continues after the location")
        return place

    def _parse_separated(self, sign: str, part: Callable[[], Part]) -> list[Part]:
        """Parse one or more parts that are separated by a sign."""
        parts = [part()]
        while self._accept(sign):
            parts.append(part())
        return parts

    def _parse_union(self) -> EventText:
        return _join(
            self._parse_separated("|", lambda: _join(self._parse_separated("&", self._parse_factor), "&")), "|"
        )

    def _parse_factor(self) -> EventText:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._build_error(f"must be nested at most {_MAX_DEPTH} deep")
        if self._accept("!"):
            event: EventText = Negated(self._parse_factor())
        elif self._accept("("):
            event = self._parse_union()
            self._expect(")")
        elif [token.lower() for token in self._tokens[self._at + 1 : self._at + 2]] == ["of"]:
            event = self._parse_count()
        else:
            event = self._parse_atom()
        self._depth -= 1
        return event

    def _parse_count(self) -> EventText:
        count = self._parse_integer(self._take_token("a number"))
        self._expect("of")
        self._expect("(")
        parts = self._parse_separated(";", self._parse_union)
        self._expect(")")
        if not 1 <= count <= len(parts):
            raise self._build_error(f"requires {count} of {len(parts)} events")
        return Combination(count, tuple(parts), "of")

    def _parse_atom(self) -> EventText:
        places = self._parse_separated("then", self._parse_place)
        if self._accept("from"):
            return Sequence(tuple(places), parse_bound(self._take_token("a time")), self._parse_zone())
        if len(places) > 1:
            raise self._build_error(
                "has 'then' without 'from'; append the time of the first location: from 2024-03-04T09:00Z"
            )
        min_count = None
        unit = "times"
        if self._is_next("at", "least"):
            self._at += 2
            min_count = self._parse_integer(self._take_token("a number"))
            unit = self._take_token("times, visits or days").lower()
            if unit not in UNITS or min_count < 1:
                raise self._build_error(f"must count 1 or more times, visits or days; got '{min_count} {unit}'")
        return Visit(places[0], self._parse_window(), min_count, unit)

    def _parse_window(self) -> Window:
        word = self._take_token("between, on or at").lower()
        if word in ("on", "at"):
            start = end = parse_bound(self._take_token("a time"))
            if isinstance(start, int) != (word == "at"):
                raise self._build_error(f"must have a day after 'on' or a step after 'at'; got '{word} {start}'")
        elif word == "between":
            start = parse_bound(self._take_token("a time"))
            self._expect("and")
            end = parse_bound(self._take_token("a time"))
        else:
            raise self._build_error(f"must have a window: between … and …, on 2024-03-04, or at 3; got {word!r}")
        daily = None
        if self._accept("any"):
            kind = self._take_token("a day")
            hours = None
            if self._at < len(self._tokens) and self._tokens[self._at][0].isdecimal():
                hours = self._take_token("hours")
            daily = parse_daily(kind, hours)
        zone = self._parse_zone()
        clipped = self._is_next("from", "the", "first", "release")
        self._at += 4 * clipped
        return Window(start, end, daily, zone, clipped)

    def _parse_zone(self) -> str:
        if not self._accept("in"):
            return "UTC"
        name = self._take_token("a time zone")
        get_zone(name)
        return name

    def _parse_place(self) -> PlaceSpec:
        token = self._take_token("a place")
        if not _PLACE.fullmatch(token):
            raise self._build_error(
                f"must have a location such as at:home, at:clinic.geojson or state:3; got {token!r}"
            )
        kind, _, rest = token.partition(":")
        if kind.lower() == "state":
            return PlaceSpec(
                "state", tuple(name if name == "none" else str(parse_state(name)) for name in rest.split(","))
            )
        file = _FILE.fullmatch(rest)
        if file and _unquote(file[1]).lower().endswith("json"):
            return PlaceSpec("file", (_unquote(file[1]),), None if file[2] is None else _unquote(file[2]))
        names = tuple(_unquote(name) for name in _ITEM.findall(rest))
        if not all(names) or ",".join(_ITEM.findall(rest)) != rest:
            raise self._build_error(f"has an empty location in {token!r}")
        return PlaceSpec("name", names)

    # ---- tokens --------------------------------------------------------------------------------------------------

    def _accept(self, word: str) -> bool:
        taken = self._is_next(word)
        self._at += taken
        return taken

    def _is_next(self, *words: str) -> bool:
        return [token.lower() for token in self._tokens[self._at : self._at + len(words)]] == list(words)

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._build_error(f"must have {word!r}{self._describe_position()}")

    def _take_token(self, what: str) -> str:
        if self._at >= len(self._tokens):
            raise self._build_error(f"ends where {what} is expected")
        self._at += 1
        return self._tokens[self._at - 1]

    def _describe_position(self) -> str:
        return f" before {self._tokens[self._at]!r}" if self._at < len(self._tokens) else " at its end"

    def _parse_integer(self, token: str) -> int:
        if not token.isdecimal():
            raise self._build_error(f"must have an integer in place of {token!r}")
        if len(token) > _MAX_DIGITS:
            raise self._build_error(f"must have integers of at most {_MAX_DIGITS} digits, got {len(token)}")
        return int(token)

    def _build_error(self, what: str) -> EventError:
        text = self._text if len(self._text) <= 60 else self._text[:57] + "…"
        remedy = "" if ";" in what else "; write it as at:home between 2024-03-04 and 2024-03-10"
        return EventError(f"event {text!r} {what}{remedy}")


def _join(parts: list[EventText], sign: str) -> EventText:
    """Combine events by a sign. Nested combinations by the same sign are merged."""
    if len(parts) == 1:
        return parts[0]
    flat: list[EventText] = []
    for part in parts:
        flat += part.events if isinstance(part, Combination) and part.sign == sign else [part]
    return Combination(1 if sign == "|" else len(flat), tuple(flat), sign)


def _unquote(text: str) -> str:
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        raise EventError(f'quoted name {text} is invalid; write a quote within it as \\"') from None
