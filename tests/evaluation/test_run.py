"""Tests that runs are equal however they are divided, killed and resumed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dphmm import ReleaseSettings
from dphmm.errors import ConfigurationError, DataFileError, EngineError, OutputError
from dphmm.evaluation import run
from dphmm.evaluation.config import EvaluationConfig
from dphmm.evaluation.run import COLUMNS, Evaluation, StepTable, load_evaluation, run_task
from dphmm.jobs.batch.run_folder import LOCK, Checkpoint
from dphmm.jobs.batch.workers import DaskCluster, Processes
from dphmm.release.engine import Releaser
from tests.dying import die_always, die_once
from tests.evaluation.conftest import InOrder

pytest.importorskip("pyarrow")


def tables_are_equal(first, second) -> bool:
    """Return whether two tables agree byte for byte except for runtimes."""
    return all(
        first[name].astype(str).tobytes() == second[name].astype(str).tobytes()
        if kind == "object"
        else first[name].tobytes() == second[name].tobytes()
        for name, kind in COLUMNS.items()
        if name != "runtime_s"
    )


def test_table_contains_every_setting_sequence_and_step(plain, plain_table):
    table = plain_table
    assert len(table) == 7 * 4 * 12
    for setting in plain.config.settings():
        rows = table.select_rows(setting)
        assert rows["sequence"].tolist() == np.repeat(np.arange(4), 12).tolist()
        assert rows["step"].tolist() == list(range(1, 13)) * 4


def test_errors_follow_from_positions_in_table(plain_table):
    table = plain_table
    for column, place in (("error_km", "released"), ("estimate_error_km", "estimate")):
        away = np.hypot(table["true_x_km"] - table[f"{place}_x_km"], table["true_y_km"] - table[f"{place}_y_km"])
        np.testing.assert_allclose(table[column], away, rtol=1e-9, atol=1e-12)
    assert (table["adversary_error_km"] >= table["estimate_error_km"] - 1e-12).all()  # Jensen
    assert (table["protection"][~table["singleton"]] >= 2).all()


@pytest.mark.slow
def test_two_processes_give_same_table(plain_table, config, trajectories, tmp_path):
    other = Evaluation.open(config, tmp_path / "run", lambda: trajectories)
    list(other.run(Processes(2)))
    assert tables_are_equal(plain_table, other.table())


@pytest.mark.slow
def test_sequence_does_not_depend_on_other_sequences(plain_table, config, trajectories, tmp_path):
    lonely = EvaluationConfig.model_validate(config.model_dump() | {"task_sequences": 1, "epsilons": (1.0,)})
    other = Evaluation.open(lonely, tmp_path / "run", lambda: trajectories)
    list(other.run(InOrder()))
    table = other.table()
    for setting in lonely.settings():
        assert tables_are_equal(plain_table.select_rows(setting), table.select_rows(setting))


def _count_calls(monkeypatch, rows) -> list[int]:
    """Return the number of Python and C function calls of each release.

    The processor time follows this number.
    """
    counts: list[int] = []
    release = Releaser.release

    def count_calls(releaser, state):
        calls = 0

        def count(_frame, event, _argument):
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            return release(releaser, state)
        finally:
            sys.setprofile(None)
            counts.append(calls)

    with monkeypatch.context() as patched:
        patched.setattr(Releaser, "release", count_calls)
        for _ in rows():
            pass
    return counts


@pytest.mark.slow
def test_work_of_sequence_does_not_depend_on_earlier_ones(plain, monkeypatch):
    """Each recorded step makes equally many calls with and without an earlier sequence.

    One engine shared by all sequences makes fewer calls, because it has cached plans and checks.
    """
    length = plain.config.length
    for task in plain.tasks:
        both = _count_calls(monkeypatch, lambda task=task: run._release_sequences(task))
        alone = _count_calls(
            monkeypatch, lambda task=task: run._release_sequences(replace(task, sequences=task.sequences[1:]))
        )
        assert both[-length:] == alone[-length:]
    shared = task.setting.release_settings.engine(run._load_fold(task.folder, task.config.digest, task.fold)[0])
    monkeypatch.setattr(ReleaseSettings, "engine", lambda _settings, _model, rng: shared.spawn(rng))
    both = _count_calls(monkeypatch, lambda: run._release_sequences(task))
    assert both[-length:] != alone[-length:]


_IMPORTS_OF_STEPS = """
import sys
from pathlib import Path
from dphmm.evaluation import run
from dphmm.evaluation.run import load_evaluation
from dphmm.release.engine import Releaser

