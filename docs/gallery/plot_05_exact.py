"""
Exact noise on a lattice
========================

The mechanism ``lattice`` samples integers with integer arithmetic only, so its probabilities are known exactly. Left:
the probability of every output around the true location. Right: the frequencies in 100,000 samples and the exact
probabilities of the most probable outputs.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import LatticeKNormMechanism, SensitivityHull

hull = SensitivityHull([[1, -1], [4, 1], [-3, 0]])
mechanism = LatticeKNormMechanism(hull, 1.0)
outputs = np.array([[x, y] for y in range(-6, 7) for x in range(-12, 13)])
probabilities = np.array([float(mechanism.probability(z, [0, 0])) for z in outputs])
samples = mechanism.sample([0, 0], rng=1, size=100_000)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", width_ratios=(3, 2))
points = left.scatter(*outputs.T, c=probabilities, s=60, marker="s", cmap="viridis")
figure.colorbar(points, ax=left, label="probability")
left.fill(*hull.vertices.T, fill=False, edgecolor="w", lw=1.2)
left.set(aspect="equal", title="ε = 1; the white line is the hull")

most_probable = np.argsort(-probabilities)[:24]
frequencies = np.array([(samples == outputs[k]).all(axis=1).mean() for k in most_probable])
right.bar(range(24), probabilities[most_probable], color="0.8", label="exact probability")
right.plot(range(24), frequencies, "o", ms=4, color="#D55E00", label="frequency")
right.set(xlabel="the 24 most probable outputs", ylabel="probability", title="100,000 samples")
right.legend()
plt.show()
