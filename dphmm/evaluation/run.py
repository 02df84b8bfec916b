"""The run of an evaluation: from its configuration to a table of all timesteps.

The table has one row per setting, sequence and timestep. The work is divided into tasks, each of a few sequences under
one setting. Processes share the tasks, and a later run can resume them.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.compilation import compile_at_first_call
from dphmm.errors import DataFileError, OutputError, import_library
from dphmm.evaluation.config import EvaluationConfig, Setting, load_config, parse_config
from dphmm.evaluation.split import Split, check_policies, get_model_path, make_space, split_users
from dphmm.geometry.measurements import Measurements
from dphmm.jobs.batch.run_folder import Checkpoint, hash_contents
from dphmm.jobs.batch.workers import Engine, Processes
from dphmm.jobs.model.loading import load_model
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.policy.expression import canonicalize_policy
from dphmm.release.engine import Releaser
from dphmm.release.ledger import constrained_cost
from dphmm.space.trajectory import Trajectory
from dphmm.tables import create_file, read_document
from dphmm.tables.parquet_files import read_parquet, write_parquet
from dphmm.validation import check_arguments

# Column → its type. The table contains true locations and is private.
#
# * ``epsilon`` is the setting's budget, ``spent_epsilon`` the budget that the release spent: 0 if a schedule withheld
#   it. Both errors of a withheld release are those of the prediction.
# * ``protection`` is the degree of protection of the released state.
# * ``error_km`` is the distance between the sampled release and the true state's point, the centre of its cell.
#   ``squared_error_km2`` is the mean of its square over the noise in closed form: the square of the paper's Error
#   (Equation 3), given the earlier releases.
# * ``adversary_error_km`` is the expected distance between the points of the true state and of a sample of the
#   posterior.
# * ``runtime_s`` is the thread's processor time of a step, which the load of the machine does not lengthen. Each
#   sequence is released once as a warm-up and has a new engine; its first step therefore includes the engine's setup.
#
# All columns except ``runtime_s`` follow from the seeds.
COLUMNS: Mapping[str, str] = {
    **{field.name: "float64" if field.type == "float" else "object" for field in fields(Setting)},
    "sequence": "int64",
    "step": "int64",
    "runtime_s": "float64",
    "protection": "int64",
    "error_km": "float64",
    "squared_error_km2": "float64",
    "estimate_error_km": "float64",
    "adversary_error_km": "float64",
    "expected_error_km": "float64",
    "num_possible_states": "int64",
    "used_surrogate": "bool",
    "withheld": "bool",
    "spent_epsilon": "float64",
    "num_added_edges": "int64",
    "repair_is_optimal": "bool",
    "singleton": "bool",
    "area_km2": "float64",
    "constrained_dp_factor": "float64",
    "true_x_km": "float64",
    "true_y_km": "float64",
    "released_x_km": "float64",
    "released_y_km": "float64",
    "estimate_x_km": "float64",
    "estimate_y_km": "float64",
}


@dataclass(frozen=True, eq=False)
class StepTable:
    """A table with the columns of `COLUMNS` and one row per timestep.

    Parameters
    ----------
    columns
        Name → array ``(n,)``.
    """

    columns: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["step"])

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.columns[name]

    def select_rows(self, setting: Setting) -> StepTable:
        """Return the rows of a setting, in the order of sequences and steps."""
        chosen: BoolArray = np.ones(len(self), dtype=np.bool_)
        for name, value in asdict(setting).items():
            chosen &= self.columns[name] == value
        return StepTable({name: array[chosen] for name, array in self.columns.items()})

    def to_matrix(self, name: str) -> FloatArray:
        """Return a numeric column of the rows of one setting as ``(sequences, steps)``."""
        values = self.columns[name].astype(np.float64)
        return np.asarray(values.reshape(len(np.unique(self.columns["sequence"])), -1))

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> StepTable:
        """Return a table of rows, each a mapping name → value."""
        return cls({name: np.array([row[name] for row in rows], kind) for name, kind in COLUMNS.items()})

    def write(self, path: Path) -> None:
        """Write the table as Parquet.

        Raises
        ------
        MissingDependencyError
            If pyarrow is not installed.
        """
        write_parquet(path, {name: self.columns[name] for name in COLUMNS}, write_page_checksum=True)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> StepTable:
        """Read and concatenate several files written by `write`.

        Raises
        ------
        DataFileError
            If a file is missing, damaged or not such a table.
        MissingDependencyError
            If pyarrow is not installed.
        """
        parts = [_read_columns(path) for path in paths]
        return cls({name: np.concatenate([part[name] for part in parts]) for name in COLUMNS})


def _read_columns(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the columns of a part, each with its type."""
    wrong = "is not a table of an evaluation's steps ({}): delete it and use --resume"
    try:
        table = read_parquet(read_document(path), lambda names: [name for name in COLUMNS if name in names])
    except DataFileError as problem:
        raise DataFileError(path, wrong.format(problem.problem)) from None
    columns = {}
    for name, kind in COLUMNS.items():
        column = table[name] if name in table.column_names else None
        if column is None or str(column.type) != _ARROW_TYPES[kind] or column.null_count:
            raise DataFileError(path, wrong.format(f"column {name!r} is {None if column is None else column.type}"))
        columns[name] = column.to_numpy().astype(kind)
    return columns


