"""Who waits for a loop to be compiled is told, on a terminal alone and only once it takes long."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys

import click
import pytest

from dphmm import compilation

# A command that has the compiled loop of a leak run, with compiling as slow as told.
DRIVER = """
import sys, time
import numba
from dphmm import compilation
from dphmm.cli import Program, main
compilation._PATIENCE_S = 0.05
njit = numba.njit
def slowly(function, **options):
    made = njit(function, **{**options, "cache": False})
    return lambda *given: (time.sleep(float(sys.argv[1])), made(*given))[1]
numba.njit = slowly
Program.get_command = lambda self, ctx, name: command
import click
@click.command()
def command():
    one = compilation.compiled(lambda x: x + 1)
    print(one(1), one(2))
main(["learn"], prog_name="dphmm")
"""


def said_on(terminal: bool, pause: str) -> str:
    """What a process says on standard error, which is a terminal or a pipe."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    words = [sys.executable, "-c", DRIVER, pause]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=writer, text=True, timeout=120)
    os.close(writer)
    assert done.stdout == "2 3\n"
    said = b""
    try:
        while part := os.read(reader, 4096):
            said += part
    except OSError:  # a terminal that nobody writes to any more
        pass
    os.close(reader)
    return click.unstyle(said.decode())


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_a_terminal_is_told_once_that_a_loop_is_compiled():
    pytest.importorskip("numba")
    assert said_on(True, "0.4").splitlines() == [
        "dphmm: compiling once for this machine, some seconds: <lambda>; it is kept"
    ]
    assert said_on(False, "0.4") == ""


def test_nobody_is_told_of_loops_that_are_there_at_once(caplog, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(compilation, "_PATIENCE_S", 600.0)
    with caplog.at_level(logging.INFO, logger="dphmm.compilation"):
        assert compilation.compiled(lambda x: x + 2)(1) == 3
    assert not caplog.records
