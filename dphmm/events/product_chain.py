"""The odds of an event over the product of the Markov chain and the event's automaton.

The product has one row of chain states for each progress of the event. The masses of the releases so far move forward
over it. The probabilities that the event will and will not happen move backward. Their product is the posterior of the
event (PriSTE, Cao et al., ICDE 2019). All of them are logarithms, so that nothing underflows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import isqrt
from sys import float_info
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arrays import FloatArray, IntArray, as_distribution, as_floats, as_integers
from dphmm.errors import EventError, InvalidInputError, StochasticError
from dphmm.events.automaton import Automaton
from dphmm.events.event import Event
from dphmm.model.forward_backward import run_backward_pass
from dphmm.model.model import MarkovModel
from dphmm.model.multi_step import Gap, build_homogeneous_gap
from dphmm.model.outside_states import OutsideStates
from dphmm.model.transition_operator import IDENTITY, LOG_RANGE, Operator, TransitionOperator, log_sum
from dphmm.stochastic_matrix import MIN_PROBABILITY, MatrixLike, as_stochastic
from dphmm.validation import check_arguments

# Backward probabilities are cached for all steps up to this number of values. Beyond it they are recomputed by blocks.
_CACHE_VALUES = 1 << 23


class Chain:
    """The transitions of a path from one step to a later one.

    Parameters
    ----------
    size
        Number of states of the chain, ``P``.
    operator
        Function of a step and a positive number of steps that returns the transition operator from this step.
    outside
        Outside states of the model; None if the states of the chain are the ``N`` states of events and releases.
    """

    def __init__(
        self, size: int, operator: Callable[[int, int], Operator], outside: OutsideStates | None = None
    ) -> None:
        self.size = size
        self.operator = operator
        self.outside = outside
        self.states = None if outside is None else outside.state_of_context
        # The number of states N of events and releases.
        self.num_states = size if outside is None else outside.size

    @classmethod
    def from_model(cls, model: MarkovModel, first: int | None) -> Chain:
        """Create the chain of a model.

        Parameters
        ----------
        model
            The model.
        first
            Slot of step 0, for a time-dependent model.
        """
        return cls(model.chain_size, partial(_get_model_operator, model, first), model.outside)

    @classmethod
    def from_matrices(cls, transition: MatrixLike | Sequence[MatrixLike], size: int) -> Chain:
        """Create a chain from a matrix for all steps, or one for each step.

        Parameters
        ----------
        transition
            A matrix ``(N, N)``, dense or sparse, or one matrix for each step.
        size
            Number of states if there is no matrix.

        Raises
        ------
        StochasticError
            If a matrix is not stochastic, or has a positive probability below 1e-200.
        EventError
            If the sizes differ.
        """
        several = _as_matrices(transition)
        names = ["transition matrix"] if several is None else [f"transition matrix {i}" for i in range(len(several))]
        steppers = [
            TransitionOperator(as_stochastic(matrix, name, compressed=True, smallest=MIN_PROBABILITY))
            for matrix, name in zip([transition] if several is None else several, names, strict=True)
        ]
        sizes = [int(stepper.matrix.shape[0]) for stepper in steppers] or [size]
        for other in sizes:
            if other != sizes[0]:
                raise EventError(f"transition matrices must have the same size, got {sizes[0]} and {other} states")
        return cls(sizes[0], partial(_get_matrix_operator, steppers, several is None))

    def begin(self, initial: npt.ArrayLike, name: str = "initial distribution") -> FloatArray:
        """Return the logarithms ``(1, P)`` of a distribution ``(N,)`` of the state at step 0."""
        first = as_distribution(initial, self.num_states, name)
        with np.errstate(divide="ignore"):
            return np.log((first if self.outside is None else self.outside.split_initial(first))[np.newaxis])

    def compile(self, event: Event) -> Automaton:
        """Compile an event over the states of the chain."""
        if self.outside is None:
            return Automaton.compile(event, self.num_states)
        # Users outside the region are in an additional state N, which is in no location of the event.
        return Automaton.compile(event, self.num_states + 1).lift(self.outside.inside_state)

    def expand(self, rows: FloatArray) -> FloatArray:
        """Map values of states, ``(…, N)``, to the states of the chain, ``(…, P)``."""
        return rows if self.states is None else rows[..., self.states]

    def sum_by_state(self, logs: FloatArray) -> FloatArray:
        """Sum log masses of the chain's states, ``(P,)``, for each state, ``(N,)``."""
        if self.states is None:
            return logs
        sums = np.full(self.num_states, -np.inf)
        np.logaddexp.at(sums, self.states, logs)
        return sums


