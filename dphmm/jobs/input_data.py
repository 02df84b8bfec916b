"""Input data of jobs: paths, reading options and the selected users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from dphmm.errors import ConfigurationError, EmptyDataError, InvalidInputError
from dphmm.readers import ReadResult, read, recognise
from dphmm.readers import fix_tables as parquet
from dphmm.readers.data_frames import SOURCE, is_frame, read_frame
from dphmm.readers.fix_tables import ParquetFixes, count_parquet_rows
from dphmm.readers.fixes import (
    Fixes,
    ReadOptions,
    build_same_name_error,
    build_trajectories,
    build_unnamed_user_error,
    parse_user,
)
from dphmm.readers.fixes_on_disk import FixesOnDisk
from dphmm.readers.instants import Instants
from dphmm.space import OUTSIDE, StateSpace, Trajectory
from dphmm.space.fix_quality import Region
from dphmm.validation import check_arguments, declare_setting

# The reason of skipped records.
MALFORMED = "malformed records"
# The reason of fixes that share their user and time with another.
SAME_TIME = "replaced by a fix of the same user and time"
# The reason of fixes that share a timestep with a more accurate or a later one.
SAME_TIMESTEP = "replaced by a fix of the same timestep"
# The reason of fixes outside the region.
OUTSIDE_REGION = "outside the region"

# Maximum number of users and of fixes in a task of a worker. They bound its memory, and the locations of a data set of
# a million fixes suffice for all processors of a machine.
_BLOCK_USERS = 2000
_BLOCK_FIXES = 100_000

# The heading of the options in help.
_DATA_HEADING = "Data"


class Dropped(NamedTuple):
    """Input that was dropped or moved, by reason.

    Parameters
    ----------
    reason
        The reason.
    fixes
        The number of fixes.
    users
        The number of users; None if unknown.
    """

    reason: str
    fixes: int
    users: int | None


@dataclass(frozen=True)
class RegionLoss:
    """The numbers of fixes of some users that did not become a location of a region.

    Parameters
    ----------
    shared, sharing_users
        The fixes that share a timestep with another, and their users.
    outside, outside_users
        The timesteps outside the region, and their users.
    never_inside
        The users who are never inside.
    """

    shared: int = 0
    sharing_users: int = 0
    outside: int = 0
    outside_users: int = 0
    never_inside: int = 0

    @classmethod
    def from_user(cls, num_fixes: int, num_timesteps: int, num_outside: int) -> RegionLoss:
        """Return the numbers of one user."""
        shared = num_fixes - num_timesteps
        return cls(shared, int(shared > 0), num_outside, int(num_outside > 0), int(num_outside == num_timesteps))

    def __add__(self, other: RegionLoss) -> RegionLoss:
        return RegionLoss(*(getattr(self, name.name) + getattr(other, name.name) for name in fields(self)))

    def describe(self, at_border: bool = False) -> tuple[Dropped, ...]:
        """Return the reasons with at least one fix. See `UserTracks.count_dropped_fixes`."""
        users = f"{self.never_inside:,} user{'' if self.never_inside == 1 else 's'}"
        where = "moved to its nearest location" if at_border else f"{users} never inside"
        reasons = (
            Dropped(SAME_TIMESTEP, self.shared, self.sharing_users),
            Dropped(f"{OUTSIDE_REGION}, {where}", self.outside, self.outside_users),
        )
        return tuple(dropped for dropped in reasons if dropped.fixes)


@dataclass(frozen=True)
class UserTracks:
    """Trajectories, one per user, and the input that was not read or selected.

    Parameters
    ----------
    trajectories
        One per user.
    skipped
        The number of skipped malformed records.
    merged
        The number of fixes replaced by another of the same user and time.
    unchosen
        The users who were read and not selected.
    refused
        The invalid fixes, by reason; see `dphmm.space.fix_quality`.
    """

    trajectories: tuple[Trajectory, ...]
    skipped: int = 0
    merged: int = 0
    unchosen: tuple[Dropped, ...] = ()
    refused: tuple[Dropped, ...] = ()

    @property
    def fixes(self) -> int:
        """The number of fixes of all users."""
        return sum(len(trajectory) for trajectory in self.trajectories)

    def count_dropped_fixes(
        self, space: StateSpace, step_seconds: float, at_border: bool = False
    ) -> tuple[Dropped, ...]:
        """Return the fixes that did not become a location of the region, by reason. Private.

        Parameters
        ----------
        space
            The region.
        step_seconds
            The time step, seconds.
        at_border
            Whether locations outside the region are moved to its nearest state instead of dropped.

        Returns
        -------
        tuple of Dropped
            The reasons with at least one fix.
        """
        total = RegionLoss()
        for trajectory in self.trajectories:
            track = trajectory.resample(step_seconds)
            num_outside = int((space.locate(track.latitude, track.longitude) == OUTSIDE).sum())
            total += RegionLoss.from_user(len(trajectory), len(track), num_outside)
        return (*self.not_read, *total.describe(at_border))

    @property
    def not_read(self) -> tuple[Dropped, ...]:
        """The input that was not read or selected. See `count_dropped_fixes`. Private."""
        reasons = (
            Dropped(MALFORMED, self.skipped, None),
            *self.refused,
            Dropped(SAME_TIME, self.merged, None),
            *self.unchosen,
        )
        return tuple(dropped for dropped in reasons if dropped.fixes)


@dataclass(frozen=True)
class Data:
    """Files and folders with trajectories, and the selected users.

    Parameters
    ----------
    paths
        Files, folders or archives in any format of `dphmm.readers.FORMATS` or of a registered reader; or tables and
        trajectories in memory, as for `dphmm.readers.read_frame`. A user in several of them is one user.
    input_format
        As in `dphmm.read`. Defaults to detection.
    columns
        For tables: the content of a column (user, time, latitude, …) → its name.
    user
        The user of all locations, overriding the files. Defaults to the users in the files.
    user_per_file
        Whether each file without user names belongs to a separate user, named after the file. Without this and without
        `user` such a file raises an error: one user could become several.
    users, exclude_users
        Only these users; all but these.
    skip_bad
        Whether to skip malformed records and count them.
    region
        The region of the model, if it is known; see `with_region`.
    time_zone, time_format
        For tables: the zone of times without one, and the form of times that are strings or the unit of numbers since
        1970 (``"s"``, ``"ms"``, ``"us"``, ``"ns"``); as in `dphmm.read`.

    Raises
    ------
    InvalidInputError
        If `paths` is not a tuple of paths, tables or trajectories, or a path is empty.
    """

    paths: tuple[str | Path | Frame, ...]
    input_format: str | None = declare_setting(
        None, "Format: gpx, fit, tcx, kml, geojson, table, ... [default: detected]", heading=_DATA_HEADING
    )
    columns: Mapping[str, str] = declare_setting(
        {}, "Names of columns or keys: user, time, latitude, …", metavar="WHAT=NAME", heading=_DATA_HEADING
    )
    time_zone: str | None = declare_setting(
        None, "Time zone of times without one. [default: UTC]", metavar="ZONE", heading=_DATA_HEADING
    )
    time_format: str | None = declare_setting(
        None,
        "Form of times: %d.%m.%Y %H:%M:%S, …, or s, ms, us, ns since 1970. [default: ISO 8601]",
        metavar="FORM",
        heading=_DATA_HEADING,
    )
    user: str | None = declare_setting(None, "User of all of DATA. [default: the users in DATA]", heading=_DATA_HEADING)
    user_per_file: bool = declare_setting(
        False, "Treat each file without user names as a separate user.", heading=_DATA_HEADING
    )
    users: tuple[str, ...] = declare_setting((), "Only these users.", metavar="A,B,…", heading=_DATA_HEADING)
    exclude_users: tuple[str, ...] = declare_setting((), "All but these users.", metavar="A,B,…", heading=_DATA_HEADING)
    skip_bad: bool = declare_setting(False, "Skip malformed records and count them.", heading=_DATA_HEADING)
    region: Region | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        paths: object = self.paths
        # A string is a sequence too: each letter would be a path. Trajectories are one input, so that a user may have
        # several of them.
        if isinstance(paths, str | Path) or is_frame(paths):
            object.__setattr__(self, "paths", (paths,))
        elif not isinstance(paths, list | tuple):
            kind = f"{type(paths).__module__}.{type(paths).__qualname__}"
            raise InvalidInputError(f"paths must be a tuple of paths, tables or trajectories, got a {kind}")
        if any(isinstance(path, str) and not path for path in self.paths):  # it would be the working directory
            raise InvalidInputError("paths must name files, folders or archives, got ''")

    @classmethod
    @check_arguments
    def from_any(cls, data: DataLike) -> Data:
        """Convert paths, a table or trajectories to data with all users.

        Parameters
        ----------
        data
            Data; the paths of files, folders or archives; or a table or trajectories in memory.

        Returns
        -------
        Data
            The data. An instance of this class is returned unchanged.
        """
        if isinstance(data, Data):
            return data
        is_single = isinstance(data, str | Path) or is_frame(data)
        return cls((data,) if is_single else tuple(cast(Sequence[str | Path], data)))

    def with_region(self, region: Region | None) -> Data:
        """Return the same data with the region of a model.

        Parameters
        ----------
        region
            The region. A fix at the location (0, 0) is valid only if the region contains it.

        Returns
        -------
        Data
            The data.
        """
        return replace(self, region=region)

    @classmethod
    def from_options(cls, paths: Sequence[str | Path], options: Mapping[str, Any]) -> Data:
        """Create data from the options of a command or the keys of a file.

        Parameters
        ----------
        paths
            Files, folders or archives.
        options
            The name of a field → its value, None for its default. Other names are ignored.

        Returns
        -------
        Data
            The data.
        """
        names = {field.name for field in fields(cls)} - {"paths", "region"}
        values = {name: value for name, value in options.items() if name in names and value is not None}
        return cls(tuple(paths), **values)

    def read(self, may_be_empty: bool = False) -> UserTracks:
        """Read the trajectory of every selected user.

        Parameters
        ----------
        may_be_empty
            Whether no user may be left, and named users may be missing. With user-level differential privacy an error
            would reveal that a user is not in the data.

        Returns
        -------
        UserTracks
            The trajectories, and the input that was not read or selected.

        Raises
        ------
        DataFileError
            As `dphmm.read`, and if the user of a file is unknown.
        ConfigurationError
            If a requested user is missing, or no user is left, unless `may_be_empty`.
        """
        results = [self._read_path(path, may_be_empty) for path in self.paths]
        files: dict[str, str] = {}
        for user, file in (pair for result in results for pair in result.unnamed.items()):
            if user in files:
                raise build_same_name_error(file, files[user])
            files[user] = file
        everyone = [trajectory for result in results for trajectory in result.trajectories]
        merged = sum(result.merged for result in results)
        if len(results) > 1:
            everyone, num_duplicates = _merge_by_user(everyone, self.region)
            merged += num_duplicates
        if not may_be_empty:
            self._check_names({trajectory.user for trajectory in everyone})
        selected = tuple(trajectory for trajectory in everyone if self._is_selected(trajectory.user))
        if not may_be_empty:
            _check_selection(selected)
        skipped = sum(sum(result.skipped.values()) for result in results)
        sizes = ((trajectory.user, len(trajectory)) for trajectory in everyone)
        refused = Counter[str]()
        for result in results:
            refused.update(result.refused)
        dropped = tuple(Dropped(reason, count, None) for reason, count in refused.items())
        return UserTracks(selected, skipped, merged, self._count_unselected_users(sizes), dropped)

    def _count_unselected_users(self, sizes: Iterable[tuple[str, int]]) -> tuple[Dropped, ...]:
        """Return the users who were read and not selected, given users and their numbers of fixes."""
        sizes_by_reason: dict[str, list[int]] = {}
        for user, size in sizes:
            if not self._is_selected(user):
                option = "--exclude-users" if parse_user(user) in self._names[1] else "--users"
                sizes_by_reason.setdefault(f"excluded by {option}", []).append(size)
        return tuple(Dropped(reason, sum(sizes), len(sizes)) for reason, sizes in sizes_by_reason.items() if sum(sizes))

    def stream_by_path(
        self,
        check: Callable[[Iterable[str]], None] | None = None,
        dropped: list[Dropped] | None = None,
        may_be_empty: bool = False,
    ) -> Iterator[Trajectory]:
        """Iterate over the selected trajectories, with one path in memory at a time.

        A Parquet file with user names and more than `dphmm.readers.fix_tables.MAX_FIXES` fixes, in any order, is read
        once and gathered in a temporary file, with the fixes of a few users in memory at a time. See
        `dphmm.readers.fixes_on_disk.FixesOnDisk`.

        Parameters
        ----------
        check
            Called with the names of all users before the first trajectory is returned; it may raise. Several paths
            are then read twice, except for those gathered in a file.
        dropped
            Extended by the input that was not read or selected, after the last trajectory. Private.
        may_be_empty
            As for `read`.

        Returns
        -------
        Iterator of Trajectory
            One trajectory per user.

        Raises
        ------
        DataFileError
            As `dphmm.read`, and if the user of a file is unknown.
        ConfigurationError
            If a user is in two of the paths. With `check` also if a requested user is missing, and both before the
            first trajectory.
        OutputError
            If a temporary file cannot be written.
        """
        reads_in_parts = len(self.paths) > 1 or any(self._find_large_file(path) is not None for path in self.paths)
        skipped: Counter[str] = Counter()
        gathered = dict[int, FixesOnDisk]()
        everyone: Iterable[Trajectory] = self._iterate_trajectories(skipped, gathered, may_be_empty)
        everyone = everyone if reads_in_parts else list(everyone)
        if check is not None:
            names = self._collect_users(gathered, may_be_empty) if reads_in_parts else {t.user for t in everyone}
            self._check_names(names)
            check(sorted(filter(self._is_selected, names)))
        return self._select(everyone, skipped, dropped)

    def stream(self, dropped: list[Dropped], may_be_empty: bool = False) -> Iterator[Trajectory]:
        """Iterate over the selected trajectories, without a large Parquet file in memory.

        Parameters
        ----------
        dropped
            Extended by the input that was not read or selected, after the last trajectory. Private.
        may_be_empty
            As for `read`.

        Yields
        ------
        Trajectory
            One trajectory per user, in the order of `read`.

        Raises
        ------
        DataFileError, ConfigurationError
            As for `read`.
        OutputError
            If a temporary file cannot be written.
        """
        if len(self.paths) == 1:
            yield from self.stream_by_path(None if may_be_empty else _check_selection, dropped, may_be_empty)
            return
        # A user may be in several paths, and is one user.
        user_tracks = self.read(may_be_empty)
        dropped += user_tracks.not_read
        yield from user_tracks.trajectories

    def _select(
        self, everyone: Iterable[Trajectory], skipped: Counter[str], dropped: list[Dropped] | None
    ) -> Iterator[Trajectory]:
        sizes = list[tuple[str, int]]()
        for trajectory in everyone:
            if self._is_selected(trajectory.user):
                yield trajectory
            else:
                sizes.append((trajectory.user, len(trajectory)))
        if dropped is not None:
            dropped += [Dropped(reason, count, None) for reason, count in skipped.items() if count]
            dropped += self._count_unselected_users(sizes)

    def _iterate_trajectories(
        self, skipped: Counter[str], gathered: dict[int, FixesOnDisk], may_be_empty: bool = False
    ) -> Iterator[Trajectory]:
        """Yield all trajectories, and gather files on disk that are too large for memory."""
        names: set[str] = set()
        for at, path in enumerate(self.paths):
            file = self._gather(at, gathered)
            whole = [self._read_path(path, may_be_empty)] if file is None else file.read_by_users(parquet.MAX_FIXES)
            for result in whole:
                skipped[MALFORMED] += sum(result.skipped.values())
                skipped.update(result.refused)
                skipped[SAME_TIME] += result.merged
                for trajectory in result.trajectories:
                    _add_user(trajectory.user, names, path)
                    yield trajectory

    def _collect_users(self, gathered: dict[int, FixesOnDisk], may_be_empty: bool) -> set[str]:
        """Return the users of all paths, and gather files on disk that are too large for memory."""
        names: set[str] = set()
        for at, path in enumerate(self.paths):
            file = self._gather(at, gathered)
            users = [t.user for t in self._read_path(path, may_be_empty).trajectories] if file is None else file.users
            for user in users:
                _add_user(user, names, path)
        return names

    def _gather(self, at: int, gathered: dict[int, FixesOnDisk]) -> FixesOnDisk | None:
        """Return the fixes of a path on disk. None if it is not too large for memory."""
        large = None if at in gathered else self._find_large_file(self.paths[at])
        if large is not None:
            gathered[at] = large.gather()
        return gathered.get(at)

    def _find_large_file(self, path: str | Path | Frame) -> ParquetFixes | None:
        """Return a Parquet file of several users that is too large for memory, otherwise None."""
        if (
            not isinstance(path, str | Path)
            or self.input_format not in (None, "table")
            or count_parquet_rows(path) <= parquet.MAX_FIXES
        ):
            return None
        if self._get_format(path) != "table":  # a registered reader may recognise it
            return None
        instants = Instants(self.time_zone, self.time_format)
        file = ParquetFixes(Path(path), ReadOptions(self.skip_bad, self.user, self.columns, instants, self.region))
        return file if file.has_users else None

    @cached_property
    def _names(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names in `users` and `exclude_users`."""
        return frozenset(map(parse_user, self.users)), frozenset(map(parse_user, self.exclude_users))

    def _check_names(self, names: Set[str]) -> None:
        for user in [*self.users, *self.exclude_users]:
            if parse_user(user) not in set(map(parse_user, names)):
                listed = ", ".join(sorted(names)[:8]) + (", …" if len(names) > 8 else "")
                raise ConfigurationError(f"user {user!r} is not in the data, which contain {len(names)}: {listed}")

    def _read_path(self, path: str | Path | Frame, may_be_empty: bool = False) -> ReadResult:
        names = ("user", "skip_bad", "time_zone", "time_format")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        options |= {"columns": dict(self.columns) or None, "may_be_empty": may_be_empty, "region": self.region}
        if not isinstance(path, str | Path):
            return read_frame(path, **options)
        if self.user is not None and self._get_format(path) == "checkins":
            raise ConfigurationError(
                f"{path}: --user cannot be combined with check-ins, which contain user names: use --users"
            )
        result = read(path, self.input_format, user_per_file=self.user_per_file, **options)
        if result.unnamed and not self.user_per_file:
            raise build_unnamed_user_error(next(iter(result.unnamed.values())))
        return result

    def _get_format(self, path: str | Path) -> str | None:
        """Return the format of a path. None if it contains no file."""
        try:
            return self.input_format or recognise(path)
        except (EmptyDataError, ConfigurationError):  # the latter for several formats
            return None

    def _is_selected(self, user: str) -> bool:
        name = parse_user(user)  # trajectories in memory can have any name
        chosen, excluded = self._names
        return (not chosen or name in chosen) and name not in excluded


