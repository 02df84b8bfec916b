"""Repairs that know the total and nothing of how users move: what the others are measured against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_numbers
from dphmm.counts.stream import as_noisy, as_whole
from dphmm.errors import CountError


def least_squares(noisy: npt.ArrayLike, users: int, possible: BoolArray | None = None) -> FloatArray:
    """The nearest counts that are not negative and sum to the number of users.

    The Euclidean projection of each row on a scaled simplex (Hay et al., VLDB 2010, with the constraints of a fixed
    sum and of non-negativity): ``max(y - shift, 0)``, the shift found from the sorted row.

    Parameters
    ----------
    noisy
        ``(T, m)``.
    users
        What each row shall sum to.
    possible
        ``(T, m)`` booleans; the other places get zero. ``None``: every place is possible.

    Returns
    -------
    FloatArray
        ``(T, m)``.

    Raises
    ------
    CountError
        For counts or a number of users that make no sense, or a time at which no place is possible.
    """
    total = as_whole(users)
    stream = as_noisy(noisy)
    if possible is not None:
        chosen = as_numbers(possible, "possible", CountError) != 0
        if chosen.shape != stream.shape or not chosen.any(axis=1).all():
            raise CountError(f"possible has shape {chosen.shape}; give {stream.shape} booleans, one true for each time")
        stream = np.where(chosen, stream, -np.inf)
    ordered = -np.sort(-stream, axis=1)
    ranks = np.arange(1, stream.shape[1] + 1)
    finite = np.isfinite(ordered)
    shifts = (np.cumsum(np.where(finite, ordered, 0.0), axis=1) - total) / ranks
    kept = (finite & (ordered > shifts)).sum(axis=1)
    shift = np.take_along_axis(shifts, kept[:, None] - 1, axis=1)
    return np.maximum(stream - shift, 0.0)


def maximum_likelihood(noisy: npt.ArrayLike, users: int) -> FloatArray:
    """Counts of greatest Laplace likelihood among those that are not negative and sum to the number of users.

    The problem of Lee, Wang and Kifer (KDD 2015) for one fixed sum: minimise ``sum |y - r|``. Its optimum is a whole
    set: with ``y+ = max(y, 0)``, every ``r`` that sums to ``n`` and lies on one side of ``y+`` in all places (the
    least-squares repair is among them). Returned is the member in proportion to ``y+``, or the uniform one when
    no noisy count is positive.

    Parameters
    ----------
    noisy
        ``(T, m)``.
    users
        What each row shall sum to.

    Returns
    -------
    FloatArray
        ``(T, m)``.
    """
    total = as_whole(users)
    positive = np.maximum(as_noisy(noisy), 0.0)
    sums = positive.sum(axis=1, keepdims=True)
    positive = np.where(sums > 0, positive, 1.0)
    return np.asarray(positive * (total / positive.sum(axis=1, keepdims=True)))


def nearest_integers(counts: FloatArray, users: int, possible: BoolArray | None = None) -> IntArray:
    """The integer counts nearest to real ones that are not negative and sum to the number of users already.

    Largest remainders: round down, then give the missing units to the greatest fractional parts, which is the
    least-squares choice among all integer rows of that sum.

    Parameters
    ----------
    counts
        ``(T, m)``, rows that sum to ``users`` up to rounding.
    users
        The sum.
    possible
        ``(T, m)`` booleans; the other places stay zero. ``None``: every place is possible.
    """
    whole = np.floor(counts + 1e-9)
    remainder = counts - whole
    if possible is not None:
        remainder = np.where(possible, remainder, -np.inf)
    rank = np.argsort(np.argsort(-remainder, axis=1, kind="stable"), axis=1, kind="stable")
    missing = users - whole.sum(axis=1, keepdims=True)
    return np.asarray(whole + (rank < missing), dtype=np.int64)
