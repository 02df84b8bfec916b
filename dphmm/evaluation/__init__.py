"""Whole data sets through policies, mechanisms and budgets: the experiment of the paper (Section 8)."""

from dphmm.evaluation.config import EvaluationConfig, load_config, parse_config
from dphmm.evaluation.figures import FigureOptions, PaperFigure, figure_builders
from dphmm.evaluation.noise_comparison import NoiseRow, compare_noise, compared_noise
from dphmm.evaluation.run import Evaluated, Evaluation, evaluate, finished_evaluation

__all__ = [
    "Evaluated",
    "Evaluation",
    "EvaluationConfig",
    "FigureOptions",
    "NoiseRow",
    "PaperFigure",
    "compare_noise",
    "compared_noise",
    "evaluate",
    "figure_builders",
    "finished_evaluation",
    "load_config",
    "parse_config",
]
