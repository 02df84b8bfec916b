"""Errors and intervals of tables of flows by epsilon, beside thresholds, plain Laplace noise and synthetic people.

Visits by area and flows between areas are compared with what all fixes say: every trip of every person. An error is the
sum of absolute differences over the sum of the true numbers. Thresholds of 5 and 10 hide cells with fewer people and
promise nothing; plain Laplace tables have noise of the same sensitivity in every cell and cut what is negative; people
are synthesised from a model that was learned with the same epsilon, and their counts scaled to the true total, which
is more than they could know.
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

from dphmm.arrays import random_source
from dphmm.flows import Areas, FlowSettings
from dphmm.flows.tables import Events, Table, bounded, counted, joined
from dphmm.jobs import learn, region, synthesize
from dphmm.jobs.input_data import Data
from dphmm.jobs.people_flows import _people, _pieces, events_in, tables_of
from dphmm.mechanisms.count_noise import CountNoise
from dphmm.mechanisms.exact import rational
from scripts.drawings.sheet import save, write

DATA = ("gowalla", "geolife")
RUNS = 20
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
PLAIN = 10
"""Events of a person that plain tables count."""

SETTINGS: dict[str, dict[str, Any]] = {
    "gowalla": {"stay": 0, "gap": 24, "by": "all", "zone": "America/Los_Angeles"},
    "geolife": {"by": "all", "zone": "Asia/Shanghai"},
}
MODELS = {"gowalla": ("gowalla", 3600.0, 2.0), "geolife": ("geolife", 300.0, 1.0)}
"""Data → the region of its model, a step in seconds, and the side of a cell."""

METHODS = ("ours", "ours, unbiased", "plain Laplace", "synthetic people", "threshold 5", "threshold 10")
LOOKS = {
    "ours": "C3-o",
    "ours, unbiased": "C1--d",
    "plain Laplace": "C0--s",
    "synthetic people": "C2--^",
    "threshold 5": "k:",
    "threshold 10": "k-.",
}
TABLES = ("visits", "flows")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--areas", type=Path, nargs=2, required=True, metavar="FILE", help="polygons of each data set")
    parser.add_argument("--model-bbox", type=float, nargs=4, metavar="DEGREES", help="another region of the models")


def draw(options: argparse.Namespace) -> None:
    logging.disable(logging.WARNING)  # polygons are mended again and again
    rows: list[tuple[object, ...]] = []
    for name, layer in zip(DATA, options.areas, strict=True):
        rows += [(name, *row) for row in compared(name, getattr(options, name), Areas.from_polygons(layer), options)]
    header = ["data", "table", "method", "epsilon", "error", "of the largest half"]
    header += ["bound", "covered", "unbounded covered", "sure", "sure of zero"]
    write(options.folder / "flows.csv", header, ([*row, *[""] * (len(header) - len(row))] for row in rows))
    save(drawn(rows), options.folder / "flows.png")


def everything(path: Path | str, areas: Areas, settings: FlowSettings) -> tuple[dict[str, Table], dict[str, Events]]:
    """The tables, and all events."""
    layout = settings.layout(areas)
    parts = _pieces(_people(Data.from_any(path), []))
    found = joined(events_in(one, layout, settings.names, settings.stay, settings.gap) for one in parts)
    return {name: Table(name, layout) for name in settings.names}, found


def compared(name: str, path: Path, areas: Areas, options: argparse.Namespace) -> Iterator[tuple[object, ...]]:
    settings = FlowSettings(",".join(TABLES), **SETTINGS[name])
    tables, events = everything(path, areas, settings)
    epsilons = EPSILONS[2:3] if options.small else EPSILONS
    true = {one: counted(events[table.unit], all_of(events[table.unit]), table) for one, table in tables.items()}
    print(name, {unit: (len(one.numbers), len(one.person)) for unit, one in events.items()})
    for kept in (5, 10):
        for one, table in tables.items():
            some = events[table.unit]
            pairs = np.unique(np.stack([some.cells[one], some.person]), axis=1)
            people = np.bincount(pairs[0], minlength=len(true[one]))
            yield one, f"threshold {kept}", "", *errors(np.where(people < kept, 0, true[one]), true[one])
    rng = np.random.default_rng(options.seed)
    for epsilon in epsilons:
        for run in range(options.runs):
            noise = CountNoise(rational(epsilon), random_source(rng))
            made, _ = tables_of(events, list(tables.values()), settings, noise)
            for one, noisy in made.items():
                some, cells = events[noisy.table.unit], noisy.level(0)
                of_bound = counted(some, bounded(some, noisy.precision.most), noisy.table)
                held = [float(((cells.low <= x) & (x <= cells.high)).mean()) for x in (of_bound, true[one])]
                more = (noisy.precision.most, *held, int(cells.sure.sum()), int((cells.sure & (of_bound == 0)).sum()))
                yield one, "ours", epsilon, *errors(noisy.counts, true[one]), *more
                yield one, "ours, unbiased", epsilon, *errors(cells.estimates, true[one])
            for one, table in tables.items():
                some = events[table.unit]
                of_bound = counted(some, bounded(some, PLAIN), table)
                of_bound = of_bound + rng.laplace(0, PLAIN * len(tables) / epsilon, len(of_bound))
                yield one, "plain Laplace", epsilon, *errors(np.maximum(of_bound, 0), true[one])
            if run < (1 if options.small else 2):
                for one, of_them in synthetic(name, path, areas, settings, epsilon, run, options).items():
                    scaled = of_them * (true[one].sum() / max(of_them.sum(), 1))
                    yield one, "synthetic people", epsilon, *errors(scaled, true[one])


def all_of(events: Events) -> np.ndarray:
    return np.ones(len(events.person), dtype=bool)


def synthetic(
    name: str, path: Path, areas: Areas, settings: FlowSettings, epsilon: float, seed: int, options: argparse.Namespace
) -> dict[str, np.ndarray]:
    """Counts of people out of a model with the same promise."""
    preset, step, cell = MODELS[name]
    box = options.model_bbox
    space = region(preset=preset, cell=cell) if box is None else region(bbox=tuple(box), cell=cell)
    model = learn(path, space, step, 3600.0, user_epsilon=epsilon, away=False).model
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "people.parquet"
        synthesize(model, file, people=50 if options.small else 500, days=7, rng=seed)
        tables, events = everything(file, areas, settings)
        return {one: counted(events[t.unit], all_of(events[t.unit]), t) for one, t in tables.items()}


def errors(found: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """The error of all cells, and that of the largest, which make up half of the total."""
    order = np.argsort(-true, kind="stable")
    most = order[: 1 + int(np.searchsorted(np.cumsum(true[order]), true.sum() / 2))]
    return tuple(float(np.abs(found - true)[some].sum() / true[some].sum()) for some in (order, most))  # type: ignore[return-value]


def drawn(rows: Sequence[tuple[object, ...]]) -> Figure:
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 4).ravel()
    panels = [(name, table, at) for name in DATA for table in TABLES for at in (4, 5)]
    for ax, (name, table, at) in zip(axes, panels, strict=True):
        for method in METHODS:
            points: dict[object, list[float]] = {}
            for row in rows:
                if row[:3] == (name, table, method):
                    points.setdefault(row[3], []).append(float(row[at]))  # type: ignore[arg-type]
            if "" in points:
                ax.axhline(np.mean(points[""]), color="k", ls=LOOKS[method][1:], lw=1, label=method)
            elif points:
                ax.plot(list(points), [np.mean(one) for one in points.values()], LOOKS[method], ms=4, label=method)
        what = "all" if at == 4 else "the largest"
        ax.set(xscale="log", yscale="log", xlabel="ε", title=f"{name}: {table}, {what}")
        ax.grid(alpha=0.3)
        ax.set_xticks(EPSILONS, [f"{one:g}" for one in EPSILONS])
        ax.minorticks_off()
    axes[0].set_ylabel("error / true")
    axes[4].set_ylabel("error / true")
    axes[0].legend(fontsize=7)
    return figure
