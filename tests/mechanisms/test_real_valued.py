"""Real-valued mechanisms, against integrals and two-sample tests."""

from __future__ import annotations

from itertools import pairwise
from math import gamma

import numpy as np
import pytest
from scipy import integrate, stats

from dphmm import (
    KNormMechanism,
    LaplaceMechanism,
    PlanarIsotropicMechanism,
    PlanarLaplaceMechanism,
    SensitivityHull,
)
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError

HEXAGON = SensitivityHull([[4, 1], [1, -1], [3, 0]])
SEGMENT = SensitivityHull([[3, 4]])
POINT = SensitivityHull(np.zeros((0, 2)))
EPSILON = 0.7

PLANAR = {
    "k-norm": KNormMechanism(HEXAGON, EPSILON),
    "planar-isotropic": PlanarIsotropicMechanism(HEXAGON, EPSILON),
    "laplace": LaplaceMechanism(2.5, EPSILON, 2),
    "planar-laplace": PlanarLaplaceMechanism(EPSILON, 1.3),
}
planar = pytest.mark.parametrize("mechanism", PLANAR.values(), ids=PLANAR.keys())


@planar
def test_density_integrates_to_one(mechanism):
    # In polar coordinates about the true value: the radial integral is exact for exp(-epsilon r n(angle)).
    def integrate_over_radius(angle):
        rate = EPSILON * mechanism.norm(np.array([[np.cos(angle), np.sin(angle)]])).item()
        return np.exp(mechanism.log_density([0, 0], [0, 0])) / rate**2

    kinks = np.linspace(0, 2 * np.pi, 65)
    total = sum(integrate.quad(integrate_over_radius, a, b)[0] for a, b in pairwise(kinks))
    assert total == pytest.approx(1.0, rel=1e-8)


@planar
def test_sample_norms_are_gamma_distributed(mechanism):
    # epsilon ‖z - x‖ is Gamma(2) for every planar norm mechanism. 50,000 draws, seed 1, alpha = 1e-4.
    draws = mechanism.sample([3.0, -1.0], rng=1, size=50_000)
    norms = EPSILON * mechanism.norm(draws - [3.0, -1.0])
    assert stats.kstest(norms, stats.gamma(2).cdf).pvalue > 1e-4
    assert stats.kstest(norms, stats.gamma(3).cdf).pvalue < 1e-10  # a variant with one exponential too many fails


@planar
def test_directions_match_body(mechanism):
    # The density of the angle is proportional to n(angle)^-2. 16 bins, 50,000 draws, seed 2, alpha = 1e-4.
    draws = mechanism.sample([0.0, 0.0], rng=2, size=50_000)
    edges = np.linspace(-np.pi, np.pi, 17)
    counts = np.histogram(np.arctan2(draws[:, 1], draws[:, 0]), edges)[0]
    fine = np.linspace(-np.pi, np.pi, 16 * 400 + 1)[:-1] + np.pi / 6400
    weight = mechanism.norm(np.stack([np.cos(fine), np.sin(fine)], axis=1)) ** -2.0
    expected = weight.reshape(16, 400).sum(axis=1) / weight.sum() * len(draws)
    assert stats.chisquare(counts, expected).pvalue > 1e-4
    flat = np.full(16, len(draws) / 16)  # a variant that ignores the shape fails
    assert isinstance(mechanism, PlanarLaplaceMechanism) or stats.chisquare(counts, flat).pvalue < 1e-10


@planar
def test_squared_error_matches_draws(mechanism):
    # 200,000 draws, seed 3, five standard errors.
    squares = (mechanism.sample([0.0, 0.0], rng=3, size=200_000) ** 2).sum(axis=1)
    assert abs(squares.mean() - mechanism.squared_error) < 5 * squares.std() / np.sqrt(len(squares))


@planar
def test_privacy_loss_bounds_every_log_ratio_and_is_attained(mechanism):
    rng = np.random.default_rng(4)
    x, y = np.array([1.0, 2.0]), np.array([-0.5, 2.7])
    outputs = np.concatenate([rng.normal(scale=6, size=(4000, 2)), [x, y]])
    ratios = mechanism.log_density(outputs, x) - mechanism.log_density(outputs, y)
    loss = mechanism.privacy_loss(x, y).item()
    assert np.abs(ratios).max() == pytest.approx(loss, rel=1e-12)


