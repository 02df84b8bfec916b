"""What hiding a home in rides gives away, beside trimmed ends and circles, as sports services have them.

Rides in the streets of the synthetic city begin and end at a home, and go by a corner two kilometres away or farther, a
fix every second. The adversary knows how the home was hidden and nothing of the streets, takes all places to be as
likely before, and weighs each by how well it explains the ends of what was told: by the angle at the ends (a normal
curve of 30 degrees), and

- of trimmed ends by the distance: along the way 500 m were cut, as the crow flies from 0.5 to 1 times that;
- of a circle around the home by the radius, to 15 m (Hassan et al., USENIX Security 2018);
- of a circle whose middle was moved once by up to 250 m by every middle;
- of a zone of ``dphmm hide`` as its two readers do.

Their guess is the mean place; told is how far the home is from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.audit.hidden_place import TURN, Gate, HiddenZone, Stretch, known_of
from dphmm.readers.synthetic_city import City, build_city
from dphmm.space.grid import Square
from scripts.benchmarks.report import Report
from scripts.make_sample import synthetic_ride

RADIUS, MOVED, AHEAD = 0.5, 0.25, 0.1
RIDES = (1, 3, 10)
_RASTER = 0.025
_FAR = 2.0

Ends = list[tuple[FloatArray, FloatArray]]
"""The gates of a ride, and a place farther along outside from each."""


def run(report: Report, _: argparse.Namespace) -> None:
    homes = 4 if report.small else 40
    city, rng = build_city(), np.random.default_rng(0)
    corners = sorted(city.streets)
    inner = [corner for corner in corners if np.abs(city.point(corner)).max() < 1.3]
    chosen = [inner[at] for at in rng.choice(len(inner), homes, replace=homes > len(inner))]
    off: dict[str, list[list[float]]] = {name: [] for name in (*WAYS, *HIDDEN)}
    for home in chosen:
        point = city.point(home)
        far = [one for one in corners if np.hypot(*(city.point(one) - point)) >= _FAR]
        rides = [_ride(city, home, far[at], number) for number, at in enumerate(rng.choice(len(far), max(RIDES)))]
        middle = point + MOVED * np.sqrt(rng.random()) * np.array([np.cos(a := 2 * np.pi * rng.random()), np.sin(a)])
        for name, way in WAYS.items():
            off[name].append(_guesses(point, [way(ride, point, middle) for ride in rides], name))
        for name, found in zip(HIDDEN, _zone(city, point, rides), strict=True):
            off[name].append(found)
    found = {name: 1000 * np.array(some) for name, some in off.items()}
    for name, errors_of in found.items():
        for column, count in enumerate(RIDES):
            errors = errors_of[:, column]
            what = f"{name}, {count} ride{'s' if count > 1 else ''}"
            others = {other: float(np.median(found[other][:, column])) for other in HIDDEN if other != name}
            report.row(f"{what}: guess off, median", float(np.median(errors)), "m", others)
            report.row(f"{what}: guess within 100 m", 100 * float((errors <= 100).mean()), "%")


def _ride(city: City, home: tuple[int, int], by: tuple[int, int], seed: int) -> FloatArray:
    told = synthetic_ride(city, home, [by], rng=seed)
    return city.projection.to_plane(told.latitude, told.longitude)


def _ends(ride: FloatArray, first: int, last: int) -> Ends:
    """Gates where points from the first to the last are told."""
    told = ride[first : last + 1]
    out = np.flatnonzero(np.hypot(*(told - told[0]).T) >= AHEAD)
    back = np.flatnonzero(np.hypot(*(told - told[-1]).T) >= AHEAD)
    return [(told[0], told[out[0]]), (told[-1], told[back[-1]])]


def _outside(ride: FloatArray, middle: FloatArray) -> Ends:
    beyond = np.flatnonzero(np.hypot(*(ride - middle).T) > RADIUS)
    return _ends(ride, int(beyond[0]), int(beyond[-1]))


def _trimmed(ride: FloatArray) -> Ends:
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(ride[::5], axis=0).T))])
    beyond = 5 * np.flatnonzero((along > RADIUS) & (along < along[-1] - RADIUS))
    return _ends(ride, int(beyond[0]), int(beyond[-1]))


WAYS: dict[str, Callable[[FloatArray, FloatArray, FloatArray], Ends]] = {
    "ends trimmed by 500 m": lambda ride, _, __: _trimmed(ride),
    "circle of 500 m": lambda ride, home, _: _outside(ride, home),
    "circle of 500 m, moved": lambda ride, _, middle: _outside(ride, middle),
}
HIDDEN = ("hide, who knows how people move", "hide, who assumes that people go straight on")


def _guesses(home: FloatArray, rides: Sequence[Ends], name: str) -> list[float]:
    """How far the mean place is off after each number of rides."""
    reach = np.arange(-1.5, 1.5 + _RASTER, _RASTER)
    points = np.round(home / 0.1) * 0.1 + np.stack(np.meshgrid(reach, reach), axis=-1).reshape(-1, 2)
    log, found = np.zeros(len(points)), []
    centre = np.zeros(len(points))  # of a middle at each point
    for number, ride in enumerate(rides, start=1):
        for gate, ahead in ride:
            there = gate - points
            apart = np.hypot(*there.T)
            turn = np.arctan2(there[:, 1], there[:, 0]) - np.arctan2(*(ahead - gate)[::-1])
            log += -0.5 * (np.angle(np.exp(1j * turn)) / TURN) ** 2
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
                mass *= _near(np.exp(centre - centre.max()), len(reach))
            found.append(float(np.hypot(*(mass @ points / mass.sum() - home))))
    return found


def _near(middles: FloatArray, side: int) -> FloatArray:
    """For each point, the mass of middles at most 250 m away."""
    from scipy.signal import fftconvolve

    steps = np.arange(-MOVED, MOVED + _RASTER / 2, _RASTER)
    disc = np.hypot(*np.meshgrid(steps, steps)) <= MOVED
    return np.maximum(fftconvolve(middles.reshape(side, side), disc.astype(float), mode="same").ravel(), 0.0)


def _zone(city: City, home: FloatArray, rides: Sequence[FloatArray]) -> list[list[float]]:
    (place,) = city.projection.to_latlon(home)
    zone = HiddenZone(Square.around(float(place[0]), float(place[1]), 1.5 * RADIUS), RADIUS)

    def plane(points: FloatArray) -> FloatArray:
        return zone.projection.to_plane(*city.projection.to_latlon(points).T)

    (own,), told = plane(home), list[dict[str, FloatArray]]()
    found: list[list[float]] = [[] for _ in HIDDEN]
    for number, ride in enumerate(rides, start=1):
        track = plane(ride)
        beyond = np.flatnonzero(np.abs(track).max(axis=1) > zone.half_km)
        out, back = (Gate(*end) for end in _ends(track, int(beyond[0]), int(beyond[-1])))
        told += [zone.log_likelihoods(Stretch(None, out)), zone.log_likelihoods(Stretch(back, None))]
        if number in RIDES:
            for errors, one in zip(found, known_of(zone, told), strict=True):
                guess = one.posterior @ zone.grid.points[zone.core]
                errors.append(float(np.hypot(*(guess - own))))
    return found
