"""
Counts and their repair
=======================

How many of 200 people are in one of three places, over time: true, with noise that makes each row ε-private, and
repaired with what is publicly known of how people move. The repair looks at nothing but the noisy counts.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import counts

matrix = np.array([[0.01, 0.01, 0.98], [0.49, 0.02, 0.49], [0.01, 0.98, 0.01]])
rng = np.random.default_rng(0)
states = [rng.integers(3, size=200)]
for _ in range(39):
    states.append(np.array([rng.choice(3, p=matrix[s]) for s in states[-1]]))
true = counts.count_states(np.array(states).T, size=3)
noisy = counts.release(true, epsilons=0.3, rng=1)
repaired = counts.post_process(noisy, matrix, users=200, scale=2 / 0.3, coupled=True)

figure, ax = plt.subplots(figsize=(9, 4), layout="constrained")
ax.plot(true[:, 2], "k-", lw=2, label="true")
for values, name, style in ((noisy, "noisy, ε = 0.3", "o"), (repaired, "repaired", "-")):
    error = np.mean((values - true) ** 2)
    ax.plot(values[:, 2], style, ms=4, label=f"{name}: mean squared error {error:.0f}")
ax.set(xlabel="time", ylabel="people in the third place")
ax.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
plt.show()
