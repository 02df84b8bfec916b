"""The adversary's passes against enumeration of all paths and of what was drawn once, and the package's smoother."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest

from dphmm.attack.mesh import Mesh
from dphmm.attack.posterior import (
    Track,
    Zones,
    posterior_of_drift,
    posterior_of_paths,
    posterior_of_rows,
    posterior_of_zones,
)
from dphmm.errors import StochasticError
from dphmm.model import filter as filter_states
from dphmm.model import smooth as smooth_states
from tests.attack.scene import moves, track
from tests.sizes import few_every_day


def some_track(of, slots=(3, 4, 5, 7), begins=None, seed=0):
    rng = np.random.default_rng(seed)
    slots = np.array(slots)
    points = of.grid.points[rng.integers(of.grid.size, size=len(slots))] + 0.01
    return track(of, points, slots, None if begins is None else np.array(begins, dtype=bool))


def over_paths(initial, onward, emission, slots):
    """Joint weights of all paths through every slot, as an array; then filter and smoother at the observed slots.

    onward(slot) is the matrix into a slot, emission maps an observed slot to a row.
    """
    size, length = len(initial), slots[-1] - slots[0] + 1
    at = [slot - slots[0] for slot in slots]

    def marginals(last):
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

    whole = marginals(length - 1)
    smoothed = [whole.sum(axis=tuple(k for k in range(length) if k != t)) for t in at]
    filtered = [marginals(t).sum(axis=tuple(range(t))) for t in at]
    return np.array(filtered), np.array(smoothed)


def by_part(of):
    """The chain over parts, and the part of it that keeps the place, as full matrices."""
    parts = of.parts**2
    matrix, size = of.matrix(1), of.grid.size * parts
    kept = np.diag(np.repeat((1 - of.redrawn) * np.diag(matrix), parts))
    cell = np.arange(size) // parts
    drawn = (matrix[np.ix_(cell, cell)] - kept[np.ix_(cell * parts, cell * parts)] * (cell[:, None] == cell)) / parts
    return np.repeat(of.initial / parts, parts), kept, drawn


@pytest.mark.parametrize("seed", range(5))
def test_whole_cells_are_the_packages_filter_and_smoother(seed):
    of = moves(3, 1, seed)
    person = some_track(of, slots=range(10, 18), seed=seed)
    rows = np.random.default_rng(seed).normal(0, 3, (8, 9))
    rows[2, 4] = -np.inf
    found = posterior_of_rows(of, person, lambda some: rows[some])
    model = of.model.transition, of.model.initial
    np.testing.assert_allclose(found.filtered, filter_states(*model, rows), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.hindsight, smooth_states(*model, rows), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.at_once, filter_states(*model, rows) @ of.grid.points, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_places_within_cells_are_those_of_all_paths(seed):
    of = moves(2, 2, seed)
    person = some_track(of, slots=(3, 4, 6), seed=seed)
    rows = np.random.default_rng(seed).normal(0, 2, (3, 16))
    found = posterior_of_rows(of, person, lambda some: rows[some])
    initial, kept, drawn = by_part(of)
    filtered, smoothed = over_paths(initial, lambda t: kept + drawn, lambda k: np.exp(rows[k]), person.slots.tolist())
    np.testing.assert_allclose(found.filtered, filtered.reshape(3, 4, 4).sum(axis=2), rtol=1e-9)
    np.testing.assert_allclose(found.hindsight, smoothed.reshape(3, 4, 4).sum(axis=2), rtol=1e-9)
    np.testing.assert_allclose(found.at_once, filtered @ of.mesh.points, atol=1e-9)
    np.testing.assert_allclose(found.estimates, smoothed @ of.mesh.points, atol=1e-9)


@pytest.mark.parametrize(("seed", "outputs"), [(0, (0, 0, 1)), (1, (1, 1, 1)), (2, (0, 1, 0)), (3, (1, 0, 0))])
def test_a_release_without_randomness_is_no_new_evidence_for_a_place_that_was_kept(seed, outputs):
    """The chain over parts and what is released of the place in it, through all its paths."""
    of = moves(2, 1, seed)
    person = some_track(of, slots=(3, 4, 6), seed=seed)
    share = np.random.default_rng(seed).random(4)
    shares = np.column_stack([share, 1 - share])
    rows = np.log(shares[:, list(outputs)].T)
    held = np.array([False, outputs[1] == outputs[0], outputs[2] == outputs[1]])
    found = posterior_of_rows(of, person, lambda some: rows[some], held)
    initial, kept, drawn = by_part(of)
    atoms = np.repeat(initial, 2) * shares.ravel()
    onward = np.kron(kept, np.eye(2)) + np.kron(drawn, np.ones((2, 2))) * shares.ravel()
    emission = [np.tile(np.eye(2)[output], 4) for output in outputs]
    filtered, smoothed = over_paths(atoms, lambda t: onward, emission.__getitem__, person.slots.tolist())
    np.testing.assert_allclose(found.filtered, filtered.reshape(3, 4, 2).sum(axis=2), rtol=1e-9)
    np.testing.assert_allclose(found.hindsight, smoothed.reshape(3, 4, 2).sum(axis=2), rtol=1e-9)


def test_a_new_beginning_knows_nothing_of_what_was_before():
    of = moves(2, 2, 1)
    rows = np.random.default_rng(1).normal(0, 2, (4, 16))
    whole = posterior_of_rows(of, some_track(of, begins=[1, 0, 1, 0]), lambda some: rows[some])
    first = posterior_of_rows(of, some_track(of, slots=(3, 4)), lambda some: rows[:2][some])
    second = posterior_of_rows(of, some_track(of, slots=(5, 7)), lambda some: rows[2:][some])
    np.testing.assert_allclose(whole.hindsight, np.concatenate([first.hindsight, second.hindsight]), atol=1e-12)


def test_parts_of_a_pass_that_are_worked_out_again_change_nothing(monkeypatch):
    of, rows = moves(2, 2, 2), np.random.default_rng(2).normal(0, 2, (9, 16))
    person = some_track(of, slots=range(9))
    whole = posterior_of_rows(of, person, lambda some: rows[some])
    monkeypatch.setattr("dphmm.attack.posterior._KEPT", 40)
    cut = posterior_of_rows(of, person, lambda some: rows[some])
    np.testing.assert_allclose(whole.hindsight, cut.hindsight, rtol=1e-12)
    np.testing.assert_allclose(whole.places, cut.places, rtol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_one_offset_is_that_of_all_offsets_and_their_paths(seed):
    of, rng = moves(2, 1, seed), np.random.default_rng(seed)
    mesh, side = Mesh(of.grid, 1), of.grid.cell_km
    offsets = side * rng.uniform(-1.2, 1.2, (7, 2))
    person = some_track(of, slots=(3, 4, 6, 7, 8), begins=[1, 0, 0, 1, 0], seed=seed)
    released = person.points + offsets[2]
    found = posterior_of_paths(of, person, released, offsets, mesh.at)
    for last, got in ((t, found.filtered[t]) for t in range(5)):
        np.testing.assert_allclose(got, _by_offset(of, person, released, offsets, last)[last], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.hindsight, _by_offset(of, person, released, offsets, 4), rtol=1e-9, atol=1e-12)


def _by_offset(of, person, released, offsets, last):
    """The posterior of each time given releases up to one, from the weight of every offset's path."""
    weights, paths = [], []
    for offset in offsets:
        path = [int(of.grid.state_at(np.rint((p - offset - of.grid.origin) / of.grid.cell_km).astype(int))[0])
                for p in released]  # fmt: skip
        weight = 1.0
        for t in range(last + 1):
            if path[t] < 0:
                weight = 0.0
            elif person.begins[t]:
                weight *= of.initial[path[t]]
            else:
                matrix = np.linalg.matrix_power(of.matrix(1), int(person.slots[t] - person.slots[t - 1]))
                weight *= matrix[path[t - 1], path[t]]
        weights.append(weight)
        paths.append(path)
    found = np.zeros((len(released), of.grid.size))
    for weight, path in zip(weights, paths, strict=True):
        for t in range(last + 1):
            if weight > 0:
                found[t, path[t]] += weight / sum(weights)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_moving_offset_is_that_of_all_paths_and_offsets(seed):
    of, rng = moves(2, 1, seed), np.random.default_rng(seed)
    person = some_track(of, slots=(3, 4, 6), seed=seed)
    prior, drift = rng.dirichlet([1, 1]), 0.7 * np.eye(2) + 0.3 * rng.dirichlet([1, 1], 2)
    share = rng.random((4, 2))
    shares = np.stack([share, 1 - share], axis=-1)  # cell, offset, output
    outputs, drifts = rng.integers(0, 2, 3), np.array([False, seed % 2 == 0, True])
    held = np.append(False, outputs[1:] == outputs[:-1])
    found = posterior_of_drift(of, person, lambda t: shares[:, :, outputs[t]], held, prior, drift, drifts)
    initial, kept, drawn = by_part(of)

    def onward(t):
        """Into slot t; the offset moves in the last slot of a gap, as just before a release."""
        at = {slot - 3: k for k, slot in enumerate(person.slots.tolist())}
        moves_now = t in at and drifts[at[t]]
        stays = np.diag(np.diag(drift)) if moves_now else np.eye(2)
        stayed = np.kron(np.kron(kept, stays), np.eye(2))
        moved = np.kron(kept + drawn, drift if moves_now else np.eye(2)) - np.kron(kept, stays)
        return stayed + np.kron(moved, np.ones((2, 2))) * shares.ravel()

    atoms = np.kron(initial, prior).repeat(2) * shares.ravel()
    emission = [np.tile(np.eye(2)[output], 8) for output in outputs]
    filtered, smoothed = over_paths(atoms, onward, emission.__getitem__, person.slots.tolist())
    np.testing.assert_allclose(found.filtered, filtered.reshape(3, 4, 4).sum(axis=2), rtol=1e-8)
    np.testing.assert_allclose(found.hindsight, smoothed.reshape(3, 4, 4).sum(axis=2), rtol=1e-8)


