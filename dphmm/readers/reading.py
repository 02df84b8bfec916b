"""Format detection, and the entry point that reads any format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from dphmm.errors import ConfigurationError, DataFileError, EmptyDataError
from dphmm.readers.data_sets import CAB_LINE, CAB_NAME, cabs_fixes, checkins_fixes, geolife_fixes
from dphmm.readers.fixes import Fixes, ReadOptions, ReadResult, trajectories
from dphmm.readers.gpx_owntracks import gpx_fixes, gpx_recording, owntracks_fixes
from dphmm.readers.instants import Instants
from dphmm.readers.table import TABLE_SUFFIXES, table_fixes
from dphmm.space.fix_quality import Region
from dphmm.space.trajectory import Recording, Segment
from dphmm.tables.source import Document, documents, get_suffix, member_names
from dphmm.validation import checked


class Format(NamedTuple):
    """A file format: its extensions and its reader.

    Attributes
    ----------
    suffixes
        The extensions of such files.
    fixes
        Function of a document and the options of the caller that yields blocks of fixes.
    wanted
        The record that an empty file lacks, for the message.
    """

    suffixes: frozenset[str]
    fixes: Callable[[Document, ReadOptions], Iterator[Fixes]]
    wanted: str = "usable fix"


FORMATS: Mapping[str, Format] = {
    "geolife": Format(frozenset({".plt"}), geolife_fixes),
    "checkins": Format(frozenset({".txt"}), checkins_fixes),
    "table": Format(TABLE_SUFFIXES, table_fixes),
    "gpx": Format(frozenset({".gpx"}), gpx_fixes),
    "cabspotting": Format(frozenset({".txt"}), cabs_fixes),
    "owntracks": Format(frozenset({".rec"}), owntracks_fixes, "record of type location"),
}
"""The formats by name."""

_FORMAT_NAMES = ", ".join(sorted(FORMATS))
_SNIFFED_BYTES = 4096


@checked
def read(
    path: str | Path,
    format: str | None = None,
    *,
    skip_bad: bool = False,
    user: str | None = None,
    user_per_file: bool = False,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
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
        ``"geolife"``, ``"checkins"``, ``"table"``, ``"gpx"``, ``"owntracks"`` or ``"cabspotting"``. By default it is
        recognised by extensions and names, and by the first line of a text file with an ambiguous extension.
    skip_bad
        By default the first malformed record raises an error. True to skip and count such records.
    user
        The user of all fixes, if the file does not specify users or is to be overruled; with check-ins, the only user
        to read. By default GeoLife's user is the folder above ``Trajectory``, at whatever level the path enters the
        tree. A single file without user information (GPX; a table without a column of users; OwnTracks without a topic;
        a ``.plt`` elsewhere) names its user, which is recorded in the result's `unnamed`.
    user_per_file
        Whether each file without user information belongs to a different user, named after the file.
    columns
        For tables: quantity → name of its column in the file, or its number from 1 in a CSV without a header.
    time_unit
        For tables: the unit of numeric times since 1970 in UTC: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``. By default
        numeric times are refused.
    time_zone
        For tables: the zone of times without one, such as ``"Asia/Shanghai"`` or ``"+08:00"``. Defaults to UTC.
    time_format
        For tables: the form of times that are strings, as for `datetime.strptime`: ``"%d.%m.%Y %H:%M:%S"``. Defaults to
        ISO 8601.
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
        For an unknown format, unit or zone; for columns, a unit or a zone with another format than a table; for a
        folder of several formats; or for both a user and one user per file.
    MissingDependencyError
        If the format needs a library that is not installed.
    """
    try:
        name = format or recognise(path)
    except EmptyDataError:
        if may_be_empty:
            return ReadResult((), {}, 0)
        raise
    if name not in FORMATS:
        raise ConfigurationError(f"format must be one of {sorted(FORMATS)}, got {name!r}")
    if columns and name != "table":
        raise ConfigurationError(f"columns cannot be combined with format {name!r}: only tables have named columns")
    instants = Instants(time_unit, time_zone, time_format)
    if instants != Instants() and name != "table":
        raise ConfigurationError(
            f"time_unit and time_zone cannot be combined with format {name!r}: its times have a fixed unit and zone"
        )
    if user is not None and user_per_file:
        raise ConfigurationError("--user cannot be combined with user_per_file: each file would have two users")
    options = ReadOptions(skip_bad, user, columns or {}, instants, region)
    file_format = FORMATS[name]
    ignored = (EmptyDataError,) if may_be_empty else ()
    result = trajectories(_blocks(path, file_format, options, ignored), user_per_file, region)
    if not result.trajectories and not may_be_empty:
        skipped = sum(result.skipped.values())
        raise EmptyDataError(
            path,
            f"contains no {file_format.wanted} ({skipped} malformed records skipped, {sum(result.refused.values())} "
            "invalid or inaccurate fixes refused); check file and format",
        )
    return result


