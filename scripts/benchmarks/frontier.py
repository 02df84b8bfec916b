"""How far off a reader is at once, for how far off an adversary is who knows a person's habits, on people not seen.

Of GeoLife and Gowalla in the folder named by DPHMM_REAL_DATA (without it, or with --small, of the synthetic city) some
people are left out at a time, a model is learned from the others, and what `dphmm attack` does is done with the later
half of the days of those left out: each family of channels at several settings, read at once, in hindsight, and by an
adversary who has learned the person's habits from the earlier half. Along each family, between its settings, follows
how far off a reader is at once where the adversary who knows habits is off by 500, 900 and 1,500 m. People count alike;
intervals are of a bootstrap over them, 95 %. Beside it stands what `dphmm calibrate --known` expects of that from the
earlier half alone, by taking the later half of that for the days to come.

An adversary in hindsight knows what the reader knows and more, so that no way of releasing has a reader who is nearer
than they are, but as far as models are wrong: what is missing to equal errors is all that any way could still win.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from dphmm import ReleaseSettings, read
from dphmm.attack import Channel, ChannelResult, Moves, Track, attack_tracks, parse_channel
from dphmm.jobs import Targets, calibrate
from dphmm.jobs.adversaries import EachHabits
from dphmm.jobs.attacks import halves
from dphmm.jobs.models import region
from dphmm.model.fitting import fit_shrunk
from dphmm.model.moves import state_sequences
from dphmm.readers.synthetic_city import build_city, synthetic_trajectories
from dphmm.release.ledger import DAY_SECONDS
from dphmm.space.grid import Grid
from dphmm.space.trajectory import Trajectory
from scripts.benchmarks.report import Report

CELL_KM, PARTS = 0.5, 2
LEVELS_M = (500.0, 900.0, 1500.0)
RESAMPLES = 2000
SETS = {
    "geolife": ("geolife/geolife_beijing.tar.gz", (39.87, 116.29, 39.97, 116.46), 600.0, 60, 6, 80),
    "gowalla": ("gowalla/loc-gowalla_LA.txt.gz", (34.00, -118.50, 34.11, -118.33), 3600.0, 40, 20, 40),
}
"""File, region, step, the moments and days that a person needs to be left out, and at how many they are looked at."""

FAMILIES = {
    "dphmm, a day's budget": [f"release:utility:1km@day:{day}" for day in (250, 100, 40, 15, 5, 2)],
    "dphmm, a target": [f"release:utility:1km@target:{metres}m" for metres in (600, 900, 1400, 2200, 3200, 4500)],
    "dphmm, a constant ε": [f"release:utility:1km@{epsilon}" for epsilon in (8, 3, 1.5, 0.7, 0.3, 0.1)],
    "planar Laplace": [f"planar-laplace:{metres}m" for metres in (600, 1000, 2500, 6000, 12000)],
    "rounding": [f"snap:{metres}m" for metres in (1000, 1700, 3000, 5000, 8000, 12000)],
    "one place in some hours": [f"hourly:{hours}" for hours in (1, 3, 8, 24, 72)],
}
"""Ways of releasing, from the nearest to the farthest of each kind. Two decimals of degrees are squares of 1.1 km."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", choices=[*SETS, "city"], action="append", help="of these alone; may be repeated")
    parser.add_argument("--people", type=int, default=8, help="how many are left out at a time (default: 8)")
    parser.add_argument("--times", type=int, default=4, help="how often others are (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="who is left out with whom, and which noise is drawn")


def run(report: Report, options: argparse.Namespace) -> None:
    real = os.environ.get("DPHMM_REAL_DATA")
    chosen = options.data or ([*SETS] if real and not report.small else ["city"])
    people, times = (3, 1) if report.small else (options.people, options.times)
    ways = {family: texts[:: 4 if report.small else 1] for family, texts in FAMILIES.items()}
    for name in chosen:
        if name != "city" and not real:
            report.skip(name, "DPHMM_REAL_DATA names no folder")
            continue
        channels = [parse_channel(text) for texts in ways.values() for text in texts]
        most = 40 if report.small else None
        seed = options.seed
        both = [attacked(name, real or "", people, time, channels, most, seed) for time in range(times)]
        ends = np.cumsum([len(texts) for texts in ways.values()])[:-1]
        found, expected = (
            dict(zip(ways, np.split(np.concatenate(one), ends, axis=1), strict=True)) for one in zip(*both, strict=True)
        )
        tell(report, name, ways, found, expected)


def attacked(
    name: str, folder: str, people: int, time: int, channels: Sequence[Channel], most: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Errors at once, in hindsight and against habits, metres, of some people, who are others each time.

    ``(people, channels, 3)``, and the same of the later half of what is known of those with enough days.
    """
    if name == "city":
        city = build_city()
        box, step, least, days, moments = city.box, 600.0, 60, 4, 250
        everyone: Sequence[Trajectory] = synthetic_trajectories(36, 8, 5, city=city)
    else:
        file, box, step, least, days, moments = SETS[name]
        everyone = read(Path(folder, file)).trajectories
    grid = region(bbox=box, cell=CELL_KM)
    assert isinstance(grid, Grid)
    enough = []
    for i, one in enumerate(everyone):
        track = one.resample(step)
        slots = track.slots[grid.locate(track.latitude, track.longitude) >= 0]
        if len(slots) >= least and len(np.unique(slots // int(DAY_SECONDS // step))) >= days:
            enough.append(i)
    chosen = set(np.random.default_rng(seed).permutation(enough)[time * people : (time + 1) * people].tolist())
    others = [one for i, one in enumerate(everyone) if i not in chosen]
    moves = Moves(fit_shrunk(state_sequences(others, grid, step), grid, step).model, PARTS)
    halved = [(everyone[i], both) for i in sorted(chosen) if (both := halves(everyone[i], moves, most or moments))]
    tracks, moments_before = zip(*[both for _, both in halved], strict=True)
    habits = EachHabits(moves.model, moments_before)
    known = pd.concat([earlier(person, both[0]) for person, both in halved])
    expected = calibrate(
        moves.model, ReleaseSettings("utility:1km", 1.0), Targets(day_epsilon=1e3), people=0, known=known,
        beside=channels, over_seconds=step * (most or moments),
    ).tried[1:]  # fmt: skip
    enough_earlier = np.isfinite(found := errors(expected))[:, 0, 2]  # of the others no habits are known by then
    return errors(attack_tracks(tracks, channels, moves, 200.0, 1000 * seed + time, habits)), found[enough_earlier]


def earlier(person: Trajectory, track: Track) -> pd.DataFrame:
    """A person's fixes before those of a track."""
    before = person.between("1970-01-01", np.datetime64(int(track.slots[0] - 1) * int(track.step_seconds), "s"))
    assert before is not None, "the track is of later days"
    return pd.DataFrame(
        {"user": person.user, "time": before.times, "latitude": before.latitude, "longitude": before.longitude}
    )


def errors(results: Sequence[ChannelResult]) -> np.ndarray:
    """``(people, channels, 3)``."""
    outcomes = [[(one.at_once_m, one.hindsight_m, one.habits_m) for one in result.outcomes] for result in results]
    return np.array(outcomes).swapaxes(0, 1)


def tell(
    report: Report,
    name: str,
    ways: Mapping[str, Sequence[str]],
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> None:
    """Every setting, then the reader's errors at the levels; ``(people, settings, 3)`` of each family."""
    for family, measured in found.items():
        for text, (once, hindsight, habits) in zip(ways[family], measured.mean(axis=0), strict=True):
            others = {"in hindsight": hindsight, "adversary who knows habits": habits}
            report.row(f"{name}: {text}, {len(measured)} people: at once", once, "m", others)
    for level in LEVELS_M:
        at, drawn = curves(found, level)
        as_expected, drawn_of_expected = curves(expected, level)
        ours = [family for family in found if family.startswith("dphmm") and np.isfinite(at[family])]
        for family in found:
            what = f"{name}: {family}, habits adversary at {level:,.0f} m"
            if not np.isfinite(at[family]):
                report.skip(what, "beyond the settings tried")
                continue
            beside = {"limit: the adversary's own error": level}
            if np.isfinite(as_expected[family]):
                ends = _said(interval(drawn_of_expected[family]), ",.0f")
                beside[f"as calibrate expects of {len(expected[family])} people{ends}"] = as_expected[family]
            if ours and not family.startswith("dphmm"):
                best = min(ours, key=at.__getitem__)
                less = 100 * (at[best] / at[family] - 1)
                ends = _said(interval(100 * (drawn[best] / drawn[family] - 1)), "+.0f")
                beside[f"{best}, {less:+.0f} %{ends}"] = at[best]
            report.row(f"{what}{_said(interval(drawn[family]), ',.0f')}", at[family], "m", beside)


def curves(found: Mapping[str, np.ndarray], level: float) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """The reader's error of each family at a level, and that of people drawn again."""
    count = len(next(iter(found.values())))
    again = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    lines = {family: one[:, :, [0, 2]] for family, one in found.items()}
    drawn = {
        family: np.array([at_level(one[some].mean(axis=0), level) for some in again]) for family, one in lines.items()
    }
    return {family: at_level(one.mean(axis=0), level) for family, one in lines.items()}, drawn


def _said(ends: tuple[float, float], form: str) -> str:
    return f" ({ends[0]:{form}} to {ends[1]:{form}})" if np.isfinite(ends[0]) else " (interval beyond the settings)"


def interval(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of what resampled people give; NaN where more than one in twenty lie beyond the settings."""
    known = values[np.isfinite(values)]
    if len(known) < 0.95 * len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def at_level(settings: np.ndarray, level: float) -> float:
    """The reader's error where the habits adversary's is at a level, between settings ``(k, 2)``; NaN beyond them."""
    once, habits = settings[np.argsort(settings[:, 1])].T
    if not habits[0] <= level <= habits[-1]:
        return float("nan")
    return float(np.exp(np.interp(np.log(level), np.log(habits), np.log(once))))
