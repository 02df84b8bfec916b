"""Tests of what the page of ``dphmm explore`` shows: audits and releases agree."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from dataclasses import replace
from itertools import combinations

import networkx
import numpy as np
import pytest

from dphmm import Grid, MarkovModel, Releaser, ReleaseSettings
from dphmm.cli import main
from dphmm.cli.shared_options import build_settings
from dphmm.errors import ConfigurationError, DataFileError, DphmmError, InvalidInputError
from dphmm.jobs import AuditTarget, Constraint, Data, audit_policy, compare_uses, learn, sample_users
from dphmm.jobs.explore.explored_user import ExploredUser, sample_user, select_user
from dphmm.jobs.explore.explorer import MAX_EDGE_STATES, Explorer
from dphmm.jobs.explore.typed_settings import DEFAULT_FIELDS, parse_fields
from dphmm.jobs.release.stored import read_released
from dphmm.model.path_sampling import sample_paths
from dphmm.policy.expression import parse_policy
from dphmm.space.projection import LocalProjection
from dphmm.space.states import Places
from tests.command_line import run
from tests.documents import read_page, run_line

STEP_S = 300


def make_model(rng, size=9):
    """Return a model of places on a lattice of 100 m, with random moves."""
    cells = rng.choice(400, size, replace=False)
    degrees = 45 + 0.0009 * (cells // 20), 7 + 0.00127 * (cells % 20)
    matrix = rng.random((size, size)) * (rng.random((size, size)) < 0.6) + np.eye(size)
    matrix /= matrix.sum(axis=1, keepdims=True)
    return MarkovModel(matrix, np.full(size, 1 / size), Places([f"s{k}" for k in range(size)], *degrees), STEP_S)


def choose_fields(rng, size):
    """Return random fields. In random graphs, states are often exposed."""
    edges = [sorted(rng.choice(size, 2, replace=False).tolist()) for _ in range(int(rng.integers(1, 5)))]
    links = [{"source": f"s{first}", "target": f"s{second}"} for first, second in edges]
    graph = {"directed": False, "multigraph": False, "nodes": [], "edges": links}
    policies = [f"graph:{json.dumps(graph)}", f"graph:{json.dumps(graph)}", "utility:700m", "complete", "transition"]
    return {
        "policy": policies[rng.integers(len(policies))],
        "epsilon": f"{rng.uniform(0.2, 3):.3g}",
        "delta": ["", "0.05", "0.2"][rng.integers(3)],
        "mechanism": ["lattice", "k-norm", "laplace", "planar-laplace"][rng.integers(4)],
        "noise_scope": ["graph", "graph", "component"][rng.integers(3)],
        "repair": ["exact", "greedy"][rng.integers(2)],
    }


AUDITED = {"lattice": "k-norm", "k-norm": "k-norm", "laplace": "laplace", "planar-laplace": "planar-laplace"}


def compare(view, explorer, fields, policy=None):
    """Return the figures of a view that differ from those of ``dphmm audit policy``."""
    target = AuditTarget.from_model(explorer.model, policy or fields["policy"])
    possible = np.zeros(explorer.model.size, dtype=np.bool_)
    possible[view["constraint"]] = True
    audit = audit_policy(
        target,
        [Constraint("shown", possible)],
        [AUDITED[fields["mechanism"]]],
        epsilon=float(fields["epsilon"]),
        noise_scope=fields["noise_scope"],
    ).to_dict()["constraints"][0]
    (body,) = audit["mechanisms"]
    names = explorer.names
    shown = {
        "exposed": [names[state] for state in view["exposed"]],
        "isolated": [names[state] for state in view["isolated"]],
        "num_components": view["num_components"],
        "degrees": {names[state]: degree for state, degree in zip(view["constraint"], view["degrees"], strict=True)},
    }
    audited = {
        **{name: body[name] for name in ("exposed", "degrees")},
        **{name: audit[name] for name in ("isolated", "num_components")},
    }
    if fields["noise_scope"] == "graph":  # the error of one body; those of components differ between them
        repairs = {repair["method"]: repair for repair in audit["repairs"]}
        # For a cross-polytope and a disc all methods agree, and the audit lists one.
        chosen = repairs.get(fields["repair"], repairs.get("exact"))
        edges = [] if chosen is None else chosen["added_edges"]
        shown["added"] = [[names[state] for state in entry["edge"]] for entry in view["repair"]["added"]]
        audited["added"] = [list(edge) for edge in edges]
        audited["error"] = round(1000 * (body if chosen is None else chosen)["expected_error"], 3)
        # The lattice has steps of a metre, and exact noise on it is slightly wider than real-valued noise.
        tolerance = 3.0 if fields["mechanism"] == "lattice" else 1e-3
        is_close = abs(view["expected_error_m"] - audited["error"]) <= tolerance
        shown["error"] = audited["error"] if is_close else view["expected_error_m"]
    return [name for name in audited if shown[name] != audited[name]]


@pytest.mark.slow
def test_page_shows_what_audit_policy_reports_for_50_random_settings():
    rng = np.random.default_rng(60)
    num_views = num_exposed = num_noticed = 0
    while num_views < 50:
        model = make_model(rng, 7)
        path = sample_paths(model, 1, 4, rng=int(rng.integers(1000)))[0].astype(np.int64)
        explorer = Explorer(model, ExploredUser("", np.arange(4), path))
        fields = choose_fields(rng, model.size)
        view = explorer.build_view(fields, int(rng.integers(4)))
        if "errors" in view:  # the policy connects no two states, or one state only is possible
            assert set(view["errors"]) <= {"policy", "delta"}
            continue
        json.dumps(view, allow_nan=False)
        assert compare(view, explorer, fields) == [], fields
        if num_views < 10:  # the comparison notices another policy
            num_noticed += bool(compare(view, explorer, fields, f"graph:{json.dumps(TRIANGLE)}"))
        num_views += 1
        num_exposed += bool(view["exposed"])
    assert num_exposed >= 10
    assert num_noticed >= 8


@pytest.mark.parametrize("delta", ["", "0.1"])
def test_single_possible_state_is_described_by_fields_of_page(delta):
    """The second timestep has a single state, and the first one still has a view."""
    model = make_model(np.random.default_rng(3))
    model = MarkovModel(np.eye(9)[[4] * 9], model.initial, model.space, STEP_S)
    explorer = Explorer(model, ExploredUser("", np.arange(3), np.array([0, 4, 4])))
    fields = {"policy": "complete", "delta": delta}
    ((field, error),) = explorer.build_view(fields, 2)["errors"].items()
    assert field == ("delta" if delta else "policy")
    assert set(re.findall(r"[a-z]+_\w+", error)) <= set(DEFAULT_FIELDS)
    assert ("delta" in error) == bool(delta)
    assert re.findall(r"timestep (\d+)", error) == ["2"]
    assert "errors" not in explorer.build_view(fields, 0)


TRIANGLE = {
    "directed": False, "multigraph": False, "nodes": [],
    "edges": [{"source": "s0", "target": "s1"}, {"source": "s1", "target": "s2"}],
}  # fmt: skip


@pytest.mark.slow
def test_largest_budget_of_24_hours_matches_enumeration():
    """Brute force over all windows, for a user at irregular times with a varying budget."""
    model = make_model(np.random.default_rng(3))
    user = sample_user(model, 40, seed=2)
    gaps = np.random.default_rng(5).choice([1, 2, 60, 200], len(user.slots))
    user = replace(user, slots=user.slots[0] + np.cumsum(gaps) - gaps[0])
    explorer = Explorer(model, user)
    fields = {"policy": "utility:1km", "epsilon": "0.5", "target_error": "500m"}
    views = [explorer.build_view(fields, step) for step in range(len(user.slots))]
    steps_per_window = round(86_400 / model.step)
    for step, view in enumerate(views):
        times, spent = user.slots[: step + 1], [earlier["epsilon"] for earlier in views[: step + 1]]
        sums = [sum(e for t, e in zip(times, spent, strict=True) if end - steps_per_window < t <= end) for end in times]
        assert view["max_epsilon_24h"] == pytest.approx(max(sums))
    assert len({view["max_epsilon_24h"] for view in views}) > 2
    assert views[-1]["max_epsilon_24h"] > views[-1]["epsilon_24h"]


@pytest.fixture
def explorer():
    model = make_model(np.random.default_rng(3))
    return Explorer(model, sample_user(model, 6, seed=2))


@pytest.mark.slow
def test_releases_are_those_of_engine(explorer):
    fields = {"policy": "utility:1km", "epsilon": "0.7", "delta": "0.1"}
    engine = ReleaseSettings("utility:1km", 0.7, delta=0.1).engine(explorer.model, rng=8)
    engine.restart(int(explorer.user.slots[0]))
    for step, state in enumerate(explorer.user.states.tolist()):
        record = engine.release(state)
        view = explorer.build_view(fields, step, seed=8)
        place = explorer.model.space.projection.to_latlon(np.array([record.released]))[0]
        assert view["released"] == pytest.approx(place, abs=1e-6)
        assert (view["epsilon_total"], view["epsilon_24h"]) == (record.epsilon_total, record.epsilon_24h)
        public = view["adversaries"]["public"]
        assert public["expected_error_m"] == pytest.approx(1000 * record.expected_estimate_error)
        assert public["max_posterior_probability"] == pytest.approx(record.max_posterior_probability)
    assert (
        explorer.build_view(fields, 2, seed=8)["true_state"] == explorer.user.states[2]
    )  # earlier steps stay available


@pytest.fixture
def long_explorer():
    model = make_model(np.random.default_rng(3))
    return Explorer(model, sample_user(model, 30, seed=2))


BEFORE = {"policy": "utility:1km", "epsilon": "0.7", "delta": "0.1"}
AFTER = {"policy": "complete", "epsilon": "1.5", "delta": "0.05", "mechanism": "k-norm"}


@pytest.mark.slow
def test_change_after_many_timesteps_is_that_of_amended_session(long_explorer):
    """Oracle: an engine that resumes from the belief, the account and the slot of another one."""
    step = 20
    long_explorer.build_view(BEFORE, step, seed=8)
    view = long_explorer.build_view(AFTER, step, seed=8, before=(BEFORE, 8))
    assert view["applies_from"] == step
    first = parse_fields(BEFORE)[0].engine(long_explorer.model, rng=8)
    first.restart(int(long_explorer.user.slots[0]))
    for state in long_explorer.user.states[:step].tolist():
        last = first.release(state)
    second = parse_fields(AFTER)[0].engine(long_explorer.model, rng=np.random.default_rng((8, step)))
    state = first.filter_state
    second.resume(first.belief, step, account=state.account, slot=state.slot)
    record = second.release(int(long_explorer.user.states[step]))
    place = long_explorer.model.space.projection.to_latlon(np.array([record.released]))[0]
    assert view["released"] == pytest.approx(place, abs=1e-6)
    assert view["epsilon_total"] == pytest.approx(last.epsilon_total + 1.5)
    assert view["epsilon_24h"] == record.epsilon_24h
    assert view["adversaries"]["public"]["expected_error_m"] == pytest.approx(1000 * record.expected_estimate_error)
    assert compare(view, long_explorer, {**AFTER, "noise_scope": "graph", "repair": "exact"}) == []


@pytest.mark.slow
def test_views_from_first_timestep_do_not_depend_on_change_before(long_explorer):
    long_explorer.build_view(BEFORE, 20)
    amended = long_explorer.build_view(AFTER, 20, before=(BEFORE, 1))
    assert long_explorer.list_neighbours(AFTER, 20, view_states(amended)[0]) == view_states(amended)[1:]
    complete = long_explorer.build_view(AFTER, 20)
    assert complete["applies_from"] == 0
    assert complete == Explorer(long_explorer.model, long_explorer.user).build_view(AFTER, 20)
    assert complete["epsilon_total"] != amended["epsilon_total"]
    # a few timesteps, settings without computed timesteps and computed settings are answered from the first timestep
    assert long_explorer.build_view({"epsilon": "3"}, 8, before=(BEFORE, 1))["applies_from"] == 0
    assert long_explorer.build_view({"epsilon": "4"}, 20, before=({"epsilon": "5"}, 1))["applies_from"] == 0
    assert long_explorer.build_view({"epsilon": "4"}, 21, before=(BEFORE, 1))["applies_from"] == 0
    assert long_explorer.build_view(AFTER, 20, before=(BEFORE, 1)) == complete


def view_states(view):
    """Return the first possible state and the others, which a complete policy connects to it."""
    return view["constraint"]


def test_informed_adversary_is_exact_bayes_rule(explorer):
    """Oracle: the forward recursion in probabilities, with the engine's densities."""
    fields = {"policy": "complete", "epsilon": "2", "delta": "", "mechanism": "k-norm"}
    habits = explorer._habits
    engine = ReleaseSettings("complete", 2.0, mechanism="k-norm").engine(explorer.model, rng=1)
    engine.restart(int(explorer.user.slots[0]))
    belief = None
    for step, state in enumerate(explorer.user.states.tolist()):
        plan = engine.prepare()
        density = np.exp(engine.log_likelihood(plan, engine.draw(plan, state).released))
        prior = habits.initial if belief is None else belief @ habits.transition.toarray()
        belief = prior * density / (prior @ density)
        shown = explorer.build_view(fields, step)["adversaries"]["informed"]
        assert shown["probabilities"] == pytest.approx(belief[shown["states"]], abs=2e-6)
        assert shown["most_probable_state"] == int(np.argmax(belief))


