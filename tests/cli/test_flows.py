"""Tests of ``dphmm flows``: all file formats, plans and errors before any work."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from dphmm.errors import DataFileError
from dphmm.writers import FlowRows
from dphmm.writers.flows import FlowNumber, _build_line, is_flow_file
from tests import command_line

TOWN = ("--areas", "data/districts.geojson", "--user-epsilon", "500", "--workers", "1", "--seed", "1")


def run(*arguments: object):
    return command_line.run("flows", *arguments)


@pytest.fixture(scope="module")
def flow_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flows")
    for suffix in ("csv", "parquet", "json", "gpkg"):
        done = run("data/sample/geolife", *TOWN, "-o", folder / f"f.{suffix}", "--json")
        assert done.exit_code == 0, done.output
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("count", [10**30, float("inf"), float("nan"), 1e300, 1.5, "many"])
def test_invalid_count_raises_in_one_line(flow_files, tmp_path, count):
    table = json.loads((flow_files[0] / "f.json").read_text())
    table["rows"][0][table["measures"].index("count") - len(table["measures"])] = count
    (tmp_path / "f.json").write_text(json.dumps(table))
    with pytest.raises(DataFileError, match="does not contain flow tables and areas: use"):
        FlowRows.read(tmp_path / "f.json")


def test_all_formats_contain_equal_rows(flow_files):
    folder, summary = flow_files
    parquet, from_json = (FlowRows.read(folder / f"f.{suffix}") for suffix in ("parquet", "json"))
    assert len(parquet) == summary["num_rows"] > 20
    assert parquet.summary == from_json.summary
    assert parquet.summary["epsilon"] == "500"
    for name, column in parquet.columns.items():
        assert (column == from_json.columns[name]).all()
    cells = parquet.columns["level"] == "area"
    assert parquet.columns["low"][cells].min() >= 1  # cells with an interval that contains zero have no row
    assert is_flow_file(folder / "f.parquet")
    assert is_flow_file(folder / "f.json")
    for name in ("f.csv", "f.gpkg"):
        assert is_flow_file(folder / name)
        shown = command_line.run("show", str(folder / name))
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert "use a .parquet or .json file of 'dphmm flows'" in shown.stderr
    lines = (folder / "f.csv").read_text().splitlines()
    assert lines[0].split(",") == [
        "table",
        "level",
        "day",
        "area",
        "to",
        "class",
        "num_values",
        "count",
        "low",
        "high",
        "unbiased",
        "is_significant",
    ]
    assert len(lines) == 1 + summary["num_rows"]
    with closing(sqlite3.connect(folder / "f.gpkg")) as file, file:
        assert file.execute("select count(*) from rows").fetchone() == (summary["num_rows"],)
        assert {name for (name,) in file.execute("select f_table_name from layer_styles")} == {"areas", "flows"}
        trips = dict(file.execute('select "area" || " " || "to", "count" from flows'))
    of = parquet.select("flows", "area in all", "area")
    moving = of["area"] != of["to"]
    keys = [f"{origin} {other}" for origin, other in zip(of["area"][moving], of["to"][moving], strict=True)]
    assert trips == dict(zip(keys, of["count"][moving].tolist(), strict=True))


def test_sums_of_rows_agree(flow_files):
    rows = FlowRows.read(flow_files[0] / "f.parquet")
    assert len(rows.select("flows", "area")["count"]) > 0
    for level in ("area", "departures", "arrivals", "everything"):
        shown, rest = rows.select("flows", level), rows.rest("flows", level)
        everything = rows.select("flows", "everything")["count"].sum()
        assert shown["count"].sum() + (0 if rest is None else rest.whole) == everything
        num_values = {"area": 25, "everything": 1}.get(level, 5)
        assert len(shown["count"]) + (0 if rest is None else rest.num_values) == num_values
    assert (rows.columns["low"] <= rows.columns["count"]).all()
    assert (rows.columns["count"] <= rows.columns["high"]).all()


def test_uncertain_rows_are_omitted(tmp_path):
    path = tmp_path / "f.json"
    assert run("data/sample/geolife", *TOWN, {"relative_error": 0.5}, "-o", path).exit_code == 0
    columns = FlowRows.read(path).columns
    is_rest = np.char.startswith(columns["level"].astype(str), "rest of ")
    rows = {name: column[~is_rest] for name, column in columns.items()}
    assert 0 < len(rows["count"]) < len(columns["count"])
    assert (np.maximum(rows["high"] - rows["count"], rows["count"] - rows["low"]) <= 0.5 * rows["count"] + 1).all()


def test_days_have_separate_rows(tmp_path):
    path = tmp_path / "f.csv"
    days = ("--start", "2024-03-04", "--end", "2024-03-06", "--window", "2", "--only", "visits")
    done = run(
        "data/sample/geolife",
        *TOWN,
        *days,
        "--visits-per-user",
        "5",
        "--time-classes",
        "all",
        {"every_row": True},
        "-o",
        path,
    )
    assert done.exit_code == 0, done.output
    assert "likelihood ratio tables of any 2 days" in done.stdout
    assert "likelihood ratio all 3 days" in done.stdout
    assert done.stdout.index("\nPrivacy\n") < done.stdout.index("epsilon of each step")
    assert sum(line.startswith("visits,area,2024-03-05,") for line in path.read_text().splitlines()) == 5


def test_plan_reads_no_data(tmp_path):
    done = run("--plan", *TOWN[:-4], "--only", "flows", "--trips-per-user", "10", "--json")
    (areas, everything) = json.loads(done.stdout)
    assert areas["num_values"] == 25
    assert areas["min_accurate_count"] == pytest.approx(areas["half_width"] / 0.2)
    assert everything["level"] == "everything"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data/sample/geolife", *TOWN), "DATA and -o FILE are required"),
        (("data/sample/geolife", *TOWN, "-o", "f.xls"), "extension of a table of flows must be one of"),
        (("data/sample/geolife", *TOWN, "--cell", "1", "-o", "f.csv"), "--areas cannot be combined with a region"),
        (
            ("data/sample/geolife", *TOWN, "--start", "2024-03-01", "-o", "f.csv"),
            "both first_day and last_day (--start and --end) must be set and in order, got 2024-03-01 and None",
        ),
        (
            ("data/sample/geolife", "--user-epsilon", "1", "--label", "a", "-o", "f.csv"),
            "--label and --district need --areas FILE",
        ),
        *(
            (
                ("nowhere", "--user-epsilon", epsilon, *TOWN[:2], "-o", "f.csv"),
                f"--user-epsilon must be in [0.0001, 500], got '{epsilon}'",
            )
            for epsilon in ("0", "nan", "much", "1e-40", "0.00009", "500.1", "1e40")
        ),
    ],
)
def test_invalid_input_prints_one_line(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    (line,) = [
        line_of_error
        for line_of_error in done.stderr.splitlines()
        if "mended" not in line_of_error and "--seed" not in line_of_error
    ]
    assert message in line


def test_block_is_refused_with_polygons(tmp_path):
    (tmp_path / "s.toml").write_text("block = 2")
    done = run("data/sample/geolife", *TOWN, "--settings", tmp_path / "s.toml", "-o", tmp_path / "f.csv")
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].endswith(
        "key 'block' cannot be combined with --areas: it is for cells of a region, use --district"
    )


@pytest.mark.slow
def test_flows_are_plotted_and_reported(flow_files, tmp_path):
    pytest.importorskip("matplotlib")
    page, report = tmp_path / "map.html", tmp_path / "page.html"
    shown = command_line.run("show", str(flow_files[0] / "f.json"), "-o", str(page))
    assert shown.exit_code == 0, shown.output
    text = page.read_text(encoding="utf-8")
    rows = FlowRows.read(flow_files[0] / "f.json")
    assert re.search("between areas ha(s|ve) an interval above zero[.]", text)
    assert "All intervals of the file hold simultaneously with probability at least 95%" in text
    assert f"pairs of areas: together {rows.rest('flows', 'area')} trips." in text
    assert "circles: " in text
    assert "flows: " in text
    picture = command_line.run("show", str(flow_files[0] / "f.parquet"), "-o", str(tmp_path / "map.png"))
    assert picture.exit_code == 0, picture.output
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    done = run("data/sample/geolife", *TOWN, "-o", tmp_path / "f.csv", "--report", report)
    assert done.exit_code == 0, done.output
    text = report.read_text(encoding="utf-8")
    assert "pairs of areas: together " in text
    assert "No privacy guarantee: the noise is seeded and can be reproduced." in text
    assert "Total epsilon 500" in text


def test_names_of_areas_are_in_front_of_scale_bar(flow_files):
    pytest.importorskip("matplotlib")
    from dphmm.plots.canvas import create_figure
    from dphmm.plots.flows import draw_flows

    rows = FlowRows.read(flow_files[0] / "f.json")
    _, ax = create_figure()
    draw_flows(ax, rows)
    names = [text for text in ax.texts if text.get_text() in rows.places]
    (scale,) = [text for text in ax.texts if text.get_text().endswith(" km")]
    assert names
    assert min(text.get_zorder() for text in names) > scale.get_zorder()


def write_rows_across_date_line(path) -> FlowRows:
    """Write flows between 179.9° E and 179.9° W, with names that look like formulas."""
    areas = []
    for west, name in ((179.8, "$\\foo{$"), (-180.0, "west $x_1$ of a long name that does not fit")):
        ring = [[west, -17.0], [west + 0.2, -17.0], [west + 0.2, -16.8], [west, -16.8], [west, -17.0]]
        properties = {"name": name, "district": "d", "at": [west + 0.1, -16.9]}
        areas.append(
            {"type": "Feature", "properties": properties, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        )
    summary = {"interval_confidence": 0.95, "likelihood_ratio_all_tables": "≤ e^1"}
    names = [area["properties"]["name"] for area in areas]
    keys = {"table": "flows", "level": "area", "day": "", "area": names[0], "to": names[1], "class": ""}
    columns = {name: np.array([value], dtype=object) for name, value in keys.items()}
    columns |= {name: np.array([number]) for name, number in (("count", 5), ("low", 3), ("high", 7), ("num_values", 1))}
    rows = FlowRows({**columns, "unbiased": np.array([5.0]), "is_significant": np.array([True])}, areas, summary)
    rows.write(path)
    return rows


@pytest.mark.slow
def test_flows_across_date_line_are_short_in_all_outputs(tmp_path):
    pytest.importorskip("matplotlib")
    from dphmm.plots.canvas import create_figure, save
    from dphmm.plots.flows import _PlottedFlows, draw_flows

    rows = write_rows_across_date_line(tmp_path / "f.json")
    plotted = _PlottedFlows(rows)
    assert np.ptp(np.concatenate([*plotted.lines, *(ring for _, ring in plotted.outlines)])[:, 0]) == pytest.approx(0.4)
    figure, ax = create_figure()
    draw_flows(ax, rows)
    save(figure, tmp_path / "f.png")
    east = np.ptp(ax.get_xlim())
    assert 40 < east < 60  # 0.4 degrees with margins, in kilometres
    assert "east of the centre" in ax.get_xlabel()
    page = tmp_path / "f.html"
    assert command_line.run("show", str(tmp_path / "f.json"), "-o", str(page)).exit_code == 0
    rows.write(tmp_path / "f.gpkg")
    geopandas = pytest.importorskip("geopandas")
    (line,) = geopandas.read_file(tmp_path / "f.gpkg", layer="flows").geometry
    assert line.length == pytest.approx(0.2)
    assert len(line.geoms) == 2


@pytest.mark.parametrize(("start", "end"), [((179.0, 0.0), (-177.0, 4.0)), ((-177.0, 4.0), (179.0, 0.0))])
def test_line_across_date_line_has_two_parts(start, end):
    first, second = _build_line(start, end).geoms
    assert list(first.coords)[1] == (np.copysign(180, start[0]), pytest.approx(1.0))
    assert list(second.coords) == [(np.copysign(180, end[0]), pytest.approx(1.0)), end]
    assert len(_build_line((-180.0, 1.0), (180.0, 2.0)).geoms) == 2


def test_omitted_flows_and_missing_tables_are_stated(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from dphmm.plots import flows as pictures

    rows = write_rows_across_date_line(tmp_path / "f.json")
    assert pictures._PlottedFlows(rows).flows_sentence == "1 flow between areas has an interval above zero."
    monkeypatch.setattr(pictures, "MAX_LINES", 0)
    assert "The 1 smallest of them are not drawn." in pictures._PlottedFlows(rows).flows_sentence
    assert pictures._describe_half_widths(rows) == [("flows (trips)", "area ± 2 (1 number)")]
    rows.columns["is_significant"][:] = False
    assert pictures._PlottedFlows(rows).flows_sentence == "No flow between areas has an interval above zero."
    monkeypatch.setattr(FlowRows, "rest", lambda *_: FlowNumber(7, 0, 9, False, 256))
    assert pictures._PlottedFlows(rows).rest_sentence.startswith("All 256 pairs of areas: together 7 ")
    rows.columns["is_significant"][:] = True
    assert pictures._PlottedFlows(rows).rest_sentence.startswith("The other 256 pairs of areas")
    rows.columns["table"][:] = "visits"
    assert pictures._PlottedFlows(rows).flows_sentence == ""


def test_areas_of_most_continents_are_not_moved(tmp_path):
    from dphmm.plots.flows import _PlottedFlows

    rows = write_rows_across_date_line(tmp_path / "f.json")
    for feature, longitude in zip(rows.features, (-120.0, 150.0), strict=True):
        feature["properties"]["at"] = [longitude, -16.9]
    assert np.ptp([place[0] for place in _PlottedFlows(rows).places.values()]) == 90.0  # across the Pacific
    for longitude in (-40.0, 20.0, 100.0):
        properties = {"name": f"at {longitude}", "district": "d", "at": [longitude, 50.0]}
        rows.features.append({**rows.features[0], "properties": properties})
    assert {place[0] for place in _PlottedFlows(rows).places.values()} == {-120.0, -40.0, 20.0, 100.0, 150.0}
