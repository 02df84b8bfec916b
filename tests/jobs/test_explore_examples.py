"""Tests of the examples of ``dphmm explore``: published numbers and brute force."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from itertools import combinations
from math import sqrt

import pytest

from dphmm.jobs.explore.paper_example import build_examples
from dphmm.serve.page import STATIC

F = {1: (1, 0), 2: (2, 1), 3: (3, 0), 4: (0, 1), 5: (4, 2), 6: (1, 2)}
CATEGORY_EDGES = {(2, 3), (4, 5), (4, 6), (5, 6)}
TEXTS = json.loads((STATIC / "explore.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def examples():
    return build_examples()


def show(example, settings, step):
    """Return a view in the paper's numbers of states."""
    view = example.explorer.build_view(example.settings[settings], step)
    assert "errors" not in view
    return {
        "set": [state + 1 for state in view["constraint"]],
        "degrees": view["degrees"],
        "exposed": [state + 1 for state in view["exposed"]],
        "added": [tuple(state + 1 for state in added["edge"]) for added in view["repair"]["added"]],
        "edges": {tuple(state + 1 for state in edge) for edge in view["edges"]},
        "error_km": (view["expected_error_m"] or 0) / 1000,
    }


def cross(a, b):
    return a[0] * b[1] - a[1] * b[0]


def build_hull(edges):
    """Return the corners of the sensitivity hull, counter-clockwise, by gift wrapping."""
    points = {
        (sign * (F[j][0] - F[k][0]), sign * (F[j][1] - F[k][1])) for j, k in edges for sign in (1, -1)
    }  # fmt: skip
    corners = [min(points)]
    while True:
        last = corners[-1]
        best = None
        for point in points - {last}:
            if best is None:
                best = point
                continue
            turn = cross((best[0] - last[0], best[1] - last[1]), (point[0] - last[0], point[1] - last[1]))
            is_further = (point[0] - last[0]) ** 2 + (point[1] - last[1]) ** 2 > (
                (best[0] - last[0]) ** 2 + (best[1] - last[1]) ** 2
            )
            if turn < 0 or (turn == 0 and is_further):
                best = point
        if best == corners[0]:
            return corners
        corners.append(best)


def contains(corners, point):
    sides = list(zip(corners, corners[1:] + corners[:1], strict=True))
    return all(
        cross((b[0] - a[0], b[1] - a[1]), (point[0] - a[0], point[1] - a[1])) >= 0 for a, b in sides
    ) and contains_span(corners, point)


def contains_span(corners, point):
    """Return whether a segment contains a point of its line. True for a polygon."""
    if len(corners) > 2:
        return True
    (a, b) = corners
    return min(a[0], b[0]) <= point[0] <= max(a[0], b[0]) and min(a[1], b[1]) <= point[1] <= max(a[1], b[1])


def compute_area(corners):
    return Fraction(sum(cross(a, b) for a, b in zip(corners, corners[1:] + corners[:1], strict=True)), 2)


def compute_error(corners):
    """Return the error of a K-norm release with ε = 1: the root of ``12 E|u|²``, u uniform."""
    moment = Fraction(0)
    for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
        moment += cross(a, b) * sum(x * x + x * y + y * y for x, y in zip(a, b, strict=True))
    return sqrt(moment / compute_area(corners))


def count_degrees(states, corners):
    return [
        sum(contains(corners, (F[other][0] - F[state][0], F[other][1] - F[state][1])) for other in states)
        for state in states
    ]


def restrict(edges, states):
    return {edge for edge in edges if set(edge) <= set(states)}


@pytest.mark.parametrize(
    ("name", "settings", "step", "states", "degrees", "exposed", "added", "error_km"),
    [
        ("exposure", 0, 1, [3, 4, 5, 6], [1, 3, 3, 3], [3], [(3, 4)], None),
        ("correlation", 0, 0, [1, 2, 3, 4, 5, 6], [4, 6, 3, 5, 4, 4], [], [], 6.55050),
        ("correlation", 0, 1, [2, 3, 5], [2, 2, 1], [5], [(2, 5)], None),
        ("policies", 0, 0, [1, 2, 3, 4, 5, 6], [4, 6, 3, 5, 4, 4], [], [], 6.55050),
        ("delta", 0, 0, [1, 2, 3, 4, 5, 6], [4, 6, 3, 5, 4, 4], [], [], 6.55050),
        ("delta", 1, 0, [2, 3, 5], [2, 2, 1], [5], [(2, 5)], None),
    ],
)
def test_examples_have_published_degrees(examples, name, settings, step, states, degrees, exposed, added, error_km):
    shown = show(examples[name], settings, step)
    assert shown["set"] == states
    assert shown["degrees"] == degrees
    assert shown["exposed"] == exposed
    assert shown["added"] == added
    assert shown["edges"] == restrict(CATEGORY_EDGES, states)
    if error_km is not None:
        assert shown["error_km"] == pytest.approx(error_km, abs=5e-6)
    # Published areas: 14 of the repair of Example 6.1, 6 of that of {s2, s3, s5}, 11 of the whole graph.
    corners = build_hull({*shown["edges"], *added})
    assert compute_area(corners) == {4: 14, 3: 6, 6: 11}[len(states)]
    assert shown["error_km"] == pytest.approx(compute_error(corners), rel=1e-9)


