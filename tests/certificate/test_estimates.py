"""The verifier of estimates and radii: it believes what the engine publishes, to the last digit, and no lie."""

from __future__ import annotations

import copy
import io
import random
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings
from dphmm.events import Cap
from dphmm.model.point_estimate import HeldRadii
from dphmm.model.time_classes import TimeClasses
from dphmm.release.schedule import Schedule
from dphmm.space import Grid
from tests.certificate import capped, certificates
from tests.certificate.capped import settled
from tests.certificate.certificates import PATH, ROOT, Lies, canonical, published, town
from tests.certificate.test_caps import of_outside
from tests.sizes import fewer

VERIFIER = ROOT / "scripts" / "dphmm-verify-estimates"
LIES = Lies()
lie = LIES.lie
Rows = list[dict[str, str]]
SETTINGS = ReleaseSettings("utility:1km", 2)


def verifier() -> Any:
    return certificates.verifier(VERIFIER.name)


class World:
    """A certificate, the rows, and the model's file."""

    def __init__(self, folder: Path, engine: Releaser, path: list[tuple[int, int]] = PATH) -> None:
        self.rows_file, self.model_file, self.engine = folder / "rows.csv", folder / "model.npz", engine
        self.lines = published(engine, self.rows_file, path)
        engine.model.save(self.model_file)
        self.rows: Rows = certificates.verifier().read_rows(str(self.rows_file))["ann"]

    def judged(self, rows: Rows | None = None) -> Any:
        """The verifier's report, or why it refuses."""
        base = verifier()
        texts = [canonical(line).encode() + b"\n" for line in self.lines]
        try:
            return base.verify(texts, {"ann": self.rows if rows is None else rows}, base.File(self.model_file))
        except base.caps.RefusedError as problem:
            return str(problem)


# ---- worlds ----------------------------------------------------------------------------------------------------------


def plain(folder: Path) -> World:
    return World(folder, SETTINGS.engine(town(), 7))


def another_prior(folder: Path) -> World:
    """The same draws, of people who begin elsewhere."""
    inside = town()
    first = inside.initial * np.arange(1, inside.size + 1)
    model = MarkovModel(inside.transition, first / first.sum(), inside.space, 300)
    return World(folder, SETTINGS.engine(model, 7))


def by_hours(folder: Path) -> World:
    inside, classes = settled(town()), TimeClasses.of("hours", 300, "Europe/Berlin")
    matrices = [inside.transition if hour % 2 else town().transition for hour in range(24)]
    model = MarkovModel(matrices, np.tile(inside.initial, (24, 1)), inside.space, 300, classes)
    return World(folder, SETTINGS.engine(model, 7))


def outside(folder: Path) -> World:
    """People outside, and circles that hold; nothing is drawn at most moments."""
    model = of_outside()
    object.__setattr__(model, "held_radii", HeldRadii((1.5, 1.25, 2.0, 2.5, 3.5), 20))
    settings = replace(SETTINGS, epsilon=1.0, schedule=Schedule(window_epsilon=2.0, window_seconds=7200))
    return World(folder, settings.engine(model, 7), [(0, 5_700_000 + 3 * k + 300 * (k > 12)) for k in range(20)])


