"""Fuzz every reader. See ``scripts/fuzz --help``."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

from scripts.fuzzing.attempt import ACCEPTED, REFUSED, Tally, make_input, start_processes, try_inputs
from scripts.fuzzing.commands import COMMANDS
from scripts.fuzzing.targets import TARGETS, list_targets


def main(words: list[str] | None = None) -> int:
    """Fuzz the readers and print the outcomes. Return 1 if an input is not handled cleanly."""
    parser = argparse.ArgumentParser("scripts/fuzz", description=main.__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="total number of inputs of readers")
    parser.add_argument("--commands", type=int, default=0, help="total number of command lines")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    parser.add_argument("--first", type=int, default=0, help="index of the first input of each reader")
    parser.add_argument("--reader", action="append", choices=[*list_targets()], metavar="NAME", help="repeatable")
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    parser.add_argument("--memory", type=int, default=1024, help="memory limit of an input in MiB")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of an input in seconds")
    parser.add_argument("--keep", type=Path, help="folder for failed inputs, three of each kind")
    arguments = parser.parse_args(words)
    tallies: dict[str, Tally] = {}
    print(f"{'reader':<27}{'inputs':>9}{'accepted':>10}{'refused':>10}{'wrong':>7}{'kinds':>7}{'seconds':>9}")
    counts = Counter(islice(cycle(arguments.reader or TARGETS), arguments.inputs))
    counts.update(islice(cycle(COMMANDS), arguments.commands))
    with start_processes(arguments.workers, list_targets) as pool:
        for name, count in counts.items():
            numbers = range(arguments.first, arguments.first + count)
            tallies[name] = try_inputs(pool, name, arguments.seed, numbers, arguments.seconds, arguments.memory << 20)
            _print_row(name, tallies[name])
            if arguments.keep is not None:
                _write_failures(arguments.keep, name, tallies[name], arguments.seed)
    kinds = sum((tally.kinds for tally in tallies.values()), Counter[str]())
    total = Tally(kinds, seconds=sum(tally.seconds for tally in tallies.values()))
    _print_row("together", total)
    for name, tally in tallies.items():
        for kind, count in sorted(tally.wrong.items()):
            number = next(number for number, outcome in tally.failures if outcome.kind == kind)
            print(f"{name}: {count} × {kind}, first at input {number}")
    return int(bool(total.wrong))


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
            file, data = make_input(list_targets()[name], name, seed, number)
            (place / file).write_bytes(data)
        (place / "traceback.txt").write_text(f"{outcome.kind}\n{outcome.detail}\n", "utf-8", "backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
