"""Learning by class of time: against a known law, and never worse for other people."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, InvalidInputError, StateError
from dphmm.model import MarkovModel, TimeClasses, extend
from dphmm.model import fitting as extending
from dphmm.model.fitting import _weight

HOUR = 3600.0
HOURS = TimeClasses.of("hours", HOUR)


def _walks(rng, people, length, law):
    """Sequences of a law: ``law(slot, now)`` is the distribution of the next state."""
    found = []
    for _ in range(people):
        first = int(rng.integers(10_000))
        states = [0]
        for k in range(length):
            states.append(int(rng.choice(3, p=law(first + k + 1, states[-1]))))
        found.append((first + np.arange(length + 1), np.array(states)))
    return found


def _by_hour(slot, now):
    leaves = 0.6 if HOURS.class_of(slot) in (8, 9, 17, 18) else 0.05
    return np.where(np.arange(3) == now, 1 - leaves, leaves / 2)


def _held_out(model, sequences):
    """The mean log likelihood of a move, by the definition of the chain."""
    total, count = 0.0, 0
    for slots, states in sequences:
        for k in range(1, len(states) - 1):
            matrix = model.transitions[model.class_of(int(slots[k + 1]))]
            total, count = total + np.log(matrix[states[k], states[k + 1]]), count + 1
    return total / count


def test_the_known_law_is_found_and_other_people_are_predicted_better():
    rng = np.random.default_rng(1)
    people, others = _walks(rng, 8, 600, _by_hour), _walks(rng, 4, 400, _by_hour)
    base = MarkovModel.fit(people, 3, 0.5, step_seconds=HOUR)
    made = extend(base, people, HOURS)
    gain = _held_out(made.model, others) - _held_out(base, others)
    entropy = np.mean(
        [
            np.log(_by_hour(int(s), a)[b])
            for slots, states in others
            for s, a, b in zip(slots[2:], states[1:], states[2:], strict=False)
        ]
    )
    assert gain > 0.08
    assert _held_out(made.model, others) == pytest.approx(entropy, abs=0.05)
    for hour in (3, 8):
        row = made.model.transitions[hour].toarray()[0]
        assert row == pytest.approx(_by_hour(hour + 1, 0), abs=0.1)


def test_where_time_says_nothing_nothing_is_made_of_it():
    rng = np.random.default_rng(2)
    people = _walks(rng, 20, 60, lambda slot, now: np.array([0.5, 0.3, 0.2]))
    base = MarkovModel.fit(people, 3, 0.5, step_seconds=HOUR)
    made = extend(base, people, HOURS)
    others = _walks(rng, 10, 200, lambda slot, now: np.array([0.5, 0.3, 0.2]))
    assert _held_out(made.model, others) > _held_out(base, others) - 0.03


def test_no_move_becomes_possible_or_impossible_and_rows_sum_to_one():
    rng = np.random.default_rng(3)
    people = _walks(rng, 5, 100, _by_hour)
    base = MarkovModel([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.5, 0.5]], [0.4, 0.3, 0.3], step_seconds=HOUR)
    made = extend(base, people, HOURS)
    assert made.impossible > 0
    np.testing.assert_array_equal(made.model.structure.toarray(), base.structure.toarray())
    for one in made.model.transitions:
        assert one.nnz == made.model.transitions[0].nnz
        np.testing.assert_allclose(one.sum(axis=1), 1.0, rtol=1e-12)


def test_the_weight_is_that_of_leaving_each_person_out_by_plain_loops():
    rng = np.random.default_rng(4)
    person, parent = rng.integers(4, size=300), rng.integers(2, size=300)
    row, column = parent * 3 + rng.integers(3, size=300), rng.integers(3, size=300)
    column = np.where(rng.random(300) < 0.5, row % 3, column)
    known = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])[parent, column]

    def score(weight):
        total = 0.0
        for who in range(4):
            rest = person != who
            for r, p, c in zip(row[~rest], parent[~rest], column[~rest], strict=True):
                above = (parent == p) & rest
                given = known[(parent == p) & (column == c)][0]
                prior = ((above & (column == c)).sum() + 4 * given) / (above.sum() + 4)
                own = (row == r) & rest
                if weight == np.inf:
                    total += np.log(prior)
                else:
                    total += np.log(((own & (column == c)).sum() + weight * prior) / (own.sum() + weight))
        return total

    found = _weight(person, parent, row, column, known)
    scores = {weight: score(weight) for weight in (*(2.0**k for k in range(15)), np.inf)}
    assert found == max(scores, key=lambda weight: scores[weight])
    assert 1 < found < np.inf


def test_what_cannot_be_extended_is_refused():
    base = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), step_seconds=HOUR)
    people = [(np.arange(4), np.array([0, 1, 2, 0]))]
    with pytest.raises(ConfigurationError, match="must have one matrix for all times, but it has a matrix for each of"):
        extend(extend(base, people, HOURS).model, people, HOURS)
    with pytest.raises(ConfigurationError, match="give one step"):
        extend(base, people, TimeClasses.of("hours", 60))
    with pytest.raises(StateError, match="does not exist"):
        extend(base, [(np.arange(2), np.array([0, 3]))], HOURS)
    with pytest.raises(StateError, match="increase"):
        extend(base, [(np.array([1, 1]), np.array([0, 2]))], HOURS)
    assert extend(base, [(np.arange(0), np.arange(0))], HOURS).moves == 0


def test_models_of_as_many_moves_as_fit_are_made_and_of_more_refused(monkeypatch):
    base = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), step_seconds=HOUR)
    people = [(np.arange(4), np.array([0, 1, 2, 0]))]
    monkeypatch.setattr(extending, "_MOST", 24 * 9)
    assert extend(base, people, HOURS).moves == 3
    monkeypatch.setattr(extending, "_MOST", 24 * 9 - 1)
    with pytest.raises(InvalidInputError, match="216 possible moves"):
        extend(base, people, HOURS)
