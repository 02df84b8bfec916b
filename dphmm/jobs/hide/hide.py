"""Protect locations in one recording and keep the rest exact.

The output is a function of the points outside the zones and of the public square that contains each location. With the
same track outside, every location in the square yields the same file, byte for byte, whatever happened in the zone.
The method is deterministic. Noise with a budget of zero would reveal as little; any larger budget would accumulate over
recordings. Names, descriptions, totals and bounds of a file are removed, because they describe the whole recording.
The totals that TCX requires are computed from the published points.
Heart rate and temperature are removed by default, because they indicate the time since the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import IntArray, as_floats, hash_content
from dphmm.errors import ConfigurationError, CoordinateError, DataFileError, OutputError
from dphmm.formatting import Result, format_kilometres
from dphmm.hide.fixed_squares import Square
from dphmm.hide.point_removal import RecordedTrack, RecordingParts, remove_points
from dphmm.hide.receiver_errors import MOVEMENT_OF_ACTIVITY, check_errors, find_jumps
from dphmm.hide.recording_points import Points, describe_point, distance_km
from dphmm.hide.recording_writers import check_recording, find_losses, write_recording
from dphmm.hide.square_size import MAX_CORE_KM, MAX_WITHIN_KM, Place, SquareRule, find_map_bounds, get_min_side_km
from dphmm.hide.street_inference import MAP_MARGIN_KM, ZoneStreets, infer_candidates
from dphmm.hide.trip_ends import find_ends, find_far_ends
from dphmm.hide.zone import Gate, HiddenZone, Stretch, find_gates
from dphmm.hide.zone_inference import ZoneInference, compute_log_likelihoods, infer_location
from dphmm.jobs.hide.protected_location import HiddenPlace
from dphmm.jobs.hide.sentences import describe_place, format_odds
from dphmm.jobs.hide.session_file import (
    GATES,
    Assignment,
    LogLikelihoods,
    RecordingKey,
    ZoneHistory,
    find_gate_places,
)
from dphmm.jobs.hide.stretches import find_stretches
from dphmm.readers.reading import read_recording
from dphmm.space.coordinates import parse_coordinates
from dphmm.space.trajectory import Recording, Segment
from dphmm.tables import check_output, read_document
from dphmm.tables.output import lock_folder
from dphmm.tables.street_map import StreetMap, read_street_map
from dphmm.tables.vector_files import check_vector_file, parse_geometry, read_features
from dphmm.validation import Kilometres, PositiveNumber, check_arguments

# The sensors that are kept by default. They do not depend on the time since the start.
STEADY_SENSORS = ("cad", "power", "speed", "course")

# The largest number of locations that `HideResult.summary_sentences` describes.
MAX_DESCRIBED_PLACES = 5

# The number of recordings like this one for which the cumulative inference is stated.
_NUM_REPEATS = 10


@dataclass(frozen=True)
class HideResult(Result):
    """The result of `hide`.

    Parameters
    ----------
    public
        The published recording.
    places
        The protected locations that the recording passes or ends at.
    num_points, num_hidden
        The number of points of the recording, and of removed points. Private.
    within_km
        The distance, the smallest one of the zones.
    removed
        Other removed contents of the file.
    errors
        The points that were dropped as errors of the receiver, in words. Private.
    jumps
        The points after which the recording jumps farther than the speed limit allows, in words. Private.
    has_session
        Whether recordings are tracked in a file.
    unused
        The given locations near which the recording has no point, in words. Private.
    has_among
        Whether the map chose the cores.
    """

    public: Recording
    places: tuple[HiddenPlace, ...]
    num_points: int
    num_hidden: int
    within_km: float
    removed: tuple[str, ...]
    has_session: bool
    errors: tuple[str, ...] = ()
    jumps: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    has_among: bool = False

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
        places = sorted(self.places, key=attrgetter("max_posterior"), reverse=True)
        others = places[MAX_DESCRIBED_PLACES:]
        zones = "zone has a core" if len(others) == 1 else "zones have cores"
        recordings = "this file or all recordings of this session" if self.has_session else "this file alone"
        summary = (
            f"Others: {len(others):,} more {zones} in which, from {recordings}, the strongest adversary tested gives "
            f"no cell a probability above {format_odds(others[0].max_posterior)}. Use --json to describe all zones."
        )
        return (*self._describe(places[:MAX_DESCRIBED_PLACES]), summary)

    def _describe(self, places: Sequence[HiddenPlace]) -> tuple[str, ...]:
        has_times = any(not np.isnat(segment.times).all() for segment in self.public.segments)
        paragraphs: list[str] = []
        for place in places:
            gates = find_gates(place.stretches)
            has_time = has_times and any(not np.isnat(gate.time) for gate in gates)
            paragraphs += describe_place(place, has_time, self.has_session, self.has_among)
        return tuple(paragraphs)

    @property
    def num_untimed(self) -> int:
        """The number of published points without a time. 0 if times were removed on request."""
        return 0 if "times" in self.removed else sum(int(np.isnat(part.times).sum()) for part in self.public.segments)

    @property
    def removed_in_words(self) -> str:
        """The other removed contents, such as *heart rate and track name*."""
        names = [_name_removed_content(text) for text in self.removed]
        return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))

    def _derive_fields(self) -> dict[str, Any]:
        return {
            "num_points_kept": len(self.public),
            "num_points_without_time": self.num_untimed,
            "private_num_points_removed": self.num_hidden,
            "private_receiver_errors": list(self.errors),
            "private_jumps": list(self.jumps),
            "private_unused_locations": list(self.unused),
            "removed": list(self.removed),
            "places": [place.to_dict() for place in self.places],
        }


def _name_removed_content(text: str) -> str:
    """Return the name of a removed content, in plain words, as for *hr of points*."""
    content, _, owner = text.partition(" of ")
    names = {"hr": "heart rate", "atemp": "temperature", "cad": "cadence"}
    if owner == "points":
        sensor, space, values = content.partition(" ")
        return f"{names.get(sensor, sensor)}{space}{values}"
    owner = f"{owner[:-3]}y" if owner.endswith("ies") else owner.removeprefix("the ").removesuffix("s")
    return f"{owner} {content}" if owner else content


@check_arguments
def hide(
    data: str | Path,
    near: str | Path | npt.ArrayLike = (),
    within_km: Kilometres | None = None,
    output: str | Path | None = None,
    *,
    hide_endpoints: bool = False,
    kind: str | None = None,
    keep: Sequence[str] = (),
    times: bool = True,
    format: str | None = None,
    session: str | Path | None = None,
    map_file: str | Path | None = None,
    among: PositiveNumber | None = None,
    overwrite: bool = False,
    check: Callable[[HideResult], object] | None = None,
    input_format: str | None = None,
    columns: Mapping[str, str] | None = None,
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
        distance. Defaults to `DEFAULT_WITHIN_KM`, and with `among` to the side divided by `RING_RATIO`.
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
        A file that tracks the cumulative disclosure of recordings of the same locations, and hides all of its zones in
        each recording. Created if it does not exist.
    map_file
        A map with streets, and buildings or addresses, as for `dphmm.tables.street_map.read_street_map`. All
        adversaries know it, and one of them the shortest ways; see `dphmm.hide.street_inference`. The published
        recording does not depend on it.
    among
        The minimum effective number of addresses, buildings or places on streets in the square; see
        `dphmm.hide.square_size.choose_square`. Requires `map_file`. The square is at least as large as for
        `within_km`.
    overwrite
        Whether an existing output may be replaced.
    check
        Called with the result before anything is written. If it raises an error, nothing is.
    input_format, columns, time_zone, time_format
        The format of `data`, and for tables their columns and times; as in `dphmm.read`. Columns may also be those of
        elevation, segments and sensors.

    Returns
    -------
    HideResult
        The published recording, and the inference of adversaries.

    Raises
    ------
    ConfigurationError
        If there is no location, none is near the recording, no point is left, or options conflict; if `within_km`
        exceeds `MAX_WITHIN_KM`; if more than a tenth of the points are out of reach at the speed limit; if the format
        requires times and a point has none; or if a location is near, but not in, the core of another one of the
        session, and a point near it would be kept; or if the map has fewer candidates than `among`.
    CoordinateError
        If a location has invalid coordinates.
    OutputError
        If the output exists, or is the recording itself; raised before anything is read.
    DataFileError
        If a file cannot be read.

    Examples
    --------
    >>> result = hide("data/sample/ride.gpx", near=[(45.01, -30.01)], within_km=0.5)
    >>> result.places[0].zone.square.side_km, len(result.public) < result.num_points
    (0.8, True)
    """
    if output is not None:
        check_output(check_recording(output, format, times), overwrite)
        if Path(data).exists() and Path(output).exists() and Path(output).samefile(data):
            raise OutputError(f"{output} is the recording itself: use another file for the output")
    unknown = sorted(set(keep) - {"hr", "atemp"})
    if unknown:
        raise ConfigurationError(f"keep must be hr (heart rate) or atemp (temperature), got {unknown[0]!r}")
    locations = _parse_locations(near)
    if not locations and not hide_endpoints:
        raise ConfigurationError(
            "no location to hide: use --near LATITUDE,LONGITUDE, a file of points, or --hide-endpoints"
        )
    _check_zone_options(within_km, among, map_file, hide_endpoints)
    # Before files are read.
    squares = [_find_square(location, get_min_side_km(within_km, among)) for location in locations]
    street_map = None
    if map_file is not None and among is not None:
        reach = MAP_MARGIN_KM + 2 * max(MAX_CORE_KM, squares[0].side_km)
        street_map = read_street_map(map_file, find_map_bounds(squares, reach))
    rule = SquareRule(within_km, among, street_map)
    # Two processes would each add a recording to the same content of the session, and one recording would be lost.
    with nullcontext() if session is None else lock_folder(Path(session).parent):
        history = ZoneHistory.read(session, rule, kind)
        assignments = [history.assign(location, is_typed=True) for location in locations]
        recording = read_recording(data, input_format, columns=columns, time_zone=time_zone, time_format=time_format)
        track = RecordedTrack.from_recording(recording, kind)
        points, trips = track.points, track.trips
        ways = None
        if hide_endpoints:
            check_errors(points, track.errors, kind)
            ends, ways = find_ends(trips, kind)
            assignments += [history.assign(trips.get_location(row), is_typed=False) for row in ends]
        movement = kind or history.kind or MOVEMENT_OF_ACTIVITY.get(str(recording.activity).lower(), "cycling")
        sensors = (*STEADY_SENSORS, *keep)
        remove = partial(remove_points, track, sensors=sensors, times=times, kind=kind)
        zones, parts, assignments = _assign_zones(data, track, assignments, history, movement, remove, ways)
        _check_distances(assignments, parts.public, rule, session)
        used = [zone for zone, mask in zip(zones, parts.masks, strict=True) if mask.any()]
        used_squares = [zone.square for zone in used]
        # The map of the squares around --near does not cover other zones of the session.
        if map_file is not None and not (among and {*used_squares} <= {place.square for place in assignments}):
            reach = max(zone.half_km for zone in used)
            street_map = read_street_map(map_file, find_map_bounds(used_squares, reach + MAP_MARGIN_KM))
        places = _infer_places(zones, parts, track, times, street_map, history, assignments)
        # Raises an error before anything is written.
        losses = [] if output is None else find_losses(output, parts.public, format)
        without = [f"{name} of points" for name in points.values.sensors if name not in sensors]
        contents = [*recording.dropped, *without, *losses, *([] if times else ["times"])]
        result = HideResult(
            parts.public,
            places,
            len(points),
            int(parts.removed.sum()),
            min(zone.within_km for zone in zones),
            tuple(sorted(contents)),
            session is not None,
            tuple(describe_point(points, row) for row in parts.dropped),
            tuple(describe_point(trips, row) for row in find_jumps(trips, kind)),
            tuple(
                f"{place.location[0]:.6g}, {place.location[1]:.6g} "
                f"(nearest point {_format_distance(place, trips)} away)"
                for place in assignments[: len(locations)]  # the others are ends of trips
                if place.square not in used_squares
            ),
            among is not None,
        )
        if check is not None:
            check(result)
        # An interruption between the two files leaves a session that counts the recording; again, it is counted once.
        commit = None if session is None else partial(history.write, Path(session), movement)
        if output is not None:
            write_recording(output, parts.public, overwrite, format, commit)
        elif commit is not None:
            commit()
    return result


