"""Channels that add noise to true places, anew at each time or once for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, locked
from dphmm.attack.cells import disc_shares, gaussian_logs, laplace_logs
from dphmm.attack.channel import Blurred, Channel, logs_of, same_as_before
from dphmm.attack.hidden import Posterior, Zones, posterior_of_paths, posterior_of_zones
from dphmm.attack.mesh import Mesh, Moves
from dphmm.attack.snapping import in_words
from dphmm.attack.track import Track
from dphmm.errors import ConfigurationError
from dphmm.space.grid import Grid

_MOST_PAIRS = 1 << 26


@dataclass(frozen=True)
class Exact(Channel):
    """The places as they are: what blurring is held against. The adversary sees no further than a part of a cell."""

    name: str = field(default="as it is", init=False)
    source: str = field(default="no blurring", init=False)

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - nothing is drawn
        """See `Channel`."""
        return Blurred(track.points, moves.mesh.at(track.points))

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`."""
        return logs_of(blurred.seen[some, None] == np.arange(len(moves.mesh.points)))

    def held(self, blurred: Blurred) -> BoolArray:
        """See `Channel`."""
        return same_as_before(blurred.seen)


@dataclass(frozen=True)
class Nothing(Channel):
    """Nothing is released: what the model alone tells at the times of the fixes."""

    name: str = field(default="nothing released", init=False)
    source: str = field(default="the model alone", init=False)

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - nothing is drawn
        """See `Channel`."""
        return Blurred(np.full(track.points.shape, np.nan), None)

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`."""
        return np.zeros((len(blurred.points[some]), moves.grid.size))


@dataclass(frozen=True)
class Gaussian(Channel):
    """Fresh normal noise at each time.

    Parameters
    ----------
    sigma_km
        The standard deviation north and east, kilometres.
    """

    sigma_km: float
    source: str = field(default="independent normal noise, the standard deviation along each axis", init=False)

    @property
    def name(self) -> str:  # type: ignore[override]
        """As a table shows it."""
        return f"fresh Gaussian, {in_words(self.sigma_km)}"

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - plain noise
        """See `Channel`."""
        released = track.points + rng.normal(0.0, self.sigma_km, track.points.shape)
        return Blurred(released, released)

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`: in closed form."""
        return gaussian_logs(moves.mesh, blurred.seen[some], self.sigma_km)


@dataclass(frozen=True)
class UniformDisc(Channel):
    """A fresh place anywhere within a distance, each as probable.

    Parameters
    ----------
    radius_km
        The distance, kilometres.
    """

    radius_km: float
    source: str = field(default="an independent place, even over a disc about the true one", init=False)

    @property
    def name(self) -> str:  # type: ignore[override]
        """As a table shows it."""
        return f"fresh within {in_words(self.radius_km)}"

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - plain noise
        """See `Channel`."""
        angle, far = 2 * np.pi * rng.random(len(track)), self.radius_km * np.sqrt(rng.random(len(track)))
        released = track.points + far[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
        return Blurred(released, released)

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`: in closed form."""
        return logs_of(disc_shares(moves.mesh, blurred.seen[some], self.radius_km))


