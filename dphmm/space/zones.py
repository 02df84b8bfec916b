"""Time zones by name."""

from __future__ import annotations

import re
from datetime import UTC, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dphmm.errors import ConfigurationError
from dphmm.tables.values import shorten

_OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})")


@lru_cache(maxsize=64)
def time_zone(name: str) -> tzinfo:
    """A time zone by its name, or by an offset such as ``+08:00``.

    Raises
    ------
    ConfigurationError
        When it is unknown.
    """
    if name == "UTC":
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset and int(offset[2]) < 24 and int(offset[3]) < 60:
        away = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-away if offset[1] == "-" else away)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"time zone {shorten(name)} is unknown; give a name such as Europe/Berlin, or an offset such as +08:00 "
            "(where a system has no names: pip install tzdata)"
        ) from None
