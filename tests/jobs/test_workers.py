"""Workers end with whoever began them, and a folder belongs to one run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dphmm.errors import OutputError
from dphmm.jobs.lock import LOCK, FolderLock
from dphmm.jobs.workers import worker_pool
from dphmm.tables.unpacking import max_unpacked, unpacked_at_most

RUN = """
import sys, threading
from pathlib import Path
from dphmm.jobs.workers import Processes
from tests.jobs.test_workers import hold

def run(folder):
    list(Processes(2).stream(hold, [folder]))

if __name__ == "__main__":
    other = threading.Thread(target=run, args=[sys.argv[2]], daemon=True)  # Linux's own way is for main threads alone
    other.start()
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
def test_workers_end_with_their_killed_parent(tmp_path):
    script, folders = tmp_path / "run.py", [tmp_path / name for name in ("main", "other")]
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


def test_workers_may_unpack_what_their_parent_may():
    with max_unpacked("5 MB"), worker_pool(1) as pool:
        assert pool.submit(unpacked_at_most).result() == 5 << 20
