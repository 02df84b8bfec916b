"""What releases tell of all landmarks together with each timestamp, when successive data are correlated.

Between the states ``a`` at time i and ``b`` at time j, a state at u has ``Pr(s | a, b) ∝ A(a, s) B(s, b)``, where A and
B are the products of the steps from i to u and from u to j. Rows of this *bridge*, one for each pair (a, b) that can
be, may differ far more than rows of A do. What bounds ``log Pr(z | a, b) / Pr(z | a', b')`` for releases z in between:

* the sum of their budgets;
* of one release, the loss function (Cao et al., TKDE 2019, Equation 24) of the bridge, where states are few;
* two recursions. Given b, the states from i on are a Markov chain whose matrices are the given ones with their rows
  weighed (`Tilted`). A recursion from j down bounds the ratio of a and a' at the same b, one from i up
  that of b and b' at the same a', and their sum both. Weighing changes no cross ratio: with the *spread* of a matrix,
  ``D = max log (M(a,s) M(a',s')) / (M(a,s') M(a',s))``, a loss α passes with ``4 artanh(tanh(D/4) tanh(α/4))`` at
  most (`passed`; Birkhoff 1957). Where that is less than α at one step, every pair (a, b) can be, as the argument
  needs; where it is less at none, the sum of budgets is less than the two recursions.

Three things are put together: the bounds of `Steps` and `Tilted` on a stretch without
further members; that of a stretch with one member more, ``loss(i, j) <= loss(i, v) + epsilon_v + loss(v, j)``, since
what releases tell of the ends alone is an average over the state at v; and the sum of budgets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import islice, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.landmarks.schemes import budgets_over, timeline
from dphmm.leakage import account
from dphmm.leakage import backward as backward_leakage
from dphmm.leakage import forward as forward_leakage
from dphmm.leakage.envelope import largest_loss
from dphmm.leakage.loss_function import Knowledge, LossFunction, as_loss_function, is_matrix
from dphmm.leakage.row_pairs import Excess
from dphmm.stochastic import SMALLEST_PROBABILITY, MatrixLike, as_stochastic

_SQUARINGS = 30
"""The far future is sought up to ``2**30`` steps away; what is still missing of it is counted in as drift."""

_DIRECT = 32
"""Steps up to which the leaning is read off a product of matrices."""

_TINY = 1e-90
"""A weight below this may have lost digits."""


class Tilted:
    """What one matrix passes on when the state some steps later is known.

    Given that state, b, the next one has the probabilities ``P(s, s') h(s')``, normalised, where ``h`` says how likely
    b is from each. For rows so weighed, with ``log max h / min h <= η`` (the *leaning*), it is ``L(α + η) + L(η)`` at
    most: a ratio of sums of ``P h x`` over one of sums of ``P h``, with x from 1 to e^α. The leaning fades with the
    number of steps to b, so that far from it the loss is that of the matrix itself.

    Parameters
    ----------
    matrix
        ``(n, n)``, not negative: a transition matrix, or one whose rows and columns are multiplied by weights.
    far, drift
        ``(n,)`` weights of the far future, in proportion to which others are taken; and by which ``log max / min`` a
        step changes them.
    most
        For how many steps leanings are needed.
    """

    def __init__(self, matrix: FloatArray, far: FloatArray, drift: float, most: int) -> None:
        rows = matrix * far
        self._loss, self._drift = LossFunction(rows / rows.sum(axis=1, keepdims=True)), drift
        self.leanings = np.full(most + 1, np.inf)
        """For each number of steps to the known state."""
        product, holds = np.eye(len(matrix)), np.eye(len(matrix))
        for steps in range(1, most + 1):
            before = self.leanings[steps - 1]
            if np.isfinite(before):
                self.leanings[steps] = self._loss(float(before)) + self._drift
            if steps <= _DIRECT:
                product, holds = matrix @ product, ((matrix > 0) @ holds > 0).astype(np.float64)
                possible = product[:, holds.any(axis=0)]
                if possible.min() >= _TINY:
                    direct = np.ptp(np.log(possible) - np.log(far)[:, None], axis=0).max()
                    self.leanings[steps] = min(self.leanings[steps], direct)

    @classmethod
    def from_matrix(cls, matrix: FloatArray, most: int) -> Tilted | None:
        """The steps of a matrix; None where losses pass undiminished, a row is zero, or digits may be lost."""
        if not matrix.any(axis=1).all() or matrix[matrix > 0].min() < _TINY:
            return None
        made = cls(matrix, *_far_future(matrix), most)
        return None if made._loss.is_identity else made

    def passed(self, alphas: FloatArray, steps: int, leanings: FloatArray) -> FloatArray:
        """What is left of losses after `steps` steps, seen with these leanings; infinite where nothing is known."""
        known = np.isfinite(leanings)
        less = np.where(known, leanings, 0.0)
        more = alphas + less
        for step in range(min(steps, _DIRECT)):
            drift = self._drift if step else 0.0
            more, less = self._loss(more + drift), self._loss(less + drift)
        return np.where(known, more + less, np.inf)

    def passed_far(self, alpha: float, steps: int, least: int, most: int) -> float:
        """The same of one loss, where the known state is `least` to `most` steps away."""
        leaning = self.leanings[least] + most * self._drift
        return float(self.passed(np.asarray(alpha), steps, np.asarray(leaning)))


def _far_future(matrix: FloatArray) -> tuple[FloatArray, float]:
    """Weights ``(n,)`` that a step leaves as they are, nearly; and by which ``log max / min`` it does change them."""
    power, found = matrix, np.ones(len(matrix))
    drift = float(np.ptp(np.log(matrix @ found)))
    for _ in range(_SQUARINGS):
        power = power / power.max()
        far = power @ np.ones(len(matrix))
        if drift < 1e-12 or far.min() < _TINY * far.max():
            break
        found, drift = far, float(np.ptp(np.log(matrix @ far) - np.log(far)))
        power = power @ power
    return found / found.max(), drift


MOST_STATES = 256
"""Above this number of states, products of matrices are not formed, and the sum of budgets is the bound."""

_EXACT_STATES, EXACT_STEPS = 16, 8
"""The bridge itself is asked up to this number of states, and of steps to either side."""

_BLOCK = 32
"""Products of more steps are bounded by those of their blocks: spreads of factors contract each other."""

_FAINT = 1e-150
"""A probability below this may have lost digits, or a product of two of them all."""


def passed(spread: npt.ArrayLike, alpha: npt.ArrayLike) -> FloatArray:
    """The greatest ``log (1 + q(e^α − 1)) / (1 + d(e^α − 1))`` of masses q, d whose odds have a ratio of ``e^spread``.

    The lesser of both arguments at most; either may be infinite. Elementwise.

    Examples
    --------
    >>> passed([1.0, 1.0, np.inf], [0.5, np.inf, 0.5]).round(6).tolist()
    [0.121863, 1.0, 0.5]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        u, v = np.expm1(np.multiply(spread, 0.5)), np.expm1(np.multiply(alpha, 0.5))
        loss = 2.0 * np.log1p(u * v / (u + v + 2.0))  # NaN where a number is too large to matter
    return np.asarray(np.fmin(loss, np.minimum(spread, alpha)))


