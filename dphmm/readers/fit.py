"""FIT: recordings of sports watches and bicycle computers.

The messages ``record`` contain a point each. A time is UTC. Records without a position, such as those of an indoor
activity, are counted and not read. The identity of the device and the user's profile are never read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime
from io import BytesIO
from math import nan
from typing import Any

from dphmm.errors import DataFileError, EmptyDataError, import_library
from dphmm.readers.fixes import FixCollector, Fixes, ReadOptions
from dphmm.readers.xml_tracks import WITHOUT_POSITION, get_activity
from dphmm.tables.source import Document
from dphmm.tables.values import as_number, shorten_message, to_microseconds

_CHECKSUM_BYTES = 2
# What the library raises for damaged bytes in addition to its own errors.
_DAMAGE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
)
# A semicircle is 180 degrees in 2**31 steps.
_DEGREES_PER_STEP = 180 / 2**31
# Sensor → fields of a record, the first that has a value is used.
_SENSORS = {
    "hr": ("heart_rate",),
    "cad": ("cadence",),
    "power": ("power",),
    "speed": ("enhanced_speed", "speed"),
    "atemp": ("temperature",),
}


def read_fit_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the points of a FIT file, which contains no user.

    Parameters
    ----------
    document
        The file.
    options
        Options of the caller. For a recording, elevation, heart rate, cadence, power, speed and temperature are read
        too.

    Yields
    ------
    Fixes
        All records with a position.

    Raises
    ------
    DataFileError
        If the file is not FIT, is damaged or cut off, or contains no position.
    MissingDependencyError
        Without fitdecode.
    """
    library = import_library("fitdecode", "files")
    collector = FixCollector(document.source, options)
    num_records = 0
    kinds: set[str] = set()
    sports: set[str] = set()
    # Only fields of developers and of an invalid size are ignored. Devices write some that they do not declare.
    # A device that does not compute the checksum writes zero.
    has_checksum = document.data[-_CHECKSUM_BYTES:] != bytes(_CHECKSUM_BYTES)
    check = library.CrcCheck.RAISE if has_checksum else library.CrcCheck.DISABLED
    try:
        with library.FitReader(
            BytesIO(document.data), check_crc=check, error_handling=library.ErrorHandling.IGNORE
        ) as reader:
            for frame in reader:
                if frame.frame_type != library.FIT_FRAME_DATA:
                    continue
                if frame.name == "record":
                    num_records += 1
                    _add_record(frame, num_records, collector)
                    yield from collector.flush()
                elif frame.name == "session":
                    sports.add(str(_get_value(frame, "sport")))
                    collector.drop("totals of the file")
                elif frame.name == "file_id":
                    kinds.add(str(_get_value(frame, "type")))
                else:
                    collector.drop(*([_DROPPED[frame.name]] if frame.name in _DROPPED else []))
    except (library.FitError, *_DAMAGE_ERRORS) as problem:
        if isinstance(problem, DataFileError):
            raise
        raise DataFileError(
            document.source, f"is damaged or cut off ({shorten_message(problem)}); copy it from the device again"
        ) from None
    if not num_records:
        what = ", ".join(sorted(kinds)) or "unknown"
        raise EmptyDataError(
            document.source, f"contains no record with a position (FIT of type {what}); use an activity"
        )
    collector.set_activity(0, get_activity(sports.pop()) if len(sports) == 1 else None)
    yield collector.get_fixes()


_DROPPED = {
    "lap": "totals of laps",
    "device_info": "devices of the file",
    "user_profile": "profile of the user",
    "hrv": "heart rate variability of the file",
}


def _get_value(frame: Any, name: str) -> Any:
    return frame.get_value(name, fallback=None)


def _add_record(frame: Any, number: int, collector: FixCollector) -> None:
    latitude, longitude = (_get_value(frame, name) for name in ("position_lat", "position_long"))
    if latitude is None or longitude is None:
        collector.pass_over(WITHOUT_POSITION)
        return
    try:
        time = _get_value(frame, "timestamp")
        microseconds = to_microseconds(time) if isinstance(time, datetime) else None
        accuracy = _get_number(frame, ("gps_accuracy",))
        elevation, sensors = nan, None
        if collector.options.is_recording:
            elevation = _get_number(frame, ("enhanced_altitude", "altitude"))
            values = {name: _get_number(frame, fields) for name, fields in _SENSORS.items()}
            sensors = {name: value for name, value in values.items() if value == value}
            collector.drop(*(["distance of points"] if _get_value(frame, "distance") is not None else []))
        north, east = (as_number(steps, "position") * _DEGREES_PER_STEP for steps in (latitude, longitude))
        collector.add(None, microseconds, north, east, accuracy, elevation=elevation, sensors=sensors)
    except ValueError as problem:
        collector.refuse(f"record {number}: {problem}")


def _get_number(frame: Any, names: tuple[str, ...]) -> float:
    values = (_get_value(frame, name) for name in names)
    return next((float(value) for value in values if isinstance(value, int | float)), nan)
