"""A table of releases summed up, one row per user, from public things alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.tables import iso_time, new_file, write_csv
from dphmm.writers.table import ReleaseTable

COLUMNS: Mapping[str, Callable[[ReleaseTable], Any]] = {
    "user": lambda rows: str(rows["user"][0]),
    "releases": len,
    "first_time": lambda rows: iso_time(rows["time"].min()),
    "last_time": lambda rows: iso_time(rows["time"].max()),
    "epsilon_total": lambda rows: float(rows["epsilon"].sum()),
    "exact": lambda rows: bool(rows["exact"].all()),
    "expected_error_m_median": lambda rows: float(np.median(rows["expected_error_m"])),
    "possible_states_least": lambda rows: int(rows["possible_states"].min()),
    "possible_states_most": lambda rows: int(rows["possible_states"].max()),
    "least_protection": lambda rows: int(rows["least_protection"].min()),
    "releases_with_edges_added": lambda rows: int((rows["edges_added"] > 0).sum()),
    "repair_gap_most": lambda rows: float(rows["repair_gap"].max()),
    "releases_already_known": lambda rows: int(rows["already_known"].sum()),
}
"""Column → what it says of one user's releases.

Budgets add up over time, so `epsilon_total` is what all releases of a user cost together; `exact` is whether all of
them were drawn by integers alone.
"""


def summarise(table: ReleaseTable) -> list[dict[str, Any]]:
    """One row per user, in the order of the users' names; the keys are those of `COLUMNS`."""
    users = table["user"].astype(str)
    parts = (table.select(users == user) for user in sorted(set(users.tolist())))
    return [{name: of(part) for name, of in COLUMNS.items()} for part in parts]


def write_summary(path: str | Path, table: ReleaseTable, overwrite: bool = False) -> None:
    """Write `summarise` as CSV, whole or not at all.

    Raises
    ------
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    """
    with new_file(path, overwrite) as part:
        write_csv(part, list(COLUMNS), (row.values() for row in summarise(table)))
