"""The single check of a transition matrix, and its use by every stage."""

from __future__ import annotations

import io

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm import MarkovModel
from dphmm.arrays import make_read_only
from dphmm.counts.noisy_stream import as_transition as counts_transition
from dphmm.errors import PolicyError, StochasticError
from dphmm.leakage import LossFunction
from dphmm.model import compute_stationary_distribution, reverse
from dphmm.policy.graph import PolicyGraph
from dphmm.stochastic_matrix import as_csr, as_stochastic, build_csr

STAGES = {
    "model": lambda matrix: MarkovModel(matrix, np.full(2, 0.5)),
    "leakage": LossFunction,
    "counts": lambda matrix: counts_transition(matrix, 2),
    "reverse": lambda matrix: reverse(matrix, np.full(2, 0.5)),
    "stationary": compute_stationary_distribution,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", [np.array, sp.csr_array, sp.coo_matrix, sp.dok_array])
@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.25]], r"\b0\.75 in row 1"),
        ([[0.5, 0.5], [0.5, 0.5 + 2e-9]], r"got 1\.00000000\d* in row 1"),
        ([[0.0, 0.0], [0.5, 0.5]], "must have rows that sum to 1, got 0 in row 0"),
        ([[1.5, -0.5], [0.5, 0.5]], r"got -0\.5 in row 0, column 1"),
        ([[1.0, 0.0], [0.0, np.nan]], "got nan in row 1, column 1"),
        ([[1.0, 0.0], [np.inf, 0.0]], "got inf in row 1, column 0"),
        ([[0.5, 0.5]], r"must be square .*got shape \(1, 2\)"),
    ],
)
def test_invalid_transition_matrix_raises_same_message_in_every_stage(stage, kind, matrix, message):
    with pytest.raises(StochasticError, match=message) as refused:
        STAGES[stage](kind(matrix))
    assert "matrix" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("matrix", [[[0.5, 0.5], [1.0]], [["a", "b"], ["c", "d"]], [0.5, 0.5], 1.0, np.zeros((0, 0))])
def test_other_than_square_matrix_of_numbers_raises_in_every_stage(stage, matrix):
    with pytest.raises(
        StochasticError, match=r"must be a matrix of numbers|must be square|must be an array of numbers"
    ):
        STAGES[stage](matrix)


