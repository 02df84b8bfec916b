"""What a table of least error gains, as its record says: against integrals, other draws, and where it gains nothing."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseRecord
from dphmm.errors import InvalidInputError
from dphmm.geometry.hull import SensitivityHull
from dphmm.mechanisms import KNormMechanism, PlanarLaplaceMechanism
from dphmm.release.noise import error_of_posterior_mean
from tests.mechanisms.test_optimal_table_table import _posterior_error, grid


def engine(points, edges, epsilon=1.0, **given):
    count = len(points)
    policy = PolicyGraph.from_edges(count, edges)
    even = MarkovModel(np.full((count, count), 1 / count), np.full(count, 1 / count))
    return Releaser(even, points, policy, epsilon, mechanism=given.pop("mechanism", "optimal"), rng=0, **given)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_the_error_of_the_posterior_mean_is_the_integral_of_the_posterior_s_variance(epsilon):
    points, prior = np.array([[0.0], [1.0], [3.0]]), np.array([0.5, 0.2, 0.3])
    noise = KNormMechanism(SensitivityHull([[2.0]]), epsilon)
    at = np.linspace(-80, 80, 400_001)
    joint = prior[:, None] * epsilon / 4 * np.exp(-epsilon * np.abs(at - points) / 2)
    mass = joint.sum(axis=0)
    assert mass.sum() * (at[1] - at[0]) == pytest.approx(1, abs=1e-4)
    variance = (points**2 * joint).sum(axis=0) - (points * joint).sum(axis=0) ** 2 / mass
    exact = variance.sum() * (at[1] - at[0])
    assert error_of_posterior_mean(noise, points, prior) ** 0.5 == pytest.approx(exact**0.5, rel=0.02)
    other = KNormMechanism(SensitivityHull([[2.0]]), 2.0 * epsilon)
    assert error_of_posterior_mean(other, points, prior) ** 0.5 != pytest.approx(exact**0.5, rel=0.02)


def test_it_is_what_other_draws_say_of_the_plane():
    """20,000 releases, seed 4: one standard error of the root mean square is about half a per cent."""
    points, edges = grid(5, 2)
    noise = KNormMechanism(SensitivityHull(points[edges[:, 0]] - points[edges[:, 1]]), 1.0)
    drawn = _posterior_error(noise, points, np.random.default_rng(4), 20_000)
    assert error_of_posterior_mean(noise, points, np.ones(25)) ** 0.5 == pytest.approx(drawn, rel=0.03)
    disc = PlanarLaplaceMechanism(1.0, 0.5)
    assert error_of_posterior_mean(disc, points, np.eye(25)[3]) == 0.0


def test_a_record_says_where_the_program_gains_nothing_and_how_much_where_it_does():
    """MATH: within 5 % on homogeneous policies at epsilon 1; on a private corner in a grid much is to be had."""
    even = engine(*grid(5, 0)).release(3)
    assert abs(even.gain) < 0.05
    assert even.gains_nothing
    mixed = engine(*grid(6, 4)).release(3)
    assert mixed.gain > 0.1
    assert not mixed.gains_nothing
    for record in (even, mixed):
        assert record.least_error <= record.expected_error <= 1.0001 * record.least_error
        assert record.gain == pytest.approx(1 - record.expected_error / record.mean_error)
        assert ReleaseRecord.from_json(record.to_json()) == record


def test_open_states_and_several_components_count_by_their_probability():
    points = np.array(list(product(range(4), range(2))), dtype=float)
    policy = PolicyGraph.from_groups(8, [[0, 1, 2], [4, 5]]).with_open([3, 6, 7])
    model = MarkovModel(np.full((8, 8), 1 / 8), np.arange(1, 9) / 36)
    made = Releaser(model, points, policy, 1.0, mechanism="optimal", rng=0)
    step = made.prepare()
    record = made.draw(step, 3)
    tables = step.noise.parts[1:]
    shares = np.array([6 / 36, 11 / 36])
    assert record.least_error == pytest.approx((shares @ [one.optimum for one in tables]) ** 0.5, rel=1e-9)
    assert record.expected_error == pytest.approx((shares @ [one.squared_error for one in tables]) ** 0.5, rel=1e-9)


def test_where_there_is_no_program_nothing_is_said_of_it():
    points, edges = grid(3, 0)
    fallen = engine(points, edges, optimal_limit=4, fallback="graph-exponential").release(0)
    assert fallen.least_error is None
    assert fallen.gain < 0
    for mechanism in ("lattice", "graph-exponential"):
        record = engine(points, edges, mechanism=mechanism).release(0)
        assert (record.least_error, record.mean_error, record.gain) == (None, None, None)
        assert not record.gains_nothing
    for name in vars(record):
        others = {other: value for other, value in json.loads(record.to_json()).items() if other != name}
        with pytest.raises(InvalidInputError, match="its names are others"):
            ReleaseRecord.from_json(json.dumps(others))
