"""Certificates of leakage, landmarks and repaired counts: acceptance and rejection."""

from __future__ import annotations

import copy
import json
import random
import re
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from dphmm import leakage
from dphmm.certificate.canonical_forms import Lines
from dphmm.certificate.streams import StreamCertificate, open_stream_certificate
from dphmm.counts.map_estimate import solve_integer_map
from dphmm.errors import ConfigurationError, InvalidInputError, OutputError
from dphmm.jobs import (
    Budgets,
    Counts,
    Mobility,
    Scheme,
    compute_stream_leakage,
    count_users,
    release_landmark_series,
    repair_counts,
)
from dphmm.leakage import LossFunction
from dphmm.tables import TimedTable
from tests.certificate.certificates import VERIFIER, encode, format_canonical, load_verifier
from tests.certificate.streams import (
    STAY,
    TAMPERINGS,
    THREE,
    build_certificate,
    build_leakage_lines,
    build_worlds,
    certify_repairs,
    find_refusal,
    release_landmarks,
    verify,
)
from tests.certificate.test_lies import mutate
from tests.certificate.test_published_files import judge
from tests.sizes import choose_count


@pytest.fixture(scope="module")
def worlds_by_name(tmp_path_factory):
    return build_worlds(tmp_path_factory.mktemp("worlds"))


def test_worlds_are_accepted(worlds_by_name):
    for lines, rows in worlds_by_name.values():
        assert find_refusal(lines, rows) is None


@pytest.mark.parametrize("seed", range(6))
def test_leakage_of_random_matrices_is_accepted(seed):
    """Sparse and dense, similar and distant rows, at budgets from 1e-6 to above 10."""
    rng = np.random.default_rng(seed)
    for scale in (1e-6, 0.3, 40.0):
        n = int(rng.integers(2, 12))
        past, future = (rng.dirichlet(np.full(n, rng.choice([0.05, 1, 30])), n) for _ in range(2))
        for matrix in (past, future):
            matrix[matrix < 1e-150] = 0
        report = verify(
            build_leakage_lines({"ann": (past, future), "bob": (past, None)}, rng.random(9) * scale + scale / 9)
        )
        assert report["steps"] == 18


def test_time_dependent_matrices_are_accepted(tmp_path):
    moves = Mobility(np.array(THREE), np.array([1, 0, 0.0]))
    done = compute_stream_leakage({"ann": moves, "bob": (STAY, None)}, [0.1] * 6, tmp_path / "proof.jsonl")
    report = load_verifier().verify_stream(iter((tmp_path / "proof.jsonl").read_bytes().splitlines(keepends=True)))
    assert (report["steps"], report["names"]) == (12, {"ann", "bob"})
    assert float(report["worst"]) == pytest.approx(done.leakage.worst, rel=1e-8)
    with pytest.raises(OutputError):
        compute_stream_leakage(moves, [0.1], tmp_path / "proof.jsonl")


def test_too_small_loss_is_rejected(monkeypatch):
    """A published port drops states with d = 0 and understates the loss."""
    good = build_leakage_lines({"ann": (STAY, STAY)}, [0.1] * 4)
    assert find_refusal(good) is None
    monkeypatch.setattr(leakage.stream_leakage, "loss", lambda matrix, alpha: 0.5 * matrix(alpha))
    assert ", but may be larger" in (find_refusal(build_leakage_lines({"ann": (STAY, STAY)}, [0.1] * 4)) or "")


@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_repaired_counts_are_accepted(integer, seed, tmp_path):
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
        report = load_verifier().verify_stream(iter(path.read_bytes().splitlines(keepends=True)))
        assert report["steps"] == 6
        assert report["worst"] < 1e-6


def test_suboptimal_counts_are_rejected(monkeypatch, tmp_path):
    """A broken estimator moves one user to a place of nearly equal likelihood."""

    def solve_wrongly(*arguments):
        best = solve_integer_map(*arguments)
        best[1, best[1].argmax()] -= 1
        best[1, 0] += 1
        return best

    monkeypatch.setattr("dphmm.counts.post_processing.solve_integer_map", solve_wrongly)
    lines, _ = certify_repairs(True, tmp_path)
    next(line for line in lines if line.get("time") == 1)["gap"] = "1e-6"
    assert "the gap is" in (find_refusal(lines) or "")


