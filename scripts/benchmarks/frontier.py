"""How far off a recipient is at once, for how far off who knows a person's habits is in hindsight, on people not seen.

Of GeoLife and Gowalla in the folder named by DPHMM_REAL_DATA (without it, or with --small, of the synthetic city) some
people are left out, a model is learned from the others, and the later half of the days of those left out is released in
several ways: by this package, by planar Laplace noise, snapped to squares, and as seldom as every few hours. One
recipient reads all of them with the model of the others, at once. Two adversaries read them in hindsight: one with the
same model, one who has learned each person's habits from the earlier half of their days. Errors are mean distances of
the mean of a belief from the true place; people count alike; intervals are over the seeds, which leave other people
out.

An adversary in hindsight knows what the recipient knows and more, so that no way of releasing has a recipient who is
nearer than they are, but as far as models are wrong: the ratio of the two errors is at least about 1. What is missing
to 1 is all that any way of releasing could still win at that level.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dphmm import ReleaseSettings, Schedule, read
from dphmm.calibrate.simulation import Figure
from dphmm.jobs.models import region
from dphmm.mechanisms import PlanarLaplaceMechanism
from dphmm.model import MarkovModel, Observations, filter_releases, smooth_releases
from dphmm.model.fitting import fit_shrunk
from dphmm.model.habits import with_habits
from dphmm.model.moves import state_sequences
from dphmm.readers.synthetic_city import build_city, synthetic_trajectories
from dphmm.release.engine import Releaser
from dphmm.release.ledger import DAY_SECONDS
from dphmm.space.grid import Grid
from dphmm.space.trajectory import Trajectory
from scripts.benchmarks.report import Report

CELL_KM = 0.5
LEVELS_M = (500.0, 900.0, 1500.0)
SETS = {
    "geolife": ("geolife/geolife_beijing.tar.gz", (39.87, 116.29, 39.97, 116.46), 600.0, 60, 6, 80),
    "gowalla": ("gowalla/loc-gowalla_LA.txt.gz", (34.00, -118.50, 34.11, -118.33), 3600.0, 40, 20, 40),
}
"""File, region, step, the moments and days that a person needs to be left out, and at how many they are looked at."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", choices=[*SETS, "city"], action="append", help="of these alone; may be repeated")
    parser.add_argument("--people", type=int, default=8, help="how many are left out at a time (default: 8)")
    parser.add_argument("--seeds", type=int, default=5, help="how often others are (default: 5)")


@dataclass(frozen=True, eq=False)
class Person:
    """Somebody who was left out: the later half of their days, and how they move by the earlier half."""

    slots: np.ndarray
    states: np.ndarray
    places: np.ndarray
    habits: MarkovModel

    @property
    def gaps(self) -> np.ndarray:
        return np.diff(self.slots, prepend=self.slots[0] - 1)


Way = Callable[[Person, np.random.Generator], tuple[np.ndarray, np.ndarray]]
"""What a way of releasing tells of a person: log densities ``(T, N)``, and the budget of each moment."""


def run(report: Report, options: argparse.Namespace) -> None:
    real = os.environ.get("DPHMM_REAL_DATA")
    chosen = options.data or ([*SETS] if real and not report.small else ["city"])
    people, seeds = (3, 2) if report.small else (options.people, options.seeds)
    for name in chosen:
        if name != "city" and not real:
            report.skip(name, "DPHMM_REAL_DATA names no folder")
            continue
        curves: dict[str, list[np.ndarray]] = {}
        for seed in range(seeds):
            model, left_out = world(name, real or "", people, seed, 40 if report.small else None)
            for family, ways in families(model, report.small).items():
                rng = np.random.default_rng([seed, len(family)])
                curves.setdefault(family, []).append(np.array([errors(model, left_out, way, rng) for way in ways]))
        tell(report, name, {family: np.array(found) for family, found in curves.items()})


