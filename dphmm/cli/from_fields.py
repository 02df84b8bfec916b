"""Options of commands made of the fields of settings, and the headings under which help lists them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

import click

from dphmm.options import Option, option_of

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_TYPES = {"float": float, "int": int}


def options(*several: Callable[[Any], Any], heading: str = "") -> Callable[[Decorated], Decorated]:
    """One decorator out of several options, in the order in which help lists them.

    Parameters
    ----------
    *several
        What `click.option` makes, or this function.
    heading
        Where help lists them, whatever they say themselves; nothing to leave that to them.
    """

    def add(command: Decorated) -> Decorated:
        there = len(getattr(command, "__click_params__", ()))
        for option in reversed(several):
            command = option(command)
        for parameter in getattr(command, "__click_params__", ())[there:] if heading else ():
            vars(parameter)["heading"] = heading
        return command

    return add


def options_of(
    kind: type, names: Collection[str] = (), without: Collection[str] = (), **texts: str
) -> Callable[[Decorated], Decorated]:
    """The options that the fields of a dataclass make.

    An option that is not given is None, so that what is left out takes the field's default, in one place.

    Parameters
    ----------
    kind
        A dataclass whose fields are made by `dphmm.options.setting`; others are passed over.
    names, without
        These fields alone, all but these.
    **texts
        Field → what help says of it in this command instead.
    """
    chosen = [one for one in fields(kind) if one.name not in without and (not names or one.name in names)]
    made = [(one, about) for one in chosen if (about := option_of(one)) is not None]
    return options(*(_made(one, about, texts.get(one.name, about.help)) for one, about in made))


def option_name(one: Field[Any]) -> str:
    """What a field's option is called, with underscores."""
    about = option_of(one)
    return one.name if about is None else about.name or one.name


def _made(one: Field[Any], about: Option, text: str) -> Callable[[Any], Any]:
    name = option_name(one)
    kind = str(one.type).removesuffix(" | None")
    is_sequence = kind.startswith("Mapping")
    default = f" [default: {one.default}]" if about.shows_default and one.default is not MISSING else ""
    choices = f": {', '.join(about.choices)}." if about.choices and about.choices[0] not in text else ""
    return options(
        click.option(
            f"--{name.replace('_', '-').removesuffix('s') if is_sequence else name.replace('_', '-')}",
            f"{name}_" if name == "format" else name,
            help=f"{text}{choices}{default}",
            metavar=about.metavar,
            default=None,
            multiple=is_sequence,
            **({"is_flag": True} if kind == "bool" else {"type": None if about.is_text else _TYPES.get(kind)}),
        ),
        heading=about.heading,
    )