# A transition matrix ``(N, N)``, dense or sparse; one for each step, from time 0 to 1 first; or a `Chain`.
Transition = MatrixLike | Sequence[MatrixLike] | Chain


# Functions of this module rather than of a chain, so that chains can be pickled.


def _get_model_operator(model: MarkovModel, first: int | None, step: int, steps: int) -> Operator:
    return model.operator(steps, None if first is None else first + step)


def _get_matrix_operator(
    steppers: Sequence[TransitionOperator], is_homogeneous: bool, step: int, steps: int
) -> Operator:
    if is_homogeneous:
        return steppers[0] if steps == 1 else build_homogeneous_gap(steppers[0], steps)
    if step + steps > len(steppers):
        raise EventError(
            f"there must be a transition matrix for each of {step + steps} steps, or one for all, got {len(steppers)}"
        )
    return Gap([([(stepper, 1)], 1) for stepper in steppers[step : step + steps]])


def _as_matrices(transition: Any) -> list[Any] | None:
    """Return the list of matrices if there is one for each step. None for a single matrix."""
    if sparse.issparse(transition):
        return None
    if isinstance(transition, Sequence) and any(sparse.issparse(matrix) for matrix in transition):
        return list(transition)
    try:
        array = np.asarray(transition)
    except ValueError:
        raise StochasticError("the transition matrix must be square, got rows of different lengths") from None
    return list(array) if array.ndim == 3 else None


class ProductChain:
    """The product of a chain and the automaton of an event.

    Parameters
    ----------
    chain
        The chain.
    event
        The event.
    """

    def __init__(self, chain: Chain, event: Event) -> None:
        self.chain = chain
        self.automaton = chain.compile(event)
        self.size = chain.size
        self._last = event.last
        max_progress = max(len(layer.after) for layer in self.automaton.layers)
        # Backward probabilities are kept for all steps, or only at the end of each block and recomputed within it. With
        # blocks of √T steps the memory is O(√T) instead of O(T), for at most twice the time.
        self._block = event.last + 1
        if 2 * max_progress * self.size * event.last > _CACHE_VALUES:
            self._block = max(1, isqrt(event.last))
        # After the last step no progress is undecided.
        to_come = np.empty((2, 0, self.size))
        # The backward probabilities at the end of each block, and those of all steps of one block.
        self._marks = {event.last: to_come}
        self._within: dict[int, FloatArray] = {}
        for step in range(event.last - 1, -1, -1):
            to_come = self._step_back(to_come, step)
            if step % self._block == 0:
                self._marks[step] = to_come
            if step < self._block:
                self._within[step] = to_come

    def begin(self, initial: FloatArray) -> FloatArray:
        """Return the log masses ``(k, P)`` at step 0, by progress, of a distribution ``(1, P)``."""
        return self._apply_layer(initial, 0)

    def advance(self, masses: FloatArray, step: int, end: int) -> FloatArray:
        """Return the masses at a later step, by progress."""
        while step < end:
            # Without layers in between, one operator covers many steps. It has faster ways to cross a gap.
            pause = end if step >= self._last else min(end, self.automaton.event.first - 1)
            steps = max(1, pause - step)
            masses = _move_rows(self.chain.operator(step, steps), masses, back=False)
            step += steps
            masses = self._apply_layer(masses, step)
        return masses

    def sum_by_outcome(self, masses: FloatArray, step: int) -> tuple[float, float]:
        """Return the log masses with which the event happens and does not happen."""
        happens, fails = self._split_by_outcome(masses, step)
        return log_sum(happens), log_sum(fails)

    def sum_states_by_outcome(self, masses: FloatArray, step: int) -> tuple[FloatArray, FloatArray]:
        """Return the log masses ``(P,)`` of each state with and without the event."""
        happens, fails = (
            np.logaddexp.reduce(half, axis=0, initial=-np.inf) for half in self._split_by_outcome(masses, step)
        )
        return happens, fails

    def _split_by_outcome(self, masses: FloatArray, step: int) -> list[FloatArray]:
        """Return the log masses ``(j, P)`` with and without the event."""
        cut = self.automaton.get_slices(step)
        halves = [masses[cut.yes], masses[cut.no]]
        if cut.open.start == cut.open.stop:
            return halves
        # Undecided mass splits by the backward probability h_t(s) = Pr(E | s_t = s, progress).
        to_come = self._get_log_outcome_probabilities(step)
        return [np.concatenate([way, masses[cut.open] + half]) for way, half in zip(halves, to_come, strict=True)]

    def _apply_layer(self, masses: FloatArray, step: int) -> FloatArray:
        """Return the masses by the progress after a step, from those by the progress before it."""
        layer = self.automaton.get_layer(step)
        if layer is None:
            return masses
        # Arcs without a mask come first (see `automaton`). So a row is filled as a whole before masses are added to
        # parts of it. Entries that no arc fills stay -inf, because they are impossible.
        joined = np.full((len(layer.after), self.size), -np.inf)
        filled = set[int]()
        for source, target, where in layer.arcs:
            added = masses[source, where]
            joined[target, where] = np.logaddexp(joined[target, where], added) if target in filled else added
            filled.add(target)
        return joined

    def _get_log_outcome_probabilities(self, step: int) -> FloatArray:
        """Return the log probabilities that the event will and will not happen.

        They are those of each undecided progress and state.

        Returns
        -------
        FloatArray
            ``(2, k, P)``.
        """
        if step not in self._within:
            begin = step - step % self._block
            end = min(begin + self._block, self._last)
            to_come = self._marks[end]
            self._within = {}
            for earlier_step in range(end - 1, begin - 1, -1):
                self._within[earlier_step] = to_come = self._step_back(to_come, earlier_step)
        return self._within[step]

    def _step_back(self, later: FloatArray, step: int) -> FloatArray:
        """Return the log outcome probabilities after a step, from those after the next step."""
        layer = self.automaton.get_layer(step + 1)
        if layer is not None:
            after = np.full((2, len(layer.after), self.size), -np.inf)
            after[0, layer.slices_after.yes] = after[1, layer.slices_after.no] = 0.0
            after[:, layer.slices_after.open] = later
            later = np.empty((2, len(layer.before), self.size))
            for source, target, where in layer.arcs:
                later[:, source, where] = after[:, target, where]
            later = later[:, layer.slices_before.open]
        moved = _move_rows(self.chain.operator(step, 1), later.reshape(-1, self.size), back=True)
        return moved.reshape(later.shape)


