"""One hostile input: made from its number, given to its reader, and what became of it."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from dphmm.errors import DphmmError

Seed = tuple[str, bytes]
"""The name of a file, and its content."""

ACCEPTED, REFUSED = "accepted", "refused"
_LONGEST = 8000
"""A refusal of more characters is not one line."""


class Target(NamedTuple):
    """A reader or a command under attack.

    Attributes
    ----------
    seeds
        Makes names of files with valid content; the name stays.
    change
        A content and a source of chances → a hostile content.
    use
        Reads the file of the path, and does with what it read what its callers do.
    """

    seeds: Callable[[], list[Seed]]
    change: Callable[[bytes, Random], bytes]
    use: Callable[[Path], object]


class Outcome(NamedTuple):
    """What became of an input.

    Attributes
    ----------
    kind
        ``"accepted"``, ``"refused"`` in one line by an error of the package, or what went wrong and where.
    detail
        A traceback, where something went wrong.
    """

    kind: str
    detail: str = ""


def hostile(target: Target, name: str, seed: int, number: int) -> tuple[str, bytes]:
    """The input of a number: the name of its file, and its content; the same at every call."""
    rng = Random(f"{seed}/{name}/{number}")
    file, data = rng.choice(target.seeds())
    return file, target.change(data, rng)


def attempt(target: Target, file: str, data: bytes, folder: Path) -> Outcome:
    """Give an input to its reader. A warning counts as a failure: at the command it would be two lines of nobody's."""
    path = folder / file
    path.write_bytes(data)
    return judged(lambda: target.use(path))


def judged(use: Callable[[], object]) -> Outcome:
    """What became of a call."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            use()
        except DphmmError as problem:
            said = str(problem)
            if "\n" in said or not said or len(said) > _LONGEST:
                return Outcome(f"a refusal of {len(said)} characters in {said.count(chr(10)) + 1} lines", said[:2000])
            return Outcome(REFUSED)
        except BaseException as problem:
            if isinstance(problem, KeyboardInterrupt):
                raise
            where = getattr(problem, "kind", None) or f"{type(problem).__name__} in {_where(problem)}"
            return Outcome(where, traceback.format_exc(limit=-12)[:6000])
    return Outcome(ACCEPTED)


def _where(problem: BaseException) -> str:
    """The innermost line of the package that an error passed through."""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if "/dphmm/" in frame.filename]
    if not frames:
        return "the fuzzer"
    return f"{frames[-1].filename.rpartition('/dphmm/')[2]}:{frames[-1].lineno}"
