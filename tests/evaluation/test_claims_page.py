"""Tests that the page of claims agrees with the figures that are quick to compute."""

from __future__ import annotations

import re

import pytest

from dphmm.evaluation.figures import PAPERS, FigureOptions, figure_builders
from dphmm.evaluation.figures.counts import EACH, LEAKAGE, TOTAL
from scripts import claims_page
from scripts.claims_page import format_tables
from tests.documents import read_page

# Figures without data that take at most seconds.
#
# Seeds and runs are the defaults, as on the page.
QUICK = {
    "dphmm": {"figure_7", "figure_8", "figure_9", "figure_14", "figure_15"},
    "leakage": {"figure_3", "figure_4", "figure_8"},
    "landmarks": {"scenario", "correlation"},
}


VERDICT = re.compile(r"(holds|does not hold|not decided)(?: \(\d+\))?$")
EXAMPLES = [
    ("Figure 1", "A holds.", "5", "5|6", "holds", ""),
    ("Figure 2, GeoLife", "B grows (within 5 %).", "not printed", "1.2", "holds", "Counted as much."),
    ("Figure 2, Gowalla", "B grows (within 5 %).", "not printed", "1.0", "not decided", ""),
    ("Figure 3", f"C falls ({TOTAL}, T = 2).", "many", "0.5", "does not hold", "Counted as much."),
    ("Figure 3", f"C falls ({EACH}, T = 2).", "many", "0.4", "does not hold", "Another reason."),
    ("Figure 3", f"D falls ({LEAKAGE}).", "many", "0.4", "holds", ""),
]


def _parse_rows(text: str) -> list[tuple[str, str, str]]:
    """Return figure, claim and verdict of every claim, without the note.

    A table with a column for each data set or reading has a verdict at the end of each cell. An empty first cell
    repeats the figure of the row above.
    """
    claims, figure = [], ""
    for line in re.findall(r"^\| .* \|$", text, re.M):
        where, claim, _, *results = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        figure = where or figure
        claims += [(figure, claim, match[1]) for result in results if (match := VERDICT.search(result))]
    return claims


def test_tables_contain_every_claim_once():
    written = format_tables(EXAMPLES)
    assert _parse_rows(written) == [
        ("Figure 1", "A holds.", "holds"),
        ("Figure 2", "B grows (within 5 %).", "holds"),
        ("Figure 2", "B grows (within 5 %).", "not decided"),
        ("Figure 3", "C falls (T = 2).", "does not hold"),
        ("Figure 3", "C falls (T = 2).", "does not hold"),
        ("Figure 3", "D falls.", "holds"),
    ]
    assert written.splitlines()[-2:] == ["1. Counted as much.", "2. Another reason."]
    assert "| Figure 3 | C falls (T = 2). | many | 0.5: does not hold (1) | 0.4: does not hold (2) |" in written


@pytest.mark.parametrize(
    ("first", "second", "row"),
    [
        ("a / b 1.5 (1 to 2)", "a / b 0.5", "C grows: a / b. | – | 1.5 (1–2): holds | 0.5: holds"),
        (
            "a / b: c 1; d 2 (-1 to 3)",
            "a / b: c 3; d 4",
            "C grows: a / b. | – | c 1; d 2 (-1 to 3): holds | c 3; d 4: holds",
        ),
        ("c 1; d 2", "c 3; d 4", "C grows. | – | c 1; d 2: holds | c 3; d 4: holds"),
        ("a at r = 1: 2", "a at r = 2: 2", "C grows. | – | a at r = 1: 2: holds | a at r = 2: 2: holds"),
    ],
)
def test_shared_quantity_is_stated_with_the_claim(first, second, row):
    figures = zip(("Figure 1, GeoLife", "Figure 1, Gowalla"), (first, second), strict=True)
    written = format_tables([(figure, "C grows.", "not printed", cell, "holds", "") for figure, cell in figures])
    assert written.splitlines()[-1] == f"| Figure 1 | {row} |"


def test_repeated_figure_is_written_once():
    repeated = [("Figure 1", claim, "5", "5", "holds", "") for claim in ("A holds.", "B holds.")]
    written = format_tables([*repeated, ("Figure 2", "C holds.", "5", "5", "holds", "")])
    assert [line.split("|")[1].strip() for line in written.splitlines()[2:]] == ["Figure 1", "", "Figure 2"]
    assert [figure for figure, _, _ in _parse_rows(written)] == ["Figure 1", "Figure 1", "Figure 2"]


@pytest.mark.parametrize(
    ("papers", "missing"),
    [(("dphmm",), "leakage, landmarks, counts, GeoLife, Gowalla"), (PAPERS, "GeoLife, Gowalla")],
)
def test_incomplete_table_leaves_the_page_unchanged(tmp_path, monkeypatch, papers, missing):
    written = tmp_path / "claims.md"
    written.write_text(read_page("claims.md"), encoding="utf-8")
    monkeypatch.setattr(claims_page, "PAGE", written)
    table = tmp_path / "claims.csv"
    lines = ["paper,figure,claim,published,measured,verdict,reason", *(f"{name},F,A,5,5,holds," for name in papers)]
    table.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(SystemExit, match=f"none of {missing}$"):
        claims_page.main(table)
    assert written.read_text(encoding="utf-8") == read_page("claims.md")


@pytest.mark.parametrize(("paper", "name"), [(paper, name) for paper, names in QUICK.items() for name in sorted(names)])
def test_page_states_the_claims_of_a_figure(paper, name):
    (builder,) = (builder for builder in figure_builders(paper) if builder.name == name)
    claims = builder.build(FigureOptions()).claims
    claim_rows = {(claim.figure, claim.statement.replace("|", "\\|"), claim.verdict) for claim in claims}
    assert claims
    assert claim_rows - set(_parse_rows(read_page("claims.md"))) == set()


def test_page_shows_every_figure():
    text = read_page("claims.md")
    missing = [
        f"{paper}_{builder.name}"
        for paper in ("dphmm", "leakage", "landmarks", "counts")
        for builder in figure_builders(paper)
        if f"images/papers/{paper}_{builder.name}.png" not in text
    ]
    assert missing == []


def test_page_counts_its_verdicts():
    text, verdicts = read_page("claims.md"), [verdict for _, _, verdict in _parse_rows(read_page("claims.md"))]
    stated = re.search(
        r"Of (\d+) claims, (\d+) hold, (\d+) do not hold, and (\d+) are not decided", " ".join(text.split())
    )
    assert stated is not None
    counts = [verdicts.count(verdict) for verdict in ("holds", "does not hold", "not decided")]
    assert [int(number) for number in stated.groups()] == [len(verdicts), *counts]


def test_measurements_count_the_verdicts_of_the_evaluation():
    table = read_page("claims.md").partition("| where | claim | paper | GeoLife | Gowalla |\n")[2].partition("\n\n")[0]
    cells = [re.split(r"(?<!\\)\|", line)[4:6] for line in table.splitlines()[1:]]
    matches = [[VERDICT.search(cell.strip()) for cell in row] for row in cells]
    held = [[match is not None and match[1] == "holds" for match in row] for row in matches]
    num_claims = {sum(match is not None for match in column) for column in zip(*matches, strict=True)}
    numbers = [sum(column) for column in zip(*held, strict=True)] + [sum(map(all, held))]
    text = " ".join(read_page("measurements.md").split())
    stated = re.search(
        r"Of the (\d+) claims of Section 8, (\d+) hold on GeoLife .*?, (\d+) on Gowalla and (\d+) on", text
    )
    assert stated is not None
    assert [int(number) for number in stated.groups()] == [*num_claims, *numbers]
