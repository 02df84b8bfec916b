"""Which timestamps are landmarks, from options: named, or found in a trajectory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.errors import ConfigurationError, LandmarkError

if TYPE_CHECKING:
    from dphmm.arrays import BoolArray, FloatArray

FINDS = ("stays", "repeated", "home", "work", "home-and-work")


@dataclass(frozen=True)
class Moments:
    """The options that say which timestamps are landmarks; see `moment_options`."""

    at: tuple[str, ...]
    landmarks: Path | None
    find: str | None
    radius: float
    minutes: float
    utc_offset: float


def moment_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of `Moments`, under the same names."""
    for option in (
        click.option("--utc-offset", default=0.0, metavar="HOURS", help="Local time minus UTC, for home and work."),
        click.option("--minutes", default=20.0, show_default=True, help="How long a stay lasts at least."),
        click.option("--radius", default=0.2, show_default=True, metavar="KM", help="How far a stay or place reaches."),
        click.option("--find", type=click.Choice(FINDS), help="Find landmarks in the trajectory: your own act."),
        click.option(
            "--landmarks", type=click.Path(path_type=Path), metavar="FILE", help="Landmarks, one time a line."
        ),
        click.option("--at", multiple=True, metavar="TIME", help="A landmark; one of the timestamps. Repeat it."),
    ):
        command = option(command)
    return command


def named_moments(moments: Moments, timestamps: Any) -> Any:
    """The landmarks that were named, as times of the timestamps' kind; none is an empty list.

    Raises
    ------
    ConfigurationError
        When they are named in two ways.
    DataFileError
        When the file cannot be read.
    LandmarkError
        When one is no time, or numbers are given among instants or the other way round.
    """
    import numpy as np

    from dphmm.tables import content_lines, parse_times

    if sum((bool(moments.at), moments.landmarks is not None, moments.find is not None)) > 1:
        raise ConfigurationError("--at, --landmarks and --find exclude each other; use one of them")
    texts = list(moments.at)
    if moments.landmarks is not None:
        texts = [line for _, line in content_lines(moments.landmarks) if line.lower() != "time"]
    if not texts:
        return np.zeros(0, dtype=timestamps.dtype)
    try:
        found = parse_times(texts)
    except ValueError as problem:
        raise LandmarkError(f"landmarks: {problem}") from None
    if (found.dtype.kind == "M") != (timestamps.dtype.kind == "M"):
        raise LandmarkError(f"landmark {texts[0]} is not of the timestamps' kind, such as {timestamps[0]}")
    return found


def found_moments(moments: Moments, times: Any, points: FloatArray) -> BoolArray:
    """Which fixes of a trajectory are landmarks by the rule of ``--find``, ``(n,)``.

    Raises
    ------
    LandmarkError
        When there is none.
    DphmmError
        As `dphmm.landmarks.stay_points` and `repeated_places`.
    """
    from dphmm.landmarks import repeated_places, stay_points

    stays = stay_points(times, points, moments.radius, moments.minutes)
    if moments.find == "stays":
        mask = stays.mask()
    else:
        places = repeated_places(stays, moments.radius, moments.utc_offset)
        wanted = {"home": (places.home,), "work": (places.work,), "home-and-work": (places.home, places.work)}
        if moments.find == "repeated":
            chosen = places.visits[places.place] > 1
        else:
            chosen = sum((places.place == place for place in wanted[str(moments.find)]), places.place < 0)
        mask = stays.mask(chosen)
    if not mask.any():
        raise LandmarkError(
            f"--find {moments.find} finds nothing within {moments.radius:g} km for {moments.minutes:g} minutes; "
            "widen the one or shorten the other"
        )
    return mask
