"""The examples of the documentation are what the package prints."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_examples_of_the_leakage_page_hold():
    page = Path(__file__).parents[2] / "docs" / "leakage.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 3
    assert failed == 0
