"""Long gaps under models with states that are left for good: what decays without end goes on by itself, and rightly."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dphmm.model import gaps
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import LogProduct, Operator, TransitionOperator
from tests.sizes import few_every_day

RATES = [0.01, 0.25, 0.5, 0.5, 0.9, 0.97, 0.999]


def instance(seed: int) -> tuple[MarkovModel, np.ndarray]:
    """Chains that are left for good at several rates, cycles, islands; masses over up to 5000 nats, some 0."""
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


def stepped(step: Operator, logs: np.ndarray, steps: int, back: bool = False) -> np.ndarray:
    for _ in range(steps):
        logs = step.backward(logs) if back else step.forward(logs)
    return logs


def is_same(found: np.ndarray, wanted: np.ndarray) -> bool:
    some = wanted > -np.inf
    if not np.array_equal(found > -np.inf, some):
        return False
    return np.allclose(found[some], wanted[some], rtol=1e-9, atol=1e-10)


@pytest.fixture(params=["by powers", "walked"])
def way(request, monkeypatch):
    if request.param == "walked":
        monkeypatch.setattr(gaps, "POWERS_UP_TO", 0)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("seed", few_every_day(range(10), 2))
def test_many_steps_are_one_after_another_where_masses_decay(seed):
    model, logs = instance(seed)
    far, step = model.operator(1900), model.operator()
    assert is_same(far.forward(logs), stepped(step, logs, 1900))
    assert is_same(far.backward(logs), stepped(step, logs, 1900, back=True))


@pytest.mark.usefixtures("way")
def test_what_decays_at_three_rates_equals_exact_numbers():
    """A chain that is left for good after stays of 1/4, 1/2 and 1/8: all shares are short binary fractions."""
    matrix = np.array([[0.25, 0.75, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.125, 0.875], [0, 0, 0, 1]])
    model, steps = MarkovModel(matrix, [1, 0, 0, 0]), 3000
    weights = [Fraction(1), Fraction(0), Fraction(0), Fraction(0)]
    shares = [[Fraction(share) for share in row] for row in matrix.T.tolist()]
    for _ in range(steps):
        weights = [sum((a * w for a, w in zip(row, weights, strict=True) if a), Fraction(0)) for row in shares]
    found = model.operator(steps).forward(model.first_logs())
    with mpmath.workdps(30):
        wanted = [float(mpmath.log(mpmath.mpf(one.numerator) / one.denominator)) for one in weights]
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)


def test_a_gap_of_a_year_of_minutes_takes_few_sums(monkeypatch):
    """Two cycles and two states, each left for good, beside places where people stay: of five rates."""
    matrix = np.zeros((8, 8))
    matrix[[0, 1, 1], [1, 0, 2]] = 1.0, 0.5, 0.5
    matrix[[2, 3, 3], [3, 2, 4]] = 1.0, 0.9, 0.1
    matrix[[4, 4, 5, 5, 6, 6, 7, 7], [4, 5, 5, 6, 6, 7, 6, 7]] = 0.3, 0.7, 0.99, 0.01, 0.5, 0.5, 0.25, 0.75
    model = MarkovModel(matrix, np.full(8, 1 / 8))
    sums = []
    for name in ("__call__", "plain"):
        real = getattr(LogProduct, name)
        monkeypatch.setattr(LogProduct, name, lambda self, *rest, real=real: (sums.append(1), real(self, *rest))[1])
    near, far = (model.operator(steps).forward(model.first_logs()) for steps in (400_000, 500_000))
    assert len(sums) < 40_000
    slopes = (far - near)[:6] / 100_000
    np.testing.assert_allclose(slopes, np.log([0.5, 0.5, 0.9, 0.9, 0.9, 0.99**2]) / 2, rtol=1e-10)
    np.testing.assert_allclose(np.exp(far[6:]), [1 / 3, 2 / 3], rtol=1e-9)


@pytest.mark.usefixtures("way")
def test_faint_states_that_others_feed_do_not_go_on_by_themselves():
    model = MarkovModel([[0.9, 0.1, 0], [0.2, 0.7, 0.1], [0.0, 0.0, 1.0]], [1, 0, 0])
    logs = np.array([0.0, -700.0, -690.0])
    assert is_same(model.operator(50).forward(logs), stepped(model.operator(), logs, 50))


def test_faint_masses_that_outlast_the_others_are_waited_for(monkeypatch):
    """What halves is fed by a faint mass that decays more slowly; the broken twin goes on as if it halved for ever."""
    monkeypatch.setattr(gaps, "_PERIOD", (16, 16))
    one = TransitionOperator(np.array([[0.9, 0.1], [0.0, 0.5]]))
    logs = np.array([-700.0, 0.0])
    wanted = stepped(one, logs, 3000)
    assert wanted[0] - wanted[1] == pytest.approx(np.log(4))
    assert is_same(gaps.one_matrix(one, 3000, None).forward(logs), wanted)
    real = gaps._is_steady
    monkeypatch.setattr(gaps, "_is_steady", lambda growth, before, later, _: real(growth, before, later, []))
    assert not is_same(gaps.one_matrix(one, 3000, None).forward(logs), wanted)


def test_a_chain_of_ever_slower_states_is_taken_apart_state_after_state():
    stays = np.linspace(0.1, 0.95, 12)
    matrix = np.diag(np.append(stays, 1.0)) + np.diag(1 - stays, 1)
    model = MarkovModel(matrix, np.full(13, 1 / 13))
    logs = model.first_logs()
    assert is_same(model.operator(6000).forward(logs), stepped(model.operator(), logs, 6000))
    near, far = (model.operator(steps).forward(logs) for steps in (400_000, 500_000))
    np.testing.assert_allclose((far - near)[:12] / 100_000, np.log(stays), rtol=1e-10)


def test_faint_states_that_nothing_enters_any_more_become_impossible():
    """Two that lead on and are not stayed at: gone after two steps, however long the gap."""
    matrix = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 0.5], [0, 0, 0, 1]]
    model = MarkovModel(matrix, [0.25] * 4)
    logs = np.array([-900.0, -800.0, -700.0, 0.0])
    for steps in (8, 9, 400):
        assert (model.operator(steps).forward(logs) > -np.inf).tolist() == [False, False, True, True]


def test_where_nothing_is_left_a_gap_leaves_nothing():
    model = MarkovModel([[0.5, 0.5], [0.0, 1.0]], [1, 0])
    assert (model.operator(100).forward(np.full(2, -np.inf)) == -np.inf).all()
    one = TransitionOperator(np.diag([1.0], 1))
    assert (gaps.one_matrix(one, 100, None).forward(np.zeros(2)) == -np.inf).all()
