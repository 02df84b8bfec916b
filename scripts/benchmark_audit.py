"""Inference, policy audit and empirical audit, timed in one run on this machine.

Run: python scripts/benchmark_audit.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from scipy.sparse import coo_array

from dphmm import KNormMechanism, LaplaceMechanism, MarkovModel, PolicyGraph, SensitivityHull
from dphmm.audit.empirical import audit_pair
from dphmm.audit.policy_audit import audit_constraints
from dphmm.markov import Observations, filter_releases, path_of_releases, smooth_releases


def main() -> None:
    small, large = 1_000, 10_000
    inference(*chain(25, 40, 1_000), repeats=5, against_hmmlearn=True, name=f"N = {small:,}, T = 1,000")
    inference(*chain(100, 100, 1_000), repeats=1, against_hmmlearn=False, name=f"N = {large:,}, T = 1,000")
    policy(100, 100)
    empirical(1_000_000, repeats=5)


def chain(height: int, width: int, length: int) -> tuple[MarkovModel, Observations]:
    """A walk on a grid of unit cells to the eight neighbours, released by the K-norm mechanism of a unit square."""
    rng = np.random.default_rng(5)
    model = MarkovModel(walk(height, width, rng), np.full(height * width, 1.0 / (height * width)))
    points = np.stack(np.divmod(np.arange(height * width), width), axis=1).astype(np.float64)
    mechanism = KNormMechanism(SensitivityHull([[2, 0], [0, 2]]), 1.0)
    state, rows = int(rng.integers(model.size)), []
    for _ in range(length):
        rows.append(mechanism.log_density(mechanism.sample(points[state], rng), points))
        row = slice(*model.transition.indptr[state : state + 2])
        state = int(rng.choice(model.transition.indices[row], p=model.transition.data[row]))
    return model, Observations(np.array(rows))


def walk(height: int, width: int, rng: np.random.Generator) -> Any:
    y, x = np.divmod(np.arange(height * width), width)
    sources, targets = [], []
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            inside = (y + dy >= 0) & (y + dy < height) & (x + dx >= 0) & (x + dx < width)
            sources.append(np.flatnonzero(inside))
            targets.append(((y + dy) * width + x + dx)[inside])
    rows, columns = np.concatenate(sources), np.concatenate(targets)
    weights = rng.exponential(size=len(rows))
    totals = np.bincount(rows, weights)
    return coo_array((weights / totals[rows], (rows, columns)), shape=(height * width,) * 2).tocsr()


def inference(model: MarkovModel, observed: Observations, repeats: int, against_hmmlearn: bool, name: str) -> None:
    def ours() -> None:
        found = filter_releases(model, observed)
        smooth_releases(model, observed, found)
        path_of_releases(model, observed)

    mine = timed(ours, repeats)
    print(f"filter + smoother + most probable path, {name}: {mine:.2f} s (median of {repeats})")
    if against_hmmlearn:
        for form, count in (("scaling", 3), ("log", 1)):
            theirs = timed(partial(dense, model, observed, form), count)
            print(f"    hmmlearn, dense, {form!r}, in the same run: {theirs:.2f} s, {theirs / mine:.1f} times as long")


def dense(model: MarkovModel, observed: Observations, form: str) -> None:
    """What hmmlearn's classes call: forward and backward, posteriors, Viterbi."""
    from hmmlearn import _hmmc

    start, matrix = model.initial, model.transition.toarray()
    rows = np.array(observed.log_likelihood)
    if form == "scaling":
        likelihood = np.exp(rows - rows.max(axis=1, keepdims=True))
        _, forward, scale = _hmmc.forward_scaling(start, matrix, likelihood)
        backward = _hmmc.backward_scaling(start, matrix, likelihood, scale)
        gamma = forward * backward
        gamma /= gamma.sum(axis=1, keepdims=True)
    else:
        _, forward = _hmmc.forward_log(start, matrix, rows)
        backward = _hmmc.backward_log(start, matrix, rows)
        gamma = forward + backward
        gamma -= np.logaddexp.reduce(gamma, axis=1, keepdims=True)
    _hmmc.viterbi(start, matrix, rows)


def policy(side: int, count: int) -> None:
    """A utility policy of 1 km over 0.34 km cells, under random discs of which a random share of cells is possible."""
    rng = np.random.default_rng(0)
    y, x = np.divmod(np.arange(side * side), side)
    places = np.stack([x, y], axis=1) * 0.34
    graph = PolicyGraph.utility(places, 1.0)

    def one() -> np.ndarray:
        near = np.linalg.norm(places - rng.uniform(0, 0.34 * side, 2), axis=1) < rng.uniform(2, 25)
        kept = near & (rng.random(side * side) < rng.uniform(0.05, 1))
        return kept if kept.any() else np.ones(side * side, dtype=bool)

    sets = [one() for _ in range(count)]
    began = time.perf_counter()
    exposed = sum(audit.is_exposed for audit in audit_constraints(graph, places, sets))
    took = time.perf_counter() - began
    print(f"policy audit, {side * side:,} states, {count} constraints ({exposed} expose a state): {took:.1f} s")


def empirical(samples: int, repeats: int) -> None:
    """One pair of states of a hexagon's K-norm mechanism and of Laplace; all draws are counted, both states'."""
    hull = SensitivityHull([[4, 1], [3, 0], [1, -1]])
    for name, mechanism in (("k-norm", KNormMechanism(hull, 1.0)), ("laplace", LaplaceMechanism(5.0, 1.0, 2))):
        took = timed(lambda mechanism=mechanism: audit_pair(mechanism, [0, 1], [4, 2], 1.0, samples, rng=1), repeats)
        print(f"empirical audit, {name}: {2 * samples / took:,.0f} samples a second (median of {repeats})")


def timed(run: Callable[[], None], repeats: int) -> float:
    def once() -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    return median(once() for _ in range(repeats))


if __name__ == "__main__":
    main()
