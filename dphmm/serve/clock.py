"""The relay's clock, in whole seconds."""

from __future__ import annotations

import time
from math import ceil

clock = time.time  # replaceable in tests


def get_current_second() -> int:
    """Return the current time in whole seconds since 1970."""
    return int(clock())


def compute_end_of_second() -> int:
    """Return the present time, rounded up to whole seconds since 1970."""
    # Pauses are stored with whole seconds. A timestep that began within the present second touches the pause.
    return ceil(clock())
