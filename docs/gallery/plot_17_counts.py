"""
Post-processing of counts
=========================

The number of 200 users in one of three locations over time: the true counts, counts with noise that makes each row
ε-private, and post-processed counts. Post-processing uses the noisy counts and the public mobility model only.
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
processed = counts.post_process(noisy, matrix, users=200, scale=2 / 0.3, coupled=True)

figure, ax = plt.subplots(figsize=(9, 4), layout="constrained")
ax.plot(true[:, 2], "k-", lw=2, label="true")
for values, name, style in ((noisy, "noisy, ε = 0.3", "o"), (processed, "post-processed", "-")):
    error = np.mean((values - true) ** 2)
    ax.plot(values[:, 2], style, ms=4, label=f"{name}: mean squared error {error:.0f}")
ax.set(xlabel="time", ylabel="users in the third location")
ax.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
plt.show()
