"""Coordinates as people copy them.

These are decimal degrees, degrees with minutes and seconds, ``geo:`` URIs and links of maps.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import parse_qsl, unquote_plus, urlsplit

from dphmm.errors import CoordinateError
from dphmm.tables.values import shorten

# Latitude and longitude in degrees.
Location = tuple[float, float]

_EXAMPLE = "45.01,-30.01"
_NUMBER = r"[0-9]+(?:\.[0-9]*)?"
_SIGNED = rf"[+-]?{_NUMBER}"
_PAIR = re.compile(rf"({_SIGNED})\s*[,;~]\s*({_SIGNED})")
_ANGLE = re.compile(
    rf"(?P<before>[NSEW])?\s*(?P<sign>[+-])?\s*(?P<degrees>{_NUMBER})\s*°?\s*"
    rf"(?:(?P<minutes>{_NUMBER})\s*'?\s*(?:(?P<seconds>{_NUMBER})\s*\"?)?)?\s*(?P<after>[NSEW])?"
)
# Ways to write two angles, from the least ambiguous on. Each has two groups.
_SPLITS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\s*([NSEW][^NSEW]+?)[\s,;]*([NSEW][^NSEW]+?)\s*",
        r"\s*([^NSEW]+[NSEW])[\s,;]*([^NSEW]+[NSEW])\s*",
        r"\s*([^,;]+?)\s*[,;]\s*([^,;]+?)\s*",
        r"\s*(\S+)\s+(\S+)\s*",
        r"\s*([+-]?[0-9][^°]*°.*?)\s+([+-]?[0-9.]+\s*°.*?)\s*",
        rf"([+-]{_NUMBER})([+-]{_NUMBER})/?",  # ISO 6709
    )
)
_DECIMAL_COMMAS = re.compile(r"([+-]?[0-9]+),([0-9]+)(\s*°?\s*[NSEW]?)\s*(?:;\s*|,?\s+)([+-]?[0-9]+),([0-9]+)(.*)")
_POINT = re.compile(rf"(?:SRID=4326;)?\s*POINT\s*\(\s*({_SIGNED})\s+({_SIGNED})\s*\)")
_LABELS = re.compile(r"\b(LAT(?:ITUDE)?|LON(?:G(?:ITUDE)?)?|LNG)\b\s*[:=]?\s*")
_AXES = {"": "", "N": "y", "S": "y", "E": "x", "W": "x"}
_SIGNS = str.maketrans(
    dict.fromkeys("ºÚ˚", "°") | dict.fromkeys("′’‘ʹ´`", "'") | dict.fromkeys("″“”ʺ", '"') | dict.fromkeys("−–—", "-")
)
_PIN = re.compile(rf"!3d({_SIGNED})!4d({_SIGNED})")
_CENTRE = re.compile(rf"@({_SIGNED}),({_SIGNED})")
_FRAGMENT = re.compile(rf"(?:map=)?{_NUMBER}/({_SIGNED})/({_SIGNED})(?:[/&].*)?")
_LATITUDE_KEYS = ("mlat", "lat", "latitude")
_LONGITUDE_KEYS = ("mlon", "lon", "lng", "longitude")
_PAIR_KEYS = ("coordinate", "q", "query", "ll", "pin", "destination", "daddr", "center", "cp", "map", "sll", "to")


def parse_coordinates(text: str, name: str = "coordinates") -> Location | None:
    """Return the location in a text, or None if the text is not meant as coordinates.

    The latitude is first, except in WKT and where letters or labels state the axes. The text can be one of these:

    * degrees: ``45.01,-30.01``, ``45.01 -30.01``, ``45,01 -30,01``, ``45.01° N, 30.01° W``,
      ``lat=45.01 lon=-30.01``, ``+45.01-030.01/`` (ISO 6709), ``POINT(-30.01 45.01)`` (WKT);
    * degrees, minutes and seconds: ``45°00'36"N 30°00'36"W``, ``N 45 00.6 W 30 00.6``;
    * a ``geo:`` URI;
    * a link of Google Maps, OpenStreetMap, Apple Maps and others that contains the coordinates: of the pin if it has
      one, else of the centre of the map.

    Parameters
    ----------
    text
        The text.
    name
        The parameter, for messages.

    Returns
    -------
    tuple of float or None
        Latitude and longitude, degrees. None for a text that is not a link and contains a word or no digit, such as
        the name of a file.

    Raises
    ------
    CoordinateError
        If the text is a link without coordinates, a Plus Code, incomplete or ambiguous, or out of range. The message
        contains the way to write coordinates.

    Examples
    --------
    >>> parse_coordinates("45°00'36\\"N 30°00'36\\"W"), parse_coordinates("geo:45.01,-30.01;u=35")
    ((45.01, -30.01), (45.01, -30.01))
    >>> parse_coordinates("home.geojson") is None
    True
    """
    stripped = text.strip()
    scheme = stripped.partition(":")[0].lower()
    if scheme == "geo":
        location = _parse_geo_uri(stripped)
    elif scheme in ("http", "https", "om", "comgooglemaps", "maps"):
        location = _parse_link(stripped)
        if location is None:
            raise CoordinateError(
                f"{name}: the link {shorten(text)} contains no coordinates: open it, and copy latitude and longitude "
                f"as in {_EXAMPLE}"
            )
    else:
        cleaned = _clean(stripped)
        words = re.findall(r"[^\W\d_]+", _LABELS.sub(" ", cleaned.removeprefix("SRID").removeprefix("=4326;")))
        if re.fullmatch(r"[2-9CFGHJMPQRVWX]{2,8}\+[2-9CFGHJMPQRVWX]{2,3}\b.*", cleaned):
            raise CoordinateError(f"{name} must be latitude and longitude as in {_EXAMPLE}, got the Plus Code {text!r}")
        if not re.search(r"\d", cleaned) or any(word not in {*"NSEWO", "POINT"} for word in words):
            return None
        if "O" in words:
            raise CoordinateError(
                f"{name}: O is east in German and west in French, Italian and Spanish, got {text!r}: write E or W"
            )
        location = _parse_angles(cleaned)
    if location is None:
        raise CoordinateError(f"{name} must be latitude and longitude as in {_EXAMPLE}, got {shorten(text)}")
    latitude, longitude = location
    if abs(latitude) > 90:
        swapped = f": use {longitude:g},{latitude:g} if the longitude is first" if abs(longitude) <= 90 else ""
        raise CoordinateError(f"{name}: latitude must be in [-90, 90], got {latitude:g}{swapped}")
    if abs(longitude) > 180:
        raise CoordinateError(f"{name}: longitude must be in [-180, 180], got {longitude:g}")
    return location


def _clean(text: str) -> str:
    """Return a text in upper case, with one form of each sign and without brackets around it."""
    # NFKC would turn ordinal indicators and double primes into letters and pairs of primes.
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).upper().replace("''", '"')
    text = " ".join(text.split())
    return text[1:-1].strip() if text[:1] + text[-1:] in ("()", "[]") else text


def _parse_angles(text: str) -> Location | None:
    """Return the location of a cleaned text without a scheme."""
    point = _POINT.fullmatch(text)
    if point is not None:
        return float(point[2]), float(point[1])
    labels = [label[0] for label in _LABELS.findall(text)]
    if labels:
        if sorted(labels) != ["L", "L"] or len(set(_LABELS.findall(text))) != 2:
            return None
        is_longitude_first = _LABELS.findall(text)[0].startswith(("LON", "LNG"))
        location = _parse_angles(_LABELS.sub(" ", text).strip())
        return location[::-1] if location is not None and is_longitude_first else location
    commas = _DECIMAL_COMMAS.fullmatch(text)
    if commas is not None:
        text = f"{commas[1]}.{commas[2]}{commas[3]};{commas[4]}.{commas[5]}{commas[6]}"
    for split in _SPLITS:
        parts = split.fullmatch(text)
        angles = [_parse_angle(part) for part in parts.groups()] if parts is not None else []
        if angles and None not in angles:
            break
    else:
        return None
    (first, first_letter), (second, second_letter) = (angle for angle in angles if angle is not None)
    axes = _AXES[first_letter] + _AXES[second_letter]
    if axes in ("", "yx"):
        return first, second
    return (second, first) if axes == "xy" else None


def _parse_angle(text: str) -> tuple[float, str] | None:
    """Return an angle in degrees and its letter of the axis, or None if it is malformed."""
    match = _ANGLE.fullmatch(text.strip())
    if match is None or (match["before"] and match["after"]):
        return None
    letter = match["before"] or match["after"] or ""
    parts = [match[unit] for unit in ("degrees", "minutes", "seconds") if match[unit] is not None]
    # Only the last part can have decimals, and a sign would contradict or repeat a letter.
    if any("." in part for part in parts[:-1]) or any(float(part) >= 60 for part in parts[1:]):
        return None
    if match["sign"] and letter:
        return None
    size = sum(float(part) / 60**power for power, part in enumerate(parts))
    return (-size if match["sign"] == "-" or letter in ("S", "W") else size), letter


def _parse_geo_uri(text: str) -> Location | None:
    path, _, query = text[4:].partition("?")
    pair = _PAIR.match(path)
    if pair is None:
        return None
    location = float(pair[1]), float(pair[2])
    if not any(location):  # Android writes the location of a label into the query
        label = _PAIR.match(dict(parse_qsl(query)).get("q", ""))
        return location if label is None else (float(label[1]), float(label[2]))
    return location


def _parse_link(text: str) -> Location | None:
    """Return the pin of a map's link, else the centre of the map, else None."""
    parts = urlsplit(text)
    pins = _PIN.findall(text)
    if pins:
        return float(pins[-1][0]), float(pins[-1][1])
    query = {key.lower(): value for key, value in parse_qsl(parts.query)}
    axes = [next((query[key] for key in keys if key in query), "") for keys in (_LATITUDE_KEYS, _LONGITUDE_KEYS)]
    if all(re.fullmatch(_SIGNED, axis) for axis in axes):
        return float(axes[0]), float(axes[1])
    values = [query[key] for key in _PAIR_KEYS if key in query]
    segments = [unquote_plus(segment) for segment in parts.path.split("/")[::-1] if not segment.startswith("@")]
    for value in [*values, *segments]:
        pair = _PAIR.match(re.sub(r"^(?:loc:|ll\.)", "", value.strip()))
        if pair is not None:
            return float(pair[1]), float(pair[2])
        if re.search("[NS°]", value) and not re.search(r"[^\W\d_NSEW]", value):
            location = _parse_angles(_clean(value))
            if location is not None:
                return location
    centre = _CENTRE.search(text) or _FRAGMENT.fullmatch(parts.fragment)
    return None if centre is None else (float(centre[1]), float(centre[2]))
