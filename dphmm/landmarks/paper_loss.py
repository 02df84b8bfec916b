"""The temporal loss as the landmark paper states it, which bounds nothing: kept for comparison with the paper."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.landmarks.budget import budgets_over
from dphmm.landmarks.timestamps import timeline
from dphmm.leakage.loss_function import Knowledge, LossFunction, as_loss_function


@checked
def paper_leakage(
    timestamps: npt.ArrayLike,
    landmarks: npt.ArrayLike,
    epsilons: npt.ArrayLike,
    backward: Knowledge = None,
    forward: Knowledge = None,
) -> FloatArray:
    """The paper's ``alpha_t``: not what the releases say of all landmarks together; that is `dphmm.landmarks.leakage`.

    For every ``i`` in ``L ∪ {t}`` the backward leakage comes from the releases after the previous member of
    ``L ∪ {t}`` up to ``i``, the forward leakage from those from ``i`` up to before the next member, and
    ``alpha_i = BPL_i + FPL_i - eps_i``; ``alpha_t`` is the sum of the ``alpha_i`` (Katsomallos, Tzompanaki and
    Kotzinos, *Landmark Privacy*, CODASPY 2022; the leakages as in Cao et al., TKDE 2018).

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

    Notes
    -----
    Erratum: the sum is no bound on the joint leakage of ``L ∪ {t}``. A release between two members is seen through the
    states that both ends allow in between, of which the leakage of either end alone knows nothing. In the stationary
    chain ``[[.9998, .0002], [.9881, .0119]]`` one release of 0.3 between two landmarks tells 0.1362 of both; the
    paper's sum is 0.0082.

    Examples
    --------
    >>> nearly_still = [[0.9998, 0.0002], [0.9881, 0.0119]]
    >>> paper_leakage([1, 2, 3], [1, 3], [0, 0.3, 0], nearly_still, nearly_still)[0].round(4).item()
    0.0082
    """
    line = timeline(timestamps, landmarks)
    budgets = budgets_over(line, epsilons)
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
