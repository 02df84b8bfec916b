"""Whose data a job is about: one person stays one, however their files are named."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from contextlib import chdir
from pathlib import Path

import pytest

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs.people import Data

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