def test_adversaries_differ_by_habits(explorer):
    adversaries = explorer.build_view({}, 5)["adversaries"]
    assert adversaries["public"]["probabilities"] != adversaries["informed"]["probabilities"]
    without = Explorer(explorer.model, ExploredUser("", explorer.user.slots, explorer.user.states))
    assert without.build_view({}, 5)["adversaries"]["informed"] is None


def draw_zone(explorer, names, label):
    """Return a zone field with a box around places."""
    latitude, longitude = explorer.model.space.latlon()[[explorer.names.index(name) for name in names]].T
    south, north = latitude.min() - 1e-4, latitude.max() + 1e-4
    west, east = longitude.min() - 1e-4, longitude.max() + 1e-4
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    feature = {"type": "Feature", "properties": {"name": label}, "geometry": geometry}
    return json.dumps({"type": "FeatureCollection", "features": [feature]})


@pytest.mark.slow
def test_edges_toggled_by_hand_change_policy(explorer, tmp_path):
    """Oracle: symmetric difference of sets of pairs, over random clicks."""
    rng = np.random.default_rng(4)
    fields = {"policy": "utility:700m", "delta": "", "edges": ""}
    edges = {tuple(edge) for edge in explorer.build_view(fields, 0)["edges"]}
    num_edges = len(edges)
    for _ in range(12):
        first, second = rng.choice(explorer.model.size, 2, replace=False).tolist()
        edges ^= {(min(first, second), max(first, second))}
        fields["edges"] = explorer.toggle_edge(fields, first, second)
        view = explorer.build_view(fields, 0)
        assert {tuple(edge) for edge in view["edges"]} == edges
        assert len(view["edited"]["removed"]) - len(view["edited"]["added"]) == num_edges - len(edges)
    explorer.write_policy(fields, tmp_path / "policy.json")
    written = parse_policy(f"graph:{tmp_path}/policy.json", explorer.model.space)
    assert {tuple(edge) for edge in written.edge_array().tolist()} == edges
    graph = ReleaseSettings.from_toml(view["toml"]).build_graph(explorer.model)
    assert {tuple(edge) for edge in graph.edge_array().tolist()} == edges
    for first, second in view["edited"]["added"] + view["edited"]["removed"]:
        fields["edges"] = explorer.toggle_edge(fields, second, first)
    assert fields["edges"] == ""
    with pytest.raises(InvalidInputError, match="two different states from 0 to 8, got 3 and 3"):
        explorer.toggle_edge(fields, 3, 3)
    with pytest.raises(DphmmError, match="epsilon"):
        explorer.toggle_edge({"epsilon": "x"}, 1, 2)


