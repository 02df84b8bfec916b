from __future__ import annotations

import errno
import os
import stat
import sys

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, OutputError
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.tables import check_output, create_file, create_private_file, write_text
from dphmm.tables.output import lock_folder

MODEL = MarkovModel(np.eye(3), np.full(3, 1 / 3))


def test_file_appears_only_at_end_of_block(tmp_path):
    path = tmp_path / "out.txt"
    with create_file(path) as part:
        part.write_text("whole")
        assert not path.exists()
        assert part.suffix == ".txt"
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("failure", [ValueError("broken"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_failed_block_leaves_no_files(tmp_path, failure):
    path = tmp_path / "out.[1]?.gpkg"
    expected = OutputError if isinstance(failure, OSError) else type(failure)

    def write_half():
        with create_file(path) as part:
            part.write_text("half")
            part.with_name(part.name + "-journal").write_text("left by SQLite")
            raise failure

    with pytest.raises(expected):
        write_half()
    assert os.listdir(tmp_path) == []


def test_failed_block_keeps_existing_file(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")

    def write_half():
        with create_file(path, overwrite=True) as part:
            part.write_text("new")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        write_half()
    assert path.read_text() == "old"


def test_existing_file_without_overwrite_raises(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(OutputError, match="--overwrite"):
        write_text(path, "new")
    assert path.read_text() == "old"
    write_text(path, "new", overwrite=True)
    assert path.read_text() == "new"


def test_error_of_block_names_file_instead_of_temporary_one(tmp_path):
    path = tmp_path / "out.txt"
    with pytest.raises(OutputError, match=r"out\.txt cannot be written") as caught, create_file(path) as part:
        raise OutputError(f"{part} cannot be written")
    assert str(caught.value) == f"{path} cannot be written"


def test_file_created_during_block_is_kept(tmp_path):
    path = tmp_path / "out.txt"

    def write_while_another_does():
        with create_file(path) as part:
            part.write_text("mine")
            path.write_text("theirs")

    with pytest.raises(OutputError, match="exists"):
        write_while_another_does()
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_folder_as_output_and_missing_folder_raise(tmp_path):
    with pytest.raises(OutputError, match="is a folder"):
        check_output(tmp_path, overwrite=True)
    with pytest.raises(OutputError, match=r"folder .*absent does not exist; create it"):
        check_output(tmp_path / "absent" / "out.csv")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
def test_pipe_is_not_replaced(tmp_path):
    """A device such as /dev/null is refused by the same check."""
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(OutputError, match=r"pipe\.csv is not a regular file; name another file"):
        write_text(tmp_path / "pipe.csv", "a", overwrite=True)
    assert (tmp_path / "pipe.csv").is_fifo()


def test_private_file_is_readable_by_owner_only_from_start(tmp_path):
    path = tmp_path / "secret.csv"
    with create_file(path, private=True) as part:
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        part.write_text("private")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_file_and_folder_are_synced_around_rename(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def record_sync(handle):
        status = os.fstat(handle)
        done.append(("folder" if stat.S_ISDIR(status.st_mode) else "file", status.st_ino))
        fsync(handle)

    def record_rename(part, path):
        done.append(("rename", os.stat(part).st_ino))
        replace(part, path)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_rename)
    write_text(tmp_path / "out.txt", "whole")
    file, folder = os.stat(tmp_path / "out.txt").st_ino, os.stat(tmp_path).st_ino
    assert done == [("file", file), ("rename", file), ("folder", folder)]


@pytest.mark.parametrize(
    "write",
    [lambda path: MODEL.save(path), lambda path: PolicyGraph.complete(3).to_json(path)],
    ids=["model", "policy"],
)
def test_saved_models_and_graphs_are_renamed_into_place(tmp_path, monkeypatch, write):
    renamed = []
    monkeypatch.setattr(os, "replace", lambda part, path: renamed.append(path))
    write(tmp_path / "out")
    assert renamed == [tmp_path / "out"]
    assert os.listdir(tmp_path) == []


def test_new_private_file_requires_private_name_and_has_mode_0600(tmp_path):
    named = pytest.raises(
        ConfigurationError, match=r"secret\.csv: .*true locations must contain 'private'; use .*PRIVATE-secret"
    )
    with named, create_private_file(tmp_path / "secret.csv"):
        pass
    path = tmp_path / "PRIVATE-secret.csv"
    path.write_text("old and readable by all")
    path.chmod(0o644)
    with create_private_file(path, overwrite=True) as part:
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        part.write_text("new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_replacement_of_private_file_is_private_from_start(tmp_path):
    with create_file(tmp_path / "PRIVATE-model.npz", private=True) as outer:
        MODEL.save(outer)  # MODEL.save makes its own file in the same folder, and renames it
        assert stat.S_IMODE(outer.stat().st_mode) == 0o600
    path = tmp_path / "PRIVATE-model.npz"
    with create_file(path, overwrite=True) as part:
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        part.write_text("new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def open_unreadable(*_):
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no locks of folders")
def test_folder_that_may_not_be_read_raises_instead_of_remaining_unlocked(tmp_path, monkeypatch):
    with lock_folder(tmp_path / "missing"):
        pass
    monkeypatch.setattr(os, "open", open_unreadable)  # permissions do not bind the superuser
    with pytest.raises(OutputError, match="must be readable to be locked; choose another, or change its permissions"):
        lock_folder(tmp_path).__enter__()
