"""
Error of a release by budget
============================

The root mean square error of a release for four mechanisms and the policy ``centres:1km`` on cells of 200 metres. The
dotted line is the policy's radius.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import (
    KNormMechanism,
    LaplaceMechanism,
    LatticeKNormMechanism,
    PlanarLaplaceMechanism,
    PolicyGraph,
    SensitivityHull,
)

points = 0.2 * np.array([[x, y] for y in range(12) for x in range(12)])
hull = SensitivityHull(PolicyGraph.utility(points, radius=1.0).differences(points))
metres = SensitivityHull(np.round(1000 * hull.vertices))
largest = np.abs(hull.vertices).sum(axis=1).max(), np.linalg.norm(hull.vertices, axis=1).max()
budgets = np.geomspace(0.1, 5, 25)

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
mechanisms = {
    "K-norm": lambda epsilon: KNormMechanism(hull, epsilon),
    "Laplace": lambda epsilon: LaplaceMechanism(largest[0], epsilon, dimension=2),
    "planar Laplace": lambda epsilon: PlanarLaplaceMechanism(epsilon, unit=largest[1]),
}
for name, build in mechanisms.items():
    ax.loglog(budgets, [1000 * build(epsilon).squared_error ** 0.5 for epsilon in budgets], label=name)
exact = [LatticeKNormMechanism(metres, round(epsilon, 3)).squared_error ** 0.5 for epsilon in budgets[::4]]
ax.loglog(budgets[::4], exact, "ko", ms=4, label="lattice (exact), whole metres")
ax.axhline(1000, ls=":", color="0.5")
ax.set(xlabel="ε of a release", ylabel="RMS error, metres")
ax.legend()
plt.show()
