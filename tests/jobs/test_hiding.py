"""A recording with a place hidden in it: what is told is a function of the way outside and of a public square."""

from __future__ import annotations

import json
import math

import gpxpy
import numpy as np
import pytest
from pyproj import Geod

from dphmm.audit.hidden_place import CELLS, HiddenZone
from dphmm.errors import ConfigurationError, CoordinateError, DataFileError, OutputError
from dphmm.jobs import hide
from dphmm.readers.reading import read_recording
from dphmm.space.grid import Square
from dphmm.space.trajectory import Recording, Segment
from dphmm.writers.recordings import write_recording
from tests.documents import ROOT

RIDE = ROOT / "data/sample/ride.gpx"
HOME = (45.01, -30.01)
WITHIN = 0.5
SQUARE = Square.around(*HOME, 1.5 * WITHIN)
ZONE = HiddenZone(SQUARE, WITHIN)


@pytest.fixture(scope="module")
def ride():
    return read_recording(RIDE)


def elsewhere_inside(ride, rng):
    """The same ride, but what happened in the zone is somewhere else in it, and takes another number of points."""
    (one,) = ride.segments
    inside = ZONE.holds(one.latitude, one.longitude)
    south, west, north, east = SQUARE.box
    latitude, longitude = one.latitude.copy(), one.longitude.copy()
    latitude[inside], longitude[inside] = rng.uniform(south, north), rng.uniform(west, east)
    kept = ~inside | (rng.random(len(one)) < 0.7)
    sensors = {name: values[kept] for name, values in one.sensors.items()}
    return Recording(
        (Segment(latitude[kept], longitude[kept], one.times[kept], one.elevation[kept], sensors),), ride.activity
    )


@pytest.mark.parametrize("suffix", [".gpx", ".geojson", ".csv"])
def test_the_same_file_comes_out_wherever_in_the_square_the_place_is(ride, tmp_path, suffix):
    rng, files = np.random.default_rng(3), []
    south, west, north, east = SQUARE.box
    for number in range(4):
        write_recording(tmp_path / f"{number}.gpx", elsewhere_inside(ride, rng))
        home = (rng.uniform(south, north), rng.uniform(west, east))
        hide(tmp_path / f"{number}.gpx", [home], WITHIN, tmp_path / f"public{number}{suffix}")
        files.append((tmp_path / f"public{number}{suffix}").read_bytes())
    hide(RIDE, [HOME], WITHIN, tmp_path / f"public{suffix}")
    assert {*files, (tmp_path / f"public{suffix}").read_bytes()} == {files[0]}
    hide(RIDE, [(south - 0.001, HOME[1])], WITHIN, tmp_path / f"other{suffix}")  # in the next square
    assert (tmp_path / f"other{suffix}").read_bytes() != files[0]


def test_what_is_told_is_exact_outside_and_nothing_near(tmp_path, ride):
    done = hide(RIDE, [HOME], WITHIN, tmp_path / "public.gpx")
    (one,) = ride.segments
    outside = ~ZONE.holds(one.latitude, one.longitude)
    told = read_recording(tmp_path / "public.gpx").segments
    for what in ("latitude", "longitude", "times"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(part, what) for part in told]), getattr(one, what)[outside]
        )
    away = ZONE.projection.to_plane(np.concatenate([part.latitude for part in told]),
                                    np.concatenate([part.longitude for part in told]))  # fmt: skip
    assert np.hypot(*(away - ZONE.projection.to_plane(*HOME)).T).min() > WITHIN
    assert (len(done.public), done.hidden, done.points) == (outside.sum(), (~outside).sum(), len(one))


