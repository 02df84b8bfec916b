"""What the noise really gives: a lower confidence bound on epsilon from samples, with no trust in the sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from dphmm import arrays
from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, RandomSource, Rng, random_source
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError, StateError
from dphmm.facts import Facts, fact, facts_of, named
from dphmm.geometry.measurements import Measurements
from dphmm.policy.graph import PolicyLike, over_measurements

_TRAINING = 0.25
"""The share of the samples that find the event (half of them make scores, half choose a level); the rest count it."""
_BLOCK = 1 << 18
_BINS = 16
_THRESHOLDS = 256
_RESOLUTION = 1e-6
"""Log ratios are told apart to this much, so that the low bits of floating-point draws play no part."""
_LEARNERS = 1 << 16
"""At most this many training samples place the cells' borders."""

Score = Callable[[FloatArray], FloatArray]
Density = Callable[[FloatArray, FloatArray], FloatArray]


class Sampler(Protocol):
    """Whatever draws releases: a mechanism of this package, or anything that claims to be one."""

    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: int | None = None) -> FloatArray:
        """``(size, d)`` independent releases of the true value ``x``, ``(d,)``."""


@dataclass(frozen=True)
class PairAudit:
    """A lower confidence bound on the log ratio of two true values' output distributions.

    Parameters
    ----------
    first, second
        The numbers of the two states.
    claimed
        What the mechanism says the log ratio is at most.
    lower
        With probability at least `confidence` some event's log ratio is at least this; 0 where nothing was shown.
    confidence
        The confidence of this one bound; over a family of pairs it is raised so that all hold together.
    event
        How the event was found: by the ratio of the claimed densities, or by counts in cells.
    more_probable
        The state under which the event is the more probable.
    hits
        How often the event occurred among the counting samples of the more probable state and of the other.
    counted
        How many samples of each state were counted.
    """

    first: int
    second: int
    claimed: float = field(metadata=fact())
    lower: float = field(metadata=fact("lower_bound"))
    confidence: float = field(metadata=fact("confidence_of_this_bound"))
    event: Literal["ratio", "cells"] = field(metadata=fact())
    more_probable: int = field(metadata=fact("more_probable_under", states=True))
    hits: tuple[int, int] = field(metadata=fact())
    counted: int = field(metadata=fact("samples_counted_of_each"))

    @property
    def violated(self) -> bool:
        """Whether the bound is above the claim: the sampler does not keep it, unless the samples were very unlucky."""
        return self.lower > self.claimed * (1 + arrays.RELATIVE_TOLERANCE)

    def facts(self, names: Sequence[str]) -> Facts:
        """As plain values for JSON.

        Parameters
        ----------
        names
            ``N`` texts: what the states are called.

        Returns
        -------
        dict
            Texts, numbers, None and lists of them.
        """
        return facts_of(self, names, states=named([self.first, self.second], names), violated=self.violated)


@checked
def audit_pair(
    sampler: Sampler,
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    claimed: float,
    samples: int = 100_000,
    confidence: float = 0.99,
    rng: Rng = None,
    names: tuple[int, int] = (0, 1),
    low_bits: bool = False,
) -> PairAudit:
    """A lower confidence bound on how well releases of two true values can be told apart.

    A quarter of the samples finds an event and a direction: a level set of the log ratio of the claimed densities
    (where there are any), or a union of cells in which one value's samples prevail. The other samples, on which the
    choice does not depend, count the event under both values; exact binomial bounds (Clopper and Pearson, 1934), half
    the error probability each, give ``log(lower bound of the one / upper bound of the other)``. The bound is valid for
    whatever sampler whose draws are independent; how near it comes to the truth depends on the event.

    Parameters
    ----------
    sampler
        What to audit. Where it has a method ``log_density``, as `dphmm.mechanisms.Mechanism` does, that helps to find
        an event; it is not trusted.
    first, second
        ``(d,)``: the true values.
    claimed
        The largest log ratio that it promises for them; not negative.
    samples
        How many draws of each value, at least 100.
    confidence
        Between 0 and 1, of the bound.
    rng
        Where the sampler's randomness comes from.
    names
        The numbers of the two states.
    low_bits
        Whether events may depend on the last bits of floating-point draws. Those bits tell true values apart that the
        real-valued mechanism does not (Mironov, CCS 2012): a mechanism that draws doubles is then caught where it is
        sound as a mechanism on real numbers. Left out, log ratios are rounded to ``1e-6``.

    Returns
    -------
    PairAudit
        The bound, and the event that shows it.

    Raises
    ------
    InvalidInputError
        For too few samples, a confidence that is none, values of different length, or a sampler whose draws have
        another shape or are not finite.
    BudgetError
        For a negative or NaN claim.
    """
    one, other = (arrays.as_floats(value, "values", CoordinateError) for value in (first, second))
    if one.ndim != 1 or one.shape != other.shape:
        raise InvalidInputError(f"values have shapes {one.shape} and {other.shape}; give two points of one length")
    pair = arrays.as_points(np.stack([one, other]), "values")
    if samples < 100:
        raise InvalidInputError(f"samples is {samples}; give at least 100")
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence is {confidence}; give a number between 0 and 1")
    if not claimed >= 0:
        raise BudgetError(f"the claimed log ratio is {claimed}; give a number that is not negative")
    source = random_source(rng)
    training = int(samples * _TRAINING)
    counted = samples - training
    draws = tuple(_draw(sampler, value, training, source) for value in pair)
    error = 1.0 - confidence
    density: Density | None = getattr(sampler, "log_density", None)
    event = _best_event(draws, pair, density, error, 0.0 if low_bits else _RESOLUTION)
    hits = tuple(_count(sampler, value, counted, source, event) for value in pair)
    high, low = hits if event.sign > 0 else hits[::-1]
    more = names[0] if event.sign > 0 else names[1]
    bound = float(log_ratio_bound(np.array(high), np.array(low), counted, error))
    return PairAudit(
        names[0], names[1], float(claimed), max(bound, 0.0), confidence, event.kind, more, (high, low), counted
    )