@pytest.mark.slow
def test_rows_of_uses_are_those_of_compared_settings(explorer):
    """Two settings, one with an edge removed by hand."""
    edited = {
        "policy": "complete",
        "epsilon": "0.5",
        "delta": "",
        "edges": explorer.toggle_edge({"policy": "complete"}, 0, 5),
    }
    calls = []
    rows = explorer.list_uses(
        [{"delta": ""}, edited], num_users=6, num_steps=5, seed=4, progress=lambda *numbers: calls.append(numbers)
    )
    first = int(explorer.user.slots[0])
    settings = [ReleaseSettings("utility:1km", 1.0), parse_fields(edited)[0]]
    users = sample_users(explorer.model, 6, 5, first, rng=4)
    expected = compare_uses(explorer.model, settings, users, first=first, num_patients=1, rng=4)
    for row, comparison in zip(rows, expected, strict=True):
        assert {**row, "policy": None} == {**comparison.to_dict(), "policy": None}
    assert rows[0]["policy"] == "utility:1km"
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert calls == [(done, 24) for done in range(1, 25)]
    with pytest.raises(DphmmError, match="epsilon"):
        explorer.list_uses([{"epsilon": "x"}])


@pytest.mark.parametrize(
    "edges", ["x", "7", '{"added": 3}', '{"added": [[1]]}', '{"removed": [[1, 1]]}', '{"added": [[true, 2]]}',
              '{"added": [[-1, 2]]}', json.dumps({"added": [[0, 1]] * 1001}), '{"added": [["<img>", 2]]}']
)  # fmt: skip
def test_malformed_edges_are_described(explorer, edges):
    assert set(explorer.build_view({"edges": edges}, 0)["errors"]) == {"edges"}
    assert set(explorer.build_view({"edges": '{"added": [[0, 99]]}'}, 0)["errors"]) == {"policy"}


