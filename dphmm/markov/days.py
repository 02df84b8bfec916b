"""Long gaps by whole days: what is left of where somebody was some days ago is a few numbers, and these go far quickly.

The matrix of a day is the product of those of its steps, thousands of them. People mix meanwhile: but for differences
that rounding hides, a day later depends on a dozen sums over the masses of the day before; where people mix slowly it
takes some days until so few are left. So the matrix of so many days is ``entry @ exit``, thin matrices that are made by
carrying a few columns through the steps of these days, once for each kind of them; that of many days is a product of
small ones, and so is that of a number of days that is no multiple.

How near that is was shown for every state: a share of the mass in state j so many days later, from whichever state, is
off by at most `_OFF` of what j has from the average state. That is told by columns drawn at random that the thin
matrices were not made of (as in Halko, Martinsson and Tropp 2011, 4.3): the sum of squares of `_PROBES` of them times a
Gaussian is below `_SMALL` of its mean size for less than one state in 10**13.

A learned model has its days prepared in its file (`PreparedDays`). Those of others are prepared where a gap would take
half as long to walk, as far as the sizes of the matrices tell. That depends on the model, the gap, and how many gaps
are counted on, never on what was asked before, since the ways differ in the tenth digit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from itertools import chain, repeat
from math import inf, log, sqrt

import numpy as np

from dphmm.arrays import FloatArray, IntArray, locked
from dphmm.markov.flow import Flow
from dphmm.markov.masses import Masses
from dphmm.markov.prepared import Key, Kind, PreparedDays, Stretch
from dphmm.threads import one_thread

_OFF = 1e-10
"""How far the shares of some days may be off, of what the average state gives."""
_PROBES = 8
_SMALL = 2.4e-3
"""The squares of `_PROBES` normal numbers sum to less than this once in 10**13: ``(_SMALL / 2)**4 / 4!``."""
_COLUMNS = 24, 48, 96
"""How many columns are tried, one number after another; so many days are taken at once that the first is enough."""
_NEAR = 0.25
"""Every state must have at least this part of what it has from the average state, so that `_OFF` is little for it."""
_FAINTEST = 1e-280
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


class _Survey:
    """How many days it takes until few sums are left: columns carried as far as somebody has looked."""

    def __init__(self, size: int) -> None:
        self.columns = _starts(size, _COLUMNS[0], np.random.default_rng(0), True)
        self.days, self.spent = 0, 0.0
        self.basis: FloatArray | None = None
        self.hopeless = False
        self.off = inf
        """How far off the columns that there are would be."""


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
    """

    def __init__(
        self,
        flows: Sequence[Flow],
        usual: Sequence[Kind],
        most: int,
        longest: int,
        often: float = 1.0,
        prepared: PreparedDays | None = None,
    ) -> None:
        self._flows, self._usual, self._most, self._longest = flows, tuple(usual), most, longest
        self._often = often
        self._alike = len(set(usual)) == 1
        self._prepared = prepared
        self._stretches: dict[Key, Stretch | None] = {} if prepared is None else dict(prepared.stretches)
        self._joints: dict[tuple[Key, Key, int], FloatArray] = {}

    def carry(
        self, masses: Masses, runs: Sequence[tuple[Kind, int]], back: bool = False, times: int = 1
    ) -> Masses | None:
        """Masses after days of some kinds, so many of each in a row; or, of weights after them, those before.

        There are so many gaps of at least that length; days are prepared where a part of what all take is enough.
        Each is right to a part in 10**9. None where it may not be, so that one has to go step by step: where people
        have not mixed by then, or where days leave more sums than a few columns hold; and None where that is quicker.
        """
        with one_thread():
            prepared = self._prepared_for(runs)
            unit = self._unit(runs, times) if prepared is None else prepared.unit
            found = None if unit is None else self._carried(masses, runs, unit, back)
        for flow in self._flows:
            flow.forget()
        return found

    def prepare(self, limit_seconds: float) -> PreparedDays | None:
        """Usual days as they follow each other, whichever is the first; None where that takes longer, or is not so.

        How long it takes is told from the sizes of the matrices, so that the same model is always prepared alike.
        """
        if sum(self._price(kind, 1 + _COLUMNS[0] + _PROBES) for kind in self._usual) > _SAID_FROM:
            logging.getLogger(__name__).info("preparing the model's days once, some seconds; its file keeps them")
        with one_thread():
            unit = self._found_unit(self._most, 1e6 * limit_seconds / len(set(self._usual)))
            if unit is None:
                return None
            count = len(self._usual)
            keys = {tuple(self._usual[(day + k) % count] for k in range(unit)) for day in range(count)}
            made = {key: self._stretch(key) for key in sorted(keys)}
        found = {key: stretch for key, stretch in made.items() if stretch is not None}
        return PreparedDays(unit, found) if len(found) == len(made) else None

    def _prepared_for(self, runs: Sequence[tuple[Kind, int]]) -> PreparedDays | None:
        """Those prepared before, where they are all that a gap of such days needs."""
        known = self._prepared
        if known is None or sum(count for _, count in runs) < known.unit:
            return None
        first, links = _links(runs, known.unit)
        return known if all(key in known.stretches for key in (first, *(key for key, _, _ in links))) else None

    def _carried(self, masses: Masses, runs: Sequence[tuple[Kind, int]], unit: int, back: bool) -> Masses | None:
        before, links = _links(runs, unit)
        keys = {before, *(key for key, _, _ in links)}
        if self._alike and len(keys) > 1:
            return None
        first, last = self._stretch(before), self._stretch(links[-1][0] if links else before)
        if first is None or last is None or any(self._stretch(key) is None for key in keys):
            return None
        ways = []
        for key, over, times in links:
            ways.append((self._joint(before, key, over), times))
            before = key
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
        if not (found >= _NEAR * least).all():
            return None
        return Masses.of(found, level)

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

    def _unit(self, runs: Sequence[tuple[Kind, int]], times: int) -> int | None:
        """How many days are taken at once; None where a gap of such days is better walked."""
        days, kinds = sum(count for _, count in runs), len({kind for kind, _ in runs})
        walk = sum(count * self._price(kind) for kind, count in runs) * min(1.0, self._longest / days)
        return self._found_unit(days, _WORTH * walk * max(times, self._often) / kinds)

    def _found_unit(self, days: int, worth: float) -> int | None:
        """How many of at most so many days are taken at once; None where it takes more microseconds for each kind."""
        mean = [
            sum(self._price(kind, width) for kind in self._usual) / len(self._usual)
            for width in (1, 1 + _COLUMNS[0] + _PROBES)
        ]
        if sum(mean) > worth or self._flows[0].size > _LARGEST:
            return None
        survey = self._survey
        while survey.basis is None:
            further = max(survey.days + 1, int(_GROWTH * survey.days))
            least = survey.spent + (further - survey.days) * mean[1] + further * mean[0]
            if further > min(days, self._most) or least > worth or survey.hopeless:
                return None
            for day in range(survey.days, further):
                survey.columns = self._through(self._usual[day % len(self._usual)], survey.columns)
            survey.basis, off = _basis(survey.columns, further > 1)
            gained = log(survey.off / off) / (further - survey.days) if 0 < off < survey.off < inf else 0.0
            if survey.basis is None and (survey.off < inf or off == inf):
                survey.hopeless = log(off / _OFF) > gained * (_HOPE * self._most - further)
            survey.days, survey.spent = further, survey.spent + (further - survey.days) * mean[1]
            survey.off = off
        whole = [self._usual[day % len(self._usual)] for day in range(survey.days)]
        cost = survey.spent + sum(self._price(kind, survey.basis.shape[1]) for kind in whole)
        return None if survey.days > days or cost > worth else survey.days

    def _price(self, kind: Kind, columns: int = 0) -> float:
        """Microseconds for a day of so many columns at once; of walking, without any."""
        return sum(count * self._flows[number].price(columns) for number, count in kind)

    @cached_property
    def _survey(self) -> _Survey:
        return _Survey(self._flows[0].size)

    # ---- how it is prepared --------------------------------------------------------------------------------------

    def _stretch(self, key: Key) -> Stretch | None:
        if key not in self._stretches:
            self._stretches[key] = self._made(key)
        return self._stretches[key]

    def _made(self, key: Key) -> Stretch | None:
        """Days of some kinds; None where their matrix is no product of thin ones."""
        survey = self._survey
        if survey.days == len(key) and all(kind == self._usual[day % len(self._usual)] for day, kind in enumerate(key)):
            columns, basis = survey.columns, survey.basis
        else:
            rng, size = np.random.default_rng(0), self._flows[0].size
            columns, basis = np.zeros((size, 0)), None
            for width in _COLUMNS:
                starts = _starts(size, width - max(columns.shape[1] - 1 - _PROBES, -_PROBES), rng, not columns.size)
                for kind in key:
                    starts = self._through(kind, starts)
                columns = np.hstack([columns, starts])
                basis, _ = _basis(columns, len(key) > 1)
                if basis is not None or width >= size:
                    break
        if basis is None:
            return None
        average, over = _weights(columns)
        leaves = np.ascontiguousarray((basis * np.sqrt(average)[:, np.newaxis]).T)
        now, ends = basis * over[:, np.newaxis], []
        for kind in reversed(key):
            now = self._through(kind, now, back=True)
            ends.append(locked(leaves @ now) if self._alike else locked(now))
        return Stretch(locked(now), locked(leaves), locked(average), tuple(ends[:-1]))

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


