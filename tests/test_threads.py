"""Linear algebra uses one thread within a block, and the former number after it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dphmm.threads import limit_to_one_thread, run_in_background


def find_thread_counts() -> set[int]:
    """The numbers of threads of the linear algebra libraries with adjustable threads."""
    counts = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
    return counts if len(counts) == 1 else counts - {1}


@pytest.fixture(autouse=True)
def use_three_threads():
    with threadpool_limits(3, user_api="blas"):
        if find_thread_counts() != {3}:
            pytest.skip("the linear algebra here has no adjustable threads")
        yield


def test_block_uses_one_thread_and_restores_threads():
    with limit_to_one_thread():
        assert find_thread_counts() == {1}
    assert find_thread_counts() == {3}


def test_error_within_block_restores_threads():
    with pytest.raises(ValueError, match="broken"), limit_to_one_thread():
        raise ValueError("broken")
    assert find_thread_counts() == {3}


def test_last_of_overlapping_blocks_restores_threads():
    """The first block ends within the other and must not restore the threads yet."""
    started, end = threading.Event(), threading.Event()
    seen = []

    def hold_limit():
        with limit_to_one_thread():
            started.set()
            end.wait(60)
            seen.append(find_thread_counts())

    with limit_to_one_thread():
        thread = threading.Thread(target=hold_limit)
        thread.start()
        assert started.wait(60)
    assert find_thread_counts() == {1}
    end.set()
    thread.join()
    assert seen == [{1}]
    assert find_thread_counts() == {3}


def test_background_result_returns_or_raises():
    started = threading.Event()

    def work() -> str:
        started.wait()
        return threading.current_thread().name

    get_result = run_in_background(work)
    started.set()
    assert get_result() == get_result() != threading.current_thread().name
    failed = run_in_background(lambda: [][0])
    with pytest.raises(IndexError):
        failed()


def test_interrupt_ends_process_despite_background_work():
    """The process ends with the exit code of the interrupt while the work continues."""
    code = (
        "from dphmm.threads import run_in_background; import time; "
        "run_in_background(lambda: time.sleep(600)); raise KeyboardInterrupt"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert ended.returncode in (-signal.SIGINT, 130)
