"""Parameters at which a test repeats at size what it holds at others: tried with all tests, and not every day."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet


def slow(*values: object) -> ParameterSet:
    """Values of one case."""
    return pytest.param(*values, marks=pytest.mark.slow)


def few_every_day(values: Iterable[object], count: int) -> list[object]:
    """Cases of one parameter, such as seeds: the first of them as they are, the others slow."""
    return [value if place < count else slow(value) for place, value in enumerate(values)]
