"""What every command writes: what tells of true places is for its owner alone, from its name on, and nothing else is.

Each command runs with people whose names, places and cells occur nowhere else. Every file that it leaves is listed and
searched for them.
"""

from __future__ import annotations

import re
import stat
from base64 import b64decode
from pathlib import Path

import click
import numpy as np
import pytest

from dphmm.cli import COMMANDS, main
from dphmm.jobs.run_folder import JOURNAL, KEY, LOCK, user_file
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

LEARNED = ("learned.npz", "learned.PRIVATE-people.json")

# Command lines in the order in which they need each other, each with the files that it leaves.
LINES = (
    (("learn", "walks.csv", "--bbox", *map(str, BOX), "--cell", CELL, "-o", "learned.npz"), LEARNED),
    (
        (
            "release",
            "walks.csv",
            *RELEASE,
            "-o",
            "r.csv",
            "--summary",
            "s.csv",
            "--private-diagnostics",
            "PRIVATE-d.csv",
        ),
        ("r.csv", "s.csv", "PRIVATE-d.csv"),
    ),
    (("release", "walks.csv", *RELEASE, "-o", "r.parquet", "--session", "people.db"), ("r.parquet", "people.db")),
    (("session", "export", "people.db", "-o", "records.jsonl"), ("records.jsonl",)),
    (("certify", "r.csv", *RELEASE, "-o", "proof.jsonl"), ("proof.jsonl",)),
    (("model", "blank", "--bbox", *map(str, BOX), "--cell", CELL, "-o", "blank.npz"), ("blank.npz",)),
    (
        ("batch", "walks.csv", *RELEASE, "-o", "all", "--workers", "1"),
        (
            "all/run.json",
            f"all/{LOCK}",
            f"all/{JOURNAL}",
            *(str(user_file(Path("all"), name, "parquet")) for name in NAMES),
        ),
    ),
    (("evaluate", "e.toml", "-o", "run", "--workers", "1"), tuple(f"run/{name}" for name in EVALUATED)),
    (("show", "r.csv", "--model", "m.npz", "-o", "map.html"), ("map.html",)),
    (("show", "r.csv", "--model", "m.npz", "--true", "walks.csv"), ("PRIVATE-r.html",)),
    (("show", "r.csv", "--true", "walks.csv", "-o", "PRIVATE-map.png"), ("PRIVATE-map.png",)),
    (("report", "r.csv", *RELEASE[:4], "-o", "page.html"), ("page.html",)),
    (("report", "r.csv", *RELEASE[:4], "--true", "walks.csv", "-o", "PRIVATE-page.html"), ("PRIVATE-page.html",)),
    (("model", "show", "m.npz", "--true", "walks.csv", "-o", "model.png"), ("model.png",)),
    (("session", "list", "people.db"), ()),
    (("session", "show", "people.db", NAMES[0]), ()),
    (("audit", "policy", *RELEASE[:4], "--report", "policy.html"), ("policy.html",)),
    (
        ("audit", "mechanism", *RELEASE[:4], "--samples", "2000", "--pairs", "1", "--report", "noise.html"),
        ("noise.html",),
    ),
    (
        ("audit", "event", "r.csv", *RELEASE, "--event", "state:1 between 0 and 5", "--report", "event.html"),
        ("event.html",),
    ),
    (("audit", "identity", "r.csv", *RELEASE[:4], "--known", "earlier.csv", "--most-certainty", "0.999"), ()),
    (("audit", "membership", "m.npz", "--members", "members.csv", "--others", "others.csv"), ()),
    (("audit", "utility", "r.csv", "--model", "m.npz", "--true", "walks.csv"), ()),
    (("audit", "session", "r.csv", *RELEASE[:4], "--report", "told.html"), ("told.html",)),
    (
        ("audit", "session", "r.csv", *RELEASE[:4], "--true", "walks.csv", "--report", "PRIVATE-told.html"),
        ("PRIVATE-told.html",),
    ),
    (
        ("leak", "--releases", "r.csv", "--model", "m.npz", "--of", NAMES[0], "--plot", "leak.png"),
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
            "--private-counts",
            "PRIVATE-c.csv",
        ),
        ("c.csv", "PRIVATE-c.csv"),
    ),
    (("counts", "evaluate", "PRIVATE-c.csv", "--model", "m.npz", *EPSILON, "--runs", "1"), ()),
    (("counts", "postprocess", "c.csv", "--users", "3", "--model", "m.npz", "-o", "repaired.csv"), ("repaired.csv",)),
    (
        ("flows", "walks.csv", "--bbox", *map(str, BOX), "--cell", CELL, "--user-epsilon", "1", "-o", "flows.parquet"),
        ("flows.parquet",),
    ),
    (
        ("landmarks", "one.csv", *RELEASE, "--at", "2024-03-07T09:03:00", "-o", "marked.csv", "--plot", "marked.png"),
        ("marked.csv", "marked.png"),
    ),
    (
        ("calibrate", *RELEASE[:4], "--odds", "3", "--people", "0", "--row", "0.1,1", "--plot", "trade.png"),
        ("trade.png",),
    ),
    (("synthesize", "--model", "m.npz", "--people", "3", "--days", "0.01", "-o", "nobody.csv"), ("nobody.csv",)),
    (
        (
            "synthesize",
            "--model",
            "m.npz",
            "--people",
            "3",
            "--days",
            "0.01",
            "--compare",
            "walks.csv",
            "--plot",
            "PRIVATE-crowd.png",
        ),
        ("PRIVATE-crowd.png",),
    ),
    (
        ("attack", "walks.csv", "--model", "m.npz", "--channel", "round:2", "-o", "PRIVATE-attack.html"),
        ("PRIVATE-attack.html",),
    ),
    (("budget", "--alpha", "1", "--backward", "matrix.csv", "--plot", "budget.png"), ("budget.png",)),
)
INVENTED = {"demo", "data", "basemap"}
"""Commands that no one's places go into; see their own tests."""

