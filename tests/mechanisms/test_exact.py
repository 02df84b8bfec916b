"""The exact samplers have exactly the distributions they state."""

from __future__ import annotations

import ast
import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dphmm.arrays import RandomSource, random_source
from dphmm.errors import BudgetError
from dphmm.mechanisms import exact, lattice_noise
from dphmm.mechanisms import inversion_sampling as thresholds
from dphmm.mechanisms.exact import RandomBits, cut_off_exp, discrete_laplace, geometric_exp, rational
from tests.sizes import fewer

ALPHA = 1e-4
DRAWS = fewer(60_000, 20_000)


def bits(seed: int) -> RandomBits:
    return RandomBits(random_source(seed))


def fits(draws: list[int], probability) -> float:
    """The p-value of a chi-squared test over the values that are expected at least 20 times, the rest pooled."""
    values, seen = np.unique(draws, return_counts=True)
    wanted = [x for x in range(-200, 201) if probability(x) * len(draws) >= 20]
    table = dict(zip(values.tolist(), seen.tolist(), strict=True))
    observed = np.array([table.get(x, 0) for x in wanted], dtype=float)
    expected = np.array([probability(x) for x in wanted]) * len(draws)
    observed = np.append(observed, len(draws) - observed.sum())
    expected = np.append(expected, len(draws) - expected.sum())
    return float(stats.chisquare(observed, expected).pvalue)


def laplace_probability(decay: float):
    q = math.exp(-decay)
    return lambda x: (1 - q) / (1 + q) * q ** abs(x)


@pytest.mark.parametrize(("num", "den"), [(1, 20), (1, 1), (3, 2), (11, 5)])
def test_discrete_laplace_has_its_distribution(num, den):
    """Chi-squared test, alpha 1e-4, 60 000 draws, every day 20 000, seed 2."""
    source = bits(2)
    draws = [discrete_laplace(num, den, source) for _ in range(DRAWS)]
    assert fits(draws, laplace_probability(num / den)) > ALPHA


def test_geometric_exp_has_its_distribution():
    """Chi-squared test, alpha 1e-4, 60 000 draws, seed 3."""
    source, q = bits(3), math.exp(-2 / 7)
    draws = [geometric_exp(2, 7, source) for _ in range(DRAWS)]
    assert fits(draws, lambda k: (1 - q) * q**k if k >= 0 else 0.0) > ALPHA


@pytest.mark.parametrize(("num", "den", "size"), [(2, 7, 5), (-2, 7, 5), (0, 1, 6), (9, 2, 3), (1, 1, 1)])
def test_a_count_cut_off_has_its_distribution(num, den, size):
    """Chi-squared test, alpha 1e-4, 20 000 draws, seed 4."""
    source = bits(4)
    draws = np.bincount([cut_off_exp(num, den, size, source) for _ in range(20_000)], minlength=size)
    weights = np.exp(-num / den * np.arange(size))
    assert len(draws) == size
    assert size == 1 or stats.chisquare(draws, weights / weights.sum() * 20_000).pvalue > ALPHA


def test_the_test_refuses_a_laplace_that_counts_zero_twice():
    """The broken twin: without the rejection of minus zero the distribution is another one."""
    source = bits(2)
    draws = [geometric_exp(1, 1, source) * (1 - 2 * source.bit()) for _ in range(DRAWS)]
    assert fits(draws, laplace_probability(1.0)) < ALPHA


def test_bernoulli_is_exact_to_the_last_word():
    """With 3-bit words every stream can be enumerated: the share of hits is num/den but for undecided streams."""
    for num, den in [(1, 3), (2, 5), (4, 8), (7, 7), (0, 4)]:
        hit = open_ = Fraction(0)
        for first in range(8):
            for second in range(8):
                source = RandomBits(RandomSource(lambda n: bytes(n)))
                source._words = iter([first, second])
                try:
                    hit += Fraction(int(_short_words(source, num, den)), 64)
                except StopIteration:
                    open_ += Fraction(1, 64)
        assert hit <= Fraction(num, den) <= hit + open_
        assert open_ <= Fraction(1, 64)


def _short_words(source, num, den):
    kept, exact._WORD_BITS = exact._WORD_BITS, 3
    try:
        return source.successes(num, den)
    finally:
        exact._WORD_BITS = kept


@pytest.mark.parametrize("bound", [1, 2, 7, 2**62, 2**70 + 3])
def test_below_stays_below_and_reaches_both_halves(bound):
    source = bits(5)
    draws = [source.below(bound) for _ in range(200)]
    assert min(draws) >= 0
    assert max(draws) < bound
    assert bound == 1 or min(draws) < bound / 2 <= max(draws)


def test_a_budget_means_what_was_written():
    assert rational(0.1) == Fraction(1, 10)
    assert rational("0.3") == Fraction(3, 10)
    assert rational(Fraction(2, 7)) == Fraction(2, 7)
    assert rational(np.float64(0.7)) == Fraction(7, 10)


@pytest.mark.parametrize("value", [0, -1, 0.0, float("nan"), float("inf"), "-0.5", "much", Fraction(-1, 2)])
def test_an_impossible_budget_is_refused(value):
    with pytest.raises(BudgetError, match="positive, finite"):
        rational(value)


def test_impossible_parameters_are_refused():
    source = bits(6)
    with pytest.raises(BudgetError, match="0/1"):
        discrete_laplace(0, 1, source)
    with pytest.raises(BudgetError, match="bound"):
        source.below(0)


def test_the_same_seed_gives_the_same_draws():
    assert [bits(9).word() for _ in range(3)] == [bits(9).word() for _ in range(3)]


@pytest.mark.parametrize("module", [exact, lattice_noise, thresholds], ids=lambda module: module.__name__)
def test_the_source_of_the_samplers_names_no_float(module):
    """No true division, no float constant, no ``float`` and no mathematical library.

    Apart are reading a budget, decimals enclosed from both sides, and doubles that settle only what is certain.
    """
    apart = {"decimal_context", "decimal_power", "decimal_exp", "whole_digits"}
    apart |= {
        "rational",
        "_read",
        "_rough",
        "threshold",
        "value",
        "whole_part",
        "_one_less_power",
        "_powers",
        "weights",
    }
    tree = ast.parse(inspect.getsource(module))
    samplers = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name not in apart]
    assert len(samplers) > 5
    for sampler in samplers:
        sampler.body = [node for node in sampler.body if getattr(node, "name", "") not in apart]
        for node in ast.walk(sampler):
            assert module is not exact or not isinstance(node, ast.Div), sampler.name  # elsewhere of fractions
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), sampler.name
            assert not (isinstance(node, ast.Name) and node.id in {"float", "math", "exp", "log"}), sampler.name
            assert not (isinstance(node, ast.Attribute) and node.attr in {"float64", "uniform", "exp", "random"})