def components(folder: Path, mechanism: str = "lattice") -> World:
    """Three groups, one of which is of one open place."""
    model = settled(town())
    groups = np.minimum(np.arange(model.size) // 10, 1)
    groups[-1] = -1
    policy = PolicyGraph.categorical(groups).with_open([model.size - 1])
    more: dict[str, Any] = {"calibration": "component"} if mechanism == "lattice" else {}
    settings = ReleaseSettings("complete", 2, mechanism, **more)
    path = [(0, 5_700_000), (6, 5_700_004), (12, 5_700_009), (model.size - 1, 5_700_020)]
    return World(folder, Releaser.made(settings, model, model.space, policy, 7), path)


def tables(folder: Path) -> World:
    return components(folder, "graph-exponential")


def bent(folder: Path) -> World:
    """A region with a hole, so that estimates fall outside it and are moved."""
    whole = town().space
    mask = np.ones((whole.rows, whole.columns), dtype=np.bool_)
    mask[1:-1, 1:-1] = False
    space = Grid(whole.projection, whole.origin_m, whole.cell_km, whole.columns, whole.rows, mask)
    n = space.size
    model = MarkovModel(0.5 * np.eye(n) + 0.5 / n, np.full(n, 1 / n), space, 300)
    return World(folder, ReleaseSettings("utility:1km", 0.3).engine(model, 7))


WORLDS: dict[str, Callable[[Path], World]] = {
    made.__name__: made for made in (plain, another_prior, by_hours, outside, components, tables, bent)
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return {name: made(tmp_path_factory.mktemp(name)) for name, made in WORLDS.items()}


@pytest.mark.parametrize("name", list(WORLDS))
def test_what_the_engine_publishes_is_believed(worlds, name):
    report = worlds[name].judged()
    assert not isinstance(report, str), report
    assert report["cells"] == 17 * len(worlds[name].rows) + 5 * sum(
        one["withheld"] == "true" for one in worlds[name].rows
    )
    assert report["open"] <= 0.03 * report["cells"], "hardly anything can be told by a last digit"


def test_the_worlds_are_of_every_kind(worlds):
    rows = {name: world.rows for name, world in worlds.items()}
    assert {one["withheld"] for one in rows["outside"]} == {"true", "false"}
    assert len({float(one["radius_90_m"]) / float(one["estimate_radius_m"]) for one in rows["outside"]}) > 3
    for name in ("components", "tables"):
        assert len({one["component_states"] for one in rows[name]}) > 1
        assert any(one["open"] == "true" for one in rows[name])
    assert any(0 < float(one["component_certainty"]) < 1 for one in rows["components"])
    places = {tuple(np.round(one, 6)) for one in worlds["bent"].engine.model.space.latlon().tolist()}
    assert any((float(one["estimate_latitude"]), float(one["estimate_longitude"])) in places for one in rows["bent"])


def test_many_releases_of_noise_in_several_parts_are_believed(tmp_path):
    """A law of each of several parts is known to its normaliser, whose bounds every release multiplies."""
    model = settled(town())
    policy = PolicyGraph.categorical(np.arange(model.size) * 2 // model.size)
    settings = ReleaseSettings("complete", 0.001, calibration="component")
    engine = Releaser.made(settings, model, model.space, policy, 7)
    report = World(tmp_path, engine, [(3, 5_700_000 + k) for k in range(40)]).judged()
    assert not isinstance(report, str), report


# ---- lies ------------------------------------------------------------------------------------------------------------


def moved(row: dict[str, str], name: str, by: float) -> None:
    row[name] = repr(round(float(row[name]) + by, 6))


def times(row: dict[str, str], name: str, by: float) -> None:
    row[name] = repr(float(f"{float(row[name]) * by:.7g}"))


ESTIMATES = ("estimate_latitude", "estimate_longitude")


@lie("plain", "the row says estimate_latitude")
def an_estimate_moved_by_its_last_digits(rows, worlds):
    moved(rows[2], "estimate_latitude", 2e-6)


@lie("plain", "the row says estimate_longitude")
def an_estimate_with_more_digits(rows, worlds):
    rows[2]["estimate_longitude"] += "4"


@lie("plain", "the row says estimate_latitude")
def estimates_of_two_rows_swapped(rows, worlds):
    for name in ESTIMATES:
        rows[1][name], rows[3][name] = rows[3][name], rows[1][name]


@lie("plain", "the row says estimate_latitude")
def estimates_of_the_row_before(rows, worlds):
    for row, before in zip(rows[:0:-1], rows[-2::-1], strict=True):
        row.update({name: before[name] for name in ESTIMATES})


@lie("plain", "the row says estimate_latitude")
def an_estimate_at_the_true_place(rows, worlds):
    places = worlds["plain"].engine.model.space.latlon([state for state, _ in PATH]).tolist()
    for row, place in zip(rows, places, strict=True):
        row.update({name: repr(round(x, 6)) for name, x in zip(ESTIMATES, place, strict=True)})


@lie("plain", "the row says estimate_latitude")
def estimates_that_lean_to_the_true_place(rows, worlds):
    """By a hundred-thousandth of the way, which nobody would see."""
    places = worlds["plain"].engine.model.space.latlon([state for state, _ in PATH]).tolist()
    for row, place in zip(rows, places, strict=True):
        for name, x in zip(ESTIMATES, place, strict=True):
            moved(row, name, 1e-3 * (x - float(row[name])))


@lie("plain", "the row says estimate_latitude")
def an_estimate_from_another_prior(rows, worlds):
    for row, other in zip(rows, worlds["another_prior"].rows, strict=True):
        assert (row["x_km"], row["y_km"]) == (other["x_km"], other["y_km"])
        row.update({name: other[name] for name in ESTIMATES})


@lie("plain", "the row says estimate_radius_m")
def a_radius_scaled(rows, worlds):
    for row in rows:
        times(row, "estimate_radius_m", 0.9)


@lie("plain", "the row says estimate_radius_m")
def a_radius_off_in_its_last_digit(rows, worlds):
    times(rows[3], "estimate_radius_m", 1 + 2e-6)


@lie("plain", "the row says adversary_error_m")
def an_error_within_what_is_told_of_it(rows, worlds):
    """It is said to be told at most 2 % too small."""
    times(rows[1], "adversary_error_m", 0.999)


@lie("plain", "the row says adversary_certainty")
def a_certainty_off_in_its_last_digit(rows, worlds):
    times(rows[1], "adversary_certainty", 1 + 2e-6)


@lie("plain", "the row says latitude")
def a_released_place_that_is_not_the_released_point(rows, worlds):
    moved(rows[1], "latitude", 2e-6)


@lie("plain", "the row says expected_error_m")
def another_error_in_every_row(rows, worlds):
    for row in rows:
        times(row, "expected_error_m", 1 + 2e-6)
        times(row, "component_error_m", 1 + 2e-6)


@lie("plain", "the row says radius_90_m")
def a_circle_that_the_model_does_not_know(rows, worlds):
    rows[0]["radius_90_m"] = "1234.5"


@lie("plain", "the row says repair_gap")
def a_gap_of_no_repair(rows, worlds):
    rows[0]["repair_gap"] = "0.25"


@lie("plain", "the row says table_gain")
def a_gain_of_no_table(rows, worlds):
    rows[0]["table_gain"] = "0.25"


@lie("plain", "the row says open")
def an_open_place_that_is_none(rows, worlds):
    rows[0]["open"] = "true"


@lie("plain", "the row says crs")
def another_reference_system(rows, worlds):
    rows[0]["crs"] = "EPSG:4258"


@lie("plain", "there is no published row")
def a_row_left_out(rows, worlds):
    del rows[-1]


@lie("plain", "published rows have no release here")
def a_row_too_many(rows, worlds):
    rows.append(rows[-1])


@lie("plain", "the row says estimate_radius_m")
def no_radius(rows, worlds):
    del rows[0]["estimate_radius_m"]


@lie("by_hours", "the row says estimate_latitude|the row says estimate_longitude")
def an_estimate_of_another_hour(rows, worlds):
    for name in ESTIMATES:
        rows[2][name] = rows[3][name]


@lie("outside", "the row says estimate_longitude")
def an_estimate_of_a_withheld_release_moved(rows, worlds):
    moved(next(row for row in rows if row["withheld"] == "true"), "estimate_longitude", 2e-6)


@lie("outside", "the row says (latitude|expected_error_m)")
def a_withheld_release_with_a_place(rows, worlds):
    row = next(row for row in rows if row["withheld"] == "true")
    drawn = next(row for row in rows if row["withheld"] == "false")
    row.update({name: drawn[name] for name in ("latitude", "longitude", "expected_error_m")})


@lie("outside", "the row says least_protection")
def a_withheld_release_with_a_number(rows, worlds):
    next(row for row in rows if row["withheld"] == "true")["least_protection"] = "7"


@lie("outside", "the row says radius_90_m")
def a_circle_of_a_draw_after_a_silence(rows, worlds):
    row = [row for row in rows if row["withheld"] == "true"][-1]
    times(row, "radius_90_m", 1.25 / 3.5)


@lie("components", "the row says component_certainty")
def a_surer_component(rows, worlds):
    for row in rows:
        row["component_certainty"] = "1.0"


@lie("components", "the row says component_states")
def another_component(rows, worlds):
    rows[0]["component_states"] = str(int(rows[0]["component_states"]) + 1)


@lie("components", "the row says components")
def components_that_are_fewer(rows, worlds):
    rows[0]["components"] = str(int(rows[0]["components"]) - 1)


@lie("tables", "the row says component_error_m")
def an_error_of_another_table(rows, worlds):
    times(rows[0], "component_error_m", 1 + 2e-6)


@lie("bent", "the row says estimate_radius_m")
def an_estimate_that_was_moved_in_silence(rows, worlds):
    world = worlds["bent"]
    places = {tuple(np.round(one, 6)) for one in world.engine.model.space.latlon().tolist()}
    row = next(one for one in rows if tuple(float(one[name]) for name in ESTIMATES) in places)
    times(row, "estimate_radius_m", 0.95)


@pytest.mark.parametrize(("world", "reason", "told"), LIES, ids=lambda one: getattr(one, "__name__", ""))
def test_every_lie_is_refused_with_its_reason(worlds, world, reason, told):
    rows = copy.deepcopy(worlds[world].rows)
    told(rows, worlds)
    assert rows != worlds[world].rows, "it is no lie"
    found = worlds[world].judged(rows)
    assert isinstance(found, str), "it is believed"
    assert re.match(rf"(line \d+: .*)?({reason})", found), found


def test_the_probabilities_by_which_caps_are_kept_are_those_of_the_file(tmp_path):
    """Of models with people outside the verifier of caps does not recompute the hash."""
    world = World(tmp_path, replace(SETTINGS, caps=(Cap("state:6,7 between 1 and 3", 0.9),)).engine(of_outside(), 7))
    assert world.judged()["capped"] == {"ann"}
    assert capped.refusal(world.lines) is None
    capped.part(world.lines, "chances", lambda one: one["moves"][0][3].__setitem__(0, one["moves"][0][3][0] - 2))
    assert capped.refusal(world.lines) is None, "by itself it does not notice"
    assert "probabilities, by which caps are kept, are not those of the model's file" in str(world.judged())


@pytest.mark.parametrize("name", list(WORLDS))
def test_no_cell_of_a_belief_can_be_changed(worlds, name):
    """By two units of its last digit or more; flags and counts to anything."""
    world, rng, base = worlds[name], random.Random(name), verifier()
    columns = sorted(world.judged()["columns"] - base.AT_ANY - {"crs"})
    for _ in range(fewer(60, 15)):
        rows = copy.deepcopy(world.rows)
        row, column = rng.choice(rows), rng.choice(columns)
        if not re.fullmatch(r"-?[0-9]+\.[0-9]+", row[column]):
            row[column] += "1"
        elif column.endswith("itude"):
            row[column] = base.degree(float(row[column]) + rng.choice([-1, 1]) * 10 ** rng.uniform(-5.6, 0))
        else:
            row[column] = base.written(
                float(row[column]) * (1 + rng.choice([-1, 1]) * 10 ** rng.uniform(-5.6, 0)) + 1e-9
            )
        assert "the row says" in str(world.judged(rows)) or rows == world.rows, (column, row[column])


def test_no_change_of_a_models_file_is_believed(worlds, tmp_path):
    """Of an array's number, of a text, or of any byte: another hash, or a file that does not read."""
    base, rng = verifier(), random.Random(5)
    for world in (worlds["plain"], worlds["outside"], worlds["by_hours"]):
        with np.load(world.model_file) as file:
            given = dict(file)
        given.pop("square", None), given.pop("about")
        for name in given:
            with np.load(world.model_file) as file:
                changed = dict(file)
            flat = changed[name].reshape(-1)
            at = rng.randrange(flat.size)
            flat[at] = flat[at] + 1 if flat.dtype.kind == "i" else np.nextafter(flat[at], 2)
            np.savez(tmp_path / "changed.npz", **changed)
            with pytest.raises((base.caps.RefusedError, LookupError, TypeError, ValueError)):
                base.verify(
                    [canonical(line).encode() + b"\n" for line in world.lines],
                    {"ann": world.rows},
                    base.File(tmp_path / "changed.npz"),
                )
    data = worlds["plain"].model_file.read_bytes()
    proof, script = tmp_path / "proof.jsonl", [str(tmp_path / "some.npz")]
    proof.write_text("".join(canonical(line) + "\n" for line in worlds["plain"].lines))
    for _ in range(fewer(100, 20)):
        some = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            some[rng.randrange(len(some))] = rng.randrange(256)
        Path(script[0]).write_bytes(bytes(some[: rng.choice([len(some), rng.randrange(len(some))])]))
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), pytest.MonkeyPatch.context() as patch:
            patch.setattr(base.base, "limit", lambda _: None)
            code = base.main([str(proof), str(worlds["plain"].rows_file), "--model", script[0]])
        assert code in (1, 2) or base.arrays(script[0]) == base.arrays(worlds["plain"].model_file)


def test_another_model_is_refused(worlds, tmp_path):
    """One with other probabilities, and one that is the same but for people outside, hours or factors of circles."""
    base = verifier()
    texts = [canonical(line).encode() + b"\n" for line in worlds["plain"].lines]
    for other in ("another_prior", "by_hours", "outside", "bent"):
        with pytest.raises(base.caps.RefusedError, match="is of another model than this file"):
            base.verify(texts, {"ann": worlds["plain"].rows}, base.File(worlds[other].model_file))
    with np.load(worlds["plain"].model_file) as file:
        given = dict(file)
    given["data"][:2] += [1e-9, -1e-9]
    np.savez(tmp_path / "changed.npz", **given)
    with pytest.raises(base.caps.RefusedError, match="is of another model than this file"):
        base.verify(texts, {"ann": worlds["plain"].rows}, base.File(tmp_path / "changed.npz"))


@pytest.mark.parametrize("seed", range(3))
def test_random_places_turn_to_degrees_as_proj_turns_them(seed):
    """Within the 2 mm that are allowed for; and its points are those of PROJ to a micrometre."""
    base, rng = verifier(), np.random.default_rng(seed)
    space = Grid.over([(44.9, -30.1, 45, -30), (-33.9, 151.1, -33.8, 151.2), (69.6, 179.9, 69.7, -179.9)][seed], 5)
    plane = base.Plane({"latitude": space.projection.latitude, "longitude": space.projection.longitude})
    points = rng.normal(0, 40, (200, 2))
    wanted = space.projection.to_latlon(points)
    for point, (north, east) in zip(points.tolist(), wanted.tolist(), strict=True):
        found = plane.degrees(*point)
        assert abs(found[0] - north) < base.TURNED
        assert abs(found[1] - east) < 180 * base.OFF
    back = space.projection.to_plane(*wanted.T)
    assert np.allclose([plane.point(*one) for one in wanted.tolist()], back, rtol=0, atol=1e-9)


def test_a_file_is_read_and_how_it_is_written_tells_nothing(worlds, tmp_path):
    world = worlds["plain"]
    (tmp_path / "proof.jsonl").write_text("".join(canonical(line) + "\n" for line in world.lines))
    text = world.rows_file.read_text()

    def run(rows: str, *more: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "rows.csv").write_text(rows)
        command = [sys.executable, "-I", "-S", VERIFIER, "proof.jsonl", "rows.csv", "--model", world.model_file, *more]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = run(text, "--seconds", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the file is written in one way" in done.stdout
    assert "a neighbouring last digit" in done.stdout
    for before, after in (
        ("ann,", '"ann",'),
        (",2.0,", ",2.00,"),
        (",2.0,", ",2,"),
        ("\n", "\r\n"),
        ("Z,", "+00:00,"),
        ("mechanism,exact", "exact,mechanism"),
        (",true,", ",1,"),
    ):
        assert before in text
        done = run(text.replace(before, after))
        assert (done.returncode, "written in another way than it has to be" in done.stdout) == (1, True), (after, done)
    lines = text.splitlines(keepends=True)
    assert "in another order" in run("".join([*lines[:2], lines[3], lines[2], *lines[4:]])).stdout
    assert run(text[:-10]).returncode != 0
    (tmp_path / "proof.jsonl").unlink()
    assert run(text).returncode == 2
    world.model_file.rename(tmp_path / "away.npz")
    assert run(text).returncode == 2
    (tmp_path / "away.npz").rename(world.model_file)
    assert len(VERIFIER.read_text().splitlines()) <= 360
    assert not re.search(r"\b(dphmm\.|import dphmm|numpy)", VERIFIER.read_text())
