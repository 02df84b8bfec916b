"""Valid small documents of every format, most of them written by the package itself; the same at every call."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
import shapely

from dphmm import Grid, Limits, MarkovModel, Places, PolicyGraph, ReleaseSettings, Session
from dphmm.errors import DphmmError
from dphmm.evaluation.run import COLUMNS as STEP_COLUMNS
from dphmm.evaluation.run import StepTable
from dphmm.evaluation.split import Split
from dphmm.flows import Areas, FlowSettings
from dphmm.jobs import flows as count_flows
from dphmm.jobs import hide
from dphmm.jobs.input_data import Data
from dphmm.jobs.models import write_list
from dphmm.jobs.releases import release
from dphmm.jobs.run_folder import Checkpoint
from dphmm.model import TimeClasses, extend
from dphmm.model.belief import Belief
from dphmm.release.session_terms import Terms
from dphmm.tables import TimedTable
from scripts.fuzzing import nasty, values
from scripts.fuzzing.attempt import Seed
from tests.openstreetmap import write_extract

REFUSED = (DphmmError,)
_ROWS = [
    (user, f"2024-03-07T09:0{minute}:00Z", 45.001, round(-30.012 + 0.004 * minute, 6))
    for user in ("a", "b")
    for minute in range(5)
]


@cache
def grid() -> Grid:
    """Fifteen cells."""
    return Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)


@cache
def model() -> MarkovModel:
    """Over the cells."""
    size = grid().size
    return MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size), grid(), 60.0)


def _made(name: str, write: Callable[[Path], object]) -> Seed:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return name, (Path(folder) / name).read_bytes()


def by_name(
    first: Callable[[bytes, Random], bytes], second: Callable[[bytes, Random], bytes]
) -> Callable[[bytes, Random], bytes]:
    """The first change for texts that begin as the first kind of seed does, the second for the others."""
    return lambda data, rng: (first if data[:1] in b"{0123456789" else second)(data, rng)


# ---- trajectories --------------------------------------------------------------------------------------------------


@cache
def csv() -> list[Seed]:
    """A table of fixes; with a point as text; with other separators; of one person."""
    head = "user_id,tracked_at,latitude,longitude\n"
    plain = head + "".join(f"{u},{t},{lat},{lon}\n" for u, t, lat, lon in _ROWS)
    points = "user;time;geometry\n" + "".join(f"{u};{t};POINT ({lon} {lat})\n" for u, t, lat, lon in _ROWS[:4])
    alone = "time\tlat\tlon\n" + "".join(f"{t}\t{lat}\t{lon}\n" for _, t, lat, lon in _ROWS[:4])
    quoted = head + "".join(f'"{u}","{t}",{lat},{lon}\n' for u, t, lat, lon in _ROWS[:4])
    return [("t.csv", text.encode()) for text in (plain, points, alone, quoted, "\ufeff" + plain.replace("\n", "\r\n"))]


@cache
def csv_gz() -> list[Seed]:
    """The same, packed."""
    return [("t.csv.gz", gzip.compress(data, mtime=0)) for _, data in csv()[:2]]


@cache
def geojson() -> list[Seed]:
    """Points with properties."""
    features = [
        {
            "type": "Feature",
            "properties": {"user": u, "time": t},
            "geometry": {"type": "Point", "coordinates": [lon, lat]},
        }
        for u, t, lat, lon in _ROWS[:3]
    ]
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}
    plain = {"type": "FeatureCollection", "features": features}
    return [("t.geojson", json.dumps(one).encode()) for one in (plain, plain | {"crs": crs, "name": "x"})]


def _parquet(name: str, metadata: dict[str, str] | None = None, **columns: Any) -> Seed:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), stream)
    return name, stream.getvalue()


@cache
def parquet() -> list[Seed]:
    """Times as texts, as instants, with and without a zone; users as texts, numbers, dictionaries."""
    users, times, lats, lons = zip(*_ROWS, strict=True)
    instants = np.array([time[:-1] for time in times], dtype="datetime64[us]")
    places = {"latitude": lats, "longitude": lons}
    return [
        _parquet("t.parquet", user=users, time=times, **places),
        _parquet("t.parquet", user=pa.array(users).dictionary_encode(), time=pa.array(instants), **places),
        _parquet("t.parquet", user=range(10), time=pa.array(instants, pa.timestamp("ns", tz="UTC")), **places),
    ]


@cache
def geoparquet() -> list[Seed]:
    """Points in degrees and in metres."""
    _, times, lats, lons = zip(*_ROWS, strict=True)
    import pyproj

    points = [shapely.Point(lon, lat).wkb for lat, lon in zip(lats, lons, strict=True)]
    made = []
    for crs in (None, pyproj.CRS("EPSG:3857").to_json_dict(), pyproj.CRS("EPSG:4326").to_json_dict()):
        geo = {
            "version": "1.0.0",
            "primary_column": "geometry",
            "columns": {"geometry": {"encoding": "WKB", "crs": crs}},
        }
        made.append(_parquet("t.parquet", {"geo": json.dumps(geo)}, time=times, geometry=points))
    return made


@cache
def gpx() -> list[Seed]:
    """A track of two segments, a route and a waypoint."""
    points = "".join(
        f'<trkpt lat="{lat}" lon="{lon}"><ele>7</ele><time>{t}</time></trkpt>' for _, t, lat, lon in _ROWS[:3]
    )
    beside = "<wpt lat='1' lon='2'/><rte><rtept lat='1' lon='2'/></rte>"
    body = f"{beside}<trk><name>a</name><trkseg>{points}</trkseg><trkseg/></trk>"
    made = []
    for version in ("1.0", "1.1"):
        space = f"http://www.topografix.com/GPX/{version.replace('.', '/')}"
        text = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<gpx version="{version}" creator="é" xmlns="{space}">{body}</gpx>'
        )
        made.append(("t.gpx", text.encode()))
    return made


RIDE, HOME = Path(__file__).parents[2] / "data/sample/ride.gpx", (45.01, -30.01)
"""A recording, and where it begins."""


@cache
def hidden_places() -> list[Seed]:
    """What a file of sessions counts of one recording."""
    with tempfile.TemporaryDirectory() as folder:
        hide(RIDE, [HOME], session=Path(folder, "s.json"))
        return [("s.json", Path(folder, "s.json").read_bytes())]


@cache
def flows(suffix: str) -> list[Seed]:
    """Tables of two people's visits."""
    text = "user,time,latitude,longitude\n" + "\n".join(",".join(map(str, row)) for row in _ROWS)

    def write(path: Path) -> None:
        data = path.with_name("rows.csv")
        data.write_text(text + "\n")
        count = FlowSettings("visits", visits_per_person=2, stay=0)
        count_flows(str(data), Areas.from_space(grid()), 5, count, rng=1).rows().write(path)

    return [_made(f"flows{suffix}", write)]


