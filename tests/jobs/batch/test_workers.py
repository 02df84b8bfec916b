"""Tests of workers: they end with their parent, and a folder belongs to one run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import cycle
from pathlib import Path

import pytest

from dphmm.errors import OutputError
from dphmm.jobs.batch.run_folder import LOCK, FolderLock
from dphmm.jobs.batch.workers import DaskCluster, Engine, Processes, _can_fork, start_worker_pool
from dphmm.tables.source import get_max_unpacked, max_unpacked
from tests.dying import SharedFunction

RUN = """
import sys, threading
from pathlib import Path
from dphmm.jobs.batch.workers import Processes, _can_fork
from tests.jobs.batch.test_workers import hold

def run(folder):
    list(Processes(2).run(hold, [folder]))

if __name__ == "__main__":
    for folder in sys.argv[2:]:  # forking is only used from the main thread
        threading.Thread(target=run, args=[folder], daemon=True).start()
    Path(sys.argv[1] + ".copied").write_text(str(_can_fork()))
    run(sys.argv[1])
"""


def hold(folder: str) -> None:
    """Work forever, and lock a folder while the process lives."""
    lock = FolderLock(Path(folder))
    time.sleep(600)
    lock.release()


def is_locked(folder: Path) -> bool:
    try:
        FolderLock(folder).release()
    except OutputError:
        return True
    return False


def wait_until(true, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("names", [("alone",), ("main", "other")], ids=["one thread", "two threads"])
def test_workers_end_with_killed_parent(tmp_path, names):
    """A parent with one thread forks its workers. With another thread it starts new processes."""
    script, folders = tmp_path / "run.py", [tmp_path / name for name in names]
    script.write_text(RUN)
    for folder in folders:
        folder.mkdir()
    parent = subprocess.Popen(
        [sys.executable, str(script), *map(str, folders)], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        # The file has content once it is locked. An earlier probe could take the lock before the worker does.
        locks = [folder / LOCK for folder in folders]
        assert wait_until(lambda: all(lock.exists() and lock.stat().st_size for lock in locks))
        assert all(map(is_locked, folders))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert wait_until(lambda: not any(map(is_locked, folders))), "workers outlive their parent"
    copied = sys.platform == "linux" and len(names) == 1
    assert (tmp_path / f"{names[0]}.copied").read_text() == str(copied)


def test_locked_folder_raises_with_process(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(OutputError, match=rf"process {os.getpid()} on \S+ since 20.*resume") as caught:
        FolderLock(tmp_path)
    assert "\n" not in str(caught.value)
    lock.release()
    FolderLock(tmp_path).release()


def test_lock_is_released_if_garbage_collected(tmp_path):
    lock = FolderLock(tmp_path)
    del lock
    assert not is_locked(tmp_path)


def test_unwritable_folder_raises(tmp_path):
    with pytest.raises(OutputError, match="cannot be written"):
        FolderLock(tmp_path / "absent")


def test_process_with_other_threads_is_not_forked():
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert not _can_fork()
    finally:
        done.set()
        other.join()


def require_odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_work_is_created_lazily_and_its_error_is_raised(workers):
    created, done = [], []

    def iterate_numbers():
        for number in (*range(1, 101, 2), 2, *range(101, 1001, 2)):
            created.append(number)
            yield number

    def consume():
        for group in Processes(workers).run_in_groups(require_odd, iterate_numbers()):
            done.extend(group)
            assert len(created) - len(done) <= 8

    with pytest.raises(ValueError, match="2 is even"):
        consume()
    assert set(done) <= set(created)
    assert len(done) >= 50 - 8


def check_shared_function(engine, folder: Path) -> None:
    """Forty tasks on at most two workers, each of which receives the function once."""
    results = list(engine.run(SharedFunction(str(folder)), range(40)))
    assert sorted(task for _, task in results) == list(range(40))
    notes = {int(path.name): path.read_text().splitlines() for path in folder.iterdir()}
    assert {pid for pid, _ in results} <= notes.keys() - {os.getpid()}
    assert all(lines == ["received"] for lines in notes.values()), notes


@pytest.mark.slow
def test_results_in_order_of_tasks_wait_for_earlier_ones():
    class Reversed(Engine):
        """Finishes tasks in groups of three, the last first."""

        def run_in_groups(self, function, work):
            tasks = list(work)
            for start in range(0, len(tasks), 3):
                yield [function(task) for task in tasks[start : start + 3][::-1]]

    tasks = list("abcdefgh")
    assert list(Reversed().run(str.upper, tasks)) == list("CBAFEDHG")
    assert list(Reversed().run_in_order(str.upper, tasks)) == list("ABCDEFGH")
    assert list(Processes(1).run_in_order(str.upper, [])) == []
    assert next(Processes(1).run_in_order(str.upper, cycle(tasks))) == "A"


@pytest.mark.slow
def test_function_is_sent_to_each_process_once(tmp_path):
    check_shared_function(Processes(2), tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_function_is_sent_to_each_dask_worker_once(tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, dashboard_address=None, processes=True, protocol="tcp://"
    ) as cluster:
        check_shared_function(DaskCluster(cluster.scheduler_address), tmp_path)


@pytest.mark.slow
def test_workers_inherit_unpacking_limit():
    with max_unpacked("5 MB"), start_worker_pool(1) as pool:
        assert pool.submit(get_max_unpacked).result() == 5 << 20


# A script as a user writes it: it releases on its first level, without a guard.
SCRIPT = """
import os, sys
os.chdir({root!r})
with open(sys.argv[1] + "/runs", "a") as runs:
    print(os.getpid(), file=runs)
{start}
from dphmm import ReleaseSettings
from dphmm.jobs import Data, batch, learn, region, release

