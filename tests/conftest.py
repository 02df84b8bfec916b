"""Fixtures and hooks for all tests."""

from __future__ import annotations

import gc
import os
import shutil
import tarfile
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings

from dphmm import Trajectory, read

# Number of cases of a parametrized test that are not slow. Further ones take a quarter of the time of fast tests.
MAX_FAST_CASES = 4

# Fixtures that start or need another program.
SERVERS = {"browser", "mosquitto", "postgres"}

settings.register_profile("dphmm", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("fast", settings.get_profile("dphmm"), max_examples=20)
settings.load_profile("dphmm")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for a share of the slow tests."""
    parser.addoption(
        "--share",
        type=_parse_share,
        metavar="K/N",
        help="of the slow tests, run share K of N (0/10 to 9/10 for ten shares), and a case of each that needs a "
        "browser or a server",
    )


def _parse_share(text: str) -> tuple[int, int]:
    share, count = (int(part) for part in text.split("/"))
    if not 0 <= share < count:
        raise ValueError(text)  # argparse says that the value is invalid
    return share, count


def pytest_configure(config: pytest.Config) -> None:
    """Run fewer examples if slow tests are excluded."""
    if _excludes_slow(config):
        settings.load_profile("fast")


def _excludes_slow(config: pytest.Config) -> bool:
    return bool(config.getoption("markexpr") == "not slow")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without garbage collection: collection makes no garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Freeze the collected tests, so that later garbage collections skip them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark browser tests, doctests of jobs and most parametrized cases as slow."""
    cases = defaultdict(list)
    for item in items:
        # Jobs read files and learn models.
        if "browser" in getattr(item, "fixturenames", ()) or item.name.startswith("dphmm.jobs."):
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("slow") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for test, of_test in cases.items():
        # Drawn, as cases at equal distances can have the same value of a parameter. Every worker draws the same cases.
        fast = Random(test).sample(range(len(of_test)), min(len(of_test), MAX_FAST_CASES))
        for place in set(range(len(of_test))).difference(fast):
            of_test[place].add_marker(pytest.mark.slow)
    if config.getoption("share") is not None:
        kept = _select_share(items, *config.getoption("share"))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def _select_share(items: list[pytest.Item], share: int, count: int) -> set[pytest.Item]:
    """Return the fast tests, a share of the slow ones, and a case of each with a server."""
    kept = set()
    cases = defaultdict(list)
    for item in items:
        # A checksum, as Python's hash of a text differs between the workers.
        if item.get_closest_marker("slow") is None or zlib.crc32(item.nodeid.encode()) % count == share:
            kept.add(item)
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            cases[item.nodeid.partition("[")[0]].append(item)
    # The case depends on the share: other commits run the other cases.
    return kept.union(of_test[share % len(of_test)] for of_test in cases.values())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report the skipped slow tests."""
    if _excludes_slow(config):
        terminalreporter.write_line(
            "Skipped: slow tests (a third of a second or more, pages in a browser, the project's own tools), further "
            "cases of parametrized tests, and most random examples. scripts/test --all includes them."
        )


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real traces. Skips if it is absent, as in the repository."""
    folder = os.environ.get("DPHMM_REAL_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real traces are absent: set DPHMM_REAL_DATA to a folder with geolife/, gowalla/, gpx/, owntracks/")
    return Path(folder)


@pytest.fixture(scope="session")
def real_trajectories(real_data) -> Callable[[str], tuple[Trajectory, ...]]:
    """All trajectories in a file of the real traces, read once for all tests."""
    return cache(lambda name: read(real_data / name).trajectories)


@pytest.fixture(scope="session")
def few_of_geolife(real_data, tmp_path_factory) -> Path:
    """The first nine users of the real GeoLife traces, 000 to 009, in a folder."""
    folder = tmp_path_factory.mktemp("geolife")
    with tarfile.open(real_data / "geolife" / "geolife_beijing.tar.gz") as archive:
        for member in archive:
            if member.isfile() and "/00" in member.name and member.name.endswith(".plt"):
                file = folder / member.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.extractfile(member).read())  # tarfile has filters since Python 3.11.4
    return folder


@pytest.fixture
def blank(monkeypatch) -> None:
    """Make every picture an empty file: drawing takes most of the time of pages.

    This is for tests without checks of pictures. The tests of each drawing function check its pictures.
    """
    figure = pytest.importorskip("matplotlib.figure")
    monkeypatch.setattr(figure.Figure, "draw", lambda self, renderer: None)
    monkeypatch.setattr(figure.Figure, "get_tightbbox", lambda self, *_, **__: self.bbox_inches)


@pytest.fixture
def postgres() -> Iterator[str]:
    """A PostgreSQL store for one test. Skips if no server answers at ``DPHMM_POSTGRES``."""
    psycopg = pytest.importorskip("psycopg")
    server = os.environ.get("DPHMM_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
    schema = f"dphmm_{uuid.uuid4().hex}"
    try:
        connection = psycopg.connect(server, autocommit=True, connect_timeout=20)
    except psycopg.OperationalError:
        pytest.skip(f"no PostgreSQL server at {server}: start one, or set DPHMM_POSTGRES")
    with connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield f"{server}?options=-csearch_path%3D{schema}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, from ``DPHMM_CHROMIUM`` or the system. Skips if there is none.

    It is closed with its module: Playwright runs an event loop in this thread, and other tests need their own.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("DPHMM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium: install one, or set DPHMM_CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()
