"""Write the tables of docs/explanation/claims.md.

Usage: ``python -m scripts.claims_page claims.csv``, a file that ``dphmm figures`` writes with both data sets. Claims
that differ only in the data set or in the reading of the budget share a row, with a column for each. Text and figures
of the page are kept.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from dphmm.evaluation.figures import PAPERS
from dphmm.evaluation.figures.counts import DIVIDED, EACH, LEAKAGE, TOTAL

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "claims.md"
VERDICTS = ("holds", "does not hold", "not decided")
GROUPS = (("GeoLife", "Gowalla"), (TOTAL, EACH), (LEAKAGE, DIVIDED))
"""Columns that share a table: the data sets of the DPHMM evaluation, and the readings of a budget."""


def split_variant(figure: str, claim: str) -> tuple[str, str, str]:
    """Return figure and claim without the data set or reading, and that variant.

    The variant is an empty string if there is none.
    """
    for variant in GROUPS[0]:
        if figure.endswith(f", {variant}"):
            return figure.removesuffix(f", {variant}"), claim, variant
    for variant in (*GROUPS[1], *GROUPS[2]):
        # The reading is followed by ")" or by a comma, as one reading begins like another.
        if match := re.search(rf"(?<=[( ]){re.escape(variant)}(?=[),])", claim):
            rest = (claim[: match.start()] + claim[match.end() :]).replace("(, ", "(").replace(", )", ")")
            return figure, rest.replace(" ()", ""), variant
    return figure, claim, ""


def tables(rows: Sequence[Sequence[str]]) -> str:
    """Return the tables of one paper and their numbered notes.

    Parameters
    ----------
    rows
        Figure, claim, published value, measured value, verdict and reason of every claim.
    """
    notes: dict[str, int] = {}
    plain: list[tuple[str, ...]] = []
    merged: dict[tuple[str, ...], dict[tuple[str, str, str], dict[str, str]]] = {group: {} for group in GROUPS}
    for figure, claim, published, measured, verdict, reason in rows:
        note = f" ({notes.setdefault(reason, len(notes) + 1)})" if reason else ""
        published = "–" if published == "not printed" else published
        where, statement, variant = split_variant(figure, claim)
        if not variant:
            plain.append((where, statement, published, measured, verdict + note))
            continue
        group = next(group for group in GROUPS if variant in group)
        merged[group].setdefault((where, statement, published), {})[variant] = f"{measured}: {verdict}{note}"
    parts = []
    rule = "| --- | --- | --- | --- | --- |"
    if plain:
        parts.append([_row("where", "claim", "paper", "measured", "verdict"), rule, *_rows(plain)])
    for group, claims in merged.items():
        if claims:
            lines = [(*key, *(cells.get(variant, "") for variant in group)) for key, cells in claims.items()]
            parts.append([_row("where", "claim", "paper", *group), rule, *_rows(lines)])
    if notes:
        parts.append([f"{number}. {reason}" for reason, number in notes.items()])
    return "\n\n".join("\n".join(part) for part in parts)


def _rows(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table; a first cell that repeats the one above is empty."""
    above = [None, *(line[0] for line in lines)]
    return [_row("" if line[0] == where else line[0], *line[1:]) for where, line in zip(above, lines, strict=False)]


def _row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return "|" + "".join(f" {cell.replace('|', chr(92) + '|')} |" if cell else " |" for cell in cells)


def main(path: Path) -> None:
    """Replace the tables and the number of verdicts of the page."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    page = PAGE.read_text(encoding="utf-8")
    verdicts = [row[5] for row in rows]
    numbers = [len(rows), *(verdicts.count(verdict) for verdict in VERDICTS)]
    page = re.sub(
        r"Of \d+ claims, \d+ hold, \d+ do not hold, and \d+ are not decided",
        "Of {} claims, {} hold, {} do not hold, and {} are not decided".format(*numbers),
        page,
    )
    head, *sections = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    if len(sections) != len(PAPERS):
        raise SystemExit(f"{PAGE.name} must have a section for each of {len(PAPERS)} papers, found {len(sections)}")
    for index, (paper, section) in enumerate(zip(PAPERS, sections, strict=True)):
        start, end = section.index("\n| "), section.index("\n![")
        written = tables([row[1:] for row in rows if row[0] == paper])
        sections[index] = f"{section[:start]}\n{written}\n{section[end:]}"
    PAGE.write_text(head + "".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
