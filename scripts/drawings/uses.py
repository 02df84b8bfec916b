"""Uses of releases by policy and epsilon, on days of GeoLife and Gowalla.

A third of the users trains the model. Each other user contributes the day with the most hours with a fix, if there are
at least three such hours, and at most 100 users are released. All days are laid over each other, from 8 to 20 o'clock
local time in steps of an hour. An hour without a fix has the last location, or the first one before any.
The first tenth of the users are patients. Areas of monitoring and of the policy are squares of 2 km in Beijing, with
cells of 0.34 km, and of 4 km in Los Angeles, with cells of 2 km. The transmission model is that of
`dphmm.audit.compute_reproduction_number`, with 5 % per hour of contact and all hours infectious. It is this package's,
not that of a paper. All intervals are 95 % over users.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import shapely

from dphmm import MarkovModel, ReleaseSettings
from dphmm.arrays import IntArray
from dphmm.flows.areas import Areas
from dphmm.jobs import Data, DayAlignment, UsesSettings, compare_uses, learn
from dphmm.jobs.counts import build_daily_population
from dphmm.policy.zones import PolygonLayer
from dphmm.space.grid import Grid, get_preset_box
from dphmm.space.states import StateSpace
from scripts.drawings.sheet import write

DATA = ("geolife", "gowalla")
RUNS = 1
STEP_SECONDS = 3600
MIN_HOURS = 3
MAX_USERS = 100
EPSILONS = (0.5, 1.0, 4.0)
UTILITY = "utility:1km"
# Data set → cell in kilometres, side of an area in cells, and hours by which local time is ahead of UTC.
PLACES = {"geolife": (0.34, 6, 8.0), "gowalla": (2.0, 2, -8.0)}
MEASURES = (
    "mean_error_m",
    "monitoring_error",
    "reproduction_error",
    "tracing_precision",
    "tracing_recall",
    "updated_tracing_precision",
    "updated_tracing_recall",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bbox", type=float, nargs=4, metavar=("S", "W", "N", "E"), help="region instead of the cities"
    )


def draw(options: argparse.Namespace) -> None:
    rows = []
    for name in DATA:
        started = time.perf_counter()
        cell, area_cells, offset = PLACES[name]
        grid = Grid.over(tuple(options.bbox) if options.bbox else get_preset_box(name), cell)
        max_users = 6 if options.small else MAX_USERS
        model, states = read_days(getattr(options, name), grid, offset, options.seed, max_users)
        epsilons = EPSILONS[:1] if options.small else EPSILONS
        settings = [
            ReleaseSettings(policy, epsilon, layers=layers)
            for policy, layers in list_policies(model.space, area_cells)
            for epsilon in epsilons
        ]
        patients = max(1, len(states) // 10)
        comparisons = compare_uses(
            model, settings, states, num_patients=patients, uses=UsesSettings(area_cells), rng=options.seed
        )
        for comparison in comparisons:
            result = comparison.to_dict()
            metrics = [result[measure][end] for measure in MEASURES for end in ("value", "low", "high")]
            shown = [name, result["policy"], result["epsilon"], result["num_users"], patients, result["num_contacts"]]
            numbers = [result[key] for key in ("disclosed_share", "reproduction_number")]
            rows.append([*shown, *numbers, *metrics])
        print(f"{name}: {len(states)} users, {model.size} states, {time.perf_counter() - started:.0f} s")
    header = ["data", "policy", "epsilon", "users", "patients", "contacts", "disclosed_share", "reproduction_number"]
    header += [f"{measure}{end}" for measure in MEASURES for end in ("", "_low", "_high")]
    write(options.folder / "PRIVATE-uses.csv", header, rows)


def read_days(path: Path, grid: Grid, offset: float, seed: int, max_users: int) -> tuple[MarkovModel, IntArray]:
    """Return a model of a third of the users, and one day of each other user."""
    data = Data((path,), skip_bad=True)
    tracks = data.read().trajectories
    order = np.random.default_rng(seed).permutation(len(tracks))
    training = [tracks[number] for number in order[: len(tracks) // 3]]
    model = learn(Data(tuple(training)), grid, step_seconds=STEP_SECONDS, calibrate_radii=False).model
    others = [tracks[number] for number in order[len(tracks) // 3 :]]
    days = build_daily_population(others, grid, STEP_SECONDS, DayAlignment((8.0, 20.0), offset))
    hours = days.seen.sum(axis=1)
    best: dict[str, int] = {}
    for row, title in enumerate(days.members):
        user = title.rsplit(" ", 1)[0]
        if hours[row] >= max(MIN_HOURS, hours[best[user]] + 1 if user in best else 0):
            best[user] = row
    return model, days.states[list(best.values())[:max_users]]


def list_policies(grid: StateSpace, area_cells: int) -> list[tuple[str, tuple[PolygonLayer, ...]]]:
    """Return the policies with their layers: a radius, areas, and all states."""
    areas = Areas.from_space(grid, area_cells)
    features = []
    for number, name in enumerate(areas.districts):
        # The hull of the centres, a little larger, contains no other centre.
        centres = shapely.points(areas.places[areas.district_of == number][:, ::-1])
        outline = shapely.buffer(shapely.convex_hull(shapely.multipoints(centres)), 1e-4)
        features.append(
            {"type": "Feature", "properties": {"name": name}, "geometry": shapely.geometry.mapping(outline)}
        )
    layer = PolygonLayer("areas.geojson", json.dumps({"type": "FeatureCollection", "features": features}))
    return [(UTILITY, ()), ("categorical:areas.geojson", (layer,)), ("complete", ())]
