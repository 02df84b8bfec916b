"""Events as values: what may be true of a whole path, such as 'was at the clinic at some time this week'."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked_as
from dphmm.errors import EventError

States = tuple[int, ...]
"""A set of states: ascending, each once."""


class Verdict(Enum):
    """What is known of an event once it is decided."""

    NO = 0
    YES = 1


UNDECIDED = None
"""The progress of an event of which nothing need be kept but that it is not decided."""

Progress = Verdict | Hashable
"""How far a path has come with an event: a verdict, or whatever else is needed to go on."""

Inside = Callable[[States], bool]
"""Whether the path is within a set of states now."""


class Event(ABC):
    """Something that a path ``s_0, s_1, …`` of states does or does not do, decided by its states at ``first .. last``.

    Times are steps of the model, counted from 0, the first release. Events are values: they compare, hash, and their
    text reads back with `dphmm.events.parse_event`. ``a | b``, ``a & b`` and ``~a`` are events too.

    An event is a small automaton that reads a path from ``first`` to ``last``: `step` goes from one progress to the
    next and comes to a verdict at ``last`` at the latest.
    """

    first: int
    last: int

    @property
    def start(self) -> Progress:
        """The progress before ``first``."""
        return UNDECIDED

    @abstractmethod
    def sets(self, time: int) -> Iterable[States]:
        """The sets of states that `step` may ask about at a time.

        Parameters
        ----------
        time
            A time of ``first .. last``.

        Returns
        -------
        Iterable of States
            Each a tuple of ascending state numbers.
        """

    @abstractmethod
    def step(self, progress: Progress, time: int, inside: Inside) -> Progress:
        """The progress after a time of ``first .. last``, for one that is not decided before it.

        Parameters
        ----------
        progress
            The progress before the time.
        time
            A time of ``first .. last``.
        inside
            A set of `sets` → whether the path is in it now.

        Returns
        -------
        Progress
            The progress after the time; a `Verdict` at ``last`` at the latest.
        """

    @abstractmethod
    def kind(self, time: int) -> Hashable:
        """What `step` does at a time, which is the same at all times of one kind.

        Parameters
        ----------
        time
            A time of ``first .. last``.

        Returns
        -------
        Hashable
            Equal for times at which `step` does the same.
        """

    def __or__(self, other: Event) -> Event:
        return AtLeast(1, (*_parts(self, 1), *_parts(other, 1)))

    def __and__(self, other: Event) -> Event:
        parts = (*_parts(self, None), *_parts(other, None))
        return AtLeast(len(parts), parts)

    def __invert__(self) -> Event:
        return self.event if isinstance(self, Not) else Not(self)


@checked_as(EventError)
@dataclass(frozen=True)
class Times(Event):
    """The path is in some states at several times of a window at least, or enters them several times.

    Parameters
    ----------
    states
        The states: integers, or a boolean array ``(N,)``.
    first, last
        The window, both ends included.
    least
        At how many times at least; at least 1.
    visits
        Whether times in a row count once: entering counts, and so does being there when the window begins.

    Raises
    ------
    EventError
        When a state or a time is no integer that can be, the window ends before it begins, or a number of times is no
        positive integer.

    Examples
    --------
    >>> print(Times([2], 0, 9, least=3), Times([2], 0, 9, least=3, visits=True), sep=", ")
    state:2 at least 3 times between 0 and 9, state:2 at least 3 visits between 0 and 9
    """

    states: States
    first: int
    last: int
    least: int
    visits: bool = False

    def __init__(self, states: npt.ArrayLike, first: int, last: int, least: int, visits: bool = False) -> None:
        _set(self, states=as_states(states), **_window(first, last), least=_count(least), visits=bool(visits))

    @property
    def start(self) -> Progress:
        """None yet, and not there."""
        return (0, False)

    def sets(self, time: int) -> Iterable[States]:  # noqa: ARG002 - the same at every time
        """The states."""
        return (self.states,)

    def kind(self, time: int) -> Hashable:
        """How many times are left, as far as that matters."""
        return min(self.last - time, 2 * self.least)

    def step(self, progress: Progress, time: int, inside: Inside) -> Progress:
        """Count."""
        count, was_inside = progress  # type: ignore[misc]
        now = inside(self.states)
        count += now and not (self.visits and was_inside)
        if count >= self.least:
            return Verdict.YES
        left = self.last - time
        most = (left + (not now)) // 2 if self.visits else left
        return Verdict.NO if count + most < self.least else (count, now and self.visits)

    def __str__(self) -> str:
        what = "visits" if self.visits else "times"
        return f"{_named(self.states)} at least {self.least} {what} {_between(self.first, self.last)}"


@checked_as(EventError)
@dataclass(frozen=True)
class Presence(Times):
    """The path is in one of some states at some time of a window.

    Parameters
    ----------
    states
        The states: integers, or a boolean array ``(N,)``.
    first, last
        The window, both ends included.

    Raises
    ------
    EventError
        When a state or a time is no integer that can be, or the window ends before it begins.

    Examples
    --------
    >>> print(Presence([4, 2], 1, 2) | ~Presence([0], 3, 3))
    state:2,4 between 1 and 2 | !state:0 at 3
    """

    least: int = field(default=1, repr=False)
    visits: bool = field(default=False, repr=False)

    def __init__(self, states: npt.ArrayLike, first: int, last: int) -> None:
        super().__init__(states, first, last, 1)

    def __str__(self) -> str:
        return f"{_named(self.states)} {_between(self.first, self.last)}"


@checked_as(EventError)
@dataclass(frozen=True)
class Pattern(Event):
    """The path is in given states at each of several times in a row.

    Parameters
    ----------
    sets
        The states at each time; each as in `Presence`.
    first
        When the first of them is.

    Raises
    ------
    EventError
        As `Presence`, and when there is no set.

    Examples
    --------
    >>> print(Pattern([[1], [2, 3]], first=1))
    state:1 then state:2,3 from 1
    """

    pattern: tuple[States, ...]
    first: int

    def __init__(self, sets: Sequence[npt.ArrayLike], first: int) -> None:
        pattern = tuple(as_states(one) for one in sets)
        if not pattern:
            raise EventError("the pattern is empty; give the states of one time or more")
        _set(self, pattern=pattern, first=_window(first, first)["first"])

    @property
    def last(self) -> int:  # type: ignore[override]
        """The time of the last set."""
        return self.first + len(self.pattern) - 1

    def sets(self, time: int) -> Iterable[States]:
        """The states of that time."""
        return (self.pattern[time - self.first],)

    def kind(self, time: int) -> Hashable:
        """Every time is one of its own."""
        return time

    def step(self, progress: Progress, time: int, inside: Inside) -> Progress:  # noqa: ARG002 - there is one alone
        """No as soon as the path is elsewhere."""
        if not inside(self.pattern[time - self.first]):
            return Verdict.NO
        return Verdict.YES if time == self.last else UNDECIDED

    def __str__(self) -> str:
        return f"{' then '.join(_named(one) for one in self.pattern)} from {self.first}"


@dataclass(frozen=True)
class Not(Event):
    """An event does not happen.

    Parameters
    ----------
    event
        That event.
    """

    event: Event

    @property
    def first(self) -> int:  # type: ignore[override]
        """When the event begins."""
        return self.event.first

    @property
    def last(self) -> int:  # type: ignore[override]
        """When it is decided at the latest."""
        return self.event.last

    @property
    def start(self) -> Progress:
        """As the event's."""
        return self.event.start

    def sets(self, time: int) -> Iterable[States]:
        """As the event's."""
        return self.event.sets(time)

    def kind(self, time: int) -> Hashable:
        """As the event's."""
        return self.event.kind(time)

    def step(self, progress: Progress, time: int, inside: Inside) -> Progress:
        """The event's, with its verdict turned round."""
        ahead = self.event.step(progress, time, inside)
        return Verdict(1 - ahead.value) if isinstance(ahead, Verdict) else ahead

    def __str__(self) -> str:
        return f"!({self.event})" if _joins(self.event, "|") or _joins(self.event, "&") else f"!{self.event}"


