"""Error of recipients by the error of an informed adversary, on held-out users.

The data are GeoLife and Gowalla in the folder DPHMM_REAL_DATA; without it, or with --small, those of the synthetic
city. Some users at a time are held out, and a model is trained on the others. `dphmm attack` is run on the later half
of the days of the held-out users, for several settings of each family of channels. Errors are those of the recipient
(filtered), of the smoothed estimate, and of an adversary who has learned the user's habits from the earlier half.

Interpolation between the settings of a family gives the recipient's error at an error of the informed adversary of
500, 900 or 1,500 m. Users have equal weights; 95 % intervals are from a bootstrap over users. Each result is compared
with that of `dphmm calibrate --auxiliary-data` from the earlier half alone, of which the later half is the test.

A smoothing adversary knows at least as much as the recipient. If models were exact, no channel could have a recipient
with a smaller error than the smoothing adversary. The difference of the errors bounds what another channel could gain.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from dphmm import ReleaseSettings, read
from dphmm.attack import Channel, ChannelResult, MeshMovement, Track, attack_tracks, parse_channel
from dphmm.jobs import CalibrationTargets, calibrate
from dphmm.jobs.attack.tracks import split_track
from dphmm.jobs.audit.adversaries import HabitModels
from dphmm.jobs.model.region import region
from dphmm.model.learning import fit_shrunk
from dphmm.model.observed_moves import state_sequences
from dphmm.readers.synthetic_city import build_city, sample_synthetic_trajectories
from dphmm.release.ledger import DAY_SECONDS
from dphmm.space.grid import Grid
from dphmm.space.trajectory import Trajectory
from scripts.benchmarks.report import Report

CELL_KM = 0.5
PARTS = 2
LEVELS_M = (500.0, 900.0, 1500.0)
RESAMPLES = 2000
# Name → file, region, step, minimum timesteps and days of a held-out user, and timesteps evaluated.
SETS = {
    "geolife": ("geolife/geolife_beijing.tar.gz", (39.87, 116.29, 39.97, 116.46), 600.0, 60, 6, 80),
    "gowalla": ("gowalla/loc-gowalla_LA.txt.gz", (34.00, -118.50, 34.11, -118.33), 3600.0, 40, 20, 40),
}

# Family → channels by increasing error. Two decimals of degrees are squares of 1.1 km.
FAMILIES = {
    "dphmm, a day's budget": [f"release:utility:1km@day:{day}" for day in (250, 100, 40, 15, 5, 2)],
    "dphmm, a target": [f"release:utility:1km@target:{metres}m" for metres in (600, 900, 1400, 2200, 3200, 4500)],
    "dphmm, a constant ε": [f"release:utility:1km@{epsilon}" for epsilon in (8, 3, 1.5, 0.7, 0.3, 0.1)],
    "planar Laplace": [f"planar-laplace:{metres}m" for metres in (600, 1000, 2500, 6000, 12000)],
    "rounding": [f"snap:{metres}m" for metres in (1000, 1700, 3000, 5000, 8000, 12000)],
    "one place in some hours": [f"hourly:{hours}" for hours in (1, 3, 8, 24, 72)],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", choices=[*SETS, "city"], action="append", help="only these data; may be repeated")
    parser.add_argument("--num-users", type=int, default=8, help="number of users held out at a time (default: 8)")
    parser.add_argument("--times", type=int, default=4, help="number of repetitions with other users (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split and of the noise")


def run(report: Report, options: argparse.Namespace) -> None:
    real = os.environ.get("DPHMM_REAL_DATA")
    chosen = options.data or ([*SETS] if real and not report.small else ["city"])
    num_users, times = (3, 1) if report.small else (options.num_users, options.times)
    ways = {family: texts[:: 4 if report.small else 1] for family, texts in FAMILIES.items()}
    for name in chosen:
        if name != "city" and not real:
            report.skip(name, "DPHMM_REAL_DATA is not set")
            continue
        channels = [parse_channel(text) for texts in ways.values() for text in texts]
        maximum = 40 if report.small else None
        seed = options.seed
        both = [attack_users(name, real or "", num_users, time, channels, maximum, seed) for time in range(times)]
        ends = np.cumsum([len(texts) for texts in ways.values()])[:-1]
        measured, expected = (
            dict(zip(ways, np.split(np.concatenate(parts), ends, axis=1), strict=True))
            for parts in zip(*both, strict=True)
        )
        report_results(report, name, ways, measured, expected)


def attack_users(
    name: str, folder: str, num_users: int, time: int, channels: Sequence[Channel], maximum: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return filtered, smoothed and informed errors of held-out users in metres.

    Both arrays have shape ``(users, channels, 3)``. The second contains expectations from the earlier half of the days.
    """
    if name == "city":
        city = build_city()
        box = city.box
        step = 600.0
        minimum = 60
        days = 4
        moments = 250
        everyone: Sequence[Trajectory] = sample_synthetic_trajectories(36, 8, 5, city=city)
    else:
        file, box, step, minimum, days, moments = SETS[name]
        everyone = read(Path(folder, file)).trajectories
    grid = region(bbox=box, cell_km=CELL_KM)
    assert isinstance(grid, Grid)
    enough = []
    for i, trajectory in enumerate(everyone):
        track = trajectory.resample(step)
        slots = track.slots[grid.locate(track.latitude, track.longitude) >= 0]
        if len(slots) >= minimum and len(np.unique(slots // int(DAY_SECONDS // step))) >= days:
            enough.append(i)
    chosen = set(np.random.default_rng(seed).permutation(enough)[time * num_users : (time + 1) * num_users].tolist())
    others = [track for i, track in enumerate(everyone) if i not in chosen]
    moves = MeshMovement(fit_shrunk(state_sequences(others, grid, step), grid, step).model, PARTS)
    halved = [
        (everyone[i], both) for i in sorted(chosen) if (both := split_track(everyone[i], moves, maximum or moments))
    ]
    tracks, moments_before = zip(*[both for _, both in halved], strict=True)
    habits = HabitModels(moves.model, moments_before)
    auxiliary = pd.concat([get_earlier_fixes(trajectory, both[0]) for trajectory, both in halved])
    expected = calibrate(
        moves.model, ReleaseSettings("utility:1km", 1.0), CalibrationTargets(window_epsilon=1e3), num_users=0,
        auxiliary_data=auxiliary, compare=channels, horizon_seconds=step * (maximum or moments),
    ).channel_results[1:]  # fmt: skip
    measured = collect_errors(expected)
    enough_earlier = np.isfinite(measured)[:, 0, 2]  # the other users have too few earlier days for habits
    return collect_errors(attack_tracks(tracks, channels, moves, 200.0, 1000 * seed + time, habits)), measured[
        enough_earlier
    ]


def get_earlier_fixes(trajectory: Trajectory, track: Track) -> pd.DataFrame:
    """Return a user's fixes before a track."""
    before = trajectory.select_time_range(
        "1970-01-01", np.datetime64(int(track.slots[0] - 1) * int(track.step_seconds), "s")
    )
    assert before is not None, "the track has later days"
    return pd.DataFrame(
        {"user": trajectory.user, "time": before.times, "latitude": before.latitude, "longitude": before.longitude}
    )


def collect_errors(results: Sequence[ChannelResult]) -> np.ndarray:
    """Return errors, ``(users, channels, 3)``: filtered, smoothed and informed."""
    outcomes = [
        [(outcome.filtered_error_m, outcome.smoothed_error_m, outcome.informed_error_m) for outcome in result.outcomes]
        for result in results
    ]
    return np.array(outcomes).swapaxes(0, 1)


def report_results(
    report: Report,
    name: str,
    ways: Mapping[str, Sequence[str]],
    measured_by_family: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> None:
    """Report every setting, then the recipient's errors at the levels.

    Each family has errors of shape ``(users, settings, 3)``.
    """
    for family, measured in measured_by_family.items():
        for text, (once, smoothed, habits) in zip(ways[family], measured.mean(axis=0), strict=True):
            others = {"smoothed": smoothed, "informed adversary": habits}
            report.row(f"{name}: {text}, {len(measured)} users: filtered", once, "m", others)
    for level in LEVELS_M:
        at, drawn = compute_curves(measured_by_family, level)
        as_expected, drawn_of_expected = compute_curves(expected, level)
        ours = [family for family in measured_by_family if family.startswith("dphmm") and np.isfinite(at[family])]
        for family in measured_by_family:
            what = f"{name}: {family}, informed adversary at {level:,.0f} m"
            if not np.isfinite(at[family]):
                report.skip(what, "outside the range of settings")
                continue
            beside = {"limit: the adversary's own error": level}
            if np.isfinite(as_expected[family]):
                ends = _format_interval(compute_interval(drawn_of_expected[family]), ",.0f")
                beside[f"expected by calibrate, {len(expected[family])} users{ends}"] = as_expected[family]
            if ours and not family.startswith("dphmm"):
                best = min(ours, key=at.__getitem__)
                less = 100 * (at[best] / at[family] - 1)
                ends = _format_interval(compute_interval(100 * (drawn[best] / drawn[family] - 1)), "+.0f")
                beside[f"{best}, {less:+.0f} %{ends}"] = at[best]
            report.row(f"{what}{_format_interval(compute_interval(drawn[family]), ',.0f')}", at[family], "m", beside)


def compute_curves(measured: Mapping[str, np.ndarray], level: float) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return the recipient's error of each family at a level, and of resampled users."""
    count = len(next(iter(measured.values())))
    again = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    lines = {family: errors[:, :, [0, 2]] for family, errors in measured.items()}
    drawn = {
        family: np.array([interpolate_error(line[sample].mean(axis=0), level) for sample in again])
        for family, line in lines.items()
    }
    return {family: interpolate_error(line.mean(axis=0), level) for family, line in lines.items()}, drawn


def _format_interval(ends: tuple[float, float], form: str) -> str:
    return f" ({ends[0]:{form}} to {ends[1]:{form}})" if np.isfinite(ends[0]) else " (interval outside the settings)"


def compute_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the central 95 % of resampled values. NaN if over 5 % lie outside the settings."""
    finite = values[np.isfinite(values)]
    if len(finite) < 0.95 * len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(low), float(high)


def interpolate_error(settings: np.ndarray, level: float) -> float:
    """Interpolate the recipient's error at a level of the informed adversary's error.

    ``settings`` has shape ``(k, 2)``. NaN outside the range of settings.
    """
    once, habits = settings[np.argsort(settings[:, 1])].T
    if not habits[0] <= level <= habits[-1]:
        return float("nan")
    return float(np.exp(np.interp(np.log(level), np.log(habits), np.log(once))))