@checked
def audit_pairs(
    sampler: Sampler,
    f: npt.ArrayLike | Measurements,
    pairs: npt.ArrayLike,
    claimed: npt.ArrayLike,
    samples: int = 100_000,
    confidence: float = 0.99,
    rng: Rng = None,
    low_bits: bool = False,
) -> Iterator[PairAudit]:
    """`audit_pair` of each pair of states, with all bounds valid together at the given confidence (Bonferroni).

    Parameters
    ----------
    sampler
        As in `audit_pair`.
    f
        ``(N, d)`` measurements.
    pairs
        ``(m, 2)`` states, such as the edges of a repaired graph.
    claimed
        One number, or one per pair ``(m,)``.
    samples
        As in `audit_pair`.
    confidence
        That no bound is above the truth: each pair's own is ``1 - (1 - confidence) / m``.
    rng, low_bits
        As in `audit_pair`.

    Yields
    ------
    PairAudit
        One for each pair, in order.

    Raises
    ------
    StateError
        When a pair names a state that does not exist.
    InvalidInputError, BudgetError
        As in `audit_pair`.
    """
    points = Measurements.of(f).points
    ends = arrays.as_integers(pairs, "pairs", StateError)
    if ends.size and (ends.ndim != 2 or ends.shape[1] != 2):
        raise StateError(f"pairs have shape {ends.shape}; give pairs of states")
    ends = ends.reshape(-1, 2)
    if ((ends < 0) | (ends >= len(points))).any():
        raise StateError(f"a pair names a state that does not exist; states are 0 to {len(points) - 1}")
    claims = arrays.as_floats(claimed, "claimed log ratios", BudgetError)
    if claims.shape not in ((), (len(ends),)):
        raise BudgetError(
            f"claimed log ratios have shape {claims.shape}; give one, or one for each of {len(ends)} pairs"
        )
    claims = np.broadcast_to(claims, (len(ends),))
    source = random_source(rng)
    for (a, b), claim in zip(ends.tolist(), claims.tolist(), strict=True):
        own = 1.0 - (1.0 - confidence) / len(ends)
        yield audit_pair(sampler, points[a], points[b], claim, samples, own, source, (a, b), low_bits)


@checked
def hardest_edges(graph: PolicyLike, f: npt.ArrayLike | Measurements, limit: int | None = None) -> IntArray:
    """The edges of a graph with the most to hide, ``(m, 2)``: those of the largest norm in its own hull first.

    Parameters
    ----------
    graph, f
        The graph over ``N`` states and their measurements.
    limit
        At most this many, and of edges with the same difference (up to sign) one only; left out, all edges.

    Returns
    -------
    IntArray
        ``(m, 2)``, pairs of states.
    """
    policy, measurements = over_measurements(graph, f)
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


