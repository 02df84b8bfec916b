"""Trackers of an engine's event caps: created, resumed, updated and applied to plans.

The budgets that they choose are computed by `dphmm.events.cap_budget`.
"""

from __future__ import annotations

from dataclasses import replace

from dphmm.arrays import FloatArray
from dphmm.caching import BoundedCache
from dphmm.errors import EventError, InvalidInputError
from dphmm.events.calendar import Clock
from dphmm.events.cap_budget import CapState, CapTracker, read_priors
from dphmm.events.chain_start import has_ended, make_chain, make_earlier_start
from dphmm.events.expression import EventText
from dphmm.model.model import MarkovModel
from dphmm.release.settings import Settings
from dphmm.release.state_between_steps import FilterState
from dphmm.release.step_plan import Planner, StepPlan

# A batch, or a relay that begins many sessions in one timestep, needs the same initial trackers repeatedly.
_TRACKER_CACHE_SIZE = 64


class EventCaps:
    """The event caps of an engine, which lower the budgets of plans.

    Under a plan that `limit_plan` returns, no output exceeds a cap.

    Parameters
    ----------
    settings
        Settings with the caps and the priors under which they must hold.
    model
        The model.

    Raises
    ------
    ConfigurationError, DataFileError
        If there are priors and the model has no state locations, or the file cannot be read.
    """

    def __init__(self, settings: Settings, model: MarkovModel) -> None:
        self._caps = settings.caps
        self._model = model
        # Additional initial distributions under which the caps must hold.
        self.priors: tuple[FloatArray, ...] = ()
        if settings.event_cap_priors is not None:
            self.priors = read_priors(settings.event_cap_priors, model.space)
        # Whether the caps of `find_past_caps` are ignored. Otherwise they raise an error.
        self.ignores_past_caps = False
        self._first_trackers: BoundedCache[int | None, CapTracker] = BoundedCache(_TRACKER_CACHE_SIZE)

    def __bool__(self) -> bool:
        return bool(self._caps)

    @property
    def depends_on_date(self) -> bool:
        """Whether the events of a first release depend on its date."""
        clock = Clock(self._model.step_seconds, first=None)
        try:
            for event in (cap.event for cap in self._caps if isinstance(cap.event, EventText)):
                event.first_step(clock)
                event.is_past(clock)
        except EventError:
            return True
        return False

    def get_tracker(self, state: FilterState) -> CapTracker:
        """Return the tracker of the capped events after a user's releases.

        Raises
        ------
        EventError
            If an event cannot be evaluated, or exceeds its cap before the first release.
        InvalidInputError
            If there are releases of which the tracker is unknown.
        """
        if state.cap_tracker is not None:
            return state.cap_tracker
        if state.count:
            raise InvalidInputError("the state of the event caps after earlier releases is unknown: replay them")
        # A tracker changes with every release, so each user gets a copy.
        return self._first_trackers.get_or_make(state.first, lambda: self._create_tracker(state.first)).copy()

    def resume_tracker(self, first: int | None, count: int, state: tuple[CapState, ...] | None) -> CapTracker | None:
        """Return the tracker after ``count`` releases, from its state.

        Raises
        ------
        InvalidInputError
            If the state is that of other caps.
        """
        if bool(count and self._caps) != (state is not None):
            raise InvalidInputError("event caps must have a state exactly if there are releases")
        return None if state is None else self.get_tracker(FilterState(first=first)).with_state(state)

    def _create_tracker(self, first: int | None) -> CapTracker:
        clock = Clock(self._model.step_seconds, first)
        moves, start = make_chain(self._model, first)
        over = self.find_past_caps(first) if self.ignores_past_caps else frozenset()
        before = make_earlier_start(self._model, first)
        return CapTracker(self._caps, moves, start, self._model.states, clock, self.priors, over, before)

    def find_past_caps(self, first: int | None) -> frozenset[int]:
        """Return the indices of the caps with events that ended before the first release.

        Only events about a time of which the model contains nothing are included.
        """
        return frozenset(index for index, cap in enumerate(self._caps) if has_ended(cap.event, self._model, first))

    def limit_plan(self, plan: StepPlan, state: FilterState, planner: Planner) -> StepPlan:
        """Return a plan with the largest budget under which no output exceeds a cap.

        The budget is at most that of the given plan. If there is no such budget, the timestep is withheld.

        Raises
        ------
        EventError, InvalidInputError
            If `get_tracker` raises them.
        """
        if not self._caps or plan.withheld:
            return plan
        outputs = planner.build_outputs(plan, plan.epsilon)
        choice = self.get_tracker(state).choose(outputs, plan.epsilon, plan.steps)
        if choice.epsilon is None:
            return planner.withhold(plan.prior, "caps", plan.steps, plan.version, choice.max_probabilities)
        if choice.epsilon != plan.epsilon:
            plan = planner.with_epsilon(plan, choice.epsilon, plan.steps, plan.version)
        return replace(plan, max_event_probabilities=choice.max_probabilities)

    def update_tracker(self, state: FilterState, log_likelihood: FloatArray, steps: int) -> CapTracker | None:
        """Return the tracker after one more release. The previous tracker stays unchanged."""
        if not self._caps:
            return None
        tracker = self.get_tracker(state).copy()
        tracker.update(log_likelihood, steps)
        return tracker
