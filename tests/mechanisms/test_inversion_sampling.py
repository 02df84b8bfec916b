"""Inversion sampling by thresholds is exact.

Tables are integer parts, and undecided words use more bits.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import chain, cycle, product, repeat

import mpmath
import numpy as np
import pytest
from scipy import stats

from dphmm.mechanisms import inversion_sampling as thresholds
from dphmm.mechanisms.exact_sampling import compute_exp_of_negative, make_decimal_context
from dphmm.mechanisms.inversion_sampling import CutOff, Geometric, Thresholds, build_choice_thresholds
from dphmm.random import RandomSource, as_random_source

ALPHA = 1e-4
RATES = [Fraction(1, 10**6), Fraction(3, 1000), Fraction(1, 7), Fraction(5), Fraction(200), Fraction(10**9)]


def compute_with_mpmath(exponent, place: int, size: int | None, bits: int) -> int:
    """Compute the integer part of ``2**bits (1 - q**(k + 1)) / (1 - q**n)`` with 600 digits."""
    with mpmath.workdps(600):
        rate = mpmath.mpf(exponent.numerator) / exponent.denominator
        whole = 1 if size is None else -mpmath.expm1(-rate * size)
        share = -mpmath.expm1(-rate * (place + 1)) / whole
        return min(int(mpmath.floor(share * 2**bits)), 2**bits - 1)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("size", [None, 2, 700])
def test_tables_are_integer_parts(rate, size):
    if size is None:
        rate = max(rate, Fraction(23, 1024))
    table = (
        thresholds._build_geometric_thresholds(rate)
        if size is None
        else thresholds._build_truncated_thresholds(rate, size)
    )
    assert table._table.dtype == np.uint32
    for place in {0, 1, 3, 5, 11, 77, len(table._table) - 1} & set(range(len(table._table))):
        assert int(table._table[place]) == compute_with_mpmath(rate, place, size, 32)
        assert table._digits(place, 96) == compute_with_mpmath(rate, place, size, 96)
    if size is None:
        assert table._table[-1] == 2**32 - 1
        for beyond, bits in ((3, 64), (5, 96)):
            place = len(table._table) + beyond
            assert table._digits(place, bits) == compute_with_mpmath(rate, place, None, bits)
    else:
        assert len(table._table) == size - 1


@pytest.mark.parametrize("bits", [1, 32, 96])
@pytest.mark.parametrize("distance", [Fraction(1, 10**60), Fraction(-1, 10**60), Fraction(1, 7)], ids=str)
@pytest.mark.parametrize("error", ["0.99", "-0.99"])
def test_integer_part_is_certain_for_every_error_within_the_bound(bits, distance, error):
    """The number has nearly the largest relative error that its digits allow."""
    exact = Fraction(1, 2) + distance

    def compute_value(digits):
        with localcontext(make_decimal_context(200)):
            return Decimal(exact.numerator) / exact.denominator * (1 + Decimal(error) * Decimal(10) ** -digits)

    assert thresholds.compute_leading_bits(compute_value, bits) == (exact.numerator << bits) // exact.denominator


@pytest.mark.parametrize(
    "exponent", [Fraction(1, 10**40), Fraction(3, 10**6), Fraction(1, 3), 5, 99, 1234, 10**5], ids=str
)
@pytest.mark.parametrize("digits", [3, 20, 80])
def test_one_minus_power_has_requested_digits(exponent, digits):
    power = thresholds._compute_exp_complement(Fraction(exponent), digits)
    with mpmath.workdps(400):
        exact = -mpmath.expm1(-mpmath.mpf(Fraction(exponent).numerator) / Fraction(exponent).denominator)
        assert abs(mpmath.mpf(str(power)) / exact - 1) < mpmath.mpf(10) ** -digits


@pytest.mark.parametrize(
    "rate", [Fraction(1, 10**6), Fraction(1, 7), Fraction(20), Fraction(177), Fraction(10**4)], ids=str
)
def test_power_errors_are_within_stated_bound(rate):
    powers, error = thresholds._compute_powers(rate, 40)
    with mpmath.workdps(200):
        for k, power in enumerate(powers):
            exact = mpmath.exp(-k * mpmath.mpf(rate.numerator) / rate.denominator) * 2**256
            assert abs(power - exact) <= min(4 * max(k, 1), error)


def test_tables_do_not_depend_on_precision_of_powers(monkeypatch):
    """With powers of lower precision some entries stay open, and decimals decide them."""
    expected = thresholds._build_truncated_thresholds(Fraction(1, 50), 300)._table
    monkeypatch.setattr(thresholds, "_POWER_BITS", 44)
    calls = []
    whole_part = thresholds.compute_leading_bits
    monkeypatch.setattr(
        thresholds, "compute_leading_bits", lambda *arguments: calls.append(1) or whole_part(*arguments)
    )
    assert thresholds._build_truncated_thresholds(Fraction(1, 50), 300)._table.tolist() == expected.tolist()
    assert 100 < len(calls) <= 299


# Thresholds with infinite and finite binary expansions, two of them equal.
THIRDS = (Fraction(1, 5), Fraction(1, 3), Fraction(1, 3), Fraction(1, 2), Fraction(2, 3))


def build_from_fractions(values) -> Thresholds:
    def compute_digits(place, bits):
        return (values[place].numerator << bits) // values[place].denominator

    return Thresholds(
        compute_digits, np.array([compute_digits(k, 32) for k in range(len(values))], dtype=np.uint32), len(values)
    )


@pytest.mark.slow
def test_every_word_is_settled_like_its_real_number():
    """All 6-bit words with all 8-bit continuations: a draw counts the thresholds reached."""
    table = build_from_fractions(THIRDS)
    for first, more in product(range(2**6), range(2**8)):
        low = Fraction(first * 2**8 + more, 2**14)
        reached = {sum(c <= u for c in THIRDS) for u in (low, low + Fraction(1, 2**15))}
        words = chain([bytes([0] * 7 + [more])], repeat(b"\x01" * 8))  # most significant byte last
        settled = table.resolve_sample(first, 6, RandomSource(lambda _, words=words: next(words)))
        if len(reached) == 1:
            assert {settled} == reached
        else:
            assert settled in reached


def test_words_on_thresholds_are_settled_and_others_looked_up():
    table = build_from_fractions(THIRDS)
    words = np.concatenate([table._table.astype(np.int64) + step for step in (-1, 0, 1)]).astype(np.uint32)
    more = cycle([b"\x00" * 7 + b"\x01", b"\xff" * 8])
    source = RandomSource(lambda n: words.tobytes() if n == words.nbytes else next(more))
    draws = table.draw(len(words), source).tolist()
    assert draws[:5] == [0, 1, 1, 3, 4]
    assert draws[10:] == [1, 3, 3, 4, 5]
    low, high = 0, 1  # continuations of a word equal to a threshold, alternating
    assert draws[5:10] == [low, 1 + 2 * high, 1, 4, 4]


def test_word_on_threshold_at_end_of_cell_is_settled():
    last = (1 << 32 - thresholds._CELL_BITS) - 1
    table = build_from_fractions([Fraction(2 * last + 1, 2**33)])
    more = cycle([b"\x00" * 7 + b"\x01", b"\xff" * 8])
    words = np.array([last - 1, last, last], dtype=np.uint32)
    source = RandomSource(lambda n: words.tobytes() if n == words.nbytes else next(more))
    assert table.draw(3, source).tolist() == [0, 0, 1]


def test_choice_has_its_weights_for_every_word():
    table = build_choice_thresholds(
        lambda digits: [make_decimal_context(digits).divide(1, 7), *[compute_exp_of_negative(Fraction(1), digits)] * 2],
        3,
    )
    with mpmath.workdps(50):
        parts = [mpmath.mpf(1) / 7, mpmath.exp(-1), mpmath.exp(-1)]
        bounds = [int(2**32 * sum(parts[: k + 1]) / sum(parts)) for k in range(2)]
    assert table._table.tolist() == bounds


def compute_geometric(rate: float, values) -> np.ndarray:
    return -math.expm1(-rate) * np.exp(-rate * np.asarray(values, dtype=float))


@pytest.mark.parametrize("rate", [Fraction(1, 40_000), Fraction(1, 100), Fraction(1, 9), Fraction(3)], ids=str)
def test_geometric_counts_match_their_distribution(rate):
    """Chi-squared tests on 50 equally probable parts and on the last digit.

    Alpha 1e-4, 100,000 draws, seed 5.
    """
    draws = Geometric(rate).draw(100_000, as_random_source(5))
    edges = np.unique(np.floor(-np.log1p(-np.arange(1, 50) / 50) / float(rate)).astype(int))
    seen = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=len(edges) + 1)
    below = -np.expm1(-float(rate) * edges)
    expected = np.diff([0, *below, 1]) * len(draws)
    kept = expected > 0
    assert stats.chisquare(seen[kept], expected[kept]).pvalue > ALPHA
    digit = np.bincount(draws % 8, minlength=8)
    weights = compute_geometric(float(rate), np.arange(8))
    assert stats.chisquare(digit, len(draws) * weights / weights.sum()).pvalue > ALPHA


@pytest.mark.parametrize(
    ("rate", "size"),
    [(Fraction(1, 20), 30), (Fraction(-1, 20), 30), (Fraction(0), 1000), (Fraction(1, 900), 3000), (Fraction(0), 3000)],
)
def test_truncated_counts_match_their_distribution(rate, size):
    """Chi-squared test on 30 runs of values. The broken variant counts backwards.

    Alpha 1e-4, 100,000 draws, seed 6.
    """
    values = np.arange(size)
    weights = np.exp(-float(rate) * values)
    expected = np.add.reduceat(weights / weights.sum(), values[:: -(-size // 30)]) * 100_000

    def compute_p_value(draws):
        return stats.chisquare(np.add.reduceat(np.bincount(draws, minlength=size)[:size], values[:: -(-size // 30)]),
                               expected * np.mean(draws < size)).pvalue  # fmt: skip

    draws = CutOff(rate, size).draw(100_000, as_random_source(6))
    assert draws.min() >= 0
    assert draws.max() < size
    assert compute_p_value(draws) > ALPHA
    assert compute_p_value(size - 1 - draws) < ALPHA or not rate


def test_table_with_one_wrong_entry_fails_test():
    """A broken variant: one threshold of thirty is off by 0.5 %. Same test, draws and seed."""
    sampler = Geometric(Fraction(1, 9))
    table = sampler._digits[-1]._table.copy()
    table[8] += np.uint32(2**32 // 200)
    sampler._digits[-1] = Thresholds(sampler._digits[-1]._digits, table, None)
    draws = np.minimum(sampler.draw(100_000, as_random_source(5)), 40)
    expected = compute_geometric(1 / 9, np.arange(40)) * len(draws)
    expected = np.append(expected, len(draws) - expected.sum())
    assert stats.chisquare(np.bincount(draws, minlength=41), expected).pvalue < ALPHA
