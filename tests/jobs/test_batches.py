from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from click.testing import CliRunner
from threadpoolctl import threadpool_limits

from dphmm.cli import main
from dphmm.errors import ConfigurationError, DataFileError, EngineError, OutputError
from dphmm.evaluation.split import split_people
from dphmm.jobs import audit_event
from dphmm.jobs.batches import (
    BatchJob,
    Person,
    _engine,
    _release_user,
    batch,
    release_everyone,
)
from dphmm.jobs.input_data import Data
from dphmm.jobs.run_folder import JOURNAL, KEY, LOCK, Entry, FolderLock, Published, user_file
from dphmm.jobs.workers import DaskCluster, Processes
from dphmm.model.model import MarkovModel
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.space.grid import Grid
from dphmm.space.trajectory import Trajectory
from dphmm.writers.formats import read_releases
from dphmm.writers.table import COLUMNS
from tests.sizes import fewer


@pytest.fixture(scope="module")
def model_path(config, people, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.npz"
    split_people(people, config)[1][0].save(path)
    return path


def job_in(folder, model_path, **changes) -> BatchJob:
    settings = ReleaseSettings(policy="utility:1km", epsilon=1.0)
    keys = {"seed": 1, "kind": "csv"} | changes
    return BatchJob(str(folder), str(model_path), MarkovModel.load(model_path).content_hash, settings, **keys)


def bytes_by_user(folder) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in folder.glob("??/*") if path.parent.name != "parts"}


def test_everyone_has_a_file_without_the_truth(model_path, people, tmp_path):
    done = list(release_everyone(job_in(tmp_path, model_path), people, Processes(1)))
    assert sorted(one.user for one in done) == [f"w{i}" for i in range(9)]
    for person in people:
        table = read_releases(user_file(tmp_path, person.user, "csv"))
        assert len(table) == len(person)
        header = (user_file(tmp_path, person.user, "csv")).read_text().splitlines()[0]
        assert header.split(",") == [*(column.name for column in COLUMNS), "crs"]


def test_workers_order_and_company_change_no_byte(model_path, people, tmp_path):
    for name, crowd, workers in (("one", people, 1), ("two", people[::-1], 2), ("few", people[3:5], 1)):
        (tmp_path / name).mkdir()
        list(release_everyone(job_in(tmp_path / name, model_path), crowd, Processes(workers)))
    whole = bytes_by_user(tmp_path / "one")
    assert bytes_by_user(tmp_path / "two") == whole
    assert bytes_by_user(tmp_path / "few").items() <= whole.items()
    assert len(set(whole.values())) == 9


def test_copies_of_the_process_change_no_byte(model_path, people, walkers_file, tmp_path):
    """The command is on one thread, so that its workers are copies of it where the system can copy a process."""
    list(release_everyone(job_in(tmp_path / "here", model_path), people, Processes(1)))
    line = [sys.executable, "-m", "dphmm", "batch", str(walkers_file), "--model", str(model_path), "--seed", "1"]
    line += [
        "--policy",
        "utility:1km",
        "--epsilon",
        "1",
        "--files",
        "csv",
        "--workers",
        "2",
        "-o",
        str(tmp_path / "out"),
    ]
    subprocess.run(line, check=True, capture_output=True)
    assert bytes_by_user(tmp_path / "out") == bytes_by_user(tmp_path / "here")


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_changes_no_byte_though_a_worker_is_killed(model_path, people, walkers_file, tmp_path):
    distributed = pytest.importorskip("distributed")
    list(release_everyone(job_in(tmp_path / "here", model_path), people, Processes(1)))
    settings, finished = ReleaseSettings("utility:1km", 1.0), []
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, processes=True, protocol="tcp://"
    ) as cluster:
        victim = next(iter(cluster.workers.values())).pid

        def killing(items, what, total=None):
            for item in items:
                if not finished:
                    os.kill(victim, signal.SIGKILL)
                finished.append(item)
                yield item

        engine = DaskCluster(cluster.scheduler_address)
        folder = tmp_path / "out"
        found = batch(walkers_file, folder, model_path, settings, kind="csv", seed=1, engine=engine, watch=killing)
    assert len(found.done) == len(finished) == 9
    assert bytes_by_user(folder) == bytes_by_user(tmp_path / "here")


