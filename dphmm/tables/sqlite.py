"""SQLite files: connections to them, and whether one of unknown origin, such as a GeoPackage, can be read safely."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from dphmm.errors import DataFileError
from dphmm.tables.values import is_text, one_line, shorten

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
