"""One synthetic day in a region of 20 km under three policies, with equal epsilon.

The first policy connects all locations, the second all locations within 1 km, the third all locations of a district.
The region, its districts and the day are invented. The model is built from the region alone.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dphmm import PolicyGraph, Releaser
from dphmm.model import region_prior
from dphmm.plots.canvas import ESTIMATE_COLOUR, GREY, RELEASE_COLOUR, TRUE_COLOUR
from dphmm.space import Grid
from scripts.drawings.sheet import save, write

DATA: tuple[str, ...] = ()
RUNS = 1
SIDE_KM = 20.0
CELL_KM = 1.25
STEP_SECONDS = 1200.0

# Kilometres from the centre, with the timesteps spent there: home, work, lunch, work, a shop, home.
STOPS = (((-6.5, -5.5), 4), ((2.5, 3.0), 11), ((3.5, 4.5), 3), ((2.5, 3.0), 12), ((5.5, -4.0), 4), ((-6.5, -5.5), 7))
# It releases a state of the same component, which makes the policy visible in the releases.
MECHANISM = "graph-exponential"
# Timesteps of each trip between two stops.
MOVE_STEPS = 1

# Centres of the districts, kilometres; a location belongs to the nearest one.
SEATS = np.array(
    [(-7, -6), (-6.5, 1.5), (-5, 7.5), (-0.5, -6.5), (-0.5, 0.5), (2.5, 6.5), (6, -6.5), (6.5, 1.0), (8, 7.5)]
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epsilon", type=float, default=1.0)


def draw(options: argparse.Namespace) -> None:
    half = SIDE_KM / 2
    degrees = half / 111.2
    east = degrees / np.cos(np.radians(45.0))
    cell_km = 2.0 if options.small else CELL_KM
    space = Grid.over((45.0 - degrees, -30.0 - east, 45.0 + degrees, -30.0 + east), cell_km=cell_km)
    points = space.measurements().points
    model = region_prior(space, STEP_SECONDS, "driving")
    districts = np.linalg.norm(points[:, None] - SEATS, axis=2).argmin(axis=1)
    policies = {
        "complete": PolicyGraph.complete(space.size),
        "utility:1km": PolicyGraph.utility(points, 1.0, cell_km),
        "categories by district": PolicyGraph.categorical(districts.tolist()),
    }
    track = make_day()
    states = np.linalg.norm(track[:, None] - points, axis=2).argmin(axis=1)
    figure = Figure(figsize=(13.2, 4.9), layout="constrained")
    rows = []
    for (name, policy), ax in zip(policies.items(), figure.subplots(1, 3, sharex=True, sharey=True), strict=True):
        releaser = Releaser(model, points, policy, options.epsilon, MECHANISM, rng=options.seed)
        records = [releaser.release(int(state)) for state in states]
        released = np.array([record.released for record in records])
        estimates = np.array([record.estimate for record in records])
        errors = np.linalg.norm(estimates - track, axis=1)
        outside = int((np.abs(released) > half).any(axis=1).sum())
        rows.append((name, options.epsilon, len(records), outside, float(np.median(errors))))
        if name.startswith("categories"):
            draw_borders(ax, points, districts, cell_km)
        ax.plot(*released.T, "o", color=RELEASE_COLOUR, ms=3, alpha=0.45, mew=0, label="released location")
        ax.plot(*estimates.T, "o-", color=ESTIMATE_COLOUR, ms=3.5, lw=0.6, alpha=0.8, label="published estimate")
        ax.plot(*track.T, color=TRUE_COLOUR, lw=1.6, label="true track (synthetic)")
        ax.set(xlim=(-half, half), ylim=(-half, half), aspect="equal", xlabel="km east")
        ax.set_title(
            f"{name}, ε = {options.epsilon:g} per timestep\nmedian error of estimates {np.median(errors):.1f} km",
            fontsize=10,
        )
        if outside:
            ax.annotate(
                f"{outside} of {len(records)} releases are outside", (0.98, 0.02), xycoords="axes fraction", ha="right",
                fontsize=8, color=RELEASE_COLOUR,
            )  # fmt: skip
    figure.axes[0].set_ylabel("km north")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    save(figure, options.folder / "policies.png")
    write(
        options.folder / "policies.csv",
        ("policy", "epsilon", "releases", "released_outside_region", "median_estimate_error_km"),
        rows,
    )


def make_day() -> np.ndarray:
    """Return the location at each timestep, ``(T, 2)`` kilometres from the centre."""
    legs = [np.repeat([STOPS[0][0]], STOPS[0][1], axis=0)]
    for (start, _), (end, steps) in pairwise(STOPS):
        shares = np.arange(1, MOVE_STEPS + 1)[:, None] / (MOVE_STEPS + 1)
        legs.append(np.add(start, shares * np.subtract(end, start)))
        legs.append(np.repeat([end], steps, axis=0))
    return np.concatenate(legs)


def draw_borders(ax: Axes, points: np.ndarray, districts: np.ndarray, cell_km: float) -> None:
    """Draw the sides of cells that belong to two districts."""
    order = {tuple(np.rint(point / cell_km * 2).astype(int)): index for index, point in enumerate(points)}
    for (x, y), index in order.items():
        for dx, dy in ((2, 0), (0, 2)):
            other = order.get((x + dx, y + dy))
            if other is not None and districts[index] != districts[other]:
                middle = (points[index] + points[other]) / 2
                along = np.array([dy, dx]) / 4 * cell_km
                ax.plot(*np.array([middle - along, middle + along]).T, color=GREY, lw=0.8)
