"""What `dphmm.markov` exports."""

from __future__ import annotations

import inspect
from pathlib import Path

from dphmm import markov


def test_all_lists_what_is_public_and_nothing_shadows_a_module():
    modules = {path.stem for path in Path(markov.__file__).parent.glob("*.py")}
    assert not modules & set(markov.__all__)
    public = {name for name, value in vars(markov).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public - {"annotations"} == set(markov.__all__)
