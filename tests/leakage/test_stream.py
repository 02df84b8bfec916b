"""Leakage over a stream: published values, sums done in full, and streams against batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import BudgetError, InvalidInputError, StochasticError
from dphmm.leakage import Leakage, LossFunction, Stream, account, backward, forward, supremum, temporal
from tests.leakage import published
from tests.leakage.oracles import ABSORBING, FIGURE_4, random_matrix

BPL = [0.1, 0.1808, 0.2471, 0.3024, 0.3488, 0.3881, 0.4216, 0.4503, 0.4750, 0.4964]
TPL = [0.4964, 0.5558, 0.5975, 0.6239, 0.6368, 0.6368, 0.6239, 0.5975, 0.5558, 0.4964]


def test_examples_2_and_3():
    budgets = [0.1] * 10
    np.testing.assert_allclose(backward(ABSORBING, budgets), BPL, rtol=0, atol=5e-5)
    np.testing.assert_allclose(forward(ABSORBING, budgets), BPL[::-1], rtol=0, atol=5e-5)
    np.testing.assert_allclose(temporal(ABSORBING, ABSORBING, budgets), TPL, rtol=0, atol=5e-5)


def test_certain_correlation_leaks_the_whole_stream_at_every_time():
    np.testing.assert_allclose(temporal(np.eye(2), np.eye(2), [0.1] * 10), 1.0, rtol=1e-14)
    np.testing.assert_allclose(backward(np.eye(3), [0.1, 0.4, 0.0, 0.2]), [0.1, 0.5, 0.5, 0.7], rtol=1e-14)


def test_adversary_without_knowledge_sees_each_budget_alone():
    budgets = [0.3, 0.0, 1.2]
    for leakage in (backward(None, budgets), forward(None, budgets), temporal(None, None, budgets)):
        np.testing.assert_array_equal(leakage, budgets)
    one_sided = account(FIGURE_4, None, budgets)
    np.testing.assert_allclose(one_sided.temporal, one_sided.backward, rtol=1e-15)


def attained_backward(matrix: np.ndarray, keep: float, steps: int) -> float:
    """What randomised response really leaks about the last of two states: all outputs summed over all paths."""
    response = np.array([[keep, 1 - keep], [1 - keep, keep]])
    likelihoods = [response[:, [z]] for z in (0, 1)]
    for _ in range(steps - 1):
        likelihoods = [response[:, [z]] * (matrix @ before) for before in likelihoods for z in (0, 1)]
    return max(abs(math.log(float(v[0, 0] / v[1, 0]))) for v in likelihoods)


@pytest.mark.parametrize("matrix", [ABSORBING, [[0.8, 0.2], [0.2, 0.8]], [[0.9, 0.1], [0.6, 0.4]]])
def test_randomised_response_attains_the_backward_leakage(matrix):
    keep = 0.6
    budgets = [math.log(keep / (1 - keep))] * 6
    leakage = backward(matrix, budgets)
    for steps in range(1, 7):
        assert attained_backward(np.array(matrix), keep, steps) == pytest.approx(leakage[steps - 1], rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_recursion_equals_the_published_algorithm_step_by_step(seed):
    matrix = random_matrix(9, seed=seed, zeros=0.2)
    budgets = np.random.default_rng(seed).uniform(0.05, 1.0, 12)
    expected = [budgets[0]]
    for budget in budgets[1:]:
        expected.append(published.algorithm_1(matrix, expected[-1]) + budget)
    np.testing.assert_allclose(backward(matrix, budgets), expected, rtol=0, atol=1e-12)


def test_matrices_by_time_are_used_in_the_order_of_time():
    first, second = np.array(ABSORBING), np.array([[0.5, 0.5], [0.4, 0.6]])
    budgets = [0.2, 0.3, 0.1]
    middle = published.algorithm_1(first, 0.2) + 0.3
    expected = [0.2, middle, published.algorithm_1(second, middle) + 0.1]
    later = published.algorithm_1(second, 0.1) + 0.3
    back = [published.algorithm_1(first, later) + 0.2, later, 0.1]
    forms = [[first, second], np.array([first, second]), (sp.csr_array(first), LossFunction(second))]
    for form in forms:
        np.testing.assert_allclose(backward(form, budgets), expected, rtol=1e-13)
        np.testing.assert_allclose(forward(form, budgets), back, rtol=1e-13)
    np.testing.assert_allclose(backward(iter([first, second]), budgets), expected, rtol=1e-13)
    np.testing.assert_array_equal(backward([None, None], budgets), budgets)


@pytest.mark.parametrize("count", [1, 3])
def test_wrong_number_of_matrices_is_refused(count):
    with pytest.raises(InvalidInputError, match="give 2, one for each step"):
        backward([ABSORBING] * count, [0.1] * 3)


def test_leakage_converges_to_the_supremum():
    for epsilon in (0.05, 0.15):
        leakage = backward(ABSORBING, [epsilon] * 2000)
        assert leakage[-1] == pytest.approx(supremum(ABSORBING, epsilon), rel=1e-9)
        assert (np.diff(leakage) >= 0).all()


@given(st.lists(st.floats(0, 2), min_size=1, max_size=12), st.integers(0, 5))
def test_stream_equals_the_batch_after_every_release(budgets, seed):
    past, future = random_matrix(4, seed=seed, zeros=0.3), random_matrix(4, seed=seed + 50)
    stream = Stream(past, future)
    for count, budget in enumerate(budgets, start=1):
        value = stream.add(budget)
        if count % 3 == 0 or count == len(budgets):
            batch = account(past, future, budgets[:count])
            assert value == pytest.approx(batch.backward[-1], rel=1e-12, abs=1e-300)
            np.testing.assert_allclose(stream.leakage().forward, batch.forward, rtol=1e-12, atol=1e-300)
            np.testing.assert_allclose(stream.leakage().temporal, batch.temporal, rtol=1e-12, atol=1e-15)
    assert len(stream) == len(budgets)


def test_stream_updates_only_what_changes(monkeypatch):
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
    assert 2 <= len(calls) < 60, "leakage far in the past has converged and is not touched"
    stream.leakage()
    assert len(calls) < 60


def test_refused_release_leaves_the_stream_as_it_was():
    stream = Stream(ABSORBING, ABSORBING)
    with pytest.raises(BudgetError):
        stream.leakage()
    stream.add(0.1)
    for bad in (-0.1, math.nan, math.inf):
        with pytest.raises(BudgetError, match="epsilon 0 is"):
            stream.add(bad)
    assert stream.leakage().epsilons.tolist() == [0.1]


def test_windows_are_theorem_3_and_the_whole_is_corollary_1():
    budgets = np.array([0.1, 0.2, 0.3, 0.15, 0.05])
    leakage = account(FIGURE_4, ABSORBING_3, budgets)
    assert leakage.window(2, 3) == pytest.approx(leakage.temporal[2])
    assert leakage.window(1, 3) == pytest.approx(leakage.backward[1] + leakage.forward[2])
    assert leakage.window(1, 5) == pytest.approx(leakage.backward[1] + 0.3 + 0.15 + leakage.forward[4])
    assert leakage.window(0, 5) == pytest.approx(leakage.user_level) == pytest.approx(0.8)
    assert leakage.worst == leakage.temporal.max()
    for start, stop in ((0, 0), (-1, 2), (3, 6), (4, 2)):
        with pytest.raises(InvalidInputError, match="window"):
            leakage.window(start, stop)
    for times in (0, -1, 6):
        with pytest.raises(InvalidInputError, match="window"):
            leakage.largest_window(times)


ABSORBING_3 = [[0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.0, 0.0, 1.0]]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.integers(0, 9))
def test_wider_windows_never_leak_less_and_never_more_than_everything(budgets, seed):
    matrix = random_matrix(3, seed=seed, zeros=0.3)
    leakage = account(matrix, matrix, budgets)
    for times in range(1, len(budgets) + 1):
        windows = [leakage.window(start, start + times) for start in range(len(budgets) - times + 1)]
        largest, start = leakage.largest_window(times)
        assert (largest, leakage.window(start, start + times)) == (pytest.approx(max(windows), rel=1e-12), largest)
    for start in range(len(budgets)):
        values = [leakage.window(start, stop) for stop in range(start + 1, len(budgets) + 1)]
        assert (np.diff(values) >= -1e-12).all()
        assert values[-1] <= leakage.user_level + 1e-12


@pytest.mark.parametrize("epsilons", [[], [[0.1]], [0.1, -0.1], [math.nan], [math.inf]])
def test_bad_budgets_are_refused(epsilons):
    for call in (backward, forward):
        with pytest.raises(BudgetError, match="epsilon"):
            call(ABSORBING, epsilons)
    with pytest.raises(BudgetError, match="epsilon"):
        temporal(ABSORBING, None, epsilons)


def test_matrices_of_different_sizes_are_refused():
    with pytest.raises(StochasticError, match="forward matrix has 3 states, backward matrix has 2"):
        temporal(ABSORBING, FIGURE_4, [0.1, 0.1])
    with pytest.raises(StochasticError, match="forward matrix has 3 states, backward matrix has 2"):
        Stream(ABSORBING, FIGURE_4)
    with pytest.raises(StochasticError, match="states"):
        backward([ABSORBING, FIGURE_4], [0.1] * 3)


def test_bad_matrix_is_named_after_its_side():
    bad = [[0.5, 0.5], [0.5, 0.4]]
    with pytest.raises(StochasticError, match="forward matrix: row 1"):
        forward(bad, [0.1, 0.1])
    with pytest.raises(StochasticError, match="backward matrix: row 1"):
        temporal(bad, None, [0.1, 0.1])


def test_record_of_uneven_lengths_is_refused():
    with pytest.raises(InvalidInputError, match="shapes"):
        Leakage(np.zeros(2), np.zeros(3), np.zeros(2))


def test_a_rest_without_releases_is_evaluated_once_and_is_the_plain_recursion(monkeypatch):
    """Years between two releases cost what the way to rest costs; each value is that of one step after another."""
    for matrix in (np.array([[0.9, 0.1], [0.4, 0.6]]), np.eye(2)):
        function, calls = LossFunction(matrix, 50.0), []
        budgets = np.zeros(10_000)
        budgets[[0, 5000, 5002]] = 2.0, 0.5, 1.0
        wanted = budgets.copy()
        for t in range(1, len(budgets)):
            wanted[t] += function(wanted[t - 1])
        evaluate = LossFunction._evaluate
        monkeypatch.setattr(LossFunction, "_evaluate", lambda *given: calls.append(1) or evaluate(*given))  # noqa: B023
        assert np.array_equal(backward([function] * 9999, budgets), wanted)
        assert np.array_equal(forward(function, budgets[::-1]), wanted[::-1])
        monkeypatch.undo()
        assert len(calls) < (6000 if matrix[0, 0] < 1 else 10)


def test_arrays_and_loss_functions_may_follow_each_other():
    array = np.array([[0.7, 0.3], [0.3, 0.7]])
    function = LossFunction(array)
    mixed = backward([array, function, function, array], [0.5, 0.1, 0, 0, 0.2])
    np.testing.assert_allclose(mixed, backward([array] * 4, [0.5, 0.1, 0, 0, 0.2]), rtol=1e-13)


def test_a_matrix_that_is_filled_anew_for_every_step_is_read_anew():
    held = np.eye(2)

    def one_after_another():
        for stay in (1.0, 0.7, 0.7):
            held[:] = [[stay, 1 - stay], [1 - stay, stay]]
            yield held

    copies = [np.array([[stay, 1 - stay], [1 - stay, stay]]) for stay in (1.0, 0.7, 0.7)]
    assert np.array_equal(backward(one_after_another(), [0.5, 0, 0, 0]), backward(copies, [0.5, 0, 0, 0]))


def test_budgets_whose_sum_no_number_holds_are_refused():
    with pytest.raises(BudgetError, match=r"reach 1e\+308, and their sum is more than a number holds"):
        backward([[0.5, 0.5], [0.5, 0.5]], [1e308] * 4)
