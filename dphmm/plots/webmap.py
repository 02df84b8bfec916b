"""A map as one HTML file that needs no network: Leaflet, which the package holds, and columns in few bytes.

Columns are written as the page's script reads them: whole numbers, as differences in as few bytes as they need, in
base64. A number takes seven bits a byte, the lowest first; the eighth says that more follow. Its sign is its lowest
bit.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import as_points
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.plots.basemap import Basemap, coded_basemap

DEGREES = 1e-5
"""The step of latitudes and longitudes: about a metre."""
_LARGEST = 2**52
"""Beyond it a script's numbers are not whole."""


def coded_numbers(values: npt.ArrayLike, step: float = 1.0, brief: bool = True) -> dict[str, Any]:
    """A column ``(n,)`` of numbers, rounded to multiples of a step.

    Parameters
    ----------
    values
        The numbers; NaN where there is none.
    step
        Of what they are multiples.
    brief
        Whether a number that all rows have is told once.

    Returns
    -------
    dict
        ``step``; ``all`` where the rows are equal, as that number of steps, otherwise ``code``; where some are NaN,
        ``gaps``: how many rows have a value, how many then have none, and so on, coded like the rest. The code leaves
        out the rows that have none.

    Raises
    ------
    InvalidInputError
        When a number is infinite, or more than 2**52 steps.
    """
    given = np.asarray(values, dtype=np.float64).ravel()
    known = ~np.isnan(given)
    with np.errstate(over="ignore"):
        steps = np.round(given[known] / step)
    if not (np.abs(steps) <= _LARGEST).all():
        raise InvalidInputError("a number of the map is not finite or too large; leave it out")
    whole = steps.astype(np.int64)
    told: dict[str, Any] = {"step": step}
    if not known.all():
        turns = np.flatnonzero(np.diff(np.concatenate([[True], known, [not known[-1]]]).astype(np.int8)))
        told["gaps"] = _code(np.diff(turns, prepend=0))
    if brief and len(whole) and (whole == whole[0]).all():
        return {**told, "all": int(whole[0])}
    return {**told, "code": _code(whole)}


def coded_texts(texts: npt.ArrayLike) -> dict[str, Any]:
    """A column ``(n,)`` of texts: ``words``, each once, and which one every row has, as `coded_numbers` has it.

    Parameters
    ----------
    texts
        The texts.

    Returns
    -------
    dict
        ``words`` and ``rows``.
    """
    words, rows = np.unique(np.asarray(texts, dtype=np.str_), return_inverse=True)
    return {"words": words.tolist(), "rows": coded_numbers(rows)}


def coded_lines(lines: Any) -> dict[str, Any]:
    """Lines or rings, each ``(k, 2)`` latitudes and longitudes: how long each is, and their points one after another.

    Parameters
    ----------
    lines
        Arrays ``(k, 2)`` in degrees.

    Returns
    -------
    dict
        How many lines and points, their ``lengths``, and all points as columns.

    Raises
    ------
    InvalidInputError
        When one is no such array, or a number is not finite.
    """
    arrays = [np.asarray(line, dtype=np.float64) for line in lines]
    if any(array.ndim != 2 or array.shape[1] != 2 for array in arrays):
        raise InvalidInputError("a line of the map is no array of latitudes and longitudes; give two columns")
    points = np.concatenate(arrays) if arrays else np.zeros((0, 2))
    if np.isnan(points).any():
        raise InvalidInputError("a point of the map is not finite; leave it out")
    return {
        "n": len(arrays),
        "points": len(points),
        "lengths": coded_numbers([len(array) for array in arrays]),
        **_coded_places(points),
    }


def _coded_places(points: npt.NDArray[Any]) -> dict[str, Any]:
    """Latitudes and longitudes ``(n, 2)`` as columns."""
    return {"latitude": coded_numbers(points[:, 0], DEGREES), "longitude": coded_numbers(points[:, 1], DEGREES)}


def _code(whole: npt.NDArray[np.int64]) -> str:
    """The differences of whole numbers in base64."""
    moves = np.diff(whole, prepend=np.int64(0))
    left = ((moves << 1) ^ (moves >> 63)).astype(np.uint64)
    bytes_needed = np.ones(len(left), dtype=np.int64)
    for power in range(1, 9):
        bytes_needed += left >= np.uint64(1 << (7 * power))
    ends = np.cumsum(bytes_needed)
    written = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    starts = ends - bytes_needed
    for place in range(int(bytes_needed.max(initial=0))):
        rows = np.flatnonzero(bytes_needed > place)
        part = (left[rows] >> np.uint64(7 * place)) & np.uint64(127)
        more = (bytes_needed[rows] > place + 1).astype(np.uint64) << np.uint64(7)
        written[starts[rows] + place] = (part | more).astype(np.uint8)
    return base64.b64encode(written.tobytes()).decode("ascii")


