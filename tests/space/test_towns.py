"""Towns by name on the included map."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError
from dphmm.space.grid import Grid
from dphmm.space.towns import find_town, find_town_box, normalize_name

KNOWN = {
    "Lyon": (45.76, 4.84),
    "taipei": (25.05, 121.53),
    "Wien": (48.21, 16.37),
    "Praha": (50.08, 14.42),
    "München": (48.14, 11.58),
    "munchen": (48.14, 11.58),
    "Muenchen": (48.14, 11.58),
    "Москва": (55.75, 37.62),
    "東京": (35.69, 139.69),
    "New York": (40.71, -74.01),
    "Roma, IT": (41.90, 12.50),
    "roma, italy": (41.90, 12.50),
    "Valencia, Spain": (39.47, -0.38),
    "Valencia, VE": (10.16, -68.00),
    "Rome, Georgia": (34.26, -85.16),
    "Portland, ME, USA": (43.66, -70.26),
    "London, UK": (51.51, -0.13),
    "saint etienne": (45.44, 4.39),
    "ŁÓDŹ": (51.77, 19.46),
    "lodz": (51.77, 19.46),
    "القاهرة": (30.04, 31.24),
    "Paris": (48.86, 2.35),
    "48°12'30\"N 16°22'12\"E": (48.2083, 16.37),
}


@pytest.mark.parametrize("name", KNOWN)
def test_town_has_known_location_and_a_square_of_twenty_kilometres(name):
    town = find_town(name)
    assert (town.latitude, town.longitude) == pytest.approx(KNOWN[name], abs=0.03)
    south, west, north, east = find_town_box(name)
    assert south < town.latitude < north
    assert west < town.longitude < east
    grid = Grid.over((south, west, north, east), 1.0)
    assert {grid.columns, grid.rows} <= {20, 21}


def test_town_states_country_population_and_coordinates():
    assert str(find_town("Wien")) == "Vienna, Austria (about 1,700,000 people; 48.208,16.372)"
    assert str(find_town("Paris, TX")).startswith("Paris, TX, United States (about ")
    assert find_town("Paris").num_others > 0


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("Roma", ["'Roma, IT' is Rome, Italy (about 2,300,000 people; 41.892,12.512)", "'Roma, LS' is Roma, Lesotho"]),
        ("valencia", ["'valencia, ES' is Valencia, Spain", "'valencia, VE' is Valencia, Venezuela"]),
        ("Springfield", ["'Springfield, MO, US' is Springfield, MO, United States"]),
        ("Halle", ["'51.482,11.980' is Halle (Saale), Germany"]),
    ],
)
def test_no_town_is_picked_if_several_can_be_meant(name, choices):
    with pytest.raises(ConfigurationError, match="town must be the name of one town") as error:
        find_town(name)
    for choice in choices:
        assert choice in str(error.value)
        text = choice.split("'")[1]
        chosen = find_town(text)
        assert f"{chosen.latitude:.3f},{chosen.longitude:.3f}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Lyom", "Lyon.*got 'Lyom'; otherwise use coordinates"),
        ("Roma, France", "without the country, the largest is Rome, Italy"),
        ("", "town must be a name on the map"),
        (",", "town must be a name on the map"),
    ],
)
def test_unknown_town_raises_with_similar_names(name, message):
    with pytest.raises(ConfigurationError, match=message):
        find_town(name)


@given(st.text(alphabet=st.characters(categories=["Lu", "Ll", "Lo", "Nd"], max_codepoint=0x24F), max_size=20))
def test_key_ignores_case_accents_and_form(text):
    for form in ("NFC", "NFD"):
        assert normalize_name(unicodedata.normalize(form, text)) == normalize_name(text)
    assert normalize_name(normalize_name(text)) == normalize_name(text)
    if text.isascii():
        assert normalize_name(text.upper()) == normalize_name(text.lower()) == text.lower()
