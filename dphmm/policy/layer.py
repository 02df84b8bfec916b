"""Polygons as values with a name, by which policies refer to them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dphmm.errors import PolicyError
from dphmm.tables.values import is_text, shown

_NAME = re.compile(r"[^\s&|@+]+")


@dataclass(frozen=True)
class PolygonLayer:
    """Polygons as a value with a name, by which the text of a policy refers to them instead of a file.

    Parameters
    ----------
    name
        What stands in the policy's text, as in ``zone:home``; without spaces and ``& | @ +``.
    geojson
        A GeoJSON feature collection of polygons, as text; longitude first, in degrees.

    Raises
    ------
    PolicyError
        When the name cannot stand in a policy's text, or the collection is no text.

    Examples
    --------
    >>> PolygonLayer("home", '{"type": "FeatureCollection", "features": []}').name
    'home'
    """

    name: str
    geojson: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or not is_text(self.name):
            raise PolicyError(f"a layer is named {shown(self.name)}; give a name without spaces and & | @ +")
        if not isinstance(self.geojson, str) or not is_text(self.geojson):
            raise PolicyError(f"layer {self.name} is {shown(self.geojson)}; give a GeoJSON feature collection as text")


def find_layer(reference: str, layers: Iterable[PolygonLayer]) -> str | PolygonLayer:
    """The layer that a policy's text refers to: the value of that name, otherwise the path of a file."""
    return next((layer for layer in layers if layer.name == reference), reference)
