"""Temporal privacy leakage of a stream of releases, and budgets that bound it.

Inputs are transition matrices and budgets. `loss` and `LossFunction` treat one step. `backward_leakage`,
`forward_leakage`, `temporal_leakage`, `compute_leakage` and `Stream` treat a stream of releases, and
`compute_population_leakage` many users. `supremum`, `constant_budget`, `exact_budgets` and `shared_budget` give bounds.
`dphmm.model.reverse` computes backward matrices by Bayes' rule.

Source: Y. Cao, M. Yoshikawa, Y. Xiao, L. Xiong, "Quantifying Differential Privacy in Continuous Data Release under
Temporal Correlations", IEEE TKDE 31(7), 2019 ("the TPL paper").
"""

from __future__ import annotations

from dphmm.leakage.budget import SharedBudget, constant_budget, exact_budgets, shared_budget
from dphmm.leakage.loss_function import LossFunction, Supremum, loss, smooth, supremum
from dphmm.leakage.stream_leakage import (
    Leakage,
    PopulationLeakage,
    Stream,
    backward_leakage,
    compute_leakage,
    compute_population_leakage,
    forward_leakage,
    temporal_leakage,
)

__all__ = [
    "Leakage",
    "LossFunction",
    "PopulationLeakage",
    "SharedBudget",
    "Stream",
    "Supremum",
    "backward_leakage",
    "compute_leakage",
    "compute_population_leakage",
    "constant_budget",
    "exact_budgets",
    "forward_leakage",
    "loss",
    "shared_budget",
    "smooth",
    "supremum",
    "temporal_leakage",
]
