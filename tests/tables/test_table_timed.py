"""Tables by time: a table reads back bit for bit, and an invalid table is refused by line."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, DataFileError, OutputError, TimeOrderError
from dphmm.tables import TimedTable

TIMES = np.array(["2024-03-07T09:00:00", "2024-03-07T09:00:00.25"], dtype="datetime64[us]")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("times", [TIMES, np.array([-3, 8]), np.array([0.1, 0.30000000000000004])])
def test_table_reads_back(tmp_path, suffix, times):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"table{suffix}"
    columns = {"x": np.array([0.1, -1e300]), "n": np.array([3, -4]), "flag": np.array([True, False])}
    TimedTable(times, columns).write(path)
    table_read = TimedTable.read(path)
    np.testing.assert_array_equal(table_read.times, times)
    assert table_read.times.dtype == times.dtype
    assert list(table_read.columns) == list(columns)
    for name, values in columns.items():
        np.testing.assert_array_equal(table_read.columns[name], values.astype(float))


def test_write_to_existing_file_raises(tmp_path):
    path = tmp_path / "t.csv"
    table = TimedTable(np.array([1]), {"x": np.array([1.0])})
    table.write(path)
    with pytest.raises(OutputError, match="exists"):
        table.write(path)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("time,x\n1,2\n1,3\n", TimeOrderError, "time 1 .*1 after 1"),
        ("time,x\n1,2\n3,3\n2,4\n", TimeOrderError, "time 2 .*2 after 3"),
        ("time,x\n2024-03-07,2\n2024-03-06,3\n", TimeOrderError, "2024-03-06T00:00:00Z after 2024-03-07"),
        ("time,x\n2024-03-07,2\n\nsoon,2\n", DataFileError, "line 4: time .*'soon'"),
        ("time,x\n1,2\n2,two\n", DataFileError, "line 3: x .*'two'"),
        ("time,x\n1,2,3\n", DataFileError, "line 2: .*3 fields"),
        ("time,x,x\n1,2,3\n", DataFileError, "unique column names"),
        ("airport,centre\n3,5\n4,4\n", DataFileError, "no column of times, got airport, centre: name it time"),
        (",centre\n3,5\n4,4\n", DataFileError, "no column of times"),
        ("s,t\n1,2\n2,3\n", DataFileError, "no column of times"),
        ("time,user,x\n1,0,2\n2,0,3\n", DataFileError, "one row per time and no column of users, got user"),
        ("time\n1\n", DataFileError, "column of times and at least one of numbers"),
        ("time,x\n", DataFileError, "rows"),
        ("", DataFileError, "rows"),
    ],
)
def test_invalid_table_raises(tmp_path, text, error, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(error, match=message) as caught:
        TimedTable.read(path)
    assert "bad.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unsupported_missing_or_damaged_file_raises(tmp_path):
    with pytest.raises(ConfigurationError, match=r"extension .*must be .csv or .parquet"):
        TimedTable.read(tmp_path / "t.xlsx")
    with pytest.raises(DataFileError, match="no such file"):
        TimedTable.read(tmp_path / "t.csv")
    damaged = tmp_path / "t.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    pytest.importorskip("pyarrow")
    with pytest.raises(DataFileError, match="Parquet"):
        TimedTable.read(damaged)


def test_empty_or_uneven_table_raises():
    with pytest.raises(TimeOrderError, match="times must be a non-empty"):
        TimedTable(np.array([], dtype=np.int64), {})
    with pytest.raises(ConfigurationError, match="column x"):
        TimedTable(np.array([1, 2]), {"x": np.array([1.0])})


def test_column_named_t_is_a_place_if_time_is_named_hour(tmp_path):
    (tmp_path / "a.csv").write_text("hour,s,t\n1,5,9\n2,6,8\n")
    table = TimedTable.read(tmp_path / "a.csv")
    assert table.times.tolist() == [1, 2]
    assert sorted(table.columns) == ["s", "t"]
