"""The K-norm mechanism on a published lattice, exact in finite precision."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError
from dphmm.geometry import planar
from dphmm.geometry.exact_linear_algebra import compute_max_abs, exact_product
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.mechanisms.base import Mechanism, PlanarLaw, SampleSize
from dphmm.mechanisms.exact_sampling import Rational, compute_exp_of_negative, make_decimal_context, parse_rational
from dphmm.mechanisms.lattice_noise import LatticeNoise
from dphmm.mechanisms.lattice_normalizer import LatticeSum, Sublattice, list_half_sail_edges
from dphmm.random import RandomSource, Rng, as_random_source
from dphmm.tolerances import RELATIVE_TOLERANCE
from dphmm.validation import Integers, check_arguments

# Maximum distance of points from the origin in steps: beyond it doubles do not distinguish all neighbours.
STEP_LIMIT = 2**52


class Spacing:
    """The lattice of integer multiples of one step on every axis.

    Parameters
    ----------
    step
        The length of a step, in the unit of the points: a positive rational. A float is read as its shortest decimal.

    Raises
    ------
    InvalidInputError
        If the step is not a positive, finite rational.

    Examples
    --------
    >>> metres = Spacing(0.001)
    >>> metres.to_steps([[0.345, -1.2]]).tolist()
    [[345, -1200]]
    >>> metres.to_points(np.array([[345, -1200]])).tolist()
    [[0.345, -1.2]]
    """

    def __init__(self, step: Rational = 1) -> None:
        try:
            self.step = parse_rational(step, "spacing")
        except BudgetError as error:
            raise InvalidInputError(str(error)) from error

    def to_steps(self, points: npt.ArrayLike, name: str = "points") -> IntArray:
        """Convert points of the lattice to integer numbers of steps, in the same shape.

        Parameters
        ----------
        points
            Integers, `fractions.Fraction` and `decimal.Decimal` entries must lie on the lattice exactly. A float
            denotes the lattice point from which it differs by rounding only: by `RELATIVE_TOLERANCE` of the number or
            of the step, whichever is larger, and by a quarter of a step at most.
        name
            The name of the points, for the message.

        Raises
        ------
        CoordinateError
            If a point is not finite, too far away, or off the lattice; the message states the nearest lattice point.
        """
        try:
            array = np.asarray(points)
        except ValueError:
            raise CoordinateError(f"{name} must be a rectangular array, got rows of different lengths") from None
        if array.dtype.kind not in "iufO":
            raise CoordinateError(f"{name} must be numbers, got type {array.dtype}")
        if array.dtype.kind in "iu" and self.step == 1:
            return self._check_steps(array, name)
        steps: npt.NDArray[Any]
        if array.dtype.kind == "f":
            steps, on = self._round_floats(array.astype(np.float64), name)
        else:
            steps, on = self._divide_exactly(array, name)
        if not on.all():
            self._refuse(array, steps, on, name)
        return self._check_steps(steps, name)

    def round_to_steps(self, points: FloatArray, name: str = "points") -> IntArray:
        """Return the nearest lattice points as integer numbers of steps, in the same shape.

        Raises
        ------
        CoordinateError
            If a point is not finite, or too far away.
        """
        return self._check_steps(self._round_floats(points, name)[0], name)

    def _check_steps(self, steps: npt.NDArray[Any], name: str) -> IntArray:
        if steps.size and max(int(steps.max()), -int(steps.min())) > STEP_LIMIT:
            raise CoordinateError(f"{name} must be within 2**52 steps of {self.step}: use a wider spacing")
        return steps.astype(np.int64, copy=False)

    def _round_floats(self, values: FloatArray, name: str) -> tuple[npt.NDArray[Any], BoolArray]:
        if not np.isfinite(values).all():
            raise CoordinateError(f"{name} must be finite, got NaN or infinity")
        width = float(self.step)
        steps = np.rint(values / width)
        # For large values the relative tolerance can exceed half a step, and half a step would accept every number.
        tolerance = np.minimum(RELATIVE_TOLERANCE * np.maximum(np.abs(values), width), width / 4)
        return steps, np.asarray(np.abs(values - steps * width) <= tolerance)

    def _divide_exactly(self, values: npt.NDArray[Any], name: str) -> tuple[npt.NDArray[Any], BoolArray]:
        try:
            ratios = [Fraction(x) / self.step for x in values.ravel().tolist()]
        except (TypeError, ValueError, OverflowError) as error:
            raise CoordinateError(f"{name} must be finite integers or fractions") from error
        steps = np.array([round(x) for x in ratios], dtype=object).reshape(values.shape)
        return steps, np.array([x.denominator == 1 for x in ratios], dtype=np.bool_).reshape(values.shape)

    def _refuse(self, array: npt.NDArray[Any], steps: npt.NDArray[Any], on: BoolArray, name: str) -> None:
        """Raise an error with the first point off the lattice and the nearest lattice point."""
        row = tuple(int(i) for i in np.argwhere(~on)[0])[:-1]
        place = ", ".join(str(x) for x in np.atleast_1d(array[row]).tolist())
        near = ", ".join(str(self.step * int(k)) for k in np.atleast_1d(steps[row]).tolist())
        raise CoordinateError(
            f"{name} must lie on the lattice with spacing {self.step}, got ({place}); the nearest point is ({near})"
        )

    def to_points(self, steps: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert integer numbers of steps to points.

        Points are integers if the step is one, otherwise the nearest doubles. The result is a function of the steps
        only; therefore its rounding reveals nothing more.
        """
        if self.step == 1:
            return steps
        num, den = self.step.numerator, self.step.denominator
        if steps.size and max(max(1, int(steps.max()), -int(steps.min())) * num, den) <= 2**53:
            return np.asarray((steps * num).astype(np.float64) / den)
        flat = [k * num / den for k in steps.ravel().tolist()]  # rounded once, as Python divides integers
        return np.array(flat, dtype=np.float64).reshape(steps.shape)


