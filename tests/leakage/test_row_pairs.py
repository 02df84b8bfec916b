"""Row-pair queries: compiled, NumPy and sparse loops, against plain sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm.compilation import compile_function
from dphmm.leakage import LossFunction, loss, row_pairs
from dphmm.leakage import loss_function as transition
from dphmm.leakage.loss_function import as_transition
from dphmm.leakage.row_pairs import Excess
from tests.leakage.oracles import compute_loss_by_ratio, sample_matrix
from tests.sizes import mark_slow


def compute_plain_excess(matrix: np.ndarray, slope: float) -> np.ndarray:
    return np.array([[math.fsum(np.maximum(q - slope * d, 0.0)) for d in matrix] for q in matrix])


def assert_exact(peaks: row_pairs.Peaks, table: np.ndarray) -> None:
    np.testing.assert_allclose(peaks.row_peak, table.max(axis=1), rtol=0, atol=1e-14)
    np.testing.assert_allclose(peaks.other_peak, table.max(axis=0), rtol=0, atol=1e-14)
    largest = table[np.searchsorted(peaks.rows, peaks.best[0]), np.searchsorted(peaks.others, peaks.best[1])]
    assert largest == pytest.approx(peaks.peak, abs=1e-14) == pytest.approx(table.max(), abs=1e-14)


def build_hub_matrix(n: int, seed: int) -> sp.csr_array:
    """Build sparse rows that all share state 0. No two are disjoint."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(n), 6)
    columns = np.where(np.arange(6 * n) % 6 == 0, 0, rng.integers(1, n, 6 * n))
    matrix = sp.csr_array((rng.gamma(0.5, size=6 * n) + 1e-3, (rows, columns)), shape=(n, n))
    matrix.sum_duplicates()
    return sp.csr_array(sp.diags_array(1 / matrix.sum(axis=1)) @ matrix)


@pytest.fixture(params=["numba", "numpy"])
def backend(request, monkeypatch):
    if request.param == "numba":
        pytest.importorskip("numba")
    choose_backend(monkeypatch, is_compiled=request.param == "numba")
    return request.param


def choose_backend(monkeypatch, is_compiled):
    for form in (row_pairs._find_min_shared_sums, row_pairs._find_compressed_peaks):
        monkeypatch.setattr(form, "_chosen", compile_function(form.loop, reorder=True) if is_compiled else form.plain)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 101])
@pytest.mark.parametrize("slope", [1.0, 1.7, 40.0])
def test_dense_peaks_match_plain_sums(backend, n, slope):
    matrix = sample_matrix(n, seed=n, zeros=0.2)
    table = compute_plain_excess(matrix, slope)
    excess = Excess(np.ascontiguousarray(matrix))
    assert_exact(excess._find_dense_peaks(slope, excess.everything, excess.everything), table)


@pytest.mark.parametrize("slope", [1.0, 3.0, math.inf])
def test_sparse_peaks_match_plain_sums(backend, slope):
    matrix = build_hub_matrix(90, seed=2)
    dense = matrix.toarray()
    if math.isinf(slope):
        table = np.array([[math.fsum(q[d == 0]) for d in dense] for q in dense])
    else:
        table = compute_plain_excess(dense, slope)
    matrix.sort_indices()
    assert_exact(Excess(matrix).find_peaks(slope), table)


def test_peaks_of_selected_rows_use_those_rows_only(backend):
    matrix = sample_matrix(70, seed=4)
    rows, others = np.array([3, 11, 12, 40, 66]), np.array([0, 11, 69])
    table = compute_plain_excess(matrix, 1.2)[np.ix_(rows, others)]
    peaks = Excess(matrix).find_peaks(1.2, rows, others)
    assert_exact(peaks, table)
    assert peaks.best == (rows[table.max(axis=1).argmax()], others[table[table.max(axis=1).argmax()].argmax()])


