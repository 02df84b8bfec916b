"""Tests that every command checks its arguments before it reads, samples or writes.

Each command of the fuzzer's list succeeds unchanged. It is run with one invalid argument: an output that cannot be
written, a library that is not installed, or an option with an invalid value. It must end with one line and exit code
2, and every file must be unchanged.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from dphmm.cli.console import FILE, FOLDER, STORE, Output
from dphmm.cli.keys import Key, get_key
from dphmm.tables.output import EXTRAS
from scripts.fuzzing.commands import BASES, SLOW, _make_template, find_command

LIBRARIES = {library for _, libraries in EXTRAS.values() for library in libraries}
NAMED = re.compile(r"(PRIVATE-)?new(\.|$)")
WRITING = [(name, at) for name, words in BASES.items() for at, word in enumerate(words) if NAMED.match(str(word))]


def list_outputs(name: str) -> list[click.Option]:
    return [
        option
        for option in find_command(name)[0].params
        if isinstance(option, click.Option) and isinstance(option.type, Output)
    ]


def read_files() -> dict[str, bytes]:
    sqlite = ("-shm", "-wal")
    paths = {str(path): path for path in Path().rglob("*") if path.is_file() and not path.name.endswith(sqlite)}
    return {name: path.read_bytes() for name, path in paths.items()}


def restore(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Restore the files for the next command in the same folder."""
    for path in after.keys() - before.keys():
        Path(path).unlink()
    for path, content in before.items():
        if after.get(path) != content:
            Path(path).write_bytes(content)


def check_refusal(run, name: str, words: list[str]) -> tuple[str, str | None]:
    """Return a failing command's last line, and a problem if it succeeds or changes files."""
    before = read_files()
    done = run(*find_command(name)[1], *words, stdin=Path("lines.json").read_bytes())
    after = read_files()
    restore(before, after)
    line = done.stderr.splitlines()[-1] if done.stderr else ""
    if done.exit_code != 2:
        return line, f"{name} {words}: exit code {done.exit_code}, {done.output} {done.exception}"
    return line, None if after == before else f"{name} {words}: {sorted(set(after) ^ set(before))} changed"


def assert_refused(run, name: str, words: list[str]) -> str:
    """Return the last line of a command that fails and leaves every file unchanged."""
    line, problem = check_refusal(run, name, words)
    assert problem is None, problem
    return line


@pytest.fixture
def world(tmp_path, monkeypatch):
    shutil.copytree(_make_template(), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bare(monkeypatch):
    """Simulate that no library of an extra for files and pictures is installed."""
    find_spec = importlib.util.find_spec

    class Missing:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] in LIBRARIES:
                raise ImportError(name)

    for module in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in LIBRARIES else find_spec(name, *more)
    )
    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])


def test_outputs_of_commands_are_declared():
    """Options named like an output have an output type, and the list covers them all."""
    names = {"output", "folder", "report", "plot", "picture", "summary", "daily", "session", "certificate"}
    for name in BASES:
        for option in find_command(name)[0].params:
            if (
                isinstance(option, click.Option)
                and not option.is_flag
                and (option.name in names or str(option.name).startswith("private_"))
            ):
                assert option.type in (FILE, FOLDER, STORE), (name, option.name)
    assert {name for name in BASES if any(option.required for option in list_outputs(name))} <= {
        name for name, _ in WRITING
    }
    assert len(WRITING) > 18


def test_seed_of_every_command_has_its_range():
    options = [(name, option) for name in BASES for option in find_command(name)[0].params if "--seed" in option.opts]
    assert len(options) > 8
    for name, option in options:
        assert isinstance(option.type, click.IntRange), name
        assert option.type.min == 0, name


def join_problems(problems: list[str]) -> str:
    """Return every problem on its own line, so that one run shows all of them."""
    return "\n".join(problems)


