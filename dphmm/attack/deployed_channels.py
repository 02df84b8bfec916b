"""Obfuscation methods in common use: rounding, grids, noise and privacy zones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, isqrt

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from dphmm.arrays import BoolArray, FloatArray, IntArray, make_read_only
from dphmm.attack.cell_integrals import (
    DegreeRectangles,
    compute_disc_shares,
    gaussian_log_densities,
    laplace_log_densities,
)
from dphmm.attack.mesh import Mesh, MeshMovement, log_or_neg_inf
from dphmm.attack.noise_channel import Channel, ObfuscatedTrack, ReleaseChannel, format_length, repeats_previous
from dphmm.attack.posterior import (
    Posterior,
    Track,
    Zones,
    infer_from_drifting_offset,
    infer_from_fixed_offset,
    infer_from_zones,
)
from dphmm.errors import ConfigurationError, PolicyError
from dphmm.policy.lengths import parse_length
from dphmm.release.engine import ReleaseSettings
from dphmm.release.settings import DEFAULT_DRAW_EPSILON, Schedule
from dphmm.space.grid import Grid
from dphmm.space.projection import wrap_longitude
from dphmm.tables.values import parse_number
from dphmm.validation import check_arguments

# Android's constant for a degree of latitude, and for a degree of longitude at the equator.
METRES_PER_DEGREE = 111_000.0

# Probability that Android's adversary reserves for any output, because offsets can lie outside the modelled squares.
_OUTLIER_SHARE = 1e-9

# Android keeps latitudes one metre away from the poles, where a degree of longitude has no length.
_MAX_LATITUDE = 90.0 - 1.0 / METRES_PER_DEGREE


class DeployedChannel(Channel):
    """A channel that can be specified by a string and is named after its settings.

    Attributes
    ----------
    label
        Template of the name with a pair of braces for each of the first fields. Lengths are inserted with their unit.
    """

    label: str

    @property
    def name(self) -> str:  # type: ignore[override]  # computed from the fields
        """The channel's name in tables."""
        values = [format_length(value) if name.endswith("_km") else value for name, value in vars(self).items()]
        return self.label.format(*values)

    @property
    def family(self) -> str:  # type: ignore[override]  # computed from the fields
        """The name without its number, see `Channel`."""
        return "" if "{}" not in self.label else self.label.replace("{}", "…").removesuffix(", …")


class Snapping(DeployedChannel):
    """A channel that releases one location for all locations of a rectangle in degrees.

    It is an exact partition. ``k(z | s)`` is the share of a cell, or of a part of a cell, in the rectangle (see
    `dphmm.attack.cell_integrals.DegreeRectangles` for the approximation of cells by rectangles).
    """

    is_random = False

    @abstractmethod
    def snap(self, latitude: FloatArray, longitude: FloatArray) -> FloatArray:
        """Return the released latitudes and longitudes ``(T, 2)``, degrees."""

    @abstractmethod
    def compute_half_sizes(self, released: FloatArray) -> FloatArray:
        """Return half the height and width of each output's rectangle, ``(T, 2)``, degrees."""

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:  # noqa: ARG002 - nothing is drawn
        """Release the snapped locations. See `Channel`."""
        released = self.snap(track.latitude, track.longitude)
        return ObfuscatedTrack(moves.grid.projection.to_plane(*released.T), released)

    def log_likelihood_rows(self, obfuscated: ObfuscatedTrack, moves: MeshMovement, times: slice) -> FloatArray:
        """Compute the overlaps of rectangles. See `Channel`."""
        rectangles = DegreeRectangles(moves.mesh)
        outputs, which = np.unique(obfuscated.observed[times], axis=0, return_inverse=True)
        middle = np.column_stack([outputs[:, 0], rectangles.center_longitude(outputs[:, 1])])
        half = self.compute_half_sizes(outputs)
        shares = rectangles.compute_overlap_shares(middle - half, middle + half)
        # The approximation of cells can leave a sliver at the region's border uncovered: use the nearest cell.
        for row in np.flatnonzero(~(shares > 0).any(axis=1)).tolist():
            point = obfuscated.points[times][which.ravel() == row][0]
            shares[row, np.hypot(*(moves.mesh.points - point).T).argmin()] = 1.0
        return log_or_neg_inf(shares)[which.ravel()]


