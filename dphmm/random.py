"""Randomness: the source of all noise samples, and the ``rng`` arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from operator import index
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import InvalidInputError


class RandomSource:
    """A source of random bytes and of uniform numbers.

    Secure and seeded randomness use the same code, so that experiments exercise the production code.

    Parameters
    ----------
    read
        Function from a number of bytes to that many random bytes.
    """

    # Whether the source is a copy of a seeded one, which returns the same bytes.
    is_copy = False

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.bytes = read

    def __reduce__(self) -> tuple[Any, ...]:
        # The operating system's randomness has no state: its copy returns other bytes.
        return (as_random_source, ()) if self.bytes is os.urandom else (_copy_seeded, (self.bytes,))

    def sample_uniform(self, shape: int | tuple[int, ...]) -> FloatArray:
        """Sample independent numbers in the open interval (0, 1).

        Each is the centre of one of ``2**52`` equal intervals, so neither 0 nor 1 occurs.
        """
        words = np.frombuffer(self.bytes(8 * (shape if isinstance(shape, int) else prod(shape))), dtype=np.uint64)
        return (((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)


def _copy_seeded(read: Callable[[int], bytes]) -> RandomSource:
    source = RandomSource(read)
    source.is_copy = True
    return source


Rng = np.random.Generator | int | RandomSource | None


def derive_seed(rng: np.random.Generator | int) -> int:
    """Return the seed of the separate streams of users and settings.

    Parameters
    ----------
    rng
        A seed, which is returned unchanged, or a generator, from which one is sampled.

    Returns
    -------
    int
        Non-negative.

    Raises
    ------
    InvalidInputError
        If it is neither.
    """
    try:
        seed = int(rng.integers(2**63)) if isinstance(rng, np.random.Generator) else index(rng)
    except TypeError:
        seed = -1
    if seed < 0:
        raise InvalidInputError(
            f"rng must be a non-negative integer or a numpy.random.Generator, got {type(rng).__name__} {rng!s:.40}"
        )
    return seed


def as_random_source(rng: Rng = None) -> RandomSource:
    """Return the source of randomness for an ``rng`` argument.

    Parameters
    ----------
    rng
        None for the operating system's randomness (`os.urandom`), a `numpy.random.Generator` or a seed for a
        reproducible experiment (which is therefore not private), or an existing source.
    """
    if rng is None:
        return RandomSource(os.urandom)
    if isinstance(rng, RandomSource):
        return rng
    try:
        return RandomSource(np.random.default_rng(rng).bytes)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"rng must be a seed, a generator or None, got {type(rng).__name__} {rng!s:.40}"
        ) from None
