"""Array types, conversions and checks of arrays.

Arrays of ``N`` states in ``d`` measured dimensions are ``(N, d)``; a constraint set is a boolean ``(N,)``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dphmm.errors import BudgetError, ConstraintError, CoordinateError, InvalidInputError, StochasticError
from dphmm.tolerances import MAX_SCALE, MIN_SCALE, NORMALISATION_TOLERANCE, PROBABILITY_TOLERANCE

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ArrayT = TypeVar("ArrayT")


def hash_content(*parts: npt.ArrayLike | None) -> str:
    """Return the SHA-256, in hexadecimal, of arrays, numbers and strings with their types.

    Equal values have equal hashes on every machine: numbers count as 64-bit little-endian integers or floats, and minus
    zero as zero. Shapes are included.
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
    """Convert times of any ``datetime64`` unit to ``datetime64[us]``. NaT stays NaT.

    Raises
    ------
    ValueError
        If microseconds since 1970 do not fit in 64 bits, some 290,000 years away. NumPy before 2.5 lets such times wrap
        around.
    """
    problem = "times must be before the year 290000"
    try:
        converted = times.astype("datetime64[us]")
    except OverflowError:
        raise ValueError(problem) from None
    coarser = np.datetime_data(times.dtype)[0] in ("Y", "M", "W", "D", "h", "m", "s", "ms")
    if coarser and ((converted.astype(times.dtype) != times) & ~np.isnat(times)).any():
        raise ValueError(problem)
    return converted


