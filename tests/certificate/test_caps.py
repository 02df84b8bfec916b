"""The verifier of caps on events: it believes what an enumeration of all paths confirms, and no lie."""

from __future__ import annotations

import copy
import json
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
from dphmm.certificate.canonical_forms import model_of
from dphmm.certificate.capped_events import chances_of
from dphmm.errors import DphmmError, InvalidInputError
from dphmm.events import Cap
from dphmm.events.cap import CapKeeper
from dphmm.model.away import twins_of
from dphmm.release.event_caps import Capping
from tests.certificate import certificates as whole
from tests.certificate.capped import (
    FILE,
    LIES,
    VERIFIER,
    WORLDS,
    drawn,
    mutated,
    refusal,
    settled,
    verifier,
    verify,
)
from tests.certificate.certificates import Line, canonical, certificate, parts_of, steps_of, town, walked
from tests.certificate.test_lies import LINE
from tests.certificate.vectors import number_of
from tests.sizes import fewer


@pytest.fixture(scope="module")
def worlds():
    return {name: made() for name, made in WORLDS.items()}


@pytest.fixture
def no_caps(monkeypatch):
    """An engine whose caps are switched off, and a certificate that claims that they were kept."""
    cells = CapKeeper.cells
    monkeypatch.setattr(Capping, "limit", lambda _, release: release)
    monkeypatch.setattr(CapKeeper, "cells", lambda *given: [(True, signs) for _, signs in cells(*given)])


def test_the_worlds_are_verified_by_both(worlds):
    for name, lines in worlds.items():
        assert refusal(lines) is None, name
        assert whole.refusal(lines) is None, name
    for name, others in (("flat", 0), ("with_priors", 2), ("at_rest", 0)):
        asked = sum(1 + (" 0.0 <=" not in f" {text}") for text in caps_of(worlds[name]))
        assert verify(worlds[name])["checked"] == len(drawn(worlds[name])) * asked * (1 + others)


def caps_of(lines: list[Line]) -> list[str]:
    (query,) = next(line for line in lines if "begin" in line)["queries"]
    return list(json.loads(query["settings"])["caps"])


def test_the_worlds_are_of_every_kind(worlds):
    steps = steps_of(worlds["capped_town"])
    budgets = [step["epsilon"] for step in steps]
    assert any("withheld" in step for step in steps)
    assert len(set(budgets)) > 2, "caps bind"
    assert any(sign in "ABC" for step in drawn(worlds["capped_town"]) for cells in step["caps"] for sign in cells[0])
    bodies = [one["body"] for part in parts_of(worlds["flat"], "noise") for one in part["value"]["parts"]]
    assert any(len(body) == 1 for body in bodies), "a segment"
    assert all(len(part["value"]["parts"]) == 3 for part in parts_of(worlds["components"], "noise"))
    assert any(cells is None for step in drawn(worlds["with_priors"]) for cells in step["caps"]), (
        "a prior that never believes it"
    )
    assert all(len(one.powers) > 3 for one in verify(worlds["after_gaps"])["models"].values())
    assert worlds["at_rest"][-2]["slot"]
    assert steps_of(worlds["at_rest"])[0]["events"]["caps"][0]["at"] < 475_000


# ---- against an enumeration of all paths ---------------------------------------------------------------------------


