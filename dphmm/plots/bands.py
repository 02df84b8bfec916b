"""Curves of thousands of steps as bands: what a line through all of them would paint over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import as_floats
from dphmm.errors import InvalidInputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_STEPS = 300
"""A curve of more steps than this is drawn as a band."""

BANDS = "bands: quartiles, least to greatest"
"""What a legend says of them, once."""

_PIECES = 160


@checked
def draw_steps(ax: Axes, times: npt.ArrayLike, values: npt.ArrayLike, colour: str, label: str, **style: Any) -> None:
    """A value at each step: a line, or of more than `MOST_STEPS` a band.

    The steps are then put into pieces of equal numbers. Of each are drawn the median as a line, the quartiles as a
    strong band, and the least and the greatest as a faint one, so that no step lies outside what is drawn. The legend
    says so once.

    Parameters
    ----------
    ax
        Where to draw.
    times
        ``(n,)`` numbers or ``datetime64``, ascending.
    values
        ``(n,)``; steps whose value is not finite are left out.
    colour, label
        Of the line.
    **style
        Of the line, as matplotlib has it, such as ``linewidth``; ``drawstyle="steps-post"`` for values that hold until
        the next step. Markers are for few steps alone.

    Raises
    ------
    InvalidInputError
        When there are not as many values as steps.
    """
    at: npt.NDArray[Any] = np.asarray(times)
    shown = as_floats(values, "values")
    if at.ndim != 1 or at.shape != shown.shape:
        raise InvalidInputError(f"values have shape {shown.shape} at {at.shape} steps; give one for each")
    if len(at) <= MOST_STEPS:
        ax.plot(at, np.where(np.isfinite(shown), shown, np.nan), color=colour, label=label, **style)
        return
    pieces = [part[np.isfinite(shown[part])] for part in np.array_split(np.arange(len(at)), _PIECES)]
    pieces = [part for part in pieces if len(part)]
    middle = at[[part[len(part) // 2] for part in pieces]]
    told = np.array([np.quantile(shown[part], (0.0, 0.25, 0.5, 0.75, 1.0)) for part in pieces]).reshape(-1, 5).T
    said = None if BANDS in ax.get_legend_handles_labels()[1] else BANDS
    ax.fill_between(middle, told[0], told[4], color=colour, alpha=0.15, linewidth=0, label=said)
    ax.fill_between(middle, told[1], told[3], color=colour, alpha=0.35, linewidth=0)
    kept = {name: value for name, value in style.items() if name in ("linewidth", "lw", "linestyle", "zorder")}
    ax.plot(middle, told[2], color=colour, label=label, **kept)
