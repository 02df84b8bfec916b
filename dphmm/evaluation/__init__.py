"""Evaluation of policies, mechanisms and budgets on data sets, and figures of the papers."""

from dphmm.evaluation.config import EvaluationConfig, load_config, parse_config
from dphmm.evaluation.figures import FigureOptions, PaperFigure, figure_builders
from dphmm.evaluation.noise_comparison import NoiseRow, compare_noise, compare_noise_on_data
from dphmm.evaluation.run import Evaluation, EvaluationResult, evaluate, load_evaluation

__all__ = [
    "Evaluation",
    "EvaluationConfig",
    "EvaluationResult",
    "FigureOptions",
    "NoiseRow",
    "PaperFigure",
    "compare_noise",
    "compare_noise_on_data",
    "evaluate",
    "figure_builders",
    "load_config",
    "load_evaluation",
    "parse_config",
]
