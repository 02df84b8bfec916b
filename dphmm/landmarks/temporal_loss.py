"""Joint leakage about all landmarks and each timestamp of correlated data.

Between the states ``a`` at time i and ``b`` at time j, a state at u has ``Pr(s | a, b) ∝ A(a, s) B(s, b)``, where A and
B are the products of the steps from i to u and from u to j. The *bridge* has one such row for each possible pair
(a, b). Its rows can differ far more than rows of A. For releases z in between, ``log Pr(z | a, b) / Pr(z | a', b')`` is
bounded by

* the sum of their budgets;
* for one release and few states, the loss function of the bridge (Cao et al., TKDE 2019, Equation 24);
* two recursions. Conditional on b, the states from i on are a Markov chain with the original matrices, rows reweighted
  (`Tilted`). A recursion from j down bounds the ratio of a and a' at the same b, one from i up bounds that of b and b'
  at the same a', and their sum bounds both. Reweighting changes no cross ratio. With the *spread* of a matrix,
  ``D = max log (M(a,s) M(a',s')) / (M(a,s') M(a',s))``, a loss α passes with at most ``4 artanh(tanh(D/4) tanh(α/4))``
  (`contract_loss`; Birkhoff 1957). If that is below α at one step, every pair (a, b) is possible, as the argument
  needs. If it is below α at no step, the sum of budgets is below the two recursions.

Three bounds are combined: those of `Steps` and `Tilted` on a stretch without further members; that of a stretch with
one more member, ``loss(i, j) <= loss(i, v) + epsilon_v + loss(v, j)``, because the likelihood given the ends alone is
an average over the state at v; and the sum of budgets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.landmarks.budget_schemes import timeline, validate_budgets
from dphmm.leakage import backward_leakage as backward_leakage
from dphmm.leakage import compute_leakage
from dphmm.leakage import forward_leakage as forward_leakage
from dphmm.leakage.envelope import find_largest_loss
from dphmm.leakage.loss_function import Knowledge, LossFunction, as_loss_function, is_matrix
from dphmm.leakage.row_pairs import Excess
from dphmm.stochastic_matrix import MIN_PROBABILITY, MatrixLike, as_stochastic
from dphmm.validation import check_arguments

# The far future is computed up to ``2**29`` steps ahead: that of the first round is one step ahead, and each further
# round squares the matrix. The remaining change is included as drift.
_NUM_SQUARINGS = 30

# Number of steps up to which leanings are computed from products of matrices, and losses from step to step. A bound
# after fewer steps is also one after more: no step increases a loss.
_MAX_DIRECT_STEPS = 32

# Weights below this can have lost precision: products of three of them are still above the smallest normal double.
_MIN_WEIGHT = 1e-90


class Tilted:
    """Propagation of losses through one matrix, conditional on the state some steps later.

    Conditional on that state b, the next state has the probabilities ``P(s, s') h(s')``, normalised, where ``h`` is the
    likelihood of b from each state. For rows reweighted in this way, with ``log max h / min h <= η`` (the *leaning*),
    the loss is at most ``L(α + η) + L(η)``: a ratio of sums of ``P h x`` over one of sums of ``P h``, with x from 1 to
    e^α. The leaning decreases with the number of steps to b. Far from b, the loss is that of the original matrix.

    Parameters
    ----------
    matrix
        ``(n, n)``, non-negative: a transition matrix, or one with rows and columns multiplied by weights.
    far, drift
        ``(n,)`` weights of the far future, relative to which other weights are expressed; and the ``log max / min`` by
        which a step changes them.
    max_steps
        Number of steps for which leanings are computed.
    """

    def __init__(self, matrix: FloatArray, far: FloatArray, drift: float, max_steps: int) -> None:
        rows = matrix * far
        self._loss = LossFunction(rows / rows.sum(axis=1, keepdims=True))
        self._drift = drift
        # The leaning for each number of steps to the conditioning state.
        self.leanings = np.full(max_steps + 1, np.inf)
        product = np.eye(len(matrix))
        holds = np.eye(len(matrix))
        for steps in range(1, max_steps + 1):
            before = self.leanings[steps - 1]
            if np.isfinite(before):
                self.leanings[steps] = self._loss(float(before)) + self._drift
            if steps <= _MAX_DIRECT_STEPS:
                product = matrix @ product
                holds = ((matrix > 0) @ holds > 0).astype(np.float64)
                possible = product[:, holds.any(axis=0)]
                if possible.min() >= _MIN_WEIGHT:
                    direct = np.ptp(np.log(possible) - np.log(far)[:, None], axis=0).max()
                    self.leanings[steps] = min(self.leanings[steps], direct)

    @classmethod
    def from_matrix(cls, matrix: FloatArray, max_steps: int) -> Tilted | None:
        """Return the propagation of a matrix. None if it does not contract."""
        if not matrix.any(axis=1).all() or matrix[matrix > 0].min() < _MIN_WEIGHT:
            return None
        tilted = cls(matrix, *_find_far_future(matrix), max_steps)
        return None if tilted._loss.is_identity else tilted

    def propagate_losses(self, alphas: FloatArray, steps: int, leanings: FloatArray) -> FloatArray:
        """Return bounds on losses after `steps` steps. Infinite if a leaning is."""
        is_known = np.isfinite(leanings)
        less = np.where(is_known, leanings, 0.0)
        more = alphas + less
        for step in range(min(steps, _MAX_DIRECT_STEPS)):
            drift = self._drift if step else 0.0
            more = self._loss(more + drift)
            less = self._loss(less + drift)
        return np.where(is_known, more + less, np.inf)

    def propagate_far_loss(self, alpha: float, steps: int, min_steps: int, max_steps: int) -> float:
        """Return the bound on one loss. The conditioning state is `min_steps` to `max_steps` away."""
        leaning = self.leanings[min_steps] + max_steps * self._drift
        return float(self.propagate_losses(np.asarray(alpha), steps, np.asarray(leaning)))


def _find_far_future(matrix: FloatArray) -> tuple[FloatArray, float]:
    """Return weights ``(n,)`` that a step nearly preserves, and their log change."""
    power = matrix
    weights = np.ones(len(matrix))
    drift = float(np.ptp(np.log(matrix @ weights)))
    for _ in range(_NUM_SQUARINGS):
        power = power / power.max()
        far = power @ np.ones(len(matrix))
        if drift < 1e-12 or far.min() < _MIN_WEIGHT * far.max():
            break
        weights = far
        drift = float(np.ptp(np.log(matrix @ far) - np.log(far)))
        power = power @ power
    return weights / weights.max(), drift


# Maximum number of states for products of matrices. Above it, the sum of budgets is the bound.
MAX_STATES = 256

# Maximum number of states for which the loss of the bridge itself is computed.
_EXACT_MAX_STATES = 16

# Maximum number of steps to either side for which the loss of the bridge itself is computed.
EXACT_MAX_STEPS = 8

# Products of more steps are bounded through their blocks, because the spreads of factors contract each other.
_BLOCK_STEPS = 32

# Probabilities below this can have lost precision: a product of two of them is near the smallest normal double, 2e-308.
_MIN_PRODUCT_PROBABILITY = 1e-150


def contract_loss(spread: npt.ArrayLike, alpha: npt.ArrayLike) -> FloatArray:
    """Return the largest loss of masses q, d with an odds ratio of ``e^spread``, elementwise.

    This is the maximum of ``log (1 + q(e^α − 1)) / (1 + d(e^α − 1))``. It is at most the smaller argument. Either
    argument can be infinite.

    Examples
    --------
    >>> contract_loss([1.0, 1.0, np.inf], [0.5, np.inf, 0.5]).round(6).tolist()
    [0.121863, 1.0, 0.5]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        u = np.expm1(np.multiply(spread, 0.5))
        v = np.expm1(np.multiply(alpha, 0.5))
        loss = 2.0 * np.log1p(u * v / (u + v + 2.0))  # NaN on overflow, where the minimum below applies
    return np.asarray(np.fmin(loss, np.minimum(spread, alpha)))


