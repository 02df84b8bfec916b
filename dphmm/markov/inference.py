"""What a sequence of observations says of the states: the filter and the smoother.

The filter is a pass forwards through the observations; the smoother is its product with a pass backwards. Both follow
the structure of the model, so that no possible state is ever lost to an underflow and no impossible one gains mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_distribution, as_integers, as_numbers, locked
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.markov.belief import Belief
from dphmm.markov.beliefs import Beliefs
from dphmm.markov.masses import Masses
from dphmm.markov.model import MarkovModel
from dphmm.markov.passes import Pass, Rows, passed, rows_of
from dphmm.stochastic import MatrixLike


@checked
@dataclass(frozen=True, eq=False)
class Observations:
    """A sequence of releases as its log densities.

    Parameters
    ----------
    log_likelihood
        ``(T, N)``: ``log p(z_t | s)`` of each release in every state, minus infinity where state s could not give it.
        A constant per row changes the evidence and nothing else.
    steps
        ``(T,)``: the time steps of the model between each release and the one before, 0 for another release about the
        same moment; the first entry is not used. Left out, 1 throughout.
    first
        The slot of the first release, for models that vary with time; left out, nobody knows.

    Raises
    ------
    InvalidInputError
        When a shape does not fit, there is no release, a density is NaN or plus infinity, or a step is negative.
    """

    log_likelihood: FloatArray
    steps: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    first: int | None = None

    def __post_init__(self) -> None:
        rows = np.ascontiguousarray(as_numbers(self.log_likelihood, "log_likelihood", StochasticError))
        if rows.ndim != 2 or not rows.size:
            raise InvalidInputError(
                f"log_likelihood has shape {rows.shape}; give one row per release, a column per state"
            )
        if np.isnan(rows).any() or (rows == np.inf).any():
            row = int(np.flatnonzero((np.isnan(rows) | (rows == np.inf)).any(axis=1))[0])
            raise InvalidInputError(f"log_likelihood: row {row} holds NaN or plus infinity; give log densities")
        steps = as_integers(self.steps, "steps").copy()
        steps = steps if steps.size else np.ones(len(rows), dtype=np.int64)
        if steps.shape != (len(rows),) or (steps[1:] < 0).any():
            raise InvalidInputError(
                f"steps have shape {steps.shape}; give one per release ({len(rows)}), none negative"
            )
        vars(self).update(log_likelihood=locked(rows), steps=locked(steps))

    def __len__(self) -> int:
        return len(self.log_likelihood)

    @property
    def size(self) -> int:
        """The number of states ``N``."""
        return int(self.log_likelihood.shape[1])

    @property
    def slots(self) -> IntArray | None:
        """``(T,)``: the slots of the releases; None where nobody knows."""
        return None if self.first is None else self.first + np.cumsum(self.gaps)

    @property
    def gaps(self) -> IntArray:
        """``(T,)``: the steps before each release, none before the first."""
        steps = self.steps.copy()
        steps[0] = 0
        return steps


class Filtering:
    """What is known at each release from the releases up to it.

    Parameters
    ----------
    model, observations, initial
        As `filter_releases` takes them.

    Attributes
    ----------
    rows
        The masses of `filtered`.
    log_evidence
        ``log p(z_1..T)``: up to the constants of the rows.
    """

    def __init__(self, model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None) -> None:
        self._model, self._observations = model, observations
        self._first = first_masses(model, observations, initial)
        moving = model.moving(observations.gaps, observations.slots)
        found = passed(moving, self._first, rows_over(model, observations))
        self.rows: Rows = found.after
        self.log_evidence = float(found.log_sums.sum())

    @classmethod
    def of(
        cls, model: MarkovModel, observations: Observations, predicted: Sequence[Belief], filtered: Sequence[Belief]
    ) -> Filtering:
        """The same of beliefs before and after each release, of somebody who has updated them by it already."""
        made = object.__new__(cls)
        made._model, made._observations = model, observations
        made.rows = rows_of([belief.masses for belief in filtered])
        rows = zip(predicted, filtered, observations.log_likelihood, strict=True)
        made.log_evidence = sum(_log_evidence(*one) for one in rows)
        vars(made).update(filtered=tuple(filtered), predicted=tuple(predicted))
        return made

    @cached_property
    def filtered(self) -> Sequence[Belief]:
        """``p(s_t | z_1..t)``, one per release."""
        return self.at()

    def at(self, times: Sequence[int] | None = None) -> Beliefs:
        """The same, made of the rows when they are asked for; or of the releases of some numbers alone."""
        return Beliefs(self.rows, self._model.contexts, times)

    @cached_property
    def predicted(self) -> tuple[Belief, ...]:
        """``p(s_t | z_1..t-1)``, one per release, worked out when it is asked for."""
        model, slots = self._model, self._observations.slots
        first = Belief.owning(self._first, model.contexts)
        steps = self._observations.steps[1:].tolist()
        since = [None] * len(steps) if slots is None else slots[:-1].tolist()
        later = [one.predict(model, *how) for one, *how in zip(self.filtered, steps, since, strict=False)]
        return (first, *later)


def _log_evidence(prior: Belief, posterior: Belief, log_likelihood: FloatArray) -> float:
    """``log p(z)``, by Bayes' rule in one of the states that are most probable afterwards."""
    before, after = prior.of_states, posterior.of_states
    state = int(after.exponent.argmax())
    powers = float(before.exponent[state] - after.exponent[state])
    return log(before.mantissa[state] / after.mantissa[state]) + powers * log(2.0) + float(log_likelihood[state])


