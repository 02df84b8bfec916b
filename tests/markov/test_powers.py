"""Powers of a matrix are what as many single steps make of it, to rounding, and are made once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm.markov import powers as powers_module
from dphmm.markov.powers import Powers


def _stochastic(size):
    matrix = np.random.default_rng(size).random((size, size)) ** 6
    return matrix / matrix.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("size", [1, 5, 255, 256, 259])
@pytest.mark.parametrize("kept", [(8, 32), (2, 4, 8, 16, 32)])
def test_each_entry_is_that_of_single_steps(size, kept):
    matrix = _stochastic(size)
    powers = Powers(csr_array(matrix.T), kept)
    for steps in (8, 32):
        np.testing.assert_allclose(powers.of(steps), np.linalg.matrix_power(matrix, steps), rtol=1e-12)
    assert set(powers.made) == set(kept), "those on the way are kept where they are worth it, and no others"
    assert powers.of(32) is powers.of(32)
    assert not powers.of(8).flags.writeable


def test_parts_are_those_of_the_whole(monkeypatch):
    matrix = csr_array(_stochastic(300).T)
    parts = Powers(matrix, (32,)).of(32)
    monkeypatch.setattr(powers_module, "_SLICED_FROM", 301)
    np.testing.assert_allclose(parts, Powers(matrix, (32,)).of(32), rtol=1e-13)
    monkeypatch.setattr(powers_module, "_SLICED_FROM", 300)
    assert np.array_equal(Powers(matrix, (32,)).of(32), parts), "the same bits each time"
