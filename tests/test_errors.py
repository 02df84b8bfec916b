"""Errors: one line whatever is put into them, and the same on the way between processes."""

from __future__ import annotations

import inspect
import pickle

import pytest

from dphmm import errors
from dphmm.errors import DataFileError, DphmmError, MissingDependencyError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DphmmError)]
ARGUMENTS = {DataFileError: ("a.csv", "is bad", 7), MissingDependencyError: ("pyarrow", "files")}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_the_same_after_its_way_from_a_worker(kind):
    error = kind(*ARGUMENTS.get(kind, ("what was found",)))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_one_line_that_a_terminal_can_be_shown(kind):
    evil = "eve\x1b[2J\r\n  bob: 0\x9b\u202e\ud800\x00 né 中"
    said = str(kind(*(evil for _ in ARGUMENTS.get(kind, ("one",))[:2])))
    assert "\n" not in said
    assert said.replace(" ", "").isprintable()
    said.encode("utf-8")
    assert "eve\\u001b[2J bob: 0" in said
    assert "né 中" in said


def test_a_very_long_message_keeps_its_beginning_and_its_remedy():
    said = str(DataFileError("a.csv", f"has no column {'x' * 100_000}; give it"))
    assert len(said) < 2000
    assert said.startswith("a.csv: has no column xxx")
    assert said.endswith("x; give it")