@pytest.mark.parametrize("where", ["nowhere", "locked", "walk.csv"])
def test_unwritable_output_raises_first(world, run, monkeypatch, where):
    if where == "locked":
        (world / "locked").mkdir()
        able = os.access
        monkeypatch.setattr(
            os, "access", lambda path, mode, **more: Path(path).name != "locked" and able(path, mode, **more)
        )
    problems = []
    for name, at in WRITING:
        words = list(BASES[name])
        words[at] = f"{where}/{words[at]}"
        is_folder = any(option.type is FOLDER and words[at - 1] in option.opts for option in list_outputs(name))
        if where == "nowhere" and is_folder:
            continue  # the folder is created
        line, problem = check_refusal(run, name, words)
        if problem or not (words[at] in line or where == "walk.csv"):
            problems.append(problem or f"{name} {words}: {line}")
    assert not problems, join_problems(problems)


@pytest.mark.usefixtures("bare", "world")
@pytest.mark.parametrize("suffix", sorted(EXTRAS))
def test_missing_library_raises_first(run, suffix):
    problems = []
    for name, at in WRITING:
        words = list(BASES[name])
        if "." not in str(words[at]) or words[at - 1] == "--session":
            continue  # session files are SQLite regardless of their suffix
        words[at] = re.sub(r"\.\w+$", suffix, words[at])
        line, problem = check_refusal(run, name, words)
        if problem or not line.startswith("Error: "):
            problems.append(problem or f"{name} {words}: {line}")
    assert not problems, join_problems(problems)


@pytest.mark.slow
@pytest.mark.usefixtures("world")
def test_invalid_value_raises_before_writing(run):
    problems = []
    for name in [name for name in BASES if name not in SLOW]:
        before = read_files()
        for option in [
            parameter
            for parameter in find_command(name)[0].params
            if isinstance(parameter, click.Option) and not parameter.is_flag
        ]:
            words = list(BASES[name])
            for flag in option.opts:
                if flag in words:
                    at = words.index(flag)
                    del words[at : at + 1 + option.nargs]
            value = ["\0"] * option.nargs
            done = run(*find_command(name)[1], *words, option.opts[-1], *value, stdin=Path("lines.json").read_bytes())
            after = read_files()
            if done.exit_code == 2 and after != before:  # some options accept any string
                problems.append(f"{name} {option.name}: {sorted(set(after) ^ set(before))}")
            restore(before, after)
        for key in [get_key(parameter) for parameter in find_command(name)[0].params if isinstance(parameter, Key)]:
            done = run(*find_command(name)[1], *BASES[name], {key: "\0"}, stdin=Path("lines.json").read_bytes())
            after = read_files()
            if done.exit_code == 2 and after != before:
                problems.append(f"{name} {key}: {sorted(set(after) ^ set(before))}")
            restore(before, after)
    assert not problems, join_problems(problems)


@pytest.mark.usefixtures("bare", "world")
def test_session_is_not_charged_if_output_cannot_be_written(run):
    """Otherwise the session would be charged for releases that are in no file."""
    words = ["walk.csv", "--model", "m.npz", "--policy", "complete", "--epsilon", "1", "--session", "users.db"]
    assert "pip install 'dphmm[files]'" in assert_refused(run, "release", [*words, "-o", "x.gpkg"])
    assert "named for two outputs" in assert_refused(
        run, "release", [*words, "-o", "users.db.csv", {"summary": "users.db.csv"}]
    )
    assert "named for two outputs" in assert_refused(run, "release", [*words[:-1], "x.csv", "-o", "x.csv"])
    done = run("release", *words, "-o", "x.csv")
    assert done.exit_code == 0, done.stderr


def test_demo_writes_nothing_for_invalid_policy(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in (("--policy", "[]"), ("--policy", "zone:nowhere.geojson"), ("--epsilon", "-1"), ("--seed", "-1")):
        assert run("demo", "-o", "city", *wrong).exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("release session", [{"limit_constrained": 1e-15}], "constrained-DP limit 1e-15 exceeded"),
        ("audit policy", ["--steps", "2147483648"], "steps must be an integer in [1, 50000]"),
        ("leak model", ["--certificate", "new.json", "--max-event-probability", "2147483648"], "--event is missing"),
        ("synthesize", ["--compare", "nowhere.csv"], "nowhere.csv: "),
    ],
)
def test_error_of_other_option_leaves_no_file(run, name, words, says):
    """A limit below the first release creates no session, an invalid cap no certificate."""
    assert says in assert_refused(run, name, [*BASES[name], *words])


