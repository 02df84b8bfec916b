from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError
from dphmm.model.observed_moves import state_sequence
from dphmm.space import Places, Trajectory

SPACE = Places(["a", "b", "c"], [45.0, 45.01, 45.02], [7.0, 7.0, 7.0], within_km=0.1)


def _make_trajectory(seconds, states):
    times = np.array(seconds, dtype="int64").astype("datetime64[s]")
    latitude = [45.5 if state < 0 else SPACE.latitude[state] for state in states]
    return Trajectory("u", times, np.array(latitude), np.full(len(latitude), 7.0))


def test_gaps_are_kept_by_default():
    slots, states = state_sequence(_make_trajectory([60, 120, 300], [0, 1, -1]), SPACE, 60)
    assert (slots.tolist(), states.tolist()) == ([1, 2, 5], [0, 1, -1])


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(-1, 2)), min_size=1, max_size=12), st.integers(1, 6))
def test_short_gaps_are_filled_and_long_ones_kept(moves, held):
    seconds = np.cumsum([steps for steps, _ in moves]) * 60
    slots, states = state_sequence(_make_trajectory(seconds, [state for _, state in moves]), SPACE, 60, held * 60)
    expected = []
    for (steps, state), slot in zip(moves, np.cumsum([steps for steps, _ in moves]).tolist(), strict=True):
        if expected and steps <= held:
            expected += [(slot - steps + k, expected[-1][1]) for k in range(1, steps)]
        expected.append((slot, state))
    assert list(zip(slots.tolist(), states.tolist(), strict=True)) == expected


@pytest.mark.parametrize("gap", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_gap_seconds_raise(gap):
    with pytest.raises(ConfigurationError, match="gap_seconds must be a positive, finite number"):
        state_sequence(_make_trajectory([60], [0]), SPACE, 60, gap)
