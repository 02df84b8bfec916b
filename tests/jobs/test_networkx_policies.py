"""Tests of networkx graphs as policies: jobs behave as with the equivalent policy text."""

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
    AuditTarget,
    Data,
    audit_event,
    audit_identity,
    audit_mechanism,
    audit_policy,
    audit_session,
    batch,
    calibrate,
    certify,
    realized_leakage,
    release,
    replay,
)
from dphmm.jobs.calibrate.results import CalibrationTargets
from dphmm.plots import report, show
from dphmm.serve.setup import write_relay
from tests import command_line
from tests.certificate.certificates import build_town, find_refusal, load_verifier

TOWN = build_town()
POINTS = TOWN.space.points
SIZE = TOWN.size
TEXT = "centres:0.8km"
EDGES = [pair for pair in combinations(range(SIZE), 2) if np.linalg.norm(POINTS[pair[0]] - POINTS[pair[1]]) <= 0.8]
GRAPH = nx.Graph(EDGES[::-1])
SETTINGS = ReleaseSettings(GRAPH, 1.0)
BY_TEXT = ReleaseSettings(TEXT, 1.0)
OTHER = nx.Graph([*EDGES, (0, SIZE - 1)])
HASHES = {"settings_hash"}


@pytest.fixture(scope="module")
def model_and_data(tmp_path_factory) -> tuple[Path, Path]:
    """Return a town's model and the tracks of two users."""
    folder = tmp_path_factory.mktemp("model_and_data")
    TOWN.save(folder / "model.npz")
    places = TOWN.space.latlon()
    rows = ["user,time,latitude,longitude"]
    for user, path in (("ann", [0, 1, 2, 7, 7, 8]), ("bob", [5, 5, 6, 6, 11, 11])):
        for number, state in enumerate(path):
            latitude, longitude = places[state]
            rows.append(f"{user},2024-03-07T08:{5 * number:02d}:00Z,{latitude},{longitude}")
    (folder / "users.csv").write_text("\n".join(rows) + "\n")
    return folder / "model.npz", folder / "users.csv"


@pytest.fixture(scope="module")
def release_files(model_and_data, tmp_path_factory) -> dict[str, Path]:
    """Return the releases of both users under the graph and under the text."""
    model, data = model_and_data
    folder = tmp_path_factory.mktemp("released")
    for name, settings in (("graph", SETTINGS), ("text", BY_TEXT)):
        release(data, model, settings, folder / f"{name}.csv", rng=1, allow_training_users=True)
    return {name: folder / f"{name}.csv" for name in ("graph", "text")}


def read_rows(path: Path) -> list[dict]:
    """Return the rows of releases without the settings hash, which differs for graph and text."""
    with path.open(newline="") as file:
        return [{name: value for name, value in row.items() if name not in HASHES} for row in csv.DictReader(file)]


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_release_equals_release_under_text(release_files):
    assert len(read_rows(release_files["graph"])) == 12
    assert read_rows(release_files["graph"]) == read_rows(release_files["text"])


def test_release_summary_states_that_the_policy_is_a_graph(model_and_data, tmp_path):
    model, data = model_and_data
    summary = release(data, model, SETTINGS, rng=1, allow_training_users=True).to_dict()
    assert summary["policy_description"] == "locations that the graph connects"
    assert summary["isolated_states"] is None


@pytest.mark.parametrize(
    "changes",
    [{"noise_scope": "component"}, {"schedule": Schedule(0.9)}, {"delta": 0.05}],
    ids=["noise scope", "schedule", "delta"],
)
def test_settings_combine_with_graph(model_and_data, tmp_path, changes):
    model, data = model_and_data
    for name, policy in (("graph", GRAPH), ("text", TEXT)):
        settings = ReleaseSettings(policy, 1.0, **changes)
        release(data, model, settings, tmp_path / f"{name}.csv", rng=1, allow_training_users=True)
    assert read_rows(tmp_path / "graph.csv") == read_rows(tmp_path / "text.csv")


