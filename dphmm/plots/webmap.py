"""A map as one HTML file that needs no network: no tiles, no libraries, only its own drawing code."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.errors import InvalidInputError

_MARK = re.compile(r"\{\{(?:title|note|data)\}\}")


@dataclass(frozen=True)
class MapLayer:
    """One thing on the map that the reader can switch on and off.

    Parameters
    ----------
    name
        As the legend calls it.
    kind
        Dots, a line through the points in their order, or closed outlines.
    colour
        A CSS colour.
    points
        Shape ``(n, 2)``, kilometres east and north; for outlines a sequence of such rings.
    facts
        One dictionary per point, shown when the pointer is on it (outlines: one per ring); left out, nothing is.
    users
        One user per point, by which the map can be narrowed down; left out, the layer belongs to everyone.
    times
        One ISO 8601 text per point, by which the time slider goes; left out, the layer is always shown.
    visible
        Whether it is switched on at first.
    """

    name: str
    kind: Literal["dots", "line", "outlines"]
    colour: str
    points: Any
    facts: Sequence[Mapping[str, object]] = field(default=())
    users: Sequence[str] = field(default=())
    times: Sequence[str] = field(default=())
    visible: bool = True

    def to_json(self) -> dict[str, Any]:
        """The layer as the page's script reads it.

        Raises
        ------
        InvalidInputError
            When facts, users or times are there but not one per point, or a point is not finite.
        """
        points: list[Any] = list(map(_rounded, self.points)) if self.kind == "outlines" else _rounded(self.points)
        for what in ("facts", "users", "times"):
            given = len(getattr(self, what))
            if given not in (0, len(points)):
                raise InvalidInputError(f"layer {self.name!r} has {len(points)} points and {given} {what}; give each")
        stated = {
            "points": points,
            "facts": [{key: str(value) for key, value in table.items()} for table in self.facts],
            "users": list(self.users),
            "times": list(self.times),
        }
        return {**vars(self), **stated}


@checked
def web_map(layers: Sequence[MapLayer], title: str, note: str = "") -> str:
    """A page with a map that can be moved, zoomed, narrowed down to a user and played through time.

    Parameters
    ----------
    layers
        From the lowest to the topmost.
    title, note
        Plain text; the note stands under the title and should say what is on the map and how private it is.

    Returns
    -------
    str
        The HTML. Its own policy forbids the browser every request.
    """
    data = json.dumps({"layers": [layer.to_json() for layer in layers]}, ensure_ascii=False, allow_nan=False)
    page = files("dphmm.plots").joinpath("webmap.html").read_text(encoding="utf-8")
    # Inside <script>, only '<' could end the data early; JSON lets it be written as an escape.
    parts = {"{{title}}": html.escape(title), "{{note}}": html.escape(note), "{{data}}": data.replace("<", "\\u003c")}
    return _MARK.sub(lambda mark: parts[mark[0]], page)


def _rounded(points: npt.ArrayLike) -> list[list[float]]:
    """Kilometres to the millimetre, as the page has no use for more."""
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    if not np.isfinite(array).all():
        raise InvalidInputError("a point of the map is not finite; leave it out")
    rounded: list[list[float]] = np.round(array, 6).tolist()
    return rounded
