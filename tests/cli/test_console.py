"""Tests that text from files cannot control the terminal."""

from __future__ import annotations

import ast
import json
import logging
import re
from pathlib import Path

import pytest

import dphmm.cli
from dphmm.cli import audit, calibrate, release
from dphmm.cli.console import (
    Block,
    Row,
    build_rows,
    echo,
    escape_cell,
    print_paragraph,
    print_result,
    print_table,
    render,
    show_log_messages,
)
from dphmm.jobs.input_data import Dropped
from dphmm.release.engine import ReleaseSettings
from dphmm.release.session_limits import Limits
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import Terms

EVIL = "eve\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\nbob: 0"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_control_characters_are_escaped_and_other_text_is_unchanged(capsys):
    plain = 'née, "quoted" 中文 \U0001f600 عربى'
    echo(f"{plain}\t{EVIL}\n\ud800")
    output = capsys.readouterr().out
    assert output.startswith(plain + "\teve\\u001b[2J")
    assert not CONTROL.search(output)
    assert output.endswith("\\ud800\n")
    assert json.loads(f'"{escape_cell(EVIL)}"') == EVIL


@pytest.mark.slow
def test_only_console_module_prints():
    folder = Path(dphmm.cli.__file__).parent
    for path in set(folder.glob("*.py")) - {folder / "console.py"}:
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        called = {ast.unparse(call.func) for call in calls}
        assert not called & {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}, path


@pytest.mark.parametrize("as_json", [False, True])
def test_session_names_are_printed_on_one_line(world, run, as_json):
    from dphmm import MarkovModel

    engine = ReleaseSettings(policy="complete", epsilon=1.0).engine(MarkovModel.load("m.npz"))
    with SessionStore(world / "s.session") as store:  # `Session` rejects such a name; the author of the file need not
        store.add(EVIL, {"main": Terms.from_engine(engine)}, Limits())
    more = ["--json"] if as_json else []
    result = run("session", "list", "s.session", *more)
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    assert not CONTROL.search(result.stdout)
    if as_json:
        assert json.loads(result.stdout)["name"] == EVIL
    assert not CONTROL.search(run("session", "show", "s.session", EVIL, *more).stdout)


def test_names_of_files_and_cells_in_errors_are_printed_on_one_line(world, run):
    path = world / "a\x1b[2J\nb.csv"
    path.write_text("state,x\na,1\n")
    result = run("audit", "policy", "--states", path.name, "--category", EVIL)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert not CONTROL.search(result.stderr)


def test_users_with_control_characters_raise_in_every_reader(world, run):
    (world / "walk.csv").write_text(f'user,time,lat,lon\n"{EVIL}",2024-03-07T09:00:00Z,45.001,-30.001\n')
    result = run("learn", "walk.csv", "-o", "out.npz", "--preset", "geolife")
    assert result.exit_code == 2
    assert "line 3: user must be UTF-8 without control characters, got 'eve\\x1b[2J" in result.stderr
    assert not CONTROL.search(result.stderr)


def test_results_are_printed_in_sections_and_private_values_last(capsys):
    result = {"private_names": "x", "rmse_m": 12.0, "epsilon": 0.5, "users": 3, "num_errors": 0}
    print_result("Learned", result, False, [Dropped("excluded by --users", 1632, 2)])
    assert capsys.readouterr().out.splitlines() == [
        "Learned",
        "  users                3",
        "Privacy",
        "  epsilon              0.5",
        "Utility",
        "  rmse (m)             12",
        "  errors               0",
        "Private: do not publish",
        "  names                x",
        "  excluded by --users  1,632 fixes of 2 users",
    ]


def test_epsilon_is_rounded_up(capsys):
    print_result(
        "Session", {"epsilon": 24.165, "max_window_epsilon": 3.0000001, "constrained_epsilon": "unbounded"}, False
    )
    texts = [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert texts == ["24.165", "3.00001", "unbounded"]


def test_columns_of_total_epsilon_are_rounded_up():
    total = 24.1650001
    printed = [audit._SESSIONS.columns, audit._CANDIDATES.columns, release._PRIVACY]
    printed += [calibrate._TOTALS, [row for row in calibrate._OUTCOMES.columns if row.key != "epsilon"]]
    texts = [row.read({row.key: total}) for columns in printed for row in columns if "epsilon" in row.key]
    assert texts == ["24.1651"] * 6


def test_values_have_their_labels_and_empty_sections_no_heading(capsys):
    print_result("Learned", {"epsilon": 0.5}, False, labels={"epsilon": "total epsilon"})
    assert capsys.readouterr().out.splitlines() == ["Privacy", "  total epsilon  0.5"]


def test_zeros_of_a_block_are_omitted_if_it_omits_zeros(capsys):
    for omits_zeros, lines in ((True, ["Result", "  b  2"]), (False, ["Result", "  a  0", "  b  2"])):
        render({"a": 0, "b": 2}, Block("Result", build_rows("a", "b"), omits_zeros=omits_zeros))
        assert capsys.readouterr().out.splitlines() == lines


def test_paragraphs_are_wrapped_at_80_columns_below_their_label(capsys):
    print_paragraph("Guarantee:", "word " * 40)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("Guarantee: word")
    assert all(line.startswith(" " * 11 + "word") for line in others)
    assert max(map(len, [first, *others])) <= 80


@pytest.mark.parametrize("log", ["text", "dphmm: text"])
def test_logged_warnings_are_printed_with_their_prefix(capsys, log):
    with show_log_messages():
        logging.getLogger("dphmm.readers").warning(log)
    assert capsys.readouterr().err == "Warning: text\n"


def test_wrapped_values_keep_numbers_with_their_units_and_align(capsys):
    result = {"error": "1,588 m given past releases and 1,247 m given all releases of the user", "path": "a" * 90}
    render(result, Block("Result", (Row("error", "expected error"), Row("path"))))
    title, first, second, path, *_ = capsys.readouterr().out.splitlines()
    assert (title, first) == (
        "Result",
        "  expected error  1,588 m given past releases and 1,247 m given all releases of",
    )
    assert second == " " * 18 + "the user"
    assert path == "  path            " + "a" * 90
    print_table(
        ("user", "mean expected error given past releases", "mean expected error given all releases"),
        [("ann", "1", "2")],
        "t",
    )
    title, *headings, row = capsys.readouterr().out.splitlines()
    assert title == "t"
    assert len(headings) == 2
    assert max(map(len, headings)) <= 80
    assert row.split() == ["ann", "1", "2"]
    assert " ".join(" ".join(line.split()) for line in headings).count("releases") == 2