@pytest.mark.filterwarnings("ignore")
def test_threads_of_one_process_change_no_byte(model_path, people, tmp_path):
    distributed = pytest.importorskip("distributed")
    for name in ("here", "out"):
        (tmp_path / name).mkdir()
    list(release_everyone(job_in(tmp_path / "here", model_path), people, Processes(1)))
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=4, dashboard_address=None, processes=False, protocol="inproc://"
    ) as cluster:
        _engine.cache_clear()
        engine = DaskCluster(cluster.scheduler_address)
        assert len(list(release_everyone(job_in(tmp_path / "out", model_path), people, engine))) == 9
    assert bytes_by_user(tmp_path / "out") == bytes_by_user(tmp_path / "here")


def test_an_absent_scheduler_is_said_before_a_place_is_read_or_the_folder_made(model_path, tmp_path):
    pytest.importorskip("distributed")
    engine = DaskCluster("tcp://127.0.0.1:9", timeout_seconds=0.3)
    with pytest.raises(EngineError, match="cannot be reached"):
        batch("absent.csv", tmp_path / "out", model_path, ReleaseSettings("utility:1km", 1.0), engine=engine)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "dask"], "--scheduler"),
        (["--scheduler", "tcp://127.0.0.1:9"], "--engine dask"),
        (["--engine", "dask", "--scheduler", "tcp://127.0.0.1:9", "--workers", "2"], "--workers"),
        (["--workers", "0"], "'--workers': 0 is not in the range"),
    ],
)
def test_workers_that_contradict_each_other_are_one_line_and_write_nothing(
    model_path, walkers_file, tmp_path, options, said
):
    line = ["batch", str(walkers_file), "--model", str(model_path), "--policy", "utility:1km", "--epsilon", "1"]
    done = CliRunner().invoke(main, [*line, "-o", str(tmp_path / "out"), *options])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


def test_workers_and_an_engine_are_not_both_given(model_path, walkers_file, tmp_path):
    given = {"workers": 1, "engine": Processes(1)}
    with pytest.raises(ConfigurationError, match="give one of both"):
        batch(walkers_file, tmp_path / "out", model_path, ReleaseSettings("utility:1km", 1.0), **given)


def test_no_folder_holds_more_than_a_share_of_many_users(tmp_path):
    count = fewer(100_000, 20_000)
    folders = Counter(user_file(tmp_path, f"user-{number}", "csv").parent for number in range(count))
    assert len(folders) == 256
    assert max(folders.values()) < 1.6 * count / 256  # the names are fixed, and so is this


def test_the_threads_of_linear_algebra_change_no_byte(tmp_path, monkeypatch):
    """The belief goes a gap by powers of the matrix, whose last bits follow the number of threads: so without limits.

    The model has a limit of its own there, which is taken away: whatever runs in a piece of work is on one thread.

    Near the equator and Greenwich degrees are small numbers, whose texts show the last bits of an estimate.
    """
    monkeypatch.setattr("dphmm.model.transition_operator.one_thread", nullcontext)
    grid = Grid.over((-0.02, -0.02, 0.02, 0.02), 0.5)
    rng = np.random.default_rng(0)
    matrix = rng.dirichlet(np.ones(grid.size), grid.size)
    model = MarkovModel(matrix, np.full(grid.size, 1 / grid.size), grid, 60.0)
    model.save(tmp_path / "m.npz")
    places = grid.latlon(rng.integers(grid.size, size=20))
    times = np.datetime64("2024-03-01", "us") + np.arange(20) * np.timedelta64(33 * 60, "s")
    person = Trajectory("anna", times, places[:, 0], places[:, 1])
    settings = ReleaseSettings("utility:1km", 0.01)
    found: dict[str, list[bytes]] = {"limited": [], "not": []}
    for threads in (1, 2):
        for how, together in found.items():
            folder = tmp_path / f"{how}{threads}"
            folder.mkdir()
            job = BatchJob(str(folder), str(tmp_path / "m.npz"), model.content_hash, settings, 1, "csv")
            _engine.cache_clear()  # with the powers of the matrix
            with threadpool_limits(threads, user_api="blas"):
                if how == "limited":
                    list(release_everyone(job, [person], Processes(1)))
                else:
                    files = Published(folder, "csv")
                    files.add([_release_user(Person(job, files.part("anna"), person)).entry])
            together.append(bytes_by_user(folder)["anna"])
    if found["not"][0] == found["not"][1]:
        pytest.skip("here the last bits do not depend on the number of threads")
    assert found["limited"][0] == found["limited"][1]


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
    _engine(job.model, job.model_hash, job.settings)
    monkeypatch.setattr(Releaser, "restart", lambda self: (begun.append(1), restart(self))[1])
    list(release_everyone(job, [gapped], Processes(1)))
    assert len(begun) == 3, "one for the person's engine, and one for each session"
    table = read_releases(user_file(tmp_path, one.user, "csv"))
    first = int((table["time"] < late[30]).sum())
    assert table["forgotten_releases"].tolist() == [0] * first + [first] * (len(table) - first)
    assert 0 < first < len(table)


