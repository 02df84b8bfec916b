"""Sources of bytes (files, folders, tar and zip archives), with limits on unpacking.

A few bytes of a packed file can unpack to more than fits in memory. Therefore all unpacked bytes are counted.
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
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from dphmm.errors import ConfigurationError, DataFileError, EmptyDataError, import_library
from dphmm.tables.file_identification import HEAD_BYTES, identify
from dphmm.tables.values import shorten_message
from dphmm.validation import check_arguments


def hash_file(path: str, what: str) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Parameters
    ----------
    path
        The file.
    what
        The option that names the file, for the message.

    Raises
    ------
    DataFileError
        If it cannot be read.
    """
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path {what}") from None


# Number of bytes that a file of any size may unpack to.
MIN_LIMIT_BYTES = 64 << 20
# Number of bytes that one byte of a file may unpack to, above `MIN_LIMIT_BYTES`.
#
# Packed with xz, recorded traces (GPX, OwnTracks, check-ins, GeoLife) were up to 13 times smaller, and releases that
# this package writes up to 28 times (GPX).
MAX_UNPACKING_FACTOR = 50
# Upper bound on the number of bytes that any file may unpack to.
MAX_LIMIT_BYTES = 4 << 30

# Memory for the objects that are built from a packed file, in bytes, unless more may be unpacked.
MAX_OBJECT_BYTES = 1 << 30

_CHUNK_BYTES = 1 << 20
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?i?b?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_max_unpacked: ContextVar[int | None] = ContextVar("dphmm_max_unpacked", default=None)


@contextmanager
def max_unpacked(size: int | str | None) -> Iterator[None]:
    """Set the unpacked size of files that are read within the block.

    By default the limit is 50 times the size of the file, at least 64 MiB and at most 4 GiB. It applies to each file,
    and to all members of an archive together. Sizes that are not known beforehand are counted during unpacking.

    Parameters
    ----------
    size
        Bytes, or a string such as ``"8GB"`` or ``"512 MiB"`` (both types of prefixes denote powers of 1024). None keeps
        the limit.

    Yields
    ------
    None

    Raises
    ------
    ConfigurationError
        If it is not a positive size.

    Examples
    --------
    >>> with max_unpacked("8GB"):
    ...     Allowance("a.zip", packed=100).max_bytes
    8589934592
    >>> Allowance("a.zip", packed=100).max_bytes
    67108864
    """
    if size is None:
        yield
        return
    token = _max_unpacked.set(_parse_size(size))
    try:
        yield
    finally:
        _max_unpacked.reset(token)


def get_max_unpacked() -> int | None:
    """Return the limit that `max_unpacked` set, in bytes. None by default."""
    return _max_unpacked.get()


def set_max_unpacked(size: int | None) -> None:
    """Set the limit of this process, as a worker does with the parent's `get_max_unpacked`."""
    _max_unpacked.set(size)


def _parse_size(size: int | str) -> int:
    matched = _SIZE.fullmatch(str(size).strip())
    count = round(float(matched[1]) * 1024 ** _POWERS[matched[2].lower().rstrip("b").rstrip("i")]) if matched else 0
    if count < 1:
        raise ConfigurationError(f"max_unpacked must be a positive size such as 8GB, got {str(size)[:40]!r}")
    return count


def _format_size(size: int) -> str:
    return f"{size >> 20} MiB" if size >> 20 else f"{size} bytes"


