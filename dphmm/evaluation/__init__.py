"""Whole data sets through policies, mechanisms and budgets: the experiment of the paper (Section 8)."""

from dphmm.evaluation.config import EvaluationConfig, load_config, parse_config
from dphmm.evaluation.run import Evaluated, Evaluation, evaluate, finished_evaluation

__all__ = [
    "Evaluated",
    "Evaluation",
    "EvaluationConfig",
    "evaluate",
    "finished_evaluation",
    "load_config",
    "parse_config",
]
