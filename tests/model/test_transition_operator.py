"""A step of log masses is exact to rounding whatever their ratio, and no possible state is lost."""

from __future__ import annotations

from contextlib import contextmanager

import mpmath
import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from dphmm import Belief, MarkovModel
from dphmm.model import transition_operator as module
from dphmm.model.transition_operator import IDENTITY, LogProduct, TransitionOperator
from tests.forms import forms_of

SEEDS = 30


def instance(seed: int) -> tuple[csr_array, np.ndarray]:
    """Shares down to ``1e-300``, masses over up to 10 000 nats, impossible states, empty rows."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 15))
    matrix = random_array((size, size), density=rng.uniform(0.02, 0.9), rng=rng, format="csr")
    matrix.data **= rng.choice([1, 5, 100, 300])
    matrix.data[matrix.data < 1e-300] = 1e-300
    logs = -rng.random(size) * 10.0 ** rng.uniform(1, 4)
    logs[rng.random(size) < 0.2] = -np.inf
    logs[0] = 0.0
    return csr_array(matrix), logs


def by_mpmath(matrix: np.ndarray, logs: np.ndarray) -> list[float]:
    """Logarithms of ``matrix @ exp(logs)``."""
    with mpmath.workdps(60):
        weights = [mpmath.exp(mpmath.mpf(log)) if log > -np.inf else mpmath.mpf(0) for log in logs.tolist()]
        sums = [mpmath.fsum(mpmath.mpf(a) * w for a, w in zip(row, weights, strict=True)) for row in matrix.tolist()]
        return [float(mpmath.log(one)) if one else -np.inf for one in sums]


def agrees(found: np.ndarray, exact: list[float]) -> bool:
    wanted = np.array(exact)
    some = wanted > -np.inf
    if not np.array_equal(found > -np.inf, some):
        return False
    return bool(np.allclose(found[some], wanted[some], rtol=1e-13, atol=1e-13))


def test_steps_both_ways_equal_exact_sums_and_lose_no_state():
    for seed in range(SEEDS):
        matrix, logs = instance(seed)
        one = TransitionOperator(matrix)
        assert agrees(one.forward(logs), by_mpmath(matrix.toarray().T, logs)), seed
        assert agrees(one.backward(logs), by_mpmath(matrix.toarray(), logs)), seed


def test_both_forms_give_the_same_to_the_last_bit():
    """A process compiles the loop in the midst of its work; files of releases that are made again must not show it."""
    rng = np.random.default_rng(0)
    for size in (1, 7, 300):
        matrix = csr_array(random_array((size, size), density=0.3, rng=rng, format="csr"))
        lists = LogProduct(matrix).lists
        values, levels = np.exp(-600 * rng.random(size)), -np.floor(3 * rng.random(size))
        levels[rng.random(size) < 0.1] = -np.inf
        found = [np.empty((2, size)) for _ in forms_of(module._sums_by_levels)]
        for form, (totals, tops) in zip(forms_of(module._sums_by_levels), found, strict=True):
            form(lists, np.where(levels > -np.inf, values, np.nan), levels, totals, tops)
        assert all(one.tobytes() == found[0].tobytes() for one in found)


def test_the_oracle_refuses_sums_of_floats():
    """The broken twin: floats alone, whatever the masses."""
    refused = 0
    for seed in range(SEEDS):
        matrix, logs = instance(seed)
        with np.errstate(divide="ignore"):
            refused += not agrees(np.log(matrix @ np.exp(logs)), by_mpmath(matrix.toarray(), logs))
    assert refused


def test_operators_of_other_shapes_and_sums_go_both_ways():
    matrix = np.array([[0.5, 0.0, 2.0], [0.25, 0.0, 0.0]])
    one = TransitionOperator(matrix)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(one.forward(np.log([0.2, 0.8])), np.log([0.3, 0.0, 0.4]))
        np.testing.assert_allclose(one.backward(np.log([0.2, 0.7, 0.1])), np.log([0.3, 0.05]))
    logs = np.array([0.0, -np.inf])
    assert IDENTITY.forward(logs) is IDENTITY.backward(logs) is logs
    assert (one.forward(np.full(2, -np.inf)) == -np.inf).all()


def test_beliefs_over_ten_thousand_nats_equal_mpmath_step_after_step():
    rng = np.random.default_rng(4)
    size = 25
    matrix = np.diag(rng.random(size) + 0.1) + np.diag(rng.random(size - 1), 1) + np.diag(rng.random(size - 1), -1)
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(size, 1 / size))
    belief = Belief.of(model.initial)
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


def test_logarithms_beyond_all_digits_stay_possible():
    belief = Belief.of(np.full(4, 0.25)).update(np.array([0.0, -1e14, -1e200, -np.inf]))
    assert belief.support.tolist() == [True, True, True, False]
    assert belief.log_mass[1] == pytest.approx(-1e14, rel=1e-12)
    assert belief.log_mass[2] < -7e14


def test_a_full_matrix_is_multiplied_as_its_lists_are_and_its_zeros_stay_zeros():
    rng = np.random.default_rng(4)
    matrix = rng.random((500, 500)) * (rng.random((500, 500)) < 0.5)
    matrix[7] = 0.0
    one, values = LogProduct(csr_array(matrix)), rng.random(500) * (rng.random(500) < 0.3)
    assert one.matrix.nnz >= module._DENSE_FROM
    assert one.dense is not None
    found = one.plain(values)
    assert found[7] == 0
    np.testing.assert_allclose(found, one.matrix @ values, rtol=1e-13)
    columns = rng.random((500, 3))
    np.testing.assert_allclose(one.plain(columns), one.matrix @ columns, rtol=1e-13)


def test_dense_products_are_made_on_one_thread(monkeypatch):
    """Where a machine has one processor, results cannot show whether the others were kept out."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    real, seen = module.one_thread, []

    @contextmanager
    def looked_into():
        with real():
            seen.append({one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"})
            yield

    monkeypatch.setattr(module, "one_thread", looked_into)
    one = LogProduct(csr_array(np.random.default_rng(6).dirichlet(np.ones(400), 400)))
    with threadpoolctl.threadpool_limits(2):
        one.plain(np.ones(400))
    assert seen == [{1}]


@pytest.mark.parametrize("size", [40, 150, 600])
def test_results_do_not_depend_on_the_number_of_threads(size):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    found = []
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(threads):
            rng = np.random.default_rng(size)
            model = MarkovModel(rng.dirichlet(np.ones(size), size), np.full(size, 1 / size))
            belief = Belief.of(model.initial).update(rng.normal(0, 50, size)).predict(model).predict(model, 5000)
            found.append(belief.to_bytes())
    assert found[0] == found[1]


def test_a_state_reached_by_a_tiny_share_of_a_tiny_mass_stays_possible():
    """The product, 2^-1600, is zero in floats; each factor is far from it."""
    matrix = np.array([[1.0, 0.0], [2.0**-800, 0.0]])
    logs = np.array([-800 * np.log(2), 0.0])
    found = LogProduct(csr_array(matrix))(logs)
    assert agrees(found, by_mpmath(matrix, logs))
    assert (found > -np.inf).all()