@cache
def owntracks() -> list[Seed]:
    """Locations and other records."""
    said = [{"_type": "location", "lat": lat, "lon": lon, "topic": "owntracks/a/p"} for _, _, lat, lon in _ROWS[:3]]
    located = [
        f"2024-03-07T09:00:0{k}Z\t*                 \t{json.dumps(one | {'tst': 1709802000 + k})}"
        for k, one in enumerate(said)
    ]
    other = '2024-03-07T09:00:00Z\tlwt\t{"_type": "lwt", "tst": 5}'
    return [("t.rec", "\n".join([*located, other]).encode() + b"\n")]


@cache
def geolife() -> list[Seed]:
    """One file of points."""
    head = "Geolife trajectory\nWGS 84\nAltitude is in Feet\nReserved 3\n0,2,255,My Track,0,0,2,8421376\n0\n"
    lines = "".join(
        f"{lat},{lon},0,492,39744.1,2024-03-07,09:0{k}:00\r\n" for k, (_, _, lat, lon) in enumerate(_ROWS[:5])
    )
    return [("20240307.plt", (head + lines).encode())]


@cache
def checkins() -> list[Seed]:
    """Newest first, in two forms of the time."""
    forms = ("2024-03-07T09:0{}:00Z", "2024-03-07T09:0{}:00+0000")
    return [
        (
            "c.txt",
            "".join(
                f"{k % 2}\t{form.format(9 - k)}\t{lat}\t{lon}\t{k}\n" for k, (_, _, lat, lon) in enumerate(_ROWS)
            ).encode(),
        )
        for form in forms
    ]


