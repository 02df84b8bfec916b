"""Small valid documents of every format, from ``documents`` or written by the package."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm import Grid, Limits, MarkovModel, Places, PolicyGraph, Releaser, ReleaseSettings, Session
from dphmm.evaluation.run import COLUMNS as STEP_COLUMNS
from dphmm.evaluation.run import StepTable
from dphmm.evaluation.split import Split
from dphmm.flows import Areas, FlowSettings
from dphmm.jobs import flows as count_flows
from dphmm.jobs import hide
from dphmm.jobs.batch.run_folder import Checkpoint
from dphmm.jobs.input_data import Data
from dphmm.jobs.model.training_users import write_user_list
from dphmm.jobs.release.release import release
from dphmm.model import TimeClasses, extend
from dphmm.model.belief import Belief
from dphmm.model.outside_states import create_outside_states
from dphmm.release.session_terms import Terms
from scripts.fuzzing.attempt import Seed

# A recording, and its start.
RIDE = Path(__file__).parents[2] / "data/sample/ride.gpx"
HOME = (45.01, -30.01)
_FIXES = str(Path(__file__).parent / "documents" / "csv" / "0-t.csv")
ENDS = ("csv", "geojson", "gpx", "gpkg", "parquet")
_SETTINGS = ReleaseSettings(policy="complete", epsilon=1.0)


@cache
def read_documents(name: str) -> list[Seed]:
    """Return the files of a folder, with names without their leading number."""
    paths = sorted((Path(__file__).parent / "documents" / name).iterdir())
    return [(path.name.partition("-")[2], path.read_bytes()) for path in paths]


@cache
def make_grid() -> Grid:
    """Return a grid of fifteen cells."""
    return Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)


@cache
def make_model() -> MarkovModel:
    """Return a model of the grid."""
    size = make_grid().size
    return MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size), make_grid(), 60.0)


def _write_seed(name: str, write: Callable[[Path], object]) -> Seed:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return name, (Path(folder) / name).read_bytes()


def _make_models() -> list[Seed]:
    """Return models of several spaces, with time classes, outside states and provenance."""
    corner = Grid.over(shapely.Polygon([(-30.01, 44.99), (-29.99, 44.99), (-29.99, 45.01)]), 0.5)
    stops = Places(["home", "work", "club"], [45.0, 45.02, 45.1], [7.0, 7.05, 7.1], 0.5)
    models = [
        MarkovModel(np.eye(s.size), np.full(s.size, 1 / s.size), s, step) for s, step in ((corner, 60), (stops, 0.5))
    ]
    rng, night = np.random.default_rng(0), TimeClasses((0,) * 84 + (1,) * 84, 60.0, "Europe/Berlin")
    walks = [(np.arange(20) * 10, rng.integers(0, make_grid().size, 20)) for _ in range(3)]
    twins, plain = create_outside_states(make_grid()), make_model()
    assert twins is not None, "a grid has a border"
    part = np.full(len(twins.border), 0.25)
    chain = twins.build_chain(plain.transition, plain.transition, part, 2 * part)
    outside = MarkovModel(chain, plain.initial, plain.states, plain.step_seconds, outside=twins)
    models += [extend(plain, walks, night).model, outside, extend(outside, walks, night).model]
    promised = {"guarantee": "user-level differential privacy", "epsilon": "1/2", "moves_per_user": 500}
    promised |= {"spent_on": {"moves": "1/3", "the region": "1/6"}, "noisy_num_users": 12, "family": "kernel"}
    without_noise = {"guarantee": "none: moves were counted without noise"}
    models += [make_model().with_provenance(provenance) for provenance in (promised, without_noise)]
    return [_write_seed("m.npz", variant.save) for variant in (make_model(), *models)]


def _write_session(path: Path) -> None:
    engine = _SETTINGS.engine(make_model(), 1)
    for name in ("a", "né"):
        with Session.open(path, name, engine.spawn(), Limits(epsilon=10.0)) as opened:
            for slot in range(3):
                opened.release(slot, slot)


def _write_releases(path: Path) -> None:
    release(Data((_FIXES,)), make_model(), _SETTINGS, str(path), rng=1)


def _write_flows(path: Path) -> None:
    count = FlowSettings("visits", visits_per_user=2, stay=0)
    count_flows(_FIXES, Areas.from_space(make_grid()), 5, count, rng=1).to_rows().write(path)


def _make_runs() -> dict[str, list[Seed]]:
    """Return the files that runs, evaluations and batches keep in their folders."""
    split = Split(("a", "b"), np.arange(12).reshape(2, 6), np.arange(2), np.arange(2), (("b",), ("a",)), {"short": 1})
    with tempfile.TemporaryDirectory() as folder:
        Checkpoint.open(Path(folder) / "run", {"seed": 1, "kind": "csv"}, resume=False).close()
        split.save(Path(folder), [make_model(), make_model()])
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
        run = [("run.json", (Path(folder) / "run" / "run.json").read_bytes())]
    kinds = {"object": "complete", "float64": 0.5, "int64": 1, "bool": True}
    table = StepTable.from_rows([{name: kinds[kind] for name, kind in STEP_COLUMNS.items()} for _ in range(3)])
    return {
        "run": run,
        "split": [(name, data) for name, data in files.items() if name.endswith("json") or "sequences" in name],
        "steps": [_write_seed("000000.parquet", table.write)],
        "training-users": [
            _write_seed("m.PRIVATE-users.json", lambda path: write_user_list(path, make_model(), ["a", "né"]))
        ],
    }


def make_capped_engine() -> Releaser:
    """Return an engine with an event cap, to which the checkpoints belong."""
    caps = [{"event": "state:1,2 between 0 and 8", "probability": 0.9}]
    return ReleaseSettings(policy="utility:1km", epsilon=0.5, caps=caps).engine(make_model(), 1)


def _make_texts() -> dict[str, list[Seed]]:
    """Return records, settings, terms, a belief, checkpoints and a graph."""
    settings, engine = ReleaseSettings(policy="utility:1km", epsilon=0.5, delta=0.01), _SETTINGS.engine(make_model(), 1)
    few = np.arange(make_grid().size) < 9
    capped, checkpoints = make_capped_engine(), []
    for _ in range(3):
        checkpoints.append((f"{len(checkpoints)}.checkpoint", capped.checkpoint()))
        capped.release(2)
    return {
        "checkpoint": checkpoints,
        "record": [("r.json", engine.release(3).to_json().encode())],
        "settings": [("s.json", settings.to_json().encode()), ("s.toml", settings.to_toml().encode())],
        "terms": [("t.json", Terms.from_engine(engine).to_json().encode())],
        "belief": [("belief", Belief(few, np.where(few, -np.log(9), -np.inf)).to_bytes())],
        "graph": [_write_seed("g.json", PolicyGraph.from_edges(15, [(0, 1), (1, 2), (7, 9)]).to_json)],
    }


_WRITERS: Mapping[str, Callable[[], Any]] = {
    **dict.fromkeys(("run", "split", "steps", "training-users"), _make_runs),
    **dict.fromkeys(("record", "settings", "terms", "belief", "graph", "checkpoint"), _make_texts),
    "hidden-places": lambda: [_write_seed("s.json", lambda path: hide(RIDE, [HOME], session=path))],
    "flows": lambda: [_write_seed("flows.json", _write_flows), _write_seed("flows.parquet", _write_flows)],
    "model": _make_models,
    "session": lambda: [_write_seed("s.session", _write_session)],
    **{f"releases-{end}": lambda end=end: [_write_seed(f"out.{end}", _write_releases)] for end in ENDS},
}


@cache
def make_seeds(name: str) -> list[Seed]:
    """Return the valid documents of a target."""
    written = _WRITERS.get(name, partial(read_documents, name))()
    return written[name] if isinstance(written, dict) else written
