"""The temporal privacy loss function L(α) of a transition matrix.

``L(α) = max log (q·x)/(d·x)`` over ordered pairs (q, d) of rows and ``x ∈ {1, e^α}ⁿ`` (Equation 24 of Cao, Yoshikawa,
Xiao and Xiong, "Quantifying Differential Privacy in Continuous Data Release under Temporal Correlations", called the
TPL paper from here on). It bounds the leakage at one time that a leakage of α at the neighbouring time causes, for an
adversary who knows the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dphmm.arrays import FloatArray, IntArray, as_floats, check_epsilon, copy_read_only
from dphmm.errors import BudgetError, InvalidInputError, StochasticError
from dphmm.leakage.envelope import compute_loss, compute_slack, find_hull_vertices, find_largest_loss, solve_supremum
from dphmm.leakage.row_pairs import NO_LOSS, Excess
from dphmm.stochastic_matrix import MIN_PROBABILITY, MatrixLike, as_stochastic
from dphmm.tolerances import MAX_SCALE
from dphmm.validation import Epsilon, Interval, check_arguments

# Share of positive entries below which the sparse form is faster.
SPARSE_MAX_FILL = 0.05


def as_transition(matrix: MatrixLike, name: str = "transition matrix") -> Any:
    """Validate a transition matrix and convert it to the faster of dense and sparse form.

    Rows are renormalised within `dphmm.tolerances.PROBABILITY_TOLERANCE`. The dense form is chosen only if at least
    `SPARSE_MAX_FILL` of the remaining entries are positive. Therefore a sparse mobility matrix stays sparse.

    Parameters
    ----------
    matrix
        ``(n, n)``, dense or any scipy sparse form; row ``i`` is the distribution given state ``i``.
    name
        Name of the matrix in error messages.

    Returns
    -------
    array or scipy CSR array
        ``(n, width)``, C-contiguous, or CSR without stored zeros if few entries are positive. All-zero columns are
        dropped, because they never contribute; ``width`` may be less than ``n``.

    Raises
    ------
    StochasticError
        When the matrix is not square or empty, an entry is NaN, infinite, negative or positive but below
        `dphmm.stochastic_matrix.MIN_PROBABILITY`, or a row does not sum to 1. The message names the row and the
        value.
    """
    checked = as_stochastic(matrix, name, smallest=MIN_PROBABILITY)
    is_sparse = sp.issparse(checked)
    highest = checked.max(axis=0)
    used = np.asarray(highest.toarray() if is_sparse else highest).ravel() > 0
    kept = checked if used.all() else checked[:, used]
    positive = kept.nnz if is_sparse else np.count_nonzero(kept)
    if positive >= SPARSE_MAX_FILL * kept.shape[0] * kept.shape[1]:
        return np.ascontiguousarray(kept.toarray() if is_sparse else kept)
    csr = sp.csr_array(kept)
    csr.sort_indices()
    return csr


@check_arguments
def smooth(matrix: MatrixLike, amount: Annotated[float, Interval(0, MAX_SCALE, error=StochasticError)]) -> FloatArray:
    """Apply Laplacian smoothing to every row: ``(p + amount) / Σ (p + amount)``.

    Equation 28 of the TPL paper.

    Parameters
    ----------
    matrix
        ``(n, n)`` transition matrix.
    amount
        Non-negative. 0 leaves the matrix unchanged. Larger amounts weaken the correlation. Amounts are comparable only
        between matrices of the same size.

    Returns
    -------
    FloatArray
        ``(n, n)``, dense, row-stochastic.

    Raises
    ------
    StochasticError
        When the matrix is not row-stochastic, or the amount is negative or not finite.

    Examples
    --------
    >>> smooth([[1, 0], [0, 1]], 0.5)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    dense = matrix.toarray() if sp.issparse(matrix) else matrix
    raised = as_stochastic(dense, "matrix", smallest=MIN_PROBABILITY) + amount
    return np.asarray(raised / raised.sum(axis=1, keepdims=True), dtype=np.float64)


def is_matrix(value: object) -> bool:
    """Return whether a value is one matrix, rather than an iterable of matrices, one per step."""
    if sp.issparse(value):
        return True
    if isinstance(value, np.ndarray):
        return value.ndim != 3
    if isinstance(value, Sequence):
        first = value[0] if value else None  # without steps there are no matrices
        return not (first is None or callable(first) or sp.issparse(first) or np.ndim(first) == 2)
    return not isinstance(value, Iterator)


