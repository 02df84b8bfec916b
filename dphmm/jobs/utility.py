"""What releases are good for: how far estimates are off, whether circles hold, and whether crowds stay alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError
from dphmm.facts import facts_of
from dphmm.jobs.identity import CONFIDENCE, share_interval
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.progress import Watch, unwatched
from dphmm.jobs.stored_releases import name_of, read_released, slots_of
from dphmm.jobs.synthesis import hours_of, stretches_of
from dphmm.model.mobility_statistics import Crowd, compare_crowds, jensen_shannon
from dphmm.model.point_estimate import COVERAGE, MOSTLY


@dataclass(frozen=True, eq=False)
class PersonUtility:
    """How far one person's estimates are off. Private.

    Parameters
    ----------
    user
        Whose they are.
    off
        ``(T,)``: the distances of the estimates from the fixes, kilometres.
    held
        The share of moments at which the person is within the circle that should hold 90 % of them; NaN where the
        model has no such circles.
    """

    user: str
    off: FloatArray = field(repr=False)
    held: float

    def facts(self) -> dict[str, Any]:
        """As plain JSON values, distances in metres.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        figures = {"error_m_mean": self.off.mean(), "error_m_median": np.median(self.off)}
        figures |= {"error_m_90_percent": np.quantile(self.off, 0.9)}
        metres = {name: float(1000 * value) for name, value in figures.items()}
        held = None if np.isnan(self.held) else self.held
        return {"user": self.user, "moments": len(self.off), **metres, "within_radius_90": held}


