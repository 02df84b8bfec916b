from __future__ import annotations

import re
import tomllib

import pytest

from dphmm import Schedule
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.evaluation.config import PRESETS, EvaluationConfig, load_config, parse_config
from tests.documents import page

GOOD = {"data": ["x.csv"], "grid": "geolife"}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_the_papers_setting(name):
    config = parse_config({"preset": name, "data": ["x"]})
    assert (config.sequences, config.length, config.epsilon, config.delta) == (20, 100, 1.0, 0.01)
    assert config.policies == ("utility", "transition", "complete")
    assert (config.mechanism, config.repair) == ("planar-isotropic", "greedy")
    assert config.radius_km == {"geolife": 1.0, "gowalla": 2.0}[name]
    assert (config.grid, config.cell_km) == (name, {"geolife": 0.34, "gowalla": 0.89}[name])
    assert config.changes == {}


@pytest.mark.parametrize(
    ("keys", "changed"),
    [
        ({"cell_km": 2.0}, {"cell_km": (0.89, 2.0)}),
        (
            {"bbox": [33.9, -118.4, 34.1, -118.2]},
            {"grid": ("gowalla", None), "bbox": (None, (33.9, -118.4, 34.1, -118.2))},
        ),
        ({"polygon": "a.geojson"}, {"grid": ("gowalla", None), "polygon": (None, "a.geojson")}),
        ({"places": "a.csv"}, {"grid": ("gowalla", None), "cell_km": (0.89, None), "places": (None, "a.csv")}),
        ({"epsilon": 2.0, "seed": 4, "name": "Mine"}, {"epsilon": (1.0, 2.0)}),
    ],
    ids=["cell", "bbox", "polygon", "places", "epsilon"],
)
def test_keys_of_the_file_override_the_preset_and_are_listed_as_changes(keys, changed):
    config = parse_config({"preset": "gowalla", "data": ["x"], **keys})
    assert config.changes == changed
    assert config.cell_km == (changed["cell_km"][1] if "cell_km" in changed else 0.89)


def test_stored_keys_give_the_same_configuration():
    for keys in (
        {"preset": "gowalla", "cell_km": 2.0},
        {"preset": "geolife", "bbox": [39.9, 116.3, 39.95, 116.4]},
        {"preset": "gowalla", "model": "m.npz"},
        {"grid": "geolife"},
    ):
        config = parse_config({"data": ["x"], **keys})
        assert parse_config(config.keys) == config


def test_what_a_file_says_wins_over_the_preset():
    assert parse_config({"preset": "geolife", "data": ["x"], "length": 7}).length == 7


def test_every_setting_occurs_once_and_the_default_comparison_comes_first():
    config = parse_config({"preset": "gowalla", "data": ["x"]})
    settings = config.settings()
    assert len(set(settings)) == len(settings) == 22
    assert [s.policy for s in settings[:3]] == ["utility", "transition", "complete"]
    assert {s.delta for s in settings if s.policy == "complete"} == {0.01}
    assert {s.delta for s in settings if s.policy != "complete"} == {0.0}


