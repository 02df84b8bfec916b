"""The loss of all landmarks and one timestamp, against the enumerated joint leakage."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dphmm.errors import BudgetError, DphmmError, InvalidInputError, StochasticError
from dphmm.landmarks import leakage, paper_leakage, skip_scheme, temporal_loss, uniform_scheme
from dphmm.landmarks.temporal_loss import Steps, Tilted, contract_loss
from dphmm.leakage import LossFunction, temporal_leakage
from tests.landmarks.oracles import (
    compute_backward_matrices,
    compute_budget,
    compute_joint_leakage,
    sample_chain,
    sample_noise,
)
from tests.sizes import mark_slow

P = np.array([[0.8, 0.2], [0.1, 0.9]])
# A chain that is mostly in the first state: its rows are similar, but bridges between landmarks are not.
STILL = [[Fraction(9998, 10000), Fraction(2, 10000)], [Fraction(9881, 10000), Fraction(119, 10000)]]


def sample_cases(seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        size, same = int(rng.integers(2, 4)), rng.random() < 0.5
        times = int(rng.integers(1, 6 if size == 2 else 5))
        first, steps = sample_chain(rng, size, times - 1, rng.choice([0, 0, 0.3, 0.5]), same)
        noise = [sample_noise(rng, size) for _ in range(times)]
        yield first, steps, noise, np.flatnonzero(rng.random(times) < rng.random()), same and times > 1


def is_valid_bound(case, bound):
    """Return whether a bound is valid for every timestamp."""
    first, steps, noise, marks, same = case
    epsilons, forward = [compute_budget(table) for table in noise], [np.array(step, dtype=float) for step in steps]
    matrices = [forward, forward[0]] if same else [forward]
    for forward_knowledge in matrices:
        losses = bound(range(len(noise)), marks, epsilons, compute_backward_matrices(first, steps), forward_knowledge)
        assert losses.max() <= sum(epsilons) * (1 + 1e-12)
        for t in range(len(noise)):
            true = compute_joint_leakage(first, steps, noise, sorted({*marks.tolist(), t}))
            if losses[t] < math.log(true) - 1e-12:
                return False
    return True


@pytest.mark.slow
def test_loss_is_at_least_joint_leakage():
    """70 chains with 2 or 3 states and up to 5 times, zeros and matrices by time included."""
    assert all(is_valid_bound(case, leakage) for case in sample_cases(range(70)))


@pytest.mark.slow
def test_paper_loss_is_below_joint_leakage_in_some_cases():
    def compute_paper_leakage(times, marks, epsilons, backward, forward):
        return paper_leakage(times, marks, epsilons, backward[0] if backward else None, forward)

    alike = (case for case in sample_cases(range(500, 1000)) if case[-1] and len(case[3]) > 1)
    assert not all(
        is_valid_bound(case, lambda *arguments: compute_paper_leakage(*arguments[:4], get_single_matrix(arguments[4])))
        for case in alike
    )


def get_single_matrix(forward_knowledge):
    return forward_knowledge[0] if isinstance(forward_knowledge, list) else forward_knowledge


@pytest.mark.slow
@pytest.mark.parametrize("chains", [range(100, 110), mark_slow(range(110, 130))], ids=len)
@pytest.mark.parametrize("weaker", ["split nothing", "contraction alone", "no contraction"])
def test_weaker_variants_are_valid_bounds(monkeypatch, weaker, chains):
    if weaker == "split nothing":
        monkeypatch.setattr(temporal_loss, "_ALL_SPLITS_TIMES", 2)
    else:
        monkeypatch.setattr("dphmm.landmarks.temporal_loss._EXACT_MAX_STATES", 0)
    if weaker == "no contraction":
        monkeypatch.setattr("dphmm.landmarks.temporal_loss._compute_spread", lambda *product: math.inf)
    assert all(is_valid_bound(case, leakage) for case in sample_cases(chains))


def test_one_release_between_landmarks_costs_loss_of_bridge():
    """The value of the erratum, from rationals: 0.1362494 instead of the paper's 0.0082."""
    ratio, rare = Fraction(math.exp(0.3)), Fraction(1, 10**9)
    noise = [[[Fraction(1)]] * 2, [[rare, 1 - rare], [rare * ratio, 1 - rare * ratio]], [[Fraction(1)]] * 2]
    rest = Fraction(9881, 9883)
    true = math.log(compute_joint_leakage([rest, 1 - rest], [STILL, STILL], noise, [0, 2]))
    matrix = np.array(STILL, dtype=float)
    losses = leakage(
        range(3), [0, 2], [0, 0.3, 0], matrix, matrix
    )  # two states: the reversed chain is the chain itself
    assert losses[0] == pytest.approx(true, rel=1e-8)
    assert losses[0] == pytest.approx(0.1362494, abs=5e-8)
    assert paper_leakage(range(3), [0, 2], [0, 0.3, 0], matrix, matrix)[0] == pytest.approx(0.0082, abs=5e-5)
    # The loss is that of the same bridge if it is before or after the stretch of a regular timestamp.
    after, before = (leakage(range(5), [0, 2, 4], spent, matrix, matrix) for spent in np.eye(5)[[3, 1]] * 0.3)
    assert after == pytest.approx([losses[0], losses[0], losses[0], 0.3, losses[0]], rel=1e-12)
    assert before == pytest.approx(after[::-1], rel=1e-12)


