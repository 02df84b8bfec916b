"""OpenStreetMap extracts from nodes and ways, in the binary format of its wiki."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Tags = Mapping[str, str]


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _signed(value: int) -> bytes:
    return _number(2 * value if value >= 0 else -2 * value - 1)


def _field(key: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _number(key << 3) + _number(value)
    return _number(key << 3 | 2) + _number(len(value)) + value


def _block(kind: bytes, content: bytes) -> bytes:
    blob = _field(1, content) + _field(2, len(content))
    header = _field(1, kind) + _field(3, len(blob))
    return len(header).to_bytes(4, "big") + header + blob


def write_extract(
    path: Path, nodes: Sequence[tuple[float, float, Tags]], ways: Sequence[tuple[list[int], Tags]]
) -> Path:
    """Nodes are latitudes, longitudes and tags. Ways are numbers of nodes from 0 and tags."""
    texts = [""]

    def tags(tags_of_element: Tags) -> bytes:
        numbers = []
        for texts_of_tags in (tags_of_element.keys(), tags_of_element.values()):
            for text in texts_of_tags:
                if text not in texts:
                    texts.append(text)
            numbers.append(b"".join(_number(texts.index(text)) for text in texts_of_tags))
        return _field(2, numbers[0]) + _field(3, numbers[1]) if tags_of_element else b""

    def degrees(value: float) -> bytes:
        return _signed(round(value * 1e7))

    group = b""
    for number, (latitude, longitude, tags_of_element) in enumerate(nodes, 1):
        where = _number(8 << 3) + degrees(latitude) + _number(9 << 3) + degrees(longitude)
        group += _field(1, _number(1 << 3) + _signed(number) + tags(tags_of_element) + where)
    for number, (corners, tags_of_element) in enumerate(ways, 1):
        moves = [corner - before for corner, before in zip(corners, [-1, *corners], strict=False)]
        group += _field(3, _field(1, number) + tags(tags_of_element) + _field(8, b"".join(map(_signed, moves))))
    table = b"".join(_field(1, text.encode()) for text in texts)
    header = _block(b"OSMHeader", _field(4, b"OsmSchema-V0.6"))
    path.write_bytes(header + _block(b"OSMData", _field(1, table) + _field(2, group)))
    return path