@dataclass(frozen=True)
class Rounding(Snapping):
    """Latitude and longitude rounded to decimal digits, as in many apps and public data sets.

    Parameters
    ----------
    digits
        Number of digits, 0 to 7. With 3 digits the rounding step is 111 m of latitude.
    """

    digits: int
    label = "rounded to {} digits"
    source = "decimal digits of degrees, rounded to the nearest"

    def snap(self, latitude: FloatArray, longitude: FloatArray) -> FloatArray:
        """Round the coordinates. See `Snapping`."""
        return np.asarray(np.round(np.column_stack([latitude, longitude]), self.digits), dtype=np.float64)

    def compute_half_sizes(self, released: FloatArray) -> FloatArray:
        """Return half of the rounding step. See `Snapping`."""
        return np.full(released.shape, 0.5 * 10.0**-self.digits)


@dataclass(frozen=True)
class Meshtastic(Snapping):
    """Meshtastic's position precision: the leading bits of coordinates.

    Coordinates are in units of 1e-7 degrees.


    ``truncateCoordinate`` in ``src/mesh/PositionPrecision.cpp`` of the firmware (commit 931073c2; the same lines were
    in ``PositionModule.cpp`` since 2.2.24). The coordinate as 32 bits is masked with ``UINT32_MAX << (32 - bits)``, and
    ``1 << (31 - bits)`` is added, which gives the middle of the remaining interval. Channels with a public key are
    limited to 15 bits. 13 is a common setting.

    Parameters
    ----------
    bits
        Number of bits, 1 to 31.
    """

    bits: int
    label = "Meshtastic, {} bits"
    source = "Meshtastic firmware since 2.2.24; truncateCoordinate in src/mesh/PositionPrecision.cpp at 931073c2"

    def truncate(self, coordinate: npt.ArrayLike) -> IntArray:
        """Truncate integer coordinates in units of 1e-7 degrees as the firmware does."""
        bits = np.asarray(coordinate, dtype=np.int64).astype(np.uint32)
        kept = bits & np.uint32((0xFFFFFFFF << (32 - self.bits)) & 0xFFFFFFFF)
        return (kept + np.uint32(1 << (31 - self.bits))).astype(np.int32).astype(np.int64)

    def snap(self, latitude: FloatArray, longitude: FloatArray) -> FloatArray:
        """Truncate the coordinates. See `Snapping`."""
        return self.truncate(np.rint(np.column_stack([latitude, longitude]) * 1e7)) / 1e7

    def compute_half_sizes(self, released: FloatArray) -> FloatArray:
        """Return half of the truncation step. See `Snapping`."""
        return np.full(released.shape, 2.0 ** (31 - self.bits) / 1e7)


@dataclass(frozen=True)
class GridSnapping(Snapping):
    """Locations moved to the nearest point of an approximately square grid of degrees.

    It is the grid of Android's approximate location without the random offset.

    Parameters
    ----------
    side_km
        The side of a square, in kilometres at 111,000 m per degree.
    """

    side_km: float
    label = "snapped to {}"
    source = "snap-to-grid alone, with the arithmetic of Android's LocationFudger"

    def snap(self, latitude: FloatArray, longitude: FloatArray) -> FloatArray:
        """Snap the coordinates to the grid. See `Snapping`."""
        return snap_to_grid(latitude, longitude, 1000 * self.side_km)

    def compute_half_sizes(self, released: FloatArray) -> FloatArray:
        """Return half of the grid step. See `Snapping`."""
        half = np.full(len(released), 500 * self.side_km / METRES_PER_DEGREE)
        return np.column_stack([half, half / np.cos(np.radians(released[:, 0]))])


