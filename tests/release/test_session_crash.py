"""A session under kill -9, many processes, a full disk and a file that may not be written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.release.ledger import Ledger
from dphmm.release.record import ReleaseRecord
from dphmm.release.session import Session
from dphmm.release.session_store import SessionStore
from tests.release.crashing import F, engine
from tests.sizes import slow

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Callable[..., list[list[str]]]]:
    """Runs a mode of `crashing` in a copy of a process that has every library; its log, a line a list of words."""
    # Processes that are killed or shut out must not be measured: they could not write down what was covered.
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    said = tmp_path_factory.mktemp("said") / "stderr"
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("crashing.py")), "serve", said],
        env={**unmeasured, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def ran(mode: str, store: Path, log: Path, number: int, seed: int, *more: str) -> list[list[str]]:
            words = [mode, *map(str, (store, log, number, seed)), *more]
            print(json.dumps(words), file=server.stdin, flush=True)
            ended = server.stdout.readline()
            assert ended == "0\n", said.read_text()
            assert not said.read_text()
            return [line.split(" ", 2) for line in log.read_text().splitlines()]

        yield ran
        server.stdin.close()


def stored(path: Path) -> dict[int, ReleaseRecord]:
    with SessionStore(path, readonly=True) as store:
        session = store.session("person")
        assert session is not None
        releases = list(store.releases(session.number))
        assert [release.record.index for release in releases] == list(range(len(releases)))
        return {release.slot: release.record for release in releases}


def violations(log: list[list[str]], records: dict[int, ReleaseRecord]) -> list[str]:
    """Everything that a session must never do, found by comparing what was answered with what is in the file."""
    answers: dict[int, set[str]] = {}
    for words in log:
        # Who is killed while writing a line that crosses a page of memory leaves a part of it, which says no answer.
        if words[0] == "got" and words[-1].endswith("}"):
            answers.setdefault(int(words[1]), set()).add(words[2])
    asked = {int(words[1]) for words in log if words[0] == "ask"} | set(answers)
    found = [f"slot {slot} has {len(values)} values" for slot, values in answers.items() if len(values) > 1]
    for slot, values in answers.items():
        if slot not in records or records[slot].to_json() not in values:
            found.append(f"slot {slot} was answered with what is not in the file")
    told = float(sum(Fraction(repr(ReleaseRecord.from_json(min(values)).epsilon)) for values in answers.values()))
    if Ledger.from_records(list(records.values())).epsilon < told:
        found.append("spent budget is forgotten")
    found += [f"slot {slot} was never asked for" for slot in records if slot not in asked]
    return found


@pytest.mark.parametrize("lives", [42, slow(126)])
def test_kills_at_any_instant_release_no_moment_twice_and_forget_nothing(run, tmp_path, lives):
    log = run("crash", tmp_path / "s", tmp_path / "log", lives, 7)
    records = stored(tmp_path / "s")
    assert violations(log, records) == []
    ends = Counter(words[1] for words in log if words[0] == "end")
    assert ends["killed"] >= lives * 2 // 3
    assert set(ends) <= {"killed", "0"}
    # A third of the processes die at the first, the second, ... the fortieth statement that SQLite runs for them, if
    # there are so many, a third right after a commit, a third at a random instant: many between question and answer.
    last_words = [before[0] for before, words in pairwise(log) if words == ["end", "killed"]]
    assert last_words.count("ask") >= 0.4 * lives
    assert len(records) >= 0.6 * lives


def test_who_is_killed_after_the_first_page_of_the_log_was_moved_loses_nothing(tmp_path):
    """The header then says more pages than the file has yet; the log has them."""
    with Session.open(tmp_path / "s", "person", engine()) as session:
        for slot in range(60):
            session.release(0, slot)
        for name in ("s", "s-wal"):
            shutil.copy(tmp_path / name, tmp_path / f"cut-{name}")
    page = 4096
    whole, begun = (tmp_path / "s").read_bytes(), (tmp_path / "cut-s").read_bytes()
    assert len(begun) < len(whole)
    assert int.from_bytes(whole[16:18]) == page
    (tmp_path / "cut-s").write_bytes(whole[:page] + begun[page:])
    assert len(stored(tmp_path / "cut-s")) == 60
    with Session.open(tmp_path / "cut-s", "person", engine()) as again:
        again.release(0, 60)
    assert len(stored(tmp_path / "cut-s")) == 61


@pytest.mark.parametrize(("mode", "number"), [("crash", 30), ("storm", 320)])
def test_the_budget_of_a_window_holds_under_kills_and_beside_others(run, tmp_path, mode, number):
    log = run(mode, tmp_path / "s", tmp_path / "log", number, 7, "scheduled")
    records = stored(tmp_path / "s")
    assert violations(log, records) == []
    assert {record.withheld for record in records.values()} == {True, False}
    budgets = {slot: Fraction(repr(record.epsilon)) for slot, record in records.items()}
    for end in budgets:
        assert sum(budget for slot, budget in budgets.items() if end - 24 < slot <= end) <= 8


def test_tables_worked_out_anew_after_kills_are_those_that_were_drawn_from(run, tmp_path):
    """Whoever has the records works out each table again, and with it the same estimates, whatever died in between."""
    log = run("crash", tmp_path / "s", tmp_path / "log", 24, 7, "tables")
    records = stored(tmp_path / "s")
    assert violations(log, records) == []
    assert len(records) > 10
    model = MarkovModel(np.eye(6) * 0.4 + 0.1, np.full(6, 1 / 6))
    replay = Releaser(model, F, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]), 0.5, "optimal")
    for index, slot in enumerate(sorted(records)):
        record = records[slot]
        step = replay.prepare(record.epsilon, max(1, record.steps))
        assert record.gain == pytest.approx(step.noise.comparison(step.prior)["gain"])
        replay.resume(step.prior.update(replay.log_likelihood(step, record.released)), index + 1)
        np.testing.assert_allclose(replay.belief.mean(F), record.estimate, rtol=1e-9)


def test_answering_before_the_commit_would_be_found_out(run, tmp_path):
    log = run("crash", tmp_path / "s", tmp_path / "log", 42, 7, "early-answer")
    assert violations(log, stored(tmp_path / "s"))


@pytest.mark.parametrize("moments", [50, slow(125)])
def test_eight_processes_give_one_value_to_each_moment(run, tmp_path, moments):
    log = run("storm", tmp_path / "s", tmp_path / "log", 8 * moments, 3)
    records = stored(tmp_path / "s")
    assert sum(words[0] == "got" for words in log) == 8 * moments
    assert [words[1] for words in log if words[0] == "end"] == ["0"] * 8
    assert violations(log, records) == []
    assert sorted(records) == list(range(moments))


@pytest.mark.parametrize("size", [100_000, slow(200_001)])
def test_a_full_disk_is_an_error_and_costs_nothing(run, tmp_path, size):
    log = run("limited", tmp_path / "s", tmp_path / "log", size, 1)
    counts = Counter(words[0] for words in log)
    refused = next(words for words in log if words[0] == "error")
    assert refused[1] == "OutputError"
    assert counts["got"] >= 1
    assert counts["ask"] == counts["got"] + 1
    assert counts["draw"] == counts["got"] + 2, "one that was refused and never seen, one after the limit is lifted"
    assert [words[0] for words in log].index("error") == 3 * counts["got"] + 2
    kept = next(words for words in log if words[0] == "stored")
    assert len(json.loads(" ".join(kept[1:]))) == counts["got"]
    assert violations([words for words in log if words[0] != "later"], stored(tmp_path / "s")) == [
        "slot 5000 was never asked for"
    ]


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o755), (0o666, 0o555)], ids=["file", "folder"])
def test_a_file_that_may_not_be_written_is_an_error_before_the_draw(run, file_mode, folder_mode):
    folder = Path(tempfile.mkdtemp())
    try:
        with Session.open(folder / "s", "person", engine()) as session:
            session.release(0, 0)
        (folder / "log").touch()
        (folder / "log").chmod(0o666)
        before = (folder / "s").read_bytes()
        (folder / "s").chmod(file_mode)
        folder.chmod(folder_mode)
        log = run("readonly", folder / "s", folder / "log", NOBODY, 1)
        assert [words[0] for words in log if words[0] != "ask"] == ["error"]
        assert next(words for words in log if words[0] == "error")[1] == "OutputError"
        assert (folder / "s").read_bytes() == before
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