def test_zone_drawn_by_hand_is_layer_of_policy(explorer, tmp_path, monkeypatch):
    label = "<img src=x onerror='x'> & \"Café\""
    fields = {
        "policy": "zone:zones.geojson | utility:300m",
        "delta": "",
        "zones": draw_zone(explorer, ZONE_NAMES, label),
    }
    view = explorer.build_view(fields, 0)
    drawn = {tuple(sorted(map(explorer.names.index, pair))) for pair in combinations(ZONE_NAMES, 2)}
    near = {tuple(edge) for edge in explorer.build_view({"policy": "utility:300m", "delta": ""}, 0)["edges"]}
    assert not drawn <= near
    assert drawn <= {tuple(edge) for edge in view["edges"]}
    assert ReleaseSettings.from_toml(view["toml"]).layers[0].geojson.count("Caf") == 1
    # command lines and Python read the file that the page saves
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zones.geojson").write_text(ReleaseSettings.from_toml(view["toml"]).layers[0].geojson)
    words = shlex.split(view["command"].splitlines()[-1])
    context = main.get_command(None, "release").make_context("release", words[2:], resilient_parsing=False)
    settings, _ = parse_fields(fields)
    assert build_settings(context.params, for_a_day=True).content_hash == settings.content_hash
    explorer.model.save("model.npz")
    names = {}
    exec(view["python"], names)
    assert names["releaser"].settings.content_hash == settings.content_hash


