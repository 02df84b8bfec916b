"""Tests that files with true locations are private in name and mode, and others have none.

Each command runs with users with names, places and cells occur nowhere else. Every file that it leaves is listed and
searched for them.
"""

from __future__ import annotations

import re
import stat
from base64 import b64decode
from importlib import import_module
from pathlib import Path

import click
import numpy as np
import pytest

from dphmm.cli import COMMANDS, main
from dphmm.jobs.batch.run_folder import JOURNAL, KEY, LOCK, get_user_file_path
from dphmm.model.model import MarkovModel
from dphmm.plots.webmap import DEGREES
from dphmm.space import Grid

pytest.importorskip("matplotlib")
parquet = pytest.importorskip("pyarrow.parquet")

BOX = (44.995, -30.015, 45.005, -29.985)
NAMES = ("theodora", "ambrose", "wilhelmina")
CELL = "0.3333"
EPSILON = ("--epsilon", "0.1")
RELEASE = ("--model", "m.npz", "--policy", "complete", *EPSILON)
EVALUATION = """data = ["walks.csv"]
bbox = [44.995, -30.015, 45.005, -29.985]
cell_km = 0.3333
step_seconds = 60.0
mechanism = "k-norm"
sequences = 2
length = 5
policies = ["utility"]
epsilons = [1.0, 2.0]
"""
FIGURES = ("settings", "figure-10-runtime", "figure-11-over-time", "figure-12-epsilon", "map", "possible-and-estimate")

EVALUATED = (
    *(f"PRIVATE-model-{fold}.npz" for fold in range(3)),
    *(f"parts/PRIVATE-{task:06d}.parquet" for task in range(4)),
    *("PRIVATE-split.json", "PRIVATE-sequences.npz", "PRIVATE-steps.parquet", "PRIVATE-report.html", "run.json", LOCK),
    *("PRIVATE-settings.csv", "PRIVATE-claims.csv"),
    *(f"PRIVATE-{name}.png" for name in FIGURES),
)

LEARNED = ("learned.npz", "learned.PRIVATE-users.json")

