"""Time-dependent models, and their steps one at a time."""

from __future__ import annotations

import numpy as np

from dphmm.model import MarkovModel, TimeClasses

HOUR = 3600.0
FIRST = 470_003
YEAR = 24 * 365


def build_time_dependent_model(seed, zone="Europe/Berlin", by="hour", size=7, step=HOUR, stay=0.5, minimum=0.0, near=1):
    """Build random moves between near states on a line, which differ by time class."""
    rng, time_classes = np.random.default_rng(seed), TimeClasses.from_name(by, step, zone)
    near = np.abs(np.subtract.outer(np.arange(size), np.arange(size))) <= near
    matrices = []
    for _ in range(time_classes.count):
        away = rng.uniform(minimum, 1.0, (size, size)) * near * (1 - np.eye(size))
        rate = (1 - stay) * rng.uniform(0.3, 1.0, (size, 1))
        matrices.append(rate * away / away.sum(axis=1, keepdims=True) + np.diag(1 - rate[:, 0]))
    return MarkovModel(matrices, np.full((time_classes.count, size), 1 / size), None, step, time_classes)


def step_repeatedly(model, values, steps, since, back=False):
    """Apply the dense matrices one at a time: the oracle."""
    dense = [matrix.toarray() for matrix in model.transitions]
    slots = since + 1 + np.arange(steps)
    classes = np.zeros(steps, dtype=int) if model.time_classes is None else model.time_classes.get_classes(slots)
    for number in classes[::-1] if back else classes:
        values = dense[number] @ values if back else values @ dense[number]
        values = values / values.sum()
    return values
