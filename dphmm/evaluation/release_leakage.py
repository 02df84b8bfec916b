"""What the releases of a trajectory leak through time, under the model they were made with."""

from __future__ import annotations

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import InvalidInputError, TimeOrderError
from dphmm.leakage import Leakage, account
from dphmm.markov import reverses
from dphmm.markov.model import MarkovModel
from dphmm.writers.table import ReleaseTable


def leakage_of_releases(model: MarkovModel, table: ReleaseTable, user: str) -> tuple[Leakage, FloatArray]:
    """Backward, forward and temporal privacy leakage of one person's releases, at every step of the clock.

    What a release at time t may tell about *any* two possible states is bounded by ``constrained_factor * epsilon``
    (Theorem 6.3), not by epsilon, which is about the policy's edges alone; that product is the budget of the time.
    Steps of the clock without a release have the budget 0: the adversary's knowledge still moves through them.

    The figure is about single moments (event level) and about an adversary who knows exactly this model: its transition
    matrix forwards, and by Bayes' rule from its initial distribution backwards, time by time. It is an upper bound on
    the log ratio of the densities of all these releases together under any two states of one moment. It says nothing of
    an adversary with other knowledge, nor of whole trajectories: for those see `Leakage.user_level`.

    Parameters
    ----------
    model
        The model; it must know its step.
    table
        Releases, of any number of people.
    user
        Whose releases to account for.

    Returns
    -------
    leakage
        One entry per step of the clock, from the person's first release to the last.
    budgets
        The same budgets as in the leakage, 0 where nothing was released.

    Raises
    ------
    InvalidInputError
        When the model has no step, the person has no releases, or one of them can rule a possible state out: its
        constrained factor, and with it the leakage, is infinite.
    TimeOrderError
        When two releases belong to the same step of the clock.
    """
    if model.step_seconds is None:
        raise InvalidInputError("the model does not say how long a step is; learn it anew with a step")
    own = table.select(table["user"] == user)
    if not len(own):
        raise InvalidInputError(f"user {user!r} has no releases; the file has {sorted(set(table['user'].tolist()))}")
    clock = own["time"].astype("datetime64[us]").astype(np.int64) / 1e6 / model.step_seconds
    slots = np.rint(clock - clock.min()).astype(np.int64)
    if len(np.unique(slots)) < len(slots):
        raise TimeOrderError(
            f"user {user!r} has two releases within one step of {model.step_seconds:g} s; give one model step each"
        )
    costs = own["constrained_factor"].astype(np.float64) * own["epsilon"].astype(np.float64)
    if not np.isfinite(costs).all():
        time = own["time"][np.argmax(~np.isfinite(costs))]
        raise InvalidInputError(
            f"the release of user {user!r} at {time} can rule a possible state out: leakage is infinite"
        )
    budgets = np.zeros(int(slots.max()) + 1)
    budgets[slots] = costs
    backward = reverses(model.transition, model.initial, len(budgets))
    return account(backward, model.transition, budgets), budgets