def snap_to_grid(latitude: FloatArray, longitude: FloatArray, accuracy_m: float) -> FloatArray:
    """Apply the grid of Android's ``createCoarse`` to coordinates, ``(T, 2)``."""
    step = accuracy_m / METRES_PER_DEGREE
    # floor(x + 0.5) is Java's Math.round. Latitude first: the step of longitude depends on the snapped latitude.
    latitudes = np.clip(np.floor(latitude / step + 0.5) * step, -_MAX_LATITUDE, _MAX_LATITUDE)
    longitude_step = step / np.cos(np.radians(latitudes))
    longitudes = np.floor(longitude / longitude_step + 0.5) * longitude_step
    return np.column_stack([latitudes, wrap_longitude(longitudes)])


@dataclass(frozen=True)
class AndroidCoarse(DeployedChannel):
    """Android's approximate location: a slowly changing random offset, then a grid of 2 km.

    ``LocationFudger.createCoarse`` of the Android Open Source Project, versions 11 to 15. Later versions may use a grid
    of S2 cells by population instead, which is not implemented. An offset is added, normally distributed with a
    standard deviation of a quarter of the accuracy in each direction. Latitude and then longitude are rounded to the
    accuracy. Once an hour, if a location is requested, the offset becomes ``sqrt(1 - 0.03²)`` times itself plus 0.03
    times a new one.

    The offset is a hidden variable for the adversary. The times of its changes are known. The channel samples real
    numbers. The adversary models offsets as squares with a side of a sixth of the accuracy, up to 2.5 standard
    deviations, that change by a birth–death chain with the same stationary distribution and the same variance per hour.
    A probability of 1e-9 is reserved for other outputs, and cells are not divided. These approximations concern the
    adversary only, not the released locations. With squares of a fourth or a tenth of the accuracy, mean errors in the
    synthetic city change by at most 3 %.

    Parameters
    ----------
    accuracy_km
        The accuracy that apps may request, in kilometres; at least 0.2, as in Android.
    """

    accuracy_km: float = 2.0
    squares: int = 6
    label = "Android approximate, {}"
    source = "AOSP LocationFudger.createCoarse, Android 11 to 15, 2 km by default; read from its source"

    @property
    def _sigma_m(self) -> float:
        return 1000 * self.accuracy_km / 4

    def find_offset_updates(self, track: Track) -> BoolArray:
        """Return whether the offset changes before each release: at most once an hour, ``(T,)``."""
        last = 0.0
        inside = np.zeros(len(track), dtype=np.bool_)
        for t, second in enumerate(((track.slots - track.slots[0]) * track.step_seconds).tolist()):
            if second >= last + 3600.0:
                inside[t] = True
                last = second
        return inside

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:
        """Add the changing offset and snap the locations. See `Channel`."""
        changes = self.find_offset_updates(track)
        noise = rng.normal(0.0, self._sigma_m, (int(changes.sum()) + 1, 2))
        offsets = [noise[0]]
        for sample in noise[1:]:
            offsets.append(np.sqrt(1 - 0.03 * 0.03) * offsets[-1] + 0.03 * sample)
        places = np.column_stack([track.latitude, track.longitude])
        released = self.obfuscate_with_offsets(places, np.array(offsets)[np.cumsum(changes)])
        return ObfuscatedTrack(moves.grid.projection.to_plane(*released.T), released)

    def obfuscate_with_offsets(self, places: FloatArray, offsets: FloatArray) -> FloatArray:
        """Release latitudes and longitudes under offsets north and east in metres, ``(T, 2)``."""
        latitude, longitude = places.T
        north, east = offsets.T
        longitude = longitude + east / METRES_PER_DEGREE / np.cos(np.radians(latitude))
        latitude = np.clip(latitude + north / METRES_PER_DEGREE, -_MAX_LATITUDE, _MAX_LATITUDE)
        return snap_to_grid(latitude, longitude, 1000 * self.accuracy_km)

    def build_offset_chain(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return offsets along an axis in metres, their distribution and their hourly transitions."""
        sigma = self._sigma_m
        side = 1000 * self.accuracy_km / self.squares
        reach = int(np.ceil(2.5 * sigma / side))
        offsets = side * np.arange(-reach, reach + 1.0)
        edges = np.concatenate([[-np.inf], offsets[:-1] + side / 2, [np.inf]])
        rest = np.diff(ndtr(edges / sigma))
        # The rate of a step to a neighbour gives half the hourly variance each way, in detailed balance.
        rate = (0.03 * sigma) ** 2 / (2 * side**2)
        up = rate * np.minimum(1.0, rest[1:] / rest[:-1])
        down = rate * np.minimum(1.0, rest[:-1] / rest[1:])
        moved = np.diag(up, 1) + np.diag(down, -1)
        return offsets, rest, moved + np.diag(1 - moved.sum(axis=1))

    def posterior(self, obfuscated: ObfuscatedTrack, track: Track, moves: MeshMovement) -> Posterior:
        """Run the smoother over cells and offsets jointly. See `Channel`."""
        rectangles = DegreeRectangles(Mesh(moves.grid, 1))
        offsets, rest, hour = self.build_offset_chain()
        outputs, which = np.unique(obfuscated.observed, axis=0, return_inverse=True)
        latitude = moves.grid.latlon()[:, :1]
        shares = [self.compute_output_probabilities(rectangles, latitude, output, offsets) for output in outputs]
        prior, drift = (np.asarray(np.kron(axis, axis), dtype=np.float64) for axis in (rest, hour))
        held = repeats_previous(obfuscated.observed)
        return infer_from_drifting_offset(
            moves, track, lambda t: shares[which.ravel()[t]], held, prior, drift, self.find_offset_updates(track)
        )

    def compute_output_probabilities(
        self, rectangles: DegreeRectangles, latitude: FloatArray, released: FloatArray, offsets: FloatArray
    ) -> FloatArray:
        """Return the probability of an output for each cell and pair of offsets, ``(N, k * k)``.

        Pairs are ordered north before east. Locations are uniform within a cell, and offsets within a square.
        ``latitude`` contains the latitudes of the cell centres, ``(N, 1)``.
        """
        step = 1000 * self.accuracy_km / METRES_PER_DEGREE
        longitude_step = step / np.cos(np.radians(released[0]))
        centre = float(rectangles.center_longitude(released[1:])[0])
        side = np.full((1, 1), offsets[1] - offsets[0]) / METRES_PER_DEGREE
        north = offsets[None, :] / METRES_PER_DEGREE
        rows = rectangles.compute_offset_shares(0, released[0] - step / 2, released[0] + step / 2, north, side)
        width = 1 / np.cos(np.radians(latitude))
        low, high = centre - longitude_step / 2, centre + longitude_step / 2
        columns = rectangles.compute_offset_shares(1, low, high, north * width, side * width)
        products = (rows[:, :, None] * columns[:, None, :]).reshape(len(rows), -1)
        return np.asarray(_OUTLIER_SHARE + (1.0 - _OUTLIER_SHARE) * products)


# Maximum number of cell pairs in all zones together: their transitions take half a gigabyte.
_MAX_PAIRS = 1 << 26


@dataclass(frozen=True)
class Exact(DeployedChannel):
    """The exact locations, as a reference. The adversary's resolution is a part of a cell."""

    label = "exact"
    is_random = False
    source = "no obfuscation"

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:  # noqa: ARG002 - nothing is drawn
        """Release the exact locations. See `Channel`."""
        return ObfuscatedTrack(track.points, moves.mesh.locate(track.points))

    def log_likelihood_rows(self, obfuscated: ObfuscatedTrack, moves: MeshMovement, times: slice) -> FloatArray:
        """Return 0 for the part with the location, otherwise minus infinity. See `Channel`."""
        return log_or_neg_inf(obfuscated.observed[times, None] == np.arange(len(moves.mesh.points)))


@dataclass(frozen=True)
class Hourly(Exact):
    """The exact location once in several hours, repeated until the next one.

    It models an app that reports rarely. The times follow from the clock, so the adversary knows which locations are
    repetitions and learns nothing from them.

    Parameters
    ----------
    hours
        The interval between locations.
    """

    hours: int
    label = "exact location every {} h"
    is_random = True  # a repeated location does not reveal whether the user stayed
    source = "the exact location at the first time in each interval of the clock, repeated until the next"

    def is_update(self, track: Track) -> BoolArray:
        """Return whether each location is new: the first in its interval of the clock, ``(T,)``."""
        spans = track.slots * track.step_seconds // (3600 * self.hours)
        return np.append(True, spans[1:] != spans[:-1])[: len(track)]

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:  # noqa: ARG002 - nothing is drawn
        """Release the exact location of each interval. See `Channel`."""
        fresh = self.is_update(track)
        source = np.maximum.accumulate(np.where(fresh, np.arange(len(track)), 0))
        return ObfuscatedTrack(track.points[source], np.where(fresh, moves.mesh.locate(track.points), -1))

    def log_likelihood_rows(self, obfuscated: ObfuscatedTrack, moves: MeshMovement, times: slice) -> FloatArray:
        """Return the rows of `Exact` for new locations and 0 for repetitions. See `Channel`."""
        return np.where(
            obfuscated.observed[times, None] < 0, 0.0, super().log_likelihood_rows(obfuscated, moves, times)
        )


@dataclass(frozen=True)
class NoRelease(DeployedChannel):
    """No release: the adversary has only the model and the times of the fixes."""

    label = "no release"
    source = "the model only"

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:  # noqa: ARG002 - nothing is drawn
        """Release nothing. See `Channel`."""
        return ObfuscatedTrack(np.full(track.points.shape, np.nan), None)

    def log_likelihood_rows(self, obfuscated: ObfuscatedTrack, moves: MeshMovement, times: slice) -> FloatArray:
        """Return zeros, because nothing is observed. See `Channel`."""
        return np.zeros((len(obfuscated.points[times]), moves.grid.size))


@dataclass(frozen=True)
class IndependentNoise(DeployedChannel):
    """A channel that adds independent noise at each time.

    Parameters
    ----------
    length_km
        The scale of the noise in kilometres, as defined by each subclass.
    """

    length_km: float

    @abstractmethod
    def sample_noise(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Sample noise ``(count, 2)``, kilometres."""

    @abstractmethod
    def log_densities(self, mesh: Mesh, released: FloatArray) -> FloatArray:
        """Return the log density of releases given each part, up to a constant, ``(T, N Q)``."""

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:  # noqa: ARG002 - plain noise
        """Add independent noise to each location. See `Channel`."""
        released = track.points + self.sample_noise(len(track), rng)
        return ObfuscatedTrack(released, released)

    def log_likelihood_rows(self, obfuscated: ObfuscatedTrack, moves: MeshMovement, times: slice) -> FloatArray:
        """Return the log densities of the noise. See `Channel`."""
        return self.log_densities(moves.mesh, obfuscated.points[times])


def convert_polar_to_plane(turns: FloatArray, distances: FloatArray) -> FloatArray:
    """Convert distances and directions, in fractions of a full turn, to points ``(n, 2)``."""
    angles = 2 * np.pi * turns
    return np.asarray(distances[:, None] * np.column_stack([np.cos(angles), np.sin(angles)]))


class Gaussian(IndependentNoise):
    """Independent normal noise at each time.

    The length is the standard deviation along each axis.
    """

    label = "fresh Gaussian, {}"
    source = "independent normal noise, the standard deviation along each axis"

    def sample_noise(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Sample normal noise. See `IndependentNoise`."""
        return rng.normal(0.0, self.length_km, (count, 2))

    def log_densities(self, mesh: Mesh, released: FloatArray) -> FloatArray:
        """Return the log densities in closed form. See `IndependentNoise`."""
        return gaussian_log_densities(mesh, released, self.length_km)


class UniformDisc(IndependentNoise):
    """An independent location, uniform in a disc around the true one.

    The length is the radius of the disc.
    """

    label = "fresh within {}"
    source = "an independent location, uniform in a disc around the true one"

    def sample_noise(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Sample uniform noise. See `IndependentNoise`."""
        return convert_polar_to_plane(rng.random(count), self.length_km * np.sqrt(rng.random(count)))

    def log_densities(self, mesh: Mesh, released: FloatArray) -> FloatArray:
        """Return the log densities in closed form. See `IndependentNoise`."""
        return log_or_neg_inf(compute_disc_shares(mesh, released, self.length_km))


class PlanarLaplace(IndependentNoise):
    """Independent planar Laplace noise: geo-indistinguishability (Andrés et al., CCS 2013).

    The noise is real-valued. The length is the mean distance 2 / epsilon, which the browser extension Location Guard
    calls its radius.
    """

    label = "planar Laplace, {}"
    source = (
        "geo-indistinguishability (Andres et al. 2013), the mean distance 2/epsilon; Location Guard's radius, "
        "500 m by default, without its cache"
    )

    def sample_noise(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Sample planar Laplace noise. See `IndependentNoise`."""
        return convert_polar_to_plane(rng.random(count), rng.gamma(2.0, self.length_km / 2, count))

    def log_densities(self, mesh: Mesh, released: FloatArray) -> FloatArray:
        """Return the log densities by quadrature. See `IndependentNoise`."""
        return laplace_log_densities(mesh, released, self.length_km / 2)


@dataclass(frozen=True)
class FixedOffset(DeployedChannel):
    """One offset per user, sampled once and added to every location.

    It is uniform on the points of a lattice within a disc. The lattice spacing is a fortieth of the radius (12.5 m for
    500 m), and at most a part of a cell. A coarser lattice would itself reveal the offset. The adversary tries all
    offsets. Each implies a path of true locations, and the model gives the path's probability.

    Parameters
    ----------
    radius_km
        The maximum length of the offset, kilometres.
    fineness
        Minimum number of lattice points along the radius.
    """

    radius_km: float
    fineness: int = 40
    label = "fixed offset within {}"
    source = (
        "one offset per user, uniform on a lattice in a disc (spacing 1/40 of the radius, at most a part of a cell); "
        "the adversary tries all"
    )

    def _count_spacings(self, moves: MeshMovement) -> int:
        """Return the radius in lattice spacings."""
        return max(self.fineness, ceil(self.radius_km / moves.mesh.cell_km))

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:
        """Add one offset to all locations. See `Channel`."""
        count = self._count_spacings(moves)
        # Sample a column by its number of points: the whole lattice can have billions of points.
        heights = np.array([isqrt(count**2 - column**2) for column in range(-count, count + 1)])
        ends = np.cumsum(2 * heights + 1)
        number = rng.integers(ends[-1])
        column = np.searchsorted(ends, number, side="right")
        offset = np.array([column - count, heights[column] - (ends[column] - 1 - number)])
        released = track.points + offset * (self.radius_km / count)
        return ObfuscatedTrack(released, released)

    def _list_possible_offsets(self, released: FloatArray, moves: MeshMovement) -> FloatArray:
        """Return the offsets from the region's bounding box to a release, ``(K, 2)``, kilometres."""
        count = self._count_spacings(moves)
        spacing = self.radius_km / count
        reach = moves.grid.cell_km / 2
        points = moves.grid.points
        box = np.array([released - points.max(axis=0) - reach, released - points.min(axis=0) + reach]) / spacing
        lattice = build_lattice(np.clip(box, -count, count), 1.0)
        return np.asarray(lattice[np.hypot(*lattice.T) <= count] * spacing)

    def posterior(self, obfuscated: ObfuscatedTrack, track: Track, moves: MeshMovement) -> Posterior:
        """Mix the posteriors of all offsets. See `Channel`."""
        offsets = self._list_possible_offsets(obfuscated.observed[0], moves)
        return infer_from_fixed_offset(moves, track, obfuscated.observed, offsets, Mesh(moves.grid, 1).locate)


@dataclass(frozen=True)
class TrimmedHome(DeployedChannel):
    """All locations within a distance of home withheld, all others exact.

    Privacy zones of fitness apps work this way (Strava, Garmin and others; see Hassan et al., USENIX Security 2018, and
    Dhondt et al., CCS 2022). They trim the ends of a workout. Here the other locations of the user are released, too.
    The centre of the zone is the point nearest to the home on a lattice with a spacing of a fifth of the radius (100 m
    for 500 m). The adversary knows the radius, the lattice and which times are withheld, and tries every centre in the
    region.

    Parameters
    ----------
    radius_km
        The radius, kilometres.
    """

    radius_km: float
    label = "zone of {} around home"
    source = (
        "privacy zones of fitness apps: locations near home withheld, radius known; the adversary tries every centre"
    )

    @property
    def _spacing(self) -> float:
        return self.radius_km / 5

    def list_centres(self, grid: Grid) -> FloatArray:
        """Return all possible centres of a zone, ``(K, 2)``, kilometres."""
        reach = (grid.cell_km + self._spacing) / 2
        return build_lattice(
            np.array([grid.points.min(axis=0) - reach, grid.points.max(axis=0) + reach]), self._spacing
        )

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:  # noqa: ARG002 - nothing is drawn
        """Withhold the locations in the zone. See `Channel`."""
        centre = np.rint(track.usual_place / self._spacing) * self._spacing
        hidden = np.hypot(*(track.points - centre).T) <= self.radius_km
        return ObfuscatedTrack(np.where(hidden[:, None], np.nan, track.points), None)

    def posterior(self, obfuscated: ObfuscatedTrack, track: Track, moves: MeshMovement) -> Posterior:
        """Mix the posteriors of all centres. See `Channel`."""
        grid = moves.grid
        centres = self.list_centres(grid)
        alive = [np.hypot(*(centres - place).T) > self.radius_km for place in obfuscated.points]
        zones = Zones(_compute_zone_shares(self, grid))
        if zones.cells.size * zones.cells.shape[1] > _MAX_PAIRS:
            raise ConfigurationError(
                f"zones of {format_length(self.radius_km)} contain up to {zones.cells.shape[1]} cells of "
                f"{format_length(grid.cell_km)}, too many to try every centre; use larger cells or a smaller region"
            )
        return infer_from_zones(moves, track, obfuscated.points, alive, zones, centres)


@lru_cache(maxsize=1)
def _compute_zone_shares(channel: TrimmedHome, grid: Grid) -> FloatArray:
    """Compute the share of each cell in each zone, ``(K, N)``, which is equal for all users."""
    return make_read_only(compute_disc_shares(Mesh(grid, 1), channel.list_centres(grid), channel.radius_km))


def build_lattice(box: FloatArray, spacing: float) -> FloatArray:
    """Return the multiples of a spacing in a closed box, ``(K, 2)``.

    The box is ``[[west, south], [east, north]]``.
    """
    first = np.ceil(box[0] / spacing - 1e-9)
    last = np.floor(box[1] / spacing + 1e-9)
    sides = [np.arange(low, high + 1) for low, high in zip(first, last, strict=True)]
    return spacing * np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)


# Channels of an attack by default.
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

# Range of lengths: from a metre, finer than any fix, to more than any region.
_MIN_KM = 0.001
_MAX_KM = 1000.0


@check_arguments
def parse_channel(text: str) -> Channel:
    """Build a channel from its specification.

    Parameters
    ----------
    text
        One of ``exact``, ``nothing``, ``round:DIGITS``, ``meshtastic:BITS``, ``snap:LENGTH``, ``android`` or
        ``android:LENGTH``, ``gaussian:LENGTH`` (standard deviation along each axis), ``disc:LENGTH`` (radius),
        ``planar-laplace:LENGTH`` (mean distance), ``offset:LENGTH`` (radius), ``trim:LENGTH`` (radius),
        ``hourly:HOURS`` (one location in that time, repeated). Releases of this package are ``release:POLICY@EPSILON``
        (of each release), ``release:POLICY@day:EPSILON`` or ``release:POLICY@target:LENGTH``. The last two correspond
        to ``--window-epsilon`` and ``--target-error`` of ``dphmm release``. A LENGTH is, for example, ``500m`` or
        ``1.2km``.

    Returns
    -------
    Channel
        The channel.

    Raises
    ------
    ConfigurationError
        If the specification is invalid, or a number is out of range.
    PolicyError, BudgetError
        If the policy or epsilon of a release is invalid.

    Examples
    --------
    >>> parse_channel("meshtastic:13").name, parse_channel("android").name
    ('Meshtastic, 13 bits', 'Android approximate, 2 km')
    """
    name, _, value = text.strip().partition(":")
    if name in _CHANNELS and not value:
        return _CHANNELS[name]()
    if name in _LENGTH_CHANNELS:
        try:
            length = parse_length(value)
        except PolicyError:
            length = 0.0
        min_length = 0.2 if name == "android" else _MIN_KM
        if not min_length <= length <= _MAX_KM:
            raise ConfigurationError(
                f"channel must have a length from {1000 * min_length:g}m to {_MAX_KM:g}km with its unit, such as "
                f"{name}:500m, got {text!r}"
            )
        return _LENGTH_CHANNELS[name](length)
    if name in _INTEGER_CHANNELS:
        channel_class, low, high = _INTEGER_CHANNELS[name]
        if not (value.isascii() and value.isdigit() and len(value) <= 4 and low <= int(value) <= high):
            raise ConfigurationError(
                f"channel must have an integer from {low} to {high}, such as {name}:{high // 2}, got {text!r}"
            )
        return channel_class(int(value))
    if name == "release":
        policy, _, budget = value.rpartition("@")
        if not (policy and budget):
            raise ConfigurationError(
                "channel must have a policy and an epsilon, such as release:utility:1km@1, or @day:3 or @target:900m "
                f"for the epsilon, got {text!r}"
            )
        aim, _, number = budget.rpartition(":")
        try:
            if aim == "day":
                return ReleaseChannel(ReleaseSettings.for_a_day(parse_number(number, "epsilon"), policy=policy))
            if aim == "target":
                return ReleaseChannel(
                    ReleaseSettings(policy, DEFAULT_DRAW_EPSILON, schedule=Schedule(parse_length(number)))
                )
            return ReleaseChannel(ReleaseSettings(policy, parse_number(budget, "epsilon")))
        except ValueError as problem:
            raise ConfigurationError(f"channel {text!r}: {problem}") from None
    lengths = (f"{name}:LENGTH" for name in _LENGTH_CHANNELS)
    raise ConfigurationError(
        f"channel must be one of {', '.join([*_CHANNELS, *lengths])}, round:DIGITS, meshtastic:BITS, hourly:HOURS, "
        f"release:POLICY@EPSILON, table:FILE, samples:FILE, got {text!r}"
    )


_CHANNELS: Mapping[str, Callable[[], Channel]] = {"exact": Exact, "nothing": NoRelease, "android": AndroidCoarse}
_LENGTH_CHANNELS: Mapping[str, Callable[[float], Channel]] = {
    "snap": GridSnapping,
    "android": AndroidCoarse,
    "gaussian": Gaussian,
    "disc": UniformDisc,
    "planar-laplace": PlanarLaplace,
    "offset": FixedOffset,
    "trim": TrimmedHome,
}
_INTEGER_CHANNELS: Mapping[str, tuple[Callable[[int], Channel], int, int]] = {
    "round": (Rounding, 0, 7),
    "meshtastic": (Meshtastic, 1, 31),
    "hourly": (Hourly, 1, 168),
}
