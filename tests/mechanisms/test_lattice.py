"""The lattice mechanism samples exactly its stated distribution and keeps the guarantee."""

from __future__ import annotations

import os
import sys
from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import sqrt
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import stats

from dphmm import compilation
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.mechanisms import lattice, lattice_noise
from dphmm.mechanisms.exact_sampling import RandomBits
from dphmm.mechanisms.inversion_sampling import Thresholds
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.random import RandomSource
from tests.mechanisms.cells import build_fan
from tests.sizes import choose_count, mark_slow

F = np.array([(1, 0), (2, 1), (3, 0), (0, 1), (4, 2), (1, 2)])
EDGES = [(1, 2), (3, 4), (3, 5), (4, 5)]
RUNNING_EXAMPLE = SensitivityHull([F[i] - F[j] for i, j in EDGES])
SEGMENT = SensitivityHull([[6, 4]])
POINT = SensitivityHull(np.zeros((0, 2), dtype=np.int64))


def sample_hull(seed: int) -> SensitivityHull:
    return SensitivityHull(np.random.default_rng(seed).integers(-9, 10, (4, 2)))


HULLS = {
    "running example": (RUNNING_EXAMPLE, 1),
    "random": (sample_hull(1), Fraction(3, 2)),
    "long thin cones": (SensitivityHull([[31, 30], [1, 1], [2, 1]]), 1),
    "segment": (SEGMENT, 0.3),
}

# -- the distribution ------------------------------------------------------------------------------------------------

ALPHA = 1e-4
# Draws per chi-squared test. With DPHMM_LATTICE_DRAWS=1000000 the full test takes about two minutes.
DRAWS = int(os.environ.get("DPHMM_LATTICE_DRAWS", choose_count(100_000, 50_000)))

# Critical values at ALPHA. The degrees of freedom are the numbers of cells below.
LARGEST_STATISTIC = {"running example": 283.06, "random": 283.06, "long thin cones": 283.06, "segment": 109.50}


