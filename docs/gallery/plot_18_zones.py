"""
Noise by component
==================

A large and a small zone; all other states are unprotected. With one hull for the whole policy, the noise of the large
zone also blurs the small one. With noise by component it does not. Both guarantee the same bound on the edges of the
policy. The policy has no edges between the zones, so a release may reveal the zone in either case.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import PolicyGraph, protect

points = 0.25 * np.array([[x, y] for y in range(14) for x in range(14)])
large = (points < 1.6).all(axis=1)
small = (points > 2.6).all(axis=1)
policy = PolicyGraph.categorical(np.select([large, small], [0, 1], -1)).with_open(~large & ~small)

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, noise_scope in zip(axes, ("graph", "component"), strict=True):
    protection = protect(policy, points, noise_scope=noise_scope)
    if noise_scope == "component":
        squared = np.array([part.body.squared_error for part in protection.parts])[protection.part_of]
    else:
        squared = np.where(large | small, protection.body.squared_error, 0.0)
    image = ax.imshow(1000 * np.sqrt(squared).reshape(14, 14), origin="lower", cmap="magma_r", vmin=0, vmax=4500)
    for cell, name in (((3, 3), "large"), ((12, 12), "small")):
        metres = 1000 * np.sqrt(squared.reshape(14, 14)[cell])
        ax.text(
            *cell, f"{name}\n{metres:.0f} m", ha="center", va="center", fontsize=8, color="w" if metres > 2000 else "k"
        )
    ax.set_title(f'noise_scope="{noise_scope}"', fontsize=10)
    ax.set(xticks=[], yticks=[])
figure.colorbar(image, ax=axes, label="RMS noise of a release at ε = 1, metres")
plt.show()