def _parse_locations(near: str | Path | npt.ArrayLike) -> list[Place]:
    """Return the locations to protect, given as text, as a file of points or as an array."""
    typed = parse_coordinates(near, "--near") if isinstance(near, str) else None
    if typed is not None:
        return [typed]
    return _read_locations(near) if isinstance(near, str | Path) else _as_locations(near)


def _check_zone_options(
    within_km: float | None, among: float | None, map_file: str | Path | None, hide_endpoints: bool
) -> None:
    """Refuse zones that are too large or need other options, and unknown maps."""
    if within_km is not None and within_km > MAX_WITHIN_KM:
        raise ConfigurationError(
            f"--within must be at most {format_kilometres(MAX_WITHIN_KM)} (two thirds of the largest square), got "
            f"{format_kilometres(within_km)}"
        )
    if map_file is not None:
        check_vector_file(map_file)
    if among is not None and map_file is None:
        raise ConfigurationError("--among needs --map FILE: a map of the streets, buildings or addresses")
    if among is not None and hide_endpoints:
        raise ConfigurationError("--among needs --near LATITUDE,LONGITUDE, and cannot be used with --hide-endpoints")


def _find_square(location: Place, side_km: float) -> Square:
    try:
        return Square.around(*location, side_km)
    except CoordinateError as problem:
        raise CoordinateError(f"--near: {problem}") from None


