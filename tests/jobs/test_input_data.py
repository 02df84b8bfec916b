"""Tests of input data: fixes are assigned to the same user however files are named."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError
from dphmm.jobs import Budgets, LandmarkFinder, Scheme, count_users, region, release_track_with_planar_noise
from dphmm.jobs.input_data import Data
from dphmm.space import Grid

ROOT = Path(__file__).parents[2]
TOWN = ROOT / "data" / "sample" / "geolife"
TRACK = ROOT / "data" / "sample" / "track.gpx"


def count_fixes(*paths, **options) -> dict[str, int]:
    return {trajectory.user: len(trajectory) for trajectory in Data(paths, **options).read().trajectories}


EVERYONE = count_fixes(TOWN)


@pytest.mark.parametrize("level", ["Data/001", "Data/001/Trajectory", "Data/001/Trajectory/../", "Data/../Data/001"])
def test_every_folder_of_geolife_user_is_that_user(level):
    assert count_fixes(TOWN / level) == {"001": EVERYONE["001"]}


def test_parent_folder_reads_all_users_and_multiple_folders_only_theirs():
    assert count_fixes(TOWN / "Data") == EVERYONE
    assert count_fixes(TOWN / "Data/000", TOWN / "Data/002/Trajectory") == {u: EVERYONE[u] for u in ("000", "002")}


def test_files_and_relative_folders_are_that_user():
    files = sorted((TOWN / "Data/001/Trajectory").glob("*.plt"))
    assert list(count_fixes(files[0])) == ["001"]
    assert count_fixes(*files) == {"001": EVERYONE["001"]}
    for folder, word in (("Data/001", "."), ("Data/001", "Trajectory"), ("Data/001/Trajectory", "..")):
        with chdir(TOWN / folder):
            assert count_fixes(word) == {"001": EVERYONE["001"]}
    with chdir(files[0].parent):
        assert list(count_fixes(files[0].name)) == ["001"]


def pack(tmp_path, name, folder) -> Path:
    if name.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file in sorted(folder.rglob("*.plt")):
                archive.write(file, file.relative_to(folder))
    else:
        with tarfile.open(tmp_path / name, "w:gz") as archive:
            archive.add(folder, ".")
    return tmp_path / name


@pytest.mark.parametrize("name", ["some.zip", "some.tar.gz"])
def test_archive_is_read_if_it_contains_user_folder_and_raises_otherwise(tmp_path, name):
    assert count_fixes(pack(tmp_path, name, TOWN / "Data")) == EVERYONE
    within = pack(tmp_path, name, TOWN / "Data/001")  # Trajectory/….plt: the archive's own name is not a user
    with pytest.raises(DataFileError, match="--user NAME"):
        count_fixes(within)
    assert count_fixes(within, user="001") == {"001": EVERYONE["001"]}


def write_unnamed(folder: Path) -> dict[str, list[Path]]:
    """Write two files per format of one user, neither of which names the user."""
    folder.mkdir(exist_ok=True)
    texts = {
        "csv": "time,lat,lon\n2024-03-0{0}T09:00:00Z,45,-30\n",
        "rec": '2024-03-0{0}T09:00:00Z\t*\t{{"_type":"location","tst":170970000{0},"lat":45,"lon":-30}}\n',
        "geojson": '{{"type":"FeatureCollection","features":[{{"type":"Feature","properties":'
        '{{"time":"2024-03-0{0}T09:00Z"}},"geometry":{{"type":"Point","coordinates":[-30,45]}}}}]}}\n',
    }
    files: dict[str, list[Path]] = {}
    for day in (1, 2):
        for suffix, text in texts.items():
            files.setdefault(suffix, []).append(folder / f"day{day}.{suffix}")
            files[suffix][-1].write_text(text.format(day))
        for suffix, source in (("gpx", TRACK), ("plt", next((TOWN / "Data/000").rglob("*.plt")))):
            files.setdefault(suffix, []).append(folder / f"day{day}.{suffix}")
            shutil.copy(source, files[suffix][-1])
    return files


@pytest.mark.parametrize("kind", ["csv", "rec", "geojson", "gpx", "plt"])
def test_files_without_user_raise_unless_user_is_given(tmp_path, kind):
    first, second = write_unnamed(tmp_path / "all")[kind]
    for other in (tmp_path / "all").iterdir():
        if other.suffix != first.suffix:
            other.unlink()
    for paths in ((first,), (first, second), (first.parent,)):
        with pytest.raises(
            DataFileError, match=rf"day1\.{kind}: does not specify a user; .* --user NAME, or .*user_per_file"
        ):
            count_fixes(*paths)
        with pytest.raises(DataFileError, match="--user NAME"):
            list(Data(paths).stream_by_path())
        assert list(count_fixes(*paths, user="ann")) == ["ann"]
    for paths in ((first, second), (first.parent,)):
        assert list(count_fixes(*paths, user_per_file=True)) == ["day1", "day2"]


def test_file_without_user_next_to_user_files_raises(tmp_path):
    folder = tmp_path / "Data/007/Trajectory"
    folder.mkdir(parents=True)
    source = next((TOWN / "Data/000").rglob("*.plt"))
    shutil.copy(source, folder / "1.plt")
    assert count_fixes(tmp_path).keys() == {"007"}
    shutil.copy(source, tmp_path / "Data/2.plt")
    with pytest.raises(DataFileError, match=r"2\.plt"):
        count_fixes(tmp_path)


def test_equal_file_names_of_two_users_raise(tmp_path):
    for user in ("ann", "bob"):
        (tmp_path / user).mkdir()
        shutil.copy(TRACK, tmp_path / user / "monday.gpx")
    for paths in ((tmp_path,), (tmp_path / "ann", tmp_path / "bob")):
        with pytest.raises(DataFileError, match=r"bob.*monday\.gpx.*ann.*monday\.gpx"):
            count_fixes(*paths, user_per_file=True)


def test_conflicting_user_options_raise():
    with pytest.raises(ConfigurationError, match="--user cannot be combined with user_per_file"):
        count_fixes(TRACK, user="ann", user_per_file=True)
    with pytest.raises(ConfigurationError, match=r"--user cannot be combined .*--users"):
        count_fixes(ROOT / "data/sample/checkins.txt.gz", user="ann")


def test_user_names_are_announced_before_first_trajectory(tmp_path):
    lines = [f"{user},2024-03-07T09:00:00Z,45,-30\n" for user in ("ann", "bob", "eve")]
    paths = tuple(tmp_path / f"{at}.csv" for at in range(3))
    for path, line in zip(paths, lines, strict=True):
        path.write_text("user,time,lat,lon\n" + line)
    announced = []
    tracks = Data(paths, exclude_users=("bob",)).stream_by_path(announced.append)
    assert announced == [["ann", "eve"]]
    assert [track.user for track in tracks] == ["ann", "eve"]
    for data in (Data(paths, users=("zoe",)), Data((*paths, paths[0])), Data(paths[:1], exclude_users=("zoe",))):
        with pytest.raises(ConfigurationError, match=r"'zoe'|'ann'"):
            data.stream_by_path(announced.append)
    assert len(announced) == 1


def test_each_dropped_fix_has_one_reason(tmp_path):
    """Counts by hand: duplicate, outside, malformed and repeated fixes, and excluded users."""
    lines = [
        *("ann,2024-03-07T09:00:10Z,45.001,-30", "ann,2024-03-07T09:00:50Z,45.001,-30"),
        *("ann,2024-03-07T09:02:00Z,45.001,-30", "ann,2024-03-07T09:02:00Z,45.001,-30"),
        *("ann,2024-03-07T09:03:00Z,55.001,-30", "ann,never,45.001,-30"),
        *("bob,2024-03-07T09:00:00Z,55.001,-30", "cyd,2024-03-07T09:00:00Z,45.001,-30"),
        *("dan,2024-03-07T09:00:00Z,45.001,-30", "dan,2024-03-07T09:01:00Z,45.001,-30"),
    ]
    (tmp_path / "all.csv").write_text("\n".join(["uid,time,lat,lon", *lines]))
    data = Data((tmp_path / "all.csv",), users=("ann", "bob", "dan"), exclude_users=("dan",), skip_bad=True)
    user_tracks, space = data.read(), Grid.over((44.99, -30.01, 45.01, -29.99), 0.5)
    counts = {
        reason_count.reason: (reason_count.fixes, reason_count.users)
        for reason_count in user_tracks.count_dropped_fixes(space, 60.0)
    }
    assert counts == {
        "malformed records": (1, None),
        "replaced by a fix of the same user and time": (1, None),
        "excluded by --exclude-users": (2, 1),
        "excluded by --users": (1, 1),
        "replaced by a fix of the same timestep": (1, 1),
        "outside the region, 1 user never inside": (2, 2),
    }
    kept = 2
    assert sum(fixes for fixes, _ in counts.values()) + kept == len(lines)
    assert (
        user_tracks.count_dropped_fixes(space, 60.0, at_border=True)[-1].reason
        == "outside the region, moved to its nearest location"
    )
    assert Data((TOWN,)).read().count_dropped_fixes(Grid.over((40, -40, 50, -20), 100.0), 1e-3) == ()


def test_counts_and_landmarks_report_dropped_fixes():
    town = Data((str(TOWN),), exclude_users=("002",))
    space = region(bbox=(44.98, -30.03, 45.02, -29.97), cell_km=1.0)
    user_tracks = town.read()
    left = {
        reason_count.reason: reason_count.fixes
        for reason_count in count_users(town, Budgets(0.5), space, 3600, rng=1).dropped
    }
    kept = sum(len(trajectory.resample(3600)) for trajectory in user_tracks.trajectories)
    assert left["replaced by a fix of the same timestep"] == user_tracks.fixes - kept
    assert sum(fixes for reason, fixes in left.items() if reason.startswith("outside the region")) > 0
    assert left["excluded by --exclude-users"] == Data((str(TOWN),)).read().fixes - user_tracks.fixes
    user_data = Data((str(TOWN),), users=("000",))
    done = release_track_with_planar_noise(
        user_data, 0.2, (45, -30), 5, LandmarkFinder("home", utc_offset=-2), Scheme("skip"), step_seconds=1800
    )
    counts = {entry.reason: entry.fixes for entry in done.dropped}
    assert counts["replaced by a fix of the same timestep"] == user_data.read().fixes - len(done.series.values)


def test_single_path_is_accepted(tmp_path):
    (tmp_path / "all.csv").write_text("user,time,latitude,longitude\nann,2024-03-04T08:00:00Z,45.0,-30.0\n")
    for path in (str(tmp_path / "all.csv"), tmp_path / "all.csv"):
        assert [trajectory.user for trajectory in Data(path).read().trajectories] == ["ann"]


@pytest.mark.parametrize("paths", [5, {"user": ["ann"]}, np.zeros(3)])
def test_paths_of_another_type_raise(paths):
    with pytest.raises(InvalidInputError, match="paths must be a tuple of paths, tables or trajectories, got a "):
        Data(paths)
