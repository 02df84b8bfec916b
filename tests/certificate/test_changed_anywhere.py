"""Certificates and files that are changed anywhere are refused or mean the same.

The meaning is read without the verifier: by `json` with the parts in place of their digests, by `csv` in floats, and by
GDAL for layers.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from fractions import Fraction
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

from dphmm.writers.formats import read_releases, write_releases
from tests.certificate import forgeries
from tests.certificate.certificates import encode, find_steps
from tests.certificate.test_lies import mutate
from tests.certificate.test_published_files import judge
from tests.sizes import choose_count

# Cells within these errors are equal: the verifier counts those that another last digit would have left acceptable.
_RELATIVE_ERROR = 2e-7
_DEGREES = 1.5e-6


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """World → its folder, with certificate, rows in three formats and model."""
    pytest.importorskip("geopandas")
    pytest.importorskip("pyogrio")
    built = forgeries.build_worlds(tmp_path_factory.mktemp("worlds"))
    folders = {}
    for world in ("published_sessions", "published_table"):
        lines, rows, model = built[world]
        folders[world] = folder = tmp_path_factory.mktemp(world)
        (folder / "proof.jsonl").write_bytes(b"".join(encode(lines)))
        columns = list(rows["ann"][0])
        with (folder / "rows.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(row for user in sorted(rows) for row in rows[user])
        for suffix in ("geojson", "gpkg"):
            write_releases(folder / f"rows.{suffix}", read_releases(folder / "rows.csv"))
        model.save(folder / "model.npz")
    return folders


# ---- meaning ---------------------------------------------------------------------------------------------------------


def read_certificate(data: bytes) -> Any:
    """Return begins and steps with the parts that they refer to.

    A begin without steps has no meaning, and the order of a table's rows neither; weights have 13
    digits. Limits are claims of the certificate
    alone: they are returned as whether they hold.
    """
    lines, parts = [], {}
    for line in data.decode().split("\n")[:-1]:
        value = json.loads(line)
        if "part" not in value:
            if "step" not in value and lines and "begin" in lines[-1]:
                lines.pop()
            lines.append(value)
            continue
        part = parts[value["part"][:16]] = value["value"]
        for noise_part in part.get("parts", ()):
            if "table" in noise_part:
                places = noise_part.pop("places")
                pairs = product(places, repeat=2)
                weights = (f"{int(weight):.12e}" for weight in chain.from_iterable(noise_part["table"]))
                noise_part["table"] = dict(zip(pairs, weights, strict=True))

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: resolve(inner) for key, inner in value.items() if key != "limits"}
        if isinstance(value, list):
            return [resolve(inner) for inner in value]
        return resolve(parts[value]) if isinstance(value, str) and value in parts else value

    return [resolve(line) for line in lines], are_limits_kept(lines)


def are_limits_kept(lines: list[Any]) -> bool:
    """Add up the releases of each user in all windows."""
    spent: dict[str, list[tuple[int, Fraction]]] = {}
    limits: dict[str, Any] = {}
    for line in lines:
        if "begin" in line:
            user = line["begin"]
            limits[user] = line.get("limits") or {"epsilon": None, "window_epsilon": None}
        elif "step" in line:
            spent.setdefault(user, []).append((line["slot"], Fraction(line["epsilon"])))
    for user, releases in spent.items():
        total, maximum = limits[user]["epsilon"], limits[user]["window_epsilon"]
        if total is not None and sum(epsilon for _, epsilon in releases) > Fraction(total):
            return False
        for end, _ in releases if maximum is not None else ():
            recent = [epsilon for slot, epsilon in releases if end - limits[user]["window_steps"] < slot <= end]
            if sum(recent) > Fraction(maximum):
                return False
    return True


def read_cells(text: str) -> Any:
    rows = list(csv.reader(io.StringIO(text, newline="")))
    return rows[0], rows[1:]


def is_same_cell(name: str, before: str, after: str) -> bool:
    if before == after:
        return True
    if not (name.endswith(("_m", "itude")) or name in ("adversary_max_posterior", "component_posterior")):
        return False
    error = _DEGREES if name.endswith("itude") else _RELATIVE_ERROR * abs(float(before))
    return math.isclose(float(before), float(after), rel_tol=0, abs_tol=error)


def is_same_table(before: str, after: str, output: str = "") -> bool:
    """Compare all columns but those that the verifier's output lists as not verified."""
    (names, rows), (other_names, other_rows) = read_cells(before), read_cells(after)
    unverified = re.search(r"other columns: ([a-z0-9_, ]+)", output)
    names = [name for name in names if not unverified or name not in unverified[1].split(", ")]
    as_dicts = [[dict(zip(other_names, row, strict=True)) for row in table] for table in (rows, other_rows)]
    return all(
        is_same_cell(name, row[name], other[name]) for row, other in zip(*as_dicts, strict=True) for name in names
    )


