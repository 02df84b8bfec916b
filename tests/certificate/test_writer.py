"""Certificates of all releases are accepted, small, and independent of the true state."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest

from dphmm import Limits, MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule
from dphmm.certificate import CertificateWriter
from dphmm.errors import ConfigurationError, DphmmError, InvalidInputError
from dphmm.model.time_classes import TimeClasses
from dphmm.space import Grid, LocalProjection, Places
from tests.certificate.certificates import (
    VERIFIER,
    Line,
    build_certificate,
    build_town,
    build_town_certificate,
    certify_path,
    find_parts,
    find_steps,
    format_canonical,
    load_verifier,
    publish_sessions,
    verify,
)
from tests.running_example import F, build_graph
from tests.sizes import choose_count

GRAPH = build_graph()
UNIFORM = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))


def test_printed_limits_are_not_below_those_of_the_certificate(tmp_path):
    """Six digits would print a limit of 1.0000004 as 1."""
    limits = Limits(epsilon=2.0000004, window_epsilon=1.0000004, window_steps=9)
    settings = ReleaseSettings("utility:1km", 0.5, schedule=Schedule(window_epsilon=3.0000004))
    lines = publish_sessions(
        settings.engine(build_town(), 7), tmp_path / "rows.csv", {"ann": [[(0, 100_000)]]}, limits=limits
    )
    windows = verify(lines)["windows"]
    assert windows == {"2.0000004 in all", "1.0000004 in 9 steps", "3.0000004 in 288 steps"}


def test_town_is_accepted_with_rows_and_model(tmp_path):
    lines, rows, model = build_town_certificate(tmp_path)
    model.save(tmp_path / "model.npz")
    report = verify(lines, rows, load_verifier().File(tmp_path / "model.npz"))
    assert report["steps"] == 5
    assert report["not"] == set()
    assert {
        "x_km",
        "y_km",
        "constrained_dp_factor",
        "min_degree_of_protection",
        "settings_hash",
        "model_hash",
    } <= report["columns"]
    (model_report,) = report["models"]
    assert model_report.possible == load_verifier().File(tmp_path / "model.npz").possible


def test_body_is_hull_of_paper():
    lines = certify_path(Releaser(UNIFORM, F, GRAPH, 1.0, rng=0, spacing=1), [(4, 0)])
    (noise,) = find_parts(lines, "noise")
    assert noise["value"]["parts"] == [{"body": [[3, 0], [4, 1], [-1, 1]]}]


def sample_engine(seed: int) -> tuple[Releaser, np.ndarray]:
    """Sample small worlds: all policies, repairs, noise scopes, tables, delta and gaps."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    f = rng.integers(0, 6, (n, 2)) * [1, rng.random() < 0.8]
    moves = (rng.random((n, n)) < rng.choice([0.3, 0.6, 1])) * rng.random((n, n))
    moves[np.arange(n), rng.integers(0, n, n)] += 0.5
    start = (rng.random(n) < 0.7) + 1e-9
    labels = rng.integers(-1, 3, n)
    policy = [
        lambda: PolicyGraph.from_edges(n, np.argwhere(np.triu(rng.random((n, n)) < 0.3, 1))),
        lambda: PolicyGraph.complete(n),
        lambda: PolicyGraph.utility(f.astype(float), float(rng.choice([1, 1.5, 2])), float(rng.choice([0, 1]))),
        lambda: (graph := PolicyGraph.categorical(labels)).with_open(~graph.find_connected_states()),
        lambda: PolicyGraph.categorical(labels) | PolicyGraph.utility(f.astype(float), 1.0),
    ][int(rng.integers(5))]()
    mechanism = str(rng.choice(["lattice", "lattice", "optimal", "graph-exponential"]))
    settings = {
        "noise_scope": str(rng.choice(["graph", "component"])),
        "repair": str(rng.choice(["exact", "greedy", "sequential"])),
        "allow_singleton": bool(rng.random() < 0.5),
        "delta": 0.1 if rng.random() < 0.15 else None,
        "spacing": 1,
    }
    model = MarkovModel(
        moves / moves.sum(1, keepdims=True), start / start.sum(), step_seconds=float(rng.choice([300, 7]))
    )
    engine = Releaser(model, f, policy, float(rng.choice([0.3, 1, 2])), mechanism, rng=seed, **settings)
    return engine, moves > 0


