"""The state of the Bayes filter between two releases, with the epsilon spent so far.

Bayes' rule is in `dphmm.model.belief.Belief.update`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from secrets import randbits
from threading import RLock
from typing import Any

from dphmm.arrays import FloatArray
from dphmm.events.cap_budget import CapTracker
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.release.ledger import Account, steps_per_day


def _create_version() -> int:
    """Return an identifier that no other state of a filter has, in any process.

    A plan made for another user's filter is therefore as stale as a plan that was sampled. A counter would repeat in a
    forked process, and in one that receives a pickled plan.
    """
    return randbits(62)


@dataclass(frozen=True)
class Spending:
    """The epsilon spent on a user after a release. A field is None if it is unknown.

    Parameters
    ----------
    epsilon_total
        Sum of all budgets.
    epsilon_24h
        Sum of the budgets in the 24 hours that end with the release.
    hours_since_draw
        Hours since the last release that was not withheld; infinite if there is none.
    """

    epsilon_total: float | None = None
    epsilon_24h: float | None = None
    hours_since_draw: float | None = None


@dataclass(eq=False)
class FilterState:
    """The belief, the spending and the time of the releases about one user.

    Engines of several queries about the user share one filter state.

    Parameters
    ----------
    belief
        Public belief after the last release; None before the first.
    count
        Number of releases, including withheld timesteps.
    cap_tracker
        State of the event caps after them; None without caps, and before the first release.
    first
        Slot of the first release, counted from 1970; None if unknown.
    account
        Epsilon spent on the user; None if the cost of some releases is unknown.
    slot
        Slot of the last release; None if the slot of the first is unknown.
    last_log_likelihood
        ``(N,)``: ``log p(z | s)`` of the last release for every state that was possible before it; None if this engine
        did not make that release.
    version
        Identifier that changes whenever the belief changes. A plan made for another version is stale.
    lock
        Lock of all engines that share the state. A pickled or copied state gets another one.
    """

    belief: Belief | None = None
    count: int = 0
    cap_tracker: CapTracker | None = None
    first: int | None = None
    account: Account | None = field(default_factory=Account)
    slot: int | None = None
    last_log_likelihood: FloatArray | None = None
    version: int = field(default_factory=_create_version)
    lock: Any = field(default_factory=RLock, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, lock=RLock())

    def spend(self, steps: int, epsilon: float, constrained_dp_factor: float, step_seconds: float | None) -> Spending:
        """Enter a release into the account.

        Parameters
        ----------
        steps
            Number of timesteps since the last release.
        epsilon, constrained_dp_factor
            Budget of the release, and its factor of Theorem 6.3.
        step_seconds
            Length of a timestep; None if unknown.

        Returns
        -------
        Spending
            The new totals.
        """
        account = self.account
        day = steps_per_day(step_seconds)
        if account is None:
            return Spending()
        slot = account.slot or 0
        if self.count:
            slot += steps
        elif self.first is not None:
            slot = self.first
        account.add(slot, epsilon, constrained_dp_factor)
        total = float(account.epsilon)
        if day is None or step_seconds is None:
            return Spending(total)
        hours = inf if account.last_draw_slot is None else (slot - account.last_draw_slot) * step_seconds / 3600
        return Spending(total, float(account.sum_window_epsilon(slot, day)), hours)

    def advance(
        self,
        belief: Belief | None,
        count: int,
        cap_tracker: CapTracker | None = None,
        slot: int | None = None,
        log_likelihood: FloatArray | None = None,
    ) -> None:
        """Store the belief after a number of releases. All plans become stale.

        Parameters
        ----------
        belief, count, cap_tracker, slot, log_likelihood
            New values of the attributes; ``log_likelihood`` is that of the last release.
        """
        self.belief = belief
        self.count = count
        self.cap_tracker = cap_tracker
        self.slot = slot
        self.last_log_likelihood = log_likelihood
        self.version = _create_version()

    def predict(self, model: MarkovModel, steps: int) -> Belief:
        """Compute the prior of the next release, ``p(s_t | z_1..t-1)``.

        Parameters
        ----------
        model
            The model.
        steps
            Number of timesteps since the last release.

        Returns
        -------
        Belief
            The prior.

        Raises
        ------
        ConfigurationError
            If the model is time-dependent and the slot of the first release is unknown.
        """
        if self.belief is None:
            return Belief.initial(model, self.first)
        return self.belief.predict(model, steps, self.slot)

    def slot_after(self, steps: int) -> int | None:
        """Compute the slot of the next release.

        Parameters
        ----------
        steps
            Number of timesteps since the last release. The first release ignores it.

        Returns
        -------
        int or None
            The slot; None if the slot of the first release is unknown.
        """
        if not self.count:
            return self.first
        return None if self.slot is None else self.slot + steps
