"""Whose data a job is about: files and folders, how to read them, and which of the people in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError
from dphmm.readers import ReadResult, read, recognise
from dphmm.readers.fixes import Fixes, nobody_named, trajectories, two_files_of_one_name
from dphmm.space.trajectory import Trajectory


@dataclass(frozen=True)
class People:
    """Trajectories, one per user, and what reading them passed over.

    Attributes
    ----------
    trajectories
        One per user.
    skipped
        How many malformed records were passed over.
    merged
        How many fixes gave way to another of the same user and time.
    """

    trajectories: tuple[Trajectory, ...]
    skipped: int = 0
    merged: int = 0

    @property
    def fixes(self) -> int:
        """The number of fixes of everyone."""
        return sum(len(trajectory) for trajectory in self.trajectories)


@dataclass(frozen=True)
class Data:
    """Files and folders with trajectories, and whose of them are meant.

    Parameters
    ----------
    paths
        Files, folders or archives: GeoLife, check-ins, tables, GPX, OwnTracks. Who is in several of them is one person.
    format
        As in `dphmm.read`; left out, recognised.
    columns
        In tables: what a column holds (user, time, latitude, …) → its name.
    user
        Whose places all of them are, whatever they say; left out, what they say.
    user_per_file
        Whether files that do not say whose fixes they hold are each another person's, named after the file. Without
        this and without `user` such a file is refused: one person could become several.
    users, exclude_users
        These users alone; everyone but these.
    skip_bad
        Whether to pass over malformed records and count them.
    """

    paths: tuple[str | Path, ...]
    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    users: tuple[str, ...] = ()
    exclude_users: tuple[str, ...] = ()
    skip_bad: bool = False
    user: str | None = None
    user_per_file: bool = False

    @classmethod
    @checked
    def of(cls, data: DataLike) -> Data:
        """The argument itself, or everyone in some paths."""
        if isinstance(data, Data):
            return data
        return cls((data,) if isinstance(data, str | Path) else tuple(data))

    def read(self) -> People:
        """Every chosen user's trajectory.

        Raises
        ------
        DataFileError
            As `dphmm.read` does, and when it cannot be told whose fixes a file holds.
        ConfigurationError
            When a user that was asked for is not there, or nobody is left.
        """
        results = [self._result(path) for path in self.paths]
        files: dict[str, str] = {}
        for user, file in (pair for result in results for pair in result.unnamed.items()):
            if user in files:
                raise two_files_of_one_name(file, files[user])
            files[user] = file
        everyone = [trajectory for result in results for trajectory in result.trajectories]
        merged = sum(result.merged for result in results)
        if len(results) > 1:
            everyone, more = _joined(everyone)
            merged += more
        self._check_names({trajectory.user for trajectory in everyone})
        kept = tuple(one for one in everyone if self._meant(one.user))
        if not kept:
            raise ConfigurationError("no user is left to work on; exclude fewer")
        return People(kept, sum(sum(result.skipped.values()) for result in results), merged)

    def one_after_another(self, check: Callable[[Iterable[str]], None] | None = None) -> Iterator[Trajectory]:
        """Every chosen user's trajectory, with one path's data in memory at a time.

        Parameters
        ----------
        check
            Is called with everybody's names, and may raise, before the first trajectory is handed out. With several
            paths all of them are then read once more.

        Raises
        ------
        DataFileError
            As `dphmm.read` does, and when it cannot be told whose fixes a file holds.
        ConfigurationError
            When a user is in two of the paths; with `check` also when a user that was asked for is not there, and both
            before the first trajectory.
        """
        several = len(self.paths) > 1
        everyone: Iterable[Trajectory] = self._each() if several else list(self._each())
        if check is not None:
            known = {person.user for person in everyone}
            self._check_names(known)
            check(sorted(filter(self._meant, known)))
            everyone = self._each() if several else everyone
        return (person for person in everyone if self._meant(person.user))

    def _each(self) -> Iterator[Trajectory]:
        met: set[str] = set()
        for path in self.paths:
            for person in self._result(path).trajectories:
                if person.user in met:
                    raise ConfigurationError(
                        f"{path}: user {person.user!r} was in an input before; give each user once"
                    )
                met.add(person.user)
                yield person

    def _check_names(self, known: Collection[str]) -> None:
        for user in [*self.users, *self.exclude_users]:
            if user not in known:
                some = ", ".join(sorted(known)[:8]) + (", …" if len(known) > 8 else "")
                raise ConfigurationError(f"user {user!r} is not in the data; there are {len(known)}: {some}")

    def _result(self, path: str | Path) -> ReadResult:
        if self.user is not None and (self.format or recognise(path)) == "checkins":
            raise ConfigurationError(f"{path}: check-ins say whose they are; choose people with --users, not --user")
        result = read(
            path,
            self.format,
            skip_bad=self.skip_bad,
            user=self.user,
            user_per_file=self.user_per_file,
            columns=dict(self.columns) or None,
        )
        if result.unnamed and not self.user_per_file:
            raise nobody_named(next(iter(result.unnamed.values())))
        return result

    def _meant(self, user: str) -> bool:
        return (not self.users or user in self.users) and user not in self.exclude_users


DataLike = Data | str | Path | Sequence[str | Path]
"""Data, or the paths of everyone that is meant."""


def _joined(everyone: Sequence[Trajectory]) -> tuple[list[Trajectory], int]:
    """One trajectory per user, and how many fixes gave way to another of the same time."""
    result = trajectories(
        Fixes(one.user, (one.user,), np.zeros(len(one), np.int64), one.times, one.latitude, one.longitude)
        for one in everyone
    )
    return list(result.trajectories), result.merged
