"""What the leakage commands share: the adversary's knowledge from options, and pictures of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import options
from dphmm.errors import ConfigurationError, OutputError, need

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dphmm.jobs.leaks import Adversaries, Adversary

knowledge_options = options(
    click.option("--backward", type=click.Path(path_type=Path), help="Matrix of Pr(state before | state now)."),
    click.option("--forward", type=click.Path(path_type=Path), help="Matrix of Pr(state after | state now)."),
    click.option(
        "--user",
        "users",
        nargs=3,
        multiple=True,
        metavar="NAME BACKWARD FORWARD",
        help="One of several users with matrices of their own; - for a matrix that is not known. Repeat it.",
    ),
)
"""What an adversary knows."""


def read_adversaries(given: Mapping[str, Any]) -> Adversaries:
    """What the `knowledge_options`, ``--model`` and, where a command has it, ``--initial`` say.

    Raises
    ------
    ConfigurationError
        When no matrix is given, several forms are, or a user occurs twice.
    DataFileError
        When a file cannot be read.
    """
    from dphmm.jobs.leaks import EVERYONE
    from dphmm.jobs.mobility import Mobility, as_matrix
    from dphmm.leakage.files import read_numbers

    backward, forward, initial = given["backward"], given["forward"], given.get("initial")
    if given["model"] is not None:
        if backward or forward or given["users"] or initial:
            raise ConfigurationError("--model and matrices of other files are both given; use one of them")
        return Mobility.of(given["model"])
    if given["users"] and (backward or forward):
        raise ConfigurationError("--user and --backward/--forward are both given; use one of them")
    found: dict[str, Adversary] = {}
    for name, *texts in given["users"] or [(EVERYONE, backward, forward)]:
        past, future = (None if text in (None, "-") else Path(text) for text in texts)
        future = past if past == future else future  # one file is one matrix, whose loss function is built once
        if past is None and future is None:
            raise ConfigurationError(f"no matrix is given for {name}; give --backward, --forward or both")
        if name in found:
            raise ConfigurationError(f"user {name} is given twice; give each user once")
        if initial is not None and (past is not None or future is None):
            raise ConfigurationError("--initial makes the backward matrix from --forward; give that, and no --backward")
        found[name] = (past, future) if initial is None else Mobility(as_matrix(future), read_numbers(initial))
    return found


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
    need("matplotlib", "plots")
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

    from dphmm.plots.maps import save
    from dphmm.tables import new_file

    figure: Any = Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
    paint(figure.add_subplot())
    try:
        with new_file(path) as part:
            save(figure, part)
    except ValueError as problem:
        raise OutputError(f"{path} cannot be written ({problem}); name a .png, .pdf or .svg file") from None
