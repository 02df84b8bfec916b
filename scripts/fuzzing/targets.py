"""Every reader of the package, and the use of its results."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import parse_qsl

import click
import numpy as np

from dphmm import Measurements, PolicyGraph, ReleaseSettings, read
from dphmm.attack import TableChannel
from dphmm.audit.input_tables import build_policy_graph, read_edges, read_prior, read_secrets, read_states
from dphmm.cli.json_lines import answer_lines
from dphmm.cli.model import show as show_model
from dphmm.cli.release import release_command
from dphmm.cli.shared_options import build_caps, build_settings
from dphmm.errors import DphmmError
from dphmm.evaluation.config import load_config
from dphmm.evaluation.run import StepTable
from dphmm.evaluation.split import Split
from dphmm.events import read_priors
from dphmm.hide.recording_writers import write_recording
from dphmm.jobs import hide
from dphmm.jobs.batch.run_folder import Checkpoint, Published
from dphmm.jobs.counts import Counts
from dphmm.jobs.input_data import Data
from dphmm.jobs.landmarks import parse_landmarks
from dphmm.jobs.leakage import compute_release_leakage
from dphmm.jobs.model.loading import load_model
from dphmm.jobs.model.training_users import find_training_users
from dphmm.jobs.release.release import release_live
from dphmm.jobs.release.stored import export_sessions, read_released, replay
from dphmm.leakage import LossFunction
from dphmm.leakage.input_files import read_budgets, read_matrix, read_numbers
from dphmm.model.belief import Belief
from dphmm.plots.basemap import read_basemap
from dphmm.plots.canvas import create_figure
from dphmm.plots.maps import draw_basemap
from dphmm.plots.release import show
from dphmm.plots.webmap import build_web_map
from dphmm.policy.zones import find_categories
from dphmm.readers import read_places
from dphmm.readers.fetch import fetch_data
from dphmm.readers.fix_tables import ParquetFixes
from dphmm.readers.fixes import ReadOptions
from dphmm.readers.reading import read_recording
from dphmm.release.record import ReleaseRecord
from dphmm.release.session_terms import Terms
from dphmm.serve import incoming_messages
from dphmm.serve.config import RelayConfig
from dphmm.space.projection import LocalProjection
from dphmm.tables import Table, TimedTable
from dphmm.tables.street_map import read_street_map
from dphmm.writers import read_releases, summarise
from dphmm.writers.flows import FlowRows
from dphmm.writers.formats import FORMATS
from scripts.fuzzing import seeds
from scripts.fuzzing.attempt import Target
from scripts.fuzzing.changes import change_content
from scripts.fuzzing.commands import COMMANDS, ORDERS

# For earlier readings of a file that is read several times: each may refuse it.
_SUPPRESSED = contextlib.suppress(DphmmError)


def _use_tracks(path: Path, **options: Any) -> None:
    with _SUPPRESSED:
        read(path, skip_bad=True)
    user_tracks = Data((path,), user_per_file=True, **options).read()
    assert user_tracks.fixes > 0
    for track in user_tracks.trajectories:
        track.user.encode("utf-8")
        seeds.make_grid().locate(track.latitude, track.longitude)
        track.resample(60.0)


def _use_zoned(path: Path) -> None:
    """Read times in milliseconds, or in a zone with daylight saving, and a table by user."""
    nanoseconds = {"time_format": "ns", "time_zone": "+05:45"}
    for options in ({"time_format": "ms"}, {"time_zone": "America/New_York"}, nanoseconds):
        with _SUPPRESSED:
            read(path, **options)
    if path.suffix == ".parquet" and (fixes := ParquetFixes(path, ReadOptions(skip_bad=True))).has_users:
        assert all(part.points >= 0 for part in fixes.gather().read_by_users(2))


def _use_recording(path: Path) -> None:
    recording = read_recording(path)
    for suffix in (".gpx", ".geojson", ".csv"):
        write_recording(path.with_name(f"again{suffix}"), recording, overwrite=True)


def _use_table(path: Path) -> None:
    table = Table.read(path)
    for name in table.columns:
        for use in (table.numbers, table.times):
            with _SUPPRESSED:
                use(name)
        table.texts(name)


def _use_timed(path: Path) -> None:
    TimedTable.read(path).write(path.with_name("again.csv"), overwrite=True)
    counts = Counts.read(path)
    for name in ("true", "scales"):
        with _SUPPRESSED:
            getattr(counts, name)


def _use_places(path: Path) -> None:
    places = read_places(path, 1.0)
    _ = places.locate([45.0], [7.0]), places.content_hash


def _use_model(path: Path) -> None:
    """Use a model and print its provenance, of which the command must print every line."""
    model = load_model(path)
    _ = model.content_hash, model.structure, model.space.content_hash, model.space.latlon()
    for steps in (1, 3, 500):
        model.operator(steps, 0).propagate_forward(model.initial_logs(0))
    PolicyGraph.transition(model.structure).edge_array()
    shown = [_run_command(show_model, [str(path), *more]) for more in ([], ["--json"])]
    facts = json.loads(shown[1])
    # Further lines of a wrapped value are indented below its first line.
    lines = [line for line in shown[0].splitlines() if line.startswith("  ") and not line.startswith("   ")]
    assert len(lines) == sum(fact is not None for fact in facts.values())
    assert facts["hash"] == model.content_hash


def _run_command(command: click.Command, words: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        command.main(words, standalone_mode=False)
    assert not ORDERS.search(stream.getvalue())
    return stream.getvalue()


def _use_graph(graph: PolicyGraph) -> None:
    _ = graph.edge_array(), graph.content_hash


def _use_releases(path: Path) -> None:
    table = read_releases(path)
    json.dumps(list(table.rows()), allow_nan=False)
    summarise(table)
    FORMATS[".csv"].write(path.with_name("again.csv"), table)
    if path.suffix == ".csv":  # further uses of released files, independent of the format
        with _SUPPRESSED:
            show(path, path.with_name("again.html"), overwrite=True)
        with _SUPPRESSED:
            compute_release_leakage(seeds.make_model(), path, "a")
        list(replay(path, seeds.make_model(), "complete"))


def _use_basemap(path: Path) -> None:
    ground = read_basemap(path, (44.9, -30.1, 45.1, -29.9))
    build_web_map([], "a", basemap=ground)
    draw_basemap(create_figure()[1], ground, LocalProjection(45.0, -30.0))


def _use_session(path: Path) -> None:
    contents = export_sessions(path, path.with_name("again.jsonl"), overwrite=True)
    json.dumps([content.to_dict() for content in contents], allow_nan=False)


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _use_settings(path: Path) -> None:
    text = _read(path)
    settings = ReleaseSettings.from_json(text) if text.lstrip()[:1] in ("{", "[") else ReleaseSettings.from_toml(text)
    _ = settings.to_json(), settings.to_toml()


def _use_settings_file(path: Path) -> None:
    with release_command.make_context("release", ["--settings", str(path), "--model", "m.npz"]) as context:
        params = context.params
        build_settings({**params, "caps": build_caps(params)}, for_a_day=True).to_json()


def _use_landmarks(path: Path) -> None:
    with _SUPPRESSED:
        parse_landmarks(path, np.arange(5))
    parse_landmarks(path, np.datetime64("2024-03-07T09:00", "us") + np.arange(5) * np.timedelta64(1, "m"))


def _use_checksums(path: Path) -> None:
    """Refuse the checksums, or accept the present file: the address is not reachable."""
    (path.parent / "loc-gowalla_totalCheckins.txt.gz").write_bytes(b"")
    fetch_data("gowalla", path.parent, base_url="http://127.0.0.1:9", timeout_seconds=0.01)


def _use_split(path: Path) -> None:
    for name, data in seeds.make_seeds("split"):
        if name != path.name:
            (path.parent / name).write_bytes(data)
    Split.load(path.parent)


def _use_journal(path: Path) -> None:
    _ = [Published(path.parent, "csv").has(user) for user in ("a", "né")]
    (path.parent / "run.json").write_text('{"kind": "csv"}', encoding="utf-8")
    read_released(path.parent)


def _use_lines(path: Path) -> None:
    lines, answers = SimpleNamespace(buffer=io.BytesIO(path.read_bytes())), io.StringIO()
    engine = release_live(seeds.make_model(), ReleaseSettings(policy="complete"), max_requested_epsilon=1.0, rng=1)
    with mock.patch("sys.stdin", lines), contextlib.redirect_stdout(answers), engine as stream:
        answer_lines(stream)
    for line in answers.getvalue().splitlines():
        json.loads(line)


def _use_phone(path: Path) -> None:
    """Read the message of an app: JSON, or fields of a form."""
    name = path.name.removesuffix("_fields")
    getattr(incoming_messages, f"read_{name}")(path.read_bytes() if name == path.name else dict(parse_qsl(_read(path))))


def _use_checkpoint(path: Path) -> None:
    engine = seeds.make_capped_engine()
    engine.restore(path.read_bytes())
    engine.release(0)
    assert engine.checkpoint()


_TRACK_TARGETS = "csv", "csv-gz", "geojson", "parquet", "geoparquet", "gpx", "unnamed", "zip", "tar", "tracks", "fit"
_USES: Mapping[str, Callable[[Path], object]] = {
    **dict.fromkeys(_TRACK_TARGETS, _use_tracks),
    **{name: partial(_use_tracks, input_format=name) for name in ("owntracks", "geolife", "cabspotting", "checkins")},
    **dict.fromkeys(("recording", "recording-tracks", "recording-fit"), _use_recording),
    "hidden-places": lambda path: hide(seeds.RIDE, [seeds.HOME], session=path),
    "flows": FlowRows.read,
    "states": lambda path: (_use_table(path), Measurements(read_states(path, "kind")[1])),
    "edges": lambda path: _use_graph(build_policy_graph(("a", "b", "c"), read_edges(path))),
    "prior": lambda path: read_prior(path, ("a", "b", "c")),
    "secrets": lambda path: read_secrets(path, ["kind=x"]),
    "channel": lambda path: TableChannel.read(path, 3),
    "places": _use_places,
    "counts": _use_timed,
    "model": _use_model,
    "matrix": lambda path: LossFunction(read_matrix(path))(1.0),
    "budgets": read_budgets,
    "distribution": read_numbers,
    "layer": lambda path: _use_graph(PolicyGraph.from_groups(15, [*find_categories(path, seeds.make_grid()).values()])),
    "basemap": _use_basemap,
    "streets": read_street_map,
    "graph": lambda path: _use_graph(PolicyGraph.from_json(path, 15)),
    "priors": lambda path: read_priors(path, seeds.make_grid()),
    **{f"releases-{end}": _use_releases for end in seeds.ENDS},
    "session": _use_session,
    "belief": lambda path: Belief.from_bytes(path.read_bytes()).predict(seeds.make_model(), 2),
    "checkpoint": _use_checkpoint,
    "record": lambda path: ReleaseRecord.from_json(_read(path)).to_json(),
    "settings": _use_settings,
    "terms": lambda path: Terms.from_json(_read(path)).to_json(),
    "settings-file": _use_settings_file,
    "evaluation": load_config,
    "landmarks": _use_landmarks,
    "checksums": _use_checksums,
    "run": lambda path: Checkpoint.open(path.parent, {"seed": 1, "kind": "csv"}, resume=True).close(),
    "split": _use_split,
    "training-users": lambda path: find_training_users(path.with_name("m.npz"), seeds.make_model()),
    "journal": _use_journal,
    "steps": lambda path: StepTable.read([path]),
    "stream": _use_lines,
    "phone": _use_phone,
    "relay": RelayConfig.read,
    **{"csv-times": _use_zoned, "parquet-times": _use_zoned, "table-parquet": _use_table},
}
_SHARED_DOCUMENTS = {"recording": "gpx", "csv-times": "csv", "parquet-times": "parquet", "table-parquet": "parquet"}
_SHARED_DOCUMENTS |= {"recording-tracks": "tracks", "recording-fit": "fit", "distribution": "matrix"}
"""Target → another target, the documents of which it reads."""
TARGETS: Mapping[str, Target] = {  # reader → its target
    name: Target(partial(seeds.make_seeds, _SHARED_DOCUMENTS.get(name, name)), change_content, use)
    for name, use in _USES.items()
}


def list_targets() -> Mapping[str, Target]:
    """Return the readers and the commands of the package."""
    return {**TARGETS, **COMMANDS}
