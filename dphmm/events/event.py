"""Events as values: conditions on a whole path, such as a visit to a clinic this week.

A *step* is an index of the model's time grid, relative to the first release, as in `dphmm.release`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.errors import EventError
from dphmm.validation import NonNegativeInt, PositiveInt, check_arguments_as

# A set of states in ascending order, without repetition.
States = tuple[int, ...]


class Verdict(Enum):
    """The outcome of an event once it is decided."""

    NO = 0
    YES = 1


# The progress of an event without further state that is not decided yet.
UNDECIDED = None

# The progress of an event along a path: a verdict, or the state of its automaton.
Progress = Verdict | Hashable

# A predicate: whether the path is in a set of states at the current step.
Inside = Callable[[States], bool]


class Event(ABC):
    """A condition on a path ``s_0, s_1, …``, decided by its states at steps ``first .. last``.

    Steps are counted from 0, the first release. Events are values: they can be compared and hashed, and
    `dphmm.events.parse_event` parses their text. ``a | b``, ``a & b`` and ``~a`` are events, too.

    An event is a small automaton that reads a path from ``first`` to ``last``. `advance` maps one progress to the next
    and reaches a verdict at ``last`` at the latest.
    """

    first: int
    last: int

    @property
    def start(self) -> Progress:
        """The progress before ``first``."""
        return UNDECIDED

    @abstractmethod
    def sets(self, step: int) -> Iterable[States]:
        """Return the sets of states that `advance` may query at a step.

        Parameters
        ----------
        step
            A step of ``first .. last``.

        Returns
        -------
        Iterable of States
            Tuples of ascending state indices.
        """

    @abstractmethod
    def advance(self, progress: Progress, step: int, inside: Inside) -> Progress:
        """Return the progress after a step, given an undecided progress before it.

        Parameters
        ----------
        progress
            Progress before the step.
        step
            A step of ``first .. last``.
        inside
            Predicate of a set of `sets`: whether the path is in it at this step.

        Returns
        -------
        Progress
            Progress after the step; a `Verdict` at ``last`` at the latest.
        """

    @abstractmethod
    def step_signature(self, step: int) -> Hashable:
        """Return a value that is equal for steps at which `advance` acts alike.

        Parameters
        ----------
        step
            A step of ``first .. last``.

        Returns
        -------
        Hashable
            The signature.
        """

    def __or__(self, other: Event) -> Event:
        return AtLeast(1, (*_get_operands(self, 1), *_get_operands(other, 1)))

    def __and__(self, other: Event) -> Event:
        parts = (*_get_operands(self, None), *_get_operands(other, None))
        return AtLeast(len(parts), parts)

    def __invert__(self) -> Event:
        return self.event if isinstance(self, Not) else Not(self)


@check_arguments_as(EventError)
@dataclass(frozen=True)
class Times(Event):
    """The path is in given states at a minimum number of steps, or enters them as often.

    Parameters
    ----------
    states
        The states: integers, or a boolean array ``(N,)``.
    first, last
        First and last step of the window.
    min_count
        Minimum number of steps or entries, at least 1.
    visits
        Whether consecutive steps count once. Then entering counts, and so does being inside when the window begins.

    Raises
    ------
    EventError
        If a state or a step is not a non-negative integer, the window ends before it begins, or the count is not a
        positive integer.

    Examples
    --------
    >>> print(Times([2], 0, 9, 3), Times([2], 0, 9, 3, visits=True), sep=", ")
    state:2 at least 3 times between 0 and 9, state:2 at least 3 visits between 0 and 9
    """

    states: States
    first: int
    last: int
    min_count: int
    visits: bool = False

    def __init__(
        self,
        states: npt.ArrayLike,
        first: NonNegativeInt,
        last: NonNegativeInt,
        min_count: PositiveInt,
        visits: bool = False,
    ) -> None:
        _set_fields(
            self, states=as_states(states), **_check_window(first, last), min_count=int(min_count), visits=bool(visits)
        )

    @property
    def start(self) -> Progress:
        """The count 0, and not inside."""
        return (0, False)

    def sets(self, step: int) -> Iterable[States]:  # noqa: ARG002 - constant over time
        """Return the states."""
        return (self.states,)

    def step_signature(self, step: int) -> Hashable:
        """Return the number of remaining steps, truncated to where it can matter."""
        return min(self.last - step, 2 * self.min_count)

    def advance(self, progress: Progress, step: int, inside: Inside) -> Progress:
        """Return the updated count, or a verdict."""
        count, was_inside = progress  # type: ignore[misc]  # a pair while undecided
        is_inside = inside(self.states)
        count += is_inside and not (self.visits and was_inside)
        if count >= self.min_count:
            return Verdict.YES
        num_steps_left = self.last - step
        max_further = (num_steps_left + (not is_inside)) // 2 if self.visits else num_steps_left
        return Verdict.NO if count + max_further < self.min_count else (count, is_inside and self.visits)

    def __str__(self) -> str:
        unit = "visits" if self.visits else "times"
        return f"{_format_states(self.states)} at least {self.min_count} {unit} {_format_window(self.first, self.last)}"


@check_arguments_as(EventError)
@dataclass(frozen=True)
class Presence(Times):
    """The path is in one of the given states at some step of a window.

    Parameters
    ----------
    states
        The states: integers, or a boolean array ``(N,)``.
    first, last
        First and last step of the window.

    Raises
    ------
    EventError
        If a state or a step is not a non-negative integer, or the window ends before it begins.

    Examples
    --------
    >>> print(Presence([4, 2], 1, 2) | ~Presence([0], 3, 3))
    state:2,4 between 1 and 2 | !state:0 at 3
    """

    min_count: int = field(default=1, repr=False)
    visits: bool = field(default=False, repr=False)

    def __init__(self, states: npt.ArrayLike, first: NonNegativeInt, last: NonNegativeInt) -> None:
        super().__init__(states, first, last, 1)

    def __str__(self) -> str:
        return f"{_format_states(self.states)} {_format_window(self.first, self.last)}"


@check_arguments_as(EventError)
@dataclass(frozen=True)
class Pattern(Event):
    """The path is in given states at each of several consecutive steps.

    Parameters
    ----------
    sets
        The states at each step; see `Presence`.
    first
        First of the steps.

    Raises
    ------
    EventError
        If a state or a step is invalid, or there is no set.

    Examples
    --------
    >>> print(Pattern([[1], [2, 3]], first=1))
    state:1 then state:2,3 from 1
    """

    pattern: tuple[States, ...]
    first: int

    def __init__(self, sets: Sequence[npt.ArrayLike], first: NonNegativeInt) -> None:
        pattern = tuple(as_states(states) for states in sets)
        if not pattern:
            raise EventError("the pattern must contain the states of at least one step")
        _set_fields(self, pattern=pattern, first=int(first))

    @property
    def last(self) -> int:  # type: ignore[override]  # follows from the pattern
        """The step of the last set."""
        return self.first + len(self.pattern) - 1

    def sets(self, step: int) -> Iterable[States]:
        """Return the states of the step."""
        return (self.pattern[step - self.first],)

    def step_signature(self, step: int) -> Hashable:
        """Return the step itself: every step has its own states."""
        return step

    def advance(self, progress: Progress, step: int, inside: Inside) -> Progress:  # noqa: ARG002 - there is a single progress
        """Return a negative verdict as soon as the path is elsewhere."""
        if not inside(self.pattern[step - self.first]):
            return Verdict.NO
        return Verdict.YES if step == self.last else UNDECIDED

    def __str__(self) -> str:
        return f"{' then '.join(_format_states(states) for states in self.pattern)} from {self.first}"


@dataclass(frozen=True)
class Not(Event):
    """The complement of an event.

    Parameters
    ----------
    event
        The event that does not happen.
    """

    event: Event

    @property
    def first(self) -> int:  # type: ignore[override]  # that of the event
        """The first step of the event."""
        return self.event.first

    @property
    def last(self) -> int:  # type: ignore[override]  # that of the event
        """The step at which the event is decided at the latest."""
        return self.event.last

    @property
    def start(self) -> Progress:
        """The initial progress of the event."""
        return self.event.start

    def sets(self, step: int) -> Iterable[States]:
        """Return the sets of the event."""
        return self.event.sets(step)

    def step_signature(self, step: int) -> Hashable:
        """Return the signature of the event."""
        return self.event.step_signature(step)

    def advance(self, progress: Progress, step: int, inside: Inside) -> Progress:
        """Return the progress of the event with an inverted verdict."""
        advanced = self.event.advance(progress, step, inside)
        return Verdict(1 - advanced.value) if isinstance(advanced, Verdict) else advanced

    def __str__(self) -> str:
        return (
            f"!({self.event})"
            if _is_combined_by(self.event, "|") or _is_combined_by(self.event, "&")
            else f"!{self.event}"
        )


@check_arguments_as(EventError)
@dataclass(frozen=True)
class AtLeast(Event):
    """A minimum number of several events happen: one for a union, all for an intersection.

    The operators ``|`` and ``&`` create unions and intersections.

    Parameters
    ----------
    count
        Minimum number, from 1 to the number of events.
    events
        The events.

    Raises
    ------
    EventError
        If there is no event, or the count is out of range.

    Examples
    --------
    >>> print(AtLeast(2, [Presence([3], day, day) for day in range(3)]))
    2 of (state:3 at 0; state:3 at 1; state:3 at 2)
    """

    count: int
    events: tuple[Event, ...]

    def __init__(self, count: PositiveInt, events: Iterable[Event]) -> None:
        parts = tuple(events)
        _set_fields(self, count=int(count), events=parts)
        if not parts or count > len(parts):
            raise EventError(f"count must be from 1 to the number of events ({len(parts)}), got {count}")

    @cached_property
    def first(self) -> int:  # type: ignore[override]  # follows from the events
        """The first step of the earliest event."""
        return min(event.first for event in self.events)

    @cached_property
    def last(self) -> int:  # type: ignore[override]  # follows from the events
        """The step at which the last event is decided at the latest."""
        return max(event.last for event in self.events)

    @property
    def start(self) -> Progress:
        """No event has happened, and none is active."""
        return (0, ())

    @cached_property
    def _starting(self) -> dict[int, list[int]]:
        starting: dict[int, list[int]] = {}
        for index, event in enumerate(self.events):
            starting.setdefault(event.first, []).append(index)
        return starting

    @cached_property
    def _active(self) -> dict[int, list[int]]:
        active: dict[int, list[int]] = {}
        for index, event in enumerate(self.events):
            for step in range(event.first, event.last + 1):
                active.setdefault(step, []).append(index)
        return active

    @cached_property
    def _sorted_first_steps(self) -> npt.NDArray[np.int64]:
        """The first steps of the events in ascending order, for binary search."""
        return np.sort([event.first for event in self.events])

    def sets(self, step: int) -> Iterable[States]:
        """Return the sets of all active events."""
        return {states for index in self._active.get(step, ()) for states in self.events[index].sets(step)}

    def step_signature(self, step: int) -> Hashable:
        """Return the signatures of the active and the beginning events, and the number to come."""
        active = self._active.get(step, ())
        kinds = tuple((index, self.events[index].step_signature(step)) for index in active)
        return kinds, tuple(self._starting.get(step, ())), self._count_later_events(step)

    def _count_later_events(self, step: int) -> int:
        """Return the number of events that begin later."""
        return len(self.events) - int(np.searchsorted(self._sorted_first_steps, step, side="right"))

    def advance(self, progress: Progress, step: int, inside: Inside) -> Progress:
        """Advance every active event and count the decided ones."""
        count, active = progress  # type: ignore[misc]  # a pair while undecided
        undecided = []
        for index, event_progress in (
            *active,
            *((index, self.events[index].start) for index in self._starting.get(step, ())),
        ):
            advanced = self.events[index].advance(event_progress, step, inside)
            if advanced is Verdict.YES:
                count += 1
            elif advanced is not Verdict.NO:
                undecided.append((index, advanced))
        if count >= self.count:
            return Verdict.YES
        return (
            Verdict.NO
            if count + len(undecided) + self._count_later_events(step) < self.count
            else (count, tuple(undecided))
        )

    def __str__(self) -> str:
        if self.count == 1:
            return " | ".join(str(event) for event in self.events)
        if self.count == len(self.events):
            return " & ".join(f"({event})" if _is_combined_by(event, "|") else str(event) for event in self.events)
        return f"{self.count} of ({'; '.join(str(event) for event in self.events)})"


def as_states(states: npt.ArrayLike) -> States:
    """Return a set of states in ascending order, from integers or a boolean array ``(N,)``.

    Raises
    ------
    EventError
        If the argument is of another type, or contains negative integers.
    """
    values = np.asarray(states)
    if values.dtype == np.bool_ and values.ndim == 1:
        return tuple(np.flatnonzero(values).tolist())
    if values.size == 0:
        return ()
    if values.ndim > 1 or values.dtype.kind not in "iu" or values.min() < 0:
        raise EventError(
            f"states must be non-negative integers or a boolean for every state, got {values.tolist()!r:.60}"
        )
    return tuple(np.unique(values).tolist())


def _is_combined_by(event: Event, sign: str) -> bool:
    """Return whether the text of an event combines others by an operator."""
    if isinstance(event, AtLeast) and len(event.events) == 1:
        return _is_combined_by(event.events[0], sign)
    return isinstance(event, AtLeast) and event.count == (1 if sign == "|" else len(event.events))


def _get_operands(event: Event, count: int | None) -> tuple[Event, ...]:
    """Return the operands of a union (count 1) or an intersection (count None).

    A nested event of the same type is replaced by its operands.
    """
    if isinstance(event, AtLeast) and event.count == (len(event.events) if count is None else count):
        return event.events
    return (event,)


def _set_fields(event: Event, **values: Any) -> None:
    vars(event).update(values)


def _check_window(first: int, last: int) -> dict[str, int]:
    if last < first:
        raise EventError(f"the last step of a window must not precede its first step {first}, got {last}")
    return {"first": int(first), "last": int(last)}


def _format_states(states: States) -> str:
    return "state:" + (",".join(str(state) for state in states) or "none")


def _format_window(first: int, last: int) -> str:
    return f"at {first}" if first == last else f"between {first} and {last}"
