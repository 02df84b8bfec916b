"""Tests of hidden places: the output depends on the outside track and a public square."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import gpxpy
import numpy as np
import pytest
from pyproj import Geod

from dphmm.errors import ConfigurationError, CoordinateError, DataFileError, OutputError
from dphmm.hide.fixed_squares import Square
from dphmm.hide.recording_writers import RECORDING_FORMATS, write_recording
from dphmm.hide.zone import CELLS, HiddenZone
from dphmm.hide.zone_inference import find_gate_cell, get_moves
from dphmm.jobs import hide
from dphmm.readers.reading import read_recording
from dphmm.space.trajectory import Recording, Segment
from tests.documents import ROOT
from tests.sizes import choose_count

RIDE = ROOT / "data/sample/ride.gpx"
HOME = (45.01, -30.01)
WITHIN = 0.5
SQUARE = Square.around(*HOME, 1.5 * WITHIN)
ZONE = HiddenZone(SQUARE, WITHIN)


@pytest.fixture(scope="module")
def ride():
    return read_recording(RIDE)


def move_inside(ride, rng):
    """Return the ride with another location and number of points inside the zone."""
    (segment,) = ride.segments
    inside = ZONE.contains(segment.latitude, segment.longitude)
    south, west, north, east = SQUARE.box
    latitude, longitude = segment.latitude.copy(), segment.longitude.copy()
    latitude[inside], longitude[inside] = rng.uniform(south, north), rng.uniform(west, east)
    kept = ~inside | (rng.random(len(segment)) < 0.7)
    sensors = {name: values[kept] for name, values in segment.sensors.items()}
    return Recording(
        (Segment(latitude[kept], longitude[kept], segment.times[kept], segment.elevation[kept], sensors),),
        ride.activity,
    )


@pytest.mark.slow
def test_output_is_equal_for_all_places_in_square(ride, tmp_path):
    rng, files = np.random.default_rng(3), []
    south, west, north, east = SQUARE.box

    def read_outputs(data, home):
        public = hide(data, [home], WITHIN, tmp_path / "public.gpx", overwrite=True).public
        for name in RECORDING_FORMATS[1:]:
            write_recording(tmp_path / f"public.{name}", public, overwrite=True)
        return tuple((tmp_path / f"public.{name}").read_bytes() for name in RECORDING_FORMATS)

    for number in range(choose_count(4, 2)):
        write_recording(tmp_path / f"{number}.gpx", move_inside(ride, rng))
        home = (rng.uniform(south, north), rng.uniform(west, east))
        files.append(read_outputs(tmp_path / f"{number}.gpx", home))
    assert {*files, read_outputs(RIDE, HOME)} == {files[0]}
    others = read_outputs(RIDE, (south - 0.001, HOME[1]))  # in the next square
    assert all(other != file for other, file in zip(others, files[0], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDING_FORMATS)
def test_each_format_keeps_times_and_lists_losses(tmp_path, name):
    result = hide(RIDE, "45°00'36\"N 30°00'36\"W", WITHIN, tmp_path / "public.txt", format=name)
    text = (tmp_path / "public.txt").read_text(encoding="utf-8")
    segment = result.public.segments[0]
    assert str(segment.times[0].astype("datetime64[s]")) in text
    lost = {"kml": {"cad of points", "activity"}, "csv": {"activity"}}.get(name, set())
    assert {"cad of points", "activity"} & set(result.removed) == lost
    assert hide(RIDE, [HOME], WITHIN).sentences == result.sentences


@pytest.mark.slow
def test_output_is_exact_outside_and_omits_points_near_place(tmp_path, ride):
    done = hide(RIDE, [HOME], WITHIN, tmp_path / "public.gpx")
    (segment,) = ride.segments
    outside = ~ZONE.contains(segment.latitude, segment.longitude)
    parts = read_recording(tmp_path / "public.gpx").segments
    for what in ("latitude", "longitude", "times"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(part, what) for part in parts]), getattr(segment, what)[outside]
        )
    away = ZONE.projection.to_plane(np.concatenate([part.latitude for part in parts]),
                                    np.concatenate([part.longitude for part in parts]))  # fmt: skip
    assert np.hypot(*(away - ZONE.projection.to_plane(*HOME)).T).min() > WITHIN
    assert (len(done.public), done.num_hidden, done.num_points) == (outside.sum(), (~outside).sum(), len(segment))


@pytest.mark.slow
def test_output_omits_metadata_and_cumulative_sensors(tmp_path):
    """Names, bounds, file times, totals, waypoints and cumulative sensors are removed.

    Other sensors can be kept.
    """
    text = RIDE.read_text(encoding="utf-8")
    bounds = '<bounds minlat="44.9" minlon="-30.1" maxlat="45.1" maxlon="-29.9"/></metadata>'
    text = text.replace("</metadata>", f'{bounds}<wpt lat="45.0095" lon="-30.0125"/>').replace(
        "<x:hr>", "<x:distance>123.4</x:distance><x:hr>"
    )
    text = text.replace("<type>", "<extensions><x:TotalElapsedTime>999</x:TotalElapsedTime></extensions><type>")
    (tmp_path / "ride.gpx").write_text(text, encoding="utf-8")
    done = hide(tmp_path / "ride.gpx", [HOME], WITHIN, tmp_path / "public.gpx")
    output_text = (tmp_path / "public.gpx").read_text(encoding="utf-8")
    for word in ("door", "<metadata>", "bounds", "wpt", "Elapsed", "distance", "hr>"):
        assert word not in output_text, word
    left = (
        "bounds of the file",
        "distance of points",
        "extensions of tracks",
        "hr of points",
        "name of tracks",
        "waypoints",
    )
    assert set(left) <= set(done.removed)
    kept = gpxpy.parse(output_text)
    assert {track.type for track in kept.tracks} == {"cycling"}
    points = [point for track in kept.tracks for segment in track.segments for point in segment.points]
    assert all(point.time is not None for point in points)
    assert points[0].extensions[0][0].text == "82"
    hide(tmp_path / "ride.gpx", [HOME], WITHIN, tmp_path / "more.gpx", keep=["hr"], times=False)
    output_text = (tmp_path / "more.gpx").read_text(encoding="utf-8")
    assert "hr>" in output_text
    assert "<time>" not in output_text


@pytest.mark.slow
def test_gdal_reads_output(tmp_path):
    pyogrio = pytest.importorskip("pyogrio")
    done = hide(RIDE, [HOME], WITHIN, tmp_path / "public.gpx")
    points = pyogrio.read_dataframe(tmp_path / "public.gpx", layer="track_points")
    assert len(points) == len(done.public)
    assert points["time"].notna().all()
    hide(RIDE, [HOME], WITHIN, tmp_path / "public.geojson")
    lines = pyogrio.read_dataframe(tmp_path / "public.geojson")
    assert sum(len(line.coords) for line in lines.geometry) == len(done.public)


@pytest.mark.slow
def test_sentences_match_recomputed_posterior(tmp_path):
    """The posterior is recomputed from the output file alone, with the zone's matrix."""
    done = hide(RIDE, [HOME], WITHIN, tmp_path / "public.gpx")
    (place,) = done.places
    parts = read_recording(tmp_path / "public.gpx").segments
    first, last = ((parts[0].latitude[0], parts[0].longitude[0]), (parts[-1].latitude[-1], parts[-1].longitude[-1]))
    moves, inside = get_moves(ZONE).matrix, ZONE.inside
    out, back = (find_gate_cell(ZONE, ZONE.projection.to_plane(*point)[0]) for point in (first, last))
    stays = np.eye(inside.sum()) - moves[np.ix_(inside, inside)]
    both = np.linalg.inv(stays) @ moves[inside, out] * (moves[back, inside] @ np.linalg.inv(stays))
    mass = both[np.isin(np.flatnonzero(inside), ZONE.core)]
    mass /= mass.sum()
    np.testing.assert_allclose(place.inferences[0].posterior, mass, rtol=1e-9)
    best = max(place.inferences, key=lambda knowledge: knowledge.max_posterior)
    revealed, protected, repeated = done.sentences
    assert f"a probability above 1 in {math.floor(1 / best.max_posterior)}." in revealed
    assert f"Without the file, this probability is 1 in {CELLS**2}." in revealed
    assert f"{1000 * best.error_km:.3g} m" in revealed
    assert "No point within 500 m" in protected
    assert repeated.startswith("Repeated: Ten recordings that enter and leave like this one would raise")