class Steps:
    """Products of the matrices of successive steps, and the losses that they propagate.

    Parameters
    ----------
    matrices
        Non-negative ``(n, n)`` arrays: one for all steps, or one for each. Rows need not sum to one: transposed
        backward matrices have the bridges of their chain.
    """

    def __init__(self, matrices: FloatArray | Sequence[FloatArray]) -> None:
        self._matrices = matrices
        self._same = isinstance(matrices, np.ndarray)
        self.size = len(matrices if self._same else matrices[0])
        # Whether there are few enough states to compute the loss of the bridge itself.
        self.is_small = self.size <= _EXACT_MAX_STATES
        self._products: dict[tuple[int, int], tuple[FloatArray, BoolArray]] = {}
        self._spreads: dict[tuple[int, int], float] = {}
        self._tilted: dict[int, Tilted | None] = {}
        self._losses: dict[tuple[int, int, int, float], float] = {}

    def bound_spread(self, start: int, stop: int) -> float:
        """Return an upper bound on the spread between two times. Infinite if supports differ."""
        start, stop = sorted((start, stop))
        # A gap of months has thousands of blocks. All but the last are usually known: from one time to the next only
        # the last block changes.
        ends: list[int] = []
        while (key := self._get_key(start, stop)) not in self._spreads and stop - start > _BLOCK_STEPS:
            ends.append(stop)
            stop = start + (stop - start - 1) // _BLOCK_STEPS * _BLOCK_STEPS
        if key not in self._spreads:
            self._spreads[key] = _compute_spread(*self._multiply(start, stop))
        spread = self._spreads[key]
        for end in reversed(ends):
            spread = self._spreads[self._get_key(start, end)] = float(
                contract_loss(spread, self.bound_spread(stop, end))
            )
            stop = end
        return spread

    def compute_loss(self, start: int, at: int, stop: int, epsilon: float) -> float:
        """Return the loss of one release between two times by the bridge. At most ``epsilon``."""
        start, stop = sorted((start, stop))
        key = (*self._get_key(start, at), self._get_key(at, stop)[1], epsilon)
        if key not in self._losses:
            rows = _build_bridge(self._multiply(start, at), self._multiply(at, stop))
            used = None if rows is None else np.ascontiguousarray(rows[:, rows.any(axis=0)])
            self._losses[key] = epsilon if used is None else min(epsilon, find_largest_loss(Excess(used), epsilon))
        return self._losses[key]

    def build_tilted_steps(self, max_steps: int, sign: int) -> Tilted | None:
        """Return the propagation of single steps forward (1) or backward (-1).

        The conditioning state is up to `max_steps` steps away. None if the matrix changes with time, or if `Tilted`
        gives no bound.
        """
        if not self._same:
            return None
        kept = self._tilted.get(sign)
        if sign not in self._tilted or (kept is not None and len(kept.leanings) <= max_steps):
            matrix = np.asarray(self._matrices, dtype=np.float64)
            self._tilted[sign] = kept = Tilted.from_matrix(matrix if sign > 0 else matrix.T, max_steps)
        return kept

    def _get_key(self, start: int, stop: int) -> tuple[int, int]:
        return (0, stop - start) if self._same else (start, stop)

    def _multiply(self, start: int, stop: int) -> tuple[FloatArray, BoolArray]:
        """Return the product, and its structural support."""
        key = self._get_key(start, stop)
        if key not in self._products:
            matrix = self._matrices if self._same else self._matrices[stop - 1]
            last = np.asarray(matrix, dtype=np.float64)
            product = last
            holds = last > 0
            if stop - start > 1:
                before, possible = self._multiply(start, stop - 1)
                product = before @ last
                holds = (possible.astype(np.float64) @ holds) > 0
            self._products[key] = product, holds
        return self._products[key]


