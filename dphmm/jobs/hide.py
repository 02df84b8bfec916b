"""Protect locations in one recording and keep the rest exact.

The output is a function of the points outside the zones and of the public square that contains each location. With the
same track outside, every location in the square yields the same file, byte for byte, whatever happened in the zone.
The method is deterministic. Noise with a budget of zero would reveal as little; any larger budget would accumulate over
recordings. Names, descriptions, totals and bounds of a file are removed, because they describe the whole recording.
The totals that TCX requires are computed from the published points.
Heart rate and temperature are removed by default, because they indicate the time since the start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, as_floats, content_hash, runs
from dphmm.errors import ConfigurationError, CoordinateError, DataFileError
from dphmm.formatting import Result, metres
from dphmm.hide.points import (
    MOVEMENT_OF_ACTIVITY,
    TRIP_GAP,
    Points,
    are_many,
    check_errors,
    describe_point,
    distance_km,
    find_ends,
    find_errors,
    find_jumps,
    publish,
)
from dphmm.hide.recordings import check_recording, find_losses, write_recording
from dphmm.hide.zone import (
    ADVERSARIES,
    CELLS,
    MIN_STOP_SECONDS,
    Gate,
    HiddenZone,
    Stretch,
    ZoneInference,
    distance_outside,
    infer_location,
    is_certainly_far,
    tolerance_km,
)
from dphmm.readers.reading import read_recording
from dphmm.space.coordinates import parse_coordinates
from dphmm.space.grid import Square
from dphmm.space.trajectory import Recording, Segment
from dphmm.tables import check_output, read_document, write_text
from dphmm.tables.json_toml import read_json
from dphmm.tables.values import shorten
from dphmm.tables.vector_files import parse_geometry, read_features
from dphmm.validation import Kilometres, checked

STEADY_SENSORS = ("cad", "power", "speed", "course")
"""The sensors that are kept by default. They do not depend on the time since the start."""

MAX_DESCRIBED_PLACES = 5
"""The largest number of locations that `HideResult.summary_sentences` describes."""

# The core is at least this multiple of the distance.
_MIN_CORE_RATIO = 1.5
_FORMAT = "dphmm-hidden-places-1"
# The number of recordings like this one for which the cumulative inference is stated.
_NUM_REPEATS = 10
# A direction is computed over this distance, which is large compared with the errors of fixes, some metres.
_DIRECTION_KM = 0.1
_MAX_DIRECTION_POINTS = 1000
# The user stops if the points stay within this distance of one of them for `MIN_STOP_SECONDS`: fixes stray by less.
_STOP_KM = 0.05


@dataclass(frozen=True)
class HiddenPlace:
    """A protected location and the inference of adversaries.

    It is public, except for the fact that there was a location to protect.

    Parameters
    ----------
    zone
        The zone without points.
    stretches
        The removed stretches of the recording.
    inferences
        The inference of each adversary from this recording.
    inferences_from_all
        The inference from all recordings in the session; from this recording without a session.
    inferences_from_ten
        The inference from ten recordings that leave and enter like this one.
    num_recordings
        The number of all recordings.
    outside_km
        A bound of the distance from the core of locations outside it that belong to the zone, kilometres; 0 if all
        lie in the core.
    """

    zone: HiddenZone
    stretches: tuple[Stretch, ...]
    inferences: tuple[ZoneInference, ...]
    inferences_from_all: tuple[ZoneInference, ...]
    inferences_from_ten: tuple[ZoneInference, ...]
    num_recordings: int
    outside_km: float = 0.0


@dataclass(frozen=True)
class HideResult(Result):
    """The result of `hide`.

    Parameters
    ----------
    public
        The published recording.
    places
        The protected locations that the recording passes or ends at.
    points, hidden
        The number of points of the recording, and of removed points. Private.
    within_km
        The distance.
    removed
        Other removed contents of the file.
    errors
        The points that were dropped as errors of the receiver, in words. Private.
    jumps
        The points after which the recording jumps farther than the speed limit allows, in words. Private.
    has_session
        Whether recordings are tracked in a file.
    """

    public: Recording
    places: tuple[HiddenPlace, ...]
    points: int
    hidden: int
    within_km: float
    removed: tuple[str, ...]
    has_session: bool
    errors: tuple[str, ...] = ()
    jumps: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """Three paragraphs per location: revealed, protected, and repeated recordings."""
        return self._describe(self.places)

    @property
    def summary_sentences(self) -> tuple[str, ...]:
        """The `sentences`, or those of the `MAX_DESCRIBED_PLACES` most exposed locations.

        These have the highest probability of a cell for the most confident adversary and come in its order. The last
        sentence states the number of the others, and the highest probability among them.
        """
        if len(self.places) <= MAX_DESCRIBED_PLACES:
            return self.sentences
        places = sorted(self.places, key=_place_max_posterior, reverse=True)
        others = places[MAX_DESCRIBED_PLACES:]
        zones = "zone has a core" if len(others) == 1 else "zones have cores"
        recordings = "this file or all recordings of this session" if self.has_session else "this file alone"
        summary = (
            f"Others: {len(others):,} more {zones} in which, from {recordings}, the strongest adversary tested gives "
            f"no cell a probability above {_odds(_place_max_posterior(others[0]))}. Use --json to describe all zones."
        )
        return (*self._describe(places[:MAX_DESCRIBED_PLACES]), summary)

    def _describe(self, places: Sequence[HiddenPlace]) -> tuple[str, ...]:
        has_times = any(not np.isnat(segment.times).all() for segment in self.public.segments)
        paragraphs: list[str] = []
        for place in places:
            paragraphs += _describe_disclosure(place, self.within_km, has_times, self.has_session)
        return tuple(paragraphs)

    @property
    def num_untimed(self) -> int:
        """The number of published points without a time; 0 if times were removed on request."""
        return 0 if "times" in self.removed else sum(int(np.isnat(part.times).sum()) for part in self.public.segments)

    @property
    def removed_in_words(self) -> str:
        """The other removed contents, such as *heart rate and track name*."""
        names = [_removed_name(text) for text in self.removed]
        return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))

    def _derived(self) -> dict[str, Any]:
        return {
            "num_points_kept": len(self.public),
            "num_points_without_time": self.num_untimed,
            "private_num_points_removed": self.hidden,
            "private_receiver_errors": list(self.errors),
            "private_jumps": list(self.jumps),
            "removed": list(self.removed),
            "places": [_place_dict(place) for place in self.places],
        }


def _removed_name(text: str) -> str:
    """Return the name of a removed content, in plain words, as for *hr of points*."""
    content, _, owner = text.partition(" of ")
    names = {"hr": "heart rate", "atemp": "temperature"}
    if owner == "points":
        return names.get(content, content)
    owner = f"{owner[:-3]}y" if owner.endswith("ies") else owner.removeprefix("the ").removesuffix("s")
    return f"{owner} {content}" if owner else content


def _place_dict(place: HiddenPlace) -> dict[str, Any]:
    south, west, north, east = place.zone.square.box
    adversaries: dict[str, dict[str, float]] = {name: {} for name in ADVERSARIES}
    for suffix, inferences in (
        ("", place.inferences),
        ("_from_all", place.inferences_from_all),
        ("_from_ten", place.inferences_from_ten),
    ):
        for inference in inferences:
            adversaries[inference.adversary] |= {
                f"max_posterior{suffix}": inference.max_posterior,
                f"rms_error_m{suffix}": 1000 * inference.error_km,
            }
    return {
        "core_box": [round(side, 6) for side in (south, west, north, east)],
        "zone_km": 2 * place.zone.half_km,
        "crossings": [_crossing(place.zone, stretch) for stretch in place.stretches],
        "num_recordings": place.num_recordings,
        "adversaries": adversaries,
    }


def _odds(probability: float) -> str:
    """Format a probability, rounded up, as *1 in N* or as a percentage."""
    return f"1 in {int(1 / probability + 1e-9):,}" if probability < 0.5 else f"{ceil(100 * probability - 1e-9)} %"


_ASSUMPTIONS = {
    "markov": "models movement as a Markov chain",
    "extrapolating": "extrapolates your track in a straight line",
}


def _describe_disclosure(place: HiddenPlace, within_km: float, has_times: bool, has_session: bool) -> list[str]:
    zone = place.zone
    strongest = max(place.inferences, key=_max_posterior)
    latitude, longitude = zone.square.centre
    core, cell, side = (metres(length) for length in (zone.square.side_km, zone.grid.cell_km, 2 * zone.half_km))
    crossings = list(dict.fromkeys(_crossing(zone, stretch) for stretch in place.stretches))
    verbs = " and ".join(filter(None, [", ".join(crossings[:-1]), crossings[-1]]))
    revealed = (
        f"Revealed: You were in the {side} × {side} zone centred on {latitude:.4f}, {longitude:.4f}, and "
        f"{'when and ' if has_times else ''}where you {verbs} it. From this file alone, the strongest adversary "
        f"tested, who {_ASSUMPTIONS[strongest.adversary]}, gives no {cell} × {cell} cell of the zone's core a "
        f"probability above {_odds(strongest.max_posterior)}. Without the file, this probability is "
        f"{_odds(strongest.prior)}. The adversary's RMS error is {metres(strongest.error_km)}."
    )
    outside = f", or up to {metres(place.outside_km)} outside it," if place.outside_km else ""
    apart = ""
    if strongest.prior > (1 + 1e-9) / CELLS**2:
        apart = f" that is farther than {metres(max(reach for _, reach in zone.others))} from the cores of other zones"
    protected = (
        f"Protected: Where in the {core} × {core} core{outside} your location lies, beyond what the track outside "
        f"suggests. With the same track outside, every location in the core{apart} yields this same file. No point "
        f"within {metres(within_km)} of your location is kept. Knowledge of the streets or of which buildings are "
        "homes helps an adversary further, and so does every other file of your movements."
    )
    ten = max(place.inferences_from_ten, key=_max_posterior)
    if ten.max_posterior > strongest.max_posterior and ten.error_km < strongest.error_km:
        repeated = (
            f"Ten recordings that enter and leave like this one would raise the probability to "
            f"{_odds(ten.max_posterior)} and lower the RMS error to {metres(ten.error_km)}."
        )
    else:
        repeated = (
            f"Ten recordings that enter and leave like this one yield a probability of {_odds(ten.max_posterior)} and "
            f"an RMS error of {metres(ten.error_km)}."
        )
    if has_session:
        total = max(place.inferences_from_all, key=_max_posterior)
        count = place.num_recordings
        subject = f"The {count} recordings of this session" if count > 1 else "The 1 recording of this session"
        repeated = (
            f"{subject} {'give' if count > 1 else 'gives'} a probability of at most {_odds(total.max_posterior)} to "
            f"any cell. {repeated} Files that were hidden without this session are not counted."
        )
    else:
        repeated += (
            " Files that you publish later add up with this one: always hide this location with the same --within, or "
            "track the total with --session."
        )
    if place.outside_km:
        repeated += (
            " A location just outside the core was recognized as the same location: a second zone would place it near "
            "the border of both."
        )
    return [revealed, protected, f"Repeated: {repeated}"]


def _max_posterior(inference: ZoneInference) -> float:
    return inference.max_posterior


def _place_max_posterior(place: HiddenPlace) -> float:
    """Return the highest probability of a cell, from the recording and from all recordings."""
    return max(map(_max_posterior, (*place.inferences, *place.inferences_from_all)))


def _crossing(zone: HiddenZone, stretch: Stretch) -> str:
    if stretch.entered is None:
        return "left" if stretch.left is not None else "stayed in"
    if stretch.left is None:
        return "entered"
    return "stopped in" if zone.is_stop(stretch) else "crossed"


Place = tuple[float, float]
"""Latitude and longitude in degrees."""


@checked
def hide(
    data: str | Path,
    near: str | Path | npt.ArrayLike = (),
    within_km: Kilometres = 0.5,
    output: str | Path | None = None,
    *,
    hide_endpoints: bool = False,
    kind: str | None = None,
    keep: Sequence[str] = (),
    times: bool = True,
    format: str | None = None,
    session: str | Path | None = None,
    overwrite: bool = False,
    input_format: str | None = None,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    time_zone: str | None = None,
    time_format: str | None = None,
) -> HideResult:
    """Protect locations in one recording, as ``dphmm hide`` does.

    Parameters
    ----------
    data
        A file of one user in any format that `dphmm.read` reads. Points may have no time.
    near
        ``(n, 2)``: the locations, latitude and longitude in degrees; or one location as people copy it, see
        `dphmm.space.coordinates.parse_coordinates`; or a GeoJSON file of points.
    within_km
        No point within this distance of a location is kept, nor of any other location in the same public square. The
        square is the smallest of 25 m to 12.8 km, in steps of a factor of two, with a side of at least 1.5 times this
        distance.
    output
        The file to write: .gpx, .geojson, .csv, .kml or .tcx.
    hide_endpoints
        Protect the start and the end of each track, and the points on both sides of each gap of more than an hour.
    kind
        The type of movement that adversaries assume: ``"walking"``, ``"cycling"`` or ``"driving"``. Defaults to the
        activity in the file, else cycling. Its speed limit, else that of driving, determines which points are errors of
        the receiver and are dropped.
    keep
        Sensors to keep in addition to `STEADY_SENSORS`: ``"hr"``, ``"atemp"``.
    times
        Whether times are kept.
    format
        The format of the output, ``"gpx"``, ``"geojson"``, ``"csv"``, ``"kml"`` or ``"tcx"``. Defaults to its
        extension.
    session
        A file that tracks the cumulative disclosure of recordings of the same locations. Created if it does not exist.
    overwrite
        Whether an existing output may be replaced.
    input_format, columns, time_unit, time_zone, time_format
        The format of `data`, and for tables their columns and times; as in `dphmm.read`. Columns may also be those of
        elevation, segments and sensors.

    Returns
    -------
    HideResult
        The published recording, and the inference of adversaries.

    Raises
    ------
    ConfigurationError
        If there is no location, none is near the recording, no point is left, or options conflict; if more than a tenth
        of the points are out of reach at the speed limit; if the format requires times and a point has none; or if a
        location is near, but not in, the core of another one of the session, and a point near it would be kept.
    CoordinateError
        If a location has invalid coordinates.
    OutputError
        If the output exists; raised before anything is read.
    DataFileError
        If a file cannot be read.

    Examples
    --------
    >>> result = hide("data/sample/ride.gpx", near=[(45.01, -30.01)], within_km=0.5)
    >>> result.places[0].zone.square.side_km, len(result.public) < result.points
    (0.8, True)
    """
    if output is not None:
        check_output(check_recording(output, format, times), overwrite)
    unknown = sorted(set(keep) - {"hr", "atemp"})
    if unknown:
        raise ConfigurationError(f"keep must be hr (heart rate) or atemp (temperature), got {unknown[0]!r}")
    typed = parse_coordinates(near, "--near") if isinstance(near, str) else None
    if typed is not None:
        locations = [typed]
    else:
        locations = _read_locations(near) if isinstance(near, str | Path) else _as_locations(near)
    if not locations and not hide_endpoints:
        raise ConfigurationError(
            "no location to hide: use --near LATITUDE,LONGITUDE, a file of points, or --hide-endpoints"
        )
    for location in locations:
        Square.around(*location, min_km=_MIN_CORE_RATIO * within_km)  # before files are read
    history = _ZoneHistory.read(session, within_km, kind)
    assignments = [history.assign(location, within_km, is_typed=True) for location in locations]
    recording = read_recording(
        data, input_format, columns=columns, time_unit=time_unit, time_zone=time_zone, time_format=time_format
    )
    points = Points.from_recording(recording)
    order = points.time_order()
    errors = np.zeros(len(points), dtype=np.bool_)
    errors[order] = find_errors(points.take(order), kind)
    trips = points.take(order[~errors[order]])
    if hide_endpoints:
        check_errors(points, errors, kind)
        ends = find_ends(trips, kind)
        for end in zip(trips.values.latitude[ends], trips.values.longitude[ends], strict=True):
            assignments.append(history.assign(end, within_km, is_typed=False))
    movement = kind or history.kind or MOVEMENT_OF_ACTIVITY.get(str(recording.activity).lower(), "cycling")
    while True:
        zones = {
            square: HiddenZone(square, within_km, movement, history.others(square, within_km))
            for square in dict.fromkeys(place.square for place in assignments)
        }
        masks = [zone.contains(points.values.latitude, points.values.longitude) for zone in zones.values()]
        removed = np.logical_or.reduce(masks) if masks else np.zeros(len(points), dtype=np.bool_)
        if not removed.any():
            raise ConfigurationError(f"{data}: {_describe_distance(assignments, trips, within_km)}")
        kept = np.flatnonzero(~removed)
        public, is_dropped = publish(points.take(kept), list(zones.values()), (*STEADY_SENSORS, *keep), times, kind)
        if not len(public):
            raise ConfigurationError(f"{data}: every point lies inside the hidden zone; use a smaller --within")
        dropped = kept[is_dropped]
        # Only the removed points show that these are errors. Therefore they are not dropped. A recording with many of
        # them has another activity, and its location may be the one that is out of reach.
        wrong = np.setdiff1d(np.flatnonzero(errors & ~removed & ~are_many(errors)), dropped)
        if not (hide_endpoints and len(wrong)):
            break
        # An old location at the start may be a location of the user: it is hidden like an end.
        for row in wrong:
            end = points.values.latitude[row], points.values.longitude[row]
            assignments.append(history.assign(end, within_km, is_typed=False))
    _check_distances(assignments, public, within_km, session)
    # The adversaries recognize the errors that are kept.
    tracked = np.setdiff1d(order, [*dropped, *wrong], assume_unique=True)
    coordinates = (values for segment in public.segments for values in (segment.latitude, segment.longitude))
    recording_hash = content_hash("ride", *coordinates)
    places = []
    for zone, mask in zip(zones.values(), masks, strict=True):
        crossings = _stretches(zone, points.values.part(tracked), removed[tracked], mask[tracked], times)
        if not crossings:
            continue
        likelihoods = [zone.log_likelihoods(crossing) for crossing in crossings]
        recordings = history.add(zone.square, recording_hash, likelihoods)
        all_likelihoods = [likelihood for recorded in recordings for likelihood in recorded]
        repeated = _NUM_REPEATS * likelihoods
        from_one, from_all, from_ten = (infer_location(zone, part) for part in (likelihoods, all_likelihoods, repeated))
        outside_km = max(place.outside_km for place in assignments if place.square == zone.square)
        places.append(HiddenPlace(zone, crossings, from_one, from_all, from_ten, len(recordings), outside_km))
    losses = [] if output is None else find_losses(output, public, format)  # raises before anything is written
    if session is not None:
        history.write(Path(session), within_km, movement)
    if output is not None:
        write_recording(output, public, overwrite, format)
    sensors = [f"{name} of points" for name in points.values.sensors if name not in (*STEADY_SENSORS, *keep)]
    contents = [*recording.dropped, *sensors, *losses, *([] if times else ["times"])]
    return HideResult(
        public,
        tuple(places),
        len(points),
        int(removed.sum()),
        within_km,
        tuple(sorted(contents)),
        session is not None,
        tuple(describe_point(points, row) for row in dropped),
        tuple(describe_point(trips, row) for row in find_jumps(trips, kind)),
    )


def _as_locations(near: npt.ArrayLike) -> list[Place]:
    """Return the locations in an array."""
    values = as_floats(near, "near", CoordinateError)
    if values.size and (values.ndim != 2 or values.shape[1] != 2):
        raise CoordinateError(f"near must have a latitude and longitude per location, got shape {values.shape}")
    return [(float(latitude), float(longitude)) for latitude, longitude in values.reshape(-1, 2)]


def _read_locations(path: str | Path) -> list[Place]:
    """Return the points of a GeoJSON file."""
    locations = []
    for number, feature in enumerate(read_features(read_document(path)), start=1):
        try:
            point = parse_geometry(feature.geometry, ("Point",))
        except ValueError as problem:
            raise DataFileError(path, f"feature {number}: {problem}") from None
        if point is None or point.is_empty:
            raise DataFileError(path, f"feature {number} must be a Point")
        locations.append((float(point.y), float(point.x)))
    return locations


def _check_distances(
    assignments: Sequence[_Assignment], public: Recording, within_km: float, session: str | Path | None
) -> None:
    """Raise an error if a point near a location outside its core is published.

    The ring of the zone protects a location up to `tolerance_km` outside the core. A recognized one can be farther.
    """
    for place in assignments:
        if not place.outside_km:
            continue
        nearest = min(
            distance_km(*place.location, segment.latitude, segment.longitude).min() for segment in public.segments
        )
        if nearest <= within_km:
            north, east = place.square.centre
            latitude, longitude = place.location
            raise ConfigurationError(
                f"--near {latitude:g},{longitude:g} lies within {metres(within_km)} of the core of an earlier location "
                f"in {session}, and points near it would be kept: use --near {north:.5f},{east:.5f} for the same "
                "location, or another --session for another one"
            )


def _describe_distance(assignments: Sequence[_Assignment], points: Points, within_km: float) -> str:
    """Return why no point is near a location. The points are those without receiver errors."""
    if not len(points):
        return "every point is at latitude 0 and longitude 0, which receivers write without a fix"
    values = points.values
    nearest = min(distance_km(*place.location, values.latitude, values.longitude).min() for place in assignments)
    distance = f"{nearest:,.0f} km" if nearest >= 10 else metres(float(nearest))
    return (
        f"no point lies within {metres(within_km)} of the location: the nearest is {distance} away; check --near, or "
        "use a larger --within"
    )


def _stretches(
    zone: HiddenZone, points: Segment, removed: BoolArray, mask: BoolArray, times: bool
) -> tuple[Stretch, ...]:
    """Return the removed stretches in a zone, of points in order of time.

    Parameters
    ----------
    zone
        The zone.
    points
        The points.
    removed, mask
        ``(n,)``: the points in any zone, and in this one.
    times
        Whether times are published.
    """
    trip = np.concatenate([[0], np.cumsum(np.diff(points.times) > TRIP_GAP)])
    ends = runs(removed)
    stretches = []
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        inside = first + np.flatnonzero(mask[first : last + 1])
        if not len(inside):
            continue
        entered = left = None
        if first > 0 and trip[first - 1] == trip[inside[0]]:
            entered = _gate(zone, points, range(first - 1, -1, -1))
        if last + 1 < len(points) and trip[last + 1] == trip[inside[-1]]:
            left = _gate(zone, points, range(last + 1, len(points)))
        seconds = None
        if entered is not None and left is not None:
            taken = (points.times[last + 1] - points.times[first - 1]) / np.timedelta64(1, "s")
            seconds = None if np.isnan(taken) else float(taken)
        plane = zone.projection.to_plane(points.latitude[inside], points.longitude[inside])
        has_stop = zone.is_stop(Stretch(entered, left, seconds)) or _has_stop(plane, points.times[inside])
        stretches.append(Stretch(entered, left, seconds if times else None, has_stop))
    return tuple(stretches)


def _has_stop(plane: FloatArray, times: npt.NDArray[np.datetime64]) -> bool:
    """Return whether points stay within `_STOP_KM` of one of them for `MIN_STOP_SECONDS`."""
    seconds = (times - times[0]) / np.timedelta64(1, "s")
    (east, north), since = plane[0], seconds[0]
    for point, second in zip(plane.tolist(), seconds.tolist(), strict=True):
        if np.hypot(point[0] - east, point[1] - north) > _STOP_KM:
            (east, north), since = point, second
        elif second - since >= MIN_STOP_SECONDS:
            return True
    return False


def _gate(zone: HiddenZone, points: Segment, along: range) -> Gate:
    """Return the gate at the first of several points.

    Its direction is that to the first point at least 100 m away.
    """
    rows = list(along)[:_MAX_DIRECTION_POINTS]
    plane = zone.projection.to_plane(points.latitude[rows], points.longitude[rows])
    far = np.flatnonzero(np.hypot(*(plane - plane[0]).T) >= _DIRECTION_KM)
    return Gate(plane[0], plane[far[0]] if len(far) else np.full(2, np.nan))


@dataclass(frozen=True)
class _Assignment:
    """The square of a location, and a bound of its distance outside; 0 inside."""

    location: Place
    square: Square
    outside_km: float


LogLikelihoods = list[dict[str, FloatArray]]
"""The log-likelihoods of each stretch of a recording, by adversary."""


class _ZoneHistory:
    """The log-likelihoods of recordings for each square, as stored in a session file.

    Squares take precedence in the order in which they were added. A location slightly outside an earlier square belongs
    to it, because a second square would place the location near their border.

    Parameters
    ----------
    recordings
        Square → hash of a recording → its log-likelihoods, in order of precedence.
    num_apart
        Square → the number of first squares from which its locations are farther than the distance. They are farther
        than the tolerance of the zone from the other squares with precedence.
    kind
        The type of movement; None without a session file.
    """

    def __init__(
        self, recordings: dict[Square, dict[str, LogLikelihoods]], num_apart: dict[Square, int], kind: str | None
    ) -> None:
        self.recordings = recordings
        self.num_apart = num_apart
        self.kind = kind
        self.squares = list(recordings)

    @classmethod
    def read(cls, path: str | Path | None, within_km: float, kind: str | None) -> _ZoneHistory:
        if path is None:
            return cls({}, {}, None)
        if not Path(path).exists():
            check_output(path)
            return cls({}, {}, None)
        try:
            content = read_json(read_document(path))
            stored_format = content["format"]
            if stored_format == _FORMAT:
                stored = float(content["within_km"]), str(content["kind"])
                squares = [Square(*map(int, place["square"])) for place in content["places"]]
                num_apart = [int(place["num_apart"]) for place in content["places"]]
                recordings = [_parse_recordings(place["rides"]) for place in content["places"]]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise DataFileError(path, "is not a session file written by 'dphmm hide --session'") from None
        if stored_format != _FORMAT:
            raise DataFileError(
                path, f"must be of format {_FORMAT}, got {shorten(stored_format)}: use a new file with --session"
            )
        if (within_km, kind or stored[1]) != stored:
            raise ConfigurationError(
                f"{path} tracks recordings hidden with --within {metres(stored[0])} and --kind {stored[1]}, and zones "
                "of several sizes reveal more than each: use the same values, or another --session for another location"
            )
        return cls(dict(zip(squares, recordings, strict=True)), dict(zip(squares, num_apart, strict=True)), stored[1])

    def assign(self, location: Place, within_km: float, is_typed: bool) -> _Assignment:
        """Return the square of a location; a new one has the least precedence.

        It is the first square in which the location lies, or that it lies outside of by at most `tolerance_km`. A typed
        location also belongs to the nearest square of the session within the distance. An end of a recording does not:
        it may be another location, and points near it must not be kept.
        """
        location = float(location[0]), float(location[1])
        new_square = Square.around(*location, _MIN_CORE_RATIO * within_km)
        tolerance = tolerance_km(new_square, within_km)
        near = []
        for square in self.squares:
            if is_certainly_far(square, *location):
                continue
            outside = float(distance_outside(square, *location)[0])
            if square == new_square or outside <= tolerance:
                return _Assignment(location, square, 0.0 if square == new_square else tolerance)
            if is_typed and square in self.recordings and outside <= within_km:
                near.append((outside, square))
        if near:
            return _Assignment(location, min(near, key=itemgetter(0))[1], within_km)
        self.squares.append(new_square)
        self.num_apart[new_square] = len(self.recordings) if is_typed else 0
        return _Assignment(location, new_square, 0.0)

    def others(self, square: Square, within_km: float) -> list[tuple[Square, float]]:
        """Return the squares with precedence over a square, as in `HiddenZone`."""
        first = self.squares.index(square)
        reaches = [
            within_km if index < self.num_apart[square] else tolerance_km(square, within_km) for index in range(first)
        ]
        return list(zip(self.squares, reaches, strict=False))

    def add(self, square: Square, recording_hash: str, likelihoods: LogLikelihoods) -> list[LogLikelihoods]:
        """Add a recording, once, and return all recordings of its square."""
        self.recordings.setdefault(square, {})[recording_hash] = likelihoods
        return list(self.recordings[square].values())

    def write(self, path: Path, within_km: float, kind: str) -> None:
        places = [
            {
                "square": [square.level, square.row, square.column],
                "num_apart": self.num_apart[square],
                "rides": {
                    recording_hash: [
                        {adversary: np.round(values, 6).tolist() for adversary, values in stretch.items()}
                        for stretch in likelihoods
                    ]
                    for recording_hash, likelihoods in recordings.items()
                },
            }
            for square, recordings in self.recordings.items()
        ]
        content = {"format": _FORMAT, "within_km": within_km, "kind": kind, "places": places}
        write_text(path, json.dumps(content, allow_nan=False) + "\n", overwrite=True, private=True)


def _parse_recordings(stored: Any) -> dict[str, LogLikelihoods]:
    """Return the recordings of a square in a session file."""
    recordings = {}
    for recording_hash, stretches in stored.items():
        likelihoods = [
            {name: np.array(stretch[name], dtype=np.float64) for name in ADVERSARIES} for stretch in stretches
        ]
        arrays = [values for stretch in likelihoods for values in stretch.values()]
        if not all(values.shape == (CELLS**2,) and np.isfinite(values).all() for values in arrays):
            raise ValueError
        recordings[str(recording_hash)] = likelihoods
    return recordings