def enumerate_distribution(hull: SensitivityHull, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Return lattice points and probabilities from the facet norm in a large box.

    The box excludes less than 1e-9 of the mass.
    """
    reach = int(np.abs(hull.vertices).max() * (26 / epsilon)) + 2
    axis = np.arange(-reach, reach + 1)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = np.exp(-epsilon * hull.norm(grid))
    kept = weights > 0
    return grid[kept], weights[kept] / weights.sum()


def compute_statistic(draws: np.ndarray, hull: SensitivityHull, epsilon: float, cells: int) -> float:
    """Compute the chi-squared statistic of the ``cells`` most probable outputs and the rest."""
    points, probabilities = enumerate_distribution(hull, epsilon)
    order = np.argsort(-probabilities, kind="stable")[:cells]
    rank = {tuple(p): i for i, p in enumerate(points[order].tolist())}
    seen = np.zeros(cells + 1)
    for z in map(tuple, draws.tolist()):
        seen[rank.get(z, cells)] += 1
    expected = np.append(probabilities[order], 1 - probabilities[order].sum()) * len(draws)
    assert expected.min() >= 5
    return float(((seen - expected) ** 2 / expected).sum())


@pytest.fixture(params=["by tables", "one by one"])
def sample_draws(request, monkeypatch):
    """Sample around the origin in two ways, seed 11.

    By tables 100,000 draws, half of them in the fast tests; one by one 30,000.
    """
    many = request.param == "by tables"
    monkeypatch.setattr(lattice_noise, "_MIN_TABLE_DRAWS", 0 if many else 10**9)
    return lambda mechanism: mechanism.sample([0, 0], rng=11, size=DRAWS if many else max(DRAWS * 3 // 10, 30_000))


@pytest.mark.slow
@pytest.mark.parametrize("name", HULLS)
def test_draws_match_enumerated_distribution(name, sample_draws):
    """Chi-squared test, alpha 1e-4, seed 11, 200 degrees of freedom (segment: 60)."""
    hull, epsilon = HULLS[name]
    cells = 60 if name == "segment" else 200
    assert LARGEST_STATISTIC[name] == pytest.approx(stats.chi2.isf(ALPHA, cells), abs=0.01)
    draws = sample_draws(LatticeKNormMechanism(hull, epsilon))
    assert compute_statistic(draws, hull, float(epsilon), cells) < LARGEST_STATISTIC[name]


def test_cone_closed_on_both_sides_fails_test(sample_draws):
    """A broken variant: one edge includes the end ray of its neighbour. Same draws and seed."""
    hull, epsilon = HULLS["running example"]
    mechanism = LatticeKNormMechanism(hull, epsilon)
    rates_of = mechanism._noise._rates
    mechanism._noise._rates = lambda which: (rates_of(which)[0], rates_of(which)[1] + (which == 1))
    assert compute_statistic(sample_draws(mechanism), hull, float(epsilon), 200) > LARGEST_STATISTIC["running example"]


def test_table_that_is_wrong_by_2_percent_fails_test(sample_draws):
    """The threshold between two edges is off by 2 % of all draws. Same draws and seed."""
    hull, epsilon = HULLS["random"]
    mechanism = LatticeKNormMechanism(hull, epsilon)
    noise = mechanism._noise
    noise._exact._table[1] += np.uint32(2**32 // 50)
    noise.__dict__["_exact"] = Thresholds(noise._exact._digits, noise._exact._table, noise._exact._size)
    noise._rough[1] += 2**64 // 50
    assert compute_statistic(sample_draws(mechanism), hull, float(epsilon), 200) > LARGEST_STATISTIC["random"]


COPRIME = SensitivityHull([[200, 3], [-81, 199], [141, 143], [199, 80]])
GRID = SensitivityHull([[340, 0], [0, 340], [340, 340], [-340, 340], [680, 0]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hull", "epsilon"), [mark_slow(COPRIME, 5), (COPRIME, 20), (GRID, 20)], ids=["coprime 5", "coprime 20", "grid 20"]
)
def test_fine_lattice_draws_match_distribution(hull, epsilon):
    """Chi-squared test over residues modulo 7 and rings, 196 parts.

    Alpha 1e-4, 200,000 draws, seed 12.
    """
    points, probabilities = enumerate_distribution(hull, epsilon)
    lengths = np.abs(points).sum(axis=1)
    rings = np.searchsorted(np.cumsum(np.bincount(lengths, probabilities)), [0.25, 0.5, 0.75])

    def classify_outputs(z):
        return (z[:, 0] % 7 * 7 + z[:, 1] % 7) * 4 + np.searchsorted(rings, np.abs(z).sum(axis=1))

    def compute_p_value(budget):
        draws = LatticeKNormMechanism(hull, budget).sample([0, 0], rng=12, size=200_000)
        return stats.chisquare(np.bincount(classify_outputs(draws), minlength=196), expected).pvalue

    expected = np.bincount(classify_outputs(points), probabilities, minlength=196) * 200_000
    assert compute_p_value(epsilon) > ALPHA
    assert compute_p_value(epsilon * Fraction(51, 50)) < ALPHA, "noise that is 2 % too small fails the test"


def test_draws_do_not_depend_on_rounding_of_edge_weights():
    """Perturb the float sums by far more than their error. Decimals settle open cases."""
    for hull, epsilon in (*HULLS.values(), (COPRIME, 20), (COPRIME, Fraction(1, 1000))):
        plain, rough = (LatticeKNormMechanism(hull, epsilon) for _ in range(2))
        exact = [int(plain._noise._exact._digits(place, 64)) for place in range(2 * len(plain._sum.edges))]
        error = max(abs(a - b) for a, b in zip(plain._noise._rough, exact, strict=True))
        assert error < lattice_noise._WEIGHT_ERROR // 1000
        steps = (np.random.default_rng(1).choice([-1, 1], len(exact)) * (lattice_noise._WEIGHT_ERROR // 10)).tolist()
        rough._noise._rough[:] = [a + b for a, b in zip(plain._noise._rough, steps, strict=True)]
        first, other = (
            [mechanism.sample([0, 0], rng=seed).tolist() for seed in range(50)] for mechanism in (plain, rough)
        )
        assert first == other


def test_word_undecided_by_floats_is_settled_by_decimals(monkeypatch):
    mechanism = LatticeKNormMechanism(*HULLS["random"])
    noise, calls = mechanism._noise, []
    settled = Thresholds.resolve_sample
    monkeypatch.setattr(Thresholds, "resolve_sample", lambda *arguments: calls.append(arguments) or settled(*arguments))
    for place, threshold in enumerate(noise._exact._digits(k, 64) for k in range(6)):
        for step in (-5, -1, 1, 5):
            word = threshold + step
            stream = iter([word >> 2 << 2, (word & 3) << 2] + [0] * 100)
            bits = RandomBits(
                RandomSource(lambda n, s=stream: b"".join(next(s).to_bytes(8, "little") for _ in range(n // 8)))
            )
            assert noise._sample_signed_edge(bits) == place + (step > 0)
    assert len(calls) == 24


@pytest.mark.parametrize("count", [1, 299, 300, 301])
def test_blocks_of_draws_fill_every_row(count, monkeypatch):
    rows = []
    monkeypatch.setattr(lattice_noise, "_DRAW_BLOCK", 100)
    monkeypatch.setattr(lattice_noise, "_MIN_TABLE_DRAWS", 0)
    monkeypatch.setattr(lattice_noise.LatticeNoise, "_fill", lambda _noise, out, _source: rows.append(len(out)))
    LatticeKNormMechanism(RUNNING_EXAMPLE, 1).sample([0, 0], rng=1, size=count)
    assert sum(rows) == count


def test_running_example_has_published_probabilities():
    mechanism = LatticeKNormMechanism(RUNNING_EXAMPLE, 1)
    for z, wanted in [((0, 0), 0.04482), ((1, 0), 0.03212), ((-1, 0), 0.03212), ((4, 1), 0.01649), ((-4, -1), 0.01649)]:
        assert float(mechanism.probability(z, (0, 0))) == pytest.approx(wanted, abs=5e-6)


@pytest.mark.parametrize("name", HULLS)
def test_probabilities_match_enumeration_and_sum_to_one(name):
    hull, epsilon = HULLS[name]
    mechanism = LatticeKNormMechanism(hull, epsilon)
    points, probabilities = enumerate_distribution(hull, float(epsilon))
    densities = np.exp(mechanism.log_density(points, [0, 0]))
    np.testing.assert_allclose(densities, probabilities, rtol=1e-8, atol=1e-300)
    assert densities.sum() == pytest.approx(1, abs=1e-8)
    squared = float((probabilities * (points**2).sum(axis=1)).sum())
    assert mechanism.squared_error == pytest.approx(squared, rel=1e-6)


@pytest.mark.parametrize("epsilon", ["1e-6", "0.5", "1", "3", "30"])
def test_normalizer_and_error_on_a_line_match_closed_forms(epsilon):
    mechanism = LatticeKNormMechanism(SensitivityHull([[1]]), epsilon)
    with mpmath.workdps(40):
        half = mpmath.mpf(epsilon) / 2
        assert mechanism.log_normaliser == pytest.approx(float(mpmath.log(mpmath.coth(half))), rel=1e-13)
        assert mechanism.squared_error == pytest.approx(float(1 / (2 * mpmath.sinh(half) ** 2)), rel=1e-13)


@pytest.mark.parametrize("epsilon", [Fraction(1, 100), 1, 20], ids=str)
def test_probabilities_match_mpmath_intervals(epsilon):
    """Compare interval weights of parallelograms with the decimals of the sails."""
    mechanism = LatticeKNormMechanism(RUNNING_EXAMPLE, epsilon)
    iv, kept = mpmath.iv, mpmath.iv.dps
    iv.dps = 45
    try:
        rate = iv.mpf(Fraction(epsilon).numerator) / Fraction(epsilon).denominator
        cells = [
            (norm, cone.det)
            for cone in build_fan(list(map(tuple, mechanism._tips.tolist())))
            for _, norm in cone.cells()
        ]
        total = sum((iv.exp(-rate * s / d) for s, d in cells), iv.mpf(0)) / (1 - iv.exp(-rate)) ** 2
        for z in product(range(-6, 7), repeat=2):
            exponent = mechanism.exponent(z, (0, 0))
            inside = iv.exp(-iv.mpf(exponent.numerator) / exponent.denominator) / total
            digits = iv.mpf(str(mechanism.probability(z, (0, 0), digits=30)))
            error = abs(digits / inside - 1)
            assert error.b < mpmath.mpf("1e-30")
    finally:
        iv.dps = kept


# -- the guarantee -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [mark_slow("0.01"), 1, mark_slow(20)])
def test_log_ratio_on_edges_is_at_most_epsilon_for_every_output(epsilon):
    """Check rational log ratios of all outputs within 15 steps. Some output attains epsilon."""
    mechanism = LatticeKNormMechanism(RUNNING_EXAMPLE, epsilon)
    for i, j in EDGES:
        ratios = []
        for z in product(range(-15, 16), repeat=2):
            towards, away = mechanism.exponent(z, F[i]), mechanism.exponent(z, F[j])
            assert towards is not None
            assert away is not None
            ratios.append(abs(towards - away))
        assert max(ratios) <= Fraction(epsilon)
        assert max(ratios) == mechanism.exponent(F[i], F[j])


def test_edge_states_in_segment_share_every_output():
    """Hull of (3, 2) and (6, 4): the outputs are all multiples of (3, 2), not only of (6, 4)."""
    mechanism = LatticeKNormMechanism(SensitivityHull([[3, 2], [6, 4]]), 1)
    assert mechanism.exponent((3, 2), (0, 0)) == Fraction(1, 2)
    assert mechanism.exponent((3, 1), (0, 0)) is None
    for step in range(-9, 10):
        z = (3 * step, 2 * step)
        for x in [(3, 2), (6, 4)]:
            assert abs(mechanism.exponent(z, (0, 0)) - mechanism.exponent(z, x)) <= 1
    drawn = mechanism.sample([1, 1], rng=3, size=2000) - 1
    assert (2 * drawn[:, 0] == 3 * drawn[:, 1]).all()
    assert {tuple(z) for z in drawn.tolist()} >= {(3 * k, 2 * k) for k in range(-4, 5)}


def test_point_hull_releases_exact_value():
    mechanism = LatticeKNormMechanism(POINT, 1)
    assert mechanism.sample([[3, 4], [5, 6]], size=2).tolist() == [[[3, 4], [5, 6]]] * 2
    assert mechanism.log_density([3, 4], [[3, 4], [5, 6]]).tolist() == [0, -np.inf]
    assert mechanism.probability([3, 4], [3, 4]) == 1
    assert mechanism.squared_error == 0


# -- no floats in the sampling path ------------------------------------------------------------------------------------


class FloatSeenError(AssertionError):
    """A floating-point number among the values of a traced function."""


# These functions use floats for cases that rounding cannot change. The tests above show that draws do not change.
FILTERS = {
    "_rough",
    "log_masses",
    "log_total",
    "_get_sums",
    "_sum_line",
    "_sum_edges",
    "_numbers",
    "_compute_log1mexp",
    "_compute_mean_and_variance",
}


def refuse_floats(value: object) -> None:
    if isinstance(value, float | np.floating) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        raise FloatSeenError(repr(value))
    if isinstance(value, tuple | list):
        for entry in value[:4]:
            refuse_floats(entry)


def run_watched(call):
    """Run a call and inspect all locals and return values of the package's functions."""
    package = str(Path(lattice.__file__).parents[1])

    def trace(frame, event, argument):
        name, path = frame.f_code.co_name, frame.f_code.co_filename
        if not path.startswith((package, __file__)) or name in FILTERS or path == compilation.__file__:
            return None
        for value in (*frame.f_locals.values(), argument if event == "return" else None):
            refuse_floats(value)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("hull", "epsilon"),
    [
        (RUNNING_EXAMPLE, Fraction(1, 3)),
        (SEGMENT, Fraction(1, 10)),
        (POINT, Fraction(1)),
        (SensitivityHull([[2**28 - 57, 1001], [3, 2**28 - 5]]), Fraction(10**20 + 39, 10**20)),
    ],
    ids=["plane", "segment", "point", "beyond doubles"],
)
def test_sampling_path_uses_no_float(hull, epsilon, monkeypatch):
    mechanism = LatticeKNormMechanism(hull, epsilon)
    monkeypatch.setattr(RandomSource, "sample_uniform", None)
    seen = run_watched(lambda: mechanism.sample([3, 4], size=20))
    assert seen.dtype == np.int64


