"""Attempts of fuzzed inputs in processes with limits of memory and time.

The processes make crashes and hangs detectable.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from dphmm.errors import DphmmError

Seed = tuple[str, bytes]
"""Name of a file, and its content."""

ACCEPTED, REFUSED = "accepted", "refused"
_MAX_REFUSAL = 8000  # longer messages do not count as one line


class Target(NamedTuple):
    """A reader or a command: its valid files, their mutation, and the use of a file."""

    seeds: Callable[[], list[Seed]]
    change: Callable[[bytes, Random], bytes]
    use: Callable[[Path], object]


class Outcome(NamedTuple):
    """The outcome of an input: accepted, refused in one line, or a failure with its place."""

    kind: str
    detail: str = ""


def hostile(target: Target, name: str, seed: int, number: int) -> tuple[str, bytes]:
    """Return the input with an index: name of the file, and content. It is deterministic."""
    rng = Random(f"{seed}/{name}/{number}")
    file, data = rng.choice(target.seeds())
    return file, target.change(data, rng)


def attempt(target: Target, file: str, data: bytes, folder: Path) -> Outcome:
    """Pass an input to its reader.

    A warning is a failure: the command would print it as a second line.
    """
    (folder / file).write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            target.use(folder / file)
        except DphmmError as problem:
            message = str(problem)
            if "\n" in message or not message or len(message) > _MAX_REFUSAL:
                return Outcome(
                    f"a refusal of {len(message)} characters in {message.count(chr(10)) + 1} lines", message[:2000]
                )
            return Outcome(REFUSED)
        except BaseException as problem:
            if isinstance(problem, KeyboardInterrupt):
                raise
            frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if "/dphmm/" in frame.filename]
            where = f"{frames[-1].filename.rpartition('/dphmm/')[2]}:{frames[-1].lineno}" if frames else "the fuzzer"
            kind = getattr(problem, "kind", None) or f"{type(problem).__name__} in {where}"
            return Outcome(kind, traceback.format_exc(limit=-12)[:6000])
    return Outcome(ACCEPTED)


@dataclass
class Tally:
    """Outcomes of a reader's inputs by kind, first failures of each kind, and total seconds."""

    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, Outcome]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, number: int, outcome: Outcome) -> None:
        """Count an outcome."""
        self.kinds[outcome.kind] += 1
        if outcome.kind not in (ACCEPTED, REFUSED) and self.kinds[outcome.kind] <= 3:
            self.failures.append((number, outcome))

    @property
    def wrong(self) -> dict[str, int]:
        """The kinds of failures with their numbers."""
        return {kind: count for kind, count in self.kinds.items() if kind not in (ACCEPTED, REFUSED)}


@dataclass(frozen=True)
class Limits:
    """Limits of one input: bytes of memory in addition to those at the start, and seconds."""

    memory: int = 1 << 30
    seconds: float = 20.0


def every_target() -> Mapping[str, Target]:
    """Return the readers and the commands of the package."""
    from scripts.fuzzing.commands import COMMANDS
    from scripts.fuzzing.targets import TARGETS

    return {**TARGETS, **COMMANDS}


def try_range(
    name: str, seed: int, numbers: range, limits: Limits, targets: Callable[[], Mapping[str, Target]] = every_target
) -> Tally:
    """Try inputs in a separate process; if it dies or hangs, continue in another process."""
    context = multiprocessing.get_context("spawn")
    tally, start, begun = Tally(), numbers.start, time.monotonic()
    while start < numbers.stop:
        ours, sender = context.Pipe(duplex=False)
        at = context.Array("d", [float(start), time.monotonic() + 60.0], lock=False)
        counts = context.Array("q", [0, 0], lock=False)
        work = (targets, name, seed, range(start, numbers.stop), limits.memory, sender, at, counts)
        process = context.Process(target=_work, args=work, daemon=True)
        process.start()
        sender.close()
        hung = _collect_reports(process, ours, at, limits, tally)
        tally.kinds[ACCEPTED] += counts[0]
        tally.kinds[REFUSED] += counts[1]
        number = int(at[0])
        if not hung and process.exitcode == 0:
            break
        if hung:
            tally.add(number, Outcome(f"no end within {limits.seconds:g} seconds"))
        else:
            code = process.exitcode or 0
            ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            tally.add(number, Outcome(f"the process died of {ended}"))
        start = number + 1
    tally.seconds = time.monotonic() - begun
    return tally


def _collect_reports(process: Any, ours: Connection, at: Any, limits: Limits, tally: Tally) -> bool:
    """Collect the reports of a process until it ends; return whether it was killed."""
    try:
        while process.is_alive() or ours.poll():
            if ours.poll(0.25):
                number, outcome = ours.recv()
                tally.add(number, outcome)
            elif time.monotonic() - at[1] > limits.seconds:
                process.kill()
                process.join()
                return True
    except EOFError:
        pass
    process.join()
    return False


def _work(targets: Any, name: str, seed: int, numbers: range, memory: int, report: Any, at: Any, counts: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # output of C libraries
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # commands may have workers
    target: Target = targets()[name]
    target.seeds()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for number in numbers:
            at[0], at[1] = number, time.monotonic()
            try:
                file, data = hostile(target, name, seed, number)
            except Exception as problem:
                report.send((number, Outcome(f"the fuzzer itself: {type(problem).__name__}", repr(problem))))
                continue
            outcome = attempt(target, file, data, Path(folder))
            if outcome.kind in (ACCEPTED, REFUSED):
                counts[outcome.kind == REFUSED] += 1
            else:
                report.send((number, outcome))
        at[1] = time.monotonic() + 3600.0
