"""The published lattice: which points lie on it, and at how many steps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError
from dphmm.mechanisms.exact import Rational, rational

STEP_LIMIT = 2**52
"""Points further than this many steps from the origin are refused: doubles would no longer tell neighbours apart."""


_FEW = 8
"""Up to so many numbers are divided one by one: an array of them takes longer."""


class Spacing:
    """The lattice of the whole multiples of one step on every axis.

    Parameters
    ----------
    step
        The length of a step, in the unit of the points: a positive rational. A float is read as its shortest decimal.

    Raises
    ------
    InvalidInputError
        When the step is not a positive, finite rational.

    Examples
    --------
    >>> metres = Spacing(0.001)
    >>> metres.steps([[0.345, -1.2]]).tolist()
    [[345, -1200]]
    >>> metres.points(np.array([[345, -1200]])).tolist()
    [[0.345, -1.2]]
    """

    def __init__(self, step: Rational = 1) -> None:
        try:
            self.step = rational(step, "spacing")
        except BudgetError as error:
            raise InvalidInputError(str(error)) from error

    def steps(self, points: npt.ArrayLike, name: str = "points") -> IntArray:
        """Points of the lattice as whole numbers of steps, in an integer array of the same shape.

        Parameters
        ----------
        points
            Integers, `fractions.Fraction` and `decimal.Decimal` entries must lie on the lattice exactly. A float
            stands for the lattice point that it differs from by rounding alone: by `RELATIVE_TOLERANCE` of the
            number or of the step, whichever is larger, and by a quarter of a step at most.
        name
            What the points are, for the message.

        Raises
        ------
        CoordinateError
            When a point is not finite, too far away, or off the lattice; the message names the nearest lattice point.
        """
        try:
            array = np.asarray(points)
        except ValueError:
            raise CoordinateError(f"{name} have rows of different lengths; give one number for each axis") from None
        if array.dtype.kind not in "iufO":
            raise CoordinateError(f"{name} are of type {array.dtype}; give numbers")
        if array.dtype.kind in "iu" and self.step == 1:
            return self._checked(array, name)
        steps: npt.NDArray[Any]
        if array.dtype.kind == "f":
            steps, on = self._rounded(array.astype(np.float64), name)
        else:
            steps, on = self._divided(array, name)
        if not on.all():
            self._refuse(array, steps, on, name)
        return self._checked(steps, name)

    def nearest(self, points: FloatArray, name: str = "points") -> IntArray:
        """The nearest points of the lattice as whole numbers of steps, in an integer array of the same shape.

        Raises
        ------
        CoordinateError
            When a point is not finite, or too far away.
        """
        return self._checked(self._rounded(points, name)[0], name)

    def _checked(self, steps: npt.NDArray[Any], name: str) -> IntArray:
        if steps.size and max(int(steps.max()), -int(steps.min())) > STEP_LIMIT:
            raise CoordinateError(f"{name} reach beyond 2**52 steps of {self.step}; choose a wider spacing")
        return steps.astype(np.int64, copy=False)

    def _rounded(self, values: FloatArray, name: str) -> tuple[npt.NDArray[Any], BoolArray]:
        if not np.isfinite(values).all():
            raise CoordinateError(f"{name} hold NaN or infinity; coordinates must be finite")
        width = float(self.step)
        steps = np.rint(values / width)
        tolerance = np.minimum(RELATIVE_TOLERANCE * np.maximum(np.abs(values), width), width / 4)
        return steps, np.asarray(np.abs(values - steps * width) <= tolerance)

    def _divided(self, values: npt.NDArray[Any], name: str) -> tuple[npt.NDArray[Any], BoolArray]:
        try:
            ratios = [Fraction(x) / self.step for x in values.ravel().tolist()]
        except (TypeError, ValueError, OverflowError) as error:
            raise CoordinateError(
                f"{name} hold an entry that is no finite number; give integers or fractions"
            ) from error
        steps = np.array([round(x) for x in ratios], dtype=object).reshape(values.shape)
        return steps, np.array([x.denominator == 1 for x in ratios], dtype=np.bool_).reshape(values.shape)

    def _refuse(self, array: npt.NDArray[Any], steps: npt.NDArray[Any], on: BoolArray, name: str) -> None:
        """Name the first point off the lattice and the lattice point nearest to it."""
        row = tuple(int(i) for i in np.argwhere(~on)[0])[:-1]
        found = ", ".join(str(x) for x in np.atleast_1d(array[row]).tolist())
        near = ", ".join(str(self.step * int(k)) for k in np.atleast_1d(steps[row]).tolist())
        raise CoordinateError(
            f"{name}: ({found}) is off the lattice with spacing {self.step}; the nearest lattice point is ({near})"
        )

    def points(self, steps: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Whole numbers of steps as points: integers where the step is one, otherwise the nearest doubles.

        What is returned is a function of the steps alone, so rounding gives nothing away.
        """
        if self.step == 1:
            return steps
        num, den = self.step.numerator, self.step.denominator
        if steps.size > _FEW and max(max(int(steps.max()), -int(steps.min())) * num, den) <= 2**53:
            return np.asarray((steps * num).astype(np.float64) / den)
        flat = [k * num / den for k in steps.ravel().tolist()]  # rounded once, as Python divides integers
        return np.array(flat, dtype=np.float64).reshape(steps.shape)
