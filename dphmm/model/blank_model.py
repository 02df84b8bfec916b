"""Blank models of a region: mobility from published distributions, without data of users.

In each step a user rests with probability ``rest``. Otherwise the distance of the move follows a published
distribution, its direction is uniform, and the speed limit bounds it. Among the states at one distance, the target is
selected in proportion to its attraction, as is the initial state. The attraction is uniform, or that of a map
(`dphmm.model.map_attraction`). docs/explanation/models.md compares the accuracy with that of learned models.

The types of movement and the sources of their parameters:

- ``everyday``: a user travels 1.1 h per day (Schafer and Victor, Transp. Res. A 34, 2000) and rests otherwise. The
  distances of moves follow the truncated power law of mobile phones, ``(r + 1.5 km)^-1.75 exp(-r / 400 km)``
  (González, Hidalgo, Barabási, Nature 453, 2008).
- ``walking``, ``cycling``, ``driving``: recordings of trips. The distances covered by one means of transport follow an
  exponential distribution (Yan, Han, Wang, Zhou, Sci. Rep. 3, 2678, 2013). Its mean is that of a usual speed: 5.1 km/h
  on foot (1.42 m/s, the preferred walking speed; Browning et al., J. Appl. Physiol. 100, 2006), 16 km/h by bicycle (10
  miles per hour, about the middle of the studies compiled by Allen et al., Transp. Res. Rec. 1636, 1998), and 53.7 km/h
  by a moving car. The last is 46.5 km/h with 13.4 % of the time standing (the WLTC of class 3, UN GTR 15). The same
  13.4 % is used for walking and cycling, for which no better figure is known to us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError
from dphmm.model.learning import RegionKernel
from dphmm.model.model import MarkovModel
from dphmm.model.speed_limit import MAX_SPEED_KMH, Speed, SpeedLimit
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace
from dphmm.space.streets import Streets
from dphmm.validation import Seconds, check_arguments

# Densities are integrated over geometrically growing intervals, up to half the circumference of the Earth.
_NUM_INTERVALS = 8192
_MIN_RELATIVE_DISTANCE = 1e-8
_MAX_DISTANCE_KM = 20_000.0
_MIN_DISTANCE_KM = 1e-12
# Floor of the probability of a ring of distances: none is impossible.
_MIN_PROBABILITY = 1e-9

# The field ``learned_from`` in the provenance of a region prior.
NO_USERS = "no users"


@dataclass(frozen=True)
class Kind:
    """The parameters of a type of movement.

    Parameters
    ----------
    rest
        The probability of resting in a step.
    speed_kmh
        The mean speed of a user who does not rest, with exponentially distributed distances; 0 for the power law of
        mobile phones.
    max_speed_kmh
        The default speed limit.
    step_seconds
        The default timestep.
    """

    rest: float
    speed_kmh: float
    max_speed_kmh: float
    step_seconds: float

    @property
    def distance_distribution(self) -> str:
        """A description of the distribution of distances of users who do not rest."""
        if self.speed_kmh:
            return f"exponential, mean speed {self.speed_kmh:g} km/h"
        return "power law with exponent 1.75, offset 1.5 km and exponential cutoff at 400 km"

    def density(self, distance: FloatArray, hours: float) -> FloatArray:
        """Return the density of distances in a step, up to a factor.

        Parameters
        ----------
        distance
            ``(n,)``: distances in kilometres.
        hours
            The length of a step, in hours.

        Returns
        -------
        FloatArray
            ``(n,)``: unnormalised densities.
        """
        if self.speed_kmh:
            return np.asarray(np.exp(-distance / (self.speed_kmh * hours)))
        return np.asarray((distance + 1.5) ** -1.75 * np.exp(-distance / 400.0))


# The types of movement, by name.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "everyday": Kind(1 - 1.1 / 24, 0.0, MAX_SPEED_KMH, 300.0),
        "walking": Kind(0.134, 5.1, 20.0, 60.0),
        "cycling": Kind(0.134, 16.0, 70.0, 60.0),
        "driving": Kind(0.134, 53.7, MAX_SPEED_KMH, 60.0),
    }
)


def get_kind(name: str) -> Kind:
    """Return the type of movement with a name.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    if name not in KINDS:
        raise ConfigurationError(f"kind must be one of {', '.join(KINDS)}, got {name!r}")
    return KINDS[name]


