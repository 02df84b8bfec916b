"""Tables of named places: usual column names, and one-line errors."""

from __future__ import annotations

import pytest

from dphmm.errors import DataFileError
from dphmm.readers.fix_tables import read_places


@pytest.mark.parametrize("heading", ["name,latitude,longitude", "Label,LAT,lng", "place,lat,lon,note"])
def test_places_keep_their_order(tmp_path, heading):
    extra = ",x" if heading.endswith("note") else ""
    (tmp_path / "p.csv").write_text(
        f"\ufeff{heading}\nwork,45.02,7.05{extra}\nhome,45.0,7.0{extra}\n", encoding="utf-8"
    )
    places = read_places(tmp_path / "p.csv", within_km=0.5)
    assert places.names == ("work", "home")
    assert places.locate([45.0001], [7.0001]).tolist() == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rows"),
        ("name,lat\nhome,1", "line 1: .*column 'longitude'"),
        ("name,lat,lon\nhome,45,north", "line 2: lon .*'north'"),
        ("name,lat,lon\nhome,45", "line 2: has 2 fields, but the header has 3"),
        ("lat,lon\n45,7\n", "column 'name'.*lat, lon.*place"),
        ("name,lat,lon\n", "rows"),
        ("name,lat,lon\na,1,1\na,2,2", "unique, got 'a' twice"),
        ("name,lat,lon\na,95,1", "latitude"),
    ],
)
def test_invalid_table_raises(tmp_path, text, message):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(DataFileError, match=message):
        read_places(tmp_path / "p.csv")


def test_missing_file_raises(tmp_path):
    with pytest.raises(DataFileError, match="no such file"):
        read_places(tmp_path / "absent.csv")
