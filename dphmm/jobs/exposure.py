"""What releases tell a reader, in metres and odds, and warnings where that is more than their promise sounds like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from typing import Any

from dphmm.policy.expression import policy_radius
from dphmm.release.ledger import factor_in_words
from dphmm.release.settings import GIVEN

MOST_DAY_EPSILON = 10.0
"""Spending more than this within 24 hours is warned of: a factor of e^10 is 22,026."""
MOST_CERTAINTY = 0.5
"""A reader surer than this of one state is warned of: that is even odds."""

_FEWER = (
    f"release with --day-epsilon {MOST_DAY_EPSILON:g}, which spreads that over the day, or with a smaller epsilon at "
    "every step (dphmm calibrate --day-epsilon finds it)"
)


_EXTREMES: Mapping[str, Callable[..., Any]] = {
    "epsilon_dearest_day": max,
    "estimate_radius_m_median": min,
    "adversary_error_m_median": min,
    "adversary_error_m_least": min,
    "adversary_certainty_median": max,
    "adversary_certainty_most": max,
    "adversary_error_m_median_in_hindsight": min,
    "adversary_error_m_least_in_hindsight": min,
    "adversary_certainty_most_in_hindsight": max,
}
"""What is looked at of a user's releases → which of the users is known best by it."""


def standing_out(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The few rows that `exposure_facts` and `warnings_of` say the same of as of them all; the first of equal ones."""
    found = {id(row): row for key, of in _EXTREMES.items() if (row := _worst(rows, key, of)) is not None}
    return [row for row in rows if id(row) in found]


def exposure_facts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `dphmm.writers.summarise` found of users, one row each, as facts about whoever is known best.

    Parameters
    ----------
    rows
        At least one, all with or all without what is known in hindsight.
    """
    worst = {key: _worst(rows, key, of) for key, of in _EXTREMES.items() if key in rows[0]}
    facts = {key: None if row is None else row[key] for key, row in worst.items()}
    return {"epsilon_within_24_hours_most": facts.pop("epsilon_dearest_day"), **facts}


def warnings_of(rows: Sequence[Mapping[str, Any]], policy: str) -> list[str]:
    """What somebody who reads 'private' should be told, with what to do about it; public things alone are looked at.

    Parameters
    ----------
    rows
        What `dphmm.writers.summarise` found of users, one row each.
    policy
        The policy's text.

    Examples
    --------
    >>> row = {"user": "ann", "epsilon_dearest_day": 288.0, "estimate_radius_m_median": 130.0,
    ...     "adversary_certainty_most": 0.3}
    >>> [text.partition(":")[0] for text in warnings_of([row], "utility:1km")]
    ['within 24 hours epsilons of 288 in sum were spent on ann', 'the published estimates of ann are expected to be 130 m off (median), nearer than the 1,000 m within which the policy hides a place']
    """  # noqa: E501
    if not rows:
        return []
    said = []
    spent = _worst(rows, "epsilon_dearest_day", max)
    if spent is not None and spent["epsilon_dearest_day"] > MOST_DAY_EPSILON:
        level = spent["epsilon_dearest_day"]
        said.append(
            f"within 24 hours epsilons of {level:,.4g} in sum were spent on {spent['user']}: two paths that the policy "
            f"joins throughout are told apart by {factor_in_words(level)}; {_FEWER}"
        )
    key = "adversary_certainty_most_in_hindsight"
    when = " in hindsight" if key in rows[0] else ""
    key = key if when else "adversary_certainty_most"
    sure = _worst(rows, key, max)
    if sure is not None and sure[key] > MOST_CERTAINTY:
        said.append(
            f"whoever knows the model is up to {100 * sure[key]:.0f} % sure of one place of {sure['user']}{when}: "
            "release with a smaller epsilon (dphmm calibrate --certainty finds it) or under a policy that joins more"
        )
    radius = None if policy.startswith(GIVEN) else policy_radius(policy)
    near = _worst(rows, "estimate_radius_m_median", min)
    if radius is not None and near is not None and near["estimate_radius_m_median"] < 1000.0 * radius:
        said.append(
            f"the published estimates of {near['user']} are expected to be {near['estimate_radius_m_median']:,.0f} m "
            f"off (median), nearer than the {1000 * radius:,.0f} m within which the policy hides a place: it hides it "
            f"in each single release, and all together tell more; release with --target-error {1000 * radius:g}m, or "
            "with a smaller epsilon (dphmm calibrate --adversary-error finds it)"
        )
    return said


def _worst(rows: Sequence[Mapping[str, Any]], key: str, of: Callable[..., Any]) -> Mapping[str, Any] | None:
    known = [row for row in rows if not isnan(row.get(key, nan))]
    return of(known, key=lambda row: row[key]) if known else None
