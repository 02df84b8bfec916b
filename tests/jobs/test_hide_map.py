"""Hidden places with a street map: an adversary who knows it, and zones by candidates."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.hide.fixed_squares import Square
from dphmm.hide.recording_writers import write_recording
from dphmm.hide.square_size import choose_square, find_map_bounds
from dphmm.hide.street_inference import STREET, ZoneStreets, find_candidates
from dphmm.hide.zone import HiddenZone
from dphmm.jobs import hide
from dphmm.readers.reading import read_recording
from dphmm.space.trajectory import Recording, Segment
from dphmm.tables.street_map import read_street_map
from tests.documents import ROOT

RIDE = ROOT / "data/sample/ride.gpx"
STREETS = ROOT / "data/streets.geojson"
HOME = (45.01, -30.01)
WITHIN = 0.5


@pytest.fixture(scope="module")
def result():
    return hide(RIDE, [HOME], WITHIN, map_file=STREETS)


@pytest.mark.slow
def test_map_adds_street_adversary_and_changes_no_published_point(result):
    plain = hide(RIDE, [HOME], WITHIN)
    for segment, other in zip(result.public.segments, plain.public.segments, strict=True):
        assert np.array_equal(segment.latitude, other.latitude)
        assert np.array_equal(segment.times, other.times)
    (place,) = result.places
    assert [inference.adversary for inference in place.inferences] == ["markov", "extrapolating", STREET]
    streets = ZoneStreets(place.zone, read_street_map(STREETS))
    log = streets.log_likelihood(place.stretches)
    mass = streets.candidates.prior * np.exp(log - log.max())
    assert place.strongest.max_candidate_posterior == pytest.approx((mass / mass.sum()).max(), rel=1e-4)
    assert place.candidates is not None
    assert len(place.candidates.prior) == len(mass)


def test_sentences_name_candidates_and_adversary_with_map_and_the_option_without(result):
    text = " ".join(result.sentences)
    count = len(result.places[0].candidates.prior)
    assert f"{count} places" in text
    assert "who knows the streets, gives none of them a probability above 1 in" in text
    assert "for the most probable place on a street" in text
    plain = " ".join(hide(RIDE, [HOME], 0.05).sentences)
    assert "--map FILE" in plain
    assert "and with --within 500m, it located 30 % of 300" in plain  # not with this smaller distance
    assert "who knows the streets" not in plain
    content = result.to_dict()["places"][0]
    assert content["candidates"]["kind"] == "places on streets"
    assert 0 < content["adversaries"][STREET]["max_candidate_posterior"] < 1
    json.dumps(content)


@pytest.mark.slow
def test_odds_do_not_depend_on_the_removed_points(tmp_path):
    """The track leaves the zone for 50 m and enters it again: nothing inside changes the odds."""
    zone = HiddenZone(Square.around(*HOME, 1.5 * WITHIN), WITHIN)
    half, results = zone.half_km, []
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        inside = rng.uniform(-0.3, 0.3, (200, 2))
        again = rng.uniform(-0.3, 0.3, (200, 2))
        out = np.column_stack([np.linspace(half + 0.01, half + 0.06, 6), np.zeros(6)])
        away = np.column_stack([np.linspace(half + 0.01, half + 3, 300), np.full(300, 0.2)])
        points = np.concatenate([inside, out, again, away])
        latitude, longitude = zone.projection.to_latlon(points).T
        times = np.datetime64("2024-03-09T10:00:00", "us") + 3 * np.arange(len(points)) * np.timedelta64(
            1_000_000, "us"
        )
        segment = Segment(latitude, longitude, times, np.full(len(points), np.nan))
        write_recording(tmp_path / f"{seed}.csv", Recording((segment,), None))
        results.append(hide(tmp_path / f"{seed}.csv", [HOME], WITHIN, map_file=STREETS, kind="driving"))
    first, second = (result.places[0] for result in results)
    for stretch, other in zip(first.stretches, second.stretches, strict=True):
        for gate, other_gate in ((stretch.left, other.left), (stretch.entered, other.entered)):
            assert (gate is None) == (other_gate is None)
            if gate is not None:
                np.testing.assert_array_equal(gate.point, other_gate.point)
                np.testing.assert_array_equal(gate.outwards, other_gate.outwards)
                np.testing.assert_array_equal(gate.towards, other_gate.towards)
    assert results[0].sentences == results[1].sentences


@pytest.mark.slow
def test_session_adds_up_recordings_with_a_map_also_those_hidden_without(tmp_path):
    session = tmp_path / "home.json"
    ride = read_recording(RIDE)
    hide(RIDE, [HOME], WITHIN, session=session)
    (segment,) = ride.segments
    shifted = Segment(segment.latitude + 1e-5, segment.longitude, segment.times, segment.elevation, segment.sensors)
    write_recording(tmp_path / "b.gpx", Recording((shifted,), ride.activity))
    both = hide(tmp_path / "b.gpx", [HOME], WITHIN, session=session, map_file=STREETS).places[0]
    assert both.num_recordings == 2
    streets = ZoneStreets(both.zone, read_street_map(STREETS))
    plain = hide(RIDE, [HOME], WITHIN).places[0]
    log = streets.log_likelihood([*plain.stretches, *both.stretches])
    mass = streets.candidates.prior * np.exp(log - log.max())
    total = both.inferences_from_all[-1]
    assert total.max_candidate_posterior == pytest.approx((mass / mass.sum()).max(), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("among", [None, 20])
def test_map_covers_zones_of_a_session_that_are_far_from_near(tmp_path, among):
    """The other place is 3.5 km from home."""
    other, options = (44.9955, -29.974), {"map_file": STREETS, "among": among}
    hide(RIDE, [HOME], 0.2, session=tmp_path / "s.json", **options)
    places = hide(RIDE, [other], 0.2, session=tmp_path / "s.json", **options).places
    alone = [hide(RIDE, [location], 0.2, **options).places[0] for location in (other, HOME)]
    for place, expected in zip(places, alone, strict=True):
        assert place.zone.square == expected.zone.square
        assert len(place.candidates.prior) == len(expected.candidates.prior)
        assert place.strongest.max_candidate_posterior == pytest.approx(expected.strongest.max_candidate_posterior)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({"among": 5}, "a smaller --among"), ({"among": 5, "within_km": WITHIN}, "a smaller --among or --within")],
)
def test_recording_inside_a_zone_chosen_by_the_map_raises_with_among_as_remedy(tmp_path, options, remedy):
    ride = write_ride(tmp_path / "ride.gpx", HOME[1] + 1e-5 * np.arange(2))
    with pytest.raises(ConfigurationError, match=f"omit this file, or use {remedy}$"):
        hide(ride, [HOME], map_file=STREETS, **options)


@pytest.mark.slow
def test_among_enlarges_the_square_to_the_number_and_within_wins_if_larger(tmp_path):
    chosen = hide(RIDE, [HOME], among=20, map_file=STREETS)
    assert "with the same --near, --within, --among and --map, or with --session" in chosen.sentences[2]
    few = chosen.places[0].zone
    many = hide(RIDE, [HOME], among=150, map_file=STREETS).places[0].zone
    both = hide(RIDE, [HOME], WITHIN, among=20, map_file=STREETS)
    assert few.square.side_km < both.places[0].zone.square.side_km == 0.8 < many.square.side_km
    assert few.within_km == pytest.approx(few.square.side_km / 1.6)
    assert both.within_km == WITHIN
    street_map = read_street_map(STREETS)
    for zone, number in ((few, 20), (many, 150)):
        assert find_candidates(street_map, zone).effective_number >= number
    session = tmp_path / "s.json"
    hide(RIDE, [HOME], among=20, map_file=STREETS, session=session)
    with pytest.raises(ConfigurationError, match="hidden with --among 20, and zones of several sizes"):
        hide(RIDE, [HOME], among=30, map_file=STREETS, session=session)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"among": 50}, ConfigurationError, "--among needs --map FILE"),
        ({"among": 50, "map_file": STREETS, "hide_endpoints": True}, ConfigurationError, "--among needs --near"),
        ({"among": 1e6, "map_file": STREETS}, ConfigurationError, "needs as many addresses"),
        ({"map_file": "missing.geojson"}, DataFileError, "missing.geojson"),
    ],
)
def test_invalid_options_raise(options, error, match):
    with pytest.raises(error, match=match):
        hide(RIDE, [HOME], **options)


def test_endpoints_are_hidden_with_a_map():
    result = hide(RIDE, hide_endpoints=True, within_km=WITHIN, map_file=STREETS)
    assert all(place.strongest.adversary == STREET for place in result.places)


def write_part_of_map(path, is_kept):
    """Write the streets of which all points satisfy a condition on longitude and latitude."""
    content = json.loads(STREETS.read_text(encoding="utf-8"))
    content["features"] = [
        feature
        for feature in content["features"]
        if feature["geometry"]["type"] != "LineString"
        or all(is_kept(*point[:2]) for point in feature["geometry"]["coordinates"])
    ]
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("reach", [0.6, 0.85])
def test_adversary_whose_map_ends_in_or_near_the_zone_is_not_the_strongest(tmp_path, result, reach):
    """It learns nothing without streets at the border, and is wrong without those ahead."""
    zone = result.places[0].zone

    def is_near(longitude, latitude):
        return np.abs(zone.projection.to_plane(latitude, longitude)).max() <= reach * 2 * zone.half_km

    part = write_part_of_map(tmp_path / "part.geojson", is_near)
    place = (cut := hide(RIDE, [HOME], WITHIN, map_file=part)).places[0]
    assert [inference.adversary for inference in place.inferences] == ["markov", "extrapolating"]
    assert place.strongest.max_posterior == max(inference.max_posterior for inference in place.inferences)
    assert "no adversary who knows the streets was tested" in " ".join(cut.sentences)
    assert STREET not in cut.to_dict()["places"][0]["adversaries"]
    assert "no adversary who knows" not in " ".join(result.sentences)


def test_core_is_chosen_from_a_square_of_at_least_the_distance(town_map):
    """The distance demands a larger core than those that are halved otherwise."""
    square = choose_square(town_map, *HOME, 1, 7.5)
    assert square == Square.around(*HOME, 7.5)
    assert square.side_km == 12.8
    assert choose_square(town_map, *HOME, 1, 3.0).side_km == 3.2


@pytest.fixture(scope="module")
def town_map():
    return read_street_map(STREETS)


def test_bounds_of_a_map_across_the_date_line_contain_the_squares():
    for longitude in (179.999, -179.999, 0.0, 90.0):
        squares = [Square.around(52.0, turn, 0.8) for turn in (longitude, (longitude + 0.05 + 180) % 360 - 180)]
        south, west, north, east = find_map_bounds(squares, 3.0)
        assert (west > east) == (abs(longitude) > 179)
        assert 0 < (east - west) % 360 < 0.5
        for square in squares:
            assert south < square.centre[0] < north
            assert 0 < (square.centre[1] - west) % 360 < (east - west) % 360


# ---- maps that cover some recordings of a session --------------------------------------------------------------------


def write_ride(path, longitudes, has_times=True):
    """Write a ride along the parallel of the home, one point per 5 s."""
    count = len(longitudes)
    times = np.datetime64("2024-03-09T10:00:00", "us") + 5 * np.arange(count) * np.timedelta64(1_000_000, "us")
    if not has_times:
        times = np.full(count, np.datetime64("NaT", "us"))
    segment = Segment(np.full(count, HOME[0]), np.asarray(longitudes), times, np.full(count, np.nan))
    write_recording(path, Recording((segment,), None))
    return path


def write_streets(path, *lines):
    """Write residential streets of points relative to the home, in degrees east and north."""
    features = [
        {
            "type": "Feature",
            "properties": {"highway": "residential"},
            "geometry": {
                "type": "LineString",
                "coordinates": [[HOME[1] + east, HOME[0] + north] for east, north in line],
            },
        }
        for line in lines
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}), encoding="utf-8")
    return path


CROSSING = HOME[1] + np.linspace(-0.06, 0.06, 301)


def test_result_of_a_map_that_covers_all_recordings_but_not_this_file_is_exported(tmp_path):
    """The session counts a crossing with times. The file without times may have a stop."""
    far, session = write_streets(tmp_path / "far.geojson", [(-0.02, -0.02), (0.02, -0.02)]), tmp_path / "s.json"
    hide(write_ride(tmp_path / "timed.gpx", CROSSING), [HOME], WITHIN, session=session, map_file=far)
    untimed = write_ride(tmp_path / "untimed.gpx", CROSSING, has_times=False)
    result = hide(untimed, [HOME], WITHIN, session=session, map_file=far)
    street = result.to_dict()["places"][0]["adversaries"][STREET]
    assert set(street) == {f"{name}_from_all" for name in ("max_posterior", "rms_error_m", "max_candidate_posterior")}
    assert "no adversary who knows the streets was tested on this file." in " ".join(result.sentences)


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_recording_beyond_the_map_is_named_if_it_removes_the_adversary_from_the_total(tmp_path, order):
    """Ride A leaves to the east, where the map has no street, and B to the west along one."""
    streets = write_streets(tmp_path / "west.geojson", [(0, 0), (-0.09, 0)], [(0, -0.003), (0, 0.003)])
    results = {}
    for name in order:
        ride = write_ride(tmp_path / f"{name}.gpx", HOME[1] + (0.0003 if name == "A" else -0.0003) * np.arange(250))
        results[name] = hide(ride, [HOME], WITHIN, session=tmp_path / "s.json", map_file=streets)
    protected = {name: result.sentences[1] for name, result in results.items()}
    assert "near the track where it leaves" in protected["A"]
    assert "no adversary who knows the streets was tested on this file." in protected["A"]
    names = [inference.adversary for inference in results["B"].places[0].inferences]
    assert names == ["markov", "extrapolating", STREET]
    totals = [inference.adversary for inference in results["B"].places[0].inferences_from_all]
    assert (STREET in totals) == (order == "BA")
    is_named = "near the track of a recording of this session where it leaves" in protected["B"]
    assert is_named == ("was tested on all of its recordings" in protected["B"]) == (order == "AB")
    assert ("Knowledge that the map lacks helps" in protected["B"]) == (order == "BA")


@pytest.mark.parametrize("has_map", [False, True])
@pytest.mark.parametrize("verb", ["crossed", "stayed in"])
def test_recording_without_a_gate_of_a_stop_is_not_ascribed_to_an_adversary(tmp_path, verb, has_map):
    """The probability is that of the prior, also if no street of the map is near the track."""
    far = write_streets(tmp_path / "far.geojson", [(-0.02, -0.02), (0.02, -0.02)])
    recording = write_ride(tmp_path / "crossing.gpx", CROSSING)
    if verb == "stayed in":
        (inside,) = read_recording(write_ride(tmp_path / "in.gpx", HOME[1] + 1e-5 * np.arange(100))).segments
        (away,) = read_recording(write_ride(tmp_path / "out.gpx", HOME[1] + 0.05 + 3e-4 * np.arange(100))).segments
        later = Segment(inside.latitude, inside.longitude, inside.times + np.timedelta64(7, "h"), inside.elevation)
        recording = tmp_path / "stay.gpx"
        write_recording(recording, Recording((away, later), None))
    result = hide(recording, [HOME], WITHIN, map_file=far if has_map else None)
    (place,) = result.places
    revealed = result.sentences[0]
    assert f"where you {verb} it" in revealed
    claim = "none of them a probability above 1 in 100, and " if has_map else ""
    assert f"From this file alone, every adversary tested gives {claim}no 80 m" in revealed
    for inference in place.inferences:
        assert inference.max_posterior == pytest.approx(inference.prior)
