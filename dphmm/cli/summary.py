"""What a command says at its end: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dphmm.cli.terminal import cell, echo

if TYPE_CHECKING:
    from dphmm.jobs.people import Dropped


def say(title: str, facts: Mapping[str, Any], as_json: bool) -> None:
    """Print facts on standard output.

    Parameters
    ----------
    title
        Stands above the table.
    facts
        A name of a fact, in snake case, → a number, a text, or None where there is nothing to say.
    as_json
        True to print one JSON object instead.
    """
    if as_json:
        echo(json.dumps(facts, ensure_ascii=False, allow_nan=False))
        return
    stated = {cell(name).replace("_", " "): shown(value) for name, value in facts.items() if value is not None}
    width = max(map(len, stated), default=0)
    echo(cell(title), bold=True)
    for name, value in stated.items():
        echo(f"  {name:<{width}}  {value}")


def say_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", most: int | None = None) -> None:
    """Print a table on standard output, in columns that line up.

    Parameters
    ----------
    header, rows
        Texts; every row has as many as the header.
    title
        Stands above the table, where there is one.
    most
        Print at most so many rows, and say how many there are more.
    """
    cells = [[cell(text) for text in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells[: None if most is None else most + 1]]
    if title:
        echo(title)
    echo(lines[0], bold=True)
    for line in lines[1:]:
        echo(line)
    if most is not None and len(rows) > most:
        echo(f"… and {len(rows) - most:,} more; --json and --report have them all.")


def say_dropped(dropped: Sequence[Dropped]) -> None:
    """Print what was left out and why, where anything was: a row for each reason."""
    if dropped:
        rows = [(one.reason, f"{one.fixes:,}", "unknown" if one.users is None else f"{one.users:,}") for one in dropped]
        say_table(("dropped or moved (private: keep it to yourself)", "fixes", "people"), rows)


def dropped_facts(dropped: Sequence[Dropped]) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [one._asdict() for one in dropped]


def warn_of_seed(seed: int | None) -> None:
    """Say on standard error that noise which follows from a seed hides nothing."""
    if seed is not None:
        echo("dphmm: the noise follows from --seed, so this output is not private.", err=True)


def warn(warnings: Sequence[str]) -> None:
    """Say warnings on standard error, one a line."""
    for text in warnings:
        echo(f"dphmm: warning: {text}", err=True, fg="red")


def shown(value: Any) -> str:
    """A value as people read it.

    Examples
    --------
    >>> shown(1234567), shown(0.000123456), shown(True), shown("x")
    ('1,234,567', '0.000123', 'yes', 'x')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return cell(str(value))