@pytest.mark.parametrize("seed", few_every_day(range(6), 3))
def test_a_zone_is_that_of_all_zones_and_their_paths(seed):
    of, rng = moves(2, 1, seed), np.random.default_rng(seed)
    hidden = np.array([[0, 1, 1, 0, 1], [1, 1, 0, 0, 1], [0, 0, 1, 1, 1], [1, 0, 1, 0, 0], [1] * 5, [0, 1, 0, 1, 0]])
    hidden = hidden[seed].astype(bool)
    person = some_track(of, slots=range(5), begins=[1, 0, 0, seed == 3, 0], seed=seed)
    shares = np.round(rng.random((3, 4)) * (rng.random((3, 4)) < 0.7), 3)
    shares[:, 0] += 0.05
    alive = [rng.random(3) < 0.8 for _ in range(5)]
    alive = [np.append(one[:2], True) for one in alive]
    released = np.where(hidden[:, None], np.nan, person.points)
    found = posterior_of_zones(of, person, released, alive, Zones(shares), np.arange(6.0).reshape(3, 2))
    for last in range(5):
        wanted, weights = _by_zone(of, person, hidden, alive, shares, last)
        np.testing.assert_allclose(found.filtered[last], wanted[last], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.hindsight, wanted, rtol=1e-9, atol=1e-11)
    assert found.home.tolist() == (2 * np.argmax(weights) + np.array([0.0, 1.0])).tolist()


