"""What somebody learned of a person, in metres and odds, held against what they were meant to learn at most."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.audit.metrics import Knowledge
    from dphmm.audit.sequence import SequenceAudit


@checked
@dataclass(frozen=True)
class Thresholds:
    """What releases may tell at most, at any of them and in hindsight.

    Parameters
    ----------
    least_error
        The expected distance of the best guess in the unit of the measurements, kilometres for places, that none may go
        below. Left out, it does not bind.
    most_certainty
        The probability of one state that none may go above.

    Raises
    ------
    ConfigurationError
        When the error is not positive, or the certainty not between 0 and 1.
    """

    least_error: float | None = None
    most_certainty: float | None = None

    def __post_init__(self) -> None:
        if self.least_error is not None and not 0 < self.least_error < inf:
            raise ConfigurationError(f"the least error is {self.least_error:g}; give a positive, finite length")
        if self.most_certainty is not None and not 0 < self.most_certainty < 1:
            raise ConfigurationError(
                f"the most certainty is {self.most_certainty:g}; give a probability between 0 and 1"
            )

    def beyond(self, audit: SequenceAudit) -> tuple[str, ...]:
        """What is beyond the thresholds in somebody's releases, in words; empty where nothing is."""
        said = []
        for when, known in (("at the time", audit.online), ("in hindsight", audit.hindsight)):
            if self.least_error is not None and known.error.min() < self.least_error:
                said.append(
                    f"{when} the best guess is expected to be {metres(known.error.min())} off at release "
                    f"{int(known.error.argmin()) + 1}, nearer than {metres(self.least_error)}, and nearer at "
                    f"{(known.error < self.least_error).mean():.0%} of the releases"
                )
            if self.most_certainty is not None and known.best.max() > self.most_certainty:
                said.append(
                    f"{when} one place is {known.best.max():.2f} probable at release {int(known.best.argmax()) + 1}, "
                    f"more than {self.most_certainty:g}, and so at {(known.best > self.most_certainty).mean():.0%} of "
                    "the releases"
                )
        return tuple(said)


def verdict(audit: SequenceAudit) -> str:
    """What an adversary knows of a person, in metres and odds: without releases, at each one, and in hindsight."""
    known = {"without releases": audit.uninformed, "at each": audit.online, "in hindsight": audit.hindsight}
    errors = ", ".join(
        f"{when} {metres(float(np.median(one.error)))} ({metres(one.error.min())})" for when, one in known.items()
    )
    odds = ", ".join(f"{when} {_odds(one)}" for when, one in known.items())
    return (
        f"As far as the model is right, the best guess of where {audit.user} was is expected to be so far off (median, "
        f"and least): {errors}; and the odds of the likeliest place are at most: {odds}"
    )


def metres(kilometres: float) -> str:
    """A length in kilometres as people read it.

    Examples
    --------
    >>> metres(0.3704), metres(5.72), metres(1e-9)
    ('370 m', '5.72 km', 'below 1 m')
    """
    if kilometres < 0.001:
        return "below 1 m"
    return f"{1000 * kilometres:.3g} m" if kilometres < 0.9995 else f"{kilometres:,.3g} km"


def _odds(known: Knowledge) -> str:
    most = float(known.best.max())
    if most >= 1.0 - 1e-6:
        return "beyond a million to 1"
    odds = most / (1.0 - most)
    return f"{odds:,.3g} to 1" if odds >= 1 else f"1 to {1 / odds:,.3g}"