@pytest.mark.parametrize(("n", "width"), [(70, 70), (90, 40), (65, 600)])
@pytest.mark.parametrize("slope", [1.0, 1.3, mark_slow(40.0)])
def test_best_pair_is_exact_and_other_peaks_are_upper_bounds(backend, n, width, slope):
    rng = np.random.default_rng(width)
    matrix = rng.gamma(0.7, size=(n, width)) * (rng.random((n, width)) < 0.8)
    matrix /= matrix.sum(axis=1, keepdims=True)
    matrix[n // 2] = matrix[n // 3] * (1 - 1e-9)  # slightly smaller than another row
    table = compute_plain_excess(matrix, slope)
    excess = Excess(matrix)
    peaks = excess.find_peaks(slope)
    assert table[peaks.best] == pytest.approx(peaks.peak, abs=1e-14) == pytest.approx(table.max(), abs=1e-14)
    for bound, wanted in ((peaks.row_peak, table.max(axis=1)), (peaks.other_peak, table.max(axis=0))):
        assert ((bound >= wanted - 1e-14) & (bound <= wanted + excess.interval)).all()


def test_single_precision_error_is_within_interval(backend):
    for width in (1, 255, 256, 257, 1000, 5000):
        matrix = np.full((64, width), 1 / width)  # every entry is rounded in the same direction
        matrix[1::2, ::2] *= 1 + 2.0**-26
        excess = Excess(matrix)
        top, other_top = excess._bound_excesses(1.0, np.arange(64), np.arange(64))
        exact = 1.0 - np.array([[math.fsum(np.minimum(q, d)) for d in matrix[:2]] for q in matrix[:2]])
        for slack in (top[:2] - exact.max(axis=1), other_top[:2] - exact.max(axis=0)):
            assert ((slack > 0) & (slack < excess.interval)).all()


def test_rows_with_equal_excess_match_double_precision(monkeypatch):
    matrix = (np.eye(80) + 0.005) / 1.4
    value = loss(matrix, 1.0)
    monkeypatch.setattr(row_pairs, "_SINGLE_PRECISION_MIN_TERMS", math.inf)
    assert loss(matrix, 1.0) == value


ALPHAS = [1e-3, 1.0, 20.0, 60.0, 105.0, 150.0, 300.0, 600.0]


def build_spread_matrix(n: int, minimum: int, supports: str, seed: int) -> np.ndarray:
    """Build entries from 10^-least to 1.

    With shrinking supports, each row is positive in fewer columns than the previous one.
    """
    rng = np.random.default_rng(seed)
    matrix = 10.0 ** (-minimum * rng.random((n, n)) ** 2)
    if supports == "shrinking":
        matrix *= np.arange(n) < np.maximum(n - np.arange(n), n // 4)[:, np.newaxis]
    return matrix / matrix.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("supports", ["full", "shrinking"])
@pytest.mark.parametrize("minimum", [10, 35, 60])
@pytest.mark.parametrize(("n", "seeds"), [(28, 3), (40, 3), mark_slow(100, 2), mark_slow(150, 1)])
def test_single_precision_drops_no_pair(monkeypatch, n, seeds, minimum, supports):
    """Entries from 1e-60, α up to 600: compare with double precision and ratio sets."""
    for seed in range(seeds):
        matrix = build_spread_matrix(n, minimum, supports, seed)
        with monkeypatch.context() as patched:
            patched.setattr(row_pairs, "_SINGLE_PRECISION_MIN_TERMS", math.inf)
            wanted = [loss(matrix, alpha) for alpha in ALPHAS]
        np.testing.assert_allclose(wanted, compute_loss_by_ratio(matrix, ALPHAS), rtol=1e-10)
        np.testing.assert_allclose([loss(matrix, alpha) for alpha in ALPHAS], wanted, rtol=1e-12)
        np.testing.assert_allclose(LossFunction(matrix)(ALPHAS), wanted, rtol=1e-11)


@pytest.mark.parametrize("n", [64, mark_slow(300)])
@pytest.mark.parametrize("supports", ["full", "shrinking"])
@pytest.mark.parametrize("slope", [1.0, 1.5, 1e6, 1e40])
def test_largest_excess_is_within_single_precision_interval(backend, n, supports, slope):
    excess = Excess(build_spread_matrix(n, 60, supports, seed=4))
    exact = excess._find_dense_peaks(slope, excess.everything, excess.everything)
    for top, peak in zip(
        excess._bound_excesses(slope, excess.everything, excess.everything),
        (exact.row_peak, exact.other_peak),
        strict=True,
    ):
        assert ((top - excess.interval <= peak) & (peak <= top)).all()


def test_too_small_error_bound_is_detected_and_query_stays_exact(monkeypatch):
    """With a bound near zero, intervals miss the largest excess, but the query is exact."""
    excess = Excess(build_spread_matrix(64, 10, "full", seed=4))
    exact = excess._find_dense_peaks(1.2, excess.everything, excess.everything)
    monkeypatch.setattr(row_pairs, "bound_single_precision_error", lambda width: 1e-12)
    broken = Excess(excess.matrix)
    top, _ = broken._bound_excesses(1.2, excess.everything, excess.everything)
    assert not ((top - broken.interval <= exact.row_peak) & (exact.row_peak <= top)).all()
    assert broken.find_peaks(1.2).peak == pytest.approx(exact.peak, rel=1e-14)


def test_backends_give_equal_loss_function(monkeypatch):
    pytest.importorskip("numba")
    matrix = sample_matrix(120, seed=9, spread=0.4)
    choose_backend(monkeypatch, is_compiled=True)
    fast = LossFunction(matrix)
    values = [loss(matrix, alpha) for alpha in (0.01, 1.0, 9.0)]
    choose_backend(monkeypatch, is_compiled=False)
    slow = LossFunction(matrix)
    np.testing.assert_allclose(fast.starts, slow.starts, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(fast.q, slow.q, rtol=1e-12)
    np.testing.assert_allclose(values, [loss(matrix, alpha) for alpha in (0.01, 1.0, 9.0)], rtol=1e-13)


@pytest.mark.parametrize("seed", range(4))
def test_sparse_and_dense_forms_give_equal_loss(seed, monkeypatch):
    matrix = build_hub_matrix(150, seed)
    alphas = np.array([1e-4, 0.3, 2.0, 15.0, 60.0, 800.0])
    assert sp.issparse(as_transition(matrix))
    sparse = LossFunction(matrix)(alphas), [loss(matrix, alpha) for alpha in alphas]
    monkeypatch.setattr(transition, "SPARSE_MAX_FILL", 0.0)
    assert not sp.issparse(as_transition(matrix))
    dense = LossFunction(matrix)(alphas), [loss(matrix, alpha) for alpha in alphas]
    for values in (*sparse, dense[1]):
        np.testing.assert_allclose(values, dense[0], rtol=1e-11)


def test_disjoint_rows_of_large_sparse_matrix_are_found():
    n = 10_000
    ring = sp.diags_array([0.5, 0.3, 0.2], offsets=[0, 1, 1 - n], shape=(n, n))
    ring = sp.csr_array(sp.diags_array(1 / ring.sum(axis=1)) @ ring)
    first, second = Excess(as_transition(ring)).find_disjoint_rows()
    assert ring[[first]].multiply(ring[[second]]).nnz == 0


def test_loss_works_without_numba(monkeypatch):
    import builtins

    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "numba":
            raise ImportError("no numba here")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    compile_function.cache_clear()
    try:
        assert compile_function(row_pairs._find_min_shared_sums_loop, reorder=True) is None
        matrix = sample_matrix(80, seed=1)
        value = loss(matrix, 1.0)
    finally:
        compile_function.cache_clear()
    monkeypatch.undo()
    assert loss(matrix, 1.0) == pytest.approx(value, rel=1e-13)


def test_probability_lost_in_sums_is_found_if_one_row_excludes_it():
    matrix = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 2e-30], [1.0, 1e-30, 0.0]])
    for form in (matrix, sp.csr_array(matrix)):
        result = Excess(form).find_unbounded_vertex()
        assert (result.q, result.d, result.rows) == (2e-30, 0.0, (1, 0))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slope", [1.0, 1.3, 7.0, 1e4])
