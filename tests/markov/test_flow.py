"""Sums of masses are exact to rounding whatever their ratio, compiled or not, and vanish nowhere."""

from __future__ import annotations

from contextlib import contextmanager
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from dphmm import Belief, MarkovModel
from dphmm.compilation import compiled
from dphmm.markov import Contexts, flow, sums
from dphmm.markov.flow import Flow
from dphmm.markov.masses import Masses, masses_of_logs
from tests.forms import forms_of

SEEDS = 30


def instance(seed: int, most: int = 15) -> tuple[Flow, Masses]:
    """Shares down to ``1e-300``, masses over up to 10 000 nats, impossible states, empty rows."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, most))
    matrix = random_array((size, size), density=rng.uniform(0.02, 0.9), rng=rng, format="csr")
    matrix.data **= rng.choice([1, 5, 100, 300])
    matrix.data[matrix.data < 1e-300] = 1e-300
    logs = -rng.random(size) * 10.0 ** rng.uniform(1, 4)
    logs[rng.random(size) < 0.2] = -np.inf
    logs[0] = 0.0
    return Flow(csr_array(matrix)), masses_of_logs(logs)


def by_fractions(one: Flow, masses: Masses) -> list[Fraction]:
    weights = [Fraction(m) * Fraction(2) ** int(e) if m else Fraction(0) for m, e in pairs(masses)]
    return [
        sum((Fraction(a) * w for a, w in zip(row.tolist(), weights, strict=True) if a and w), Fraction(0))
        for row in one.matrix.toarray()
    ]


def pairs(masses: Masses) -> list[tuple[float, float]]:
    return list(zip(masses.mantissa.tolist(), masses.exponent.tolist(), strict=True))


def agrees(found: Masses, exact: list[Fraction]) -> bool:
    for (mantissa, exponent), wanted in zip(pairs(found), exact, strict=True):
        if (mantissa > 0) != (wanted > 0):
            return False
        if wanted and abs(Fraction(mantissa) * Fraction(2) ** int(exponent) / wanted - 1) > Fraction(1, 10**13):
            return False
    return True


@pytest.fixture(params=["compiled", "numpy", "plain sums where they do"])
def loops(request, monkeypatch):
    gathered = sums.gathered_masses
    if request.param == "compiled":
        pytest.importorskip("numba")
        monkeypatch.setattr(flow, "_COMPILE_FROM", 0)
        monkeypatch.setattr(gathered, "_chosen", compiled(gathered.loop))
    if request.param != "plain sums where they do":
        monkeypatch.setattr(Flow, "floats_of", lambda *_: None)
    if request.param == "numpy":
        monkeypatch.setattr(flow, "compiled", lambda _: None)
        monkeypatch.setattr(gathered, "_chosen", gathered.plain)


@pytest.mark.usefixtures("loops")
def test_a_step_equals_exact_sums_and_loses_no_state():
    for seed in range(SEEDS):
        one, masses = instance(seed)
        assert agrees(one.step(masses), by_fractions(one, masses)), seed


@pytest.mark.usefixtures("loops")
def test_masses_of_which_no_limb_is_told_go_on_as_others_do():
    for seed in range(SEEDS):
        one, masses = instance(seed)
        wanted, found = one.step(masses), one.step(Masses(masses.mantissa, masses.exponent - 2.0**42))
        np.testing.assert_allclose(found.mantissa, wanted.mantissa, rtol=1e-15)
        np.testing.assert_array_equal(found.exponent, wanted.exponent - 2.0**42)


def test_the_oracle_refuses_sums_of_floats():
    """The broken twin: floats alone, whatever the masses."""
    refused = 0
    for seed in range(SEEDS):
        one, masses = instance(seed)
        refused += not agrees(Masses.of(one.product(masses.plain())), by_fractions(one, masses))
    assert refused


def test_compiled_and_plain_sums_are_the_same_to_the_last_bit(monkeypatch):
    gathered = sums.gathered_masses
    loop = compiled(gathered.loop)
    if loop is None:
        pytest.skip("numba is not installed")
    monkeypatch.setattr(Flow, "floats_of", lambda *_: None)
    for seed in range(2 * SEEDS):
        one, masses = instance(seed, 15 if seed < SEEDS else 600)
        found = []
        for form in (loop, gathered.plain):
            monkeypatch.setattr(gathered, "_chosen", form)
            found.append(pairs(one.step(masses)))
        assert found[0] == found[1], seed


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
    one, values = Flow(csr_array(matrix)), rng.random(500) * (rng.random(500) < 0.3)
    assert one.matrix.nnz >= flow._DENSE_FROM
    assert one.dense is not None
    found = one.product(values)
    assert found[7] == 0
    np.testing.assert_allclose(found, one.matrix @ values, rtol=1e-13)


def test_dense_products_and_powers_are_made_on_one_thread(monkeypatch):
    """Where a machine has one processor, results cannot show whether the others were kept out."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    real, seen = flow.one_thread, []

    @contextmanager
    def looked_into():
        with real():
            seen.append({one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"})
            yield

    monkeypatch.setattr(flow, "one_thread", looked_into)
    rng = np.random.default_rng(6)
    one = Flow(csr_array(rng.dirichlet(np.ones(400), 400)))
    with threadpoolctl.threadpool_limits(2):
        one.product(np.ones(400))
        assert seen == [{1}]
        one.carry(Masses.of(np.full(400, 1 / 400)), 5000)
    assert len(seen) > 1
    assert all(threads == {1} for threads in seen)


@pytest.mark.parametrize("size", [40, 150, 600])
def test_results_do_not_depend_on_the_number_of_threads(size):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    found = []
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(threads):
            rng = np.random.default_rng(size)
            model = MarkovModel(rng.dirichlet(np.ones(size), size), np.full(size, 1 / size))
            belief = Belief.of(model.initial).update(rng.normal(0, 50, size)).predict(model).predict(model, 5000)
            found.append(pairs(belief.masses))
    assert found[0] == found[1]


def test_a_state_reached_by_a_tiny_share_of_a_tiny_mass_stays_possible():
    """The product, 2^-1600, is zero in floats; each factor is far from it."""
    one = Flow(csr_array([[1.0, 0.0], [2.0**-800, 0.0]]))
    masses = masses_of_logs(np.array([-800 * np.log(2), 0.0]))
    found = one.step(masses)
    assert agrees(found, by_fractions(one, masses))
    assert found.support.all()
    assert one.carry(found, 50).support.all()


def test_products_by_diagonals_are_those_by_lists_to_the_last_bit(monkeypatch):
    """A square grid with some places left out, of which masses go a few places on."""
    rng = np.random.default_rng(11)
    monkeypatch.setattr(flow, "_OFTEN", 2)
    monkeypatch.setattr(flow, "_FILLED", 20.0)
    cells = np.argwhere(rng.random((20, 20)) < 0.95)
    near = np.abs(cells[:, None] - cells).max(axis=2) <= 3
    matrix = csr_array(np.where(near, rng.random(near.shape), 0.0))
    one = Flow(matrix)
    for _ in range(5):
        values = rng.random(len(cells)) * 10.0 ** rng.integers(-300, 0, len(cells))
        wanted = matrix @ values
        assert (one.product(values) == wanted).all()
        for form in forms_of(sums.sums_along_diagonals):
            assert one.diagonals is not None
            form(values, *one.diagonals, found := np.empty(len(values)))
            assert (found == wanted).all()
    monkeypatch.setattr(flow, "_FILLED", 0.5)
    assert Flow(matrix).diagonals is None


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_are_like_others_are_summed_in_fewer_numbers(seed):
    """Rows of pairs: counts shrunk towards the row of their state; some rows are like no other."""
    rng, size = np.random.default_rng(seed), 60
    pairs = np.unique(rng.integers(size, size=(300, 2)), axis=0)
    contexts = Contexts(size, pairs)
    rows = (rng.random((size, size)) + 0.01 * np.eye(size))[contexts.last]
    for _ in range(200):
        rows[rng.integers(size, len(rows)), rng.integers(size)] += 5.0
    odd = rng.integers(size, len(rows), 20)
    rows[odd] = rng.random((20, size)) * (rng.random((20, size)) < 0.5) + np.eye(size)[contexts.last[odd]]
    rows /= rows.sum(axis=1, keepdims=True)
    matrix = contexts.chain(csr_array(rows))
    flow, plain = Flow(matrix.tocsc().T, turned=matrix, alike=contexts.last), Flow(matrix.tocsc().T)
    assert flow._lean is not None
    assert flow._lean.entries < 0.5 * matrix.nnz
    masses = 10.0 ** rng.uniform(-200, 0, len(contexts)) * (rng.random(len(contexts)) < 0.5)
    for back in (False, True):
        one, other = flow.columns(masses, back), matrix.toarray() @ masses if back else masses @ matrix.toarray()
        np.testing.assert_allclose(one, other, rtol=1e-13)
        np.testing.assert_array_equal(one > 0, other > 0)
    near = Masses.of(masses)
    far, walked = flow.carry(near, 40), plain.carry(near, 40)
    np.testing.assert_allclose(far.plain(), walked.plain(), rtol=1e-12)
    np.testing.assert_array_equal(far.support, walked.support)
    far, walked = Flow(matrix, flow).carry(near, 40), Flow(matrix).carry(near, 40)
    np.testing.assert_allclose(far.plain(), walked.plain(), rtol=1e-12)
    np.testing.assert_array_equal(far.support, walked.support)


def test_matrices_that_take_turns_make_no_powers_either_way():
    """They would serve a few steps each, and there may be dozens of matrices."""
    rng = np.random.default_rng(5)
    matrix = csr_array(rng.dirichlet(np.ones(6), size=6))
    for brief in (True, False):
        ahead = Flow(matrix.tocsc().T, turned=matrix, brief=brief)
        back = Flow(matrix, ahead)
        weights, masses = Masses.of(rng.random(6)), Masses.of(rng.dirichlet(np.ones(6)))
        far = np.linalg.matrix_power(matrix.toarray(), 4096)
        np.testing.assert_allclose(back.carry(weights, 4096).plain(), far @ weights.plain(), rtol=1e-11)
        np.testing.assert_allclose(ahead.carry(masses, 4096).plain(), masses.plain() @ far, rtol=1e-11)
        assert bool(ahead._powers.made) is not brief