class Steps:
    """Products of the matrices of successive steps, and what they pass on.

    Parameters
    ----------
    matrices
        ``(n, n)`` arrays of entries that are not negative: one for all steps, or one for each. Rows need not sum to
        one: backward matrices, transposed, have the bridges of the chain that they belong to.
    """

    def __init__(self, matrices: FloatArray | Sequence[FloatArray]) -> None:
        self._matrices = matrices
        self._same = isinstance(matrices, np.ndarray)
        self.size = len(matrices if self._same else matrices[0])
        self.is_small = self.size <= _EXACT_STATES
        """Whether there are so few states that the bridge itself can be asked."""
        self._products: dict[tuple[int, int], tuple[FloatArray, BoolArray]] = {}
        self._spreads: dict[tuple[int, int], float] = {}
        self._tilted: dict[int, Tilted | None] = {}
        self._losses: dict[tuple[int, int, int, float], float] = {}

    def spread(self, start: int, stop: int) -> float:
        """The spread of the steps between two times, or more; infinite where rows have different zeros."""
        start, stop = sorted((start, stop))
        key = self._key(start, stop)
        if key not in self._spreads:
            ends = [*range(start, stop, _BLOCK), stop]
            parts = [_spread(*self._product(a, b)) for a, b in pairwise(ends)]
            self._spreads[key] = reduce(lambda one, more: float(passed(one, more)), parts, math.inf)
        return self._spreads[key]

    def loss(self, start: int, at: int, stop: int, epsilon: float) -> float:
        """What one release between two times tells of both, by the bridge itself; at most ``epsilon``."""
        start, stop = sorted((start, stop))
        key = (*self._key(start, at), self._key(at, stop)[1], epsilon)
        if key not in self._losses:
            rows = _bridge(self._product(start, at), self._product(at, stop))
            used = None if rows is None else np.ascontiguousarray(rows[:, rows.any(axis=0)])
            self._losses[key] = epsilon if used is None else min(epsilon, largest_loss(Excess(used), epsilon))
        return self._losses[key]

    def tilted(self, most: int, sign: int) -> Tilted | None:
        """Single steps forth (1) or back (-1), towards a state up to `most` steps away.

        None where the matrix changes with time, and where `Tilted` has nothing to say of it.
        """
        if not self._same:
            return None
        kept = self._tilted.get(sign)
        if sign not in self._tilted or (kept is not None and len(kept.leanings) <= most):
            matrix = np.asarray(self._matrices, dtype=np.float64)
            self._tilted[sign] = kept = Tilted.from_matrix(matrix if sign > 0 else matrix.T, most)
        return kept

    def _key(self, start: int, stop: int) -> tuple[int, int]:
        return (0, stop - start) if self._same else (start, stop)

    def _product(self, start: int, stop: int) -> tuple[FloatArray, BoolArray]:
        """The product, and where it is not zero by structure."""
        key = self._key(start, stop)
        if key not in self._products:
            one = self._matrices if self._same else self._matrices[stop - 1]
            last = np.asarray(one, dtype=np.float64)
            found, holds = last, last > 0
            if stop - start > 1:
                before, possible = self._product(start, stop - 1)
                found = before @ last
                holds = (possible.astype(np.float64) @ holds) > 0
            self._products[key] = found, holds
        return self._products[key]


