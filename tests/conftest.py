"""What every test shares."""

from __future__ import annotations

import os
from collections.abc import Callable
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
