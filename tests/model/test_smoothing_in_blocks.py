"""Tests of smoothing in blocks: it equals smoothing in one part, in bounded memory."""

from __future__ import annotations

import errno
import tracemalloc
from contextlib import closing

import numpy as np
import pytest
from scipy import sparse

from dphmm import Grid, MarkovModel
from dphmm.errors import OutputError, StochasticError
from dphmm.model import Observations, filter_releases, forward_backward
from dphmm.model.forward_backward import compute_smoothed_logs, smooth_in_blocks
from dphmm.model.outside_states import create_outside_states
from dphmm.model.row_file import RowFile
from tests.model.clockwork import build_time_dependent_model

GRID = Grid.over((45.0, 7.0, 45.02, 7.03), 0.5)


def sample_matrix(size: int, rng: np.random.Generator) -> np.ndarray:
    matrix = rng.random((size, size)) * (rng.random((size, size)) < 0.5) + np.eye(size)
    return matrix / matrix.sum(axis=1, keepdims=True)


def make_model(name: str) -> MarkovModel:
    rng = np.random.default_rng(11)
    size = GRID.size
    first = np.full(size, 1 / size)
    if name == "plain":
        return MarkovModel(sample_matrix(size, rng), first, GRID, 60.0)
    if name == "outside":
        outside = create_outside_states(GRID)
        return MarkovModel(sample_matrix(len(outside), rng), first, GRID, 60.0, outside=outside)
    return build_time_dependent_model(3, size=size, step=60.0)


def make_observations(size: int, count: int = 37) -> Observations:
    """Return releases with gaps.

    Some exclude states, and some need more range than floats have.
    """
    rng = np.random.default_rng(5)
    rows = rng.normal(0, 30, (count, size))
    rows[::9] *= 40
    rows[4, : size // 2] = -np.inf
    return Observations(rows, rng.choice([0, 1, 1, 1, 2, 40], count), first=7)


def smooth(model, observations, filtered=()):
    """Return the log masses of all blocks and their number, given first rows of the filter."""

    def read(start, stop):
        return observations.log_likelihood[start:stop].copy()

    with closing(RowFile(model.chain_size)) as rows:
        for row in filtered:
            rows.append(row)
        blocks = list(smooth_in_blocks(model, observations.gaps, observations.first, read, rows))
    blocks.sort(key=lambda block: block[0])
    return np.concatenate([logs for _, logs in blocks]), len(blocks)


@pytest.mark.parametrize("num_filtered", [0, 1, 12, 37])
@pytest.mark.parametrize("length", [1, 5, 36, 37, 100])
@pytest.mark.parametrize("name", ["plain", "outside", "time-dependent"])
def test_blocks_match_smoothing_in_one_part(name, length, num_filtered, monkeypatch):
    model = make_model(name)
    observations = make_observations(model.size)
    filtered = filter_releases(model, observations).logs
    wanted = compute_smoothed_logs(model, observations, filtered)
    monkeypatch.setattr(forward_backward, "_BLOCK_ENTRIES", length * model.chain_size)
    logs, num_blocks = smooth(model, observations, filtered[:num_filtered])
    assert num_blocks == -(-37 // length)
    assert ((logs == -np.inf) == (wanted == -np.inf)).all()
    np.testing.assert_allclose(logs[wanted > -np.inf], wanted[wanted > -np.inf], rtol=1e-9, atol=1e-9)


def test_blocks_that_ignore_later_blocks_differ(monkeypatch):
    """Broken twin: the backward pass starts anew in each block."""
    model = make_model("plain")
    observations = make_observations(model.size)
    monkeypatch.setattr(forward_backward, "_BLOCK_ENTRIES", 5 * model.chain_size)
    wanted, _ = smooth(model, observations)
    part = forward_backward._run_backward_part
    uniform = np.full(model.chain_size, -np.log(model.chain_size))
    monkeypatch.setattr(
        forward_backward, "_run_backward_part", lambda operators, rows, _: part(operators, rows, uniform)
    )
    assert np.abs(np.exp(smooth(model, observations)[0]) - np.exp(wanted)).max() > 0.01


def test_impossible_release_is_named_by_its_index(monkeypatch):
    model = MarkovModel(np.eye(2), [0.5, 0.5])
    rows = np.zeros((9, 2))
    rows[2, 0] = rows[7, 1] = -np.inf
    monkeypatch.setattr(forward_backward, "_BLOCK_ENTRIES", 4)
    with pytest.raises(StochasticError, match="release 7 is impossible"):
        smooth(model, Observations(rows))


@pytest.mark.slow
def test_memory_does_not_depend_on_number_of_releases():
    """Measure the peak of Python and NumPy.

    The densities alone need 120 MB, the passes in one part four times as much.
    """
    size, count = 1000, 15_000
    moves = sparse.csr_array(sparse.eye_array(size) * 0.5 + sparse.eye_array(size, k=1) * 0.5)
    moves[size - 1, size - 1] = 1.0
    model = MarkovModel(moves, np.full(size, 1 / size))
    row = np.random.default_rng(0).normal(size=size)
    tracemalloc.start()
    try:
        with_rows = RowFile(size)
        for _ in range(count):
            with_rows.append(row)
        total = 0
        with closing(RowFile(size)) as filtered:
            for _, logs in smooth_in_blocks(model, np.ones(count, dtype=np.int64), None, with_rows.read, filtered):
                total += len(logs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        with_rows.close()
    assert total == count
    assert peak < 200e6


@pytest.mark.parametrize("max_memory_bytes", [1, 10_000])
def test_rows_are_read_back_unchanged(max_memory_bytes):
    rows = np.random.default_rng(1).normal(size=(50, 7))
    rows[3, 2] = -np.inf
    file = RowFile(7, max_memory_bytes)
    for row in rows[:25]:
        file.append(row)
    np.testing.assert_array_equal(file.read(3, 20), rows[3:20])
    for row in rows[25:]:
        file.append(row)
    assert len(file) == 50
    np.testing.assert_array_equal(file.read(0, 50), rows)
    file.close()


def test_full_disk_raises_with_remedy(monkeypatch):
    file = RowFile(3)

    def write(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file._file, "write", write)
    with pytest.raises(OutputError, match=r"No space left on device.*TMPDIR"):
        file.append(np.zeros(3))