@pytest.mark.slow
def test_recordings_are_counted_once_and_accumulate(tmp_path):
    session = tmp_path / "home.json"
    first = hide(RIDE, [HOME], WITHIN, session=session).places[0]
    again = hide(RIDE, [HOME], WITHIN, session=session).places[0]
    assert (first.num_recordings, again.num_recordings) == (1, 1)
    back = read_recording(RIDE).segments[0]
    write_recording(tmp_path / "half.gpx", Recording((back.select_points(slice(0, 1500)),), "cycling"))
    second = hide(tmp_path / "half.gpx", [HOME], WITHIN, session=session).places[0]
    assert second.num_recordings == 2
    product = first.inferences[0].posterior * second.inferences[0].posterior
    np.testing.assert_allclose(second.inferences_from_all[0].posterior, product / product.sum(), rtol=1e-4)
    with pytest.raises(ConfigurationError, match=r"hidden with --within 500m, and zones of several sizes"):
        hide(RIDE, [HOME], 0.3, session=session)
    with pytest.raises(ConfigurationError, match=r"--kind must be cycling, .*home.json, or omitted, got walking"):
        hide(RIDE, [HOME], WITHIN, session=session, kind="walking")
    (tmp_path / "no.json").write_text("[]", encoding="utf-8")
    with pytest.raises(DataFileError, match="dphmm hide --session"):
        hide(RIDE, [HOME], WITHIN, session=tmp_path / "no.json")


