"""Coverage of the intervals in files of flow tables, by data set and epsilon.

The files contain all tables with default settings. An interval is covered if it contains the true number of bounded
contributions. Each row of the result is for many files of the same data: the number of rows per file and the share of
them that is covered, for cells and for levels and sums of cells; the share of covered rows that sum the remaining
numbers of a level; and the share of files in which all intervals are covered. The last columns are for comparison: a
number then has a row if an interval of the same confidence for this number alone is above zero.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.flows import Areas, FlowSettings, NoisyTable
from dphmm.flows.noisy_tables import CELL_LEVEL, Family, build_sum_matrix, get_parts
from dphmm.flows.tables import Events, count_cells, select_bounded
from dphmm.jobs.flows import build_tables
from dphmm.mechanisms.discrete_laplace import CountNoise
from dphmm.mechanisms.exact_sampling import parse_rational
from dphmm.random import as_random_source
from scripts.drawings.flows import DATA, SETTINGS, read_tables_and_events
from scripts.drawings.sheet import write

__all__ = ["DATA"]

RUNS = 200
EPSILONS = (0.5, 1.0, 4.0)
KINDS = ("cells", "levels and sums", "rests", "separate intervals")
HEADER = ("data", "epsilon", "files", "covered files")
HEADER += tuple(f"{what} {kind}" for kind in KINDS for what in ("rows per file of", "covered"))


class SeparateIntervals(Family):
    """Intervals that hold for each number separately."""

    def compute_miss_probability(self, num_values: int, confidence: float) -> float:  # noqa: ARG002 - as of the family
        return 1.0 - confidence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--areas", type=Path, nargs=2, required=True, metavar="FILE", help="polygons of each data set")


def draw(options: argparse.Namespace) -> None:
    logging.disable(logging.WARNING)  # each run warns about repaired polygons
    rows: list[tuple[object, ...]] = []
    for name, layer in zip(DATA, options.areas, strict=True):
        for row in measure(name, getattr(options, name), Areas.from_polygons(layer), options):
            print(dict(zip(HEADER, row, strict=True)), flush=True)
            rows.append(row)
    write(options.folder / "flow_rows.csv", HEADER, rows)


def measure(name: str, path: Path, areas: Areas, options: argparse.Namespace) -> Iterator[tuple[object, ...]]:
    settings = FlowSettings(**{key: value for key, value in SETTINGS[name].items() if key != "time_classes"})
    tables, events = read_tables_and_events(path, areas, settings)
    rng = np.random.default_rng(options.seed)
    for epsilon in EPSILONS:
        rows: dict[str, list[bool]] = {kind: [] for kind in KINDS}
        files = list[bool]()
        for _ in range(options.runs):
            noise = CountNoise(parse_rational(epsilon), as_random_source(rng))
            noisy_tables, _ = build_tables(events, list(tables.values()), settings, noise)
            of_file = list[bool]()
            for noisy in noisy_tables.values():
                true = count_true_cells(events, noisy)
                for level, shown, rest in find_covered_rows(noisy, true):
                    rows["cells" if level == CELL_LEVEL else "levels and sums"] += shown
                    rows["rests"] += rest
                    of_file += shown + rest
                single = replace(noisy, precision=replace(noisy.precision, family=SeparateIntervals(1, 1)))
                rows["separate intervals"] += [row for _, shown, _ in find_covered_rows(single, true) for row in shown]
            files.append(all(of_file))
        columns = [(len(hits) / options.runs, float(np.mean(hits)) if hits else "") for hits in rows.values()]
        yield (name, epsilon, options.runs, float(np.mean(files)), *(value for pair in columns for value in pair))


def count_true_cells(events: dict[str, Events], noisy: NoisyTable) -> Any:
    """Return the true cells of bounded contributions."""
    unit_events = events[noisy.table.unit]
    return count_cells(unit_events, select_bounded(unit_events, noisy.precision.max_events), noisy.table)


def find_covered_rows(noisy: NoisyTable, true: Any) -> Iterator[tuple[str, list[bool], list[bool]]]:
    """Yield each level, and whether its rows and its rest contain the true numbers."""
    totals = noisy.table.forest.sum_levels(true)
    for part in get_parts(noisy.table):
        values = totals[part.level] if part.level is not None else build_sum_matrix(part.table, part.columns) @ true
        numbers = noisy.numbers(part)
        shown = numbers.is_significant | (len(values) == 1)
        covered = (numbers.low <= values) & (values <= numbers.high)
        rest = list[bool]()
        if not shown.all():
            rests = noisy.compute_remainder(part, numbers, shown)
            rest = [bool(rests.low[0] <= values[~shown].sum() <= rests.high[0])]
        yield part.name, covered[shown].tolist(), rest
