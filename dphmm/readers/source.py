"""Where bytes come from: a file, plain or gzipped, a folder, or a tar or zip archive of one."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dphmm.errors import DataFileError

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


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turns what can go wrong in reading into a `DataFileError` of one line."""
    try:
        yield
    except FileNotFoundError:
        raise DataFileError(path, "there is no such file or folder; check the path") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile) as problem:
        raise DataFileError(path, f"is truncated or damaged ({_one_line(problem)}); fetch or copy it again") from None
    except (OSError, RuntimeError, NotImplementedError) as problem:  # the last two: encrypted or exotic zip members
        raise DataFileError(path, f"cannot be read ({_one_line(problem)})") from None


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__


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
        if path.is_dir():
            yield from (str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
        elif _is_tar(path):
            with tarfile.open(path) as archive:
                yield from (member.name for member in archive if member.isfile())
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                yield from (info.filename for info in packed.infolist() if not info.is_dir())
        else:
            path.stat()
            yield path.name


def documents(path: str | Path, suffixes: Collection[str]) -> Iterator[Document]:
    """The files with one of the suffixes in a folder or archive; or the one file, whatever its suffix.

    Raises
    ------
    DataFileError
        When something is missing, unreadable, truncated or damaged, or a folder or archive holds no such file.
    """
    path = Path(path)
    found = False
    with readable(path):
        for document in _documents(path, suffixes):
            found = True
            yield document
    if not found:
        raise DataFileError(path, f"holds no {' or '.join(sorted(suffixes))} file; check the folder or name the format")


def _documents(path: Path, suffixes: Collection[str]) -> Iterator[Document]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file() and _wanted(file.name, suffixes):
                yield Document(str(file), PurePosixPath(file.relative_to(path).as_posix()), _file_bytes(file))
    elif _is_tar(path):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and _wanted(member.name, suffixes):
                    content = archive.extractfile(member)
                    if content is not None:
                        yield _member(path, member.name, content.read())
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            for info in packed.infolist():
                if not info.is_dir() and _wanted(info.filename, suffixes):
                    yield _member(path, info.filename, packed.read(info))
    else:
        yield Document(str(path), PurePosixPath(path.absolute().as_posix()), _file_bytes(path))


def _is_tar(path: Path) -> bool:
    return path.name.lower().endswith(_TAR_SUFFIXES)


def _wanted(name: str, suffixes: Collection[str]) -> bool:
    hidden = PurePosixPath(name).name.startswith(".")  # among them the ._ twins that macOS puts into archives
    return not hidden and suffix_of(name) in suffixes


def _member(archive: Path, name: str, data: bytes) -> Document:
    source = f"{archive}/{name}"
    with readable(source):
        return Document(source, PurePosixPath(name), _unpacked(data))


def _file_bytes(path: Path) -> bytes:
    with readable(path):
        return _unpacked(path.read_bytes())


def _unpacked(data: bytes) -> bytes:
    return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
