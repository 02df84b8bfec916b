"""Verdicts in metres and odds: thresholds hold at the very figures, and what is beyond is named."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dphmm.audit.sequence import Thresholds, verdict
from dphmm.errors import ConfigurationError


def known(errors, bests):
    return SimpleNamespace(error=np.array(errors), best=np.array(bests))


AUDIT = SimpleNamespace(
    user="ann",
    knows="the model",
    uninformed=known([5.7, 5.7], [0.1, 0.1]),
    online=known([0.9, 0.5], [0.3, 0.5]),
    hindsight=known([0.4, 0.5], [0.75, 0.5]),
)


@pytest.mark.parametrize(
    ("least", "most", "count"),
    [
        (None, None, 0),
        (0.4, None, 0),
        (0.4000001, None, 1),
        (0.51, None, 2),
        (None, 0.75, 0),
        (None, 0.74, 1),
        (1, 0.1, 4),
    ],
)
def test_a_threshold_may_be_reached_and_not_passed(least, most, count):
    assert len(Thresholds(least, most).violations(AUDIT)) == count


def test_what_is_beyond_is_named_with_its_release():
    (nearer,) = Thresholds(0.45).violations(AUDIT)
    assert nearer.startswith("in hindsight the best guess is expected to be 400 m off at release 1, nearer than 450 m")
    assert "at 50% of the releases" in nearer
    said = verdict(AUDIT)
    assert "without releases 5.7 km (5.7 km), at each 700 m (500 m), in hindsight 450 m (400 m)" in said
    assert "without releases 1 to 9, at each 1 to 1, in hindsight 3 to 1" in said


@pytest.mark.parametrize(("least", "most"), [(0.0, None), (-1.0, None), (float("inf"), None), (None, 0.0), (None, 1.0)])
def test_thresholds_that_are_none_are_refused(least, most):
    with pytest.raises(ConfigurationError, match="give a"):
        Thresholds(least, most)
