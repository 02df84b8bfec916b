"""Whole tables: CSV and Parquet say the same, and every flaw is named with the line that it stands on."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from dphmm.errors import DataFileError
from dphmm.tables import ALIASES, Table, content_lines
from dphmm.tables.table import find_column, listed

MOMENTS = np.array(["2024-03-07T09:00:00", "2024-03-07T09:00:00.25"], dtype="datetime64[us]")


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
def test_a_csv_says_the_same_whatever_its_separator_and_line_ends(write, text, name):
    for path in (write(text, name), write(gzip.compress(text.encode()), f"{name}.gz")):
        table = Table.read(path)
        assert list(table.columns) == ["who", "when", "x"]
        assert table.texts("who") == ["p 1", "q"]
        assert table.numbers("x").tolist() == [0.1, -3.0]
        assert table.times("when").tolist() == MOMENTS.tolist()


@pytest.mark.parametrize("moments", [MOMENTS, ["2024-03-07T09:00:00Z", "2024-03-07T10:00:00.25+01:00"]])
def test_a_parquet_says_the_same_in_its_own_types_and_in_texts(tmp_path, moments):
    pd.DataFrame(
        {"who": ["p 1", "q"], "when": moments, "x": [0.1, -3.0], "n": [1, 2], "yes": [True, False]}
    ).to_parquet(tmp_path / "t.parquet")
    table = Table.read(tmp_path / "t.parquet")
    assert table.texts("who") == ["p 1", "q"]
    assert table.texts("x") == ["0.1", "-3"]
    assert table.times("when").tolist() == MOMENTS.tolist()
    assert [table.numbers(name).tolist() for name in ("x", "n", "yes")] == [[0.1, -3.0], [1.0, 2.0], [1.0, 0.0]]
    with pytest.raises(DataFileError, match=r"t\.parquet: row 1: who is 'p 1'; give a decimal number"):
        table.numbers("who")


def test_a_cell_keeps_its_space_until_it_is_taken_as_a_text(write):
    table = Table.read(write("a,b\n x ,1\n"))
    assert table.values("a", str) == [" x "]
    assert table.texts("a") == ["x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,time\n1,2\n\n\n1_0,3\n", "line 5: x is '1_0'; give a decimal number"),
        ('x,time\n1,"2\n"\n2\n', "line 4: has 1 fields; the header has 2"),
        ("\nx,x\n1,2\n", "line 2: names a column twice: x, x; give each its own name"),
        ("y,time\n1,2\n", "line 1: has no column 'x'; its columns are y, time"),
        ('x,time\n1,2\n3,"4', "line 3: is no CSV"),
        (b"x,time\n1,2\n\xff,3\n", "line 3: is not UTF-8 text; convert it"),
        ("x,time\n", "holds no rows; give a header"),
        ("", "holds no rows; give a header"),
    ],
)
def test_a_flaw_is_named_with_its_line(write, text, message):
    path = write(text)
    with pytest.raises(DataFileError) as caught:
        Table.read(path).numbers("x")
    found = str(caught.value)
    assert found.startswith(str(path))
    assert message in found
    assert "\n" not in found


def test_a_time_that_is_none_is_named_with_its_line(write):
    with pytest.raises(DataFileError, match="line 4: time is 'soon'"):
        Table.read(write("t,x\n2024-03-07,1\n\nsoon,2\n")).times("t")


def test_a_header_alone_is_a_table_on_request(write):
    table = Table.read(write("a,b\n"), empty=True)
    assert (len(table), table.texts("b"), table.numbers("b").shape) == (0, [], (0,))
    with pytest.raises(DataFileError, match="no rows"):
        Table.read(write(""), empty=True)


@pytest.mark.parametrize(("what", "name"), [(what, name) for what, names in ALIASES.items() for name in names])
def test_a_column_is_found_by_each_of_its_names_in_any_case(write, what, name):
    assert Table.read(write(f"_,{name.upper()}\n1,2\n")).find(what) == name.upper()


def test_of_several_names_the_first_that_occurs_wins_and_none_is_refused(write):
    assert find_column(["TIME", "lat", "Latitude", "latitude"], "latitude") == "Latitude"
    assert find_column(["x"], "user") is None
    with pytest.raises(DataFileError, match="no column 'time'; its columns are a, b; call one of them tracked_at or"):
        Table.read(write("a,b\n1,2\n")).find("time")
    assert listed([str(k) for k in range(20)]).endswith("10, 11, ...")


def test_lines_with_content_keep_their_numbers(write, tmp_path):
    assert content_lines(write("\ufeffa\n\n# all of it\n b # c\n")) == [(1, "a"), (4, "b")]
    with pytest.raises(DataFileError, match="line 2: is not UTF-8"):
        content_lines(write(b"a\n\xff\n"))
    with pytest.raises(DataFileError, match="no such file"):
        content_lines(tmp_path / "absent.csv")
