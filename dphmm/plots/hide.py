"""Pictures of recordings with protected locations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dphmm.formatting import metres
from dphmm.jobs.hide.hide import HideResult
from dphmm.jobs.hide.place import HiddenPlace
from dphmm.plots import canvas
from dphmm.plots.canvas import Axes
from dphmm.plots.release import draw_ground
from dphmm.space.states import LocalProjection


def hidden_figure(result: HideResult, basemap: Path | None = None) -> Any:
    """Plot the published track and the strongest adversary's posterior in each zone.

    The figure contains no true location. It also shows whether the user stopped in the zone, which the published
    recording does not show if it has no times.

    Parameters
    ----------
    result
        The result of `dphmm.jobs.hide`.
    basemap
        The file of a background map; see `dphmm.plots.read_basemap`.

    Returns
    -------
    matplotlib.figure.Figure
        A panel of the track, and one per location.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    DataFileError
        If the map cannot be read.
    """
    figure, axes = canvas.new_panels(6.2 * (1 + len(result.places)), 6.4, 1, 1 + len(result.places))
    plane = result.places[0].zone.projection
    for number, place in enumerate(result.places):
        corners = plane.to_plane(*place.zone.projection.to_latlon(place.zone.corners).T)
        axes[0].fill(
            *corners.T, color=canvas.PURPLE, alpha=0.3, label=None if number else "removed from the file", zorder=1
        )
        _draw_place(axes[number + 1], result, place)
    _draw_kept(axes[0], result, plane)
    axes[0].set_title("The published track", loc="left")
    canvas.legend_below(axes[0], others=axes[1:])
    if basemap is not None:
        for ax, projection in zip(axes, (plane, *(place.zone.projection for place in result.places)), strict=True):
            ax.set(xlim=ax.get_xlim(), ylim=ax.get_ylim())  # the basemap does not extend the view
            draw_ground(ax, projection, basemap)
    return figure


def _draw_kept(ax: Axes, result: HideResult, plane: LocalProjection) -> None:
    for number, segment in enumerate(result.public.segments):
        x, y = plane.to_plane(segment.latitude, segment.longitude).T
        marker = "o" if len(segment) == 1 else None  # a line of one point is invisible
        label = "kept, exact" if number == 0 else None
        ax.plot(x, y, color=canvas.BLUE, lw=1.6, marker=marker, ms=3, label=label, zorder=3)
    ax.set(aspect="equal", xlabel="km east", ylabel="km north")
    ax.margins(0.08)


def _draw_place(ax: Axes, result: HideResult, place: HiddenPlace) -> None:
    zone = place.zone
    strongest = place.strongest
    _draw_kept(ax, result, zone.projection)
    half = zone.square.side_km / 2
    count = round(len(strongest.posterior) ** 0.5)
    order = np.lexsort(zone.grid.points[zone.core].T)
    adversary = strongest.adversary.replace("markov", "Markov")
    shown = 100 * strongest.posterior[order].reshape(count, count)
    ax.plot(*zone.corners.T, color=canvas.PURPLE, lw=1.5, label="the zone")
    image = ax.imshow(shown, extent=(-half, half, -half, half), origin="lower", cmap="magma_r", vmin=0, zorder=2)
    ax.figure.colorbar(
        image,
        ax=ax,
        shrink=0.75,
        label=f"posterior probability of a {metres(zone.grid.cell_km)} cell, %\n({adversary} adversary)",
    )
    for stretch in place.stretches:
        for gate in (stretch.entered, stretch.left):
            if gate is not None:
                ax.plot(*gate.point, "o", color=canvas.ORANGE, ms=7, mec="white", zorder=4)
    wide = 1.35 * zone.half_km
    ax.set(xlim=(-wide, wide), ylim=(-wide, wide))
    ax.set_title(f"The adversary's posterior over the {metres(zone.square.side_km)} core", loc="left")
    ax.plot([], [], "o", color=canvas.ORANGE, label="exit or entry")
    # The largest of 1, 2, 5, 10, ... metres up to a third of the panel.
    unit = 10.0 ** np.floor(np.log10(2 / 3 * wide))
    length = max(unit * factor for factor in (1, 2, 5) if unit * factor <= 2 / 3 * wide)
    ax.plot([-0.9 * wide, -0.9 * wide + length], [-0.92 * wide] * 2, color=canvas.GREY, lw=3)
    ax.annotate(metres(length), (-0.9 * wide, -0.9 * wide), fontsize="small", color=canvas.GREY)
