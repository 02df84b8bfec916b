"""Property: recordings that agree outside the zone yield the same files."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError
from dphmm.hide.fixed_squares import Square
from dphmm.hide.point_removal import remove_points
from dphmm.hide.public_recording import build_public_recording
from dphmm.hide.recording_writers import write_recording
from dphmm.hide.zone import CELLS, HiddenZone
from dphmm.hide.zone_inference import ADVERSARIES
from dphmm.jobs.hide.hide import hide
from dphmm.space.trajectory import Recording

HOME = (45.01, -30.01)
WITHIN = 0.2
ZONE = HiddenZone(Square.around(*HOME, 1.5 * WITHIN), WITHIN)
ACTIVITIES = (None, "cycling", "running")
SENSORS = ("hr", "cad", "power", "atemp", "speed", "distance")


@dataclass(frozen=True)
class Fix:
    """A track point: kilometres from the zone's centre, seconds, and other data."""

    east: float
    north: float
    seconds: int | None
    elevation: float | None
    sensors: tuple[tuple[str, int], ...]
    activity: str | None


@dataclass(frozen=True)
class Boundary:
    """The points inside between two outside, and what begins at each point."""

    inside: tuple[Fix, ...] = ()
    starts: tuple[str, ...] = ()


def fixes(is_inside: bool) -> st.SearchStrategy[Fix]:
    half = ZONE.half_km
    near = st.floats(-0.95 * half, 0.95 * half)
    far = st.floats(half + 0.01, 3.0)
    offsets = (
        st.tuples(near, near)
        if is_inside
        else st.tuples(far, st.floats(-3, 3)).flatmap(
            lambda pair: st.sampled_from([pair, (-pair[0], pair[1]), pair[::-1], (pair[1], -pair[0])])
        )
    )
    rest = st.tuples(
        st.one_of(st.none(), st.integers(0, 20_000)),
        st.one_of(st.none(), st.integers(0, 500)),
        st.lists(st.tuples(st.sampled_from(SENSORS), st.integers(1, 200)), max_size=2, unique_by=lambda pair: pair[0]),
        st.sampled_from(ACTIVITIES),
    )
    return st.builds(
        lambda offset, others: Fix(*offset, others[0], others[1], tuple(others[2]), others[3]), offsets, rest
    )


BOUNDARIES = st.builds(
    lambda inside, starts: Boundary(tuple(inside), tuple(starts)),
    st.lists(fixes(is_inside=True), max_size=3),
    st.lists(st.sampled_from(["", "segment", "track"]), min_size=4, max_size=4),
)


@st.composite
def pairs(draw):
    """Draw points outside, in order of time or not, and two recordings with them."""
    outside = draw(st.lists(fixes(is_inside=False), min_size=1, max_size=8))
    if draw(st.booleans()):
        outside = [replace(fix, seconds=400 * number) for number, fix in enumerate(outside)]
    count = len(outside) + 1
    ways = [draw(st.lists(BOUNDARIES, min_size=count, max_size=count)) for _ in range(2)]
    for way in ways:
        if not any(boundary.inside for boundary in way):
            way[0] = Boundary((Fix(0.0, 0.0, 1, None, (), None),), ("",) * 4)
    names = draw(st.sampled_from(["", "Home & back", "Änd"]))
    return outside, ways, names


def format_gpx(outside: list[Fix], way: list[Boundary], name: str) -> str:
    """Return a GPX file. A track has one activity: the points of another one begin a track."""
    lines, activity = [], "none yet"
    for number, boundary in enumerate(way):
        parts = [*boundary.inside, *outside[number : number + 1]]
        for fix, start in zip(parts, boundary.starts, strict=False):
            if start == "track" or fix.activity != activity:
                activity = fix.activity
                title = f"<name>{quoteattr(name)[1:-1]}</name>" if name else ""
                kind = f"<type>{activity}</type>" if activity else ""
                lines.append(f"</trkseg></trk><trk>{title}{kind}<trkseg>")
            elif start == "segment":
                lines.append("</trkseg><trkseg>")
            lines.append(format_point(fix))
    body = "".join(lines).replace("</trkseg></trk>", "", 1)
    bounds = '<metadata><bounds minlat="44" minlon="-31" maxlat="46" maxlon="-29"/></metadata>' if name else ""
    return (
        f'<gpx version="1.1" creator="x" xmlns="http://www.topografix.com/GPX/1/1">{bounds}{body}</trkseg></trk></gpx>'
    )


def format_point(fix: Fix) -> str:
    ((latitude, longitude),) = ZONE.projection.to_latlon([fix.east, fix.north]).round(7)
    elevation = "" if fix.elevation is None else f"<ele>{fix.elevation}</ele>"
    time = ""
    if fix.seconds is not None:
        time = f"<time>{np.datetime64('2024-03-09T10:00:00') + np.timedelta64(fix.seconds, 's')}Z</time>"
    sensors = "".join(f"<{name}>{value}</{name}>" for name, value in fix.sensors)
    return f'<trkpt lat="{latitude}" lon="{longitude}">{elevation}{time}<extensions>{sensors}</extensions></trkpt>'


