"""The sample in data/ is what its script makes, and each file reads back as the people it was written from."""

from __future__ import annotations

import gzip
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from dphmm.readers import read
from dphmm.readers.synthetic_city import synthetic_trajectories

ROOT = Path(__file__).parents[2]
PEOPLE = {person.user: person for person in synthetic_trajectories()}


def made_files():
    spec = importlib.util.spec_from_file_location("make_sample", ROOT / "scripts" / "make_sample.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.sample_files()


LAST_DIGIT = 1.5e-6
"""Degrees: versions of NumPy differ in the last bit of a logarithm, and so, seldom, in the last digit written."""

DECIMAL = rb"-?\d+\.\d+"


def words(content: bytes) -> bytes:
    return re.sub(DECIMAL, b"#", content)


def numbers(content: bytes) -> np.ndarray:
    return np.array(re.findall(DECIMAL, content), dtype=float)


def test_the_files_are_what_the_script_makes():
    made = made_files()
    kept = {str(p.relative_to(ROOT / "data")) for p in (ROOT / "data").rglob("*") if p.is_file()}
    assert kept == set(made) | {"README.md", ".gitattributes"}
    for name, content in made.items():
        stored = (ROOT / "data" / name).read_bytes()
        if name.endswith(".gz"):
            stored, content = gzip.decompress(stored), gzip.decompress(content)
        assert words(stored) == words(content), name
        np.testing.assert_allclose(numbers(stored), numbers(content), rtol=0, atol=LAST_DIGIT, err_msg=name)


def test_the_sample_stays_small():
    assert sum(p.stat().st_size for p in (ROOT / "data").rglob("*") if p.is_file()) < 1_000_000


def same(read_back, person):
    assert np.array_equal(read_back.times, person.times)
    np.testing.assert_allclose(read_back.latitude, person.latitude, rtol=0, atol=LAST_DIGIT)
    np.testing.assert_allclose(read_back.longitude, person.longitude, rtol=0, atol=LAST_DIGIT)


@pytest.mark.parametrize(
    ("name", "user", "days"), [("points.geojson", "p05", 1), ("track.gpx", "p06", 1), ("phone.rec", "p07", 1)]
)
def test_a_day_reads_back_exactly(name, user, days):
    (made,) = read(ROOT / "data" / "sample" / name).trajectories
    day = PEOPLE[user].between("2024-03-07", f"2024-03-{7 + days:02d}")
    assert day is not None
    same(made, day)


def test_the_table_reads_back_exactly():
    for made in read(ROOT / "data" / "sample" / "table.csv").trajectories:
        same(made, PEOPLE[made.user])


def test_the_geolife_folder_reads_back_exactly():
    for made, user in zip(read(ROOT / "data" / "sample" / "geolife").trajectories, ["p01", "p02", "p03"], strict=True):
        whole = PEOPLE[user].between("2024-03-07", "2024-03-10")
        assert whole is not None
        same(made, whole)


def test_everybody_checks_in_on_most_days():
    result = read(ROOT / "data" / "sample" / "checkins.txt.gz")
    assert len(result.trajectories) == 12
    assert all(len(trajectory) >= 10 for trajectory in result.trajectories)
