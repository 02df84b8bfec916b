"""Linear algebra is on one thread within a block, and as before after the last."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dphmm.threads import beside, one_thread


def threads() -> set[int]:
    """How many threads the libraries use that let themselves be told."""
    found = {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}
    return found if len(found) == 1 else found - {1}


@pytest.fixture(autouse=True)
def several():
    with threadpool_limits(3, user_api="blas"):
        if threads() != {3}:
            pytest.skip("the linear algebra here has no threads that can be told from outside")
        yield


def test_a_block_is_on_one_thread_and_leaves_things_as_they_were():
    with one_thread():
        assert threads() == {1}
    assert threads() == {3}


def test_an_error_within_takes_the_limit_back():
    with pytest.raises(ValueError, match="broken"), one_thread():
        raise ValueError("broken")
    assert threads() == {3}


def test_of_overlapping_blocks_the_last_to_end_takes_the_limit_back():
    """The first to begin ends in between: what it found before must not come back while the other still works."""
    begun, end = threading.Event(), threading.Event()
    seen = []

    def other():
        with one_thread():
            begun.set()
            end.wait(10)
            seen.append(threads())

    with one_thread():
        thread = threading.Thread(target=other)
        thread.start()
        assert begun.wait(10)
    assert threads() == {1}
    end.set()
    thread.join()
    assert seen == [{1}]
    assert threads() == {3}


def test_work_beside_returns_or_raises_where_it_is_waited_for():
    begun = threading.Event()

    def work() -> str:
        begun.wait()
        return threading.current_thread().name

    found = beside(work)
    begun.set()
    assert found() == found() != threading.current_thread().name
    failed = beside(lambda: [][0])
    with pytest.raises(IndexError):
        failed()


def test_nobody_who_is_interrupted_waits_for_work_beside():
    """The process ends while the work goes on, with the code of the interrupt."""
    told = "from dphmm.threads import beside; import time; beside(lambda: time.sleep(600)); raise KeyboardInterrupt"
    ended = subprocess.run([sys.executable, "-c", told], capture_output=True, timeout=60)
    assert ended.returncode in (-signal.SIGINT, 130)
