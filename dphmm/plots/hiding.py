"""A picture of what a recording shows with places hidden in it, and of what a reader makes of that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.facts import metres
from dphmm.plots.basemap import read_basemap
from dphmm.plots.figures import BLUE, GREY, ORANGE, PURPLE, new_panels
from dphmm.plots.maps import draw_basemap
from dphmm.space.projection import LocalProjection

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dphmm.jobs.hiding import Hidden, HiddenPlace


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
    figure, axes = new_panels(6.2 * (1 + len(found.places)), 6.4, 1, 1 + len(found.places))
    plane = found.places[0].zone.projection
    for number, place in enumerate(found.places):
        corners = plane.to_plane(*place.zone.projection.to_latlon(place.zone.corners).T)
        axes[0].fill(*corners.T, color=PURPLE, alpha=0.3, label=None if number else "left out of the file", zorder=1)
        _place(axes[number + 1], found, place)
    _draw(axes[0], found, plane)
    axes[0].set_title("What the hidden recording shows", loc="left")
    axes[0].legend(loc="upper right", fontsize="small")
    if basemap is not None:
        for ax, projection in zip(axes, (plane, *(one.zone.projection for one in found.places)), strict=True):
            west, south, east, north = (ax.get_xlim()[0], ax.get_ylim()[0], ax.get_xlim()[1], ax.get_ylim()[1])
            corners = projection.to_latlon([(west, south), (east, south), (west, north), (east, north)])
            low, high = corners.min(axis=0), corners.max(axis=0)
            draw_basemap(ax, read_basemap(basemap, (low[0], low[1], high[0], high[1])), projection)
            ax.set(xlim=(west, east), ylim=(south, north))
    return figure


def _draw(ax: Axes, found: Hidden, plane: LocalProjection) -> None:
    for number, one in enumerate(found.public.segments):
        x, y = plane.to_plane(one.latitude, one.longitude).T
        ax.plot(x, y, color=BLUE, lw=1.6, label="kept, exact" if number == 0 else None, zorder=3)
    ax.set(aspect="equal", xlabel="km east", ylabel="km north")
    ax.margins(0.08)


def _place(ax: Axes, found: Hidden, place: HiddenPlace) -> None:
    zone, best = place.zone, max(place.known, key=lambda one: one.certainty)
    _draw(ax, found, zone.projection)
    half, count = zone.square.side_km / 2, round(len(best.posterior) ** 0.5)
    order = np.lexsort(zone.grid.points[zone.core].T)
    shown = 100 * best.posterior[order].reshape(count, count)
    ax.plot(*zone.corners.T, color=PURPLE, lw=1.5, label="the zone")
    image = ax.imshow(shown, extent=(-half, half, -half, half), origin="lower", cmap="magma_r", vmin=0, zorder=2)
    ax.figure.colorbar(
        image, ax=ax, shrink=0.75, label=f"% of {metres(zone.grid.cell_km)} squares, to a reader who\n{best.reader}"
    )
    for way in place.stretches:
        for gate in (way.entered, way.left):
            if gate is not None:
                ax.plot(*gate.point, "o", color=ORANGE, ms=7, mec="white", zorder=4)
    wide = 1.35 * zone.half_km
    ax.set(xlim=(-wide, wide), ylim=(-wide, wide))
    ax.set_title(f"Where the place is, to a reader: somewhere in {metres(zone.square.side_km)}", loc="left")
    ax.plot([], [], "o", color=ORANGE, label="ways in and out")
    ax.plot([-0.9 * wide, -0.9 * wide + 0.5], [-0.92 * wide] * 2, color=GREY, lw=3)
    ax.annotate("500 m", (-0.9 * wide, -0.9 * wide), fontsize="small", color=GREY)
    ax.legend(loc="upper right", fontsize="small")
