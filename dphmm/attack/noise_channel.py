"""Noise channels: base class, this package's releases, tables, samples of an app."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.attack.mesh import Mesh, MeshMovement, log_or_neg_inf
from dphmm.attack.posterior import Posterior, Track, infer_from_rows
from dphmm.errors import DataFileError, InvalidInputError
from dphmm.model.model import MarkovModel
from dphmm.policy.expression import format_policy_label
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.space.trajectory import Trajectory
from dphmm.tables.numpy_files import read_npz
from dphmm.tables.table import Table
from dphmm.validation import PositiveInt, check_arguments


@dataclass(frozen=True, eq=False)
class ObfuscatedTrack:
    """The output of a channel for a track.

    Parameters
    ----------
    points
        ``(T, 2)``: the released locations in the plane, kilometres. NaN if nothing was released, or not a location.
    observed
        The observations of the adversary, in the form that `Channel.log_likelihood_rows` of the channel takes.
    """

    points: FloatArray = field(repr=False)
    observed: Any = field(repr=False)


class Channel(ABC):
    """An obfuscation method, implemented as it is deployed. Subclass it for your own method.

    The adversary knows the channel with all settings, the times of the releases and the model, but not the noise.

    Attributes
    ----------
    name
        Name in tables. It is part of the seed of the noise.
    source
        Source and version of the method.
    is_random
        Whether each time has its own noise. Without noise, a repeated release is not new evidence about a user who
        stayed at one location, and ``log_likelihood_rows`` contains probabilities rather than densities up to a factor.
    family
        Name shared by channels that differ in one number, which figures connect by a line. Empty for a single channel.
    settings
        The settings of this package's releases, otherwise None.
    """

    name: str
    source: str
    is_random: bool = True
    family: str = ""
    settings: ReleaseSettings | None = None

    @abstractmethod
    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:
        """Release a track.

        Parameters
        ----------
        track
            The true locations.
        moves
            The movement model with its grid and mesh.
        rng
            The source of randomness.
        """

    def log_likelihood_rows(self, obfuscated: ObfuscatedTrack, moves: MeshMovement, times: slice) -> FloatArray:
        """Return the log densities ``log k(z_t | s)`` of some releases.

        Impossible releases have minus infinity. Override `posterior` instead if the releases of a channel depend on
        more than the location at their time.

        Parameters
        ----------
        obfuscated
            The result of `obfuscate`.
        moves
            The movement model.
        times
            The times.

        Returns
        -------
        FloatArray
            ``(n, N)`` by cell, or ``(n, N Q)`` by part of a cell, in the order of ``moves.mesh.points``.

        Raises
        ------
        NotImplementedError
            If the channel overrides `posterior` instead.
        """
        raise NotImplementedError

    def posterior(self, obfuscated: ObfuscatedTrack, track: Track, moves: MeshMovement) -> Posterior:
        """Infer the adversary's beliefs from the releases and the times of the track.

        Parameters
        ----------
        obfuscated
            The result of `obfuscate`.
        track
            The times. The true locations are not used.
        moves
            The adversary's movement model.

        Returns
        -------
        Posterior
            The beliefs at each time.
        """
        held = None if self.is_random else repeats_previous(obfuscated.observed)
        return infer_from_rows(moves, track, partial(self.log_likelihood_rows, obfuscated, moves), held)


def format_length(kilometres: float) -> str:
    """Format a length in metres or kilometres."""
    return f"{kilometres:g} km" if kilometres >= 1 else f"{1000 * kilometres:g} m"


def repeats_previous(seen: Any) -> BoolArray:
    """Return whether each row equals the previous one, ``(T,)``, false for the first."""
    rows = np.asarray(seen).reshape(len(seen), -1)
    return np.append(False, (rows[1:] == rows[:-1]).all(axis=1))[: len(rows)]


# Tolerance of the sum of a table's row: tables in text have six digits or more.
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class ReleaseChannel(Channel):
    """This package's releases: noise around the cell centre, with the engine's densities.

    The engine's belief restarts whenever the adversary's does (see `Track.restarts`). The budget account continues.

    Parameters
    ----------
    settings
        The release settings.
    """

    settings: ReleaseSettings
    source = "dphmm's release engine; the density it publishes for each state"

    @property
    def name(self) -> str:  # type: ignore[override]  # computed from the settings
        """The settings in words."""
        schedule = self.settings.schedule
        name = f"dphmm {format_policy_label(self.settings.policy)}, "
        if schedule is None:
            return f"{name}ε {self.settings.epsilon:g}"
        hours = schedule.window_seconds / 3600
        window = "a day" if hours == 24 else f"in {hours:g} h"
        aims = [] if schedule.target_error is None else [f"target {format_length(schedule.target_error)}"]
        aims += [] if schedule.window_epsilon is None else [f"ε {schedule.window_epsilon:g} {window}"]
        return name + ", ".join(aims)

    @property
    def family(self) -> str:  # type: ignore[override]  # computed from the settings
        """The settings without their numbers, see `Channel`."""
        schedule = self.settings.schedule
        aim = "ε each" if schedule is None else "a target" if schedule.window_epsilon is None else "ε a day"
        return f"dphmm {format_policy_label(self.settings.policy)}, {aim}"

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:
        """Release the track with the engine. See `Channel`."""
        engine = _get_shared_engine(self.settings, moves.model).spawn(rng)
        points = np.full(track.points.shape, np.nan)
        rows = np.empty((len(track), moves.grid.size))
        for t, (state, begins, steps) in enumerate(
            zip(track.states.tolist(), track.restarts, track.steps, strict=True)
        ):
            if begins:
                engine.filter_state.first = int(track.slots[t])
                engine.resume(None, 0, account=engine.filter_state.account)
            step = engine.prepare(steps=max(1, int(steps)) if not begins else 1)
            record = engine.draw(step, state)
            rows[t] = engine.log_likelihood(step, record.released)
            if record.released is not None:
                points[t] = record.released
        return ObfuscatedTrack(points, rows)

    def log_likelihood_rows(self, obfuscated: ObfuscatedTrack, moves: MeshMovement, times: slice) -> FloatArray:  # noqa: ARG002 - kept as released
        """Return the densities that the engine computed. See `Channel`."""
        return np.asarray(obfuscated.observed[times])


@lru_cache(maxsize=16)
def _get_shared_engine(settings: ReleaseSettings, model: MarkovModel) -> Releaser:
    """Return an engine that all users share, with cached noise bodies and errors."""
    return settings.engine(model)


@check_arguments
@dataclass(frozen=True, eq=False)
class TableChannel(Channel):
    """A channel given by a table of probabilities ``k(z | s)`` of output ``z`` in state ``s``.

    Parameters
    ----------
    name
        Name in tables.
    probabilities
        ``(N, Z)``, non-negative. Each row must sum to one within 1e-6 and is then normalised.
    places
        ``(Z, 2)``: latitude and longitude of the outputs, degrees. NaN if an output is not a location.
    source
        Source of the table.

    Raises
    ------
    InvalidInputError
        If shapes do not match, or a row is not a distribution.
    """

    name: str
    probabilities: FloatArray = field(repr=False)
    places: FloatArray = field(repr=False)
    source: str = "a table of k(z | s)"

    def __post_init__(self) -> None:
        table = np.asarray(self.probabilities, np.float64)
        places = np.asarray(self.places, np.float64)
        if table.ndim != 2 or not table.size or places.shape != (table.shape[1], 2):
            raise InvalidInputError(
                "probabilities must have one row per state and one column per output, and places two degrees per "
                f"output, got shapes {table.shape} and {places.shape}"
            )
        with np.errstate(invalid="ignore", over="ignore"):  # infinite entries are rejected below
            sums = table.sum(axis=1)
        wrong = np.flatnonzero(~((table >= 0).all(axis=1) & (np.abs(sums - 1) <= _SUM_TOLERANCE)))
        if wrong.size:
            row = int(wrong[0])
            raise InvalidInputError(
                f"probabilities of state {row} must be non-negative and sum to one, got a sum of {sums[row]:.6g}"
            )
        if (np.abs(places[~np.isnan(places).any(axis=1)]) > [90.0, 180.0]).any():
            raise InvalidInputError("places must be latitudes and longitudes in degrees, got values out of range")
        vars(self).update(probabilities=table / sums[:, None], places=places)

    @classmethod
    @check_arguments
    def read(cls, path: str | Path, size: PositiveInt) -> TableChannel:
        """Read a table from a file.

        A ``.npz`` file contains ``probabilities`` ``(N, Z)``, and ``places`` ``(Z, 2)`` if outputs are locations. A CSV
        or Parquet file has the columns ``state`` (0 to N - 1), ``output`` (any name) and ``probability``, and
        ``latitude`` and ``longitude`` if outputs are locations, equal in all rows of an output. Pairs that are not
        listed have probability 0.

        Parameters
        ----------
        path
            The file.
        size
            The number of states ``N`` of the model.

        Returns
        -------
        TableChannel
            A channel named after the file.

        Raises
        ------
        DataFileError
            If the file is not a valid table, or its states are not those of the model.
        """
        name = f"table {Path(path).stem}"
        try:
            if Path(path).suffix == ".npz":
                arrays = read_npz(path)
                table = arrays.get("probabilities", np.zeros(()))
                missing = np.full((table.shape[-1] if table.ndim == 2 else 0, 2), np.nan)
                if table.dtype.kind not in "fiu" or arrays.get("places", missing).dtype.kind not in "fiu":
                    raise DataFileError(path, "must contain a numeric array 'probabilities'")
                channel = cls(name, table, arrays.get("places", missing))
            else:
                channel = cls(name, *_parse_long_table(Table.read(path), size))
        except DataFileError:
            raise  # it names the file
        except InvalidInputError as problem:
            raise DataFileError(path, str(problem)) from None
        if len(channel.probabilities) != size:
            raise DataFileError(path, f"must have the {size} states of the model, got {len(channel.probabilities)}")
        return channel

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:
        """Sample an output for each state. See `Channel`."""
        below = np.cumsum(self.probabilities, axis=1)[track.states]
        drawn = np.minimum((below <= rng.random(len(track))[:, None]).sum(axis=1), below.shape[1] - 1)
        places = self.places[drawn]
        points = np.full((len(track), 2), np.nan)
        published = ~np.isnan(places).any(axis=1)
        if published.any():
            points[published] = moves.grid.projection.to_plane(*places[published].T)
        return ObfuscatedTrack(points, drawn)

    def log_likelihood_rows(self, obfuscated: ObfuscatedTrack, moves: MeshMovement, times: slice) -> FloatArray:  # noqa: ARG002 - states are the rows
        """Look up the log probabilities of the outputs. See `Channel`."""
        return log_or_neg_inf(self.probabilities.T[obfuscated.observed[times]])


def _parse_long_table(table: Table, size: int) -> tuple[FloatArray, FloatArray]:
    """Parse probabilities and locations from rows of state, output and probability."""

    def parse_state(text: str) -> int:
        if not text.strip().isdecimal() or int(text) >= size:
            raise ValueError(f"state must be from 0 to {size - 1}, got {text!r}")
        return int(text)

    outputs = table.texts("output")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(outputs))}
    columns = [numbers[name] for name in outputs]
    rows = np.zeros((size, len(numbers)))
    places = np.full((len(numbers), 2), np.nan)
    np.add.at(rows, (table.values("state", parse_state), columns), table.values("probability", float))
    if "latitude" in table.columns and "longitude" in table.columns:
        coordinates = [table.values(name, lambda text: float(text or "nan")) for name in ("latitude", "longitude")]
        for row, (column, place) in enumerate(zip(columns, zip(*coordinates, strict=True), strict=True)):
            if np.isnan(place).any():
                continue
            previous = tuple(places[column].tolist())
            if not np.isnan(previous).any() and previous != place:
                raise table.refusal(
                    row, f"output {outputs[row]!r} must have one latitude and longitude, got {previous} and {place}"
                )
            places[column] = place
    return rows, places


@dataclass(frozen=True, eq=False)
class SampledChannel(Channel):
    """Releases of an app for the same users at the same times, with an unknown distribution.

    The adversary estimates the distribution of displacements from the pairs of *other* users, as if displacements were
    independent and identically distributed. A probability of 0.001 is reserved for any other displacement. This is an
    estimate, not an exact channel. If an app's noise is dependent (a fixed offset, a grid), it reveals more than this
    adversary infers.

    Parameters
    ----------
    name
        Name in tables.
    released
        User → releases of the user.
    true
        User → true locations. At least one user other than the attacked one must be in both mappings.
    source
        Source of the releases.
    """

    name: str
    released: Mapping[str, Trajectory] = field(repr=False)
    true: Mapping[str, Trajectory] = field(repr=False)
    source: str = "releases of an app; displacements estimated from other users"

    def pairs(self, user: str, moves: MeshMovement) -> tuple[IntArray, FloatArray]:
        """Return the slots with a true and a released location of a user, and both locations.

        Parameters
        ----------
        user
            The user.
        moves
            The movement model with its clock and grid.

        Returns
        -------
        slots, pairs : IntArray, FloatArray
            ``(n,)`` and ``(n, 4)``: the true location, then the released one, in the plane, kilometres.
        """
        step = moves.model.step
        plane = moves.grid.projection
        if user not in self.released or user not in self.true:
            return np.zeros(0, np.int64), np.zeros((0, 4))
        true_track = self.true[user].resample(step)
        other = self.released[user].resample(step)
        slots, true_index, published_index = np.intersect1d(
            true_track.slots, other.slots, assume_unique=True, return_indices=True
        )
        return slots, np.column_stack(
            [
                plane.to_plane(at.latitude[k], at.longitude[k])
                for at, k in ((true_track, true_index), (other, published_index))
            ]
        )

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:  # noqa: ARG002 - it was drawn
        """Return the user's own releases at the slots of the track. See `Channel`.

        Raises
        ------
        InvalidInputError
            If no release of the user, or of other users, has a true location at its time.
        """
        slots, pairs = self.pairs(track.user, moves)
        points = np.full(track.points.shape, np.nan)
        _, here, there = np.intersect1d(track.slots, slots, assume_unique=True, return_indices=True)
        points[here] = pairs[there, 2:]
        others = [self.pairs(user, moves)[1] for user in self.released if user != track.user]
        displaced = np.concatenate([np.zeros((0, 2)), *(pairs[:, 2:] - pairs[:, :2] for pairs in others)])
        if not len(displaced) or not len(here):
            raise InvalidInputError(
                f"{self.name}: there is no pair of a released and a true location "
                f"{'at one time of users other than' if len(here) else 'of'} {track.user}; use releases of at least "
                "two of the attacked users at the times of the data"
            )
        return ObfuscatedTrack(points, displaced)

    def log_likelihood_rows(self, obfuscated: ObfuscatedTrack, moves: MeshMovement, times: slice) -> FloatArray:
        """Return the log share of displacements from each cell to the release. See `Channel`."""
        mesh = Mesh(moves.grid, 1)
        points = obfuscated.points[times]
        rows = np.zeros((len(points), moves.grid.size))
        for t in np.flatnonzero(~np.isnan(points[:, 0])).tolist():
            cells = mesh.locate(points[t] - obfuscated.observed)
            counts = np.bincount(cells[cells >= 0], minlength=moves.grid.size) / len(cells)
            # Reserve a small probability for displacements that no other user has.
            rows[t] = np.log(0.999 * counts + 0.001 / moves.grid.size)
        return rows
