"""Parameters at which a test repeats at size what it holds at others: tried with all tests, and not every day."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet


def slow(*values: object) -> ParameterSet:
    """Values of one case."""
    return pytest.param(*values, marks=pytest.mark.slow)


def few_every_day(values: Iterable[object], count: int) -> list[object]:
    """Of cases, such as seeds or tuples of several parameters, the first as they are and the others slow."""
    cases = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*case) if place < count else slow(*case) for place, case in enumerate(cases)]
