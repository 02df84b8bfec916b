"""Shape aliases, sources of randomness, and the one tolerance.

Arrays of ``N`` states in ``d`` measured dimensions are ``(N, d)``; a constraint is a boolean ``(N,)``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dphmm.errors import BudgetError, ConstraintError, CoordinateError, InvalidInputError, StochasticError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ArrayT = TypeVar("ArrayT")

RELATIVE_TOLERANCE = 1e-9
"""The one tolerance. A point counts as inside a convex body when its norm is at most ``1 + RELATIVE_TOLERANCE``.

It is used only where the input is not integer (or on a lattice): there, decisions are exact. What it can cost is
a factor ``1 + 1e-9`` on epsilon for a state that is called protected while it lies that little outside.
"""

SMALLEST, LARGEST = 1e-30, 1e30
"""Lengths and budgets of noise lie between these, so that no square, volume or ratio of them leaves a double."""

PROBABILITY_TOLERANCE = 1e-9
"""How far a sum of probabilities may be from one before it is refused."""

NORMALISED = 1e-12
"""Sums this near to one are not normalised again, so that what was normalised once stays the same to the last bit."""


def content_hash(*parts: npt.ArrayLike | None) -> str:
    """The SHA-256, in hexadecimal, of arrays, numbers and texts in order, each with its kind and shape.

    Equal values have equal hashes on every machine: numbers count as 64-bit little-endian integers or floats, and
    minus zero as zero.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = np.asarray("" if part is None else part)
        if data.dtype.kind == "U":
            encoded = "\n".join(data.ravel().tolist()).encode("utf-8")
        elif data.dtype.kind == "f":
            encoded = (data.astype("<f8") + 0.0).tobytes()
        else:
            encoded = data.astype("<i8").tobytes()
        digest.update(f"{'none' if part is None else data.dtype.kind}{data.shape}{len(encoded)}:".encode())
        digest.update(encoded)
    return digest.hexdigest()