def filter_releases(model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None) -> Filtering:
    """The filter: what is known at each release.

    Parameters
    ----------
    model
        A Markov model over ``N`` states.
    observations
        The releases.
    initial
        ``(N,)``: the distribution of the state at the first release; left out, the model's.

    Raises
    ------
    StochasticError
        When ``initial`` is no distribution over the states, or no possible state could have given a release.
    InvalidInputError
        When observations and model differ in the number of states, or there are more than 2 ** 28 numbers to keep.
    ConfigurationError
        When the model varies with time, and the observations do not say when the first one is.
    """
    return Filtering(model, observations, initial)


def smooth_releases(
    model: MarkovModel, observations: Observations, filtering: Filtering, times: Sequence[int] | None = None
) -> Beliefs:
    """The smoother: ``p(s_t | z_1..T)``, what is known of each time once all releases are there.

    Parameters
    ----------
    model, observations
        As in `filter_releases`.
    filtering
        What that found.
    times
        The numbers of the releases that are asked about; left out, all.

    Returns
    -------
    sequence of Belief
        One per release.
    """
    return Beliefs(smoothed_rows(model, observations, filtering.rows), model.contexts, times)


def smoothed_rows(model: MarkovModel, observations: Observations, filtered: Rows) -> Rows:
    """The masses of `smooth_releases`, of those that a filter found, whoever ran it."""
    return filtered.times(passed_back(model, observations).before.reversed())


def passed_back(model: MarkovModel, observations: Observations) -> Pass:
    """The pass backwards, the last release first: what the later releases say of each state, and all from it on."""
    nothing = Masses.of(np.full(model.chain_size, 1.0 / model.chain_size))
    moving = model.moving_back(observations.gaps, observations.slots)
    return passed(moving, nothing, rows_over(model, observations)[::-1], before=True)


def first_masses(model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None) -> Masses:
    """The masses before the first release. Parameters and errors as in `filter_releases`."""
    if observations.size != model.size:
        raise InvalidInputError(f"the releases speak of {observations.size} states and the model of {model.size}")
    given = None if initial is None else as_distribution(initial, model.size)
    return model.first_masses(observations.first, given)


def rows_over(model: MarkovModel, observations: Observations) -> FloatArray:
    """The log densities of the releases in every state of the model's chain."""
    rows, contexts = observations.log_likelihood, model.contexts
    if contexts is None:
        return rows
    if len(rows) * len(contexts) > _MOST:
        raise InvalidInputError(
            f"{len(rows)} releases and {len(contexts)} pairs of states are more than fit into memory; infer from fewer "
            "releases at a time, or with a model of first order"
        )
    return np.ascontiguousarray(contexts.spread(rows))


_MOST = 1 << 28


@checked
def filter(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> FloatArray:
    """The filter on plain arrays: rows are ``p(s_t | z_1..t)``.

    Parameters
    ----------
    transition
        ``(N, N)`` row-stochastic, dense or sparse.
    initial
        ``(N,)``: the distribution of the first state.
    log_likelihoods
        ``(T, N)``: ``log p(z_t | s)``, minus infinity where state s could not give it.

    Returns
    -------
    FloatArray
        ``(T, N)``; each row sums to one. Possible states below about ``1e-308`` show as zero: `filter_releases` keeps
        them apart from impossible ones.

    Raises
    ------
    StochasticError
        When the matrix or the distribution is none, or no possible state could have given an observation.
    InvalidInputError
        When shapes do not fit, there is no row, or one holds NaN or plus infinity.

    Examples
    --------
    >>> filter([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).round(3)
    array([[0.5  , 0.5  ],
           [0.917, 0.083]])
    """
    return filter_releases(MarkovModel(transition, initial), Observations(np.asarray(log_likelihoods))).rows.values


@checked
def smooth(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> FloatArray:
    """The smoother on plain arrays: rows are ``p(s_t | z_1..T)``. Parameters, shape and errors as `filter`.

    Examples
    --------
    >>> smooth([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).round(3)
    array([[0.759, 0.241],
           [0.917, 0.083]])
    """
    model, observations = MarkovModel(transition, initial), Observations(np.asarray(log_likelihoods))
    return smoothed_rows(model, observations, filter_releases(model, observations).rows).values
