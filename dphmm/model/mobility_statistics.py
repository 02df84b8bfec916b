"""How similarly two groups of people move, by the measures of AdaTrace and LDPTrace for synthetic trajectories.

A crowd is a number of stretches: states one step apart. Each measure is a divergence between two histograms of it, or a
rank correlation; none looks at people one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_floats, as_integers, as_points
from dphmm.errors import InvalidInputError, StateError
from dphmm.model.model import MarkovModel

BUCKETS = 20
"""The number of buckets of equal width for lengths, up to the largest of the group compared with."""
ZONES = 6
"""Origins and destinations are zones: this many columns and rows over the box around all states."""

MEASURES: Mapping[str, str] = {
    "visits": "share of time in each state",
    "moves": "share of moves between each pair of different states",
    "trip_length": "length of a stretch's way, km",
    "radius_of_gyration": "root mean square distance from a stretch's mean place, km",
    "diameter": "largest distance between two places of a stretch, km",
    "origin_destination": "first and last zone of a stretch",
    "hours": "share of steps in each class of time that move, and that stay",
}
"""Measure → what its histogram counts."""


@dataclass(frozen=True, eq=False)
class Crowd:
    """What is counted of some stretches.

    Parameters
    ----------
    visits
        ``(N,)``: how often each state was visited.
    moves
        The moves between different states, as ``source * N + target``, each once; with how often, ``(2, m)``.
    lengths, radii, diameters
        ``(n,)`` each, kilometres, one per stretch.
    trips
        ``(ZONES ** 4,)``: how many stretches went from each zone to each zone.
    hours
        ``(2 K,)``: how many steps moved in each class of time, and how many stayed, one after the other.
    """

    visits: FloatArray = field(repr=False)
    moves: FloatArray = field(repr=False)
    lengths: FloatArray = field(repr=False)
    radii: FloatArray = field(repr=False)
    diameters: FloatArray = field(repr=False)
    trips: FloatArray = field(repr=False)
    hours: FloatArray = field(repr=False)

    @classmethod
    @checked
    def of(
        cls, stretches: Sequence[npt.ArrayLike], points: npt.ArrayLike, classes: Sequence[npt.ArrayLike] | None = None
    ) -> Crowd:
        """Count.

        Parameters
        ----------
        stretches
            The states of each stretch, ``(t,)``, at least one.
        points
            ``(N, 2)``: where the states are, kilometres.
        classes
            The class of time of each of a stretch's steps, ``(t,)``; left out, all are of one class.

        Raises
        ------
        InvalidInputError
            When there is no stretch, or one is empty.
        StateError
            When a state does not exist.
        """
        places = as_points(points, "points")
        size = len(places)
        listed, every = _checked(stretches, size)
        if not listed or not all(len(one) for one in listed):
            raise InvalidInputError("there is no stretch, or one is empty; give at least one state each")
        begins = np.cumsum([0, *(len(one) for one in listed[:-1])])
        inner = np.ones(len(every) - 1, dtype=np.bool_)
        inner[begins[1:] - 1] = False
        moved = inner & (every[1:] != every[:-1])
        when = np.zeros(len(every), dtype=np.int64)
        if classes is not None:
            when = np.concatenate([as_integers(one, "classes").astype(np.int64).ravel() for one in classes])
            if when.shape != every.shape or when.min() < 0:
                raise InvalidInputError("classes differ in number from the states, or are negative; give one each")
        pairs, counts = np.unique((every[:-1] * size + every[1:])[moved], return_counts=True)
        steps = np.where(inner, np.linalg.norm(np.diff(places[every], axis=0), axis=1), 0.0)
        zones = _zones(places)
        ends = np.append(begins[1:], len(every)) - 1
        return cls(
            np.bincount(every, minlength=size).astype(np.float64),
            np.stack([pairs, counts]).astype(np.float64),
            np.add.reduceat(np.append(steps, 0.0), begins),
            np.array([_gyration(places[one]) for one in listed]),
            np.array([_diameter(places[np.unique(one)]) for one in listed]),
            np.bincount(zones[every[begins]] * ZONES**2 + zones[every[ends]], minlength=ZONES**4).astype(np.float64),
            np.bincount((2 * when[1:] + ~moved)[inner], minlength=2 * (1 + int(when.max()))).astype(np.float64),
        )


@checked
def compare_crowds(found: Crowd, wanted: Crowd) -> dict[str, float]:
    """The Jensen–Shannon divergence of each of `MEASURES` between two crowds, in bits, from 0 (alike) to 1 (disjoint).

    Lengths, radii and diameters are counted in `BUCKETS` buckets up to the largest of `wanted`; what is larger falls
    into the last. To it come ``"top_places"``, the share of the most visited tenth of places that both have in common,
    and ``"rank_correlation"``, Kendall's tau-b of how often places are visited, over places that either visits.

    Parameters
    ----------
    found
        The people who are compared.
    wanted
        The people they should be like.

    Returns
    -------
    dict of str to float
        A number for each statistic.
    """
    length = max(len(found.hours), len(wanted.hours))
    return {
        "visits": jensen_shannon(found.visits, wanted.visits),
        "moves": jensen_shannon(*_aligned(found, wanted)),
        "trip_length": _in_buckets(found.lengths, wanted.lengths),
        "radius_of_gyration": _in_buckets(found.radii, wanted.radii),
        "diameter": _in_buckets(found.diameters, wanted.diameters),
        "origin_destination": jensen_shannon(found.trips, wanted.trips),
        "hours": jensen_shannon(*(np.pad(one.hours, (0, length - len(one.hours))) for one in (found, wanted))),
        "top_places": _shared_top(found.visits, wanted.visits),
        "rank_correlation": _tau(found.visits, wanted.visits),
    }


@checked
def jensen_shannon(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """The Jensen–Shannon divergence of two histograms of equal length, in bits; NaN where one of them is empty.

    Parameters
    ----------
    one
        A histogram, ``(k,)``.
    other
        Another one of the same buckets, ``(k,)``.

    Returns
    -------
    float
        From 0 (equal shares) to 1 (nothing in common).

    Raises
    ------
    InvalidInputError
        When they differ in length, or hold anything but numbers that are not negative.

    Examples
    --------
    >>> jensen_shannon([1, 1], [2, 2]), jensen_shannon([1, 0], [0, 3]), round(jensen_shannon([1, 0], [1, 1]), 6)
    (0.0, 1.0, 0.311278)
    """
    counts = [as_floats(given, "a histogram") for given in (one, other)]
    if counts[0].ndim != 1 or counts[0].shape != counts[1].shape:
        raise InvalidInputError("histograms differ in length; give two of the same buckets")
    if not all(np.isfinite(given).all() and (given >= 0).all() for given in counts):
        raise InvalidInputError("a histogram holds a negative or infinite number; give counts")
    if not all(given.any() for given in counts):
        return float("nan")
    p, q = (given / given.sum() for given in counts)
    middle = (p + q) / 2
    parts = [float((given[given > 0] * np.log(given[given > 0] / middle[given > 0])).sum()) for given in (p, q)]
    return min(max(sum(parts) / 2 / log(2), 0.0), 1.0)


def _checked(stretches: Sequence[npt.ArrayLike], size: int) -> tuple[list[IntArray], IntArray]:
    """The states of each stretch, and of all of them, refused where one does not exist."""
    listed = [as_integers(one, "the states of a stretch", StateError).astype(np.int64).ravel() for one in stretches]
    every = np.concatenate([np.zeros(0, dtype=np.int64), *listed])
    if every.size and (every.min() < 0 or every.max() >= size):
        raise StateError(f"a state of a stretch does not exist; states are 0 to {size - 1}")
    return listed, every


def _aligned(one: Crowd, other: Crowd) -> tuple[FloatArray, FloatArray]:
    keys = np.union1d(one.moves[0], other.moves[0])
    found = [np.zeros(len(keys)) for _ in range(2)]
    for counts, crowd in zip(found, (one, other), strict=True):
        counts[np.searchsorted(keys, crowd.moves[0])] = crowd.moves[1]
    return found[0], found[1]


def _in_buckets(found: FloatArray, wanted: FloatArray) -> float:
    edges = np.linspace(0.0, max(float(wanted.max()), 1e-9), BUCKETS + 1)
    return jensen_shannon(*(np.histogram(np.minimum(values, edges[-1]), edges)[0] for values in (found, wanted)))


def _zones(points: FloatArray) -> IntArray:
    """The zone of each point: `ZONES` columns and rows over the box around all."""
    low, high = points.min(axis=0), points.max(axis=0)
    at = np.minimum((points - low) / np.maximum(high - low, 1e-9) * ZONES, ZONES - 1).astype(np.int64)
    return np.asarray(at[:, 1] * ZONES + at[:, 0])


def _gyration(places: FloatArray) -> float:
    return float(np.sqrt(((places - places.mean(axis=0)) ** 2).sum(axis=1).mean()))


def _diameter(places: FloatArray) -> float:
    """The largest distance between two points, which are those of the convex hull where there are many."""
    if len(places) > 50:
        import shapely

        places = shapely.get_coordinates(shapely.convex_hull(shapely.multipoints(places)))
    return float(np.linalg.norm(places[:, np.newaxis] - places, axis=2).max())


def _shared_top(one: FloatArray, other: FloatArray) -> float:
    count = max(1, int((other > 0).sum()) // 10)
    tops = [set(np.argsort(-visits, kind="stable")[:count].tolist()) for visits in (one, other)]
    return len(tops[0] & tops[1]) / count


def _tau(one: FloatArray, other: FloatArray) -> float:
    from scipy.stats import kendalltau

    either = (one > 0) | (other > 0)
    if int(either.sum()) < 2:
        return float("nan")
    return float(kendalltau(one[either], other[either]).statistic)


@checked
def move_probabilities(
    model: MarkovModel, stretches: Sequence[npt.ArrayLike], firsts: npt.ArrayLike | None = None
) -> FloatArray:
    """The probability of each step of some stretches, given the places before it in the stretch.

    Parameters
    ----------
    model
        The model.
    stretches
        The states of each, ``(t,)``, one step apart.
    firsts
        ``(n,)``: the slot of each one's first state, for models that vary with time.

    Returns
    -------
    FloatArray
        ``(m,)``, ``t - 1`` numbers for each stretch, in order; 0 for a step that the model thinks impossible. The mean
        of their logarithms over people whom the model has not seen says how well it knows how people move.

    Raises
    ------
    StateError
        When a state does not exist.
    InvalidInputError
        When the model varies with time, and there is not one slot for each stretch.

    Examples
    --------
    >>> move_probabilities(MarkovModel([[.9, .1], [.2, .8]], [.5, .5]), [[0, 0, 1], [1]])
    array([0.9, 0.1])
    """
    listed, nothing = _checked(stretches, model.size)[0], np.zeros(0, dtype=np.int64)
    begins = np.zeros(len(listed), dtype=np.int64) if firsts is None else as_integers(firsts, "firsts")
    if begins.shape != (len(listed),) or (model.time_classes is not None and firsts is None):
        raise InvalidInputError(f"slots have shape {begins.shape} for {len(listed)} stretches; give the first of each")
    sources = np.concatenate([nothing, *(one[:-1] for one in listed)])
    targets = np.concatenate([nothing, *(one[1:] for one in listed)])
    slots = [first + np.arange(1, len(one)) for first, one in zip(begins.tolist(), listed, strict=True)]
    numbers = model.classes_of(np.concatenate([nothing, *slots]))
    found = np.zeros(len(sources))
    for number, matrix in enumerate(model.transitions):
        chosen = numbers == number
        if chosen.any():
            found[chosen] = np.asarray(matrix[sources[chosen], targets[chosen]]).ravel()
    return found