@pytest.mark.slow
def test_recording_is_counted_once_if_times_break_its_lines(tmp_path):
    """The pause in the zone breaks the line only if its duration is known."""
    north = np.concatenate([np.linspace(3, 0, 100), np.linspace(0, 3, 100)])
    latitude, longitude = ZONE.projection.to_latlon(np.column_stack([np.zeros(len(north)), north])).T
    seconds = 5 * np.arange(len(north)) + 1800 * (np.arange(len(north)) >= 100)
    times = np.datetime64("2024-05-01T08:00:00", "us") + seconds * np.timedelta64(1_000_000, "us")
    ride = Recording((Segment(latitude, longitude, times, np.full(len(north), np.nan)),), "cycling")
    write_recording(tmp_path / "ride.gpx", ride)
    results = [
        hide(tmp_path / "ride.gpx", [HOME], WITHIN, session=tmp_path / "s.json", times=times) for times in (True, False)
    ]
    assert [len(result.public.segments) for result in results] == [2, 1]
    assert [result.places[0].num_recordings for result in results] == [1, 1]


@pytest.mark.slow
def test_recording_without_times_does_not_replace_the_one_with_times(tmp_path):
    """The adversary uses the better file: a short time restricts the way to the stop."""
    east = np.concatenate([np.linspace(-2.5, 0, 500), np.zeros(60), np.linspace(0, 2.5, 500)])
    latitude, longitude = ZONE.projection.to_latlon(np.column_stack([east, np.zeros(len(east))])).T
    times = np.datetime64("2024-05-01T08:00:00", "us") + 3 * np.arange(len(east)) * np.timedelta64(1_000_000, "us")
    ride = tmp_path / "ride.gpx"
    write_recording(ride, Recording((Segment(latitude, longitude, times, np.full(len(east), np.nan)),), "cycling"))
    totals = [
        hide(ride, [HOME], WITHIN, session=tmp_path / "s.json", times=times).places[0] for times in (False, True, False)
    ]
    alone, untimed = (hide(ride, [HOME], WITHIN, times=times).places[0].inferences for times in (True, False))
    assert untimed[0].max_posterior < 0.9 * alone[0].max_posterior
    for place, expected in zip(totals, (untimed, alone, alone), strict=True):
        assert place.num_recordings == 1
        assert place.inferences_from_all[0].max_posterior == pytest.approx(expected[0].max_posterior, rel=1e-4)
    assert totals[2].inferences[0].max_posterior == pytest.approx(untimed[0].max_posterior)


