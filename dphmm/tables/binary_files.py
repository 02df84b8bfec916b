"""NumPy, Parquet and SQLite files from anywhere, checked before a library believes them.

`numpy.load` trusts a header: it evaluates it as Python and asks for as much memory as it says. Here a header is matched
as text, and nothing is made of it unless exactly as many bytes follow as it says.

A few bytes of Parquet, which has flat columns alone here, can stand for gigabytes: a compressed page, one long text
that every row repeats, a run of a billion nulls. So what the file's metadata say of its row groups is counted first;
texts stay in their dictionaries until their lengths are added up; and rows come in small batches, each of which is
counted as well.

A SQLite file of unknown origin, such as a GeoPackage, may hold views and columns that are computed, for ever; such a
one is refused.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from dphmm.errors import DataFileError, need
from dphmm.tables.source import Allowance, Document, read_document, readable
from dphmm.tables.values import is_text, one_line, shorten

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
_MOST_AXES = 32
_KEY = r"\s*'{}'\s*:\s*"
_HEADER = re.compile(
    r"\{" + _KEY.format("descr") + r"'(?P<type>[<>|=]?(?:b1|[iu][1248]|f[248]|[US][1-9]\d{0,8}))'\s*,"
    + _KEY.format("fortran_order") + r"(?P<fortran>True|False)\s*,"
    + _KEY.format("shape") + r"\((?P<shape>[\d\s,]{0,400})\)\s*,?\s*\}\s*",
    re.ASCII,
)  # fmt: skip
_AXIS = re.compile(r"\d{1,15}", re.ASCII)


def read_npy(path: str | Path) -> npt.NDArray[Any]:
    """Read the array in an ``.npy`` file.

    Parameters
    ----------
    path
        The file, which may be gzipped.

    Returns
    -------
    array
        Booleans, integers, floats or texts; read-only.

    Raises
    ------
    DataFileError
        When the file cannot be read, or holds no such array.
    """
    return _array(read_document(path))


def read_npz(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays in an ``.npz`` file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    dict
        Name → booleans, integers, floats or texts; read-only.

    Raises
    ------
    DataFileError
        When the file cannot be read, holds anything but such arrays, or two of one name, or unpacks to more than
        `dphmm.tables.max_unpacked` allows.
    """
    path, found = Path(path), dict[str, npt.NDArray[Any]]()
    with readable(path), path.open("rb") as file:
        allowance = Allowance(path, path.stat().st_size)
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in found:
                    raise DataFileError(path, f"holds {name!r} twice; write it anew")
                with archive.open(member) as content:
                    found[name] = _array(Document(f"{path}/{name}", PurePosixPath(name), allowance.whole(content)))
    return found


