"""What a noise channel is, and channels given from outside: this package's releases, a table, an app's own releases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.attack.mesh import Mesh, Moves, logs_of
from dphmm.attack.posterior import Posterior, Track, posterior_of_rows
from dphmm.errors import DataFileError, InvalidInputError
from dphmm.model.model import MarkovModel
from dphmm.policy.expression import policy_label
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.space.trajectory import Trajectory
from dphmm.tables.binary_files import read_npz
from dphmm.tables.table import Table


@dataclass(frozen=True, eq=False)
class Blurred:
    """What a channel made of a track.

    Parameters
    ----------
    points
        ``(T, 2)``: the released places in the plane, kilometres; NaN where nothing was released, or it is no place.
    seen
        What the adversary sees, as the channel's own `Channel.log_rows` takes it.
    """

    points: FloatArray = field(repr=False)
    seen: Any = field(repr=False)


class Channel(ABC):
    """A way to blur places, exactly as it is deployed. Subclass it for one of your own.

    The adversary knows the channel with all its settings, when releases are made, and the model; not what was drawn.

    Attributes
    ----------
    name
        As a table shows it.
    source
        Where the mechanism comes from, and which version of it this is.
    draws
        Whether something is drawn at each time. Where nothing is, a release like the one before it is no new evidence
        about a person who has stayed at one place, and ``log_rows`` are probabilities, not densities up to a factor.
    family
        What channels that differ in one number share: a picture joins them by a line. Empty for one by itself.
    settings
        This package's settings, where it releases by them.
    """

    name: str
    source: str
    draws: bool = True
    family: str = ""
    settings: ReleaseSettings | None = None

    @abstractmethod
    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:
        """What is released of a track.

        Parameters
        ----------
        track
            The true places.
        moves
            The model's moves, its grid and the mesh of its cells' parts.
        rng
            Where randomness comes from.
        """

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """The log densities ``log k(z_t | s)`` of some releases, minus infinity where a place cannot give one.

        A channel whose releases hang together otherwise than by the places overrides `posterior` instead.

        Parameters
        ----------
        blurred
            What `blur` gave.
        moves
            As there.
        some
            Which times are asked about.

        Returns
        -------
        FloatArray
            ``(n, N)`` by cell, or ``(n, N Q)`` by part of a cell, in the order of ``moves.mesh.points``.
        """
        raise NotImplementedError

    def posterior(self, blurred: Blurred, track: Track, moves: Moves) -> Posterior:
        """What the adversary makes of the releases, at once and in hindsight; of the track times alone are told.

        Parameters
        ----------
        blurred
            What `blur` gave.
        track
            The times; of the true places nothing is used.
        moves
            What the adversary knows of how people move.

        Returns
        -------
        Posterior
            What the adversary believes of each time.
        """
        held = None if self.draws else same_as_before(blurred.seen)
        return posterior_of_rows(moves, track, partial(self.log_rows, blurred, moves), held)


def in_words(kilometres: float) -> str:
    """A length as people say it."""
    return f"{kilometres:g} km" if kilometres >= 1 else f"{1000 * kilometres:g} m"


def same_as_before(seen: Any) -> BoolArray:
    """``(T,)``: where a row is the same as the one before it; false at the first."""
    rows = np.asarray(seen).reshape(len(seen), -1)
    return np.append(False, (rows[1:] == rows[:-1]).all(axis=1))[: len(rows)]


_SUM = 1e-6


@dataclass(frozen=True, eq=False)
class Released(Channel):
    """This package's releases: drawn by its engine about the cell's centre, with the densities that it computes.

    The engine's belief begins anew wherever the adversary's knowledge does (see `Track.begins`); what was spent counts
    on.

    Parameters
    ----------
    settings
        How places are released.
    """

    settings: ReleaseSettings
    source = "dphmm's release engine; the density it publishes for each state"

    @property
    def name(self) -> str:  # type: ignore[override]
        """As a table shows it."""
        schedule, found = self.settings.schedule, f"dphmm {policy_label(self.settings.policy)}, "
        if schedule is None:
            return f"{found}ε {self.settings.epsilon:g}"
        hours = schedule.window_seconds / 3600
        window = "a day" if hours == 24 else f"in {hours:g} h"
        aims = [] if schedule.target_error is None else [f"target {in_words(schedule.target_error)}"]
        aims += [] if schedule.window_epsilon is None else [f"ε {schedule.window_epsilon:g} {window}"]
        return found + ", ".join(aims)

    @property
    def family(self) -> str:  # type: ignore[override]
        """See `Channel`: the name without its numbers."""
        schedule = self.settings.schedule
        aim = "ε each" if schedule is None else "a target" if schedule.window_epsilon is None else "ε a day"
        return f"dphmm {policy_label(self.settings.policy)}, {aim}"

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:
        """See `Channel`."""
        engine = _engine(self.settings, moves.model).another(rng)
        points, rows = np.full(track.points.shape, np.nan), np.empty((len(track), moves.grid.size))
        for t, (state, begins, steps) in enumerate(zip(track.states.tolist(), track.begins, track.steps, strict=True)):
            if begins:
                engine.person.first = int(track.slots[t])
                engine.resume(None, 0, account=engine.person.account)
            step = engine.prepare(steps=max(1, int(steps)) if not begins else 1)
            record = engine.draw(step, state)
            rows[t] = engine.log_likelihood(step, record.released)
            if record.released is not None:
                points[t] = record.released
        return Blurred(points, rows)

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:  # noqa: ARG002 - kept as released
        """See `Channel`."""
        return np.asarray(blurred.seen[some])


@lru_cache(maxsize=16)
def _engine(settings: ReleaseSettings, model: MarkovModel) -> Releaser:
    """What all people's engines share: bodies of the noise, and how errors grow."""
    return settings.engine(model)


