"""Audits as plain values for JSON: names for states, None for what is infinite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from dphmm.geometry.hull import SensitivityHull

LISTED = 1000
"""Per-state numbers are listed for at most this many states."""

Facts = dict[str, Any]


def finite(value: float) -> float | None:
    """The number, or None where it is infinite or not a number."""
    return float(value) if isfinite(value) else None


def named(states: Iterable[int], names: Sequence[str]) -> list[str]:
    """The names of states."""
    return [names[state] for state in states]


def hull_facts(hull: SensitivityHull) -> Facts:
    """A sensitivity hull."""
    return {"area": hull.volume, "dimension": hull.dimension, "vertices": hull.vertices.tolist()}
