"""Leakage over a stream: published values, enumeration, and streams against batches."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import BudgetError, InvalidInputError, StochasticError
from dphmm.leakage import (
    Leakage,
    LossFunction,
    Stream,
    backward_leakage,
    compute_leakage,
    forward_leakage,
    supremum,
    temporal_leakage,
)
from tests.leakage import published
from tests.leakage.oracles import ABSORBING, FIGURE_4, sample_matrix

BPL = [0.1, 0.1808, 0.2471, 0.3024, 0.3488, 0.3881, 0.4216, 0.4503, 0.4750, 0.4964]
TPL = [0.4964, 0.5558, 0.5975, 0.6239, 0.6368, 0.6368, 0.6239, 0.5975, 0.5558, 0.4964]


def test_examples_2_and_3():
    budgets = [0.1] * 10
    np.testing.assert_allclose(backward_leakage(ABSORBING, budgets), BPL, rtol=0, atol=5e-5)
    np.testing.assert_allclose(forward_leakage(ABSORBING, budgets), BPL[::-1], rtol=0, atol=5e-5)
    np.testing.assert_allclose(temporal_leakage(ABSORBING, ABSORBING, budgets), TPL, rtol=0, atol=5e-5)


def test_deterministic_correlation_leaks_whole_stream_at_every_time():
    np.testing.assert_allclose(temporal_leakage(np.eye(2), np.eye(2), [0.1] * 10), 1.0, rtol=1e-14)
    np.testing.assert_allclose(backward_leakage(np.eye(3), [0.1, 0.4, 0.0, 0.2]), [0.1, 0.5, 0.5, 0.7], rtol=1e-14)


def test_adversary_without_knowledge_has_single_release_leakage():
    budgets = [0.3, 0.0, 1.2]
    for leakage in (
        backward_leakage(None, budgets),
        forward_leakage(None, budgets),
        temporal_leakage(None, None, budgets),
    ):
        np.testing.assert_array_equal(leakage, budgets)
    one_sided = compute_leakage(FIGURE_4, None, budgets)
    np.testing.assert_allclose(one_sided.temporal, one_sided.backward, rtol=1e-15)


def compute_attained_leakage(matrix: np.ndarray, keep: float, steps: int) -> float:
    """Compute the exact leakage of randomized response about the last of two states.

    All outputs are summed over all paths.
    """
    response = np.array([[keep, 1 - keep], [1 - keep, keep]])
    likelihoods = [response[:, [z]] for z in (0, 1)]
    for _ in range(steps - 1):
        likelihoods = [response[:, [z]] * (matrix @ before) for before in likelihoods for z in (0, 1)]
    return max(abs(math.log(float(v[0, 0] / v[1, 0]))) for v in likelihoods)


@pytest.mark.parametrize("matrix", [ABSORBING, [[0.8, 0.2], [0.2, 0.8]], [[0.9, 0.1], [0.6, 0.4]]])
def test_randomized_response_attains_backward_leakage(matrix):
    keep = 0.6
    budgets = [math.log(keep / (1 - keep))] * 6
    leakage = backward_leakage(matrix, budgets)
    for steps in range(1, 7):
        assert compute_attained_leakage(np.array(matrix), keep, steps) == pytest.approx(leakage[steps - 1], rel=1e-12)


def test_leakage_of_every_mechanism_can_be_below_the_bounds():
    """The erratum of Equations 10 and 13, in rationals.

    On two states, randomized response with e^ε = 3 has both extreme ratios of likelihoods, hence the largest leakage of
    all mechanisms.
    """
    odds = (np.array([3, 1], dtype=object), np.array([1, 3], dtype=object))

    def find_largest_ratio(vectors):
        return max(max(Fraction(v[0]) / v[1], Fraction(v[1]) / v[0]) for v in vectors)

    budgets = [math.log(3)] * 3
    backward, forward = (
        np.array([[Fraction(x, 5) for x in row] for row in m]) for m in ([[4, 1], [0, 5]], [[5, 0], [1, 4]])
    )
    both = [(backward @ a) * b * (forward @ c) for a, b, c in product(odds, repeat=3)]
    assert find_largest_ratio(both) == Fraction(117, 7)
    bound = temporal_leakage(backward.astype(float), forward.astype(float), budgets)
    assert bound[1] == pytest.approx(math.log(507 / 25), rel=1e-12)

    alternating = np.array([[Fraction(1, 5), Fraction(4, 5)], [Fraction(1), Fraction(0)]])
    past = [(alternating @ ((alternating @ a) * b)) * c for a, b, c in product(odds, repeat=3)]
    bound = backward_leakage(alternating.astype(float), budgets)
    assert math.log(find_largest_ratio(past)) < bound[2] - 0.18


@pytest.mark.parametrize("seed", range(3))
def test_recursion_matches_published_algorithm(seed):
    matrix = sample_matrix(9, seed=seed, zeros=0.2)
    budgets = np.random.default_rng(seed).uniform(0.05, 1.0, 12)
    expected = [budgets[0]]
    for budget in budgets[1:]:
        expected.append(published.run_algorithm_1(matrix, expected[-1]) + budget)
    np.testing.assert_allclose(backward_leakage(matrix, budgets), expected, rtol=0, atol=1e-12)


def test_matrices_by_time_are_used_in_time_order():
    first, second = np.array(ABSORBING), np.array([[0.5, 0.5], [0.4, 0.6]])
    budgets = [0.2, 0.3, 0.1]
    middle = published.run_algorithm_1(first, 0.2) + 0.3
    expected = [0.2, middle, published.run_algorithm_1(second, middle) + 0.1]
    later = published.run_algorithm_1(second, 0.1) + 0.3
    back = [published.run_algorithm_1(first, later) + 0.2, later, 0.1]
    forms = [[first, second], np.array([first, second]), (sp.csr_array(first), LossFunction(second))]
    for form in forms:
        np.testing.assert_allclose(backward_leakage(form, budgets), expected, rtol=1e-13)
        np.testing.assert_allclose(forward_leakage(form, budgets), back, rtol=1e-13)
    np.testing.assert_allclose(backward_leakage(iter([first, second]), budgets), expected, rtol=1e-13)
    np.testing.assert_array_equal(backward_leakage([None, None], budgets), budgets)


@pytest.mark.parametrize("count", [1, 3])
def test_wrong_number_of_matrices_raises(count):
    with pytest.raises(InvalidInputError, match=r"\b2\b.*each step"):
        backward_leakage([ABSORBING] * count, [0.1] * 3)


def test_leakage_converges_to_supremum():
    for epsilon in (0.05, 0.15):
        leakage = backward_leakage(ABSORBING, [epsilon] * 2000)
        assert leakage[-1] == pytest.approx(supremum(ABSORBING, epsilon), rel=1e-9)
        assert (np.diff(leakage) >= 0).all()


@given(st.lists(st.floats(0, 2), min_size=1, max_size=12), st.integers(0, 5))
def test_stream_matches_batch_after_every_release(budgets, seed):
    past, future = sample_matrix(4, seed=seed, zeros=0.3), sample_matrix(4, seed=seed + 50)
    stream = Stream(past, future)
    for count, budget in enumerate(budgets, start=1):
        value = stream.add(budget)
        if count % 3 == 0 or count == len(budgets):
            batch = compute_leakage(past, future, budgets[:count])
            assert value == pytest.approx(batch.backward[-1], rel=1e-12, abs=1e-300)
            np.testing.assert_allclose(stream.leakage().forward, batch.forward, rtol=1e-12, atol=1e-300)
            np.testing.assert_allclose(stream.leakage().temporal, batch.temporal, rtol=1e-12, atol=1e-15)
    assert len(stream) == len(budgets)


def test_stream_updates_only_recent_leakage(monkeypatch):
    future = LossFunction([[0.6, 0.4], [0.4, 0.6]])
    stream = Stream(None, future)
    for _ in range(500):
        stream.add(0.5)
    stream.leakage()
    calls = []
    real = LossFunction._evaluate
    monkeypatch.setattr(LossFunction, "_evaluate", lambda self, alpha: calls.append(alpha) or real(self, alpha))
    stream.add(0.5)
    calls.clear()
    stream.leakage()
    assert 2 <= len(calls) < 60, "leakage in the distant past has converged and is unchanged"
    stream.leakage()
    assert len(calls) < 60


def test_refused_release_leaves_stream_unchanged():
    stream = Stream(ABSORBING, ABSORBING)
    with pytest.raises(BudgetError):
        stream.leakage()
    stream.add(0.1)
    for bad in (-0.1, math.nan, math.inf):
        with pytest.raises(BudgetError, match=r"epsilons must be finite and non-negative, got .* at index 0"):
            stream.add(bad)
    assert stream.leakage().epsilons.tolist() == [0.1]


def test_windows_match_theorem_3_and_whole_stream_corollary_1():
    budgets = np.array([0.1, 0.2, 0.3, 0.15, 0.05])
    leakage = compute_leakage(FIGURE_4, ABSORBING_3, budgets)
    assert leakage.window(2, 3) == pytest.approx(leakage.temporal[2])
    assert leakage.window(1, 3) == pytest.approx(leakage.backward[1] + leakage.forward[2])
    assert leakage.window(1, 5) == pytest.approx(leakage.backward[1] + 0.3 + 0.15 + leakage.forward[4])
    assert leakage.window(0, 5) == pytest.approx(leakage.user_level) == pytest.approx(0.8)
    assert leakage.worst == leakage.temporal.max()
    for start, stop, words in ((0, 0, "stop must be"), (-1, 2, "start must be"), (3, 6, "window"), (4, 2, "window")):
        with pytest.raises(InvalidInputError, match=words):
            leakage.window(start, stop)
    for times, words in ((0, "times must be"), (-1, "times must be"), (6, "window")):
        with pytest.raises(InvalidInputError, match=words):
            leakage.largest_window(times)


ABSORBING_3 = [[0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.0, 0.0, 1.0]]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.integers(0, 9))
def test_window_leakage_is_non_decreasing_in_width_and_at_most_user_level(budgets, seed):
    matrix = sample_matrix(3, seed=seed, zeros=0.3)
    leakage = compute_leakage(matrix, matrix, budgets)
    for times in range(1, len(budgets) + 1):
        windows = [leakage.window(start, start + times) for start in range(len(budgets) - times + 1)]
        largest, start = leakage.largest_window(times)
        assert (largest, leakage.window(start, start + times)) == (pytest.approx(max(windows), rel=1e-12), largest)
    for start in range(len(budgets)):
        values = [leakage.window(start, stop) for stop in range(start + 1, len(budgets) + 1)]
        assert (np.diff(values) >= -1e-12).all()
        assert values[-1] <= leakage.user_level + 1e-12


@pytest.mark.parametrize("epsilons", [[], [[0.1]], [0.1, -0.1], [math.nan], [math.inf]], ids=repr)
def test_invalid_budgets_raise(epsilons):
    for call in (backward_leakage, forward_leakage):
        with pytest.raises(BudgetError, match="epsilon"):
            call(ABSORBING, epsilons)
    with pytest.raises(BudgetError, match="epsilon"):
        temporal_leakage(ABSORBING, None, epsilons)


def test_matrices_of_different_sizes_raise():
    with pytest.raises(StochasticError, match=r"3 states.* 2\b"):
        temporal_leakage(ABSORBING, FIGURE_4, [0.1, 0.1])
    with pytest.raises(StochasticError, match=r"3 states.* 2\b"):
        Stream(ABSORBING, FIGURE_4)
    with pytest.raises(StochasticError, match="states"):
        backward_leakage([ABSORBING, FIGURE_4], [0.1] * 3)


def test_invalid_matrix_raises_with_its_side():
    bad = [[0.5, 0.5], [0.5, 0.4]]
    with pytest.raises(StochasticError, match=r"forward matrix must have rows that sum to 1, .* in row 1"):
        forward_leakage(bad, [0.1, 0.1])
    with pytest.raises(StochasticError, match=r"backward matrix must have rows that sum to 1, .* in row 1"):
        temporal_leakage(bad, None, [0.1, 0.1])


def test_leakage_with_unequal_lengths_raises():
    with pytest.raises(InvalidInputError, match="shapes"):
        Leakage(np.zeros(2), np.zeros(3), np.zeros(2))


@pytest.mark.slow
def test_long_gap_is_evaluated_until_convergence_and_matches_recursion(monkeypatch):
    """Long gaps cost only the steps to convergence. Each value matches the step recursion."""
    for matrix in (np.array([[0.9, 0.1], [0.4, 0.6]]), np.eye(2)):
        function, calls = LossFunction(matrix, 50.0), []
        budgets = np.zeros(10_000)
        budgets[[0, 5000, 5002]] = 2.0, 0.5, 1.0
        wanted = budgets.copy()
        for t in range(1, len(budgets)):
            wanted[t] += function(wanted[t - 1])
        evaluate = LossFunction._evaluate
        monkeypatch.setattr(LossFunction, "_evaluate", lambda *arguments: calls.append(1) or evaluate(*arguments))  # noqa: B023
        assert np.array_equal(backward_leakage([function] * 9999, budgets), wanted)
        assert np.array_equal(forward_leakage(function, budgets[::-1]), wanted[::-1])
        monkeypatch.undo()
        assert len(calls) < (6000 if matrix[0, 0] < 1 else 10)


def test_arrays_and_loss_functions_can_be_mixed():
    array = np.array([[0.7, 0.3], [0.3, 0.7]])
    function = LossFunction(array)
    mixed = backward_leakage([array, function, function, array], [0.5, 0.1, 0, 0, 0.2])
    np.testing.assert_allclose(mixed, backward_leakage([array] * 4, [0.5, 0.1, 0, 0, 0.2]), rtol=1e-13)


def test_matrix_that_changes_in_place_is_read_at_every_step():
    buffer = np.eye(2)

    def iterate_matrices():
        for stay in (1.0, 0.7, 0.7):
            buffer[:] = [[stay, 1 - stay], [1 - stay, stay]]
            yield buffer

    copies = [np.array([[stay, 1 - stay], [1 - stay, stay]]) for stay in (1.0, 0.7, 0.7)]
    assert np.array_equal(
        backward_leakage(iterate_matrices(), [0.5, 0, 0, 0]), backward_leakage(copies, [0.5, 0, 0, 0])
    )


def test_budgets_with_overflowing_sum_raise():
    with pytest.raises(BudgetError, match=r"1e\+308"):
        backward_leakage([[0.5, 0.5], [0.5, 0.5]], [1e308] * 4)
