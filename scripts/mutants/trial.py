"""One mutant against tests: a process forked from one that has the libraries loaded, but not yet the package."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from scripts.mutants.mutations import Mutant

LIBRARIES = (
    "click", "hypothesis", "numpy", "scipy.linalg", "scipy.optimize", "scipy.sparse.linalg", "scipy.spatial",
    "scipy.special", "scipy.stats", "shapely", "pyproj", "numba", "pyarrow.parquet", "networkx", "pandas", "mpmath",
)  # fmt: skip
"""What most tests import."""
NO_TESTS = 5
"""The exit code of pytest where none of the tests is found."""
FAILED = 1
COMPILED = "numba"
"""Occurs in every module of which anything is compiled."""


def load_libraries() -> None:
    """Import what is installed of them."""
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


class Chosen:
    """A plugin of pytest: these tests alone, in this order by file and within each; hypothesis does not shrink."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: at for at, test in enumerate(tests)}

    def pytest_sessionstart(self) -> None:
        from hypothesis import Phase, settings

        once = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings.default, phases=once)
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.order]
        files: dict[str, int] = {}
        for item in chosen:
            file, at = _file(item.nodeid), self.order[item.nodeid]
            files[file] = min(at, files.get(file, at))
        items[:] = sorted(chosen, key=lambda item: (files[_file(item.nodeid)], self.order[item.nodeid]))


class Listed:
    """A plugin of pytest that writes the name of every test there is."""

    def __init__(self, to: Path) -> None:
        self.to = to

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.to.write_text("\n".join(item.nodeid for item in session.items))


def _file(test: str) -> str:
    return test.split("::", 1)[0]


@contextmanager
def standing(tree: Path, mutant: Mutant) -> Iterator[None]:
    """The mutant in a copy of the project, which is as before afterwards, the time of its change included."""
    path = tree / mutant.path
    original, times = path.read_bytes(), path.stat()
    path.write_bytes(mutant.applied(original))
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        stale.unlink()
    try:
        yield
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


class Run:
    """Pytest on a copy of the project, in a process of its own that has begun."""

    def __init__(
        self,
        tree: Path,
        arguments: Sequence[str],
        plugins: Sequence[object],
        patience: float,
        environment: Mapping[str, str],
    ) -> None:
        self.until = time.monotonic() + patience
        self.pid = os.fork()
        if self.pid == 0:
            code = 3
            try:
                code = _tested(tree, arguments, plugins, environment)
            finally:
                os._exit(code)

    def ended(self) -> int | None:
        """The exit code, that of tests that fail for tests that hang or crash; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0 and time.monotonic() < self.until:
            return None
        with suppress(ProcessLookupError):  # what a test has left running; and all of it where it hangs
            os.killpg(self.pid, signal.SIGKILL)
        if pid == 0:
            os.waitpid(self.pid, 0)
            return FAILED
        return os.waitstatus_to_exitcode(status)

    def wait(self) -> int:
        """The exit code once it has ended."""
        while (code := self.ended()) is None:
            time.sleep(0.02)
        return code


def _tested(tree: Path, arguments: Sequence[str], plugins: Sequence[object], environment: Mapping[str, str]) -> int:
    os.setsid()
    os.chdir(tree)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    for name in [name for name in sys.modules if name.split(".")[0] in ("scripts", "tests", "dphmm")]:
        del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")  # what processes of the tests would import first
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    with TemporaryDirectory() as folder:
        os.environ.update(PYTHONPATH=str(tree), TMPDIR=folder, OPENBLAS_NUM_THREADS="1")
        os.environ.update({name: text.format(folder=folder) for name, text in environment.items()})
        common = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0", "--hypothesis-seed=0"]
        common += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        return int(pytest.main([*common, *arguments], plugins=list(plugins)))


def against(tree: Path, mutant: Mutant, tests: Sequence[str], patience: float) -> Run:
    """These tests on the mutant that stands in the copy. What is compiled of one mutant is of no other's."""
    files = list(dict.fromkeys(_file(test) for test in tests))
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    if COMPILED in (tree / mutant.path).read_text():
        environment["NUMBA_CACHE_DIR"] = "{folder}"
    return Run(tree, files, [Chosen(tests)], patience, environment)


def every_test(tree: Path, patience: float = 600.0) -> set[str]:
    """The names of all tests of a copy, in which the code as loaded is left for later runs."""
    with TemporaryDirectory() as folder:
        names = Path(folder) / "names"
        if Run(tree, ["--collect-only"], [Listed(names)], patience, {}).wait() != 0:
            raise RuntimeError(f"pytest does not collect the tests of {tree}")
        return set(names.read_text().splitlines())
