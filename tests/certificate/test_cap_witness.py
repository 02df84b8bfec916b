"""The verifier of caps on events: it accepts what enumeration confirms, and no tampering."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings
from dphmm.certificate import CertificateWriter
from dphmm.certificate.canonical_forms import encode_model
from dphmm.certificate.cap_witness import encode_probabilities
from dphmm.errors import DphmmError, InvalidInputError
from dphmm.events import Cap
from dphmm.events.cap_budget import CapTracker
from dphmm.model.outside_states import create_outside_states
from dphmm.release.caps import EventCaps
from tests.certificate import certificates as whole
from tests.certificate.capped import (
    TAMPERINGS,
    WORLDS,
    add_stays,
    change_settings,
    find_draws,
    find_refusal,
    mutate,
    verify,
)
from tests.certificate.certificates import (
    VERIFIER,
    Line,
    build_certificate,
    build_town,
    certify_path,
    encode,
    find_parts,
    find_steps,
    format_canonical,
    load_verifier,
)
from tests.certificate.test_lies import LINE
from tests.certificate.vectors import parse_line_number
from tests.sizes import choose_count


@pytest.fixture(scope="module")
def worlds():
    return {name: make_world() for name, make_world in WORLDS.items()}


@pytest.fixture
def no_caps(monkeypatch):
    """Disable the caps of the engine, and certify that they were kept."""
    cells = CapTracker.prove_caps
    monkeypatch.setattr(EventCaps, "limit_plan", lambda _, plan, *__: plan)
    monkeypatch.setattr(CapTracker, "prove_caps", lambda *arguments: [(True, signs) for _, signs in cells(*arguments)])


@pytest.mark.slow
def test_worlds_are_accepted_by_both_verifiers(worlds):
    for name, lines in worlds.items():
        assert find_refusal(lines) is None, name
        assert whole.find_refusal(lines) is None, name
    for name, others in (("flat", 0), ("with_priors", 2), ("at_rest", 0)):
        num_checks = sum(1 + (" 0.0 <=" not in f" {text}") for text in get_caps(worlds[name]))
        assert verify(worlds[name])["checked"] == len(find_draws(worlds[name])) * num_checks * (1 + others)


def record_chances(lines: list[Line]) -> Any:
    """Return the verifier's probabilities for a certificate, with the powers it used."""
    recorded: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        chances = load_verifier().Chances
        begin = chances.__init__

        def keep_certificate(self: Any, *arguments: Any) -> None:
            recorded.append(self)
            begin(self, *arguments)

        patch.setattr(chances, "__init__", keep_certificate)
        verify(lines)
    (chances_used_once,) = recorded
    return chances_used_once


def get_caps(lines: list[Line]) -> list[str]:
    (query,) = next(line for line in lines if "begin" in line)["queries"]
    return list(json.loads(query["settings"])["caps"])


@pytest.mark.slow
def test_worlds_cover_all_cases(worlds):
    steps = find_steps(worlds["capped_town"])
    budgets = [step["epsilon"] for step in steps]
    assert any("withheld" in step for step in steps)
    assert len(set(budgets)) > 2, "caps bind"
    assert any(
        sign in "ABC" for step in find_draws(worlds["capped_town"]) for cells in step["caps"] for sign in cells[0]
    )
    bodies = [
        part_noise["body"] for part in find_parts(worlds["flat"], "noise") for part_noise in part["value"]["parts"]
    ]
    assert any(len(body) == 1 for body in bodies), "a segment"
    assert all(len(part["value"]["parts"]) == 3 for part in find_parts(worlds["components"], "noise"))
    assert any(cells is None for step in find_draws(worlds["with_priors"]) for cells in step["caps"]), (
        "a prior that excludes the event"
    )
    assert len(record_chances(worlds["after_gaps"]).powers) > 3
    assert worlds["at_rest"][-2]["slot"]
    assert find_steps(worlds["at_rest"])[0]["events"]["caps"][0]["at"] < 475_000


# ---- against an enumeration of all paths ---------------------------------------------------------------------------


