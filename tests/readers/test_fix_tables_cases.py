"""Tests of tables and layers of bug reports, which are not in the repository."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from dphmm import read
from dphmm.errors import DataFileError
from dphmm.flows.areas import Areas

_CASES = Path(os.environ.get("DPHMM_CASES", "absent"))
pytestmark = pytest.mark.skipif(
    not _CASES.is_dir(), reason="files of bug reports are absent: set DPHMM_CASES to their folder"
)


@pytest.mark.parametrize(
    ("name", "options", "points"),
    [
        ("c05_decimal_comma", {}, 120),
        ("c17b_ewkt", {}, 120),
        ("c17c_hexwkb", {}, 120),
        ("d01_time_german", {"time_format": "%d.%m.%Y %H:%M:%S"}, 120),
        ("q07_decimal", {}, 120),
        ("q14b_wkt", {}, 120),
        ("q15e_thegeom", {}, 120),
        ("s01_tdrive", {"columns": {"user": "1", "time": "2", "longitude": "3", "latitude": "4"}}, 120),
        ("s02_porto", {}, 200),
        ("s06b_brightkite", {"skip_bad": True}, 120),
        ("s16_accuracy", {}, 119),
        ("u02_cyrillic", {}, 40),
    ],
)
def test_table_is_read(name, options, points):
    (path,) = (path for path in (_CASES / name).iterdir() if path.name != "EXPECTED.txt")
    assert read(path, **options).points == points


@pytest.mark.parametrize(
    ("name", "words"),
    [("d01_time_german", "--time-format"), ("s06b_brightkite", "--skip-bad"), ("s01_tdrive", "--column")],
)
def test_table_raises_with_the_option_that_reads_it(name, words):
    (path,) = (path for path in (_CASES / name).iterdir() if path.name != "EXPECTED.txt")
    with pytest.raises(DataFileError, match=words):
        read(path)


def test_unit_that_is_too_small_is_logged(caplog):
    with caplog.at_level(logging.WARNING):
        read(_CASES / "d02f_s_as_ms/r.csv", time_format="ms")
    assert "all times are in January 1970" in caplog.text


@pytest.mark.parametrize(
    ("file", "count"),
    [("a09_kmz/a.kmz", 12), ("a10_zipshp/a.zip", 12), ("a12_parquet/a.parquet", 12), ("a15_feature/a.geojson", 1)],
)
def test_areas_are_read(file, count):
    assert len(Areas.from_polygons(_CASES / file)) == count
