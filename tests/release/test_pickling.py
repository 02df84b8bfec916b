"""Tests of pickled engines, plans and sessions: a copy releases what the original would."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.errors import DataFileError, InvalidInputError
from dphmm.random import as_random_source
from dphmm.release import Limits, Session
from dphmm.release.step_noise import StepNoise
from tests.release.travelling import ENGINES, FIRST, release

COPIES = {"pickle": lambda engine: pickle.loads(pickle.dumps(engine)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("way", COPIES)
def test_copied_engine_releases_like_original(name, way):
    engine = ENGINES[name](5)
    fresh = COPIES[way](engine)
    assert release(fresh, 3) == release(engine, 3)
    copied = COPIES[way](engine)
    assert release(copied) == release(engine)
    assert copied.filter_state.account.epsilon == engine.filter_state.account.epsilon


# Users move to neighbouring columns only. Therefore the constraint set and the hull change with the releases.
GRID = np.array([(column, row) for column in range(6) for row in range(3)])
COLUMN = GRID[:, 0]
IS_NEAR = np.abs(COLUMN[:, None] - COLUMN) <= 1
LOCAL = MarkovModel(IS_NEAR / IS_NEAR.sum(axis=1, keepdims=True), (COLUMN < 2) / 6)
PATH = [0, 3, 6, 9, 13]
POLICIES = {
    "categorical": PolicyGraph.categorical(COLUMN // 2),
    "transition": PolicyGraph.transition(LOCAL.transition),
    "groups": PolicyGraph.from_groups(18, [range(7), range(5, 12), range(10, 18)]),
    "utility": PolicyGraph.utility(GRID, 1.5),
    "utility of cells": PolicyGraph.utility(GRID, 1.0, 1.0),
    "complete": PolicyGraph.complete(18),
    "edges": PolicyGraph.from_edges(18, [(0, 1), (3, 7), (8, 12), (10, 17)]),
    "zones": PolicyGraph.categorical((COLUMN + 1) // 2).restrict(COLUMN > 0).with_open(COLUMN == 0),
    "union": PolicyGraph.categorical(COLUMN // 3) | PolicyGraph.utility(GRID, 1.0).restrict(COLUMN > 2),
}


@pytest.mark.parametrize("delta", [0.0, 0.1])
@pytest.mark.parametrize(
    "mechanism", ["lattice", *(pytest.param(name, marks=pytest.mark.slow) for name in ("k-norm", "optimal"))]
)
@pytest.mark.parametrize("scope", ["graph", "component"])
@pytest.mark.parametrize("name", POLICIES)
def test_copy_after_each_release_continues_like_original(name, scope, mechanism, delta):
    settings = {"noise_scope": scope, "delta": delta, "repair": "greedy"}
    engine = Releaser(LOCAL, GRID, POLICIES[name], 0.5, mechanism, rng=5, **settings)
    records, copies = [], []
    for index, state in enumerate(PATH):
        records.append(engine.release(state))
        if index < 3:
            copies += [(index + 1, make(engine)) for make in COPIES.values()]
            copies.append((0, pickle.loads(pickle.dumps(engine.spawn(5)))))
    for start, copied in copies:
        for state, record in list(zip(PATH, records, strict=True))[start : start + 2]:
            assert copied.release(state) == record


def test_copies_do_not_affect_each_other():
    engine = ENGINES["lattice"](5)
    release(engine, 3)
    copied = pickle.loads(pickle.dumps(engine))
    belief, total = engine.belief.to_bytes(), engine.filter_state.account.epsilon
    release(copied)
    assert (engine.belief.to_bytes(), engine.filter_state.account.epsilon) == (belief, total)


@pytest.mark.parametrize("name", ENGINES)
def test_unpickled_plan_is_drawn_like_original(name):
    """A plan is public, so another process can prepare it. It is drawn once."""
    engine = ENGINES[name](5)
    release(engine, 2)
    copied, plan = pickle.loads(pickle.dumps((engine, engine.prepare())))
    record = engine.draw(pickle.loads(pickle.dumps(plan)), 1)
    assert copied.draw(plan, 1) == record
    for used in (engine, copied):
        with pytest.raises(InvalidInputError, match="stale"):
            used.draw(plan, 1)


def test_pickled_queries_of_one_user_share_their_belief():
    engine = ENGINES["k-norm"](5)
    pair = engine, engine.for_query([[1], [0], [0], [2], [2], [2]])
    copied = pickle.loads(pickle.dumps(pair))
    assert copied[0].release_together(3, copied[1]) == pair[0].release_together(3, pair[1])
    assert copied[0].filter_state is copied[1].filter_state
    assert copied[0].source is copied[1].source


def test_noise_caches_and_last_release_are_left_behind():
    """The last release includes the true state."""
    engine = ENGINES["lattice"](5)
    sizes = []
    for budget in (0.1, 0.2, 0.3, 0.4):
        engine.release(1, budget)
        sizes.append(len(pickle.dumps(engine)))
    copied = pickle.loads(pickle.dumps(engine))
    assert len(engine.planner._noises) == 4
    assert len(copied.planner._noises) == 0
    assert sizes[3] - sizes[1] < 100  # the second release has a prediction, and one noise has 7,000 bytes
    assert copied.last is None
    with pytest.raises(InvalidInputError, match="no release yet"):
        copied.private_diagnostics(1)


@pytest.mark.parametrize("name", ["lattice", "grid", "time and outside"])
def test_pickled_model_is_equal_and_read_only_without_operators(name):
    model = ENGINES[name](5).model
    _ = model.one_step_operators[0].forward_product.rows
    copied = pickle.loads(pickle.dumps(model))
    assert copied.content_hash == model.content_hash
    assert "one_step_operators" not in vars(copied)
    assert not any(array.flags.writeable for array in (copied.initial, copied.initial_by_class))
    assert not any(matrix.data.flags.writeable for matrix in copied.transitions)


@pytest.mark.parametrize("name", ENGINES)
def test_pickle_and_checkpoint_depend_on_sample_and_not_on_true_state(name, monkeypatch):
    """Two engines release one sample for different true states."""
    engine = ENGINES[name](5)
    monkeypatch.setattr(StepNoise, "draw", lambda *_: engine.query.values[0])
    outputs = []
    for state in (0, engine.model.size - 1):
        other = ENGINES[name](5)
        other.draw(other.prepare(), state)
        other.filter_state.version = 0  # a random number
        other.planner._last = other.planner._last_withheld = None  # they contain random numbers, too
        outputs.append((pickle.dumps(other), other.checkpoint()))
    assert outputs[0] == outputs[1]


def test_randomness_of_system_is_never_copied():
    engine = ENGINES["k-norm"](None)
    copied = pickle.loads(pickle.dumps(engine))
    assert copied.is_private
    assert not copied.has_copied_noise
    assert copied.release(1).released != engine.release(1).released
    assert copied.source.bytes is os.urandom


def test_copy_of_seeded_engine_states_that_noise_is_copied():
    engine = ENGINES["k-norm"](5)
    copied = pickle.loads(pickle.dumps(engine))
    assert (engine.has_copied_noise, copied.has_copied_noise) == (False, True)
    assert not copied.is_private
    assert copied.spawn().has_copied_noise
    assert not copied.spawn(3).has_copied_noise
    assert pickle.loads(pickle.dumps(copied)).has_copied_noise
    assert as_random_source(copied.source) is copied.source


# ---- sessions --------------------------------------------------------------------------------------------------------

CONTINUE = """
import pickle, sys
session = pickle.load(sys.stdin.buffer)
for slot in map(int, sys.argv[1:]):
    print(session.release(2, slot).to_json())
