"""How many points each reader takes in per second of one core's time.

Usage: python scripts/benchmark_readers.py [FILE_OR_FOLDER ...]

Without arguments it reads what the folder named by DPHMM_REAL_DATA holds of GeoLife and Gowalla, or, where that is
not set, the repository's own sample. Measures processor time, which neighbours on a busy machine disturb least. Prints
the median of five runs after one to warm up, and how many times as long the line-by-line form of the same parser takes.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from dphmm.readers import checkins, geolife, read

RUNS = 5


def median_seconds(work: Callable[[], object], runs: int = RUNS) -> float:
    work()
    taken = []
    for _ in range(runs):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def refuse(*_: object, **__: object) -> None:
    raise ValueError("sent to the line-by-line form")


def default_inputs() -> list[Path]:
    real = os.environ.get("DPHMM_REAL_DATA")
    if real:
        return [Path(real, "geolife/geolife_beijing.tar.gz"), Path(real, "gowalla/loc-gowalla_LA.txt.gz")]
    sample = Path(__file__).parent.parent / "data" / "sample"
    return [sample / "geolife", sample / "checkins.txt.gz", sample / "table.csv"]


def main() -> None:
    print(f"{'input':40} {'points':>9} {'cpu s':>8} {'points/s':>10} {'line by line':>13}")
    for path in [Path(argument) for argument in sys.argv[1:]] or default_inputs():
        result = read(path)
        points = result.points + result.merged
        seconds = median_seconds(lambda path=path: read(path))  # type: ignore[misc]
        ratio = ""
        if path.suffix != ".csv":
            with (
                mock.patch.object(geolife, "_parse_block", refuse),
                mock.patch.object(checkins, "_parse_block", refuse),
            ):
                ratio = f"{median_seconds(lambda path=path: read(path), runs=1) / seconds:.1f} times"  # type: ignore[misc]
        print(f"{path.name:40} {points:9d} {seconds:8.3f} {points / seconds:10.0f} {ratio:>13}")


if __name__ == "__main__":
    main()