@checked_as(EventError)
@dataclass(frozen=True)
class AtLeast(Event):
    """At least a given number of several events happen. One is a union, all an intersection; both have their operators.

    Parameters
    ----------
    count
        How many at least, 1 to the number of events.
    events
        The events.

    Raises
    ------
    EventError
        When there is no event, or the count is no such number.

    Examples
    --------
    >>> print(AtLeast(2, [Presence([3], day, day) for day in range(3)]))
    2 of (state:3 at 0; state:3 at 1; state:3 at 2)
    """

    count: int
    events: tuple[Event, ...]

    def __init__(self, count: int, events: Iterable[Event]) -> None:
        parts = tuple(events)
        _set(self, count=_count(count), events=parts)
        if not parts or count > len(parts):
            raise EventError(f"at least {count} of {len(parts)} events cannot be; give as many events or more")

    @cached_property
    def first(self) -> int:  # type: ignore[override]
        """When the first of the events begins."""
        return min(event.first for event in self.events)

    @cached_property
    def last(self) -> int:  # type: ignore[override]
        """When the last of them is decided at the latest."""
        return max(event.last for event in self.events)

    @property
    def start(self) -> Progress:
        """None happened, none is under way."""
        return (0, ())

    @cached_property
    def _starting(self) -> dict[int, list[int]]:
        starting: dict[int, list[int]] = {}
        for index, event in enumerate(self.events):
            starting.setdefault(event.first, []).append(index)
        return starting

    @cached_property
    def _under_way(self) -> dict[int, list[int]]:
        active: dict[int, list[int]] = {}
        for index, event in enumerate(self.events):
            for time in range(event.first, event.last + 1):
                active.setdefault(time, []).append(index)
        return active

    @cached_property
    def _begun(self) -> npt.NDArray[np.int64]:
        """The first times of the events in order: how many have begun by a time is a search."""
        return np.sort([event.first for event in self.events])

    def sets(self, time: int) -> Iterable[States]:
        """Those of all events that are under way."""
        return {one for index in self._under_way.get(time, ()) for one in self.events[index].sets(time)}

    def kind(self, time: int) -> Hashable:
        """What every event that is under way does, which of them begin, and how many are to come."""
        active = self._under_way.get(time, ())
        kinds = tuple((index, self.events[index].kind(time)) for index in active)
        return kinds, tuple(self._starting.get(time, ())), self._to_come(time)

    def _to_come(self, time: int) -> int:
        """How many of the events begin later."""
        return len(self.events) - int(np.searchsorted(self._begun, time, side="right"))

    def step(self, progress: Progress, time: int, inside: Inside) -> Progress:
        """A step of every event that is under way; what is decided is only counted."""
        count, active = progress  # type: ignore[misc]
        going = []
        for index, one in (*active, *((index, self.events[index].start) for index in self._starting.get(time, ()))):
            ahead = self.events[index].step(one, time, inside)
            if ahead is Verdict.YES:
                count += 1
            elif ahead is not Verdict.NO:
                going.append((index, ahead))
        if count >= self.count:
            return Verdict.YES
        return Verdict.NO if count + len(going) + self._to_come(time) < self.count else (count, tuple(going))

    def __str__(self) -> str:
        if self.count == 1:
            return " | ".join(str(event) for event in self.events)
        if self.count == len(self.events):
            return " & ".join(f"({event})" if _joins(event, "|") else str(event) for event in self.events)
        return f"{self.count} of ({'; '.join(str(event) for event in self.events)})"


