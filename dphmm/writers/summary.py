"""A table of releases summed up, one row per user, from public things alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dphmm.tables import iso_time, new_file, write_csv
from dphmm.writers.table import ReleaseTable

COLUMNS = (
    "user",
    "releases",
    "first_time",
    "last_time",
    "epsilon_total",
    "expected_error_m_median",
    "possible_states_least",
    "possible_states_most",
    "least_protection",
    "releases_with_edges_added",
    "releases_already_known",
)
"""The columns. Budgets add up over time, so `epsilon_total` is what all releases of a user cost together."""


def summarise(table: ReleaseTable) -> list[dict[str, Any]]:
    """One row per user, in the order of the users' names; the keys are `COLUMNS`."""
    users = table["user"].astype(str)
    return [_row(user, table.select(users == user)) for user in sorted(set(users.tolist()))]


def _row(user: str, table: ReleaseTable) -> dict[str, Any]:
    return {
        "user": user,
        "releases": len(table),
        "first_time": iso_time(table["time"].min()),
        "last_time": iso_time(table["time"].max()),
        "epsilon_total": float(table["epsilon"].sum()),
        "expected_error_m_median": float(np.median(table["expected_error_m"])),
        "possible_states_least": int(table["possible_states"].min()),
        "possible_states_most": int(table["possible_states"].max()),
        "least_protection": int(table["least_protection"].min()),
        "releases_with_edges_added": int((table["edges_added"] > 0).sum()),
        "releases_already_known": int(table["already_known"].sum()),
    }


def write_summary(path: str | Path, table: ReleaseTable, overwrite: bool = False) -> None:
    """Write `summarise` as CSV, whole or not at all.

    Raises
    ------
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    """
    with new_file(path, overwrite) as part:
        write_csv(part, COLUMNS, (row.values() for row in summarise(table)))
