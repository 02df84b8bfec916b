"""Cells of a model divided into parts, and moves between the parts.

The model's states are cells, but channels act on locations. A user who stays in a cell usually stays at one location in
it. A repeated release is then no new evidence, and independent noise around one location averages out. An adversary who
assumed a new location at each step would be wrong in both cases. The location is therefore a hidden variable: one of
equal square parts of the cell, uniform on arrival. It is kept while the user stays, except that it is sampled again at
3 % of the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Annotated

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import Operator, exponentiate_logs
from dphmm.space.grid import Grid
from dphmm.validation import Integers, Interval, check_arguments

# Number of columns, and of rows, of parts in a cell.
PARTS = 5

# Share of the steps at which a user who stays in a cell moves to another, newly sampled part of it.
REDRAW_RATE = 0.03

# Maximum number of states: the passes use dense matrices.
MAX_STATES = 2048

# Number of gaps with cached matrices, each at most 32 MB.
_CACHE_SIZE = 32

_Parts = Annotated[int, Integers(1, 20, error=ConfigurationError)]
_Share = Annotated[float, Interval(0, 1, error=ConfigurationError)]


class Mesh:
    """Square cells of equal size in a plane. The parts of each model cell are contiguous.

    Parameters
    ----------
    grid
        The model's cells.
    parts
        Number of columns and rows of parts in each cell. 1 leaves cells whole.

    Attributes
    ----------
    points
        ``(N parts², 2)``: the centres of the parts, kilometres.
    """

    def __init__(self, grid: Grid, parts: int) -> None:
        self.projection = grid.projection
        self.cell_km = grid.cell_km / parts
        self.columns = grid.columns * parts
        self.rows = grid.rows * parts
        inner = np.stack(np.meshgrid(range(parts), range(parts)), axis=-1).reshape(-1, 2)
        self.lattice: IntArray = (grid.lattice[:, None, :] * parts + inner).reshape(-1, 2)
        self.origin = grid.origin - self.cell_km * (parts - 1) / 2
        self.points: FloatArray = self.origin + self.cell_km * self.lattice

    def locate(self, points: FloatArray) -> IntArray:
        """Return the part that contains each point of the plane ``(n, 2)``, -1 for none, ``(n,)``."""
        cells = np.floor((points - self.origin) / self.cell_km + 0.5).astype(np.int64)
        inside = np.asarray(((cells >= 0) & (cells < [self.columns, self.rows])).all(axis=1))
        column, row = np.where(inside[:, None], cells, 0).T
        return np.where(inside, self._cell_index[column, row], -1)

    @cached_property
    def _cell_index(self) -> IntArray:
        numbers = np.full((self.columns, self.rows), -1, dtype=np.int64)
        numbers[self.lattice[:, 0], self.lattice[:, 1]] = np.arange(len(self.lattice))
        return numbers

    def compute_grid_lines(self, axis: int) -> FloatArray:
        """Return the lines between columns (0) or rows (1), kilometres."""
        count = (self.columns, self.rows)[axis]
        return np.asarray(self.origin[axis] + self.cell_km * (np.arange(count + 1) - 0.5))

    def flatten(self, values: FloatArray) -> FloatArray:
        """Reorder values ``(T, columns, rows)`` by part, ``(T, N parts²)``."""
        return np.asarray(values[:, self.lattice[:, 0], self.lattice[:, 1]])


class MeshMovement:
    """Movement of users between parts of cells under a model.

    Parameters
    ----------
    model
        A model over the cells of a grid, without time classes.
    parts
        See `Mesh`.
    redraw_rate
        See `REDRAW_RATE`.

    Raises
    ------
    ConfigurationError
        If the model has time classes or other states than cells, or more than `MAX_STATES` states.
    """

    @check_arguments
    def __init__(self, model: MarkovModel, parts: _Parts = PARTS, redraw_rate: _Share = REDRAW_RATE) -> None:
        if model.time_classes is not None:
            raise ConfigurationError("model must not have time classes; train one without --time-classes")
        if not isinstance(model.space, Grid):
            raise ConfigurationError(f"model must have the cells of a grid as states, got {type(model.space).__name__}")
        if model.size > MAX_STATES:
            raise ConfigurationError(
                f"model must have at most {MAX_STATES:,} states for an attack, got {model.size:,}; train one for a "
                "smaller region or with larger cells"
            )
        self.model = model
        self.grid = model.space
        self.mesh = Mesh(model.space, parts)
        self.parts = parts
        self.redraw_rate = redraw_rate
        self.initial: FloatArray = model.initial
        one_step: FloatArray = np.ascontiguousarray(model.inside_transition.toarray())
        self._unchanged = (1.0 - redraw_rate) * one_step.diagonal()
        # The cached functions do not reference this object, so it is freed with its last user.
        self._power = lru_cache(maxsize=_CACHE_SIZE)(partial(np.linalg.matrix_power, one_step))
        self._change = lru_cache(maxsize=_CACHE_SIZE)(
            partial(_build_transition, self._power, self._unchanged, parts**2)
        )

    def transition_matrix(self, steps: int) -> FloatArray:
        """Return the transition probabilities between cells in `steps` steps.

        Parameters
        ----------
        steps
            Number of steps, at least 1.

        Returns
        -------
        FloatArray
            ``(N, N)``, row-stochastic.
        """
        return self._power(steps)

    def stay_probability(self, steps: int) -> FloatArray:
        """Return the probability of staying at one location of each cell throughout `steps` steps.

        Parameters
        ----------
        steps
            Number of steps, at least 1.

        Returns
        -------
        FloatArray
            ``(N,)``.
        """
        return np.asarray(self._unchanged**steps)

    def build_transition(self, steps: int) -> MeshTransition:
        """Build the joint transition of cells and parts in `steps` steps.

        A user who leaves a location arrives at any part of a cell with equal probability.

        Parameters
        ----------
        steps
            Number of steps, at least 1.

        Returns
        -------
        MeshTransition
            The transition.
        """
        return self._change(steps)

    @cached_property
    def initial_transition(self) -> MeshTransition:
        """The transition to the initial distribution, whatever the state before."""
        return MeshTransition(
            np.zeros((1, 1)), np.tile(self.initial, (self.grid.size, 1)), *_build_gather_and_spread(self.parts**2)
        )


def _build_transition(
    power: Callable[[int], FloatArray], unchanged: FloatArray, parts: int, steps: int
) -> MeshTransition:
    """Build the transition in some steps from matrix powers and stay probabilities."""
    kept = unchanged**steps
    cells = np.maximum(power(steps) - np.diag(kept), 0.0)
    return MeshTransition(kept[:, None], cells, *_build_gather_and_spread(parts))


def _build_gather_and_spread(parts: int) -> tuple[FloatArray, FloatArray]:
    return np.ones((parts, 1)), np.full((1, parts), 1.0 / parts)


@dataclass(frozen=True, eq=False)
class MeshTransition(Operator):
    """Joint transition of a cell and a second hidden variable, ``(N, Q)``.

    Either both stay, or both may change.

    Parameters
    ----------
    stay_probability
        ``(N, Q)`` or broadcastable: the probability that both stay.
    cells
        ``(N, N)``: the transition probabilities between cells.
    gather, spread
        ``(Q, r)`` and ``(r, Q)``: their product is the transition of the second variable. It stays if both are None.
    excess
        The part of the stay probability that is included in the product of both transitions. It is subtracted.
    """

    stay_probability: FloatArray
    cells: FloatArray
    gather: FloatArray | None = None
    spread: FloatArray | None = None
    excess: FloatArray | float = 0.0

    def with_release(self, log_row: FloatArray, is_same: bool) -> MeshTransition:
        """Add a deterministic release: while nothing changes, neither does the release.

        Parameters
        ----------
        log_row
            ``(N Q,)``: the log probability of the release. It counts for arrivals, and not again for a user who stays.
        is_same
            Whether the release equals the previous one.
        """
        row = log_row.reshape(len(self.cells), -1)
        stays = self.stay_probability * np.exp(-np.where(row > -np.inf, row, np.inf)) if is_same else np.zeros((1, 1))
        return replace(self, stay_probability=stays)

    def propagate_forward(self, logs: FloatArray) -> FloatArray:
        """Propagate log masses forward. See `Operator`."""
        masses = self._convert_to_masses(logs)
        moved = self.cells.T @ (masses if self.gather is None else masses @ self.gather)
        return self._convert_to_logs(logs, masses, moved if self.spread is None else moved @ self.spread)

    def propagate_backward(self, logs: FloatArray) -> FloatArray:
        """Propagate log masses backward. See `Operator`."""
        later = self._convert_to_masses(logs)
        moved = self.cells @ (later if self.spread is None else later @ self.spread.T)
        return self._convert_to_logs(logs, later, moved if self.gather is None else moved @ self.gather.T)

    def _convert_to_masses(self, logs: FloatArray) -> FloatArray:
        """Convert log masses to masses ``(N, Q)`` with a maximum of one."""
        return exponentiate_logs(logs - logs.max()).reshape(len(self.cells), -1)

    def _convert_to_logs(self, log_rows: FloatArray, unchanged: FloatArray, changed: FloatArray) -> FloatArray:
        masses = changed + (self.stay_probability - self.excess) * unchanged
        return np.asarray(log_or_neg_inf(np.maximum(masses, 0.0, out=masses).ravel()) + log_rows.max())


def log_or_neg_inf(shares: FloatArray) -> FloatArray:
    """Return the logarithms of shares, minus infinity for 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shares))