def _array(document: Document) -> npt.NDArray[Any]:
    """Make the array in the bytes of an ``.npy`` file, without a copy of them."""
    data = document.data
    if not (data.startswith(_MAGIC) and data[6:7] in (b"\1", b"\2", b"\3")):
        raise DataFileError(document.source, "is no NumPy array; save it with numpy.save")
    start = 10 if data[6] == 1 else 12
    end = start + int.from_bytes(data[8:start], "little")
    matched = _HEADER.fullmatch(data[start : min(end, start + _LONGEST_HEADER)].decode("latin-1"))
    axes = [] if matched is None else [axis.strip() for axis in matched["shape"].split(",")]
    axes = axes[:-1] if axes and not axes[-1] else axes  # (3,) and ()
    if matched is None or len(axes) > _MOST_AXES or not all(_AXIS.fullmatch(axis) for axis in axes):
        raise DataFileError(document.source, "is no array of plain numbers or texts; save one with numpy.save")
    shape, kind = tuple(int(axis) for axis in axes), np.dtype(matched["type"])
    count = math.prod(shape)
    if count * kind.itemsize != len(data) - end or (count == 0 and max(shape, default=0) >= 1 << 31):
        raise DataFileError(
            document.source,
            f"holds {max(len(data) - end, 0)} bytes of an array {shape} of {kind.name}; it is cut off or was changed",
        )
    if kind.kind == "U":  # of which Python makes texts without a look
        letters = np.frombuffer(data, np.dtype("u4").newbyteorder(kind.byteorder), count * kind.itemsize // 4, end)
        if count and letters.max() > sys.maxunicode:
            raise DataFileError(
                document.source, f"holds {int(letters.max()):#x} where a letter should be; write it anew"
            )
    array = np.frombuffer(data, kind, count, end) if count else np.zeros(0, kind)
    return array.reshape(shape, order="F" if matched["fortran"] == "True" else "C")


_BATCH = 1 << 16
_MOST_COLUMNS = 10_000


def write_parquet(
    path: Path, columns: Mapping[str, Any], metadata: Mapping[Any, Any] | None = None, **options: Any
) -> None:
    """Write columns as a Parquet file.

    Parameters
    ----------
    path
        The file.
    columns
        Name → array, of numpy or Arrow.
    metadata
        Of the file's schema.
    **options
        As `pyarrow.parquet.write_table` has them.

    Raises
    ------
    MissingDependencyError
        When pyarrow is not installed.
    """
    arrow, parquet = need("pyarrow", "files"), need("pyarrow.parquet", "files")
    with path.open("wb") as stream:  # of a path Arrow might think that it is a URI
        parquet.write_table(arrow.table(columns, metadata=metadata), stream, **options)


def read_parquet(document: Document, choose: Callable[[list[str]], Iterable[str]] = list) -> Any:
    """Read a Parquet file as a `pyarrow.Table`, with the file's metadata in its schema; texts are no dictionaries.

    Parameters
    ----------
    document
        The file.
    choose
        From the names of the columns to those that are to be read; left out, all of them. Columns of lists or
        structures are left out of both.

    Returns
    -------
    pyarrow.Table
        The columns in the order of ``choose``.

    Raises
    ------
    DataFileError
        When the file is no Parquet or is cut off, unpacks to more than `dphmm.tables.max_unpacked` allows, or names a
        column twice; and as `choose` does.
    MissingDependencyError
        When pyarrow is not installed.
    """
    return OpenParquet(document, choose).read()


class OpenParquet:
    """A Parquet file of which row groups are read one after another, so that no more of it need be in memory.

    Parameters
    ----------
    document
        The file; by its path, it is read as far as it is needed, and only then.
    choose
        As for `read_parquet`.
    by_group
        Whether what `dphmm.tables.max_unpacked` allows is for each row group, not for all of them together.

    Raises
    ------
    DataFileError, MissingDependencyError
        As `read_parquet`.

    Attributes
    ----------
    source
        The file, as messages name it.
    rows
        How many rows each row group has.
    columns
        The columns that are read.
    metadata
        The metadata of the file's schema.
    """

    def __init__(
        self,
        document: Document | Path,
        choose: Callable[[list[str]], Iterable[str]] = list,
        by_group: bool = False,
    ) -> None:
        arrow, parquet = need("pyarrow", "files"), need("pyarrow.parquet", "files")
        if isinstance(document, Path):
            self.source, opened = str(document), partial(arrow.OSFile, str(document))
            with readable(document):
                self._size = document.stat().st_size
        else:
            self.source, opened = document.source, partial(arrow.BufferReader, document.data)
            self._size = len(document.data)
        with self._data_errors():
            file = parquet.ParquetFile(opened())
            self._schema = file.schema_arrow
            flat = [field for field in self._schema if not arrow.types.is_nested(field.type)]
            names = [field.name for field in flat]
            if len(set(names)) < len(names) or len(names) > _MOST_COLUMNS or not all(map(is_text, names)):
                raise DataFileError(self.source, f"has {len(names)} columns, two of one name; give each its own name")
            self.columns = list(dict.fromkeys(choose(names)))
            self.metadata = self._schema.metadata or {}
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
            self.rows = [group.num_rows for group in groups]
            allowance = Allowance(self.source, self._size)
            for group in groups if self.columns else ():
                # Of single columns nothing is asked: of metadata that contradict each other Arrow ends the process.
                allowance = Allowance(self.source, self._size) if by_group else allowance
                allowance.take(max(group.total_byte_size, 0))
            texts = [field.name for field in flat if _is_text(arrow, field.type)]
            self._file = parquet.ParquetFile(
                opened(), metadata=file.metadata, read_dictionary=texts, page_checksum_verification=True
            )

    def read(self, groups: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> Any:
        """Read the rows of some row groups.

        Parameters
        ----------
        groups
            The numbers of the row groups; left out, all of them.
        columns
            The columns; left out, all that were chosen.

        Returns
        -------
        pyarrow.Table
            The rows, in the order of the groups.

        Raises
        ------
        DataFileError
            When they are damaged, or unpack to more than is allowed.
        """
        arrow = need("pyarrow", "files")
        chosen = self.columns if columns is None else list(columns)
        with self._data_errors():
            allowance = Allowance(self.source, self._size)
            batches = self._file.iter_batches(batch_size=_BATCH, columns=chosen, row_groups=groups)
            parts = [_spelled_out(batch.select(chosen), allowance) for batch in batches]
            if not parts:
                return self._schema.empty_table().select(chosen)
            return arrow.Table.from_batches(parts).replace_schema_metadata(self._schema.metadata)

    @contextmanager
    def _data_errors(self) -> Iterator[None]:
        arrow = need("pyarrow", "files")
        try:
            yield
        except (arrow.ArrowException, OSError, KeyError, UnicodeDecodeError) as problem:
            reason = one_line(problem)
            raise DataFileError(self.source, f"is no whole Parquet file ({reason}); copy it again") from None


def _is_text(arrow: Any, kind: Any) -> bool:
    kinds = arrow.types
    return any(test(kind) for test in (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_dictionary))


def _spelled_out(batch: Any, allowance: Allowance) -> Any:
    """Rows with each text in its place, once it is known that they fit."""
    arrow, compute = need("pyarrow", "files"), need("pyarrow.compute", "files")
    columns = []
    for column in batch.columns:
        if arrow.types.is_dictionary(column.type):
            words, at = column.dictionary, column.indices
            if _is_text(arrow, words.type):
                allowance.take(compute.sum(compute.binary_length(words).take(at)).as_py() or 0)
            column = words.take(at)  # which, unlike Arrow's own decoding, looks whether there is such a word
        allowance.take(column.nbytes)
        columns.append(column)
    made = arrow.RecordBatch.from_arrays(columns, names=batch.schema.names)
    made.validate(full=True)
    return made


_WIDEST = 16 << 20
"""How long a text or a geometry may be, in bytes: a million corners."""


def connect(path: str | Path, mode: str, timeout: float = 30.0) -> sqlite3.Connection:
    """Open a SQLite file that is there; no statement begins a transaction by itself.

    Parameters
    ----------
    path
        The file.
    mode
        As in SQLite's URIs: ``ro``, ``rw``, or ``ro&immutable=1`` for a file beside which nothing is to be written.
    timeout
        How many seconds to wait for another process.

    Returns
    -------
    sqlite3.Connection
        The connection, which does not trust the file's schema.

    Raises
    ------
    DataFileError
        When the path holds a character that no path may hold.
    """
    if "\0" in str(path) or not is_text(str(path)):
        raise DataFileError(path, "is no path; correct it")
    uri = f"file:{quote(os.path.abspath(path))}?mode={mode}"
    opened = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)
    try:
        opened.execute("PRAGMA trusted_schema=OFF")
    except BaseException:
        opened.close()
        raise
    return opened


_VIRTUAL = re.compile(r"CREATE\s+VIRTUAL\s+TABLE\s+(?:\"[^\"]*\"|\S+)\s+USING\s+rtree\s*\(", re.IGNORECASE)
_GENERATED = re.compile(r"\bAS\s*\(", re.IGNORECASE)


def check_schema(path: str | Path) -> None:
    """Refuse a file that is damaged, or holds more than plain tables and spatial indexes of these.

    Views, virtual tables and columns that are computed could go on for ever, or be larger than any memory.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    DataFileError
        When the file is no SQLite file, is damaged, or holds such things.
    """
    mode = "ro" if Path(f"{path}-wal").exists() else "ro&immutable=1"
    try:
        with closing(connect(path, mode)) as opened:
            opened.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _WIDEST)
            if opened.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise DataFileError(path, "is damaged; copy or write it again")
            for kind, name, made in opened.execute("SELECT type, name, sql FROM sqlite_master"):
                is_table = str(made)[:12].upper() == "CREATE TABLE" and not _GENERATED.search(made)
                if kind == "view" or (kind == "table" and not (is_table or _VIRTUAL.match(str(made)))):
                    raise DataFileError(path, f"holds {shorten(name)}, which is no plain table; export the layer alone")
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as problem:
        raise DataFileError(path, f"is no SQLite file that can be read ({one_line(problem)}); copy it again") from None