class Allowance:
    """The number of bytes that may still be unpacked from a file.

    Parameters
    ----------
    source
        The file, for messages.
    packed
        Its size in bytes.

    Attributes
    ----------
    max_bytes
        The initial limit, in bytes.
    """

    def __init__(self, source: str | Path, packed: int) -> None:
        limit = _max_unpacked.get()
        self.source = source
        self.max_bytes = (
            min(MAX_LIMIT_BYTES, max(MIN_LIMIT_BYTES, MAX_UNPACKING_FACTOR * packed)) if limit is None else limit
        )
        self._left = self.max_bytes

    def take(self, count: int) -> None:
        """Subtract bytes that are about to be unpacked, or just have been.

        Parameters
        ----------
        count
            The number of bytes.

        Raises
        ------
        DataFileError
            If they exceed the remaining allowance.
        """
        self._left -= count
        if self._left < 0:
            raise self._build_error(self.max_bytes)

    def check_objects(self, count: int, size: int) -> None:
        """Raise an error if the objects to be built from the unpacked bytes take too much memory.

        Parameters
        ----------
        count
            The number of objects.
        size
            The memory of each, in bytes.

        Raises
        ------
        DataFileError
            If they take more than `MAX_OBJECT_BYTES`, and more than may be unpacked.
        """
        if count * size > max(self.max_bytes, MAX_OBJECT_BYTES):
            raise self._build_error(max(self.max_bytes, MAX_OBJECT_BYTES))

    def _build_error(self, limit: int) -> DataFileError:
        return DataFileError(
            self.source,
            f"unpacks to more than {_format_size(limit)}, out of proportion to its size; if you trust it, allow more "
            "with "
            "'dphmm --max-unpacked 8GB …' or dphmm.tables.max_unpacked",
        )

    def read_all(self, stream: ByteStream) -> bytes:
        """Read an unpacking stream to its end.

        Parameters
        ----------
        stream
            The stream.

        Returns
        -------
        bytes
            The content.

        Raises
        ------
        DataFileError
            As soon as it exceeds the remaining allowance.
        """
        unpacked = BytesIO()
        while chunk := stream.read(_CHUNK_BYTES):
            self.take(len(chunk))
            unpacked.write(chunk)
        return unpacked.getvalue()


class ByteStream(Protocol):
    """Anything from which bytes are read in order."""

    def read(self, size: int, /) -> bytes:
        """Read at most a number of bytes. Empty at the end."""


class CountingStream:
    """A stream that subtracts the bytes it reads from an allowance.

    Parameters
    ----------
    stream
        The stream to read.
    allowance
        The allowance.
    """

    def __init__(self, stream: ByteStream, allowance: Allowance) -> None:
        self._stream = stream
        self._allowance = allowance

    def read(self, size: int, /) -> bytes:
        """Read the next bytes and subtract them."""
        data = self._stream.read(size)
        self._allowance.take(len(data))
        return data


class _ZstandardStream:
    """The unpacked content of Zstandard frames.

    Parameters
    ----------
    packed
        A stream of frames.
    """

    # A block of four bytes unpacks to 128 KiB at most: a piece of this size to 32 MiB.
    _PIECE_BYTES = 1024

    def __init__(self, packed: ByteStream) -> None:
        self._library = import_library("zstandard", "files")
        self._packed = packed
        self._frame: Any = None
        self._unpacked = b""

    def read(self, size: int, /) -> bytes:
        """Read at most a number of unpacked bytes.

        Raises
        ------
        EOFError
            If the last frame is cut off.
        zlib.error
            If a frame is damaged.
        """
        piece = b""
        while not self._unpacked:
            piece = piece or self._packed.read(self._PIECE_BYTES)
            if not piece:
                if self._frame is not None:
                    raise EOFError("the last frame is cut off")
                return b""
            self._frame = self._frame or self._library.ZstdDecompressor().decompressobj()
            try:
                self._unpacked = self._frame.decompress(piece)
            except self._library.ZstdError as problem:
                raise zlib.error(shorten_message(problem)) from None
            piece = b""
            if self._frame.eof:
                piece, self._frame = self._frame.unused_data, None
        if piece:  # of the next frame
            self._packed = _Pushed(piece, self._packed)
        part, self._unpacked = self._unpacked[:size], self._unpacked[size:]
        return part


class _Pushed:
    """A stream with bytes before it."""

    def __init__(self, first: bytes, stream: ByteStream) -> None:
        self._first = first
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        """Read at most a number of bytes."""
        part, self._first = self._first[:size], self._first[size:]
        return part or self._stream.read(size)


_PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_TAR_SUFFIXES = (".tar", ".tgz", ".tbz2", ".txz", *(f".tar{suffix}" for suffix in _PACKED_SUFFIXES))
# First bytes of a packed file → function that unpacks it.
_UNPACKERS: Mapping[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"\x28\xb5\x2f\xfd": _ZstandardStream,
}
_MAGIC_BYTES = 8
# A larger file is not loaded before its reader asks for all of it.
_MAX_EAGER_BYTES = 64 << 20
_DAMAGE_ERRORS = (
    *(EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile),
    *(struct.error, UnicodeError, OverflowError),  # raised by zipfile and tarfile for invalid header fields
)


