"""Attacks on tables of counts: exact, suppressed or with differential privacy.

*Tracks* (Xu, Tu, Li, Zhang, Fu and Jin, *Trajectory Recovery from Ash*, WWW 2017): the counts by place and time are
split into one slot per user at each time. Slots of adjacent times are matched so that users stay at night and keep
their velocity by day. The tracks of different days are matched by similarity. The adversary knows no location of any
user beforehand.

*Membership* (Pyrgelis, Troncoso and De Cristofaro, *Knock Knock, Who's There?*, NDSS 2018): from tables of groups of
other users, with and without the target, the adversary learns the target's contribution. Here the adversary knows the
target's cells and weights each by its inverse variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp
from typing import Annotated, Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from dphmm.arrays import FloatArray, IntArray
from dphmm.audit.empirical_epsilon import clopper_pearson_interval
from dphmm.errors import ConfigurationError
from dphmm.flows.areas import Areas
from dphmm.flows.tables import DAY
from dphmm.formatting import Result, exported
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.mechanisms.discrete_laplace import sample_discrete_laplace
from dphmm.mechanisms.exact_sampling import Rational, parse_rational
from dphmm.model.time_classes import get_utc_offsets
from dphmm.random import as_random_source, derive_seed
from dphmm.space import OUTSIDE, LocalProjection, Trajectory
from dphmm.space.trajectory import parse_time_zone
from dphmm.validation import Integers, PositiveInt, SeedOrGenerator, check_arguments_as

HOURS = 24
# Thresholds below which statistical offices suppress counts.
SUPPRESSION_THRESHOLDS = 5, 10
_WEEK = 7 * HOURS
_HOUR = DAY // HOURS
# Number of users for membership inference: each needs many tables.
_NUM_TARGETS = 40


@dataclass(frozen=True)
class TableAttackResult(Result):
    """Disclosure by one type of published table. Private if the users are real.

    Parameters
    ----------
    protection
        The type of protection.
    recovered_share
        The share of locations and times at which the recovered tracks are correct.
    membership_auc
        The mean over users of the probability that a table with the user has a higher score than one without.
    worst_decile_membership_auc
        The mean over the tenth of users with the largest values on half of the tables, from the other half.
    membership_auc_interval, worst_decile_membership_auc_interval
        The 99 % binomial intervals of both estimates, from the number of disjoint pairs of tables with and without a
        user. The users are fixed, the tables random.
    max_membership_auc
        Upper bound on the true probabilities by the guarantee, None without one.
    """

    protection: str = field(metadata=exported())
    recovered_share: float = field(metadata=exported())
    membership_auc: float = field(metadata=exported())
    worst_decile_membership_auc: float = field(metadata=exported())
    membership_auc_interval: tuple[float, float] = field(metadata=exported())
    worst_decile_membership_auc_interval: tuple[float, float] = field(metadata=exported())
    max_membership_auc: float | None = field(metadata=exported())


@check_arguments_as(ConfigurationError)
def attack_tables(
    data: DataLike,
    areas: Areas,
    user_epsilon: Rational = 1,
    *,
    hours_per_user: PositiveInt = 24,
    max_users: Annotated[int, Integers(3)] = 300,
    rounds: Annotated[int, Integers(4)] = 60,
    zone: str = "UTC",
    rng: SeedOrGenerator = 0,
    watch: ProgressCallback = suppress_progress,
) -> list[TableAttackResult]:
    """Attack tables of users by area and hour of a week, as ``dphmm attack --areas`` does.

    The busiest weeks of all users are overlaid. A user without a fix stays at the last location. The attacked tables
    are the exact counts, their weekly mean, counts with small values suppressed, and counts with exact Laplace noise
    for bounded contributions. For comparison, the result includes an adversary without a table.

    Parameters
    ----------
    data
        The users' data.
    areas
        The areas.
    user_epsilon
        The user-level budget of the table with noise.
    hours_per_user
        Number of hours of each user that are counted in this table.
    max_users
        Maximum number of users. Those with most fixes are used.
    rounds
        Number of tables that train the adversary for each user, and of those that evaluate it.
    zone
        The time zone of hours and weeks.
    rng
        Seed or generator of all random numbers. Nothing is published.
    watch
        Progress callback.

    Returns
    -------
    list of TableAttackResult
        Exact counts, weekly mean, each of `SUPPRESSION_THRESHOLDS`, noise, and no table.

    Raises
    ------
    ConfigurationError
        If fewer than three users are in the areas.
    BudgetError, DphmmError
        If the budget or the data are invalid.

    Examples
    --------
    >>> town = Areas.from_polygons("data/districts.geojson")
    >>> results = attack_tables("data/sample/geolife", town, rounds=20)
    >>> results[0].protection, results[0].recovered_share > results[-1].recovered_share
    ('exact counts', True)
    """
    seed = derive_seed(rng)
    budget = parse_rational(user_epsilon, "user_epsilon")
    parse_time_zone(zone)  # raises if the zone is unknown
    trajectories = sorted(Data.from_any(data).with_region(areas).read().trajectories, key=len, reverse=True)
    weeks = [week for user in trajectories if (week := _locate_busiest_week(user, areas, zone)) is not None][:max_users]
    if len(weeks) < 3:
        raise ConfigurationError(f"areas must contain at least 3 users for an attack, got {len(weeks)}")
    true = np.stack(weeks)
    n = len(areas)
    points = LocalProjection(*areas.places.mean(axis=0)).to_plane(*areas.places.T)
    cells = true + n * np.arange(_WEEK)[None]
    source = as_random_source(seed)
    kept = np.arange(min(hours_per_user, _WEEK)) * _WEEK // min(hours_per_user, _WEEK)
    scale = budget / len(kept)

    def add_noise(counts: FloatArray, _: np.random.Generator) -> FloatArray:
        return counts + sample_discrete_laplace(scale, counts.size, source)

    protections: list[tuple[str, Any, IntArray, float | None]] = [
        ("exact counts", lambda counts, _: counts, cells, None),
        ("weekly mean", lambda counts, _: np.tile(counts.reshape(-1, n).mean(axis=0), _WEEK), cells, None),
        *(
            (f"counts below {threshold} suppressed", partial(_suppress_small_counts, threshold=threshold), cells, None)
            for threshold in SUPPRESSION_THRESHOLDS
        ),
        (f"epsilon {user_epsilon}", add_noise, cells[:, kept], 1.0 / (1.0 + exp(-float(budget)))),
        ("no table", lambda counts, _: np.ones_like(counts), cells, 0.5),
    ]
    targets = np.random.default_rng(seed).choice(len(true), min(len(true), _NUM_TARGETS), replace=False).tolist()
    results = []
    for name, protect, table, bound in watch(protections, "Attacking", len(protections)):
        rng = np.random.default_rng(seed)
        counts = np.bincount(table.ravel(), minlength=_WEEK * n).astype(np.float64)
        tracks = recover_tracks(round_counts(protect(counts, rng).reshape(_WEEK, n), len(true)), points)
        aucs = compute_membership_auc(table, _WEEK * n, targets, protect, rounds, rng)
        recovered = compute_recovered_share(tracks, true)
        mean, worst = float(aucs.mean()), compute_worst_decile(aucs)
        interval, worst_interval = (
            _compute_auc_interval(auc, 2 * count * (rounds // 4))
            for auc, count in ((mean, len(aucs)), (worst, _get_decile_size(aucs)))
        )
        results.append(TableAttackResult(name, recovered, mean, worst, interval, worst_interval, bound))
    return results


def _suppress_small_counts(counts: FloatArray, _: np.random.Generator, threshold: int) -> FloatArray:
    return np.where(counts < threshold, 0.0, counts)


def _locate_busiest_week(track: Trajectory, areas: Areas, zone: str) -> IntArray | None:
    """Return a user's area at each hour of the busiest week, or None outside all areas."""
    where = areas.locate(track.latitude, track.longitude)
    inside = where != OUTSIDE
    if not inside.any():
        return None
    times = track.times.astype(np.int64)[inside]
    hours = (times + get_utc_offsets(times, zone)) // _HOUR + 3 * HOURS  # 1970 began on a Thursday
    weeks, count = np.unique(hours // _WEEK, return_counts=True)
    chosen = hours // _WEEK == weeks[count.argmax()]
    hour = hours[chosen] % _WEEK
    place = where[inside][chosen]
    last = np.searchsorted(hour, np.arange(_WEEK), side="right") - 1
    return np.asarray(place[np.maximum(last, 0)])


# Hour until which users stay at one place, from midnight.
NIGHT = 6

# Function from the true counts to the published ones.
Protect = Callable[[FloatArray, np.random.Generator], FloatArray]


def round_counts(counts: FloatArray, num_users: int) -> IntArray:
    """Round counts ``(T, m)`` to integers that sum to the number of users in each row.

    Parameters
    ----------
    counts
        The published counts, with noise or suppressed values.
    num_users
        The number of users.

    Returns
    -------
    IntArray
        ``(T, m)``: non-negative, with equal row sums.
    """
    positive = np.maximum(counts, 0.0)
    empty = positive.sum(axis=1) == 0
    positive[empty] = 1.0
    shares = positive / positive.sum(axis=1, keepdims=True) * num_users
    low = np.floor(shares).astype(np.int64)
    rank = np.argsort(np.argsort(low - shares, axis=1, kind="stable"), axis=1)
    return np.asarray(low + (rank < (num_users - low.sum(axis=1))[:, None]))


def recover_tracks(counts: IntArray, points: FloatArray) -> IntArray:
    """Recover the users' tracks from hourly counts.

    Parameters
    ----------
    counts
        ``(T, m)``: the number of users in each place at each hour, from midnight, with equal row sums.
    points
        ``(m, 2)``: the places, kilometres.

    Returns
    -------
    IntArray
        ``(N, T)``: a place at every hour for each user.
    """
    slots = [np.repeat(np.arange(counts.shape[1]), row) for row in counts]
    distances = cdist(points, points)
    tracks = list[IntArray]()
    for first in range(0, len(slots), HOURS):
        day = [slots[first]]
        for hour, places in enumerate(slots[first + 1 : first + HOURS], start=1):
            if hour < NIGHT or hour == 1:
                cost = distances[np.ix_(day[-1], places)]
            else:
                # by day users keep their velocity: extrapolate the last two places
                cost = cdist(2 * points[day[-1]] - points[day[-2]], points[places])
            day.append(places[linear_sum_assignment(cost)[1]])
        tracks.append(np.stack(day, axis=1))
    joined = tracks[0]
    for next_day in tracks[1:]:
        order = linear_sum_assignment(_compute_entropy_increase(joined, next_day, counts.shape[1]))[1]
        joined = np.concatenate([joined, next_day[order]], axis=1)
    return joined


def _compute_entropy_increase(reconstructed: IntArray, day: IntArray, places: int) -> FloatArray:
    """Return the increase of entropy when pairs of tracks are merged, in nats."""
    shares = [
        np.stack([np.bincount(track, minlength=places) / len(track) for track in several])
        for several in (reconstructed, day)
    ]
    entropies = [_compute_entropy(share) for share in shares]
    return (
        np.stack([_compute_entropy((share + shares[1]) / 2) for share in shares[0]])
        - (entropies[0][:, None] + entropies[1][None, :]) / 2
    )


def _compute_entropy(shares: FloatArray) -> FloatArray:
    return np.asarray(-(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1))


def compute_recovered_share(reconstructed: IntArray, true: IntArray) -> float:
    """Compute the share of correct places under the best matching of tracks to users.

    Parameters
    ----------
    reconstructed, true
        ``(N, T)`` tracks.

    Returns
    -------
    float
        A share in [0, 1].
    """
    right = np.stack([(reconstructed == track[None]).mean(axis=1) for track in true])
    return float(right[linear_sum_assignment(-right)].mean())


def compute_membership_auc(
    cells: IntArray,
    size: int,
    targets: Sequence[int],
    protect: Protect,
    rounds: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Compute how well tables with and without each target are distinguished.

    Parameters
    ----------
    cells
        ``(n, k)``: the cells to which each user adds one.
    size
        Number of cells of the table.
    targets
        Indices of the targets. Each is added to tables of half of the other users.
    protect
        Function from the true counts to the published ones.
    rounds
        Number of training tables, half of them with the target, and number of evaluation tables.
    rng
        Source of randomness for groups and noise.

    Returns
    -------
    FloatArray
        ``(targets, 2)``: for each target, the probability that a table with the user has the higher score, 0.5 by
        chance, from each half of the evaluation tables.
    """
    aucs = []
    inside = np.arange(rounds) % 2 == 1
    for target in targets:
        others = np.delete(np.arange(len(cells)), target)
        own_cells = np.unique(cells[target])

        def sample_published_counts(with_target: bool, others: IntArray = others, target: int = target) -> FloatArray:
            group = rng.choice(others, max(len(others) // 2, 1), replace=False).tolist()
            users = [*group, target] if with_target else group
            return protect(np.bincount(cells[users].ravel(), minlength=size).astype(np.float64), rng)

        taught, judged = (np.stack([sample_published_counts(with_target) for with_target in inside]) for _ in range(2))
        without = taught[~inside][:, own_cells]
        within = taught[inside][:, own_cells]
        spread = (without.var(axis=0) + within.var(axis=0)) / 2 + 1e-3
        adds = np.maximum(within.mean(axis=0) - without.mean(axis=0), 0.0)
        # A user adds one to a cell, or less if a threshold hides it. Use the better weights on the training tables.
        best = max((adds / spread, 1.0 / spread), key=lambda weights: _compute_auc(within @ weights, without @ weights))
        scores = judged[:, own_cells] @ best
        halves = zip(np.array_split(scores, 2), np.array_split(inside, 2), strict=True)
        aucs.append([_compute_auc(half[is_inside], half[~is_inside]) for half, is_inside in halves])
    return np.array(aucs)


def compute_worst_decile(aucs: FloatArray) -> float:
    """Compute the mean over the tenth of targets that are exposed most.

    One half of the tables selects them, and the other half measures their exposure. With the same tables for both, the
    largest of many values would exceed 0.5 by chance alone.

    Parameters
    ----------
    aucs
        ``(targets, 2)``: the result of `compute_membership_auc`.

    Returns
    -------
    float
        A probability, 0.5 by chance.
    """
    worst = np.argsort(aucs, axis=0)[-_get_decile_size(aucs) :]
    return float(np.mean([aucs[worst[:, 0], 1], aucs[worst[:, 1], 0]]))


def _get_decile_size(aucs: FloatArray) -> int:
    return max(1, len(aucs) // 10)


def _compute_auc_interval(auc: float, num_pairs: int) -> tuple[float, float]:
    """Return the interval of a mean AUC from its number of disjoint pairs of tables."""
    # An AUC averages over all ways to pair tables, so its variance is at most that of the share for a single one.
    return clopper_pearson_interval(round(auc * num_pairs), num_pairs)


def _compute_auc(with_: FloatArray, without: FloatArray) -> float:
    higher: Any = with_[:, None] > without[None]
    return float((higher + 0.5 * (with_[:, None] == without[None])).mean())