def largest(engine: Releaser, lines: list[Line], happens: Any, last: int) -> list[float]:
    """Before each release, the greatest probability of an event that any lattice point near the places would give it.

    Every path of states is weighed by itself; of the program only its matrix, its budgets and its releases are used.
    """
    moves, start = engine.model.transition.toarray(), engine.model.initial
    weights = {(s,): p for s, p in enumerate(start)}
    found, at = [], np.asarray(engine.values)
    around = np.array(list(product(range(-30, 31), repeat=2)))
    for number, step in enumerate(steps_of(lines)):
        if number:
            weights = {(*path, s): w * p for path, w in weights.items() for s, p in enumerate(moves[path[-1]])}
        (body,) = next(p["value"]["parts"] for p in parts_of(lines, "noise") if p["part"].startswith(step["noise"]))
        ring = np.array(body["body"] + [[-x, -y] for x, y in body["body"]], dtype=float)
        walls = [(w[1] - v[1], v[0] - w[0]) for v, w in pairwise([*ring, ring[0]])]
        offsets = np.array([v[0] * w[1] - v[1] * w[0] for v, w in pairwise([*ring, ring[0]])])

        def law(z: np.ndarray, epsilon: float, walls: Any = walls, offsets: Any = offsets) -> np.ndarray:
            return np.exp(-epsilon * np.max((z[:, None] - at) @ np.array(walls).T / offsets, axis=2))

        epsilon = float(Fraction(step["epsilon"]))
        laws = law(around, epsilon)
        masses = np.zeros((2, len(start)))
        for path, weight in weights.items():
            # what is to come is summed over all paths too
            ways = (
                [path]
                if len(path) > last
                else [(*path, *rest) for rest in product(range(len(start)), repeat=last + 1 - len(path))]
            )
            for way in ways:
                later = np.prod([moves[a, b] for a, b in pairwise(way[len(path) - 1 :])]) if len(way) > len(path) else 1
                masses[int(happens(way)), path[-1]] += weight * later
        sums = laws @ masses.T
        found.append(float((sums[:, 1] / sums.sum(axis=1)).max()))
        told = law(np.array([step["z"]]), epsilon)[0]
        weights = {path: weight * told[path[-1]] for path, weight in weights.items()}
    return found


def random_world(seed: int) -> tuple[Releaser, Cap, Any]:
    """Three or four states on a lattice, a complete policy, and one of two events."""
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


def test_without_caps_every_release_that_could_pass_one_is_refused(no_caps):
    """What is believed no output takes too far; and hardly anything that no output takes too far is not believed."""
    believed = refused = close = 0
    for seed in range(fewer(60, 8)):
        engine, cap, happens = random_world(seed)
        try:
            lines = walked(engine, [(0, 0), (1, 1), (2, 2)])
        except DphmmError:
            continue
        reached = largest(engine, lines, happens, 2)
        reason = refusal(lines)
        fine = (
            len(reached)
            if reason is None
            else [step == lines[number_of(reason) - 1] for step in steps_of(lines)].index(True)
        )
        assert all(one <= cap.probability * (1 + 1e-9) for one in reached[:fine]), (seed, reason, reached)
        believed, refused = believed + fine, refused + (reason is not None)
        if reason is not None:
            assert "is not shown to be kept" in reason
            close += reached[fine] <= cap.probability * (1 - 1e-3)
    assert min(believed, refused) >= fewer(15, 1)
    assert close <= refused // 8


def test_with_caps_whatever_is_released_is_believed():
    bound = 0
    for seed in range(fewer(60, 8)):
        engine, *_ = random_world(seed)
        with suppress(DphmmError):
            lines = walked(engine, [(0, 0), (1, 1), (2, 2)])
            assert refusal(lines) is None
            bound += any(Fraction(step["epsilon"]) < engine.settings.epsilon for step in steps_of(lines))
    assert bound >= fewer(3, 1)


@pytest.mark.parametrize("mechanism", ["lattice", "graph-exponential"])
def test_a_broken_engine_is_found(no_caps, mechanism):
    """A cap that the prior alone nearly reaches, and a budget that tells most places."""
    settings = ReleaseSettings("utility:1km", 30, mechanism, caps=(Cap("state:12 between 1 and 3", 0.2),))
    lines = walked(settings.engine(settled(town()), 1), [(0, 0), (6, 1), (12, 2)])
    assert "is not shown to be kept" in (refusal(lines) or "")
    assert whole.refusal(lines) is None, "all else is right"


@pytest.mark.parametrize("mechanism", ["lattice", "graph-exponential", "optimal"])
def test_one_component_is_believed_of_every_noise(mechanism):
    """No state is released as it is: a table's noise has one part then, as far as a certificate tells."""
    settings = ReleaseSettings("complete", 1, mechanism, caps=(Cap("state:12 between 1 and 3", 0.5),))
    lines = walked(settings.engine(settled(town()), 1), [(0, 0), (6, 1), (12, 2)])
    assert refusal(lines) is None


def test_no_certificate_is_made_of_a_cap_that_is_not_kept(monkeypatch):
    monkeypatch.setattr(Capping, "limit", lambda _, release: release)
    engine = ReleaseSettings("utility:1km", 30, caps=(Cap("state:12 between 1 and 3", 0.2),)).engine(settled(town()), 1)
    with pytest.raises(InvalidInputError, match="the cap on 'state:12 between 1 and 3' is not shown to be kept"):
        walked(engine, [(0, 0), (6, 1), (12, 2)])