@pytest.mark.slow
def test_parallel_runs_of_a_session_lose_no_recording(tmp_path):
    (segment,) = read_recording(RIDE).segments
    for number in range(4):
        shifted = Segment(segment.latitude + 1e-5 * number, segment.longitude, segment.times, segment.elevation)
        write_recording(tmp_path / f"{number}.gpx", Recording((shifted,)))
    code = "import sys; from dphmm.jobs import hide; hide(sys.argv[1], [(45.01, -30.01)], 0.5, session=sys.argv[2])"
    runs = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path / f"{number}.gpx", tmp_path / "s.json"])
        for number in range(4)
    ]
    assert [run.wait(120) for run in runs] == [0] * 4
    content = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert [len(place["rides"]) for place in content["places"]] == [4]
    assert {path.name for path in tmp_path.iterdir()} == {"s.json", *(f"{number}.gpx" for number in range(4))}


@pytest.mark.slow
def test_session_does_not_count_a_recording_that_cannot_be_written(tmp_path):
    """The disk is full after 50 kB. The session takes less, the recording more."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"public\.gpx"):
            hide(RIDE, [HOME], WITHIN, tmp_path / "public.gpx", session=tmp_path / "s.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    hide(RIDE, [HOME], WITHIN, tmp_path / "public.gpx", session=tmp_path / "s.json")
    assert (tmp_path / "s.json").stat().st_size < 50_000 < (tmp_path / "public.gpx").stat().st_size


def test_recording_itself_is_not_replaced(tmp_path):
    ride = tmp_path / "ride.gpx"
    ride.write_bytes(RIDE.read_bytes())
    (tmp_path / "link.gpx").symlink_to(ride)
    for output in (ride, tmp_path / "link.gpx"):
        with pytest.raises(OutputError, match="is the recording itself"):
            hide(ride, [HOME], WITHIN, output, overwrite=True)
    assert ride.read_bytes() == RIDE.read_bytes()


@pytest.mark.slow
def test_error_of_check_prevents_files(tmp_path):
    def fail(result):
        assert len(result.public)
        raise DataFileError("map.geojson", "contains no map of the region")

    with pytest.raises(DataFileError, match="no map of the region"):
        hide(RIDE, [HOME], WITHIN, tmp_path / "out.gpx", session=tmp_path / "s.json", check=fail)
    assert list(tmp_path.iterdir()) == []


def test_ends_near_known_place_use_its_zone(tmp_path):
    """A fix at the front door lies on either side of a border between squares."""
    south, west, _, east = SQUARE.box
    lanes = np.linspace(west, east, 2)[0] - np.linspace(0, 0.05, 200)
    for number, off in enumerate((0.0002, -0.0002)):
        track = Segment(
            np.full(200, south + off), lanes + 0.005, np.full(200, np.datetime64("NaT", "us")), np.full(200, np.nan)
        )
        write_recording(tmp_path / f"{number}.gpx", Recording((track,)))
    first = hide(tmp_path / "0.gpx", hide_endpoints=True, within_km=WITHIN, session=tmp_path / "s.json")
    second = hide(tmp_path / "1.gpx", hide_endpoints=True, within_km=WITHIN, session=tmp_path / "s.json")
    assert {place.zone.square for place in first.places} == {place.zone.square for place in second.places}
    alone = hide(tmp_path / "1.gpx", hide_endpoints=True, within_km=WITHIN)
    assert {place.zone.square for place in alone.places} != {place.zone.square for place in first.places}


@pytest.mark.parametrize("within", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.15, 0.19])
def test_points_near_end_next_to_known_place_are_omitted(tmp_path, within, share):
    """The ring around the known place's core may reach less far around the end."""
    geod = Geod(ellps="WGS84")
    south, west, north, east = Square.around(*HOME, 1.5 * within).box
    middle = (south + north) / 2
    begun, _, _ = geod.fwd(east, middle, 90, 1000 * share * within)
    along = geod.npts(begun, middle, begun + 0.1, middle, 2000)
    longitude, latitude = np.array([(begun, middle), *along]).T
    nothing = np.full(len(latitude), np.nan)
    track = Segment(latitude, longitude, nothing.astype("datetime64[us]"), nothing)
    write_recording(tmp_path / "ride.gpx", Recording((track,)))
    parts = hide(tmp_path / "ride.gpx", [(middle, (west + 3 * east) / 4)], within, hide_endpoints=True).public.segments
    reached = np.concatenate([part.longitude for part in parts]), np.concatenate([part.latitude for part in parts])
    far = geod.inv(np.full(len(reached[0]), begun), np.full(len(reached[0]), middle), *reached)[2]
    assert far.min() > 1000 * within


