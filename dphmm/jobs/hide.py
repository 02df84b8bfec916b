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

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_floats, content_hash, runs
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
from dphmm.hide.streets import (
    AHEAD_KM,
    MAP_MARGIN_KM,
    MAX_CORE_KM,
    RING_RATIO,
    STREET,
    Candidates,
    ZoneStreets,
    choose_square,
    infer_candidates,
)
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
from dphmm.space.states import LocalProjection
from dphmm.space.trajectory import Recording, Segment
from dphmm.tables import check_output, read_document, write_text
from dphmm.tables.json_toml import read_json
from dphmm.tables.street_map import StreetMap, read_street_map
from dphmm.tables.values import shorten
from dphmm.tables.vector_files import Box, check_vector_file, parse_geometry, read_features
from dphmm.validation import Kilometres, PositiveNumber, checked

STEADY_SENSORS = ("cad", "power", "speed", "course")
"""The sensors that are kept by default. They do not depend on the time since the start."""

MAX_DESCRIBED_PLACES = 5
"""The largest number of locations that `HideResult.summary_sentences` describes."""

DEFAULT_WITHIN_KM = 0.5
"""The distance without `within_km` and `among`."""

# The core is at least this multiple of the distance.
_MIN_CORE_RATIO = 1.5
# The smallest core that is chosen by its candidates alone.
_MIN_CORE_KM = 0.2
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
    candidates
        With a map, the locations that can be the protected one.
    """

    zone: HiddenZone
    stretches: tuple[Stretch, ...]
    inferences: tuple[ZoneInference, ...]
    inferences_from_all: tuple[ZoneInference, ...]
    inferences_from_ten: tuple[ZoneInference, ...]
    num_recordings: int
    outside_km: float = 0.0
    candidates: Candidates | None = None

    @property
    def strongest(self) -> ZoneInference:
        """The inference of the adversary with a street map, or else of the most confident one."""
        return _strongest(self.inferences)


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
        The distance, the smallest one of the zones.
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
            paragraphs += _describe_disclosure(place, has_times, self.has_session)
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
    adversaries: dict[str, dict[str, float]] = {inference.adversary: {} for inference in place.inferences}
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
            if inference.max_candidate_posterior is not None:
                adversaries[inference.adversary][f"max_candidate_posterior{suffix}"] = inference.max_candidate_posterior
    candidates = place.candidates
    return {
        "core_box": [round(side, 6) for side in (south, west, north, east)],
        "zone_km": 2 * place.zone.half_km,
        "crossings": [_crossing(place.zone, stretch) for stretch in place.stretches],
        "num_recordings": place.num_recordings,
        "adversaries": adversaries,
        "candidates": None
        if candidates is None
        else {
            "kind": candidates.kind,
            "count": len(candidates.prior),
            "effective_number": candidates.effective_number,
        },
    }


def _odds(probability: float) -> str:
    """Format a probability, rounded up, as *1 in N* or as a percentage."""
    return f"1 in {int(1 / probability + 1e-9):,}" if probability < 0.5 else f"{ceil(100 * probability - 1e-9)} %"


_ASSUMPTIONS = {
    "markov": "models movement as a Markov chain",
    "extrapolating": "extrapolates your track in a straight line",
    STREET: "knows the streets",
}


# From ``scripts/street_adversary.py``, with the adversaries' knowledge of which locations are possible.
_WITHOUT_MAP = (
    "An adversary with a street map does better: on real streets it located 30 % of 300 simulated homes to within "
    "100 m after ten rides, and these adversaries at most 22 %. Use --map FILE, such as an extract of OpenStreetMap, "
    "to include it."
)


def _describe_disclosure(place: HiddenPlace, has_times: bool, has_session: bool) -> list[str]:
    zone, candidates = place.zone, place.candidates
    strongest = place.strongest
    latitude, longitude = zone.square.centre
    core, cell, side = (metres(length) for length in (zone.square.side_km, zone.grid.cell_km, 2 * zone.half_km))
    crossings = list(dict.fromkeys(_crossing(zone, stretch) for stretch in place.stretches))
    verbs = " and ".join(filter(None, [", ".join(crossings[:-1]), crossings[-1]]))
    revealed = (
        f"Revealed: You were in the {side} × {side} zone centred on {latitude:.4f}, {longitude:.4f}, and "
        f"{'when and ' if has_times else ''}where you {verbs} it. "
    )
    if candidates is not None:
        revealed += f"{_describe_candidates(candidates)} "
    claim = f"gives no {cell} × {cell} cell of the zone's core a probability above {_odds(strongest.max_posterior)}"
    if strongest.max_candidate_posterior is not None:
        claim = f"gives none of them a probability above {_odds(strongest.max_candidate_posterior)}, and {claim[6:]}"
    revealed += (
        f"From this file alone, the strongest adversary tested, who {_ASSUMPTIONS[strongest.adversary]}, {claim}. "
        f"Without the file, this probability is {_odds(strongest.prior)}. The adversary's RMS error is "
        f"{metres(strongest.error_km)}."
    )
    outside = f", or up to {metres(place.outside_km)} outside it," if place.outside_km else ""
    apart = ""
    if zone.prior.max() > (1 + 1e-9) / CELLS**2:
        apart = f" that is farther than {metres(max(reach for _, reach in zone.others))} from the cores of other zones"
    further = _WITHOUT_MAP if candidates is None else "Knowledge that the map lacks helps an adversary further."
    protected = (
        f"Protected: Where in the {core} × {core} core{outside} your location lies, beyond what the track outside "
        f"suggests. With the same track outside, every location in the core{apart} yields this same file. No point "
        f"within {metres(zone.within_km)} of your location is kept. {further} Every other file of your movements helps "
        "an adversary further."
    )
    ten = _strongest(place.inferences_from_ten)
    odds = _format_odds(ten, candidates)
    if _max_posterior(ten) > _max_posterior(strongest) and ten.error_km < strongest.error_km:
        repeated = (
            f"Ten recordings that enter and leave like this one would raise the probability to "
            f"{odds} and lower the RMS error to {metres(ten.error_km)}."
        )
    else:
        repeated = (
            f"Ten recordings that enter and leave like this one yield a probability of {odds} and an RMS error of "
            f"{metres(ten.error_km)}."
        )
    if has_session:
        total = _strongest(place.inferences_from_all)
        count = place.num_recordings
        subject = f"The {count} recordings of this session" if count > 1 else "The 1 recording of this session"
        highest = _odds(_max_posterior(total))
        target = "cell" if candidates is None else _SINGULAR[candidates.kind]
        repeated = (
            f"{subject} {'give' if count > 1 else 'gives'} a probability of at most {highest} to any {target}. "
            f"{repeated} Files that were hidden without this session are not counted."
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


_SINGULAR = {"addresses": "address", "buildings": "building", "places on streets": "place on a street", "cells": "cell"}


def _describe_candidates(candidates: Candidates) -> str:
    """Return what the map shows in the core, in a sentence."""
    count = len(candidates.prior)
    kind = candidates.kind
    if kind == "cells":
        return "The map shows no street in the core, so that your home may be in any of its cells."
    if kind == "places on streets":
        return (
            f"The map shows few buildings in the core. If your home is on one of its streets, it is one of {count:,} "
            "places, one per 20 m."
        )
    return (
        f"Your home is one of {count:,} {kind if count > 1 else _SINGULAR[kind]} in the core, if the map contains it."
    )


def _format_odds(inference: ZoneInference, candidates: Candidates | None) -> str:
    """Format the highest probability of a candidate, or of a cell without a map."""
    odds = _odds(_max_posterior(inference))
    return odds if candidates is None else f"{odds} for the most probable {_SINGULAR[candidates.kind]}"


def _strongest(inferences: Sequence[ZoneInference]) -> ZoneInference:
    """Return the inference with a street map, or else the most confident one."""
    return next((inference for inference in inferences if inference.adversary == STREET), None) or max(
        inferences, key=_max_posterior
    )


def _max_posterior(inference: ZoneInference) -> float:
    """Return the highest probability of a candidate, or of a cell without a map."""
    candidate = inference.max_candidate_posterior
    return inference.max_posterior if candidate is None else candidate


def _place_max_posterior(place: HiddenPlace) -> float:
    """Return the highest probability of a cell, from the recording and from all recordings."""
    return max(inference.max_posterior for inference in map(_strongest, (place.inferences, place.inferences_from_all)))


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
        A file that tracks the cumulative disclosure of recordings of the same locations. Created if it does not exist.
    map_file
        A map with streets, and buildings or addresses, as for `dphmm.tables.street_map.read_street_map`. All
        adversaries know it, and one of them the shortest ways; see `dphmm.hide.streets`. The published recording does
        not depend on it.
    among
        The minimum effective number of addresses, buildings or places on streets in the square; see
        `dphmm.hide.streets.choose_square`. Requires `map_file`. The square is at least as large as for `within_km`.
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
        location is near, but not in, the core of another one of the session, and a point near it would be kept; or if
        the map has fewer candidates than `among`.
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
    if map_file is not None:
        check_vector_file(map_file)
    if among is not None and map_file is None:
        raise ConfigurationError("--among needs --map FILE: a map of the streets, buildings or addresses")
    if among is not None and hide_endpoints:
        raise ConfigurationError("--among needs --near LATITUDE,LONGITUDE, and cannot be used with --hide-endpoints")
    # Before files are read.
    squares = [Square.around(*location, min_km=_min_side_km(within_km, among)) for location in locations]
    street_map = None
    if map_file is not None and locations:
        reach = MAP_MARGIN_KM + (squares[0].side_km if among is None else 2 * MAX_CORE_KM)
        street_map = read_street_map(map_file, _map_bounds(squares, reach))
    rule = _SquareRule(within_km, among, street_map)
    history = _ZoneHistory.read(session, rule, kind)
    assignments = [history.assign(location, is_typed=True) for location in locations]
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
            assignments.append(history.assign(end, is_typed=False))
    movement = kind or history.kind or MOVEMENT_OF_ACTIVITY.get(str(recording.activity).lower(), "cycling")
    while True:
        zones = {
            square: HiddenZone(square, rule.within_km(square), movement, history.others(square))
            for square in dict.fromkeys(place.square for place in assignments)
        }
        masks = [zone.contains(points.values.latitude, points.values.longitude) for zone in zones.values()]
        removed = np.logical_or.reduce(masks) if masks else np.zeros(len(points), dtype=np.bool_)
        if not removed.any():
            raise ConfigurationError(f"{data}: {_describe_distance(assignments, trips, rule)}")
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
            assignments.append(history.assign(end, is_typed=False))
    _check_distances(assignments, public, rule, session)
    if map_file is not None and hide_endpoints:
        reach = max(zone.half_km for zone in zones.values())
        street_map = read_street_map(map_file, _map_bounds([*zones], reach + MAP_MARGIN_KM))
    # The adversaries recognize the errors that are kept.
    tracked = np.setdiff1d(order, [*dropped, *wrong], assume_unique=True)
    coordinates = (values for segment in public.segments for values in (segment.latitude, segment.longitude))
    recording_hash = content_hash("ride", *coordinates)
    places = []
    for zone, mask in zip(zones.values(), masks, strict=True):
        crossings = _stretches(zone, points.values.part(tracked), removed[tracked], mask[tracked], times)
        if not crossings:
            continue
        likelihoods = [
            {**zone.log_likelihoods(crossing), _GATES: _gate_places(zone, crossing)} for crossing in crossings
        ]
        recordings = history.add(zone.square, recording_hash, likelihoods)
        all_likelihoods = [likelihood for recorded in recordings for likelihood in recorded]
        repeated = _NUM_REPEATS * likelihoods
        streets = None if street_map is None else ZoneStreets(zone, street_map)
        from_one, from_all, from_ten = (
            _infer(zone, streets, part) for part in (likelihoods, all_likelihoods, repeated)
        )
        outside_km = max(place.outside_km for place in assignments if place.square == zone.square)
        places.append(
            HiddenPlace(
                zone,
                crossings,
                from_one,
                from_all,
                from_ten,
                len(recordings),
                outside_km,
                None if streets is None else streets.candidates,
            )
        )
    losses = [] if output is None else find_losses(output, public, format)  # raises before anything is written
    if session is not None:
        history.write(Path(session), movement)
    if output is not None:
        write_recording(output, public, overwrite, format)
    sensors = [f"{name} of points" for name in points.values.sensors if name not in (*STEADY_SENSORS, *keep)]
    contents = [*recording.dropped, *sensors, *losses, *([] if times else ["times"])]
    return HideResult(
        public,
        tuple(places),
        len(points),
        int(removed.sum()),
        min(zone.within_km for zone in zones.values()),
        tuple(sorted(contents)),
        session is not None,
        tuple(describe_point(points, row) for row in dropped),
        tuple(describe_point(trips, row) for row in find_jumps(trips, kind)),
    )


@dataclass(frozen=True)
class _SquareRule:
    """The choice of the square of a location from public values.

    Parameters
    ----------
    distance_km
        The distance; None for the default.
    among
        The minimum effective number of candidates, or None.
    street_map
        The map; required with `among`.
    """

    distance_km: float | None
    among: float | None
    street_map: StreetMap | None

    def square(self, location: Place) -> Square:
        """Return the square around a location."""
        min_side_km = _min_side_km(self.distance_km, self.among)
        if self.among is None or self.street_map is None:
            return Square.around(*location, min_side_km)
        return choose_square(self.street_map, *location, self.among, min_side_km)

    def within_km(self, square: Square) -> float:
        """Return the distance of the zone of a square, kilometres."""
        if self.among is None:
            return DEFAULT_WITHIN_KM if self.distance_km is None else self.distance_km
        return max(self.distance_km or 0.0, square.side_km / RING_RATIO)


def _min_side_km(within_km: float | None, among: float | None) -> float:
    """Return the minimum side of the core, kilometres."""
    if within_km is None and among is not None:
        return _MIN_CORE_KM
    return _MIN_CORE_RATIO * (DEFAULT_WITHIN_KM if within_km is None else within_km)


def _map_bounds(squares: Sequence[Square], reach_km: float) -> Box:
    """Return a box around squares with a margin, degrees."""
    corners = []
    for square in squares:
        offsets = (square.side_km + reach_km) * np.array([[-1, -1], [1, 1]])
        corners.append(LocalProjection(*square.centre).to_latlon(offsets))
    (south, west), (north, east) = np.min(corners, axis=(0, 1)).tolist(), np.max(corners, axis=(0, 1)).tolist()
    return south, west, north, east


def _gate_places(zone: HiddenZone, stretch: Stretch) -> FloatArray:
    """Return the places of the gates of a stop and of the locations ahead, ``(k, 4)``."""
    gates = [gate for gate in (stretch.entered, stretch.left) if gate is not None and zone.is_stop(stretch)]
    points = np.array([[gate.point, gate.towards] for gate in gates]).reshape(-1, 2)
    return zone.projection.to_latlon(points).reshape(-1, 4)


def _infer(
    zone: HiddenZone, streets: ZoneStreets | None, likelihoods: Sequence[Mapping[str, FloatArray]]
) -> tuple[ZoneInference, ...]:
    if streets is None:
        return infer_location(zone, likelihoods)
    places = np.concatenate([np.zeros((0, 4)), *(likelihood[_GATES] for likelihood in likelihoods)])
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
    assignments: Sequence[_Assignment], public: Recording, rule: _SquareRule, session: str | Path | None
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
        within_km = rule.within_km(place.square)
        if nearest <= within_km:
            north, east = place.square.centre
            latitude, longitude = place.location
            raise ConfigurationError(
                f"--near {latitude:g},{longitude:g} lies within {metres(within_km)} of the core of an earlier location "
                f"in {session}, and points near it would be kept: use --near {north:.5f},{east:.5f} for the same "
                "location, or another --session for another one"
            )


def _describe_distance(assignments: Sequence[_Assignment], points: Points, rule: _SquareRule) -> str:
    """Return why no point is near a location. The points are those without receiver errors."""
    if not len(points):
        return "every point is at latitude 0 and longitude 0, which receivers write without a fix"
    values = points.values
    nearest = min(distance_km(*place.location, values.latitude, values.longitude).min() for place in assignments)
    within_km = min(rule.within_km(place.square) for place in assignments)
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
            entered = _gate(zone, points, removed, trip, range(first - 1, -1, -1))
        if last + 1 < len(points) and trip[last + 1] == trip[inside[-1]]:
            left = _gate(zone, points, removed, trip, range(last + 1, len(points)))
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


def _gate(zone: HiddenZone, points: Segment, removed: BoolArray, trip: IntArray, along: range) -> Gate:
    """Return the gate at the first of several points.

    Its direction is that to the first point at least 100 m away, and the location ahead is `AHEAD_KM` farther along the
    track, or its last point of this trip before another removed stretch.
    """
    rows = np.array(along[:_MAX_DIRECTION_POINTS])
    is_over = removed[rows] | (trip[rows] != trip[rows[0]])
    rows = rows[: is_over.argmax()] if is_over.any() else rows
    plane = zone.projection.to_plane(points.latitude[rows], points.longitude[rows])
    far = np.flatnonzero(np.hypot(*(plane - plane[0]).T) >= _DIRECTION_KM)
    gone = np.cumsum(np.hypot(*np.diff(plane, axis=0).T))
    ahead = plane[min(int(np.searchsorted(gone, AHEAD_KM)) + 1, len(plane) - 1)]
    return Gate(plane[0], plane[far[0]] if len(far) else np.full(2, np.nan), ahead)


@dataclass(frozen=True)
class _Assignment:
    """The square of a location, and a bound of its distance outside; 0 inside."""

    location: Place
    square: Square
    outside_km: float


LogLikelihoods = list[dict[str, FloatArray]]
"""The log-likelihoods of each stretch of a recording, by adversary, and `_GATES`."""
# The places of gates, from which the likelihood of the adversary with a street map is computed.
_GATES = "gates"


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
    rule
        The choice of squares.
    """

    def __init__(
        self,
        recordings: dict[Square, dict[str, LogLikelihoods]],
        num_apart: dict[Square, int],
        kind: str | None,
        rule: _SquareRule,
    ) -> None:
        self.rule = rule
        self.recordings = recordings
        self.num_apart = num_apart
        self.kind = kind
        self.squares = list(recordings)

    @classmethod
    def read(cls, path: str | Path | None, rule: _SquareRule, kind: str | None) -> _ZoneHistory:
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
                num_apart = [int(place["num_apart"]) for place in content["places"]]
                recordings = [_parse_recordings(place["rides"]) for place in content["places"]]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise DataFileError(path, "is not a session file written by 'dphmm hide --session'") from None
        if stored_format != _FORMAT:
            raise DataFileError(
                path, f"must be of format {_FORMAT}, got {shorten(stored_format)}: use a new file with --session"
            )
        if (rule.distance_km, rule.among, kind or stored) != (distance_km, among, stored):
            options = (
                []
                if distance_km is None and among is not None
                else [f"--within {metres(distance_km or DEFAULT_WITHIN_KM)}"]
            )
            options += [] if among is None else [f"--among {among:g}"]
            raise ConfigurationError(
                f"{path} tracks recordings hidden with {', '.join(options)} and --kind {stored}, and zones "
                "of several sizes reveal more than each: use the same values, or another --session for another location"
            )
        return cls(
            dict(zip(squares, recordings, strict=True)), dict(zip(squares, num_apart, strict=True)), stored, rule
        )

    def assign(self, location: Place, is_typed: bool) -> _Assignment:
        """Return the square of a location; a new one has the least precedence.

        It is the first square in which the location lies, or that it lies outside of by at most `tolerance_km`. A typed
        location also belongs to the nearest square of the session within the distance. An end of a recording does not:
        it may be another location, and points near it must not be kept.
        """
        location = float(location[0]), float(location[1])
        new_square = self.rule.square(location)
        near = []
        for square in self.squares:
            if is_certainly_far(square, *location):
                continue
            within_km = self.rule.within_km(square)
            tolerance = tolerance_km(square, within_km)
            outside = float(distance_outside(square, *location)[0])
            if square == new_square or outside <= tolerance:
                return _Assignment(location, square, 0.0 if square == new_square else tolerance)
            if is_typed and square in self.recordings and outside <= within_km:
                near.append((outside, square))
        if near:
            nearest = min(near, key=itemgetter(0))[1]
            return _Assignment(location, nearest, self.rule.within_km(nearest))
        self.squares.append(new_square)
        self.num_apart[new_square] = len(self.recordings) if is_typed else 0
        return _Assignment(location, new_square, 0.0)

    def others(self, square: Square) -> list[tuple[Square, float]]:
        """Return the squares with precedence over a square, as in `HiddenZone`."""
        others = []
        for index, other in enumerate(self.squares[: self.squares.index(square)]):
            within_km = self.rule.within_km(other)
            others.append((other, within_km if index < self.num_apart[square] else tolerance_km(other, within_km)))
        return others

    def add(self, square: Square, recording_hash: str, likelihoods: LogLikelihoods) -> list[LogLikelihoods]:
        """Add a recording, once, and return all recordings of its square."""
        self.recordings.setdefault(square, {})[recording_hash] = likelihoods
        return list(self.recordings[square].values())

    def write(self, path: Path, kind: str) -> None:
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
        zones = [self.rule.distance_km, self.rule.among]
        content = {"format": _FORMAT, "zones": zones, "kind": kind, "places": places}
        write_text(path, json.dumps(content, allow_nan=False) + "\n", overwrite=True, private=True)


def _parse_recordings(stored: Any) -> dict[str, LogLikelihoods]:
    """Return the recordings of a square in a session file."""
    recordings = {}
    for recording_hash, stretches in stored.items():
        likelihoods = [
            {name: np.array(stretch[name], dtype=np.float64) for name in (*ADVERSARIES, _GATES)}
            for stretch in stretches
        ]
        for likelihood in likelihoods:
            places = likelihood[_GATES] = likelihood[_GATES].reshape(-1, 4)
            logs = [likelihood[name] for name in ADVERSARIES]
            if not all(values.shape == (CELLS**2,) and np.isfinite(values).all() for values in logs):
                raise ValueError
            if len(places) > 2 or not (np.abs(places) <= [90, 360, 90, 360]).all():  # also for NaN
                raise ValueError
        recordings[str(recording_hash)] = likelihoods
    return recordings