@cache
def cabs() -> list[Seed]:
    """A cab's file, newest first, with either end of lines; a file whose name tells no cab."""
    lines = [f"{lat} {lon} {k % 2} {1211018400 - 60 * k}" for k, (_, _, lat, lon) in enumerate(_ROWS[:5])]
    named = [("new_abboip.txt", (end.join(lines) + end).encode()) for end in ("\n", "\r\n")]
    return [*named, ("cab.txt", "\n".join(lines).encode())]


@cache
def unnamed() -> list[Seed]:
    """Files whose names say nothing of what they hold."""
    return [("download", seeds[0][1]) for seeds in (csv(), gpx(), owntracks(), geolife(), checkins(), cabs())]


@cache
def zipped() -> list[Seed]:
    """Archives of tables."""
    made = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", method) as archive:
            for number in range(2):
                archive.writestr(zipfile.ZipInfo(f"all/{number}.csv"), csv()[number][1])
        made.append(("t.zip", stream.getvalue()))
    return made


@cache
def tarred() -> list[Seed]:
    """Archives of tables, plain and packed."""
    made = []
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
            for number in range(2):
                info = tarfile.TarInfo(f"all/{'é' * 60 * number}{number}.csv")
                info.size = len(csv()[number][1])
                archive.addfile(info, io.BytesIO(csv()[number][1]))
        made.append(("t.tar", stream.getvalue()))
    return [*made, ("t.tar.gz", gzip.compress(made[0][1], mtime=0))]


# ---- tables --------------------------------------------------------------------------------------------------------


_ENTRIES = b"a,x,0,1/3\nb,x,1.5,2\nc,,-2e-3,3\n"


@cache
def states() -> list[Seed]:
    """States with measurements and a category."""
    return [("states.csv", b"state,kind,u,v\n" + _ENTRIES)]


@cache
def secrets() -> list[Seed]:
    """Secrets with contributions and a category."""
    return [("secrets.csv", b"secret,kind,u,v\n" + _ENTRIES)]


@cache
def edges() -> list[Seed]:
    """Two edges."""
    return [("e.csv", b"from,to\na,b\nb,c\n")]


@cache
def prior() -> list[Seed]:
    """A distribution."""
    return [("p.csv", b"state,probability\na,0.5\nb,1/4\nc,0.25\n")]


@cache
def channel() -> list[Seed]:
    """Two outputs of three states, one of them a place: as rows, and in an archive."""
    rows = b"state,output,probability,latitude,longitude\n0,a,0.5,45.0,-30.0\n0,b,0.5,,\n1,a,1,45.0,-30.0\n2,b,1,,\n"
    table, places = np.array([[0.5, 0.5], [1, 0], [0, 1]]), np.array([[45.0, -30.0], [np.nan, np.nan]])
    return [
        ("k.csv", rows),
        _made("k.npz", lambda path: np.savez(path, probabilities=table, places=places)),
    ]


@cache
def places() -> list[Seed]:
    """Three places."""
    return [("p.csv", b"name,latitude,longitude\nhome,45.0,7.0\nwork,45.02,7.05\nclub,45.1,7.1\n")]


def _counts() -> TimedTable:
    times = np.datetime64("2024-03-07T09:00", "us") + np.arange(4) * np.timedelta64(1, "m")
    return TimedTable(times, {"epsilon": np.full(4, 0.5), "place_0": np.arange(4), "place_1": np.arange(4) * 2})


@cache
def counts() -> list[Seed]:
    """Counts over instants and over whole numbers."""
    numbered = b"time,place_0,place_1\n0,1,2\n1,2,3\n5,3,4\n"
    return [_made("c.csv", _counts().write), ("c.csv", numbered)]


@cache
def counts_parquet() -> list[Seed]:
    """The same."""
    return [_made("c.parquet", _counts().write)]


# ---- models and matrices -------------------------------------------------------------------------------------------


@cache
def models() -> list[Seed]:
    """Over a whole grid, a part of one, and places."""
    corner = Grid.over(shapely.Polygon([(-30.01, 44.99), (-29.99, 44.99), (-29.99, 45.01)]), 0.5)
    stops = Places(["home", "work", "club"], [45.0, 45.02, 45.1], [7.0, 7.05, 7.1], 0.5)
    made = [model()]
    made += [
        MarkovModel(np.eye(s.size), np.full(s.size, 1 / s.size), s, step) for s, step in ((corner, 60), (stops, 0.5))
    ]
    return [_made("m.npz", one.save) for one in made]


