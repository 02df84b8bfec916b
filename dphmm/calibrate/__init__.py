"""Calibration of epsilon from an error, odds or a total budget, always rounded down.

- `epsilon_for_error`, `epsilon_for_odds`, `epsilon_per_release`: closed formulas.
- `epsilon_for_event`: search over all outputs of a release, for events over time.
- `simulate`: metrics of simulated users with confidence intervals. `largest_epsilon` searches by them.
"""

from __future__ import annotations

from dphmm.calibrate.epsilon_search import (
    SearchResult,
    epsilon_for_error,
    epsilon_for_event,
    epsilon_for_odds,
    epsilon_per_release,
    largest_epsilon,
)
from dphmm.calibrate.simulation import MeanEstimate, Simulation, simulate

__all__ = [
    "MeanEstimate",
    "SearchResult",
    "Simulation",
    "epsilon_for_error",
    "epsilon_for_event",
    "epsilon_for_odds",
    "epsilon_per_release",
    "largest_epsilon",
    "simulate",
]