@pytest.mark.slow
def test_batch_with_graph_does_not_depend_on_workers(model_and_data, release_files, tmp_path):
    model, data = model_and_data
    how = {"kind": "csv", "rng": 3, "allow_training_users": True}
    for name, settings, count in (("one", SETTINGS, 1), ("several", SETTINGS, 2), ("text", BY_TEXT, 1)):
        batch(Data((str(data),)), tmp_path / name, model, settings, **how, workers=count)
    files = [path.relative_to(tmp_path / "one") for path in sorted((tmp_path / "one").glob("??/*.csv"))]
    assert len(files) == 2
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "several" / file).read_bytes()
        assert read_rows(tmp_path / "one" / file) == read_rows(tmp_path / "text" / file)


def test_batch_resumes_under_equal_graph_only(model_and_data, tmp_path):
    model, data = model_and_data
    how = {"kind": "csv", "rng": 3, "allow_training_users": True, "workers": 1}
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


@pytest.mark.parametrize(
    "policy", [GRAPH, SETTINGS, PolicyGraph.from_edges(SIZE, EDGES)], ids=["nx", "settings", "own"]
)
def test_certificate_of_graph_is_verified(model_and_data, release_files, tmp_path, policy):
    model, _ = model_and_data
    certify(release_files["graph"], model, tmp_path / "proof.jsonl", policy)
    lines = read_lines(tmp_path / "proof.jsonl")
    table = load_verifier().read_rows(str(release_files["graph"]))
    assert find_refusal(lines, table) is None
    report = load_verifier().verify_releases(
        [json.dumps(line, sort_keys=True, separators=(",", ":")).encode() + b"\n" for line in lines], table
    )
    assert any("graph:" in text for text in report["not"]), "the hash alone does not state the edges of the graph"
    (part,) = [line["value"] for line in lines if line.get("value", {}).get("is") == "policy"]
    listed = [tuple(pair) for term in part["terms"] for pair in term["pairs"]]
    assert sorted(listed) == sorted(EDGES)
    broken = json.loads(json.dumps(lines))
    for line in broken:
        if line.get("value", {}).get("is") == "policy":
            line["value"]["terms"][0]["pairs"].pop()
    assert find_refusal(broken, table) is not None
    with pytest.raises(ConfigurationError, match="settings"):
        certify(release_files["graph"], model, tmp_path / "other.jsonl", OTHER)


def test_session_with_graph_is_replayed_and_certified(model_and_data, release_files, tmp_path):
    model, data = model_and_data
    release(data, model, SETTINGS, session=tmp_path / "s.db", rng=1, allow_training_users=True)
    for policy in (None, GRAPH, SETTINGS):
        replayed = list(replay(tmp_path / "s.db", model, policy))
        assert [len(sequence_replay.sequence) for sequence_replay in replayed] == [6, 6]
        assert replayed[0].engine.settings == SETTINGS
    with pytest.raises(DphmmError, match="policy"):
        list(replay(tmp_path / "s.db", model, OTHER))
    certify(tmp_path / "s.db", model, tmp_path / "proof.jsonl")
    assert find_refusal(read_lines(tmp_path / "proof.jsonl")) is None


@pytest.mark.slow
def test_release_audits_take_graph(model_and_data, release_files):
    model, data = model_and_data
    audits = [audit_session(release_files[name], model, policy) for name, policy in (("graph", GRAPH), ("text", TEXT))]
    assert audits[0].to_dict() == audits[1].to_dict()
    events = [
        audit_event(release_files[name], model, "state:7 between 0 and 3", policy)
        for name, policy in (("graph", GRAPH), ("text", TEXT))
    ]
    assert events[0].to_dict() == events[1].to_dict()
    earlier = data.with_name("earlier.csv")
    earlier.write_text(data.read_text().replace("2024-03-07", "2024-03-06"))
    identities = [
        audit_identity(release_files[name], model, earlier, policy)
        for name, policy in (("graph", GRAPH), ("text", TEXT))
    ]
    assert identities[0].to_dict() == identities[1].to_dict()
    leakages = [
        realized_leakage(model, release_files[name], policy, "ann")
        for name, policy in (("graph", GRAPH), ("text", TEXT))
    ]
    np.testing.assert_array_equal(leakages[0].release_log_odds, leakages[1].release_log_odds)
    with pytest.raises(ConfigurationError, match="settings"):
        audit_session(release_files["graph"], model, OTHER)
    for wrong, message in ((nx.DiGraph(EDGES), "got a DiGraph"), (nx.MultiGraph(EDGES), "got a MultiGraph")):
        with pytest.raises(PolicyError, match=message):
            audit_session(release_files["graph"], model, wrong)