def test_a_file_tells_nothing_of_all_of_the_recording(tmp_path):
    """Names, bounds, times of the file, totals, waypoints and sensors that count from the start go; others stay."""
    text = RIDE.read_text(encoding="utf-8")
    bounds = '<bounds minlat="44.9" minlon="-30.1" maxlat="45.1" maxlon="-29.9"/></metadata>'
    text = text.replace("</metadata>", f'{bounds}<wpt lat="45.0095" lon="-30.0125"/>').replace(
        "<x:hr>", "<x:distance>123.4</x:distance><x:hr>"
    )
    text = text.replace("<type>", "<extensions><x:TotalElapsedTime>999</x:TotalElapsedTime></extensions><type>")
    (tmp_path / "ride.gpx").write_text(text, encoding="utf-8")
    done = hide(tmp_path / "ride.gpx", [HOME], WITHIN, tmp_path / "public.gpx")
    told = (tmp_path / "public.gpx").read_text(encoding="utf-8")
    for word in ("door", "<metadata>", "bounds", "wpt", "Elapsed", "distance", "hr>"):
        assert word not in told, word
    left = (
        "bounds of the file",
        "distance of points",
        "extensions of tracks",
        "hr of points",
        "name of tracks",
        "waypoints",
    )
    assert set(left) <= set(done.left_out)
    kept = gpxpy.parse(told)
    assert {track.type for track in kept.tracks} == {"cycling"}
    points = [point for track in kept.tracks for segment in track.segments for point in segment.points]
    assert all(point.time is not None for point in points)
    assert points[0].extensions[0][0].text == "82"
    hide(tmp_path / "ride.gpx", [HOME], WITHIN, tmp_path / "more.gpx", keep=["hr"], times=False)
    told = (tmp_path / "more.gpx").read_text(encoding="utf-8")
    assert "hr>" in told
    assert "<time>" not in told


def test_gdal_reads_what_is_told(tmp_path):
    pyogrio = pytest.importorskip("pyogrio")
    done = hide(RIDE, [HOME], WITHIN, tmp_path / "public.gpx")
    points = pyogrio.read_dataframe(tmp_path / "public.gpx", layer="track_points")
    assert len(points) == len(done.public)
    assert points["time"].notna().all()
    hide(RIDE, [HOME], WITHIN, tmp_path / "public.geojson")
    lines = pyogrio.read_dataframe(tmp_path / "public.geojson")
    assert sum(len(line.coords) for line in lines.geometry) == len(done.public)


def test_the_sentences_say_what_the_posterior_is(tmp_path):
    """Worked out here once more from the file that is told alone, by the matrix of the zone."""
    done = hide(RIDE, [HOME], WITHIN, tmp_path / "public.gpx")
    (place,) = done.places
    told = read_recording(tmp_path / "public.gpx").segments
    first, last = ((told[0].latitude[0], told[0].longitude[0]), (told[-1].latitude[-1], told[-1].longitude[-1]))
    moves, inside = ZONE._moves, ZONE.inside
    out, back = (ZONE._cell(ZONE.projection.to_plane(*one)[0]) for one in (first, last))
    stays = np.eye(inside.sum()) - moves[np.ix_(inside, inside)]
    both = np.linalg.inv(stays) @ moves[inside, out] * (moves[back, inside] @ np.linalg.inv(stays))
    mass = both[np.isin(np.flatnonzero(inside), ZONE.core)]
    mass /= mass.sum()
    np.testing.assert_allclose(place.known[0].posterior, mass, rtol=1e-9)
    best = max(place.known, key=lambda one: one.certainty)
    can, cannot, adds = done.sentences
    assert f"1 in {math.floor(1 / best.certainty)} (before: 1 in {CELLS**2})" in can
    assert "no point within 500 m" in cannot
    assert "ten that go in and out like this" in adds


def test_recordings_are_counted_once_and_add_up(tmp_path):
    session = tmp_path / "home.json"
    one = hide(RIDE, [HOME], WITHIN, session=session).places[0]
    again = hide(RIDE, [HOME], WITHIN, session=session).places[0]
    assert (one.recordings, again.recordings) == (1, 1)
    back = read_recording(RIDE).segments[0]
    write_recording(tmp_path / "half.gpx", Recording((back.part(slice(0, 1500)),), "cycling"))
    two = hide(tmp_path / "half.gpx", [HOME], WITHIN, session=session).places[0]
    assert two.recordings == 2
    product = one.known[0].posterior * two.known[0].posterior
    np.testing.assert_allclose(two.known_from_all[0].posterior, product / product.sum(), rtol=1e-4)
    with pytest.raises(ConfigurationError, match="zones of several sizes"):
        hide(RIDE, [HOME], 0.3, session=session)
    (tmp_path / "no.json").write_text("[]", encoding="utf-8")
    with pytest.raises(DataFileError, match="no file of hidden places"):
        hide(RIDE, [HOME], WITHIN, session=tmp_path / "no.json")


