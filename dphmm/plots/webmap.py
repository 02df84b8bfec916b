"""Interactive maps in one offline HTML file, with Leaflet and compressed columns.

Columns contain integers, stored as differences of variable length in base64. A byte contains seven bits of a number,
the lowest bits first; its eighth bit marks that more bytes follow. The lowest bit of a number is its sign.
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

from dphmm.arrays import as_points
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.plots.basemap import Basemap, encode_basemap
from dphmm.validation import check_arguments

# The resolution of latitudes and longitudes: about a metre.
DEGREES = 1e-5

# Integers of the script are exact up to this number.
_MAX_CODED = 2**52


def encode_numbers(values: npt.ArrayLike, step: float = 1.0, allow_constant: bool = True) -> dict[str, Any]:
    """Encode a column ``(n,)`` of numbers, rounded to multiples of a step.

    Parameters
    ----------
    values
        The numbers; missing ones are NaN.
    step
        The step.
    allow_constant
        Whether a number shared by all rows is stored once.

    Returns
    -------
    dict
        ``step``; ``all``, the number of steps, if all rows are equal, otherwise ``code``. If there are NaN, ``gaps``
        contains the lengths of alternating runs of numbers and NaN, encoded in the same way. The code omits NaN.

    Raises
    ------
    InvalidInputError
        If a number is infinite, or larger than 2**52 steps.
    """
    numbers = np.asarray(values, dtype=np.float64).ravel()
    is_number = ~np.isnan(numbers)
    with np.errstate(over="ignore"):
        steps = np.round(numbers[is_number] / step)
    if not (np.abs(steps) <= _MAX_CODED).all():
        raise InvalidInputError("numbers of a map must be finite and within 2**52 steps")
    integers = steps.astype(np.int64)
    column: dict[str, Any] = {"step": step}
    if not is_number.all():
        changes = np.diff(np.concatenate([[True], is_number, [not is_number[-1]]]).astype(np.int8))
        column["gaps"] = _encode_integers(np.diff(np.flatnonzero(changes), prepend=0))
    if allow_constant and len(integers) and (integers == integers[0]).all():
        return {**column, "all": int(integers[0])}
    return {**column, "code": _encode_integers(integers)}


def encode_texts(texts: npt.ArrayLike) -> dict[str, Any]:
    """Encode a column ``(n,)`` of strings as distinct ``words`` and the index of each row.

    Parameters
    ----------
    texts
        The strings.

    Returns
    -------
    dict
        ``words``, and ``rows`` as of `encode_numbers`.
    """
    words, rows = np.unique(np.asarray(texts, dtype=np.str_), return_inverse=True)
    return {"words": words.tolist(), "rows": encode_numbers(rows)}


def encode_lines(lines: Any) -> dict[str, Any]:
    """Encode lines or rings ``(k, 2)`` as lengths and concatenated points.

    Parameters
    ----------
    lines
        Arrays ``(k, 2)`` in degrees.

    Returns
    -------
    dict
        The numbers of lines and points, their ``lengths``, and all points as columns.

    Raises
    ------
    InvalidInputError
        If an array has another shape, or a number is not finite.
    """
    arrays = [np.asarray(line, dtype=np.float64) for line in lines]
    if any(array.ndim != 2 or array.shape[1] != 2 for array in arrays):
        raise InvalidInputError("lines of a map must be arrays of two columns, latitude and longitude")
    points = np.concatenate(arrays) if arrays else np.zeros((0, 2))
    if np.isnan(points).any():
        raise InvalidInputError("points of a map must be finite")
    return {
        "n": len(arrays),
        "points": len(points),
        "lengths": encode_numbers([len(array) for array in arrays]),
        **_encode_points(points),
    }


def _encode_points(points: npt.NDArray[Any]) -> dict[str, Any]:
    """Encode latitudes and longitudes ``(n, 2)`` as columns."""
    return {"latitude": encode_numbers(points[:, 0], DEGREES), "longitude": encode_numbers(points[:, 1], DEGREES)}


def _encode_integers(integers: npt.NDArray[np.int64]) -> str:
    """Encode the differences of integers in base64."""
    moves = np.diff(integers, prepend=np.int64(0))
    unsigned = ((moves << 1) ^ (moves >> 63)).astype(np.uint64)
    bytes_needed = np.ones(len(unsigned), dtype=np.int64)
    for power in range(1, 9):
        bytes_needed += unsigned >= np.uint64(1 << (7 * power))
    ends = np.cumsum(bytes_needed)
    encoded = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    starts = ends - bytes_needed
    for index in range(int(bytes_needed.max(initial=0))):
        rows = np.flatnonzero(bytes_needed > index)
        bits = (unsigned[rows] >> np.uint64(7 * index)) & np.uint64(127)
        continues = (bytes_needed[rows] > index + 1).astype(np.uint64) << np.uint64(7)
        encoded[starts[rows] + index] = (bits | continues).astype(np.uint8)
    return base64.b64encode(encoded.tobytes()).decode("ascii")


_CODE = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_MARK = re.compile(r"\{\{(?:title|note|data|tiles|style|leaflet_style|leaflet|script)\}\}")

# Numbers of a point are rounded to this step, or to a coarser one if the rounding error is within the tolerance.
_FACT_STEP = 1e-6
_STEP_TOLERANCE = 1e-9

# Repeated codes of at least this length are stored once.
_MIN_SHARED_LENGTH = 200


@dataclass(frozen=True, eq=False)
class MapLayer:
    """A layer of the map, which can be switched on and off.

    Parameters
    ----------
    name
        The name in the legend.
    kind
        ``"dots"``; a ``"line"`` through each user's points in the order of time, broken between trips; an ``"area"``,
        the union of the circles of `radii`; ``"outlines"``, closed rings; or ``"strokes"``, open lines.
    colour
        A CSS colour.
    points
        Shape ``(n, 2)``, latitude and longitude in degrees; for outlines and strokes a sequence of such arrays.
    facts
        Name → a value per point, numbers (NaN: none) or strings, shown for the point under the pointer. For outlines
        only ``name``: a label per ring.
    users
        One user per point, by which the map can be filtered. Defaults to a layer of all users.
    times
        One time per point, as ``datetime64``, by which the map can be filtered; requires users.
    radii
        The radius of each point in metres, shown as circles (NaN: unknown).
    radius_name
        What a radius is, for the legend and for the point under the pointer.
    trips
        An integer per point, equal within a trip. Defaults to one trip per user.
    by_time
        Whether the colour of a line represents time instead of being the layer's colour.
    visible
        Whether the layer is initially switched on.
    width
        The width of strokes in pixels; 0 for thin ones.
    opacity
        The opacity of an area below all lines, from 0 to 1; 0 for a faint one above them.
    """

    name: str
    kind: Literal["dots", "line", "area", "outlines", "strokes"]
    colour: str
    points: Any
    facts: Mapping[str, npt.ArrayLike] = field(default_factory=dict)
    users: npt.ArrayLike = ()
    times: npt.ArrayLike = ()
    radii: npt.ArrayLike = ()
    radius_name: str = "expected error"
    trips: npt.ArrayLike = ()
    by_time: bool = False
    visible: bool = True
    width: float = 0.0
    opacity: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the layer as encoded columns for the page's script, with rows by user and time.

        Returns
        -------
        dict
            JSON values.

        Raises
        ------
        InvalidInputError
            If facts, users or times are not one per point, or a point is not finite.
        """
        layer = {name: getattr(self, name) for name in ("name", "kind", "colour", "by_time", "visible")}
        if self.kind in ("outlines", "strokes"):
            labels = [str(label) for label in np.asarray(self.facts.get("name", ())).tolist()]
            self._check("facts", len(labels), len(self.points))
            return {**layer, **encode_lines(self.points), "labels": labels, "width": self.width}
        points = as_points(self.points) if np.size(self.points) else np.zeros((0, 2))
        if points.shape[1:] != (2,):
            raise InvalidInputError(f"points of layer {self.name!r} must have two columns, got shape {points.shape}")
        columns = {name: np.asarray(getattr(self, name)) for name in ("users", "times", "radii", "trips")}
        for name, column in columns.items():
            self._check(name, len(column), len(points))
        if len(columns["times"]) and not len(columns["users"]):
            raise InvalidInputError(f"layer {self.name!r} has times without users: times need users")
        order = self._order_rows(columns["users"], columns["times"])
        layer |= {"n": len(points), "opacity": self.opacity, **_encode_points(points[order])}
        if len(columns["users"]):
            layer["users"] = encode_texts(columns["users"][order])
        if len(columns["times"]):
            seconds = columns["times"][order].astype("datetime64[s]").astype(np.int64)
            layer["times"] = encode_numbers(seconds, max(1, int(np.gcd.reduce(seconds))))
        if len(columns["radii"]):
            layer["radii"] = encode_numbers(columns["radii"][order])
            layer["radius_name"] = self.radius_name
        if len(columns["trips"]):
            first_rows = 1 + np.flatnonzero(np.diff(columns["trips"][order]))
            layer["trips"] = encode_numbers(first_rows, allow_constant=False)["code"]
        layer["facts"] = []
        for name, values in self.facts.items():
            column = np.asarray(values)
            self._check("facts", len(column), len(points))
            layer["facts"].append({"name": name, **_encode_fact(name, column[order])})
        return layer

    def _check(self, what: str, count: int, points: int) -> None:
        if count not in (0, points):
            raise InvalidInputError(
                f"layer {self.name!r} must have one of {what} per point: {points} points, {count} {what}"
            )

    def _order_rows(self, users: npt.NDArray[Any], times: npt.NDArray[Any]) -> Any:
        if not len(users):
            return slice(None)
        _, number = np.unique(users.astype(np.str_), return_inverse=True)
        return np.lexsort((times, number)) if len(times) else np.argsort(number, kind="stable")


