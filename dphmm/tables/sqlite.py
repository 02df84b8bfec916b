"""Tables in SQLite files from anybody, such as the layers of a GeoPackage, read without trusting their schema."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dphmm.errors import DataFileError
from dphmm.tables.source import readable
from dphmm.tables.unpacking import Allowance
from dphmm.tables.values import is_text, one_line

_ROWS = 1024
_WIDEST = 1 << 20
"""How long a text in a row may be, in bytes."""


def connect(path: str | Path, mode: str, timeout: float = 30.0) -> sqlite3.Connection:
    """A connection to a file that is there, on which no statement begins a transaction by itself.

    Parameters
    ----------
    path
        The file.
    mode
        Of SQLite's URIs: ``ro``, ``rw``, or ``ro&immutable=1`` for a file that nothing is to be written beside.
    timeout
        How many seconds to wait for another process.
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


def read_layer(path: str | Path, layer: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Some columns of a table of a file, in the order in which its rows were written.

    Raises
    ------
    DataFileError
        When the file cannot be read, is no SQLite file, is damaged, or has no such plain table (a view, or a virtual
        table, could go on for ever) with these columns; or when it unpacks to more than
        `dphmm.tables.max_unpacked` allows.
    """
    return _read(path, layer, columns, _WIDEST)[1]


def read_table(path: str | Path, layer: str, widest: int = _WIDEST) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The names of all columns of a table of a file, and its rows in the order in which they were written.

    Parameters
    ----------
    path, layer
        As for `read_layer`.
    widest
        How long a text or a binary in a row may be, in bytes.

    Raises
    ------
    DataFileError
        As `read_layer`.
    """
    return _read(path, layer, None, widest)


def _read(
    path: str | Path, layer: str, columns: Sequence[str] | None, widest: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    path = Path(path)
    with readable(path):
        allowance = Allowance(path, path.stat().st_size)
    mode = "ro" if Path(f"{path}-wal").exists() else "ro&immutable=1"
    try:
        with closing(connect(path, mode)) as opened:
            opened.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, widest)
            verdict = opened.execute("PRAGMA quick_check(1)").fetchone()
            made = opened.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (layer,)).fetchone()
            if verdict != ("ok",) or made is None or made[0] != "table" or not _is_plain(made[1]):
                raise DataFileError(path, f"is damaged or has no table {layer!r}; write it anew")
            names = [row[1] for row in opened.execute(f"PRAGMA table_xinfo({_quoted(layer)})")]
            wanted = names if columns is None else list(columns)
            missing = [name for name in wanted if name not in names]
            if missing:
                raise DataFileError(path, f"has no column {missing[0]!r} in {layer!r}")
            found: list[tuple[Any, ...]] = []
            rows = opened.execute(f"SELECT {', '.join(map(_quoted, wanted))} FROM {_quoted(layer)}")
            while some := rows.fetchmany(_ROWS):
                allowance.take(sum(_size(row) for row in some))
                found += some
            return wanted, found
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as problem:
        raise DataFileError(path, f"is no SQLite file that can be read ({one_line(problem)}); copy it again") from None


def _is_plain(statement: object) -> bool:
    return isinstance(statement, str) and statement[:12].upper() == "CREATE TABLE"


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _size(row: tuple[Any, ...]) -> int:
    return sum(8 + (len(value) if isinstance(value, str | bytes) else 0) for value in row)
