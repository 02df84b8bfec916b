"""
What an app's fuzzing is worth
==============================

Ways to blur places that are in use, on the same invented people, under one adversary who knows how people move: how far
off the released place is, and how far off the adversary's guess, at once and in hindsight. Fresh noise averages out;
a grid does not, and is as good as it is coarse. Six hours of eight
people stand for more: the page on attacks has three days.
"""

import matplotlib.pyplot as plt

from dphmm.jobs import attack
from dphmm.plots import attack_figure

channels = ("round:3", "round:2", "disc:500m", "planar-laplace:500m", "release:utility:1km@1", "nothing")
found = attack(channels=channels, most_steps=36)
plt.figure(attack_figure(found))
plt.show()
