"""`ReleaseSettings`: validation, lossless round trips and content hashes."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule, SensitivityHull
from dphmm.errors import (
    BudgetError,
    ConfigurationError,
    DataFileError,
    DphmmError,
    EventError,
    InvalidInputError,
    PolicyError,
)
from dphmm.events import Cap
from dphmm.mechanisms import MECHANISMS, TABLE_MECHANISMS
from dphmm.policy import PolygonLayer
from dphmm.release.settings import SETTING_NAMES, DayKeywords, NoiseKeywords, QueryKeywords
from dphmm.space import Grid, Places

GRID = Grid.over((44.99, -30.02, 45.01, -29.98), cell_km=0.3333)
STOPS = Places(["a", "b", "c", "d"], [45.0, 45.00431, 45.00912, 45.0001], [7.0, 7.0123, 7.0311, 7.00012])

EVENTS = [
    "at:a,b between 1 and 4 | !at:c at 2",
    "at:home between 2024-03-04 and 2024-03-10 any weekday 9-12:30 in Europe/Berlin",
    'at:"St. Mary" at least 2 days between 2024-03-04 and 2024-03-10',
]

settings_strategy = st.builds(
    ReleaseSettings,
    policy=st.sampled_from(["complete", "transition", "utility:1km & complete", "utility:0.7km | transition"]),
    epsilon=st.floats(1e-6, 1e6),
    mechanism=st.sampled_from([name for name in MECHANISMS if name not in TABLE_MECHANISMS]),  # tables support no caps
    repair=st.sampled_from(["greedy", "sequential", "exact"]),
    repair_objective=st.sampled_from(["volume", "error"]),
    membership=st.sampled_from(["halfspace", "qp"]),
    delta=st.none() | st.floats(0, 0.999),
    allow_singleton=st.booleans(),
    spacing=st.fractions(Fraction(1, 10**9), 10),
    outside=st.sampled_from(["clamp", "drop"]),
    repair_max_work=st.integers(0, 10**12),
    caps=st.lists(
        st.builds(Cap, st.sampled_from(EVENTS), st.floats(0.5, 0.999), st.sampled_from([0.0, 0.01])), max_size=3
    ),
)


def build_uniform(space) -> MarkovModel:
    return MarkovModel(
        np.full((space.size, space.size), 1 / space.size), np.full(space.size, 1 / space.size), space, 60
    )


NOISES = [name for name in MECHANISMS if name not in TABLE_MECHANISMS]


def test_engine_of_a_model_file_raises():
    with pytest.raises(InvalidInputError, match=r"^model must be a MarkovModel, got 'model\.npz'"):
        ReleaseSettings("complete").engine("model.npz")


def test_numbers_of_numpy_are_saved_as_numbers_of_python():
    plain = {"epsilon": 2, "allow_singleton": True, "repair_max_work": 7, "optimal_max_states": 9}
    settings = ReleaseSettings("complete", **{name: np.array([value])[0] for name, value in plain.items()})
    assert settings.content_hash == ReleaseSettings("complete", **plain).content_hash
    assert ReleaseSettings.from_toml(settings.to_toml()) == settings


@given(settings_strategy)
def test_json_and_toml_round_trip(settings):
    assert ReleaseSettings.from_json(settings.to_json()) == settings
    assert ReleaseSettings.from_toml(settings.to_toml()) == settings
    assert ReleaseSettings.from_json(settings.to_json()).content_hash == settings.content_hash


def test_every_field_is_serialized_and_changes_hash(tmp_path):
    # Listed per field: a field added later and missing here makes the test fail.
    changed = {
        "policy": "complete",
        "epsilon": 2.0,
        "mechanism": "laplace",
        "repair": "greedy",
        "repair_objective": "volume",
        "membership": "qp",
        "delta": 0.5,
        "allow_singleton": True,
        "spacing": "1/100",
        "outside": "drop",
        "repair_max_work": 7,
        "caps": (Cap("state:3 between 1 and 4", 0.7),),
        "event_cap_priors": str(tmp_path / "priors.csv"),
        "noise_scope": "component",
        "schedule": Schedule(0.5),
        "optimal_max_states": 65,
        "optimal_fallback": "graph-exponential",
        "layers": (PolygonLayer("home", "{}"),),
    }
    (tmp_path / "priors.csv").write_text("state,one\n")
    base = ReleaseSettings()
    assert set(json.loads(base.to_json())) == set(changed) == {f.name for f in dataclasses.fields(ReleaseSettings)}
    needed = {"event_cap_priors": {"caps": changed["caps"]}, "layers": {"policy": "zone:home"}}
    hashes = {base.content_hash} | {
        dataclasses.replace(base, **{k: v}, **needed.get(k, {})).content_hash for k, v in changed.items()
    }
    assert len(hashes) == len(changed) + 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"policy": " "}, ConfigurationError, "policy must be a non-empty string"),
        (
            {"policy": 3},
            PolicyError,
            "policy must be a string such as utility:1km, a PolicyGraph or a networkx.Graph",
        ),
        ({"epsilon": 0}, BudgetError, "epsilon must be in"),
        ({"epsilon": float("nan")}, BudgetError, "epsilon must be in"),
        ({"epsilon": "1"}, BudgetError, "epsilon must be in"),
        ({"epsilon": True}, BudgetError, "epsilon must be in"),
        ({"mechanism": "gauss"}, ConfigurationError, "mechanism must be one of lattice, k-norm"),
        ({"repair": "no"}, ConfigurationError, "repair must be one of greedy, sequential, exact"),
        ({"repair_objective": None}, ConfigurationError, "objective must be one of volume, error"),
        ({"membership": ["qp"]}, ConfigurationError, "membership must be one of halfspace, qp"),
        ({"delta": 1}, ConfigurationError, r"delta must be in \[0, 1\)"),
        ({"delta": float("nan")}, ConfigurationError, r"delta must be in \[0, 1\)"),
        ({"allow_singleton": 1}, ConfigurationError, "allow_singleton must be True or False"),
        ({"spacing": 0}, ConfigurationError, "spacing"),
        ({"spacing": "a metre"}, ConfigurationError, "spacing"),
        ({"outside": "border"}, ConfigurationError, "outside must be one of clamp, drop"),
        ({"repair_max_work": -1}, ConfigurationError, "repair_max_work must be a non-negative integer"),
        ({"repair_max_work": 2.5}, ConfigurationError, "repair_max_work must be a non-negative integer"),
        ({"caps": "at:home at 3"}, ConfigurationError, "caps must be a list of event caps, got 'at:home at 3'"),
        (
            {"caps": [{"event": "at:home at 3"}]},
            ConfigurationError,
            "each element of caps must have an event and a probability",
        ),
        ({"caps": [{"event": "at:home at 3", "probability": 2}]}, EventError, r"probability must be in \(0, 1\)"),
        ({"caps": [{"event": "home", "probability": 0.5}]}, EventError, "event 'home' must have a location"),
        ({"event_cap_priors": "p.csv"}, ConfigurationError, "event_cap_priors cannot be used without caps"),
        ({"layers": "home"}, ConfigurationError, "layers must be a list of layers, got 'home'"),
        ({"layers": [{"name": "home"}]}, ConfigurationError, "each element of layers must have a name and its geojson"),
        ({"layers": [{"name": "a b", "geojson": "{}"}]}, PolicyError, "the name of a layer must not contain spaces"),
        (
            {"layers": [PolygonLayer("a", "{}"), PolygonLayer("a", "")]},
            ConfigurationError,
            "layer names must be unique, got 'a' twice",
        ),
        ({"colour": "red"}, ConfigurationError, "unknown setting 'colour'; the settings are policy, epsilon"),
    ],
)
def test_invalid_value_raises(changes, error, message):
    with pytest.raises(error, match=message.replace("'", "['\"]")):
        ReleaseSettings.from_dict(changes)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '"a"', '{"epsilon": 1e999}'])
def test_invalid_settings_text_raises(text):
    with pytest.raises(DphmmError):
        ReleaseSettings.from_json(text)


def test_settings_are_frozen():
    settings = ReleaseSettings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.epsilon = 2.0  # type: ignore[misc]


def test_hash_depends_on_policy_content_not_wording_or_file_name(tmp_path):
    def compute_hash(policy: str) -> str:
        return ReleaseSettings(policy=policy).content_hash

    assert compute_hash("utility:1km&complete") == compute_hash(" utility: 1000m &complete ")
    assert compute_hash("utility:1km") != compute_hash("utility:2km")
    graph = PolicyGraph.from_edges(4, [(0, 1)])
    for name in ("one.json", "two.json"):
        graph.to_json(tmp_path / name)
    first, two = (compute_hash(f"graph:{tmp_path / name}") for name in ("one.json", "two.json"))
    assert first == two
    PolicyGraph.from_edges(4, [(0, 2)]).to_json(tmp_path / "two.json")
    assert compute_hash(f"graph:{tmp_path / 'two.json'}") != first
    with pytest.raises(DataFileError, match=r"gone\.json"):
        compute_hash(f"graph:{tmp_path / 'gone.json'}")


def test_hash_depends_on_content_of_file_of_event_cap(tmp_path):
    path, hashes = tmp_path / "clinic.geojson", []
    for content in ("{}", "{ }", "{}"):
        path.write_text(content)
        hashes.append(ReleaseSettings(caps=[Cap(f"at:{path} at 1", 0.5)]).content_hash)
    assert hashes[0] == hashes[2] != hashes[1]


@pytest.mark.parametrize("space", [GRID, STOPS], ids=["cells of 333.3 m", "places anywhere"])
@pytest.mark.parametrize("mechanism", NOISES)
def test_engine_keeps_epsilon_on_every_edge_for_any_space(space, mechanism):
    # On every edge of the protectable graph the loss is at most epsilon for the mechanism's true values.
    engine = ReleaseSettings(policy="utility:600m", epsilon=0.7, mechanism=mechanism).engine(build_uniform(space), 1)
    step = engine.prepare()
    edges = step.protection.graph.edge_array()
    loss = step.noise.parts[0].privacy_loss(engine.query.values[edges[:, 0]], engine.query.values[edges[:, 1]])
    assert loss.max() <= 0.7 * (1 + 1e-9)
    assert loss.max() >= 0.7 * (1 - 1e-9), "an edge is on the hull"
    record = engine.release(0)
    assert (record.settings_hash, record.model_hash) == (engine.settings.content_hash, engine.model.content_hash)
    if mechanism == "lattice":
        assert np.abs(np.array(record.released) * 1000 - np.rint(np.array(record.released) * 1000)).max() < 1e-9


def test_measurements_are_rounded_to_spacing():
    for spacing in ("1/1000", "0.01", 0.25):
        engine = ReleaseSettings(policy="complete", spacing=spacing).engine(build_uniform(STOPS))
        step = float(engine.settings.spacing)
        assert np.abs(engine.query.values * step - STOPS.points).max() <= step / 2 * (1 + 1e-12)
        assert engine.query.values.dtype == np.int64


def test_engine_from_settings_matches_engine_from_parts():
    model = build_uniform(GRID)
    settings = ReleaseSettings(policy="centres:1km", epsilon=0.5, mechanism="k-norm")
    engine = settings.engine(model, 3)
    other = Releaser(model, GRID.points, PolicyGraph.utility(GRID.points, 1.0), 0.5, "k-norm", rng=3)
    for state in (0, 5, 9):
        a, b = vars(engine.release(state)), vars(other.release(state))
        differing = {name for name, value in a.items() if value != b[name]}
        assert differing == {"settings_hash", "expected_estimate_error"}  # one error is of cells, the other of points


def test_engine_with_graph_has_distinct_settings_that_cannot_build_engines():
    f = np.array([[0.0, 0], [1, 0], [0, 1]])
    engines = [Releaser(MarkovModel(np.full((3, 3), 1 / 3), [1, 0, 0]), f, graph, 1.0) for graph in
               (PolicyGraph.complete(3), PolicyGraph.from_edges(3, [(0, 1)]))]  # fmt: skip
    assert engines[0].settings.content_hash != engines[1].settings.content_hash
    with pytest.raises(ConfigurationError, match="graph"):
        engines[0].settings.engine(build_uniform(GRID))
    assert SensitivityHull(PolicyGraph.complete(3).differences(f)).dimension == 2


def test_model_without_space_raises():
    with pytest.raises(ConfigurationError, match="the model has no state locations: learn a model with 'dphmm learn'"):
        ReleaseSettings().engine(MarkovModel(np.eye(2), [0.5, 0.5]))


def test_non_ascii_policy_is_written_unescaped():
    settings = ReleaseSettings(policy="graph:Küste.json")
    assert "Küste" in settings.to_json()
    assert ReleaseSettings.from_json(settings.to_json()) == settings


def test_keywords_for_type_checkers_are_all_settings():
    names = set(SETTING_NAMES)
    keywords = (NoiseKeywords, QueryKeywords, DayKeywords)
    noise, query, day = (kind.__optional_keys__ for kind in keywords)
    assert noise == names - {"policy", "epsilon", "mechanism"}
    assert query == names - {"policy"}
    assert day == names - {"epsilon", "schedule"}