PUBLISHED = {"figures"}
"""Commands that take public data sets alone; their own tests say what they write."""

EXACT = {"hide"}
"""Commands that tell true places by intention, but for some; their own tests search what they write."""

SERVING = {"serve"}
"""Commands that go on until they are stopped; what these keep, their own tests search."""

SIDECARS = {"people.db-wal", "people.db-shm"}
"""SQLite's own, which stay where a file of sessions was only read."""

BY_NAME = {"release", "certify", "session", "batch", "show", "audit", "report"}
"""Commands whose files say whose releases they hold."""


class World:
    """A folder with a model and people, and what must not be found in a public file."""

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
        (folder / "earlier.csv").write_text("\n".join([head, *(one.replace("03-07", "03-06") for one in lines)]) + "\n")
        for file, name in (("members.csv", "m"), ("others.csv", "o")):
            crowd = [f"{name}{number}{one[one.index(',') :]}" for number in range(6) for one in lines[:12]]
            (folder / file).write_text("\n".join([head, *crowd]) + "\n")
        (folder / "one.csv").write_text("\n".join([head, *lines[:12]]) + "\n")
        (folder / "e.toml").write_text(EVALUATION)
        (folder / "matrix.csv").write_text("0.8,0.2\n0.2,0.8\n")

    def files(self) -> set[str]:
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}

    def tells(self, name: str) -> bool:
        """Whether a true place, in degrees or in the plane, or the centre of a cell is in a file as text or bytes."""
        content = opened(self.folder / name)
        drawn = drawn_on(content.decode()) if name.endswith(".html") else set()
        return self.told(content) or not self.places.isdisjoint(drawn)

    def told(self, content: bytes) -> bool:
        """The same of what is said."""
        found = set(re.findall(rb"-?\d+\.\d+", content))
        return not self.texts.isdisjoint(found) or any(value in content for value in self.bytes)

    def names(self, name: str) -> bool:
        """Whether a file says who somebody is."""
        content = opened(self.folder / name)
        return any(person.encode() in content for person in NAMES)


