"""Sizes and parameters at which a test repeats what it holds at others: tried with all tests, and not every day."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import settings


def slow(*values: object) -> ParameterSet:
    """Values of one case."""
    return pytest.param(*values, marks=pytest.mark.slow)


def few_every_day(values: Iterable[object], count: int) -> list[object]:
    """Of cases, such as seeds or tuples of several parameters, the first as they are and the others slow."""
    cases = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*case) if place < count else slow(*case) for place, case in enumerate(cases)]


def fewer(count: int, every_day: int) -> int:
    """How many draws, people, rounds or examples: with all tests the count, and fewer every day."""
    return every_day if settings.get_current_profile_name() == "every day" else count
