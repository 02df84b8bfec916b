"""Private models: what one person changes, by enumeration; that noise covers it; that nothing else gets out."""

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
from dphmm.jobs.private_models import BoundedCounts, leaving_region
from dphmm.mechanisms import count_noise
from dphmm.model import SpeedLimit, fit_shrunk
from dphmm.model.away import twins_of
from dphmm.model.moves import Moves, moves_of
from dphmm.space import LocalProjection
from tests.sizes import fewer

GRID = Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, 4, 3)
REACH = SpeedLimit(GRID, 60, 40)
people = st.lists(st.lists(st.integers(-1, GRID.size - 1), max_size=12), min_size=1, max_size=5)


def _largest_changes(drawn, most, claimed):
    """By how much leaving one person out changes each count, at most, beside what is claimed."""
    blocks = np.arange(GRID.size) // 4
    moves = [moves_of(one, GRID.size) for one in drawn]
    everyone = BoundedCounts.count(moves, REACH, blocks, most, True)
    worst = [0, 0, 0, 0]
    for out in range(len(moves)):
        rest = BoundedCounts.count(moves[:out] + moves[out + 1 :], REACH, blocks, most, True)
        pairs = [(getattr(everyone, name), getattr(rest, name)) for name in ("people", "rings", "places", "table")]
        worst = [max(now, int(np.abs(np.subtract(*pair)).sum())) for now, pair in zip(worst, pairs, strict=True)]
    return all(found <= bound for found, bound in zip(worst, (1, claimed, claimed, claimed), strict=True)), worst


@settings(max_examples=fewer(60, 20))
@given(people, st.integers(1, 6))
def test_a_person_changes_no_count_by_more_than_noise_is_made_for(drawn, most):
    assert _largest_changes(drawn, most, most)[0]


def test_the_bound_is_met_and_without_thinning_it_is_passed():
    drawn = [[0, 1, 0, 1, 0, 1, 0, 1], [0, 0]]
    assert _largest_changes(drawn, 3, 3) == (True, [1, 3, 3, 3])
    kept, worst = _largest_changes(drawn, 10**6, 3)  # the broken twin: nobody is thinned
    assert (kept, worst) == (False, [1, 7, 7, 7])


