"""The folder of a run: lock, record, finished parts, published files and key.

Noise derived from a secret key can be reproduced after a crash. It cannot be reproduced once the key is deleted.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import dphmm
from dphmm.errors import ConfigurationError, DataFileError, OutputError
from dphmm.random import RandomSource
from dphmm.tables import create_file, read_document, write_text
from dphmm.tables.json_toml import parse_json, read_json
from dphmm.tables.output import sync_folder
from dphmm.tables.values import is_text
from dphmm.writers.formats import UNFINISHED_SUFFIX

# The file that a run locks in its folder. The file remains after the run, the lock does not.
LOCK = "run.lock"

# The errors of a file that is locked by another process.
_LOCK_CONFLICTS = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)

# On Windows a locked byte cannot be read, so a byte beyond the content is locked.
_LOCKED_BYTE = 1 << 30


class FolderLock:
    """An exclusive lock of a folder, until it is released or the process ends in any way.

    The operating system locks the file `LOCK`, so a killed run leaves no lock. On a network file system this depends on
    the locks of the file system.

    Parameters
    ----------
    folder
        An existing folder.

    Raises
    ------
    OutputError
        If another run has locked the folder (names its process), or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as problem:
            raise OutputError(f"{path} cannot be written ({problem.strerror}): check the folder") from None
        # Closed with this object at the latest, without a warning: a caller who forgets only keeps the lock longer.
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            _lock(descriptor)
        except OSError as problem:
            holder = _describe_holder(path)
            self.release()
            if problem.errno not in _LOCK_CONFLICTS:
                raise OutputError(
                    f"{path} cannot be locked ({problem.strerror}): use a folder on a local disk"
                ) from None
            raise OutputError(f"{folder} is in use by {holder}: wait until it ends, or end it and resume") from None
        since = f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}"
        holder_record = {"process": os.getpid(), "host": socket.gethostname(), "since": since}
        os.truncate(descriptor, 0)
        os.write(descriptor, json.dumps(holder_record).encode())


def _describe_holder(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(path.read_text(encoding="utf-8"))
        return f"process {record['process']:d} on {record['host']!s} since {record['since']!s}"
    return "another run"


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_RECORD_FILE = "run.json"


@dataclass(frozen=True)
class Checkpoint:
    """The folder of a run that can be resumed after a crash.

    Parameters
    ----------
    folder
        The folder. ``run.json`` contains the record of the run, and ``parts/`` one file per finished task, each written
        atomically.
    lock
        The lock of an opened checkpoint.
    """

    folder: Path
    lock: FolderLock | None = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path, record: Mapping[str, Any], resume: bool) -> Checkpoint:
        """Start a run in a new or empty folder, or resume the existing one.

        The folder is locked until `close`.

        Parameters
        ----------
        folder
            The folder.
        record
            The settings of the run. A run is resumed only with the same record and version of this package.
        resume
            Whether a run may exist.

        Raises
        ------
        OutputError
            If the folder contains a run that is not to be resumed, is locked by another run, or cannot be created.
        ConfigurationError
            If the existing run has another record. Nothing is overwritten.
        """
        cls.check(folder, record, resume)
        record = {"version": dphmm.__version__, **record}
        try:
            (folder / "parts").mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise OutputError(f"{folder} cannot be created ({problem.strerror}): use another folder") from None
        checkpoint = cls(folder, FolderLock(folder))
        try:
            checkpoint._check(record, resume)  # again: another run may have written to it in the meantime
            if not checkpoint._record_path.exists():
                write_text(checkpoint._record_path, json.dumps(record, indent=1, sort_keys=True) + "\n")
        except BaseException:  # an interrupt must release the lock, too
            checkpoint.close()
            raise
        return checkpoint

    @classmethod
    def check(cls, folder: Path, record: Mapping[str, Any], resume: bool) -> None:
        """Raise the errors of `open` about the contents of the folder, and leave it unchanged."""
        cls(folder)._check({"version": dphmm.__version__, **record}, resume)

    def close(self) -> None:
        """Release the lock of the folder."""
        if self.lock is not None:
            self.lock.release()

    def _check(self, record: Mapping[str, Any], resume: bool) -> None:
        if self._record_path.exists():
            if not resume:
                raise OutputError(f"{self.folder} contains a run already: use --resume or another folder")
            existing = self.record
            for name in sorted(set(existing) | set(record)):
                if existing.get(name) != record.get(name):
                    # The name of the option, where it differs from that of the record.
                    label = "format" if name == "kind" else name.removesuffix("_sha256").replace("_", " ")
                    raise ConfigurationError(
                        f"{self.folder} contains a run that differs in its {label}: use the original {label}, or a new "
                        "folder"
                    )
            return
        try:
            names = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
            if not {LOCK, "parts"}.issuperset(names) or ("parts" in names and any((self.folder / "parts").iterdir())):
                raise OutputError(f"{self.folder} contains other files: use a new or empty folder")
        except OSError as problem:
            raise OutputError(f"{self.folder} cannot be read ({problem.strerror}): use another folder") from None

    @property
    def _record_path(self) -> Path:
        return self.folder / _RECORD_FILE

    @property
    def record(self) -> dict[str, Any]:
        """The record of the run."""
        record = read_json(read_document(self._record_path))
        if not isinstance(record, dict):
            raise DataFileError(self._record_path, "is not a record of a run: use another folder")
        return record

    def get_part_path(self, index: int) -> Path:
        """Return the path of a task's part, which may not exist yet. It contains true locations."""
        return self.folder / "parts" / f"PRIVATE-{index:06d}.parquet"

    def write_part(self, index: int, write: Callable[[Path], None]) -> None:
        """Write the part of a task atomically: to a temporary file that is then renamed."""
        with create_file(self.get_part_path(index), overwrite=True, private=True) as part:
            write(part)