@pytest.mark.slow
@pytest.mark.parametrize("distances", [(None, 0.5), (0.5, None)])
def test_default_distance_of_a_session_is_that_distance(tmp_path, distances):
    for within_km in distances:
        result = hide(
            ROOT / "data/sample/ride.gpx", [(45.01, -30.01)], within_km=within_km, session=tmp_path / "s.json"
        )
        assert result.within_km == 0.5


@pytest.mark.parametrize("more", [{"near": [(45.01, -30.01), (45.01, 30.01)]}, {"hide_endpoints": True}])
def test_location_without_a_point_is_stated(more):
    """Such as a longitude without its minus sign: the home stays in the file."""
    result = hide(ROOT / "data/sample/ride.gpx", **{"near": [(45.01, 30.01)]} | more, within_km=0.5)
    assert [text[:12] for text in result.unused] == ["45.01, 30.01"]
    assert "nearest point 4," in result.unused[0]
    assert result.to_dict()["private_unused_locations"] == list(result.unused)
    assert hide(ROOT / "data/sample/ride.gpx", near=[(45.01, -30.01)], within_km=0.5).unused == ()


@pytest.mark.slow
def test_places_are_read_from_file(tmp_path):
    shape = {"type": "Point", "coordinates": [HOME[1], HOME[0]]}
    layer = {"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {}, "geometry": shape}]}
    (tmp_path / "homes.geojson").write_text(json.dumps(layer), encoding="utf-8")
    assert hide(RIDE, tmp_path / "homes.geojson").sentences == hide(RIDE, [HOME]).sentences


def test_time_in_year_10000_utc_raises(tmp_path):
    text = RIDE.read_text(encoding="utf-8")
    first = text.index("<time>", text.index("<trkpt")) + len("<time>")
    late = text[:first] + "9999-12-31T23:59:59-14:00" + text[text.index("</time>", first) :]
    (tmp_path / "late.gpx").write_text(late, encoding="utf-8")
    with pytest.raises(DataFileError, match=r"track 1, segment 1, point 1: time .*9999-12-31T23:59:59-14:00"):
        read_recording(tmp_path / "late.gpx")


@pytest.mark.parametrize(
    ("near", "more", "error", "match"),
    [
        ([], {}, ConfigurationError, "no location to hide: use --near"),
        (
            [HOME[::-1]],
            {},
            ConfigurationError,
            "no point lies within 500 m of the location: the nearest is 11,2[0-9]{2} km away",
        ),
        ("45.01", {}, CoordinateError, "--near must be latitude and longitude as in 45.01,-30.01"),
        ([HOME], {"output": "x.tcx", "times": False}, ConfigurationError, "TCX requires the time of every point"),
        ([HOME, (86.0, 0.0)], {}, CoordinateError, "--near: latitude and longitude must .* 84 .*, got 86.0, 0.0"),
        ([HOME], {"within_km": 8.0}, ConfigurationError, "use a smaller --within"),
        ([HOME], {"within_km": 8.6}, ConfigurationError, r"--within must be at most 8\.53 km .*, got 8\.6 km"),
        ([], {"within_km": 9, "hide_endpoints": True}, ConfigurationError, r"--within must be at most 8\.53 km"),
        ([HOME], {"keep": ["mood"]}, ConfigurationError, "hr"),
        ([HOME], {"output": "nowhere/x.gpx"}, OutputError, "does not exist; create it"),
        ([HOME], {"output": "x.fit"}, ConfigurationError, r"one of \.gpx"),
    ],
)
def test_invalid_arguments_raise_and_nothing_is_written(tmp_path, monkeypatch, near, more, error, match):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=match):
        hide(RIDE, near, **{"output": "x.gpx", "session": "s.json", **more})
    assert list(tmp_path.iterdir()) == []
