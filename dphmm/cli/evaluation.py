"""Commands ``evaluate`` (settings on a data set) and ``figures`` (figures of the papers)."""

from __future__ import annotations

import csv
import io
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.console import (
    FOLDER,
    PATH,
    Once,
    echo,
    escape_cell,
    format_count,
    print_json,
    print_result,
    print_table,
    show_progress,
)
from dphmm.cli.shared_options import build_engine, engine_options

if TYPE_CHECKING:
    from dphmm.evaluation.figures import Claim, FigureBuilder, PaperFigure
    from dphmm.evaluation.run import Evaluation
    from dphmm.jobs.batch.workers import Engine


@click.command(cls=Once)
@click.argument("config", type=PATH)
@click.option("-o", "--output", "folder", required=True, type=FOLDER, help="New folder for the report and its tables.")
@engine_options
@click.option("--resume", is_flag=True, help="Resume the run in the folder, keeping its finished tasks.")
@click.option("--compare-noise", is_flag=True, help="Compare noise mechanisms instead, in a table and pictures.")
@click.option("--no-pictures", is_flag=True, help="Omit all figures; matplotlib is not required.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def evaluate_command(
    config: Path,
    folder: Path,
    resume: bool,
    compare_noise: bool,
    no_pictures: bool,
    as_json: bool,
    **engine_keys: Any,
) -> None:
    """Compare policies, mechanisms and budgets on a data set.

    CONFIG is a TOML file. Users are divided into folds at random. Each user is evaluated under a model of the users
    outside their fold, unless CONFIG names a model.

    The folder contains PRIVATE-report.html with figures, PRIVATE-settings.csv with the means of every setting,
    PRIVATE-claims.csv with the claims of the DPHMM paper, PRIVATE-steps.parquet with every timestep, and the data for
    --resume. Do not publish files named PRIVATE: they are derived from true locations.
    """
    from dphmm.evaluation.report import FAILS, HOLDS, UNDECIDED
    from dphmm.evaluation.run import TABLE, evaluate

    engine = build_engine(engine_keys)
    if compare_noise:
        _compare_noise(config, folder, engine, resume, not no_pictures, as_json)
        return
    finished = evaluate(config, folder, engine, resume, show_progress)
    evaluation = finished.evaluation
    report, claims = write_report(evaluation, pictures=not no_pictures)
    verdicts = [claim.verdict for claim in claims]
    result: dict[str, Any] = {
        "report_private": str(report),
        "settings_private": str(folder / SETTINGS),
        "claims_private": str(folder / CLAIMS),
        "table_private": str(folder / TABLE),
        "num_users": len(evaluation.split.users),
        "num_models": max(len(evaluation.split.learned_from), 1),
        "min_training_users": min(map(len, evaluation.split.learned_from), default=None),
        "max_training_users": max(map(len, evaluation.split.learned_from), default=None),
        "time_step": evaluation.clock,
        "num_settings": len(evaluation.config.settings()),
        "num_claims_held": verdicts.count(HOLDS),
        "num_claims_failed": verdicts.count(FAILS),
        "num_claims_undecided": verdicts.count(UNDECIDED),
        "num_tasks_run": finished.tasks_run,
        "num_tasks_already_finished": finished.tasks_already_finished,
        "seconds_reading": round(finished.seconds_reading, 2),
        "seconds_releasing": round(finished.seconds_releasing, 2),
    }
    print_result("Evaluated", result, as_json)


def _compare_noise(config: Path, folder: Path, engine: Engine, resume: bool, pictures: bool, as_json: bool) -> None:
    from dphmm.evaluation.noise_comparison import compare_noise_on_data

    rows_by_policy = compare_noise_on_data(config, folder, resume, show_progress, engine=engine)
    files = ["PRIVATE-noise.csv"]
    if pictures:
        from dphmm.plots.canvas import render_png as render_png
        from dphmm.plots.evaluation import draw_noise_figure
        from dphmm.tables import create_file

        for number, (policy, rows) in enumerate(rows_by_policy.items(), start=1):
            files.append(f"PRIVATE-noise-{number}.png")
            with create_file(folder / files[-1], overwrite=True, private=True) as part:
                part.write_bytes(render_png(draw_noise_figure(rows, policy), 130))
    if as_json:
        print_result("Compared", {"files_private": [str(folder / name) for name in files]}, True)
        return
    header = ("equal", "noise", "epsilon", "factor", "released", "estimate", "smoothed")
    columns = ("epsilon", "factor", "released", "estimate", "smoothed")
    for policy, rows in rows_by_policy.items():
        cells = [
            (row.equal, row.noise, *(f"{getattr(row, name):.3g}" for name in columns)) for row in rows if not row.note
        ]
        print_table(header, cells, f"{policy}: root mean square errors in km")
        for row in rows:
            if row.note:
                echo(f"  {row.noise}: {escape_cell(row.note)}")
    echo(f"Warning: {folder / files[0]} is derived from true locations. Do not publish it.", err=True)


