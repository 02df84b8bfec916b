"""Jobs take a networkx graph as a policy, and do what they do under the text that describes the same graph."""

from __future__ import annotations

import csv
import json
import tomllib
from itertools import combinations
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import PolicyGraph, ReleaseSettings, Schedule
from dphmm.cli import main
from dphmm.errors import ConfigurationError, DphmmError, PolicyError
from dphmm.evaluation import compare_noise
from dphmm.jobs import (
    Data,
    Subject,
    audit_event,
    audit_identity,
    audit_mechanism,
    audit_policy,
    audit_session,
    batch,
    calibrate,
    certify,
    realised_of_releases,
    release,
    replay,
)
from dphmm.jobs.calibrations import Targets
from dphmm.plots import report, show
from dphmm.serve.setup import write_relay
from tests.certificate.certificates import refusal, town, verifier

TOWN = town()
POINTS = TOWN.space.points
SIZE = TOWN.size
TEXT = "centres:0.8km"
EDGES = [pair for pair in combinations(range(SIZE), 2) if np.linalg.norm(POINTS[pair[0]] - POINTS[pair[1]]) <= 0.8]
GRAPH = nx.Graph(EDGES[::-1])
SETTINGS = ReleaseSettings(GRAPH, 1.0)
BY_TEXT = ReleaseSettings(TEXT, 1.0)
OTHER = nx.Graph([*EDGES, (0, SIZE - 1)])
HASHES = {"settings"}


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> tuple[Path, Path]:
    """The model of a town and the tracks of two people in it."""
    folder = tmp_path_factory.mktemp("people")
    TOWN.save(folder / "model.npz")
    places = TOWN.space.latlon()
    rows = ["user,time,latitude,longitude"]
    for user, path in (("ann", [0, 1, 2, 7, 7, 8]), ("bob", [5, 5, 6, 6, 11, 11])):
        for number, state in enumerate(path):
            latitude, longitude = places[state]
            rows.append(f"{user},2024-03-07T08:{5 * number:02d}:00Z,{latitude},{longitude}")
    (folder / "people.csv").write_text("\n".join(rows) + "\n")
    return folder / "model.npz", folder / "people.csv"


@pytest.fixture(scope="module")
def released(people, tmp_path_factory) -> dict[str, Path]:
    """The releases of both people under the graph, and under the text."""
    model, data = people
    folder = tmp_path_factory.mktemp("released")
    for name, settings in (("graph", SETTINGS), ("text", BY_TEXT)):
        release(data, model, settings, folder / f"{name}.csv", rng=1, allow_own_model=True)
    return {name: folder / f"{name}.csv" for name in ("graph", "text")}


def rows(path: Path) -> list[dict]:
    """The rows of releases, but the hash of the settings, which tells a graph from a text."""
    with path.open(newline="") as file:
        return [{name: value for name, value in row.items() if name not in HASHES} for row in csv.DictReader(file)]


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_release_equals_release_under_text(released):
    assert len(rows(released["graph"])) == 12
    assert rows(released["graph"]) == rows(released["text"])


def test_release_summary_states_that_the_policy_is_a_graph(people, tmp_path):
    model, data = people
    found = release(data, model, SETTINGS, rng=1, allow_own_model=True).facts()
    assert found["joined_places"] == "places that the graph joins"
    assert found["states_the_policy_joins_to_none"] is None


@pytest.mark.parametrize("changes", [{"calibration": "component"}, {"schedule": Schedule(0.9)}, {"delta": 0.05}])
def test_settings_combine_with_graph(people, tmp_path, changes):
    model, data = people
    for name, policy in (("graph", GRAPH), ("text", TEXT)):
        settings = ReleaseSettings(policy, 1.0, **changes)
        release(data, model, settings, tmp_path / f"{name}.csv", rng=1, allow_own_model=True)
    assert rows(tmp_path / "graph.csv") == rows(tmp_path / "text.csv")


