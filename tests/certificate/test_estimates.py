"""The verifier of estimates and radii: exact acceptance, and rejection of tampering."""

from __future__ import annotations

import copy
import io
import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings
from dphmm.events import Cap
from dphmm.model.radius_factors import CalibratedRadii
from dphmm.model.time_classes import TimeClasses
from dphmm.release.settings import Schedule
from dphmm.space import Grid, Places, Streets
from tests.certificate import capped
from tests.certificate.capped import add_stays
from tests.certificate.certificates import (
    PATH,
    VERIFIER,
    Tamperings,
    build_town,
    encode,
    format_canonical,
    load_verifier,
    publish_path,
)
from tests.certificate.test_cap_witness import build_outside_model
from tests.sizes import choose_count

TAMPERINGS = Tamperings()
tampering = TAMPERINGS.tampering
Rows = list[dict[str, str]]
SETTINGS = ReleaseSettings("utility:1km", 2)


class World:
    """A certificate, its rows, and the model's file."""

    def __init__(self, folder: Path, engine: Releaser, path: list[tuple[int, int]] = PATH) -> None:
        self.rows_file = folder / "rows.csv"
        self.model_file = folder / "model.npz"
        self.engine = engine
        self.lines = publish_path(engine, self.rows_file, path)
        engine.model.save(self.model_file)
        self.rows: Rows = load_verifier().read_rows(str(self.rows_file))["ann"]

    def judged(self, rows: Rows | None = None) -> Any:
        """Return the verifier's report, or its reason for rejection."""
        base = load_verifier()
        rows_by_user = {"ann": self.rows if rows is None else rows}
        try:
            return base.verify_estimates(encode(self.lines), rows_by_user, base.File(self.model_file))
        except base.RefusedError as problem:
            return str(problem)


# ---- worlds ----------------------------------------------------------------------------------------------------------


def plain(folder: Path) -> World:
    return World(folder, SETTINGS.engine(build_town(), 7))


def another_prior(folder: Path) -> World:
    """The same draws for users with another initial distribution."""
    inside = build_town()
    first = inside.initial * np.arange(1, inside.size + 1)
    model = MarkovModel(inside.transition, first / first.sum(), inside.space, 300)
    return World(folder, SETTINGS.engine(model, 7))


def by_hours(folder: Path) -> World:
    inside, classes = add_stays(build_town()), TimeClasses.from_name("hour", 300, "Europe/Berlin")
    matrices = [inside.transition if hour % 2 else build_town().transition for hour in range(24)]
    model = MarkovModel(matrices, np.tile(inside.initial, (24, 1)), inside.space, 300, classes)
    return World(folder, SETTINGS.engine(model, 7))


def outside(folder: Path) -> World:
    """Outside users and calibrated radii. Most timesteps are withheld."""
    model = build_outside_model()
    object.__setattr__(
        model,
        "calibrated_radii",
        CalibratedRadii((1.5, 1.25, 2.0, 2.5, 3.5), 20, error_factors=(1.0, 1.0, 1.1, 1.2, 1.3)),
    )
    settings = replace(SETTINGS, epsilon=1.0, schedule=Schedule(window_epsilon=2.0, window_seconds=7200))
    return World(folder, settings.engine(model, 7), [(0, 5_700_000 + 3 * k + 300 * (k > 12)) for k in range(20)])


