"""Counts shrunk towards a region's kernel: against its formula in rationals, known truth, and people held out."""

from __future__ import annotations

import os
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm import Grid
from dphmm.errors import InvalidInputError, StateError
from dphmm.model import RegionKernel, SpeedLimit, fit_shrunk, state_sequences
from dphmm.model.fitting import EVEN, WEIGHTS
from dphmm.space import LocalProjection
from tests.sizes import fewer

GRID = Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, 4, 3)
people = st.lists(st.lists(st.integers(-1, GRID.size - 1), max_size=15), min_size=1, max_size=4)


def _kernel(sequences, reach):
    """The module's formula, move by move, in rationals."""
    even, size = Fraction(EVEN).limit_denominator(100), GRID.size
    possible = reach.moves.toarray()
    ring = np.full((size, size), -1)
    ring[possible] = reach.rings
    moved = [(i, j) for one in sequences for i, j in pairwise(one) if min(i, j) >= 0 and possible[i, j]]
    shares = [Fraction(1, 2) + sum(1 for i, j in moved if ring[i, j] == r) for r in range(reach.ring_count)]
    arrivals = [sum(1 for i, j in moved if j == s and i != j) for s in range(size)]
    total = sum(arrivals)
    pull = [even / size + (1 - even) * Fraction(n, total) if total else Fraction(1, size) for n in arrivals]
    rows = []
    for i in range(size):
        around = [sum(pull[j] for j in range(size) if ring[i, j] == r) for r in range(reach.ring_count)]
        some = sum(share for share, a in zip(shares, around, strict=True) if a)
        rows.append([shares[r] / some * pull[j] / around[r] if r >= 0 else 0 for j, r in enumerate(ring[i].tolist())])
    return rows, moved


@settings(max_examples=fewer(30, 15))
@given(people, st.sampled_from([20.0, 60.0, 600.0]), st.sampled_from([0.5, 4.0]))
def test_probabilities_are_counts_shrunk_towards_the_kernel(drawn, speed, weight):
    if not any(state >= 0 for sequence in drawn for state in sequence):
        with pytest.raises(InvalidInputError, match="no sequence visits"):
            fit_shrunk(drawn, GRID, 60, speed)
        return
    found = fit_shrunk(drawn, GRID, 60, speed, weight)
    kernel, moved = _kernel(drawn, found.kernel.reach)
    w = Fraction(weight)
    expected = []
    for i in range(GRID.size):
        left = sum(1 for a, _ in moved if a == i)
        expected.append([(moved.count((i, j)) + w * kernel[i][j]) / (left + w) for j in range(GRID.size)])
        assert sum(expected[-1]) == 1
    np.testing.assert_allclose(found.model.transition.toarray(), np.array(expected, dtype=float), rtol=1e-12)
    assert (found.model.transition.toarray() > 0).tolist() == found.kernel.reach.moves.toarray().tolist()
    assert (found.model.initial > 0).all()
    everyone = sum(1 for one in drawn for i, j in pairwise(one) if min(i, j) >= 0)
    assert (found.moves, found.moves + found.too_fast) == (len(moved), everyone)


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=20), min_size=2, max_size=4))
def test_the_weight_is_the_one_under_which_the_others_predict_each_person_best(drawn):
    found = fit_shrunk(drawn, GRID, 60, 60)
    kernel, _ = _kernel(drawn, found.kernel.reach)
    possible = found.kernel.reach.moves.toarray()
    scores = []
    for weight in WEIGHTS:
        score = 0.0
        for out, one in enumerate(drawn):
            others = [(i, j) for n, o in enumerate(drawn) if n != out for i, j in pairwise(o) if possible[i, j]]
            for i, j in pairwise(one):
                if possible[i, j]:
                    left = sum(1 for a, _ in others if a == i)
                    score += np.log((others.count((i, j)) + weight * float(kernel[i][j])) / (left + weight))
        scores.append(score)
    assert scores[WEIGHTS.index(found.weight)] == pytest.approx(max(scores), rel=1e-9)


def _walks(transition, count, length, rng):
    cumulative = transition.toarray().cumsum(axis=1)
    states = rng.integers(0, len(cumulative), count)
    walks = [states]
    for _ in range(length - 1):
        states = (cumulative[states] < rng.random(count)[:, None]).sum(axis=1)
        walks.append(states)
    return np.stack(walks, axis=1)