@pytest.mark.parametrize(("states", "exposed"), [([3, 4, 5, 6], 3), ([2, 3, 5], 5)])
def test_repair_of_examples_has_least_area_of_all_edges(examples, states, exposed):
    example = examples["exposure" if exposed == 3 else "correlation"]
    edges = restrict(CATEGORY_EDGES, states)
    areas = {
        tuple(sorted((exposed, other))): compute_area(build_hull({*edges, (exposed, other)}))
        for other in states
        if other != exposed
    }
    if exposed == 3:
        assert areas == {(3, 4): 14, (3, 5): 16, (3, 6): 20}  # published
    ((added),) = show(example, 0, 1)["added"]
    assert areas[added] == min(areas.values())


def find_component(edges, state):
    component = {state}
    while wider := {end for edge in edges if component & set(edge) for end in edge} - component:
        component |= wider
    return component


def compute_squared_error(edges, state):
    """Return the mean squared error of a K-norm release with ε = 1 in a component's hull."""
    corners = build_hull([edge for edge in edges if set(edge) <= find_component(edges, state)])
    if len(corners) == 2:  # a Laplace distribution along a segment has a variance of twice the squared scale
        return 2 * (corners[0][0] ** 2 + corners[0][1] ** 2)
    return compute_error(corners) ** 2


@pytest.mark.parametrize("method", ["greedy", "exact"])
def test_alternative_repair_weights_components_by_belief(examples, method):
    """Brute force over the partners of s1: the nearest ones, and that of least error."""
    example = examples["delta"]
    fields = {**example.settings[0], "noise_scope": "component", "repair_objective": "error", "repair": method}
    prior = dict(zip(F, example.explorer.model.initial.tolist(), strict=True))
    errors = {
        (1, other): 1000
        * sqrt(sum(prior[state] * compute_squared_error({*CATEGORY_EDGES, (1, other)}, state) for state in F))
        for other in F
        if other != 1
    }
    lengths = {edge: (F[edge[1]][0] - F[1][0]) ** 2 + (F[edge[1]][1] - F[1][1]) ** 2 for edge in errors}
    nearest = [edge for edge in errors if lengths[edge] == min(lengths.values())]
    best = [min(errors, key=errors.get)]
    view = example.explorer.build_view(fields, 0)
    for repair, error, edges in [
        (view["repair"], view["expected_error_m"], nearest if method == "greedy" else best),
        (
            view["repair"]["alternative"],
            view["repair"]["alternative"]["error_m"],
            best if method == "greedy" else nearest,
        ),
    ]:
        (added,) = (entry["edge"] if isinstance(entry, dict) else entry for entry in repair["added"])
        edge = tuple(state + 1 for state in added)
        assert edge in edges
        assert error == pytest.approx(errors[edge], rel=1e-9)


@pytest.mark.parametrize("mechanism", ["lattice", "laplace", "planar-laplace"])
def test_alternative_repair_is_that_of_its_setting(examples, mechanism):
    example = examples["delta"]
    fields = {**example.settings[0], "noise_scope": "component", "mechanism": mechanism}
    greedy, exact = (example.explorer.build_view({**fields, "repair": repair}, 0) for repair in ("greedy", "exact"))
    for view, other, method in [(greedy, exact, "exact"), (exact, greedy, "greedy")]:
        chosen, added = ([entry["edge"] for entry in each["repair"]["added"]] for each in (view, other))
        expected = {"method": method, "added": added, "error_m": other["expected_error_m"]}
        assert view["repair"]["alternative"] == (None if chosen == added else expected)
        assert (chosen == added) == (mechanism != "lattice")


def test_alternative_repair_with_equal_edges_is_none(examples):
    example = examples["delta"]
    view = example.explorer.build_view(example.settings[1], 0)
    assert [entry["edge"] for entry in view["repair"]["added"]] == [[1, 4]]
    assert view["repair"]["alternative"] is None
    assert view["hulls"]["alternative"] is None


