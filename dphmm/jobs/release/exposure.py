"""The users whom releases expose most, and sentences about an adversary's inference.

Every sentence about an adversary is made from an `InferenceFigure`. The figure determines the words: its statistic,
what the adversary knows, which releases the adversary sees, and the users whom the figure describes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from operator import attrgetter
from typing import Any, Literal

from dphmm.audit.sequence import PUBLIC
from dphmm.formatting import format_percent

# The releases that an adversary uses: those up to each timestep, those since a gap restarted the belief, or all.
View = Literal["filtered", "filtered since a gap", "smoothed"]

# A statistic over a user's timesteps.
Statistic = Literal["median_adversary_error_m", "min_adversary_error_m", "median_max_posterior", "max_posterior"]

# The prefix of a statistic's key in a row of `dphmm.writers.summarise`.
VIEW_PREFIXES: Mapping[View, str] = {"filtered": "", "filtered since a gap": "", "smoothed": "smoothed_"}

# The words that follow a figure in a table.
VIEW_LABELS: Mapping[View, str] = {
    "filtered": "using past releases",
    "filtered since a gap": "using past releases since a long gap",
    "smoothed": "using all releases",
}

_SEEN: Mapping[View, str] = {
    "filtered": "sees only the releases up to each timestep",
    "filtered since a gap": "sees only the releases since the last long gap, up to each timestep",
    "smoothed": "sees all releases",
}

# The extreme of each metric over users that discloses most.
_EXTREMES: Mapping[str, Callable[..., Any]] = {
    "max_epsilon_24h": max,
    "median_estimate_error_m": min,
    "median_adversary_error_m": min,
    "min_adversary_error_m": min,
    "median_max_posterior": max,
    "max_posterior": max,
    "smoothed_median_adversary_error_m": min,
    "smoothed_min_adversary_error_m": min,
    "smoothed_max_posterior": max,
}

# The key of the number of timesteps with metrics that ignore the releases before a gap.
RESTARTS = "num_timesteps_after_gap"

_SMOOTHED_KEYS = frozenset(key for key in _EXTREMES if key.startswith(VIEW_PREFIXES["smoothed"]))


def name_extreme(key: str) -> str:
    """Return the name of a metric's extreme over users: of a median, ``min_user_median_…``.

    The minimum of minima and the maximum of maxima keep their names.
    """
    metric = key.removeprefix(VIEW_PREFIXES["smoothed"])
    prefix = key.removesuffix(metric)
    return f"{prefix}{_EXTREMES[metric].__name__}_user_{metric}" if metric.startswith("median_") else key


# The metrics of `summarize_exposure` for an adversary who has all releases.
SMOOTHED_METRICS = tuple(name_extreme(key) for key in _EXTREMES if key in _SMOOTHED_KEYS)


def select_exposure_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows on which `summarize_exposure` and the warnings about disclosure depend.

    Ties keep the first row.
    """
    kept = {id(row) for key in _EXTREMES if (row := find_most_exposed_row(rows, key)) is not None}
    # One user without smoothed metrics suffices that they are not stated for all.
    kept |= {id(row) for row in [row for row in rows if not row.keys() & _SMOOTHED_KEYS][:1]}
    kept |= {id(row) for row in [row for row in rows if row.get(RESTARTS)][:1]}  # it suffices for the words, too
    return [row for row in rows if id(row) in kept]


def find_most_exposed_row(rows: Sequence[Mapping[str, Any]], key: str) -> Mapping[str, Any] | None:
    """Return the first row in which a metric discloses most. None if no row contains it."""
    with_value = [row for row in rows if (value := row.get(key)) is not None and not isnan(value)]
    return _EXTREMES[key](with_value, key=lambda row: row[key]) if with_value else None