def components(folder: Path, mechanism: str = "lattice") -> World:
    """Three groups, one with a single unprotected place."""
    model = add_stays(build_town())
    groups = np.minimum(np.arange(model.size) // 10, 1)
    groups[-1] = -1
    policy = PolicyGraph.categorical(groups).with_open([model.size - 1])
    more: dict[str, Any] = {"noise_scope": "component"} if mechanism == "lattice" else {}
    settings = ReleaseSettings("complete", 2, mechanism, **more)
    path = [(0, 5_700_000), (6, 5_700_004), (12, 5_700_009), (model.size - 1, 5_700_020)]
    return World(folder, settings.engine(model, 7, policy), path)


def tables(folder: Path) -> World:
    return components(folder, "graph-exponential")


def bent(folder: Path) -> World:
    """A region with a hole. Estimates outside it are moved."""
    whole = build_town().space
    mask = np.ones((whole.rows, whole.columns), dtype=np.bool_)
    mask[1:-1, 1:-1] = False
    space = Grid(whole.projection, whole.origin_m, whole.cell_km, whole.columns, whole.rows, mask)
    n = space.size
    model = MarkovModel(0.5 * np.eye(n) + 0.5 / n, np.full(n, 1 / n), space, 300)
    return World(folder, ReleaseSettings("utility:1km", 0.3).engine(model, 7))


def along_streets(folder: Path) -> World:
    """Bent segments around a block. Estimates within the block are moved."""
    # One side has a third vertex, so that its middle is not that of its ends.
    sides = [[(0, 0), (8, 0)], [(8, 0), (8, 8)], [(8, 8), (0, 8)], [(0, 8), (-4, 10), (0, 0)]]
    vertices = np.array([vertex for side in sides for vertex in side]) * 10_000 + np.array([450_000_000, -300_000_000])
    space = Streets(vertices, list(map(len, sides)))
    model = MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25), space, 300)
    path = [(state % 4, slot) for state, slot in PATH]
    return World(folder, ReleaseSettings("streets:300m", 0.3).engine(model, 7), path)


def named(folder: Path) -> World:
    """Places with a limited distance. Estimates between them are moved."""
    inside = build_town()
    latitude, longitude = inside.space.latlon().T
    space = Places([f"place {k}" for k in range(inside.size)], latitude, longitude, within_km=0.05)
    model = MarkovModel(inside.transition, inside.initial, space, 300)
    return World(folder, ReleaseSettings("utility:1km", 0.3).engine(model, 7))


WORLDS: dict[str, Callable[[Path], World]] = {
    make_world.__name__: make_world
    for make_world in (plain, another_prior, by_hours, outside, components, tables, bent, along_streets, named)
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return {name: make_world(tmp_path_factory.mktemp(name)) for name, make_world in WORLDS.items()}


@pytest.mark.parametrize("name", list(WORLDS))
def test_published_rows_are_accepted(worlds, name):
    report = worlds[name].judged()
    assert not isinstance(report, str), report
    assert report["cells"] == 14 * len(worlds[name].rows)
    assert report["open"] <= 0.03 * report["cells"], "at most 3 % of the cells depend on a last digit"


def test_worlds_cover_all_cases(worlds):
    rows = {name: world.rows for name, world in worlds.items()}
    assert {row["withheld"] for row in rows["outside"]} == {"true", "false"}
    assert len({float(row["calibrated_radius_90_m"]) / float(row["estimate_error_m"]) for row in rows["outside"]}) > 3
    for name in ("components", "tables"):
        assert len({row["component_num_states"] for row in rows[name]}) > 1
        assert any(row["unprotected"] == "true" for row in rows[name])
    assert any(0 < float(row["component_posterior"]) < 1 for row in rows["components"])
    for name in ("bent", "along_streets", "named"):
        points = {tuple(np.round(point, 6)) for point in worlds[name].engine.model.space.latlon().tolist()}
        is_moved = [(float(row["estimate_latitude"]), float(row["estimate_longitude"])) in points for row in rows[name]]
        assert any(is_moved)


def test_many_releases_of_multi_part_noise_are_accepted(tmp_path):
    """Bounds on the normalizers of several parts multiply with every release."""
    model = add_stays(build_town())
    policy = PolicyGraph.categorical(np.arange(model.size) * 2 // model.size)
    settings = ReleaseSettings("complete", 0.001, noise_scope="component")
    engine = settings.engine(model, 7, policy)
    report = World(tmp_path, engine, [(3, 5_700_000 + k) for k in range(40)]).judged()
    assert not isinstance(report, str), report


def test_withheld_rows_are_not_unprotected(tmp_path):
    """The first state is open. No row without a release states that it is released unchanged."""
    model = add_stays(build_town())
    policy = PolicyGraph.from_groups(model.size, [range(1, model.size)]).with_open([0])
    settings = ReleaseSettings("complete", 1, schedule=Schedule(window_epsilon=1.0, window_seconds=7200))
    world = World(tmp_path, settings.engine(model, 7, policy))
    assert not isinstance(world.judged(), str), world.judged()
    withheld = next(row for row in world.rows if row["withheld"] == "true")
    assert withheld["unprotected"] == "false"
    rows = copy.deepcopy(world.rows)
    rows[world.rows.index(withheld)]["unprotected"] = "true"
    assert "the row has unprotected" in world.judged(rows)


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, delta=0.1)], ids=["exact_set", "delta"])
def test_released_points_are_verified_without_the_belief(tmp_path, settings):
    """With delta the belief is not recomputed, but a released location does not depend on it."""
    world, base = World(tmp_path, settings.engine(build_town(), 7)), load_verifier()
    file = base.File(world.model_file)
    report = base.verify_releases(encode(world.lines), {"ann": world.rows}, file)
    assert {"latitude", "longitude"} <= report["columns"]
    assert report["cells"] == 2 * len(world.rows)
    for name in ("latitude", "longitude"):
        rows = copy.deepcopy(world.rows)
        add_to_value(rows[1], name, 2e-6)
        with pytest.raises(base.RefusedError, match=f"the row has {name}"):
            base.verify_releases(encode(world.lines), {"ann": rows}, file)


