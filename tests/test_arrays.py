"""Times become microseconds and whole floats integers. Values beyond 64 bits are refused."""

import numpy as np
import pytest

from dphmm import MarkovModel, Measurements, PolicyGraph
from dphmm.arrays import as_distribution, as_instants, as_integers
from dphmm.errors import InvalidInputError, StochasticError, TimeOrderError
from dphmm.landmarks import stay_points
from dphmm.release.session import get_slot
from dphmm.space.trajectory import Trajectory


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"])
def test_times_of_every_unit_are_preserved(unit):
    times = np.array(["2024-01-01", "1969-01-01", "NaT"], dtype=f"datetime64[{unit}]")
    converted = as_instants(times)
    assert converted.dtype == np.dtype("datetime64[us]")
    np.testing.assert_array_equal(converted.astype(times.dtype), times)


@pytest.mark.parametrize("seconds", [2**63 // 10**6 + 1, -(2**63) // 10**6 - 1, 2**61, 2**64 // 10**6])
def test_times_beyond_64_bits_raise(seconds):
    times = np.array([0, seconds], dtype="datetime64[s]")
    with pytest.raises(ValueError, match="290000"):
        as_instants(times)
    with pytest.raises(TimeOrderError, match="290000"):
        Trajectory("u", times, np.zeros(2), np.zeros(2))
    with pytest.raises(TimeOrderError, match="290000"):
        stay_points(times, np.zeros((2, 2)), 1, 10)
    with pytest.raises(InvalidInputError, match="290000"):
        get_slot(times[1], 60)


@pytest.mark.parametrize("kind", ["<f2", ">f2", "<f4", "<f8", np.longdouble])
def test_whole_floats_become_integers_and_others_raise(kind):
    assert as_integers(np.array([3, -2, 0], dtype=kind), "states").tolist() == [3, -2, 0]
    for bad in (0.5, np.inf, np.nan):
        with pytest.raises(InvalidInputError, match="must be integers"):
            as_integers(np.array([3, bad], dtype=kind), "states")


def test_distribution_with_infinite_sum_raises():
    with pytest.raises(StochasticError, match="must sum to 1, got inf"):
        as_distribution([1e308, 1e308], 2)


def test_masked_entries_raise():
    hidden = np.ma.array([[0.5, 0.5], [0.5, 0.5]], mask=[[False, True], [False, False]])
    times = np.array(["2024-01-01", "2024-01-02"], "M8[us]")
    for use in (
        lambda: MarkovModel(hidden, [0.5, 0.5]),
        lambda: MarkovModel([[0.5, 0.5], [0.5, 0.5]], hidden[0]),
        lambda: Measurements(hidden),
        lambda: PolicyGraph.utility(hidden, 1.0),
        lambda: Trajectory("ann", times, hidden[0], [1.0, 2.0]),
    ):
        with pytest.raises(InvalidInputError, match=r"mask|must be a matrix of numbers"):
            use()
    assert Measurements(np.ma.array([[0.5, 0.5]])).points.tolist() == [[0.5, 0.5]]
