"""Parquet files: column parsing matches row parsing, and memory is bounded."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, DataFileError, OutputError
from dphmm.jobs.input_data import Data
from dphmm.jobs.model.training_users import refuse_training_users
from dphmm.readers import column_conversion, read
from dphmm.readers import fix_tables as parquet
from dphmm.readers.fix_tables import ParquetFixes, count_parquet_rows
from dphmm.readers.fixes import ReadOptions
from dphmm.readers.reading import read_recording
from dphmm.tables import parquet_files
from tests.sizes import choose_count

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
csv = pytest.importorskip("pyarrow.csv")


def build_table(rows=300, num_users=7, seed=0, **changes):
    rng = np.random.default_rng(seed)
    times = np.datetime64("2024-03-07T00:00:00", "us") + rng.permutation(rows) * np.timedelta64(60, "s")
    columns = {
        "user_id": [f"p{k}" for k in rng.integers(0, num_users, rows)],
        "tracked_at": times,
        "latitude": 45 + rng.random(rows),
        "longitude": -30 + rng.random(rows),
    }
    return pa.table(columns | changes)


def assert_equal(actual, expected):
    assert [trajectory.user for trajectory in actual] == [trajectory.user for trajectory in expected]
    for trajectory, other in zip(actual, expected, strict=True):
        for name in ("times", "latitude", "longitude"):
            assert (getattr(trajectory, name) == getattr(other, name)).all()


def test_invalid_time_zone_text_raises(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(build_table(tracked_at=pa.array(range(300), pa.timestamp("us", tz="UTC"))), path)
    schema = pq.read_metadata(path).metadata[b"ARROW:schema"]
    broken = base64.b64encode(base64.b64decode(schema).replace(b"UTC", b"\xd5TC"))
    path.write_bytes(path.read_bytes().replace(schema, broken))
    with pytest.raises(DataFileError, match=r"'tracked_at'.*zone"):
        read(path)


@pytest.mark.parametrize("order", ["as recorded", "by user"])
@pytest.mark.parametrize("maximum", [1, 40, 100, 299])
def test_reading_in_groups_of_users_matches_whole_file(tmp_path, monkeypatch, order, maximum):
    rows_table = build_table()
    if order == "by user":
        rows_table = rows_table.sort_by("user_id")
    pq.write_table(rows_table, tmp_path / "all.parquet", row_group_size=32)
    whole = read(tmp_path / "all.parquet").trajectories
    monkeypatch.setattr(parquet, "MAX_FIXES", maximum)
    monkeypatch.setattr(parquet, "PART_ROWS", 50)
    progress = []
    data = Data((tmp_path / "all.parquet",), exclude_users=("p3",))
    trajectories = sorted(data.stream_by_path(progress.append), key=lambda trajectory: trajectory.user)
    assert_equal(trajectories, [trajectory for trajectory in whole if trajectory.user != "p3"])
    assert progress == [[trajectory.user for trajectory in trajectories]]


def gather(path, **options):
    return ParquetFixes(path, ReadOptions(**options)).gather()


@pytest.mark.parametrize("order", ["as recorded", "by user"])
def test_every_row_is_read_once_in_any_order(tmp_path, monkeypatch, order):
    rows_table = build_table(3000, 30)
    if order == "by user":
        rows_table = rows_table.sort_by("user_id")
    pq.write_table(rows_table, tmp_path / "all.parquet", row_group_size=100)
    monkeypatch.setattr(parquet, "PART_ROWS", 250)
    num_read, decode = [], parquet_files._decode_dictionaries
    monkeypatch.setattr(
        parquet_files,
        "_decode_dictionaries",
        lambda batch, *more: num_read.append(batch.num_rows) or decode(batch, *more),
    )
    file = gather(tmp_path / "all.parquet")
    parts = list(file.read_by_users(400))
    assert max(part.points for part in parts) <= 400
    assert sum(part.points for part in parts) == 3000
    assert len(parts) <= 15
    assert [len(part.trajectories) for part in file.read_by_users(1)] == [1] * 30, (
        "one user per part, if a user has more fixes"
    )
    assert sum(num_read) == 3000


@pytest.mark.parametrize("kind", ["texts", "numbers", "decimals", "bytes", "booleans", "with missing", "with spaces"])
def test_groups_follow_first_occurrence_for_every_type_of_user(tmp_path, monkeypatch, kind):
    """The expected groups are made by a loop over the rows, skipped rows included."""
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 2 if kind == "booleans" else 9, 400)
    users = {
        "numbers": numbers,
        "decimals": numbers + 0.5,
        "bytes": pa.array([b"p%d" % number for number in numbers]),
        "booleans": numbers == 1,
        "with missing": [None if number == 4 else f"p{number}" for number in numbers],
        "with spaces": [f"p{number}" + " " * int(rng.integers(2)) for number in numbers],
    }.get(kind, [f"p{number}" for number in numbers])
    latitude = 45 + rng.random(400)
    latitude[rng.random(400) < 0.1] = 95.0
    pq.write_table(build_table(400, user_id=users, latitude=latitude), tmp_path / "all.parquet", row_group_size=90)
    whole = {track.user: track for track in read(tmp_path / "all.parquet", skip_bad=True).trajectories}
    labels = [label.decode() if kind == "bytes" else label for label in pa.array(users).to_pylist()]
    names = ["" if label is None else str(label).strip() for label in labels]
    expected, size = [[]], 0
    for name in dict.fromkeys(names):
        if expected[-1] and size + names.count(name) > 120:
            expected, size = [*expected, []], 0
        expected[-1].append(name)
        size += names.count(name)
    monkeypatch.setattr(parquet, "PART_ROWS", 70)
    file = gather(tmp_path / "all.parquet", skip_bad=True)
    parts = list(file.read_by_users(120))
    assert file.users == [name for name in dict.fromkeys(names) if name in whole]
    users_of_parts = [[track.user for track in part.trajectories] for part in parts]
    assert users_of_parts == [sorted(name for name in group if name in whole) for group in expected]
    for part in parts:
        assert_equal(part.trajectories, [whole[track.user] for track in part.trajectories])
    bad = sum(degrees > 90 or not name for degrees, name in zip(latitude, names, strict=True))
    assert sum(sum(part.skipped.values()) for part in parts) == bad > 0


def test_last_of_equal_timestamps_is_kept_across_parts(tmp_path, monkeypatch):
    times = np.datetime64("2024-03-07T00:00:00", "us") + np.arange(300) // 60 * np.timedelta64(1, "s")
    pq.write_table(build_table(tracked_at=times), tmp_path / "all.parquet", row_group_size=40)
    monkeypatch.setattr(parquet, "PART_ROWS", 50)
    parts = list(gather(tmp_path / "all.parquet").read_by_users(100))
    whole = read(tmp_path / "all.parquet")
    trajectories = sorted((track for part in parts for track in part.trajectories), key=lambda track: track.user)
    assert_equal(trajectories, whole.trajectories)
    assert sum(part.merged for part in parts) == whole.merged > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files are listed in /proc")
def test_temporary_file_is_private_without_name_and_closed_at_end(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    pq.write_table(build_table(), tmp_path / "all.parquet")
    monkeypatch.setattr(parquet, "MAX_FIXES", 40)

    def open_files():
        return [link for link in Path("/proc/self/fd").iterdir() if f"{folder}/" in os.path.realpath(link)]

    everyone = Data((tmp_path / "all.parquet",)).stream_by_path()
    next(everyone)
    (file,) = open_files()
    assert list(folder.iterdir()) == []
    assert os.stat(file).st_mode & 0o077 == 0
    assert os.stat(file).st_nlink == 0
    list(everyone)
    assert open_files() == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_full_disk_raises_output_error(tmp_path, monkeypatch):
    pq.write_table(build_table(), tmp_path / "all.parquet")
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda: full)
        with pytest.raises(OutputError, match=r"all\.parquet cannot be stored .*No space left.* TMPDIR"):
            gather(tmp_path / "all.parquet")


def test_column_parsing_matches_row_parsing(tmp_path, monkeypatch):
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
        pq.write_table(build_table(**changes), tmp_path / "a.parquet", row_group_size=64)
        options = {"time_format": "ms"} if kind == "milliseconds" else {}
        quick = read(tmp_path / "a.parquet", **options)
        with monkeypatch.context() as slow:
            slow.setattr(column_conversion, "_build_from_arrays", lambda *arguments: None)
            assert_equal(quick.trajectories, read(tmp_path / "a.parquet", **options).trajectories)
        zoned = read(tmp_path / "a.parquet", time_zone="+02:00", **options)
        earlier = np.timedelta64(0 if kind in ("a zone", "milliseconds") else 2, "h")
        assert (zoned.trajectories[0].times == quick.trajectories[0].times - earlier).all()


def test_invalid_row_of_large_file_raises_with_row_number(tmp_path):
    rows_table = build_table()
    latitude = rows_table["latitude"].to_numpy().copy()
    latitude[217] = 95.0
    pq.write_table(build_table(latitude=latitude), tmp_path / "all.parquet", row_group_size=32)
    with pytest.raises(DataFileError, match=r"all\.parquet: row 218: latitude .*95\.0"):
        gather(tmp_path / "all.parquet")
    passed = gather(tmp_path / "all.parquet", skip_bad=True)
    assert sum(sum(part.skipped.values()) for part in passed.read_by_users(40)) == 1


def test_row_without_user_in_large_file_raises(tmp_path):
    users = [None if k == 5 else f"p{k % 3}" for k in range(300)]
    pq.write_table(build_table(user_id=users), tmp_path / "all.parquet", row_group_size=32)
    with pytest.raises(DataFileError, match=r"row 6: .*user"):
        gather(tmp_path / "all.parquet")


def test_invalid_parquet_raises_and_other_files_have_no_rows(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing of the kind PAR1")
    with pytest.raises(DataFileError, match="Parquet"):
        count_parquet_rows(tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("uid,time,lat,lon\n")
    assert count_parquet_rows(tmp_path / "a.csv") == count_parquet_rows(tmp_path / "none.parquet") == 0


def test_parquet_is_recognised_by_content_and_may_lack_times_in_a_recording(tmp_path):
    degrees = {"lat": [45.0, 45.1], "lon": [-30.0, -30.1]}
    times = [datetime(2024, 3, 9, 10, at, tzinfo=UTC) for at in range(2)]
    pq.write_table(pa.table({"time": times, **degrees}), tmp_path / "r.dat")
    assert read(tmp_path / "r.dat").points == 2
    pq.write_table(pa.table(degrees), tmp_path / "r.parquet")
    assert np.isnat(read_recording(tmp_path / "r.parquet").segments[0].times).all()
    pq.write_table(pa.table({"time": [[time] for time in times], **degrees}), tmp_path / "r.parquet")
    with pytest.raises(DataFileError, match="lists or structures in 'time'"):
        read_recording(tmp_path / "r.parquet")


PEAK = """
import re, sys
import pyarrow.parquet
from dphmm.jobs.input_data import Data
from dphmm.readers import column_conversion
from dphmm.readers import fix_tables as parquet

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