def _compute_spread(product: FloatArray, holds: BoolArray) -> float:
    can_be = np.ix_(holds.any(axis=1), holds.any(axis=0))
    if not holds[can_be].all() or product[can_be].min() < _MIN_PRODUCT_PROBABILITY:
        return math.inf
    logs = np.log(product[can_be])
    return max(float(np.ptp(row - logs, axis=1).max()) for row in logs)


def _build_bridge(before: tuple[FloatArray, BoolArray], after: tuple[FloatArray, BoolArray]) -> FloatArray | None:
    """Return the rows ``Pr(s | a, b)`` of all possible pairs. None if precision is lost."""
    (left, from_a) = before
    (right, to_b) = after
    holds = from_a[:, None, :] & to_b.T[None, :, :]
    if min(left[from_a].min(), right[to_b].min()) < _MIN_PRODUCT_PROBABILITY:
        return None
    masses = (left[:, None, :] * right.T[None, :, :])[holds.any(axis=2)]
    return np.asarray(masses / masses.sum(axis=1, keepdims=True))


# Number of times up to which all splits of a stretch are tried, at quadratic cost.
_ALL_SPLITS_TIMES = 1024


def bound_losses(budgets: FloatArray, steps: Steps | None, start: int, sign: int = 1) -> FloatArray:
    """Bound the loss of releases strictly between the first time and each other time.

    The loss concerns the states at both times.

    Parameters
    ----------
    budgets
        ``(g,)`` budgets of the times, both ends included.
    steps
        The transitions. None uses the budgets only.
    start
        Index of the first time among all times.
    sign
        1, or -1 if the times run backwards.

    Returns
    -------
    FloatArray
        ``(g,)`` upper bounds; zero for the first time and its neighbour.
    """
    spent = np.where(np.arange(len(budgets)) > 0, budgets, 0.0)
    losses = np.cumsum(spent) - spent
    if steps is None or not spent[:-1].any():
        return losses
    near = _Stretch(spent[:_ALL_SPLITS_TIMES], steps, start, sign)
    tilted = steps.build_tilted_steps(near.size, sign), steps.build_tilted_steps(near.size, -sign)
    if steps.is_small or np.isfinite(near.since[1:]).any() or any(tilted):
        losses[:_ALL_SPLITS_TIMES] = np.minimum(losses[:_ALL_SPLITS_TIMES], near.bound_by_splits(*tilted))
    if len(spent) > _ALL_SPLITS_TIMES:
        far = _Stretch(spent, steps, start, sign).bound_unsplit(*tilted)
        losses[_ALL_SPLITS_TIMES:] = np.minimum(losses[_ALL_SPLITS_TIMES:], far[_ALL_SPLITS_TIMES:])
    return losses


