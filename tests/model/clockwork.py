"""Models that vary with the clock, and their steps one after another."""

from __future__ import annotations

import numpy as np

from dphmm.model import MarkovModel, TimeClasses

HOUR = 3600.0
FIRST = 470_003
YEAR = 24 * 365


def varying(seed, zone="Europe/Berlin", by="hours", size=7, step=HOUR, stay=0.5, least=0.0, near=1):
    """Random moves between near states on a line, which differ by class."""
    rng, time_classes = np.random.default_rng(seed), TimeClasses.of(by, step, zone)
    near = np.abs(np.subtract.outer(np.arange(size), np.arange(size))) <= near
    made = []
    for _ in range(time_classes.count):
        away = rng.uniform(least, 1.0, (size, size)) * near * (1 - np.eye(size))
        rate = (1 - stay) * rng.uniform(0.3, 1.0, (size, 1))
        made.append(rate * away / away.sum(axis=1, keepdims=True) + np.diag(1 - rate[:, 0]))
    return MarkovModel(made, np.full((time_classes.count, size), 1 / size), None, step, time_classes)


def stepped(model, values, steps, since, back=False):
    """The oracle: dense matrices one after another."""
    dense = [one.toarray() for one in model.transitions]
    slots = since + 1 + np.arange(steps)
    classes = np.zeros(steps, dtype=int) if model.time_classes is None else model.time_classes.classes_of(slots)
    for number in classes[::-1] if back else classes:
        values = dense[number] @ values if back else values @ dense[number]
        values = values / values.sum()
    return values
