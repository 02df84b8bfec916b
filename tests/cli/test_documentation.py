"""Every command line of the page about the command runs as it is written there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dphmm.writers import COLUMNS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")


def test_the_page_s_command_lines_run(tmp_path):
    lines = re.findall(r"^\$ (.+)$", PAGE, flags=re.MULTILINE)
    assert len(lines) >= 7
    shutil.copytree(ROOT / "data", tmp_path / "data")
    (tmp_path / "job.toml").write_text(PAGE.partition("```toml\n")[2].partition("```")[0])
    shim = tmp_path / "bin" / "dphmm"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m dphmm "$@"\n')
    shim.chmod(0o755)
    path = {"PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    for line in lines:
        if line.startswith("dphmm demo"):  # a test of its own runs it
            continue
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    for name in ("model.npz", "releases.gpkg", "summary.csv", "districts.csv", "job.parquet", "map.html", "map.png"):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("name", [column.name for column in COLUMNS])
def test_the_page_explains_every_column(name):
    assert f"`{name}`" in PAGE
