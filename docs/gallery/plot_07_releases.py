"""
Releases around a true day
==========================

One invented person of the sample, one day, a release every five minutes under ``utility:1km`` with ε = 1. The model was
learned from the two others. Estimates are computed from releases alone, by anybody, and are nearer than these.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import ReleaseSettings
from dphmm.jobs import Data, learn, region, release
from dphmm.plots import draw_estimates, draw_releases, draw_space, draw_track
from dphmm.readers import read

town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
learned = learn(Data((town,), exclude_users=("000",)), space, step_seconds=300)
done = release(Data((town,), users=("000",)), learned.model, ReleaseSettings("utility:1km", 1.0), rng=1)

day = done.table["time"] < np.datetime64("2024-03-08T02:00")
table = done.table.select(day)
(person,) = [one for one in read(town).trajectories if one.user == "000"]
today = person.times < np.datetime64("2024-03-08T02:00")
plane = learned.model.space.projection

figure, ax = plt.subplots(figsize=(8, 7), layout="constrained")
draw_space(ax, learned.model.space)
draw_releases(ax, np.column_stack([table["x_km"], table["y_km"]]))
estimates = plane.to_plane(table["estimate_latitude"], table["estimate_longitude"])
draw_estimates(ax, estimates, radii=table["estimate_radius_m"] / 1000)
draw_track(ax, plane.to_plane(person.latitude[today], person.longitude[today]), "where the invented person was")
ax.set(xlim=(-5, 5), ylim=(-5, 5), aspect="equal", xlabel="km east", ylabel="km north")
ax.legend(loc="upper left")
plt.show()