def compute_largest_probabilities(engine: Releaser, lines: list[Line], happens: Any, last: int) -> list[float]:
    """Compute the largest event probability over nearby lattice outputs per release.

    Every path of states is enumerated. Only the matrix, the budgets and the releases of the program are used.
    """
    moves, start = engine.model.transition.toarray(), engine.model.initial
    weights = {(s,): p for s, p in enumerate(start)}
    probabilities, at = [], np.asarray(engine.query.values)
    around = np.array(list(product(range(-30, 31), repeat=2)))
    for number, step in enumerate(find_steps(lines)):
        if number:
            weights = {(*path, s): w * p for path, w in weights.items() for s, p in enumerate(moves[path[-1]])}
        (body,) = next(p["value"]["parts"] for p in find_parts(lines, "noise") if p["part"].startswith(step["noise"]))
        ring = np.array(body["body"] + [[-x, -y] for x, y in body["body"]], dtype=float)
        halfspaces = [(w[1] - v[1], v[0] - w[0]) for v, w in pairwise([*ring, ring[0]])]
        offsets = np.array([v[0] * w[1] - v[1] * w[0] for v, w in pairwise([*ring, ring[0]])])

        def compute_density(
            z: np.ndarray, epsilon: float, halfspaces: Any = halfspaces, offsets: Any = offsets
        ) -> np.ndarray:
            return np.exp(-epsilon * np.max((z[:, None] - at) @ np.array(halfspaces).T / offsets, axis=2))

        epsilon = float(Fraction(step["epsilon"]))
        laws = compute_density(around, epsilon)
        masses = np.zeros((2, len(start)))
        for path, weight in weights.items():
            # future steps are summed over all paths, too
            ways = (
                [path]
                if len(path) > last
                else [(*path, *rest) for rest in product(range(len(start)), repeat=last + 1 - len(path))]
            )
            for way in ways:
                later = np.prod([moves[a, b] for a, b in pairwise(way[len(path) - 1 :])]) if len(way) > len(path) else 1
                masses[int(happens(way)), path[-1]] += weight * later
        sums = laws @ masses.T
        probabilities.append(float((sums[:, 1] / sums.sum(axis=1)).max()))
        likelihood = compute_density(np.array([step["z"]]), epsilon)[0]
        weights = {path: weight * likelihood[path[-1]] for path, weight in weights.items()}
    return probabilities