ZONE_NAMES = ("s0", "s1", "s2")


def test_invalid_zones_are_described(explorer):
    for zones in ("x", "[]", draw_zone(explorer, ZONE_NAMES, "n" * 10_000), draw_zone(explorer, ZONE_NAMES, "")):
        assert set(explorer.build_view({"zones": zones}, 0)["errors"]) == {"zones"}
    empty = json.loads(draw_zone(explorer, ZONE_NAMES, "home"))
    empty["features"][0]["geometry"]["coordinates"] = [[[0, 0], [1, 0], [1, 1], [0, 0]]]
    fields = {"policy": "zone:zones.geojson | complete", "zones": json.dumps(empty)}
    assert "must contain a state" in explorer.build_view(fields, 0)["errors"]["zones"]


def test_optimal_mechanism_has_fallback(explorer):
    fields = {"policy": "complete", "delta": "", "mechanism": "optimal", "optimal_fallback": "graph-exponential"}
    settings = ReleaseSettings.from_toml(explorer.build_view(fields, 0)["toml"])
    assert settings.optimal_fallback == "graph-exponential"
    assert "optimal_fallback" in explorer.build_view({"optimal_fallback": "x"}, 0)["errors"]


def test_every_invalid_field_is_described():
    values = {"epsilon": "-1", "delta": "x", "mechanism": "<b>", "target_error": "5", "window_epsilon": "0"}
    values["policy"] = " "
    settings, errors = parse_fields(values)
    assert settings is None
    assert set(errors) == set(values)
    assert all(text.startswith(name) for name, text in errors.items())
    assert "repair" in parse_fields({"repair": 7})[1]


def test_invalid_policy_is_described_with_other_invalid_fields(explorer):
    errors = explorer.build_view({"policy": "utility:1parsec", "epsilon": ""}, 0)["errors"]
    assert set(errors) == {"policy", "epsilon"}
    assert set(explorer.build_view({"mechanism": "optimal", "policy": "complete"}, 0)) != {"errors"}
    assert set(explorer.build_view({"policy": "categorical:absent.geojson"}, 0)["errors"]) == {"policy"}
    with pytest.raises(InvalidInputError, match="step must be an integer from 0 to 5, got 6"):
        explorer.build_view({}, 6)


