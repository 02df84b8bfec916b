"""Every command looks at outputs, extras and options before anything is read, drawn, written or spent.

Each command of the fuzzer's list, which does well as it stands, is run with one thing wrong: an output that cannot be
written, a library that is not installed, an option of a wrong value. It ends with one line and exit code 2, and every
file of its small world is as it was.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import click
import pytest

from dphmm.cli.console import FILE, FOLDER, STORE, Output
from dphmm.tables.output import EXTRAS
from scripts.fuzzing.commands import BASES, SLOW, _command, _path, _world

LIBRARIES = {library for _, libraries in EXTRAS.values() for library in libraries}
NAMED = re.compile(r"(PRIVATE-)?new(\.|$)")
WRITING = [(name, at) for name, words in BASES.items() for at, word in enumerate(words) if NAMED.match(word)]


def outputs(name: str) -> list[click.Option]:
    return [one for one in _command(name).params if isinstance(one, click.Option) and isinstance(one.type, Output)]


def files() -> dict[str, bytes]:
    sqlite = ("-shm", "-wal")
    found = {str(path): path for path in Path().rglob("*") if path.is_file() and not path.name.endswith(sqlite)}
    return {name: path.read_bytes() for name, path in found.items()}


def refused(run, name: str, words: list[str]) -> str:
    """What a command says that refuses, with everything as it was."""
    before = files()
    done = run(*_path(name), *words, stdin=Path("lines.json").read_bytes())
    assert done.exit_code == 2, (name, words, done.output, done.exception)
    assert files() == before, (name, words)
    return done.stderr.splitlines()[-1]


@pytest.fixture
def world():
    with _world() as folder:
        yield folder


@pytest.fixture
def bare(monkeypatch):
    """No library of an extra for files and pictures is installed."""
    found = importlib.util.find_spec

    class Missing:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] in LIBRARIES:
                raise ImportError(name)

    for module in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in LIBRARIES else found(name, *more)
    )
    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])


def test_what_a_command_writes_is_declared():
    """An option that could be an output by its name is one; the list of commands covers all that write."""
    names = {"output", "folder", "report", "plot", "picture", "summary", "daily", "session", "certificate"}
    for name in BASES:
        for one in _command(name).params:
            if (
                isinstance(one, click.Option)
                and not one.is_flag
                and (one.name in names or str(one.name).startswith("private_"))
            ):
                assert one.type in (FILE, FOLDER, STORE), (name, one.name)
    assert {name for name in BASES if any(one.required for one in outputs(name))} <= {name for name, _ in WRITING}
    assert len(WRITING) > 18


@pytest.mark.parametrize(("name", "at"), WRITING)
@pytest.mark.parametrize("where", ["nowhere", "locked", "walk.csv"])
def test_an_output_that_cannot_be_written_is_refused_first(world, run, monkeypatch, name, at, where):
    words = list(BASES[name])
    words[at] = f"{where}/{words[at]}"
    is_folder = any(one.type is FOLDER and words[at - 1] in one.opts for one in outputs(name))
    if where == "nowhere" and is_folder:
        return  # it is made
    if where == "locked":
        (world / "locked").mkdir()
        able = os.access
        monkeypatch.setattr(
            os, "access", lambda path, mode, **more: Path(path).name != "locked" and able(path, mode, **more)
        )
    assert words[at] in refused(run, name, words) or where == "walk.csv"


@pytest.mark.usefixtures("bare", "world")
@pytest.mark.parametrize("suffix", sorted(EXTRAS))
@pytest.mark.parametrize(("name", "at"), [(name, at) for name, at in WRITING if "." in BASES[name][at]])
def test_a_missing_library_is_said_first(run, name, at, suffix):
    words = list(BASES[name])
    if words[at - 1] == "--session":
        return  # whatever it is called, it is SQLite
    words[at] = re.sub(r"\.\w+$", suffix, words[at])
    assert refused(run, name, words).startswith("dphmm")


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", [name for name in BASES if name not in SLOW])
def test_a_value_of_no_use_is_refused_before_anything_is_written(run, name):
    for option in [one for one in _command(name).params if isinstance(one, click.Option) and not one.is_flag]:
        words = list(BASES[name])
        for flag in option.opts:
            if flag in words:
                at = words.index(flag)
                del words[at : at + 1 + option.nargs]
        before = files()
        done = run(*_path(name), *words, option.opts[-1], *["\0"] * option.nargs, stdin=Path("lines.json").read_bytes())
        if done.exit_code == 2:  # some take any text
            assert files() == before, (name, option.name)
        for path in set(files()) - set(before):
            Path(path).unlink()


@pytest.mark.usefixtures("bare", "world")
def test_nothing_is_spent_for_a_file_that_cannot_be_written(run):
    """The session would be charged for releases that never come to be in a file."""
    words = ["walk.csv", "--model", "m.npz", "--policy", "complete", "--epsilon", "1", "--session", "people.db"]
    assert "pip install 'dphmm[files]'" in refused(run, "release", [*words, "-o", "x.gpkg"])
    assert "named for two outputs" in refused(
        run, "release", [*words, "-o", "people.db.csv", "--summary", "people.db.csv"]
    )
    assert "named for two outputs" in refused(run, "release", [*words[:-1], "x.csv", "-o", "x.csv"])
    done = run("release", *words, "-o", "x.csv")
    assert done.exit_code == 0, done.stderr


def test_the_demo_writes_nothing_for_a_policy_that_is_none(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in (("--policy", "[]"), ("--policy", "zone:nowhere.geojson"), ("--epsilon", "-1"), ("--seed", "-1")):
        assert run("demo", "-o", "city", *wrong).exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("release session", ["--limit-constrained", "1e-15"], "the constrained-DP limit of 1e-15 would be passed"),
        ("audit policy", ["--steps", "2147483648"], "--steps is 2,147,483,648; give at most 50,000"),
        ("leak model", ["--certificate", "new.json", "--never-surer", "2147483648"], "never-surer"),
        ("synthesize", ["--compare", "nowhere.csv"], "nowhere.csv: there is no such file"),
    ],
)
def test_what_another_option_refuses_leaves_no_file(run, name, words, says):
    """A limit below the first release of anybody leaves no session agreed on; a wrong cap leaves no certificate."""
    assert says in refused(run, name, [*BASES[name], *words])


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", ["show", "report sessions"])
def test_a_title_with_half_a_character_is_written_with_a_question_mark(run, name):
    assert run(*_path(name), *BASES[name], "--title", "a\udc80b").exit_code == 0
    assert "<title>a?b</title>" in Path("new.html").read_text()


_REGION = ("--bbox", "44.97", "-30.04", "45.03", "-29.96", "--cell", "0.5")
_IDENTITY = ("audit", "identity", "releases.csv", "--model", "m.npz", "--policy", "complete", "--known", "nowhere")
_DISTRICTS = Path(__file__).parents[2] / "data" / "districts.geojson"
_COUNTS = ("counts", "release", "nowhere", "-o", "new.csv", "--model", "m.npz", "--epsilon", "1")
_TABLE = ("counts", "release", "--counts", "nowhere.csv", "-o", "new.csv", "--epsilon", "1")
_LANDMARKS = ("landmarks", "nowhere.csv", "-o", "new.csv")
_PLANAR = (*_LANDMARKS, "--unit", "0.2", "--centre", "45", "-30")
_RELEASE = ("release", "nowhere", "-o", "new.csv", "--model", "m.npz", "--policy", "complete", "--epsilon", "1")
_LATE = [
    (("--away", "--least-people", "3"), "--away does not go with --smoothing and --least-people"),
    (("--radii", "--smoothing", "1"), "--radii follows people without a promise"),
    (("--radii", "--user-epsilon", "1"), "--radii follows people without a promise"),
    (("--by", "hours"), "--by needs the time zone of its hours"),
    (("--by", "hours", "--zone", "Nowhere/City"), "time zone 'Nowhere/City' is unknown"),
    (("--zone", "UTC"), "--zone is for classes of time"),
    (("--gap", "0"), "'--gap': 0.0 is not in the range"),
    (("--user-epsilon", "-1"), "epsilon is '-1'"),
]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        *((("learn", "nowhere", "-o", "new.npz", *_REGION, *words), says) for words, says in _LATE),
        (("attack", "nowhere", "--model", "m.npz", "--channel", "nonsense"), "nonsense"),
        (("attack", "nowhere", "--model", "m.npz", "--channel", "table:no.csv"), "no.csv"),
        (("attack", "nowhere", "--areas", str(_DISTRICTS), "--zone", "Nowhere"), "time zone 'Nowhere' is unknown"),
        ((*_COUNTS[:-1], "-1"), "epsilon is '-1'"),
        ((*_COUNTS, "--daily", "--start", "2024-01-01"), "leave --start and --end out"),
        ((*_COUNTS, "--daily", "--hours", "12", "8"), "hours are '(12.0, 8.0)'"),
        ((*_COUNTS, "--daily", "--utc-offset", "99"), "utc_offset is 99"),
        ((*_COUNTS, "--daily", "--least-seen", "2"), "least_seen is 2"),
        ((*_COUNTS, "--start", "noon"), "start is 'noon'"),
        ((*_COUNTS, "--end", "noon"), "end is 'noon'"),
        ((*_COUNTS, "--hours", "8", "12"), "--hours goes with --daily"),
        ((*_TABLE, "--daily"), "--daily is for DATA, not for --counts"),
        ((*_TABLE, "--users", "ann"), "--users is for DATA, not for --counts"),
        ((*_LANDMARKS, "--epsilon", "-1", "--sensitivity", "1"), "epsilon is -1"),
        ((*_LANDMARKS, "--epsilon", "1", "--sensitivity", "1", "--rate", "2"), "rate, least_rate and change are 2"),
        ((*_LANDMARKS, "--epsilon", "1", "--sensitivity", "1", "--mechanism", "none"), "mechanism is 'none'"),
        ((*_LANDMARKS, "--epsilon", "1", "--sensitivity", "1", "--users", "ann"), "--users is for trajectories"),
        ((*_PLANAR, "--epsilon", "-1"), "epsilon is -1"),
        ((*_PLANAR, "--epsilon", "1", "--find", "home", "--radius", "-1"), "radius is -1"),
        ((*_PLANAR, "--epsilon", "1", "--find", "home", "--utc-offset", "99"), "utc_offset is 99"),
        ((*_RELEASE, "--limit-epsilon", "3"), "limits need a session"),
        (("synthesize", "--model", "m.npz", "-o", "new.csv", "--gap", "60"), "--gap goes with --compare"),
        (("synthesize", "--model", "m.npz", "-o", "new.csv", "--users", "ann"), "--users goes with --compare"),
        (("attack", "nowhere", "--zone", "UTC"), "--zone goes with --areas"),
        (("attack", "nowhere", "--areas", str(_DISTRICTS), "--home-within", "1km"), "--home-within does not go with"),
        (("attack", "nowhere", "--areas", str(_DISTRICTS), "--most-steps", "9"), "--most-steps does not go with"),
        (("flows", "nowhere", "--user-epsilon", "1", *_REGION, "-o", "new.csv", "--relative-error", "-1"), "range x>0"),
        (("flows", "nowhere", "--user-epsilon", "1", *_REGION, "-o", "new.csv", "--workers", "0"), "range x>=1"),
        (("synthesize", "--model", "m.npz", "--compare", "nowhere", "--gap", "-1"), "range x>0"),
        ((*_IDENTITY, "--seed", "-1"), "seed is -1"),
        (("audit", "session", "releases.csv", "--model", "m.npz", "--policy", "complete", "--top", "0"), "range x>=1"),
        (("audit", "mechanism", "--model", "m.npz", "--policy", "complete", "--pairs", "-1"), "pairs -1"),
        (("audit", "mechanism", "--model", "m.npz", "--policy", "complete", "--confidence", "2"), "confidence is 2"),
        (("calibrate", "--model", "m.npz", "--policy", "complete", "--error", "1km", "--seed", "-1"), "seed is -1"),
    ],
)
def test_an_option_of_no_use_is_refused_before_data_are_read(run, words, says):
    """There are no such data: whoever looks for them first says that."""
    done = run(*words)
    assert done.exit_code == 2, (done.output, done.exception)
    assert says in done.stderr, done.stderr


@pytest.mark.usefixtures("world")
def test_budgets_beside_the_one_that_is_looked_for_are_refused_first(run, monkeypatch):
    from dphmm.jobs import calibrations

    monkeypatch.setattr(calibrations, "load_model", lambda _: pytest.fail("work has begun"))
    done = run("calibrate", "--model", "m.npz", "--policy", "complete", "--error", "1km", "--row", "1,-1")
    assert done.exit_code == 2, done.output
    assert "epsilon is -1" in done.stderr
