"""The pages on counts and landmarks: commands run as they stand, and so does their Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("counts.md", "landmarks.md")


def text(page):
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_commands_run_as_they_stand(tmp_path, page):
    pytest.importorskip("matplotlib")
    (tmp_path / "data").symlink_to(ROOT / "data")
    lines = re.findall(r"^\$ (.*)$", text(page), re.MULTILINE)
    assert sum(line.startswith("dphmm ") for line in lines) >= 4
    for line in lines:
        words = re.sub(r"^dphmm\b", f"'{sys.executable}' -m dphmm", line)
        done = subprocess.run(
            words,
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        made = re.search(r" -o (\S+)", line)
        if made:
            assert (tmp_path / made[1]).stat().st_size > 0


@pytest.mark.parametrize("page", PAGES)
def test_python_runs_as_it_stands(page):
    for code in re.findall(r"```python\n(.*?)```", text(page), re.DOTALL):
        subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


@pytest.mark.parametrize("page", PAGES)
def test_scripts_that_are_named_exist(page):
    named = re.findall(r"(scripts/\w+\.py)", text(page))
    assert named
    for name in named:
        assert (ROOT / name).exists(), name
