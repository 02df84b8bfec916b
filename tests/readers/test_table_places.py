"""Tables of named places: columns by their usual names, and one line for whatever is wrong."""

from __future__ import annotations

import pytest

from dphmm.errors import DataFileError
from dphmm.readers.table import read_places


@pytest.mark.parametrize("heading", ["name,latitude,longitude", "Label,LAT,lng", "place,lat,lon,note"])
def test_places_are_read_in_their_order(tmp_path, heading):
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
        ("", "holds no rows"),
        ("name,lat\nhome,1", "line 1: has no column 'longitude'"),
        ("name,lat,lon\nhome,45,north", "line 2: lon is 'north'; give a decimal"),
        ("name,lat,lon\nhome,45", "line 2: has 2 fields; the header has 3"),
        ("lat,lon\n45,7\n", "line 1: has no column 'name'; its columns are lat, lon; call one of them name or place"),
        ("name,lat,lon\n", "holds no rows"),
        ("name,lat,lon\na,1,1\na,2,2", "place 'a' occurs twice"),
        ("name,lat,lon\na,95,1", "latitude"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, text, message):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(DataFileError, match=message):
        read_places(tmp_path / "p.csv")


def test_a_file_that_is_absent_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="no such file"):
        read_places(tmp_path / "absent.csv")
