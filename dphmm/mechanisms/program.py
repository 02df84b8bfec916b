"""The linear program of the table with the least expected squared error under a prior.

On a connected graph over ``n`` states with prior ``p``: minimise ``sum_s p(s) sum_z k(z|s) |f_z - f_s|^2`` over tables
whose rows sum to one and that keep ``k(z|j) <= r k(z|l)`` on every edge (Bordenabe, Chatzikokolakis, Palamidessi, CCS
2014, with edges in place of a metric). It has ``n^2`` unknowns and ``2 n`` conditions an edge. A clique asks that its
greatest and its least entry for an output differ by at most ``r``: with the least one as an unknown of its own, its
``m (m - 1) n`` conditions become ``2 m n``, and say the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import PromiseError
from dphmm.mechanisms.joined import cliques_of

_DIGITS = 20


def least_error_table(points: FloatArray, edges: IntArray, ratio: float, prior: FloatArray) -> tuple[FloatArray, float]:
    """The table of least expected squared error, in floating point, and that error.

    It is a function of its arguments alone: nothing is carried over from earlier solutions, so that whoever knows what
    is public can work it out again.

    Parameters
    ----------
    points
        ``(n, d)`` measurements of the states, which are the outputs as well.
    edges
        ``(m, 2)`` pairs of states.
    ratio
        At least 1.
    prior
        ``(n,)``, not negative and not all zero; used to about six digits.

    Returns
    -------
    probabilities, value
        ``(n, n)``, row by true state; rows sum to one and edges hold up to the solver's tolerance (1e-9). The value
        is the program's optimum, to the same tolerance.

    Raises
    ------
    PromiseError
        When the solver finds no optimum.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    size = len(points)
    apart = np.square(points[:, None, :] - points[None, :, :]).sum(axis=2)
    weights = np.rint(prior / prior.max() * 2.0**_DIGITS)
    costs = weights[:, None] / weights.sum() * apart
    unit = float(costs.sum()) / size or 1.0
    rows, columns, entries, unknowns = _conditions(size, edges, ratio)
    everything = np.arange(size * size)
    found: Any = linprog(  # type: ignore[call-overload] # whose options for "highs-ipm" the stubs do not know
        np.concatenate([costs.ravel() / unit, np.zeros(unknowns - size * size)]),
        A_ub=csr_array((entries, (rows, columns)), shape=(int(rows.max(initial=-1)) + 1, unknowns)),
        b_ub=np.zeros(int(rows.max(initial=-1)) + 1),
        A_eq=csr_array((np.ones(len(everything)), (everything // size, everything)), shape=(size, unknowns)),
        b_eq=np.ones(size),
        method="highs-ipm",
        options={"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
    )
    if found.x is None or not found.success:
        raise PromiseError(f"the program of the best table was not solved ({found.message}); nothing was drawn")
    return np.maximum(found.x[: size * size].reshape(size, size), 0.0), max(0.0, float(found.fun) * unit)


def _conditions(size: int, edges: IntArray, ratio: float) -> tuple[IntArray, IntArray, FloatArray, int]:
    """Entries of the conditions ``A x <= 0`` as rows, columns and values, and the number of unknowns.

    The entry for state ``s`` and output ``z`` is unknown ``s n + z``; the least entries of cliques come after them.
    """
    cliques, rest = cliques_of(size, edges)
    outputs = np.arange(size)
    greater, smaller, factors, unknowns = [], [], [], size * size
    for pairs in (rest, rest[:, ::-1]):
        greater.append((pairs[:, :1] * size + outputs).ravel())
        smaller.append((pairs[:, 1:] * size + outputs).ravel())
        factors.append(np.full(len(pairs) * size, ratio))
    for members in cliques:
        entries = (members[:, None] * size + outputs).ravel()
        least = np.tile(unknowns + outputs, len(members))
        greater += [entries, least]
        smaller += [least, entries]
        factors += [np.full(len(entries), ratio), np.ones(len(entries))]
        unknowns += size
    left, right = np.concatenate(greater), np.concatenate(smaller)
    numbers = np.arange(len(left))
    values = np.concatenate([np.ones(len(left)), -np.concatenate(factors)])
    return np.tile(numbers, 2), np.concatenate([left, right]), values, unknowns
