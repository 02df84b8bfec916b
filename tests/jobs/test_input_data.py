"""Whose data a job is about: one person stays one, however their files are named."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from contextlib import chdir
from pathlib import Path

import pytest

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs import Budgets, Find, Scheme, count_people, landmark_planar, region
from dphmm.jobs.input_data import Data
from dphmm.space import Grid

ROOT = Path(__file__).parents[2]
TOWN = ROOT / "data" / "sample" / "geolife"
TRACK = ROOT / "data" / "sample" / "track.gpx"


def fixes_of(*paths, **options) -> dict[str, int]:
    return {one.user: len(one) for one in Data(paths, **options).read().trajectories}


EVERYONE = fixes_of(TOWN)


@pytest.mark.parametrize("level", ["Data/001", "Data/001/Trajectory", "Data/001/Trajectory/../", "Data/../Data/001"])
def test_any_folder_of_a_persons_geolife_files_is_that_person(level):
    assert fixes_of(TOWN / level) == {"001": EVERYONE["001"]}


def test_any_folder_above_is_everyone_and_several_folders_are_theirs():
    assert fixes_of(TOWN / "Data") == EVERYONE
    assert fixes_of(TOWN / "Data/000", TOWN / "Data/002/Trajectory") == {u: EVERYONE[u] for u in ("000", "002")}


def test_one_file_several_files_and_a_folder_named_from_within_are_that_person():
    files = sorted((TOWN / "Data/001/Trajectory").glob("*.plt"))
    assert list(fixes_of(files[0])) == ["001"]
    assert fixes_of(*files) == {"001": EVERYONE["001"]}
    for folder, word in (("Data/001", "."), ("Data/001", "Trajectory"), ("Data/001/Trajectory", "..")):
        with chdir(TOWN / folder):
            assert fixes_of(word) == {"001": EVERYONE["001"]}
    with chdir(files[0].parent):
        assert list(fixes_of(files[0].name)) == ["001"]


def packed(tmp_path, name, folder) -> Path:
    if name.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file in sorted(folder.rglob("*.plt")):
                archive.write(file, file.relative_to(folder))
    else:
        with tarfile.open(tmp_path / name, "w:gz") as archive:
            archive.add(folder, ".")
    return tmp_path / name


@pytest.mark.parametrize("name", ["some.zip", "some.tar.gz"])
def test_an_archive_is_that_person_where_it_holds_their_folder_and_is_refused_where_it_does_not(tmp_path, name):
    assert fixes_of(packed(tmp_path, name, TOWN / "Data")) == EVERYONE
    within = packed(tmp_path, name, TOWN / "Data/001")  # Trajectory/….plt: the archive's own name is nobody's
    with pytest.raises(DataFileError, match="name the person with --user NAME"):
        fixes_of(within)
    assert fixes_of(within, user="001") == {"001": EVERYONE["001"]}


def unnamed(folder: Path) -> dict[str, list[Path]]:
    """Format → two files of one person, neither of which says whose fixes it holds."""
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
def test_files_that_do_not_say_whose_they_are_are_nobodys_until_somebody_is_named(tmp_path, kind):
    one, two = unnamed(tmp_path / "all")[kind]
    for other in (tmp_path / "all").iterdir():
        if other.suffix != one.suffix:
            other.unlink()
    for paths in ((one,), (one, two), (one.parent,)):
        with pytest.raises(DataFileError, match=rf"day1\.{kind}: .* whose fixes .* --user NAME, or .*--user-per-file"):
            fixes_of(*paths)
        with pytest.raises(DataFileError, match="--user NAME"):
            list(Data(paths).one_after_another())
        assert list(fixes_of(*paths, user="ann")) == ["ann"]
    for paths in ((one, two), (one.parent,)):
        assert list(fixes_of(*paths, user_per_file=True)) == ["day1", "day2"]


def test_a_file_of_nobody_beside_files_of_somebody_is_refused(tmp_path):
    folder = tmp_path / "Data/007/Trajectory"
    folder.mkdir(parents=True)
    source = next((TOWN / "Data/000").rglob("*.plt"))
    shutil.copy(source, folder / "1.plt")
    assert fixes_of(tmp_path).keys() == {"007"}
    shutil.copy(source, tmp_path / "Data/2.plt")
    with pytest.raises(DataFileError, match=r"2\.plt: does not say whose"):
        fixes_of(tmp_path)


def test_two_people_whose_files_have_one_name_are_never_one(tmp_path):
    for person in ("ann", "bob"):
        (tmp_path / person).mkdir()
        shutil.copy(TRACK, tmp_path / person / "monday.gpx")
    for paths in ((tmp_path,), (tmp_path / "ann", tmp_path / "bob")):
        with pytest.raises(DataFileError, match=r"bob.*monday\.gpx: has the name of .*ann.*monday\.gpx"):
            fixes_of(*paths, user_per_file=True)


def test_words_about_whose_places_these_are_that_do_not_go_together_are_refused():
    with pytest.raises(ConfigurationError, match="give one of --user and --user-per-file"):
        fixes_of(TRACK, user="ann", user_per_file=True)
    with pytest.raises(ConfigurationError, match="choose people with --users, not --user"):
        fixes_of(ROOT / "data/sample/checkins.txt.gz", user="ann")


def test_names_of_all_paths_are_told_before_the_first_trajectory(tmp_path):
    lines = [f"{user},2024-03-07T09:00:00Z,45,-30\n" for user in ("ann", "bob", "eve")]
    paths = tuple(tmp_path / f"{at}.csv" for at in range(3))
    for path, line in zip(paths, lines, strict=True):
        path.write_text("user,time,lat,lon\n" + line)
    told = []
    people = Data(paths, exclude_users=("bob",)).one_after_another(told.append)
    assert told == [["ann", "eve"]]
    assert [person.user for person in people] == ["ann", "eve"]
    for data in (Data(paths, users=("zoe",)), Data((*paths, paths[0])), Data(paths[:1], exclude_users=("zoe",))):
        with pytest.raises(ConfigurationError, match=r"'zoe' is not in the data|'ann' was in an input before"):
            data.one_after_another(told.append)
    assert len(told) == 1


def test_each_fix_that_is_dropped_stands_under_one_reason(tmp_path):
    """Counted by hand: two fixes in one tick, one outside, one malformed, one twice, and people who are not meant."""
    lines = [
        *("ann,2024-03-07T09:00:10Z,45.001,-30", "ann,2024-03-07T09:00:50Z,45.001,-30"),
        *("ann,2024-03-07T09:02:00Z,45.001,-30", "ann,2024-03-07T09:02:00Z,45.001,-30"),
        *("ann,2024-03-07T09:03:00Z,55.001,-30", "ann,never,45.001,-30"),
        *("bob,2024-03-07T09:00:00Z,55.001,-30", "cyd,2024-03-07T09:00:00Z,45.001,-30"),
        *("dan,2024-03-07T09:00:00Z,45.001,-30", "dan,2024-03-07T09:01:00Z,45.001,-30"),
    ]
    (tmp_path / "all.csv").write_text("\n".join(["uid,time,lat,lon", *lines]))
    data = Data((tmp_path / "all.csv",), users=("ann", "bob", "dan"), exclude_users=("dan",), skip_bad=True)
    people, space = data.read(), Grid.over((44.99, -30.01, 45.01, -29.99), 0.5)
    found = {one.reason: (one.fixes, one.users) for one in people.dropped(space, 60.0)}
    assert found == {
        "malformed records, passed over": (1, None),
        "another fix of the same person and time": (1, None),
        "people who are excluded": (2, 1),
        "people who are not among those chosen": (1, 1),
        "another fix of the same person and tick of the clock": (1, 1),
        "outside the region, 1 of these people never within it": (2, 2),
    }
    kept = 2
    assert sum(fixes for fixes, _ in found.values()) + kept == len(lines)
    assert (
        people.dropped(space, 60.0, at_border=True)[-1].reason
        == "outside the region, taken for the nearest place of it"
    )
    assert Data((TOWN,)).read().dropped(Grid.over((40, -40, 50, -20), 100.0), 1e-3) == ()


def test_counts_and_landmarks_tell_what_they_did_not_look_at():
    town = Data((str(TOWN),), exclude_users=("002",))
    space = region(bbox=(44.98, -30.03, 45.02, -29.97), cell=1.0)
    people = town.read()
    left = {one.reason: one.fixes for one in count_people(town, Budgets(0.5), space, 3600, rng=1).dropped}
    kept = sum(len(one.resample(3600)) for one in people.trajectories)
    assert left["another fix of the same person and tick of the clock"] == people.fixes - kept
    assert sum(fixes for reason, fixes in left.items() if reason.startswith("outside the region")) > 0
    assert left["people who are excluded"] == Data((str(TOWN),)).read().fixes - people.fixes
    one = Data((str(TOWN),), users=("000",))
    done = landmark_planar(one, 0.2, (45, -30), 5, Find("home", utc_offset=-2), Scheme("skip"), step_seconds=1800)
    told = {entry.reason: entry.fixes for entry in done.dropped}
    assert told["another fix of the same person and tick of the clock"] == one.read().fixes - len(done.series.values)


def test_one_path_alone_is_not_read_letter_by_letter(tmp_path):
    (tmp_path / "all.csv").write_text("user,time,latitude,longitude\nann,2024-03-04T08:00:00Z,45.0,-30.0\n")
    for path in (str(tmp_path / "all.csv"), tmp_path / "all.csv"):
        assert [one.user for one in Data(path).read().trajectories] == ["ann"]
