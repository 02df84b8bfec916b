"""Instants come out in microseconds, whole numbers as integers, or are refused where 64 bits do not hold them."""

import numpy as np
import pytest

from dphmm.arrays import as_distribution, as_instants, as_integers
from dphmm.errors import InvalidInputError, StochasticError, TimeOrderError
from dphmm.landmarks import stay_points
from dphmm.release.session import step_number
from dphmm.space.trajectory import Trajectory


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"])
def test_instants_of_every_unit_are_the_same_instants(unit):
    times = np.array(["2024-01-01", "1969-01-01", "NaT"], dtype=f"datetime64[{unit}]")
    found = as_instants(times)
    assert found.dtype == np.dtype("datetime64[us]")
    np.testing.assert_array_equal(found.astype(times.dtype), times)


@pytest.mark.parametrize("seconds", [2**63 // 10**6 + 1, -(2**63) // 10**6 - 1, 2**61, 2**64 // 10**6])
def test_instants_beyond_64_bits_are_refused_and_never_wrap(seconds):
    times = np.array([0, seconds], dtype="datetime64[s]")
    with pytest.raises(ValueError, match="beyond the year 290000"):
        as_instants(times)
    with pytest.raises(TimeOrderError, match="beyond the year 290000"):
        Trajectory("u", times, np.zeros(2), np.zeros(2))
    with pytest.raises(TimeOrderError, match="beyond the year 290000"):
        stay_points(times, np.zeros((2, 2)), 1, 10)
    with pytest.raises(InvalidInputError, match="beyond the year 290000"):
        step_number(times[1], 60)


@pytest.mark.parametrize("kind", ["<f2", ">f2", "<f4", "<f8", np.longdouble])
def test_whole_floats_of_any_width_are_integers_and_no_others(kind):
    assert as_integers(np.array([3, -2, 0], dtype=kind), "states").tolist() == [3, -2, 0]
    for bad in (0.5, np.inf, np.nan):
        with pytest.raises(InvalidInputError, match="whole"):
            as_integers(np.array([3, bad], dtype=kind), "states")


def test_a_distribution_whose_sum_is_beyond_a_float_is_refused_without_a_warning():
    with pytest.raises(StochasticError, match="sums to inf"):
        as_distribution([1e308, 1e308], 2)