@pytest.mark.parametrize("workers", [1, 2])
def test_batch_with_graph_does_not_depend_on_workers(people, released, tmp_path, workers):
    model, data = people
    how = {"kind": "csv", "seed": 3, "allow_own_model": True}
    for name, settings, count in (("one", SETTINGS, 1), ("several", SETTINGS, workers), ("text", BY_TEXT, workers)):
        batch(Data((str(data),)), tmp_path / name, model, settings, **how, workers=count)
    files = [path.relative_to(tmp_path / "one") for path in sorted((tmp_path / "one").glob("??/*.csv"))]
    assert len(files) == 2
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "several" / file).read_bytes()
        assert rows(tmp_path / "one" / file) == rows(tmp_path / "text" / file)


def test_batch_resumes_under_equal_graph_only(people, tmp_path):
    model, data = people
    how = {"kind": "csv", "seed": 3, "allow_own_model": True}
    batch(Data((str(data),), users=("ann",)), tmp_path / "b", model, SETTINGS, **how)
    again = ReleaseSettings(nx.Graph([edge[::-1] for edge in EDGES]), 1.0)
    batch(Data((str(data),), users=("ann",)), tmp_path / "b", model, again, **how, resume=True)
    with pytest.raises(DphmmError, match="settings"):
        batch(
            Data((str(data),), users=("ann",)), tmp_path / "b", model, ReleaseSettings(OTHER, 1.0), **how, resume=True
        )
    page = show(tmp_path / "b", tmp_path / "b.html", model=model)
    assert "graph of" in page.read_text()
    assert "graph:{" not in page.read_text()


@pytest.mark.parametrize("given", [GRAPH, SETTINGS, PolicyGraph.from_edges(SIZE, EDGES)], ids=["nx", "settings", "own"])
def test_certificate_of_graph_is_verified(people, released, tmp_path, given):
    model, _ = people
    certify(released["graph"], model, tmp_path / "proof.jsonl", given)
    lines = lines_of(tmp_path / "proof.jsonl")
    table = verifier().read_rows(str(released["graph"]))
    assert refusal(lines, table) is None
    report = verifier().verify_releases(
        [json.dumps(line, sort_keys=True, separators=(",", ":")).encode() + b"\n" for line in lines], table
    )
    assert any("graph:" in text for text in report["not"]), "which edges a graph has, its hash alone does not say"
    (part,) = [line["value"] for line in lines if line.get("value", {}).get("is") == "policy"]
    listed = [tuple(pair) for term in part["terms"] for pair in term["pairs"]]
    assert sorted(listed) == sorted(EDGES)
    broken = json.loads(json.dumps(lines))
    for line in broken:
        if line.get("value", {}).get("is") == "policy":
            line["value"]["terms"][0]["pairs"].pop()
    assert refusal(broken, table) is not None
    with pytest.raises(ConfigurationError, match="was released with settings"):
        certify(released["graph"], model, tmp_path / "other.jsonl", OTHER)


def test_session_with_graph_is_replayed_and_certified(people, released, tmp_path):
    model, data = people
    release(data, model, SETTINGS, session=tmp_path / "s.db", rng=1, allow_own_model=True)
    for given in (None, GRAPH, SETTINGS):
        found = list(replay(tmp_path / "s.db", model, given))
        assert [len(one.sequence) for one in found] == [6, 6]
        assert found[0].engine.settings == SETTINGS
    with pytest.raises(DphmmError, match="policy"):
        list(replay(tmp_path / "s.db", model, OTHER))
    certify(tmp_path / "s.db", model, tmp_path / "proof.jsonl")
    assert refusal(lines_of(tmp_path / "proof.jsonl")) is None


def test_release_audits_take_graph(people, released):
    model, data = people
    found = [audit_session(released[name], model, given) for name, given in (("graph", GRAPH), ("text", TEXT))]
    assert found[0].facts() == found[1].facts()
    events = [
        audit_event(released[name], model, "state:7 between 0 and 3", given)
        for name, given in (("graph", GRAPH), ("text", TEXT))
    ]
    assert events[0].facts() == events[1].facts()
    earlier = data.with_name("earlier.csv")
    earlier.write_text(data.read_text().replace("2024-03-07", "2024-03-06"))
    who = [audit_identity(released[name], model, earlier, given) for name, given in (("graph", GRAPH), ("text", TEXT))]
    assert who[0].facts() == who[1].facts()
    told = [
        realised_of_releases(model, released[name], given, "ann") for name, given in (("graph", GRAPH), ("text", TEXT))
    ]
    np.testing.assert_array_equal(told[0].moved, told[1].moved)
    with pytest.raises(ConfigurationError, match="was released with settings"):
        audit_session(released["graph"], model, OTHER)
    for wrong, message in ((nx.DiGraph(EDGES), "got a DiGraph"), (nx.MultiGraph(EDGES), "got a MultiGraph")):
        with pytest.raises(PolicyError, match=message):
            audit_session(released["graph"], model, wrong)


