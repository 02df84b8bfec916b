"""Which tests run which line of the package, and how long they take: measured once, and kept in a folder."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coverage import CoverageData

from scripts.mutants.mutations import ROOT, Mutant

LEFT_OUT = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__")
UNKNOWN_S = 0.5
"""What a test is taken to need that was not timed."""
_DURATIONS = "durations.json"


def copied(folder: Path) -> Path:
    """A copy of the project."""
    return Path(shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT)))


class Reach:
    """What a folder holds: a copy of the package as it was, the data of coverage, and the seconds of each test."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self.data = CoverageData(str(folder / ".coverage"))
        self.data.read()
        self.seconds: dict[str, float] = json.loads((folder / _DURATIONS).read_text())
        (self.measured,) = {
            name.removesuffix("/dphmm/errors.py")
            for name in self.data.measured_files()
            if name.endswith("/dphmm/errors.py")
        }
        self._by_module, self._then = cache(self._by_lineno), cache(self._line_then)

    @classmethod
    def measure(cls, folder: Path, workers: int, wanted: Sequence[str] = ()) -> Reach:
        """Run the tests, all or those wanted, once, and keep what they reach. One that fails is no use."""
        tree = copied(folder / "tree")
        command = [sys.executable, "-m", "pytest", *wanted, "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        command += ["-n", str(workers), "--cov", "--cov-context=test", "--cov-report="]
        command += ["-p", "scripts.mutants.durations"]
        path = f"{tree}{os.pathsep}{Path(__file__).resolve().parents[2]}"
        environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        environment["MUTANTS_DURATIONS"] = str(folder.resolve() / _DURATIONS)
        subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=False)
        shutil.move(tree / ".coverage", folder / ".coverage")
        return cls(folder)

    def _by_lineno(self, path: str) -> dict[int, list[str]]:
        return self.data.contexts_by_lineno(f"{self.measured}/{path}")

    def _line_then(self, path: str) -> dict[int, int]:
        """The lines of a module, as they are now, that it had when it was measured."""
        then, now = ((root / path).read_text().splitlines() for root in (self.tree, ROOT))
        blocks = difflib.SequenceMatcher(None, now, then, autojunk=False).get_matching_blocks()
        return {block.a + at + 1: block.b + at + 1 for block in blocks for at in range(block.size)}

    def tests(self, mutant: Mutant, there: set[str]) -> tuple[list[str], list[str]]:
        """Of the tests that are there: those named after the module or new, and others that run the line.

        Quickest first, those of the module's stage before others. Where a line runs at import, is compiled, or is new,
        those that run any of its module. New are tests of the stage that were not there when this was measured.
        """
        module = Path(mutant.path)
        named = f"tests/{module.parts[1]}/test_{module.stem.strip('_')}"
        own = {test for test in there if test.startswith((f"{named}.py::", f"{mutant.path}::"))}
        own |= {test for test in there - self.seconds.keys() if test.startswith(f"tests/{module.parts[1]}/")}
        by_line: dict[int, list[str]] = {}
        then: int | None = None
        if (self.tree / mutant.path).exists():
            by_line = self._by_module(mutant.path)
            then = self._then(mutant.path).get(mutant.line)
        found = {test for test in by_line.get(then or 0, []) if test}
        found = found or {test for tests in by_line.values() for test in tests if test}
        names = {name.rsplit("|", 1)[0] for name in found} & there - own
        near = (f"tests/{module.parts[1]}/", f"dphmm/{module.parts[1]}/")
        return (
            sorted(own, key=lambda name: (self.cost(name), name)),
            sorted(names, key=lambda name: (not name.startswith(near), self.cost(name), name)),
        )

    def cost(self, test: str) -> float:
        """Seconds that a test took."""
        return self.seconds.get(test, UNKNOWN_S)


def affordable(tests: list[str], cost: Any, seconds: float) -> Iterator[str]:
    """The first tests that take no longer together."""
    for test in tests:
        seconds -= cost(test)
        if seconds < 0:
            return
        yield test
