"""
Supremum of the leakage
=======================

Under a constant budget, leakage converges to a supremum or grows without bound. The two panels show the same matrix
with ε = 0.15 and ε = 0.23.
"""

import matplotlib.pyplot as plt

from dphmm.plots import draw_supremum

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for ax, epsilon in zip(axes, (0.15, 0.23), strict=True):
    draw_supremum(ax, [[0.8, 0.2], [0, 1]], epsilon, 60)
plt.show()