# Command lines in the order of their dependencies, each with its output files.
LINES = (
    (("learn", "walks.csv", "--bbox", *map(str, BOX), "--cell", CELL, "-o", "learned.npz"), LEARNED),
    (
        (
            "release",
            "walks.csv",
            *RELEASE,
            "-o",
            "r.csv",
            {"summary": "s.csv"},
            "--private-diagnostics",
            "PRIVATE-d.csv",
        ),
        ("r.csv", "s.csv", "PRIVATE-d.csv"),
    ),
    (("release", "walks.csv", *RELEASE, "-o", "r.parquet", "--session", "users.db"), ("r.parquet", "users.db")),
    (("session", "export", "users.db", "-o", "records.jsonl"), ("records.jsonl",)),
    (("certify", "r.csv", *RELEASE, "-o", "proof.jsonl"), ("proof.jsonl",)),
    (("model", "blank", "--bbox", *map(str, BOX), "--cell", CELL, "-o", "blank.npz"), ("blank.npz",)),
    (
        ("batch", "walks.csv", *RELEASE, "-o", "all", "--workers", "1"),
        (
            "all/run.json",
            f"all/{LOCK}",
            f"all/{JOURNAL}",
            *(str(get_user_file_path(Path("all"), name, "parquet")) for name in NAMES),
        ),
    ),
    (("evaluate", "e.toml", "-o", "run", "--workers", "1"), tuple(f"run/{name}" for name in EVALUATED)),
    (("show", "r.csv", "--model", "m.npz", "-o", "map.html"), ("map.html",)),
    (("show", "r.csv", "--model", "m.npz", "--true", "walks.csv"), ("PRIVATE-r.html",)),
    (("show", "r.csv", "--true", "walks.csv", "-o", "PRIVATE-map.png"), ("PRIVATE-map.png",)),
    (("report", "r.csv", *RELEASE[:4], "-o", "page.html"), ("page.html",)),
    (("report", "r.csv", *RELEASE[:4], "--true", "walks.csv", "-o", "PRIVATE-page.html"), ("PRIVATE-page.html",)),
    (("model", "show", "m.npz", "--true", "walks.csv", "-o", "model.png"), ("model.png",)),
    (("session", "list", "users.db"), ()),
    (("session", "show", "users.db", NAMES[0]), ()),
    (("session", "migrate", "users.db"), ()),
    (("session", "export", "users.db", "--everything", "-o", "users.db.moved"), ("users.db.moved",)),
    (("session", "import", "users.db.moved", "users.db"), ()),
    (("audit", "policy", *RELEASE[:4], "--report", "policy.html"), ("policy.html",)),
    (
        ("audit", "mechanism", *RELEASE[:4], {"samples": 2000}, {"pairs": 1}, "--report", "noise.html"),
        ("noise.html",),
    ),
    (
        ("audit", "event", "r.csv", *RELEASE, "--event", "state:1 between 0 and 5", "--report", "event.html"),
        ("event.html",),
    ),
    (("audit", "identity", "r.csv", *RELEASE[:4], "--auxiliary-data", "earlier.csv", "--max-posterior", "0.999"), ()),
    (("audit", "membership", "m.npz", "--members", "members.csv", "--others", "others.csv"), ()),
    (("audit", "utility", "r.csv", "--model", "m.npz", "--true", "walks.csv"), ()),
    (("audit", "session", "r.csv", *RELEASE[:4], "--report", "session.html"), ("session.html",)),
    (
        ("audit", "session", "r.csv", *RELEASE[:4], "--true", "walks.csv", "--report", "PRIVATE-session.html"),
        ("PRIVATE-session.html",),
    ),
    (
        ("leak", "--releases", "r.csv", "--model", "m.npz", "--users", NAMES[0], "--picture", "leak.png"),
        ("leak.png",),
    ),
    (
        (
            "counts",
            "release",
            "walks.csv",
            "--model",
            "m.npz",
            *EPSILON,
            "-o",
            "c.csv",
            "--private-diagnostics",
            "PRIVATE-c.csv",
        ),
        ("c.csv", "PRIVATE-c.csv"),
    ),
    (("counts", "evaluate", "PRIVATE-c.csv", "--model", "m.npz", *EPSILON, "--runs", "1"), ()),
    (
        ("counts", "postprocess", "c.csv", "--num-users", "3", "--model", "m.npz", "-o", "repaired.csv"),
        ("repaired.csv",),
    ),
    (
        ("flows", "walks.csv", "--bbox", *map(str, BOX), "--cell", CELL, "--user-epsilon", "1", "-o", "flows.parquet"),
        ("flows.parquet",),
    ),
    (
        (
            "landmarks",
            "one.csv",
            *RELEASE,
            "--at",
            "2024-03-07T09:03:00",
            "-o",
            "marked.csv",
            "--picture",
            "marked.png",
        ),
        ("marked.csv", "marked.png"),
    ),
    (
        (
            "calibrate",
            *RELEASE[:4],
            "--max-odds-ratio",
            "3",
            "--num-users",
            "0",
            "--report-epsilons",
            "0.1,1",
            "--picture",
            "trade.png",
        ),
        ("trade.png",),
    ),
    (
        ("synthesize", "--model", "m.npz", "--num-users", "3", "--horizon", "15m", "-o", "synthetic.csv"),
        ("synthetic.csv",),
    ),
    (
        (
            "synthesize",
            "--model",
            "m.npz",
            "--compare",
            "walks.csv",
            "--picture",
            "PRIVATE-crowd.png",
        ),
        ("PRIVATE-crowd.png",),
    ),
    (
        ("attack", "walks.csv", "--model", "m.npz", "--channel", "round:2", "-o", "PRIVATE-attack.html"),
        ("PRIVATE-attack.html",),
    ),
    (("budget", "--alpha", "1", "--backward", "matrix.csv", "--picture", "budget.png"), ("budget.png",)),
)
# Commands that read no locations of users. See their own tests.
SYNTHETIC = {"demo", "data", "basemap"}