def test_schedules_are_settings_beside_the_constant_budget():
    config = parse_config(GOOD | {"step_seconds": 60.0, "target_errors_km": [0.7], "day_epsilons": [12]})
    found = [setting.release_settings.schedule for setting in config.settings() if setting.policy == "utility"]
    assert found == [None, Schedule(target_error=0.7), Schedule(window_epsilon=12)]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (GOOD | {"epsilom": 1.0}, "epsilom"),
        (GOOD | {"epsilon": -1.0}, "epsilon"),
        (GOOD | {"epsilons": [1.0, -2.0]}, "epsilons"),
        (GOOD | {"radii_km": [0.0]}, "radii_km"),
        (GOOD | {"target_errors_km": [0.0]}, "target_errors_km"),
        (GOOD | {"day_epsilons": [5.0]}, "'day_epsilons' are about the clock; give 'step_seconds' too"),
        (GOOD | {"day_epsilons": [-5.0], "step_seconds": 60.0}, "day_epsilons"),
        (GOOD | {"delta": 1.0}, "delta"),
        (GOOD | {"sequences": 1}, "sequences"),
        (GOOD | {"mechanism": "magic"}, "mechanism"),
        (GOOD | {"policies": []}, "policies"),
        (GOOD | {"policies": ["utilty:1km"]}, "policies.*utilty:1km"),
        (GOOD | {"policies": ["utility:1km & completely"]}, "policies.*completely"),
        (GOOD | {"policies": ["utility:1"]}, "policies.*length with its unit"),
        (GOOD | {"objective": "area"}, "objective"),
        (GOOD | {"folds": 1}, "folds"),
        (GOOD | {"model": "m.npz"}, "'grid' is settled by the 'model'"),
        ({"data": ["x.csv"], "model": "m.npz", "smoothing": 0.5}, "'smoothing' is settled by the 'model'"),
        (GOOD | {"preset": "beijing"}, "preset"),
        ({"grid": "geolife"}, "data"),
        ({"data": ["x.csv"]}, "grid"),
        (GOOD | {"bbox": [1.0, 2.0, 3.0, 4.0], "cell_km": 1.0}, "grid"),
        ({"data": ["x.csv"], "places": "a.csv", "cell_km": 1.0}, "'cell_km' cannot be combined with 'places'"),
        ({"data": ["x.csv"], "bbox": [1.0, 2.0, 3.0, 4.0]}, "cell_km"),
    ],
)
def test_bad_key_is_named_in_one_line(keys, named):
    with pytest.raises(ConfigurationError, match=named) as caught:
        parse_config(keys)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(DataFileError, match="there is no such file"):
        load_config(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(DataFileError, match="no TOML"):
        load_config(tmp_path / "bad.toml")


def test_every_key_is_explained_in_the_documentation():
    """The table in docs/how-to/scaling.md has a row for each key, with its default as TOML has it."""
    text = page("scaling.md")
    rows = re.findall(r"^\| `(\w+)` \| (`[^|]+`|[^|`]*) \| \S.*\|$", text, flags=re.MULTILINE)
    assert [key for key, _ in rows] == list(EvaluationConfig.model_fields)
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in EvaluationConfig.model_fields.items()
        if not field.is_required()
    }
    for key, stated in rows:
        if stated.startswith("`"):
            default = defaults[key]
            assert tomllib.loads(f"x = {stated.strip('`')}")["x"] == (
                list(default) if isinstance(default, tuple) else default
            )
        else:
            assert defaults.get(key) in (None, {}), f"{key} has a default"


def test_own_policies_mechanisms_and_repairs_are_compared():
    """Each policy as it is written; the δ-location set is for the paper's complete graph alone."""
    policies = ["utility", "complete", "utility:500m | transition"]
    keys = GOOD | {"policies": policies, "mechanisms": ["planar-laplace"], "objective": "volume"}
    settings = parse_config(keys).settings()
    assert {setting.policy for setting in settings} == set(policies)
    assert {setting.mechanism for setting in settings} == {"lattice", "planar-laplace"}
    for setting in settings:
        made = setting.release_settings
        assert made.policy == ("centres:1.0km" if setting.policy == "utility" else setting.policy)
        assert (made.mechanism, made.objective) == (setting.mechanism, "volume")
        assert made.delta == (0.01 if setting.policy == "complete" else None)


def test_a_given_model_takes_the_place_of_a_presets_region():
    config = parse_config({"preset": "gowalla", "data": ["x"], "model": "m.npz"})
    assert (config.grid, config.smoothing, config.radius_km) == (None, None, 2.0)


def test_digest_tells_configurations_apart():
    one = parse_config(GOOD)
    assert one.digest == parse_config(dict(GOOD)).digest
    assert one.digest != parse_config(GOOD | {"seed": 1}).digest
