"""From people's trajectories to a population: everybody's state at every time, as count streams need it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, IntArray
from dphmm.counts import count_states
from dphmm.errors import ConfigurationError, CountError
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import Trajectory, microseconds

_DAY = 86_400_000_000
MOST_TIMES = 10_000_000
"""Over more times than this nobody is counted."""


@dataclass(frozen=True)
class Population:
    """Where each member of a population is at each time.

    Attributes
    ----------
    members
        ``n`` names: users, or ``user date`` for days.
    times
        ``(T,)`` ``datetime64[us]`` in UTC; for days, minutes after local midnight as integers.
    states
        ``(n, T)`` integers, every member somewhere at every time.
    seen
        ``(n, T)`` booleans: false where no fix of this time stands behind the state and the last one is held (before
        the first fix, the first one).
    size
        The number of places.
    """

    members: tuple[str, ...]
    times: npt.NDArray[Any]
    states: IntArray
    seen: BoolArray
    size: int

    @property
    def counts(self) -> IntArray:
        """``(T, m)``: how many members are in each place at each time."""
        return count_states(self.states, self.size)

    def part(self, chosen: Sequence[int] | BoolArray) -> Population:
        """Some of the members, by position.

        Raises
        ------
        CountError
            When nobody is chosen.
        """
        picked = np.arange(len(self.members))[np.asarray(chosen)]
        if picked.size == 0:
            raise CountError("nobody is chosen; a population has one member or more")
        names = tuple(self.members[at] for at in picked)
        return Population(names, self.times, self.states[picked], self.seen[picked], self.size)


def population(
    trajectories: Iterable[Trajectory],
    space: StateSpace,
    step_seconds: float,
    start: str | np.datetime64 | None = None,
    end: str | np.datetime64 | None = None,
) -> Population:
    """Everybody's states over one span of the clock.

    A person who is not seen within the space at a time is counted where they were last seen, and before their first
    fix where they are first seen; so the number of people is the same at all times, as the guarantee of
    `dphmm.counts.release` supposes.

    Parameters
    ----------
    trajectories
        One per person.
    space
        The places.
    step_seconds
        The step of the clock; see `Trajectory.resample`.
    start, end
        The first and the last time, UTC; left out, those of the data. People who are not seen within the space
        between them are no members.

    Raises
    ------
    CountError
        When nobody is seen within the space and the span.
    ConfigurationError
        For a step that is not positive and finite, or an end before the start.
    """
    step = microseconds(step_seconds, "step")
    tracks = [(one.user, *_seen(one, space, step_seconds)) for one in trajectories]
    known = np.concatenate([slots for _, slots, _ in tracks]) if tracks else np.zeros(0, dtype=np.int64)
    if known.size == 0:
        raise CountError("nobody is seen within the region; check the region and the data")
    first = int(known.min()) if start is None else -(-_micro(start, "start") // step)
    last = int(known.max()) if end is None else _micro(end, "end") // step
    if last < first:
        raise ConfigurationError(f"no time of the clock lies from {start} to {end}; give an end after the start")
    if last - first >= MOST_TIMES:
        raise ConfigurationError(
            f"the data reach over {last - first + 1:,} steps of {step_seconds:g} s, and {MOST_TIMES:,} are the most; "
            "say a shorter span with start and end, or take a longer step"
        )
    rows = []
    for user, slots, states in tracks:
        within = (slots >= first) & (slots <= last)
        if within.any():
            rows.append((user, slots[within] - first, states[within]))
    times = (np.arange(first, last + 1) * step).astype("datetime64[us]")
    return _assembled(rows, times, space.size)


def daily_population(
    trajectories: Iterable[Trajectory],
    space: StateSpace,
    step_seconds: float,
    hours: tuple[float, float] = (0.0, 24.0),
    utc_offset: float = 0.0,
    least_seen: float = 0.0,
) -> Population:
    """Every person's days laid over each other: a member is one day of one person.

    Parameters
    ----------
    trajectories, space, step_seconds
        As in `population`; the step must divide a day.
    hours
        From which to which local hour.
    utc_offset
        Hours by which local time is ahead of UTC.
    least_seen
        The share of the times, 0 to 1, at which a day's person must be seen within the space for the day to count.
        Days without any fix within the space never count.

    Notes
    -----
    A guarantee about one member is about one *day* of a person; who has several days in the data takes part in the
    counts several times.

    Raises
    ------
    CountError
        When no day is left.
    ConfigurationError
        For a step that does not divide a day, or hours, an offset or a share out of range.
    """
    step = microseconds(step_seconds, "step")
    low, high = (round(hour * _DAY / 24) for hour in hours)
    if _DAY % step or not 0 <= low < high <= _DAY or not -24 <= utc_offset <= 24 or not 0 <= least_seen <= 1:
        raise ConfigurationError(
            f"step {step_seconds} s, hours {hours}, offset {utc_offset}, share {least_seen}; give a step that divides "
            "a day, 0 <= from < to <= 24, an offset of -24 to 24 hours and a share of 0 to 1"
        )
    grid = np.arange(-(-low // step), -(-high // step))
    rows = []
    for one in trajectories:
        slots, states = _seen(one, space, step_seconds)
        local = slots * step + round(utc_offset * _DAY / 24)
        day, slot = local // _DAY, (local % _DAY) // step
        dates = np.unique(day)
        for date, shown in zip(dates.tolist(), np.datetime_as_string(dates.astype("datetime64[D]")), strict=True):
            of_day = (day == date) & (slot >= grid[0]) & (slot <= grid[-1])
            if of_day.any() and of_day.sum() >= least_seen * grid.size:
                name = f"{one.user} {shown}"
                rows.append((name, slot[of_day] - grid[0], states[of_day]))
    return _assembled(rows, grid * step // 60_000_000, space.size)


def _seen(one: Trajectory, space: StateSpace, step_seconds: float) -> tuple[IntArray, IntArray]:
    track = one.resample(step_seconds)
    states = space.locate(track.latitude, track.longitude)
    inside = states != OUTSIDE
    return track.slots[inside], states[inside]


def _micro(moment: str | np.datetime64, name: str) -> int:
    try:
        return int(np.array(moment, dtype="datetime64[us]").astype(np.int64))
    except ValueError:
        raise ConfigurationError(f"{name} is {moment!r}; give a UTC time such as 2009-10-11T14:00") from None


def _assembled(rows: list[tuple[str, IntArray, IntArray]], times: npt.NDArray[Any], size: int) -> Population:
    if not rows:
        raise CountError("nobody is seen within the region at these times; ask for other times or a larger region")
    seen = np.zeros((len(rows), len(times)), dtype=np.bool_)
    states = np.zeros((len(rows), len(times)), dtype=np.int64)
    for at, (_, slots, found) in enumerate(rows):
        seen[at, slots] = True
        held = np.maximum(np.searchsorted(slots, np.arange(len(times)), side="right") - 1, 0)
        states[at] = found[held]
    return Population(tuple(name for name, _, _ in rows), times, states, seen, size)
