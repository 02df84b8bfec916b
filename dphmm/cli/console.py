"""Terminal input and output: options, escaped text, progress and results."""

from __future__ import annotations

import json
import logging
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dphmm.cli.keys import Key, build_settings_option, list_stated_parameters, name_parameters_in_errors
from dphmm.errors import OutputError
from dphmm.formatting import format_upper_bound

if TYPE_CHECKING:
    from dphmm.jobs.input_data import Dropped

# The headings of options in help, in their order: common options first.
HEADINGS = (
    "Options",
    "Data",
    "Region",
    "True locations",
    "Guarantee",
    "Time",
    "Levels",
    "Noise",
    "Schedule and caps",
    "Session and limits",
    "Output",
    "Other adversaries",
    "Candidates",
    "Workers",
    "Experiments",
)


class Output(click.Path):
    """The type of an option that names an output, which is checked before any work.

    Parameters
    ----------
    is_folder
        Whether it is a folder, which may exist.
    is_store
        Whether it is a file of sessions, which may exist, or the address of a server.
    """

    def __init__(self, is_folder: bool = False, is_store: bool = False) -> None:
        super().__init__(path_type=str if is_store else Path)
        self.is_folder = is_folder
        self.is_store = is_store


FILE = Output()
FOLDER = Output(is_folder=True)
STORE = Output(is_store=True)

# The type of an option that names an input.
PATH = click.Path(path_type=Path)
# The extensions of pictures, those of `dphmm.plots.canvas`, which imports Matplotlib.
PICTURES = (".png", ".svg", ".pdf")


def _check_outputs(command: click.Command, ctx: click.Context) -> None:
    """Refuse outputs that cannot be written, or are another output or an input.

    Outputs that need a missing library are refused, too.
    """
    from dphmm.tables.output import check_folder, check_output, check_outputs

    values = [
        (option.type, ctx.params.get(option.name or "")) for option in command.params if isinstance(option.type, Output)
    ]
    outputs = [(kind, path) for kind, path in values if path is not None and not (kind.is_store and "://" in str(path))]
    for kind, path in outputs:
        if kind.is_folder:
            check_folder(path)
        else:
            check_output(path, kind.is_store or bool(ctx.params.get("overwrite")))
    check_outputs([path for kind, path in outputs if not kind.is_folder], overwrite=True)
    paths = [ctx.params.get(option.name or "") for option in command.params if _is_input(option)]
    inputs = [Path(path) for value in paths for path in (value if isinstance(value, tuple) else (value,)) if path]
    for output in [path for kind, path in outputs if not (kind.is_folder or kind.is_store)]:
        if any(_is_same_file(output, path) for path in inputs):
            raise OutputError(f"{output} is an input of this command; name another file")


def _is_input(option: click.Parameter) -> bool:
    return isinstance(option.type, click.Path) and not isinstance(option.type, Output)


def _is_same_file(output: Path, path: Path) -> bool:
    try:
        return path.samefile(output)
    except (OSError, ValueError):  # one of them does not exist, or is not a path
        return False


class Once(click.Command):
    """A command that refuses a second value of an option that takes one.

    Flags may be repeated.

    Its outputs are checked before anything is read, sampled or spent. A command with keys takes `--settings FILE.toml`.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        if any(isinstance(parameter, Key) for parameter in self.params):
            self.params.append(build_settings_option())

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command if its outputs can be written. Errors about an option name it."""
        try:
            _check_outputs(self, ctx)
            with name_parameters_in_errors(**list_stated_parameters(ctx)):
                return super().invoke(ctx)
        except OutputError as problem:
            applies = ctx.params.get("overwrite") is False and not ctx.params.get("everything")
            if applies or isinstance(self, click.Group):
                raise
            # The command has no such option, or it does not apply to this output, such as a whole store.
            raise OutputError(str(problem).replace(" or pass --overwrite", "")) from None

    def make_parser(self, ctx: click.Context) -> Any:
        """Return Click's parser, extended by a count of each option."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            try:
                parsed = parse(_split_box(args))
            except click.BadOptionUsage as problem:
                if problem.option_name == "--bbox":
                    form = "SOUTH WEST NORTH EAST in degrees, such as --bbox 44.97 -30.04 45.03 -29.96"
                    ctx.fail(f"--bbox must be {form}.")
                raise
            except click.NoSuchOption as problem:
                key = problem.option_name.removeprefix("--").replace("-", "_")
                if any(isinstance(parameter, Key) and key in parameter.opts for parameter in self.params):
                    ctx.fail(f"{problem.option_name} must be the key {key} in --settings FILE.toml.")
                raise
            for option, count in Counter(parsed[2]).items():
                takes_one = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
                if takes_one and count > 1 and not ctx.resilient_parsing:
                    ctx.fail(_describe_repeated_option(option, count))
            return parsed

        parser.parse_args = parse_once  # type: ignore[method-assign]  # of this parser alone
        return parser

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of help: common ones first, the others under their headings."""
        lines_by_heading: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if line is not None:
                lines_by_heading[vars(parameter).get("heading") or HEADINGS[0]].append(line)
        for heading, lines in lines_by_heading.items():
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines)


