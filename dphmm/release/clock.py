"""The clock that counts time steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from dphmm.arrays import as_instants
from dphmm.errors import ConfigurationError, InvalidInputError, TimeOrderError
from dphmm.space.trajectory import microseconds
from dphmm.tables.values import shorten

Slot = int | datetime | np.datetime64
"""A time step: its number, or an instant within it."""

_FARTHEST_SLOT = 2**62


def slot_number(slot: Slot, step_seconds: float | None) -> int:
    """The number of a time step.

    Parameters
    ----------
    slot
        The number itself; or an instant, a `datetime` with a time zone or a `numpy.datetime64` in UTC. Steps are
        counted from 1970, and an instant belongs to the one at whose end it lies or that it lies within: the clock of
        `dphmm.space.Trajectory.resample`.
    step_seconds
        How long a step is; None where nobody says.

    Raises
    ------
    InvalidInputError
        When it is neither, has no time zone, or is out of range.
    ConfigurationError
        For an instant, when there is no length of a step.
    """
    if isinstance(slot, datetime | np.datetime64):
        if step_seconds is None:
            raise ConfigurationError("the model has no step_seconds, so instants mean no step; give slot numbers")
        return step_number(slot, step_seconds)
    if isinstance(slot, bool) or not isinstance(slot, int | np.integer) or abs(int(slot)) > _FARTHEST_SLOT:
        raise InvalidInputError(f"slot is {slot!r}; give a whole number or an instant")
    return int(slot)


def step_number(instant: datetime | np.datetime64, step_seconds: float) -> int:
    """The number of the time step that an instant belongs to: see `slot_number`."""
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise InvalidInputError(f"slot is {instant.isoformat()} without a time zone; add one, such as timezone.utc")
        since_1970 = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    elif not isinstance(instant, np.datetime64):
        raise InvalidInputError(f"slot is {shorten(instant)}; give a whole number or an instant")
    elif np.isnat(instant):
        raise InvalidInputError("slot is NaT; give a whole number or an instant")
    else:
        try:
            since_1970 = int(as_instants(np.asarray(instant)).astype(np.int64))
        except ValueError as problem:
            raise InvalidInputError(f"slot is {shorten(instant)}: {problem}") from None
    return -(-since_1970 // microseconds(step_seconds, "step"))


def check_order(slot: int, last: int | None) -> None:
    """Refuse a time step before the last one of which something was said (None where there is none yet).

    Raises
    ------
    TimeOrderError
        Naming both.
    """
    if last is not None and slot < last:
        raise TimeOrderError(f"slot {slot} lies before slot {last}, the last one answered; time does not go back")
