"""Timesteps that ``dphmm explore`` has computed for settings, with the beliefs after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dphmm.audit.policy import BODY_BY_MECHANISM as BODY_BY_AUDITED
from dphmm.audit.policy import AuditedMechanism, ConstraintAudit, audit_constraint
from dphmm.caching import BoundedCache
from dphmm.errors import SingletonConstraintError
from dphmm.jobs.explore.explored_user import ExploredUser
from dphmm.mechanisms.registry import get_noise_body
from dphmm.model import Belief, MarkovModel
from dphmm.policy.repair import Method
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Account
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.step_plan import StepPlan

# Called with the number of computed timesteps and their total.
Progress = Callable[[int, int], None]

# Timesteps of which the audit and the alternative repair are kept, so that going back to them takes no time.
_CACHE_SIZE = 16


def get_audited_mechanism(mechanism: str) -> AuditedMechanism:
    """Return the mechanism of an audit that has the noise body of a mechanism of settings."""
    body = get_noise_body(mechanism)
    return next(name for name, other in BODY_BY_AUDITED.items() if other == body)


def ignore_progress(_done: int, _total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, eq=False)
class ReleasedStep:
    """A released timestep, and the beliefs after it."""

    plan: StepPlan
    record: ReleaseRecord
    private: PrivateDiagnostics
    public: Belief
    informed: Belief | None


class Run:
    """The steps of an engine along the user's path, computed as far as they are requested."""

    def __init__(self, engine: Releaser, user: ExploredUser, habits: MarkovModel | None, seed: int) -> None:
        self.engine = engine
        self.steps: list[ReleasedStep] = []
        self.amendment: tuple[int, list[ReleasedStep]] | None = None
        self._user = user
        self._seed = seed
        self._habits = habits
        self._audits: BoundedCache[bytes, ConstraintAudit] = BoundedCache(_CACHE_SIZE)
        # The alternative depends on the belief too if noise differs between components.
        self._alternatives: BoundedCache[StepPlan, StepPlan] = BoundedCache(_CACHE_SIZE)
        engine.restart(int(user.slots[0]))

    def advance(self, step: int, progress: Progress) -> None:
        """Compute the steps up to one."""
        while len(self.steps) <= step:
            progress(len(self.steps), step + 1)
            self.steps.append(self._release(self.engine, self.steps))

    def amend(self, earlier: Run, step: int) -> list[ReleasedStep]:
        """Compute one step after those of other settings, as an amended session does."""
        before = earlier.steps[:step]
        slots = self._user.slots.tolist()
        account = Account()
        for slot, released in zip(slots, before, strict=False):
            account.add(slot, released.record.epsilon, released.record.constrained_dp_factor)
        engine = self.engine.spawn(np.random.default_rng((self._seed, step)))
        engine.resume(before[-1].public, step, account=account, slot=slots[step - 1])
        self.amendment = step, [*before, self._release(engine, before)]
        return self.amendment[1]

    def find_steps(self, step: int) -> list[ReleasedStep]:
        """Return the computed steps up to one. Empty if it is not computed."""
        if step < len(self.steps):
            return self.steps[: step + 1]
        return self.amendment[1] if self.amendment is not None and self.amendment[0] == step else []

    def _release(self, engine: Releaser, before: Sequence[ReleasedStep]) -> ReleasedStep:
        """Release the timestep after others."""
        index = len(before)
        slots = self._user.slots
        since = int(slots[index] - slots[index - 1]) if index else 1
        state = int(self._user.states[index])
        try:
            plan = engine.prepare(steps=since)
        except SingletonConstraintError:  # the setting that releases such a state exactly is not on the page
            fix = "an earlier timestep" if engine.settings.delta is None else "a smaller delta or an earlier timestep"
            raise SingletonConstraintError(
                f"the constraint set must have at least two states, got one at timestep {index + 1}: use {fix}"
            ) from None
        record = engine.draw(plan, state)
        public = engine.belief
        assert public is not None, "a draw leaves a belief"
        informed = self._update_informed(engine, before, since)
        return ReleasedStep(plan, record, engine.private_diagnostics(state), public, informed)

    def _update_informed(self, engine: Releaser, before: Sequence[ReleasedStep], since: int) -> Belief | None:
        """Return the belief of an adversary with the user's habits.

        The likelihood is that of the public adversary, the prior follows from the habits.
        """
        if self._habits is None:
            return None
        likelihood = engine.filter_state.last_log_likelihood
        assert likelihood is not None, "a draw leaves a likelihood"
        index = len(before)
        slots = self._user.slots
        last = before[-1].informed if before else None
        if last is None:
            prior = Belief.initial(self._habits, int(slots[index]))
        else:
            prior = last.predict(self._habits, since, int(slots[index - 1]))
        return prior.update(likelihood)

    def audit(self, plan: StepPlan) -> ConstraintAudit:
        """Audit the policy under a constraint set, without repairs."""
        settings = self.engine.settings
        return self._audits.get_or_make(
            np.packbits(plan.constraint).tobytes(),
            lambda: audit_constraint(
                self.engine.policy,
                self.engine.measurements,
                plan.constraint,
                [get_audited_mechanism(settings.mechanism)],
                noise_scope=settings.noise_scope,
                methods=[],
            ),
        )

    @property
    def alternative_repair(self) -> Method:
        """The repair method with which the chosen one is compared."""
        return "exact" if self.engine.settings.repair == "greedy" else "greedy"

    def plan_alternative(self, plan: StepPlan) -> StepPlan | None:
        """Plan a timestep with the alternative repair. None if it adds no other edges."""
        settings = self.engine.settings
        # If one cross-polytope or disc serves all states, every method adds the same edges.
        methods_agree = settings.noise_scope == "graph" and get_noise_body(settings.mechanism) != "hull"
        # A second table would take as long as the first, and its error does not follow from a hull.
        if methods_agree or plan.noise.is_tabular or not plan.protection.added:
            return None
        alternative = self._alternatives.get_or_make(
            plan, lambda: self._alternative_engine.build_plan(plan.prior, plan.epsilon, plan.steps)
        )
        return None if set(alternative.protection.added) == set(plan.protection.added) else alternative

    @cached_property
    def _alternative_engine(self) -> Releaser:
        settings = replace(self.engine.settings, repair=self.alternative_repair)
        return settings.engine(self.engine.model, policy=self.engine.policy)
