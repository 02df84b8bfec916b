"""
Graph repair
============

States s3 to s6 are possible, and s3 has no neighbor left. Each of the three other states can be its partner. By
default the repair chooses the partner that minimizes the expected squared error of a release. Minimizing the area
selects another partner.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import PolicyGraph, SensitivityHull, protect
from dphmm.plots import draw_hull

f = np.array([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])
policy = PolicyGraph.categorical(["a", "b", "b", "c", "c", "c"])
possible = np.array([False, False, True, True, True, True])
best = {objective: protect(policy, f, possible, objective=objective).added for objective in ("error", "volume")}

figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharex=True, sharey=True, layout="constrained")
for ax, partner in zip(axes, (3, 4, 5), strict=True):
    graph = policy.restrict(possible).with_edges([(2, partner)])
    hull = SensitivityHull(graph.differences(f))
    draw_hull(ax, hull)
    for start, end in graph.edges:
        added = {start, end} == {2, partner}
        ax.plot(*f[[start, end]].T, color="#D55E00" if added else "0.4", lw=2 if added else 1)
    ax.plot(*f[possible].T, "ko", ms=4)
    for state in np.flatnonzero(possible):
        ax.annotate(f"s{state + 1}", f[state], xytext=(4, 4), textcoords="offset points", fontsize=9)
    optimal_for = [objective for objective, added in best.items() if added == ((2, partner),)]
    label = f"area {hull.volume:g}, squared error {hull.squared_error:.3g}"
    ax.set_title(
        f"partner s{partner + 1}: {label}\n{' and '.join(f'minimum {objective}' for objective in optimal_for)}",
        fontsize=9,
    )
    ax.set(aspect="equal", xlim=(-4.5, 5.2), ylim=(-2.4, 2.9))
plt.show()
