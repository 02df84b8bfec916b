"""Tests of the message about slow compilation: only on a terminal and only if it is slow."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys

import click
import pytest

from dphmm import compilation

# A command that compiles a loop, simulated by a function with a given duration. It runs in a fork for each standard
# error.
DRIVER = """
import os, sys, time, types
def slowly(function, **options):
    return lambda *given: (time.sleep(float(sys.argv[1])), function(*given))[1]
sys.modules["numba"] = types.SimpleNamespace(njit=slowly)
from dphmm import compilation
from dphmm.cli import Program, main
compilation._NOTICE_SECONDS = 0.05
Program.get_command = lambda self, ctx, name: command
import click
@click.command()
def command():
    one = compilation.compile_function(lambda x: x + 1)
    print(one(1), one(2))
for where in sys.argv[2:]:
    child = os.fork()
    if not child:
        os.dup2(int(where), 2)
        main(["learn"], prog_name="dphmm")
    os.waitpid(child, 0)
"""


def read_each_stderr(pause: str) -> list[str]:
    """Return the standard error of a process with a terminal and with a pipe."""
    pairs = [pty.openpty(), os.pipe()]
    words = [sys.executable, "-c", DRIVER, pause, *(str(writer) for _, writer in pairs)]
    done = subprocess.run(words, capture_output=True, pass_fds=[two for _, two in pairs], text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("2 3\n" * 2, "")
    for _, writer in pairs:
        os.close(writer)
    return [read_all(reader) for reader, _ in pairs]


def read_all(reader: int) -> str:
    output = b""
    try:
        while part := os.read(reader, 4096):
            output += part
    except OSError:  # a terminal without writers
        pass
    os.close(reader)
    return click.unstyle(output.decode())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_terminal_is_notified_once_of_compilation():
    pytest.importorskip("numba")
    terminal, pipe = read_each_stderr("0.4")
    assert terminal.splitlines() == ["compiling <lambda> once for this machine, which takes some seconds"]
    assert pipe == ""


def test_fast_compilation_is_not_reported(caplog, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(compilation, "_NOTICE_SECONDS", 600.0)
    with caplog.at_level(logging.INFO, logger="dphmm.compilation"):
        assert compilation.compile_function(lambda x: x + 2)(1) == 3
    assert not caplog.records


def test_missing_cache_for_compiled_code_is_reported(caplog):
    with caplog.at_level(logging.INFO, logger="dphmm.compilation"):
        compilation._log_compilation("loop", False)
    assert (
        "compiling loop, which takes some seconds at every start; set NUMBA_CACHE_DIR to a writable folder"
        in caplog.text
    )
