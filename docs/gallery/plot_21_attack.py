"""
What an app's fuzzing is worth
==============================

Ways to blur places that are in use and this package's releases, on the same invented people, under one adversary who
knows how people move and one who knows the habits of each: how far off the released place is, and how far off guesses
are. Fresh noise averages out; a grid does not, and is as good as it is coarse. Below is the frontier: the farther up
and to the left, the better. Six hours of eight people stand for more: the page on attacks has two days.
"""

import matplotlib.pyplot as plt

from dphmm.jobs import attack
from dphmm.plots import attack_figure

channels = (
    "round:3",
    "round:2",
    "planar-laplace:500m",
    "planar-laplace:4km",
    "hourly:1",
    "release:utility:1km@day:48",
    "release:utility:1km@day:3",
    "nothing",
)
found = attack(channels=channels, most_steps=36)
plt.figure(attack_figure(found))
plt.show()
