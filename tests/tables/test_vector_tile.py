"""A tile's layers by the specification, its example, and GDAL's own writing of it."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.tables.vector_tile import tile_features
from scripts.fuzzing import tiles

SQUARE = [(0, 0), (0, 10), (10, 10), (10, 0)]


def test_layers_features_and_their_words_come_back():
    features = [
        (1, [[(5, 7)], [(6, 8)]], {"kind": "town", "name": "É"}),
        (2, [[(0, 0), (-3, 4), (9, 9)]], {"kind": "river"}),
    ]
    data = tiles.tile({"places": features, "building": [(3, [SQUARE], {})]}, extent=512)
    point, line = tile_features(data, {"building"})
    assert (point.layer, point.properties, point.kind, point.extent) == (
        "places",
        {"kind": "town", "name": "É"},
        1,
        512,
    )
    assert [part.tolist() for part in point.parts] == [[[5, 7]], [[6, 8]]]
    assert [part.tolist() for part in line.parts] == [[[0, 0], [-3, 4], [9, 9]]]
    assert [one.layer for one in tile_features(data)] == ["places", "places", "building"]


@pytest.mark.parametrize(
    ("numbers", "parts"),
    [
        ([9, 50, 34], [[[25, 17]]]),
        ([17, 10, 14, 3, 9], [[[5, 7]], [[3, 2]]]),
        ([9, 4, 4, 18, 0, 16, 16, 0], [[[2, 2], [2, 10], [10, 10]]]),
        ([9, 4, 4, 18, 0, 16, 16, 0, 9, 17, 17, 10, 4, 8], [[[2, 2], [2, 10], [10, 10]], [[1, 1], [3, 5]]]),
        ([9, 6, 12, 18, 10, 12, 24, 44, 15], [[[3, 6], [8, 12], [20, 34]]]),
    ],
)
def test_the_specifications_own_examples_of_geometries(numbers, parts):
    body = tiles.field(1, b"a") + tiles.field(
        2, tiles.field(3, 1) + tiles.field(4, b"".join(map(tiles.varint, numbers)))
    )
    (feature,) = tile_features(tiles.field(3, body))
    assert [part.tolist() for part in feature.parts] == parts


def test_values_of_every_kind_are_read():
    kinds = [
        (tiles.field(1, b"x"), "x"),
        (bytes([2 << 3 | 5]) + np.float32(0.5).tobytes(), 0.5),
        (bytes([3 << 3 | 1]) + np.float64(0.25).tobytes(), 0.25),
        (tiles.field(4, 7), 7),
        (tiles.field(5, 8), 8),
        (tiles.field(6, tiles.folded(-9)), -9),
        (tiles.field(7, 1), True),
    ]
    tags = b"".join(tiles.varint(n) for at in range(len(kinds)) for n in (at, at))
    body = tiles.field(1, b"a") + tiles.field(2, tiles.field(2, tags) + tiles.field(3, 1))
    body += b"".join(tiles.field(3, str(at).encode()) + tiles.field(4, value) for at, (value, _) in enumerate(kinds))
    (feature,) = tile_features(tiles.field(3, body))
    assert list(feature.properties.values()) == [value for _, value in kinds]


GOOD = tiles.tile({"a": [(2, [[(0, 0), (3, 4)]], {"k": "v"})]})


@pytest.mark.parametrize("data", [GOOD[:-1], GOOD[:9], b"\xff" * 20, b"\x1b", tiles.tile({"a": []}, extent=0)])
def test_what_is_no_tile_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        list(tile_features(data))


def test_a_property_that_its_layer_does_not_have_and_lines_from_nowhere_are_refused():
    for inner in (tiles.field(2, b"\x00\x01"), tiles.field(2, b"\x00"), tiles.field(4, tiles.varint(10) + b"\x02\x02")):
        with pytest.raises(ValueError, match=r"property|geometry"):
            list(tile_features(tiles.field(3, tiles.field(1, b"a") + tiles.field(2, inner))))
