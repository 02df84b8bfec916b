"""A picture of a recording in which places are hidden: what is left of it, and what readers make of each place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dphmm.facts import metres
from dphmm.jobs.hiding import Hidden, HiddenPlace
from dphmm.plots import figures
from dphmm.plots.figures import Axes
from dphmm.plots.releases import draw_ground
from dphmm.space.states import LocalProjection


def hidden_figure(found: Hidden, basemap: Path | None = None) -> Any:
    """What a recording shows, and around each place what the surest reader makes of it; no true place is in it.

    Parameters
    ----------
    found
        What `dphmm.jobs.hide` found.
    basemap
        The file of a map to draw on; see `dphmm.plots.read_basemap`.

    Returns
    -------
    matplotlib.figure.Figure
        A panel of all, and one for each place.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    DataFileError
        When the map cannot be read.
    """
    figure, axes = figures.new_panels(6.2 * (1 + len(found.places)), 6.4, 1, 1 + len(found.places))
    plane = found.places[0].zone.projection
    for number, place in enumerate(found.places):
        corners = plane.to_plane(*place.zone.projection.to_latlon(place.zone.corners).T)
        axes[0].fill(
            *corners.T, color=figures.PURPLE, alpha=0.3, label=None if number else "left out of the file", zorder=1
        )
        _draw_place(axes[number + 1], found, place)
    _draw_kept(axes[0], found, plane)
    axes[0].set_title("What the hidden recording shows", loc="left")
    axes[0].legend(loc="upper right", fontsize="small")
    if basemap is not None:
        for ax, projection in zip(axes, (plane, *(one.zone.projection for one in found.places)), strict=True):
            ax.set(xlim=ax.get_xlim(), ylim=ax.get_ylim())  # as far as what was drawn, whatever the ground shows
            draw_ground(ax, projection, basemap)
    return figure


def _draw_kept(ax: Axes, found: Hidden, plane: LocalProjection) -> None:
    for number, one in enumerate(found.public.segments):
        x, y = plane.to_plane(one.latitude, one.longitude).T
        ax.plot(x, y, color=figures.BLUE, lw=1.6, label="kept, exact" if number == 0 else None, zorder=3)
    ax.set(aspect="equal", xlabel="km east", ylabel="km north")
    ax.margins(0.08)


def _draw_place(ax: Axes, found: Hidden, place: HiddenPlace) -> None:
    zone, best = place.zone, max(place.known, key=lambda one: one.certainty)
    _draw_kept(ax, found, zone.projection)
    half, count = zone.square.side_km / 2, round(len(best.posterior) ** 0.5)
    order = np.lexsort(zone.grid.points[zone.core].T)
    shown = 100 * best.posterior[order].reshape(count, count)
    ax.plot(*zone.corners.T, color=figures.PURPLE, lw=1.5, label="the zone")
    image = ax.imshow(shown, extent=(-half, half, -half, half), origin="lower", cmap="magma_r", vmin=0, zorder=2)
    ax.figure.colorbar(
        image, ax=ax, shrink=0.75, label=f"% of {metres(zone.grid.cell_km)} squares, to a reader who\n{best.reader}"
    )
    for way in place.stretches:
        for gate in (way.entered, way.left):
            if gate is not None:
                ax.plot(*gate.point, "o", color=figures.ORANGE, ms=7, mec="white", zorder=4)
    wide = 1.35 * zone.half_km
    ax.set(xlim=(-wide, wide), ylim=(-wide, wide))
    ax.set_title(f"Where the place is, to a reader: somewhere in {metres(zone.square.side_km)}", loc="left")
    ax.plot([], [], "o", color=figures.ORANGE, label="ways in and out")
    ax.plot([-0.9 * wide, -0.9 * wide + 0.5], [-0.92 * wide] * 2, color=figures.GREY, lw=3)
    ax.annotate("500 m", (-0.9 * wide, -0.9 * wide), fontsize="small", color=figures.GREY)
    ax.legend(loc="upper right", fontsize="small")
