"""A reader and an adversary outside the package meet the requirements of the shipped ones."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.audit import ReleasedSequence, compute_accuracy, replay_sequence
from dphmm.errors import DataFileError, TimeOrderError
from dphmm.jobs import Data
from dphmm.readers import read
from tests.extensions.pages import forget, read_file
from tests.running_example import F

MATRIX = np.full((6, 6), 0.04) + 0.76 * np.eye(6)
TRUTH = [0, 0, 0, 2, 2, 2, 2, 5, 5, 5]


def load(folder, monkeypatch, page, name):
    """Import the file of a page from a folder outside the package."""
    code = read_file(page, f"{name}.py")
    assert len(code.splitlines()) <= 60
    (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    forget(name)
    return importlib.import_module(name)


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    yield load(tmp_path, monkeypatch, "own_reader.md", "fleet_log")
    forget("fleet_log")


@pytest.fixture
def particle(tmp_path, monkeypatch):
    yield load(tmp_path, monkeypatch, "own_adversary.md", "particle_adversary")
    forget("particle_adversary")


# ---- reader ------------------------------------------------------------------------------------------------------


def write_both(folder) -> None:
    """Write one recording in the format of the page and as a table that the package reads."""
    rows = [(f"bus {n % 3}", 1709800000 + 60 * n, 45_000_000 + 100 * n, -30_000_000 - n) for n in range(60)]
    rows = rows[::-1] + rows[:3]  # neither sorted nor without duplicates
    (folder / "fleet.log").write_text("\n".join(f"{u};{t};{y};{x}" for u, t, y, x in rows))
    lines = ["user,time,latitude,longitude"]
    lines += [f"{u},{np.datetime64(t, 's')}Z,{y / 1e6},{x / 1e6}" for u, t, y, x in rows]
    (folder / "fleet.csv").write_text("\n".join(lines))


def test_reader_agrees_with_reader_of_tables(fleet, tmp_path):
    write_both(tmp_path)
    expected = read(tmp_path / "fleet.csv").trajectories
    assert tuple(fleet.read_fleet_log(tmp_path / "fleet.log")) == expected
    tracks = Data(fleet.read_fleet_log(tmp_path / "fleet.log"), users=("bus 1",)).read()
    assert tracks.trajectories == expected[1:2]
    assert [dropped.users for dropped in tracks.unchosen] == [2]


def test_malformed_line_is_named(fleet, tmp_path):
    (tmp_path / "bad.log").write_text("bus;1;2;3\nbus;1;2\n")
    with pytest.raises(DataFileError, match=r"bad\.log.*line 2"):
        fleet.read_fleet_log(tmp_path / "bad.log")


def test_wrong_order_and_swapped_coordinates_are_caught(fleet, tmp_path, monkeypatch):
    """One does not sort, one swaps latitude and longitude."""
    write_both(tmp_path)
    expected = read(tmp_path / "fleet.csv").trajectories
    monkeypatch.setattr(fleet, "sorted", lambda values: list(values), raising=False)
    with pytest.raises(TimeOrderError):
        fleet.read_fleet_log(tmp_path / "fleet.log")
    monkeypatch.undo()
    swapped = [type(t)(t.user, t.times, t.longitude, t.latitude) for t in fleet.read_fleet_log(tmp_path / "fleet.log")]
    assert Data.from_any(swapped).read().trajectories != expected


# ---- adversary ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replays():
    engine = Releaser(MarkovModel(MATRIX, np.full(6, 1 / 6)), F, PolicyGraph.complete(6), 1.0, rng=1)
    records = [engine.release(state) for state in TRUTH]
    released = np.array([record.released for record in records])
    sequence = ReleasedSequence("ann", released, np.ones(len(TRUTH)), np.ones(len(TRUTH), dtype=int))
    return list(replay_sequence(engine.spawn(), sequence))


def filter_plainly(replays) -> np.ndarray:
    """The forward algorithm in plain numbers."""
    belief, rows = np.full(6, 1 / 6), []
    for number, replay in enumerate(replays):
        belief = (belief @ MATRIX if number else belief) * np.exp(replay.log_likelihood)
        belief /= belief.sum()
        rows.append(belief)
    return np.array(rows)


def distance(adversary, replays) -> float:
    """The largest total variation distance of an adversary's beliefs and the exact ones."""
    rows = np.array([belief.probabilities for belief in adversary.beliefs(replays)])
    return float(np.abs(rows - filter_plainly(replays)).sum(axis=1).max() / 2)


# With 20,000 particles the standard error of a probability is below 0.5 % at each release; seed 0. The measured
# distance is well below the limit.
LIMIT, PARTICLES = 0.05, 20_000


def test_particle_filter_agrees_with_exact_filter(particle, replays):
    assert filter_plainly(replays) == pytest.approx(np.array([replay.posterior.probabilities for replay in replays]))
    adversary = particle.ParticleFilter(particle.moves_of(MATRIX), np.full(6, 1 / 6), 6, PARTICLES)
    assert distance(adversary, replays) < LIMIT
    beliefs = particle.ParticleFilter(particle.moves_of(MATRIX), np.full(6, 1 / 6), 6, PARTICLES).beliefs(replays)
    errors = [
        compute_accuracy(rows, F, TRUTH).to_dict()["expected_error"]
        for rows in (list(beliefs), [replay.posterior for replay in replays])
    ]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)


def test_broken_adversaries_are_caught(particle, replays):
    start = np.full(6, 1 / 6)
    stays = particle.ParticleFilter(lambda states, _: states, start, 6, PARTICLES)
    assert distance(stays, replays) > LIMIT
    deaf = particle.ParticleFilter(particle.moves_of(MATRIX), start, 6, PARTICLES)
    silent = [type("Silent", (), {"log_likelihood": np.zeros(6)})() for _ in replays]
    rows = np.array([belief.probabilities for belief in deaf.beliefs(silent)])
    assert np.abs(rows - filter_plainly(replays)).sum(axis=1).max() / 2 > LIMIT


def test_impossible_particles_start_anew(particle):
    replay = type("Replay", (), {"log_likelihood": np.array([-np.inf, 0.0])})()
    adversary = particle.ParticleFilter(lambda states, _: states, [1.0, 0.0], 2, 10)
    (belief,) = adversary.beliefs([replay])
    assert belief.probabilities.tolist() == [0.0, 1.0]
