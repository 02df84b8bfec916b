"""Every command with extreme values for its options: exit code 0, or 2 and one line, and nothing half-written."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import click
from click.testing import CliRunner

from dphmm import Limits, ReleaseSettings, Session
from dphmm.cli import main
from dphmm.jobs.input_data import Data
from dphmm.jobs.releases import release
from scripts.fuzzing import seeds, values
from scripts.fuzzing.attempt import Seed, Target

BASES = {name: shlex.split(said) for name, _, said in (line.partition(": ") for line in values.words("commands"))}
"""What each command is run with before it is changed: words that do well. The first words name the command."""

EXTREMES = [*values.words("options"), "", " ", "9" * 400, "9" * 5000, "-9" * 50, "x" * 100_000, "a\udc80b"]
EXTREMES += ["\x1b[2J\x07\r\n\x9b"]

SLOW = {"evaluate", "report", "report sessions", "show picture"}
"""Commands of seconds, of which tests do without."""

ORDERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class BadEndError(Exception):
    """A command that ended in another way than it says."""

    def __init__(self, kind: str, said: str = "") -> None:
        self.kind = kind
        super().__init__(f"{kind}: {said!r}")


def _words(name: str) -> list[Seed]:
    return [("words.json", json.dumps([name, *BASES[name]]).encode())]


def changed(data: bytes, rng: Random) -> bytes:
    """The words with an option or two at extreme values, a value replaced, or a word gone."""
    name, *words = json.loads(data)
    extreme = lambda: rng.choice((*EXTREMES, values.text(rng).replace("\x00", "")[:5000]))  # noqa: E731
    options = [found for found in _command(name).params if isinstance(found, click.Option)]
    for _ in range(rng.choice((1, 1, 1, 2))):
        kind = rng.random()
        if kind < 0.75 and options:
            option = rng.choice(options)
            flag = rng.choice(option.opts)
            if flag in words:
                at = words.index(flag)
                del words[at : at + 1 + (0 if option.is_flag else option.nargs)]
            words += [flag, *(() if option.is_flag else (extreme() for _ in range(option.nargs)))]
        elif kind < 0.95 and words:
            words[rng.randrange(len(words))] = extreme()
        elif words:
            del words[rng.randrange(len(words))]
    return json.dumps([name, *words]).encode()


def use(path: Path) -> None:
    """Run the command in a small world of its own, and look at how it ended."""
    name, *words = json.loads(path.read_bytes())
    with _world() as folder:
        before = {file.name for file in folder.iterdir()}
        stdin = (folder / "lines.json").read_text()
        done = CliRunner().invoke(main, [*_path(name), *words], input=stdin, prog_name="dphmm")
        left = {file.name for file in folder.iterdir()} - before - {"s.session-shm", "s.session-wal"}  # SQLite's own
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code not in (0, 1, 2) or (done.exit_code == 1 and _path(name)[0] != "audit"):
            raise BadEndError(f"exit code {done.exit_code}", done.stderr[-300:])
        if done.exit_code == 2 and not [line for line in done.stderr.splitlines() if line.startswith("dphmm")]:
            raise BadEndError("no line says why", done.stderr[-300:])
        if any(not line.startswith(("dphmm", "Report")) for line in done.stderr.splitlines()):
            raise BadEndError("other lines than ours", done.stderr[-300:])
        if ORDERS.search(done.stdout + done.stderr):
            raise BadEndError("control characters reach the terminal")
        kept = {"new"} | ({"new.session"} if "'dphmm session export' has what" in done.stderr else set())
        if any(".part" in file for file in left) or (done.exit_code == 2 and left - kept):
            raise BadEndError("left behind", str(sorted(left)))


def _path(name: str) -> list[str]:
    """The words that name a command."""
    command: click.Command = main
    path = []
    for word in name.split():
        found = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if found is None:
            break
        command = found
        path.append(word)
    return path


def _command(name: str) -> click.Command:
    command: Any = main
    for word in _path(name):
        command = command.get_command(click.Context(command), word)
    return command  # type: ignore[no-any-return]


COMMANDS = {f"dphmm {name}": Target(partial(_words, name), changed, use) for name in BASES}
"""Command → how it is attacked."""


@contextlib.contextmanager
def _world() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=_ROOM) as folder, contextlib.chdir(folder):
        for file in _template().iterdir():
            shutil.copy(file, folder)
        yield Path(folder)


_ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None


@cache
def _template() -> Path:
    """The files that the words name, made once for each process."""
    folder = Path(tempfile.mkdtemp(dir=_ROOM))
    for name, data in seeds.documents("world"):
        (folder / name).write_bytes(data)
    seeds.model().save(folder / "m.npz")
    settings = ReleaseSettings(policy="complete", epsilon=1.0)
    release(Data((str(folder / "walk.csv"),)), seeds.model(), settings, folder / "releases.csv", rng=1)
    with Session.open(folder / "s.session", "a", settings.engine(seeds.model(), 1), Limits(epsilon=10.0)) as opened:
        for slot in range(3):
            opened.release(slot, slot)
    return folder
