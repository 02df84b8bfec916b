"""Tests of the adversary's passes against enumerated paths and the package's smoother."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest

from dphmm.attack.mesh import Mesh
from dphmm.attack.posterior import (
    Track,
    Zones,
    infer_from_drifting_offset,
    infer_from_fixed_offset,
    infer_from_rows,
    infer_from_zones,
)
from dphmm.errors import StochasticError
from dphmm.model import filter as filter_states
from dphmm.model import smooth as smooth_states
from tests.attack.scene import build_moves, build_track
from tests.sizes import mark_rest_slow


def make_track(chain, slots=(3, 4, 5, 7), begins=None, seed=0):
    rng = np.random.default_rng(seed)
    slots = np.array(slots)
    points = chain.grid.points[rng.integers(chain.grid.size, size=len(slots))] + 0.01
    return build_track(chain, points, slots, None if begins is None else np.array(begins, dtype=bool))


def enumerate_paths(initial, onward, emission, slots):
    """Filter and smooth at the observed slots by the joint weights of all paths.

    ``onward(slot)`` is the matrix into a slot. ``emission`` maps an observed slot to a row.
    """
    size, length = len(initial), slots[-1] - slots[0] + 1
    at = [slot - slots[0] for slot in slots]

    def compute_marginals(last):
        joint = np.ones((size,) * (last + 1))
        for t in range(last + 1):
            shape = [1] * (last + 1)
            if t == 0:
                shape[0] = size
                joint = joint * initial.reshape(shape)
            else:
                shape[t - 1] = shape[t] = size
                joint = joint * onward(t).reshape(shape)
            if t in at:
                shape = [1] * (last + 1)
                shape[t] = size
                joint = joint * emission(at.index(t)).reshape(shape)
        return joint / joint.sum()

    whole = compute_marginals(length - 1)
    smoothed = [whole.sum(axis=tuple(k for k in range(length) if k != t)) for t in at]
    filtered = [compute_marginals(t).sum(axis=tuple(range(t))) for t in at]
    return np.array(filtered), np.array(smoothed)


def build_part_chain(chain):
    """Return the chain over parts, split into kept and resampled positions, as full matrices."""
    parts = chain.parts**2
    matrix, size = chain.transition_matrix(1), chain.grid.size * parts
    kept = np.diag(np.repeat((1 - chain.redraw_rate) * np.diag(matrix), parts))
    cell = np.arange(size) // parts
    resampled = (
        matrix[np.ix_(cell, cell)] - kept[np.ix_(cell * parts, cell * parts)] * (cell[:, None] == cell)
    ) / parts
    return np.repeat(chain.initial / parts, parts), kept, resampled


@pytest.mark.parametrize("seed", range(5))
def test_whole_cell_posterior_matches_package_filter_and_smoother(seed):
    chain = build_moves(3, 1, seed)
    user_track = make_track(chain, slots=range(10, 18), seed=seed)
    rows = np.random.default_rng(seed).normal(0, 3, (8, 9))
    rows[2, 4] = -np.inf
    posterior = infer_from_rows(chain, user_track, lambda steps: rows[steps])
    model = chain.model.transition, chain.model.initial
    np.testing.assert_allclose(posterior.filtered, filter_states(*model, rows), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(posterior.smoothed, smooth_states(*model, rows), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(posterior.filtered_means, filter_states(*model, rows) @ chain.grid.points, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_part_posterior_matches_path_enumeration(seed):
    chain = build_moves(2, 2, seed)
    user_track = make_track(chain, slots=(3, 4, 6), seed=seed)
    rows = np.random.default_rng(seed).normal(0, 2, (3, 16))
    posterior = infer_from_rows(chain, user_track, lambda steps: rows[steps])
    initial, kept, resampled = build_part_chain(chain)
    filtered, smoothed = enumerate_paths(
        initial, lambda t: kept + resampled, lambda k: np.exp(rows[k]), user_track.slots.tolist()
    )
    np.testing.assert_allclose(posterior.filtered, filtered.reshape(3, 4, 4).sum(axis=2), rtol=1e-9)
    np.testing.assert_allclose(posterior.smoothed, smoothed.reshape(3, 4, 4).sum(axis=2), rtol=1e-9)
    np.testing.assert_allclose(posterior.filtered_means, filtered @ chain.mesh.points, atol=1e-9)
    np.testing.assert_allclose(posterior.smoothed_means, smoothed @ chain.mesh.points, atol=1e-9)


@pytest.mark.parametrize(("seed", "outputs"), [(0, (0, 0, 1)), (1, (1, 1, 1)), (2, (0, 1, 0)), (3, (1, 0, 0))])
def test_repeated_deterministic_release_adds_no_evidence_for_kept_position(seed, outputs):
    """Enumerate all paths of the chain over parts and of the outputs in each part."""
    chain = build_moves(2, 1, seed)
    user_track = make_track(chain, slots=(3, 4, 6), seed=seed)
    share = np.random.default_rng(seed).random(4)
    shares = np.column_stack([share, 1 - share])
    rows = np.log(shares[:, list(outputs)].T)
    is_repeated = np.array([False, outputs[1] == outputs[0], outputs[2] == outputs[1]])
    posterior = infer_from_rows(chain, user_track, lambda steps: rows[steps], is_repeated)
    initial, kept, resampled = build_part_chain(chain)
    atoms = np.repeat(initial, 2) * shares.ravel()
    onward = np.kron(kept, np.eye(2)) + np.kron(resampled, np.ones((2, 2))) * shares.ravel()
    emission = [np.tile(np.eye(2)[output], 4) for output in outputs]
    filtered, smoothed = enumerate_paths(atoms, lambda t: onward, emission.__getitem__, user_track.slots.tolist())
    np.testing.assert_allclose(posterior.filtered, filtered.reshape(3, 4, 2).sum(axis=2), rtol=1e-9)
    np.testing.assert_allclose(posterior.smoothed, smoothed.reshape(3, 4, 2).sum(axis=2), rtol=1e-9)


def test_restart_ignores_earlier_releases():
    chain = build_moves(2, 2, 1)
    rows = np.random.default_rng(1).normal(0, 2, (4, 16))
    whole = infer_from_rows(chain, make_track(chain, begins=[1, 0, 1, 0]), lambda steps: rows[steps])
    first = infer_from_rows(chain, make_track(chain, slots=(3, 4)), lambda steps: rows[:2][steps])
    second = infer_from_rows(chain, make_track(chain, slots=(5, 7)), lambda steps: rows[2:][steps])
    np.testing.assert_allclose(whole.smoothed, np.concatenate([first.smoothed, second.smoothed]), atol=1e-12)


def test_recomputed_blocks_give_equal_posterior(monkeypatch):
    chain, rows = build_moves(2, 2, 2), np.random.default_rng(2).normal(0, 2, (9, 16))
    user_track = make_track(chain, slots=range(9))
    whole = infer_from_rows(chain, user_track, lambda steps: rows[steps])
    monkeypatch.setattr("dphmm.attack.posterior._BLOCK_NUMBERS", 40)
    cut = infer_from_rows(chain, user_track, lambda steps: rows[steps])
    np.testing.assert_allclose(whole.smoothed, cut.smoothed, rtol=1e-12)
    np.testing.assert_allclose(whole.smoothed_cell_means, cut.smoothed_cell_means, rtol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_fixed_offset_posterior_matches_enumeration_of_offsets_and_paths(seed):
    chain, rng = build_moves(2, 1, seed), np.random.default_rng(seed)
    mesh, side = Mesh(chain.grid, 1), chain.grid.cell_km
    offsets = side * rng.uniform(-1.2, 1.2, (7, 2))
    user_track = make_track(chain, slots=(3, 4, 6, 7, 8), begins=[1, 0, 0, 1, 0], seed=seed)
    released = user_track.points + offsets[2]
    posterior = infer_from_fixed_offset(chain, user_track, released, offsets, mesh.locate)
    for last, got in ((t, posterior.filtered[t]) for t in range(5)):
        np.testing.assert_allclose(
            got, _enumerate_offsets(chain, user_track, released, offsets, last)[last], rtol=1e-9, atol=1e-12
        )
    np.testing.assert_allclose(
        posterior.smoothed, _enumerate_offsets(chain, user_track, released, offsets, 4), rtol=1e-9, atol=1e-12
    )


def _enumerate_offsets(chain, user_track, released, offsets, last):
    """Return the posterior of each timestep up to ``last`` from the weights of all offsets."""
    weights, paths = [], []
    for offset in offsets:
        path = [int(chain.grid.state_at(np.rint((p - offset - chain.grid.origin) / chain.grid.cell_km).astype(int))[0])
                for p in released]  # fmt: skip
        weight = 1.0
        for t in range(last + 1):
            if path[t] < 0:
                weight = 0.0
            elif user_track.restarts[t]:
                weight *= chain.initial[path[t]]
            else:
                matrix = np.linalg.matrix_power(
                    chain.transition_matrix(1), int(user_track.slots[t] - user_track.slots[t - 1])
                )
                weight *= matrix[path[t - 1], path[t]]
        weights.append(weight)
        paths.append(path)
    beliefs = np.zeros((len(released), chain.grid.size))
    for weight, path in zip(weights, paths, strict=True):
        for t in range(last + 1):
            if weight > 0:
                beliefs[t, path[t]] += weight / sum(weights)
    return beliefs


@pytest.mark.parametrize("seed", range(4))
def test_drifting_offset_posterior_matches_enumeration(seed):
    chain, rng = build_moves(2, 1, seed), np.random.default_rng(seed)
    user_track = make_track(chain, slots=(3, 4, 6), seed=seed)
    prior, drift = rng.dirichlet([1, 1]), 0.7 * np.eye(2) + 0.3 * rng.dirichlet([1, 1], 2)
    share = rng.random((4, 2))
    shares = np.stack([share, 1 - share], axis=-1)  # cell, offset, output
    outputs, drifts = rng.integers(0, 2, 3), np.array([False, seed % 2 == 0, True])
    is_repeated = np.append(False, outputs[1:] == outputs[:-1])
    posterior = infer_from_drifting_offset(
        chain, user_track, lambda t: shares[:, :, outputs[t]], is_repeated, prior, drift, drifts
    )
    initial, kept, resampled = build_part_chain(chain)

    def build_matrix_into(t):
        """Return the matrix into slot ``t``.

        The offset moves in the last slot of a gap, just before a release.
        """
        at = {slot - 3: k for k, slot in enumerate(user_track.slots.tolist())}
        moves_now = t in at and drifts[at[t]]
        stays = np.diag(np.diag(drift)) if moves_now else np.eye(2)
        stayed = np.kron(np.kron(kept, stays), np.eye(2))
        moved = np.kron(kept + resampled, drift if moves_now else np.eye(2)) - np.kron(kept, stays)
        return stayed + np.kron(moved, np.ones((2, 2))) * shares.ravel()

    atoms = np.kron(initial, prior).repeat(2) * shares.ravel()
    emission = [np.tile(np.eye(2)[output], 8) for output in outputs]
    filtered, smoothed = enumerate_paths(atoms, build_matrix_into, emission.__getitem__, user_track.slots.tolist())
    np.testing.assert_allclose(posterior.filtered, filtered.reshape(3, 4, 4).sum(axis=2), rtol=1e-8)
    np.testing.assert_allclose(posterior.smoothed, smoothed.reshape(3, 4, 4).sum(axis=2), rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", mark_rest_slow(range(6), 3))
def test_zone_posterior_matches_enumeration_of_zones_and_paths(seed):
    chain, rng = build_moves(2, 1, seed), np.random.default_rng(seed)
    hidden = np.array([[0, 1, 1, 0, 1], [1, 1, 0, 0, 1], [0, 0, 1, 1, 1], [1, 0, 1, 0, 0], [1] * 5, [0, 1, 0, 1, 0]])
    hidden = hidden[seed].astype(bool)
    user_track = make_track(chain, slots=range(5), begins=[1, 0, 0, seed == 3, 0], seed=seed)
    shares = np.round(rng.random((3, 4)) * (rng.random((3, 4)) < 0.7), 3)
    shares[:, 0] += 0.05
    alive = [rng.random(3) < 0.8 for _ in range(5)]
    alive = [np.append(mask[:2], True) for mask in alive]
    released = np.where(hidden[:, None], np.nan, user_track.points)
    posterior = infer_from_zones(chain, user_track, released, alive, Zones(shares), np.arange(6.0).reshape(3, 2))
    for last in range(5):
        wanted, weights = _enumerate_zones(chain, user_track, hidden, alive, shares, last)
        np.testing.assert_allclose(posterior.filtered[last], wanted[last], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(posterior.smoothed, wanted, rtol=1e-9, atol=1e-11)
    assert posterior.home.tolist() == (2 * np.argmax(weights) + np.array([0.0, 1.0])).tolist()


def _enumerate_zones(chain, user_track, hidden, alive, shares, last):
    """Enumerate all zones, cell paths and, for each step, whether the position was kept."""
    matrix, size = chain.transition_matrix(1), chain.grid.size
    beliefs, weights = np.zeros((len(hidden), size)), np.zeros(len(shares))
    for zone, share in enumerate(shares):
        for path in product(range(size), repeat=last + 1):
            for kept in product((False, True), repeat=last):
                weight = 1.0
                for t in range(last + 1):
                    before, now = path[t - 1], path[t]
                    is_kept = t > 0 and kept[t - 1] and not user_track.restarts[t]
                    if user_track.restarts[t]:
                        weight *= chain.initial[now] * (0.5 if t else 1.0)  # both flags describe the same event
                    elif is_kept:
                        weight *= (1 - chain.redraw_rate) * matrix[now, now] if before == now else 0.0
                    else:
                        weight *= matrix[before, now] - (before == now) * (1 - chain.redraw_rate) * matrix[now, now]
                    if hidden[t]:
                        weight *= float(hidden[t - 1]) if is_kept else share[now]
                    else:  # another position in the cell or the same one: the release reveals which, not the zone
                        weight *= float(now == user_track.states[t] and alive[t][zone])
                        weight *= float(not (is_kept and hidden[t - 1]))
                weights[zone] += weight
                for t in range(last + 1):
                    beliefs[t, path[t]] += weight
    return beliefs / weights.sum(), weights / weights.sum()


def test_impossible_releases_raise():
    chain = build_moves(2, 1)
    user_track = make_track(chain)
    with pytest.raises(StochasticError, match=r"release 1 is impossible in every possible state: .*do not match"):
        infer_from_rows(chain, user_track, lambda steps: np.where(np.arange(4)[steps, None] == 1, -np.inf, np.zeros(4)))
    far = user_track.points + 5.0
    with pytest.raises(StochasticError, match=r"release 0: .*possible"):
        infer_from_fixed_offset(chain, user_track, far, np.zeros((1, 2)), Mesh(chain.grid, 1).locate)
    none = [np.zeros(1, dtype=bool)] * 4
    with pytest.raises(StochasticError, match=r"release 0: .*possible"):
        infer_from_zones(chain, user_track, user_track.points, none, Zones(np.ones((1, 4))), np.zeros((1, 2)))
    drift = partial(infer_from_drifting_offset, chain, user_track, lambda t: np.zeros((4, 1)), np.zeros(4, dtype=bool))
    with pytest.raises(StochasticError, match=r"release 0 is impossible in every possible state: .*do not match"):
        drift(np.ones(1), np.ones((1, 1)), np.zeros(4, dtype=bool))


@pytest.mark.slow
def test_sampled_track_keeps_position_during_stays_and_resamples_at_moves():
    """The share of stays with a new position matches the model.

    10,000 steps, seed 0, α = 1e-6: the tolerance is 4.9 standard deviations.
    """
    chain = build_moves(3, 1)
    sampled = Track.sample("a", 10_000, 5, chain, np.random.default_rng(0))
    stays, kept = sampled.states[1:] == sampled.states[:-1], (sampled.points[1:] == sampled.points[:-1]).all(axis=1)
    assert (~kept[~stays]).all()
    count, share = stays.sum(), (~kept[stays]).mean()
    assert abs(share - chain.redraw_rate) <= 4.9 * np.sqrt(chain.redraw_rate * (1 - chain.redraw_rate) / count)
    assert np.abs(sampled.points - chain.grid.points[sampled.states]).max() <= chain.grid.cell_km / 2
    assert sampled.slots[0] == 5