@pytest.mark.parametrize("scheme", ["skip", "uniform", "adaptive"])
def test_landmark_schemes_are_accepted(scheme):
    done, lines = release_landmarks(scheme)
    assert float(verify(lines)["worst"]) == pytest.approx(float(done.series.budget.spent))
    _, lines = release_landmarks(scheme, backward=THREE, forward=THREE)
    assert verify(lines)["names"] == set()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "number"])
def test_written_tables_are_accepted_and_what_the_certificate_lacks_is_listed(unit, tmp_path):
    times = np.array([0.5, 3e16, 1e22])
    if unit != "number":
        times = np.datetime64("2024-03-07T09:00:00", unit) + np.arange(3) * np.timedelta64(1500, "ms")
        times = times.astype(f"datetime64[{unit}]")
    table = TimedTable(times, {"=beats": np.array([71, 75, 92]), "steps": np.array([0, 3, -8])})
    done = release_landmark_series(table, 20, 1.5, times[1:2], Scheme("skip"), rng=1)
    done.table.write(tmp_path / "rows.csv")
    done.certify(tmp_path / "marks.jsonl")
    code, text = judge(tmp_path / "marks.jsonl", tmp_path / "rows.csv")
    assert code == 0, text
    listed = "columns that a certificate does not contain (=beats, is_exact, steps, time), and the format of cells"
    assert listed in text.split("NOT VERIFIED")[1]
    noisy = count_users(Counts.from_values(times, np.full((3, 2), 5)), Budgets(epsilon=1), rng=2).noisy
    noisy.table.write(tmp_path / "noisy.csv")
    for integer in (True, False):
        proof = tmp_path / f"{integer}.jsonl"
        moves = Mobility(np.array(STAY))
        repaired = repair_counts(noisy, 10, moves, estimator="single", integer=integer, certificate=proof)
        repaired.table.write(tmp_path / "rows.csv", overwrite=True)
        code, text = judge(proof, tmp_path / "rows.csv", "--noisy", tmp_path / "noisy.csv")
        assert code == 0, text
        assert "columns that a certificate does not contain (is_exact, time)" in text.split("NOT VERIFIED")[1]
        assert "slopes" not in text.split("NOT VERIFIED")[1]
        rows = [row.split(",") for row in (tmp_path / "noisy.csv").read_text().splitlines()]
        index = rows[0].index("epsilon")
        anonymous = "".join(",".join(row[:index] + row[index + 1 :]) + "\n" for row in rows)
        (tmp_path / "anonymous.csv").write_text(anonymous)
        for more in ((), ("--noisy", tmp_path / "anonymous.csv")):
            code, text = judge(proof, tmp_path / "rows.csv", *more)
            assert (code, "slopes are half the epsilon" in text.split("NOT VERIFIED")[1]) == (0, True), text


def test_uncertifiable_input_raises(tmp_path, monkeypatch):
    noisy = Counts.from_values(np.arange(2), np.ones((2, 2)), epsilon=np.ones(2))
    with pytest.raises(ConfigurationError, match="'single'"):
        repair_counts(noisy, 2, Mobility(np.eye(2)), certificate=tmp_path / "c.jsonl")
    with pytest.raises(
        InvalidInputError,
        match=r"separate backward matrices must have at most 1,000 steps, got 1,999: use --backward and --forward",
    ):
        compute_stream_leakage(Mobility(np.array(THREE)), np.full(2000, 0.1), tmp_path / "c.jsonl")
    monkeypatch.setattr("dphmm.certificate.streams.MAX_WORK", 50)
    invalid_leakage = leakage.Leakage(np.array([0.1, 0.1]), np.array([0.1, 0.2]), np.array([0.1, 0.1]))
    with pytest.raises(InvalidInputError, match="would take too long"):
        build_certificate("leakage", lambda writer: writer.certify_leakage("ann", invalid_leakage, THREE, None))
    assert not (tmp_path / "c.jsonl").exists()
    with open_stream_certificate(tmp_path / "c.jsonl", "leakage") as writer:
        assert isinstance(writer, StreamCertificate)
    assert find_refusal([json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()])


