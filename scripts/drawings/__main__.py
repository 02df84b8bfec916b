"""Draw figures of the documentation and write their tables to a folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scripts.drawings import budgets, explore, flow_rows, flows, noises, policies, radii, streets, uses

FIGURES = {
    "budgets": budgets,
    "explore": explore,
    "flow_rows": flow_rows,
    "flows": flows,
    "noises": noises,
    "policies": policies,
    "radii": radii,
    "streets": streets,
    "uses": uses,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts/figures", description=__doc__)
    figures = parser.add_subparsers(dest="figure", required=True, metavar="FIGURE")
    for name, module in FIGURES.items():
        text = module.__doc__ or ""
        figure_parser = figures.add_parser(
            name, help=text.splitlines()[0], description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for data in module.DATA:
            figure_parser.add_argument(data, type=Path, metavar=data.upper())
        figure_parser.add_argument(
            "folder", type=Path, metavar="FOLDER", help="folder for pictures and tables, created if missing"
        )
        figure_parser.add_argument("--small", action="store_true", help="few runs and settings, for a quick test")
        figure_parser.add_argument(
            "--runs", type=int, default=module.RUNS, help=f"runs per point (default: {module.RUNS})"
        )
        figure_parser.add_argument("--seed", type=int, default=1)
        if hasattr(module, "add_arguments"):
            module.add_arguments(figure_parser)
    options = parser.parse_args(arguments)
    if options.small:
        options.runs = 1
    options.folder.mkdir(parents=True, exist_ok=True)
    FIGURES[options.figure].draw(options)


if __name__ == "__main__":
    main()
