"""
What an adversary knows, release by release
===========================================

A walker on a line of sixty places. Shades are what everybody who knows model, policy and releases believes; the line is
where the walker was. The belief follows, and stays blurred by what the policy asks for.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.model import draw_paths

size = 60
step = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
moves = np.where(step <= 2, 1.0, 0.0)
model = MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(size, 1 / size))
places = np.column_stack([np.arange(size, dtype=float), np.zeros(size)])
policy = PolicyGraph.utility(places, radius=4.0)
(path,) = draw_paths(model, people=1, length=80, rng=9)

figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for ax, epsilon in zip(axes, (0.2, 1.0), strict=True):
    releaser = Releaser(model, places, policy, epsilon, rng=1)
    beliefs = []
    for state in path:
        releaser.release(int(state))
        beliefs.append(releaser.belief.probabilities)
    ax.imshow(np.sqrt(np.array(beliefs).T), origin="lower", aspect="auto", cmap="Blues")
    ax.plot(path, color="#D55E00", lw=1.2)
    ax.set(title=f"ε = {epsilon:g}", xlabel="release")
axes[0].set_ylabel("place")
plt.show()