# The message for text in another encoding.
NOT_UTF8 = "is not UTF-8 text; convert it (iconv -f WINDOWS-1252 -t UTF-8, if Windows wrote it)"


@dataclass(frozen=True)
class Document:
    """One file, unpacked.

    Parameters
    ----------
    source
        The file, for messages; for a member of an archive, the archive and the member.
    name
        The path, relative to the folder or archive if there is one.
    content
        The bytes, or a function that opens a stream of them.
    allowance
        The remaining allowance of the file, if it was packed.
    """

    source: str
    name: PurePosixPath
    content: bytes | Callable[[], ByteStream]
    allowance: Allowance | None = field(default=None, repr=False, compare=False)

    @cached_property
    def data(self) -> bytes:
        """The whole content.

        Raises
        ------
        DataFileError
            If it cannot be read, or unpacks to more than `dphmm.tables.max_unpacked` allows.
        """
        return self.content if isinstance(self.content, bytes) else b"".join(self.chunks())

    def chunks(self, size: int = _CHUNK_BYTES) -> Iterator[bytes]:
        """Yield the content in order, without all of it in memory if the file is large.

        Parameters
        ----------
        size
            The largest number of bytes of a chunk.

        Yields
        ------
        bytes
            Chunks, not empty.

        Raises
        ------
        DataFileError
            As for `data`.
        """
        if isinstance(self.content, bytes):
            yield from (self.content[start : start + size] for start in range(0, len(self.content), size))
            return
        with convert_read_errors(self.source):
            stream = self.content()
            try:
                while chunk := stream.read(size):
                    yield chunk
            finally:
                if hasattr(stream, "close"):
                    stream.close()

    def head(self) -> bytes:
        """Return the first bytes of the content, from which it is recognised.

        Returns
        -------
        bytes
            At most `dphmm.tables.file_identification.HEAD_BYTES` bytes.
        """
        return next(self.chunks(HEAD_BYTES), b"")

    def check_objects(self, marks: tuple[bytes, ...], size: int) -> None:
        """Raise an error if the objects to be built from a packed file take too much memory.

        Parameters
        ----------
        marks
            The byte strings that mark the begin or end of an object in the content.
        size
            The memory of an object, in bytes.

        Raises
        ------
        DataFileError
            If they take too much memory; never for a file that was not packed.
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
            If it is not UTF-8; with the line.
        """
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            line = self.data.count(b"\n", 0, problem.start) + 1
            raise DataFileError(self.source, NOT_UTF8, line) from None


@contextmanager
def convert_read_errors(path: str | Path) -> Iterator[None]:
    """Convert read errors within the block to a `DataFileError`, and refuse devices.

    Reading a device may never end.

    ----------
    path
        The file or folder that is read within the block.

    Yields
    ------
    None

    Raises
    ------
    DataFileError
        If the file does not exist, is damaged, or cannot be read.
    """
    if "\0" in str(path):
        raise DataFileError(path, "is not a valid path: it contains a NUL character")
    try:
        mode = Path(path).stat().st_mode if Path(path).exists() else 0
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise DataFileError(path, "is a device; name a file")
        yield
    except FileNotFoundError:
        raise DataFileError(path, "there is no such file or folder; check the path") from None
    except _DAMAGE_ERRORS as problem:
        raise DataFileError(
            path, f"is truncated or damaged ({shorten_message(problem)}); fetch or copy it again"
        ) from None
    except (OSError, RuntimeError, NotImplementedError) as problem:  # the last two: encrypted or unusual zip members
        is_encrypted = isinstance(problem, RuntimeError) and "encrypted" in str(problem)
        reason = (
            "is encrypted; unpack it with its password"
            if is_encrypted
            else f"cannot be read ({shorten_message(problem)})"
        )
        raise DataFileError(path, reason) from None


def get_suffix(name: str | Path | PurePosixPath) -> str:
    """Return the extension in lower case, without that of packed files, such as ``.gz``."""
    return PurePosixPath(remove_packed_suffix(str(name)).lower()).suffix