def test_float_in_sampler_is_detected():
    """A broken variant: a sampler that rounds its cell in floats."""

    def sample_wrongly(bits):
        share = bits.sample_below(1000) / 1000
        return round(4 * share)

    bits = RandomBits(RandomSource(os.urandom))
    with pytest.raises(FloatSeenError):
        run_watched(lambda: sample_wrongly(bits))


@pytest.mark.parametrize("size", [2**28, 2**33])
def test_epsilon_and_hull_beyond_float_precision_are_exact(size):
    """As a float this epsilon is 1.

    In a parallelogram the norm is the sum of the two coordinates along its corners.
    """
    v = (size - 57, 1001)
    w = (3, size - 5)
    z = (2**40 + 1, 2**39 - 7)
    mechanism = LatticeKNormMechanism(SensitivityHull([v, w]), Fraction(10**20 + 39, 10**20))
    assert float(mechanism.epsilon) == 1.0
    exponent = mechanism.exponent(z, (0, 0))
    det = v[0] * w[1] - v[1] * w[0]
    assert exponent / mechanism.epsilon == Fraction(z[0] * w[1] - z[1] * w[0] + v[0] * z[1] - v[1] * z[0], det)
    assert exponent != Fraction(float(exponent))
    np.testing.assert_allclose(mechanism.privacy_loss(z, (0, 0)), float(exponent), rtol=4 * np.finfo(float).eps)


