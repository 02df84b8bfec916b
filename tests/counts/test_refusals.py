"""Public calls of the stage refuse invalid values with an error of the package."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import counts
from dphmm.counts import Start
from tests.weird import WEIRD, count_refusals

P = np.array([[0.5, 0.5], [0.2, 0.8]])
NOISY = [[1.0, 2.0], [2.0, 1.0]]
REPAIR = {"noisy": NOISY, "transition": P, "users": 3, "scale": 1.0, "prior": "uniform"}
FILTERED = {"transition": P, "noisy": [1.0, 2.0], "scale": 1.0}
CALLS = {
    "count_states": (counts.count_states, {"sequences": [[0, 1]], "size": 3}),
    "release": (counts.release, {"true": [[1, 2], [2, 1]], "epsilons": 1.0, "mechanism": "lattice"}),
    "least_squares": (counts.least_squares, {"noisy": NOISY, "users": 3}),
    "possible": (lambda possible: counts.least_squares(NOISY, 3, possible), {"possible": [[True, True]] * 2}),
    "maximum_likelihood": (counts.maximum_likelihood, {"noisy": NOISY, "users": 3}),
    "single": (counts.post_process, REPAIR | {"coupled": False}),
    "coupled": (counts.post_process, REPAIR | {"coupled": True}),
    "online": (counts.post_process, REPAIR | {"coupled": "online"}),
    "estimate": (counts.estimate, {"name": "coupled", **REPAIR}),
    "compare": (
        lambda **options: counts.compare(**options, names=["least-squares"]),
        {"true": [[1, 2], [2, 1]], "epsilons": 1.0, "runs": 1, "transition": None},
    ),
    "smooth_counts": (
        lambda **options: counts.smooth_counts(start=Start.flat(2, 3), **options),
        {"noisy": NOISY, "transition": P, "scales": 1.0, "sweeps": 2},
    ),
    "ChainFilter": (
        lambda transition, noisy, scale: counts.ChainFilter(transition, Start.flat(2, 3)).update(noisy, scale),
        FILTERED,
    ),
    "flat": (Start.flat, {"size": 2, "users": 3}),
    "multinomial": (Start.multinomial, {"first": [0.5, 0.5], "users": 3}),
}
TAKES_ANYTHING = {"compare": ("transition",)}


@pytest.mark.parametrize("name", CALLS)
def test_invalid_values_raise_package_errors(name):
    call, arguments = CALLS[name]
    spared = TAKES_ANYTHING.get(name, ())
    assert count_refusals(call, arguments, spared) > 0.3 * len(WEIRD) * (len(arguments) - len(spared))
