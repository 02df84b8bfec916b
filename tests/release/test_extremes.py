"""Inputs at the limits of floats: a step is released, or raises before its draw."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm import MarkovModel, Measurements, PolicyGraph, Releaser
from dphmm.errors import BudgetError, CoordinateError, DphmmError
from dphmm.random import RandomSource
from tests.release.test_engine import MECHANISMS
from tests.sizes import choose_count, mark_slow


class WatchedBytes:
    """Seeded random bytes, with a flag for reads since `drawn` was set to False."""

    def __init__(self, seed: int) -> None:
        self.drawn = False
        self._bytes = np.random.default_rng(seed).bytes

    def __call__(self, size: int) -> bytes:
        self.drawn = True
        return self._bytes(size)


def release_sequence(rng: np.random.Generator, length: int, f, policy, mechanism: str, epsilon=1.0, **settings) -> bool:
    """Return whether a sequence was released to its end, or False if a step raised.

    A step may raise only before its draw.
    """
    size, watch = policy.size, WatchedBytes(int(rng.integers(2**31)))
    moves = rng.random((size, size)) * (rng.random((size, size)) < 0.6) + 0.01 * np.eye(size)
    start = rng.random(size) + 0.01
    try:
        model = MarkovModel(moves / moves.sum(axis=1, keepdims=True), start / start.sum())
        releaser = Releaser(
            model, f, policy, epsilon, mechanism, rng=RandomSource(watch), allow_singleton=True, **settings
        )
        for _ in range(length):
            watch.drawn = False
            releaser.release(int(rng.integers(size)), steps=int(rng.integers(1, 4)))
    except DphmmError:
        assert not watch.drawn, "the sequence failed after a draw"
        return False
    return True


FLAT = {
    "axis": lambda t, _: np.stack([t, 0 * t], axis=1),
    "turned": lambda t, angle: np.outer(t, [np.cos(angle), np.sin(angle)]),
    "turned lattice": lambda t, _: np.outer(t, [3.0, 7.0]),
    "point": lambda t, _: 0 * np.stack([t, t], axis=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("kind", [mark_slow(kind) if kind in ("axis", "turned lattice") else kind for kind in FLAT])
def test_flat_hulls_never_fail_after_draw(mechanism, kind):
    # None may fail after a draw.
    rng, ended = np.random.default_rng(31), 0
    for number in range(
        choose_count(75, 30) if mechanism in {"lattice", "k-norm", "planar-isotropic"} else choose_count(25, 20)
    ):
        t = rng.normal(size=6) if number % 2 else np.arange(6.0)
        offset = np.array([[0.0, 0.0], [1234.5678, -77.7], [1e6, 3e5], [1e9, -1e9], [1e12, 1e12]][number % 5])
        f = FLAT[kind](t, rng.uniform(0, np.pi)) * [1.0, 1e-3, 1e3][number % 3] + offset
        edges = [(0, 1), (2, 3)], [], [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
        policy = PolicyGraph.complete(6) if number % 4 == 3 else PolicyGraph.from_edges(6, edges[number % 4])
        ended += release_sequence(rng, 2, f, policy, mechanism, repair="greedy", spacing=1e-4)
    assert ended >= choose_count(15, 12), "only inputs outside the range of floats raise"


def sample_measurements(rng: np.random.Generator) -> tuple[object, int]:
    """Return random planar measurements of a few states.

    They are integer, far from the origin, tiny, wide, rational or on a lattice.
    """
    size = int(rng.integers(1, 8))
    whole = rng.integers(-5, 6, (size, 2))
    f = whole.astype(float)
    far, unit = float(rng.choice([1e6, 1e9, 1e12, 1e15])), float(rng.choice([1e-9, 0.5, 1.0, 500.0]))
    kinds = [
        lambda: f * unit,
        lambda: f * unit + far,
        lambda: rng.normal(size=f.shape) * 10.0 ** rng.integers(-9, 10),
        lambda: rng.normal(size=f.shape) + far,
        lambda: f[rng.integers(0, size, size)],
        lambda: np.repeat(f[:1], size, axis=0) + far,
        lambda: f * 10.0 ** rng.integers(-300, 300),
        lambda: f * 10.0 ** rng.integers(-12, 13, (1, 2)),
        lambda: np.nextafter(np.full(f.shape, unit), np.inf) + unit * 2.0**-52 * whole,
        lambda: [[Fraction(int(x), int(rng.integers(1, 50))) for x in row] for row in whole],
        lambda: rng.integers(-(2**62), 2**62, f.shape),
        lambda: whole.astype(np.int8),
        lambda: f @ [[1e6, 1e6 - 1], [1e6 - 1, 1e6 - 2]],
        lambda: Measurements.on_lattice(whole, unit, [far, -far]),
    ]
    return kinds[rng.integers(len(kinds))](), size


def sample_policy(rng: np.random.Generator, size: int) -> PolicyGraph:
    pairs = [(a, b) for a in range(size) for b in range(a) if rng.random() < 0.3]
    kinds = [
        lambda: PolicyGraph.complete(size),
        lambda: PolicyGraph.from_edges(size, pairs),
        lambda: PolicyGraph.from_edges(size, []),
        lambda: PolicyGraph.categorical(rng.integers(-1, 3, size)),
        lambda: PolicyGraph.utility(rng.integers(0, 5, (size, 2)), 1.5),
        lambda: PolicyGraph.complete(size).restrict(np.arange(size) < 1 + size // 2),
    ]
    return kinds[rng.integers(len(kinds))]()


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_unusual_measurements_never_fail_after_draw_or_with_foreign_error(mechanism):
    rng, ended = np.random.default_rng(32), 0
    for _ in range(choose_count(80, 40)):
        f, size = sample_measurements(rng)
        epsilon = float(rng.choice([1e-308, 1e-30, 1e-9, 0.1, 1.0, 1.0, 10.0, 1e6, 1e30, 1e308]))
        settings = {
            "repair": str(rng.choice(["exact", "greedy", "sequential"])),
            "repair_objective": str(rng.choice(["volume", "error"])),
            "delta": float(rng.choice([0.0, 0.5])),
            "spacing": float(rng.choice([1e-9, 1e-3, 1.0])),
        }
        ended += release_sequence(rng, 3, f, sample_policy(rng, size), mechanism, epsilon, **settings)
    assert ended >= choose_count(20, 10)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("epsilon", [1e-31, 5e-324, 1e31, 1e308])
def test_epsilon_outside_supported_range_raises(mechanism, epsilon):
    model = MarkovModel(np.full((2, 2), 0.5), [0.5, 0.5])
    with pytest.raises(BudgetError, match=r"epsilon must be in \[1e-30, 1e\+30\]"):
        Releaser(model, [[0, 0], [1, 0]], PolicyGraph.complete(2), epsilon, mechanism)
    releaser = Releaser(model, [[0, 0], [1, 0]], PolicyGraph.complete(2), 1.0, mechanism)
    with pytest.raises(BudgetError, match="epsilon must be"):
        releaser.release(0, epsilon)


@pytest.mark.parametrize("largest", [1e-31, 5e-324, 1e31, 1e308])
def test_length_outside_supported_range_raises(largest):
    with pytest.raises(CoordinateError, match="unit"):
        Measurements([[0.0, largest], [largest / 3, 0.0]])
