from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib import import_module

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dphmm.errors import ConfigurationError, DataFileError, EngineError, OutputError
from dphmm.evaluation.split import split_users
from dphmm.jobs import audit_event, read_released
from dphmm.jobs.batch.batch import (
    Batch,
    BatchJob,
    Tally,
    UserTask,
    _load_engine,
    _release_user,
    batch,
    release_everyone,
)
from dphmm.jobs.batch.run_folder import JOURNAL, KEY, LOCK, Entry, FolderLock, Published, get_user_file_path
from dphmm.jobs.batch.workers import DaskCluster, Processes
from dphmm.jobs.input_data import Data
from dphmm.model.model import MarkovModel
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.space.grid import Grid
from dphmm.space.trajectory import Trajectory
from dphmm.writers.formats import read_releases
from dphmm.writers.release_table import COLUMNS
from tests import command_line
from tests.sizes import choose_count


@pytest.fixture(scope="module")
def model_path(config, trajectories, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.npz"
    split_users(trajectories, config)[1][0].save(path)
    return path


def make_job(folder, model_path, **changes) -> BatchJob:
    settings = ReleaseSettings(policy="utility:1km", epsilon=1.0)
    keys = {"seed": 1, "kind": "csv"} | changes
    return BatchJob(str(folder), str(model_path), MarkovModel.load(model_path).content_hash, settings, **keys)


def read_bytes_by_user(folder) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in folder.glob("??/*") if path.parent.name != "parts"}


@pytest.mark.slow
def test_every_user_has_file_without_true_locations(model_path, trajectories, tmp_path):
    done = list(release_everyone(make_job(tmp_path, model_path), trajectories, Processes(1)))
    assert sorted(user_result.user for user_result in done) == [f"w{i}" for i in range(9)]
    for trajectory in trajectories:
        table = read_releases(get_user_file_path(tmp_path, trajectory.user, "csv"))
        assert len(table) == len(trajectory)
        header = (get_user_file_path(tmp_path, trajectory.user, "csv")).read_text().splitlines()[0]
        assert header.split(",") == [*(column.name for column in COLUMNS), "crs"]


@pytest.mark.slow
def test_batch_bytes_do_not_depend_on_workers_order_or_other_users(model_path, trajectories, tmp_path):
    for name, crowd, workers in (
        ("one", trajectories, 1),
        ("two", trajectories[::-1], 2),
        ("few", trajectories[3:5], 1),
    ):
        (tmp_path / name).mkdir()
        list(release_everyone(make_job(tmp_path / name, model_path), crowd, Processes(workers)))
    whole = read_bytes_by_user(tmp_path / "one")
    assert read_bytes_by_user(tmp_path / "two") == whole
    assert read_bytes_by_user(tmp_path / "few").items() <= whole.items()
    assert len(set(whole.values())) == 9


