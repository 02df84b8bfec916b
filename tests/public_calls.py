"""One valid call of every public function, class and method with values as arguments.

Tests of the public interface vary these calls. Values are numbers, texts, paths, arrays and lists of them. Objects
of the package itself (models, hulls, engines, tables) are arguments too; tests/test_bad_arguments.py replaces
all of them by objects of another class.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import networkx
import numpy as np
import pandas as pd
from scipy.sparse import csr_array

import dphmm.attack as attack
import dphmm.audit as audit
import dphmm.calibrate as calibrate
import dphmm.counts as counts
import dphmm.evaluation as evaluation
import dphmm.events as events
import dphmm.flows as flows
import dphmm.geometry as geometry
import dphmm.html_report as reports
import dphmm.jobs as jobs
import dphmm.landmarks as landmarks
import dphmm.leakage as leakage
import dphmm.mechanisms as mechanisms
import dphmm.model as movement
import dphmm.policy as policy
import dphmm.readers as readers
import dphmm.release as release
import dphmm.serve as serve
import dphmm.space as space
import dphmm.tables as tables
import dphmm.writers as writers
from dphmm.events.output_bounds import make_outputs
from dphmm.jobs.progress import suppress_progress
from dphmm.leakage import LossFunction
from dphmm.tables.street_map import read_street_map
from tests.running_example import LABELS, F, build_graph

ROOT = Path(__file__).parents[1]


class Call(NamedTuple):
    """A function with valid arguments, and the names of arguments that are package objects."""

    of: Callable[..., Any]
    arguments: dict[str, Any]
    ours: frozenset[str]


CALLS: dict[str, Call] = {}


def add_call(call: str, of: Callable[..., Any], ours: str = "", /, **arguments: Any) -> None:
    CALLS[call] = Call(of, arguments, frozenset(ours.split()))


SIZE = 6
MATRIX = np.full((SIZE, SIZE), 0.1) + 0.4 * np.eye(SIZE)
MASK = np.array([True, True, True, True, False, True])
EVEN = np.full(SIZE, 1 / SIZE)
MODEL = movement.MarkovModel(MATRIX, EVEN, step_seconds=60.0)
TWO = np.array([[0.8, 0.2], [0.3, 0.7]])
HULL = geometry.SensitivityHull([[3, 0], [1, 2]])
PLACES = space.Places(list("abcdef"), 45 + F[:, 1] / 100, -30 + F[:, 0] / 100)
GRID = space.Grid.over((45.0, -30.0, 45.02, -29.97), 0.5)
STREET_MAP = read_street_map("data/streets.geojson")
ONE = space.Grid.over((44.99, -30.01, 45.01, -29.99), 5.0)
TIMES = np.datetime64("2024-03-07T09:00:00", "us") + np.arange(5) * np.timedelta64(60, "s")
TRACK = space.Trajectory("ann", TIMES, 45 + np.arange(5) / 1000, -30 + np.arange(5) / 1000)
SLOTTED = TRACK.resample(60.0)
CONTENT = readers.read("data/sample/table.csv").trajectories
BELIEF = movement.Belief.from_probabilities(EVEN)
OBSERVED = movement.Observations(np.log(np.full((3, SIZE), 0.5)))
SETTINGS = release.ReleaseSettings("complete", 1.0)
RELEASER = release.Releaser(MODEL, F, build_graph(), 1.0, rng=0)
RECORD = RELEASER.spawn(0).release(3)
PROTECTION = policy.protect(build_graph(), F)
EVENT = events.Presence([0, 1], 1, 2)
LIMIT = release.Limits(epsilon=5.0)
FRAME = pd.DataFrame({"datetime": TIMES, "lat": TRACK.latitude, "lng": TRACK.longitude})
MECHANISM = mechanisms.LatticeKNormMechanism(HULL, 1)


def add_tables_and_space() -> None:
    table = ROOT / "data/sample/table.csv"
    points = ROOT / "data/districts.geojson"
    track = ROOT / "data/sample/track.gpx"
    add_call("tables.check_output", tables.check_output, path="new.csv")
    add_call("tables.check_table_name", tables.check_table_name, path="new.csv")
    add_call("tables.content_lines", tables.content_lines, path=table)
    add_call("tables.documents", tables.documents, path=table, suffixes=(".csv",))
    add_call("tables.iso_time", tables.iso_time, instant=TIMES[0])
    add_call("tables.create_file", partial(_enter_manager, tables.create_file), path="new.txt")
    add_call("tables.create_private_file", partial(_enter_manager, tables.create_private_file), path="PRIVATE-new.txt")
    add_call("tables.private_name", tables.private_name, path="PRIVATE.txt")
    add_call("tables.max_unpacked", partial(_enter_manager, tables.max_unpacked), size="1GB")
    add_call("tables.parse_time", tables.parse_time, text="2024-03-07T09:00:00Z")
    add_call("tables.parse_times", tables.parse_times, texts=["1", "2"])
    add_call("tables.read_document", tables.read_document, path=points)
    add_call("tables.write_csv", tables.write_csv, path="new.csv", header=["a"], rows=[["1"]])
    add_call("tables.write_text", tables.write_text, path="text.txt", text="a")
    add_call("tables.Table.read", tables.Table.read, path=table)
    add_call("tables.TimedTable", tables.TimedTable, times=np.arange(3), columns={"a": np.arange(3.0)})
    add_call("tables.TimedTable.read", tables.TimedTable.read, path="missing.csv")
    timed = tables.TimedTable(np.arange(3), {"a": np.arange(3.0)})
    add_call("tables.TimedTable.write", timed.write, path="timed.csv")
    add_call("tables.TimedTable.matrix", timed.matrix, names=["a"])

    add_call("space.Grid.over", space.Grid.over, region=(45.0, -30.0, 45.02, -29.97), cell_km=0.5)
    add_call("space.Grid.preset", space.Grid.preset, name="geolife")
    add_call("space.Grid.state_at", GRID.state_at, lattice=[[0, 0]])
    add_call("space.LocalProjection", space.LocalProjection, latitude=45.0, longitude=-30.0)
    projection = space.LocalProjection(45.0, -30.0)
    add_call("space.LocalProjection.to_plane", projection.to_plane, latitude=[45.0], longitude=[-30.0])
    add_call("space.LocalProjection.to_latlon", projection.to_latlon, points=[[0.0, 1.0]])
    add_call(
        "space.Places", space.Places, names=["a", "b"], latitude=[45.0, 45.1], longitude=[-30.0, -30.1], within_km=1.0
    )
    add_call("space.check_space", space.check_space, space=GRID)
    add_call("space.Places.latlon", PLACES.latlon, states=[0, 1])
    add_call("space.Grid.latlon", GRID.latlon, states=[0, 1])
    add_call("space.Streets", space.Streets, vertices=[[450000000, 70000000], [450050000, 70000000]], counts=[2])
    add_call(
        "space.Streets.from_map",
        space.Streets.from_map,
        "street_map",
        street_map=STREET_MAP,
        segment_km=0.5,
        within_km=0.2,
    )
    add_call("space.StateSpace.check", GRID.check, states=[0, 1])
    add_call("space.StateSpace.locate", GRID.locate, latitude=[45.01], longitude=[-29.99])
    add_call("space.Places.locate", PLACES.locate, latitude=[45.01], longitude=[-29.99])
    add_call("space.StateSpace.find_nearest_states", GRID.find_nearest_states, latitude=[45.01], longitude=[-29.99])
    add_call("space.StateSpace.from_json", space.StateSpace.from_json, data=GRID.to_json())
    add_call(
        "space.Trajectory", space.Trajectory, user="a", times=TIMES, latitude=np.full(5, 45.0), longitude=np.zeros(5)
    )  # fmt: skip
    add_call("space.Trajectory.split", TRACK.split, gap_seconds=60.0)
    add_call(
        "space.Trajectory.select_time_range", TRACK.select_time_range, start="2024-03-07T09:01", end="2024-03-07T09:03"
    )
    add_call("space.Trajectory.resample", TRACK.resample, step_seconds=60.0)
    add_call(
        "space.SlottedTrajectory", space.SlottedTrajectory, user="a", step_seconds=60.0, slots=np.arange(2),
        latitude=np.zeros(2), longitude=np.zeros(2)
    )  # fmt: skip
    add_call("space.SlottedTrajectory.split", SLOTTED.split, gap_seconds=60.0)
    add_call("readers.read", readers.read, path=table, format="table", user="ann", columns={})
    add_call("readers.read_frame", readers.read_frame, "frame", frame=FRAME, user="ann", columns={}, time_zone="UTC")
    add_call("readers.read_places", readers.read_places, path="missing.csv", within_km=1.0)
    add_call("readers.recognise", readers.recognise, path=track)
    add_call(
        "readers.check_reader", readers.check_reader, "trajectories", name="table", path=table, trajectories=CONTENT
    )
    add_call(
        "readers.fetch_data", readers.fetch_data, "base_url", name="geolife", folder=".", base_url="file:///nowhere/",
        timeout_seconds=0.01
    )  # fmt: skip


def _enter_manager(manager: Callable[..., Any], **arguments: Any) -> None:
    with manager(**arguments) as part:
        if isinstance(part, Path):
            part.write_text("a", encoding="utf-8")


def add_geometry_and_model() -> None:
    add_call("geometry.Disc", geometry.Disc, radius=1.0, dimension=2)
    add_call("geometry.Disc.norm", geometry.Disc(1.0).norm, vectors=[[1.0, 2.0]])
    add_call("geometry.Disc.contains", geometry.Disc(1.0).contains, vectors=[[1.0, 2.0]])
    add_call("geometry.Measurements", geometry.Measurements, f=F)
    add_call(
        "geometry.Measurements.on_lattice", geometry.Measurements.on_lattice, steps=[[1, 2], [3, 4]], unit=0.5,
        origin=[0.0, 1.0]
    )  # fmt: skip
    add_call("geometry.SensitivityHull", geometry.SensitivityHull, differences=[[1, 0], [0, 1]])
    add_call("geometry.SensitivityHull.norm", HULL.norm, vectors=[[1.0, 2.0]])
    add_call("geometry.SensitivityHull.contains", HULL.contains, vectors=[[1.0, 2.0]], method="halfspace")
    add_call("geometry.SensitivityHull.scale_axes", HULL.scale_axes, factors=[1.0, 2.0])

    add_call("model.Belief", movement.Belief, support=MASK, log_mass=np.where(MASK, -1.0, -np.inf))
    add_call("model.Belief.from_probabilities", movement.Belief.from_probabilities, probabilities=EVEN)
    add_call("model.Belief.from_bytes", movement.Belief.from_bytes, data=BELIEF.to_bytes())
    add_call("model.Belief.predict", BELIEF.predict, "model", model=MODEL, steps=2)
    add_call("model.Belief.update", BELIEF.update, log_likelihood=np.zeros(SIZE))
    add_call("model.Belief.delta_location_set", BELIEF.delta_location_set, delta=0.1)
    add_call("model.Belief.mean", BELIEF.mean, points=F)
    add_call("model.MarkovModel", movement.MarkovModel, transition=MATRIX, initial=EVEN, step_seconds=60.0)
    add_call(
        "model.MarkovModel.fit", movement.MarkovModel.fit, sequences=[[0, 1, -1, 2]], size=3, smoothing=0.5,
        neighbours=[[0, 1]], step_seconds=60.0
    )  # fmt: skip
    add_call("model.TimeClasses", movement.TimeClasses, classes=(0, 1) * 84, step_seconds=60.0, zone="UTC")
    add_call(
        "model.TimeClasses.from_name",
        movement.TimeClasses.from_name,
        name="hour",
        step_seconds=60.0,
        zone="Europe/Berlin",
    )
    add_call(
        "model.extend",
        movement.extend,
        "model sequences time_classes",
        model=MODEL,
        sequences=[([0, 1, 2], [0, 1, 1])],
        time_classes=movement.TimeClasses.from_name("hour", 60.0),
    )
    add_call(
        "model.fit_shrunk", movement.fit_shrunk, "space", sequences=[[0, 1, -1, 2]], space=GRID, step_seconds=60.0,
        max_speed_kmh=100.0, weight=3.0, min_users=1
    )  # fmt: skip
    add_call(
        "model.region_prior",
        movement.region_prior,
        "space",
        space=GRID,
        step_seconds=60.0,
        kind="walking",
        max_speed_kmh=30.0,
    )
    add_call("model.SpeedLimit", movement.SpeedLimit, "space", space=GRID, step_seconds=60.0, max_speed_kmh=100.0)
    reach = movement.SpeedLimit(GRID, 60.0)
    add_call("model.SpeedLimit.find", reach.find, sources=[0, 1], targets=[1, 2])
    add_call(
        "model.RegionKernel", movement.RegionKernel, "reach", reach=reach, shares=np.ones(reach.ring_count),
        attraction=np.ones(GRID.size), stays=np.full(GRID.size, 0.5)
    )  # fmt: skip
    add_call(
        "model.move_probabilities",
        movement.move_probabilities,
        "model",
        model=MODEL,
        paths=[[0, 1], [2]],
        firsts=[5, 6],
    )
    add_call("model.sample_paths", movement.sample_paths, "model", model=MODEL, num_users=2, length=3, first=5, rng=0)
    add_call(
        "model.sample_paths_like",
        movement.sample_paths_like,
        "model",
        model=MODEL,
        firsts=[5, 6],
        lengths=[1, 2],
        rng=0,
    )
    add_call("model.jensen_shannon", movement.jensen_shannon, first=[1.0, 2.0], second=[2.0, 0.0])
    add_call(
        "model.Crowd.from_paths", movement.Crowd.from_paths, "classes", paths=[[0, 1], [2]], points=F, classes=None
    )
    add_call("model.MarkovModel.with_provenance", MODEL.with_provenance, "provenance", provenance={"promise": "none"})
    add_call("model.MarkovModel.save", MODEL.save, path="model.npz")
    add_call("model.MarkovModel.load", movement.MarkovModel.load, path="missing.npz")
    add_call("model.Observations", movement.Observations, log_likelihood=np.zeros((2, SIZE)), steps=np.array([0, 1]))
    likelihoods = np.zeros((3, SIZE))
    for name in ("filter", "smooth", "most_probable_path"):
        call = getattr(movement, name)
        add_call(f"model.{name}", call, transition=MATRIX, initial=EVEN, log_likelihoods=likelihoods)
    for name in ("filter_releases", "find_release_path"):
        call = getattr(movement, name)
        add_call(f"model.{name}", call, "model observations", model=MODEL, observations=OBSERVED, initial=EVEN)
    add_call(
        "model.smooth_releases", movement.smooth_releases, "model observations filtering", model=MODEL,
        observations=OBSERVED, filtering=movement.filter_releases(MODEL, OBSERVED)
    )  # fmt: skip
    add_call(
        "model.learn_from_releases", movement.learn_from_releases, "model sequences", model=MODEL, sequences=[OBSERVED],
        rounds=2, tolerance=1e-3, smoothing=0.1
    )  # fmt: skip
    add_call("model.reverse", movement.reverse, forward=MATRIX, distribution=EVEN)
    add_call("model.reverse_by_step", movement.reverse_by_step, forward=MATRIX, initial=EVEN, steps=2)
    add_call("model.compute_stationary_distribution", movement.compute_stationary_distribution, transition=MATRIX)
    for name, of in (("state_sequence", TRACK), ("state_sequences", [TRACK])):
        call, what = getattr(movement, name), "trajectory" if name == "state_sequence" else "trajectories"
        add_call(
            f"model.{name}", call, f"{what} space", **{what: of}, space=GRID, step_seconds=60.0, gap_seconds=600.0
        )  # fmt: skip


def add_policies_and_mechanisms() -> None:
    graph_class = policy.PolicyGraph
    add_call("policy.PolicyGraph.complete", graph_class.complete, size=SIZE)
    add_call("policy.PolicyGraph.categorical", graph_class.categorical, labels=LABELS)
    add_call("policy.PolicyGraph.utility", graph_class.utility, f=F, radius=1.5)
    add_call("policy.PolicyGraph.transition", graph_class.transition, transition=MATRIX)
    add_call("policy.PolicyGraph.from_groups", graph_class.from_groups, size=SIZE, groups=[[0, 1], [2, 3]])
    add_call("policy.PolicyGraph.from_edges", graph_class.from_edges, size=SIZE, edges=[[0, 1], [2, 3]])
    add_call(
        "policy.PolicyGraph.from_networkx",
        graph_class.from_networkx,
        "graph",
        graph=build_graph().to_networkx(),
        size=SIZE,
    )
    add_call(
        "policy.PolicyGraph.from_json", graph_class.from_json, path="missing.json", size=SIZE, names=list("abcdef")
    )
    add_call("policy.PolicyGraph.connects", build_graph().connects, first=[0, 1], second=[1, 2])
    add_call("policy.PolicyGraph.differences", build_graph().differences, f=F)
    add_call("policy.PolicyGraph.check_measurements", build_graph().check_measurements, f=F)
    add_call("policy.PolicyGraph.restrict", build_graph().restrict, constraint=MASK)
    add_call("policy.PolicyGraph.with_edges", build_graph().with_edges, added=[(0, 1)])
    add_call("policy.PolicyGraph.with_open", graph_class.from_edges(SIZE, [[0, 1]]).with_open, states=[3, 4])
    add_call("policy.PolicyGraph.components", build_graph().components, constraint=MASK)
    add_call("policy.PolicyGraph.to_json", build_graph().to_json, path="policy.json")
    cut = {"graph": build_graph(), "f": F, "constraint": MASK, "body": "hull", "membership": "halfspace"}
    for name in ("degree_of_protection", "exposed_states"):
        add_call(f"policy.{name}", getattr(policy, name), "graph", **cut)
    add_call("policy.protect", policy.protect, "graph", **cut, method="exact", objective="volume")
    by_component = {**cut, "noise_scope": "component"}
    add_call("policy.protect", policy.protect, "graph", **by_component, prior=np.full(SIZE, 1 / SIZE))
    add_call("policy.parse_policy", policy.parse_policy, "space", text="utility:2km", space=PLACES)
    add_call("policy.PolygonLayer", policy.PolygonLayer, name="home", geojson="{}")

    add_call("mechanisms.KNormMechanism", mechanisms.KNormMechanism, "hull", hull=HULL, epsilon=1.0)
    add_call("mechanisms.LaplaceMechanism", mechanisms.LaplaceMechanism, sensitivity=1.0, epsilon=1.0, dimension=2)
    add_call(
        "mechanisms.LatticeKNormMechanism", mechanisms.LatticeKNormMechanism, "hull", hull=HULL, epsilon=1, spacing=1
    )  # fmt: skip
    add_call("mechanisms.PlanarIsotropicMechanism", mechanisms.PlanarIsotropicMechanism, "hull", hull=HULL, epsilon=1.0)
    add_call("mechanisms.PlanarLaplaceMechanism", mechanisms.PlanarLaplaceMechanism, epsilon=1.0, unit=1.0)
    all_mechanisms = {
        "KNormMechanism": mechanisms.KNormMechanism(HULL, 1.0),
        "LaplaceMechanism": mechanisms.LaplaceMechanism(1.0, 1.0, 2),
        "LatticeKNormMechanism": mechanisms.LatticeKNormMechanism(HULL, 1),
        "PlanarIsotropicMechanism": mechanisms.PlanarIsotropicMechanism(HULL, 1.0),
        "PlanarLaplaceMechanism": mechanisms.PlanarLaplaceMechanism(1.0),
    }
    for name, made_of in all_mechanisms.items():
        add_call(f"mechanisms.{name}.sample", made_of.sample, x=[1, 2], rng=1, size=2)
        add_call(f"mechanisms.{name}.log_density", made_of.log_density, z=[1, 2], x=[[1, 2], [2, 3]])
        add_call(f"mechanisms.{name}.privacy_loss", made_of.privacy_loss, x=[1, 2], y=[[1, 2], [2, 3]])
        add_call(f"mechanisms.{name}.gauge", made_of.gauge, loss=1.0, rounding=0.0)
    noise = all_mechanisms["KNormMechanism"]
    few = {"samples": 9, "draws": 2}
    add_call("mechanisms.check_mechanism", mechanisms.check_mechanism, "mechanism", mechanism=noise, points=F, **few)
    exact = all_mechanisms["LatticeKNormMechanism"]
    add_call("mechanisms.LatticeKNormMechanism.exponent", exact.exponent, z=[1, 2], x=[1, 1])
    add_call("mechanisms.LatticeKNormMechanism.probability", exact.probability, z=[1, 2], x=[1, 1], digits=5)
    add_call("mechanisms.LatticeKNormMechanism.normaliser", exact.normaliser, digits=5)
    add_call(
        "mechanisms.LatticeKNormMechanism.from_hull_in_units", mechanisms.LatticeKNormMechanism.from_hull_in_units,
        "hull", hull=HULL, epsilon=1, spacing=0.5
    )  # fmt: skip


def add_releases() -> None:
    add_call(
        "release.Releaser", release.Releaser, "model policy", model=MODEL, f=F, policy=build_graph(), epsilon=1.0,
        mechanism="lattice", repair="exact", delta=0.1, rng=0, repair_objective="volume", membership="halfspace",
        spacing=0.001, outside="clamp", noise_scope="component"
    )  # fmt: skip
    add_call("release.Schedule", release.Schedule, target_error=0.5, window_epsilon=5.0, window_seconds=3600.0)
    add_call("release.Releaser.release", _make_releaser_call("release"), state=3, epsilon=1.0, steps=1)
    add_call("release.Releaser.prepare", _make_releaser_call("prepare"), epsilon=1.0, steps=1)
    add_call("release.Releaser.spawn", _make_releaser_call("spawn"), rng=0)
    add_call(
        "release.Releaser.for_query",
        _make_releaser_call("for_query"),
        f=F[:, :1],
        epsilon=1.0,
        mechanism="laplace",
        spacing=0.01,
    )
    add_call("release.Releaser.predict", _make_releaser_call("predict"), steps=1)
    add_call("release.Releaser.release_together", _release_together, state=3, epsilon=[0.5, 0.5], steps=1)
    add_call("release.Releaser.private_diagnostics", _get_diagnostics, state=3, place=[1.0, 2.0])
    add_call("release.Releaser.log_likelihood", _compute_likelihood, released=[1.0, 2.0])
    add_call(
        "release.Ledger.compute_max_window_epsilon",
        release.Ledger.from_records([RECORD]).compute_max_window_epsilon,
        steps=2,
    )
    add_call(
        "release.Limits", release.Limits, epsilon=1.0, constrained_epsilon=2.0, window_epsilon=1.0, window_steps=3
    )  # fmt: skip
    add_call("release.ReleaseRecord.from_json", release.ReleaseRecord.from_json, text=RECORD.to_json())
    add_call(
        "release.ReleaseSettings", release.ReleaseSettings, policy="complete", epsilon=1.0, mechanism="lattice",
        repair="exact", repair_objective="volume", membership="halfspace", delta=0.1, allow_singleton=False,
        spacing=0.001, outside="clamp", noise_scope="component"
    )  # fmt: skip
    add_call("release.ReleaseSettings.from_dict", release.ReleaseSettings.from_dict, values=SETTINGS.to_dict())
    add_call("release.ReleaseSettings.from_json", release.ReleaseSettings.from_json, text=SETTINGS.to_json())
    add_call("release.ReleaseSettings.from_toml", release.ReleaseSettings.from_toml, text=SETTINGS.to_toml())
    add_call("release.Terms.from_json", release.Terms.from_json, text=release.Terms.from_engine(RELEASER).to_json())
    add_call("release.Session.open", _open_session, path="a.session", name="ann", wait_seconds=1.0)
    add_call("release.Session.release", _make_session_call("release"), state=3, slot=0, epsilon=1.0, query="main")
    add_call("release.Session.omit", _make_session_call("omit"), slot=0)
    add_call("release.Session.find", _make_session_call("find"), slot=0, query="main")
    add_call("release.Session.to_slot", _make_session_call("to_slot"), slot=0)
    add_call("release.SessionStore", _open_store, path="b.session", wait_seconds=1.0)
    add_call("release.RecordedReleaseStream", _open_recorded_stream, path="d.session", wait_seconds=1.0)
    add_call("release.FixFilter", release.FixFilter, epsilon=1.0, clock_skew_seconds=1.0)
    add_call(
        "release.ReleaseStream.take", _take, user="ann", time=TIMES[0], latitude=45.01, longitude=-29.99, epsilon=1.0
    )  # fmt: skip
    add_call(
        "release.release_trajectory", release.release_trajectory, "releaser space trajectory",
        releaser=_place_engine(), space=GRID, trajectory=SLOTTED, epsilons=np.full(len(SLOTTED), 1.0), before=None
    )  # fmt: skip


def _make_releaser_call(method: str) -> Callable[..., Any]:
    return lambda **arguments: getattr(RELEASER.spawn(0), method)(**arguments)


def _release_together(**arguments: Any) -> Any:
    engine = RELEASER.spawn(0)
    return engine.release_together(arguments.pop("state"), engine.for_query(F[:, :1]), **arguments)


def _get_diagnostics(state: Any, place: Any) -> Any:
    engine = RELEASER.spawn(0)
    engine.release(3)
    return engine.private_diagnostics(state, place)


def _compute_likelihood(released: Any) -> Any:
    return RELEASER.log_likelihood(RELEASER.prepare(), released)


def _open_session(**arguments: Any) -> None:
    release.Session.open(releaser=RELEASER.spawn(0), limits=LIMIT, **arguments).close()


def _make_session_call(method: str) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        with release.Session.open(Path("c.session"), "ann", RELEASER.spawn(0)) as session:
            return getattr(session, method)(**arguments)

    return call


def _open_store(**arguments: Any) -> None:
    release.SessionStore(**arguments).close()


def _open_recorded_stream(**arguments: Any) -> None:
    release.RecordedReleaseStream(engine=_place_engine(), **arguments).close()


def _place_engine() -> release.Releaser:
    model = movement.MarkovModel(
        np.full((GRID.size, GRID.size), 1 / GRID.size), np.full(GRID.size, 1 / GRID.size), GRID, 60.0
    )
    return release.ReleaseSettings("complete", 1.0, repair="greedy").engine(model, 0)


def _take(**arguments: Any) -> Any:
    stream = release.ReleaseStream(_place_engine(), release.FixFilter(epsilon=5.0))
    return stream.take(**arguments)


def add_streams() -> None:
    epsilons = np.array([0.1, 0.2, 0.3])
    for name in ("compute_leakage", "temporal_leakage"):
        add_call(f"leakage.{name}", getattr(leakage, name), backward=TWO, forward=TWO, epsilons=epsilons)
    for name in ("backward_leakage", "forward_leakage"):
        add_call(f"leakage.{name}", getattr(leakage, name), matrix=TWO, epsilons=epsilons)
    add_call(
        "leakage.compute_population_leakage",
        leakage.compute_population_leakage,
        users={"a": (TWO, TWO)},
        epsilons=epsilons,
    )
    add_call("leakage.constant_budget", leakage.constant_budget, backward=TWO, forward=TWO, alpha=1.0)
    add_call("leakage.exact_budgets", leakage.exact_budgets, backward=TWO, forward=TWO, alpha=1.0, steps=3)
    add_call("leakage.shared_budget", leakage.shared_budget, users={"a": (TWO, TWO)}, alpha=1.0, steps=3)
    add_call("leakage.loss", leakage.loss, matrix=TWO, alpha=1.0)
    add_call("leakage.supremum", leakage.supremum, matrix=TWO, epsilon=0.1)
    add_call("leakage.smooth", leakage.smooth, matrix=TWO, amount=0.1)
    add_call("leakage.LossFunction", LossFunction, matrix=TWO, limit=5.0, name="P")
    add_call("leakage.LossFunction.supremum", LossFunction(TWO).supremum, epsilon=0.1)
    add_call("leakage.Leakage", leakage.Leakage, epsilons=epsilons, backward=epsilons, forward=epsilons)
    add_call("leakage.Leakage.window", leakage.Leakage(epsilons, epsilons, epsilons).window, start=0, stop=2)
    add_call("leakage.Leakage.largest_window", leakage.Leakage(epsilons, epsilons, epsilons).largest_window, times=2)
    add_call("leakage.Stream.add", leakage.Stream(TWO, TWO).add, epsilon=0.1)

    line = {"timestamps": np.arange(4), "landmarks": np.array([1, 3])}
    add_call("landmarks.timeline", landmarks.timeline, **line)
    for name in ("skip_scheme", "uniform_scheme"):
        add_call(f"landmarks.{name}", getattr(landmarks, name), **line, epsilon=1.0)
    add_call(
        "landmarks.Adaptive", landmarks.Adaptive, **line, epsilon=1.0, sensitivity=1.0, rate=1.0, change=0.2,
        min_rate=0.1, rng=0
    )  # fmt: skip
    add_call("landmarks.leakage", landmarks.leakage, **line, epsilons=np.full(4, 0.1), backward=TWO, forward=TWO)
    add_call(
        "landmarks.paper_leakage", landmarks.paper_leakage, **line, epsilons=np.full(4, 0.1), backward=TWO, forward=TWO
    )
    add_call("landmarks.lattice_noise", landmarks.lattice_noise, sensitivity=1, spacing=0.5, rng=0)
    add_call("landmarks.planar_lattice", landmarks.planar_lattice, unit=1, spacing=0.5, rng=0)
    add_call("landmarks.Timeline", landmarks.Timeline, timestamps=np.arange(2), landmark=np.array([True, False]))
    add_call(
        "landmarks.LandmarkBudget", landmarks.LandmarkBudget, "timeline", timeline=landmarks.timeline([0, 1], [1]),
        epsilons=np.array([0.1, 0.2]), epsilon=1.0
    )  # fmt: skip
    add_call("landmarks.laplace_noise", landmarks.laplace_noise, sensitivity=1.0, rng=0)
    add_call("landmarks.planar_laplace", landmarks.planar_laplace, unit=1.0, rng=0)
    add_call(
        "landmarks.release_series", landmarks.release_series, "scheme mechanism", values=np.arange(4.0)[:, None],
        scheme=landmarks.uniform_scheme([0, 1, 2, 3], [1, 3], 1.0), mechanism=landmarks.laplace_noise(1.0, 0)
    )  # fmt: skip
    add_call(
        "landmarks.stay_points", landmarks.stay_points, times=TIMES, points=np.zeros((5, 2)), radius_km=1.0, minutes=1.0
    )
    stays = landmarks.stay_points(TIMES, np.zeros((5, 2)), 1.0, 1.0)
    add_call(
        "landmarks.repeated_places", landmarks.repeated_places, "stays", stays=stays, radius_km=1.0, utc_offset=1.0
    )

    noisy, true = np.array([[7.2, -0.8], [1.1, 4.9], [3.3, 2.2]]), np.array([[6, 0], [1, 5], [3, 3]])
    scales = np.array([2.0, 2.0, 1.0])
    add_call("counts.count_states", counts.count_states, sequences=[[0, 1, 1], [1, 1, 0]], size=2)
    add_call("counts.release", counts.release, true=true, epsilons=[0.1, 0.2, 0.3], rng=0, mechanism="laplace")
    add_call("counts.least_squares", counts.least_squares, noisy=noisy, users=6)
    add_call("counts.maximum_likelihood", counts.maximum_likelihood, noisy=noisy, users=6)
    add_call(
        "counts.post_process", counts.post_process, noisy=noisy, transition=TWO, users=6, scale=scales, prior=[0.5, 0.5]
    )
    add_call(
        "counts.estimate", counts.estimate, name="single", noisy=noisy, transition=TWO, users=6, scale=scales,
        prior="frequency"
    )  # fmt: skip
    add_call(
        "counts.compare", counts.compare, true=true, epsilons=[0.1, 0.2, 0.3], transition=TWO, prior="frequency",
        runs=1,
        rng=0, names=["single"]
    )  # fmt: skip
    add_call("counts.Start.multinomial", counts.Start.multinomial, first=np.array([0.5, 0.5]), users=6)
    add_call("counts.Start.flat", counts.Start.flat, size=2, users=6)

    start, moves = counts.Start.flat(2, 6), csr_array(TWO)
    add_call(
        "counts.smooth_counts", counts.smooth_counts, "start", noisy=noisy, transition=moves, start=start,
        scales=scales,
        sweeps=1
    )  # fmt: skip
    add_call("counts.ChainFilter", counts.ChainFilter, "start", transition=moves, start=start)
    add_call("counts.ChainFilter.update", _update_filter, noisy=np.array([7.2, -0.8]), scale=1.0)

    add_call("events.Presence", events.Presence, states=[0, 1], first=1, last=2)
    add_call("events.Pattern", events.Pattern, sets=[[0, 1], [2]], first=1)
    add_call("events.Times", events.Times, states=[0, 1], first=1, last=3, min_count=2)
    add_call("events.AtLeast", events.AtLeast, "events", count=1, events=[EVENT])
    add_call("events.Clock", events.Clock, step_seconds=60.0, first=0)
    add_call("events.Clock.step_at", events.Clock(60.0).step_at, instant=datetime(2024, 3, 7, tzinfo=UTC))
    add_call("events.EventOdds", events.EventOdds, "event", transition=MATRIX, initial=EVEN, event=EVENT)
    add_call("events.EventOdds.update", _make_odds_call("update"), log_likelihood=np.zeros(SIZE), steps=1)
    add_call("events.EventOdds.split", _make_odds_call("split"), steps=1)
    over = {"transition": MATRIX, "initial": EVEN, "log_likelihoods": np.zeros((3, SIZE)), "event": EVENT}
    add_call(
        "events.compute_smoothed_event_probabilities",
        events.compute_smoothed_event_probabilities,
        "event",
        **over,
        release_steps=[0, 1, 2],
    )
    add_call("events.log_odds", events.log_odds, "event", **over, release_steps=[0, 1, 2])
    add_call("events.parse_event", events.parse_event, text="state:3 between 1 and 2")
    add_call("events.Cap", events.Cap, event=EVENT, probability=0.9, min_probability=0.1)
    cap = events.Cap(EVENT, 0.9)
    add_call(
        "events.CapTracker", events.CapTracker, "caps space clock", caps=[cap], transition=MATRIX, initial=EVEN,
        space=None, clock=None, priors=[EVEN]
    )  # fmt: skip
    keeper = events.CapTracker([cap], MATRIX, EVEN)
    add_call("events.CapTracker.update", keeper.copy().update, log_likelihood=np.zeros(SIZE), steps=1)
    add_call(
        "events.CapTracker.choose", keeper.choose, "outputs", outputs=make_outputs(MECHANISM, F), epsilon=1.0, steps=1
    )
    add_call("events.read_priors", events.read_priors, "space", path="missing.csv", space=PLACES)


def _update_filter(**arguments: Any) -> Any:
    return counts.ChainFilter(csr_array(TWO), counts.Start.flat(2, 6)).update(**arguments)


def _make_odds_call(method: str) -> Callable[..., Any]:
    return lambda **arguments: getattr(events.EventOdds(MATRIX, EVEN, EVENT), method)(**arguments)


def add_audits_and_jobs() -> None:
    add_call(
        "audit.BlowfishPolicy", audit.BlowfishPolicy, names=("a", "b"), contributions=[[1, 0], [0, 1]],
        edges=(("a", "b"),)
    )  # fmt: skip
    secrets = audit.BlowfishPolicy(("a", "b"), [[1, 0], [0, 1]], (("a", "b"),))
    add_call("audit.audit_blowfish", audit.audit_blowfish, "policy", policy=secrets, epsilon=1.0, mechanisms=["k-norm"])
    cut = {"graph": build_graph(), "f": F, "mechanisms": ["k-norm"], "objective": "volume"}
    add_call(
        "audit.audit_entries", audit.audit_entries, "graph model",
        graph=policy.PolicyGraph.from_edges(SIZE, [[0, 1]]).with_open([2, 3]), f=F, model=MODEL, epsilon=1.0
    )  # fmt: skip
    add_call("audit.audit_constraint", audit.audit_constraint, "graph", **cut, constraint=MASK)
    add_call("audit.audit_constraints", audit.audit_constraints, "graph", **cut, constraints=[MASK])
    add_call("audit.audit_support", audit.audit_support, "protection", protection=PROTECTION, f=F, support=MASK)
    sampler = mechanisms.LaplaceMechanism(1.0, 1.0, 2)
    add_call(
        "audit.audit_pair", audit.audit_pair, "sampler", sampler=sampler, first=[0.0, 0.0], second=[1.0, 0.0],
        claimed=1.0, samples=200, confidence=0.9, rng=0
    )  # fmt: skip
    add_call(
        "audit.audit_pairs", audit.audit_pairs, "sampler", sampler=sampler, f=F, pairs=[[0, 1]], claimed=1.0,
        samples=200, confidence=0.9, rng=0
    )  # fmt: skip
    add_call("audit.select_hardest_edges", audit.select_hardest_edges, "graph", graph=build_graph(), f=F, limit=2)
    add_call(
        "audit.audit_uses", audit.audit_uses, "", true=[[0, 1], [0, 1]], released=[[0, 1], [0, 0]], areas=[0, 1],
        patients=[0], transmission=0.5, infectious_steps=2, slots=[3, 5], period_steps=2, resamples=100
    )  # fmt: skip
    add_call(
        "audit.compute_reproduction_number", audit.compute_reproduction_number, "", states=[[0, 1], [0, 1]],
        transmission=0.5, infectious_steps=2, slots=[3, 5]
    )  # fmt: skip
    add_call("audit.open_visited_states", audit.open_visited_states, "policy", policy=build_graph(), visited=[0])
    add_call("audit.support_sequence", audit.support_sequence, "model", model=MODEL, steps=2, start=MASK)
    sequence = audit.ReleasedSequence("a", np.array([[1.0, 2.0]]), np.array([1.0]), np.array([0]))
    add_call(
        "audit.ReleasedSequence", audit.ReleasedSequence, user="a", released=np.array([[1.0, 2.0]]),
        epsilons=np.array([1.0]), steps=np.array([0])
    )  # fmt: skip
    add_call(
        "audit.audit_sequence", audit.audit_sequence, "releaser sequence", releaser=RELEASER, sequence=sequence,
        prior=EVEN, truth=[0], k=2
    )  # fmt: skip
    add_call(
        "audit.audit_adversaries", audit.audit_adversaries, "releaser sequence adversaries", releaser=RELEASER,
        sequence=sequence, adversaries=[], truth=[0], k=2
    )  # fmt: skip
    add_call(
        "audit.audit_events", audit.audit_events, "releaser sequence events", releaser=RELEASER, sequence=sequence,
        events=[("a", events.Presence([0], 0, 0))], prior=EVEN
    )  # fmt: skip

    add_call("calibrate.MeanEstimate.from_values", calibrate.MeanEstimate.from_values, values=np.array([1.0, 2.0]))
    mechanism = mechanisms.KNormMechanism(HULL, 1.0)
    add_call("calibrate.epsilon_for_error", calibrate.epsilon_for_error, "mechanism", mechanism=mechanism, target=2.0)
    add_call(
        "calibrate.epsilon_for_event", calibrate.epsilon_for_event, "releaser event", releaser=RELEASER,
        event=events.Presence([0], 0, 0), probability=0.9, steps=1, first=0
    )  # fmt: skip
    add_call("calibrate.epsilon_for_odds", calibrate.epsilon_for_odds, diameter=2.0, prior=0.2, posterior=0.5)
    add_call("calibrate.epsilon_per_release", calibrate.epsilon_per_release, total=5.0, releases=288)
    add_call(
        "calibrate.largest_epsilon", calibrate.largest_epsilon, "metric",
        metric=lambda epsilon, is_check: calibrate.MeanEstimate(1 / epsilon, 0.0), bound=0.5, start=1.0
    )  # fmt: skip
    add_call(
        "calibrate.simulate",
        calibrate.simulate,
        "releaser watch event",
        releaser=RELEASER,
        epsilon=1.0,
        num_users=2,
        steps=2,
    )
    add_call("audit.Thresholds", audit.Thresholds, min_adversary_error=0.5, max_posterior=0.5)

    add_call("writers.check_format", writers.check_format, path="new.csv")
    add_call("writers.check_private_name", writers.check_private_name, path="PRIVATE.csv")
    table = writers.ReleaseTable.from_releases([])
    add_call("writers.to_geodataframe", writers.to_geodataframe, "table", table=table, geometry="estimate")
    add_call("writers.to_scikit_mobility", writers.to_scikit_mobility, "table", table=table, geometry="estimate")
    add_call("writers.write_releases", writers.write_releases, "table", path="releases.csv", table=table)
    add_call("writers.write_summary", writers.write_summary, "table", path="summary.csv", table=table)
    add_call(
        "writers.write_diagnostics", writers.write_diagnostics, "diagnostics", path="PRIVATE-d.csv", diagnostics=[]
    )
    add_call("writers.ReleaseTable", writers.ReleaseTable, columns=dict(table.columns))
    add_call("writers.ReleaseTable.parse", writers.ReleaseTable.parse, rows=list(table.rows()))
    add_call("writers.ReleaseTable.step_starts", table.step_starts, step_seconds=300.0)
    add_call("writers.ReleaseTable.select", table.select, mask=np.zeros(0, dtype=bool))
    add_call("tables.write_features", tables.write_features, "features", path="new.json", name="a", features=[])
    add_call("writers.read_releases", writers.read_releases, path="missing.csv")

    town = ROOT / "data/sample/geolife"
    visits, names = {"ann": ["a", "b"]}, [str(number) for number in range(SIZE - 2)] + ["a", "b"]
    add_call("jobs.learn_states", jobs.learn_states, "sequences", sequences=visits, names=names, smoothing=1.0)
    add_call(
        "jobs.release_states", jobs.release_states, "sequences model policy", sequences=visits, names=names,
        model=MODEL, policy=networkx.complete_graph(SIZE), epsilon=1.0, mechanism="graph-exponential", rng=0
    )  # fmt: skip
    add_call("jobs.Budgets", jobs.Budgets, epsilon=1.0)
    add_call("jobs.DayAlignment", jobs.DayAlignment, hours=(0.0, 24.0), utc_offset=1.0, min_coverage=0.5)
    areas = flows.Areas.from_space(GRID, block=2)
    flow_settings = flows.FlowSettings("flows", trips_per_user=3)
    add_call("flows.Areas.from_space", flows.Areas.from_space, "space", space=GRID, block=2)
    add_call(
        "flows.Areas.from_polygons", flows.Areas.from_polygons, layer="missing.geojson", label="name", district="zone"
    )
    add_call(
        "flows.FlowSettings", flows.FlowSettings, tables="visits,flows", split="flows=3", visits_per_user=3,
        trips_per_user=3, time_classes="6,18", flows_by="all", zone="UTC", stay=5.0, gap=6.0, first_day="2024-03-01",
        last_day="2024-03-14", window=7, cells_alone=True, balanced=True, confidence=0.9
    )  # fmt: skip
    add_call(
        "jobs.flows",
        jobs.flows,
        "areas settings",
        data=str(town),
        areas=areas,
        user_epsilon=1.0,
        settings=flow_settings,
    )
    add_call(
        "jobs.plan_flows", jobs.plan_flows, "areas settings", areas=areas, user_epsilon=1.0, settings=flow_settings,
        relative_error=0.2
    )  # fmt: skip
    add_call(
        "jobs.attack_tables", jobs.attack_tables, "areas", data=str(town), areas=areas, user_epsilon=1.0, rounds=4,
        hours_per_user=24, max_users=4, zone="UTC", rng=1
    )  # fmt: skip
    add_call("writers.FlowRows.read", writers.FlowRows.read, path="missing.json")
    add_call("jobs.LandmarkFinder", jobs.LandmarkFinder, rule="stays", radius_km=0.2, minutes=20.0, utc_offset=1.0)
    add_call("jobs.Scheme", jobs.Scheme, name="adaptive", rate=1.0, change=0.2, min_rate=0.1)
    add_call("jobs.Adversaries", jobs.Adversaries, auxiliary_data=str(town), auxiliary_locations=("home", "clinic"))
    add_call("jobs.Data.from_any", jobs.Data.from_any, data=str(town))
    add_call("jobs.Counts.read", jobs.Counts.read, path="missing.csv")
    add_call("jobs.Mobility.from_source", jobs.Mobility.from_source, model="missing.npz", smoothing=0.1)
    add_call("jobs.AuditTarget.from_model", jobs.AuditTarget.from_model, model="missing.npz", policy="complete")
    add_call("jobs.AuditTarget.from_tables", jobs.AuditTarget.from_tables, states="missing.csv")
    add_call("jobs.load_model", jobs.load_model, model="missing.npz")
    add_call(
        "jobs.region", jobs.region, preset=None, bbox=(45.0, -30.0, 45.02, -29.97), polygon=None, places=None,
        within_km=None, cell_km=0.5, streets=None
    )  # fmt: skip
    add_call(
        "jobs.build_blank_model",
        jobs.build_blank_model,
        bbox=(45.0, -30.0, 45.02, -29.97),
        step_seconds=60.0,
        kind="walking",
    )
    add_call(
        "jobs.hide", jobs.hide, data="missing.gpx", near=[(45.0, -30.0)], within_km=0.5, kind="cycling", keep=["hr"]
    )
    add_call("jobs.audit_secrets", jobs.audit_secrets, secrets="missing.csv", edges="missing.csv", epsilon=1.0)
    add_call("jobs.read_sessions", jobs.read_sessions, file="missing.db", names=["a"])
    add_call("jobs.export_sessions", jobs.export_sessions, file="missing.db", output="out.csv", names=["a"])
    add_call("jobs.certify", jobs.certify, source="missing.csv", model="missing.npz", output="proof.jsonl", users=["a"])
    add_call("jobs.replay", jobs.replay, path="missing.csv", model="missing.npz", settings="complete", users=["a"])
    add_call("jobs.audit_session", jobs.audit_session, path="missing.csv", model="missing.npz", users=["a"], top=3)
    add_call(
        "jobs.compute_release_leakage",
        jobs.compute_release_leakage,
        model="missing.npz",
        releases="missing.csv",
        user="a",
    )
    mechanism = movement.MarkovModel(MATRIX, EVEN, PLACES, 60.0)
    subject = jobs.AuditTarget(tuple("abcdef"), geometry.Measurements(F), build_graph(), mechanism)
    add_call("jobs.audit_policy", jobs.audit_policy, "target", target=subject, mechanisms=("k-norm",), epsilon=1.0)
    add_call(
        "jobs.audit_mechanism", jobs.audit_mechanism, "target", target=subject, mechanism="lattice", epsilon=1.0,
        spacing=0.001, samples=200, confidence=0.9
    )  # fmt: skip
    add_call("jobs.AuditTarget.constrain_to", subject.constrain_to, names=["a", "b"])
    add_call("jobs.AuditTarget.constrain_along", subject.constrain_along, steps=2, start=["a"])
    add_call(
        "jobs.learn", jobs.learn, "space", data=str(town / "Data" / "002"),
        space=space.Grid.over((44.97, -30.04, 45.03, -29.96), 2.0), step_seconds=3600.0,
        gap_seconds=7200.0, smoothing=0.5
    )  # fmt: skip
    add_call("jobs.evaluate_fit", jobs.evaluate_fit, "model", model="missing.npz", data=str(town), steps=[1])
    add_call(
        "jobs.fit_private", jobs.fit_private, "space", sequences=[[0, 1, -1, 2]], space=GRID, step_seconds=60.0,
        user_epsilon=1.0, moves_per_user=3, max_speed_kmh=100.0, rng=1
    )  # fmt: skip
    add_call(
        "serve.write_relay", serve.write_relay, "", path="relay.toml", model="missing.npz", users=["ann"],
        policy="utility:1km", epsilon=0.5, url="https://relay.example", target_error_km=0.5, hours=12.0,
        recipients=["family:owntracks:https://recorder.example/pub"]
    )  # fmt: skip
    add_call("serve.add_device", serve.add_device, "", path="missing.toml", user="ann", url="https://relay.example")
    add_call(
        "serve.rotate_token", serve.rotate_token, "", path="missing.toml", user="ann", number=1, url="https://a.example"
    )  # fmt: skip
    add_call(
        "serve.add_recipient", serve.add_recipient, "", path="missing.toml", name="family", kind="webhook",
        url="https://recorder.example", keys={}
    )  # fmt: skip
    add_call("serve.list_recipients", serve.list_recipients, "", path="missing.toml")
    add_call("serve.pause_recipient", serve.pause_recipient, "", path="missing.toml", name="family", paused=True)
    add_call("serve.remove_recipient", serve.remove_recipient, "", path="missing.toml", name="family")
    add_call(
        "serve.prefer_device", serve.prefer_device, "", path="missing.toml", user="ann", number=1, mqtt_device="phone"
    )
    add_call("serve.prune_relay", serve.prune_relay, "", path="missing.toml", older_seconds=86400.0)
    add_call(
        "jobs.synthesize", jobs.synthesize, "model", model=movement.MarkovModel(MATRIX, EVEN, PLACES, 60.0),
        output="synthetic.csv", num_users=2, days=0.01, start="2024-01-01", rng=0, overwrite=True
    )  # fmt: skip
    add_call(
        "jobs.compare_users", jobs.compare_users, "model", model="missing.npz", data=str(town), gap_seconds=600.0,
        rng=0
    )  # fmt: skip
    add_call(
        "jobs.release", jobs.release, "settings", data=str(town), model="missing.npz", settings=SETTINGS,
        output="r.csv",
        rng=0
    )  # fmt: skip
    add_call(
        "jobs.release_landmark_series", jobs.release_landmark_series, source="missing.csv", sensitivity=1.0, epsilon=1.0
    )  # fmt: skip

    counts_table = jobs.Counts.from_values(np.arange(3), np.array([[6, 0], [1, 5], [3, 3]]))
    moves, line = jobs.Mobility(TWO, np.array([0.5, 0.5])), {"data": str(town), "landmarks": ()}
    add_call(
        "jobs.compute_stream_leakage",
        jobs.compute_stream_leakage,
        "adversaries",
        adversaries=(TWO, TWO),
        epsilons=[0.1, 0.2],
    )
    add_call("jobs.budget", jobs.budget, "adversaries", adversaries=(TWO, TWO), alpha=1.0, steps=3)
    add_call(
        "jobs.repair_counts", jobs.repair_counts, "noisy mobility", noisy=counts_table, users=6, mobility=moves,
        estimator="single", prior="frequency", scale=[1.0, 1.0, 1.0]
    )  # fmt: skip
    add_call(
        "jobs.compare_counts", jobs.compare_counts, "true released mobility", true=counts_table,
        released=jobs.Budgets(epsilon=0.1), mobility=moves, estimators=("single",), prior="frequency", runs=1
    )  # fmt: skip
    add_call(
        "jobs.count_users", jobs.count_users, "budgets space step_seconds", source=str(town),
        budgets=jobs.Budgets(epsilon=0.1),
        space=space.Grid.over((44.97, -30.04, 45.03, -29.96), 2.0), step_seconds=3600.0
    )  # fmt: skip
    add_call(
        "jobs.release_track_with_engine", jobs.release_track_with_engine, "settings", **line,
        model="missing.npz", settings=SETTINGS, rng=1
    )  # fmt: skip
    add_call(
        "jobs.release_track_with_planar_noise", jobs.release_track_with_planar_noise,
        **{**line, "data": "missing.csv"}, unit_km=1.0,
        centre=(45.0, -30.0), epsilon=1.0, step_seconds=3600.0, mechanism="lattice", spacing=0.001, rng=1
    )  # fmt: skip
    add_call(
        "jobs.release_live",
        partial(_enter_manager, jobs.release_live),
        "settings",
        model="missing.npz",
        settings=SETTINGS,
        max_requested_epsilon=1.0,
    )
    add_call(
        "jobs.batch", jobs.batch, "settings", data=str(town), folder="users", model="missing.npz", settings=SETTINGS,
        kind="csv", session_gap=10, workers=1, rng=1
    )  # fmt: skip
    add_call(
        "jobs.realized_leakage", jobs.realized_leakage, "settings", model="missing.npz", releases="missing.csv",
        settings=SETTINGS, user="a"
    )  # fmt: skip
    add_call("attack.parse_channel", attack.parse_channel, text="round:3")
    add_call("attack.TableChannel", attack.TableChannel, name="a", probabilities=np.eye(2), places=np.zeros((2, 2)))
    add_call("attack.TableChannel.read", attack.TableChannel.read, path="missing.csv", size=3)
    add_call(
        "attack.MeshMovement", attack.MeshMovement, "model",
        model=movement.MarkovModel(np.full((1, 1), 1.0), [1.0], ONE, 60.0), parts=2, redraw_rate=0.1
    )  # fmt: skip
    moves = attack.MeshMovement(movement.MarkovModel(np.full((1, 1), 1.0), [1.0], ONE, 60.0))
    add_call(
        "attack.attack_tracks", attack.attack_tracks, "tracks channels moves habits watch",
        tracks=[attack.Track.from_trajectory(TRACK, moves, 9)], channels=[attack.parse_channel("round:2")],
        moves=moves, home_within_m=200.0, rng=0
    )  # fmt: skip
    add_call(
        "jobs.attack", jobs.attack, data=str(town), model="missing.npz", channels=["round:2"], rng=1, max_steps=2,
        home_within_km=0.1
    )  # fmt: skip
    add_call(
        "jobs.CalibrationTargets",
        jobs.CalibrationTargets,
        error=0.3,
        adversary_error=0.5,
        max_posterior=0.5,
        max_odds_ratio=3.0,
        window_epsilon=5.0,
    )
    add_call(
        "jobs.calibrate", jobs.calibrate, "settings targets", model="missing.npz", settings=SETTINGS,
        targets=jobs.CalibrationTargets(error=0.3), horizon_seconds=3600.0, num_users=2, report_epsilons=[0.1, 1.0],
        rng=1
    )  # fmt: skip
    add_call(
        "jobs.audit_event", jobs.audit_event, path="missing.csv", model="missing.npz", event="state:3 between 1 and 2",
        users=["a"], max_posterior=0.9, min_posterior=0.1
    )  # fmt: skip
    add_call(
        "jobs.audit_membership", jobs.audit_membership, model="missing.npz", members=str(town), others=str(town),
        alpha=0.05
    )  # fmt: skip
    add_call("jobs.audit_utility", jobs.audit_utility, source="missing.csv", model="missing.npz", true=str(town))
    add_call(
        "jobs.compare_uses", jobs.compare_uses, "model", model="missing.npz", settings=[], states=[[0, 1], [0, 1]],
        first=3, num_patients=1, rng=1
    )  # fmt: skip
    add_call("jobs.sample_users", jobs.sample_users, "model", model=MODEL, num_users=2, steps=3, first=5, rng=1)
    add_call("jobs.UsesSettings", jobs.UsesSettings, "", area_cells=2, transmission=0.1, infectious_hours=3.0)
    add_call(
        "jobs.audit_identity", jobs.audit_identity, path="missing.csv", model="missing.npz", auxiliary_data=str(town),
        users=["a"], k=3, max_posterior=0.5
    )  # fmt: skip

    add_call("jobs.read_released", jobs.read_released, source="missing.csv", users=["a"])

    add_call("evaluation.evaluate", evaluation.evaluate, config="missing.toml", folder="out")
    add_call(
        "evaluation.compare_noise", evaluation.compare_noise, "model settings",
        model=movement.MarkovModel(MATRIX, EVEN, PLACES, 60.0), settings=SETTINGS,
        sequences=[[0, 1, 2]], rng=0
    )  # fmt: skip
    add_call("evaluation.compare_noise_on_data", evaluation.compare_noise_on_data, config="missing.toml", folder="out")
    add_call("evaluation.load_config", evaluation.load_config, path="missing.toml")
    add_call("evaluation.parse_config", evaluation.parse_config, keys={"data": ["a"], "preset": "geolife"})
    add_call("evaluation.figure_builders", evaluation.figure_builders, paper="dphmm")
    add_call(
        "evaluation.FigureOptions", evaluation.FigureOptions, "progress", runs=1, seed=1, geolife=Path("a"),
        gowalla=Path("b"), folder=Path("out"), progress=suppress_progress
    )  # fmt: skip
    add_call("evaluation.load_evaluation", evaluation.load_evaluation, folder=Path("missing"))
    add_pictures()
    add_call(
        "html_report.html_page", reports.html_page, "sections", title="a", verdict="b", alarming=False, sections=[]
    )


def add_pictures() -> None:
    from matplotlib.figure import Figure

    import dphmm.plots as plots

    points = np.array([[0.0, 1.0], [2.0, 3.0]])
    budget = landmarks.uniform_scheme([0, 1, 2], [1], 1.0)
    add_call(
        "plots.draw_supremum",
        plots.draw_supremum,
        "ax",
        ax=Figure().subplots(),
        matrix=TWO,
        epsilon=0.1,
        steps=3,
    )
    add_call(
        "plots.draw_landmark_budget",
        plots.draw_landmark_budget,
        "ax budget",
        ax=Figure().subplots(),
        budget=budget,
        losses=np.ones(3),
    )
    add_call(
        "plots.draw_leakage_budgets", plots.draw_leakage_budgets, "ax", ax=Figure().subplots(),
        backward=TWO, forward=TWO,
        epsilons=[0.1, 0.2],
        alpha=1.0
    )  # fmt: skip
    add_call(
        "plots.draw_edges", plots.draw_edges, "ax colour width label", ax=Figure().subplots(), points=points,
        edges=np.array([[0, 1]]), colour="red",
        width=1.0, label="a"
    )  # fmt: skip
    for name in ("draw_estimates", "draw_releases", "draw_track"):
        add_call(f"plots.{name}", getattr(plots, name), "ax label", ax=Figure().subplots(), points=points, label="a")
    add_call("plots.draw_outlines", plots.draw_outlines, "ax", ax=Figure().subplots(), outlines={"a": [points]})
    add_call("plots.draw_loss_function", plots.draw_loss_function, "ax", ax=Figure().subplots(), matrix=TWO, limit=2.0)
    add_call(
        "plots.report", plots.report, releases="missing.csv", output="page.html", model="missing.npz",
        settings="complete", users=["a"], title="t"
    )  # fmt: skip
    add_call(
        "plots.show", plots.show, releases="missing.csv", output="map.html", model="missing.npz", users=["a"],
        start="2024-03-07", end="2024-03-08"
    )  # fmt: skip
    add_call(
        "plots.build_web_map",
        plots.build_web_map,
        "layers",
        layers=[],
        title="a",
        note="b",
        tiles="http://a/{z}/{x}/{y}.png",
    )
    add_call(
        "plots.draw_density", plots.draw_density, "ax colour label", ax=Figure().subplots(), points=points,
        colour="#0072b2", label="a"
    )  # fmt: skip
    add_call(
        "plots.draw_steps", plots.draw_steps, "ax colour label", ax=Figure().subplots(), times=[1, 2],
        values=[0.5, 1.0], colour="red", label="a"
    )  # fmt: skip
    add_call(
        "plots.extract_basemap", plots.extract_basemap, path="missing.geojson", model="missing.npz",
        output="town.geojson", overwrite=False,
    )  # fmt: skip
    add_call("plots.read_basemap", plots.read_basemap, path="missing.geojson", box=(44.0, 7.0, 45.0, 8.0))
    add_call("plots.build_world_basemap", plots.build_world_basemap, box=(44.0, 7.0, 45.0, 8.0), max_names=3)


for fill in (
    add_tables_and_space,
    add_geometry_and_model,
    add_policies_and_mechanisms,
    add_releases,
    add_streams,
    add_audits_and_jobs,
):
    fill()
