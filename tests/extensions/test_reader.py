"""A reader outside the package passes the checks of shipped formats. Broken variants fail."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from dphmm import Trajectory
from dphmm.errors import ConfigurationError, DataFileError, EmptyDataError, MissingExtensionError
from dphmm.jobs import Data, hide, learn, region
from dphmm.readers import Reader, check_reader, read, recognise, register_reader
from dphmm.readers.formats import READER_REGISTRY
from dphmm.readers.reading import read_recording
from tests import recordings
from tests.command_line import run
from tests.extensions.pages import forget, install, read_file

CODE = read_file("own_reader.md", "fleet_log.py")

# Three users on both sides of the equator and the prime meridian, in the order of time, during a change of clocks.
USERS = ("ann", "bob", "eve")
STARTS = {"ann": (45.0, -30.0), "bob": (-33.5, 151.2), "eve": (10.25, 0.0)}
ROWS = [
    (
        user,
        1711846800 + 600 * step + number,
        round(STARTS[user][0] + step * 1e-4, 6),
        round(STARTS[user][1] - step * 2e-4, 6),
    )
    for step in range(20)
    for number, user in enumerate(USERS)
]
EXPECTED = tuple(
    Trajectory(
        user,
        np.array([row[1] for row in ROWS if row[0] == user]).astype("datetime64[s]"),
        [row[2] for row in ROWS if row[0] == user],
        [row[3] for row in ROWS if row[0] == user],
    )
    for user in USERS
)


def format_iso(seconds: int) -> str:
    return f"{np.datetime64(seconds, 's')}Z"


def format_fleet_lines(rows=tuple(ROWS)) -> str:
    return "".join(f"{u};{t};{round(y * 1e6)};{round(x * 1e6)}\n" for u, t, y, x in rows)


def format_table_lines() -> str:
    return "user,time,latitude,longitude\n" + "".join(f"{u},{format_iso(t)},{y:.6f},{x:.6f}\n" for u, t, y, x in ROWS)


def format_json_lines() -> str:
    return "\n".join(json.dumps({"user": u, "time": format_iso(t), "lat": y, "lon": x}) for u, t, y, x in ROWS)


def format_geojson() -> str:
    features = [
        {
            "type": "Feature",
            "properties": {"user": u, "time": format_iso(t)},
            "geometry": {"type": "Point", "coordinates": [x, y]},
        }
        for u, t, y, x in ROWS
    ]
    return json.dumps({"type": "FeatureCollection", "features": features})


def format_checkins() -> str:
    return "".join(f"{u}\t{format_iso(t)}\t{y:.6f}\t{x:.6f}\t7\n" for u, t, y, x in reversed(ROWS))


def format_owntracks() -> str:
    return "".join(
        f"{format_iso(t)}\t*\t"
        + json.dumps({"_type": "location", "topic": f"owntracks/{u}/a", "tst": t, "lat": y, "lon": x})
        + "\n"
        for u, t, y, x in ROWS
    )  # fmt: skip


# File → format and content, of the three users.
FILES = {
    "fleet.log": ("fleet-log", format_fleet_lines),
    "a.csv": ("table", format_table_lines),
    "a.jsonl": ("json", format_json_lines),
    "a.geojson": ("geojson", format_geojson),
    "a.txt": ("checkins", format_checkins),
    "a.rec": ("owntracks", format_owntracks),
}


@pytest.fixture(autouse=True)
def away_from_utc(monkeypatch):
    """Local times differ from UTC, also by the season."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    """Install the reader of the page in a folder, and return its class."""
    folder = tmp_path / "installed"
    folder.mkdir()
    install(folder, "fleet_log", CODE, "dphmm.readers", "fleet-log", "FleetLog")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(READER_REGISTRY, "_classes", {})
    forget("fleet_log")
    yield READER_REGISTRY.find("fleet-log")
    forget("fleet_log")


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "fleet.log"
    path.write_text(format_fleet_lines())
    return path


# ---- the same checks for shipped and registered formats ------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
@pytest.mark.usefixtures("fleet")
def test_shipped_and_registered_formats_pass_the_same_checks(tmp_path, name):
    format_name, build = FILES[name]
    path = tmp_path / name
    path.write_text(build())
    check_reader(format_name, path, EXPECTED)


@pytest.mark.parametrize("name", sorted(recordings.FILES.keys() - {"r.kmz"}))
def test_formats_of_one_user_pass_the_same_checks(tmp_path, name):
    """The user is named after the file. KMZ is an archive, which is not packed again."""
    if name.endswith(".fit"):
        pytest.importorskip("fitdecode")
    format_name, build = recordings.FILES[name]
    path = tmp_path / name
    path.write_bytes(build())
    user = "owntracks" if name == "owntracks.json" else path.stem
    track = Trajectory(user, recordings.INSTANTS, recordings.LATITUDES, recordings.LONGITUDES)
    check_reader(format_name, path, [track])


def test_code_is_short_and_outside_the_package(fleet):
    assert len(CODE.splitlines()) <= 60
    assert "dphmm" not in fleet.__module__


def build_broken(fleet):
    """Variants of the reader of the page, each with one error."""

    class LocalTimes(fleet):
        """Times in the zone of the computer."""

        def read(self, document):
            for track in super().read(document):
                times = [time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(t.astype("M8[s]").astype(int).item()))
                         for t in track.times]  # fmt: skip
                yield Trajectory(track.user, times, track.latitude, track.longitude)

    class Swapped(fleet):
        def read(self, document):
            for track in super().read(document):
                yield Trajectory(track.user, track.times, track.longitude.clip(-90, 90), track.latitude)

    class WithoutLastLine(fleet):
        def read(self, document):
            return super().read(type(document)(document.source, document.name, document.data.rstrip(b"\n")
                                               .rpartition(b"\n")[0]))  # fmt: skip

    class OneUser(fleet):
        def read(self, document):
            for track in super().read(document):
                yield Trajectory("ann", track.times, track.latitude, track.longitude)

    class Rounded(fleet):
        def read(self, document):
            for track in super().read(document):
                yield Trajectory(track.user, track.times, track.latitude.round(3), track.longitude.round(3))

    class Remembers(fleet):
        """Passes over users of earlier files."""

        users: ClassVar = set()

        def read(self, document):
            for track in super().read(document):
                if len(self.users) < 3:
                    yield track
                self.users.add(track.user)

    class ByPath(fleet):
        """Reads the path, so that packed files and archives fail."""

        def read(self, document):
            data = Path(document.source).read_bytes()
            return super().read(type(document)(document.source, document.name, data))

    class Careless(fleet):
        """Raises other errors for malformed lines."""

        def read(self, document):
            for line in document.text().splitlines():
                user, seconds, latitude, longitude = line.split(";")
                yield Trajectory(
                    user, [np.datetime64(int(seconds), "s")], [int(latitude) / 1e6], [int(longitude) / 1e6]
                )

    class AcceptsEmpty(fleet):
        def read(self, document):
            return super().read(document) if document.data else [Trajectory("ann", ["2024-01-01"], [1.0], [1.0])]

    class NeverRecognised(fleet):
        def recognises(self, head, suffix):
            return False

    return {
        LocalTimes: "must read time .* got ",
        Swapped: r"must read location \[45\.0, -30\.0\]",
        WithoutLastLine: "must read 20 fixes of user 'eve', got 19",
        OneUser: r"must read users .*, got \['ann'\]",
        Rounded: "must read location",
        Remembers: r"must read users \['ann', 'bob', 'eve'\], got \[\]",
        ByPath: r"must read fleet\.broken\.gz: is not UTF-8 text",
        Careless: r"must raise DataFileError for a malformed file, got \w*Error",
        AcceptsEmpty: "must refuse an empty file",
        NeverRecognised: "must be recognised as 'broken', got 'table'",
    }


@pytest.mark.slow
def test_broken_variants_are_caught(fleet, tmp_path):
    path = tmp_path / "fleet.broken"
    path.write_text(format_fleet_lines())
    for broken, message in build_broken(fleet).items():
        READER_REGISTRY._classes.pop("broken", None)
        broken.name = "broken"
        broken.version = "1"
        broken.suffixes = (".broken",)
        register_reader(broken)
        with pytest.raises(DataFileError, match=message) as caught:
            check_reader("broken", path, EXPECTED)
        assert "'broken'" in str(caught.value), broken.__name__


# ---- files that are refused ------------------------------------------------------------------------------------------


class Unchecked(Trajectory):
    """A trajectory that omits its checks."""

    def __init__(self, *values):
        for name, value in zip(("user", "times", "latitude", "longitude", "accuracy_m"), (*values, None), strict=False):
            object.__setattr__(self, name, value)


DAYS = np.array(["2024-01-02", "2024-01-01"], "M8[us]")
# The value that `read` returns or the error that it raises → the message.
FAULTS = {
    "error": (RuntimeError("two\nlines"), "failed: RuntimeError: two lines"),
    "silent error": (ZeroDivisionError(), "failed: ZeroDivisionError"),
    "no iterable": (7, "must return an iterable of Trajectory, got int"),
    "nothing": (None, "must return an iterable of Trajectory, got NoneType"),
    "one trajectory": (EXPECTED[0], "must return an iterable of Trajectory, got dphmm.space.trajectory.Trajectory"),
    "a string": ("ann", "must yield Trajectory objects, got str"),
    "arrays": ([np.zeros(3)], "must yield Trajectory objects, got numpy.ndarray"),
    "unsorted": (
        [Unchecked("ann", DAYS, np.zeros(2), np.zeros(2))],
        "failed: TimeOrderError: trajectory of user ann: times must be strictly increasing",
    ),
    "NaN": ([Unchecked("ann", DAYS[1:], np.array([np.nan]), np.zeros(1))], "failed: CoordinateError: .* got nan"),
    "no time": ([Unchecked("ann", np.array(["NaT"], "M8[us]"), *np.ones((2, 1)))], "failed: TimeOrderError"),
    "control character": (
        [Trajectory("a\nb", DAYS[1:], [1.0], [1.0])],
        "user must be UTF-8 without control char",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused_in_one_line_that_names_the_reader(monkeypatch, tmp_path, fault):
    monkeypatch.setattr(READER_REGISTRY, "_classes", {})
    value, message = FAULTS[fault]

    @register_reader
    class Faulty(Reader):
        name = "faulty"
        version = "2.1"
        suffixes = (".faulty",)

        def read(self, document):
            if isinstance(value, Exception):
                raise value
            return value

    (tmp_path / "a.faulty").write_text("x")
    with pytest.raises(DataFileError, match=message) as caught:
        read(tmp_path / "a.faulty")
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{tmp_path}/a.faulty: ")
    assert fault == "control character" or "reader 'faulty' 2.1 " in text


def test_error_after_some_trajectories_is_refused_too(monkeypatch, tmp_path):
    monkeypatch.setattr(READER_REGISTRY, "_classes", {})

    @register_reader
    class Late(Reader):
        name = "late"
        version = "1"
        suffixes = (".late",)

        def recognises(self, head, suffix):
            return 1 / len(head.strip(b"?")) > 0

        def read(self, document):
            yield EXPECTED[0]
            raise KeyError("second")

    (tmp_path / "a.late").write_text("x")
    with pytest.raises(DataFileError, match="reader 'late' 1 failed: KeyError: 'second'"):
        read(tmp_path / "a.late")
    (tmp_path / "a.late").write_text("?")
    with pytest.raises(DataFileError, match="reader 'late' 1 failed: ZeroDivisionError: division by zero"):
        read(tmp_path / "a.late")


@pytest.mark.usefixtures("fleet")
def test_malformed_line_is_named_and_options_of_tables_are_refused(log):
    log.write_text("bus;1;2;3\nbus;1;2\n")
    with pytest.raises(DataFileError, match=r"fleet\.log, line 2: must be vehicle;seconds"):
        read(log)
    for options in ({"skip_bad": True}, {"columns": {"time": "a"}}, {"time_zone": "+08:00"}):
        with pytest.raises(ConfigurationError, match=r"cannot be combined with format 'fleet-log'"):
            read(log, **options)
    log.write_text("")
    with pytest.raises(EmptyDataError):
        read(log)


# ---- which reader ----------------------------------------------------------------------------------------------------


def test_named_format_is_used_whatever_the_extension(fleet, tmp_path, log):
    shutil.copy(log, tmp_path / "download")
    assert read(tmp_path / "download", "fleet-log").trajectories == EXPECTED
    assert read(tmp_path / "download", "fleet-log@1.0").trajectories == EXPECTED
    with pytest.raises(MissingExtensionError, match=r"reader 'fleet-log' 2\.0 .*version 1\.0 is installed"):
        read(log, "fleet-log@2.0")
    with pytest.raises(ConfigurationError, match="or a registered reader, got 'flet-log'"):
        read(log, "flet-log")
    assert fleet.name == "fleet-log"


def test_two_readers_of_one_file_are_refused_by_name(fleet, log, tmp_path):
    @register_reader
    class Other(fleet):
        name = "other-log"
        version = "1"
        suffixes = (".log", ".other")

    for path in (log, tmp_path):
        with pytest.raises(ConfigurationError, match=r"fleet\.log is recognised by the readers fleet-log, other-log"):
            read(path)
    with pytest.raises(ConfigurationError, match="fleet-log, other-log; set format="):
        recognise(log)
    assert read(log, "other-log").trajectories == EXPECTED


def test_registered_reader_precedes_formats_by_content(fleet, tmp_path):
    """The log looks like a table. Tables with the same extension remain tables."""

    @register_reader
    class ByContent(fleet):
        name = "by-content"
        version = "1"
        suffixes = (".csv",)
        first_bytes = (b"ann;",)

    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "a.csv").write_text(format_fleet_lines())
    (folder / "b.csv").write_text(format_table_lines())
    assert recognise(folder / "a.csv") == "by-content"
    assert recognise(folder / "b.csv") == "table"
    assert read(folder).trajectories == EXPECTED
    assert read(folder / "b.csv", "table").trajectories == read(folder / "a.csv").trajectories


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"suffixes": ()}, "suffixes"),
        ({"suffixes": ".log"}, "suffixes"),
        ({"suffixes": ("log",)}, "suffixes"),
        ({"suffixes": (".LOG",)}, "suffixes"),
        ({"suffixes": (".log.gz",)}, "suffixes"),
        ({"suffixes": (".csv",)}, "must not be those of other formats, .* got '.csv'"),
        ({"first_bytes": b"A"}, "first_bytes"),
        ({"first_bytes": (b"",)}, "first_bytes"),
        ({"first_bytes": ("A",)}, "first_bytes"),
        ({"name": "gpx"}, "name"),
        ({"name": "Fleet"}, "name"),
        ({"version": ""}, "version"),
    ],
)
def test_invalid_registration_is_refused(monkeypatch, declared, message):
    monkeypatch.setattr(READER_REGISTRY, "_classes", {})
    members = {"name": "own", "version": "1", "suffixes": (".own",), "read": lambda _, __: []}
    with pytest.raises(ConfigurationError, match=message):
        register_reader(type("Own", (Reader,), members | declared))
    assert READER_REGISTRY.list_names() == []


def test_class_without_read_or_of_another_base_is_refused(monkeypatch):
    monkeypatch.setattr(READER_REGISTRY, "_classes", {})
    members = {"name": "own", "version": "1", "suffixes": (".own",)}
    with pytest.raises(ConfigurationError, match="Own must implement read"):
        register_reader(type("Own", (Reader,), members))
    with pytest.raises(ConfigurationError, match="must inherit from Reader"):
        register_reader(int)
    register_reader(type("Own", (Reader,), {**members, "read": list, "__init__": lambda _, size: None}))
    with pytest.raises(ConfigurationError, match="reader 'own' must be created without arguments"):
        read("a.own", "own")


def test_reader_that_cannot_be_imported_stops_the_run_unless_a_format_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "installed"
    folder.mkdir()
    install(folder, "no_log", "raise ImportError('no log')", "dphmm.readers", "no-log", "Log")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(READER_REGISTRY, "_classes", {})
    (tmp_path / "a.csv").write_text(format_table_lines())
    for use in (read, recognise, lambda path: Data(path).read()):
        with pytest.raises(MissingExtensionError, match=r"reader 'no-log' .*no_log:Log cannot be imported: no log"):
            use(tmp_path / "a.csv")
    assert read(tmp_path / "a.csv", "table").trajectories == EXPECTED


# ---- where files are read --------------------------------------------------------------------------------------------


def test_folder_and_archives_with_other_formats(fleet, tmp_path, log):
    del fleet
    folder = tmp_path / "all"
    folder.mkdir()
    shutil.move(log, folder)
    rows = [(user, seconds + 1, y, x) for user, seconds, y, x in ROWS]
    (folder / "b.csv").write_text(
        "user,time,latitude,longitude\n" + "".join(f"{u},{format_iso(t)},{y},{x}\n" for u, t, y, x in rows)
    )
    (folder / "notes.txt").write_text("no recording")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    with tarfile.open(tmp_path / "all.tgz", "w:gz") as archive:
        archive.add(folder, "all")
    for source in (folder, tmp_path / "all.zip", tmp_path / "all.tgz"):
        result = read(source)
        assert [len(track) for track in result.trajectories] == [40, 40, 40]
        assert [Path(name).name for name in result.passed_over] == ["notes.txt"]
        assert read(source, "fleet-log").trajectories == EXPECTED


def test_files_without_users_are_not_split_into_several_users(fleet, tmp_path):
    @register_reader
    class Unnamed(fleet):
        name = "unnamed"
        version = "1"
        suffixes = (".one",)
        has_users = False

        def read(self, document):
            for track in super().read(document):
                if track.user == "ann":
                    yield track

    for name in ("x.one", "y.one"):
        (tmp_path / name).write_text(format_fleet_lines())
    assert [track.user for track in read(tmp_path / "x.one").trajectories] == ["x"]
    with pytest.raises(DataFileError, match="does not specify a user"):
        read(tmp_path, "unnamed")
    assert [track.user for track in read(tmp_path, "unnamed", user_per_file=True).trajectories] == ["x", "y"]
    assert [track.user for track in read(tmp_path, "unnamed", user="me").trajectories] == ["me"]


@pytest.mark.usefixtures("fleet")
def test_jobs_read_the_file_by_its_path(log, tmp_path):
    assert Data(log, users=("bob",)).read().trajectories == EXPECTED[1:2]
    assert tuple(Data((log,)).stream_by_path()) == EXPECTED
    space = region(bbox=(44.9, -30.1, 45.1, -29.9), cell_km=1)
    models = [learn(data, space, step_seconds=600).model.content_hash for data in (log, list(EXPECTED))]
    assert models[0] == models[1]
    log.write_text(format_fleet_lines(("ann", 1711846800 + 20 * step, 45 + step * 1e-3, -30.0) for step in range(20)))
    recording = read_recording(log)
    assert recording.source == "fleet-log"
    assert [len(segment) for segment in recording.segments] == [20]
    hide(log, near="45.0,-30.0", within_km=0.2, output=tmp_path / "hidden.csv")
    assert 0 < len(read(tmp_path / "hidden.csv", user="ann").trajectories[0]) < 20


@pytest.mark.slow
@pytest.mark.usefixtures("fleet")
def test_commands_read_the_file_like_a_table(log, tmp_path):
    (tmp_path / "a.csv").write_text(format_table_lines())
    region_options = ["--bbox", "44.9", "-30.1", "45.1", "-29.9", "--step", "600", "--cell", "1"]
    model = tmp_path / "region.npz"
    assert run("model", "blank", *region_options, "-o", str(model)).exit_code == 0
    outputs = []
    for name in (log, tmp_path / "a.csv"):
        learned = run("learn", str(name), *region_options, "-o", str(tmp_path / f"{name.name}.npz"))
        assert learned.exit_code == 0, learned.output
        output = tmp_path / f"{name.name}.out.csv"
        options = ["--users", "ann", "--policy", "complete", "--epsilon", "1", "--seed", "1", "-o", str(output)]
        released = run("release", str(name), "--model", str(model), *options)
        assert released.exit_code == 0, released.output
        with output.open() as file:
            outputs.append(list(csv.reader(file)))
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 10


@pytest.mark.slow
def test_another_process_finds_the_entry_point(fleet, log, tmp_path):
    del fleet
    program = """
