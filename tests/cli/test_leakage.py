"""Tests of ``dphmm leak`` and ``dphmm budget`` from the command line."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm.cli.leakage import budget_command, leak_command
from dphmm.errors import (
    BudgetError,
    ConfigurationError,
    CorrelationTooStrongError,
    DataFileError,
    DphmmError,
    InvalidInputError,
    OutputError,
    StochasticError,
)
from dphmm.leakage import backward_leakage, compute_leakage, constant_budget, exact_budgets, supremum, temporal_leakage
from dphmm.model import reverse_by_step
from tests import command_line

ABSORBING = [[0.8, 0.2], [0.0, 1.0]]
FUTURE = [[0.8, 0.2], [0.1, 0.9]]
PAST = [[0.8, 0.2], [0.2, 0.8]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, matrix in (("absorbing", ABSORBING), ("future", FUTURE), ("past", PAST), ("identity", np.eye(2))):
        np.savetxt(tmp_path / f"{name}.csv", matrix, delimiter=",")
    sp.save_npz(tmp_path / "three.npz", sp.csr_array(np.full((3, 3), 1 / 3)))
    (tmp_path / "half.csv").write_text("0.5,0.5\n")
    (tmp_path / "budgets.csv").write_text("0.3\n0.2\n0.1\n")
    (tmp_path / "bad.csv").write_text("0.5,0.5\n0.5,0.4\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command, *arguments):
    return command_line.run(*arguments, command=command)


def test_table_contains_published_leakage(folder):
    done = run(
        leak_command, "--backward", "absorbing.csv", "--forward", "absorbing.csv", "--epsilon", 0.1, "--steps", 10
    )
    assert done.exit_code == 0, done.exception
    rows = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    values = [float(row[-1]) for row in rows]
    np.testing.assert_allclose(values, temporal_leakage(ABSORBING, ABSORBING, [0.1] * 10), rtol=1e-5)
    assert re.search(r"\(user level\) +1\n", done.stdout)
    assert re.search(rf"limit of backward leakage at ε = 0\.1 +{supremum(ABSORBING, 0.1):.6g} \(rows", done.stdout)


def test_bounds_are_rounded_up(folder):
    """No bound is below the computed one. Sums of budgets keep their exact value."""
    words = ("--backward", "past.csv", "--forward", "future.csv", "--epsilon", 0.1, "--steps", 12)
    record = json.loads(run(leak_command, *words, "--window", 3, "--json").stdout)
    text = run(leak_command, *words, "--window", 3).stdout
    table = np.array([line.split()[1:] for line in text.splitlines() if line[:1].isdigit()], dtype=float)
    (user,) = record["users"].values()
    computed = [user[name] for name in ("epsilons", "backward", "forward", "temporal")]
    lines = re.findall(r"(?:max TPL|\(user level\)|3 times together|of \w+ leakage at ε = 0\.1) +(\S+)", text)
    single = [record["worst"], user["user_level"], record["window"]["largest"]]
    single += [user["bounds"][side]["supremum"] for side in ("backward", "forward")]
    assert table.shape == (12, 4)
    assert len(lines) == 5
    shown, exact = np.append(table.T, [float(line) for line in lines]), np.append(computed, single)
    assert (shown >= exact * (1 - 1e-12)).all()
    np.testing.assert_allclose(shown, exact, rtol=1e-5)
    sums = run(leak_command, "--backward", "identity.csv", *STREAM).stdout  # 0.1 + 0.1 + 0.1 > 0.3 in floating point
    assert re.search(r"max TPL +0\.3\n", sums)


def test_long_table_is_cut_and_its_rest_counted(folder):
    done = run(leak_command, "--backward", "absorbing.csv", "--epsilon", 0.1, "--steps", 120)
    rows = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert len(rows) == 50
    assert "… and 70 more; --json contains all of them." in done.stdout


def test_json_contains_all_numbers_in_full_precision(folder):
    done = run(leak_command, "--backward", "absorbing.csv", "--epsilons", "budgets.csv", "--json")
    record = json.loads(done.stdout)
    user = record["users"]["everyone"]
    assert user["backward"] == backward_leakage(ABSORBING, [0.3, 0.2, 0.1]).tolist()
    assert user["forward"] == user["epsilons"] == [0.3, 0.2, 0.1]
    assert user["bounds"] == {"backward": {"epsilon": 0.3, "supremum": None, "rows": [0, 1]}} or user["bounds"][
        "backward"
    ]["rows"] == [1, 0]
    assert record["worst"] == max(record["temporal"])


def test_initial_distribution_determines_backward_matrices(folder):
    done = run(
        leak_command, "--forward", "future.csv", "--initial", "half.csv", "--epsilon", 0.4, "--steps", 6, "--json"
    )
    expected = temporal_leakage(reverse_by_step(FUTURE, [0.5, 0.5], 6), FUTURE, [0.4] * 6)
    np.testing.assert_allclose(json.loads(done.stdout)["temporal"], expected, rtol=1e-14)


def test_multiple_users_are_compared(folder):
    users = ("--user-matrices", "ann", "past.csv", "-", "--user-matrices", "bob", "identity.csv", "future.csv")
    record = json.loads(run(leak_command, *users, "--epsilon", 0.1, "--steps", 4, "--json").stdout)
    assert set(record["users"]) == {"ann", "bob"}
    assert record["most_exposed_users"][-1] == "bob"
    table = run(leak_command, *users, "--epsilon", 0.1, "--steps", 4).stdout
    assert re.search(r"bob: limit of backward leakage at ε = \S+ +unbounded", table)


def test_budgets_match_package(folder):
    both = ("--backward", "past.csv", "--forward", "future.csv", "--alpha", 1)
    assert "ε = 0.203872 at every time" in run(budget_command, *both).stdout
    assert json.loads(run(budget_command, *both, "--json").stdout)["budgets"] == [constant_budget(PAST, FUTURE, 1.0)]
    record = json.loads(run(budget_command, *both, "--steps", 5, "--json").stdout)
    assert record["budgets"] == exact_budgets(PAST, FUTURE, 1.0, 5).tolist()
    table = run(budget_command, *both, "--steps", 5).stdout
    assert "0.704065" in table  # rounded down
    users = ("--user-matrices", "ann", "past.csv", "-", "--user-matrices", "bob", "future.csv", "future.csv")
    assert "User with the smallest budgets: bob" in run(budget_command, *users, "--alpha", 1).stdout


def test_printed_budgets_are_rounded_down(folder):
    for alpha in (0.1, 0.3, 0.7, 1, 1.1, 2):
        words = ("--backward", "past.csv", "--forward", "future.csv", "--alpha", alpha)
        printed = float(re.search(r"ε = (\S+) at every", run(budget_command, *words).stdout)[1])
        (budget,) = json.loads(run(budget_command, *words, "--json").stdout)["budgets"]
        assert budget * (1 - 1e-5) < printed <= budget
        rows = re.findall(r"^ *(\d) +(\d\S*)$", run(budget_command, *words, "--steps", 5).stdout, re.MULTILINE)
        budgets = json.loads(run(budget_command, *words, "--steps", 5, "--json").stdout)["budgets"]
        assert len(rows) == 5
        for (_, shown), value in zip(rows, budgets, strict=True):
            assert value * (1 - 1e-5) < float(shown) <= value * (1 + 1e-12)


def test_window_is_largest_of_all_users_by_theorem_3(folder):
    users = (
        "--user-matrices",
        "ann",
        "past.csv",
        "-",
        "--user-matrices",
        "bob",
        "past.csv",
        "future.csv",
        "--epsilons",
        "budgets.csv",
    )
    matrices = {"ann": (PAST, None), "bob": (PAST, FUTURE)}
    expected = {name: compute_leakage(*pair, [0.3, 0.2, 0.1]) for name, pair in matrices.items()}
    window = json.loads(run(leak_command, *users, "--window", 2, "--json").stdout)["window"]
    windows = {
        (name, start): leakage_of_user.window(start, start + 2)
        for name, leakage_of_user in expected.items()
        for start in (0, 1)
    }
    user, start = max(windows, key=windows.get)
    assert window == {"times": 2, "largest": windows[user, start], "first": start + 1, "last": start + 2, "user": user}
    assert "max over 2 times together" in run(leak_command, *users, "--window", 2).stdout
    certificate = folder / "certificate.json"
    for window, is_written in ((4, False), (2, True)):
        done = run(leak_command, *users, "--window", window, "--certificate", certificate)
        assert isinstance(done.exception, InvalidInputError) != is_written
        assert certificate.exists() == is_written


def test_omitted_knowledge_is_stated(folder):
    words = ("--backward", "past.csv", "--epsilon", 0.1, "--steps", 2)
    lines = run(leak_command, *words).stdout.splitlines()
    assert lines[-5].startswith("Not covered: The times of releases: a gap")
    assert max(map(len, lines)) <= 80
    assert any(
        "times of releases" in what for what in json.loads(run(leak_command, *words, "--json").stdout)["not_covered"]
    )


def test_budget_without_forgetting_is_alpha_divided_by_steps(folder):
    words = ("--backward", "identity.csv", "--alpha", 1, "--steps", 4)
    output = json.loads(run(budget_command, *words, "--json").stdout)
    assert sum(output["budgets"]) <= 1
    np.testing.assert_allclose(output["budgets"], 0.25, rtol=1e-11)
    text = run(budget_command, *words).stdout
    assert "1 / 4 at each time" in text
    assert "have disjoint supports" in text


@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (leak_command, ("--backward", "absorbing.csv", "--epsilon", 0.1, "--steps", 5)),
        (budget_command, ("--backward", "past.csv", "--alpha", 1)),
        (budget_command, ("--backward", "past.csv", "--alpha", 1, "--steps", 6)),
    ],
    ids=["leak", "budget", "budget per timestep"],
)
def test_picture_is_written_and_never_overwritten(folder, command, arguments):
    pytest.importorskip("matplotlib")
    assert run(command, *arguments, "--picture", "picture.png").exit_code == 0
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    again = run(command, *arguments, "--picture", "picture.png")
    assert isinstance(again.exception, OutputError)
    assert str(again.exception) == "picture.png exists; name another file", "these commands have no --overwrite"
    assert again.stdout == ""


BOTH = ("--backward", "past.csv", "--forward", "future.csv")
STREAM = ("--epsilon", 0.1, "--steps", 3)


@pytest.mark.parametrize(
    ("command", "arguments", "error", "message"),
    [
        (leak_command, STREAM, ConfigurationError, "adversary must know"),
        (leak_command, BOTH, ConfigurationError, "no budgets"),
        (leak_command, (*BOTH, *STREAM, "--users", "ann"), ConfigurationError, "--users needs --releases"),
        (
            leak_command,
            (*BOTH, *STREAM, "--delta", 0.1),
            ConfigurationError,
            "--delta needs --releases: remove --delta",
        ),
        (leak_command, (*BOTH, *STREAM, "--event", "at:1 at 3"), ConfigurationError, "--event needs --releases"),
        (
            leak_command,
            ("--model", "none.npz", "--releases", "none.csv", "--event", "at:1 at 3"),
            ConfigurationError,
            "--max-event-probability is missing",
        ),
        (leak_command, (*BOTH, "--epsilon", 0.1), ConfigurationError, "no budgets"),
        (
            leak_command,
            (*BOTH, *STREAM, "--epsilons", "budgets.csv"),
            ConfigurationError,
            "--epsilons cannot be combined with --epsilon or",
        ),
        (
            leak_command,
            (*BOTH, *STREAM, "--user-matrices", "a", "past.csv", "-"),
            ConfigurationError,
            "--user-matrices cannot be combined",
        ),
        (
            leak_command,
            ("--user-matrices", "a", "-", "-", *STREAM),
            ConfigurationError,
            "the adversary of user 'a' must know",
        ),
        (leak_command, ("--user-matrices", "a", "past.csv", "-") * 2 + STREAM, ConfigurationError, "twice"),
        (leak_command, (*BOTH, *STREAM, "--initial", "half.csv"), ConfigurationError, "--initial"),
        (
            leak_command,
            ("--backward", "bad.csv", *STREAM),
            StochasticError,
            r"rows that sum to 1, got 0\.9 in row 1",
        ),
        (leak_command, ("--backward", "half.csv", *STREAM), StochasticError, "square"),
        (leak_command, ("--backward", "none.csv", *STREAM), DataFileError, "none.csv: there is no such file"),
        (leak_command, ("--backward", "past.csv", "--forward", "three.npz", *STREAM), StochasticError, "3 states"),
        (leak_command, (*BOTH, "--epsilon", -0.1, "--steps", 3), BudgetError, r"--epsilon must be .* got -0\.1"),
        (leak_command, (*BOTH, *STREAM, "--picture", "no/folder.png"), OutputError, "does not exist; create it"),
        (budget_command, (*BOTH, "--alpha", 0), BudgetError, "alpha must be a positive, finite number"),
        (budget_command, (*BOTH, "--alpha", "nan"), BudgetError, "alpha must be a positive, finite number"),
        (budget_command, (*BOTH, "--alpha", 1, "--steps", 0), DphmmError, "steps must be a positive integer"),
        (budget_command, ("--backward", "identity.csv", "--alpha", 1), CorrelationTooStrongError, "rows 0 and 1"),
    ],
)
def test_invalid_input_raises_in_one_line_and_writes_nothing(folder, command, arguments, error, message):
    before = sorted(folder.iterdir())
    plot = () if "--picture" in arguments else ("--picture", "picture.png")
    done = run(command, *arguments, *plot)
    assert isinstance(done.exception, error)
    assert re.search(message, str(done.exception))
    assert "\n" not in str(done.exception)
    assert done.stdout == ""
    assert sorted(folder.iterdir()) == before


def test_infinite_bound_is_null_in_json(folder):
    done = run(leak_command, "--backward", "identity.csv", *STREAM, "--json")
    assert "Infinity" not in done.stdout
    assert (
        json.loads(done.stdout, parse_constant=lambda name: math.nan)["users"]["everyone"]["bounds"]["backward"][
            "supremum"
        ]
        is None
    )
