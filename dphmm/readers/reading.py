"""The entry points that read any format: trajectories, or the recording of one device."""

from __future__ import annotations

import codecs
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from dphmm.errors import ConfigurationError, DataFileError, EmptyDataError, NotRecordingError
from dphmm.readers.fixes import Details, Fixes, ReadOptions, ReadResult, build_trajectories
from dphmm.readers.formats import Reader, find_format, find_readers
from dphmm.readers.instants import Instants
from dphmm.readers.reader_choice import check_zipped_document, find_data_set, recognise_document
from dphmm.space.fix_quality import REASONS, ZERO_LOCATION, Region, find_refused
from dphmm.space.trajectory import Recording, Segment
from dphmm.tables.source import Document, documents, is_archive
from dphmm.validation import check_arguments

_LOG = logging.getLogger(__name__)
# The number of files that a warning names.
_MAX_LISTED = 12
_KMZ_MEMBER = ".kmz/doc.kml"


@check_arguments
def read(
    path: str | Path,
    format: str | None = None,
    *,
    skip_bad: bool = False,
    user: str | None = None,
    user_per_file: bool = False,
    columns: Mapping[str, str] | None = None,
    time_zone: str | None = None,
    time_format: str | None = None,
    may_be_empty: bool = False,
    region: Region | None = None,
) -> ReadResult:
    """Read trajectories from a file, a folder or an archive in any supported format.

    Parameters
    ----------
    path
        File, folder or archive.
    format
        One of `dphmm.readers.FORMATS`, or the name of a registered `Reader`. By default each file is recognised by its
        content; the data sets GeoLife and cabspotting by the names of their files. Registered readers precede the
        other formats. In a folder or archive, files that are not recordings are passed over and named in a warning.
    skip_bad
        By default the first malformed record raises an error. True to skip and count such records; not with registered
        readers.
    user
        The user of all fixes, if the file does not specify users or is to be overruled; with check-ins, the only user
        to read. By default GeoLife's user is the folder above ``Trajectory``, at whatever level the path enters the
        tree. A single file without user information (GPX; a table without a column of users; OwnTracks without a topic;
        a ``.plt`` elsewhere) names its user, which is recorded in the result's `unnamed`.
    user_per_file
        Whether each file without user information belongs to a different user, named after the file.
    columns
        For tables: quantity → name of its column in the file, or its number from 1 in a CSV without a header.
    time_zone
        For tables: the zone of times without one, such as ``"Asia/Shanghai"`` or ``"+08:00"``. Defaults to UTC.
    time_format
        For tables: the form of times that are strings, as for `datetime.strptime`: ``"%d.%m.%Y %H:%M:%S"``; or the unit
        of numeric times since 1970 in UTC: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``. By default strings are ISO 8601 and
        numeric times are refused.
    may_be_empty
        Whether input without a fix is valid: an empty folder, a table of which only the header is left, a file without
        records. With user-level differential privacy an error would reveal that there is no user.
    region
        The region of the model, such as its `StateSpace`. Only if it contains the location (0, 0), fixes there are
        valid.

    Returns
    -------
    ReadResult
        One trajectory per user, sorted by time, one location per timestamp, with counts of skipped, merged and refused
        records. Fixes are refused if the device marks them as invalid; see `dphmm.space.fix_quality`.

    Raises
    ------
    DataFileError
        If the input is missing, unreadable, truncated, malformed (unless skipped) or of no known format; and if one of
        several files has no user information and no option provides it.
    EmptyDataError
        If there is no fix, unless `may_be_empty`.
    ConfigurationError
        For an unknown format or zone; for columns, a form of times or a zone with a format without columns; for a file
        that several registered readers recognise; or for both a user and one user per file.
    MissingExtensionError
        If a registered reader cannot be imported, and no format is named.
    MissingDependencyError
        If the format needs a library that is not installed.
    """
    if user is not None and user_per_file:
        raise ConfigurationError("--user cannot be combined with user_per_file: each file would have two users")
    options = ReadOptions(skip_bad, user, columns or {}, Instants(time_zone, time_format), region)
    files = _Files(path, format, options, may_be_empty)
    result = build_trajectories(files.iterate_blocks(), user_per_file, region)
    if not result.trajectories and not may_be_empty:
        skipped = sum(result.skipped.values())
        raise EmptyDataError(
            path,
            f"contains no {files.wanted} ({skipped} malformed records skipped, {sum(result.refused.values())} "
            f"invalid or inaccurate fixes refused{_list_reasons(result.refused)}); check file and format",
        )
    if files.passed_over:
        _warn_of_files(path, files.passed_over)
    return replace(result, passed_over=files.passed_over)


