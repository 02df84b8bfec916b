"""Processes that use one session and are killed, starved of space or shut out; run by `test_session_crash`.

Usage: python crashing.py serve STDERR, then on each line of the input, as JSON, words:
crash|storm|limited|readonly STORE LOG NUMBER SEED [early-answer|scheduled|tables]

Each is run by a copy of the process, which has every library loaded, and how it ended is answered with a line.

Everything that is asked and answered is appended to LOG at once, one line each, so that it outlives the process:
``ask SLOT``, ``got SLOT RECORD``, ``draw``, ``error NAME``, ``end HOW``.
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


def engine() -> LoggedReleaser:
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
    """Dies when SQLite is about to run the statement of that number from now: between any two writes."""
    left = [number]

    def count(_: str) -> None:
        left[0] -= 1
        if left[0] <= 0:
            die()

    session._store.database._connection.set_trace_callback(count)


def die_after_commit(number: int) -> None:
    """Dies when that many transactions are on the disk and before the last of them is told to anyone."""
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
    """The broken twin: what is drawn is told before it is committed."""
    whole = SessionStore.append

    def append(store, session, progress, slot, draw):
        def early():
            drawn = draw()
            log("got", slot, drawn.record.to_json())
            return drawn

        return whole(store, session, progress, slot, early)

    SessionStore.append = append


def live(store: str, log: Log, asked: list[int], rng: random.Random, at_statement: int | None) -> None:
    """Ask again for the moment at which the last process died and for an earlier one, then go on."""
    first = max(asked, default=0)
    with Session.open(store, "person", engine()) as session:
        if at_statement is not None:
            die_at_statement(session, at_statement)
        for slot in [*asked[:1], first, *(first + 1 + k for k in range(3))]:
            log("ask", slot)
            record = session.release(rng.randrange(6), slot, rng.choice([0.25, 0.5, 1.0]))
            log("got", slot, record.to_json())


def forked(work) -> int:
    """Run something in a process of its own that ends without cleaning up, and return its id."""
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
    Session.open(store, "person", engine()).close()
    begun = time.monotonic()
    os.waitpid(forked(lambda: live(store, log, [], random.Random(0), None)), 0)
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
            asked = [int(line.split()[1]) for line in log.path.read_text().splitlines() if line.startswith("ask")]
            live(store, log, asked, choose, 1 + run // 3 % 40 if kind == 0 else None)

        child = forked(work)
        if kind == 2:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if kind == 2 and not os.WIFSIGNALED(status):
            life *= 0.7  # it was over before: the first one was slower, in whatever company
        log("end", "killed" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def storm(store: str, log: Log, requests: int, rng: random.Random, _: str | None) -> None:
    Session.open(store, "person", engine()).close()

    def work(seed: float) -> None:
        choose = random.Random(seed)
        with Session.open(store, "person", engine()) as session:
            for slot in range(requests // 8):
                log("got", slot, session.release(choose.randrange(6), slot).to_json())

    seeds = [rng.random() for _ in range(8)]
    children = [forked(lambda seed=seed: work(seed)) for seed in seeds]
    for child in children:
        log("end", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def ask_until_refused(session: Session, log: Log) -> None:
    try:
        for slot in range(1, 2_000):
            log("ask", slot)
            log("got", slot, session.release(slot % 6, slot).to_json())
    except DphmmError as problem:
        log("error", type(problem).__name__, problem)


def limited(store: str, log: Log, size: int, _: random.Random, __: str | None) -> None:
    """No file may grow beyond a size."""
    releaser = engine()
    releaser.log = log
    with Session.open(store, "person", releaser) as session:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        ask_until_refused(session, log)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        log("stored", json.dumps([release.slot for release in session.releases()]))
        log("later", session.release(0, 5_000).to_json() != "")


def readonly(store: str, log: Log, user: int, _: random.Random, __: str | None) -> None:
    """Somebody who may not write the file."""
    releaser = engine()
    releaser.log = log
    if os.getuid() == 0:
        os.setuid(user)
    try:
        with Session.open(store, "person", releaser) as session:
            ask_until_refused(session, log)
    except DphmmError as problem:
        log("error", type(problem).__name__, problem)


def one_mode(words: list[str], standard_error: str) -> None:
    os.dup2(os.open(standard_error, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
    sys.argv[1:] = words
    engine().release(0)  # again, where this kind of engine needs more libraries
    mode, store, log, number, seed, *more = words
    modes = {"crash": crash, "storm": storm, "limited": limited, "readonly": readonly}
    modes[mode](store, Log(log), int(number), random.Random(int(seed)), more[0] if more else None)


if __name__ == "__main__":
    engine().release(0)  # so that the processes find every library imported
    (standard_error,) = sys.argv[2:]
    for line in sys.stdin:
        child = forked(lambda line=line: one_mode(json.loads(line), standard_error))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
