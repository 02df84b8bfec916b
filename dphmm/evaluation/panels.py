"""Panels of metrics over time, by epsilon and by radius (DPHMM paper, Figures 10 to 13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dphmm.evaluation.config import EvaluationConfig
from dphmm.evaluation.figures.base import Panel, Series
from dphmm.evaluation.report import compute_mean_over_time, compute_overall_mean, select_sweep, smooth_curve
from dphmm.evaluation.run import StepTable

# Metric → the label of its axis, and the factor from the unit of the table to the unit of the axis.
METRICS = {
    "runtime_s": ("processor time of a step (ms)", 1e3),
    "protection": ("degree of protection", 1.0),
    "rms_error_km": ("error (km, Equation 3)", 1.0),
    "num_possible_states": ("possible states", 1.0),
    "estimate_error_km": ("error of the posterior mean (km)", 1.0),
    "adversary_error_km": ("adversary's expected error (km)", 1.0),
}

# Width of the running mean over time, but for runtimes. The paper smooths Figure 11 and does not state how.
SMOOTHING_STEPS = 5

# A function from a table, its configuration and a metric to the curves of a panel.
Curves = Callable[[StepTable, EvaluationConfig, str], list[Series]]


def label_policy(policy: str) -> str:
    """Return a policy's name in legends.

    The complete graph on a δ-location set is the paper's DPLS.
    """
    return "DPLS (complete, δ-location set)" if policy == "complete" else policy


def make_panels(
    table: StepTable, config: EvaluationConfig, metrics: Sequence[str], curves: Curves, x_label: str, title: str = ""
) -> list[Panel]:
    """Return a panel for each metric.

    Parameters
    ----------
    table : StepTable
        One row for each step.
    config : EvaluationConfig
        Configuration of the evaluation.
    metrics : sequence of str
        Keys of `METRICS`.
    curves : callable
        `build_curves_over_time`, `build_curves_by_epsilon` or `build_curves_by_radius`.
    x_label : str
        Name of the horizontal axis.
    title : str, optional
        Title of each panel.

    Returns
    -------
    list of Panel
        With logarithmic vertical axes: policies differ by factors.
    """
    return [
        Panel(title, x_label, METRICS[metric][0], curves(table, config, metric), y_scale="log") for metric in metrics
    ]


def build_curves_over_time(table: StepTable, config: EvaluationConfig, metric: str) -> list[Series]:
    """Return each policy's mean over sequences at each timestep with its 95 % interval."""
    factor = METRICS[metric][1]
    width = 1 if metric == "runtime_s" else SMOOTHING_STEPS
    curves = []
    for policy in config.policies:
        mean, low, high = (
            factor * smooth_curve(part, width)
            for part in compute_mean_over_time(table, config.get_default_setting(policy), metric)
        )
        curves.append(Series(label_policy(policy), np.arange(1.0, len(mean) + 1), mean, low, high))
    return curves


def build_curves_by_epsilon(table: StepTable, config: EvaluationConfig, metric: str) -> list[Series]:
    """Return, for each policy, the mean at each epsilon with its 95 % interval."""
    return [_build_sweep_curve(table, config, policy, "epsilon", metric) for policy in config.policies]


def build_curves_by_radius(table: StepTable, config: EvaluationConfig, metric: str) -> list[Series]:
    """Return the utility policy's mean at each radius. Other policies are dashed level lines."""
    utility = _build_sweep_curve(table, config, "utility", "radius_km", metric)
    curves = []
    for policy in config.policies:
        if policy == "utility":
            curves.append(utility)
        else:
            level = METRICS[metric][1] * np.array(
                compute_overall_mean(table, config.get_default_setting(policy), metric)
            )
            mean, low, high = (np.full(len(utility.x), value) for value in level)
            curves.append(Series(label_policy(policy), utility.x, mean, low, high, dashed=True))
    return curves


def _build_sweep_curve(table: StepTable, config: EvaluationConfig, policy: str, parameter: str, metric: str) -> Series:
    sweep = select_sweep(config, policy, parameter)
    means = METRICS[metric][1] * np.array([compute_overall_mean(table, setting, metric) for setting in sweep])
    return Series(label_policy(policy), np.array([float(getattr(setting, parameter)) for setting in sweep]), *means.T)
