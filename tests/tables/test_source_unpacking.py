"""Small files that unpack to gigabytes raise in every format before they take memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import tracemalloc
import zipfile
from contextlib import nullcontext

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.leakage.input_files import read_matrix, read_numbers
from dphmm.model.model import MarkovModel
from dphmm.readers import read
from dphmm.tables import Table, max_unpacked, read_document
from dphmm.tables import source as unpacking
from dphmm.tables.source import MAX_LIMIT_BYTES, MAX_UNPACKING_FACTOR, Allowance

HEADER = b"user_id,tracked_at,latitude,longitude\n"
LINE = b"a,2024-03-07T09:00:00Z,45.001,-30.001\n"
# More than any small file may unpack to in these tests.
BOMB = 3 << 19


@pytest.fixture(autouse=True)
def limit_unpacked_size(monkeypatch):
    monkeypatch.setattr(unpacking, "MIN_LIMIT_BYTES", 1 << 20)


def _make_table(size: int) -> bytes:
    return HEADER + LINE * (size // len(LINE))


def _write_tar(path, opener) -> None:
    packed = _make_table(BOMB // 4)
    with opener(path, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        for number in range(4):  # no member is too large by itself
            info = tarfile.TarInfo(f"{number}.csv")
            info.size = len(packed)
            archive.addfile(info, io.BytesIO(packed))


def _write_sparse_tar(path) -> None:
    info = tarfile.TarInfo("a.csv")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:398], block[398:410] = b"%011o\0" % 0, b"%011o\0" % 0
    block[483:495] = b"%011o\0" % BOMB  # its size with the holes
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    path.write_bytes(bytes(block) + b"\0" * 1024)


def _write_zip(path, kind: int) -> None:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for number in range(4):
            archive.writestr(f"{number}.csv", _make_table(BOMB // 4))


def _write_gz_in_zip(path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv.gz", gzip.compress(_make_table(BOMB)))


def _write_parquet(path, **columns) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table(columns), path, compression="zstd", use_dictionary=["user"], write_statistics=False)


def _write_long_name(path) -> None:
    pa = pytest.importorskip("pyarrow")
    at = pa.array(np.zeros(800, dtype=np.int32))
    _write_parquet(path, user=pa.DictionaryArray.from_arrays(at, ["x" * (BOMB // 800)]), time=["2024-03-07"] * 800)


def _write_long_page(path) -> None:
    _write_parquet(path, time=["x" * BOMB])


def _write_many_nulls(path) -> None:
    pa = pytest.importorskip("pyarrow")
    _write_parquet(path, time=pa.nulls(BOMB // 4, pa.float64()))


FILES = {
    "a.csv.gz": lambda path: path.write_bytes(gzip.compress(_make_table(BOMB))),
    "a.tar": _write_sparse_tar,
    "a.tar.gz": lambda path: _write_tar(path, gzip.open),
    "a.tar.bz2": lambda path: _write_tar(path, bz2.open),
    "a.tar.xz": lambda path: _write_tar(path, lzma.open),
    "deflated.zip": lambda path: _write_zip(path, zipfile.ZIP_DEFLATED),
    "bzip2.zip": lambda path: _write_zip(path, zipfile.ZIP_BZIP2),
    "lzma.zip": lambda path: _write_zip(path, zipfile.ZIP_LZMA),
    "nested.zip": _write_gz_in_zip,
    "name.parquet": _write_long_name,
    "page.parquet": _write_long_page,
    "nulls.parquet": _write_many_nulls,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_file_that_unpacks_beyond_limit_raises(tmp_path, name):
    FILES[name](tmp_path / name)
    assert (tmp_path / name).stat().st_size < BOMB / MAX_UNPACKING_FACTOR / 2
    with pytest.raises(DataFileError, match=f"{name}.*1 MiB.*--max-unpacked"):
        (Table.read if name.endswith("parquet") else read)(tmp_path / name)
    with max_unpacked("64 MB"):
        if name.endswith("parquet"):
            Table.read(tmp_path / name)
        elif name != "a.tar":  # holes of a.tar are NUL characters
            assert read(tmp_path / name).points


def test_model_and_matrix_that_unpack_beyond_limit_raise(tmp_path):
    np.savez_compressed(tmp_path / "m.npz", about=np.zeros(BOMB // 8))
    with pytest.raises(DataFileError, match=r"m\.npz: .*1 MiB"):
        MarkovModel.load(tmp_path / "m.npz")
    sp.save_npz(tmp_path / "s.npz", sp.coo_array(([1.0], ([0], [0])), shape=(900_000, 900_000)))
    with pytest.raises(DataFileError, match=r"s\.npz: .*1 MiB"):
        read_numbers(tmp_path / "s.npz")


OBJECTS = {
    "a.geojson.gz": b'{"features": [' + b"[]," * 200_000 + b"[]]}",
    "b.geojson.gz": b'{"features": [' + b"1.5," * 200_000 + b"[]]}",
    "a.csv.gz": b"name,lat\n" + b"a,1\n" * 30_000,
    "b.csv.gz": b"1\n" * 60_000,
    "a.gpx.gz": b"<gpx>" + b"<a/>" * 40_000 + b"</gpx>",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTS)
def test_packed_file_of_too_many_objects_raises_before_allocation(tmp_path, name, monkeypatch):
    monkeypatch.setattr(unpacking, "MAX_OBJECT_BYTES", 4 << 20)
    (tmp_path / name).write_bytes(gzip.compress(OBJECTS[name]))
    reader = {"a.csv.gz": Table.read, "b.csv.gz": read_matrix}.get(name, lambda path: read(path, user="a"))
    (tmp_path / name.removesuffix(".gz")).write_bytes(
        OBJECTS[name]
    )  # reading the plain file also imports the modules needed
    plain = pytest.raises(DataFileError, match=r"must be an object|no column|no track point")
    with nullcontext() if ".csv" in name else plain:
        reader(tmp_path / name.removesuffix(".gz"))
    tracemalloc.start()
    with pytest.raises(DataFileError, match=f"{name}: .*4 MiB"):
        reader(tmp_path / name)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 << 20


def test_peak_memory_stays_near_limit(tmp_path):
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(b"\n" * (64 << 20), compresslevel=1))
    assert packed.stat().st_size < 1 << 20
    tracemalloc.start()
    with pytest.raises(DataFileError, match="unpacks to more"):
        read_document(packed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_UNPACKING_FACTOR * packed.stat().st_size + (8 << 20)


def test_allowance_grows_with_file_size_up_to_limit():
    assert [Allowance("a", size).max_bytes for size in (0, 2 << 20, 1 << 40)] == [
        1 << 20,
        MAX_UNPACKING_FACTOR * (2 << 20),
        MAX_LIMIT_BYTES,
    ]


def test_max_unpacked_accepts_sizes_and_holds_within_its_block(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(_make_table(100_000)))
    for size in (50_000, "50000", "48KiB", "0.04 MB"):
        with max_unpacked(size), pytest.raises(DataFileError, match="unpacks to more"):
            read(path)
    with max_unpacked("1GB"), max_unpacked(None):
        assert read(path).points == 1
    assert read(path).points == 1
    for size in (0, "0", "-1", "much", "1e9", "9" * 30, "", "nan"):
        with pytest.raises(ConfigurationError, match="8GB"), max_unpacked(size):
            pass
