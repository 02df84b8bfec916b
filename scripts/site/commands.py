"""Reference pages of commands, options and keys of TOML files, generated from the package."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import click
from numpydoc.docscrape import NumpyDocString

from dphmm.cli import COMMANDS, main
from dphmm.cli.keys import Key, describe_requirement, get_key
from dphmm.evaluation.config import EvaluationConfig
from dphmm.events import Cap
from dphmm.release import Limits, ReleaseSettings, Schedule
from dphmm.serve.config import Broker, Device, PageAccess, Recipient, RelayConfig

# Heading → class with a field for each key, and the section that contains the keys.
KEYS: Mapping[str, tuple[type, str]] = {
    "Release settings": (
        ReleaseSettings,
        "`ReleaseSettings`, in settings files, and under `[release]` in a relay's.",
    ),
    "Schedule": (Schedule, "Under `[schedule]` in settings, `[release.schedule]` in a relay's file."),
    "Caps on events": (Cap, "Each under `[[caps]]` in settings."),
    "Limits": (Limits, "Under `[limits]` in a relay's file; keys `limit_…` of a settings file."),
    "A relay": (RelayConfig, "At the top of a relay's file."),
    "A device that posts": (Device, "Each under `[[device]]`."),
    "The page of a user": (PageAccess, "Each under `[[page]]`."),
    "A recipient": (Recipient, "Each under `[[recipient]]`."),
    "An MQTT broker": (Broker, "Under `[mqtt]`."),
    "An evaluation": (EvaluationConfig, "At the top of the file of `dphmm evaluate`; each sweep changes one key."),
}


def escape(text: str) -> str:
    """Escape plain text for Markdown."""
    return re.sub(r"([\\`*_<>\[\]|#~$])", r"\\\1", " ".join(text.split()))


def build_pages() -> dict[str, str]:
    """Return the pages of commands and keys: path below ``reference`` → Markdown."""
    listed = "\n".join(
        f"| [`dphmm {name}`](commands/{name}.md) | {escape(summary)} |" for name, summary in COMMANDS.items()
    )
    order = "\n".join(f"commands/{name}" for name in COMMANDS)
    whole = {
        "commands.md": (
            "# Commands and options\n\nThis page lists every command and option and is generated from the program. "
            "[The command](command.md) describes their use and outputs.\n\n"
            f"| command | description |\n| --- | --- |\n{listed}\n\n"
            f"```{{toctree}}\n:hidden:\n\n{order}\n```\n"
        ),
        "keys.md": build_key_page(),
    }
    root = click.Context(main, info_name="dphmm")
    for name in COMMANDS:
        command = main.get_command(root, name)
        if command is None:
            raise LookupError(f"command {name!r} has no module")
        whole[f"commands/{name}.md"] = "\n".join(_describe_command(command, click.Context(command, root, name), 1))
    return whole


def _describe_command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}\n"
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    for paragraph in textwrap.dedent(inspect.cleandoc(command.help or "")).split("\n\n"):
        if paragraph.startswith("\b"):
            yield "```text\n" + paragraph.removeprefix("\b").strip("\n") + "\n```\n"
        else:
            yield f"{escape(paragraph)}\n"
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            yield f"`{record[0]}`\n: {escape(record[1])}\n"
    if further := sorted(get_key(parameter) for parameter in command.params if isinstance(parameter, Key)):
        names = ", ".join(f"`{key}`" for key in further)
        yield f"Further [keys](/reference/keys.md#a-settings-file) of `--settings`: {names}.\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _describe_command(inner, click.Context(inner, context, name), level + 1)


def build_key_page() -> str:
    """Return the page of keys.

    Raises
    ------
    LookupError
        If a field has no description.
    """
    parts = [
        "# Keys of files",
        "TOML files contain release settings, options of commands, and the configuration of a relay or an "
        "[evaluation](../how-to/scaling.md#run-an-evaluation). Unknown keys are rejected by name.",
    ]
    for heading, (owner, where) in KEYS.items():
        parts += [f"## {heading}", where, *_list_fields(owner)]
    parts += [
        "## A settings file",
        "These keys of [`--settings`](command.md#settings-files) are not options of the commands. All options are "
        "also keys, with underscores instead of hyphens.",
        build_key_table(),
    ]
    return "\n\n".join(parts) + "\n"


def _list_fields(owner: type) -> Iterator[str]:
    described = {}
    document = NumpyDocString(inspect.getdoc(owner) or "")
    for section in ("Parameters", "Attributes"):
        for entry in document[section]:
            for name in entry.name.split(", "):
                described[name] = entry.desc
    for key, default in _iterate_defaults(owner):
        if key not in described:
            raise LookupError(f"{owner.__name__}.{key} has no description: add it to the docstring")
        shown = "required" if default is ... else f"default `{default}`"
        yield f"`{key}` ({shown})\n: {textwrap.indent(_convert_to_markdown(described[key]), '  ').lstrip()}"


def _iterate_defaults(owner: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(owner):
        for field in dataclasses.fields(owner):
            yield field.name, ... if field.default is dataclasses.MISSING else _format_toml(field.default)
        return
    for name, field in owner.model_fields.items():
        missing = field.is_required()
        value = ... if missing else field.get_default(call_default_factory=True)
        yield getattr(field, "alias", None) or name, ... if missing else _format_toml(value)


def _format_toml(value: Any) -> str:
    """Format a default as in a TOML file."""
    if value is None or value == () or value == {} or dataclasses.is_dataclass(value):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_toml, value))}]"
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def _convert_to_markdown(lines: list[str]) -> str:
    """Convert a description from reStructuredText to Markdown."""
    text = " ".join(" ".join(lines).split())
    return re.sub(r"``([^`]+)``|`([^`]+)`", lambda match: f"`{match[1] or match[2]}`", text)


_DEFAULT = re.compile(r"\s*\[default: (.*)\]$")
# Lists of at least this many commands that several keys share are stated once, below the table.
_MIN_SHARED_COMMANDS = 5
# Requirements that the table omits: the meaning or the default of the key implies them, and messages state them.
_PLAIN_VALUES = (
    "a number",
    "a number, km",
    "an integer",
    "an integer, at least 1",
    "a string",
    "a path",
    "true or false",
)


def build_key_table() -> str:
    """Return the table of the keys of `--settings` that are not options, with their commands."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for path, command in _iterate_commands(main, ()):
        for parameter in command.params:
            if isinstance(parameter, Key):
                rows.setdefault(_build_key_row(parameter), []).append(f"`{' '.join(path)}`")
    listed = Counter(", ".join(paths) for paths in rows.values() if len(paths) >= _MIN_SHARED_COMMANDS)
    notes = {commands: f"({index})" for index, commands in enumerate((c for c, n in listed.items() if n > 1), start=1)}
    lines = ["| key (default) | meaning | commands |", "| --- | --- | --- |"]
    for row, paths in sorted(rows.items()):
        commands = ", ".join(paths)
        lines.append(f"| {' | '.join(row)} | {notes.get(commands, commands)} |")
    return "\n".join([*lines, "", *(f"{note} {commands}.\n" for commands, note in notes.items())])


def _iterate_commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _iterate_commands(inner, (*path, name))


def _build_key_row(key: Key) -> tuple[str, str]:
    meaning = key.help or ""
    written = _DEFAULT.search(meaning)
    default = written[1] if written else str(key.default) if isinstance(key.default, int | float | str) else ""
    value = describe_requirement(key)
    if value == "true or false":
        default = default.lower() or "false"
    meaning = _DEFAULT.sub("", meaning)
    choices = value.removeprefix("one of ").split(", ")
    if value not in _PLAIN_VALUES and not all(choice in meaning for choice in choices):
        meaning = f"{meaning.rstrip('.')}: {value}."
    return f"`{get_key(key)}`{f' ({escape(default)})' if default else ''}", escape(meaning)