def hash_contents(path: str | Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files.

    Raises
    ------
    DataFileError
        If the file does not exist or cannot be read.
    """

    def hash_file(file: Path) -> str:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    path = Path(path)
    try:
        if not path.is_dir():
            return hash_file(path)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        lines = [f"{file.relative_to(path).as_posix()} {hash_file(file)}\n" for file in files]
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}): check the path") from None
    return hashlib.sha256("".join(lines).encode()).hexdigest()


# The file in a batch's folder with a line per user. A line is on disk before the user's file is renamed.
JOURNAL = "released.jsonl"

# The layout of users' files, see `get_user_file_path`. A batch with another layout cannot be resumed.
LAYOUT = "hash/name"


@dataclass(frozen=True, slots=True)
class Entry:
    """The journal entry of a user. The releases may have been published.

    Everything in it is public.

    Parameters
    ----------
    user
        The user.
    releases
        The number of timesteps; 0 without a file.
    sha256
        The digest of the file, in hexadecimal; empty without a file.
    file
        The path of the file in the folder, for people and other programs. This package computes it, see
        `get_user_file_path`.
    """

    user: str
    releases: int
    sha256: str
    file: str = ""


class Published:
    """The published files of a batch's folder.

    A file without a journal entry does not belong to the batch. The releases of a user with an entry may have been
    published. New noise for the same locations would spend the budget a second time. A lost file may therefore only be
    restored unchanged.

    Parameters
    ----------
    folder
        The folder of the batch.
    kind
        The extension of its files.

    Raises
    ------
    DataFileError
        If the journal is invalid. An incomplete last line counts as unwritten.
    OutputError
        If the folder cannot be written.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self._kind = kind
        self._journal = {entry.user: entry for entry in read_journal(folder, mend=True)}
        # Users with a missing or changed file.
        self.lost = {
            user for user, entry in self._journal.items() if not _has_digest(self.get_file_path(user), entry.sha256)
        }
        try:
            self._publish(
                [user for user in self.lost if _has_digest(self.get_part_path(user), self._journal[user].sha256)]
            )
            for part in (folder / "parts").glob("*"):
                part.unlink()
        except OSError as problem:
            raise _build_write_error(folder, problem) from None

    def __len__(self) -> int:
        """The number of released users."""
        return len(self._journal)

    def get_file_path(self, user: str) -> Path:
        """Return the path of a user's releases, which may not exist yet."""
        return get_user_file_path(self.folder, user, self._kind)

    def get_part_path(self, user: str) -> Path:
        """Return the temporary path of a user's releases.

        Its extension is not that of a released file, so that a pattern such as ``*/*.parquet`` omits it.
        """
        return self.folder / "parts" / f"{_derive_file_stem(user)}.{self._kind}{UNFINISHED_SUFFIX}"

    def has(self, user: str) -> bool:
        """Return whether a user was released and the file is unchanged.

        Raises
        ------
        DataFileError
            If a file without a journal entry exists.
        """
        if user not in self._journal and self.get_file_path(user).exists():
            raise DataFileError(
                self.get_file_path(user), f"is not in {JOURNAL} and does not belong to this batch: move it away"
            )
        return user in self._journal and user not in self.lost

    def add(self, done: Sequence[Entry]) -> None:
        """Publish the files of users from their parts.

        All journal entries are written to disk together.

        Raises
        ------
        DataFileError
            If other releases of one of them were published before. The other users are published.
        OutputError
            If the folder cannot be written.
        """
        changed = [entry for entry in done if self._journal.get(entry.user, entry).sha256 != entry.sha256]
        new = [
            replace(entry, file=self.get_file_path(entry.user).relative_to(self.folder).as_posix())
            for entry in done
            if entry.user not in self._journal and entry.releases
        ]
        try:
            if new:
                with (self.folder / JOURNAL).open("ab") as journal:
                    journal.write("".join(map(_format_entry, new)).encode())
                    journal.flush()
                    os.fsync(journal.fileno())
                self._journal |= {entry.user: entry for entry in new}
            self._publish([entry.user for entry in done if entry.releases and entry not in changed])
            for entry in changed:
                self.get_part_path(entry.user).unlink(missing_ok=True)
        except OSError as problem:
            raise _build_write_error(self.folder, problem) from None
        if changed:
            raise self.build_restore_error(changed[0].user)

    def finish(self) -> None:
        """Rewrite the journal in the order of names, to hide the order of processing."""
        lines = [_format_entry(self._journal[user]) for user in sorted(self._journal)]
        write_text(self.folder / JOURNAL, "".join(lines), overwrite=True)

    def build_restore_error(self, user: str) -> DataFileError:
        """Return the error of a file that cannot be restored."""
        return DataFileError(
            self.get_file_path(user),
            "is damaged or missing and cannot be restored unchanged (the batch's key is deleted, or the data differ): "
            "restore it from a copy",
        )

    def _publish(self, users: Iterable[str]) -> None:
        changed = set()
        for user in users:
            path = self.get_file_path(user)
            if not path.parent.exists():
                path.parent.mkdir()
                changed.add(self.folder)
            os.replace(self.get_part_path(user), path)
            changed.add(path.parent)
            self.lost.discard(user)
        for folder in changed:
            sync_folder(folder)


def _format_entry(entry: Entry) -> str:
    return json.dumps(asdict(entry), ensure_ascii=False) + "\n"


# File systems limit a name to 255 bytes, and temporary files have longer names than their targets.
_MAX_PLAIN_LENGTH = 100
_MAX_SHOWN_LENGTH = 60
_HASH_DIGITS = 32
_PLAIN = re.compile(r"[a-z0-9_][a-z0-9_.-]*", re.ASCII)
_HASHED = re.compile(r".*-[0-9a-f]{32}", re.ASCII)
_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9]+", re.ASCII)
# Names of devices on Windows, with any extension.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.ASCII)