def _spread(product: FloatArray, holds: BoolArray) -> float:
    can_be = np.ix_(holds.any(axis=1), holds.any(axis=0))
    if not holds[can_be].all() or product[can_be].min() < _FAINT:
        return math.inf
    logs = np.log(product[can_be])
    return max(float(np.ptp(row - logs, axis=1).max()) for row in logs)


def _bridge(before: tuple[FloatArray, BoolArray], after: tuple[FloatArray, BoolArray]) -> FloatArray | None:
    """The rows ``Pr(s | a, b)`` of all pairs that can be; None where digits were lost."""
    (left, from_a), (right, to_b) = before, after
    holds = from_a[:, None, :] & to_b.T[None, :, :]
    if min(left[from_a].min(), right[to_b].min()) < _FAINT:
        return None
    masses = (left[:, None, :] * right.T[None, :, :])[holds.any(axis=2)]
    return np.asarray(masses / masses.sum(axis=1, keepdims=True))


_NEAR = 1024
"""Times from the first one up to which every way to split a stretch is tried, at a cost of their number squared."""


def losses_from(budgets: FloatArray, steps: Steps | None, start: int, sign: int = 1) -> FloatArray:
    """What releases strictly between the first of successive times and each tell of the states at both.

    Parameters
    ----------
    budgets
        ``(g,)`` of the times, both ends included.
    steps
        How states move; None uses nothing but the budgets.
    start
        Which of all times the first is.
    sign
        1, or -1 where the times run backwards.

    Returns
    -------
    FloatArray
        ``(g,)``, upper bounds; zero for the first time and its neighbour.
    """
    spent = np.where(np.arange(len(budgets)) > 0, budgets, 0.0)
    found = np.cumsum(spent) - spent
    if steps is None or not spent[:-1].any():
        return found
    near = _Stretch(spent[:_NEAR], steps, start, sign)
    tilted = steps.tilted(near.size, sign), steps.tilted(near.size, -sign)
    if steps.is_small or np.isfinite(near.since[1:]).any() or any(tilted):
        found[:_NEAR] = np.minimum(found[:_NEAR], near.split(*tilted))
    if len(spent) > _NEAR:
        far = _Stretch(spent, steps, start, sign).as_one(*tilted)
        found[_NEAR:] = np.minimum(found[_NEAR:], far[_NEAR:])
    return found


