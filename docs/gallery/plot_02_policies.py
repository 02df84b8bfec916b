"""
Policy graphs
=============

An edge connects two states that must remain indistinguishable. Four policies over the same 36 cells: cells within 1.5
km, districts, all cells, and one protected zone with all other cells unprotected.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import PolicyGraph
from dphmm.plots import draw_edges

f = np.array([[x, y] for y in range(6) for x in range(6)], dtype=float)
district = (f[:, 0] >= 3) + 2 * (f[:, 1] >= 3)
home = (f < 3).all(axis=1)
policies = {
    "utility: at most 1.5 km apart": PolicyGraph.utility(f, radius=1.5),
    "categorical: within a district": PolicyGraph.categorical(district),
    "complete": PolicyGraph.complete(len(f)),
    "one protected zone": PolicyGraph.categorical(np.where(home, 0, -1)).with_open(~home),
}

figure, axes = plt.subplots(1, 4, figsize=(12, 3.9), layout="constrained")
for ax, (name, policy) in zip(axes, policies.items(), strict=True):
    edges = policy.edge_array()
    draw_edges(ax, f, edges, "#0072B2", 0.5, "edges")
    ax.plot(*f.T, "k.", ms=4)
    ax.set_title(f"{name}\n{len(edges)} edges", fontsize=9)
    ax.set(aspect="equal", xticks=[], yticks=[])
plt.show()
