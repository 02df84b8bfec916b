"""
The running example of the DPHMM paper, and an attack
=====================================================

Six states in three categories. The policy connects the states of a category. The paper follows this example from the
sensitivity hull (Figure 7) to exposure (Figure 9) and repair (Example 6.1), and ends with an attack on a mechanism of
which the noise depends on the true state (Example 10.8).
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import KNormMechanism, PolicyGraph, SensitivityHull, degree_of_protection, exposed_states, protect

f = np.array([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])
policy = PolicyGraph.categorical(["a", "b", "b", "c", "c", "c"])
hull = SensitivityHull(policy.differences(f))
print(f"hull: area {hull.volume:g}; degrees of protection: {degree_of_protection(policy, f).tolist()}")

# %%
# If s3, s4, s5 and s6 are the only possible states, s3 has no neighbor left. No state differs from it by a vector in
# the hull, so it is exposed. The repair connects it to a partner.

possible = np.array([False, False, True, True, True, True])
print(f"exposed: {[f's{state + 1}' for state in exposed_states(policy, f, possible)]}")
repaired = protect(policy, f, possible, objective="volume")
print(f"edge of minimum area: {repaired.added}, area {repaired.hull.volume:g}")

figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharex=True, sharey=True, layout="constrained")
for ax, graph, title in zip(
    axes, (policy.restrict(possible), repaired.graph), ("s3 is exposed", "repaired"), strict=True
):
    around = SensitivityHull(graph.differences(f)).vertices + f[2]  # the states that protect s3 lie within
    ax.fill(*around.T, color="#cc79a7", alpha=0.3)
    for start, end in graph.edge_array():
        ax.plot(*f[[start, end]].T, color="0.4", lw=1)
    ax.plot(*f[possible].T, "ko", ms=4)
    for state in np.flatnonzero(possible):
        ax.annotate(f"s{state + 1}", f[state], xytext=(4, 4), textcoords="offset points", fontsize=9)
    ax.set(title=title, aspect="equal", ylim=(-1.3, 2.6))

# %%
# A hull of the true state's own edges would be smaller. Let s4, s5 and s6 be possible and the edges be s4-s6 and
# s5-s6. Then noise for s4 lies on one line, noise for s5 on another, and every other output comes from s6. Each output
# identifies its state. With one hull for all states, the three sets of outputs overlap everywhere.

edges = PolicyGraph.from_edges(6, [(3, 5), (4, 5)])
local = {3: [f[3] - f[5]], 4: [f[4] - f[5]], 5: [f[3] - f[5], f[4] - f[5], f[3] - f[4]]}
shared = SensitivityHull(edges.differences(f))
rng = np.random.default_rng(1)

figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharex=True, sharey=True, layout="constrained")
for ax, title in zip(axes, ("a hull for each true state", "one hull"), strict=True):
    for state, colour in ((3, "#0072b2"), (4, "#e69f00"), (5, "#009e73")):
        body = SensitivityHull(local[state]) if ax is axes[0] else shared
        outputs = KNormMechanism(body, epsilon=1.0).sample(f[state], rng, size=200)
        ax.plot(*outputs.T, ".", ms=4, alpha=0.6, color=colour, label=f"outputs of s{state + 1}")
    ax.set(title=title, aspect="equal", xlim=(-15, 20), ylim=(-6, 10))
axes[0].legend(fontsize=8)
plt.show()
