"""Long gaps under models with states that are left for good: what decays without end goes on by itself, and rightly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm.markov import flow
from dphmm.markov.flow import Flow
from dphmm.markov.masses import Masses, masses_of_logs
from dphmm.markov.model import MarkovModel
from tests.sizes import few_every_day

RATES = [0.01, 0.25, 0.5, 0.5, 0.9, 0.97, 0.999]


def instance(seed: int) -> tuple[MarkovModel, Masses]:
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
    return MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(size, 1 / size)), masses_of_logs(logs)


def stepped(one: Flow, masses: Masses, steps: int) -> Masses:
    for _ in range(steps):
        masses = one.step(masses)
    return masses


def is_same(found: Masses, wanted: Masses) -> bool:
    some = wanted.support
    if not np.array_equal(found.support, some):
        return False
    return np.allclose(found.logs[some], wanted.logs[some], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("seed", few_every_day(range(10), 2))
def test_many_steps_are_one_after_another_where_masses_decay(seed, monkeypatch):
    monkeypatch.setattr(flow, "_PARTS", 2)
    model, masses = instance(seed)
    wanted = [stepped(one, masses, 1900) for one in (model.ahead, model.back)]
    for depth in (1, 64):
        monkeypatch.setattr(flow, "_DEPTH", depth)
        model, _ = instance(seed)  # which has prepared nothing
        for one, stepwise in zip((model.ahead, model.back), wanted, strict=True):
            assert is_same(one.carry(masses, 1900), stepwise)


def test_what_decays_at_three_rates_equals_exact_numbers():
    """A chain that is left for good after stays of 1/4, 1/2 and 1/8: all shares are short binary fractions."""
    matrix = np.array([[0.25, 0.75, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.125, 0.875], [0, 0, 0, 1]])
    model, steps = MarkovModel(matrix, [1, 0, 0, 0]), 3000
    weights = [Fraction(1), Fraction(0), Fraction(0), Fraction(0)]
    shares = [[Fraction(share) for share in row] for row in matrix.T.tolist()]
    for _ in range(steps):
        weights = [sum((a * w for a, w in zip(row, weights, strict=True) if a), Fraction(0)) for row in shares]
    found = model.ahead.carry(Masses.of(model.initial), steps)
    for mantissa, exponent, wanted in zip(found.mantissa.tolist(), found.exponent.tolist(), weights, strict=True):
        assert abs(Fraction(mantissa) * Fraction(2) ** int(exponent) / wanted - 1) < Fraction(1, 10**11)


def test_a_gap_of_a_year_of_minutes_takes_few_sums(monkeypatch):
    """Two cycles and two states, each left for good, beside places where people stay: of five rates."""
    matrix = np.zeros((8, 8))
    matrix[[0, 1, 1], [1, 0, 2]] = 1.0, 0.5, 0.5
    matrix[[2, 3, 3], [3, 2, 4]] = 1.0, 0.9, 0.1
    matrix[[4, 4, 5, 5, 6, 6, 7, 7], [4, 5, 5, 6, 6, 7, 6, 7]] = 0.3, 0.7, 0.99, 0.01, 0.5, 0.5, 0.25, 0.75
    model = MarkovModel(matrix, np.full(8, 1 / 8))
    sums = []
    for name in ("_stride", "step"):
        real = getattr(Flow, name)
        monkeypatch.setattr(Flow, name, lambda self, *rest, real=real: (sums.append(1), real(self, *rest))[1])
    near, far = (model.ahead.carry(Masses.of(model.initial), steps) for steps in (400_000, 500_000))
    assert len(sums) < 2000
    slopes = (far.logs - near.logs)[:6] / 100_000
    np.testing.assert_allclose(slopes, np.log([0.5, 0.5, 0.9, 0.9, 0.9, 0.99**2]) / 2, rtol=1e-10)
    np.testing.assert_allclose(far.plain()[6:], [1 / 3, 2 / 3], rtol=1e-9)


def test_faint_states_that_others_feed_do_not_go_on_by_themselves(monkeypatch):
    """The broken twin takes them for a part of their own."""
    model = MarkovModel([[0.9, 0.1, 0], [0.2, 0.7, 0.1], [0.0, 0.0, 1.0]], [1, 0, 0])
    masses = masses_of_logs(np.array([0.0, -700.0, -690.0]))
    wanted = stepped(model.ahead, masses, 50)
    assert is_same(model.ahead.carry(masses, 50), wanted)
    monkeypatch.setattr(Flow, "_is_apart", lambda *_: True)
    assert not is_same(model.ahead.carry(masses, 50), wanted)


def test_faint_masses_that_outlast_the_others_are_waited_for(monkeypatch):
    """What halves is fed by a faint mass that decays more slowly; the broken twin goes on as if it halved for ever."""
    one = Flow(csr_array([[0.9, 0.0], [0.1, 0.5]]))
    masses = masses_of_logs(np.array([-700.0, 0.0]))
    wanted = stepped(one, masses, 3000)
    assert wanted.logs[0] - wanted.logs[1] == pytest.approx(np.log(4))
    assert is_same(one.carry(masses, 3000), wanted)
    monkeypatch.setattr(Flow, "_keeps_behind", lambda *_: True)
    assert not is_same(one.carry(masses, 3000), wanted)


def test_a_chain_of_ever_slower_states_is_taken_apart_state_after_state():
    stays = np.linspace(0.1, 0.95, 12)
    matrix = np.diag(np.append(stays, 1.0)) + np.diag(1 - stays, 1)
    model = MarkovModel(matrix, np.full(13, 1 / 13))
    masses = Masses.of(model.initial)
    assert is_same(model.ahead.carry(masses, 6000), stepped(model.ahead, masses, 6000))
    near, far = model.ahead.carry(masses, 400_000), model.ahead.carry(masses, 500_000)
    np.testing.assert_allclose((far.logs - near.logs)[:12] / 100_000, np.log(stays), rtol=1e-10)


def test_faint_states_that_nothing_enters_any_more_become_impossible():
    """Two that lead on and are not stayed at: gone after two steps, however long the gap."""
    matrix = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 0.5], [0, 0, 0, 1]]
    model = MarkovModel(matrix, [0.25] * 4)
    masses = masses_of_logs(np.array([-900.0, -800.0, -700.0, 0.0]))
    for steps in (8, 9, 400):
        assert model.ahead.carry(masses, steps).support.tolist() == [False, False, True, True]


def test_where_nothing_is_left_a_gap_leaves_nothing():
    model = MarkovModel([[0.5, 0.5], [0.0, 1.0]], [1, 0])
    assert not model.ahead.carry(Masses.of(np.zeros(2)), 100).support.any()
    assert not Flow(csr_array(np.diag([1.0], 1))).carry(Masses.of(np.ones(2)), 100).support.any()
