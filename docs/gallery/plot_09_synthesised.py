"""
Synthetic users
===============

Twelve users sampled from a model for one day, and one user of the sample. The sampled paths have the guarantee of the
model and no other.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm.jobs import Data, learn, region
from dphmm.model import sample_paths
from dphmm.readers import read

town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
model = learn(Data((town,), exclude_users=("000",)), space, step_seconds=300).model
paths = sample_paths(model, num_users=12, length=288, rng=3)

jitter = np.random.default_rng(0).normal(0, 0.06, (12, 1, 2))
figure, ax = plt.subplots(figsize=(7, 6), layout="constrained")
for path in model.space.points[paths] + jitter:
    ax.plot(*path.T, "-", lw=0.7, alpha=0.7)
(track,) = [trajectory for trajectory in read(town).trajectories if trajectory.user == "000"]
track_km = model.space.projection.to_plane(track.latitude, track.longitude)
ax.plot(*track_km.T, "k-", lw=1.6, label="user 000 of the sample")
ax.set(aspect="equal", xlabel="km east", ylabel="km north", xlim=(-4, 4), ylim=(-4, 4))
ax.legend()
plt.show()
