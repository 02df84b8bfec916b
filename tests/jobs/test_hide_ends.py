"""Tests of hidden ends of recordings, with receiver errors, several trips and sessions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pyproj import Geod

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.hide.fixed_squares import Square, distance_outside
from dphmm.hide.recording_writers import write_recording
from dphmm.hide.square_size import SquareRule
from dphmm.hide.street_inference import AHEAD_KM
from dphmm.hide.zone import HiddenZone, tolerance_km
from dphmm.jobs.hide.hide import hide
from dphmm.jobs.hide.session_file import ZoneHistory
from dphmm.model.blank_model import KINDS
from dphmm.space.projection import LocalProjection
from dphmm.space.trajectory import Recording, Segment

GEOD = Geod(ellps="WGS84")
HOME = (45.0005, -30.02)
WITHIN = 0.2
SPEED = 0.3 / 60
PLANE = LocalProjection(*HOME)
START = np.datetime64("2024-03-09T10:00:00", "us")


def make_track(corners, seconds=0, step=10, speed=SPEED):
    """Return latitude, longitude and seconds along corners in kilometres from home, 18 km/h."""
    corners = np.array(corners, float)
    along = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(corners, axis=0).T))])
    at = np.arange(0, along[-1] + 1e-9, speed * step)
    points = np.stack([np.interp(at, along, corners[:, axis]) for axis in (0, 1)], axis=1)
    return np.column_stack([PLANE.to_latlon(points), seconds + step * np.arange(len(at))])


def write(path, *tracks, activity="cycling", segment_of_track=None):
    """Write a GPX file. NaN seconds are no time."""
    segments = []
    for rows in tracks:
        times = START + (np.nan_to_num(rows[:, 2]) * 1e6).astype("timedelta64[us]")
        times[np.isnan(rows[:, 2])] = np.datetime64("NaT", "us")
        segments.append(Segment(rows[:, 0], rows[:, 1], times, np.full(len(rows), np.nan)))
    write_recording(path, Recording(tuple(segments), activity), overwrite=True)
    text = path.read_text(encoding="utf-8")
    if segment_of_track is None:  # each segment becomes a track
        text = text.replace("</trkseg>\n    <trkseg>", f"</trkseg></trk><trk><type>{activity}</type><trkseg>")
        path.write_text(text, encoding="utf-8")
    return path


def measure_distance(result, location):
    """Return the metres from a location to the nearest published point."""
    parts = [(part.latitude, part.longitude) for part in result.public.segments]
    latitude, longitude = np.concatenate(parts, axis=1)
    north, east = (np.full(len(latitude), value) for value in location[:2])
    return GEOD.inv(east, north, longitude, latitude)[2].min()


def make_fix(location, seconds):
    return np.array([[*location, seconds]])


RIDE = make_track([(0, 0), (3, 1)])
ENDS = [RIDE[0], RIDE[-1]]
LAST = RIDE[-1, 2]
CACHED = PLANE.to_latlon([-9.0, 40.0])[0]
REACHABLE = PLANE.to_latlon([-0.6, 0.9])[0]


@pytest.mark.parametrize(
    "parts",
    [
        [RIDE],
        [RIDE[20:], RIDE[:20]],
        [make_fix((0, 0), -20), RIDE],
        [make_fix((0, 0), -20), make_fix((0, 0), -15), RIDE, make_fix((0, 0), LAST + 20)],
        [make_fix(CACHED, -20), RIDE],
        [RIDE[:30], make_fix(CACHED, 295), RIDE[30:]],
        [RIDE[1:], RIDE[:1]],
    ],
    ids=["plain", "out of order", "no fix first", "no fix at both ends", "cached first", "cached inside", "home last"],
)
def test_true_ends_are_hidden(tmp_path, parts):
    result = hide(write(tmp_path / "ride.gpx", np.concatenate(parts)), hide_endpoints=True, within_km=WITHIN)
    plain = hide(write(tmp_path / "plain.gpx", RIDE), hide_endpoints=True, within_km=WITHIN)
    assert all(measure_distance(result, end[:2]) > 1000 * WITHIN for end in ENDS)
    assert result.sentences == plain.sentences
    times = np.concatenate([part.times for part in result.public.segments])
    assert (np.diff(times) >= np.timedelta64(0, "s")).all()
    assert len(result.public) == len(plain.public)
    assert len(result.errors) == sum(map(len, parts)) - len(RIDE)


def test_ends_of_every_track_and_of_gaps_above_an_hour_are_hidden(tmp_path):
    second = make_track([(0, 4), (3, 6)], seconds=80_000)
    cases = {"tracks.gpx": ([RIDE, second], None), "gap.gpx": ([np.concatenate([RIDE, second])], True)}
    soon = make_track([(0, 4), (3, 6)], seconds=LAST + 3000)
    cases["an hour.gpx"] = ([RIDE, soon], None)
    for name, (tracks, is_one_track) in cases.items():
        path = write(tmp_path / name, *tracks, segment_of_track=is_one_track)
        result = hide(path, hide_endpoints=True, within_km=WITHIN)
        assert len(result.places) == 4, name
        for rows in (RIDE, second):
            assert all(measure_distance(result, end[:2]) > 1000 * WITHIN for end in (rows[0], rows[-1])), name


def test_summary_describes_five_most_exposed_zones_and_counts_others(tmp_path):
    """Rides from one home end in eight other zones."""
    angles = np.arange(8) * np.pi / 4
    rides = [make_track([(0, 0), (3 * np.cos(a), 3 * np.sin(a))], seconds=9000 * i) for i, a in enumerate(angles)]
    result = hide(write(tmp_path / "rides.gpx", *rides), hide_endpoints=True, within_km=WITHIN)
    assert (len(result.places), len(result.sentences)) == (9, 27)
    assert len(result.to_dict()["places"]) == 9
    probabilities = [max(inference.max_posterior for inference in place.inferences) for place in result.places]
    ranks = np.argsort(-np.array(probabilities), kind="stable").tolist()
    *described, others = result.summary_sentences
    blocks = [result.sentences[3 * index : 3 * index + 3] for index in range(9)]
    assert described == [sentence for index in ranks[:5] for sentence in blocks[index]]
    largest = int(1 / max(probabilities[index] for index in ranks[5:]))
    assert others.startswith("Others: 4 more zones")
    assert f"no cell a probability above 1 in {largest}." in others
    few = hide(write(tmp_path / "few.gpx", *rides[:4]), hide_endpoints=True, within_km=WITHIN)
    assert few.summary_sentences == few.sentences


def test_ends_of_segments_without_times_are_hidden(tmp_path):
    second = make_track([(0, 4), (3, 6)])
    path = write(tmp_path / "ride.gpx", *(rows * [1, 1, np.nan] for rows in (RIDE, second)), segment_of_track=True)
    result = hide(path, hide_endpoints=True, within_km=WITHIN)
    assert all(
        measure_distance(result, end[:2]) > 1000 * WITHIN for rows in (RIDE, second) for end in (rows[0], rows[-1])
    )


@pytest.mark.parametrize("pause", [600, 7200], ids=["short pause", "gap of two hours"])
def test_gap_hides_location_only_if_longer_than_an_hour(tmp_path, pause):
    back = make_track([(3, 1), (6, 0)], seconds=LAST + pause)
    path = write(tmp_path / "ride.gpx", np.concatenate([RIDE, back]), segment_of_track=True)
    result = hide(path, hide_endpoints=True, within_km=WITHIN)
    assert (measure_distance(result, RIDE[-1, :2]) > 1000 * WITHIN) == (pause > 3600)


@pytest.mark.parametrize("count", [1, 40])
def test_old_location_at_start_is_hidden_as_well_as_true_start(tmp_path, count):
    """Only the hidden points after a single old fix expose it. Forty are a part before a jump."""
    old = np.concatenate([make_fix(REACHABLE, second - count) for second in range(count)])
    path = write(tmp_path / "ride.gpx", np.concatenate([old, RIDE]))
    result = hide(path, hide_endpoints=True, within_km=WITHIN)
    assert all(measure_distance(result, end) > 1000 * WITHIN for end in (REACHABLE, *ENDS))
    assert (result.errors, len(result.jumps)) == ((), int(count == 40))


@pytest.mark.parametrize("stray", [(0, 0), CACHED, REACHABLE], ids=["no fix", "far", "reachable"])
def test_stray_point_before_home_does_not_weaken_adversary(tmp_path, stray):
    recordings = RIDE, np.concatenate([make_fix(stray, -20), RIDE])
    plain, other = (hide(write(tmp_path / "ride.gpx", rows), [HOME], WITHIN) for rows in recordings)
    for result, expected in zip(other.places[0].inferences, plain.places[0].inferences, strict=True):
        assert result.max_posterior == pytest.approx(expected.max_posterior)
    assert [stretch.entered for stretch in other.places[0].stretches] == [None]


def test_recording_faster_than_its_activity_raises_with_remedy(tmp_path):
    path = write(tmp_path / "ride.gpx", make_track([(0, 0), (60, 1)], step=60, speed=0.025))
    with pytest.raises(ConfigurationError, match=r"points are out of reach at 70 km/h.*use --kind driving"):
        hide(path, hide_endpoints=True, within_km=WITHIN)
    assert hide(path, hide_endpoints=True, within_km=WITHIN, kind="driving").errors == ()


SQUARE = Square.around(*HOME, 1.5 * WITHIN)


def locate_in_square(square, east, north):
    """Return a location from shares of the sides of a square."""
    south, west, top, right = square.box
    return south + north * (top - south), west + east * (right - west)


@pytest.mark.slow
def test_statement_about_two_neighbouring_cores_is_exact(tmp_path):
    """Every location that it counts yields the same file, and no other location does."""
    first = Square.around(*HOME, 1.5 * WITHIN)
    second = Square(first.level, first.row, first.column + 1)
    tolerance = tolerance_km(first, WITHIN)

    def hide_with_end(east, north):
        ride = make_track([(0, 0), (0, 2), (3, 2), (0.3, 0)])
        outside = ~HiddenZone(first, WITHIN).contains(*ride[:, :2].T)
        end = np.array([[*locate_in_square(second, east, north), ride[outside][-1, 2] + 100]])
        rows = np.concatenate([ride[:1], ride[outside], end])
        path = tmp_path / "public.csv"
        result = hide(write(tmp_path / "ride.gpx", rows), (), WITHIN, path, hide_endpoints=True, overwrite=True)
        return result, path.read_bytes(), float(distance_outside(first, *end[0, :2])[0])

    reference, expected, _ = hide_with_end(0.5, 0.5)
    assert [place.zone.square for place in reference.places] == [first, second]
    assert "that is farther than 36 m from the cores of other zones yields" in reference.sentences[4]
    assert reference.places[1].inferences[0].prior > 0.0101
    for east, north in np.random.default_rng(2).uniform(0.01, 0.99, (12, 2)):
        result, content, outside = hide_with_end(east / 4, north)
        is_counted = outside > tolerance
        assert (content == expected) == is_counted
        assert len(result.places) == 1 + is_counted
        if not is_counted:
            assert f"or up to {1000 * tolerance:.3g} m outside it," in result.sentences[1]


def test_file_does_not_depend_on_where_in_its_core_a_home_lies_that_the_ride_passes_too(tmp_path):
    """The ride passes near an end, between two stops, before it returns."""
    plane = HiddenZone(Square.around(45.01, 10.01, 0.42), 0.28).projection
    ride = [(0.8, 4 + 0.05 * number) for number in range(80)]
    seconds = [0, 300, 600, 900, *(2400 + 15 * number for number in range(80)), 5500, 7500, 7900]
    files, squares = set(), set()
    for east in (1.3, 1.45, 1.6, 1.9):
        home = (east, 0)
        places = np.array([(0, 0), (0.8, 0), home, (0.8, 0.3), *ride, (1.6, 4), (1.6, 0.9), home], float)
        rows = np.column_stack([plane.to_latlon(places), seconds])
        squares.add(Square.around(*rows[-1, :2], 0.42))
        path = tmp_path / "public.gpx"
        hide(write(tmp_path / "ride.gpx", rows), (), 0.28, path, hide_endpoints=True, overwrite=True)
        files.add(path.read_bytes())
    assert (len(squares), len(files)) == (1, 1)


@pytest.mark.parametrize(
    "start", [[], [(-4.0, 1.0)], [(-4.0, 1.0), (-4.4, 1.0)]], ids=["plain", "old location", "two near each other"]
)
def test_file_does_not_depend_on_where_in_its_core_an_end_lies(tmp_path, start):
    """The ends are single fixes. Of the steps, only those to hidden points differ."""
    ride = make_track([(0, 0), (6, 0)], seconds=1000, step=20)
    old = [make_fix(PLANE.to_latlon(np.array(place))[0], 100 * number) for number, place in enumerate(start)]
    last = Square.around(*ride[-1, :2], 1.5 * WITHIN)
    outside = ~HiddenZone(SQUARE, WITHIN).contains(*ride[:, :2].T) & ~HiddenZone(last, WITHIN).contains(*ride[:, :2].T)
    files = set()
    for share in ((0.02, 0.5), (0.5, 0.5), (0.98, 0.5), (0.4, 0.02)):
        ends = [
            make_fix(locate_in_square(SQUARE, *share), 930),
            make_fix(locate_in_square(last, 1 - share[0], share[1]), ride[-1, 2] + 70),
        ]
        path = write(tmp_path / "ride.gpx", np.concatenate([*old, ends[0], ride[outside], ends[1]]))
        result = hide(path, (), WITHIN, tmp_path / "public.gpx", hide_endpoints=True, overwrite=True)
        assert {SQUARE, last} <= {place.zone.square for place in result.places}
        assert (len(result.places), result.jumps, result.errors) == (2 + bool(start), (), ())
        files.add((tmp_path / "public.gpx").read_bytes())
    assert len(files) == 1


def place_outside(square, metres):
    """Return a location outside the eastern side of a square."""
    south, _, north, east = square.box
    longitude, latitude, _ = GEOD.fwd(east, (south + north) / 2, 90, metres)
    return latitude, longitude


@pytest.mark.parametrize("metres", [[-8, 8], [8, -8], [-1, 35, -30]], ids=["16 m", "16 m from the other side", "three"])
def test_session_recognizes_location_typed_twice_across_a_border(tmp_path, metres):
    """Without a session, and for a location farther outside, there are two squares."""
    squares = set()
    for number, offset in enumerate(metres, start=1):
        path = write(tmp_path / "ride.gpx", make_track([(0, 0), (3, number)]))
        public = tmp_path / f"{number}.gpx"
        result = hide(path, [place_outside(SQUARE, offset)], WITHIN, public, session=tmp_path / "home.json")
        (place,) = result.places
        assert place.num_recordings == number
        assert measure_distance(result, place_outside(SQUARE, offset)) > 1000 * WITHIN
        assert ("recognized as the same location" in result.sentences[2]) == (number > 1 and offset * metres[0] < 0)
        squares.add(place.zone.square)
    assert len(squares) == 1
    west, east = (hide(path, [place_outside(SQUARE, offset)], WITHIN).places[0].zone.square for offset in (-8, 8))
    assert west != east


def test_session_takes_known_square_within_distance_or_refuses_to_keep_points_near(tmp_path):
    """At 150 m from the core the ring is 86 m narrower than the distance of 200 m."""
    session = tmp_path / "home.json"
    hide(write(tmp_path / "west.gpx", make_track([(0, 0), (-3, 0)])), [HOME], WITHIN, session=session)
    location = place_outside(SQUARE, 150)
    west = hide(tmp_path / "west.gpx", [location], WITHIN, session=session)
    assert west.places[0].zone.square == SQUARE
    assert "or up to 200 m outside it" in west.sentences[1]
    stored = session.read_bytes()
    east = write(tmp_path / "east.gpx", make_track([(0, 0), (3, 0)]))
    with pytest.raises(ConfigurationError, match=r"of the core of an earlier location.*use --near .*another --session"):
        hide(east, [location], WITHIN, tmp_path / "public.gpx", session=session)
    assert session.read_bytes() == stored
    assert not (tmp_path / "public.gpx").exists()
    assert measure_distance(hide(east, [location], WITHIN), location) > 1000 * WITHIN
    far = hide(east, [place_outside(SQUARE, 250)], WITHIN, session=session)
    assert far.places[0].zone.square != SQUARE
    assert "farther than 200 m from the cores of other zones" in far.sentences[1]
    assert far.places[0].inferences[0].prior > 1 / 60


@pytest.mark.parametrize("near", [[], [PLANE.to_latlon((-6.0, 6.0))[0]]])
def test_zone_of_a_session_is_hidden_where_a_later_recording_passes_it(tmp_path, near):
    """The second ride stops at home, and the last one does not come near."""
    session = tmp_path / "home.json"
    there, back = make_track([(-6, -6), (0, 0)]), make_track([(0, 0), (-6, 6)], seconds=4000)
    rides = [
        make_track([(0, 0), (5, 0)]),
        np.concatenate([there, back]),
        make_track([(0, 0), (0, -5)]),
        make_track([(9, 9), (9, 4)]),
    ]
    results = []
    for number, rows in enumerate(rides):
        options = {"hide_endpoints": number != 1 or not near, "session": session}
        path = write(tmp_path / f"{number}.gpx", rows)
        results.append(hide(path, near if number == 1 else [], WITHIN, **options))
    assert all(measure_distance(result, HOME) > 1000 * WITHIN for result in results)
    homes = [[place for place in result.places if place.zone.square == SQUARE] for result in results]
    assert [[place.num_recordings for place in places] for places in homes] == [[1], [2], [3], []]
    assert "may have stopped in" in results[1].to_dict()["places"][-1]["crossings"]
    words = "hidden without this session, or before it knew this zone, are not counted"
    assert all(words in result.sentences[2] for result in results)


def test_file_does_not_depend_on_points_in_a_zone_of_the_session(tmp_path):
    """A ride without points in the zone yields the same file, and both lines end there."""
    hide(write(tmp_path / "first.gpx", make_track([(0, 0), (5, 0)])), [HOME], WITHIN, session=tmp_path / "home.json")
    ride, other = make_track([(-3, 3), (-3, 0), (3, 0), (3, 3)]), PLANE.to_latlon((3.0, 3.0))[0]
    outside = ~HiddenZone(SQUARE, WITHIN).contains(*ride[:, :2].T)
    files = []
    for rows in (ride, ride[outside]):
        session, public = tmp_path / "copy.json", tmp_path / "public.gpx"
        session.write_bytes((tmp_path / "home.json").read_bytes())
        hide(write(tmp_path / "ride.gpx", rows), [other], WITHIN, public, session=session, overwrite=True)
        files.append(public.read_text(encoding="utf-8"))
    assert files[0] == files[1]
    assert files[0].count("<trkseg>") == 2


@pytest.mark.parametrize("first_has_both", [True, False])
@pytest.mark.parametrize("times", [(True, True), (True, False), (False, True)])
def test_recording_hidden_again_with_another_zone_is_counted_once(tmp_path, first_has_both, times):
    """The total is that of the file that reveals more: with times, then with more points."""
    session = tmp_path / "home.json"
    # At 6 km/h the passage of the zone is a stop, the time of which restricts the way.
    path = write(tmp_path / "ride.gpx", make_track([(-3, 1), (0, 0), (3, 0), (3, 3)], speed=SPEED / 3))
    locations = [[HOME], [HOME, PLANE.to_latlon((3, 2))[0]]]
    for near, has_times in zip(locations[::-1] if first_has_both else locations, times, strict=True):
        place = hide(path, near, WITHIN, session=session, times=has_times).places[0]
        assert place.zone.square == SQUARE
        assert place.num_recordings == 1
    best = hide(path, locations[first_has_both == times[0]] if times[0] != times[1] else [HOME], WITHIN).places[0]
    for total, alone in zip(place.inferences_from_all, best.inferences, strict=True):
        np.testing.assert_allclose(total.posterior, alone.posterior, rtol=1e-4)
    content = json.loads(session.read_text(encoding="utf-8"))
    assert [len(place["rides"]) for place in content["places"]] == [1, 1]


def test_recording_in_another_format_is_counted_once(tmp_path):
    """Coordinates of FIT have steps of 9 mm, and many GPX files have 1 cm."""
    session = tmp_path / "home.json"
    ride = make_track([(-3, 1), (0, 0), (3, 0)])
    for shift, seconds, count in ((0, 0, 1), (1e-7, 0, 1), (5e-5, 0, 2), (2e-7, 86_400, 3)):
        path = write(tmp_path / "ride.gpx", ride + np.array([shift, shift, seconds]))
        assert hide(path, [HOME], WITHIN, session=session).places[0].num_recordings == count


@pytest.mark.parametrize("hide_endpoints", [False, True])
def test_routes_with_equal_gates_are_counted_separately(tmp_path, hide_endpoints):
    """Planned routes contain the vertices of streets, and end in other zones."""
    session = tmp_path / "home.json"
    for number, end in enumerate([2, -2, 2.5], start=1):
        corners = np.array([(0, 0), (1, 0), (3, 0), (3, end / 2), (3, end)])
        rows = np.column_stack([PLANE.to_latlon(corners), np.full(5, np.nan)])
        path = write(tmp_path / "route.gpx", rows)
        options = {"hide_endpoints": hide_endpoints, "session": session}
        place = hide(path, [HOME, PLANE.to_latlon((3, -2))[0]], WITHIN, **options).places[0]
        assert place.num_recordings == number


def test_edited_session_with_huge_likelihood_is_refused(tmp_path):
    session = tmp_path / "home.json"
    path = write(tmp_path / "ride.gpx", make_track([(-3, 1), (0, 0), (3, 0), (3, 3)]))
    hide(path, [HOME], WITHIN, session=session)
    content = json.loads(session.read_text(encoding="utf-8"))
    content["places"][0]["rides"][0]["stretches"][0]["markov"][0] = -1e308
    session.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataFileError, match="is not a session file written by"):
        hide(path, [HOME], WITHIN, session=session)


@pytest.mark.parametrize("step", [1, 10])
def test_location_ahead_is_two_kilometres_along_the_track_also_of_dense_points(tmp_path, step):
    """At 5 m/s, points of every second are 5 m apart."""
    path = write(tmp_path / "ride.gpx", make_track([(0, 0), (1, 0), (1, 2), (0, 4), (-3, 4)], step=step / 5))
    (place,) = hide(path, [HOME], WITHIN).places
    gate = place.stretches[0].left
    home = place.zone.projection.to_plane(*HOME)[0]
    # From the gate to (1, 0), and from there northwards.
    rest = AHEAD_KM - (1 - (gate.point - home)[0])
    np.testing.assert_allclose(gate.ahead - home, [1, rest], atol=0.011)


def test_time_of_a_gate_is_stated_only_if_it_is_published(tmp_path):
    """The ride from home has times, and the one to the other place has none."""
    other = PLANE.to_latlon((6, 0))[0]
    rides = make_track([(0, 0), (2, 0)]), make_track([(3, 0), (6, 0)])
    rides[1][:, 2] = np.nan
    path = write(tmp_path / "rides.gpx", *rides)
    for times in (True, False):
        sentences = hide(path, [HOME, other], WITHIN, times=times).sentences
        assert ("when and where you left it" in sentences[0]) == times
        assert "when" not in sentences[3].partition("From this file")[0]


def test_precedence_of_squares_is_stored(tmp_path):
    session = tmp_path / "home.json"
    east = write(tmp_path / "east.gpx", make_track([(0, 0), (3, 0)]))
    hide(east, [HOME], WITHIN, session=session)
    first = hide(east, [place_outside(SQUARE, 250)], WITHIN, session=session).places[0]
    again = hide(east, [place_outside(SQUARE, 260)], WITHIN, session=session).places[0]
    assert first.zone.others == again.zone.others == ((SQUARE, WITHIN),)
    assert np.array_equal(first.zone.prior, again.zone.prior)
    history = ZoneHistory.read(session, SquareRule(WITHIN, None, None), None)
    assert history.squares == [SQUARE, first.zone.square]


@pytest.mark.parametrize("minutes", [0, 1, 3, 14])
@pytest.mark.parametrize("speed", [3, 15, 25])
def test_stop_in_zone_is_not_described_as_crossing(tmp_path, minutes, speed):
    """At 15 km/h the zone of 0.88 km takes 3.5 minutes. Receiver noise of 5 m (seed 1)."""
    through = make_track([(-3, 0), (0, 0)], step=5, speed=speed / 3600)
    stay = np.repeat(through[-1:], max(1, 12 * minutes), axis=0)
    stay[:, 2] += 5 * np.arange(len(stay))
    back = make_track([(0, 0), (3, 0)], seconds=stay[-1, 2] + 5, step=5, speed=speed / 3600)
    rows = np.concatenate([through, stay, back])
    rows[:, :2] += np.random.default_rng(1).normal(0, 5 / 111_000, (len(rows), 2))
    path = write(tmp_path / "ride.gpx", rows, segment_of_track=True)
    with_times, without = (hide(path, [HOME], WITHIN, times=times) for times in (True, False))
    (place,) = with_times.to_dict()["places"]
    has_stop = "may have stopped in" in place["crossings"]
    # Compared with the straight way through the zone at 16 km/h.
    assert has_stop == (60 * minutes + 3600 * 0.88 * (1 / speed - 1 / 16) >= 120)
    assert without.to_dict()["places"][0]["crossings"] == place["crossings"]
    timed, untimed = (
        max(inference.max_posterior for inference in result.places[0].inferences) for result in (with_times, without)
    )
    assert (timed > 0.011) == has_stop
    assert untimed <= timed * (1 + 1e-6)


def test_equal_files_have_equal_descriptions(tmp_path):
    """One ride rests in the zone for 130 s, and the other one does not. Both take 300 s."""
    there, back = make_track([(-3, 0), (-0.6, 0)]), make_track([(0.6, 0), (3, 0)])
    back[:, 2] += there[-1, 2] + 300
    results = []
    for seconds in ([80, 210, 250], [80, 85, 250]):
        inside = np.column_stack([PLANE.to_latlon(np.array([(0, 0), (0, 0), (0.3, 0)])), there[-1, 2] + seconds])
        path = write(tmp_path / "ride.gpx", np.concatenate([there, inside, back]))
        results.append(hide(path, [HOME], WITHIN, tmp_path / "public.gpx", overwrite=True))
        results[-1] = results[-1].sentences, (tmp_path / "public.gpx").read_bytes()
    assert results[0] == results[1]


@pytest.mark.parametrize("distance_km", [0.6, 3])
def test_description_does_not_depend_on_times_of_points_at_rest(tmp_path, distance_km):
    """The ride is at home for 95 minutes, and continues near the zone or elsewhere.

    The receiver writes a point per minute, or only after the arrival, or only before the start.
    """
    there, back = make_track([(-3, 0), (-0.6, 0)]), make_track([(distance_km, 0), (distance_km + 3, 0)])
    back[:, 2] += there[-1, 2] + 5800
    descriptions = set()
    for seconds in (range(100, 5700, 60), range(100, 280, 60), range(5580, 5760, 60)):
        inside = np.concatenate([make_fix(HOME, there[-1, 2] + second) for second in seconds])
        path = write(tmp_path / "ride.gpx", np.concatenate([there, inside, back]), segment_of_track=True)
        result = hide(path, [HOME], WITHIN, tmp_path / "public.gpx", overwrite=True)
        descriptions.add((result.sentences, (tmp_path / "public.gpx").read_bytes()))
    assert len(descriptions) == 1
    expected = "crossed it, perhaps with a stop" if distance_km == 0.6 else "when and where you entered it"
    assert expected in result.sentences[0]


def test_recording_inside_a_zone_of_a_session_raises_with_a_remedy_that_works(tmp_path):
    session = tmp_path / "home.json"
    hide(write(tmp_path / "ride.gpx", RIDE), [HOME], WITHIN, session=session)
    path = write(tmp_path / "short.gpx", make_track([(0, 0), (0.1, 0)]))
    with pytest.raises(ConfigurationError, match="or use another --session with a smaller --within"):
        hide(path, [HOME], WITHIN, session=session)
    with pytest.raises(ConfigurationError, match="or use a smaller --within"):
        hide(path, [HOME], WITHIN)
    assert len(hide(path, [HOME], 0.02, session=tmp_path / "other.json").public)


@pytest.mark.parametrize(("kind", "verb"), [("walking", "crossed"), ("cycling", "may have stopped in")])
def test_steady_run_counts_as_stop_at_the_speed_of_faster_movement(tmp_path, kind, verb):
    run = make_track([(-3, 0), (3, 0)], step=5, speed=7.6 / 3600)
    result = hide(write(tmp_path / "run.gpx", run), [HOME], WITHIN, kind=kind)
    (place,) = result.to_dict()["places"]
    # The zone is crossed straight, and two minutes slower than by bicycle only.
    saved = 3600 * 0.88 * (1 / 7.6 - 1 / KINDS[kind].speed_kmh)
    assert (saved > 120) == (kind == "cycling")
    assert place["crossings"] == [verb]
    assert ("you crossed it, perhaps with a stop." in result.sentences[0]) == (kind == "cycling")


def test_gates_of_different_trips_are_not_combined(tmp_path):
    """The first trip ends at home. The second starts elsewhere and passes two hours later."""
    first = make_track([(-3, 0), (0, 0)])
    second = make_track([(0, 3), (0, 0), (3, 0)], seconds=first[-1, 2] + 7200)
    (place,) = hide(write(tmp_path / "ride.gpx", first, second), [HOME], WITHIN).places
    gates = [(stretch.entered is not None, stretch.left is not None) for stretch in place.stretches]
    assert gates == [(True, False), (True, True)]
    home = make_track([(0, 0), (0, 0.1)], seconds=first[-1, 2] + 7200)
    (place,) = hide(write(tmp_path / "ride.gpx", first, home), [HOME], WITHIN).places
    assert [(stretch.entered is not None, stretch.left is not None) for stretch in place.stretches] == [(True, False)]
    work = HiddenZone(Square.around(*locate_in_square(SQUARE, 0.5, 6.5), 1.5 * WITHIN), WITHIN).square.centre
    trips = [
        make_track([(0, 0), (0, 0.3)], seconds=7200),
        make_track([(0, 0), (3, 0)], seconds=20_000),
        make_track([(6, 0), (5, 0)]),
    ]
    result = hide(write(tmp_path / "ride.gpx", *trips), [HOME, work], WITHIN)
    assert [stretch.entered for stretch in result.places[0].stretches] == [None]


def test_home_is_hidden_near_a_point_without_a_time_in_a_pause(tmp_path):
    """The ride pauses at home for four hours."""
    there, back = make_track([(-3, 0), (0, 0)]), make_track([(0, 0), (3, 0)], seconds=5 * 3600)
    untimed = np.array([[*PLANE.to_latlon(np.array([[0.0, 0.01]]))[0], np.nan]])
    path = write(tmp_path / "ride.gpx", np.concatenate([there, untimed, back]))
    result = hide(path, hide_endpoints=True, within_km=WITHIN)
    assert measure_distance(result, HOME) > 1000 * WITHIN