_CODE = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_MARK = re.compile(r"\{\{(?:title|note|data|tiles|style|leaflet_style|leaflet|script)\}\}")
_FACT_STEP, _EXACT = 1e-6, 1e-9
"""Numbers told of a point are rounded to such a step; a coarser one serves where that is no more than so off."""
_SHARED = 200
"""Codes of at least this many letters that occur again are written once."""


@dataclass(frozen=True, eq=False)
class MapLayer:
    """One thing on the map that the reader can switch on and off.

    Parameters
    ----------
    name
        As the legend calls it.
    kind
        ``"dots"``; a ``"line"`` through each user's points in the order of time, broken between trips; ``"outlines"``,
        closed rings; or ``"strokes"``, open lines.
    colour
        A CSS colour.
    points
        Shape ``(n, 2)``, latitude and longitude in degrees; for outlines and strokes a sequence of such arrays.
    facts
        Name → a value for each point, numbers (NaN: none) or texts, shown when the pointer is on it. For outlines the
        name ``name`` alone: a label for each ring.
    users
        One user per point, by which the map can be narrowed down; left out, the layer belongs to everyone.
    times
        One moment per point, as ``datetime64``, by which the map is narrowed down to days; only with users.
    radii
        How far off each point is, in metres, drawn as circles around a few (NaN: unknown).
    trips
        A whole number per point, the same for the points of a trip; left out, a user has one trip.
    by_time
        Whether the colour of a line tells the time; otherwise all of it has the layer's.
    visible
        Whether it is switched on at first.
    width
        How wide strokes are, in pixels; 0 for thin ones.
    """

    name: str
    kind: Literal["dots", "line", "outlines", "strokes"]
    colour: str
    points: Any
    facts: Mapping[str, npt.ArrayLike] = field(default_factory=dict)
    users: npt.ArrayLike = ()
    times: npt.ArrayLike = ()
    radii: npt.ArrayLike = ()
    trips: npt.ArrayLike = ()
    by_time: bool = False
    visible: bool = True
    width: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The layer as the page's script reads it: rows by user and time, columns in few bytes.

        Returns
        -------
        dict
            What JSON can hold.

        Raises
        ------
        InvalidInputError
            When facts, users or times are there but not one per point, or a point is not finite.
        """
        told = {name: getattr(self, name) for name in ("name", "kind", "colour", "by_time", "visible")}
        if self.kind in ("outlines", "strokes"):
            labels = [str(label) for label in np.asarray(self.facts.get("name", ())).tolist()]
            self._check("facts", len(labels), len(self.points))
            return {**told, **coded_lines(self.points), "labels": labels, "width": self.width}
        points = as_points(self.points) if np.size(self.points) else np.zeros((0, 2))
        if points.shape[1:] != (2,):
            raise InvalidInputError(f"layer {self.name!r} has points of shape {points.shape}; give two columns")
        columns = {name: np.asarray(getattr(self, name)) for name in ("users", "times", "radii", "trips")}
        for name, column in columns.items():
            self._check(name, len(column), len(points))
        if len(columns["times"]) and not len(columns["users"]):
            raise InvalidInputError(f"layer {self.name!r} has times without users; give both")
        order = self._order(columns["users"], columns["times"])
        told |= {"n": len(points), **_coded_places(points[order])}
        if len(columns["users"]):
            told["users"] = coded_texts(columns["users"][order])
        if len(columns["times"]):
            seconds = columns["times"][order].astype("datetime64[s]").astype(np.int64)
            told["times"] = coded_numbers(seconds, max(1, int(np.gcd.reduce(seconds))))
        if len(columns["radii"]):
            told["radii"] = coded_numbers(columns["radii"][order])
        if len(columns["trips"]):
            told["trips"] = coded_numbers(1 + np.flatnonzero(np.diff(columns["trips"][order])), brief=False)["code"]
        told["facts"] = []
        for name, given in self.facts.items():
            column = np.asarray(given)
            self._check("facts", len(column), len(points))
            told["facts"].append({"name": name, **_fact(name, column[order])})
        return told

    def _check(self, what: str, given: int, points: int) -> None:
        if given not in (0, points):
            raise InvalidInputError(f"layer {self.name!r} has {points} points and {given} {what}; give each")

    def _order(self, users: npt.NDArray[Any], times: npt.NDArray[Any]) -> Any:
        if not len(users):
            return slice(None)
        _, number = np.unique(users.astype(np.str_), return_inverse=True)
        return np.lexsort((times, number)) if len(times) else np.argsort(number, kind="stable")


@dataclass(frozen=True, eq=False)
class MapPolicy:
    """A policy on the map: whom each state is indistinguishable from, and the shape of the noise, once and to scale.

    Parameters
    ----------
    states
        ``(N, 2)`` latitudes and longitudes.
    edges
        ``(m, 2)`` pairs of states; left out, they are too many to draw.
    hull
        ``(k, 2)`` corners of the sensitivity hull, kilometres east and north of its centre; empty where it has none.
    error_m
        How far a release is off, root mean square, in metres; NaN where that is not known.
    text
        What is said of it.
    """

    states: npt.ArrayLike
    edges: npt.ArrayLike = ()
    hull: npt.ArrayLike = ()
    error_m: float = float("nan")
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """The policy as the page's script reads it.

        Returns
        -------
        dict
            What JSON can hold.
        """
        states, edges = np.asarray(self.states, dtype=np.float64), np.asarray(self.edges, dtype=np.int64).reshape(-1, 2)
        first, second = edges[np.lexsort((edges[:, 1], edges[:, 0]))].T
        hull = np.asarray(self.hull, dtype=np.float64).reshape(-1, 2)
        return {
            "n": len(states),
            **_coded_places(states),
            "from": coded_numbers(first),
            "to": coded_numbers(second),
            "edges": len(edges),
            "hull": np.round(hull, 6).tolist(),
            "error": round(self.error_m, 3) if np.isfinite(self.error_m) else None,
            "text": self.text,
        }


@checked
def web_map(
    layers: Sequence[MapLayer],
    title: str,
    note: str = "",
    *,
    basemap: Basemap | None = None,
    policy: MapPolicy | None = None,
    tiles: str | None = None,
    credit: str = "",
) -> str:
    """A page with a map that can be moved, zoomed, narrowed down to a person's day and played through time.

    It begins with the fullest day of the first user. Many points are drawn as hexagons by how many they hold.

    Parameters
    ----------
    layers
        From the lowest to the topmost.
    title, note
        Plain text; the note stands under the title and should say what is on the map and how private it is.
    basemap
        What is drawn below.
    policy
        Whom each state is indistinguishable from, and the shape of the noise.
    tiles
        The address of a server of tiles, as ``https://host/{z}/{x}/{y}.png``. The browser of the page then tells that
        server which part of the world they look at.
    credit
        Whose tiles these are.

    Returns
    -------
    str
        The HTML. Its own policy forbids the browser every request but those for tiles.

    Raises
    ------
    ConfigurationError
        When the tiles' address is none.
    InvalidInputError
        As `MapLayer.to_json`.
    """
    codes: list[str] = []
    data = {
        "layers": _once([layer.to_json() for layer in layers], codes),
        "codes": codes,
        "basemap": None if basemap is None else coded_basemap(basemap),
        "policy": None if policy is None else policy.to_json(),
        "tiles": tiles,
        "credit": credit if tiles else "",
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts = {
        "{{title}}": html.escape(title),
        "{{note}}": html.escape(note),
        "{{data}}": text.replace("<", "\\u003c"),  # inside <script> only '<' could end the data early
        "{{tiles}}": "" if tiles is None else f" {tile_host(tiles)}",
        "{{style}}": _file("plots/webmap.css"),
        "{{script}}": _file("plots/webmap.js"),
        "{{leaflet}}": _file("vendor/leaflet/leaflet.js").partition("//# sourceMappingURL")[0],
        "{{leaflet_style}}": _file("vendor/leaflet/leaflet.css"),
    }
    return _MARK.sub(lambda mark: parts[mark[0]], _file("plots/webmap.html"))


@checked
def tile_host(address: str) -> str:
    """The scheme and host of a server of tiles, as a page's policy names it.

    Parameters
    ----------
    address
        With ``{z}``, ``{x}`` and ``{y}``.

    Returns
    -------
    str
        Such as ``https://host``.

    Raises
    ------
    ConfigurationError
        When the address has none, or does not say where zoom, column and row go.
    """
    parts = urlsplit(address)
    whole = all(mark in address for mark in ("{z}", "{x}", "{y}"))
    named = re.fullmatch(r"[\w.:\[\]-]+", parts.netloc, re.ASCII)
    if parts.scheme not in ("http", "https") or not named or not whole:
        raise ConfigurationError(f"tiles is {address!r}; give an address such as https://host/{{z}}/{{x}}/{{y}}.png")
    return f"{parts.scheme}://{parts.netloc}"


def _file(name: str) -> str:
    return files("dphmm").joinpath(name).read_text(encoding="utf-8")


def _fact(name: str, column: npt.NDArray[Any]) -> dict[str, Any]:
    """A column of facts: texts by words, numbers by their unit's step."""
    if column.dtype.kind in "OUSb":
        return coded_texts(column.astype(np.str_))
    finite = np.where(np.isfinite(column.astype(np.float64)), column, np.nan)
    if name.endswith("_m"):
        return coded_numbers(finite)
    known = finite[~np.isnan(finite)]
    steps = (step for step in (1.0, 0.1, 0.01, 0.001) if (np.abs(np.round(known / step) * step - known) < _EXACT).all())
    return coded_numbers(finite, next(steps, _FACT_STEP))


def _once(value: Any, codes: list[str]) -> Any:
    """A value in which long codes are numbers of a list of them, which two layers of the same moments share."""
    if isinstance(value, dict):
        return {key: _once(one, codes) for key, one in value.items()}
    if isinstance(value, list):
        return [_once(one, codes) for one in value]
    if not isinstance(value, str) or len(value) < _SHARED or not _CODE.fullmatch(value):
        return value
    if value not in codes:
        codes.append(value)
    return codes.index(value)
