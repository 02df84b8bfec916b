"""Sampled paths: chi-squared tests against exact probabilities, with broken variants."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import chi2

from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.model import MarkovModel, TimeClasses, sample_paths, sample_paths_like
from dphmm.model.outside_states import OutsideStates
from dphmm.model.path_sampling import PathSampler

ALPHA = 1e-4
SEED = 20
NUM_PATHS = 40_000
HOUR = 3600.0
FIRST = 470_000


def _build_models():
    rng = np.random.default_rng(11)

    def sample_rows(*shape):
        size = shape[-1]
        raw = rng.random(shape) * (rng.random(shape) > 0.2) + 0.3 * np.eye(size)[rng.integers(size, size=shape[:-1])]
        return raw / raw.sum(axis=-1, keepdims=True)

    time_classes = TimeClasses(tuple(h % 3 for h in range(168)), HOUR)
    away = OutsideStates(3, [0, 2], [1.0, 2.0], [1.5, 5.0], [0.3, 0.6])
    return {
        "plain": MarkovModel(sample_rows(3, 3), sample_rows(3)),
        "by hours": MarkovModel(list(sample_rows(3, 3, 3)), sample_rows(3, 3), None, HOUR, time_classes),
        "outside states": MarkovModel([sample_rows(5, 5)], sample_rows(1, 3), outside=away),
        "both": MarkovModel(list(sample_rows(3, 5, 5)), sample_rows(3, 3), None, HOUR, time_classes, away),
    }


MODELS = _build_models()


def _enumerate_paths(model, length):
    """Enumerate the probability of every path of states, by all paths of the chain."""
    number = [model.get_class(FIRST + k) for k in range(length)]
    start = model.initial_by_class[number[0]]
    if model.outside is not None:
        border, share = model.outside.border, model.outside.outside_shares
        outside, start = start[border] * share, start.copy()
        start[border] -= outside
        start = np.concatenate([start, outside])
    masses = dict.fromkeys(itertools.product(range(3), repeat=length), 0.0)
    for chain in itertools.product(range(len(start)), repeat=length):
        mass = start[chain[0]]
        for k in range(1, length):
            mass *= model.transitions[number[k]][chain[k - 1], chain[k]]
        masses[tuple(model.state_of_context[list(chain)].tolist())] += mass
    return masses


def _compute_p_value(paths, law):
    """Return the p-value of the path counts, or 0 if an impossible path occurs."""
    keys = {path: number for number, path in enumerate(law)}
    counts = np.bincount([keys[tuple(path)] for path in paths.tolist()], minlength=len(law))
    expected = np.array(list(law.values())) * len(paths)
    if counts[expected == 0].any():
        return 0.0
    possible = expected > 0
    order = np.argsort(expected[possible])
    merged = np.cumsum(expected[possible][order]) // 25  # cells of 25 or more
    cells = [np.bincount(merged.astype(int), part[possible][order]) for part in (counts, expected)]
    kept = cells[1] > 0
    statistic = ((cells[0] - cells[1])[kept] ** 2 / cells[1][kept]).sum()
    return float(chi2.sf(statistic, max(int(kept.sum()) - 1, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_sampled_paths_match_model_probabilities(kind):
    model = MODELS[kind]
    paths = sample_paths(model, NUM_PATHS, 5, FIRST, rng=SEED)
    law = _enumerate_paths(model, 5)
    assert sum(law.values()) == pytest.approx(1.0)
    assert _compute_p_value(paths, law) > ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["by hours", "both"])
def test_wrong_slot_or_ignored_outside_states_fail_test(kind):
    model = MODELS[kind]
    assert _compute_p_value(sample_paths(model, NUM_PATHS, 5, FIRST + 1, rng=SEED), _enumerate_paths(model, 5)) < ALPHA
    if model.outside is not None:
        walker = PathSampler(model, SEED)
        honest, last = walker.step, model.outside.state_of_context
        walker.step = lambda now, classes: honest(last[now], classes)  # treats users outside as inside
        assert (
            _compute_p_value(walker.sample_state_paths(np.full(NUM_PATHS, FIRST), 5), _enumerate_paths(model, 5))
            < ALPHA
        )


def test_late_steps_match_exact_distribution():
    model = MODELS["plain"]
    paths = sample_paths(model, NUM_PATHS, 40, rng=SEED)
    late = model.initial @ np.linalg.matrix_power(model.transition.toarray(), 38)
    joint = late[:, np.newaxis] * model.transition.toarray()
    law = {(i, j): joint[i, j] for i, j in itertools.product(range(3), range(3))}
    assert _compute_p_value(paths[:, 38:], law) > ALPHA


@pytest.mark.slow
def test_sampled_segments_keep_start_and_length_of_originals():
    model = MODELS["both"]
    firsts = np.concatenate([np.full(20_000, FIRST), np.full(20_000, FIRST + 2), [FIRST]])
    lengths = np.concatenate([np.full(20_000, 3), np.full(20_000, 2), [50]])
    paths_by_user = sample_paths_like(model, firsts, lengths, rng=SEED)
    assert [len(states) for states in paths_by_user] == lengths.tolist()
    law = _enumerate_paths(model, 3)
    assert _compute_p_value(np.stack(paths_by_user[:20_000]), law) > ALPHA
    begun = np.bincount([int(states[0]) for states in paths_by_user[20_000:40_000]], minlength=3)
    expected = model.initial_by_class[model.time_classes.get_class(FIRST + 2)] * 20_000
    possible = expected > 0
    assert chi2.sf(((begun - expected)[possible] ** 2 / expected[possible]).sum(), 2) > ALPHA
    assert begun[~possible].sum() == 0


def test_large_chain_samples_use_own_row():
    size = 200_000
    matrix = csr_array((np.ones(size), (np.arange(size), np.roll(np.arange(size), 1))), shape=(size, size))
    walker = PathSampler(MarkovModel(matrix, np.eye(1, size).ravel()))

    class Last:
        def sample_uniform(self, count):
            return np.full(count, 1 - 2.0**-53)

    walker._source = Last()
    now = np.arange(size)
    np.testing.assert_array_equal(walker.step(now, 0), np.roll(np.arange(size), 1))


def test_seed_is_reproducible_and_invalid_arguments_raise():
    model = MODELS["both"]
    first, other = (sample_paths(model, 7, 9, FIRST, rng=3) for _ in range(2))
    np.testing.assert_array_equal(first, other)
    assert sample_paths(model, 50, 9, FIRST).tolist() != sample_paths(model, 50, 9, FIRST).tolist()
    with pytest.raises(ConfigurationError, match="time-dependent model needs the slot"):
        sample_paths(model, 1, 1)
    for num_users, length in ((0, 1), (1, 0), (2**20, 2**20)):
        with pytest.raises(InvalidInputError, match=r"(num_users|length) must be|num_users times length"):
            sample_paths(model, num_users, length, FIRST)
    with pytest.raises(InvalidInputError, match="firsts"):
        sample_paths_like(model, [FIRST], [1, 2])
