"""The pages on counts and landmarks: commands run as they stand, and so does their Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.documents import ROOT, run_line

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
        run_line(line, tmp_path)
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
    named = re.findall(r"`(scripts/\w+)", text(page))
    assert named
    for name in named:
        assert (ROOT / name).exists(), name
