"""Populations: the maximum leakage at each time, and its user."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import InvalidInputError, StochasticError
from dphmm.leakage import compute_leakage, compute_population_leakage
from tests.leakage.oracles import ABSORBING

EARLY = [[0.95, 0.05], [0.05, 0.95]]
LATE = [[0.6, 0.4], [0.4, 0.6]]
USERS = {"ann": (EARLY, None), "bob": (None, EARLY), "eve": (LATE, LATE)}


def test_population_maximum_and_user_at_each_time():
    budgets = [0.2] * 9
    population = compute_population_leakage(USERS, budgets)
    table = {name: compute_leakage(*pair, budgets).temporal for name, pair in USERS.items()}
    for t in range(9):
        assert population.temporal[t] == max(values[t] for values in table.values())
        assert table[population.most_exposed_users[t]][t] == population.temporal[t]
    assert population.most_exposed_users[0] == "bob"
    assert population.most_exposed_users[-1] == "ann"
    assert population.worst == population.temporal.max()


def test_sum_of_maxima_exceeds_population_leakage():
    population = compute_population_leakage(USERS, [0.2] * 9)
    back = np.max([leakage.backward for leakage in population.by_user.values()], axis=0)
    ahead = np.max([leakage.forward for leakage in population.by_user.values()], axis=0)
    assert (back + ahead - 0.2 > population.temporal + 0.1).any(), "Equation 11 is a bound, not the leakage"


def test_errors_contain_user():
    with pytest.raises(StochasticError, match=r"user bob: forward matrix must have rows that sum to 1, .* in row 1"):
        compute_population_leakage({"ann": (ABSORBING, None), "bob": (None, [[1, 0], [0.5, 0.4]])}, [0.1, 0.1])
    with pytest.raises(InvalidInputError, match="users must be a non-empty mapping"):
        compute_population_leakage({}, [0.1])