def copy_read_only(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return a read-only copy."""
    return make_read_only(np.array(values))


def make_read_only(array: ArrayT) -> ArrayT:
    """Make an array or a compressed sparse matrix read-only and return it, without a copy."""
    untyped: Any = array
    if isinstance(untyped, np.ndarray):
        untyped.setflags(write=False)
        return array
    for part in (untyped.data, untyped.indices, untyped.indptr):
        part.setflags(write=False)
    return array


def read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a contiguous read-only view or copy of an input of a compiled loop.

    numba compiles a loop again, for seconds, for arrays that differ in order or in being writable.
    """
    return make_read_only(np.ascontiguousarray(values).view())


def find_runs(mask: BoolArray) -> list[int]:
    """Return the first and the last index of each run of true entries, in one list.

    Examples
    --------
    >>> find_runs(np.array([True, True, False, True]))
    [0, 1, 3, 3]
    """
    ends = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    ends[1::2] -= 1
    return list(ends.tolist())


def check_epsilon(epsilon: float, name: str = "epsilon", limits: tuple[float, float] | None = None) -> float:
    """Return a privacy budget as a float after checking it.

    Raises
    ------
    BudgetError
        If it is not a positive, finite number, or outside the limits.
    """
    is_converted = isinstance(epsilon, str | bytes | bool | np.bool_)  # by `float`
    try:
        value = np.nan if is_converted else float(epsilon)
    except (TypeError, ValueError, OverflowError):
        value = np.nan
    low, high = limits or (0.0, np.inf)
    if not (np.isfinite(value) and value > 0 and low <= value <= high):
        requirement = f"in [{low:g}, {high:g}]" if limits else "a positive, finite number"
        raise BudgetError(f"{name} must be {requirement}, got {repr(epsilon) if is_converted else epsilon}")
    return value


def check_budget(epsilon: float, name: str = "epsilon") -> float:
    """Return the budget of noise as a float after checking it.

    Raises
    ------
    BudgetError
        If it is not a number from `MIN_SCALE` to `MAX_SCALE`.
    """
    return check_epsilon(epsilon, name, (MIN_SCALE, MAX_SCALE))


def as_floats(values: object, name: str, error: type[InvalidInputError] = InvalidInputError) -> FloatArray:
    """Convert numbers to a float array of their shape. A float array is returned itself.

    Raises
    ------
    InvalidInputError
        Or the subclass `error`, if they are not real numbers or do not form an array.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biufO" or np.ma.is_masked(values):  # NumPy would read what the mask hides
            raise TypeError(f"they are {'masked' if np.ma.is_masked(values) else array.dtype}")
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as problem:
        raise error(f"{name} must be an array of numbers: {problem!s:.120}") from None


def as_numbers(values: npt.ArrayLike, name: str, error: type[InvalidInputError]) -> FloatArray:
    """Convert numbers to a new float array. See `as_floats`."""
    return np.array(as_floats(values, name, error))


def as_integers(values: object, name: str, error: type[InvalidInputError] = InvalidInputError) -> IntArray:
    """Convert integers, or floats with integer values, to an integer array of their shape.

    Raises
    ------
    InvalidInputError
        Or the subclass `error`, if they are not integers, or exceed 64 bits.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind == "f":
            array = np.asarray(array, dtype=np.promote_types(array.dtype, np.float64))  # float16 has no 2^63
            if not ((np.abs(array) < 2**63) & (array == np.floor(array))).all():
                raise ValueError("one is not an integer of 64 bits")
        elif array.dtype.kind == "O" and array.size:
            if not all(abs(number) < 2**63 and int(number) == number for number in array.ravel().tolist()):
                raise ValueError("one is not an integer of 64 bits")
        elif array.dtype.kind not in "biuO" or (array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63):
            raise TypeError(f"they are {array.dtype}")
        return np.asarray(array, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as problem:
        raise error(f"{name} must be integers: {problem!s:.120}") from None


def as_points(values: npt.ArrayLike | Sequence[Any], name: str = "points") -> FloatArray:
    """Convert measurements to a finite float array of shape ``(n, d)``.

    Raises
    ------
    CoordinateError
        If the array is not two-dimensional, not numeric, has no columns, contains NaN or infinity, or its largest
        absolute value is above `MAX_SCALE` or positive and below `MIN_SCALE`.
    """
    points = np.ascontiguousarray(as_floats(values, name, CoordinateError))
    if points.ndim != 2 or points.shape[1] == 0:
        raise CoordinateError(f"{name} must have one row per point and at least one column, got shape {points.shape}")
    if not np.isfinite(points).all():
        row = int(np.flatnonzero(~np.isfinite(points).all(axis=1))[0])
        raise CoordinateError(f"{name} must be finite, got {points[row].tolist()} in row {row}")
    largest = float(np.abs(points).max(initial=0.0))
    if largest and not MIN_SCALE <= largest <= MAX_SCALE:
        raise CoordinateError(
            f"the largest absolute value of {name} must be in [{MIN_SCALE:g}, {MAX_SCALE:g}], got {largest:g}; use "
            "another unit"
        )
    return points


def as_constraint(constraint: npt.ArrayLike | None, size: int) -> BoolArray:
    """Convert a constraint set to a boolean array ``(size,)``. None means all states.

    Raises
    ------
    ConstraintError
        If the length is not ``size``, the values are not boolean, or no state is possible.
    """
    if constraint is None:
        return np.ones(size, dtype=np.bool_)
    try:
        mask = np.asarray(constraint)
    except ValueError:
        raise ConstraintError("constraint must have one boolean per state, got rows of different lengths") from None
    if mask.shape != (size,):
        raise ConstraintError(f"constraint must have shape ({size},), one entry per state, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise ConstraintError(f"constraint must be boolean, True for a possible state, got {mask.dtype}")
    if not mask.any():
        raise ConstraintError("constraint must contain at least one possible state")
    return mask


def as_distribution(values: npt.ArrayLike, size: int, name: str = "initial distribution") -> FloatArray:
    """Convert probabilities to a distribution over ``size`` states, normalised.

    Raises
    ------
    StochasticError
        If the length differs, a value is negative, not finite or not a number, or the sum differs from 1 by more than
        the tolerance.
    """
    probabilities = as_floats(values, name, StochasticError)
    if probabilities.shape != (size,):
        raise StochasticError(f"{name} must have one entry for each of {size} states, got shape {probabilities.shape}")
    if not np.isfinite(probabilities).all() or (probabilities < 0).any():
        bad = int(np.flatnonzero(~np.isfinite(probabilities) | (probabilities < 0))[0])
        raise StochasticError(
            f"{name} must be finite and non-negative probabilities, got {probabilities[bad]} in entry {bad}"
        )
    with np.errstate(over="ignore"):
        total = float(probabilities.sum())
    if not abs(total - 1.0) <= PROBABILITY_TOLERANCE:
        raise StochasticError(f"{name} must sum to 1, got {total:.12g}")
    return probabilities / (1.0 if abs(total - 1.0) <= NORMALISATION_TOLERANCE else total)