@pytest.mark.slow
@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", ["show", "report sessions"])
def test_title_with_lone_surrogate_is_written_with_question_mark(run, name):
    assert run(*find_command(name)[1], *BASES[name], "--title", "a\udc80b").exit_code == 0
    assert "<title>a?b</title>" in Path("new.html").read_text()


_REGION = ("--bbox", "44.97", "-30.04", "45.03", "-29.96", "--cell", "0.5")
_IDENTITY = (
    "audit",
    "identity",
    "releases.csv",
    "--model",
    "m.npz",
    "--policy",
    "complete",
    "--auxiliary-data",
    "nowhere",
)
_DISTRICTS = Path(__file__).parents[2] / "data" / "districts.geojson"
_COUNTS = ("counts", "release", "nowhere", "-o", "new.csv", "--model", "m.npz", "--epsilon", "1")
_TABLE = ("counts", "release", "--counts", "nowhere.csv", "-o", "new.csv", "--epsilon", "1")
_LANDMARKS = ("landmarks", "nowhere.csv", "-o", "new.csv")
_PLANAR = (*_LANDMARKS, "--unit", "0.2", "--centre", "45", "-30")
_RELEASE = ("release", "nowhere", "-o", "new.csv", "--model", "m.npz", "--policy", "complete", "--epsilon", "1")
_FLOWS = ("flows", "nowhere", "--user-epsilon", "1", *_REGION, "-o", "new.csv")
_LATE = [
    (
        ({"outside_states": True}, {"min_users": 3}),
        "key 'outside_states' cannot be combined with --smoothing",
    ),
    (({"calibrate_radii": True}, "--smoothing", "1"), "key 'calibrate_radii' cannot be combined"),
    (({"calibrate_radii": True}, "--user-epsilon", "1"), "key 'calibrate_radii' cannot be combined"),
    (("--time-classes", "hour"), "--time-classes requires the time zone of its hours: use --zone"),
    (("--time-classes", "hour", "--zone", "Nowhere/City"), "offset such as +08:00, got 'Nowhere/City'"),
    (("--zone", "UTC"), "--zone requires --time-classes hour or --time-classes weekday-hour"),
    (("--gap", "0"), "'--gap': 0.0 is not in the range"),
    (("--user-epsilon", "-1"), "--user-epsilon must be in [1e-30, 1e+30]"),
]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        *((("learn", "nowhere", "-o", "new.npz", *_REGION, *words), says) for words, says in _LATE),
        (("attack", "nowhere", "--model", "m.npz", "--channel", "nonsense"), "nonsense"),
        (("attack", "nowhere", "--model", "m.npz", "--channel", "table:no.csv"), "no.csv"),
        (
            ("attack", "nowhere", "--areas", str(_DISTRICTS), "--zone", "Nowhere"),
            "offset such as +08:00, got 'Nowhere'",
        ),
        ((*_COUNTS[:-1], "-1"), "--epsilon must be in [1e-30, 1e+30]"),
        ((*_COUNTS, "--daily", {"start": "2024-01-01"}), "leave start and end out"),
        (
            (*_COUNTS, "--daily", {"hours": [12, 8]}),
            "key 'hours' must be two increasing numbers from 0 to 24, got '(12.0, 8.0)'",
        ),
        ((*_COUNTS, "--daily", "--utc-offset", "99"), "--utc-offset must be in [-24, 24]"),
        ((*_COUNTS, "--daily", {"min_coverage": 2}), "key 'min_coverage' must be in [0, 1]"),
        ((*_COUNTS, {"start": "noon"}), "key 'start' must be a UTC time such as 2009-10-11T14:00, got 'noon'"),
        ((*_COUNTS, {"end": "noon"}), "key 'end' must be a UTC time such as 2009-10-11T14:00, got 'noon'"),
        ((*_COUNTS, {"hours": [8, 12]}), "key 'hours' needs --daily: remove key 'hours'"),
        ((*_TABLE, "--daily"), "--daily cannot be combined with --counts: it is for DATA: remove --daily"),
        ((*_TABLE, "--users", "ann"), "--users cannot be combined with --counts: it is for DATA: remove --users"),
        ((*_FLOWS, "--only", "trips"), "Error: --only must be distinct names of visits, flows, stay-times, trip-"),
        ((*_FLOWS, {"split": "trips=1"}), "key 'split' must have weights of the tables visits, flows"),
        ((*_LANDMARKS, "--epsilon", "-1", "--sensitivity", "1"), "epsilon must be"),
        ((*_LANDMARKS, "--epsilon", "1", "--sensitivity", "1", {"rate": 2}), "key 'rate' must be in (0, 1]"),
        ((*_LANDMARKS, "--epsilon", "1", "--sensitivity", "1", "--mechanism", "none"), "mechanism must be one of"),
        (
            (*_LANDMARKS, "--epsilon", "1", "--sensitivity", "1", "--users", "ann"),
            "--users cannot be combined with --sensitivity: it is for trajectories: remove --users",
        ),
        ((*_PLANAR, "--epsilon", "-1"), "epsilon must be"),
        ((*_PLANAR, "--epsilon", "1", "--find", "home", {"radius": -1}), "radius_km must be"),
        ((*_PLANAR, "--epsilon", "1", "--find", "home", "--utc-offset", "99"), "--utc-offset must be in [-24, 24]"),
        ((*_RELEASE, {"limit_epsilon": 3}), "limits need a session"),
        (("synthesize", "--model", "m.npz", "-o", "new.csv", "--gap", "60"), "--gap requires --compare: remove --gap"),
        (
            ("synthesize", "--model", "m.npz", "-o", "new.csv", "--users", "ann"),
            "--users requires --compare: remove --users",
        ),
        (("attack", "nowhere", "--zone", "UTC"), "--zone needs --areas: remove --zone"),
        (
            ("attack", "nowhere", "--areas", str(_DISTRICTS), {"home_within": "1km"}),
            "key 'home_within' cannot be combined with --areas: remove key 'home_within'",
        ),
        (
            ("attack", "nowhere", "--areas", str(_DISTRICTS), {"max_steps": 9}),
            "key 'max_steps' cannot be combined with --areas: remove key 'max_steps'",
        ),
        ((*_FLOWS, {"relative_error": -1}), "key 'relative_error' must be a number, above 0, got -1"),
        ((*_FLOWS, "--workers", "0"), "range x>=1"),
        (("synthesize", "--model", "m.npz", "--compare", "nowhere", "--gap", "-1"), "range x>0"),
        ((*_IDENTITY, "--seed", "-1"), "'--seed': -1 is not in the range"),
        (
            ("audit", "session", "releases.csv", "--model", "m.npz", "--policy", "complete", {"top": 0}),
            "key 'top' must be an integer, at least 1, got 0",
        ),
        (
            ("audit", "mechanism", "--model", "m.npz", "--policy", "complete", {"pairs": -1}),
            "key 'pairs' must be an integer, at least 0, got -1",
        ),
        (
            ("audit", "mechanism", "--model", "m.npz", "--policy", "complete", {"confidence": 2}),
            "'confidence' must be",
        ),
        (
            ("calibrate", "--model", "m.npz", "--policy", "complete", "--error", "1km", "--seed", "-1"),
            "'--seed': -1 is not in the range",
        ),
    ],
)
def test_invalid_option_raises_before_reading_data(run, words, says):
    """The data do not exist: reading them first would give another message."""
    done = run(*words)
    assert done.exit_code == 2, (done.output, done.exception)
    assert says in done.stderr, done.stderr


@pytest.mark.usefixtures("world")
def test_invalid_row_of_budgets_raises_before_work(run, monkeypatch):
    monkeypatch.setattr(
        import_module("dphmm.jobs.calibrate.calibrate"), "load_model", lambda _: pytest.fail("work has begun")
    )
    done = run("calibrate", "--model", "m.npz", "--policy", "complete", "--error", "1km", "--report-epsilons", "1,-1")
    assert done.exit_code == 2, done.output
    assert "--report-epsilons must be" in done.stderr
