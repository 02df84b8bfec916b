"""The placemarks of KML files (OGC 12-007r2, and Google's older ones): names, data, and geometries as GeoJSON has them.

Longitude and latitude on WGS 84, as KML has no other; altitudes are left out, styles and folders are not looked at.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from dphmm.errors import DataFileError
from dphmm.tables.geojson import Feature
from dphmm.tables.source import Document
from dphmm.tables.values import one_line, shorten

_ELEMENT = 400
"""What an element takes in memory, in bytes."""
_CORNER = 150

Element = ElementTree.Element


def read_kml(document: Document) -> list[Feature]:
    """The placemarks, in their order; one with several geometries has a ``GeometryCollection``.

    Raises
    ------
    DataFileError
        When the file is no well-formed KML (a coordinate that is no number included), or declares a document type,
        with which a few lines can stand for gigabytes or for other files.
    """
    document.check_objects((b"<",), _ELEMENT)
    document.check_objects((b",",), _CORNER)
    try:
        root = ElementTree.fromstring(document.data, ElementTree.XMLParser(target=_NoDocumentType()))
        if _name(root) != "kml":
            raise ValueError(f"its root is {shorten(_name(root))}")
        return [Feature(_properties(one), _geometry(one)) for one in root.iter() if _name(one) == "Placemark"]
    except (ElementTree.ParseError, ValueError, LookupError) as problem:
        raise DataFileError(document.source, f"is no well-formed KML ({one_line(problem)}); export it again") from None


class _NoDocumentType(ElementTree.TreeBuilder):
    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:  # noqa: ARG002 - the parser calls it
        """Refuse the document before what it declares is read."""
        raise ValueError("it declares a document type, which KML has none of")


def _name(element: Element) -> str:
    """An element's name without its namespace, of which there are several."""
    return element.tag.rpartition("}")[2]


def _child(element: Element, name: str) -> Element | None:
    return next((child for child in element if _name(child) == name), None)


def _text(element: Element | None) -> str:
    return "" if element is None or element.text is None else element.text.strip()


def _properties(placemark: Element) -> dict[str, Any]:
    """The name, and what ``ExtendedData`` says, typed or not."""
    found: dict[str, Any] = {}
    for name in ("name", "description"):
        if said := _text(_child(placemark, name)):
            found[name] = said
    data = _child(placemark, "ExtendedData")
    for one in () if data is None else data.iter():
        if _name(one) == "SimpleData":
            found[one.get("name", "")] = _text(one)
        elif _name(one) == "Data":
            found[one.get("name", "")] = _text(_child(one, "value"))
    return found


def _geometry(placemark: Element) -> dict[str, Any] | None:
    found: list[dict[str, Any]] = []
    for one in placemark.iter():
        kind = _name(one)
        if kind == "Polygon":
            holes = [_ring(child) for child in one if _name(child) == "innerBoundaryIs"]
            outer = _child(one, "outerBoundaryIs")
            if outer is None:
                raise ValueError("a polygon has no outer boundary")
            found.append({"type": "Polygon", "coordinates": [_ring(outer), *holes]})
        elif kind == "Point":
            found.append({"type": "Point", "coordinates": (_corners(one) or [[]])[0]})
        elif kind in ("LineString", "Track"):
            found.append({"type": "LineString", "coordinates": _corners(one)})
    if len(found) < 2:
        return found[0] if found else None
    return {"type": "GeometryCollection", "geometries": found}


def _ring(boundary: Element) -> list[list[float]]:
    ring = _child(boundary, "LinearRing")
    corners = [] if ring is None else _corners(ring)
    return corners if corners[:1] == corners[-1:] else [*corners, corners[0]]


def _corners(element: Element) -> list[list[float]]:
    """Longitudes and latitudes out of ``lon,lat[,altitude]``, one tuple after each space."""
    corners = [one.split(",") for one in _text(_child(element, "coordinates")).split()]
    try:
        return [[float(number) for number in (longitude, latitude)] for longitude, latitude, *_ in corners]
    except ValueError:
        raise ValueError("coordinates are not lon,lat,altitude with a space between two places") from None