import sys
from dphmm.cli import main
assert "fleet_log" not in sys.modules
import dphmm
print(dphmm.readers.recognise(sys.argv[1]), dphmm.read(sys.argv[1]).points)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, log],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{tmp_path / 'installed'}:{':'.join(sys.path)}"},
    )
    assert done.stdout == "fleet-log 60\n", done.stderr


@pytest.mark.slow
def test_large_file_is_read_in_parts(monkeypatch, tmp_path):
    """Trajectories of chunks are yielded without the whole file in memory."""
    monkeypatch.setattr(READER_REGISTRY, "_classes", {})
    monkeypatch.setattr("dphmm.tables.source._MAX_EAGER_BYTES", 1 << 20)

    @register_reader
    class Chunks(Reader):
        name = "chunks"
        version = "1"
        suffixes = (".chunks",)

        def read(self, document):
            for number, chunk in enumerate(document.chunks(1 << 16)):
                assert len(chunk) <= 1 << 16
                yield Trajectory("ann", [np.datetime64(number, "s")], [1.0], [float(chunk[0])])

    path = tmp_path / "a.chunks"
    path.write_bytes(bytes(16 << 20))
    tracemalloc.start()
    try:
        result = read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.points == 256
    assert peak < 4 << 20


def test_large_parquet_of_a_registered_reader_is_not_gathered_as_a_table(fleet, monkeypatch, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    @register_reader
    class OwnParquet(fleet):
        name = "own-parquet"
        version = "1"
        suffixes = (".parquet",)
        first_bytes = (b"PAR1",)

        def read(self, document):
            del document
            return EXPECTED[:1]

    monkeypatch.setattr("dphmm.readers.fix_tables.MAX_FIXES", 1)
    path = tmp_path / "a.parquet"
    columns = {"user": ["bob"] * 3, "time": np.arange(3).astype("M8[us]"), "lat": np.ones(3), "lon": np.ones(3)}
    parquet.write_table(pyarrow.table(columns), path)
    assert [track.user for track in Data(path).stream_by_path()] == ["ann"]
    assert [track.user for track in Data(path, input_format="table").stream_by_path()] == ["bob"]


def test_page_lists_every_statement_of_a_reader():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "own_reader.md").read_text()
    public = {name for name in vars(Reader) if not name.startswith("_")} - {"name", "version"}
    assert public == set(re.findall(r"^\| `(\w+)", page, flags=re.MULTILINE))
