"""Whole tables: CSV and Parquet are read alike, and each error names its line."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from dphmm.errors import DataFileError
from dphmm.tables import ALIASES, Table, content_lines
from dphmm.tables.table import find_column, join_names

TIMES = np.array(["2024-03-07T09:00:00", "2024-03-07T09:00:00.25"], dtype="datetime64[us]")


@pytest.fixture
def write(tmp_path):
    def write(text, name="t.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("who,when,x\np 1,2024-03-07T09:00:00Z,0.1\nq,2024-03-07T10:00:00.25+01:00,-3\n", "t.csv"),
        ("\ufeffwho;when;x\r\n\r\n;;\r\n p 1;2024-03-07T09:00;0.1\r\nq;2024-03-07T09:00:00.25;-3e0\r\n", "t.csv"),
        ('who\twhen\t x\n"p 1"\t2024-03-07T09:00:00\t 0.1\nq\t2024-03-07 09:00:00.25Z\t-3', "t.tsv"),
    ],
)
def test_csv_reads_alike_for_all_separators_and_line_ends(write, text, name):
    for path in (write(text, name), write(gzip.compress(text.encode()), f"{name}.gz")):
        table = Table.read(path)
        assert list(table.columns) == ["who", "when", "x"]
        assert table.texts("who") == ["p 1", "q"]
        assert table.numbers("x").tolist() == [0.1, -3.0]
        assert table.times("when").tolist() == TIMES.tolist()


@pytest.mark.parametrize("times", [TIMES, ["2024-03-07T09:00:00Z", "2024-03-07T10:00:00.25+01:00"]])
def test_parquet_reads_alike_in_native_types_and_texts(tmp_path, times):
    pd.DataFrame({"who": ["p 1", "q"], "when": times, "x": [0.1, -3.0], "n": [1, 2], "yes": [True, False]}).to_parquet(
        tmp_path / "t.parquet"
    )
    table = Table.read(tmp_path / "t.parquet")
    assert table.texts("who") == ["p 1", "q"]
    assert table.texts("x") == ["0.1", "-3"]
    assert table.times("when").tolist() == TIMES.tolist()
    assert [table.numbers(name).tolist() for name in ("x", "n", "yes")] == [[0.1, -3.0], [1.0, 2.0], [1.0, 0.0]]
    with pytest.raises(DataFileError, match=r"t\.parquet: row 1: who .*'p 1'"):
        table.numbers("who")


def test_texts_strips_spaces_and_values_keeps_them(write):
    table = Table.read(write("a,b\n x ,1\n"))
    assert table.values("a", str) == [" x "]
    assert table.texts("a") == ["x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,time\n1,2\n\n\n1_0,3\n", "line 5: x must be a decimal number, got '1_0'"),
        ('x,time\n1,"2\n"\n2\n', "line 4: has 1 fields, but the header has 2"),
        ("\nx,x\n1,2\n", "line 2: must have unique column names, got x, x"),
        ("y,time\n1,2\n", "line 1: has no column 'x'; its columns are y, time"),
        ('x,time\n1,2\n3,"4', "line 3: is not CSV"),
        (b"x,time\n1,2\n\xff,3\n", "line 3: is not UTF-8 text; convert it"),
        ("x,time\n", "contains no rows; it needs a header"),
        ("", "contains no rows; it needs a header"),
    ],
)
def test_invalid_csv_raises_with_line_number(write, text, message):
    path = write(text)
    with pytest.raises(DataFileError) as caught:
        Table.read(path).numbers("x")
    text_of_error = str(caught.value)
    assert text_of_error.startswith(str(path))
    assert message in text_of_error
    assert "\n" not in text_of_error


def test_invalid_time_raises_with_line_number(write):
    with pytest.raises(DataFileError, match=r"line 4: time .*'soon'"):
        Table.read(write("t,x\n2024-03-07,1\n\nsoon,2\n")).times("t")


def test_empty_table_is_read_if_allowed(write):
    table = Table.read(write("a,b\n"), empty=True)
    assert (len(table), table.texts("b"), table.numbers("b").shape) == (0, [], (0,))
    with pytest.raises(DataFileError, match="no rows"):
        Table.read(write(""), empty=True)


@pytest.mark.parametrize(("what", "name"), [(what, name) for what, names in ALIASES.items() for name in names])
def test_find_column_matches_every_alias_in_any_case(write, what, name):
    assert Table.read(write(f"_,{name.upper()}\n1,2\n")).find(what) == name.upper()


def test_find_column_takes_first_alias_and_raises_if_absent(write):
    assert find_column(["TIME", "lat", "Latitude", "latitude"], "latitude") == "Latitude"
    assert find_column(["x"], "user") is None
    with pytest.raises(DataFileError, match=r"column 'time'.*tracked_at"):
        Table.read(write("a,b\n1,2\n")).find("time")
    assert join_names([str(k) for k in range(20)]).endswith("10, 11, ...")


def test_content_lines_keep_line_numbers(write, tmp_path):
    assert content_lines(write("\ufeffa\n\n# all of it\n b # c\n")) == [(1, "a"), (4, "b")]
    with pytest.raises(DataFileError, match=r"line 2: .*UTF-8"):
        content_lines(write(b"a\n\xff\n"))
    with pytest.raises(DataFileError, match="no such file"):
        content_lines(tmp_path / "absent.csv")