def remove_packed_suffix(name: str) -> str:
    """Return a name without a final ``.gz``, ``.bz2``, ``.xz`` or ``.zst``."""
    packed = next((suffix for suffix in _PACKED_SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(packed)]


def iterate_member_names(path: str | Path) -> Iterator[str]:
    """Yield the names of the files in a folder or archive, or the file's own name.

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
        If the path does not exist or cannot be read.
    """
    path = Path(path)
    with convert_read_errors(path):
        path.stat()
        for name, _ in _iterate_members(path):
            yield name


@check_arguments
def read_document(path: str | Path) -> Document:
    """Read one file, plain or packed with gzip, bzip2, xz or Zstandard.

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
        If it is missing, unreadable, truncated or damaged, or unpacks to more than `dphmm.tables.max_unpacked`
        allows.
    """
    path = Path(path)
    with convert_read_errors(path):
        size = path.stat().st_size
        allowance = Allowance(path, size)
        name = PurePosixPath(path.absolute().as_posix())
        if is_database_in_use(path):
            return Document(str(path), name, _SQLITE_HEADER, None)
        content: bytes | Callable[[], ByteStream]
        if size > _MAX_EAGER_BYTES:
            content, is_packed = _open_lazily(partial(path.open, "rb"), allowance)
        else:
            packed = path.read_bytes()
            data = _unpack_bytes(packed, allowance)
            content, is_packed = data, data is not packed
        return Document(str(path), name, content, allowance if is_packed else None)


@check_arguments
def documents(path: str | Path, suffixes: Collection[str] | None = None) -> Iterator[Document]:
    """Yield the files of a folder or archive that have one of the suffixes, or a single file.

    Parameters
    ----------
    path
        A file, a folder, or a tar or zip archive.
    suffixes
        The extensions in lower case, with their dots; that of a packed file is ignored. A single file may have any
        suffix. By default all files are yielded, and those of a ZIP archive in a folder or archive instead of it.

    Yields
    ------
    Document
        Files of a folder in the order of their names, members of an archive in its own order.

    Raises
    ------
    DataFileError
        If the input is missing, unreadable, truncated or damaged, or unpacks to more than
        `dphmm.tables.max_unpacked` allows, or a folder or archive contains no such file.
    """
    path = Path(path)
    has_files = False
    with convert_read_errors(path):
        if not (path.is_dir() or is_archive(path)):
            yield read_document(path)
            return
        for name, load in _iterate_members(path, ordered=True):
            if PurePosixPath(name).name.startswith("."):  # macOS adds ._ files
                continue
            if suffixes is None or get_suffix(name) in suffixes:
                has_files = True
                with convert_read_errors(f"{path}/{name}"):
                    document = Document(f"{path}/{name}", PurePosixPath(name), *load())
                    yield from _unzip_document(document) if suffixes is None else (document,)
    if not has_files:
        wanted = "file" if suffixes is None else f"{' or '.join(sorted(suffixes))} file"
        raise EmptyDataError(path, f"contains no {wanted}; check the folder or name the format")


def _unzip_document(document: Document) -> Iterator[Document]:
    """Yield the files of a ZIP archive within another one, or any other file itself."""
    kind = identify(document.head())
    if kind is None or kind.name != "ZIP":
        yield document
        return
    allowance = document.allowance or Allowance(document.source, len(document.data))
    with zipfile.ZipFile(BytesIO(document.data)) as packed:
        for info in packed.infolist():
            if not info.filename.endswith("/") and not PurePosixPath(info.filename).name.startswith("."):
                name = document.name / info.filename
                yield Document(f"{document.source}/{info.filename}", name, *_load_zip_member(packed, info, allowance))


# The content of a `Document`, and the remaining allowance of its packed source.
Content = tuple[bytes | Callable[[], ByteStream], Allowance | None]


def _iterate_members(path: Path, ordered: bool = False) -> Iterator[tuple[str, Callable[[], Content]]]:
    """Yield the name of each file of a folder or archive, or the file's own, with its loader.

    A member must be loaded before the next one is requested.
    """
    if path.is_dir():
        paths = path.rglob("*")
        for file in sorted(paths) if ordered else paths:
            if file.is_file():
                yield file.relative_to(path).as_posix(), partial(_load_file, file)
        return
    allowance = Allowance(path, path.stat().st_size)
    if _is_tar(path):
        with path.open("rb") as packed_file, _open_tar(packed_file, allowance) as archive:
            longest = max(allowance.max_bytes, path.stat().st_size)
            while (member := _read_next_member(archive)) is not None:
                if archive.offset > longest:  # searching the next header would never end
                    allowance.take(archive.offset)
                if member.isfile():
                    yield member.name, partial(_load_tar_member, archive, member, allowance)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            for info in packed.infolist():
                if not info.filename.endswith("/"):
                    yield info.filename, partial(_load_zip_member, packed, info, allowance)
    else:
        yield path.name, partial(_load_file, path)


@contextmanager
def _open_tar(file: Any, allowance: Allowance) -> Iterator[tarfile.TarFile]:
    """Open an archive for reading from begin to end, so that no header can move backwards."""
    start = file.read(8)
    file.seek(0)
    unpacker = _find_unpacker(start)
    stream: Any = file if unpacker is None else CountingStream(unpacker(file), allowance)
    try:
        archive = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115 - closed below
    except _HEADER_ERRORS as problem:
        raise tarfile.ReadError(str(problem)) from None
    with archive:
        yield archive


def _read_next_member(archive: tarfile.TarFile) -> tarfile.TarInfo | None:
    try:
        member = archive.next()
    except _HEADER_ERRORS as problem:
        raise tarfile.ReadError(str(problem)) from None
    archive.members.clear()  # type: ignore[attr-defined] # not needed again, and there may be millions
    return member


# Raised by `tarfile` for extended headers with invalid values.
_HEADER_ERRORS = (ValueError, KeyError, IndexError, TypeError)


def _load_tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo, allowance: Allowance) -> Content:
    if member.issparse():  # the holes of a sparse file are not in the archive
        allowance.take(member.size)
    content = archive.extractfile(member)
    return b"" if content is None else _unpack_bytes(content.read(), allowance), allowance


