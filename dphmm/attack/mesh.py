"""A model's cells cut into parts: where in its cell somebody is, and for how long.

The model speaks of cells; channels act on places. Whoever stays in a cell mostly stays at one place of it, so that the
same release again is no new evidence, and fresh noise about one place averages out. An adversary who took the place as
drawn anew at each step would be wrong about both. Here the place is hidden too: one of equal square parts of the cell,
even over them on arrival, kept while the person stays, but for three steps in a hundred, at which it is drawn again.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.markov.extended import ExtendedModel
from dphmm.markov.model import MarkovModel
from dphmm.space.grid import Grid

PARTS = 5
"""A cell is cut into so many columns and rows of parts."""

REDRAWN = 0.03
"""The share of the steps at which somebody who stays in a cell is at another place of it, drawn anew."""

MOST_STATES = 2048
"""More states than this are refused: the passes work with dense matrices."""

_MOST_POWERS = 64


class Mesh:
    """Square cells of one size in a plane, numbered so that the parts of a model's cell follow one another.

    Parameters
    ----------
    grid
        The model's cells.
    parts
        Into how many columns and rows of parts each is cut; 1 leaves them whole.

    Attributes
    ----------
    points
        ``(N parts², 2)``: the middles of the parts, kilometres.
    """

    def __init__(self, grid: Grid, parts: int) -> None:
        self.projection, self.cell_km = grid.projection, grid.cell_km / parts
        self.columns, self.rows = grid.columns * parts, grid.rows * parts
        inner = np.stack(np.meshgrid(range(parts), range(parts)), axis=-1).reshape(-1, 2)
        self.lattice: IntArray = (grid.lattice[:, None, :] * parts + inner).reshape(-1, 2)
        self.origin = grid.origin - self.cell_km * (parts - 1) / 2
        self.points: FloatArray = self.origin + self.cell_km * self.lattice

    def at(self, points: FloatArray) -> IntArray:
        """``(n,)``: which of all parts points of the plane ``(n, 2)`` lie in, -1 for none."""
        cells = np.floor((points - self.origin) / self.cell_km + 0.5).astype(np.int64)
        inside = np.asarray(((cells >= 0) & (cells < [self.columns, self.rows])).all(axis=1))
        column, row = np.where(inside[:, None], cells, 0).T
        return np.where(inside, self._numbers[column, row], -1)

    @cached_property
    def _numbers(self) -> IntArray:
        numbers = np.full((self.columns, self.rows), -1, dtype=np.int64)
        numbers[self.lattice[:, 0], self.lattice[:, 1]] = np.arange(len(self.lattice))
        return numbers

    def lines(self, axis: int) -> FloatArray:
        """The lines between columns (0) or rows (1), kilometres."""
        count = (self.columns, self.rows)[axis]
        return np.asarray(self.origin[axis] + self.cell_km * (np.arange(count + 1) - 0.5))

    def of_parts(self, values: FloatArray) -> FloatArray:
        """``(T, N parts²)`` of values ``(T, columns, rows)``."""
        return np.asarray(values[:, self.lattice[:, 0], self.lattice[:, 1]])


class Moves:
    """How people move from part to part under a model.

    Parameters
    ----------
    model
        Of first order, without classes of time, over the cells of a grid.
    parts
        See `Mesh`.
    redrawn
        See `REDRAWN`.

    Raises
    ------
    ConfigurationError
        When the model is of another kind, or has more than `MOST_STATES` states.
    """

    @checked
    def __init__(self, model: MarkovModel, parts: int = PARTS, redrawn: float = REDRAWN) -> None:
        if isinstance(model, ExtendedModel):
            raise ConfigurationError(
                "the model has classes of time or looks back; an attack needs one without --by and of --order 1"
            )
        if not isinstance(model.space, Grid):
            raise ConfigurationError("the model's states are named places; an attack needs the cells of a grid")
        if model.size > MOST_STATES:
            raise ConfigurationError(
                f"the model has {model.size:,} states and an attack takes at most {MOST_STATES:,}; learn one of a "
                "smaller region or with larger cells"
            )
        if not (1 <= parts <= 20 and 0 <= redrawn <= 1):
            raise ConfigurationError(f"parts are {parts}, redrawn {redrawn}; give 1 to 20 and a share from 0 to 1")
        self.model, self.grid, self.mesh = model, model.space, Mesh(model.space, parts)
        self.parts, self.redrawn = parts, redrawn
        self.initial: FloatArray = model.initial
        self._powers: dict[int, FloatArray] = {1: np.ascontiguousarray(model.transition.toarray())}

    def matrix(self, steps: int) -> FloatArray:
        """``(N, N)``: the probabilities of going from each cell to each in so many steps."""
        if steps not in self._powers:
            if len(self._powers) > _MOST_POWERS:
                self._powers = {1: self._powers[1]}
            self._powers[steps] = np.linalg.matrix_power(self._powers[1], steps)
        return self._powers[steps]

    def kept(self, steps: int) -> FloatArray:
        """``(N,)``: the probability of being at one place of a cell throughout so many steps."""
        return np.asarray(((1.0 - self.redrawn) * self._powers[1].diagonal()) ** steps)

    def redraw(self, mass: FloatArray, steps: int) -> tuple[FloatArray, FloatArray]:
        """Mass by part, ``(N, Q)``, so many steps on: of those whose place was kept throughout, and of all others."""
        sums, kept = mass.sum(axis=1), self.kept(steps)
        moved = np.maximum(sums @ self.matrix(steps) - kept * sums, 0.0)
        return kept[:, None] * mass, np.repeat(moved[:, None] / mass.shape[1], mass.shape[1], axis=1)

    def redraw_back(self, kept_later: FloatArray, later: FloatArray, steps: int) -> FloatArray:
        """The other way round: what later releases say by part, of a place that was kept and of one drawn anew."""
        means, kept = later.mean(axis=1), self.kept(steps)
        return np.asarray(
            kept[:, None] * kept_later + np.maximum(self.matrix(steps) @ means - kept * means, 0.0)[:, None]
        )
