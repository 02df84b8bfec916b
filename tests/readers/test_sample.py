"""The sample in data/ matches its script, and each file reads back exactly."""

from __future__ import annotations

import gzip
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from dphmm.readers import read
from dphmm.readers.synthetic_city import sample_synthetic_trajectories

ROOT = Path(__file__).parents[2]
TRAJECTORIES = {trajectory.user: trajectory for trajectory in sample_synthetic_trajectories()}


def generate_files():
    spec = importlib.util.spec_from_file_location("make_sample", ROOT / "scripts" / "make_sample.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.sample_files()


# Degrees: NumPy versions differ in the last bit of a logarithm and, rarely, in the last digit written.
LAST_DIGIT = 1.5e-6

DECIMAL = rb"-?\d+\.\d+"


def mask_numbers(content: bytes) -> bytes:
    return re.sub(DECIMAL, b"#", content)


def extract_numbers(content: bytes) -> np.ndarray:
    return np.array(re.findall(DECIMAL, content), dtype=float)


@pytest.mark.slow
def test_files_match_script():
    generated = generate_files()
    kept = {str(p.relative_to(ROOT / "data")) for p in (ROOT / "data").rglob("*") if p.is_file()}
    assert kept == set(generated) | {"README.md", ".gitattributes"}
    for name, content in generated.items():
        stored = (ROOT / "data" / name).read_bytes()
        if name.endswith(".gz"):
            stored, content = gzip.decompress(stored), gzip.decompress(content)
        assert mask_numbers(stored) == mask_numbers(content), name
        np.testing.assert_allclose(
            extract_numbers(stored), extract_numbers(content), rtol=0, atol=LAST_DIGIT, err_msg=name
        )


def test_sample_is_smaller_than_1_mb():
    assert sum(p.stat().st_size for p in (ROOT / "data").rglob("*") if p.is_file()) < 1_000_000


def assert_equal(read_back, trajectory):
    assert np.array_equal(read_back.times, trajectory.times)
    np.testing.assert_allclose(read_back.latitude, trajectory.latitude, rtol=0, atol=LAST_DIGIT)
    np.testing.assert_allclose(read_back.longitude, trajectory.longitude, rtol=0, atol=LAST_DIGIT)


@pytest.mark.parametrize(
    ("name", "user", "days"), [("points.geojson", "p05", 1), ("track.gpx", "p06", 1), ("phone.rec", "p07", 1)]
)
def test_day_reads_back_exactly(name, user, days):
    (trajectory,) = read(ROOT / "data" / "sample" / name).trajectories
    day = TRAJECTORIES[user].select_time_range("2024-03-07", f"2024-03-{7 + days:02d}")
    assert day is not None
    assert_equal(trajectory, day)


def test_table_reads_back_exactly():
    for trajectory in read(ROOT / "data" / "sample" / "table.csv").trajectories:
        assert_equal(trajectory, TRAJECTORIES[trajectory.user])


def test_geolife_folder_reads_back_exactly():
    for trajectory, user in zip(
        read(ROOT / "data" / "sample" / "geolife").trajectories, ["p01", "p02", "p03"], strict=True
    ):
        whole = TRAJECTORIES[user].select_time_range("2024-03-07", "2024-03-10")
        assert whole is not None
        assert_equal(trajectory, whole)


def test_every_user_has_at_least_ten_check_ins():
    result = read(ROOT / "data" / "sample" / "checkins.txt.gz")
    assert len(result.trajectories) == 12
    assert all(len(trajectory) >= 10 for trajectory in result.trajectories)
