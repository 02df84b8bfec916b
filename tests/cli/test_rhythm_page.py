"""Every command line of the page about time of day runs as it is written there."""

from __future__ import annotations

import re
import shutil

from dphmm.evaluation import parse_config
from dphmm.tables.toml_text import parse_toml
from tests.documents import ROOT, run_line

PAGE = (ROOT / "docs" / "rhythm.md").read_text(encoding="utf-8")


def test_the_page_s_command_lines_run_and_its_configuration_is_one(tmp_path):
    shutil.copytree(ROOT / "data", tmp_path / "data")
    lines = re.findall(r"^\$ (.+)$", PAGE, flags=re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        run_line(line, tmp_path)
    assert (tmp_path / "people.csv").stat().st_size > 0
    assert parse_config(parse_toml(PAGE.partition("```toml\n")[2].partition("```")[0])).order == 2