def _load_zip_member(packed: zipfile.ZipFile, info: zipfile.ZipInfo, allowance: Allowance) -> Content:
    if info.file_size > _MAX_EAGER_BYTES:
        return _open_lazily(lambda: CountingStream(packed.open(info), allowance), allowance)[0], allowance
    with packed.open(info) as content:
        return _unpack_bytes(allowance.read_all(content), allowance), allowance


def _load_file(path: Path) -> Content:
    document = read_document(path)
    return document.content, document.allowance


def is_archive(path: str | Path) -> bool:
    """Return whether a file is a tar or ZIP archive, of which the members are read."""
    return not is_database_in_use(path) and (_is_tar(Path(path)) or zipfile.is_zipfile(path))


def is_database_in_use(path: str | Path) -> bool:
    """Return whether a file belongs to an SQLite database that a process may have opened.

    It must not be opened by other means than SQLite: closing it would drop this process's locks on the database.
    """
    path = Path(path).resolve()  # the other files are next to the file that a link leads to
    name = re.sub("-(wal|shm)$", "", path.name)
    return path.with_name(f"{name}-shm").exists() and path.with_name(name).exists()


_SQLITE_HEADER = b"SQLite format 3\0"


def _is_tar(path: Path) -> bool:
    return path.name.lower().endswith(_TAR_SUFFIXES)


def _find_unpacker(start: bytes) -> Callable[[Any], Any] | None:
    return next((unpack for magic, unpack in _UNPACKERS.items() if start.startswith(magic)), None)


def _unpack_bytes(data: bytes, allowance: Allowance) -> bytes:
    unpacker = _find_unpacker(data[:_MAGIC_BYTES])
    return data if unpacker is None else allowance.read_all(unpacker(BytesIO(data)))


def _open_lazily(opened: Callable[[], Any], allowance: Allowance) -> tuple[Callable[[], ByteStream], bool]:
    """Return a function that opens the unpacked bytes, and whether they are packed."""
    stream = opened()
    unpacker = _find_unpacker(stream.read(_MAGIC_BYTES))
    if hasattr(stream, "close"):
        stream.close()
    if unpacker is None:
        return opened, False
    return lambda: CountingStream(unpacker(opened()), allowance), True
