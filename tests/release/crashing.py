"""Processes that share a session and are killed, out of space or denied access.

Usage: python crashing.py serve STDERR, then on each line of the input, as JSON, words:

    crash|storm|limited|readonly STORE LOG NUMBER SEED [early-answer|scheduled|tables]

`test_session_crash` runs this file. A fork of the process, which has every library loaded, runs each mode. A line of
the output contains its exit code. Every question and answer is appended to LOG immediately, one line each, and
therefore outlives the process: ``ask SLOT``, ``got SLOT RECORD``, ``draw``, ``error NAME``, ``end HOW``.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from dphmm import MarkovModel, PolicyGraph, Releaser, Schedule
from dphmm.errors import DphmmError
from dphmm.release.session import Session
from dphmm.release.session_store import SessionStore

F = np.array([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])


class Log:
    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, *words: object) -> None:
        os.write(self.handle, (" ".join(str(word) for word in words) + "\n").encode())


class LoggedReleaser(Releaser):
    log: Log | None = None

    def draw(self, step, state):
        if self.log is not None:
            self.log("draw")
        return super().draw(step, state)


def make_engine() -> LoggedReleaser:
    policy = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
    if "scheduled" in sys.argv:
        model = MarkovModel(np.eye(6) * 0.88 + 0.02, np.full(6, 1 / 6), step_seconds=3600.0)
        return LoggedReleaser(model, F, policy, 3.0, schedule=Schedule(window_epsilon=8.0))
    if "tables" in sys.argv:
        return LoggedReleaser(MarkovModel(np.eye(6) * 0.4 + 0.1, np.full(6, 1 / 6)), F, policy, 0.5, "optimal")
    return LoggedReleaser(MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6)), F, policy, 0.5)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_statement(session: Session, number: int) -> None:
    """Die when SQLite is about to run the statement of that number from now.

    This is between any two writes.
    """
    left = [number]

    def count(_: str) -> None:
        left[0] -= 1
        if left[0] <= 0:
            die()

    session._store.database._connection.set_trace_callback(count)


def die_after_commit(number: int) -> None:
    """Die once that many transactions are on the disk, before the last one is answered."""
    left = [number]
    whole = SessionStore.append

    def append(*arguments):
        written = whole(*arguments)
        left[0] -= 1
        if left[0] <= 0:
            die()
        return written

    SessionStore.append = append


def answer_early(log: Log) -> None:
    """Break the session on purpose: answer with a draw before it is committed."""
    whole = SessionStore.append

    def append(store, session, progress, slot, draw):
        def draw_and_answer():
            drawn = draw()
            log("got", slot, drawn.record.to_json())
            return drawn

        return whole(store, session, progress, slot, draw_and_answer)

    SessionStore.append = append


def run_session(store: str, log: Log, asked_slots: list[int], rng: random.Random, at_statement: int | None) -> None:
    """Ask again for the last interrupted slot and an earlier one, then continue."""
    first = max(asked_slots, default=0)
    with Session.open(store, "user", make_engine()) as session:
        if at_statement is not None:
            die_at_statement(session, at_statement)
        for slot in [*asked_slots[:1], first, *(first + 1 + k for k in range(3))]:
            log("ask", slot)
            record = session.release(rng.randrange(6), slot, rng.choice([0.25, 0.5, 1.0]))
            log("got", slot, record.to_json())


def fork(work) -> int:
    """Run a function in a separate process that ends without cleaning up, and return its id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def crash(store: str, log: Log, runs: int, rng: random.Random, twin: str | None) -> None:
    Session.open(store, "user", make_engine()).close()
    begun = time.monotonic()
    os.waitpid(fork(lambda: run_session(store, log, [], random.Random(0), None)), 0)
    life = time.monotonic() - begun
    if twin == "early-answer":
        answer_early(log)
    for run in range(runs):
        kind = run % 3
        seed, delay = rng.random(), rng.uniform(0.02, 0.8) * life

        def work(run=run, kind=kind, seed=seed) -> None:
            choose = random.Random(seed)
            if kind == 1:
                die_after_commit(choose.randint(1, 3))
            asked_slots = [int(line.split()[1]) for line in log.path.read_text().splitlines() if line.startswith("ask")]
            run_session(store, log, asked_slots, choose, 1 + run // 3 % 40 if kind == 0 else None)

        child = fork(work)
        if kind == 2:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if kind == 2 and not os.WIFSIGNALED(status):
            life *= 0.7  # the process ended before the kill: lives are shorter than the measured first one
        log("end", "killed" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def run_concurrently(store: str, log: Log, requests: int, rng: random.Random, _: str | None) -> None:
    Session.open(store, "user", make_engine()).close()

    def work(seed: float) -> None:
        choose = random.Random(seed)
        with Session.open(store, "user", make_engine()) as session:
            for slot in range(requests // 8):
                log("got", slot, session.release(choose.randrange(6), slot).to_json())

    seeds = [rng.random() for _ in range(8)]
    children = [fork(lambda seed=seed: work(seed)) for seed in seeds]
    for child in children:
        log("end", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def ask_until_refused(session: Session, log: Log) -> None:
    try:
        for slot in range(1, 2_000):
            log("ask", slot)
            log("got", slot, session.release(slot % 6, slot).to_json())
    except DphmmError as problem:
        log("error", type(problem).__name__, problem)


def run_limited(store: str, log: Log, size: int, _: random.Random, __: str | None) -> None:
    """Run a session while no file may grow beyond a size."""
    releaser = make_engine()
    releaser.log = log
    with Session.open(store, "user", releaser) as session:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        ask_until_refused(session, log)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        log("stored", json.dumps([release.slot for release in session.releases()]))
        log("later", session.release(0, 5_000).to_json() != "")


def run_readonly(store: str, log: Log, user: int, _: random.Random, __: str | None) -> None:
    """Run a session as a user without write permission for the file."""
    releaser = make_engine()
    releaser.log = log
    if os.getuid() == 0:
        os.setuid(user)
    try:
        with Session.open(store, "user", releaser) as session:
            ask_until_refused(session, log)
    except DphmmError as problem:
        log("error", type(problem).__name__, problem)


def run_mode(words: list[str], standard_error: str) -> None:
    os.dup2(os.open(standard_error, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
    sys.argv[1:] = words
    make_engine().release(0)  # again, because this type of engine needs more libraries
    mode, store, log, number, seed, *more = words
    modes = {"crash": crash, "storm": run_concurrently, "limited": run_limited, "readonly": run_readonly}
    modes[mode](store, Log(log), int(number), random.Random(int(seed)), more[0] if more else None)


if __name__ == "__main__":
    make_engine().release(0)  # forks then inherit every imported library
    (standard_error,) = sys.argv[2:]
    for line in sys.stdin:
        child = fork(lambda line=line: run_mode(json.loads(line), standard_error))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
