"""Run the command lines of the documentation."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner

from dphmm.cli import main

ROOT = Path(__file__).parents[1]


def read_page(name: str) -> str:
    """The text of the page of the documentation with this name, in any folder."""
    (path,) = (ROOT / "docs").rglob(name)
    return path.read_text(encoding="utf-8")


def run_line(line: str, folder: Path) -> str:
    """The output of a line: the command runs in this process, any other line in a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    if words[0] == "dphmm" and not any(set(word) <= set("();<>|&") for word in words):
        with chdir(folder):
            done = CliRunner().invoke(main, words[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}{done.exception or ''}"
        return done.output
    plain = re.sub(r"(^|\| )dphmm\b", rf"\1'{sys.executable}' -m dphmm", line)
    path = os.environ | {"PYTHONPATH": str(ROOT)}
    shell = subprocess.run(plain, shell=True, cwd=folder, env=path, capture_output=True, text=True)
    assert shell.returncode == 0, f"{line}\n{shell.stderr}"
    return shell.stdout + shell.stderr
