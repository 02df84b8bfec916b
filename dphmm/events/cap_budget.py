"""The largest budget of one release under which no output exceeds an event cap.

Before a release, everything known about an event, and everything that a release may add, is public: the belief, split
by the event, and the shape of the noise. Therefore the budget can be chosen such that *no* output raises the
probability of the event above a cap. The choice does not depend on the true state, and reveals nothing.

Caps can also hold for other initial distributions that adversaries may assume; `read_priors` reads a table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass
from math import ceil, floor, log, log2, log10
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, as_distribution, check_budget
from dphmm.errors import DataFileError, EventError, InvalidInputError, StochasticError
from dphmm.events.calendar import Clock
from dphmm.events.chain_start import EarlierStart, resolve_from_start
from dphmm.events.event import Event
from dphmm.events.expression import EventText, parse_event
from dphmm.events.output_bounds import OddsBounds, Outputs
from dphmm.events.product_chain import EventOdds, Split, Transition
from dphmm.model.transition_operator import log_sum
from dphmm.space.states import Places, StateSpace
from dphmm.tables.table import Table
from dphmm.tables.values import shorten
from dphmm.validation import Interval, check_arguments

# The number of budgets that are tried below the requested one.
#
# There are sixteen per factor of two, down to a sixty-fourth of the requested budget. Below that, the noise dominates.
NUM_RUNGS = 96

_RUNGS_PER_OCTAVE = 16

_Probability = Annotated[float, Interval(0, 1, "neither", error=EventError)]
_MinProbability = Annotated[float, Interval(0, 1, "left", error=EventError)]


@dataclass(frozen=True)
class Cap:
    """A bound on the posterior probability of an event for an adversary with the model.

    Parameters
    ----------
    event
        The event, as text or as a value.
    probability
        Upper bound, in (0, 1).
    min_probability
        Lower bound, below `probability`; 0 for none.

    Raises
    ------
    EventError
        If the event cannot be parsed, or a probability is invalid.

    Examples
    --------
    >>> Cap("at:clinic.geojson between 2024-03-04 and 2024-03-10", 0.7).to_dict()["probability"]
    0.7
    """

    event: EventText | Event
    probability: float
    min_probability: float = 0.0

    # The names of the fields.
    NAMES: ClassVar = ("event", "probability", "min_probability")

    @check_arguments
    def __init__(
        self, event: str | EventText | Event, probability: _Probability, min_probability: _MinProbability = 0.0
    ) -> None:
        if not min_probability < probability:
            raise EventError(f"min_probability must be below probability, got {min_probability!r} and {probability!r}")
        if not isinstance(event, str | EventText | Event):
            raise EventError(f"a cap must have an event or its text, got {shorten(event)}")
        parsed = parse_event(event) if isinstance(event, str) else event
        vars(self).update(event=parsed, probability=float(probability), min_probability=float(min_probability))

    def to_dict(self) -> dict[str, Any]:
        """Return the cap as plain JSON values. ``Cap(**…)`` restores it.

        Returns
        -------
        dict
            The fields by name.
        """
        return {"event": str(self.event), "probability": self.probability, "min_probability": self.min_probability}

    @property
    def canonical(self) -> str:
        """The cap as text for hashing. Files of locations are included by their content."""
        text = self.event.canonical if isinstance(self.event, EventText) else str(self.event)
        return f"{self.min_probability!r} <= {text} <= {self.probability!r}"


@dataclass(frozen=True)
class Choice:
    """The budget that caps allow.

    Parameters
    ----------
    epsilon
        Largest budget tried under which no output exceeds a cap; None if there is none.
    max_probabilities
        For each cap, the largest probability of its event after any of the outputs that were checked. The maximum over
        all outputs lies between this value and the cap.
    """

    epsilon: float | None
    max_probabilities: tuple[float, ...]


class TrackedCap(NamedTuple):
    """A cap under one initial distribution: the model's (index 0), or another prior."""

    number: int
    prior: int
    cap: Cap
    odds: EventOdds


class CapState(NamedTuple):
    """The last step of a cap under one initial distribution, and the masses after it."""

    number: int
    prior: int
    last_step: int
    masses: FloatArray


