"""Budgets that keep temporal privacy leakage at most α (α-DP_T), for one or many users.

Both of the paper's algorithms need one number: the ε with ``sup_B(ε) + sup_F(ε) − ε = α``, where sup is the limit of
leakage under a constant ε (Theorem 11). It is the constant budget of Algorithm 7 and the middle budget of Algorithm 8.
The first and last budgets of Algorithm 8 are ``sup_B(ε)`` and ``sup_F(ε)``. The left side increases strictly from 0.
Therefore exactly one such ε exists, unless two rows of a matrix have disjoint supports; then none exists.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import CorrelationTooStrongError
from dphmm.leakage.loss_function import Knowledge, LossFunction
from dphmm.leakage.stream_leakage import apply_to_users, as_loss_functions
from dphmm.validation import Epsilon, PositiveInt, check_arguments

# Budgets aim at this fraction of α, so that rounding does not raise leakage above α.
_TARGET_FRACTION = 1 - 1e-12


@dataclass(frozen=True)
class SharedBudget:
    """Budgets that keep every user's leakage at most α.

    Parameters
    ----------
    budgets : FloatArray
        ``(1,)`` constant budget, or ``(T,)`` one budget per time. Each is the minimum over the users.
    tightest
        The user with the smallest budget at any time.
    by_user
        Budgets of each user, in the same form as `budgets`.
    composed
        User → reason why no constant budget keeps their leakage at α. These users get ``α / T`` at each time. The sum
        of their budgets bounds their leakage under any correlation (Corollary 1).
    """

    budgets: FloatArray
    tightest: Hashable
    by_user: Mapping[Hashable, FloatArray]
    composed: Mapping[Hashable, str] = field(default_factory=dict)


@check_arguments
def constant_budget(backward: Knowledge, forward: Knowledge, alpha: Epsilon) -> float:
    """Return the largest constant ε that keeps temporal leakage at most α.

    The bound applies to streams of any length.

    Parameters
    ----------
    backward, forward
        Matrices that the adversary knows: a matrix (dense or scipy sparse), a `LossFunction`, or None.
    alpha
        Bound on the leakage, positive and finite.

    Returns
    -------
    float
        In ``(0, alpha]``. It is below the exact root by at most a relative 1e-12 of α, so that rounding does not
        exceed α.

    Raises
    ------
    CorrelationTooStrongError
        When two rows of a matrix have disjoint supports. Leakage then grows without bound under any ε.
    StochasticError
        When a matrix is not row-stochastic, or the two differ in size.
    BudgetError
        When α is not positive and finite.

    Notes
    -----
    Algorithm 7 of the TPL paper. As printed, it does not terminate if no budget exists, and rarely terminates
    otherwise, because it tests two floats for equality. Both suprema are needed: without one, the result exceeds α.

    Examples
    --------
    >>> round(constant_budget([[.8, .2], [.2, .8]], [[.8, .2], [.1, .9]], 1), 6)
    0.203872
    """
    past, future = as_loss_functions(backward, forward)
    level = float(alpha)
    return _find_largest_budget(past, future, level)


@check_arguments
def exact_budgets(backward: Knowledge, forward: Knowledge, alpha: Epsilon, steps: PositiveInt) -> FloatArray:
    """Return budgets for T releases under which temporal leakage is α at every time.

    Parameters
    ----------
    backward, forward, alpha
        As `constant_budget`.
    steps
        Number of releases T, at least 1.

    Returns
    -------
    FloatArray
        ``(T,)``: ``sup_B(ε), ε, …, ε, sup_F(ε)`` with the ε of `constant_budget`; ``[alpha]`` for one step.

    Raises
    ------
    CorrelationTooStrongError
        When T > 1 and two rows of a matrix have disjoint supports.
    StochasticError, BudgetError
        As `constant_budget`.
    InvalidInputError
        When ``steps`` is less than 1.

    Notes
    -----
    Algorithm 8 of the TPL paper. Its equations (26) and (27) together are the equation of `constant_budget`.
    Therefore the search has a single unknown.

    Examples
    --------
    >>> exact_budgets([[.8, .2], [.2, .8]], [[.8, .2], [.1, .9]], 1, 4).round(6)
    array([0.499806, 0.203872, 0.203872, 0.704066])
    """
    past, future = as_loss_functions(backward, forward)
    level = float(alpha)
    if steps == 1:
        return np.array([level])
    epsilon = _find_largest_budget(past, future, level)
    budgets = np.full(steps, epsilon)
    budgets[0], budgets[-1] = past.supremum(epsilon).value, future.supremum(epsilon).value
    return budgets


@check_arguments
def shared_budget(
    users: Mapping[Any, tuple[Knowledge, Knowledge]], alpha: Epsilon, steps: PositiveInt | None = None
) -> SharedBudget:
    """Return budgets that keep the leakage of every user at most α.

    Parameters
    ----------
    users
        Name → (backward, forward) matrices of that user.
    alpha
        Bound on the leakage of every user.
    steps
        Number of releases. None (unknown) gives a constant budget.

    Returns
    -------
    SharedBudget
        The minimum over the users at each time. Leakage is non-decreasing in every budget, so this minimum keeps the
        leakage of every user at most α. A user with two rows of disjoint supports gets ``α / T`` at each of T times.
        Their sum is α, the most that any correlation can disclose.

    Raises
    ------
    CorrelationTooStrongError
        As `constant_budget`, if ``steps`` is None. If there are several users, the message names one.
    StochasticError, BudgetError
        As `exact_budgets`, with the user's name.
    InvalidInputError
        When there are no users, or ``steps`` is less than 1.

    Examples
    --------
    >>> weak, strong = [[.6, .4], [.4, .6]], [[.9, .1], [.1, .9]]
    >>> shared = shared_budget({"ann": (weak, weak), "bob": (strong, strong)}, 1.0)
    >>> shared.tightest, shared.budgets.round(4).tolist()
    ('bob', [0.1157])
    """

    def compute_budgets(backward: Knowledge, forward: Knowledge) -> tuple[FloatArray, str | None]:
        if steps is None:
            return np.array([constant_budget(backward, forward, alpha)]), None
        try:
            return exact_budgets(backward, forward, alpha, steps), None
        except CorrelationTooStrongError as problem:
            return np.full(steps, alpha / steps * _TARGET_FRACTION), str(problem).partition(";")[0]

    outcomes = apply_to_users(users, compute_budgets)
    budgets_by_user = {name: budgets for name, (budgets, _) in outcomes.items()}
    composed = {name: why for name, (_, why) in outcomes.items() if why is not None}
    budgets = np.min(list(budgets_by_user.values()), axis=0)
    return SharedBudget(
        budgets, min(budgets_by_user, key=lambda name: float(budgets_by_user[name].min())), budgets_by_user, composed
    )


def _find_largest_budget(past: LossFunction, future: LossFunction, alpha: float) -> float:
    """Return the largest float ε with ``sup_B(ε) + sup_F(ε) − ε`` at most α, by bisection."""
    for function, side in ((past, "backward"), (future, "forward")):
        if function.is_identity:
            q, d = function.rows[-1]
            raise CorrelationTooStrongError(
                f"no constant budget keeps leakage at {alpha}: rows {q} and {d} of the {side} matrix have disjoint "
                "supports, so leakage grows by epsilon at every step; spend alpha / T at each of T steps"
            )

    def compute_supremum(epsilon: float) -> float:
        return past.supremum(epsilon).value + (future.supremum(epsilon).value - epsilon)

    if compute_supremum(alpha) <= alpha:
        return alpha
    low = 0.0
    high = alpha
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (middle, high) if compute_supremum(middle) <= alpha * _TARGET_FRACTION else (low, middle)
    if low <= 0 or not math.isfinite(compute_supremum(low)):
        raise CorrelationTooStrongError(
            f"no constant budget keeps leakage at {alpha}: the matrices are so nearly deterministic that the budget "
            "would be below the smallest float; raise their smallest probabilities"
        )
    return low
