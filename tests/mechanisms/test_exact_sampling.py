"""Exact samplers have exactly their stated distributions."""

from __future__ import annotations

import ast
import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dphmm.errors import BudgetError
from dphmm.mechanisms import discrete_laplace, exact_sampling, lattice_noise
from dphmm.mechanisms import inversion_sampling as thresholds
from dphmm.mechanisms.discrete_laplace import sample_discrete_laplace
from dphmm.mechanisms.exact_sampling import RandomBits, parse_rational, sample_geometric, sample_truncated_geometric
from dphmm.random import RandomSource, as_random_source
from tests.sizes import choose_count

ALPHA = 1e-4
DRAWS = choose_count(60_000, 20_000)


def make_bits(seed: int) -> RandomBits:
    return RandomBits(as_random_source(seed))


def compute_p_value(draws: list[int], probability) -> float:
    """Run a chi-squared test on values expected at least 20 times. The rest is pooled."""
    values, seen = np.unique(draws, return_counts=True)
    wanted = [x for x in range(-200, 201) if probability(x) * len(draws) >= 20]
    table = dict(zip(values.tolist(), seen.tolist(), strict=True))
    observed = np.array([table.get(x, 0) for x in wanted], dtype=float)
    expected = np.array([probability(x) for x in wanted]) * len(draws)
    observed = np.append(observed, len(draws) - observed.sum())
    expected = np.append(expected, len(draws) - expected.sum())
    return float(stats.chisquare(observed, expected).pvalue)


def make_laplace_probability(decay: float):
    q = math.exp(-decay)
    return lambda x: (1 - q) / (1 + q) * q ** abs(x)


