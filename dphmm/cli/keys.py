"""Settings files: reading `--settings FILE.toml`, and parameters that are only its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from dphmm.errors import ConfigurationError, InvalidInputError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# Where a context keeps the path of its settings file.
_FILE = "dphmm.settings_file"


class Names(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions of click
    """Names: separated by commas on the command line, a list of strings in a file."""

    name = "names"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:  # noqa: ARG002 - click calls it so
        """Return the names as a tuple."""
        if not isinstance(value, str):
            return tuple(value)
        names = tuple(part.strip() for part in value.split(",") if part.strip())
        if not names:  # such as an unset variable of a shell; without names, all users would be selected
            raise ConfigurationError(
                f"{get_parameter_name(param.name)} must be names separated by commas, got {value!r}"
            )
        return names


class Number(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions of click
    """A number that is kept as text because its decimal digits count."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:  # noqa: ARG002 - click calls it so
        """Return the number's text."""
        return str(value)


class Table(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions of click
    """A TOML table or an array of tables, which no option can state."""

    def __init__(self, requirement: str, accepts: Callable[[Any], bool]) -> None:
        self.name = self.requirement = requirement
        self.accepts = accepts


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


NAME_LIST = Names()
NUMBER = Number()
TABLE = Table("a table", _is_table)
TABLES = Table("an array of tables", lambda value: isinstance(value, list) and all(map(_is_table, value)))
STRINGS = Table("a table of strings", lambda value: _is_table(value) and all(map(_is_text, value.values())))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Key(click.Parameter):
    """A parameter of a command that is a key of `--settings FILE.toml` and not an option.

    Parameters
    ----------
    option
        The option that states its name, type, default and help.
    """

    param_type_name = "key"

    def __init__(self, option: click.Option) -> None:
        about: dict[str, Any] = {name: getattr(option, name) for name in ("default", "callback", "nargs", "multiple")}
        if option.is_flag and not isinstance(option.default, bool | None):  # click's mark of a default that is not set
            about["default"] = False
        super().__init__(
            [option.name or "", get_key(option)], option.type, option.required, metavar=option.metavar, **about
        )
        self.help = option.help
        self.declared = vars(option).get("declared")

    def _parse_decls(self, decls: Any, expose_value: bool) -> tuple[str, list[str], list[str]]:  # noqa: ARG002 - click calls it so
        name, key = decls
        return name, [key], []

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add nothing: the command line has no word for a key."""


def as_keys(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Return a decorator that declares options as keys of `--settings FILE.toml`.

    Parameters
    ----------
    *options
        Results of `click.option`, or of functions that combine several.
    """

    def add(command: Decorated) -> Decorated:
        before = len(getattr(command, "__click_params__", ()))
        for option in reversed(options):
            command = option(command)
        parameters = getattr(command, "__click_params__", [])
        parameters[before:] = [
            Key(added) if isinstance(added, click.Option) else added for added in parameters[before:]
        ]
        return command

    return add


def declare_key(*names: str, **about: Any) -> Callable[[Decorated], Decorated]:
    """Return a decorator that declares a key by what `click.option` takes."""
    return as_keys(click.option(*names, **about))


def get_key(parameter: click.Parameter) -> str:
    """Return the key of a parameter: its option with underscores, or its argument's name."""
    return max(parameter.opts, key=len).removeprefix("--").replace("-", "_")


def list_keys(command: click.Command) -> Mapping[str, click.Parameter]:
    """Return the keys that a command's settings file may have, each with its parameter."""
    # Keys come first in messages: options are listed by --help already.
    parameters = sorted(command.params, key=lambda parameter: not isinstance(parameter, Key))
    return {get_key(parameter): parameter for parameter in parameters if parameter.expose_value}


def get_parameter_name(name: str) -> str:
    """Return the name of a parameter in messages: its option, or its key of the settings file."""
    context = click.get_current_context(silent=True)
    parameters = {} if context is None else {parameter.name: parameter for parameter in context.command.params}
    if context is None or name not in parameters:
        return f"--{name.replace('_', '-')}"
    parameter = parameters[name]
    if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
        return f"{context.meta[_FILE]}: key {get_key(parameter)!r}"
    if isinstance(parameter, Key):
        return f"key {get_key(parameter)!r} of a settings file"
    return max(parameter.opts, key=len)


@contextmanager
def name_parameters_in_errors(**parameters: str) -> Iterator[None]:
    """Name a parameter that is the subject of an error as `get_parameter_name` does.

    Parameters
    ----------
    **parameters
        The name in the error → that of the command's parameter.
    """
    try:
        yield
    except InvalidInputError as problem:
        name, _, predicate = str(problem).partition(" ")
        if name in parameters and predicate.startswith(("must ", "cannot ", "needs ", "requires ")):
            problem.args = (f"{get_parameter_name(parameters[name])} {predicate}",)
        raise


def list_stated_parameters(context: click.Context) -> dict[str, str]:
    """Return name and key of each parameter that the user states → its name in the command.

    Other names at the beginning of an error are those of a file's contents.
    """
    return {
        word: str(parameter.name)
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) not in (None, ParameterSource.DEFAULT)
        for word in (str(parameter.name), get_key(parameter))
    }