# ---- tampering -------------------------------------------------------------------------------------------------------


def add_to_value(row: dict[str, str], name: str, by: float) -> None:
    row[name] = repr(round(float(row[name]) + by, 6))


def scale_value(row: dict[str, str], name: str, by: float) -> None:
    row[name] = repr(float(f"{float(row[name]) * by:.7g}"))


ESTIMATES = ("estimate_latitude", "estimate_longitude")


@tampering("plain", "the row has estimate_latitude")
def an_estimate_moved_by_its_last_digits(rows, worlds):
    add_to_value(rows[2], "estimate_latitude", 2e-6)


@tampering("plain", "the row has estimate_longitude")
def an_estimate_with_more_digits(rows, worlds):
    rows[2]["estimate_longitude"] += "4"


@tampering("plain", "the row has estimate_latitude")
def estimates_of_two_rows_swapped(rows, worlds):
    for name in ESTIMATES:
        rows[1][name], rows[3][name] = rows[3][name], rows[1][name]


@tampering("plain", "the row has estimate_latitude")
def estimates_of_the_row_before(rows, worlds):
    for row, before in zip(rows[:0:-1], rows[-2::-1], strict=True):
        row.update({name: before[name] for name in ESTIMATES})


@tampering("plain", "the row has estimate_latitude")
def an_estimate_at_the_true_place(rows, worlds):
    places = worlds["plain"].engine.model.space.latlon([state for state, _ in PATH]).tolist()
    for row, place in zip(rows, places, strict=True):
        row.update({name: repr(round(x, 6)) for name, x in zip(ESTIMATES, place, strict=True)})


@tampering("plain", "the row has estimate_latitude")
def estimates_that_lean_to_the_true_place(rows, worlds):
    """By a thousandth of the way."""
    places = worlds["plain"].engine.model.space.latlon([state for state, _ in PATH]).tolist()
    for row, place in zip(rows, places, strict=True):
        for name, x in zip(ESTIMATES, place, strict=True):
            add_to_value(row, name, 1e-3 * (x - float(row[name])))


@tampering("plain", "the row has estimate_latitude")
def an_estimate_from_another_prior(rows, worlds):
    for row, other in zip(rows, worlds["another_prior"].rows, strict=True):
        assert (row["x_km"], row["y_km"]) == (other["x_km"], other["y_km"])
        row.update({name: other[name] for name in ESTIMATES})


@tampering("plain", "the row has estimate_error_m")
def a_radius_scaled(rows, worlds):
    for row in rows:
        scale_value(row, "estimate_error_m", 0.9)


@tampering("plain", "the row has estimate_error_m")
def a_radius_off_in_its_last_digit(rows, worlds):
    scale_value(rows[3], "estimate_error_m", 1 + 2e-6)


@tampering("plain", "the row has adversary_error_m")
def an_error_within_what_is_told_of_it(rows, worlds):
    """The value is stated to be at most 2 % too small."""
    scale_value(rows[1], "adversary_error_m", 0.999)


