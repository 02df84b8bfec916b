"""Tests of JSON lines: each line is answered immediately."""

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


def _format_line(minute, latitude=45.001, longitude=-30.001, **more):
    fix = {"user": "a", "time": f"2024-03-07T09:{minute:02d}:00Z", "latitude": latitude, "longitude": longitude}
    return json.dumps(fix | more)


@pytest.mark.slow
def test_each_line_is_answered_before_next_line_is_sent(world):
    """A line is written only after the previous answer has arrived. Buffering would fail."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-m", "dphmm", *STREAM], **pipes, env=environment) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        for minute in range(5):
            process.stdin.write(_format_line(minute).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert answer["time"] == f"2024-03-07T09:{minute:02d}:00Z"
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
        watchdog.cancel()
    assert process.returncode == 0


def test_answers_contain_only_columns(world, run):
    result = run(*STREAM, stdin=_format_line(0) + "\n" + _format_line(2) + "\n")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [list(row) for row in rows] == [["released", *(column.name for column in COLUMNS)]] * 2
    assert rows[1]["released"] is True


def _collect_answers(run, *lines, options=()):
    """Return the answers to the lines, which cause no error. Only a seed causes a warning."""
    result = run(*STREAM, *options, stdin=b"".join(x if isinstance(x, bytes) else x.encode() + b"\n" for x in lines))
    assert (result.exit_code, bool(result.stderr)) == (0, "--seed" in options)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == len(lines)
    return rows


def test_outside_positions_are_clamped_unless_omitted(world, run):
    lines = [
        _format_line(0, latitude=10.0),
        _format_line(1),
        _format_line(1, latitude=45.004),
        _format_line(2, latitude=10.0),
        _format_line(2),
    ]
    rows = _collect_answers(run, *lines)
    assert [row["released"] for row in rows] == [True] * 5
    assert (rows[1], rows[3]) == (rows[2], rows[4])
    rows = _collect_answers(run, *lines, options=({"outside": "drop"},))
    omitted = {"user": "a", "time": "2024-03-07T09:00:00Z", "released": False, "reason": "outside the region"}
    assert rows[0] == omitted
    assert rows[1] == rows[2]
    assert rows[1]["released"]
    assert rows[3] == rows[4] == omitted | {"time": "2024-03-07T09:02:00Z"}


def test_slot_never_gets_outside_and_release_across_restarts(world, run):
    options = ({"outside": "drop"}, "--session", "s.db")
    first = _collect_answers(run, _format_line(0, latitude=10.0), options=options)
    assert _collect_answers(run, _format_line(0), options=options) == first
    assert _collect_answers(run, _format_line(1), _format_line(1, latitude=10.0), options=options)[1]["released"]


def test_answers_contain_slot_time_and_nothing_of_fix(world, run):
    """No answer contains the exact time or the digits of a fix at 09:01:13.5."""
    fix_fields = {"time": "2024-03-07T10:01:13.5+01:00", "latitude": 10.123457, "longitude": -30.0012349}
    inside, late = {**fix_fields, "latitude": 45.0012349}, {**fix_fields, "time": "2024-03-07T08:01:13.5Z"}
    wrong = [{"latitude": 95.123457}, {"longitude": 195.123457}, {"latitude": "10.123457"}, {"longitude": [10.123457]}]
    fixes = [
        fix_fields,
        inside,
        late,
        *(fix_fields | change for change in wrong),
        fix_fields | {"time": "2024-03-07T10:01:13.5"},
    ]
    for outside in ("drop", "clamp"):
        rows = _collect_answers(
            run, *(json.dumps({"user": "a"} | fix) for fix in fixes), options=({"outside": outside}, "--seed", "1")
        )
        assert [row["released"] for row in rows] == [outside == "clamp"] * 2 + [False] * 6
        assert {row.get("time") for row in rows} == {"2024-03-07T09:02:00Z", "2024-03-07T08:02:00Z", None}
        for row in rows:  # a seed, because sampled coordinates could contain the digits by chance
            assert not any(part in json.dumps(row) for part in ("13.5", "123457", "12349"))


# Lines and the reason of their rejection. Other users and later lines are not affected.
BAD = {
    "no JSON": ("{", "must be a JSON object"),
    "a list": ("[1]", "must be a JSON object"),
    "empty": ("", "must be a JSON object"),
    "bytes": (b"\x00\xff\n", "must be a JSON object"),
    "deep": ("[" * 100_000, "must be a JSON object"),
    "a number of 5,000 digits": (_format_line(4).replace("45.001", "1" * 5000), "must be a JSON object"),
    "no user": ('{"time": "2024-03-07T09:00:00Z", "lat": 45, "lon": -30}', "user is missing: use the key 'user'"),
    "no time": ('{"user": "a", "lat": 45, "lon": -30}', "time is missing"),
    "a lone surrogate": (_format_line(4, user="\ud800"), "user must be a string of printable characters"),
    "a line break as user": (_format_line(4, user="a\nb"), "user must be a string"),
    "a list as user": (_format_line(4, user=["a"]), "user must be a string"),
    "a number as time": (
        '{"user": "a", "time": 1709802000, "lat": 45, "lon": -30}',
        "time must be an ISO 8601 time such as 2009-10-11T14:04:30Z, or set time_format",
    ),
    "no zone": (
        _format_line(4).replace("00Z", "00"),
        "time must contain its zone: add Z for UTC, or an offset such",
    ),
    "the year 2099": (_format_line(4).replace("2024", "2099"), "at most 300 s ahead of this machine"),
    "the year 10000": (_format_line(4).replace("2024", "10000"), "ISO 8601"),
    "NaN": (_format_line(1, latitude=float("nan")), "latitude must be in [-90, 90] degrees"),
    "text as latitude": (_format_line(1, latitude="45"), "latitude must be a number"),
    "latitude 400.17": (_format_line(1, latitude=400.17), "latitude must be in [-90, 90] degrees"),
    "latitude 10^400": (_format_line(4).replace("45.001", "1" + "0" * 400), "latitude must be a number"),
    "time goes back": (_format_line(0), "user a: time 2024-03-07T09:00:00Z is out of order ("),
    "an epsilon of its own": (_format_line(4, epsilon=0.1), "epsilon of a fix must be omitted, got 0.1"),
    "epsilon text": (_format_line(4, epsilon="1"), "epsilon must be a number"),
    "epsilon 10^400": (_format_line(4, epsilon=10**400), "epsilon must be a number"),
}


@pytest.mark.parametrize("skip", [(), ({"skip_bad": True},), ("--session", "s.db")], ids=["plain", "skip", "durable"])
def test_invalid_line_is_rejected_with_reason_and_stream_continues(world, run, skip):
    bad = [line for line, _ in BAD.values()]
    lines = [_format_line(2), *bad, _format_line(3, user="é"), _format_line(3)]
    rows = _collect_answers(run, *lines, options=skip)
    assert [row["released"] for row in rows] == [True, *([False] * len(bad)), True, True]
    for number, (row, (_, message)) in enumerate(zip(rows[1:], BAD.values(), strict=False), start=2):
        assert row["reason"].startswith(f"line {number}: ")
        assert message in row["reason"]


def test_answers_are_json_for_any_terminal_encoding(world):
    words = [*STREAM, "--seed", "1"]
    line_in = _format_line(2, user="née") + "\n"
    (row,) = CliRunner(charset="ascii").invoke(main, words, input=line_in).stdout.splitlines()
    assert json.loads(row)["user"] == "née"


def test_fix_may_set_epsilon_up_to_maximum(world, run):
    options = ({"max_requested_epsilon": 2},)
    rows = _collect_answers(
        run, *(_format_line(at, epsilon=e) for at, e in enumerate([0.25, 2, 2.5, 100_000, 0, -1])), options=options
    )
    assert [row.get("epsilon") for row in rows] == [0.25, 2.0, None, None, None, None]
    assert "epsilon must be at most 2, got 100000" in rows[3]["reason"]
    assert "epsilon must be a positive, finite number" in rows[4]["reason"]


def test_user_at_limit_does_not_stop_others(world, run):
    options = ("--session", "s.db", {"limit_epsilon": 1})
    rows = _collect_answers(
        run, _format_line(0), _format_line(1), _format_line(1, user="b"), _format_line(0), options=options
    )
    assert [row["released"] for row in rows] == [True, False, True, True]
    assert "user a: epsilon limit 1 exceeded" in rows[1]["reason"]
    assert rows[0] == rows[3]


def test_user_with_known_location_does_not_stop_stream_and_remedy_is_named(world, run):
    grid = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)
    MarkovModel(np.eye(grid.size), np.eye(grid.size)[0], grid, 60.0).save(world / "m.npz")
    rows = _collect_answers(run, _format_line(0), _format_line(0, user="b"))
    assert all(row["reason"].count("allow_singleton") == 1 for row in rows)


def test_clock_skew_is_configurable(world, run):
    lines = [_format_line(4).replace("2024", "2099")]
    assert _collect_answers(run, *lines, options=({"clock_skew": "100000d"},))[0]["released"]
    assert "at most 5400 s ahead of" in _collect_answers(run, *lines, options=({"clock_skew": "1.5h"},))[0]["reason"]
    for wrong in ("5", "5 weeks", "-5m"):
        result = run(*STREAM, {"clock_skew": wrong}, stdin="")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert f"key 'clock_skew' must be a duration such as 30s, 5m, 1h or 1d, got '{wrong}'" in result.stderr


@pytest.mark.parametrize(("key", "value"), [("max_requested_epsilon", 1), ("clock_skew", "5m")])
def test_stream_settings_with_files_raise(world, run, key, value):
    result = run(*STREAM, "walk.csv", "-o", "out.csv", {key: value})
    assert result.exit_code == 2
    assert f"key {key!r} is for fixes from standard input" in result.stderr


def test_unwritable_store_ends_stream(world, run):
    (world / "s.db").write_text("something else")
    result = run(*STREAM, "--session", "s.db", stdin=_format_line(0))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_empty_input_gives_empty_output(world, run):
    result = run(*STREAM, stdin="")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "option", [("-o", "private.csv"), ({"summary": "private.csv"},), ("--private-diagnostics", "private.csv")]
)
def test_file_options_without_data_raise(world, run, option):
    result = run(*STREAM, *option, stdin=_format_line(0))
    assert result.exit_code == 2
    assert "needs DATA" in result.stderr


@pytest.mark.slow
def test_names_units_and_time_zones_are_configurable(world, run):
    """Five equal fixes with other keys, another unit and no zone give equal lines."""
    plain = [json.loads(_format_line(minute)) for minute in range(5)]
    named = ({"columns": {"user": "dev", "time": "when", "latitude": "y", "longitude": "x"}},)
    renamed = [{"dev": fix["user"], "when": fix["time"], "y": fix["latitude"], "x": fix["longitude"]} for fix in plain]
    counted = [{**fix, "when": 1709802000000 + 60_000 * k} for k, fix in enumerate(renamed)]
    local = [{**fix, "when": fix["when"].replace("T09", "T10").rstrip("Z")} for fix in renamed]
    expected = [row["time"] for row in _collect_answers(run, *map(json.dumps, plain))]
    for lines, more in ((renamed, ()), (counted, ({"time_format": "ms"},)), (local, ({"time_zone": "Europe/Berlin"},))):
        rows = _collect_answers(run, *map(json.dumps, lines), options=(*named, *more))
        assert [row["time"] for row in rows] == expected
        assert all(row["released"] for row in rows)
    (refused,) = _collect_answers(run, json.dumps(plain[0]), options=named)
    assert refused["reason"] == "line 1: user is missing: use the key 'dev'"
    for fix, more in ((counted[0], ()), (local[0], ({"time_format": "ms"},))):
        (refused,) = _collect_answers(run, json.dumps(fix), options=(*named, *more))
        assert not refused["released"]
        assert "1709802" not in refused["reason"]
    assert "time_format" in _collect_answers(run, json.dumps(counted[0]), options=named)[0]["reason"]


def test_unused_column_raises_before_first_line(world, run):
    result = run(*STREAM, {"columns": {"altitude": "z"}}, stdin=_format_line(0))
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        "columns of lines must be user, time, latitude, longitude, epsilon, accuracy, valid, got 'altitude'"
        in result.stderr
    )
