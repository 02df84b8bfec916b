"""The temporal loss of each timestamp under a landmark scheme, when successive data are correlated."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import BudgetError
from dphmm.landmarks.timestamps import timeline
from dphmm.leakage.accumulate import as_budgets
from dphmm.leakage.loss_function import Knowledge, LossFunction, as_loss_function


def leakage(
    timestamps: npt.ArrayLike,
    landmarks: npt.ArrayLike,
    epsilons: npt.ArrayLike,
    backward: Knowledge = None,
    forward: Knowledge = None,
) -> FloatArray:
    """What the releases say of all landmarks together with each timestamp.

    For every ``i`` in ``L ∪ {t}`` the backward leakage comes from the releases after the previous member of
    ``L ∪ {t}`` up to ``i``, the forward leakage from those from ``i`` up to before the next member, and
    ``alpha_i = BPL_i + FPL_i - eps_i``; the loss of ``t`` is the sum of the ``alpha_i`` (Katsomallos, Tzompanaki and
    Kotzinos, *Landmark Privacy*, CODASPY 2022; the leakages as in Cao et al., TKDE 2018). Knowing the data of a member
    stops the chain there, hence the cut-offs.

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilons
        ``(T,)``, what each timestamp spends; zero where nothing is read from the data.
    backward, forward
        What the adversary knows of the step back and the step forth: a row-stochastic matrix, a
        `dphmm.leakage.LossFunction`, or ``None`` for nothing.

    Returns
    -------
    FloatArray
        ``(T,)``. Without correlation, the sums that the soundness of a scheme bounds.

    Raises
    ------
    BudgetError
        For budgets that are negative or not finite, or whose number is not ``T``.

    Examples
    --------
    >>> leakage([1, 2, 3], [2], [0.5, 0.5, 0.5]).tolist()
    [1.0, 0.5, 1.0]
    """
    line = timeline(timestamps, landmarks)
    budgets = as_budgets(epsilons)
    if budgets.shape != (len(line),):
        raise BudgetError(f"budgets have shape {budgets.shape}; give {len(line)} finite numbers that are not negative")
    # For each timestamp the last landmark before it and the first one after it; -1 and T where there is none.
    at, marks = np.arange(len(line)), np.concatenate([[-1], line.indices, [len(line)]])
    before = marks[np.searchsorted(marks, at, side="left") - 1]
    after = marks[np.searchsorted(marks, at, side="right")]
    back, back_cut = _runs(budgets, before, after, as_loss_function(backward, "backward"))
    mirrored = len(line) - 1 - after[::-1], len(line) - 1 - before[::-1]
    forth, forth_cut = _runs(budgets[::-1], *mirrored, as_loss_function(forward, "forward"))
    forth, forth_cut = forth[::-1], forth_cut[::-1]
    alone = back + forth - budgets
    together = alone[line.landmark].sum()
    # A regular timestamp is a member beside the landmarks: it cuts off the backward leakage of the next landmark and
    # the forward leakage of the one before.
    has_next, has_previous = after < len(line), before >= 0
    change = np.where(has_next, back_cut - back[np.minimum(after, len(line) - 1)], 0.0)
    change += np.where(has_previous, forth_cut - forth[np.maximum(before, 0)], 0.0)
    return np.asarray(np.where(line.landmark, together, together + alone + change))


def _runs(
    budgets: FloatArray, before: IntArray, after: IntArray, function: LossFunction
) -> tuple[FloatArray, FloatArray]:
    """Backward leakage of each timestamp since the landmark before it; and of the next landmark since the timestamp.

    All runs go at once, one step of every run at a time: as many rounds as the longest gap.
    """
    size = len(budgets)
    own, at = budgets.copy(), np.arange(size)
    for distance in range(2, int((at - before).max(initial=1)) + 1):
        there = at[at - before == distance]
        own[there] = function.steps(own[there - 1]) + budgets[there]
    cut = np.zeros(size)
    running = np.flatnonzero(after < size)
    place = running + 1
    cut[running] = budgets[place]
    while True:
        going = place < after[running]
        running, place = running[going], place[going] + 1
        if running.size == 0:
            return own, cut
        cut[running] = function.steps(cut[running]) + budgets[place]
