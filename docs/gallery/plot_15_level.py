"""
Budgets that keep a level
=========================

Ten releases whose temporal leakage is 1 at every time (Algorithm 8 of the paper), beside the constant budget that stays
below it for ever (Algorithm 7). The first and the last release may cost more, as they have neighbours on one side only.
"""

import matplotlib.pyplot as plt

from dphmm import leakage
from dphmm.plots import budgets_over_time

backward, forward = [[0.8, 0.2], [0.2, 0.8]], [[0.8, 0.2], [0.1, 0.9]]
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
budgets_over_time(axes[0], backward, forward, leakage.exact_budgets(backward, forward, 1.0, 10), 1.0)
constant = leakage.constant_budget(backward, forward, 1.0)
budgets_over_time(axes[1], backward, forward, [constant] * 10, 1.0)
axes[0].set_title("exactly 1 at every time", fontsize=10)
axes[1].set_title("constant, for ever", fontsize=10)
plt.show()
