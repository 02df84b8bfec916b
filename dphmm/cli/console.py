"""The terminal: no option twice, text from files shown as plain text, progress, a table or JSON at the end."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from dphmm.jobs.input_data import Dropped

HEADINGS = (
    "Options",
    "Data",
    "Region",
    "True places",
    "Promise",
    "Time",
    "Levels",
    "Noise",
    "Schedule and caps",
    "Session and limits",
    "Stream",
    "Output",
    "Other adversaries",
    "Candidates",
    "Workers",
    "Experiments",
)
"""What help lists options under, in this order: those of every day first."""


class Output(click.Path):
    """The type of an option that names what a command writes: looked at before the command does anything.

    Parameters
    ----------
    is_folder
        Whether it is a folder, which may be there.
    is_store
        Whether it is a file of sessions, which may be there, or the address of a server.
    """

    def __init__(self, is_folder: bool = False, is_store: bool = False) -> None:
        super().__init__(path_type=str if is_store else Path)
        self.is_folder, self.is_store = is_folder, is_store


FILE, FOLDER, STORE = Output(), Output(is_folder=True), Output(is_store=True)

PATH = click.Path(path_type=Path)
"""The type of one that names what a command reads."""


def _check_outputs(command: click.Command, ctx: click.Context) -> None:
    """Refuse outputs that could not be written, or need what is not installed, or are one file."""
    from dphmm.tables.output import check_folder, check_output, check_outputs

    named = [(one.type, ctx.params.get(one.name or "")) for one in command.params if isinstance(one.type, Output)]
    files = [(about, path) for about, path in named if path is not None and not (about.is_store and "://" in str(path))]
    for about, path in files:
        if about.is_folder:
            check_folder(path)
        else:
            check_output(path, about.is_store or bool(ctx.params.get("overwrite")))
    check_outputs([path for about, path in files if not about.is_folder], overwrite=True)


class Once(click.Command):
    """A command that refuses a second value of an option which takes one. Flags may be repeated.

    Its outputs are looked at before anything is read, drawn or spent.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, if what it is to write can be written."""
        _check_outputs(self, ctx)
        return super().invoke(ctx)

    def make_parser(self, ctx: click.Context) -> Any:
        """Click's parser, which then counts what it was given."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            found = parse(args)
            for option, count in Counter(found[2]).items():
                once = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
                if once and count > 1 and not ctx.resilient_parsing:
                    ctx.fail(_refusal(option, count))
            return found

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options in help: those of every day first, the others under their headings."""
        under: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if line is not None:
                under[vars(parameter).get("heading") or HEADINGS[0]].append(line)
        for heading, lines in under.items():
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines)


class OnceGroup(Once, click.Group):
    """A group whose own options and whose commands' are given once."""

    command_class = Once

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, then the commands of the group."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _refusal(option: click.Parameter, count: int) -> str:
    name, said = option.opts[-1], option.metavar or ""
    several = f", as {name} {said}" if "," in said else ""
    return f"{name} is given {count} times; give it once{several}."


_ORDERS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINES = re.compile(f"[{_ORDERS}]")
_IN_CELLS = re.compile(f"[\t\n{_ORDERS}]")


def echo(text: str = "", err: bool = False, **style: Any) -> None:
    """Print a text, tabs and line ends included, with what else a terminal would obey shown as its escape.

    Parameters
    ----------
    text
        What to say.
    err
        True for standard error.
    style
        As `click.style` takes it.
    """
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    shown = _IN_LINES.sub(_escape, text).encode(encoding, "backslashreplace").decode(encoding)
    click.secho(shown, err=err, **style)


def cell(text: str) -> str:
    """A text from a file as part of a line: line ends and tabs are shown as their escapes too.

    Examples
    --------
    >>> print(cell("eve\\x1b[2J\\nbob"))
    eve\\u001b[2J\\u000abob
    """
    return _IN_CELLS.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


Item = TypeVar("Item")


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a bar on standard error while they are gone through; silent where standard error is no terminal.

    Parameters
    ----------
    items
        What is gone through.
    what
        The bar's caption.
    total
        How many items there are; left out, their own length.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    count = total if total is not None else (len(items) if isinstance(items, Sized) else None)
    yield from track(items, what, total=count, console=Console(stderr=True), transient=True)


class _Shown(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        echo(f"dphmm: {record.getMessage()}", err=True)


_WAITS = logging.getLogger("dphmm.compilation")
"""The logger of what is done once and makes people wait."""


@contextmanager
def waits_shown() -> Iterator[None]:
    """On a terminal, standard error says what the command waits for: a loop that is compiled."""
    if not sys.stderr.isatty():
        yield
        return
    shown, level = _Shown(), _WAITS.level
    _WAITS.addHandler(shown)
    _WAITS.setLevel(logging.INFO)
    try:
        yield
    finally:
        _WAITS.removeHandler(shown)
        _WAITS.setLevel(level)


def say_json(facts: Any) -> None:
    """Print facts as JSON, on a line of standard output."""
    echo(json.dumps(facts, ensure_ascii=False, allow_nan=False))


def say(
    title: str, facts: Mapping[str, Any], as_json: bool, dropped: Sequence[Dropped] = (), listed: str | None = None
) -> None:
    """Print facts on standard output, and what was left out of the data.

    Parameters
    ----------
    title
        Stands above the table.
    facts
        A name of a fact, in snake case, → a number, a text, or None where there is nothing to say.
    as_json
        True to print one JSON object instead.
    dropped
        What was left out and why: a table follows with a row for each reason.
    listed
        The name of the fact that has it in JSON; nothing to leave it out there.
    """
    if as_json:
        say_json({**facts, **({} if listed is None else {listed: [one._asdict() for one in dropped]})})
        return
    stated = {cell(name).replace("_", " "): shown(value) for name, value in facts.items() if value is not None}
    width = max(map(len, stated), default=0)
    echo(cell(title), bold=True)
    for name, value in stated.items():
        echo(f"  {name:<{width}}  {value}")
    if dropped:
        rows = [(one.reason, f"{one.fixes:,}", "unknown" if one.users is None else f"{one.users:,}") for one in dropped]
        say_table(("dropped or moved (private: keep it to yourself)", "fixes", "people"), rows)


def say_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", most: int | None = None) -> None:
    """Print a table on standard output, in columns that line up.

    Parameters
    ----------
    header, rows
        Texts; every row has as many as the header.
    title
        Stands above the table, where there is one.
    most
        Print at most this many rows, and say how many more there are.
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
