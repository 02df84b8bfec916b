"""
The sensitivity hull
====================

Six states and a policy that connects states of the same category. Noise is sampled from the hull of the differences
over the edges. If only some states are possible, edges are removed and the hull shrinks. With three possible states
it is a segment, and one of the states is exposed.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import PolicyGraph, SensitivityHull, degree_of_protection
from dphmm.plots import draw_hull

f = np.array([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])
policy = PolicyGraph.categorical(["a", "b", "b", "c", "c", "c"])

figure, axes = plt.subplots(1, 3, figsize=(10, 2.9), sharex=True, sharey=True, layout="constrained")
for ax, possible in zip(axes, ([0, 1, 2, 3, 4, 5], [1, 3, 4, 5], [1, 2, 4]), strict=True):
    mask = np.isin(np.arange(6), possible)
    restricted = policy.restrict(mask)
    draw_hull(ax, SensitivityHull(restricted.differences(f)))
    for start, end in restricted.edges:
        ax.plot(*f[[start, end]].T, color="0.4", lw=1)
    degrees = dict(zip(possible, degree_of_protection(policy, f, mask)[mask], strict=True))
    ax.plot(*f[possible].T, "ko", ms=4)
    for state, degree in degrees.items():
        ax.annotate(f"s{state + 1}: {degree}", f[state], xytext=(4, 4), textcoords="offset points", fontsize=9)
    ax.set_title(f"possible: {', '.join(f's{state + 1}' for state in possible)}", fontsize=9)
    ax.set(aspect="equal", xlim=(-4.5, 5.9), ylim=(-1.7, 3))
figure.suptitle("Degree of protection of each state", fontsize=10)
plt.show()
