"""Counts shrunk to a region's kernel, against exact formulas, known truth and other users."""

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
from dphmm.model.learning import CANDIDATE_WEIGHTS, UNIFORM_SHARE
from dphmm.space import LocalProjection
from tests.sizes import choose_count

GRID = Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, 4, 3)
user_path_lists = st.lists(st.lists(st.integers(-1, GRID.size - 1), max_size=15), min_size=1, max_size=4)


def _compute_kernel(sequences, reach):
    """Compute the module's formula for every move, in rationals."""
    even, size = Fraction(UNIFORM_SHARE).limit_denominator(100), GRID.size
    possible = reach.moves.toarray()
    ring = np.full((size, size), -1)
    ring[possible] = reach.rings
    moved = [(i, j) for sequence in sequences for i, j in pairwise(sequence) if min(i, j) >= 0 and possible[i, j]]
    shares = [Fraction(1, 2) + sum(1 for i, j in moved if ring[i, j] == r) for r in range(reach.ring_count)]
    arrivals = [sum(1 for i, j in moved if j == s and i != j) for s in range(size)]
    total = sum(arrivals)
    pull = [even / size + (1 - even) * Fraction(n, total) if total else Fraction(1, size) for n in arrivals]
    rows = []
    for i in range(size):
        around = [sum(pull[j] for j in range(size) if ring[i, j] == r) for r in range(reach.ring_count)]
        positive_shares = sum(share for share, a in zip(shares, around, strict=True) if a)
        rows.append(
            [shares[r] / positive_shares * pull[j] / around[r] if r >= 0 else 0 for j, r in enumerate(ring[i].tolist())]
        )
    return rows, moved


@settings(max_examples=choose_count(30, 15))
@given(user_path_lists, st.sampled_from([20.0, 60.0, 600.0]), st.sampled_from([0.5, 4.0]))
def test_probabilities_are_counts_shrunk_to_kernel(drawn, speed, weight):
    if not any(state >= 0 for sequence in drawn for state in sequence):
        with pytest.raises(InvalidInputError, match="no sequence visits"):
            fit_shrunk(drawn, GRID, 60, speed)
        return
    fit = fit_shrunk(drawn, GRID, 60, speed, weight)
    kernel, moved = _compute_kernel(drawn, fit.kernel.reach)
    w = Fraction(weight)
    expected = []
    for i in range(GRID.size):
        left = sum(1 for a, _ in moved if a == i)
        expected.append([(moved.count((i, j)) + w * kernel[i][j]) / (left + w) for j in range(GRID.size)])
        assert sum(expected[-1]) == 1
    np.testing.assert_allclose(fit.model.transition.toarray(), np.array(expected, dtype=float), rtol=1e-12)
    assert (fit.model.transition.toarray() > 0).tolist() == fit.kernel.reach.moves.toarray().tolist()
    assert (fit.model.initial > 0).all()
    num_moves = sum(1 for sequence in drawn for i, j in pairwise(sequence) if min(i, j) >= 0)
    assert (fit.moves, fit.moves + fit.too_fast) == (len(moved), num_moves)


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=20), min_size=2, max_size=4))
def test_weight_maximizes_leave_one_out_likelihood(drawn):
    fit = fit_shrunk(drawn, GRID, 60, 60)
    kernel, _ = _compute_kernel(drawn, fit.kernel.reach)
    possible = fit.kernel.reach.moves.toarray()
    scores = []
    for weight in CANDIDATE_WEIGHTS:
        score = 0.0
        for out, sequence in enumerate(drawn):
            others = [(i, j) for n, o in enumerate(drawn) if n != out for i, j in pairwise(o) if possible[i, j]]
            for i, j in pairwise(sequence):
                if possible[i, j]:
                    left = sum(1 for a, _ in others if a == i)
                    score += np.log((others.count((i, j)) + weight * float(kernel[i][j])) / (left + weight))
        scores.append(score)
    assert scores[CANDIDATE_WEIGHTS.index(fit.weight)] == pytest.approx(max(scores), rel=1e-9)


def _sample_walks(transition, count, length, rng):
    cumulative = transition.toarray().cumsum(axis=1)
    states = rng.integers(0, len(cumulative), count)
    walks = [states]
    for _ in range(length - 1):
        states = (cumulative[states] < rng.random(count)[:, None]).sum(axis=1)
        walks.append(states)
    return np.stack(walks, axis=1)


