"""
What a model says of a city
===========================

Where people are in the long run, where they stay, and where they go, as learned from two of the sample's people. The
model is public: this map tells nobody anything that releases would not presuppose.
"""

import matplotlib.pyplot as plt

from dphmm.jobs import Data, learn, region
from dphmm.plots import model_figure

space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
learned = learn(Data(("data/sample/geolife",), exclude_users=("000",)), space, step_seconds=300)
figure = model_figure(learned.model)
plt.figure(figure)
plt.show()
