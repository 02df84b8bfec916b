"""Hostile files and command lines, a fixed few of each kind; scripts/fuzz tries as many as one likes."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

import pytest

import dphmm
from dphmm.readers.reading import FORMATS
from scripts.fuzzing import changes
from scripts.fuzzing.__main__ import main
from scripts.fuzzing.attempt import ACCEPTED, REFUSED, Limits, attempt, hostile, try_range
from scripts.fuzzing.commands import BASES, COMMANDS, SLOW
from scripts.fuzzing.targets import TARGETS
from tests.scripts.flawed import FLAWS, KINDS, broken

pytestmark = pytest.mark.slow  # a tool of the project, and none of what it is for

INPUTS = 25
"""Of each reader, with seed 0; of each command two."""


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_files_are_taken_or_refused_in_one_line(name, tmp_path):
    target = TARGETS[name]
    for file, data in target.seeds():
        assert attempt(target, file, data, tmp_path).kind == ACCEPTED, "what is valid is taken"
    for number in range(INPUTS):
        outcome = attempt(target, *hostile(target, name, 0, number), tmp_path)
        assert outcome.kind in (ACCEPTED, REFUSED), f"input {number}: {outcome.kind}\n{outcome.detail}"


READING = ("read", "load", "from_json", "from_toml", "from_bytes", "categories")
"""What functions that read a stranger's file or text are called: these, or these and more after an underscore."""
NO_FILES = {
    "serve/message_formats.py:from_json",
    "jobs/run_folder.py:read",
    "jobs/models.py:read_others",
    "cli/leakage.py:read_adversaries",
}
NO_FILES |= {
    "readers/frames.py:read_frame",
    "policy/graph_text.py:read_listed",
    "evaluation/figures/landmarks.py:read_tracks",
}
"""What reads no foreign file: the relay's own store, noise, options, frames, policy texts; or calls a tried reader."""


def readers() -> set[str]:
    """Every function and method of the package, private ones but for, that is called as one that reads."""
    package = Path(dphmm.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith(READING):
                continue
            body = [one for one in node.body if not isinstance(one, ast.Expr)]
            if body and (node.name in READING or node.name.startswith(tuple(f"{word}_" for word in READING))):
                found.add(f"{path.relative_to(package).as_posix()}:{node.name}")
    return found


def test_every_reader_of_the_package_is_given_hostile_files(tmp_path):
    package = str(Path(dphmm.__file__).parent) + "/"
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        called.add(frame.f_code)

    for target in TARGETS.values():
        target.seeds()
    before = sys.gettrace()
    for target in TARGETS.values():
        sys.settrace(note)
        try:
            for file, data in target.seeds():
                attempt(target, file, data, tmp_path)
        finally:
            sys.settrace(before)
    seen = {
        f"{code.co_filename.removeprefix(package)}:{code.co_name}"
        for code in called
        if code.co_filename.startswith(package)
    }
    assert len(readers()) > 40
    assert readers() - NO_FILES - seen == set(), "give each a line in scripts/fuzzing/targets.py"
    parsers = [one.fixes.__code__ for one in FORMATS.values()]
    fixes = {f"{Path(one.co_filename).relative_to(package).as_posix()}:{one.co_name}" for one in parsers}
    assert fixes <= seen


@pytest.mark.parametrize("name", [f"dphmm {name}" for name in BASES if name not in SLOW])
def test_commands_end_well_or_with_one_line_whatever_their_options_say(name, tmp_path):
    target = COMMANDS[name]
    for number in range(2):
        outcome = attempt(target, *hostile(target, name, 0, number), tmp_path)
        assert outcome.kind == ACCEPTED, f"input {number}: {outcome.kind}\n{outcome.detail}"


def test_an_input_is_the_same_at_every_call():
    for name in ("csv", "model", "parquet", "session"):
        made = [[hostile(TARGETS[name], name, seed, 3) for _ in range(2)] for seed in (0, 1)]
        assert made[0][0] == made[0][1]
        assert made[0][0] != made[1][0]


def test_what_was_changed_before_can_be_changed_again():
    for number in range(20):
        assert isinstance(changes.of_json(b'{"a": [1, }', Random(number)), bytes)
        assert isinstance(changes.changed(b'{"a": ' * 2000 + b"1" + b"}" * 2000, Random(number)), bytes)


def test_every_way_to_go_wrong_is_found_as_such():
    limits = Limits(memory=1 << 30, seconds=2.0)
    drawn = Counter(hostile(broken()["flawed"], "flawed", 0, number)[1].decode() for number in range(40))
    assert set(drawn) == set(FLAWS)
    tally = try_range("flawed", 0, range(40), limits, broken)
    assert tally.kinds == {KINDS[flaw]: count for flaw, count in drawn.items()}
    assert set(tally.wrong) == set(KINDS.values()) - {ACCEPTED, REFUSED}
    assert +try_range("crashing", 0, range(1), limits, broken).kinds == {"the process died of SIGSEGV": 1}
    assert +try_range("hanging", 0, range(1), limits, broken).kinds == {"no end within 2 seconds": 1}


def test_the_script_prints_a_table_and_keeps_only_what_failed(tmp_path, capsys):
    assert main(["--inputs", "30", "--reader", "edges", "--keep", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split()[:2] == ["edges", "30"]
    assert printed[2].split()[0] == "together"
    assert list(tmp_path.iterdir()) == []
