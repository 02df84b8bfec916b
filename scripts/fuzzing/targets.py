"""Every reader of the package: valid small documents, how they are changed, and what is done with what was read."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import click
import numpy as np

from dphmm import PolicyGraph, ReleaseSettings, parse_policy, read
from dphmm.attack import TableChannel
from dphmm.audit.tables import edges_graph, read_edges, read_prior, read_secrets, read_states
from dphmm.cli.models import show as show_model
from dphmm.cli.release import answer_lines, load_job
from dphmm.evaluation.config import load_config
from dphmm.evaluation.run import StepTable
from dphmm.evaluation.split import Split
from dphmm.events import Clock, EventOdds, parse_event, read_priors
from dphmm.jobs import hide
from dphmm.jobs.counting import Counts
from dphmm.jobs.input_data import Data
from dphmm.jobs.landmarks import moments_of
from dphmm.jobs.leaks import leak_of_releases
from dphmm.jobs.models import load_model, people_seen
from dphmm.jobs.releases import live
from dphmm.jobs.run_folder import Checkpoint, Published
from dphmm.jobs.stored_releases import export_sessions, read_released, replay
from dphmm.leakage import LossFunction
from dphmm.leakage.loss_function import read_matrix, read_numbers
from dphmm.model.belief import Belief
from dphmm.plots.basemap import read_basemap
from dphmm.plots.figures import new_figure
from dphmm.plots.maps import draw_basemap
from dphmm.plots.releases import show
from dphmm.plots.webmap import web_map
from dphmm.policy.expression import canonical_policy
from dphmm.policy.zones import categories
from dphmm.readers import read_places
from dphmm.readers.fetch import fetch_data
from dphmm.readers.fixes import ReadOptions
from dphmm.readers.reading import read_recording
from dphmm.readers.table import ParquetFixes
from dphmm.release.record import ReleaseRecord
from dphmm.release.session_store import _digest
from dphmm.release.session_terms import Terms
from dphmm.serve import message_formats
from dphmm.serve.config import RelayConfig
from dphmm.space.states import LocalProjection
from dphmm.tables import Table, TimedTable, parse_time, write_csv
from dphmm.writers import read_releases, summarise
from dphmm.writers.flow_files import FlowRows
from dphmm.writers.formats import FORMATS
from dphmm.writers.recordings import write_recording
from scripts.fuzzing import nasty, seeds, values
from scripts.fuzzing.archives import of_gzip, of_tar, of_zip
from scripts.fuzzing.arrays import of_npy, of_npz
from scripts.fuzzing.attempt import Target
from scripts.fuzzing.databases import of_sqlite
from scripts.fuzzing.parquet import of_parquet


def mixed(*changes: Callable[[bytes, Random], bytes], raw: float = 0.2) -> Callable[[bytes, Random], bytes]:
    """One of several changes, or a change of bytes."""

    def change(data: bytes, rng: Random) -> bytes:
        return nasty.of_bytes(data, rng) if rng.random() < raw else rng.choice(changes)(data, rng)

    return change


FIELDS = mixed(nasty.of_fields)
JSON = mixed(nasty.of_json_text)


# ---- what is done with what was read -------------------------------------------------------------------------------


def _trajectories(path: Path, **options: Any) -> None:
    data = Data((path,), user_per_file=True, **options)
    people = data.read()
    assert people.fixes > 0
    space = seeds.grid()
    for one in people.trajectories:
        one.user.encode("utf-8")
        space.locate(one.latitude, one.longitude)
        one.resample(60.0)


def _zoned(path: Path) -> None:
    """Times that count milliseconds, or are in a zone whose clocks are put forward."""
    for options in ({"time_unit": "ms"}, {"time_zone": "America/New_York"}, {"time_unit": "ns", "time_zone": "+05:45"}):
        with contextlib.suppress(*seeds.REFUSED):
            read(path, **options)


def _by_people(path: Path) -> None:
    found = ParquetFixes(path, ReadOptions(skip_bad=True))
    if found.names_people:
        for part in found.by_people(2):
            assert part.points >= 0


def _skipping(path: Path) -> None:
    read(path, skip_bad=True)


def _recording(path: Path) -> None:
    recording = read_recording(path)
    for suffix in (".gpx", ".geojson", ".csv"):
        write_recording(path.with_name(f"again{suffix}"), recording, overwrite=True)


def _hidden_places(path: Path) -> None:
    hide(seeds.RIDE, [seeds.HOME], session=path)


def _table(path: Path) -> None:
    table = Table.read(path)
    for name in table.columns:
        with contextlib.suppress(*seeds.REFUSED):
            table.numbers(name)
        with contextlib.suppress(*seeds.REFUSED):
            table.times(name)
        table.texts(name)


def _timed(path: Path) -> None:
    table = TimedTable.read(path)
    table.write(path.with_name("again.csv"), overwrite=True)
    counts = Counts.read(path)
    for found in ("true", "scales"):
        with contextlib.suppress(*seeds.REFUSED):
            getattr(counts, found)


def _states(path: Path) -> None:
    names, values, _ = read_states(path, "kind")
    from dphmm import Measurements

    Measurements(values)
    write_csv(path.with_name("again.csv"), ["state"], ([name] for name in names))


def _table_or_archive(data: bytes, rng: Random) -> bytes:
    return (of_npz if data.startswith(b"PK") else FIELDS)(data, rng)


def _edges(path: Path) -> None:
    edges_graph(("a", "b", "c"), read_edges(path)).edge_array()


def _places(path: Path) -> None:
    places = read_places(path, 1.0)
    places.locate([45.0], [7.0])
    _ = places.content_hash


def _model(path: Path) -> None:
    model = load_model(path)
    _ = model.content_hash, model.structure, model.steppers
    model.space.latlon()
    model.space.locate([45.0], [-30.0])
    _ = model.space.content_hash
    for steps in (1, 3, 500):
        Belief.of(model.initial).predict(model, steps)
    PolicyGraph.transition(model.transition).edge_array()


def _extended(path: Path) -> None:
    model = load_model(path)
    if model.is_plain:  # its own target's
        return
    _ = model.content_hash, model.structure
    for steps in (1, 3, 300):
        model.operator(steps, 0).forward(model.first_logs(0))
    PolicyGraph.transition(model.structure).edge_array()


def _learned(path: Path) -> None:
    """What people see of how a model was learned: every line of it the command's own."""
    _model(path)
    shown = [_printed(show_model, [str(path), *more]) for more in ([], ["--json"])]
    facts = json.loads(shown[1])
    assert len(shown[0].splitlines()) == 1 + sum(fact is not None for fact in facts.values())
    assert facts["hash"] == load_model(path).content_hash