def _assign_zones(
    data: str | Path,
    track: RecordedTrack,
    assignments: Sequence[Assignment],
    history: ZoneHistory,
    movement: str,
    remove: Callable[[Sequence[HiddenZone]], RecordingParts],
    ways: list[IntArray] | None,
) -> tuple[list[HiddenZone], RecordingParts, list[Assignment]]:
    """Assign further locations, and return the zones, the parts and all assignments.

    The zones are those of assigned locations and of the session. A recording may pass a location of the session at
    which it neither starts nor ends. Zones of the session without points are also returned: whether lines are broken in
    them must not depend on the removed points. With the ways of `find_ends`, published points that the removed ones
    expose as errors are assigned as well, and further ends: the history then contains their squares.
    """
    rule, trips = history.rule, track.trips
    assigned = list(assignments)

    def make_zone(row: int) -> HiddenZone:
        location = trips.get_location(row)
        squares = [place.square for place in assigned if place.location == location]
        square = squares[0] if squares else rule.find_square(location)
        return HiddenZone(square, rule.get_within_km(square))

    while True:
        zones = [
            HiddenZone(square, rule.get_within_km(square), movement, history.list_preceding_squares(square))
            for square in dict.fromkeys([*(place.square for place in assigned), *history.recordings])
        ]
        parts = remove(zones)
        if not parts.removed.any():
            raise ConfigurationError(f"{data}: {_describe_distance(assigned, trips, rule)}")
        if not len(parts.public):
            names = [] if rule.among is None else ["--among"]
            names += [] if names and rule.distance_km is None else ["--within"]
            # The zones of a session are chosen by one rule.
            remedy = f"{'' if history.kind is None else 'another --session with '}a smaller {' or '.join(names)}"
            raise ConfigurationError(f"{data}: every point lies inside a hidden zone: omit this file, or use {remedy}")
        if ways is None:
            return zones, parts, assigned
        # An old location at the start may be a location of the user: it is hidden like an end.
        further = [track.points.get_location(row) for row in parts.wrong]
        if not further:
            far = find_far_ends(trips, ways, zones, make_zone)
            further, ways = [trips.get_location(row) for row in far], []
        if not further:
            return zones, parts, assigned
        assigned += [history.assign(location, is_typed=False) for location in further]