@pytest.mark.slow
def test_batch_bytes_do_not_depend_on_forked_workers(model_path, trajectories, walkers_file, tmp_path):
    """The command has one thread, so its workers are forked where the system allows it."""
    list(release_everyone(make_job(tmp_path / "here", model_path), trajectories, Processes(1)))
    line = [sys.executable, "-m", "dphmm", "batch", str(walkers_file), "--model", str(model_path), "--seed", "1"]
    line += [
        "--policy",
        "utility:1km",
        "--epsilon",
        "1",
        "--format",
        "csv",
        "--workers",
        "2",
        "-o",
        str(tmp_path / "out"),
    ]
    subprocess.run(line, check=True, capture_output=True)
    assert read_bytes_by_user(tmp_path / "out") == read_bytes_by_user(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_batch_bytes_do_not_depend_on_dask_cluster_with_killed_worker(model_path, trajectories, walkers_file, tmp_path):
    distributed = pytest.importorskip("distributed")
    list(release_everyone(make_job(tmp_path / "here", model_path), trajectories, Processes(1)))
    settings, finished = ReleaseSettings("utility:1km", 1.0), []
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, processes=True, protocol="tcp://"
    ) as cluster:
        victim = next(iter(cluster.workers.values())).pid

        def kill_worker(items, what, total=None):
            for item in items:
                if not finished:
                    os.kill(victim, signal.SIGKILL)
                finished.append(item)
                yield item

        engine = DaskCluster(cluster.scheduler_address)
        folder = tmp_path / "out"
        result = batch(walkers_file, folder, model_path, settings, kind="csv", rng=1, engine=engine, watch=kill_worker)
    assert len(result.done) == len(finished) == 9
    assert read_bytes_by_user(folder) == read_bytes_by_user(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_each_dask_worker_loads_model_once(model_path, walkers_file, tmp_path):
    distributed = pytest.importorskip("distributed")
    settings = ReleaseSettings("utility:1km", 1.0)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, dashboard_address=None, processes=True, protocol="tcp://"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        batch(walkers_file, tmp_path, model_path, settings, rng=1, engine=DaskCluster(cluster.scheduler_address))
        caches = client.run(_load_engine.cache_info)
    assert len(caches) == 2
    assert {info.misses for info in caches.values()} == {1}
    assert sum(info.hits for info in caches.values()) == 9 - 2


class RestartedCluster:
    """A scheduler and a worker as commands, on a free port."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        line = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--no-dashboard"]
        self.scheduler = subprocess.Popen([*line, "--port", str(self.port)], stderr=subprocess.DEVNULL)
        line = [sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{self.port}", "--no-dashboard"]
        self.worker = subprocess.Popen([*line, "--nthreads", "1", "--no-nanny"], stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        for process in (self.scheduler, self.worker):
            process.kill()
            process.wait()


def run_batch_with_restart(data: str, folder: str, model: str) -> None:
    """Kill the scheduler and its worker after the first user, and start them again."""
    cluster, finished = RestartedCluster(), []

    def restart(items, what, total=None):
        for item in items:
            if not finished:
                cluster.stop()
                cluster.start()
            finished.append(item)
            yield item

    try:
        engine = DaskCluster(f"tcp://127.0.0.1:{cluster.port}", timeout_seconds=60)
        settings = ReleaseSettings("utility:1km", 1.0)
        batch(data, folder, model, settings, kind="csv", rng=1, engine=engine, watch=restart)
    finally:
        cluster.stop()
    print(len(finished))


@pytest.mark.slow
def test_batch_bytes_do_not_depend_on_restarted_scheduler(model_path, trajectories, walkers_file, tmp_path):
    """A separate process, because Dask does not close the sockets of a lost scheduler."""
    pytest.importorskip("distributed")
    list(release_everyone(make_job(tmp_path / "here", model_path), trajectories, Processes(1)))
    call = f"from {__name__} import *; run_batch_with_restart(*sys.argv[1:])"
    line = [sys.executable, "-c", call, str(walkers_file), str(tmp_path / "out"), str(model_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["9"]
    assert read_bytes_by_user(tmp_path / "out") == read_bytes_by_user(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_batch_bytes_do_not_depend_on_threads_of_dask_worker(model_path, trajectories, tmp_path):
    distributed = pytest.importorskip("distributed")
    for name in ("here", "out"):
        (tmp_path / name).mkdir()
    list(release_everyone(make_job(tmp_path / "here", model_path), trajectories, Processes(1)))
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=4, dashboard_address=None, processes=False, protocol="inproc://"
    ) as cluster:
        _load_engine.cache_clear()
        engine = DaskCluster(cluster.scheduler_address)
        assert len(list(release_everyone(make_job(tmp_path / "out", model_path), trajectories, engine))) == 9
    assert read_bytes_by_user(tmp_path / "out") == read_bytes_by_user(tmp_path / "here")


@pytest.mark.slow
def test_unreachable_scheduler_raises_before_reading_or_writing(model_path, tmp_path):
    pytest.importorskip("distributed")
    engine = DaskCluster("tcp://127.0.0.1:9", timeout_seconds=0.3)
    with pytest.raises(EngineError, match="cannot be reached"):
        batch("absent.csv", tmp_path / "out", model_path, ReleaseSettings("utility:1km", 1.0), engine=engine)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([{"engine": "dask"}], "set scheduler"),
        ([{"scheduler": "tcp://127.0.0.1:9"}], "set engine = 'dask'"),
        ([{"engine": "dask"}, {"scheduler": "tcp://127.0.0.1:9"}, "--workers", "2"], "--workers"),
        (["--workers", "0"], "'--workers': 0 is not in the range"),
    ],
)
def test_conflicting_worker_options_print_one_line_and_write_nothing(
    model_path, walkers_file, tmp_path, options, message
):
    line = ["batch", str(walkers_file), "--model", str(model_path), "--policy", "utility:1km", "--epsilon", "1"]
    done = command_line.run(*line, "-o", str(tmp_path / "out"), *options)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_workers_and_engine_together_raise(model_path, walkers_file, tmp_path):
    arguments = {"workers": 1, "engine": Processes(1)}
    with pytest.raises(ConfigurationError, match="workers cannot be combined with engine"):
        batch(walkers_file, tmp_path / "out", model_path, ReleaseSettings("utility:1km", 1.0), **arguments)


@pytest.mark.slow
def test_user_files_are_spread_over_folders(tmp_path):
    count = choose_count(100_000, 20_000)
    folders = Counter(get_user_file_path(tmp_path, f"user-{index}", "csv").parent for index in range(count))
    assert len(folders) == 256
    assert max(folders.values()) < 1.6 * count / 256  # the names are fixed, so the test is deterministic


@pytest.mark.slow
def test_batch_bytes_do_not_depend_on_blas_threads(tmp_path, monkeypatch):
    """The model's own thread limit is removed: all work of the batch still runs on one thread.

    Over a gap the belief is propagated by matrix powers. Unless it is limited, the number of threads changes their
    last bits.

    Near the equator and Greenwich degrees are small numbers, and their texts show the last bits of an estimate.
    """
    monkeypatch.setattr("dphmm.model.transition_operator.limit_to_one_thread", nullcontext)
    grid = Grid.over((-0.02, -0.02, 0.02, 0.02), 0.5)
    rng = np.random.default_rng(0)
    matrix = rng.dirichlet(np.ones(grid.size), grid.size)
    model = MarkovModel(matrix, np.full(grid.size, 1 / grid.size), grid, 60.0)
    model.save(tmp_path / "m.npz")
    places = grid.latlon(rng.integers(grid.size, size=20))
    times = np.datetime64("2024-03-01", "us") + np.arange(20) * np.timedelta64(33 * 60, "s")
    trajectory = Trajectory("anna", times, places[:, 0], places[:, 1])
    settings = ReleaseSettings("utility:1km", 0.01)
    outputs: dict[str, list[bytes]] = {"limited": [], "not": []}
    for threads in (1, 2):
        for how, together in outputs.items():
            folder = tmp_path / f"{how}{threads}"
            folder.mkdir()
            job = BatchJob(str(folder), str(tmp_path / "m.npz"), model.content_hash, settings, 1, "csv")
            _load_engine.cache_clear()  # this also clears the matrix powers
            with threadpool_limits(threads, user_api="blas"):
                if how == "limited":
                    list(release_everyone(job, [trajectory], Processes(1)))
                else:
                    files = Published(folder, "csv")
                    files.add([_release_user(UserTask(job, files.get_part_path("anna"), trajectory)).entry])
            together.append(read_bytes_by_user(folder)["anna"])
    if outputs["not"][0] == outputs["not"][1]:
        pytest.skip("here the last bits do not depend on the number of threads")
    assert outputs["limited"][0] == outputs["limited"][1]


def test_releases_differ_without_seed(model_path, trajectories, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        list(release_everyone(make_job(tmp_path / name, model_path, seed=None), trajectories[:1], Processes(1)))
    assert read_bytes_by_user(tmp_path / "a") != read_bytes_by_user(tmp_path / "b")


@pytest.mark.slow
def test_users_are_released_only_once(model_path, trajectories, tmp_path):
    list(release_everyone(make_job(tmp_path, model_path, seed=None), trajectories[:4], Processes(1)))
    before = read_bytes_by_user(tmp_path)
    done = list(release_everyone(make_job(tmp_path, model_path, seed=None), trajectories, Processes(1)))
    assert sorted(user_result.user for user_result in done) == [f"w{i}" for i in range(4, 9)]
    assert read_bytes_by_user(tmp_path).items() >= before.items()


def test_long_gap_starts_new_session(model_path, trajectories, tmp_path, monkeypatch):
    trajectory = trajectories[1]
    late = trajectory.times.copy()
    late[30:] += np.timedelta64(1, "D")
    gapped = Trajectory(trajectory.user, late, trajectory.latitude, trajectory.longitude)
    begun = []
    restart = Releaser.restart
    job = make_job(tmp_path, model_path, session_gap=10)
    _load_engine(job.model, job.model_hash, job.settings)
    monkeypatch.setattr(Releaser, "restart", lambda self: (begun.append(1), restart(self))[1])
    list(release_everyone(job, [gapped], Processes(1)))
    assert len(begun) == 3, "one for the user's engine, and one for each session"
    table = read_releases(get_user_file_path(tmp_path, trajectory.user, "csv"))
    first = int((table["time"] < late[30]).sum())
    assert table["num_ignored_releases"].tolist() == [0] * first + [first] * (len(table) - first)
    assert 0 < first < len(table)


def make_cap_settings(when: str, state: int = 20) -> ReleaseSettings:
    return ReleaseSettings("centres:1km", 2.0, caps=[{"event": f"at:{state} {when}", "probability": 0.6}])


@pytest.mark.slow
def test_caps_hold_over_gaps_and_expired_events_are_skipped(model_path, trajectories, tmp_path):
    """A gap of a day starts no new session.

    A user who starts after the event is released without the cap and counted.
    """
    trajectory, model = trajectories[1], MarkovModel.load(model_path)
    late = trajectory.times.copy()
    late[30:] += np.timedelta64(1, "D")
    gapped = Trajectory("gapped", late, trajectory.latitude, trajectory.longitude)
    after = Trajectory("after", trajectory.times + np.timedelta64(40, "D"), trajectory.latitude, trajectory.longitude)
    (there,) = model.space.locate(trajectory.latitude[33:34], trajectory.longitude[33:34]).tolist()
    start, end = (f"{time.astype('M8[s]')}Z" for time in late[[30, 37]])
    settings = make_cap_settings(f"between {start} and {end}", there)
    job = replace(make_job(tmp_path, model_path), settings=settings, session_gap=None)
    done = {user_result.user: user_result for user_result in release_everyone(job, [gapped, after], Processes(1))}
    assert [done[name].counts["ended_events"] for name in ("gapped", "after")] == [0, 1]
    assert done["gapped"].counts["after_gap"] == 0
    file, event = get_user_file_path(tmp_path, "gapped", "csv"), str(settings.caps[0].event)
    assert min(read_releases(file)["epsilon"]) < 2.0
    assert not audit_event(file, model, event, settings, max_posterior=0.6).is_exposed
    free = replace(make_job(tmp_path / "free", model_path), settings=replace(settings, caps=()), session_gap=10**6)
    list(release_everyone(free, [gapped], Processes(1)))
    open_ = get_user_file_path(tmp_path / "free", "gapped", "csv")
    assert audit_event(open_, model, event, free.settings, max_posterior=0.6).is_exposed, (
        "without the cap the bound is exceeded"
    )
    assert set(read_releases(get_user_file_path(tmp_path, "after", "csv"))["epsilon"]) == {2.0}


def test_session_gap_with_cap_raises(model_path, tmp_path):
    with pytest.raises(ConfigurationError, match="session_gap cannot be combined with event caps"):
        replace(make_job(tmp_path, model_path), settings=make_cap_settings("between 2 and 5"), session_gap=10)


def test_user_outside_region_has_file_and_is_counted_unless_omitted(model_path, trajectories, tmp_path):
    trajectory = trajectories[1]
    north = np.where(np.arange(len(trajectory)) < 5, trajectory.latitude, trajectory.latitude + 1)
    for name, changes in (("clamp", {}), ("drop", {"settings": ReleaseSettings("utility:1km", 1.0, outside="drop")})):
        job = replace(make_job(tmp_path / name, model_path), **changes)
        (done,) = release_everyone(
            job, [Trajectory(trajectory.user, trajectory.times, north, trajectory.longitude)], Processes(1)
        )
        assert (done.entry.releases, done.counts["outside"]) == (
            len(trajectory) if name == "clamp" else 5,
            len(trajectory) - 5,
        )


@pytest.mark.parametrize("outside", ["clamp", "drop"])
def test_batch_without_location_inside_region_raises_before_any_release(model_path, trajectories, tmp_path, outside):
    lines = ["user,time,latitude,longitude"]
    for user, degrees in ((trajectories[0], 1), (trajectories[1], 1), (trajectories[2], 0)):
        for time, latitude, longitude in zip(user.times[:4], user.latitude + degrees, user.longitude, strict=False):
            lines.append(f"{user.user},{time}Z,{latitude},{longitude}")
        (tmp_path / f"{user.user}.csv").write_text("\n".join([lines[0], *lines[-4:]]) + "\n")
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "away.csv").write_text("\n".join(lines[:9]) + "\n")
    settings = ReleaseSettings("utility:1km", 1.0, outside=outside)
    paths = [str(tmp_path / f"{user.user}.csv") for user in trajectories[:3]]
    run = partial(batch, model=model_path, settings=settings, kind="csv", workers=1)
    for name, data in (("one", str(tmp_path / "away.csv")), ("several", paths[:2])):
        for resume in (False, True):
            with pytest.raises(ConfigurationError, match="no input location of 2 users lies inside"):
                run(data, tmp_path / name, resume=resume)
            assert not (tmp_path / name).exists()
    # A later user in the region suffices.
    for name, data in (("whole", str(tmp_path / "all.csv")), ("parts", paths)):
        result = run(data, tmp_path / name)
        assert [entry.releases for entry in result.done] == ([4, 4, 4] if outside == "clamp" else [0, 0, 4])
    # Users outside may follow in a resumed batch.
    run(paths[2], tmp_path / "later")
    assert run(paths[:2], tmp_path / "later", resume=True).before == 1


def test_path_like_user_names_stay_in_folder(tmp_path):
    files = Published(tmp_path, "csv")
    for name in ("../../etc", "a/b", "..", "ü x", "%2F", ".", "-"):
        assert files.get_file_path(name).parent.parent == tmp_path
        assert files.get_file_path(name).parent.name == sha256(name.encode()).hexdigest()[:2]
        assert files.get_part_path(name).parent == tmp_path / "parts"
    assert len({files.get_file_path(name) for name in ("a/b", "a%2Fb", "a b", "a+b")}) == 4


def test_mechanism_for_fewer_states_raises_before_folder_exists(model_path, walkers_file, tmp_path):
    """The folder could not be used with other settings afterwards."""
    settings = ReleaseSettings("complete", 1.0, mechanism="optimal", optimal_max_states=2, optimal_fallback="none")
    with pytest.raises(ConfigurationError, match="components must have at most 8 states"):
        batch(walkers_file, tmp_path / "out", model_path, settings, workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("changes", [{"kind": "xlsx"}, {"session_gap": 0}], ids=["format", "session gap"])
def test_invalid_jobs_raise(model_path, walkers_file, tmp_path, changes):
    settings = ReleaseSettings("utility:1km", 1.0)
    with pytest.raises(ConfigurationError, match="xlsx" if "kind" in changes else "session_gap must be"):
        batch(walkers_file, tmp_path / "out", model_path, settings, **changes)
    assert not (tmp_path / "out").exists()


def test_sentences_cover_users_who_are_not_the_most_exposed():
    """The totals of a user count although another user is exposed most by every other metric."""
    figures = {"median_estimate_error_m": 1.0, "median_adversary_error_m": 1.0, "max_posterior": 0.5}
    tally = Tally()
    for user, total, day, scale in (("ann", 5.0, 3.0, 1.0), ("bob", 90.0, 2.9, 2.0)):
        row = {name: value * scale ** (-1 if "posterior" in name else 1) for name, value in figures.items()}
        tally.add_exposure(
            {"user": user, "epsilon_total": total, "max_epsilon_24h": day, "num_unprotected": 7, **row}, total, None
        )
    assert [row["user"] for row in tally.most_exposed_users] == ["ann"]
    guarantee, inference = Batch((), 0, ReleaseSettings.for_a_day(), True, None, tally=tally).summary_sentences()
    assert "for all releases in this folder the factor is at most e^90. " in guarantee
    assert "At 14 other timesteps the most probable location is unprotected" in inference


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_resumed_batch_describes_all_users_in_the_folder(kind, model_path, trajectories, tmp_path):
    """The user with the largest budget was released by the first run."""
    long, other = trajectories[:2]
    cut = {name: getattr(other, name)[:3] for name in ("times", "latitude", "longitude")}
    short = replace(other, **cut)
    outside = replace(short, user="outside", latitude=short.latitude + 20)
    settings = ReleaseSettings(policy="utility:1km", epsilon=1.0, outside="drop")

    def run(folder, *tracks, **options):
        return batch(tracks, tmp_path / folder, model_path, settings, kind=kind, rng=1, workers=1, **options)

    whole = run("whole", long, outside, short)
    run("parts", long, outside)
    resumed = run("parts", long, outside, short, resume=True)
    assert (resumed.before, whole.before) == (1, 0)
    assert resumed.ratio_levels == whole.ratio_levels
    assert resumed.summary_sentences()[0] == whole.summary_sentences()[0]
    assert resumed.list_warnings() == whole.list_warnings()
    results, expected = resumed.to_dict(), whole.to_dict()
    names = {name for name in results if "epsilon" in name or name.endswith("_m") or "posterior" in name}
    assert {"max_epsilon_24h", "max_epsilon_total"} < names
    assert {name: results[name] for name in names} == {name: expected[name] for name in names}
    assert results["max_epsilon_total"] > sum(entry.releases for entry in resumed.done)
    again = run("parts", long, short, resume=True)
    assert (again.done, again.ratio_levels) == ((), whole.ratio_levels)


@pytest.mark.slow
def test_batch_command_releases_resumes_and_rejects_changes(model_path, walkers_file, tmp_path):
    line = ["batch", str(walkers_file), "--model", str(model_path), "--policy", "utility:1km", "--epsilon", "1"]
    line += ["-o", str(tmp_path / "out"), "--workers", "1", "--format", "csv", "--json"]
    first = command_line.run(*line)
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["num_users"] == 9
    again = command_line.run(*line)
    assert again.exit_code == 2
    assert again.stderr.count("\n") == 1
    assert "--resume" in again.stderr
    resumed = json.loads(command_line.run(*line, "--resume").stdout)
    assert (resumed["num_users"], resumed["num_users_released_before"]) == (0, 9)
    doubled = [*line, "--resume"]
    doubled[line.index("--epsilon") + 1] = "2"
    other = command_line.run(*doubled)
    assert other.exit_code == 2
    assert "contains a run that differs in its settings: use the original settings" in other.stderr
    changed = ["gpkg" if word == "csv" else word for word in [*line, "--resume"]]
    assert "contains a run that differs in its format: use the original format" in command_line.run(*changed).stderr


@pytest.fixture(scope="module")
def killed_batch(model_path, walkers_file, tmp_path_factory):
    """Return the folder of a killed batch without a seed.

    All users are released and the key is still present.
    """
    folder = tmp_path_factory.mktemp("killed") / "out"
    with pytest.MonkeyPatch.context() as until_killed:
        until_killed.setattr(import_module("dphmm.jobs.batch.batch"), "KEY", "not unlinked")
        batch(walkers_file, folder, model_path, ReleaseSettings("utility:1km", 1.0), kind="csv", workers=1)
    assert (folder / KEY).exists()
    return folder


@pytest.fixture
def unfinished_batch(killed_batch, model_path, walkers_file, tmp_path):
    """Return a copy of that folder and a function that resumes it."""
    folder = tmp_path / "out"
    shutil.copytree(killed_batch, folder, ignore=shutil.ignore_patterns(LOCK))

    def resume(**changes):
        settings = ReleaseSettings(policy="utility:1km", epsilon=1.0)
        return batch(
            changes.pop("data", walkers_file),
            folder,
            model_path,
            settings,
            kind="csv",
            workers=1,
            resume=True,
            **changes,
        )

    return folder, resume


def damage(folder, how):
    """Damage a user's file like a crash, a power failure or an edit."""
    path = get_user_file_path(folder, "w3", "csv")
    if how == "absent":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut off":
        path.write_bytes(path.read_bytes()[:-40])
    else:
        path.write_bytes(path.read_bytes().replace(b"w3", b"w4"))


@pytest.mark.slow
def test_lost_file_without_remaining_work_raises(unfinished_batch):
    folder, _ = unfinished_batch
    damage(folder, "absent")
    with pytest.raises(DataFileError, match="cannot be restored unchanged"):
        Published(folder, "csv").add([Entry("w3", 0, "")])


@pytest.mark.parametrize("how", ["absent", "empty", "cut off", "altered"])
def test_damaged_file_is_recreated_identically(unfinished_batch, how):
    folder, resume = unfinished_batch
    before = read_bytes_by_user(folder)
    damage(folder, how)
    done = resume()
    assert [user_result.user for user_result in done.done] == ["w3"]
    assert read_bytes_by_user(folder) == before
    assert not (folder / KEY).exists(), "a finished batch keeps no key"


@pytest.mark.parametrize("how", ["absent", "empty", "cut off", "altered"])
def test_finished_batch_raises_for_damaged_file_and_samples_nothing(unfinished_batch, how):
    folder, resume = unfinished_batch
    resume()
    damage(folder, how)
    before = read_bytes_by_user(folder)
    with pytest.raises(DataFileError, match=r"w3\.csv.*restore") as caught:
        resume()
    assert "\n" not in str(caught.value)
    assert read_bytes_by_user(folder) == before
    assert not (folder / KEY).exists()


def test_changed_locations_of_user_raise(unfinished_batch, walkers_file, tmp_path):
    """With the same noise, releases would differ by the difference of the locations.

    The next test covers this.
    """
    folder, resume = unfinished_batch
    damage(folder, "empty")
    moved = tmp_path / "moved.csv"
    moved.write_text(
        walkers_file.read_text().replace("w3,2024-03-01T00:05:00.000000Z,45.0", "w3,2024-03-01T00:05:00Z,45.01")
    )
    assert moved.read_text() != walkers_file.read_text()
    with pytest.raises(DataFileError, match="the data differ"):
        resume(data=moved)
    assert (get_user_file_path(folder, "w3", "csv")).read_bytes() == b""
    assert list((folder / "parts").iterdir()) == []


def test_noise_depends_on_all_inputs(model_path, trajectories, tmp_path):
    """Another position, time, name or setting gives an unrelated noise stream."""
    job = make_job(tmp_path, model_path, seed=None, key=bytes(32))
    trajectory = trajectories[1]
    latitude = trajectory.latitude.copy()
    latitude[17] += 1e-9
    others = [
        (job, Trajectory("w2", trajectory.times, trajectory.latitude, trajectory.longitude)),
        (job, Trajectory("w1", trajectory.times, latitude, trajectory.longitude)),
        (job, Trajectory("w1", trajectory.times + np.timedelta64(1, "us"), trajectory.latitude, trajectory.longitude)),
        (replace(job, settings=ReleaseSettings("utility:1km", 2.0)), trajectory),
        (replace(job, session_gap=7), trajectory),
        (replace(job, model_hash="another"), trajectory),
        (replace(job, key=bytes(31) + b"1"), trajectory),
        (job, trajectory),
    ]
    streams = [changed_job.derive_randomness(trajectory).bytes(64) for changed_job, trajectory in others]
    assert len(set(streams)) == len(streams)
    assert job.derive_randomness(trajectory).bytes(64) == streams[-1]


def test_file_missing_in_journal_raises_and_stays_unchanged(unfinished_batch):
    folder, resume = unfinished_batch
    journal = folder / JOURNAL
    journal.write_text("".join(line for line in journal.read_text().splitlines(keepends=True) if '"w3"' not in line))
    before = read_bytes_by_user(folder)
    with pytest.raises(DataFileError, match=r"w3\.csv.*released\.jsonl"):
        resume()
    assert read_bytes_by_user(folder) == before


def test_truncated_journal_line_has_no_file_and_is_recreated(unfinished_batch):
    """The journal is written to disk before the file gets its name."""
    folder, resume = unfinished_batch
    journal, before = folder / JOURNAL, read_bytes_by_user(folder)
    *lines, last = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines) + last[:20])
    user = json.loads(last)["user"]
    (get_user_file_path(folder, user, "csv")).unlink()
    assert [user_result.user for user_result in resume().done] == [user]
    assert read_bytes_by_user(folder) == before
    assert [json.loads(line)["user"] for line in journal.read_text().splitlines()] == [f"w{i}" for i in range(9)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv", "geojson", "gpkg"])
def test_parts_of_unfinished_batch_match_no_pattern_of_released_files(
    kind, model_path, walkers_file, tmp_path, monkeypatch
):
    """The batch is killed before it publishes its parts. Then it is resumed."""
    arguments = {"kind": kind, "workers": 1}
    settings = ReleaseSettings(policy="utility:1km", epsilon=1.0)

    class KilledError(Exception):
        pass

    def kill(*_):
        raise KilledError

    with monkeypatch.context() as context:
        context.setattr(Published, "add", kill)
        with pytest.raises(KilledError):
            batch(walkers_file, tmp_path / "out", model_path, settings, **arguments)
    parts = list((tmp_path / "out" / "parts").iterdir())
    assert parts
    assert {path.suffix for path in parts} == {".part"}
    assert list((tmp_path / "out").rglob(f"*.{kind}")) == []
    batch(walkers_file, tmp_path / "out", model_path, settings, resume=True, **arguments)
    assert len(list((tmp_path / "out").glob(f"*/*.{kind}"))) == 9
    assert len(read_released(tmp_path / "out").table) > 9
    assert list((tmp_path / "out" / "parts").iterdir()) == []


def test_damaged_journal_raises_with_line(unfinished_batch):
    folder, resume = unfinished_batch
    (folder / JOURNAL).write_text('{"user": "w1"}\n')
    with pytest.raises(DataFileError, match=r"released\.jsonl, line 1"):
        resume()


def test_file_of_killed_process_is_published_unchanged(unfinished_batch):
    folder, resume = unfinished_batch
    before = read_bytes_by_user(folder)
    files = Published(folder, "csv")
    os.replace(files.get_file_path("w3"), files.get_part_path("w3"))
    (folder / "parts" / "w9.csv").write_text("never finished")
    (folder / KEY).unlink()
    assert resume().done == ()
    assert read_bytes_by_user(folder) == before
    assert list((folder / "parts").iterdir()) == []


def test_damaged_file_of_user_missing_in_data_leaves_batch_unfinished(unfinished_batch, walkers_file, tmp_path):
    folder, resume = unfinished_batch
    damage(folder, "empty")
    few = tmp_path / "few.csv"
    few.write_text("".join(line for line in walkers_file.read_text().splitlines(keepends=True) if line[:2] != "w3"))
    with pytest.raises(ConfigurationError, match=r"w3\.csv.*data"):
        resume(data=few)
    assert (folder / KEY).exists()
    assert [user_result.user for user_result in resume().done] == ["w3"]


def test_folder_is_locked_until_workers_have_ended(model_path, trajectories, tmp_path):
    """Also after an error: workers still write to the folder."""
    locked = []

    class Watched(Processes):
        @contextmanager
        def start_workers(self):
            with super().start_workers():
                try:
                    yield
                finally:
                    with pytest.raises(OutputError):
                        FolderLock(tmp_path / "out")
                    locked.append(True)

    def fail(*_):
        raise ZeroDivisionError

    settings = ReleaseSettings(policy="utility:1km", epsilon=1.0)
    with pytest.raises(ZeroDivisionError):
        batch(trajectories[:2], tmp_path / "out", model_path, settings, rng=1, engine=Watched(1), watch=fail)
    assert locked[-1:] == [True]
    FolderLock(tmp_path / "out").release()


def test_locked_batch_raises_with_process(unfinished_batch):
    folder, resume = unfinished_batch
    damage(folder, "empty")
    lock = FolderLock(folder)
    with pytest.raises(OutputError, match=f"process {os.getpid()}"):
        resume()
    assert (get_user_file_path(folder, "w3", "csv")).read_bytes() == b""
    lock.release()
    resume()


def test_user_in_two_inputs_raises(model_path, walkers_file, tmp_path):
    line = ["batch", str(walkers_file), str(walkers_file), "--model", str(model_path), "--policy", "complete"]
    done = command_line.run(*line, "--epsilon", "1", "-o", str(tmp_path / "out"), "--workers", "1")
    assert done.exit_code == 2
    assert "is in an earlier input too; a user must be in one input" in done.stderr


@pytest.mark.slow
def test_parquet_file_is_released_in_parts_with_equal_bytes(model_path, trajectories, tmp_path):
    """The number of fixes in memory changes neither the bytes nor the counts of dropped fixes."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from dphmm.readers import fix_tables as reader

    columns = {
        "user_id": np.concatenate([[trajectory.user] * len(trajectory) for trajectory in trajectories]),
        "tracked_at": np.concatenate([trajectory.times for trajectory in trajectories]),
        "latitude": np.concatenate([trajectory.latitude for trajectory in trajectories]),
        "longitude": np.concatenate([trajectory.longitude for trajectory in trajectories]),
    }
    order = np.argsort(columns["tracked_at"], kind="stable")
    table = pa.table({name: values[order] for name, values in columns.items()})
    parquet.write_table(table, tmp_path / "all.parquet", row_group_size=50)
    settings = ReleaseSettings("utility:1km", 1.0)
    data, left = Data((tmp_path / "all.parquet",), exclude_users=("w3",)), []
    with pytest.MonkeyPatch.context() as small:
        small.setattr(reader, "MAX_FIXES", 60)
        small.setattr(reader, "PART_ROWS", 70)
        results = {"few": batch(data, tmp_path / "few", model_path, settings, kind="csv", workers=1, rng=1)}
        list(data.stream_by_path(dropped=left))
    results["all"] = batch(data, tmp_path / "all", model_path, settings, kind="csv", workers=1, rng=1)
    assert read_bytes_by_user(tmp_path / "few") == read_bytes_by_user(tmp_path / "all")
    assert len(read_bytes_by_user(tmp_path / "all")) == len(trajectories) - 1
    excluded = (
        "excluded by --exclude-users",
        sum(len(trajectory) for trajectory in trajectories if trajectory.user == "w3"),
        1,
    )
    assert results["few"].dropped == results["all"].dropped
    assert left == [excluded]
    assert results["few"].dropped[0] == excluded
