"""What an adversary infers: expected error, top places and entropy of beliefs.

Adversaries may know more than the public belief, or less, or something else (§10.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint, as_distribution, as_integers, as_points
from dphmm.errors import InvalidInputError, StateError
from dphmm.facts import Facts, fact, facts_of
from dphmm.geometry.hull import Body, Disc, SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.model.belief import Belief
from dphmm.model.forward_backward import Beliefs, forward_pass
from dphmm.model.model import MarkovModel
from dphmm.model.point_estimate import expected_errors
from dphmm.policy.by_component import NoiseBodies, degrees_within, noise_body
from dphmm.policy.protection import Protection

TOP = 5
"""How many places the 'top' metrics look at, unless told otherwise."""
_TOGETHER = 64
"""The number of beliefs looked at together."""


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

    entropy: FloatArray = field(repr=False, metadata=fact("entropy_bits"))
    spread: FloatArray = field(repr=False, metadata=fact())
    error: FloatArray = field(repr=False, metadata=fact())
    best: FloatArray = field(repr=False, metadata=fact("best_guess_probability"))
    top: FloatArray = field(repr=False)
    k: int

    def facts(self) -> Facts:
        """As plain values for JSON."""
        return facts_of(
            self,
            entropy_bits_mean=self.entropy.mean(),
            entropy_bits_least=self.entropy.min(),
            spread_rms=_root_mean_square(self.spread),
            error_median=np.median(self.error),
            error_least=self.error.min(),
            best_guess_probability_mean=self.best.mean(),
            best_guess_probability_most=self.best.max(),
            **{f"top_{self.k}_probability_mean": self.top.mean()},
        )


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

    expected_error: FloatArray = field(repr=False, metadata=fact())
    estimate_error: FloatArray = field(repr=False)
    best_hits: BoolArray = field(repr=False)
    top_hits: BoolArray = field(repr=False)
    k: int

    def facts(self) -> Facts:
        """As plain values for JSON."""
        return facts_of(
            self,
            expected_error_mean=self.expected_error.mean(),
            estimate_error_rms=_root_mean_square(self.estimate_error),
            best_guess_right=self.best_hits.mean(),
            **{f"top_{self.k}_right": self.top_hits.mean()},
        )


def knowledge(beliefs: Sequence[Belief], points: npt.ArrayLike, k: int = TOP, cell: float = 0.0) -> Knowledge:
    """What the holder of some beliefs knows.

    Parameters
    ----------
    beliefs
        One per time, over ``N`` states.
    points
        ``(N, d)`` measurements.
    k
        How many states count as the top; at least 1.
    cell
        The side of the cell that each point is the centre of, see `dphmm.model.point_estimate`; 0 for points.

    Raises
    ------
    InvalidInputError
        When there is no belief, or ``k`` is below 1, or points and beliefs do not fit.
    """
    places = _places(beliefs, points, k)
    which = beliefs.which if isinstance(beliefs, Beliefs) else np.arange(len(beliefs))
    some, number = np.unique(which, return_inverse=True)
    parts = np.array_split(some, -(-len(some) // _TOGETHER))
    found = [_of_some(beliefs, part, places, k, cell) for part in parts]
    entropy, spread, error, best, top = np.concatenate(found, axis=1)[:, number]
    return Knowledge(entropy, spread, error, best, top, k)


def accuracy(beliefs: Sequence[Belief], points: npt.ArrayLike, truth: npt.ArrayLike, k: int = TOP) -> Accuracy:
    """What some beliefs are worth against the true states ``(T,)``; other parameters and errors as in `knowledge`.

    Raises
    ------
    StateError
        When a true state does not exist, or there is not one per belief.
    """
    places = _places(beliefs, points, k)
    true = _true_states(truth, len(beliefs), len(places))
    errors, hits = np.empty((2, len(true))), np.empty((2, len(true)), dtype=np.bool_)
    for t, (belief, state) in enumerate(zip(beliefs, true.tolist(), strict=True)):
        probabilities = belief.probabilities
        expected = probabilities @ np.linalg.norm(places - places[state], axis=1)
        errors[:, t] = expected, np.linalg.norm(probabilities @ places - places[state])
        first = np.argsort(-belief.log_mass, kind="stable")[:k]
        hits[:, t] = first[0] == state, state in first and belief.support[state]
    return Accuracy(errors[0], errors[1], hits[0], hits[1], k)


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
    known, now = np.empty((len(gaps), model.chain_size)), model.first_logs(first, given)
    count, rests = 0, False
    while count < len(gaps) and not rests:
        part = slice(count, count + _TOGETHER)
        operators = model.operators(gaps[part], None if slots is None else slots[part])
        found = known[part] = forward_pass(operators, np.zeros(known[part].shape), now).logs
        same = _same(found) & (gaps[part][1:] == 1)
        rests = bool(same.any()) and model.time_classes is None
        count += int(same.argmax()) + 1 if rests else len(found)
        now = known[count - 1]
    return Beliefs(known[:count], model.away, np.minimum(np.arange(len(gaps)), count - 1))


def _same(logs: FloatArray) -> BoolArray:
    """Which rows of log masses the next one differs from by no more than rounding."""
    before, after = logs[:-1], logs[1:]
    with np.errstate(invalid="ignore"):
        changes = np.where(before == after, 0.0, np.abs(after - before))
    return np.asarray((changes <= 4 * np.finfo(np.float64).eps).all(axis=1))


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


def _of_some(beliefs: Sequence[Belief], part: IntArray, places: FloatArray, k: int, cell: float) -> FloatArray:
    """The numbers of `Knowledge` for some beliefs, ``(5, T)``."""
    if isinstance(beliefs, Beliefs):
        rows, beyond = beliefs.probabilities(part), beliefs.beyond(part)
    else:
        rows, beyond = np.array([beliefs[t].probabilities for t in part]), [beliefs[t].beyond for t in part]
    largest = np.partition(rows, -min(k, len(places)), axis=1)[:, -k:]
    told = entr(rows).sum(axis=1) / np.log(2.0), *expected_errors(rows, places, cell, beyond), largest.max(axis=1)
    found = np.array([*told, largest.sum(axis=1)])
    np.minimum(found[3:], 1.0, out=found[3:])
    return np.asarray(np.maximum(found, 0.0, out=found))


Relation = Literal["equal", "narrower", "wider", "overlapping", "disjoint"]


@dataclass(frozen=True)
class AdversaryAudit:
    """What a step's release means for an adversary whose possible states are ``C^A`` rather than ``C``.

    Parameters
    ----------
    support
        ``(N,)``: ``C^A``, the states that the adversary thinks possible.
    relation
        How ``C^A`` compares with ``C``: ``"narrower"`` is the paper's case I, ``"wider"`` its case II.
    shared
        The size of ``C^A ∩ C``.
    factor
        ``max ‖f_j - f_k‖`` over ``C^A ∩ C``: those states stay indistinguishable to within this times epsilon; 0 where
        fewer than two are left. For an adversary who holds the true state to be in that set, no state's posterior
        probability is more than ``exp(factor epsilon)`` times its prior (Theorem 10.10).
    exposed
        States of ``C^A`` with no other state of ``C^A`` within the noise body about them, each taken at its own
        measurement: what the paper's mechanism, which releases any state as it is, would expose.
    exposed_with_stand_ins
        The same for the mechanism as this package runs it: a state outside ``C`` is released as the nearest state of
        ``C``, from which no release can tell it apart.
    """

    support: BoolArray = field(repr=False)
    relation: Relation = field(metadata=fact())
    shared: int = field(metadata=fact())
    factor: float = field(metadata=fact())
    exposed: tuple[int, ...] = field(metadata=fact(states=True))
    exposed_with_stand_ins: tuple[int, ...] = field(metadata=fact(states=True))

    @property
    def known(self) -> bool:
        """Whether ``C^A`` holds one state only: this adversary knew it before the release."""
        return int(self.support.sum()) == 1

    def facts(self, names: Sequence[str]) -> Facts:
        """As plain values for JSON, the log ratio at a budget of one.

        Parameters
        ----------
        names
            ``N`` texts: what the states are called.

        Returns
        -------
        dict
            Texts, numbers, None and lists of them.
        """
        possible = self.support.sum()
        return facts_of(self, names, possible=possible, already_known=self.known, log_ratio=self.factor)


@checked
def audit_support(protection: Protection, f: npt.ArrayLike | Measurements, support: npt.ArrayLike) -> AdversaryAudit:
    """What a step's release means for an adversary with a support of their own.

    Parameters
    ----------
    protection
        The step's repaired graph and noise body, as `dphmm.policy.protection.protect` gives them.
    f
        ``(N, d)`` measurements.
    support
        ``(N,)``: the states that the adversary thinks possible just before the release.

    Returns
    -------
    AdversaryAudit
        What is exposed to this adversary.

    Raises
    ------
    ConstraintError
        When the support has another length, is not boolean, or is empty.
    """
    measurements = protection.graph.check_measurements(f)
    believed = as_constraint(support, measurements.size)
    constraint, components, kind = protection.graph.node_mask, protection.components, body_kind(protection)

    def body(hull: SensitivityHull) -> CoordinateBody:
        return CoordinateBody(measurements, noise_body(measurements, hull, kind))

    # Who is alone within the noise of their component, where each state outside C is released as its stand-in?
    released_as = np.arange(len(believed))
    outside = np.flatnonzero(believed & ~constraint)
    if len(outside):
        released_as[outside] = measurements.surrogates(outside, constraint)
    counts = np.bincount(released_as[believed], minlength=len(believed))
    part_of_component = np.zeros(int(components.max()) + 1, dtype=np.int64)
    part_of_component[components[constraint]] = protection.part_of[constraint]
    bodies = NoiseBodies(protection.parts, part_of_component)
    degrees = degrees_within(measurements, np.where(counts > 0, components, -1), bodies, kind, "halfspace")
    alone = (degrees == 1) & (counts == 1) & ~protection.open
    exposed = exposed_with_stand_ins = believed & alone[released_as]
    if protection.is_shared:  # then a state outside C has noise of its own
        exposed = believed & (count_within(body(protection.coordinate_hull), believed) == 1)
    shared, factor = believed & constraint, 0.0
    if shared.sum() > 1:
        own = protection.parts[protection.part_of[shared][0]].coordinate_hull
        factor = body(own).diameter(shared) if len(np.unique(components[shared])) == 1 else np.inf
    return AdversaryAudit(
        support=believed,
        relation=_relation(believed, constraint),
        shared=int(shared.sum()),
        factor=factor,
        exposed=tuple(np.flatnonzero(exposed).tolist()),
        exposed_with_stand_ins=tuple(np.flatnonzero(exposed_with_stand_ins).tolist()),
    )


def body_kind(protection: Protection) -> Body:
    """Which kind of body the noise of a repaired step is drawn from."""
    if isinstance(protection.body, Disc):
        return "disc"
    return "hull" if protection.body is protection.hull else "cross-polytope"


def _relation(believed: BoolArray, constraint: BoolArray) -> Relation:
    if not (believed & constraint).any():
        return "disjoint"
    inside, around = not (believed & ~constraint).any(), not (constraint & ~believed).any()
    if inside:
        return "equal" if around else "narrower"
    return "wider" if around else "overlapping"