def _list_reasons(reasons: Iterable[str]) -> str:
    listed = ", ".join(sorted(reasons))
    return f": {listed}" if listed else ""


def _warn_of_files(path: str | Path, passed_over: Mapping[str, str]) -> None:
    names = [PurePosixPath(name).name for name in passed_over]
    listed = ", ".join(names[:_MAX_LISTED]) + (", ..." if len(names) > _MAX_LISTED else "")
    count = f"{len(names)} file{'s' if len(names) > 1 else ''}"
    _LOG.warning("dphmm: warning: %s: passed over %s without a recording: %s", path, count, listed)


class _Files:
    """The files of a path that are read, each with the reader of its content.

    Parameters
    ----------
    path
        File, folder or archive.
    format
        The format of all files; None to recognise each by its content.
    options
        Options of the caller.
    may_be_empty
        Whether files without a fix, and a folder without files, are valid.

    Attributes
    ----------
    passed_over
        File of a folder or archive → its content, if it is not a recording.
    formats
        The formats of the files that were read.
    num_files
        The number of files that were read.
    """

    def __init__(self, path: str | Path, format: str | None, options: ReadOptions, may_be_empty: bool = False) -> None:
        self.passed_over: dict[str, str] = {}
        self.formats: list[str] = []
        self.num_files = 0
        self._path = path
        self._options = options
        self._may_be_empty = may_be_empty
        self._format = format
        self._readers: tuple[Reader, ...] = ()
        # Errors of files that are passed over, by format. They count if nothing else is read.
        self._problems: list[tuple[str | None, DataFileError]] = []
        if format is not None:
            self._check_format(format)

    @property
    def wanted(self) -> str:
        """The record that files of these formats lack if they are empty."""
        return find_format(self.formats[0]).wanted if self.formats else "usable fix"

    def iterate_blocks(self) -> Iterator[Fixes]:
        """Yield the fixes of all files.

        Raises
        ------
        DataFileError
            If a file cannot be read, or no file is a recording.
        """
        ignored = (EmptyDataError,) if self._may_be_empty else ()
        with suppress(*ignored):  # of a folder without files
            format_name = self._format or find_data_set(self._path)
            suffixes = None if format_name is None else find_format(format_name).suffixes
            is_single = Path(self._path).is_file() and not is_archive(self._path)
            if format_name is None:
                check_zipped_document(self._path)
                self._readers = find_readers()
            for part in documents(self._path, suffixes):
                with suppress(*ignored):
                    yield from self._read(_make_name_absolute(part, self._path), format_name, is_single)
            self._check_passed_over()

    def _read(self, document: Document, format_name: str | None, is_single: bool) -> Iterator[Fixes]:
        recognised = None
        try:
            recognised = format_name or recognise_document(document, self._readers)
            self._check_format(recognised)
            self.formats.append(recognised)
            self.num_files += 1
            file_format = find_format(recognised)
            yield from file_format.fixes(document if file_format.is_own else _to_utf8(document), self._options)
        except (NotRecordingError, EmptyDataError) as problem:
            if is_single or self._format is not None or (isinstance(problem, EmptyDataError) and self._may_be_empty):
                raise
            self.passed_over[document.source] = problem.problem
            self._problems.append((recognised, problem))
            if recognised is not None:
                self.formats.remove(recognised)
                self.num_files -= 1

    def _check_format(self, name: str) -> None:
        file_format = find_format(name)
        if file_format.has_columns:
            return
        if file_format.is_own and self._options.skip_bad:
            raise ConfigurationError(f"skip_bad cannot be combined with format {name!r}: its reader skips no records")
        if self._options.columns:
            raise ConfigurationError(f"columns cannot be combined with format {name!r}: only tables have named columns")
        if self._options.instants != Instants():
            raise ConfigurationError(
                f"time_zone and time_format cannot be combined with format {name!r}: it has its own times"
            )

    def _check_passed_over(self) -> None:
        """Raise the error of a file that was passed over if it may be a recording."""
        # Among files of its own format, a file without a fix is an error of the user rather than another content.
        for name, problem in self._problems:
            if not self.formats or (name in self.formats and not isinstance(problem, EmptyDataError)):
                raise problem


