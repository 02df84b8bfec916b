"""What tables of counts give away of people: as they are, with thresholds, and with a promise for whole people.

*Tracks* (Xu, Tu, Li, Zhang, Fu and Jin, *Trajectory Recovery from Ash*, WWW 2017): counts of people by place and time
are as many slots as people at every time. Slots of neighbouring times are joined so that people stay at night, and go
on as they went by day; the tracks of days are joined by how alike they are. No place of anyone is known beforehand.

*Membership* (Pyrgelis, Troncoso and De Cristofaro, *Knock Knock, Who's There?*, NDSS 2018): tables of groups of others,
with and without one person, teach the adversary what that person adds. Here the adversary knows to which cells the
person adds, and weighs each by the inverse of its variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, random_source
from dphmm.errors import ConfigurationError
from dphmm.facts import fact, facts_of
from dphmm.flows.areas import Areas
from dphmm.flows.tables import DAY
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.progress import Watch, unwatched
from dphmm.mechanisms.exact import Rational, rational
from dphmm.mechanisms.lattice_noise import laplace_steps
from dphmm.model.time_classes import offsets
from dphmm.space import OUTSIDE, LocalProjection, Trajectory
from dphmm.space.trajectory import time_zone

HOURS = 24
THRESHOLDS = 5, 10
_WEEK = 7 * HOURS
_HOUR = DAY // HOURS
_TARGETS = 40


@dataclass(frozen=True)
class AttackedTable:
    """What a way of publishing a table gave away. Private as far as the people are real.

    Parameters
    ----------
    protection
        The way.
    recovered
        The share of places and times at which the tracks that were recovered are right.
    membership
        Over people, the mean probability that a table with the person has a higher score than one without.
    membership_of_worst
        The same of the tenth of people who are told best.
    bound
        What that probability can be at most under the promise; None where there is none.
    """

    protection: str = field(metadata=fact())
    recovered: float = field(metadata=fact("places_recovered"))
    membership: float = field(metadata=fact())
    membership_of_worst: float = field(metadata=fact("membership_of_the_worst_tenth"))
    bound: float | None = field(metadata=fact("membership_at_most"))

    def facts(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns
        -------
        dict
            Names of facts → values.
        """
        return facts_of(self)