class _Stretch:
    """Successive times, the first of which is a member; what it spends does not matter and is zero."""

    def __init__(self, spent: FloatArray, steps: Steps, start: int, sign: int) -> None:
        self.size, self.spent, self.steps = len(spent), spent, steps
        self._start, self._sign = start, sign
        # The release before each time, the first time where there is none, and the spread of the steps from there.
        self.last = np.zeros(self.size, dtype=np.int64)
        self.last[1:] = np.maximum.accumulate(np.where(spent > 0, np.arange(self.size), 0))[:-1]
        self.since = np.array([self._spread(a, t) for t, a in enumerate(self.last.tolist())])

    def _spread(self, a: int, b: int) -> float:
        return self.steps.spread(self._start + self._sign * a, self._start + self._sign * b)

    def as_one(self, to: Tilted | None, fro: Tilted | None) -> FloatArray:
        """A bound for the times from `_NEAR` on: by all releases towards the first time, and from it to each time."""
        towards, half = 0.0, _NEAR // 2
        away: FloatArray = np.zeros(self.size)
        for at in np.flatnonzero(self.spent[:-1])[::-1].tolist():
            told = self.spent[at] + towards
            towards = float(passed(self.since[at], told))
            if to is not None and at <= half:  # every one of those times is at least half away
                towards = min(towards, to.passed_far(told, at - int(self.last[at]), half, self.size))
        for t in np.flatnonzero(self.last).tolist():
            at = int(self.last[t])
            told = self.spent[at] + away[at]
            away[t] = passed(self.since[t], told)
            if fro is not None and at >= half:
                away[t] = min(away[t], fro.passed_far(told, t - at, half, self.size))
        return np.asarray(np.where(self.last > 0, towards + away, 0.0))

    def split(self, to: Tilted | None, fro: Tilted | None) -> FloatArray:
        """The least over all ways to put members in between, each stretch by the least of its bounds."""
        direct = self._direct(to, fro)
        least: FloatArray = np.array(direct[0])
        for t in range(2, self.size):
            least[t] = min(least[t], (least[1:t] + self.spent[1:t] + direct[1:t, t]).min())
        return least

    def _direct(self, to: Tilted | None, fro: Tilted | None) -> FloatArray:
        """``(g, g)``: of two times, a bound without members in between."""
        size, spent, last, since = self.size, self.spent, self.last, self.since
        following = np.full(size, size)  # the release after each time
        following[:-1] = np.minimum.accumulate(np.where(spent > 0, np.arange(size), size)[:0:-1])[::-1]
        ahead = np.array([self._spread(v, at) if at < size else np.inf for v, at in enumerate(following.tolist())])
        towards, away = np.zeros((size, size)), np.zeros((size, size))
        for v in np.flatnonzero(following < size - 1)[::-1]:
            at = int(following[v])
            told = spent[at] + towards[at, at + 1 :]
            towards[v, at + 1 :] = passed(ahead[v], told)
            if to is not None:
                seen = to.passed(told, at - int(v), to.leanings[1 : size - at])
                towards[v, at + 1 :] = np.minimum(towards[v, at + 1 :], seen)
        for t in np.flatnonzero(last):
            at = int(last[t])
            told = spent[at] + away[:at, at]
            away[:at, t] = passed(since[t], told)
            if fro is not None:
                away[:at, t] = np.minimum(away[:at, t], fro.passed(told, int(t) - at, fro.leanings[at:0:-1]))
        sums = np.cumsum(spent)
        direct = np.minimum(np.maximum((sums - spent) - sums[:, None], 0.0), towards + away)
        for at in np.flatnonzero(spent[:-1]).tolist():  # one release between the two
            starts, stops = np.arange(last[at], at), np.arange(at + 1, min(following[at] + 1, size))
            alone = passed(ahead[starts][:, None] + since[stops], spent[at])
            if self.steps.is_small:
                for i in range(max(len(starts) - EXACT_STEPS, 0), len(starts)):
                    for j in range(min(len(stops), EXACT_STEPS)):
                        first, middle, end = (self._start + self._sign * int(k) for k in (starts[i], at, stops[j]))
                        alone[i, j] = min(alone[i, j], self.steps.loss(first, middle, end, float(spent[at])))
            part = np.ix_(starts, stops)
            direct[part] = np.minimum(direct[part], alone)
        return direct