def _by_zone(of, person, hidden, alive, shares, last):
    """Every zone, every path of cells, and of every step whether the place was kept."""
    matrix, size = of.matrix(1), of.grid.size
    found, weights = np.zeros((len(hidden), size)), np.zeros(len(shares))
    for zone, share in enumerate(shares):
        for path in product(range(size), repeat=last + 1):
            for kept in product((False, True), repeat=last):
                weight = 1.0
                for t in range(last + 1):
                    before, now = path[t - 1], path[t]
                    is_kept = t > 0 and kept[t - 1] and not person.begins[t]
                    if person.begins[t]:
                        weight *= of.initial[now] * (0.5 if t else 1.0)  # both flags stand for the same
                    elif is_kept:
                        weight *= (1 - of.redrawn) * matrix[now, now] if before == now else 0.0
                    else:
                        weight *= matrix[before, now] - (before == now) * (1 - of.redrawn) * matrix[now, now]
                    if hidden[t]:
                        weight *= float(hidden[t - 1]) if is_kept else share[now]
                    else:  # another place of the cell, or the same: that is told by the release, not by the zone
                        weight *= float(now == person.states[t] and alive[t][zone])
                        weight *= float(not (is_kept and hidden[t - 1]))
                weights[zone] += weight
                for t in range(last + 1):
                    found[t, path[t]] += weight
    return found / weights.sum(), weights / weights.sum()


def test_releases_that_nobody_could_have_given_are_refused():
    of = moves(2, 1)
    person = some_track(of)
    with pytest.raises(StochasticError, match="release 1: no possible state"):
        posterior_of_rows(of, person, lambda some: np.where(np.arange(4)[some, None] == 1, -np.inf, np.zeros(4)))
    far = person.points + 5.0
    with pytest.raises(StochasticError, match="release 0: no possible state"):
        posterior_of_paths(of, person, far, np.zeros((1, 2)), Mesh(of.grid, 1).at)
    none = [np.zeros(1, dtype=bool)] * 4
    with pytest.raises(StochasticError, match="release 0: no possible state"):
        posterior_of_zones(of, person, person.points, none, Zones(np.ones((1, 4))), np.zeros((1, 2)))
    drift = partial(posterior_of_drift, of, person, lambda t: np.zeros((4, 1)), np.zeros(4, dtype=bool))
    with pytest.raises(StochasticError, match="release 0: no possible state"):
        drift(np.ones(1), np.ones((1, 1)), np.zeros(4, dtype=bool))


def test_somebody_drawn_keeps_their_place_while_they_stay_and_has_one_drawn_anew_at_moves():
    """10,000 steps, seed 0, α = 1e-6: the share of stays with another place is within 4.9 deviations of the model's."""
    of = moves(3, 1)
    drawn = Track.drawn("a", 10_000, 5, of, np.random.default_rng(0))
    stays, kept = drawn.states[1:] == drawn.states[:-1], (drawn.points[1:] == drawn.points[:-1]).all(axis=1)
    assert (~kept[~stays]).all()
    count, share = stays.sum(), (~kept[stays]).mean()
    assert abs(share - of.redrawn) <= 4.9 * np.sqrt(of.redrawn * (1 - of.redrawn) / count)
    assert np.abs(drawn.points - of.grid.points[drawn.states]).max() <= of.grid.cell_km / 2
    assert drawn.slots[0] == 5
