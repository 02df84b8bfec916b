"""Fuzz every reader; see ``scripts/fuzz --help``."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.fuzzing.attempt import ACCEPTED, REFUSED, Limits, Tally, every_target, hostile, try_range
from scripts.fuzzing.commands import COMMANDS
from scripts.fuzzing.targets import TARGETS

_CHUNK = 50_000


def main(words: list[str] | None = None) -> int:
    """Fuzz the readers and print the outcomes; return 1 if an input is not handled cleanly."""
    parser = argparse.ArgumentParser("scripts/fuzz", description=main.__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="total number of inputs of readers")
    parser.add_argument("--commands", type=int, default=0, help="total number of command lines")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    parser.add_argument("--first", type=int, default=0, help="index of the first input of each reader")
    readers = [*TARGETS, *COMMANDS]
    parser.add_argument(
        "--reader", action="append", choices=readers, metavar="NAME", help="only this reader; may be repeated"
    )
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    parser.add_argument("--memory", type=int, default=1024, help="memory limit of an input in MiB")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of an input in seconds")
    parser.add_argument("--keep", type=Path, help="folder for failed inputs, three of each kind")
    arguments = parser.parse_args(words)
    limits = Limits(arguments.memory << 20, arguments.seconds)
    tallies: dict[str, Tally] = {}
    print(f"{'reader':<27}{'inputs':>9}{'accepted':>10}{'refused':>10}{'wrong':>7}{'kinds':>7}{'seconds':>9}")
    with ThreadPoolExecutor(arguments.workers) as pool:
        pending = {}
        for inputs, names in (
            (arguments.inputs, arguments.reader or list(TARGETS)),
            (arguments.commands, list(COMMANDS)),
        ):
            for at, name in enumerate(names):
                count = inputs // len(names) + (at < inputs % len(names))
                stop = arguments.first + count
                parts = [range(start, min(start + _CHUNK, stop)) for start in range(arguments.first, stop, _CHUNK)]
                if parts:
                    pending[name] = [pool.submit(try_range, name, arguments.seed, part, limits) for part in parts]
        for name, futures in pending.items():
            tallies[name] = _merge_tallies([future.result() for future in futures])
            _print_row(name, tallies[name])
            if arguments.keep is not None:
                _write_failures(arguments.keep, name, tallies[name], arguments.seed)
    total = _merge_tallies(list(tallies.values()))
    _print_row("together", total)
    for name, tally in tallies.items():
        for kind, count in sorted(tally.wrong.items()):
            number = next(number for number, outcome in tally.failures if outcome.kind == kind)
            print(f"{name}: {count} × {kind}, first at input {number}")
    return int(bool(total.wrong))


def _merge_tallies(parts: list[Tally]) -> Tally:
    kinds = sum((part.kinds for part in parts), Counter[str]())
    return Tally(kinds, [failure for part in parts for failure in part.failures], sum(part.seconds for part in parts))


def _print_row(name: str, tally: Tally) -> None:
    counts = (tally.kinds.total(), tally.kinds[ACCEPTED], tally.kinds[REFUSED], sum(tally.wrong.values()))
    cells = "".join(f"{count:>{width}}" for count, width in zip(counts, (9, 10, 10, 7), strict=True))
    print(f"{name:<27}{cells}{len(tally.wrong):>7}{tally.seconds:>9.1f}", flush=True)


def _write_failures(folder: Path, name: str, tally: Tally, seed: int) -> None:
    for number, outcome in tally.failures:
        kind = re.sub(r"\W+", "-", outcome.kind)[:80]
        place = folder / name / f"{kind}-{number}"
        place.mkdir(parents=True, exist_ok=True)
        if not outcome.kind.startswith("the fuzzer itself"):
            file, data = hostile(every_target()[name], name, seed, number)
            (place / file).write_bytes(data)
        report = f"{outcome.kind}\n{outcome.detail}\n"
        (place / "traceback.txt").write_text(report, encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
