"""Limits on the privacy cost of a session, checked before each release."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dphmm.errors import BudgetExceededError, InvalidInputError
from dphmm.formatting import format_upper_bound
from dphmm.release.ledger import Account, constrained_cost, to_fraction
from dphmm.validation import Epsilon, PositiveInt, check_arguments, declare_setting

# Heading of the options of limits in the help.
_LIMITS = "Session and limits"


@check_arguments
@dataclass(frozen=True)
class Limits:
    """Limits on the privacy cost of a session. None means no limit.

    A limit may be reached but not exceeded.

    Parameters
    ----------
    epsilon
        Limit on the sum of all budgets, which is the level for edges of the policy (Theorem 7.1).
    constrained_epsilon
        Limit on the constrained-DP level of the whole sequence (Theorems 6.3 and 7.2).
    window_epsilon, window_steps
        Limit on the sum of the budgets within any ``window_steps`` consecutive timesteps. Both or neither.

    Raises
    ------
    BudgetError
        If a limit is not positive and finite.
    InvalidInputError
        If only one of the window's parameters is given, or its steps are not a positive integer.
    """

    epsilon: Epsilon | None = declare_setting(
        None, "With --session: limit on the total epsilon of a user.", name="limit_epsilon", heading=_LIMITS
    )
    constrained_epsilon: Epsilon | None = declare_setting(
        None,
        "With --session: limit on the constrained-DP level of a user.",
        name="limit_constrained",
        heading=_LIMITS,
    )
    window_epsilon: Epsilon | None = declare_setting(
        None,
        "With --session: limit on the epsilon of limit_window_steps timesteps.",
        name="limit_window_epsilon",
        heading=_LIMITS,
    )
    window_steps: PositiveInt | None = declare_setting(
        None,
        "Number of consecutive timesteps of limit_window_epsilon.",
        name="limit_window_steps",
        heading=_LIMITS,
    )

    def __post_init__(self) -> None:
        for name in ("epsilon", "constrained_epsilon", "window_epsilon"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))
        if (self.window_epsilon is None) != (self.window_steps is None):
            raise InvalidInputError("window_epsilon and window_steps must both be set, or neither")

    def check(self, account: Account, slot: int, epsilon: float, constrained_dp_factor: float) -> None:
        """Check that a release would not exceed a limit. Nothing is spent.

        Parameters
        ----------
        account
            Epsilon spent so far.
        slot
            Slot of the release, not before the last one of the account.
        epsilon, constrained_dp_factor
            Budget of the release, and its factor of Theorem 6.3.

        Raises
        ------
        BudgetExceededError
            If a limit would be exceeded.
        """
        if not epsilon:
            return  # the timestep is withheld
        # Compare exact decimal fractions: ten releases of 0.1 reach a limit of 1 and do not exceed it.
        requested = to_fraction(epsilon)
        _check_limit("epsilon", self.epsilon, account.epsilon, requested)
        if self.constrained_epsilon is not None:
            cost = constrained_cost(epsilon, constrained_dp_factor)
            _check_limit("constrained-DP", self.constrained_epsilon, account.constrained_epsilon, cost)
        if self.window_epsilon is not None and self.window_steps is not None:
            name = f"{self.window_steps}-step window"
            _check_limit(name, self.window_epsilon, account.sum_window_epsilon(slot, self.window_steps), requested)


def _check_limit(name: str, limit: float | None, spent: Fraction | float, requested: Fraction | float) -> None:
    if limit is not None and spent + requested > to_fraction(limit):
        raise BudgetExceededError(
            f"{name} limit {limit:g} exceeded: {format_upper_bound(float(spent))} already spent, this release needs "
            f"{float(requested):.6g}; release less often or use a smaller epsilon"
        )
