"""Releases of measurements in three and more dimensions."""

from __future__ import annotations

from time import process_time

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.errors import InvalidInputError


def make_releaser(f: np.ndarray, mechanism: str, policy: PolicyGraph | None = None, **settings: object) -> Releaser:
    size = len(f)
    model = MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size))
    policy = PolicyGraph.complete(size) if policy is None else policy
    return Releaser(model, f, policy, epsilon=1.0, mechanism=mechanism, rng=0, **settings)


@pytest.mark.parametrize("dimension", [3, 4])
def test_lattice_raises_above_two_dimensions(dimension):
    f = np.random.default_rng(0).integers(0, 9, (12, dimension))
    with pytest.raises(InvalidInputError, match=f"at most 2 dimensions, got {dimension}; use mechanism 'k-norm'"):
        make_releaser(f, "lattice")
    with pytest.raises(InvalidInputError, match="use mechanism 'k-norm'"):
        make_releaser(f + 0.1, "lattice", PolicyGraph.from_edges(12, [[0, 1]]), spacing="0.1")
    assert len(make_releaser(f, "k-norm").release(3).released) == dimension


def test_lattice_supports_lines_and_planes_in_space():
    rng = np.random.default_rng(1)
    assert len(make_releaser(rng.integers(0, 9, (12, 1)), "lattice").release(2).released) == 1
    x, y = rng.integers(0, 9, (2, 12))
    flat = np.stack([x, y, x - 2 * y], axis=1)
    released = make_releaser(flat, "lattice", spacing="1").release(2).released
    assert released[2] == released[0] - 2 * released[1]


def test_too_many_facets_raise():
    engine = make_releaser(np.random.default_rng(2).integers(0, 9, (60, 9)), "k-norm")
    with pytest.raises(InvalidInputError, match=r"9 dimensions .*2,000,000 facets") as caught:
        engine.release(0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [4, 40])
def test_laplace_in_twelve_dimensions_is_fast_and_scaled_by_longest_edge(size):
    f = np.random.default_rng(3).integers(0, 9, (size, 12))
    engine = make_releaser(f, "laplace")
    start = process_time()
    record = engine.release(1)
    assert process_time() - start < 0.5, "measured: 7 ms; 150 s and more when facets were enumerated"
    longest = np.abs(f[:, None] - f[None]).sum(axis=2).max()
    assert record.expected_error == pytest.approx(np.sqrt(24) * longest, rel=1e-12)
    assert record.min_degree_of_protection == size
    assert record.constrained_dp_factor == pytest.approx(1.0)
    assert np.isfinite(record.hull_volume)


def test_k_norm_draws_have_gamma_distributed_norms_in_four_dimensions():
    """Check that norms of noise are Gamma(4) at epsilon 1, with mean and variance 4.

    2,000 draws, seed 0; five standard errors of the mean and seven of the variance (alpha below 1e-6).
    """
    f = np.random.default_rng(4).integers(0, 4, (16, 4))
    engine = make_releaser(f, "k-norm")
    noise = engine.prepare().noise
    draws = noise.sample(np.zeros(2000, dtype=np.int64), np.random.default_rng(0))
    hull = engine.prepare().protection.hull
    norms = hull.norm(draws - f[0])
    assert abs(norms.mean() - 4) < 5 * 2 / np.sqrt(2000)
    assert abs(norms.var() - 4) < 7 * 4 * np.sqrt(3.5 / 2000)
