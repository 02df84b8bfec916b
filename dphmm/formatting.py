"""Export of results as plain values, and numbers in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from math import ceil, exp, inf, isfinite
from pathlib import Path
from typing import Any

# Above this level a factor of e^level, which exceeds a million, is reported as no meaningful limit.
_MAX_MEANINGFUL_LEVEL = 14.0
# The relative rounding error of a sum of budgets.
_RELATIVE_ROUNDING = 1e-12


def exported(name: str | None = None, scale: float = 1.0, as_state_names: bool = False) -> dict[str, Any]:
    """Return the metadata of a dataclass field that `export_fields` exports.

    Parameters
    ----------
    name
        Exported name. Defaults to the field's name.
    scale
        Factor of the number, such as 1000 for kilometres exported in metres.
    as_state_names
        Whether the numbers are states, which are exported by name.
    """
    return {"exported": name, "scale": scale, "as_state_names": as_state_names}


class Result:
    """A result: a frozen dataclass with exported fields and derived values."""

    def to_dict(self, *context: Any) -> dict[str, Any]:
        """Return the result as plain JSON values.

        Parameters
        ----------
        *context
            Names of all states, for results that contain states; then the epsilon, for results that depend on one.

        Returns
        -------
        dict
            Mapping from names to numbers, strings, booleans, None, and lists and dictionaries of them.
        """
        return export_fields(self, *context, **self._derive_fields(*context))

    def _derive_fields(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return values derived from the fields, by name. Subclasses override this."""
        return {}


def export_fields(result: Any, *context: Any, **derived: Any) -> dict[str, Any]:
    """Return the exported fields of a dataclass, in order, as plain JSON values.

    Parameters
    ----------
    result
        Dataclass with `exported` as the metadata of some fields.
    *context
        Arguments of the method ``to_dict`` of its values: with states, the names of all states first.
    **derived
        Additional values, which follow.

    Examples
    --------
    >>> from dataclasses import dataclass, field
    >>> @dataclass
    ... class Error:
    ...     users: int = field(metadata=exported())
    ...     error: float = field(metadata=exported("error_m", scale=1000))
    >>> export_fields(Error(3, 0.25))
    {'users': 3, 'error_m': 250.0}
    """
    values = {}
    for field_ in fields(result):
        if "exported" in field_.metadata:
            value = getattr(result, field_.name)
            scale = field_.metadata["scale"]
            value = name_states(value, context[0]) if field_.metadata["as_state_names"] else value
            values[field_.metadata["exported"] or field_.name] = (
                value if scale == 1.0 or value is None else scale * value
            )
    return {name: as_plain(value, *context) for name, value in {**values, **derived}.items()}


def name_states(states: Any, names: Sequence[str]) -> Any:
    """Return the name of a state, or the names of states in nested lists."""
    if isinstance(states, Iterable):
        return [name_states(state, names) for state in states]
    return names[states]


def as_plain(value: Any, *context: Any) -> Any:
    """Convert a value to plain JSON values.

    Results become dictionaries, fractions and paths strings, and infinity and NaN None.

    Parameters
    ----------
    value
        The value.
    *context
        Arguments of the method ``to_dict`` of results.
    """
    if hasattr(value, "tolist"):  # numbers and arrays of numpy
        value = value.tolist()
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Fraction):
        return format_fraction(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {name: as_plain(item, *context) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item, *context) for item in value]
    return value.to_dict(*context) if hasattr(value, "to_dict") else value


def format_fraction(value: Fraction) -> str:
    """Format a fraction exactly, as a decimal of at most 28 digits or else as a quotient.

    Examples
    --------
    >>> format_fraction(Fraction(1197, 10000)), format_fraction(Fraction(1, 3)), format_fraction(Fraction(20))
    ('0.1197', '1/3', '20')
    """
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)


