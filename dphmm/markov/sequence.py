"""From trajectories to the state sequences that a model is learned from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import IntArray
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import Trajectory, microseconds


@checked
def state_sequence(
    trajectory: Trajectory, space: StateSpace, step_seconds: float, gap_seconds: float | None = None
) -> tuple[IntArray, IntArray]:
    """Slot numbers and states of a trajectory on the clock of `dphmm.space.Trajectory.resample`.

    Parameters
    ----------
    trajectory
        Where the person was.
    space
        The states.
    step_seconds
        The step of the clock.
    gap_seconds
        A person who is seen again within this time is taken to have stayed in the earlier state until then, and the
        empty slots are filled with it; a longer gap cuts the sequence. Left out, one step: nothing is filled.

    Returns
    -------
    slots, states
        Shape ``(n,)`` each; a state of -1 is a place outside the space.

    Raises
    ------
    ConfigurationError
        When the step or the gap is not a positive, finite number of seconds.
    """
    slotted = trajectory.resample(step_seconds)
    slots, states = slotted.slots, space.locate(slotted.latitude, slotted.longitude)
    if gap_seconds is None:
        return slots, states
    held = microseconds(gap_seconds, "gap") // microseconds(step_seconds, "step")
    lengths = np.append(np.where(slotted.steps <= held, slotted.steps, 1), 1)
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    filled: IntArray = np.repeat(slots, lengths) + np.arange(lengths.sum()) - first
    return filled, np.repeat(states, lengths)


@checked
def state_sequences(
    trajectories: Iterable[Trajectory], space: StateSpace, step_seconds: float, gap_seconds: float | None = None
) -> list[tuple[IntArray, IntArray]]:
    """`state_sequence` of each trajectory."""
    return [state_sequence(trajectory, space, step_seconds, gap_seconds) for trajectory in trajectories]
