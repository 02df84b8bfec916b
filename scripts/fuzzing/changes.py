"""Mutations of valid content: tables, JSON, TOML, XML, archives, arrays and databases."""

from __future__ import annotations

import gzip
import io
import json
import re
import sqlite3
import struct
import warnings
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dphmm.release import checkpoint
from dphmm.release.session_store import _compute_digest
from scripts.fuzzing.values import FLOATS, INTEGERS, get_words, make_text


def change_content(data: bytes, rng: Random) -> bytes:
    """Change content by its format, or one time in five as bytes."""
    if rng.random() < 0.2:
        return change_bytes(data, rng)
    for start, change in _BY_START.items():
        if data.startswith(start):
            return change(data, rng)
    if data[257:262] == b"ustar":
        return change_tar(data, rng)
    if b"\0" in data[:64]:
        return change_bytes(data, rng)
    if re.search(rb"\{.*\}\s*$", data) and not data.startswith((b"{", b"[")):  # JSON lines
        *before, line = rng.choice((data.strip().split(b"\n"), data.strip().split(b"\n")[:2]))
        start = max(line.find(b"{"), 0)
        return b"\n".join([*before, line[:start] + change_json(line[start:], rng)])
    return (change_json if data.startswith((b"{", b"[")) and b"= " not in data else change_text)(data, rng)