@pytest.mark.parametrize(
    ("name", "step", "scope", "component"),
    [
        ("exposure", 0, "graph", (2, 3, 4, 5, 6)),
        ("exposure", 0, "component", (2, 3)),
        ("policies", 0, "component", (4, 5, 6)),
    ],
)
def test_hulls_are_those_of_released_component(examples, name, step, scope, component):
    """Oracle: the hull of the edges of the released state's component, from gift wrapping."""
    explorer = examples[name].explorer
    view = explorer.build_view({**examples[name].settings[0], "noise_scope": scope, "repair": "greedy"}, step)
    centre = F[view["released_state"] + 1]
    # The only edge that the repair adds is s1 – s2, in another component than s4.
    for shown in filter(None, view["hulls"].values()):
        corners = explorer.model.space.projection.to_plane(*zip(*shown, strict=True)) - centre
        expected = build_hull(restrict(CATEGORY_EDGES, component))
        assert sorted(map(tuple, corners.round(3).tolist())) == sorted(expected)
    assert view["hulls"]["before"]


@pytest.mark.parametrize("mechanism", ["optimal", "graph-exponential"])
def test_tables_have_no_hulls_and_no_error_of_k_norm_noise(examples, mechanism):
    example = examples["policies"]
    view = example.explorer.build_view({**example.settings[0], "mechanism": mechanism}, 0)
    assert view["repair"]["added"]
    assert view["expected_error_m"] > 0
    assert {view["repair"][name] for name in ("error_without_m", "error_m", "alternative")} == {None}
    assert view["hulls"] == {"before": None, "after": None, "alternative": None}


def test_policies_example_compares_categories_with_distances(examples):
    near = {
        (j, k) for j, k in combinations(F, 2) if (F[j][0] - F[k][0]) ** 2 + (F[j][1] - F[k][1]) ** 2 <= 2.3**2
    }  # fmt: skip
    shown = show(examples["policies"], 1, 0)
    corners = build_hull(near)
    assert shown["edges"] == near
    assert shown["degrees"] == count_degrees(list(F), corners)
    assert shown["exposed"] == []
    assert shown["error_km"] == pytest.approx(compute_error(corners), rel=1e-9)
    assert shown["error_km"] == pytest.approx(4.8, abs=0.05)


def test_first_timestep_of_exposure_protects_every_state(examples):
    shown = show(examples["exposure"], 0, 0)
    states = [2, 3, 4, 5, 6]
    assert shown["set"] == states
    assert shown["degrees"] == count_degrees(states, build_hull(restrict(CATEGORY_EDGES, states)))
    assert shown["exposed"] == []


@pytest.mark.slow
def test_budget_example_adds_up(examples):
    example = examples["budget"]
    views = [[example.explorer.build_view(settings, step) for step in range(12)] for settings in example.settings]
    free, limited = ([view["epsilon"] for view in row] for row in views)
    assert free == [1.0] * 12
    assert [sum(epsilon > 0 for epsilon in row[:10]) for row in (free, limited)] == [10, 4]
    for row, maximum in ((views[0], 6), (views[1], 3)):
        epsilons = [view["epsilon"] for view in row]
        assert [view["epsilon_total"] for view in row] == [sum(epsilons[: k + 1]) for k in range(12)]
        # six timesteps are 24 hours
        assert max(sum(epsilons[k : k + 6]) for k in range(7)) == row[-1]["max_epsilon_24h"] == maximum
    assert example.step == 9


def test_excluded_states_of_delta_have_stated_probability(examples):
    model = examples["delta"].explorer.model
    assert sum(model.initial[[0, 3, 5]]) == pytest.approx(0.08)


@pytest.mark.parametrize("language", TEXTS)
def test_texts_of_examples_state_tested_figures(language):
    """The figures of the sentences are those of the tests above, in every language."""
    figures = {
        "exposure": ["2", "6.1"],
        "correlation": ["1", "2", "3"],
        "policies": ["1", "4.1", "6.6", "2", "2.3", "4.8"],
        "delta": ["2", "8", "6.6", "3.7"],
        "budget": ["1", "10", "1", "2", "3", "24", "6.3"],
    }
    for name, expected in figures.items():
        text = TEXTS[language][f"example_{name}_text"].replace(",", ".")
        shown = re.findall(r"(?<![s\d.])\d+(?:\.\d+)?", text)
        assert sorted(shown) == sorted(expected), (name, language)
    assert sqrt((F[4][0] - F[5][0]) ** 2 + (F[4][1] - F[5][1]) ** 2) == pytest.approx(4.1, abs=0.05)
