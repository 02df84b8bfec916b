"""
Budgets for landmarks
=====================

Thirty timestamps, four of which are landmarks. Uniform assigns the same budget to every timestamp. Skip releases
nothing at landmarks and assigns the whole budget to the others. The line is the joint leakage about all landmarks and
one more timestamp under correlation.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import landmarks
from dphmm.plots import draw_landmark_budget

times, marks = np.arange(30), [8, 9, 10, 22]
moves = [[0.9, 0.1], [0.2, 0.8]]
figure, axes = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
for ax, scheme in zip(axes, (landmarks.uniform_scheme, landmarks.skip_scheme), strict=True):
    budget = scheme(times, marks, epsilon=1.0)
    draw_landmark_budget(ax, budget, landmarks.leakage(times, marks, budget.epsilons, moves, moves))
    ax.set_title(scheme.__name__, fontsize=10, loc="left")
plt.show()
