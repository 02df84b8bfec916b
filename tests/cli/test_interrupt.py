"""Tests of Ctrl-C at any time: exit code 130 and no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sizes import mark_slow

PROGRAM = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Interrupting(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            if {case!r} == "ignored":
                Destructor()
                return None
            try:
                interrupt()
            except KeyboardInterrupt:
                if {case!r} == "converted":
                    raise ImportError("the core of it failed to import") from None
                raise
        return None

class Destructor:
    def __del__(self):
        interrupt()

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass

sys.meta_path.insert(0, Interrupting())
sys.argv = ["dphmm", "release", "walk.csv", "--model", "m.npz", "--policy", "complete", "--epsilon", "1", "-o", "o.csv"]
from dphmm.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "case"),
    [
        ("click", "raised"), ("dphmm.cli.release", "converted"), ("numpy", "ignored"), ("pyproj", "converted"),
        mark_slow("click", "converted"), mark_slow("dphmm.cli.release", "raised"),
        mark_slow("dphmm.cli.release", "ignored"),
        mark_slow("numpy", "raised"), mark_slow("numpy", "converted"), mark_slow("scipy.sparse", "raised"),
        mark_slow("scipy.sparse", "converted"), mark_slow("pyproj", "raised"), mark_slow("pyproj", "ignored"),
    ],
)  # fmt: skip
def test_interrupt_during_import_exits_with_130_and_no_output(world, module, case):
    """Some libraries convert an interrupt, and Python ignores one in a destructor."""
    program = PROGRAM.format(module=module, case=case)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
    assert not (world / "o.csv").exists()
