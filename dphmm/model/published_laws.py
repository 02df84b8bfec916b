"""A model of a region without data of people: what is possible by speed, what is probable by published laws.

Within a step a person rests with a probability ``rest``, otherwise gets as far as a law of distances says, in any
direction alike, and no further than the highest speed. Nothing of a place is known but where it is: all attract alike,
and each is as probable as the first. What it costs beside a model that was learned is in docs/explanation/models.md.

The kinds, and where their figures are from:

- ``everyday``: people travel 1.1 h of a day (Schafer and Victor, Transp. Res. A 34, 2000), and rest otherwise; how far
  those get who do not rest follows the truncated power law of phones, ``(r + 1.5 km)^-1.75 exp(-r / 400 km)``
  (González, Hidalgo, Barabási, Nature 453, 2008).
- ``walking``, ``cycling``, ``driving``: recordings of people on their way. How far by one means of transport follows
  an exponential law (Yan, Han, Wang, Zhou, Sci. Rep. 3, 2678, 2013), here with the mean that a usual speed gives: 5.1
  km/h on foot (1.42 m/s, the preferred walking speed; Browning et al., J. Appl. Physiol. 100, 2006), 16 km/h by bicycle
  (10 miles an hour, about the middle of the studies that Allen et al., Transp. Res. Rec. 1636, 1998, compile), and by
  car 53.7 km/h while it moves, that is 46.5 km/h with 13.4 % of the time standing (the WLTC of class 3, UN GTR 15). The
  same 13.4 % is taken for those on foot and by bicycle, for which we know no better figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError
from dphmm.model.fitting import RegionKernel
from dphmm.model.model import MarkovModel
from dphmm.model.speed_limit import MAX_SPEED_KMH, SpeedLimit
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace

_PIECES, _NEAREST, _FARTHEST_KM, _SMALLEST_KM = 8192, 1e-8, 20_000.0, 1e-12
"""Distances are summed over pieces that grow, up to half way around the Earth."""
_LEAST = 1e-9
"""No ring of distances is impossible."""

NOBODY = "nobody"
"""Whom a blank model was learned from, as its file says."""


@dataclass(frozen=True)
class Kind:
    """How people move in general.

    Parameters
    ----------
    rest
        The probability of resting through a step.
    speed_kmh
        How fast those are on average who do not, of an exponential law; 0 for the power law of phones.
    max_speed_kmh
        The highest speed, unless another is said.
    step_seconds
        The usual time step.
    """

    rest: float
    speed_kmh: float
    max_speed_kmh: float
    step_seconds: float

    @property
    def law(self) -> str:
        """How far those get who do not rest, in words."""
        if self.speed_kmh:
            return f"exponential, {self.speed_kmh:g} km/h on average"
        return "power law of exponent 1.75 from 1.5 km on, cut off at 400 km"

    def density(self, distance: FloatArray, hours: float) -> FloatArray:
        """How probable distances are, up to a factor.

        Parameters
        ----------
        distance
            ``(n,)``: kilometres.
        hours
            How long a step is.

        Returns
        -------
        FloatArray
            ``(n,)``.
        """
        if self.speed_kmh:
            return np.asarray(np.exp(-distance / (self.speed_kmh * hours)))
        return np.asarray((distance + 1.5) ** -1.75 * np.exp(-distance / 400.0))


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "everyday": Kind(1 - 1.1 / 24, 0.0, MAX_SPEED_KMH, 300.0),
        "walking": Kind(0.134, 5.1, 20.0, 60.0),
        "cycling": Kind(0.134, 16.0, 70.0, 60.0),
        "driving": Kind(0.134, 53.7, MAX_SPEED_KMH, 60.0),
    }
)
"""How people move, by name."""


def kind_of(name: str) -> Kind:
    """The kind of a name.

    Raises
    ------
    ConfigurationError
        When there is none.
    """
    if name not in KINDS:
        raise ConfigurationError(f"kind is {name!r}; give one of {', '.join(KINDS)}")
    return KINDS[name]


@checked
def blank(
    space: StateSpace, step_seconds: float, kind: str = "everyday", max_speed_kmh: float | None = None
) -> MarkovModel:
    """A model of a region alone.

    Parameters
    ----------
    space
        The states.
    step_seconds
        One time step.
    kind
        How people move, one of `KINDS`.
    max_speed_kmh
        The highest speed, which decides what is possible; left out, that of the kind.

    Returns
    -------
    MarkovModel
        Every move that the speed allows has mass, and every state may be the first, all alike.

    Raises
    ------
    ConfigurationError
        For another kind, and as `SpeedLimit`.

    Examples
    --------
    >>> town = Grid.over((45.0, 7.0, 45.05, 7.07), 0.5)
    >>> made = blank(town, 60, "walking")
    >>> made.size, made.possible_moves, round(float(made.transition[60, 60]), 2)
    (144, 1156, 0.84)
    """
    about = kind_of(kind)
    reach = SpeedLimit(space, step_seconds, about.max_speed_kmh if max_speed_kmh is None else max_speed_kmh)
    kernel = RegionKernel(reach, _ring_shares(reach, about), np.ones(space.size))
    model = MarkovModel(reach.with_data(kernel.data()), np.full(space.size, 1 / space.size), space, float(step_seconds))
    return model.saying(
        {
            "promise": "nobody's movement is in it: it follows from the region, the step, the speed and published laws",
            "learned_from": NOBODY,
            "kind": kind,
            "share_at_rest": about.rest,
            "distances": about.law,
            "max_speed_kmh": reach.max_speed_kmh,
            "assumes": "no place is likelier than another, no one knows where they go, and all stay in the region",
        }
    )


def _ring_shares(reach: SpeedLimit, kind: Kind) -> FloatArray:
    """``(rings,)``: how probable each ring of distances is, staying first.

    Who moves less than their cell is wide may still be in it (Buffon and Laplace's needle).
    """
    far = max(min(reach.distance_km, _FARTHEST_KM), _SMALLEST_KM)
    ends = np.concatenate([[0.0], np.geomspace(_NEAREST * far, far, _PIECES)])
    middles = (ends[1:] + ends[:-1]) / 2
    mass = kind.density(middles, reach.step_seconds / 3600) * np.diff(ends)
    mass *= (1 - kind.rest) / mass.sum()
    if isinstance(reach.space, Grid):
        needle = np.minimum(middles / reach.space.cell_km, 1.0)
        stays = 1 - (4 * needle - needle**2) / np.pi
        stays[needle == 1.0] = 0.0
    else:
        stays = np.where(middles < reach.ring_ends_km[0] / 2, 1.0, 0.0)
    ring = 1 + np.searchsorted(reach.ring_ends_km, middles)
    shares = np.bincount(ring, mass * (1 - stays), minlength=reach.ring_count)
    shares[0] = kind.rest + mass @ stays
    return np.asarray(np.maximum(shares, _LEAST))
