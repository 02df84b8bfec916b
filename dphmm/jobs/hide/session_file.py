"""The file of a session, which tracks what recordings of the same locations disclose."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.hide.fixed_squares import Square, distance_outside, is_certainly_far
from dphmm.hide.square_size import DEFAULT_WITHIN_KM, Place, SquareRule
from dphmm.hide.zone import CELLS, HiddenZone, Stretch, tolerance_km
from dphmm.hide.zone_inference import ADVERSARIES
from dphmm.tables import check_output, read_document, write_text
from dphmm.tables.json_toml import read_json
from dphmm.tables.values import shorten
from dphmm.tolerances import MAX_SCALE

_FORMAT = "dphmm-hidden-places-1"

# The log-likelihoods of each stretch of a recording, by adversary, and `GATES`.
LogLikelihoods = list[dict[str, FloatArray]]
# The places of gates, from which the likelihood of the adversary with a street map is computed.
GATES = "gates"


@dataclass(frozen=True)
class RecordingKey:
    """The identity of a recording in the history of a square.

    Another zone removes more of the same recording, and another format rounds its locations. Unless zones overlap, the
    gates are nearly equal, and so are their times. Planned routes have no times, and equal vertices on the same
    streets: their gates identify nothing.

    Parameters
    ----------
    kept
        The hash of the kept points.
    gates
        The hash of all gates of the square's zone with their times; None without gates, or if one has no time.
    has_times
        Whether a crossing of the zone has a time.
    num_kept
        The number of kept points.
    """

    kept: str
    gates: str | None
    has_times: bool
    num_kept: int

    def is_same(self, other: RecordingKey) -> bool:
        """Return whether two files are of one recording."""
        return self.kept == other.kept or (self.gates is not None and self.gates == other.gates)


@dataclass(frozen=True)
class Assignment:
    """The square of a location, and a bound of its distance outside. 0 inside."""

    location: Place
    square: Square
    outside_km: float


class ZoneHistory:
    """The log-likelihoods of recordings for each square, as stored in a session file.

    Squares take precedence in the order in which they were added. A location slightly outside an earlier square belongs
    to it, because a second square would place the location near their border.

    Parameters
    ----------
    recordings
        Square → key of a recording → its log-likelihoods, in order of precedence.
    num_apart
        Square → the number of first squares from which its locations are farther than the distance. They are farther
        than the tolerance of the zone from the other squares with precedence.
    kind
        The type of movement; None without a session file.
    rule
        The choice of squares.
    """

    def __init__(
        self,
        recordings: dict[Square, dict[RecordingKey, LogLikelihoods]],
        num_apart: dict[Square, int],
        kind: str | None,
        rule: SquareRule,
    ) -> None:
        self.rule = rule
        self.recordings = recordings
        self.num_apart = num_apart
        self.kind = kind
        self.squares = list(recordings)

    @classmethod
    def read(cls, path: str | Path | None, rule: SquareRule, kind: str | None) -> ZoneHistory:
        """Read a session file.

        Parameters
        ----------
        path
            The file; it need not exist. None without a session.
        rule
            The choice of squares, which must be that of the file.
        kind
            The type of movement; None for that of the file.

        Raises
        ------
        DataFileError
            If it is not a session file.
        ConfigurationError
            If it has another rule or type of movement.
        """
        if path is None:
            return cls({}, {}, None, rule)
        if not Path(path).exists():
            check_output(path)
            return cls({}, {}, None, rule)
        try:
            content = read_json(read_document(path))
            stored_format = content["format"]
            if stored_format == _FORMAT:
                distance_km, among = (None if value is None else float(value) for value in content["zones"])
                stored = str(content["kind"])
                squares = [Square(*map(int, place["square"])) for place in content["places"]]
                num_apart = {
                    square: int(place["num_apart"]) for square, place in zip(squares, content["places"], strict=True)
                }
                recordings = [_parse_recordings(place["rides"]) for place in content["places"]]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise DataFileError(path, "is not a session file written by 'dphmm hide --session'") from None
        if stored_format != _FORMAT:
            raise DataFileError(
                path, f"must be of format {_FORMAT}, got {shorten(stored_format)}: use a new file with --session"
            )
        earlier = replace(rule, distance_km=distance_km, among=among)
        if rule.sizes != earlier.sizes:
            options = []
            if distance_km is not None or among is None:
                # Exact, unlike `format_kilometres`.
                options = [f"--within {1000 * (distance_km or DEFAULT_WITHIN_KM):.12g}m"]
            options += [] if among is None else [f"--among {among:g}"]
            raise ConfigurationError(
                f"{path} tracks recordings hidden with {' and '.join(options)}, and zones of several sizes reveal more "
                "than each: use the same values, or another --session for another location"
            )
        if kind not in (None, stored):
            raise ConfigurationError(
                f"--kind must be {stored}, that of the recordings in {path}, or omitted, got {kind}: inferences of "
                "adversaries with different movement models cannot be combined"
            )
        return cls(dict(zip(squares, recordings, strict=True)), num_apart, stored, rule)

    def assign(self, location: Place, is_typed: bool) -> Assignment:
        """Assign a location to a square, which is added if it is new.

        It is the first square in which the location lies, or that it lies outside of by at most `tolerance_km`. A typed
        location also belongs to the nearest square of the session within the distance. An end of a recording does not:
        it may be another location, and points near it must not be kept. A new square has the least precedence.
        """
        location = float(location[0]), float(location[1])
        new_square = self.rule.find_square(location)
        near = []
        for square in self.squares:
            if is_certainly_far(square, *location):
                continue
            within_km = self.rule.get_within_km(square)
            tolerance = tolerance_km(square, within_km)
            outside = float(distance_outside(square, *location)[0])
            if square == new_square or outside <= tolerance:
                return Assignment(location, square, 0.0 if square == new_square else tolerance)
            if is_typed and square in self.recordings and outside <= within_km:
                near.append((outside, square))
        if near:
            nearest = min(near, key=itemgetter(0))[1]
            return Assignment(location, nearest, self.rule.get_within_km(nearest))
        self.squares.append(new_square)
        self.num_apart[new_square] = len(self.recordings) if is_typed else 0
        return Assignment(location, new_square, 0.0)

    def list_preceding_squares(self, square: Square) -> list[tuple[Square, float]]:
        """Return the squares with precedence over a square, as in `HiddenZone`."""
        others = []
        for index, other in enumerate(self.squares[: self.squares.index(square)]):
            within_km = self.rule.get_within_km(other)
            others.append((other, within_km if index < self.num_apart[square] else tolerance_km(other, within_km)))
        return others

    def add(self, square: Square, key: RecordingKey, likelihoods: LogLikelihoods) -> list[LogLikelihoods]:
        """Add a recording, once, and return all recordings of its square.

        Of the files of a recording, one with the times of its crossings counts, and of these the one with most points.
        """
        recordings = self.recordings.setdefault(square, {})
        files = [other for other in recordings if other.is_same(key)]
        if all((other.has_times, other.num_kept) <= (key.has_times, key.num_kept) for other in files):
            for other in files:
                del recordings[other]
            recordings[key] = likelihoods
        return list(recordings.values())

    def write(self, path: Path, kind: str) -> None:
        """Write the session file, readable by its owner only."""
        places = [
            {
                "square": [square.level, square.row, square.column],
                "num_apart": self.num_apart[square],
                "rides": [
                    {
                        **vars(key),
                        "stretches": [
                            {adversary: np.round(values, 6).tolist() for adversary, values in stretch.items()}
                            for stretch in likelihoods
                        ],
                    }
                    for key, likelihoods in recordings.items()
                ],
            }
            for square, recordings in self.recordings.items()
        ]
        zones = [self.rule.distance_km, self.rule.among]
        content = {"format": _FORMAT, "zones": zones, "kind": kind, "places": places}
        write_text(path, json.dumps(content, allow_nan=False) + "\n", overwrite=True, private=True)


def _parse_recordings(stored: Any) -> dict[RecordingKey, LogLikelihoods]:
    """Return the recordings of a square in a session file."""
    recordings = {}
    for ride in stored:
        likelihoods = [
            {name: np.array(stretch[name], dtype=np.float64) for name in (*ADVERSARIES, GATES)}
            for stretch in ride["stretches"]
        ]
        for likelihood in likelihoods:
            places = likelihood[GATES] = likelihood[GATES].reshape(-1, 4)
            logs = [likelihood[name] for name in ADVERSARIES]
            if not all(values.shape == (CELLS**2,) and (np.abs(values) <= MAX_SCALE).all() for values in logs):
                raise ValueError
            if len(places) > 2 or not (np.abs(places) <= [90, 360, 90, 360]).all():  # also for NaN
                raise ValueError
        gates = None if ride["gates"] is None else str(ride["gates"])
        key = RecordingKey(str(ride["kept"]), gates, bool(ride["has_times"]), int(ride["num_kept"]))
        recordings[key] = likelihoods
    return recordings


def find_gate_places(zone: HiddenZone, stretch: Stretch) -> FloatArray:
    """Return the places of the gates of a stop and of the locations ahead, ``(k, 4)``."""
    gates = [gate for gate in (stretch.entered, stretch.left) if gate is not None and zone.is_stop(stretch)]
    points = np.array([[gate.point, gate.towards] for gate in gates]).reshape(-1, 2)
    return zone.projection.to_latlon(points).reshape(-1, 4)