def _move_rows(operator: Operator, logs: FloatArray, back: bool) -> FloatArray:
    """Move rows of logarithms forward or backward, in one product if plain floats suffice."""
    if operator.linear_products is not None and len(logs) > 1:
        tops = np.maximum(logs.max(axis=1, keepdims=True), -float_info.max)
        below = logs - tops
        if not (below[below < -LOG_RANGE] > -np.inf).any():
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(operator.linear_products[back].multiply(np.exp(below).T).T) + tops)
    return np.array([operator.propagate_backward(row) if back else operator.propagate_forward(row) for row in logs])


@dataclass(frozen=True, eq=False)
class Split:
    """A distribution over states, split by an event.

    Parameters
    ----------
    log_with, log_without
        ``(N,)``: logarithms of ``Pr(s, E)`` and ``Pr(s, not E)``, up to a common constant; minus infinity for zero.
    """

    log_with: FloatArray = field(repr=False)
    log_without: FloatArray = field(repr=False)

    @property
    def log_odds(self) -> float:
        """The log odds ``logit Pr(E)``."""
        return log_sum(self.log_with) - log_sum(self.log_without)


class EventOdds:
    """The odds of an event, updated with each release.

    Parameters
    ----------
    transition
        ``(N, N)`` row-stochastic, dense or sparse; or one matrix for each step, starting with step 0 to step 1.
    initial
        ``(N,)``: distribution of the state at step 0.
    event
        The event. Its steps are counted from 0.
    description
        Text of the event for messages. Defaults to its own.
    lead
        Step of the first release; positive for an event that begins before it.

    Raises
    ------
    EventError
        If the event contains a state that does not exist, or is certain or impossible before the first release.
    StochasticError
        If a matrix or the distribution is invalid, or a positive transition probability is below 1e-200.

    Examples
    --------
    >>> from dphmm.events import Presence
    >>> odds = EventOdds([[.6, .4, 0], [.3, .4, .3], [0, .5, .5]], [.5, .3, .2], Presence([2], 1, 2))
    >>> round(odds.prior, 6), round(odds.update(np.log([.6, .25, .1])), 6)
    (-0.772216, -0.590511)
    """

    def __init__(
        self,
        transition: Transition,
        initial: npt.ArrayLike,
        event: Event,
        description: str | None = None,
        lead: int = 0,
    ) -> None:
        self.lead = lead
        chain = transition
        if not isinstance(chain, Chain):
            chain = Chain.from_matrices(chain, as_floats(initial, "initial distribution", StochasticError).size)
        first = chain.begin(initial)
        self._path = ProductChain(chain, event)
        self.event = event
        # The step of the last release; None before the first.
        self.last_step: int | None = None
        self._masses: FloatArray | None = None
        # The last prediction: a step and the masses at it, before a release.
        self._predicted: tuple[int, FloatArray] | None = None
        # Whether the initial distribution is the model's own; see `with_initial`.
        self.is_model_prior = True
        self._begin(first)
        if not np.isfinite(self.prior):
            raise EventError(
                f"the event '{_shorten(description or event)}' must be neither certain nor impossible under the model "
                f"before the first release, got probability {int(self.prior > 0)}"
            )

    def _begin(self, initial: FloatArray) -> None:
        self._initial = initial
        yes, no = self._path.sum_by_outcome(self._path.begin(initial), 0)
        # logit Pr(E) before the first release
        self.prior = yes - no
        # logit Pr(E | all releases)
        self.log_odds = self.prior

    def with_initial(self, initial: npt.ArrayLike) -> EventOdds:
        """Return the odds under another initial distribution ``(N,)``, without releases.

        The event may be certain or impossible under it.

        Parameters
        ----------
        initial
            ``(N,)``: the other distribution of the state at step 0.

        Returns
        -------
        EventOdds
            Odds without releases.

        Raises
        ------
        StochasticError
            If it is not a distribution over the states.
        """
        other = copy(self)
        other.last_step = other._masses = other._predicted = None
        other.is_model_prior = False
        other._begin(self._path.chain.begin(initial, "the prior"))
        return other

    def copy(self) -> EventOdds:
        """Return an independent copy that has processed the same releases.

        Returns
        -------
        EventOdds
            The copy.
        """
        return copy(self)

    @property
    def masses(self) -> FloatArray | None:
        """The log masses of the releases so far, ``(progress, P)``. None before the first."""
        return self._masses

    def with_masses(self, last_step: int, masses: FloatArray) -> EventOdds:
        """Return the odds after earlier releases.

        Parameters
        ----------
        last_step
            Step of the last release.
        masses
            The `masses` after it.

        Returns
        -------
        EventOdds
            A copy that has processed these releases.

        Raises
        ------
        InvalidInputError
            If the masses are not those of this event at this step.
        """
        other = copy(self)
        yes = no = np.nan
        if last_step >= self.lead and (masses < np.inf).all():
            # Masses of another event have other shapes.
            with suppress(ValueError, IndexError, KeyError):
                yes, no = self._path.sum_by_outcome(masses, last_step)
        # One of them is minus infinity once the event is decided.
        if np.isnan(yes - no):
            raise InvalidInputError(
                f"masses must be those of event '{_shorten(self.event)}' at step {last_step}, got shape {masses.shape}"
            )
        other.last_step = last_step
        other._masses = masses
        other._predicted = None
        other.log_odds = yes - no
        return other

    @check_arguments
    def update(self, log_likelihood: npt.ArrayLike, steps: int = 1) -> float:
        """Process a release.

        Parameters
        ----------
        log_likelihood
            ``(N,)``: ``log p(z | s)`` up to a constant, minus infinity if state s cannot give the release. All NaN if
            the timestep was withheld.
        steps
            Number of timesteps since the last release, 0 for another one at the same step. The first release ignores
            it.

        Returns
        -------
        float
            The change of the log odds by all releases so far: ``logit Pr(E | z_1..t) - logit Pr(E)``.

        Raises
        ------
        StochasticError
            If the release is impossible under the model. Nothing changes then.
        InvalidInputError
            If the shape is wrong, a value is plus infinity, only some are NaN, or `steps` is negative.
        """
        chain = self._path.chain
        rows = chain.expand(_check_rows(as_floats(log_likelihood, "log_likelihood")[np.newaxis], chain.num_states))
        return self._process(rows[0], self._predict_after(steps))

    @check_arguments
    def split(self, steps: int = 1) -> Split:
        """Return the belief before the next release, split by the event.

        Parameters
        ----------
        steps
            Number of timesteps since the last release. The first release ignores it.

        Returns
        -------
        Split
            Both parts of the belief.

        Raises
        ------
        InvalidInputError
            If ``steps`` is negative.
        """
        step, masses = self._predict_after(steps)
        happens, fails = self._path.sum_states_by_outcome(masses, step)
        return Split(self._path.chain.sum_by_state(happens), self._path.chain.sum_by_state(fails))

    def _predict_after(self, steps: int) -> tuple[int, FloatArray]:
        """Return the step of the next release and the masses before it."""
        if steps < 0:
            raise InvalidInputError(f"steps must not be negative, got {steps}")
        return self._predict_at(self.lead if self.last_step is None else self.last_step + steps)

    def _predict_at(self, step: int) -> tuple[int, FloatArray]:
        if self._predicted is None or self._predicted[0] > step:
            masses = self._masses
            self._predicted = (0, self._path.begin(self._initial)) if masses is None else (self.last_step or 0, masses)
        if self._predicted[0] < step:  # continue from the last prediction instead of predicting from the last release
            self._predicted = (step, self._path.advance(self._predicted[1], self._predicted[0], step))
        return self._predicted

    def _process(self, row: FloatArray, moved: tuple[int, FloatArray]) -> float:
        """Process the log likelihoods ``(P,)`` of a release, given step and masses before it."""
        step, masses = moved
        # The state changes only after the release is known to be possible. An impossible one leaves it unchanged.
        weighted = _apply_likelihood(masses, row)
        yes, no = self._path.sum_by_outcome(weighted, step)
        if yes == no == -np.inf:
            raise StochasticError("the release is impossible under the model: no path has positive probability")
        self.last_step = step
        self._masses = weighted
        self._predicted = None
        self.log_odds = yes - no
        return self.log_odds - self.prior