@dataclass(frozen=True)
class Supremum:
    """The limit of leakage if every step spends the same ε.

    Parameters
    ----------
    value
        The smallest α with ``L(α) + ε = α``. Infinite if leakage grows without bound.
    q, d
        The masses that determine it (Theorem 11 of the TPL paper).
    rows
        The pair of rows that attains it.
    """

    value: float
    q: float
    d: float
    rows: tuple[int, int]


@check_arguments
class LossFunction:
    """The loss function L(α) of a transition matrix, piecewise and exact for every α.

    On the k-th piece ``L(α) = log (1 + q_k(e^α − 1)) / (1 + d_k(e^α − 1))`` (Corollary 3 of the TPL paper). A call is a
    binary search. Unlike Algorithm 4 of the paper, it needs no upper bound on α and no O(n³) memory, and it finds each
    piece once.

    Parameters
    ----------
    matrix
        ``(n, n)`` row-stochastic, dense or scipy sparse; ``None`` for an adversary without this knowledge (L = 0).
    limit
        Largest α at which the function is needed. Defaults to no limit; a finite limit saves time on large matrices.
    name
        Name of the matrix in error messages.

    Attributes
    ----------
    starts : FloatArray
        ``(pieces,)``, increasing: the α at which each piece starts. The first is 0.
    q, d : FloatArray
        ``(pieces,)`` coefficients of each piece, both decreasing.
    rows : IntArray
        ``(pieces, 2)`` pair of rows that attains each piece.
    limit : float
        The largest α at which the function is defined.
    size : int or None
        Number of states; None without a matrix.

    Raises
    ------
    StochasticError
        When the matrix is not square or not row-stochastic.

    Examples
    --------
    >>> function = LossFunction([[.1, .2, .7], [.3, .3, .4], [.5, .3, .2]])
    >>> function([1, 10]).round(6)
    array([0.494334, 1.609075])
    >>> function.starts.round(6)
    array([0.      , 1.466337])
    """

    def __init__(
        self,
        matrix: MatrixLike | None,
        limit: Annotated[float, Interval(0, math.inf, "right", error=BudgetError)] = math.inf,
        name: str = "transition matrix",
    ) -> None:
        self.limit = float(limit)
        self.size: int | None = None
        vertices = [NO_LOSS]
        starts = [0.0]
        if matrix is not None:
            excess = Excess(as_transition(matrix, name))
            self.size = excess.size
            vertices, starts = find_hull_vertices(excess, self.limit)
        self.starts: FloatArray = copy_read_only(starts)
        self.rows: IntArray = copy_read_only([v.rows for v in vertices])
        points: FloatArray = copy_read_only(np.array([(v.q, v.d, v.rest, v.gap) for v in vertices]).T)
        self.q, self.d, self._rest, self._gap = points
        self._slack_starts = compute_slack(self.starts, *points)

    @overload
    def __call__(self, alpha: float) -> float: ...
    @overload
    def __call__(self, alpha: npt.ArrayLike) -> FloatArray: ...
    def __call__(self, alpha: npt.ArrayLike) -> float | FloatArray:
        """Return L(α): a float for a number, an array for an array. L(0) is 0.

        Raises
        ------
        InvalidInputError
            When an α is negative, not finite, or beyond `limit`.
        """
        values = as_floats(alpha, "alpha", BudgetError)
        good = (values >= 0) & (values <= self.limit) & (values < math.inf)
        if not good.all():
            raise InvalidInputError(f"alpha must be finite and in [0, {self.limit}], got {values[~good].flat[0]}")
        loss = self._evaluate(values)
        return float(loss) if values.ndim == 0 else loss

    @property
    def is_identity(self) -> bool:
        """Whether L(α) = α: two rows have disjoint supports."""
        return bool(self.d[-1] == 0 and self._rest[-1] == 0)

    def _evaluate(self, values: FloatArray) -> FloatArray:
        at = np.searchsorted(self.starts, values, side="right") - 1
        return compute_loss(values, self.q[at], self.d[at], self._rest[at], self._gap[at])

    def supremum(self, epsilon: float) -> Supremum:
        """Return the limit of leakage under the same ε at every step.

        Theorem 11 and Algorithm 6 of the TPL paper. ``α − L(α)`` increases strictly. Therefore a binary search finds
        the piece, and a closed form gives α. The limit is infinite exactly when ``ε ≥ log(1/q)``, where q is the
        largest mass that one row has on states that another row excludes.

        Parameters
        ----------
        epsilon
            The budget of every step, positive and finite.

        Returns
        -------
        Supremum
            The limit, and the pair of rows that attains it.

        Raises
        ------
        InvalidInputError
            When ε is not positive and finite, or the supremum lies beyond a finite `limit`.
        """
        epsilon = check_epsilon(epsilon, "epsilon")
        at = int(np.searchsorted(self._slack_starts, epsilon, side="right")) - 1
        q = float(self.q[at])
        d = float(self.d[at])
        value = solve_supremum(epsilon, q, d, float(self._rest[at]))
        if value > self.limit:
            raise InvalidInputError(f"the supremum for epsilon {epsilon} is beyond the limit {self.limit}: raise limit")
        return Supremum(value, q, d, (int(self.rows[at, 0]), int(self.rows[at, 1])))


