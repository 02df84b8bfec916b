"""The files of a batch: written down before anybody can see them, and never made twice with other noise."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from dphmm.errors import DataFileError, OutputError
from dphmm.jobs.checkpoint import file_hash
from dphmm.tables.json_text import parse_json
from dphmm.tables.output import sync_folder, write_text

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
        How many places were released; 0 for nobody's file.
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
        self._journal = {entry.user: entry for entry in _entries(folder / JOURNAL)}
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
        before = [self._journal.get(one.user) for one in done]
        other = [one for one, known in zip(done, before, strict=True) if known and known.sha256 != one.sha256]
        new = [one for one, known in zip(done, before, strict=True) if known is None and one.releases]
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
    """Where a batch has somebody's releases: named after them, in one of 256 folders, by the first byte of a hash.

    So a folder holds no more than four thousand files of a million users.
    """
    return folder / hashlib.sha256(user.encode()).hexdigest()[:2] / f"{quote(user, safe='')}.{kind}"


def read_journal(folder: Path) -> list[Entry]:
    """Who was released in a batch's folder, which is left as it is.

    Raises
    ------
    DataFileError
        When the journal is none. A last line that was cut off counts as unwritten.
    """
    path = folder / JOURNAL
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None
    return list(_parsed(path, text[: text.rfind(b"\n") + 1]))


def _entries(path: Path) -> Iterator[Entry]:
    try:
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            os.truncate(path, len(whole))
    except FileNotFoundError:
        return
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None
    yield from _parsed(path, whole)


def _parsed(path: Path, whole: bytes) -> Iterator[Entry]:
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            entry = Entry(**parse_json(line))
            if not (_is_name(entry.user) and isinstance(entry.releases, int) and _is_digest(entry.sha256)):
                raise TypeError
            yield entry
        except (ValueError, TypeError):
            raise DataFileError(path, "is no line of a batch's journal; restore it from a copy", number) from None


def _is_name(text: object) -> bool:
    return isinstance(text, str) and 0 < len(quote(text, safe="")) <= _LONGEST_NAME


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{64}|", text) is not None


def _is_whole(path: Path, sha256: str) -> bool:
    return path.is_file() and file_hash(path) == sha256


def _refusal(folder: Path, problem: OSError) -> OutputError:
    return OutputError(f"{folder} cannot be written ({problem.strerror}); check the folder and its free space")
