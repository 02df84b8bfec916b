"""The loss of all landmarks and a timestamp together: never below the true joint leakage, which is enumerated here."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dphmm.errors import BudgetError, DphmmError, InvalidInputError, StochasticError
from dphmm.landmarks import leakage, paper_leakage, skip, temporal_loss, uniform
from dphmm.landmarks.temporal_loss import Steps, Tilted, passed
from dphmm.leakage import LossFunction, temporal
from tests.landmarks.oracles import backward_matrices, budget, joint_leakage, random_chain, random_noise
from tests.sizes import slow

P = np.array([[0.8, 0.2], [0.1, 0.9]])
STILL = [[Fraction(9998, 10000), Fraction(2, 10000)], [Fraction(9881, 10000), Fraction(119, 10000)]]
"""A chain that is nearly always in the first state: rows that hardly differ, bridges that do."""


def cases(seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        size, same = int(rng.integers(2, 4)), rng.random() < 0.5
        times = int(rng.integers(1, 6 if size == 2 else 5))
        first, steps = random_chain(rng, size, times - 1, rng.choice([0, 0, 0.3, 0.5]), same)
        noise = [random_noise(rng, size) for _ in range(times)]
        yield first, steps, noise, np.flatnonzero(rng.random(times) < rng.random()), same and times > 1


def check(case, bound):
    """Whether a bound holds for every timestamp."""
    first, steps, noise, marks, same = case
    epsilons, forward = [budget(table) for table in noise], [np.array(step, dtype=float) for step in steps]
    matrices = [forward, forward[0]] if same else [forward]
    for known in matrices:
        found = bound(range(len(noise)), marks, epsilons, backward_matrices(first, steps), known)
        assert found.max() <= sum(epsilons) * (1 + 1e-12)
        for t in range(len(noise)):
            true = joint_leakage(first, steps, noise, sorted({*marks.tolist(), t}))
            if found[t] < math.log(true) - 1e-12:
                return False
    return True


def test_it_is_never_below_the_joint_leakage():
    """70 chains of 2 or 3 states, up to 5 times, zeros and matrices by time included; every output, every timestamp."""
    assert all(check(case, leakage) for case in cases(range(70)))


def test_the_papers_sum_is_below_the_joint_leakage_of_some():
    def paper(times, marks, epsilons, backward, forward):
        return paper_leakage(times, marks, epsilons, backward[0] if backward else None, forward)

    alike = (case for case in cases(range(500, 1000)) if case[-1] and len(case[3]) > 1)
    assert not all(check(case, lambda *given: paper(*given[:4], steps_of(given[4]))) for case in alike)


def steps_of(known):
    return known[0] if isinstance(known, list) else known


@pytest.mark.parametrize("chains", [range(100, 110), slow(range(110, 130))], ids=len)
@pytest.mark.parametrize("weaker", ["split nothing", "contraction alone", "no contraction"])
def test_each_of_its_parts_is_a_bound(monkeypatch, weaker, chains):
    if weaker == "split nothing":
        monkeypatch.setattr(temporal_loss, "_NEAR", 2)
    else:
        monkeypatch.setattr("dphmm.landmarks.temporal_loss._EXACT_STATES", 0)
    if weaker == "no contraction":
        monkeypatch.setattr("dphmm.landmarks.temporal_loss._spread", lambda *product: math.inf)
    assert all(check(case, leakage) for case in cases(chains))


def test_one_release_between_two_landmarks_costs_what_the_bridge_gives_away():
    """The value of the erratum, from rationals: 0.1362494 where the paper's sum is 0.0082."""
    ratio, rare = Fraction(math.exp(0.3)), Fraction(1, 10**9)
    noise = [[[Fraction(1)]] * 2, [[rare, 1 - rare], [rare * ratio, 1 - rare * ratio]], [[Fraction(1)]] * 2]
    rest = Fraction(9881, 9883)
    true = math.log(joint_leakage([rest, 1 - rest], [STILL, STILL], noise, [0, 2]))
    matrix = np.array(STILL, dtype=float)
    found = leakage(range(3), [0, 2], [0, 0.3, 0], matrix, matrix)  # two states: the reverse is the chain itself
    assert found[0] == pytest.approx(true, rel=1e-8)
    assert found[0] == pytest.approx(0.1362494, abs=5e-8)
    assert paper_leakage(range(3), [0, 2], [0, 0.3, 0], matrix, matrix)[0] == pytest.approx(0.0082, abs=5e-5)


