"""Workers end with whoever began them, and a folder belongs to one run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dphmm.errors import OutputError
from dphmm.jobs.run_folder import LOCK, FolderLock
from dphmm.jobs.workers import Processes, _may_be_copied, worker_pool
from dphmm.tables.source import max_unpacked, unpacked_at_most

RUN = """
import sys, threading
from pathlib import Path
from dphmm.jobs.workers import Processes, _may_be_copied
from tests.jobs.test_workers import hold

def run(folder):
    list(Processes(2).run(hold, [folder]))

if __name__ == "__main__":
    for folder in sys.argv[2:]:  # Linux's own way is for main threads alone
        threading.Thread(target=run, args=[folder], daemon=True).start()
    Path(sys.argv[1] + ".copied").write_text(str(_may_be_copied()))
    run(sys.argv[1])
"""


def hold(folder: str) -> None:
    """A piece of work that takes forever, and holds a folder for as long as its process lives."""
    lock = FolderLock(Path(folder))
    time.sleep(600)
    lock.release()


def held(folder: Path) -> bool:
    try:
        FolderLock(folder).release()
    except OutputError:
        return True
    return False


def until(true, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("names", [("alone",), ("main", "other")])
def test_workers_end_with_their_killed_parent(tmp_path, names):
    """Copies of a parent with one thread, and, beside another thread, processes of their own."""
    script, folders = tmp_path / "run.py", [tmp_path / name for name in names]
    script.write_text(RUN)
    for folder in folders:
        folder.mkdir()
    parent = subprocess.Popen(
        [sys.executable, str(script), *map(str, folders)], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        assert until(lambda: all((folder / LOCK).exists() and held(folder) for folder in folders))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert until(lambda: not any(map(held, folders)), seconds=5), "workers outlive their parent"
    copied = sys.platform == "linux" and len(names) == 1
    assert (tmp_path / f"{names[0]}.copied").read_text() == str(copied)


def test_a_folder_belongs_to_one_run_and_the_holder_is_named(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(OutputError, match=rf"is held by process {os.getpid()} on \S+ since 20.*resume") as caught:
        FolderLock(tmp_path)
    assert "\n" not in str(caught.value)
    lock.release()
    FolderLock(tmp_path).release()


def test_a_lock_that_nobody_holds_on_to_is_gone(tmp_path):
    lock = FolderLock(tmp_path)
    del lock
    assert not held(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(OutputError, match="cannot be written"):
        FolderLock(tmp_path / "absent")


def test_a_process_with_another_thread_is_not_copied():
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert not _may_be_copied()
    finally:
        done.set()
        other.join()


def odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_work_is_made_as_it_is_asked_for_and_an_error_of_it_comes_out(workers):
    made, done = [], []

    def numbers():
        for number in (*range(1, 101, 2), 2, *range(101, 1001, 2)):
            made.append(number)
            yield number

    def gone_through():
        for group in Processes(workers).groups(odd, numbers()):
            done.extend(group)
            assert len(made) - len(done) <= 8

    with pytest.raises(ValueError, match="2 is even"):
        gone_through()
    assert set(done) <= set(made)
    assert len(done) >= 50 - 8


def test_workers_may_unpack_what_their_parent_may():
    with max_unpacked("5 MB"), worker_pool(1) as pool:
        assert pool.submit(unpacked_at_most).result() == 5 << 20