# Commands for public data sets only. Their own tests cover their output.
PUBLISHED = {"figures"}

# Commands that write most true locations by design. Their own tests search the output.
EXACT = {"hide"}

# Commands that run until they are stopped. Their own tests search their files.
SERVING = {"explore", "serve"}

# Commands that need a session with a wrong clock. Their own tests search their output.
REFUSED = {("session", "rewind")}

# Files of SQLite that remain if a session file was only read.
SIDECARS = {"users.db-wal", "users.db-shm"}

# Commands of which the files name the users.
NAMING = {"release", "certify", "session", "batch", "show", "audit", "report"}


class World:
    """A folder with a model and users, and the data that no public file may contain."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        grid = Grid.over(BOX, float(CELL))
        matrix = np.full((grid.size, grid.size), 1 / grid.size)
        MarkovModel(matrix, np.full(grid.size, 1 / grid.size), grid, 60.0).save(folder / "m.npz")
        rng, lines = np.random.default_rng(11), []
        truths = set(grid.points.ravel().tolist())
        self.places: set[tuple[int, int]] = set()
        for name in NAMES:
            places = rng.uniform(BOX[:2], BOX[2:], size=(12, 2)).round(12)
            self.places |= set(map(tuple, np.rint(places / DEGREES).astype(int).tolist()))
            truths |= {*places.ravel().tolist(), *grid.projection.to_plane(*places.T).round(6).ravel().tolist()}
            for minute, (latitude, longitude) in enumerate(places.tolist()):
                lines.append(f"{name},2024-03-07T09:{minute:02d}:00Z,{latitude!r},{longitude!r}")
        self.texts = {repr(value).encode() for value in truths if len(repr(value)) > 6}
        self.bytes = {np.float64(value).tobytes() for value in truths if value}
        head = "user_id,tracked_at,latitude,longitude"
        (folder / "walks.csv").write_text("\n".join([head, *lines]) + "\n")
        (folder / "earlier.csv").write_text(
            "\n".join([head, *(line.replace("03-07", "03-06") for line in lines)]) + "\n"
        )
        for file, name in (("members.csv", "m"), ("others.csv", "o")):
            crowd = [f"{name}{number}{line[line.index(',') :]}" for number in range(6) for line in lines[:12]]
            (folder / file).write_text("\n".join([head, *crowd]) + "\n")
        (folder / "one.csv").write_text("\n".join([head, *lines[:12]]) + "\n")
        (folder / "e.toml").write_text(EVALUATION)
        (folder / "matrix.csv").write_text("0.8,0.2\n0.2,0.8\n")

    def files(self) -> set[str]:
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}

    def contains_truth(self, name: str) -> bool:
        """Return whether a file contains a true place or the centre of a cell, as text or bytes.

        Places are searched in degrees and in the plane.
        """
        content = read_content(self.folder / name)
        points = read_map_points(content.decode()) if name.endswith(".html") else set()
        return self.has_truth(content) or not self.places.isdisjoint(points)

    def has_truth(self, content: bytes) -> bool:
        """Return whether the content of a file or an output contains a true place."""
        decimals = set(re.findall(rb"-?\d+\.\d+", content))
        return not self.texts.isdisjoint(decimals) or any(value in content for value in self.bytes)

    def contains_name(self, name: str) -> bool:
        """Return whether a file names a user."""
        content = read_content(self.folder / name)
        return any(user.encode() in content for user in NAMES)


def read_map_points(page: str) -> set[tuple[int, int]]:
    """Return the points of a page's maps in integer steps.

    A column contains differences, seven bits per byte.
    """
    columns = [re.findall(rf'"{name}": ?\{{[^}}]*?"code": ?"([^"]*)"', page) for name in ("latitude", "longitude")]
    points: set[tuple[int, int]] = set()
    for codes in zip(*columns, strict=True):
        points |= set(zip(*map(decode, codes), strict=False))
    return points


def decode(code: str) -> list[int]:
    numbers = []
    now = 0
    left = 0
    shift = 0
    for byte in b64decode(code):
        left |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            now += (left >> 1) ^ -(left & 1)
            numbers.append(now)
            left = shift = 0
    return numbers


def read_content(path: Path) -> bytes:
    """Return the decompressed content of a file."""
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return b"".join(archive[name].tobytes() for name in archive)
    if path.suffix == ".parquet":
        return repr(parquet.read_table(path).to_pydict()).encode()
    return path.read_bytes()


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World(tmp_path)


def list_commands(command: click.Command, words: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the words of every command and subcommand."""
    if not isinstance(command, click.Group):
        return {words}
    context = click.Context(command)
    parts = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return set().union(*(list_commands(part, (*words, name)) for name, part in parts if part is not None))