def sample_world(seed: int) -> tuple[Releaser, Cap, Any]:
    """Sample three or four states on a lattice, a complete policy and one of two events."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 5))
    f = np.concatenate([[[0, 0], [3, 1], [1, 4]], rng.integers(0, 6, (n - 3, 2))])
    moves = rng.dirichlet(np.full(n, 0.7), n) * 0.5 + 0.5 * np.eye(n)
    model = MarkovModel(moves, rng.dirichlet(np.full(n, 2.0)))
    text, happens = [
        ("state:1 between 1 and 2", lambda path: 1 in path[1:3]),
        ("!state:0 at 1 & state:2 between 0 and 2", lambda path: path[1] != 0 and 2 in path[:3]),
    ][int(rng.integers(2))]
    cap = Cap(text, float(rng.choice([0.6, 0.75, 0.9])))
    engine = Releaser(
        model, f, PolicyGraph.complete(n), float(rng.choice([0.3, 1, 2, 4])), rng=seed, spacing=1, caps=[cap]
    )
    return engine, cap, happens


@pytest.mark.slow
def test_releases_that_could_exceed_cap_are_rejected_without_caps(no_caps):
    """No accepted release can exceed the cap, and few valid releases are rejected."""
    believed = refused = close = 0
    for seed in range(choose_count(30, 8)):
        engine, cap, happens = sample_world(seed)
        try:
            lines = certify_path(engine, [(0, 0), (1, 1), (2, 2)])
        except DphmmError:
            continue
        reached = compute_largest_probabilities(engine, lines, happens, 2)
        reason = find_refusal(lines)
        fine = (
            len(reached)
            if reason is None
            else [step == lines[parse_line_number(reason) - 1] for step in find_steps(lines)].index(True)
        )
        assert all(probability <= cap.probability * (1 + 1e-9) for probability in reached[:fine]), (
            seed,
            reason,
            reached,
        )
        believed, refused = believed + fine, refused + (reason is not None)
        if reason is not None:
            assert "' is not proven:" in reason
            close += reached[fine] <= cap.probability * (1 - 1e-3)
    assert min(believed, refused) >= choose_count(7, 1)
    assert close <= refused // 8


@pytest.mark.slow
def test_releases_with_caps_are_accepted():
    bound = 0
    for seed in range(choose_count(30, 8)):
        engine, *_ = sample_world(seed)
        with suppress(DphmmError):
            lines = certify_path(engine, [(0, 0), (1, 1), (2, 2)])
            assert find_refusal(lines) is None
            bound += any(Fraction(step["epsilon"]) < engine.settings.epsilon for step in find_steps(lines))
    assert bound >= choose_count(2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["lattice", "graph-exponential"])
def test_broken_engine_is_rejected(no_caps, mechanism):
    """The prior nearly reaches the cap, and the budget reveals most places."""
    settings = ReleaseSettings("utility:1km", 30, mechanism, caps=(Cap("state:12 between 1 and 3", 0.2),))
    lines = certify_path(settings.engine(add_stays(build_town()), 1), [(0, 0), (6, 1), (12, 2)])
    assert "' is not proven:" in (find_refusal(lines) or "")
    assert whole.find_refusal(lines) is None, "everything else is valid"


@pytest.mark.parametrize("mechanism", ["lattice", "graph-exponential", "optimal"])
def test_single_component_is_accepted_for_every_noise(mechanism):
    """No state is released exactly. The noise of a table then has one part."""
    settings = ReleaseSettings("complete", 1, mechanism, caps=(Cap("state:12 between 1 and 3", 0.5),))
    lines = certify_path(settings.engine(add_stays(build_town()), 1), [(0, 0), (6, 1), (12, 2)])
    assert find_refusal(lines) is None


@pytest.mark.slow
def test_certifying_exceeded_cap_raises(monkeypatch):
    monkeypatch.setattr(EventCaps, "limit_plan", lambda _, plan, *__: plan)
    engine = ReleaseSettings("utility:1km", 30, caps=(Cap("state:12 between 1 and 3", 0.2),)).engine(
        add_stays(build_town()), 1
    )
    with pytest.raises(InvalidInputError, match="'state:12 between 1 and 3'"):
        certify_path(engine, [(0, 0), (6, 1), (12, 2)])


def test_unprotected_state_of_event_is_rejected(no_caps):
    """The exact release proves the event."""
    model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6), step_seconds=3600)
    policy = PolicyGraph.categorical([0, 0, 0, 1, 1, -1]).with_open([5])
    caps = (Cap("state:5 at 0", 0.9),)
    engine = Releaser(
        model,
        np.array([[0, 0], [2, 0], [4, 0], [0, 3], [3, 3], [9, 9]]),
        policy,
        1.0,
        rng=3,
        spacing=1,
        noise_scope="component",
        caps=caps,
    )
    assert "an output exceeds the bound" in (find_refusal(certify_path(engine, [(0, 10)])) or "")


# ---- users, queries, models -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_queries_about_one_user_share_belief():
    model = MarkovModel(0.7 * np.eye(6) + 0.05, np.full(6, 1 / 6))
    caps = [Cap("state:1 between 0 and 2", 0.6)]
    first = Releaser(model, LINE, PolicyGraph.complete(6), 6.0, rng=3, spacing=1, caps=caps)
    other = first.for_query(LINE[:, ::-1] * 2, spacing=1, caps=caps)

    def draw(writer: CertificateWriter) -> None:
        for slot in range(3):
            first.filter_state.first = 0
            records = first.release_together(1, other, epsilon=[6.0, 6.0]).records
            for query, engine, record in zip(("main", "other"), (first, other), records, strict=True):
                writer.add(engine.last[1], record.released, slot, query)

    lines = build_certificate({"main": first, "other": other}, draw)
    assert find_refusal(lines) is None
    assert verify(lines)["checked"] == len(find_draws(lines)) > 0
    for step in find_draws(lines)[1:]:
        step["epsilon"] = "6"
    assert "' is not proven:" in (find_refusal(lines) or "")


def test_users_without_caps_are_listed_as_unchecked():
    lines = certify_path(ReleaseSettings("utility:1km", 1).engine(build_town(), 1), [(0, 0)])
    report = verify(lines)
    assert (report["checked"], report["free"]) == (0, {"ann"})


def build_outside_model() -> MarkovModel:
    inside = add_stays(build_town())
    away = create_outside_states(inside.space)
    back = np.full(len(away.border), 0.1)
    chain = away.build_chain(inside.transition, inside.transition, back, np.full(len(away.border), 0.5))
    return MarkovModel(chain, inside.initial, inside.space, 300, outside=away)


@pytest.mark.slow
@pytest.mark.parametrize("states", ["6,7", "0,6"])
def test_outside_users_are_tracked(states):
    """Users outside near state 0 are not in it."""
    caps = (Cap(f"state:{states} between 1 and 3", 0.6),)
    engine = ReleaseSettings("utility:1km", 6, caps=caps).engine(build_outside_model(), 5)
    lines = certify_path(engine, [(0, 0), (1, 1), (6, 2), (6, 4)])
    assert verify(lines)["checked"] == len(find_draws(lines)) > 0
    assert any("which includes the distances of users outside" in limitation for limitation in verify(lines)["not"])
    others = json.loads(format_canonical(lines).replace(f"state:{states}", "state:8"))
    assert "the event is not that of its text" in (find_refusal(others) or "")
    for step in find_draws(lines):
        step["epsilon"] = "30"
    assert "' is not proven:" in (find_refusal(lines) or "")


# ---- long gaps -------------------------------------------------------------------------------------------------------


def build_small_chain(seed: int) -> tuple[Any, list[list[Fraction]]]:
    """Build the verifier's model of a chain with five states, and its exact matrix.

    Some states never reach others.
    """
    rng = np.random.default_rng(seed)
    return read_chain(
        rng.dirichlet(np.full(5, 0.3), 5) * np.tri(5, k=rng.integers(5)) + np.diag(rng.uniform(1e-9, 1, 5))
    )


def build_lazy_chain() -> tuple[Any, list[list[Fraction]]]:
    """Build the same of a chain whose states are seldom left."""
    return read_chain(0.99 * np.eye(5) + 0.01 * np.random.default_rng(5).dirichlet(np.ones(5), 5))


def read_chain(moves: np.ndarray) -> tuple[Any, list[list[Fraction]]]:
    model = MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(5, 0.2))
    chances = load_verifier().Chances(encode_probabilities(model), load_verifier().Model(encode_model(model)))
    return chances, [[Fraction(probability) for probability in row] for row in model.transition.toarray().tolist()]


def multiply(rows: Any, others: Any) -> list[list[Any]]:
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*others, strict=True)] for row in rows
    ]


def compute_bound_width(chances: Any, exact: list[list[Fraction]], gap: int, minimum: int = 1 << 60) -> Fraction | None:
    """Return the largest relative width of the bounds, or None if a true value is outside.

    The width is relative to the value or to `least`, whichever is larger.
    """
    row, power = [[1 << 310, 3, 0, 1 << 200, 5 << 300]], [[Fraction(i == j) for j in range(5)] for i in range(5)]
    for bit in bin(gap)[2:]:
        power = multiply(power, power)
        power = multiply(power, exact) if bit == "1" else power
    width = Fraction(0)
    for to, (wanted,) in ((gap, multiply(row, power)), (-gap, multiply(row, list(zip(*power, strict=True))))):
        (low,), (high,) = (chances.moved(row, 0, to, up) for up in (False, True))
        if not all(a <= b <= c and (b == 0) == (c == 0) for a, b, c in zip(low, wanted, high, strict=True)):
            return None
        width = max(width, *((c - a) / max(b, Fraction(minimum)) for a, b, c in zip(low, wanted, high, strict=True)))
    return width


@pytest.mark.slow
@pytest.mark.parametrize("is_dense", [True, False])
@pytest.mark.parametrize("seed", range(choose_count(10, 3)))
def test_bounds_of_long_gaps_enclose_exact_powers(seed, is_dense):
    """Unreachable states stay at 0, for matrices with many and with few transitions."""
    chances, exact = build_small_chain(seed)
    chances.is_dense = [is_dense]
    weight, chances.weight = chances.weight, 0  # without it, no powers are computed
    for gap in (2, 37, 700):
        width = compute_bound_width(chances, exact, gap)
        assert width is not None
        assert width < Fraction(1, 1 << 50)
    chances.weight = weight
    width = compute_bound_width(chances, exact, 700, 1 << 310)
    assert width is not None
    assert width < Fraction(1, 1 << 280)
    assert len(chances.powers) > 5


@pytest.mark.slow
def test_few_transitions_are_computed_for_a_long_gap():
    """Rows of doubles seldom sum to 1: without scaling, terms would grow or shrink forever."""
    chances, _ = build_lazy_chain()
    chances.weight = 0
    count, multiply_once = 0, chances._multiply

    def count_products(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return multiply_once(*arguments)

    chances._multiply = count_products
    chances.moved([[1 << 310, 0, 0, 0, 0]], 0, 100_000, True)
    assert 10 < count < 400


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 1])
def test_bounds_of_gaps_enclose_powers_of_a_permutation(shift):
    """All users stay, or none does and the terms never converge."""
    chances, exact = read_chain(np.roll(np.eye(5), shift, axis=1))
    chances.is_dense = [True]
    chances.weight = 0
    width = compute_bound_width(chances, exact, 101)
    assert width is not None
    assert width < Fraction(1, 1 << 50)


@pytest.mark.slow
def test_bounds_without_the_rest_of_the_terms_are_wrong(monkeypatch):
    """A verifier that neglects what changes after its last term has wrong bounds."""
    chances, exact = build_lazy_chain()
    chances.weight = 0
    width = compute_bound_width(chances, exact, 400)
    assert width is not None
    assert width < Fraction(1, 1 << 60)

    def neglect(*values: Any, **options: Any) -> Any:
        return 0 if len(values) == 2 else min(*values, **options)

    monkeypatch.setattr(load_verifier(), "min", neglect, raising=False)
    assert compute_bound_width(chances, exact, 400) is None


@pytest.mark.slow
def test_powers_bound_gaps_with_coarse_rounding(monkeypatch):
    """Without the rounding margin the bounds fail."""
    base = load_verifier()
    monkeypatch.setattr(base, "WIDE", 64)
    monkeypatch.setattr(base, "WIDTH", 17)
    assert all(compute_bound_width(*build_small_chain(seed), 700) is not None for seed in range(3))
    keep = base.Chances._store_power
    monkeypatch.setattr(base.Chances, "_store_power", lambda self, rows, shift, off: keep(self, rows, shift, 0))
    assert not all(compute_bound_width(*build_small_chain(seed), 700) is not None for seed in range(3))


def test_caps_with_delta_are_stated_as_unverified():
    """Under delta, states without noise are possible, and a cap is neither proven nor refuted."""
    engine = ReleaseSettings("utility:1km", 1, delta=0.01, caps=(Cap("state:6 between 1 and 3", 0.4),)).engine(
        add_stays(build_town()), 5
    )
    lines = certify_path(engine, [(0, 0), (1, 1)])
    report = verify(lines)
    assert not report["checked"]
    assert [what for what in report["not"] if "event caps" in what and "delta" in what]
    secret = {"is": "event", "secret": "39.9 116.4"}
    part = {"part": hashlib.sha256(format_canonical(secret).encode()).hexdigest(), "value": secret}
    assert "is not used" in (find_refusal([*lines[:1], part, *lines[1:]]) or "")


def test_cap_on_past_event_is_certified_as_empty():
    caps = (Cap("state:6 between 1970-01-01 and 1970-01-02", 0.5), Cap("state:7 between 1 and 3", 0.6))
    engine = ReleaseSettings("utility:1km", 1, caps=caps).engine(add_stays(build_town()), 7)
    engine.event_caps.ignores_past_caps = True  # as in a batch, for users who start later than others
    lines = certify_path(engine, [(0, 100000), (1, 100001)])
    (events,) = [line["events"] for line in lines if "events" in line]
    assert events["caps"][0] == {"event": None, "at": 0}
    assert events["caps"][1]["at"] == 100001
    assert find_refusal(lines) is None


def test_restart_is_listed_as_limitation():
    engine = ReleaseSettings("utility:1km", 4, caps=(Cap("state:6 between 1 and 3", 0.6),)).engine(
        add_stays(build_town()), 5
    )

    def draw(writer: CertificateWriter) -> None:
        for begin in (0, 100):
            if begin:
                writer.begin("ann", {"main": engine})
            engine.restart(first=begin)
            for number, state in enumerate((0, 1, 6)):
                record = engine.release(state)
                writer.add(engine.last[1], record.released, begin + number)

    report = verify(build_certificate(engine, draw))
    assert (
        report["drawn"] + report["withheld"],
        any("before a restart" in limitation for limitation in report["not"]),
    ) == (
        6,
        True,
    )


# ---- tampering -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "reason", "tamper"), TAMPERINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_tampered_certificates_are_rejected_with_reason(worlds, world, reason, tamper):
    lines = copy.deepcopy(worlds[world])
    tamper(lines)
    assert format_canonical(lines) != format_canonical(worlds[world]), "nothing was changed"
    refusal_reason = find_refusal(lines)
    assert refusal_reason is not None, "it was accepted"
    assert re.match(rf"line \d+: .*({reason})", refusal_reason, re.S), refusal_reason


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WORLDS))
def test_mutations_of_cap_fields_are_rejected(worlds, name):
    """Other cells may prove the same. One of the verifiers rejects every other mutation."""
    rng, tried = random.Random(name), 0
    for _ in range(choose_count(150, 25)):
        changed_lines = json.loads(format_canonical(worlds[name]))
        what = mutate(changed_lines, rng)
        tried += what is not None
        if what is None or what[0] in ("caps", "prior"):  # the verifier states that priors are compared with nothing
            continue
        assert find_refusal(changed_lines) is not None or whole.find_refusal(changed_lines) is not None, what
    assert tried > choose_count(100, 10)


@pytest.mark.slow
def test_changed_cells_are_accepted_only_if_still_valid(worlds):
    """A changed cell bound is accepted only if it is at least the verifier's own bound."""
    lines, rng = worlds["at_rest"], random.Random(1)
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    lowered = 0
    for _ in range(choose_count(100, 30)):
        mutated = json.loads(format_canonical(lines))
        cells = rng.choice(rng.choice(find_draws(mutated))["caps"])
        at = rng.choice([n for n, sign in enumerate(cells[0]) if sign in digits])
        now = digits.index(cells[0][at])
        to = rng.randrange(36)
        cells[0] = cells[0][:at] + digits[to] + cells[0][at + 1 :]
        if to >= now:
            assert find_refusal(mutated) is None
        elif now > 1 and to < now - 1:
            lowered += 1
            assert "may reach more than" in (find_refusal(mutated) or "")
    assert lowered > choose_count(5, 1)


