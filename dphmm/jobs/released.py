"""What was released, wherever it is: in a file, in the folder of a batch, or in a store of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs.checkpoint import Checkpoint, file_hash
from dphmm.jobs.models import Model
from dphmm.jobs.published import JOURNAL, read_journal, user_file
from dphmm.jobs.sessions import read_sessions, session_table
from dphmm.release.database import is_store
from dphmm.release.postgres import is_server
from dphmm.release.settings import ReleaseSettings
from dphmm.writers.formats import read_releases
from dphmm.writers.table import COLUMNS, ReleaseTable


@dataclass(frozen=True, eq=False)
class StoredReleases:
    """Releases, and what the place where they were says of them.

    Attributes
    ----------
    table
        The releases, of all users.
    settings
        How all of them were released, where that is said: by a batch, and by sessions that agree on it. A file of
        releases names it by its hash alone.
    """

    table: ReleaseTable
    settings: ReleaseSettings | None = None


@checked
def read_released(source: str | Path, model: Model | None = None, users: Sequence[str] = ()) -> StoredReleases:
    """The releases in a file, a batch's folder or a store of sessions.

    Parameters
    ----------
    source
        A file that `dphmm.jobs.release` wrote, the folder that `dphmm.jobs.batch` wrote (of an unfinished batch what
        is there), the SQLite file of sessions, or the address of a PostgreSQL server that keeps them.
    model
        The model that sessions began with: their store knows states and no places. Otherwise it is not looked at.
    users
        With a folder or a store, these users (or sessions) alone are read.

    Raises
    ------
    ConfigurationError
        When a store is given without its model, or a user is not in a folder or store.
    DataFileError
        When it is none of these, or a file of a batch is not what was released.
    """
    path = Path(source)
    server = is_server(source)
    if not server and path.is_dir():
        return _of_batch(path, users)
    if server or is_store(path):
        if model is None:
            name = "the server" if server else path
            raise ConfigurationError(f"{name} holds sessions, whose places need the map: give --model too")
        sessions = tuple(read_sessions(source, users))
        agreed = [terms.settings for one in sessions for each in one.session.agreed for terms in each.terms.values()]
        same = bool(agreed) and all(one == agreed[0] for one in agreed)
        return StoredReleases(session_table(sessions, model), agreed[0] if same else None)
    return StoredReleases(read_releases(path))


def _of_batch(folder: Path, users: Sequence[str]) -> StoredReleases:
    record = Checkpoint(folder)
    if not (folder / JOURNAL).exists():
        raise DataFileError(folder, f"is no folder of a batch (there is no {JOURNAL}); name one, or a file of releases")
    facts: dict[str, Any] = record.facts
    entries = [entry for entry in read_journal(folder) if entry.releases]
    missing = set(users) - {entry.user for entry in entries}
    if missing:
        known = ", ".join(entry.user for entry in entries[:8]) or "nobody"
        raise ConfigurationError(f"user {min(missing)!r} is not in {folder}; there are {known}")
    tables = []
    for entry in entries:
        if users and entry.user not in users:
            continue
        path = user_file(folder, entry.user, str(facts.get("kind")))
        if not path.exists() or file_hash(path) != entry.sha256:
            raise DataFileError(path, "is not what was released; restore it from a copy, or resume the batch")
        tables.append(read_releases(path))
    settings = facts.get("settings")
    return StoredReleases(_joined(tables), ReleaseSettings.from_dict(settings) if isinstance(settings, dict) else None)


def _joined(tables: Sequence[ReleaseTable]) -> ReleaseTable:
    if not tables:
        return ReleaseTable.of(())
    return ReleaseTable({column.name: np.concatenate([one[column.name] for one in tables]) for column in COLUMNS})