def test_withheld_timestep_has_reason_and_no_samples(explorer):
    view = explorer.build_view({"target_error": "100km"}, 0)
    assert view["withheld_reason"] == "target"
    assert (view["released"], view["samples"], view["epsilon"]) == (None, [], 0.0)


def test_neighbours_are_those_of_restricted_policy(explorer):
    fields = {"policy": "utility:900m", "delta": "0.2"}
    view = explorer.build_view(fields, 3)
    graph = networkx.Graph(view["edges"])
    for state in range(explorer.model.size):
        expected = sorted(graph[state]) if state in graph else []
        assert explorer.list_neighbours(fields, 3, state) == expected
    assert explorer.list_neighbours(fields, 4, 0) == []  # not computed yet
    assert explorer.list_neighbours({"epsilon": "x"}, 3, 0) == []


def test_edges_of_large_constraint_sets_are_not_listed():
    side = 23
    assert side**2 > MAX_EDGE_STATES
    space = Grid(LocalProjection(45.0, 7.0), (0.0, 0.0), 0.5, side, side)
    model = MarkovModel(np.full((side**2, side**2), side**-2.0), np.full(side**2, side**-2.0), space, STEP_S)
    view = Explorer(model, ExploredUser("", np.arange(1), np.zeros(1, dtype=np.int64))).build_view({"delta": ""}, 0)
    assert view["edges"] is None
    assert len(view["constraint"]) == side**2


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"policy": "transition | complete", "epsilon": "0.3", "delta": "", "mechanism": "laplace", "repair": "greedy"},
        {"target_error": "500m", "window_epsilon": "3", "epsilon": "2", "noise_scope": "component"},
        {"edges": '{"added": [[0, 8]], "removed": [[1, 2]]}', "delta": "0.1"},
        {"mechanism": "optimal", "optimal_fallback": "graph-exponential"},
        {"target_error": "700m", "repair": "greedy"},
    ],
)
def test_command_toml_and_python_have_these_settings(explorer, fields, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, _ = parse_fields(fields)
    view = explorer.build_view(fields, 0)
    assert ReleaseSettings.from_toml(view["toml"]) == settings
    (tmp_path / "settings.toml").write_text(view["toml"], encoding="utf-8")
    words = shlex.split(view["command"].splitlines()[-1])
    release = main.get_command(None, words[1])
    context = release.make_context("release", words[2:], resilient_parsing=False)
    assert build_settings(context.params, for_a_day=True) == settings
    explorer.model.save("model.npz")
    names = {}
    exec(view["python"], names)
    assert isinstance(names["releaser"], Releaser)
    assert names["releaser"].settings == settings


REGION = 44.991234, -30.021234, 45.011234, -29.981234
RECORDING = (
    '<gpx version="1.1" creator="test" xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>'
    + "".join(
        f'<trkpt lat="45.0" lon="{-30.01 + 0.001 * k}"><time>2024-03-07T09:{5 * k:02d}:00Z</time></trkpt>'
        for k in range(6)
    )
    + "</trkseg></trk></gpx>"
)
ZONE = [[-30.012, 44.995], [-30.0, 44.995], [-30.0, 45.005], [-30.012, 45.005], [-30.012, 44.995]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"target_error": "700m", "repair": "greedy"},
        {"window_epsilon": "3", "repair_objective": "volume", "mechanism": "planar-isotropic"},
        {"mechanism": "planar-laplace", "delta": "", "target_error": "700m", "window_epsilon": "3"},
        {"mechanism": "graph-exponential", "optimal_fallback": "graph-exponential", "noise_scope": "component"},
        {"policy": "utility:1km | zone:zones.geojson", "edges": '{"added": [[0, 9]], "removed": [[0, 1]]}'},
    ],
)
def test_every_command_line_runs_as_printed(fields, tmp_path):
    region = Explorer.open(bbox=REGION, num_steps=3)
    feature = {"type": "Feature", "properties": {"name": "a & b"}, "geometry": {"type": "Polygon"}}
    feature["geometry"]["coordinates"] = [ZONE]
    zones = json.dumps({"type": "FeatureCollection", "features": [feature]})
    view = region.build_view({"zones": zones, **fields}, 2)
    (tmp_path / "settings.toml").write_text(view["toml"], encoding="utf-8")
    (tmp_path / "zones.geojson").write_text(zones, encoding="utf-8")
    (tmp_path / "recording.gpx").write_text(RECORDING, encoding="utf-8")
    lines = view["command"].splitlines()
    for line in lines:
        run_line(line, tmp_path)
    assert MarkovModel.load(tmp_path / "model.npz").content_hash == region.model.content_hash
    settings, _ = parse_fields({"zones": zones, **fields})
    stated = read_released(tmp_path / "releases.gpkg").table["settings_hash"]
    assert stated.tolist() == 6 * [settings.content_hash[:16]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{"mechanism": "laplace"}, {"repair_objective": "volume"}, {"mechanism": "planar-isotropic"}]
)
def test_command_line_of_audit_has_mechanism_and_objective(explorer, fields, tmp_path):
    """Oracle: the audit of these settings from Python."""
    fields = {"policy": "utility:300m", **fields}
    settings, _ = parse_fields(fields)
    explorer.model.save(tmp_path / "model.npz")
    *prepared, audit, _ = explorer.build_view({**fields, "delta": ""}, 0)["command"].splitlines()
    for line in prepared:
        run_line(line, tmp_path)
    with contextlib.chdir(tmp_path):
        done = run(*shlex.split(audit)[1:], "--json")
    (constraint,) = json.loads(done.stdout)["constraints"]
    expected = audit_policy(
        AuditTarget.from_model(explorer.model, fields["policy"]),
        [Constraint("all", np.ones(explorer.model.size, dtype=np.bool_))],
        [AUDITED.get(settings.mechanism, "k-norm")],
        repair_objective=settings.repair_objective,
    ).to_dict()["constraints"][0]
    assert constraint["mechanisms"] == expected["mechanisms"]
    assert constraint["repairs"] == expected["repairs"]


