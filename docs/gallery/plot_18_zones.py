"""
Private here, precise there
===========================

Two zones in a town whose other places are open: a large one, and a small one. With one hull for the whole policy the
large zone's noise blurs the small one too; with noise for each component it does not. On the edges of the policy both
promise the same. Which zone somebody is in may be learned from a release either way, as this policy allows.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import PolicyGraph, protect

points = 0.25 * np.array([[x, y] for y in range(14) for x in range(14)])
large = (points < 1.6).all(axis=1)
small = (points > 2.6).all(axis=1)
policy = PolicyGraph.categorical(np.select([large, small], [0, 1], -1)).with_open(~large & ~small)

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, calibration in zip(axes, ("graph", "component"), strict=True):
    found = protect(policy, points, calibration=calibration)
    if calibration == "component":
        squared = np.array([part.body.squared_error for part in found.parts])[found.part_of]
    else:
        squared = np.where(large | small, found.body.squared_error, 0.0)
    shown = ax.imshow(1000 * np.sqrt(squared).reshape(14, 14), origin="lower", cmap="magma_r", vmin=0, vmax=4500)
    for place, name in (((3, 3), "large"), ((12, 12), "small")):
        metres = 1000 * np.sqrt(squared.reshape(14, 14)[place])
        ax.text(
            *place, f"{name}\n{metres:.0f} m", ha="center", va="center", fontsize=8, color="w" if metres > 2000 else "k"
        )
    ax.set_title(f'calibration="{calibration}"', fontsize=10)
    ax.set(xticks=[], yticks=[])
figure.colorbar(shown, ax=axes, label="RMS error of a release at ε = 1, metres")
plt.show()
