"""Changed archives: their members, or their headers with sums made right."""

from __future__ import annotations

import gzip
import io
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from random import Random

from scripts.fuzzing import nasty, values

Change = Callable[[bytes, Random], bytes]


def of_zip(data: bytes, rng: Random, change: Change) -> bytes:
    """An archive with a member changed, its headers changed, or its bytes."""
    kind = rng.random()
    if kind < 0.3:
        return nasty.of_bytes(data, rng)
    if kind < 0.6:
        return _headers(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    at = rng.randrange(len(members))
    name, content = members[at]
    if rng.random() < 0.7:
        members[at] = (name, change(content, rng))
    else:
        members[at] = (rng.choice((values.text(rng)[:200], "../a.csv", "/a.csv", "a/", "a.csv.gz", ".a.csv")), content)
    if rng.random() < 0.1:
        members += rng.choices(members, k=2)
    return zipped(members, rng)


def zipped(members: list[tuple[str, bytes]], rng: Random) -> bytes:
    made = io.BytesIO()
    method = rng.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w", method) as archive:
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name.encode("utf-8", "replace").decode() or "a"), content, method)
    return made.getvalue()


def _headers(data: bytes, rng: Random) -> bytes:
    """Numbers in the headers and directories of a zip set to others: sizes, offsets, methods, flags, versions."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        magic = rng.choice((b"PK\3\4", b"PK\1\2", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7"))
        found = [at for at in range(len(changed) - 4) if changed.startswith(magic, at)]
        if found:
            width = rng.choice((2, 4))
            at = rng.choice(found) + 4 + 2 * rng.randrange(22)
            changed[at : at + width] = (rng.choice(values.INTEGERS) % 256**width).to_bytes(width, "little")
    return bytes(changed)


def of_tar(data: bytes, rng: Random, change: Change) -> bytes:
    """An archive, plain or packed, with fields of its headers changed and their sums made right, or members."""
    packed = data[:2] == b"\x1f\x8b"
    plain = bytearray(gzip.decompress(data) if packed else data)
    kind = rng.random()
    if kind < 0.25:
        plain = bytearray(nasty.of_bytes(bytes(plain), rng))
    elif kind < 0.75:
        for _ in range(rng.choice((1, 1, 2))):
            _change_tar_header(plain, rng)
    else:
        plain = bytearray(
            _tarred(change(b"", rng) if rng.random() < 0.1 else change(_first_member(bytes(plain)), rng), rng)
        )
    made = gzip.compress(bytes(plain), 1, mtime=0) if packed else bytes(plain)
    return nasty.of_bytes(made, rng) if rng.random() < 0.1 else made


def _first_member(data: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        content = archive.extractfile(archive.getmembers()[0])
        return b"" if content is None else content.read()


def _tarred(content: bytes, rng: Random) -> bytes:
    made = io.BytesIO()
    form = rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        info = tarfile.TarInfo(rng.choice(("a.csv", "a.csv.gz", "x" * 90 + ".csv", "d/" * 40 + "é.csv")))
        info.size = len(content)
        if form == tarfile.PAX_FORMAT:
            names = (
                "path",
                "size",
                "mtime",
                "GNU.sparse.major",
                "GNU.sparse.size",
                "GNU.sparse.map",
                "hdrcharset",
                "uid",
            )
            info.pax_headers = {
                rng.choice(names): rng.choice((values.number_text(rng), values.text(rng)))[:5000] for _ in range(2)
            }
            info.pax_headers = {
                name: text.encode("utf-8", "replace").decode() for name, text in info.pax_headers.items()
            }
        archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


_TAR_FIELDS = (
    (0, 100),
    (100, 8),
    (108, 8),
    (116, 8),
    (124, 12),
    (136, 12),
    (156, 1),
    (157, 100),
    (257, 8),
    (345, 155),
    (386, 12),
    (483, 12),
)


def _change_tar_header(plain: bytearray, rng: Random) -> None:
    block = 512 * rng.randrange(max(len(plain) // 512, 1))
    start, width = rng.choice(_TAR_FIELDS)
    kind = rng.randrange(4)
    if kind == 0:
        field = b"%o" % (abs(rng.choice(values.INTEGERS)) % 8**width)
    elif kind == 1:  # base 256, which may be negative
        field = rng.choice((b"\x80", b"\xff")) + (rng.choice(values.INTEGERS) % 256 ** max(width - 1, 1)).to_bytes(
            max(width - 1, 1), "big"
        )
    elif kind == 2:
        field = rng.choice((b"S", b"L", b"K", b"x", b"g", b"X", b"5", b"1", b"2", b"V", b"\0", b"7"))
    else:
        field = values.text(rng).encode("utf-8", "replace")
    plain[block + start : block + start + width] = field[:width].ljust(width, b"\0")
    if len(plain) >= block + 512:
        plain[block + 148 : block + 156] = b" " * 8
        plain[block + 148 : block + 156] = b"%06o\0 " % sum(plain[block : block + 512])


def of_gzip(data: bytes, rng: Random, change: Change) -> bytes:
    """A gzipped file with its content changed, or its bytes, or packed twice."""
    kind = rng.random()
    if kind < 0.4:
        return nasty.of_bytes(data, rng)
    made = gzip.compress(change(gzip.decompress(data), rng), 1, mtime=0)
    return gzip.compress(made, 1, mtime=0) if kind > 0.97 else made + (made if kind > 0.9 else b"")
