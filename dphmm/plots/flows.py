"""Flow tables as a static plot, an interactive map and a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import CoordinateError
from dphmm.flows.noisy_tables import get_units
from dphmm.html_report import Picture, Section, html_page
from dphmm.plots.basemap import build_world_basemap, extend_box
from dphmm.plots.canvas import (
    BLUE,
    GREY,
    RED,
    Axes,
    build_halo,
    create_figure,
    is_page,
    label_map,
    render_png,
    save_picture,
    set_limits,
)
from dphmm.plots.maps import draw_basemap, draw_scale
from dphmm.plots.webmap import MapLayer, build_web_map
from dphmm.space.projection import LocalProjection, build_centred_projection, unwrap_longitudes, wrap_longitude
from dphmm.space.world_map import list_polygons
from dphmm.tables import check_output, write_text
from dphmm.tables.values import replace_surrogates
from dphmm.validation import check_arguments
from dphmm.writers.flows import MEASURES, FlowRows

# Maximum number of plotted flows.
MAX_LINES = 2000

_MAX_LABELLED_FLOWS = 300
_NUM_LISTED_FLOWS = 5
_NUM_REPORT_FLOWS = 8
_BEND = 0.15
_CURVE = np.linspace(0.0, 1.0, 13)[:, None]
# Widths of the largest flow and circle in a picture, in points, and the least width of a line that is visible.
_MAX_WIDTH = 6.5
_MAX_CIRCLE = 26.0
_MIN_WIDTH = 0.4
# Small flows are fainter, so that many of them do not cover the map.
_MIN_ALPHA = 0.3
_MAX_ALPHA = 0.8
_NAMED_AREAS = 12
_MAX_NAME = 24
# The margin of a map around the areas, as a share of their longer side; of the web map in degrees, for zooming out.
_MAP_MARGIN = 0.05
_WEB_MAP_MARGIN = 0.5
# Width and height of a name as a share of the map's width.
_NAME_SPACE = np.array([0.13, 0.02])
# Divisors of the largest flow, and the width of the lines from that count on, in pixels.
_LINE_WIDTHS = ((2, 8.0), (4, 5.0), (8, 3.0), (16, 1.6), (10**9, 0.7))
# Divisors of the largest number of visits, and the colour of the circles from that number on.
_SHADES = ((2, "#08306b"), (4, "#2171b5"), (8, "#6baed6"), (10**9, "#9ecae1"))
# The largest circle of the web map as a share of the map's height.
_CIRCLE_SHARE = 0.035
_CIRCLE_OPACITY = 0.55
_METRES_PER_DEGREE = 111_320.0


class _PlottedFlows:
    """The plotted rows: numbers by area, and flows above zero, largest first."""

    def __init__(self, rows: FlowRows) -> None:
        self.rows = rows
        # Longitudes are around the middle of the areas, so that areas across the date line are adjacent.
        points = np.array(list(rows.places.values()))[:, ::-1]
        try:
            self._middle = build_centred_projection(*points.T).longitude
        except CoordinateError:  # areas all around the Earth
            self._middle = 0.0
        unwrapped = unwrap_longitudes(points, self._middle)
        if np.ptp(unwrapped[:, 1]) >= np.ptp(points[:, 1]):  # such as areas of most continents: they keep the basemap
            self._middle, unwrapped = 0.0, points
        self.places = dict(zip(rows.places, map(tuple, unwrapped[:, ::-1].tolist()), strict=True))
        self.of_areas = {
            what: {key[0]: number for key, number in rows.numbers(table, levels, column).items()}
            for what, (table, column, levels) in MEASURES.items()
        }
        numbers = rows.numbers("flows", ("area in all", "area"), "area", "to")
        self.of_areas["trips within"] = {key[0]: number for key, number in numbers.items() if key[0] == key[1]}
        moving = [(key, number) for key, number in numbers.items() if key[0] != key[1] and number.whole > 0]
        self.has_flows = bool((rows.columns["table"] == "flows").any())
        self.rest = rows.rest("flows", "area in all", "area")
        self.flows = sorted((flow for flow in moving if flow[1].is_significant), key=lambda flow: -flow[1].whole)

    @property
    def counts(self) -> IntArray:
        """Counts of the plotted flows."""
        return np.array([number.whole for _, number in self.flows[:MAX_LINES]], dtype=np.int64)

    @cached_property
    def lines(self) -> list[FloatArray]:
        """Lines ``(k, 2)`` in longitude and latitude, bent so that both directions are visible."""
        lines = []
        for (origin, other), _ in self.flows[:MAX_LINES]:
            start = np.array(self.places[origin])
            end = np.array(self.places[other])
            along = end - start
            bend = (start + end) / 2 + _BEND * np.array([along[1], -along[0]])
            lines.append((1 - _CURVE) ** 2 * start + 2 * _CURVE * (1 - _CURVE) * bend + _CURVE**2 * end)
        return lines

    @cached_property
    def outlines(self) -> list[tuple[str, FloatArray]]:
        """Names and outer rings of the areas, ``(k, 2)`` in longitude and latitude."""
        shapes = [(feature["properties"]["name"], feature["geometry"]) for feature in self.rows.features]
        parts = [(name, part) for name, geometry in shapes for part in list_polygons(shapely.geometry.shape(geometry))]
        rings = [(name, shapely.get_coordinates(part.exterior)) for name, part in parts]
        # A ring is moved as a whole, so that one of any extent stays connected.
        turns = [[360.0 * round((ring[:, 0].mean() - self._middle) / 360.0), 0.0] for _, ring in rings]
        return [(name, ring - turn) for (name, ring), turn in zip(rings, turns, strict=True)]

    @property
    def note(self) -> str:
        """The description of the map, with the guarantee."""
        parts = [
            f"Noisy counts. {describe_coverage(self.rows.summary)}",
            self.flows_sentence,
            self.rest_sentence,
            self.days_sentence,
            describe_guarantee(self.rows.summary),
        ]
        return " ".join(part for part in parts if part)

    @property
    def num_omitted(self) -> int:
        """Number of flows, the smallest ones, that are not drawn."""
        return max(len(self.flows) - MAX_LINES, 0)

    @property
    def flows_sentence(self) -> str:
        """The numbers of flows and of those not drawn. Empty without a table of flows."""
        if not self.has_flows:
            return ""
        verb = "has" if len(self.flows) <= 1 else "have"
        cut = f" The {self.num_omitted:,} smallest of them are not drawn." if self.num_omitted else ""
        count = _format_count(len(self.flows), "flow") if self.flows else "No flow"
        return f"{count} between areas {verb} an interval above zero.{cut}"

    @property
    def rest_sentence(self) -> str:
        """The sum of the pairs of areas without a row. Empty if there are none."""
        if self.rest is None:
            return ""
        which = "The other" if self.flows else "All"
        if self.rest.low is None:
            return f"{which} pairs of areas (up to {self.rest.num_values:,} a day): together {self.rest} trips."
        return f"{which} {_format_count(self.rest.num_values, 'pair')} of areas: together {self.rest} trips."

    @property
    def days_sentence(self) -> str:
        """The meaning of numbers of daily tables. Empty for other tables."""
        if not (self.rows.columns["day"] != "").any():
            return ""
        return "Numbers are sums of the days on which they have a row. Sums of several days have no interval."

    @cached_property
    def visits(self) -> dict[str, int]:
        """Area → number of visits, of areas with an interval above zero."""
        return {name: number.whole for name, number in self.of_areas["visits"].items() if number.is_significant}

    @cached_property
    def box(self) -> tuple[float, float, float, float]:
        """South, west, north and east of the areas, in degrees. Longitudes may be beyond 180°."""
        points = np.concatenate([*(ring for _, ring in self.outlines), np.array(list(self.places.values()))])
        west, south = points.min(axis=0)
        east, north = points.max(axis=0)
        return float(south), float(west), float(north), float(east)


def describe_coverage(summary: Mapping[str, Any]) -> str:
    """Return the statement about the intervals of a file of flows, from its summary."""
    return (
        "All intervals of the file hold simultaneously with probability at least "
        f"{summary['interval_confidence']:.1%}, whichever of them a recipient selects.".replace(".0%", "%")
    )


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def describe_guarantee(summary: Mapping[str, Any]) -> str:
    """Return the guarantee of flow tables as sentences.

    Parameters
    ----------
    summary
        The summary of `dphmm.writers.FlowRows`.

    Returns
    -------
    str
        One sentence for each guarantee.
    """
    return " ".join(
        f"If one user, with all of their days, is added or removed, the likelihood ratio of any outcome of "
        f"{name.replace('_', ' ')} is {bound}."
        if bound.startswith("≤")
        else f"Guarantee for {name.replace('_', ' ')}: {bound}."
        for name, bound in _select_values(summary, "likelihood_ratio_").items()
    )


def _select_values(summary: Mapping[str, Any], prefix: str, suffix: str = "") -> dict[str, Any]:
    """Return the values of a summary with a prefix and a suffix, by the rest of the name."""
    return {
        name.removeprefix(prefix).removesuffix(suffix): value
        for name, value in summary.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }


def draw_flows(ax: Axes, rows: FlowRows) -> None:
    """Plot flows by width and visits as circles by area and colour on a basemap.

    A dot marks the origin of a flow.

    Parameters
    ----------
    ax
        Axes in kilometres east and north of the centre.
    rows
        Of tables of flows.
    """
    from matplotlib.collections import LineCollection, PolyCollection

    drawn = _PlottedFlows(rows)
    south, west, north, east = drawn.box
    projection = LocalProjection((south + north) / 2, wrap_longitude((west + east) / 2))

    def to_plane(degrees: FloatArray) -> FloatArray:
        return projection.to_plane(degrees[:, 1], wrap_longitude(degrees[:, 0]))

    margin = _MAP_MARGIN * max(north - south, east - west, 0.01)
    sides = (west - margin, east + margin), (max(south - margin, -90.0), min(north + margin, 90.0))
    set_limits(ax, to_plane(np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)))
    draw_basemap(ax, replace(build_world_basemap(extend_box(drawn.box, margin)), names=()), projection)
    rings = [to_plane(ring) for _, ring in drawn.outlines]
    ax.add_collection(PolyCollection(rings, facecolors="none", edgecolors=GREY, linewidths=0.5))
    handles = _draw_visits(ax, drawn, to_plane)
    if drawn.flows:
        order = np.argsort(drawn.counts)
        lines = [to_plane(line) for line in drawn.lines]
        widths = np.maximum(_MAX_WIDTH * drawn.counts / drawn.counts.max(), _MIN_WIDTH)
        strokes = [lines[at] for at in order]
        alpha = _MIN_ALPHA + (_MAX_ALPHA - _MIN_ALPHA) * widths / _MAX_WIDTH
        style: dict[str, Any] = {"linewidths": widths[order], "colors": RED, "alpha": alpha[order], "capstyle": "round"}
        ax.add_collection(LineCollection(strokes, **style))
        starts = np.array([line[1] for line in lines])
        ax.scatter(starts[:, 0], starts[:, 1], (widths + 1.5) ** 2, RED, zorder=3, linewidths=0)
    handles += _build_width_handles(drawn)
    by_area = drawn.of_areas["visits"] or drawn.of_areas["departures"]
    named = sorted(by_area, key=lambda area: -by_area[area].whole)[:_NAMED_AREAS]
    written = list[FloatArray]()
    for name, place in zip(
        named, to_plane(np.array([drawn.places[name] for name in named]).reshape(-1, 2)), strict=True
    ):
        gap = _NAME_SPACE * (ax.get_xlim()[1] - ax.get_xlim()[0])
        if all((np.abs(place - other) > gap).any() for other in written):
            written.append(place)
            # In front of the scale bar, which can lie on an area in the corner.
            ax.annotate(
                _shorten(name), place, fontsize=6.5, ha="center", color="#333", path_effects=build_halo(1.5), zorder=12
            )
    spacing = {"labelspacing": 2.0, "borderpad": 1.2}
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small", **spacing)
    draw_scale(ax)
    label_map(ax)


def _draw_visits(ax: Axes, drawn: _PlottedFlows, to_plane: Callable[[FloatArray], FloatArray]) -> list[Any]:
    """Plot visits as circles with an area in proportion, and return the entries of a legend."""
    from matplotlib.colors import ListedColormap
    from matplotlib.lines import Line2D

    if not drawn.visits:
        return []
    maximum = max(drawn.visits.values())
    colours = ListedColormap([colour for _, colour in reversed(_SHADES)])
    largest_first = sorted(drawn.visits, key=lambda area: -drawn.visits[area])
    places = to_plane(np.array([drawn.places[name] for name in largest_first]))
    numbers = np.array([drawn.visits[name] for name in largest_first])
    sizes = _MAX_CIRCLE**2 * numbers / maximum
    shades = np.array([_find_shade(number, maximum) for number in numbers])
    ax.scatter(
        places[:, 0],
        places[:, 1],
        sizes,
        c=shades,
        cmap=colours,
        vmin=0,
        vmax=len(_SHADES) - 1,
        alpha=0.75,
        lw=0.5,
        ec="white",
    )
    return [
        Line2D(
            [], [], ls="", marker="o", label=_format_count(number, "visit"), alpha=0.75, markeredgecolor="white",
            markersize=_MAX_CIRCLE * np.sqrt(number / maximum), color=colours(_find_shade(number, maximum)),
        )
        for number in _choose_examples(maximum)
    ]  # fmt: skip


def _find_shade(number: int, maximum: int) -> int:
    """Return the index of the shade of a number of visits, 0 for the lightest."""
    return next(len(_SHADES) - 1 - at for at, (part, _) in enumerate(_SHADES) if number >= -(-maximum // part))


def _shorten(name: str) -> str:
    """Cut a long name, which would cover other areas."""
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def _build_width_handles(drawn: _PlottedFlows) -> list[Any]:
    from matplotlib.lines import Line2D

    maximum = int(drawn.counts.max(initial=0))
    if not maximum:
        label = "no flow has an interval\nabove zero"
        return [Line2D([], [], ls="", label=label)] if drawn.has_flows else []
    omitted = [Line2D([], [], ls="", label=f"{drawn.num_omitted:,} smallest flows\nare not drawn")]
    return [
        Line2D(
            [],
            [],
            color=RED,
            alpha=_MAX_ALPHA,
            lw=max(_MAX_WIDTH * number / maximum, _MIN_WIDTH),
            label=_format_count(number, "trip"),
        )
        for number in _choose_examples(maximum)
    ] + (omitted if drawn.num_omitted else [])


def _choose_examples(maximum: int) -> list[int]:
    """Return the largest number, a half and a tenth of it, rounded to one digit, for a legend."""
    parts = [maximum / 2, maximum / 10]
    rounded = [int(float(f"{part:.0e}")) for part in parts if part >= 1]
    return list(dict.fromkeys([maximum, *rounded]))


def build_flow_map(rows: FlowRows, title: str = "Flows") -> str:
    """Return an offline HTML map of flows by width and visits as circles.

    Numbers with intervals are shown at the pointer.

    Parameters
    ----------
    rows
        Of tables of flows.
    title
        Title above the map.

    Returns
    -------
    str
        The HTML.
    """
    drawn = _PlottedFlows(rows)
    lines = [line[:, ::-1] for line in drawn.lines]
    counts = drawn.counts
    names = [name for name, _ in drawn.outlines]
    layers = [MapLayer("areas", "outlines", "#777777", [ring[:, ::-1] for _, ring in drawn.outlines], {"name": names})]
    layers += _build_visit_layers(drawn)
    maximum = int(counts.max()) if len(counts) else 0
    above = np.inf
    strokes = list[MapLayer]()
    for part, width in _LINE_WIDTHS:
        minimum = max(-(-maximum // part), 1)
        selected = [line for line, count in zip(lines, counts, strict=True) if minimum <= count < above]
        if selected:
            strokes.insert(
                0, MapLayer(f"flows: {_format_range(minimum, above)} trips", "strokes", RED, selected, width=width)
            )
        above = minimum
    pointed = [(*pair, str(number)) for pair, number in drawn.flows[:_MAX_LABELLED_FLOWS]]
    facts = {name: [flow[at] for flow in pointed] for at, name in enumerate(("from", "to", "trips"))}
    layers += strokes
    if pointed:
        layers.append(
            MapLayer("flows: point at one", "dots", RED, [line[8] for line in lines[:_MAX_LABELLED_FLOWS]], facts)
        )
    names = list(drawn.places)
    points = np.array(list(drawn.places.values()))[:, ::-1]
    values = {"area": names, **_describe_areas(drawn, names)}
    layers.append(MapLayer("areas: point at one", "dots", BLUE, points, values))
    return build_web_map(layers, title, drawn.note, basemap=build_world_basemap(extend_box(drawn.box, _WEB_MAP_MARGIN)))


def _build_visit_layers(drawn: _PlottedFlows) -> list[MapLayer]:
    """Return circles with an area in proportion to visits, by colour."""
    maximum = max(drawn.visits.values(), default=0)
    south, _, north, _ = drawn.box
    largest = _CIRCLE_SHARE * (north - south) * _METRES_PER_DEGREE
    layers = list[MapLayer]()
    above = np.inf
    for part, colour in _SHADES:
        minimum = max(-(-maximum // part), 1)
        selected = [name for name, number in drawn.visits.items() if minimum <= number < above]
        if selected:
            points = np.array([drawn.places[name] for name in selected])[:, ::-1]
            radii = largest * np.sqrt([drawn.visits[name] / maximum for name in selected])
            text = f"circles: {_format_range(minimum, above)} visits"
            layers.insert(0, MapLayer(text, "area", colour, points, radii=radii, opacity=_CIRCLE_OPACITY))
        above = minimum
    return layers


def _format_range(minimum: int, above: float) -> str:
    if np.isinf(above):
        return f"{minimum:,} and more"
    return f"{minimum:,}" if minimum == above - 1 else f"{minimum:,} to {int(above) - 1:,}"


def _describe_areas(drawn: _PlottedFlows, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of values shown for each area."""
    columns = {
        measure: [str(numbers[name]) if name in numbers else "" for name in names]
        for measure, numbers in drawn.of_areas.items()
        if numbers
    }
    ends = {"to": {name: list[str]() for name in names}, "from": {name: list[str]() for name in names}}
    for (origin, other), number in drawn.flows:
        ends["to"][origin].append(f"{other}: {number}")
        ends["from"][other].append(f"{origin}: {number}")
    for way, listed in ends.items():
        for place in range(_NUM_LISTED_FLOWS):
            lines = [listed[name][place] if place < len(listed[name]) else "" for name in names]
            if any(lines):
                columns[f"{way} ({place + 1})"] = lines
    return columns