def summarize_exposure(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each metric of `dphmm.writers.summarise` for the user whom it exposes most.

    A median over one user's timesteps is not a median over all timesteps: the smallest of the users' values of
    ``median_estimate_error_m`` is called ``min_user_median_estimate_error_m``.

    Parameters
    ----------
    rows
        One row per user, at least one. Smoothed metrics are returned if all rows contain them.
    """
    extremes = {key: find_most_exposed_row(rows, key) for key in _EXTREMES if all(key in row for row in rows)}
    exposure = {name_extreme(key): None if row is None else row[key] for key, row in extremes.items()}
    return {"max_epsilon_24h": exposure.pop("max_epsilon_24h"), **exposure}


@dataclass(frozen=True)
class InferenceFigure:
    """A figure of an adversary's inference about the user whom it exposes most.

    Parameters
    ----------
    statistic
        The statistic over the protected timesteps of the user.
    view
        The releases that the adversary sees.
    value
        The value: metres or a probability.
    user
        The user. None if unknown.
    auxiliary_knowledge
        What the adversary knows about the user's movement, in words; see `dphmm.audit.sequence.Adversary`.
    """

    statistic: Statistic
    view: View
    value: float
    user: str | None = None
    auxiliary_knowledge: str = PUBLIC.auxiliary_knowledge

    @classmethod
    def find(cls, rows: Sequence[Mapping[str, Any]], statistic: Statistic, view: View) -> InferenceFigure | None:
        """Return a figure of the most exposed user.

        None unless all rows contain the statistic, and one of them is a number. The two filtered views exclude each
        other: the values of a row with restarts ignore the releases before a gap.
        """
        if view != "smoothed" and (view == "filtered") == any(row.get(RESTARTS) for row in rows):
            return None
        key = VIEW_PREFIXES[view] + statistic
        row = find_most_exposed_row(rows, key)
        if row is None or any(key not in other for other in rows):
            return None
        return cls(statistic, view, float(row[key]), row.get("user"))

    @classmethod
    def find_strongest(cls, rows: Sequence[Mapping[str, Any]], statistic: Statistic) -> InferenceFigure | None:
        """Return the figure that discloses most of the smoothed and the filtered ones.

        None without any. A later release can lower a probability that recipients had assigned before it.
        """
        views: tuple[View, ...] = ("smoothed", "filtered", "filtered since a gap")
        figures = [figure for view in views if (figure := cls.find(rows, statistic, view)) is not None]
        strongest = min if statistic.endswith("_m") else max  # an error, or a probability
        return strongest(figures, key=attrgetter("value"), default=None)

    @property
    def adversary(self) -> str:
        """The adversary, as a noun phrase."""
        if self.auxiliary_knowledge == PUBLIC.auxiliary_knowledge:
            return f"an adversary who knows only the model and {_SEEN[self.view]}"
        return f"an adversary who knows the model and {self.auxiliary_knowledge}, and {_SEEN[self.view]}"

    @property
    def value_in_words(self) -> str:
        """The value with its unit."""
        return f"{self.value:,.0f} m" if self.statistic.endswith("_m") else format_percent(self.value)

    def in_table(self) -> str:
        """Return the value and the releases from which it is computed."""
        return f"{self.value_in_words} {VIEW_LABELS[self.view]}"

    def describe(self, previous: InferenceFigure | None = None) -> str:
        """Return a sentence.

        Its subject is a pronoun if the previous sentence is about the same adversary.
        """
        is_same = previous is not None and previous.adversary == self.adversary
        adversary = "it" if is_same else self.adversary
        start, predicate = _PREDICATES[self.statistic]
        subject = f"{start}, {adversary}" if start else adversary[:1].upper() + adversary[1:]
        return f"{subject} {predicate.format(self.value_in_words)}."


# The users whom a statistic describes, and the predicate. A maximum over users is true of every user.
_PREDICATES: Mapping[Statistic, tuple[str, str]] = {
    "median_adversary_error_m": ("For the most exposed user", "has a median expected error of {}"),
    "min_adversary_error_m": ("At the most exposed timestep of any user", "has an expected error of {}"),
    "median_max_posterior": (
        "For the most exposed user",
        "assigns a median probability of {} to the most probable location",
    ),
    "max_posterior": ("", "assigns at most {} to a single location of any user at any timestep"),
}
