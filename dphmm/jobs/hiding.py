"""One recording with a place hidden in it: exact elsewhere, nothing told around the place, and what that is worth.

What is written is a function of the recording outside the zones, and of which public square each place lies in: with
the same way outside the same file comes out, byte for byte, wherever in the square the place is and whatever happened
in the zone. Nothing is drawn: in the zone of noise by component a budget of zero says as much, and costs nothing when
the next recording comes. Names, descriptions, totals and bounds of a file go, since they tell of all of it, and so do
heart rate and temperature, which tell how long ago somebody set out, unless they are kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, as_floats, content_hash
from dphmm.audit.hidden_place import CELLS, READERS, Gate, HiddenZone, Known, Stretch, known_of
from dphmm.errors import ConfigurationError, CoordinateError, DataFileError
from dphmm.facts import metres
from dphmm.readers.reading import read_recording
from dphmm.space.grid import Square
from dphmm.space.trajectory import Recording, Segment
from dphmm.tables import check_output, read_document, write_text
from dphmm.tables.json_toml import read_json
from dphmm.tables.values import shorten
from dphmm.tables.vector_files import geometry_of, read_features
from dphmm.writers.recordings import check_recording, write_recording

STEADY = ("cad", "power", "speed", "course")
"""The sensors that are kept unless it is said: what they say does not follow from how long somebody is on the way."""

_CORE = 1.5
"""The core is at least this many times as wide as the distance asked for."""
_FORMAT = "dphmm-hidden-places-1"
_LIKE_IT = 10
_AHEAD_KM = 0.1
_SLIP = 0.2
"""An end is a known place's if it lies in its core, or off it by this share of the distance asked for at most, and by
no more than the ring is wider than that distance: no point so near to it is told either."""


@dataclass(frozen=True)
class HiddenPlace:
    """A place that is hidden, and what readers know of it. Public but for that there was a place to hide.

    Parameters
    ----------
    zone
        Where nothing is told.
    stretches
        How the recording went into it and out of it.
    known
        What each reader knows from this recording.
    known_from_all
        And from all recordings in the file of sessions; the same without one.
    known_from_like_it
        And from ten recordings, each with the ways in and out of this one.
    recordings
        How many there are in all.
    """

    zone: HiddenZone
    stretches: tuple[Stretch, ...]
    known: tuple[Known, ...]
    known_from_all: tuple[Known, ...]
    known_from_like_it: tuple[Known, ...]
    recordings: int


@dataclass(frozen=True)
class Hidden:
    """A recording with places hidden in it.

    Parameters
    ----------
    public
        What was told of it.
    places
        The places that it passes or ends at.
    points, hidden
        How many points the recording had, and how many of them are not told. Private.
    within_km
        The distance asked for.
    left_out
        What of the file is not told besides.
    has_session
        Whether recordings are counted in a file.
    """

    public: Recording
    places: tuple[HiddenPlace, ...]
    points: int
    hidden: int
    within_km: float
    left_out: tuple[str, ...]
    has_session: bool

    @property
    def sentences(self) -> tuple[str, ...]:
        """What a reader can still tell, what they cannot, and what several recordings add up to; for each place."""
        found: list[str] = []
        for place in self.places:
            found += _sentences(place, self.within_km, self.has_session)
        return tuple(found)

    def facts(self) -> dict[str, Any]:
        """What was hidden and what is known of it; of the owner alone, since it counts what is not told.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        return {
            "points_told": len(self.public),
            "private_points_hidden": self.hidden,
            "left_out_besides": ", ".join(self.left_out) or "nothing",
            "places": [_facts(place) for place in self.places],
        }


def _facts(place: HiddenPlace) -> dict[str, Any]:
    south, west, north, east = place.zone.square.box
    said: dict[str, Any] = {
        "somewhere_in": [round(side, 6) for side in (south, west, north, east)],
        "zone_km": 2 * place.zone.half_km,
        "ways": [_way(place.zone, one) for one in place.stretches],
        "recordings": place.recordings,
    }
    for what, known in (
        ("", place.known),
        ("_from_all", place.known_from_all),
        ("_from_ten", place.known_from_like_it),
    ):
        for one in known:
            reader = one.reader.replace(" ", "_")
            said |= {f"certainty{what}_{reader}": one.certainty, f"error_m{what}_{reader}": 1000 * one.error_km}
    return said


