"""``dphmm leak`` and ``dphmm budget`` as a person runs them."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

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
from dphmm.leakage import account, backward, constant_budget, exact_budgets, supremum, temporal
from dphmm.model import reverses

ABSORBING, FUTURE, PAST = [[0.8, 0.2], [0.0, 1.0]], [[0.8, 0.2], [0.1, 0.9]], [[0.8, 0.2], [0.2, 0.8]]


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
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=True)


def test_table_has_the_published_leakage(folder):
    done = run(
        leak_command, "--backward", "absorbing.csv", "--forward", "absorbing.csv", "--epsilon", 0.1, "--steps", 10
    )
    assert done.exit_code == 0, done.exception
    rows = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    values = [float(row[-1]) for row in rows]
    np.testing.assert_allclose(values, temporal(ABSORBING, ABSORBING, [0.1] * 10), rtol=1e-5)
    assert "user level) 1" in done.stdout
    assert f"stays below {supremum(ABSORBING, 0.1):.6g}" in done.stdout


def test_json_has_every_number_in_full(folder):
    done = run(leak_command, "--backward", "absorbing.csv", "--epsilons", "budgets.csv", "--json")
    record = json.loads(done.stdout)
    user = record["users"]["everyone"]
    assert user["backward"] == backward(ABSORBING, [0.3, 0.2, 0.1]).tolist()
    assert user["forward"] == user["epsilons"] == [0.3, 0.2, 0.1]
    assert user["bounds"] == {"backward": {"epsilon": 0.3, "supremum": None, "rows": [0, 1]}} or user["bounds"][
        "backward"
    ]["rows"] == [1, 0]
    assert record["worst"] == max(record["temporal"])


def test_initial_distribution_makes_the_backward_matrices(folder):
    done = run(
        leak_command, "--forward", "future.csv", "--initial", "half.csv", "--epsilon", 0.4, "--steps", 6, "--json"
    )
    expected = temporal(reverses(FUTURE, [0.5, 0.5], 6), FUTURE, [0.4] * 6)
    np.testing.assert_allclose(json.loads(done.stdout)["temporal"], expected, rtol=1e-14)


def test_several_users_are_compared(folder):
    users = ("--user", "ann", "past.csv", "-", "--user", "bob", "identity.csv", "future.csv")
    record = json.loads(run(leak_command, *users, "--epsilon", 0.1, "--steps", 4, "--json").stdout)
    assert set(record["users"]) == {"ann", "bob"}
    assert record["who"][-1] == "bob"
    table = run(leak_command, *users, "--epsilon", 0.1, "--steps", 4).stdout
    assert "bob: backward leakage grows without bound" in table


def test_budgets_are_those_of_the_package(folder):
    both = ("--backward", "past.csv", "--forward", "future.csv", "--alpha", 1)
    assert "spend 0.203872 at every time" in run(budget_command, *both).stdout
    assert json.loads(run(budget_command, *both, "--json").stdout)["budgets"] == [constant_budget(PAST, FUTURE, 1.0)]
    record = json.loads(run(budget_command, *both, "--steps", 5, "--json").stdout)
    assert record["budgets"] == exact_budgets(PAST, FUTURE, 1.0, 5).tolist()
    table = run(budget_command, *both, "--steps", 5).stdout
    assert "0.704066" in table
    users = ("--user", "ann", "past.csv", "-", "--user", "bob", "future.csv", "future.csv")
    assert "tightest user is bob" in run(budget_command, *users, "--alpha", 1).stdout


def test_a_window_is_the_largest_of_any_user_by_theorem_3(folder):
    users = ("--user", "ann", "past.csv", "-", "--user", "bob", "past.csv", "future.csv", "--epsilons", "budgets.csv")
    known = {"ann": (PAST, None), "bob": (PAST, FUTURE)}
    expected = {name: account(*pair, [0.3, 0.2, 0.1]) for name, pair in known.items()}
    found = json.loads(run(leak_command, *users, "--window", 2, "--json").stdout)["window"]
    windows = {(name, start): one.window(start, start + 2) for name, one in expected.items() for start in (0, 1)}
    who, start = max(windows, key=windows.get)
    assert found == {"times": 2, "largest": windows[who, start], "first": start + 1, "last": start + 2, "user": who}
    assert "largest over 2 times together" in run(leak_command, *users, "--window", 2).stdout
    assert isinstance(run(leak_command, *users, "--window", 4).exception, InvalidInputError)


def test_what_no_figure_counts_is_said(folder):
    words = ("--backward", "past.csv", "--epsilon", 0.1, "--steps", 2)
    assert "not counted: which times have a release at all" in run(leak_command, *words).stdout
    assert any("which times" in what for what in json.loads(run(leak_command, *words, "--json").stdout)["left_out"])


def test_a_budget_for_so_many_steps_is_alpha_over_them_where_nothing_is_forgotten(folder):
    words = ("--backward", "identity.csv", "--alpha", 1, "--steps", 4)
    found = json.loads(run(budget_command, *words, "--json").stdout)
    assert sum(found["budgets"]) <= 1
    np.testing.assert_allclose(found["budgets"], 0.25, rtol=1e-11)
    told = run(budget_command, *words).stdout
    assert "1 / 4 at each time" in told
    assert "have disjoint supports" in told


@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (leak_command, ("--backward", "absorbing.csv", "--epsilon", 0.1, "--steps", 5)),
        (budget_command, ("--backward", "past.csv", "--alpha", 1)),
        (budget_command, ("--backward", "past.csv", "--alpha", 1, "--steps", 6)),
    ],
)
def test_picture_is_written_once_and_never_over_another(folder, command, arguments):
    pytest.importorskip("matplotlib")
    assert run(command, *arguments, "--plot", "picture.png").exit_code == 0
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    again = run(command, *arguments, "--plot", "picture.png")
    assert isinstance(again.exception, OutputError)
    assert again.stdout == ""


BOTH = ("--backward", "past.csv", "--forward", "future.csv")
STREAM = ("--epsilon", 0.1, "--steps", 3)


@pytest.mark.parametrize(
    ("command", "arguments", "error", "message"),
    [
        (leak_command, STREAM, ConfigurationError, "no matrix"),
        (leak_command, BOTH, ConfigurationError, "no budgets"),
        (leak_command, (*BOTH, "--epsilon", 0.1), ConfigurationError, "no budgets"),
        (leak_command, (*BOTH, *STREAM, "--epsilons", "budgets.csv"), ConfigurationError, "both given"),
        (leak_command, (*BOTH, *STREAM, "--user", "a", "past.csv", "-"), ConfigurationError, "both given"),
        (leak_command, ("--user", "a", "-", "-", *STREAM), ConfigurationError, "no matrix is given for a"),
        (leak_command, ("--user", "a", "past.csv", "-") * 2 + STREAM, ConfigurationError, "twice"),
        (leak_command, (*BOTH, *STREAM, "--initial", "half.csv"), ConfigurationError, "--initial"),
        (leak_command, ("--backward", "bad.csv", *STREAM), StochasticError, r"backward matrix: row 1 sums to 0\.9"),
        (leak_command, ("--backward", "half.csv", *STREAM), StochasticError, "square"),
        (leak_command, ("--backward", "none.csv", *STREAM), DataFileError, "none.csv: there is no such file"),
        (leak_command, ("--backward", "past.csv", "--forward", "three.npz", *STREAM), StochasticError, "3 states"),
        (leak_command, (*BOTH, "--epsilon", -0.1, "--steps", 3), BudgetError, r"epsilon 0 is -0\.1"),
        (leak_command, (*BOTH, *STREAM, "--plot", "no/folder.png"), OutputError, "there is no folder"),
        (budget_command, (*BOTH, "--alpha", 0), BudgetError, "alpha is 0"),
        (budget_command, (*BOTH, "--alpha", "nan"), BudgetError, "alpha is nan"),
        (budget_command, (*BOTH, "--alpha", 1, "--steps", 0), DphmmError, "steps is 0"),
        (budget_command, ("--backward", "identity.csv", "--alpha", 1), CorrelationTooStrongError, "rows 0 and 1"),
    ],
)
def test_bad_input_ends_in_one_line_and_writes_nothing(folder, command, arguments, error, message):
    before = sorted(folder.iterdir())
    plot = () if "--plot" in arguments else ("--plot", "picture.png")
    done = run(command, *arguments, *plot)
    assert isinstance(done.exception, error)
    assert re.search(message, str(done.exception))
    assert "\n" not in str(done.exception)
    assert done.stdout == ""
    assert sorted(folder.iterdir()) == before


def test_budget_that_is_infinite_in_the_bound_is_no_json_number(folder):
    done = run(leak_command, "--backward", "identity.csv", *STREAM, "--json")
    assert "Infinity" not in done.stdout
    assert (
        json.loads(done.stdout, parse_constant=lambda name: math.nan)["users"]["everyone"]["bounds"]["backward"][
            "supremum"
        ]
        is None
    )