def _starts(size: int, width: int, rng: np.random.Generator, mean: bool) -> FloatArray:
    """So many columns drawn at random, and the probes, ``(N, k)``: they sum to nothing; in front, the average start."""
    starts = rng.standard_normal((size, mean + width + _PROBES))
    starts -= starts.mean(axis=0)
    if mean:
        starts[:, 0] = 1.0 / size
    return starts


def _weights(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The masses after the average start, and one over their roots, 0 where nobody is."""
    average = columns[:, 0].copy()
    return average, np.divide(1.0, np.sqrt(average), out=np.zeros(len(average)), where=average > 0)


def _basis(columns: FloatArray, several: bool) -> tuple[FloatArray | None, float]:
    """What the sums are of that are left of masses, ``(N, r)``, None where the columns do not do; how far off they are.

    Columns are masses of random starts some days later, relative to roots of those of the average start; these roots
    themselves are the first column, so that masses sum to what they did. Of several days the last few alone lead to
    the sums as well, whose errors then go through the basis once: so much less must be left.
    """
    average, over = _weights(columns)
    if average[average > 0].min() < _FAINTEST:
        return None, inf
    root = np.sqrt(average / average.sum())
    drawn = columns[:, 1:] * over[:, np.newaxis]
    drawn -= np.outer(root, root @ drawn)
    found = np.linalg.svd(drawn[:, :-_PROBES], full_matrices=False)[0]
    # The last of these are of small columns, in which what rounding left of the root is not small.
    basis = np.linalg.qr(np.column_stack([root, found]))[0]
    left, off, sizes = drawn[:, -_PROBES:].copy(), inf, np.zeros(len(root))
    for rank, column in enumerate(basis.T, start=1):
        left -= np.outer(column, column @ left)
        sizes += column**2
        grown = float(np.divide(sizes, root**2, out=np.zeros(len(root)), where=root > 0).max()) if several else 0.0
        off = float((np.sqrt((left**2).sum(axis=1) / _SMALL) * over).max())
        if off * (1.0 + sqrt(grown)) <= _OFF:
            return basis[:, :rank], off
    return None, off
