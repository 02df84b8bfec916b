"""
Budgets around significant moments
==================================

Thirty timestamps, of which four are landmarks. Uniform gives every timestamp one share; Skip reads nothing at landmarks
and leaves the whole budget to the others. The line is what releases tell of all landmarks and one more moment together,
under correlation.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import landmarks
from dphmm.plots import budget_and_loss

times, marks = np.arange(30), [8, 9, 10, 22]
moves = [[0.9, 0.1], [0.2, 0.8]]
figure, axes = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
for ax, scheme in zip(axes, (landmarks.uniform, landmarks.skip), strict=True):
    budget = scheme(times, marks, epsilon=1.0)
    budget_and_loss(ax, budget, landmarks.leakage(times, marks, budget.epsilons, moves, moves))
    ax.set_title(scheme.__name__, fontsize=10, loc="left")
plt.show()
