"""Tests of Ctrl-C at any time: exit code 130 and no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sizes import slow

PROGRAM = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Interrupting(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
            except KeyboardInterrupt:
                if {converted}:
                    raise ImportError("the core of it failed to import") from None
                raise
        return None

sys.meta_path.insert(0, Interrupting())
sys.argv = ["dphmm", "release", "walk.csv", "--model", "m.npz", "--policy", "complete", "--epsilon", "1", "-o", "o.csv"]
from dphmm.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "converted"),
    [
        ("click", False), ("dphmm.cli.release", True), ("numpy", True), ("scipy.sparse", False), ("pyproj", True),
        slow("click", True), slow("dphmm.cli.release", False), slow("numpy", False), slow("scipy.sparse", True),
        slow("pyproj", False),
    ],
)  # fmt: skip
def test_interrupt_during_import_exits_with_130_and_no_output(world, module, converted):
    """Some libraries convert an interrupt of their import into another error (``converted``)."""
    program = PROGRAM.format(module=module, converted=converted)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
    assert not (world / "o.csv").exists()
