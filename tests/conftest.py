"""What every test shares."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from dphmm import Trajectory, read

settings.register_profile("dphmm", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("dphmm")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real traces, which is not part of the repository; skips where it is absent."""
    folder = os.environ.get("DPHMM_REAL_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real traces are absent: set DPHMM_REAL_DATA to a folder with geolife/, gowalla/, gpx/, owntracks/")
    return Path(folder)


@pytest.fixture(scope="session")
def real_trajectories(real_data) -> Callable[[str], tuple[Trajectory, ...]]:
    """Everybody in a file of the real traces, read once for all tests."""
    return cache(lambda name: read(real_data / name).trajectories)


@pytest.fixture
def postgres() -> Iterator[str]:
    """A PostgreSQL store of the test's own; skips where no server is reached at ``DPHMM_POSTGRES``."""
    psycopg = pytest.importorskip("psycopg")
    server = os.environ.get("DPHMM_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
    schema = f"dphmm_{uuid.uuid4().hex}"
    try:
        connection = psycopg.connect(server, autocommit=True, connect_timeout=2)
    except psycopg.OperationalError:
        pytest.skip(f"no PostgreSQL server at {server}: start one, or set DPHMM_POSTGRES")
    with connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield f"{server}?options=-csearch_path%3D{schema}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")
