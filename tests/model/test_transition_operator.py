"""Steps of log masses: accurate to rounding at any ratio, with exact support."""

from __future__ import annotations

import math
from contextlib import contextmanager

import mpmath
import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from dphmm import Belief, MarkovModel
from dphmm.model import transition_operator as module
from dphmm.model.transition_operator import IDENTITY, LogProduct, TransitionOperator
from tests.forms import list_forms

SEEDS = 30


def build_instance(seed: int) -> tuple[csr_array, np.ndarray]:
    """Build shares down to ``1e-300``, masses over up to 10,000 nats and empty rows."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 15))
    matrix = random_array((size, size), density=rng.uniform(0.02, 0.9), rng=rng, format="csr")
    matrix.data **= rng.choice([1, 5, 100, 300])
    matrix.data[matrix.data < 1e-300] = 1e-300
    logs = -rng.random(size) * 10.0 ** rng.uniform(1, 4)
    logs[rng.random(size) < 0.2] = -np.inf
    logs[0] = 0.0
    return csr_array(matrix), logs


def multiply_with_mpmath(matrix: np.ndarray, logs: np.ndarray) -> list[float]:
    """Compute logarithms of ``matrix @ exp(logs)``."""
    with mpmath.workdps(60):
        weights = [mpmath.exp(mpmath.mpf(log)) if log > -np.inf else mpmath.mpf(0) for log in logs.tolist()]
        sums = [mpmath.fsum(mpmath.mpf(a) * w for a, w in zip(row, weights, strict=True)) for row in matrix.tolist()]
        return [float(mpmath.log(total)) if total else -np.inf for total in sums]


def are_close(logs: np.ndarray, exact: list[float]) -> bool:
    wanted = np.array(exact)
    possible = wanted > -np.inf
    if not np.array_equal(logs > -np.inf, possible):
        return False
    return bool(np.allclose(logs[possible], wanted[possible], rtol=1e-13, atol=1e-13))


def test_forward_and_backward_match_exact_sums_and_support():
    for seed in range(SEEDS):
        matrix, logs = build_instance(seed)
        operator = TransitionOperator(matrix)
        assert are_close(operator.propagate_forward(logs), multiply_with_mpmath(matrix.toarray().T, logs)), seed
        assert are_close(operator.propagate_backward(logs), multiply_with_mpmath(matrix.toarray(), logs)), seed


def test_compiled_and_numpy_forms_agree_to_last_bit():
    """A process may compile the loop during its work. Reproduced files must not differ."""
    rng = np.random.default_rng(0)
    for size in (1, 7, 300):
        matrix = csr_array(random_array((size, size), density=0.3, rng=rng, format="csr"))
        lists = LogProduct(matrix).rows
        values, levels = np.exp(-600 * rng.random(size)), -np.floor(3 * rng.random(size))
        levels[rng.random(size) < 0.1] = -np.inf
        results = [np.empty((2, size)) for _ in list_forms(module._sum_terms_by_levels)]
        for form, (totals, tops) in zip(list_forms(module._sum_terms_by_levels), results, strict=True):
            form(lists, np.where(levels > -np.inf, values, np.nan), levels, totals, tops)
        assert all(result.tobytes() == results[0].tobytes() for result in results)


def test_both_forms_split_levels_alike():
    """Levels are compared with plain Python, and differences with their definition."""
    logs = np.concatenate([-(10.0 ** np.arange(-3, 18)), [0.0, -600.0, np.nextafter(-600.0, 0), -np.inf]])
    for form in list_forms(module._split_levels):
        rest, levels = logs.copy(), np.empty_like(logs)
        with np.errstate(invalid="ignore"):
            form(rest, levels)
        assert levels.tolist() == [math.ceil(log / 600) if log > -np.inf else log for log in logs.tolist()]
        assert ((rest >= -600) & (rest <= 0)).all()
        exact = logs > -1e15
        np.testing.assert_array_equal(rest[exact], logs[exact] - levels[exact] * 600)


@pytest.mark.parametrize("next_value", [1e-260, 1e-49, 1e-40, 1.0])
def test_terms_of_the_next_level_count_above_rounding(next_value):
    """The first mass is the smallest of its level, and has the smallest entry."""
    smallest, share = math.exp(-600), 2.0**-100
    lists = LogProduct(csr_array(np.array([[share, 1.0]]))).rows
    exact = mpmath.exp(-600) * share + mpmath.mpf(next_value) * mpmath.exp(-600)
    for form in list_forms(module._sum_terms_by_levels):
        total, top_log = np.empty((2, 1))
        form(lists, np.array([smallest, next_value]), np.array([0.0, -1.0]), total, top_log)
        assert total[0] == pytest.approx(float(exact), rel=1e-13)
        assert top_log[0] == 0.0


def test_float_sums_fail_comparison():
    """Plain floats fail for masses of very different size."""
    refused = 0
    for seed in range(SEEDS):
        matrix, logs = build_instance(seed)
        with np.errstate(divide="ignore"):
            refused += not are_close(np.log(matrix @ np.exp(logs)), multiply_with_mpmath(matrix.toarray(), logs))
    assert refused


def test_non_square_operator_works_in_both_directions():
    matrix = np.array([[0.5, 0.0, 2.0], [0.25, 0.0, 0.0]])
    operator = TransitionOperator(matrix)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(operator.propagate_forward(np.log([0.2, 0.8])), np.log([0.3, 0.0, 0.4]))
        np.testing.assert_allclose(operator.propagate_backward(np.log([0.2, 0.7, 0.1])), np.log([0.3, 0.05]))
    logs = np.array([0.0, -np.inf])
    assert IDENTITY.propagate_forward(logs) is IDENTITY.propagate_backward(logs) is logs
    assert (operator.propagate_forward(np.full(2, -np.inf)) == -np.inf).all()


def test_beliefs_over_10000_nats_match_mpmath():
    rng = np.random.default_rng(4)
    size = 25
    matrix = np.diag(rng.random(size) + 0.1) + np.diag(rng.random(size - 1), 1) + np.diag(rng.random(size - 1), -1)
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(size, 1 / size))
    belief = Belief.from_probabilities(model.initial)
    with mpmath.workdps(40):
        exact = mpmath.matrix([[mpmath.mpf(float(p)) for p in model.initial]])
        moves = mpmath.matrix(model.transition.toarray().tolist())
        for _ in range(6):
            rows = -rng.random(size) * 10_000
            exact = exact * moves
            for i, row in enumerate(rows.tolist()):
                exact[i] *= mpmath.exp(row)
            exact /= sum(exact)
            belief = belief.predict(model).update(rows)
            logs = np.array([float(mpmath.log(p)) for p in exact])
            np.testing.assert_allclose(belief.log_mass, logs, rtol=1e-13, atol=1e-11)
            assert belief.support.all()
    assert np.ptp(belief.log_mass) > 10_000


def test_extreme_logarithms_stay_possible():
    belief = Belief.from_probabilities(np.full(4, 0.25)).update(np.array([0.0, -1e14, -1e200, -np.inf]))
    assert belief.support.tolist() == [True, True, True, False]
    assert belief.log_mass[1] == pytest.approx(-1e14, rel=1e-12)
    assert belief.log_mass[2] < -7e14


def test_dense_product_matches_sparse_product_and_keeps_zeros():
    rng = np.random.default_rng(4)
    matrix = rng.random((500, 500)) * (rng.random((500, 500)) < 0.5)
    matrix[7] = 0.0
    product, values = LogProduct(csr_array(matrix)), rng.random(500) * (rng.random(500) < 0.3)
    assert product.matrix.nnz >= module._DENSE_MIN_ENTRIES
    assert product.dense is not None
    product_values = product.multiply(values)
    assert product_values[7] == 0
    np.testing.assert_allclose(product_values, product.matrix @ values, rtol=1e-13)
    columns = rng.random((500, 3))
    np.testing.assert_allclose(product.multiply(columns), product.matrix @ columns, rtol=1e-13)


def test_dense_products_use_one_thread(monkeypatch):
    """The results do not depend on threads on a machine with one processor."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    real, seen = module.limit_to_one_thread, []

    @contextmanager
    def inspect_threads():
        with real():
            seen.append({pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"})
            yield

    monkeypatch.setattr(module, "limit_to_one_thread", inspect_threads)
    product = LogProduct(csr_array(np.random.default_rng(6).dirichlet(np.ones(400), 400)))
    with threadpoolctl.threadpool_limits(2):
        product.multiply(np.ones(400))
    assert seen == [{1}]


@pytest.mark.parametrize("size", [40, 150, 600])
def test_results_do_not_depend_on_the_number_of_threads(size):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    beliefs = []
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(threads):
            rng = np.random.default_rng(size)
            model = MarkovModel(rng.dirichlet(np.ones(size), size), np.full(size, 1 / size))
            belief = (
                Belief.from_probabilities(model.initial)
                .update(rng.normal(0, 50, size))
                .predict(model)
                .predict(model, 5000)
            )
            beliefs.append(belief.to_bytes())
    assert beliefs[0] == beliefs[1]


def test_tiny_share_of_tiny_mass_stays_possible():
    """The product, 2^-1600, is zero in floats. The factors are not."""
    matrix = np.array([[1.0, 0.0], [2.0**-800, 0.0]])
    logs = np.array([-800 * np.log(2), 0.0])
    logs_after = LogProduct(csr_array(matrix))(logs)
    assert are_close(logs_after, multiply_with_mpmath(matrix, logs))
    assert (logs_after > -np.inf).all()