SETTINGS = "PRIVATE-settings.csv"
# Tables in a run's folder: the means of every setting, and the paper's claims with the measured values.
CLAIMS = "PRIVATE-claims.csv"


def write_report(evaluation: Evaluation, pictures: bool = True) -> tuple[Path, tuple[Claim, ...]]:
    """Write the report, its tables (CSV) and figures (PNG), readable by their owner only.

    Returns
    -------
    tuple of Path and tuple of Claim
        Path of the report, and the claims in it.

    Raises
    ------
    MissingDependencyError
        If pictures are requested and matplotlib is not installed.
    """
    from dphmm.evaluation.report import CLAIM_COLUMNS, build_report_html, check_claims, list_setting_rows
    from dphmm.evaluation.split import make_space
    from dphmm.tables import create_file, write_csv, write_text

    folder = evaluation.checkpoint.folder
    table = evaluation.table()
    config = evaluation.config
    images = {}
    claims = check_claims(table, config)
    if pictures:
        from dphmm.plots.canvas import render_png as render_png
        from dphmm.plots.evaluation import draw_evaluation_figures

        figures = draw_evaluation_figures(table, config, make_space(config))
        images = {name: render_png(figure, 130) for name, figure in figures.items()}
    for name, png in images.items():
        with create_file(folder / f"PRIVATE-{name}.png", overwrite=True, private=True) as part:
            part.write_bytes(png)
    with create_file(folder / SETTINGS, overwrite=True, private=True) as part:
        write_csv(part, *list_setting_rows(table, config))
    with create_file(folder / CLAIMS, overwrite=True, private=True) as part:
        write_csv(part, CLAIM_COLUMNS, (asdict(claim).values() for claim in claims))
    command = shlex.join(["dphmm", *sys.argv[1:]])
    report = folder / "PRIVATE-report.html"
    write_text(report, build_report_html(evaluation, images, command), overwrite=True, private=True)
    return report, claims


