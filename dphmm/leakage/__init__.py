"""Temporal privacy leakage: what releases at other times say about a state, and budgets that bound it.

The stage takes transition matrices and budgets, nothing else of the package: `loss` and `LossFunction` (one step),
`backward`, `forward`, `temporal`, `account` and `Stream` (a stream of releases), `account_users` (many users),
`supremum`, `constant_budget`, `exact_budgets` and `shared_budget` (bounds). `dphmm.model.reverse`
makes backward matrices by Bayes' rule.

Source: Y. Cao, M. Yoshikawa, Y. Xiao, L. Xiong, "Quantifying Differential Privacy in Continuous Data Release under
Temporal Correlations", IEEE TKDE 31(7), 2019 ("the TPL paper").
"""

from __future__ import annotations

from dphmm.leakage.budget import SharedBudget, constant_budget, exact_budgets, shared_budget
from dphmm.leakage.loss_function import LossFunction, Supremum, loss, smooth, supremum
from dphmm.leakage.stream import Leakage, PopulationLeakage, Stream, account, account_users, backward, forward, temporal

__all__ = [
    "Leakage",
    "LossFunction",
    "PopulationLeakage",
    "SharedBudget",
    "Stream",
    "Supremum",
    "account",
    "account_users",
    "backward",
    "constant_budget",
    "exact_budgets",
    "forward",
    "loss",
    "shared_budget",
    "smooth",
    "supremum",
    "temporal",
]
