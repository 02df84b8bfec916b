from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm.cli import main
from dphmm.errors import ConfigurationError
from dphmm.evaluation.split import split_people
from dphmm.jobs.batches import BatchJob, _engine, release_everyone
from dphmm.jobs.workers import Processes
from dphmm.markov.model import MarkovModel
from dphmm.release.engine import Releaser
from dphmm.release.settings import ReleaseSettings
from dphmm.space.trajectory import Trajectory
from dphmm.writers.formats import read_releases
from dphmm.writers.table import COLUMNS


@pytest.fixture(scope="module")
def model_path(config, people, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.npz"
    split_people(people, config)[1].save(path)
    return path


def job_in(folder, model_path, **changes) -> BatchJob:
    settings = ReleaseSettings(policy="utility:1km", epsilon=1.0)
    keys = {"seed": 1, "kind": "csv"} | changes
    return BatchJob(str(folder), str(model_path), MarkovModel.load(model_path).content_hash, settings, **keys)


def bytes_by_user(folder) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob("user=*/releases.*")}


def test_everyone_has_a_file_without_the_truth(model_path, people, tmp_path):
    done = list(release_everyone(job_in(tmp_path, model_path), people, Processes(1)))
    assert sorted(one.user for one in done) == [f"w{i}" for i in range(9)]
    for person in people:
        table = read_releases(tmp_path / f"user={person.user}" / "releases.csv")
        assert len(table) == len(person)
        header = (tmp_path / f"user={person.user}" / "releases.csv").read_text().splitlines()[0]
        assert header.split(",") == [*(column.name for column in COLUMNS), "crs"]


def test_workers_order_and_company_change_no_byte(model_path, people, tmp_path):
    for name, crowd, workers in (("one", people, 1), ("two", people[::-1], 2), ("few", people[3:5], 1)):
        (tmp_path / name).mkdir()
        list(release_everyone(job_in(tmp_path / name, model_path), crowd, Processes(workers)))
    whole = bytes_by_user(tmp_path / "one")
    assert bytes_by_user(tmp_path / "two") == whole
    assert bytes_by_user(tmp_path / "few").items() <= whole.items()
    assert len(set(whole.values())) == 9


def test_without_a_seed_no_two_releases_agree(model_path, people, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        list(release_everyone(job_in(tmp_path / name, model_path, seed=None), people[:1], Processes(1)))
    assert bytes_by_user(tmp_path / "a") != bytes_by_user(tmp_path / "b")


def test_nobody_is_released_twice(model_path, people, tmp_path):
    list(release_everyone(job_in(tmp_path, model_path, seed=None), people[:4], Processes(1)))
    before = bytes_by_user(tmp_path)
    done = list(release_everyone(job_in(tmp_path, model_path, seed=None), people, Processes(1)))
    assert sorted(one.user for one in done) == [f"w{i}" for i in range(4, 9)]
    assert bytes_by_user(tmp_path).items() >= before.items()


def test_a_long_gap_begins_a_new_session(model_path, people, tmp_path, monkeypatch):
    one = people[1]
    late = one.times.copy()
    late[30:] += np.timedelta64(1, "D")
    gapped = Trajectory(one.user, late, one.latitude, one.longitude)
    begun = []
    restart = Releaser.restart
    job = job_in(tmp_path, model_path, session_gap=10)
    _engine(job)
    monkeypatch.setattr(Releaser, "restart", lambda self: (begun.append(1), restart(self))[1])
    list(release_everyone(job, [gapped], Processes(1)))
    assert len(begun) == 3, "one for the person's engine, and one for each session"


def test_names_that_are_paths_stay_in_the_folder(model_path, tmp_path):
    job = job_in(tmp_path, model_path)
    for name in ("../../etc", "a/b", "..", "ü x", "%2F"):
        assert job.file(name).parent.parent == tmp_path
    assert len({job.file(name) for name in ("a/b", "a%2Fb", "a b", "a+b")}) == 4


@pytest.mark.parametrize("changes", [{"kind": "xlsx"}, {"session_gap": 0}])
def test_impossible_jobs_are_refused(model_path, tmp_path, changes):
    with pytest.raises(ConfigurationError):
        job_in(tmp_path, model_path, **changes)


def test_command_releases_resumes_and_refuses(model_path, walkers_file, tmp_path):
    line = ["batch", str(walkers_file), "--model", str(model_path), "--policy", "utility:1km", "--epsilon", "1"]
    line += ["-o", str(tmp_path / "out"), "--workers", "1", "--files", "csv", "--json"]
    first = CliRunner().invoke(main, line)
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["users_released"] == 9
    again = CliRunner().invoke(main, line)
    assert again.exit_code == 2
    assert again.stderr.count("\n") == 1
    assert "--resume" in again.stderr
    resumed = json.loads(CliRunner().invoke(main, [*line, "--resume"]).stdout)
    assert (resumed["users_released"], resumed["users_released_before"]) == (0, 9)
    other = CliRunner().invoke(main, [*line[:-1], "--resume", "--epsilon", "2"])
    assert other.exit_code == 2
    assert "another settings" in other.stderr


def test_a_user_in_two_inputs_is_refused(model_path, walkers_file, tmp_path):
    line = ["batch", str(walkers_file), str(walkers_file), "--model", str(model_path), "--policy", "complete"]
    done = CliRunner().invoke(main, [*line, "--epsilon", "1", "-o", str(tmp_path / "out"), "--workers", "1"])
    assert done.exit_code == 2
    assert "was in an input before" in done.stderr
