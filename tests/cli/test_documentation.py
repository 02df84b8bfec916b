"""Every command line of the page about the command runs as it is written there."""

from __future__ import annotations

import re
import shutil

import pytest

from dphmm.writers import COLUMNS
from tests.documents import ROOT, run_line

PAGE = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")


def test_the_page_s_command_lines_run(tmp_path):
    lines = re.findall(r"^\$ (.+)$", PAGE, flags=re.MULTILINE)
    assert len(lines) >= 7
    shutil.copytree(ROOT / "data", tmp_path / "data")
    (tmp_path / "job.toml").write_text(PAGE.partition("```toml\n")[2].partition("```")[0])
    for line in lines:
        if line.startswith("dphmm demo"):  # a test of its own runs it
            continue
        run_line(line, tmp_path)
    for name in ("model.npz", "releases.gpkg", "summary.csv", "districts.csv", "job.parquet", "map.html", "map.png"):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("name", [column.name for column in COLUMNS])
def test_the_page_explains_every_column(name):
    assert f"`{name}`" in PAGE