@check_arguments
def show_flows(
    path: str | Path, output: str | Path | None = None, title: str | None = None, overwrite: bool = False
) -> Path:
    """Draw a file of flows, as ``dphmm show`` does.

    Parameters
    ----------
    path
        A .parquet or .json file that ``dphmm flows`` wrote.
    output
        A .png, .svg, .pdf or .html file. Defaults to an .html file next to `path`.
    title
        Title of the map. Defaults to the name of the file.
    overwrite
        Whether an existing file can be replaced.

    Returns
    -------
    Path
        The written file.

    Raises
    ------
    ConfigurationError
        When the extension is not supported.
    OutputError, DataFileError, MissingDependencyError
        When a file cannot be written or read, or matplotlib is missing.
    """
    where = Path(path).with_suffix(".html") if output is None else Path(output)
    page = is_page(where)
    check_output(where, overwrite)
    rows = FlowRows.read(path)
    named = replace_surrogates(title or f"Flows of {Path(path).name}")
    if page:
        write_text(where, build_flow_map(rows, named), overwrite)
        return where
    figure, ax = create_figure(9.0, 8.0)
    draw_flows(ax, rows)
    ax.set_title(named)
    save_picture(figure, where, overwrite, private=False)
    return where


def build_flow_report(rows: FlowRows, title: str = "Flows") -> str:
    """Return a one-page HTML report of the guarantee and the largest numbers.

    Parameters
    ----------
    rows
        Of tables of flows.
    title
        Heading of the page.

    Returns
    -------
    str
        HTML without external resources.
    """
    drawn = _PlottedFlows(rows)
    summary = rows.summary
    figure, ax = create_figure(7.5, 5.0)
    draw_flows(ax, rows)
    counted = _select_values(summary, "max_", "_per_user")
    paid = [f"{part} for {of}" for of, part in summary["spent_on"].items()]
    public = [
        f"At most {_format_count(int(number), unit.removesuffix('s'))} of each user "
        f"{'counts' if number == '1' else 'count'}{scope and f' {scope}'}."
        for unit, maximum in counted.items()
        for number, _, scope in [str(maximum).partition(" ")]
    ]
    sections = [
        Section(
            "Guarantee",
            points=[
                *public,
                f"The {summary['num_areas']} areas, the time classes and all settings are assumed to be public.",
                "Every cell has exact noise, including empty cells.",
                f"{describe_coverage(summary)} They are for the counted events only.",
                "A number has a row if its interval is above zero, or if it is the only one of its level. All other "
                "numbers of a level are in one sum.",
                "Counts are non-negative, with consistent sums within a table. This is biased: small counts, and sums "
                "of many of them, are too large on average. The file also contains estimates without this constraint.",
                "Not covered: statements about groups of users as a whole, other tables of the same users "
                "(epsilons add up), and trips that did not count.",
            ],
        ),
        Section(
            "Largest flows",
            paragraphs=[
                " ".join(filter(None, (drawn.flows_sentence, drawn.rest_sentence, drawn.days_sentence)))
                if drawn.has_flows
                else "Flows were not counted."
            ],
            header=("from", "to", "trips"),
            rows=[(*pair, str(number)) for pair, number in drawn.flows[:_NUM_REPORT_FLOWS]],
            pictures=[
                Picture(
                    render_png(figure, 120),
                    "Lines: flows with an interval above zero, by width, from a dot at the origin. Circles: visits, by "
                    "area and colour.",
                    wide=True,
                )
            ],
        ),
        Section("Median half width of the intervals", header=("table", "by level"), rows=_describe_half_widths(rows)),
        Section("Epsilon spent", [f"Total epsilon {summary['epsilon']}: {', '.join(paid)}."]),
    ]
    is_private = summary["randomness"] == "system"
    banner = "" if is_private else "No privacy guarantee: the noise is seeded and can be reproduced."
    return html_page(title, describe_guarantee(summary), not is_private, sections, banner)


def _describe_half_widths(rows: FlowRows) -> list[tuple[str, str]]:
    rows_of_table = []
    columns = rows.columns
    for table, unit in get_units(dict.fromkeys(columns["table"].tolist())).items():
        levels = []
        for level in dict.fromkeys(columns["level"][columns["table"] == table].tolist()):
            mask = (columns["table"] == table) & (columns["level"] == level)
            half = np.maximum(columns["high"] - columns["count"], columns["count"] - columns["low"])[mask]
            levels.append(f"{level} ± {float(np.median(half)):,.0f} ({_format_count(int(mask.sum()), 'number')})")
        rows_of_table.append((f"{table} ({unit})", "; ".join(levels)))
    return rows_of_table
