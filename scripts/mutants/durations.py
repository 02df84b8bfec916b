"""A plugin of pytest that writes the seconds of every test that passed, set-up and all, to MUTANTS_DURATIONS."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

_seconds: Counter[str] = Counter()
_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration
    if report.outcome != "passed":
        _failed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # the process that hears of all of them
        passed = {test: round(seconds, 4) for test, seconds in sorted(_seconds.items()) if test not in _failed}
        Path(os.environ["MUTANTS_DURATIONS"]).write_text(json.dumps(passed, indent=0) + "\n")