def test_losses_are_exact_where_products_of_coordinates_exceed_doubles():
    """The corners have determinant -1, so the norm of ``a u + b v`` is ``|a| + |b|``."""
    u, v = np.array([2**27 + 1, 2**27]), np.array([2**27, 2**27 - 1])
    mechanism = LatticeKNormMechanism(SensitivityHull([u, v]), 1)
    counts = np.array([(1, 0), (0, 1), (2, -1), (1000, -999), (-12_345, 12_346), (2**20, 1 - 2**20)])
    points = counts @ np.array([u, v])
    assert mechanism.privacy_loss(points, [0, 0]).tolist() == np.abs(counts).sum(axis=1).tolist()
    assert mechanism.planar_law(float(np.abs(points).max())) is None


# -- the public interface ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "wanted"), [(0.3, "3/10"), ("0.3", "3/10"), (2, "2"), (Fraction(2, 7), "2/7")])
def test_epsilon_is_read_as_decimal(epsilon, wanted):
    assert LatticeKNormMechanism(RUNNING_EXAMPLE, epsilon).epsilon == Fraction(wanted)
    assert LatticeKNormMechanism(RUNNING_EXAMPLE, Decimal("0.3")).epsilon == Fraction(3, 10)


def test_large_epsilon_samples_quickly():
    for epsilon in (2000, 10**9, 1e30):
        mechanism = LatticeKNormMechanism(SensitivityHull([[3400, 1], [7, 6801]]), epsilon)
        assert np.abs(mechanism.sample([3, 4]) - [3, 4]).max() < 300
        assert mechanism.sample([3, 4], size=2000).shape == (2000, 2)
    assert mechanism.squared_error == 0


