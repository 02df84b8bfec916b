"""The unit of work of an evaluation: some sequences under one setting."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import IntArray
from dphmm.errors import DataFileError
from dphmm.evaluation.config import EvaluationConfig, Setting
from dphmm.evaluation.split import Split, model_file
from dphmm.evaluation.steps import StepTable
from dphmm.geometry.measurements import Measurements
from dphmm.jobs.checkpoint import Checkpoint
from dphmm.markov.belief import Belief
from dphmm.markov.model import MarkovModel
from dphmm.release.engine import Releaser


@dataclass(frozen=True)
class Task:
    """What a worker is told: a folder, a setting, which sequences, a seed. It finds everything else in the folder.

    Parameters
    ----------
    index
        The number of the task, which names its part of the table.
    folder
        The evaluation's folder, which every worker must see under this path.
    digest
        The configuration's digest.
    setting
        How to release.
    fold
        The number of the model.
    sequences, length
        The numbers of the sequences, and how many releases each has.
    seed
        The evaluation's seed; see `randomness_of`.
    known_start
        Whether the place before the first release is known.
    """

    index: int
    folder: str
    digest: str
    setting: Setting
    fold: int
    sequences: tuple[int, ...]
    length: int
    seed: int
    known_start: bool


def tasks_of(config: EvaluationConfig, folder: Path, folds: IntArray) -> tuple[Task, ...]:
    """All tasks of an evaluation of sequences of these folds, in the order of the table."""
    blocks, most = [], config.task_sequences
    for fold in np.unique(folds).tolist():
        rows = np.flatnonzero(folds == fold).tolist()
        blocks += [(fold, tuple(rows[first : first + most])) for first in range(0, len(rows), most)]
    pairs = [(setting, *block) for setting in config.settings() for block in blocks]
    known = config.start == "known"
    return tuple(
        Task(index, str(folder.absolute()), config.digest, setting, fold, block, config.length, config.seed, known)
        for index, (setting, fold, block) in enumerate(pairs)
    )


def randomness_of(seed: int, setting: Setting, sequence: int) -> np.random.Generator:
    """The noise of one sequence under one setting: a stream of its own, whoever draws it and whatever else is run."""
    words = np.frombuffer(hashlib.sha256(setting.label.encode()).digest()[:16], dtype="<u4").tolist()
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, sequence, *words)))


def run_task(task: Task) -> int:
    """Release the sequences of a task and write its part of the table; the number of the task."""
    Checkpoint(Path(task.folder)).write_part(task.index, StepTable.of(list(_rows(task))).write)
    return task.index


def is_finished(task: Task) -> bool:
    """Whether the part of a task is there and whole."""
    part = Checkpoint(Path(task.folder)).part(task.index)
    try:
        return part.exists() and len(StepTable.read([part])) == len(task.sequences) * task.length
    except DataFileError:
        return False


def _rows(task: Task) -> Iterator[dict[str, Any]]:
    model, states, firsts = _common(task.folder, task.digest, task.fold)
    setting = task.setting
    first = setting.release_settings.engine(model)
    for sequence in task.sequences:
        # Another engine has no plan yet, so that the runtime of a sequence does not depend on the ones before.
        releaser = first.another(randomness_of(task.seed, setting, sequence))
        slot = int(firsts[sequence])
        releaser.restart(first=slot + 1)
        if task.known_start:
            releaser.resume(_known(model, releaser.measurements, int(states[sequence, 0]), slot), 0, slot=slot)
        for step, state in enumerate(states[sequence, 1:].tolist()):
            yield {**asdict(setting), "sequence": sequence, "step": step + 1, **_released(releaser, state)}


def _known(model: MarkovModel, measurements: Measurements, state: int, slot: int) -> Belief:
    """The belief of one who knows the state, or else the nearest one that the model can leave."""
    leaves = np.flatnonzero(np.diff(model.structure.indptr) > 1)
    if not len(leaves):
        leaves = np.arange(model.size)
    away = np.linalg.norm(measurements.points[leaves] - measurements.points[state], axis=1)
    return Belief.first(model, slot, np.eye(1, model.size, int(leaves[int(np.argmin(away))]))[0])


def _released(releaser: Releaser, state: int) -> dict[str, Any]:
    started = time.thread_time()
    record = releaser.release(state)
    seconds = time.thread_time() - started
    private, measurements = releaser.private_diagnostics(state), releaser.measurements
    place, (x, y) = measurements.points[state], record.released or (nan, nan)
    moved = measurements.points[private.used_state] - place  # where a stand-in was released
    belief = releaser.belief
    assert belief is not None
    error, squared = private.error, private.expected_error**2 + float(moved @ moved)  # the noise is symmetric
    if record.withheld:
        error, squared = private.estimate_error, private.estimate_error**2
    return {
        "runtime_s": seconds,
        "protection": private.degree_of_protection,
        "error_km": error,
        "squared_error_km2": squared,
        "withheld": record.withheld,
        "spent_epsilon": record.epsilon,
        "estimate_error_km": private.estimate_error,
        "adversary_error_km": float(belief.probabilities @ np.linalg.norm(measurements.points - place, axis=1)),
        "expected_error_km": private.expected_error,
        "possible": record.possible,
        "stood_in": private.stood_in,
        "edges_added": len(record.added),
        "certified": record.certified,
        "already_known": record.already_known,
        "area_km2": record.area,
        "constrained_factor": record.constrained_factor,
        "true_x_km": float(place[0]),
        "true_y_km": float(place[1]),
        "released_x_km": x,
        "released_y_km": y,
        "estimate_x_km": record.estimate[0],
        "estimate_y_km": record.estimate[1],
    }


@lru_cache(maxsize=8)
def _common(folder: str, digest: str, fold: int) -> tuple[MarkovModel, IntArray, IntArray]:  # noqa: ARG001 - part of the key
    """What a worker reads once per fold of an evaluation."""
    split = Split.load(Path(folder))
    return MarkovModel.load(model_file(Path(folder), fold)), split.states, split.firsts