def compute_worst_mechanism(matrix, epsilons):
    """Compute the maximum loss of releases between two members.

    Every release has one of two likelihoods; all sets of states are enumerated.
    """
    size, masses = len(matrix), np.linalg.matrix_power(matrix, len(epsilons) + 1)
    sets = list(itertools.product([0, 1], repeat=size))
    possible = masses > 0
    worst = 0.0
    for chosen in itertools.product(sets, repeat=len(epsilons)):
        seen = matrix
        for epsilon, is_likely in zip(epsilons, chosen, strict=True):
            seen = seen * (1 + math.expm1(epsilon) * np.array(is_likely)) @ matrix
        ratios = np.log(seen[possible] / masses[possible])
        worst = max(worst, float(np.ptp(ratios)))
    return worst


@pytest.mark.parametrize("seed", range(20))
def test_loss_of_one_release_matches_worst_mechanism(seed):
    rng = np.random.default_rng(seed)
    size = 2 + seed % 3
    matrix = rng.dirichlet(np.ones(size), size) * (rng.random((size, size)) < 0.8) + 1e-12 * np.eye(size)
    matrix /= matrix.sum(axis=1, keepdims=True)
    loss = leakage(range(3), [0, 2], [0, 0.7, 0], None, matrix)[0]
    assert loss == pytest.approx(compute_worst_mechanism(matrix, [0.7]), rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_loss_of_several_releases_is_below_sum(seed):
    """At most 1.3 times the worst mechanism on mixing chains, and three quarters of the sum."""
    rng = np.random.default_rng(seed)
    matrix, epsilons = rng.dirichlet([5, 5], 2), rng.choice([0.2, 0.5, 1.0], 4)
    loss = leakage(range(6), [0, 5], [0, *epsilons, 0], None, matrix)[0]
    true = compute_worst_mechanism(matrix, epsilons)
    assert true <= loss + 1e-12
    assert loss <= min(1.3 * true, 0.75 * epsilons.sum())


@pytest.mark.slow
@pytest.mark.parametrize("near", [120, 1024])
def test_loss_of_distant_landmarks_converges(monkeypatch, near):
    """The loss tends to the sum of single losses, also for unsplit stretches."""
    monkeypatch.setattr(temporal_loss, "_ALL_SPLITS_TIMES", near)
    size = 300
    epsilons = np.full(size, 0.5)
    losses, alone = leakage(range(size), [30, 270], epsilons, P, P), temporal_leakage(P, P, epsilons)[150]
    assert losses[30] == pytest.approx(2 * alone, rel=1e-6)
    np.testing.assert_allclose(losses[[100, 150, 200]], 3 * alone, rtol=1e-6)


def test_loss_under_identity_is_sum():
    epsilons = np.array([0.1, 0.2, 0.0, 0.4, 0.5, 0.6])
    np.testing.assert_allclose(leakage(range(6), [0, 4], epsilons, np.eye(2), np.eye(2)), epsilons.sum())


def test_loss_of_many_states_is_sum_between_landmarks():
    size = 300
    matrix = np.full((size, size), 1 / size)
    epsilons = np.array([0.1, 0.2, 0.3, 0.4])
    assert leakage(range(4), [0, 2], epsilons, matrix, matrix)[0] == pytest.approx(0.1 + 0.2 + 0.3)
    assert leakage(range(4), [0, 2], epsilons, matrix[:200, :200] * 1.5, matrix[:200, :200] * 1.5)[0] == pytest.approx(
        0.4
    )


def test_loss_without_landmarks_equals_temporal_leakage():
    epsilons = np.full(10, 0.1)
    matrix = np.array([[0.8, 0.2], [0.0, 1.0]])
    np.testing.assert_allclose(
        leakage(range(10), [], epsilons, matrix, matrix), temporal_leakage(matrix, matrix, epsilons), rtol=1e-9
    )


def test_loss_without_correlation_is_scheme_budget():
    for scheme in (skip_scheme, uniform_scheme):
        scheme_budget = scheme(range(20), [3, 4, 11], 1.0)
        assert leakage(range(20), [3, 4, 11], scheme_budget.epsilons).max() == pytest.approx(1.0)


def test_correlation_increases_loss_of_skipped_landmarks():
    scheme_budget = skip_scheme(range(20), [3, 4, 11], 1.0)
    assert leakage(range(20), [3, 4, 11], scheme_budget.epsilons, P, P).min() > 1.0


def test_forms_of_knowledge_give_equal_loss():
    epsilons = np.array([0.3, 0.0, 0.4, 0.2, 0.1])
    expected = leakage(range(5), [1, 4], epsilons, None, P)
    np.testing.assert_allclose(leakage(range(5), [1, 4], epsilons, None, sparse.csr_array(P)), expected, rtol=1e-12)
    by_time = leakage(range(5), [1, 4], epsilons, None, [P] * 4)
    assert (by_time >= expected - 1e-12).all()
    np.testing.assert_allclose(leakage(range(5), [1, 4], epsilons, None, (P for _ in range(4))), by_time)
    lazy = leakage(range(5), [1, 4], epsilons, iter([P]), P)
    np.testing.assert_allclose(lazy, leakage(range(5), [1, 4], epsilons, P, P), rtol=1e-12)


def test_backward_and_forward_knowledge_give_equal_loss_for_two_states():
    """For two states the reversed stationary chain is the chain itself."""
    epsilons = [0.0, 0.3, 0.4, 0.2, 0.0]
    forth, back = leakage(range(5), [0, 4], epsilons, None, P), leakage(range(5), [0, 4], epsilons, P, None)
    np.testing.assert_allclose(forth, back, rtol=1e-12)
    assert forth[0] < 0.9


def test_independent_steps_add_no_loss():
    step = [np.eye(2), None, None, np.eye(2)]
    losses = leakage(range(5), [0, 4], [0.1, 0.2, 0.3, 0.4, 0.5], None, step)
    assert losses[0] == pytest.approx(0.1 + 0.2 + 0.4 + 0.5)  # without the release in the middle


@pytest.mark.parametrize(
    ("backward", "forward", "error", "message"),
    [
        (LossFunction(P), None, InvalidInputError, "loss function"),
        (None, LossFunction(P), InvalidInputError, "loss function"),
        (None, [P], InvalidInputError, "3 times need 2 matrices, one for each step, got 1"),
        ([P], None, InvalidInputError, "3 times need 2 matrices, one for each step, got 1"),
        (np.eye(3), P, StochasticError, "2 and 3 states"),
        (None, [P, np.eye(3)], StochasticError, "2 and 3 states"),
        (None, [[1, 2]], StochasticError, "square"),
        (None, "matrix", StochasticError, "must be a matrix of numbers"),
        (None, np.array([[np.nan, 1], [0, 1]]), StochasticError, "nan"),
    ],
)
def test_invalid_knowledge_raises(backward, forward, error, message):
    with pytest.raises(error, match=message) as caught:
        leakage([1, 2, 3], [2, 3], [0.1, 0.1, 0.1], backward, forward)
    assert isinstance(caught.value, DphmmError)


@pytest.mark.parametrize(
    "epsilons", [[0.1], [0.1, -0.1, 0.1], [0.1, np.nan, 0.1], [[0.1, 0.1, 0.1]], "abc", [0.1, "x"]], ids=repr
)
def test_invalid_budgets_raise(epsilons):
    with pytest.raises(BudgetError):
        leakage([1, 2, 3], [2], epsilons)


def test_contraction_matches_search_over_two_states():
    """Compare the closed form with a search over the pairs of rows of one spread."""
    for spread, alpha in [(0.3, 0.1), (1.0, 2.0), (5.0, 0.5), (8.0, 9.0)]:
        d = 1 / (1 + np.exp(np.linspace(-15, 15, 40_001)))
        q = d * math.exp(spread) / (1 - d + d * math.exp(spread))
        reached = np.log((1 + q * math.expm1(alpha)) / (1 + d * math.expm1(alpha))).max()
        assert contract_loss(spread, alpha) == pytest.approx(reached, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_tilted_bound_is_valid_for_reweighted_rows(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.dirichlet(np.full(3, 2.0), 3)
    for rows_matrix, far in ((matrix, np.ones(3)), (matrix.T, np.linalg.matrix_power(matrix, 200)[0])):
        tilted = Tilted.from_matrix(rows_matrix, 5)
        for steps in range(1, 6):
            leads = np.linalg.matrix_power(rows_matrix, steps)
            exact = np.ptp(np.log(leads / far[:, None]), axis=0).max()
            assert exact <= tilted.leanings[steps] + 1e-9
            for b in range(3):
                rows = rows_matrix * leads[:, b]
                rows /= rows.sum(axis=1, keepdims=True)
                for alpha in (0.1, 1.0, 4.0):
                    bound = tilted.propagate_losses(np.array([alpha]), 1, tilted.leanings[[steps]])[0]
                    assert LossFunction(rows)(alpha) <= bound + 1e-12


def test_spread_of_many_blocks_combines_each_block_once(monkeypatch):
    """A gap of three years at ten minutes needs 32 products, as a whole and time by time."""
    spreads = []

    def count(product, holds):
        spreads.append(original(product, holds))
        return spreads[-1]

    original = temporal_loss._compute_spread
    monkeypatch.setattr(temporal_loss, "_compute_spread", count)
    matrix = np.array([[0.999, 0.001, 0.0], [0.0, 0.9995, 0.0005], [0.0002, 0.0, 0.9998]])
    steps = Steps(matrix)
    assert steps.bound_spread(0, 157_680) < 0.01
    of_blocks = {}
    for stop in range(1, 1000):
        full, rest = divmod(stop, 32)
        # The bound of each block from its odds ratios, and their combination as in Birkhoff's theorem.
        bound = math.inf
        for length in [32] * full + ([rest] if rest else []):
            if length not in of_blocks:
                of_blocks[length] = compute_spread(np.linalg.matrix_power(matrix, length))
            contraction = math.tanh(bound / 4) * math.tanh(of_blocks[length] / 4)
            bound = 4 * math.atanh(contraction) if contraction < 1 else math.inf
        assert steps.bound_spread(stop, 0) == pytest.approx(bound, rel=1e-6)
    assert len(spreads) == 32


def compute_spread(matrix):
    """The largest log odds ratio of two rows and two columns. Infinite with zeros."""
    if not matrix.all():
        return math.inf
    pairs = itertools.product(range(len(matrix)), repeat=4)
    return max(math.log(matrix[a, s] * matrix[b, t] / (matrix[a, t] * matrix[b, s])) for a, b, s, t in pairs)


def test_underflowing_products_are_not_zero():
    rare = np.array([[1 - 1e-120, 1e-120], [1e-120, 1 - 1e-120]])
    assert Steps(rare).bound_spread(0, 2) > 500
    very_rare = np.array([[1 - 1e-160, 1e-160], [1e-160, 1 - 1e-160]])
    assert Steps(very_rare).bound_spread(0, 1) == math.inf
    assert leakage(range(4), [0, 3], [0, 0.5, 0.5, 0], None, very_rare)[0] == pytest.approx(1.0)
