"""Lengths in the texts of policies: ``500m``, ``1km``."""

from __future__ import annotations

import math
import re

from dphmm.errors import PolicyError
from dphmm.tolerances import RELATIVE_TOLERANCE

_LENGTH = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(km|m)")
_KM_PER_UNIT = {"km": 1.0, "m": 0.001}


def parse_length(text: str) -> float:
    """Parse a length with its unit, ``500m`` or ``1km``, to kilometres.

    Raises
    ------
    PolicyError
        If the text is not a length.
    """
    matched = _LENGTH.fullmatch(text.strip())
    value = float(matched[1]) * _KM_PER_UNIT[matched[2]] if matched else math.nan
    if not math.isfinite(value):
        raise PolicyError(f"a length in a policy must have a unit, such as 1km or 500m, got {text!r}")
    return value


def format_policy_length(kilometres: float) -> str:
    """Format a length for the text of a policy, with three digits, rounded up.

    Examples
    --------
    >>> [format_policy_length(length) for length in (0.5, 0.34000000000001, 13.2345, 0.0000123, 2.0)]
    ['500m', '340m', '13.3km', '0.0123m', '2km']
    """
    value, unit = (kilometres, "km") if kilometres >= 1 else (kilometres * 1000, "m")
    if value == 0:
        return "0m"
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / step * (1 - RELATIVE_TOLERANCE)) * step:.6g}{unit}"
