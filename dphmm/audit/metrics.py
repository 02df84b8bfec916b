"""How much a sequence of beliefs tells: expected error, top places, entropy, and the bounds they lie between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_distribution, as_integers, as_points
from dphmm.audit.facts import Facts
from dphmm.errors import InvalidInputError, StateError
from dphmm.markov.belief import Belief
from dphmm.markov.beliefs import Beliefs
from dphmm.markov.extended import ExtendedModel
from dphmm.markov.guess import expected_errors
from dphmm.markov.model import MarkovModel
from dphmm.markov.passes import Rows, passed

TOP = 5
"""How many places the 'top' metrics look at, unless told otherwise."""
_TOGETHER = 64
"""So many beliefs are looked at together."""


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What a belief at each of ``T`` times amounts to, as seen by who holds it. No truth is needed.

    Parameters
    ----------
    entropy
        ``(T,)`` bits: 0 where the state is known.
    spread
        ``(T,)``: the root mean square distance that the holder expects of the best single guess, the posterior mean;
        in the unit of the measurements.
    error
        ``(T,)``: the least expected distance of a single guess, in the same unit; told at most 2 % too small, and never
        too large. The guess is the geometric median of the belief.
    best
        ``(T,)``: the probability of the most probable state, which is how often guessing it succeeds where the belief
        is right.
    top
        ``(T,)``: the probability of the `k` most probable states together.
    k
        How many that are.
    """

    entropy: FloatArray = field(repr=False)
    spread: FloatArray = field(repr=False)
    error: FloatArray = field(repr=False)
    best: FloatArray = field(repr=False)
    top: FloatArray = field(repr=False)
    k: int

    def facts(self) -> Facts:
        """As plain values for JSON."""
        return {
            "entropy_bits_mean": float(self.entropy.mean()),
            "entropy_bits_least": float(self.entropy.min()),
            "spread_rms": _root_mean_square(self.spread),
            "error_median": float(np.median(self.error)),
            "error_least": float(self.error.min()),
            "best_guess_probability_mean": float(self.best.mean()),
            "best_guess_probability_most": float(self.best.max()),
            f"top_{self.k}_probability_mean": float(self.top.mean()),
            "entropy_bits": self.entropy.tolist(),
            "spread": self.spread.tolist(),
            "error": self.error.tolist(),
            "best_guess_probability": self.best.tolist(),
        }


@dataclass(frozen=True, eq=False)
class Accuracy:
    """What the same beliefs are worth against the truth, at each of ``T`` times. Private: it needs the truth.

    Parameters
    ----------
    expected_error
        ``(T,)``: the mean distance of a state drawn from the belief from the true one (Shokri et al., S&P 2011).
    estimate_error
        ``(T,)``: the distance of the posterior mean from the true measurement.
    best_hits
        ``(T,)``: whether the most probable state (of equal ones the lowest) is the true one.
    top_hits
        ``(T,)``: whether the true state is among the `k` most probable.
    k
        How many that are.
    """

    expected_error: FloatArray = field(repr=False)
    estimate_error: FloatArray = field(repr=False)
    best_hits: BoolArray = field(repr=False)
    top_hits: BoolArray = field(repr=False)
    k: int

    def facts(self) -> Facts:
        """As plain values for JSON."""
        return {
            "expected_error_mean": float(self.expected_error.mean()),
            "estimate_error_rms": _root_mean_square(self.estimate_error),
            "best_guess_right": float(self.best_hits.mean()),
            f"top_{self.k}_right": float(self.top_hits.mean()),
            "expected_error": self.expected_error.tolist(),
        }