@cache
def extended_models() -> list[Seed]:
    """Of two classes of hours, of second order, and both."""
    size = grid().size
    rng = np.random.default_rng(0)
    walks = [(np.arange(20) * 10, rng.integers(0, size, 20)) for _ in range(3)]
    night = TimeClasses((0,) * 84 + (1,) * 84, 60.0, "Europe/Berlin")
    kinds: tuple[tuple[TimeClasses | None, int], ...] = ((night, 1), (None, 2), (night, 2))
    return [_made("m.npz", extend(model(), walks, time_classes, order).model.save) for time_classes, order in kinds]


@cache
def learned_models() -> list[Seed]:
    """Models that say how they were learned: by counting, with a promise to people, both and of second order."""
    promised = {
        "promise": "differential privacy of whole people",
        "epsilon": "1/2",
        "spent_on": {"moves": "1/3", "the region": "1/6"},
        "moves_per_person": 500,
        "people_with_noise": 12,
        "family": "kernel",
        "cells_along_a_block": 4,
    }
    counted = {"promise": "none: moves were counted without noise"}
    made = [model().saying(said) for said in (promised, counted, counted | {"extended": "is of second order"})]
    return [_made("m.npz", one.save) for one in made]


_MATRIX = np.array([[0.8, 0.2, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])


@cache
def matrix_csv() -> list[Seed]:
    """A matrix as text."""
    return [("m.csv", b"# rows\n0.8,0.2,0\n0,1,0 # the second\n\n0.25,0.25,0.5\n")]


@cache
def matrix_npy() -> list[Seed]:
    """A matrix as an array."""
    return [_made("m.npy", lambda path, kind=kind: np.save(path, _MATRIX.astype(kind))) for kind in ("<f8", ">f8")]


@cache
def matrix_npz() -> list[Seed]:
    """A matrix in an archive, dense and in each sparse form."""
    forms = ("csr", "csc", "bsr", "coo", "dia")
    made = [_made("m.npz", lambda path: np.savez(path, m=_MATRIX))]
    return made + [
        _made("m.npz", lambda path, f=f: sp.save_npz(path, getattr(sp, f"{f}_array")(_MATRIX))) for f in forms
    ]


@cache
def budgets() -> list[Seed]:
    """Budgets as text and as a sparse vector."""
    return [("b.csv", b"0.5\n0.25\n1\n"), *((name, data) for name, data in matrix_npz()[1:3])]


# ---- policies ------------------------------------------------------------------------------------------------------


@cache
def layer() -> list[Seed]:
    """Two districts."""
    squares = [[[-30.02, 44.99], [w, 44.99], [w, 45.01], [-30.02, 45.01], [-30.02, 44.99]] for w in (-30.0, -29.99)]
    features = [
        {"type": "Feature", "properties": {"name": f"d{k}", "category": k}, "geometry": geometry}
        for k, geometry in enumerate(
            ({"type": "Polygon", "coordinates": [squares[0]]}, {"type": "MultiPolygon", "coordinates": [[squares[1]]]})
        )
    ]
    return [("l.geojson", json.dumps({"type": "FeatureCollection", "features": features}).encode())]


@cache
def basemap() -> list[Seed]:
    """Water, a road, a street, a place and an outline, as OpenStreetMap's extracts have them."""
    square = [[[-30.02, 44.99], [-30.0, 44.99], [-30.0, 45.01], [-30.02, 45.01], [-30.02, 44.99]]]
    way = {"type": "LineString", "coordinates": [[-30.02, 45.0], [-29.98, 45.0]]}
    told = (
        ({"natural": "water"}, {"type": "Polygon", "coordinates": square}),
        ({"highway": "primary", "name": "A"}, way),
        ({"highway": "residential"}, way),
        ({"place": "town", "name": "é", "population": 9000}, {"type": "Point", "coordinates": [-30.0, 45.0]}),
        ({"name": "d"}, {"type": "Polygon", "coordinates": square}),
    )
    features = [{"type": "Feature", "properties": said, "geometry": where} for said, where in told]
    return [("b.geojson", json.dumps({"type": "FeatureCollection", "features": features}).encode())]


@cache
def layer_kml() -> list[Seed]:
    """A district with a hole, and one of two parts beside a point, with data of both kinds."""
    ring = "<LinearRing><coordinates>{}</coordinates></LinearRing>"
    outer = ring.format("-30.02,44.99,0 -30.0,44.99,0 -30.0,45.01,0 -30.02,45.01,0 -30.02,44.99,0")
    hole = ring.format("-30.012,44.999 -30.01,44.999 -30.01,45.0 -30.012,44.999")
    square = f"<Polygon><outerBoundaryIs>{outer}</outerBoundaryIs></Polygon>"
    holed = square.replace("</Polygon>", f"<innerBoundaryIs>{hole}</innerBoundaryIs></Polygon>")
    point = "<Point><coordinates>-30.01,45.0</coordinates></Point>"
    data = (
        '<ExtendedData><Data name="category"><value>é</value></Data><SchemaData><SimpleData name="kind">a</SimpleData>'
        "</SchemaData></ExtendedData>"
    )
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<kml xmlns="http://www.opengis.net/kml/2.2"><Document>'
        f"<Placemark><name>d0</name>{data}{holed}</Placemark><Folder><Placemark><name>d1</name>{data}"
        f"<MultiGeometry>{square}{point}</MultiGeometry></Placemark></Folder></Document></kml>"
    )
    return [("l.kml", text.encode())]


