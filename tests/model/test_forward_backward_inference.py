"""Filter, smoother and most probable path, against enumeration of paths and hmmlearn."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import MarkovModel
from dphmm import model as model_stage
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.model import Belief, Filtering, Observations, filter_releases, find_release_path, smooth_releases
from tests.sizes import mark_rest_slow


def build_instance(seed: int, size: int = 3, length: int = 4) -> tuple[MarkovModel, Observations]:
    """Build a small chain with impossible transitions and emissions."""
    rng = np.random.default_rng(seed)
    matrix = rng.random((size, size)) * (rng.random((size, size)) < 0.7) + 0.2 * np.eye(size)
    initial = rng.random(size) * (rng.random(size) < 0.7)
    initial[int(rng.integers(size))] += 0.3
    rows = rng.normal(0, 3, (length, size))
    rows[rng.random((length, size)) < 0.15] = -np.inf
    steps = rng.integers(0, 4, length)
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), initial / initial.sum())
    return model, Observations(rows, steps)


def enumerate_paths(model: MarkovModel, observed: Observations) -> tuple[np.ndarray, float, float]:
    """Enumerate the paths.

    Returns the joint weights of all paths at the releases, their sum, and the largest weight of a path through all
    slots.
    """
    matrix = model.transition.toarray()
    length, size = observed.log_likelihood.shape
    likelihood = np.exp(observed.log_likelihood)
    slots = np.concatenate([[0], np.cumsum(observed.steps[1:])])
    joint = np.zeros((size,) * length)
    best = 0.0
    for path in product(range(size), repeat=int(slots[-1]) + 1):
        weight = model.initial[path[0]]
        for a, b in pairwise(path):
            weight *= matrix[a, b]
        at = tuple(path[slot] for slot in slots)
        weight *= np.prod([likelihood[t, state] for t, state in enumerate(at)])
        joint[at] += weight
        best = max(best, weight)
    return joint, float(joint.sum()), best


def is_possible(model: MarkovModel, observed: Observations) -> bool:
    """Return whether some path has positive weight, faster than `enumerate_paths`."""
    now = (model.initial > 0) & np.isfinite(observed.log_likelihood[0])
    for steps, row in zip(observed.steps[1:], observed.log_likelihood[1:], strict=True):
        reached = np.linalg.matrix_power((model.transition.toarray() > 0).astype(float), int(steps))
        now = (now @ reached > 0) & np.isfinite(row)
    return bool(now.any())


INSTANCES = [seed for seed in range(60) if is_possible(*build_instance(seed))]


@pytest.mark.parametrize("seed", mark_rest_slow(INSTANCES, 10))
def test_filter_smoother_and_evidence_match_enumeration(seed):
    model, observed = build_instance(seed)
    joint, total, _ = enumerate_paths(model, observed)
    filtering = filter_releases(model, observed)
    assert filtering.log_evidence == pytest.approx(np.log(total), rel=1e-10, abs=1e-10)
    smoothed = smooth_releases(model, observed, filtering)
    axes = set(range(len(observed)))
    for t in axes:
        marginal = joint.sum(axis=tuple(axes - {t})) / total
        assert np.allclose(smoothed[t].probabilities, marginal, rtol=1e-10, atol=1e-300)
        assert np.array_equal(smoothed[t].support, marginal > 0)
        part = Observations(observed.log_likelihood[: t + 1], observed.steps[: t + 1])
        joint_until, total_until, _ = enumerate_paths(model, part)
        filtered = joint_until.sum(axis=tuple(range(t))) / total_until
        assert np.allclose(filtering.filtered[t].probabilities, filtered, rtol=1e-10, atol=1e-300)


def _update_step_by_step(model, observed):
    """Build a filtering from beliefs that are updated one release at a time."""
    now = Belief.initial(model)
    before = []
    after = []
    for t, row in enumerate(observed.log_likelihood):
        before.append(now.predict(model, int(observed.steps[t])) if t else now)
        now = before[-1].update(row)
        after.append(now)
    return Filtering.from_beliefs(model, observed, before, after)


@pytest.mark.parametrize("seed", INSTANCES[:8])
def test_filtering_from_updated_beliefs_matches_filter(seed):
    model, observed = build_instance(seed)
    followed, filtered = _update_step_by_step(model, observed), filter_releases(model, observed)
    assert followed.log_evidence == pytest.approx(filtered.log_evidence, rel=1e-12, abs=1e-12)
    for attribute in ("predicted", "filtered"):
        for belief, other in zip(getattr(followed, attribute), getattr(filtered, attribute), strict=True):
            assert np.array_equal(belief.support, other.support)
            np.testing.assert_allclose(belief.probabilities, other.probabilities, rtol=1e-12)
    for belief, other in zip(
        smooth_releases(model, observed, followed), smooth_releases(model, observed, filtered), strict=True
    ):
        np.testing.assert_allclose(belief.probabilities, other.probabilities, rtol=1e-12)


@pytest.mark.parametrize("seed", mark_rest_slow(INSTANCES, 16))
def test_most_probable_path_matches_enumeration(seed):
    model, observed = build_instance(seed)
    _, _, best = enumerate_paths(model, observed)
    path = find_release_path(model, observed)
    assert path.log_probability == pytest.approx(np.log(best), rel=1e-10, abs=1e-10)
    matrix = np.log(np.maximum(model.transition.toarray(), 1e-300))
    powers = {0: np.where(np.eye(model.size) > 0, 0.0, -np.inf)}
    for k in range(1, 4):
        powers[k] = (powers[k - 1][:, :, None] + matrix[None]).max(axis=1)
    score = np.log(model.initial[path.states[0]]) + observed.log_likelihood[0, path.states[0]]
    for t in range(1, len(observed)):
        a, b = path.states[t - 1], path.states[t]
        score += powers[int(observed.steps[t])][a, b] + observed.log_likelihood[t, b]
    assert score == pytest.approx(path.log_probability, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("seed", mark_rest_slow(INSTANCES, 16))
@pytest.mark.parametrize("kind", [np.array, csr_array])
def test_inference_on_plain_arrays_matches_enumeration(seed, kind):
    model, observed = build_instance(seed)
    one_by_one = Observations(observed.log_likelihood)
    joint, total, best = enumerate_paths(model, one_by_one)
    arguments = kind(model.transition.toarray()), model.initial.tolist(), observed.log_likelihood
    if total == 0:
        for function in (model_stage.filter, model_stage.smooth, model_stage.most_probable_path):
            with pytest.raises(StochasticError, match="release"):
                function(*arguments)
        return
    filtered = model_stage.filter(*arguments)
    smoothed = model_stage.smooth(*arguments)
    path = model_stage.most_probable_path(*arguments)
    axes = set(range(len(observed)))
    for t in axes:
        marginal = joint.sum(axis=tuple(axes - {t})) / total
        np.testing.assert_allclose(smoothed[t], marginal, rtol=1e-10, atol=1e-300)
        joint_until, total_until, _ = enumerate_paths(model, Observations(observed.log_likelihood[: t + 1]))
        np.testing.assert_allclose(
            filtered[t], joint_until.sum(axis=tuple(range(t))) / total_until, rtol=1e-10, atol=1e-300
        )
    assert path.shape == (len(observed),)
    assert joint[tuple(path)] == pytest.approx(best, rel=1e-10)


def test_dense_chain_matches_hmmlearn():
    from hmmlearn import _hmmc

    rng = np.random.default_rng(3)
    size, length = 12, 60
    matrix = rng.dirichlet(np.ones(size), size)
    model = MarkovModel(matrix, rng.dirichlet(np.ones(size)))
    rows = rng.normal(0, 4, (length, size))
    observed = Observations(rows)
    evidence, forward = _hmmc.forward_log(model.initial, model.transition.toarray(), rows)
    backward = _hmmc.backward_log(model.initial, model.transition.toarray(), rows)
    gamma = forward + backward
    gamma -= np.logaddexp.reduce(gamma, axis=1, keepdims=True)
    score, path = _hmmc.viterbi(model.initial, model.transition.toarray(), rows)
    filtering = filter_releases(model, observed)
    assert filtering.log_evidence == pytest.approx(evidence, rel=1e-12)
    smoothed = np.array([belief.log_mass for belief in smooth_releases(model, observed, filtering)])
    assert np.allclose(smoothed, gamma, rtol=0, atol=1e-9)
    path_result = find_release_path(model, observed)
    assert path_result.states.tolist() == path.tolist()
    assert path_result.log_probability == pytest.approx(score, rel=1e-12)


def test_states_below_float_range_are_kept():
    model = MarkovModel([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]], [1.0, 0.0, 0.0])
    rows = np.array([[0.0, 0.0, 0.0], [0.0, -2000.0, -np.inf], [-np.inf, -np.inf, 0.0]])
    for filtering in (filter_releases(model, Observations(rows)), _update_step_by_step(model, Observations(rows))):
        assert filtering.filtered[1].support.tolist() == [True, True, False]
        assert filtering.log_evidence == pytest.approx(2 * np.log(0.5) - 2000, rel=1e-14)
        smoothed = smooth_releases(model, Observations(rows), filtering)
        assert smoothed[1].support.tolist() == [False, True, False]
        assert smoothed[1].probabilities.tolist() == [0.0, 1.0, 0.0]
    assert find_release_path(model, Observations(rows)).states.tolist() == [0, 1, 2]


def test_adversary_prior_replaces_model_prior():
    model, observed = build_instance(INSTANCES[0])
    other = MarkovModel(model.transition, np.full(model.size, 1 / model.size))
    with_prior = filter_releases(model, observed, other.initial)
    with_model = filter_releases(other, observed)
    assert np.array_equal(with_prior.filtered[-1].log_mass, with_model.filtered[-1].log_mass)
    assert find_release_path(model, observed, other.initial).states.tolist() == (
        find_release_path(other, observed).states.tolist()
    )


def test_observations_copy_input_arrays():
    rows, steps = np.zeros((2, 3)), np.array([0, 1])
    observed = Observations(rows, steps)
    rows[0], steps[1] = -1.0, 5
    assert observed.log_likelihood.tolist() == np.zeros((2, 3)).tolist()
    assert observed.steps.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        observed.log_likelihood[0, 0] = 1.0


@pytest.mark.parametrize(
    ("rows", "steps", "words"),
    [
        (np.zeros(3), [], "shape"),
        (np.zeros((0, 3)), [], "shape"),
        (np.full((1, 2), np.nan), [], "NaN"),
        (np.full((1, 2), np.inf), [], "NaN"),
        (np.zeros((2, 2)), [0, -1], "steps must be 2 non-negative integers"),
        (np.zeros((2, 2)), [0], "steps must be 2 non-negative integers"),
    ],
)
def test_invalid_observations_raise(rows, steps, words):
    with pytest.raises(InvalidInputError, match=words):
        Observations(rows, np.array(steps, dtype=np.int64))


def test_impossible_release_raises_with_its_index():
    model = MarkovModel(np.eye(2), [0.5, 0.5])
    apart = Observations(np.array([[0.0, -np.inf], [-np.inf, 0.0]]))
    with pytest.raises(StochasticError, match="release 1"):
        filter_releases(model, apart)
    with pytest.raises(StochasticError, match="release 1"):
        find_release_path(model, apart)
    with pytest.raises(InvalidInputError, match="3 states"):
        filter_releases(model, Observations(np.zeros((1, 3))))
    with pytest.raises(StochasticError, match="initial distribution"):
        filter_releases(model, Observations(np.zeros((1, 2))), [0.5, 0.4])
    with pytest.raises(StochasticError, match="initial distribution"):
        filter_releases(model, Observations(np.zeros((1, 2))), [1.0])


@pytest.mark.parametrize("seed", range(8))
def test_long_gaps_match_uninformative_releases_at_every_step(seed):
    """Smoother and path skip gaps. An uninformative release at each step prevents this."""
    rng = np.random.default_rng(seed)
    size, gap = 5, 400
    matrix = rng.random((size, size)) * (rng.random((size, size)) < 0.5) + 0.3 * np.eye(size)
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(size, 0.2))
    rows = rng.normal(0, 3, (4, size))
    jumping = Observations(rows, np.array([1, gap, 2, gap // 2]))
    at = np.cumsum([0, gap, 2, gap // 2])
    plain = np.zeros((at[-1] + 1, size))
    plain[at] = rows
    walking = Observations(plain)
    short, long = filter_releases(model, jumping), filter_releases(model, walking)
    assert short.log_evidence == pytest.approx(long.log_evidence, rel=1e-10)
    walk = smooth_releases(model, walking, long)
    for belief, t in zip(smooth_releases(model, jumping, short), at, strict=True):
        assert np.allclose(belief.probabilities, walk[t].probabilities, rtol=1e-9, atol=1e-250)
        assert np.array_equal(belief.support, walk[t].support)
    jumped, stepped = find_release_path(model, jumping), find_release_path(model, walking)
    assert jumped.log_probability == pytest.approx(stepped.log_probability, rel=1e-10)
    assert jumped.states.tolist() == stepped.states[at].tolist()


def test_periodic_chain_is_stepped_through():
    model = MarkovModel(np.roll(np.eye(3), 1, axis=1), [1.0, 0.0, 0.0])
    rows = np.array([[0.0, -1.0, -2.0], [-3.0, -1.0, -2.0]])
    observed = Observations(rows, np.array([1, 301]))
    assert find_release_path(model, observed).states.tolist() == [0, 1]
    smoothed = smooth_releases(model, observed, filter_releases(model, observed))
    assert [belief.support.tolist() for belief in smoothed] == [[True, False, False], [False, True, False]]