def knowledge(beliefs: Sequence[Belief], points: npt.ArrayLike, k: int = TOP) -> Knowledge:
    """What the holder of some beliefs knows.

    Parameters
    ----------
    beliefs
        One per time, over ``N`` states.
    points
        ``(N, d)`` measurements.
    k
        How many states count as the top; at least 1.

    Raises
    ------
    InvalidInputError
        When there is no belief, or ``k`` is below 1, or points and beliefs do not fit.
    """
    places = _places(beliefs, points, k)
    which = beliefs.which if isinstance(beliefs, Beliefs) else np.arange(len(beliefs))
    some, number = np.unique(which, return_inverse=True)
    parts = np.array_split(some, -(-len(some) // _TOGETHER))
    found = [_of_some(_probabilities(beliefs, part), places, k) for part in parts]
    entropy, spread, error, best, top = np.concatenate(found, axis=1)[:, number]
    return Knowledge(entropy, spread, error, best, top, k)


def _probabilities(beliefs: Sequence[Belief], part: IntArray) -> FloatArray:
    if isinstance(beliefs, Beliefs):
        return beliefs.probabilities(part)
    return np.array([beliefs[t].probabilities for t in part])


def accuracy(beliefs: Sequence[Belief], points: npt.ArrayLike, truth: npt.ArrayLike, k: int = TOP) -> Accuracy:
    """What some beliefs are worth against the true states ``(T,)``; other parameters and errors as in `knowledge`.

    Raises
    ------
    StateError
        When a true state does not exist, or there is not one per belief.
    """
    places = _places(beliefs, points, k)
    true = _true_states(truth, len(beliefs), len(places))
    expected, estimate = np.empty(len(true)), np.empty(len(true))
    best, top = np.empty(len(true), dtype=np.bool_), np.empty(len(true), dtype=np.bool_)
    for t, (belief, state) in enumerate(zip(beliefs, true.tolist(), strict=True)):
        probabilities = belief.probabilities
        expected[t] = probabilities @ np.linalg.norm(places - places[state], axis=1)
        estimate[t] = np.linalg.norm(probabilities @ places - places[state])
        first = np.argsort(-belief.log_mass, kind="stable")[:k]
        best[t], top[t] = first[0] == state, state in first and belief.support[state]
    return Accuracy(expected, estimate, best, top, k)


def no_information(
    model: MarkovModel, steps: npt.ArrayLike, initial: npt.ArrayLike | None = None, first: int | None = None
) -> Beliefs:
    """The beliefs of an adversary who sees no release: an upper bound of what is left to learn, on average.

    Parameters
    ----------
    model
        The adversary's model.
    steps
        ``(T,)``: time steps before each time; the first entry is not used.
    initial
        ``(N,)``: the distribution at the first time; left out, the model's.
    first
        The time step of the first time, counted from 1970, where the model varies with time.
    """
    given = None if initial is None else as_distribution(initial, model.size, "the adversary's prior")
    gaps = np.array(steps, dtype=np.int64)
    gaps[:1] = 0
    slots = None if first is None else first + np.cumsum(gaps)
    known, now = Rows(np.empty((len(gaps), model.chain_size))), model.first_masses(first, given)
    count, rests = 0, False
    while count < len(gaps) and not rests:
        part = slice(count, count + _TOGETHER)
        moving = model.moving(gaps[part], None if slots is None else slots[part])
        found = passed(moving, now, np.zeros(known.values[part].shape)).after
        known.put(count, found)
        same = _same(found.values) & (gaps[part][1:] == 1)
        rests = bool(same.any()) and not isinstance(model, ExtendedModel)
        count += int(same.argmax()) + 1 if rests else len(found.values)
        now = known[count - 1]
    return Beliefs(known.part(0, count), model.contexts, np.minimum(np.arange(len(gaps)), count - 1))


def _same(values: FloatArray) -> BoolArray:
    """Which rows the next one differs from by no more than rounding."""
    before, after = values[:-1], values[1:]
    return np.asarray((np.abs(after - before) <= 4 * np.finfo(np.float64).eps * before).all(axis=1))


def no_noise(points: npt.ArrayLike, truth: npt.ArrayLike, beliefs: Sequence[Belief]) -> list[Belief]:
    """The beliefs of an adversary who is told every true measurement: the lower bound of the error.

    Only states that share the measurement remain; they keep the proportions of the given beliefs, or are equally
    probable where those rule them all out.

    Parameters
    ----------
    points
        ``(N, d)`` measurements.
    truth
        ``(T,)``: the true states.
    beliefs
        What is known otherwise, such as `no_information`; one per true state.

    Raises
    ------
    StateError
        When a true state does not exist, or there is not one per belief.
    """
    places = as_points(points, "points")
    stated = []
    for state, belief in zip(_true_states(truth, len(beliefs), len(places)).tolist(), beliefs, strict=True):
        same = (places == places[state]).all(axis=1)
        if (belief.support & same).any():
            stated.append(belief.update(np.where(same, 0.0, -np.inf)))
        else:
            stated.append(Belief.of(same / same.sum()))
    return stated


def _root_mean_square(values: FloatArray) -> float:
    return float(np.sqrt((values**2).mean()))


def _places(beliefs: Sequence[Belief], points: npt.ArrayLike, k: int) -> FloatArray:
    places = as_points(points, "points")
    if not beliefs or k < 1:
        raise InvalidInputError(f"there are {len(beliefs)} beliefs and k is {k}; give at least one of each")
    sizes = {len(belief.support) for belief in (beliefs[:1] if isinstance(beliefs, Beliefs) else beliefs)}
    if sizes != {len(places)}:
        raise InvalidInputError(f"there are {len(places)} points and beliefs over another number of states")
    return places


def _true_states(truth: npt.ArrayLike, count: int, size: int) -> IntArray:
    true = as_integers(truth, "true states", StateError)
    if true.shape != (count,):
        raise StateError(f"true states have shape {true.shape}; there are {count} beliefs, so give one each")
    if ((true < 0) | (true >= size)).any():
        raise StateError(f"a true state does not exist; states are 0 to {size - 1}")
    return true


def _of_some(rows: FloatArray, places: FloatArray, k: int) -> FloatArray:
    """The numbers of `Knowledge` for some beliefs, ``(5, T)``."""
    largest = np.partition(rows, -min(k, len(places)), axis=1)[:, -k:]
    told = entr(rows).sum(axis=1) / np.log(2.0), *expected_errors(rows, places), largest.max(axis=1)
    found = np.array([*told, largest.sum(axis=1)])
    np.minimum(found[3:], 1.0, out=found[3:])
    return np.asarray(np.maximum(found, 0.0, out=found))