def test_density_matches_definition_3_3():
    density = np.exp(PLANAR["k-norm"].log_density([2.0, 0.5], [0.0, 0.0]))
    scaled_volume = HEXAGON.volume / EPSILON**2
    expected = np.exp(-EPSILON * HEXAGON.norm([2.0, 0.5])) / (gamma(3) * scaled_volume)
    assert density == pytest.approx(expected, rel=1e-12)


def compute_two_sample_p_value(first, second):
    """Return the corrected minimum p-value of Kolmogorov–Smirnov tests on projections."""
    angles = np.linspace(0, np.pi, 8, endpoint=False)
    values = [stats.ks_2samp(first @ [np.cos(a), np.sin(a)], second @ [np.cos(a), np.sin(a)]).pvalue for a in angles]
    return min(1.0, 8 * min(values))


@pytest.mark.parametrize("hull", [HEXAGON, SensitivityHull([[10, 1], [0, 1]])], ids=["hexagon", "thin"])
def test_planar_isotropic_matches_k_norm_distribution(hull):
    # 40,000 draws each, seeds 5 and 6, alpha = 1e-4. A variant that does not map back must fail.
    isotropic = PlanarIsotropicMechanism(hull, 1.0)
    draws = isotropic.sample([0.0, 0.0], rng=5, size=40_000)
    reference = KNormMechanism(hull, 1.0).sample([0.0, 0.0], rng=6, size=40_000)
    assert compute_two_sample_p_value(draws, reference) > 1e-4
    assert compute_two_sample_p_value(draws @ isotropic.to_isotropic, reference) < 1e-10
    mapped = SensitivityHull(hull.vertices @ isotropic.to_isotropic)
    np.testing.assert_allclose(
        mapped.norm(reference[:50] @ isotropic.to_isotropic), hull.norm(reference[:50]), rtol=1e-9
    )


@pytest.mark.parametrize("width", [0.0, 1e-12, 1e-9, 1e-7])
def test_planar_isotropic_equals_k_norm_for_flat_hulls(width):
    turn = np.array([[np.cos(0.7), np.sin(0.7)], [-np.sin(0.7), np.cos(0.7)]])
    hull = SensitivityHull(np.array([[3.0, 0.0], [1.0, width]]) @ turn)
    isotropic, plain = PlanarIsotropicMechanism(hull, 1.0), KNormMechanism(hull, 1.0)
    draws = isotropic.sample([5.0, -2.0], rng=5, size=1000)
    np.testing.assert_array_equal(draws, plain.sample([5.0, -2.0], rng=5, size=1000))
    assert (isotropic.log_density(draws, [5.0, -2.0]) > -np.inf).all()


def test_isotropic_position_has_equal_second_moments():
    isotropic = PLANAR["planar-isotropic"]
    moments = SensitivityHull(HEXAGON.vertices @ isotropic.to_isotropic).second_moments
    np.testing.assert_allclose(moments, np.eye(2), atol=1e-12)


def test_theorem_5_1_laplace_equals_k_norm_of_cross_polytope():
    # 40,000 draws each, seeds 7 and 8, alpha = 1e-4.
    cross = KNormMechanism(SensitivityHull(2.5 * np.eye(2)), EPSILON)
    laplace = PLANAR["laplace"]
    first, second = (m.sample([0.0, 0.0], rng=s, size=40_000) for m, s in ((cross, 7), (laplace, 8)))
    assert compute_two_sample_p_value(first, second) > 1e-4
    assert compute_two_sample_p_value(1.25 * first, second) < 1e-10
    np.testing.assert_allclose(
        cross.log_density(first[:99], [1, 1]), laplace.log_density(first[:99], [1, 1]), rtol=1e-12
    )
    assert cross.squared_error == pytest.approx(laplace.squared_error, rel=1e-12)


def test_example_5_2_laplace_log_ratios_are_three_halves_epsilon():
    laplace = LaplaceMechanism(2.0, EPSILON, 2)
    for other in ([2, 1], [3, 0]):
        assert laplace.privacy_loss([4, 2], other).item() == pytest.approx(1.5 * EPSILON, rel=1e-15)