def count(name, most):
    parquet.MAX_FIXES = parquet.PART_ROWS = most
    return sum(len(trajectory) for trajectory in Data((name,)).stream_by_path(lambda names: None))

count("few.parquet", 1000)  # what only loads libraries
before = peak()
for most in (int(sys.argv[1]), 10**9):
    print(count("all.parquet", most), peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_file_size(tmp_path):
    """Reading all users in one call needs about twice as much memory here."""
    rows = choose_count(600_000, 300_000)
    pq.write_table(build_table(rows, 500), tmp_path / "all.parquet", row_group_size=rows // 12)
    pq.write_table(build_table(3000, 5), tmp_path / "few.parquet", row_group_size=1000)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(rows // 12)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    (count, little), (assert_equal, much) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert count == assert_equal == rows
    assert 1.4 * little < much, (little, much)


USER_CELLS = {
    "int64": pa.array([1, 2, 10**15], pa.int64()),
    "float64": pa.array([1, 2, 10**15], pa.float64()),
    "string": pa.array(["1.0", "2", "1000000000000000.0"]),
    "binary": pa.array([b"1", b"2.0", b"1000000000000000"], pa.binary()),
    "decimal": pa.array(["1", "2", "1000000000000000"]).cast(pa.decimal128(20, 2)),
}


@pytest.mark.parametrize("max_fixes", [1, 10])
def test_integer_user_is_one_user_in_all_files_and_types(tmp_path, monkeypatch, max_fixes):
    for name, cells in USER_CELLS.items():
        pq.write_table(build_table(3, user_id=cells), tmp_path / f"{name}.parquet")
        texts = [cell.decode() if name == "binary" else str(cell) for cell in cells.to_pylist()]
        csv.write_csv(build_table(3, user_id=texts), tmp_path / f"{name}.csv")
    monkeypatch.setattr(parquet, "MAX_FIXES", max_fixes)
    paths = tuple(sorted(tmp_path.iterdir()))
    expected = ["1", "1000000000000000", "2"]
    assert [track.user for track in Data(paths).read().trajectories] == expected
    for path in paths:
        assert sorted(track.user for track in Data((path,)).stream_by_path()) == expected
    assert [track.user for track in Data(paths, users=("1.0", "2")).read().trajectories] == ["1", "2"]
    assert [track.user for track in Data(paths, exclude_users=("2.0",)).read(True).trajectories] == expected[:2]
    assert [track.user for track in Data(paths, user="1.0").read().trajectories] == ["1"]


def test_file_with_decimals_in_its_name_is_of_the_same_user(tmp_path):
    table = build_table(3, user_id=["1", "2", "1"])
    csv.write_csv(table.slice(0, 2), tmp_path / "table.csv")
    csv.write_csv(table.slice(2).drop_columns(["user_id"]), tmp_path / "1.0.csv")
    data = Data((tmp_path,), user_per_file=True, users=("1.0",))
    assert [(track.user, len(track)) for track in data.read().trajectories] == [("1", 2)]


def test_training_user_with_decimals_is_refused():
    for seen, user in (("1.0", "1"), ("1", "1.0")):
        with pytest.raises(ConfigurationError, match="training user"):
            refuse_training_users({seen}, [user])
    refuse_training_users({"01"}, ["1"])


def test_integer_with_leading_zeros_is_a_separate_user(tmp_path):
    users = ["7", "007", "007.0", "7.5", "v1.0", "-7.0", "-7"]
    pq.write_table(build_table(7, user_id=users), tmp_path / "u.parquet")
    assert {track.user for track in read(tmp_path / "u.parquet").trajectories} == {*users} - {"-7.0"}


@pytest.mark.parametrize("max_fixes", [1, 10])
def test_bytes_of_a_user_that_are_not_utf8_raise_with_the_row(tmp_path, monkeypatch, max_fixes):
    pq.write_table(build_table(2, user_id=pa.array([b"ann", b"\xff"], pa.binary())), tmp_path / "u.parquet")
    monkeypatch.setattr(parquet, "MAX_FIXES", max_fixes)
    data = Data((tmp_path / "u.parquet",))
    with pytest.raises(DataFileError, match=r"row 2: user must be UTF-8"):
        list(data.stream_by_path())
    skipping = Data(data.paths, skip_bad=True)
    assert [track.user for track in skipping.stream_by_path()] == ["ann"]
