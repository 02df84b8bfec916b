"""Points that each reader takes in per second of one core's time, beside the line-by-line form of the same parser.

Without files it reads what the folder named by DPHMM_REAL_DATA holds of GeoLife and Gowalla, or, where that is not set
or with --small, the repository's own sample. Processor time is measured, which neighbours on a busy machine disturb
least.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path
from unittest import mock

from dphmm import read
from dphmm.readers import data_sets
from scripts.benchmarks.report import ROOT, Report, seconds


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", type=Path, help="files or folders to read instead")


def run(report: Report, options: argparse.Namespace) -> None:
    for path in options.files or inputs(report.small):
        found = read(path)
        points, again = found.points + found.merged, partial(read, path)
        quick = points / seconds(again, report.repeats, time.process_time)
        beside = {}
        if path.suffix != ".csv":
            with (
                mock.patch.object(data_sets, "_geolife_block", refuse),
                mock.patch.object(data_sets, "_checkins_block", refuse),
            ):
                beside["line by line"] = points / seconds(again, 1, time.process_time)
        report.row(f"{path.name}, {points:,} points", quick, "points/s", beside)


def refuse(*_: object, **__: object) -> None:
    raise ValueError("sent to the line-by-line form")


def inputs(small: bool) -> list[Path]:
    real, sample = os.environ.get("DPHMM_REAL_DATA"), ROOT / "data" / "sample"
    if real and not small:
        return [Path(real, "geolife/geolife_beijing.tar.gz"), Path(real, "gowalla/loc-gowalla_LA.txt.gz")]
    return [sample / "geolife", sample / "checkins.txt.gz", sample / "table.csv"]