@pytest.mark.parametrize(("epsilon", "count"), [("1", 40), ("1/3", 40), (2, 3), ("4000", 40)])
def test_every_count_gets_noise_and_the_parts_sum_to_the_budget(monkeypatch, epsilon, count):
    drawn, real = [], count_noise.laplace_steps

    def recorded(decay, size, source):
        drawn.append((decay, size))
        return real(decay, size, source)

    monkeypatch.setattr(count_noise, "laplace_steps", recorded)
    found = fit_private([[0, 1, 1, 5]] * count, GRID, 60, epsilon, 7, 40, rng=1)
    budget = Fraction(epsilon)
    assert sum(found.spent.values()) == found.epsilon == budget
    sensitivity = {"people": 1, "rings": 7, "places": 7, "table": 7}
    assert [decay * sensitivity[name] for (decay, _), name in zip(drawn, found.spent, strict=True)] == list(
        found.spent.values()
    )
    blocks = (-(-4 // found.block)) * (-(-3 // found.block))
    sizes = {"people": 1, "rings": REACH.ring_count, "places": 2 * blocks, "table": REACH.entries}
    assert [size for _, size in drawn] == [sizes[name] for name in found.spent]
    assert found.family == ("table" if "table" in found.spent else "kernel")


def test_with_a_large_budget_moves_are_as_frequent_as_they_were():
    """People who go round four cells and never back, a thousand moves of each cell beside little noise."""
    found = fit_private([[0, 1, 5, 4] * 25] * 40, GRID, 60, 100_000, 100, 40, rng=1)
    assert found.family == "table"
    moves = found.model.transition.toarray()
    for here, there in ((0, 1), (1, 5), (5, 4), (4, 0)):
        assert moves[here, there] > 0.95 * (1 - moves[here, here])


@pytest.mark.parametrize("table", [False, True])
def test_the_file_is_a_function_of_the_noisy_counts(monkeypatch, tmp_path, table):
    """With the same noisy counts, nobody, one person and many give the same bytes."""
    rng = np.random.default_rng(3)
    pool = {name: rng.integers(-20, 60, 2000) for name in ("rings", "places", "table")}

    def fixed(self, name, counts, sensitivity, epsilon):
        self.spent[name] = epsilon
        size = np.asarray(counts).size
        return np.array(10**6 if table else 30) if name == "people" else pool[name][:size].reshape(np.shape(counts))

    monkeypatch.setattr(count_noise.CountNoise, "add", fixed)
    files = []
    for number, data in enumerate(([], [[3]], [[0, 1, 1, 5]] * 50, [[11, 10, 11, -1, 2]] * 9)):
        found = fit_private(data, GRID, 60, 1, 7, 40)
        assert found.family == ("table" if table else "kernel")
        found.model.save(tmp_path / f"{number}.npz")
        files.append((tmp_path / f"{number}.npz").read_bytes())
    assert len(set(files)) == 1


class _Learner:
    """P(stay in the first state) of a model learned from some people, and from one more, at rest, where x is 1."""

    def sample(self, x, rng=None, size=None):
        people = [[0, 1], [4, 5], [0, 4]] * 3 + [[0] * 400] * int(x[0])
        found = [fit_private(people, GRID, 60, 2, 4, 40, rng=rng).model.transition[0, 0] for _ in range(size)]
        return np.array(found)[:, None]


def test_the_auditor_finds_no_more_than_the_budget_and_catches_a_learner_that_does_not_thin(monkeypatch):
    """200 models each, every day 100, confidence 0.999, seed 5: a sound learner fails once in a thousand."""
    options = {"samples": fewer(200, 100), "confidence": 0.999, "rng": 5}
    assert not audit_pair(_Learner(), [0.0], [1.0], 2.0, **options).violated
    monkeypatch.setattr(Moves, "thinned", lambda self, most: self)
    assert audit_pair(_Learner(), [0.0], [1.0], 2.0, **options).violated


def test_a_private_model_fits_worse_than_one_without_noise_and_far_better_than_none():
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

    learned, held = [walk() for _ in range(500)], np.array([walk() for _ in range(100)])
    private = [fit_private(learned, grid, 300, 1, rng=seed).model for seed in range(3)]
    plain = fit_shrunk(learned, grid, 300).model
    pairs = held[:, :-1].ravel(), held[:, 1:].ravel()
    scores = [np.log(model.transition.toarray()[pairs]).mean() for model in (*private, plain)]
    assert max(scores[:3]) < scores[3]
    assert min(scores[:3]) > scores[3] - 0.5
    assert scores[3] > -np.log(grid.size) + 2


def test_every_possible_move_has_mass_and_the_file_says_what_is_promised(tmp_path):
    for data in ([], [[0, 0, 1]] * 30):
        for epsilon in ("1/100", 1, 100000):
            found = fit_private(data, GRID, 60, epsilon, 2, 40, rng=4)
            assert found.model.transition.nnz == REACH.entries
            assert (found.model.initial > 0).all()
    found.model.save(tmp_path / "m.npz")
    told = MarkovModel.load(tmp_path / "m.npz").learned
    assert told is not None
    assert told == {**found.facts, "max_speed_kmh": 40.0}
    assert Fraction(told["epsilon"]) == sum(map(Fraction, told["spent_on"].values()))


@pytest.mark.parametrize("epsilon", [0, -1, "x", 1e-29])
def test_a_budget_is_positive_and_not_too_small(epsilon):
    with pytest.raises(BudgetError):
        fit_private([[0, 1]], GRID, 60, epsilon)


@pytest.mark.parametrize("most", [0, -3, 10**9])
def test_the_bound_on_moves_is_within_its_range(most):
    with pytest.raises(InvalidInputError, match="moves_per_person"):
        fit_private([[0, 1]], GRID, 60, 1, most)


TWINS = twins_of(GRID)
contexts = st.lists(st.lists(st.integers(-1, len(TWINS) - 1), max_size=12), min_size=1, max_size=5)


def _largest_change_outside(drawn, most, bound):
    """Whether leaving one person out changes what is counted of people outside by more than a bound."""
    moves = [moves_of(one, len(TWINS)) for one in drawn]
    lengths = [np.where(np.array(one, dtype=int) >= GRID.size, 0.3 + np.arange(len(one)), 0.0) for one in drawn]
    everyone = leaving_region(moves, lengths, TWINS, most)
    rest = (
        leaving_region(moves[:out] + moves[out + 1 :], lengths[:out] + lengths[out + 1 :], TWINS, most)
        for out in range(len(moves))
    )
    return max(int(np.abs(everyone - one).sum()) for one in rest) <= bound


@settings(max_examples=fewer(60, 20))
@given(contexts, st.integers(1, 6))
def test_a_person_changes_what_is_counted_outside_by_no_more_than_noise_is_made_for(drawn, most):
    assert _largest_change_outside(drawn, most, 2 * most)


def test_noise_for_half_of_that_would_not_suffice():
    assert not _largest_change_outside([[0] + [GRID.size] * 12], 6, 6), "the broken twin: moves alone are bounded"


def test_a_private_model_learns_of_people_outside_from_its_budget_alone():
    """With a large budget the counts, with a small one what is assumed; the same for every border cell (seed 3)."""
    rng, people, lengths = np.random.default_rng(3), [], []
    for _ in range(400):
        now, path = 0, []
        for _ in range(20):
            out = now >= GRID.size
            leaves = rng.random() < (0.95 if out else 0.2)
            now = int(GRID.size + rng.integers(len(TWINS.border))) if leaves else int(rng.integers(GRID.size))
            path.append(now)
        people.append(path)
        lengths.append(np.where(np.array(path) >= GRID.size, 3.0, 0.0))
    made = fit_private(people, GRID, 3600, 10_000, 30, rng=1, outside=lengths)
    away = made.model.away
    assert made.spent["outside"] == Fraction(10_000, 8)
    assert sum(made.spent.values()) == 10_000
    assert away.reach == pytest.approx(np.full(len(away.border), 3.0), rel=0.5), "to the classes of distances"
    chain = made.model.transitions[0].toarray()
    staying = chain[GRID.size :, GRID.size :].sum(axis=1).mean() / chain[GRID.size :][:, away.border].sum(axis=1).mean()
    assert chain[: GRID.size, GRID.size :].sum() < chain[GRID.size :, GRID.size :].sum() * GRID.size / len(away.border)
    assert staying > 1
    low = fit_private(people, GRID, 3600, Fraction(1, 100), 30, rng=1, outside=lengths).model.away
    assert 0.5 < low.reach[0] < 5.0
    assert (low.share == low.share[0]).all()
    plain = fit_private([[x % GRID.size for x in one] for one in people], GRID, 3600, 1, 30, rng=1)
    assert plain.model.away is None
