"""The inner loop over a norm's walls, written so that numba can compile it; nothing here is called uncompiled."""

from __future__ import annotations

import numpy as np

from dphmm.arrays import BoolArray, FloatArray


def densities_in_plane(
    x: FloatArray,
    y: FloatArray,
    possible: BoolArray,
    z: tuple[float, float],
    walls: tuple[FloatArray, FloatArray],
    law: tuple[float, float],
    out: FloatArray,
) -> None:
    """``-decay ‖z - x‖ - shift`` of points ``(N,)``, minus infinity where they are not possible.

    Parameters
    ----------
    x, y
        The points' coordinates.
    possible
        Which of them count.
    z
        What was released.
    walls
        Forms ``(m, 2)`` and offsets ``(m,)`` of the norm: it is the largest ``|form v| / offset``.
    law
        The decay, and the shift.
    out
        ``(N,)``: filled.
    """
    (forms, offsets), (decay, shift) = walls, law
    count = 0
    across, along, norms = np.empty((3, x.size))
    for i in range(x.size):
        across[count], along[count] = z[0] - x[i], z[1] - y[i]
        count += possible[i]
    norms[:count] = 0.0
    for k in range(offsets.size):
        a, b, offset = forms[k, 0], forms[k, 1], offsets[k]
        for i in range(count):
            height = abs(a * across[i] + b * along[i]) / offset
            norms[i] = height if height > norms[i] else norms[i]
    count = 0
    for i in range(x.size):
        out[i] = -np.inf
        if possible[i]:
            out[i] = -(norms[count] * decay) - shift
            count += 1