@check_arguments
def log_odds(
    transition: Transition,
    initial: npt.ArrayLike,
    log_likelihoods: npt.ArrayLike,
    event: Event,
    release_steps: npt.ArrayLike | None = None,
) -> FloatArray:
    """Compute the change of an event's log odds after each release.

    It is ``logit Pr(E | z_1..t) - logit Pr(E)``.

    Parameters
    ----------
    transition, initial
        Arguments of `EventOdds`.
    log_likelihoods
        ``(T, N)``: ``log p(z_t | s)``, minus infinity if state s cannot give the release. A constant may be added to a
        row. A row of NaN is a withheld timestep.
    event
        The event. Its steps are counted from 0.
    release_steps
        ``(T,)``: step of each release, from 0, not decreasing. Equal steps mean several releases at one step. Defaults
        to 0, 1, 2 and so on.

    Returns
    -------
    FloatArray
        ``(T,)``; infinite once the releases prove or disprove the event.

    Raises
    ------
    EventError, StochasticError
        If `EventOdds` raises them, or a release is impossible under the model.
    InvalidInputError
        If shapes do not match, or steps decrease.

    Notes
    -----
    Nothing underflows, even if likelihoods differ widely. A step takes one sparse product for each progress state
    forward, and two backward.

    Examples
    --------
    Three states, observed through noise at steps 0 to 3:

    >>> from dphmm.events import Pattern, Presence
    >>> chain = [[.6, .4, 0], [.3, .4, .3], [0, .5, .5]], [.5, .3, .2]
    >>> noise = np.log([[.6, .3, .1], [.25, .5, .25], [.1, .3, .6]])
    >>> log_odds(*chain, noise[:, [0, 1, 2, 2]].T, Presence([2], 1, 2)).round(6)
    array([-0.590511, -0.468839,  0.690634,  1.145303])
    >>> log_odds(*chain, noise[:, [0, 1, 2, 2]].T, Pattern([[1], [2]], 1)).round(6)
    array([-0.041325,  0.27461 ,  1.415043,  1.809419])
    """
    odds = EventOdds(transition, initial, event)
    rows, steps = as_releases(log_likelihoods, release_steps, odds._path.chain)
    changes = np.zeros(len(rows))
    for t, row in enumerate(rows):
        try:
            changes[t] = odds._process(row, odds._predict_at(int(steps[t])))
        except StochasticError as problem:
            raise StochasticError(f"release {t}: {problem}") from None
    return changes


