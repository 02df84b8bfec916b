"""Paths drawn from a model follow its law: chi-squared tests against exact probabilities, and twins that must fail."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import chi2

from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.model import MarkovModel, TimeClasses, draw_like, draw_paths
from dphmm.model.away import Away
from dphmm.model.path_sampling import PathSampler

ALPHA, SEED, PEOPLE = 1e-4, 20, 40_000
HOUR, FIRST = 3600.0, 470_000


def _models():
    rng = np.random.default_rng(11)

    def rows(*shape):
        size = shape[-1]
        raw = rng.random(shape) * (rng.random(shape) > 0.2) + 0.3 * np.eye(size)[rng.integers(size, size=shape[:-1])]
        return raw / raw.sum(axis=-1, keepdims=True)

    time_classes = TimeClasses(tuple(h % 3 for h in range(168)), HOUR)
    away = Away(3, [0, 2], [1.0, 2.0], [1.5, 5.0], [0.3, 0.6])
    return {
        "plain": MarkovModel(rows(3, 3), rows(3)),
        "by hours": MarkovModel(list(rows(3, 3, 3)), rows(3, 3), None, HOUR, time_classes),
        "people outside": MarkovModel([rows(5, 5)], rows(1, 3), away=away),
        "both": MarkovModel(list(rows(3, 5, 5)), rows(3, 3), None, HOUR, time_classes, away),
    }


MODELS = _models()


def _law(model, length):
    """The probability of every path of states: of all paths of the chain, multiplied out from its matrices."""
    number = [model.class_of(FIRST + k) for k in range(length)]
    start = model.starts[number[0]]
    if model.away is not None:
        border, share = model.away.border, model.away.share
        outside, start = start[border] * share, start.copy()
        start[border] -= outside
        start = np.concatenate([start, outside])
    found = dict.fromkeys(itertools.product(range(3), repeat=length), 0.0)
    for chain in itertools.product(range(len(start)), repeat=length):
        mass = start[chain[0]]
        for k in range(1, length):
            mass *= model.transitions[number[k]][chain[k - 1], chain[k]]
        found[tuple(model.last[list(chain)].tolist())] += mass
    return found


def _p_value(paths, law):
    """Of the counts of all paths against a law; impossible paths seen have none."""
    keys = {path: number for number, path in enumerate(law)}
    counts = np.bincount([keys[tuple(path)] for path in paths.tolist()], minlength=len(law))
    expected = np.array(list(law.values())) * len(paths)
    if counts[expected == 0].any():
        return 0.0
    some = expected > 0
    order = np.argsort(expected[some])
    merged = np.cumsum(expected[some][order]) // 25  # cells of 25 or more
    cells = [np.bincount(merged.astype(int), part[some][order]) for part in (counts, expected)]
    kept = cells[1] > 0
    statistic = ((cells[0] - cells[1])[kept] ** 2 / cells[1][kept]).sum()
    return float(chi2.sf(statistic, max(int(kept.sum()) - 1, 1)))


@pytest.mark.parametrize("kind", MODELS)
def test_paths_of_five_steps_have_the_probabilities_of_the_model(kind):
    model = MODELS[kind]
    paths = draw_paths(model, PEOPLE, 5, FIRST, rng=SEED)
    law = _law(model, 5)
    assert sum(law.values()) == pytest.approx(1.0)
    assert _p_value(paths, law) > ALPHA


@pytest.mark.parametrize("kind", ["by hours", "both"])
def test_broken_twins_an_hour_off_or_with_everybody_inside_fail(kind):
    model = MODELS[kind]
    assert _p_value(draw_paths(model, PEOPLE, 5, FIRST + 1, rng=SEED), _law(model, 5)) < ALPHA
    if model.away is not None:
        walker = PathSampler(model, SEED)
        honest, last = walker.step, model.away.last
        walker.step = lambda now, classes: honest(last[now], classes)  # takes people outside to be inside
        assert _p_value(walker.paths(np.full(PEOPLE, FIRST), 5), _law(model, 5)) < ALPHA


def test_visits_and_moves_at_late_steps_have_the_exact_law():
    model = MODELS["plain"]
    paths = draw_paths(model, PEOPLE, 40, rng=SEED)
    late = model.initial @ np.linalg.matrix_power(model.transition.toarray(), 38)
    joint = late[:, np.newaxis] * model.transition.toarray()
    law = {(i, j): joint[i, j] for i, j in itertools.product(range(3), range(3))}
    assert _p_value(paths[:, 38:], law) > ALPHA


def test_a_stretch_like_another_begins_when_it_does_and_is_as_long():
    model = MODELS["both"]
    firsts = np.concatenate([np.full(20_000, FIRST), np.full(20_000, FIRST + 2), [FIRST]])
    lengths = np.concatenate([np.full(20_000, 3), np.full(20_000, 2), [50]])
    found = draw_like(model, firsts, lengths, rng=SEED)
    assert [len(one) for one in found] == lengths.tolist()
    law = _law(model, 3)
    assert _p_value(np.stack(found[:20_000]), law) > ALPHA
    begun = np.bincount([int(one[0]) for one in found[20_000:40_000]], minlength=3)
    expected = model.starts[model.time_classes.class_of(FIRST + 2)] * 20_000
    some = expected > 0
    assert chi2.sf(((begun - expected)[some] ** 2 / expected[some]).sum(), 2) > ALPHA
    assert begun[~some].sum() == 0


def test_a_state_of_a_large_chain_never_takes_another_states_row():
    size = 200_000
    matrix = csr_array((np.ones(size), (np.arange(size), np.roll(np.arange(size), 1))), shape=(size, size))
    walker = PathSampler(MarkovModel(matrix, np.eye(1, size).ravel()))

    class Last:
        def uniform(self, count):
            return np.full(count, 1 - 2.0**-53)

    walker._source = Last()
    now = np.arange(size)
    np.testing.assert_array_equal(walker.step(now, 0), np.roll(np.arange(size), 1))


def test_seeds_repeat_and_what_cannot_be_drawn_is_refused():
    model = MODELS["both"]
    one, other = (draw_paths(model, 7, 9, FIRST, rng=3) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert draw_paths(model, 50, 9, FIRST).tolist() != draw_paths(model, 50, 9, FIRST).tolist()
    with pytest.raises(ConfigurationError, match="time of day"):
        draw_paths(model, 1, 1)
    for people, length in ((0, 1), (1, 0), (2**20, 2**20)):
        with pytest.raises(InvalidInputError, match="paths"):
            draw_paths(model, people, length, FIRST)
    with pytest.raises(InvalidInputError, match="firsts"):
        draw_like(model, [FIRST], [1, 2])