MatricesByTime = MatrixLike | Iterable[MatrixLike | None] | None
"""One matrix for every step, or one for each of the T - 1 steps in order of time; None where nothing is known."""


@checked
def leakage(
    timestamps: npt.ArrayLike,
    landmarks: npt.ArrayLike,
    epsilons: npt.ArrayLike,
    backward: MatricesByTime = None,
    forward: MatricesByTime = None,
) -> FloatArray:
    """What the releases say of all landmarks together with each timestamp: an upper bound on their joint leakage.

    The joint leakage of ``L ∪ {t}`` is the largest log ratio of the probabilities of all releases under any two
    assignments of states to these times. It is at most the sum of

    * the backward leakage into the first member, and the forward leakage into the last one (Cao et al., TKDE 2019);
    * the budgets of the members;
    * between any two successive members, what the releases there tell of both. These are seen through the *bridge*: the
      states in between given both ends, which can be spread far more widely than the rows of either matrix.

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilons
        ``(T,)``, what each timestamp's release tells of any two states; zero where nothing is read from the data.
    backward, forward
        What the adversary knows of the step back and the step forth: a row-stochastic matrix for all steps, dense or
        sparse, one for each of the ``T - 1`` steps in order of time (`dphmm.model.reverses` makes the backward ones),
        or None for nothing. Both describe one chain; bridges are made of the forward matrices, or of the backward ones
        where there are no others. A side that is left out counts as unknown: its leakage into the first or last member
        is zero.

    Returns
    -------
    FloatArray
        ``(T,)``, at most the sum of all budgets. Without any matrix, the sums that the soundness of a scheme bounds.

    Raises
    ------
    BudgetError
        For budgets that are negative or not finite, or whose number is not ``T``.
    StochasticError, InvalidInputError
        When a matrix is none, or matrices differ in size or number from what is needed.

    Notes
    -----
    `paper_leakage` is the sum that the landmark paper states, which is no bound.

    A single release between two members goes through the bridge itself up to 16 states and 8 steps to either side. Of
    several releases, or more states, recursions bound what they tell of both ends (`dphmm.landmarks.temporal_loss`),
    less tightly with matrices that change with time; above 256 states the sum of the budgets in between does.

    Examples
    --------
    >>> leakage([1, 2, 3], [2], [0.5, 0.5, 0.5]).tolist()
    [1.0, 0.5, 1.0]
    >>> nearly_still = [[0.9998, 0.0002], [0.9881, 0.0119]]
    >>> leakage([1, 2, 3], [1, 3], [0, 0.3, 0], nearly_still, nearly_still)[0].round(7).item()
    0.1362494
    """
    line = timeline(timestamps, landmarks)
    budgets = budgets_over(line, epsilons)
    size, marks = len(line), line.indices
    past, future = _known(backward, "backward"), _known(forward, "forward")
    if marks.size == 0:
        alone = account(_part(past, 0, size - 1), _part(future, 0, size - 1), budgets)
        return np.asarray(np.minimum(alone.temporal, budgets.sum()))
    if not (future is None or _is_one(future)):
        future = list(future)
    elif future is None and not (past is None or _is_one(past)):
        past = list(past)
    steps = _steps(past, future, size - 1)
    first, final = int(marks[0]), int(marks[-1])
    before = backward_leakage(_part(past, 0, first), budgets[: first + 1]) - budgets[: first + 1]
    after = forward_leakage(_part(future, final, size - 1), budgets[final:]) - budgets[final:]

    def run(start: int, stop: int) -> FloatArray:
        """What releases tell of both a landmark and each time from there to ``stop``, by what lies strictly between."""
        sign = 1 if start <= stop else -1
        part = budgets[np.arange(start, stop + sign, sign)]
        independent = past is None and future is None
        return np.zeros(len(part)) if independent else losses_from(part, steps, start, sign)

    gaps = [(a, b, run(a, b), run(b, a)[::-1]) for a, b in pairwise(marks.tolist())]
    through = np.cumsum([0.0, *(min(left[-1], right[0]) for _, _, left, right in gaps)])
    own = float(budgets[marks].sum())
    found = np.full(size, own + before[first] + through[-1] + after[0])
    # A regular timestamp is a member beside the landmarks, and divides the stretch that it lies in.
    found[:first] = own + (budgets[: first + 1] + before + run(first, 0)[::-1])[:-1] + through[-1] + after[0]
    for (a, b, left, right), upto, beyond in zip(gaps, through, through[-1] - through[1:], strict=False):
        within = (budgets[a : b + 1] + left + right)[1:-1]
        found[a + 1 : b] = own + before[first] + upto + within + beyond + after[0]
    found[final + 1 :] = own + before[first] + through[-1] + (run(final, size - 1) + budgets[final:] + after)[1:]
    return np.asarray(np.minimum(found, budgets.sum()))


