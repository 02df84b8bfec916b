"""Writing of Parquet files, and validated reading of those of untrusted origin.

A few bytes of Parquet (only flat columns are read here) can represent gigabytes: a compressed page, one long string
that every row repeats, a run of a billion nulls. Therefore the sizes in the file's metadata are added up first, strings
stay dictionary-encoded until their lengths are added up, and rows are read in small batches, each of which is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dphmm.errors import DataFileError, import_library
from dphmm.tables.source import Allowance, Document, convert_read_errors
from dphmm.tables.values import is_text, shorten_message

# The extensions of Parquet files.
PARQUET_SUFFIXES = frozenset({".parquet", ".geoparquet"})
# The first bytes of a Parquet file.
PARQUET_MAGIC = b"PAR1"

_BATCH_ROWS = 1 << 16
_MAX_COLUMNS = 10_000


def write_parquet(
    path: Path, columns: Mapping[str, Any], metadata: Mapping[Any, Any] | None = None, **options: Any
) -> None:
    """Write columns as a Parquet file.

    Parameters
    ----------
    path
        The file.
    columns
        Name → array, NumPy or Arrow.
    metadata
        The metadata of the file's schema.
    **options
        Options of `pyarrow.parquet.write_table`.

    Raises
    ------
    MissingDependencyError
        If pyarrow is not installed.
    """
    arrow = import_library("pyarrow", "files")
    parquet = import_library("pyarrow.parquet", "files")
    with path.open("wb") as stream:  # Arrow might interpret a path as a URI
        parquet.write_table(arrow.table(columns, metadata=metadata), stream, **options)


# The metadata of a Parquet file's schema.
Metadata = Mapping[bytes, bytes]


def read_parquet(document: Document, choose: Callable[[list[str]], Iterable[str]] = list) -> Any:
    """Read a Parquet file as a `pyarrow.Table` with the file's metadata, strings decoded.

    Parameters
    ----------
    document
        The file.
    choose
        Function from the names of the columns to the names to read. Defaults to all. Nested columns (lists and
        structures) are excluded from both.

    Returns
    -------
    pyarrow.Table
        The columns in the order of ``choose``.

    Raises
    ------
    DataFileError
        If the file is not Parquet or is cut off, unpacks to more than `dphmm.tables.max_unpacked` allows, or has two
        columns of one name; also errors that `choose` raises.
    MissingDependencyError
        If pyarrow is not installed.
    """
    return OpenParquet(document, choose).read()


class OpenParquet:
    """A Parquet file with row groups that are read one at a time, to bound memory.

    Parameters
    ----------
    document
        The file or its path. With a path, the file is read in parts on request.
    choose
        As for `read_parquet`.
    by_group
        Whether the limit of `dphmm.tables.max_unpacked` applies to each row group rather than to their total.
    choose_with_metadata
        As `choose`, which it replaces, with the metadata of the file's schema as the second argument. Its names include
        columns of GeoArrow points: structures of x and y, or lists of two to four numbers.

    Raises
    ------
    DataFileError, MissingDependencyError
        As for `read_parquet`.

    Attributes
    ----------
    source
        The file, for messages.
    rows
        Number of rows of each row group.
    columns
        The columns to read.
    metadata
        The metadata of the file's schema.
    nested
        The names of the columns of lists and structures, other than points.
    """

    def __init__(
        self,
        document: Document | Path,
        choose: Callable[[list[str]], Iterable[str]] = list,
        by_group: bool = False,
        choose_with_metadata: Callable[[list[str], Metadata], Iterable[str]] | None = None,
    ) -> None:
        arrow = import_library("pyarrow", "files")
        parquet = import_library("pyarrow.parquet", "files")
        if isinstance(document, Path):
            self.source, opened = str(document), partial(arrow.OSFile, str(document))
            with convert_read_errors(document):
                self._size = document.stat().st_size
        else:
            self.source, opened = document.source, partial(arrow.BufferReader, document.data)
            self._size = len(document.data)
        with self._convert_read_errors():
            file = parquet.ParquetFile(opened())
            self._schema = file.schema_arrow
            has_points = choose_with_metadata is not None
            flat = [
                field
                for field in self._schema
                if not arrow.types.is_nested(field.type) or (has_points and is_point_type(field.type))
            ]
            names = [field.name for field in flat]
            self.nested = sorted({field.name for field in self._schema} - set(names))
            if len(set(names)) < len(names) or len(names) > _MAX_COLUMNS or not all(map(is_text, names)):
                raise DataFileError(
                    self.source,
                    f"must have at most {_MAX_COLUMNS} columns with unique UTF-8 names, got {len(names)} columns",
                )
            self.metadata: Metadata = self._schema.metadata or {}
            chosen = choose(names) if choose_with_metadata is None else choose_with_metadata(names, self.metadata)
            self.columns = list(dict.fromkeys(chosen))
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
            self.rows = [group.num_rows for group in groups]
            allowance = Allowance(self.source, self._size)
            for group in groups if self.columns else ():
                # Metadata of single columns is not queried: if it is contradictory, Arrow aborts the process.
                allowance = Allowance(self.source, self._size) if by_group else allowance
                allowance.take(max(group.total_byte_size, 0))
            texts = [field.name for field in flat if _is_text(arrow, field.type)]
            self._file = parquet.ParquetFile(
                opened(), metadata=file.metadata, read_dictionary=texts, page_checksum_verification=True
            )

    def read(self) -> Any:
        """Read all rows.

        Returns
        -------
        pyarrow.Table
            The rows with the chosen columns.

        Raises
        ------
        DataFileError
            If they are damaged, or unpack to more than is allowed.
        """
        return self._build_table(list(self._iterate_batches(None)))

    def iterate_parts(self, max_rows: int) -> Iterator[Any]:
        """Read the rows in parts, whatever the sizes of the row groups.

        Parameters
        ----------
        max_rows
            Number of rows after which a part ends.

        Yields
        ------
        pyarrow.Table
            The next rows. Their number exceeds `max_rows` by less than 65,536.

        Raises
        ------
        DataFileError
            As for `read`.
        """
        batches = list[Any]()
        for group in range(len(self.rows)):
            for batch in self._iterate_batches([group]):
                batches.append(batch)
                if sum(part.num_rows for part in batches) >= max_rows:
                    yield self._build_table(batches)
                    batches = []
        if batches:
            yield self._build_table(batches)

    def _iterate_batches(self, groups: Sequence[int] | None) -> Iterator[Any]:
        allowance = Allowance(self.source, self._size)
        with self._convert_read_errors():
            for batch in self._file.iter_batches(batch_size=_BATCH_ROWS, columns=self.columns, row_groups=groups):
                yield _decode_dictionaries(batch.select(self.columns), allowance)

    def _build_table(self, batches: Sequence[Any]) -> Any:
        arrow = import_library("pyarrow", "files")
        if not batches:
            return self._schema.empty_table().select(self.columns)
        return arrow.Table.from_batches(batches).replace_schema_metadata(self._schema.metadata)

    @contextmanager
    def _convert_read_errors(self) -> Iterator[None]:
        arrow = import_library("pyarrow", "files")
        try:
            yield
        except (arrow.ArrowException, OSError, KeyError, UnicodeDecodeError) as problem:
            reason = shorten_message(problem)
            raise DataFileError(self.source, f"is not a complete Parquet file ({reason}); copy it again") from None


def is_point_type(kind: Any) -> bool:
    """Return whether an Arrow type is one of GeoArrow points, separated or interleaved."""
    types = import_library("pyarrow", "files").types
    if types.is_struct(kind):
        axes = [kind.field(at) for at in range(kind.num_fields)]
        return [axis.name for axis in axes[:2]] == ["x", "y"] and all(types.is_floating(axis.type) for axis in axes)
    is_list = types.is_fixed_size_list(kind) and 2 <= kind.list_size <= 4
    return bool(is_list and types.is_floating(kind.value_type))


def _is_text(arrow: Any, kind: Any) -> bool:
    kinds = arrow.types
    return any(test(kind) for test in (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_dictionary))


def _decode_dictionaries(batch: Any, allowance: Allowance) -> Any:
    """Return rows with strings in place of their codes, after counting their size."""
    arrow = import_library("pyarrow", "files")
    compute = import_library("pyarrow.compute", "files")
    columns = []
    for column in batch.columns:
        if arrow.types.is_dictionary(column.type):
            words, at = column.dictionary, column.indices
            if _is_text(arrow, words.type):
                allowance.take(compute.sum(compute.binary_length(words).take(at)).as_py() or 0)
            column = words.take(at)  # checks bounds, unlike Arrow's own decoding
        allowance.take(column.nbytes)
        columns.append(column)
    plain = arrow.RecordBatch.from_arrays(columns, names=batch.schema.names)
    plain.validate(full=True)
    return plain