# Number of rows in a block, so that temporaries stay in the cache.
_ROW_BLOCK = 1 << 14

# Number of heights (vectors times forms) in a block, for the same reason.
_MAX_HEIGHTS = 1 << 18

# Maximum number of digits: `dphmm.mechanisms.exact_sampling.compute_exp_of_negative` takes more than linear time.
_MAX_DIGITS = 10_000

# Largest ratio of the hull's coordinates to epsilon: noise then exceeds 64 bits with probability below ``exp(-10**5)``.
_MAX_REACH = 2**42


class LatticeKNormMechanism(Mechanism):
    """Mechanism that releases a lattice point ``z`` with exact K-norm probability.

    The probability is exactly proportional to ``exp(-epsilon ‖z - x‖_K)``.

    Parameters
    ----------
    hull
        The body ``K``, with integer vertices: differences counted **in lattice steps**, whatever ``spacing`` is. Use
        `from_hull_in_units` for a hull in the unit of the measurements. Its dimension is at most two; the space may
        have more.
    epsilon
        The budget: a positive rational. A float is read as its shortest decimal: ``0.3`` means three tenths. Other
        numbers are exact. An irrational budget has no exact form: round it down to a rational.
    spacing
        The step of the published lattice, in the unit of ``x`` and ``z``, read like ``epsilon``. Every ``x`` must be an
        integer multiple of it on each axis.

    Raises
    ------
    BudgetError
        If ``epsilon`` is not a positive, finite rational, or so small that noise might not fit 64-bit integers.
    InvalidInputError
        If the hull has more than two dimensions, or ``spacing`` is not a positive, finite rational.
    CoordinateError
        If the hull's vertices are not integers (below ``2**28``).

    Notes
    -----
    This is the K-norm mechanism (Definition 3.3) on a lattice instead of the plane. The outputs are the lattice points
    ``z`` with ``z - x`` in the span of ``K``, and the normalizer does not depend on ``x``. Therefore the
    probabilities of every output from ``x`` and from ``y`` differ by at most the factor ``exp(epsilon ‖x - y‖_K)``,
    which is at most ``exp(epsilon)`` for the ends of an edge. A segment from ``-v`` to ``v`` yields all lattice points
    of its line, not only the multiples of ``v``; the body ``{0}`` yields ``x`` itself.

    Samples are computed from random bits by integer arithmetic (`dphmm.mechanisms.lattice_noise` has the proof).
    Therefore the distribution is exactly the stated one, provided the bits are uniform. With ``rng=None`` they are the
    operating system's. The duration of a draw depends on the noise; timing is not protected. Floating point is used to
    read ``x`` if it contains floats, to write ``z`` as floats (a function of the lattice point only), in comparisons
    the results of which do not depend on rounding, and in `log_density`, `privacy_loss` and `squared_error`.

    Examples
    --------
    >>> mechanism = LatticeKNormMechanism(SensitivityHull([[1, 0], [0, 1]]), 1)
    >>> mechanism.sample([3, 4], rng=7).dtype
    dtype('int64')
    >>> mechanism.probability([3, 5], [3, 4], digits=12)
    Decimal('0.078561488657389')
    >>> mechanism.exponent([3, 5], [4, 4])
    Fraction(2, 1)
    """

    def __init__(self, hull: SensitivityHull, epsilon: Rational, spacing: Rational = 1) -> None:
        # The body, in lattice steps.
        self.hull = hull
        # The budget.
        self.epsilon: Fraction = parse_rational(epsilon)
        self.dimension = hull.ambient_dimension
        # The published lattice.
        self.lattice = Spacing(spacing)
        vertices = _get_integer_vertices(hull) if hull.corners is None else hull.corners
        if int(np.abs(vertices).max()) * self.epsilon.denominator > _MAX_REACH * self.epsilon.numerator:
            raise BudgetError(f"epsilon is {epsilon}, and noise of this hull may exceed 64 bits: use a larger epsilon")
        self._sublattice = Sublattice(vertices, hull.dimension)
        corners = self._sublattice.coordinates(vertices)
        divisor = int(np.gcd.reduce(corners, axis=None)) or 1
        # Epsilon divided by the greatest common divisor of the vertices: the decay for the hull divided by it.
        self.decay: Fraction = self.epsilon / divisor
        self._decay_float = float(self.decay)
        self._decay_per_epsilon = 1 / divisor
        # ``(h, 2)``: the corners of the reduced polygon, in the basis of the sublattice. Noise and norm use them.
        self._tips = (
            _orient_counter_clockwise(corners // divisor) if hull.dimension == 2 else np.zeros((0, 2), dtype=np.int64)
        )
        self._sum = LatticeSum(hull.dimension, list_half_sail_edges(self._tips.tolist()), self._sublattice.basis)
        self._noise = LatticeNoise(self._sum, self.decay, self._sublattice.basis)

    @classmethod
    def from_hull_in_units(cls, hull: SensitivityHull, epsilon: Rational, spacing: Rational) -> LatticeKNormMechanism:
        """Build the mechanism for a hull in the unit of the measurements, such as kilometres.

        The differences of the hull are divided by the spacing and must be integer numbers of steps, by the rules of
        `Spacing.to_steps`. The hull is then rebuilt from integers.

        Parameters
        ----------
        hull
            The hull in the unit of the measurements.
        epsilon, spacing
            As for the mechanism.

        Returns
        -------
        LatticeKNormMechanism
            The mechanism of the same hull in steps.

        Raises
        ------
        CoordinateError
            If a difference is off the lattice; the message states the nearest lattice point.

        Examples
        --------
        >>> hull = SensitivityHull([[0.34, 0.0], [0.0, 0.34]])
        >>> LatticeKNormMechanism.from_hull_in_units(hull, 1, spacing=0.001).hull.vertices.max().item()
        340.0
        """
        differences = hull.differences
        if hull.norm_form.exact is not None and hull.norm_form.exact.denominator != 1:
            differences = differences.astype(object) * Fraction(1, hull.norm_form.exact.denominator)
        steps = Spacing(spacing).to_steps(differences, "the hull's differences")
        return cls(SensitivityHull(steps.reshape(-1, hull.ambient_dimension)), epsilon, spacing)

    @property
    def rank(self) -> int:
        """The dimension of the hull."""
        return self.hull.dimension

    @property
    def halfspaces(self) -> tuple[FloatArray, FloatArray] | None:
        """The half-spaces of the hull, in lattice steps."""
        return self.hull.norm_form.normals, self.hull.norm_form.equations

    @property
    def corners(self) -> IntArray | None:
        """The corners of the hull, in lattice steps."""
        return np.rint(self.hull.vertices).astype(np.int64) if self.rank else super().corners

    @property
    def spacing(self) -> Fraction:
        """The length of a lattice step in the unit of the points."""
        return self.lattice.step

    @check_arguments
    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: SampleSize | None = None) -> npt.NDArray[Any]:
        """Sample exact releases of ``x``.

        Parameters
        ----------
        x
            A lattice point ``(d,)``, or one per row ``(n, d)``, each with independent noise.
        rng
            The randomness; see `dphmm.random.as_random_source`. A seed or generator is for experiments: it is not
            private.
        size
            Number of independent releases of ``x``. Defaults to one, without an additional axis.

        Returns
        -------
        ndarray
            The shape of ``x``, preceded by an axis of length ``size`` if it is set: ``int64`` for spacing one,
            otherwise the doubles nearest to the lattice points.

        Raises
        ------
        CoordinateError
            If ``x`` is off the lattice or of another dimension than the hull.
        InvalidInputError
            If ``size`` is negative.
        """
        steps = self._convert_to_steps(x, "x")
        shape = steps.shape if size is None else (size, *steps.shape)
        noise = self._noise.draw(prod(shape[:-1]), as_random_source(rng))
        return self.lattice.to_points(steps + noise.reshape(shape))

    def draw(self, value: IntArray, source: RandomSource) -> IntArray:
        """Sample one exact release of a validated true value ``(d,)``, both in steps."""
        return np.asarray(value + self._noise.draw(1, source)[0])

    def log_density(self, z: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
        """Return the log-probability ``log P(z | x)`` of the release ``z`` for ``x``.

        Parameters
        ----------
        z, x
            Lattice points ``(d,)`` or ``(n, d)``; a single point is broadcast.

        Returns
        -------
        ndarray
            ``()`` or ``(n,)``; ``-inf`` if ``z - x`` is not in the span of the hull, decided exactly. Norms are
            computed from integers with one rounding. The result is accurate to a few units in the last place of
            ``epsilon ‖z - x‖_K`` or of the normalizer's logarithm, whichever is larger.

        Raises
        ------
        CoordinateError
            If a point is off the lattice or of another dimension than the hull.
        """
        return self.unchecked_log_density(self._convert_to_steps(z, "z"), self._convert_to_steps(x, "x"))

    def unchecked_log_density(self, z: IntArray, values: IntArray) -> FloatArray:
        """Return `log_density` of validated points in steps."""
        return -self._compute_losses(z, values) - self.log_normaliser

    def planar_law(self, reach: float) -> PlanarLaw | None:
        """Return the density by the hull's half-spaces, for vectors of up to ``reach`` steps.

        None if floats would round, or the hull is not a planar polygon; other methods then use larger integers.
        """
        law, longest = self._law
        return law if reach * longest * 2 < 2**53 else None

    @cached_property
    def _law(self) -> tuple[PlanarLaw | None, int]:
        """The density for any reach, and the largest entry of a form."""
        forms, offsets, longest = self._forms_in_floats
        if not len(self._tips) or not self._sublattice.is_everything:
            return None, longest
        return PlanarLaw(forms, offsets, self._decay_float, self.log_normaliser, is_exact=True), longest

    def privacy_loss(self, x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """Return ``epsilon ‖x - y‖_K``, the largest log-ratio of probabilities.

        Parameters
        ----------
        x, y
            Lattice points ``(d,)`` or ``(n, d)``.

        Returns
        -------
        ndarray
            ``()`` or ``(n,)``; infinite off the span of the hull. It is rounded to the nearest doubles; `exponent`
            returns the rational number.

        Raises
        ------
        CoordinateError
            If a point is off the lattice or of another dimension than the hull.
        """
        return self._compute_losses(self._convert_to_steps(x, "x"), self._convert_to_steps(y, "y"))

    def _compute_losses(self, first: IntArray, second: IntArray) -> FloatArray:
        shape = second.shape if first.ndim == 1 else np.broadcast_shapes(first.shape, second.shape)
        norms = np.empty(shape[0] if len(shape) == 2 else 1)
        rows = min(_ROW_BLOCK, max(1, _MAX_HEIGHTS // max(1, len(self._forms[0]))))
        for start in range(0, len(norms), rows):
            block = slice(start, start + rows)
            left, right = (a[block] if a.ndim == 2 and len(a) > 1 else a.reshape(1, -1) for a in (first, second))
            vectors = np.empty((shape[-1], len(norms[block])), dtype=np.int64)
            for axis, column in enumerate(vectors):  # two long differences are faster than many short ones
                np.subtract(left[:, axis], right[:, axis], out=column)
            norms[block] = self._compute_norms(vectors.T)
        norms *= self._decay_float
        return norms.reshape(shape[:-1])

    @check_arguments
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """Return the differences in steps with bounded loss, from the sampler's cones.

        Parameters
        ----------
        loss
            A log ratio of probabilities, positive.
        rounding
            An upper bound on rounding errors; 0 is exact, because lattice points are integers.
        """
        if not len(self._tips):
            cones = np.ones((1, self.hull.dimension, self.hull.dimension))
        else:
            cones = np.empty((len(self._tips), 2, 2))
            cones[:, 0] = self._tips
            cones[:, 1] = planar.get_next_vertices(self._tips)
        if not self._sublattice.is_everything:
            cones = cones @ self._sublattice.basis.astype(np.float64)
        return Gauge.from_cones(cones, loss / self._decay_float, rounding)

    def _compute_norms(self, vectors: IntArray) -> FloatArray:
        """Return norms of vectors in steps ``(n, d)``, in the reduced hull.

        The reduced hull is the hull divided by the common divisor of its vertices.

        Heights are integers: sums of products that doubles represent exactly, or Python's integers.
        """
        coordinates = self._sublattice.coordinates(vectors)
        forms, offsets = self._forms
        in_floats, divisors, longest = self._forms_in_floats
        if not len(forms):
            norms = np.zeros(len(vectors))
        elif compute_max_abs(coordinates) * longest * 2 < 2**53:  # sums of two products are exact
            heights = in_floats @ coordinates.T.astype(np.float64)
            np.abs(heights, out=heights)
            heights /= divisors[:, np.newaxis]
            norms = heights.max(axis=0)
        else:
            norms = np.zeros(len(vectors))
            for form, offset in zip(forms, offsets, strict=True):
                height = np.abs(exact_product(coordinates, form).astype(np.float64))
                np.maximum(norms, height / float(offset), out=norms)
        if self._sublattice.rank < self.dimension:
            norms[~self._sublattice.contains(vectors)] = np.inf
        return norms

    @cached_property
    def _forms(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Integer linear forms and offsets. The norm is the largest ``|form z| / offset``."""
        if not len(self._tips):
            rank = self.hull.dimension
            return np.ones((rank, 1), dtype=np.int64), np.ones(rank, dtype=np.int64)
        tips = self._tips
        return planar.half_planes(tips if compute_max_abs(tips) <= planar.COORDINATE_LIMIT else tips.astype(object))

    @cached_property
    def _forms_in_floats(self) -> tuple[FloatArray, FloatArray, int]:
        """The forms and offsets of `_forms` as doubles, and the largest entry of a form."""
        forms, offsets = self._forms
        return forms.astype(np.float64), offsets.astype(np.float64), compute_max_abs(forms)

    def exponent(self, z: npt.ArrayLike, x: npt.ArrayLike) -> Fraction | None:
        """Return the rational ``epsilon ‖z - x‖_K`` of two lattice points. None if infinite.

        Exact: ``P(z | x) / P(z | y) = exp(exponent(z, y) - exponent(z, x))``.

        Parameters
        ----------
        z, x
            The release and the true value.

        Returns
        -------
        Fraction or None
            The exact exponent.
        """
        vector = (self._convert_to_steps(z, "z") - self._convert_to_steps(x, "x")).reshape(1, -1)
        if not self._sublattice.contains(vector)[0]:
            return None
        place = self._sublattice.coordinates(vector)[0]
        pairs = zip(*self._forms, strict=True)
        heights = [Fraction(abs(int(exact_product(place, form))), int(offset)) for form, offset in pairs]
        return self.decay * max(heights, default=Fraction(0))

    @check_arguments
    def probability(
        self, z: npt.ArrayLike, x: npt.ArrayLike, digits: Annotated[int, Integers(1, _MAX_DIGITS)] = 30
    ) -> Decimal:
        """Return ``P(z | x)`` of two lattice points, to a relative error below ``10**-digits``.

        Parameters
        ----------
        z, x
            The release and the true value.
        digits
            Number of certain digits, 1 to 10,000.

        Returns
        -------
        Decimal
            The probability; 0 if the release is impossible.
        """
        exponent = self.exponent(z, x)
        if exponent is None:
            return Decimal(0)
        context = _make_result_context(digits)
        # Two more digits for each factor, as their relative errors add up.
        return context.divide(compute_exp_of_negative(exponent, digits + 2), self._sum.total(self.decay, digits + 2))

    @check_arguments
    def normaliser(self, digits: Annotated[int, Integers(1, _MAX_DIGITS)] = 30) -> Decimal:
        """Return the sum of ``exp(-epsilon ‖z - x‖_K)`` over all outputs.

        Its relative error is below ``10**-digits``.

        Parameters
        ----------
        digits
            Number of certain digits, 1 to 10,000.

        Returns
        -------
        Decimal
            The sum.
        """
        return _make_result_context(digits).plus(self._sum.total(self.decay, digits + 2))

    @cached_property
    def log_normaliser(self) -> float:
        """The logarithm of the normalizer as a double."""
        return self._sum.log_total(self._decay_float)

    @cached_property
    def squared_error(self) -> float:
        """The exact ``E|z - x|²`` in the squared unit of the points, in closed form, as a double."""
        return self.squared_error_at(float(self.epsilon))

    def squared_error_at(self, epsilon: float) -> float:
        """Return the squared error with another budget in closed form. See `Mechanism`."""
        return float(self.spacing) ** 2 * self._sum.mean_square(epsilon * self._decay_per_epsilon)

    def _convert_to_steps(self, points: npt.ArrayLike, name: str) -> IntArray:
        steps = self.lattice.to_steps(points, name)
        if steps.ndim not in (1, 2) or steps.shape[-1] != self.hull.ambient_dimension:
            raise CoordinateError(
                f"{name} must have shape ({self.hull.ambient_dimension},) or one such row per point, got {steps.shape}"
            )
        return steps

    def __repr__(self) -> str:
        return f"LatticeKNormMechanism({self.hull!r}, epsilon={self.epsilon}, spacing={self.spacing})"


def _make_result_context(digits: int) -> Context:
    return make_decimal_context(digits + 2)


def _get_integer_vertices(hull: SensitivityHull) -> IntArray:
    """Return the hull's vertices ``(h, d)`` as integers, after checking that they are exact."""
    if hull.dimension > 2:
        raise InvalidInputError(
            f"the hull of exact lattice noise must have at most 2 dimensions, got {hull.dimension}; use KNormMechanism"
        )
    exact = hull.norm_form.exact
    vertices = np.rint(hull.vertices).astype(np.int64)
    # Rounding must not move a vertex; the other two conditions are exact.
    close = np.allclose(vertices, hull.vertices, rtol=1e-9, atol=1e-9)
    if exact is None or not close or not hull.contains(vertices).all():
        vertex = hull.vertices[np.abs(hull.vertices - vertices).max(axis=1).argmax()].tolist()
        raise CoordinateError(
            f"the hull must have integer vertices below 2**28, got {vertex}: use lattice steps, or from_hull_in_units"
        )
    return vertices


def _orient_counter_clockwise(corners: npt.NDArray[Any]) -> IntArray:
    """Return a polygon's integer corners, given in cyclic order, counter-clockwise."""
    points = corners.astype(np.int64)
    (a, b), (c, d) = points[:2].tolist()
    return np.ascontiguousarray(points if a * d > b * c else points[::-1])