def test_a_known_kernel_is_found_again():
    """Seed 1; 300 people of 100 moves: shares within five standard deviations, attraction correlated above 0.75."""
    rng = np.random.default_rng(1)
    grid = Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, 12, 10)
    reach = SpeedLimit(grid, 60, 120)
    pull = rng.gamma(0.5, size=grid.size) + 0.05
    shares = np.array([0.5, *np.linspace(1, 0.2, reach.ring_count - 1)])
    truth = RegionKernel(reach, shares, pull)
    walks = _walks(reach.with_data(truth.data()), 300, 101, rng)
    found = fit_shrunk(list(walks), grid, 60, 120)
    counted = np.bincount(reach.rings[reach.find(walks[:, :-1].ravel(), walks[:, 1:].ravel())])
    spread = np.sqrt(counted) / counted.sum()
    assert (np.abs(found.kernel.shares - truth.shares) <= 5 * spread + 0.03).all()
    assert np.corrcoef(found.kernel.attraction, pull)[0, 1] > 0.75
    fresh = _walks(reach.with_data(truth.data()), 200, 51, rng)
    pairs = fresh[:, :-1].ravel(), fresh[:, 1:].ravel()
    even = RegionKernel(reach, found.kernel.shares, np.ones(grid.size))
    score = {
        name: np.log(matrix.toarray()[pairs]).mean()
        for name, matrix in (
            ("truth", reach.with_data(truth.data())),
            ("found", found.model.transition),
            ("without attraction", reach.with_data(even.data())),
        )
    }
    assert score["truth"] - 0.05 < score["found"] <= score["truth"] + 0.005
    assert score["without attraction"] < score["found"] - 0.05  # the broken twin


@settings(max_examples=fewer(30, 15))
@given(people, st.integers(1, 3))
def test_moves_and_visits_of_fewer_people_are_left_out(drawn, least):
    everyone = [state for one in drawn for state in one if state >= 0]
    if not everyone:
        return
    reach = SpeedLimit(GRID, 60, 60)
    made = [[(i, j) for i, j in pairwise(one) if min(i, j) >= 0] for one in drawn]
    possible = reach.moves.toarray()
    kept = [
        (i, j) for one in made for i, j in one if possible[i, j] and sum((i, j) in other for other in made) >= least
    ]
    found = fit_shrunk(drawn, GRID, 60, 60, 1.0, least)
    assert found.moves == len(kept)
    assert found.rare == sum(possible[i, j] for one in made for i, j in one) - len(kept)
    visits = [state for state in everyone if sum(state in one for one in drawn) >= least]
    shares = np.bincount(visits, minlength=GRID.size) / max(len(visits), 1)
    expected = EVEN / GRID.size + (1 - EVEN) * shares if visits else np.full(GRID.size, 1 / GRID.size)
    np.testing.assert_allclose(found.model.initial, expected, rtol=1e-9)


def test_one_person_alone_is_shrunk_by_the_usual_weight_and_nonsense_is_refused():
    assert fit_shrunk([[0, 1, 1]], GRID, 60).weight == 30
    with pytest.raises(InvalidInputError, match="weight"):
        fit_shrunk([[0, 1]], GRID, 60, weight=0.0)
    assert [fit_shrunk([[0, 1]], GRID, 60, weight=weight).weight for weight in (1e-30, 1e30)] == [1e-30, 1e30]
    with pytest.raises(StateError):
        fit_shrunk([[0, 99]], GRID, 60)
    reach = SpeedLimit(GRID, 60)
    with pytest.raises(InvalidInputError, match="shares"):
        RegionKernel(reach, [1.0], np.ones(GRID.size))
    with pytest.raises(InvalidInputError, match="attraction"):
        RegionKernel(reach, np.ones(reach.ring_count), np.zeros(GRID.size))
    for stay in (0.0, 1.0, np.nan):
        with pytest.raises(InvalidInputError, match="between 0 and 1"):
            RegionKernel(reach, np.ones(reach.ring_count), np.ones(GRID.size), np.full(GRID.size, stay))


def test_the_weights_that_are_tried_lie_closely_between_one_move_and_a_thousand():
    assert (WEIGHTS[0], WEIGHTS[-1]) == (1.0, 1000.0)
    assert all(1 < after / before < 4 for before, after in pairwise(WEIGHTS))


DATA = Path(os.environ.get("DPHMM_REAL_DATA", "absent")) / "geolife" / "geolife_beijing.tar.gz"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="DPHMM_REAL_DATA holds no GeoLife")
def test_people_held_out_are_where_a_model_of_the_others_says_that_one_can_be():
    from dphmm.readers import read

    everyone = read(DATA, skip_bad=True).trajectories
    grid = Grid.preset("geolife")
    learned, held = state_sequences(everyone[:50], grid, 300), state_sequences(everyone[50:], grid, 300)
    found = fit_shrunk(learned, grid, 300)
    slots, states = (np.concatenate(part) for part in zip(*held, strict=True))
    moved = (np.diff(slots) == 1) & (states[1:] >= 0) & (states[:-1] >= 0)
    missed = found.kernel.reach.find(states[:-1][moved], states[1:][moved]) < 0
    assert moved.sum() > 1000
    assert missed.mean() < 0.005
    assert (found.model.initial > 0).all()
