"""OpenStreetMap extracts from nodes and ways, in the binary format of its wiki."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Tags = Mapping[str, str]


def _encode_number(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _encode_signed(value: int) -> bytes:
    return _encode_number(2 * value if value >= 0 else -2 * value - 1)


def _encode_field(key: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _encode_number(key << 3) + _encode_number(value)
    return _encode_number(key << 3 | 2) + _encode_number(len(value)) + value


def _encode_block(kind: bytes, content: bytes) -> bytes:
    blob = _encode_field(1, content) + _encode_field(2, len(content))
    header = _encode_field(1, kind) + _encode_field(3, len(blob))
    return len(header).to_bytes(4, "big") + header + blob


def write_extract(
    path: Path, nodes: Sequence[tuple[float, float, Tags]], ways: Sequence[tuple[list[int], Tags]]
) -> Path:
    """Nodes are latitudes, longitudes and tags. Ways are numbers of nodes from 0 and tags."""
    texts = [""]

    def encode_tags(tags_of_element: Tags) -> bytes:
        numbers = []
        for texts_of_tags in (tags_of_element.keys(), tags_of_element.values()):
            for text in texts_of_tags:
                if text not in texts:
                    texts.append(text)
            numbers.append(b"".join(_encode_number(texts.index(text)) for text in texts_of_tags))
        return _encode_field(2, numbers[0]) + _encode_field(3, numbers[1]) if tags_of_element else b""

    def encode_degrees(value: float) -> bytes:
        return _encode_signed(round(value * 1e7))

    group = b""
    for number, (latitude, longitude, tags_of_element) in enumerate(nodes, 1):
        where = _encode_number(8 << 3) + encode_degrees(latitude) + _encode_number(9 << 3) + encode_degrees(longitude)
        group += _encode_field(
            1, _encode_number(1 << 3) + _encode_signed(number) + encode_tags(tags_of_element) + where
        )
    for number, (corners, tags_of_element) in enumerate(ways, 1):
        moves = [corner - before for corner, before in zip(corners, [-1, *corners], strict=False)]
        group += _encode_field(
            3,
            _encode_field(1, number)
            + encode_tags(tags_of_element)
            + _encode_field(8, b"".join(map(_encode_signed, moves))),
        )
    table = b"".join(_encode_field(1, text.encode()) for text in texts)
    header = _encode_block(b"OSMHeader", _encode_field(4, b"OsmSchema-V0.6"))
    path.write_bytes(header + _encode_block(b"OSMData", _encode_field(1, table) + _encode_field(2, group)))
    return path
