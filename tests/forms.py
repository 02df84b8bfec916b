"""The forms of a function compiled after many calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dphmm.compilation import HotFunction, compile_function


def list_forms(function: HotFunction) -> list[Callable[..., Any]]:
    """The plain form, the uncompiled loop, and the compiled loop if numba is installed."""
    return [function.plain, function.loop, *filter(None, [compile_function(function.loop)])]
