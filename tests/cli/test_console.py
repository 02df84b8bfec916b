"""What files say of themselves reaches the terminal as words and never as orders."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import dphmm.cli
from dphmm.cli.console import cell, echo
from dphmm.release.engine import ReleaseSettings
from dphmm.release.ledger import Limits
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import Terms

EVIL = "eve\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\nbob: 0"
ORDERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_orders_are_shown_and_everything_else_is_as_it_was(capsys):
    plain = 'née, "quoted" 中文 \U0001f600 عربى'
    echo(f"{plain}\t{EVIL}\n\ud800")
    said = capsys.readouterr().out
    assert said.startswith(plain + "\teve\\u001b[2J")
    assert not ORDERS.search(said)
    assert said.endswith("\\ud800\n")
    assert json.loads(f'"{cell(EVIL)}"') == EVIL


def test_only_the_terminal_prints():
    folder = Path(dphmm.cli.__file__).parent
    for path in set(folder.glob("*.py")) - {folder / "console.py"}:
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        called = {ast.unparse(call.func) for call in calls}
        assert not called & {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}, path


@pytest.mark.parametrize("as_json", [False, True])
def test_names_of_sessions_are_shown_on_one_line(world, run, as_json):
    from dphmm import MarkovModel

    engine = ReleaseSettings(policy="complete", epsilon=1.0).engine(MarkovModel.load("m.npz"))
    with SessionStore(world / "s.session") as store:  # `Session` refuses such a name; who made the file need not
        store.add(EVIL, {"main": Terms.from_engine(engine)}, Limits())
    more = ["--json"] if as_json else []
    result = run("session", "list", "s.session", *more)
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    assert not ORDERS.search(result.stdout)
    if as_json:
        assert json.loads(result.stdout)["name"] == EVIL
    assert not ORDERS.search(run("session", "show", "s.session", EVIL, *more).stdout)


def test_names_of_files_and_cells_in_errors_are_shown_on_one_line(world, run):
    path = world / "a\x1b[2J\nb.csv"
    path.write_text("state,x\na,1\n")
    result = run("audit", "policy", "--states", path.name, "--category", EVIL)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert not ORDERS.search(result.stderr)


def test_users_with_control_characters_are_refused_by_every_reader(world, run):
    (world / "walk.csv").write_text(f'user,time,lat,lon\n"{EVIL}",2024-03-07T09:00:00Z,45.001,-30.001\n')
    result = run("learn", "walk.csv", "-o", "out.npz", "--preset", "geolife")
    assert result.exit_code == 2
    assert "line 3: the user is 'eve\\x1b[2J" in result.stderr
    assert not ORDERS.search(result.stderr)