@pytest.mark.parametrize("epsilon", [0, -1, float("inf"), float("nan"), "pi", mpmath.pi, None, 1j, "1e-40"])
def test_invalid_epsilon_raises(epsilon):
    with pytest.raises(BudgetError, match="epsilon "):
        LatticeKNormMechanism(RUNNING_EXAMPLE, epsilon)


def test_float_hull_in_kilometres_becomes_integers_or_raises():
    kilometres = SensitivityHull([[0.34, 0.0], [0.17, 0.51]])
    with pytest.raises(CoordinateError, match="from_hull_in_units"):
        LatticeKNormMechanism(kilometres, 1, spacing=0.001)
    mechanism = LatticeKNormMechanism.from_hull_in_units(kilometres, 1, spacing=0.001)
    assert mechanism.hull.norm_form.exact is not None
    np.testing.assert_array_equal(mechanism.hull.vertices, np.rint(kilometres.vertices * 1000))
    with pytest.raises(
        CoordinateError, match=r"differences must lie on the lattice with spacing 1/10, got \(0\.34, 0\.0\)"
    ):
        LatticeKNormMechanism.from_hull_in_units(kilometres, 1, spacing=0.1)


def test_rational_hull_in_kilometres_becomes_integers():
    hull = SensitivityHull(np.array([[Fraction(17, 50), Fraction(0)], [Fraction(1, 8), Fraction(1, 2)]], dtype=object))
    mechanism = LatticeKNormMechanism.from_hull_in_units(hull, 1, spacing="0.001")
    assert mechanism.hull.vertices.tolist() == (hull.vertices * 1000).tolist()


