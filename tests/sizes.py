"""Large sizes and additional parameters of tests, omitted from fast tests."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import settings


def mark_slow(*values: object) -> ParameterSet:
    """Values of one case."""
    return pytest.param(*values, marks=pytest.mark.slow)


def mark_rest_slow(values: Iterable[object], count: int) -> list[object]:
    """Parametrized cases, such as seeds: the first ``count`` are fast and the others slow."""
    cases = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*case) if place < count else mark_slow(*case) for place, case in enumerate(cases)]


def choose_count(count: int, fast_count: int) -> int:
    """The number of draws, users, rounds or examples: ``count``, or fewer in fast tests."""
    return fast_count if settings.get_current_profile_name() == "fast" else count
