"""Tests of claims and reports against tables with known answers."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from dphmm.evaluation.config import Setting, parse_config
from dphmm.evaluation.report import (
    FAILS,
    HOLDS,
    UNDECIDED,
    _describe_states,
    _divide_means,
    build_report_html,
    check_claims,
    compute_overall_mean,
    format_significant,
)
from dphmm.evaluation.run import COLUMNS, Evaluation, StepTable
from dphmm.evaluation.split import make_space
from dphmm.plots.evaluation import draw_evaluation_figures
from tests.pages import DESK, PHONE, inspect_page

CONFIG = parse_config(
    {"data": ["x"], "grid": "geolife", "sequences": 6, "length": 20, "epsilons": [0.5, 1.0], "radii_km": [1.0, 2.0]}
)


def make_table(protection, error, runtime=lambda setting, step: 1e-3, config=CONFIG) -> StepTable:
    """Return a table with two columns as functions of the setting, with a small spread."""
    rng = np.random.default_rng(0)
    rows = []
    for setting in config.settings():
        for sequence in range(6):
            factor = rng.uniform(0.95, 1.05)
            for step in range(1, 21):
                values = {name: getattr(setting, name) for name in Setting.__dataclass_fields__}
                values |= {"sequence": sequence, "step": step, "runtime_s": runtime(setting, step)}
                values |= {"protection": protection(setting), "squared_error_km2": (factor * error(setting)) ** 2}
                values |= {"num_possible_states": protection(setting), "area_km2": 1e6 * runtime(setting, step)}
                values["withheld"] = setting.window_epsilon > 0
                rows.append(dict.fromkeys(COLUMNS, 0) | values)
    return StepTable.from_rows(rows)


def get_verdicts(table: StepTable) -> dict[str, str]:
    return {claim.statement: claim.verdict for claim in check_claims(table, CONFIG)}


PAPER = {"utility": 60, "transition": 100, "complete": 50}
PAPER_ERROR = {"utility": 1.0, "transition": 3.0, "complete": 2.8}


def make_paper_table() -> StepTable:
    return make_table(
        lambda s: round(PAPER[s.policy] * (s.radius_km or 1)),
        lambda s: PAPER_ERROR[s.policy] * (s.radius_km or 1) / s.epsilon,
        lambda s, step: (1e-3 if s.policy == "complete" else 1.5e-3) * (1 - 0.5 ** min(step, 10)),
    )


def make_opposite_table() -> StepTable:
    return make_table(
        lambda s: round(200 - PAPER[s.policy] - 10 * s.radius_km - 30 * s.epsilon),
        lambda s: {"utility": 11.0 - s.radius_km, "transition": 9.0, "complete": 5.0}[s.policy] * s.epsilon,
        lambda s, step: (4e-3 if s.policy == "complete" else 1e-3) * step,
    )


def test_every_claim_holds_for_table_of_paper():
    verdict_of = get_verdicts(make_paper_table())
    assert len(verdict_of) == 24
    assert {words: verdict for words, verdict in verdict_of.items() if verdict != HOLDS} == {}


def test_claims_fail_for_opposite_table():
    """One claim remains: the error of transition is above that of DPLS."""
    verdict_of = get_verdicts(make_opposite_table())
    assert [words for words, verdict in verdict_of.items() if verdict == HOLDS] == [
        "Transition has a larger error than DPLS."
    ]


def test_claims_within_noise_are_not_decided():
    """Errors differ by chance: factors are sampled from 0.95 to 1.05 per sequence and setting."""
    verdict_of = get_verdicts(make_table(lambda s: 50, lambda s: 1.0))
    assert verdict_of["Utility has a smaller error than DPLS."] == UNDECIDED
    assert verdict_of["Under utility, the error falls as ε grows."] == UNDECIDED
    assert verdict_of["Utility has a larger DoP than DPLS."] == FAILS, "equal in every sequence: no noise"
    assert verdict_of["Under utility, DoP does not depend on ε (within 5 %)."] == HOLDS


def test_claim_states_published_value_and_ratio_with_interval():
    claims = {claim.statement: claim for claim in check_claims(make_paper_table(), CONFIG)}
    claim = claims["Utility has a smaller error than DPLS."]
    assert (claim.figure, claim.published) == ("11", "the lowest")
    pattern = r"DPLS / utility (\d\.\d+) \((\d\.\d+) to (\d\.\d+)\)"
    mean, low, high = map(float, re.fullmatch(pattern, claim.measured).groups())
    assert low < mean < high
    assert mean == pytest.approx(2.8, rel=0.1)


@pytest.mark.slow
def test_claim_of_convergence_states_its_tolerance():
    """Ratios of 1.17 and 0.86 are within 15 %, those of 1.18 and 0.84 are not."""
    statement = "Under transition the hull's area converges (last two quarters within 15 %)."
    for last, verdict in ((1.17, HOLDS), (1.18, FAILS), (0.86, HOLDS), (0.84, FAILS)):
        table = make_table(lambda s: 50, lambda s: 1.0, lambda s, step, last=last: last if step > 15 else 1.0)
        assert get_verdicts(table)[statement] == verdict


@pytest.mark.parametrize(("dop", "verdict"), [(100, HOLDS), (90, HOLDS), (70, FAILS), (181, FAILS)])
def test_published_number_of_states_is_compared(dop, verdict):
    preset = parse_config(CONFIG.keys | {"preset": "geolife"})
    claims = check_claims(make_table(lambda s: dop, lambda s: 1.0, config=preset), preset)
    (claim,) = (claim for claim in claims if claim.statement.startswith("Transition protects the true state among 100"))
    assert (claim.published, claim.measured, claim.verdict) == (
        "100 states",
        f"{format_significant(dop)} states",
        verdict,
    )


def test_ratio_interval_matches_scipys_paired_bootstrap():
    """Both are random: ends agree within a tenth of the width.

    Unpaired, it is three times as wide.
    """
    rng = np.random.default_rng(6)
    level = rng.gamma(3.0, size=(40, 1))
    below = level * rng.uniform(0.9, 1.1, (40, 1))
    above = 2 * level * rng.uniform(0.9, 1.1, (40, 1))
    low, high = _divide_means(above.ravel(), below.ravel())[1:]

    def divide_means(a, b, axis):
        return np.mean(a, axis=axis) / np.mean(b, axis=axis)

    data, how = (above.ravel(), below.ravel()), {"method": "percentile", "n_resamples": 20_000, "rng": 5}
    paired = stats.bootstrap(data, divide_means, paired=True, **how).confidence_interval
    apart = stats.bootstrap(data, divide_means, paired=False, **how).confidence_interval
    width = paired.high - paired.low
    assert abs(low - paired.low) < 0.1 * width
    assert abs(high - paired.high) < 0.1 * width
    assert apart.high - apart.low > 3 * width


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"preset": "gowalla"}, "6,640 states of 0.89 km. All settings are those of the preset 'gowalla'."),
        (
            {"preset": "gowalla", "cell_km": 2.0},
            "1,332 states of 2 km. The settings are those of the preset 'gowalla', but cell_km is 2.0 instead of 0.89.",
        ),
        ({"grid": "geolife"}, "1,419 states of 0.34 km."),
    ],
    ids=["preset", "changed", "none"],
)
def test_report_states_cells_and_changes_from_preset(keys, words):
    assert _describe_states(parse_config({"data": ["x"], **keys})) == words


class Loads(HTMLParser):
    """A parser that collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.addresses += [
            value for name, value in attrs if name in ("src", "href", "srcset", "action", "data") and value
        ]


