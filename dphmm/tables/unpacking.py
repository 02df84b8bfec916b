"""How much may come out of a packed file: a few of its bytes can unpack to more than any memory holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from typing import Protocol

from dphmm.errors import ConfigurationError, DataFileError

ALWAYS = 64 << 20
"""What any file may unpack to, in bytes, however small it is."""
PER_BYTE = 50
"""How many bytes one byte of a file may unpack to, beyond `ALWAYS`.

Packed with xz, recorded traces (GPX, OwnTracks, check-ins, GeoLife) were up to 13 times smaller, and releases that this
package writes up to 28 times (GPX).
"""
IN_ALL = 4 << 30
"""What no file may pass, in bytes, however large it is."""

IN_OBJECTS = 1 << 30
"""What the objects that are made of a packed file may take in memory, in bytes, unless more may be unpacked."""

_CHUNK = 1 << 20
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?i?b?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_most: ContextVar[int | None] = ContextVar("dphmm_max_unpacked", default=None)


@contextmanager
def max_unpacked(size: int | str | None) -> Iterator[None]:
    """Let files that are read within the block unpack to so much, instead of what is allowed otherwise.

    That is 50 times what the file holds, at least 64 MiB and at most 4 GiB; it counts for each file, and for an archive
    for all of its members together. What cannot be known beforehand is counted while it is unpacked.

    Parameters
    ----------
    size
        Bytes, or a text such as ``"8GB"`` or ``"512 MiB"`` (both kinds of prefixes mean powers of 1024); None changes
        nothing.

    Raises
    ------
    ConfigurationError
        When it is no size, or not positive.

    Examples
    --------
    >>> with max_unpacked("8GB"):
    ...     Allowance("a.zip", packed=100).most
    8589934592
    >>> Allowance("a.zip", packed=100).most
    67108864
    """
    if size is None:
        yield
        return
    token = _most.set(_bytes(size))
    try:
        yield
    finally:
        _most.reset(token)


def unpacked_at_most() -> int | None:
    """What `max_unpacked` allows here, in bytes; None where nothing was said."""
    return _most.get()


def set_max_unpacked(size: int | None) -> None:
    """Allow in this process, from now on, what `unpacked_at_most` said in the one that it works for."""
    _most.set(size)


def _bytes(size: int | str) -> int:
    matched = _SIZE.fullmatch(str(size).strip())
    count = round(float(matched[1]) * 1024 ** _POWERS[matched[2].lower().rstrip("b").rstrip("i")]) if matched else 0
    if count < 1:
        raise ConfigurationError(f"the most that files may unpack to is {str(size)[:40]!r}; give a size such as 8GB")
    return count


def _shown(size: int) -> str:
    return f"{size >> 20} MiB" if size >> 20 else f"{size} bytes"


class _Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


class Allowance:
    """What may still come out of one file.

    Parameters
    ----------
    source
        The file, as messages name it.
    packed
        Its size in bytes.

    Attributes
    ----------
    most
        What it began with, in bytes.
    """

    def __init__(self, source: str | Path, packed: int) -> None:
        given = _most.get()
        self.source = source
        self.most = min(IN_ALL, max(ALWAYS, PER_BYTE * packed)) if given is None else given
        self._left = self.most

    def take(self, count: int) -> None:
        """Count bytes that are about to be unpacked, or just were.

        Raises
        ------
        DataFileError
            When they are more than is left.
        """
        self._left -= count
        if self._left < 0:
            raise self._refusal(self.most)

    def check_objects(self, count: int, size: int) -> None:
        """Refuse to make so many objects of what was unpacked, of so many bytes each.

        Raises
        ------
        DataFileError
            When they take more than `IN_OBJECTS`, and more than may be unpacked.
        """
        if count * size > max(self.most, IN_OBJECTS):
            raise self._refusal(max(self.most, IN_OBJECTS))

    def _refusal(self, most: int) -> DataFileError:
        return DataFileError(
            self.source,
            f"unpacks to more than {_shown(most)}, out of proportion to its size; if you trust it, allow more with "
            "'dphmm --max-unpacked 8GB …' or dphmm.tables.max_unpacked",
        )

    def whole(self, stream: _Readable) -> bytes:
        """Everything in a stream that unpacks what it reads.

        Raises
        ------
        DataFileError
            As soon as it is more than is left.
        """
        unpacked = BytesIO()
        while chunk := stream.read(_CHUNK):
            self.take(len(chunk))
            unpacked.write(chunk)
        return unpacked.getvalue()


class Counted:
    """A stream whose bytes count.

    Parameters
    ----------
    stream
        What is read.
    allowance
        What its bytes are taken from.
    """

    def __init__(self, stream: _Readable, allowance: Allowance) -> None:
        self._stream, self._allowance = stream, allowance

    def read(self, size: int, /) -> bytes:
        """The next bytes, as the stream gives them."""
        data = self._stream.read(size)
        self._allowance.take(len(data))
        return data
