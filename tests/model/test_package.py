"""Exports of `dphmm.model`."""

from __future__ import annotations

import inspect
from pathlib import Path

from dphmm import model


def test_all_matches_public_names_and_shadows_no_module():
    modules = {path.stem for path in Path(model.__file__).parent.glob("*.py")}
    assert not modules & set(model.__all__)
    public = {name for name, value in vars(model).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public - {"annotations"} == set(model.__all__)
