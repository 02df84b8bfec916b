"""Lower confidence bounds on epsilon from samples, without trust in the sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray, as_floats, as_integers, as_points
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError, StateError
from dphmm.formatting import Result, exported, name_states
from dphmm.geometry.measurements import Measurements
from dphmm.policy.graph import PolicyLike, convert_policy_and_measurements
from dphmm.random import RandomSource, Rng, as_random_source
from dphmm.tolerances import RELATIVE_TOLERANCE
from dphmm.validation import Integers, Interval, NonNegativeInt, OpenProbability, check_arguments

# Confidence of the intervals that have no parameter for it.
CONFIDENCE = 0.99

# Share of the samples that selects the event: half of these build scores, half choose a threshold. The rest count it.
_TRAINING_SHARE = 0.25
# Samples generated and counted at a time, a few megabytes.
_BLOCK_SAMPLES = 1 << 18
# Cells along each coordinate: with more, the samples of a cell are too few to bound its ratio.
_NUM_BINS = 16
# Candidate thresholds of a score, at equal quantiles of the samples.
_NUM_THRESHOLDS = 256
# Log ratios are rounded to this, so that the low bits of floating-point samples have no effect.
_RESOLUTION = 1e-6
# Training samples that determine the cell borders.
_MAX_TRAINING_SAMPLES = 1 << 16

Score = Callable[[FloatArray], FloatArray]
Density = Callable[[FloatArray, FloatArray], FloatArray]


class Sampler(Protocol):
    """A source of releases: a mechanism of this package or any object that claims to be one."""

    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: int | None = None) -> FloatArray:
        """Return ``(size, d)`` independent releases of the true value ``x``, ``(d,)``."""


@dataclass(frozen=True)
class PairAudit(Result):
    """A lower confidence bound on the log ratio of two output distributions.

    Parameters
    ----------
    first, second
        Indices of the two states.
    claimed
        The largest log ratio that the mechanism claims.
    lower
        With probability at least `confidence`, the log ratio of some event is at least this. 0 if nothing was shown.
    confidence
        Confidence of this bound alone. For a family of pairs it is raised so that all bounds hold jointly.
    event
        How the event was selected: by the ratio of the claimed densities, or by counts in cells.
    more_probable
        The state under which the event is more probable.
    hits
        Number of counted samples in the event, for the more probable state and for the other one.
    num_counted
        Number of counted samples of each state.
    """

    first: int
    second: int
    claimed: float = field(metadata=exported())
    lower: float = field(metadata=exported("lower_bound"))
    confidence: float = field(metadata=exported("bound_confidence"))
    event: Literal["ratio", "cells"] = field(metadata=exported())
    more_probable: int = field(metadata=exported("more_probable_under", as_state_names=True))
    hits: tuple[int, int] = field(metadata=exported())
    num_counted: int = field(metadata=exported())

    @property
    def is_violated(self) -> bool:
        """Whether the lower bound exceeds the claim. Error probability: 1 - confidence."""
        return self.lower > self.claimed * (1 + RELATIVE_TOLERANCE)

    def _derive_fields(self, names: Sequence[str]) -> dict[str, Any]:
        return {"states": name_states([self.first, self.second], names), "violated": self.is_violated}


@check_arguments
def audit_pair(
    sampler: Sampler,
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    claimed: Annotated[float, Interval(0, error=BudgetError)],
    samples: Annotated[int, Integers(100)] = 100_000,
    confidence: OpenProbability = 0.99,
    rng: Rng = None,
    names: tuple[int, int] = (0, 1),
    low_bits: bool = False,
) -> PairAudit:
    """Bound from below how well releases distinguish two true values.

    A quarter of the samples selects an event and a direction. The event is a level set of the log ratio of the claimed
    densities (if there are any), or a union of cells in which the samples of one value prevail. The remaining samples
    are independent of this choice and count the event under both values. Exact binomial bounds (Clopper and Pearson,
    1934), with half the error probability each, give ``log(lower bound of one / upper bound of the other)``. The bound
    is valid for every sampler with independent samples. Its tightness depends on the event.

    Parameters
    ----------
    sampler
        The sampler to audit. Its method ``log_density``, if it has one as `dphmm.mechanisms.Mechanism` does, is used to
        select an event and is not trusted.
    first, second
        ``(d,)``: the true values.
    claimed
        The largest log ratio that the sampler claims for the two values, non-negative.
    samples
        Number of samples of each value, at least 100.
    confidence
        Confidence of the bound, in (0, 1).
    rng
        Source of the sampler's randomness.
    names
        Indices of the two states.
    low_bits
        Whether events may depend on the last bits of floating-point samples. These bits distinguish true values that
        the real-valued mechanism does not distinguish (Mironov, CCS 2012). A mechanism that samples doubles then fails
        the audit although its real-valued version is sound. By default, log ratios are rounded to ``1e-6``.

    Returns
    -------
    PairAudit
        The bound and the event that shows it.

    Raises
    ------
    InvalidInputError
        If there are too few samples, the confidence is not in (0, 1), the values differ in length, or the samples are
        not finite or have the wrong shape.
    BudgetError
        If the claim is negative or NaN.
    """
    value_a, other = (as_floats(value, "values", CoordinateError) for value in (first, second))
    if value_a.ndim != 1 or value_a.shape != other.shape:
        raise InvalidInputError(
            f"first and second must be points of equal length, got shapes {value_a.shape} and {other.shape}"
        )
    pair = as_points(np.stack([value_a, other]), "values")
    source = as_random_source(rng)
    training = int(samples * _TRAINING_SHARE)
    counted = samples - training
    draws = tuple(_sample_releases(sampler, value, training, source) for value in pair)
    error = 1.0 - confidence
    density: Density | None = getattr(sampler, "log_density", None)
    event = _find_best_event(draws, pair, density, error, 0.0 if low_bits else _RESOLUTION)
    hits = tuple(_count_hits(sampler, value, counted, source, event) for value in pair)
    high, low = hits if event.sign > 0 else hits[::-1]
    more = names[0] if event.sign > 0 else names[1]
    bound = float(bound_log_ratio(np.array(high), np.array(low), counted, error))
    return PairAudit(
        names[0], names[1], float(claimed), max(bound, 0.0), confidence, event.type, more, (high, low), counted
    )


@check_arguments
def audit_pairs(
    sampler: Sampler,
    f: npt.ArrayLike | Measurements,
    pairs: npt.ArrayLike,
    claimed: npt.ArrayLike,
    samples: Annotated[int, Integers(100)] = 100_000,
    confidence: OpenProbability = 0.99,
    rng: Rng = None,
    low_bits: bool = False,
) -> Iterator[PairAudit]:
    """Run `audit_pair` for each pair of states, with bounds that hold jointly (Bonferroni).

    Parameters
    ----------
    sampler
        See `audit_pair`.
    f
        ``(N, d)`` measurements.
    pairs
        ``(m, 2)`` states, such as the edges of a repaired graph.
    claimed
        One number, or one per pair ``(m,)``.
    samples
        See `audit_pair`.
    confidence
        Probability that no bound exceeds the truth. The confidence of each pair is ``1 - (1 - confidence) / m``.
    rng, low_bits
        See `audit_pair`.

    Yields
    ------
    PairAudit
        One result for each pair, in order.

    Raises
    ------
    StateError
        If a pair contains a state that does not exist.
    InvalidInputError, BudgetError
        See `audit_pair`.
    """
    points = Measurements.from_values(f).points
    ends = as_integers(pairs, "pairs", StateError)
    if ends.size and (ends.ndim != 2 or ends.shape[1] != 2):
        raise StateError(f"pairs must have shape (m, 2), got {ends.shape}")
    ends = ends.reshape(-1, 2)
    if ((ends < 0) | (ends >= len(points))).any():
        raise StateError(f"pairs must contain states from 0 to {len(points) - 1}, got a state that does not exist")
    claims = as_floats(claimed, "claimed log ratios", BudgetError)
    if claims.shape not in ((), (len(ends),)):
        raise BudgetError(
            f"claimed must be one number or one for each of {len(ends)} pairs, got an array of shape {claims.shape}"
        )
    claims = np.broadcast_to(claims, (len(ends),))
    source = as_random_source(rng)
    for (a, b), claim in zip(ends.tolist(), claims.tolist(), strict=True):
        pair_confidence = 1.0 - (1.0 - confidence) / len(ends)
        yield audit_pair(sampler, points[a], points[b], claim, samples, pair_confidence, source, (a, b), low_bits)


@check_arguments
def select_hardest_edges(
    graph: PolicyLike, f: npt.ArrayLike | Measurements, limit: NonNegativeInt | None = None
) -> IntArray:
    """Return the edges in decreasing order of their norm in the graph's own hull.

    Parameters
    ----------
    graph, f
        The graph over ``N`` states and their measurements.
    limit
        Maximum number of edges. Of edges with the same difference up to sign, only one is returned. None means all
        edges.

    Returns
    -------
    IntArray
        ``(m, 2)``, pairs of states.
    """
    policy, measurements = convert_policy_and_measurements(graph, f)
    edges = policy.edge_array()
    if not len(edges):
        return edges
    differences = measurements.coordinates[edges[:, 0]] - measurements.coordinates[edges[:, 1]]
    norms = policy.hull(measurements).norm(differences)
    order = np.argsort(-norms, kind="stable")
    if limit is None:
        return np.asarray(edges[order])
    leading = np.take_along_axis(differences, (differences != 0).argmax(axis=1)[:, None], axis=1)
    signed = np.where(leading < 0, -differences, differences)[order]
    _, first = np.unique(signed, axis=0, return_index=True)
    return np.asarray(edges[order[np.sort(first)[:limit]]])


def bound_log_ratio(high: IntArray, low: IntArray, counted: int, error: float) -> FloatArray:
    """Bound ``log(p / q)`` from below for binomial counts of ``p`` and ``q``.

    ``high`` counts ``p``, ``low`` counts ``q``, and both are broadcast. Each of the two exact bounds (Clopper and
    Pearson) fails with probability at most ``error / 2``, so the bound holds with probability at least ``1 - error``.
    It is minus infinity if ``high`` is 0.
    """
    from scipy.special import betaincinv

    with np.errstate(divide="ignore"):
        min_p = np.where(high > 0, betaincinv(np.maximum(high, 1), counted - high + 1, error / 2), 0.0)
        max_q = np.where(low < counted, betaincinv(low + 1, np.maximum(counted - low, 1), 1 - error / 2), 1.0)
        return np.asarray(np.log(min_p) - np.log(max_q))


def clopper_pearson_interval(hits: int, count: int) -> tuple[float, float]:
    """Return the exact (Clopper–Pearson) interval of a proportion."""
    from scipy.special import betaincinv

    half = (1 - CONFIDENCE) / 2
    lower = float(betaincinv(hits, count - hits + 1, half)) if hits else 0.0
    return lower, float(betaincinv(hits + 1, count - hits, 1 - half)) if hits < count else 1.0


@dataclass(frozen=True)
class _Event:
    """The event ``sign * score(z) >= threshold``.

    It is more probable under the first value if the sign is positive.
    """

    type: Literal["ratio", "cells"]
    score: Score
    sign: int
    threshold: float
    expected_bound: float = -inf


def _sample_releases(sampler: Sampler, value: FloatArray, size: int, source: RandomSource) -> FloatArray:
    drawn = np.asarray(sampler.sample(value, source, size), dtype=np.float64)
    if drawn.shape != (size, len(value)) or not np.isfinite(drawn).all():
        raise InvalidInputError(
            f"sampler must return finite samples of shape ({size}, {len(value)}), got shape {drawn.shape} or NaN or inf"
        )
    return drawn


def _count_hits(sampler: Sampler, value: FloatArray, counted: int, source: RandomSource, event: _Event) -> int:
    hits = 0
    for start in range(0, counted, _BLOCK_SAMPLES):
        drawn = _sample_releases(sampler, value, min(_BLOCK_SAMPLES, counted - start), source)
        hits += int((event.sign * event.score(drawn) >= event.threshold).sum())
    return hits


def _find_best_event(
    draws: tuple[FloatArray, ...], pair: FloatArray, density: Density | None, error: float, resolution: float
) -> _Event:
    # Separate halves: a threshold chosen on the samples that built the score would overfit.
    learning = tuple(part[: len(part) // 2] for part in draws)
    choosing = tuple(part[len(part) // 2 :] for part in draws)
    scores: list[tuple[Literal["ratio", "cells"], Score]] = [("cells", _build_cell_score(learning, pair))]
    if density is not None:
        scores.append(("ratio", _build_ratio_score(density, pair, resolution)))
    return max(
        (_find_best_level(kind, score, choosing, error) for kind, score in scores),
        key=lambda event: event.expected_bound,
    )


def _find_best_level(
    kind: Literal["ratio", "cells"], score: Score, draws: tuple[FloatArray, ...], error: float
) -> _Event:
    """Find the level set with the best bound on samples held out from the score."""
    scores = [score(part) for part in draws]
    best = _Event(kind, score, 1, inf)
    for sign in (1, -1):
        scores_first, other = (np.sort(sign * part) for part in (scores if sign > 0 else scores[::-1]))
        levels = np.unique(scores_first[np.linspace(0, len(scores_first) - 1, _NUM_THRESHOLDS).astype(np.int64)])
        high = len(scores_first) - np.searchsorted(scores_first, levels)
        low = len(other) - np.searchsorted(other, levels)
        bounds = bound_log_ratio(high, low, len(scores_first), error)
        best_index = int(bounds.argmax())
        if bounds[best_index] > best.expected_bound:
            best = _Event(kind, score, sign, float(levels[best_index]), float(bounds[best_index]))
    return best


def _build_ratio_score(density: Density, pair: FloatArray, resolution: float) -> Score:
    """Build a score from the log ratio of the claimed densities, 0 if both densities are 0."""

    def score(releases: FloatArray) -> FloatArray:
        log_density, other = (np.asarray(density(releases, value)) for value in pair)
        with np.errstate(invalid="ignore"):
            ratio = np.nan_to_num(log_density - other, nan=0.0, posinf=1e300, neginf=-1e300)
        return np.rint(ratio / resolution) if resolution else ratio

    return score


def _build_cell_score(draws: tuple[FloatArray, ...], pair: FloatArray) -> Score:
    """Build a score from the log ratio of training counts in quantile cells."""
    # Up to two orthonormal rows, the first along the difference of the two values.
    axes = np.linalg.svd((pair[0] - pair[1])[None])[2][:2]
    learners = [part[:_MAX_TRAINING_SAMPLES] @ axes.T for part in draws]
    pooled = np.concatenate(learners)
    borders = [np.unique(np.quantile(column, np.linspace(0, 1, _NUM_BINS + 1)[1:-1])) for column in pooled.T]

    def locate_cells(coordinates: FloatArray) -> IntArray:
        index = np.zeros(len(coordinates), dtype=np.int64)
        for column, border in zip(coordinates.T, borders, strict=True):
            index = index * (_NUM_BINS + 1) + np.searchsorted(border, column)
        return index

    total = (_NUM_BINS + 1) ** len(axes)
    first, second = (np.bincount(locate_cells(part), minlength=total) for part in learners)
    table = np.log((first + 0.5) / (second + 0.5))

    def score(releases: FloatArray) -> FloatArray:
        return np.asarray(table[locate_cells(releases @ axes.T)])

    return score
