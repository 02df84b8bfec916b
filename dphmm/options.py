"""Settings as fields: a field of a dataclass says a setting's name, type and default, and here what it is, once.

Options of commands and messages about wrong values are made of it; see `dphmm.cli.inputs`.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Option:
    """What there is to know of a setting besides its name, its type and its default.

    Parameters
    ----------
    help
        One line for people.
    metavar
        What stands for a value in help, such as ``"KM"``.
    choices
        The texts that a value may be; none where it is no choice.
    heading
        Where help lists it; nothing for what is used every day.
    name
        The option's name where it differs from the field's.
    shows_default
        Whether help says the default.
    is_text
        Whether its option is a text with a unit, such as 500m or 8h, though the field is a number.
    """

    help: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    heading: str = ""
    name: str = ""
    shows_default: bool = False
    is_text: bool = False


def setting(default: Any, text: str, **about: Any) -> Any:
    """A field of a dataclass that is a setting.

    Parameters
    ----------
    default
        The default of the field; of an empty dictionary, each value gets its own.
    text
        One line for people.
    **about
        As `Option` takes it.
    """
    said = {"option": Option(text, **about)}
    return field(default_factory=dict, metadata=said) if default == {} else field(default=default, metadata=said)


def option_of(one: Field[Any]) -> Option | None:
    """What a field says of itself as a setting; None where it is none."""
    found: Option | None = one.metadata.get("option")
    return found