class _Stretch:
    """Successive times. The first is a member, and its budget is set to zero.

    The two recursions of this module run along a stretch: ``towards`` from a later time down, conditional on the state
    there, by the `Tilted` steps ``to`` in the direction of the stretch; ``away`` from the first time up, by the steps
    ``fro`` against it. Their sum is a bound. The steps are None if they give none.
    """

    def __init__(self, spent: FloatArray, steps: Steps, start: int, sign: int) -> None:
        self.size = len(spent)
        self.spent = spent
        self.steps = steps
        self._start = start
        self._sign = sign
        # The release before each time (else the first time), and the spread of the steps from it.
        self.last = np.zeros(self.size, dtype=np.int64)
        self.last[1:] = np.maximum.accumulate(np.where(spent > 0, np.arange(self.size), 0))[:-1]
        self.since = np.array([self._compute_spread(a, t) for t, a in enumerate(self.last.tolist())])

    def _compute_spread(self, a: int, b: int) -> float:
        return self.steps.bound_spread(self._start + self._sign * a, self._start + self._sign * b)

    def bound_unsplit(self, to: Tilted | None, fro: Tilted | None) -> FloatArray:
        """Bound the losses of times from `_ALL_SPLITS_TIMES` on without splitting the stretch.

        Entries of earlier times are not bounds.
        """
        # One recursion over all releases serves every time: those after a time only increase its bound.
        towards = 0.0
        half = _ALL_SPLITS_TIMES // 2
        away: FloatArray = np.zeros(self.size)
        for at in np.flatnonzero(self.spent[:-1])[::-1].tolist():
            loss = self.spent[at] + towards
            towards = float(contract_loss(self.since[at], loss))
            if to is not None and at <= half:  # times from `_ALL_SPLITS_TIMES` on are at least `half` away
                towards = min(towards, to.propagate_far_loss(loss, at - int(self.last[at]), half, self.size))
        for t in np.flatnonzero(self.last).tolist():
            at = int(self.last[t])
            loss = self.spent[at] + away[at]
            away[t] = contract_loss(self.since[t], loss)
            if fro is not None and at >= half:  # and so is the first time
                away[t] = min(away[t], fro.propagate_far_loss(loss, t - at, half, self.size))
        return np.asarray(np.where(self.last > 0, towards + away, 0.0))

    def bound_by_splits(self, to: Tilted | None, fro: Tilted | None) -> FloatArray:
        """Return the minimum over all splits by members, with the best bound of each stretch."""
        direct = self._bound_directly(to, fro)
        minimum: FloatArray = np.array(direct[0])
        for t in range(2, self.size):
            minimum[t] = min(minimum[t], (minimum[1:t] + self.spent[1:t] + direct[1:t, t]).min())
        return minimum

    def _bound_directly(self, to: Tilted | None, fro: Tilted | None) -> FloatArray:
        """Return bounds ``(g, g)`` for pairs of times without members in between.

        Rows are first times. Below the diagonal, nothing is in between.
        """
        size = self.size
        spent = self.spent
        last = self.last
        since = self.since
        following = np.full(size, size)  # the release after each time
        following[:-1] = np.minimum.accumulate(np.where(spent > 0, np.arange(size), size)[:0:-1])[::-1]
        ahead = np.array(
            [self._compute_spread(v, at) if at < size else np.inf for v, at in enumerate(following.tolist())]
        )
        towards = np.zeros((size, size))
        away = np.zeros((size, size))
        for v in np.flatnonzero(following < size - 1)[::-1]:
            at = int(following[v])
            loss = spent[at] + towards[at, at + 1 :]
            towards[v, at + 1 :] = contract_loss(ahead[v], loss)
            if to is not None:
                seen = to.propagate_losses(loss, at - int(v), to.leanings[1 : size - at])
                towards[v, at + 1 :] = np.minimum(towards[v, at + 1 :], seen)
        for t in np.flatnonzero(last):
            at = int(last[t])
            loss = spent[at] + away[:at, at]
            away[:at, t] = contract_loss(since[t], loss)
            if fro is not None:
                away[:at, t] = np.minimum(away[:at, t], fro.propagate_losses(loss, int(t) - at, fro.leanings[at:0:-1]))
        sums = np.cumsum(spent)
        direct = np.minimum(np.maximum((sums - spent) - sums[:, None], 0.0), towards + away)
        # One release between the two: the spreads of the steps on both sides of it add up.
        for at in np.flatnonzero(spent[:-1]).tolist():
            starts = np.arange(last[at], at)
            stops = np.arange(at + 1, min(following[at] + 1, size))
            alone = contract_loss(ahead[starts][:, None] + since[stops], spent[at])
            if self.steps.is_small:
                for i in range(max(len(starts) - EXACT_MAX_STEPS, 0), len(starts)):
                    for j in range(min(len(stops), EXACT_MAX_STEPS)):
                        first, middle, end = (self._start + self._sign * int(k) for k in (starts[i], at, stops[j]))
                        alone[i, j] = min(alone[i, j], self.steps.compute_loss(first, middle, end, float(spent[at])))
            part = np.ix_(starts, stops)
            direct[part] = np.minimum(direct[part], alone)
        return direct


