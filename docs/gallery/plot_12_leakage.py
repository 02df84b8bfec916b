"""
Temporal privacy leakage
========================

Ten releases of ε = 0.1 each. By themselves each says 0.1; an adversary who knows how people move adds what the releases
before and after say of the same time.
"""

import matplotlib.pyplot as plt

from dphmm import leakage
from dphmm.plots import leakage_over_time

figure, axes = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
for ax, (name, matrix) in zip(
    axes,
    {
        "moves forget": [[0.5, 0.5], [0.5, 0.5]],
        "moves remember": [[0.8, 0.2], [0.1, 0.9]],
        "nobody moves": [[1, 0], [0, 1]],
    }.items(),
    strict=True,
):
    leakage_over_time(ax, leakage.account(matrix, matrix, [0.1] * 10))
    ax.set_ylim(0, 1.1)
    ax.set_title(name, fontsize=10)
plt.show()