def _known(knowledge: MatricesByTime, name: str) -> Any:
    """One matrix, checked; or an iterator of several, as they come; or None."""
    if isinstance(knowledge, LossFunction):
        raise InvalidInputError(f"{name} is a loss function; give the matrix, of which bridges are made")
    several = isinstance(knowledge, Sequence) and len(knowledge) == 0
    if knowledge is None or several or not is_matrix(knowledge):
        return knowledge if knowledge is None else iter(cast(Iterable[Any], knowledge))
    return as_stochastic(cast(MatrixLike, knowledge), f"{name} matrix", smallest=SMALLEST_PROBABILITY)


def _is_one(knowledge: Any) -> bool:
    return isinstance(knowledge, np.ndarray) or sparse.issparse(knowledge)


def _part(knowledge: Any, start: int, stop: int) -> Any:
    """What is known of the steps from one time to another."""
    if knowledge is None or start == stop:
        return None
    return knowledge if _is_one(knowledge) else islice(iter(knowledge), start, stop)


def _steps(past: Any, future: Any, count: int) -> Steps | None:
    """The matrices that bridges are made of; None where there is none, or there are too many states."""
    name, given = ("backward", past) if future is None else ("forward", future)
    if given is None or count == 0:
        return None
    one = _is_one(given)
    if not one and len(given) != count:
        raise InvalidInputError(f"{name}: {len(given)} matrices for {count + 1} times; give {count}, one for each step")
    matrices = [given] if one else [None if m is None else as_stochastic(m, f"{name} matrix") for m in given]
    sizes = {m.shape[0] for m in matrices if m is not None} | ({past.shape[0]} if _is_one(past) else set())
    if len(sizes) > 1:
        raise StochasticError(f"matrices have {' and '.join(map(str, sorted(sizes)))} states; give those of one chain")
    if not sizes or (states := sizes.pop()) > MOST_STATES:
        return None
    dense: list[Any] = [np.ones((states, states)) if m is None else m for m in matrices]
    dense = [cast(Any, m).toarray() if sparse.issparse(m) else m for m in dense]
    if future is None:  # Pr(before | after) as the weight of a step from before to after
        dense = [m.T for m in dense]
    return Steps(dense[0] if one else dense)