def capped(when: str, state: int = 20) -> ReleaseSettings:
    return ReleaseSettings("centres:1km", 2.0, caps=[{"event": f"at:{state} {when}", "probability": 0.6}])


def test_caps_are_kept_over_gaps_and_passed_over_where_the_event_was_over(model_path, people, tmp_path):
    """A day without a place is no new session; who begins after the event is released as without a cap, and counted."""
    one, model = people[1], MarkovModel.load(model_path)
    late = one.times.copy()
    late[30:] += np.timedelta64(1, "D")
    gapped = Trajectory("gapped", late, one.latitude, one.longitude)
    after = Trajectory("after", one.times + np.timedelta64(40, "D"), one.latitude, one.longitude)
    (there,) = model.space.locate(one.latitude[33:34], one.longitude[33:34]).tolist()
    start, end = (f"{time.astype('M8[s]')}Z" for time in late[[30, 37]])
    settings = capped(f"between {start} and {end}", there)
    job = replace(job_in(tmp_path, model_path), settings=settings, session_gap=None)
    done = {one.user: one for one in release_everyone(job, [gapped, after], Processes(1))}
    assert [done[name].counts["passed_over"] for name in ("gapped", "after")] == [0, 1]
    assert done["gapped"].counts["forgetting"] == 0
    file, event = user_file(tmp_path, "gapped", "csv"), str(settings.caps[0].event)
    assert min(read_releases(file)["epsilon"]) < 2.0
    assert not audit_event(file, model, event, settings, most_certainty=0.6).is_exposed
    free = replace(job_in(tmp_path / "free", model_path), settings=replace(settings, caps=()), session_gap=10**6)
    list(release_everyone(free, [gapped], Processes(1)))
    open_ = user_file(tmp_path / "free", "gapped", "csv")
    assert audit_event(open_, model, event, free.settings, most_certainty=0.6).is_exposed, (
        "without the cap it is passed"
    )
    assert set(read_releases(user_file(tmp_path, "after", "csv"))["epsilon"]) == {2.0}


def test_a_gap_that_forgets_goes_with_no_cap(model_path, tmp_path):
    with pytest.raises(ConfigurationError, match="a cap on an event counts all releases about a person; leave it out"):
        replace(job_in(tmp_path, model_path), settings=capped("between 2 and 5"), session_gap=10)


def test_someone_out_of_the_region_has_a_file_and_is_counted_unless_that_is_omitted(model_path, people, tmp_path):
    one = people[1]
    north = np.where(np.arange(len(one)) < 5, one.latitude, one.latitude + 1)
    for name, changes in (("border", {}), ("omit", {"settings": ReleaseSettings("utility:1km", 1.0, outside="omit")})):
        job = replace(job_in(tmp_path / name, model_path), **changes)
        (done,) = release_everyone(job, [Trajectory(one.user, one.times, north, one.longitude)], Processes(1))
        assert (done.entry.releases, done.counts["outside"]) == (len(one) if name == "border" else 5, len(one) - 5)


def test_names_that_are_paths_stay_in_the_folder(tmp_path):
    files = Published(tmp_path, "csv")
    for name in ("../../etc", "a/b", "..", "ü x", "%2F", ".", "-"):
        assert files.file(name).parent.parent == tmp_path
        assert files.file(name).parent.name == sha256(name.encode()).hexdigest()[:2]
        assert files.part(name).parent == tmp_path / "parts"
    assert len({files.file(name) for name in ("a/b", "a%2Fb", "a b", "a+b")}) == 4


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
    doubled = [*line, "--resume"]
    doubled[line.index("--epsilon") + 1] = "2"
    other = CliRunner().invoke(main, doubled)
    assert other.exit_code == 2
    assert "another settings" in other.stderr


@pytest.fixture(scope="module")
def killed(model_path, walkers_file, tmp_path_factory):
    """The folder of a batch without a seed, whose process was killed: everybody released, the key still there."""
    folder = tmp_path_factory.mktemp("killed") / "out"
    with pytest.MonkeyPatch.context() as until_killed:
        until_killed.setattr("dphmm.jobs.batches.KEY", "not unlinked")
        batch(walkers_file, folder, model_path, ReleaseSettings("utility:1km", 1.0), kind="csv", workers=1)
    assert (folder / KEY).exists()
    return folder