class CapTracker:
    """A tracker of event caps over the releases about one user.

    Parameters
    ----------
    caps
        The caps.
    transition, initial
        The model under which the caps hold; see `EventOdds`.
    space, clock
        Arguments of `EventText.resolve` for events in text form.
    priors
        Other distributions of the first state, ``(N,)`` each, under which the caps must also hold.
    without
        Indices of caps to ignore.
    earlier
        Function that starts the model some steps before the first release; see `make_earlier_start`.
        An event in text form that begins before the first release is tracked from its beginning.

    Raises
    ------
    EventError
        If an event cannot be evaluated, or its probability is outside its bounds before the first release.
    """

    @check_arguments
    def __init__(
        self,
        caps: Sequence[Cap],
        transition: Transition,
        initial: npt.ArrayLike,
        space: StateSpace | None = None,
        clock: Clock | None = None,
        priors: Sequence[npt.ArrayLike] = (),
        without: Collection[int] = (),
        earlier: EarlierStart | None = None,
    ) -> None:
        # The caps in order, each under the model and then under each prior that gives the event a positive probability.
        self.tracked_caps: list[TrackedCap] = []
        self.num_caps = len(caps)
        for number, cap in enumerate(caps):
            if number in without:
                continue
            start = (transition, initial)
            event = cap.event
            lead = 0
            if isinstance(event, EventText):
                event, lead, earlier_start = resolve_from_start(event, space, clock, earlier)
                start = earlier_start or start
            if lead and priors:
                raise EventError(
                    f"priors cannot be combined with event '{cap.event}': it begins before the first release. Remove "
                    "the priors, or add 'from the first release' to the window"
                )
            odds = EventOdds(*start, event, str(cap.event), lead)
            for prior, first in enumerate((None, *priors)):
                if first is not None:
                    odds = odds.with_initial(first)
                    if odds.prior == -np.inf and cap.min_probability == 0:
                        continue  # under this prior the event stays impossible
                _check_prior(cap, odds, first is not None)
                self.tracked_caps.append(TrackedCap(number, prior, cap, odds))

    def copy(self) -> CapTracker:
        """Return an independent copy that has processed the same releases.

        Returns
        -------
        CapTracker
            The copy.
        """
        tracker = copy(self)
        tracker.tracked_caps = [tracked._replace(odds=tracked.odds.copy()) for tracked in self.tracked_caps]
        return tracker

    @property
    def state(self) -> tuple[CapState, ...]:
        """The state after at least one release, which `with_state` restores."""
        caps = []
        for number, prior, _, odds in self.tracked_caps:
            assert odds.last_step is not None, "there is a release"
            assert odds.masses is not None, "there is a release"
            caps.append(CapState(number, prior, odds.last_step, odds.masses))
        return tuple(caps)

    def with_state(self, state: tuple[CapState, ...]) -> CapTracker:
        """Return the tracker after earlier releases.

        Parameters
        ----------
        state
            The `state` of a tracker with the same caps, priors and model. Priors that the releases excluded are not in
            it.

        Returns
        -------
        CapTracker
            A copy of this tracker that has processed these releases.

        Raises
        ------
        InvalidInputError
            If the state is that of other caps.
        """
        tracker = copy(self)
        states = {(cap.number, cap.prior): cap for cap in state}
        tracked_caps = {(tracked.number, tracked.prior): tracked for tracked in self.tracked_caps}
        required = {key for key, tracked in tracked_caps.items() if tracked.odds.is_model_prior}
        if not required <= states.keys() <= tracked_caps.keys() or len(states) < len(state):
            raise InvalidInputError(
                f"the state must be that of {len(tracked_caps)} tracked caps, got {len(state)} others"
            )
        tracker.tracked_caps = [
            tracked._replace(odds=tracked.odds.with_masses(states[key].last_step, states[key].masses))
            for key, tracked in tracked_caps.items()
            if key in states
        ]
        return tracker

    @check_arguments
    def choose(self, outputs: Outputs, epsilon: float, steps: int = 1) -> Choice:
        """Choose the largest budget under which no output of the next release exceeds a cap.

        Parameters
        ----------
        outputs
            Outputs of the noise, for the value that is released for each state.
        epsilon
            Upper bound on the budget.
        steps
            Number of timesteps since the last release. The first release is at step 0.

        Returns
        -------
        Choice
            The budget, and the largest probability of each event.

        Notes
        -----
        The budgets tried are a sixteenth of an octave apart. A budget is accepted only if it is certain that no output
        exceeds a cap. The search for the largest one assumes that a smaller budget reveals less.
        """
        epsilon = check_budget(epsilon)
        if not self.tracked_caps:
            return Choice(epsilon, self._find_max_probabilities((), ()))
        cap_indices, bounds, current_log_odds = self._build_bounds(outputs, steps)
        # Everything here follows from the belief and the noise, so the choice of a budget reveals nothing about the
        # state.
        margin = bounds.log_odds - current_log_odds

        def check(rung: int) -> tuple[bool, FloatArray, float]:
            """Return whether a rung is safe, the largest log odds, and the allowed budget factor."""
            result = outputs.check(bounds, compute_rung_budget(epsilon, rung))
            with np.errstate(divide="ignore", invalid="ignore"):
                factors = margin / np.maximum(result.max_log_odds - current_log_odds, 0.0)
            return (
                result.is_certain,
                result.max_log_odds,
                float(np.nan_to_num(factors, nan=np.inf, posinf=np.inf).min()),
            )

        best = _find_first_safe_rung(check) if (margin > 0).all() else None
        if best is None:
            beliefs = [(tracked.number, tracked.odds.log_odds) for tracked in self.tracked_caps]
            return Choice(None, self._find_max_probabilities(*zip(*beliefs, strict=True)))
        return Choice(
            compute_rung_budget(epsilon, best[0]), self._find_max_probabilities(cap_indices, best[1].tolist())
        )

    def prove_caps(self, outputs: Outputs, epsilon: float, steps: int = 1) -> list[tuple[bool, tuple[str, ...]]]:
        """Return cells of outputs that prove that no output of the next release exceeds a cap.

        See `Outputs.prove_bounds`.

        Parameters
        ----------
        outputs, steps
            Arguments of `choose`.
        epsilon
            Budget of the release.

        Returns
        -------
        list of tuple
            For each tracked cap, and for its lower bound after it: whether it is certain, and the cells.
        """
        if not self.tracked_caps:
            return []
        bounds = self._build_bounds(outputs, steps)[1]
        return [outputs.prove_bounds(bounds.select(index), epsilon) for index in range(len(bounds.log_odds))]

    def _build_bounds(self, outputs: Outputs, steps: int) -> tuple[list[int], OddsBounds, FloatArray]:
        """Return the cap index of each bound, the bounds, and the current log odds.

        The cap index of a lower bound is -1.
        """
        columns: list[tuple[FloatArray, FloatArray, float]] = []
        cap_indices: list[int] = []
        for number, _, cap, odds in self.tracked_caps:
            split = odds.split(steps)
            columns.append((split.log_with, split.log_without, _compute_logit(cap.probability)))
            cap_indices.append(number)
            # A lower bound on the event is an upper bound on its complement.
            if cap.min_probability > 0:
                columns.append((split.log_without, split.log_with, -_compute_logit(cap.min_probability)))
                cap_indices.append(-1)
        masses = [outputs.sum_by_place(np.stack([column[part] for column in columns], axis=1)) for part in range(2)]
        bounds = OddsBounds.from_masses(masses[0], masses[1], np.array([column[2] for column in columns]))
        return cap_indices, bounds, np.array([log_sum(first) - log_sum(second) for first, second, _ in columns])

    def _find_max_probabilities(self, cap_indices: Sequence[int], log_odds: Sequence[float]) -> tuple[float, ...]:
        """Return the largest probability for each cap, from log odds."""
        max_probabilities = [0.0] * self.num_caps
        for index, value in zip(cap_indices, log_odds, strict=True):
            if index >= 0:
                max_probabilities[index] = max(max_probabilities[index], _compute_expit(value))
        return tuple(max_probabilities)

    @check_arguments
    def update(self, log_likelihood: npt.ArrayLike, steps: int = 1) -> None:
        """Process a release. See `EventOdds.update`. Priors that the release excludes are dropped.

        Parameters
        ----------
        log_likelihood
            ``(N,)``: ``log p(z | s)``.
        steps
            Number of timesteps since the last release.
        """
        kept = []
        for tracked in self.tracked_caps:
            try:
                tracked.odds.update(log_likelihood, steps)
            except StochasticError:
                # A release that is impossible under another prior refutes that prior. Under the model it is an error.
                if tracked.odds.is_model_prior:
                    raise
                continue
            kept.append(tracked)
        self.tracked_caps = kept

    @property
    def splits(self) -> tuple[Split, ...]:
        """The beliefs before a release at the next step, split by the event, for each tracked cap."""
        return tuple(tracked.odds.split() for tracked in self.tracked_caps)


