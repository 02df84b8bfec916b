"""Models: fitting by counts, saving, loading and validation."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_matrix, csr_array

from dphmm import Grid, MarkovModel
from dphmm.errors import DataFileError, InvalidInputError, StateError, StochasticError

sequences = st.lists(st.lists(st.integers(-1, 5), max_size=12), min_size=1, max_size=5)


@given(sequences)
def test_fitted_probabilities_are_shares_of_counted_moves(drawn):
    if not any(state >= 0 for sequence in drawn for state in sequence):
        with pytest.raises(InvalidInputError, match="no sequence visits"):
            MarkovModel.fit(drawn, 6)
        return
    counts, visits = np.zeros((6, 6)), np.zeros(6)
    for sequence in drawn:
        for here, there in pairwise(sequence):
            if here >= 0 and there >= 0:
                counts[here, there] += 1
        for state in sequence:
            visits[state] += state >= 0
    for state in range(6):
        if not counts[state].any():
            counts[state, state] = 1
    model = MarkovModel.fit(drawn, 6)
    np.testing.assert_allclose(model.transition.toarray(), counts / counts.sum(axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(model.initial, visits / visits.sum(), rtol=1e-12)


def test_moves_across_a_gap_are_not_counted():
    by_slots = MarkovModel.fit([([10, 11, 15, 16], [0, 1, 2, 0])], 3)
    with_unknown = MarkovModel.fit([[0, 1, -1, -1, -1, 2, 0]], 3)
    np.testing.assert_array_equal(by_slots.transition.toarray(), with_unknown.transition.toarray())
    assert by_slots.transition.toarray()[1].tolist() == [0.0, 1.0, 0.0]


def test_smoothing_adds_pseudo_count_to_stays_and_both_directions():
    model = MarkovModel.fit([[0, 1, 1]], 4, smoothing=0.5, neighbours=[[0, 1], [1, 2]])
    expected = [[0.5, 1.5, 0, 0], [0.5, 1.5, 0.5, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(model.transition.toarray(), expected / np.sum(expected, axis=1, keepdims=True))
    np.testing.assert_allclose(model.initial, np.array([1.5, 2.5, 0.5, 0]) / 4.5)


def test_smoothing_over_observed_moves_makes_both_directions_possible():
    model = MarkovModel.fit([[0, 1, 2]], 3, smoothing=1.0)
    assert (model.transition.toarray() > 0).tolist() == [[True, True, False], [True, True, True], [False, True, True]]


def test_model_round_trips_through_a_file(tmp_path):
    grid = Grid.over((45.0, 7.0, 45.01, 7.02), 0.5)
    model = MarkovModel.fit([np.arange(grid.size)], grid.size, states=grid, step_seconds=300)
    model.save(tmp_path / "city.npz")
    again = MarkovModel.load(tmp_path / "city.npz")
    np.testing.assert_array_equal(again.transition.toarray(), model.transition.toarray())
    np.testing.assert_array_equal(again.initial, model.initial)
    assert again.states == grid
    assert again.step_seconds == 300


def test_model_arrays_are_read_only_copies():
    matrix_input = csr_array(np.array([[0.5, 0.5], [0.25, 0.75]]))
    first = np.array([0.5, 0.5])
    model = MarkovModel(matrix_input, first)
    before = model.content_hash
    step = model.one_step_operators[0]
    derived = [
        array for side in (step.forward_product, step.backward_product) for array in (side.dense, side.log_shares)
    ]
    for matrix in (model.transition, step.forward_product.matrix, model.structure):
        derived += [matrix.data, matrix.indices, matrix.indptr]
    for array in [model.initial, *derived]:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]
    with pytest.raises(ValueError, match="read-only"):
        model.transition[0, 0] = 0.9
    for name in ("transition", "initial", "states", "step_seconds"):
        with pytest.raises(AttributeError):
            setattr(model, name, None)
    first[:] = 0.9, 0.1
    matrix_input.data[:], matrix_input.indices[:] = 0.5, 0
    assert MarkovModel(model.transition, model.initial).content_hash == before
    assert pickle.loads(pickle.dumps(model)).content_hash == before


@pytest.mark.parametrize("kind", [np.array, csr_array, coo_matrix])
def test_constructor_leaves_input_unchanged(kind):
    rows = [[0.5, 0.5 + 4e-10, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]
    matrix_input, first = kind(rows), np.array([1.0, 0.0, 0.0])
    model = MarkovModel(matrix_input, first)
    np.testing.assert_array_equal(matrix_input if kind is np.array else matrix_input.toarray(), rows)
    assert all(array.flags.writeable for array in (first, matrix_input if kind is np.array else matrix_input.data))
    assert model.content_hash == MarkovModel(np.array(rows), [1.0, 0.0, 0.0]).content_hash


def test_stored_zeros_are_removed():
    model = MarkovModel([[1.0, 0.0], [0.5, 0.5]], [1.0, 0.0])
    assert model.transition.nnz == 3


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.4], [0.5, 0.5]], r"rows that sum to 1, got 0\.9 in row 0\b"),
        ([[1.5, -0.5], [0.5, 0.5]], r"non-negative entries, got -0\.5 in row 0, column 1\b"),
        ([[0.5, 0.5], [np.nan, 1.0]], r"finite, .* entries, got nan in row 1, column 0\b"),
        ([[0.5, 0.5]], r"shape \(1, 2\)"),
        (np.zeros((0, 0)), r"shape \(0, 0\)"),
    ],
)
def test_non_stochastic_matrix_raises(matrix, message):
    with pytest.raises(StochasticError, match=message):
        MarkovModel(matrix, [0.5, 0.5])


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        ([0.5, 0.4], r"must sum to 1, got 0\.9\b"),
        ([1.0], "2 states"),
        ([1.5, -0.5], r"non-negative .*got -0\.5 in entry 1\b"),
    ],
)
def test_invalid_initial_distribution_raises(initial, message):
    with pytest.raises(StochasticError, match=message):
        MarkovModel(np.eye(2), initial)


def test_state_out_of_range_raises():
    with pytest.raises(StateError, match=r"states must be .* got 7\b"):
        MarkovModel.fit([[0, 7]], 3)
    with pytest.raises(StateError, match=r"states must be .* got -2\b"):
        MarkovModel.fit([[0, -2]], 3)


def test_decreasing_slots_raise():
    with pytest.raises(InvalidInputError, match="increase"):
        MarkovModel.fit([([3, 2], [0, 1])], 3)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"hello"])
def test_invalid_model_file_raises(tmp_path, content):
    (tmp_path / "model.npz").write_bytes(content)
    with pytest.raises(DataFileError, match="dphmm learn"):
        MarkovModel.load(tmp_path / "model.npz")


def test_truncated_model_file_raises(tmp_path):
    MarkovModel(np.eye(50), np.full(50, 0.02)).save(tmp_path / "model.npz")
    whole = (tmp_path / "model.npz").read_bytes()
    (tmp_path / "model.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataFileError, match="Markov model"):
        MarkovModel.load(tmp_path / "model.npz")


def _save_and_read_arrays(model: MarkovModel, path) -> dict[str, np.ndarray]:
    model.save(path)
    with np.load(path) as archive:
        return dict(archive)


def _change_header(arrays: dict[str, np.ndarray], **changes: object) -> np.ndarray:
    return np.array(json.dumps(json.loads(arrays["about"].item()) | changes))


@pytest.mark.parametrize(
    "changed",
    [
        lambda a: {"indices": a["indices"] + 10**8},
        lambda a: {"indices": a["indices"] - 10**8},
        lambda a: {"indices": a["indices"].astype(float)},
        lambda a: {"indices": a["indices"][::-1, None]},
        lambda a: {"indptr": a["indptr"][::-1]},
        lambda a: {"indptr": np.where(np.arange(len(a["indptr"])) == 3, 10**9, a["indptr"])},
        lambda a: {"indptr": a["indptr"][:-1]},
        lambda a: {"indptr": np.array(5)},
        lambda a: {"data": a["data"][1:]},
        lambda a: {"data": a["data"] * np.nan},
        lambda a: {"data": a["data"].astype(complex)},
        lambda a: {"initial": a["initial"][:, None]},
        lambda a: {"initial": np.array("x")},
        lambda a: {"about": np.array(7)},
        lambda a: {"about": np.array("[" * 100_000)},
        lambda a: {"about": np.array(f'{{"format": {"9" * 5000}}}')},
        lambda a: {"about": np.array("[]")},
        lambda a: {"about": _change_header(a, format="dphmm-markov-model-2")},
        lambda a: {"about": _change_header(a, learned={"max_speed_kmh": 150.0})},
        lambda a: {"about": _change_header(a, step_seconds=10**400)},
        lambda a: {"about": _change_header(a, step_seconds=1e300)},
        lambda a: {"about": _change_header(a, step_seconds="60")},
        lambda a: {"about": _change_header(a, states=[1])},
        lambda a: {"about": _change_header(a, states={"kind": ["grid"]})},
        *(
            lambda a, change=change: {
                "about": _change_header(a, states=json.loads(a["about"].item())["states"] | change)
            }
            for change in (
                {"runs": [[0, 50_000_000]], "rows": 5000, "columns": 10_000},
                {"runs": [[0, 2], [1, 13]]},
                {"runs": [[0, 10**30]]},
                {"runs": [[0.0, 15.0]]},
                {"runs": "abc"},
                {"rows": 10**400},
                {"rows": "many"},
                {"rows": float("inf")},
                {"cell_km": 1e308},
                {"cell_km": 10**400},
                {"cell_km": float("nan")},
                {"origin_m": [10**400, 0]},
                {"origin_m": [0]},
                {"projection": {"latitude": 0}},
                {"projection": {"latitude": 1e9, "longitude": 0}},
                {"projection": {"latitude": 0, "longitude": 0, "radius": 1}},
                {"projection": 7},
            )
        ),
    ],
)
def test_crafted_file_raises_in_one_line_with_bounded_memory(tmp_path, changed):
    grid = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)
    model = MarkovModel(np.full((15, 15), 1 / 15), np.full(15, 1 / 15), grid, 60.0)
    arrays = _save_and_read_arrays(model, tmp_path / "m.npz")
    np.savez(tmp_path / "m.npz", **(arrays | changed(arrays)))
    tracemalloc.start()
    with pytest.raises(DataFileError, match=r"m\.npz: is not a Markov model \(") as refused:
        MarkovModel.load(tmp_path / "m.npz")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_flipped_bits_never_give_model_with_invalid_index(tmp_path):
    """Check 300 uncompressed files with valid checksums, seed 0, and accept most changes."""
    rng = np.random.default_rng(0)
    model = MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25))
    arrays = _save_and_read_arrays(model, tmp_path / "m.npz")
    accepted = 0
    for _ in range(300):
        name = ("indices", "indptr", "data", "initial")[rng.integers(4)]
        data = bytearray(arrays[name].tobytes())
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        changed = np.frombuffer(bytes(data), arrays[name].dtype)
        np.savez(tmp_path / "m.npz", **(arrays | {name: changed}))
        try:
            loaded = MarkovModel.load(tmp_path / "m.npz")
        except DataFileError:
            continue
        accepted += 1
        assert loaded.transition.indices.min() >= 0
        assert loaded.transition.indices.max() < 4
        np.testing.assert_allclose(loaded.transition.toarray().sum(axis=1), 1.0, rtol=1e-9)
    assert 0 < accepted < 100
