"""``dphmm evaluate``: policies, mechanisms and budgets compared on a whole data set."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.console import FOLDER, PATH, Once, cell, echo, progress, say, say_table
from dphmm.cli.inputs import engine_of, engine_options

if TYPE_CHECKING:
    from dphmm.evaluation.figures import Claim
    from dphmm.evaluation.run import Evaluation


@click.command(cls=Once)
@click.argument("config", type=PATH)
@click.option("-o", "--output", "folder", required=True, type=FOLDER, help="A new folder.")
@engine_options
@click.option("--resume", is_flag=True, help="Go on with the run in the folder; what is finished stays.")
@click.option("--compare-noise", is_flag=True, help="One table of all kinds of noise instead, and its picture.")
@click.option("--no-pictures", is_flag=True, help="A report without figures, for which matplotlib is not needed.")
@click.option("--json", "as_json", is_flag=True, help="Say what was made as JSON.")
def evaluate_command(
    config: Path,
    folder: Path,
    resume: bool,
    compare_noise: bool,
    no_pictures: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Compare policies, mechanisms and budgets on a data set, as CONFIG, a TOML file, says.

    People are dealt into folds at random: the model that a person is evaluated under is learned from all people outside
    their fold, unless CONFIG names a model. The folder gets
    PRIVATE-report.html with the figures, PRIVATE-settings.csv with the means of every setting, PRIVATE-claims.csv with
    the claims of the DPHMM paper, the table of every step, and what --resume needs after an interruption.
    Everything in it that comes from true places is for its owner alone, and says so in its name.
    """
    from dphmm.evaluation.report import FAILS, HOLDS, UNDECIDED
    from dphmm.evaluation.run import TABLE, evaluate

    if compare_noise:
        _compare_noise(config, folder, resume, not no_pictures, as_json)
        return
    done = evaluate(config, folder, engine_of(given), resume, progress)
    evaluation = done.evaluation
    report, claims = write_report(evaluation, pictures=not no_pictures)
    verdicts = [claim.verdict for claim in claims]
    facts: dict[str, Any] = {
        "report_private": str(report),
        "settings_private": str(folder / SETTINGS),
        "claims_private": str(folder / CLAIMS),
        "table_private": str(folder / TABLE),
        "users_evaluated": len(evaluation.split.users),
        "models": max(len(evaluation.split.learned_from), 1),
        "learned_from_users_least": min(map(len, evaluation.split.learned_from), default=None),
        "learned_from_users_most": max(map(len, evaluation.split.learned_from), default=None),
        "time_step": evaluation.clock,
        "settings": len(evaluation.config.settings()),
        "claims_that_hold": verdicts.count(HOLDS),
        "claims_that_do_not": verdicts.count(FAILS),
        "claims_not_decided": verdicts.count(UNDECIDED),
        "tasks_run": done.tasks_run,
        "tasks_found_finished": done.tasks_found_finished,
        "seconds_reading": round(done.seconds_reading, 2),
        "seconds_releasing": round(done.seconds_releasing, 2),
    }
    say("Evaluated", facts, as_json)


def _compare_noise(config: Path, folder: Path, resume: bool, pictures: bool, as_json: bool) -> None:
    from dphmm.evaluation.noise_comparison import compared_noise

    found, files = compared_noise(config, folder, resume, progress), ["PRIVATE-noise.csv"]
    if pictures:
        from dphmm.plots.evaluation import noise_figure
        from dphmm.plots.figures import png as drawn
        from dphmm.tables import new_file

        for number, (policy, rows) in enumerate(found.items(), start=1):
            files.append(f"PRIVATE-noise-{number}.png")
            with new_file(folder / files[-1], overwrite=True, private=True) as part:
                part.write_bytes(drawn(noise_figure(rows, policy), 130))
    if as_json:
        say("Compared", {"files_private": [str(folder / name) for name in files]}, True)
        return
    header = ("equal", "noise", "epsilon", "factor", "released", "mean", "hindsight")
    columns = ("epsilon", "factor", "released", "estimate", "hindsight")
    for policy, rows in found.items():
        cells = [
            (row.equal, row.noise, *(f"{getattr(row, name):.3g}" for name in columns)) for row in rows if not row.note
        ]
        say_table(header, cells, f"{policy}: root mean square distances from the true places, km")
        for row in rows:
            if row.note:
                echo(f"  {row.noise}: {cell(row.note)}")
    echo(f"{folder / files[0]} comes from true places; keep it to yourself.", err=True)


SETTINGS, CLAIMS = "PRIVATE-settings.csv", "PRIVATE-claims.csv"
"""The tables in a run's folder: the means of every setting, and the paper's claims with what was found."""


def write_report(evaluation: Evaluation, pictures: bool = True) -> tuple[Path, tuple[Claim, ...]]:
    """Write the report, its tables as CSV and its figures as PNG, readable by their owner only.

    Returns
    -------
    tuple of Path and tuple of Claim
        The report's path, and the claims in it.

    Raises
    ------
    MissingDependencyError
        For pictures without matplotlib.
    """
    from dphmm.evaluation.report import CLAIM_COLUMNS, check_claims, report_html, setting_rows
    from dphmm.evaluation.split import space_of
    from dphmm.tables import new_file, write_csv, write_text

    folder, table, config = evaluation.checkpoint.folder, evaluation.table(), evaluation.config
    images, claims = {}, check_claims(table, config)
    if pictures:
        from dphmm.plots.evaluation import evaluation_figures
        from dphmm.plots.figures import png as drawn

        figures = evaluation_figures(table, config, space_of(config))
        images = {name: drawn(figure, 130) for name, figure in figures.items()}
    for name, png in images.items():
        with new_file(folder / f"PRIVATE-{name}.png", overwrite=True, private=True) as part:
            part.write_bytes(png)
    with new_file(folder / SETTINGS, overwrite=True, private=True) as part:
        write_csv(part, *setting_rows(table, config))
    with new_file(folder / CLAIMS, overwrite=True, private=True) as part:
        write_csv(part, CLAIM_COLUMNS, (asdict(claim).values() for claim in claims))
    said, report = shlex.join(["dphmm", *sys.argv[1:]]), folder / "PRIVATE-report.html"
    write_text(report, report_html(evaluation, images, said), overwrite=True, private=True)
    return report, claims