# ---- the script and the vectors ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_script_lists_what_it_verifies_and_what_not(tmp_path, worlds):
    def run(lines: list[Any], *more: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "proof.jsonl").write_text("".join(format_canonical(line) + "\n" for line in lines))
        command = [sys.executable, "-I", "-S", str(VERIFIER), "proof.jsonl", *more]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = run(worlds["capped_town"], "--seconds", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no possible output" in done.stdout.split("NOT VERIFIED")[0]
    condition = (
        "2 timesteps have no release: if withheld from public information only, they reveal nothing about events"
    )
    assert condition in done.stdout.split("NOT VERIFIED")[0]
    assert "that budgets were lowered" in done.stdout.split("NOT VERIFIED")[1]
    done = run(worlds["capped_town"], "--fast")
    assert (
        done.returncode,
        "event caps, and their fields and parts: --fast omits them" in done.stdout,
    ) == (0, True)
    done = run(certify_path(ReleaseSettings("utility:1km", 1).engine(build_town(), 1), [(0, 0)]))
    assert (done.returncode, "no possible output" in done.stdout) == (0, False)
    done = run(worlds["capped_town"][:-1])
    assert (done.returncode, "line" in done.stdout, "the last line is missing" in done.stdout) == (1, True, True)
    (tmp_path / "proof.jsonl").unlink()
    assert subprocess.run([sys.executable, VERIFIER, "none.jsonl"], cwd=tmp_path, capture_output=True).returncode == 2


@pytest.mark.slow
def test_script_stops_at_time_limit(tmp_path, worlds):
    """A gap of 99,000 steps with hourly matrices takes longer than a second."""
    lines = json.loads(format_canonical(worlds["by_hours"]))
    last = find_draws(lines)[-1]
    last.update(slot=last["slot"] + 99_000, day=last["epsilon"])
    (tmp_path / "proof.jsonl").write_bytes(b"".join(encode(lines)))
    command = [sys.executable, "-I", "-S", str(VERIFIER), "proof.jsonl", "--seconds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(
        r"NOT VERIFIED: proof.jsonl: line \d+: it takes more than 1 s of processor time; raise --seconds\n", done.stdout
    )
    for ulimit, reason in (
        ("-t 2", "it takes more than 1 s of processor time; raise the limit of the system"),
        ("-St 1", "it takes more than 1 s of processor time; raise the limit of the system"),
        ("-v 1000000 -t 2", "it takes more than 1 s of processor time; raise the limit of the system"),
    ):
        shell = ["bash", "-c", f'ulimit {ulimit}; "$@"', "bash", *command[:-2]]
        done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, reason in done.stdout) == (1, True), (ulimit, done.stdout, done.stderr)
        assert done.stdout.startswith("NOT VERIFIED: ")


