"""Sums of a matrix times masses, along its lists or its diagonals: numpy's forms beside the loops."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, dia_array

from dphmm.arrays import FloatArray, IntArray
from dphmm.compilation import often
from dphmm.markov import mass_loops


@often(mass_loops.sums_along_diagonals)
def sums_along_diagonals(
    values: FloatArray, offsets: mass_loops.Offsets, diagonals: FloatArray, out: FloatArray
) -> None:
    """Plain sums, ``(N,)``, into ``out``."""
    out[:] = dia_array((diagonals, offsets), shape=(values.size, values.size)) @ values


@often(mass_loops.gathered_masses)
def gathered_masses(
    shares: FloatArray,
    lists: mass_loops.Places,
    near: FloatArray,
    limb: mass_loops.Limbs,
    masses: mass_loops.Pairs,
    out: mass_loops.Pairs,
) -> None:
    """Sums over each state's list of probability times mass, into ``out``."""
    starts, states = (one.view(np.int32) for one in lists)
    values, exponents = out
    size, some = values.size, np.flatnonzero(np.diff(starts))
    values[:] = np.asarray(csr_array((shares, states, starts), shape=(size, size)) @ near)
    top = np.full(size, mass_loops.NOWHERE)
    limbs, first = limb[states], starts[some]
    if not len(some):
        exponents[:] = -np.inf
        return
    top[some] = np.maximum.reduceat(limbs, first)
    is_apart = np.zeros(size, dtype=np.bool_)
    is_apart[some] = np.minimum.reduceat(limbs, first) < top[some]
    exponents[:] = np.where(top == mass_loops.NOWHERE, -np.inf, mass_loops.LIMB * top + mass_loops.MIDDLE)
    is_apart |= (top != mass_loops.NOWHERE) & ((top == mass_loops.FAR_AWAY) | ~(values >= mass_loops.TOO_SMALL))
    rest = np.flatnonzero(is_apart)
    if len(rest):
        values[rest], exponents[rest] = _far_apart(shares, (starts, states), rest, masses)


def _far_apart(
    shares: FloatArray, lists: mass_loops.Places, rows: IntArray, masses: mass_loops.Pairs
) -> tuple[FloatArray, FloatArray]:
    """The sums over some lists, none of which is empty, relative to the largest exponent in each."""
    (starts, states), (mantissa, exponent) = lists, masses
    lengths = starts[rows + 1] - starts[rows]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    which = np.arange(ends[-1]) + np.repeat(starts[rows] - ends[:-1], lengths)
    of = states[which]
    below = exponent[of]
    highest = np.maximum.reduceat(below, ends[:-1])
    below -= np.repeat(highest, lengths)
    terms = np.ldexp(mantissa[of], np.maximum(below + 1.0, -1100.0).astype(np.int32)) * shares[which]
    each = csr_array((terms, np.arange(len(terms)), ends), shape=(len(rows), len(terms)))
    return each @ np.ones(len(terms)), highest - 1.0
