"""Small chains with noise, and their exact joint leakage in rationals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np


def compute_joint_leakage(first, steps, emissions, members):
    """Compute the joint leakage by its definition.

    It is the largest ratio of ``Pr(z | states of members)`` over all outputs z and any two assignments. ``first`` is a
    list of rationals, ``steps`` one matrix per step, ``emissions`` a matrix state → output per time. All paths and
    outputs are enumerated.
    """
    states, times = range(len(first)), range(len(emissions))
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], Fraction]]] = {}
    for path in itertools.product(states, repeat=len(times)):
        mass = first[path[0]] * math.prod(steps[t][path[t]][path[t + 1]] for t in times[:-1])
        if mass:
            groups.setdefault(tuple(path[member] for member in members), []).append((path, mass))
    worst = Fraction(1)
    for output in itertools.product(*(range(len(table[0])) for table in emissions)):
        likely = []
        for paths in groups.values():
            seen = sum(mass * math.prod(emissions[t][path[t]][output[t]] for t in times) for path, mass in paths)
            likely.append(seen / sum(mass for _, mass in paths))
        worst = max(worst, max(likely) / min(likely))
    return worst


def compute_budget(table):
    """Compute the largest log ratio of an output's probabilities in any two states."""
    return math.log(max(max(column) / min(column) for column in zip(*table, strict=True)))


def sample_chain(rng, size, steps, zeros, same):
    """Sample a first distribution and a matrix per step, in rationals. Some entries are zero."""

    def sample_row():
        weights = [0]
        while not any(weights):
            weights = [int(w) for w in rng.integers(1, 40, size) * (rng.random(size) >= zeros)]
        return [Fraction(weight, sum(weights)) for weight in weights]

    matrices = [[sample_row() for _ in range(size)] for _ in range(1 if same else steps)]
    return sample_row(), matrices * steps if same else matrices


def sample_noise(rng, size):
    """Sample noise with two outputs, the first rare.

    It is close to the worst mechanism of its budget.
    """
    if rng.random() < 0.25:
        return [[Fraction(1)]] * size
    rare, ratio = Fraction(1, int(rng.integers(20, 200))), Fraction(int(rng.integers(2, 8)), int(rng.integers(1, 3)))
    return [[chance, 1 - chance] for chance in (rare * (ratio if high else 1) for high in rng.integers(2, size=size))]


def compute_backward_matrices(first, steps):
    """Compute ``Pr(before | now)`` of each step by Bayes' rule."""
    matrices, here = [], first
    for matrix in steps:
        joint = [[here[i] * matrix[i][j] for i in range(len(first))] for j in range(len(first))]
        here = [sum(row) for row in joint]
        rows = [[mass / total for mass in row] if total else first for row, total in zip(joint, here, strict=True)]
        matrices.append(np.array(rows, dtype=float))
    return matrices
