"""JSON lines: one out for each in, at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import Grid, MarkovModel
from dphmm.cli import main
from dphmm.writers import COLUMNS

STREAM = ("release", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", "1")


def _line(minute, latitude=45.001, longitude=-30.001, **more):
    fix = {"user": "a", "time": f"2024-03-07T09:{minute:02d}:00Z", "latitude": latitude, "longitude": longitude}
    return json.dumps(fix | more)


def test_each_line_is_answered_before_the_next_is_sent(world):
    """Fails with any buffering on the way: the next line is written only once the answer has arrived."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-m", "dphmm", *STREAM], **pipes, env=environment) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        for minute in range(5):
            process.stdin.write(_line(minute).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert answer["time"] == f"2024-03-07T09:{minute:02d}:00Z"
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
        watchdog.cancel()
    assert process.returncode == 0


def test_answers_hold_the_columns_and_nothing_else(world, run):
    result = run(*STREAM, stdin=_line(0) + "\n" + _line(2) + "\n")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [list(row) for row in rows] == [["released", *(column.name for column in COLUMNS)]] * 2
    assert rows[1]["released"] is True


def _answers(run, *lines, options=()):
    """What the lines are answered with; the command never fails by them, and says nothing else."""
    result = run(*STREAM, *options, stdin=b"".join(x if isinstance(x, bytes) else x.encode() + b"\n" for x in lines))
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == len(lines)
    return rows


def test_outside_the_region_is_at_its_border_unless_it_is_omitted(world, run):
    lines = [_line(0, latitude=10.0), _line(1), _line(1, latitude=45.004), _line(2, latitude=10.0), _line(2)]
    rows = _answers(run, *lines)
    assert [row["released"] for row in rows] == [True] * 5
    assert (rows[1], rows[3]) == (rows[2], rows[4])
    rows = _answers(run, *lines, options=("--outside", "omit"))
    omitted = {"user": "a", "time": "2024-03-07T09:00:00Z", "released": False, "reason": "outside the region"}
    assert rows[0] == omitted
    assert rows[1] == rows[2]
    assert rows[1]["released"]
    assert rows[3] == rows[4] == omitted | {"time": "2024-03-07T09:02:00Z"}


def test_no_slot_gets_an_outside_and_a_release_not_even_after_a_new_start(world, run):
    options = ("--outside", "omit", "--session", "s.db")
    first = _answers(run, _line(0, latitude=10.0), options=options)
    assert _answers(run, _line(0), options=options) == first
    assert _answers(run, _line(1), _line(1, latitude=10.0), options=options)[1]["released"]


def test_answers_tell_the_time_of_the_slot_and_nothing_of_the_fix(world, run):
    """Whatever becomes of a fix at 09:01:13.5 in a place of many digits, neither is in the answer."""
    told = {"time": "2024-03-07T10:01:13.5+01:00", "latitude": 10.123457, "longitude": -30.0012349}
    inside, late = {**told, "latitude": 45.0012349}, {**told, "time": "2024-03-07T08:01:13.5Z"}
    wrong = [{"latitude": 95.123457}, {"longitude": 195.123457}, {"latitude": "10.123457"}, {"longitude": [10.123457]}]
    fixes = [told, inside, late, *(told | one for one in wrong), told | {"time": "2024-03-07T10:01:13.5"}]
    for outside in ("omit", "border"):
        rows = _answers(run, *(json.dumps({"user": "a"} | fix) for fix in fixes), options=("--outside", outside))
        assert [row["released"] for row in rows] == [outside == "border"] * 2 + [False] * 6
        assert {row.get("time") for row in rows} == {"2024-03-07T09:02:00Z", "2024-03-07T08:02:00Z", None}
        for row in rows:
            assert not any(part in json.dumps(row) for part in ("13.5", "123457", "12349"))


BAD = {
    "no JSON": ("{", "is no JSON object"),
    "a list": ("[1]", "is no JSON object"),
    "empty": ("", "is no JSON object"),
    "bytes": (b"\x00\xff\n", "is no JSON object"),
    "deep": ("[" * 100_000, "is no JSON object"),
    "a number of 5,000 digits": (_line(4).replace("45.001", "1" * 5000), "is no JSON object"),
    "no user": ('{"time": "2024-03-07T09:00:00Z", "lat": 45, "lon": -30}', "has no user; give it as 'user'"),
    "no time": ('{"user": "a", "lat": 45, "lon": -30}', "has no time"),
    "a lone surrogate": (_line(4, user="\ud800"), "the user is no name; give a text of printable characters"),
    "a line break as user": (_line(4, user="a\nb"), "the user is no name"),
    "a list as user": (_line(4, user=["a"]), "the user is no name"),
    "a number as time": ('{"user": "a", "time": 1709802000, "lat": 45, "lon": -30}', "give an ISO 8601 time"),
    "no zone": (_line(4).replace("00Z", "00"), "the time has no zone; add Z for UTC, or an offset such as +02:00"),
    "the year 2099": (_line(4).replace("2024", "2099"), "more than 300 s ahead of the clock here"),
    "the year 10000": (_line(4).replace("2024", "10000"), "give an ISO 8601 time"),
    "NaN": (_line(1, latitude=float("nan")), "the latitude is not on the Earth; give degrees, -90 to 90"),
    "text as latitude": (_line(1, latitude="45"), "the latitude is no number that can be used; give a decimal number"),
    "latitude 400.17": (_line(1, latitude=400.17), "the latitude is not on the Earth"),
    "latitude 10^400": (_line(4).replace("45.001", "1" + "0" * 400), "the latitude is no number that can be used"),
    "time goes back": (_line(0), "user a: time 2024-03-07T09:00:00Z goes back"),
    "an epsilon of its own": (_line(4, epsilon=0.1), "an epsilon of its own, which is not accepted; leave it out"),
    "epsilon text": (_line(4, epsilon="1"), "the epsilon is no number that can be used"),
    "epsilon 10^400": (_line(4, epsilon=10**400), "the epsilon is no number that can be used"),
}
"""A line → why it is refused; nobody else and nothing after it is touched."""


@pytest.mark.parametrize("skip", [(), ("--skip-bad",), ("--session", "s.db")], ids=["plain", "skip", "durable"])
def test_a_bad_line_is_one_refused_line_with_its_reason_and_ends_nothing(world, run, skip):
    bad = [line for line, _ in BAD.values()]
    lines = [_line(2), *bad, _line(3, user="é"), _line(3)]
    rows = _answers(run, *lines, options=skip)
    assert [row["released"] for row in rows] == [True, *([False] * len(bad)), True, True]
    for number, (row, (_, message)) in enumerate(zip(rows[1:], BAD.values(), strict=False), start=2):
        assert row["reason"].startswith(f"line {number}: ")
        assert message in row["reason"]


def test_answers_are_json_whatever_the_terminal_can_show(world):
    words = [*STREAM, "--seed", "1"]
    given = _line(2, user="née") + "\n"
    (row,) = CliRunner(charset="ascii").invoke(main, words, input=given).stdout.splitlines()
    assert json.loads(row)["user"] == "née"


def test_a_fix_may_set_its_epsilon_up_to_the_most_that_is_accepted(world, run):
    options = ("--accept-epsilon", "2")
    rows = _answers(
        run, *(_line(at, epsilon=e) for at, e in enumerate([0.25, 2, 2.5, 100_000, 0, -1])), options=options
    )
    assert [row.get("epsilon") for row in rows] == [0.25, 2.0, None, None, None, None]
    assert "epsilon is 100000; at most 2 is accepted" in rows[3]["reason"]
    assert "epsilon is 0.0; give a positive, finite number" in rows[4]["reason"]


def test_a_person_at_their_limit_ends_nothing_for_the_others(world, run):
    options = ("--session", "s.db", "--limit-epsilon", "1")
    rows = _answers(run, _line(0), _line(1), _line(1, user="b"), _line(0), options=options)
    assert [row["released"] for row in rows] == [True, False, True, True]
    assert "user a: the epsilon limit of 1 would be passed" in rows[1]["reason"]
    assert rows[0] == rows[3]


def test_a_person_whose_place_is_known_ends_nothing_and_the_remedy_is_named(world, run):
    grid = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)
    MarkovModel(np.eye(grid.size), np.eye(grid.size)[0], grid, 60.0).save(world / "m.npz")
    rows = _answers(run, _line(0), _line(0, user="b"))
    assert all("--allow-known" in row["reason"] for row in rows)