def test_every_command_is_covered():
    everything = {words for words in list_commands(main) if words[0] not in SYNTHETIC | PUBLISHED | SERVING | EXACT}
    everything -= REFUSED
    lines = {line[: len(words)] for line, _ in LINES for words in everything if line[: len(words)] == words}
    assert lines == everything
    assert {words[0] for words in everything} | SYNTHETIC | PUBLISHED | SERVING | EXACT == set(COMMANDS)
    assert ("counts", "evaluate") in everything


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_files_with_true_locations_are_private_in_name_and_mode(world, run):
    there = world.files()
    for words, expected in LINES:
        done = run(*words)
        assert done.exit_code in (0, 1), done.output + done.stderr
        assert not world.has_truth(done.output.encode()), f"{words} prints a true place"
        created, there = world.files() - there, world.files()
        assert created - SIDECARS == set(expected), words
        for name in created:
            private = "PRIVATE" in Path(name).name
            mode = stat.S_IMODE((world.folder / name).stat().st_mode)
            assert (mode == 0o600) == (private or name.startswith("users.db")), f"{name} has mode {mode:o}"
            # A model file contains the centres of its cells.
            assert private or name == "learned.npz" or not world.contains_truth(name), f"{name} contains a true place"
            assert private or words[0] in NAMING or not world.contains_name(name), f"{name} names users"
    # Check that the search finds true places in plain text, in a page and in columns.
    (world.folder / "PRIVATE-d.csv").write_text((world.folder / "walks.csv").read_text())
    for name in ("PRIVATE-d.csv", "PRIVATE-r.html", "run/PRIVATE-steps.parquet"):
        assert world.contains_truth(name), name
    assert world.contains_name("run/PRIVATE-split.json")


def test_batch_key_is_private_and_deleted_after_use(world, run, monkeypatch):
    line = ("batch", "walks.csv", *RELEASE, "-o", "all", "--workers", "1")
    with monkeypatch.context() as broken:
        broken.setattr(import_module("dphmm.jobs.batch.batch"), "_release_user", lambda work: 1 / 0)
        assert isinstance(run(*line).exception, ZeroDivisionError)
    assert stat.S_IMODE((world.folder / "all" / KEY).stat().st_mode) == 0o600
    assert run(*line, "--resume").exit_code == 0
    assert not (world.folder / "all" / KEY).exists()


@pytest.mark.parametrize(
    "words",
    [
        ("show", "r.csv", "--true", "walks.csv", "-o", "map.html"),
        ("audit", "session", "r.csv", *RELEASE[:4], "--true", "walks.csv", "--report", "session.html"),
        ("release", "walks.csv", *RELEASE, "-o", "r.csv", "--private-diagnostics", "d.csv"),
        ("attack", "walks.csv", "--model", "m.npz", "--channel", "round:2", "-o", "attack.csv"),
        (
            "counts",
            "release",
            "walks.csv",
            "--model",
            "m.npz",
            *EPSILON,
            "-o",
            "c.csv",
            "--private-diagnostics",
            "t.csv",
        ),
    ],
    ids=lambda words: words[0],
)
def test_public_name_for_true_locations_raises_before_writing(world, run, words):
    before = world.files()
    done = run(*words)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert (
        f"{words[-1]}: the name of a file with true locations must contain 'private'; use PRIVATE-{words[-1]}"
        in done.stderr
    )
    assert world.files() == before
