"""Changed SQLite files: rows whose digests are made right, schemas, headers, pages."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache
from random import Random
from typing import Any

from scripts.fuzzing import nasty, values

Row = tuple[Any, ...]


_MADE = """SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'
           AND name NOT LIKE 'rtree_%' AND type != 'trigger'"""


def _content(data: bytes) -> tuple[list[str], dict[str, list[Row]], Mapping[str, int]]:
    with closing(sqlite3.connect(":memory:")) as opened:
        # a file in WAL mode says so in its header, and memory has no log
        opened.deserialize(data[:18] + b"\1\1" + data[20:])
        made = opened.execute(_MADE).fetchall()
        tables = [name for name, sql in made if sql.upper().startswith("CREATE TABLE")]
        rows = {name: opened.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables}
        pragmas = {key: opened.execute(f"PRAGMA {key}").fetchone()[0] for key in ("application_id", "user_version")}
    return [sql for _, sql in made], rows, pragmas


_cached_content = cache(_content)

_SCHEMAS = (
    "CREATE VIEW {} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
    "CREATE TABLE {} (a, b)",
    "CREATE TABLE other (a)",
    "CREATE TRIGGER t AFTER INSERT ON {} BEGIN SELECT 1; END",
    "CREATE INDEX i ON {} (rowid)",
)


def of_sqlite(
    data: bytes,
    rng: Random,
    cell: Callable[[Any, Random], Any],
    sign: Callable[[str, Row], Row],
    only: str = "",
) -> bytes:
    """A database whose header or bytes are changed, or with rows changed and their digests made right."""
    kind = rng.random()
    if kind < 0.15:
        return nasty.of_bytes(data, rng)
    if kind < 0.3:
        changed = bytearray(data)
        at = rng.choice((16, 18, 19, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 68, 92, 96, 100, 103, 105))
        width = rng.choice((1, 2, 4))
        changed[at : at + width] = (rng.choice(values.INTEGERS) % 256**width).to_bytes(width, "big")
        return bytes(changed)
    if kind < 0.4:  # pointers and lengths within pages
        changed = bytearray(data)
        page = 4096 * rng.randrange(len(data) // 4096)
        for _ in range(rng.choice((1, 2, 5))):
            at = page + rng.choice((rng.randrange(16), rng.randrange(4096)))
            changed[at : at + 2] = bytes(rng.choices(range(256), k=2))
        return bytes(changed)
    statements, tables, pragmas = _cached_content(data)
    tables = {name: list(rows) for name, rows in tables.items()}
    used = [name for name, rows in tables.items() if rows and (not only or name == only)]
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(used)
        at = rng.randrange(len(tables[name]))
        row = list(tables[name][at])
        change = rng.randrange(10)
        if change < 8:
            column = rng.randrange(len(row))
            row[column] = cell(row[column], rng)
            tables[name][at] = sign(name, tuple(row)) if rng.random() < 0.9 else tuple(row)
        elif change == 8:
            tables[name].pop(at)
        else:
            tables[name].append(tables[name][at])
        used = [name for name in used if tables[name]] or used
        if not tables[used[0]]:
            break
    if rng.random() < 0.08:
        statements = list(statements)
        rng.shuffle(statements)
        statements[rng.randrange(len(statements))] = rng.choice(_SCHEMAS).format(rng.choice(used))
    if rng.random() < 0.05:
        pragmas = {key: rng.choice(values.INTEGERS) % 2**31 for key in pragmas}
    with closing(sqlite3.connect(":memory:")) as made:
        made.execute("PRAGMA page_size=4096")
        for key, number in pragmas.items():
            made.execute(f"PRAGMA {key}={number}")
        for statement in statements:
            _attempt(made, statement)
        for name, rows in tables.items():
            for row in rows:
                _attempt(made, f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(row))})', row)
        made.commit()
        return bytes(made.serialize())


def _attempt(made: sqlite3.Connection, statement: str, row: Row = ()) -> None:
    try:
        made.execute(statement, row)
    except (sqlite3.Error, OverflowError, ValueError):
        return