@tampering("plain", "the row has adversary_max_posterior")
def a_certainty_off_in_its_last_digit(rows, worlds):
    scale_value(rows[1], "adversary_max_posterior", 1 + 2e-6)


@tampering("plain", "the row has expected_error_m")
def another_error_in_every_row(rows, worlds):
    for row in rows:
        scale_value(row, "expected_error_m", 1 + 2e-6)
        scale_value(row, "component_error_m", 1 + 2e-6)


@tampering("plain", "the row has calibrated_radius_90_m")
def a_circle_that_the_model_does_not_know(rows, worlds):
    rows[0]["calibrated_radius_90_m"] = "1234.5"


@tampering("plain", "the row has repair_optimality_gap")
def a_gap_of_no_repair(rows, worlds):
    rows[0]["repair_optimality_gap"] = "0.25"


@tampering("plain", "the row has table_gain")
def a_gain_of_no_table(rows, worlds):
    rows[0]["table_gain"] = "0.25"


@tampering("plain", "the row has unprotected")
def an_open_place_that_is_none(rows, worlds):
    rows[0]["unprotected"] = "true"


@tampering("plain", "there is no published row")
def an_omitted_row(rows, worlds):
    del rows[-1]


@tampering("plain", "published rows have no release in the certificate")
def a_row_too_many(rows, worlds):
    rows.append(rows[-1])


@tampering("plain", "the row has estimate_error_m")
def no_radius(rows, worlds):
    del rows[0]["estimate_error_m"]


@tampering("by_hours", "the row has estimate_latitude|the row has estimate_longitude")
def an_estimate_of_another_hour(rows, worlds):
    for name in ESTIMATES:
        rows[2][name] = rows[3][name]


@tampering("outside", "the row has estimate_longitude")
def an_estimate_of_a_withheld_release_moved(rows, worlds):
    add_to_value(next(row for row in rows if row["withheld"] == "true"), "estimate_longitude", 2e-6)


@tampering("outside", "the row has (latitude|expected_error_m)")
def a_withheld_release_with_a_place(rows, worlds):
    row = next(row for row in rows if row["withheld"] == "true")
    drawn = next(row for row in rows if row["withheld"] == "false")
    row.update({name: drawn[name] for name in ("latitude", "longitude", "expected_error_m")})


@tampering("outside", "the row has calibrated_radius_90_m")
def a_circle_of_a_draw_after_a_silence(rows, worlds):
    row = [row for row in rows if row["withheld"] == "true"][-1]
    scale_value(row, "calibrated_radius_90_m", 1.25 / 3.5)


@tampering("outside", "the row has estimate_error_m")
def an_error_without_its_factor(rows, worlds):
    row = [row for row in rows if row["withheld"] == "true"][-1]
    scale_value(row, "estimate_error_m", 1 / 1.3)


@tampering("outside", "the row has adversary_error_m")
def an_adversary_error_of_users_inside_only(rows, worlds):
    scale_value(rows[-1], "adversary_error_m", 0.8)


@tampering("components", "the row has component_posterior")
def a_surer_component(rows, worlds):
    for row in rows:
        row["component_posterior"] = "1.0"


@tampering("components", "the row has component_num_states")
def another_component(rows, worlds):
    rows[0]["component_num_states"] = str(int(rows[0]["component_num_states"]) + 1)


@tampering("components", "the row has num_components")
def components_that_are_fewer(rows, worlds):
    rows[0]["num_components"] = str(int(rows[0]["num_components"]) - 1)


@tampering("tables", "the row has component_error_m")
def an_error_of_another_table(rows, worlds):
    scale_value(rows[0], "component_error_m", 1 + 2e-6)


@tampering("bent", "the row has estimate_error_m")
def an_estimate_that_was_moved_in_silence(rows, worlds):
    world = worlds["bent"]
    places = {tuple(np.round(coordinates, 6)) for coordinates in world.engine.model.space.latlon().tolist()}
    row = next(row for row in rows if tuple(float(row[name]) for name in ESTIMATES) in places)
    scale_value(row, "estimate_error_m", 0.95)


