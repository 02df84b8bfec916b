"""An evaluation from its configuration to its table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dphmm.arguments import checked
from dphmm.errors import DataFileError, OutputError, need
from dphmm.evaluation.config import EvaluationConfig, load_config, parse_config
from dphmm.evaluation.split import Split, split_people
from dphmm.evaluation.steps import StepTable
from dphmm.evaluation.tasks import Task, is_finished, run_task, tasks_of
from dphmm.jobs.checkpoint import Checkpoint, file_hash
from dphmm.jobs.models import load_model
from dphmm.jobs.watch import Watch, unwatched
from dphmm.jobs.workers import Engine, Processes
from dphmm.policy.expression import canonical_policy
from dphmm.space.trajectory import Trajectory
from dphmm.tables import new_file

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
        digests = {str(path): file_hash(path) for path in config.data}
        facts = {"configuration_sha256": config.digest, "configuration": config.keys, "data_sha256": digests}
        facts["policy"] = [one if one == "utility" else canonical_policy(one) for one in config.policies]
        if config.model is not None:
            facts["model_sha256"] = file_hash(config.model)
        begun = (folder / "run.json").exists()
        made = None if begun else split_people(people(), config)  # refuses before there is a folder
        checkpoint = Checkpoint.open(folder, facts, resume)
        try:
            if not Split.is_saved(folder):
                split, models = made or split_people(people(), config)
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
        """Run what is unfinished; yields the number of each task as it is finished."""
        return engine.run(run_task, self.unfinished)

    def table(self) -> StepTable:
        """The table of everything, out of the finished parts, in the order of the tasks."""
        return StepTable.read(self.checkpoint.part(task.index) for task in self.tasks)

    def write_table(self) -> Path:
        """Write the table beside the parts; its path."""
        path = self.checkpoint.folder / TABLE
        with new_file(path, overwrite=True, private=True) as part:
            self.table().write(part)
        return path


@dataclass(frozen=True)
class Evaluated:
    """What one run of an evaluation did.

    Attributes
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