def test_an_open_state_that_the_event_is_about_is_found(no_caps):
    """Released as it is, it proves the event."""
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
        calibration="component",
        caps=caps,
    )
    assert "an output passes it" in (refusal(walked(engine, [(0, 10)])) or "")


# ---- people, queries, models -----------------------------------------------------------------------------------------


def test_two_queries_about_one_person_share_what_is_believed():
    model = MarkovModel(0.7 * np.eye(6) + 0.05, np.full(6, 1 / 6))
    caps = [Cap("state:1 between 0 and 2", 0.6)]
    first = Releaser(model, LINE, PolicyGraph.complete(6), 6.0, rng=3, spacing=1, caps=caps)
    other = first.beside(LINE[:, ::-1] * 2, spacing=1, caps=caps)

    def draw(writer: CertificateWriter) -> None:
        for slot in range(3):
            first.person.first = 0
            records = first.release_together(1, other, epsilon=[6.0, 6.0]).records
            for query, engine, record in zip(("main", "other"), (first, other), records, strict=True):
                writer.add(engine.last[1], record.released, slot, query)

    lines = certificate({"main": first, "other": other}, draw)
    assert refusal(lines) is None
    assert verify(lines)["checked"] == len(drawn(lines)) > 0
    for step in drawn(lines)[1:]:
        step["epsilon"] = "6"
    assert "is not shown to be kept" in (refusal(lines) or "")


def test_people_without_caps_are_said_not_to_be_checked():
    lines = walked(ReleaseSettings("utility:1km", 1).engine(town(), 1), [(0, 0)])
    report = verify(lines)
    assert (report["checked"], report["free"]) == (0, {"ann"})


def of_outside() -> MarkovModel:
    inside = settled(town())
    away = twins_of(inside.space)
    back = np.full(len(away.border), 0.1)
    chain = away.chain(inside.transition, inside.transition, back, np.full(len(away.border), 0.5))
    return MarkovModel(chain, inside.initial, inside.space, 300, away=away)


OUTSIDE, PAIRS = "people outside, who are in none of its states", "pairs of states"


@pytest.mark.parametrize(
    ("states", "kinds"),
    [("6,7", f"{OUTSIDE} or {PAIRS}"), ("0,6", OUTSIDE)],
)
def test_contexts_beyond_states_are_followed_and_what_they_are_taken_for_is_said(states, kinds):
    """Who is outside near state 0 is not in it."""
    caps = (Cap(f"state:{states} between 1 and 3", 0.6),)
    engine = ReleaseSettings("utility:1km", 6, caps=caps).engine(of_outside(), 5)
    lines = walked(engine, [(0, 0), (1, 1), (6, 2), (6, 4)])
    assert verify(lines)["checked"] == len(drawn(lines)) > 0
    assert any("which has states of more than one kind" in one for one in verify(lines)["not"])
    assert any(f"beyond its states is {kinds};" in one for one in verify(lines)["not"])
    others = json.loads(canonical(lines).replace(f"state:{states}", "state:8"))
    assert "the event is another than its text" in (refusal(others) or "")
    for step in drawn(lines):
        step["epsilon"] = "30"
    assert "is not shown to be kept" in (refusal(lines) or "")


# ---- long gaps -------------------------------------------------------------------------------------------------------


def chain_of_few(seed: int) -> tuple[Any, list[list[Fraction]]]:
    """The verifier's model of a chain of five states, some of which never get to others; and its exact matrix."""
    rng = np.random.default_rng(seed)
    moves = rng.dirichlet(np.full(5, 0.3), 5) * np.tri(5, k=rng.integers(5)) + np.diag(rng.uniform(1e-9, 1, 5))
    model = MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(5, 0.2))
    made = verifier().Model(chances_of(model), model_of(model))
    return made, [[Fraction(one) for one in row] for row in model.transition.toarray().tolist()]


def times(rows: Any, others: Any) -> list[list[Any]]:
    return [[sum(a * b for a, b in zip(row, one, strict=True)) for one in zip(*others, strict=True)] for row in rows]