class OnceGroup(Once, click.Group):
    """A group of commands that refuse a second value of an option that takes one."""

    command_class = Once

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the commands of the group."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with its whole first sentence, which click would cut off."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(1000)) for name, command in commands if command])


def _split_box(args: list[str]) -> list[str]:
    """Split the value of ``--bbox`` at commas, as in ``--bbox 44.97,-30.04,45.03,-29.96``."""
    words: list[str] = []
    for index, word in enumerate(args):
        value = word.removeprefix("--bbox=") if word.startswith("--bbox=") else word
        parts = [part for part in re.split(r"[,\s]+", value.strip()) if part]
        is_value = value is not word or "--bbox" in args[max(index - 4, 0) : index]
        if is_value and all(map(_DEGREES.fullmatch, parts)) and parts:
            words += [*(["--bbox"] if value is not word else []), *parts]
        else:
            words.append(word)
    return words


_DEGREES = re.compile(r"[+-]?\d+(?:\.\d*)?", re.ASCII)


def _describe_repeated_option(option: click.Parameter, count: int) -> str:
    name = option.opts[-1]
    metavar = option.metavar or ""
    example = f" {metavar}" if "," in metavar else ""
    return f"{name} must occur once, got {count} times: use {name}{example} once."


_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ESCAPED_IN_LINES = re.compile(f"[{_CONTROL}]")
_ESCAPED_IN_CELLS = re.compile(f"[\t\n{_CONTROL}]")


def echo(text: str = "", err: bool = False, **style: Any) -> None:
    """Print a string with tabs and line ends. Other control characters are escaped.

    Parameters
    ----------
    text
        The string.
    err
        True for standard error.
    style
        As for `click.style`.
    """
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    escaped = _ESCAPED_IN_LINES.sub(_escape, text).encode(encoding, "backslashreplace").decode(encoding)
    click.secho(escaped, err=err, **style)


def escape_cell(text: str) -> str:
    """Escape a string from a file for use in a line: line ends and tabs are escaped too.

    Examples
    --------
    >>> print(escape_cell("eve\\x1b[2J\\nbob"))
    eve\\u001b[2J\\u000abob
    """
    return _ESCAPED_IN_CELLS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


Item = TypeVar("Item")


def show_progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Iterate over items with a progress bar on standard error.

    There is no bar if standard error is not a terminal.

    Parameters
    ----------
    items
        The items.
    what
        The bar's caption.
    total
        The number of items. Defaults to their length.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    count = total if total is not None else (len(items) if isinstance(items, Sized) else None)
    yield from track(items, what, total=count, console=Console(stderr=True), transient=True)