@cache
def layer_gpkg() -> list[Seed]:
    """Two districts in degrees, and in metres."""
    import geopandas as gpd

    west, east = (shapely.box(-30.02, 44.99, w, 45.01) for w in (-30.0, -29.99))
    frame = gpd.GeoDataFrame({"name": ["d0", "d1"]}, geometry=[west, shapely.MultiPolygon([east])], crs=4326)
    return [_made("l.gpkg", frame.to_crs(system).to_file) for system in (4326, 32625)]


@cache
def layer_fgb() -> list[Seed]:
    """Two districts as FlatGeobuf."""
    import geopandas as gpd

    west, east = (shapely.box(-30.02, 44.99, w, 45.01) for w in (-30.0, -29.99))
    return [_made("l.fgb", gpd.GeoDataFrame({"name": ["d0", "d1"]}, geometry=[west, east], crs=4326).to_file)]


@cache
def extract() -> list[Seed]:
    """A road, a pond, a coast and a town, as OpenStreetMap's own format has them."""
    nodes = [(44.99 + k / 500, -30.02 + k % 3 / 100, {}) for k in range(6)]
    nodes.append((45.0, -30.0, {"place": "town", "name": "é", "population": "9000"}))
    ways = [
        ([0, 1, 2], {"highway": "primary"}),
        ([3, 4, 5, 3], {"natural": "water"}),
        ([0, 5], {"natural": "coastline"}),
    ]
    return [_made("x.osm.pbf", lambda path: write_extract(path, nodes, ways))]


@cache
def graph() -> list[Seed]:
    """A graph with a few edges."""
    return [_made("g.json", PolicyGraph.from_edges(15, [(0, 1), (1, 2), (7, 9)]).to_json)]


@cache
def policies() -> list[Seed]:
    """Policies as text."""
    texts = ("utility:1km", "complete & utility:500m | transition", "utility:1e0 km|complete")
    return [("policy.txt", text.encode()) for text in texts]


def of_policy(data: bytes, rng: Random) -> bytes:
    """A policy with one of its words replaced."""
    words = data.decode().replace("&", " & ").replace("|", " | ").replace(":", " : ").split(" ")
    more = (
        "utility",
        ":",
        "km",
        "|",
        "&",
        "graph",
        "/dev/zero",
        "/dev/null",
        "/",
        "given:",
        "@",
        "1e400km",
        "categorical",
        "-1km",
        "1" * 5000 + "km",
    )
    words[rng.randrange(len(words))] = rng.choice(more) if rng.random() < 0.5 else values.text(rng)
    return "".join(words).encode("utf-8", "surrogatepass")


@cache
def events() -> list[Seed]:
    """Events over time as text."""
    texts = (
        "at:3,4 between 2024-03-07 and 2024-03-10 any weekday 9-12 in Europe/Berlin from the first release",
        "state:2 between 1 and 2 | !state:0 at 3",
        "2 of (at:1 on 2024-03-07 from the first release; at:2 at 3; at:4 at least 2 visits between 0 and 9)",
        "at:1 then at:2 then at:1 from 2024-03-07T09:03Z",
    )
    return [("event.txt", text.encode()) for text in texts]


