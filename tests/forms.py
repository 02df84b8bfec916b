"""The forms of a function that is compiled once it was called often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dphmm.compilation import Often, compiled


def forms_of(one: Often) -> list[Callable[..., Any]]:
    """The plain form, the loop uncompiled, and compiled where numba is installed."""
    return [one.plain, one.loop, *filter(None, [compiled(one.loop)])]