class _Progress(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        echo(record.getMessage(), err=True)


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warn([record.getMessage().removeprefix("dphmm: ").removeprefix("warning: ")])


# The logger of one-time compilation, which makes users wait.
_COMPILATION = logging.getLogger("dphmm.compilation")


@contextmanager
def show_log_messages() -> Iterator[None]:
    """Print the package's warnings on standard error.

    On a terminal, loops that are being compiled are printed too.
    """
    package = logging.getLogger("dphmm")
    warnings_handler = _Warnings(logging.WARNING)
    progress_handler = _Progress()
    shows_progress = sys.stderr.isatty()
    level = _COMPILATION.level
    package.addHandler(warnings_handler)
    if shows_progress:
        _COMPILATION.addHandler(progress_handler)
        _COMPILATION.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(warnings_handler)
        if shows_progress:
            _COMPILATION.removeHandler(progress_handler)
            _COMPILATION.setLevel(level)


def print_json(values: Any) -> None:
    """Print values as JSON on one line of standard output."""
    echo(json.dumps(values, ensure_ascii=False, allow_nan=False))


def format_value(value: Any) -> str:
    """Format a value of a result for the terminal.

    Examples
    --------
    >>> format_value(1234567), format_value(0.000123456), format_value(True)
    ('1,234,567', '0.000123', 'yes')
    >>> format_value([{"epsilon": 3.0, "window_s": 86400.0}, 2])
    'epsilon 3, window (s) 86,400; 2'
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_to_words(name)} {format_value(item)}" for name, item in value.items())
    if isinstance(value, list):
        return "; ".join(map(format_value, value))
    return escape_cell(str(value))


def format_epsilon(value: Any) -> str:
    """Format a spent epsilon, rounded up. `format_value` formats other types.

    Examples
    --------
    >>> format_epsilon(24.1650001), format_epsilon(24165.3), format_epsilon("unbounded")
    ('24.1651', '24,165.3', 'unbounded')
    """
    return format_upper_bound(value, ",") if isinstance(value, float) else format_value(value)


def format_ratio(value: Any) -> str:
    """Format a bound on a likelihood ratio. `format_value` formats other types.

    Examples
    --------
    >>> format_ratio(2.72), format_ratio(571632.0), format_ratio("none: the noise is seeded")
    ('≤ 2.72', '≤ 571,632', 'none: the noise is seeded')
    """
    return f"≤ {format_value(value)}" if isinstance(value, float) else format_value(value)


def format_use(metric: Mapping[str, float | None]) -> str:
    """Format a measure of a use with its interval, in percent.

    Examples
    --------
    >>> format_use({"value": 0.123, "low": 0.1, "high": 0.15})
    '12 % (10 to 15)'
    """
    value, low, high = (metric[name] for name in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return "undefined"
    return f"{100 * value:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


@dataclass(frozen=True)
class Row:
    """A value of a result: a line of a `Block`, or a column of a `Table`.

    Parameters
    ----------
    key
        The value's path in the result's dictionary, slashes between levels; empty for the dictionary itself.
    label
        The text before or above the value. Defaults to the last part of the key, in words.
    text
        Formats a value that is not None: a function, or a format such as ``".3g"``. An empty string means that the
        value is not applicable.
    has_margin
        Whether its margin of error is in the result too, under the same key with ``_margin``.
    """

    key: str
    label: str = ""
    text: Callable[[Any], str] | str = format_value
    has_margin: bool = False

    @property
    def heading(self) -> str:
        """The label, or the key in words."""
        return escape_cell(self.label or _to_words(self.key.rpartition("/")[2]))

    @property
    def section(self) -> str:
        """The section of a result that the value belongs to, one of `SECTIONS`, by its key."""
        return next((section for section, pattern in _SECTION_OF_KEY if pattern.search(self.key)), SECTIONS[0])

    def read(self, result: Mapping[str, Any], missing: str = "", omits_zero: bool = False) -> str:
        """Format the value. `missing` if it is None or absent.

        With `omits_zero`, the string is empty if the value is zero or empty.
        """
        value = _get_value(result, self.key)
        if value is None:
            return missing
        if omits_zero and not isinstance(value, bool) and value in (0, "", (), []):
            return ""
        if not self.has_margin:
            return self._format(value)
        return f"{self._format(value)} ± {self._format(_get_value(result, f'{self.key}_margin'))}"

    def _format(self, value: Any) -> str:
        return format(value, self.text) if isinstance(self.text, str) else self.text(value)


_UNITS = ("m", "km", "s")
# The sections of a printed result, in their order.
SECTIONS = ("Result", "Privacy", "Utility", "Private: do not publish")

# The section of a key without one of these patterns is the first.
_SECTION_OF_KEY = (
    (SECTIONS[3], re.compile(r"^private")),
    (
        SECTIONS[1],
        re.compile(
            r"epsilon|likelihood_ratio|guarantee|promise|randomness|leakage|posterior|adversary|membership_|^spent_on$"
        ),
    ),
    (SECTIONS[2], re.compile(r"(^|_)(errors?|rmse|radius)(_|$)")),
)


def _get_value(result: Any, key: str) -> Any:
    """Return the value at a path, None if a part of the path is absent.

    A name may contain a slash itself.
    """
    if key in result:
        return result[key]
    for part in key.split("/") if key else ():
        result = None if result is None else result.get(part)
    return result


def _to_words(key: str) -> str:
    """Return a key in words, with its unit at the end.

    The prefixes of private values and of counts are omitted.

    Examples
    --------
    >>> _to_words("num_timesteps_inside"), _to_words("median_error_m_inside")
    ('timesteps inside', 'median error inside (m)')
    """
    words = key.removeprefix("private_").removeprefix("num_").split("_")
    unit = next((word for word in words[1:] if word in _UNITS), None)
    return " ".join(word for word in words if word != unit) + ("" if unit is None else f" ({unit})")


def build_rows(*keys: str, labels: Mapping[str, str] | None = None) -> tuple[Row, ...]:
    """Return rows that show values under their labels, or under their own names."""
    labels = labels or {}
    return tuple(Row(key, labels.get(key, _LABELS.get(key, "")), _get_format(key)) for key in keys)


_LABELS = {"is_exact": "noise is exact"}


def _get_format(key: str) -> Callable[[Any], str]:
    if key.startswith("likelihood_ratio"):
        return format_ratio
    return format_epsilon if "epsilon" in key.split("_") else format_value


@dataclass(frozen=True)
class Block:
    """Values of a result under a title, one per line.

    Absent and inapplicable values have no line.

    Parameters
    ----------
    title
        The title.
    rows
        The values.
    omits_zeros
        Whether values that are zero or empty have no line either.
    """

    title: str
    rows: Sequence[Row]
    omits_zeros: bool = False

    def format_lines(self, result: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the label and the value of each line."""
        texts = [(row.heading, row.read(result, "", self.omits_zeros)) for row in self.rows]
        return [(heading, text) for heading, text in texts if text]

    def show(self, result: Mapping[str, Any], width: int = 0) -> None:
        """Print the title and the values, if there are any, with labels of at least a width."""
        lines = self.format_lines(result)
        width = max([width, *(len(heading) for heading, _ in lines)])
        if self.title:
            echo(escape_cell(self.title), bold=True)
        for heading, text in lines:
            first, *more = _wrap(text, max(_PAGE_WIDTH - width - 4, _MIN_VALUE_WIDTH))
            echo(f"  {heading:<{width}}  {first}")
            for line in more:
                echo(" " * (width + 4) + line)


@dataclass(frozen=True)
class Table:
    """A list in a result, one item per line.

    It is omitted if it is empty, and so are columns without a value.

    Parameters
    ----------
    key
        The list's path in the result's dictionary, slashes between levels.
    columns
        The values of an item that are shown.
    title
        A line above the table. Defaults to none.
    max_lines
        Print at most this many items, and the number of the others.
    missing
        Replaces values that are None.
    """

    key: str
    columns: Sequence[Row]
    title: str = ""
    max_lines: int | None = None
    missing: str = ""

    def show(self, result: Mapping[str, Any]) -> None:
        """Print the table."""
        items = _get_value(result, self.key) or ()
        texts = [[column.read(item, self.missing) for item in items] for column in self.columns]
        used = [(column.heading, text) for column, text in zip(self.columns, texts, strict=True) if any(text)]
        if used:
            header, cells = zip(*used, strict=True)
            print_table(header, list(zip(*cells, strict=True)), self.title, self.max_lines)


def render(result: Mapping[str, Any], *blocks: Block | Table) -> None:
    """Print a result's dictionary, with the labels of all blocks in one column.

    Parameters
    ----------
    result
        The dictionary of a result, and additional values of a command.
    *blocks
        The parts of it that are shown, in their order.
    """
    width = max(
        (len(label) for block in blocks if isinstance(block, Block) for label, _ in block.format_lines(result)),
        default=0,
    )
    for block in blocks:
        if isinstance(block, Table):
            block.show(result)
        elif block.format_lines(result):
            block.show(result, width)


def print_result(
    title: str,
    result: Mapping[str, Any],
    as_json: bool,
    dropped: Sequence[Dropped] = (),
    listed: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Print a result on standard output in the sections result, privacy, utility and private.

    Parameters
    ----------
    title
        The title of the first section.
    result
        The result's dictionary.
    as_json
        True to print one JSON object instead.
    dropped
        Input that was dropped or moved, and why; shown in the private section.
    listed
        The name of the dropped input in JSON. None omits it there.
    labels
        The labels of values. Other values are shown under their own names.
    """
    if as_json:
        print_json({**result, **({} if listed is None else {listed: [entry._asdict() for entry in dropped]})})
        return
    all_rows = build_rows(*result, labels=labels)
    blocks = [Block(title, [row for row in all_rows if row.section == SECTIONS[0]])]
    blocks += [Block(section, [row for row in all_rows if row.section == section]) for section in SECTIONS[1:]]
    private = Block(SECTIONS[-1], [*blocks.pop().rows, *build_dropped_rows(dropped, "private_dropped")])
    render({**result, "private_dropped": describe_dropped_fixes(dropped)}, *blocks, private)


def build_dropped_rows(dropped: Iterable[Dropped], key: str) -> tuple[Row, ...]:
    """Return one row per reason, for the values of `describe_dropped_fixes` under a key."""
    return tuple(Row(f"{key}/{entry.reason}", entry.reason) for entry in dropped)


def describe_dropped_fixes(dropped: Iterable[Dropped]) -> dict[str, str]:
    """Return the number of fixes and users by reason, in words.

    Examples
    --------
    >>> from dphmm.jobs.input_data import Dropped
    >>> describe_dropped_fixes([Dropped("excluded by --users", 1632, 2), Dropped("malformed records", 1, None)])
    {'excluded by --users': '1,632 fixes of 2 users', 'malformed records': '1 fix'}
    """
    return {
        entry.reason: format_count(entry.fixes, "fix", "fixes")
        + ("" if entry.users is None else f" of {format_count(entry.users, 'user')}")
        for entry in dropped
    }


def format_count(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> format_count(1, "user"), format_count(1632, "fix", "fixes")
    ('1 user', '1,632 fixes')
    """
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


_PAGE_WIDTH = 80
_MIN_VALUE_WIDTH = 30  # of values below long labels
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:m|km|h|s|%|°)(?:[\s,;.)]|$))")