def of_event(data: bytes, rng: Random) -> bytes:
    """An event with one or two of its words replaced, moved or said twice."""
    words = data.decode().split(" ")
    more = (
        "between", "and", "at", "at:9", "state:1", "in", "Mars/Base", "America/Santiago", "0001-01-01", "9999-12-31",
        "24-0", "23-1", "2024-03-31T02:30", "any", "day", "weekend", "least", "99999999999 times", "days", "visits",
        "of (", "(", ")", ";", "!", "|", "&", '"', '"a b', "at:/dev/zero.geojson", "at:/.json", "-1", "1e9", "1" * 5000,
        "between 0 and 999999999999", "999999 of", "2024-W10-1", "then",
    )  # fmt: skip
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(words))
        kind = rng.random()
        if kind < 0.2:
            words.insert(at, rng.choice(words))
        elif kind < 0.35:
            del words[at]
        else:
            words[at] = rng.choice(more) if kind < 0.75 else values.text(rng)
        words = words or [""]
    return " ".join(words).encode("utf-8", "surrogatepass")


@cache
def priors() -> list[Seed]:
    """Two distributions over cells."""
    return [("p.csv", b"state,home,away\n0,0.5,0\n3,0.25,0.5\n4,0.25,0.5\n")]


# ---- releases and sessions -----------------------------------------------------------------------------------------


@cache
def _released(suffix: str) -> Seed:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "t.csv").write_bytes(csv()[0][1])
        settings = ReleaseSettings(policy="complete", epsilon=1.0)
        release(Data((f"{folder}/t.csv",)), model(), settings, f"{folder}/out{suffix}", rng=1)
        return f"out{suffix}", (Path(folder) / f"out{suffix}").read_bytes()


def released(suffix: str) -> list[Seed]:
    """Releases of two people."""
    return [_released(suffix)]


@cache
def session() -> list[Seed]:
    """A file of two sessions."""
    engine = ReleaseSettings(policy="complete", epsilon=1.0).engine(model(), 1)

    def write(path: Path) -> None:
        for name in ("a", "né"):
            with Session.open(path, name, engine.another(), Limits(epsilon=10.0)) as opened:
                for slot in range(3):
                    opened.release(slot, slot)

    return [_made("s.session", write)]


@cache
def belief() -> list[Seed]:
    """A belief over the cells."""
    size = grid().size
    return [("belief", Belief(np.arange(size) < 9, np.where(np.arange(size) < 9, -np.log(9), -np.inf)).to_bytes())]


@cache
def record() -> list[Seed]:
    """A record."""
    step = ReleaseSettings(policy="complete", epsilon=1.0).engine(model(), 1).release(3)
    return [("r.json", step.to_json().encode())]


@cache
def settings() -> list[Seed]:
    """Settings as JSON and as TOML."""
    made = ReleaseSettings(policy="utility:1km", epsilon=0.5, delta=0.01)
    return [("s.json", made.to_json().encode()), ("s.toml", made.to_toml().encode())]


@cache
def terms() -> list[Seed]:
    """What a session is agreed on."""
    return [("t.json", Terms.from_engine(ReleaseSettings(policy="complete").engine(model())).to_json().encode())]


# ---- settings, jobs, runs ------------------------------------------------------------------------------------------


@cache
def job() -> list[Seed]:
    """A job."""
    text = """data = ["walk.csv"]
users = ["a"]
columns = {time = "when"}
model = "m.npz"
policy = "utility:1km"
epsilon = 0.5
delta = 0.01
limit_window_steps = 5
limit_window_epsilon = 1
seed = 3
spacing = "1/1000"
skip_bad = true
output = "out.csv"
"""
    return [("job.toml", text.encode())]


@cache
def evaluation() -> list[Seed]:
    """A comparison."""
    text = """name = "Town"
data = ["walk.csv"]
bbox = [44.9, -30.1, 45.1, -29.9]
cell_km = 0.5
step_seconds = 60.0
sequences = 3
length = 5
epsilons = [0.5, 1.0]
radii_km = [1, 2]
policies = ["utility", "complete"]
seed = 1
"""
    return [("e.toml", text.encode()), ("e.toml", b'preset = "geolife"\ndata = ["walk.csv"]\nsequences = 3\n')]


@cache
def landmarks() -> list[Seed]:
    """Moments as numbers and as times."""
    return [("l.txt", b"time\n1\n3 # the third\n"), ("l.txt", b"2024-03-07T09:00\n2024-03-07T09:02:00Z\n")]


