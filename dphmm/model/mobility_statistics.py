"""Similarity of the movement of two groups of users.

A crowd is a collection of paths, which are sequences of states one step apart. Each measure is a divergence between two
histograms, or a rank correlation, as defined for AdaTrace and LDPTrace. No measure compares individual users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray, as_floats, as_integers, as_points
from dphmm.errors import InvalidInputError, StateError
from dphmm.model.model import MarkovModel
from dphmm.validation import check_arguments

# The number of buckets of equal width for lengths, up to the largest of the reference group.
BUCKETS = 20
# The number of columns and rows of zones, for origins and destinations, over the bounding box of the states.
ZONES = 6

# Descriptions of the histogram of each measure.
MEASURES: Mapping[str, str] = {
    "visits": "share of time in each state",
    "moves": "share of moves between each pair of different states",
    "trip_length": "length of a path, km",
    "radius_of_gyration": "root mean square distance from the mean location of a path, km",
    "diameter": "largest distance between two locations of a path, km",
    "origin_destination": "first and last zone of a path",
    "hours": "share of moves, and of stays, in each class of time",
}


@dataclass(frozen=True, eq=False)
class Crowd:
    """The counts and lengths of a collection of paths.

    Parameters
    ----------
    visits
        ``(N,)``: the number of visits to each state.
    moves
        ``(2, m)``: the distinct moves between different states, as ``source * N + target``, and their counts.
    lengths, radii, diameters
        ``(n,)`` each, in kilometres, one for each path.
    trips
        ``(ZONES ** 4,)``: the number of paths from each zone to each zone.
    hours
        ``(2 K,)``: the number of moves and the number of stays in each class of time, alternating.
    """

    visits: FloatArray = field(repr=False)
    moves: FloatArray = field(repr=False)
    lengths: FloatArray = field(repr=False)
    radii: FloatArray = field(repr=False)
    diameters: FloatArray = field(repr=False)
    trips: FloatArray = field(repr=False)
    hours: FloatArray = field(repr=False)

    @classmethod
    @check_arguments
    def from_paths(
        cls, paths: Sequence[npt.ArrayLike], points: npt.ArrayLike, classes: Sequence[npt.ArrayLike] | None = None
    ) -> Crowd:
        """Count the visits, moves and trips of paths, and measure their lengths.

        Parameters
        ----------
        paths
            The states of each path, ``(t,)``, at least one.
        points
            ``(N, 2)``: the coordinates of the states, in kilometres.
        classes
            The class of time of each step of a path, ``(t,)``. Defaults to a single class.

        Returns
        -------
        Crowd
            The crowd.

        Raises
        ------
        InvalidInputError
            If there is no path, or one is empty.
        StateError
            If a state does not exist.
        """
        places = as_points(points, "points")
        size = len(places)
        listed, visited = _check_paths(paths, size)
        if not listed or not all(len(sequence) for sequence in listed):
            raise InvalidInputError("paths must contain at least one path, each with at least one state")
        begins = np.cumsum([0, *(len(sequence) for sequence in listed[:-1])])
        inner = np.ones(len(visited) - 1, dtype=np.bool_)
        inner[begins[1:] - 1] = False
        moved = inner & (visited[1:] != visited[:-1])
        when = np.zeros(len(visited), dtype=np.int64)
        if classes is not None:
            when = np.concatenate([as_integers(sequence, "classes").astype(np.int64).ravel() for sequence in classes])
            if when.shape != visited.shape or when.min() < 0:
                raise InvalidInputError("classes must be non-negative integers, one for each state")
        pairs, counts = np.unique((visited[:-1] * size + visited[1:])[moved], return_counts=True)
        steps = np.where(inner, np.linalg.norm(np.diff(places[visited], axis=0), axis=1), 0.0)
        zones = _find_zones(places)
        ends = np.append(begins[1:], len(visited)) - 1
        return cls(
            np.bincount(visited, minlength=size).astype(np.float64),
            np.stack([pairs, counts]).astype(np.float64),
            np.add.reduceat(np.append(steps, 0.0), begins),
            np.array([_compute_gyration_radius(places[sequence]) for sequence in listed]),
            np.array([_compute_diameter(places[np.unique(sequence)]) for sequence in listed]),
            np.bincount(zones[visited[begins]] * ZONES**2 + zones[visited[ends]], minlength=ZONES**4).astype(
                np.float64
            ),
            np.bincount((2 * when[1:] + ~moved)[inner], minlength=2 * (1 + int(when.max()))).astype(np.float64),
        )

    def __add__(self, other: Crowd) -> Crowd:
        """Return the counts and lengths of the paths of both crowds, over the same states."""
        columns = np.concatenate([self.moves, other.moves], axis=1)
        pairs, index = np.unique(columns[0], return_inverse=True)
        length = max(len(self.hours), len(other.hours))
        return Crowd(
            self.visits + other.visits,
            np.stack([pairs, np.bincount(index, columns[1], len(pairs))]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.radii, other.radii]),
            np.concatenate([self.diameters, other.diameters]),
            self.trips + other.trips,
            _pad(self.hours, length) + _pad(other.hours, length),
        )


def _pad(counts: FloatArray, length: int) -> FloatArray:
    return np.pad(counts, (0, length - len(counts)))


@check_arguments
def compare_crowds(crowd: Crowd, wanted: Crowd) -> dict[str, float]:
    """Compute measures of similarity between two crowds.

    Each of `MEASURES` is a Jensen–Shannon divergence, in bits, from 0 (equal) to 1 (disjoint). Lengths, radii and
    diameters are counted in `BUCKETS` buckets up to the largest of `wanted`; the last bucket also contains larger
    values. The similarities are ``"top_places"``, the share of the most visited tenth of states that both have in
    common, and ``"rank_correlation"``, Kendall's tau-b of the visit counts over the states that either crowd visits.

    Parameters
    ----------
    crowd
        The crowd to evaluate.
    wanted
        The reference crowd.

    Returns
    -------
    dict of str to float
        The value of each measure.

    Raises
    ------
    InvalidInputError
        If the crowds have different numbers of states.
    """
    length = max(len(crowd.hours), len(wanted.hours))
    return {
        "visits": jensen_shannon(crowd.visits, wanted.visits),
        "moves": jensen_shannon(*_align_moves(crowd, wanted)),
        "trip_length": _compute_histogram_divergence(crowd.lengths, wanted.lengths),
        "radius_of_gyration": _compute_histogram_divergence(crowd.radii, wanted.radii),
        "diameter": _compute_histogram_divergence(crowd.diameters, wanted.diameters),
        "origin_destination": jensen_shannon(crowd.trips, wanted.trips),
        "hours": jensen_shannon(*(_pad(side.hours, length) for side in (crowd, wanted))),
        "top_places": _compute_top_places_overlap(crowd.visits, wanted.visits),
        "rank_correlation": _compute_rank_correlation(crowd.visits, wanted.visits),
    }


@check_arguments
def jensen_shannon(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Compute the Jensen–Shannon divergence of two histograms, in bits.

    Parameters
    ----------
    first
        A histogram, ``(k,)``.
    second
        A second histogram with the same buckets, ``(k,)``.

    Returns
    -------
    float
        From 0 (equal shares) to 1 (disjoint). NaN if one of them is empty.

    Raises
    ------
    InvalidInputError
        If they differ in length, or contain a negative or infinite number.

    Examples
    --------
    >>> jensen_shannon([1, 1], [2, 2]), jensen_shannon([1, 0], [0, 3]), round(jensen_shannon([1, 0], [1, 1]), 6)
    (0.0, 1.0, 0.311278)
    """
    counts = [as_floats(histogram, "a histogram") for histogram in (first, second)]
    if counts[0].ndim != 1 or counts[0].shape != counts[1].shape:
        raise InvalidInputError("first and second must be histograms of equal length")
    if not all(np.isfinite(histogram).all() and (histogram >= 0).all() for histogram in counts):
        raise InvalidInputError("a histogram must contain finite, non-negative counts only")
    if not all(histogram.any() for histogram in counts):
        return float("nan")
    p, q = (histogram / histogram.sum() for histogram in counts)
    middle = (p + q) / 2
    parts = [
        float((histogram[histogram > 0] * np.log(histogram[histogram > 0] / middle[histogram > 0])).sum())
        for histogram in (p, q)
    ]
    return min(max(sum(parts) / 2 / log(2), 0.0), 1.0)