def test_segment_noise_has_laplace_length_within_its_line():
    # With u uniform in the segment and r ~ Gamma(2), r u is Laplace. 50,000 draws, seed 9, alpha = 1e-4.
    mechanism = KNormMechanism(SEGMENT, EPSILON)
    draws = mechanism.sample([1.0, 1.0], rng=9, size=50_000) - [1.0, 1.0]
    np.testing.assert_allclose(draws @ [4, -3], 0.0, atol=1e-9)
    along = EPSILON * (draws @ [3, 4]) / 25
    assert stats.kstest(along, stats.laplace().cdf).pvalue > 1e-4
    rng = np.random.default_rng(11)
    as_in_the_plane = rng.gamma(3, size=50_000) * rng.uniform(-1, 1, size=50_000)
    assert stats.kstest(as_in_the_plane, stats.laplace().cdf).pvalue < 1e-10


def test_segment_density_integrates_to_one_and_is_zero_off_its_line():
    mechanism = KNormMechanism(SEGMENT, EPSILON)

    def compute_density(t):
        return np.exp(mechanism.log_density([0.6 * t, 0.8 * t], [0, 0])).item()

    assert 2 * integrate.quad(compute_density, 0, 200, limit=200)[0] == pytest.approx(1.0, rel=1e-8)
    assert mechanism.log_density([0.6, 0.81], [0, 0]).item() == -np.inf


def test_point_hull_adds_no_noise():
    mechanism = KNormMechanism(POINT, EPSILON)
    assert mechanism.sample([[1.25, -3.0], [0.1, 0.2]]).tolist() == [[1.25, -3.0], [0.1, 0.2]]
    assert mechanism.log_density([[1.25, -3.0], [1.25, -3.1]], [1.25, -3.0]).tolist() == [0.0, -np.inf]
    assert mechanism.squared_error == 0.0


@pytest.mark.parametrize("d", [1, 3])
def test_k_norm_in_other_dimensions(d):
    # epsilon ‖z‖ is Gamma(d). 30,000 draws, seed 13, alpha = 1e-4.
    hull = SensitivityHull(np.random.default_rng(d).normal(size=(9, d)))
    mechanism = KNormMechanism(hull, EPSILON)
    draws = mechanism.sample(np.zeros(d), rng=13, size=30_000)
    assert stats.kstest(EPSILON * hull.norm(draws), stats.gamma(d).cdf).pvalue > 1e-4
    squares = (draws**2).sum(axis=1)
    assert abs(squares.mean() - mechanism.squared_error) < 5 * squares.std() / np.sqrt(len(squares))


@planar
def test_shapes_match_values(mechanism):
    assert mechanism.sample([0.0, 0.0], rng=0).shape == (2,)
    assert mechanism.sample(np.zeros((5, 2)), rng=0).shape == (5, 2)
    assert mechanism.sample(np.zeros((5, 2)), rng=0, size=3).shape == (3, 5, 2)
    assert mechanism.log_density([0.0, 0.0], np.zeros((7, 2))).shape == (7,)
    assert mechanism.log_density(np.zeros((4, 2)), [0.0, 0.0]).shape == (4,)


@planar
def test_seed_is_reproducible_and_default_is_random(mechanism):
    x = np.zeros((4, 2))
    np.testing.assert_array_equal(mechanism.sample(x, rng=5), mechanism.sample(x, rng=5))
    assert (mechanism.sample(x) != mechanism.sample(x)).all()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.inf, np.nan])
def test_invalid_epsilon_raises(epsilon):
    for make in (
        lambda: KNormMechanism(HEXAGON, epsilon),
        lambda: PlanarIsotropicMechanism(HEXAGON, epsilon),
        lambda: LaplaceMechanism(1.0, epsilon, 2),
        lambda: PlanarLaplaceMechanism(epsilon, 1.0),
    ):
        with pytest.raises(BudgetError, match="epsilon must be"):
            make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: LaplaceMechanism(0.0, 1.0, 2),
        lambda: LaplaceMechanism(1.0, 1.0, 0),
        lambda: PlanarLaplaceMechanism(1.0, -1.0),
        lambda: PlanarIsotropicMechanism(SensitivityHull(np.eye(3)), 1.0),
    ],
)
def test_invalid_parameters_raise(make):
    with pytest.raises(InvalidInputError):
        make()


@planar
@pytest.mark.parametrize("x", [[np.nan, 0.0], [1.0, 2.0, 3.0], 4.0], ids=repr)
def test_invalid_values_raise(mechanism, x):
    with pytest.raises(CoordinateError):
        mechanism.sample(x)
