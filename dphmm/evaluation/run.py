"""An evaluation from its configuration to its table of one row per setting, sequence and time step.

The work falls into tasks, some sequences under one setting each, which processes share and a later run takes up.
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

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.compilation import compiled_at_first_call
from dphmm.errors import DataFileError, OutputError, need
from dphmm.evaluation.config import EvaluationConfig, Setting, load_config, parse_config
from dphmm.evaluation.split import Split, check_policies, model_file, space_of, split_people
from dphmm.geometry.measurements import Measurements
from dphmm.jobs.models import load_model
from dphmm.jobs.progress import Watch, unwatched
from dphmm.jobs.run_folder import Checkpoint, file_hash
from dphmm.jobs.workers import Engine, Processes
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.policy.expression import canonical_policy
from dphmm.release.engine import Releaser
from dphmm.release.ledger import constrained_cost
from dphmm.space.trajectory import Trajectory
from dphmm.tables import new_file, read_document
from dphmm.tables.binary_files import read_parquet, write_parquet

COLUMNS: Mapping[str, str] = {
    **{one.name: "float64" if one.type == "float" else "object" for one in fields(Setting)},
    "sequence": "int64",
    "step": "int64",
    "runtime_s": "float64",
    "protection": "int64",
    "error_km": "float64",
    "squared_error_km2": "float64",
    "estimate_error_km": "float64",
    "adversary_error_km": "float64",
    "expected_error_km": "float64",
    "possible": "int64",
    "stood_in": "bool",
    "withheld": "bool",
    "spent_epsilon": "float64",
    "edges_added": "int64",
    "certified": "bool",
    "already_known": "bool",
    "area_km2": "float64",
    "constrained_factor": "float64",
    "true_x_km": "float64",
    "true_y_km": "float64",
    "released_x_km": "float64",
    "released_y_km": "float64",
    "estimate_x_km": "float64",
    "estimate_y_km": "float64",
}
"""Column → its type. It holds true places: the table is for the owner of the data.

``epsilon`` is the setting's, ``spent_epsilon`` what the release cost: nothing where a schedule withheld it, and both
errors of the release are those of the prediction then. ``protection`` is the degree of protection of the state that
was released; ``error_km`` the distance of the one release that was drawn; ``squared_error_km2`` the mean of its
square over all that could have been, in closed form (the square of the paper's Error, Equation 3, given the releases
before); ``adversary_error_km`` the expected distance from the truth of a place drawn from the posterior;
``runtime_s`` the processor time of a step (thread time: a busy machine does not lengthen it), after a warm-up by the
same sequence and with a new engine for each, so that the first step includes what an engine sets up. The other columns
follow from the seeds.
"""


@dataclass(frozen=True, eq=False)
class StepTable:
    """Columns of equal length, those of `COLUMNS`.

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

    def where(self, setting: Setting) -> StepTable:
        """The rows of a setting, in the order of sequences and steps."""
        chosen: BoolArray = np.ones(len(self), dtype=np.bool_)
        for name, value in asdict(setting).items():
            chosen &= self.columns[name] == value
        return StepTable({name: array[chosen] for name, array in self.columns.items()})

    def matrix(self, name: str) -> FloatArray:
        """A column of numbers as ``(sequences, steps)``; for the rows of one setting."""
        values = self.columns[name].astype(np.float64)
        return np.asarray(values.reshape(len(np.unique(self.columns["sequence"])), -1))

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> StepTable:
        """A table of rows: name → value."""
        return cls({name: np.array([row[name] for row in rows], kind) for name, kind in COLUMNS.items()})

    def write(self, path: Path) -> None:
        """Write as Parquet.

        Raises
        ------
        MissingDependencyError
            Without pyarrow.
        """
        write_parquet(path, {name: self.columns[name] for name in COLUMNS}, write_page_checksum=True)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> StepTable:
        """The rows of several files of `write`, one after another.

        Raises
        ------
        DataFileError
            When a file is absent, damaged or something else.
        MissingDependencyError
            Without pyarrow.
        """
        parts = [_columns(path) for path in paths]
        return cls({name: np.concatenate([part[name] for part in parts]) for name in COLUMNS})