def read_layers(path: Path) -> Any:
    """Read reference system, cells and shapes of each layer with GDAL."""
    import pyogrio

    layers = {}
    for name in ("estimates", "released", "tracks"):
        meta, _, shapes, fields = pyogrio.raw.read(path, layer=name)
        cells = {str(field): values.tolist() for field, values in zip(meta["fields"], fields, strict=True)}
        # The verifier allows a relative error of 1e-12 in means.
        means = cells.pop("mean_estimate_error_m", [])
        cells["means"] = [f"{mean:.11g}" for mean in means]
        layers[name] = meta["crs"], meta["geometry_type"], shapes.tolist(), repr(cells)
    return layers


# ---- certificates ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("world", ["published_sessions", "published_table"])
def test_changed_value_is_refused_or_means_the_same(folders, tmp_path, world):
    """Change a JSON value, and often the digests that depend on it."""
    folder, rng = folders[world], random.Random(f"value {world}")
    data = (folder / "proof.jsonl").read_bytes()
    lines = [json.loads(line) for line in data.splitlines()]
    num_refused = 0
    for _ in range(choose_count(400, 40)):
        mutated_lines = json.loads(json.dumps(lines))
        what = mutate(mutated_lines, rng)
        (tmp_path / "proof.jsonl").write_bytes(b"".join(encode(mutated_lines)))
        code, text = judge(tmp_path / "proof.jsonl", folder / "rows.csv", "--model", folder / "model.npz")
        if code == 0:
            assert read_certificate((tmp_path / "proof.jsonl").read_bytes()) == read_certificate(data), (what, text)
        num_refused += code == 1
    assert num_refused >= choose_count(300, 30)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["published_sessions", "published_table"])
def test_changed_byte_is_refused_or_means_the_same(folders, tmp_path, world):
    """Replace, insert, delete, repeat or swap bytes of the certificate."""
    folder, rng = folders[world], random.Random(f"byte {world}")
    data = (folder / "proof.jsonl").read_bytes()
    for _ in range(choose_count(400, 40)):
        changed = change_bytes(data, rng)
        (tmp_path / "proof.jsonl").write_bytes(changed)
        code, text = judge(tmp_path / "proof.jsonl", folder / "rows.csv", "--model", folder / "model.npz")
        assert code in (0, 1), text
        if code == 0:
            assert read_certificate(changed) == read_certificate(data), text


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    at, to = sorted(rng.randrange(len(data)) for _ in range(2))
    put = bytes([rng.choice(b' \t0123456789-+.eE"{}[],:\\\xff\x00abcxyz')])
    short = slice(at, at + rng.randrange(1, 40))
    changes = (
        data[:at] + put + data[at + 1 :],
        data[:at] + put + data[at:],
        data[:at] + data[at + 1 :],
        data[:at] + data[short] + data[at:],
        data[:at] + data[at + 1 : at + 2] + data[at : at + 1] + data[at + 2 :],
        data[:to],
        data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
    )
    return rng.choice([changed for changed in changes if changed != data] or [data[:-1]])


@pytest.mark.slow
def test_changed_order_of_lines_is_refused_or_means_the_same(folders, tmp_path):
    folder, rng = folders["published_sessions"], random.Random("order")
    data = (folder / "proof.jsonl").read_bytes()
    for _ in range(choose_count(150, 20)):
        lines = data.splitlines(keepends=True)
        first, second = (rng.randrange(len(lines)) for _ in range(2))
        rng.choice(
            [
                lambda lines=lines, first=first, second=second: lines.insert(first, lines.pop(second)),
                lambda lines=lines, first=first, second=second: lines.insert(first, lines[second]),
                lambda lines=lines, first=first: lines.pop(first),
            ]
        )()
        (tmp_path / "proof.jsonl").write_bytes(b"".join(lines))
        code, text = judge(tmp_path / "proof.jsonl", folder / "rows.csv", "--model", folder / "model.npz")
        if code == 0:
            assert read_certificate(b"".join(lines)) == read_certificate(data), text


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("world", ["published_sessions", "published_table"])
def test_changed_csv_is_refused_or_means_the_same(folders, tmp_path, world):
    folder, rng = folders[world], random.Random(f"csv {world}")
    data = (folder / "rows.csv").read_bytes()
    for _ in range(choose_count(400, 40)):
        changed = change_bytes(data, rng)
        (tmp_path / "rows.csv").write_bytes(changed)
        code, text = judge(folder / "proof.jsonl", tmp_path / "rows.csv", "--model", folder / "model.npz")
        if code == 0:
            assert is_same_table(data.decode(), changed.decode(), text), text


