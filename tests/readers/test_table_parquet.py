"""Parquet files of everyone: whole columns say what single rows do, and of a large file little is in memory."""

from __future__ import annotations

import base64
import subprocess
import sys

import numpy as np
import pytest

from dphmm.errors import DataFileError
from dphmm.jobs.input_data import Data
from dphmm.readers import columns, read
from dphmm.readers import table as parquet
from dphmm.readers.fixes import ReadOptions
from dphmm.readers.table import ParquetFixes, fixes_in
from tests.sizes import fewer

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")


def table(rows=300, people=7, seed=0, **changes):
    rng = np.random.default_rng(seed)
    times = np.datetime64("2024-03-07T00:00:00", "us") + rng.permutation(rows) * np.timedelta64(60, "s")
    columns = {
        "user_id": [f"p{k}" for k in rng.integers(0, people, rows)],
        "tracked_at": times,
        "latitude": 45 + rng.random(rows),
        "longitude": -30 + rng.random(rows),
    }
    return pa.table(columns | changes)


def same(ours, theirs):
    assert [one.user for one in ours] == [one.user for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for name in ("times", "latitude", "longitude"):
            assert (getattr(one, name) == getattr(other, name)).all()


def test_times_of_a_zone_that_is_no_text_are_refused_in_a_line(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(table(tracked_at=pa.array(range(300), pa.timestamp("us", tz="UTC"))), path)
    said = pq.read_metadata(path).metadata[b"ARROW:schema"]
    broken = base64.b64encode(base64.b64decode(said).replace(b"UTC", b"\xd5TC"))
    path.write_bytes(path.read_bytes().replace(said, broken))
    with pytest.raises(DataFileError, match="times in 'tracked_at' of a zone that is no text"):
        read(path)


@pytest.mark.parametrize("order", ["as recorded", "by user"])
@pytest.mark.parametrize("most", [1, 40, 100, 10_000])
def test_a_file_taken_a_few_people_after_another_holds_what_it_holds(tmp_path, monkeypatch, order, most):
    made = table()
    if order == "by user":
        made = made.sort_by("user_id")
    pq.write_table(made, tmp_path / "all.parquet", row_group_size=32)
    whole = read(tmp_path / "all.parquet").trajectories
    monkeypatch.setattr(parquet, "MOST_FIXES", 10)
    monkeypatch.setattr(ParquetFixes.by_people, "__defaults__", (most,))
    asked = []
    data = Data((tmp_path / "all.parquet",), exclude_users=("p3",))
    found = sorted(data.one_after_another(asked.append), key=lambda one: one.user)
    same(found, [one for one in whole if one.user != "p3"])
    assert asked == [[one.user for one in found]]


def test_no_more_than_asked_for_is_in_memory_and_sorted_rows_are_read_once(tmp_path, monkeypatch):
    pq.write_table(table(3000, 30).sort_by("user_id"), tmp_path / "all.parquet", row_group_size=100)
    file = ParquetFixes(tmp_path / "all.parquet", ReadOptions())
    read_groups, plain = [], file._file.read
    monkeypatch.setattr(file._file, "read", lambda groups, *more: read_groups.append(groups[0]) or plain(groups, *more))
    parts = list(file.by_people(400))
    assert max(part.points for part in parts) <= 400
    assert sum(part.points for part in parts) == 3000
    assert len(read_groups) <= 30 + 30 + len(parts)  # the names, the rows, and groups that two parts share
    assert [len(part.trajectories) for part in file.by_people(1)] == [1] * 30, "or one person's where they are more"


def test_whole_columns_say_what_single_rows_do(tmp_path, monkeypatch):
    times = np.datetime64("2024-03-07T00:00:00", "us") + np.arange(300) * np.timedelta64(1, "s")
    kinds = {
        "texts": {},
        "numbers as users": {"user_id": np.arange(300) % 5},
        "decimals as users": {"user_id": np.arange(300) % 5 + 0.0},
        "users with space": {"user_id": [" a", "a "] * 150},
        "a zone": {"tracked_at": pa.array(times, pa.timestamp("ns", tz="Europe/Paris"))},
        "milliseconds": {"tracked_at": times.astype("M8[ms]").astype(np.int64)},
        "whole degrees": {"latitude": np.arange(300) % 90},
        "short floats": {"latitude": np.linspace(0, 1, 300).astype(np.float32)},
    }
    for kind, changes in kinds.items():
        pq.write_table(table(**changes), tmp_path / "a.parquet", row_group_size=64)
        options = {"time_unit": "ms"} if kind == "milliseconds" else {}
        quick = read(tmp_path / "a.parquet", **options)
        with monkeypatch.context() as slow:
            slow.setattr(columns, "_by_arrays", lambda *arguments: None)
            same(quick.trajectories, read(tmp_path / "a.parquet", **options).trajectories)
        zoned = read(tmp_path / "a.parquet", time_zone="+02:00", **options)
        earlier = np.timedelta64(0 if kind in ("a zone", "milliseconds") else 2, "h")
        assert (zoned.trajectories[0].times == quick.trajectories[0].times - earlier).all()


def test_a_bad_row_of_a_large_file_is_named_by_its_number_in_the_file(tmp_path):
    made = table()
    latitude = made["latitude"].to_numpy().copy()
    latitude[217] = 95.0
    pq.write_table(table(latitude=latitude), tmp_path / "all.parquet", row_group_size=32)
    file = ParquetFixes(tmp_path / "all.parquet", ReadOptions())
    with pytest.raises(DataFileError, match=r"all.parquet: row 218: latitude is 95.0"):
        list(file.by_people(40))
    passed = ParquetFixes(tmp_path / "all.parquet", ReadOptions(True))
    assert sum(sum(part.skipped.values()) for part in passed.by_people(40)) == 1


def test_rows_without_a_user_are_refused_also_of_a_large_file(tmp_path):
    users = [None if k == 5 else f"p{k % 3}" for k in range(300)]
    pq.write_table(table(user_id=users), tmp_path / "all.parquet", row_group_size=32)
    file = ParquetFixes(tmp_path / "all.parquet", ReadOptions())
    with pytest.raises(DataFileError, match="row 6: the user is empty"):
        list(file.by_people(40))


def test_a_file_that_is_none_is_refused_and_another_has_no_rows(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing of the kind PAR1")
    with pytest.raises(DataFileError, match="is no whole Parquet file"):
        fixes_in(tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("uid,time,lat,lon\n")
    assert fixes_in(tmp_path / "a.csv") == fixes_in(tmp_path / "none.parquet") == 0


PEAK = """
import re, sys
import pyarrow.parquet
from dphmm.jobs.input_data import Data
from dphmm.readers import columns
from dphmm.readers import table as parquet

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

def count(name, most):
    parquet.MOST_FIXES = most
    parquet.ParquetFixes.by_people.__defaults__ = (most,)
    return sum(len(one) for one in Data((name,)).one_after_another(lambda names: None))

count("few.parquet", 1000)  # what only loads libraries
before = peak()
for most in (int(sys.argv[1]), 10**9):
    print(count("all.parquet", most), peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is Linux's to tell")
def test_memory_does_not_grow_with_the_file(tmp_path):
    """A broken twin, which takes everyone at once, needs about twice as much here."""
    rows = fewer(600_000, 300_000)
    pq.write_table(table(rows, 500), tmp_path / "all.parquet", row_group_size=rows // 12)
    pq.write_table(table(3000, 5), tmp_path / "few.parquet", row_group_size=1000)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(rows // 12)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    (count, little), (same, much) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert count == same == rows
    assert 1.4 * little < much, (little, much)
