"""Validity and accuracy of fixes: one rule for files, streams and the relay.

A device marks a fix without a position by an accuracy of -1, by ``valid=false``, or by the location (0, 0). Such fixes
are refused, and so are fixes that are too inaccurate to be a location. Of the remaining fixes of a timestep the most
accurate one is used. A fix without a stated accuracy ranks as one of `UNSTATED_ACCURACY_M`: it is replaced by a fix
with a stated accuracy of at most that, and is used if there is no other fix. An accuracy of 0 counts as unstated,
because devices send it if they do not know the accuracy.
"""

from __future__ import annotations

from math import inf
from typing import Any, Protocol

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.tables.values import parse_number, with_decimal_point

# The accuracy radius, in metres, as which a fix without a stated accuracy ranks.
UNSTATED_ACCURACY_M = 100.0

# The smallest accuracy radius, in metres, with which a fix is refused; a relay can set another one.
MAX_ACCURACY_M = 1000.0

MARKED_INVALID = "marked as invalid by the device"
NEGATIVE_ACCURACY = "accuracy is negative, which marks an invalid fix"
ZERO_LOCATION = "at latitude 0, longitude 0, which devices send without a position"
INACCURATE = "accuracy radius is too large"

# The reasons of `find_refused`, by their number. The first three are those of invalid fixes.
REASONS = (MARKED_INVALID, NEGATIVE_ACCURACY, ZERO_LOCATION, INACCURATE)

# The distance of a state from (0, 0), in degrees along each axis, at which it counts as the state of that location.
_MAX_DEGREES = 1.0

_NEGATIONS = frozenset({"false", "f", "0", "no", "n", "invalid", "v", "0.0"})


class Region(Protocol):
    """A set of locations, such as a state space."""

    def locate(self, latitude: FloatArray, longitude: FloatArray) -> IntArray:
        """Return a negative number for locations outside."""


def find_refused(
    latitude: FloatArray,
    longitude: FloatArray,
    accuracy_m: FloatArray | None = None,
    is_valid: np.ndarray | None = None,
    region: Region | None = None,
    max_accuracy_m: float = MAX_ACCURACY_M,
) -> IntArray:
    """Return for each fix the number of the reason for which it is refused, -1 for none.

    Parameters
    ----------
    latitude, longitude
        ``(n,)`` each, degrees.
    accuracy_m
        ``(n,)``: accuracy radius in metres; NaN or 0 if unstated. None if none is stated.
    is_valid
        ``(n,)``: whether the device considers the fix valid. None if it does not state that.
    region
        The region of the model. A location of exactly (0, 0) is refused unless the region contains it.
    max_accuracy_m
        The smallest accuracy radius with which a fix is refused; infinity for no limit.

    Returns
    -------
    IntArray
        ``(n,)``: an index of `REASONS`, or -1.

    Examples
    --------
    >>> latitude, longitude = np.array([45.0, 45.0, 0.0, 45.0]), np.array([7.0, 7.0, 0.0, 7.0])
    >>> find_refused(latitude, longitude, np.array([5.0, -1.0, np.nan, 55_000])).tolist()
    [-1, 1, 2, 3]
    """
    reason = np.full(len(latitude), -1, dtype=np.int64)
    if accuracy_m is not None:
        reason[(accuracy_m >= max_accuracy_m) & (max_accuracy_m < inf)] = REASONS.index(INACCURATE)
    zero = np.flatnonzero((latitude == 0.0) & (longitude == 0.0))
    if len(zero) and not _contains_zero(region):
        reason[zero] = REASONS.index(ZERO_LOCATION)
    if accuracy_m is not None:
        reason[accuracy_m < 0] = REASONS.index(NEGATIVE_ACCURACY)
    if is_valid is not None:
        reason[~is_valid] = REASONS.index(MARKED_INVALID)
    return reason


def _contains_zero(region: Region | None) -> bool:
    """Return whether a region contains the location (0, 0)."""
    state = -1 if region is None else int(region.locate(np.zeros(1), np.zeros(1))[0])
    if region is None or state < 0:
        return False
    # Named places may take fixes at any distance. A place on the other side of the Earth is not evidence.
    locate_states = getattr(region, "latlon", None)
    return locate_states is None or bool((np.abs(locate_states([state])) <= _MAX_DEGREES).all())


def select_most_accurate(slots: IntArray, accuracy_m: FloatArray | None = None) -> IntArray:
    """Return the index of the most accurate fix of each slot, in order of the slots.

    Parameters
    ----------
    slots
        ``(n,)``: the timestep, or the timestamp, of each fix.
    accuracy_m
        ``(n,)``: accuracy radius in metres; NaN or 0 if unstated. None if none is stated.

    Returns
    -------
    IntArray
        ``(k,)``: one index for each distinct slot. Of equally accurate fixes it is the last.

    Examples
    --------
    >>> select_most_accurate(np.array([2, 1, 1, 1]), np.array([9.0, 5.0, 100.0, np.nan])).tolist()
    [1, 0]
    """
    if accuracy_m is None:
        rank = np.zeros(len(slots))
    else:
        # Just above the constant, so that a stated accuracy of that wins. NaN compares false.
        rank = np.where(accuracy_m > 0, accuracy_m, np.nextafter(UNSTATED_ACCURACY_M, inf))
    order = np.lexsort((-np.arange(len(slots)), rank, slots))
    ordered = slots[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(slots)]
    return np.asarray(order[is_first])


def parse_accuracy(value: Any) -> float:
    """Parse an accuracy radius in metres. NaN if it is missing or not a number.

    Examples
    --------
    >>> parse_accuracy("8,5"), parse_accuracy(-1), parse_accuracy(None), parse_accuracy("%ACC")
    (8.5, -1.0, nan, nan)
    """
    if value is None or isinstance(value, bool):
        return float("nan")
    try:
        return float(parse_number(with_decimal_point(value), "an accuracy"))
    except (ValueError, TypeError, OverflowError):
        return float("nan")


def parse_validity(value: Any) -> bool:
    """Parse whether a fix is valid. Only a clear negation makes it invalid.

    Examples
    --------
    >>> parse_validity("FALSE"), parse_validity(0), parse_validity(None), parse_validity("yes")
    (False, False, True, True)
    """
    if value is None or value != value:  # NaN
        return True
    return str(value).strip().lower() not in _NEGATIONS
