from __future__ import annotations

import re
import tomllib

import pytest

from dphmm import Schedule
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.evaluation.config import PRESETS, EvaluationConfig, load_config, parse_config
from scripts.site import commands

GOOD = {"data": ["x.csv"], "grid": "geolife"}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_has_settings_of_paper(name):
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
def test_keys_override_preset_and_are_listed_as_changes(keys, changed):
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


def test_file_overrides_preset():
    assert parse_config({"preset": "geolife", "data": ["x"], "length": 7}).length == 7


def test_every_setting_occurs_once_and_the_default_comparison_comes_first():
    config = parse_config({"preset": "gowalla", "data": ["x"]})
    settings = config.settings()
    assert len(set(settings)) == len(settings) == 22
    assert [s.policy for s in settings[:3]] == ["utility", "transition", "complete"]
    assert {s.delta for s in settings if s.policy == "complete"} == {0.01}
    assert {s.delta for s in settings if s.policy != "complete"} == {0.0}


def test_schedules_are_settings_next_to_constant_epsilon():
    config = parse_config(GOOD | {"step_seconds": 60.0, "target_errors_km": [0.7], "window_epsilons": [12]})
    schedules = [setting.release_settings.schedule for setting in config.settings() if setting.policy == "utility"]
    assert schedules == [None, Schedule(target_error=0.7), Schedule(window_epsilon=12)]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (GOOD | {"epsilom": 1.0}, "epsilom"),
        (GOOD | {"epsilon": -1.0}, "epsilon"),
        (GOOD | {"epsilons": [1.0, -2.0]}, "epsilons"),
        (GOOD | {"radii_km": [0.0]}, "radii_km"),
        (GOOD | {"radii_km": [float("inf")]}, "radii_km"),
        (GOOD | {"radius_km": float("inf")}, "'radius_km' .*finite"),
        (GOOD | {"step_seconds": 1e-9}, "'step_seconds' .*0.000001"),
        (GOOD | {"target_errors_km": [0.0]}, "target_errors_km"),
        (GOOD | {"window_epsilons": [5.0]}, "'window_epsilons'.*'step_seconds'"),
        (GOOD | {"window_epsilons": [-5.0], "step_seconds": 60.0}, "'window_epsilons' must .*positive"),
        (GOOD | {"delta": 1.0}, "delta"),
        (GOOD | {"sequences": 1}, "sequences"),
        (GOOD | {"mechanism": "magic"}, "mechanism"),
        (GOOD | {"mechanism": "optimal"}, "'mechanism' .*'optimal'"),
        (GOOD | {"mechanisms": ["lattice", "graph-exponential"]}, "'mechanisms.1' .*'graph-exponential'"),
        (GOOD | {"policies": []}, "policies"),
        (GOOD | {"policies": ["utilty:1km"]}, "policies.*utilty:1km"),
        (GOOD | {"policies": ["utility:1km & completely"]}, "policies.*completely"),
        (GOOD | {"policies": ["utility:1"]}, "policies.*must have a unit"),
        (GOOD | {"repair_objective": "area"}, "objective"),
        (GOOD | {"folds": 1}, "folds"),
        (GOOD | {"model": "m.npz"}, "'grid' cannot be combined with 'model'"),
        ({"data": ["x.csv"], "model": "m.npz", "smoothing": 0.5}, "'smoothing' cannot be combined with 'model'"),
        (GOOD | {"preset": "beijing"}, "preset"),
        ({"grid": "geolife"}, "data"),
        ({"data": ["x.csv"]}, "grid"),
        (GOOD | {"bbox": [1.0, 2.0, 3.0, 4.0], "cell_km": 1.0}, "grid"),
        ({"data": ["x.csv"], "places": "a.csv", "cell_km": 1.0}, "'cell_km' cannot be combined with 'places'"),
        ({"data": ["x.csv"], "bbox": [1.0, 2.0, 3.0, 4.0]}, "cell_km"),
    ],
)
def test_invalid_key_raises_in_one_line(keys, named):
    with pytest.raises(ConfigurationError, match=named) as caught:
        parse_config(keys)
    assert "\n" not in str(caught.value)


def test_unreadable_files_raise(tmp_path):
    with pytest.raises(DataFileError, match="no such file"):
        load_config(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(DataFileError, match="TOML"):
        load_config(tmp_path / "bad.toml")


def test_every_key_is_explained_on_the_page_of_keys():
    text = commands.build_key_page().partition("## An evaluation")[2].partition("\n## ")[0]
    rows = re.findall(r"^`(\w+)` \((required|default `[^`]+`)\)\n: \S", text, flags=re.MULTILINE)
    assert [key for key, _ in rows] == list(EvaluationConfig.model_fields)
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in EvaluationConfig.model_fields.items()
        if not field.is_required()
    }
    for key, stated in rows:
        if stated not in ("required", "default `none`"):
            default = defaults[key]
            assert tomllib.loads(f"x = {stated.removeprefix('default ').strip('`')}")["x"] == (
                list(default) if isinstance(default, tuple) else default
            )
        else:
            assert defaults.get(key) in (None, {}, ()), f"{key} has a default"


def test_configured_policies_mechanisms_and_repairs_are_compared():
    """Policies are unchanged. Only the complete graph uses δ-location sets."""
    policies = ["utility", "complete", "utility:500m | transition"]
    keys = GOOD | {"policies": policies, "mechanisms": ["planar-laplace"], "repair_objective": "volume"}
    settings = parse_config(keys).settings()
    assert {setting.policy for setting in settings} == set(policies)
    assert {setting.mechanism for setting in settings} == {"lattice", "planar-laplace"}
    for setting in settings:
        release_settings = setting.release_settings
        assert release_settings.policy == ("centres:1.0km" if setting.policy == "utility" else setting.policy)
        assert (release_settings.mechanism, release_settings.repair_objective) == (setting.mechanism, "volume")
        assert release_settings.delta == (0.01 if setting.policy == "complete" else None)


def test_model_replaces_region_of_preset():
    config = parse_config({"preset": "gowalla", "data": ["x"], "model": "m.npz"})
    assert (config.grid, config.smoothing, config.radius_km) == (None, None, 2.0)


def test_digest_distinguishes_configurations():
    config = parse_config(GOOD)
    assert config.digest == parse_config(dict(GOOD)).digest
    assert config.digest != parse_config(GOOD | {"seed": 1}).digest
