"""Errors and intervals of flow tables by epsilon, compared with other methods.

Visits by area and flows between areas are compared with the true counts of every trip of every user. An error is the
sum of absolute differences over the sum of the true counts. Thresholds of 5 and 10 suppress cells with fewer users and
have no guarantee. Plain Laplace tables have noise of the same sensitivity in every cell, with negative values set to 0.
Synthetic users are sampled from a model with the same epsilon. Their counts are scaled to the true total, which the
model does not contain.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from dphmm.flows import Areas, FlowSettings
from dphmm.flows.noisy_tables import get_parts
from dphmm.flows.tables import Events, Table, concatenate_events, count_cells, select_bounded
from dphmm.jobs import learn, region, synthesize
from dphmm.jobs.flows import build_tables, extract_block_events
from dphmm.jobs.input_data import Data, iterate_blocks
from dphmm.mechanisms.discrete_laplace import CountNoise
from dphmm.mechanisms.exact_sampling import parse_rational
from dphmm.random import as_random_source
from scripts.drawings.sheet import save, write

DATA = ("gowalla", "geolife")
TITLES = {"gowalla": "Gowalla", "geolife": "GeoLife"}
RUNS = 20
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Maximum number of events per user in plain tables.
PLAIN = 10

SETTINGS: dict[str, dict[str, Any]] = {
    "gowalla": {"stay": 0, "gap": 24, "time_classes": "all", "zone": "America/Los_Angeles"},
    "geolife": {"time_classes": "all", "zone": "Asia/Shanghai"},
}
# Data → region of the model, step in seconds, and side of a cell in kilometres.
MODELS = {"gowalla": ("gowalla", 3600.0, 2.0), "geolife": ("geolife", 300.0, 1.0)}

METHODS = ("dphmm", "dphmm, unbiased", "plain Laplace", "synthetic users", "threshold 5", "threshold 10")
LOOKS = {
    "dphmm": "C3-o",
    "dphmm, unbiased": "C1--d",
    "plain Laplace": "C0--s",
    "synthetic users": "C2--^",
    "threshold 5": "k:",
    "threshold 10": "k-.",
}
TABLES = ("visits", "flows")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--areas", type=Path, nargs=2, required=True, metavar="FILE", help="polygons of each data set")
    parser.add_argument("--model-bbox", type=float, nargs=4, metavar="DEGREES", help="region of the models")


def draw(options: argparse.Namespace) -> None:
    logging.disable(logging.WARNING)  # each run warns about repaired polygons
    rows: list[tuple[object, ...]] = []
    for name, layer in zip(DATA, options.areas, strict=True):
        rows += [
            (name, *row) for row in compare_methods(name, getattr(options, name), Areas.from_polygons(layer), options)
        ]
    header = ["data", "table", "method", "epsilon", "error", "of the largest half"]
    header += ["bound", "covered", "unbounded covered", "is_significant", "sure of zero"]
    write(options.folder / "flows.csv", header, ([*row, *[""] * (len(header) - len(row))] for row in rows))
    save(draw_errors(rows), options.folder / "flows.png")


def read_tables_and_events(
    path: Path | str, areas: Areas, settings: FlowSettings
) -> tuple[dict[str, Table], dict[str, Events]]:
    """Return the tables, and all events."""
    layout = settings.layout(areas)
    blocks = iterate_blocks(Data.from_any(path).stream([], may_be_empty=True))
    events = concatenate_events(
        extract_block_events(block, layout, settings.names, settings.stay, settings.gap) for block in blocks
    )
    return {name: Table(name, layout) for name in settings.names}, events


def compare_methods(name: str, path: Path, areas: Areas, options: argparse.Namespace) -> Iterator[tuple[object, ...]]:
    settings = FlowSettings(",".join(TABLES), **SETTINGS[name])
    tables, events = read_tables_and_events(path, areas, settings)
    epsilons = EPSILONS[2:3] if options.small else EPSILONS
    true = {
        key: count_cells(events[table.unit], select_all(events[table.unit]), table) for key, table in tables.items()
    }
    print(name, {unit: (len(unit_events.numbers), len(unit_events.user)) for unit, unit_events in events.items()})
    for kept in (5, 10):
        for key, table in tables.items():
            unit_events = events[table.unit]
            pairs = np.unique(np.stack([unit_events.cells[key], unit_events.user]), axis=1)
            num_users = np.bincount(pairs[0], minlength=len(true[key]))
            yield key, f"threshold {kept}", "", *compute_errors(np.where(num_users < kept, 0, true[key]), true[key])
    rng = np.random.default_rng(options.seed)
    for epsilon in epsilons:
        for run in range(options.runs):
            noise = CountNoise(parse_rational(epsilon), as_random_source(rng))
            noisy_tables, _ = build_tables(events, list(tables.values()), settings, noise)
            for key, noisy in noisy_tables.items():
                unit_events, cells = events[noisy.table.unit], noisy.numbers(get_parts(noisy.table)[0])
                of_bound = count_cells(
                    unit_events, select_bounded(unit_events, noisy.precision.max_events), noisy.table
                )
                held = [float(((cells.low <= x) & (x <= cells.high)).mean()) for x in (of_bound, true[key])]
                more = (
                    noisy.precision.max_events,
                    *held,
                    int(cells.is_significant.sum()),
                    int((cells.is_significant & (of_bound == 0)).sum()),
                )
                yield key, "dphmm", epsilon, *compute_errors(noisy.counts, true[key]), *more
                yield key, "dphmm, unbiased", epsilon, *compute_errors(cells.estimates, true[key])
            for key, table in tables.items():
                unit_events = events[table.unit]
                of_bound = count_cells(unit_events, select_bounded(unit_events, PLAIN), table)
                of_bound = of_bound + rng.laplace(0, PLAIN * len(tables) / epsilon, len(of_bound))
                yield key, "plain Laplace", epsilon, *compute_errors(np.maximum(of_bound, 0), true[key])
            if run < (1 if options.small else 2):
                for key, of_them in count_synthetic_users(name, path, areas, settings, epsilon, run, options).items():
                    scaled = of_them * (true[key].sum() / max(of_them.sum(), 1))
                    yield key, "synthetic users", epsilon, *compute_errors(scaled, true[key])


def select_all(events: Events) -> np.ndarray:
    return np.ones(len(events.user), dtype=bool)


def count_synthetic_users(
    name: str, path: Path, areas: Areas, settings: FlowSettings, epsilon: float, seed: int, options: argparse.Namespace
) -> dict[str, np.ndarray]:
    """Return counts of synthetic users from a model with the same guarantee."""
    preset, step, cell = MODELS[name]
    box = options.model_bbox
    space = region(preset=preset, cell_km=cell) if box is None else region(bbox=tuple(box), cell_km=cell)
    model = learn(path, space, step, 3600.0, user_epsilon=epsilon, outside_states=False).model
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "users.parquet"
        synthesize(model, file, num_users=50 if options.small else 500, days=7, rng=seed)
        tables, events = read_tables_and_events(file, areas, settings)
        return {key: count_cells(events[t.unit], select_all(events[t.unit]), t) for key, t in tables.items()}


def compute_errors(values: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """Return the errors of all cells, and of the largest cells with half of the total."""
    order = np.argsort(-true, kind="stable")
    largest = order[: 1 + int(np.searchsorted(np.cumsum(true[order]), true.sum() / 2))]
    return tuple(float(np.abs(values - true)[cells].sum() / true[cells].sum()) for cells in (order, largest))  # type: ignore[return-value]


def draw_errors(rows: Sequence[tuple[object, ...]]) -> Figure:
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 4).ravel()
    panels = [(name, table, at) for name in DATA for table in TABLES for at in (4, 5)]
    for ax, (name, table, at) in zip(axes, panels, strict=True):
        plotted: list[float] = []
        for method in METHODS:
            points: dict[object, list[float]] = {}
            for row in rows:
                if row[:3] == (name, table, method):
                    points.setdefault(row[3], []).append(float(row[at]))  # type: ignore[arg-type]
            means = [float(np.mean(errors_at)) for errors_at in points.values()]
            plotted += means
            if "" in points:
                if means[0] > 0.0:  # zero is not on the scale
                    ax.axhline(means[0], color="k", ls=LOOKS[method][1:], lw=1, label=method)
            elif points:
                ax.plot(
                    list(points),
                    means,
                    LOOKS[method],
                    ms=4,
                    label=method,
                )
        what = "all numbers" if at == 4 else "largest numbers"
        title = f"{TITLES[name]}: {table}, {what}"
        ax.set_title(title, fontsize=10)
        ax.set(xscale="log", yscale="log", xlabel="ε of all tables")
        ax.grid(alpha=0.3)
        ax.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        ax.minorticks_off()
        # Errors of zero have no place on a logarithmic axis.
        positive = [error for error in plotted if error > 1e-9]
        ax.set_ylim(0.7 * min(positive), 1.4 * max(positive))
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(positive) < 50 * min(positive) else (1,)))
        ax.yaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel("sum of errors / sum of true numbers", fontsize=8)
    axes[4].set_ylabel("sum of errors / sum of true numbers", fontsize=8)
    axes[0].legend(fontsize=7)
    return figure
