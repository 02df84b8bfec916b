"""Events by enumeration of all paths, without automata."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from dphmm.events import AtLeast, Event, Not, Pattern, Presence, Times
from dphmm.events.event import Verdict


def happens(event: Event, path: Sequence[int]) -> bool:
    """Whether a path fulfils an event, by the definition of the event."""
    if isinstance(event, Not):
        return not happens(event.event, path)
    if isinstance(event, AtLeast):
        return sum(happens(part, path) for part in event.events) >= event.count
    window = path[event.first : event.last + 1]
    if isinstance(event, Presence):
        return any(state in event.states for state in window)
    if isinstance(event, Pattern):
        return all(state in states for state, states in zip(window, event.pattern, strict=True))
    if isinstance(event, Times):
        there = [state in event.states for state in window]
        entered = [now and not before for now, before in zip(there, [False, *there[:-1]], strict=True)]
        return sum(entered if event.visits else there) >= event.min_count
    progress = event.start
    for time in range(event.first, event.last + 1):
        if not isinstance(progress, Verdict):
            progress = event.advance(progress, time, lambda states, time=time: path[time] in states)
    return progress is Verdict.YES


def enumerate_paths(transitions: Sequence[np.ndarray], initial: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All paths over the timesteps, ``(P, T)``, and their probabilities."""
    size = len(initial)
    all_paths = np.array(list(product(range(size), repeat=len(transitions) + 1)))
    weights = np.asarray(initial)[all_paths[:, 0]]
    for t, matrix in enumerate(transitions):
        weights = weights * np.asarray(matrix)[all_paths[:, t], all_paths[:, t + 1]]
    return all_paths, weights


def compute_joint(all_paths: np.ndarray, weights: np.ndarray, rows: np.ndarray, times: Sequence[int]) -> np.ndarray:
    """``Pr(path, z_1..t)`` for every release t, ``(T, P)``."""
    current, joints = weights, []
    for row, time in zip(rows, times, strict=True):
        current = current if np.isnan(row).all() else current * np.exp(row)[all_paths[:, time]]
        joints.append(current)
    return np.array(joints)


def compute_odds(holds: np.ndarray, weights: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """``logit Pr(E | z_1..t) - logit Pr(E)``.

    Computed from the paths for which E holds, the probabilities of all paths, and `compute_joint`.
    """
    with np.errstate(divide="ignore"):
        prior = np.log(weights[holds].sum()) - np.log(weights[~holds].sum())
        return np.log(seen[:, holds].sum(axis=1)) - np.log(seen[:, ~holds].sum(axis=1)) - prior


def compute_log_odds(
    transitions: Sequence[np.ndarray],
    initial: np.ndarray,
    rows: np.ndarray,
    event: Event,
    times: Sequence[int] | None = None,
) -> np.ndarray:
    """Compute the odds of `compute_odds` by summing over all paths."""
    all_paths, weights = enumerate_paths(transitions, initial)
    holds = np.array([happens(event, path) for path in all_paths.tolist()])
    return compute_odds(
        holds, weights, compute_joint(all_paths, weights, rows, range(len(rows)) if times is None else times)
    )