def _one_in(certainty: float) -> str:
    """Odds, never on the weak side: of 'one in', the whole number below; of percent, the one above."""
    return f"1 in {int(1 / certainty + 1e-9):,}" if certainty < 0.5 else f"{ceil(100 * certainty - 1e-9)} %"


def _sentences(place: HiddenPlace, within_km: float, has_session: bool) -> list[str]:
    zone, best = place.zone, max(place.known, key=lambda one: one.certainty)
    latitude, longitude = zone.square.centre
    side, cell, whole = (metres(one) for one in (zone.square.side_km, zone.grid.cell_km, 2 * zone.half_km))
    ways = ", ".join(dict.fromkeys(_way(zone, one) for one in place.stretches))
    can = (
        f"A reader can still tell that you were in the square of {whole} about {latitude:.4f}, {longitude:.4f}, when "
        f"and by which way ({ways}): one who {best.reader} gives the likeliest {cell} by {cell} of its middle "
        f"{_one_in(best.certainty)} (before: 1 in {CELLS**2}), and expects your place {metres(best.error_km)} from "
        "their best guess."
    )
    cannot = (
        f"They cannot tell from this file where in that middle, {side} by {side}, your place is, beyond what the way "
        f"outside says: the same file comes out wherever in it you are, and no point within {metres(within_km)} of it "
        "is kept; somebody who knows which houses stand there, your streets, or more recordings of yours knows more."
    )
    later = max(place.known_from_like_it, key=lambda one: one.certainty)
    adds = (
        f"ten that go in and out like this one would make that {_one_in(later.certainty)}, and the distance "
        f"{metres(later.error_km)}"
    )
    if has_session:
        total = max(place.known_from_all, key=lambda one: one.certainty)
        count = f"{place.recordings} recording{'s' if place.recordings > 1 else ''} so far"
        more = f"Recordings of one place add up: {count} make that {_one_in(total.certainty)}; {adds}."
    else:
        more = (
            f"Recordings of one place add up: {adds}; give the same place and distance each time, or keep a --session."
        )
    return [can, cannot, more]


def _way(zone: HiddenZone, stretch: Stretch) -> str:
    if stretch.entered is None:
        return "you set out in it"
    if stretch.left is None:
        return "you arrived in it"
    return "you stopped in it" if zone.is_stop(stretch) else "you passed through it"


Place = tuple[float, float]
"""Latitude and longitude in degrees."""