def world(name: str, folder: str, people: int, seed: int, most: int | None) -> tuple[MarkovModel, list[Person]]:
    """A model of some people, and the others."""
    if name == "city":
        city = build_city()
        box, step, least, days, moments = city.box, 600.0, 60, 4, 250
        everyone: Sequence[Trajectory] = synthetic_trajectories(36, 8, 5, city=city)
    else:
        file, box, step, least, days, moments = SETS[name]
        everyone = read(Path(folder, file)).trajectories
    grid = region(bbox=box, cell=CELL_KM)
    assert isinstance(grid, Grid)
    day, kept = int(DAY_SECONDS // step), []
    for one in everyone:
        track = one.resample(step)
        states = grid.locate(track.latitude, track.longitude)
        inside = states >= 0
        places = grid.projection.to_plane(track.latitude[inside], track.longitude[inside])
        kept.append((track.slots[inside], states[inside], places))
    enough = [i for i, (slots, *_) in enumerate(kept) if len(slots) >= least and len(np.unique(slots // day)) >= days]
    chosen = set(np.random.default_rng(seed).permutation(enough)[:people].tolist())
    others = [one for i, one in enumerate(everyone) if i not in chosen]
    model = fit_shrunk(state_sequences(others, grid, step), grid, step).model
    found = []
    for i in sorted(chosen):
        slots, states, places = kept[i]
        begins = np.unique(slots // day)
        later = slots // day >= begins[len(begins) // 2]
        habits = with_habits(model, slots[~later], states[~later], day).model
        last = np.flatnonzero(later)[: most or moments]
        found.append(Person(slots[last], states[last], places[last], habits))
    return model, found


def families(model: MarkovModel, small: bool) -> dict[str, list[Way]]:
    """Ways of releasing, from the nearest to the farthest of each kind."""

    def released(epsilon: float, schedule: Schedule | None = None) -> Way:
        return by_engine(ReleaseSettings("utility:1km", epsilon, schedule=schedule).engine(model, 0))

    every = slice(None, None, 2 if small else 1)
    return {
        "dphmm, a target": [released(4, Schedule(target)) for target in (0.9, 1.2, 1.6, 2.2)[every]],
        "dphmm, a day's budget": [released(day, Schedule(window_epsilon=day)) for day in (100, 40, 20, 10, 3)[every]],
        "planar Laplace": [noise(model, scale) for scale in (0.25, 0.4, 0.65, 1.0, 1.6, 2.5)[every]],
        "snapped to squares": [snap(model, cells) for cells in (2, 3, 4, 5, 6, 8, 10)[every]],
        "exact, seldom": [seldom(model, hours) for hours in (0.5, 1, 2, 4, 8, 24)[every]],
    }


def by_engine(engine: Releaser) -> Way:
    def way(person: Person, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        mine = engine.another(rng)
        mine.restart(int(person.slots[0]))
        rows, spent = np.empty((len(person.slots), engine.model.size)), np.zeros(len(person.slots))
        for at, (state, gap) in enumerate(zip(person.states.tolist(), person.gaps.tolist(), strict=True)):
            step = mine.prepare(steps=gap)
            record = mine.draw(step, state)
            rows[at], spent[at] = mine.log_likelihood(step, record.released), record.epsilon
        return rows, spent

    return way


def noise(model: MarkovModel, scale: float) -> Way:
    """At every moment; the scale in kilometres is half the mean distance. Epsilon is per kilometre."""
    mechanism, points = PlanarLaplaceMechanism(1 / scale, 1.0), model.space.points

    def way(person: Person, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        drawn = mechanism.sample(points[person.states], rng)
        rows = np.stack([mechanism.log_density(np.broadcast_to(z, points.shape), points) for z in drawn])
        return rows, np.full(len(drawn), 1 / scale)

    return way


def snap(model: MarkovModel, cells: int) -> Way:
    """To squares of some cells a side: where the reader's model has cells, rounding is no better."""
    grid = np.floor((model.space.points - model.space.points.min(axis=0)) / (CELL_KM * cells) + 1e-9)
    square = np.unique(grid, axis=0, return_inverse=True)[1].ravel()

    def way(person: Person, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG001 - nothing is drawn
        rows = np.where(square[person.states][:, None] == square[None], 0.0, -60.0)
        return rows, np.full(len(rows), np.inf)

    return way


def seldom(model: MarkovModel, hours: float) -> Way:
    """The cell as it is, unless one was told in the last hours."""

    def way(person: Person, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG001 - nothing is drawn
        rows, last = np.zeros((len(person.slots), model.size)), -np.inf
        told = np.zeros(len(rows))
        for at, slot in enumerate(person.slots.tolist()):
            if (slot - last) * model.step >= 3600 * hours:
                last, told[at] = slot, np.inf
                rows[at] = np.where(np.arange(model.size) == person.states[at], 0.0, -60.0)
        return rows, told

    return way


def errors(model: MarkovModel, people: Sequence[Person], way: Way, rng: np.random.Generator) -> np.ndarray:
    """Means over people: at once, in hindsight, in hindsight with habits, metres; and the dearest day's budget."""
    points, day, found = model.space.points, int(DAY_SECONDS // model.step), []
    for person in people:
        rows, spent = way(person, rng)
        observed = Observations(rows, person.gaps, int(person.slots[0]))
        times = np.arange(len(rows))
        filtering = filter_releases(model, observed)
        read_by = [filtering.at(), smooth_releases(model, observed, filtering)]
        own = filter_releases(person.habits, observed)
        read_by.append(smooth_releases(person.habits, observed, own))
        off = [
            1000 * float(np.linalg.norm(beliefs.probabilities(times) @ points - person.places, axis=1).mean())
            for beliefs in read_by
        ]
        days = [spent[(person.slots > last - day) & (person.slots <= last)].sum() for last in person.slots.tolist()]
        found.append([*off, max(days)])
    return np.mean(found, axis=0)


def tell(report: Report, name: str, curves: dict[str, np.ndarray]) -> None:
    """Every setting, then the recipient's errors at the levels; ``(seeds, settings, 4)`` of each family."""
    for family, found in curves.items():
        for setting in range(found.shape[1]):
            once, hindsight, habits = (Figure.from_values(found[:, setting, k]) for k in range(3))
            text = f"{name}: {family} {setting + 1}: at once, ± {once.margin:,.0f}"
            others = {
                f"in hindsight, ± {hindsight.margin:,.0f}": hindsight.mean,
                f"adversary who knows habits, ± {habits.margin:,.0f}": habits.mean,
            }
            report.row(f"{text}; dearest day ε {found[:, setting, 3].mean():.3g}", once.mean, "m", others)
    ours = [family for family in curves if family.startswith("dphmm")]
    for level in LEVELS_M:
        at = {family: np.array([_at(one, level) for one in found]) for family, found in curves.items()}
        for family in ours:
            if not np.isfinite(at[family]).all():
                report.skip(f"{name}: {family}, habits adversary at {level:,.0f} m", "no setting of it is there")
                continue
            others = {
                f"{other} {_share(at[other] / at[family])}": at[other].mean() for other in curves if other != family
            }
            others = {text: value for text, value in others.items() if np.isfinite(value)}
            limit = {f"limit: no nearer than the adversary in hindsight, ratio {level / at[family].mean():.2f}": level}
            what = f"{name}: {family}, habits adversary at {level:,.0f} m"
            report.row(
                f"{what}, ± {Figure.from_values(at[family]).margin:,.0f}", at[family].mean(), "m", others | limit
            )


def _share(ratios: np.ndarray) -> str:
    """By how much another is farther, with the 99 % interval over seeds."""
    if not np.isfinite(ratios).all():
        return ""
    figure = Figure.from_values(100 * (ratios - 1))
    return f"({figure.mean:+.0f} ± {figure.margin:.0f} %)"


def _at(settings: np.ndarray, level: float) -> float:
    """The recipient's error where the habits adversary's is at a level, between settings; NaN beyond them."""
    order = np.argsort(settings[:, 2])
    habits, once = settings[order, 2], settings[order, 0]
    if not habits[0] <= level <= habits[-1]:
        return float("nan")
    return float(np.exp(np.interp(np.log(level), np.log(habits), np.log(once))))