@dataclass(frozen=True, eq=False)
class MapPolicy:
    """A policy on the map: the neighbours of each state, and the shape of the noise to scale.

    Parameters
    ----------
    states
        ``(N, 2)`` latitudes and longitudes.
    edges
        ``(m, 2)`` pairs of states. Defaults to none, as for policies with too many edges.
    hull
        ``(k, 2)`` corners of the sensitivity hull, kilometres east and north of its centre; may be empty.
    error_m
        The root mean square error of a release in metres; NaN if unknown.
    text
        A description of the policy.
    """

    states: npt.ArrayLike
    edges: npt.ArrayLike = ()
    hull: npt.ArrayLike = ()
    error_m: float = float("nan")
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the policy in the form of the page's script.

        Returns
        -------
        dict
            JSON values.
        """
        states = np.asarray(self.states, dtype=np.float64)
        edges = np.asarray(self.edges, dtype=np.int64).reshape(-1, 2)
        first, second = edges[np.lexsort((edges[:, 1], edges[:, 0]))].T
        hull = np.asarray(self.hull, dtype=np.float64).reshape(-1, 2)
        return {
            "n": len(states),
            **_encode_points(states),
            "from": encode_numbers(first),
            "to": encode_numbers(second),
            "edges": len(edges),
            "hull": np.round(hull, 6).tolist(),
            "error": round(self.error_m, 3) if np.isfinite(self.error_m) else None,
            "text": self.text,
        }


@check_arguments
def build_web_map(
    layers: Sequence[MapLayer],
    title: str,
    note: str = "",
    *,
    basemap: Basemap | None = None,
    policy: MapPolicy | None = None,
    tiles: str | None = None,
    credit: str = "",
) -> str:
    """Return a page with an interactive map.

    The map can be panned, zoomed, filtered by user and day, and played through time.

    It opens with the day of the first user that has most timesteps. Many points are drawn as hexagons of their counts.

    Parameters
    ----------
    layers
        From bottom to top.
    title, note
        Plain text. The note is below the title and should describe the content of the map and its privacy.
    basemap
        The background.
    policy
        The neighbours of each state, and the shape of the noise.
    tiles
        The address of a tile server, as ``https://host/{z}/{x}/{y}.png``. The browser then reveals the viewed part of
        the world to this server.
    credit
        The attribution of these tiles.

    Returns
    -------
    str
        The HTML. Its content security policy forbids all requests except those for tiles.

    Raises
    ------
    ConfigurationError
        If the address of the tiles is invalid.
    InvalidInputError
        As `MapLayer.to_json`.
    """
    codes: list[str] = []
    data = {
        "layers": _share_codes([layer.to_json() for layer in layers], codes),
        "codes": codes,
        "basemap": None if basemap is None else encode_basemap(basemap),
        "policy": None if policy is None else policy.to_json(),
        "tiles": tiles,
        "credit": credit if tiles else "",
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts = {
        "{{title}}": html.escape(title),
        "{{note}}": html.escape(note),
        "{{data}}": text.replace("<", "\\u003c"),  # inside <script> only '<' could end the data early
        "{{tiles}}": "" if tiles is None else f" {parse_tile_host(tiles)}",
        "{{style}}": _read_file("plots/webmap.css"),
        # A file of its own cannot import modules: browsers refuse them from files.
        "{{script}}": re.sub(r"^export ", "", _read_file("plots/basemap.js"), flags=re.MULTILINE)
        + _read_file("plots/webmap.js"),
        "{{leaflet}}": _read_file("vendor/leaflet/leaflet.js").partition("//# sourceMappingURL")[0],
        "{{leaflet_style}}": _read_file("vendor/leaflet/leaflet.css"),
    }
    return _MARK.sub(lambda mark: parts[mark[0]], _read_file("plots/webmap.html"))


@check_arguments
def parse_tile_host(address: str) -> str:
    """Return the scheme and host of a tile server, for the content security policy of a page.

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
        If the address has no host, or lacks the placeholders of zoom, column and row.
    """
    parts = urlsplit(address)
    has_placeholders = all(mark in address for mark in ("{z}", "{x}", "{y}"))
    has_host = re.fullmatch(r"[\w.:\[\]-]+", parts.netloc, re.ASCII)
    if parts.scheme not in ("http", "https") or not has_host or not has_placeholders:
        raise ConfigurationError(
            f"tiles must be an address such as https://host/{{z}}/{{x}}/{{y}}.png, got {address!r}"
        )
    return f"{parts.scheme}://{parts.netloc}"


def _read_file(name: str) -> str:
    return files("dphmm").joinpath(name).read_text(encoding="utf-8")


def _encode_fact(name: str, column: npt.NDArray[Any]) -> dict[str, Any]:
    """Encode a column of facts: strings by words, numbers by a step that suits their unit."""
    if column.dtype.kind in "OUSb":
        return encode_texts(column.astype(np.str_))
    finite = np.where(np.isfinite(column.astype(np.float64)), column, np.nan)
    if name.endswith("_m"):
        return encode_numbers(finite)
    numbers = finite[~np.isnan(finite)]
    steps = (
        step
        for step in (1.0, 0.1, 0.01, 0.001)
        if (np.abs(np.round(numbers / step) * step - numbers) < _STEP_TOLERANCE).all()
    )
    return encode_numbers(finite, next(steps, _FACT_STEP))


def _share_codes(value: Any, codes: list[str]) -> Any:
    """Replace long codes in a value by indices of a list, which several layers may share."""
    if isinstance(value, dict):
        return {key: _share_codes(item, codes) for key, item in value.items()}
    if isinstance(value, list):
        return [_share_codes(item, codes) for item in value]
    if not isinstance(value, str) or len(value) < _MIN_SHARED_LENGTH or not _CODE.fullmatch(value):
        return value
    if value not in codes:
        codes.append(value)
    return codes.index(value)