def _derive_file_stem(user: str) -> str:
    """Return the name of a user's file without extension, at most 100 bytes.

    A name of lower-case letters, digits and ``_ . -`` is unchanged, unless it is long, reserved or ends like a hash.
    Other names are shortened to ASCII letters and digits, followed by a hash: two users have different files, also on
    file systems that ignore case or the normalization of Unicode.
    """
    is_plain = _PLAIN.fullmatch(user) and not (_RESERVED.fullmatch(user) or _HASHED.fullmatch(user))
    if is_plain and len(user) <= _MAX_PLAIN_LENGTH:
        return user
    shown = _OTHER_CHARACTERS.sub("_", user).strip("_")[:_MAX_SHOWN_LENGTH]
    return f"{shown or 'user'}-{hashlib.sha256(user.encode()).hexdigest()[:_HASH_DIGITS]}"


def get_user_file_path(folder: Path, user: str, kind: str) -> Path:
    """Return the path of a user's releases, in one of 256 folders by the first byte of a hash.

    A folder then contains about four thousand of a million files. The journal contains the names of the users.
    """
    return folder / hashlib.sha256(user.encode()).hexdigest()[:2] / f"{_derive_file_stem(user)}.{kind}"


def read_journal(folder: Path, mend: bool = False) -> list[Entry]:
    """Read the journal of a batch's folder.

    Parameters
    ----------
    folder
        The folder.
    mend
        Whether to remove an incomplete last line from the file. Such a line counts as unwritten.

    Returns
    -------
    list of Entry
        The entries in the order of the journal; empty without a journal.

    Raises
    ------
    DataFileError
        If the journal is invalid.
    """
    path = folder / JOURNAL
    entries = list[Entry]()
    try:
        text = path.read_bytes()
        complete = text[: text.rfind(b"\n") + 1]
        if mend and len(complete) < len(text):
            os.truncate(path, len(complete))
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}): check the path") from None
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            entry = Entry(**parse_json(line))
            is_valid = isinstance(entry.releases, int) and isinstance(entry.file, str) and _is_digest(entry.sha256)
            if not (_is_name(entry.user) and is_valid):
                raise TypeError
            entries.append(entry)
        except (ValueError, TypeError):
            raise DataFileError(path, "is not a line of a batch's journal: restore it from a copy", number) from None
    return entries


