"""One pass through a sequence of observations, in either direction of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.compilation import compiled
from dphmm.errors import StochasticError
from dphmm.markov import kernels
from dphmm.markov.flow import NARROW, Flow
from dphmm.markov.masses import Masses
from dphmm.markov.moving import Moving
from dphmm.threads import one_thread

_FAINT = 2.0**-NARROW
"""Rows of floats hold no positive mass below this: from here up a step of plain sums loses nothing."""
_STEEP = -600.0
"""Log densities of a row that differ by more are no factors for plain sums."""
_CHUNK = 1 << 16
"""Densities whose exponentials are taken at a time, about."""
_COMPILE_FROM = 1_000_000
"""With fewer products of a share and a mass than this, numpy is done before the compiled loop is loaded."""


class Rows:
    """Masses of ``N`` states at ``T`` times that may be unscaled: floats, and apart what they cannot hold.

    Parameters
    ----------
    values
        ``(T, N)``: what floats hold of the masses.
    apart
        The masses by their times where these differ too much for floats.
    """

    def __init__(self, values: FloatArray, apart: dict[int, Masses] | None = None) -> None:
        self.values = values
        self.apart = {} if apart is None else apart

    def __getitem__(self, t: int) -> Masses:
        return self.apart[t] if t in self.apart else Masses.of(self.values[t])

    def __setitem__(self, t: int, masses: Masses) -> None:
        self.values[t] = masses.plain()
        if not masses.lies_within(NARROW):
            self.apart[t] = masses

    def put(self, start: int, other: Rows) -> None:
        """Put others in the places from a time on."""
        self.values[start : start + len(other.values)] = other.values
        self.apart |= {start + t: masses for t, masses in other.apart.items()}

    def part(self, start: int, stop: int) -> Rows:
        """Those from one time to before another."""
        return Rows(self.values[start:stop], {t - start: self.apart[t] for t in self.apart if start <= t < stop})

    def reversed(self) -> Rows:
        """The same with the last time first."""
        last = len(self.values) - 1
        return Rows(self.values[::-1], {last - t: masses for t, masses in self.apart.items()})

    def times(self, other: Rows) -> Rows:
        """The masses times others, each row scaled to sum to one."""
        found = Rows(self.values * other.values)
        sums = found.values.sum(axis=1)
        apart = {*self.apart, *other.apart}
        for t in np.flatnonzero(~((found.values.min(axis=1) >= _FAINT * sums) & (sums > 0))).tolist():
            if _loses(found.values[t], self.values[t], other.values[t], _FAINT * sums[t]):
                apart.add(t)
        sums[list(apart)] = 1.0
        found.values /= sums[:, np.newaxis]
        for t in apart:
            found[t] = self[t].times(other[t])[0]
        return found


def rows_of(masses: Sequence[Masses]) -> Rows:
    """Masses at one time after another, at least one."""
    rows = Rows(np.empty((len(masses), len(masses[0].mantissa))))
    for t, one in enumerate(masses):
        rows[t] = one
    return rows


@dataclass(frozen=True, eq=False)
class Pass:
    """What a pass found.

    Parameters
    ----------
    before, after
        The masses before each observation and after it; those after it sum to one. What was not asked for has no row.
    log_sums
        ``(T,)``: the logarithms of what each observation left of the mass before it.
    """

    before: Rows
    after: Rows
    log_sums: FloatArray


def passed(moving: Moving, start: Masses, log_rows: FloatArray, before: bool = False) -> Pass:
    """A pass.

    Parameters
    ----------
    moving
        What takes masses from one observation to the next.
    start
        The masses before the first observation.
    log_rows
        ``(T, N)``: log densities of the observations, minus infinity where one is impossible.
    before
        Whether to keep the masses before the observations.

    Raises
    ------
    StochasticError
        When no possible state could have given an observation.
    """
    length, size = log_rows.shape
    found = Pass(Rows(np.empty((length if before else 1, size))), Rows(np.empty((length, size))), np.empty(length))
    runs: dict[int, Callable[..., int]] = {}
    now, t, width = start, 0, 1
    while t < length:
        alike, number = moving.stretch(t)
        ahead, flow = min(width, alike), moving.flows[number]
        if ahead and (floats := flow.floats_of(now)) is not None:
            run = runs.get(number) or runs.setdefault(number, _run_of(flow, length))
            done = _by_floats(run, floats, log_rows, slice(t, t + ahead), found, before)
            t, width = t + done, min(2 * width, max(1, _CHUNK // size)) if done == ahead else 1
            if done:
                now = found.after[t - 1]
                continue
        moved = moving.carry(now, t)
        now, found.log_sums[t] = moved.times_exp(log_rows[t])
        if found.log_sums[t] == -np.inf:
            raise StochasticError(f"release {t}: no possible state could have given it; model and release do not match")
        found.after[t] = now
        if before:
            found.before[t] = moved
        t += 1
    return found


def _run_of(flow: Flow, length: int) -> Callable[..., int]:
    """The loop over observations in plain sums: see `dphmm.markov.kernels.dense_run`."""
    if flow.dense is not None and length * flow.dense.size >= _COMPILE_FROM:
        loop = compiled(kernels.dense_run)
        if loop is not None:
            return partial(loop, flow.dense)
    return partial(_plain_run, flow)


def _by_floats(
    run: Callable[..., int], start: FloatArray, log_rows: FloatArray, part: slice, found: Pass, before: bool
) -> int:
    """How many observations of a part, one step apart, were gone through without anything becoming faint."""
    rows = log_rows[part]
    tops = rows.max(axis=1, keepdims=True)
    below = rows - np.where(tops > -np.inf, tops, 0.0)
    count = len(below)
    if not below.min() >= _STEEP:
        impossible = below == -np.inf
        steep = ((below < _STEEP) & ~impossible).any(axis=1)
        count = int(steep.argmax()) if steep.any() else count
        np.maximum(below, _STEEP, out=below)
        weights = np.exp(below)
        weights[impossible] = 0.0
    else:
        weights = np.exp(below, out=below)
    out = found.before.values[part] if before else found.before.values, found.after.values[part], found.log_sums[part]
    done = run(start, weights[:count], _FAINT, out)
    sums = out[2][:done]
    np.log(sums, out=sums)
    sums += tops[:done, 0]
    return done


def _plain_run(flow: Flow, start: FloatArray, weights: FloatArray, faint: float, out: kernels.Run) -> int:
    """`dphmm.markov.kernels.dense_run` for any flow, in plain numpy."""
    before, after, sums = out
    dense = flow.dense
    with nullcontext() if dense is None else one_thread():
        for t, weight in enumerate(weights):
            moved, row = flow.product(start) if dense is None else start @ dense, after[t]
            np.multiply(moved, weight, out=row)
            total = float(row.sum())
            if _loses(row, moved, weight, faint * total):
                return t
            row /= total
            before[t if len(before) > 1 else 0] = moved
            sums[t], start = total, row
    return len(weights)


def _loses(products: FloatArray, ones: FloatArray, others: FloatArray, least: float) -> bool:
    """Whether some product of positive numbers is below the least, or all are zero."""
    if products.min() >= least > 0:
        return False
    low = products < least
    return not least > 0 or bool((low & (ones > 0) & (others > 0)).any())
