"""Readers who are told less: nested tiers by sequential composition.

The readers of a person's releases are ordered, the coarsest first. Query 1 has the budget of the first reader and is
planned, scheduled and drawn from what that reader was told and nothing else. Query k has what the budget of reader k
is above that of the reader before, and is planned, scheduled and drawn from what reader k was told: queries 1 to k.

So whatever a reader sees is a function of what this reader saw before, of public things and of fresh noise. On an edge
of the policy reader k learns at most the sum of the budgets of queries 1 to k, which is their own budget (Theorem 7.1),
and readers who compare what they were told know what the finest of them knows. Records are those of their query's
reader: estimate, radius and ``epsilon_so_far`` follow from what this reader was told.

A sum of noise (the release with more noise on top) would be no substitute: its reader would see at which moments a
finer belief led to a draw, and with noise by component it tells of the component what the finer release does not.

A state that is hidden by one partner in one query and by another in the next is alone in both together. So a finer
query takes partners from the pairs that all queries of the moment hide; where it cannot, it is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import nextafter
from typing import Any, TypeVar

import numpy as np

from dphmm.arrays import check_budget
from dphmm.errors import AlreadyKnownError, BudgetError, ConfigurationError
from dphmm.model.belief import Belief
from dphmm.release.engine import Releaser, shared_edges
from dphmm.release.ledger import Limits, exactly
from dphmm.release.record import ReleaseRecord
from dphmm.release.session_terms import MAIN_QUERY, TIER
from dphmm.release.settings import Schedule, Settings
from dphmm.release.step import PreparedStep, StepPlan

Chosen = TypeVar("Chosen", bound=Settings)
Spending = TypeVar("Spending", Limits, Schedule)


def tier_budgets(epsilon: float, coarser: Iterable[float]) -> dict[str, float]:
    """Query → its budget, from the coarsest reader's to the finest's: what each reader may learn above the one before.

    Budgets are doubles whose exact sum, as they are written, is not above what the reader may learn.

    Parameters
    ----------
    epsilon
        What the finest reader may learn of an edge from a moment.
    coarser
        The same of readers who are told less.

    Raises
    ------
    BudgetError
        When one is not positive, or not below that of the finest reader.
    """
    readers = sorted({check_budget(one) for one in coarser})
    if readers and readers[-1] >= epsilon:
        raise BudgetError(f"a coarser reader has epsilon {readers[-1]:g}, the finest {epsilon:g}; give less")
    spent, found = Fraction(0), {}
    for reader in (*readers, epsilon):
        query = query_of(None if reader == epsilon else reader)
        found[query] = check_budget(_below(exactly(reader) - spent))
        spent += exactly(found[query])
    return found


def tier_settings(settings: Chosen, coarser: Iterable[float]) -> dict[str, Chosen]:
    """Query → how it is released, the coarsest reader's first; without coarser readers, the settings as they are.

    What a schedule may spend in a window is split as the budget is.

    Raises
    ------
    BudgetError
        As `tier_budgets`.
    ConfigurationError
        With `delta`, or caps on events.
    """
    budgets = tier_budgets(settings.epsilon, coarser)
    if len(budgets) == 1:
        return {MAIN_QUERY: settings}
    if settings.delta is not None:
        raise ConfigurationError(
            "delta leaves states out by a reader's belief, and readers of several tiers have several; leave delta out, "
            "or give every recipient the same epsilon"
        )
    if settings.caps:
        raise ConfigurationError(
            "caps on events are kept for the reader who knows most, and whether a coarser reader is told anything may "
            "not follow from what that one knows; leave the caps out, or give every recipient the same epsilon"
        )
    found, schedule = {}, settings.schedule
    for query, budget in budgets.items():
        share = exactly(budget) / exactly(settings.epsilon)
        own = None if schedule is None else _part(schedule, share, "window_epsilon")
        found[query] = replace(settings, epsilon=budget, schedule=own)
    return found


def tiers_of(engine: Releaser, coarser: Iterable[float]) -> dict[str, Releaser]:
    """Query → its engine, the coarsest reader's first, from an engine of the finest reader's settings."""
    found = tier_settings(engine.settings, coarser)
    return {MAIN_QUERY: engine} if len(found) == 1 else {query: engine.under(one) for query, one in found.items()}


def query_of(epsilon: float | None) -> str:
    """The query of a reader with a budget; None for the finest."""
    return MAIN_QUERY if epsilon is None else f"{TIER}{epsilon!r}"


def share_of_limits(limits: Limits, share: Fraction) -> Limits:
    """What one query may spend of what all may, so that nobody sees by it what the others spent."""
    return _part(limits, share, "epsilon", "constrained_epsilon", "window_epsilon")


def draw_tiers(
    queries: Mapping[str, Releaser],
    step: PreparedStep,
    state: int,
    limited: Callable[[str, PreparedStep], PreparedStep],
) -> dict[str, tuple[PreparedStep, ReleaseRecord]]:
    """Draw a prepared step of the coarsest reader's query, and then each finer one: query → its step and record.

    Parameters
    ----------
    queries
        The engines, the coarsest first.
    step, state
        As of `Releaser.draw`; so are the errors.
    limited
        A query and its step → the step within what the query may spend.
    """
    found: dict[str, tuple[PreparedStep, ReleaseRecord]] = {}
    logs = np.zeros(next(iter(queries.values())).model.size)
    told: list[PreparedStep] = []
    for query, engine in queries.items():
        if told:
            step = limited(query, prepare_finer(engine, engine.prior(step.steps).update(logs), told))
        record = engine.draw(step, state)
        logs = logs + engine.log_likelihood(step, record.released)
        told.append(step)
        found[query] = step, record
    return found


def prepare_finer(engine: Releaser, prior: Belief, told: Sequence[PreparedStep]) -> PreparedStep:
    """A finer query of a moment, within its schedule; where no partners would hide someone, nothing is drawn.

    Parameters
    ----------
    engine
        The query's.
    prior
        What its reader knows, with what the coarser queries of the moment told.
    told
        The steps of these.
    """
    plan = finer_plan(engine, prior, told)
    steps = told[0].steps
    return (
        engine.prepare_nothing(prior, steps, "partners") if plan is None else engine.prepare(None, steps, prior, plan)
    )


def finer_plan(engine: Releaser, prior: Belief, told: Sequence[PreparedStep]) -> StepPlan | None:
    """The plan of a finer query, all of whose pairs the coarser ones hide too; None where there is none."""
    drawn = [step for step in told if not step.withheld]
    support = prior.support
    also: set[tuple[int, int]] = set()
    for step in drawn:
        same = np.array_equal(step.plan.constraint, support)  # then what its body hides, the finer one's hides too
        pairs = step.plan.protection.added
        if not same:
            pairs = shared_edges(engine.soundness, step.plan, step.noise, step.epsilon)
        also.update(pair for pair in pairs if support[list(pair)].all())
    try:
        plan = engine.plan(prior, tuple(sorted(also)))
    except AlreadyKnownError:
        return None
    added = np.array(plan.protection.added, dtype=np.int64).reshape(-1, 2)
    return plan if all(engine.soundness.hides(step.noise, step.epsilon, added) for step in drawn) else None


def _part(whole: Spending, share: Fraction, *names: str) -> Spending:
    """Limits, or a schedule, of which a query has a part in each of some budgets that are given."""
    given = {name: getattr(whole, name) for name in names}
    parts: dict[str, Any] = {name: _below(exactly(one) * share) for name, one in given.items() if one is not None}
    return replace(whole, **parts)


def _below(value: Fraction) -> float:
    """The largest double that is, as it is written, not above a rational."""
    found = float(value)
    while exactly(found) > value:
        found = nextafter(found, 0.0)
    return found