@pytest.fixture
def started(killed, model_path, walkers_file, tmp_path):
    """A copy of that folder, and how to go on with it."""
    folder = tmp_path / "out"
    shutil.copytree(killed, folder, ignore=shutil.ignore_patterns(LOCK))

    def go_on(**changes):
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

    return folder, go_on


def damage(folder, how):
    """What a crash, a power cut or a hand can do to a user's file, by way of example."""
    path = user_file(folder, "w3", "csv")
    if how == "absent":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut off":
        path.write_bytes(path.read_bytes()[:-40])
    else:
        path.write_bytes(path.read_bytes().replace(b"w3", b"w4"))


def test_a_lost_file_of_somebody_of_whom_nothing_is_left_to_release_is_refused(started):
    folder, _ = started
    damage(folder, "absent")
    with pytest.raises(DataFileError, match="cannot be made again as it was"):
        Published(folder, "csv").add([Entry("w3", 0, "")])


@pytest.mark.parametrize("how", ["absent", "empty", "cut off", "altered"])
def test_what_a_file_lost_is_made_again_as_it_was(started, how):
    folder, go_on = started
    before = bytes_by_user(folder)
    damage(folder, how)
    done = go_on()
    assert [one.user for one in done.done] == ["w3"]
    assert bytes_by_user(folder) == before
    assert not (folder / KEY).exists(), "a finished batch keeps no key"


@pytest.mark.parametrize("how", ["absent", "empty", "cut off", "altered"])
def test_a_finished_batch_says_what_is_damaged_and_draws_nothing_anew(started, how):
    folder, go_on = started
    go_on()
    damage(folder, how)
    before = bytes_by_user(folder)
    with pytest.raises(DataFileError, match=r"w3.csv.*cannot be made again as it was.*restore it") as caught:
        go_on()
    assert "\n" not in str(caught.value)
    assert bytes_by_user(folder) == before
    assert not (folder / KEY).exists()


def test_other_places_of_a_user_are_never_released_in_place_of_the_first(started, walkers_file, tmp_path):
    """Nor with the same noise, whose difference would be that of the places: see the next test."""
    folder, go_on = started
    damage(folder, "empty")
    moved = tmp_path / "moved.csv"
    moved.write_text(
        walkers_file.read_text().replace("w3,2024-03-01T00:05:00.000000Z,45.0", "w3,2024-03-01T00:05:00Z,45.01")
    )
    assert moved.read_text() != walkers_file.read_text()
    with pytest.raises(DataFileError, match="the data are others"):
        go_on(data=moved)
    assert (user_file(folder, "w3", "csv")).read_bytes() == b""
    assert list((folder / "parts").iterdir()) == []


def test_noise_depends_on_everything_that_it_is_added_to(model_path, people, tmp_path):
    """One fix elsewhere, a moment later, another name, other settings: the streams of noise have nothing in common."""
    job = job_in(tmp_path, model_path, seed=None, key=bytes(32))
    one = people[1]
    latitude = one.latitude.copy()
    latitude[17] += 1e-9
    others = [
        (job, Trajectory("w2", one.times, one.latitude, one.longitude)),
        (job, Trajectory("w1", one.times, latitude, one.longitude)),
        (job, Trajectory("w1", one.times + np.timedelta64(1, "us"), one.latitude, one.longitude)),
        (replace(job, settings=ReleaseSettings("utility:1km", 2.0)), one),
        (replace(job, session_gap=7), one),
        (replace(job, model_hash="another"), one),
        (replace(job, key=bytes(31) + b"1"), one),
        (job, one),
    ]
    streams = [asked.randomness(person).bytes(64) for asked, person in others]
    assert len(set(streams)) == len(streams)
    assert job.randomness(one).bytes(64) == streams[-1]


def test_a_file_that_the_journal_does_not_name_is_left_alone(started):
    folder, go_on = started
    journal = folder / JOURNAL
    journal.write_text("".join(line for line in journal.read_text().splitlines(keepends=True) if '"w3"' not in line))
    before = bytes_by_user(folder)
    with pytest.raises(DataFileError, match=r"w3.csv.*is not in released\.jsonl"):
        go_on()
    assert bytes_by_user(folder) == before