@checked
def attack_tables(
    data: DataLike,
    areas: Areas,
    user_epsilon: Rational = 1,
    *,
    hours_per_person: int = 24,
    most_people: int = 300,
    rounds: int = 60,
    zone: str = "UTC",
    seed: int = 0,
    watch: Watch = unwatched,
) -> list[AttackedTable]:
    """Try attacks on tables of people by area and hour of a week, as ``dphmm attack --areas`` does.

    Everybody's week with most fixes is laid over the others', and a person who is not seen is where they were last. The
    tables are published as they are, as the mean of all hours, with small numbers hidden, and with exact noise of the
    whole budget for bounded contributions; beside them stands what an adversary achieves to whom nothing is told.

    Parameters
    ----------
    data
        Whose places.
    areas
        The areas.
    user_epsilon
        The budget of the table with noise.
    hours_per_person
        How many hours of a person count in that table.
    most_people
        The most people looked at, those with most fixes first.
    rounds
        How many tables teach the adversary about a person, and how many are judged.
    zone
        Of hours and weeks.
    seed
        Which draws; nothing here is published.
    watch
        Shows how far the job has come.

    Returns
    -------
    list of AttackedTable
        As they are, the mean of the week, with each of `THRESHOLDS`, with noise, and nothing.

    Raises
    ------
    ConfigurationError
        When fewer than three people are in the areas.
    BudgetError, DphmmError
        As the budget and the data say.

    Examples
    --------
    >>> town = Areas.from_polygons("data/districts.geojson")
    >>> found = attack_tables("data/sample/geolife", town, rounds=20)
    >>> found[0].protection, found[0].recovered > found[-1].recovered
    ('as they are', True)
    """
    budget = rational(user_epsilon, "user_epsilon")
    if hours_per_person < 1 or most_people < 3 or rounds < 4 or seed < 0:
        raise ConfigurationError(
            f"hours_per_person is {hours_per_person}, most_people {most_people}, rounds {rounds}, seed {seed}; give at "
            "least one hour, three people and four rounds, and a seed of 0 or more"
        )
    time_zone(zone)  # refuses one that is unknown
    people = sorted(Data.from_any(data).read().trajectories, key=len, reverse=True)
    weeks = [week for one in people if (week := _week(one, areas, zone)) is not None][:most_people]
    if len(weeks) < 3:
        raise ConfigurationError(f"{len(weeks)} people are in the areas; an attack on tables needs 3 or more")
    true, n = np.stack(weeks), len(areas)
    points = LocalProjection(*areas.places.mean(axis=0)).to_plane(*areas.places.T)
    cells, source = true + n * np.arange(_WEEK)[None], random_source(seed)
    kept = np.arange(min(hours_per_person, _WEEK)) * _WEEK // min(hours_per_person, _WEEK)
    scale = budget / len(kept)

    def noisy(counts: FloatArray, _: np.random.Generator) -> FloatArray:
        return counts + laplace_steps(scale, counts.size, source)

    ways: list[tuple[str, Any, IntArray, float | None]] = [
        ("as they are", lambda counts, _: counts, cells, None),
        ("the mean of the week", lambda counts, _: np.tile(counts.reshape(-1, n).mean(axis=0), _WEEK), cells, None),
        *((f"below {least} hidden", partial(_hidden, least=least), cells, None) for least in THRESHOLDS),
        (f"epsilon {user_epsilon}", noisy, cells[:, kept], 1.0 / (1.0 + exp(-float(budget)))),
        ("nothing", lambda counts, _: np.ones_like(counts), cells, 0.5),
    ]
    targets = np.random.default_rng(seed).choice(len(true), min(len(true), _TARGETS), replace=False).tolist()
    found = []
    for name, way, table, bound in watch(ways, "Attacking", len(ways)):
        rng = np.random.default_rng(seed)
        counts = np.bincount(table.ravel(), minlength=_WEEK * n).astype(np.float64)
        tracks = recover_tracks(whole_counts(way(counts, rng).reshape(_WEEK, n), len(true)), points)
        told = np.sort(membership_areas(table, _WEEK * n, targets, way, rounds, rng))
        worst = float(told[-max(1, len(told) // 10) :].mean())
        found.append(AttackedTable(name, recovered_share(tracks, true), float(told.mean()), worst, bound))
    return found


def _hidden(counts: FloatArray, _: np.random.Generator, least: int) -> FloatArray:
    return np.where(counts < least, 0.0, counts)


def _week(one: Trajectory, areas: Areas, zone: str) -> IntArray | None:
    """Where a person is at each hour of the week with most fixes, from Monday on; None if in no area."""
    where = areas.locate(one.latitude, one.longitude)
    inside = where != OUTSIDE
    if not inside.any():
        return None
    times = one.times.astype(np.int64)[inside]
    hours = (times + offsets(times, zone)) // _HOUR + 3 * HOURS  # 1970 began on a Thursday
    weeks, count = np.unique(hours // _WEEK, return_counts=True)
    chosen = hours // _WEEK == weeks[count.argmax()]
    hour, place = hours[chosen] % _WEEK, where[inside][chosen]
    last = np.searchsorted(hour, np.arange(_WEEK), side="right") - 1
    return np.asarray(place[np.maximum(last, 0)])


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

        def published(with_target: bool, others: IntArray = others, target: int = target) -> FloatArray:
            group = rng.choice(others, max(len(others) // 2, 1), replace=False).tolist()
            people = [*group, target] if with_target else group
            return protect(np.bincount(cells[people].ravel(), minlength=size).astype(np.float64), rng)

        taught, judged = (np.stack([published(with_target) for with_target in inside]) for _ in range(2))
        without, within = taught[~inside][:, own], taught[inside][:, own]
        spread = (without.var(axis=0) + within.var(axis=0)) / 2 + 1e-3
        adds = np.maximum(within.mean(axis=0) - without.mean(axis=0), 0.0)
        # What a person adds to a cell is one, or what was seen of it where something hides it: whichever told better.
        best = max((adds / spread, 1.0 / spread), key=lambda weights: _area(within @ weights, without @ weights))
        scores = judged[:, own] @ best
        found.append(_area(scores[inside], scores[~inside]))
    return np.array(found)


def _area(with_: FloatArray, without: FloatArray) -> float:
    higher: Any = with_[:, None] > without[None]
    return float((higher + 0.5 * (with_[:, None] == without[None])).mean())
