"""
A mobility model
================

The stationary distribution, stays and transitions of a model learned from two users of the sample. The model is
public, so this map reveals nothing beyond it.
"""

import matplotlib.pyplot as plt

from dphmm.jobs import Data, learn, region
from dphmm.plots import draw_model_figure

space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
learned = learn(Data(("data/sample/geolife",), exclude_users=("000",)), space, step_seconds=300)
figure = draw_model_figure(learned.model)
plt.figure(figure)
plt.show()