def compute_rung_budget(epsilon: float, rung: int) -> float:
    """Return the budget on a rung below another budget, rounded down to four digits.

    Examples
    --------
    >>> [compute_rung_budget(0.5, rung) for rung in (0, 1, 16, 96)]
    [0.5, 0.4788, 0.25, 0.007812]
    """
    if rung == 0:
        return epsilon
    # Round down, so that a rung never spends more than it states. The factor 1 + 1e-12 preserves four-digit numbers.
    exact = epsilon * 2.0 ** (-rung / _RUNGS_PER_OCTAVE)
    digits = 3 - floor(log10(exact))
    return float(floor(exact * 10.0**digits * (1 + 1e-12)) / 10.0**digits)


def _find_first_safe_rung(check: Callable[[int], tuple[bool, FloatArray, float]]) -> tuple[int, FloatArray] | None:
    """Return the first safe rung and the largest log odds seen there. None if none is safe.

    The log odds grow approximately in proportion to the budget. Therefore the distance of a rung from being safe, or
    from failing, predicts the next rung to check.

    Parameters
    ----------
    check
        Function of a rung that returns whether it is safe, the largest log odds seen, and the factor of the budget that
        these would allow.
    """
    # The rung that is found may depend on the start of the search. It is therefore always rung 0, and not the rung of
    # the previous release: otherwise plans that were not sampled, or a restart of the process, would change the budget.
    # Invariant: rung `failing` is not safe, and `best` is. Once there is a `best`, the next rung is above `failing` and
    # at most `best`: the search ends if it is `best`. Every rung is checked at most once: there are at most 97 checks,
    # usually fewer than five. Rungs between `failing` and the result may be safe.
    failing = -1
    rung = 0
    best = None
    while True:
        is_safe, max_log_odds, factor = check(rung)
        if is_safe:
            best = (rung, max_log_odds)
            # The factor may be infinite; this power of two leads beyond all rungs.
            better = rung - int(_RUNGS_PER_OCTAVE * log2(min(factor, 2.0**NUM_RUNGS)))
        else:
            if rung == NUM_RUNGS:
                return None
            failing = rung
            better = rung + max(1, ceil(_RUNGS_PER_OCTAVE * log2(1 / factor)) if 0 < factor < 1 else 1)
            better = min(better, NUM_RUNGS)
        if best is not None:
            better = max(min(better, best[0]), failing + 1)
            if better == best[0]:
                return best
        rung = better


