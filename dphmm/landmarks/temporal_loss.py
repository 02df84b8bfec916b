"""What releases tell of all landmarks together with each timestamp, when successive data are correlated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.landmarks.between import losses_from
from dphmm.landmarks.bridge import MOST_STATES, Steps
from dphmm.landmarks.budget import budgets_over
from dphmm.landmarks.timestamps import timeline
from dphmm.leakage import LossFunction, account
from dphmm.leakage import backward as backward_leakage
from dphmm.leakage import forward as forward_leakage
from dphmm.leakage.transition import is_matrix
from dphmm.stochastic import SMALLEST_PROBABILITY, MatrixLike, as_stochastic

MatricesByTime = MatrixLike | Iterable[MatrixLike | None] | None
"""One matrix for every step, or one for each of the T - 1 steps in order of time; None where nothing is known."""


@checked
def leakage(
    timestamps: npt.ArrayLike,
    landmarks: npt.ArrayLike,
    epsilons: npt.ArrayLike,
    backward: MatricesByTime = None,
    forward: MatricesByTime = None,
) -> FloatArray:
    """What the releases say of all landmarks together with each timestamp: an upper bound on their joint leakage.

    The joint leakage of ``L ∪ {t}`` is the largest log ratio of the probabilities of all releases under any two
    assignments of states to these times. It is at most the sum of

    * the backward leakage into the first member, and the forward leakage into the last one (Cao et al., TKDE 2019);
    * the budgets of the members;
    * between any two successive members, what the releases there tell of both. These are seen through the *bridge*: the
      states in between given both ends, which can be spread far more widely than the rows of either matrix.

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilons
        ``(T,)``, what each timestamp's release tells of any two states; zero where nothing is read from the data.
    backward, forward
        What the adversary knows of the step back and the step forth: a row-stochastic matrix for all steps, dense or
        sparse, one for each of the ``T - 1`` steps in order of time (`dphmm.markov.reverses` makes the backward ones),
        or None for nothing. Both describe one chain; bridges are made of the forward matrices, or of the backward ones
        where there are no others. A side that is left out counts as unknown: its leakage into the first or last member
        is zero.

    Returns
    -------
    FloatArray
        ``(T,)``, at most the sum of all budgets. Without any matrix, the sums that the soundness of a scheme bounds.

    Raises
    ------
    BudgetError
        For budgets that are negative or not finite, or whose number is not ``T``.
    StochasticError, InvalidInputError
        When a matrix is none, or matrices differ in size or number from what is needed.

    Notes
    -----
    `paper_leakage` is the sum that the landmark paper states, which is no bound.

    A single release between two members goes through the bridge itself up to 16 states and 8 steps to either side. Of
    several releases, or more states, recursions bound what is told of both ends (`dphmm.landmarks.bridge`), less
    tightly with matrices that change with time; above 256 states the sum of the budgets in between does.

    Examples
    --------
    >>> leakage([1, 2, 3], [2], [0.5, 0.5, 0.5]).tolist()
    [1.0, 0.5, 1.0]
    >>> nearly_still = [[0.9998, 0.0002], [0.9881, 0.0119]]
    >>> leakage([1, 2, 3], [1, 3], [0, 0.3, 0], nearly_still, nearly_still)[0].round(7).item()
    0.1362494
    """
    line = timeline(timestamps, landmarks)
    budgets = budgets_over(line, epsilons)
    size, marks = len(line), line.indices
    past, future = _known(backward, "backward"), _known(forward, "forward")
    if marks.size == 0:
        alone = account(_part(past, 0, size - 1), _part(future, 0, size - 1), budgets)
        return np.asarray(np.minimum(alone.temporal, budgets.sum()))
    if not (future is None or _is_one(future)):
        future = list(future)
    elif future is None and not (past is None or _is_one(past)):
        past = list(past)
    steps = _steps(past, future, size - 1)
    first, final = int(marks[0]), int(marks[-1])
    before = backward_leakage(_part(past, 0, first), budgets[: first + 1]) - budgets[: first + 1]
    after = forward_leakage(_part(future, final, size - 1), budgets[final:]) - budgets[final:]

    def run(start: int, stop: int) -> FloatArray:
        """What is told of both a landmark and each time from there to ``stop``, by what lies strictly between."""
        sign = 1 if start <= stop else -1
        part = budgets[np.arange(start, stop + sign, sign)]
        independent = past is None and future is None
        return np.zeros(len(part)) if independent else losses_from(part, steps, start, sign)

    gaps = [(a, b, run(a, b), run(b, a)[::-1]) for a, b in pairwise(marks.tolist())]
    through = np.cumsum([0.0, *(min(left[-1], right[0]) for _, _, left, right in gaps)])
    own = float(budgets[marks].sum())
    found = np.full(size, own + before[first] + through[-1] + after[0])
    # A regular timestamp is a member beside the landmarks, and divides the stretch that it lies in.
    found[:first] = own + (budgets[: first + 1] + before + run(first, 0)[::-1])[:-1] + through[-1] + after[0]
    for (a, b, left, right), upto, beyond in zip(gaps, through, through[-1] - through[1:], strict=False):
        within = (budgets[a : b + 1] + left + right)[1:-1]
        found[a + 1 : b] = own + before[first] + upto + within + beyond + after[0]
    found[final + 1 :] = own + before[first] + through[-1] + (run(final, size - 1) + budgets[final:] + after)[1:]
    return np.asarray(np.minimum(found, budgets.sum()))


def _known(knowledge: MatricesByTime, name: str) -> Any:
    """One matrix, checked; or an iterator of several, as they come; or None."""
    if isinstance(knowledge, LossFunction):
        raise InvalidInputError(f"{name} is a loss function; give the matrix, of which bridges are made")
    several = isinstance(knowledge, Sequence) and len(knowledge) == 0
    if knowledge is None or several or not is_matrix(knowledge):
        return knowledge if knowledge is None else iter(cast(Iterable[Any], knowledge))
    return as_stochastic(cast(MatrixLike, knowledge), f"{name} matrix", smallest=SMALLEST_PROBABILITY)


def _is_one(knowledge: Any) -> bool:
    return isinstance(knowledge, np.ndarray) or sparse.issparse(knowledge)


def _part(knowledge: Any, start: int, stop: int) -> Any:
    """What is known of the steps from one time to another."""
    if knowledge is None or start == stop:
        return None
    return knowledge if _is_one(knowledge) else islice(iter(knowledge), start, stop)


def _steps(past: Any, future: Any, count: int) -> Steps | None:
    """The matrices that bridges are made of; None where there is none, or there are too many states."""
    name, given = ("backward", past) if future is None else ("forward", future)
    if given is None or count == 0:
        return None
    one = _is_one(given)
    if not one and len(given) != count:
        raise InvalidInputError(f"{name}: {len(given)} matrices for {count + 1} times; give {count}, one for each step")
    matrices = [given] if one else [None if m is None else as_stochastic(m, f"{name} matrix") for m in given]
    sizes = {m.shape[0] for m in matrices if m is not None} | ({past.shape[0]} if _is_one(past) else set())
    if len(sizes) > 1:
        raise StochasticError(f"matrices have {' and '.join(map(str, sorted(sizes)))} states; give those of one chain")
    if not sizes or (states := sizes.pop()) > MOST_STATES:
        return None
    dense: list[Any] = [np.ones((states, states)) if m is None else m for m in matrices]
    dense = [cast(Any, m).toarray() if sparse.issparse(m) else m for m in dense]
    if future is None:  # Pr(before | after) as the weight of a step from before to after
        dense = [m.T for m in dense]
    return Steps(dense[0] if one else dense)
