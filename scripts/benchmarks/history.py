"""History of a benchmark's runs, one JSON object per line, to detect regressions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Factor above which a row is reported as slower than in the last run.
WORSE = 1.3

_SLOWER_IS_MORE = ("s", "ms", "us", "MiB")
_COMPARED = ("stage", "small")


def append(measured: Mapping[str, Any], history: Path) -> list[str]:
    """Add a run to a history file and return the rows that became slower.

    A row is compared with the last run of the same stage and machine. If its comparisons, measured in the same run,
    became slower by the same factor, the machine was slower, and the row is not reported.

    Raises
    ------
    ValueError
        If the file is not a history.
    """
    before = None
    if history.exists():
        for line in history.read_text(encoding="utf-8").splitlines():
            run = json.loads(line)
            if all(run[key] == measured[key] for key in _COMPARED) and _get_machine(run) == _get_machine(measured):
                before = run
    line = json.dumps({"when": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", **measured}, ensure_ascii=False)
    with history.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    return [] if before is None else list(_find_slower_rows(before, measured))


def _find_slower_rows(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    rows = {row["what"]: row for row in before["rows"] if "skipped" not in row}
    for row in now["rows"]:
        earlier = rows.get(row["what"])
        if "skipped" in row or earlier is None or row["unit"] != earlier["unit"]:
            continue
        times = _compute_factor(earlier["value"], row["value"], row["unit"])
        of_machine = [
            _compute_factor(earlier["comparisons"][name]["value"], other["value"], row["unit"])
            for name, other in row["comparisons"].items()
            if name in earlier["comparisons"]
        ]
        if times > WORSE * max([1.0, *of_machine]):
            yield (
                f"{row['what']}: {row['value']:.3g} {row['unit']}, {times:.2g} times as slow as the "
                f"{earlier['value']:.3g} of {before['when']}"
            )


def _compute_factor(before: float, now: float, unit: str) -> float:
    """Return the factor by which a value became worse. 1 if its unit has no direction."""
    if before <= 0 or now <= 0:
        return 1.0
    if unit in _SLOWER_IS_MORE:
        return now / before
    return before / now if unit.endswith("/s") else 1.0


def _get_machine(run: Mapping[str, Any]) -> tuple[Any, Any]:
    return run["machine"]["processors"], run["machine"]["system"]
