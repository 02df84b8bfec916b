from __future__ import annotations

import os
import stat

import pytest

from dphmm.errors import OutputError
from dphmm.tables import check_output, new_file, write_text


def test_a_file_appears_only_when_the_block_ends(tmp_path):
    path = tmp_path / "out.txt"
    with new_file(path) as part:
        part.write_text("whole")
        assert not path.exists()
        assert part.suffix == ".txt"
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("failure", [ValueError("broken"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_nothing_stays_behind_when_the_block_fails(tmp_path, failure):
    path = tmp_path / "out.[1]?.gpkg"
    expected = OutputError if isinstance(failure, OSError) else type(failure)

    def write_half():
        with new_file(path) as part:
            part.write_text("half")
            part.with_name(part.name + "-journal").write_text("left by SQLite")
            raise failure

    with pytest.raises(expected):
        write_half()
    assert os.listdir(tmp_path) == []


def test_a_failure_leaves_the_old_file_as_it_was(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")

    def write_half():
        with new_file(path, overwrite=True) as part:
            part.write_text("new")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        write_half()
    assert path.read_text() == "old"


def test_an_existing_output_is_refused_unless_asked_for(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(OutputError, match=r"exists; name another file or pass --overwrite"):
        write_text(path, "new")
    assert path.read_text() == "old"
    write_text(path, "new", overwrite=True)
    assert path.read_text() == "new"


def test_an_output_that_came_to_be_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "out.txt"

    def write_while_another_does():
        with new_file(path) as part:
            part.write_text("mine")
            path.write_text("theirs")

    with pytest.raises(OutputError, match="exists"):
        write_while_another_does()
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_folder_in_the_place_and_a_missing_folder_are_refused(tmp_path):
    with pytest.raises(OutputError, match="is a folder"):
        check_output(tmp_path, overwrite=True)
    with pytest.raises(OutputError, match="there is no folder"):
        check_output(tmp_path / "absent" / "out.csv")


def test_a_private_file_is_for_its_owner_alone_from_the_first_byte_on(tmp_path):
    path = tmp_path / "secret.csv"
    with new_file(path, private=True) as part:
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        part.write_text("private")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