def test_the_clock_skew_is_an_option(world, run):
    lines = [_line(4).replace("2024", "2099")]
    assert _answers(run, *lines, options=("--clock-skew", "100000d"))[0]["released"]
    assert "ahead of the clock" in _answers(run, *lines, options=("--clock-skew", "1.5h"))[0]["reason"]
    for wrong in ("5", "5 weeks", "-5m"):
        result = run(*STREAM, "--clock-skew", wrong, stdin="")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert f"--clock-skew is '{wrong}'; give a time such as 30s, 5m, 1h or 1d" in result.stderr


@pytest.mark.parametrize("option", [("--accept-epsilon", "1"), ("--clock-skew", "5m")])
def test_options_of_the_stream_are_refused_with_files(world, run, option):
    result = run(*STREAM, "walk.csv", "-o", "out.csv", *option)
    assert result.exit_code == 2
    assert f"{option[0]} is for fixes from standard input" in result.stderr


def test_a_store_that_cannot_be_written_ends_the_stream(world, run):
    (world / "s.db").write_text("something else")
    result = run(*STREAM, "--session", "s.db", stdin=_line(0))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_nothing_in_is_nothing_out(world, run):
    result = run(*STREAM, stdin="")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("option", ["-o", "--summary", "--private-diagnostics"])
