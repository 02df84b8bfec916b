"""What tables of counts give away of people: their tracks, and whether they are in the data.

*Tracks* (Xu, Tu, Li, Zhang, Fu and Jin, *Trajectory Recovery from Ash*, WWW 2017): counts of people by place and time
are as many slots as people at every time. Slots of neighbouring times are joined so that people stay at night, and go
on as they went by day; the tracks of days are joined by how alike they are. No place of anyone is known beforehand.

*Membership* (Pyrgelis, Troncoso and De Cristofaro, *Knock Knock, Who's There?*, NDSS 2018): tables of groups of others,
with and without one person, teach the adversary what that person adds. Here the adversary knows to which cells the
person adds, and weighs each by the inverse of its variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from dphmm.arrays import FloatArray, IntArray

HOURS = 24
NIGHT = 6
"""People stay from midnight to this hour."""

Protect = Callable[[FloatArray, np.random.Generator], FloatArray]
"""What is published of true counts."""


def whole_counts(counts: FloatArray, people: int) -> IntArray:
    """Counts ``(T, m)`` as an adversary takes them who knows how many people there are: whole, and as many at any time.

    Parameters
    ----------
    counts
        As published, noisy or hidden.
    people
        How many people there are.

    Returns
    -------
    IntArray
        ``(T, m)``: not negative, each row of the same sum.
    """
    known = np.maximum(counts, 0.0)
    empty = known.sum(axis=1) == 0
    known[empty] = 1.0
    shares = known / known.sum(axis=1, keepdims=True) * people
    low = np.floor(shares).astype(np.int64)
    rank = np.argsort(np.argsort(low - shares, axis=1, kind="stable"), axis=1)
    return np.asarray(low + (rank < (people - low.sum(axis=1))[:, None]))


def recover_tracks(counts: IntArray, points: FloatArray) -> IntArray:
    """The tracks that an adversary makes of counts by hour.

    Parameters
    ----------
    counts
        ``(T, m)``: how many people are in each place at each hour, from midnight on, as many at all hours.
    points
        ``(m, 2)``: the places, kilometres.

    Returns
    -------
    IntArray
        ``(N, T)``: a place at every hour for each of as many people.
    """
    slots = [np.repeat(np.arange(counts.shape[1]), row) for row in counts]
    apart, tracks = cdist(points, points), list[IntArray]()
    for first in range(0, len(slots), HOURS):
        day = [slots[first]]
        for hour, places in enumerate(slots[first + 1 : first + HOURS], start=1):
            if hour < NIGHT or hour == 1:
                cost = apart[np.ix_(day[-1], places)]
            else:
                cost = cdist(2 * points[day[-1]] - points[day[-2]], points[places])
            day.append(places[linear_sum_assignment(cost)[1]])
        tracks.append(np.stack(day, axis=1))
    joined = tracks[0]
    for one in tracks[1:]:
        order = linear_sum_assignment(_unlike(joined, one, counts.shape[1]))[1]
        joined = np.concatenate([joined, one[order]], axis=1)
    return joined


def _unlike(known: IntArray, day: IntArray, places: int) -> FloatArray:
    """How much less certain the places of two tracks are together than by themselves: entropies in nats."""
    shares = [
        np.stack([np.bincount(track, minlength=places) / len(track) for track in several]) for several in (known, day)
    ]
    own = [_entropy(one) for one in shares]
    return np.stack([_entropy((one + shares[1]) / 2) for one in shares[0]]) - (own[0][:, None] + own[1][None, :]) / 2


def _entropy(shares: FloatArray) -> FloatArray:
    return np.asarray(-(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1))


def recovered_share(found: IntArray, true: IntArray) -> float:
    """Which share of all places and times is right, each person taken for the track that fits best, each track once.

    Parameters
    ----------
    found, true
        ``(N, T)`` tracks.

    Returns
    -------
    float
        From 0 to 1.
    """
    right = np.stack([(found == one[None]).mean(axis=1) for one in true])
    return float(right[linear_sum_assignment(-right)].mean())


def membership_areas(
    cells: IntArray,
    size: int,
    targets: Sequence[int],
    protect: Protect,
    rounds: int,
    rng: np.random.Generator,
) -> FloatArray:
    """How well tables with a person are told from tables without, for each of some people.

    Parameters
    ----------
    cells
        ``(people, k)``: the cells to which each adds one.
    size
        How many cells the table has.
    targets
        Which people are looked for, each in tables of half of the others.
    protect
        What is published of a table.
    rounds
        How many tables teach the adversary, half of them with the person, and how many more are judged.
    rng
        Which groups, and the noise.

    Returns
    -------
    FloatArray
        The probability, for each target, that a table with the person has the higher score; 0.5 by chance.
    """
    found = []
    inside = np.arange(rounds) % 2 == 1
    for target in targets:
        others, own = np.delete(np.arange(len(cells)), target), np.unique(cells[target])
        taught, judged = (
            np.stack([_published(cells, size, _group(others, target, with_, rng), protect, rng) for with_ in inside])
            for _ in range(2)
        )
        without, within = taught[~inside][:, own], taught[inside][:, own]
        spread = (without.var(axis=0) + within.var(axis=0)) / 2 + 1e-3
        adds = np.maximum(within.mean(axis=0) - without.mean(axis=0), 0.0)
        # What a person adds to a cell is one, or what was seen of it where something hides it: whichever told better.
        best = max((adds / spread, 1.0 / spread), key=lambda weights: _area(within @ weights, without @ weights))
        scores = judged[:, own] @ best
        found.append(_area(scores[inside], scores[~inside]))
    return np.array(found)


def _group(others: IntArray, target: int, with_target: bool, rng: np.random.Generator) -> list[int]:
    group: list[int] = rng.choice(others, max(len(others) // 2, 1), replace=False).tolist()
    return [*group, target] if with_target else group


def _published(cells: IntArray, size: int, people: list[int], protect: Protect, rng: np.random.Generator) -> FloatArray:
    return protect(np.bincount(cells[people].ravel(), minlength=size).astype(np.float64), rng)


def _area(with_: FloatArray, without: FloatArray) -> float:
    higher: Any = with_[:, None] > without[None]
    return float((higher + 0.5 * (with_[:, None] == without[None])).mean())