@checked
@dataclass(frozen=True, eq=False)
class TableChannel(Channel):
    """A channel that is a table: output ``z`` is released from state ``s`` with probability ``k(z | s)``.

    Parameters
    ----------
    name
        As a table shows it.
    probabilities
        ``(N, Z)``, not negative; each row sums to one within 1e-6 and is then scaled.
    places
        ``(Z, 2)``: latitude and longitude of the outputs, degrees, where they are places; NaN where one is none.
    source
        Where it comes from.

    Raises
    ------
    InvalidInputError
        When shapes do not fit, or a row is no distribution.
    """

    name: str
    probabilities: FloatArray = field(repr=False)
    places: FloatArray = field(repr=False)
    source: str = "a table of k(z | s)"

    def __post_init__(self) -> None:
        table, places = np.asarray(self.probabilities, np.float64), np.asarray(self.places, np.float64)
        if table.ndim != 2 or not table.size or places.shape != (table.shape[1], 2):
            raise InvalidInputError(
                f"probabilities have shape {table.shape}, places {places.shape}; give a row for each state, a column "
                "for each output, and two degrees for each output"
            )
        with np.errstate(invalid="ignore", over="ignore"):  # of infinite numbers, which are refused
            sums = table.sum(axis=1)
        wrong = np.flatnonzero(~((table >= 0).all(axis=1) & (np.abs(sums - 1) <= _SUM)))
        if wrong.size:
            row = int(wrong[0])
            raise InvalidInputError(
                f"probabilities of state {row} sum to {sums[row]:.6g}, or one is negative; give a distribution"
            )
        if (np.abs(places[~np.isnan(places).any(axis=1)]) > [90.0, 180.0]).any():
            raise InvalidInputError("places hold degrees that are not on the Earth; give latitude and longitude")
        vars(self).update(probabilities=table / sums[:, None], places=places)

    @classmethod
    @checked
    def read(cls, path: str | Path, size: int) -> TableChannel:
        """A table out of a file.

        A ``.npz`` holds ``probabilities`` ``(N, Z)``, and ``places`` ``(Z, 2)`` where outputs are places. A CSV or
        Parquet has the columns ``state`` (0 to N - 1), ``output`` (any name) and ``probability``, and where outputs are
        places ``latitude`` and ``longitude`` of them; what is not listed has probability 0.

        Parameters
        ----------
        path
            The file.
        size
            The number of states ``N`` of the model.

        Returns
        -------
        TableChannel
            Named after the file.

        Raises
        ------
        DataFileError
            When the file is none of these, or its states are not those of the model.
        """
        name = f"table {Path(path).stem}"
        try:
            if Path(path).suffix == ".npz":
                arrays = read_npz(path)
                table = arrays.get("probabilities", np.zeros(()))
                missing = np.full((table.shape[-1] if table.ndim == 2 else 0, 2), np.nan)
                if table.dtype.kind not in "fiu" or arrays.get("places", missing).dtype.kind not in "fiu":
                    raise DataFileError(path, "holds no numbers under 'probabilities'; save an array of that name")
                found = cls(name, table, arrays.get("places", missing))
            else:
                found = cls(name, *_long_table(Table.read(path), size))
        except InvalidInputError as problem:
            raise DataFileError(path, str(problem)) from None
        if len(found.probabilities) != size:
            raise DataFileError(path, f"has {len(found.probabilities)} states and the model {size}; they must agree")
        return found

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:
        """See `Channel`."""
        below = np.cumsum(self.probabilities, axis=1)[track.states]
        drawn = np.minimum((below <= rng.random(len(track))[:, None]).sum(axis=1), below.shape[1] - 1)
        places, points = self.places[drawn], np.full((len(track), 2), np.nan)
        told = ~np.isnan(places).any(axis=1)
        if told.any():
            points[told] = moves.grid.projection.to_plane(*places[told].T)
        return Blurred(points, drawn)

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:  # noqa: ARG002 - states are the rows
        """See `Channel`."""
        return logs_of(self.probabilities.T[blurred.seen[some]])


