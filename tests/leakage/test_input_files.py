"""Matrix files: all formats, and errors with line numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm.errors import DataFileError
from dphmm.leakage.input_files import read_budgets, read_matrix, read_numbers

MATRIX = np.array([[0.8, 0.2], [0.0, 1.0]])


def test_every_format_gives_equal_matrix(tmp_path):
    (tmp_path / "m.csv").write_text("\ufeff# a comment\n0.8, 2e-1\n\n0,1 # the last\n", encoding="utf-8")
    np.save(tmp_path / "m.npy", MATRIX)
    np.savez(tmp_path / "dense.npz", matrix=MATRIX)
    sp.save_npz(tmp_path / "sparse.npz", sp.csc_array(MATRIX))
    for name in ("m.csv", "m.npy", "dense.npz"):
        np.testing.assert_array_equal(read_matrix(tmp_path / name), MATRIX)
    sparse = read_matrix(tmp_path / "sparse.npz")
    assert sparse.format == "csr"
    np.testing.assert_array_equal(sparse.toarray(), MATRIX)
    np.testing.assert_array_equal(read_numbers(tmp_path / "sparse.npz"), [0.8, 0.2, 0.0, 1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.8,0.2\n0,one\n", "line 2: value 2 .*'one'"),
        ("0.8,0.2\n\n0,0.5,0.5\n", "line 3: each row must have 2 numbers, .* got 3"),
        ("0.8,0.2,\n", "line 1: value 3 .*''"),
        ("# nothing\n", "contains no numbers: write one row per line"),
    ],
)
def test_invalid_text_raises_with_line(tmp_path, text, message):
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(DataFileError, match=message) as refused:
        read_matrix(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["m.csv", "m.npy", "m.npz"])
def test_missing_or_broken_file_raises(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(DataFileError, match="no such file"):
        read_matrix(path)
    path.write_bytes(b"\xff\xfe\x00PK broken")
    with pytest.raises(DataFileError) as refused:
        read_matrix(path)
    assert "\n" not in str(refused.value)


def test_invalid_archive_raises(tmp_path):
    np.savez(tmp_path / "two.npz", a=MATRIX, b=MATRIX)
    with pytest.raises(DataFileError, match=r"2 arrays.* a, b"):
        read_matrix(tmp_path / "two.npz")
    np.savez(tmp_path / "words.npz", a=np.array(["x"]))
    with pytest.raises(DataFileError, match="numbers"):
        read_matrix(tmp_path / "words.npz")
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(DataFileError, match="plain numbers"):
        read_matrix(tmp_path / "objects.npy")


def test_budgets_of_text_are_exact(tmp_path):
    (tmp_path / "b.csv").write_text("1/3\n0.1  # one tenth\n\n2e-1\n0\n")
    assert read_budgets(tmp_path / "b.csv") == [Fraction(1, 3), Fraction(1, 10), Fraction(1, 5), 0]
    np.save(tmp_path / "b.npy", [0.5, 0.25])
    assert read_budgets(tmp_path / "b.npy") == [0.5, 0.25]


@pytest.mark.parametrize("name", ["m.csv", "m.npy", "m.npz", "sparse.npz"])
def test_matrix_is_not_a_list_of_budgets(tmp_path, name):
    (tmp_path / "m.csv").write_text("0.8,0.2\n0,1\n")
    np.save(tmp_path / "m.npy", MATRIX)
    np.savez(tmp_path / "m.npz", matrix=MATRIX)
    sp.save_npz(tmp_path / "sparse.npz", sp.csc_array(MATRIX))
    with pytest.raises(DataFileError, match=r"line 1: .*'0\.8,0\.2'|shape \(2, 2\)"):
        read_budgets(tmp_path / name)
