"""What fields of dataclasses say of themselves: options of settings, facts of results; and numbers in words.

Options of commands and messages about wrong values are made of the former; see `dphmm.cli.inputs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from math import ceil, exp, inf, isfinite
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
"""Plain JSON values by name."""

_LIMITS_NOTHING = 14.0
"""A level from which on a factor of e^level, beyond a million, is said to limit nothing."""
_ROUNDING = 1e-12
"""By which share of itself a sum of budgets may be too large by rounding alone."""


@dataclass(frozen=True)
class Option:
    """What there is to know of a setting besides its name, its type and its default.

    Parameters
    ----------
    help
        One line for people.
    metavar
        What stands for a value in help, such as ``"KM"``.
    choices
        The texts that a value may be; none where it is no choice.
    heading
        Where help lists it; nothing for what is used every day.
    name
        The option's name where it differs from the field's.
    shows_default
        Whether help says the default.
    is_text
        Whether its option is a text with a unit, such as 500m or 8h, though the field is a number.
    """

    help: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    heading: str = ""
    name: str = ""
    shows_default: bool = False
    is_text: bool = False


def setting(default: Any, text: str, **about: Any) -> Any:
    """A field of a dataclass that is a setting.

    Parameters
    ----------
    default
        The default of the field; of an empty dictionary, each value gets its own.
    text
        One line for people.
    **about
        As `Option` takes it.
    """
    said = {"option": Option(text, **about)}
    return field(default_factory=dict, metadata=said) if default == {} else field(default=default, metadata=said)


def option_of(one: Field[Any]) -> Option | None:
    """What a field says of itself as a setting; None where it is none."""
    found: Option | None = one.metadata.get("option")
    return found


def fact(name: str | None = None, times: float = 1.0, states: bool = False) -> dict[str, Any]:
    """The metadata of a dataclass field that `facts_of` tells.

    Parameters
    ----------
    name
        The fact's name; left out, the field's.
    times
        What its number is multiplied by, such as 1000 for metres out of kilometres.
    states
        Whether its numbers are states, which are told by name.
    """
    return {"fact": name, "times": times, "states": states}


def facts_of(result: Any, *about: Any, **more: Any) -> dict[str, Any]:
    """The fields of a dataclass that are facts, in their order, as plain JSON values.

    Parameters
    ----------
    result
        A dataclass, some fields of which have `fact` as their metadata.
    *about
        What the method ``facts`` of values in it takes: where there are states, the names of all of them first.
    **more
        Other facts, which follow.

    Examples
    --------
    >>> from dataclasses import dataclass, field
    >>> @dataclass
    ... class Error:
    ...     people: int = field(metadata=fact())
    ...     error: float = field(metadata=fact("error_m", times=1000))
    >>> facts_of(Error(3, 0.25))
    {'people': 3, 'error_m': 250.0}
    """
    found = {}
    for one in fields(result):
        if "fact" in one.metadata:
            value, times = getattr(result, one.name), one.metadata["times"]
            value = named(value, about[0]) if one.metadata["states"] else value
            value = value if times == 1.0 or value is None else times * value
            found[one.metadata["fact"] or one.name] = plain(value, *about)
    return {**found, **{name: plain(value, *about) for name, value in more.items()}}


def named(states: Any, names: Sequence[str]) -> Any:
    """The name of a state, or those of several in lists of any depth."""
    if isinstance(states, Iterable):
        return [named(one, names) for one in states]
    return names[states]


def plain(value: Any, *about: Any) -> Any:
    """A value as JSON holds it: results as their facts, fractions and paths as texts, infinity and NaN as None.

    Parameters
    ----------
    value
        The value.
    *about
        What the method ``facts`` of results takes.
    """
    if hasattr(value, "tolist"):  # numbers and arrays of numpy
        value = value.tolist()
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Fraction | Path):
        return str(value)
    if isinstance(value, Mapping):
        return {name: plain(one, *about) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, *about) for one in value]
    return value.facts(*about) if hasattr(value, "facts") else value


def metres(kilometres: float) -> str:
    """A length in kilometres as people read it.

    Examples
    --------
    >>> metres(0.3704), metres(5.72), metres(1e-9)
    ('370 m', '5.72 km', 'below 1 m')
    """
    if kilometres < 0.001:
        return "below 1 m"
    return f"{1000 * kilometres:.3g} m" if kilometres < 0.9995 else f"{kilometres:,.3g} km"


def odds_in_words(probability: float) -> str:
    """A probability as odds.

    Examples
    --------
    >>> odds_in_words(0.75), odds_in_words(0.2), odds_in_words(1.0)
    ('3 to 1', '1 to 4', 'beyond a million to 1')
    """
    if probability >= 1.0 - 1e-6:
        return "beyond a million to 1"
    odds = probability / (1.0 - probability)
    return f"{odds:,.3g} to 1" if odds >= 1 else f"1 to {1 / odds:,.3g}"


def factor_in_words(level: float) -> str:
    """How many times as likely something is from one side as from the other, at most: e to the level, in words.

    Three figures of it, rounded up, since it is said to be the most.

    Examples
    --------
    >>> factor_in_words(1.0), factor_in_words(4.5)
    ('at most 2.72 times as likely', 'at most 90.1 times as likely')
    """
    if level == inf:
        return "without limit: it can rule a place out"
    if level > _LIMITS_NOTHING:
        return f"at most {power_of_e(level)} times as likely, which limits nothing"
    factor = exp(level)
    if factor >= 100:
        return f"at most {ceil(factor):,} times as likely"
    scale = 100 if factor < 10 else 10
    return f"at most {ceil(factor * scale) / scale:g} times as likely"


def power_of_e(level: float) -> str:
    """A factor that something is said to be at most, as a power of e: four figures of the exponent, rounded up.

    Examples
    --------
    >>> power_of_e(242.41), power_of_e(0.3 * 285), power_of_e(12345.6)
    ('e^242.5', 'e^85.5', 'e^12,350')
    """
    up = Context(prec=4, rounding=ROUND_CEILING)
    return f"e^{up.create_decimal(repr(float(level) * (1.0 - _ROUNDING))).normalize():,f}"


def guarantees_in_words(epsilon: float, constrained_epsilon: float, total: float) -> dict[str, str]:
    """What releases about one person guarantee: between what, by which factor, at one moment and over all of them.

    Parameters
    ----------
    epsilon, constrained_epsilon
        The greatest budget of a release, and the greatest constrained-DP level of one (Theorem 6.3).
    total
        The sum of the budgets (Theorem 7.1).

    Returns
    -------
    dict
        What a release, or all of them, may be compared between → how many times as likely they are from one side as
        from the other, at most.

    Examples
    --------
    >>> guarantees_in_words(1, 2.5, 730)["one_release_from_two_joined_places"]
    'at most 2.72 times as likely'
    >>> guarantees_in_words(1, inf, 730)["one_release_from_any_two_possible_places"]
    'without limit: it can rule a place out'
    >>> guarantees_in_words(1, 2.5, 730)["all_releases_from_two_paths_joined_throughout"]
    'at most e^730 times as likely, which limits nothing'
    """
    return {
        "one_release_from_two_joined_places": factor_in_words(epsilon),
        "one_release_from_any_two_possible_places": factor_in_words(constrained_epsilon),
        "all_releases_from_two_paths_joined_throughout": factor_in_words(total),
    }


def unless_seeded(guarantees: Mapping[str, str], is_private: bool) -> dict[str, str]:
    """Where noise came from, and guarantees in words: none where it does not come from the operating system."""
    if is_private:
        return {"randomness": "system", **guarantees}
    return {"randomness": "seeded", **dict.fromkeys(guarantees, "nothing: the noise follows from a seed")}