def _check_paths(paths: Sequence[npt.ArrayLike], size: int) -> tuple[list[IntArray], IntArray]:
    """Convert and check paths. Return the states of each, and of all of them."""
    listed = [as_integers(path, "the states of a path", StateError).astype(np.int64).ravel() for path in paths]
    states = np.concatenate([np.zeros(0, dtype=np.int64), *listed])
    if states.size and (states.min() < 0 or states.max() >= size):
        raise StateError(f"the states of a path must be from 0 to {size - 1}, got another one")
    return listed, states


def _align_moves(first: Crowd, second: Crowd) -> tuple[FloatArray, FloatArray]:
    keys = np.union1d(first.moves[0], second.moves[0])
    aligned = [np.zeros(len(keys)) for _ in range(2)]
    for counts, crowd in zip(aligned, (first, second), strict=True):
        counts[np.searchsorted(keys, crowd.moves[0])] = crowd.moves[1]
    return aligned[0], aligned[1]


def _compute_histogram_divergence(first: FloatArray, second: FloatArray) -> float:
    edges = np.linspace(0.0, max(float(second.max()), 1e-9), BUCKETS + 1)
    return jensen_shannon(*(np.histogram(np.minimum(values, edges[-1]), edges)[0] for values in (first, second)))


def _find_zones(points: FloatArray) -> IntArray:
    """Return the zone of each point, of `ZONES` columns and rows over the bounding box."""
    low = points.min(axis=0)
    high = points.max(axis=0)
    at = np.minimum((points - low) / np.maximum(high - low, 1e-9) * ZONES, ZONES - 1).astype(np.int64)
    return np.asarray(at[:, 1] * ZONES + at[:, 0])


