"""Engines of every mechanism and state space, for the tests of pickling and checkpoints."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.mechanisms.registry import MechanismName
from dphmm.model import TimeClasses
from dphmm.model.outside_states import OutsideStates
from dphmm.release import ReleaseSettings, Schedule
from dphmm.space import Grid, Places

FIRST = 470_000
HOUR = 3600.0
F = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
GROUPS = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])


def _sample_transition(seed: int, size: int) -> Any:
    raw = np.random.default_rng(seed).random((size, size)) + 0.05
    return raw / raw.sum(axis=1, keepdims=True)


def _make_point_engine(mechanism: str = "lattice", **settings: Any) -> Callable[[int], Releaser]:
    model = MarkovModel(_sample_transition(1, 6), np.full(6, 1 / 6), step_seconds=HOUR)
    return lambda seed: Releaser(model, F, GROUPS, 0.5, mechanism, rng=seed, **settings)


def _make_space_engine(
    space: Any, policy: str, mechanism: str = "lattice", **settings: Any
) -> Callable[[int], Releaser]:
    model = MarkovModel(_sample_transition(2, space.size), np.full(space.size, 1 / space.size), space, HOUR)
    described = ReleaseSettings(policy=policy, epsilon=0.5, mechanism=mechanism, **settings)
    return lambda seed: described.engine(model, seed)


def _make_second_order(seed: int) -> Releaser:
    """An engine of a model with classes of time and outside states."""
    classes = TimeClasses(tuple(h % 24 // 3 % 2 for h in range(168)), HOUR, "Asia/Kolkata")
    outside = OutsideStates(3, [1, 2], [1.0, 2.0], [1.5, 5.0], np.array([0.3, 0.6]))
    moves = [_sample_transition(3, 5), _sample_transition(4, 5)]
    model = MarkovModel(moves, np.full((2, 3), 1 / 3), None, HOUR, classes, outside)
    engine = Releaser(model, [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], PolicyGraph.complete(3), 0.5, rng=seed)
    engine.restart(first=FIRST)
    return engine


GRID = Grid.over((45.0, -30.0, 45.02, -29.97), 0.5)
PLACES = Places(list("abcd"), [45.0, 45.01, 45.02, 45.03], [-30.0, -30.01, -30.0, -30.02])
CAPS = [{"event": "state:1,2 between 0 and 5", "probability": 0.93, "min_probability": 0.01}]

ENGINES: dict[str, Callable[[int], Releaser]] = {
    **{name: _make_point_engine(name) for name in get_args(MechanismName)},
    "components": _make_point_engine("k-norm", noise_scope="component"),
    "delta": _make_point_engine(delta=0.2),
    "schedule": _make_point_engine(schedule=Schedule(window_epsilon=1.0, window_seconds=4 * HOUR)),
    "caps": _make_point_engine(caps=CAPS),
    "grid": _make_space_engine(GRID, "utility:1km"),
    "places": _make_space_engine(PLACES, "complete", "k-norm"),
    "time and outside": _make_second_order,
}


def release(engine: Releaser, count: int = 4, seed: int = 9) -> list[str]:
    """Release ``count`` timesteps. Return the records as text."""
    states = np.random.default_rng(seed).integers(0, engine.model.size, count)
    return [engine.release(int(state)).to_json() for state in states]


def main(folder: Path) -> None:
    """Restore the checkpoints in a folder in this process, and write the next releases."""
    for path in folder.glob("*.checkpoint"):
        engine = ENGINES[path.stem](7)
        engine.restore(path.read_bytes())
        path.with_suffix(".records").write_text("\n".join(release(engine)), encoding="utf-8")
    for path in folder.glob("*.pickle"):
        engine = pickle.loads(path.read_bytes())
        path.with_suffix(".copied").write_text("\n".join(release(engine)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