def test_sparse_deviations_give_all_excesses(seed, slope):
    """Smoothed sparse matrices, also with selected rows, against plain sums.

    Equal rows have no excess.
    """
    rng = np.random.default_rng(seed)
    sparse = np.eye(70) + (rng.random((70, 70)) < 0.01) * rng.random((70, 70))
    matrix = sparse / sparse.sum(axis=1, keepdims=True) + 0.01 * rng.dirichlet(np.ones(70))
    excess = Excess(np.ascontiguousarray(matrix / matrix.sum(axis=1, keepdims=True)))
    rows, others = np.sort(rng.permutation(70)[:40]), np.sort(rng.permutation(70)[:55])
    table = compute_plain_excess(excess.matrix, slope)
    for q, d in ((excess.everything, excess.everything), (rows, others)):
        assert_exact(excess._find_dense_peaks(slope, q, d), table[np.ix_(q, d)])
    alike = Excess(np.full((70, 70), 1 / 70))
    assert alike.find_peaks(1.0).peak == 0.0


def test_single_precision_is_not_used_for_few_deviations(monkeypatch):
    """In a smoothed identity all pairs of rows have the same excess."""
    matrix = np.ascontiguousarray((np.eye(200) + 0.005) / 2.0)
    monkeypatch.setattr(Excess, "_bound_excesses", None)
    peaks = Excess(matrix).find_peaks(1.5)
    assert_exact(peaks, np.full((200, 200), 1.005 / 2 - 1.5 * 0.0025) * (1 - np.eye(200)))
    with pytest.raises(TypeError):
        Excess(np.random.default_rng(1).dirichlet(np.ones(200), 200)).find_peaks(1.5)
