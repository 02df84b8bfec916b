"""Arrays of integers in which nothing is rounded and nothing overflows."""

from __future__ import annotations

from fractions import Fraction
from math import factorial, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

_INT64_LIMIT = 2**62
"""Products that stay below this are computed in 64 bits, larger ones with Python's integers."""

_FEW = 64
"""Python looks through so many numbers in less time than numpy twice."""


def exact_product(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The matrix product of integer arrays, in 64 bits where nothing can overflow, otherwise with Python's integers."""
    bound = left.shape[-1] * max(1, largest(left)) * max(1, largest(right))
    dtype = np.int64 if bound < _INT64_LIMIT else object
    return np.asarray(left.astype(dtype, copy=False) @ right.astype(dtype, copy=False))


def exact_determinants(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The determinants ``(n,)`` of small integer matrices ``(n, k, k)``, by expansion along the first row."""
    size = matrices.shape[-1]
    bound = factorial(size) * max(1, largest(matrices)) ** size
    whole = matrices.astype(np.int64 if bound < _INT64_LIMIT else object, copy=False)
    return _expanded(whole)


def _expanded(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    size = matrices.shape[-1]
    if size == 0:
        return np.ones(len(matrices), dtype=matrices.dtype)
    parts = [
        (-1) ** column * matrices[:, 0, column] * _expanded(np.delete(matrices[:, 1:], column, axis=2))
        for column in range(size)
    ]
    return np.asarray(sum(parts))


def largest(values: npt.NDArray[Any]) -> int:
    """The largest absolute value in an array of integers; zero in an empty one."""
    if values.size <= _FEW:
        return max(map(abs, values.ravel().tolist()), default=0)
    return max(abs(int(values.min())), abs(int(values.max())))


def common_denominator(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    """Rational entries as integers (of Python, in the same shape) over their least common denominator."""
    entries = [Fraction(x) for x in values.ravel().tolist()]
    denominator = lcm(*(x.denominator for x in entries))
    whole = np.array([int(x * denominator) for x in entries], dtype=object)
    return whole.reshape(values.shape), denominator