@checked
def hide(
    data: str | Path,
    near: str | Path | npt.ArrayLike = (),
    within_km: float = 0.5,
    output: str | Path | None = None,
    *,
    ends: bool = False,
    kind: str | None = None,
    keep: Sequence[str] = (),
    times: bool = True,
    session: str | Path | None = None,
    overwrite: bool = False,
) -> Hidden:
    """Hide places in one recording, as ``dphmm hide`` does.

    Parameters
    ----------
    data
        A GPX file, or another of one person.
    near
        ``(n, 2)``: the places, latitude and longitude in degrees; or a GeoJSON file of points.
    within_km
        No point within this distance of a place is told, nor of any other place in the same public square: that is the
        smallest of 25 m to 12.8 km, doubled again and again, at least one and a half times as wide as this distance.
    output
        The file to write: .gpx, .geojson or .csv.
    ends
        Hide where the recording begins and ends, wherever that is.
    kind
        How a reader takes people to move: ``"walking"``, ``"cycling"`` or ``"driving"``; left out, what the file says
        of itself, or cycling.
    keep
        Sensors to keep besides `STEADY`: ``"hr"``, ``"atemp"``.
    times
        Whether times are told.
    session
        A file that keeps count of what several recordings of the same places tell; made where there is none.
    overwrite
        Whether an output that exists may be replaced.

    Returns
    -------
    Hidden
        What is kept, and what a reader knows from it.

    Raises
    ------
    ConfigurationError
        When there is no place, none is in the recording, all of it is, or options do not go together.
    CoordinateError
        When a place is not on the Earth.
    OutputError
        When the output exists; before anything is read.
    DataFileError
        When a file cannot be read.

    Examples
    --------
    >>> done = hide("data/sample/ride.gpx", near=[(45.01, -30.01)], within_km=0.5)
    >>> done.places[0].zone.square.side_km, len(done.public) < done.points
    (0.8, True)
    """
    if output is not None:
        check_output(check_recording(output), overwrite)
    unknown = sorted(set(keep) - {"hr", "atemp"})
    if unknown:
        raise ConfigurationError(f"keep names {unknown[0]!r}; give hr (heart rate) or atemp (temperature)")
    spots = _places(near) if isinstance(near, str | Path) else _pairs(near)
    if not spots and not ends:
        raise ConfigurationError("no place is given; give --near LATITUDE,LONGITUDE, a file of points, or --ends")
    squares = [Square.around(*spot, least_km=_CORE * within_km) for spot in spots]
    counted = _Counted.read(session, within_km, kind)
    recording = read_recording(data)
    moves = kind or counted.kind or _MOVES.get(recording.activity or "", "cycling")
    points = Segment.joined(recording.segments)
    if ends:
        for at in (0, -1):
            squares.append(counted.square(points.latitude[at], points.longitude[at], within_km, moves, squares))
    zones = [HiddenZone(one, within_km, moves) for one in dict.fromkeys(squares)]
    inside = [zone.holds(points.latitude, points.longitude) for zone in zones]
    hidden = np.logical_or.reduce(inside)
    if not hidden.any():
        raise ConfigurationError(f"{data}: no point lies near the place; is --near latitude first, then longitude?")
    if hidden.all():
        raise ConfigurationError(
            f"{data}: every point lies near the place, so that nothing is left; take a shorter --within"
        )
    told = _told(recording, hidden, (*STEADY, *keep), times)
    stretches = _stretches(points, hidden, times)
    ride = content_hash("ride", *(part for one in told.segments for part in (one.latitude, one.longitude)))
    found = []
    for zone, where in zip(zones, inside, strict=True):
        ways = tuple(_in_plane(zone, points, one) for one in stretches if where[one[0] : one[1]].any())
        if not ways:
            continue
        likely = [zone.log_likelihoods(one) for one in ways]
        rides = counted.add(zone.square, ride, likely)
        every = [one for each in rides for one in each]
        known, known_from_all, from_ten = (known_of(zone, some) for some in (likely, every, _LIKE_IT * likely))
        found.append(HiddenPlace(zone, ways, known, known_from_all, from_ten, len(rides)))
    if session is not None:
        counted.write(Path(session), within_km, moves)
    if output is not None:
        write_recording(output, told, overwrite)
    left = [*recording.left_out, *(f"{one} of points" for one in _dropped(points, keep)), *([] if times else ["times"])]
    return Hidden(
        told, tuple(found), len(points), int(hidden.sum()), within_km, tuple(sorted(left)), session is not None
    )


_MOVES = {"running": "walking", "walking": "walking", "hiking": "walking", "driving": "driving"}
"""What a file calls an activity → how a reader takes people to move."""


def _pairs(near: npt.ArrayLike) -> list[Place]:
    """Places out of an array."""
    found = as_floats(near, "near", CoordinateError)
    if found.size and (found.ndim != 2 or found.shape[1] != 2):
        raise CoordinateError(f"near has shape {found.shape}; give a latitude and a longitude for each place")
    return [(float(y), float(x)) for y, x in found.reshape(-1, 2)]


def _places(path: str | Path) -> list[Place]:
    """The points of a GeoJSON file."""
    found = []
    for number, feature in enumerate(read_features(read_document(path)), start=1):
        try:
            point = geometry_of(feature.geometry, ("Point",))
        except ValueError as problem:
            raise DataFileError(path, f"feature {number}: {problem}") from None
        if point is None or point.is_empty:
            raise DataFileError(path, f"feature {number} has no place; give a Point")
        found.append((float(point.y), float(point.x)))
    return found


def _dropped(points: Segment, keep: Sequence[str]) -> list[str]:
    return [name for name in points.sensors if name not in (*STEADY, *keep)]


def _told(recording: Recording, hidden: BoolArray, keep: Sequence[str], times: bool) -> Recording:
    """What is kept of a recording: its points that are not hidden, in segments that do not run across hidden ones."""
    told, first = list[Segment](), 0
    for one in recording.segments:
        known = replace(one, sensors={name: values for name, values in one.sensors.items() if name in keep})
        if not times:
            known = replace(known, times=np.full(len(one), np.datetime64("NaT", "us")))
        told += known.runs(~hidden[first : first + len(one)])
        first += len(one)
    return Recording(tuple(told), recording.activity)