# Knowledge of an adversary: a matrix, its loss function, or None without knowledge.
Knowledge = MatrixLike | LossFunction | None


@check_arguments
def loss(matrix: Knowledge, alpha: Annotated[float, Interval(0, math.inf, "left", error=BudgetError)]) -> float:
    """Return L(α) of a transition matrix at one α, without building the piecewise function.

    One pass over the pairs of rows: O(n³) time for a dense matrix, O(n²) memory. For a sparse matrix only columns
    that two rows share cost time. If two rows have disjoint supports, the result is α.

    Parameters
    ----------
    matrix
        ``(n, n)`` row-stochastic, dense or scipy sparse; a `LossFunction`; or None (the loss is 0).
    alpha
        The leakage one step away, finite and non-negative.

    Returns
    -------
    float
        In ``[0, alpha]``: 0 if all rows are equal, α if two rows have disjoint supports. The value is attained by a
        pair of rows and a set of states. No pair exceeds it by more than rounding: relative ``n·1e-16`` for a dense
        matrix. For a sparse matrix, sums are subtracted from 1, and a pair that exceeds the result by less than
        ``2e-15/q`` of the loss's exponential can be missed, where q is its mass (`LossFunction.q`).

    Raises
    ------
    StochasticError
        When the matrix is not square or not row-stochastic, or a positive entry is below 1e-200.
    InvalidInputError
        When α is negative or not finite.

    Notes
    -----
    A pair (q, d) beats the ratio λ iff ``(e^α − 1)·Σ_j (q_j − λ d_j)₊ > λ − 1``. States with ``d_j = 0 < q_j`` belong
    to the maximiser. As printed, Algorithm 1 of the TPL paper never resets its flag *update* and so does not end, and
    line 5 of Algorithm 3 has a wrong denominator.

    Examples
    --------
    >>> round(loss([[.1, .2, .7], [.3, .3, .4], [.5, .3, .2]], 2), 6)
    0.939752
    >>> loss([[1, 0], [0, 1]], 800.0)
    800.0
    """
    alpha = float(alpha)
    if matrix is None:
        return 0.0
    if isinstance(matrix, LossFunction):
        return matrix(alpha)
    excess = Excess(as_transition(matrix))
    return find_largest_loss(excess, alpha) if alpha else 0.0


@check_arguments
def supremum(matrix: Knowledge, epsilon: Epsilon) -> float:
    """Return the limit of leakage if every step spends ε. It can be infinite.

    `LossFunction.supremum` also returns the pair of rows that attains it.

    Parameters
    ----------
    matrix
        ``(n, n)`` row-stochastic, dense or scipy sparse; a `LossFunction`; or None.
    epsilon
        The budget of every step, positive and finite.

    Returns
    -------
    float
        The smallest α with ``L(α) + ε = α``, or infinity if there is none.

    Raises
    ------
    StochasticError
        When the matrix is not square or not row-stochastic.
    InvalidInputError
        When ε is not positive and finite.

    Examples
    --------
    >>> round(supremum([[.8, .2], [0, 1]], 0.15), 6)
    1.192242
    >>> supremum([[.8, .2], [0, 1]], 0.23)
    inf
    """
    return as_loss_function(matrix).supremum(epsilon).value


def as_loss_function(matrix: Knowledge, name: str = "transition matrix", limit: float = math.inf) -> LossFunction:
    """Return the loss function of a matrix. A `LossFunction` is returned unchanged."""
    return matrix if isinstance(matrix, LossFunction) else LossFunction(matrix, limit, name)
