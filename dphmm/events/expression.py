"""Events written as text, as options and job files hold them."""

from __future__ import annotations

import json
import re

from dphmm.arguments import checked
from dphmm.errors import EventError
from dphmm.events.calendar import Window, parse_bound, parse_daily, zone_of
from dphmm.events.wording import EventText, Joined, Negated, Sequence, Visit, Where, state_number

GRAMMAR = (
    "at:PLACE between TIME and TIME [any weekday 9-12] [in ZONE], at:PLACE at least 3 visits on DAY, "
    "at:PLACE then at:PLACE from TIME, joined by |, & and !"
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
        name none.

        ``at:PLACE at least 3 times WINDOW`` counts the steps there, ``3 visits`` how often it is entered, ``3 days``
        the days. ``at:A then at:B then at:B from TIME`` is a place for each step in a row.

        ``|`` unites, ``&`` intersects and binds more tightly, ``!`` negates; ``2 of (… ; … ; …)`` counts events.

    Raises
    ------
    EventError
        When the text is no event.

    Examples
    --------
    >>> event = parse_event("at:clinic.geojson between 2024-03-04 and 2024-03-10 any weekday 9–12 in Europe/Berlin")
    >>> print(event)
    at:clinic.geojson between 2024-03-04 and 2024-03-10 any weekday 9-12 in Europe/Berlin
    >>> print(parse_event("state:2 between 1 and 2 | !state:0 at 3").on())
    state:2 between 1 and 2 | !state:0 at 3
    """
    return _Parser(text).parsed()


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

    def _union(self) -> EventText:
        parts = [self._intersection()]
        while self._took("|"):
            parts.append(self._intersection())
        return _joined(parts, "|")

    def _intersection(self) -> EventText:
        parts = [self._factor()]
        while self._took("&"):
            parts.append(self._factor())
        return _joined(parts, "&")

    def _factor(self) -> EventText:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._problem(f"is nested more than {_DEEPEST} deep")
        made = self._inner()
        self._depth -= 1
        return made

    def _inner(self) -> EventText:
        if self._took("!"):
            return Negated(self._factor())
        if self._took("("):
            event = self._union()
            self._need(")")
            return event
        if self._at + 1 < len(self._tokens) and self._tokens[self._at + 1].lower() == "of":
            return self._counted()
        return self._atom()

    def _counted(self) -> EventText:
        count = self._whole(self._next("a number"))
        self._need("of")
        self._need("(")
        parts = [self._union()]
        while self._took(";"):
            parts.append(self._union())
        self._need(")")
        if not 1 <= count <= len(parts):
            raise self._problem(f"asks for {count} of {len(parts)} events")
        return Joined(count, tuple(parts), "of")

    def _atom(self) -> EventText:
        places = [self._place()]
        while self._took("then"):
            places.append(self._place())
        if self._took("from"):
            return Sequence(tuple(places), parse_bound(self._next("a time")), self._zone())
        if len(places) > 1:
            raise self._problem("has 'then' and no 'from'; say when the first place is, such as from 2024-03-04T09:00Z")
        least, unit = None, "times"
        if self._ahead("at", "least"):
            self._at += 2
            least, unit = self._whole(self._next("a number")), self._next("times, visits or days").lower()
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
        return Window(start, end, daily, self._zone())

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

    def _whole(self, token: str) -> int:
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
