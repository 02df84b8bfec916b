"""Structures in Thrift's compact protocol, which Parquet's headers are in, read without knowing their fields."""

from __future__ import annotations

from typing import Any

Fields = dict[int, Any]
"""A field's number → a whole number, a truth, bytes, a list, or the fields of a structure; the last of each number."""

_DEEPEST = 16
_TRUE, _FALSE, _BYTE, _SHORT, _INT, _LONG, _DOUBLE, _BYTES, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def read_fields(data: bytes | memoryview, at: int) -> tuple[Fields, int]:
    """The fields of a structure, and where it ends.

    Raises
    ------
    IndexError
        When the bytes end before it, or are no such structure.
    """
    return _struct(data, at, _DEEPEST)


def _struct(data: Any, at: int, depth: int) -> tuple[Fields, int]:
    name, found = 0, Fields()
    while head := data[at]:
        kind, step = head & 15, head >> 4
        at += 1
        if step:
            name += step
        else:
            name, at = _number(data, at)
        if kind in (_TRUE, _FALSE):
            found[name] = kind == _TRUE
        else:
            found[name], at = _value(data, at, kind, depth - 1)
    return found, at + 1


def _value(data: Any, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth == 0 or not 0 <= at <= len(data):
        raise IndexError
    if kind in (_SHORT, _INT, _LONG):
        return _number(data, at)
    if kind in (_TRUE, _FALSE, _BYTE):  # of a list
        return data[at], at + 1
    if kind == _DOUBLE:
        return None, at + 8
    if kind == _BYTES:
        length, at = _varint(data, at)
        if length > len(data) - at:
            raise IndexError
        return bytes(data[at : at + length]), at + length
    if kind in (_LIST, _SET):
        return _list(data, at, depth)
    if kind == _STRUCT:
        return _struct(data, at, depth)
    raise IndexError  # a map, which no header has, or nothing


def _list(data: Any, at: int, depth: int) -> tuple[list[Any], int]:
    head, at = data[at], at + 1
    count, kind = head >> 4, head & 15
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at:  # each entry takes a byte at least
        raise IndexError
    found = []
    for _ in range(count):
        entry, at = _value(data, at, kind, depth - 1)
        found.append(entry)
    return found, at


def _number(data: Any, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise IndexError