def write_outputs(folder: Path, text: str, **options: object) -> list[bytes] | str:
    """Return the files of all formats, or the message if no file is written."""
    (folder / "ride.gpx").write_text(text, encoding="utf-8")
    try:
        public = hide(folder / "ride.gpx", [HOME], WITHIN, **options).public
    except ConfigurationError as problem:
        return str(problem)
    files = []
    is_timed = all(not np.isnat(segment.times).any() for segment in public.segments)
    for suffix in (".gpx", ".geojson", ".csv", ".kml", *([".tcx"] if is_timed else [])):
        write_recording(folder / f"public{suffix}", public, overwrite=True)
        files.append((folder / f"public{suffix}").read_bytes())
    return files


def differs(folder: Path, case, **options: object) -> bool:
    outside, ways, name = case
    first, second = (write_outputs(folder, format_gpx(outside, way, name), **options) for way in ways)
    return first != second


@pytest.fixture(autouse=True)
def _skip_adversaries(monkeypatch):
    """Skip the adversaries, who do not influence the files."""
    nothing = dict.fromkeys(ADVERSARIES, np.zeros(CELLS**2))
    monkeypatch.setattr(sys.modules[hide.__module__], "compute_log_likelihoods", lambda *_: nothing)


OUT = Fix(1.0, 0.2, 0, 10.0, (("cad", 80),), "cycling")
BACK = replace(OUT, east=-1.0, seconds=900)
NEXT = replace(OUT, north=0.21, seconds=20)
IN = Fix(0.1, 0.1, 450, 12.0, (("power", 200),), "cycling")
PLAIN = Boundary((), ("",) * 4)
SPLIT = Boundary((), ("segment", "", "", ""))
INSIDE = Boundary((IN,), ("",) * 4)
LAST = Boundary((replace(IN, sensors=(), seconds=1000),), ("",) * 4)
CASES = {
    "column of a sensor": ([OUT, BACK], [INSIDE, Boundary((replace(IN, sensors=()),), ("",) * 4)]),
    "activity of a track": (
        [replace(OUT, activity=None)],
        [INSIDE, Boundary((replace(IN, activity=None),), ("",) * 4)],
    ),
    "point inside": ([OUT, NEXT, BACK], [INSIDE, PLAIN]),
    "split segment": ([OUT, NEXT, BACK], [SPLIT, PLAIN]),
    "split segment inside": ([OUT, BACK], [Boundary((IN, IN), ("", "segment", "", "")), INSIDE]),
}


@pytest.mark.slow
@pytest.mark.parametrize("times", [True, False])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=pairs())
def test_files_depend_on_points_outside_alone(tmp_path, times, case):
    assert not differs(tmp_path, case, times=times, keep=["hr"])


@pytest.mark.parametrize("name", CASES)
def test_files_do_not_depend_on_one_property_of_points_inside(tmp_path, name):
    outside, boundaries = CASES[name]
    ways = [[PLAIN, boundary, *[PLAIN] * (len(outside) - 2), LAST] for boundary in boundaries]
    assert not differs(tmp_path, (outside, ways, ""))


def keep_empty_columns(build, kept, zones, sensors, *rest):
    """Publish the columns of sensors that were recorded inside only."""
    public, errors = build(kept, zones, sensors, *rest)
    missing = {name: np.nan for name in kept.values.sensors if name in sensors}
    columns = lambda part: {name: np.full(len(part), value) for name, value in missing.items()} | part.sensors  # noqa: E731
    return replace(public, segments=tuple(replace(part, sensors=columns(part)) for part in public.segments)), errors


def keep_segments(build, kept, *rest):
    """Split the public segments at the segments of the file."""
    public, errors = build(kept, *rest)
    if errors.any() or not np.array_equal(kept.order_by_time(), np.arange(len(kept))):
        return public, errors
    last = np.flatnonzero(np.diff(kept.segment)) + 1
    parts, first = [], 0
    for part in public.segments:
        cuts = [cut - first for cut in last if 0 < cut - first < len(part)]
        parts += [part.select_points(rows) for rows in np.split(np.arange(len(part)), cuts)]
        first += len(part)
    return Recording(tuple(parts), public.activity), errors


@pytest.mark.slow
@pytest.mark.parametrize("broken", [keep_empty_columns, keep_segments])
def test_broken_variants_are_detected(tmp_path, monkeypatch, broken):
    removal = sys.modules[remove_points.__module__]
    monkeypatch.setattr(removal, "build_public_recording", partial(broken, build_public_recording))
    searched = settings(max_examples=300, phases=[Phase.generate], derandomize=True, database=None)
    find(pairs(), lambda case: differs(tmp_path, case), settings=searched)
