"""Columns as the pages' scripts read them: whole numbers, as differences in as few bytes as they need, in base64.

A number takes seven bits a byte, the lowest first; the eighth says that more follow. Its sign is its lowest bit.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.errors import InvalidInputError

DEGREES = 1e-5
"""The step of latitudes and longitudes: about a metre."""
_LARGEST = 2**52
"""Beyond it a script's numbers are not whole."""


def coded_numbers(values: npt.ArrayLike, step: float = 1.0, brief: bool = True) -> dict[str, Any]:
    """A column ``(n,)`` of numbers, rounded to multiples of a step.

    Parameters
    ----------
    values
        The numbers; NaN where there is none.
    step
        Of what they are multiples.
    brief
        Whether a number that all rows have is told once.

    Returns
    -------
    dict
        ``step``; ``all`` where the rows are equal, as that number of steps, otherwise ``code``; where some are NaN,
        ``gaps``: how many rows have a value, how many then have none, and so on, coded like the rest. The code leaves
        out the rows that have none.

    Raises
    ------
    InvalidInputError
        When a number is infinite, or more than 2**52 steps.
    """
    given = np.asarray(values, dtype=np.float64).ravel()
    known = ~np.isnan(given)
    with np.errstate(over="ignore"):
        steps = np.round(given[known] / step)
    if not (np.abs(steps) <= _LARGEST).all():
        raise InvalidInputError("a number of the map is not finite or too large; leave it out")
    whole = steps.astype(np.int64)
    told: dict[str, Any] = {"step": step}
    if not known.all():
        turns = np.flatnonzero(np.diff(np.concatenate([[True], known, [not known[-1]]]).astype(np.int8)))
        told["gaps"] = _code(np.diff(turns, prepend=0))
    if brief and len(whole) and (whole == whole[0]).all():
        return {**told, "all": int(whole[0])}
    return {**told, "code": _code(whole)}


def coded_texts(texts: npt.ArrayLike) -> dict[str, Any]:
    """A column ``(n,)`` of texts: ``words``, each once, and which one every row has, as `coded_numbers` has it."""
    words, rows = np.unique(np.asarray(texts, dtype=np.str_), return_inverse=True)
    return {"words": words.tolist(), "rows": coded_numbers(rows)}


def coded_lines(lines: Any) -> dict[str, Any]:
    """Lines or rings, each ``(k, 2)`` latitudes and longitudes: how long each is, and their points one after another.

    Raises
    ------
    InvalidInputError
        When one is no such array, or a number is not finite.
    """
    arrays = [np.asarray(line, dtype=np.float64) for line in lines]
    if any(array.ndim != 2 or array.shape[1] != 2 for array in arrays):
        raise InvalidInputError("a line of the map is no array of latitudes and longitudes; give two columns")
    points = np.concatenate(arrays) if arrays else np.zeros((0, 2))
    if np.isnan(points).any():
        raise InvalidInputError("a point of the map is not finite; leave it out")
    return {
        "n": len(arrays),
        "points": len(points),
        "lengths": coded_numbers([len(array) for array in arrays]),
        "latitude": coded_numbers(points[:, 0], DEGREES),
        "longitude": coded_numbers(points[:, 1], DEGREES),
    }


def _code(whole: npt.NDArray[np.int64]) -> str:
    """The differences of whole numbers in base64."""
    moves = np.diff(whole, prepend=np.int64(0))
    left = ((moves << 1) ^ (moves >> 63)).astype(np.uint64)
    bytes_needed = np.ones(len(left), dtype=np.int64)
    for power in range(1, 9):
        bytes_needed += left >= np.uint64(1 << (7 * power))
    ends = np.cumsum(bytes_needed)
    written = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    starts = ends - bytes_needed
    for place in range(int(bytes_needed.max(initial=0))):
        rows = np.flatnonzero(bytes_needed > place)
        part = (left[rows] >> np.uint64(7 * place)) & np.uint64(127)
        more = (bytes_needed[rows] > place + 1).astype(np.uint64) << np.uint64(7)
        written[starts[rows] + place] = (part | more).astype(np.uint8)
    return base64.b64encode(written.tobytes()).decode("ascii")