def test_known_kernel_is_recovered():
    """300 users with 100 moves each, seed 1.

    Shares are within five standard deviations, and attractions have a correlation above 0.75.
    """
    rng = np.random.default_rng(1)
    grid = Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, 12, 10)
    reach = SpeedLimit(grid, 60, 120)
    pull = rng.gamma(0.5, size=grid.size) + 0.05
    shares = np.array([0.5, *np.linspace(1, 0.2, reach.ring_count - 1)])
    truth = RegionKernel(reach, shares, pull)
    walks = _sample_walks(reach.with_data(truth.data()), 300, 101, rng)
    fit = fit_shrunk(list(walks), grid, 60, 120)
    counted = np.bincount(reach.rings[reach.find(walks[:, :-1].ravel(), walks[:, 1:].ravel())])
    spread = np.sqrt(counted) / counted.sum()
    assert (np.abs(fit.kernel.shares - truth.shares) <= 5 * spread + 0.03).all()
    assert np.corrcoef(fit.kernel.attraction, pull)[0, 1] > 0.75
    fresh = _sample_walks(reach.with_data(truth.data()), 200, 51, rng)
    pairs = fresh[:, :-1].ravel(), fresh[:, 1:].ravel()
    even = RegionKernel(reach, fit.kernel.shares, np.ones(grid.size))
    score = {
        name: np.log(matrix.toarray()[pairs]).mean()
        for name, matrix in (
            ("truth", reach.with_data(truth.data())),
            ("found", fit.model.transition),
            ("without attraction", reach.with_data(even.data())),
        )
    }
    assert score["truth"] - 0.05 < score["found"] <= score["truth"] + 0.005
    assert score["without attraction"] < score["found"] - 0.05  # attraction matters


@settings(max_examples=choose_count(30, 15))
@given(user_path_lists, st.integers(1, 3))
def test_moves_and_visits_of_too_few_users_are_excluded(drawn, minimum):
    visited_states = [state for sequence in drawn for state in sequence if state >= 0]
    if not visited_states:
        return
    reach = SpeedLimit(GRID, 60, 60)
    moves_by_user = [[(i, j) for i, j in pairwise(sequence) if min(i, j) >= 0] for sequence in drawn]
    possible = reach.moves.toarray()
    kept = [
        (i, j)
        for moves in moves_by_user
        for i, j in moves
        if possible[i, j] and sum((i, j) in other for other in moves_by_user) >= minimum
    ]
    fit = fit_shrunk(drawn, GRID, 60, 60, 1.0, minimum)
    assert fit.moves == len(kept)
    assert fit.rare == sum(possible[i, j] for moves in moves_by_user for i, j in moves) - len(kept)
    visits = [state for state in visited_states if sum(state in sequence for sequence in drawn) >= minimum]
    shares = np.bincount(visits, minlength=GRID.size) / max(len(visits), 1)
    expected = UNIFORM_SHARE / GRID.size + (1 - UNIFORM_SHARE) * shares if visits else np.full(GRID.size, 1 / GRID.size)
    np.testing.assert_allclose(fit.model.initial, expected, rtol=1e-9)


def test_single_user_gets_default_weight_and_invalid_arguments_raise():
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
        with pytest.raises(InvalidInputError, match=r"stay|between 0 and 1"):
            RegionKernel(reach, np.ones(reach.ring_count), np.ones(GRID.size), np.full(GRID.size, stay))


def test_candidate_weights_cover_1_to_1000_in_small_steps():
    assert (CANDIDATE_WEIGHTS[0], CANDIDATE_WEIGHTS[-1]) == (1.0, 1000.0)
    assert all(1 < after / before < 4 for before, after in pairwise(CANDIDATE_WEIGHTS))


DATA = Path(os.environ.get("DPHMM_REAL_DATA", "absent")) / "geolife" / "geolife_beijing.tar.gz"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="DPHMM_REAL_DATA holds no GeoLife")
def test_held_out_users_stay_within_possible_transitions():
    from dphmm.readers import read

    everyone = read(DATA, skip_bad=True).trajectories
    grid = Grid.preset("geolife")
    learned, held = state_sequences(everyone[:50], grid, 300), state_sequences(everyone[50:], grid, 300)
    fit = fit_shrunk(learned, grid, 300)
    slots, states = (np.concatenate(part) for part in zip(*held, strict=True))
    moved = (np.diff(slots) == 1) & (states[1:] >= 0) & (states[:-1] >= 0)
    missed = fit.kernel.reach.find(states[:-1][moved], states[1:][moved]) < 0
    assert moved.sum() > 1000
    assert missed.mean() < 0.005
    assert (fit.model.initial > 0).all()