def bounded_all(made: Any, exact: list[list[Fraction]], gap: int) -> Fraction | None:
    """How far bounds on masses and on what is to come are apart at most; None where a true value is not between."""
    row, power = [[1 << 310, 3, 0, 1 << 200, 5 << 300]], [[Fraction(i == j) for j in range(5)] for i in range(5)]
    for bit in bin(gap)[2:]:
        power = times(power, power)
        power = times(power, exact) if bit == "1" else power
    apart = Fraction(0)
    for to, (wanted,) in ((gap, times(row, power)), (-gap, times(row, list(zip(*power, strict=True))))):
        (low,), (high,) = (made.moved(row, 0, to, up) for up in (False, True))
        if not all(a <= b <= c and (b == 0) == (c == 0) for a, b, c in zip(low, wanted, high, strict=True)):
            return None
        apart = max(apart, *(Fraction(c - a, 1 << 310) for a, c in zip(low, high, strict=True)))
    return apart


@pytest.mark.parametrize("seed", range(fewer(20, 3)))
def test_powers_bound_long_gaps_on_both_sides(seed):
    """Against exact powers of the matrix; what no path leads to stays 0."""
    made, exact = chain_of_few(seed)
    assert bounded_all(made, exact, 700) < Fraction(1, 1 << 280)
    assert len(made.powers) > 5


def test_powers_bound_gaps_where_rounding_is_coarse(monkeypatch):
    """And without what rounding left out they would not."""
    base = verifier()
    monkeypatch.setattr(base, "WIDE", 64)
    monkeypatch.setattr(base, "WIDTH", 17)
    assert all(bounded_all(*chain_of_few(seed), 700) is not None for seed in range(5))
    keep = base.Model._keep
    monkeypatch.setattr(base.Model, "_keep", lambda self, rows, shift, off: keep(self, rows, shift, 0))
    assert not all(bounded_all(*chain_of_few(seed), 700) is not None for seed in range(5))


def test_what_delta_leaves_out_is_not_checked_and_that_is_said():
    """With delta the verifier says that it cannot."""
    engine = ReleaseSettings("utility:1km", 1, delta=0.01, caps=(Cap("state:6 between 1 and 3", 0.4),)).engine(
        settled(town()), 5
    )
    assert "with delta" in (refusal(walked(engine, [(0, 0), (1, 1)])) or "")


def test_a_cap_on_what_was_over_before_the_first_release_is_said_to_be_none():
    caps = (Cap("state:6 between 1970-01-01 and 1970-01-02", 0.5), Cap("state:7 between 1 and 3", 0.6))
    engine = ReleaseSettings("utility:1km", 1, caps=caps).engine(settled(town()), 7)
    engine.capping.passes_over_the_past = True  # as a batch has it, for people who come later than others
    lines = walked(engine, [(0, 100000), (1, 100001)])
    (events,) = [line["events"] for line in lines if "events" in line]
    assert events["caps"][0] == {"event": None, "at": 0}
    assert events["caps"][1]["at"] == 100001
    assert refusal(lines) is None


def test_a_new_beginning_is_said():
    engine = ReleaseSettings("utility:1km", 4, caps=(Cap("state:6 between 1 and 3", 0.6),)).engine(settled(town()), 5)

    def draw(writer: CertificateWriter) -> None:
        for begin in (0, 100):
            if begin:
                writer.begin("ann", {"main": engine})
            engine.restart(first=begin)
            for number, state in enumerate((0, 1, 6)):
                record = engine.release(state)
                writer.add(engine.last[1], record.released, begin + number)

    report = verify(certificate(engine, draw))
    assert (report["drawn"] + report["withheld"], any("before a new beginning" in one for one in report["not"])) == (
        6,
        True,
    )


# ---- lies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "reason", "told"), LIES, ids=lambda one: getattr(one, "__name__", ""))
def test_every_lie_is_refused_with_its_reason(worlds, world, reason, told):
    lines = copy.deepcopy(worlds[world])
    told(lines)
    assert canonical(lines) != canonical(worlds[world]), "it is no lie"
    found = refusal(lines)
    assert found is not None, "it is believed"
    assert re.match(rf"line \d+: .*({reason})", found, re.S), found