@pytest.mark.parametrize("kind", [np.array, sp.csr_array, sp.csc_array, sp.coo_array])
def test_result_is_normalised_copy_of_same_type(kind):
    matrix = kind([[0.25, 0.75 + 5e-10, 0.0], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    before = matrix.copy()
    result = as_stochastic(matrix)
    assert sp.issparse(result) == sp.issparse(matrix)
    assert result is not matrix
    np.testing.assert_allclose(np.asarray(result.sum(axis=1)).ravel(), 1.0, rtol=1e-15)
    dense = result.toarray() if sp.issparse(result) else result
    assert dense[1].tolist() == [0.1, 0.2, 0.7], "decimal fractions stay as they were written"
    compressed = as_stochastic(matrix, compressed=True)
    assert compressed.format == "csr"
    assert compressed.nnz == 6
    assert np.array_equal(compressed.toarray(), dense)
    assert (matrix != before).sum() == 0
    again = as_stochastic(result)
    assert ((again != result).sum()) == 0, "what was normalised once stays as it is to the last bit"


def test_duplicate_entries_are_summed():
    twice = sp.coo_array(([0.5, 0.5, 1.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    assert as_stochastic(twice).toarray().tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_faint_probabilities_raise_only_if_smallest_is_set():
    faint = [[1.0, 1e-250], [0.0, 1.0]]
    assert as_stochastic(faint)[0, 1] == 1e-250
    for form in (faint, sp.csr_array(faint)):
        with pytest.raises(StochasticError, match=r"below 1e-200, got 1e-250 in row 0, column 1"):
            as_stochastic(form, smallest=1e-200)


def test_locked_makes_arrays_and_compressed_matrices_read_only():
    for array in (np.zeros(2), sp.csr_array(np.eye(2)), sp.csc_array(np.eye(2))):
        held = make_read_only(array)
        assert held is array
        for part in (held,) if isinstance(held, np.ndarray) else (held.data, held.indices, held.indptr):
            assert not part.flags.writeable


def _break_matrix(form: str, part: str, values: object) -> object:
    """Make a sparse matrix with scipy, then replace its indices."""
    whole = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])
    matrix = getattr(sp, f"{form}_array")(whole)
    setattr(matrix, part, np.asarray(values))
    return matrix


BROKEN = {
    "csr beyond": ("csr", "indices", [0, 1, 1, 0, 1, 10**8]),
    "csr negative": ("csr", "indices", [0, 1, 1, 0, 1, -(10**8)]),
    "csr back": ("csr", "indptr", [0, 5, 3, 6]),
    "csr far": ("csr", "indptr", [0, 2, 10**9, 6]),
    "csr long": ("csr", "indptr", [0, 2, 3, 6, 6]),
    "csr too many": ("csr", "indptr", [0, 2, 3, 7]),
    "csr not all": ("csr", "indptr", [0, 2, 3, 5]),
    "csr fractions": ("csr", "indices", [0.0, 1.0, 1.0, 0.0, 1.0, 2.0]),
    "csr few": ("csr", "indices", [0, 1, 1]),
    "csr rectangle": ("csr", "indices", [[0, 1], [1, 0], [1, 2]]),
    "csc beyond": ("csc", "indices", [0, 2, 0, 1, 2, 3]),
    "csc back": ("csc", "indptr", [0, 5, 3, 6]),
    "bsr beyond": ("bsr", "indices", [0, 1, 2, 3, 4, 10**8]),
    "coo beyond": ("coo", "row", [0, 0, 1, 2, 2, 10**8]),
    "coo negative": ("coo", "col", [0, 1, 1, 0, 1, -5]),
    "dia far": ("dia", "offsets", [-2, -1, 10**8]),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("take", [as_stochastic, as_csr, PolicyGraph.transition])
def test_invalid_sparse_indices_raise(name, take):
    form, part, values = BROKEN[name]
    with pytest.raises((StochasticError, PolicyError), match="sparse matrix"):
        take(_break_matrix(form, part, values))


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "dia", "lil", "dok"])
def test_every_sparse_form_is_accepted_and_not_modified(form):
    whole = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])
    matrix = getattr(sp, f"{form}_array")(whole)
    np.testing.assert_array_equal(as_csr(matrix).toarray(), whole)
    np.testing.assert_array_equal(matrix.toarray(), whole)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 2)], ids=repr)
@pytest.mark.parametrize("take", [as_stochastic, as_csr, PolicyGraph.transition, lambda m: MarkovModel(m, [1.0])])
def test_other_than_two_dimensions_raises(shape, take):
    with pytest.raises((StochasticError, PolicyError), match="shape"):
        take(np.ones(shape))


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "dia"])
def test_saved_sparse_matrix_is_read_and_changed_arrays_raise(form):
    whole = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])
    file = io.BytesIO()
    sp.save_npz(file, getattr(sp, f"{form}_array")(whole))
    file.seek(0)
    arrays = dict(np.load(file))
    np.testing.assert_array_equal(build_csr(arrays).toarray(), whole)
    indices = [part for part in ("indices", "indptr", "row", "col", "offsets") if part in arrays]
    wrong = [(part, change) for part in indices for change in (np.float64, lambda a: a[:, None], lambda a: a[:-1])]
    wrong += [(part, change) for part in indices for change in (lambda a: a + 10**9, lambda a: a.astype("u8") - 9)]
    wrong += [("shape", change) for change in (lambda a: a * 10**6, lambda a: -a, lambda a: a[:1], np.float64)]
    wrong += [("data", np.complex128)]
    for part, change in wrong:
        with pytest.raises(StochasticError):
            build_csr({**arrays, part: change(arrays[part])})
    for part in ("format", "shape", "data", *indices):
        with pytest.raises(StochasticError, match="must be saved with all arrays"):
            build_csr({name: array for name, array in arrays.items() if name != part})


@pytest.mark.parametrize("of", [np.array, sp.csr_array])
def test_row_with_infinite_sum_raises(of):
    with pytest.raises(StochasticError, match="got inf in row 0"):
        as_stochastic(of([[1.7e308, 1.7e308], [0.0, 1.0]]), "matrix")
