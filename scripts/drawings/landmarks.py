"""Error of the landmark schemes by the share of landmarks, on real series and trajectories; picture and table.

Left: how many check-ins a day has (GOWALLA, a file in SNAP's form), exact integer noise of sensitivity 1, mean absolute
error. Right: places of people every five minutes (GEOLIFE, folder or archive; the longest part without an hour's gap,
of each person who has one of 60 places or more), exact planar noise on whole metres with epsilon for a distance of
200 m, mean distance in metres. Landmarks are drawn at random among the timestamps. Event level spends epsilon at every
timestamp and protects one; user level spends epsilon / |T| and protects all. Errors count all timestamps, also the
landmarks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dphmm import landmarks, read
from dphmm.plots.curves import error_by_share
from dphmm.space.states import LocalProjection
from scripts.drawings.sheet import panels, save, write

DATA = ("geolife", "gowalla")
RUNS = 20
UNIT_KM, LEAST, MOST = 0.2, 60, 200


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epsilon", type=float, default=1.0)


def draw(options: argparse.Namespace) -> None:
    shares = (0.0, 0.5, 1.0) if options.small else tuple(np.linspace(0, 1, 11).round(1).tolist())
    series, places = days(options.gowalla), tracks(options.geolife)
    runs = -(-options.runs // max(len(places) // 5, 1))
    settings = (shares, options.epsilon, options.seed)
    found = {
        "check-ins": sweep([series], 1.0, lambda rng: landmarks.lattice(1, 1, rng), options.runs, *settings),
        "metres": sweep(places, UNIT_KM, lambda rng: landmarks.planar_lattice(UNIT_KM, rng=rng), runs, *settings),
    }
    found["metres"] = {name: [1000 * value for value in values] for name, values in found["metres"].items()}
    lengths = [len(track) for track in places]
    people = f"{len(places)} people, {min(lengths)}–{max(lengths)} places"
    print(f"{len(series)} days, {int(series.sum())} check-ins; {people}")
    figure, (left, right) = panels()
    error_by_share(left, shares, found["check-ins"], "mean absolute error, check-ins")
    left.set_title(f"check-ins of {len(series)} days, ε = {options.epsilon:g}, {options.runs} runs")
    error_by_share(right, shares, found["metres"], "mean distance, metres")
    right.set_title(f"{len(places)} people of GeoLife, ε = {options.epsilon:g} per {1000 * UNIT_KM:g} m, {runs} runs")
    save(figure, options.folder / "landmarks.png")
    rows = [[unit, name, *values] for unit, by_name in found.items() for name, values in by_name.items()]
    write(options.folder / "landmarks.csv", ["unit", "scheme", *(f"{share:.0%}" for share in shares)], rows)
    for unit, name, *values in rows:
        print(f"{unit:>9} {name:>11}: " + " ".join(f"{value:9.3g}" for value in values))


def days(path: Path) -> np.ndarray:
    """Check-ins of everybody by day, from the first to the last day with any."""
    people = read(path, "checkins", skip_bad=True).trajectories
    day = np.concatenate([one.times for one in people]).astype("datetime64[D]").astype(np.int64)
    return np.bincount(day - day.min()).astype(np.float64)


def tracks(path: Path) -> list[np.ndarray]:
    """Kilometres in a plane around each person, ``(T, 2)``, of one stretch of each."""
    found = []
    for one in read(path, "geolife", skip_bad=True).trajectories:
        longest = max(one.resample(300.0).split(3600.0), key=len)
        if len(longest) >= LEAST:
            plane = LocalProjection(float(longest.latitude.mean()), float(longest.longitude.mean()))
            found.append(plane.to_plane(longest.latitude, longest.longitude)[:MOST])
    return found


def sweep(
    data: list[np.ndarray],
    scale: float,
    noise: Callable[[np.random.Generator], landmarks.Noise],
    runs: int,
    shares: tuple[float, ...],
    epsilon: float,
    seed: int,
) -> dict[str, list[float]]:
    """Name → mean error at each share, over series and runs."""
    result: dict[str, list[float]] = {}
    for at, share in enumerate(shares):
        rows = [
            errors(values, share, epsilon, scale, noise, [seed, at, run, number])
            for run in range(runs)
            for number, values in enumerate(data)
        ]
        for name in rows[0]:
            result.setdefault(name, []).append(float(np.mean([row[name] for row in rows])))
    return result


def errors(
    values: np.ndarray, share: float, epsilon: float, scale: float, noise: Callable, seed: list[int]
) -> dict[str, float]:
    """The error of every scheme with one draw of landmarks."""
    rng, size = np.random.default_rng(seed), len(values)
    times = np.arange(size)
    marks = np.sort(rng.choice(size, round(share * size), replace=False))
    schemes = {
        "skip": landmarks.skip(times, marks, epsilon),
        "uniform": landmarks.uniform(times, marks, epsilon),
        "adaptive": landmarks.Adaptive(times, marks, epsilon, scale, rng=rng),
        "event level": landmarks.skip(times, [], epsilon),
        "user level": landmarks.uniform(times, times, epsilon),
    }
    found = {}
    for name, scheme in schemes.items():
        if name == "skip" and len(marks) == size:  # no timestamp may be read
            found[name] = np.nan
        else:
            released = landmarks.release_series(values, scheme, noise(rng)).values
            found[name] = float(np.linalg.norm(released - values.reshape(released.shape), axis=1).mean())
    return found
