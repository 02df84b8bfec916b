"""Many short sums at once are those of the matrix, to the last bit, and gaps that go through them those that do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from dphmm import MarkovModel
from dphmm.compilation import compiled
from dphmm.markov import flow, kernels
from dphmm.markov.flow import Flow
from dphmm.markov.jagged import Jagged
from dphmm.markov.masses import masses_of_logs
from tests.sizes import fewer

LOOPS = [kernels.jagged_steps, compiled(kernels.jagged_steps) or kernels.jagged_steps]


def matrix_of(seed: int) -> csr_array:
    """Empty rows, rows that stay as they are, and some of one term that do not."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 60))
    lists = random_array((size, size), density=rng.uniform(0, 0.3), rng=rng, format="lil")
    for i in np.flatnonzero(rng.random(size) < 0.5):
        lists[i] = 0.0
        if i % 3:
            lists[i, i if i % 3 == 1 else rng.integers(size)] = rng.choice([1.0, 0.5])
    matrix = csr_array(lists)
    matrix.eliminate_zeros()
    return matrix


@pytest.mark.parametrize("loop", LOOPS, ids=["plain", "compiled"])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_steps_are_products_with_the_matrix_to_the_last_bit(loop, steps):
    for seed in range(fewer(40, 12)):
        matrix = matrix_of(seed)
        values = np.random.default_rng(seed).random(matrix.shape[0])
        expected = values
        for _ in range(steps):
            expected = matrix @ expected
        assert (Jagged(matrix).after(loop, values, steps) == expected).all(), seed


@pytest.mark.parametrize("steps", [8, 47, 1000, 10**5])
def test_gaps_are_the_same_to_the_last_bit_with_and_without_compiled_loops(steps, monkeypatch):
    monkeypatch.setattr(flow, "POWERS_UP_TO", 0)
    monkeypatch.setattr(flow, "_DENSE", (0, 0.25))
    rng = np.random.default_rng(steps)
    weights = random_array((80, 80), density=0.02, rng=rng).toarray()
    weights += weights.T + np.eye(80)  # moves both ways, as counted ones are; some states are never left
    model = MarkovModel(weights / weights.sum(axis=1, keepdims=True), np.full(80, 1 / 80))
    masses, found, asked = masses_of_logs(-200 * rng.random(80)), [], []
    real = Jagged.after
    monkeypatch.setattr(Jagged, "after", lambda *given: (asked.append(1), real(*given))[1])
    for start in (0, 10**18):
        monkeypatch.setattr(flow, "_COMPILE_FROM", start)
        one = Flow(csr_array(model.transition.T))
        ahead = one.carry(one.carry(masses, 5), steps)
        found.append((ahead.mantissa.tolist(), ahead.exponent.tolist()))
        assert asked or compiled(kernels.jagged_steps) is None
    assert found[0] == found[1]