def build_settings_option() -> click.Option:
    """Return the option that names a settings file."""
    return click.Option(
        ["--settings"],
        type=click.Path(path_type=Path),
        metavar="FILE.toml",
        help="Options and more keys, in TOML. The error for an unknown key lists all.",
        callback=lambda ctx, _, path: path if path is None or ctx.resilient_parsing else read_settings(ctx, path),
        expose_value=False,
        is_eager=True,
    )


def read_settings(context: click.Context, path: Path) -> None:
    """Read a settings file as defaults of the running command.

    Options on the command line override them.

    Raises
    ------
    DataFileError
        If the file cannot be read or is not TOML.
    ConfigurationError
        If a key is unknown or its value is of a wrong type or outside its range.
    """
    from dphmm.tables.json_toml import read_keys

    parameters = list_keys(context.command)
    values = read_keys(path, "docs/reference/command.md")
    for key, value in values.items():
        if key not in parameters:
            raise ConfigurationError(f"{path}: key {key!r} is unknown; the keys are {', '.join(parameters)}")
        _check(context, path, key, parameters[key], value)
    context.meta[_FILE] = path
    context.default_map = {str(parameters[key].name): value for key, value in values.items()}


def _check(context: click.Context, path: Path, key: str, parameter: click.Parameter, value: Any) -> None:
    from dphmm.tables.values import shorten_repr

    values = value if _is_list(parameter) else [value]
    try:
        if not isinstance(values, list) or not all(_accepts(parameter.type, element) for element in values):
            raise click.BadParameter(key)
        if _is_declared_number(parameter) and not vars(parameter)["declared"].accepts(value):
            raise click.BadParameter(key)
        parameter.type_cast_value(context, value)
    except click.BadParameter:
        raise ConfigurationError(
            f"{path}: key {key!r} must be {describe_requirement(parameter)}, got {shorten_repr(value)}"
        ) from None


def _is_declared_number(parameter: click.Parameter) -> bool:
    """Return whether the field that makes a parameter declares the range of its number."""
    return vars(parameter).get("declared") is not None and parameter.type.name in ("integer", "float")


def _is_list(parameter: click.Parameter) -> bool:
    return parameter.multiple or parameter.nargs != 1


def _accepts(kind: Any, value: Any) -> bool:
    # click alone would convert: 1 to the string "1", and the string "1" to a number.
    if isinstance(kind, Table):
        return kind.accepts(value)
    if isinstance(kind, Names):
        return isinstance(value, list) and all(map(_is_text, value))
    if isinstance(kind, Number):
        return _is_text(value) or _is_number(value)
    if kind.name == "boolean":
        return isinstance(value, bool)
    if kind.name.startswith("integer"):
        return _is_number(value) and isinstance(value, int)
    return _is_number(value) if kind.name.startswith("float") else _is_text(value)


def describe_requirement(parameter: click.Parameter) -> str:
    """Return what the value of a key must be, in words."""
    kind = parameter.type
    if isinstance(kind, Table):
        return kind.requirement
    if isinstance(kind, Names):
        return "a list of lists of strings" if parameter.multiple else "a list of strings"
    if isinstance(kind, click.Choice):
        choices = f"one of {', '.join(map(str, kind.choices))}"
        return f"a list of {choices}" if _is_list(parameter) else choices
    if kind.name == "boolean":
        return "true or false"
    if _is_declared_number(parameter):
        return str(vars(parameter)["declared"].text)
    noun = _NOUNS.get(kind.name.removesuffix(" range"), "string")
    limits = _format_limits(kind) if isinstance(kind, click.IntRange | click.FloatRange) else ""
    if _is_list(parameter):
        count = "" if parameter.multiple or parameter.nargs < 0 else f"{parameter.nargs} "
        return f"a list of {count}{noun}s{limits}"
    return f"{'an' if noun == 'integer' else 'a'} {noun}{limits}"


_NOUNS = {"integer": "integer", "float": "number", "number": "number", "path": "path"}


def _format_limits(kind: click.IntRange | click.FloatRange) -> str:
    low = "" if kind.min is None else f", {'above' if kind.min_open else 'at least'} {kind.min:g}"
    high = "" if kind.max is None else f", {'below' if kind.max_open else 'at most'} {kind.max:g}"
    return low + high
