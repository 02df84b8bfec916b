"""The gain of optimal tables in the record, against integrals and other samples."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseRecord
from dphmm.errors import InvalidInputError
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.mechanisms import KNormMechanism, PlanarLaplaceMechanism
from dphmm.release.step_noise_builder import compute_posterior_mean_error
from tests.mechanisms.test_noise_tables_values import _simulate_posterior_error, build_grid


def make_engine(points, edges, epsilon=1.0, **settings):
    count = len(points)
    policy = PolicyGraph.from_edges(count, edges)
    even = MarkovModel(np.full((count, count), 1 / count), np.full(count, 1 / count))
    return Releaser(even, points, policy, epsilon, mechanism=settings.pop("mechanism", "optimal"), rng=0, **settings)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_error_of_posterior_mean_matches_integral_of_posterior_variance(epsilon):
    points, prior = np.array([[0.0], [1.0], [3.0]]), np.array([0.5, 0.2, 0.3])
    noise = KNormMechanism(SensitivityHull([[2.0]]), epsilon)
    at = np.linspace(-80, 80, 400_001)
    joint = prior[:, None] * epsilon / 4 * np.exp(-epsilon * np.abs(at - points) / 2)
    mass = joint.sum(axis=0)
    assert mass.sum() * (at[1] - at[0]) == pytest.approx(1, abs=1e-4)
    variance = (points**2 * joint).sum(axis=0) - (points * joint).sum(axis=0) ** 2 / mass
    exact = variance.sum() * (at[1] - at[0])
    assert compute_posterior_mean_error(noise, points, prior) ** 0.5 == pytest.approx(exact**0.5, rel=0.02)
    other = KNormMechanism(SensitivityHull([[2.0]]), 2.0 * epsilon)
    assert compute_posterior_mean_error(other, points, prior) ** 0.5 != pytest.approx(exact**0.5, rel=0.02)


@pytest.mark.slow
def test_error_of_posterior_mean_matches_sampled_error_in_plane():
    """20,000 releases, seed 4: the standard error of the root mean square is about 0.5 %."""
    points, edges = build_grid(5, 2)
    noise = KNormMechanism(SensitivityHull(points[edges[:, 0]] - points[edges[:, 1]]), 1.0)
    drawn = _simulate_posterior_error(noise, points, np.random.default_rng(4), 20_000)
    assert compute_posterior_mean_error(noise, points, np.ones(25)) ** 0.5 == pytest.approx(drawn, rel=0.03)
    disc = PlanarLaplaceMechanism(1.0, 0.5)
    assert compute_posterior_mean_error(disc, points, np.eye(25)[3]) == 0.0


def test_record_gain_is_negligible_on_homogeneous_policy_and_large_on_mixed_policy():
    """The gain is within 5 % on homogeneous policies at epsilon 1, and large on a mixed one."""
    even = make_engine(*build_grid(5, 0)).release(3)
    assert abs(even.table_gain) < 0.05
    assert even.table_has_no_gain
    mixed = make_engine(*build_grid(6, 4)).release(3)
    assert mixed.table_gain > 0.1
    assert not mixed.table_has_no_gain
    for record in (even, mixed):
        assert record.table_error_bound <= record.expected_error <= 1.0001 * record.table_error_bound
        assert record.table_gain == pytest.approx(1 - record.expected_error / record.knorm_estimate_error)
        assert ReleaseRecord.from_json(record.to_json()) == record


def test_errors_average_over_components_by_probability():
    points = np.array(list(product(range(4), range(2))), dtype=float)
    policy = PolicyGraph.from_groups(8, [[0, 1, 2], [4, 5]]).with_open([3, 6, 7])
    model = MarkovModel(np.full((8, 8), 1 / 8), np.arange(1, 9) / 36)
    releaser = Releaser(model, points, policy, 1.0, mechanism="optimal", rng=0)
    step = releaser.prepare()
    record = releaser.draw(step, 3)
    tables = step.noise.parts[1:]
    shares = np.array([6 / 36, 11 / 36])
    assert record.table_error_bound == pytest.approx((shares @ [table.optimum for table in tables]) ** 0.5, rel=1e-9)
    assert record.expected_error == pytest.approx((shares @ [table.squared_error for table in tables]) ** 0.5, rel=1e-9)


def test_error_bound_is_missing_without_linear_program():
    points, edges = build_grid(3, 0)
    fallen = make_engine(points, edges, optimal_max_states=4, optimal_fallback="graph-exponential").release(0)
    assert fallen.table_error_bound is None
    assert fallen.table_gain < 0
    for mechanism in ("lattice", "graph-exponential"):
        record = make_engine(points, edges, mechanism=mechanism).release(0)
        assert (record.table_error_bound, record.knorm_estimate_error, record.table_gain) == (None, None, None)
        assert not record.table_has_no_gain
    for name in vars(record).keys() - {"soundness"}:  # records of registered mechanisms have it
        others = {other: value for other, value in json.loads(record.to_json()).items() if other != name}
        with pytest.raises(InvalidInputError, match="other fields"):
            ReleaseRecord.from_json(json.dumps(others))
