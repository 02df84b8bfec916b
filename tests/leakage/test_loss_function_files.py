"""Matrices from files: every form, and each problem with its line."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm.errors import DataFileError
from dphmm.leakage.loss_function import read_matrix, read_numbers

MATRIX = np.array([[0.8, 0.2], [0.0, 1.0]])


def test_every_form_gives_the_same_matrix(tmp_path):
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
        ("0.8,0.2\n0,one\n", "line 2: value 2 is 'one'; give a decimal number"),
        ("0.8,0.2\n\n0,0.5,0.5\n", "line 3: 3 numbers, the first row has 2"),
        ("0.8,0.2,\n", "line 1: value 3 is ''; give a decimal number"),
        ("# nothing\n", "holds no numbers"),
    ],
)
def test_bad_text_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(DataFileError, match=message) as refused:
        read_matrix(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["m.csv", "m.npy", "m.npz"])
def test_missing_and_broken_files_are_refused(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(DataFileError, match="no such file"):
        read_matrix(path)
    path.write_bytes(b"\xff\xfe\x00PK broken")
    with pytest.raises(DataFileError) as refused:
        read_matrix(path)
    assert "\n" not in str(refused.value)


def test_archives_of_other_things_are_refused(tmp_path):
    np.savez(tmp_path / "two.npz", a=MATRIX, b=MATRIX)
    with pytest.raises(DataFileError, match="2 arrays, one is wanted: a, b"):
        read_matrix(tmp_path / "two.npz")
    np.savez(tmp_path / "words.npz", a=np.array(["x"]))
    with pytest.raises(DataFileError, match="numbers are wanted"):
        read_matrix(tmp_path / "words.npz")
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(DataFileError, match="no array of plain numbers"):
        read_matrix(tmp_path / "objects.npy")
