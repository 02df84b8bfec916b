"""Parquet files, read by pyarrow."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

from dphmm.errors import DataFileError, need
from dphmm.tables.source import Document


def read_parquet(document: Document, choose: Callable[[list[str]], Iterable[str]] = list) -> Any:
    """A Parquet file as a `pyarrow.Table`, with the file's metadata in its schema.

    Parameters
    ----------
    document
        The file.
    choose
        From the names of all columns to those that are to be read; left out, all of them.

    Raises
    ------
    DataFileError
        When the file is no Parquet or is cut off, and as `choose` does.
    MissingDependencyError
        When pyarrow is not installed.
    """
    arrow, parquet = need("pyarrow", "files"), need("pyarrow.parquet", "files")
    try:
        file = parquet.ParquetFile(io.BytesIO(document.data))
        return file.read(columns=list(choose(file.schema_arrow.names)))
    except (arrow.ArrowException, OSError) as problem:
        reason = " ".join(str(problem).split())
        raise DataFileError(document.source, f"is no whole Parquet file ({reason}); copy it again") from None
