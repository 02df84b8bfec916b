"""Long gaps by whole days: what is left of where somebody was some days ago is a few numbers, and these go far quickly.

The matrix of a day is the product of those of its steps, thousands of them. People mix meanwhile: but for differences
that rounding hides, a day later depends on a dozen sums over the masses of the day before; where people mix slowly it
takes some days until so few are left. So the matrix of so many days is ``entry @ exit``, thin matrices that are made by
carrying a few columns through the steps of these days, once for each kind of them; that of many days is a product of
small ones, and so is that of a number of days that is no multiple.

A learned model has its days prepared in its file (`PreparedDays`): so many, and fewer of which more sums are kept, for
gaps that are shorter. Those of others are prepared where a gap would take half as long to walk, as far as the sizes of
the matrices tell. That depends on the model, the gap, and how many gaps are counted on, never on what was asked before,
since the ways differ in the tenth digit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from itertools import chain, repeat
from math import inf, log

import numpy as np

from dphmm.arrays import FloatArray, IntArray, locked
from dphmm.markov.flow import Flow
from dphmm.markov.masses import Masses
from dphmm.markov.prepared import Key, Kind, PreparedDays, Stretch
from dphmm.markov.thin import ALONE, CHAINED, PROBES, Demand, Survey, nearest, stretch_of
from dphmm.threads import one_thread

_WORTH = 2.0
"""What it takes to prepare, of what it takes to walk, at most."""
_HOPE = 1.5
"""Where even so many times the most days would not do, as things go from day to day, nobody goes on looking."""
_LARGEST = 1 << 17
"""Of more states than that so many columns are not kept."""
_GROWTH = 1.2
"""From the number of days that does not do yet to the next that is tried."""
_SAID_FROM = 1e6
"""From so many microseconds on it is said that days are prepared."""
_SQUARED = 64
"""From so many equal products on, powers are squared."""
_PIECES = 64
"""Prepared days that are taken one after another, at most, before those that are left are walked."""


class Days:
    """Days of a model by their kinds, prepared before, or when a gap is first worth it.

    Parameters
    ----------
    flows
        What takes masses one step forwards, by class.
    usual
        The kinds of days as they follow each other, over and over.
    most
        At most so many days are taken at once.
    longest
        At most so many days are walked: nothing changes after them.
    often
        How many gaps of any length are counted on. The tenth digit follows from it, so that it must not be how many
        others had.
    prepared
        Days that were prepared before; they are taken wherever a gap has so many of those.
    least
        Fewer days are not worth preparing.
    """

    def __init__(
        self,
        flows: Sequence[Flow],
        usual: Sequence[Kind],
        most: int,
        longest: int,
        often: float = 1.0,
        prepared: PreparedDays | None = None,
        least: int = 1,
    ) -> None:
        self._flows, self._usual, self._most, self._longest = flows, tuple(usual), most, longest
        self._often, self._least = often, least
        self._alike = len(set(usual)) == 1
        self._prepared = prepared
        self._stretches: dict[Key, Stretch | None] = {} if prepared is None else dict(prepared.stretches)
        self._joints: dict[tuple[Key, Key, int], FloatArray] = {}

    def carry(
        self, masses: Masses, runs: Sequence[tuple[Kind, int]], back: bool = False, times: int = 1
    ) -> tuple[Masses, int]:
        """Masses after the first of some days, so many of each kind in a row, and how many those are.

        Or, of weights after all, those before the last of them. There are so many gaps of at least that length; days
        are prepared where a part of what all take is enough. Each is right to a few parts in 10**9. Those that are left
        have to go step by step: it may be all of them, where people have not mixed by then, where days leave more sums
        than a few columns hold, and where that is quicker.
        """
        left = list(runs)
        with one_thread():
            for _ in range(_PIECES):
                far = self._whole(masses, left, back, times)
                taken = self._piece(masses, left, back) if far is None else (far, [])
                if taken is None:
                    break
                masses, left = taken
                if not left:
                    break
        for flow in self._flows:
            flow.forget()
        return masses, sum(count for _, count in runs) - sum(count for _, count in left)

    def _whole(self, masses: Masses, runs: Sequence[tuple[Kind, int]], back: bool, times: int) -> Masses | None:
        """All of the days, taken as many at once as they are prepared by."""
        unit = self._unit_of(runs, times)
        return None if unit is None else self._carried(masses, runs, unit, back)

    def _piece(
        self, masses: Masses, runs: Sequence[tuple[Kind, int]], back: bool
    ) -> tuple[Masses, list[tuple[Kind, int]]] | None:
        """As many of the days as are prepared alone, the first or the last; and those that are left."""
        alone = None if self._prepared is None else self._prepared.alone
        if alone is None or alone > sum(count for _, count in runs):
            return None
        key, left = _split(runs, alone, back)
        stretch = self._stretches.get(key)
        far = None if stretch is None else _taken(masses, stretch, stretch, (), ALONE.near, back)
        return None if far is None else (far, left)

    def _carried(self, masses: Masses, runs: Sequence[tuple[Kind, int]], unit: int, back: bool) -> Masses | None:
        before, links = _links(runs, unit)
        keys = {before, *(key for key, _, _ in links)}
        if self._alike and len(keys) > 1:
            return None
        first, last = self._stretch(before), self._stretch(links[-1][0] if links else before)
        if first is None or last is None or any(self._stretch(key) is None for key in keys):
            return None
        ways: list[tuple[FloatArray, int]] = []
        for key, over, times in links:
            ways.append((self._joint(before, key, over), times))
            before = key
        return _taken(masses, first, last, ways, CHAINED.near, back)

    def _joint(self, before: Key, after: Key, over: int) -> FloatArray:
        """What leads from the sums after some days to those after others, or after the last few of these alone."""
        if (before, after, over) not in self._joints:
            one, other = self._stretches[before], self._stretches[after]
            assert one is not None, "asked for before"
            assert other is not None, "asked for before"
            end = other.ends[over - 1] if over else other.entry
            made = end if len(end) == len(one.exit) and self._alike and over else one.exit @ end
            self._joints[before, after, over] = locked(made)
        return self._joints[before, after, over]

    # ---- whether it is worth it ----------------------------------------------------------------------------------

    def _unit_of(self, runs: Sequence[tuple[Kind, int]], times: int) -> int | None:
        """How many days are taken at once; None where a gap of such days is better walked."""
        days, kinds = sum(count for _, count in runs), {kind for kind, _ in runs}
        if self._prepared is not None and kinds <= set(self._usual):
            return None if days < self._prepared.unit else self._prepared.unit
        walk = sum(count * self._price(kind) for kind, count in runs) * min(1.0, self._longest / days)
        return self._found_unit(days, _WORTH * walk * max(times, self._often) / len(kinds))

    def _found_unit(self, days: int, worth: float) -> int | None:
        """How many of at most so many days are taken at once; None where it takes more microseconds for each kind."""
        there, back = self._mean_price(CHAINED), self._mean_price()
        if there + back > worth or self._flows[0].size > _LARGEST:
            return None
        survey = self._survey
        while survey.basis is None:
            further = _further(survey.days)
            least = survey.spent + (further - survey.days) * there + further * back
            if further > min(days, self._most) or least > worth or survey.hopeless:
                return None
            before = survey.days
            self._go(survey, further)
            off = survey.look()
            gained = log(survey.off / off) / (further - before) if 0 < off < survey.off < inf else 0.0
            if survey.basis is None and (survey.off < inf or off == inf):
                survey.hopeless = log(off / CHAINED.off) > gained * (_HOPE * self._most - further)
            survey.spent, survey.off = survey.spent + (further - before) * there, off
        return None if survey.days > days or self._cost > worth else survey.days

    @property
    def _cost(self) -> float:
        """Microseconds for what the survey found, there and back."""
        known = self._survey
        assert known.basis is not None, "found before"
        return known.spent + sum(self._price(kind, known.basis.shape[1]) for kind in self._first(known.days))

    def _price(self, kind: Kind, columns: int = 0) -> float:
        """Microseconds for a day of so many columns at once; of walking, without any."""
        return sum(count * self._flows[number].price(columns) for number, count in kind)

    def _mean_price(self, demand: Demand | None = None) -> float:
        """The same of a usual day, of the columns of a survey; of one column, without any."""
        columns = 1 if demand is None else 1 + demand.columns[0] + PROBES
        return sum(self._price(kind, columns) for kind in self._usual) / len(self._usual)

    @cached_property
    def _survey(self) -> Survey:
        return Survey(self._flows[0].size, CHAINED)

    # ---- how it is prepared --------------------------------------------------------------------------------------

    def prepare(self, limit_seconds: float) -> PreparedDays | None:
        """Usual days as they follow each other, whichever is the first; None where that takes longer, or is not so.

        How long it takes is told from the sizes of the matrices, so that the same model is always prepared alike.
        """
        worth = 1e6 * limit_seconds / len(set(self._usual))
        if self._mean_price(CHAINED) * len(self._usual) > _SAID_FROM:
            logging.getLogger(__name__).info("preparing the model's days once, some seconds; its file keeps them")
        with one_thread():
            unit = self._found_unit(self._most, worth)
            if unit is None:
                return None
            made = {key: self._stretch(key) for key in self._keys(unit)}
            if any(stretch is None for stretch in made.values()):
                return None
            made |= self._alone(unit, worth - self._cost)
        return PreparedDays(unit, {key: stretch for key, stretch in made.items() if stretch is not None})

    def _alone(self, unit: int, worth: float) -> dict[Key, Stretch | None]:
        """The fewest days, fewer than so many, that can be taken alone; none where that takes more microseconds."""
        survey = Survey(self._flows[0].size, ALONE)
        further = self._least
        while further < unit and 2 * further * self._mean_price(ALONE) <= worth:
            self._go(survey, further)
            survey.look()
            first = self._first(further)
            made = None if survey.basis is None else self._made(first, ALONE, survey)
            if made is not None and nearest(made) >= ALONE.near:
                return {key: made if key == first else self._made(key, ALONE) for key in self._keys(further)}
            further = _further(further)
        return {}

    def _go(self, survey: Survey, days: int) -> None:
        """Columns of a survey on to so many days."""
        for day in range(survey.days, days):
            survey.columns = self._through(self._usual[day % len(self._usual)], survey.columns)
        survey.days = days

    def _first(self, days: int) -> Key:
        return tuple(self._usual[day % len(self._usual)] for day in range(days))

    def _keys(self, days: int) -> list[Key]:
        """So many days as they usually follow each other, whichever is the first."""
        count = len(self._usual)
        return sorted({tuple(self._usual[(day + k) % count] for k in range(days)) for day in range(count)})

    def _stretch(self, key: Key) -> Stretch | None:
        if key not in self._stretches:
            self._stretches[key] = self._made(key, CHAINED, self._survey)
        return self._stretches[key]

    def _made(self, key: Key, demand: Demand, survey: Survey | None = None) -> Stretch | None:
        """Days of some kinds, of a survey if it is of these; None where their matrix is no product of thin ones."""
        known = survey if survey is not None and key == self._first(survey.days) else None
        return stretch_of(key, self._through, self._flows[0].size, demand, self._alike, known)

    def _through(self, kind: Kind, columns: FloatArray, back: bool = False) -> FloatArray:
        """Columns of masses ``(N, k)`` through the steps of a day, or of weights back through them."""
        for number, count in reversed(kind) if back else kind:
            columns = self._flows[number].after(columns, count, back)
            if len(self._flows) > 1:
                self._flows[number].forget()
        return columns


def times_of(ascending: IntArray, steps: int) -> int:
    """How many of some gaps, ``(T,)``, are at least so long."""
    return len(ascending) - int(np.searchsorted(ascending, steps))


def _further(days: int) -> int:
    """The next number of days that is tried."""
    return max(days + 1, int(_GROWTH * days))


def _split(runs: Sequence[tuple[Kind, int]], days: int, back: bool) -> tuple[Key, list[tuple[Kind, int]]]:
    """The first so many days, or the last, and the others."""
    taken: list[Kind] = []
    left = list(runs[::-1] if back else runs)
    while days:
        kind, count = left[0]
        some = min(days, count)
        taken += [kind] * some
        left[:1] = [(kind, count - some)] if some < count else []
        days -= some
    return (tuple(taken[::-1]), left[::-1]) if back else (tuple(taken), left)


def _taken(
    masses: Masses, first: Stretch, last: Stretch, ways: Sequence[tuple[FloatArray, int]], near: float, back: bool
) -> Masses | None:
    """Masses after stretches, or weights before them; None where some are so faint that digits would be lost.

    Between the first and the last of them, sums are led on by matrices, each so many times.
    """
    level = float(masses.exponent.max())
    values = masses.plain(level)
    if back:
        now = last.exit @ values
        for way, times in reversed(ways):
            now = _after(now, way.T, times)
        found, least = first.entry @ now, np.full(len(values), float(last.average @ values))
    else:
        now = values @ first.entry
        for way, times in ways:
            now = _after(now, way, times)
        found, least = now @ last.exit, last.average * float(values.sum())
    return Masses.of(found, level) if (found >= near * least).all() else None


def _links(runs: Sequence[tuple[Kind, int]], unit: int) -> tuple[Key, list[tuple[Key, int, int]]]:
    """The first days; then days that are taken at once, or how many of the last of them alone, and how often."""
    if len(runs) == 1:
        kind, days = runs[0]
        key, (times, rest) = (kind,) * unit, divmod(days, unit)
        links = [(key, 0, times - 1)] if times > 1 else []
        return key, links + ([(key, rest, 1)] if rest else [])
    listed = tuple(chain.from_iterable(repeat(kind, count) for kind, count in runs))
    whole, rest = divmod(len(listed), unit)
    links = [(listed[k * unit : (k + 1) * unit], 0, 1) for k in range(1, whole)]
    return listed[:unit], links + ([(listed[-unit:], rest, 1)] if rest else [])


def _after(values: FloatArray, way: FloatArray, times: int) -> FloatArray:
    """``values`` times so many equal matrices."""
    if times >= _SQUARED:
        return np.asarray(values @ np.linalg.matrix_power(way, times))
    for _ in range(times):
        values = values @ way
    return values
