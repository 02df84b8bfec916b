"""Sessions under SIGKILL, many processes, a full disk and missing write permission."""

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
from tests.release.crashing import F, make_engine
from tests.sizes import mark_slow

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Callable[..., list[list[str]]]]:
    """Run a mode of `crashing` in a forked process. Return the words of its log lines."""
    # Disable coverage: processes that are killed or denied access could not write their data.
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    error_file = tmp_path_factory.mktemp("said") / "stderr"
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("crashing.py")), "serve", error_file],
        env={**unmeasured, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def run_mode(mode: str, store: Path, log: Path, number: int, seed: int, *more: str) -> list[list[str]]:
            words = [mode, *map(str, (store, log, number, seed)), *more]
            print(json.dumps(words), file=server.stdin, flush=True)
            ended = server.stdout.readline()
            assert ended == "0\n", error_file.read_text()
            assert not error_file.read_text()
            return [line.split(" ", 2) for line in log.read_text().splitlines()]

        yield run_mode
        server.stdin.close()


def read_stored(path: Path) -> dict[int, ReleaseRecord]:
    with SessionStore(path, readonly=True) as store:
        session = store.session("user")
        assert session is not None
        releases = list(store.releases(session.number))
        assert [release.record.index for release in releases] == list(range(len(releases)))
        return {release.slot: release.record for release in releases}


def find_violations(log: list[list[str]], records: dict[int, ReleaseRecord]) -> list[str]:
    """Find violations of session guarantees by comparing answers with the file."""
    answers: dict[int, set[str]] = {}
    for words in log:
        # A process killed while writing can leave a truncated last line, which contains no answer.
        if words[0] == "got" and words[-1].endswith("}"):
            answers.setdefault(int(words[1]), set()).add(words[2])
    asked_slots = {int(words[1]) for words in log if words[0] == "ask"} | set(answers)
    problems = [f"slot {slot} has {len(values)} values" for slot, values in answers.items() if len(values) > 1]
    for slot, values in answers.items():
        if slot not in records or records[slot].to_json() not in values:
            problems.append(f"slot {slot} has an answer that is not in the file")
    answered_epsilon = float(
        sum(Fraction(repr(ReleaseRecord.from_json(min(values)).epsilon)) for values in answers.values())
    )
    if Ledger.from_records(list(records.values())).epsilon < answered_epsilon:
        problems.append("the file contains less spent budget than the answers")
    problems += [f"slot {slot} was never asked for" for slot in records if slot not in asked_slots]
    return problems


@pytest.mark.slow
@pytest.mark.parametrize("lives", [42, mark_slow(126)])
def test_kills_at_any_instant_lose_no_release_and_repeat_no_slot(run, tmp_path, lives):
    log = run("crash", tmp_path / "s", tmp_path / "log", lives, 7)
    records = read_stored(tmp_path / "s")
    assert find_violations(log, records) == []
    ends = Counter(words[1] for words in log if words[0] == "end")
    assert ends["killed"] >= lives * 2 // 3
    assert set(ends) <= {"killed", "0"}
    # A third of the processes die at the first, second, ... fortieth SQL statement (if there are as many),
    # a third right after a commit and a third at a random instant, often between question and answer.
    last_words = [before[0] for before, words in pairwise(log) if words == ["end", "killed"]]
    assert last_words.count("ask") >= 0.4 * lives
    assert len(records) >= 0.6 * lives


@pytest.mark.slow
def test_partially_checkpointed_log_loses_no_release(tmp_path):
    """The header then states more pages than the file contains. The log contains the rest."""
    with Session.open(tmp_path / "s", "user", make_engine()) as session:
        for slot in range(60):
            session.release(0, slot)
        for name in ("s", "s-wal"):
            shutil.copy(tmp_path / name, tmp_path / f"cut-{name}")
    page = 4096
    whole, begun = (tmp_path / "s").read_bytes(), (tmp_path / "cut-s").read_bytes()
    assert len(begun) < len(whole)
    assert int.from_bytes(whole[16:18]) == page
    (tmp_path / "cut-s").write_bytes(whole[:page] + begun[page:])
    assert len(read_stored(tmp_path / "cut-s")) == 60
    with Session.open(tmp_path / "cut-s", "user", make_engine()) as again:
        again.release(0, 60)
    assert len(read_stored(tmp_path / "cut-s")) == 61


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "number"), [("crash", 30), ("storm", 320)])
def test_window_budget_holds_under_kills_and_concurrency(run, tmp_path, mode, number):
    log = run(mode, tmp_path / "s", tmp_path / "log", number, 7, "scheduled")
    records = read_stored(tmp_path / "s")
    assert find_violations(log, records) == []
    assert {record.withheld for record in records.values()} == {True, False}
    budgets = {slot: Fraction(repr(record.epsilon)) for slot, record in records.items()}
    for end in budgets:
        assert sum(budget for slot, budget in budgets.items() if end - 24 < slot <= end) <= 8


