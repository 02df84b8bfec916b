"""Guesses under many beliefs at once: each is the one that is made of its belief alone."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.markov import guess, guesses
from dphmm.markov.guess import best_guess


def plain(rows, points):
    """The oracle: one belief after another."""
    means = rows @ points
    squares = [row @ ((points - mean) ** 2).sum(axis=1) for row, mean in zip(rows, means, strict=True)]
    return np.sqrt(squares), [best_guess(row, points).least_error for row in rows]


@pytest.mark.parametrize("seed", range(12))
def test_each_belief_gives_the_guess_that_it_gives_alone(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    points = 10 * rng.normal(size=(int(rng.choice([1, 2, 3, 40])), 2))
    if seed % 4 == 1:
        points = np.rint(points / 5)  # many points in one place
    if seed % 4 == 2:
        points = points[:1] * np.linspace(0, 1, len(points))[:, np.newaxis]  # all in one line
    rows = rng.dirichlet(np.full(len(points), rng.choice([0.05, 0.3, 5.0])), 8)
    rows[:2] = np.eye(len(points))[rng.integers(len(points), size=2)]  # who knows the state
    wanted = plain(rows, points)
    in_loops = np.empty((2, len(rows)))
    guesses._errors_in_a_plane(rows, *points.T, in_loops)
    for found in (in_loops, guesses.expected_errors(rows, points)):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(guesses, "_COMPILE_FROM", 0)
    np.testing.assert_allclose(guesses.expected_errors(rows, points), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dimension", [1, 3])
def test_places_in_no_plane_are_gone_through_one_by_one(dimension, monkeypatch):
    monkeypatch.setattr(guesses, "_COMPILE_FROM", 0)
    rng = np.random.default_rng(dimension)
    rows, points = rng.dirichlet(np.ones(6), 4), rng.normal(size=(6, dimension))
    np.testing.assert_allclose(guesses.expected_errors(rows, points), plain(rows, points), rtol=1e-12)


@pytest.mark.parametrize("name", ["ACCURACY", "_FEW", "_TURNS", "_QUICK", "_TOUCHING", "_FLAT", "_FURTHER"])
def test_both_searches_go_by_the_same_numbers(name):
    assert getattr(guesses, name) == getattr(guess, name)