def _check_prior(cap: Cap, odds: EventOdds, is_other: bool) -> None:
    """Check that a cap is not exceeded before the first release."""
    for name, relation, bound, is_violated in (
        ("probability", "above", cap.probability, odds.prior >= _compute_logit(cap.probability)),
        (
            "min_probability",
            "below",
            cap.min_probability,
            cap.min_probability > 0 and odds.prior <= _compute_logit(cap.min_probability),
        ),
    ):
        if is_violated:
            raise EventError(
                f"{name} of event '{cap.event}' must be {relation} its probability {_compute_expit(odds.prior):.4g} "
                "before the "
                f"first release under {'another prior' if is_other else 'the model'}, got {bound:g}"
            )


def _compute_logit(probability: float) -> float:
    return log(probability) - log(1 - probability)


def _compute_expit(log_odds: float) -> float:
    from scipy.special import expit  # imported here, because the import takes a tenth of a second

    return float(expit(log_odds))


@check_arguments
def read_priors(path: str | Path, space: StateSpace) -> tuple[FloatArray, ...]:
    """Read initial distributions over the states of a space.

    Parameters
    ----------
    path
        CSV file with a column ``state`` (names of locations, or indices of cells). Every other column is a distribution
        with its own name. States without a row have probability zero.
    space
        The states.

    Returns
    -------
    tuple of FloatArray
        Distributions, ``(N,)`` each.

    Raises
    ------
    DataFileError
        If the file cannot be read, a state is repeated or does not exist, there is no distribution, or a column is not
        a distribution.
    """
    table = Table.read(path)
    names = space.names if isinstance(space, Places) else tuple(str(state) for state in range(space.size))
    state_of_name = {name: state for state, name in enumerate(names)}
    rows: list[int] = []
    for row, name in enumerate(table.texts("state")):
        if name not in state_of_name or state_of_name[name] in rows:
            problem = "is not a state of the model" if name not in state_of_name else "must occur once, got it twice"
            raise table.refusal(row, f"state {name!r} {problem}")
        rows.append(state_of_name[name])
    priors = []
    for column in table.columns:
        if column == "state":
            continue
        values = np.zeros(space.size)
        values[rows] = table.values(column, float)
        try:
            priors.append(as_distribution(values, space.size, f"column {column!r}"))
        except StochasticError as problem:
            raise DataFileError(path, str(problem)) from None
    if not priors:
        raise DataFileError(path, "must have a column of probabilities for each prior, next to 'state'")
    return tuple(priors)