def test_ends_beside_a_known_place_are_that_place(tmp_path):
    """A fix of the front door lies now on this side of a border of squares, now on the other."""
    south, west, _, east = SQUARE.box
    lanes = np.linspace(west, east, 2)[0] - np.linspace(0, 0.05, 200)
    for number, off in enumerate((0.0002, -0.0002)):
        track = Segment(
            np.full(200, south + off), lanes + 0.005, np.full(200, np.datetime64("NaT", "us")), np.full(200, np.nan)
        )
        write_recording(tmp_path / f"{number}.gpx", Recording((track,)))
    first = hide(tmp_path / "0.gpx", ends=True, within_km=WITHIN, session=tmp_path / "s.json")
    second = hide(tmp_path / "1.gpx", ends=True, within_km=WITHIN, session=tmp_path / "s.json")
    assert {one.zone.square for one in first.places} == {one.zone.square for one in second.places}
    alone = hide(tmp_path / "1.gpx", ends=True, within_km=WITHIN)
    assert {one.zone.square for one in alone.places} != {one.zone.square for one in first.places}


@pytest.mark.parametrize("within", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.15, 0.19])
def test_no_point_near_an_end_beside_a_known_place_is_told(tmp_path, within, share):
    """The ring about the known place's core need not reach as far about the end: before, a tenth less at times."""
    geod = Geod(ellps="WGS84")
    south, west, north, east = Square.around(*HOME, 1.5 * within).box
    middle = (south + north) / 2
    begun, _, _ = geod.fwd(east, middle, 90, 1000 * share * within)
    along = geod.npts(begun, middle, begun + 0.1, middle, 2000)
    longitude, latitude = np.array([(begun, middle), *along]).T
    nothing = np.full(len(latitude), np.nan)
    track = Segment(latitude, longitude, nothing.astype("datetime64[us]"), nothing)
    write_recording(tmp_path / "ride.gpx", Recording((track,)))
    told = hide(tmp_path / "ride.gpx", [(middle, (west + 3 * east) / 4)], within, ends=True).public.segments
    reached = np.concatenate([one.longitude for one in told]), np.concatenate([one.latitude for one in told])
    far = geod.inv(np.full(len(reached[0]), begun), np.full(len(reached[0]), middle), *reached)[2]
    assert far.min() > 1000 * within


def test_places_may_stand_in_a_file(tmp_path):
    shape = {"type": "Point", "coordinates": [HOME[1], HOME[0]]}
    layer = {"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {}, "geometry": shape}]}
    (tmp_path / "homes.geojson").write_text(json.dumps(layer), encoding="utf-8")
    assert hide(RIDE, tmp_path / "homes.geojson").sentences == hide(RIDE, [HOME]).sentences


def test_a_time_that_is_in_the_year_10000_in_utc_is_refused_in_a_line(tmp_path):
    text = RIDE.read_text(encoding="utf-8")
    first = text.index("<time>", text.index("<trkpt")) + len("<time>")
    late = text[:first] + "9999-12-31T23:59:59-14:00" + text[text.index("</time>", first) :]
    (tmp_path / "late.gpx").write_text(late, encoding="utf-8")
    with pytest.raises(
        DataFileError, match=r"track 1: time is 9999-12-31T23:59:59-14:00; it must lie in the years 1 to"
    ):
        read_recording(tmp_path / "late.gpx")


@pytest.mark.parametrize(
    ("near", "more", "error", "match"),
    [
        ([], {}, ConfigurationError, "no place is given"),
        ([HOME[::-1]], {}, ConfigurationError, "latitude first"),
        ([(91.0, 0.0)], {}, CoordinateError, "latitude and longitude"),
        ([HOME], {"within_km": 8.0}, ConfigurationError, "nothing is left"),
        ([HOME], {"keep": ["mood"]}, ConfigurationError, "hr"),
        ([HOME], {"output": "nowhere/x.gpx"}, OutputError, "there is no folder"),
        ([HOME], {"output": "x.fit"}, ConfigurationError, r"use \.gpx"),
    ],
)
def test_what_cannot_be_hidden_is_refused_and_nothing_written(tmp_path, monkeypatch, near, more, error, match):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=match):
        hide(RIDE, near, **{"output": "x.gpx", "session": "s.json", **more})
    assert list(tmp_path.iterdir()) == []
