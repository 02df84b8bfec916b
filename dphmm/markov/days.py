"""Long gaps by whole days: what is left after a day of where somebody was is a few numbers, and those go far quickly.

The matrix of a day, ``D``, is the product of those of its steps, thousands of them. People mix meanwhile: but for
differences that rounding hides, a day later depends on a dozen sums over the masses of the day before. So ``D`` is
``entry @ exit``, thin matrices that are made by carrying a few columns through the steps of a day, once for each kind
of day; the matrix of many days is a product of small ones.

How near that is was shown for every state: a share of the next morning's mass in state j, from whichever state, is off
by at most `_OFF` of what j has from the average state. That is told by columns drawn at random that the thin matrices
were not made of (as in Halko, Martinsson and Tropp 2011, 4.3): the sum of squares of `_PROBES` of them times a
Gaussian is below `_SMALL` of its mean size for less than one state in 10**13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, log, sqrt

import numpy as np

from dphmm.arrays import FloatArray, locked
from dphmm.markov.flow import Flow
from dphmm.markov.masses import Masses
from dphmm.threads import one_thread

Kind = tuple[tuple[int, int], ...]
"""A kind of day: the classes of its steps and how many there are of each, in order."""

_OFF = 1e-10
"""How far a day's shares may be off, of what the average state gives."""
_PROBES = 8
_SMALL = 2.4e-3
"""The squares of `_PROBES` normal numbers sum to less than this once in 10**13: ``(_SMALL / 2)**4 / 4!``."""
_COLUMNS = 24, 48, 96, 192
"""How many columns are tried, one number after another."""
_NEAR = 0.25
"""Every state must have at least this part of what it has from the average state, so that `_OFF` is little for it."""
_FAINTEST = 1e-280


@dataclass(frozen=True, eq=False)
class Day:
    """The matrix of one kind of day, ``entry @ exit``.

    Parameters
    ----------
    entry
        ``(N, r)``.
    exit
        ``(r, N)``: zero in columns of states that nobody is in a day later.
    average
        ``(N,)``: the masses a day after all states had the same.
    """

    entry: FloatArray = field(repr=False)
    exit: FloatArray = field(repr=False)
    average: FloatArray = field(repr=False)


class Days:
    """Kinds of days of a model, made when they are first asked for.

    Parameters
    ----------
    flows
        What takes masses one step forwards, by class.
    """

    def __init__(self, flows: Sequence[Flow]) -> None:
        self._flows = flows
        self._days: dict[Kind, Day | None] = {}
        self._joints: dict[tuple[Kind, Kind], FloatArray] = {}

    def carry(self, masses: Masses, kinds: Sequence[Kind], back: bool = False) -> Masses | None:
        """Masses after days of some kinds, at least one; or, of weights after them, those before.

        Each is right to a part in 10**9. None where it may not be, so that one has to go step by step: where people
        have not mixed by then, or where some kind of day leaves more than fits into a few columns.
        """
        with one_thread():
            first, last = self._day(kinds[0]), self._day(kinds[-1])
            if first is None or last is None or any(self._day(kind) is None for kind in set(kinds)):
                return None
            level = float(masses.exponent.max())
            values = masses.plain(level)
            if back:
                now = last.exit @ values
                for before, after in pairwise(reversed(kinds)):
                    now = self._joint(after, before) @ now
                found, least = first.entry @ now, np.full(len(values), float(last.average @ values))
            else:
                now = values @ first.entry
                for before, after in pairwise(kinds):
                    now = now @ self._joint(before, after)
                found, least = now @ last.exit, last.average * float(values.sum())
        if not (found >= _NEAR * least).all():
            return None
        return Masses.of(found, level)

    def _joint(self, before: Kind, after: Kind) -> FloatArray:
        """What leads from the sums of one day to those of the next, ``(r, r')``."""
        if (before, after) not in self._joints:
            one, other = self._day(before), self._day(after)
            assert one is not None, "asked for before"
            assert other is not None, "asked for before"
            self._joints[before, after] = locked(one.exit @ other.entry)
        return self._joints[before, after]

    def _day(self, kind: Kind) -> Day | None:
        if kind not in self._days:
            self._days[kind] = self._made(kind)
        return self._days[kind]

    def _made(self, kind: Kind) -> Day | None:
        """One kind of day; None where its matrix is no product of thin ones.

        Columns are masses of random starts a day later, relative to roots of those of the average start; these roots
        themselves are the first column, so that masses sum to what they did.
        """
        size, rng = self._flows[0].size, np.random.default_rng(0)
        starts = rng.standard_normal((size, 1 + _COLUMNS[0] + _PROBES))
        starts -= starts.mean(axis=0)
        starts[:, 0] = 1.0 / size
        later = self._through(kind, starts)
        average, later = later[:, 0].copy(), later[:, 1:]
        there = average > 0
        if average[there].min() < _FAINTEST:
            return None
        total, root = float(average.sum()), np.sqrt(average)
        over = np.divide(1.0, root, out=np.zeros(size), where=there)
        root /= sqrt(total)
        drawn = np.zeros((size, 0))
        for width in _COLUMNS:
            if drawn.size:
                starts = rng.standard_normal((size, width + _PROBES - drawn.shape[1]))
                later = self._through(kind, starts - starts.mean(axis=0))
            later *= over[:, np.newaxis]
            drawn = np.hstack([drawn, later - np.outer(root, root @ later)])
            found = np.linalg.svd(drawn[:, :-_PROBES], full_matrices=False)[0]
            # The last of these are of small columns, in which what rounding left of the root is not small.
            basis = np.linalg.qr(np.column_stack([root, found]))[0]
            rank, needed = _rank(basis, drawn[:, -_PROBES:], over)
            if rank is not None:
                chosen = basis[:, :rank]
                entry = self._through(kind, chosen * over[:, np.newaxis], back=True)
                leaves = np.ascontiguousarray((chosen * (sqrt(total) * root)[:, np.newaxis]).T)
                return Day(locked(entry), locked(leaves), locked(average))
            if width >= size or needed > _COLUMNS[-1]:
                break
        return None

    def _through(self, kind: Kind, columns: FloatArray, back: bool = False) -> FloatArray:
        """Columns of masses ``(N, k)`` through the steps of a day, or of weights back through them."""
        for number, count in reversed(kind) if back else kind:
            for _ in range(count):
                columns = self._flows[number].columns(columns, back)
        return columns


def _rank(basis: FloatArray, probes: FloatArray, over: FloatArray) -> tuple[int | None, float]:
    """How many columns of a basis suffice for the probes; None where all do not, and how many may, as things went."""
    left, offs = probes.copy(), []
    for rank, column in enumerate(basis.T, start=1):
        left -= np.outer(column, column @ left)
        offs.append(float((np.sqrt((left**2).sum(axis=1) / _SMALL) * over).max()))
        if offs[-1] <= _OFF:
            return rank, rank
    gained = log(offs[0] / offs[-1])
    return None, len(offs) * log(offs[0] / _OFF) / gained if gained > 0 else inf
