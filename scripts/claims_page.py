"""Write the tables of docs/explanation/claims.md.

Usage: ``python -m scripts.claims_page claims.csv``, a file that ``dphmm figures`` writes with both data sets. Claims
that differ only in the data set or in the reading of the budget share a row, with a column for each. Claims of a figure
that differ in at most two words and have equal verdicts share a row by twos, with both in brackets. A quantity that
both columns measure is stated with the claim. Text and figures of the page are kept.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from dphmm.evaluation.figures import PAPERS
from dphmm.evaluation.figures.counts import DIVIDED, EACH, LEAKAGE, TOTAL

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "claims.md"
VERDICTS = ("holds", "does not hold", "not decided")
GROUPS = (("GeoLife", "Gowalla"), (TOTAL, EACH), (LEAKAGE, DIVIDED))
"""Columns that share a table: the data sets of the DPHMM evaluation, and the readings of a budget."""
Claim = tuple[str, str, str, Sequence[tuple[str, str]]]
"""Figure, statement, published value, and the measured value and verdict of each column."""
# Claims that share a row have at least so many common words, and differ in at most so many.
_MIN_COMMON_WORDS = 3
_MAX_WORDS = 2


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
    plain: list[Claim] = []
    merged: dict[tuple[str, ...], dict[tuple[str, str, str], dict[str, tuple[str, str]]]] = {
        group: {} for group in GROUPS
    }
    for figure, claim, published, measured, verdict, reason in rows:
        note = f" ({notes.setdefault(reason, len(notes) + 1)})" if reason else ""
        published = "–" if published == "not printed" else published
        where, statement, variant = split_variant(figure, claim)
        if not variant:
            plain.append((where, statement, published, [(measured, verdict + note)]))
            continue
        group = next(group for group in GROUPS if variant in group)
        # An interval in parentheses gets a dash, unless a sign could be mistaken for one.
        measured = re.sub(r"\(([\d.,e]+) to ([\d.,e]+)\)", r"(\1–\2)", measured)
        merged[group].setdefault((where, statement, published), {})[variant] = measured, verdict + note
    parts = []
    if plain:
        parts.append(_table(["measured"], plain))
    for group, claims in merged.items():
        if claims:
            variants = [(*key, [cells.get(name, ("", "")) for name in group]) for key, cells in claims.items()]
            parts.append(_table(group, variants))
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


def _table(columns: Sequence[str], claims: Sequence[Claim]) -> list[str]:
    """Return the lines of a table with these columns of results."""
    header = _row("where", "claim", "paper", *columns)
    return [header, "|" + " --- |" * (3 + len(columns)), *_rows([_merge(claim) for claim in combine(claims)])]


def combine(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims, with pairs that share a row combined.

    Measured values that contain a semicolon, or different quantities before a colon, are not combined: the row could be
    read in two ways.
    """
    groups: list[list[Claim]] = []
    for claim in claims:
        for group in groups:
            if len(group) == 1 and _can_share(group[0], claim) and _bracket([group[0][1], claim[1]]):
                group.append(claim)
                break
        else:
            groups.append([claim])
    return [group[0] if len(group) == 1 else _combine(group) for group in groups]


def _can_share(first: Claim, second: Claim) -> bool:
    """Return whether two claims of a figure have equal verdicts and can share a row."""
    rows = [(where, published, [verdict for _, verdict in cells]) for where, _, published, cells in (first, second)]
    return rows[0] == rows[1] and all(
        ";" not in left + right and (": " not in left + right or split_quantity(left)[0] == split_quantity(right)[0])
        for (left, _), (right, _) in zip(first[3], second[3], strict=True)
    )


def _bracket(statements: Sequence[str]) -> str:
    """Return the statement with alternatives in brackets; empty if they differ too much."""
    words = [re.findall(r"\w[\w.]*\w|\s+|.", statement) for statement in statements]
    start = _count_common(words)
    end = _count_common([row[start:][::-1] for row in words])
    parts = ["".join(row[start : len(row) - end]) for row in words]
    before, after = "".join(words[0][:start]), "".join(words[0][len(words[0]) - end :])
    is_similar = len(re.findall(r"\w+", before + after)) >= _MIN_COMMON_WORDS
    if not is_similar or not all(part and len(re.findall(r"[\w.]+", part)) <= _MAX_WORDS for part in parts):
        return ""
    return f"{before}[{'; '.join(parts)}]{after}"


def _count_common(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of first words that all rows share."""
    return len(list(takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False))))


def _combine(group: Sequence[Claim]) -> Claim:
    """Return one claim for several; a quantity that they share is stated once."""
    where, _, published, cells = group[0]
    combined = []
    for index, (_, verdict) in enumerate(cells):
        measured = [claim[3][index][0] for claim in group]
        quantities, values = zip(*map(split_quantity, measured), strict=True)
        is_shared = quantities[0] and len(set(quantities)) == 1
        joined = f"{quantities[0]}: {'; '.join(values)}" if is_shared else "; ".join(filter(None, measured))
        combined.append((joined, verdict))
    return where, _bracket([claim[1] for claim in group]), published, combined


def _merge(claim: Claim) -> tuple[str, ...]:
    """Return a row; a quantity that several cells share is stated with the claim."""
    where, statement, published, cells = claim
    splits = [split_quantity(measured) for measured, _ in cells]
    if len(cells) > 1 and splits[0][0] and len({quantity for quantity, _ in splits}) == 1:
        statement = f"{statement.removesuffix('.')}: {splits[0][0]}."
        cells = [(values, verdict) for (_, values), (_, verdict) in zip(splits, cells, strict=True)]
    return where, statement, published, *(": ".join(filter(None, cell)) for cell in cells)


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