def _blocks(
    path: str | Path, file_format: Format, options: ReadOptions, ignored: tuple[type[EmptyDataError], ...]
) -> Iterator[Fixes]:
    """Yield the fixes of all files, without the errors of files that contain no fix."""
    with suppress(*ignored):  # of a folder without files
        for part in documents(path, file_format.suffixes):
            with suppress(*ignored):
                yield from file_format.fixes(_whole_path(part, path), options)


def _whole_path(document: Document, path: str | Path) -> Document:
    """Name a document on a disk by its absolute path."""
    # The user must not depend on which folder of a tree is read.
    if not (document.name.is_absolute() or Path(path).is_dir()):
        return document  # of an archive, the path of which is not one of its folders
    return replace(document, name=PurePosixPath(Path(os.path.abspath(Path(path, document.name))).as_posix()))


@checked
def recognise(path: str | Path) -> str:
    """Recognise the format of a file, folder or archive.

    Parameters
    ----------
    path
        The file, folder or archive.

    Returns
    -------
    str
        A key of `FORMATS`.

    Raises
    ------
    DataFileError
        If it is unreadable or of no known format.
    EmptyDataError
        If it contains no file, or an empty one of a format that its extension does not determine.
    ConfigurationError
        If a folder or archive contains several formats.
    """
    names = []
    formats = set()
    for name in member_names(path):
        names.append(name)
        formats.add(_by_suffix(name))
        # Folders of these contain other text files, and their archives are long: stop at the first match.
        for format_name in ("cabspotting", "geolife"):
            if format_name in formats:
                return format_name
    formats.discard(None)
    if len(names) == 1 and formats <= {"checkins"}:
        return _by_first_line(path)
    if len(formats) > 1:
        names_of_formats = sorted(str(format_name) for format_name in formats)
        raise ConfigurationError(f"{path} contains several formats, {', '.join(names_of_formats)}; set format=")
    if not names:
        raise EmptyDataError(path, "contains no file; check the folder")
    if not formats:
        raise DataFileError(path, "contains no file of a known format; set format= if it is one of " + _FORMAT_NAMES)
    return str(formats.pop())


def _by_suffix(name: str) -> str | None:
    if CAB_NAME.fullmatch(PurePosixPath(name).name):
        return "cabspotting"
    suffix = get_suffix(name)
    return next((name for name, file_format in FORMATS.items() if suffix in file_format.suffixes), None)


def _by_first_line(path: str | Path) -> str:
    document = next(documents(path, {get_suffix(name) for name in member_names(path)}))
    line = document.data[:_SNIFFED_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n")[0]
    if not document.data.strip():
        raise EmptyDataError(path, "is empty, so its format is unknown; set format= if it is one of " + _FORMAT_NAMES)
    candidates = {  # the first match counts
        "checkins": line.count(b"\t") == 4 and not line.lower().startswith(b"user"),
        "cabspotting": CAB_LINE.fullmatch(line) is not None,
        "gpx": line.startswith(b"<"),
        "owntracks": b"\t" in line and b"{" in line,
        "geolife": line.startswith(b"Geolife trajectory"),
        "table": any(delimiter in line for delimiter in (b",", b";", b"\t")),
    }
    if not any(candidates.values()):
        raise DataFileError(path, "is of no known format; set format= if it is one of " + _FORMAT_NAMES)
    return next(name for name, matches in candidates.items() if matches)


@checked
def read_recording(path: str | Path) -> Recording:
    """Read the recording of one user's device from a file.

    Parameters
    ----------
    path
        A GPX file, or a file of one user in any other format.

    Returns
    -------
    Recording
        Its segments; a single one for formats other than GPX.

    Raises
    ------
    DataFileError
        If the file cannot be read, is not well formed, or contains no point, one with coordinates out of range, or
        several users.
    """
    path = Path(path)
    if get_suffix(path) == ".gpx":
        return gpx_recording(path)
    users = read(path).trajectories
    if len(users) != 1:
        raise DataFileError(path, f"must contain a single user, got {len(users)}")
    user = users[0]
    return Recording((Segment(user.latitude, user.longitude, user.times, np.full(len(user), np.nan)),))
