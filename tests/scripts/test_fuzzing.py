"""Tests with hostile files and command lines: a few fixed ones of each type.

scripts/fuzz tries an arbitrary number.
"""

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
from dphmm.readers.formats import FORMATS
from scripts.fuzzing import changes
from scripts.fuzzing.__main__ import main
from scripts.fuzzing.attempt import ACCEPTED, REFUSED, attempt, make_input, start_processes, try_inputs
from scripts.fuzzing.commands import BASES, COMMANDS, SLOW
from scripts.fuzzing.targets import TARGETS
from tests.scripts.flawed import FLAWS, KINDS, make_targets

pytestmark = pytest.mark.slow  # a tool of the project, not a feature

# Inputs for each reader, with seed 0. Each command gets two.
INPUTS = 25


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_files_are_read_or_raise_in_one_line(name, tmp_path):
    target = TARGETS[name]
    for file, data in target.seeds():
        assert attempt(target, file, data, tmp_path).kind == ACCEPTED, "valid files are accepted"
    for number in range(INPUTS):
        outcome = attempt(target, *make_input(target, name, 0, number), tmp_path)
        assert outcome.kind in (ACCEPTED, REFUSED), f"input {number}: {outcome.kind}\n{outcome.detail}"


# Names, or prefixes before an underscore, of functions that read untrusted data.
READING = ("read", "load", "from_json", "from_toml", "from_bytes", "find_categories")
# Functions that call a tested reader or read no untrusted file: the relay's own store, own temporary files, maps of the
# package, noise, options, frames or policy strings.
NO_FILES = {
    "serve/outgoing_messages.py:from_json",
    "jobs/batch/run_folder.py:read",
    "jobs/model/training_users.py:read_unseen_users",
    "jobs/release/stored.py:read",
    "jobs/audit/adversaries.py:read_histories",
    "jobs/audit/adversaries.py:read_tracks_by_user",
    "jobs/audit/session.py:load_prior_and_replays",
    "cli/leakage.py:read_adversaries",
    "evaluation/run.py:load_evaluation",
    "serve/endpoints.py:load_openapi",
    "model/row_file.py:read",
    "model/forward_backward.py:read_block",
}
NO_FILES |= {
    "readers/data_frames.py:read_frame",
    "policy/graph_text.py:read_listed",
    "space/towns.py:load_gazetteer",
    "space/world_map.py:load_outlines",
    "space/world_map.py:load_towns",
    "jobs/batch/run_folder.py:load_or_create_key",
    "jobs/leakage.py:load_user_matrices",
    "evaluation/figures/landmarks.py:read_tracks",
}


def find_readers() -> set[str]:
    """Return every function and method of the package with a reader's name.

    Names with a leading underscore do not match.
    """
    package = Path(dphmm.__file__).parent
    names = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith(READING):
                continue
            body = [statement for statement in node.body if not isinstance(statement, ast.Expr)]
            if body and (node.name in READING or node.name.startswith(tuple(f"{word}_" for word in READING))):
                names.add(f"{path.relative_to(package).as_posix()}:{node.name}")
    return names


def test_every_reader_of_package_gets_hostile_files(tmp_path):
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
    assert len(find_readers()) > 40
    assert find_readers() - NO_FILES - seen == set(), "give each a line in scripts/fuzzing/targets.py"
    parsers = [file_format.fixes.__code__ for file_format in FORMATS.values()]
    fixes = {f"{Path(code.co_filename).relative_to(package).as_posix()}:{code.co_name}" for code in parsers}
    assert fixes <= seen


@pytest.mark.parametrize("name", [f"dphmm {name}" for name in BASES if name not in SLOW])
def test_commands_succeed_or_print_one_line_for_hostile_options(name, tmp_path):
    target = COMMANDS[name]
    for number in range(2):
        outcome = attempt(target, *make_input(target, name, 0, number), tmp_path)
        assert outcome.kind == ACCEPTED, f"input {number}: {outcome.kind}\n{outcome.detail}"


def test_fuzzer_is_short():
    scripts = Path(__file__).parents[2] / "scripts"
    files = [scripts / "fuzz", *(scripts / "fuzzing").rglob("*.py")]
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 1_200


def test_hostile_input_is_reproducible():
    for name in ("csv", "model", "parquet", "session"):
        inputs = [[make_input(TARGETS[name], name, seed, 3) for _ in range(2)] for seed in (0, 1)]
        assert inputs[0][0] == inputs[0][1]
        assert inputs[0][0] != inputs[1][0]


def test_damaged_input_can_be_damaged_again():
    for number in range(20):
        assert isinstance(changes.change_json(b'{"a": [1, }', Random(number)), bytes)
        assert isinstance(changes.change_content(b'{"a": ' * 2000 + b"1" + b"}" * 2000, Random(number)), bytes)


def test_each_flaw_is_detected_by_its_type():
    flaw_counts = Counter(make_input(make_targets()["flawed"], "flawed", 0, number)[1].decode() for number in range(40))
    assert set(flaw_counts) == set(FLAWS)
    with start_processes(2, make_targets) as pool:
        tally = try_inputs(pool, "flawed", 0, range(40), seconds=60.0)
        assert tally.kinds == {KINDS[flaw]: count for flaw, count in flaw_counts.items()}
        assert set(tally.wrong) == set(KINDS.values()) - {ACCEPTED, REFUSED}
        assert try_inputs(pool, "crashing", 0, range(2)).kinds == {"the process died of SIGSEGV": 2}
        assert try_inputs(pool, "hanging", 0, range(2), seconds=2.0).kinds == {"no end within 2 seconds": 2}
        assert try_inputs(pool, "flawed", 0, range(40), seconds=60.0).kinds == tally.kinds, "processes are replaced"


def test_script_prints_table_and_keeps_only_failures(tmp_path, capsys):
    assert main(["--inputs", "30", "--reader", "edges", "--keep", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split()[:2] == ["edges", "30"]
    assert printed[2].split()[0] == "together"
    assert list(tmp_path.iterdir()) == []
