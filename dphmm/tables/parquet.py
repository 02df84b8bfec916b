"""Parquet files of flat columns, whose size in memory is known before they are unpacked.

A few bytes can stand for gigabytes: a compressed page, one long text that every row repeats, a run of a billion nulls.
Arrow allocates what the headers of the pages say, so these are walked first; texts stay in their dictionaries until
their lengths are added up; and rows come in small batches.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dphmm.errors import DataFileError, need
from dphmm.tables.source import Document
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
    arrow, parquet = need("pyarrow", "files"), need("pyarrow.parquet", "files")
    try:
        file = parquet.ParquetFile(io.BytesIO(document.data))
        flat = [field for field in file.schema_arrow if not arrow.types.is_nested(field.type)]
        names = [field.name for field in flat]
        if len(set(names)) < len(names) or len(names) > _MOST_COLUMNS or not all(map(is_text, names)):
            raise DataFileError(document.source, f"has {len(names)} columns, two of one name; give each its own name")
        chosen = list(dict.fromkeys(choose(names)))
        _check_pages(document, chosen)
        texts = [field.name for field in flat if _is_text(arrow, field.type)]
        lean = parquet.ParquetFile(io.BytesIO(document.data), read_dictionary=texts, page_checksum_verification=True)
        allowance = Allowance(document.source, len(document.data))
        batches = lean.iter_batches(batch_size=_BATCH, columns=chosen)
        parts = [_spelled_out(batch.select(chosen), allowance) for batch in batches]
        if not parts:
            return file.schema_arrow.empty_table().select(chosen)
        return arrow.Table.from_batches(parts).replace_schema_metadata(file.schema_arrow.metadata)
    except (arrow.ArrowException, OSError, KeyError, UnicodeDecodeError) as problem:
        reason = one_line(problem)
        raise DataFileError(document.source, f"is no whole Parquet file ({reason}); copy it again") from None


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


def _check_pages(document: Document, chosen: Iterable[str]) -> None:
    """Refuse columns whose pages, each by its own header, unpack to more than is allowed."""
    allowance, wanted = Allowance(document.source, len(document.data)), {(name.encode(),) for name in chosen}
    try:
        for group in _footer(document.data).get(_ROW_GROUPS, []):
            for chunk in group[_COLUMNS]:
                column = chunk[_COLUMN]
                if tuple(column[_PATH]) in wanted and (column[_VALUES] or group[_ROWS]):
                    for size in _page_sizes(document.data, column):
                        allowance.take(size)
    except (IndexError, KeyError, TypeError, AttributeError, ValueError) as problem:
        if isinstance(problem, DataFileError):
            raise
        reason = "is no whole Parquet file (it is cut off, or its parts lie elsewhere)"
        raise DataFileError(document.source, f"{reason}; copy it again") from None


def _footer(data: bytes) -> Fields:
    length = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != _MAGIC or not 0 < length <= len(data) - 12:
        raise IndexError
    return read_fields(memoryview(data)[: len(data) - 8], len(data) - 8 - length)[0]


def _page_sizes(data: bytes, column: Fields) -> Iterator[int]:
    """What each page of a column unpacks to."""
    at = min(start for start in (column[_DATA_PAGE], column.get(_DICTIONARY_PAGE, 0)) if start > 0)
    end = at + column[_SIZE]
    if not at <= end <= len(data):
        raise IndexError
    while at < end:
        header, at = read_fields(memoryview(data)[:end], at)
        if header[_UNPACKED] < 0 or header[_PACKED] < 0 or at + header[_PACKED] > len(data):
            raise IndexError
        yield header[_UNPACKED]
        at += header[_PACKED]