def test_exhausted_memory_leaves_claims_unverified():
    base = load_verifier()
    for error, expected in ((MemoryError, base.LimitError), (KeyError, base.RefusedError)):
        with pytest.raises(base.RefusedError, match=r"^line 3: it ") as caught, base.locate_errors({"line": 3}):
            raise error
        assert type(caught.value) is expected


def test_model_that_exhausts_memory_leaves_claims_unverified(tmp_path, monkeypatch, capsys):
    base = load_verifier()
    (tmp_path / "proof.jsonl").write_bytes(b"{}\n")

    def exhaust(path):
        raise MemoryError

    monkeypatch.setattr(base, "File", exhaust)
    monkeypatch.setattr(base, "limit", lambda seconds: None)
    assert base.main([str(tmp_path / "proof.jsonl"), "--model", "m.npz"]) == 1
    assert capsys.readouterr().out.endswith("proof.jsonl: it takes too much memory\n")


def test_script_prints_text_that_its_output_cannot_encode(tmp_path, worlds):
    lines = copy.deepcopy(worlds["tables"])
    change_settings(lines, lambda stated: stated.update(policy="zone:\u674e"))
    (tmp_path / "proof.jsonl").write_bytes(b"".join(encode(lines)))
    command = [sys.executable, "-S", str(VERIFIER), "proof.jsonl", "--fast"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (done.returncode, "the policy 'zone:?'" in done.stdout, done.stderr) == (0, True, "")


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes of POSIX")
def test_script_ends_quietly_if_its_output_is_closed(tmp_path, worlds):
    (tmp_path / "proof.jsonl").write_bytes(b"".join(encode(worlds["tables"])))
    command = f'"{sys.executable}" -u -I -S "{VERIFIER}" proof.jsonl 2>errors | true; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (tmp_path / "errors").read_text() == ""
    assert done.stdout.strip() not in ("1", "2")


def test_exponential_bounds_enclose_mpmath():
    """Compare with mpmath, within a relative 2**-250 and an absolute 2**-310."""
    mpmath = pytest.importorskip("mpmath")
    rng, base = random.Random(3), load_verifier()
    with mpmath.workdps(140):
        for _ in range(200):
            powers = rng.choice([base.COARSE, base.FINE])
            x = rng.randrange(1 << powers.places + rng.choice([-40, 2, 8]))
            exact = mpmath.exp(-mpmath.mpf(x) / mpmath.mpf(2) ** powers.places)
            low, high = (mpmath.mpf(powers.power(x, up)) / mpmath.mpf(base.ONE) for up in (False, True))
            assert low <= exact <= high
            assert high - low <= exact * mpmath.mpf(2) ** -250 + mpmath.mpf(2) ** -310


@pytest.mark.slow
@pytest.mark.parametrize(
    "upper", [[(1, 0), (0, 1)], [(3, 0), (4, 1), (-1, 1)], [(2, 4)], [(7, 1), (3, 5), (-4, 3)]], ids=repr
)
def test_lattice_sum_matches_nearby_points(upper):
    """Compare with the sum over all points near the origin."""
    base = load_verifier()
    body, epsilon = base.Body(upper), Fraction(9, 4)
    low, high = (body.total(epsilon, up) / base.ONE for up in (False, True))
    near = [(x, y) for x in range(-150, 151) for y in range(-120, 121) if body.spans((x, y))]
    summed = sum(np.exp(-2.25 * float(body.norm(point))) for point in near)
    assert low == pytest.approx(summed, rel=1e-12)
    assert high >= low