@pytest.mark.parametrize(("world", "reason", "tamper"), TAMPERINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_tampered_rows_are_rejected_with_reason(worlds, world, reason, tamper):
    rows = copy.deepcopy(worlds[world].rows)
    tamper(rows, worlds)
    assert rows != worlds[world].rows, "nothing was changed"
    result = worlds[world].judged(rows)
    assert isinstance(result, str), "it was accepted"
    assert re.match(rf"(line \d+: .*)?({reason})", result), result


@pytest.mark.slow
def test_cap_probabilities_must_match_model_file(tmp_path):
    """For outside states the verifier of caps does not recompute the hash."""
    world = World(
        tmp_path, replace(SETTINGS, caps=(Cap("state:6,7 between 1 and 3", 0.9),)).engine(build_outside_model(), 7)
    )
    assert world.judged()["capped"] == {"ann"}
    assert capped.find_refusal(world.lines) is None
    capped.change_part(
        world.lines, "chances", lambda chances: chances["moves"][0][3].__setitem__(0, chances["moves"][0][3][0] - 2)
    )
    assert capped.find_refusal(world.lines) is None, "the verifier of caps alone accepts it"
    assert "the probabilities for event caps are not those of the model file" in str(world.judged())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WORLDS))
def test_changed_estimate_cells_are_rejected(worlds, name):
    """Change values by two units of the last digit or more, and flags and counts arbitrarily."""
    world = worlds[name]
    rng = random.Random(name)
    base = load_verifier()
    columns = sorted(world.judged()["columns"])
    for _ in range(choose_count(60, 15)):
        rows = copy.deepcopy(world.rows)
        row, column = rng.choice(rows), rng.choice(columns)
        if not re.fullmatch(r"-?[0-9]+\.[0-9]+", row[column]):
            row[column] += "1"
        elif column.endswith("itude"):
            row[column] = base.degree(float(row[column]) + rng.choice([-1, 1]) * 10 ** rng.uniform(-5.6, 0))
        else:
            row[column] = base.format_decimal(
                float(row[column]) * (1 + rng.choice([-1, 1]) * 10 ** rng.uniform(-5.6, 0)) + 1e-9
            )
        assert "the row has" in str(world.judged(rows)) or rows == world.rows, (column, row[column])


@pytest.mark.slow
def test_changed_model_file_is_rejected(worlds, tmp_path):
    """A changed number, text or byte gives another hash or an unreadable file."""
    base, rng = load_verifier(), random.Random(5)
    for world in (worlds["plain"], worlds["outside"], worlds["by_hours"]):
        with np.load(world.model_file) as file:
            arrays = dict(file)
        arrays.pop("mean_squares", None), arrays.pop("about")
        for name in arrays:
            with np.load(world.model_file) as file:
                changed = dict(file)
            flat = changed[name].reshape(-1)
            at = rng.randrange(flat.size)
            flat[at] = flat[at] + 1 if flat.dtype.kind == "i" else np.nextafter(flat[at], 2)
            np.savez(tmp_path / "changed.npz", **changed)
            with pytest.raises((base.RefusedError, LookupError, TypeError, ValueError)):
                base.verify_estimates(encode(world.lines), {"ann": world.rows}, base.File(tmp_path / "changed.npz"))
    data = worlds["plain"].model_file.read_bytes()
    proof, script = tmp_path / "proof.jsonl", [str(tmp_path / "some.npz")]
    proof.write_text("".join(format_canonical(line) + "\n" for line in worlds["plain"].lines))
    for _ in range(choose_count(100, 20)):
        mutated = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        Path(script[0]).write_bytes(bytes(mutated[: rng.choice([len(mutated), rng.randrange(len(mutated))])]))
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "limit", lambda _: None)
            code = base.main([str(proof), str(worlds["plain"].rows_file), "--model", script[0]])
        assert code in (1, 2) or base.arrays(script[0]) == base.arrays(worlds["plain"].model_file)


