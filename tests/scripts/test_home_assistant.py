"""Tests of the Home Assistant add-on: a valid configuration, and options for a relay."""

from __future__ import annotations

import ast
import re
import struct
from contextlib import nullcontext
from pathlib import Path

import pytest

from dphmm.serve.config import check_name

yaml = pytest.importorskip("yaml")

ADDON = Path(__file__).parents[2] / "scripts" / "home_assistant"
REQUIRED = {"name", "version", "slug", "description", "arch"}
# The rules of the supervisor's schema and of the community's linter for the used keys; no package contains them.
SCHEMA = {
    "name": (str, r".+"),
    "version": (str, r"\d+\.\d+\.\d+"),
    "slug": (str, r"[-_.A-Za-z0-9]+"),
    "description": (str, r".+"),
    "arch": (list, {"aarch64", "amd64"}),
    "init": (bool, {False}),  # the linter rejects keys that are set to their default
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
    "schema": (dict, r"[a-z_]+"),
}
ELEMENT = r"(str|url|float(\([\d.]*,[\d.]*\))?|match\(.*\))\??"


def read(name: str):
    return yaml.safe_load((ADDON / name).read_text(encoding="utf-8"))


def find_flaws(config) -> list[str]:
    messages = [f"{key} is missing" for key in REQUIRED - config.keys()]
    for key, value in config.items():
        kind, wanted = SCHEMA.get(key, (None, None))
        if kind is None or type(value) is not kind:
            messages.append(f"{key} is {value!r}")
        elif isinstance(wanted, str):
            words = value if kind is dict else [value]
            messages += [f"{key} has {word!r}" for word in words if not re.fullmatch(wanted, word)]
        elif wanted is not None:
            messages += [
                f"{key} has {value!r}" for value in (value if kind is list else [value]) if value not in wanted
            ]
    kinds = [
        element
        for value in config.get("schema", {}).values()
        for element in (value if type(value) is list else [value])
    ]
    return messages + [f"the schema has {element!r}" for element in kinds if not re.fullmatch(ELEMENT, element)]


def test_configuration_is_valid_for_supervisor():
    config = read("config.yaml")
    assert find_flaws(config) == []
    assert {folder["type"] for folder in config["map"]} == {"addon_config"}
    assert config["options"].keys() == {name for name, kind in config["schema"].items() if "?" not in str(kind)}
    assert f"{config['ingress_port']}/tcp" in config["ports"]


@pytest.mark.parametrize(
    "change",
    [{"webui": "http://[HOST]:[PORT:8787]"}, {"init": True}, {"slug": "a b"}, {"schema": {"town": "text"}}],
    ids=["unknown key", "default value", "invalid slug", "invalid schema"],
)
def test_invalid_configuration_is_detected(change):
    assert len(find_flaws(read("config.yaml") | change)) == 1


@pytest.mark.parametrize("name", ["ann", "zoë", "a/b", "a+b", "#", "", "a\x01", "\x7f", "a" * 80, "a" * 81])
def test_schema_accepts_names_that_the_relay_accepts(name):
    (element,) = read("config.yaml")["schema"]["users"]
    pattern = element.removeprefix("match(").removesuffix(")")
    with nullcontext() if re.search(pattern, name) else pytest.raises(ValueError, match="must be a name"):
        check_name(name)


@pytest.mark.parametrize("language", ["en", "de"])
def test_every_option_is_named_in_each_language(language):
    translation, config = read(f"translations/{language}.yaml"), read("config.yaml")
    assert translation["configuration"].keys() == config["schema"].keys()
    assert translation["network"].keys() == config["ports"].keys()
    assert all(entry.keys() == {"name", "description"} for entry in translation["configuration"].values())


def test_version_matches_package_and_start_script_reads_all_options():
    import dphmm

    config = read("config.yaml")
    assert config["version"] == dphmm.__version__
    words = {node.value for node in ast.walk(ast.parse((ADDON / "run").read_text())) if isinstance(node, ast.Constant)}
    assert config["schema"].keys() <= words


def test_icon_is_png_of_required_size():
    head = (ADDON / "icon.png").read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert struct.unpack(">II", head[16:]) == (128, 128)