@dataclass(frozen=True, eq=False)
class UtilityAudit:
    """What releases are good for, beside the truth. Private: it is computed from true places.

    Parameters
    ----------
    people
        One of each person who was released.
    measures
        The measures of `dphmm.model.mobility_statistics` between the estimates and the true places at the same
        moments: divergences from 0 (alike) to 1, but for ``top_places`` (a share) and ``rank_correlation``, where 1 is
        best. Visits are those of all moments inside the region, the others of stretches of two in a row and more: they
        are missing where there are none.
    """

    people: tuple[PersonUtility, ...] = field(repr=False)
    measures: Mapping[str, float]

    @property
    def error(self) -> float:
        """The mean distance of estimates from the truth, kilometres, each person alike."""
        return float(np.mean([one.off.mean() for one in self.people]))

    @property
    def coverage(self) -> tuple[float, float, float] | None:
        """The mean share of moments within the circles, each person alike, with its interval; None without circles.

        The interval, of confidence 0.99, is Student's over people: of few it is rough. Of one person it is all there is
        between 0 and 1.
        """
        held = np.array([one.held for one in self.people if not np.isnan(one.held)])
        if not len(held):
            return None
        half = np.inf
        if len(held) > 1:
            half = student.ppf((1 + CONFIDENCE) / 2, len(held) - 1) * held.std(ddof=1) / np.sqrt(len(held))
        mean = float(held.mean())
        return mean, max(0.0, float(mean - half)), min(1.0, float(mean + half))

    @property
    def mostly_held(self) -> tuple[float, float, float] | None:
        """The share of people who are within their circles at `MOSTLY` of their moments, with its exact interval."""
        held = np.array([one.held for one in self.people if not np.isnan(one.held)])
        if not len(held):
            return None
        count = int((held >= MOSTLY).sum())
        return count / len(held), *share_interval(count, len(held))

    def in_words(self) -> str:
        """The findings in some sentences.

        Returns
        -------
        str
            Plain text.
        """
        said = f"Estimates are {1000 * self.error:,.0f} m off on average over {len(self.people):,} people."
        coverage, mostly = self.coverage, self.mostly_held
        if coverage is None or mostly is None:
            return f"{said} The model has no circles that hold people."
        shares, people = ([f"{100 * one:.0f}" for one in some] for some in (coverage, mostly))
        return (
            f"{said} They are within the circle that should hold {100 * COVERAGE:.0f} % at {shares[0]} % of moments on "
            f"average over people (with confidence {CONFIDENCE:g} between {shares[1]} and {shares[2]} %), and "
            f"{people[0]} % of them at {100 * MOSTLY:.0f} % or more of theirs (between {people[1]} and {people[2]} %)."
        )

    def facts(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        found: dict[str, Any] = {"private": True, "in_words": self.in_words(), "error_m_mean": 1000 * self.error}
        for name, some in (("within_radius_90", self.coverage), ("people_mostly_held", self.mostly_held)):
            ends = some or (None, None, None)
            found |= {f"{name}{end}": one for end, one in zip(("", "_least", "_most"), ends, strict=True)}
        return facts_of(self, **found, measures=dict(self.measures), users=[one.facts() for one in self.people])


@checked
def audit_utility(
    source: str | Path, model: Model, true: DataLike, *, users: Sequence[str] = (), watch: Watch = unwatched
) -> UtilityAudit:
    """What releases are good for beside the truth, as ``dphmm audit utility`` does.

    Parameters
    ----------
    source
        What `dphmm.jobs.release` or `dphmm.jobs.batch` wrote, or a store of sessions.
    model
        The model that releases were made with.
    true
        What was released. The truth at a moment is the fix itself, not its cell.
    users
        These alone; left out, everybody who was released.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    UtilityAudit
        What was found; private.

    Raises
    ------
    ConfigurationError
        When nothing was released, or there is no fix at a moment of a release.
    DphmmError
        As `read_released`, the model and the data.
    """
    learned = load_model(model)
    space, rows = learned.space, read_released(source, learned, users).table
    names = list(dict.fromkeys(str(one) for one in rows["user"]))
    if not names:
        raise ConfigurationError(f"{name_of(source)} holds no release; there is nothing to look at")
    fixes = {one.user: one.resample(learned.step) for one in Data.from_any(true).read().trajectories}
    people, seen, shown, firsts, visits = [], [], [], [], np.zeros((2, space.size))
    clock = slots_of(rows, learned)
    for name in watch(names, "Comparing", len(names)):
        mine = np.flatnonzero(rows["user"] == name)
        slots = clock[mine]
        mine, slots = mine[np.append(slots[1:] != slots[:-1], True)], np.unique(slots)  # the last word on each moment
        at = np.searchsorted(fixes[name].slots, slots) if name in fixes else np.zeros(len(slots), dtype=np.int64)
        if name not in fixes or at[-1] == len(fixes[name].slots) or (fixes[name].slots[at] != slots).any():
            raise ConfigurationError(f"user {name}: there is no true place at some release; give the data released")
        estimate = [rows[f"estimate_{end}"][mine] for end in ("latitude", "longitude")]
        truth = [fixes[name].latitude[at], fixes[name].longitude[at]]
        planes = [space.projection.to_plane(*one) for one in (estimate, truth)]
        off, radius = np.linalg.norm(planes[0] - planes[1], axis=1), rows["radius_90_m"][mine] / 1000
        people.append(PersonUtility(name, off, _held(off, radius)))
        states, told = space.locate(*truth), space.nearest(*estimate)
        for kind, some in zip(visits, (told, states), strict=True):
            kind += np.bincount(some[states >= 0], minlength=space.size)
        for _, first, stretch in stretches_of(0, slots, states):
            begin = int(np.searchsorted(slots, first))
            seen.append(stretch)
            shown.append(told[begin : begin + len(stretch)])
            firsts.append(first)
    measures = {"visits": jensen_shannon(*visits)} if visits.any() else {}
    if seen:
        lengths = np.array([len(one) for one in seen])
        classes = hours_of(learned, np.array(firsts), lengths)
        pair = (Crowd.of(some, space.points, classes) for some in (shown, seen))
        measures = compare_crowds(*pair) | measures
    return UtilityAudit(tuple(people), measures)


def _held(off: FloatArray, radius: FloatArray) -> float:
    """The share of moments within the radius, of those that have one; NaN without any."""
    has = ~np.isnan(radius)
    return float((off <= radius)[has].mean()) if has.any() else float("nan")