@pytest.mark.slow
def test_policy_audits_take_graph():
    names = tuple(str(state) for state in range(SIZE))
    subjects = [
        AuditTarget.from_model(TOWN, TEXT),
        AuditTarget.from_model(TOWN, GRAPH),
        AuditTarget.from_model(TOWN, PolicyGraph.from_edges(SIZE, EDGES)),
        AuditTarget(names, TOWN.space.measurements(), GRAPH, TOWN),
        AuditTarget(names, TOWN.space.measurements(), nx.relabel_nodes(GRAPH, dict(enumerate(names))), TOWN),
    ]
    possible = ("0", "1", "8", "19", "29")
    audits = [audit_policy(subject, [subject.constrain_to(possible)]).to_dict() for subject in subjects]
    assert all(audit == audits[0] for audit in audits)
    pairs = [audit_mechanism(subject, samples=2000, pairs=2, rng=1).to_dict() for subject in subjects]
    assert all(pair == pairs[0] for pair in pairs)
    with pytest.raises(PolicyError, match=r"policy .*node 30"):
        AuditTarget.from_model(TOWN, nx.Graph([(0, 30)]))
    with pytest.raises(PolicyError, match=r"policy must be a string or a PolicyGraph or a networkx\.Graph"):
        AuditTarget.from_model(TOWN, 3)


@pytest.mark.slow
def test_calibration_and_noise_comparison_take_graph(model_and_data):
    model, _ = model_and_data
    calibrations = [
        calibrate(model, settings, CalibrationTargets(max_odds_ratio=3.0), num_users=0, horizon_seconds=600)
        for settings in (SETTINGS, BY_TEXT)
    ]
    assert calibrations[0].settings.epsilon == calibrations[1].settings.epsilon
    assert ReleaseSettings.from_json(calibrations[0].settings.to_json()) == calibrations[0].settings
    noises = [compare_noise(TOWN, settings, [[0, 1, 7]]) for settings in (SETTINGS, BY_TEXT)]
    assert repr(noises[0]) == repr(noises[1])


@pytest.mark.slow
def test_map_and_report_take_graph(model_and_data, release_files, tmp_path):
    model, _ = model_and_data
    page = report(release_files["graph"], tmp_path / "report.html", model, GRAPH, rng=1).read_text()
    assert f"graph of {len(EDGES)} edges: connects locations that the graph connects" in page
    assert "graph:{" not in page
    map_page = show(release_files["graph"], tmp_path / "map.html", model=model, policy=GRAPH).read_text()
    by_text = show(release_files["text"], tmp_path / "text.html", model=model, policy=TEXT).read_text()
    assert "The policy connects locations that the graph connects." in map_page
    assert len(map_page) > len(by_text) - 200


@pytest.mark.slow
def test_relay_file_is_written_with_graph(model_and_data, tmp_path, monkeypatch):
    model, _ = model_and_data
    monkeypatch.setattr("dphmm.serve.setup._MAX_USERS", 1)
    lines = write_relay(tmp_path / "relay.toml", model, ["ann"], GRAPH)
    assert f"that the policy 'graph of {len(EDGES)} edges' connects at every timestep" in " ".join(lines)
    policy = tomllib.loads((tmp_path / "relay.toml").read_text())["release"]["policy"]
    assert ReleaseSettings(policy).content_hash == ReleaseSettings(GRAPH).content_hash


def test_commands_take_graph_text(model_and_data, tmp_path, monkeypatch):
    model, data = model_and_data
    monkeypatch.chdir(tmp_path)
    args = ["release", str(data), "--model", str(model), "--policy", SETTINGS.policy, "--epsilon", "1", "--seed", "1"]
    result = command_line.run(*args, {"allow_training_users": True}, "-o", "r.csv")
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(
        main, ["certify", "r.csv", "--model", str(model), "--policy", SETTINGS.policy, "-o", "p.jsonl"]
    )
    assert result.exit_code == 0, result.output
    refused = command_line.run(*args[:-6], "--policy", "graph:{]", "--epsilon", "1", "-o", "x.csv")
    assert refused.exit_code == 2
    assert "must contain node-link JSON" in refused.output
