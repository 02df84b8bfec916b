"""Public calls of the landmark stage raise the package's own errors for invalid values."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import landmarks
from tests.weird import WEIRD, count_refusals

TIMES = [1, 2, 3]
MARKS = [2]
BUDGETS = [0.1, 0.1, 0.1]
P = np.array([[0.5, 0.5], [0.2, 0.8]])
LINE = landmarks.timeline(TIMES, MARKS)
STAYS = landmarks.stay_points(["2020-01-01", "2020-01-02"], [[0.0, 0.0], [0.0, 0.1]], 1.0, 5.0)
ON = {"timestamps": TIMES, "landmarks": MARKS}
CALLS = {
    "timeline": (landmarks.timeline, ON),
    "Timeline": (landmarks.Timeline, {"timestamps": TIMES, "landmark": [True, False, True]}),
    "skip": (landmarks.skip_scheme, {**ON, "epsilon": 1.0}),
    "uniform": (landmarks.uniform_scheme, {**ON, "epsilon": 1.0}),
    "LandmarkBudget": (
        lambda **options: landmarks.LandmarkBudget(LINE, **options),
        {"epsilons": BUDGETS, "epsilon": 1.0},
    ),
    "Adaptive": (
        landmarks.Adaptive,
        {**ON, "epsilon": 1.0, "sensitivity": 1.0, "rate": 1.0, "change": 0.2, "min_rate": 0.1},
    ),
    "step": (lambda value: landmarks.Adaptive(TIMES, MARKS, 1.0, 1.0).step(lambda share: value), {"value": [1.0]}),
    "leakage": (landmarks.leakage, {**ON, "epsilons": BUDGETS, "backward": P, "forward": P}),
    "paper_leakage": (landmarks.paper_leakage, {**ON, "epsilons": BUDGETS, "backward": P, "forward": P}),
    "lattice": (landmarks.lattice_noise, {"sensitivity": 1, "spacing": 1}),
    "planar_lattice": (landmarks.planar_lattice, {"unit": 1, "spacing": 1}),
    "laplace": (landmarks.laplace_noise, {"sensitivity": 1.0}),
    "planar_laplace": (landmarks.planar_laplace, {"unit": 1.0}),
    "lattice noise": (landmarks.lattice_noise(1, rng=0), {"value": [1.0], "epsilon": 1.0}),
    "planar lattice noise": (landmarks.planar_lattice(1, rng=0), {"value": [1.0, 2.0], "epsilon": 1.0}),
    "laplace noise": (landmarks.laplace_noise(1, rng=0), {"value": [1.0], "epsilon": 1.0}),
    "planar laplace noise": (landmarks.planar_laplace(1, rng=0), {"value": [1.0, 2.0], "epsilon": 1.0}),
    "release_series": (
        lambda values: landmarks.release_series(
            values, landmarks.uniform_scheme(TIMES, MARKS, 1.0), landmarks.lattice_noise(1)
        ),
        {"values": [1.0, 2.0, 3.0]},
    ),
    "stay_points": (
        landmarks.stay_points,
        {"times": ["2020-01-01", "2020-01-02"], "points": [[0.0, 0.0], [0.0, 0.1]], "radius_km": 1.0, "minutes": 5.0},
    ),
    "repeated_places": (
        lambda **options: landmarks.repeated_places(STAYS, **options),
        {"radius_km": 1.0, "utc_offset": 0.0},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_invalid_values_raise_own_errors(name):
    call, arguments = CALLS[name]
    assert count_refusals(call, arguments) > 0.3 * len(WEIRD) * len(arguments)
