"""One function for all formats: recognition, named formats and unreadable files."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.readers import FORMATS, read, recognise
from tests import recordings

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
# Format → a file of the sample.
FILES = {
    "geolife": "geolife",
    "checkins": "checkins.txt.gz",
    "table": "table.csv",
    "gpx": "track.gpx",
    "owntracks": "phone.rec",
    "cabspotting": "cabs",
}


def test_sample_has_formats_that_tests_of_recordings_do_not_build():
    built = {name for name, _ in recordings.FILES.values()}
    assert set(FILES) | built == set(FORMATS)


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_recognized_and_matches_named_format(name):
    path = SAMPLE / FILES[name]
    assert recognise(path) == name
    assert read(path) == read(path, name) == read(path, skip_bad=True)


@pytest.mark.parametrize("name", ["checkins", "gpx", "owntracks", "table"])
def test_text_format_is_recognized_by_first_line_and_read_gzipped(name, tmp_path):
    data = (SAMPLE / FILES[name]).read_bytes()
    plain = gzip.decompress(data) if name == "checkins" else data
    (tmp_path / "download").write_bytes(plain)
    (tmp_path / "download.txt").write_bytes(plain)
    (tmp_path / "download.txt.gz").write_bytes(gzip.compress(plain))
    expected = read(SAMPLE / FILES[name])
    for copy in ("download", "download.txt", "download.txt.gz"):
        assert recognise(tmp_path / copy) == name
        assert read(tmp_path / copy).points == expected.points


@pytest.mark.parametrize("name", ["gpx", "owntracks", "table"])
def test_folder_tar_and_zip_give_equal_results(name, tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    shutil.copy(SAMPLE / FILES[name], folder)
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        tar.add(folder, "all")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.write(folder / FILES[name], f"all/{FILES[name]}")
    expected = read(SAMPLE / FILES[name])
    for path in (folder, tmp_path / "a.tgz", tmp_path / "a.zip"):
        assert recognise(path) == name
        assert read(path) == expected


def test_folder_with_several_formats_is_read(tmp_path):
    shutil.copy(SAMPLE / "track.gpx", tmp_path)
    shutil.copy(SAMPLE / "phone.rec", tmp_path)
    parts = [read(SAMPLE / name, user="me").points for name in ("track.gpx", "phone.rec")]
    result = read(tmp_path, user="me")
    assert result.points + result.merged >= sum(parts)
    assert read(tmp_path, "gpx").trajectories[0].user == "track"
    with pytest.raises(ConfigurationError, match="gpx, owntracks"):
        recognise(tmp_path)


def test_incompatible_options_raise():
    with pytest.raises(ConfigurationError, match="'shapefile'"):
        read(SAMPLE / "track.gpx", "shapefile")
    with pytest.raises(ConfigurationError, match="only tables"):
        read(SAMPLE / "track.gpx", columns={"time": "when"})


@pytest.mark.parametrize("content", [b"", b"just some words\n", b"\x01\x02\x03"])
def test_unknown_file_raises_in_one_line(tmp_path, content):
    (tmp_path / "x.dat").write_bytes(content)
    with pytest.raises(DataFileError, match="format=") as caught:
        read(tmp_path / "x.dat")
    assert "\n" not in str(caught.value)


def write_broken_files(tmp_path):
    tmp_path.joinpath("empty").mkdir()
    with tarfile.open(tmp_path / "cut.tar.gz", "w:gz") as tar:
        tar.add(SAMPLE / "geolife", "Data")
    whole = (tmp_path / "cut.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        packed.write(SAMPLE / "track.gpx", "a.gpx")
    data = bytearray((tmp_path / "bad.zip").read_bytes())
    data[2000] ^= 255
    (tmp_path / "bad.zip").write_bytes(bytes(data))
    (tmp_path / "not.tar").write_bytes(b"no archive")
    (tmp_path / "flip.csv.gz").write_bytes(gzip.compress(b"uid,time,lat,lon\n")[:-3])
    return ["empty", "cut.tar.gz", "bad.zip", "not.tar", "flip.csv.gz", "absent.gpx"]


def test_unreadable_files_raise_in_one_line_with_file_name(tmp_path):
    for name in write_broken_files(tmp_path):
        with pytest.raises(DataFileError) as caught:
            read(tmp_path / name)
        assert "\n" not in str(caught.value)
        assert str(tmp_path / name) in str(caught.value)


def test_file_without_permission_raises(tmp_path, monkeypatch):
    path = tmp_path / "a.gpx"
    path.write_bytes(b"<gpx/>")

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataFileError, match="cannot be read"):
        read(path)


@pytest.mark.slow
def test_every_public_file_is_read_or_raises_in_one_line(real_data):
    for path in sorted(real_data.rglob("*")):
        if path.suffix in {".gpx", ".rec", ".gz"} and "geolife_beijing" not in path.name:
            outcome = ""
            try:
                outcome = f"{path}: {read(path).points} points"
            except DataFileError as problem:
                outcome = str(problem)
            assert outcome.startswith(str(path))
            assert "\n" not in outcome


def test_reference_system_of_a_shapefile_is_passed_over(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("user,time,latitude,longitude\na,2024-03-07T09:00:00Z,45.0,7.0\n")
    (tmp_path / "a.prj").write_text('GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.25]],UNIT["d",1]]')
    assert len(read(tmp_path).trajectories) == 1
    assert "passed over 1 file without a recording: a.prj" in caplog.text
