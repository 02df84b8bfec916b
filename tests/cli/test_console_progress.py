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

# A command that has a loop compiled, by something that only takes as long as it is told, in a copy of the process for
# each standard error.
DRIVER = """
import os, sys, time, types
def slowly(function, **options):
    return lambda *given: (time.sleep(float(sys.argv[1])), function(*given))[1]
sys.modules["numba"] = types.SimpleNamespace(njit=slowly)
from dphmm import compilation
from dphmm.cli import Program, main
compilation._PATIENCE_S = 0.05
Program.get_command = lambda self, ctx, name: command
import click
@click.command()
def command():
    one = compilation.compiled(lambda x: x + 1)
    print(one(1), one(2))
for where in sys.argv[2:]:
    child = os.fork()
    if not child:
        os.dup2(int(where), 2)
        main(["learn"], prog_name="dphmm")
    os.waitpid(child, 0)
"""


def said_on_each(pause: str) -> list[str]:
    """What a process says on standard error, which is a terminal, and which is a pipe."""
    pairs = [pty.openpty(), os.pipe()]
    words = [sys.executable, "-c", DRIVER, pause, *(str(writer) for _, writer in pairs)]
    done = subprocess.run(words, capture_output=True, pass_fds=[two for _, two in pairs], text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("2 3\n" * 2, "")
    for _, writer in pairs:
        os.close(writer)
    return [everything(reader) for reader, _ in pairs]


def everything(reader: int) -> str:
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
    terminal, pipe = said_on_each("0.4")
    assert terminal.splitlines() == ["dphmm: compiling once for this machine, some seconds: <lambda>; it is kept"]
    assert pipe == ""


def test_nobody_is_told_of_loops_that_are_there_at_once(caplog, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(compilation, "_PATIENCE_S", 600.0)
    with caplog.at_level(logging.INFO, logger="dphmm.compilation"):
        assert compilation.compiled(lambda x: x + 2)(1) == 3
    assert not caplog.records


def test_where_compiled_code_cannot_be_kept_that_is_said(caplog):
    with caplog.at_level(logging.INFO, logger="dphmm.compilation"):
        compilation._say_so("loop", False)
    assert "at every start: loop; to keep it, set NUMBA_CACHE_DIR" in caplog.text
