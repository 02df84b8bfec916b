"""Deployed ways of blurring: rounding and grids, noise, privacy zones; and their texts, such as ``round:3``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, locked
from dphmm.attack.mesh import Mesh, Moves, Upright, disc_shares, gaussian_logs, laplace_logs, logs_of
from dphmm.attack.noise_channel import Blurred, Channel, Released, in_words, same_as_before
from dphmm.attack.posterior import Posterior, Track, Zones, posterior_of_drift, posterior_of_paths, posterior_of_zones
from dphmm.errors import ConfigurationError, PolicyError
from dphmm.policy.lengths import kilometres
from dphmm.release.engine import ReleaseSettings
from dphmm.release.settings import A_DRAW, Schedule
from dphmm.space.grid import Grid

METRES_PER_DEGREE = 111_000.0
"""Android's constant for a degree of latitude, and of longitude at the equator."""

_ANYTHING = 1e-9
"""What Android's adversary leaves to any output everywhere: an offset may lie further out than their squares do."""

_MOST_LATITUDE = 90.0 - 1.0 / METRES_PER_DEGREE


class DeployedChannel(Channel):
    """A channel out of a text, named after its settings.

    Attributes
    ----------
    label
        Its name, with a pair of braces for each of its first fields: lengths are put in with their unit.
    """

    label: str

    @property
    def name(self) -> str:  # type: ignore[override]
        """As a table shows it."""
        values = [in_words(value) if name.endswith("_km") else value for name, value in vars(self).items()]
        return self.label.format(*values)

    @property
    def family(self) -> str:  # type: ignore[override]
        """See `Channel`: the name without its number."""
        return "" if "{}" not in self.label else self.label.replace("{}", "…").removesuffix(", …")