def as_states(states: npt.ArrayLike) -> States:
    """A set of states, ascending: out of integers, or a boolean array ``(N,)``.

    Raises
    ------
    EventError
        For something else.
    """
    given = np.asarray(states)
    if given.dtype == np.bool_ and given.ndim == 1:
        return tuple(np.flatnonzero(given).tolist())
    if given.size == 0:
        return ()
    if given.ndim > 1 or given.dtype.kind not in "iu" or given.min() < 0:
        raise EventError(f"states are {given.tolist()!r:.60}; give whole numbers from 0, or a boolean for every state")
    return tuple(np.unique(given).tolist())


def _joins(event: Event, sign: str) -> bool:
    """Whether the text of an event joins others by a sign."""
    if isinstance(event, AtLeast) and len(event.events) == 1:
        return _joins(event.events[0], sign)
    return isinstance(event, AtLeast) and event.count == (1 if sign == "|" else len(event.events))


def _parts(event: Event, count: int | None) -> tuple[Event, ...]:
    """The events that a union (count 1) or an intersection (None) joins: those of one within another count singly."""
    if isinstance(event, AtLeast) and event.count == (len(event.events) if count is None else count):
        return event.events
    return (event,)


def _set(event: Event, **values: Any) -> None:
    vars(event).update(values)


def _count(value: int) -> int:
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise EventError(f"a number of times is {value!r}; give a whole number from 1")
    return int(value)


def _window(first: int, last: int) -> dict[str, int]:
    for time in (first, last):
        if isinstance(time, bool) or not isinstance(time, int | np.integer) or time < 0:
            raise EventError(f"a time of the event is {time!r}; give a whole number of steps from 0")
    if last < first:
        raise EventError(f"the event's window ends at {last}, before it begins at {first}; give both in order")
    return {"first": int(first), "last": int(last)}


def _named(states: States) -> str:
    return "state:" + (",".join(str(state) for state in states) or "none")


def _between(first: int, last: int) -> str:
    return f"at {first}" if first == last else f"between {first} and {last}"
