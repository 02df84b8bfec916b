"""Events as text, and in words: places, windows and how they are joined, before states and a clock are known."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dphmm.arguments import checked
from dphmm.errors import EventError
from dphmm.events.calendar import Bound, Clock, Span, Window, instant_of, parse_bound, parse_daily, written, zone_of
from dphmm.events.event import AtLeast, Event, Not, Pattern, Presence, States, Times
from dphmm.space.states import Places, StateSpace
from dphmm.tables.source import file_hash

_PLAIN = re.compile(r"[^\s()|&!;,\"#]+")


Part = TypeVar("Part")


class EventText(ABC):
    """An event in words: what `parse_event` reads and `str` writes, before states and a clock are known."""

    @abstractmethod
    def resolve(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """The event over the states of a space, in steps from time 0 of a clock.

        Parameters
        ----------
        space
            The states; not needed where the text numbers them (``state:3``).
        clock
            When the first release is, and how long a step is; not needed where the text counts steps. Without a lead
            time 0 is the first release, and a window that begins before it is refused unless its text says ``from the
            first release``: then what it holds before that is left out.

        Returns
        -------
        Event
            The event, in steps.

        Raises
        ------
        EventError
            When a place is unknown or holds no state, a time lies before the first release, or something is missing.
        DataFileError
            As a file of places does.
        """

    @abstractmethod
    def begins(self, clock: Clock) -> int:
        """The first step that it is about, negative before the first release; what is clipped begins there.

        Parameters
        ----------
        clock
            When the first release is, without a lead.

        Returns
        -------
        int
            The step, counted from the first release; 0 where it is later.
        """

    @abstractmethod
    def is_past(self, clock: Clock) -> bool:
        """Whether all of it was over before the first release, so that the model says nothing of it.

        Parameters
        ----------
        clock
            When the first release is.

        Returns
        -------
        bool
            True where none of it is left.
        """

    @abstractmethod
    def written(self, where: Callable[[Where], str]) -> str:
        """The text, with places written by a function.

        Parameters
        ----------
        where
            A place → its text.

        Returns
        -------
        str
            The text.
        """

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
        """The states. Errors as `EventText.resolve`."""
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
        from dphmm.policy.zones import categories

        layer = categories(self.names[0], space, centres=False)
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
        return str(Where("file", (file_hash(self.names[0], "in the event") + ".geojson",), self.part))

    def __str__(self) -> str:
        names = ",".join(_spelled(name) for name in self.names)
        part = "" if self.part is None else f"#{_spelled(self.part)}"
        return f"{'state' if self.kind == 'state' else 'at'}:{names}{part}"


@dataclass(frozen=True)
class Visit(EventText):
    """Being at a place in a window, once or a number of times."""

    where: Where
    when: Window
    least: int | None = None
    unit: str = "times"

    def resolve(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """As `EventText.resolve`."""
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

    def begins(self, clock: Clock) -> int:
        """As `EventText.begins`."""
        return min(0, self.when.begins(clock))

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

    def resolve(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """As `EventText.resolve`."""
        timed = clock or Clock()
        if isinstance(self.start, int):
            first = self.start + timed.lead
        else:
            first = timed.step_at(instant_of(self.start, self.zone))
        if first < 0:
            raise EventError(
                f"'{self}' begins before the first release, at {timed.instant(timed.lead)}, and nothing is said "
                "of the time before it unless the model begins at rest; give a later time"
            )
        return Pattern([place.states(space) for place in self.places], first)

    def begins(self, clock: Clock) -> int:
        """As `EventText.begins`."""
        return 0 if isinstance(self.start, int) else min(0, clock.step_at(instant_of(self.start, self.zone)))

    def is_past(self, clock: Clock) -> bool:
        """As `EventText.is_past`."""
        if isinstance(self.start, int):
            return False
        return clock.step_at(instant_of(self.start, self.zone)) + len(self.places) <= clock.lead

    def written(self, where: Callable[[Where], str]) -> str:
        """As `EventText.written`."""
        zone = "" if self.zone == "UTC" else f" in {self.zone}"
        return f"{' then '.join(where(place) for place in self.places)} from {written(self.start)}{zone}"


@dataclass(frozen=True)
class Negated(EventText):
    """Not an event."""

    event: EventText

    def resolve(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """As `EventText.resolve`."""
        return Not(self.event.resolve(space, clock))

    def begins(self, clock: Clock) -> int:
        """As `EventText.begins`."""
        return self.event.begins(clock)

    def is_past(self, clock: Clock) -> bool:
        """As `EventText.is_past`."""
        return self.event.is_past(clock)

    def written(self, where: Callable[[Where], str]) -> str:
        """As `EventText.written`."""
        text = self.event.written(where)
        return f"!({text})" if isinstance(self.event, Joined) and self.event.sign != "of" else f"!{text}"


@dataclass(frozen=True)
class Joined(EventText):
    """At least a number of several events: joined by ``|`` (one), ``&`` (all) or ``of``."""

    count: int
    events: tuple[EventText, ...]
    sign: str

    def resolve(self, space: StateSpace | None = None, clock: Clock | None = None) -> Event:
        """As `EventText.resolve`."""
        return AtLeast(self.count, [event.resolve(space, clock) for event in self.events])

    def begins(self, clock: Clock) -> int:
        """As `EventText.begins`."""
        return min(event.begins(clock) for event in self.events)

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


GRAMMAR = (
    "at:PLACE between TIME and TIME [any weekday 9-12] [in ZONE] [from the first release], "
    "at:PLACE at least 3 visits on DAY, at:PLACE then at:PLACE from TIME, joined by |, & and !"
)
"""What an event may be, for help texts and messages."""

UNITS = ("times", "visits", "days")

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PLACE = re.compile(rf"(?:at|state):(?:{_QUOTED}|[^\s()|&!;\"])+", re.IGNORECASE)
_TOKEN = re.compile(rf"\s*({_PLACE.pattern}|[()|&!;]|[^\s()|&!;]+)", re.IGNORECASE)
_DEEPEST = 64
"""How many brackets and negations may lie in each other."""
_MOST_DIGITS = 18
_ITEM = re.compile(rf"(?:{_QUOTED}|[^,\"])+")
_FILE = re.compile(rf"({_QUOTED}|[^\"#]+?\.(?:geo)?json)(?:#(.+))?", re.IGNORECASE)


@checked
def parse_event(text: str) -> EventText:
    """The event that a text describes.

    Parameters
    ----------
    text
        ``at:PLACE WINDOW``: the path is there at some time of the window.

        A place is a name or several (``at:home,work``; the numbers of a grid's cells), all polygons of a file
        (``at:FILE.geojson``), or one of them (``at:FILE.geojson#oncology``); ``state:3,4`` numbers states. Quotes hold
        what has blanks.

        A window is ``between 2024-03-04 and 2024-03-10`` (days are included; of instants, such as
        ``2024-03-04T08:30Z``, the second is where it ends), ``on 2024-03-04``, or steps counted from the first release
        (``between 0 and 9``, included; ``at 3``). Then may follow ``any weekday 9-12`` (also ``day``, ``weekend``,
        ``monday``, …; hours may cross midnight) and ``in Europe/Berlin``, the zone of days, hours, and instants that
        name none; and ``from the first release``, which leaves out what a window in dates holds before it.

        ``at:PLACE at least 3 times WINDOW`` counts the steps there, ``3 visits`` how often it is entered, ``3 days``
        the days. ``at:A then at:B then at:B from TIME`` is a place for each step in a row.

        ``|`` unites, ``&`` intersects and binds more tightly, ``!`` negates; ``2 of (… ; … ; …)`` counts events.

    Returns
    -------
    EventText
        The event in words; `EventText.resolve` gives it over states.

    Raises
    ------
    EventError
        When the text is no event.

    Examples
    --------
    >>> event = parse_event("at:clinic.geojson between 2024-03-04 and 2024-03-10 any weekday 9–12 in Europe/Berlin")
    >>> print(event)
    at:clinic.geojson between 2024-03-04 and 2024-03-10 any weekday 9-12 in Europe/Berlin
    >>> print(parse_event("state:2 between 1 and 2 | !state:0 at 3").resolve())
    state:2 between 1 and 2 | !state:0 at 3
    """
    return _Parser(text).parsed()


def place_of(text: str) -> Where:
    """The place that a text names, as it stands behind ``at:`` in an event.

    Parameters
    ----------
    text
        Such as ``home``, ``95,99``, ``clinic.geojson`` or ``state:3``; ``at:`` may stand before it.

    Returns
    -------
    Where
        The place; `Where.states` says which states it is.

    Raises
    ------
    EventError
        When the text names no place.
    """
    return _Parser(text if text.lower().startswith(("at:", "state:")) else f"at:{text}").place()


class _Parser:
    """One text, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens, at = [], 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._problem(f"cannot be read from {text[at:].strip()[:20]!r} on")
            self._tokens.append(found[1])
            at = found.end()
        self._at = self._depth = 0

    def parsed(self) -> EventText:
        event = self._union()
        if self._at < len(self._tokens):
            raise self._problem(f"goes on with {self._tokens[self._at]!r}")
        return event

    def place(self) -> Where:
        found = self._place()
        if self._at < len(self._tokens):
            raise self._problem("goes on behind the place")
        return found

    def _all(self, sign: str, part: Callable[[], Part]) -> list[Part]:
        """What a sign joins."""
        parts = [part()]
        while self._took(sign):
            parts.append(part())
        return parts

    def _union(self) -> EventText:
        return _joined(self._all("|", lambda: _joined(self._all("&", self._factor), "&")), "|")

    def _factor(self) -> EventText:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._problem(f"is nested more than {_DEEPEST} deep")
        if self._took("!"):
            made: EventText = Negated(self._factor())
        elif self._took("("):
            made = self._union()
            self._need(")")
        elif [token.lower() for token in self._tokens[self._at + 1 : self._at + 2]] == ["of"]:
            made = self._counted()
        else:
            made = self._atom()
        self._depth -= 1
        return made

    def _counted(self) -> EventText:
        count = self._integer(self._next("a number"))
        self._need("of")
        self._need("(")
        parts = self._all(";", self._union)
        self._need(")")
        if not 1 <= count <= len(parts):
            raise self._problem(f"asks for {count} of {len(parts)} events")
        return Joined(count, tuple(parts), "of")

    def _atom(self) -> EventText:
        places = self._all("then", self._place)
        if self._took("from"):
            return Sequence(tuple(places), parse_bound(self._next("a time")), self._zone())
        if len(places) > 1:
            raise self._problem("has 'then' and no 'from'; say when the first place is, such as from 2024-03-04T09:00Z")
        least, unit = None, "times"
        if self._ahead("at", "least"):
            self._at += 2
            least, unit = self._integer(self._next("a number")), self._next("times, visits or days").lower()
            if unit not in UNITS or least < 1:
                raise self._problem(f"counts '{least} {unit}'; give a number from 1 of times, visits or days")
        return Visit(places[0], self._window(), least, unit)

    def _window(self) -> Window:
        word = self._next("between, on or at").lower()
        if word in ("on", "at"):
            start = end = parse_bound(self._next("a time"))
            if isinstance(start, int) != (word == "at"):
                raise self._problem(f"says '{word} {start}'; give 'on 2024-03-04' or 'at 3', a step")
        elif word == "between":
            start = parse_bound(self._next("a time"))
            self._need("and")
            end = parse_bound(self._next("a time"))
        else:
            raise self._problem(f"has {word!r} where a window begins; give between … and …, on 2024-03-04, or at 3")
        daily = None
        if self._took("any"):
            kind, hours = self._next("a day"), None
            if self._at < len(self._tokens) and self._tokens[self._at][0].isdecimal():
                hours = self._next("hours")
            daily = parse_daily(kind, hours)
        zone, clipped = self._zone(), self._ahead("from", "the", "first", "release")
        self._at += 4 * clipped
        return Window(start, end, daily, zone, clipped)

    def _zone(self) -> str:
        if not self._took("in"):
            return "UTC"
        name = self._next("a time zone")
        zone_of(name)
        return name

    def _place(self) -> Where:
        token = self._next("a place")
        if not _PLACE.fullmatch(token):
            raise self._problem(f"has {token!r} where a place is named; give at:home, at:clinic.geojson or state:3")
        kind, _, rest = token.partition(":")
        if kind.lower() == "state":
            return Where(
                "state", tuple(name if name == "none" else str(state_number(name)) for name in rest.split(","))
            )
        file = _FILE.fullmatch(rest)
        if file and _unquoted(file[1]).lower().endswith("json"):
            return Where("file", (_unquoted(file[1]),), None if file[2] is None else _unquoted(file[2]))
        names = tuple(_unquoted(name) for name in _ITEM.findall(rest))
        if not all(names) or ",".join(_ITEM.findall(rest)) != rest:
            raise self._problem(f"names an empty place in {token!r}")
        return Where("name", names)

    # ---- tokens --------------------------------------------------------------------------------------------------

    def _took(self, word: str) -> bool:
        taken = self._ahead(word)
        self._at += taken
        return taken

    def _ahead(self, *words: str) -> bool:
        return [token.lower() for token in self._tokens[self._at : self._at + len(words)]] == list(words)

    def _need(self, word: str) -> None:
        if not self._took(word):
            raise self._problem(f"misses {word!r}{self._before()}")

    def _next(self, what: str) -> str:
        if self._at >= len(self._tokens):
            raise self._problem(f"ends where {what} is missing")
        self._at += 1
        return self._tokens[self._at - 1]

    def _before(self) -> str:
        return f" before {self._tokens[self._at]!r}" if self._at < len(self._tokens) else " at its end"

    def _integer(self, token: str) -> int:
        if not token.isdecimal():
            raise self._problem(f"has {token!r} where a whole number is expected")
        if len(token) > _MOST_DIGITS:
            raise self._problem(f"has a number of {len(token)} digits, more than {_MOST_DIGITS}")
        return int(token)

    def _problem(self, what: str) -> EventError:
        text = self._text if len(self._text) <= 60 else self._text[:57] + "…"
        remedy = "" if ";" in what else "; write it as at:home between 2024-03-04 and 2024-03-10"
        return EventError(f"event {text!r} {what}{remedy}")


def _joined(parts: list[EventText], sign: str) -> EventText:
    """Events joined by a sign; what is joined by the same sign in parentheses is taken in."""
    if len(parts) == 1:
        return parts[0]
    flat: list[EventText] = []
    for part in parts:
        flat += part.events if isinstance(part, Joined) and part.sign == sign else [part]
    return Joined(1 if sign == "|" else len(flat), tuple(flat), sign)


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        raise EventError(f'{text} is no quoted name; write a quote within as \\"') from None
