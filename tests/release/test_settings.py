"""`ReleaseSettings`: a value that is refused where it cannot be, reads back without loss, and names what it says."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule, SensitivityHull
from dphmm.errors import BudgetError, ConfigurationError, DataFileError, DphmmError, EventError, PolicyError
from dphmm.events import Cap
from dphmm.mechanisms import MECHANISMS, TABLES
from dphmm.policy import PolygonLayer
from dphmm.space import Grid, Places

GRID = Grid.over((44.99, -30.02, 45.01, -29.98), cell_km=0.3333)
STOPS = Places(["a", "b", "c", "d"], [45.0, 45.00431, 45.00912, 45.0001], [7.0, 7.0123, 7.0311, 7.00012])

EVENTS = [
    "at:a,b between 1 and 4 | !at:c at 2",
    "at:home between 2024-03-04 and 2024-03-10 any weekday 9-12:30 in Europe/Berlin",
    'at:"St. Mary" at least 2 days between 2024-03-04 and 2024-03-10',
]

some_settings = st.builds(
    ReleaseSettings,
    policy=st.sampled_from(["complete", "transition", "utility:1km & complete", "utility:0.7km | transition"]),
    epsilon=st.floats(1e-6, 1e6),
    mechanism=st.sampled_from([name for name in MECHANISMS if name not in TABLES]),  # which have no caps
    repair=st.sampled_from(["greedy", "sequential", "exact"]),
    objective=st.sampled_from(["volume", "error"]),
    membership=st.sampled_from(["halfspace", "qp"]),
    delta=st.none() | st.floats(0, 0.999),
    allow_known=st.booleans(),
    spacing=st.fractions(Fraction(1, 10**9), 10),
    outside=st.sampled_from(["border", "omit"]),
    repair_limit=st.integers(0, 10**12),
    caps=st.lists(
        st.builds(Cap, st.sampled_from(EVENTS), st.floats(0.5, 0.999), st.sampled_from([0.0, 0.01])), max_size=3
    ),
)


def uniform(space) -> MarkovModel:
    return MarkovModel(
        np.full((space.size, space.size), 1 / space.size), np.full(space.size, 1 / space.size), space, 60
    )


NOISES = [name for name in MECHANISMS if name not in TABLES]


@given(some_settings)
def test_json_and_toml_read_back_without_loss(settings):
    assert ReleaseSettings.from_json(settings.to_json()) == settings
    assert ReleaseSettings.from_toml(settings.to_toml()) == settings
    assert ReleaseSettings.from_json(settings.to_json()).content_hash == settings.content_hash


def test_every_field_is_written_and_makes_another_hash(tmp_path):
    # Spelled out per field, so that a field that later work adds and forgets here is found.
    changed = {
        "policy": "complete",
        "epsilon": 2.0,
        "mechanism": "laplace",
        "repair": "greedy",
        "objective": "volume",
        "membership": "qp",
        "delta": 0.5,
        "allow_known": True,
        "spacing": "1/100",
        "outside": "omit",
        "repair_limit": 7,
        "caps": (Cap("state:3 between 1 and 4", 0.7),),
        "priors": str(tmp_path / "priors.csv"),
        "calibration": "component",
        "schedule": Schedule(0.5),
        "optimal_limit": 65,
        "fallback": "graph-exponential",
        "layers": (PolygonLayer("home", "{}"),),
    }
    (tmp_path / "priors.csv").write_text("state,one\n")
    base = ReleaseSettings()
    assert set(json.loads(base.to_json())) == set(changed) == {f.name for f in dataclasses.fields(ReleaseSettings)}
    needed = {"priors": {"caps": changed["caps"]}, "layers": {"policy": "zone:home"}}
    hashes = {base.content_hash} | {
        dataclasses.replace(base, **{k: v}, **needed.get(k, {})).content_hash for k, v in changed.items()
    }
    assert len(hashes) == len(changed) + 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"policy": " "}, ConfigurationError, "policy is ' '; give a text such as utility:1km"),
        (
            {"policy": 3},
            PolicyError,
            "policy must be a text such as utility:1km, a PolicyGraph or a networkx.Graph, got 3",
        ),
        ({"epsilon": 0}, BudgetError, "epsilon is 0"),
        ({"epsilon": float("nan")}, BudgetError, "epsilon is nan"),
        ({"epsilon": "1"}, ConfigurationError, "epsilon is '1'; give a number"),
        ({"epsilon": True}, ConfigurationError, "epsilon is True; give a number"),
        ({"mechanism": "gauss"}, ConfigurationError, "mechanism is 'gauss'; choose one of lattice, k-norm"),
        ({"repair": "no"}, ConfigurationError, "repair is 'no'; choose one of greedy, sequential, exact"),
        ({"objective": None}, ConfigurationError, "objective is 'None'; choose one of volume, error"),
        ({"membership": ["qp"]}, ConfigurationError, "membership is"),
        ({"delta": 1}, ConfigurationError, "delta is 1.0; give a number from 0 to below 1"),
        ({"delta": float("nan")}, ConfigurationError, "delta is nan"),
        ({"allow_known": 1}, ConfigurationError, "allow_known is 1; give true or false"),
        ({"spacing": 0}, ConfigurationError, "spacing"),
        ({"spacing": "a metre"}, ConfigurationError, "spacing"),
        ({"outside": "drop"}, ConfigurationError, "outside is 'drop'; choose one of border, omit"),
        ({"repair_limit": -1}, ConfigurationError, "repair_limit is -1; give a whole number from 0"),
        ({"repair_limit": 2.5}, ConfigurationError, "repair_limit is 2.5; give a whole number from 0"),
        ({"caps": "at:home at 3"}, ConfigurationError, "caps is 'at:home at 3'; give a list"),
        ({"caps": [{"event": "at:home at 3"}]}, ConfigurationError, "give an event and a probability for each"),
        ({"caps": [{"event": "at:home at 3", "probability": 2}]}, EventError, "the cap on an event is 2"),
        ({"caps": [{"event": "home", "probability": 0.5}]}, EventError, "has 'home' where a place is named"),
        ({"priors": "p.csv"}, ConfigurationError, "priors is 'p.csv'; give the path of a table, beside caps"),
        ({"layers": "home"}, ConfigurationError, "layers is 'home'; give a list of layers"),
        ({"layers": [{"name": "home"}]}, ConfigurationError, "give a name and the geojson of each"),
        ({"layers": [{"name": "a b", "geojson": "{}"}]}, PolicyError, "give a name without spaces"),
        ({"layers": [PolygonLayer("a", "{}"), PolygonLayer("a", "")]}, ConfigurationError, "two layers have one name"),
        ({"colour": "red"}, ConfigurationError, "setting 'colour' is unknown; the settings are policy, epsilon"),
    ],
)
def test_a_value_that_cannot_be_is_refused(changes, error, message):
    with pytest.raises(error, match=message.replace("'", "['\"]")):
        ReleaseSettings.from_dict(changes)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '"a"', '{"epsilon": 1e999}'])
def test_text_that_holds_no_settings_is_refused(text):
    with pytest.raises(DphmmError):
        ReleaseSettings.from_json(text)


def test_what_is_hashed_cannot_change():
    settings = ReleaseSettings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.epsilon = 2.0  # type: ignore[misc]


def test_the_hash_is_of_what_a_policy_says_not_of_its_wording_or_its_files_place(tmp_path):
    def of(policy: str) -> str:
        return ReleaseSettings(policy=policy).content_hash

    assert of("utility:1km&complete") == of(" utility: 1000m &complete ")
    assert of("utility:1km") != of("utility:2km")
    graph = PolicyGraph.from_edges(4, [(0, 1)])
    for name in ("one.json", "two.json"):
        graph.to_json(tmp_path / name)
    one, two = (of(f"graph:{tmp_path / name}") for name in ("one.json", "two.json"))
    assert one == two
    PolicyGraph.from_edges(4, [(0, 2)]).to_json(tmp_path / "two.json")
    assert of(f"graph:{tmp_path / 'two.json'}") != one
    with pytest.raises(DataFileError, match=r"gone\.json: cannot be read"):
        of(f"graph:{tmp_path / 'gone.json'}")


@pytest.mark.parametrize("space", [GRID, STOPS], ids=["cells of 333.3 m", "places anywhere"])
@pytest.mark.parametrize("mechanism", NOISES)
def test_an_engine_keeps_its_edges_wherever_the_states_are(space, mechanism):
    # On every edge of the protectable graph the loss is at most epsilon, for what the mechanism takes as true values.
    engine = ReleaseSettings(policy="utility:600m", epsilon=0.7, mechanism=mechanism).engine(uniform(space), 1)
    step = engine.prepare()
    edges = step.plan.protection.graph.edge_array()
    loss = step.noise.parts[0].privacy_loss(engine.values[edges[:, 0]], engine.values[edges[:, 1]])
    assert loss.max() <= 0.7 * (1 + 1e-9)
    assert loss.max() >= 0.7 * (1 - 1e-9), "some edge is on the hull"
    record = engine.release(0)
    assert (record.settings, record.model) == (engine.settings.content_hash, engine.model.content_hash)
    if mechanism == "lattice":
        assert np.abs(np.array(record.released) * 1000 - np.rint(np.array(record.released) * 1000)).max() < 1e-9


def test_measurements_are_rounded_to_the_published_lattice_by_half_a_step_at_most():
    for spacing in ("1/1000", "0.01", 0.25):
        engine = ReleaseSettings(policy="complete", spacing=spacing).engine(uniform(STOPS))
        step = float(engine.settings.spacing)
        assert np.abs(engine.values * step - STOPS.points).max() <= step / 2 * (1 + 1e-12)
        assert engine.values.dtype == np.int64


def test_the_engine_of_settings_is_the_engine_of_its_parts():
    model = uniform(GRID)
    settings = ReleaseSettings(policy="centres:1km", epsilon=0.5, mechanism="k-norm")
    one = settings.engine(model, 3)
    other = Releaser(model, GRID.points, PolicyGraph.utility(GRID.points, 1.0), 0.5, "k-norm", rng=3)
    for state in (0, 5, 9):
        a, b = vars(one.release(state)), vars(other.release(state))
        differing = {name for name, value in a.items() if value != b[name]}
        assert differing == {"settings", "estimate_radius"}  # of cells, and of points


def test_an_engine_given_a_graph_has_settings_that_name_it_and_make_no_other():
    f = np.array([[0.0, 0], [1, 0], [0, 1]])
    engines = [Releaser(MarkovModel(np.full((3, 3), 1 / 3), [1, 0, 0]), f, graph, 1.0) for graph in
               (PolicyGraph.complete(3), PolicyGraph.from_edges(3, [(0, 1)]))]  # fmt: skip
    assert engines[0].settings.content_hash != engines[1].settings.content_hash
    with pytest.raises(ConfigurationError, match="was given as a graph"):
        engines[0].settings.engine(uniform(GRID))
    assert SensitivityHull(PolicyGraph.complete(3).differences(f)).dimension == 2


def test_a_model_without_a_map_makes_no_engine():
    with pytest.raises(ConfigurationError, match="does not say where its states are"):
        ReleaseSettings().engine(MarkovModel(np.eye(2), [0.5, 0.5]))


def test_what_is_written_is_what_was_said_letter_by_letter():
    settings = ReleaseSettings(policy="graph:Küste.json")
    assert "Küste" in settings.to_json()
    assert ReleaseSettings.from_json(settings.to_json()) == settings
