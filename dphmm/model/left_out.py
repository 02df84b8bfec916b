"""The factors of `dphmm.model.point_estimate` from people who were left out of a fit, and followed with noise."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, cos, pi, sin

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray
from dphmm.model.away import Beyond
from dphmm.model.model import MarkovModel
from dphmm.model.point_estimate import COVERAGE, HOURS, MOST_PEOPLE, MOSTLY, HeldRadii, expected_distance
from dphmm.model.speed_limit import spacing
from dphmm.space.trajectory import Trajectory

LEAST_PEOPLE = 20
"""Of fewer people nothing is said."""

_WINDOW_HOURS, _MOST_TICKS, _WINDOWS = 8.0, 96, 3
_PARTS = 4
_NOISE, _DRAWN = (2.5, 8.0, 30.0), (1.0, 0.1)
"""Scales of the noise in sides of cells, and the shares of moments with a draw, that people are followed with."""


def held_radii(
    fit: Callable[[Sequence[Trajectory]], MarkovModel], people: Sequence[Trajectory], seed: int = 0
) -> HeldRadii | None:
    """Factors from people of whom a quarter at a time are left out of a fit.

    Each is followed from some of their fixes on for up to eight hours, with planar Laplace noise of the scale of
    two and a half, eight and thirty sides of a cell, drawn at every moment or at one in ten. A factor is the least that
    holds the share of moments on average over people, and nine people of ten at four moments of five or more.

    Parameters
    ----------
    fit
        Learns a model from some of the people.
    people
        All of them.
    seed
        Which fixes, which moments, and the noise.

    Returns
    -------
    HeldRadii or None
        None of fewer than `LEAST_PEOPLE` people within the region.
    """
    if len(people) < LEAST_PEOPLE:
        return None
    rng, looks = np.random.default_rng(seed), list[tuple[IntArray, FloatArray, IntArray]]()
    order = rng.permutation(len(people)).tolist()
    for part in range(_PARTS):
        left_out = set(order[part::_PARTS])
        model = fit([one for i, one in enumerate(people) if i not in left_out])
        looks.append(_followed(model, [(i, people[i]) for i in sorted(left_out)], rng))
    classes, ratios, who = (np.concatenate(part) for part in zip(*looks, strict=True))
    count = len(np.unique(who))
    if count < LEAST_PEOPLE:
        return None
    factors: list[float] = []
    for number in range(len(HOURS) + 2):
        mine = classes == number
        enough = len(np.unique(who[mine])) >= LEAST_PEOPLE
        factors.append(_quantile(ratios[mine], who[mine]) if enough else max(factors, default=1.0))
    return HeldRadii(tuple(factors), count)


def _quantile(ratios: FloatArray, who: IntArray) -> float:
    """The ratio that holds `COVERAGE` of all, each person's of the same weight, and `MOST_PEOPLE` mostly."""
    _, person, counts = np.unique(who, return_inverse=True, return_counts=True)
    weights, order = 1.0 / (counts[person] * len(counts)), np.argsort(ratios, kind="stable")
    reached = int(np.searchsorted(np.cumsum(weights[order]), COVERAGE * (1 - 1e-12)))
    each = [np.quantile(ratios[person == one], MOSTLY, method="inverted_cdf") for one in range(len(counts))]
    most = np.sort(each)[min(ceil(MOST_PEOPLE * (len(counts) + 1)), len(counts)) - 1]
    return float(max(ratios[order][min(reached, len(ratios) - 1)], most))


@dataclass(frozen=True, eq=False)
class _Window:
    """A piece of a person's days, tick by tick, and the noise they are followed with."""

    person: int
    slots: IntArray
    """``(t,)``: the ticks."""
    places: FloatArray
    """``(t, 2)``: where the person was, kilometres; NaN where that is not known."""
    states: IntArray
    """``(t,)``: the state released for it."""
    scale: float
    share: float