def log_ratio_bound(high: IntArray, low: IntArray, counted: int, error: float) -> FloatArray:
    """``log(p / q)`` at least, for binomial counts ``high`` of ``p`` and ``low`` of ``q``; broadcast.

    Clopper and Pearson's exact bounds, each wrong with probability at most ``error / 2``, so that the ratio's bound
    holds with probability at least ``1 - error``. Minus infinity where ``high`` is 0.
    """
    from scipy.special import betaincinv

    with np.errstate(divide="ignore"):
        least = np.where(high > 0, betaincinv(np.maximum(high, 1), counted - high + 1, error / 2), 0.0)
        most = np.where(low < counted, betaincinv(low + 1, np.maximum(counted - low, 1), 1 - error / 2), 1.0)
        return np.asarray(np.log(least) - np.log(most))


@dataclass(frozen=True)
class _Event:
    """``sign * score(z) >= threshold``; a positive sign means that it is the more probable under the first value."""

    kind: Literal["ratio", "cells"]
    score: Score
    sign: int
    threshold: float
    promise: float = -inf


def _draw(sampler: Sampler, value: FloatArray, size: int, source: RandomSource) -> FloatArray:
    drawn = np.asarray(sampler.sample(value, source, size), dtype=np.float64)
    if drawn.shape != (size, len(value)) or not np.isfinite(drawn).all():
        raise InvalidInputError(
            f"the sampler gave shape {drawn.shape} or values that are not finite; it must give ({size}, {len(value)})"
        )
    return drawn


def _count(sampler: Sampler, value: FloatArray, counted: int, source: RandomSource, event: _Event) -> int:
    hits = 0
    for start in range(0, counted, _BLOCK):
        drawn = _draw(sampler, value, min(_BLOCK, counted - start), source)
        hits += int((event.sign * event.score(drawn) >= event.threshold).sum())
    return hits


def _best_event(
    draws: tuple[FloatArray, ...], pair: FloatArray, density: Density | None, error: float, resolution: float
) -> _Event:
    learning = tuple(part[: len(part) // 2] for part in draws)
    choosing = tuple(part[len(part) // 2 :] for part in draws)
    scores: list[tuple[Literal["ratio", "cells"], Score]] = [("cells", _cell_score(learning, pair))]
    if density is not None:
        scores.append(("ratio", _ratio_score(density, pair, resolution)))
    return max((_best_level(kind, score, choosing, error) for kind, score in scores), key=lambda event: event.promise)


def _best_level(kind: Literal["ratio", "cells"], score: Score, draws: tuple[FloatArray, ...], error: float) -> _Event:
    """The level set with the best bound on samples that did not make the score, in either direction."""
    found = [score(part) for part in draws]
    best = _Event(kind, score, 1, inf)
    for sign in (1, -1):
        own, other = (np.sort(sign * part) for part in (found if sign > 0 else found[::-1]))
        levels = np.unique(own[np.linspace(0, len(own) - 1, _THRESHOLDS).astype(np.int64)])
        high = len(own) - np.searchsorted(own, levels)
        low = len(other) - np.searchsorted(other, levels)
        promise = log_ratio_bound(high, low, len(own), error)
        top = int(promise.argmax())
        if promise[top] > best.promise:
            best = _Event(kind, score, sign, float(levels[top]), float(promise[top]))
    return best


def _ratio_score(density: Density, pair: FloatArray, resolution: float) -> Score:
    """The log ratio of the claimed densities; 0 where both call the release impossible."""

    def score(releases: FloatArray) -> FloatArray:
        own, other = (np.asarray(density(releases, value)) for value in pair)
        with np.errstate(invalid="ignore"):
            ratio = np.nan_to_num(own - other, nan=0.0, posinf=1e300, neginf=-1e300)
        return np.rint(ratio / resolution) if resolution else ratio

    return score


def _cell_score(draws: tuple[FloatArray, ...], pair: FloatArray) -> Score:
    """The log ratio of training counts in cells: quantiles along the line of the two values, and across it."""
    # Up to two orthonormal rows, the first along the difference of the two values.
    axes = np.linalg.svd((pair[0] - pair[1])[None])[2][:2]
    learners = [part[:_LEARNERS] @ axes.T for part in draws]
    pooled = np.concatenate(learners)
    borders = [np.unique(np.quantile(column, np.linspace(0, 1, _BINS + 1)[1:-1])) for column in pooled.T]

    def cells(coordinates: FloatArray) -> IntArray:
        index = np.zeros(len(coordinates), dtype=np.int64)
        for column, border in zip(coordinates.T, borders, strict=True):
            index = index * (_BINS + 1) + np.searchsorted(border, column)
        return index

    total = (_BINS + 1) ** len(axes)
    first, second = (np.bincount(cells(part), minlength=total) for part in learners)
    table = np.log((first + 0.5) / (second + 0.5))

    def score(releases: FloatArray) -> FloatArray:
        return np.asarray(table[cells(releases @ axes.T)])

    return score
