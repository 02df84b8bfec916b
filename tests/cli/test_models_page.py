"""Every command line of the page about the model runs as it is written there."""

from __future__ import annotations

import re
import shutil

from tests.documents import ROOT, run_line

PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_page_s_command_lines_run(tmp_path):
    lines = re.findall(r"^\$ (.+)$", PAGE, flags=re.MULTILINE)
    assert lines
    shutil.copytree(ROOT / "data", tmp_path / "data")
    for line in lines:
        run_line(line, tmp_path)
    assert (tmp_path / "model.npz").stat().st_size > 0