def _encode(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _clean(value: str) -> str:
    """Replace lone surrogates, which NumPy, Arrow and SQLite reject."""
    return value.encode("utf-8", "replace").decode()


# ---- bytes and lines -----------------------------------------------------------------------------------------------


def change_bytes(data: bytes, rng: Random) -> bytes:
    """Change, insert, delete or repeat some bytes, or cut off the rest."""
    buffer = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, kind = rng.randrange(len(buffer) + 1), rng.randrange(7)
        width = rng.choice((1, 2, 4, 8))
        if kind < 2 and buffer:
            flipped = buffer[at - 1] ^ (1 << rng.randrange(8))
            buffer[at - 1] = flipped if kind == 0 else rng.choice((*b"\0\1\t\n\r\33\"',\\\x7f\x80\xff", flipped))
        elif kind == 2:
            del buffer[at : at + rng.choice((1, 2, 4, 8, 50, len(buffer), len(buffer)))]
        elif kind == 3:
            buffer[at:at] = rng.randbytes(width)
        elif kind == 4:
            buffer[at:at] = buffer[at : at + rng.choice((1, 4, 16, 100))] * rng.choice((1, 2, 20))
        elif kind == 5:
            buffer[at : at + width] = (rng.choice(INTEGERS) % 256**width).to_bytes(width, rng.choice(("little", "big")))
        else:
            buffer[at:at] = _encode(make_text(rng))[:5000]
    return bytes(buffer)


_TOKENS = re.compile(r'"[^"\n]*"|[^\s,;&="<>{}\[\]]+|.', re.DOTALL)
_PIECES = [*get_words("toml"), *get_words("xml"), *',;\t\r\n"|&<>[]{}', "[" * 900 + "]" * 900, "9" * 400, "<a>" * 3000]
_PIECES += ["[" + "{a=" * 400 + "1" + "}" * 400 + "]", "\n[table]\n", "\n[[tables]]\n", "a" + ".a" * 500 + " = 1"]


def change_text(data: bytes, rng: Random) -> bytes:
    """Replace, repeat, delete or move cells, values, names or separators of a text."""
    tokens = _TOKENS.findall(data.decode("utf-8", "replace")) or [""]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        kind = rng.randrange(11)
        while not tokens[at].strip(',;\t &="<>\n') and rng.random() < 0.8:
            at = rng.randrange(len(tokens))
        quote = '"' if tokens[at].startswith('"') and rng.random() < 0.9 else ""
        value = make_text(rng) if rng.random() < 0.9 else rng.choice(_PIECES)
        if data[:1] in (b"{", b"[") and rng.random() < 0.9:
            value, quote = json.dumps(value), ""
            value = rng.choice((value, value, *rng.sample(_VALUES, 2), repr(rng.choice(INTEGERS))))
        if kind < 7:
            if data[:1] == b"<" and rng.random() < 0.7:
                value = value.replace("&", "&amp;").replace("<", "&lt;")
            tokens[at] = quote + value + quote
        elif kind == 7:
            tokens[at] *= rng.choice((2, 3, 100))
        elif kind == 8:
            del tokens[at : at + rng.choice((1, 2, 8))]
            tokens = tokens or [""]
        elif kind == 9:
            tokens[at : at + rng.choice((0, 1))] = tokens[other : other + rng.choice((1, 1, 4, 20))]
        else:
            separator = rng.choice(_PIECES)
            tokens = [separator if token == tokens[other] else token for token in tokens]
    return _encode("".join(tokens))


_VALUES = [*get_words("json"), "9" * 4301, "-" + "9" * 700, "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900]


def change_json(data: bytes, rng: Random) -> bytes:
    """Replace, remove or exchange keys and values of JSON, or bytes of invalid JSON."""

    def drop_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        kept = [pair for pair in pairs if rng.random() > 0.06]
        others = rng.sample(kept, len(kept)) if rng.random() < 0.06 else kept
        return {key: value for (key, _), (_, value) in zip(kept, others, strict=True)}

    if rng.random() < 0.7:
        return change_text(data, rng)
    with suppress(ValueError, RecursionError):
        return json.dumps(json.loads(data, object_pairs_hook=drop_pairs)).encode()
    return change_bytes(data, rng)


# ---- archives and arrays -------------------------------------------------------------------------------------------


def _change_part(data: bytes, start: int, stop: int, rng: Random) -> bytes:
    """Change the bytes of one part, such as a header."""
    return data[:start] + change_bytes(data[start:stop], rng) + data[stop:]


def change_zip(data: bytes, rng: Random) -> bytes:
    """Change numbers in the headers of an archive, or its members or their names."""
    if rng.random() < 0.25:
        match = rng.choice([*re.finditer(b"PK(\3\4|\1\2|\5\6)", data)])
        return _change_part(data, match.end(), match.end() + 42, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    for _ in range(rng.choice((1, 1, 1, 2))):
        at, kind = rng.randrange(len(members)), rng.randrange(12)
        name, content = members[at]
        if kind < 9:
            members[at] = (name, change_content(content, rng))
        elif kind == 9:
            members[at] = (rng.choice((make_text(rng)[:200], "../a.csv", "/a.csv", "a/", "a.csv.gz", "a.npy")), content)
        elif kind == 10:
            members[at] = (name, rng.choice(members)[1])
        else:
            members = members[:at] + members[at + 1 :] if len(members) > 1 and rng.random() < 0.7 else members * 2
    stream, method = io.BytesIO(), rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as archive:
        warnings.simplefilter("ignore")  # duplicate names of members
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(_clean(name) or "a"), content, method)
    return stream.getvalue()


def change_tar(data: bytes, rng: Random) -> bytes:
    """Change the header of a member and correct its checksum."""
    block = 512 * rng.randrange(len(data) // 512)
    header = bytearray(change_bytes(data[block : block + 512], rng)[:512].ljust(512, b"\0"))
    at, width = rng.choice(((100, 8), (124, 12), (136, 12), (156, 1), (386, 12), (483, 12)))
    number = rng.choice(INTEGERS)
    octal, binary = b"%o" % (abs(number) % 8**width), b"\xff" + (number % 256**11).to_bytes(11, "big")  # negative
    header[at : at + width] = rng.choice((octal, binary, b"S", b"L", b"K", b"x", b"g"))[:width].ljust(width, b"\0")
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    return data[:block] + bytes(header) + data[block + 512 :]


def change_gzip(data: bytes, rng: Random) -> bytes:
    """Change the packed content, or pack it twice or next to itself."""
    kind, packed = rng.random(), gzip.compress(change_content(gzip.decompress(data), rng), 1, mtime=0)
    return gzip.compress(packed, 1, mtime=0) if kind > 0.97 else packed * (1 + (kind > 0.9))


_TYPES = get_words("types")
_SHAPES: tuple[Callable[[Any], Any], ...] = (np.ravel, np.atleast_3d, np.asfortranarray, np.transpose)
_SHAPES += (lambda a: a.ravel()[:0], lambda a: a.ravel()[:-1], lambda a: np.sort(a, axis=None), lambda a: np.tile(a, 2))


def change_npy(data: bytes, rng: Random) -> bytes:
    """Change the header of an array, its values, shape, type, or the contained JSON."""
    kind, stream = rng.random(), io.BytesIO()
    try:
        array = np.load(io.BytesIO(data))
    except (ValueError, EOFError, OSError, SyntaxError, OverflowError, MemoryError):  # already mutated
        return change_bytes(data, rng)
    if kind < 0.2:
        return _change_part(data, 0, 128, rng)
    if kind < 0.4:
        shape = tuple(rng.choice((*array.shape, *INTEGERS)) for _ in range(rng.choice((0, 1, 2, 3, 40))))
        header = repr({"descr": rng.choice(_TYPES), "fortran_order": rng.choice((True, False, None)), "shape": shape})
        return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + data[128:]
    if array.dtype.kind == "U" and array.size == 1:
        result = np.array(_clean(change_json(array.item().encode(), rng).decode("utf-8", "replace")))
    elif kind < 0.8 and array.size and array.dtype.kind in "fi":
        pool = FLOATS if array.dtype.kind == "f" else [number for number in INTEGERS if -(2**31) <= number < 2**31]
        result = array.copy()
        result.flat[rng.randrange(result.size)] = rng.choice(pool)
    else:
        result = rng.choice(_SHAPES)(array)
        if array.dtype.kind in "fi" and rng.random() < 0.3:
            result = result.astype(rng.choice(("<f8", ">f4", "<i4", "<i8", "|b1", "<f2")))
    np.save(stream, result)
    return stream.getvalue()


# ---- databases and columns -----------------------------------------------------------------------------------------

_OBJECTS = "SELECT name, type FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' AND name NOT LIKE 'rtree_%'"
_ENDLESS = "CREATE VIEW {} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n"


def _change_cell(cell: Any, rng: Random) -> Any:
    """Return a mutated cell: its JSON or bytes changed, or a value of any type."""
    if isinstance(cell, str | bytes) and rng.random() < 0.7:
        result = change_content(cell.encode() if isinstance(cell, str) else cell, rng)
        return result if isinstance(cell, bytes) else result.decode("utf-8", "replace")
    number = rng.choice([number for number in INTEGERS if -(2**63) <= number < 2**63])
    return rng.choice((number, rng.choice(FLOATS), None, _clean(make_text(rng)), _clean(make_text(rng)).encode()))


def change_checkpoint(data: bytes, rng: Random) -> bytes:
    """Change the JSON or the binary data of an engine's checkpoint, and correct its digest."""
    head, _, text, binary = data.split(b"\n", 3)
    content = b"\n".join((change_json(text, rng), binary) if rng.random() < 0.7 else (text, change_bytes(binary, rng)))
    return b"\n".join([head, checkpoint.compute_digest(content), content])


def _sign_row(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a session's row with a corrected digest, unless it depends on other rows."""
    if (table == "session" and len(row) == 5) or table == "progress":
        return (*row[:-1], _compute_digest(*row[:-1]))
    if table == "record" and len(row) == 6 and row[1] == 0:
        return (*row[:5], _compute_digest(b"", *row[:5]))
    return row


def change_sqlite(data: bytes, rng: Random) -> bytes:
    """Change the header or a page of a database, its schema, or rows with new digests."""
    kind = rng.random()
    if kind < 0.3:
        start = rng.choice((0, 4096 * rng.randrange(len(data) // 4096)))
        return _change_part(data, start, start + 108, rng)[: len(data)]
    with closing(sqlite3.connect(":memory:")) as opened:
        # Databases in memory have no log: the flag of WAL mode in the header is cleared.
        opened.deserialize(data[:18] + b"\1\1" + data[20:])
        objects = opened.execute(_OBJECTS).fetchall()
        for name in [name for name, type_ in objects if type_ == "trigger"]:
            opened.execute(f'DROP TRIGGER "{name}"')  # those of GeoPackages call functions of other software
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice([name for name, type_ in objects if type_ == "table"])
            rows = opened.execute(f'SELECT * FROM "{name}"').fetchall()
            if rows:
                at, row = rng.randrange(len(rows)), list(rng.choice(rows))
                column = rng.randrange(len(row))
                row[column] = _change_cell(row[column], rng)
                rows[at : at + rng.choice((0, 1, 1, 1, 2))] = [_sign_row(name, tuple(row))]
                opened.execute(f'DELETE FROM "{name}"')
            for row in rows:
                with suppress(sqlite3.Error, OverflowError, ValueError):
                    opened.execute(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(row))})', row)
        if kind > 0.95:
            opened.execute(f'DROP TABLE "{name}"')
            opened.execute(rng.choice(("CREATE TABLE {} (a, b)", _ENDLESS)).format(name))
        opened.commit()
        return bytes(opened.serialize())


_CELLS: tuple[tuple[Any, Any], ...] = ((None, None), (b"\xff\xfe", None), (float("nan"), None), (7, pa.uint64()))
_CELLS += ((2**63 - 1, None), ([1, 2], None), ({"x": 1.0}, None), (True, None), (2**31 - 1, pa.date32()))
_CELLS += ((-(2**62), pa.timestamp("s")), (2**63 - 1, pa.timestamp("us", tz="Mars/Olympus")), (5, pa.duration("us")))
_CELLS += ((-(2**63), pa.timestamp("ns", tz="UTC")), (1709802000, pa.timestamp("ms", tz="+05:30")))
_CELLS += ((5, pa.time64("us")), (0.5, pa.float16()), (7, pa.decimal128(20, 3)), ("a", pa.large_string()))
_CELLS += (("a", pa.dictionary(pa.int32(), pa.string())), ("a", pa.string_view()), (b"12345678", pa.binary(8)))
_CELLS += ((b"\1\1\0\0\0" + struct.pack("<2d", 7, 45), None), (b"\1\7\0\0\0\1\0\0\0" * 50, None))


def change_parquet(data: bytes, rng: Random) -> bytes:
    """Change the footer of a Parquet file, or its columns, types, values, names or metadata."""
    if rng.random() < 0.25:
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        footer = change_bytes(data[start:-8], rng)
        length = len(footer) if rng.random() < 0.9 else rng.choice(INTEGERS) % 2**32
        return data[:start] + footer + length.to_bytes(4, "little") + data[-4:]
    table, stream = pq.read_table(io.BytesIO(data)), io.BytesIO()
    columns, metadata = {name: table[name] for name in table.column_names}, dict(table.schema.metadata or {})
    try:
        for _ in range(rng.choice((1, 1, 2))):
            name, kind = rng.choice(list(columns)), rng.randrange(8)
            if kind < 4:
                cell, of = rng.choice(_CELLS)
                columns[name] = pa.array([cell] * len(table), of)
            elif kind < 6:
                cells = columns[name].to_pylist()
                cells[rng.randrange(len(cells))] = rng.choice(
                    (_clean(make_text(rng)), *rng.sample(FLOATS, 2), None, 2**40)
                )
                columns[name] = pa.array(cells, columns[name].type if rng.random() < 0.7 else None)
            else:
                columns[_clean(make_text(rng))] = columns.pop(name) if kind == 6 else columns[name]
        if b"geo" in metadata and rng.random() < 0.5:
            metadata[b"geo"] = change_json(metadata[b"geo"], rng)
        result = pa.table(columns).replace_schema_metadata(metadata).slice(0, 0 if rng.random() < 0.05 else len(table))
        packing, groups = rng.choice(("none", "snappy", "zstd", "gzip")), rng.choice((1, 2, 1000))
        pq.write_table(result, stream, compression=packing, row_group_size=groups, store_schema=rng.random() < 0.8)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):  # Arrow cannot write this column
        return change_bytes(data, rng)
    return stream.getvalue()


_BY_START: dict[bytes, Callable[[bytes, Random], bytes]]
_BY_START = {b"PK\3": change_zip, b"\x1f\x8b": change_gzip, b"\x93NUMPY": change_npy, b"SQLite": change_sqlite}
_BY_START |= {b"PAR1": change_parquet, b"dphmm-checkpoint": change_checkpoint}
