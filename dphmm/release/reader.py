"""Coarser releases, for recipients who are to learn less: a finer release with more noise on top.

With ``z_1 = f(s) + n_1`` the release and budgets ``eps_1 > eps_2 > …``, the coarser ones are ``z_k = z_{k-1} + n_k``:
all noise is independent and of one body, ``n_k`` of budget ``eps_k``. Alone, ``z_k`` is a function of ``f(s) + n_k``
and of noise that knows nothing of the state but its component: on the edges it costs ``eps_k``. Of several together the
finest costs its budget and the others are functions of it: recipients who compare what they were told learn what the
best of them knows. Fresh noise for each would add up, and so would two coarser ones made from ``z_1`` side by side.

What a record says beside the place (the estimate, what a reader learned) follows from the finer releases, and is no
business of a reader of the coarser ones: their estimate is made from coarser releases alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import log

import numpy as np

from dphmm.arrays import FloatArray, check_budget
from dphmm.errors import BudgetError, ConfigurationError
from dphmm.mechanisms.base import TABLES
from dphmm.model.belief import Belief
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.record import ReleaseRecord
from dphmm.release.step import PreparedStep, PublicState

_DRAWS = 64
"""The number of draws that stand for the law of the finer noise; always the same ones."""


def descending(epsilons: Iterable[float], settings: ReleaseSettings) -> tuple[float, ...]:
    """Budgets of coarser releases from the greatest down, each once.

    Raises
    ------
    BudgetError
        When one is not positive, or not below that of the release itself.
    ConfigurationError
        When the settings' mechanism draws from a table: nothing is added to what it draws.
    """
    found = sorted({check_budget(epsilon) for epsilon in epsilons}, reverse=True)
    if found and settings.mechanism in TABLES:
        raise ConfigurationError(
            f"mechanism {settings.mechanism!r} draws places and adds no noise, so that there are no coarser releases; "
            "choose lattice"
        )
    if found and found[0] >= settings.epsilon:
        raise BudgetError(
            f"a coarser release has epsilon {found[0]:g}, the release itself {settings.epsilon:g}; give less"
        )
    return tuple(found)


def finest(queries: Mapping[str, Releaser]) -> ReleaseSettings:
    """The settings of the query with the least budget, below which those of coarser releases lie."""
    return min((engine.settings for engine in queries.values()), key=lambda one: one.epsilon)


def draw_all(
    engine: Releaser, step: PreparedStep, state: int, epsilons: Sequence[float]
) -> tuple[ReleaseRecord, dict[float, tuple[float, ...]]]:
    """Draw a prepared step, and coarser releases from it: budget → place.

    Every noise is looked at before the first draw, as `Releaser.draw` does for its own.

    Parameters
    ----------
    engine, step, state
        As for `Releaser.draw`; so are the errors.
    epsilons
        From the greatest down.
    """
    if step.withheld or not epsilons:
        return engine.draw(step, state), dict.fromkeys(epsilons, ())  # for whom the prediction is another one
    used = engine.ready(step, state)
    noises = {epsilon: engine.noise(step.plan, epsilon) for epsilon in epsilons}
    for epsilon, noise in noises.items():
        engine.ready(replace(step, noise=noise, epsilon=epsilon), state)
    record = engine.draw(step, state)
    place, found = record.released, {}
    for epsilon, noise in noises.items():
        assert place is not None, "something was drawn"
        place = engine.query.place(noise.draw(used, engine.source, engine.query.value(place)))
        found[epsilon] = place
    return record, found


class CoarseReader:
    """What a reader of coarser releases alone can tell of where the person is.

    The likelihood of a coarser release is that of a sum of noises. It is taken over 64 draws of the finer ones, the
    same for every release, with the settings' budget for the finest, of which caps and schedules may take less without
    this reader's knowing: the estimate is that of a reader who does so.

    Parameters
    ----------
    engine
        An engine of the releases' settings; it is not used otherwise.
    epsilons
        The budgets of the finer releases, from the release's own down, and last that of the coarser ones.
    """

    def __init__(self, engine: Releaser, epsilons: Sequence[float]) -> None:
        self._engine, self._epsilons = engine, tuple(epsilons)

    def updated(self, belief: Belief | None, place: tuple[float, ...], slot: int, steps: int) -> Belief:
        """The belief after a coarser release.

        Parameters
        ----------
        belief
            The belief after the one before; None for the first.
        place
            The coarser release; empty where nothing was drawn, and the belief is the prediction.
        slot
            Its time step.
        steps
            How many time steps after the one before it is.
        """
        person = PublicState(belief=belief, count=int(belief is not None), first=slot, slot=slot - steps)
        prior = person.prior(self._engine.model, steps)
        return prior.update(self._log_likelihood(prior, place)) if place else prior

    def _log_likelihood(self, prior: Belief, place: tuple[float, ...]) -> FloatArray:
        engine, rng = self._engine, np.random.default_rng(0)
        plan = engine.plan(prior)
        values, released = engine.values, engine.query.value(place)
        found = np.full(len(values), -np.inf)
        noises = [engine.noise(plan, epsilon) for epsilon in self._epsilons]
        for number, members in enumerate(noises[0].members):
            *finer, last = (noise.parts[number] for noise in noises)
            around = np.zeros_like(values[0])
            drawn = sum(
                (one.sample(around, rng, _DRAWS) for one in finer), np.zeros((_DRAWS, len(around)), values.dtype)
            )
            each = [last.log_density(released - noise, values[members]) for noise in drawn]
            found[members] = np.logaddexp.reduce(each, axis=0) - log(_DRAWS)
        believed = np.flatnonzero(prior.support)
        found[believed] = found[engine.planner.released_as(believed, plan.constraint)]
        return found
