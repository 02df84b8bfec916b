"""Factors of calibrated errors and radii."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from dphmm.errors import InvalidInputError
from dphmm.validation import check_arguments

# The share of timesteps, on average over users, at which the radius must contain the user.
COVERAGE = 0.9

# The share of users who must have at least the coverage `USER_COVERAGE`.
USER_SHARE = 0.9

# The share of a user's timesteps at which the radius must contain them, for `USER_SHARE` of the users.
USER_COVERAGE = 0.8

# The upper limits, in hours since the last release, of the factors' classes. The last factor is for longer times.
HOURS_SINCE_RELEASE = (0.0, 1.0, 3.0)


@check_arguments
@dataclass(frozen=True)
class CalibratedRadii:
    """The factors between the expected error of an estimate and calibrated values.

    The calibrated values are the mean error of the estimate and the radius around it.

    The calibration is cross-conformal: releases were simulated for users who were held out of a fit, on whole days. The
    factor of a class of timesteps is the smallest with which the radius contained `COVERAGE` of the timesteps, with
    equal weights of users, and for `USER_SHARE` of the users at least `USER_COVERAGE` of their timesteps, with the rank
    of split conformal prediction (one additional user). It is the largest over the simulated scales of noise, so the
    coverage may be higher with other noise. It holds over users who are exchangeable with these, days included. With
    few users it is itself uncertain, and the coverage of individual users may be lower.

    Parameters
    ----------
    factors
        Positive numbers. The first is for releases at every timestep. The others are for schedules: one for each of
        `HOURS_SINCE_RELEASE` and one for longer times.
    num_users
        The number of users of the calibration.
    coverage
        The share of timesteps that is covered.
    error_factors
        The ratios of the mean error of estimates to the mean of their expected errors under the model, in the order of
        `factors`, at least 1. Defaults to 1.

    Raises
    ------
    InvalidInputError
        If there is another number of factors, or a number is out of range.
    """

    factors: tuple[float, ...]
    num_users: int
    coverage: float = COVERAGE
    error_factors: tuple[float, ...] = (1.0,) * (len(HOURS_SINCE_RELEASE) + 2)

    def __post_init__(self) -> None:
        for name, lower in (("factors", 0.0), ("error_factors", 1.0)):
            values = getattr(self, name)
            count = len(HOURS_SINCE_RELEASE) + 2
            if len(values) != count or not all(0 < value < inf and value >= lower for value in values):
                required = f"numbers of at least {lower:g}" if lower else "positive numbers"
                raise InvalidInputError(f"{name} must be {count} {required}, got {values}")
        if not 0 < self.coverage < 1 or self.num_users < 1:
            raise InvalidInputError(
                f"coverage must be between 0 and 1 and num_users positive, got {self.coverage:g} and {self.num_users}"
            )

    def apply(self, error: float, hours: float, scheduled: bool) -> tuple[float, float]:
        """Return the calibrated error and radius of an estimate at a time since the last release.

        Parameters
        ----------
        error
            The expected error of the estimate under the model.
        hours
            Hours since the last release: 0 at a release, infinite before the first one.
        scheduled
            Whether a schedule selects the timesteps of releases.

        Returns
        -------
        error, radius
            The expected error over users like those of the calibration, and the calibrated radius.
        """
        index = 0 if hours == 0 and not scheduled else 1 + bisect_left(HOURS_SINCE_RELEASE, hours)
        return self.error_factors[index] * error, self.factors[index] * error

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values, which `from_dict` reads.

        Returns
        -------
        dict
            The fields.
        """
        return {**asdict(self), "factors": list(self.factors), "error_factors": list(self.error_factors)}

    @classmethod
    @check_arguments
    def from_dict(cls, values: Mapping[str, Any]) -> CalibratedRadii:
        """Return the factors from the fields that `to_dict` returned.

        Parameters
        ----------
        values
            The fields.

        Returns
        -------
        CalibratedRadii
            The factors.

        Raises
        ------
        InvalidInputError
            If a field is missing or invalid.
        """
        try:
            factors = tuple(float(factor) for factor in values["factors"])
            error_factors = tuple(float(factor) for factor in values["error_factors"])
            return cls(factors, int(values["num_users"]), float(values["coverage"]), error_factors)
        except (KeyError, TypeError, ValueError) as problem:
            raise InvalidInputError(f"calibrated radii are invalid ({problem}): learn the model again") from None