def _is_name(text: object) -> bool:
    return isinstance(text, str) and text != "" and is_text(text)


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{64}|", text) is not None


def _has_digest(path: Path, sha256: str) -> bool:
    return path.is_file() and hash_contents(path) == sha256


def _build_write_error(folder: Path, problem: OSError) -> OutputError:
    return OutputError(f"{folder} cannot be written ({problem.strerror}): check the folder and its free space")


# The file of an unfinished run's key. With the key, the noise can be removed from the releases.
KEY = "PRIVATE-key"

_KEY_BYTES = 32
_DIGEST_BYTES = 64


def load_or_create_key(folder: Path) -> bytes:
    """Return the key of the run in a folder, which is created if it does not exist.

    A new key is generated from the operating system's randomness.

    Raises
    ------
    DataFileError
        If the existing file does not contain a key.
    OutputError
        If the file cannot be written.
    """
    path = folder / KEY
    if not path.exists():
        with create_file(path, private=True) as part:
            part.write_bytes(os.urandom(_KEY_BYTES))
    try:
        key = path.read_bytes()
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}): check the path") from None
    if len(key) != _KEY_BYTES:
        raise DataFileError(
            path, f"must contain a key of {_KEY_BYTES} bytes, got {len(key)}: start again in a new folder"
        )
    return key


def build_keyed_stream(key: bytes, *label: bytes) -> RandomSource:
    """Return pseudorandom bytes of a key and a label.

    They reveal neither the key nor the label, nor the bytes of other labels.

    The bytes are keyed BLAKE2b of a counter. If keyed BLAKE2b is indistinguishable from a random function, they are as
    good as those of the operating system, which expands a seed in the same way.

    Parameters
    ----------
    key
        32 random bytes.
    label
        The purpose of the bytes. It must contain everything that the noise will be added to: equal noise on two
        different locations would reveal their difference.
    """
    name = blake2b(key=key, person=b"dphmm-noise")
    for part in label:
        name.update(len(part).to_bytes(8, "little") + part)
    return RandomSource(_Stream(name.digest()).read)


class _Stream:
    """The bytes of keyed BLAKE2b of the numbers from 0."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0
        self._buffer = b""

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        num_blocks = max(0, -(-(size - len(self._buffer)) // _DIGEST_BYTES))
        numbers = range(self._number, self._number + num_blocks)
        blocks = [blake2b(number.to_bytes(16, "little"), key=self._key).digest() for number in numbers]
        available = b"".join([self._buffer, *blocks])
        self._number = numbers.stop
        self._buffer = available[size:]
        return available[:size]
