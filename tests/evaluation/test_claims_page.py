"""Tests that the page of claims agrees with the figures that are quick to compute."""

from __future__ import annotations

import re

import pytest

from dphmm.evaluation.figures import FigureOptions, figure_builders
from tests.documents import page

QUICK = {
    "dphmm": {"figure_7", "figure_8", "figure_9", "figure_14", "figure_15"},
    "leakage": {"figure_3", "figure_4", "figure_8"},
    "landmarks": {"scenario", "correlation"},
}
"""Figures without data that take at most seconds.

Seeds and runs are the defaults, as on the page.
"""


def _rows() -> list[tuple[str, str, str]]:
    """Return figure, claim and verdict of every row, without the reason."""
    return re.findall(r"^\| (.*?) \| (.*?) \| .* \| (holds|does not hold|not decided)[^|]*\|$", page("claims.md"), re.M)


@pytest.mark.parametrize(("paper", "name"), [(paper, name) for paper, names in QUICK.items() for name in sorted(names)])
def test_page_states_the_claims_of_a_figure(paper, name):
    (builder,) = (builder for builder in figure_builders(paper) if builder.name == name)
    claims = builder.build(FigureOptions()).claims
    claim_rows = {(claim.figure, claim.statement.replace("|", "\\|"), claim.verdict) for claim in claims}
    assert claims
    assert claim_rows - set(_rows()) == set()


def test_page_shows_every_figure():
    text = page("claims.md")
    missing = [
        f"{paper}_{builder.name}"
        for paper in ("dphmm", "leakage", "landmarks", "counts")
        for builder in figure_builders(paper)
        if f"images/papers/{paper}_{builder.name}.png" not in text
    ]
    assert missing == []


def test_page_counts_its_verdicts():
    text, verdicts = page("claims.md"), [verdict for _, _, verdict in _rows()]
    stated = re.search(r"Of (\d+) claims, (\d+) hold, (\d+) do not hold, and (\d+) are not decided", text)
    assert stated is not None
    counts = [verdicts.count(verdict) for verdict in ("holds", "does not hold", "not decided")]
    assert [int(number) for number in stated.groups()] == [len(verdicts), *counts]
