"""The report of an evaluation: one HTML file that needs no network."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import dphmm
from dphmm.evaluation.claims import check_claims
from dphmm.evaluation.config import Setting
from dphmm.evaluation.metrics import total
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
    "settings": "Every setting: means over sequences and time, with their intervals.",
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
    same, header, rows = _settings(table, evaluation)
    drawn = [Picture(png, _CAPTIONS[name], True) for name, png in pictures.items()]
    sections = [
        Section("Whose data", [_data_words(evaluation), _split_words(evaluation)]),
        Section(
            "What each setting does on them",
            [f"Means over sequences and time; the figures have their intervals. {same}", _ABBREVIATIONS],
            header,
            rows,
        ),
        Section("Figures", [_INTERVALS], pictures=drawn),
        Section(
            "What the DPHMM paper claims, on these data",
            ["By the means of these data. Within noise: the interval of the difference holds zero."],
            ("figure of the paper", "claim", "of what", "measured", "verdict"),
            _claims(table, evaluation),
        ),
        Section("How this was made", verbatim=_origin(evaluation, command)),
    ]
    warning = (
        "The map and the table of steps beside this report show true places, and the other figures are computed from "
        "them without any noise: keep them to yourself."
    )
    return html_page(_title(evaluation), warning, True, sections)


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


_INTERVALS = (
    "Bars and bands are 95 % bootstrap intervals, whole sequences being drawn again; of few sequences they are too "
    "narrow."
)
_ABBREVIATIONS = (
    "DoP is the degree of protection of the true place; error (Equation 3) the root mean square distance of a release "
    "from the true place; DPLS the complete policy over a δ-location set."
)


def _title(evaluation: Evaluation) -> str:
    """What the evaluation is called, or whose data it is about."""
    config = evaluation.config
    if config.name != type(config).model_fields["name"].default:
        return config.name
    return f"{config.name} of {', '.join(Path(path).name for path in config.data)}"


def _data_words(evaluation: Evaluation) -> str:
    """Which files, and over which region."""
    paths = [Path(path).name for path in evaluation.checkpoint.facts["data_sha256"]]
    some = ", ".join(paths[:6]) + (f" and {len(paths) - 6:,} more" if len(paths) > 6 else "")
    config = evaluation.config
    return f"{len(paths):,} file{'s' if len(paths) != 1 else ''} ({some}), under {', '.join(config.policies)}."


def _claims(table: StepTable, evaluation: Evaluation) -> list[tuple[str | Cell, ...]]:
    """A row for each figure; what it is a figure of, and the verdict, stand at the first of a claim."""
    rows: list[tuple[str | Cell, ...]] = []
    for claim in check_claims(table, evaluation.config, evaluation.clock):
        verdict = Cell(claim.verdict, mark="good" if claim.verdict.startswith("holds") else "bad")
        start = len(rows)
        said: tuple[str | Cell, ...] = (claim.where, claim.words, verdict)
        for where, words, judged in (said, *[("", "", "")] * (len(claim.parts) - 1)):
            name, value = claim.parts[len(rows) - start]
            rows.append((where, words, name, value, judged))
    return rows


def _settings(table: StepTable, evaluation: Evaluation) -> tuple[str, tuple[str, ...], list[tuple[str | Cell, ...]]]:
    """What all settings have in common, in a sentence; a header; and a row for each, of what differs and the means."""
    settings = evaluation.config.settings()
    stated = [_stated(setting) for setting in settings]
    varies = [name for name in stated[0] if len({one[name] for one in stated}) > 1 or name == "policy"]
    fixed = [f"{name} {stated[0][name]}" for name in stated[0] if name not in varies and stated[0][name]]
    means = {
        label: [f"{factor * total(table, setting, metric).mean:.3g}" for setting in settings]
        for metric, label, factor in _SHOWN
    }
    differ = {label: values for label, values in means.items() if len(set(values)) > 1}
    fixed += [f"{label} {values[0]}" for label, values in means.items() if label not in differ and len(settings) > 1]
    same = f"The same in all: {'; '.join(fixed)}." if fixed else ""
    columns = differ if len(settings) > 1 else means
    rows: list[tuple[str | Cell, ...]] = [
        (*(one[name] for name in varies), *(values[number] for values in columns.values()))
        for number, one in enumerate(stated)
    ]
    return same, (*varies, *columns), rows


def _stated(setting: Setting) -> dict[str, str]:
    """What a setting is called by: name → value, empty where it has none."""
    schedule = ((setting.target_error_km, "target {:g} km"), (setting.day_epsilon, "{:g} a day"))
    return {
        "policy": setting.policy,
        "r, km": f"{setting.radius_km:g}" if setting.radius_km else "",
        "δ": f"{setting.delta:g}" if setting.delta else "",
        "ε": f"{setting.epsilon:g}",
        "mechanism": setting.mechanism,
        "repair": setting.repair,
        "objective": setting.objective if setting.repair == "exact" else "",
        "calibration": setting.calibration,
        "schedule": " ".join(words.format(value) for value, words in schedule if value),
    }


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
