"""Long gaps under models with transient states of decaying mass."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dphmm.model import multi_step
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import LogProduct, Operator, TransitionOperator
from tests.sizes import mark_rest_slow

RATES = [0.01, 0.25, 0.5, 0.5, 0.9, 0.97, 0.999]


def build_instance(seed: int) -> tuple[MarkovModel, np.ndarray]:
    """Build chains with transient states at several rates, cycles and closed classes.

    Log masses range over up to 5,000 nats; some masses are zero.
    """
    rng = np.random.default_rng(seed)
    size = int(rng.integers(4, 20))
    matrix, order = np.zeros((size, size)), rng.permutation(size)
    for place, state in enumerate(order):
        for other in order[place + 1 :][: rng.integers(0, 3)]:
            matrix[state, other] = rng.choice([1.0, 0.1, 1e-12])
    for _ in range(rng.integers(0, 4)):
        cycle = rng.permutation(size)[: rng.integers(2, 4)]
        matrix[cycle, np.roll(cycle, -1)] = rng.random(len(cycle))
    for state in range(size):
        stay, total = rng.choice(RATES) * (rng.random() < 0.8), matrix[state].sum()
        matrix[state] *= (1 - stay) / total if total else 0.0
        matrix[state, state] += stay if total else 1.0
    logs = -rng.random(size) * rng.choice([1.0, 100.0, 5000.0])
    logs[rng.random(size) < rng.choice([0.0, 0.5])] = -np.inf
    logs[rng.integers(size)] = 0.0
    return MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(size, 1 / size)), logs


def step_repeatedly(step: Operator, logs: np.ndarray, steps: int, back: bool = False) -> np.ndarray:
    for _ in range(steps):
        logs = step.propagate_backward(logs) if back else step.propagate_forward(logs)
    return logs


def are_equal(logs: np.ndarray, wanted: np.ndarray) -> bool:
    possible = wanted > -np.inf
    if not np.array_equal(logs > -np.inf, possible):
        return False
    return np.allclose(logs[possible], wanted[possible], rtol=1e-9, atol=1e-10)


@pytest.fixture(params=["by powers", "walked"])
def way(request, monkeypatch):
    if request.param == "walked":
        monkeypatch.setattr(multi_step, "POWERS_MAX_STATES", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("seed", mark_rest_slow(range(10), 2))
def test_many_steps_match_single_steps_with_decaying_masses(seed):
    model, logs = build_instance(seed)
    far, step = model.operator(1900), model.operator()
    assert are_equal(far.propagate_forward(logs), step_repeatedly(step, logs, 1900))
    assert are_equal(far.propagate_backward(logs), step_repeatedly(step, logs, 1900, back=True))


@pytest.mark.slow
@pytest.mark.usefixtures("way")
def test_decay_at_three_rates_matches_exact_fractions():
    """A transient chain with stay probabilities 1/4, 1/2 and 1/8: all are binary fractions."""
    matrix = np.array([[0.25, 0.75, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.125, 0.875], [0, 0, 0, 1]])
    model, steps = MarkovModel(matrix, [1, 0, 0, 0]), 3000
    weights = [Fraction(1), Fraction(0), Fraction(0), Fraction(0)]
    shares = [[Fraction(share) for share in row] for row in matrix.T.tolist()]
    for _ in range(steps):
        weights = [sum((a * w for a, w in zip(row, weights, strict=True) if a), Fraction(0)) for row in shares]
    logs = model.operator(steps).propagate_forward(model.initial_logs())
    with mpmath.workdps(30):
        wanted = [float(mpmath.log(mpmath.mpf(weight.numerator) / weight.denominator)) for weight in weights]
    np.testing.assert_allclose(logs, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.slow
def test_gap_of_a_year_of_minutes_needs_few_products(monkeypatch):
    """Two cycles and two states, all transient, and a closed class: five rates."""
    matrix = np.zeros((8, 8))
    matrix[[0, 1, 1], [1, 0, 2]] = 1.0, 0.5, 0.5
    matrix[[2, 3, 3], [3, 2, 4]] = 1.0, 0.9, 0.1
    matrix[[4, 4, 5, 5, 6, 6, 7, 7], [4, 5, 5, 6, 6, 7, 6, 7]] = 0.3, 0.7, 0.99, 0.01, 0.5, 0.5, 0.25, 0.75
    model = MarkovModel(matrix, np.full(8, 1 / 8))
    sums = []
    for name in ("__call__", "multiply"):
        real = getattr(LogProduct, name)
        monkeypatch.setattr(LogProduct, name, lambda self, *rest, real=real: (sums.append(1), real(self, *rest))[1])
    near, far = (model.operator(steps).propagate_forward(model.initial_logs()) for steps in (400_000, 500_000))
    assert len(sums) < 40_000
    slopes = (far - near)[:6] / 100_000
    np.testing.assert_allclose(slopes, np.log([0.5, 0.5, 0.9, 0.9, 0.9, 0.99**2]) / 2, rtol=1e-10)
    np.testing.assert_allclose(np.exp(far[6:]), [1 / 3, 2 / 3], rtol=1e-9)


@pytest.mark.usefixtures("way")
def test_small_states_fed_by_others_match_single_steps():
    model = MarkovModel([[0.9, 0.1, 0], [0.2, 0.7, 0.1], [0.0, 0.0, 1.0]], [1, 0, 0])
    logs = np.array([0.0, -700.0, -690.0])
    assert are_equal(model.operator(50).propagate_forward(logs), step_repeatedly(model.operator(), logs, 50))


def test_slower_decaying_source_is_not_extrapolated_too_early(monkeypatch):
    """A small mass that decays more slowly feeds a state that halves in each step.

    The broken variant extrapolates the halving forever.
    """
    monkeypatch.setattr(multi_step, "_PERIOD_STEPS", 16)
    monkeypatch.setattr(multi_step, "_LONG_PERIOD_STEPS", 16)
    operator = TransitionOperator(np.array([[0.9, 0.1], [0.0, 0.5]]))
    logs = np.array([-700.0, 0.0])
    wanted = step_repeatedly(operator, logs, 3000)
    assert wanted[0] - wanted[1] == pytest.approx(np.log(4))
    assert are_equal(multi_step.build_homogeneous_gap(operator, 3000, None).propagate_forward(logs), wanted)
    real = multi_step._is_steady
    monkeypatch.setattr(multi_step, "_is_steady", lambda growth, before, later, _: real(growth, before, later, []))
    assert not are_equal(multi_step.build_homogeneous_gap(operator, 3000, None).propagate_forward(logs), wanted)


@pytest.mark.slow
def test_chain_of_slower_and_slower_states_matches_single_steps():
    stays = np.linspace(0.1, 0.95, 12)
    matrix = np.diag(np.append(stays, 1.0)) + np.diag(1 - stays, 1)
    model = MarkovModel(matrix, np.full(13, 1 / 13))
    logs = model.initial_logs()
    assert are_equal(model.operator(6000).propagate_forward(logs), step_repeatedly(model.operator(), logs, 6000))
    near, far = (model.operator(steps).propagate_forward(logs) for steps in (400_000, 500_000))
    np.testing.assert_allclose((far - near)[:12] / 100_000, np.log(stays), rtol=1e-10)


def test_states_without_inflow_become_impossible():
    """Two states lead on without staying: impossible after two steps, for any gap."""
    matrix = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 0.5], [0, 0, 0, 1]]
    model = MarkovModel(matrix, [0.25] * 4)
    logs = np.array([-900.0, -800.0, -700.0, 0.0])
    for steps in (8, 9, 400):
        assert (model.operator(steps).propagate_forward(logs) > -np.inf).tolist() == [False, False, True, True]


def test_empty_distribution_stays_empty():
    model = MarkovModel([[0.5, 0.5], [0.0, 1.0]], [1, 0])
    assert (model.operator(100).propagate_forward(np.full(2, -np.inf)) == -np.inf).all()
    operator = TransitionOperator(np.diag([1.0], 1))
    assert (multi_step.build_homogeneous_gap(operator, 100, None).propagate_forward(np.zeros(2)) == -np.inf).all()
