"""Where bytes come from: a file, plain or gzipped, a folder, or a tar or zip archive; and how much may be unpacked.

A few bytes of a packed file can unpack to more than any memory holds, so everything that is unpacked is counted.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.tables.values import one_line


def file_hash(path: str, what: str) -> str:
    """The SHA-256 of a file's content, in hexadecimal.

    Parameters
    ----------
    path
        The file.
    what
        What names it, for the message.

    Raises
    ------
    DataFileError
        When it cannot be read.
    """
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path {what}") from None


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
    """Set what files that are read within the block may unpack to, in place of the limits.

    The limits are 50 times what the file holds, at least 64 MiB and at most 4 GiB, for each file, and for
    all members of an archive together. What cannot be known beforehand is counted while it is unpacked.

    Parameters
    ----------
    size
        Bytes, or a text such as ``"8GB"`` or ``"512 MiB"`` (both kinds of prefixes mean powers of 1024); None changes
        nothing.

    Yields
    ------
    None

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
    """Return what `max_unpacked` allows here, in bytes; None where it was not called."""
    return _most.get()


def set_max_unpacked(size: int | None) -> None:
    """Set the limit of this process, from now on: a worker takes over what `unpacked_at_most` returned elsewhere."""
    _most.set(size)


def _bytes(size: int | str) -> int:
    matched = _SIZE.fullmatch(str(size).strip())
    count = round(float(matched[1]) * 1024 ** _POWERS[matched[2].lower().rstrip("b").rstrip("i")]) if matched else 0
    if count < 1:
        raise ConfigurationError(f"the most that files may unpack to is {str(size)[:40]!r}; give a size such as 8GB")
    return count


def _shown(size: int) -> str:
    return f"{size >> 20} MiB" if size >> 20 else f"{size} bytes"


class Allowance:
    """How many more bytes may be unpacked from one file.

    Parameters
    ----------
    source
        The file, as messages name it.
    packed
        Its size in bytes.

    Attributes
    ----------
    most
        The limit it began with, in bytes.
    """

    def __init__(self, source: str | Path, packed: int) -> None:
        given = _most.get()
        self.source = source
        self.most = min(IN_ALL, max(ALWAYS, PER_BYTE * packed)) if given is None else given
        self._left = self.most

    def take(self, count: int) -> None:
        """Subtract bytes that are about to be unpacked, or just were.

        Parameters
        ----------
        count
            The number of bytes.

        Raises
        ------
        DataFileError
            When they are more than is left.
        """
        self._left -= count
        if self._left < 0:
            raise self._refusal(self.most)

    def check_objects(self, count: int, size: int) -> None:
        """Refuse to make a number of objects out of what was unpacked.

        Parameters
        ----------
        count
            The number of objects.
        size
            The bytes that each takes in memory.

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

    def whole(self, stream: IO[bytes] | gzip.GzipFile) -> bytes:
        """Read a stream that unpacks what it reads to its end.

        Parameters
        ----------
        stream
            The stream.

        Returns
        -------
        bytes
            All of it.

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
    """A stream whose bytes are subtracted from an allowance.

    Parameters
    ----------
    stream
        What is read.
    allowance
        What its bytes are subtracted from.
    """

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, allowance: Allowance) -> None:
        self._stream, self._allowance = stream, allowance

    def read(self, size: int, /) -> bytes:
        """Read the next bytes and subtract them."""
        data = self._stream.read(size)
        self._allowance.take(len(data))
        return data