def test_model_file_in_another_compression_is_rejected(tmp_path):
    """The type of errors in a damaged LZMA stream is in a module that may be missing."""
    with zipfile.ZipFile(tmp_path / "model.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("about.npy", b"0" * 1000)
    with pytest.raises(load_verifier().RefusedError, match="otherwise than by deflate"):
        load_verifier().File(tmp_path / "model.npz")


def test_different_model_is_rejected(worlds, tmp_path):
    """Other probabilities, outside states, time classes or radius factors."""
    base = load_verifier()
    texts = encode(worlds["plain"].lines)
    for other in ("another_prior", "by_hours", "outside", "bent"):
        with pytest.raises(base.RefusedError, match="another model"):
            base.verify_estimates(texts, {"ann": worlds["plain"].rows}, base.File(worlds[other].model_file))
    with np.load(worlds["plain"].model_file) as file:
        arrays = dict(file)
    arrays["data"][:2] += [1e-9, -1e-9]
    np.savez(tmp_path / "changed.npz", **arrays)
    with pytest.raises(base.RefusedError, match="another model"):
        base.verify_estimates(texts, {"ann": worlds["plain"].rows}, base.File(tmp_path / "changed.npz"))


@pytest.mark.parametrize("seed", range(3))
def test_degrees_match_proj(seed):
    """Within the allowed 2 mm. Points match PROJ to a micrometre."""
    base, rng = load_verifier(), np.random.default_rng(seed)
    space = Grid.over([(44.9, -30.1, 45, -30), (-33.9, 151.1, -33.8, 151.2), (69.6, 179.9, 69.7, -179.9)][seed], 5)
    plane = base.Plane({"latitude": space.projection.latitude, "longitude": space.projection.longitude})
    points = rng.normal(0, 40, (200, 2))
    wanted = space.projection.to_latlon(points)
    for point, (north, east) in zip(points.tolist(), wanted.tolist(), strict=True):
        degrees = plane.degrees(*point)
        assert abs(degrees[0] - north) < base.TURNED
        assert abs(degrees[1] - east) < 180 * base.OFF
    back = space.projection.to_plane(*wanted.T)
    assert np.allclose([plane.point(*coordinates) for coordinates in wanted.tolist()], back, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_script_requires_canonical_row_file(worlds, tmp_path):
    world = worlds["plain"]
    (tmp_path / "proof.jsonl").write_text("".join(format_canonical(line) + "\n" for line in world.lines))
    text = world.rows_file.read_text()

    def run(rows: str, *more: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "rows.csv").write_text(rows)
        command = [sys.executable, "-I", "-S", VERIFIER, "proof.jsonl", "rows.csv", "--model", world.model_file, *more]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = run(text, "--seconds", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the format of the file is canonical" in done.stdout
    assert re.search(r"[0-9]+ cells disclose at most [0-9]+ bits", done.stdout)
    for before, after, reason in (
        ("ann,", '"ann",', "must have the canonical format"),
        (",2.0,", ",2.00,", "the row has epsilon '2.00', expected '2.0'"),
        (",2.0,", ",2,", "the row has epsilon '2', expected '2.0'"),
        ("\n", "\r\n", "must have the canonical format"),
        ("Z,", "+00:00,", "not a time in UTC that ends in Z"),
        (",true,", ",1,", "the row has is_exact '1'"),
    ):
        assert before in text
        done = run(text.replace(before, after))
        assert (done.returncode, reason in done.stdout) == (1, True), (after, done)
    assert run(text.replace("mechanism,is_exact", "is_exact,mechanism")).returncode == 1
    head, *lines = text.splitlines(keepends=True)
    others = [line.replace("ann,", "zoe,") for line in lines]
    proof = (tmp_path / "proof.jsonl").read_text()
    more = [
        {**line, **({"begin": "zoe"} if "begin" in line else {})} for line in world.lines if {"begin", "step"} & {*line}
    ]
    both = [*world.lines[:-1], *more, {"end": 2 * len(lines)}]
    (tmp_path / "proof.jsonl").write_bytes(b"".join(encode(both)))
    assert run("".join([head, *lines, *others])).returncode == 0
    assert "rows must be ordered by user and time" in run("".join([head, *others, *lines])).stdout
    (tmp_path / "proof.jsonl").write_text(proof)
    assert run(text[:-10]).returncode != 0
    (tmp_path / "proof.jsonl").unlink()
    assert run(text).returncode == 2
    world.model_file.rename(tmp_path / "away.npz")
    assert run(text).returncode == 2
    (tmp_path / "away.npz").rename(world.model_file)
