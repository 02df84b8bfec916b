"""What a channel of releases is: it blurs a person's true places, and says what its outputs tell of the states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray
from dphmm.attack.hidden import Posterior, posterior_of_rows
from dphmm.attack.mesh import Moves
from dphmm.attack.track import Track


@dataclass(frozen=True, eq=False)
class Blurred:
    """What a channel made of a track.

    Attributes
    ----------
    points
        ``(T, 2)``: the released places in the plane, kilometres; NaN where nothing was released, or it is no place.
    seen
        What the adversary sees, as the channel's own `Channel.log_rows` takes it.
    """

    points: FloatArray = field(repr=False)
    seen: Any = field(repr=False)


class Channel(ABC):
    """A way to blur places, exactly as somebody runs it. Subclass it for one of your own.

    The adversary knows the channel with all its settings, when releases are made, and the model; not what was drawn.

    Attributes
    ----------
    name
        As a table shows it.
    source
        Where the mechanism comes from, and which version of it this is.
    """

    name: str
    source: str

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

    def held(self, blurred: Blurred) -> BoolArray | None:  # noqa: ARG002 - nothing hangs together but by draws
        """``(T,)``: for a channel without randomness, where a release is the same as the one before; otherwise None."""
        return None

    def posterior(self, blurred: Blurred, track: Track, moves: Moves) -> Posterior:
        """What the adversary makes of the releases, at once and in hindsight; of the track times alone are told."""
        return posterior_of_rows(moves, track, partial(self.log_rows, blurred, moves), self.held(blurred))


def logs_of(shares: FloatArray) -> FloatArray:
    """The logarithms of shares, minus infinity of 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shares))


def same_as_before(seen: Any) -> BoolArray:
    """``(T,)``: where a row is the same as the one before it; false at the first."""
    rows = np.asarray(seen).reshape(len(seen), -1)
    return np.append(False, (rows[1:] == rows[:-1]).all(axis=1))[: len(rows)]
