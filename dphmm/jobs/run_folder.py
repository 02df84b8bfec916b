"""The folder of a run: one run at a time, what it was made by, the parts that are finished, files of a batch, its key.

Noise that follows from a secret key is the same again after a crash, and beyond reach when the key is gone.
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
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dphmm
from dphmm.arrays import RandomSource
from dphmm.errors import ConfigurationError, DataFileError, OutputError
from dphmm.tables import new_file, read_document, write_text
from dphmm.tables.json_toml import parse_json, read_json
from dphmm.tables.output import sync_folder

LOCK = "run.lock"
"""The file that a run holds locked in its folder. It stays when the run has ended; the lock does not."""

_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)

_FAR = 1 << 30  # on Windows a locked byte cannot be read, so one beyond the text is locked


class FolderLock:
    """A folder held by this run alone, until it is released or the process ends, however that is.

    The lock is the operating system's, on the file `LOCK`, so that a killed run leaves none behind. It works over
    network file systems where their locks do.

    Parameters
    ----------
    folder
        A folder that exists.

    Raises
    ------
    OutputError
        When another run holds the folder, naming it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        try:
            held = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as problem:
            raise OutputError(f"{path} cannot be written ({problem.strerror}); check the folder") from None
        # Closed with this object at the latest, without a warning: a caller who forgets only holds on for longer.
        self.release = weakref.finalize(self, os.close, held)
        try:
            _lock(held)
        except OSError as problem:
            holder = _holder(path)
            self.release()
            if problem.errno not in _HELD:
                raise OutputError(
                    f"{path} cannot be locked ({problem.strerror}); use a folder on a local disk"
                ) from None
            raise OutputError(f"{folder} is held by {holder}; wait until it ends, or end it and resume") from None
        about = {"process": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}"}
        os.truncate(held, 0)
        os.write(held, json.dumps(about).encode())


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        about = json.loads(path.read_text(encoding="utf-8"))
        return f"process {about['process']:d} on {about['host']!s} since {about['since']!s}"
    return "another run"


if sys.platform == "win32":
    import msvcrt

    def _lock(held: int) -> None:
        os.lseek(held, _FAR, os.SEEK_SET)
        msvcrt.locking(held, msvcrt.LK_NBLCK, 1)
        os.lseek(held, 0, os.SEEK_SET)
else:
    import fcntl

    def _lock(held: int) -> None:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)


_FACTS = "run.json"


@dataclass(frozen=True)
class Checkpoint:
    """A folder that a killed run can be taken up in.

    Parameters
    ----------
    folder
        Where it is. ``run.json`` says what the run is; ``parts/`` holds one file per finished task, which appears whole
        or not at all.
    lock
        What keeps other runs out, for a checkpoint that was opened.
    """

    folder: Path
    lock: FolderLock | None = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path, facts: Mapping[str, Any], resume: bool) -> Checkpoint:
        """Begin a run in a new or empty folder, or take up the one that is there; hold the folder until `close`.

        Parameters
        ----------
        folder
            Where.
        facts
            What the run is made by: it is taken up only by one of the same facts and of this package's version.
        resume
            Whether a run may be there already.

        Raises
        ------
        OutputError
            When the folder is in use and not to be resumed, is held by another run, or cannot be made.
        ConfigurationError
            When what is there was made by something else. Nothing is overwritten.
        """
        cls.look(folder, facts, resume)
        facts = {"version": dphmm.__version__, **facts}
        try:
            (folder / "parts").mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise OutputError(f"{folder} cannot be made ({problem.strerror}); choose another folder") from None
        checkpoint = cls(folder, FolderLock(folder))
        try:
            checkpoint._check(facts, resume)  # again: another run may have been there in the meantime
            if not checkpoint._record.exists():
                write_text(checkpoint._record, json.dumps(facts, indent=1, sort_keys=True) + "\n")
        except BaseException:
            checkpoint.close()
            raise
        return checkpoint

    @classmethod
    def look(cls, folder: Path, facts: Mapping[str, Any], resume: bool) -> None:
        """Refuse what `open` would refuse of what is in the folder, and leave it as it is."""
        cls(folder)._check({"version": dphmm.__version__, **facts}, resume)

    def close(self) -> None:
        """Let other runs take the folder up."""
        if self.lock is not None:
            self.lock.release()

    def _check(self, facts: Mapping[str, Any], resume: bool) -> None:
        if self._record.exists():
            if not resume:
                raise OutputError(f"{self.folder} holds a run already; go on with --resume or name another folder")
            there = self.facts
            for name in sorted(set(there) | set(facts)):
                if there.get(name) != facts.get(name):
                    raise ConfigurationError(
                        f"{self.folder} was made by another {name.replace('_', ' ')}; resume with that one, or name a "
                        "new folder"
                    )
            return
        try:
            found = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
            if not {LOCK, "parts"}.issuperset(found) or ("parts" in found and any((self.folder / "parts").iterdir())):
                raise OutputError(f"{self.folder} holds other files; name a new or empty folder")
        except OSError as problem:
            raise OutputError(f"{self.folder} cannot be read ({problem.strerror}); choose another folder") from None

    @property
    def _record(self) -> Path:
        return self.folder / _FACTS

    @property
    def facts(self) -> dict[str, Any]:
        """What the run is made by."""
        facts = read_json(read_document(self._record))
        if not isinstance(facts, dict):
            raise DataFileError(self._record, "is no record of a run; name another folder")
        return facts

    def part(self, index: int) -> Path:
        """Where the part of a task is, or will be. It holds true places."""
        return self.folder / "parts" / f"PRIVATE-{index:06d}.parquet"

    def write_part(self, index: int, write: Callable[[Path], None]) -> None:
        """Have the part of a task written beside its place, and move it there."""
        with new_file(self.part(index), overwrite=True, private=True) as part:
            write(part)


