"""Attempts of fuzzed inputs in processes with limits, which reveal crashes and hangs."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from pebble import ProcessExpired, ProcessPool

from dphmm.errors import DphmmError

Seed = tuple[str, bytes]  # name of a file, and its content

ACCEPTED = "accepted"
REFUSED = "refused"
_MAX_REFUSAL = 8000  # longer messages do not count as one line
_SCHEDULED = 2000  # inputs in the queue of a pool, which holds all of them in memory
_targets: dict[str, Target] = {}  # of this process


class Target(NamedTuple):
    """A reader or a command: its valid files, their mutation, and the use of a file."""

    seeds: Callable[[], list[Seed]]
    change: Callable[[bytes, Random], bytes]
    use: Callable[[Path], object]


class Outcome(NamedTuple):
    """The outcome of an input: accepted, refused in one line, or a failure with its place."""

    kind: str
    detail: str = ""


def make_input(target: Target, name: str, seed: int, number: int) -> tuple[str, bytes]:
    """Return the input with an index: name of the file, and content. It is deterministic."""
    rng = Random(f"{seed}/{name}/{number}")
    file, data = rng.choice(target.seeds())
    return file, target.change(data, rng)


def attempt(target: Target, file: str, data: bytes, folder: Path) -> Outcome:
    """Pass an input to its reader."""
    (folder / file).write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the command would print a warning as a second line
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            target.use(folder / file)
        except DphmmError as problem:
            message = str(problem)
            if "\n" in message or not message or len(message) > _MAX_REFUSAL:
                size = f"{len(message)} characters in {message.count(chr(10)) + 1} lines"
                return Outcome(f"a refusal of {size}", message[:2000])
            return Outcome(REFUSED)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
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


@contextmanager
def start_processes(workers: int, targets: Callable[[], Mapping[str, Target]]) -> Iterator[ProcessPool]:
    """Start processes that try inputs, and stop them at the end or at an interrupt."""
    # mimalloc, Arrow's default, reserves more address space at its first allocation than an input may use.
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    pool = ProcessPool(workers, 0, _prepare_process, (targets,), multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.stop()
        pool.join()


def try_inputs(
    pool: ProcessPool, name: str, seed: int, numbers: range, seconds: float = 20.0, memory: int = 1 << 30
) -> Tally:
    """Try inputs of a target, each with limits of time and of additional memory in bytes."""
    tally, start = Tally(), time.monotonic()
    for at in range(0, len(numbers), _SCHEDULED):
        part = numbers[at : at + _SCHEDULED]
        tries = pool.map(partial(_try_input, name, seed, memory), part, timeout=seconds).result()
        for number in part:
            try:
                outcome = next(tries)
            except TimeoutError:
                outcome = Outcome(f"no end within {seconds:g} seconds")
            except ProcessExpired as death:
                code = death.exitcode or 0
                ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                outcome = Outcome(f"the process died of {ended}")
            tally.add(number, outcome)
    tally.seconds = time.monotonic() - start
    return tally


def _prepare_process(targets: Callable[[], Mapping[str, Target]]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # output of C libraries
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # commands may have workers
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _targets.update(targets())


def _try_input(name: str, seed: int, memory: int, number: int) -> Outcome:
    target = _targets[name]
    target.seeds()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        file, data = make_input(target, name, seed, number)
    except Exception as problem:
        return Outcome(f"the fuzzer itself: {type(problem).__name__}", repr(problem))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        return attempt(target, file, data, Path(folder))
