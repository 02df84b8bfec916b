"""
Exact noise on a lattice
========================

``lattice`` draws whole numbers by whole numbers alone, so that its probabilities can be stated to any digit. Left, the
probability of every output around the true place; right, how often 100,000 draws came to each of the likeliest, beside
what was stated.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import LatticeKNormMechanism, SensitivityHull

hull = SensitivityHull([[1, -1], [4, 1], [-3, 0]])
mechanism = LatticeKNormMechanism(hull, 1.0)
outputs = np.array([[x, y] for y in range(-6, 7) for x in range(-12, 13)])
stated = np.array([float(mechanism.probability(z, [0, 0])) for z in outputs])
draws = mechanism.sample([0, 0], rng=1, size=100_000)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", width_ratios=(3, 2))
shown = left.scatter(*outputs.T, c=stated, s=60, marker="s", cmap="viridis")
figure.colorbar(shown, ax=left, label="probability")
left.fill(*hull.vertices.T, fill=False, edgecolor="w", lw=1.2)
left.set(aspect="equal", title="ε = 1, and the hull")

first = np.argsort(-stated)[:24]
counted = np.array([(draws == outputs[k]).all(axis=1).mean() for k in first])
right.bar(range(24), stated[first], color="0.8", label="stated")
right.plot(range(24), counted, "o", ms=4, color="#D55E00", label="drawn")
right.set(xlabel="the 24 likeliest outputs", ylabel="share", title="100,000 draws")
right.legend()
plt.show()