@check_arguments
def region_prior(
    space: StateSpace,
    step_seconds: Seconds,
    kind: str = "everyday",
    max_speed_kmh: Speed | None = None,
    attraction: npt.ArrayLike | None = None,
) -> MarkovModel:
    """Build a mobility model of a region without data of users.

    Parameters
    ----------
    space
        The states.
    step_seconds
        The timestep, in seconds.
    kind
        The type of movement, one of `KINDS`.
    max_speed_kmh
        The speed limit, which determines the possible moves. Defaults to that of the type.
    attraction
        ``(N,)``: the attraction of each state, positive. Defaults to uniform; of segments of streets, to their lengths.

    Returns
    -------
    MarkovModel
        The model. Every move below the speed limit has mass, and the initial distribution is proportional to the
        attraction.

    Raises
    ------
    ConfigurationError
        If the type is unknown, or the speed limit allows too many moves; see `SpeedLimit`.
    InvalidInputError
        If the attraction does not consist of a positive number for each state.

    Examples
    --------
    >>> town = Grid.over((45.0, 7.0, 45.05, 7.07), 0.5)
    >>> model = region_prior(town, 60, "walking")
    >>> model.size, model.num_possible_moves, round(float(model.transition[60, 60]), 2)
    (144, 1156, 0.84)
    """
    parameters = get_kind(kind)
    reach = SpeedLimit(space, step_seconds, parameters.max_speed_kmh if max_speed_kmh is None else max_speed_kmh)
    assumed = "attraction by a map"
    if attraction is None:
        is_uniform = not isinstance(space, Streets)
        assumed = "uniform attraction" if is_uniform else "attraction by length of street"
        attraction = space.lengths_km if isinstance(space, Streets) else np.ones(space.size)
    kernel = RegionKernel(reach, _compute_ring_shares(reach, parameters), attraction)
    model = MarkovModel(reach.with_data(kernel.data()), kernel.attraction, space, float(step_seconds))
    return model.with_provenance(
        {
            "guarantee": "independent of all users' data: it depends on the region, the step, the speed limit and "
            "published distributions only",
            "learned_from": NO_USERS,
            "kind": kind,
            "resting_probability": parameters.rest,
            "distance_distribution": parameters.distance_distribution,
            "max_speed_kmh": reach.max_speed_kmh,
            "assumptions": f"{assumed}, uniform direction of moves, and no user leaves the region",
        }
    )


def _compute_ring_shares(reach: SpeedLimit, kind: Kind) -> FloatArray:
    """Return the probability of each ring of distances, ``(rings,)``, staying first.

    A user who moves less than the width of their cell may still be in it (the Buffon–Laplace needle problem).
    """
    far = max(min(reach.distance_km, _MAX_DISTANCE_KM), _MIN_DISTANCE_KM)
    ends = np.concatenate([[0.0], np.geomspace(_MIN_RELATIVE_DISTANCE * far, far, _NUM_INTERVALS)])
    middles = (ends[1:] + ends[:-1]) / 2
    mass = kind.density(middles, reach.step_seconds / 3600) * np.diff(ends)
    mass *= (1 - kind.rest) / mass.sum()
    if isinstance(reach.space, Grid):
        needle = np.minimum(middles / reach.space.cell_km, 1.0)
        stays = 1 - (4 * needle - needle**2) / np.pi
        stays[needle == 1.0] = 0.0
    elif isinstance(reach.space, Streets):
        # A location is uniform on the streets, and is in a segment in proportion to its length.
        lengths = reach.space.lengths_km
        stays = np.clip(1 - middles / (lengths @ lengths / lengths.sum()), 0.0, 1.0)
    else:
        # With a single ring, such as between two places, it ends at the distance that can be covered.
        first_end = reach.ring_ends_km[0] if len(reach.ring_ends_km) else reach.distance_km
        stays = np.where(middles < first_end / 2, 1.0, 0.0)
    ring = 1 + np.searchsorted(reach.ring_ends_km, middles)
    shares = np.bincount(ring, mass * (1 - stays), minlength=reach.ring_count)
    shares[0] = kind.rest + mass @ stays
    return np.asarray(np.maximum(shares, _MIN_PROBABILITY))
