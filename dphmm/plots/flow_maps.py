"""Tables of flows as a picture, as a map for the browser, and as a page for the colleague who signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.flows.noisy_tables import units_of
from dphmm.plots.basemap import polygons, shipped_basemap
from dphmm.plots.figures import BLUE, GREY, ORANGE, RED, Axes, is_page, label_map, new_figure, png, save_picture
from dphmm.plots.webmap import MapLayer, web_map
from dphmm.reports import Picture, Section, html_page
from dphmm.tables import check_output, write_text
from dphmm.tables.values import writable
from dphmm.writers.flow_files import MEASURES, FlowRows

MOST_LINES = 2000
"""The largest flows that are drawn."""

_POINTED, _LISTED, _IN_REPORT = 300, 5, 8
_BEND, _CURVE = 0.15, np.linspace(0.0, 1.0, 13)[:, None]
_WIDEST = 9.0
_CLASSES = ((2, 9.0), (4, 6.0), (8, 4.0), (16, 2.5), (10**9, 1.2))
"""By which part of the largest flow lines are how wide, in pixels of the map for the browser."""


class _Drawn:
    """What of the rows is drawn: numbers by area, and flows that are surely more than noise, the largest first."""

    def __init__(self, rows: FlowRows) -> None:
        self.rows, self.places = rows, rows.places
        self.of_areas = {
            what: {key[0]: number for key, number in rows.numbers(table, levels, column).items()}
            for what, (table, column, levels) in MEASURES.items()
        }
        found = rows.numbers("flows", ("area in all", "area"), "area", "to")
        self.of_areas["trips within"] = {key[0]: number for key, number in found.items() if key[0] == key[1]}
        moving = [(key, number) for key, number in found.items() if key[0] != key[1] and number.whole > 0]
        self.unsure = sum(not number.sure for _, number in moving)
        self.flows = sorted((one for one in moving if one[1].sure), key=lambda one: -one[1].whole)

    @property
    def counts(self) -> IntArray:
        """Of the flows that are drawn."""
        return np.array([number.whole for _, number in self.flows[:MOST_LINES]], dtype=np.int64)

    @cached_property
    def lines(self) -> list[FloatArray]:
        """Bent to one side, so that both ways are seen: ``(k, 2)`` longitude and latitude each."""
        lines = []
        for (one, other), _ in self.flows[:MOST_LINES]:
            start, end = np.array(self.places[one]), np.array(self.places[other])
            along = end - start
            bend = (start + end) / 2 + _BEND * np.array([along[1], -along[0]])
            lines.append((1 - _CURVE) ** 2 * start + 2 * _CURVE * (1 - _CURVE) * bend + _CURVE**2 * end)
        return lines

    @cached_property
    def outlines(self) -> list[tuple[str, FloatArray]]:
        """Outer rings of the areas, ``(k, 2)`` longitude and latitude each, and whose each is."""
        shapes = [(one["properties"]["name"], one["geometry"]) for one in self.rows.features]
        parts = [(name, part) for name, given in shapes for part in polygons(shapely.geometry.shape(given))]
        return [(name, shapely.get_coordinates(part.exterior)) for name, part in parts]

    @property
    def note(self) -> str:
        """What is on the map, and its promise."""
        left = len(self.flows) - MOST_LINES
        cut = f" The {left:,} smallest of them are not drawn." if left > 0 else ""
        drawn = (
            f"{len(self.flows):,} flows between areas are surely more than noise; {self.unsure:,} others are not drawn."
        )
        return f"Counts with noise, and intervals. {drawn}{cut} {promise_in_words(self.rows.facts)}"


def promise_in_words(facts: Mapping[str, Any]) -> str:
    """The promise that the facts of tables of flows hold, as sentences.

    Parameters
    ----------
    facts
        Of `dphmm.writers.FlowRows`.

    Returns
    -------
    str
        One sentence for each promise.
    """
    return " ".join(
        f"With one person more or less, with all their days, any outcome of {name.replace('_', ' ')} is {said}."
        if said.startswith("at most")
        else f"Of {name.replace('_', ' ')} this promises {said}."
        for name, said in _by_unit(facts, "_with_one_person_more_or_less").items()
    )


def _by_unit(facts: Mapping[str, Any], end: str) -> dict[str, Any]:
    """The facts whose names end so, by the rest of their names."""
    return {name.removesuffix(end): said for name, said in facts.items() if name.endswith(end)}


def draw_flows(ax: Axes, rows: FlowRows) -> None:
    """Areas, and flows between them as lines by width; of a line the end without a dot is where it leads.

    Parameters
    ----------
    ax
        Longitudes and latitudes.
    rows
        Of tables of flows.
    """
    from matplotlib.collections import LineCollection, PolyCollection

    drawn = _Drawn(rows)
    visits = {name: number.whole * number.sure for name, number in drawn.of_areas["visits"].items()}
    shades = np.array([visits.get(name, 0) for name, _ in drawn.outlines]) / max(*visits.values(), 1, 1)
    fill = [(0.0, 0.45, 0.7, 0.5 * shade) for shade in shades]  # the blue of all pictures, by visits
    rings = [ring for _, ring in drawn.outlines]
    ax.add_collection(PolyCollection(rings, facecolors=fill, edgecolors=GREY, linewidths=0.6))
    counts = drawn.counts
    if len(counts):
        order = np.argsort(counts)
        widths = 0.4 + _WIDEST * 0.7 * counts / counts.max()
        lines = LineCollection(
            [drawn.lines[at] for at in order], linewidths=widths[order], colors=ORANGE, alpha=0.55, capstyle="round"
        )
        ax.add_collection(lines)
        starts = np.array([line[1] for line in drawn.lines])
        ax.scatter(starts[:, 0], starts[:, 1], np.maximum(widths, 2) ** 1.3, ORANGE, zorder=3, linewidths=0)
    by_area = drawn.of_areas["departures"] or drawn.of_areas["visits"]
    for name in sorted(by_area, key=lambda one: -by_area[one].whole)[:12]:
        ax.annotate(name, drawn.places[name], fontsize=7, ha="center", color="#333")
    ax.autoscale_view()
    low, high = ax.get_ylim()
    ax.set_aspect(1 / np.cos(np.radians((low + high) / 2)))
    label_map(ax)
    ax.set(xlabel="longitude", ylabel="latitude")


def flow_map(rows: FlowRows, title: str = "Where people go") -> str:
    """A page with a map that needs no network: lines by width, and numbers with their intervals at the pointer.

    Parameters
    ----------
    rows
        Of tables of flows.
    title
        Above the map.

    Returns
    -------
    str
        The HTML.
    """
    drawn = _Drawn(rows)
    lines = [line[:, ::-1] for line in drawn.lines]
    counts, names = drawn.counts, [name for name, _ in drawn.outlines]
    layers = [MapLayer("areas", "outlines", "#777777", [ring[:, ::-1] for _, ring in drawn.outlines], {"name": names})]
    most, above = (int(counts.max()) if len(counts) else 0), np.inf
    for part, width in _CLASSES:
        least = max(-(-most // part), 1)
        some = [line for line, count in zip(lines, counts, strict=True) if least <= count < above]
        if some:
            layers.insert(1, MapLayer(f"flows of {least:,} and more", "strokes", RED, some, width=width))
        above = least
    pointed = [(*pair, str(number)) for pair, number in drawn.flows[:_POINTED]]
    facts = {name: [one[at] for one in pointed] for at, name in enumerate(("from", "to", "trips"))}
    layers.append(MapLayer("flows: point at one", "dots", RED, [line[8] for line in lines[:_POINTED]], facts))
    names, points = list(drawn.places), np.array(list(drawn.places.values()))[:, ::-1]
    layers.append(MapLayer("areas: point at one", "dots", BLUE, points, {"area": names, **_told(drawn, names)}))
    (south, west), (north, east) = points.min(axis=0) - 0.5, points.max(axis=0) + 0.5
    box = (max(float(south), -90.0), max(float(west), -180.0), min(float(north), 90.0), min(float(east), 180.0))
    return web_map(layers, title, drawn.note, basemap=shipped_basemap(box))


def _told(drawn: _Drawn, names: Sequence[str]) -> dict[str, list[str]]:
    """What is said of each area."""
    told = {what: [str(of[name]) if name in of else "" for name in names] for what, of in drawn.of_areas.items() if of}
    ends = {"to": {name: list[str]() for name in names}, "from": {name: list[str]() for name in names}}
    for (one, other), number in drawn.flows:
        ends["to"][one].append(f"{other}: {number}")
        ends["from"][other].append(f"{one}: {number}")
    for way, listed in ends.items():
        for place in range(_LISTED):
            lines = [listed[name][place] if place < len(listed[name]) else "" for name in names]
            if any(lines):
                told[f"{way} ({place + 1})"] = lines
    return told


@checked
def show_flows(
    path: str | Path, output: str | Path | None = None, title: str | None = None, overwrite: bool = False
) -> Path:
    """Draw a file of flows, as ``dphmm show`` does.

    Parameters
    ----------
    path
        A .parquet or .json file that ``dphmm flows`` wrote.
    output
        A .png, .svg, .pdf or .html file; left out, an .html file beside it.
    title
        Of the map; left out, it is called after the file.
    overwrite
        Whether a file that exists may be replaced.

    Returns
    -------
    Path
        What was written.

    Raises
    ------
    ConfigurationError
        For another ending.
    OutputError, DataFileError, MissingDependencyError
        When a file cannot be written or read, or without matplotlib.
    """
    where = Path(path).with_suffix(".html") if output is None else Path(output)
    page = is_page(where)
    check_output(where, overwrite)
    rows, named = FlowRows.read(path), writable(title or f"Flows of {Path(path).name}")
    if page:
        write_text(where, flow_map(rows, named), overwrite)
        return where
    figure, ax = new_figure(9.0, 8.0)
    draw_flows(ax, rows)
    ax.set_title(named)
    save_picture(figure, where, overwrite, private=False)
    return where


def flow_report(rows: FlowRows, title: str = "Where people go") -> str:
    """One page for the colleague who signs: the promise, what it cost, the largest numbers and how certain they are.

    Parameters
    ----------
    rows
        Of tables of flows.
    title
        Its heading.

    Returns
    -------
    str
        HTML that loads nothing.
    """
    drawn, facts = _Drawn(rows), rows.facts
    figure, ax = new_figure(6.0, 4.2)
    draw_flows(ax, rows)
    counted, kept = (_by_unit(facts, end) for end in ("_of_a_person_that_count", "_that_count_share"))
    paid = [f"{part} for {of}" for of, part in facts["spent_on"].items()]
    public = [
        f"Of each person at most {most} {unit} count"
        + (f", by noisy numbers about {kept[unit]:.0%} of all." if unit in kept else "; this was given.")
        for unit, most in counted.items()
    ]
    sections = [
        Section(
            "What is promised",
            points=[
                *public,
                f"There are {facts['areas']} areas; they, the classes of time and all settings are taken to be public.",
                "Every cell has exact noise, the empty ones too. Intervals are about what counts, at their confidence.",
                "Counts are not negative, and all sums agree. That has a bias: small ones are too large on average. "
                "The file has estimates without bias beside them.",
                "Not promised: anything about groups of people as a whole, about other tables of the same people "
                "(their epsilons add up), or about trips that did not count.",
            ],
        ),
        Section(
            "The largest flows that are surely more than noise",
            paragraphs=[
                f"Of {len(drawn.flows) + drawn.unsure:,} flows between areas that are not zero, "
                f"{len(drawn.flows):,} are surely more than noise, all of them at once. The others are not shown."
            ],
            header=("from", "to", "trips"),
            rows=[(*pair, str(number)) for pair, number in drawn.flows[:_IN_REPORT]],
            pictures=[Picture(png(figure, 120), "Flows by width, from the dot on; areas by visits, both where sure.")],
        ),
        Section("How certain the numbers are: their median ±", header=("table", "by level"), rows=_certain(rows)),
        Section("What it cost", [f"Epsilon {facts['epsilon']} in all: {', '.join(paid)}."]),
    ]
    is_private = facts["randomness"] == "system"
    banner = "" if is_private else "The noise follows from a seed: nothing is hidden."
    return html_page(title, promise_in_words(facts), not is_private, sections, banner)


def _certain(rows: FlowRows) -> list[tuple[str, str]]:
    found, columns = [], rows.columns
    for table, unit in units_of(dict.fromkeys(columns["table"].tolist())).items():
        levels = []
        for level in dict.fromkeys(columns["level"][columns["table"] == table].tolist()):
            some = (columns["table"] == table) & (columns["level"] == level)
            half = np.maximum(columns["high"] - columns["count"], columns["count"] - columns["low"])[some]
            levels.append(f"{level} ± {float(np.median(half)):,.0f} ({int(some.sum()):,} numbers)")
        found.append((f"{table} ({unit})", "; ".join(levels)))
    return found
