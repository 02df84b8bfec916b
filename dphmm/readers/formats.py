"""File formats of trajectories: those of this package, and readers of other packages.

The extension of a reader of another package alone never replaces a format of this package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import isabstract
from typing import ClassVar, NamedTuple

import numpy as np

from dphmm.errors import ConfigurationError, DataFileError, MissingDependencyError
from dphmm.extensions import Registry
from dphmm.readers.delimited_data_sets import read_cab_fixes, read_checkin_fixes, read_geolife_fixes
from dphmm.readers.fit import read_fit_fixes
from dphmm.readers.fix_tables import TABLE_SUFFIXES, read_table_fixes
from dphmm.readers.fixes import Fixes, ReadOptions, check_name
from dphmm.readers.geojson_tracks import read_geojson_fixes, read_json_fixes
from dphmm.readers.google_timeline import read_timeline_fixes
from dphmm.readers.owntracks import read_owntracks_fixes
from dphmm.readers.xml_tracks import read_gpx_fixes, read_kml_fixes, read_tcx_fixes
from dphmm.space.trajectory import Trajectory
from dphmm.tables.source import Document, get_suffix
from dphmm.tables.values import shorten_message


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
    has_columns
        Whether the options of tables apply: names of columns, the unit and the zone of times.
    is_own
        Whether another package reads it.
    """

    suffixes: frozenset[str]
    fixes: Callable[[Document, ReadOptions], Iterator[Fixes]]
    wanted: str = "usable fix"
    has_columns: bool = False
    is_own: bool = False


# The formats of this package, by name.
FORMATS: Mapping[str, Format] = {
    "geolife": Format(frozenset({".plt"}), read_geolife_fixes),
    "checkins": Format(frozenset({".txt"}), read_checkin_fixes),
    "table": Format(TABLE_SUFFIXES, read_table_fixes, has_columns=True),
    "gpx": Format(frozenset({".gpx"}), read_gpx_fixes),
    "tcx": Format(frozenset({".tcx"}), read_tcx_fixes),
    "kml": Format(frozenset({".kml"}), read_kml_fixes),
    "fit": Format(frozenset({".fit"}), read_fit_fixes),
    "geojson": Format(frozenset({".geojson", ".json", ".geojsonl", ".geojsons"}), read_geojson_fixes, has_columns=True),
    "json": Format(frozenset({".json", ".jsonl", ".ndjson"}), read_json_fixes, has_columns=True),
    "timeline": Format(frozenset({".json"}), read_timeline_fixes),
    "cabspotting": Format(frozenset({".txt"}), read_cab_fixes),
    "owntracks": Format(frozenset({".rec", ".json"}), read_owntracks_fixes, "record of type location"),
}


# ---- readers of other packages -------------------------------------------------------------------------------------


class Reader(ABC):
    """A file format of another package.

    A subclass states `name`, `version` and `suffixes`, implements `read`, and has a constructor without arguments. It
    is registered by `register_reader` or by an entry point of the group ``dphmm.readers``. Its files are then read
    wherever those of this package are, also packed, in folders and in archives.
    """

    # The name of the format.
    name: ClassVar[str] = ""
    # The version of the reader.
    version: ClassVar[str] = ""
    # The extensions of such files, in lower case, such as ``(".log",)``.
    suffixes: ClassVar[tuple[str, ...]] = ()
    # The byte strings with which such a file can begin; empty if its extension identifies it.
    first_bytes: ClassVar[tuple[bytes, ...]] = ()
    # Whether the files name their users. Otherwise the users of the trajectories are ignored: the user is named after
    # the file or by the caller, as for GPX.
    has_users: ClassVar[bool] = True

    def recognises(self, head: bytes, suffix: str) -> bool:
        """Return whether a file is of this format.

        Parameters
        ----------
        head
            The first bytes of the unpacked file, 65,536 of them if it has as many; not empty.
        suffix
            The extension in lower case, without that of a packed file.

        Returns
        -------
        bool
            By default whether the file begins with one of `first_bytes`. Without them, whether it has one of
            `suffixes`.
        """
        return head.startswith(self.first_bytes) if self.first_bytes else suffix in self.suffixes

    @abstractmethod
    def read(self, document: Document) -> Iterable[Trajectory]:
        """Return or yield the trajectories of a file.

        Parameters
        ----------
        document
            The file, unpacked: its content is ``document.text()``, ``document.data``, or ``document.chunks()`` for
            large files; ``document.source`` is its name in errors.

        Returns
        -------
        Iterable of Trajectory
            Times in UTC, WGS 84 degrees. A user may have several trajectories, in any order; they are merged.

        Raises
        ------
        DataFileError
            If the file is malformed; with `document.source` and, if it has lines, the line.
        """


class _ReaderRegistry(Registry[Reader]):
    """The readers of other packages, the declarations of which are checked."""

    def register(self, extension: type[Reader]) -> type[Reader]:
        """Register a reader. See `register_reader`."""
        if isinstance(extension, type) and issubclass(extension, Reader):
            _check_declaration(extension)
        return super().register(extension)


