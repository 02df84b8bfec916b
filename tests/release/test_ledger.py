"""The ledger: sums of budgets over releases, within windows and over constrained factors."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dphmm import Ledger, MarkovModel, PolicyGraph, Releaser
from dphmm.errors import InvalidInputError
from dphmm.release.ledger import sum_budgets

TEMPLATE = Releaser(
    MarkovModel([[0.5, 0.5], [0.5, 0.5]], [0.5, 0.5]), [[0, 0], [1, 0]], PolicyGraph.complete(2), 1.0
).release(0)
entries = st.lists(st.tuples(st.integers(1, 5), st.floats(0.01, 3), st.floats(0, 4)), max_size=12)


def make_ledger(drawn) -> Ledger:
    return Ledger.from_records(
        [
            dataclasses.replace(TEMPLATE, index=i, steps=gap if i else 0, epsilon=e, constrained_dp_factor=k)
            for i, (gap, e, k) in enumerate(drawn)
        ]
    )


@given(entries, st.integers(1, 8))
@example([(1, 0.1, 4.0)] * 3, 3)
@example([(1, 0.1, 4.0)] * 10, 10)
@example([(1, 1e15, 1.0), (1, 0.1, 1.0)], 1)
def test_totals_and_windows_are_exact_sums_rounded_once(drawn, width):
    book = make_ledger(drawn)
    times, now = [], 0
    for i, (gap, _, _) in enumerate(drawn):
        now += gap if i else 0
        times.append(now)
    budgets = [Fraction(repr(e)) for _, e, _ in drawn]
    assert book.epsilon == float(sum(budgets))
    assert book.constrained_epsilon == float(sum(e * Fraction(k) for e, (*_, k) in zip(budgets, drawn, strict=True)))
    windows = [
        sum(e for time, e in zip(times, budgets, strict=True) if start <= time < start + width)
        for start in range(-width, now + 1)
    ]
    assert book.compute_max_window_epsilon(width) == float(max(windows))


def test_empty_window_raises():
    with pytest.raises(InvalidInputError, match="steps must be a positive integer"):
        make_ledger([]).compute_max_window_epsilon(0)


def test_budgets_are_summed_as_decimals():
    assert sum_budgets([0.1] * 3) == 0.3 != 0.1 + 0.1 + 0.1
