"""
Noise bodies
============

Two thousand samples around one location, with four mechanisms, the same policy and the same budget. K-norm noise has
the shape of the hull. Laplace and planar Laplace noise have the shape of the smallest cross-polytope and disc around
it. They have a larger error and a stronger guarantee for some pairs of states without an edge.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import KNormMechanism, LaplaceMechanism, PlanarIsotropicMechanism, PlanarLaplaceMechanism, SensitivityHull

hull = SensitivityHull([[1, -1], [4, 1], [-3, 0]])
largest = np.abs(hull.vertices).sum(axis=1).max(), np.linalg.norm(hull.vertices, axis=1).max()
mechanisms = {
    "K-norm": KNormMechanism(hull, 1.0),
    "planar isotropic": PlanarIsotropicMechanism(hull, 1.0),
    "Laplace": LaplaceMechanism(largest[0], 1.0, dimension=2),
    "planar Laplace": PlanarLaplaceMechanism(1.0, unit=largest[1]),
}

figure, axes = plt.subplots(1, 4, figsize=(12, 3.5), sharex=True, sharey=True, layout="constrained")
for ax, (name, mechanism) in zip(axes, mechanisms.items(), strict=True):
    samples = mechanism.sample([0, 0], rng=1, size=2000)
    ax.plot(*samples.T, ".", ms=2, alpha=0.4, color="#D55E00")
    ax.fill(*hull.vertices.T, fill=False, edgecolor="k", lw=1.2)
    ax.set_title(f"{name}\nRMS {np.sqrt((samples**2).sum(axis=1).mean()):.1f}", fontsize=9)
    ax.set(xlim=(-25, 25), ylim=(-25, 25), aspect="equal")
plt.show()
