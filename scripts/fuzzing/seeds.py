"""Valid small documents of every format: files of the folder ``documents``, and what the package itself writes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import shapely

from dphmm import Grid, Limits, MarkovModel, Places, PolicyGraph, ReleaseSettings, Session
from dphmm.evaluation.run import COLUMNS as STEP_COLUMNS
from dphmm.evaluation.run import StepTable
from dphmm.evaluation.split import Split
from dphmm.flows import Areas, FlowSettings
from dphmm.jobs import flows as count_flows
from dphmm.jobs import hide
from dphmm.jobs.input_data import Data
from dphmm.jobs.models import write_list
from dphmm.jobs.releases import release
from dphmm.jobs.run_folder import Checkpoint
from dphmm.model import TimeClasses, extend
from dphmm.model.away import twins_of
from dphmm.model.belief import Belief
from dphmm.release.session_terms import Terms
from scripts.fuzzing.attempt import Seed

RIDE, HOME = Path(__file__).parents[2] / "data/sample/ride.gpx", (45.01, -30.01)
"""A recording, and where it begins."""
ENDS = ("csv", "geojson", "gpx", "gpkg", "parquet")
_SETTINGS = ReleaseSettings(policy="complete", epsilon=1.0)


@cache
def documents(name: str) -> list[Seed]:
    """The files of a folder, without the number that their names begin with."""
    paths = sorted((Path(__file__).parent / "documents" / name).iterdir())
    return [(path.name.partition("-")[2], path.read_bytes()) for path in paths]


@cache
def grid() -> Grid:
    """Fifteen cells."""
    return Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)


@cache
def model() -> MarkovModel:
    """A model of the cells."""
    size = grid().size
    return MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size), grid(), 60.0)


def _made(name: str, write: Callable[[Path], object]) -> Seed:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return name, (Path(folder) / name).read_bytes()


def _models() -> list[Seed]:
    """Of a grid, a part of one, and places; of classes of hours and people outside; and with how they were learned."""
    corner = Grid.over(shapely.Polygon([(-30.01, 44.99), (-29.99, 44.99), (-29.99, 45.01)]), 0.5)
    stops = Places(["home", "work", "club"], [45.0, 45.02, 45.1], [7.0, 7.05, 7.1], 0.5)
    made = [
        MarkovModel(np.eye(s.size), np.full(s.size, 1 / s.size), s, step) for s, step in ((corner, 60), (stops, 0.5))
    ]
    rng, night = np.random.default_rng(0), TimeClasses((0,) * 84 + (1,) * 84, 60.0, "Europe/Berlin")
    walks = [(np.arange(20) * 10, rng.integers(0, grid().size, 20)) for _ in range(3)]
    twins, plain = twins_of(grid()), model()
    assert twins is not None, "a grid has a border"
    part = np.full(len(twins.border), 0.25)
    chain = twins.chain(plain.transition, plain.transition, part, 2 * part)
    outside = MarkovModel(chain, plain.initial, plain.states, plain.step_seconds, away=twins)
    made += [extend(plain, walks, night).model, outside, extend(outside, walks, night).model]
    promised = {"promise": "differential privacy of whole people", "epsilon": "1/2", "moves_per_person": 500}
    promised |= {"spent_on": {"moves": "1/3", "the region": "1/6"}, "people_with_noise": 12, "family": "kernel"}
    made += [model().saying(said) for said in (promised, {"promise": "none: moves were counted without noise"})]
    return [_made("m.npz", one.save) for one in (model(), *made)]


def _released(suffix: str) -> Seed:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "t.csv").write_bytes(documents("csv")[0][1])
        release(Data((f"{folder}/t.csv",)), model(), _SETTINGS, f"{folder}/out{suffix}", rng=1)
        return f"out{suffix}", (Path(folder) / f"out{suffix}").read_bytes()


def _session(path: Path) -> None:
    engine = _SETTINGS.engine(model(), 1)
    for name in ("a", "né"):
        with Session.open(path, name, engine.another(), Limits(epsilon=10.0)) as opened:
            for slot in range(3):
                opened.release(slot, slot)


def _flows(path: Path) -> None:
    path.with_name("rows.csv").write_bytes(documents("csv")[0][1])
    count = FlowSettings("visits", visits_per_person=2, stay=0)
    count_flows(str(path.with_name("rows.csv")), Areas.from_space(grid()), 5, count, rng=1).rows().write(path)


def _runs() -> dict[str, list[Seed]]:
    """What a run, its evaluation and a batch keep in their folders."""
    split = Split(("a", "b"), np.arange(12).reshape(2, 6), np.arange(2), np.arange(2), (("b",), ("a",)), {"short": 1})
    with tempfile.TemporaryDirectory() as folder:
        Checkpoint.open(Path(folder) / "run", {"seed": 1, "kind": "csv"}, resume=False).close()
        split.save(Path(folder), [model(), model()])
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
        run = [("run.json", (Path(folder) / "run" / "run.json").read_bytes())]
    kinds = {"object": "complete", "float64": 0.5, "int64": 1, "bool": True}
    table = StepTable.of([{name: kinds[kind] for name, kind in STEP_COLUMNS.items()} for _ in range(3)])
    return {
        "run": run,
        "split": [(name, data) for name, data in files.items() if name.endswith("json") or "sequences" in name],
        "steps": [_made("000000.parquet", table.write)],
        "people-seen": [_made("m.PRIVATE-people.json", lambda path: write_list(path, model(), ["a", "né"]))],
    }


def _texts() -> dict[str, list[Seed]]:
    """Records, settings and terms; a belief; and a graph."""
    settings, engine = ReleaseSettings(policy="utility:1km", epsilon=0.5, delta=0.01), _SETTINGS.engine(model(), 1)
    few = np.arange(grid().size) < 9
    return {
        "record": [("r.json", engine.release(3).to_json().encode())],
        "settings": [("s.json", settings.to_json().encode()), ("s.toml", settings.to_toml().encode())],
        "terms": [("t.json", Terms.from_engine(engine).to_json().encode())],
        "belief": [("belief", Belief(few, np.where(few, -np.log(9), -np.inf)).to_bytes())],
        "graph": [_made("g.json", PolicyGraph.from_edges(15, [(0, 1), (1, 2), (7, 9)]).to_json)],
    }


_WRITERS: dict[str, Callable[[], list[Seed]]] = {
    **{name: lambda name=name: _runs()[name] for name in ("run", "split", "steps", "people-seen")},
    **{name: lambda name=name: _texts()[name] for name in ("record", "settings", "terms", "belief", "graph")},
    "hidden-places": lambda: [_made("s.json", lambda path: hide(RIDE, [HOME], session=path))],
    "flows": lambda: [_made("flows.json", _flows), _made("flows.parquet", _flows)],
    "model": _models,
    "session": lambda: [_made("s.session", _session)],
    **{f"releases-{end}": lambda end=end: [_released(f".{end}")] for end in ENDS},
}
"""Target → what the package itself writes for it."""


@cache
def seeds(name: str) -> list[Seed]:
    """The valid documents of a target."""
    return _WRITERS[name]() if name in _WRITERS else documents(name)
