"""Pictures of recordings with protected locations."""

from __future__ import annotations

import math
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.formatting import format_kilometres
from dphmm.hide.zone import find_gates
from dphmm.jobs.hide.hide import HideResult
from dphmm.jobs.hide.protected_location import HiddenPlace
from dphmm.plots import canvas
from dphmm.plots.canvas import Axes
from dphmm.plots.release import draw_ground
from dphmm.space.projection import LocalProjection

# More panels would exceed the size of pictures that many programs open.
_MAX_PANELS = 36


def draw_hide_figure(result: HideResult, basemap: Path | None = None) -> Any:
    """Plot the published track and the strongest adversary's posterior in each zone.

    The figure contains no location that the published recording omits. It also shows whether the user may have
    stopped in the zone, which the published recording does not show if it has no times.

    Parameters
    ----------
    result
        The result of `dphmm.jobs.hide`.
    basemap
        The file of a background map; see `dphmm.plots.read_basemap`.

    Returns
    -------
    matplotlib.figure.Figure
        A panel of the track, and one per location: of more than 35, those with the highest probability of a cell.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    DataFileError
        If the map cannot be read.
    """
    places = list(result.places)
    if len(places) >= _MAX_PANELS:
        places = sorted(places, key=attrgetter("max_posterior"), reverse=True)[: _MAX_PANELS - 1]
    count = 1 + len(places)
    columns = max(min(count, 3), math.ceil(math.sqrt(count)))
    rows = math.ceil(count / columns)
    figure, axes = canvas.create_panels(6.2 * columns, 6.4 * rows, rows, columns)
    for ax in axes[count:]:
        ax.remove()
    axes = axes[:count]
    plane = places[0].zone.projection
    for number, place in enumerate(result.places):
        corners = plane.to_plane(*place.zone.projection.to_latlon(place.zone.corners).T)
        axes[0].fill(
            *corners.T, color=canvas.PURPLE, alpha=0.3, label=None if number else "removed from the file", zorder=1
        )
    for number, (ax, place) in enumerate(zip(axes[1:], places, strict=True), start=1):
        _draw_place(ax, result, place)
        if len(places) > 1:
            centre = place.zone.square.centre
            axes[0].annotate(str(number), plane.to_plane(*centre)[0], ha="center", va="center", zorder=4)
            ax.set_title(
                f"Zone {number}, centred on {centre[0]:.4f}, {centre[1]:.4f}:\n{ax.get_title('left')}", loc="left"
            )
    _draw_kept(axes[0], result, plane)
    is_part = len(places) < len(result.places)
    more = f"\nNumbered: the {len(places)} most exposed of {len(result.places):,} zones" if is_part else ""
    axes[0].set_title(f"The published track{more}", loc="left")
    canvas.place_legend_below(axes[0], others=axes[1:])
    if basemap is not None:
        for ax, projection in zip(axes, (plane, *(place.zone.projection for place in places)), strict=True):
            ax.set(xlim=ax.get_xlim(), ylim=ax.get_ylim())  # the basemap does not extend the view
            # Not refused across the date line: the file may be the map that zones are made with.
            draw_ground(ax, projection, basemap, is_optional=True)
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
        label=f"posterior probability of a cell of {format_kilometres(zone.grid.cell_km)}, %\n({adversary} adversary)",
    )
    wide = 1.35 * zone.half_km
    for gate in find_gates(place.stretches):
        # Without a gate in view, the legend has no entry for it.
        if np.abs(gate.point).max() <= wide:
            ax.plot(*gate.point, "o", color=canvas.ORANGE, ms=7, mec="white", label="exit or entry", zorder=4)
    ax.set(xlim=(-wide, wide), ylim=(-wide, wide))
    ax.set_title(f"The adversary's posterior over the core of {format_kilometres(zone.square.side_km)}", loc="left")
    # The largest of 1, 2, 5, 10, ... metres up to a third of the panel.
    unit = 10.0 ** np.floor(np.log10(2 / 3 * wide))
    length = max(unit * factor for factor in (1, 2, 5) if unit * factor <= 2 / 3 * wide)
    ax.plot([-0.9 * wide, -0.9 * wide + length], [-0.92 * wide] * 2, color=canvas.GREY, lw=3, solid_capstyle="butt")
    ax.annotate(format_kilometres(length), (-0.9 * wide, -0.9 * wide), fontsize="small", color=canvas.GREY)
