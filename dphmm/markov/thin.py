"""The matrix of some days as a product of thin ones: which few sums are left of where somebody was.

How near that is was shown for every state: a share of the mass in state j so many days later, from whichever state, is
off by at most a small part of what j has from the average state. That is told by columns drawn at random that the thin
matrices were not made of (as in Halko, Martinsson and Tropp 2011, 4.3): the sum of squares of `PROBES` of them times a
Gaussian is below `_SMALL` of its mean size for less than one state in 10**13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from dphmm.arrays import FloatArray, locked
from dphmm.markov.prepared import Key, Kind, Stretch

Through = Callable[[Kind, FloatArray, bool], FloatArray]
"""Columns of masses ``(N, k)`` through the steps of a day, or of weights back through them."""

PROBES = 8
_SMALL = 2.4e-3
"""The squares of `PROBES` normal numbers sum to less than this once in 10**13: ``(_SMALL / 2)**4 / 4!``."""
_FAINTEST = 1e-280
_SEEN = 4096
"""Of so many states, evenly, it is seen how near what each leads to is to the average."""
_BLOCK = 512


@dataclass(frozen=True)
class Demand:
    """What thin matrices must be good for.

    Parameters
    ----------
    columns
        How many columns are tried, one number after another.
    off
        How far shares may be off, of what the average state gives.
    near
        Every state must have at least this part of what it has from the average state, so that ``off`` is less than
        a part in 10**9 for it.
    chained
        Whether others follow them, or the last few days alone lead to the sums as well.
    """

    columns: tuple[int, ...]
    off: float
    near: float
    chained: bool


CHAINED = Demand((24, 48, 96), 1e-10, 0.25, True)
"""Of days that are taken over and over: so many at once that the fewest columns are enough."""
ALONE = Demand((96,), 1e-11, 0.0125, False)
"""Of fewer days, of which more is left, and after which some states are still much rarer than from elsewhere."""


class Survey:
    """Columns carried as far as somebody has looked, until few sums are left of them.

    Parameters
    ----------
    size
        The number of states ``N``.
    demand
        What the sums must be good for, of the fewest columns that it names.
    """

    def __init__(self, size: int, demand: Demand) -> None:
        self._demand = demand
        self.columns = _starts(size, demand.columns[0], np.random.default_rng(0), True)
        self.days, self.spent = 0, 0.0
        self.basis: FloatArray | None = None
        self.hopeless = False
        self.off = inf
        """How far off the columns that there are would be."""

    def look(self) -> float:
        """Whether `basis` can be told after the days that have passed, and how far off it would be."""
        self.basis, off = _basis(self.columns, self._demand.off, self._demand.chained and self.days > 1)
        return off


def stretch_of(
    key: Key, through: Through, size: int, demand: Demand, alike: bool, survey: Survey | None
) -> Stretch | None:
    """Days of some kinds as thin matrices; None where they are no product of such.

    Parameters
    ----------
    key
        The days.
    through
        What carries columns.
    size
        The number of states ``N``.
    demand
        What they must be good for.
    alike
        Whether all days there are are of one kind.
    survey
        Columns that were carried through these days, where there are any.
    """
    several = demand.chained and len(key) > 1
    if survey is not None:
        columns, basis = survey.columns, survey.basis
    else:
        rng = np.random.default_rng(0)
        columns, basis = np.zeros((size, 0)), None
        for width in demand.columns:
            starts = _starts(size, width - max(columns.shape[1] - 1 - PROBES, -PROBES), rng, not columns.size)
            for kind in key:
                starts = through(kind, starts, False)
            columns = np.hstack([columns, starts])
            basis, _ = _basis(columns, demand.off, several)
            if basis is not None or width >= size:
                break
    if basis is None:
        return None
    average, over = _weights(columns)
    leaves = np.ascontiguousarray((basis * np.sqrt(average)[:, np.newaxis]).T)
    now, ends = basis * over[:, np.newaxis], []
    for kind in reversed(key):
        now = through(kind, now, True)
        if several:
            ends.append(locked(leaves @ now) if alike else locked(now))
    return Stretch(locked(now), locked(leaves), locked(average), tuple(ends[:-1]))


def nearest(stretch: Stretch) -> float:
    """The least part of what a state has from the average state that it has from any, of `_SEEN` of them."""
    some = stretch.average > 0
    leaves, entry = stretch.exit[:, some] / stretch.average[some], stretch.entry[:: -(-len(some) // _SEEN)]
    return min(float((entry[i : i + _BLOCK] @ leaves).min()) for i in range(0, len(entry), _BLOCK))


def _starts(size: int, width: int, rng: np.random.Generator, mean: bool) -> FloatArray:
    """So many columns drawn at random, and the probes, ``(N, k)``: they sum to nothing; in front, the average start."""
    starts = rng.standard_normal((size, mean + width + PROBES))
    starts -= starts.mean(axis=0)
    if mean:
        starts[:, 0] = 1.0 / size
    return starts


def _weights(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The masses after the average start, and one over their roots, 0 where nobody is."""
    average = columns[:, 0].copy()
    return average, np.divide(1.0, np.sqrt(average), out=np.zeros(len(average)), where=average > 0)


def _basis(columns: FloatArray, most: float, chained: bool) -> tuple[FloatArray | None, float]:
    """What the sums are of that are left of masses, ``(N, r)``, None where the columns do not do; how far off they are.

    Columns are masses of random starts some days later, relative to roots of those of the average start; these roots
    themselves are the first column, so that masses sum to what they did. Shares may be off by ``most``; where days are
    ``chained``, errors of others go through the basis once, so that much less must be left.
    """
    average, over = _weights(columns)
    if average[average > 0].min() < _FAINTEST:
        return None, inf
    root = np.sqrt(average / average.sum())
    drawn = columns[:, 1:] * over[:, np.newaxis]
    drawn -= np.outer(root, root @ drawn)
    found = np.linalg.svd(drawn[:, :-PROBES], full_matrices=False)[0]
    # The last of these are of small columns, in which what rounding left of the root is not small.
    basis = np.linalg.qr(np.column_stack([root, found]))[0]
    left, off, sizes = drawn[:, -PROBES:].copy(), inf, np.zeros(len(root))
    for rank, column in enumerate(basis.T, start=1):
        left -= np.outer(column, column @ left)
        sizes += column**2
        grown = float(np.divide(sizes, root**2, out=np.zeros(len(root)), where=root > 0).max()) if chained else 0.0
        off = float((np.sqrt((left**2).sum(axis=1) / _SMALL) * over).max())
        if off * (1.0 + sqrt(grown)) <= most:
            return basis[:, :rank], off
    return None, off
