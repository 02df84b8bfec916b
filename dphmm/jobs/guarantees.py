"""What releases guarantee and what they disclose: warnings, facts in metres and odds, and sentences in plain words.

The warnings say where releases disclose more than their guarantee sounds like, and what to do about it; `promise_of` is
for people who read no mathematics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import numpy as np

from dphmm.facts import factor_in_words, metres, odds_in_words
from dphmm.jobs.stored_releases import hindsight_of
from dphmm.policy.expression import policy_in_words, policy_label, policy_radius
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.settings import GIVEN
from dphmm.tables import iso_time
from dphmm.writers import ReleaseTable, summarise

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

IN_HINDSIGHT = tuple(key for key in _EXTREMES if key.endswith("in_hindsight"))
"""Those of what is known once all releases are there."""


def best_known_users(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The few rows that `exposure_facts` and `warnings_of` say the same of as of them all; the first of equal ones."""
    found = {id(row): row for key, of in _EXTREMES.items() if (row := _worst(rows, key, of)) is not None}
    return [row for row in rows if id(row) in found]


def exposure_facts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `dphmm.writers.summarise` found of users, one row each, as facts about the user known best.

    Parameters
    ----------
    rows
        At least one, all with or all without what is known in hindsight.
    """
    worst = {key: _worst(rows, key, of) for key, of in _EXTREMES.items() if key in rows[0]}
    facts = {key: None if row is None else row[key] for key, row in worst.items()}
    return {"epsilon_within_24_hours_most": facts.pop("epsilon_dearest_day"), **facts}


def warnings_of(rows: Sequence[Mapping[str, Any]], policy: str) -> list[str]:
    """What a reader of 'private' has to know, with what to do about it; public things alone are looked at.

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
    if spent is not None and (level := spent["epsilon_dearest_day"]) > MOST_DAY_EPSILON:
        said.append(
            f"within 24 hours epsilons of {level:,.4g} in sum were spent on {spent['user']}: from one of two paths "
            f"that the policy joins throughout, rather than the other, releases are {factor_in_words(level)}; {_FEWER}"
        )
    when = " in hindsight" if "adversary_certainty_most_in_hindsight" in rows[0] else ""
    key = f"adversary_certainty_most{when.replace(' ', '_')}"
    sure = _worst(rows, key, max)
    if sure is not None and sure[key] > MOST_CERTAINTY:
        said.append(
            f"an adversary who knows the model is up to {100 * sure[key]:.0f} % sure of one place of "
            f"{sure['user']}{when}: release with a smaller epsilon (dphmm calibrate --certainty finds it) or under a "
            "policy that joins more"
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


def verdict_of(rows: Sequence[Mapping[str, Any]], settings: ReleaseSettings, is_private: bool) -> tuple[str, str]:
    """What a day's releases tell at most, and what a reader is expected to have learned: two sentences, public.

    Parameters
    ----------
    rows
        What `dphmm.writers.summarise` found of users, one row each, at least one.
    settings
        How places were released.
    is_private
        Whether the noise came from the operating system.
    """
    facts, schedule = exposure_facts(rows), settings.schedule
    dearest = facts["epsilon_within_24_hours_most"]
    if not is_private:
        promised = "Nothing is promised: the noise follows from a seed."
    elif schedule is not None and schedule.window_epsilon is not None:
        promised = (
            f"The releases of any {schedule.window_seconds / 3600:g} hours together are "
            f"{factor_in_words(schedule.window_epsilon)} from one path of a person as from another that the policy "
            f"joins to it throughout ({_joined(settings)}), {_if_possible(settings)}; longer times add up."
        )
    else:
        level = "" if isnan(dearest) else f": in the dearest 24 hours they are together {factor_in_words(dearest)}"
        promised = (
            f"One release is {factor_in_words(settings.epsilon)} from one place as from another that the policy joins "
            f"to it ({_joined(settings)}), {_if_possible(settings)}. Those of a day add up without a limit{level}."
        )
    when = "_in_hindsight" if "adversary_error_m_median_in_hindsight" in facts else ""
    off, sure = facts[f"adversary_error_m_median{when}"], facts[f"adversary_certainty_most{when}"]
    count = sum(row.get("moments_open", 0) for row in rows)
    opened = f" At {count:,} other moments the likeliest place is open: it is released as it is." if count else ""
    if off is None or isnan(off):
        return promised, f"What a reader learns was not worked out; dphmm audit session does it.{opened}"
    learned = (
        f"Somebody who knows the model alone and keeps all releases is expected to be {off:,.0f} m off (median) for "
        f"the person they know best, and {100 * sure:.0f} % sure of one place at the surest moment.{opened}"
    )
    return promised, learned


def _worst(rows: Sequence[Mapping[str, Any]], key: str, of: Callable[..., Any]) -> Mapping[str, Any] | None:
    known = [row for row in rows if not isnan(row.get(key, nan))]
    return of(known, key=lambda row: row[key]) if known else None


Rows = tuple[tuple[str, ...], ...]
"""A table: its rows, of texts."""


@dataclass(frozen=True)
class Promise:
    """What releases promise and disclose, in sentences and tables of plain text; all of it is public.

    Parameters
    ----------
    promised
        Two sentences: of one release, and of all releases of the person with whom most was spent.
    disclosed
        Rows of what is known of the person known best: of what, at each moment, and in hindsight.
    not_promised
        Sentences.
    made
        Rows of how the releases were made: what, and how.
    warnings
        Where the releases disclose more than they sound like, with what to do about it.
    """

    promised: tuple[str, str]
    disclosed: Rows
    not_promised: tuple[str, ...]
    made: Rows
    warnings: tuple[str, ...]


def promise_of(table: ReleaseTable, engine: Releaser, is_private: bool | None = None) -> Promise:
    """What releases promise and disclose, from the rows and from how they were made.

    Parameters
    ----------
    table
        The releases, at least one row, each user's in order of time.
    engine
        An engine of the model and the settings that they were made with.
    is_private
        Whether the noise came from the operating system; None where that is not known, which is then said.
    """
    settings = engine.settings
    rows = summarise(table, hindsight=hindsight_of(table, engine))
    dearest = max(rows, key=lambda row: row["epsilon_total"])
    return Promise(
        _promised(table, settings, dearest, is_private),
        _disclosed(table, rows),
        _not_promised(table, settings, is_private),
        _made(table, engine),
        tuple(warnings_of(rows, settings.policy)),
    )


def _promised(
    table: ReleaseTable, settings: ReleaseSettings, dearest: dict[str, Any], is_private: bool | None
) -> tuple[str, str]:
    if is_private is False:
        return (
            "Nothing is promised of a single release: its noise follows from a seed, and the seed takes it away.",
            "Nothing is promised of all of them either; this page shows an experiment.",
        )
    exact = "" if table["exact"].all() else ", but for the rounding of decimal numbers, which is not accounted for"
    level = factor_in_words(float(table["epsilon"].max()))
    one = (
        f"Each released point is {level} from one place as from another that the policy joins to it "
        f"({_joined(settings)}), {_if_possible(settings)}{exact}."
    )
    every = (
        f"From one path rather than another that the policy joins to it throughout, all {dearest['releases']:,} "
        f"released points of {dearest['user']}, on whom most was spent, are together "
        f"{factor_in_words(dearest['epsilon_total'])}."
    )
    return one, every


def _if_possible(settings: ReleaseSettings) -> str:
    """Of which places the promise is: for others the nearest possible one stands in, which the policy may not join."""
    if settings.delta:
        return f"if both are among the likeliest places of all but {settings.delta:g} of the model's probability"
    return "if the model holds both possible"


def _joined(settings: ReleaseSettings) -> str:
    return "the policy's graph was given" if settings.policy.startswith(GIVEN) else policy_in_words(settings.policy)


def _disclosed(table: ReleaseTable, rows: Sequence[dict[str, Any]]) -> Rows:
    facts = exposure_facts(rows)
    later = "adversary_error_m_median_in_hindsight" in facts

    def hindsight(key: str, text: Any) -> str:
        return text(facts[f"{key}_in_hindsight"]) if later else "not worked out: dphmm audit session"

    def off(value: float | None) -> str:
        return "no moment is hidden" if value is None else metres(value / 1000.0)

    drawn = table["expected_error_m"][~table["withheld"] & ~table["open"]]
    best = "how far the best guess of an adversary who knows the model is from the person"
    known, least, most = "adversary_error_m_median", "adversary_error_m_least", "adversary_certainty_most"
    opened = f"{int(table['open'].sum()):,} of {len(table):,}"
    return (
        ("how far a released point is from its place", off(float(np.median(drawn))) if len(drawn) else "none", ""),
        ("how far the published estimate is from the person", off(facts["estimate_radius_m_median"]), ""),
        (best, off(facts[known]), hindsight(known, off)),
        ("the same at the moment that is known best", off(facts[least]), hindsight(least, off)),
        ("how sure they are of one place at the moment that is known best", _sure(facts[most]), hindsight(most, _sure)),
        ("moments when the likeliest place is open, released as it is, and counted in none of these", opened, ""),
    )


def _sure(probability: float | None) -> str:
    if probability is None:
        return "no moment is hidden"
    if probability >= 1.0 - 1e-6:
        return "certain"
    return f"{100 * probability:.3g} % (odds {odds_in_words(probability)})"


def _not_promised(table: ReleaseTable, settings: ReleaseSettings, is_private: bool | None) -> tuple[str, ...]:
    drawn = table.select(~table["withheld"])
    said = []
    if is_private is None:
        said.append(
            "That the noise came from the operating system: what was published does not say so, and noise from a "
            "seed hides nothing."
        )
    if len(drawn):
        level = float((drawn["constrained_factor"] * drawn["epsilon"]).max())
        others = int(drawn["least_protection"].min()) - 1
        said.append(
            "That places which the policy does not join are hard to tell apart. A released point from one of any two "
            f"possible ones, against the other: {factor_in_words(level)}. At the worst moment a place had {others:,} "
            f"other{'s' if others != 1 else ''} from which a released point tells it by no more than is promised of "
            "joined places."
        )
    day = max(table["epsilon_last_day"][~np.isnan(table["epsilon_last_day"])], default=0.0)
    said.append(
        "That many releases hide as much as one: what they tell adds up, as the second sentence above says. Within 24 "
        f"hours ε of up to {day:.4g} was spent on a person: from one of two paths that were joined, rather than the "
        f"other, that day's points are {factor_in_words(float(day))}."
    )
    if settings.outside == "border":
        said.append("Anything of places outside the region: a person there is released as if at its nearest place.")
    else:
        said.append("That no one learns when a person was outside the region: such moments have no release.")
    said.append("When a person was recorded, and under which name: times and names stand in the file as they are.")
    if not settings.caps:
        said.append(
            "Events that take time, such as a visit within a week: 'dphmm audit event' says what was disclosed of one."
        )
    said.append(
        "The distances and the odds: they are what the model expects. They may be otherwise for a person who does not "
        "move as it says, and a reader who knows more than the model, such as the person's habits, may come nearer."
    )
    for name, text in (
        ("open", "of places that the policy leaves open, which are released as they are"),
        ("already_known", "of moments at which only one place was possible, which no noise hides"),
    ):
        count = int(drawn[name].sum())
        if count:
            said.append(f"Anything of {count:,} releases {text}.")
    count = int((table["forgotten_releases"] > 0).sum())
    if count:
        said.append(
            f"The figures of {count:,} rows against an adversary who remembers the person's releases before a gap: "
            "they were worked out for one who forgot them."
        )
    return tuple(said)


def _made(table: ReleaseTable, engine: Releaser) -> Rows:
    settings, model = engine.settings, engine.model
    drawn, users = table.select(~table["withheld"]), sorted(set(table["user"].tolist()))
    spent = "nothing was drawn"
    if len(drawn):
        low, high = drawn["epsilon"].min(), drawn["epsilon"].max()
        spent = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    promise = (model.learned or {}).get("promise")
    some = ", ".join(users[:8]) + (f" and {len(users) - 8:,} more" if len(users) > 8 else "")
    return (
        ("people", f"{len(users):,}: {some}"),
        ("from, to (UTC)", f"{iso_time(table['time'].min())}, {iso_time(table['time'].max())}"),
        ("released points", f"{len(drawn):,}; {len(table) - len(drawn):,} moments were withheld"),
        ("policy", f"{policy_label(settings.policy)}: hides between {_joined(settings)}"),
        ("ε of a release", spent),
        ("noise", f"{settings.mechanism}, {'exact on a computer' if table['exact'].all() else 'in floating point'}"),
        ("places of the map", f"{model.size:,} ({type(model.space).__name__.lower()}), every {model.step:g} s"),
        ("what the model promises to those it was learned from", promise if isinstance(promise, str) else "not known"),
        ("settings, model", f"SHA-256 {settings.content_hash[:16]}, {model.content_hash[:16]}"),
    )