@pytest.fixture(scope="module")
def finished(plain) -> Evaluation:
    return plain


@pytest.fixture(scope="module")
def figures(finished, plain_table):
    """Return the figures of the evaluation by name."""
    pytest.importorskip("matplotlib")
    return draw_evaluation_figures(plain_table, finished.config, make_space(finished.config))


@pytest.fixture(scope="module")
def page(finished, figures, tmp_path_factory):
    """Write the report with these figures to a file."""
    from dphmm.plots.canvas import render_png

    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(
        build_report_html(finished, {name: render_png(figure) for name, figure in figures.items()}, "a"),
        encoding="utf-8",
    )
    return path


@pytest.mark.slow
def test_report_loads_nothing_and_states_provenance(finished):
    page = build_report_html(finished, {"figure-10-runtime": b"\x89PNG"}, "dphmm evaluate a<b.toml")
    parser = Loads()
    parser.feed(page)
    assert parser.addresses
    assert all(source.startswith("data:image/png;base64,") for source in parser.addresses)
    assert "://" not in page
    assert "a&lt;b.toml" in page
    assert next(iter(finished.checkpoint.record["data_sha256"].values())) in page
    assert finished.config.digest in page
    assert len(re.findall(r"<td>(?:utility|complete)</td>", page)) == 7


