"""Noise that follows from a secret key: the same again after a crash, and beyond reach when the key is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from pathlib import Path

from dphmm.arrays import RandomSource
from dphmm.errors import DataFileError
from dphmm.tables import new_file

KEY = "PRIVATE-key"
"""The file that a run keeps its key in for as long as it is unfinished. With it the noise can be taken away."""

_BYTES = 32


def folder_key(folder: Path) -> bytes:
    """The key of the run in a folder, drawn from the operating system's randomness where there is none yet.

    Raises
    ------
    DataFileError
        When the file there holds no key.
    OutputError
        When it cannot be written.
    """
    path = folder / KEY
    if not path.exists():
        with new_file(path, private=True) as part:
            part.write_bytes(os.urandom(_BYTES))
    try:
        key = path.read_bytes()
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None
    if len(key) != _BYTES:
        raise DataFileError(path, f"holds {len(key)} bytes and no key; begin again in a new folder")
    return key


def keyed_source(key: bytes, *label: bytes) -> RandomSource:
    """Random bytes that follow from a key and a label, and tell nothing of either nor of the bytes under other labels.

    They are BLAKE2b, keyed, of a counter. As long as that cannot be told from a random function they are as good as the
    operating system's own, which stretches a seed likewise.

    Parameters
    ----------
    key
        32 random bytes.
    label
        What the bytes are for. Everything that the noise will be added to must be in it: the same noise on two
        different places would tell the difference between them.
    """
    name = blake2b(key=key, person=b"dphmm-noise")
    for part in label:
        name.update(len(part).to_bytes(8, "little") + part)
    return RandomSource(_Stream(_blocks(name.digest())).read)


def _blocks(key: bytes) -> Iterator[bytes]:
    return (blake2b(number.to_bytes(16, "little"), key=key).digest() for number in count())


class _Stream:
    """Bytes out of blocks, in order, however many are asked for at a time."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._held = b""

    def read(self, size: int) -> bytes:
        parts, there = [self._held], len(self._held)
        while there < size:
            parts.append(next(self._blocks))
            there += len(parts[-1])
        whole = b"".join(parts)
        self._held = whole[size:]
        return whole[:size]
