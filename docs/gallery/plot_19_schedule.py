"""
Release schedules
=================

The same day with a constant budget and with an error target. The schedule releases only if the expected error of the
estimate exceeds 700 m. The budget depends on the public belief and never on the true location.
"""

import matplotlib.pyplot as plt
import numpy as np

from dphmm import ReleaseSettings, Schedule
from dphmm.jobs import Data, learn, region, release

town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
learned = learn(Data((town,), exclude_users=("000",)), space, step_seconds=300)
schedules = {
    "constant ε = 1": ReleaseSettings("utility:1km", 1.0),
    "target 700 m": ReleaseSettings("utility:1km", 4.0, schedule=Schedule(target_error=0.7)),
}

figure, (above, below) = plt.subplots(2, 1, figsize=(9, 5.5), sharex=True, layout="constrained")
for name, settings in schedules.items():
    table = release(Data((town,), users=("000",)), learned.model, settings, rng=1).table
    day = table["time"] < np.datetime64("2024-03-08T02:00")
    above.plot(
        table["time"][day], table["epsilon_total"][day], label=f"{name}: {table['epsilon'][day].sum():.0f} in total"
    )
    below.plot(table["time"][day], table["estimate_error_m"][day], lw=1, label=name)
above.set_ylabel("total ε")
above.legend()
below.set(ylabel="expected error of\nthe estimate, metres", ylim=(0, None))
below.axhline(700, ls=":", color="0.5")
below.tick_params(axis="x", rotation=30)
plt.show()