def test_command_line_builds_region_of_given_bounds():
    bounds = 44.971234, -130.041234, 45.031234, -129.961234
    words = shlex.split(Explorer.open(bbox=bounds, num_steps=1)._preparation)
    assert tuple(map(float, words[words.index("--bbox") + 1 :][:4])) == bounds


@pytest.mark.slow
def test_region_across_date_line_is_connected():
    """Oracle: the region is 0.06° wide, and of equal form on the other side of the Earth."""
    across = Explorer.open(bbox=(-17.02, 179.97, -16.97, -179.97), num_steps=4)
    inland = Explorer.open(bbox=(-17.02, -0.03, -16.97, 0.03), num_steps=4)
    scenes = [explorer.describe() for explorer in (across, inland)]
    for scene in scenes:
        (south, west), (north, east) = scene["bounds"]
        assert east - west == pytest.approx(0.056, abs=0.003)
        assert north - south == pytest.approx(0.05, abs=0.003)
    assert scenes[0]["cell_degrees"] == pytest.approx(scenes[1]["cell_degrees"], rel=1e-3)
    view = across.build_view({"epsilon": "5"}, 3)
    (_, west), (_, east) = scenes[0]["bounds"]
    places = [view["released"], view["adversaries"]["public"]["estimate"], *view["samples"], *view["hulls"]["after"]]
    assert all(west - 1 < longitude < east + 1 for _, longitude in places)


def test_policy_file_contains_edges(explorer, tmp_path):
    path = tmp_path / "policy.json"
    explorer.write_policy({"policy": "utility:900m"}, path)
    written = parse_policy(f"graph:{path}", explorer.model.space)
    expected = parse_policy("utility:900m", explorer.model.space)
    assert np.array_equal(np.sort(written.edge_array(), axis=0), np.sort(expected.edge_array(), axis=0))
    with pytest.raises(DphmmError, match="epsilon"):
        explorer.write_policy({"epsilon": "x"}, path)


def test_recording_is_private_and_its_earlier_days_are_history(tmp_path):
    model = make_model(np.random.default_rng(3))
    places = model.space.latlon()
    times = [f"2024-03-{7 + k // 12:02d}T09:{5 * (k % 12):02d}:00Z" for k in range(36)]
    rows = [f"ann,{time},{places[k % 9, 0]},{places[k % 9, 1]}" for k, time in enumerate(times)]
    path = tmp_path / "ann.csv"
    path.write_text("\n".join(["user,time,latitude,longitude", *rows]) + "\n", encoding="utf-8")
    user = select_user(model, None, path, num_steps=5)
    assert user.is_private
    assert user.states.tolist() == [k % 9 for k in range(31, 36)]
    assert len(user.history[0]) == 31
    assert Explorer(model, user).describe()["user"] == "ann"
    assert "errors" not in Explorer(model, user).build_view({}, 4)
    with pytest.raises(ConfigurationError, match="user must be one of ann, got 'bob'"):
        select_user(model, None, path, "bob")