@check_arguments
def compute_smoothed_event_probabilities(
    transition: Transition,
    initial: npt.ArrayLike,
    log_likelihoods: npt.ArrayLike,
    event: Event,
    release_steps: npt.ArrayLike | None = None,
) -> FloatArray:
    """Compute the smoothed probability that the event has happened by each release.

    It is ``Pr(E is certain from s_0..t | z_1..T)``, given all releases.

    Parameters
    ----------
    transition, initial, log_likelihoods, event, release_steps
        Arguments of `log_odds`.

    Returns
    -------
    FloatArray
        ``(T,)``, not decreasing. If the releases extend beyond the event's last step, the last value is ``Pr(E |
        z_1..T)``.

    Raises
    ------
    EventError, StochasticError, InvalidInputError
        If `log_odds` raises them.

    Examples
    --------
    >>> from dphmm.events import Presence
    >>> chain = [[.6, .4, 0], [.3, .4, .3], [0, .5, .5]], [.5, .3, .2]
    >>> noise = np.log([[.6, .3, .1], [.25, .5, .25], [.1, .3, .6]])
    >>> compute_smoothed_event_probabilities(*chain, noise[:, [0, 1, 2, 2]].T, Presence([2], 1, 2)).round(6)
    array([0.      , 0.124007, 0.592205, 0.592205])
    """
    odds = EventOdds(transition, initial, event)
    path = odds._path
    rows, steps = as_releases(log_likelihoods, release_steps, path.chain)
    operators = [IDENTITY]
    operators += [path.chain.operator(a, b - a) if b > a else IDENTITY for a, b in pairwise(steps.tolist())]
    # A row of NaN is a withheld timestep, with likelihood 1: 0 in logarithms.
    later = run_backward_pass(operators, np.nan_to_num(rows, nan=0.0, neginf=-np.inf))
    probabilities = np.zeros(len(rows))
    for t, row in enumerate(rows):
        odds._process(row, odds._predict_at(int(steps[t])))
        assert odds._masses is not None, "a release was processed"
        joint = odds._masses + later[t]
        probabilities[t] = np.exp(log_sum(joint[path.automaton.get_slices(int(steps[t])).yes]) - log_sum(joint))
    return probabilities


