"""CSV as spreadsheets and other programs read it."""

from __future__ import annotations

import csv
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import DataFileError
from dphmm.readers import read
from dphmm.tables import Table, read_document, write_csv
from dphmm.tables.table import guard_cell, iterate_csv_rows, unguard_cell

FORMULAS = ["=1+1", "+cmd|'/C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1", "'=1", "''@x", "=", "-", "+4 9"]
PLAIN = ["", "a", "O'Hara", "'", "'a", "1", "-1.5", "+2e-9", "-inf", "a=b", 'né, "quoted"', " =1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_formula_is_written_as_text_and_reads_back(tmp_path, text):
    write_csv(tmp_path / "a.csv", ["user", text], [[text, 1.5], [7, text]])
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as stream:
        (_, head), (first, _), (_, last) = csv.reader(stream)
    assert first == last == head == f"'{text}"
    rows = [fields for _, fields in iterate_csv_rows(read_document(tmp_path / "a.csv"))]
    assert rows == [["user", text], [text, "1.5"], ["7", text]]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_is_written_unchanged(text):
    assert guard_cell(text) == unguard_cell(text) == text


@given(st.text(alphabet="=+-@'\t\r\n\uff1da1.e ", max_size=8) | st.text(max_size=20))
def test_guarded_text_reads_back(text):
    assert unguard_cell(str(guard_cell(text))) == text
    assert not str(guard_cell(text)).startswith(("=", "@", "\t", "\r", "\n"))


def test_user_named_by_formula_is_one_user(tmp_path):
    (tmp_path / "a.csv").write_text("user,time,lat,lon\n=1+1,2024-03-07,45,7\n'=1+1,2024-03-08,45,7\n")
    (trajectory,) = read(tmp_path / "a.csv").trajectories
    assert (trajectory.user, len(trajectory)) == ("=1+1", 2)


def test_incomplete_character_raises_with_line_number(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"user,x\n" + b"a,1\n" * 5000 + b"\xc3,1\n")
    with pytest.raises(DataFileError, match=r"line 5002: .*UTF-8"):
        Table.read(tmp_path / "a.csv")


def test_field_above_the_limit_raises_with_the_cause(tmp_path):
    longest = csv.field_size_limit()
    path = tmp_path / "long.csv"
    path.write_text(f"name,place\nann,{'x' * longest}\n")
    assert len(Table.read(path).cells("place")[0]) == longest
    path.write_text(f"name,place\nann,{'x' * (longest + 1)}\n")
    with pytest.raises(DataFileError, match="line 2: a field must have at most 131,072 characters, got more; check"):
        Table.read(path)
    previous = csv.field_size_limit(longest + 1)
    try:
        assert len(Table.read(path).cells("place")[0]) == longest + 1
    finally:
        csv.field_size_limit(previous)


@pytest.mark.slow
def test_reading_rows_makes_no_copy_of_file(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"user,x\n" + b"a,1\n" * 100_000)
    document = read_document(tmp_path / "a.csv")
    tracemalloc.start()
    count = sum(1 for _ in iterate_csv_rows(document))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 100_001
    assert peak < len(document.data) / 10
