"""JSON lines: one out for each in, at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

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


def test_outside_the_region_and_twice_in_a_step_are_answered_too(world, run):
    lines = [
        _line(0, latitude=10.0),
        _line(1),
        _line(1, latitude=45.004),
        _line(1, latitude=10.0),
        _line(9, epsilon=0.25),
    ]
    result = run(*STREAM, stdin="\n".join(lines))
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows[0] == {
        "user": "a",
        "time": "2024-03-07T09:00:00Z",
        "released": False,
        "reason": "outside the region",
    }
    assert rows[1] == rows[2] == rows[3]
    assert [row.get("epsilon") for row in rows] == [None, 1.0, 1.0, 1.0, 0.25]


BAD = {
    "no JSON": ("{", "is no JSON object"),
    "a list": ("[1]", "is no JSON object"),
    "empty": ("", "is no JSON object"),
    "bytes": ("\x00\xff", "is no JSON object"),
    "no user": ('{"time": "2024-03-07T09:00:00Z", "lat": 45, "lon": -30}', "has no user; give it as 'user'"),
    "no time": ('{"user": "a", "lat": 45, "lon": -30}', "has no time"),
    "a number as time": ('{"user": "a", "time": 1709802000, "lat": 45, "lon": -30}', "give an ISO 8601 time"),
    "NaN": (_line(1, latitude=float("nan")), "place 0 is latitude nan"),
    "text as latitude": (_line(1, latitude="45"), "latitude is '45'; give a decimal number"),
    "latitude 400.17": (_line(1, latitude=400.17), "latitudes lie in -90 to 90"),
    "time goes back": (_line(0), "goes back"),
    "epsilon": (_line(4, epsilon=0), "epsilon is 0; give a positive"),
    "epsilon text": (_line(4, epsilon="1"), "epsilon is '1'; give a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_named_with_its_number(world, run, case):
    line, message = BAD[case]
    result = run(*STREAM, stdin=_line(2) + "\n" + line + "\n" + _line(3) + "\n")
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("dphmm: standard input, line 2: ")
    assert message in result.stderr


@pytest.mark.parametrize("case", BAD)
def test_skip_bad_answers_a_bad_line_and_goes_on(world, run, case):
    line, message = BAD[case]
    result = run(*STREAM, "--skip-bad", stdin=_line(2) + "\n" + line + "\n" + _line(3) + "\n")
    assert result.exit_code == 0
    rows = [json.loads(row) for row in result.stdout.splitlines()]
    assert [row["released"] for row in rows] == [True, False, True]
    assert message in rows[1]["reason"]


def test_nothing_in_is_nothing_out(world, run):
    result = run(*STREAM, stdin="")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("option", ["-o", "--summary", "--private-diagnostics"])
def test_files_are_for_data(world, run, option):
    result = run(*STREAM, option, "private.csv", stdin=_line(0))
    assert result.exit_code == 2
    assert "needs DATA" in result.stderr