# The readers of other packages.
READER_REGISTRY = _ReaderRegistry(Reader, "dphmm.readers", tuple(FORMATS))  # type: ignore[type-abstract]  # an abstract class is intended


def register_reader(reader: type[Reader]) -> type[Reader]:
    """Register a reader under its `name` and `version`. Usable as a decorator.

    Parameters
    ----------
    reader
        The class.

    Returns
    -------
    type
        The class.

    Raises
    ------
    ConfigurationError
        If it does not inherit from `Reader`, its name or version is invalid, the name belongs to another reader, or its
        files cannot be recognised: it has no extension, or only that of a format of this package.
    """
    return READER_REGISTRY.register(reader)


def _check_declaration(reader: type[Reader]) -> None:
    """Check that a class is complete and that its files can be recognised."""
    label = f"{reader.__module__}.{reader.__qualname__}"
    if isabstract(reader):
        raise ConfigurationError(f"{label} must implement read")
    suffixes, first_bytes = reader.suffixes, reader.first_bytes
    if not _are_all(suffixes, str) or not all(get_suffix(f"a{suffix}") == suffix for suffix in suffixes):
        raise ConfigurationError(
            f"suffixes of {label} must be a tuple of extensions in lower case, such as ('.log',), got {suffixes!r}"
        )
    if first_bytes != () and not (_are_all(first_bytes, bytes) and all(first_bytes)):
        raise ConfigurationError(f"first_bytes of {label} must be a tuple of byte strings, got {first_bytes!r}")
    shared = {suffix for file_format in FORMATS.values() for suffix in file_format.suffixes} & set(suffixes)
    if shared and not first_bytes and reader.recognises is Reader.recognises:
        raise ConfigurationError(
            f"suffixes of {label} must not be those of other formats, unless it states first_bytes or implements "
            f"recognises, got {sorted(shared)[0]!r}"
        )


def _are_all(values: object, kind: type) -> bool:
    return isinstance(values, tuple) and bool(values) and all(isinstance(value, kind) for value in values)


def find_format(name: str) -> Format:
    """Return a format by its name.

    Parameters
    ----------
    name
        A key of `FORMATS`, or the name of a registered or installed reader, with or without ``@version``.

    Returns
    -------
    Format
        The format.

    Raises
    ------
    ConfigurationError
        If there is no such format.
    MissingExtensionError
        If another version is installed, or the reader cannot be imported.
    """
    if name in FORMATS:
        return FORMATS[name]
    reader_name, _, version = name.partition("@")
    if not version and reader_name not in READER_REGISTRY.list_names():
        raise ConfigurationError(
            f"the format of the input must be one of {', '.join(sorted(FORMATS))} or a registered reader, got {name!r}"
        )
    reader = _create(READER_REGISTRY.find(reader_name, version or None))
    return Format(frozenset(reader.suffixes), partial(_read_own, reader), is_own=True)


def find_readers() -> tuple[Reader, ...]:
    """Return all registered and installed readers, in the order of their names.

    Raises
    ------
    MissingExtensionError
        If one cannot be imported. Its files could otherwise be read as another format.
    """
    return tuple(_create(READER_REGISTRY.find(name)) for name in READER_REGISTRY.list_names())


def _create(reader: type[Reader]) -> Reader:
    try:
        return reader()
    except Exception as problem:  # the class of another package can raise any error
        raise ConfigurationError(
            f"reader {reader.name!r} must be created without arguments: {shorten_message(problem)}"
        ) from problem


def _read_own(reader: Reader, document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the fixes of a file that a reader of another package reads."""
    with refuse_failures(reader, document.source):
        result = reader.read(document)
    if not isinstance(result, Iterable):
        raise _build_error(
            reader, document.source, f"must return an iterable of Trajectory, got {_get_type_name(result)}"
        )
    tracks = iter(result)
    while True:
        with refuse_failures(reader, document.source):
            track = next(tracks, _END)
            if isinstance(track, Trajectory):
                # Again: a subclass may omit the checks of its arrays.
                track = Trajectory(track.user, track.times, track.latitude, track.longitude, track.accuracy_m)
        if track is _END:
            return
        if not isinstance(track, Trajectory):
            raise _build_error(reader, document.source, f"must yield Trajectory objects, got {_get_type_name(track)}")
        user = options.user or (track.user if reader.has_users else None)
        if user is not None:
            check_name(user, document.source)
        owner = np.zeros(len(track), np.int64)
        yield Fixes(
            document.source, (user,), owner, track.times, track.latitude, track.longitude, accuracy_m=track.accuracy_m
        )


_END = object()


def _get_type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


@contextmanager
def refuse_failures(reader: Reader, source: str) -> Iterator[None]:
    """Convert errors of a reader, except those about a file, to one that names the reader."""
    try:
        yield
    except (DataFileError, MissingDependencyError, MemoryError):
        raise
    except Exception as problem:  # the class of another package can raise any error
        reason = shorten_message(problem)
        kind = type(problem).__name__
        raise _build_error(reader, source, f"failed: {kind}{'' if reason == kind else f': {reason}'}") from problem


def _build_error(reader: Reader, source: str, problem: str) -> DataFileError:
    return DataFileError(source, f"reader {reader.name!r} {reader.version} {problem}")