# One matrix for all steps, or one for each of the T - 1 steps in temporal order; None if unknown.
MatricesByTime = MatrixLike | Iterable[MatrixLike | None] | None


@check_arguments
def leakage(
    timestamps: npt.ArrayLike,
    landmarks: npt.ArrayLike,
    epsilons: npt.ArrayLike,
    backward: MatricesByTime = None,
    forward: MatricesByTime = None,
) -> FloatArray:
    """Bound the joint leakage about all landmarks together with each timestamp.

    The joint leakage of ``L ∪ {t}`` is the largest log ratio of the probabilities of all releases under any two
    assignments of states to these times. It is at most the sum of

    * the backward leakage into the first member, and the forward leakage into the last one (Cao et al., TKDE 2019);
    * the budgets of the members;
    * for any two successive members, the loss of the releases between them about both. It is the loss through the
      *bridge*: the states in between conditional on both ends. Its rows can differ far more than those of a matrix.

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilons
        ``(T,)`` bounds on the log-likelihood ratio of each release between any two states; zero if no data are read.
    backward, forward
        The adversary's knowledge of backward and forward steps: a row-stochastic matrix for all steps, dense or sparse;
        one for each of the ``T - 1`` steps in temporal order (see `dphmm.model.reverse_by_step` for backward ones); or
        None. Both describe one chain. Bridges use the forward matrices, or else the backward ones. None means that this
        side is unknown to the adversary: its leakage into the first or last member is zero.

    Returns
    -------
    FloatArray
        ``(T,)``, at most the sum of all budgets. Without matrices, the sums that the soundness of a scheme bounds.

    Raises
    ------
    BudgetError
        When budgets are negative or not finite, or their number is not ``T``.
    StochasticError, InvalidInputError
        When a matrix is not row-stochastic, or matrices have the wrong size or number.

    Notes
    -----
    `paper_leakage` is the sum in the landmark paper. It is not a bound.

    The loss of a single release between two members is computed from the bridge itself for up to 16 states and 8 steps
    to either side. For several releases, or more states, recursions bound the loss about both ends
    (`dphmm.landmarks.temporal_loss`), less tightly if matrices change with time. Above 256 states the sum of the
    budgets in between is the bound.

    Examples
    --------
    >>> leakage([1, 2, 3], [2], [0.5, 0.5, 0.5]).tolist()
    [1.0, 0.5, 1.0]
    >>> nearly_still = [[0.9998, 0.0002], [0.9881, 0.0119]]
    >>> leakage([1, 2, 3], [1, 3], [0, 0.3, 0], nearly_still, nearly_still)[0].round(7).item()
    0.1362494
    """
    line = timeline(timestamps, landmarks)
    budgets = validate_budgets(line, epsilons)
    size = len(line)
    marks = line.indices
    past = _as_knowledge(backward, "backward")
    future = _as_knowledge(forward, "forward")
    if marks.size == 0:
        alone = compute_leakage(_get_matrices(past, 0, size - 1), _get_matrices(future, 0, size - 1), budgets)
        return np.asarray(np.minimum(alone.temporal, budgets.sum()))
    if not (future is None or _is_matrix(future)):
        future = list(future)
    elif future is None and not (past is None or _is_matrix(past)):
        past = list(past)
    steps = _build_bridges(past, future, size - 1)
    first = int(marks[0])
    final = int(marks[-1])
    before = backward_leakage(_get_matrices(past, 0, first), budgets[: first + 1]) - budgets[: first + 1]
    after = forward_leakage(_get_matrices(future, final, size - 1), budgets[final:]) - budgets[final:]

    def run(start: int, stop: int) -> FloatArray:
        """Return the losses of releases strictly between a landmark and each time up to ``stop``."""
        sign = 1 if start <= stop else -1
        part = budgets[np.arange(start, stop + sign, sign)]
        independent = past is None and future is None
        return np.zeros(len(part)) if independent else bound_losses(part, steps, start, sign)

    gaps = [(a, b, run(a, b), run(b, a)[::-1]) for a, b in pairwise(marks.tolist())]
    through = np.cumsum([0.0, *(min(left[-1], right[0]) for _, _, left, right in gaps)])
    landmark_sum = float(budgets[marks].sum())
    totals = np.full(size, landmark_sum + before[first] + through[-1] + after[0])
    # A regular timestamp is a member in addition to the landmarks and splits its stretch.
    totals[:first] = landmark_sum + (budgets[: first + 1] + before + run(first, 0)[::-1])[:-1] + through[-1] + after[0]
    for (a, b, left, right), upto, beyond in zip(gaps, through, through[-1] - through[1:], strict=False):
        within = (budgets[a : b + 1] + left + right)[1:-1]
        totals[a + 1 : b] = landmark_sum + before[first] + upto + within + beyond + after[0]
    totals[final + 1 :] = (
        landmark_sum + before[first] + through[-1] + (run(final, size - 1) + budgets[final:] + after)[1:]
    )
    return np.asarray(np.minimum(totals, budgets.sum()))


