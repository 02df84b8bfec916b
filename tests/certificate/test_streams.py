"""Certificates of leakage, landmarks and repaired counts: what is found is verified, and lies in it are not."""

from __future__ import annotations

import copy
import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from dphmm import leakage
from dphmm.certificate.canonical_forms import Lines
from dphmm.certificate.streams import StreamCertificate, stream_certificate
from dphmm.counts.map_estimate import integer_map
from dphmm.errors import ConfigurationError, InvalidInputError, OutputError
from dphmm.jobs import Counts, Mobility, leak, repair_counts
from dphmm.leakage import LossFunction
from tests.certificate.certificates import VERIFIER, canonical, verifier
from tests.certificate.streams import (
    LIES,
    STAY,
    THREE,
    certificate,
    leakage_lines,
    moments,
    refusal,
    repairs,
    verify,
    worlds,
)
from tests.certificate.test_lies import mutated
from tests.sizes import fewer


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    return worlds(tmp_path_factory.mktemp("worlds"))


def test_the_worlds_are_verified(every):
    for lines, rows in every.values():
        assert refusal(lines, rows) is None


@pytest.mark.parametrize("seed", range(6))
def test_leakage_of_random_matrices_is_verified(seed):
    """Sparse and dense, alike and far apart, at budgets from a millionth to hundreds."""
    rng = np.random.default_rng(seed)
    for scale in (1e-6, 0.3, 40.0):
        n = int(rng.integers(2, 12))
        past, future = (rng.dirichlet(np.full(n, rng.choice([0.05, 1, 30])), n) for _ in range(2))
        for matrix in (past, future):
            matrix[matrix < 1e-150] = 0
        found = verify(leakage_lines({"ann": (past, future), "bob": (past, None)}, rng.random(9) * scale + scale / 9))
        assert found["steps"] == 18


def test_matrices_that_change_are_verified(tmp_path):
    moves = Mobility(np.array(THREE), np.array([1, 0, 0.0]))
    done = leak({"ann": moves, "bob": (STAY, None)}, [0.1] * 6, tmp_path / "proof.jsonl")
    found = verifier().verify_stream(iter((tmp_path / "proof.jsonl").read_bytes().splitlines(keepends=True)))
    assert (found["steps"], found["names"]) == (12, {"ann", "bob"})
    assert float(found["worst"]) == pytest.approx(done.leakage.worst, rel=1e-8)
    with pytest.raises(OutputError):
        leak(moves, [0.1], tmp_path / "proof.jsonl")


def test_loss_without_states_of_one_row_alone_is_found(monkeypatch):
    """A published port drops states with d = 0 from the maximiser, and says 0 where the loss is all."""
    good = leakage_lines({"ann": (STAY, STAY)}, [0.1] * 4)
    assert refusal(good) is None
    monkeypatch.setattr(leakage.stream, "loss", lambda matrix, alpha: 0.5 * matrix(alpha))
    assert "may be more" in (refusal(leakage_lines({"ann": (STAY, STAY)}, [0.1] * 4)) or "")


