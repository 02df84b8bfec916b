"""
The loss function of a matrix
=============================

How much of a leakage of α is left after one step. It is the upper envelope of one curve for each pair of rows; where
another pair takes over, a new piece begins.
"""

import matplotlib.pyplot as plt

from dphmm.plots import loss_pieces

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
loss_pieces(axes[0], [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]], limit=8)
loss_pieces(axes[1], [[0.8, 0.2, 0, 0], [0.1, 0.6, 0.3, 0], [0.05, 0.05, 0.5, 0.4], [0.1, 0.1, 0.1, 0.7]], limit=8)
axes[0].set_title("three states", fontsize=10)
axes[1].set_title("four states, some moves impossible", fontsize=10)
plt.show()
