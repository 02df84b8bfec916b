"""The MAP estimate by CVXOPT and by Newton iteration: two solvers of one convex problem."""

from __future__ import annotations

import subprocess
import sys

import cvxopt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm import counts
from dphmm.counts.map_estimate import solve_real_map, solve_real_map_by_cvxopt
from dphmm.errors import ConfigurationError, ConvergenceError, CountError
from tests.counts.oracles import compute_objective

# Relative difference of the objectives, as stated by `solve_real_map_by_cvxopt`.
TOLERANCE = 1e-6


def compute_excess(noisy, log_p, users, scale):
    """Return the relative excess of CVXOPT's objective over Newton's, and both counts."""
    noisy = np.asarray(noisy, dtype=float)[None]
    log_p = np.asarray(log_p)[None]
    scales = np.array([scale])
    newton_counts, cvxopt_counts = (
        solve_real_map(noisy, log_p, users, scales)[0],
        solve_real_map_by_cvxopt(noisy, log_p, users, scales),
    )
    # Counts lie between 0 and n. Far noisy counts would add a large constant, and with it loosen the tolerance.
    clipped = np.clip(noisy, 0.0, users)
    newton_objective, cvxopt_objective = (
        compute_objective(newton_counts, clipped, log_p, scales)[0],
        compute_objective(cvxopt_counts, clipped, log_p, scales)[0],
    )
    return (cvxopt_objective - newton_objective) / (1.0 + abs(newton_objective)), newton_counts[0], cvxopt_counts[0]


@st.composite
def draw_problem(draw):
    size = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p = rng.dirichlet(np.full(size, draw(st.sampled_from([0.2, 1.0, 10.0]))))
    if size > 1:
        p[: draw(st.integers(0, size - 1))] = 0.0
    p /= p.sum()
    users = draw(st.sampled_from([1, 2, 10, 200, 10_000]))
    # Scales up to 1e7 are those of budgets divided by hundreds of times.
    scale = draw(st.sampled_from([1e-3, 0.05, 0.5, 2.0, 100.0, 1e4, 1e7]))
    noisy = rng.multinomial(users, p) + rng.laplace(0.0, scale, size) - draw(st.sampled_from([0.0, 1e4]))
    with np.errstate(divide="ignore"):
        return noisy, np.log(p), users, scale


@pytest.mark.slow
@given(draw_problem())
def test_solvers_reach_same_objective(problem):
    difference, _, cvxopt_counts = compute_excess(*problem)
    assert abs(difference) < TOLERANCE
    assert cvxopt_counts.sum() == pytest.approx(problem[2], rel=1e-12)
    assert (cvxopt_counts >= 0).all()
    assert (cvxopt_counts[np.isinf(problem[1])] == 0).all()


def test_tolerance_detects_other_objective():
    """Counts optimal for the paper's literal formula have a much larger objective."""
    noisy = np.array([4.0, -1.0, 2.0])
    p = np.array([0.5, 0.2, 0.3])
    users = 6
    scale = 2.0
    _, ours, _ = compute_excess(noisy, np.log(p), users, scale)
    wrong = np.array([6.0, 0.0, 0.0])  # 2 pi r under the logarithm is zero in two places
    cost, newton_objective = (
        compute_objective(row[None], noisy[None], np.log(p)[None], np.array([scale]))[0] for row in (wrong, ours)
    )
    assert (cost - newton_objective) / (1.0 + abs(newton_objective)) > 1000 * TOLERANCE


def test_estimate_accepts_solver_name():
    matrix = [[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]
    noisy = [[70.2, 60.1, 71.5], [-3.0, 150.0, 80.0], [20.0, 90.0, 70.0]]
    newton_counts, cvxopt_counts = (
        counts.estimate("single", noisy, matrix, 200, 50.0, "uniform", solver=solver) for solver in ("newton", "cvxopt")
    )
    np.testing.assert_allclose(cvxopt_counts, newton_counts, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("single", {"solver": "gurobi"}),
        ("single", {"solver": "cvxopt", "integer": True}),
        ("coupled", {"solver": "cvxopt"}),
        ("maximum-likelihood", {"solver": "cvxopt"}),
    ],
)
def test_unsupported_solver_raises(name, arguments):
    with pytest.raises(ConfigurationError, match="solver "):
        counts.estimate(name, [[3.0, 3.0]], np.eye(2), 6, 2.0, **arguments)


def test_time_without_possible_place_raises():
    with pytest.raises(CountError, match=r"time 1 .*possible"):
        solve_real_map_by_cvxopt(np.ones((2, 2)), np.array([[0.0, -1.0], [-np.inf, -np.inf]]), 2, np.ones(2))


def _stop(*_, **__):
    return {"status": "unknown", "x": None, "gap": 1e-3, "primal infeasibility": 0.0, "dual infeasibility": 0.0}


def _fail(*_, **__):
    raise ArithmeticError("singular KKT matrix")


@pytest.mark.parametrize(("solver", "message"), [(_stop, "accuracy of 1.0e-03"), (_fail, "singular KKT matrix")])
def test_failed_convergence_raises(monkeypatch, solver, message):
    monkeypatch.setattr(cvxopt.solvers, "cp", solver)
    with pytest.raises(ConvergenceError, match=message):
        solve_real_map_by_cvxopt(np.array([[1.0, 2.0]]), np.log([[0.5, 0.5]]), 3, np.ones(1))


def test_solver_prints_nothing_and_keeps_options(monkeypatch, capfd):
    monkeypatch.setattr(cvxopt.solvers, "options", {"show_progress": True, "maxiters": 1})
    compute_excess([4.0, -1.0, 2.0], np.log([0.5, 0.2, 0.3]), 6, 2.0)
    assert cvxopt.solvers.options == {"show_progress": True, "maxiters": 1}
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_import_of_counts_does_not_import_cvxopt():
    code = "import sys, dphmm.counts; sys.exit('cvxopt' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