# Type of a column → its name in Arrow.
_ARROW_TYPES = {"object": "string", "float64": "double", "int64": "int64", "bool": "bool"}


@dataclass(frozen=True)
class Task:
    """A few sequences under one setting. A worker reads their states from the folder.

    Parameters
    ----------
    index
        Index of the task, which names its part of the table.
    folder
        Folder of the evaluation, which every worker must see under this path.
    config
        Configuration of the evaluation.
    setting
        Release setting.
    fold
        Index of the model.
    sequences
        Indices of the sequences.
    """

    index: int
    folder: str
    config: EvaluationConfig
    setting: Setting
    fold: int
    sequences: tuple[int, ...]


def make_tasks(config: EvaluationConfig, folder: Path, folds: IntArray) -> tuple[Task, ...]:
    """Return all tasks of an evaluation, in the order of the table."""
    blocks = []
    block_size = config.task_sequences
    for fold in np.unique(folds).tolist():
        rows = np.flatnonzero(folds == fold).tolist()
        blocks += [(fold, tuple(rows[first : first + block_size])) for first in range(0, len(rows), block_size)]
    pairs = [(setting, *block) for setting in config.settings() for block in blocks]
    return tuple(Task(index, str(folder.absolute()), config, *pair) for index, pair in enumerate(pairs))


def make_generator(seed: int, setting: Setting, sequence: int) -> np.random.Generator:
    """Return the generator of one sequence and setting, which is equal in every process."""
    words = np.frombuffer(hashlib.sha256(setting.label.encode()).digest()[:16], dtype="<u4").tolist()
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, sequence, *words)))


def run_task(task: Task) -> int:
    """Release the sequences of a task, write its part, and return the task's index."""
    Checkpoint(Path(task.folder)).write_part(task.index, StepTable.from_rows(list(_release_sequences(task))).write)
    return task.index


def is_finished(task: Task) -> bool:
    """Return whether the part of a task exists and is complete."""
    part = Checkpoint(Path(task.folder)).get_part_path(task.index)
    try:
        return part.exists() and len(StepTable.read([part])) == len(task.sequences) * task.config.length
    except DataFileError:
        return False


def _release_sequences(task: Task) -> Iterator[dict[str, Any]]:
    with compile_at_first_call():
        for sequence in task.sequences:
            # Each sequence is released twice with the same noise, and only the second time is recorded. The first is a
            # warm-up on the same path: no recorded step includes imports or the loading of compiled loops.
            for is_recorded in (False, True):
                rng = make_generator(task.config.seed, task.setting, sequence)
                rows = list(_release_sequence(task, sequence, rng))
                if is_recorded:
                    yield from rows


