"""Published files that other programs read differently are refused, in every format."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from dphmm import ReleaseSettings
from dphmm.writers.formats import read_releases, write_releases
from tests.certificate import forgeries
from tests.certificate.certificates import PATH, VERIFIER, build_town, encode, load_verifier, publish_sessions

FORMATS = ("csv", "geojson", "released.geojson", "json", "gpkg")
Tampering = tuple[str, Callable[[Any], Any], str]
TAMPERINGS: list[Tampering] = []


def tampering(format_name: str, reason: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register a function that changes a text, or an open GeoPackage."""

    def register(tamper: Callable[[Any], Any]) -> Callable[[Any], Any]:
        TAMPERINGS.append((format_name, tamper, reason))
        return tamper

    return register


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sessions of two users with withheld timesteps, in every format."""
    pytest.importorskip("geopandas")
    pytest.importorskip("pyogrio")
    folder = tmp_path_factory.mktemp("published")
    lines, _, model = forgeries.build_worlds(folder)["published_sessions"]
    model.save(folder / "model.npz")
    (folder / "proof.jsonl").write_bytes(b"".join(encode(lines)))
    table = read_releases(folder / "sessions.csv")
    for name in FORMATS:
        geometry = "released" if name.startswith("released") else "estimate"
        write_releases(folder / f"rows.{name}", table, geometry=geometry)
    return folder


def judge(proof: Path, *arguments: Any) -> tuple[int, str]:
    """Run the verifier in this process, and return its exit status and output."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(output):
        patch.setattr(load_verifier(), "limit", lambda _: None)
        code = load_verifier().main([str(argument) for argument in (proof, *arguments)])
    return code, output.getvalue()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_accepted(folder, name):
    code, text = judge(folder / "proof.jsonl", folder / f"rows.{name}", "--model", folder / "model.npz")
    assert code == 0, text
    yes, no = text.split("NOT VERIFIED")
    assert "7 published rows are these releases" in yes
    assert "other columns" not in no
    assert ("the format of the file is canonical" in yes) == (name == "csv")
    assert ("the format of the file" in no) == (name != "csv")
    assert ("spatial indexes, triggers and other content of system tables" in no) == (name == "gpkg")
    assert ("points" in yes) == (name != "csv")


def test_unknown_format_cannot_be_read(folder, tmp_path):
    for name in ("rows.parquet", "rows.gpx", "rows"):
        shutil.copy(folder / "rows.csv", tmp_path / name)
        code, text = judge(folder / "proof.jsonl", tmp_path / name)
        assert (code, "must be a .csv, .geojson, .json or .gpkg file" in text) == (2, True)


# ---- CSV -------------------------------------------------------------------------------------------------------------


def add_column(text: str, name: str, cell: str, first: bool) -> str:
    rows = [line.split(",") for line in text.splitlines()]
    cells = [[name if number == 0 else cell] for number in range(len(rows))]
    return "".join(",".join(c + row if first else row + c) + "\n" for c, row in zip(cells, rows, strict=True))


@tampering("csv", "each column of a table must occur once")
def a_false_column_first(text):
    return add_column(text, "x_km", "0.5", True)


@tampering("csv", "each column of a table must occur once")
def a_false_column_last(text):
    return add_column(text, "x_km", "0.5", False)


@tampering("csv", "each column of a table must occur once")
def a_column_in_capitals(text):
    return add_column(text, "X_KM", "0.5", True)


@tampering("csv", "each column of a table must occur once")
def a_column_with_a_blank(text):
    return add_column(text, " latitude", "48.85", True)


@tampering("csv", "the row has x_km|the row has y_km")
def columns_that_change_names(text):
    return text.replace("x_km,y_km", "y_km,x_km")


@tampering("csv", "each row of a table must have a cell for each column")
def a_row_with_another_cell(text):
    return text.replace("EPSG:4326\n", "EPSG:4326,48.85\n")