class Snapping(DeployedChannel):
    """A channel that releases one place for all places of a rectangle of degrees: an exact partition.

    ``k(z | s)`` is the share of a cell or a part of one in the rectangle, an overlap of rectangles (see
    `dphmm.attack.mesh.Upright` for how upright a cell is).
    """

    draws = False

    @abstractmethod
    def snap(self, latitude: FloatArray, longitude: FloatArray) -> FloatArray:
        """``(T, 2)``: the released latitudes and longitudes, degrees."""

    @abstractmethod
    def around(self, released: FloatArray) -> FloatArray:
        """``(T, 2)``: half the height and width of the rectangles about released places, degrees."""

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - nothing is drawn
        """See `Channel`."""
        released = self.snap(track.latitude, track.longitude)
        return Blurred(moves.grid.projection.to_plane(*released.T), released)

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`: overlaps of rectangles."""
        upright = Upright(moves.mesh)
        outputs, which = np.unique(blurred.seen[some], axis=0, return_inverse=True)
        middle, half = np.column_stack([outputs[:, 0], upright.along(outputs[:, 1])]), self.around(outputs)
        shares = upright.shares(middle - half, middle + half)
        for row in np.flatnonzero(~(shares > 0).any(axis=1)).tolist():  # a sliver at the region's border
            shares[row, np.hypot(*(moves.mesh.points - blurred.points[some][which.ravel() == row][0]).T).argmin()] = 1.0
        return logs_of(shares)[which.ravel()]


@dataclass(frozen=True)
class Rounding(Snapping):
    """Latitude and longitude rounded to some decimal digits, as in many apps, forms and public data sets.

    Parameters
    ----------
    digits
        0 to 7; 3 digits are 111 m of latitude.
    """

    digits: int
    label = "rounded to {} digits"
    source = "decimal digits of degrees, rounded to the nearest"

    def snap(self, latitude: FloatArray, longitude: FloatArray) -> FloatArray:
        """See `Snapping`."""
        return np.asarray(np.round(np.column_stack([latitude, longitude]), self.digits), dtype=np.float64)

    def around(self, released: FloatArray) -> FloatArray:
        """See `Snapping`."""
        return np.full(released.shape, 0.5 * 10.0**-self.digits)


@dataclass(frozen=True)
class Meshtastic(Snapping):
    """Meshtastic's position precision: the first bits of a whole number of 1e-7 degrees, and the middle of the rest.

    ``truncateCoordinate`` in ``src/mesh/PositionPrecision.cpp`` of the firmware (commit 931073c2; earlier the same
    lines stood in ``PositionModule.cpp``, since 2.2.24): the coordinate as 32 bits is masked with ``UINT32_MAX << (32 -
    bits)``, and ``1 << (31 - bits)`` is added. Channels with a public key are held to 15 bits; 13 is a usual setting.

    Parameters
    ----------
    bits
        1 to 31.
    """

    bits: int
    label = "Meshtastic, {} bits"
    source = "Meshtastic firmware since 2.2.24; truncateCoordinate in src/mesh/PositionPrecision.cpp at 931073c2"

    def truncated(self, coordinate: npt.ArrayLike) -> IntArray:
        """Whole numbers of 1e-7 degrees as the firmware makes them of such numbers."""
        bits = np.asarray(coordinate, dtype=np.int64).astype(np.uint32)
        kept = bits & np.uint32((0xFFFFFFFF << (32 - self.bits)) & 0xFFFFFFFF)
        return (kept + np.uint32(1 << (31 - self.bits))).astype(np.int32).astype(np.int64)

    def snap(self, latitude: FloatArray, longitude: FloatArray) -> FloatArray:
        """See `Snapping`."""
        return self.truncated(np.rint(np.column_stack([latitude, longitude]) * 1e7)) / 1e7

    def around(self, released: FloatArray) -> FloatArray:
        """See `Snapping`."""
        return np.full(released.shape, 2.0 ** (31 - self.bits) / 1e7)


@dataclass(frozen=True)
class GridSnapping(Snapping):
    """Places moved to the nearest point of a grid of degrees that is about square: Android's snap without its offset.

    Parameters
    ----------
    side_km
        The side of a square, kilometres of 111,000 m to the degree.
    """

    side_km: float
    label = "snapped to {}"
    source = "snap-to-grid alone, with the arithmetic of Android's LocationFudger"

    def snap(self, latitude: FloatArray, longitude: FloatArray) -> FloatArray:
        """See `Snapping`."""
        return snapped(latitude, longitude, 1000 * self.side_km)

    def around(self, released: FloatArray) -> FloatArray:
        """See `Snapping`."""
        half = np.full(len(released), 500 * self.side_km / METRES_PER_DEGREE)
        return np.column_stack([half, half / np.cos(np.radians(released[:, 0]))])


def snapped(latitude: FloatArray, longitude: FloatArray, accuracy_m: float) -> FloatArray:
    """The end of Android's ``createCoarse``: latitude first, since the steps of longitude depend on it; ``(T, 2)``."""
    step = accuracy_m / METRES_PER_DEGREE
    found = np.clip(np.floor(latitude / step + 0.5) * step, -_MOST_LATITUDE, _MOST_LATITUDE)  # Math.round is so
    across = step / np.cos(np.radians(found))
    along = np.floor(longitude / across + 0.5) * across
    return np.column_stack([found, (along + 180.0) % 360.0 - 180.0])


@dataclass(frozen=True)
class AndroidCoarse(DeployedChannel):
    """Android's approximate location: a random offset that moves slowly, then a grid of 2 km.

    ``LocationFudger.createCoarse`` of the Android Open Source Project, versions 11 to 15 (later ones may take a grid of
    S2 cells by population instead, which this is not): an offset, normal with a quarter of the accuracy as its standard
    deviation north and east, is added; latitude and then longitude are rounded to the accuracy. Once an hour a location
    is asked for, the offset becomes ``sqrt(1 - 0.03²)`` times itself plus 0.03 times a new one.

    The offset is a hidden variable of the adversary's. It is drawn in real numbers; the adversary's offsets lie in
    squares of a sixth of the accuracy, up to two and a half standard deviations out, and move by a chain of births and
    deaths with the same distribution at rest and the same variance an hour; one part in 10^9 is left to anything else,
    and cells are taken whole. That is the
    adversary's alone and does not touch what is released; squares of a fourth or a tenth change mean errors in the
    synthetic city by 3 % at most. They know at which releases the offset moves.

    Parameters
    ----------
    accuracy_km
        The accuracy that apps are allowed, kilometres; at least 0.2, as Android has it.
    """

    accuracy_km: float = 2.0
    squares: int = 6
    label = "Android approximate, {}"
    source = "AOSP LocationFudger.createCoarse, Android 11 to 15, 2 km by default; read from its source"

    @property
    def _sigma_m(self) -> float:
        return 1000 * self.accuracy_km / 4

    def moments(self, track: Track) -> BoolArray:
        """``(T,)``: whether the offset moves just before each release: an hour or more after it did last."""
        last, found = 0.0, np.zeros(len(track), dtype=np.bool_)
        for t, second in enumerate(((track.slots - track.slots[0]) * track.step_seconds).tolist()):
            if second >= last + 3600.0:
                found[t], last = True, second
        return found

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:
        """See `Channel`."""
        moved = self.moments(track)
        news = rng.normal(0.0, self._sigma_m, (int(moved.sum()) + 1, 2))
        offsets = [news[0]]
        for new in news[1:]:
            offsets.append(np.sqrt(1 - 0.03 * 0.03) * offsets[-1] + 0.03 * new)
        places = np.column_stack([track.latitude, track.longitude])
        released = self.blur_with(places, np.array(offsets)[np.cumsum(moved)])
        return Blurred(moves.grid.projection.to_plane(*released.T), released)

    def blur_with(self, places: FloatArray, offsets: FloatArray) -> FloatArray:
        """``(T, 2)``: what is released of latitudes and longitudes under offsets north and east, metres."""
        latitude, longitude = places.T
        north, east = offsets.T
        longitude = longitude + east / METRES_PER_DEGREE / np.cos(np.radians(latitude))
        latitude = np.clip(latitude + north / METRES_PER_DEGREE, -_MOST_LATITUDE, _MOST_LATITUDE)
        return snapped(latitude, longitude, 1000 * self.accuracy_km)

    def lattice(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Offsets along an axis, metres ``(k,)``, how they are distributed, and how they move in an hour ``(k, k)``."""
        sigma, side = self._sigma_m, 1000 * self.accuracy_km / self.squares
        reach = int(np.ceil(2.5 * sigma / side))
        offsets = side * np.arange(-reach, reach + 1.0)
        edges = np.concatenate([[-np.inf], offsets[:-1] + side / 2, [np.inf]])
        rest = np.diff(ndtr(edges / sigma))
        # A step to a neighbour is as probable as gives half the hour's variance each way, in detailed balance.
        rate = (0.03 * sigma) ** 2 / (2 * side**2)
        up = rate * np.minimum(1.0, rest[1:] / rest[:-1])
        down = rate * np.minimum(1.0, rest[:-1] / rest[1:])
        moved = np.diag(up, 1) + np.diag(down, -1)
        return offsets, rest, moved + np.diag(1 - moved.sum(axis=1))

    def posterior(self, blurred: Blurred, track: Track, moves: Moves) -> Posterior:
        """See `Channel`: a pass over states and offsets together."""
        upright = Upright(Mesh(moves.grid, 1))
        offsets, rest, hour = self.lattice()
        outputs, which = np.unique(blurred.seen, axis=0, return_inverse=True)
        latitude = moves.grid.latlon()[:, :1]
        shares = [self.shares(upright, latitude, output, offsets) for output in outputs]
        prior, drift = (np.asarray(np.kron(one, one), dtype=np.float64) for one in (rest, hour))
        held = same_as_before(blurred.seen)
        return posterior_of_drift(
            moves, track, lambda t: shares[which.ravel()[t]], held, prior, drift, self.moments(track)
        )

    def shares(self, upright: Upright, latitude: FloatArray, released: FloatArray, offsets: FloatArray) -> FloatArray:
        """``(N, k * k)``: how probable an output is in each cell under each pair of offsets, north before east.

        Cell and square of offsets are both taken as even. ``latitude`` is that of the cells' middles, ``(N, 1)``.
        """
        step = 1000 * self.accuracy_km / METRES_PER_DEGREE
        across, along = step / np.cos(np.radians(released[0])), float(upright.along(released[1:])[0])
        side = np.full((1, 1), offsets[1] - offsets[0]) / METRES_PER_DEGREE
        north = offsets[None, :] / METRES_PER_DEGREE
        rows = upright.blurred_shares(0, released[0] - step / 2, released[0] + step / 2, north, side)
        width = 1 / np.cos(np.radians(latitude))
        columns = upright.blurred_shares(1, along - across / 2, along + across / 2, north * width, side * width)
        found = (rows[:, :, None] * columns[:, None, :]).reshape(len(rows), -1)
        return np.asarray(_ANYTHING + (1.0 - _ANYTHING) * found)


_MOST_PAIRS = 1 << 26


@dataclass(frozen=True)
class Exact(DeployedChannel):
    """The places as they are: what blurring is held against. The adversary sees no further than a part of a cell."""

    label = "as it is"
    draws = False
    source = "no blurring"

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - nothing is drawn
        """See `Channel`."""
        return Blurred(track.points, moves.mesh.at(track.points))

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`."""
        return logs_of(blurred.seen[some, None] == np.arange(len(moves.mesh.points)))


@dataclass(frozen=True)
class Hourly(Exact):
    """A place as it is, once in some hours, and repeated until the next: an app that reports seldom.

    That it is repeated is no news, and the adversary knows when it is: the times follow from the clock alone.

    Parameters
    ----------
    hours
        How long a place is repeated.
    """

    hours: int
    label = "one place in {} h"
    draws = True  # of a place that is repeated nothing is told, neither that the person stayed nor that they went
    source = "the true place at the first time in each span of hours of the clock, repeated until the next"

    def fresh(self, track: Track) -> BoolArray:
        """``(T,)``: whether each place is told anew: at the first time in a span of the clock."""
        spans = track.slots * track.step_seconds // (3600 * self.hours)
        return np.append(True, spans[1:] != spans[:-1])[: len(track)]

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - nothing is drawn
        """See `Channel`."""
        fresh = self.fresh(track)
        told = np.maximum.accumulate(np.where(fresh, np.arange(len(track)), 0))
        return Blurred(track.points[told], np.where(fresh, moves.mesh.at(track.points), -1))

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`."""
        return np.where(blurred.seen[some, None] < 0, 0.0, super().log_rows(blurred, moves, some))