def test_files_are_for_data(world, run, option):
    result = run(*STREAM, option, "private.csv", stdin=_line(0))
    assert result.exit_code == 2
    assert "needs DATA" in result.stderr


def test_keys_units_and_zones_are_those_that_the_command_names(world, run):
    """The same five fixes under other keys, in another unit, and without a zone are the same lines."""
    plain = [json.loads(_line(minute)) for minute in range(5)]
    named = ("--column", "user=dev", "--column", "time=when", "--column", "latitude=y", "--column", "longitude=x")
    told = [{"dev": one["user"], "when": one["time"], "y": one["latitude"], "x": one["longitude"]} for one in plain]
    counted = [{**one, "when": 1709802000000 + 60_000 * k} for k, one in enumerate(told)]
    local = [{**one, "when": one["when"].replace("T09", "T10").rstrip("Z")} for one in told]
    expected = [row["time"] for row in _answers(run, *map(json.dumps, plain))]
    for lines, more in ((told, ()), (counted, ("--time-unit", "ms")), (local, ("--time-zone", "Europe/Berlin"))):
        rows = _answers(run, *map(json.dumps, lines), options=(*named, *more))
        assert [row["time"] for row in rows] == expected
        assert all(row["released"] for row in rows)
    (refused,) = _answers(run, json.dumps(plain[0]), options=named)
    assert refused["reason"] == "line 1: has no user; give it as 'dev'"
    for fix, more in ((counted[0], ()), (local[0], ("--time-unit", "ms"))):
        (refused,) = _answers(run, json.dumps(fix), options=(*named, *more))
        assert not refused["released"]
        assert "1709802" not in refused["reason"]
    assert "--time-unit" in _answers(run, json.dumps(counted[0]), options=named)[0]["reason"]


def test_a_key_that_no_line_has_a_use_for_is_refused_before_the_first_line(world, run):
    result = run(*STREAM, "--column", "altitude=z", stdin=_line(0))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--column names 'altitude'; a line's keys hold user, time, latitude, longitude, epsilon" in result.stderr
