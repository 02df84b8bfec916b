"""
People who do not exist
=======================

Twelve people drawn from the model for a day, beside one who is real as far as the sample is. What the drawing promises
is what the model promises, no more.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm.jobs import Data, learn, region
from dphmm.model import draw_paths
from dphmm.readers import read

town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
model = learn(Data((town,), exclude_users=("000",)), space, step_seconds=300).model
paths = draw_paths(model, people=12, length=288, rng=3)

jitter = np.random.default_rng(0).normal(0, 0.06, (12, 1, 2))
figure, ax = plt.subplots(figsize=(7, 6), layout="constrained")
for path in model.space.points[paths] + jitter:
    ax.plot(*path.T, "-", lw=0.7, alpha=0.7)
(person,) = [one for one in read(town).trajectories if one.user == "000"]
real = model.space.projection.to_plane(person.latitude, person.longitude)
ax.plot(*real.T, "k-", lw=1.6, label="user 000 of the sample")
ax.set(aspect="equal", xlabel="km east", ylabel="km north", xlim=(-4, 4), ylim=(-4, 4))
ax.legend()
plt.show()
