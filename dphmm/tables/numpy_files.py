"""NumPy's ``.npy`` and ``.npz`` files: arrays of plain numbers and texts, their headers checked against their sizes.

`numpy.load` trusts a header: it evaluates it as Python and asks for as much memory as it says. Here a header is matched
as text, and nothing is made of it unless exactly as many bytes follow as it says.
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
from dphmm.tables.source import Allowance, Document, read_document, readable

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
_MOST_AXES = 32
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
        Booleans, integers, floats or texts; read-only.

    Raises
    ------
    DataFileError
        When the file cannot be read, or holds no such array.
    """
    document = read_document(path)
    return _array(document)


def read_npz(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays in an ``.npz`` file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    dict
        Name → booleans, integers, floats or texts; read-only.

    Raises
    ------
    DataFileError
        When the file cannot be read, holds anything but such arrays, or two of one name, or unpacks to more than
        `dphmm.tables.max_unpacked` allows.
    """
    path, found = Path(path), dict[str, npt.NDArray[Any]]()
    with readable(path), path.open("rb") as file:
        allowance = Allowance(path, path.stat().st_size)
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in found:
                    raise DataFileError(path, f"holds {name!r} twice; write it anew")
                with archive.open(member) as content:
                    found[name] = _array(Document(f"{path}/{name}", PurePosixPath(name), allowance.whole(content)))
    return found


def _array(document: Document) -> npt.NDArray[Any]:
    """Make the array in the bytes of an ``.npy`` file, without a copy of them."""
    data = document.data
    if not (data.startswith(_MAGIC) and data[6:7] in (b"\1", b"\2", b"\3")):
        raise DataFileError(document.source, "is no NumPy array; save it with numpy.save")
    start = 10 if data[6] == 1 else 12
    end = start + int.from_bytes(data[8:start], "little")
    matched = _HEADER.fullmatch(data[start : min(end, start + _LONGEST_HEADER)].decode("latin-1"))
    axes = [] if matched is None else [axis.strip() for axis in matched["shape"].split(",")]
    axes = axes[:-1] if axes and not axes[-1] else axes  # (3,) and ()
    if matched is None or len(axes) > _MOST_AXES or not all(_AXIS.fullmatch(axis) for axis in axes):
        raise DataFileError(document.source, "is no array of plain numbers or texts; save one with numpy.save")
    shape, kind = tuple(int(axis) for axis in axes), np.dtype(matched["type"])
    count = math.prod(shape)
    if count * kind.itemsize != len(data) - end or (count == 0 and max(shape, default=0) >= 1 << 31):
        raise DataFileError(
            document.source,
            f"holds {max(len(data) - end, 0)} bytes of an array {shape} of {kind.name}; it is cut off or was changed",
        )
    if kind.kind == "U":  # of which Python makes texts without a look
        letters = np.frombuffer(data, np.dtype("u4").newbyteorder(kind.byteorder), count * kind.itemsize // 4, end)
        if count and letters.max() > sys.maxunicode:
            raise DataFileError(
                document.source, f"holds {int(letters.max()):#x} where a letter should be; write it anew"
            )
    array = np.frombuffer(data, kind, count, end) if count else np.zeros(0, kind)
    return array.reshape(shape, order="F" if matched["fortran"] == "True" else "C")