def _columns(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The columns of a part, each of its type."""
    wrong = "holds no steps of an evaluation ({}); delete it and resume"
    try:
        table = read_parquet(read_document(path), lambda names: [name for name in COLUMNS if name in names])
    except DataFileError as problem:
        raise DataFileError(path, wrong.format(problem.problem)) from None
    found = {}
    for name, kind in COLUMNS.items():
        column = table[name] if name in table.column_names else None
        if column is None or str(column.type) != _STORED[kind] or column.null_count:
            raise DataFileError(path, wrong.format(f"column {name!r} is {None if column is None else column.type}"))
        found[name] = column.to_numpy().astype(kind)
    return found


_STORED = {"object": "string", "float64": "double", "int64": "int64", "bool": "bool"}
"""The type of a column → what Arrow calls it."""


@dataclass(frozen=True)
class Task:
    """What a worker is told: a folder, a setting, which sequences. It finds whose they are in the folder.

    Parameters
    ----------
    index
        The number of the task, which names its part of the table.
    folder
        The evaluation's folder, which every worker must see under this path.
    config
        What is compared.
    setting
        How to release.
    fold
        The number of the model.
    sequences
        The numbers of the sequences.
    """

    index: int
    folder: str
    config: EvaluationConfig
    setting: Setting
    fold: int
    sequences: tuple[int, ...]


def tasks_of(config: EvaluationConfig, folder: Path, folds: IntArray) -> tuple[Task, ...]:
    """All tasks of an evaluation of sequences of these folds, in the order of the table."""
    blocks, most = [], config.task_sequences
    for fold in np.unique(folds).tolist():
        rows = np.flatnonzero(folds == fold).tolist()
        blocks += [(fold, tuple(rows[first : first + most])) for first in range(0, len(rows), most)]
    pairs = [(setting, *block) for setting in config.settings() for block in blocks]
    return tuple(Task(index, str(folder.absolute()), config, *pair) for index, pair in enumerate(pairs))


def randomness_of(seed: int, setting: Setting, sequence: int) -> np.random.Generator:
    """The noise of one sequence under one setting: a stream of its own, the same in every process."""
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
        return part.exists() and len(StepTable.read([part])) == len(task.sequences) * task.config.length
    except DataFileError:
        return False


def _rows(task: Task) -> Iterator[dict[str, Any]]:
    with compiled_at_first_call():
        for sequence in task.sequences:
            # Each sequence is released twice with the same noise, and recorded the second time: the first time takes
            # the same path, so that no recorded step includes imports or the loading of compiled loops.
            for is_recorded in (False, True):
                rng = randomness_of(task.config.seed, task.setting, sequence)
                rows = list(_sequence_rows(task, sequence, rng))
                if is_recorded:
                    yield from rows


def _sequence_rows(task: Task, sequence: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Release one sequence without anything that earlier sequences left in caches: with a new engine, above all."""
    constrained_cost.cache_clear()
    model, states, firsts = _common(task.folder, task.config.digest, task.fold)
    setting, slot = task.setting, int(firsts[sequence])
    releaser = setting.release_settings.engine(model, rng)
    releaser.restart(first=slot + 1)
    if task.config.start == "known":
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
    collects = gc.isenabled()
    gc.disable()  # as timeit does: a collection takes time for objects of earlier steps
    try:
        started = time.thread_time()
        record = releaser.release(state)
        seconds = time.thread_time() - started
    finally:
        if collects:
            gc.enable()
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


TABLE = "PRIVATE-steps.parquet"
"""The name of the table in a run's folder; it holds true places."""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation in its folder.

    Parameters
    ----------
    config
        What is compared.
    checkpoint
        The folder.
    split
        Who is evaluated.
    """

    config: EvaluationConfig
    checkpoint: Checkpoint
    split: Split

    @classmethod
    def open(
        cls, config: EvaluationConfig, folder: Path, people: Callable[[], Sequence[Trajectory]], resume: bool = False
    ) -> Evaluation:
        """Begin an evaluation, or take up the one that the folder holds; the folder is this one's until `close`.

        Parameters
        ----------
        config
            What to compare.
        folder
            New or empty, unless `resume` is true.
        people
            Reads the data; called only where the split was not made before.
        resume
            Whether the folder may hold a run of the same configuration, data and version.

        Raises
        ------
        OutputError, ConfigurationError
            As `Checkpoint.open` and `split_people` say.
        DataFileError
            When data are missing.
        MissingDependencyError
            Without pyarrow.
        """
        need("pyarrow", "files")  # refuses at once what would fail for want of it at the first part
        space = space_of(config)
        check_policies(config, space)  # before the data are read
        digests = {str(path): file_hash(path) for path in config.data}
        facts = {"configuration_sha256": config.digest, "configuration": config.keys, "data_sha256": digests}
        facts["policy"] = [one if one == "utility" else canonical_policy(one) for one in config.policies]
        if config.model is not None:
            facts["model_sha256"] = file_hash(config.model)
        begun = (folder / "run.json").exists()

        def split_and_check() -> tuple[Split, tuple[MarkovModel, ...]]:
            split, models = split_people(people(), config)
            check_policies(config, space, models)
            return split, models

        made = None if begun else split_and_check()  # refuses before there is a folder
        checkpoint = Checkpoint.open(folder, facts, resume)
        try:
            if not Split.is_saved(folder):
                split, models = made or split_and_check()
                split.save(folder, models)
            return cls(config, checkpoint, Split.load(folder))
        except BaseException:
            checkpoint.close()
            raise

    def close(self) -> None:
        """Let other runs take the folder up."""
        self.checkpoint.close()

    @property
    def clock(self) -> str:
        """What a time step is, in words: every figure depends on it."""
        step = self.config.step_seconds if self.config.model is None else load_model(self.config.model).step
        return "each place a step" if step is None else f"steps of {step:g} s"

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, finished or not."""
        return tasks_of(self.config, self.checkpoint.folder, self.split.folds)

    @property
    def unfinished(self) -> tuple[Task, ...]:
        """The tasks that are still to be run: those without a part, or with one that is damaged."""
        return tuple(task for task in self.tasks if not is_finished(task))

    def run(self, engine: Engine) -> Iterator[int]:
        """Run what is unfinished; yields the number of each task as it is finished.

        Parameters
        ----------
        engine
            Where the tasks are worked on.

        Returns
        -------
        iterator of int
            The number of each task, as it is finished.
        """
        return engine.run(run_task, self.unfinished)

    def table(self) -> StepTable:
        """The table of everything, out of the finished parts, in the order of the tasks.

        Returns
        -------
        StepTable
            A row for each step of each task.
        """
        return StepTable.read(self.checkpoint.part(task.index) for task in self.tasks)

    def write_table(self) -> Path:
        """Write the table beside the parts; its path.

        Returns
        -------
        Path
            Where it is.
        """
        path = self.checkpoint.folder / TABLE
        with new_file(path, overwrite=True, private=True) as part:
            self.table().write(part)
        return path


@dataclass(frozen=True)
class Evaluated:
    """What one run of an evaluation did.

    Parameters
    ----------
    evaluation
        It, with every task finished and its table written.
    tasks_run, tasks_found_finished
        How many tasks this run worked through, and how many were finished before.
    seconds_reading, seconds_releasing
        How long it read and learned, and how long it released.
    """

    evaluation: Evaluation
    tasks_run: int
    tasks_found_finished: int
    seconds_reading: float
    seconds_releasing: float


def evaluate(
    config: EvaluationConfig | str | Path,
    folder: str | Path,
    engine: Engine | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
) -> Evaluated:
    """Compare policies, mechanisms and budgets on a data set, as ``dphmm evaluate`` does but for its report.

    Parameters
    ----------
    config
        What to compare, or the TOML file that says it.
    folder
        New or empty, unless `resume` is true.
    engine
        Who does the work; left out, one process per processor.
    resume
        Whether the folder may hold a run of the same configuration, data and version.
    watch
        Who is shown the progress.

    Returns
    -------
    Evaluated
        The evaluation, and what this run did.

    Raises
    ------
    DphmmError
        As `load_config`, `Evaluation.open` and the engine's ``run``.
    """
    what = config if isinstance(config, EvaluationConfig) else load_config(config)
    runner = engine or Processes()
    data = what.people
    started = time.perf_counter()
    with closing(Evaluation.open(what, Path(folder), lambda: data.read().trajectories, resume)) as evaluation:
        prepared = time.perf_counter()
        left = evaluation.unfinished
        for _ in watch(runner.run(run_task, left), "Evaluating", len(left)):
            pass
        finished = time.perf_counter()
        evaluation.write_table()
    count = len(left)
    return Evaluated(evaluation, count, len(evaluation.tasks) - count, prepared - started, finished - prepared)


@checked
def finished_evaluation(folder: str | Path) -> Evaluation:
    """The evaluation that a folder holds, without its data being read again.

    Parameters
    ----------
    folder
        The folder of an evaluation.

    Returns
    -------
    Evaluation
        It.

    Raises
    ------
    DataFileError
        When there is none.
    OutputError
        When parts of it are missing.
    """
    folder = Path(folder)
    checkpoint = Checkpoint(folder)
    facts = checkpoint.facts
    try:
        config = parse_config(facts["configuration"], str(folder))
        split = Split.load(folder)
    except (KeyError, OSError, json.JSONDecodeError):
        raise DataFileError(folder, "holds no evaluation; make one with: dphmm evaluate") from None
    found = Evaluation(config, checkpoint, split)
    if found.unfinished:
        raise OutputError(f"{folder}: {len(found.unfinished)} tasks are unfinished; go on with --resume")
    return found
