"""
Temporal privacy leakage
========================

Ten releases of ε = 0.1 each. The leakage of a single release is 0.1. An adversary who knows the mobility model adds
the leakage of earlier and later releases about the same timestep.
"""

import matplotlib.pyplot as plt

from dphmm import leakage
from dphmm.plots import draw_leakage

figure, axes = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
for ax, (name, matrix) in zip(
    axes,
    {
        "no correlation": [[0.5, 0.5], [0.5, 0.5]],
        "correlation": [[0.8, 0.2], [0.1, 0.9]],
        "users never move": [[1, 0], [0, 1]],
    }.items(),
    strict=True,
):
    draw_leakage(ax, leakage.compute_leakage(matrix, matrix, [0.1] * 10))
    ax.set_ylim(0, 1.1)
    ax.set_title(name, fontsize=10)
plt.show()