session.close()
"""


def continue_elsewhere(session: Session, *slots: int) -> list[str]:
    """Continue a pickled session in another process, in another folder. Return the records."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", CONTINUE, *map(str, slots)],
        input=pickle.dumps(session),
        capture_output=True,
        check=True,
        env=environment,
        cwd="/",
    )
    return done.stdout.decode().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lattice", "time and outside", "caps"])
def test_pickled_session_continues_with_releases_of_all_processes(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engine = ENGINES[name](None)
    with Session.open("a.db", "ann", engine, Limits(epsilon=2)) as session:
        first = session.release(1, FIRST)
        elsewhere = continue_elsewhere(session, FIRST, FIRST + 1)
        assert elsewhere[0] == first.to_json()
        assert session.release(0, FIRST + 1).to_json() == elsewhere[1]
        second = session.release(0, FIRST + 2)
        assert [release.record.index for release in session.releases()] == [0, 1, 2]
        assert second.epsilon_total == float(session.account.epsilon)


def test_pickled_session_without_its_file_raises(tmp_path):
    with Session.open(tmp_path / "a.db", "ann", ENGINES["lattice"](None)) as session:
        session.release(1, FIRST)
        data = pickle.dumps(session)
    (tmp_path / "a.db").rename(tmp_path / "b.db")
    with pytest.raises(DataFileError, match="must exist, because a pickled session continues it"):
        pickle.loads(data)
    Session.open(tmp_path / "a.db", "bob", ENGINES["lattice"](None)).close()
    with pytest.raises(DataFileError, match="must contain session 'ann'") as caught:
        pickle.loads(data)
    open_files = [str(file.resolve()) for file in Path("/proc/self/fd").iterdir()]
    assert str(tmp_path / "a.db") not in open_files, caught


def test_pickled_session_with_older_file_raises(tmp_path):
    path, older = tmp_path / "a.db", tmp_path / "older.db"
    with Session.open(path, "ann", ENGINES["lattice"](None)) as session:
        session.release(1, FIRST)
    shutil.copyfile(path, older)
    with Session.open(path, "ann", ENGINES["lattice"](None)) as session:
        session.release(1, FIRST + 1)
        assert session.account.count == 2
        data = pickle.dumps(session)
    pickle.loads(data).close()
    older.replace(path)
    with pytest.raises(DataFileError, match="must contain the 2 releases of session 'ann'"):
        pickle.loads(data)
