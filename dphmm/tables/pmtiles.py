"""An archive of map tiles (PMTiles, version 3): its header, and the tiles of a box, one after another.

Every offset is looked at before it is believed, and what is unpacked is counted. After the specification that the
Protomaps project publishes.
"""

from __future__ import annotations

import gzip
import math
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from dphmm.errors import DataFileError
from dphmm.tables.unpacking import Allowance

Directory = list[list[int]]

_HEADER = 127
_DEEPEST = 4
"""Directories in one another that are read; archives in the wild have two."""
_MOST_ENTRIES = 4_000_000
_LONGEST_TILE = 16 << 20
_PLAIN, _GZIP = 1, 2
_VECTOR = 1


class TileArchive:
    """An archive of vector tiles that is open.

    Parameters
    ----------
    path
        The file.
    stream
        Its bytes.

    Raises
    ------
    DataFileError
        When it is no such archive, or packed otherwise than with gzip.
    """

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path, self._stream, self._size = path, stream, path.stat().st_size
        self._header = header = stream.read(_HEADER)
        self._allowance = Allowance(str(path), self._size)
        self._leaves: dict[int, Directory] = {}
        if len(header) < _HEADER or header[:8] != b"PMTiles\3":
            raise DataFileError(path, "is no PMTiles archive of version 3; extract one with the pmtiles tool")
        if header[99] != _VECTOR:
            raise DataFileError(path, "holds pictures and no vector tiles; give an archive of vector tiles")
        if header[97] not in (_PLAIN, _GZIP) or header[98] not in (_PLAIN, _GZIP):
            raise DataFileError(path, "is packed otherwise than with gzip; convert it with the pmtiles tool")

    @property
    def zooms(self) -> tuple[int, int]:
        """The least and the greatest zoom."""
        return self._header[100], self._header[101]

    def about(self) -> bytes:
        """What the archive says of itself, as JSON."""
        return self._read(self._number(24), self._number(32), self._header[97])

    def tiles(self, zoom: int, columns: range, rows: range) -> Iterator[tuple[int, int, bytes]]:
        """The tiles of a zoom that lie in columns and rows, and are there: column, row and content."""
        root = self._directory(self._number(8), self._number(16))
        for column in columns:
            for row in rows:
                found = self._find(root, _tile_number(zoom, column, row), 0)
                if found is not None:
                    at, length = found
                    if length > _LONGEST_TILE:
                        raise DataFileError(self.path, f"has a tile of {length:,} bytes; extract it anew")
                    yield column, row, self._read(self._number(56) + at, length, self._header[98])

    def _number(self, at: int) -> int:
        return int.from_bytes(self._header[at : at + 8], "little")

    def _read(self, at: int, length: int, packed: int) -> bytes:
        if at + length > self._size:
            raise DataFileError(self.path, "is cut off, or damaged; extract it anew")
        self._stream.seek(at)
        data = self._stream.read(length)
        return data if packed == _PLAIN else self._unzipped(data)

    def _directory(self, at: int, length: int) -> Directory:
        """Tile numbers, how many tiles each stands for (0: a directory), lengths and offsets."""
        data = self._read(at, length, self._header[97])
        count, place = _varint(self.path, data, 0)
        if count > min(_MOST_ENTRIES, len(data)):
            raise DataFileError(self.path, f"has a directory of {count:,} entries; extract it anew")
        columns: list[list[int]] = []
        for column in range(4):
            values: list[int] = []
            last = 0
            for entry in range(count):
                value, place = _varint(self.path, data, place)
                if column == 0:
                    last += value
                    value = last
                elif column == 3:
                    value = value - 1 if value else (columns[2][entry - 1] + values[-1] if entry else 0)
                values.append(value)
            columns.append(values)
        return columns

    def _find(self, directory: Directory, number: int, depth: int) -> tuple[int, int] | None:
        """Where a tile is among the tiles, and how long it is."""
        if depth > _DEEPEST:
            raise DataFileError(self.path, "has directories in one another without an end; extract it anew")
        numbers, runs, lengths, offsets = directory
        entry = bisect_right(numbers, number) - 1
        if entry < 0:
            return None
        if runs[entry]:
            return (offsets[entry], lengths[entry]) if number < numbers[entry] + runs[entry] else None
        at = offsets[entry]
        if at not in self._leaves:
            self._leaves[at] = self._directory(self._number(40) + at, lengths[entry])
        return self._find(self._leaves[at], number, depth + 1)

    def _unzipped(self, data: bytes) -> bytes:
        try:
            return self._allowance.whole(gzip.open(BytesIO(data)))
        except (OSError, EOFError, zlib.error):
            raise DataFileError(self.path, "holds a part that is damaged; extract it anew") from None


def _varint(path: Path, data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= len(data) or shift > 63:
            raise DataFileError(path, "has a directory that is damaged; extract it anew")
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


def _tile_number(zoom: int, column: int, row: int) -> int:
    """The place of a tile on Hilbert's curve, after all tiles of lesser zooms.

    Examples
    --------
    >>> [_tile_number(1, column, row) for column, row in ((0, 0), (0, 1), (1, 1), (1, 0))]
    [1, 2, 3, 4]
    """
    before, number, x, y = ((1 << 2 * zoom) - 1) // 3, 0, column, row
    side = 1 << zoom
    half = side >> 1
    while half:
        right, down = int(bool(x & half)), int(bool(y & half))
        number += half * half * ((3 * right) ^ down)
        if not down:
            if right:
                x, y = side - 1 - x, side - 1 - y
            x, y = y, x
        half >>= 1
    return before + number


def tiles_of_box(box: tuple[float, float, float, float], zoom: int) -> tuple[range, range]:
    """The columns and rows of a zoom that a box of degrees (south, west, north, east) meets."""
    south, west, north, east = box
    side = 1 << zoom

    def column(longitude: float) -> int:
        return min(max(math.floor((longitude + 180) / 360 * side), 0), side - 1)

    def row(latitude: float) -> int:
        angle = math.radians(min(max(latitude, -85.05), 85.05))
        return min(max(math.floor((0.5 - math.asinh(math.tan(angle)) / math.tau) * side), 0), side - 1)

    return range(column(west), column(east) + 1), range(row(north), row(south) + 1)