def worst_mechanism(matrix, epsilons):
    """What releases between two members can tell at most: every release one of two likelihoods, by every set."""
    size, masses = len(matrix), np.linalg.matrix_power(matrix, len(epsilons) + 1)
    sets, possible, worst = list(itertools.product([0, 1], repeat=size)), masses > 0, 0.0
    for chosen in itertools.product(sets, repeat=len(epsilons)):
        seen = matrix
        for epsilon, one in zip(epsilons, chosen, strict=True):
            seen = seen * (1 + math.expm1(epsilon) * np.array(one)) @ matrix
        ratios = np.log(seen[possible] / masses[possible])
        worst = max(worst, float(np.ptp(ratios)))
    return worst


@pytest.mark.parametrize("seed", range(20))
def test_one_release_is_met_exactly_by_the_worst_mechanism(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.dirichlet(np.ones(size := 2 + seed % 3), size) * (rng.random((size, size)) < 0.8) + 1e-12 * np.eye(
        size
    )
    matrix /= matrix.sum(axis=1, keepdims=True)
    found = leakage(range(3), [0, 2], [0, 0.7, 0], None, matrix)[0]
    assert found == pytest.approx(worst_mechanism(matrix, [0.7]), rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_several_releases_are_bounded_below_their_sum(seed):
    """At most 1.3 times the worst mechanism on well-mixing chains, and three quarters of the sum."""
    rng = np.random.default_rng(seed)
    matrix, epsilons = rng.dirichlet([5, 5], 2), rng.choice([0.2, 0.5, 1.0], 4)
    found = leakage(range(6), [0, 5], [0, *epsilons, 0], None, matrix)[0]
    true = worst_mechanism(matrix, epsilons)
    assert true <= found + 1e-12
    assert found <= min(1.3 * true, 0.75 * epsilons.sum())


@pytest.mark.parametrize("near", [120, 1024])
def test_what_lies_far_from_both_landmarks_is_forgotten(monkeypatch, near):
    """The loss of landmarks far apart tends to what each loses alone, also where stretches are not split."""
    monkeypatch.setattr(temporal_loss, "_NEAR", near)
    size = 300
    epsilons = np.full(size, 0.5)
    losses, alone = leakage(range(size), [30, 270], epsilons, P, P), temporal(P, P, epsilons)[150]
    assert losses[30] == pytest.approx(2 * alone, rel=1e-6)
    np.testing.assert_allclose(losses[[100, 150, 200]], 3 * alone, rtol=1e-6)


def test_where_nothing_is_forgotten_it_is_the_sum():
    epsilons = np.array([0.1, 0.2, 0.0, 0.4, 0.5, 0.6])
    np.testing.assert_allclose(leakage(range(6), [0, 4], epsilons, np.eye(2), np.eye(2)), epsilons.sum())


def test_many_states_have_the_sum_of_what_lies_between():
    size = 300
    matrix = np.full((size, size), 1 / size)
    epsilons = np.array([0.1, 0.2, 0.3, 0.4])
    assert leakage(range(4), [0, 2], epsilons, matrix, matrix)[0] == pytest.approx(0.1 + 0.2 + 0.3)
    assert leakage(range(4), [0, 2], epsilons, matrix[:200, :200] * 1.5, matrix[:200, :200] * 1.5)[0] == pytest.approx(
        0.4
    )


def test_without_landmarks_it_is_the_temporal_leakage():
    epsilons = np.full(10, 0.1)
    known = np.array([[0.8, 0.2], [0.0, 1.0]])
    np.testing.assert_allclose(
        leakage(range(10), [], epsilons, known, known), temporal(known, known, epsilons), rtol=1e-9
    )


def test_without_correlation_it_is_what_a_sound_scheme_bounds():
    for scheme in (skip, uniform):
        made = scheme(range(20), [3, 4, 11], 1.0)
        assert leakage(range(20), [3, 4, 11], made.epsilons).max() == pytest.approx(1.0)


def test_correlation_makes_skipped_landmarks_lose_too():
    made = skip(range(20), [3, 4, 11], 1.0)
    assert leakage(range(20), [3, 4, 11], made.epsilons, P, P).min() > 1.0


def test_forms_of_knowledge_agree():
    epsilons = np.array([0.3, 0.0, 0.4, 0.2, 0.1])
    expected = leakage(range(5), [1, 4], epsilons, None, P)
    np.testing.assert_allclose(leakage(range(5), [1, 4], epsilons, None, sparse.csr_array(P)), expected, rtol=1e-12)
    by_time = leakage(range(5), [1, 4], epsilons, None, [P] * 4)
    assert (by_time >= expected - 1e-12).all()
    np.testing.assert_allclose(leakage(range(5), [1, 4], epsilons, None, (P for _ in range(4))), by_time)
    lazy = leakage(range(5), [1, 4], epsilons, iter([P]), P)
    np.testing.assert_allclose(lazy, leakage(range(5), [1, 4], epsilons, P, P), rtol=1e-12)


def test_backward_knowledge_alone_makes_the_same_bridges():
    """Two states: the reverse is the chain itself, at rest."""
    epsilons = [0.0, 0.3, 0.4, 0.2, 0.0]
    forth, back = leakage(range(5), [0, 4], epsilons, None, P), leakage(range(5), [0, 4], epsilons, P, None)
    np.testing.assert_allclose(forth, back, rtol=1e-12)
    assert forth[0] < 0.9


def test_independent_data_tell_nothing_through_time():
    step = [np.eye(2), None, None, np.eye(2)]
    losses = leakage(range(5), [0, 4], [0.1, 0.2, 0.3, 0.4, 0.5], None, step)
    assert losses[0] == pytest.approx(0.1 + 0.2 + 0.4 + 0.5)  # not the one in the middle


@pytest.mark.parametrize(
    ("backward", "forward", "error", "message"),
    [
        (LossFunction(P), None, InvalidInputError, "loss function"),
        (None, LossFunction(P), InvalidInputError, "loss function"),
        (None, [P], InvalidInputError, "1 matrices for 3 times"),
        ([P], None, InvalidInputError, "1 matrices for 3 times"),
        (np.eye(3), P, StochasticError, "2 and 3 states"),
        (None, [P, np.eye(3)], StochasticError, "2 and 3 states"),
        (None, [[1, 2]], StochasticError, "square"),
        (None, "matrix", StochasticError, "no|not"),
        (None, np.array([[np.nan, 1], [0, 1]]), StochasticError, "nan"),
    ],
)
def test_what_is_no_knowledge_is_refused(backward, forward, error, message):
    with pytest.raises(error, match=message) as caught:
        leakage([1, 2, 3], [2, 3], [0.1, 0.1, 0.1], backward, forward)
    assert isinstance(caught.value, DphmmError)


@pytest.mark.parametrize(
    "epsilons", [[0.1], [0.1, -0.1, 0.1], [0.1, np.nan, 0.1], [[0.1, 0.1, 0.1]], "abc", [0.1, "x"]]
)
def test_impossible_budgets_are_refused(epsilons):
    with pytest.raises(BudgetError):
        leakage([1, 2, 3], [2], epsilons)


def test_what_a_matrix_passes_on_is_met_by_two_states():
    """The closed form against a search over the pairs of rows of one spread."""
    for spread, alpha in [(0.3, 0.1), (1.0, 2.0), (5.0, 0.5), (8.0, 9.0)]:
        d = 1 / (1 + np.exp(np.linspace(-15, 15, 40_001)))
        q = d * math.exp(spread) / (1 - d + d * math.exp(spread))
        reached = np.log((1 + q * math.expm1(alpha)) / (1 + d * math.expm1(alpha))).max()
        assert passed(spread, alpha) == pytest.approx(reached, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_rows_weighed_by_a_later_state_lose_no_more_than_is_said(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.dirichlet(np.full(3, 2.0), 3)
    for given, far in ((matrix, np.ones(3)), (matrix.T, np.linalg.matrix_power(matrix, 200)[0])):
        tilted = Tilted.from_matrix(given, 5)
        for steps in range(1, 6):
            leads = np.linalg.matrix_power(given, steps)
            exact = np.ptp(np.log(leads / far[:, None]), axis=0).max()
            assert exact <= tilted.leanings[steps] + 1e-9
            for b in range(3):
                rows = given * leads[:, b]
                rows /= rows.sum(axis=1, keepdims=True)
                for alpha in (0.1, 1.0, 4.0):
                    said = tilted.passed(np.array([alpha]), 1, tilted.leanings[[steps]])[0]
                    assert LossFunction(rows)(alpha) <= said + 1e-12


def test_products_that_underflow_are_not_taken_for_zeros():
    rare = np.array([[1 - 1e-120, 1e-120], [1e-120, 1 - 1e-120]])
    assert Steps(rare).spread(0, 2) > 500
    very_rare = np.array([[1 - 1e-160, 1e-160], [1e-160, 1 - 1e-160]])
    assert Steps(very_rare).spread(0, 1) == math.inf
    assert leakage(range(4), [0, 3], [0, 0.5, 0.5, 0], None, very_rare)[0] == pytest.approx(1.0)
