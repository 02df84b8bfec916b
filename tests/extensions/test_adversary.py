"""An adversary outside the package passes the suite of shipped ones. Broken ones fail."""

from __future__ import annotations

import importlib
from typing import NamedTuple

import numpy as np
import pytest

from dphmm import Belief, MarkovModel, PolicyGraph, Releaser
from dphmm.audit import Adversary, ReleasedSequence, audit_adversaries, compute_accuracy, replay_sequence
from tests.extensions.pages import forget, read_file
from tests.running_example import F

CODE = read_file("own_adversary.md", "particle_adversary.py")
MATRIX = np.full((6, 6), 0.04) + 0.76 * np.eye(6)
START = np.full(6, 1 / 6)
MODEL = MarkovModel(MATRIX, START)
TRUTH = [0, 0, 0, 2, 2, 2, 2, 5, 5, 5]
# With 20,000 particles the standard error of a probability is below 0.5 % at each release; seed 0. The measured
# distance is well below the limit.
LIMIT = 0.05
PARTICLES = 20_000


@pytest.fixture
def particle(tmp_path, monkeypatch):
    """Import the file of the page from a folder outside the package."""
    (tmp_path / "particle_adversary.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    forget("particle_adversary")
    yield importlib.import_module("particle_adversary")
    forget("particle_adversary")


class Releases(NamedTuple):
    engine: Releaser
    sequence: ReleasedSequence
    replays: list


@pytest.fixture(scope="module")
def releases():
    engine = Releaser(MODEL, F, PolicyGraph.complete(6), 1.0, rng=1)
    records = [engine.release(state) for state in TRUTH]
    released = np.array([record.released for record in records])
    sequence = ReleasedSequence("ann", released, np.ones(len(TRUTH)), np.ones(len(TRUTH), dtype=int))
    return Releases(engine.spawn(), sequence, list(replay_sequence(engine.spawn(), sequence)))


def filter_plainly(replays) -> np.ndarray:
    """The forward algorithm in plain numbers."""
    belief, rows = START, []
    for number, replay in enumerate(replays):
        belief = (belief @ MATRIX if number else belief) * np.exp(replay.log_likelihood)
        belief /= belief.sum()
        rows.append(belief)
    return np.array(rows)


def check_adversary(beliefs, releases) -> None:
    """The suite of every adversary that knows the model and past releases."""
    beliefs = list(beliefs)
    assert len(beliefs) == len(TRUTH)
    assert all(isinstance(belief, Belief) for belief in beliefs)
    rows = np.array([belief.probabilities for belief in beliefs])
    assert rows.sum(axis=1) == pytest.approx(1)
    exact = filter_plainly(releases.replays)
    distance = np.abs(rows - exact).sum(axis=1).max() / 2  # of total variation
    assert distance < LIMIT
    errors = compute_accuracy(beliefs, F, TRUTH).expected_error.mean()
    lengths = np.linalg.norm(np.asarray(F)[None] - np.asarray(F)[TRUTH][:, None], axis=2)
    assert errors == pytest.approx((exact * lengths).sum(axis=1).mean(), rel=0.05)


def audit(releases, adversary):
    (result,) = audit_adversaries(releases.engine, releases.sequence, (adversary,))
    return result.filtering.select()


def filter_particles(particle, releases, move=None, replays=None):
    move = particle.moves_of(MATRIX) if move is None else move
    return particle.ParticleFilter(move, START, 6, PARTICLES).beliefs(replays or releases.replays)


def test_shipped_and_own_adversaries_pass_the_same_suite(particle, releases):
    assert len(CODE.splitlines()) <= 60
    check_adversary([replay.posterior for replay in releases.replays], releases)
    check_adversary(audit(releases, Adversary("the model")), releases)
    check_adversary(audit(releases, Adversary("a model", model=MODEL)), releases)
    check_adversary(audit(releases, Adversary("a prior", prior=START)), releases)
    check_adversary(filter_particles(particle, releases), releases)


def test_broken_adversaries_fail_the_suite(particle, releases):
    silent = [type("Silent", (), {"log_likelihood": np.zeros(6)})() for _ in releases.replays]
    broken = {
        "stays": filter_particles(particle, releases, move=lambda states, _: states),
        "ignores releases": filter_particles(particle, releases, replays=silent),
        "late": [replay.prior for replay in releases.replays],
        "misses the last": list(filter_particles(particle, releases))[:-1],
        "other states": [
            Belief.from_probabilities(b.probabilities[::-1]) for b in filter_particles(particle, releases)
        ],
        "shipped, other model": audit(releases, Adversary("stays", model=MarkovModel(np.eye(6) * 0.94 + 0.01, START))),
    }
    for name, beliefs in broken.items():
        with pytest.raises(AssertionError):
            check_adversary(beliefs, releases)
        assert name


def test_impossible_particles_start_anew(particle):
    replay = type("Replay", (), {"log_likelihood": np.array([-np.inf, 0.0])})()
    adversary = particle.ParticleFilter(lambda states, _: states, [1.0, 0.0], 2, 10)
    (belief,) = adversary.beliefs([replay])
    assert belief.probabilities.tolist() == [0.0, 1.0]
