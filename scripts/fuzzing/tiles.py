"""Vector tiles and archives of them, written by their specifications (MVT 2.1, PMTiles 3), for seeds and tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

Ring = Sequence[tuple[int, int]]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def folded(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def field(key: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(key << 3) + varint(value)
    return varint(key << 3 | 2) + varint(len(value)) + value


def geometry(kind: int, parts: Sequence[Ring]) -> bytes:
    out, x, y = b"", 0, 0
    for part in parts:
        for at, (a, b) in enumerate(part):
            if at < 2:
                out += varint(1 | 1 << 3 if at == 0 else 2 | (len(part) - 1) << 3)
            out += varint(folded(a - x)) + varint(folded(b - y))
            x, y = a, b
        if kind == 3:
            out += varint(7 | 1 << 3)
    return out


def tile(layers: Mapping[str, Sequence[tuple[int, Sequence[Ring], Mapping[str, str]]]], extent: int = 4096) -> bytes:
    """A tile: layer → features, each its kind, its parts and its texts."""
    out = b""
    for name, features in layers.items():
        words = sorted({word for _, _, said in features for pair in said.items() for word in pair})
        body = field(15, 2) + field(1, name.encode())
        for kind, parts, said in features:
            tags = b"".join(varint(words.index(word)) for pair in said.items() for word in pair)
            body += field(2, field(2, tags) + field(3, kind) + field(4, geometry(kind, parts)))
        body += b"".join(field(3, word.encode()) for word in words)
        body += b"".join(field(4, field(1, word.encode())) for word in words) + field(5, extent)
        out += field(3, body)
    return out


def directory(entries: Sequence[tuple[int, int, int, int]]) -> bytes:
    """Entries as they are stored: tile number, run (0: another directory), length, offset."""
    out, last = varint(len(entries)), 0
    for number, *_ in entries:
        out, last = out + varint(number - last), number
    for column in (1, 2):
        out += b"".join(varint(entry[column]) for entry in entries)
    for at, (_, _, _, offset) in enumerate(entries):
        follows = at and entries[at - 1][3] + entries[at - 1][2] == offset
        out += varint(0 if follows else offset + 1)
    return out


def archive(tiles: Mapping[int, bytes], zooms: tuple[int, int], about: Any = None, leaves: int = 0) -> bytes:
    """An archive of tiles by their numbers, packed with gzip; with leaves, so many tiles in each directory below."""
    contents = [gzip.compress(content, mtime=0) for _, content in sorted(tiles.items())]
    entries, at = [], 0
    for number, content in zip(sorted(tiles), contents, strict=True):
        entries.append((number, 1, len(content), at))
        at += len(content)
    below = b""
    if leaves:
        parts = [entries[first : first + leaves] for first in range(0, len(entries), leaves)]
        entries = []
        for part in parts:
            packed = gzip.compress(directory(part), mtime=0)
            entries.append((part[0][0], 0, len(packed), len(below)))
            below += packed
    root = gzip.compress(directory(entries), mtime=0)
    said = gzip.compress(json.dumps(about or {}).encode(), mtime=0)
    sizes, places = [len(root), len(said), len(below), at], [127]
    for size in sizes[:-1]:
        places.append(places[-1] + size)
    header = b"PMTiles\3" + b"".join(n.to_bytes(8, "little") for pair in zip(places, sizes, strict=True) for n in pair)
    header += len(tiles).to_bytes(8, "little") * 3 + bytes((1, 2, 2, 1, *zooms)) + bytes(25)
    return header + root + said + below + b"".join(contents)