@dataclass(frozen=True)
class Nothing(DeployedChannel):
    """Nothing is released: what the model alone tells at the times of the fixes."""

    label = "nothing released"
    source = "the model alone"

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - nothing is drawn
        """See `Channel`."""
        return Blurred(np.full(track.points.shape, np.nan), None)

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`."""
        return np.zeros((len(blurred.points[some]), moves.grid.size))


@dataclass(frozen=True)
class FreshNoise(DeployedChannel):
    """A channel that adds noise drawn anew at each time.

    Parameters
    ----------
    length_km
        How far it reaches, kilometres; see each.
    """

    length_km: float

    @abstractmethod
    def noise(self, count: int, rng: np.random.Generator) -> FloatArray:
        """``(count, 2)``: noise, kilometres."""

    @abstractmethod
    def log_densities(self, mesh: Mesh, released: FloatArray) -> FloatArray:
        """``(T, N Q)``: the log density of released places ``(T, 2)`` given each part, up to a constant."""

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - plain noise
        """See `Channel`."""
        released = track.points + self.noise(len(track), rng)
        return Blurred(released, released)

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`."""
        return self.log_densities(moves.mesh, blurred.points[some])


def in_direction(turns: FloatArray, distances: FloatArray) -> FloatArray:
    """``(n, 2)``: points at some distances from zero, in directions given as parts of a full turn, ``(n,)`` each."""
    angles = 2 * np.pi * turns
    return np.asarray(distances[:, None] * np.column_stack([np.cos(angles), np.sin(angles)]))


class Gaussian(FreshNoise):
    """Fresh normal noise at each time.

    Its length is the standard deviation north and east.
    """

    label = "fresh Gaussian, {}"
    source = "independent normal noise, the standard deviation along each axis"

    def noise(self, count: int, rng: np.random.Generator) -> FloatArray:
        """See `FreshNoise`."""
        return rng.normal(0.0, self.length_km, (count, 2))

    def log_densities(self, mesh: Mesh, released: FloatArray) -> FloatArray:
        """See `FreshNoise`: in closed form."""
        return gaussian_logs(mesh, released, self.length_km)


class UniformDisc(FreshNoise):
    """A fresh place anywhere within a distance, each as probable.

    Its length is that distance.
    """

    label = "fresh within {}"
    source = "an independent place, even over a disc about the true one"

    def noise(self, count: int, rng: np.random.Generator) -> FloatArray:
        """See `FreshNoise`."""
        return in_direction(rng.random(count), self.length_km * np.sqrt(rng.random(count)))

    def log_densities(self, mesh: Mesh, released: FloatArray) -> FloatArray:
        """See `FreshNoise`: in closed form."""
        return logs_of(disc_shares(mesh, released, self.length_km))


class PlanarLaplace(FreshNoise):
    """Fresh planar Laplace noise: geo-indistinguishability (Andrés et al., CCS 2013), in real numbers.

    Its length is the mean distance: 2 / epsilon, which the browser extension Location Guard calls its radius.
    """

    label = "planar Laplace, {}"
    source = (
        "geo-indistinguishability (Andres et al. 2013), the mean distance 2/epsilon; Location Guard's radius, "
        "500 m by default, without its cache"
    )

    def noise(self, count: int, rng: np.random.Generator) -> FloatArray:
        """See `FreshNoise`."""
        return in_direction(rng.random(count), rng.gamma(2.0, self.length_km / 2, count))

    def log_densities(self, mesh: Mesh, released: FloatArray) -> FloatArray:
        """See `FreshNoise`: by quadrature."""
        return laplace_logs(mesh, released, self.length_km / 2)


@dataclass(frozen=True)
class FixedOffset(DeployedChannel):
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
    label = "fixed offset within {}"
    source = "one offset per person, even over a lattice of 1/40 of the radius in a disc; all are tried"

    @cached_property
    def offsets(self) -> FloatArray:
        """``(K, 2)``, kilometres."""
        lattice = lattice_points(np.array([[-1.0, -1.0], [1.0, 1.0]]) * self.fineness, 1.0)
        return np.asarray(lattice[np.hypot(*lattice.T) <= self.fineness] * (self.radius_km / self.fineness))

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - plain noise
        """See `Channel`."""
        released = track.points + self.offsets[rng.integers(len(self.offsets))]
        return Blurred(released, released)

    def posterior(self, blurred: Blurred, track: Track, moves: Moves) -> Posterior:
        """See `Channel`: a mixture over all offsets."""
        return posterior_of_paths(moves, track, blurred.seen, self.offsets, Mesh(moves.grid, 1).at)


@dataclass(frozen=True)
class TrimmedHome(DeployedChannel):
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
    label = "trimmed {} about home"
    source = "privacy zones as of fitness apps: places near home left out, the radius known; every centre is tried"

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
        centre = np.rint(track.usual_place / self._spacing) * self._spacing
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


DEFAULT_CHANNELS = (
    "exact",
    "round:3",
    "round:2",
    "snap:1km",
    "snap:4km",
    "meshtastic:15",
    "meshtastic:13",
    "android",
    "offset:500m",
    "trim:500m",
    "planar-laplace:500m",
    "planar-laplace:4km",
    "hourly:1",
    "hourly:4",
    "release:utility:1km@day:48",
    "release:utility:1km@day:12",
    "release:utility:1km@day:3",
    "nothing",
)
"""What an attack tries unless it is told otherwise."""

_LEAST_KM, _MOST_KM = 0.001, 1000.0


@checked
def parse_channel(text: str) -> Channel:
    """A channel out of its text.

    Parameters
    ----------
    text
        One of ``exact``, ``nothing``, ``round:DIGITS``, ``meshtastic:BITS``, ``snap:LENGTH``, ``android`` or
        ``android:LENGTH``, ``gaussian:LENGTH`` (standard deviation along each axis), ``disc:LENGTH`` (radius),
        ``planar-laplace:LENGTH`` (mean distance), ``offset:LENGTH`` (radius), ``trim:LENGTH`` (radius),
        ``hourly:HOURS`` (one place in that time, repeated), and for this package's own ``release:POLICY@EPSILON`` (of
        each release), ``release:POLICY@day:EPSILON`` or ``release:POLICY@target:LENGTH``, the last two as
        ``--day-epsilon`` and ``--target-error`` of ``dphmm release``. A LENGTH is such as ``500m`` or ``1.2km``.

    Returns
    -------
    Channel
        The channel.

    Raises
    ------
    ConfigurationError
        When it is none of these, or a number is out of range.
    PolicyError, BudgetError
        As a policy or epsilon of its own releases says.

    Examples
    --------
    >>> parse_channel("meshtastic:13").name, parse_channel("android").name
    ('Meshtastic, 13 bits', 'Android approximate, 2 km')
    """
    kind, _, value = text.strip().partition(":")
    if kind in _PLAIN and not value:
        return _PLAIN[kind]()
    if kind in _LENGTHS:
        try:
            length = kilometres(value)
        except PolicyError:
            length = 0.0
        least = 0.2 if kind == "android" else _LEAST_KM
        if not least <= length <= _MOST_KM:
            raise ConfigurationError(
                f"channel {text!r} needs a length from {1000 * least:g}m to {_MOST_KM:g}km with its unit, such as "
                f"{kind}:500m"
            )
        return _LENGTHS[kind](length)
    if kind in _WHOLE:
        make, low, high = _WHOLE[kind]
        if not (value.isascii() and value.isdigit() and len(value) <= 4 and low <= int(value) <= high):
            raise ConfigurationError(
                f"channel {text!r} needs a whole number from {low} to {high}, as in {kind}:{high // 2}"
            )
        return make(int(value))
    if kind == "release":
        policy, _, budget = value.rpartition("@")
        if not (policy and budget):
            raise ConfigurationError(
                f"channel {text!r} needs a policy and an epsilon, such as release:utility:1km@1, or @day:3 or "
                "@target:900m for the epsilon"
            )
        aim, _, number = budget.rpartition(":")
        try:
            if aim == "day":
                return Released(ReleaseSettings.for_a_day(float(number), policy=policy))
            if aim == "target":
                return Released(ReleaseSettings(policy, A_DRAW, schedule=Schedule(kilometres(number))))
            return Released(ReleaseSettings(policy, float(budget)))
        except ValueError as problem:
            raise ConfigurationError(f"channel {text!r}: {problem}") from None
    raise ConfigurationError(
        f"channel {text!r} is none; give one of {', '.join([*_PLAIN, *(f'{name}:LENGTH' for name in _LENGTHS)])}, "
        "round:DIGITS, meshtastic:BITS, hourly:HOURS, release:POLICY@EPSILON, table:FILE, samples:FILE"
    )


_PLAIN: Mapping[str, Callable[[], Channel]] = {"exact": Exact, "nothing": Nothing, "android": AndroidCoarse}
_LENGTHS: Mapping[str, Callable[[float], Channel]] = {
    "snap": GridSnapping,
    "android": AndroidCoarse,
    "gaussian": Gaussian,
    "disc": UniformDisc,
    "planar-laplace": PlanarLaplace,
    "offset": FixedOffset,
    "trim": TrimmedHome,
}
_WHOLE: Mapping[str, tuple[Callable[[int], Channel], int, int]] = {
    "round": (Rounding, 0, 7),
    "meshtastic": (Meshtastic, 1, 31),
    "hourly": (Hourly, 1, 168),
}