def format_kilometres(kilometres: float) -> str:
    """Format a length in kilometres with a suitable unit.

    Examples
    --------
    >>> format_kilometres(0.3704), format_kilometres(5.72), format_kilometres(1e-9), format_kilometres(1754.0)
    ('370 m', '5.72 km', 'below 1 m', '1,754 km')
    """
    if kilometres < 0.001:
        return "below 1 m"
    if kilometres < 0.9995:
        return f"{1000 * kilometres:.3g} m"
    return f"{kilometres:.3g} km" if kilometres < 999.5 else f"{kilometres:,.0f} km"


def format_odds(probability: float) -> str:
    """Format a probability as odds.

    Examples
    --------
    >>> format_odds(0.75), format_odds(0.2), format_odds(1.0)
    ('3 to 1', '1 to 4', 'beyond a million to 1')
    """
    if probability >= 1.0 - 1e-6:
        return "beyond a million to 1"
    odds = probability / (1.0 - probability)
    return f"{odds:,.3g} to 1" if odds >= 1 else f"1 to {1 / odds:,.3g}"


def describe_ratio_bound(level: float) -> str:
    """Format the bound e^level on a likelihood ratio, rounded up to three figures.

    Examples
    --------
    >>> describe_ratio_bound(1.0), describe_ratio_bound(4.5), describe_ratio_bound(24.0)
    ('≤ 2.72', '≤ 90.1', '≤ e^24 (no meaningful limit)')
    """
    if level == inf:
        return "unbounded: it can exclude a location"
    return f"≤ {format_ratio_bound(level)}{' (no meaningful limit)' if level > _MAX_MEANINGFUL_LEVEL else ''}"


def format_power_of_e(level: float) -> str:
    """Format an upper bound as a power of e, with the exponent rounded up to four figures.

    Examples
    --------
    >>> format_power_of_e(242.41), format_power_of_e(0.3 * 285), format_power_of_e(12345.6)
    ('e^242.5', 'e^85.5', 'e^12,350')
    """
    return f"e^{_round_up(level, 4).normalize():,f}"


def format_upper_bound(value: float, separator: str = "") -> str:
    """Format an upper bound, rounded up to six figures, with a separator of thousands.

    Examples
    --------
    >>> format_upper_bound(0.6459001), format_upper_bound(0.1 + 0.2)
    ('0.645901', '0.3')
    >>> format_upper_bound(inf), format_upper_bound(3516.4801, ",")
    ('inf', '3,516.49')
    """
    return f"{float(_round_up(value, 6)):{separator}.6g}"


def format_lower_bound(value: float) -> str:
    """Format a lower bound, or the largest value within a target, rounded down to six figures.

    Examples
    --------
    >>> format_lower_bound(0.6459009), format_lower_bound(0.7 + 0.1), format_lower_bound(inf)
    ('0.6459', '0.8', 'inf')
    """
    return f"{float(_round(value, 6, ROUND_FLOOR)):.6g}"


def _round_up(value: float, figures: int) -> Decimal:
    return _round(value, figures, ROUND_CEILING)


def _round(value: float, figures: int, direction: str) -> Decimal:
    """Round up or down, except for the rounding error of a sum of budgets."""
    exempt = -_RELATIVE_ROUNDING if direction == ROUND_CEILING else _RELATIVE_ROUNDING
    return Context(prec=figures, rounding=direction).create_decimal(repr(float(value) * (1.0 + exempt)))


def void_guarantees_if_seeded(guarantees: Mapping[str, str], is_private: bool) -> dict[str, str]:
    """Return the source of randomness and the guarantees, which are void for seeded noise."""
    if is_private:
        return {"randomness": "system", **guarantees}
    return {"randomness": "seeded", **dict.fromkeys(guarantees, "none: the noise is seeded and can be reproduced")}


