"""Public maps of a region: the share of land of each state, and what it contains."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import shapely
from scipy.spatial import cKDTree

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import ConfigurationError
from dphmm.model.map_attraction import compute_map_attraction
from dphmm.policy.zones import read_polygons
from dphmm.space import Grid, StateSpace
from dphmm.space.grid import KM_PER_DEGREE
from dphmm.space.projection import unwrap_longitudes
from dphmm.space.world_map import LAND_CREDIT, compute_land_shares
from dphmm.tables.source import get_suffix
from dphmm.tables.street_map import StreetMap, read_street_map
from dphmm.tables.vector_files import OPENSTREETMAP_SUFFIXES
from dphmm.validation import check_arguments

# The name of the bundled coarse map of coasts and lakes.
COAST = "coast"


@dataclass(frozen=True, eq=False)
class RegionMap:
    """A public map of the states of a region.

    Parameters
    ----------
    land
        ``(N,)``: the share of each state's area that is land.
    credit
        The attribution of the map.
    content
        ``(N,)``: the content of each state: kilometres of street or, on a map without streets, the number of addresses
        or buildings. NaN beyond the extent of the map. None on a map of land and water only.
    """

    land: FloatArray = field(repr=False)
    credit: str
    content: FloatArray | None = field(default=None, repr=False)

    @property
    def attraction(self) -> FloatArray:
        """The attraction of each state, ``(N,)``. See `dphmm.model.map_attraction`."""
        content = self.content
        return compute_map_attraction(
            self.land, None if content is None else np.where(np.isnan(content), np.nanmean(content), content)
        )

    @property
    def land_attraction(self) -> FloatArray:
        """The attraction by land only, ``(N,)``: the weights of an adversary who has the map."""
        return compute_map_attraction(self.land)

    @property
    def excluded(self) -> BoolArray:
        """The states that an adversary with the map excludes, ``(N,)``.

        These contain neither land nor content. A bridge is therefore not excluded.
        """
        return np.asarray((self.land == 0) & (True if self.content is None else np.nan_to_num(self.content) == 0))

    @property
    def is_uninformative(self) -> bool:
        """Whether the map gives every state the same attraction."""
        return bool(np.ptp(self.attraction) == 0)


@check_arguments
def build_region_map(source: str | Path, space: StateSpace) -> RegionMap:
    """Read the map of a region.

    Parameters
    ----------
    source
        ``"coast"``: the bundled coarse map of coasts and lakes. Or a map file with streets, addresses, buildings, water
        or coastlines; see `dphmm.tables.street_map.read_street_map`. Coasts that the file lacks are those of the
        bundled map.
    space
        The states, a grid.

    Returns
    -------
    RegionMap
        The map.

    Raises
    ------
    ConfigurationError
        If the states are not a grid.
    DataFileError, MissingDependencyError
        If the file cannot be read, or contains nothing of the region.
    """
    if not isinstance(space, Grid):
        raise ConfigurationError("a map requires a grid: named places and streets have no area")
    if source == COAST:
        return RegionMap(compute_land_shares(space), LAND_CREDIT)
    path = Path(source)
    latitude, longitude = space.latlon().T
    margin = 2 * space.cell_km / KM_PER_DEGREE
    wide = margin / max(float(np.cos(np.radians(np.abs(latitude).max()))), 0.01)
    box = latitude.min() - margin, longitude.min() - wide, latitude.max() + margin, longitude.max() + wide
    street_map = read_street_map(path, box)
    land = compute_land_shares(space, street_map.water, street_map.coast)
    if not land.any():  # an island that the bundled map lacks
        land = 1 - space.share_within(shapely.union_all(shapely.make_valid(street_map.water)))
    credit = get_credit(path)
    credit += "" if street_map.coast else f" {LAND_CREDIT}"
    return RegionMap(land, credit, _measure_content(space, street_map))


def get_credit(path: Path) -> str:
    """Return the attribution of a map file."""
    is_openstreetmap = get_suffix(path) in OPENSTREETMAP_SUFFIXES
    return "© OpenStreetMap contributors." if is_openstreetmap else f"Map: {path.name}."


# Pieces of streets per side of a cell: a street's length in a cell is accurate to about a tenth of the side.
_PIECES_PER_CELL = 10


def _measure_content(space: Grid, street_map: StreetMap) -> FloatArray | None:
    """Return the content of each state on a map. None if it contains land and water only."""
    if len(street_map.edges):
        count = np.ceil(street_map.lengths_km * _PIECES_PER_CELL / space.cell_km).clip(1).astype(np.int64)
        edge = np.repeat(np.arange(len(count)), count)
        along = (np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + 0.5) / count[edge]
        start, end = street_map.nodes[street_map.edges[edge]].transpose(1, 0, 2)
        # An edge may cross the date line.
        points = unwrap_longitudes(start + along[:, None] * (unwrap_longitudes(end, start[:, 1]) - start), 0.0)
        amount = street_map.lengths_km[edge] / count[edge]
    else:
        points = street_map.addresses if len(street_map.addresses) else street_map.buildings
        amount = np.ones(len(points))
    states = space.locate(*points.T) if len(points) else np.zeros(0, dtype=np.int64)
    inside = states >= 0
    if not inside.any():
        return None
    content = np.bincount(states[inside], amount[inside], minlength=space.size).astype(np.float64)
    # A file may cover a part of the region: beyond its extent, the content is unknown.
    plane = space.projection.to_plane(*points.T)
    half = space.cell_km / 2
    is_covered = ((space.points > plane.min(axis=0) - half) & (space.points < plane.max(axis=0) + half)).all(axis=1)
    content[~is_covered] = np.nan
    return content


# Components with fewer cells are announced: a repair may have to connect them to distant cells.
_MIN_ISLAND_CELLS = 4


@check_arguments
def restrict_region(
    space: StateSpace, layer: str | Path, region_map: RegionMap | None = None
) -> tuple[Grid, tuple[str, ...]]:
    """Restrict a grid to the cells that share any area with a layer.

    Locations in all other cells are then outside the region. This is a hard constraint, unlike the attraction of a map.

    Parameters
    ----------
    space
        The grid.
    layer
        A public layer of polygons, such as land.
    region_map
        A map of the region. Cells with streets or addresses are kept, so that bridges stay in the region.

    Returns
    -------
    restricted : Grid
        The grid with fewer states.
    warnings : tuple of str
        A sentence about small groups of cells that are apart from all others, if there are any.

    Raises
    ------
    ConfigurationError
        If the states are not a grid, or no cell shares area with the layer.
    DataFileError
        If the layer is invalid; see `dphmm.policy.zones.read_polygons`.
    """
    from scipy.ndimage import label

    if not isinstance(space, Grid):
        raise ConfigurationError("--only-on requires a grid: named places and streets have no area")
    kept = space.share_within(shapely.union_all([shape for _, shape in read_polygons(str(layer))])) > 0
    if not kept.any():
        raise ConfigurationError(f"--only-on must share area with the region, got {layer}")
    if region_map is not None and region_map.content is not None:
        kept |= np.nan_to_num(region_map.content) > 0
    mask = np.zeros((space.rows, space.columns), dtype=np.bool_)
    column, row = space.lattice[kept].T
    mask[row, column] = True
    # Cells are adjacent if they share a side or a corner.
    labels, _ = label(mask, np.ones((3, 3)))
    component = labels[row, column]
    points = space.points[kept]
    small = [number for number, size in enumerate(np.bincount(component)) if 0 < size < _MIN_ISLAND_CELLS]
    warnings: tuple[str, ...] = ()
    if small and len(small) < labels.max():
        distances = (cKDTree(points[component != number]).query(points[component == number])[0] for number in small)
        gaps = [float(np.min(distance)) for distance in distances]
        warnings = (
            f"{len(small):,} groups of fewer than {_MIN_ISLAND_CELLS} cells lie apart from all others, by up to "
            f"{max(gaps):.3g} km. A release may have to connect them to distant cells, which raises the error of all "
            'users: remove them from the layer, or use noise_scope = "component" or delta.',
        )
    return Grid(space.projection, space.origin_m, space.cell_km, space.columns, space.rows, mask), warnings