def yield_certificates(make: Callable[[int], tuple[Releaser, np.ndarray]] = sample_engine) -> Iterator[list[Line]]:
    """Yield certificates of small worlds and of an hourly model."""
    for seed in range(3, 11):
        with suppress(DphmmError):
            engine, _ = make(seed)
            yield certify_path(engine, [(0, 1000), (0, 1003)])
    classes = TimeClasses.from_name("hour", 300, "Europe/Berlin")
    inside = build_town()
    matrices = [inside.transition if hour % 2 else np.eye(inside.size) for hour in range(24)]
    model = MarkovModel(matrices, np.tile(inside.initial, (24, 1)), inside.space, 300, classes)
    path = [(0, 5_700_003), (0, 5_700_010), (1, 5_700_011), (1, 5_700_400)]
    yield certify_path(ReleaseSettings("utility:1km", 1).engine(model, 1), path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_releases_are_accepted(seed):
    for number in range(choose_count(12, 3)):
        try:
            engine, moves = sample_engine(100 * seed + number)
        except DphmmError:
            continue  # unprotected states with an edge
        rng = np.random.default_rng(number)
        slot = 1000
        state = 0
        path = []
        for _ in range(8):
            path.append((state, slot))
            gap = int(rng.choice([1, 1, 2, 5]))
            slot, state = (
                slot + gap,
                int(rng.choice(np.flatnonzero(np.linalg.matrix_power(moves.astype(float), gap)[state]))),
            )
        try:
            lines = certify_path(engine, path)
        except DphmmError:
            continue  # one possible state, which is not allowed here
        assert verify(lines)["steps"] == 8


def test_queries_released_together_are_accepted():
    """The first release excludes states, which are possible for the second."""
    line = np.array([[0, 0], [2, 0], [4, 0], [0, 3], [3, 3], [9, 3]])
    policy = PolicyGraph.from_edges(6, [[0, 1], [1, 2], [3, 4], [4, 5]])
    engine = Releaser(UNIFORM, line, policy, 0.5, rng=3, spacing=1)
    other = engine.for_query(line[:, ::-1], spacing=1)

    def draw(writer: CertificateWriter) -> None:
        for slot in range(3):
            records = engine.release_together(1, other).records
            for query, queried, record in zip(("main", "other"), (engine, other), records, strict=True):
                writer.add(queried.last[1], record.released, slot, query)

    lines = build_certificate({"main": engine, "other": other}, draw)
    assert all("out" not in step for step in find_steps(lines))
    verify(lines)


def test_certificate_depends_on_true_state_through_releases_only():
    """Equal draws around other states give equal lines, except for z."""
    engine = ReleaseSettings("utility:1km", 1).engine(build_town(), 3)
    lines_by_truth = []
    for states in ([0, 1, 2], [12, 13, 14]):
        lines = certify_path(engine.spawn(3), [(state, slot) for slot, state in enumerate(states)])
        for step in find_steps(lines):
            step.pop("z")
        lines_by_truth.append(lines)
    assert lines_by_truth[0] == lines_by_truth[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": Schedule(target_error=0.6)},
        {"schedule": Schedule(window_epsilon=3)},
        {"noise_scope": "component"},
        {"delta": 0.05},
        {"policy": "complete"},
        {"policy": "transition"},
        {"policy": "utility:1km & transition"},
        {"policy": "centres:500m"},
        {"policy": "utility:500m", "mechanism": "graph-exponential"},
    ],
    ids=str,
)
def test_settings_are_verified_or_listed_as_not_verified(settings, tmp_path):
    lines, rows, _ = build_town_certificate(
        tmp_path, ReleaseSettings(**{"policy": "utility:1km", "epsilon": 1, **settings})
    )
    limitations = " ".join(verify(lines, rows)["not"])
    assert ("schedule" in limitations, "delta" in limitations) == ("schedule" in settings, "delta" in settings)
    assert ("edges listed" in limitations) == (settings.get("policy") in ("transition", "utility:1km & transition"))


def test_time_dependent_and_outside_models_are_accepted(tmp_path):
    from dphmm.model.outside_states import create_outside_states

    inside = build_town()
    classes = TimeClasses.from_name("hour", 300, "Europe/Berlin")
    matrices = [inside.transition if hour % 2 else np.eye(inside.size) for hour in range(24)]
    starts = np.tile(inside.initial, (24, 1))
    away = create_outside_states(inside.space)
    both = np.zeros((2, inside.size))
    chain = away.build_chain(
        inside.transition, inside.transition, both[0, : len(away.border)] + 0.1, both[1, : len(away.border)] + 0.5
    )
    for name, model in (
        ("hours", MarkovModel(matrices, starts, inside.space, 300, classes)),
        ("away", MarkovModel(chain, inside.initial, inside.space, 300, outside=away)),
    ):
        engine = ReleaseSettings("utility:1km", 1).engine(model, 1)
        lines = certify_path(engine, [(0, 5_700_003), (0, 5_700_010), (1, 5_700_011), (1, 5_700_400)])
        model.save(tmp_path / f"{name}.npz")
        assert verify(lines, None, load_verifier().File(tmp_path / f"{name}.npz"))["steps"] == 4


