"""Inference of a hidden home from rides, compared with trimmed ends and circular zones.

Rides in the streets of the synthetic city, with blocks of 100 m, start and end at a home and pass a corner at least two
kilometres away, with a fix every second. The adversary knows the method, has a uniform prior over places, and weights
each place by the likelihood of the ends of the published track. Only the last one knows the streets. It
uses the angle at the ends (normal with a standard deviation of 30 degrees), and

- for trimmed ends the distance: 500 m were removed along the track, 0.5 to 1 times that as the crow flies;
- for a circle around the home the radius, to 15 m (Hassan et al., USENIX Security 2018);
- for a circle with a centre that was moved once by up to 250 m, every centre;
- for a zone of ``dphmm hide`` the likelihoods of its adversaries. The last one knows the streets.

The estimate is the posterior mean, and the error its distance from the home.

The time of `dphmm.jobs.hide` is measured on recordings of many rides that start at one home and end at as many
locations, or that stop at the home for five minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.hide.fixed_squares import Square
from dphmm.hide.recording_writers import write_recording
from dphmm.hide.street_inference import AHEAD_KM, STREET, ZoneStreets, compute_candidate_posteriors
from dphmm.hide.zone import Gate, HiddenZone, Stretch
from dphmm.hide.zone_inference import TURN_STD, compute_log_likelihoods, infer_location
from dphmm.jobs.hide.hide import hide
from dphmm.readers.synthetic_city import City, build_city
from dphmm.space.projection import LocalProjection
from dphmm.space.trajectory import Recording, Segment
from dphmm.tables.street_map import StreetMap, read_street_map
from scripts.benchmarks.report import Report
from scripts.make_sample import build_streets_geojson, sample_ride

BLOCKS = 60
RADIUS = 0.5
MOVED = 0.25
AHEAD = 0.1
RIDES = (1, 3, 10)
_RASTER = 0.025
_FAR = 2.0
HOME = 45.0005, -30.02

# The gates of a ride, each with a point farther outside along the track.
Ends = list[tuple[FloatArray, FloatArray]]


def run(report: Report, _: argparse.Namespace) -> None:
    _time_many(report, 10 if report.small else 300)
    homes = 4 if report.small else 40
    city, rng = build_city(blocks=BLOCKS), np.random.default_rng(0)
    street_map = _read_city_streets(city)
    corners = sorted(city.streets)
    inner = [corner for corner in corners if np.abs(city.get_point(corner)).max() < 1.3]
    chosen = [inner[at] for at in rng.choice(len(inner), homes, replace=homes > len(inner))]
    off: dict[str, list[list[float]]] = {name: [] for name in (*WAYS, *HIDDEN)}
    for home in chosen:
        point = city.get_point(home)
        far = [corner for corner in corners if np.hypot(*(city.get_point(corner) - point)) >= _FAR]
        rides = [
            _sample_ride(city, home, far[at], number) for number, at in enumerate(rng.choice(len(far), max(RIDES)))
        ]
        distance, angle = MOVED * np.sqrt(rng.random()), 2 * np.pi * rng.random()
        middle = point + distance * np.array([np.cos(angle), np.sin(angle)])
        for name, way in WAYS.items():
            off[name].append(_compute_errors(point, [way(ride, point, middle) for ride in rides], name))
        for name, distances in zip(HIDDEN, _compute_zone_errors(city, street_map, point, rides), strict=True):
            off[name].append(distances)
    distances = {name: 1000 * np.array(values) for name, values in off.items()}
    for name, errors_of in distances.items():
        for column, count in enumerate(RIDES):
            errors = errors_of[:, column]
            what = f"{name}, {count} ride{'s' if count > 1 else ''}"
            others = {other: float(np.median(distances[other][:, column])) for other in HIDDEN if other != name}
            report.row(f"{what}: median error", float(np.median(errors)), "m", others)
            report.row(f"{what}: error of at most 100 m", 100 * float((errors <= 100).mean()), "%")


def _time_many(report: Report, count: int) -> None:
    """Measure recordings of many rides in straight lines, with a fix every ten seconds."""
    rng = np.random.default_rng(0)
    angles, lengths = rng.uniform(0, 2 * np.pi, count), rng.uniform(3, 6, count)
    away = lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    stay = np.zeros((30, 2))
    parts = [np.linspace(0, 1, 80)[:, None] * end for end in away]
    stops = [
        np.concatenate([part[::-1], stay, after]) for part, after in zip(parts, [*parts[1:], parts[0]], strict=True)
    ]
    with TemporaryDirectory() as folder:
        for what, rides, options in (
            ("rides from a home to other ends", parts, {"hide_endpoints": True}),
            ("stops at a home", stops, {"near": [HOME]}),
        ):
            path = Path(folder) / "rides.csv"
            _write_rides(path, rides)
            report.time(f"{count} {what}", lambda path=path, options=options: hide(path, within_km=0.2, **options))


def _write_rides(path: Path, rides: Sequence[FloatArray]) -> None:
    """Write a ride every three hours."""
    start, projection = np.datetime64("2024-03-09T10:00:00", "us"), LocalProjection(*HOME)
    segments = []
    for number, points in enumerate(rides):
        latitude, longitude = projection.to_latlon(points).T
        times = start + (10_800 * number + 10 * np.arange(len(points))) * np.timedelta64(1_000_000, "us")
        segments.append(Segment(latitude, longitude, times, np.full(len(points), np.nan)))
    write_recording(path, Recording(tuple(segments), "cycling"), overwrite=True)


def _sample_ride(city: City, home: tuple[int, int], by: tuple[int, int], seed: int) -> FloatArray:
    ride = sample_ride(city, home, [by], rng=seed)
    return city.projection.to_plane(ride.latitude, ride.longitude)


def _find_ends(ride: FloatArray, first: int, last: int) -> Ends:
    """Return the gates if the points from the first to the last are published."""
    kept = ride[first : last + 1]
    out = np.flatnonzero(np.hypot(*(kept - kept[0]).T) >= AHEAD)
    back = np.flatnonzero(np.hypot(*(kept - kept[-1]).T) >= AHEAD)
    return [(kept[0], kept[out[0]]), (kept[-1], kept[back[-1]])]


def _find_ends_outside(ride: FloatArray, middle: FloatArray) -> Ends:
    beyond = np.flatnonzero(np.hypot(*(ride - middle).T) > RADIUS)
    return _find_ends(ride, int(beyond[0]), int(beyond[-1]))


def _trim_ride(ride: FloatArray) -> Ends:
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(ride[::5], axis=0).T))])
    beyond = 5 * np.flatnonzero((along > RADIUS) & (along < along[-1] - RADIUS))
    return _find_ends(ride, int(beyond[0]), int(beyond[-1]))


WAYS: dict[str, Callable[[FloatArray, FloatArray, FloatArray], Ends]] = {
    "ends trimmed by 500 m": lambda ride, _, __: _trim_ride(ride),
    "circle of 500 m": lambda ride, home, _: _find_ends_outside(ride, home),
    "circle of 500 m, moved": lambda ride, _, middle: _find_ends_outside(ride, middle),
}
HIDDEN = ("hide, Markov adversary", "hide, extrapolating adversary", "hide, adversary with a street map")


def _compute_errors(home: FloatArray, rides: Sequence[Ends], name: str) -> list[float]:
    """Return the error of the posterior mean after each number of rides."""
    reach = np.arange(-1.5, 1.5 + _RASTER, _RASTER)
    points = np.round(home / 0.1) * 0.1 + np.stack(np.meshgrid(reach, reach), axis=-1).reshape(-1, 2)
    log, errors = np.zeros(len(points)), []
    centre = np.zeros(len(points))  # log likelihoods of a centre at each point
    for number, ride in enumerate(rides, start=1):
        for gate, ahead in ride:
            there = gate - points
            apart = np.hypot(*there.T)
            turn = np.arctan2(there[:, 1], there[:, 0]) - np.arctan2(*(ahead - gate)[::-1])
            log += -0.5 * (np.angle(np.exp(1j * turn)) / TURN_STD) ** 2
            ring = -0.5 * ((apart - RADIUS) / 0.015) ** 2
            if "trimmed" in name:
                log += np.where((apart >= 0.5 * RADIUS) & (apart <= 1.03 * RADIUS), 0.0, -50.0)
            elif "moved" in name:
                centre += np.maximum(ring, -50.0)
            else:
                log += np.maximum(ring, -50.0)
        if number in RIDES:
            mass = np.exp(log - log.max())
            if "moved" in name:
                mass *= _sum_near_mass(np.exp(centre - centre.max()), len(reach))
            errors.append(float(np.hypot(*(mass @ points / mass.sum() - home))))
    return errors


def _sum_near_mass(middles: FloatArray, side: int) -> FloatArray:
    """Return for each point the mass of centres within 250 m."""
    from scipy.signal import fftconvolve

    steps = np.arange(-MOVED, MOVED + _RASTER / 2, _RASTER)
    disc = np.hypot(*np.meshgrid(steps, steps)) <= MOVED
    return np.maximum(fftconvolve(middles.reshape(side, side), disc.astype(float), mode="same").ravel(), 0.0)


def _read_city_streets(city: City) -> StreetMap:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "streets.geojson"
        path.write_text(json.dumps(build_streets_geojson(city)))
        return read_street_map(path)


def _compute_zone_errors(
    city: City, street_map: StreetMap, home: FloatArray, rides: Sequence[FloatArray]
) -> list[list[float]]:
    (place,) = city.projection.to_latlon(home)
    zone = HiddenZone(Square.around(float(place[0]), float(place[1]), 1.5 * RADIUS), RADIUS)
    streets = ZoneStreets(zone, street_map)

    def convert_to_plane(points: FloatArray) -> FloatArray:
        return zone.projection.to_plane(*city.projection.to_latlon(points).T)

    (true_point,) = convert_to_plane(home)
    likelihoods: list[dict[str, FloatArray]] = []
    stretches: list[Stretch] = []
    results: list[list[float]] = [[] for _ in HIDDEN]
    for number, ride in enumerate(rides, start=1):
        track = convert_to_plane(ride)
        outside = np.abs(track).max(axis=1) > zone.half_km
        beyond = np.flatnonzero(outside)
        ends = _find_ends(track, int(beyond[0]), int(beyond[-1]))
        # Up to the first return into the zone.
        first, last = int(beyond[0]), int(beyond[-1])
        until = first + int(np.argmin([*outside[first:], False]))
        since = last + 1 - int(np.argmin([*outside[last::-1], False]))
        step = round(AHEAD_KM / np.hypot(*np.diff(track, axis=0).T).mean())
        ahead = track[min(first + step, until - 1)], track[max(last - step, since)]
        out, back = (Gate(*end, towards) for end, towards in zip(ends, ahead, strict=True))
        ride_stretches = [Stretch(None, out), Stretch(back, None)]
        stretches += ride_stretches
        likelihoods += [compute_log_likelihoods(zone, stretch) for stretch in ride_stretches]
        if number in RIDES:
            guesses = [error.posterior @ zone.grid.points[zone.core] for error in infer_location(zone, likelihoods)]
            posterior = compute_candidate_posteriors(streets, likelihoods, stretches)[STREET]
            guesses.append(posterior @ streets.candidates.points)
            for errors, guess in zip(results, guesses, strict=True):
                errors.append(float(np.hypot(*(guess - true_point))))
    return results