def test_policy_audits_take_graph():
    names = tuple(str(state) for state in range(SIZE))
    subjects = [
        Subject.from_model(TOWN, TEXT),
        Subject.from_model(TOWN, GRAPH),
        Subject.from_model(TOWN, PolicyGraph.from_edges(SIZE, EDGES)),
        Subject(names, TOWN.space.measurements(), GRAPH, TOWN),
        Subject(names, TOWN.space.measurements(), nx.relabel_nodes(GRAPH, dict(enumerate(names))), TOWN),
    ]
    possible = ("0", "1", "8", "19", "29")
    found = [audit_policy(subject, [subject.possible(possible)]).facts() for subject in subjects]
    assert all(one == found[0] for one in found)
    pairs = [audit_mechanism(subject, samples=2000, pairs=2, rng=1).facts() for subject in subjects]
    assert all(one == pairs[0] for one in pairs)
    with pytest.raises(PolicyError, match="policy must have nodes that are among the 30 states 0 to 29, got node 30"):
        Subject.from_model(TOWN, nx.Graph([(0, 30)]))
    with pytest.raises(PolicyError, match=r"policy is 3; give a text or a PolicyGraph or a networkx\.Graph"):
        Subject.from_model(TOWN, 3)


def test_calibration_and_noise_comparison_take_graph(people):
    model, _ = people
    found = [
        calibrate(model, settings, Targets(odds=3.0), people=0, over_seconds=600) for settings in (SETTINGS, BY_TEXT)
    ]
    assert found[0].settings.epsilon == found[1].settings.epsilon
    assert ReleaseSettings.from_json(found[0].settings.to_json()) == found[0].settings
    noises = [compare_noise(TOWN, settings, [[0, 1, 7]]) for settings in (SETTINGS, BY_TEXT)]
    assert repr(noises[0]) == repr(noises[1])


def test_map_and_report_take_graph(people, released, tmp_path):
    model, _ = people
    page = report(released["graph"], tmp_path / "report.html", model, GRAPH, rng=1).read_text()
    assert f"graph of {len(EDGES)} edges: hides between places that the graph joins" in page
    assert "graph:{" not in page
    drawn = show(released["graph"], tmp_path / "map.html", model=model, policy=GRAPH).read_text()
    by_text = show(released["text"], tmp_path / "text.html", model=model, policy=TEXT).read_text()
    assert "A release hides between places that the graph joins." in drawn
    assert len(drawn) > len(by_text) - 200


def test_relay_file_is_written_with_graph(people, tmp_path):
    model, _ = people
    lines = write_relay(tmp_path / "relay.toml", model, ["ann"], GRAPH)
    assert any(f"that 'graph of {len(EDGES)} edges' joins to it" in line for line in lines)
    policy = tomllib.loads((tmp_path / "relay.toml").read_text())["release"]["policy"]
    assert ReleaseSettings(policy).content_hash == ReleaseSettings(GRAPH).content_hash


def test_commands_take_graph_text(people, tmp_path, monkeypatch):
    model, data = people
    monkeypatch.chdir(tmp_path)
    args = ["release", str(data), "--model", str(model), "--policy", SETTINGS.policy, "--epsilon", "1", "--seed", "1"]
    result = CliRunner().invoke(main, [*args, "--allow-own-model", "-o", "r.csv"])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(
        main, ["certify", "r.csv", "--model", str(model), "--policy", SETTINGS.policy, "-o", "p.jsonl"]
    )
    assert result.exit_code == 0, result.output
    refused = CliRunner().invoke(main, [*args[:-6], "--policy", "graph:{]", "--epsilon", "1", "-o", "x.csv"])
    assert refused.exit_code == 2
    assert "must contain node-link JSON" in refused.output