def test_releases_and_errors_use_unit_of_points():
    metres = LatticeKNormMechanism(SensitivityHull([[340, 0], [170, 510]]), 1)
    kilometres = LatticeKNormMechanism(SensitivityHull([[340, 0], [170, 510]]), 1, spacing=0.001)
    in_metres = metres.sample([340, 170], rng=5, size=20)
    in_kilometres = kilometres.sample([0.34, 0.17], rng=5, size=20)
    np.testing.assert_array_equal(in_kilometres, in_metres / 1000)
    assert kilometres.squared_error == pytest.approx(metres.squared_error * 1e-6, rel=1e-12)
    np.testing.assert_array_equal(
        kilometres.log_density(in_kilometres, [0.34, 0.17]), metres.log_density(in_metres, [340, 170])
    )


def test_common_divisor_of_hull_does_not_change_distribution():
    wide = LatticeKNormMechanism(SensitivityHull([[30, 0], [10, 20]]), 2)
    assert wide.decay == Fraction(1, 5)
    grid = np.array(list(product(range(-400, 401), repeat=2)))
    weights = np.exp(-2 * wide.hull.norm(grid))
    np.testing.assert_allclose(np.exp(wide.log_density(grid, [0, 0])), weights / weights.sum(), rtol=1e-9)


@pytest.mark.parametrize("name", HULLS)
def test_fine_lattice_has_error_of_continuous_mechanism(name):
    hull, _ = HULLS[name]
    fine = SensitivityHull(np.rint(hull.vertices).astype(np.int64) * 1000)
    assert LatticeKNormMechanism(fine, 1).squared_error == pytest.approx(fine.squared_error, rel=1e-5)


def test_squared_error_matches_draws():
    """Mean of 50,000 squared lengths, seed 8, within five standard errors."""
    mechanism = LatticeKNormMechanism(sample_hull(1), 1)
    lengths = (mechanism.sample([0, 0], rng=8, size=50_000) ** 2).sum(axis=1)
    assert abs(lengths.mean() - mechanism.squared_error) < 5 * lengths.std() / sqrt(50_000)


@pytest.mark.parametrize("big", [1, 2**27])
def test_log_densities_of_many_states_are_accurate(big):
    """Compare with 40-digit decimals, relative 1e-12, for a thin hull and distant states."""
    mechanism = LatticeKNormMechanism(SensitivityHull([[31 * big, 30 * big - 1], [1, 1]]), Fraction(1, 7))
    rng = np.random.default_rng(4)
    states = rng.integers(-(2**40), 2**40, (200, 2))
    log_densities = mechanism.log_density([5, -3], states)
    for x, value in zip(states, log_densities, strict=True):
        exact = -mechanism.exponent([5, -3], x) - Fraction(mechanism.normaliser(40).ln())
        assert value == pytest.approx(float(exact), rel=1e-12)


