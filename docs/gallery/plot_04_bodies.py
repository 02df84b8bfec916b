"""
Bodies of noise
===============

The same policy, four mechanisms at the same budget: two thousand draws around one place. K-norm noise has the hull's
shape; Laplace and planar Laplace noise that of the least cross-polytope and disc around it, which costs error and
promises more between places that no edge joins.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import KNormMechanism, LaplaceMechanism, PlanarIsotropicMechanism, PlanarLaplaceMechanism, SensitivityHull

hull = SensitivityHull([[1, -1], [4, 1], [-3, 0]])
largest = np.abs(hull.vertices).sum(axis=1).max(), np.linalg.norm(hull.vertices, axis=1).max()
kinds = {
    "K-norm": KNormMechanism(hull, 1.0),
    "planar isotropic": PlanarIsotropicMechanism(hull, 1.0),
    "Laplace": LaplaceMechanism(largest[0], 1.0, dimension=2),
    "planar Laplace": PlanarLaplaceMechanism(1.0, unit=largest[1]),
}

figure, axes = plt.subplots(1, 4, figsize=(12, 3.5), sharex=True, sharey=True, layout="constrained")
for ax, (name, mechanism) in zip(axes, kinds.items(), strict=True):
    draws = mechanism.sample([0, 0], rng=1, size=2000)
    ax.plot(*draws.T, ".", ms=2, alpha=0.4, color="#D55E00")
    ax.fill(*hull.vertices.T, fill=False, edgecolor="k", lw=1.2)
    ax.set_title(f"{name}\nRMS {np.sqrt((draws**2).sum(axis=1).mean()):.1f}", fontsize=9)
    ax.set(xlim=(-25, 25), ylim=(-25, 25), aspect="equal")
plt.show()
