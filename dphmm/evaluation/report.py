"""The report of an evaluation: one HTML file that needs no network."""

from __future__ import annotations

import base64
import html
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import dphmm
from dphmm.evaluation.claims import check_claims
from dphmm.evaluation.metrics import Interval, total
from dphmm.evaluation.run import Evaluation
from dphmm.evaluation.steps import StepTable

_LIBRARIES = ("dphmm", "numpy", "scipy", "shapely", "pyarrow", "matplotlib")

_SHOWN: tuple[tuple[str, str, float], ...] = (
    ("runtime_s", "time of a step, ms", 1e3),
    ("protection", "DoP", 1.0),
    ("error_km", "error, km", 1.0),
    ("estimate_error_km", "error of the posterior mean, km", 1.0),
    ("adversary_error_km", "adversary's expected error, km", 1.0),
    ("possible", "possible states", 1.0),
    ("stood_in", "stand-ins, %", 100.0),
    ("edges_added", "edges added", 1.0),
    ("area_km2", "hull's area, km²", 1.0),
    ("constrained_factor", "constrained factor", 1.0),
)

_CAPTIONS = {
    "figure-10-runtime": "Processor time of a step (the paper's Figure 10).",
    "figure-11-over-time": "Degree of protection of the true state, and error of the release (Figure 11).",
    "possible-and-estimate": "Size of the constraint set, and error of the posterior mean, which costs nothing.",
    "figure-12-epsilon": "Epsilon (Figure 12): means over sequences and time.",
    "figure-13-radius": "The radius of the utility policy (Figure 13); dashed: the policies that have none.",
    "map": "Some sequences. Private: it shows true places.",
}

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1080px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; } th, td { padding: 4px 9px; border-bottom: 1px solid #ddd; }
th { text-align: left; vertical-align: bottom; } td { vertical-align: top; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.number small { display: block; color: #666; }
.holds { color: #00663d; } .not { color: #a33000; } td.verdict { white-space: nowrap; font-weight: 600; }
figure { margin: 1.5em 0; } img { max-width: 100%; } figcaption { color: #555; font-size: 13px; }
code, pre { font-size: 12px; white-space: pre-wrap; overflow-wrap: anywhere; }
.private { background: #fff3e0; border-left: 4px solid #d55e00; padding: .5em 1em; }
"""


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
    config = evaluation.config
    body = [
        f"<h1>{html.escape(config.name)}</h1>",
        '<p class="private">The map, and the table of steps beside this report, show true places: keep them to '
        "yourself.</p>",
        f"<p>{_split_words(evaluation)}</p>",
        "<h2>What the paper says, and what was measured</h2>",
        "<p>Means over sequences with 95 % bootstrap intervals, sequences drawn again. <i>Within noise</i>: the "
        "interval of the difference holds zero.</p>",
        _claims(table, evaluation),
        "<h2>Every setting</h2>",
        _settings(table, evaluation),
        "<h2>Figures</h2>",
        *(_figure(name, png) for name, png in pictures.items()),
        "<h2>How this was made</h2>",
        _origin(evaluation, command),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{html.escape(config.name)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _split_words(evaluation: Evaluation) -> str:
    config, split = evaluation.config, evaluation.split
    dropped = "; ".join(f"{number} {html.escape(reason)}" for reason, number in split.dropped.items())
    clock = "each place is a step" if config.step_seconds is None else f"a step is {config.step_seconds:g} s"
    start = "is known" if config.start == "known" else "is as probable as in the model"
    return (
        f"{len(split.users)} sequences of {config.length} time steps, one per user ({clock}); the model was learned "
        f"from {len(split.learned_from)} other users; the place before the first release {start}. Users that could not "
        f"be evaluated: {dropped or 'none'}. Who is what stands in split.json."
    )


def _claims(table: StepTable, evaluation: Evaluation) -> str:
    rows = []
    for claim in check_claims(table, evaluation.config):
        kind = "holds" if claim.verdict.startswith("holds") else "not"
        rows.append(
            f"<tr><td>{html.escape(claim.where)}</td><td>{html.escape(claim.words)}</td>"
            f'<td>{html.escape(claim.measured)}</td><td class="verdict {kind}">{html.escape(claim.verdict)}</td></tr>'
        )
    return _table(("Figure", "Claim", "Measured", "Verdict"), rows)


def _settings(table: StepTable, evaluation: Evaluation) -> str:
    rows = []
    for setting in evaluation.config.settings():
        radius = f"{setting.radius_km:g}" if setting.radius_km else ""
        delta = f"{setting.delta:g}" if setting.delta else ""
        said = [setting.policy, radius, delta, f"{setting.epsilon:g}", setting.mechanism, setting.repair]
        cells = [f"<td>{html.escape(text)}</td>" for text in said]
        cells += [_number(total(table, setting, metric), factor) for metric, _, factor in _SHOWN]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    heads = ("policy", "r, km", "δ", "ε", "mechanism", "repair", *(label for _, label, _ in _SHOWN))
    return _table(heads, rows)


def _number(value: Interval, factor: float) -> str:
    mean, low, high = (f"{factor * part:.4g}" for part in (value.mean, value.low, value.high))
    return f'<td class="number">{mean}<small>{low} – {high}</small></td>'


def _table(heads: Sequence[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n' + "\n".join(rows) + "\n</table></div>"


def _figure(name: str, png: bytes) -> str:
    caption = html.escape(_CAPTIONS.get(name, name))
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )


def _origin(evaluation: Evaluation, command: str) -> str:
    facts = evaluation.checkpoint.facts
    versions = [f"Python {platform.python_version()}", *(_version(name) for name in _LIBRARIES)]
    lines = [f"$ {command}", "", ", ".join(versions), f"version of the run: {facts['version']}", ""]
    lines += [f"sha256 {digest}  {Path(path).name}" for path, digest in facts["data_sha256"].items()]
    lines += [f"sha256 {facts['configuration_sha256']}  (configuration)", ""]
    lines += [f"{key} = {value!r}" for key, value in facts["configuration"].items()]
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def _version(name: str) -> str:
    if name == "dphmm":
        return f"dphmm {dphmm.__version__}"
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"
