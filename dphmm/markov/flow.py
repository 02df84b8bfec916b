"""A transition matrix as what takes masses from state to state: forwards to the next states, or back from them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import BoolArray, FloatArray, IntArray, locked
from dphmm.compilation import compiled
from dphmm.markov import kernels, mass_loops
from dphmm.markov.jagged import Jagged
from dphmm.markov.lean import Lean
from dphmm.markov.masses import Masses
from dphmm.markov.powers import Powers
from dphmm.markov.sums import gathered_masses, sums_along_diagonals
from dphmm.threads import one_thread

NARROW = 900.0
"""Masses that differ by less than two to this power go through plain sums of floats."""
_LIKELY = 2.0**-100
"""Plain sums of such masses vanish for no share from here up, and their zeros are those of structure."""
_FAINT = 2.0**-960
"""After some steps of plain sums, masses from here up have lost nothing that counts."""

_COMPILE_FROM = 20_000_000
"""Until so many shares were summed, numpy takes less time than it takes to load the compiled loop."""
_DENSE = 4096, 0.25
"""Up to this many states, with at least this part of the matrix positive, loops over a dense one are faster."""
_DENSE_FROM = 100_000
"""Below so many shares, a product over their lists takes less time than it takes to keep to one thread."""
_FULL = 8192
"""Up to this many states a matrix as full as that is made dense for products with many columns, and then forgotten."""
_OFTEN = 256
"""From so many products on, it pays to order the matrix by its diagonals."""
_FILLED = 1.4
"""Diagonals with at most so many numbers for each share take less time than lists of shares."""
_FEW = 64
"""So many products are tried to find all states in one piece: quicker than to find out which pieces there are."""
_LEAN = 0.5
"""From so many fewer numbers on, other sums pay."""
_LONG_GAP = 8
"""From this many steps on, what prepares for many cheap steps pays."""
LEAST_POWER = 32
"""At least so many steps are taken at once forwards, by a power of the matrix."""
NEXT_POWER = 512
"""From so many on, by the next."""
_STRIDES = (LEAST_POWER, NEXT_POWER, 8192)
_STRIDES_BACK = (8, 32, 128, 512, 2048, 8192)
"""How many steps are taken at once: forwards few, as sums of other strides end in other digits, which releases show."""
_SHORT_STRIDES = (2, 4, 8, 16)
"""And these, both ways, where a step of the matrix takes as long as one of a power of it, so that a dozen take long."""
POWERS_UP_TO = 2048
"""Powers of the matrix are kept for so many steps, up to so many states: they are dense."""
_PART_POWERS_UP_TO = 512
"""The same where it is a part of another flow, of which there may be several."""
_PARTS = 64
"""So many parts are kept."""
_DEPTH = 64
"""Parts have parts of their own, so many deep: a chain of ever slower states is taken apart state after state."""
_PAUSE = 64
"""After vain attempts at many steps at once, at most so many are taken one by one before the next attempt."""
_RUN = 16, 128
"""Steps between two looks at how faint the faintest mass has become: at first, and at most."""
_SHORT = 32
"""Rows of up to so many shares, on average, are summed faster all at once than one after another."""
_ROUNDING = 8 * np.finfo(np.float64).eps
"""What some steps may change a mass by, relative to others of its island, where nothing changes any more."""
_DRIFT = 1e-9
"""What they may change the mass of an island by: rows sum to one only nearly."""
_OUTRUN = 1e-9
"""Powers of two per stride by which faint masses may seem to shrink less than the others, which is rounding."""


class Flow:
    """What takes masses one step on: a state's is the sum over its row of shares times the masses there.

    Parameters
    ----------
    matrix
        ``(N, N)`` CSR, without stored zeros: the transposed transition matrix to go forwards, itself to go backwards.
    opposite
        The flow in the other direction, where there is one: its powers serve both.
    turned
        The same transposed, CSR, where it is at hand: it saves time.
    alike
        ``(N,)``: which row of ``turned`` each is like but for a factor and few entries, where that is to be expected.
    brief
        Whether it is one of several that take turns, so that powers of each are not worth making.
    """

    def __init__(
        self,
        matrix: csr_array,
        opposite: Flow | None = None,
        turned: csr_array | None = None,
        alike: IntArray | None = None,
        brief: bool = False,
    ) -> None:
        self._opposite = opposite
        self._brief: bool = brief if opposite is None else opposite._brief
        self.size = int(matrix.shape[0])
        numbers = (part.astype(np.int32, copy=False) for part in (matrix.indices, matrix.indptr))
        made = csr_array((matrix.data, *numbers), shape=matrix.shape)
        self.matrix: csr_array = locked(made if made.has_sorted_indices else made.sorted_indices())
        shares = matrix.data
        self._turned, self._alike = turned, alike
        self._summed = self._products = 0
        self._held: FloatArray | None = None
        self._depth = 0
        self._is_likely = bool(len(shares)) and float(shares.min()) >= _LIKELY

    @cached_property
    def dense(self) -> FloatArray | None:
        """The matrix transposed, dense, where it is small and full enough for loops over it; otherwise None."""
        states, part = _DENSE
        if self.size > states or self.matrix.nnz < part * self.size**2:
            return None
        turned = self.matrix.toarray().T if self._turned is None else self._turned.toarray()
        return locked(np.ascontiguousarray(turned))

    @cached_property
    def diagonals(self) -> tuple[mass_loops.Offsets, FloatArray] | None:
        """The matrix by its diagonals, ``(k,)`` and ``(k, N)``, where these are few, as on a grid; otherwise None.

        Sums along them add the same terms in the same order, but for zeros, and read less memory.
        """
        if self.size > _DENSE[0]:
            return None
        columns = self.matrix.indices
        offsets, which = np.unique(
            columns - np.repeat(np.arange(self.size), np.diff(self.matrix.indptr)), return_inverse=True
        )
        if len(offsets) * self.size > _FILLED * self.matrix.nnz:
            return None
        values = np.zeros((len(offsets), self.size))
        values[which, columns] = self.matrix.data
        return offsets.astype(np.int32), values

    @cached_property
    def lists(self) -> kernels.Lists:
        """The rows as lists, each in the order of its states.

        Numbers are unsigned: compiled loops need not ask whether they count from the end.
        """
        return self.matrix.indptr.view(np.uint32), self.matrix.indices.view(np.uint32), self.matrix.data

    @cached_property
    def islands(self) -> IntArray:
        """The connected component of each state, ``(N,)``, numbered from 0: no mass ever goes to another."""
        from scipy.sparse.csgraph import connected_components

        reached = self.matrix[[0]].toarray()[0] > 0
        for _ in range(_FEW):
            count = int(reached.sum())
            if count == self.size:
                return locked(np.zeros(self.size, dtype=np.int64))
            reached |= (self.matrix @ reached > 0) | (self.matrix.T @ reached > 0)
            if int(reached.sum()) == count:
                break
        return locked(np.array(connected_components(self.matrix, directed=False)[1], dtype=np.int64))

    def product(self, values: FloatArray) -> FloatArray:
        """Plain sums: the matrix times ``(N,)``, whatever the number of threads of numpy's own products."""
        if self.matrix.nnz < _DENSE_FROM or self.dense is None:
            self._products += 1
            by_diagonals = None if self._products < _OFTEN else self.diagonals
            if by_diagonals is None:
                return np.asarray(self.matrix @ values)
            sums = np.empty(self.size)
            sums_along_diagonals(values, *by_diagonals, sums)
            return sums
        with one_thread():
            return np.asarray(values @ self.dense)

    def columns(self, values: FloatArray, back: bool = False) -> FloatArray:
        """Plain sums of several columns ``(N, k)`` at once, of any sign; or of the matrix transposed."""
        if self._lean is not None:
            return self._lean.times(values, back)
        if self._is_full and self.size > _DENSE[0]:
            self._held = self.matrix.toarray() if self._held is None else self._held
            with one_thread():
                return np.asarray((self._held.T if back else self._held) @ values)
        if self.matrix.nnz < _DENSE_FROM or self.dense is None:
            return np.asarray((self.matrix.T if back else self.matrix) @ values)
        with one_thread():
            rows = np.ascontiguousarray(values.T)  # of which products are twice as fast
            return np.asarray(rows @ (self.dense.T if back else self.dense)).T

    def after(self, columns: FloatArray, steps: int, back: bool = False) -> FloatArray:
        """Plain sums of several columns ``(N, k)`` some steps on; or back, by the matrix transposed."""
        if steps == LEAST_POWER and self.size <= POWERS_UP_TO and not self._brief:
            power = self._powers.of(steps)
            with one_thread():
                return np.asarray((power if back else power.T) @ columns)
        for _ in range(steps):
            columns = self.columns(columns, back)
        return columns

    def forget(self) -> None:
        """Give back the memory that `columns` took."""
        self._held = None

    @property
    def _is_full(self) -> bool:
        return self.size <= _FULL and self.matrix.nnz >= _DENSE[1] * self.size**2

    def price(self, columns: int = 0) -> float:
        """About how many microseconds a step of so many columns at once takes; of masses in a long gap, without any."""
        if self._is_full and self.matrix.nnz >= _DENSE_FROM:
            walks = 4e-4 if self.size <= _DENSE[0] else 8e-4
            return self.size**2 * (4.5e-4 + 4.5e-5 * columns if columns else walks)
        entries = self.matrix.nnz if self._lean is None else self._lean.entries
        return 10.0 + entries * (2.2e-4 * (1 + columns) if columns else 8e-4)

    def floats_of(self, masses: Masses) -> FloatArray | None:
        """The masses as floats, ``(N,)``, where one step of `product` takes these on without loss; otherwise None."""
        return masses.plain_within(NARROW) if self._is_likely else None

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        """How many steps are taken at once, by powers of the matrix; none where these are not worth their memory."""
        if self.size > POWERS_UP_TO or self._brief:
            return ()
        strides = _STRIDES if self._opposite is None else _STRIDES_BACK
        is_full = self._is_full and self.matrix.nnz >= _DENSE_FROM
        return tuple(sorted({*_SHORT_STRIDES, *strides})) if is_full else strides

    def step(self, masses: Masses) -> Masses:
        """The masses one step on."""
        values = self.floats_of(masses)
        if values is not None:
            return Masses.of(self.product(values))
        out = np.empty((2, self.size))
        limb, near = masses.by_limbs()
        starts, states, shares = self.lists
        gathered_masses(shares, (starts, states), near, limb, (masses.mantissa, masses.exponent), (out[0], out[1]))
        return Masses.owning(*out)

    def carry(self, masses: Masses, steps: int, power: int | None = None) -> Masses:
        """The masses some steps on; by no higher power of the matrix than ``power``, where that is given."""
        failed = pause = 0
        while steps > 0:
            passed = 0
            if steps >= _LONG_GAP and not pause:
                tops = np.full(int(self.islands.max()) + 1, -np.inf)
                np.maximum.at(tops, self.islands, masses.exponent)
                if tops.max() == -np.inf:
                    return masses
                level = np.where(np.isfinite(tops), tops, 0.0)[self.islands]
                faint = masses.support & (masses.exponent < level - NARROW)
                if self._is_apart(faint, masses.support):
                    passed, masses = self._glide(masses, level, faint, steps, power)
                failed = 0 if passed or not faint.any() else min(max(2 * failed, 1), _PAUSE)
                pause = failed
            if not passed:
                passed, masses = 1, self.step(masses)
                pause = max(pause - 1, 0)
            steps -= passed
        return masses

    def _entered(self, possible: BoolArray) -> BoolArray:
        """The support of masses one step on."""
        if possible.all():
            return np.asarray(np.diff(self.matrix.indptr) > 0)
        return self.product(possible.astype(np.float64)) > 0

    def _is_apart(self, faint: BoolArray, possible: BoolArray) -> bool:
        """Whether plain sums do for the others, and nothing enters the faint states but from faint ones."""
        if not self._is_likely or not faint.any():
            return self._is_likely
        return self._depth < _DEPTH and not self.product(np.where(faint, 0.0, possible))[faint].any()

    def _glide(
        self, masses: Masses, level: FloatArray, faint: BoolArray, steps: int, power: int | None
    ) -> tuple[int, Masses]:
        """As many of the steps as plain sums can take at once, and the masses after them.

        Each island is scaled on its own, so that one that is all but ruled out holds nothing up. Plain sums do while
        the support stays what it is and no mass becomes faint within its island. What a stride leaves as it is stays
        so for all further strides: a gap of months costs no more than the way there. So does what decays by one factor
        for each island, where it is so long a gap that this would make masses faint.

        States that are left for good decay without end. Once faint they go on by themselves, in a flow of their own,
        as nothing enters them from the others; to these they give nothing that counts, whatever of them a float holds:
        sums of all that they ever give are no more than they have, which is what gets lost.
        """
        now, passed = masses.plain(level), 0
        possible = masses.support
        if (self._entered(possible) != possible)[~faint].any():
            return 0, masses
        rest = possible & ~faint
        some = slice(None) if rest.all() else rest
        (run, longest), most = _RUN, steps
        while passed < steps:
            stride, ahead = self._stride(now, min(steps - passed, most), run, power)
            if ahead[some].min() < _FAINT:
                if stride <= max(1, passed // 8):
                    break
                most = stride // 2
                continue
            further = (steps - passed) // stride - 1
            growth = ahead[some] / now[some]
            if self._rests(growth, rest):
                passed += further * stride
            elif further * np.log2(growth.min()) < np.log2(_FAINT):
                factors = self._factors(growth, rest) if passed == 0 or not faint.any() else None
                if factors is not None and self._keeps_behind(masses, faint, factors, stride):
                    powers = further * np.log2(factors[some])
                    level[some] += np.floor(powers)  # faint ones seem as large beside the others as before, or larger
                    ahead[some] *= np.exp2(powers - np.floor(powers))
                    passed += further * stride
            passed, run = passed + stride, min(2 * run, longest)
            now = ahead
        if not passed:
            return 0, masses
        far = Masses.of(now, level)
        return passed, self._with_part(far, masses, faint, passed) if faint.any() else far

    def _rests(self, growth: FloatArray, possible: BoolArray) -> bool:
        """Whether the masses have not changed but for a factor near one for each island, which is rounding."""
        if np.abs(growth - 1.0).max() > _DRIFT:
            return False
        _, first, island = np.unique(self.islands[possible], return_index=True, return_inverse=True)
        return bool((np.abs(growth - growth[first][island]) <= _ROUNDING).all())

    def _factors(self, growth: FloatArray, some: BoolArray) -> FloatArray | None:
        """The factor of each state's island, ``(N,)``, where all that is in it changes by the same; otherwise None."""
        low = np.full(int(self.islands.max()) + 1, np.inf)
        high = np.zeros(len(low))
        np.minimum.at(low, self.islands[some], growth)
        np.maximum.at(high, self.islands[some], growth)
        if (high - low > _ROUNDING * high).any():
            return None
        high[np.abs(high - 1.0) <= _DRIFT] = 1.0
        return high[self.islands]

    def _keeps_behind(self, masses: Masses, faint: BoolArray, factors: FloatArray, stride: int) -> bool:
        """Whether in all further strides faint masses shrink at least as much as the others of their islands.

        They do if each of them does in one: sums of what is no more than a multiple of others are no more than that.
        """
        if not faint.any():
            return True
        before, after = masses.of_states(faint), self._part(faint).carry(masses.of_states(faint), stride)
        with np.errstate(divide="ignore"):
            powers = np.log2(after.mantissa) - np.log2(before.mantissa) + (after.exponent - before.exponent)
        return bool((powers <= np.log2(factors[faint]) + _OUTRUN).all())

    def _part(self, states: BoolArray) -> Flow:
        """The flow among some of the states, kept once made."""
        key = np.packbits(states).tobytes()
        part = self._parts.get(key)
        if part is None:
            if len(self._parts) >= _PARTS:
                self._parts.clear()
            brief = self._brief or int(states.sum()) > _PART_POWERS_UP_TO
            part = self._parts[key] = Flow(csr_array(self.matrix[states][:, states]), brief=brief)
            part._depth = self._depth + 1
        return part

    @cached_property
    def _parts(self) -> dict[bytes, Flow]:
        return {}

    def _with_part(self, far: Masses, masses: Masses, faint: BoolArray, steps: int) -> Masses:
        """Masses some steps on, with those of the faint states, which have gone on by themselves."""
        part = self._part(faint).carry(masses.of_states(faint), steps)
        mantissa, exponent = far.mantissa.copy(), far.exponent.copy()
        mantissa[faint], exponent[faint] = part.mantissa, part.exponent
        return Masses(mantissa, exponent)

    def _stride(self, values: FloatArray, steps: int, run: int, power: int | None) -> tuple[int, FloatArray]:
        """How many of the steps were taken at once, one by one at most ``run``, and where they lead."""
        stride = max((k for k in self._strides if k <= min(steps, power or steps)), default=0)
        if stride:
            with one_thread():
                if self._opposite is None:
                    return stride, np.asarray(values @ self._powers.of(stride))
                return stride, np.asarray(self._opposite._powers.of(stride) @ values)
        run = min(run, steps)
        if self.size > _DENSE[0] and self.matrix.nnz <= _SHORT * self.size:
            self._summed += run * self.matrix.nnz
            loop = compiled(kernels.jagged_steps) if self._summed >= _COMPILE_FROM else None
            if loop is not None:
                return run, self._jagged.after(loop, values, run)
        back = self._opposite is not None
        lean = self._opposite._lean if self._opposite is not None else self._lean
        for _ in range(run):
            values = self.product(values) if lean is None else lean.times(values, back)
        return run, values

    @cached_property
    def _jagged(self) -> Jagged:
        return Jagged(self.matrix)

    @cached_property
    def _lean(self) -> Lean | None:
        """The same as fewer numbers, for many steps at once; None where it is not much fewer."""
        if self._alike is None or self._turned is None:
            return None
        made = Lean(self._turned, self._alike)
        return made if made.entries < _LEAN * self.matrix.nnz else None

    @cached_property
    def _powers(self) -> Powers:
        return Powers(self.matrix, (*self._strides, *_STRIDES_BACK))