def _stretches(points: Segment, hidden: BoolArray, times: bool) -> list[tuple[int, int, float | None]]:
    """The hidden stretches: their first point, the one after their last, and the seconds between the exact ones."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], hidden, [False]]).astype(np.int8))).reshape(-1, 2)
    found = []
    for first, last in ends.tolist():
        seconds = None
        if times and first > 0 and last < len(points):
            took = points.times[last] - points.times[first - 1]
            seconds = None if np.isnat(took) or took < np.timedelta64(0, "us") else float(took / np.timedelta64(1, "s"))
        found.append((first, last, seconds))
    return found


def _in_plane(zone: HiddenZone, points: Segment, stretch: tuple[int, int, float | None]) -> Stretch:
    first, last, seconds = stretch
    entered = _gate(zone, points, range(first - 1, -1, -1)) if first > 0 else None
    left = _gate(zone, points, range(last, len(points))) if last < len(points) else None
    return Stretch(entered, left, seconds)


def _gate(zone: HiddenZone, points: Segment, along: range) -> Gate:
    """The gate at the first of some points, and the first of the others that is 100 m away, as far as 1,000 go."""
    some = list(along)[:1000]
    plane = zone.projection.to_plane(points.latitude[some], points.longitude[some])
    far = np.flatnonzero(np.hypot(*(plane - plane[0]).T) >= _AHEAD_KM)
    return Gate(plane[0], plane[far[0]] if len(far) else np.full(2, np.nan))


Told = list[dict[str, FloatArray]]
"""What each stretch of a recording says."""


class _Counted:
    """What recordings told of each square, as a file of sessions keeps it."""

    def __init__(self, rides: dict[Square, dict[str, Told]], kind: str | None) -> None:
        self.rides, self.kind = rides, kind

    @classmethod
    def read(cls, path: str | Path | None, within_km: float, kind: str | None) -> _Counted:
        if path is None:
            return cls({}, None)
        if not Path(path).exists():
            check_output(path)
            return cls({}, None)
        try:
            about = read_json(read_document(path))
            found = about["format"]
            if found == _FORMAT:
                said = float(about["within_km"]), str(about["kind"])
                rides = {Square(*map(int, place["square"])): _rides(place["rides"]) for place in about["places"]}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise DataFileError(
                path, "is no file of hidden places; name one that 'dphmm hide --session' made"
            ) from None
        if found != _FORMAT:
            raise DataFileError(
                path, f"must be of format {_FORMAT}, got {shorten(found)}; name a new file with --session"
            )
        if (within_km, kind or said[1]) != said:
            raise ConfigurationError(
                f"{path} counts recordings hidden within {metres(said[0])} by {said[1]}: zones of several sizes "
                "tell more than each; give the same, or another --session for another place"
            )
        return cls(rides, said[1])

    def square(
        self, latitude: float, longitude: float, within_km: float, kind: str, others: Sequence[Square]
    ) -> Square:
        """The square of an end; that of a place known already where it lies in its core, or just beside it."""
        for known in (*others, *self.rides):
            core = HiddenZone(known, within_km, kind)
            off = np.abs(core.projection.to_plane(latitude, longitude)).max() - known.side_km / 2
            if off <= min(_SLIP * within_km, core.half_km - known.side_km / 2 - within_km):
                return known
        return Square.around(float(latitude), float(longitude), _CORE * within_km)

    def add(self, square: Square, ride: str, told: Told) -> list[Told]:
        """Count a recording, once; all that are counted of its square."""
        self.rides.setdefault(square, {})[ride] = told
        return list(self.rides[square].values())

    def write(self, path: Path, within_km: float, kind: str) -> None:
        places = [
            {
                "square": [one.level, one.row, one.column],
                "rides": {
                    ride: [{reader: np.round(values, 6).tolist() for reader, values in way.items()} for way in told]
                    for ride, told in rides.items()
                },
            }
            for one, rides in self.rides.items()
        ]
        about = {"format": _FORMAT, "within_km": within_km, "kind": kind, "places": places}
        write_text(path, json.dumps(about, allow_nan=False) + "\n", overwrite=True, private=True)


def _rides(said: Any) -> dict[str, Told]:
    """What a file says of the recordings of a square."""
    found = {}
    for ride, told in said.items():
        found[str(ride)] = [{reader: np.array(way[reader], dtype=np.float64) for reader in READERS} for way in told]
        if not all(
            values.shape == (CELLS**2,) and np.isfinite(values).all() for way in found[ride] for values in way.values()
        ):
            raise ValueError
    return found
