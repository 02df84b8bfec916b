"""Tests of summaries in metres and odds, and of thresholds at exact values."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dphmm.audit.sequence import Thresholds, summarize_inference
from dphmm.errors import ConfigurationError


def make_knowledge(errors, bests):
    return SimpleNamespace(error=np.array(errors), top_1_probability=np.array(bests))


AUDIT = SimpleNamespace(
    user="ann",
    auxiliary_knowledge="the model",
    prior_metrics=make_knowledge([5.7, 5.7], [0.1, 0.1]),
    filtered_metrics=make_knowledge([0.9, 0.5], [0.3, 0.5]),
    smoothed_metrics=make_knowledge([0.4, 0.5], [0.75, 0.5]),
)


@pytest.mark.parametrize(
    ("minimum", "maximum", "count"),
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
def test_thresholds_may_be_reached_but_not_exceeded(minimum, maximum, count):
    assert len(Thresholds(minimum, maximum).violations(AUDIT)) == count


def test_violation_names_its_timestep():
    (nearer,) = Thresholds(0.45).violations(AUDIT)
    assert nearer.startswith("given all releases, the expected error is 400 m at timestep 1, below 450 m")
    assert "at 50% of the timesteps" in nearer
    summary = summarize_inference(AUDIT)
    assert (
        "5.7 km without releases, 700 m given past releases, 450 m given all releases. "
        "The minima are 5.7 km, 500 m, 400 m." in summary
    )
    assert "1 to 9 without releases, 1 to 1 given past releases, 3 to 1 given all releases" in summary


@pytest.mark.parametrize(
    ("minimum", "maximum"), [(0.0, None), (-1.0, None), (float("inf"), None), (None, 0.0), (None, 1.0)]
)
def test_invalid_thresholds_raise(minimum, maximum):
    with pytest.raises(
        ConfigurationError, match=f"{'min_adversary_error' if maximum is None else 'max_posterior'} must be"
    ):
        Thresholds(minimum, maximum)