@pytest.mark.slow
@pytest.mark.parametrize("at_a_time", [5, DRAWS])
@pytest.mark.parametrize("decay", [Fraction(1, 20), Fraction(1), Fraction(3, 2), Fraction(11, 5)], ids=str)
def test_discrete_laplace_matches_its_distribution(decay, at_a_time):
    """Chi-squared test, alpha 1e-4, seed 2, in small and large batches.

    60,000 draws, 20,000 in the fast tests.
    """
    source = as_random_source(2)
    draws = [x for _ in range(DRAWS // at_a_time) for x in sample_discrete_laplace(decay, at_a_time, source).tolist()]
    assert compute_p_value(draws, make_laplace_probability(float(decay))) > ALPHA


def test_geometric_exp_matches_its_distribution():
    """Chi-squared test, alpha 1e-4, 60,000 draws, 20,000 in the fast tests, seed 3."""
    source, q = make_bits(3), math.exp(-2 / 7)
    draws = [sample_geometric(2, 7, source) for _ in range(DRAWS)]
    assert compute_p_value(draws, lambda k: (1 - q) * q**k if k >= 0 else 0.0) > ALPHA


@pytest.mark.parametrize(("num", "den", "size"), [(2, 7, 5), (-2, 7, 5), (0, 1, 6), (9, 2, 3), (1, 1, 1)])
def test_truncated_count_matches_its_distribution(num, den, size):
    """Chi-squared test, alpha 1e-4, 20,000 draws, seed 4."""
    source = make_bits(4)
    draws = np.bincount([sample_truncated_geometric(num, den, size, source) for _ in range(20_000)], minlength=size)
    weights = np.exp(-num / den * np.arange(size))
    assert len(draws) == size
    assert size == 1 or stats.chisquare(draws, weights / weights.sum() * 20_000).pvalue > ALPHA


def test_laplace_that_counts_zero_twice_fails_test():
    """A broken variant: without the rejection of minus zero the distribution differs."""
    source = make_bits(2)
    draws = [sample_geometric(1, 1, source) * (1 - 2 * (source.sample_word() & 1)) for _ in range(DRAWS)]
    assert compute_p_value(draws, make_laplace_probability(1.0)) < ALPHA


def test_bernoulli_is_exact_for_all_streams():
    """Enumerate all streams of 3-bit words.

    The share of successes is num/den, up to undecided streams.
    """
    for num, den in [(1, 3), (2, 5), (4, 8), (7, 7), (0, 4)]:
        hit = open_ = Fraction(0)
        for first in range(8):
            for second in range(8):
                source = RandomBits(RandomSource(lambda n: bytes(n)))
                source._words = iter([first, second])
                try:
                    hit += Fraction(int(_sample_with_short_words(source, num, den)), 64)
                except StopIteration:
                    open_ += Fraction(1, 64)
        assert hit <= Fraction(num, den) <= hit + open_
        assert open_ <= Fraction(1, 64)


def _sample_with_short_words(source, num, den):
    kept, exact_sampling._WORD_BITS = exact_sampling._WORD_BITS, 3
    try:
        return source.sample_num_successes(num, den)
    finally:
        exact_sampling._WORD_BITS = kept


@pytest.mark.parametrize("bound", [1, 2, 7, 2**62, 2**70 + 3])
def test_below_is_in_range_and_reaches_both_halves(bound):
    source = make_bits(5)
    draws = [source.sample_below(bound) for _ in range(200)]
    assert min(draws) >= 0
    assert max(draws) < bound
    assert bound == 1 or min(draws) < bound / 2 <= max(draws)


def test_epsilon_is_read_as_decimal():
    assert parse_rational(0.1) == Fraction(1, 10)
    assert parse_rational("0.3") == Fraction(3, 10)
    assert parse_rational(Fraction(2, 7)) == Fraction(2, 7)
    assert parse_rational(np.float64(0.7)) == Fraction(7, 10)
    assert parse_rational(np.int64(20)) == 20


@pytest.mark.parametrize(("power", "outside"), [(-30, "9.99999999999e-31"), (30, "1.00000000001e30")])
def test_bounds_of_epsilon_are_decimal_and_inclusive(power, outside):
    bound = Fraction(10) ** power
    assert [parse_rational(value) for value in (f"1e{power}", float(f"1e{power}"), bound)] == [bound] * 3
    with pytest.raises(BudgetError, match=rf"in \[1e-30, 1e\+30\], got '{outside}'"):
        parse_rational(outside)


@pytest.mark.parametrize(
    "value", [0, -1, 0.0, True, float("nan"), float("inf"), "-0.5", "much", Fraction(-1, 2)], ids=str
)
def test_invalid_epsilon_raises(value):
    with pytest.raises(BudgetError, match=r"must be in \[1e-30, 1e\+30\]"):
        parse_rational(value)


def test_invalid_parameters_raise():
    source = make_bits(6)
    with pytest.raises(BudgetError, match="0/1"):
        sample_geometric(0, 1, source)
    with pytest.raises(BudgetError, match="bound"):
        source.sample_below(0)


def test_seed_is_reproducible():
    assert [make_bits(9).sample_word() for _ in range(3)] == [make_bits(9).sample_word() for _ in range(3)]


@pytest.mark.parametrize(
    "module", [exact_sampling, lattice_noise, discrete_laplace, thresholds], ids=lambda module: module.__name__
)
def test_sampler_source_uses_no_float(module):
    """The source has no true division, float constant, ``float`` or mathematical library.

    Exceptions are reading a budget, decimals with two-sided bounds, and floats that settle only certain cases.
    """
    apart = {"make_decimal_context", "compute_exp", "compute_exp_of_negative", "count_integer_digits"}
    apart |= {
        "parse_rational",
        "_parse_uncached",
        "_rough",
        "compute_threshold",
        "compute_leading_bits",
        "_compute_exp_complement",
        "_compute_powers",
        "laplace_variance",
        "bound_laplace_noise",
    }
    tree = ast.parse(inspect.getsource(module))
    samplers = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name not in apart]
    assert len(samplers) > 3
    for sampler in samplers:
        sampler.body = [node for node in sampler.body if getattr(node, "name", "") not in apart]
        for node in ast.walk(sampler):
            assert module is not exact_sampling or not isinstance(node, ast.Div), (
                sampler.name
            )  # in the other modules, divisions are of fractions
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), sampler.name
            assert not (isinstance(node, ast.Name) and node.id in {"float", "math", "exp", "log"}), sampler.name
            assert not (
                isinstance(node, ast.Attribute)
                and node.attr in {"float64", "sample_uniform", "uniform", "exp", "random"}
            )
