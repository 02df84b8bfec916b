"""Certificates of everything that can be certified are verified, say nothing of the truth, and cost little."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule
from dphmm.certificate import CertificateWriter
from dphmm.errors import ConfigurationError, DphmmError, InvalidInputError
from dphmm.model.time_classes import TimeClasses
from dphmm.space import Grid, LocalProjection, Places
from tests.certificate.certificates import (
    VERIFIER,
    Line,
    parts_of,
    steps_of,
    town,
    town_certificate,
    verifier,
    verify,
    walked,
)
from tests.running_example import F, graph
from tests.sizes import fewer

GRAPH = graph()
UNIFORM = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))


def test_a_town_is_verified_with_its_rows_and_its_model(tmp_path):
    lines, rows, model = town_certificate(tmp_path)
    model.save(tmp_path / "model.npz")
    report = verify(lines, rows, verifier().File(tmp_path / "model.npz"))
    assert report["steps"] == 5
    assert report["not"] == set()
    assert {"x_km", "y_km", "constrained_factor", "least_protection", "settings", "model"} <= report["columns"]
    (found,) = report["models"]
    assert found.possible == verifier().File(tmp_path / "model.npz").possible


def test_the_body_is_the_hull_that_the_paper_draws():
    lines = walked(Releaser(UNIFORM, F, GRAPH, 1.0, rng=0, spacing=1), [(4, 0)])
    (noise,) = parts_of(lines, "noise")
    assert noise["value"]["parts"] == [{"body": [[3, 0], [4, 1], [-1, 1]]}]


def random_engine(seed: int) -> tuple[Releaser, np.ndarray]:
    """Small worlds of every kind: scattered and flat places, gaps, every policy, repairs, components, tables, delta."""
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
        lambda: (graph := PolicyGraph.categorical(labels)).with_open(~graph.connected()),
        lambda: PolicyGraph.categorical(labels) | PolicyGraph.utility(f.astype(float), 1.0),
    ][int(rng.integers(5))]()
    mechanism = str(rng.choice(["lattice", "lattice", "optimal", "graph-exponential"]))
    settings = {
        "calibration": str(rng.choice(["graph", "component"])),
        "repair": str(rng.choice(["exact", "greedy", "sequential"])),
        "allow_known": bool(rng.random() < 0.5),
        "delta": 0.1 if rng.random() < 0.15 else None,
        "spacing": 1,
    }
    model = MarkovModel(
        moves / moves.sum(1, keepdims=True), start / start.sum(), step_seconds=float(rng.choice([300, 7]))
    )
    engine = Releaser(model, f, policy, float(rng.choice([0.3, 1, 2])), mechanism, rng=seed, **settings)
    return engine, moves > 0


def some_certificates(make: Callable[[int], tuple[Releaser, np.ndarray]] = random_engine) -> Iterator[list[Line]]:
    """Certificates of some small worlds, and of a model that varies by the hour."""
    for seed in range(3, 11):
        with suppress(DphmmError):
            engine, _ = make(seed)
            yield walked(engine, [(0, 1000), (0, 1003)])
    classes = TimeClasses.of("hours", 300, "Europe/Berlin")
    inside = town()
    matrices = [inside.transition if hour % 2 else np.eye(inside.size) for hour in range(24)]
    model = MarkovModel(matrices, np.tile(inside.initial, (24, 1)), inside.space, 300, classes)
    path = [(0, 5_700_003), (0, 5_700_010), (1, 5_700_011), (1, 5_700_400)]
    yield walked(ReleaseSettings("utility:1km", 1).engine(model, 1), path)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_released_can_be_verified(seed):
    for number in range(fewer(12, 3)):
        try:
            engine, moves = random_engine(100 * seed + number)
        except DphmmError:
            continue  # open states with an edge
        rng, slot, state, path = np.random.default_rng(number), 1000, 0, []
        for _ in range(8):
            path.append((state, slot))
            gap = int(rng.choice([1, 1, 2, 5]))
            slot, state = (
                slot + gap,
                int(rng.choice(np.flatnonzero(np.linalg.matrix_power(moves.astype(float), gap)[state]))),
            )
        try:
            lines = walked(engine, path)
        except DphmmError:
            continue  # one possible state, where that is not allowed
        assert verify(lines)["steps"] == 8


def test_nothing_but_the_release_depends_on_the_truth():
    """With the same draws around other states all lines are the same but for z."""
    engine = ReleaseSettings("utility:1km", 1).engine(town(), 3)
    told = []
    for states in ([0, 1, 2], [12, 13, 14]):
        lines = walked(engine.another(3), [(state, slot) for slot, state in enumerate(states)])
        for step in steps_of(lines):
            step.pop("z")
        told.append(lines)
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": Schedule(target_error=0.6)},
        {"schedule": Schedule(window_epsilon=3)},
        {"calibration": "component"},
        {"delta": 0.05},
        {"policy": "complete"},
        {"policy": "transition"},
        {"policy": "utility:1km & transition"},
        {"policy": "centres:500m"},
        {"policy": "utility:500m", "mechanism": "graph-exponential"},
    ],
    ids=str,
)
def test_settings_are_verified_or_what_is_not_is_said(settings, tmp_path):
    lines, rows, _ = town_certificate(tmp_path, ReleaseSettings(**{"policy": "utility:1km", "epsilon": 1, **settings}))
    said = " ".join(verify(lines, rows)["not"])
    assert ("schedule" in said, "delta" in said) == ("schedule" in settings, "delta" in settings)
    assert ("edges listed" in said) == (settings.get("policy") in ("transition", "utility:1km & transition"))


def test_models_that_vary_or_know_of_people_outside(tmp_path):
    from dphmm.model.away import twins_of

    inside = town()
    classes = TimeClasses.of("hours", 300, "Europe/Berlin")
    matrices = [inside.transition if hour % 2 else np.eye(inside.size) for hour in range(24)]
    starts = np.tile(inside.initial, (24, 1))
    away = twins_of(inside.space)
    both = np.zeros((2, inside.size))
    chain = away.chain(
        inside.transition, inside.transition, both[0, : len(away.border)] + 0.1, both[1, : len(away.border)] + 0.5
    )
    for name, model in (
        ("hours", MarkovModel(matrices, starts, inside.space, 300, classes)),
        ("away", MarkovModel(chain, inside.initial, inside.space, 300, away=away)),
    ):
        engine = ReleaseSettings("utility:1km", 1).engine(model, 1)
        lines = walked(engine, [(0, 5_700_003), (0, 5_700_010), (1, 5_700_011), (1, 5_700_400)])
        model.save(tmp_path / f"{name}.npz")
        assert verify(lines, None, verifier().File(tmp_path / f"{name}.npz"))["steps"] == 4


def test_a_model_without_places_is_compared_with_its_file(tmp_path):
    """Its file has no space from which estimates would follow, but moves, first states and a hash."""
    UNIFORM.save(tmp_path / "model.npz")
    lines = walked(Releaser(UNIFORM, F, GRAPH, 1.0, rng=0, spacing=1), [(4, 0)])
    assert verify(lines, None, verifier().File(tmp_path / "model.npz"))["steps"] == 1
    other = MarkovModel(np.full((6, 6), 1 / 6), np.array([0.2, 0.2, 0.2, 0.2, 0.1, 0.1]))
    other.save(tmp_path / "other.npz")
    with pytest.raises(verifier().RefusedError, match="of another model than this file"):
        verify(lines, None, verifier().File(tmp_path / "other.npz"))


def test_what_cannot_be_certified_is_refused():
    writer = CertificateWriter(lambda _: None)
    with pytest.raises(ConfigurationError, match="real numbers"):
        writer.begin("ann", {"main": Releaser(UNIFORM, F, GRAPH, 1.0, "k-norm")})
    engine = Releaser(UNIFORM, F, GRAPH, 1.0, rng=0, spacing=1)
    writer.begin("ann", {"main": engine})
    record = engine.release(4, epsilon=2.0)
    with pytest.raises(InvalidInputError, match="above the 1 of its settings"):
        writer.add(engine.last[1], record.released, 0)
    with pytest.raises(InvalidInputError, match="was not begun"):
        writer.add(engine.last[1], record.released, 0, "other")
    with pytest.raises(InvalidInputError, match="at most 2 dimensions, got 3"):
        writer.begin("ann", {"main": Releaser(UNIFORM, np.eye(6)[:, :3], GRAPH, 1.0, spacing=1)})


def test_a_step_costs_little(tmp_path):
    """At most 1 kB on average, shared parts included."""
    engine = ReleaseSettings("utility:1km", 1).engine(town(8), 1)
    lines = walked(engine, [(0, slot) for slot in range(60)])
    size = sum(len(json.dumps(line)) for line in lines)
    assert size < 60 * 1000


def test_the_script_says_what_it_verified_and_what_not(tmp_path):
    lines, _, model = town_certificate(tmp_path)
    model.save(tmp_path / "model.npz")
    texts = [json.dumps(line, sort_keys=True) for line in lines]
    (tmp_path / "good.jsonl").write_text("\n".join(texts) + "\n")
    (tmp_path / "short.jsonl").write_text("\n".join(texts[:-1]) + "\n")
    (tmp_path / "other.npz").write_bytes((tmp_path / "model.npz").read_bytes()[:100])

    def said(*arguments: str) -> tuple[int, str]:
        # Alone and without the package on its path, as a stranger would run it.
        command = [sys.executable, "-I", str(VERIFIER), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, text = said("good.jsonl", "rows.csv", "--model", "model.npz")
    yes, no = text.split("NOT VERIFIED")
    assert code == 0
    assert "5 releases" in yes
    assert "at most 1.0 km apart" in yes
    assert "those of the model's file" in yes
    assert "noise was drawn by these laws" in no
    assert "estimate_latitude" in yes
    assert "estimate_latitude" in said("good.jsonl", "rows.csv")[1].split("NOT VERIFIED")[1]
    text = said("good.jsonl", "rows.csv", "--model", "model.npz", "--fast")[1]
    assert "estimate_latitude" in text.split("NOT VERIFIED")[1]
    code, text = said("good.jsonl")
    assert (code, "none were given" in text, "a model's file: none was given" in text) == (0, True, True)
    assert said("short.jsonl", "rows.csv")[0] == 1
    assert said("good.jsonl", "--matrix", "rows.csv")[0] == said("good.jsonl", "--noisy", "rows.csv")[0] == 2
    assert said("missing.jsonl")[0] == said("good.jsonl", "--model", "other.npz")[0] == said()[0] == 2
    assert said("good.jsonl", "--seconds", "0")[0] in (0, 1)
    assert len(VERIFIER.read_text().splitlines()) <= 1500
    imports = [one for one in ast.walk(ast.parse(VERIFIER.read_text())) if isinstance(one, ast.Import | ast.ImportFrom)]
    assert all(isinstance(one, ast.Import) or one.level == 0 for one in imports)
    modules = {alias.name for one in imports if isinstance(one, ast.Import) for alias in one.names}
    modules |= {str(one.module) for one in imports if isinstance(one, ast.ImportFrom)}
    assert modules <= sys.stdlib_module_names


def test_scattered_places_and_grids_with_holes_are_verified(tmp_path):
    """Edges between points off any lattice are listed; where every third cell is left their step is odd in doubles."""
    rng = np.random.default_rng(1)
    names = [f"p{k}" for k in range(12)]
    points = Places(names, 45 + rng.random(12) / 50, -30 + rng.random(12) / 50)
    mask = np.zeros((7, 7), dtype=bool)
    mask[::3, ::3] = True
    holes = Grid(LocalProjection(45.0, -30.0), (0, 0), 0.1, 7, 7, mask)
    near = ("utility:200m", "centres:300m")  # as far apart as the cells that are left
    for space, listed, more in ((points, True, ()), (holes, False, near)):
        model = MarkovModel(np.full((space.size,) * 2, 1 / space.size), np.full(space.size, 1 / space.size), space, 300)
        for policy in ("utility:300m", "utility:500m", "centres:400m", *more):
            engine = ReleaseSettings(policy, 1).engine(model, 1)
            report = verify(walked(engine, [(0, 5), (1, 6)]))
            assert ("those listed" in report["policies"]) == listed
            assert any("edges listed" in one for one in report["not"]) == listed
