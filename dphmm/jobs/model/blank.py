"""Models of regions without data of users."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dphmm.errors import ConfigurationError
from dphmm.formatting import Result
from dphmm.jobs.model.loading import check_model_output, credit_streets, summarize_size
from dphmm.jobs.model.region import find_smallest_cell, get_bounding_box, prepare_region
from dphmm.jobs.region_map import COAST
from dphmm.model.blank_model import get_kind, region_prior
from dphmm.model.model import MarkovModel
from dphmm.space import Grid, StateSpace
from dphmm.space.grid import Box
from dphmm.tables import create_file
from dphmm.validation import PositiveNumber, Seconds, check_arguments


@dataclass(frozen=True)
class RegionModelResult(Result):
    """A mobility model of a region without data of users.

    Parameters
    ----------
    model
        The model.
    warnings
        Warnings about the region.
    """

    model: MarkovModel
    warnings: tuple[str, ...] = ()

    def _derive_fields(self) -> dict[str, Any]:
        # Measured with grids.
        accuracy = {"accuracy": REGION_MODEL_ACCURACY} if isinstance(self.model.states, Grid) else {}
        return {**summarize_size(self.model), **(self.model.provenance or {}), **accuracy}


# The accuracy of a region model of a grid, compared with learned ones; see docs/explanation/models.md.
REGION_MODEL_ACCURACY = (
    "with the same guarantee, the errors of estimates for new users were 7 % smaller to 29 % larger than with a model "
    "learned from other users of their city (GeoLife, Gowalla, by type); an adversary who knows the region better has "
    "smaller errors than reported"
)


@check_arguments
def build_blank_model(
    space: StateSpace | None = None,
    step_seconds: Seconds | None = None,
    kind: str = "everyday",
    max_speed_kmh: PositiveNumber | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    *,
    bbox: Box | None = None,
    town: str | None = None,
    extent: str | Path | None = None,
    region_map: str | Path | None = COAST,
    only_on: str | Path | None = None,
) -> RegionModelResult:
    """Build a mobility model of a region without data of users, as ``dphmm model blank`` does.

    Parameters
    ----------
    space
        The states; see `region`. Defaults to cells of the box that `bbox`, `town` or `extent` defines: the smallest,
        from 250 m on, with at most `MAX_STATES` cells.
    step_seconds
        The timestep, in seconds. Defaults to 300 for everyday movement, otherwise 60.
    kind
        The type of movement: ``"everyday"`` (all day, with long rests), ``"walking"``, ``"cycling"`` or ``"driving"``
        (recordings of trips); see `dphmm.model.region_prior`.
    max_speed_kmh
        The speed limit, which determines the possible moves. Defaults to that of the type.
    output, overwrite
        A ``.npz`` file for the model, and whether an existing file may be replaced.
    bbox, town, extent
        One of them instead of the space; see `region`.
    region_map
        The map that determines the attraction of each cell (`dphmm.jobs.region_map.build_region_map`); None for equal
        attraction. Defaults to the bundled coasts and lakes. Named places have equal attraction by default. The map
        does not change which moves are possible.
    only_on
        A public layer of polygons: cells that share no area with it are removed, except those with streets of the map
        (`dphmm.jobs.region_map.restrict_region`).

    Returns
    -------
    RegionModelResult
        The model.

    Raises
    ------
    ConfigurationError
        If there is not exactly one region, the type is unknown, or too many moves are possible.
    OutputError
        If the output exists and may not be replaced.
    DataFileError, CoordinateError
        If the region is invalid.

    Examples
    --------
    >>> result = build_blank_model(bbox=(44.97, -30.04, 45.03, -29.96), kind="cycling")
    >>> result.model
    MarkovModel(states=702, transitions=62636)
    """
    parameters = get_kind(kind)
    if output is not None:
        check_model_output(output, overwrite)
    if (space is None) != (sum(region is not None for region in (bbox, town, extent)) == 1):
        raise ConfigurationError("exactly one region is required: pass space, or use one of --bbox, --town and extent")
    if space is None:
        box = get_bounding_box(bbox, town, extent)
        space = Grid.over(box, find_smallest_cell(box))
    step = parameters.step_seconds if step_seconds is None else step_seconds
    is_default_of_places = region_map == COAST and not isinstance(space, Grid)
    space, mapped_region, warnings = prepare_region(space, None if is_default_of_places else region_map, only_on)
    model = region_prior(space, step, kind, max_speed_kmh, None if mapped_region is None else mapped_region.attraction)
    if mapped_region is not None:
        model = model.with_provenance(
            {**(model.provenance or {}), "guarantee": _MAP_GUARANTEE, "map_credit": mapped_region.credit}
        )
    result = RegionModelResult(credit_streets(model), warnings)
    if output is not None:
        with create_file(output, overwrite) as part:
            result.model.save(part)
    return result


_MAP_GUARANTEE = (
    "independent of all users' data: it depends on the region, a public map, the step, the speed limit and published "
    "distributions only"
)