# ---- checks of arrays ------------------------------------------------------------------------------------------------


def as_releases(
    log_likelihoods: npt.ArrayLike, release_steps: npt.ArrayLike | None, chain: Chain
) -> tuple[FloatArray, IntArray]:
    """Check log likelihoods ``(T, N)`` and expand them to the chain's states, ``(T, P)``.

    Returns them with the step of each release.
    """
    rows = as_floats(log_likelihoods, "log_likelihoods")
    if rows.ndim != 2 or not len(rows):
        raise InvalidInputError(
            f"log_likelihoods must have a row per release and a column per state, got shape {rows.shape}"
        )
    steps = np.arange(len(rows)) if release_steps is None else as_integers(release_steps, "release_steps")
    if steps.shape != (len(rows),) or steps.dtype.kind not in "iu":
        raise InvalidInputError(
            f"release_steps must be one integer per row, got shape {steps.shape} and type {steps.dtype}"
        )
    if steps[0] < 0 or (np.diff(steps) < 0).any():
        raise InvalidInputError("release_steps must be non-negative and must not decrease; sort the releases")
    return chain.expand(_check_rows(rows, chain.num_states)), steps.astype(np.int64)


def _check_rows(rows: FloatArray, size: int) -> FloatArray:
    """Return the rows after checking their length and their values."""
    if rows.shape[1:] != (size,):
        raise InvalidInputError(f"log_likelihoods must have {size} columns, one per state, got shape {rows.shape}")
    with np.errstate(invalid="ignore"):
        sums = rows.sum(axis=1)  # NaN if a value is NaN, or there are infinities of both signs
    for row in np.flatnonzero(np.isnan(sums) | (sums == np.inf)).tolist():
        if not np.isnan(rows[row]).all():
            raise InvalidInputError(
                f"log_likelihoods must be log densities, or all NaN for a withheld timestep, got plus infinity or some "
                f"NaN in row {row}"
            )
    return rows


def _apply_likelihood(masses: FloatArray, row: FloatArray) -> FloatArray:
    """Multiply masses by the likelihoods of a release, up to a factor. NaN means no release."""
    if np.isnan(row[0]):
        return masses
    # Scale by the largest mass, because masses would otherwise decrease without bound over a session; -inf stays -inf.
    weighted = masses + row
    return weighted - max(float(weighted.max()), -float_info.max)


def _shorten(event: Any) -> str:
    text = str(event)
    return text if len(text) <= 60 else text[:57] + "…"
