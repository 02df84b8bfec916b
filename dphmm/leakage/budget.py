"""Budgets that keep temporal privacy leakage at a level α (α-DP_T), for one user and for many.

Both of the paper's algorithms come down to one number: the ε with ``sup_B(ε) + sup_F(ε) − ε = α``, where sup is what
leakage tends to under ε (Theorem 11). It is the constant budget of Algorithm 7, and the middle budget of Algorithm 8,
whose first and last budgets are ``sup_B(ε)`` and ``sup_F(ε)``. The left side grows strictly from 0, so that there is
exactly one such ε, unless two rows of a matrix have disjoint supports: then there is none.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, check_epsilon
from dphmm.errors import CorrelationTooStrongError, InvalidInputError
from dphmm.leakage.loss_function import Knowledge, LossFunction
from dphmm.leakage.stream import as_loss_functions, by_user

_SAFE_SIDE = 1 - 1e-12
"""The share of α that is aimed at, so that rounding does not carry leakage past α."""


@dataclass(frozen=True)
class SharedBudget:
    """Budgets that keep every user's leakage at or under α.

    Parameters
    ----------
    budgets : FloatArray
        ``(1,)`` the constant budget, or ``(T,)`` one for each time: at each the least of the users' own.
    tightest
        The user with the least budget (of constant ones, or of those for the middle times).
    by_user
        Each user's own budgets, in the same form.
    composed
        User → why no budget that is spent for ever keeps their leakage at α: these have ``α / T`` each, whose sum is
        all that any correlation can make of them (Corollary 1).
    """

    budgets: FloatArray
    tightest: Hashable
    by_user: Mapping[Hashable, FloatArray]
    composed: Mapping[Hashable, str] = field(default_factory=dict)


@checked
def constant_budget(backward: Knowledge, forward: Knowledge, alpha: float) -> float:
    """The largest ε which, spent at every time of a stream of any length, keeps temporal leakage at most α.

    Parameters
    ----------
    backward, forward
        What the adversary knows: a matrix (dense or scipy sparse), a `LossFunction`, or None.
    alpha
        The level to keep, positive and finite.

    Returns
    -------
    float
        In ``(0, alpha]``, smaller than the exact root by a relative 1e-12 of α at most, so that rounding stays on the
        safe side.

    Raises
    ------
    CorrelationTooStrongError
        When two rows of a matrix have disjoint supports, so that leakage grows without bound under any ε.
    StochasticError
        When a matrix is not row-stochastic, or the two differ in size.
    BudgetError
        When α is not positive and finite.

    Notes
    -----
    Algorithm 7 of the TPL paper, which as printed does not end where there is no budget, and rarely otherwise, as it
    asks two floats to be equal. Both suprema count: with one of them left out the result exceeds α.

    Examples
    --------
    >>> round(constant_budget([[.8, .2], [.2, .8]], [[.8, .2], [.1, .9]], 1), 6)
    0.203872
    """
    past, future = as_loss_functions(backward, forward)
    level = check_epsilon(alpha, "alpha")
    return _balance(past, future, level)


@checked
def exact_budgets(backward: Knowledge, forward: Knowledge, alpha: float, steps: int) -> FloatArray:
    """Budgets for T releases that make temporal leakage equal to α at every time.

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
    Algorithm 8 of the TPL paper; its two equations (26) and (27) together are the equation of `constant_budget`, so
    the search needs one unknown only.

    Examples
    --------
    >>> exact_budgets([[.8, .2], [.2, .8]], [[.8, .2], [.1, .9]], 1, 4).round(6)
    array([0.499806, 0.203872, 0.203872, 0.704066])
    """
    past, future = as_loss_functions(backward, forward)
    level = check_epsilon(alpha, "alpha")
    if steps < 1:
        raise InvalidInputError(f"steps is {steps}; give at least 1")
    if steps == 1:
        return np.array([level])
    epsilon = _balance(past, future, level)
    budgets = np.full(steps, epsilon)
    budgets[0], budgets[-1] = past.supremum(epsilon).value, future.supremum(epsilon).value
    return budgets


@checked
def shared_budget(
    users: Mapping[Any, tuple[Knowledge, Knowledge]], alpha: float, steps: int | None = None
) -> SharedBudget:
    """Budgets that serve all users, each with matrices of their own.

    Parameters
    ----------
    users
        Name → (backward, forward) knowledge about that user.
    alpha
        The level to keep for everyone.
    steps
        Number of releases; None (unknown) for a constant budget.

    Returns
    -------
    SharedBudget
        Leakage never falls when a budget rises, so the least of the users' budgets at each time keeps everyone at or
        under α. A user of whom two rows have disjoint supports has ``α / T`` at each of T times, which no correlation
        carries past α.

    Raises
    ------
    CorrelationTooStrongError
        As `constant_budget`, without a number of releases; where there are several users, the message names one.
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

    def budgets_of(backward: Knowledge, forward: Knowledge) -> tuple[FloatArray, str | None]:
        if steps is None:
            return np.array([constant_budget(backward, forward, alpha)]), None
        try:
            return exact_budgets(backward, forward, alpha, steps), None
        except CorrelationTooStrongError as problem:
            return np.full(steps, alpha / steps * _SAFE_SIDE), str(problem).partition(";")[0]

    found = by_user(users, budgets_of)
    own = {name: budgets for name, (budgets, _) in found.items()}
    composed = {name: why for name, (_, why) in found.items() if why is not None}
    budgets = np.min(list(own.values()), axis=0)
    return SharedBudget(budgets, min(own, key=lambda name: float(own[name].min())), own, composed)


def _balance(past: LossFunction, future: LossFunction, alpha: float) -> float:
    """The largest float ε with ``sup_B(ε) + sup_F(ε) − ε`` at most α, by bisection down to neighbouring floats."""
    for function, side in ((past, "backward"), (future, "forward")):
        if function.is_identity:
            q, d = function.rows[-1]
            raise CorrelationTooStrongError(
                f"no constant budget keeps leakage at {alpha}: rows {q} and {d} of the {side} matrix have disjoint "
                "supports, so leakage grows by epsilon at every step; for T steps spend alpha / T each"
            )

    def level(epsilon: float) -> float:
        return past.supremum(epsilon).value + (future.supremum(epsilon).value - epsilon)

    if level(alpha) <= alpha:
        return alpha
    low, high = 0.0, alpha
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (middle, high) if level(middle) <= alpha * _SAFE_SIDE else (low, middle)
    if low <= 0 or not math.isfinite(level(low)):
        raise CorrelationTooStrongError(
            f"no constant budget keeps leakage at {alpha}: the matrices are so near to certainty that it would be "
            "below the smallest float; raise their smallest probabilities"
        )
    return low
