"""Channels as texts, such as ``round:3`` or ``android:2km``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dphmm.arguments import checked
from dphmm.attack.channel import Channel
from dphmm.attack.noise import Exact, FixedOffset, Gaussian, Nothing, PlanarLaplace, TrimmedHome, UniformDisc
from dphmm.attack.own import Released
from dphmm.attack.snapping import AndroidCoarse, GridSnapping, Meshtastic, Rounding
from dphmm.errors import ConfigurationError, PolicyError
from dphmm.policy.expression import kilometres
from dphmm.release.settings import ReleaseSettings

DEFAULT_CHANNELS = (
    "exact",
    "round:3",
    "round:2",
    "meshtastic:15",
    "meshtastic:13",
    "snap:1km",
    "android",
    "gaussian:300m",
    "disc:500m",
    "offset:500m",
    "trim:500m",
    "planar-laplace:500m",
    "release:utility:1km@1",
    "release:utility:1km@0.1",
    "nothing",
)
"""What an attack tries unless it is told otherwise."""

_LEAST_KM, _MOST_KM = 0.001, 1000.0


@checked
def parse_channel(text: str) -> Channel:
    """A channel out of its text.

    Parameters
    ----------
    text
        One of ``exact``, ``nothing``, ``round:DIGITS``, ``meshtastic:BITS``, ``snap:LENGTH``, ``android`` or
        ``android:LENGTH``, ``gaussian:LENGTH`` (standard deviation along each axis), ``disc:LENGTH`` (radius),
        ``planar-laplace:LENGTH`` (mean distance), ``offset:LENGTH`` (radius), ``trim:LENGTH`` (radius), and
        ``release:POLICY@EPSILON`` for this package's own. A LENGTH is such as ``500m`` or ``1.2km``.

    Raises
    ------
    ConfigurationError
        When it is none of these, or a number is out of range.
    PolicyError, BudgetError
        As a policy or epsilon of its own releases says.

    Examples
    --------
    >>> parse_channel("meshtastic:13").name, parse_channel("android").name
    ('Meshtastic, 13 bits', 'Android approximate, 2 km')
    """
    kind, _, value = text.strip().partition(":")
    if kind in _PLAIN and not value:
        return _PLAIN[kind]()
    if kind in _LENGTHS:
        return _LENGTHS[kind](_length(text, value, 0.2 if kind == "android" else _LEAST_KM))
    if kind in _WHOLE:
        make, least, most = _WHOLE[kind]
        if not (value.isascii() and value.isdigit() and least <= int(value[:4]) <= most and len(value) <= 4):
            raise ConfigurationError(
                f"channel {text!r} needs a whole number from {least} to {most}, as in {kind}:{most // 2}"
            )
        return make(int(value))
    if kind == "release":
        return Released(_settings(text, value))
    raise ConfigurationError(
        f"channel {text!r} is none; give one of {', '.join([*_PLAIN, *(f'{name}:LENGTH' for name in _LENGTHS)])}, "
        "round:DIGITS, meshtastic:BITS, release:POLICY@EPSILON, table:FILE, samples:FILE"
    )


def _length(text: str, value: str, least: float) -> float:
    try:
        found = kilometres(value)
    except PolicyError:
        found = 0.0
    if not least <= found <= _MOST_KM:
        raise ConfigurationError(
            f"channel {text!r} needs a length from {1000 * least:g}m to {_MOST_KM:g}km with its unit, such as "
            f"{text.partition(':')[0]}:500m"
        )
    return found


def _settings(text: str, value: str) -> ReleaseSettings:
    policy, _, epsilon = value.rpartition("@")
    try:
        return ReleaseSettings(policy, float(epsilon))
    except ValueError as problem:
        if policy and epsilon:
            raise ConfigurationError(f"channel {text!r}: {problem}") from None
    raise ConfigurationError(f"channel {text!r} needs a policy and an epsilon, such as release:utility:1km@1")


_PLAIN: Mapping[str, Callable[[], Channel]] = {"exact": Exact, "nothing": Nothing, "android": AndroidCoarse}
_LENGTHS: Mapping[str, Callable[[float], Channel]] = {
    "snap": GridSnapping,
    "android": AndroidCoarse,
    "gaussian": Gaussian,
    "disc": UniformDisc,
    "planar-laplace": PlanarLaplace,
    "offset": FixedOffset,
    "trim": TrimmedHome,
}
_WHOLE: Mapping[str, tuple[Callable[[int], Channel], int, int]] = {
    "round": (Rounding, 0, 7),
    "meshtastic": (Meshtastic, 1, 31),
}
