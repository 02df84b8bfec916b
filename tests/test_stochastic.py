"""The one check of a transition matrix, and that every stage uses it."""

from __future__ import annotations

import io

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm import MarkovModel
from dphmm.arrays import locked
from dphmm.counts.stream import as_transition as counts_transition
from dphmm.errors import PolicyError, StochasticError
from dphmm.leakage import LossFunction
from dphmm.model import reverse, stationary
from dphmm.policy.graph import PolicyGraph
from dphmm.stochastic import as_csr, as_stochastic, csr_of_arrays

STAGES = {
    "model": lambda matrix: MarkovModel(matrix, np.full(2, 0.5)),
    "leakage": LossFunction,
    "counts": lambda matrix: counts_transition(matrix, 2),
    "reverse": lambda matrix: reverse(matrix, np.full(2, 0.5)),
    "stationary": stationary,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", [np.array, sp.csr_array, sp.coo_matrix, sp.dok_array])
@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.25]], r"row 1 sums to 0\.75; every row must sum to 1"),
        ([[0.5, 0.5], [0.5, 0.5 + 2e-9]], r"row 1 sums to 1\.00000000"),
        ([[0.0, 0.0], [0.5, 0.5]], r"row 0 sums to 0;"),
        ([[1.5, -0.5], [0.5, 0.5]], r"row 0, column 1 is -0\.5; probabilities are finite and not negative"),
        ([[1.0, 0.0], [0.0, np.nan]], "row 1, column 1 is nan"),
        ([[1.0, 0.0], [np.inf, 0.0]], "row 1, column 0 is inf"),
        ([[0.5, 0.5]], r"shape \(1, 2\); it must be square"),
    ],
)
def test_every_stage_refuses_what_is_no_transition_matrix_in_the_same_words(stage, kind, matrix, message):
    with pytest.raises(StochasticError, match=message) as refused:
        STAGES[stage](kind(matrix))
    assert "matrix" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("matrix", [[[0.5, 0.5], [1.0]], [["a", "b"], ["c", "d"]], [0.5, 0.5], 1.0, np.zeros((0, 0))])
def test_every_stage_refuses_what_is_no_square_of_numbers(stage, matrix):
    with pytest.raises(StochasticError, match=r"not a matrix of numbers|must be square|give an array of numbers"):
        STAGES[stage](matrix)


@pytest.mark.parametrize("kind", [np.array, sp.csr_array, sp.csc_array, sp.coo_array])
def test_result_is_a_normalised_copy_of_the_same_kind(kind):
    given = kind([[0.25, 0.75 + 5e-10, 0.0], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    before = given.copy()
    found = as_stochastic(given)
    assert sp.issparse(found) == sp.issparse(given)
    assert found is not given
    np.testing.assert_allclose(np.asarray(found.sum(axis=1)).ravel(), 1.0, rtol=1e-15)
    dense = found.toarray() if sp.issparse(found) else found
    assert dense[1].tolist() == [0.1, 0.2, 0.7], "decimal fractions stay as they were written"
    compressed = as_stochastic(given, compressed=True)
    assert compressed.format == "csr"
    assert compressed.nnz == 6
    assert np.array_equal(compressed.toarray(), dense)
    assert (given != before).sum() == 0
    again = as_stochastic(found)
    assert ((again != found).sum()) == 0, "what was normalised once stays as it is to the last bit"


def test_entries_stored_twice_are_one():
    twice = sp.coo_array(([0.5, 0.5, 1.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    assert as_stochastic(twice).toarray().tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_faint_probabilities_are_refused_only_where_asked():
    faint = [[1.0, 1e-250], [0.0, 1.0]]
    assert as_stochastic(faint)[0, 1] == 1e-250
    for form in (faint, sp.csr_array(faint)):
        with pytest.raises(StochasticError, match="row 0, column 1 is 1e-250; set probabilities below 1e-200 to 0"):
            as_stochastic(form, smallest=1e-200)


def test_frozen_holds_arrays_and_compressed_matrices():
    for array in (np.zeros(2), sp.csr_array(np.eye(2)), sp.csc_array(np.eye(2))):
        held = locked(array)
        assert held is array
        for part in (held,) if isinstance(held, np.ndarray) else (held.data, held.indices, held.indptr):
            assert not part.flags.writeable


def _broken(form: str, part: str, values: object) -> object:
    """A sparse matrix into which, once scipy has made it, other indices are put."""
    whole = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])
    made = getattr(sp, f"{form}_array")(whole)
    setattr(made, part, np.asarray(values))
    return made


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
def test_indices_outside_a_sparse_matrix_never_reach_compiled_code(name, take):
    form, part, values = BROKEN[name]
    with pytest.raises((StochasticError, PolicyError), match="is no sparse matrix: "):
        take(_broken(form, part, values))


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "dia", "lil", "dok"])
def test_every_sparse_form_is_taken_as_it_is_and_left_as_it_was(form):
    whole = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])
    given = getattr(sp, f"{form}_array")(whole)
    np.testing.assert_array_equal(as_csr(given).toarray(), whole)
    np.testing.assert_array_equal(given.toarray(), whole)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 2)])
@pytest.mark.parametrize("take", [as_stochastic, as_csr, PolicyGraph.transition, lambda m: MarkovModel(m, [1.0])])
def test_other_than_two_dimensions_is_an_error_of_our_own(shape, take):
    with pytest.raises((StochasticError, PolicyError), match="shape"):
        take(np.ones(shape))


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "dia"])
def test_what_scipy_saves_is_read_and_what_it_could_not_have_saved_is_refused(form):
    whole = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])
    file = io.BytesIO()
    sp.save_npz(file, getattr(sp, f"{form}_array")(whole))
    file.seek(0)
    arrays = dict(np.load(file))
    np.testing.assert_array_equal(csr_of_arrays(arrays).toarray(), whole)
    indices = [part for part in ("indices", "indptr", "row", "col", "offsets") if part in arrays]
    wrong = [(part, change) for part in indices for change in (np.float64, lambda a: a[:, None], lambda a: a[:-1])]
    wrong += [(part, change) for part in indices for change in (lambda a: a + 10**9, lambda a: a.astype("u8") - 9)]
    wrong += [("shape", change) for change in (lambda a: a * 10**6, lambda a: -a, lambda a: a[:1], np.float64)]
    wrong += [("data", np.complex128)]
    for part, change in wrong:
        with pytest.raises(StochasticError):
            csr_of_arrays({**arrays, part: change(arrays[part])})
    for part in ("format", "shape", "data", *indices):
        with pytest.raises(StochasticError, match="lacks an array"):
            csr_of_arrays({name: array for name, array in arrays.items() if name != part})


@pytest.mark.parametrize("of", [np.array, sp.csr_array])
def test_a_row_whose_sum_leaves_doubles_is_refused_without_a_warning(of):
    with pytest.raises(StochasticError, match="row 0 sums to inf"):
        as_stochastic(of([[1.7e308, 1.7e308], [0.0, 1.0]]), "matrix")
