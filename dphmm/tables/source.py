"""Where bytes come from: a file, plain or gzipped, a folder, or a tar or zip archive of one."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from dphmm.errors import DataFileError
from dphmm.tables.values import one_line

_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_GZIP_MAGIC = b"\x1f\x8b"


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
    """

    source: str
    name: PurePosixPath
    data: bytes

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
    """Turns what can go wrong in reading into a `DataFileError` of one line."""
    try:
        yield
    except FileNotFoundError:
        raise DataFileError(path, "there is no such file or folder; check the path") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile) as problem:
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


def read_document(path: str | Path) -> Document:
    """One file, plain or gzipped.

    Raises
    ------
    DataFileError
        When it is missing, unreadable, truncated or damaged.
    """
    path = Path(path)
    with readable(path):
        return Document(str(path), PurePosixPath(path.absolute().as_posix()), _unpacked(path.read_bytes()))


def documents(path: str | Path, suffixes: Collection[str]) -> Iterator[Document]:
    """The files with one of the suffixes in a folder or archive; or the one file, whatever its suffix.

    Raises
    ------
    DataFileError
        When something is missing, unreadable, truncated or damaged, or a folder or archive holds no such file.
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
                    yield Document(f"{path}/{name}", PurePosixPath(name), _unpacked(load()))
    if not found:
        raise DataFileError(path, f"holds no {' or '.join(sorted(suffixes))} file; check the folder or name the format")


def _members(path: Path, ordered: bool = False) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The names of a folder's or archive's files, or the file's own, each with what loads its bytes."""
    if path.is_dir():
        found = path.rglob("*")
        for file in sorted(found) if ordered else found:
            if file.is_file():
                yield file.relative_to(path).as_posix(), file.read_bytes
    elif _is_tar(path):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile():
                    yield member.name, archive.extractfile(member).read  # type: ignore[union-attr]
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    yield info.filename, partial(packed.read, info)
    else:
        yield path.name, path.read_bytes


def _is_tar(path: Path) -> bool:
    return path.name.lower().endswith(_TAR_SUFFIXES)


def _unpacked(data: bytes) -> bytes:
    return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