_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_GZIP_MAGIC = b"\x1f\x8b"
_UNPACKERS: Mapping[bytes, Callable[[Any], Any]] = {_GZIP_MAGIC: gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""How a packed file begins → what unpacks it."""
_DAMAGE = (
    *(EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile),
    *(struct.error, UnicodeError, OverflowError),  # of zipfile and tarfile, for fields of headers that cannot be
)


@dataclass(frozen=True)
class Document:
    """The bytes of one file, unpacked.

    Parameters
    ----------
    source
        The file as messages name it; for a member of an archive, the archive and the member.
    name
        The path, inside the folder or archive where there is one.
    data
        The content.
    allowance
        What may still be unpacked from the file, where it was packed.
    """

    source: str
    name: PurePosixPath
    data: bytes
    allowance: Allowance | None = field(default=None, repr=False, compare=False)

    def check_objects(self, marks: tuple[bytes, ...], size: int) -> None:
        """Refuse a packed file out of which more objects would be made than memory is allowed for.

        Parameters
        ----------
        marks
            What stands in the content wherever an object begins or ends.
        size
            The bytes that an object takes in memory.

        Raises
        ------
        DataFileError
            When they take too much; never for a file that was not packed.
        """
        if self.allowance is not None:
            self.allowance.check_objects(sum(map(self.data.count, marks)), size)

    def text(self) -> str:
        """Decode the content as UTF-8, with or without a byte order mark.

        Returns
        -------
        str
            The text, without the mark.

        Raises
        ------
        DataFileError
            When it is not UTF-8; with the line.
        """
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            line = self.data.count(b"\n", 0, problem.start) + 1
            raise DataFileError(self.source, "is not UTF-8 text; convert it", line) from None


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turn what can go wrong in reading into a `DataFileError` of one line; refuse devices, which may never end.

    Parameters
    ----------
    path
        The file or folder that is read within the block.

    Yields
    ------
    None

    Raises
    ------
    DataFileError
        When there is no such file, it is damaged, or cannot be read.
    """
    if "\0" in str(path):
        raise DataFileError(path, "is no path, since it holds a NUL character; correct it")
    try:
        mode = Path(path).stat().st_mode if Path(path).exists() else 0
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise DataFileError(path, "is a device; name a file")
        yield
    except FileNotFoundError:
        raise DataFileError(path, "there is no such file or folder; check the path") from None
    except _DAMAGE as problem:
        raise DataFileError(path, f"is truncated or damaged ({one_line(problem)}); fetch or copy it again") from None
    except (OSError, RuntimeError, NotImplementedError) as problem:  # the last two: encrypted or exotic zip members
        raise DataFileError(path, f"cannot be read ({one_line(problem)})") from None


def suffix_of(name: str | Path | PurePosixPath) -> str:
    """Return the extension in lower case, without the ``.gz`` that may follow it."""
    return PurePosixPath(str(name).lower().removesuffix(".gz")).suffix


def member_names(path: str | Path) -> Iterator[str]:
    """Yield the names of the files in a folder or archive, or the file's own name, as they are met.

    Parameters
    ----------
    path
        The file, folder or archive.

    Yields
    ------
    str
        A name, relative to the folder or archive.

    Raises
    ------
    DataFileError
        When the path does not exist or cannot be read.
    """
    path = Path(path)
    with readable(path):
        path.stat()
        for name, _ in _members(path):
            yield name


@checked
def read_document(path: str | Path) -> Document:
    """Read one file, plain or gzipped.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Document
        Its bytes, unpacked.

    Raises
    ------
    DataFileError
        When it is missing, unreadable, truncated or damaged, or unpacks to more than `dphmm.tables.max_unpacked`
        allows.
    """
    path = Path(path)
    with readable(path):
        packed = path.read_bytes()
        allowance = Allowance(path, len(packed))
        data = _unpacked(packed, allowance)
        name = PurePosixPath(path.absolute().as_posix())
        return Document(str(path), name, data, None if data is packed else allowance)


@checked
def documents(path: str | Path, suffixes: Collection[str]) -> Iterator[Document]:
    """Yield the files with one of the suffixes in a folder or archive; or the one file, whatever its suffix.

    Parameters
    ----------
    path
        A file, a folder, or a tar or zip archive.
    suffixes
        The extensions in lower case, with their dots; a ``.gz`` after them is passed over.

    Yields
    ------
    Document
        Those of a folder in the order of their names, those of an archive in its own order.

    Raises
    ------
    DataFileError
        When something is missing, unreadable, truncated or damaged, or unpacks to more than
        `dphmm.tables.max_unpacked` allows, or a folder or archive holds no such file.
    """
    path, found = Path(path), False
    with readable(path):
        if not (path.is_dir() or _is_tar(path) or zipfile.is_zipfile(path)):
            yield read_document(path)
            return
        for name, load in _members(path, ordered=True):
            if not PurePosixPath(name).name.startswith(".") and suffix_of(name) in suffixes:  # macOS packs ._ twins
                found = True
                with readable(f"{path}/{name}"):
                    yield Document(f"{path}/{name}", PurePosixPath(name), *load())
    if not found:
        raise DataFileError(path, f"holds no {' or '.join(sorted(suffixes))} file; check the folder or name the format")


Content = tuple[bytes, Allowance | None]
"""The bytes of a file, unpacked, and what may still come out of what it was packed in."""


def _members(path: Path, ordered: bool = False) -> Iterator[tuple[str, Callable[[], Content]]]:
    """Yield the name of each file of a folder or archive, or the file's own, with a function that loads it.

    A member is loaded before the next one is asked for.
    """
    if path.is_dir():
        found = path.rglob("*")
        for file in sorted(found) if ordered else found:
            if file.is_file():
                yield file.relative_to(path).as_posix(), partial(_of_file, file)
        return
    allowance = Allowance(path, path.stat().st_size)
    if _is_tar(path):
        with path.open("rb") as packed_file, _tar(packed_file, allowance) as archive:
            longest = max(allowance.most, path.stat().st_size)
            while (member := _next_member(archive)) is not None:
                if archive.offset > longest:  # on the way to the next header it would read on for ever
                    allowance.take(archive.offset)
                if member.isfile():
                    yield member.name, partial(_of_tar, archive, member, allowance)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            for info in packed.infolist():
                if not info.filename.endswith("/"):
                    yield info.filename, partial(_of_zip, packed, info, allowance)
    else:
        yield path.name, partial(_of_file, path)


@contextmanager
def _tar(file: Any, allowance: Allowance) -> Iterator[tarfile.TarFile]:
    """An archive read from its beginning to its end, so that no header can send the reader back."""
    start = file.read(8)
    file.seek(0)
    unpacker = next((unpack for magic, unpack in _UNPACKERS.items() if start.startswith(magic)), None)
    stream: Any = file if unpacker is None else Counted(unpacker(file), allowance)
    try:
        archive = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115 - closed below
    except _NO_NUMBER as problem:
        raise tarfile.ReadError(str(problem)) from None
    with archive:
        yield archive


def _next_member(archive: tarfile.TarFile) -> tarfile.TarInfo | None:
    try:
        member = archive.next()
    except _NO_NUMBER as problem:
        raise tarfile.ReadError(str(problem)) from None
    archive.members.clear()  # type: ignore[attr-defined] # which are not asked for again, and may be millions
    return member


_NO_NUMBER = (ValueError, KeyError, IndexError, TypeError)
"""What `tarfile` makes of extended headers whose values are none."""


def _of_tar(archive: tarfile.TarFile, member: tarfile.TarInfo, allowance: Allowance) -> Content:
    if member.issparse():  # whose holes are not in the archive
        allowance.take(member.size)
    content = archive.extractfile(member)
    return b"" if content is None else _unpacked(content.read(), allowance), allowance


def _of_zip(packed: zipfile.ZipFile, info: zipfile.ZipInfo, allowance: Allowance) -> Content:
    with packed.open(info) as content:
        return _unpacked(allowance.whole(content), allowance), allowance


def _of_file(path: Path) -> Content:
    document = read_document(path)
    return document.data, document.allowance


def _is_tar(path: Path) -> bool:
    return path.name.lower().endswith(_TAR_SUFFIXES)


def _unpacked(data: bytes, allowance: Allowance) -> bytes:
    return allowance.whole(gzip.open(BytesIO(data))) if data.startswith(_GZIP_MAGIC) else data