# ---- tampering and mutations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "reason", "tamper"), TAMPERINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_tampered_certificates_are_rejected_with_reason(worlds_by_name, world, reason, tamper):
    lines, rows = copy.deepcopy(worlds_by_name[world])
    tamper(lines, rows)
    refusal_reason = find_refusal(lines, rows)
    assert refusal_reason is not None, "it was accepted"
    assert re.search(reason, refusal_reason), refusal_reason
    assert re.match(r"line \d+: ", refusal_reason)


# Keys that may change: names, proofs of claims (another proof may be valid, too), and omitted claims.
HARMLESS = {"user", "slopes", "witnesses", "witness", "price", "gap", "epsilon", "losses", "supremum", "prior"}


@pytest.mark.parametrize("seed", range(8))
def test_mutations_never_change_claims(worlds_by_name, seed):
    """Claims of leakage, budgets, matrices and counts. 1,200 mutations in the slow tests."""
    rng = random.Random(seed)
    for _ in range(choose_count(150, 15)):
        lines, rows = worlds_by_name[rng.choice(list(worlds_by_name))]
        mutated_lines = json.loads(format_canonical({"lines": lines}))["lines"]
        what = mutate(mutated_lines, rng)
        if (
            format_canonical({"lines": mutated_lines}) != format_canonical({"lines": lines})
            and find_refusal(mutated_lines, rows) is None
        ):
            keys = set(re.findall(r"'([a-z]+)'", what.split(" of line")[0]))
            without = any("supremum" not in side for side in list_sides(mutated_lines))
            assert keys & HARMLESS or (keys & {"backward", "forward"} and without), what


def list_sides(lines):
    """List both sides of each user's leakage."""
    return [line[name] for line in lines if "user" in line for name in ("backward", "forward") if line[name]]


# ---- bounds and the script -------------------------------------------------------------------------------------------


def test_bounds_of_powers_enclose_mpmath():
    import mpmath

    with mpmath.workdps(140):
        for x in (Fraction(0), Fraction(1, 10**9), Fraction(7, 3), Fraction(-7, 3), Fraction(690), Fraction(12345, 7)):
            low, high = (load_verifier().exponential(x, up) for up in (False, True))
            truth = mpmath.exp(mpmath.mpf(x.numerator) / x.denominator)
            low_mp, high_mp = (mpmath.mpf(bound.numerator) / bound.denominator for bound in (low, high))
            assert low_mp <= truth * (1 + mpmath.mpf(10) ** -130)
            assert truth <= high_mp * (1 + mpmath.mpf(10) ** -130)
            assert high / low - 1 < Fraction(1, 10**90)
        for x in (Fraction(0), Fraction(1, 3), Fraction(10**6)):
            (low, far), (high, _) = (load_verifier().digamma(x, up) for up in (False, True))
            truth = mpmath.digamma(mpmath.mpf(x.numerator) / x.denominator + 1)
            log = mpmath.log(mpmath.mpf(far.numerator) / far.denominator)
            assert mpmath.mpf(low.numerator) / low.denominator + log <= truth
            assert truth <= mpmath.mpf(high.numerator) / high.denominator + log
            assert high - low < Fraction(1, 10**15)


