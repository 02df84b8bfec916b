"""
Budgets for a leakage level
===========================

Left: budgets of ten releases with temporal leakage 1 at every timestep (Algorithm 8 of the paper). Right: the
constant budget that never exceeds it (Algorithm 7). The first and the last release have neighbors on one side only
and therefore a larger budget.
"""

import matplotlib.pyplot as plt

from dphmm import leakage
from dphmm.plots import draw_leakage_budgets

backward, forward = [[0.8, 0.2], [0.2, 0.8]], [[0.8, 0.2], [0.1, 0.9]]
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
draw_leakage_budgets(axes[0], backward, forward, leakage.exact_budgets(backward, forward, 1.0, 10), 1.0)
constant = leakage.constant_budget(backward, forward, 1.0)
draw_leakage_budgets(axes[1], backward, forward, [constant] * 10, 1.0)
axes[0].set_title("leakage exactly 1 at every timestep", fontsize=10)
axes[1].set_title("constant budget", fontsize=10)
plt.show()
