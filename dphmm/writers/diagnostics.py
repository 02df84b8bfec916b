"""Private diagnostics: what only the owner of the true places may see, in a file that says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dphmm.errors import ConfigurationError
from dphmm.tables import iso_time, new_file, write_csv

if TYPE_CHECKING:
    from dphmm.release.trajectory import TimedDiagnostics

COLUMNS: Mapping[str, Callable[[TimedDiagnostics], object]] = {
    "private_user": lambda one: one.user,
    "private_time": lambda one: iso_time(one.time),
    "private_true_state": lambda one: one.diagnostics.true_state,
    "private_used_state": lambda one: one.diagnostics.used_state,
    "private_stood_in": lambda one: str(one.diagnostics.stood_in).lower(),
    "private_error_m": lambda one: repr(one.diagnostics.error * 1000.0),
    "private_estimate_error_m": lambda one: repr(one.diagnostics.estimate_error * 1000.0),
    "private_degree_of_protection": lambda one: one.diagnostics.degree_of_protection,
}
"""The columns, every one of which says what it is → their cells."""


def check_private_name(path: str | Path) -> Path:
    """The path of a file of diagnostics, refused unless its name says that it is private and it is a CSV.

    Raises
    ------
    ConfigurationError
        Naming what to call it.
    """
    path = Path(path)
    if "private" not in path.name.lower() or path.suffix.lower() != ".csv":
        better = path.with_name(f"PRIVATE-{path.stem}.csv")
        raise ConfigurationError(f"{path}: a file of diagnostics tells the true places; call it {better}, say")
    return path


def write_diagnostics(path: str | Path, diagnostics: Iterable[TimedDiagnostics], overwrite: bool = False) -> None:
    """Write diagnostics as CSV, readable for the owner alone, whole or not at all.

    Raises
    ------
    ConfigurationError
        When the name does not say that the file is private.
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    """
    with new_file(check_private_name(path), overwrite, private=True) as part:
        write_csv(part, list(COLUMNS), ([cell(one) for cell in COLUMNS.values()] for one in diagnostics))
