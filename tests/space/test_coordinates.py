"""Coordinates as people copy them, compared with the location that wrote them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import CoordinateError
from dphmm.space.coordinates import parse_coordinates

FORMS = (
    "45.01,-30.01",
    " 45.01 , -30.01 ",
    "45.01 -30.01",
    "45.01;-30.01",
    "45.01\t-30.01",
    "(45.01, -30.01)",
    "[45.01, -30.01]",
    "45,01 -30,01",
    "45,01; -30,01",
    "45,01, -30,01",
    "45,01° N 30,01° W",
    "45.01°, -30.01°",
    "45.01° N, 30.01° W",
    "45.01N 30.01W",
    "45.01n, 30.01w",
    "N45.01 W30.01",
    "30.01W, 45.01N",
    "−30.01 E".replace("−30.01 E", "45.01, −30.01"),
    "45°00'36\"N 30°00'36\"W",
    "45°00'36.0\"N 30°00'36.0\"W",
    "45°0′36″N, 30°0′36″W",
    "45º 00’ 36” N, 30º 00’ 36” W",
    "45°00'36'' N 30°00'36'' W",
    "45°00'36\", -30°00'36\"",
    "45°00'36\" -30°00'36\"",
    "45 00 36 N 30 00 36 W",
    "N 45° 00.600 W 030° 00.600",
    "45° 0.6' N 30° 0.6' W",
    "lat 45.01, lon -30.01",
    "Latitude: 45.01 Longitude: -30.01",
    "lon=-30.01 lat=45.01",
    "POINT(-30.01 45.01)",
    "SRID=4326;POINT(-30.01 45.01)",
    "+45.01-030.01/",
    "geo:45.01,-30.01",
    "GEO:45.01,-30.01,12;crs=wgs84;u=35",
    "geo:45.01,-30.01?z=17",
    "geo:0,0?q=45.01,-30.01(Home)",
    "https://www.google.com/maps/@45.01,-30.01,17z",
    "https://www.google.com/maps/place/Home/@45.2,-30.2,17z/data=!3m1!4b1!4m5!3m4!1s0x0:0x0!8m2!3d45.01!4d-30.01",
    "https://www.google.com/maps/place/45%C2%B000'36.0%22N+30%C2%B000'36.0%22W/@45.2,-30.2,17z",
    "https://www.google.com/maps/search/45.01,+-30.01?entry=tts",
    "https://maps.google.com/?q=45.01,-30.01",
    "https://www.google.com/maps?q=loc:45.01,-30.01&z=17",
    "https://www.google.com/maps/search/?api=1&query=45.01%2C-30.01",
    "https://www.openstreetmap.org/#map=17/45.01/-30.01",
    "https://www.openstreetmap.org/?mlat=45.01&mlon=-30.01#map=5/45.5/-30.5",
    "https://www.openstreetmap.org/#map=17/45.01/-30.01&layers=C",
    "https://maps.apple.com/?ll=45.01,-30.01&q=Home",
    "https://maps.apple.com/place?coordinate=45.01,-30.01&name=Home",
    "https://www.bing.com/maps?cp=45.01~-30.01&lvl=16",
    "https://waze.com/ul?ll=45.01%2C-30.01&navigate=yes",
    "https://osmand.net/map?pin=45.01,-30.01#15/45.2/-30.2",
)


@pytest.mark.parametrize("text", FORMS)
def test_copied_coordinates_are_understood(text):
    assert parse_coordinates(text) == pytest.approx((45.01, -30.01), abs=1e-9)


@pytest.mark.parametrize("text", ["home.geojson", "Lyon", "ways/2024.geojson", "Paris, TX", "", "news 1.json", "東京"])
def test_other_words_are_not_coordinates(text):
    assert parse_coordinates(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("45.01", "--near must be latitude and longitude as in 45.01,-30.01"),
        ("45.01 30.01 12.0", "must be latitude and longitude"),
        ("45,01,-30,01", "must be latitude and longitude"),
        ("45°70'00\"N 30°00'36\"W", "must be latitude and longitude"),
        ("-45.01 N 30.01 W", "must be latitude and longitude"),
        ("45.01 N 30.01 N", "must be latitude and longitude"),
        ("45.01 N 30.01 O", "O is east in German"),
        ("121.5,25.05", "use 25.05,121.5 if the longitude is first"),
        ("100,200", r"latitude must be in \[-90, 90\], got 100"),
        ("45.01,-190", r"longitude must be in \[-180, 180\]"),
        ("geo:home", "must be latitude and longitude"),
        ("https://maps.app.goo.gl/AbCdEf12345", "contains no coordinates: open it"),
        ("8FVC9G8F+6X", "Plus Code"),
    ],
)
def test_other_coordinates_are_answered_by_how_to_write_them(text, message):
    with pytest.raises(CoordinateError, match=message):
        parse_coordinates(text, "--near")


def _format_sexagesimal(degrees: float, letters: str) -> str:
    tenths = round(abs(degrees) * 36000)
    return f"{tenths // 36000}°{tenths // 600 % 60:02}'{tenths % 600 / 10:04.1f}\"{letters[degrees < 0]}"


@given(st.floats(-90, 90), st.floats(-180, 180))
def test_every_location_is_read_from_every_form(latitude, longitude):
    for text in (
        f"{latitude:.6f},{longitude:.6f}",
        f"{latitude:.6f} {longitude:.6f}",
        f"geo:{latitude:.6f},{longitude:.6f}",
        f"https://www.openstreetmap.org/?mlat={latitude:.6f}&mlon={longitude:.6f}#map=5/1/1",
        f"{latitude:.6f} {longitude:.6f}".replace(".", ","),
    ):
        assert parse_coordinates(text) == pytest.approx((latitude, longitude), abs=1e-6)
    text = f"{_format_sexagesimal(latitude, 'NS')} {_format_sexagesimal(longitude, 'EW')}"
    assert parse_coordinates(text) == pytest.approx((latitude, longitude), abs=0.05 / 3600 + 1e-9)


@given(st.text(alphabet="0123456789.,;°'\"NSEWO -+/()geo:", max_size=30) | st.text(max_size=30))
def test_any_text_is_a_location_or_none_or_an_error(text):
    try:
        location = parse_coordinates(text)
    except CoordinateError:
        return
    assert location is None or (abs(location[0]) <= 90 and abs(location[1]) <= 180)