def test_shapes_match_points():
    mechanism = LatticeKNormMechanism(RUNNING_EXAMPLE, 1)
    assert mechanism.sample([0, 0]).shape == (2,)
    assert mechanism.sample([0, 0], size=0).shape == (0, 2)
    assert mechanism.sample(F).shape == (6, 2)
    assert mechanism.sample(F, size=3).shape == (3, 6, 2)
    assert mechanism.log_density([0, 0], [1, 1]).shape == ()
    assert mechanism.log_density([0, 0], F).shape == (6,)
    assert mechanism.log_density(F, F[::-1]).shape == (6,)
    assert mechanism.privacy_loss(F, [0, 0]).shape == (6,)


def test_one_and_three_dimensional_measurements():
    line = LatticeKNormMechanism(SensitivityHull([[3], [-5]]), 1)
    assert line.exponent([7], [2]) == 1
    assert line.sample([7], rng=1, size=4).shape == (4, 1)
    plane = LatticeKNormMechanism(SensitivityHull([[2, 0, 2], [0, 3, 3]]), 1)
    assert plane.exponent([1, 3, 4], [0, 0, 0]) == Fraction(3, 2)
    assert plane.exponent([1, 3, 5], [0, 0, 0]) is None
    drawn = plane.sample([0, 0, 0], rng=2, size=500)
    assert (drawn[:, 0] + drawn[:, 1] == drawn[:, 2]).all()
    flat = LatticeKNormMechanism(SensitivityHull([[2, 0], [0, 3]]), 1)
    points, probabilities = enumerate_distribution(flat.hull, 1)
    squared = (probabilities * (points**2 @ [1, 1] + points.sum(axis=1) ** 2)).sum()
    assert plane.squared_error == pytest.approx(float(squared), rel=1e-7)


def test_noise_of_skew_plane_stays_in_its_span():
    """Coordinates within the span may be much larger than the points, without overflow."""
    hull = SensitivityHull([[2**27 + 1, 3, 2**26], [5, 2**27 - 9, 77]])
    mechanism = LatticeKNormMechanism(hull, "0.001")
    assert mechanism.exponent(hull.vertices[0], [0, 0, 0]) == Fraction(1, 1000)
    drawn = mechanism.sample([1, 2, 3], rng=2, size=100)
    for z in drawn:
        assert 0 < mechanism.exponent(z, [1, 2, 3]) < 40
    np.testing.assert_allclose(mechanism.squared_error, hull.squared_error * 1e6, rtol=1e-6)


def test_three_dimensional_hull_raises():
    with pytest.raises(InvalidInputError, match="2 dimensions, got 3"):
        LatticeKNormMechanism(SensitivityHull(np.eye(3, dtype=np.int64)), 1)


def test_non_integer_hull_raises():
    for differences in ([[0.5, 1.0], [1.0, 0.0]], [[2.0**30, 0.0], [0.0, 1.0]]):
        with pytest.raises(CoordinateError, match="lattice steps"):
            LatticeKNormMechanism(SensitivityHull(differences), 1)


def test_invalid_points_sizes_and_digits_raise():
    mechanism = LatticeKNormMechanism(RUNNING_EXAMPLE, 1)
    with pytest.raises(CoordinateError, match=r"x must lie on the lattice with spacing 1, got \(0\.5, 0\.0\)"):
        mechanism.sample([0.5, 0])
    with pytest.raises(CoordinateError, match="shape"):
        mechanism.sample([0, 0, 0])
    with pytest.raises(CoordinateError, match="shape"):
        mechanism.log_density(3, [0, 0])
    with pytest.raises(InvalidInputError, match="size"):
        mechanism.sample([0, 0], size=-1)
    with pytest.raises(InvalidInputError, match="digits"):
        mechanism.probability([0, 0], [0, 0], digits=0)


def test_seed_is_reproducible_and_default_is_random():
    mechanism = LatticeKNormMechanism(RUNNING_EXAMPLE, 0.01)
    first, again = (mechanism.sample([0, 0], rng=6, size=5).tolist() for _ in range(2))
    assert first == again
    assert mechanism.sample([0, 0], size=5).tolist() != mechanism.sample([0, 0], size=5).tolist()