@pytest.mark.slow
def test_changed_geojson_is_refused_or_means_the_same(folders, tmp_path):
    folder, rng = folders["published_sessions"], random.Random("geojson")
    data = (folder / "rows.geojson").read_bytes()
    names = list(json.loads(data)["features"][0]["properties"])

    def flatten(data: bytes) -> Any:
        """Return a document without cells and coordinates, and its cells."""
        document = json.loads(data)
        rows = [feature.pop("properties") for feature in document["features"]]
        for feature, row in zip(document["features"], rows, strict=True):
            if feature["geometry"] is not None:
                assert feature["geometry"]["coordinates"] == [row["estimate_longitude"], row["estimate_latitude"]]
                del feature["geometry"]["coordinates"]
        text = io.StringIO()
        writer = csv.DictWriter(text, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(
            {name: json.dumps(float(cell) if type(cell) is int else cell) for name, cell in row.items()} for row in rows
        )
        return document, text.getvalue()

    for _ in range(choose_count(300, 40)):
        changed = change_bytes(data, rng)
        (tmp_path / "rows.geojson").write_bytes(changed)
        code, text = judge(folder / "proof.jsonl", tmp_path / "rows.geojson", "--model", folder / "model.npz")
        if code == 0:
            (document, table), (other, other_table) = flatten(data), flatten(changed)
            assert document == other, text
            assert is_same_table(table, other_table, text), text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_changed_geopackage_is_refused_or_means_the_same_to_gdal(folders, tmp_path):
    """Styles, metadata and descriptions may change: the verifier states this."""
    from pyogrio.errors import DataLayerError, DataSourceError
    from pyproj.exceptions import CRSError

    folder, rng = folders["published_sessions"], random.Random("geopackage")
    data = (folder / "rows.gpkg").read_bytes()
    wanted, num_accepted = read_layers(folder / "rows.gpkg"), 0
    num_pages = len(data) // 4096
    for number in range(choose_count(400, 40)):
        changed = bytearray(data)
        page = rng.randrange(num_pages)
        used = [k for k in range(4096 * page, 4096 * page + 4096) if data[k]] or [4096 * page]
        changed[rng.choice(used)] ^= 1 << rng.randrange(8)
        path = tmp_path / f"{number}" / "rows.gpkg"
        path.parent.mkdir()
        path.write_bytes(bytes(changed))
        code, _ = judge(folder / "proof.jsonl", path, "--model", folder / "model.npz")
        if code == 0:
            num_accepted += 1
            try:
                layers = read_layers(path)
            except (DataSourceError, DataLayerError, CRSError):
                continue  # GDAL reads nothing
            assert layers == wanted, (number, page, layers, wanted)
    assert num_accepted >= choose_count(40, 2)


# ---- a broken verifier -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_meaning_distinguishes_every_claim(folders):
    """A meaning that ignored a claim could not show that the claim is bound."""
    data = (folders["published_sessions"] / "proof.jsonl").read_bytes()
    lines = [json.loads(line) for line in data.splitlines()]
    for key in ("slot", "epsilon", "sum", "day", "z", "noise"):
        changed = json.loads(json.dumps(lines))
        step = next(step for step in find_steps(changed) if key in step)
        step[key] = 17
        assert read_certificate(b"".join(encode(changed))) != read_certificate(data)
    changed = json.loads(json.dumps(lines))
    changed[1]["value"]["cell"] = "7"
    assert read_certificate(b"".join(encode(changed))) != read_certificate(data)
    assert not is_same_table("x_km\n0.5\n", "x_km\n0.6\n")
    assert not is_same_table("latitude\n45.0\n", "latitude\n45.00001\n")
    assert is_same_table("latitude\n45.0\n", "latitude\n45.000001\n")
