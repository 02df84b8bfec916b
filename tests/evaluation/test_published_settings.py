"""Tests that the presets on real traces have the paper's settings, by brute force.

The brute force shares no code with the engine. The evaluation's models and true states are used unchanged. Distances
are geodesics, constraint sets follow from the models step by step, sensitivity hulls come from Qhull, Algorithm 1 is
written out, and errors are moments of polygons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from pyproj import Geod
from scipy.spatial import ConvexHull

from dphmm.evaluation.config import EvaluationConfig, parse_config
from dphmm.evaluation.run import Evaluation
from dphmm.evaluation.split import get_model_path, make_space
from dphmm.model.model import MarkovModel
from tests.evaluation.conftest import InOrder
from tests.sizes import mark_slow

pytest.importorskip("pyarrow")


@dataclass(frozen=True)
class Published:
    """The values of Section 8 for a data set, and the box and radii of the sweep.

    Section 8 does not state the box and the radii.
    """

    path: str
    cell_km: float
    radius_km: float
    radii_km: tuple[float, ...]
    box: tuple[float, float, float, float]
    states: int


SECTION_8 = {
    "geolife": Published(
        "geolife/geolife_beijing.tar.gz", 0.34, 1.0, (0.5, 1.0, 2.0), (39.87, 116.29, 39.97, 116.46), 43 * 33
    ),
    "gowalla": Published(
        "gowalla/loc-gowalla_LA.txt.gz", 0.89, 2.0, (1.0, 2.0, 4.0), (33.70, -118.69, 34.34, -117.90), 83 * 80
    ),
}
SEQUENCES = 20
STEPS = 100
EPSILON = 1.0
DELTA = 0.01
NUM_COMPARED_STEPS = 3
# Brute force takes time quadratic in the number of possible states.
#
# Larger steps are not compared.
MAX_STATES = 900


def find_differences(config: EvaluationConfig, name: str, trajectories, folder, sequences: int) -> set[str]:
    """Return how a configuration differs from the paper's setting.

    A run of a few sequences and steps is compared with brute force.
    """
    published = SECTION_8[name]
    differences = set()
    if (config.sequences, config.length) != (SEQUENCES, STEPS):
        differences.add("size")
    if (config.mechanism, config.repair) != ("planar-isotropic", "greedy"):
        differences.add("mechanism")  # K-norm noise has the same distribution, so no figure distinguishes them
    if not _has_published_cells(published, config):
        differences.add("cell")
    if differences & {"size", "cell"}:
        return differences  # skip the run, which takes seconds: with other cells no figure is the paper's
    small = config.model_copy(
        update={"sequences": sequences, "length": NUM_COMPARED_STEPS, "repairs": (), "mechanisms": ()}
    )
    evaluation = Evaluation.open(small, folder, lambda: trajectories)
    assert len(list(evaluation.run(InOrder()))) == len(evaluation.tasks)
    radii = {setting.radius_km for setting in small.settings() if setting.policy == "utility"}
    if radii != set(published.radii_km) or small.get_default_setting("utility").radius_km != published.radius_km:
        differences.add("radii")
    compared = 0
    for setting in small.settings():
        if setting.epsilon != small.epsilon:
            continue
        agree: dict[str, list[bool]] = {"possible states": [], "DoP": [], "error": []}
        table = evaluation.table().select_rows(setting)
        radius = published.radius_km if setting == small.get_default_setting("utility") else setting.radius_km
        for row in _enumerate_figures(evaluation, setting.policy, radius):
            (at,) = np.flatnonzero((table["sequence"] == row.sequence) & (table["step"] == row.step))
            figures = (
                table["num_possible_states"][at] == row.possible,
                table["protection"][at] == row.protection,
                table["squared_error_km2"][at] == pytest.approx(row.squared_error, rel=1e-6),
            )
            for (name, results), figure in zip(agree.items(), figures, strict=True):
                if row.is_certain and not figure:
                    differences.add(f"{name} of {setting.policy}")
                results.append(bool(figure))
        compared += len(agree["DoP"])
        # Algorithm 1 does not specify the choice among equally near partners; brute force takes the first by index.
        differences |= {f"{name} of {setting.policy}" for name, results in agree.items() if np.mean(results) < 0.9}
    assert compared > 20
    return differences


def _has_published_cells(published: Published, config: EvaluationConfig) -> bool:
    """Return whether the cells have the published size on the ellipsoid and cover the box."""
    space, geod = make_space(config), Geod(ellps="WGS84")
    places = space.latlon()
    south, west, north, east = published.box
    middle = int(space.locate((south + north) / 2, (west + east) / 2)[0])
    sides = [
        geod.inv(places[middle, 1], places[middle, 0], places[other, 1], places[other, 0])[2] / 1000
        for other in (middle + 1, middle + space.columns)
    ]
    corners = space.locate([south, south, north, north], [west, east, west, east])
    return (
        sides == pytest.approx([published.cell_km] * 2, rel=1e-3)
        and (corners >= 0).all()
        and (space.size == published.states)
    )


@dataclass(frozen=True)
class Expected:
    """The figures that brute force expects for a timestep of a sequence."""

    sequence: int
    step: int
    possible: int
    protection: int
    squared_error: float
    is_certain: bool


def _enumerate_figures(evaluation: Evaluation, policy: str, radius_km: float) -> Iterator[Expected]:
    """Yield expected figures of timesteps at which the true state is possible.

    A figure is certain unless Algorithm 1 has a tie. For the complete policy on δ-location sets only the first step
    is yielded, because later priors depend on the noise.
    """
    split, folder = evaluation.split, evaluation.checkpoint.folder
    models = [MarkovModel.load(get_model_path(folder, fold)) for fold in range(len(split.learned_from))]
    for sequence, fold in enumerate(split.folds.tolist()):
        moves, points = models[fold].transition, models[fold].space.points
        leaves = np.flatnonzero(np.diff(moves.indptr) > 1)
        away = np.linalg.norm(points[leaves] - points[split.states[sequence, 0]], axis=1)
        start = leaves[away.argmin()]
        possible = np.arange(len(points)) == start
        for step in range(1, NUM_COMPARED_STEPS + 1):
            if policy == "complete":
                if step > 1:
                    break
                prior = moves[[start]].toarray()[0]
                order = np.argsort(-prior, kind="stable")
                size = 1 + int(np.count_nonzero(np.cumsum(prior[order]) < 1 - DELTA - 1e-12))
                if size < len(order) and prior[order[size - 1]] == prior[order[size]]:
                    break  # the choice among equally probable states is not specified
                states = np.sort(order[:size])
            else:
                possible = np.diff(moves[possible].tocsc().indptr) > 0
                states = np.flatnonzero(possible)
                if len(states) > MAX_STATES:
                    break
            where = points[states]
            if policy == "utility":
                apart = np.linalg.norm(where[:, None] - where, axis=2)
                edges = (apart < radius_km) & (apart > 0)
            elif policy == "transition":
                moved = (moves[:, states] > 0).astype(float)
                edges = (moved.T @ moved).toarray() > 0
            else:
                edges = np.ones((len(states), len(states)), dtype=bool)
            hull = _build_edge_hull(where, edges)
            if hull is None:
                break  # noise along a line restricts the constraint sets of later steps
            repaired, is_certain = _repair(hull, where)
            true = np.flatnonzero(states == split.states[sequence, step])
            if len(true):
                within = int(_contains(repaired, where - where[true[0]]).sum())
                yield Expected(
                    sequence, step, len(states), within, 12 / EPSILON**2 * _compute_second_moment(repaired), is_certain
                )


def _build_edge_hull(where: np.ndarray, edges: np.ndarray) -> ConvexHull | None:
    """Return the hull of the differences over the edges, or None if it is flat."""
    rows, columns = np.nonzero(edges)
    return _build_hull(where[rows] - where[columns])


def _repair(hull: ConvexHull, where: np.ndarray) -> tuple[ConvexHull, bool]:
    """Return the hull repaired by Algorithm 1, and whether all partners are unique."""
    apart = np.linalg.norm(where[:, None] - where, axis=2)
    np.fill_diagonal(apart, np.inf)
    vectors, is_certain = [hull.points], True
    for state in range(len(where)):
        if _contains(hull, where - where[state]).sum() < 2:
            is_certain &= np.count_nonzero(apart[state] < apart[state].min() + 1e-9) == 1
            partner = where[apart[state].argmin()] - where[state]
            vectors.append(np.array([partner, -partner]))
    return ConvexHull(np.concatenate(vectors)), is_certain


def _build_hull(vectors: np.ndarray) -> ConvexHull | None:
    vectors = np.unique(vectors.round(9), axis=0)
    return ConvexHull(vectors) if len(vectors) > 2 and np.linalg.matrix_rank(vectors) == 2 else None


def _contains(hull: ConvexHull, vectors: np.ndarray) -> np.ndarray:
    return (vectors @ hull.equations[:, :2].T + hull.equations[:, 2] <= 1e-9).all(axis=1)


def _compute_second_moment(hull: ConvexHull) -> float:
    """Return ``E|u|²`` for u uniform in a polygon around the origin.

    It is the mean over the triangles with a corner at the origin.
    """
    corners = hull.points[hull.vertices]
    following = np.roll(corners, -1, axis=0)
    areas = np.abs(corners[:, 0] * following[:, 1] - corners[:, 1] * following[:, 0]) / 2
    triangle_moments = ((corners**2).sum(axis=1) + (following**2).sum(axis=1) + (corners * following).sum(axis=1)) / 6
    return float(areas @ triangle_moments / areas.sum())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sequences"), [mark_slow("gowalla", 12), ("geolife", 6)])
def test_preset_has_settings_of_paper_on_real_traces(real_data, real_trajectories, tmp_path, name, sequences):
    """Few first steps on Gowalla are small enough for brute force, so more sequences are used."""
    path = SECTION_8[name].path
    config = parse_config({"preset": name, "data": [str(real_data / path)], "epsilons": []})
    assert find_differences(config, name, real_trajectories(path), tmp_path / "run", sequences) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"cell_km": 0.35}, {"cell"}),
        ({"bbox": [39.88, 116.29, 39.97, 116.46]}, {"cell"}),
        ({"radius_km": 1.2}, {"radii", "DoP of utility", "error of utility"}),
        ({"radii_km": [0.5, 1.0, 1.5]}, {"radii"}),
        ({"epsilon": 1.01}, {"error of utility", "error of transition", "error of complete"}),
        ({"delta": 0.1}, {"possible states of complete", "DoP of complete", "error of complete"}),
        ({"mechanism": "laplace"}, {"mechanism", "DoP of utility", "error of utility"}),
        ({"mechanism": "k-norm"}, {"mechanism"}),
        ({"sequences": 19}, {"size"}),
        ({"length": 99}, {"size"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_changed_preset_is_detected(real_data, real_trajectories, tmp_path, changed, expected):
    """Each change of the GeoLife preset must be detected."""
    path = SECTION_8["geolife"].path
    config = parse_config({"preset": "geolife", "data": [str(real_data / path)], "epsilons": [], **changed})
    assert expected <= find_differences(config, "geolife", real_trajectories(path), tmp_path / "run", sequences=2)
