"""What tables of counts give away of people: as they are, with thresholds, and with a promise for whole people."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import exp
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, random_source
from dphmm.attack.aggregates import HOURS, membership_areas, recover_tracks, recovered_share, whole_counts
from dphmm.errors import ConfigurationError
from dphmm.facts import fact, facts_of
from dphmm.flows.areas import Areas
from dphmm.flows.tables import DAY
from dphmm.jobs.people import Data, DataLike
from dphmm.jobs.progress import Watch, unwatched
from dphmm.mechanisms.exact import Rational, rational
from dphmm.mechanisms.lattice_noise import laplace_steps
from dphmm.model.time_classes import offsets
from dphmm.space.states import OUTSIDE, LocalProjection
from dphmm.space.trajectory import Trajectory

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
