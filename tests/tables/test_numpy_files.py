"""NumPy files: what numpy.load reads is read alike, and a false header takes no memory."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from dphmm.errors import DataFileError
from dphmm.tables.numpy_files import read_npy, read_npz

ARRAYS = {
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3)),
    "list": np.arange(5, dtype=np.int32),
    "big endian": np.arange(5, dtype=">f8"),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "cube": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "truths": np.array([[True], [False]]),
    "text": np.array("μ and \U0001f600"),
    "bytes": np.array([b"ab", b"c"]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_file_equals_numpy_load(tmp_path, name):
    array = ARRAYS[name]
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", first=array, second=array)
    for array_read in (read_npy(tmp_path / "a.npy"), *read_npz(tmp_path / "a.npz").values()):
        expected = np.load(tmp_path / "a.npy")
        assert (array_read.dtype, array_read.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(array_read, expected)


def _encode_file(header: bytes, body: bytes = b"\0" * 24, version: bytes = b"\1\0") -> bytes:
    width = 2 if version == b"\1\0" else 4
    return b"\x93NUMPY" + version + len(header).to_bytes(width, "little") + header + body


GOOD = b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"
BAD = {
    "a huge shape": GOOD.replace(b"(3,)", b"(99999999999999,)"),
    "a shape of nothing": GOOD.replace(b"(3,)", b"(0, 99999999999999)"),
    "more than there is": GOOD.replace(b"(3,)", b"(4,)"),
    "less than there is": GOOD.replace(b"(3,)", b"(2,)"),
    "a negative shape": GOOD.replace(b"(3,)", b"(-3,)"),
    "no shape": GOOD.replace(b"'shape': (3,), ", b""),
    "a number as shape": GOOD.replace(b"(3,)", b"3"),
    "half a shape": GOOD.replace(b"(3,)", b"(,3)"),
    "an object": GOOD.replace(b"<f8", b"|O"),
    "no type": GOOD.replace(b"<f8", b"<f1"),
    "texts of no length": GOOD.replace(b"<f8", b"<U0"),
    "records": GOOD.replace(b"'<f8'", b"[('a', '<f8')]"),
    "code": GOOD.replace(b"False", b"__import__('os').abort()"),
    "deep": b"(" * 5000 + b")" * 5000,
    "forty axes": GOOD.replace(b"(3,)", b"(" + b"1," * 40 + b")"),
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("version", [b"\1\0", b"\2\0"])
def test_invalid_header_raises(tmp_path, name, version):
    (tmp_path / "a.npy").write_bytes(_encode_file(GOOD, version=version))
    assert read_npy(tmp_path / "a.npy").tolist() == [0.0, 0.0, 0.0]
    (tmp_path / "a.npy").write_bytes(_encode_file(BAD[name], version=version))
    with pytest.raises(DataFileError) as refused:
        read_npy(tmp_path / "a.npy")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"\x93NUMPY\1\0\xff\xff", b"\x93NUMPY\7\0\1\0{", b"PK\3\4"])
def test_file_without_array_raises(tmp_path, data):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(DataFileError, match=r"a\.npy"):
        read_npy(tmp_path / "a.npy")


def test_archive_with_repeated_name_or_other_file_raises(tmp_path):
    array = io.BytesIO()
    np.save(array, np.arange(3))
    for names, content, problem in (
        (("a.npy", "a"), array.getvalue(), "contains 'a' twice"),
        (("a.txt",), b"words", "is not a NumPy array"),
    ):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            for name in names:
                archive.writestr(zipfile.ZipInfo(name), content)
        with pytest.raises(DataFileError, match=problem):
            read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("order", ["<", ">"])
def test_invalid_code_point_raises(tmp_path, order):
    """NumPy reads such characters into texts, and encoding the texts fails."""
    np.save(tmp_path / "a.npy", np.array(["word", ""], dtype=f"{order}U4"))
    assert read_npy(tmp_path / "a.npy").tolist() == ["word", ""]
    data = bytearray((tmp_path / "a.npy").read_bytes())
    at = data.rindex(b"w")
    data[at - 3 if order == ">" else at + 3] = 1
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(DataFileError, match="0x1000077"):
        read_npy(tmp_path / "a.npy")