def as_instants(times: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Times of any unit ``datetime64`` as ``datetime64[us]``, of the same shape; NaT stays NaT.

    Raises
    ------
    ValueError
        Where microseconds since 1970 do not fit in 64 bits, some 290,000 years away. NumPy before 2.5 lets such times
        wrap into ours.
    """
    problem = "a time lies beyond the year 290000"
    try:
        found = times.astype("datetime64[us]")
    except OverflowError:
        raise ValueError(problem) from None
    coarser = np.datetime_data(times.dtype)[0] in ("Y", "M", "W", "D", "h", "m", "s", "ms")
    if coarser and ((found.astype(times.dtype) != times) & ~np.isnat(times)).any():
        raise ValueError(problem)
    return found


class RandomSource:
    """Where random bytes come from, and the uniform numbers made of them.

    One path for both sources, so that an experiment exercises what production runs.

    Parameters
    ----------
    read
        A function from a number of bytes to that many random bytes.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.bytes = read

    def uniform(self, shape: int | tuple[int, ...]) -> FloatArray:
        """Independent numbers in the open interval (0, 1).

        Each is the middle of one of ``2**52`` equal steps, so neither 0 nor 1 occurs.
        """
        words = np.frombuffer(self.bytes(8 * (shape if isinstance(shape, int) else prod(shape))), dtype=np.uint64)
        return (((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)


Rng = np.random.Generator | int | RandomSource | None


def random_source(rng: Rng = None) -> RandomSource:
    """The source of randomness that an ``rng`` argument names.

    Parameters
    ----------
    rng
        ``None`` for the operating system's randomness (`os.urandom`), a `numpy.random.Generator` or a seed for an
        experiment that can be repeated (and is therefore not private), or a source that exists already.
    """
    if rng is None:
        return RandomSource(os.urandom)
    if isinstance(rng, RandomSource):
        return rng
    try:
        return RandomSource(np.random.default_rng(rng).bytes)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"rng is {type(rng).__name__} {rng!s:.40}; give a seed, a generator or nothing"
        ) from None


def frozen(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """A read-only copy: the caller's own array stays as it is, and what it does later does not show here."""
    return locked(np.array(values))


def locked(array: ArrayT) -> ArrayT:
    """The array itself, or scipy matrix of compressed rows or columns, made read-only: `frozen` without the copy."""
    held: Any = array
    if isinstance(held, np.ndarray):
        held.setflags(write=False)
        return array
    for part in (held.data, held.indices, held.indptr):
        part.setflags(write=False)
    return array


def runs(mask: BoolArray) -> list[int]:
    """The first and the last index of each run of true entries, one after another.

    Examples
    --------
    >>> runs(np.array([True, True, False, True]))
    [0, 1, 3, 3]
    """
    ends = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    ends[1::2] -= 1
    return list(ends.tolist())


def check_epsilon(epsilon: float, name: str = "epsilon") -> float:
    """The budget as a float, refused unless positive and finite.

    Raises
    ------
    BudgetError
        For zero, negative, infinite or NaN budgets, and for what is no number.
    """
    try:
        value = float(epsilon)
    except (TypeError, ValueError, OverflowError):
        value = np.nan
    if not (np.isfinite(value) and value > 0):
        raise BudgetError(f"{name} is {epsilon}; give a positive, finite number")
    return value


def check_budget(epsilon: float, name: str = "epsilon") -> float:
    """The budget of noise as a float, refused unless `check_epsilon` takes it and doubles can hold the noise.

    Raises
    ------
    BudgetError
        As `check_epsilon`, and below `SMALLEST` or above `LARGEST`.
    """
    value = check_epsilon(epsilon, name)
    if not SMALLEST <= value <= LARGEST:
        raise BudgetError(f"{name} is {epsilon}; give a number from {SMALLEST:g} to {LARGEST:g}")
    return value


def as_floats(values: object, name: str, error: type[InvalidInputError] = InvalidInputError) -> FloatArray:
    """Numbers as a float array of whatever shape they have; the array itself where it is one.

    Raises
    ------
    InvalidInputError
        Or the kind of it that is given, when they are not real numbers or make no array.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biufO":
            raise TypeError(f"they are {array.dtype}")
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as problem:
        raise error(f"{name} are not an array of numbers ({problem!s:.120}); give numbers") from None


def as_numbers(values: npt.ArrayLike, name: str, error: type[InvalidInputError]) -> FloatArray:
    """The same as an array of one's own."""
    return np.array(as_floats(values, name, error))


def as_integers(values: object, name: str, error: type[InvalidInputError] = InvalidInputError) -> IntArray:
    """Whole numbers as an integer array of whatever shape they have; floats count where they are whole.

    Raises
    ------
    InvalidInputError
        Or the kind of it that is given, when they are none, or beyond 64 bits.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind == "f":
            array = array.astype(np.promote_types(array.dtype, np.float64), copy=False)  # half ones do not hold 2^63
            if not ((np.abs(array) < 2**63) & (array == np.floor(array))).all():
                raise ValueError("one is not whole, or beyond 64 bits")
        elif array.dtype.kind == "O" and array.size:
            if not all(abs(one) < 2**63 and int(one) == one for one in array.ravel().tolist()):
                raise ValueError("one is not whole, or beyond 64 bits")
        elif array.dtype.kind not in "biuO" or (array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63):
            raise TypeError(f"they are {array.dtype}")
        return np.asarray(array, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as problem:
        raise error(f"{name} are not whole numbers ({problem!s:.120}); give integers") from None


def as_points(values: npt.ArrayLike | Sequence[Any], name: str = "points") -> FloatArray:
    """Measurements as a finite float array of shape ``(n, d)``.

    Raises
    ------
    CoordinateError
        When the array is not two-dimensional or not of numbers, has no columns, holds NaN or infinity, or has its
        largest number beyond `LARGEST` or, where that is not zero, below `SMALLEST`.
    """
    points = np.ascontiguousarray(as_floats(values, name, CoordinateError))
    if points.ndim != 2 or points.shape[1] == 0:
        raise CoordinateError(f"{name} has shape {points.shape}; give one row per point and at least one column")
    if not np.isfinite(points).all():
        row = int(np.flatnonzero(~np.isfinite(points).all(axis=1))[0])
        raise CoordinateError(f"{name}: row {row} is {points[row].tolist()}; coordinates must be finite")
    largest = float(np.abs(points).max(initial=0.0))
    if largest and not SMALLEST <= largest <= LARGEST:
        raise CoordinateError(
            f"{name} reach {largest:g}; choose a unit in which their largest number lies between {SMALLEST:g} and "
            f"{LARGEST:g}"
        )
    return points


def as_constraint(constraint: npt.ArrayLike | None, size: int) -> BoolArray:
    """A constraint set as a boolean array ``(size,)``; ``None`` means that every state is possible.

    Raises
    ------
    ConstraintError
        When the length is not ``size``, the values are not boolean, or no state is possible.
    """
    if constraint is None:
        return np.ones(size, dtype=np.bool_)
    try:
        mask = np.asarray(constraint)
    except ValueError:
        raise ConstraintError("constraint has rows of different lengths; give one boolean per state") from None
    if mask.shape != (size,):
        raise ConstraintError(f"constraint has shape {mask.shape}; there are {size} states, so give shape ({size},)")
    if mask.dtype != np.bool_:
        raise ConstraintError(f"constraint holds {mask.dtype} values; give booleans, true for a possible state")
    if not mask.any():
        raise ConstraintError("constraint is empty; at least one state must be possible")
    return mask


def as_distribution(values: npt.ArrayLike, size: int, name: str = "initial distribution") -> FloatArray:
    """A probability distribution over ``size`` states, renormalised within the tolerance.

    Raises
    ------
    StochasticError
        When the length differs, a value is negative, not finite or no number, or the sum is not one.
    """
    probabilities = as_floats(values, name, StochasticError)
    if probabilities.shape != (size,):
        raise StochasticError(f"{name} has shape {probabilities.shape}; there are {size} states")
    if not np.isfinite(probabilities).all() or (probabilities < 0).any():
        bad = int(np.flatnonzero(~np.isfinite(probabilities) | (probabilities < 0))[0])
        raise StochasticError(f"{name}: entry {bad} is {probabilities[bad]}; probabilities are finite and not negative")
    with np.errstate(over="ignore"):
        total = float(probabilities.sum())
    if not abs(total - 1.0) <= PROBABILITY_TOLERANCE:
        raise StochasticError(f"{name} sums to {total:.12g}; it must sum to 1")
    return probabilities / (1.0 if abs(total - 1.0) <= NORMALISED else total)