# ---- the papers' figures --------------------------------------------------------------------------------------------


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
    papers with the measured value. Figures that need a data set are skipped without it, which is an error if no other
    figure is selected.
    """
    from dphmm.errors import ConfigurationError, check_installed
    from dphmm.evaluation.figures import PAPERS, FigureOptions
    from dphmm.tables import check_output

    chosen = _select([paper] if paper is not None else list(PAPERS), only)
    options = FigureOptions(runs, seed, geolife, gowalla, folder, show_progress)
    check_installed("matplotlib", "plots")
    for option, data in (("--geolife", geolife), ("--gowalla", gowalla)):
        if data is not None and not data.exists():
            raise ConfigurationError(f"{option} must be an existing file or folder, got {data}")
    for subject, builder in chosen:
        if runs is not None and runs < builder.min_runs and not builder.list_missing_data(options):
            raise ConfigurationError(
                f"--runs must be at least {builder.min_runs} for {subject} {builder.name}, got {runs}"
            )
    names = [f"{subject}_{builder.name}.{ending}" for subject, builder in chosen for ending in ("png", "csv")]
    for name in (*names, "claims.csv", "figures.html") if folder.is_dir() else ():
        check_output(folder / name, overwrite)
    skipped = [
        (subject, builder.name, " and ".join(f"--{name}" for name in missing))
        for subject, builder in chosen
        if (missing := builder.list_missing_data(options))
    ]
    if len(skipped) == len(chosen):
        raise ConfigurationError("; ".join(f"{subject} {name} requires {needs}" for subject, name, needs in skipped))
    results: list[tuple[str, PaperFigure]] = []
    for subject, builder in chosen:
        if builder.list_missing_data(options):
            continue
        started = time.perf_counter()
        figure = builder.build(options)
        results.append((subject, figure))
        _write_figure(folder, subject, figure, overwrite)
        # Written anew after each figure: an interrupt loses no finished result.
        _write_claims(folder, results)
        echo(f"{subject} {builder.name}: {time.perf_counter() - started:.1f} s", err=True)
    _print_claims(folder, results, skipped, as_json)


def _select(papers: Sequence[str], only: str | None) -> list[tuple[str, FigureBuilder]]:
    """Return the selected figures with the paper of each. Unknown names raise."""
    from dphmm.errors import ConfigurationError
    from dphmm.evaluation.figures import figure_builders

    builders = [(paper, builder) for paper in papers for builder in figure_builders(paper)]
    if only is None:
        return builders
    names = [name.strip() for name in only.split(",") if name.strip()]
    valid_names = list(dict.fromkeys(builder.name for _, builder in builders))
    unknown = next((name for name in names if name not in valid_names), None)
    if unknown is not None or not names:
        raise ConfigurationError(f"--only must name figures among {', '.join(valid_names)}, got {unknown or only!r}")
    return [(paper, builder) for paper, builder in builders if builder.name in names]


def _write_figure(folder: Path, paper: str, figure: PaperFigure, overwrite: bool) -> None:
    from dphmm.plots.canvas import save_picture
    from dphmm.plots.evaluation import draw_figure

    folder.mkdir(parents=True, exist_ok=True)
    # Not private: the data sets are public, and every other figure comes from simulated data.
    save_picture(draw_figure(figure), folder / f"{paper}_{figure.name}.png", overwrite, private=False)
    rows = [("panel", "series", "x", "y", "low", "high"), *figure.rows()]
    _write_rows(folder / f"{paper}_{figure.name}.csv", rows, overwrite)


def _write_rows(path: Path, rows: Sequence[Sequence[Any]], overwrite: bool) -> None:
    from dphmm.tables import write_text

    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue(), overwrite=overwrite)


_CLAIM_COLUMNS = ("paper", "figure", "claim", "published", "measured", "verdict", "reason")


def _build_claim_rows(results: Sequence[tuple[str, PaperFigure]]) -> list[tuple[str, ...]]:
    def build_row(paper: str, claim: Claim) -> tuple[str, ...]:
        return (paper, claim.figure, claim.statement, claim.published, claim.measured, claim.verdict, claim.reason)

    return [build_row(paper, claim) for paper, figure in results for claim in figure.claims]


def _write_claims(folder: Path, results: Sequence[tuple[str, PaperFigure]]) -> None:
    from dphmm.evaluation.figures import PAPERS
    from dphmm.html_report import Picture, Section, html_page
    from dphmm.tables import write_text

    rows = _build_claim_rows(results)
    _write_rows(folder / "claims.csv", [_CLAIM_COLUMNS, *rows], overwrite=True)
    sections = [
        Section(
            PAPERS[paper],
            ["Intervals in parentheses have 95 % coverage. That of a range of values is the range of their ends."],
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
    page = html_page("Claims of the papers", f"Claims: {summary or 'none'}. Created by: {command}", False, sections)
    write_text(folder / "figures.html", page, overwrite=True)


def _print_claims(
    folder: Path, results: Sequence[tuple[str, PaperFigure]], skipped: Sequence[tuple[str, str, str]], as_json: bool
) -> None:
    rows = _build_claim_rows(results)
    if as_json:
        print_json(
            {
                "figures": [f"{paper}_{figure.name}" for paper, figure in results],
                "skipped": [{"paper": paper, "figure": name, "needs": needs} for paper, name, needs in skipped],
                "claims": [dict(zip(_CLAIM_COLUMNS, row, strict=True)) for row in rows],
                "page": str(folder / "figures.html"),
            }
        )
        return
    # The measured values are in claims.csv: with them a row would not fit a terminal.
    print_table(("verdict", "paper", "figure", "claim"), [(row[5], *row[:3]) for row in rows])
    for paper, name, needs in skipped:
        echo(f"Skipped {paper} {name}: requires {needs}.", err=True)
    echo(f"Wrote {format_count(len(results), 'figure')}, {folder / 'claims.csv'} and {folder / 'figures.html'}.")
