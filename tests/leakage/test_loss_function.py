"""L(α), against the paper, exact rationals, linear programs and published algorithms."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dphmm.errors import InvalidInputError, StochasticError
from dphmm.leakage import LossFunction, loss, supremum
from tests.leakage import published
from tests.leakage.oracles import ABSORBING, FIGURE_4, compute_exact_loss, compute_highs_loss, sample_matrix
from tests.sizes import mark_rest_slow, mark_slow


@pytest.mark.parametrize(
    ("alpha", "value"), [(0.1, 0.050220), (1, 0.494334), (2, 0.939752), (5, 1.557279), (10, 1.609075)]
)
def test_figure_4_values(alpha, value):
    assert loss(FIGURE_4, alpha) == pytest.approx(value, abs=5e-7)
    assert LossFunction(FIGURE_4)(alpha) == pytest.approx(value, abs=5e-7)


@pytest.mark.parametrize("alpha", [1e-6, 0.03, 0.7, 3.0, 12.0])
def test_edge_case_matrices_match_exact_enumeration(odd_matrix, alpha):
    expected = compute_exact_loss(odd_matrix, alpha)
    assert loss(odd_matrix, alpha) == pytest.approx(expected, rel=1e-13, abs=1e-18)
    if len(odd_matrix) > 1:
        assert LossFunction(odd_matrix)(alpha) == pytest.approx(expected, rel=1e-13, abs=1e-18)


@pytest.mark.parametrize("seed", mark_rest_slow(range(24), 9))
def test_entries_of_any_magnitude_match_exact_enumeration(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    matrix = 10.0 ** -rng.uniform(0, (5, 15, 60)[seed % 3], (n, n))
    if seed % 2:
        matrix[rng.random((n, n)) < 0.2] = 0.0
        matrix[matrix.sum(axis=1) == 0, 0] = 1.0
    matrix /= matrix.sum(axis=1, keepdims=True)
    function = LossFunction(matrix)
    for alpha in (1e-6, 0.01, 1.0, 10.0, 30.0, 45.0, 150.0, 310.0, 600.0):
        expected = compute_exact_loss(matrix, alpha)
        assert loss(matrix, alpha) == pytest.approx(expected, rel=1e-12, abs=1e-20)
        assert function(alpha) == pytest.approx(expected, rel=1e-12, abs=1e-20)


@pytest.mark.parametrize("n", [2, 3, 5, mark_slow(8), mark_slow(12)])
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_loss_matches_linear_programming(n, zeros):
    matrix = sample_matrix(n, seed=n, zeros=zeros, spread=0.7)
    function = LossFunction(matrix)
    for alpha in (0.01, 0.5, 2.0, 6.0):
        expected = compute_highs_loss(matrix, alpha)
        assert loss(matrix, alpha) == pytest.approx(expected, abs=1e-9)
        assert function(alpha) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("n", [2, 7, 20, mark_slow(40)])
@pytest.mark.parametrize(("zeros", "spread"), [(0.0, 1.0), (0.0, 0.2), (0.4, 0.5)])
def test_loss_matches_published_algorithms(n, zeros, spread):
    matrix = sample_matrix(n, seed=100 + n, zeros=zeros, spread=spread)
    pairs = published.run_algorithm_2(matrix)
    pieces = published.run_algorithm_4(pairs, 1e-6, 30.0)
    function = LossFunction(matrix)
    for alpha in (1e-6, 1e-3, 0.1, 1.0, 5.0, 12.0, 30.0):
        forms = [
            published.run_algorithm_1(matrix, alpha),
            published.run_algorithm_3(pairs, alpha)[0],
            published.run_algorithm_5(pieces, alpha),
            loss(matrix, alpha),
            function(alpha),
        ]
        np.testing.assert_allclose(forms, forms[0], rtol=0, atol=1e-9)


def test_pieces_match_algorithm_4():
    matrix = sample_matrix(25, seed=3)
    function = LossFunction(matrix)
    printed = published.run_algorithm_4(published.run_algorithm_2(matrix), 1e-9, 30.0)
    last = np.flatnonzero(np.diff([*printed.q, -1.0]))  # the published recursion splits pieces
    np.testing.assert_allclose(function.starts[1:], np.array(printed.a)[last][:-1], rtol=1e-9)
    np.testing.assert_allclose(function.q, np.array(printed.q)[last], rtol=1e-12)
    np.testing.assert_allclose(function.d, np.array(printed.d)[last], rtol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_each_piece_is_attained_by_its_rows(kind):
    matrix = sample_matrix(30, seed=8, spread=0.3)
    function = LossFunction(matrix if kind == "dense" else sp.csr_array(matrix))
    ends = [*function.starts[1:], function.starts[-1] + 5]
    for start, end, (i, k) in zip(function.starts, ends, function.rows, strict=True):
        alpha = (start + end) / 2
        two = np.array([matrix[i], matrix[k]])
        e = math.expm1(alpha)
        chosen = two[0] > math.exp(function(alpha)) * two[1]
        value = math.log((1 + e * two[0][chosen].sum()) / (1 + e * two[1][chosen].sum()))
        assert value == pytest.approx(function(alpha), rel=1e-12)


@pytest.mark.parametrize("alpha", [100.0, 400.0, 709.0, 710.0, 800.0, 5000.0])
def test_large_alpha_does_not_overflow(odd_matrix, alpha):
    values = [loss(odd_matrix, alpha), LossFunction(odd_matrix)(alpha)]
    assert values[0] == pytest.approx(values[1], rel=1e-13)
    assert 0 <= values[0] <= alpha


def test_large_alpha_matches_closed_form():
    assert loss(ABSORBING, 800.0) == pytest.approx(800 + math.log(0.8), rel=1e-15)
    assert loss(FIGURE_4, 800.0) == pytest.approx(math.log(5), rel=1e-15)


def test_disjoint_rows_give_alpha():
    for alpha in (1e-9, 0.3, 40.0, 800.0):
        assert loss(np.eye(3), alpha) == alpha
        assert LossFunction(np.eye(3))(alpha) == alpha
        assert loss(sp.eye_array(5000).tocsr(), alpha) == alpha
    assert LossFunction(np.eye(3)).is_identity
    assert not LossFunction(ABSORBING).is_identity


def test_states_that_one_row_excludes_are_counted():
    only_zero_ratio = [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.5, 0.25, 0.25]]
    assert loss(only_zero_ratio, 2.0) == pytest.approx(math.log1p(0.5 * math.expm1(2.0)), rel=1e-14)


def test_no_knowledge_and_equal_rows_have_zero_loss():
    for nothing in (None, np.full((4, 4), 0.25), [[1.0]]):
        assert loss(nothing, 3.0) == 0.0
        assert LossFunction(nothing)(3.0) == 0.0


stochastic = st.integers(2, 7).flatmap(
    lambda n: arrays(np.float64, (n, n), elements=st.sampled_from([0.0, 1e-9, 0.001, 0.2, 0.5, 1.0, 3.0]))
)


@given(stochastic, st.lists(st.floats(1e-6, 30), min_size=2, max_size=5))
def test_loss_is_non_decreasing_and_at_most_alpha(weights, alphas):
    weights[weights.sum(axis=1) == 0, 0] = 1.0
    matrix = weights / weights.sum(axis=1, keepdims=True)
    function = LossFunction(matrix)
    alphas = np.sort(alphas)
    values = function(alphas)
    assert (values >= 0).all()
    assert (values <= alphas).all()
    assert (np.diff(values) >= -1e-14 * values[1:]).all()
    for alpha, value in zip(alphas, values, strict=True):
        assert loss(matrix, alpha) == pytest.approx(value, rel=1e-12, abs=1e-16)
        assert published.run_algorithm_1(matrix, alpha) == pytest.approx(value, abs=1e-9)


@given(stochastic, st.floats(1e-4, 4.0))
def test_supremum_is_smallest_fixed_point(weights, epsilon):
    weights[weights.sum(axis=1) == 0, 0] = 1.0
    matrix = weights / weights.sum(axis=1, keepdims=True)
    function = LossFunction(matrix)
    result = function.supremum(epsilon)
    if math.isinf(result.value):
        assert result.d == 0
        assert result.q * math.exp(epsilon) >= 1 - 1e-12
        assert function(600.0) + epsilon >= 600.0 - 1e-9
    else:
        assert function(result.value) + epsilon == pytest.approx(result.value, rel=1e-12)
        assert function(result.value * (1 - 1e-6)) + epsilon > result.value * (1 - 1e-6)
    expected = published.run_algorithm_6(published.run_algorithm_2(matrix), epsilon)
    assert result.value == pytest.approx(expected, rel=1e-5)  # only the sum q is available and 1 - q has lost digits


@pytest.mark.parametrize(
    ("matrix", "epsilon", "value"),
    [
        (ABSORBING, 0.15, 1.192242),
        (ABSORBING, 0.23, math.inf),
        ([[0.8, 0.2], [0.1, 0.9]], 0.23, 0.792337),
        ([[0.8, 0.2], [0.2, 0.8]], 0.23, 0.561073),
        (np.eye(2), 1e-9, math.inf),
        (None, 0.4, 0.4),
        (np.full((3, 3), 1 / 3), 0.4, 0.4),
    ],
)
def test_suprema_match_paper(matrix, epsilon, value):
    assert supremum(matrix, epsilon) == pytest.approx(value, abs=5e-7)


def test_supremum_at_the_limit_of_theorem_11_is_infinite():
    assert supremum(ABSORBING, math.log(1 / 0.8)) == math.inf
    assert math.isfinite(supremum(ABSORBING, math.log(1 / 0.8) - 1e-9))


def test_supremum_contains_rows_that_cause_it():
    matrix = [[0.5, 0.5, 0.0], [0.5, 0.4, 0.1], [0.0, 0.1, 0.9]]
    result = LossFunction(matrix).supremum(3.0)
    assert result.value == math.inf
    assert result.rows == (2, 0)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 0.5, 20.0, 500.0, 900.0])
def test_supremum_is_exact_for_extreme_budgets(epsilon):
    for matrix in (FIGURE_4, [[1 - 1e-12, 1e-12], [1e-12, 1 - 1e-12]]):
        value = supremum(matrix, epsilon)
        assert LossFunction(matrix)(value) + epsilon == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("epsilon", [1e-305, 1.0, 700.0, 745.0, 1e6])
def test_supremum_of_equal_rows_is_the_budget(epsilon):
    """They cause no loss, also where exp(-epsilon) underflows."""
    for matrix in ([[0.5, 0.5], [0.5, 0.5]], [[0.2, 0.3, 0.5]] * 3):
        assert supremum(matrix, epsilon) == epsilon


def test_limited_function_matches_below_limit_and_raises_beyond():
    matrix = sample_matrix(80, seed=5)
    whole, part = LossFunction(matrix), LossFunction(matrix, limit=0.5)
    alphas = np.linspace(0.01, 0.5, 50)
    np.testing.assert_allclose(part(alphas), whole(alphas), rtol=1e-13)
    with pytest.raises(InvalidInputError, match=r"0\.5"):
        part(0.51)
    np.testing.assert_array_equal(part(np.array([0.0, 0.5])), [0.0, part(0.5)])
    for alphas in ([0.1, 0.51], [0.1, -0.1], [math.nan]):
        with pytest.raises(InvalidInputError, match=r"0\.5"):
            part(np.array(alphas))
    with pytest.raises(InvalidInputError, match="beyond the limit"):
        part.supremum(0.5)


def test_loss_function_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        LossFunction(FIGURE_4).q[0] = 1.0


def test_loss_at_zero_is_zero():
    assert loss(FIGURE_4, 0) == loss(None, 0) == LossFunction(FIGURE_4)(0) == 0.0


@pytest.mark.parametrize("alpha", [-1.0, math.nan, math.inf])
def test_invalid_alpha_raises(alpha):
    for call in (lambda: loss(FIGURE_4, alpha), lambda: LossFunction(FIGURE_4)(alpha), lambda: loss(None, alpha)):
        with pytest.raises(InvalidInputError, match="alpha must be") as refused:
            call()
        assert "\n" not in str(refused.value)
    with pytest.raises(InvalidInputError, match="epsilon "):
        supremum(FIGURE_4, alpha)


def test_invalid_matrix_raises():
    for call in (lambda m: loss(m, 1.0), LossFunction, lambda m: supremum(m, 1.0)):
        with pytest.raises(StochasticError, match="row 1"):
            call([[0.5, 0.5], [0.5, 0.4]])


def test_memory_is_quadratic_in_size():
    matrix = sample_matrix(256, seed=1)
    loss(matrix, 1.0)  # compile first: compilation needs memory, too
    tracemalloc.start()
    try:
        LossFunction(matrix, limit=2.0)
        loss(matrix, 1.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * matrix.nbytes, "a table of all pairwise functions would be 256 times as large as the matrix"


def test_equal_rows_have_first_row_as_witness():
    for equal in (np.full((1, 1), 1.0), np.full((3, 3), 1 / 3), sp.csr_array(np.full((3, 3), 1 / 3))):
        assert LossFunction(equal).supremum(1.0).rows == (0, 0)


@pytest.mark.parametrize("tiny", [1e-17, 1e-30, 1e-190])
def test_tiny_probability_next_to_one_affects_sparse_loss(tiny):
    """Sums round the tiny entry away, but a state that one row excludes dominates eventually."""
    matrix = np.array([[1.0, tiny, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, tiny / 2]])
    for alpha in (10.0, 200.0, 600.0):
        wanted = compute_exact_loss(matrix, alpha)
        assert loss(sp.csr_array(matrix), alpha) == pytest.approx(wanted, rel=1e-12, abs=1e-300)
        assert LossFunction(sp.csr_array(matrix))(alpha) == pytest.approx(wanted, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    "matrix", [[[0.8, 0.2], [0.0, 1.0]], [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]]], ids=repr
)
def test_supremum_is_proportional_to_tiny_budgets(matrix):
    unit = supremum(matrix, 1e-12) / 1e-12
    for epsilon in (1e-200, 1e-299, 1e-301, 1e-307, 1e-310):
        np.testing.assert_allclose(supremum(matrix, epsilon) / epsilon, unit, rtol=1e-9)
    assert 0 < supremum(matrix, 1e-320) < 1e-318  # so close to zero floats have three digits
    assert supremum([[1.0, 0.0], [0.0, 1.0]], 1e-320) == np.inf