def _infer_places(
    zones: Sequence[HiddenZone],
    parts: RecordingParts,
    track: RecordedTrack,
    times: bool,
    street_map: StreetMap | None,
    history: ZoneHistory,
    assignments: Sequence[Assignment],
) -> tuple[HiddenPlace, ...]:
    """Add a recording to the history of each zone, and return what adversaries infer."""
    # The adversaries recognize the errors that are kept.
    tracked = np.setdiff1d(track.order, [*parts.dropped, *parts.wrong], assume_unique=True)
    # Lines are broken at other points without times. Therefore the hash does not depend on the segments.
    kept = Segment.concatenate(parts.public.segments)
    kept_hash = hash_content("ride", kept.latitude, kept.longitude)
    values, removed = track.points.values.select_points(tracked), parts.removed[tracked]
    places = []
    for zone, mask in zip(zones, parts.masks, strict=True):
        stretches = find_stretches(zone, values, removed, mask[tracked], times) if mask.any() else ()
        if not stretches:
            continue
        likelihoods = [
            {**compute_log_likelihoods(zone, stretch), GATES: find_gate_places(zone, stretch)} for stretch in stretches
        ]
        has_times = any(stretch.seconds is not None for stretch in stretches)
        key = RecordingKey(kept_hash, _hash_gates(stretches), has_times, len(kept))
        recordings = history.add(zone.square, key, likelihoods)
        all_likelihoods = [likelihood for recorded in recordings for likelihood in recorded]
        streets = None if street_map is None else ZoneStreets(zone, street_map)
        from_one, from_all, from_ten = (
            _infer(zone, streets, part) for part in (likelihoods, all_likelihoods, _NUM_REPEATS * likelihoods)
        )
        candidates = None if streets is None else streets.candidates
        outside_km = max((place.outside_km for place in assignments if place.square == zone.square), default=0.0)
        places.append(
            HiddenPlace(zone, stretches, from_one, from_all, from_ten, len(recordings), outside_km, candidates)
        )
    return tuple(places)


