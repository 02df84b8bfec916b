"""Exact noise for series: rounding, the resulting scale, and the stated distribution."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dphmm.errors import BudgetError, CoordinateError, DphmmError, InvalidInputError
from dphmm.geometry import SensitivityHull
from dphmm.landmarks import (
    Adaptive,
    laplace_noise,
    lattice_noise,
    planar_laplace,
    planar_lattice,
    release_series,
    skip_scheme,
    uniform_scheme,
)
from dphmm.landmarks import noisy_series as module
from dphmm.landmarks.noisy_series import _build_polygon, round_to_steps
from dphmm.mechanisms import LatticeKNormMechanism
from dphmm.mechanisms.lattice import Spacing
from tests.sizes import choose_count

ALPHA = 1e-4


def record_decays(monkeypatch, noise, value, epsilon):
    """Return the decays per step of the requested noise, as rationals."""
    requested = []

    def record_and_return_zeros(decay, count, source):
        requested.extend([decay] * count)
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setitem(lattice_noise.__globals__, "sample_discrete_laplace", record_and_return_zeros)
    noise(np.asarray(value, dtype=float), epsilon)
    return requested


def test_noise_scale_accounts_for_rounding(monkeypatch):
    assert record_decays(monkeypatch, lattice_noise(20, 1), [71.4], 0.1) == [Fraction(1, 10) / 20]
    assert record_decays(monkeypatch, lattice_noise(20, 1), [71.4, 3.0, 2.0], 0.1) == [Fraction(1, 10) / 22] * 3
    assert record_decays(monkeypatch, lattice_noise(0.3, "0.2"), [1.0], 1 / 3) == [Fraction("0.3333333333333333") / 2]
    assert record_decays(monkeypatch, lattice_noise(20), [71.4], 1.0) == [Fraction(1, 2000)]
    assert record_decays(monkeypatch, lattice_noise("0.07"), [71.4], 1.0) == [Fraction(1, 7000)]


@settings(max_examples=choose_count(50, 20))
@given(st.integers(1, 4), st.integers(0, 10**6), st.sampled_from([Fraction(1), Fraction(1, 3), Fraction("0.1")]))
def test_neighbours_stay_within_rounded_sensitivity(size, seed, step):
    """Sample neighbours near rounding boundaries, with distances in rationals."""
    rng = np.random.default_rng(seed)
    halves = (rng.integers(-50, 50, size) + 0.5) * float(step)
    values = halves + rng.choice([0, -1e-12, 1e-12, 1e-9, 1e6], size)
    other = values + rng.choice([0, 1e-12, -1e-12, float(step), 5.3 * float(step)], size) * rng.choice([-1, 1], size)
    sensitivity = sum((abs(Fraction(x) - Fraction(y)) for x, y in zip(values, other, strict=True)), Fraction(0))
    grid = Spacing(step)
    apart = int(np.abs(round_to_steps(values, grid) - round_to_steps(other, grid)).sum())
    assert apart <= math.ceil(sensitivity / step) + size - 1 or sensitivity == 0
    assert (sensitivity > 0) or apart == 0


def test_rounded_sensitivity_is_tight():
    """Rounding can move two close numbers one step apart."""
    grid = Spacing(1)
    first, second = np.array([0.49, 0.49]), np.array([0.51, 0.51])
    assert np.abs(round_to_steps(first, grid) - round_to_steps(second, grid)).sum() == math.ceil(0.04) + 2 - 1


def test_rounding_is_half_up_and_exact_for_large_values():
    grid = Spacing(1)
    assert round_to_steps(np.array([0.5, 1.5, -0.5, -1.5]), grid).tolist() == [1, 2, 0, -1]
    assert round_to_steps(np.array([0.49999999999999994]), grid).tolist() == [0]  # adding one half gives one in floats
    assert round_to_steps(np.array([2.0**52 - 0.5]), grid).tolist() == [2**52]


@pytest.mark.slow
def test_noise_is_discrete_laplace_of_step_scale():
    """Chi-squared test, alpha 1e-4, 6,000 values, seed 2. Half the scale must fail."""
    size = 6_000
    budget = uniform_scheme(range(size), range(3), 2.0)  # 1/2 for each
    released = release_series(np.full(size, 7.0), budget, lattice_noise(3, 1, rng=2))
    assert released.exact
    seen = released.values.ravel() - 7
    assert (seen % 1 == 0).all()
    for scale, holds in ((6.0, True), (3.0, False)):
        values = np.arange(-12, 13)
        q = math.exp(-1 / scale)
        chance = (1 - q) / (1 + q) * q ** np.abs(values)
        counted = np.array([(seen == value).sum() for value in values])
        counted, chance = np.append(counted, size - counted.sum()), np.append(chance, 1 - chance.sum())
        assert (stats.chisquare(counted, chance * size).pvalue > ALPHA) == holds


@pytest.mark.parametrize("radius", [Fraction(15, 10), Fraction(5), Fraction(2014143, 10000), Fraction(10**8)], ids=str)
def test_polygon_contains_disc(radius):
    """Every side is at least the radius away, in integers. The polygon is tight."""
    corners = np.rint(SensitivityHull(_build_polygon(radius)).vertices).astype(np.int64).tolist()
    order = sorted(corners, key=lambda corner: math.atan2(corner[1], corner[0]))

    def compute_side_distances():
        for (a, b), (c, d) in zip(order, [*order[1:], order[0]], strict=True):
            yield Fraction((a * d - b * c) ** 2, (c - a) ** 2 + (d - b) ** 2)

    assert min(compute_side_distances()) >= radius**2
    assert max(a * a + b * b for a, b in order) <= (1.005 * radius + 3) ** 2
    assert min(compute_side_distances()) < (radius + 3) ** 2


def compute_worst_exponent(unit, radius, stretch):
    """Compute the largest exact exponent at epsilon 1 for places at a given distance.

    The places are rounded to unit steps.
    """
    rng, grid = np.random.default_rng(0), Spacing(1)
    mechanism = LatticeKNormMechanism(SensitivityHull(_build_polygon(radius)), 1)
    worst = Fraction(0)
    for angle in np.linspace(0, np.pi, 150):
        place = rng.choice([0.5, 0.4999, 0.123], 2)
        other = place + unit * stretch * np.array([np.cos(angle), np.sin(angle)])
        worst = max(worst, mechanism.exponent(round_to_steps(place, grid), round_to_steps(other, grid)))
    return worst


@pytest.mark.parametrize("unit", [1, 7, 200])
def test_places_within_unit_keep_epsilon(unit):
    for stretch in (0.999999, 0.5, 0.01, 2.5, 10):
        assert compute_worst_exponent(unit, unit + module._SQRT_2_BOUND, stretch) <= max(stretch, 1)


def test_polygon_without_margin_exceeds_epsilon():
    """Rounding moves places apart. The polygon must be larger by that distance."""
    assert compute_worst_exponent(7, Fraction(7), 0.999999) > 1


@pytest.mark.slow
def test_planar_noise_has_error_of_its_polygon():
    """Mean of 3,000 squared distances within five standard errors, seed 4.

    Noise for half the budget fails.
    """
    size = 3_000
    places = np.random.default_rng(0).normal(0, 5, (size, 2))
    budget = uniform_scheme(range(size), range(3), 2.0)  # 1/2 for each
    out = release_series(places, budget, planar_lattice(0.2, rng=4))
    assert out.exact
    np.testing.assert_array_equal(out.values, np.rint(out.values * 1000) / 1000)
    squares = ((out.values - places) ** 2).sum(axis=1)
    hull, error = SensitivityHull(_build_polygon(200 + module._SQRT_2_BOUND)), squares.std() / math.sqrt(size)
    for epsilon, holds in ((0.5, True), (0.25, False)):
        expected = LatticeKNormMechanism(hull, Fraction(epsilon), "0.001").squared_error
        assert (abs(squares.mean() - expected) < 5 * error) == holds
    assert math.sqrt(squares.mean()) == pytest.approx(math.sqrt(6) * 0.2 / 0.5, rel=0.05)  # the error of planar Laplace


def test_releases_state_whether_noise_is_exact():
    walk = np.cumsum(np.random.default_rng(0).normal(0, 1, (30, 2)), axis=0)
    for noise, exact in (
        (lattice_noise(1), True),
        (planar_lattice(1), True),
        (laplace_noise(1), False),
        (planar_laplace(1), False),
    ):
        assert noise.exact == exact
        assert release_series(walk, skip_scheme(range(30), [3], 1.0), noise).exact == exact
        scheme = Adaptive(range(30), [3], 1.0, sensitivity=1.0, rate=0.5, rng=0)
        assert release_series(walk, scheme, noise).exact == exact
    assert not release_series(walk, skip_scheme(range(30), [3], 1.0), lambda value, epsilon: value).exact
    scheme = Adaptive([1, 2], [], 1.0, sensitivity=1.0, rate=1e-9, min_rate=1e-9, rng=0)
    assert scheme.step(lambda share: lattice_noise(1)([0.0], share), exact=True).exact
    assert scheme.step(lambda share: [0.0]).exact  # repeated value


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: lattice_noise(0), BudgetError, r"sensitivity .*\b0\b"),
        (lambda: lattice_noise(math.nan), BudgetError, "sensitivity .*nan"),
        (lambda: lattice_noise(1, 0), InvalidInputError, r"spacing .*\b0\b"),
        (lambda: lattice_noise(1, "much"), InvalidInputError, "spacing .*'?much"),
        (lambda: lattice_noise(1)([math.inf], 1.0), CoordinateError, "values must be finite"),
        (lambda: lattice_noise(1)([1e300], 1.0), CoordinateError, r"within 2\*\*52 steps"),
        (lambda: lattice_noise(1)([1.0], 0.0), BudgetError, r"epsilon must be in \[1e-30, 1e\+30\]"),
        (lambda: lattice_noise(1, "1e-9")([1.0], 1e-9), BudgetError, "64 bits"),
        (lambda: planar_lattice(0), BudgetError, r"unit .*\b0\b"),
        (lambda: planar_lattice(1, -1), InvalidInputError, r"spacing .*-1\b"),
        (lambda: planar_lattice(1, "1e-9"), InvalidInputError, "larger spacing"),
        (lambda: planar_lattice(1)([1.0], 1.0), CoordinateError, "two coordinates"),
        (lambda: planar_lattice(1)([1.0, math.nan], 1.0), CoordinateError, "values must be finite"),
        (lambda: planar_lattice(100)([1.0, 1.0], 1e-9), BudgetError, "64 bits"),
        (
            lambda: release_series([["a"]], skip_scheme([1], [], 1.0), lattice_noise(1)),
            CoordinateError,
            "must be an array of numbers",
        ),
        (lambda: release_series([[[1.0]]], skip_scheme([1], [], 1.0), lattice_noise(1)), CoordinateError, "shape"),
        (lambda: release_series([[math.nan]], skip_scheme([1], [], 1.0), lattice_noise(1)), CoordinateError, "finite"),
    ],
)
def test_invalid_noise_arguments_raise_in_one_line(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert isinstance(caught.value, DphmmError)
    assert "\n" not in str(caught.value)
