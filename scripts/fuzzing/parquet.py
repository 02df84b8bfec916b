"""Changed Parquet files: columns, types, values, metadata, footers."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scripts.fuzzing import nasty, values

_COLUMNS: tuple[Callable[[int], Any], ...] = (
    lambda n: pa.array([None] * n),
    lambda n: pa.array([b"\xff\xfe"] * n),
    lambda n: pa.array([1.5, None, float("nan")][:n] + [0.0] * max(n - 3, 0)),
    lambda n: pa.array(range(n), pa.uint64()),
    lambda n: pa.array([2**63 - 1] * n),
    lambda n: pa.array([[1, 2]] * n),
    lambda n: pa.array([{"x": 1.0, "y": 2.0}] * n),
    lambda n: pa.array([True, False] * n)[:n],
    lambda n: pa.array([0] * n, pa.date32()),
    lambda n: pa.array([2**31 - 1] * n, pa.date32()),
    lambda n: pa.array([-(2**62)] * n, pa.timestamp("s")),
    lambda n: pa.array([2**63 - 1] * n, pa.timestamp("us", tz="Mars/Olympus")),
    lambda n: pa.array([-(2**63)] * n, pa.timestamp("ns", tz="UTC")),
    lambda n: pa.array([1709802000] * n, pa.timestamp("ms", tz="+05:30")),
    lambda n: pa.array([5] * n, pa.duration("us")),
    lambda n: pa.array([5] * n, pa.time64("us")),
    lambda n: pa.array([0.5] * n, pa.float16()),
    lambda n: pa.array([7] * n, pa.decimal128(20, 3)),
    lambda n: pa.array(["a", "b"] * n)[:n].dictionary_encode(),
    lambda n: pa.array([1, 2] * n)[:n].dictionary_encode(),
    lambda n: pa.array(["a"] * n, pa.large_string()),
    lambda n: pa.array(["a"] * n, pa.string_view()),
    lambda n: pa.array([b"12345678"] * n, pa.binary(8)),
    lambda n: pa.array([b"\1\1\0\0\0" + struct.pack("<2d", 7, 45)] * n),
    lambda n: pa.array([b"\1\7\0\0\0\1\0\0\0" * 50] * n),
    lambda n: pa.array([b"\1\1\0\0\0" + struct.pack("<2d", float("nan"), float("nan"))] * n),
)


@cache
def _table(data: bytes) -> Any:
    return pq.read_table(io.BytesIO(data))


def of_parquet(data: bytes, rng: Random) -> bytes:
    """A Parquet file with columns, types, values, names or metadata changed, its footer or its bytes."""
    kind = rng.random()
    if kind < 0.2:
        return nasty.of_bytes(data, rng)
    if kind < 0.4:  # the footer, the pages' headers
        length = int.from_bytes(data[-8:-4], "little")
        cut = len(data) - 8 - length
        footer = nasty.of_bytes(data[cut:-8], rng)
        length = len(footer) if rng.random() < 0.9 else rng.choice(values.INTEGERS) % 2**32
        return data[:cut] + footer + length.to_bytes(4, "little") + data[-4:]
    table = _table(data)
    columns = {name: table[name] for name in table.column_names}
    names = list(columns)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(names)
        change = rng.randrange(8)
        if change < 4:
            columns[name] = rng.choice(_COLUMNS)(len(table))
        elif change == 4:
            columns[name] = _values(columns[name], rng)
        elif change == 5:
            columns.pop(name, None)
        elif change == 6:
            columns = {
                (values.text(rng).encode("utf-8", "replace").decode() if one == name else one): c
                for one, c in columns.items()
            }
        names = list(columns) or names
        if not set(names) <= set(columns):
            break
    metadata = dict(table.schema.metadata or {})
    if rng.random() < 0.35:
        geo = json.loads(metadata.get(b"geo", b'{"columns": {"geometry": {"crs": null}}}'))
        said = nasty.written(nasty.of_json(geo, rng)) if rng.random() < 0.9 else values.text(rng)
        metadata[b"geo"] = said.encode("utf-8", "replace")
    made = pa.table(columns).replace_schema_metadata(metadata)
    rows = rng.random()
    if rows < 0.05:
        made = made.slice(0, 0)
    elif rows < 0.1 and made.num_columns:
        made = pa.table([made.column(0)] * 2, names=[made.column_names[0]] * 2)
    stream = io.BytesIO()
    try:
        pq.write_table(
            made,
            stream,
            compression=rng.choice(("none", "snappy", "zstd", "gzip")),
            use_dictionary=rng.random() < 0.7,
            data_page_version=rng.choice(("1.0", "2.0")),
            row_group_size=rng.choice((1, 2, 1000)),
            store_schema=rng.random() < 0.8,
            write_statistics=rng.random() < 0.5,
        )
    except (pa.ArrowException, OverflowError, ValueError):
        return nasty.of_bytes(data, rng)
    return stream.getvalue()


def _values(column: Any, rng: Random) -> Any:
    """A column with some of its values replaced by others of its type, or by texts."""
    try:
        cells = column.to_pylist()
    except (pa.ArrowException, OverflowError, ValueError):
        return column
    for _ in range(rng.choice((1, 2))):
        if cells:
            pool = values.FLOATS if pa.types.is_floating(column.type) else values.INTEGERS
            as_text = pa.types.is_string(column.type) or rng.random() < 0.1
            cells[rng.randrange(len(cells))] = (
                values.text(rng).encode("utf-8", "replace").decode() if as_text else rng.choice(pool)
            )
    try:
        return pa.array(cells, column.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return pa.array([str(cell) for cell in cells])
