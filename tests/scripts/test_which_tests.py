"""Tests of the scripts' selection: fast tests, all, or a share of the slow ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import _select_share

ROOT = Path(__file__).parents[2]
ALL_OF_THEM = ["pytest", "-n", str(os.cpu_count() + 1), "--dist", "worksteal"]
WITHOUT_SLOW = [*ALL_OF_THEM, "-m", "not slow"]


@pytest.fixture
def project(tmp_path):
    """Copy the scripts, with a Python that only records its arguments."""
    for path in ("scripts/check", "scripts/docs", "scripts/environment", "scripts/test", ".ci/run", "pyproject.toml"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    python = tmp_path / "python"
    # One write, since several processes run in parallel.
    note = f"printf '%s\\n' \"$(printf '%s\\t' \"$@\")\" >>'{tmp_path}/asked'"
    python.write_text(f'#!/bin/sh\nif [ "$1" = -m ]; then shift; {note}; fi\n')
    python.chmod(0o755)
    for name in ("venv", "venv-3.11", "venv-3.12", "venv-3.13"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").symlink_to(python)
        checksum = subprocess.run(
            ["cksum"], input=(tmp_path / "pyproject.toml").read_bytes(), capture_output=True, check=True
        )
        for extra in ("dev", "docs"):
            (tmp_path / name / f".installed-{extra}-{checksum.stdout.decode().strip().replace(' ', '-')}").touch()
    return tmp_path


def run_script(project: Path, *line: str) -> list[list[str]]:
    """Return the arguments of each call of pytest."""
    environment = os.environ | {"DPHMM_VENV": str(project / "venv")}
    done = subprocess.run([project / line[0], *line[1:]], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls = [call.split("\t")[:-1] for call in (project / "asked").read_text().splitlines()]
    return [call for call in calls if call[0] == "pytest"]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ((".ci/run",), [[*ALL_OF_THEM, "--share", "0/20"]]),
        (("scripts/check",), [[*ALL_OF_THEM, "--cov"]]),
        (("scripts/check", "--no-tests"), []),
        (("scripts/test",), [WITHOUT_SLOW]),
        (("scripts/test", "tests/policy", "-k", "a or b"), [[*WITHOUT_SLOW, "tests/policy", "-k", "a or b"]]),
        (("scripts/test", "-m", "slow"), [[*WITHOUT_SLOW, "-m", "slow"]]),
        (("scripts/test", "--all", "-x"), [[*ALL_OF_THEM, "-x"]]),
        (("scripts/test", "--share", "2/3", "-x"), [[*ALL_OF_THEM, "--share", "2/3", "-x"]]),
        (("scripts/test", "--every-python", "-x"), [[*ALL_OF_THEM, "-x"]] * 3),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else None,
)
def test_scripts_run_their_selection_of_tests(project, line, wanted):
    assert run_script(project, *line) == wanted


TESTS = """import pytest

@pytest.mark.slow
def test_at_size():
    pass

def test_quick():
    pass

@pytest.mark.parametrize("case", range(10))
def test_of_ten_cases(case):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "summary", "is_stated"),
    [((), "12 passed", False), (("-m", "not slow"), "5 passed, 7 deselected", True)],
)
def test_pytest_runs_all_tests_and_states_deselection(tmp_path, options, summary, is_stated):
    (tmp_path / "test_size.py").write_text(TESTS)
    for path in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / path, tmp_path)
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_size.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert summary in done.stdout
    assert ("scripts/test --all" in done.stdout) is is_stated


@pytest.mark.slow
def test_shares_divide_slow_tests_except_those_with_server(tmp_path):
    (tmp_path / "test_size.py").write_text(
        TESTS
        + """
@pytest.mark.slow
def test_with_server(postgres):
    pass
"""
    )
    for path in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / path, tmp_path)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    collected = []
    for chosen in (("-m", "not slow"), *(("--share", f"{share}/3") for share in range(3)), ("--share", "3/3")):
        line = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--collect-only",
            "-q",
            *chosen,
            "test_size.py",
        ]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
        collected.append({name for name in done.stdout.splitlines() if "::" in name})
    fast, *shares, invalid = collected
    assert len(fast) == 5
    assert not invalid
    always = {*fast, "test_size.py::test_with_server"}
    assert all(always < share for share in shares)
    assert sum(len(share - always) for share in shares) == len(set().union(*shares) - always) == 7


@dataclass(frozen=True)
class Item:
    """A collected test."""

    nodeid: str
    is_slow: bool
    fixturenames: tuple[str, ...] = ()

    def get_closest_marker(self, name: str) -> str | None:
        return name if self.is_slow else None


def test_shares_run_every_test_and_a_case_of_each_test_with_a_server():
    fast = [Item(f"test_fast[{number}]", False) for number in range(5)]
    slow = [Item(f"test_slow[{number}]", True) for number in range(200)]
    served = [Item(f"test_served[{number}]", True, ("browser",)) for number in range(4)]
    shares = [_select_share([*fast, *slow, *served], share, 10) for share in range(10)]
    assert set().union(*shares) == {*fast, *slow, *served}
    for kept in shares:
        assert kept.issuperset(fast)
        assert len(kept.intersection(slow)) < 60
        assert 1 <= len(kept.intersection(served)) <= 3
    assert sum(len(kept.intersection(slow)) for kept in shares) == 200, "a slow test is in one share"