@cache
def checksums() -> list[Seed]:
    """A digest of an empty file."""
    return [
        (
            "SHA256SUMS",
            b"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  loc-gowalla_totalCheckins.txt.gz\n",
        )
    ]


@cache
def run() -> list[Seed]:
    """What a run is made by."""
    with tempfile.TemporaryDirectory() as folder:
        Checkpoint.open(Path(folder) / "run", {"seed": 1, "kind": "csv"}, resume=False).close()
        return [("run.json", (Path(folder) / "run" / "run.json").read_bytes())]


@cache
def _split() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        split = Split(
            ("a", "b"), np.arange(12).reshape(2, 6), np.arange(2), np.arange(2), (("b",), ("a",)), {"short": 1}
        )
        split.save(Path(folder), [model(), model()])
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def split() -> list[Seed]:
    """Who is evaluated."""
    return [(name, data) for name, data in _split().items() if name.endswith("json")]


def sequences() -> list[Seed]:
    """Where they are."""
    return [(name, data) for name, data in _split().items() if "sequences" in name]


@cache
def people_seen() -> list[Seed]:
    """Whose data a model saw."""
    return [_made("m.PRIVATE-people.json", lambda path: write_list(path, model(), ["a", "né"]))]


@cache
def journal() -> list[Seed]:
    """Whom a batch has released."""
    entries = [{"user": user, "releases": 0, "sha256": ""} for user in ("a", "né")]
    return [("released.jsonl", b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))]


@cache
def steps() -> list[Seed]:
    """A part of an evaluation."""
    kinds = {"object": "complete", "float64": 0.5, "int64": 1, "bool": True}
    table = StepTable.of([{name: kinds[kind] for name, kind in STEP_COLUMNS.items()} for _ in range(3)])
    return [_made("000000.parquet", table.write)]


@cache
def lines() -> list[Seed]:
    """A live stream."""
    said = [{"user": u, "time": t, "latitude": lat, "longitude": lon} for u, t, lat, lon in _ROWS[:3]]
    said.append({"user": "a", "time": "2024-03-07T09:30:00Z", "latitude": 1.0, "longitude": 1.0, "epsilon": 0.1})
    return [("lines", b"\n".join(json.dumps(one).encode() for one in said))]


@cache
def phones() -> list[Seed]:
    """What each app posts to the relay: JSON, or fields of a form."""
    when, lat, lon = "2024-03-07T09:00:00Z", 45.0, -30.0
    point = {"geometry": {"type": "Point", "coordinates": [lon, lat, 7.0]}, "properties": {"timestamp": when}}
    told = {
        "overland": {"locations": [point, point], "current": point},
        "traccar": {"device_id": "t", "location": {"timestamp": when, "coords": {"latitude": lat, "longitude": lon}}},
        "plain": [{"time": when, "latitude": lat, "longitude": lon}],
        "owntracks": {"_type": "location", "tst": 1709802000, "lat": lat, "lon": lon, "tid": "é"},
        "home_assistant": {"type": "update_location", "data": {"gps": [lat, lon], "gps_accuracy": 5}},
    }
    made = [(name, json.dumps(said).encode()) for name, said in told.items()]
    return [
        *made,
        ("traccar_fields", b"id=t&timestamp=1709802000&location=45.0,-30.0"),
        ("gpslogger_fields", b"lat=45.0&lon=-30.0&time=2024-03-07T09:00:00.000Z"),
    ]


@cache
def relay() -> list[Seed]:
    """What a relay is run by."""
    text = """model = "m.npz"
store = "people.db"
[release]
policy = "utility:1km"
epsilon = 0.5
[[device]]
user = "ann"
token = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
[[recipient]]
name = "family"
kind = "owntracks"
url = "https://recorder.example/pub"
users = ["ann"]
precision = "5km"
headers = { Authorization = "secret" }
"""
    return [("relay.toml", text.encode())]


@cache
def time() -> list[Seed]:
    """A moment."""
    return [("time", b"2024-03-07T09:00:00.250+02:00")]


def of_time(data: bytes, rng: Random) -> bytes:
    """Another moment."""
    return nasty.of_bytes(data, rng) if rng.random() < 0.5 else values.text(rng).encode("utf-8", "surrogatepass")