def test_a_line_that_was_cut_off_was_never_followed_by_a_file(started):
    """The journal is on the disk before the file has its name."""
    folder, go_on = started
    journal, before = folder / JOURNAL, bytes_by_user(folder)
    *lines, last = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines) + last[:20])
    user = json.loads(last)["user"]
    (user_file(folder, user, "csv")).unlink()
    assert [one.user for one in go_on().done] == [user]
    assert bytes_by_user(folder) == before
    assert [json.loads(line)["user"] for line in journal.read_text().splitlines()] == [f"w{i}" for i in range(9)]


def test_a_damaged_journal_is_refused_with_the_line(started):
    folder, go_on = started
    (folder / JOURNAL).write_text('{"user": "w1"}\n')
    with pytest.raises(DataFileError, match=r"released\.jsonl, line 1"):
        go_on()


def test_the_file_of_a_process_killed_before_the_name_was_given_is_shown_as_it_is(started):
    folder, go_on = started
    before = bytes_by_user(folder)
    files = Published(folder, "csv")
    os.replace(files.file("w3"), files.part("w3"))
    (folder / "parts" / "w9.csv").write_text("never finished")
    (folder / KEY).unlink()
    assert go_on().done == ()
    assert bytes_by_user(folder) == before
    assert list((folder / "parts").iterdir()) == []


def test_a_damaged_file_of_somebody_who_is_not_in_the_data_keeps_the_batch_unfinished(started, walkers_file, tmp_path):
    folder, go_on = started
    damage(folder, "empty")
    few = tmp_path / "few.csv"
    few.write_text("".join(line for line in walkers_file.read_text().splitlines(keepends=True) if line[:2] != "w3"))
    with pytest.raises(ConfigurationError, match=r"w3.csv.*give this user's data too"):
        go_on(data=few)
    assert (folder / KEY).exists()
    assert [one.user for one in go_on().done] == ["w3"]


def test_a_batch_that_another_process_holds_is_refused_by_name(started):
    folder, go_on = started
    damage(folder, "empty")
    lock = FolderLock(folder)
    with pytest.raises(OutputError, match=rf"held by process {os.getpid()}"):
        go_on()
    assert (user_file(folder, "w3", "csv")).read_bytes() == b""
    lock.release()
    go_on()


def test_a_user_in_two_inputs_is_refused(model_path, walkers_file, tmp_path):
    line = ["batch", str(walkers_file), str(walkers_file), "--model", str(model_path), "--policy", "complete"]
    done = CliRunner().invoke(main, [*line, "--epsilon", "1", "-o", str(tmp_path / "out"), "--workers", "1"])
    assert done.exit_code == 2
    assert "was in an input before" in done.stderr


def test_one_parquet_of_everyone_is_released_a_few_people_at_a_time_as_a_file_for_each_is(model_path, people, tmp_path):
    """With the same seed the same bytes, however few fixes are in memory; and what was dropped is counted in both."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from dphmm.readers import table as reader

    columns = {
        "user_id": np.concatenate([[one.user] * len(one) for one in people]),
        "tracked_at": np.concatenate([one.times for one in people]),
        "latitude": np.concatenate([one.latitude for one in people]),
        "longitude": np.concatenate([one.longitude for one in people]),
    }
    order = np.argsort(columns["tracked_at"], kind="stable")
    table = pa.table({name: values[order] for name, values in columns.items()})
    parquet.write_table(table, tmp_path / "all.parquet", row_group_size=50)
    settings = ReleaseSettings("utility:1km", 1.0)
    data, left = Data((tmp_path / "all.parquet",), exclude_users=("w3",)), []
    with pytest.MonkeyPatch.context() as small:
        small.setattr(reader, "MOST_FIXES", 60)
        small.setattr(reader.ParquetFixes.by_people, "__defaults__", (60,))
        made = {"few": batch(data, tmp_path / "few", model_path, settings, kind="csv", workers=1, seed=1)}
        list(data.one_after_another(left_out=left))
    made["all"] = batch(data, tmp_path / "all", model_path, settings, kind="csv", workers=1, seed=1)
    assert bytes_by_user(tmp_path / "few") == bytes_by_user(tmp_path / "all")
    assert len(bytes_by_user(tmp_path / "all")) == len(people) - 1
    excluded = ("people who are excluded", sum(len(one) for one in people if one.user == "w3"), 1)
    assert made["few"].dropped == made["all"].dropped
    assert left == [excluded]
    assert made["few"].dropped[0] == excluded