folder, town, users = sys.argv[1], "data/sample/geolife", ("000", "001")
space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
model = learn(Data((town,), exclude_users=users), space, 300, output=folder + "/m.npz").model
settings = ReleaseSettings(policy="utility:1km", epsilon=1)
release(Data((town,), users=users[:1]), model, settings, folder + "/releases-" + str(os.getpid()) + ".csv")
print(len(batch(Data((town,), users=users), folder + "/out", folder + "/m.npz", settings, kind="csv", workers=2).done))
"""
STARTS = {
    "no thread": "",
    # Threads that Python does not count. A counted one is tested without a script, above.
    "native thread": "import ctypes\nlibc = ctypes.CDLL(None)\n"
    "libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)",
    "polars": "import polars\nprint(polars.DataFrame({'a': range(10**5)}).lazy().group_by('a').len().collect().height)",
}


def run_script(folder: Path, text: str) -> tuple[str, int]:
    """Run a script. Return its last output or error, and the number of times that it ran."""
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, str(script), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
    return lines[-1], len((folder / "runs").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_unguarded_script_runs_once(tmp_path, start):
    if start == "polars":
        pytest.importorskip("polars")
    if start == "native thread" and sys.platform != "linux":
        pytest.skip("needs the threads of Linux")
    text = SCRIPT.format(root=str(Path(__file__).parents[3]), start=STARTS[start])
    assert run_script(tmp_path, text) == ("2", 1)
    assert len(list(tmp_path.glob("releases-*.csv"))) == 1


@pytest.mark.slow
def test_task_of_script_raises_if_workers_do_not_run_it(tmp_path):
    text = """
import sys, threading
with open(sys.argv[1] + "/runs", "a") as runs:
    print("run", file=runs)
threading.Thread(target=threading.Event().wait, daemon=True).start()
from dphmm.jobs.batch.workers import Processes

def double(number):
    return 2 * number

list(Processes(2).run(double, [1, 2]))
"""
    problem, runs = run_script(tmp_path, text)
    assert "EngineError: tasks must be defined in a module, not in the script" in problem
    assert runs == 1


@pytest.mark.slow
def test_standard_processes_of_caller_are_unchanged(tmp_path):
    """The caller's own processes still import its script."""
    text = """
import multiprocessing, sys
from dphmm.processes import ScriptlessContext

with open(sys.argv[1] + "/runs", "a") as runs:
    print("run", file=runs)
if __name__ == "__main__":
    codes = []
    for context in (ScriptlessContext(), multiprocessing.get_context("spawn")):
        worker = context.Process(target=int)
        worker.start()
        worker.join()
        codes.append(worker.exitcode)
    print(codes)
"""
    assert run_script(tmp_path, text) == ("[0, 0]", 2)
