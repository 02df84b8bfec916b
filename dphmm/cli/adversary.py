"""What the leakage commands share: the adversary's knowledge from options, and pictures of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.errors import ConfigurationError, MissingDependencyError, OutputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALL = "everyone"
"""The name of the one user that --backward and --forward describe."""


def knowledge_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say what an adversary knows."""
    for option in (
        click.option(
            "--user",
            "users",
            nargs=3,
            multiple=True,
            metavar="NAME BACKWARD FORWARD",
            help="One of several users with matrices of their own; - for a matrix that is not known. Repeat it.",
        ),
        click.option("--forward", type=click.Path(path_type=Path), help="Matrix of Pr(state after | state now)."),
        click.option("--backward", type=click.Path(path_type=Path), help="Matrix of Pr(state before | state now)."),
    ):
        command = option(command)
    return command


def read_users(
    backward: Path | None, forward: Path | None, users: Sequence[tuple[str, str, str]]
) -> dict[str, tuple[Any, Any]]:
    """Name → (backward, forward) matrices, read from the files that the options name.

    Raises
    ------
    ConfigurationError
        When no matrix is given, both forms are, or a user occurs twice.
    DataFileError
        When a file cannot be read.
    """
    from dphmm.leakage.files import read_matrix

    if users and (backward or forward):
        raise ConfigurationError("--user and --backward/--forward are both given; use one of them")
    wanted = [(name, _path(past), _path(future)) for name, past, future in users] or [(ALL, backward, forward)]
    found: dict[str, tuple[Any, Any]] = {}
    for name, past, future in wanted:
        if past is None and future is None:
            raise ConfigurationError(f"no matrix is given for {name}; give --backward, --forward or both")
        if name in found:
            raise ConfigurationError(f"user {name} is given twice; give each user once")
        same = past is not None and past == future
        first = None if past is None else read_matrix(past)
        found[name] = first, first if same else None if future is None else read_matrix(future)
    return found


def _path(text: str) -> Path | None:
    return None if text == "-" else Path(text)


def check_picture(path: Path | None) -> None:
    """Refuse a picture that cannot be drawn before anything is computed.

    Raises
    ------
    MissingDependencyError
        When matplotlib is not installed.
    OutputError
        When the file exists already, or its folder does not.
    """
    if path is None:
        return
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError("matplotlib", "plots") from None
    if path.exists():
        raise OutputError(f"{path} exists already; name another file or remove it")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a folder; make it first")


def draw(path: Path, paint: Callable[[Axes], None]) -> None:
    """One picture with one pair of axes, written to a file.

    Raises
    ------
    OutputError
        When matplotlib cannot write it.
    """
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
    paint(figure.add_subplot())
    try:
        figure.savefig(path)
    except (OSError, ValueError) as problem:
        raise OutputError(f"{path} cannot be written ({problem}); name a .png, .pdf or .svg file") from None
