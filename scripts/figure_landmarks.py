"""Error of the landmark schemes by the share of landmarks, on real series and trajectories; picture and table.

Usage: python scripts/figure_landmarks.py GEOLIFE GOWALLA OUT_FOLDER [--epsilon 1] [--runs 20] [--seed 1]

Left: how many check-ins a day has (GOWALLA, a file in SNAP's form), Laplace noise of sensitivity 1, mean absolute
error. Right: places of people every five minutes (GEOLIFE, folder or archive; the longest part without an hour's gap,
of each person who has one of 60 places or more), planar Laplace noise with epsilon for a distance of 200 m, mean
distance in metres. Landmarks are drawn at random among the timestamps. Event level spends epsilon at every timestamp
and protects one; user level spends epsilon / |T| and protects all. Errors count all timestamps, also the landmarks.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from dphmm import landmarks
from dphmm.plots.landmarks import error_by_share
from dphmm.readers import read
from dphmm.space.projection import LocalProjection

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
UNIT_KM, LEAST, MOST = 0.2, 60, 200
Noise = Callable[[np.random.Generator], landmarks.series.Mechanism]


def days(path: Path) -> np.ndarray:
    """Check-ins of everybody by day, from the first to the last day with any."""
    people = read(path, "checkins", skip_bad=True).trajectories
    day = np.concatenate([one.times for one in people]).astype("datetime64[D]").astype(np.int64)
    return np.bincount(day - day.min()).astype(np.float64)


def tracks(path: Path) -> list[np.ndarray]:
    """Kilometres in a plane, ``(T, 2)``, of one stretch of each person."""
    plane = LocalProjection(39.92, 116.375)
    found = []
    for one in read(path, "geolife", skip_bad=True).trajectories:
        longest = max(one.resample(300.0).split(3600.0), key=len)
        if len(longest) >= LEAST:
            found.append(plane.to_plane(longest.latitude, longest.longitude)[:MOST])
    return found


def error(values: np.ndarray, released: np.ndarray) -> float:
    return float(np.linalg.norm(released - values.reshape(released.shape), axis=1).mean())


def errors(values: np.ndarray, share: float, epsilon: float, scale: float, noise: Noise, seed: list[int]) -> dict:
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
        nothing = name == "skip" and len(marks) == size  # no timestamp may be read
        found[name] = np.nan if nothing else error(values, landmarks.release_series(values, scheme, noise(rng)).values)
    return found


def sweep(data: list[np.ndarray], epsilon: float, scale: float, noise: Noise, runs: int, seed: int) -> dict:
    """Name → mean error at each share, over series and runs."""
    result: dict[str, list[float]] = {}
    for at, share in enumerate(SHARES):
        rows = [
            errors(values, share, epsilon, scale, noise, [seed, at, run, number])
            for run in range(runs)
            for number, values in enumerate(data)
        ]
        for name in rows[0]:
            result.setdefault(name, []).append(float(np.mean([row[name] for row in rows])))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("geolife", type=Path)
    parser.add_argument("gowalla", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    series, places = days(options.gowalla), tracks(options.geolife)
    runs = -(-options.runs // max(len(places) // 5, 1))
    settings = (options.epsilon, options.seed)
    found = {
        "check-ins": sweep([series], settings[0], 1.0, lambda g: landmarks.laplace(1.0, g), options.runs, settings[1]),
        "metres": sweep(
            places, settings[0], UNIT_KM, lambda g: landmarks.planar_laplace(UNIT_KM, g), runs, settings[1]
        ),
    }
    found["metres"] = {name: [1000 * value for value in values] for name, values in found["metres"].items()}
    lengths = [len(track) for track in places]
    print(
        f"{len(series)} days, {int(series.sum())} check-ins; {len(places)} people, {min(lengths)}–{max(lengths)} places"
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    error_by_share(left, SHARES, found["check-ins"], "mean absolute error, check-ins")
    left.set_title(f"check-ins of {len(series)} days, ε = {options.epsilon:g}, {options.runs} runs")
    error_by_share(right, SHARES, found["metres"], "mean distance, metres")
    right.set_title(f"{len(places)} people of GeoLife, ε = {options.epsilon:g} per {1000 * UNIT_KM:g} m, {runs} runs")
    figure.savefig(options.folder / "landmarks.png", dpi=120)
    with (options.folder / "landmarks.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["unit", "scheme", *(f"{share:.0%}" for share in SHARES)])
        for unit, by_name in found.items():
            for name, values in by_name.items():
                table.writerow([unit, name, *values])
                print(f"{unit:>9} {name:>11}: " + " ".join(f"{value:9.3g}" for value in values))


if __name__ == "__main__":
    main()
