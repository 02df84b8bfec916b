"""Parquet files of flat columns, whose size in memory is known before they are unpacked.

A few bytes can stand for gigabytes: a compressed page, one long text that every row repeats, a run of a billion nulls.
Arrow allocates what the headers of the pages say, so these are walked first; texts stay in their dictionaries until
their lengths are added up; and rows come in small batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dphmm.errors import DataFileError, need
from dphmm.tables.source import Document, readable
from dphmm.tables.thrift import Fields, read_fields
from dphmm.tables.unpacking import Allowance
from dphmm.tables.values import is_text, one_line

_BATCH = 1 << 16
_MOST_COLUMNS = 10_000


def read_parquet(document: Document, choose: Callable[[list[str]], Iterable[str]] = list) -> Any:
    """A Parquet file as a `pyarrow.Table`, with the file's metadata in its schema; texts are plain, not dictionaries.

    Parameters
    ----------
    document
        The file.
    choose
        From the names of the columns to those that are to be read; left out, all of them. Columns of lists or
        structures are left out of both.

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
        self.source = str(document) if isinstance(document, Path) else document.source
        self._data = _OnDisk(document) if isinstance(document, Path) else document.data
        with self._whole():
            file = parquet.ParquetFile(self._stream())
            flat = [field for field in file.schema_arrow if not arrow.types.is_nested(field.type)]
            names = [field.name for field in flat]
            if len(set(names)) < len(names) or len(names) > _MOST_COLUMNS or not all(map(is_text, names)):
                raise DataFileError(self.source, f"has {len(names)} columns, two of one name; give each its own name")
            self.columns = list(dict.fromkeys(choose(names)))
            self.rows = _check_pages(self.source, self._data, self.columns, by_group)
            self._schema = file.schema_arrow
            self.metadata = self._schema.metadata or {}
            self._texts = [field.name for field in flat if _is_text(arrow, field.type)]
            self._lean: Any = None

    def read(self, groups: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> Any:
        """The rows of some row groups as a `pyarrow.Table`; left out, all of them and all columns that are read."""
        arrow, parquet = need("pyarrow", "files"), need("pyarrow.parquet", "files")
        chosen = self.columns if columns is None else list(columns)
        with self._whole():
            if self._lean is None:
                how: dict[str, Any] = {"read_dictionary": self._texts, "page_checksum_verification": True}
                self._lean = parquet.ParquetFile(self._stream(), **how)
            allowance = Allowance(self.source, len(self._data))
            batches = self._lean.iter_batches(batch_size=_BATCH, columns=chosen, row_groups=groups)
            parts = [_spelled_out(batch.select(chosen), allowance) for batch in batches]
            if not parts:
                return self._schema.empty_table().select(chosen)
            return arrow.Table.from_batches(parts).replace_schema_metadata(self._schema.metadata)

    def _stream(self) -> Any:
        arrow = need("pyarrow", "files")
        if isinstance(self._data, _OnDisk):
            return arrow.OSFile(str(self._data.path))
        return arrow.BufferReader(arrow.py_buffer(self._data))

    @contextmanager
    def _whole(self) -> Iterator[None]:
        arrow = need("pyarrow", "files")
        try:
            yield
        except (arrow.ArrowException, OSError, KeyError, UnicodeDecodeError) as problem:
            reason = one_line(problem)
            raise DataFileError(self.source, f"is no whole Parquet file ({reason}); copy it again") from None


def _is_text(arrow: Any, kind: Any) -> bool:
    kinds = arrow.types
    return any(of(kind) for of in (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_dictionary))


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


# ---- pages -----------------------------------------------------------------------------------------------------------

_MAGIC = b"PAR1"
_ROW_GROUPS, _ROWS, _COLUMNS, _COLUMN = 4, 3, 1, 3
_PATH, _VALUES, _SIZE, _DATA_PAGE, _DICTIONARY_PAGE = 3, 5, 7, 9, 11
_UNPACKED, _PACKED = 2, 3
"""Numbers of fields in the format's Thrift definition: of the file, a row group, a column in one, and a page's header.

Arrow's own metadata are not asked: for fields that contradict each other they end the process.
"""


class _OnDisk:
    """The bytes of a file, of which slices are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path):
            self._size = path.stat().st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        with readable(self.path), self.path.open("rb") as stream:
            stream.seek(start)
            return stream.read(max(stop - start, 0))


def _check_pages(source: str, data: bytes | _OnDisk, chosen: Iterable[str], by_group: bool) -> list[int]:
    """Refuse columns whose pages, each by its own header, unpack to more than is allowed; the rows of each group."""
    allowance, wanted = Allowance(source, len(data)), {(name.encode(),) for name in chosen}
    rows = []
    try:
        for group in _footer(data).get(_ROW_GROUPS, []):
            if by_group:
                allowance = Allowance(source, len(data))
            rows.append(group[_ROWS])
            for chunk in group[_COLUMNS]:
                column = chunk[_COLUMN]
                if tuple(column[_PATH]) in wanted and (column[_VALUES] or group[_ROWS]):
                    for size in _page_sizes(data, column):
                        allowance.take(size)
    except (IndexError, KeyError, TypeError, AttributeError, ValueError) as problem:
        if isinstance(problem, DataFileError):
            raise
        reason = "is no whole Parquet file (it is cut off, or its parts lie elsewhere)"
        raise DataFileError(source, f"{reason}; copy it again") from None
    return rows


def _footer(data: bytes | _OnDisk) -> Fields:
    length = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != _MAGIC or not 0 < length <= len(data) - 12:
        raise IndexError
    return read_fields(memoryview(data[len(data) - 8 - length : len(data) - 8]), 0)[0]


def _page_sizes(data: bytes | _OnDisk, column: Fields) -> Iterator[int]:
    """What each page of a column unpacks to."""
    at = min(start for start in (column[_DATA_PAGE], column.get(_DICTIONARY_PAGE, 0)) if start > 0)
    end = at + column[_SIZE]
    if not at <= end <= len(data):
        raise IndexError
    while at < end:
        header, at = _page_header(data, at, end)
        if header[_UNPACKED] < 0 or header[_PACKED] < 0 or at + header[_PACKED] > len(data):
            raise IndexError
        yield header[_UNPACKED]
        at += header[_PACKED]


def _page_header(data: bytes | _OnDisk, at: int, end: int) -> tuple[Fields, int]:
    """A page's header, and where it ends; of a file on a disk, as few bytes are read as hold it."""
    if isinstance(data, bytes):
        return read_fields(memoryview(data)[:end], at)
    window = _HEADER
    while True:
        try:
            header, size = read_fields(memoryview(data[at : min(end, at + window)]), 0)
            return header, at + size
        except (IndexError, ValueError):
            if at + window >= end:
                raise
            window *= 16


_HEADER = 1 << 9
"""What most headers of pages fit into, in bytes."""
