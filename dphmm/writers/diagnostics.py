"""Private diagnostics: what only the owner of the true places may see, in a file whose name and columns say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError
from dphmm.tables import iso_time, new_private_file, private_name, write_csv

if TYPE_CHECKING:
    from dphmm.release.trajectory import TimedDiagnostics

DIAGNOSTIC_COLUMNS: Mapping[str, Callable[[TimedDiagnostics], object]] = {
    "private_user": lambda one: one.user,
    "private_time": lambda one: iso_time(one.time),
    "private_outside": lambda one: str(one.outside).lower(),
    "private_true_state": lambda one: one.diagnostics.true_state,
    "private_used_state": lambda one: one.diagnostics.used_state,
    "private_stood_in": lambda one: str(one.diagnostics.stood_in).lower(),
    "private_error_m": lambda one: repr(one.diagnostics.error * 1000.0),
    "private_estimate_error_m": lambda one: repr(one.diagnostics.estimate_error * 1000.0),
    "private_within_radius": lambda one: str(one.within_radius).lower(),
    "private_degree_of_protection": lambda one: one.diagnostics.degree_of_protection,
    "private_expected_error_m": lambda one: repr(one.diagnostics.expected_error * 1000.0),
}
"""The columns, every one of which says what it is → their cells."""


@checked
def check_private_name(path: str | Path) -> Path:
    """Refuse the path of a file of diagnostics unless its name says that it is private and it is a CSV.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ConfigurationError
        Naming what to call it.
    """
    path = Path(path)
    if path.suffix.lower() != ".csv":
        raise ConfigurationError(f"{path}: diagnostics are a CSV file; call it PRIVATE-{path.stem}.csv, say")
    return private_name(path)


def write_diagnostics(path: str | Path, diagnostics: Iterable[TimedDiagnostics], overwrite: bool = False) -> None:
    """Write diagnostics as CSV, readable for the owner alone, whole or not at all.

    Parameters
    ----------
    path
        The file, see `check_private_name`.
    diagnostics
        A row for each.
    overwrite
        True to replace a file that exists.

    Raises
    ------
    ConfigurationError
        When the name does not say that the file is private.
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    """
    with new_private_file(check_private_name(path), overwrite) as part:
        write_csv(
            part, list(DIAGNOSTIC_COLUMNS), ([cell(one) for cell in DIAGNOSTIC_COLUMNS.values()] for one in diagnostics)
        )