@pytest.mark.slow
def test_figures_are_plotted_from_table(finished, plain_table, figures):
    assert set(figures) == {
        "figure-10-runtime",
        "figure-11-over-time",
        "possible-and-estimate",
        "figure-12-epsilon",
        "figure-13-radius",
        "map",
        "settings",
    }
    protection = figures["figure-12-epsilon"].axes[0]
    rows = plain_table.select_rows(finished.config.get_default_setting("utility"))
    line = protection.get_lines()[0].get_ydata()
    assert line[0] == pytest.approx(rows["protection"].mean(), rel=1e-12)
    labels = [label.get_text() for label in protection.get_yticklabels()]
    assert labels
    assert all(re.fullmatch(r"[\d,.]+", label) for label in labels), "powers of ten are written out"


def test_every_setting_is_plotted_with_its_interval(finished, plain_table, figures):
    """Cells of the table contain one number, and no column is constant."""
    table, config = plain_table, finished.config
    error = figures["settings"].axes[0]
    totals = [compute_overall_mean(table, setting, "rms_error_km") for setting in config.settings()]
    assert [bar.lines[0].get_xdata()[0] for bar in error.containers] == pytest.approx(
        [interval.mean for interval in totals]
    )
    for bar, interval in zip(error.containers, totals, strict=True):
        (segment,) = bar.lines[2][0].get_segments()
        assert segment[:, 0] == pytest.approx([min(interval.low, interval.mean), max(interval.high, interval.mean)])
    assert len(error.get_yticks()) == len({label.get_text() for label in error.get_yticklabels()}) == len(totals)
    page = build_report_html(finished, {}, "dphmm evaluate a.toml")
    body = page.partition("<h2>Settings</h2>")[2].partition("<h2>")[0]
    assert "<small>" not in body
    assert not re.search(r"<td>[^<]*\d[^<]* – [^<]*</td>", body)
    columns = [re.findall(r"<td>(.*?)</td>", row) for row in body.split("<tr>")[2:]]
    assert all(len(set(column)) > 1 for column in zip(*columns, strict=True))


def test_settings_without_releases_are_marked_and_labels_do_not_touch():
    """The errors of withheld timesteps are those of the prediction, not of releases."""
    pytest.importorskip("matplotlib")
    config = parse_config(CONFIG.keys | {"window_epsilons": [0.1], "step_seconds": 300.0})
    table = make_table(lambda s: 50, lambda s: 1.0, config=config)
    for name in ("estimate_error_km", "adversary_error_km"):
        table.columns[name][:] = 1.0
    figure = draw_evaluation_figures(table, config, make_space(config))["settings"]
    figure.canvas.draw()
    first = figure.axes[0]
    texts = [label.get_text() for label in first.get_yticklabels()]
    hollow = [bar.lines[0].get_markerfacecolor() == "white" for bar in first.containers]
    assert (
        hollow == ["(100 % withheld)" in text for text in texts] == [bool(s.window_epsilon) for s in config.settings()]
    )
    boxes = [
        [label.get_window_extent() for label in ax.get_xticklabels() if label.get_position()[0] <= ax.get_xlim()[1]]
        for ax in figure.axes
    ]
    for left, right in pairwise(boxes):
        assert min(box.x0 for box in right) - max(box.x1 for box in left) > 8


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_page_fits_phone_and_desktop(figures, page, browser, width):
    for figure in figures.values():
        assert all(ax.has_data() for ax in figure.axes)
    assert inspect_page(browser, page, width) == len(figures)


@pytest.mark.slow
def test_page_starts_with_users_data_and_ends_with_paper(finished):
    page = build_report_html(finished, {}, "dphmm evaluate a.toml")
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[0] == "Data and split"
    assert headings[-2:] == ["Claims of the DPHMM paper", "Provenance"]
    assert page.index(f"<h1>{finished.config.name}") < page.index("Data and split")