release, imported, known = Releaser.release, [], set(sys.modules)

def counted(releaser, state):
    try:
        return release(releaser, state)
    finally:
        imported.append(len(set(sys.modules) - known))
        known.update(sys.modules)

Releaser.release = counted
task = load_evaluation(Path(sys.argv[1])).tasks[0]
list(run._release_sequences(task))
length = task.config.length
blocks = [sum(imported[start : start + length]) for start in range(0, len(imported), length)]
print(sum(blocks[0::2]), sum(blocks[1::2]))
"""


@pytest.mark.slow
def test_measured_steps_import_no_modules(plain):
    """In a new process the warm-up of a sequence, or its engine, imports all modules.

    Therefore no recorded step imports one.
    """
    line = [sys.executable, "-c", _IMPORTS_OF_STEPS, str(plain.checkpoint.folder)]
    warm_up, measured = map(int, subprocess.run(line, capture_output=True, text=True, check=True).stdout.split())
    assert warm_up > 0
    assert measured == 0


@pytest.mark.slow
def test_different_seeds_give_different_tables(plain_table, config, trajectories, tmp_path):
    seeded = EvaluationConfig.model_validate(config.model_dump() | {"seed": 8})
    other = Evaluation.open(seeded, tmp_path / "run", lambda: trajectories)
    list(other.run(InOrder()))
    assert not tables_are_equal(plain_table, other.table())


@pytest.mark.slow
def test_resuming_keeps_finished_tasks(config, trajectories, tmp_path, plain_table):
    evaluation = Evaluation.open(config, tmp_path / "run", lambda: trajectories)
    for task in evaluation.tasks[:4]:
        run_task(task)
    evaluation.close()
    written = {part: part.stat().st_mtime_ns for part in (tmp_path / "run" / "parts").iterdir()}

    def refuse_reading():
        raise AssertionError("the data were read again")

    again = Evaluation.open(config, tmp_path / "run", refuse_reading, resume=True)
    assert [task.index for task in again.unfinished] == list(range(4, 14))
    list(again.run(InOrder()))
    assert all(part.stat().st_mtime_ns == before for part, before in written.items())
    assert tables_are_equal(plain_table, again.table())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_process_loses_only_its_tasks(tmp_path):
    done = list(Processes(2).run(die_once, [(str(tmp_path / "died"), index) for index in range(6)]))
    assert sorted(done) == list(range(6))
    assert (tmp_path / "died").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_repeatedly_dying_processes_end_run():
    with pytest.raises(EngineError, match="died 4 times"):
        list(Processes(2).run(die_always, [1]))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_command_resumes_to_same_table(plain_table, config, tmp_path):
    toml = tmp_path / "job.toml"
    keys = {name: value for name, value in config.model_dump().items() if value not in (None, {}, ())}
    toml.write_text("".join(f"{name} = {_format_toml(value)}\n" for name, value in keys.items()))
    line = [sys.executable, "-m", "dphmm", "evaluate", str(toml), "-o", str(tmp_path / "run"), "--workers", "1"]
    running = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    parts = tmp_path / "run" / "parts"
    until = time.monotonic() + 120
    while len(list(parts.glob("PRIVATE-*.parquet"))) < 2 and running.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    finished = len(list(parts.glob("PRIVATE-*.parquet")))
    assert finished >= 2
    again = subprocess.run([*line, "--resume", "--no-pictures", "--json"], capture_output=True, text=True, check=True)
    assert f'"num_tasks_already_finished": {finished}' in again.stdout
    assert tables_are_equal(plain_table, load_evaluation(tmp_path / "run").table())


def _format_toml(value) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_format_toml(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def test_folder_in_use_raises_and_is_unchanged(plain, config, trajectories, tmp_path):
    folder = plain.checkpoint.folder
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(OutputError, match="--resume"):
        Evaluation.open(config, folder, lambda: trajectories)
    other = EvaluationConfig.model_validate(config.model_dump() | {"epsilon": 2.0})
    with pytest.raises(ConfigurationError, match="differs in its configuration"):
        Evaluation.open(other, folder, lambda: trajectories, resume=True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="other files"):
        Evaluation.open(config, tmp_path, lambda: trajectories)


def test_folder_of_other_version_or_data_raises(config, trajectories, tmp_path, monkeypatch):
    Evaluation.open(config, tmp_path / "run", lambda: trajectories)
    with monkeypatch.context() as changed:
        changed.setattr("dphmm.__version__", "99")
        with pytest.raises(ConfigurationError, match="differs in its version"):
            Evaluation.open(config, tmp_path / "run", lambda: trajectories, resume=True)
    monkeypatch.setattr("dphmm.evaluation.run.hash_contents", lambda path: "0")
    with pytest.raises(ConfigurationError, match="differs in its data"):
        Evaluation.open(config, tmp_path / "run", lambda: trajectories, resume=True)


def test_missing_or_unfinished_folder_has_no_report(config, trajectories, tmp_path):
    with pytest.raises(DataFileError):
        load_evaluation(tmp_path)
    Evaluation.open(config, tmp_path / "run", lambda: trajectories)
    with pytest.raises(OutputError, match="14 tasks"):
        load_evaluation(tmp_path / "run")


def test_damaged_part_raises_with_name(plain, config, trajectories, tmp_path):
    evaluation = Evaluation.open(config, tmp_path / "run", lambda: trajectories)
    for task in evaluation.tasks:
        evaluation.checkpoint.get_part_path(task.index).write_bytes(b"PAR1")
    with pytest.raises(DataFileError, match=r"PRIVATE-000000\.parquet"):
        evaluation.table()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["empty", "cut off", "altered", "of fewer steps"])
def test_damaged_part_is_recomputed(plain, plain_table, config, trajectories, tmp_path, how):
    shutil.copytree(plain.checkpoint.folder, tmp_path / "run", ignore=shutil.ignore_patterns(LOCK))
    part = Checkpoint(tmp_path / "run").get_part_path(3)
    whole = part.read_bytes()
    if how == "of fewer steps":
        table = StepTable.read([part])
        StepTable({name: values[:-1] for name, values in table.columns.items()}).write(part)
    else:
        changed = whole[:1999] + bytes([whole[1999] ^ 1]) + whole[2000:]
        part.write_bytes({"empty": b"", "cut off": whole[:-9], "altered": changed}[how])
    again = Evaluation.open(config, tmp_path / "run", lambda: trajectories, resume=True)
    assert [task.index for task in again.unfinished] == [3]
    list(again.run(InOrder()))
    assert tables_are_equal(plain_table, again.table())


def test_locked_run_raises_with_process(config, trajectories, tmp_path):
    running = Evaluation.open(config, tmp_path / "run", lambda: trajectories)
    with pytest.raises(OutputError, match=f"process {os.getpid()}"):
        Evaluation.open(config, tmp_path / "run", lambda: trajectories, resume=True)
    running.close()
    Evaluation.open(config, tmp_path / "run", lambda: trajectories, resume=True).close()


def test_fewer_than_one_worker_raises():
    with pytest.raises(ConfigurationError, match=r"workers .*\b0\b"):
        Processes(0)


@pytest.mark.slow
def test_unreachable_scheduler_raises_in_one_line():
    pytest.importorskip("distributed")
    with pytest.raises(EngineError, match="cannot be reached") as caught:
        list(DaskCluster("tcp://127.0.0.1:9", timeout_seconds=0.3).run(die_always, [1]))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_gives_same_table_with_killed_worker(plain_table, config, trajectories, tmp_path):
    distributed = pytest.importorskip("distributed")
    evaluation = Evaluation.open(config, tmp_path / "run", lambda: trajectories)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, processes=True, protocol="tcp://"
    ) as cluster:
        results = evaluation.run(DaskCluster(cluster.scheduler_address))
        next(results)
        victim = next(iter(cluster.workers.values())).pid
        os.kill(victim, signal.SIGKILL)
        assert len(list(results)) == 13
    assert tables_are_equal(plain_table, evaluation.table())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_threads_of_dask_worker_give_same_table(plain_table, config, trajectories, tmp_path):
    """Four tasks run in parallel in this process, with two BLAS threads."""
    distributed = pytest.importorskip("distributed")
    evaluation = Evaluation.open(config, tmp_path / "run", lambda: trajectories)
    with (
        threadpool_limits(2, user_api="blas"),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=4, dashboard_address=None, processes=False, protocol="inproc://"
        ) as cluster,
    ):
        assert len(list(evaluation.run(DaskCluster(cluster.scheduler_address)))) == 14
    assert tables_are_equal(plain_table, evaluation.table())
