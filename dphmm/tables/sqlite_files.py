"""Connections to SQLite files, and checks of those of untrusted origin.

A SQLite file of unknown origin, such as a GeoPackage, may contain views and computed columns that never end. Such files
are refused.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from dphmm.errors import DataFileError
from dphmm.tables.values import is_text, shorten, shorten_message

# Maximum size of a string or a geometry, in bytes: a million corners.
_MAX_CELL_BYTES = 16 << 20


def connect(path: str | Path, mode: str, timeout: float = 30.0, any_thread: bool = False) -> sqlite3.Connection:
    """Open an existing SQLite file. No statement begins a transaction implicitly.

    Parameters
    ----------
    path
        The file.
    mode
        As in SQLite's URIs: ``ro``, ``rw``, or ``ro&immutable=1`` to write no auxiliary files.
    timeout
        Seconds to wait for another process.
    any_thread
        Whether every thread can use the connection. The caller then prevents concurrent use.

    Returns
    -------
    sqlite3.Connection
        The connection, which does not trust the file's schema.

    Raises
    ------
    DataFileError
        If the path contains a character that is not allowed.
    """
    if "\0" in str(path) or not is_text(str(path)):
        raise DataFileError(path, "is not a valid path; correct it")
    uri = f"file:{quote(os.path.abspath(path))}?mode={mode}"
    opened = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=not any_thread)
    try:
        opened.execute("PRAGMA trusted_schema=OFF")
    except BaseException:  # an interrupt must close the file, too
        opened.close()
        raise
    return opened


_VIRTUAL = re.compile(r"CREATE\s+VIRTUAL\s+TABLE\s+(?:\"[^\"]*\"|\S+)\s+USING\s+rtree\s*\(", re.IGNORECASE)
_GENERATED = re.compile(r"\bAS\s*\(", re.IGNORECASE)


def check_schema(path: str | Path) -> None:
    """Refuse a SQLite file that is damaged or has more than plain tables and spatial indexes.

    Views, virtual tables and computed columns could never end, or exceed the memory.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    DataFileError
        If the file is not a SQLite file, is damaged, or contains such elements.
    """
    mode = "ro" if Path(f"{path}-wal").exists() else "ro&immutable=1"
    try:
        with closing(connect(path, mode)) as opened:
            opened.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
            if opened.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise DataFileError(path, "is damaged; copy or write it again")
            for kind, name, definition in opened.execute("SELECT type, name, sql FROM sqlite_master"):
                is_table = str(definition)[:12].upper() == "CREATE TABLE" and not _GENERATED.search(definition)
                if kind == "view" or (kind == "table" and not (is_table or _VIRTUAL.match(str(definition)))):
                    raise DataFileError(path, f"contains {shorten(name)}, which is not a plain table; export one layer")
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as problem:
        raise DataFileError(
            path, f"is not a readable SQLite file ({shorten_message(problem)}); copy it again"
        ) from None
