"""Tests of private models: sensitivity by enumeration and sufficient noise."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm import Grid, MarkovModel
from dphmm.audit import audit_pair
from dphmm.errors import BudgetError, InvalidInputError
from dphmm.jobs import fit_private
from dphmm.jobs.model.private import BoundedCounts, count_leaving
from dphmm.mechanisms import discrete_laplace
from dphmm.model import SpeedLimit, fit_shrunk
from dphmm.model.observed_moves import Moves, extract_moves
from dphmm.model.outside_states import create_outside_states
from dphmm.space import LocalProjection
from tests.sizes import choose_count

GRID = Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, 4, 3)
REACH = SpeedLimit(GRID, 60, 40)
user_path_lists = st.lists(st.lists(st.integers(-1, GRID.size - 1), max_size=12), min_size=1, max_size=5)


def _compute_max_changes(user_paths, maximum, claimed):
    """Return whether removing one user changes each count within bounds, and the changes."""
    blocks = np.arange(GRID.size) // 4
    moves = [extract_moves(path, GRID.size) for path in user_paths]
    counts = BoundedCounts.count(moves, REACH, blocks, maximum, True)
    worst = [0, 0, 0, 0]
    for out in range(len(moves)):
        rest = BoundedCounts.count(moves[:out] + moves[out + 1 :], REACH, blocks, maximum, True)
        pairs = [(getattr(counts, name), getattr(rest, name)) for name in ("num_users", "rings", "places", "table")]
        worst = [max(now, int(np.abs(np.subtract(*pair)).sum())) for now, pair in zip(worst, pairs, strict=True)]
    return all(change <= bound for change, bound in zip(worst, (1, claimed, claimed, claimed), strict=True)), worst


@settings(max_examples=choose_count(60, 20))
@given(user_path_lists, st.integers(1, 6))
def test_count_sensitivity_is_bounded(user_paths, maximum):
    assert _compute_max_changes(user_paths, maximum, maximum)[0]


def test_bound_is_attained_and_exceeded_without_thinning():
    user_paths = [[0, 1, 0, 1, 0, 1, 0, 1], [0, 0]]
    assert _compute_max_changes(user_paths, 3, 3) == (True, [1, 3, 3, 3])
    kept, worst = _compute_max_changes(user_paths, 10**6, 3)  # without thinning
    assert (kept, worst) == (False, [1, 7, 7, 7])


@pytest.mark.parametrize(("epsilon", "count"), [("1", 40), ("1/3", 40), (2, 3), ("4000", 40)])
def test_every_count_gets_noise_and_budgets_sum_to_epsilon(monkeypatch, epsilon, count):
    samples, real = [], discrete_laplace.sample_discrete_laplace

    def record(decay, size, source):
        samples.append((decay, size))
        return real(decay, size, source)

    monkeypatch.setattr(discrete_laplace, "sample_discrete_laplace", record)
    fit_result = fit_private([[0, 1, 1, 5]] * count, GRID, 60, epsilon, 7, 40, rng=1)
    budget = Fraction(epsilon)
    assert sum(fit_result.spent.values()) == fit_result.epsilon == budget
    sensitivity = {"users": 1, "rings": 7, "places": 7, "table": 7}
    assert [decay * sensitivity[name] for (decay, _), name in zip(samples, fit_result.spent, strict=True)] == list(
        fit_result.spent.values()
    )
    blocks = (-(-4 // fit_result.block)) * (-(-3 // fit_result.block))
    sizes = {"users": 1, "rings": REACH.ring_count, "places": 2 * blocks, "table": REACH.entries}
    assert [size for _, size in samples] == [sizes[name] for name in fit_result.spent]
    assert fit_result.family == ("table" if "table" in fit_result.spent else "kernel")


def test_large_budget_preserves_move_frequencies():
    """Users walk round four cells in one direction: a thousand moves from each cell.

    The noise is small.
    """
    fit_result = fit_private([[0, 1, 5, 4] * 25] * 40, GRID, 60, 100_000, 100, 40, rng=1)
    assert fit_result.family == "table"
    moves = fit_result.model.transition.toarray()
    for here, there in ((0, 1), (1, 5), (5, 4), (4, 0)):
        assert moves[here, there] > 0.95 * (1 - moves[here, here])


@pytest.mark.parametrize("table", [False, True])
def test_model_file_is_function_of_noisy_counts(monkeypatch, tmp_path, table):
    """With equal noisy counts, zero, one and many users give equal bytes."""
    rng = np.random.default_rng(3)
    pool = {name: rng.integers(-20, 60, 2000) for name in ("rings", "places", "table")}

    def add_fixed(self, name, counts, sensitivity, epsilon):
        self.spent[name] = epsilon
        size = np.asarray(counts).size
        return np.array(10**6 if table else 30) if name == "users" else pool[name][:size].reshape(np.shape(counts))

    monkeypatch.setattr(discrete_laplace.CountNoise, "add", add_fixed)
    files = []
    for number, data in enumerate(([], [[3]], [[0, 1, 1, 5]] * 50, [[11, 10, 11, -1, 2]] * 9)):
        fit_result = fit_private(data, GRID, 60, 1, 7, 40)
        assert fit_result.family == ("table" if table else "kernel")
        fit_result.model.save(tmp_path / f"{number}.npz")
        files.append((tmp_path / f"{number}.npz").read_bytes())
    assert len(set(files)) == 1


class _Learner:
    """P(stay in the first state) under a model trained with x additional resting users."""

    def sample(self, x, rng=None, size=None):
        user_paths = [[0, 1], [4, 5], [0, 4]] * 3 + [[0] * 400] * int(x[0])
        probabilities = [
            fit_private(user_paths, GRID, 60, 2, 4, 40, rng=rng).model.transition[0, 0] for _ in range(size)
        ]
        return np.array(probabilities)[:, None]


@pytest.mark.slow
def test_empirical_audit_accepts_learner_and_detects_missing_thinning(monkeypatch):
    """200 models (100 in the short run), confidence 0.999, seed 5.

    A sound learner fails once in a thousand runs.
    """
    options = {"samples": choose_count(200, 100), "confidence": 0.999, "rng": 5}
    assert not audit_pair(_Learner(), [0.0], [1.0], 2.0, **options).is_violated
    monkeypatch.setattr(Moves, "thin", lambda self, maximum: self)
    assert audit_pair(_Learner(), [0.0], [1.0], 2.0, **options).is_violated


@pytest.mark.slow
def test_private_model_fits_between_plain_model_and_uniform():
    rng = np.random.default_rng(2)
    grid = Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, 12, 12)

    def walk():
        here, states = int(rng.integers(grid.size)), []
        for _ in range(60):
            states.append(here)
            if rng.random() < 0.2:
                column, row = np.clip(grid.lattice[here] + rng.integers(-1, 2, 2), 0, 11)
                here = int(grid.state_at([column, row])[0])
        return states

    learned, test_walks = [walk() for _ in range(500)], np.array([walk() for _ in range(100)])
    private = [fit_private(learned, grid, 300, 1, rng=seed).model for seed in range(3)]
    plain = fit_shrunk(learned, grid, 300).model
    pairs = test_walks[:, :-1].ravel(), test_walks[:, 1:].ravel()
    scores = [np.log(model.transition.toarray()[pairs]).mean() for model in (*private, plain)]
    assert max(scores[:3]) < scores[3]
    assert min(scores[:3]) > scores[3] - 0.5
    assert scores[3] > -np.log(grid.size) + 2


def test_every_possible_move_has_mass_and_file_states_guarantee(tmp_path):
    for data in ([], [[0, 0, 1]] * 30):
        for epsilon in ("1/100", 1, 100000):
            fit_result = fit_private(data, GRID, 60, epsilon, 2, 40, rng=4)
            assert fit_result.model.transition.nnz == REACH.entries
            assert (fit_result.model.initial > 0).all()
    fit_result.model.save(tmp_path / "m.npz")
    provenance = MarkovModel.load(tmp_path / "m.npz").provenance
    assert provenance is not None
    assert provenance == {**fit_result.to_dict(), "max_speed_kmh": 40.0}
    assert Fraction(provenance["epsilon"]) == sum(map(Fraction, provenance["spent_on"].values()))


@pytest.mark.parametrize("epsilon", [0, -1, "x", 1e-29])
def test_nonpositive_or_too_small_epsilon_raises(epsilon):
    with pytest.raises(BudgetError, match="user_epsilon must be"):
        fit_private([[0, 1]], GRID, 60, epsilon)


@pytest.mark.parametrize("maximum", [0, -3, 10**9])
def test_moves_per_user_out_of_range_raises(maximum):
    with pytest.raises(InvalidInputError, match="moves_per_user"):
        fit_private([[0, 1]], GRID, 60, 1, maximum)


OUTSIDE = create_outside_states(GRID)
contexts = st.lists(st.lists(st.integers(-1, len(OUTSIDE) - 1), max_size=12), min_size=1, max_size=5)


def _is_outside_change_bounded(user_paths, maximum, bound):
    """Return whether removing one user changes the counts of outside states within a bound."""
    moves = [extract_moves(path, len(OUTSIDE)) for path in user_paths]
    lengths = [np.where(np.array(path, dtype=int) >= GRID.size, 0.3 + np.arange(len(path)), 0.0) for path in user_paths]
    all_counts = count_leaving(moves, lengths, OUTSIDE, maximum)
    rest = (
        count_leaving(moves[:out] + moves[out + 1 :], lengths[:out] + lengths[out + 1 :], OUTSIDE, maximum)
        for out in range(len(moves))
    )
    return max(int(np.abs(all_counts - counts).sum()) for counts in rest) <= bound


@settings(max_examples=choose_count(60, 20))
@given(contexts, st.integers(1, 6))
def test_outside_count_sensitivity_is_bounded(user_paths, maximum):
    assert _is_outside_change_bounded(user_paths, maximum, 2 * maximum)


def test_half_the_outside_bound_is_exceeded():
    assert not _is_outside_change_bounded([[0] + [GRID.size] * 12], 6, 6), "a bound on moves only is not sufficient"


@pytest.mark.slow
def test_private_model_learns_outside_states_within_budget():
    """A large budget reproduces the counts and a small one the prior (seed 3).

    The prior is equal for all border cells.
    """
    rng = np.random.default_rng(3)
    user_paths = []
    lengths = []
    for _ in range(400):
        now, path = 0, []
        for _ in range(20):
            out = now >= GRID.size
            leaves = rng.random() < (0.95 if out else 0.2)
            now = int(GRID.size + rng.integers(len(OUTSIDE.border))) if leaves else int(rng.integers(GRID.size))
            path.append(now)
        user_paths.append(path)
        lengths.append(np.where(np.array(path) >= GRID.size, 3.0, 0.0))
    fit_result = fit_private(user_paths, GRID, 3600, 10_000, 30, rng=1, outside=lengths)
    away = fit_result.model.outside
    assert fit_result.spent["outside"] == Fraction(10_000, 8)
    assert sum(fit_result.spent.values()) == 10_000
    assert away.mean_distances == pytest.approx(np.full(len(away.border), 3.0), rel=0.5), "to the classes of distances"
    chain = fit_result.model.transitions[0].toarray()
    staying = chain[GRID.size :, GRID.size :].sum(axis=1).mean() / chain[GRID.size :][:, away.border].sum(axis=1).mean()
    assert chain[: GRID.size, GRID.size :].sum() < chain[GRID.size :, GRID.size :].sum() * GRID.size / len(away.border)
    assert staying > 1
    low = fit_private(user_paths, GRID, 3600, Fraction(1, 100), 30, rng=1, outside=lengths).model.outside
    assert 0.5 < low.mean_distances[0] < 5.0
    assert (low.outside_shares == low.outside_shares[0]).all()
    plain = fit_private([[x % GRID.size for x in path] for path in user_paths], GRID, 3600, 1, 30, rng=1)
    assert plain.model.outside is None
