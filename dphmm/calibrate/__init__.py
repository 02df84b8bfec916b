"""Which epsilon: from metres, odds or a day's spending to a budget, never on the unsafe side.

- `epsilon_for_error`, `epsilon_for_odds`, `epsilon_for_spending`: by formula, rounded down.
- `epsilon_for_event`: by looking at all outputs of a release, for events over time.
- `simulate`: what releases tell of people who move as a model says, with intervals; `largest_epsilon` searches by it.
"""

from __future__ import annotations

from dphmm.calibrate.budgets import (
    Found,
    epsilon_for_error,
    epsilon_for_event,
    epsilon_for_odds,
    epsilon_for_spending,
    largest_epsilon,
)
from dphmm.calibrate.simulation import Figure, Simulation, simulate

__all__ = [
    "Figure",
    "Found",
    "Simulation",
    "epsilon_for_error",
    "epsilon_for_event",
    "epsilon_for_odds",
    "epsilon_for_spending",
    "largest_epsilon",
    "simulate",
]
