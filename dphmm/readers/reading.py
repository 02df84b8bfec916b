"""The one entry to all formats: recognise what is there and read it, as trajectories or as a device recorded it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.readers.data_sets import CAB_LINE, CAB_NAME, cabs_fixes, checkins_fixes, geolife_fixes
from dphmm.readers.fixes import Fixes, ReadOptions, ReadResult, trajectories
from dphmm.readers.gpx_owntracks import gpx_fixes, gpx_recording, owntracks_fixes
from dphmm.readers.instants import Instants
from dphmm.readers.table import TABLE_SUFFIXES, table_fixes
from dphmm.space.trajectory import Recording, Segment
from dphmm.tables.source import Document, documents, member_names, suffix_of


class Format(NamedTuple):
    """How files of a format are known and read.

    Attributes
    ----------
    suffixes
        The extensions that speak for it.
    fixes
        A document, and what the caller says of it → blocks of fixes.
    wanted
        What a file without any fix lacks, for the message.
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

_KNOWN = ", ".join(sorted(FORMATS))
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
) -> ReadResult:
    """Read trajectories out of a file, a folder or an archive of any format that this package knows.

    Parameters
    ----------
    path
        What to read.
    format
        ``"geolife"``, ``"checkins"``, ``"table"``, ``"gpx"``, ``"owntracks"`` or ``"cabspotting"``; left out,
        recognised by the extensions and names and, for a text file without a telling one, by its first line.
    skip_bad
        By default the first malformed record stops the reading; true to pass over such records and count them.
    user
        The user whose fixes these are, where the file does not say or is to be overruled; with check-ins, the only
        user to read. Left out, GeoLife's user is the folder above ``Trajectory``, at whatever level the path enters
        the tree; a single file that does not say whose fixes it holds (GPX; a table without a column of users;
        OwnTracks without a topic; a ``.plt`` elsewhere) names its user, and the result's `unnamed` says so.
    user_per_file
        Whether files that do not say whose fixes they hold are each another person's, named after the file.
    columns
        For tables: what a column holds → its name in the file.
    time_unit
        For tables: what numbers in the column of times count since 1970 in UTC: ``"s"``, ``"ms"``, ``"us"`` or
        ``"ns"``. Left out, numbers are no times.
    time_zone
        For tables: the zone of times that do not say theirs, such as ``"Asia/Shanghai"`` or ``"+08:00"``; left out,
        UTC.

    Returns
    -------
    ReadResult
        One trajectory per user, sorted by time, one place per timestamp; and what was passed over or merged.

    Raises
    ------
    DataFileError
        For what is missing, unreadable, truncated, malformed (unless skipped), or of no known format; when not one
        usable fix is left; and when one of several files does not say whose fixes it holds, and nothing else does.
    ConfigurationError
        For an unknown format, unit or zone; columns, a unit or a zone for something else than a table; a folder of
        several formats; or both a user and one per file.
    MissingDependencyError
        When the format needs a library that is not installed.
    """
    name = format or recognise(path)
    if name not in FORMATS:
        raise ConfigurationError(f"format is {name!r}; it must be one of {sorted(FORMATS)}")
    if columns and name != "table":
        raise ConfigurationError(f"columns are named for a file of format {name!r}; only tables have named columns")
    instants = Instants(time_unit, time_zone)
    if instants != Instants() and name != "table":
        raise ConfigurationError(
            f"a time unit or zone is given for files of format {name!r}, which say their times' own; leave it out"
        )
    if user is not None and user_per_file:
        raise ConfigurationError("a user and one user per file are both given; give one of --user and --user-per-file")
    options, found = ReadOptions(skip_bad, user, columns or {}, instants), FORMATS[name]
    parts = (_whole_path(part, path) for part in documents(path, found.suffixes))
    result = trajectories((block for part in parts for block in found.fixes(part, options)), user_per_file)
    if not result.trajectories:
        skipped = sum(result.skipped.values())
        raise DataFileError(
            path, f"holds no {found.wanted} ({skipped} malformed records skipped); check file and format"
        )
    return result


def _whole_path(document: Document, path: str | Path) -> Document:
    """Name a document on a disk by its absolute path: its user must not depend on which folder of a tree is read."""
    if not (document.name.is_absolute() or Path(path).is_dir()):
        return document  # of an archive, whose own path is none of its folders
    return replace(document, name=PurePosixPath(Path(os.path.abspath(Path(path, document.name))).as_posix()))


@checked
def recognise(path: str | Path) -> str:
    """Recognise the format of a file, folder or archive.

    Parameters
    ----------
    path
        What to look at.

    Returns
    -------
    str
        A key of `FORMATS`.

    Raises
    ------
    DataFileError
        When it is unreadable or of no known format.
    ConfigurationError
        When a folder or archive holds several formats.
    """
    names, found = [], set()
    for name in member_names(path):
        names.append(name)
        found.add(_by_suffix(name))
        for telling in ("cabspotting", "geolife"):  # whose folders hold other texts, and whose archives are long
            if telling in found:
                return telling
    found.discard(None)
    if len(names) == 1 and found <= {"checkins"}:
        return _by_first_line(path)
    if len(found) > 1:
        kinds = sorted(str(kind) for kind in found)
        raise ConfigurationError(f"{path} holds several formats, {', '.join(kinds)}; name one with format=")
    if not found:
        raise DataFileError(path, "holds no file of a known format; name it with format= if it is one of " + _KNOWN)
    return str(found.pop())


def _by_suffix(name: str) -> str | None:
    if CAB_NAME.fullmatch(PurePosixPath(name).name):
        return "cabspotting"
    suffix = suffix_of(name)
    return next((kind for kind, known in FORMATS.items() if suffix in known.suffixes), None)


def _by_first_line(path: str | Path) -> str:
    document = next(documents(path, {suffix_of(name) for name in member_names(path)}))
    line = document.data[:_SNIFFED_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n")[0]
    told = {  # the first that holds counts
        "checkins": line.count(b"\t") == 4 and not line.lower().startswith(b"user"),
        "cabspotting": CAB_LINE.fullmatch(line) is not None,
        "gpx": line.startswith(b"<"),
        "owntracks": b"\t" in line and b"{" in line,
        "geolife": line.startswith(b"Geolife trajectory"),
        "table": any(delimiter in line for delimiter in (b",", b";", b"\t")),
    }
    if not any(told.values()):
        raise DataFileError(path, "is of no known format; name it with format= if it is one of " + _KNOWN)
    return next(kind for kind, holds in told.items() if holds)


@checked
def read_recording(path: str | Path) -> Recording:
    """Read what one person's device recorded in one file.

    Parameters
    ----------
    path
        A GPX file; or one in any other format that is read, of one person.

    Returns
    -------
    Recording
        Its segments; of other formats than GPX, one.

    Raises
    ------
    DataFileError
        When the file cannot be read, is not well formed, holds no point, one off the Earth, or several people.
    """
    path = Path(path)
    if suffix_of(path) == ".gpx":
        return gpx_recording(path)
    people = read(path).trajectories
    if len(people) != 1:
        raise DataFileError(path, f"is of {len(people)} people; give a file of one person's recording")
    one = people[0]
    return Recording((Segment(one.latitude, one.longitude, one.times, np.full(len(one), np.nan)),))