def test_model_without_space_is_compared_with_its_file(tmp_path):
    """The file has no space for estimates, but transitions, first states and a hash."""
    UNIFORM.save(tmp_path / "model.npz")
    lines = certify_path(Releaser(UNIFORM, F, GRAPH, 1.0, rng=0, spacing=1), [(4, 0)])
    assert verify(lines, None, load_verifier().File(tmp_path / "model.npz"))["steps"] == 1
    other = MarkovModel(np.full((6, 6), 1 / 6), np.array([0.2, 0.2, 0.2, 0.2, 0.1, 0.1]))
    other.save(tmp_path / "other.npz")
    with pytest.raises(load_verifier().RefusedError, match="another model"):
        verify(lines, None, load_verifier().File(tmp_path / "other.npz"))


def test_uncertifiable_input_raises():
    writer = CertificateWriter(lambda _: None)
    with pytest.raises(ConfigurationError, match="mechanism must be an exact one of this package to be certified"):
        writer.begin("ann", {"main": Releaser(UNIFORM, F, GRAPH, 1.0, "k-norm")})
    engine = Releaser(UNIFORM, F, GRAPH, 1.0, rng=0, spacing=1)
    writer.begin("ann", {"main": engine})
    record = engine.release(4, epsilon=2.0)
    with pytest.raises(InvalidInputError, match="must be at most that of its settings, 1"):
        writer.add(engine.last[1], record.released, 0)
    with pytest.raises(InvalidInputError, match=r"call begin\(\)"):
        writer.add(engine.last[1], record.released, 0, "other")
    writer.add(engine.spawn(1).prepare(), (0, 0), 5)
    with pytest.raises(InvalidInputError, match="slot must be at least the last one of the user, 5, got 4"):
        writer.add(engine.spawn(1).prepare(), (0, 0), 4)
    writer.begin("ann", {"main": engine})
    with pytest.raises(InvalidInputError, match="slot must be later than the last one of the user, 5, got 5"):
        writer.add(engine.spawn(1).prepare(), (0, 0), 5)
    with pytest.raises(ConfigurationError, match="limits must be the same in all sessions of user 'ann'"):
        writer.begin("ann", {"main": engine}, Limits(epsilon=3))
    with pytest.raises(InvalidInputError, match="2 dimensions, got 3"):
        writer.begin("ann", {"main": Releaser(UNIFORM, np.eye(6)[:, :3], GRAPH, 1.0, spacing=1)})


def test_step_needs_at_most_1_kb(tmp_path):
    """On average, including shared parts."""
    engine = ReleaseSettings("utility:1km", 1).engine(build_town(8), 1)
    lines = certify_path(engine, [(0, slot) for slot in range(60)])
    size = sum(len(json.dumps(line)) for line in lines)
    assert size < 60 * 1000