@pytest.mark.slow
def test_recomputed_tables_match_released_ones_after_kills(run, tmp_path):
    """The records determine each table and estimate, even after processes were killed."""
    log = run("crash", tmp_path / "s", tmp_path / "log", 24, 7, "tables")
    records = read_stored(tmp_path / "s")
    assert find_violations(log, records) == []
    assert len(records) > 10
    model = MarkovModel(np.eye(6) * 0.4 + 0.1, np.full(6, 1 / 6))
    replay = Releaser(model, F, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]), 0.5, "optimal")
    for index, slot in enumerate(sorted(records)):
        record = records[slot]
        step = replay.prepare(record.epsilon, max(1, record.steps))
        assert record.table_gain == pytest.approx(step.noise.compare_with_knorm(step.prior)["table_gain"])
        replay.resume(step.prior.update(replay.log_likelihood(step, record.released)), index + 1)
        np.testing.assert_allclose(replay.belief.mean(F), record.estimate, rtol=1e-9)


@pytest.mark.slow
def test_answer_before_commit_is_detected(run, tmp_path):
    log = run("crash", tmp_path / "s", tmp_path / "log", 42, 7, "early-answer")
    assert find_violations(log, read_stored(tmp_path / "s"))


@pytest.mark.slow
@pytest.mark.parametrize("num_slots", [50, mark_slow(125)])
def test_eight_processes_agree_on_one_value_per_slot(run, tmp_path, num_slots):
    log = run("storm", tmp_path / "s", tmp_path / "log", 8 * num_slots, 3)
    records = read_stored(tmp_path / "s")
    assert sum(words[0] == "got" for words in log) == 8 * num_slots
    assert [words[1] for words in log if words[0] == "end"] == ["0"] * 8
    assert find_violations(log, records) == []
    assert sorted(records) == list(range(num_slots))


@pytest.mark.parametrize("size", [100_000, mark_slow(200_001)])
def test_full_disk_raises_and_costs_no_budget(run, tmp_path, size):
    log = run("limited", tmp_path / "s", tmp_path / "log", size, 1)
    counts = Counter(words[0] for words in log)
    refused = next(words for words in log if words[0] == "error")
    assert refused[1] == "OutputError"
    assert counts["got"] >= 1
    assert counts["ask"] == counts["got"] + 1
    assert counts["draw"] == counts["got"] + 2, "one refused and never published, one after the limit is lifted"
    assert [words[0] for words in log].index("error") == 3 * counts["got"] + 2
    kept = next(words for words in log if words[0] == "stored")
    assert len(json.loads(" ".join(kept[1:]))) == counts["got"]
    assert find_violations([words for words in log if words[0] != "later"], read_stored(tmp_path / "s")) == [
        "slot 5000 was never asked for"
    ]


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o755), (0o666, 0o555)], ids=["file", "folder"])
def test_missing_write_permission_raises_before_draw(run, file_mode, folder_mode):
    folder = Path(tempfile.mkdtemp())
    try:
        with Session.open(folder / "s", "user", make_engine()) as session:
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
