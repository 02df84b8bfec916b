"""Events by enumeration: every path, and what each does, without automata."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from dphmm.events import AtLeast, Event, Not, Pattern, Presence, Times
from dphmm.events.event import Verdict


def happens(event: Event, path: Sequence[int]) -> bool:
    """Whether a path does what an event says, by the words of its definition."""
    if isinstance(event, Not):
        return not happens(event.event, path)
    if isinstance(event, AtLeast):
        return sum(happens(one, path) for one in event.events) >= event.count
    window = path[event.first : event.last + 1]
    if isinstance(event, Presence):
        return any(state in event.states for state in window)
    if isinstance(event, Pattern):
        return all(state in states for state, states in zip(window, event.pattern, strict=True))
    if isinstance(event, Times):
        there = [state in event.states for state in window]
        entered = [now and not before for now, before in zip(there, [False, *there[:-1]], strict=True)]
        return sum(entered if event.visits else there) >= event.least
    progress = event.start
    for time in range(event.first, event.last + 1):
        if not isinstance(progress, Verdict):
            progress = event.step(progress, time, lambda states, time=time: path[time] in states)
    return progress is Verdict.YES


def paths(transitions: Sequence[np.ndarray], initial: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All paths over the steps, ``(P, T)``, and their probabilities."""
    size = len(initial)
    every = np.array(list(product(range(size), repeat=len(transitions) + 1)))
    weights = np.asarray(initial)[every[:, 0]]
    for t, matrix in enumerate(transitions):
        weights = weights * np.asarray(matrix)[every[:, t], every[:, t + 1]]
    return every, weights


def joint(every: np.ndarray, weights: np.ndarray, rows: np.ndarray, times: Sequence[int]) -> np.ndarray:
    """``Pr(path, z_1..t)`` for every release t, ``(T, P)``."""
    seen, found = weights, []
    for row, time in zip(rows, times, strict=True):
        seen = seen if np.isnan(row).all() else seen * np.exp(row)[every[:, time]]
        found.append(seen)
    return np.array(found)


def odds(holds: np.ndarray, weights: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """``logit Pr(E | z_1..t) - logit Pr(E)`` of the paths that do it, their probabilities, and `joint`."""
    with np.errstate(divide="ignore"):
        prior = np.log(weights[holds].sum()) - np.log(weights[~holds].sum())
        return np.log(seen[:, holds].sum(axis=1)) - np.log(seen[:, ~holds].sum(axis=1)) - prior


def log_odds(
    transitions: Sequence[np.ndarray],
    initial: np.ndarray,
    rows: np.ndarray,
    event: Event,
    times: Sequence[int] | None = None,
) -> np.ndarray:
    """The same by summing over all paths."""
    every, weights = paths(transitions, initial)
    holds = np.array([happens(event, path) for path in every.tolist()])
    return odds(holds, weights, joint(every, weights, rows, range(len(rows)) if times is None else times))