def _as_knowledge(knowledge: MatricesByTime, name: str) -> Any:
    """Return one validated matrix, an iterator of several matrices, or None."""
    if isinstance(knowledge, LossFunction):
        raise InvalidInputError(f"{name} must be a matrix, got a loss function: bridges need the matrix")
    if knowledge is None or not is_matrix(knowledge):
        return knowledge if knowledge is None else iter(cast(Iterable[Any], knowledge))
    return as_stochastic(cast(MatrixLike, knowledge), f"{name} matrix", smallest=MIN_PROBABILITY)


def _is_matrix(knowledge: Any) -> bool:
    return isinstance(knowledge, np.ndarray) or sparse.issparse(knowledge)


def _get_matrices(knowledge: Any, start: int, stop: int) -> Any:
    """Return the matrices of the steps from one time to another."""
    if knowledge is None or start == stop:
        return None
    return knowledge if _is_matrix(knowledge) else islice(iter(knowledge), start, stop)


def _build_bridges(past: Any, future: Any, count: int) -> Steps | None:
    """Return the matrices of bridges. None if there are no matrices or too many states."""
    name, knowledge = ("backward", past) if future is None else ("forward", future)
    if knowledge is None or count == 0:
        return None
    is_single = _is_matrix(knowledge)
    if not is_single and len(knowledge) != count:
        raise InvalidInputError(
            f"{name}: {count + 1} times need {count} matrices, one for each step, got {len(knowledge)}"
        )
    matrices = (
        [knowledge] if is_single else [None if m is None else as_stochastic(m, f"{name} matrix") for m in knowledge]
    )
    sizes = {m.shape[0] for m in matrices if m is not None} | ({past.shape[0]} if _is_matrix(past) else set())
    if len(sizes) > 1:
        raise StochasticError(f"matrices must belong to one chain, got {' and '.join(map(str, sorted(sizes)))} states")
    if not sizes or (states := sizes.pop()) > MAX_STATES:
        return None
    dense: list[Any] = [np.ones((states, states)) if m is None else m for m in matrices]
    dense = [cast(Any, m).toarray() if sparse.issparse(m) else m for m in dense]
    if future is None:  # Pr(before | after) as the weight of a step from before to after
        dense = [m.T for m in dense]
    return Steps(dense[0] if is_single else dense)