def file_hash(path: str | Path) -> str:
    """The SHA-256 of a file, or of the names and contents of a folder's files, in hexadecimal.

    Raises
    ------
    DataFileError
        When there is no such file, or it cannot be read.
    """

    def digest(file: Path) -> str:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    path = Path(path)
    try:
        if not path.is_dir():
            return digest(path)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        lines = [f"{file.relative_to(path).as_posix()} {digest(file)}\n" for file in files]
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None
    return hashlib.sha256("".join(lines).encode()).hexdigest()


JOURNAL = "released.jsonl"
"""The file in a batch's folder with a line per user, on the disk before the user's file gets its name."""

LAYOUT = "hash/user"
"""Where users' files are, see `user_file`; a batch of another layout is not gone on with."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A user whose releases may have been seen. All of it is public.

    Parameters
    ----------
    user
        Who.
    releases
        How many places were released; 0 where there is no file.
    sha256
        The digest of the file, in hexadecimal; empty where there is none.
    """

    user: str
    releases: int
    sha256: str


class Published:
    """What a batch's folder holds, and how another user's file gets there.

    A file that the journal does not name is none of the batch's. A user whom it names may have been seen: another draw
    about the same places would spend the budget a second time, so that their file can be put back, but only as it was.

    Parameters
    ----------
    folder
        The batch's.
    kind
        The extension of its files.

    Raises
    ------
    DataFileError
        When the journal is none. A last line that was cut off counts as unwritten.
    OutputError
        When the folder cannot be written.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self._kind = folder, kind
        self._journal = {entry.user: entry for entry in read_journal(folder, mend=True)}
        self.lost = {user for user, entry in self._journal.items() if not _is_whole(self.file(user), entry.sha256)}
        """Users whose file is absent or not what was released."""
        try:
            self._show([user for user in self.lost if _is_whole(self.part(user), self._journal[user].sha256)])
            for part in (folder / "parts").glob("*"):
                part.unlink()
        except OSError as problem:
            raise _refusal(folder, problem) from None

    def __len__(self) -> int:
        """How many users were released."""
        return len(self._journal)

    def file(self, user: str) -> Path:
        """Where a user's releases are, or will be."""
        return user_file(self.folder, user, self._kind)

    def part(self, user: str) -> Path:
        """Where they are written first."""
        return self.folder / "parts" / f"{quote(user, safe='')}.{self._kind}"

    def has(self, user: str) -> bool:
        """Whether a user was released and the file is there as it was.

        Raises
        ------
        DataFileError
            When there is a file that the journal does not name.
        """
        if user not in self._journal and self.file(user).exists():
            raise DataFileError(self.file(user), f"is not in {JOURNAL}, so not of this batch; move it away")
        return user in self._journal and user not in self.lost

    def add(self, done: Sequence[Entry]) -> None:
        """Show the files of users, whose parts were written; all of them go to the disk together.

        Raises
        ------
        DataFileError
            When something else was released of one of them before; the others are shown.
        OutputError
            When the folder cannot be written.
        """
        other = [one for one in done if self._journal.get(one.user, one).sha256 != one.sha256]
        new = [one for one in done if one.user not in self._journal and one.releases]
        try:
            if new:
                with (self.folder / JOURNAL).open("ab") as journal:
                    journal.write("".join(map(_line, new)).encode())
                    journal.flush()
                    os.fsync(journal.fileno())
                self._journal |= {one.user: one for one in new}
            self._show([one.user for one in done if one.releases and one not in other])
            for one in other:
                self.part(one.user).unlink(missing_ok=True)
        except OSError as problem:
            raise _refusal(self.folder, problem) from None
        if other:
            raise self.refusal(other[0].user)

    def finish(self) -> None:
        """Write the journal anew in the order of names, which does not tell who was finished first."""
        lines = [_line(self._journal[user]) for user in sorted(self._journal)]
        write_text(self.folder / JOURNAL, "".join(lines), overwrite=True)

    def refusal(self, user: str) -> DataFileError:
        """What is said of a file that is not to be had again."""
        return DataFileError(
            self.file(user),
            "is damaged or gone, and cannot be made again as it was (its noise is gone with the batch's key, or the "
            "data are others); restore it from a copy",
        )

    def _show(self, users: Iterable[str]) -> None:
        changed = set()
        for user in users:
            path = self.file(user)
            if not path.parent.exists():
                path.parent.mkdir()
                changed.add(self.folder)
            os.replace(self.part(user), path)
            changed.add(path.parent)
            self.lost.discard(user)
        for folder in changed:
            sync_folder(folder)


