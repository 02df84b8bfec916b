"""``dphmm figures``: the figures and tables of the papers, computed anew."""

from __future__ import annotations

import csv
import io
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.console import FOLDER, PATH, Once, echo, progress, say_json, say_table

if TYPE_CHECKING:
    from dphmm.evaluation.figures import Claim, FigureBuilder, PaperFigure


@click.command(cls=Once)
@click.argument("paper", required=False, metavar="[dphmm|leakage|landmarks|counts]")
@click.option("-o", "--output", "folder", required=True, type=FOLDER, help="Folder for pictures, tables and the page.")
@click.option("--only", metavar="FIGURE,...", help="Names of figures, such as figure_4. [default: all]")
@click.option("--runs", type=click.IntRange(1), help="Repetitions behind each point. [default: stated by each figure]")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of simulated data and noise.")
@click.option("--geolife", type=PATH, help="GeoLife's folder or archive, for the figures that need it.")
@click.option("--gowalla", type=PATH, help="Gowalla's check-ins, for the figures that need them.")
@click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print the claims and files as JSON.")
def figures_command(
    paper: str | None,
    folder: Path,
    only: str | None,
    runs: int | None,
    seed: int,
    geolife: Path | None,
    gowalla: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Compute the figures and tables of PAPER, or of all four papers.

    Each figure becomes a picture and a CSV table of its points. claims.csv and figures.html compare every claim of the
    papers with what was found. Figures that need a data set are skipped without it.
    """
    from dphmm.errors import ConfigurationError, check_installed
    from dphmm.evaluation.figures import PAPERS, FigureOptions
    from dphmm.tables import check_output

    chosen = _select([paper] if paper is not None else list(PAPERS), only)
    options = FigureOptions(runs, seed, geolife, gowalla, folder, progress)
    check_installed("matplotlib", "plots")
    for option, data in (("--geolife", geolife), ("--gowalla", gowalla)):
        if data is not None and not data.exists():
            raise ConfigurationError(f"{option} must be an existing file or folder, got {data}")
    names = [f"{subject}_{builder.name}.{ending}" for subject, builder in chosen for ending in ("png", "csv")]
    for name in (*names, "claims.csv", "figures.html") if folder.is_dir() else ():
        check_output(folder / name, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    results: list[tuple[str, PaperFigure]] = []
    skipped: list[tuple[str, str, str]] = []
    for subject, builder in chosen:
        if missing := builder.missing(options):
            skipped.append((subject, builder.name, " and ".join(f"--{name}" for name in missing)))
            continue
        started = time.perf_counter()
        figure = builder.build(options)
        results.append((subject, figure))
        _write_figure(folder, subject, figure, overwrite)
        # Written anew after each figure: an interrupt loses no finished result.
        _write_claims(folder, results)
        echo(f"{subject} {builder.name}: {time.perf_counter() - started:.1f} s", err=True)
    _report(folder, results, skipped, as_json)


def _select(papers: Sequence[str], only: str | None) -> list[tuple[str, FigureBuilder]]:
    """Return the chosen figures with the paper of each; refuse names that no paper has."""
    from dphmm.errors import ConfigurationError
    from dphmm.evaluation.figures import figure_builders

    builders = [(paper, builder) for paper in papers for builder in figure_builders(paper)]
    if only is None:
        return builders
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = list(dict.fromkeys(builder.name for _, builder in builders))
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None or not names:
        raise ConfigurationError(f"--only must name figures among {', '.join(known)}, got {unknown or only!r}")
    return [(paper, builder) for paper, builder in builders if builder.name in names]


def _write_figure(folder: Path, paper: str, figure: PaperFigure, overwrite: bool) -> None:
    from dphmm.plots.figures import save_picture
    from dphmm.plots.paper_figures import draw_figure

    # Not private: the data sets are public, and every other figure comes from simulated data.
    save_picture(draw_figure(figure), folder / f"{paper}_{figure.name}.png", overwrite, private=False)
    rows = [("panel", "series", "x", "y", "low", "high"), *figure.rows()]
    _write_csv(folder / f"{paper}_{figure.name}.csv", rows, overwrite)


def _write_csv(path: Path, rows: Sequence[Sequence[Any]], overwrite: bool) -> None:
    from dphmm.tables import write_text

    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue(), overwrite=overwrite)


_CLAIM_COLUMNS = ("paper", "figure", "claim", "published", "measured", "verdict", "reason")


def _claim_rows(results: Sequence[tuple[str, PaperFigure]]) -> list[tuple[str, ...]]:
    def row(paper: str, claim: Claim) -> tuple[str, ...]:
        return (paper, claim.figure, claim.statement, claim.published, claim.measured, claim.verdict, claim.reason)

    return [row(paper, claim) for paper, figure in results for claim in figure.claims]


def _write_claims(folder: Path, results: Sequence[tuple[str, PaperFigure]]) -> None:
    from dphmm.evaluation.figures import PAPERS
    from dphmm.reports import Picture, Section, html_page
    from dphmm.tables import write_text

    rows = _claim_rows(results)
    _write_csv(folder / "claims.csv", [_CLAIM_COLUMNS, *rows], overwrite=True)
    sections = [
        Section(
            PAPERS[paper],
            (),
            _CLAIM_COLUMNS[1:],
            [row[1:] for row in rows if row[0] == paper],
            pictures=[
                Picture((folder / f"{paper}_{figure.name}.png").read_bytes(), figure.caption, True)
                for subject, figure in results
                if subject == paper
            ],
        )
        for paper in dict.fromkeys(paper for paper, _ in results)
    ]
    counts = {verdict: sum(row[5] == verdict for row in rows) for verdict in ("holds", "does not hold", "not decided")}
    summary = "; ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
    command = shlex.join(["dphmm", *sys.argv[1:]])
    page = html_page("The papers, claim by claim", f"Claims: {summary or 'none'}. Made by: {command}", False, sections)
    write_text(folder / "figures.html", page, overwrite=True)


def _report(
    folder: Path, results: Sequence[tuple[str, PaperFigure]], skipped: Sequence[tuple[str, str, str]], as_json: bool
) -> None:
    rows = _claim_rows(results)
    if as_json:
        say_json(
            {
                "figures": [f"{paper}_{figure.name}" for paper, figure in results],
                "skipped": [{"paper": paper, "figure": name, "needs": needs} for paper, name, needs in skipped],
                "claims": [dict(zip(_CLAIM_COLUMNS, row, strict=True)) for row in rows],
                "page": str(folder / "figures.html"),
            }
        )
        return
    # The measured values are in claims.csv: with them a row would not fit a terminal.
    say_table(("verdict", "paper", "figure", "claim"), [(row[5], *row[:3]) for row in rows])
    for paper, name, needs in skipped:
        echo(f"Skipped {paper} {name}: requires {needs}.", err=True)
    echo(f"Wrote {len(results)} figures, {folder / 'claims.csv'} and {folder / 'figures.html'}.")