@dataclass(frozen=True)
class PlanarLaplace(Channel):
    """Fresh planar Laplace noise: geo-indistinguishability (Andrés et al., CCS 2013), in real numbers.

    Parameters
    ----------
    mean_km
        The mean distance, kilometres: 2 / epsilon, which the browser extension Location Guard calls its radius.
    """

    mean_km: float
    source: str = field(
        default="geo-indistinguishability (Andres et al. 2013), the mean distance 2/epsilon; Location Guard's radius, "
        "500 m by default, without its cache",
        init=False,
    )

    @property
    def name(self) -> str:  # type: ignore[override]
        """As a table shows it."""
        return f"planar Laplace, {in_words(self.mean_km)}"

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - plain noise
        """See `Channel`."""
        angle, far = 2 * np.pi * rng.random(len(track)), rng.gamma(2.0, self.mean_km / 2, len(track))
        released = track.points + far[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
        return Blurred(released, released)

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`: by quadrature."""
        return laplace_logs(moves.mesh, blurred.seen[some], self.mean_km / 2)


@dataclass(frozen=True)
class FixedOffset(Channel):
    """One offset, drawn once for a person and added to every place.

    It is drawn evenly from the points of a lattice of a fortieth of the distance (12.5 m of 500 m) within a disc: so
    few that an adversary tries them all. Each makes a path of the releases, and the model says how probable that is.

    Parameters
    ----------
    radius_km
        How far the offset is at most, kilometres.
    """

    radius_km: float
    fineness: int = 40
    source: str = field(
        default="one offset per person, even over a lattice of 1/40 of the radius in a disc; all are tried", init=False
    )

    @property
    def name(self) -> str:  # type: ignore[override]
        """As a table shows it."""
        return f"fixed offset within {in_words(self.radius_km)}"

    @property
    def offsets(self) -> FloatArray:
        """``(K, 2)``, kilometres."""
        lattice = lattice_points(np.array([[-1.0, -1.0], [1.0, 1.0]]) * self.fineness, 1.0)
        return np.asarray(lattice[np.hypot(*lattice.T) <= self.fineness] * (self.radius_km / self.fineness))

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - plain noise
        """See `Channel`."""
        offsets = self.offsets
        released = track.points + offsets[rng.integers(len(offsets))]
        return Blurred(released, released)

    def posterior(self, blurred: Blurred, track: Track, moves: Moves) -> Posterior:
        """See `Channel`: a mixture over all offsets."""
        return posterior_of_paths(moves, track, blurred.seen, self.offsets, Mesh(moves.grid, 1).at)


@dataclass(frozen=True)
class TrimmedHome(Channel):
    """Everything within a distance of home is left out, all else released as it is.

    So do the privacy zones of fitness apps (Strava, Garmin and others; see Hassan et al., USENIX Security 2018, and
    Dhondt et al., CCS 2022), which trim the ends of a workout; here the rest of a life is released too. The centre of
    the zone is the point of a lattice of a fifth of the distance (100 m of 500 m) that is nearest to the home. The
    adversary knows the distance, the lattice and when something was left out, and tries every centre in the region.

    Parameters
    ----------
    radius_km
        The distance, kilometres.
    """

    radius_km: float
    source: str = field(
        default="privacy zones as of fitness apps: places near home left out, the radius known; every centre is tried",
        init=False,
    )

    @property
    def name(self) -> str:  # type: ignore[override]
        """As a table shows it."""
        return f"trimmed {in_words(self.radius_km)} about home"

    @property
    def _spacing(self) -> float:
        return self.radius_km / 5

    def centres(self, grid: Grid) -> FloatArray:
        """``(K, 2)``: every centre that a zone may have, kilometres."""
        reach = (grid.cell_km + self._spacing) / 2
        return lattice_points(
            np.array([grid.points.min(axis=0) - reach, grid.points.max(axis=0) + reach]), self._spacing
        )

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - nothing is drawn
        """See `Channel`."""
        centre = np.rint(track.haunt / self._spacing) * self._spacing
        hidden = np.hypot(*(track.points - centre).T) <= self.radius_km
        return Blurred(np.where(hidden[:, None], np.nan, track.points), None)

    def posterior(self, blurred: Blurred, track: Track, moves: Moves) -> Posterior:
        """See `Channel`: a mixture over all centres."""
        grid = moves.grid
        centres = self.centres(grid)
        alive = [np.hypot(*(centres - place).T) > self.radius_km for place in blurred.points]
        zones = Zones(_zone_shares(self, grid))
        if zones.cells.size * zones.cells.shape[1] > _MOST_PAIRS:
            raise ConfigurationError(
                f"zones of {in_words(self.radius_km)} hold up to {zones.cells.shape[1]} cells of "
                f"{in_words(grid.cell_km)}, too many to try every centre; take larger cells or a smaller region"
            )
        return posterior_of_zones(moves, track, blurred.points, alive, zones, centres)


@lru_cache(maxsize=1)
def _zone_shares(channel: TrimmedHome, grid: Grid) -> FloatArray:
    """``(K, N)``: the share of each cell in each zone, the same for everybody."""
    return locked(disc_shares(Mesh(grid, 1), channel.centres(grid), channel.radius_km))


def lattice_points(box: FloatArray, spacing: float) -> FloatArray:
    """``(K, 2)``: the multiples of a length within a box ``[[west, south], [east, north]]``, its border included."""
    first, last = np.ceil(box[0] / spacing - 1e-9), np.floor(box[1] / spacing + 1e-9)
    sides = [np.arange(low, high + 1) for low, high in zip(first, last, strict=True)]
    return spacing * np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