def _printed(command: click.Command, words: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        command.main(words, standalone_mode=False)
    said = stream.getvalue()
    assert not [one for one in said if one != "\n" and unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp")]
    assert not [one for one in said if unicodedata.bidirectional(one) in ("LRO", "RLO", "LRE", "RLE", "LRI", "RLI")]
    return said


def _matrix(path: Path) -> None:
    matrix = read_matrix(path)
    LossFunction(matrix)(1.0)


def _layer(path: Path) -> None:
    found = categories(path, seeds.grid())
    PolicyGraph.from_groups(seeds.grid().size, list(found.values())).edge_array()


def _graph(path: Path) -> None:
    graph = PolicyGraph.from_json(path, 15)
    _ = graph.edge_array(), graph.content_hash


def _policy(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    settings = ReleaseSettings(policy=text)
    canonical_policy(text)
    graph = parse_policy(text, seeds.grid(), seeds.model().transition)
    _ = graph.content_hash, settings.content_hash, settings.to_toml()


def _releases(path: Path) -> None:
    table = read_releases(path)
    rows = list(table.rows())
    json.dumps(rows, allow_nan=False)
    summarise(table)
    FORMATS[".csv"].write(path.with_name("again.csv"), table)


def _drawn(path: Path) -> None:
    show(path, path.with_name("again.html"), overwrite=True)


def _grounded(path: Path) -> None:
    found = read_basemap(path, (44.9, -30.1, 45.1, -29.9))
    web_map([], "a", basemap=found)
    draw_basemap(new_figure()[1], found, LocalProjection(45.0, -30.0))


def _leaked(path: Path) -> None:
    leak_of_releases(seeds.model(), path, "a")


def _replayed(path: Path) -> None:
    list(replay(path, seeds.model(), "complete"))


def _session(path: Path) -> None:
    for content in export_sessions(path, path.with_name("again.jsonl"), overwrite=True):
        json.dumps(content.facts(), allow_nan=False)


def _belief(path: Path) -> None:
    Belief.from_bytes(path.read_bytes()).predict(seeds.model(), 2)


def _text(use: Callable[[str], object]) -> Callable[[Path], object]:
    return lambda path: use(path.read_bytes().decode("utf-8", "surrogateescape"))


def _record(text: str) -> None:
    ReleaseRecord.from_json(text).to_json()


def _settings(text: str) -> None:
    made = ReleaseSettings.from_json(text) if text.lstrip()[:1] in ("{", "[") else ReleaseSettings.from_toml(text)
    _ = made.to_json(), made.to_toml()


def _event(text: str) -> None:
    event = parse_event(text)
    _ = str(event), event.canonical
    first = int(np.datetime64("2024-03-07T09:00", "m").astype(int))
    made = event.resolve(seeds.grid(), Clock(60.0, first))
    if made.last < 20_000:
        EventOdds(seeds.model().transition, seeds.model().initial, made)


def _terms(text: str) -> None:
    Terms.from_json(text).to_json()


def _job(path: Path) -> None:
    job = load_job(path, {})
    _ = job.people, job.limits, job.settings.to_json()


def _moments(path: Path) -> None:
    try:
        moments_of(path, np.arange(5))
    except seeds.REFUSED:
        moments_of(path, np.datetime64("2024-03-07T09:00", "us") + np.arange(5) * np.timedelta64(1, "m"))


def _checksums(path: Path) -> None:
    """Refused, downloaded from nowhere, or the file that is there: never the network."""
    (path.parent / "loc-gowalla_totalCheckins.txt.gz").write_bytes(b"")
    fetch_data("gowalla", path.parent, base_url="http://127.0.0.1:9", timeout_seconds=0.01)


def _checkpoint(path: Path) -> None:
    Checkpoint.open(path.parent, {"seed": 1, "kind": "csv"}, resume=True).close()


def _split(path: Path) -> None:
    for name, data in (*seeds.split(), *seeds.sequences()):
        if name != path.name:
            (path.parent / name).write_bytes(data)
    Split.load(path.parent)


def _people_seen(path: Path) -> None:
    people_seen(path.with_name("m.npz"), seeds.model())


def _journal(path: Path) -> None:
    published = Published(path.parent, "csv")
    for user in ("a", "né"):
        published.has(user)
    (path.parent / "run.json").write_text('{"kind": "csv"}', encoding="utf-8")
    read_released(path.parent)


def _steps(path: Path) -> None:
    StepTable.read([path])


def _lines(path: Path) -> None:
    kept = sys.stdin, sys.stdout
    sys.stdin, sys.stdout = SimpleNamespace(buffer=io.BytesIO(path.read_bytes())), io.StringIO()  # type: ignore[assignment]
    try:
        with live(seeds.model(), ReleaseSettings(policy="complete"), accept_epsilon=1.0, rng=1) as people:
            answer_lines(people)
        for line in sys.stdout.getvalue().splitlines():
            json.loads(line)
    finally:
        sys.stdin, sys.stdout = kept


_OF_BODIES = {
    "home_assistant": message_formats.read_home_assistant,
    "overland": message_formats.read_overland,
    "owntracks": message_formats.read_owntracks,
    "plain": message_formats.read_plain,
    "traccar": message_formats.read_traccar,
}
_OF_FIELDS = {"gpslogger_fields": message_formats.read_gpslogger, "traccar_fields": message_formats.read_osmand}


def _phone(path: Path) -> None:
    body = path.read_bytes()
    if path.name in _OF_FIELDS:
        _OF_FIELDS[path.name](dict(parse_qsl(body.decode("utf-8", "surrogateescape"))))
    else:
        _OF_BODIES[path.name](body)


def _time(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_time(text)


# ---- what stands in the cells of databases -------------------------------------------------------------------------


def _cell(cell: Any, rng: Random) -> Any:
    """Another cell: its text changed as JSON, or a value of any type."""
    if isinstance(cell, str) and cell[:1] == "{" and rng.random() < 0.8:
        return nasty.of_json_text(cell.encode(), rng).decode("utf-8", "replace")
    if isinstance(cell, bytes) and rng.random() < 0.6:
        return nasty.of_bytes(cell, rng)
    choice = rng.randrange(6)
    if choice < 2:
        return rng.choice([number for number in values.INTEGERS if -(2**63) <= number < 2**63])
    if choice == 2:
        return rng.choice(values.FLOATS)
    if choice == 3:
        return None
    said = values.text(rng).encode("utf-8", "replace")
    return said if choice == 4 else said.decode()


def _signed(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of a file of sessions with the digest that it should have, as far as it does not hang on another row."""
    if table == "session" and len(row) == 5:
        return (*row[:4], _digest(*row[:4]))
    if table == "progress":
        return (*row[:-1], _digest(*row[:-1]))
    if table == "record" and len(row) == 6 and row[1] == 0:
        session, number, slot, query, body = row[:5]
        return (*row[:5], _digest(b"", session, number, slot, query, body))
    return row


def _unsigned(_: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row


def _about(said: str, rng: Random) -> str:
    return nasty.of_json_text(said.encode(), rng).decode("utf-8", "replace")


def _of_learned(said: str, rng: Random) -> str:
    """Another answer to how a model was learned, or anything else of what it says of itself."""
    try:
        about = json.loads(said)
    except ValueError:  # one that was changed before
        return _about(said, rng)
    if rng.random() < 0.2 or not isinstance(about, dict) or "learned" not in about:
        return _about(said, rng)
    return nasty.written(about | {"learned": nasty.of_json(about["learned"], rng)})


def _npz_text(change: Callable[[str, Random], str]) -> Callable[[bytes, Random], bytes]:
    """Model files of which mostly the text is changed."""

    def changed(data: bytes, rng: Random) -> bytes:
        if rng.random() < 0.3:
            return of_npz(data, rng, text=change)
        arrays = dict(np.load(io.BytesIO(data)))
        arrays["about"] = np.array(
            change(arrays["about"].item(), rng).encode("utf-8", "replace").decode("utf-8", "replace")
        )
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()

    return changed


_PACKED = partial(of_zip, change=FIELDS)
_TARRED = partial(of_tar, change=FIELDS)
_CHECKINS = mixed(partial(nasty.of_fields, delimiter="\t"))

TARGETS: Mapping[str, Target] = {
    "csv": Target(seeds.csv, FIELDS, _trajectories),
    "csv-skip-bad": Target(seeds.csv, FIELDS, _skipping),
    "csv-gz": Target(seeds.csv_gz, partial(of_gzip, change=FIELDS), _trajectories),
    "csv-times": Target(seeds.csv, FIELDS, _zoned),
    "geojson": Target(seeds.geojson, JSON, _trajectories),
    "parquet": Target(seeds.parquet, of_parquet, _trajectories),
    "parquet-by-people": Target(seeds.parquet, of_parquet, _by_people),
    "parquet-times": Target(seeds.parquet, of_parquet, _zoned),
    "geoparquet": Target(seeds.geoparquet, of_parquet, _trajectories),
    "gpx": Target(seeds.gpx, mixed(nasty.of_xml), _trajectories),
    "recording": Target(seeds.gpx, mixed(nasty.of_xml), _recording),
    "hidden-places": Target(seeds.hidden_places, JSON, _hidden_places),
    "flows-json": Target(partial(seeds.flows, ".json"), JSON, FlowRows.read),
    "flows-parquet": Target(partial(seeds.flows, ".parquet"), of_parquet, FlowRows.read),
    "owntracks": Target(seeds.owntracks, mixed(nasty.of_json_lines), _trajectories),
    "geolife": Target(seeds.geolife, mixed(nasty.of_fields), partial(_trajectories, format="geolife")),
    "cabspotting": Target(
        seeds.cabs, mixed(partial(nasty.of_fields, delimiter=" ")), partial(_trajectories, format="cabspotting")
    ),
    "checkins": Target(seeds.checkins, _CHECKINS, partial(_trajectories, format="checkins")),
    "unnamed": Target(seeds.unnamed, mixed(nasty.of_fields, nasty.of_json_lines, nasty.of_xml), _trajectories),
    "zip": Target(seeds.zipped, _PACKED, _trajectories),
    "tar": Target(seeds.tarred, _TARRED, _trajectories),
    "table": Target(seeds.states, FIELDS, _table),
    "table-parquet": Target(seeds.parquet, of_parquet, _table),
    "states": Target(seeds.states, FIELDS, _states),
    "edges": Target(seeds.edges, FIELDS, _edges),
    "prior": Target(seeds.prior, FIELDS, lambda path: read_prior(path, ("a", "b", "c"))),
    "secrets": Target(seeds.secrets, FIELDS, lambda path: read_secrets(path, ["kind=x"])),
    "channel": Target(seeds.channel, _table_or_archive, lambda path: TableChannel.read(path, 3)),
    "places": Target(seeds.places, FIELDS, _places),
    "counts": Target(seeds.counts, FIELDS, _timed),
    "counts-parquet": Target(seeds.counts_parquet, of_parquet, _timed),
    "model": Target(seeds.models, partial(of_npz, text=_about), _model),
    "model-extended": Target(seeds.extended_models, partial(of_npz, text=_about), _extended),
    "model-learned": Target(seeds.learned_models, _npz_text(_of_learned), _learned),
    "matrix-csv": Target(seeds.matrix_csv, FIELDS, _matrix),
    "matrix-npy": Target(seeds.matrix_npy, of_npy, _matrix),
    "matrix-npz": Target(seeds.matrix_npz, of_npz, _matrix),
    "budgets": Target(seeds.budgets, seeds.by_name(FIELDS, of_npz), read_numbers),
    "layer": Target(seeds.layer, JSON, _layer),
    "layer-kml": Target(seeds.layer_kml, mixed(nasty.of_xml), _layer),
    "layer-gpkg": Target(seeds.layer_gpkg, partial(of_sqlite, cell=_cell, sign=_unsigned), _layer),
    "layer-fgb": Target(seeds.layer_fgb, nasty.of_bytes, _layer),
    "basemap": Target(seeds.basemap, JSON, _grounded),
    "basemap-gpkg": Target(seeds.layer_gpkg, partial(of_sqlite, cell=_cell, sign=_unsigned), _grounded),
    "basemap-pbf": Target(seeds.extract, nasty.of_bytes, _grounded),
    "graph": Target(seeds.graph, JSON, _graph),
    "event": Target(seeds.events, mixed(seeds.of_event), _text(_event)),
    "priors": Target(seeds.priors, FIELDS, lambda path: read_priors(path, seeds.grid())),
    "policy": Target(seeds.policies, mixed(seeds.of_policy), _policy),
    "releases-csv": Target(partial(seeds.released, ".csv"), FIELDS, _releases),
    "releases-geojson": Target(partial(seeds.released, ".geojson"), JSON, _releases),
    "releases-gpx": Target(partial(seeds.released, ".gpx"), mixed(nasty.of_xml), _releases),
    "releases-gpkg": Target(
        partial(seeds.released, ".gpkg"), partial(of_sqlite, cell=_cell, sign=_unsigned, only="estimates"), _releases
    ),
    "releases-parquet": Target(partial(seeds.released, ".parquet"), of_parquet, _releases),
    "map": Target(partial(seeds.released, ".csv"), FIELDS, _drawn),
    "leak": Target(partial(seeds.released, ".csv"), FIELDS, _leaked),
    "replay": Target(partial(seeds.released, ".csv"), FIELDS, _replayed),
    "session": Target(seeds.session, partial(of_sqlite, cell=_cell, sign=_signed), _session),
    "belief": Target(seeds.belief, nasty.of_bytes, _belief),
    "record": Target(seeds.record, JSON, _text(_record)),
    "settings": Target(seeds.settings, seeds.by_name(JSON, mixed(nasty.of_toml)), _text(_settings)),
    "terms": Target(seeds.terms, JSON, _text(_terms)),
    "job": Target(seeds.job, mixed(nasty.of_toml), _job),
    "evaluation": Target(seeds.evaluation, mixed(nasty.of_toml), load_config),
    "landmarks": Target(seeds.landmarks, mixed(nasty.of_fields), _moments),
    "checksums": Target(seeds.checksums, mixed(partial(nasty.of_fields, delimiter=" ")), _checksums),
    "run": Target(seeds.run, JSON, _checkpoint),
    "split": Target(seeds.split, JSON, _split),
    "sequences": Target(seeds.sequences, of_npz, _split),
    "people-seen": Target(seeds.people_seen, JSON, _people_seen),
    "journal": Target(seeds.journal, mixed(nasty.of_json_lines), _journal),
    "steps": Target(seeds.steps, of_parquet, _steps),
    "stream": Target(seeds.lines, mixed(nasty.of_json_lines), _lines),
    "phone": Target(seeds.phones, seeds.by_name(JSON, mixed(partial(nasty.of_fields, delimiter="&"))), _phone),
    "relay": Target(seeds.relay, mixed(nasty.of_toml), RelayConfig.read),
    "time": Target(seeds.time, seeds.of_time, _text(_time)),
}
"""Reader → how it is attacked."""