def _release_sequence(task: Task, sequence: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Release one sequence with a new engine and without cached results of earlier sequences."""
    constrained_cost.cache_clear()
    model, states, firsts = _load_fold(task.folder, task.config.digest, task.fold)
    setting = task.setting
    slot = int(firsts[sequence])
    releaser = setting.release_settings.engine(model, rng)
    releaser.restart(first=slot + 1)
    if task.config.start == "known":
        releaser.resume(_make_known_belief(model, releaser.measurements, int(states[sequence, 0]), slot), 0, slot=slot)
    for step, state in enumerate(states[sequence, 1:].tolist()):
        yield {**asdict(setting), "sequence": sequence, "step": step + 1, **_release_and_measure(releaser, state)}


def _make_known_belief(model: MarkovModel, measurements: Measurements, state: int, slot: int) -> Belief:
    """Return the point belief in the state, or in the nearest one that the model can leave."""
    candidates = np.flatnonzero(np.diff(model.structure.indptr) > 1)
    if not len(candidates):
        candidates = np.arange(model.size)
    distances = np.linalg.norm(measurements.points[candidates] - measurements.points[state], axis=1)
    return Belief.initial(model, slot, np.eye(1, model.size, int(candidates[int(np.argmin(distances))]))[0])


def _release_and_measure(releaser: Releaser, state: int) -> dict[str, Any]:
    collects = gc.isenabled()
    gc.disable()  # as timeit does: a collection would count the time for objects of earlier steps
    try:
        started = time.thread_time()
        record = releaser.release(state)
        seconds = time.thread_time() - started
    finally:
        if collects:
            gc.enable()
    private = releaser.private_diagnostics(state)
    measurements = releaser.measurements
    true_point = measurements.points[state]
    (x, y) = record.released or (nan, nan)
    offset = measurements.points[private.released_state] - true_point  # non-zero if a surrogate was released
    belief = releaser.belief
    assert belief is not None
    error = private.error
    # The noise has mean zero, so its mean square and the square of the surrogate's offset add up.
    squared = private.expected_error**2 + float(offset @ offset)
    if record.withheld:
        error = private.estimate_error
        squared = private.estimate_error**2
    return {
        "runtime_s": seconds,
        "protection": private.degree_of_protection,
        "error_km": error,
        "squared_error_km2": squared,
        "withheld": record.withheld,
        "spent_epsilon": record.epsilon,
        "estimate_error_km": private.estimate_error,
        "adversary_error_km": belief.infer(measurements.points).compute_sampled_error(true_point),
        "expected_error_km": private.expected_error,
        "num_possible_states": record.num_possible_states,
        "used_surrogate": private.used_surrogate,
        "num_added_edges": len(record.added_edges),
        "repair_is_optimal": record.repair_is_optimal,
        "singleton": record.is_singleton,
        "area_km2": record.hull_volume,
        "constrained_dp_factor": record.constrained_dp_factor,
        "true_x_km": float(true_point[0]),
        "true_y_km": float(true_point[1]),
        "released_x_km": x,
        "released_y_km": y,
        "estimate_x_km": record.estimate[0],
        "estimate_y_km": record.estimate[1],
    }


@lru_cache(maxsize=8)
def _load_fold(folder: str, digest: str, fold: int) -> tuple[MarkovModel, IntArray, IntArray]:  # noqa: ARG001 - part of the key
    """Read the model, true states and first slots of a fold, once per worker."""
    split = Split.load(Path(folder))
    return MarkovModel.load(get_model_path(Path(folder), fold)), split.states, split.firsts


# Name of the table in a run's folder. The table contains true locations.
TABLE = "PRIVATE-steps.parquet"


@dataclass(frozen=True)
class Evaluation:
    """An evaluation with its folder.

    Parameters
    ----------
    config
        Configuration of the evaluation.
    checkpoint
        Its folder.
    split
        Evaluated and training users.
    """

    config: EvaluationConfig
    checkpoint: Checkpoint
    split: Split

    @classmethod
    def open(
        cls,
        config: EvaluationConfig,
        folder: Path,
        load_tracks: Callable[[], Sequence[Trajectory]],
        resume: bool = False,
    ) -> Evaluation:
        """Start an evaluation or resume the one in a folder, which is locked until `close`.

        Parameters
        ----------
        config
            Configuration of the evaluation.
        folder
            New or empty, unless `resume` is true.
        load_tracks
            Reads the data; called only if the folder contains no split.
        resume
            Whether the folder may contain a run with the same configuration, data and version.

        Returns
        -------
        Evaluation
            The evaluation, which has locked the folder.

        Raises
        ------
        OutputError, ConfigurationError
            See `Checkpoint.open` and `split_users`.
        DataFileError
            If data are missing.
        MissingDependencyError
            If pyarrow is not installed.
        """
        import_library("pyarrow", "files")  # otherwise the first part would fail, after all the training
        space = make_space(config)
        check_policies(config, space)  # before the data are read
        digests = {str(path): hash_contents(path) for path in config.data}
        facts = {"configuration_sha256": config.digest, "configuration": config.keys, "data_sha256": digests}
        facts["policy"] = [policy if policy == "utility" else canonicalize_policy(policy) for policy in config.policies]
        if config.model is not None:
            facts["model_sha256"] = hash_contents(config.model)
        begun = (folder / "run.json").exists()

        def split_and_check() -> tuple[Split, tuple[MarkovModel, ...]]:
            split, models = split_users(load_tracks(), config)
            check_policies(config, space, models)
            return split, models

        new_split = None if begun else split_and_check()  # raises before the folder exists
        checkpoint = Checkpoint.open(folder, facts, resume)
        try:
            if not Split.is_saved(folder):
                split, models = new_split or split_and_check()
                split.save(folder, models)
            return cls(config, checkpoint, Split.load(folder))
        except BaseException:  # an interrupt must release the lock, too
            checkpoint.close()
            raise

    def close(self) -> None:
        """Release the lock on the folder."""
        self.checkpoint.close()

    @property
    def clock(self) -> str:
        """A description of the timestep, on which every result depends."""
        step = self.config.step_seconds if self.config.model is None else load_model(self.config.model).step
        return "one step per location" if step is None else f"steps of {step:g} s"

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, finished or not."""
        return make_tasks(self.config, self.checkpoint.folder, self.split.folds)

    @property
    def unfinished(self) -> tuple[Task, ...]:
        """The tasks of which the part is missing or damaged."""
        return tuple(task for task in self.tasks if not is_finished(task))

    def run(self, engine: Engine) -> Iterator[int]:
        """Run the unfinished tasks.

        Parameters
        ----------
        engine
            Workers that run the tasks.

        Returns
        -------
        iterator of int
            The index of each task when it finishes.
        """
        return engine.run(run_task, self.unfinished)

    def table(self) -> StepTable:
        """Read the table of all finished tasks, in their order.

        Returns
        -------
        StepTable
            One row for each step of each task.
        """
        return StepTable.read(self.checkpoint.get_part_path(task.index) for task in self.tasks)

    def write_table(self) -> Path:
        """Write the table of all tasks to the folder.

        Returns
        -------
        Path
            Path of the table.
        """
        path = self.checkpoint.folder / TABLE
        with create_file(path, overwrite=True, private=True) as part:
            self.table().write(part)
        return path


@dataclass(frozen=True)
class EvaluationResult:
    """The result of one run of an evaluation.

    Parameters
    ----------
    evaluation
        The evaluation, with every task finished and its table written.
    tasks_run, tasks_already_finished
        Number of tasks that this run finished, and that were finished before.
    seconds_reading, seconds_releasing
        Seconds for reading and training, and for releasing.
    """

    evaluation: Evaluation
    tasks_run: int
    tasks_already_finished: int
    seconds_reading: float
    seconds_releasing: float


def evaluate(
    config: EvaluationConfig | str | Path,
    folder: str | Path,
    engine: Engine | None = None,
    resume: bool = False,
    watch: ProgressCallback = suppress_progress,
) -> EvaluationResult:
    """Compare policies, mechanisms and budgets on a data set.

    Equivalent to ``dphmm evaluate`` without its report.

    Parameters
    ----------
    config
        Configuration, or the path of its TOML file.
    folder
        New or empty, unless `resume` is true.
    engine
        Workers that run the tasks. Defaults to one process per processor.
    resume
        Whether the folder may contain a run with the same configuration, data and version.
    watch
        Callback that shows the progress.

    Returns
    -------
    EvaluationResult
        The evaluation, with the numbers of tasks and the durations of this run.

    Raises
    ------
    DphmmError
        See `load_config`, `Evaluation.open` and the engine's ``run``.
    """
    loaded = config if isinstance(config, EvaluationConfig) else load_config(config)
    runner = engine or Processes()
    data = loaded.user_data
    started = time.perf_counter()
    with closing(Evaluation.open(loaded, Path(folder), lambda: data.read().trajectories, resume)) as evaluation:
        prepared = time.perf_counter()
        unfinished = evaluation.unfinished
        for _ in watch(runner.run(run_task, unfinished), "Evaluating", len(unfinished)):
            pass
        finished = time.perf_counter()
        evaluation.write_table()
    count = len(unfinished)
    return EvaluationResult(evaluation, count, len(evaluation.tasks) - count, prepared - started, finished - prepared)


@check_arguments
def load_evaluation(folder: str | Path) -> Evaluation:
    """Load a finished evaluation from its folder without reading its data again.

    Parameters
    ----------
    folder
        Folder of the evaluation.

    Returns
    -------
    Evaluation
        The evaluation.

    Raises
    ------
    DataFileError
        If the folder contains no evaluation.
    OutputError
        If parts of the evaluation are missing.
    """
    folder = Path(folder)
    checkpoint = Checkpoint(folder)
    facts = checkpoint.record
    try:
        config = parse_config(facts["configuration"], str(folder))
        split = Split.load(folder)
    except (KeyError, OSError, json.JSONDecodeError):
        raise DataFileError(folder, "contains no evaluation: create one with 'dphmm evaluate'") from None
    evaluation = Evaluation(config, checkpoint, split)
    if evaluation.unfinished:
        raise OutputError(f"{folder}: {len(evaluation.unfinished)} tasks are unfinished: use 'dphmm evaluate --resume'")
    return evaluation
