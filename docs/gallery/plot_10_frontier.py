"""
Calibration of epsilon
======================

Left: errors of the release, of the estimate and of the adversary (smoothed) by budget, for users simulated from the
model over two hours of releases. The vertical line is the calibrated budget for a release error of 1 km. Right: the
filtered error of the recipient and the smoothed error of the adversary, with grids, planar Laplace noise and rare
reports for comparison. Channels toward the top left are better.
"""

import matplotlib.pyplot as plt

from dphmm import ReleaseSettings
from dphmm.jobs import CalibrationTargets, Data, calibrate, learn, region
from dphmm.jobs.calibrate.calibrate import COMPARED_CHANNELS
from dphmm.plots import draw_calibration_figure

space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1.0)
learned = learn(Data(("data/sample/geolife",), exclude_users=("000",)), space, step_seconds=600)
calibration = calibrate(
    learned.model,
    ReleaseSettings("utility:1km", 1.0),
    CalibrationTargets(error=1.0),
    horizon_seconds=7200,
    num_users=12,
    report_epsilons=(0.1, 0.2, 0.5, 1.0, 2.0),
    compare=COMPARED_CHANNELS,
)
plt.figure(draw_calibration_figure(calibration))
plt.show()
