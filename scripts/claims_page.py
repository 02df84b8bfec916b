"""Write the tables of docs/explanation/claims.md.

Usage: ``python -m scripts.claims_page claims.csv``, a file that ``dphmm figures`` writes with both data sets. Claims
that differ only in the data set or in the reading of the budget share a row, with a column for each. A quantity that
both columns measure is stated with the claim. Text and figures of the page are kept.
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
# Columns that share a table: the data sets of the DPHMM evaluation, and the readings of a budget.
GROUPS = (("GeoLife", "Gowalla"), (TOTAL, EACH), (LEAKAGE, DIVIDED))


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


def format_tables(rows: Sequence[Sequence[str]]) -> str:
    """Return the tables of one paper and their numbered notes.

    Parameters
    ----------
    rows
        Figure, claim, published value, measured value, verdict and reason of every claim.
    """
    notes: dict[str, int] = {}
    plain: list[tuple[str, ...]] = []
    merged: dict[tuple[str, ...], dict[tuple[str, str, str], dict[str, tuple[str, str]]]] = {
        group: {} for group in GROUPS
    }
    for figure, claim, published, measured, verdict, reason in rows:
        note = f" ({notes.setdefault(reason, len(notes) + 1)})" if reason else ""
        published = "–" if published == "not printed" else published
        where, statement, variant = split_variant(figure, claim)
        if not variant:
            plain.append((where, statement, published, measured, verdict + note))
            continue
        group = next(group for group in GROUPS if variant in group)
        # An interval in parentheses gets a dash, unless a sign could be mistaken for one.
        measured = re.sub(r"\(([\d.,e]+) to ([\d.,e]+)\)", r"(\1–\2)", measured)
        merged[group].setdefault((where, statement, published), {})[variant] = measured, verdict + note
    parts = []
    rule = "| --- | --- | --- | --- | --- |"
    if plain:
        parts.append([_format_row("where", "claim", "paper", "measured", "verdict"), rule, *_format_rows(plain)])
    for group, claims in merged.items():
        if claims:
            lines = [_merge(key, [cells.get(variant, ("", "")) for variant in group]) for key, cells in claims.items()]
            parts.append([_format_row("where", "claim", "paper", *group), rule, *_format_rows(lines)])
    if notes:
        parts.append([f"{number}. {reason}" for reason, number in notes.items()])
    return "\n\n".join("\n".join(part) for part in parts)


def split_quantity(measured: str) -> tuple[str, str]:
    """Return the words before the values of a measured cell, and the values.

    The words end with a colon, or with the first number if the cell has one value.
    """
    quantity, colon, values = measured.partition(": ")
    if colon:
        return quantity, values
    match = re.match(r"(\D+) (?=\d)", measured)
    return (match[1], measured[match.end() :]) if match and ";" not in measured else ("", measured)


def _merge(key: tuple[str, str, str], cells: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return a row. A quantity that all measured cells share is stated with the claim."""
    where, statement, published = key
    splits = [split_quantity(measured) for measured, _ in cells]
    if splits[0][0] and len({quantity for quantity, _ in splits}) == 1:
        statement = f"{statement.removesuffix('.')}: {splits[0][0]}."
        cells = [(values, verdict) for (_, values), (_, verdict) in zip(splits, cells, strict=True)]
    return where, statement, published, *(": ".join(filter(None, cell)) for cell in cells)


def _format_rows(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table. A first cell that repeats the one above is empty."""
    above = [None, *(line[0] for line in lines)]
    return [
        _format_row("" if line[0] == where else line[0], *line[1:]) for where, line in zip(above, lines, strict=False)
    ]


def _format_row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return "|" + "".join(f" {cell.replace('|', chr(92) + '|')} |" if cell else " |" for cell in cells)


def main(path: Path) -> None:
    """Replace the tables and the number of verdicts of the page."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    present = {row[0] for row in rows} | {split_variant(row[1], row[2])[2] for row in rows}
    missing = [name for name in (*PAPERS, *GROUPS[0]) if name not in present]
    if missing:
        raise SystemExit(f"{path} must have claims of all papers and data sets, got none of {', '.join(missing)}")
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
        written = format_tables([row[1:] for row in rows if row[0] == paper])
        sections[index] = f"{section[:start]}\n{written}\n{section[end:]}"
    PAGE.write_text(head + "".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
