"""By what factors circles about estimates have to be wider than expected, to hold people."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from dphmm.arguments import checked
from dphmm.errors import InvalidInputError

COVERAGE = 0.9
"""The share of moments, on average over people, at which a person is to be within the circle."""

MOST_PEOPLE, MOSTLY = 0.9, 0.8
"""The share of people who are to be within it at this share of their moments or more."""

HOURS = (0.0, 1.0, 3.0)
"""Hours after the last draw up to which factors hold; the last factor is for longer."""


@checked
@dataclass(frozen=True)
class HeldRadii:
    """Factors by which circles about estimates are wider than the estimate's expected distance, to hold people.

    Cross-conformal: people who were left out of a fit were followed with noise, and the factor of a class of moments
    is the least that held `COVERAGE` of (distance / expected distance) over them, each person alike, and
    `MOST_PEOPLE` of them at `MOSTLY` of their moments, with the rank of split conformal prediction (one person more).
    It holds on average over people exchangeable with these; of few people it is itself uncertain, and single people
    may be held less.

    Parameters
    ----------
    factors
        Positive: at a draw where every moment has one; and under schedules, which draw after silences, one for each of
        `HOURS` and one for longer.
    people
        How many people they are of.
    coverage
        The share of moments that is held.

    Raises
    ------
    InvalidInputError
        When there is another number of factors, or one is not positive.
    """

    factors: tuple[float, ...]
    people: int
    coverage: float = COVERAGE

    def __post_init__(self) -> None:
        if len(self.factors) != len(HOURS) + 2 or not all(0 < one < inf for one in self.factors):
            raise InvalidInputError(f"factors are {self.factors}; give {len(HOURS) + 2} positive numbers")
        if not 0 < self.coverage < 1 or self.people < 1:
            raise InvalidInputError(f"coverage is {self.coverage:g} of {self.people} people; give a share, and people")

    def factor(self, hours: float, scheduled: bool) -> float:
        """The factor at some hours since the last draw.

        Parameters
        ----------
        hours
            0 at a draw; infinite where there was none.
        scheduled
            Whether a schedule chooses the moments of draws.

        Returns
        -------
        float
            By what the expected distance is multiplied.
        """
        return self.factors[0 if hours == 0 and not scheduled else 1 + bisect_left(HOURS, hours)]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, which `from_dict` reads.

        Returns
        -------
        dict
            The fields.
        """
        return {**asdict(self), "factors": list(self.factors)}

    @classmethod
    @checked
    def from_dict(cls, values: Mapping[str, Any]) -> HeldRadii:
        """What `to_dict` wrote.

        Parameters
        ----------
        values
            The fields.

        Returns
        -------
        HeldRadii
            The factors.

        Raises
        ------
        InvalidInputError
            When the fields are others.
        """
        try:
            factors = tuple(float(one) for one in values["factors"])
            if len(factors) == len(HOURS) + 1:  # files of before told the two kinds of draws not apart
                factors = (factors[0], *factors)
            return cls(factors, int(values["people"]), float(values["coverage"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise InvalidInputError(f"the radii's factors cannot be read ({problem}); learn the model again") from None