@pytest.mark.slow
def test_script_lists_what_it_verified_and_what_not(tmp_path):
    lines, _, model = build_town_certificate(tmp_path)
    model.save(tmp_path / "model.npz")
    texts = [format_canonical(line) for line in lines]
    (tmp_path / "good.jsonl").write_text("\n".join(texts) + "\n")
    (tmp_path / "short.jsonl").write_text("\n".join(texts[:-1]) + "\n")
    (tmp_path / "other.npz").write_bytes((tmp_path / "model.npz").read_bytes()[:100])

    def run(*arguments: str) -> tuple[int, str]:
        # Isolated, without the package on its path, as a third party would run it.
        command = [sys.executable, "-I", str(VERIFIER), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, text = run("good.jsonl", "rows.csv", "--model", "model.npz")
    yes, no = text.split("NOT VERIFIED")
    assert code == 0
    assert "5 releases" in yes
    assert "at most 1.0 km apart" in yes
    assert "of the model file" in yes
    assert "noise was sampled from these distributions" in no
    assert "estimate_latitude" in yes
    assert "estimate_latitude" in run("good.jsonl", "rows.csv")[1].split("NOT VERIFIED")[1]
    text = run("good.jsonl", "rows.csv", "--model", "model.npz", "--fast")[1]
    assert "estimate_latitude" in text.split("NOT VERIFIED")[1]
    code, text = run("good.jsonl")
    assert (code, "published rows: no file was passed" in text, "of a model: no file was passed" in text) == (
        0,
        True,
        True,
    )
    assert run("short.jsonl", "rows.csv")[0] == 1
    assert run("good.jsonl", "--matrix", "rows.csv")[0] == run("good.jsonl", "--noisy", "rows.csv")[0] == 2
    assert run("missing.jsonl")[0] == run("good.jsonl", "--model", "other.npz")[0] == run()[0] == 2
    for seconds in ("0", "-5", "1.5", "x", "1_0"):
        code, text = run("good.jsonl", "--seconds", seconds)
        assert (code, text) == (2, f"--seconds must be a positive integer, got {seconds!r}\n")
    assert "--fast omits nothing" in run("good.jsonl", "rows.csv", "--fast")[1]
    assert "--fast omits nothing" not in run("good.jsonl", "rows.csv", "--model", "model.npz", "--fast")[1]
    assert len(VERIFIER.read_text().splitlines()) <= 2870
    imports = [
        node for node in ast.walk(ast.parse(VERIFIER.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert all(isinstance(node, ast.Import) or node.level == 0 for node in imports)
    modules = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in imports if isinstance(node, ast.ImportFrom)}
    assert modules <= sys.stdlib_module_names


def test_scattered_places_and_sparse_grids_are_accepted(tmp_path):
    """Edges between points off any lattice are listed.

    If every third cell is kept, the step of a grid is not exact in floats.
    """
    rng = np.random.default_rng(1)
    names = [f"p{k}" for k in range(12)]
    points = Places(names, 45 + rng.random(12) / 50, -30 + rng.random(12) / 50)
    mask = np.zeros((7, 7), dtype=bool)
    mask[::3, ::3] = True
    holes = Grid(LocalProjection(45.0, -30.0), (0, 0), 0.1, 7, 7, mask)
    near = ("utility:200m", "centres:300m")  # the distance of the remaining cells
    for space, listed, more in ((points, True, ()), (holes, False, near)):
        model = MarkovModel(np.full((space.size,) * 2, 1 / space.size), np.full(space.size, 1 / space.size), space, 300)
        for policy in ("utility:300m", "utility:500m", "centres:400m", *more):
            engine = ReleaseSettings(policy, 1).engine(model, 1)
            report = verify(certify_path(engine, [(0, 5), (1, 6)]))
            assert ("those listed" in report["policies"]) == listed
            assert any("edges listed" in limitation for limitation in report["not"]) == listed


# ---- time ------------------------------------------------------------------------------------------------------------


def build_hours(zone: str, moves: list[list[list[int]]]) -> Line:
    """Build the part of a model with two matrices, by turns, and a step of a minute."""
    size, hours = len(moves[0]), [hour % 2 for hour in range(168)]
    part = {"is": "model", "hash": "0" * 16, "states": size, "chain": size, "step": "60", "moves": moves}
    return part | {"start": [[0, size - 1]] * 2, "hours": hours, "zone": zone}


STAY = [[0, 0], [1, 1]]


@pytest.mark.parametrize("zone", ["EST5EDT", "W-SU", "Etc/GMT+5", "GB-Eire", "America/Port-au-Prince", "UTC"])
def test_zones_are_accepted(zone):
    assert load_verifier().Model(build_hours(zone, [STAY, STAY])).get_class(0) in (0, 1)


@pytest.mark.parametrize(
    "zone", ["localtime", "posixrules", "posix/Europe/Paris", "../Europe", "America//New_York", " "]
)
def test_zones_of_a_machine_are_rejected(zone):
    with pytest.raises(load_verifier().RefusedError, match="zone is invalid"):
        load_verifier().Model(build_hours(zone, [STAY, STAY]))


@pytest.mark.slow
def test_long_gaps_of_hours_are_followed():
    """States that swap follow the parity of these steps. Others settle."""
    swap, spread = [[1, 1], [0, 0]], [[0, 1], [1, 1]]
    model = load_verifier().Model(build_hours("UTC", [STAY, swap]))
    for steps in (30, 119, 200_000):
        # Steps begin at minutes 0, 1, …: those of odd hours swap.
        swaps = sum(k // 60 % 2 for k in range(steps))
        assert model.later(0b01, 0, steps) == (0b10 if swaps % 2 else 0b01)
    settled = load_verifier().Model(build_hours("UTC", [STAY, spread]))
    assert settled.later(0b01, 0, 60) == 0b01
    assert settled.later(0b01, 0, 2**50) == 0b11


def test_gap_of_a_model_by_hours_is_accepted():
    classes = TimeClasses.from_name("hour", 300, "EST5EDT")
    place = build_town()
    model = MarkovModel([place.transition] * 24, np.tile(place.initial, (24, 1)), place.space, 300, classes)
    engine = ReleaseSettings("utility:1km", 1).engine(model, 7)
    assert verify(certify_path(engine, [(0, 5_700_000), (0, 5_900_000)]))["steps"] == 2