_LONGEST_NAME = 240
"""What file systems take of a name, less what stands around a user's."""


def _line(entry: Entry) -> str:
    return json.dumps(asdict(entry), ensure_ascii=False) + "\n"


def user_file(folder: Path, user: str, kind: str) -> Path:
    """Where a batch has a user's releases: named after them, in one of 256 folders, by the first byte of a hash.

    So a folder holds no more than four thousand files of a million users.
    """
    return folder / hashlib.sha256(user.encode()).hexdigest()[:2] / f"{quote(user, safe='')}.{kind}"


def read_journal(folder: Path, mend: bool = False) -> list[Entry]:
    """Who was released in a batch's folder.

    Parameters
    ----------
    folder
        The folder.
    mend
        Whether to cut a last line off the file that was not written whole; it counts as unwritten.

    Returns
    -------
    list of Entry
        In the order of the journal; none where there is no journal.

    Raises
    ------
    DataFileError
        When the journal is none.
    """
    path, found = folder / JOURNAL, list[Entry]()
    try:
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if mend and len(whole) < len(text):
            os.truncate(path, len(whole))
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            found.append(Entry(**parse_json(line)))
            if not (_is_name(found[-1].user) and isinstance(found[-1].releases, int) and _is_digest(found[-1].sha256)):
                raise TypeError
        except (ValueError, TypeError):
            raise DataFileError(path, "is no line of a batch's journal; restore it from a copy", number) from None
    return found


def _is_name(text: object) -> bool:
    return isinstance(text, str) and 0 < len(quote(text, safe="")) <= _LONGEST_NAME


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{64}|", text) is not None


def _is_whole(path: Path, sha256: str) -> bool:
    return path.is_file() and file_hash(path) == sha256


def _refusal(folder: Path, problem: OSError) -> OutputError:
    return OutputError(f"{folder} cannot be written ({problem.strerror}); check the folder and its free space")


KEY = "PRIVATE-key"
"""The file that a run keeps its key in for as long as it is unfinished. With it the noise can be taken away."""

_KEY_BYTES = 32
_DIGEST_BYTES = 64
"""Bytes of one digest."""


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
            part.write_bytes(os.urandom(_KEY_BYTES))
    try:
        key = path.read_bytes()
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None
    if len(key) != _KEY_BYTES:
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
    return RandomSource(_Stream(name.digest()).read)


class _Stream:
    """Bytes of BLAKE2b, keyed, of the numbers from 0 on."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number, self._held = key, 0, b""

    def read(self, size: int) -> bytes:
        """The next bytes."""
        more = max(0, -(-(size - len(self._held)) // _DIGEST_BYTES))
        numbers = range(self._number, self._number + more)
        blocks = [blake2b(number.to_bytes(16, "little"), key=self._key).digest() for number in numbers]
        whole = b"".join([self._held, *blocks])
        self._number, self._held = numbers.stop, whole[size:]
        return whole[:size]
