"""A picture of what is told of a recording with places hidden in it, and of what a reader makes of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.facts import metres
from dphmm.plots.figures import BLUE, GREY, ORANGE, PURPLE, new_panels
from dphmm.plots.maps import draw_basemap
from dphmm.space.projection import LocalProjection

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dphmm.jobs.hiding import Hidden, HiddenPlace
    from dphmm.plots.basemap import Basemap


def hidden_figure(found: Hidden, basemap: Basemap | None = None) -> Any:
    """What is told of a recording, and around each place what the surest reader makes of it; no true place is in it.

    Parameters
    ----------
    found
        What `dphmm.jobs.hide` found.
    basemap
        A map to draw on.

    Returns
    -------
    matplotlib.figure.Figure
        A panel of all, and one for each place.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    figure, axes = new_panels(6.2 * (1 + len(found.places)), 6.4, 1, 1 + len(found.places))
    plane = found.places[0].zone.projection
    _draw(axes[0], found, plane, basemap)
    for number, place in enumerate(found.places, start=1):
        for ax in axes[:1]:
            corners = plane.to_plane(*place.zone.projection.to_latlon(place.zone.corners).T)
            ax.fill(*corners.T, color=PURPLE, alpha=0.25, label="nothing is told here" if number == 1 else None)
        _place(axes[number], found, place, basemap)
    axes[0].set_title("What is told of the recording", loc="left")
    axes[0].legend(loc="upper right", fontsize="small")
    return figure


def _draw(ax: Axes, found: Hidden, plane: LocalProjection, basemap: Basemap | None) -> None:
    for number, one in enumerate(found.public.segments):
        x, y = plane.to_plane(one.latitude, one.longitude).T
        ax.plot(x, y, color=BLUE, lw=1.6, label="told, exact" if number == 0 else None, zorder=3)
    ax.set(aspect="equal", xlabel="km east", ylabel="km north")
    ax.margins(0.08)
    if basemap is not None:
        ax.autoscale_view()
        draw_basemap(ax, basemap, plane)


def _place(ax: Axes, found: Hidden, place: HiddenPlace, basemap: Basemap | None) -> None:
    zone, best = place.zone, max(place.known, key=lambda one: one.certainty)
    _draw(ax, found, zone.projection, None)
    half, count = zone.square.side_km / 2, round(len(best.posterior) ** 0.5)
    order = np.lexsort(zone.grid.points[zone.core].T)
    shown = 100 * best.posterior[order].reshape(count, count)
    ax.plot(*zone.corners.T, color=PURPLE, lw=1.5, label="the zone")
    image = ax.imshow(shown, extent=(-half, half, -half, half), origin="lower", cmap="magma_r", vmin=0, zorder=2)
    ax.figure.colorbar(
        image, ax=ax, shrink=0.75, label=f"% of {metres(zone.grid.cell_km)} squares, for who {best.reader}"
    )
    for way in place.stretches:
        for gate in (way.entered, way.left):
            if gate is not None:
                ax.plot(*gate.point, "o", color=ORANGE, ms=7, mec="white", zorder=4)
    wide = 1.35 * zone.half_km
    ax.set(xlim=(-wide, wide), ylim=(-wide, wide))
    if basemap is not None:
        draw_basemap(ax, basemap, zone.projection)
    ax.set_title(f"Where the place is, to a reader: somewhere in {metres(zone.square.side_km)}", loc="left")
    ax.plot([], [], "o", color=ORANGE, label="ways in and out")
    ax.plot([-0.9 * wide, -0.9 * wide + 0.5], [-0.92 * wide] * 2, color=GREY, lw=3)
    ax.annotate("500 m", (-0.9 * wide, -0.9 * wide), fontsize="small", color=GREY)
    ax.legend(loc="upper right", fontsize="small")
