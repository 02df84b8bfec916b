"""Every command and option, and every key of the files that people write, as pages out of the package itself."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click
from numpydoc.docscrape import NumpyDocString

from dphmm.cli import COMMANDS, main
from dphmm.cli.release import _KEYS, release_command
from dphmm.events import Cap
from dphmm.release import Limits, ReleaseSettings, Schedule
from dphmm.serve.config import Broker, Device, Recipient, RelayConfig

KEYS: Mapping[str, tuple[type, str]] = {
    "How places are released": (
        ReleaseSettings,
        "`ReleaseSettings`, in job files, and under `[release]` in a relay's.",
    ),
    "When anything is drawn": (Schedule, "Under `[schedule]` in settings, `[release.schedule]` in a relay's file."),
    "Caps on events": (Cap, "Each under `[[caps]]` in settings."),
    "Limits": (Limits, "Under `[limits]` in a relay's file; options `--limit-…` of the command."),
    "A relay": (RelayConfig, "At the top of a relay's file."),
    "A device that posts": (Device, "Each under `[[device]]`."),
    "A recipient": (Recipient, "Each under `[[recipient]]`."),
    "An MQTT broker": (Broker, "Under `[mqtt]`."),
}
"""Heading → the class whose fields the keys are, and where they stand."""


def escaped(text: str) -> str:
    """Plain words as Markdown that says the same."""
    return re.sub(r"([\\`*_<>\[\]|#~$])", r"\\\1", " ".join(text.split()))


def pages() -> dict[str, str]:
    """The pages on commands and keys: the path below ``reference`` → its Markdown."""
    listed = "\n".join(f"| [`dphmm {name}`](commands/{name}.md) | {escaped(said)} |" for name, said in COMMANDS.items())
    order = "\n".join(f"commands/{name}" for name in COMMANDS)
    whole = {
        "commands.md": (
            "# Commands and options\n\nEvery command with every option, out of the program itself; what they are for, "
            f"and what comes out, is in [the command](command.md).\n\n"
            f"| command | what it does |\n| --- | --- |\n{listed}\n\n"
            f"```{{toctree}}\n:hidden:\n\n{order}\n```\n"
        ),
        "keys.md": keys(),
    }
    root = click.Context(main, info_name="dphmm")
    for name in COMMANDS:
        command = main.get_command(root, name)
        if command is None:
            raise LookupError(f"the command {name} has no file")
        whole[f"commands/{name}.md"] = "\n".join(_command(command, click.Context(command, root, name), 1))
    return whole


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}\n"
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    for paragraph in textwrap.dedent(inspect.cleandoc(command.help or "")).split("\n\n"):
        if paragraph.startswith("\b"):
            yield "```text\n" + paragraph.removeprefix("\b").strip("\n") + "\n```\n"
        else:
            yield f"{escaped(paragraph)}\n"
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            yield f"`{record[0]}`\n: {escaped(record[1])}\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _command(inner, click.Context(inner, context, name), level + 1)


def keys() -> str:
    """The page of keys.

    Raises
    ------
    LookupError
        When a field has no description: a key that nobody could look up.
    """
    parts = [
        "# Keys of files",
        "TOML files say how places are released, what a job is, and what a relay does. An unknown key is refused by "
        "name. The keys of an evaluation are [on its page](../how-to/scaling.md#an-evaluation).",
    ]
    for heading, (owner, where) in KEYS.items():
        parts += [f"## {heading}", where, *_fields(owner)]
    options = {one.name: one for one in release_command.params}
    context = click.Context(release_command, info_name="release")
    parts += [
        "## A job",
        "A job file (`dphmm release --job`) has the settings above and these of [the command](commands/release.md):",
    ]
    settings = {field.name for field in dataclasses.fields(ReleaseSettings)}
    for key in _KEYS:
        if key in settings:
            continue
        record = options[key].get_help_record(context) if key in options else None
        said = escaped(record[1]) if record and record[1] else "see `dphmm release --help`"
        parts.append(f"`{key}`\n: {said}")
    return "\n\n".join(parts) + "\n"


def _fields(owner: type) -> Iterator[str]:
    described = {}
    document = NumpyDocString(inspect.getdoc(owner) or "")
    for section in ("Parameters", "Attributes"):
        for one in document[section]:
            for name in one.name.split(", "):
                described[name] = one.desc
    for key, default in _defaults(owner):
        if key not in described:
            raise LookupError(f"{owner.__name__}.{key} has no description in its docstring; every key needs one")
        shown = "required" if default is ... else f"default `{default}`"
        yield f"`{key}` ({shown})\n: {textwrap.indent(_markdown(described[key]), '  ').lstrip()}"


def _defaults(owner: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(owner):
        for one in dataclasses.fields(owner):
            yield one.name, ... if one.default is dataclasses.MISSING else _toml(one.default)
        return
    for name, one in owner.model_fields.items():
        missing = one.is_required()
        value = ... if missing else one.get_default(call_default_factory=True)
        yield getattr(one, "alias", None) or name, ... if missing else _toml(value)


def _toml(value: Any) -> str:
    """A default as its file would have it."""
    if value is None or value == () or value == {} or dataclasses.is_dataclass(value):
        return "left out"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def _markdown(lines: list[str]) -> str:
    """A description in reStructuredText's marks as Markdown."""
    text = " ".join(" ".join(lines).split())
    return re.sub(r"``([^`]+)``|`([^`]+)`", lambda found: f"`{found[1] or found[2]}`", text).replace("δ", "δ")
