"""The page on events: its commands run as they stand, and so does its Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from dphmm import ReleaseSettings
from dphmm.events import parse_event
from dphmm.jobs import audit_event
from tests.documents import ROOT, run_line

PAGE = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")


def test_commands_run_as_they_stand_and_the_capped_session_is_kept(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "data").symlink_to(ROOT / "data")
    lines = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
    assert len(lines) == 8
    for line in lines:
        run_line(line, tmp_path)
    assert (tmp_path / "open.html").stat().st_size > 0
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (cap,) = ReleaseSettings.from_toml(toml).caps
    os.chdir(tmp_path)
    found = audit_event(tmp_path / "capped.db", tmp_path / "model.npz", cap.event, most_certainty=cap.probability)
    assert not found.is_exposed


def test_the_python_says_what_its_comment_says(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    (said,) = re.findall(r"logit Pr\(E\): (.*)$", code, re.MULTILINE)
    assert re.findall(r"-?\d\.\d+", done.stdout) == said.split()


@pytest.mark.parametrize("text", re.findall(r"^\| `(at:[^|]*?)`(?:, `(?:at:[^`]*)`)? \|", PAGE, re.MULTILINE))
def test_every_event_of_the_table_is_read(text):
    assert str(parse_event(text)) == text
