"""Where bytes come from: a file, plain or gzipped, a folder, or a tar or zip archive of one."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

from dphmm.arguments import checked
from dphmm.errors import DataFileError
from dphmm.tables.unpacking import Allowance, Counted
from dphmm.tables.values import one_line

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
    """One file's bytes, unpacked.

    Parameters
    ----------
    source
        How messages name it; for a member of an archive, the archive and the member.
    name
        The path, inside the folder or archive where there is one.
    data
        The content.
    allowance
        What may still come out of the file, where it was packed.
    """

    source: str
    name: PurePosixPath
    data: bytes
    allowance: Allowance | None = field(default=None, repr=False, compare=False)

    def check_objects(self, marks: tuple[bytes, ...], size: int) -> None:
        """Refuse a packed file of which more objects would be made than memory is allowed for.

        Parameters
        ----------
        marks
            What stands in the content wherever an object begins or ends.
        size
            What an object takes, in bytes.

        Raises
        ------
        DataFileError
            When they take too much; never of a file that was not packed.
        """
        if self.allowance is not None:
            self.allowance.check_objects(sum(map(self.data.count, marks)), size)

    def text(self) -> str:
        """The content as UTF-8 text, with or without a byte order mark.

        Raises
        ------
        DataFileError
            When it is none; with the line.
        """
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            line = self.data.count(b"\n", 0, problem.start) + 1
            raise DataFileError(self.source, "is not UTF-8 text; convert it", line) from None


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turns what can go wrong in reading into a `DataFileError` of one line; refuses devices, which may never end."""
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
    """The extension in lower case, without the ``.gz`` that may follow it."""
    return PurePosixPath(str(name).lower().removesuffix(".gz")).suffix


def member_names(path: str | Path) -> Iterator[str]:
    """The names of the files in a folder or archive, or the file's own, one after another as they are met.

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
    """One file, plain or gzipped.

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
    """The files with one of the suffixes in a folder or archive; or the one file, whatever its suffix.

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
    """The names of a folder's or archive's files, or the file's own, each with what loads it.

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
