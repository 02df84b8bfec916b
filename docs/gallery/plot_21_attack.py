"""
Obfuscation methods compared
============================

Obfuscation methods in common use and dphmm releases on the same synthetic users, against an adversary with the
mobility model and an informed adversary with each user's habits. Top: errors of the releases and of the adversaries'
estimates. Fresh noise averages out. A grid does not, and protects according to its cell size. Bottom: the trade-off;
channels toward the top left are better. This figure uses four hours of eight users; the documentation page uses two
days.
"""

import matplotlib.pyplot as plt

from dphmm.jobs import attack
from dphmm.plots import draw_attack_figure

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
comparison = attack(channels=channels, max_steps=24)
plt.figure(draw_attack_figure(comparison))
plt.show()