@tampering("csv", "each row of a table must have a cell for each column")
def a_row_with_a_cell_less(text):
    return text.removesuffix(",EPSG:4326\n") + "\n"


@tampering("csv", "each row of a table must have a cell for each column")
def a_blank_row(text):
    return text.replace("\nbob", "\n\nbob", 1)


@tampering("csv", "must have the canonical format")
def a_column_that_others_read_as_a_shape(text):
    return add_column(text, "WKT", "POINT (2.35 48.85)", False)


# ---- GeoJSON ---------------------------------------------------------------------------------------------------------

_SHAPES = "the shapes must be the estimates, or the released locations, of their rows"


def change_document(change: Callable[[Any], object]) -> Callable[[str], str]:
    def tamper(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return tamper


def register_document(name: str, format_name: str, reason: str, change: Callable[[Any], object]) -> None:
    tamper = change_document(change)
    tamper.__name__ = name
    tampering(format_name, reason)(tamper)


def get_shape(document: Any, number: int = 1) -> Any:
    return document["features"][number]["geometry"]


def move_all(document: Any) -> None:
    for feature in document["features"]:
        feature["geometry"]["coordinates"] = [2.35, 48.85]


_MEMBERS = "the collection must have the members"
for _name, _reason, _change in (
    ("shapes_in_another_country", _SHAPES, move_all),
    ("a_shape_in_another_country", _SHAPES, lambda d: get_shape(d).update(coordinates=[2.35, 48.85])),
    ("a_shape_moved_by_its_last_digit", _SHAPES, lambda d: get_shape(d)["coordinates"].__setitem__(0, -30.0000001)),
    ("axes_that_change_places", _SHAPES, lambda d: get_shape(d)["coordinates"].reverse()),
    ("a_shape_with_a_height", _SHAPES, lambda d: get_shape(d)["coordinates"].append(12.5)),
    ("a_shape_beyond_the_date_line", _SHAPES, lambda d: get_shape(d)["coordinates"].__setitem__(0, 330.0)),
    ("a_shape_of_another_type", _SHAPES, lambda d: get_shape(d).update(type="MultiPoint")),
    ("a_shape_less", _SHAPES, lambda d: d["features"][1].update(geometry=None)),
    ("a_shape_with_a_box", "unknown field 'bbox'", lambda d: get_shape(d).update(bbox=[0, 0, 1, 1])),
    ("a_feature_with_a_second_shape", "unknown field", lambda d: d["features"][1].update(released=get_shape(d))),
    ("a_feature_of_another_type", "another type", lambda d: d["features"][1].update(type="FeatureCollection")),
    ("another_reference_system", _MEMBERS, lambda d: d["crs"]["properties"].update(name="EPSG:3857")),
    ("a_collection_with_a_box", _MEMBERS, lambda d: d.update(bbox=[2, 48, 3, 49])),
    ("a_number_as_a_text", "has another type", lambda d: d["features"][1]["properties"].update(x_km="0.5")),
    ("a_flag_as_a_number_in_json", "has another type", lambda d: d["features"][1]["properties"].update(withheld=0)),
    ("a_text_as_a_number", "has another type", lambda d: d["features"][1]["properties"].update(user=1)),
    ("a_list_for_a_number", "has another type", lambda d: d["features"][1]["properties"].update(x_km=[0.5, 1])),
):
    register_document(_name, "geojson", _reason, _change)
register_document(
    "a_released_shape_at_the_estimate",
    "released.geojson",
    _SHAPES,
    lambda d: get_shape(d).update(coordinates=[d["features"][1]["properties"]["estimate_longitude"], 45.0]),
)


@tampering("geojson", "keys of an object must be unique")
def a_property_twice(text):
    return text.replace('"x_km":', '"x_km": 0.5, "x_km":', 1)


@tampering("geojson", "keys of an object must be unique")
def a_shape_twice(text):
    return text.replace('"geometry":', '"geometry": {"type": "Point", "coordinates": [2.35, 48.85]}, "geometry":', 1)


@tampering("geojson", "keys of an object must be unique")
def the_features_twice(text):
    return text.replace('"features":', '"features": [], "features":', 1)


@tampering("geojson", "must be the shortest one")
def a_number_with_hidden_digits(text):
    return text.replace('"epsilon": 0.5', '"epsilon": 0.50000000000000000039916', 1)


@tampering("geojson", "numbers must be integers|the row has")
def a_number_that_json_does_not_know(text):
    return text.replace('"epsilon": 0.5', '"epsilon": NaN', 1)


# ---- GeoPackage ------------------------------------------------------------------------------------------------------


def encode_point(x: float, y: float, reference: int = 4326) -> bytes:
    return struct.pack("<2sBBiBIdd", b"GP", 0, 1, reference, 1, 1, x, y)


def register_statement(name: str, reason: str, *statements: str | tuple[str, list[Any]]) -> None:
    def tamper(database: sqlite3.Connection) -> None:
        # The triggers of a spatial index call functions that only GDAL defines.
        triggers = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (trigger,) in triggers:
            database.execute(f'DROP TRIGGER "{trigger}"')
        for statement in statements:
            database.execute(*((statement,) if isinstance(statement, str) else statement))

    tamper.__name__ = name
    tampering("gpkg", reason)(tamper)


_LAYERS = "the layers must be those of releases in WGS 84"
_PARIS = encode_point(2.35, 48.85)
_COMPUTED = "has computed columns"
for _name, _reason, *_statements in (
    ("estimates_in_another_country", "shapes of estimates", ("UPDATE estimates SET geom = ?", [_PARIS])),
    (
        "an_estimate_in_another_country",
        "shapes of estimates",
        ("UPDATE estimates SET geom = ? WHERE fid = 2", [_PARIS]),
    ),
    ("an_estimate_less", "shapes of estimates", "UPDATE estimates SET geom = NULL WHERE fid = 2"),
    ("releases_in_another_country", "shapes of released", ("UPDATE released SET geom = ?", [_PARIS])),
    ("a_release_with_other_cells", "rows of estimates", "UPDATE released SET x_km = 0.5"),
    ("a_release_less", "rows of estimates|stated number", "DELETE FROM released WHERE fid = 1"),
    ("a_release_of_another_user", "rows of estimates", "UPDATE released SET user_id = 'bob'"),
    ("a_track_in_another_country", "a track must be that", ("UPDATE tracks SET geom = ?", [_PARIS])),
    ("a_track_of_another_user", "a track must be that", "UPDATE tracks SET user_id = 'bob' WHERE user_id = 'ann'"),
    ("a_track_of_another_time", "a track must be that", "UPDATE tracks SET started_at = '2024-03-01T00:00:00.000Z'"),
    ("a_track_with_another_epsilon", "a track must be that", "UPDATE tracks SET epsilon = 0.25"),
    ("a_track_with_another_error", "a track must be that", "UPDATE tracks SET mean_estimate_error_m = 12.0"),
    ("a_track_with_fewer_releases", "a track must be that", "UPDATE tracks SET num_releases = num_releases + 1"),
    ("a_track_with_another_column", "the columns of tracks", "ALTER TABLE tracks RENAME COLUMN trip TO home"),
    ("rows_in_another_order", "the row", "UPDATE estimates SET fid = 1000 - fid"),
    (
        "a_row_of_another_time",
        "a track must be|another slot",
        "UPDATE estimates SET tracked_at = '2024-03-09T16:00:00.001Z' WHERE fid=1",
    ),
    (
        "a_row_of_another_zone",
        "a track must be that|another slot",
        "UPDATE estimates SET tracked_at = replace(tracked_at, 'Z', '+05:00')",
        "UPDATE released SET tracked_at = replace(tracked_at, 'Z', '+05:00')",
    ),
    ("a_text_for_a_number", "has another type", "UPDATE estimates SET x_km = 'north' WHERE fid = 2"),
    ("a_blob_for_a_text", "has another type", "UPDATE estimates SET user_id = x'616e6e' WHERE fid = 2"),
    ("a_flag_of_two", "has another type", "UPDATE estimates SET withheld = 2 WHERE fid = 2"),
    ("a_false_user_column", _COMPUTED, "ALTER TABLE estimates ADD COLUMN user TEXT DEFAULT 'ann'"),
    ("a_false_time_column", _COMPUTED, "ALTER TABLE estimates ADD COLUMN time TEXT DEFAULT '2024'"),
    (
        "a_column_of_another_type",
        "another type than its column",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, '\"x_km\" REAL', '\"x_km\" FLOAT') WHERE name = 'estimates'",
    ),
    (
        "a_shape_column_of_another_type",
        "shapes of another type",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, '\"geom\" POINT', '\"geom\" BLOB') WHERE name = 'estimates'",
    ),
    (
        "an_index_of_another_layer",
        "consistent indexes",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET rootpage = (SELECT max(rootpage) FROM sqlite_master) "
        "WHERE name = 'sqlite_autoindex_gpkg_geometry_columns_1'",
    ),
    ("a_computed_column", _COMPUTED, "ALTER TABLE estimates ADD COLUMN version REAL AS (x_km * 2)"),
    (
        "a_view_for_a_layer",
        "NoneType",
        "ALTER TABLE estimates RENAME TO layer_rows",
        "CREATE VIEW estimates AS SELECT * FROM layer_rows WHERE random() > 0",
        "DROP TABLE layer_styles",
        "ALTER TABLE layer_rows RENAME TO layer_styles",
    ),
    ("another_layer", _LAYERS, "CREATE TABLE homes AS SELECT * FROM estimates"),
    (
        "a_layer_with_a_reserved_name",
        _LAYERS,
        "CREATE TABLE gpkg_homes AS SELECT * FROM estimates",
        "INSERT INTO gpkg_contents (table_name, data_type, identifier) VALUES ('gpkg_homes', 'attributes', 'homes')",
    ),
    *(
        (f"a_table_{name}", _LAYERS, f"CREATE TABLE {name} AS SELECT * FROM estimates")
        for name in ("gpkg_true_places", "rtree_true_places", "rtree_homes_geom_node", "rtree_layer_styles_geom")
    ),
    ("a_view_with_a_reserved_name", _LAYERS, "CREATE VIEW gpkg_homes AS SELECT * FROM estimates"),
    (
        "a_view_with_the_name_of_a_system_table",
        _LAYERS,
        "DROP TABLE gpkg_tile_matrix",
        "CREATE VIEW gpkg_tile_matrix AS SELECT * FROM estimates",
    ),
    ("a_smaller_number_of_rows", "stated number", "UPDATE gpkg_ogr_contents SET feature_count = 1"),
    ("a_definition_of_another_system", "EPSG:4326", "UPDATE gpkg_spatial_ref_sys SET definition = 'undefined'"),
    ("another_view", _LAYERS, "CREATE VIEW homes AS SELECT * FROM estimates"),
    ("a_layer_in_web_mercator", _LAYERS, "UPDATE gpkg_geometry_columns SET srs_id = 3857"),
    ("a_layer_with_another_shape_column", _LAYERS, "UPDATE gpkg_geometry_columns SET column_name = 'geom2'"),
    ("a_reference_system_renamed", "EPSG:4326", "UPDATE gpkg_spatial_ref_sys SET organization_coordsys_id = 3857"),
    ("a_shape_in_web_mercator", "in WGS 84", ("UPDATE estimates SET geom = ?", [encode_point(2.35, 48.85, 3857)])),
    ("a_shape_with_more_bytes", "a point or a line", "UPDATE estimates SET geom = CAST(geom || x'00' AS BLOB)"),
    (
        "a_track_with_another_box",
        "another box",
        "UPDATE tracks SET geom = CAST(substr(geom, 1, 8) || zeroblob(32) || substr(geom, 41) AS BLOB)",
    ),
):
    register_statement(_name, _reason, *_statements)