def _hash_gates(stretches: Sequence[Stretch]) -> str | None:
    """Return the hash of the gates with their times. None without gates or if one has none."""
    gates = find_gates(stretches)
    times = np.array([gate.time for gate in gates])
    if not gates or np.isnat(times).any():
        return None
    # Rounded to a metre, because formats differ by centimetres.
    return hash_content(np.round([gate.point for gate in gates], 3), times.astype(np.int64))


def _infer(zone: HiddenZone, streets: ZoneStreets | None, likelihoods: LogLikelihoods) -> tuple[ZoneInference, ...]:
    if streets is None:
        return infer_location(zone, likelihoods)
    places = np.concatenate([np.zeros((0, 4)), *(likelihood[GATES] for likelihood in likelihoods)])
    points = zone.projection.to_plane(*places.reshape(-1, 2).T).reshape(-1, 2, 2)
    stops = [Stretch(None, Gate(point, np.full(2, np.nan), ahead)) for point, ahead in points]
    return infer_candidates(streets, likelihoods, stops)


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
    assignments: Sequence[Assignment], public: Recording, rule: SquareRule, session: str | Path | None
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
        within_km = rule.get_within_km(place.square)
        if nearest <= within_km:
            north, east = place.square.centre
            latitude, longitude = place.location
            raise ConfigurationError(
                f"--near {latitude:g},{longitude:g} lies within {format_kilometres(within_km)} of the core of an "
                "earlier location "
                f"in {session}, and points near it would be kept: use --near {north:.5f},{east:.5f} for the same "
                "location, or another --session for another one"
            )


def _describe_distance(assignments: Sequence[Assignment], points: Points, rule: SquareRule) -> str:
    """Return why no point is near a location. The points are those without receiver errors."""
    if not len(points):
        return "every point is at latitude 0 and longitude 0, which receivers write without a fix"
    distance = min((_find_distance(place, points), _format_distance(place, points)) for place in assignments)[1]
    within_km = min(rule.get_within_km(place.square) for place in assignments)
    return (
        f"no point lies within {format_kilometres(within_km)} of the location: the nearest is {distance} away; check "
        "--near, or "
        "use a larger --within"
    )


def _find_distance(place: Assignment, points: Points) -> float:
    """Return the distance of the nearest point from a location, kilometres."""
    return float(distance_km(*place.location, points.values.latitude, points.values.longitude).min())


def _format_distance(place: Assignment, points: Points) -> str:
    distance = _find_distance(place, points)
    return f"{distance:,.0f} km" if distance >= 10 else format_kilometres(distance)
