"""Draws the figures whose numbers the documentation quotes into a folder, and writes their tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scripts.drawings import budgets, flows, noises

FIGURES = {
    "budgets": budgets,
    "flows": flows,
    "noises": noises,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts/figures", description=__doc__)
    figures = parser.add_subparsers(dest="figure", required=True, metavar="FIGURE")
    for name, module in FIGURES.items():
        text = module.__doc__ or ""
        one = figures.add_parser(
            name, help=text.splitlines()[0], description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for data in module.DATA:
            one.add_argument(data, type=Path, metavar=data.upper())
        one.add_argument("folder", type=Path, metavar="FOLDER", help="for pictures and tables; made if it is not there")
        one.add_argument("--small", action="store_true", help="few runs and settings, to see that it works")
        one.add_argument("--runs", type=int, default=module.RUNS, help=f"behind each point (default: {module.RUNS})")
        one.add_argument("--seed", type=int, default=1)
        if hasattr(module, "arguments"):
            module.arguments(one)
    options = parser.parse_args(arguments)
    if options.small:
        options.runs = 1
    options.folder.mkdir(parents=True, exist_ok=True)
    FIGURES[options.figure].draw(options)


if __name__ == "__main__":
    main()