@checked
def paper_leakage(
    timestamps: npt.ArrayLike,
    landmarks: npt.ArrayLike,
    epsilons: npt.ArrayLike,
    backward: Knowledge = None,
    forward: Knowledge = None,
) -> FloatArray:
    """The paper's ``alpha_t``: not what the releases say of all landmarks together; that is `dphmm.landmarks.leakage`.

    For every ``i`` in ``L ∪ {t}`` the backward leakage comes from the releases after the previous member of
    ``L ∪ {t}`` up to ``i``, the forward leakage from those from ``i`` up to before the next member, and
    ``alpha_i = BPL_i + FPL_i - eps_i``; ``alpha_t`` is the sum of the ``alpha_i`` (Katsomallos, Tzompanaki and
    Kotzinos, *Landmark Privacy*, CODASPY 2022; the leakages as in Cao et al., TKDE 2018).

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilons
        ``(T,)``, what each timestamp spends; zero where nothing is read from the data.
    backward, forward
        What the adversary knows of the step back and the step forth: a row-stochastic matrix, a
        `dphmm.leakage.LossFunction`, or ``None`` for nothing.

    Returns
    -------
    FloatArray
        ``(T,)``. Without correlation, the sums that the soundness of a scheme bounds.

    Raises
    ------
    BudgetError
        For budgets that are negative or not finite, or whose number is not ``T``.

    Notes
    -----
    Erratum: the sum is no bound on the joint leakage of ``L ∪ {t}``. A release between two members is seen through the
    states that both ends allow in between, of which the leakage of either end alone knows nothing. In the stationary
    chain ``[[.9998, .0002], [.9881, .0119]]`` one release of 0.3 between two landmarks tells 0.1362 of both; the
    paper's sum is 0.0082.

    Examples
    --------
    >>> nearly_still = [[0.9998, 0.0002], [0.9881, 0.0119]]
    >>> paper_leakage([1, 2, 3], [1, 3], [0, 0.3, 0], nearly_still, nearly_still)[0].round(4).item()
    0.0082
    """
    line = timeline(timestamps, landmarks)
    budgets = budgets_over(line, epsilons)
    # For each timestamp the last landmark before it and the first one after it; -1 and T where there is none.
    at, marks = np.arange(len(line)), np.concatenate([[-1], line.indices, [len(line)]])
    before = marks[np.searchsorted(marks, at, side="left") - 1]
    after = marks[np.searchsorted(marks, at, side="right")]
    back, back_cut = _runs(budgets, before, after, as_loss_function(backward, "backward"))
    mirrored = len(line) - 1 - after[::-1], len(line) - 1 - before[::-1]
    forth, forth_cut = (one[::-1] for one in _runs(budgets[::-1], *mirrored, as_loss_function(forward, "forward")))
    alone = back + forth - budgets
    together = alone[line.landmark].sum()
    # A regular timestamp is a member beside the landmarks: it cuts off the backward leakage of the next landmark and
    # the forward leakage of the one before.
    has_next, has_previous = after < len(line), before >= 0
    change = np.where(has_next, back_cut - back[np.minimum(after, len(line) - 1)], 0.0)
    change += np.where(has_previous, forth_cut - forth[np.maximum(before, 0)], 0.0)
    return np.asarray(np.where(line.landmark, together, together + alone + change))


def _runs(
    budgets: FloatArray, before: IntArray, after: IntArray, function: LossFunction
) -> tuple[FloatArray, FloatArray]:
    """Backward leakage of each timestamp since the landmark before it; and of the next landmark since the timestamp.

    All runs go at once, one step of every run at a time: as many rounds as the longest gap.
    """
    size = len(budgets)
    own, at = budgets.copy(), np.arange(size)
    for distance in range(2, int((at - before).max(initial=1)) + 1):
        there = at[at - before == distance]
        own[there] = function(own[there - 1]) + budgets[there]
    length = np.where(after < size, after - at, 0)  # of the run from each timestamp to the next landmark
    cut = np.where(length > 0, budgets[np.minimum(at + 1, size - 1)], 0.0)
    for distance in range(2, int(length.max()) + 1):
        there = np.flatnonzero(length >= distance)
        cut[there] = function(cut[there]) + budgets[there + distance]
    return own, cut
