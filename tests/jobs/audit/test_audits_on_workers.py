"""Audits of a batch on workers: figures equal those of one process."""

from __future__ import annotations

import json
import shutil
from importlib import import_module

import numpy as np
import pytest

from dphmm import ReleaseSettings
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs import Adversaries, UsesSettings, audit_event, audit_identity, audit_session, audit_utility, batch
from dphmm.jobs.audit.session import ReplayTask
from dphmm.jobs.batch.workers import DaskCluster, Processes
from tests import command_line
from tests.jobs.audit.test_identity import DAY, build_public_model, sample_crowd, write_tracks

NAMES = ("session", "event", "utility", "identity")


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Six users who alternate between two places, four days before and two days in a batch."""
    folder = tmp_path_factory.mktemp("released")
    everyone = sample_crowd(6, 6, 4)
    earlier = write_tracks(folder / "earlier.csv", {user: states[: 4 * DAY] for user, states in everyone.items()}, 0)
    true = write_tracks(folder / "true.csv", {user: states[4 * DAY :] for user, states in everyone.items()}, 4)
    build_public_model().save(folder / "m.npz")
    batch(true, folder / "batch", folder / "m.npz", ReleaseSettings("centres:500m", 1.0), rng=1, workers=1)
    return folder, earlier, true


def run_audit(name: str, released, engine=None, **options) -> dict:
    folder, earlier, true = released
    where = (folder / "batch", folder / "m.npz")
    if name == "session":
        adversaries = Adversaries(auxiliary_data=earlier, auxiliary_locations=("home",))
        audit = audit_session(*where, true=true, adversaries=adversaries, engine=engine, **options)
    elif name == "event":
        events = ["state:1,2 between 2 and 9", "state:0 between 3 and 30"]
        adversaries = Adversaries(auxiliary_data=earlier)
        audit = audit_event(*where, events, adversaries=adversaries, engine=engine, **options)
    elif name == "utility":
        audit = audit_utility(*where, true, uses=UsesSettings(), engine=engine, **options)
    else:
        audit = audit_identity(*where, earlier, true=true, engine=engine, **options)
    return audit.to_dict()


def check_equal(result, expected) -> None:
    """Compare two results up to last digits, which change when a process compiles its loops."""
    assert type(result) is type(expected)
    if isinstance(expected, dict):
        assert list(result) == list(expected)
        result, expected = list(result.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        assert len(result) == len(expected)
        for part, expected_part in zip(result, expected, strict=True):
            check_equal(part, expected_part)
    elif isinstance(expected, float):
        assert result == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)
    else:
        assert result == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_audit_does_not_depend_on_workers(name, released, monkeypatch):
    distributed = pytest.importorskip("distributed")
    alone = run_audit(name, released)
    if name != "event":
        assert len(alone["users"]) == (6 * 3 if name == "session" else 6)
    monkeypatch.setattr(import_module("dphmm.jobs.input_data"), "_BLOCK_USERS", 1)
    check_equal(run_audit(name, released, Processes(2)), alone)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, dashboard_address=None, processes=False, protocol="inproc://"
    ) as cluster:
        check_equal(run_audit(name, released, DaskCluster(cluster.scheduler_address)), alone)


@pytest.mark.slow
def test_command_has_workers(released, monkeypatch):
    folder, earlier, true = released
    monkeypatch.chdir(folder)
    outputs = []
    for workers in (1, 2):
        line = ["batch", "--model", "m.npz", "--true", true, "--workers", workers, "--json"]
        outputs.append(json.loads(command_line.run("audit", "utility", *line).stdout))
        outputs.append(json.loads(command_line.run("audit", "session", *line, "--auxiliary-data", earlier).stdout))
    check_equal(outputs[2:], outputs[:2])


@pytest.mark.slow
def test_user_without_true_trajectory_raises(released, tmp_path):
    folder, _, _ = released
    true = write_tracks(tmp_path / "true.csv", sample_crowd(5, 2, 4), 4)
    with pytest.raises(ConfigurationError, match="user p5: true must have a location at every release"):
        audit_utility(folder / "batch", folder / "m.npz", true)


def test_changed_file_raises_before_it_is_audited(released, tmp_path):
    folder, _, true = released
    shutil.copytree(folder / "batch", tmp_path / "batch")
    file = next((tmp_path / "batch").glob("*/p3.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    for audit in (audit_session, lambda *where: audit_utility(*where, true)):
        with pytest.raises(DataFileError, match="was changed after its release"):
            audit(tmp_path / "batch", folder / "m.npz")


def test_task_of_audit_shows_no_location():
    """A worker's log contains the representation of a task that fails."""
    text = repr(ReplayTask(np.array([45.123]), {0: 0}, (np.array([4711]), None)))
    assert "45.1" not in text
    assert "4711" not in text
