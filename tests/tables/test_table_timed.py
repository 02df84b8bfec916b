"""Tables by time: what is written reads back bit for bit, and what is no table is refused with its line."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, DataFileError, OutputError, TimeOrderError
from dphmm.tables import TimedTable

MOMENTS = np.array(["2024-03-07T09:00:00", "2024-03-07T09:00:00.25"], dtype="datetime64[us]")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("times", [MOMENTS, np.array([-3, 8]), np.array([0.1, 0.30000000000000004])])
def test_a_table_comes_back_as_it_was(tmp_path, suffix, times):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"table{suffix}"
    columns = {"x": np.array([0.1, -1e300]), "n": np.array([3, -4]), "flag": np.array([True, False])}
    TimedTable(times, columns).write(path)
    found = TimedTable.read(path)
    np.testing.assert_array_equal(found.times, times)
    assert found.times.dtype == times.dtype
    assert list(found.columns) == list(columns)
    for name, values in columns.items():
        np.testing.assert_array_equal(found.columns[name], values.astype(float))


def test_a_file_is_not_written_over(tmp_path):
    path = tmp_path / "t.csv"
    table = TimedTable(np.array([1]), {"x": np.array([1.0])})
    table.write(path)
    with pytest.raises(OutputError, match="exists"):
        table.write(path)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("time,x\n1,2\n1,3\n", TimeOrderError, "time 1 is 1 after 1"),
        ("time,x\n1,2\n3,3\n2,4\n", TimeOrderError, "time 2 is 2 after 3"),
        ("time,x\n2024-03-07,2\n2024-03-06,3\n", TimeOrderError, "2024-03-06T00:00:00Z after 2024-03-07"),
        ("time,x\n2024-03-07,2\n\nsoon,2\n", DataFileError, "line 4: time is 'soon'"),
        ("time,x\n1,2\n2,two\n", DataFileError, "line 3: x is 'two'"),
        ("time,x\n1,2,3\n", DataFileError, "line 2: has 3 fields"),
        ("time,x,x\n1,2,3\n", DataFileError, "twice"),
        ("time\n1\n", DataFileError, "columns"),
        ("time,x\n", DataFileError, "no rows"),
        ("", DataFileError, "no rows"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, text, error, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(error, match=message) as caught:
        TimedTable.read(path)
    assert "bad.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="name it so"):
        TimedTable.read(tmp_path / "t.xlsx")
    with pytest.raises(DataFileError, match="no such file"):
        TimedTable.read(tmp_path / "t.csv")
    damaged = tmp_path / "t.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    pytest.importorskip("pyarrow")
    with pytest.raises(DataFileError, match="no whole Parquet"):
        TimedTable.read(damaged)


def test_a_table_is_checked_as_it_is_made():
    with pytest.raises(TimeOrderError, match="one time or more"):
        TimedTable(np.array([], dtype=np.int64), {})
    with pytest.raises(ConfigurationError, match="column x"):
        TimedTable(np.array([1, 2]), {"x": np.array([1.0])})


def test_a_place_that_is_called_t_is_no_time(tmp_path):
    (tmp_path / "a.csv").write_text("hour,s,t\n1,5,9\n2,6,8\n")
    table = TimedTable.read(tmp_path / "a.csv")
    assert table.times.tolist() == [1, 2]
    assert sorted(table.columns) == ["s", "t"]
