"""
Budgets that last
=================

The same day released with a target of error instead of a constant budget: a draw only where the estimate is expected to
be further off than 700 m. What is spent follows the public belief alone, never the true place.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import ReleaseSettings, Schedule
from dphmm.jobs import Data, learn, region, release

town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
learned = learn(Data((town,), exclude_users=("000",)), space, step_seconds=300)
ways = {
    "constant ε = 1": ReleaseSettings("utility:1km", 1.0),
    "target 700 m": ReleaseSettings("utility:1km", 4.0, schedule=Schedule(target_error=0.7)),
}

figure, (above, below) = plt.subplots(2, 1, figsize=(9, 5.5), sharex=True, layout="constrained")
for name, settings in ways.items():
    table = release(Data((town,), users=("000",)), learned.model, settings, rng=1).table
    day = table["time"] < np.datetime64("2024-03-08T02:00")
    above.plot(
        table["time"][day], table["epsilon_so_far"][day], label=f"{name}: {table['epsilon'][day].sum():.0f} in all"
    )
    below.plot(table["time"][day], table["estimate_radius_m"][day], lw=1, label=name)
above.set_ylabel("ε spent so far")
above.legend()
below.set(ylabel="expected error of\nthe estimate, metres", ylim=(0, None))
below.axhline(700, ls=":", color="0.5")
below.tick_params(axis="x", rotation=30)
plt.show()