def format_ratio_bound(level: float) -> str:
    """Format a likelihood ratio of at most ``exp(level)``, rounded up to three or more digits.

    Examples
    --------
    >>> format_ratio_bound(1.0), format_ratio_bound(4.5), format_ratio_bound(7.24), format_ratio_bound(730.0)
    ('2.72', '90.1', '1,395', 'e^730')
    """
    if level > _MAX_MEANINGFUL_LEVEL:
        return "unbounded" if level == inf else format_power_of_e(level)
    factor = exp(level)
    if factor >= 100:
        return f"{ceil(factor):,}"
    scale = 100 if factor < 10 else 10
    return f"{ceil(factor * scale) / scale:g}"


def compute_ratio_bound(level: float) -> float | None:
    """Return ``exp(level)``, rounded up. None if it exceeds a double.

    Examples
    --------
    >>> compute_ratio_bound(1.0), compute_ratio_bound(7.24), compute_ratio_bound(730.0)
    (2.72, 1395.0, None)
    """
    if level > _MAX_MEANINGFUL_LEVEL:
        return None if level > 700.0 else float(ceil(exp(level)))
    return float(format_ratio_bound(level).replace(",", ""))


def export_likelihood_ratios(levels: Mapping[str, float], is_private: bool) -> dict[str, Any]:
    """Return the bounds on likelihood ratios as JSON values, and the source of the noise.

    Parameters
    ----------
    levels
        The logarithms of the bounds: ``release``, the largest budget of a release; ``release_any_states``, the largest
        constrained-DP level of one (Theorem 6.3); ``total``, the sum of the budgets of a user (Theorem 7.1).
    is_private
        Whether the noise came from the operating system. Otherwise there are no bounds.

    Examples
    --------
    >>> export_likelihood_ratios({"release": 1.0, "total": 3.0}, True)
    {'randomness': 'system', 'likelihood_ratio_release': 2.72, 'likelihood_ratio_total': 20.1}
    """
    ratios = {f"likelihood_ratio_{name}": compute_ratio_bound(level) for name, level in levels.items()}
    return {
        "randomness": "system" if is_private else "seeded",
        **(ratios if is_private else dict.fromkeys(ratios)),
    }


def describe_likelihood_ratio(level: float, condition: str, alternative: str, note: str = "") -> str:
    """Return *at most N times as likely* for two conditions, and mark a useless bound.

    Parameters
    ----------
    level
        The logarithm of the bound.
    condition, alternative
        The two conditions, each with its preposition.
    note
        Text for parentheses, such as the level.

    Examples
    --------
    >>> describe_likelihood_ratio(3.0, "under one", "under the other", "ε = 3")
    'at most 20.1 times as likely under one as under the other (ε = 3)'
    >>> describe_likelihood_ratio(30.0, "from one", "from the other")
    'at most e^30 times as likely from one as from the other, which is not a meaningful limit'
    """
    noted = f" ({note})" if note else ""
    if level == inf:
        return f"possible {condition} and impossible {alternative}{noted}"
    useless = ", which is not a meaningful limit" if level > _MAX_MEANINGFUL_LEVEL else ""
    return f"at most {format_ratio_bound(level)} times as likely {condition} as {alternative}{noted}{useless}"


def format_duration(seconds: float) -> str:
    """Format a duration for use after *any*, in the largest unit of which it is a multiple.

    Examples
    --------
    >>> [format_duration(seconds) for seconds in (86400, 3600, 5400, 604800, 1, 0.5, 129600)]
    ['24 hours', 'hour', '90 minutes', '7 days', 'second', '0.5 seconds', '36 hours']
    """
    units = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0))
    # One day is '24 hours', because a window need not begin at midnight.
    fitting = (
        (name, seconds / size) for name, size in units if seconds % size == 0 and (name, seconds) != ("day", size)
    )
    name, count = next(fitting, ("second", seconds))
    return name if count == 1 else f"{count:,.6g} {name}s"


def format_percent(probability: float) -> str:
    """Format a probability in percent with one decimal, rounded up.

    Examples
    --------
    >>> format_percent(0.31042), format_percent(0.5), format_percent(0.99999)
    ('31.1 %', '50 %', '100 %')
    """
    return f"{ceil(round(1000.0 * probability, 6)) / 10:g} %"