@check_arguments
def paper_leakage(
    timestamps: npt.ArrayLike,
    landmarks: npt.ArrayLike,
    epsilons: npt.ArrayLike,
    backward: Knowledge = None,
    forward: Knowledge = None,
) -> FloatArray:
    """Compute the ``alpha_t`` of the landmark paper, which is not a bound on joint leakage.

    Use `dphmm.landmarks.leakage` for a bound.

    For every ``i`` in ``L ∪ {t}`` the backward leakage comes from the releases after the previous member of
    ``L ∪ {t}`` up to ``i``, the forward leakage from those from ``i`` up to before the next member, and
    ``alpha_i = BPL_i + FPL_i - eps_i``; ``alpha_t`` is the sum of the ``alpha_i`` (Katsomallos, Tzompanaki and
    Kotzinos, *Landmark Privacy*, CODASPY 2022; the leakages as in Cao et al., TKDE 2019).

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilons
        ``(T,)`` budgets of the timestamps; zero if no data are read.
    backward, forward
        The adversary's knowledge of backward and forward steps: a row-stochastic matrix, a
        `dphmm.leakage.LossFunction`, or None.

    Returns
    -------
    FloatArray
        ``(T,)``. Without correlation, the sums that the soundness of a scheme bounds.

    Raises
    ------
    BudgetError
        When budgets are negative or not finite, or their number is not ``T``.

    Notes
    -----
    Erratum: the sum is not a bound on the joint leakage of ``L ∪ {t}``. A release between two members depends on the
    states that both ends allow in between, which the leakage of either end alone ignores. In the stationary chain
    ``[[.9998, .0002], [.9881, .0119]]`` one release of 0.3 between two landmarks leaks 0.1362 about both; the paper's
    sum is 0.0082.

    Examples
    --------
    >>> nearly_still = [[0.9998, 0.0002], [0.9881, 0.0119]]
    >>> paper_leakage([1, 2, 3], [1, 3], [0, 0.3, 0], nearly_still, nearly_still)[0].round(4).item()
    0.0082
    """
    line = timeline(timestamps, landmarks)
    budgets = validate_budgets(line, epsilons)
    # For each timestamp the last landmark before it and the first one after it, else -1 and T.
    at = np.arange(len(line))
    marks = np.concatenate([[-1], line.indices, [len(line)]])
    before = marks[np.searchsorted(marks, at, side="left") - 1]
    after = marks[np.searchsorted(marks, at, side="right")]
    back, back_cut = _compute_runs(budgets, before, after, as_loss_function(backward, "backward"))
    mirrored = len(line) - 1 - after[::-1], len(line) - 1 - before[::-1]
    forth, forth_cut = (
        values[::-1] for values in _compute_runs(budgets[::-1], *mirrored, as_loss_function(forward, "forward"))
    )
    alone = back + forth - budgets
    together = alone[line.landmark].sum()
    # A regular timestamp is a member in addition to the landmarks. It cuts the backward leakage of the next landmark
    # and the forward leakage of the previous one.
    has_next = after < len(line)
    has_previous = before >= 0
    change = np.where(has_next, back_cut - back[np.minimum(after, len(line) - 1)], 0.0)
    change += np.where(has_previous, forth_cut - forth[np.maximum(before, 0)], 0.0)
    return np.asarray(np.where(line.landmark, together, together + alone + change))


def _compute_runs(
    budgets: FloatArray, before: IntArray, after: IntArray, function: LossFunction
) -> tuple[FloatArray, FloatArray]:
    """Compute the backward leakage of all runs between landmarks.

    Returns the leakage of each timestamp since the previous landmark, and that of the next landmark since each
    timestamp.
    All runs advance simultaneously by one step. The number of rounds is the length of the longest gap.
    """
    size = len(budgets)
    leakages = budgets.copy()
    at = np.arange(size)
    for distance in range(2, int((at - before).max(initial=1)) + 1):
        there = at[at - before == distance]
        leakages[there] = function(leakages[there - 1]) + budgets[there]
    length = np.where(after < size, after - at, 0)  # of the run from each timestamp to the next landmark
    cut = np.where(length > 0, budgets[np.minimum(at + 1, size - 1)], 0.0)
    for distance in range(2, int(length.max()) + 1):
        there = np.flatnonzero(length >= distance)
        cut[there] = function(cut[there]) + budgets[there + distance]
    return leakages, cut
