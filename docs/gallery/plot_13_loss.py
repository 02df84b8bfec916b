"""
The temporal loss function
==========================

The leakage that remains of α after one step. The function is the upper envelope of one curve per pair of rows. A new
piece begins where another pair attains the maximum.
"""

import matplotlib.pyplot as plt

from dphmm.plots import draw_loss_function

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
draw_loss_function(axes[0], [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]], limit=8)
draw_loss_function(
    axes[1], [[0.8, 0.2, 0, 0], [0.1, 0.6, 0.3, 0], [0.05, 0.05, 0.5, 0.4], [0.1, 0.1, 0.1, 0.7]], limit=8
)
axes[0].set_title("three states", fontsize=10)
axes[1].set_title("four states, some transitions impossible", fontsize=10)
plt.show()
