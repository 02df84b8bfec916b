"""
The adversary's belief
======================

A user on a line of sixty states. Shades: the belief of an adversary who knows the model, the policy and the releases.
Line: the true states. The belief follows the user, obfuscated as the policy requires.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.model import sample_paths

size = 60
distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
moves = np.where(distance <= 2, 1.0, 0.0)
model = MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(size, 1 / size))
points = np.column_stack([np.arange(size, dtype=float), np.zeros(size)])
policy = PolicyGraph.utility(points, radius=4.0)
(path,) = sample_paths(model, num_users=1, length=80, rng=9)

figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for ax, epsilon in zip(axes, (0.2, 1.0), strict=True):
    releaser = Releaser(model, points, policy, epsilon, rng=1)
    beliefs = []
    for state in path:
        releaser.release(int(state))
        beliefs.append(releaser.belief.probabilities)
    ax.imshow(np.sqrt(np.array(beliefs).T), origin="lower", aspect="auto", cmap="Blues")
    ax.plot(path, color="#D55E00", lw=1.2)
    ax.set(title=f"ε = {epsilon:g}", xlabel="release")
axes[0].set_ylabel("state")
plt.show()
