"""Changed files of NumPy: headers, values, members."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from scripts.fuzzing import nasty, values
from scripts.fuzzing.archives import of_zip, zipped

_TYPES = (
    "<f8",
    ">f8",
    "<f4",
    "<f2",
    "<i8",
    "<i4",
    "|i1",
    "|u1",
    "<u8",
    "|b1",
    "<U3",
    "|S5",
    "<c16",
    "|O",
    "<M8[us]",
    "<f16",
    "|V8",
    "<U0",
)


def of_npy(data: bytes, rng: Random, text: Callable[[str, Random], str] | None = None) -> bytes:
    """An array with its header, its values or, where it is a text, what it says changed."""
    kind = rng.random()
    try:
        array = np.load(io.BytesIO(data))
    except Exception:  # one that was changed before
        return nasty.of_bytes(data, rng)
    if kind < 0.15:
        return nasty.of_bytes(data, rng)
    if kind < 0.45:
        return _header(data, rng)
    if array.dtype.kind == "U" and array.size == 1 and text is not None:
        # a header whose byte order was changed makes halves of pairs, and letters that no text has
        held = array.item().encode("utf-8", "replace").decode("utf-8", "replace")
        return _saved(np.array(text(held, rng).encode("utf-8", "replace").decode("utf-8", "replace")))
    if kind < 0.85 and array.size and array.dtype.kind in "fiu":
        flat = np.array(array).ravel()
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(flat.size)
            given = rng.choice(values.FLOATS) if flat.dtype.kind == "f" else rng.choice(values.INTEGERS)
            bits = np.iinfo(flat.dtype) if flat.dtype.kind != "f" else None
            if bits is None or bits.min <= given <= bits.max:
                flat[at] = given
        return _saved(flat.reshape(array.shape))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changes: tuple[Callable[[Any], Any], ...] = (
            lambda a: (
                a.astype(rng.choice(("<f8", ">f4", "<i4", "<i8", "<u8", "|b1", "<f2")), copy=True)
                if a.dtype.kind in "fiub"
                else a
            ),
            lambda a: a[..., None],
            lambda a: a.ravel(),
            lambda a: a[:0] if a.ndim else a,
            lambda a: a[:-1] if a.ndim else a,
            lambda a: np.concatenate([a, a]) if a.ndim else a,
            lambda a: a[::-1] if a.ndim else a,
            lambda a: np.asfortranarray(a),
            lambda a: np.sort(a, axis=None),
            lambda a: a * 2 if a.dtype.kind in "fiu" else a,
        )
        return _saved(rng.choice(changes)(array))


def _saved(array: Any) -> bytes:
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


def _header(data: bytes, rng: Random) -> bytes:
    header = np.lib.format.read_array_header_1_0
    stream = io.BytesIO(data)
    np.lib.format.read_magic(stream)
    shape, fortran, kind = header(stream)
    body = data[stream.tell() :]
    described: str = repr(np.lib.format.dtype_to_descr(kind))
    stated: str = repr(shape)
    order = repr(fortran)
    part = rng.randrange(5)
    if part == 0:
        described = (
            repr(rng.choice(_TYPES))
            if rng.random() < 0.8
            else rng.choice(("[('a', '<f8')]", "7", "'", values.text(rng)))
        )
    elif part == 1:
        sizes = [rng.choice((*shape, *values.INTEGERS)) for _ in range(rng.choice((0, 1, 2, 3, 40)))]
        stated = rng.choice((repr(tuple(sizes)), repr(sizes), values.number_text(rng), f"({values.number_text(rng)},)"))
    elif part == 2:
        order = rng.choice(("True", "False", "None", "1", "[]", values.text(rng)))
    text = f"{{'descr': {described}, 'fortran_order': {order}, 'shape': {stated}, }}"
    if part == 3:
        text = nasty.of_bytes(text.encode("utf-8", "replace"), rng).decode("latin-1")
    encoded = text.encode("utf-8", "replace") + b" " * rng.choice((0, 7, 20)) + b"\n"
    version = rng.choice((1, 1, 1, 2, 3)) if part != 4 else rng.randrange(256)
    width = 2 if version == 1 else 4
    length = len(encoded) if rng.random() < 0.9 else rng.choice(values.INTEGERS)
    return b"\x93NUMPY" + bytes((version, 0)) + (length % 256**width).to_bytes(width, "little") + encoded + body


def of_npz(data: bytes, rng: Random, text: Callable[[str, Random], str] | None = None) -> bytes:
    """An archive of arrays with arrays changed, removed, renamed or doubled, or changed as a zip."""
    if rng.random() < 0.2:
        return of_zip(data, rng, nasty.of_bytes)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    for _ in range(rng.choice((1, 1, 1, 2))):
        at = rng.randrange(len(members))
        name, content = members[at]
        kind = rng.randrange(12)
        if kind < 9:
            members[at] = (name, of_npy(content, rng, text) if content.startswith(b"\x93NUMPY\1") else content)
        elif kind == 9 and len(members) > 1:
            del members[at]
        elif kind == 10:
            members[at] = (rng.choice((rng.choice(members)[0], "a.npy", "a.txt", values.text(rng)[:50])), content)
        else:
            members[at] = (name, rng.choice(members)[1])
    return zipped(members, rng)