@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_repaired_counts_are_verified(integer, seed, tmp_path):
    rng = np.random.default_rng(seed)
    for number, (users, places, epsilon) in enumerate([(7, 5, 3.0), (300, 4, 0.5), (40, 12, 60.0)]):
        moves = rng.dirichlet(np.full(places, 0.7), places)
        values = rng.normal(users / places, 2 / epsilon + 3, (6, places))
        noisy = Counts.from_values(
            np.arange(6), np.rint(values) + (0.25 if seed % 2 else 0), epsilon=np.full(6, epsilon)
        )
        path = tmp_path / f"{number}.jsonl"
        prior = ("frequency", "uniform")[seed // 2]
        repair_counts(noisy, users, Mobility(moves), estimator="single", integer=integer, prior=prior, certificate=path)
        found = verifier().verify_stream(iter(path.read_bytes().splitlines(keepends=True)))
        assert found["steps"] == 6
        assert found["worst"] < 1e-6


def test_counts_that_are_not_the_best_are_found(monkeypatch, tmp_path):
    """One person moved to the next place by a broken estimator, who is nearly as well there."""

    def broken(*arguments):
        best = integer_map(*arguments)
        best[1, best[1].argmax()] -= 1
        best[1, 0] += 1
        return best

    monkeypatch.setattr("dphmm.counts.repair.integer_map", broken)
    lines, _ = repairs(True, tmp_path)
    next(line for line in lines if line.get("time") == 1)["gap"] = "1e-6"
    assert "the gap is" in (refusal(lines) or "")


@pytest.mark.parametrize("scheme", ["skip", "uniform", "adaptive"])
def test_schemes_are_verified(scheme):
    done, lines = moments(scheme)
    assert float(verify(lines)["worst"]) == pytest.approx(float(done.series.budget.spent))
    _, lines = moments(scheme, backward=THREE, forward=THREE)
    assert verify(lines)["names"] == set()


def test_what_cannot_be_certified_is_refused(tmp_path, monkeypatch):
    noisy = Counts.from_values(np.arange(2), np.ones((2, 2)), epsilon=np.ones(2))
    with pytest.raises(ConfigurationError, match="use 'single'"):
        repair_counts(noisy, 2, Mobility(np.eye(2)), certificate=tmp_path / "c.jsonl")
    with pytest.raises(InvalidInputError, match="backward matrix of its own"):
        leak(Mobility(np.array(THREE)), np.full(2000, 0.1), tmp_path / "c.jsonl")
    monkeypatch.setattr("dphmm.certificate.streams.MOST_WORK", 50)
    found = leakage.Leakage(np.array([0.1, 0.1]), np.array([0.1, 0.2]), np.array([0.1, 0.1]))
    with pytest.raises(InvalidInputError, match="takes too long"):
        certificate("leakage", lambda writer: writer.leakage("ann", found, THREE, None))
    assert not (tmp_path / "c.jsonl").exists()
    with stream_certificate(tmp_path / "c.jsonl", "leakage") as writer:
        assert isinstance(writer, StreamCertificate)
    assert refusal([json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()])


# ---- lies and mutations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "reason", "told"), LIES, ids=lambda one: getattr(one, "__name__", ""))
def test_every_lie_is_refused_with_its_reason(every, world, reason, told):
    lines, rows = copy.deepcopy(every[world])
    told(lines, rows)
    found = refusal(lines, rows)
    assert found is not None, "it is believed"
    assert re.search(reason, found), found
    assert re.match(r"line \d+: ", found)


HARMLESS = {"user", "slopes", "witnesses", "witness", "price", "gap", "epsilon", "losses", "supremum", "prior"}
"""Where a change may be believed: names, what proves a claim, which is as true by another proof, or one left out."""


@pytest.mark.parametrize("seed", range(8))
def test_no_mutation_changes_what_is_claimed(every, seed):
    """A claim of leakage, a budget, a matrix or a count cannot be changed; 1,200 in all, at length."""
    rng = random.Random(seed)
    for _ in range(fewer(150, 15)):
        lines, rows = every[rng.choice(list(every))]
        some = json.loads(canonical({"lines": lines}))["lines"]
        what = mutated(some, rng)
        if canonical({"lines": some}) != canonical({"lines": lines}) and refusal(some, rows) is None:
            keys = set(re.findall(r"'([a-z]+)'", what.split(" of line")[0]))
            without = any("supremum" not in one for one in sides(some))
            assert keys & HARMLESS or (keys & {"backward", "forward"} and without), what


def sides(lines):
    """Both sides of each user's leakage."""
    return [line[name] for line in lines if "user" in line for name in ("backward", "forward") if line[name]]


# ---- bounds and the script -------------------------------------------------------------------------------------------


def test_bounds_of_powers_hold_the_truth():
    from fractions import Fraction

    import mpmath

    with mpmath.workdps(140):
        for x in (Fraction(0), Fraction(1, 10**9), Fraction(7, 3), Fraction(-7, 3), Fraction(690), Fraction(12345, 7)):
            low, high = (verifier().exponential(x, up) for up in (False, True))
            truth = mpmath.exp(mpmath.mpf(x.numerator) / x.denominator)
            low_mp, high_mp = (mpmath.mpf(one.numerator) / one.denominator for one in (low, high))
            assert low_mp <= truth * (1 + mpmath.mpf(10) ** -130)
            assert truth <= high_mp * (1 + mpmath.mpf(10) ** -130)
            assert high / low - 1 < Fraction(1, 10**90)
        for x in (Fraction(0), Fraction(1, 3), Fraction(10**6)):
            (low, far), (high, _) = (verifier().digamma(x, up) for up in (False, True))
            truth = mpmath.digamma(mpmath.mpf(x.numerator) / x.denominator + 1)
            log = mpmath.log(mpmath.mpf(far.numerator) / far.denominator)
            assert mpmath.mpf(low.numerator) / low.denominator + log <= truth
            assert truth <= mpmath.mpf(high.numerator) / high.denominator + log
            assert high - low < Fraction(1, 10**15)


def test_the_script_says_what_it_verified_and_what_not(tmp_path):
    np.savetxt(tmp_path / "m.csv", STAY, delimiter=",")
    leak((STAY, STAY), [0.1] * 5, tmp_path / "good.jsonl")
    (tmp_path / "bad.jsonl").write_text("".join((tmp_path / "good.jsonl").read_text().splitlines(keepends=True)[:-1]))
    np.savetxt(tmp_path / "other.csv", THREE, delimiter=",")

    def said(*arguments):
        command = [sys.executable, "-I", str(VERIFIER), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, text = said("good.jsonl", "--matrix", "m.csv")
    assert (code, "those of the file, to 12 digits" in text.split("NOT VERIFIED")[0]) == (0, True)
    assert said("bad.jsonl")[0] == said("good.jsonl", "--matrix", "other.csv")[0] == 1
    assert said("none.jsonl")[0] == said()[0] == 2
    for option in ("--model", "--noisy"):
        assert said("good.jsonl", option, "m.csv") == (2, f"{option} does not apply to a certificate of leakage\n")
    assert "leakage is not about its rows" in said("good.jsonl", "m.csv")[1].split("NOT VERIFIED")[1]


def test_loss_functions_that_were_built_before_are_refused():
    function = LossFunction(STAY)
    writer = StreamCertificate(Lines(lambda _: None, of="leakage"))
    with pytest.raises(InvalidInputError):
        writer.leakage("ann", leakage.account(function, None, [0.1, 0.2]), function, None)
