"""Random small chains, noise and events, with impossible moves and outputs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from dphmm.events import AtLeast, Event, Pattern, Presence, Times
from dphmm.events.event import Inside, Progress, States, Verdict


@dataclass(frozen=True)
class Table(Event):
    """Any automaton: the next progress for each progress in each state, timestep by timestep."""

    first: int
    # Timestep, progress, state → progress; at the last timestep 0 is no and 1 is yes.
    table: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def last(self) -> int:
        return self.first + len(self.table) - 1

    @property
    def start(self) -> Progress:
        return 0

    def sets(self, step: int) -> Iterable[States]:
        return tuple((state,) for state in range(len(self.table[0][0])))

    def step_signature(self, step: int) -> Hashable:
        return step

    def advance(self, progress: Progress, step: int, inside: Inside) -> Progress:
        states = range(len(self.table[0][0]))
        ahead = self.table[step - self.first][progress][next(state for state in states if inside((state,)))]
        return Verdict(ahead % 2) if step == self.last else ahead


def draw_table(rng: np.random.Generator, size: int, length: int) -> Table:
    first = int(rng.integers(0, length))
    steps = int(rng.integers(1, length - first + 1))
    table = rng.integers(0, 3, (steps, 3, size))
    return Table(first, tuple(tuple(tuple(row) for row in layer) for layer in table.tolist()))


def draw_event(rng: np.random.Generator, size: int, length: int, depth: int = 2) -> Event:
    """An event over timesteps 0 to ``length - 1``."""

    def draw_states() -> list[int]:
        return np.flatnonzero(rng.random(size) < 0.4).tolist()

    first = int(rng.integers(0, length))
    last = int(rng.integers(first, length))
    match int(rng.integers(0, 8 if depth else 5)):
        case 0 | 1:
            return Presence(draw_states(), first, last)
        case 2:
            return Pattern([[*draw_states(), int(rng.integers(size))] for _ in range(first, last + 1)], first)
        case 3:
            return Times(draw_states(), first, last, int(rng.integers(1, 4)), bool(rng.integers(2)))
        case 4:
            return draw_table(rng, size, length)
        case 5:
            return ~draw_event(rng, size, length, depth - 1)
        case _:
            parts = [draw_event(rng, size, length, depth - 1) for _ in range(int(rng.integers(1, 4)))]
            return AtLeast(int(rng.integers(1, len(parts) + 1)), parts)


def draw_matrix(rng: np.random.Generator, size: int) -> np.ndarray:
    matrix = rng.random((size, size)) * (rng.random((size, size)) < 0.7) + 0.1 * np.eye(size)
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def draw_initial(rng: np.random.Generator, size: int) -> np.ndarray:
    initial = rng.random(size) * (rng.random(size) < 0.7)
    initial[int(rng.integers(size))] += 0.3
    return np.asarray(initial / initial.sum())


def draw_noise(rng: np.random.Generator, size: int, outputs: int) -> np.ndarray:
    """``(size, outputs)``: probability of each output in each state. Some are zero.

    Those of the first output are positive.
    """
    noise = rng.random((size, outputs)) * (rng.random((size, outputs)) < 0.85)
    noise[:, 0] += 1e-3
    return np.asarray(noise / noise.sum(axis=1, keepdims=True))
