"""The add-on says what the supervisor of Home Assistant takes, and its options become a relay that answers."""

from __future__ import annotations

import ast
import re
import struct
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ADDON = Path(__file__).parents[2] / "scripts" / "home_assistant"
REQUIRED = {"name", "version", "slug", "description", "arch"}
# What the supervisor's schema and the community's linter say of the keys that are used. No package holds either.
TAKEN = {
    "name": (str, r".+"),
    "version": (str, r"\d+\.\d+\.\d+"),
    "slug": (str, r"[-_.A-Za-z0-9]+"),
    "description": (str, r".+"),
    "arch": (list, {"aarch64", "amd64"}),
    "init": (bool, {False}),  # a key that is as it is anyway is refused by the linter
    "ingress": (bool, {True}),
    "ingress_port": (int, range(1, 65536)),
    "panel_admin": (bool, {False}),
    "panel_icon": (str, r"mdi:[-a-z]+"),
    "ports": (dict, r"\d+/(tcp|udp)"),
    "ports_description": (dict, r"\d+/(tcp|udp)"),
    "tmpfs": (bool, {True}),
    "map": (list, None),
    "backup_exclude": (list, None),
    "options": (dict, r"[a-z]+"),
    "schema": (dict, r"[a-z]+"),
}
ELEMENT = r"(str|url|float(\([\d.]*,[\d.]*\))?|match\(.*\))\??"


def read(name: str):
    return yaml.safe_load((ADDON / name).read_text(encoding="utf-8"))


def flaws(config) -> list[str]:
    found = [f"{key} is missing" for key in REQUIRED - config.keys()]
    for key, value in config.items():
        kind, wanted = TAKEN.get(key, (None, None))
        if kind is None or type(value) is not kind:
            found.append(f"{key} is {value!r}")
        elif isinstance(wanted, str):
            words = value if kind is dict else [value]
            found += [f"{key} has {one!r}" for one in words if not re.fullmatch(wanted, one)]
        elif wanted is not None:
            found += [f"{key} has {one!r}" for one in (value if kind is list else [value]) if one not in wanted]
    kinds = [one for value in config.get("schema", {}).values() for one in (value if type(value) is list else [value])]
    return found + [f"the schema has {one!r}" for one in kinds if not re.fullmatch(ELEMENT, one)]


def test_the_configuration_is_one_that_the_supervisor_takes():
    config = read("config.yaml")
    assert flaws(config) == []
    assert {one["type"] for one in config["map"]} == {"addon_config"}
    assert config["options"].keys() == {name for name, kind in config["schema"].items() if "?" not in str(kind)}
    assert f"{config['ingress_port']}/tcp" in config["ports"]


@pytest.mark.parametrize(
    "change", [{"webui": "http://[HOST]:[PORT:8787]"}, {"init": True}, {"slug": "a b"}, {"schema": {"town": "text"}}]
)
def test_a_configuration_that_it_would_refuse_is_seen(change):
    assert len(flaws(read("config.yaml") | change)) == 1


@pytest.mark.parametrize("language", ["en", "de"])
def test_every_option_is_named_in_each_language(language):
    said, config = read(f"translations/{language}.yaml"), read("config.yaml")
    assert said["configuration"].keys() == config["schema"].keys()
    assert said["network"].keys() == config["ports"].keys()
    assert all(one.keys() == {"name", "description"} for one in said["configuration"].values())


def test_the_version_is_the_package_s_and_the_start_reads_the_options_that_there_are():
    import dphmm

    config = read("config.yaml")
    assert config["version"] == dphmm.__version__
    words = {one.value for one in ast.walk(ast.parse((ADDON / "run").read_text())) if isinstance(one, ast.Constant)}
    assert config["schema"].keys() <= words


def test_the_icon_is_a_picture_of_the_size_that_is_asked_for():
    head = (ADDON / "icon.png").read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert struct.unpack(">II", head[16:]) == (128, 128)
