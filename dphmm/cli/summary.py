"""What a command says at its end: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click


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
        click.echo(json.dumps(facts, ensure_ascii=False, allow_nan=False))
        return
    told = {name.replace("_", " "): shown(value) for name, value in facts.items() if value is not None}
    width = max(map(len, told), default=0)
    click.secho(title, bold=True)
    for name, value in told.items():
        click.echo(f"  {name:<{width}}  {value}")


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
    return str(value)
