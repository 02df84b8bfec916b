"""``dphmm flows``: files in every format, plans, and what is refused before any work."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm.cli import main
from dphmm.errors import DataFileError
from dphmm.writers import FlowRows
from dphmm.writers.flow_files import is_flow_file

TOWN = ("--areas", "data/districts.geojson", "--user-epsilon", "50", "--seed", "1")


def run(*arguments: object):
    return CliRunner().invoke(main, ["flows", *map(str, arguments)])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flows")
    for suffix in ("csv", "parquet", "json", "gpkg"):
        done = run("data/sample/geolife", *TOWN, "-o", folder / f"f.{suffix}", "--json")
        assert done.exit_code == 0, done.output
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("count", [10**30, float("inf"), float("nan"), 1e300, 1.5, "many"])
def test_a_count_that_is_no_whole_number_of_this_machine_is_refused_in_a_line(written, tmp_path, count):
    told = json.loads((written[0] / "f.json").read_text())
    told["rows"][0][told["measures"].index("count") - len(told["measures"])] = count
    (tmp_path / "f.json").write_text(json.dumps(told))
    with pytest.raises(DataFileError, match="holds no tables of flows; give"):
        FlowRows.read(tmp_path / "f.json")


def test_all_formats_hold_the_same_rows(written):
    folder, said = written
    parquet, told = (FlowRows.read(folder / f"f.{one}") for one in ("parquet", "json"))
    assert len(parquet) == said["rows"] > 20
    assert parquet.facts == told.facts
    assert parquet.facts["epsilon"] == "50"
    for name, column in parquet.columns.items():
        assert (column == told.columns[name]).all()
    cells = parquet.columns["level"] == "area"
    assert parquet.columns["count"][cells].min() == 1  # of nothing there is no row, of one person there is
    assert is_flow_file(folder / "f.parquet")
    assert is_flow_file(folder / "f.json")
    assert not is_flow_file(folder / "f.csv")
    lines = (folder / "f.csv").read_text().splitlines()
    assert lines[0].split(",") == [
        "table",
        "level",
        "day",
        "area",
        "to",
        "class",
        "count",
        "low",
        "high",
        "unbiased",
        "sure",
    ]
    assert len(lines) == 1 + said["rows"]
    with sqlite3.connect(folder / "f.gpkg") as file:
        assert file.execute("select count(*) from rows").fetchone() == (said["rows"],)
        assert {name for (name,) in file.execute("select f_table_name from layer_styles")} == {"areas", "flows"}
        trips = dict(file.execute('select "area" || " " || "to", "count" from flows'))
    of = parquet.some("flows", "area in all", "area")
    moving = (of["area"] != of["to"]) & (of["count"] > 0)
    keys = [f"{one} {other}" for one, other in zip(of["area"][moving], of["to"][moving], strict=True)]
    assert trips == dict(zip(keys, of["count"][moving].tolist(), strict=True))


def test_sums_of_rows_agree(written):
    rows = FlowRows.read(written[0] / "f.parquet")
    cells, departures, everything = (rows.some("flows", level) for level in ("area", "departures", "everything"))
    by_area = {name: int(cells["count"][cells["area"] == name].sum()) for name in departures["area"]}
    assert by_area == dict(zip(departures["area"].tolist(), departures["count"].tolist(), strict=True))
    assert cells["count"].sum() == everything["count"].sum()
    assert (rows.columns["low"] <= rows.columns["count"]).all()
    assert (rows.columns["count"] <= rows.columns["high"]).all()


def test_uncertain_rows_are_left_out(tmp_path):
    path = tmp_path / "f.json"
    assert run("data/sample/geolife", *TOWN, "--relative-error", "0.5", "-o", path).exit_code == 0
    rows = FlowRows.read(path).columns
    assert len(rows["count"]) > 0
    assert (np.maximum(rows["high"] - rows["count"], rows["count"] - rows["low"]) <= 0.5 * rows["count"] + 1).all()


def test_days_have_rows_of_their_own(tmp_path):
    path = tmp_path / "f.csv"
    days = ("--first-day", "2024-03-04", "--last-day", "2024-03-06", "--window", "2", "--tables", "visits")
    done = run(
        "data/sample/geolife", *TOWN, *days, "--visits-per-person", "5", "--by", "all", "--every-row", "-o", path
    )
    assert done.exit_code == 0, done.output
    assert "any days in a row of 2" in done.stdout
    assert "all 3 days" in done.stdout
    assert sum(line.startswith("visits,area,2024-03-05,") for line in path.read_text().splitlines()) == 5


def test_a_plan_reads_nothing(tmp_path):
    done = run("--plan", *TOWN[:-2], "--tables", "flows", "--trips-per-person", "10", "--json")
    (areas, everything) = json.loads(done.stdout)
    assert areas["numbers"] == 25
    assert areas["right_from"] == pytest.approx(areas["half_width"] / 0.2)
    assert everything["level"] == "everything"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("data/sample/geolife", *TOWN), "give DATA and -o FILE"),
        (("data/sample/geolife", *TOWN, "-o", "f.xls"), "no table of flows goes by '.xls'"),
        (("data/sample/geolife", *TOWN, "--cell", "1", "-o", "f.csv"), "--areas and a region are both given"),
        (("data/sample/geolife", "--user-epsilon", "1", "--label", "a", "-o", "f.csv"), "are for polygons"),
        (("data/sample/geolife", "--user-epsilon", "0", *TOWN[:2], "-o", "f.csv"), "user_epsilon is '0'"),
        (("data/sample/geolife", "--user-epsilon", "1e4", *TOWN[:2], "-o", "f.csv"), "more hides nothing"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, said):
    done = run(*arguments)
    assert done.exit_code == 2
    (line,) = [one for one in done.stderr.splitlines() if "mended" not in one and "--seed" not in one]
    assert said in line


def test_flows_are_drawn_and_reported(written, tmp_path):
    pytest.importorskip("matplotlib")
    page, report = tmp_path / "map.html", tmp_path / "page.html"
    shown = CliRunner().invoke(main, ["show", str(written[0] / "f.json"), "-o", str(page)])
    assert shown.exit_code == 0, shown.output
    assert "surely more than noise" in page.read_text(encoding="utf-8")
    picture = CliRunner().invoke(main, ["show", str(written[0] / "f.parquet"), "-o", str(tmp_path / "map.png")])
    assert picture.exit_code == 0, picture.output
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    done = run("data/sample/geolife", *TOWN, "-o", tmp_path / "f.csv", "--report", report)
    assert done.exit_code == 0, done.output
    text = report.read_text(encoding="utf-8")
    assert "The noise follows from a seed: nothing is hidden." in text
    assert "Epsilon 50 in all" in text
