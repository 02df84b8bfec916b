"""The layers of a vector tile (Mapbox Vector Tile 2.1, a protocol buffer), read without believing a length in it."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Parts = list[npt.NDArray[np.int64]]


class TileFeature(NamedTuple):
    """A feature of a tile.

    Attributes
    ----------
    layer
        The layer that it is in.
    properties
        What it says of itself.
    kind
        1 for points, 2 for lines, 3 for polygons.
    parts
        Its points, lines or rings, each ``(k, 2)``, in units of the tile: down and right from its north-western corner.
        A ring does not come back to its first point.
    extent
        How many units a tile is wide.
    """

    layer: str
    properties: dict[str, Any]
    kind: int
    parts: Parts
    extent: int


def tile_features(data: bytes, without: Collection[str] = ()) -> Iterator[TileFeature]:
    """The features of a tile, but for those of some layers.

    Raises
    ------
    ValueError
        When the bytes are none of a tile.
    """
    for key, value in _fields(data):
        if key == 3 and isinstance(value, bytes):
            yield from _layer(value, without)


def _layer(data: bytes, without: Collection[str]) -> Iterator[TileFeature]:
    name, extent, features = "", 4096, []
    keys: list[str] = []
    values: list[Any] = []
    for key, value in _fields(data):
        if key == 1 and isinstance(value, bytes):
            name = _text(value)
            if name in without:
                return
        elif key == 2 and isinstance(value, bytes):
            features.append(value)
        elif key == 3 and isinstance(value, bytes):
            keys.append(_text(value))
        elif key == 4 and isinstance(value, bytes):
            values.append(_value(value))
        elif key == 5 and isinstance(value, int):
            extent = value
    if not 1 <= extent <= 1 << 20:
        raise ValueError(f"a layer of {extent} units")
    for feature in features:
        tags: list[int] = []
        kind, parts = 0, []
        for key, value in _fields(feature):
            if key == 2 and isinstance(value, bytes):
                tags = _varints(value)
            elif key == 3 and isinstance(value, int):
                kind = value
            elif key == 4 and isinstance(value, bytes):
                parts = _parts(_varints(value))
        if len(tags) % 2 or max(tags[::2], default=-1) >= len(keys) or max(tags[1::2], default=-1) >= len(values):
            raise ValueError("a property that its layer does not have")
        properties = {keys[a]: values[b] for a, b in zip(tags[::2], tags[1::2], strict=True)}
        yield TileFeature(name, properties, kind, parts, extent)


def _value(data: bytes) -> Any:
    for key, value in _fields(data):
        if key == 1 and isinstance(value, bytes):
            return _text(value)
        if key in (2, 3) and isinstance(value, bytes):
            return struct.unpack("<f" if key == 2 else "<d", value)[0]
        if key in (4, 5) and isinstance(value, int):
            return value
        if key == 6 and isinstance(value, int):
            return _unfolded(value)
        if key == 7 and isinstance(value, int):
            return bool(value)
    return None


def _parts(numbers: list[int]) -> Parts:
    """What commands draw: moves begin a part, lines go on with it, a close ends it."""
    found: list[list[tuple[int, int]]] = []
    x = y = at = 0
    while at < len(numbers):
        command, count = numbers[at] & 7, numbers[at] >> 3
        at += 1
        if command == 7:
            continue
        if command not in (1, 2) or at + 2 * count > len(numbers) or (command == 2 and not found):
            raise ValueError("a geometry that is damaged")
        for _ in range(count):
            x, y, at = x + _unfolded(numbers[at]), y + _unfolded(numbers[at + 1]), at + 2
            if command == 1:
                found.append([])
            found[-1].append((x, y))
    if found and max(max(abs(a), abs(b)) for part in found for a, b in part) > 1 << 40:
        raise ValueError("a geometry that lies nowhere")
    return [np.array(part, dtype=np.int64) for part in found]


def _unfolded(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _varints(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number that is cut off")
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: their numbers, and whole numbers or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            length, at = _varint(data, at)
        if length is None or at + length > len(data):
            raise ValueError("a field that is cut off")
        yield key >> 3, data[at : at + length]
        at += length