@pytest.mark.slow
def test_script_lists_what_it_verified_and_what_not(tmp_path):
    np.savetxt(tmp_path / "m.csv", STAY, delimiter=",")
    compute_stream_leakage((STAY, STAY), [0.1] * 5, tmp_path / "good.jsonl")
    (tmp_path / "bad.jsonl").write_text("".join((tmp_path / "good.jsonl").read_text().splitlines(keepends=True)[:-1]))
    np.savetxt(tmp_path / "other.csv", THREE, delimiter=",")

    def run(*arguments):
        command = [sys.executable, "-I", str(VERIFIER), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, text = run("good.jsonl", "--matrix", "m.csv")
    assert (code, "those of the file, to 12 digits" in text.split("NOT VERIFIED")[0]) == (0, True)
    assert run("bad.jsonl")[0] == run("good.jsonl", "--matrix", "other.csv")[0] == 1
    assert run("none.jsonl")[0] == run()[0] == 2
    for option in ("--model", "--noisy"):
        assert run("good.jsonl", option, "m.csv") == (2, f"{option} does not apply to a certificate of leakage\n")
    assert run("good.jsonl", "--fast") == (2, "--fast does not apply to a certificate of leakage\n")
    assert "leakage does not depend on its rows" in run("good.jsonl", "m.csv")[1].split("NOT VERIFIED")[1]


def test_prebuilt_loss_function_raises():
    function = LossFunction(STAY)
    writer = StreamCertificate(Lines(lambda _: None, of="leakage"))
    with pytest.raises(InvalidInputError):
        writer.certify_leakage("ann", leakage.compute_leakage(function, None, [0.1, 0.2]), function, None)


def test_bound_is_not_below_the_leakage():
    """A figure claims its value up to a unit, which the reported bound includes."""
    is_rounded_down = set()
    for epsilon in (0.13, 0.17, 0.29, 0.31, 0.37, 0.43):
        lines = build_leakage_lines({"ann": (THREE, THREE)}, [epsilon, 0.25])
        truth = leakage.compute_leakage(THREE, THREE, [epsilon, 0.25]).temporal.max()
        (line,) = (line for line in lines if "temporal" in line)
        figures = [Fraction(text) for text in line["temporal"]]
        is_rounded_down.add(max(figures) < truth)
        assert truth < verify(lines)["worst"] == max(figures) + Fraction(1, 10**10)
    assert is_rounded_down == {True, False}
    for number, digits, text in (
        (Fraction(1, 3), 3, "0.334"),
        (Fraction(808), 10, "808"),
        (Fraction(-1, 3), 2, "-0.33"),
    ):
        assert load_verifier().at_most(number, digits) == text


def test_decimal_with_a_billion_digits_is_rejected_before_it_is_computed(monkeypatch):
    monkeypatch.setattr(load_verifier(), "Fraction", lambda text: pytest.fail(f"{text} is computed"))
    for text in ("1e999999999", "1e-999999999", "0.5e-999999999", "٠.٥"):
        with pytest.raises(load_verifier().RefusedError, match="epsilon is invalid"):
            load_verifier().decimal(text, "epsilon")


def test_matrix_that_is_not_used_is_rejected(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(load_verifier(), "limit", lambda _: None)
    np.savetxt(tmp_path / "m.csv", STAY, delimiter=",")
    (tmp_path / "zero.csv").write_text("0,0\n0,1\n")
    (tmp_path / "huge.csv").write_text("1e999999999,0\n0,1\n")
    for name, pair in (("none", (None, None)), ("one", (None, STAY)), ("both", (STAY, STAY))):
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(encode(build_leakage_lines({"ann": pair}, [0.5, 0.25]))))

    def judge(name, *matrix):
        code = load_verifier().main(
            [str(tmp_path / f"{name}.jsonl"), *(f"{tmp_path / word}" if "." in word else word for word in matrix)]
        )
        return code, capsys.readouterr().out

    assert judge("both", "--matrix", "huge.csv") == (2, "")
    code, text = judge("none", "--matrix", "m.csv")
    assert (code, "it uses no matrix" in text) == (1, True)
    for name, sides in (("none", ["backward", "forward"]), ("one", ["backward"]), ("both", [])):
        code, text = judge(name, *(["--matrix", "m.csv"] if name != "none" else []))
        assert code == 0
        stated = re.findall("that there is no ([a-z]+) correlation, as stated for 1 of 1 user", text.split("NOT")[1])
        assert stated == sides
    assert judge("both", "--matrix", "zero.csv")[0] == 1
