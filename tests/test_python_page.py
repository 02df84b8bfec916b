"""The page that shows every command as a call in Python: its code runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from dphmm.cli import COMMANDS
from tests.documents import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_page_runs_as_it_stands():
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    path = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, env=path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_on_the_page(command):
    assert f"dphmm {command}" in PAGE