def print_paragraph(label: str, text: str, **style: Any) -> None:
    """Print a paragraph, wrapped at 80 columns and indented below its label.

    The style is that of `click.style`.
    """
    prefix = f"{label} " if label else ""
    echo(
        textwrap.fill(
            escape_cell(text),
            _PAGE_WIDTH,
            initial_indent=prefix,
            subsequent_indent=" " * len(prefix),
            break_on_hyphens=False,
            break_long_words=False,
        ),
        **style,
    )


def _wrap(text: str, width: int) -> list[str]:
    """Split a text into lines between words, but not between a number and its unit."""
    joined = _BEFORE_UNIT.sub("\xa0", text)
    lines = textwrap.wrap(joined, max(width, 1), break_on_hyphens=False, break_long_words=False)
    return [line.replace("\xa0", " ") for line in lines] or [""]


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", max_lines: int | None = None
) -> None:
    """Print a table with aligned columns on standard output.

    Headings are split into several lines if the table is wider than a page otherwise.

    Parameters
    ----------
    header, rows
        Strings; every row has as many as the header.
    title
        A line above the table. Defaults to none.
    max_lines
        Print at most this many rows, and the number of the others.
    """
    headings = [escape_cell(text) for text in header]
    cells = [[escape_cell(text) for text in row] for row in rows]
    cell_widths = [max(map(len, column), default=0) for column in zip(*cells, strict=True)] or [0] * len(headings)
    widths = [max(width, len(heading)) for width, heading in zip(cell_widths, headings, strict=True)]
    words = [max(map(len, heading.split()), default=0) for heading in headings]
    spare = [width - max(pair) for width, pair in zip(widths, zip(cell_widths, words, strict=True), strict=True)]
    while sum(widths) + 2 * len(widths) - 2 > _PAGE_WIDTH and (maximum := max(spare)):
        widths[spare.index(maximum)] -= 1
        spare[spare.index(maximum)] -= 1
    wrapped = [_wrap(heading, width) for heading, width in zip(headings, widths, strict=True)]
    for line in _wrap(title, _PAGE_WIDTH) if title else ():
        echo(line)
    for parts in zip_longest(*wrapped, fillvalue=""):
        echo("  ".join(map(str.ljust, parts, widths)).rstrip(), bold=True)
    for texts in cells[:max_lines]:
        echo("  ".join(map(str.ljust, texts, widths)).rstrip())
    if max_lines is not None and len(rows) > max_lines:
        echo(f"… and {len(rows) - max_lines:,} more; --json contains all of them.")


def warn_of_seed(seed: int | None) -> None:
    """Warn on standard error that seeded noise provides no privacy."""
    if seed is not None:
        warn(["the noise is seeded with --seed: this output is not private"])


def warn(warnings: Iterable[str]) -> None:
    """Print warnings on standard error, one per line."""
    for text in warnings:
        echo(f"Warning: {text}", err=True, fg="red")


def print_error(text: str) -> None:
    """Print the message of an expected failure on standard error."""
    echo(f"Error: {text}", err=True)