def _long_table(table: Table, size: int) -> tuple[FloatArray, FloatArray]:
    """Probabilities and places out of rows of state, output and probability."""

    def state(text: str) -> int:
        if not text.strip().isdecimal() or int(text) >= size:
            raise ValueError(f"state {text!r} is none of 0 to {size - 1}")
        return int(text)

    outputs = table.texts("output")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(outputs))}
    columns = [numbers[name] for name in outputs]
    found, places = np.zeros((size, len(numbers))), np.full((len(numbers), 2), np.nan)
    np.add.at(found, (table.values("state", state), columns), table.values("probability", float))
    if "latitude" in table.columns and "longitude" in table.columns:
        given = [table.values(name, lambda text: float(text or "nan")) for name in ("latitude", "longitude")]
        for column, place in zip(columns, zip(*given, strict=True), strict=True):
            if not np.isnan(place).any():
                places[column] = place
    return found, places


@dataclass(frozen=True, eq=False)
class Samples(Channel):
    """What an app really released of the same people at the same times: an attack on outputs of an unknown law.

    The adversary learns how far and whither releases lie from the truth from the *other* people's pairs, as if that
    were drawn anew each time and depended on nothing; one part in a thousand is left to anything. This is an estimate,
    no exact channel: an app whose noise hangs together (a fixed offset, a grid) tells more than this adversary sees.

    Parameters
    ----------
    name
        As a table shows it.
    released
        User → what was released of them.
    true
        User → their true places; at least one user must be in both beside each who is attacked.
    source
        Where the releases come from.
    """

    name: str
    released: Mapping[str, Trajectory] = field(repr=False)
    true: Mapping[str, Trajectory] = field(repr=False)
    source: str = "releases of an app, displacements of the other people's pairs"

    def pairs(self, user: str, moves: Moves) -> tuple[IntArray, FloatArray]:
        """Slots with a true and a released place of a user, ``(n,)``, and both in the plane, ``(n, 4)``.

        Parameters
        ----------
        user
            Whose.
        moves
            The model's clock and grid.

        Returns
        -------
        slots, pairs : IntArray, FloatArray
            ``(n,)`` and ``(n, 4)``: the true place, then the released one, kilometres.
        """
        step, plane = moves.model.step, moves.grid.projection
        if user not in self.released or user not in self.true:
            return np.zeros(0, np.int64), np.zeros((0, 4))
        one, other = self.true[user].resample(step), self.released[user].resample(step)
        slots, mine, theirs = np.intersect1d(one.slots, other.slots, assume_unique=True, return_indices=True)
        return slots, np.column_stack(
            [plane.to_plane(at.latitude[k], at.longitude[k]) for at, k in ((one, mine), (other, theirs))]
        )

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:  # noqa: ARG002 - it was drawn
        """See `Channel`: the user's own releases at the slots of the track, and the displacements of others."""
        slots, pairs = self.pairs(track.user, moves)
        points = np.full(track.points.shape, np.nan)
        _, here, there = np.intersect1d(track.slots, slots, assume_unique=True, return_indices=True)
        points[here] = pairs[there, 2:]
        others = [self.pairs(user, moves)[1] for user in self.released if user != track.user]
        displaced = np.concatenate([np.zeros((0, 2)), *(one[:, 2:] - one[:, :2] for one in others)])
        if not len(displaced) or not len(here):
            raise InvalidInputError(
                f"{self.name}: there is no pair of a released and a true place "
                f"{'at one time of anyone other than' if len(here) else 'of'} {track.user}; give releases of the same "
                "people at the times of the data, of two people or more"
            )
        return Blurred(points, displaced)

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> FloatArray:
        """See `Channel`: the share of displacements that lead from each cell to the release."""
        mesh, points = Mesh(moves.grid, 1), blurred.points[some]
        rows = np.zeros((len(points), moves.grid.size))
        for t in np.flatnonzero(~np.isnan(points[:, 0])).tolist():
            cells = mesh.at(points[t] - blurred.seen)
            counts = np.bincount(cells[cells >= 0], minlength=moves.grid.size) / len(cells)
            rows[t] = np.log(0.999 * counts + 0.001 / moves.grid.size)
        return rows
