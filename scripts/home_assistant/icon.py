"""Draw icon.png, a location in its sensitivity hull.

python -m scripts.home_assistant.icon
"""

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("agg")
import matplotlib.pyplot as plt

from dphmm import SensitivityHull


def draw(to: Path) -> None:
    """Draw the icon with 128 by 128 pixels."""
    cells = np.array([(x, y) for x in range(-2, 3) for y in range(-2, 3) if x * x + y * y + x * y <= 4])
    around = SensitivityHull(cells).vertices
    figure, axes = plt.subplots(figsize=(1.28, 1.28), dpi=100)
    axes.fill(*around.T, facecolor="#cfe3f5", edgecolor="#1f5f99", linewidth=4, joinstyle="round")
    axes.scatter(*cells.T, s=14, color="#1f5f99")
    axes.scatter([0], [0], s=120, color="#d95f02")
    axes.set(xlim=(-2.5, 2.5), ylim=(-2.5, 2.5), aspect="equal")
    axes.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    figure.savefig(to, transparent=True)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_name("icon.png"))
