"""Public functions for streams do not modify arguments, and checked arrays are read-only."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import counts, landmarks, leakage

MATRIX = np.array([[0.8, 0.2], [0.3, 0.7]])
EPSILONS = np.array([0.1, 0.2, 0.3])
TIMES = np.arange(3)
MARKS = np.array([1])
POINTS = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0]])
STAMPS = np.array(["2024-01-01T00:00", "2024-01-01T01:00", "2024-01-01T02:00"], dtype="datetime64[us]")
NOISY = np.array([[7.2, -0.8], [1.1, 4.9], [3.3, 2.2]])
TRUE = np.array([[6, 0], [1, 5], [3, 3]])
SCALES = np.array([2.0, 2.0, 1.0])

CALLS = {
    "loss": lambda: leakage.loss(MATRIX, 1.0),
    "LossFunction": lambda: leakage.LossFunction(MATRIX)(EPSILONS),
    "account": lambda: leakage.compute_leakage(MATRIX, MATRIX, EPSILONS),
    "exact_budgets": lambda: leakage.exact_budgets(MATRIX, MATRIX, 1.0, 3),
    "smooth": lambda: leakage.smooth(MATRIX, 0.1),
    "landmarks": lambda: landmarks.leakage(TIMES, MARKS, EPSILONS, MATRIX, MATRIX),
    "timeline": lambda: landmarks.timeline(TIMES, MARKS),
    "LandmarkBudget": lambda: landmarks.LandmarkBudget(landmarks.timeline(TIMES, MARKS), EPSILONS, 1.0),
    "release_series": lambda: landmarks.release_series(
        POINTS, landmarks.uniform_scheme(TIMES, MARKS, 1.0), landmarks.laplace_noise(1.0, rng=0)
    ),
    "stay_points": lambda: landmarks.repeated_places(landmarks.stay_points(STAMPS, POINTS, 1.0, 30.0), 0.5),
    "count_states": lambda: counts.count_states(TRUE, 7),
    "release": lambda: counts.release(TRUE, EPSILONS, rng=0),
    "single": lambda: counts.post_process(NOISY, MATRIX, 6, SCALES),
    "integer": lambda: counts.post_process(NOISY, MATRIX, 6, SCALES, integer=True),
    "coupled": lambda: counts.post_process(NOISY, MATRIX, 6, SCALES, prior=MATRIX[0], coupled=True),
    "online": lambda: counts.post_process(NOISY, MATRIX, 6, SCALES, coupled="online"),
    "least_squares": lambda: counts.least_squares(NOISY, 6),
    "maximum_likelihood": lambda: counts.maximum_likelihood(NOISY, 6),
}
ARRAYS = [MATRIX, EPSILONS, TIMES, MARKS, POINTS, STAMPS, NOISY, TRUE, SCALES]


@pytest.mark.parametrize("name", CALLS)
def test_arguments_stay_writeable_and_unchanged(name):
    before = [array.copy() for array in ARRAYS]
    CALLS[name]()
    for array, copy in zip(ARRAYS, before, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert array.flags.writeable


def test_arrays_of_records_are_read_only_copies():
    times = np.arange(3)
    landmark = np.array([False, True, False])
    epsilons = np.array([0.1, 0.2, 0.3])
    line = landmarks.Timeline(times, landmark)
    budget = landmarks.LandmarkBudget(line, epsilons, 0.5)
    figure = leakage.Leakage(epsilons, epsilons, epsilons)
    kept = [line.timestamps, line.landmark, budget.epsilons, figure.epsilons, figure.backward, figure.forward]
    before = [array.copy() for array in kept]
    times[0] = -5
    landmark[0] = True
    epsilons[0] = 9.0
    for array, copy in zip(kept, before, strict=True):
        np.testing.assert_array_equal(array, copy)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]
