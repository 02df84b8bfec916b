"""
Which ε? The frontier
=====================

Left: errors of the release, of its estimate, and of an adversary in hindsight, by budget: simulated people who move as
the model says, two hours of releases. The line up is the budget that calibration found for a release error of 1 km.
Right: how near a reader comes at once, for how far off an adversary stays in hindsight, beside grids, planar Laplace
and a place now and then. The better, the farther up and to the left.
"""

import matplotlib.pyplot as plt

from dphmm import ReleaseSettings
from dphmm.jobs import Data, Targets, calibrate, learn, region
from dphmm.jobs.calibrations import BESIDE
from dphmm.plots import calibration_figure

space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=1.0)
learned = learn(Data(("data/sample/geolife",), exclude_users=("000",)), space, step_seconds=600)
found = calibrate(
    learned.model,
    ReleaseSettings("utility:1km", 1.0),
    Targets(error=1.0),
    over_seconds=7200,
    people=12,
    row=(0.1, 0.2, 0.5, 1.0, 2.0),
    beside=BESIDE,
)
plt.figure(calibration_figure(found))
plt.show()
