from __future__ import annotations

import pytest

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.evaluation.config import PRESETS, load_config, parse_config

GOOD = {"data": ["x.csv"], "grid": "geolife"}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_the_papers_setting(name):
    config = parse_config({"preset": name, "data": ["x"]})
    assert (config.sequences, config.length, config.epsilon, config.delta) == (20, 100, 1.0, 0.01)
    assert config.policies == ("utility", "transition", "complete")
    assert config.mechanism == "planar-isotropic"
    assert config.radius_km == {"geolife": 1.0, "gowalla": 2.0}[name]


def test_what_a_file_says_wins_over_the_preset():
    assert parse_config({"preset": "geolife", "data": ["x"], "length": 7}).length == 7


def test_every_setting_occurs_once_and_the_default_comparison_comes_first():
    config = parse_config({"preset": "gowalla", "data": ["x"]})
    settings = config.settings()
    assert len(set(settings)) == len(settings) == 22
    assert [s.policy for s in settings[:3]] == ["utility", "transition", "complete"]
    assert {s.delta for s in settings if s.policy == "complete"} == {0.01}
    assert {s.delta for s in settings if s.policy != "complete"} == {0.0}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (GOOD | {"epsilom": 1.0}, "epsilom"),
        (GOOD | {"epsilon": -1.0}, "epsilon"),
        (GOOD | {"epsilons": [1.0, -2.0]}, "epsilons"),
        (GOOD | {"radii_km": [0.0]}, "radii_km"),
        (GOOD | {"delta": 1.0}, "delta"),
        (GOOD | {"sequences": 1}, "sequences"),
        (GOOD | {"mechanism": "magic"}, "mechanism"),
        (GOOD | {"policies": []}, "policies"),
        (GOOD | {"preset": "beijing"}, "preset"),
        ({"grid": "geolife"}, "data"),
        ({"data": ["x.csv"]}, "grid"),
        (GOOD | {"bbox": [1.0, 2.0, 3.0, 4.0], "cell_km": 1.0}, "grid"),
        ({"data": ["x.csv"], "bbox": [1.0, 2.0, 3.0, 4.0]}, "cell_km"),
    ],
)
def test_bad_key_is_named_in_one_line(keys, named):
    with pytest.raises(ConfigurationError, match=named) as caught:
        parse_config(keys)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(DataFileError, match="cannot be read"):
        load_config(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(DataFileError, match="no TOML"):
        load_config(tmp_path / "bad.toml")


def test_digest_tells_configurations_apart():
    one = parse_config(GOOD)
    assert one.digest == parse_config(dict(GOOD)).digest
    assert one.digest != parse_config(GOOD | {"seed": 1}).digest
