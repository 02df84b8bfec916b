"""Several queries about one person at one moment (Theorem 7.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import nextafter
from typing import TYPE_CHECKING

import numpy as np

from dphmm.arrays import BoolArray, as_floats, check_budget
from dphmm.errors import BudgetError, InvalidInputError
from dphmm.mechanisms.exact import rational
from dphmm.release.ledger import Ledger
from dphmm.release.record import ReleaseRecord
from dphmm.release.step import PreparedStep, StepPlan

if TYPE_CHECKING:
    from dphmm.release.engine import Releaser

Edge = tuple[int, int]


def prepare_together(
    engines: Sequence[Releaser], epsilon: float | Sequence[float] | None = None, steps: int = 1
) -> list[PreparedStep]:
    """Everything about one release of each query but the draws, all of it public. Nothing changes by it.

    All queries are answered under one constraint set and one repaired graph: that of the first query, in which every
    possible state has a partner that no query tells it from. So what all answers say together is bounded on its edges
    by the sum of the budgets, and nobody is hidden among others in each answer and alone in all of them.

    Parameters and errors are those of `Releaser.release_together`.
    """
    first = engines[0]
    for engine in engines:
        same = engine.settings.delta == first.settings.delta, engine.settings.allow_known == first.settings.allow_known
        if engine.person is not first.person or not all(same):
            raise InvalidInputError(
                "queries answered together share a person, delta and allow_known; make the others with 'beside'"
            )
    if len(engines) > 1 and any(engine.settings.schedule for engine in engines):
        raise InvalidInputError("schedules are kept for one query after another; release them one by one")
    if any(
        (engine.settings.caps, engine.settings.priors) != (first.settings.caps, first.settings.priors)
        for engine in engines
    ):
        raise InvalidInputError("queries answered together keep the same caps on events; give all of them or none")
    if len({id(engine) for engine in engines}) < len(engines):
        raise InvalidInputError("a query is answered once at a time; name each engine once")
    budgets = shares(epsilon, [engine.settings.epsilon for engine in engines])
    prior = first.prior(steps)
    shared = _shared_edges(first, first.plan(prior), budgets[0])
    plans = [engine.plan(prior, shared) for engine in engines]
    found = [first.capping.prepare(first, prior, plans[0], budgets[0], steps)]
    found += [
        engine.prepare_on(prior, plan, budget)
        for engine, plan, budget in zip(engines[1:], plans[1:], budgets[1:], strict=True)
    ]
    return [replace(step, steps=steps if number == 0 else 0) for number, step in enumerate(found)]


def draw_together(engines: Sequence[Releaser], prepared: Sequence[PreparedStep], state: int) -> Ledger:
    """Draw what `prepare_together` prepared: every step is looked at before the first is drawn.

    What caps on events leave of the budget of a later query follows from the draws before it, all of them public; such
    a step is looked at again.
    """
    used = [engine.ready(step, state) for engine, step in zip(engines, prepared, strict=True)]
    records: list[ReleaseRecord] = []
    for engine, step, stand_in in zip(engines, prepared, used, strict=True):
        prior = step.prior if not records else engine.belief
        assert prior is not None, "a draw leaves a belief"
        if records and engine.capping:
            step = engine.capping.prepare(engine, prior, step.plan, step.epsilon, 0)
            stand_in = engine.ready(step, state)
        records.append(engine.drawn(replace(step, prior=prior), stand_in))
    return Ledger.of(records)


def shares(epsilon: float | Sequence[float] | None, own: Sequence[float]) -> list[float]:
    """The budget of each query: its own, an equal part of one that is split, or the one given for it.

    Equal parts are doubles whose exact sum, as they are written, is not above what was split.

    Raises
    ------
    BudgetError
        When a budget is none, or there is not one for each query.
    """
    if epsilon is None:
        return list(own)
    if not isinstance(epsilon, float | int | Fraction | np.floating | np.integer):
        listed = as_floats(epsilon, "budgets", BudgetError)
        if listed.ndim != 1:
            raise BudgetError(f"budgets have shape {listed.shape}; give one for each query")
        given = [check_budget(one) for one in listed.tolist()]
        if len(given) != len(own):
            raise BudgetError(f"there are {len(given)} budgets for {len(own)} queries; give one for each")
        return given
    whole: Fraction = rational(check_budget(epsilon))
    part = float(whole / len(own))
    while rational(part) * len(own) > whole:
        part = nextafter(part, 0.0)
    return [check_budget(part)] * len(own)


def _shared_edges(engine: Releaser, plan: StepPlan, epsilon: float) -> tuple[Edge, ...]:
    """What has to be added to the policy's edges so that every possible state has one, at no cost to the first query.

    That is the first query's repair, and for a state that its noise hides without any edge the nearest that it hides
    it among.
    """
    if plan.protection is None:
        return ()
    graph = plan.protection.graph
    alone: BoolArray = plan.constraint & ~graph.connected() & ~graph.open
    if not alone.any():
        return plan.protection.added
    states = np.flatnonzero(alone)
    nearest = engine.soundness.nearest_in(engine.mechanism(plan, epsilon), plan.constraint, epsilon, states)
    pairs = np.sort(np.stack([states, nearest], axis=1), axis=1)
    return tuple(sorted({*plan.protection.added, *map(tuple, pairs.tolist())}))