@pytest.mark.parametrize("name", list(WORLDS))
def test_no_mutation_of_what_is_new_is_believed(worlds, name):
    """Other cells may show the same; whatever else changes in the new fields is refused by one of both verifiers."""
    rng, tried = random.Random(name), 0
    for _ in range(fewer(300, 25)):
        some = json.loads(canonical(worlds[name]))
        what = mutated(some, rng)
        tried += what is not None
        if what is None or what[0] in ("caps", "prior"):  # of priors it is said that they are compared with nothing
            continue
        assert refusal(some) is not None or whole.refusal(some) is not None, what
    assert tried > fewer(200, 10)


def test_changed_cells_are_believed_only_where_they_still_show_it(worlds):
    """Another bound of a cell is believed where it is no less than what the verifier finds, and only there."""
    lines, rng = worlds["at_rest"], random.Random(1)
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    lowered = 0
    for _ in range(fewer(200, 30)):
        some = json.loads(canonical(lines))
        cells = rng.choice(rng.choice(drawn(some))["caps"])
        at = rng.choice([n for n, sign in enumerate(cells[0]) if sign in digits])
        now = digits.index(cells[0][at])
        to = rng.randrange(36)
        cells[0] = cells[0][:at] + digits[to] + cells[0][at + 1 :]
        if to >= now:
            assert refusal(some) is None
        elif now > 1 and to < now - 1:
            lowered += 1
            assert "may take it to more than" in (refusal(some) or "")
    assert lowered > fewer(10, 1)


# ---- the script and the vectors ------------------------------------------------------------------------------------


def test_the_script_says_what_it_checks_and_what_not(tmp_path, worlds):
    def run(lines: list[Any], *more: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "proof.jsonl").write_text("".join(canonical(line) + "\n" for line in lines))
        command = [sys.executable, "-I", "-S", str(VERIFIER), "proof.jsonl", *more]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = run(worlds["capped_town"], "--seconds", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no output of the noise" in done.stdout
    assert "NOT VERIFIED" in done.stdout
    done = run(worlds["capped_town"][:-1])
    assert (done.returncode, "line" in done.stdout, "the end is missing" in done.stdout) == (1, True, True)
    (tmp_path / "proof.jsonl").unlink()
    assert subprocess.run([sys.executable, VERIFIER, "none.jsonl"], cwd=tmp_path, capture_output=True).returncode == 2
    assert len(VERIFIER.read_text().splitlines()) <= 500
    assert not re.search(r"\b(dphmm\.|import dphmm|numpy|float\(\w*eps)", VERIFIER.read_text())


def test_every_vector_is_judged_as_it_says():
    given = json.loads(FILE.read_text())
    assert {told.__name__ for _, _, told in LIES} | set(WORLDS) == {one["name"] for one in given["vectors"]}
    for vector in given["vectors"]:
        lines = list(given["bases"][vector["base"]]["lines"])
        for first, count, put in vector["replaced"]:
            lines[first : first + count] = put
        assert number_of(refusal(lines)) == vector["refused"], vector["name"]


def test_bounds_on_the_exponential_hold_on_both_sides():
    """Against mpmath, within a relative 2**-57 of it and of 2**-310."""
    mpmath = pytest.importorskip("mpmath")
    rng, base = random.Random(3), verifier()
    with mpmath.workdps(140):
        for _ in range(200):
            x = rng.randrange(rng.choice([1 << 20, 1 << 62, 1 << 68]))
            exact = mpmath.exp(-mpmath.mpf(x) / mpmath.mpf(2) ** base.ROUND)
            low, high = (mpmath.mpf(base.power(x, up)) / mpmath.mpf(base.ONE) for up in (False, True))
            assert low <= exact <= high
            assert high - low <= exact * mpmath.mpf(2) ** -250 + mpmath.mpf(2) ** -310


@pytest.mark.parametrize("upper", [[(1, 0), (0, 1)], [(3, 0), (4, 1), (-1, 1)], [(2, 4)], [(7, 1), (3, 5), (-4, 3)]])
def test_the_sum_over_the_lattice_is_right(upper):
    """Against the sum over all points near the origin."""
    base = verifier()
    body, epsilon = base.Body(upper), Fraction(9, 4)
    low, high = (body.total(epsilon, up) / base.ONE for up in (False, True))
    near = [(x, y) for x in range(-150, 151) for y in range(-120, 121) if body.spans((x, y))]
    summed = sum(np.exp(-2.25 * float(body.norm(one))) for one in near)
    assert low == pytest.approx(summed, rel=1e-12)
    assert high >= low
