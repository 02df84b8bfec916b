"""
Releases and estimates of a day
===============================

One synthetic user of the sample, one day, a release every five minutes under ``utility:1km`` with ε = 1. The model is
learned from the two other users. The estimates are computed from the releases alone and are closer to the truth.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import ReleaseSettings
from dphmm.jobs import Data, learn, region, release
from dphmm.plots import draw_estimates, draw_releases, draw_space, draw_track
from dphmm.readers import read

town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
learned = learn(Data((town,), exclude_users=("000",)), space, step_seconds=300)
result = release(Data((town,), users=("000",)), learned.model, ReleaseSettings("utility:1km", 1.0), rng=1)

day = result.table["time"] < np.datetime64("2024-03-08T02:00")
table = result.table.select(day)
(track,) = [trajectory for trajectory in read(town).trajectories if trajectory.user == "000"]
today = track.times < np.datetime64("2024-03-08T02:00")
plane = learned.model.space.projection

figure, ax = plt.subplots(figsize=(8, 7), layout="constrained")
draw_space(ax, learned.model.space)
draw_releases(ax, np.column_stack([table["x_km"], table["y_km"]]))
estimates = plane.to_plane(table["estimate_latitude"], table["estimate_longitude"])
draw_estimates(ax, estimates, radii=table["estimate_error_m"] / 1000)
draw_track(ax, plane.to_plane(track.latitude[today], track.longitude[today]), "true track (synthetic)")
ax.set(xlim=(-5, 5), ylim=(-5, 5), aspect="equal", xlabel="km east", ylabel="km north")
ax.legend(loc="upper left")
plt.show()