def _to_utf8(document: Document) -> Document:
    """Convert text in UTF-16 to UTF-8, except XML, which states its encoding."""
    if not document.head().startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return document
    try:
        text = document.data.decode("utf-16")
    except UnicodeDecodeError:
        return document
    return document if text.lstrip().startswith("<") else replace(document, content=text.encode())


def _make_name_absolute(document: Document, path: str | Path) -> Document:
    """Name a document on a disk by its absolute path, and one in KMZ by the archive."""
    if document.source.lower().endswith(_KMZ_MEMBER):
        return replace(document, source=document.source[: -len("/doc.kml")])
    # The user must not depend on which folder of a tree is read.
    if not (document.name.is_absolute() or Path(path).is_dir()):
        return document  # of an archive, the path of which is not one of its folders
    return replace(document, name=PurePosixPath(Path(os.path.abspath(Path(path, document.name))).as_posix()))


@check_arguments
def read_recording(
    path: str | Path,
    format: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    time_zone: str | None = None,
    time_format: str | None = None,
) -> Recording:
    """Read the recording of one user's device from a file.

    Parameters
    ----------
    path
        A file of one user in any format, also packed or in an archive.
    format, columns, time_zone, time_format
        As for `read`. Columns may also be those of elevation, segments and sensors.

    Returns
    -------
    Recording
        Its segments in the order of the file, with times, accuracy, elevation and sensors as far as the file contains
        them. Points may have no time. Invalid and inaccurate fixes are dropped; see `dphmm.space.fix_quality`.
        Points at latitude 0, longitude 0 are kept.

    Raises
    ------
    DataFileError
        If the file cannot be read, is not well formed, or contains no point, one with an invalid time or location, or
        several users.
    ConfigurationError
        As for `read`.
    MissingDependencyError
        If the format needs a library that is not installed.
    """
    options = ReadOptions(False, None, columns or {}, Instants(time_zone, time_format), None, is_recording=True)
    files = _Files(path, format, options)
    all_blocks = list(files.iterate_blocks())
    blocks = [block for block in all_blocks if len(block.times)]
    if not blocks:
        reasons = _list_reasons({reason for block in all_blocks for reason in block.refused})
        raise EmptyDataError(path, f"contains no point{reasons}; use a file with a recorded track")
    users = {(block.source, name) for block in blocks for name in block.names}
    if len(users) > 1:
        sources = {source for source, _ in users}
        what = "a single user" if len(sources) == 1 else "a single recording"
        raise DataFileError(path, f"must contain {what}, got {len(users)}")
    segments = [segment for block in blocks for segment in _build_segments(block)]
    dropped = {name for block in blocks if block.details is not None for name in block.details.dropped}
    if sum(map(len, segments)) < sum(len(block.times) for block in blocks):
        dropped.add("invalid or inaccurate points")
    if not segments:
        raise EmptyDataError(path, "contains no valid point; use a file with a recorded track")
    activity = next(filter(None, (segment.activity for segment in segments)), None)
    return Recording(tuple(segments), activity, tuple(sorted(dropped)), files.formats[0])


def _build_segments(block: Fixes) -> list[Segment]:
    """Return the segments of a block, without invalid and inaccurate fixes."""
    nothing = np.full(len(block.times), np.nan)
    accuracy = nothing if block.accuracy_m is None else block.accuracy_m
    # A GPX file states no accuracy: its recipient would take any point for exact. `dphmm.hide` names points at (0, 0).
    reasons = find_refused(block.latitude, block.longitude, accuracy, block.is_valid)
    is_kept = (reasons < 0) | (reasons == REASONS.index(ZERO_LOCATION))
    details = block.details or Details(nothing, {}, np.zeros(len(nothing), np.int64), ((0, None),))
    segments = []
    for number in np.unique(details.segment[is_kept]).tolist():
        rows = np.flatnonzero(is_kept & (details.segment == number))
        track, activity = details.tracks[number]
        sensors = {name: values[rows] for name, values in details.sensors.items() if not np.isnan(values[rows]).all()}
        segments.append(
            Segment(
                block.latitude[rows],
                block.longitude[rows],
                block.times[rows],
                details.elevation[rows],
                sensors,
                activity,
                track,
                accuracy[rows],
            )
        )
    return segments
