"""The start of a model's chain for events: at the first release, or some steps before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import EventError
from dphmm.events.automaton import MAX_TOTAL_PROGRESS
from dphmm.events.calendar import Clock
from dphmm.events.event import Event
from dphmm.events.expression import EventText
from dphmm.events.product_chain import Chain
from dphmm.model.model import MarkovModel
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import round_to_microseconds

_WEEK_MICROSECONDS = 7 * 24 * 3_600_000_000
# After a period a stationary distribution returns up to the rounding of its steps, which is far below this.
_STATIONARY_TOLERANCE = 1e-8

# A function from a number of steps before the first release to a chain and the distribution of its first state.
EarlierStart = Callable[[int], tuple[Chain, FloatArray] | None]


def make_chain(model: MarkovModel, first: int | None) -> tuple[Chain, FloatArray]:
    """Return a model as a chain for events, with its initial distribution.

    The chain begins at the first release, in slot ``first``.

    Raises
    ------
    ConfigurationError
        If the model is time-dependent and the slot of the first release is unknown.
    """
    return Chain.from_model(model, first), model.initial_by_class[model.get_class(first)]


def make_earlier_start(model: MarkovModel, first: int | None) -> EarlierStart:
    """Return a function that starts a model some steps before the first release.

    This is possible if the model starts in its stationary distribution: the distribution of the first state is the one
    that a step, or with time classes a week, maps to itself. The time-reversed chain is then the same chain, started in
    the stationary distribution earlier.

    Parameters
    ----------
    model
        The model.
    first
        Slot of the first release; None if it is unknown.

    Returns
    -------
    EarlierStart
        A function from a number of steps to the chain that starts that many steps before the first release, and the
        distribution of its first state. It returns None if the model does not start in its stationary distribution or
        has outside states.
    """

    def start_earlier(lead: int) -> tuple[Chain, FloatArray] | None:
        if first is None or model.outside is not None:
            return None
        start = model.initial_logs(first)
        period = 1
        if model.time_classes is not None:
            period, rest = divmod(_WEEK_MICROSECONDS, round_to_microseconds(model.step, "step"))
            if rest:
                return None
        # If the chain is stationary (cyclostationary with time classes), shifting it by whole periods changes nothing.
        then = model.operator(-lead % period, first).propagate_forward(start)
        later = [
            model.operator(period, first).propagate_forward(start),
            model.operator(lead, first - lead).propagate_forward(then),
        ]
        if not all(np.allclose(np.exp(logs), np.exp(start), rtol=_STATIONARY_TOLERANCE, atol=1e-12) for logs in later):
            return None
        return Chain.from_model(model, first - lead), np.exp(then)

    return start_earlier


def resolve_from_start(
    event: EventText, space: StateSpace | None, clock: Clock | None, earlier: EarlierStart | None
) -> tuple[Event, int, tuple[Chain, FloatArray] | None]:
    """Resolve an event over states, including the part before the first release.

    Parameters
    ----------
    event
        Event in text form.
    space, clock
        Arguments of `EventText.resolve`. The clock must have no lead.
    earlier
        Argument of `CapTracker`.

    Returns
    -------
    tuple
        The event, in steps from step 0; the number of steps by which step 0 precedes the first release; and, if it
        does, the chain and the distribution of the state at step 0.

    Raises
    ------
    EventError
        If `EventText.resolve` raises it, for example because the event begins before the first release and the model
        contains nothing about that time.
    """
    clock = clock or Clock()
    lead = -event.first_step(clock)
    if lead > MAX_TOTAL_PROGRESS:
        raise EventError(
            f"event '{event}' must begin at most {MAX_TOTAL_PROGRESS:,} steps before the first release, got {lead:,}"
        )
    earlier_start = earlier(lead) if lead and earlier is not None else None
    if earlier_start is None:
        return event.resolve(space, clock), 0, None
    return event.resolve(space, replace(clock, lead=lead)), lead, earlier_start


def has_ended(event: Event | EventText, model: MarkovModel, first: int | None) -> bool:
    """Return whether an event ended before the first release and is unknown to a model.

    Parameters
    ----------
    event
        The event.
    model
        The model.
    first
        Slot of the first release.

    Raises
    ------
    EventError
        If the event has dates, and the length of a step or the slot is unknown.
    """
    clock = Clock(model.step_seconds, first)
    if isinstance(event, Event) or not event.is_past(clock):
        return False
    begin = event.first_step(clock)
    return not begin or make_earlier_start(model, first)(-begin) is None
