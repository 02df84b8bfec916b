"""Policies over polygon values equal policies over files with the same content."""

from __future__ import annotations

import json

import pytest
import shapely

from dphmm import ReleaseSettings
from dphmm.errors import DataFileError, PolicyError
from dphmm.policy import PolygonLayer, parse_policy
from dphmm.policy.expression import canonicalize_policy
from dphmm.release.session_zones import Zones
from dphmm.space import Grid

SPACE = Grid.over((44.99, -30.02, 45.01, -29.98), cell_km=0.3333)
HOME = json.dumps(
    {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "properties": {"name": "home"},
                "geometry": shapely.geometry.mapping(shapely.box(-30.02, 44.99, -30.005, 45.0)),
            }
        ],
    }
)
LAYER = PolygonLayer("home", HOME)


@pytest.mark.parametrize("text", ["zone:{}", "zone:{}@name+300m | utility:500m", "categorical:{}"])
def test_polygon_value_gives_policy_of_file(tmp_path, text):
    file = tmp_path / "home.geojson"
    file.write_text(HOME, encoding="utf-8")
    expected = parse_policy(text.format(file), SPACE)
    assert parse_policy(text.format("home"), SPACE, layers=[LAYER]).content_hash == expected.content_hash
    assert canonicalize_policy(text.format("home"), [LAYER]) == canonicalize_policy(text.format(file))
    of_file = ReleaseSettings(policy=text.format(file))
    of_value = ReleaseSettings(policy=text.format("home"), layers=(LAYER,))
    assert of_value.content_hash == of_file.content_hash
    assert ReleaseSettings.from_json(of_value.to_json()) == of_value
    assert ReleaseSettings.from_toml(of_value.to_toml()) == of_value


def test_errors_contain_layer_name():
    with pytest.raises(DataFileError, match=r"^empty: .*GeoJSON"):
        parse_policy("zone:empty", SPACE, layers=[PolygonLayer("empty", '{"type":"FeatureCollection","features":[]}')])
    far = HOME.replace("44.99", "54.99").replace("45.0", "55.0")
    with pytest.raises(DataFileError, match=r"^away: .*'home'"):
        parse_policy("zone:away", SPACE, layers=[PolygonLayer("away", far)])
    for name in ("", "two words", "a|b", "a&b", "a@b", "a+b", 3):
        with pytest.raises(PolicyError, match="must not contain spaces"):
            PolygonLayer(name, HOME)
    with pytest.raises(PolicyError, match=r"must be a GeoJSON string"):
        PolygonLayer("home", json.loads(HOME))


def test_drawn_zones_are_stored_as_settings_layer():
    zones = Zones.from_page({"zones": json.loads(HOME), "buffer_m": 300})
    drawn = zones.apply_to(ReleaseSettings(policy="utility:500m"))
    assert drawn.policy == "zone:YOURS+300m | utility:500m"
    assert ReleaseSettings.from_json(drawn.to_json()) == drawn


def test_zone_drawn_beyond_180_degrees_has_its_name_on_other_side():
    home = json.loads(HOME)
    home["features"][0]["geometry"] = shapely.geometry.mapping(shapely.box(179.99, -17, 180.02, -16))
    zones = Zones.from_page({"zones": home})
    names = {longitude: zones.find_zone_name(-16.5, longitude) for longitude in (179.98, 179.995, -179.985, -179.97)}
    assert names == {179.98: "away", 179.995: "home", -179.985: "home", -179.97: "away"}
