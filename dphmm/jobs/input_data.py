"""What jobs are given: the data, how to read them, and which of the people in them are meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError
from dphmm.facts import setting
from dphmm.readers import ReadResult, read, recognise
from dphmm.readers import table as parquet
from dphmm.readers.fixes import Fixes, ReadOptions, same_file_name, trajectories, unnamed_person
from dphmm.readers.frames import is_frame, read_frame
from dphmm.readers.instants import Instants
from dphmm.readers.table import ParquetFixes, fixes_in
from dphmm.space import OUTSIDE, StateSpace, Trajectory

_MALFORMED = "malformed records, passed over"
_TWICE = "another fix of the same person and time"
SAME_TICK = "another fix of the same person and tick of the clock"
OUTSIDE_REGION = "outside the region"
"""Why fixes are dropped."""

_DATA = "Data"
"""The heading of its options in help."""


class Dropped(NamedTuple):
    """What was left out of some data, and why.

    Parameters
    ----------
    reason
        Why, in words.
    fixes
        How many fixes.
    users
        Of how many people; None where that is not known.
    """

    reason: str
    fixes: int
    users: int | None


@dataclass(frozen=True)
class People:
    """Trajectories, one per user, and what reading them passed over.

    Parameters
    ----------
    trajectories
        One per user.
    skipped
        How many malformed records were passed over.
    merged
        How many fixes gave way to another of the same user and time.
    unchosen
        Who was read and not chosen.
    """

    trajectories: tuple[Trajectory, ...]
    skipped: int = 0
    merged: int = 0
    unchosen: tuple[Dropped, ...] = ()

    @property
    def fixes(self) -> int:
        """The number of fixes of everyone."""
        return sum(len(trajectory) for trajectory in self.trajectories)

    def dropped(self, space: StateSpace, step: float, at_border: bool = False) -> tuple[Dropped, ...]:
        """What did not become a place in a region on a clock, each fix under one reason. Private.

        Parameters
        ----------
        space
            The region.
        step
            A tick of the clock, seconds.
        at_border
            Whether places outside the region are taken for the nearest of its states, hence not dropped.

        Returns
        -------
        tuple of Dropped
            Without the reasons for which nothing was dropped.
        """
        shared = outside = crowded = strays = lost = 0
        for one in self.trajectories:
            track = one.resample(step)
            away = int((space.locate(track.latitude, track.longitude) == OUTSIDE).sum())
            shared, crowded = shared + len(one) - len(track), crowded + (len(one) > len(track))
            outside, strays, lost = outside + away, strays + (away > 0), lost + (away == len(track))
        where = "taken for the nearest place of it" if at_border else f"{lost:,} of these people never within it"
        found = (Dropped(SAME_TICK, shared, crowded), Dropped(f"{OUTSIDE_REGION}, {where}", outside, strays))
        return (*self.left_out, *(one for one in found if one.fixes))

    @property
    def left_out(self) -> tuple[Dropped, ...]:
        """What was not read, or not chosen: the first of the reasons that `dropped` gives. Private."""
        found = (Dropped(_MALFORMED, self.skipped, None), Dropped(_TWICE, self.merged, None), *self.unchosen)
        return tuple(one for one in found if one.fixes)


@dataclass(frozen=True)
class Data:
    """Files and folders with trajectories, and whose of them are meant.

    Parameters
    ----------
    paths
        Files, folders or archives: GeoLife, check-ins, tables, GPX, OwnTracks; or frames, as `dphmm.readers.read_frame`
        takes them. A person who is in several of them is one person.
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
    time_unit, time_zone
        In tables: what numbers count since 1970 (``"s"``, ``"ms"``, ``"us"``, ``"ns"``), and the zone of times that do
        not say theirs; as in `dphmm.read`.
    """

    paths: tuple[str | Path | Frame, ...]
    format: str | None = setting(
        None, "geolife, checkins, table, gpx or owntracks. Left out, recognised.", heading=_DATA
    )
    columns: Mapping[str, str] = setting({}, "In tables and lines: user, time, …", metavar="WHAT=NAME", heading=_DATA)
    time_unit: str | None = setting(
        None, "In tables: what numbers count since 1970: s, ms, us or ns.", metavar="UNIT", heading=_DATA
    )
    time_zone: str | None = setting(
        None, "In tables: the zone of times that do not say theirs. [default: UTC]", metavar="ZONE", heading=_DATA
    )
    user: str | None = setting(
        None, "Whose places all of DATA are, where it does not say or says otherwise.", heading=_DATA
    )
    user_per_file: bool = setting(False, "Files that do not say whose they are: one each.", heading=_DATA)
    users: tuple[str, ...] = setting((), "These users alone.", metavar="A,B,…", heading=_DATA)
    exclude_users: tuple[str, ...] = setting((), "Everyone but these users.", metavar="A,B,…", heading=_DATA)
    skip_bad: bool = setting(False, "Pass over malformed records and count them.", heading=_DATA)

    def __post_init__(self) -> None:
        paths: object = self.paths
        if isinstance(paths, str | Path):  # a string is a sequence too: each letter would be a path
            object.__setattr__(self, "paths", (paths,))

    @classmethod
    @checked
    def from_any(cls, data: DataLike) -> Data:
        """The argument itself, or everyone in some paths or in a frame.

        Parameters
        ----------
        data
            Data, the paths of files, folders or archives, or a frame.

        Returns
        -------
        Data
            Everyone in it, where it is not data already.
        """
        if isinstance(data, Data):
            return data
        return cls((data,) if isinstance(data, str | Path) or is_frame(data) else tuple(data))

    @classmethod
    def from_options(cls, paths: Sequence[str | Path], options: Mapping[str, Any]) -> Data:
        """Data out of the options of a command, or the keys of a file.

        Parameters
        ----------
        paths
            Files, folders or archives.
        options
            The name of a field → its value; None where it was not given. Other names are passed over.
        """
        names = {one.name for one in fields(cls)} - {"paths"}
        given = {name: value for name, value in options.items() if name in names and value is not None}
        return cls(tuple(paths), **given)

    def read(self) -> People:
        """Every chosen user's trajectory.

        Returns
        -------
        People
            Their trajectories, and what reading passed over.

        Raises
        ------
        DataFileError
            As `dphmm.read` does, and when it is not known whose fixes a file holds.
        ConfigurationError
            When a user that was asked for is not there, or no one is left.
        """
        results = [self._result(path) for path in self.paths]
        files: dict[str, str] = {}
        for user, file in (pair for result in results for pair in result.unnamed.items()):
            if user in files:
                raise same_file_name(file, files[user])
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
        skipped = sum(sum(result.skipped.values()) for result in results)
        return People(kept, skipped, merged, self._unchosen((one.user, len(one)) for one in everyone))

    def _unchosen(self, sizes: Iterable[tuple[str, int]]) -> tuple[Dropped, ...]:
        """Who was read and not chosen, out of users and how many fixes they have."""
        found: dict[str, list[int]] = {}
        for user, size in sizes:
            if not self._meant(user):
                reason = "excluded" if user in self.exclude_users else "not among those chosen"
                found.setdefault(f"people who are {reason}", []).append(size)
        return tuple(Dropped(reason, sum(some), len(some)) for reason, some in found.items() if sum(some))

    def one_after_another(
        self, check: Callable[[Iterable[str]], None] | None = None, left_out: list[Dropped] | None = None
    ) -> Iterator[Trajectory]:
        """Every chosen user's trajectory, with one path's data in memory at a time.

        Of a Parquet file that names its people and has more than `dphmm.readers.table.MOST_FIXES` fixes, no more than
        those of a few people are in memory; the file is then read several times.

        Parameters
        ----------
        check
            Is called with everyone's names, and may raise, before the first trajectory is handed out. With several
            paths all of them are then read once more.
        left_out
            Gets what was passed over and who was not chosen, once the last trajectory was handed out. Private.

        Returns
        -------
        Iterator of Trajectory
            One trajectory per user.

        Raises
        ------
        DataFileError
            As `dphmm.read` does, and when it is not known whose fixes a file holds.
        ConfigurationError
            When a user is in two of the paths; with `check` also when a user that was asked for is not there, and both
            before the first trajectory.
        """
        several = len(self.paths) > 1 or any(self._large(path) is not None for path in self.paths)
        skipped: Counter[str] = Counter()
        everyone: Iterable[Trajectory] = self._each(skipped) if several else list(self._each(skipped))
        if check is not None:
            known = {person.user for person in everyone}
            self._check_names(known)
            check(sorted(filter(self._meant, known)))
            if several:
                skipped.clear()
                everyone = self._each(skipped)
        return self._chosen(everyone, skipped, left_out)

    def _chosen(
        self, everyone: Iterable[Trajectory], skipped: Counter[str], left_out: list[Dropped] | None
    ) -> Iterator[Trajectory]:
        sizes = list[tuple[str, int]]()
        for person in everyone:
            if self._meant(person.user):
                yield person
            else:
                sizes.append((person.user, len(person)))
        if left_out is not None:
            left_out += [Dropped(reason, count, None) for reason, count in skipped.items() if count]
            left_out += self._unchosen(sizes)

    def _each(self, skipped: Counter[str]) -> Iterator[Trajectory]:
        met: set[str] = set()
        for path in self.paths:
            large = self._large(path)
            for some in iter([self._result(path)]) if large is None else large.by_people():
                skipped[_MALFORMED] += sum(some.skipped.values())
                skipped[_TWICE] += some.merged
                for person in some.trajectories:
                    if person.user in met:
                        raise ConfigurationError(
                            f"{path}: user {person.user!r} was in an input before; give each user once"
                        )
                    met.add(person.user)
                    yield person

    def _large(self, path: str | Path | Frame) -> ParquetFixes | None:
        """A Parquet file that holds more fixes than are to be in memory, of several people."""
        if (
            not isinstance(path, str | Path)
            or self.format not in (None, "table")
            or fixes_in(path) <= parquet.MOST_FIXES
        ):
            return None
        instants = Instants(self.time_unit, self.time_zone)
        file = ParquetFixes(Path(path), ReadOptions(self.skip_bad, self.user, self.columns, instants))
        return file if file.names_people else None

    def _check_names(self, known: Collection[str]) -> None:
        for user in [*self.users, *self.exclude_users]:
            if user not in known:
                some = ", ".join(sorted(known)[:8]) + (", …" if len(known) > 8 else "")
                raise ConfigurationError(f"user {user!r} is not in the data; there are {len(known)}: {some}")

    def _result(self, path: str | Path | Frame) -> ReadResult:
        how = {name: getattr(self, name) for name in ("user", "skip_bad", "time_unit", "time_zone")}
        how["columns"] = dict(self.columns) or None
        if not isinstance(path, str | Path):
            return read_frame(path, **how)
        if self.user is not None and (self.format or recognise(path)) == "checkins":
            raise ConfigurationError(f"{path}: check-ins say whose they are; choose people with --users, not --user")
        result = read(path, self.format, user_per_file=self.user_per_file, **how)
        if result.unnamed and not self.user_per_file:
            raise unnamed_person(next(iter(result.unnamed.values())))
        return result

    def _meant(self, user: str) -> bool:
        return (not self.users or user in self.users) and user not in self.exclude_users


Frame = Any
"""What `dphmm.readers.read_frame` takes."""

DataLike = Data | str | Path | Sequence[str | Path]
"""Data, or the paths or the frame of everyone that is meant."""


def _joined(everyone: Sequence[Trajectory]) -> tuple[list[Trajectory], int]:
    """One trajectory per user, and how many fixes gave way to another of the same time."""
    result = trajectories(
        Fixes(one.user, (one.user,), np.zeros(len(one), np.int64), one.times, one.latitude, one.longitude)
        for one in everyone
    )
    return list(result.trajectories), result.merged
