"""Every command with extreme values for its options: exit code 0, or 2 and one line, and nothing half-written."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import click
import numpy as np
from click.testing import CliRunner

from dphmm import Limits, ReleaseSettings, Session
from dphmm.cli import main
from dphmm.jobs.input_data import Data
from dphmm.jobs.releases import release
from dphmm.tables import TimedTable
from scripts.fuzzing import seeds, values
from scripts.fuzzing.attempt import Target

_BOX = ["--bbox", "44.995", "-30.015", "45.005", "-29.985", "--cell", "0.5"]
_GIVEN = ["--model", "m.npz", "--policy", "complete", "--epsilon", "1"]
_WALK = ["walk.csv", *_GIVEN]
_ONE = ["walk.csv", "--users", "a", "--at", "2024-03-07T09:01:00"]
_PLANAR = [*_ONE, "--unit", "1", "--centre", "45", "-30"]

BASES = {
    "learn": ["walk.csv", "-o", "new.npz", *_BOX],
    "hide": ["ride.gpx", "--ends", "--within", "100m", "-o", "new.gpx"],
    "model blank": ["-o", "new.npz", *_BOX],
    "model show": ["m.npz"],
    "calibrate": ["--model", "m.npz", "--policy", "complete", "--error", "100m", "--people", "0"],
    "synthesize": ["--model", "m.npz", "--people", "3", "--days", "0.01", "-o", "new.csv"],
    "flows": ["walk.csv", "--user-epsilon", "1", *_BOX, "-o", "new.csv"],
    "release": [*_WALK, "-o", "new.csv", "--allow-own-model"],
    "release session": [*_WALK, "--session", "new.session", "--limit-epsilon", "50", "-o", "new.csv"],
    "release stream": [*_GIVEN, "--seed", "1"],
    "release job": ["--job", "job.toml"],
    "certify": ["releases.csv", *_GIVEN, "-o", "new.json"],
    "session list": ["s.session"],
    "session show": ["s.session", "a"],
    "session export": ["s.session", "-o", "new.jsonl"],
    "batch": [*_WALK, "-o", "new", "--workers", "1", "--files", "csv"],
    "evaluate": ["e.toml", "-o", "new", "--workers", "1", "--no-pictures"],
    "show": ["releases.csv", "-o", "new.html"],
    "audit policy": _GIVEN,
    "audit policy tables": ["--states", "states.csv", "--edges", "edges.csv"],
    "audit session": ["releases.csv", *_GIVEN],
    "audit identity": ["releases.csv", *_GIVEN, "--known", "earlier.csv"],
    "audit utility": ["releases.csv", "--model", "m.npz", "--true", "walk.csv"],
    "audit event": ["s.session", "--model", "m.npz", "--event", "state:1 between 0 and 1"],
    "audit mechanism": [*_GIVEN, "--samples", "200", "--pairs", "1", "--seed", "1"],
    "attack": ["walk.csv", "--model", "m.npz", "--allow-own-model", "--channel", "round:2", "-o", "PRIVATE-new.csv"],
    "leak": ["--forward", "matrix.csv", "--epsilon", "1", "--steps", "4"],
    "leak model": ["--model", "m.npz", "--releases", "releases.csv", "--of", "a"],
    "budget": ["--forward", "matrix.csv", "--alpha", "1", "--steps", "4"],
    "counts release": ["walk.csv", "--model", "m.npz", "--epsilon", "1", "-o", "new.csv"],
    "counts release counts": ["--counts", "true.csv", "--epsilon", "1", "-o", "new.csv"],
    "counts postprocess": ["noisy.csv", "--users", "10", "--transition", "matrix.csv", "-o", "new.csv"],
    "counts evaluate": ["true.csv", "--transition", "matrix.csv", "--epsilon", "1", "--runs", "1", "--seed", "1"],
    "landmarks": ["series.csv", "-o", "new.csv", "--epsilon", "1", "--sensitivity", "1", "--at", "2", "--seed", "1"],
    "landmarks planar": [*_PLANAR, "-o", "new.csv", "--epsilon", "1", "--seed", "1"],
    "landmarks policy": [*_ONE, *_GIVEN, "-o", "new.csv", "--seed", "1"],
    "data fetch": ["gowalla", "--to", ".", "--base-url", "http://127.0.0.1:9"],
    "report": ["releases.csv", *_GIVEN, "-o", "new.html"],
    "report sessions": ["s.session", "--model", "m.npz", "-o", "new.html"],
    "show picture": ["releases.csv", "-o", "PRIVATE-new.svg", "--model", "m.npz", "--true", "walk.csv"],
}
"""What each command is run with before it is changed: words that do well. The first words name the command."""

EXTREMES = [*values.words("options"), "", " ", "9" * 400, "9" * 5000, "-9" * 50, "x" * 100_000, "a\udc80b"]
EXTREMES += ["\x1b[2J\x07\r\n\x9b"]

SLOW = {"evaluate", "report", "report sessions", "show picture"}
"""Commands of seconds, of which tests do without."""

_ORDERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class BadEndError(Exception):
    """A command that ended in another way than it says."""

    def __init__(self, kind: str, said: str = "") -> None:
        self.kind = kind
        super().__init__(f"{kind}: {said!r}")


def words_of(name: str) -> list[seeds.Seed]:
    """The words of a command that do well, as a document."""
    return [("words.json", json.dumps([name, *BASES[name]]).encode())]


def changed(data: bytes, rng: Random) -> bytes:
    """The words with an option or two at extreme values, a value replaced, or a word gone."""
    name, *words = json.loads(data)
    options = [found for found in _command(name).params if isinstance(found, click.Option)]
    for _ in range(rng.choice((1, 1, 1, 2))):
        kind = rng.random()
        if kind < 0.75 and options:
            option = rng.choice(options)
            flag = rng.choice(option.opts)
            if flag in words:
                at = words.index(flag)
                del words[at : at + 1 + (0 if option.is_flag else option.nargs)]
            words += [flag, *(() if option.is_flag else (_extreme(rng) for _ in range(option.nargs)))]
        elif kind < 0.95 and words:
            words[rng.randrange(len(words))] = _extreme(rng)
        elif words:
            del words[rng.randrange(len(words))]
    return json.dumps([name, *words]).encode()


def _extreme(rng: Random) -> str:
    return rng.choice(EXTREMES) if rng.random() < 0.9 else values.text(rng).replace("\x00", "")[:5000]


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
        if _ORDERS.search(done.stdout + done.stderr):
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


COMMANDS = {f"dphmm {name}": Target(partial(words_of, name), changed, use) for name in BASES}
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
    head, *rows = seeds.csv()[0][1].decode().splitlines()
    later = [row.replace("a,", f"{user},", 1) for user in "cd" for row in rows if row.startswith("a,")]
    (folder / "walk.csv").write_text("\n".join([head, *rows, *later]) + "\n")
    (folder / "earlier.csv").write_text((folder / "walk.csv").read_text().replace("2024-03-07", "2024-03-06"))
    seeds.model().save(folder / "m.npz")
    settings = ReleaseSettings(policy="complete", epsilon=1.0)
    release(Data((str(folder / "walk.csv"),)), seeds.model(), settings, folder / "releases.csv", rng=1)
    with Session.open(folder / "s.session", "a", settings.engine(seeds.model(), 1), Limits(epsilon=10.0)) as opened:
        for slot in range(3):
            opened.release(slot, slot)
    (folder / "matrix.csv").write_bytes(seeds.matrix_csv()[0][1])
    (folder / "states.csv").write_bytes(seeds.states()[0][1])
    (folder / "edges.csv").write_bytes(seeds.edges()[0][1])
    fixes = "".join(f'<trkpt lat="45.001" lon="{-30.012 + at / 2500:.6f}"/>' for at in range(60))
    (folder / "ride.gpx").write_text(f'<gpx version="1.1"><trk><trkseg>{fixes}</trkseg></trk></gpx>')
    (folder / "lines.json").write_bytes(seeds.lines()[0][1] + b"\n")
    (folder / "job.toml").write_text(
        'data = ["walk.csv"]\nmodel = "m.npz"\npolicy = "complete"\nepsilon = 1.0\noutput = "new.csv"\n'
    )
    (folder / "e.toml").write_text(
        'data = ["walk.csv"]\nbbox = [44.995, -30.015, 45.005, -29.985]\ncell_km = 0.5\nstep_seconds = 60.0\n'
        'sequences = 2\nlength = 3\npolicies = ["complete"]\nfolds = 2\n'
    )
    counts = np.array([[8, 1, 1], [3, 6, 1], [2, 3, 5], [4, 3, 3]])
    TimedTable(np.arange(4), {f"p{at}": counts[:, at] for at in range(3)}).write(folder / "true.csv")
    noisy = {"epsilon": np.ones(4), **{f"p{at}": counts[:, at] + at - 1 for at in range(3)}}
    TimedTable(np.arange(4), noisy).write(folder / "noisy.csv")
    TimedTable(np.arange(5), {"value": np.arange(5.0)}).write(folder / "series.csv")
    return folder
