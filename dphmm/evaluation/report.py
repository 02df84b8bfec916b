"""The report of an evaluation: one HTML file that needs no network."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import dphmm
from dphmm.evaluation.claims import check_claims
from dphmm.evaluation.metrics import Interval, total
from dphmm.evaluation.run import Evaluation
from dphmm.evaluation.steps import StepTable
from dphmm.reports.page import Cell, Picture, Section, html_page

_LIBRARIES = ("numpy", "scipy", "shapely", "pyarrow", "matplotlib")

_SHOWN: tuple[tuple[str, str, float], ...] = (
    ("runtime_s", "time of a step, ms", 1e3),
    ("protection", "DoP", 1.0),
    ("rms_error_km", "error (Equation 3), km", 1.0),
    ("error_km", "distance of the draws, km", 1.0),
    ("estimate_error_km", "error of the posterior mean, km", 1.0),
    ("adversary_error_km", "adversary's expected error, km", 1.0),
    ("possible", "possible states", 1.0),
    ("stood_in", "stand-ins, %", 100.0),
    ("edges_added", "edges added", 1.0),
    ("area_km2", "hull's area, km²", 1.0),
    ("constrained_factor", "constrained factor", 1.0),
    ("withheld", "withheld, %", 100.0),
    ("spent_epsilon", "ε spent a moment", 1.0),
)

_CAPTIONS = {
    "figure-10-runtime": "Processor time of a step (the paper's Figure 10).",
    "figure-11-over-time": "Degree of protection of the true state, and error of the release (Figure 11, Equation 3).",
    "possible-and-estimate": "Size of the constraint set, and error of the posterior mean, which costs nothing.",
    "figure-12-epsilon": "Epsilon (Figure 12): means over sequences and time.",
    "figure-13-radius": "The radius of the utility policy (Figure 13); dashed: the policies that have none.",
    "map": "Some sequences. Private: it shows true places.",
}


def report_html(evaluation: Evaluation, pictures: Mapping[str, bytes], command: str) -> str:
    """The report as one page.

    Parameters
    ----------
    evaluation
        A finished one.
    pictures
        Name → PNG, which go into the page.
    command
        The command that made it.

    Returns
    -------
    str
        HTML that loads nothing from elsewhere.
    """
    table = evaluation.table()
    sections = [
        Section("Who was evaluated", [_split_words(evaluation)]),
        Section(
            "What the paper says, and what was measured",
            [
                "Means over sequences with 95 % bootstrap intervals, sequences drawn again. Within noise: the interval "
                "of the difference holds zero."
            ],
            ("Figure", "Claim", "Measured", "Verdict"),
            _claims(table, evaluation),
        ),
        Section(
            "Every setting",
            (),
            (
                "policy",
                "r, km",
                "δ",
                "ε",
                "mechanism",
                "repair",
                "objective",
                "calibration",
                "schedule",
                *(label for _, label, _ in _SHOWN),
            ),
            _settings(table, evaluation),
        ),
        Section("Figures", pictures=[Picture(png, _CAPTIONS[name], True) for name, png in pictures.items()]),
        Section("How this was made", verbatim=_origin(evaluation, command)),
    ]
    warning = (
        "The map and the table of steps beside this report show true places, and the other figures are computed from "
        "them without any noise: keep them to yourself."
    )
    return html_page(evaluation.config.name, warning, True, sections)


def _split_words(evaluation: Evaluation) -> str:
    config, split = evaluation.config, evaluation.split
    dropped = "; ".join(f"{number} {reason}" for reason, number in split.dropped.items())
    start = "is known" if config.start == "known" else "is as probable as in the model"
    learned = f"under the model {config.model}, whoever that was learned from"
    if split.learned_from:
        fewest, most = (pick(map(len, split.learned_from)) for pick in (min, max))
        number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        learned = (
            f"each under one of {len(split.learned_from)} models, learned from the {number} users outside of the "
            "evaluated one's fold"
        )
    return (
        f"{len(split.users)} sequences of {config.length} time steps, one per user ({evaluation.clock}), {learned}; "
        f"the place before the first release {start}. Users that could not be evaluated: {dropped or 'none'}. Who is "
        "what stands in PRIVATE-split.json."
    )


def _claims(table: StepTable, evaluation: Evaluation) -> list[tuple[str | Cell, ...]]:
    rows: list[tuple[str | Cell, ...]] = []
    for claim in check_claims(table, evaluation.config, evaluation.clock):
        verdict = Cell(claim.verdict, mark="good" if claim.verdict.startswith("holds") else "bad")
        rows.append((claim.where, claim.words, claim.measured, verdict))
    return rows


def _settings(table: StepTable, evaluation: Evaluation) -> list[tuple[str | Cell, ...]]:
    rows: list[tuple[str | Cell, ...]] = []
    for setting in evaluation.config.settings():
        radius = f"{setting.radius_km:g}" if setting.radius_km else ""
        delta = f"{setting.delta:g}" if setting.delta else ""
        aim = setting.objective if setting.repair == "exact" else ""
        said = (
            setting.policy,
            radius,
            delta,
            f"{setting.epsilon:g}",
            setting.mechanism,
            setting.repair,
            aim,
            setting.calibration,
            " ".join(
                words
                for words, value in (
                    (f"target {setting.target_error_km:g} km", setting.target_error_km),
                    (f"{setting.day_epsilon:g} a day", setting.day_epsilon),
                )
                if value
            ),
        )
        rows.append((*said, *(_number(total(table, setting, metric), factor) for metric, _, factor in _SHOWN)))
    return rows


def _number(value: Interval, factor: float) -> Cell:
    mean, low, high = (f"{factor * part:.4g}" for part in (value.mean, value.low, value.high))
    return Cell(mean, f"{low} – {high}")


def _origin(evaluation: Evaluation, command: str) -> str:
    facts = evaluation.checkpoint.facts
    versions = [f"Python {platform.python_version()}", f"dphmm {dphmm.__version__}", *map(_version, _LIBRARIES)]
    lines = [f"$ {command}", "", ", ".join(versions), f"version of the run: {facts['version']}", ""]
    lines += [f"sha256 {digest}  {Path(path).name}" for path, digest in facts["data_sha256"].items()]
    lines += [f"sha256 {facts['configuration_sha256']}  (configuration)", ""]
    lines += [f"{key} = {value!r}" for key, value in facts["configuration"].items()]
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"
