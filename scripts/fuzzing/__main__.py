"""Hostile files for every reader: see ``scripts/fuzz --help``."""

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
    """Try hostile inputs on the readers and print what became of them; 1 where one was neither accepted nor refused."""
    parser = argparse.ArgumentParser("scripts/fuzz", description=main.__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="how many inputs, over all readers")
    parser.add_argument("--commands", type=int, default=0, help="how many command lines, over all commands")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs: the same seed makes the same ones")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input of each reader")
    readers = [*TARGETS, *COMMANDS]
    parser.add_argument(
        "--reader", action="append", choices=readers, metavar="NAME", help="this one alone; several times"
    )
    parser.add_argument("--workers", type=int, default=1, help="how many processes")
    parser.add_argument("--memory", type=int, default=1024, help="what an input may take, MiB")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long an input may take")
    parser.add_argument("--keep", type=Path, help="a folder for the inputs that failed, three of each kind")
    given = parser.parse_args(words)
    limits = Limits(given.memory << 20, given.seconds)
    tallies: dict[str, Tally] = {}
    print(f"{'reader':<27}{'inputs':>9}{'accepted':>10}{'refused':>10}{'wrong':>7}{'kinds':>7}{'seconds':>9}")
    with ThreadPoolExecutor(given.workers) as crew:
        pending = {}
        for inputs, names in ((given.inputs, given.reader or list(TARGETS)), (given.commands, list(COMMANDS))):
            for at, name in enumerate(names):
                count = inputs // len(names) + (at < inputs % len(names))
                stop = given.first + count
                parts = [range(start, min(start + _CHUNK, stop)) for start in range(given.first, stop, _CHUNK)]
                if parts:
                    pending[name] = [crew.submit(try_range, name, given.seed, part, limits) for part in parts]
        for name, futures in pending.items():
            tallies[name] = _joined([future.result() for future in futures])
            _say(name, tallies[name])
            if given.keep is not None:
                _keep(given.keep, name, tallies[name], given.seed)
    total = _joined(list(tallies.values()))
    _say("together", total)
    for name, tally in tallies.items():
        for kind, count in sorted(tally.wrong.items()):
            number = next(number for number, outcome in tally.failures if outcome.kind == kind)
            print(f"{name}: {count} × {kind}, the first at input {number}")
    return int(bool(total.wrong))


def _joined(parts: list[Tally]) -> Tally:
    kinds = sum((part.kinds for part in parts), Counter[str]())
    return Tally(kinds, [one for part in parts for one in part.failures], sum(part.seconds for part in parts))


def _say(name: str, tally: Tally) -> None:
    counts = (tally.kinds.total(), tally.kinds[ACCEPTED], tally.kinds[REFUSED], sum(tally.wrong.values()))
    said = "".join(f"{count:>{width}}" for count, width in zip(counts, (9, 10, 10, 7), strict=True))
    print(f"{name:<27}{said}{len(tally.wrong):>7}{tally.seconds:>9.1f}", flush=True)


def _keep(folder: Path, name: str, tally: Tally, seed: int) -> None:
    for number, outcome in tally.failures:
        kind = re.sub(r"\W+", "-", outcome.kind)[:80]
        place = folder / name / f"{kind}-{number}"
        place.mkdir(parents=True, exist_ok=True)
        if not outcome.kind.startswith("the fuzzer itself"):
            file, data = hostile(every_target()[name], name, seed, number)
            (place / file).write_bytes(data)
        said = f"{outcome.kind}\n{outcome.detail}\n"
        (place / "traceback.txt").write_text(said, encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
