"""Archives of tiles: what GDAL writes and what the specification says are read alike, what is damaged in one line."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from dphmm.errors import DataFileError
from dphmm.tables import pmtiles
from dphmm.tables.pmtiles import TileArchive, tiles_of_box
from scripts.fuzzing import tiles


def by_definition(zoom: int, column: int, row: int) -> int:
    """Hilbert's curve by its recursion: the four quarters of a square, two of them turned."""
    if zoom == 0:
        return 0
    side = 1 << (zoom - 1)
    x, y = column % side, row % side
    quarter = {(0, 0): 0, (0, 1): 1, (1, 1): 2, (1, 0): 3}[column // side, row // side]
    turned = {0: (y, x), 1: (x, y), 2: (x, y), 3: (side - 1 - y, side - 1 - x)}[quarter]
    return quarter * 4 ** (zoom - 1) + by_definition(zoom - 1, *turned)


@pytest.mark.parametrize("zoom", [0, 1, 2, 3, 5])
def test_tiles_are_numbered_along_hilberts_curve_after_all_of_lesser_zooms(zoom):
    side = 1 << zoom
    found = {(x, y): pmtiles._tile_number(zoom, x, y) for x in range(side) for y in range(side)}
    before = sum(4**lesser for lesser in range(zoom))
    assert sorted(found.values()) == list(range(before, before + 4**zoom))
    assert found == {(x, y): before + by_definition(zoom, x, y) for x in range(side) for y in range(side)}


@pytest.mark.parametrize("leaves", [0, 3])
def test_every_tile_that_is_there_is_found_and_no_other(tmp_path, leaves):
    held = {pmtiles._tile_number(4, x, y): f"{x},{y}".encode() for x in range(16) for y in range(16) if (x + y) % 3}
    (tmp_path / "a.pmtiles").write_bytes(tiles.archive(held, (4, 4), {"attribution": "Them"}, leaves))
    with (tmp_path / "a.pmtiles").open("rb") as stream:
        archive = TileArchive(tmp_path / "a.pmtiles", stream)
        found = {(x, y): data for x, y, data in archive.tiles(4, range(16), range(16))}
        assert json.loads(archive.about()) == {"attribution": "Them"}
        assert archive.zooms == (4, 4)
    assert found == {(x, y): f"{x},{y}".encode() for x in range(16) for y in range(16) if (x + y) % 3}


def test_a_run_of_tiles_shares_its_content(tmp_path):
    content = gzip.compress(b"sea")
    root = gzip.compress(tiles.directory([(21, 5, len(content), 0)]))
    whole = bytearray(tiles.archive({}, (3, 3)))
    at = len(whole)
    for place, value in ((8, at), (16, len(root)), (56, at + len(root)), (64, len(content))):
        whole[place : place + 8] = value.to_bytes(8, "little")
    (tmp_path / "a.pmtiles").write_bytes(bytes(whole) + root + content)
    with (tmp_path / "a.pmtiles").open("rb") as stream:
        found = list(TileArchive(tmp_path / "a.pmtiles", stream).tiles(3, range(8), range(8)))
    numbers = {pmtiles._tile_number(3, x, y) for x, y, _ in found}
    assert numbers == set(range(21, 26))
    assert {data for _, _, data in found} == {b"sea"}


def test_the_tiles_of_a_box_are_those_that_it_meets():
    zoom, box = 9, (34.0, -118.5, 34.3, -118.1)
    columns, rows = tiles_of_box(box, zoom)
    side = 2**zoom
    for latitude, longitude in ((34.0, -118.5), (34.3, -118.1), (34.15, -118.3)):
        x = int(np.floor((longitude + 180) / 360 * side))
        angle = np.radians(latitude)
        y = int(np.floor((1 - np.log(np.tan(angle) + 1 / np.cos(angle)) / np.pi) / 2 * side))
        assert x in columns
        assert y in rows
    assert len(columns) * len(rows) <= 6
    assert tiles_of_box((-90, -180, 90, 180), 0) == (range(1), range(1))


def change(data: bytes, at: int, *values: int) -> bytes:
    return data[:at] + bytes(values) + data[at + len(values) :]


@pytest.mark.parametrize(
    ("at", "values", "said"),
    [
        (7, (2,), "is no PMTiles archive of version 3"),
        (99, (2,), "holds pictures and no vector tiles"),
        (97, (3,), "is packed otherwise than with gzip"),
        (98, (4,), "is packed otherwise than with gzip"),
        (16, (255, 255, 255), "is cut off, or damaged"),
        (8, (126,), "holds a part that is damaged"),
    ],
)
def test_what_is_damaged_is_refused_in_one_line(tmp_path, at, values, said):
    (tmp_path / "a.pmtiles").write_bytes(change(tiles.archive({0: b"x"}, (0, 0)), at, *values))
    with (tmp_path / "a.pmtiles").open("rb") as stream, pytest.raises(DataFileError, match=said):
        list(TileArchive(tmp_path / "a.pmtiles", stream).tiles(0, range(1), range(1)))


def test_a_directory_that_holds_itself_and_a_tile_that_never_ends_are_refused(tmp_path):
    whole = bytearray(tiles.archive({0: b"x"}, (0, 0)))
    loop = gzip.compress(tiles.directory([(0, 0, 30, 0)]))
    assert len(loop) < 40
    loop = gzip.compress(tiles.directory([(0, 0, len(loop), 0)]))
    at = len(whole)
    for place, value in ((8, at), (16, len(loop)), (40, at), (48, len(loop))):
        whole[place : place + 8] = value.to_bytes(8, "little")
    (tmp_path / "loop.pmtiles").write_bytes(bytes(whole) + loop)
    (tmp_path / "bomb.pmtiles").write_bytes(tiles.archive({0: bytes(70 << 20)}, (0, 0)))
    for name, said in (("loop", "without an end"), ("bomb", "unpacks to more than 64 MiB")):
        with (tmp_path / f"{name}.pmtiles").open("rb") as stream, pytest.raises(DataFileError, match=said):
            list(TileArchive(tmp_path / f"{name}.pmtiles", stream).tiles(0, range(1), range(1)))
