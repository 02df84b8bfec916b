"""Parquet files of flat columns, whose size in memory is limited before they are unpacked.

A few bytes can stand for gigabytes: a compressed page, one long text that every row repeats, a run of a billion nulls.
So what the file's metadata say of its row groups is counted first; texts stay in their dictionaries until their lengths
are added up; and rows come in small batches, each of which is counted as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dphmm.errors import DataFileError, need
from dphmm.tables.source import Allowance, Document, readable
from dphmm.tables.values import is_text, one_line

_BATCH = 1 << 16
_MOST_COLUMNS = 10_000


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
