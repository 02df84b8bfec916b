"""Validated reading of NumPy files of untrusted origin.

`numpy.load` trusts a header: it evaluates it as Python and allocates the memory that the header states. Here a header
is matched as text, and an array is built only if exactly the stated number of bytes follows.
"""

from __future__ import annotations

import math
import re
import sys
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.errors import DataFileError
from dphmm.tables.source import Allowance, Document, convert_read_errors, is_database_in_use, read_document

_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 10_000
_MAX_AXES = 32
_KEY = r"\s*'{}'\s*:\s*"
_HEADER = re.compile(
    r"\{" + _KEY.format("descr") + r"'(?P<type>[<>|=]?(?:b1|[iu][1248]|f[248]|[US][1-9]\d{0,8}))'\s*,"
    + _KEY.format("fortran_order") + r"(?P<fortran>True|False)\s*,"
    + _KEY.format("shape") + r"\((?P<shape>[\d\s,]{0,400})\)\s*,?\s*\}\s*",
    re.ASCII,
)  # fmt: skip
_AXIS = re.compile(r"\d{1,15}", re.ASCII)


def read_npy(path: str | Path) -> npt.NDArray[Any]:
    """Read the array in an ``.npy`` file.

    Parameters
    ----------
    path
        The file, which may be gzipped.

    Returns
    -------
    array
        Booleans, integers, floats or strings; read-only.

    Raises
    ------
    DataFileError
        If the file cannot be read, or does not contain such an array.
    """
    return _parse_array(read_document(path))


def read_npz(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays in an ``.npz`` file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    dict
        Name → booleans, integers, floats or strings; read-only.

    Raises
    ------
    DataFileError
        If the file cannot be read, contains anything except such arrays, or two of the same name, or unpacks to more
        than `dphmm.tables.max_unpacked` allows.
    """
    path = Path(path)
    arrays = dict[str, npt.NDArray[Any]]()
    with convert_read_errors(path):
        if is_database_in_use(path):  # closing it would drop this process's locks on it
            raise zipfile.BadZipFile("File is not a zip file")
    with convert_read_errors(path), path.open("rb") as file:
        allowance = Allowance(path, path.stat().st_size)
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise DataFileError(path, f"contains {name!r} twice; write it again")
                with archive.open(member) as content:
                    arrays[name] = _parse_array(
                        Document(f"{path}/{name}", PurePosixPath(name), allowance.read_all(content))
                    )
    return arrays


def _parse_array(document: Document) -> npt.NDArray[Any]:
    """Return the array in the bytes of an ``.npy`` file, without copying them."""
    data = document.data
    if not (data.startswith(_MAGIC) and data[6:7] in (b"\1", b"\2", b"\3")):
        raise DataFileError(document.source, "is not a NumPy array; save it with numpy.save")
    start = 10 if data[6] == 1 else 12
    end = start + int.from_bytes(data[8:start], "little")
    matched = _HEADER.fullmatch(data[start : min(end, start + _MAX_HEADER_BYTES)].decode("latin-1"))
    axes = [] if matched is None else [axis.strip() for axis in matched["shape"].split(",")]
    axes = axes[:-1] if axes and not axes[-1] else axes  # (3,) and ()
    if matched is None or len(axes) > _MAX_AXES or not all(_AXIS.fullmatch(axis) for axis in axes):
        raise DataFileError(document.source, "is not an array of plain numbers or strings; save one with numpy.save")
    shape = tuple(int(axis) for axis in axes)
    kind = np.dtype(matched["type"])
    count = math.prod(shape)
    if count * kind.itemsize != len(data) - end or (count == 0 and max(shape, default=0) >= 1 << 31):
        raise DataFileError(
            document.source,
            f"contains {max(len(data) - end, 0)} bytes for an array {shape} of {kind.name}; it is cut off or changed",
        )
    if kind.kind == "U":  # Python would create strings from invalid code points unchecked
        letters = np.frombuffer(data, np.dtype("u4").newbyteorder(kind.byteorder), count * kind.itemsize // 4, end)
        if count and letters.max() > sys.maxunicode:
            raise DataFileError(
                document.source, f"contains {int(letters.max()):#x} in place of a character; write it again"
            )
    array = np.frombuffer(data, kind, count, end) if count else np.zeros(0, kind)
    return array.reshape(shape, order="F" if matched["fortran"] == "True" else "C")