def _check_selection(users: Iterable[object]) -> None:
    if not any(True for _ in users):
        raise ConfigurationError("the data must contain a user who is not excluded (--exclude-users), got none")


@dataclass(frozen=True, eq=False)
class UserBlock:
    """Some users of a data set, as a task for a worker.

    Its representation, as in a worker's log, contains no location.

    Parameters
    ----------
    trajectories
        The locations of the users.
    """

    trajectories: tuple[Trajectory, ...] = field(repr=False)


def iterate_blocks(tracks: Iterable[Trajectory]) -> Iterator[UserBlock]:
    """Yield blocks of users of bounded size, at least one block."""
    num_fixes = 0
    is_empty = True
    block = list[Trajectory]()
    for trajectory in tracks:
        block.append(trajectory)
        num_fixes += len(trajectory)
        if len(block) >= _BLOCK_USERS or num_fixes >= _BLOCK_FIXES:
            yield UserBlock(tuple(block))
            block = []
            num_fixes = 0
            is_empty = False
    if block or is_empty:
        yield UserBlock(tuple(block))


class SupportsArrow(Protocol):
    """A table with the Arrow PyCapsule interface, as of Polars, DuckDB or pandas."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a stream of the rows."""


class SupportsDataFrame(Protocol):
    """A table with the DataFrame interchange protocol."""

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        """Return the interchange object."""


# An argument of `dphmm.readers.read_frame`.
Frame = Any

# Data; paths; or tables or trajectories in memory, with all users.
DataLike = Data | str | Path | Trajectory | SupportsArrow | SupportsDataFrame | Sequence[str | Path | Trajectory]


def _add_user(user: str, names: set[str], path: str | Path | Frame) -> None:
    """Add a user of a path, or raise if the user is in a previous path."""
    if user in names:
        source = path if isinstance(path, str | Path) else SOURCE
        raise ConfigurationError(f"{source}: user {user!r} is in an earlier input too; a user must be in one input")
    names.add(user)


def _merge_by_user(everyone: Sequence[Trajectory], region: Region | None) -> tuple[list[Trajectory], int]:
    """Return one trajectory per user, and the number of replaced fixes of the same time."""
    result = build_trajectories(
        (
            Fixes(
                track.user,
                (track.user,),
                np.zeros(len(track), np.int64),
                track.times,
                track.latitude,
                track.longitude,
                accuracy_m=track.accuracy_m,
            )
            for track in everyone
        ),
        region=region,
    )
    return list(result.trajectories), result.merged
