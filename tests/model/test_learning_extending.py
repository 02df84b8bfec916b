"""Models by time class, against a known distribution and held-out users."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, InvalidInputError, StateError
from dphmm.model import MarkovModel, TimeClasses, extend
from dphmm.model import learning as extending
from dphmm.model.learning import _find_parent_weight

HOUR = 3600.0
HOURS = TimeClasses.from_name("hour", HOUR)


def _sample_walks(rng, num_users, length, law):
    """Sample walks from ``law(slot, now)``, the distribution of the next state."""
    sequences = []
    for _ in range(num_users):
        first = int(rng.integers(10_000))
        states = [0]
        for k in range(length):
            states.append(int(rng.choice(3, p=law(first + k + 1, states[-1]))))
        sequences.append((first + np.arange(length + 1), np.array(states)))
    return sequences


def _get_hourly_row(slot, now):
    leaves = 0.6 if HOURS.get_class(slot) in (8, 9, 17, 18) else 0.05
    return np.where(np.arange(3) == now, 1 - leaves, leaves / 2)


def _score_held_out(model, sequences):
    """Return the mean log-likelihood of a move, by the definition of the chain."""
    total, count = 0.0, 0
    for slots, states in sequences:
        for k in range(1, len(states) - 1):
            matrix = model.transitions[model.get_class(int(slots[k + 1]))]
            total, count = total + np.log(matrix[states[k], states[k + 1]]), count + 1
    return total / count


@pytest.mark.slow
def test_known_hourly_model_is_recovered_and_improves_prediction():
    rng = np.random.default_rng(1)
    walks, others = _sample_walks(rng, 8, 600, _get_hourly_row), _sample_walks(rng, 4, 400, _get_hourly_row)
    base = MarkovModel.fit(walks, 3, 0.5, step_seconds=HOUR)
    extension = extend(base, walks, HOURS)
    gain = _score_held_out(extension.model, others) - _score_held_out(base, others)
    entropy = np.mean(
        [
            np.log(_get_hourly_row(int(s), a)[b])
            for slots, states in others
            for s, a, b in zip(slots[2:], states[1:], states[2:], strict=False)
        ]
    )
    assert gain > 0.08
    assert _score_held_out(extension.model, others) == pytest.approx(entropy, abs=0.05)
    for hour in (3, 8):
        row = extension.model.transitions[hour].toarray()[0]
        assert row == pytest.approx(_get_hourly_row(hour + 1, 0), abs=0.1)


def test_uninformative_time_classes_do_not_worsen_prediction():
    rng = np.random.default_rng(2)
    walks = _sample_walks(rng, 20, 60, lambda slot, now: np.array([0.5, 0.3, 0.2]))
    base = MarkovModel.fit(walks, 3, 0.5, step_seconds=HOUR)
    extension = extend(base, walks, HOURS)
    others = _sample_walks(rng, 10, 200, lambda slot, now: np.array([0.5, 0.3, 0.2]))
    assert _score_held_out(extension.model, others) > _score_held_out(base, others) - 0.03


def test_structure_is_kept_and_rows_sum_to_one():
    rng = np.random.default_rng(3)
    walks = _sample_walks(rng, 5, 100, _get_hourly_row)
    base = MarkovModel([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.5, 0.5]], [0.4, 0.3, 0.3], step_seconds=HOUR)
    extension = extend(base, walks, HOURS)
    assert extension.impossible > 0
    np.testing.assert_array_equal(extension.model.structure.toarray(), base.structure.toarray())
    for matrix in extension.model.transitions:
        assert matrix.nnz == extension.model.transitions[0].nnz
        np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=1e-12)


def test_weight_matches_leave_one_out_loops():
    rng = np.random.default_rng(4)
    user, parent = rng.integers(4, size=300), rng.integers(2, size=300)
    row, column = parent * 3 + rng.integers(3, size=300), rng.integers(3, size=300)
    column = np.where(rng.random(300) < 0.5, row % 3, column)
    prior_shares = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])[parent, column]

    def score(weight):
        total = 0.0
        for held_out in range(4):
            rest = user != held_out
            for r, p, c in zip(row[~rest], parent[~rest], column[~rest], strict=True):
                above = (parent == p) & rest
                base = prior_shares[(parent == p) & (column == c)][0]
                prior = ((above & (column == c)).sum() + 4 * base) / (above.sum() + 4)
                same_row = (row == r) & rest
                if weight == np.inf:
                    total += np.log(prior)
                else:
                    total += np.log(((same_row & (column == c)).sum() + weight * prior) / (same_row.sum() + weight))
        return total

    weight = _find_parent_weight(user, parent, row, column, prior_shares)
    scores = {weight: score(weight) for weight in (*(2.0**k for k in range(15)), np.inf)}
    assert weight == max(scores, key=lambda weight: scores[weight])
    assert 1 < weight < np.inf


def test_invalid_extensions_raise():
    base = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), step_seconds=HOUR)
    walks = [(np.arange(4), np.array([0, 1, 2, 0]))]
    with pytest.raises(ConfigurationError, match="one matrix"):
        extend(extend(base, walks, HOURS).model, walks, HOURS)
    with pytest.raises(ConfigurationError, match="time_classes must have the step_seconds"):
        extend(base, walks, TimeClasses.from_name("hour", 60))
    with pytest.raises(StateError, match="states must be from 0"):
        extend(base, [(np.arange(2), np.array([0, 3]))], HOURS)
    with pytest.raises(StateError, match="increase"):
        extend(base, [(np.array([1, 1]), np.array([0, 2]))], HOURS)
    assert extend(base, [(np.arange(0), np.arange(0))], HOURS).moves == 0


def test_extension_above_size_limit_raises(monkeypatch):
    base = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), step_seconds=HOUR)
    walks = [(np.arange(4), np.array([0, 1, 2, 0]))]
    monkeypatch.setattr(extending, "_MAX_ENTRIES", 24 * 9)
    assert extend(base, walks, HOURS).moves == 3
    monkeypatch.setattr(extending, "_MAX_ENTRIES", 24 * 9 - 1)
    with pytest.raises(InvalidInputError, match=r"at most 215 possible moves .*got 216"):
        extend(base, walks, HOURS)
