"""Results of a benchmark's run: medians, comparisons and ratios."""

from __future__ import annotations

import importlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

Run = Callable[[], object]
ROOT = Path(__file__).parents[2]
MAX_REPEATED_SECONDS = 5.0


class Report:
    """A report that prints every row when it is measured, and stores it for `to_json`."""

    def __init__(self, stage: str, small: bool, repeats: int) -> None:
        self.stage = stage
        self.small = small
        self.repeats = repeats
        self.rows: list[dict[str, Any]] = []

    def row(self, what: str, value: float, unit: str, beside: Mapping[str, float] | None = None) -> None:
        """Add a value, and others of the same run and unit with their ratios to it."""
        others = {name: {"value": other, "ratio": other / value} for name, other in (beside or {}).items()}
        self.rows.append({"what": what, "value": value, "unit": unit, "comparisons": others})
        print(f"{what:<64}{format_number(value):>12} {unit}")
        for name, other in others.items():
            print(
                f"    {name:<60}{format_number(other['value']):>12} {unit}{format_number(other['ratio']):>12} x",
                flush=True,
            )

    def time(self, what: str, run: Run, beside: Mapping[str, Run] | None = None, repeats: int | None = None) -> None:
        """Add median seconds of a call and of others after a warm-up. A slow call is run once."""
        count = repeats or self.repeats

        def measure_run(call: Run) -> float:
            first = time_once(call)
            return first if first > MAX_REPEATED_SECONDS else time_median(call, count)

        self.row(what, measure_run(run), "s", {name: measure_run(other) for name, other in (beside or {}).items()})

    def rate(self, what: str, run: Run, count: int, unit: str, beside: Mapping[str, tuple[Run, int]]) -> None:
        """Add the number per second of a call, and those of others."""
        for other, _ in ((run, count), *beside.values()):
            other()
        rates = {name: many / time_median(other, self.repeats) for name, (other, many) in beside.items()}
        self.row(what, count / time_median(run, self.repeats), f"{unit}/s", rates)

    def run_apart(self, module: str, function: str, *arguments: object) -> tuple[Any, float]:
        """Return a function's result and the peak memory in MiB of a separate process.

        A small run stays in this process, because starting another takes longer than the function.
        """
        if self.small:
            return getattr(importlib.import_module(module), function)(*arguments), get_peak_mib()
        return run_in_new_process(module, function, *arguments)

    def skip(self, what: str, why: str) -> None:
        self.rows.append({"what": what, "skipped": why})
        print(f"{what}: skipped, {why}")

    def to_dict(self) -> dict[str, Any]:
        machine = {
            "processors": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("dphmm", "numpy", "scipy")},
        }
        result = {"stage": self.stage, "small": self.small, "repeats": self.repeats, "machine": machine}
        return result | {"rows": self.rows}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def time_once(run: Run, clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    run()
    return clock() - start


def time_median(run: Run, repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    return median(time_once(run, clock) for _ in range(repeats))


LOOK_S = 0.1


def run_in_new_process(
    module: str, function: str, *arguments: object, look: Callable[[int], None] | None = None
) -> tuple[Any, float]:
    """Run a function of a module in a separate process. Return result and peak memory in MiB.

    Every `LOOK_S` seconds `look` is called with the number of the process.
    """
    line = [sys.executable, "-m", __spec__.name, module, function, json.dumps(arguments)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(line, stdout=output, env=environment) as process:
            while process.poll() is None:
                if look is not None:
                    look(process.pid)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, line)
        output.seek(0)
        return tuple(json.loads(output.read()))


def get_processor_seconds() -> float:
    """Return processor seconds of this process and of its finished child processes."""
    used = [resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def get_peak_mib(pid: int | None = None) -> float:
    """Return the peak memory of this or another process in MiB. 0 if another has ended."""
    # Not from getrusage on Linux: a process inherits its value from its parent.
    with suppress(OSError, IndexError):
        status = Path(f"/proc/{pid or 'self'}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return 0.0 if pid else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    result = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*json.loads(sys.argv[3]))
    print(json.dumps([result, get_peak_mib()]))