def _followed(
    model: MarkovModel, people: Sequence[tuple[int, Trajectory]], rng: np.random.Generator
) -> tuple[IntArray, FloatArray, IntArray]:
    """Which factor's it is, distance over expected distance, and who: of every moment that people are followed.

    Each window is a column, and all go on together, tick by tick. A draw comes first in each, and is not counted: a
    person's releases begin anew once, and windows often.
    """
    windows = [one for number, person in people for one in _windows(model, number, person, rng)]
    found: list[tuple[int, float, int]] = []
    if windows:
        points, chain = model.space.points, model.chain_size
        folds = csr_array((np.ones(chain), (model.last, np.arange(chain))), shape=(model.size, chain))
        stride = _stride(model)
        rows = np.stack([np.exp(model.first_logs(int(one.slots[0]))) for one in windows], axis=1)
        drawn = np.zeros(len(windows), dtype=np.int64)
        for tick in range(len(windows[0].slots)):
            for ahead in range(stride if tick else 0):
                rows = _ahead(model, rows, np.array([one.slots[tick - 1] + ahead + 1 for one in windows]))
            for column, one in enumerate(windows):
                if one.states[tick] < 0:
                    continue
                if tick == 0 or rng.random() < one.share:
                    length, angle = rng.gamma(2.0, one.scale), rng.uniform(0.0, 2 * pi)
                    noise = length * np.array([cos(angle), sin(angle)])
                    far = np.linalg.norm(points - points[one.states[tick]] - noise, axis=1) / one.scale
                    likely = rows[:, column] * np.exp(far.min() - far)[model.last]
                    if likely.sum() > 0:
                        rows[:, column], drawn[column] = likely / likely.sum(), tick
                believed = np.asarray(folds @ rows[:, column])
                expected = expected_distance(believed, points, model.space.cell_km, _beyond(model, rows[:, column]))
                if expected > 0 and tick:
                    off = float(np.linalg.norm(believed @ points - one.places[tick]))
                    hours = float(tick - drawn[column]) * stride * model.step / 3600
                    number = 0 if one.share == 1 else 1 + bisect_left(HOURS, hours)
                    found.append((number, off / expected, one.person))
    numbers, ratios, who = zip(*found, strict=True) if found else ((), (), ())
    return np.array(numbers, dtype=np.int64), np.array(ratios, dtype=np.float64), np.array(who, dtype=np.int64)


def _windows(model: MarkovModel, number: int, person: Trajectory, rng: np.random.Generator) -> list[_Window]:
    space, track = model.space, person.resample(model.step)
    inside = np.flatnonzero(space.locate(track.latitude, track.longitude) >= 0)
    if not len(inside):
        return []
    stride = _stride(model)
    ticks = max(1, int(_WINDOW_HOURS * 3600 / (stride * model.step)))
    planes, states = (of(track.latitude, track.longitude) for of in (space.projection.to_plane, space.nearest))
    made, side = [], space.cell_km or spacing(space.points)
    for scale in _NOISE:
        for share in _DRAWN:
            for first in rng.choice(inside, min(_WINDOWS, len(inside)), replace=False).tolist():
                slots = track.slots[first] + stride * np.arange(ticks)
                at = np.minimum(np.searchsorted(track.slots, slots), len(track.slots) - 1)
                known = track.slots[at] == slots
                where = np.where(known[:, None], planes[at], np.nan)
                made.append(_Window(number, slots, where, np.where(known, states[at], -1), scale * side, share))
    return made


def _stride(model: MarkovModel) -> int:
    """How many steps of the model a tick has."""
    return max(1, ceil(_WINDOW_HOURS * 3600 / (model.step * _MOST_TICKS)))


def _ahead(model: MarkovModel, rows: FloatArray, slots: IntArray) -> FloatArray:
    """All columns a step on, which ends at each one's slot."""
    classes, moved = model.classes_of(slots), np.empty_like(rows)
    for number in np.unique(classes).tolist():
        mine = classes == number
        moved[:, mine] = model.steppers[number].ahead.plain(rows[:, mine])
    return moved


def _beyond(model: MarkovModel, row: FloatArray) -> Beyond | None:
    away = model.away
    return None if away is None else Beyond(away.border, row[model.size :], away.reach, away.square)
