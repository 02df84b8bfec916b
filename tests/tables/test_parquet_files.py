"""Untrusted Parquet files: no header ends the process, and memory is counted beforehand."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dphmm.errors import DataFileError
from dphmm.tables import Table
from tests.sizes import choose_count

pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

FLIPS = """
import sys
from pathlib import PurePosixPath
from dphmm.errors import DataFileError
from dphmm.tables import Document
from dphmm.tables.parquet_files import read_parquet

data = open("a.parquet", "rb").read()
start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
kinds = [0, 0]
for at in range(start, len(data)):
    for bits in map(int, sys.argv[1:]):
        flipped = data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
        try:
            read_parquet(Document("a.parquet", PurePosixPath("a.parquet"), flipped))
            kinds[0] += 1
        except DataFileError as problem:
            assert "\\n" not in str(problem)
            kinds[1] += 1
print(*kinds)
"""


def _write_table(path, **options) -> None:
    columns = {"user": ["a", "b", None], "x": [1.5, None, 2.5], "n": [1, 2, 3], "t": np.arange(3).astype("M8[us]")}
    parquet.write_table(pa.table(columns), path, **options)


@pytest.mark.slow
def test_flipped_footer_bytes_never_end_the_process(tmp_path):
    """Arrow throws where nothing catches if column metadata contradict each other."""
    _write_table(tmp_path / "a.parquet")
    bits = ("1", "16", "255")[: choose_count(3, 1)]
    done = subprocess.run([sys.executable, "-c", FLIPS, *bits], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    taken, refused = map(int, done.stdout.split())
    assert taken > 30 * len(bits)
    assert refused > 150 * len(bits)


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "zstd"}, {"use_dictionary": False}, {"data_page_version": "2.0"}, {"row_group_size": 1}],
    ids=repr,
)
def test_table_equals_arrow_reading(tmp_path, options):
    _write_table(tmp_path / "a.parquet", **options)
    table = Table.read(tmp_path / "a.parquet")
    assert table.texts("user") == ["a", "b", ""]
    assert table.numbers("n").tolist() == [1.0, 2.0, 3.0]
    assert table.times("t").tolist() == parquet.read_table(tmp_path / "a.parquet")["t"].to_pylist()


def test_changed_data_byte_raises(tmp_path):
    values = np.arange(100.0)
    table = pa.table({"user": ["a"] * 100, "x": values})
    parquet.write_table(
        table, tmp_path / "a.parquet", write_page_checksum=True, compression="none", use_dictionary=False
    )
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[data.index(values.tobytes()) + 8 * 50] ^= 1
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(DataFileError):
        Table.read(tmp_path / "a.parquet")


def test_nested_columns_are_omitted_and_repeated_column_name_raises(tmp_path):
    parquet.write_table(pa.table({"name": ["a"], "box": [{"x": 1.0}], "all": [[1, 2]]}), tmp_path / "a.parquet")
    assert list(Table.read(tmp_path / "a.parquet").columns) == ["name"]
    parquet.write_table(pa.table([["a"], ["b"]], names=["name", "name"]), tmp_path / "b.parquet")
    with pytest.raises(DataFileError, match=r"unique .*names"):
        Table.read(tmp_path / "b.parquet")