def _compute_gyration_radius(places: FloatArray) -> float:
    return float(np.sqrt(((places - places.mean(axis=0)) ** 2).sum(axis=1).mean()))


def _compute_diameter(places: FloatArray) -> float:
    """Return the largest distance between two points."""
    if len(places) > 50:
        import shapely

        places = shapely.get_coordinates(shapely.convex_hull(shapely.multipoints(places)))
    return float(np.linalg.norm(places[:, np.newaxis] - places, axis=2).max())


def _compute_top_places_overlap(first: FloatArray, second: FloatArray) -> float:
    count = max(1, int((second > 0).sum()) // 10)
    tops = [set(np.argsort(-visits, kind="stable")[:count].tolist()) for visits in (first, second)]
    return len(tops[0] & tops[1]) / count


def _compute_rank_correlation(first: FloatArray, second: FloatArray) -> float:
    from scipy.stats import kendalltau

    either = (first > 0) | (second > 0)
    if int(either.sum()) < 2:
        return float("nan")
    return float(kendalltau(first[either], second[either]).statistic)


@check_arguments
def move_probabilities(
    model: MarkovModel, paths: Sequence[npt.ArrayLike], firsts: npt.ArrayLike | None = None
) -> FloatArray:
    """Compute the transition probability of each step of paths.

    Parameters
    ----------
    model
        The model.
    paths
        The states of each path, ``(t,)``, one step apart.
    firsts
        ``(n,)``: the slot of the first state of each path. Required by models that vary with time.

    Returns
    -------
    FloatArray
        ``(m,)``: ``t - 1`` probabilities for each path, in order; 0 for steps that are impossible in the model. The
        mean of their logarithms over users that the model was not learned from measures its goodness of fit.

    Raises
    ------
    StateError
        If a state does not exist.
    InvalidInputError
        If the model varies with time, and there is not one slot for each path.

    Examples
    --------
    >>> move_probabilities(MarkovModel([[.9, .1], [.2, .8]], [.5, .5]), [[0, 0, 1], [1]])
    array([0.9, 0.1])
    """
    listed = _check_paths(paths, model.size)[0]
    nothing = np.zeros(0, dtype=np.int64)
    begins = np.zeros(len(listed), dtype=np.int64) if firsts is None else as_integers(firsts, "firsts")
    if begins.shape != (len(listed),) or (model.time_classes is not None and firsts is None):
        raise InvalidInputError(f"firsts must be {len(listed)} slots, one for each path, got shape {begins.shape}")
    sources = np.concatenate([nothing, *(sequence[:-1] for sequence in listed)])
    targets = np.concatenate([nothing, *(sequence[1:] for sequence in listed)])
    slots = [first + np.arange(1, len(sequence)) for first, sequence in zip(begins.tolist(), listed, strict=True)]
    numbers = model.get_classes(np.concatenate([nothing, *slots]))
    probabilities = np.zeros(len(sources))
    for number, matrix in enumerate(model.transitions):
        chosen = numbers == number
        if chosen.any():
            probabilities[chosen] = np.asarray(matrix[sources[chosen], targets[chosen]]).ravel()
    return probabilities
