"""Benchmarks of the stages against plain implementations, other libraries or lower bounds.

All numbers of a report are measured in the same run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmarks import (
    audit,
    batch,
    calibrate,
    counts,
    engine,
    evaluation,
    events,
    flows,
    frontier,
    hide,
    history,
    landmarks,
    lattice,
    leakage,
    limits,
    phones,
    policy,
    readers,
    relay,
    scaling,
    session,
    space,
    tables,
    zones,
)
from scripts.benchmarks.report import Report

MODULES = (
    engine,
    policy,
    space,
    lattice,
    session,
    audit,
    batch,
    scaling,
    calibrate,
    phones,
    evaluation,
    readers,
    leakage,
    limits,
    landmarks,
    counts,
    events,
    flows,
    relay,
    tables,
    zones,
    hide,
    frontier,
)
STAGES = {module.__name__.rpartition(".")[2]: module for module in MODULES}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts/benchmark", description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    for name, module in STAGES.items():
        text = module.__doc__ or ""
        stage = stages.add_parser(
            name, help=text.splitlines()[0], description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        stage.add_argument("--small", action="store_true", help="small cases only, for about two seconds")
        stage.add_argument("--json", type=Path, metavar="FILE", help="also write the rows and the machine to this file")
        stage.add_argument(
            "--history",
            type=Path,
            metavar="FILE",
            help="add the run to this file and print rows that became slower",
        )
        stage.add_argument("--repeats", type=int, default=5, help="runs behind each median (default: 5)")
        if hasattr(module, "add_arguments"):
            module.add_arguments(stage)
    options = parser.parse_args(arguments)
    report = Report(options.stage, options.small, 1 if options.small else options.repeats)
    STAGES[options.stage].run(report, options)
    if options.json:
        options.json.write_text(report.to_json(), encoding="utf-8")
    if options.history:
        for line in history.append(report.to_dict(), options.history):
            print(f"SLOWER {line}")


if __name__ == "__main__":
    main()
