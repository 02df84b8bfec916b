"""Towns of the bundled map by name, in any language and script of GeoNames."""

from __future__ import annotations

import lzma
import unicodedata
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dphmm.errors import ConfigurationError
from dphmm.space import world_map
from dphmm.space.coordinates import parse_coordinates
from dphmm.space.grid import Box
from dphmm.space.projection import LocalProjection
from dphmm.validation import check_arguments

# The countries, populations and alternate names of the towns of the map, next to its file.
NAMES_FILE = "names.xz"

# Letters that Unicode does not decompose into a base letter and a mark.
_BASE_LETTERS = {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th"}
_APOSTROPHES = "'`´‘’ʻʼ"
# Marks of Latin, Greek and Cyrillic. Those of other scripts are vowels or distinguish consonants.
_FIRST_MARK = "\u0300"
_LAST_MARK = "\u036f"
# The largest of several towns is clear if the others are smaller by this factor.
_CLEAR_RATIO = 10
# And by this one, if its name on the map is the given one and those of the others are not.
_CLEAR_RATIO_OF_NAME = 2
# Places of unknown population are seats of districts, and rarely larger.
_UNKNOWN_POPULATION = 5000
_MAX_LISTED = 6
# GeoNames has several entries of some towns. They are the same choice within this distance, about 2 km.
_SAME_DEGREES = 0.02
_COMMON_CODES = {"uk": "GB", "usa": "US"}


class _KeyLetters(dict[int, str]):
    """Code point → its text in a key, computed at its first use."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        if _FIRST_MARK <= letter <= _LAST_MARK or letter in _APOSTROPHES:
            self[code] = ""
        else:
            kept = letter if unicodedata.category(letter)[0] in "LMN" else " "
            self[code] = _BASE_LETTERS.get(letter, kept)
        return self[code]


_KEY_LETTERS = _KeyLetters()


def normalize_name(text: str) -> str:
    """Return the form of a name in which names are compared.

    Case, accents, apostrophes and punctuation are ignored.

    Parameters
    ----------
    text
        The name.

    Returns
    -------
    str
        Its letters, digits and marks of scripts that need them, in words separated by single spaces.

    Examples
    --------
    >>> normalize_name("Saint-Étienne"), normalize_name("MÜNCHEN"), normalize_name("Łódź")
    ('saint etienne', 'munchen', 'lodz')
    """
    # Case folding can compose letters, and decomposition can produce upper case.
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return unicodedata.normalize("NFC", " ".join(folded.translate(_KEY_LETTERS).split()))


@dataclass(frozen=True)
class Town:
    """A town of the bundled map.

    Parameters
    ----------
    name
        The name on the map, mostly the English one.
    latitude, longitude
        Degrees, to about 100 m.
    country
        The country; empty for a location without a name.
    code
        The two letters of the country in ISO 3166.
    state
        The two letters of the state in the United States; otherwise empty.
    population
        The population to two digits; 0 if GeoNames does not state it.
    num_others
        The number of smaller towns on the map that the name may have meant.
    """

    name: str
    latitude: float
    longitude: float
    country: str = ""
    code: str = ""
    state: str = ""
    population: int = 0
    num_others: int = 0

    def __str__(self) -> str:
        place = f"{self.latitude:.3f},{self.longitude:.3f}"
        if not self.name:
            return place
        size = f"about {self.population:,} people" if self.population else "population unknown"
        return ", ".join(filter(None, (self.name, self.state, self.country))) + f" ({size}; {place})"

    def build_box(self, across_km: float = 20.0) -> Box:
        """Return the square around the town: south, west, north, east, degrees, to three decimals."""
        corners = np.array([[-1, -1], [1, 1]]) * across_km / 2
        plane = LocalProjection(self.latitude, self.longitude)
        (south, west), (north, east) = plane.to_latlon(corners).round(3).tolist()
        return south, west, north, east


class _Match(NamedTuple):
    town: Town
    # Whether the map has this name, and not only GeoNames' list of alternate names.
    is_map_name: bool


class _Gazetteer:
    """The towns of the map, with the contents of the file of names."""

    def __init__(self) -> None:
        content = lzma.decompress(Path(str(world_map.WORLD)).with_name(NAMES_FILE).read_bytes()).decode("utf-8")
        countries, states, details, alternates = content.split("\0")
        self.countries = dict(line.split("\t") for line in countries.split("\n"))
        self.states = dict(line.split("\t") for line in states.split("\n"))
        self.details = details.split("\n")
        self.alternates = alternates.split("\n")
        self.points, _, self.names = world_map.load_towns()

    @cached_property
    def keys(self) -> list[str]:
        return [normalize_name(name) for name in self.names]

    def get_town(self, index: int) -> Town:
        code, state, population = self.details[index].split("\t")
        longitude, latitude = self.points[index].tolist()
        return Town(self.names[index], latitude, longitude, self.countries[code], code, state, int(population or 0))

    def find_matches(self, name: str) -> list[_Match]:
        """Return the towns with a name."""
        key = normalize_name(name)
        if not key:
            return []
        matches = [_Match(self.get_town(index), True) for index, other in enumerate(self.keys) if other == key]
        matches += [
            _Match(self.get_town(index), False)
            for index, line in enumerate(self.alternates)
            if key in line and key in line.split("\t")
        ]
        return matches

    def is_in(self, town: Town, area: str) -> bool:
        """Return whether a town lies in a country or a state with a name or code."""
        key = normalize_name(area)
        names = [town.country, town.code, town.state, self.states.get(town.state, "")]
        return key in map(normalize_name, filter(None, names)) or _COMMON_CODES.get(key) == town.code


@lru_cache(maxsize=1)
def load_gazetteer() -> _Gazetteer:
    """Return the towns of the bundled map and their names."""
    return _Gazetteer()


def _find_matches(text: str) -> list[_Match]:
    """Return the towns for a name, or for a name and areas after commas, the largest first."""
    name, *areas = text.split(",")
    matches = load_gazetteer().find_matches(text)
    if areas:
        matches += _select_in_areas(load_gazetteer().find_matches(name), areas)
    return _merge_same(sorted(matches, key=lambda match: -match.town.population))


def _select_in_areas(matches: list[_Match], areas: list[str]) -> list[_Match]:
    return [match for match in matches if all(load_gazetteer().is_in(match.town, area) for area in areas)]


def _merge_same(matches: list[_Match]) -> list[_Match]:
    """Return the matches without those at the location of an earlier one."""
    merged: list[_Match] = []
    for match in matches:
        places = np.array([(other.town.latitude, other.town.longitude) for other in merged]).reshape(-1, 2)
        is_near = np.abs(places - (match.town.latitude, match.town.longitude)).max(axis=1) <= _SAME_DEGREES
        if is_near.any():
            index = int(is_near.argmax())
            merged[index] = _Match(merged[index].town, merged[index].is_map_name or match.is_map_name)
        else:
            merged.append(match)
    return merged


def _find_clear_match(matches: list[_Match]) -> Town | None:
    """Return the only match, or the largest one if no other can be meant, else None.

    Another one can be meant if it is not much smaller, or if it has the name on the map and the largest has not: Roma
    is a town in Lesotho there, and one of the names of Rome.
    """
    if not matches:
        return None
    first, *others = matches
    for match in others:
        ratio = _CLEAR_RATIO_OF_NAME if first.is_map_name and not match.is_map_name else _CLEAR_RATIO
        if first.town.population < ratio * (match.town.population or _UNKNOWN_POPULATION):
            return None
        if match.is_map_name and not first.is_map_name:
            return None
    return replace(first.town, num_others=len(others))


def _format_unique_name(town: Town, name: str, matches: list[_Match]) -> str:
    """Return the text that chooses a town from the matches of a name."""
    for areas in ([town.code], [town.state, town.code]):
        chosen = _find_clear_match(_select_in_areas(matches, areas)) if all(areas) else None
        if chosen is not None and replace(chosen, num_others=0) == town:
            return ", ".join([name, *areas])
    return f"{town.latitude:.3f},{town.longitude:.3f}"


@check_arguments
def find_town(name: str) -> Town:
    """Return the town with a name.

    The name can be any of GeoNames' in any language: *Roma*, *München* or *Munich*, *Москва*, *東京*. Case, accents and
    punctuation are ignored. A country or a state of the United States can follow after a comma, by its English name or
    its code. Of several towns, the largest is returned if it has the name on the map, or none has, and the others have
    at most a tenth of its population, or a half where only the largest has the name on the map.

    Parameters
    ----------
    name
        The name of the town, or the coordinates of a location; see `dphmm.space.coordinates.parse_coordinates`.

    Returns
    -------
    Town
        The town; without name and country for coordinates.

    Raises
    ------
    ConfigurationError
        If no town has the name; suggests similar names. If several have and none is clearly meant; lists the largest
        with country, population, coordinates and the text that chooses each.

    Examples
    --------
    >>> print(find_town("Wien"))
    Vienna, Austria (about 1,700,000 people; 48.208,16.372)
    """
    coordinates = parse_coordinates(name)
    if coordinates is not None:
        return Town("", *coordinates)
    matches = _find_matches(name)
    town = _find_clear_match(matches)
    if town is not None:
        return town
    if matches:
        text = name.split(",")[0].strip()
        listed = [
            f"{_format_unique_name(match.town, text, matches)!r} is {match.town}" for match in matches[:_MAX_LISTED]
        ]
        others = f"; and {len(matches) - _MAX_LISTED:,} smaller ones" if len(matches) > _MAX_LISTED else ""
        raise ConfigurationError(
            f"town must be the name of one town, got {name!r}, the name of {len(matches):,}: "
            f"{'; '.join(listed)}{others}"
        )
    elsewhere = _find_matches(name.split(",")[0])
    if elsewhere:
        raise ConfigurationError(
            f"town must be a name on the map, got {name!r}; without the country, the largest is {elsewhere[0].town}"
        )
    like = get_close_matches(normalize_name(name.split(",")[0]), load_gazetteer().keys, n=4)
    names = dict.fromkeys(load_gazetteer().names[load_gazetteer().keys.index(key)] for key in like)
    raise ConfigurationError(
        f"town must be a name on the map such as {', '.join(names or ('Lyon', 'Portland', 'Taipei'))}, got {name!r}; "
        "otherwise use coordinates such as 45.76,4.84, or --bbox"
    )


@check_arguments
def find_town_box(name: str, across_km: float = 20.0) -> Box:
    """Return a square around a town of the bundled map.

    Parameters
    ----------
    name
        The name of the town, as for `find_town`.
    across_km
        The side of the square, kilometres.

    Returns
    -------
    tuple of float
        South, west, north, east, degrees, to three decimals.

    Raises
    ------
    ConfigurationError
        As `find_town`.

    Examples
    --------
    >>> find_town_box("Lyon")
    (45.66, 4.72, 45.84, 4.977)
    """
    return find_town(name).build_box(across_km)