# ---- rejection -------------------------------------------------------------------------------------------------------


def write_tampered(folder: Path, path: Path, tamper: Callable[[Any], Any]) -> None:
    source = folder / f"rows.{path.name.split('.', 1)[1]}"
    if path.suffix != ".gpkg":
        text = source.read_text(encoding="utf-8")
        changed = tamper(text)
        assert changed != text, "nothing was changed"
        path.write_text(changed, encoding="utf-8")
        return
    shutil.copy(source, path)
    with closing(sqlite3.connect(path)) as database:
        tamper(database)
        assert database.total_changes or database.execute("PRAGMA schema_version").fetchone()
        database.commit()


@pytest.mark.parametrize(("name", "tamper", "reason"), TAMPERINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_tampered_files_are_refused_with_reason(folder, tmp_path, name, tamper, reason):
    write_tampered(folder, tmp_path / f"rows.{name}", tamper)
    code, text = judge(folder / "proof.jsonl", tmp_path / f"rows.{name}", "--model", folder / "model.npz")
    assert code in (1, 2), text
    assert any(alternative in text for alternative in reason.split("|")), text


def test_journal_of_geopackage_is_not_read(folder, tmp_path):
    """A published file is the file alone: a journal with other rows is ignored."""
    shutil.copy(folder / "rows.gpkg", tmp_path / "rows.gpkg")
    with closing(sqlite3.connect(tmp_path / "rows.gpkg")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("UPDATE gpkg_contents SET description = ''")
        database.commit()
        database.execute("DELETE FROM gpkg_metadata")
        database.commit()
        shutil.copy(tmp_path / "rows.gpkg", tmp_path / "other.gpkg")
        shutil.copy(tmp_path / "rows.gpkg-wal", tmp_path / "other.gpkg-wal")
    with closing(sqlite3.connect(folder / "rows.gpkg")) as database:
        assert database.execute("SELECT count(*) FROM gpkg_metadata").fetchone() > (0,)
    assert judge(folder / "proof.jsonl", tmp_path / "other.gpkg", "--model", folder / "model.npz")[0] == 0


def test_names_of_columns_cannot_imitate_output(folder, tmp_path):
    text = (folder / "rows.csv").read_text()
    name = '"a\nVERIFIED\n  - everything\x1b[2J"'
    head, *rows = text.splitlines()
    (tmp_path / "rows.csv").write_text("\n".join([f"{head},{name}", *(f"{row},1" for row in rows)]) + "\n")
    code, output = judge(folder / "proof.jsonl", tmp_path / "rows.csv")
    assert code == 0
    assert output.count("\nVERIFIED") == 0
    assert "\x1b" not in output
    assert "a?VERIFIED?  - everything?[2J" in output.split("NOT VERIFIED")[1]


def test_model_file_with_member_twice_is_rejected(folder, tmp_path):
    """Programs differ in which of two members of one name they read."""
    shutil.copy(folder / "model.npz", tmp_path / "model.npz")
    with zipfile.ZipFile(folder / "model.npz") as archive:
        initial = archive.read("initial.npy")
    with zipfile.ZipFile(tmp_path / "model.npz", "a") as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr("initial.npy", initial)
    code, text = judge(folder / "proof.jsonl", folder / "rows.csv", "--model", tmp_path / "model.npz")
    assert (code, "initial.npy occurs twice" in text) == (1, True)


@pytest.mark.slow
def test_script_reads_path_with_special_characters(folder, tmp_path):
    path = tmp_path / "a?mode=memory#b%20.gpkg"
    shutil.copy(folder / "rows.gpkg", path)
    command = [sys.executable, "-I", "-S", str(VERIFIER), str(folder / "proof.jsonl"), str(path)]
    assert subprocess.run(command, capture_output=True).returncode == 0


# ---- names and times in CSV ------------------------------------------------------------------------------------------


def publish(folder: Path, sessions: Any, **town_options: Any) -> tuple[int, str]:
    """Publish releases as CSV with certificate and model, and judge them."""
    model = build_town(**town_options)
    lines = publish_sessions(ReleaseSettings("utility:1km", 1).engine(model, 7), folder / "rows.csv", sessions)
    model.save(folder / "model.npz")
    (folder / "proof.jsonl").write_bytes(b"".join(encode(lines)))
    return judge(folder / "proof.jsonl", folder / "rows.csv", "--model", folder / "model.npz")


def judge_changed(folder: Path, change: Callable[[str], str]) -> tuple[int, str]:
    """Judge the published files with another text of the rows."""
    text = (folder / "rows.csv").read_bytes().decode()
    assert change(text) != text
    (folder / "other.csv").write_bytes(change(text).encode())
    return judge(folder / "proof.jsonl", folder / "other.csv", "--model", folder / "model.npz")


NAMES = ("=1+1", "-home", "+49 123", "@ann", "'=x", "-1.5", "+inf", "O'Hara", "a\rb", "a\nb", "\rb", 'a"b', "\uff1dx")


@pytest.mark.parametrize("user", NAMES)
def test_names_of_users_have_one_form(tmp_path, user):
    code, text = publish(tmp_path, {user: [PATH]})
    assert code == 0, text
    assert "the format of the file is canonical" in text


def test_users_are_ordered_by_their_names(tmp_path):
    """An apostrophe would come before a parenthesis."""
    code, text = publish(tmp_path, {"(c": [PATH], "=b": [PATH]})
    assert code == 0, text


@pytest.mark.slow
def test_other_forms_of_names_are_refused(tmp_path):
    assert publish(tmp_path, {"=b": [PATH]})[0] == 0
    for other in ("=b", '"\'=b"'):
        code, text = judge_changed(tmp_path, lambda text, other=other: text.replace("'=b", other))
        assert (code, "must have the canonical format" in text) == (1, True)
    assert judge_changed(tmp_path, lambda text: text.replace("'=b", "''=b"))[0] == 1
    assert publish(tmp_path, {"-1.5": [PATH]})[0] == 0
    code, text = judge_changed(tmp_path, lambda text: text.replace("-1.5,20", "'-1.5,20"))
    assert (code, "must have the canonical format" in text) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("step", [0.5, 1.5, 0.001, 60.25])
def test_fractions_of_seconds_have_one_form(tmp_path, step):
    code, text = publish(tmp_path, {"ann": [PATH], "bob": [PATH]}, step=step)
    assert code == 0, text
    assert "the format of the file is canonical" in text
    assert re.search(r"[0-9]\.[0-9]{6}Z", (tmp_path / "rows.csv").read_text())
    for pattern, other in ((r"\.([0-9]{3})000Z", r".\1Z"), (r"(:[0-9]{2})Z", r"\1.000000Z")):
        code, text = judge_changed(tmp_path, lambda text, pair=(pattern, other): re.sub(*pair, text))
        assert (code, "a time or a flag must have the canonical format" in text) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("cell_km", [0.3, 0.7, 1 / 3, 0.123456])
def test_areas_of_uneven_cells_are_exact(tmp_path, cell_km):
    """Area and factor are the doubles nearest to fractions, for any side of the cells."""
    code, text = publish(tmp_path, {"ann": [PATH]}, cell_km=cell_km)
    assert code == 0, text
    for name in ("hull_area_km2", "constrained_dp_factor"):
        rows = [line.split(",") for line in (tmp_path / "rows.csv").read_text().splitlines()]
        at = rows[0].index(name)
        for way in (-math.inf, math.inf):
            others = [[*row[:at], repr(math.nextafter(float(row[at]), way)), *row[at + 1 :]] for row in rows[1:]]
            text = "".join(",".join(row) + "\n" for row in (rows[0], *others))
            code, output = judge_changed(tmp_path, lambda _, text=text: text)
            assert (code, f"the row has {name}" in output) == (1, True)