@pytest.fixture
def trained(tmp_path):
    """Return a model trained on user a, its file, and a folder with recordings.

    They are of users a and b, and of no user.
    """
    space = Grid.over((44.995, -30.02, 45.005, -29.98), cell_km=0.5)
    rows = [f"{user},2024-03-07T09:{5 * k:02d}:00Z,45.0,{-30.01 + 0.001 * k}" for user in "ab" for k in range(6)]
    (tmp_path / "two.csv").write_text("\n".join(["user,time,latitude,longitude", *rows]) + "\n")
    (tmp_path / "me.gpx").write_text(RECORDING)
    learn(Data((tmp_path / "two.csv",), exclude_users=("b",)), space, step_seconds=300, output=tmp_path / "m.npz")
    return MarkovModel.load(tmp_path / "m.npz"), tmp_path / "m.npz", tmp_path


def test_recording_without_user_name_is_that_of_user(trained):
    model, file, folder = trained
    user = select_user(model, file, folder / "me.gpx", "ann")
    assert (user.name, len(user.states), user.num_outside) == ("ann", 6, 0)
    assert len(select_user(model, file, [folder / "me.gpx", folder / "me.gpx"], "ann").states) == 6
    with pytest.raises(DataFileError, match="name the user with --user NAME"):
        select_user(model, file, folder / "me.gpx")
    with pytest.raises(ConfigurationError, match="trained on the users to protect, got training user a"):
        select_user(model, file, folder / "me.gpx", "a")
    (folder / "checkins.txt").write_text("0\t2010-10-19T23:55:27Z\tx\t-30.0\t22847\n")
    with pytest.raises(DataFileError, match=r"checkins\.txt"):  # its flaw, not the name
        select_user(model, file, folder / "checkins.txt", "ann")


def test_only_explored_user_must_not_be_training_user(trained):
    model, file, folder = trained
    assert select_user(model, file, folder / "two.csv", "b").name == "b"
    for user in ("a", None):
        with pytest.raises(ConfigurationError, match=r"got training user a: .*, or choose another user$"):
            select_user(model, file, folder / "two.csv", user)


def test_recording_outside_region_is_refused_and_timesteps_outside_are_counted(trained):
    model, _, folder = trained
    (folder / "far.gpx").write_text(RECORDING.replace('lat="45.0"', 'lat="46.0"'))
    with pytest.raises(ConfigurationError, match="inside the model's region, got 6 timesteps outside it"):
        select_user(model, None, folder / "far.gpx", "ann")
    (folder / "partly.gpx").write_text(RECORDING.replace('lat="45.0" lon="-30.009"', 'lat="45.5" lon="-30.009"'))
    for num_steps, num_outside in ((48, 1), (5, 1), (4, 0)):
        user = select_user(model, None, folder / "partly.gpx", "ann", num_steps)
        assert Explorer(model, user).describe()["num_outside"] == user.num_outside == num_outside


def test_arguments_are_checked():
    with pytest.raises(ConfigurationError, match="at most one of MODEL, --town and --bbox"):
        Explorer.open("m.npz", town="Wien")
    with pytest.raises(ConfigurationError, match="--user needs --data"):
        Explorer.open(user="ann")
    with pytest.raises(ConfigurationError, match="--seed cannot be combined with --data"):
        Explorer.open(data="ann.csv", seed=3)
    with pytest.raises(ConfigurationError, match="num_steps must be an integer in"):
        Explorer.open(num_steps=0)


@pytest.mark.slow
def test_page_of_documentation_states_what_page_shows():
    """Recompute the comparison on the page 'Compare policies' in the invented city."""
    city = Explorer.open()
    rows = re.findall(
        r"^\| `(.+?)` \| (\d+) \| (\d+) \| ([\d,]+) m; ([\d,]+) m \|$", read_page("choose.md"), re.MULTILINE
    )
    assert len(rows) == 2
    for policy, *figures in rows:
        view = city.build_view({"policy": policy, "delta": "0.1"}, 3)
        errors = view["repair"]["error_without_m"], view["repair"]["error_m"]
        shown = [str(len(view["constraint"])), str(len(view["exposed"])), *(f"{error:,.0f}" for error in errors)]
        assert shown == figures
    assert max(view["degrees"]) == 5  # "degrees of protection are at most 5"
