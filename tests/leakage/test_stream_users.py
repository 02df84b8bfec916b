"""Many users: the maximum at each time, and who."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import InvalidInputError, StochasticError
from dphmm.leakage import account, account_users
from tests.leakage.oracles import ABSORBING

EARLY, LATE = [[0.95, 0.05], [0.05, 0.95]], [[0.6, 0.4], [0.4, 0.6]]
USERS = {"ann": (EARLY, None), "bob": (None, EARLY), "eve": (LATE, LATE)}


def test_maximum_at_each_time_and_who():
    budgets = [0.2] * 9
    population = account_users(USERS, budgets)
    table = {name: account(*pair, budgets).temporal for name, pair in USERS.items()}
    for t in range(9):
        assert population.temporal[t] == max(values[t] for values in table.values())
        assert table[population.who[t]][t] == population.temporal[t]
    assert population.who[0] == "bob"
    assert population.who[-1] == "ann"
    assert population.worst == population.temporal.max()


def test_sum_of_the_maxima_is_more_than_anyone_leaks():
    population = account_users(USERS, [0.2] * 9)
    back = np.max([leakage.backward for leakage in population.by_user.values()], axis=0)
    ahead = np.max([leakage.forward for leakage in population.by_user.values()], axis=0)
    assert (back + ahead - 0.2 > population.temporal + 0.1).any(), "Equation 11 is a bound, not the leakage"


def test_errors_name_the_user():
    with pytest.raises(StochasticError, match="user bob: forward matrix: row 1"):
        account_users({"ann": (ABSORBING, None), "bob": (None, [[1, 0], [0.5, 0.4]])}, [0.1, 0.1])
    with pytest.raises(InvalidInputError, match="no users"):
        account_users({}, [0.1])
