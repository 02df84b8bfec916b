"""Metrics of an adversary's inference: error, entropy and top-k probabilities.

The adversary may have more information than the public belief, less, or different information (§10.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint, as_distribution, as_integers, as_points
from dphmm.errors import InvalidInputError, StateError
from dphmm.formatting import Result, exported
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.geometry.sensitivity_hull import Body, Disc, SensitivityHull
from dphmm.model.belief import Belief
from dphmm.model.forward_backward import Beliefs, run_forward_pass
from dphmm.model.model import MarkovModel
from dphmm.model.point_estimate import Inference
from dphmm.policy.component_bodies import NoiseBodies, build_noise_body, compute_protection_degrees
from dphmm.policy.protection_degrees import Protection
from dphmm.validation import check_arguments

# Default number of states for the top-k metrics.
DEFAULT_TOP_K = 5

# Beliefs evaluated at a time.
_BLOCK_BELIEFS = 64


@dataclass(frozen=True, eq=False)
class InferenceMetrics(Result):
    """Metrics of a belief at each of ``T`` times, from the belief alone.

    Parameters
    ----------
    entropy
        ``(T,)`` bits. 0 if the belief is a point mass.
    spread
        ``(T,)``: the expected RMS distance from the posterior mean, in the unit of the measurements.
    error
        ``(T,)``: the expected distance from the geometric median of the belief, the smallest that any point estimate
        attains, in the same unit. The stated value is a lower bound, at most 2 % too small without outside states.
    top_1_probability
        ``(T,)``: the probability of the most probable state. If the belief is correct, a guess of this state succeeds
        with this probability.
    top_k_probability
        ``(T,)``: the total probability of the `k` most probable states.
    k
        Number of states in `top_k_probability`.
    """

    entropy: FloatArray = field(repr=False, metadata=exported("entropy_bits"))
    spread: FloatArray = field(repr=False, metadata=exported())
    error: FloatArray = field(repr=False, metadata=exported())
    top_1_probability: FloatArray = field(repr=False, metadata=exported())
    top_k_probability: FloatArray = field(repr=False)
    k: int

    def _derive_fields(self) -> dict[str, Any]:
        return {
            "mean_entropy_bits": self.entropy.mean(),
            "min_entropy_bits": self.entropy.min(),
            "rms_spread": _compute_root_mean_square(self.spread),
            "median_error": np.median(self.error),
            "min_error": self.error.min(),
            "mean_top_1_probability": self.top_1_probability.mean(),
            "max_top_1_probability": self.top_1_probability.max(),
            f"mean_top_{self.k}_probability": self.top_k_probability.mean(),
        }


@dataclass(frozen=True, eq=False)
class Accuracy(Result):
    """Errors of a belief at each of ``T`` times with respect to the true states. Private.

    Parameters
    ----------
    expected_error
        ``(T,)``: the mean distance between the true state and a state sampled from the belief (Shokri et al., S&P
        2011).
    estimate_error
        ``(T,)``: the distance between the posterior mean and the true measurement.
    top_1_hits
        ``(T,)``: whether the most probable state is the true one. Ties are broken by state index.
    top_k_hits
        ``(T,)``: whether the true state is among the `k` most probable states.
    k
        Number of states in `top_k_hits`.
    """

    expected_error: FloatArray = field(repr=False, metadata=exported())
    estimate_error: FloatArray = field(repr=False)
    top_1_hits: BoolArray = field(repr=False)
    top_k_hits: BoolArray = field(repr=False)
    k: int

    def _derive_fields(self) -> dict[str, Any]:
        return {
            "mean_expected_error": self.expected_error.mean(),
            "mean_estimate_error": self.estimate_error.mean(),
            "rms_estimate_error": _compute_root_mean_square(self.estimate_error),
            "top_1_accuracy": self.top_1_hits.mean(),
            f"top_{self.k}_accuracy": self.top_k_hits.mean(),
        }


def compute_inference_metrics(
    beliefs: Sequence[Belief], points: npt.ArrayLike, k: int = DEFAULT_TOP_K, cell: float = 0.0
) -> InferenceMetrics:
    """Compute the metrics of a sequence of beliefs.

    Parameters
    ----------
    beliefs
        One belief per time, over ``N`` states.
    points
        ``(N, d)`` measurements.
    k
        Number of states for the top-k metric, at least 1.
    cell
        Side of the cell centred on each point, see `dphmm.model.point_estimate`. 0 for points.

    Returns
    -------
    InferenceMetrics
        The metrics of each belief.

    Raises
    ------
    InvalidInputError
        If there is no belief, ``k`` is below 1, or points and beliefs differ in the number of states.
    """
    places = _check_points(beliefs, points, k)
    which = beliefs.indices if isinstance(beliefs, Beliefs) else np.arange(len(beliefs))
    distinct, position = np.unique(which, return_inverse=True)
    parts = np.array_split(distinct, -(-len(distinct) // _BLOCK_BELIEFS))
    blocks = [_compute_block(beliefs, part, places, k, cell) for part in parts]
    entropy, spread, error, best, top = np.concatenate(blocks, axis=1)[:, position]
    return InferenceMetrics(entropy, spread, error, best, top, k)


def compute_accuracy(
    beliefs: Sequence[Belief], points: npt.ArrayLike, truth: npt.ArrayLike, k: int = DEFAULT_TOP_K
) -> Accuracy:
    """Compute the errors of a sequence of beliefs with respect to the true states.

    Parameters
    ----------
    beliefs
        One belief for each of ``T`` releases.
    points
        ``(N, d)``: the measurement of each state.
    truth
        ``(T,)``: the true states.
    k
        Number of states that count as a hit; see `Accuracy`.

    Returns
    -------
    Accuracy
        The errors at each release.

    Raises
    ------
    StateError
        If a true state does not exist, or the number of true states differs from the number of beliefs.
    """
    places = _check_points(beliefs, points, k)
    true = _check_true_states(truth, len(beliefs), len(places))
    errors = np.empty((2, len(true)))
    hits = np.empty((2, len(true)), dtype=np.bool_)
    for t, (belief, state) in enumerate(zip(beliefs, true.tolist(), strict=True)):
        probabilities = belief.probabilities
        expected = Inference(probabilities, places).compute_sampled_error(places[state])
        errors[:, t] = expected, np.linalg.norm(probabilities @ places - places[state])
        first = np.argsort(-belief.log_mass, kind="stable")[:k]
        hits[:, t] = first[0] == state, state in first and belief.support[state]
    return Accuracy(errors[0], errors[1], hits[0], hits[1], k)


def predict_without_releases(
    model: MarkovModel, steps: npt.ArrayLike, initial: npt.ArrayLike | None = None, first: int | None = None
) -> Beliefs:
    """Predict the beliefs of an adversary who observes no release.

    On average, releases can only reduce the error and the entropy of these beliefs.

    Parameters
    ----------
    model
        The adversary's model.
    steps
        ``(T,)``: steps since the preceding time. The first entry is ignored.
    initial
        ``(N,)``: the distribution at the first time. Defaults to the model's.
    first
        Time slot of the first time, counted from 1970. Needed for time-dependent models.
    """
    start = None if initial is None else as_distribution(initial, model.size, "the adversary's prior")
    gaps = np.array(steps, dtype=np.int64)
    gaps[:1] = 0
    slots = None if first is None else first + np.cumsum(gaps)
    logs = np.empty((len(gaps), model.chain_size))
    now = model.initial_logs(first, start)
    count = 0
    is_at_rest = False
    # Stop once the distribution no longer changes: all later beliefs are this one.
    while count < len(gaps) and not is_at_rest:
        part = slice(count, count + _BLOCK_BELIEFS)
        operators = model.operators(gaps[part], None if slots is None else slots[part])
        block = logs[part] = run_forward_pass(operators, np.zeros(logs[part].shape), now).logs
        unchanged = _is_stationary(block) & (gaps[part][1:] == 1)
        is_at_rest = bool(unchanged.any()) and model.time_classes is None
        count += int(unchanged.argmax()) + 1 if is_at_rest else len(block)
        now = logs[count - 1]
    return Beliefs(logs[:count], model.outside, np.minimum(np.arange(len(gaps)), count - 1))


def _is_stationary(logs: FloatArray) -> BoolArray:
    """Return a mask of the rows of log masses that equal their successor up to rounding."""
    before = logs[:-1]
    after = logs[1:]
    with np.errstate(invalid="ignore"):
        changes = np.where(before == after, 0.0, np.abs(after - before))
    return np.asarray((changes <= 4 * np.finfo(np.float64).eps).all(axis=1))


def condition_on_measurements(points: npt.ArrayLike, truth: npt.ArrayLike, beliefs: Sequence[Belief]) -> list[Belief]:
    """Condition each belief on the exact measurement of the true state.

    This gives the smallest possible error. States that share the measurement keep the proportions of the belief. They
    are equally probable if the belief excludes all of them.

    Parameters
    ----------
    points
        ``(N, d)`` measurements.
    truth
        ``(T,)``: the true states.
    beliefs
        Beliefs before conditioning, one per true state, such as those of `predict_without_releases`.

    Raises
    ------
    StateError
        If a true state does not exist, or the number of true states differs from the number of beliefs.
    """
    places = as_points(points, "points")
    conditioned = []
    for state, belief in zip(_check_true_states(truth, len(beliefs), len(places)).tolist(), beliefs, strict=True):
        same = (places == places[state]).all(axis=1)
        if (belief.support & same).any():
            conditioned.append(belief.update(np.where(same, 0.0, -np.inf)))
        else:
            conditioned.append(Belief.from_probabilities(same / same.sum()))
    return conditioned


def _compute_root_mean_square(values: FloatArray) -> float:
    return float(np.sqrt((values**2).mean()))


def _check_points(beliefs: Sequence[Belief], points: npt.ArrayLike, k: int) -> FloatArray:
    places = as_points(points, "points")
    if not beliefs or k < 1:
        raise InvalidInputError(f"beliefs must not be empty and k must be at least 1, got {len(beliefs)} and {k}")
    sizes = {len(belief.support) for belief in (beliefs[:1] if isinstance(beliefs, Beliefs) else beliefs)}
    if sizes != {len(places)}:
        raise InvalidInputError(
            f"points and beliefs must have the same number of states, got {len(places)} points and beliefs over "
            f"{', '.join(map(str, sorted(sizes)))}"
        )
    return places


def _check_true_states(truth: npt.ArrayLike, count: int, size: int) -> IntArray:
    true = as_integers(truth, "true states", StateError)
    if true.shape != (count,):
        raise StateError(f"true states must have shape ({count},), one per belief, got {true.shape}")
    if ((true < 0) | (true >= size)).any():
        raise StateError(f"true states must be from 0 to {size - 1}, got a state that does not exist")
    return true


def _compute_block(beliefs: Sequence[Belief], part: IntArray, places: FloatArray, k: int, cell: float) -> FloatArray:
    """Compute the metrics of some beliefs, ``(5, T)``, in the order of `InferenceMetrics`."""
    if isinstance(beliefs, Beliefs):
        rows = beliefs.get_probabilities(part)
        beyond = beliefs.get_outside_beliefs(part)
    else:
        rows = np.array([beliefs[t].probabilities for t in part])
        beyond = [beliefs[t].outside_belief for t in part]
    largest = np.partition(rows, -min(k, len(places)), axis=1)[:, -k:]
    columns = np.asfortranarray(places)
    adversaries = [Inference(row, columns, cell, outside) for row, outside in zip(rows, beyond, strict=True)]
    guesses = np.array(
        [(inference.rms_error, inference.error_lower_bound, inference.max_probability) for inference in adversaries]
    )
    guesses = guesses.reshape(-1, 3).T
    # Clip: rounding can raise a sum of probabilities above one.
    top = np.minimum(largest.sum(axis=1), 1.0)
    metrics = np.array([entr(rows).sum(axis=1) / np.log(2.0), *guesses, top])
    return np.asarray(np.maximum(metrics, 0.0, out=metrics))


Relation = Literal["equal", "narrower", "wider", "overlapping", "disjoint"]


@dataclass(frozen=True)
class AdversaryAudit(Result):
    """Guarantee of one release for an adversary with the support ``C^A`` instead of ``C``.

    Parameters
    ----------
    support
        ``(N,)``: ``C^A``, the support of the adversary's belief.
    relation
        Relation of ``C^A`` to ``C``. ``"narrower"`` is the paper's case I, ``"wider"`` its case II.
    num_shared
        The size of ``C^A ∩ C``.
    factor
        ``max ‖f_j - f_k‖`` over ``C^A ∩ C``. The states of this set are indistinguishable within this times epsilon. 0
        if the set has fewer than two states. If the adversary's belief is restricted to this set, no posterior
        probability exceeds ``exp(factor epsilon)`` times its prior (Theorem 10.10).
    exposed
        States of ``C^A`` without another state of ``C^A`` in the noise body around them, each at its own measurement.
        The paper's mechanism, which releases every state at its own measurement, would expose them.
    exposed_with_surrogates
        States that the mechanism of this package exposes. It replaces a state outside ``C`` by its surrogate, the
        nearest state in ``C``. No release distinguishes a state from its surrogate.
    min_degree_of_protection
        The smallest number of states of ``C^A`` among which a protected state of ``C^A`` is indistinguishable, itself
        included: the degree of protection on ``C^A`` (Definition 5.2). 0 if all states are unprotected.
    """

    support: BoolArray = field(repr=False)
    relation: Relation = field(metadata=exported())
    num_shared: int = field(metadata=exported())
    factor: float = field(metadata=exported())
    exposed: tuple[int, ...] = field(metadata=exported(as_state_names=True))
    exposed_with_surrogates: tuple[int, ...] = field(metadata=exported(as_state_names=True))
    min_degree_of_protection: int = field(default=0, metadata=exported())

    @property
    def is_singleton(self) -> bool:
        """Whether ``C^A`` is a single state, known to this adversary before the release."""
        return int(self.support.sum()) == 1

    def _derive_fields(self, *_: Any) -> dict[str, Any]:
        # log_ratio is stated at epsilon = 1
        return {"num_possible_states": self.support.sum(), "singleton": self.is_singleton, "log_ratio": self.factor}


@check_arguments
def audit_support(protection: Protection, f: npt.ArrayLike | Measurements, support: npt.ArrayLike) -> AdversaryAudit:
    """Audit one release for an adversary with a different support.

    Parameters
    ----------
    protection
        The repaired graph and noise body of the step, from `dphmm.policy.repair.protect`.
    f
        ``(N, d)`` measurements.
    support
        ``(N,)``: the support of the adversary's belief just before the release.

    Returns
    -------
    AdversaryAudit
        The states exposed to this adversary.

    Raises
    ------
    ConstraintError
        If the support is empty, not boolean, or of the wrong length.
    """
    measurements = protection.graph.check_measurements(f)
    believed = as_constraint(support, measurements.size)
    constraint = protection.graph.node_mask
    components = protection.components
    kind = get_body_type(protection)

    def build_body(hull: SensitivityHull) -> CoordinateBody:
        return CoordinateBody(measurements, build_noise_body(measurements, hull, kind))

    # Each state outside C is released as its surrogate. A state is exposed if it is the only possible state within the
    # noise of its component, and no other state shares its surrogate.
    released_as = np.arange(len(believed))
    outside = np.flatnonzero(believed & ~constraint)
    if len(outside):
        released_as[outside] = measurements.surrogates(outside, constraint)
    counts = np.bincount(released_as[believed], minlength=len(believed))
    part_of_component = np.zeros(int(components.max()) + 1, dtype=np.int64)
    part_of_component[components[constraint]] = protection.part_of[constraint]
    bodies = NoiseBodies(protection.parts, part_of_component)
    degrees = compute_protection_degrees(measurements, np.where(counts > 0, components, -1), bodies, kind, "halfspace")
    alone = (degrees == 1) & (counts == 1) & ~protection.open
    exposed = exposed_with_surrogates = believed & alone[released_as]
    # Without surrogates, a state outside C would have separate noise.
    if protection.is_shared:
        exposed = believed & (count_within(build_body(protection.coordinate_hull), believed) == 1)
    # A lower bound if several states share a surrogate, and exact if none is replaced.
    degree = (degrees + np.maximum(counts, 1) - 1)[released_as][believed & ~protection.open[released_as]]
    shared = believed & constraint
    factor = 0.0
    if shared.sum() > 1:
        hull = protection.parts[protection.part_of[shared][0]].coordinate_hull
        factor = build_body(hull).diameter(shared) if len(np.unique(components[shared])) == 1 else np.inf
    return AdversaryAudit(
        support=believed,
        relation=_compare_supports(believed, constraint),
        num_shared=int(shared.sum()),
        factor=factor,
        exposed=tuple(np.flatnonzero(exposed).tolist()),
        exposed_with_surrogates=tuple(np.flatnonzero(exposed_with_surrogates).tolist()),
        min_degree_of_protection=int(degree.min(initial=believed.sum())) if len(degree) else 0,
    )


def get_body_type(protection: Protection) -> Body:
    """Return the type of the noise body of a repaired step."""
    if isinstance(protection.body, Disc):
        return "disc"
    return "hull" if protection.body is protection.hull else "cross-polytope"


def _compare_supports(believed: BoolArray, constraint: BoolArray) -> Relation:
    if not (believed & constraint).any():
        return "disjoint"
    inside = not (believed & ~constraint).any()
    around = not (constraint & ~believed).any()
    if inside:
        return "equal" if around else "narrower"
    return "wider" if around else "overlapping"
