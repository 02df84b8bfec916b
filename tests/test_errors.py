"""Errors: one line for every argument, and unchanged by transfer between processes."""

from __future__ import annotations

import inspect
import pickle

import pytest

from dphmm import errors
from dphmm.errors import (
    DataFileError,
    DphmmError,
    EmptyDataError,
    MissingDependencyError,
    NotRecordingError,
)

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DphmmError)]
ARGUMENTS = {
    DataFileError: ("a.csv", "is bad", 7),
    EmptyDataError: ("a.csv", "is empty", 7),
    NotRecordingError: ("a.csv", "is a picture", 7),
    MissingDependencyError: ("pyarrow", "files"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_error_is_unchanged_by_pickle(kind):
    error = kind(*ARGUMENTS.get(kind, ("what was found",)))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (kind, str(error), vars(error))


@pytest.mark.parametrize("kind", KINDS)
def test_message_is_one_printable_line(kind):
    evil = "eve\x1b[2J\r\n  bob: 0\x9b\u202e\ud800\x00 né 中"
    message = str(kind(*(evil for _ in ARGUMENTS.get(kind, ("one",))[:2])))
    assert "\n" not in message
    assert message.replace(" ", "").isprintable()
    message.encode("utf-8")
    assert "eve\\u001b[2J bob: 0" in message
    assert "né 中" in message


def test_long_message_keeps_beginning_and_end():
    message = str(DataFileError("a.csv", f"has no column {'x' * 100_000}; name it"))
    assert len(message) < 2000
    assert message.startswith("a.csv: has no column xxx")
    assert message.endswith("x; name it")
