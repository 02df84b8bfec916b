"""Tests of the keys of `--settings FILE.toml`: effects, errors and number of options."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import click
import pytest

from dphmm import ReleaseSettings
from dphmm.cli import main
from dphmm.cli.keys import Key, get_key
from dphmm.events import Cap
from dphmm.jobs import Data
from dphmm.jobs import release as release_files
from dphmm.release import Schedule
from tests.cli.conftest import HEADER, make_fixes

EVENT = "state:0,1 between 0 and 2"
MODEL = ("--model", "m.npz", "--policy", "utility:600m", "--epsilon", 0.5)
RELEASE = ("release", "walk.csv", *MODEL, "--seed", 4)


def iterate_commands(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with the words that name it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from iterate_commands(inner, (*path, name))


WITH_KEYS = {
    path: command
    for path, command in iterate_commands()
    if any(isinstance(parameter, Key) for parameter in command.params)
}
KEYS = [
    (path, get_key(parameter))
    for path, command in WITH_KEYS.items()
    for parameter in command.params
    if isinstance(parameter, Key)
]


def test_commands_with_true_locations_can_read_any_table():
    with_true = [command for _, command in iterate_commands() if any(part.name == "true" for part in command.params)]
    reading = {"columns", "time_format", "time_zone"}
    # The true values of `counts evaluate` are a table of counts, which has no such keys.
    named = [{get_key(part) for part in command.params} for command in with_true]
    assert sum(reading <= names for names in named) >= 5
    assert all(reading <= names or not reading & names for names in named)


def test_number_of_options_is_limited():
    command = dict(iterate_commands())[("release",)]
    shown = [option for option in command.get_params(click.Context(command)) if isinstance(option, click.Option)]
    assert len(shown) <= 25
    names = {
        max(option.opts, key=len)
        for _, each in iterate_commands()
        for option in each.params
        if isinstance(option, click.Option)
    }
    assert len(names) <= 140


def test_key_has_one_type_in_all_commands():
    kinds: dict[str, set[str]] = {}
    for command in WITH_KEYS.values():
        for parameter in command.params:
            if isinstance(parameter, Key):
                kinds.setdefault(parameter.opts[0], set()).add(type(parameter.type).__name__.removesuffix("Range"))
    assert {key: types for key, types in kinds.items() if len(types) > 1} == {}


# Keys, and the settings of the library that they set if these have other names.
SETTINGS = [
    ({"repair": "greedy"}, {}),
    ({"repair_objective": "volume"}, {}),
    ({"membership": "qp"}, {}),
    ({"allow_singleton": True}, {}),
    ({"spacing": "1/500"}, {}),
    ({"spacing": 0.002}, {}),
    ({"outside": "drop"}, {}),
    ({"repair_max_work": 10}, {}),
    ({"mechanism": "optimal", "optimal_max_states": 20, "optimal_fallback": "graph-exponential"}, {}),
    ({"event_cap_priors": "p.csv", "caps": [{"event": EVENT, "probability": 0.9}]}, {}),
    ({"schedule": {"target_error": 0.4}}, {"schedule": Schedule(target_error=0.4)}),
    ({"target_error": "400m"}, {"schedule": Schedule(target_error=0.4)}),
    ({"window_epsilon": 2.0, "epsilon_window": "8h"}, {"schedule": Schedule(None, 2.0, 8 * 3600)}),
    (
        {"event": [EVENT], "max_event_probability": [0.9], "min_event_probability": [0.001]},
        {"caps": (Cap(EVENT, 0.9, 0.001),)},
    ),
    ({"delta": 0.05, "noise_scope": "component"}, {}),
    ({"policy": "zone:home", "layers": [{"name": "home", "geojson": "ZONE"}]}, {}),
]

_CORNERS = [[-30.014, 44.995], [-30.003, 44.995], [-30.003, 45.005], [-30.014, 45.005], [-30.014, 44.995]]
ZONE = json.dumps(
    {
        "type": "FeatureCollection",
        "features": [{"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [_CORNERS]}}],
    }
)


@pytest.mark.parametrize(("keys", "meant"), SETTINGS, ids=[" ".join(keys) for keys, _ in SETTINGS])
def test_key_has_effect_of_setting(world, run, keys, meant):
    (world / "p.csv").write_text("state,flat\n" + "".join(f"{k},{[0.0625, 0.125][k == 0]}\n" for k in range(15)))
    keys = {**keys, "layers": [{"name": "home", "geojson": ZONE}]} if "layers" in keys else keys
    always = {"policy": "utility:600m", "epsilon": 0.5}
    done = run("release", "walk.csv", "--model", "m.npz", "--seed", 4, {**always, **keys}, "-o", "command.csv")
    assert done.exit_code == 0, done.output
    settings_given = {**always, **(meant or keys)}
    release_files("walk.csv", "m.npz", ReleaseSettings.from_dict(settings_given), "library.csv", rng=4)
    assert (world / "command.csv").read_bytes() == (world / "library.csv").read_bytes()


READING = [
    ({"columns": {"user": "who", "time": "when"}}, "who,when,latitude,longitude\n" + make_fixes("a"), {}),
    ({"time_zone": "Asia/Shanghai"}, HEADER + make_fixes("a").replace("Z,", ","), {}),
    ({"time_format": "s"}, HEADER + "".join(f"a,{1709802000 + 60 * k},45.001,-30.01\n" for k in range(4)), {}),
    ({"skip_bad": True}, HEADER + make_fixes("a") + "a,never,45.001,-30.01\n", {}),
    ({"user_per_file": True}, "time,latitude,longitude\n2024-03-07T09:00:00Z,45.001,-30.01\n", {}),
    ({"exclude_users": ["b"]}, HEADER + make_fixes("a") + make_fixes("b"), {"exclude_users": ("b",)}),
    ({"users": ["b"]}, HEADER + make_fixes("a") + make_fixes("b"), {"users": ("b",)}),
]


@pytest.mark.parametrize(("keys", "table", "meant"), READING, ids=[next(iter(keys)) for keys, *_ in READING])
def test_key_has_effect_of_parameter_of_data(world, run, keys, table, meant):
    (world / "walk.csv").write_text(table)
    done = run(*RELEASE, keys, "-o", "command.csv")
    assert done.exit_code == 0, done.output
    settings = ReleaseSettings("utility:600m", 0.5)
    release_files(Data(("walk.csv",), **(meant or keys)), "m.npz", settings, "library.csv", rng=4)
    assert (world / "command.csv").read_bytes() == (world / "library.csv").read_bytes()


def test_outputs_and_limits_have_keys(world, run):
    """Keys can name every output file and the data."""
    keys = {"data": ["walk.csv"], "output": "keys.geojson", "summary": "s.csv", "daily_summary": "d.csv"}
    keys |= {"geometry": "released", "session": "s.db", "limit_epsilon": 9, "limit_window_epsilon": 5}
    keys |= {"limit_window_steps": 9, "limit_constrained": 900, "allow_training_users": True}
    done = run("release", *MODEL, keys)
    assert done.exit_code == 0, done.output
    assert {"keys.geojson", "s.csv", "d.csv", "s.db"} <= {path.name for path in world.iterdir()}


@pytest.mark.slow
def test_settings_written_by_library_are_accepted(world, run):
    settings = ReleaseSettings("utility:600m", 0.5, spacing="1/500", outside="drop")
    (world / "written.toml").write_text(settings.to_toml())
    done = run("release", "walk.csv", "--model", "m.npz", "--settings", "written.toml", "--seed", 4, "-o", "a.csv")
    assert done.exit_code == 0, done.output
    release_files("walk.csv", "m.npz", settings, "b.csv", rng=4)
    assert (world / "a.csv").read_bytes() == (world / "b.csv").read_bytes()
    audited = run("audit", "session", "a.csv", "--model", "m.npz", "--settings", "written.toml")
    assert audited.exit_code in (0, 1), audited.output


def test_option_overrides_file(world, run):
    keys = {
        "epsilon": 3,
        "policy": "complete",
        "users": ["a"],
        "event": [EVENT],
        "max_event_probability": [0.99],
        "json": True,
    }
    done = run("release", "walk.csv", "--model", "m.npz", *("--epsilon", 0.5), "--seed", 4, keys, "-o", "a.csv")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("{")
    settings = ReleaseSettings("complete", 0.5, caps=(Cap(EVENT, 0.99),))
    release_files(Data(("walk.csv",), users=("a",)), "m.npz", settings, "b.csv", rng=4)
    assert (world / "a.csv").read_bytes() == (world / "b.csv").read_bytes()


@pytest.mark.parametrize("path", WITH_KEYS, ids=" ".join)
def test_unknown_key_raises_and_names_file(world, run, path):
    (world / "wrong.toml").write_text("spacign = 1\n")
    done = run(*path, "--settings", "wrong.toml")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    _, separator, listed = done.stderr.strip().partition("wrong.toml: key 'spacign' is unknown; the keys are ")
    assert separator
    assert {get_key(each) for each in WITH_KEYS[path].params if each.expose_value} == set(listed.split(", "))
    (settings,) = (each for each in WITH_KEYS[path].params if each.name == "settings")
    assert "unknown key lists all" in settings.help


@pytest.mark.parametrize(("path", "key"), KEYS, ids=[f"{' '.join(path)} {key}" for path, key in KEYS])
def test_value_of_wrong_type_raises_before_any_work(world, run, path, key):
    (world / "wrong.toml").write_text(f"{key} = [[]]\n")
    done = run(*path, "--settings", "wrong.toml")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"wrong.toml: key {key!r} must be " in done.stderr
    assert ", got [[]]" in done.stderr


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"outside": "away"}, "key 'outside' must be one of clamp, drop, got 'away'"),
        ({"epsilon": "1"}, "key 'epsilon' must be "),
        ({"seed": -1}, "key 'seed' must be an integer, at least 0, got -1"),
        ({"skip_bad": 1}, "key 'skip_bad' must be true or false, got 1"),
        ({"users": "a"}, "key 'users' must be a list of strings, got 'a'"),
        ({"columns": {"time": 1}}, "key 'columns' must be a table of strings, got {'time': 1}"),
        ({"max_event_probability": 0.7}, "key 'max_event_probability' must be a list of numbers, got 0.7"),
        ({"delta": 2}, "key 'delta' "),
        ({"repair_max_work": -1}, "key 'repair_max_work' "),
        ({"epsilon_window": "8"}, "key 'epsilon_window' needs a budget: use --window-epsilon"),
        (
            {"schedule": {"target_error": 1}, "target_error": "1km"},
            "key 'schedule' cannot be combined with the options",
        ),
        (
            {"caps": [{"event": EVENT, "probability": 0.9}], "event": [EVENT], "max_event_probability": [0.5]},
            "key 'caps' cannot be combined with --event",
        ),
    ],
)
def test_invalid_value_names_key_requirement_and_value(run, keys, message):
    done = run(*RELEASE, "-o", "out.csv", keys)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"settings.toml: {message}" in done.stderr


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"caps": [{"event": 5, "probability": 0.9}]}, "a cap must have an event or its text, got '5'"),
        ({"caps": [{"event": EVENT}]}, "each element of caps must have an event and a probability, got "),
        ({"layers": [{"name": "a b", "geojson": "{}"}]}, "the name of a layer must not contain spaces "),
    ],
)
def test_invalid_element_of_a_table_is_not_called_an_option(run, keys, message):
    done = run(*RELEASE, "-o", "out.csv", keys)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"Error: {message}")


@pytest.mark.usefixtures("world")
def test_key_on_command_line_is_referred_to_file(run):
    done = run(*RELEASE, "--repair-max-work", 10)
    assert done.exit_code == 2
    assert "--repair-max-work must be the key repair_max_work in --settings FILE.toml" in done.stderr


def test_page_contains_every_key():
    pytest.importorskip("numpydoc")
    from scripts.site.commands import build_pages

    rows = re.findall(r"^\| `(\w+)`.*\| (.*) \|$", build_pages()["keys.md"], flags=re.MULTILINE)
    assert {key for key, _ in rows} == {key for _, key in KEYS}
    assert all(commands for _, commands in rows)
