"""What was last heard from a person's phone and what became of it, for the person's own page.

Why a place has no release may tell where the person is, so it is kept in memory alone, as long as the process lives,
and is neither counted, logged nor stored. A place was ``released``, or its time step had a release (``again``); nothing
was drawn, and readers are told a prediction (``withheld``) or nothing (``limit``); it was ``late``, before the last
release, ``outside`` the region, ``ahead`` of the clock, or ``refused``, as the model was learned from the person. What
is seen without looking at a place, the store knows too: see `RecipientTables.heard`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dphmm.errors import BudgetExceededError, OmittedError, TimeOrderError
from dphmm.release.trajectory import TimedRelease
from dphmm.tables import iso_time


@dataclass(frozen=True)
class Heard:
    """The last thing that was heard of a phone.

    Parameters
    ----------
    at
        When it came, in seconds since 1970.
    time
        The time of the place in it, ISO 8601; empty where there was none.
    became
        What became of it.
    """

    at: int
    time: str
    became: str

    def to_json(self) -> dict[str, Any]:
        """As the page's script reads it."""
        return asdict(self)


def what_became(release: TimedRelease | None, problem: Exception | None, is_new: bool) -> str:
    """What became of a place that was not refused at once.

    Parameters
    ----------
    release
        What was released of its time step, None where nothing was.
    problem
        What was raised instead.
    is_new
        Whether the release was made now.
    """
    if release is not None:
        return "again" if not is_new else "withheld" if release.record.withheld else "released"
    if isinstance(problem, BudgetExceededError):
        return "limit"
    if isinstance(problem, TimeOrderError) and not isinstance(problem, OmittedError):
        return "late"
    return "outside"


def heard(at: int, time: np.datetime64 | None, became: str) -> Heard:
    """What was heard, its time as text."""
    return Heard(at, "" if time is None else iso_time(time), became)