def drawn_on(page: str) -> set[tuple[int, int]]:
    """The points of a page's maps, in the steps that they are told in; a column is differences, seven bits a byte."""
    columns = [re.findall(rf'"{name}": ?\{{[^}}]*?"code": ?"([^"]*)"', page) for name in ("latitude", "longitude")]
    found: set[tuple[int, int]] = set()
    for codes in zip(*columns, strict=True):
        found |= set(zip(*map(decoded, codes), strict=False))
    return found


def decoded(code: str) -> list[int]:
    numbers, now, left, shift = [], 0, 0, 0
    for byte in b64decode(code):
        left |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            now += (left >> 1) ^ -(left & 1)
            numbers.append(now)
            left = shift = 0
    return numbers


def opened(path: Path) -> bytes:
    """What is in a file, out of its compression."""
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


def commands(command: click.Command, words: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The words of every command and of every one within it."""
    if not isinstance(command, click.Group):
        return {words}
    context = click.Context(command)
    parts = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return set().union(*(commands(part, (*words, name)) for name, part in parts if part is not None))


def test_every_command_is_looked_at():
    everything = {words for words in commands(main) if words[0] not in INVENTED | PUBLISHED | SERVING | EXACT}
    lines = {line[: len(words)] for line, _ in LINES for words in everything if line[: len(words)] == words}
    assert lines == everything
    assert {words[0] for words in everything} | INVENTED | PUBLISHED | SERVING | EXACT == set(COMMANDS)
    assert ("counts", "evaluate") in everything


@pytest.mark.usefixtures("blank")
def test_what_tells_of_true_places_is_private_in_name_and_mode(world, run):
    there = world.files()
    for words, expected in LINES:
        done = run(*words)
        assert done.exit_code in (0, 1), done.output + done.stderr
        assert not world.told(done.output.encode()), f"{words} says a true place"
        made, there = world.files() - there, world.files()
        assert made - SIDECARS == set(expected), words
        for name in made:
            private = "PRIVATE" in Path(name).name
            mode = stat.S_IMODE((world.folder / name).stat().st_mode)
            assert (mode == 0o600) == (private or name.startswith("people.db")), f"{name} has mode {mode:o}"
            # A model's file tells where its cells are.
            assert private or name == "learned.npz" or not world.tells(name), f"{name} tells a true place"
            assert private or words[0] in BY_NAME or not world.names(name), f"{name} names people"
    # The broken twin: what is in a plain text, in a page, and in columns is found there.
    (world.folder / "PRIVATE-d.csv").write_text((world.folder / "walks.csv").read_text())
    for name in ("PRIVATE-d.csv", "PRIVATE-r.html", "run/PRIVATE-steps.parquet"):
        assert world.tells(name), name
    assert world.names("run/PRIVATE-split.json")


def test_a_batch_keeps_its_key_to_itself_and_no_longer_than_it_must(world, run, monkeypatch):
    line = ("batch", "walks.csv", *RELEASE, "-o", "all", "--workers", "1")
    with monkeypatch.context() as broken:
        broken.setattr("dphmm.jobs.batches._release_user", lambda work: 1 / 0)
        assert isinstance(run(*line).exception, ZeroDivisionError)
    assert stat.S_IMODE((world.folder / "all" / KEY).stat().st_mode) == 0o600
    assert run(*line, "--resume").exit_code == 0
    assert not (world.folder / "all" / KEY).exists()


@pytest.mark.parametrize(
    "words",
    [
        ("show", "r.csv", "--true", "walks.csv", "-o", "map.html"),
        ("audit", "session", "r.csv", *RELEASE[:4], "--true", "walks.csv", "--report", "told.html"),
        ("release", "walks.csv", *RELEASE, "-o", "r.csv", "--private-diagnostics", "d.csv"),
        ("attack", "walks.csv", "--model", "m.npz", "--channel", "round:2", "-o", "attack.csv"),
        ("counts", "release", "walks.csv", "--model", "m.npz", *EPSILON, "-o", "c.csv", "--private-counts", "t.csv"),
    ],
    ids=lambda words: words[0],
)
def test_a_name_that_hides_that_true_places_are_told_is_refused_before_anything_is_written(world, run, words):
    before = world.files()
    done = run(*words)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert f"call it PRIVATE-{words[-1]}" in done.stderr
    assert world.files() == before
