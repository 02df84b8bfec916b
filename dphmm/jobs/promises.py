"""What releases promise, what they do not, and what they told, in plain words: for people who read no mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dphmm.audit.verdict import metres
from dphmm.jobs.exposure import exposure_facts, warnings_of
from dphmm.jobs.replays import hindsight_of
from dphmm.policy.expression import policy_in_words
from dphmm.release.engine import Releaser
from dphmm.release.ledger import factor_in_words
from dphmm.release.settings import GIVEN, ReleaseSettings
from dphmm.tables import iso_time
from dphmm.writers.summary import summarise
from dphmm.writers.table import ReleaseTable

Rows = tuple[tuple[str, ...], ...]
"""A table: its rows, of texts."""


@dataclass(frozen=True)
class Promise:
    """What releases promise and told, in sentences and tables of plain text; all of it is public.

    Attributes
    ----------
    promised
        Two sentences: of one release, and of all releases of the person with whom most was spent.
    told
        Rows of what is known of the person known best: of what, at each moment, and in hindsight.
    not_promised
        Sentences.
    made
        Rows of how the releases were made: what, and how.
    warnings
        Where the releases told more than they sound like, with what to do about it.
    """

    promised: tuple[str, str]
    told: Rows
    not_promised: tuple[str, ...]
    made: Rows
    warnings: tuple[str, ...]


def promise_of(table: ReleaseTable, engine: Releaser, is_private: bool | None = None) -> Promise:
    """What releases promise and told, from the rows and from how they were made.

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
        _told(table, rows),
        _not_promised(table, settings, is_private),
        _made(table, engine),
        tuple(warnings_of(rows, settings.policy)),
    )


def _promised(
    table: ReleaseTable, settings: ReleaseSettings, dearest: dict[str, Any], is_private: bool | None
) -> tuple[str, str]:
    if is_private is False:
        return (
            "Nothing is promised of a single release: its noise follows from a seed, and whoever has the seed takes it "
            "away.",
            "Nothing is promised of all of them either; this page shows an experiment.",
        )
    exact = "" if table["exact"].all() else ", but for the rounding of decimal numbers, which is not accounted for"
    possible = "and that whoever knows the model could not rule out before"
    if settings.delta:
        possible += f", among its likeliest places of all but {settings.delta:g} of the probability"
    level = factor_in_words(float(table["epsilon"].max()))
    one = (
        f"Of any two places that the policy joins ({_joined(settings)}), {possible}, each released point is {level} "
        f"from one as from the other{exact}."
    )
    every = (
        f"Of any two paths that the policy joins at every one of them, all {dearest['releases']:,} released points of "
        f"{dearest['user']}, with whom most was spent, are together, from one as from the other, "
        f"{factor_in_words(dearest['epsilon_total'])}."
    )
    return one, every


def _joined(settings: ReleaseSettings) -> str:
    return "the policy's graph was given" if settings.policy.startswith(GIVEN) else policy_in_words(settings.policy)


def _told(table: ReleaseTable, rows: Sequence[dict[str, Any]]) -> Rows:
    facts = exposure_facts(rows)
    later = "adversary_error_m_median_in_hindsight" in facts

    def hindsight(key: str, text: Any) -> str:
        return text(facts[f"{key}_in_hindsight"]) if later else "not worked out: dphmm audit session"

    def off(value: float) -> str:
        return metres(value / 1000.0)

    drawn = table["expected_error_m"][~table["withheld"]]
    best = "how far the best guess of whoever knows the model is from the person"
    known, least, most = "adversary_error_m_median", "adversary_error_m_least", "adversary_certainty_most"
    found = [
        ("how far a released point is from its place", off(float(np.median(drawn))) if len(drawn) else "none", ""),
        ("how far the published estimate is from the person", off(facts["estimate_radius_m_median"]), ""),
        (best, off(facts[known]), hindsight(known, off)),
        ("the same at the moment that is known best", off(facts[least]), hindsight(least, off)),
        ("how sure they are of one place at the moment that is known best", _sure(facts[most]), hindsight(most, _sure)),
    ]
    return tuple(found)


def _sure(probability: float) -> str:
    if probability >= 1.0 - 1e-6:
        return "certain"
    odds = probability / (1.0 - probability)
    said = f"{odds:,.3g} to 1" if odds >= 1 else f"1 to {1 / odds:,.3g}"
    return f"{100 * probability:.3g} % (odds {said})"


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
            "That places which the policy does not join are alike: of any two that were possible, a released point is "
            f"from one as from the other {factor_in_words(level)}. At the worst moment a place had {others:,} "
            f"other{'s' if others != 1 else ''} that a released point tells it from by no more than is promised of "
            "joined ones."
        )
    day = max(table["epsilon_last_day"][~np.isnan(table["epsilon_last_day"])], default=0.0)
    said.append(
        "That many releases hide as much as one: what they tell adds up, as the second sentence above says. Within 24 "
        f"hours ε of up to {day:.4g} was spent on a person: of two paths that were joined, that day's points are from "
        f"one as from the other {factor_in_words(float(day))}."
    )
    if settings.outside == "border":
        said.append("Anything of places outside the region: somebody there is released as being at its nearest place.")
    else:
        said.append("That nobody learns when a person was outside the region: such moments have no release.")
    said.append("When somebody was recorded, and under which name: times and names stand in the file as they are.")
    if not settings.caps:
        said.append(
            "Events that take time, such as a visit within a week: 'dphmm audit event' says what was told of one."
        )
    said.append(
        "The distances and the odds: they are what the model expects, and may be otherwise for somebody who does not "
        "move as it says."
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
            f"The figures of {count:,} rows against somebody who remembers the person's releases before a gap: they "
            "were worked out for one who forgot them."
        )
    return tuple(said)


def _made(table: ReleaseTable, engine: Releaser) -> Rows:
    settings, model = engine.settings, engine.model
    drawn, users = table.select(~table["withheld"]), sorted(set(table["user"].tolist()))
    epsilons = sorted(set(drawn["epsilon"].tolist()))
    promise = (model.learned or {}).get("promise")
    some = ", ".join(users[:8]) + (f" and {len(users) - 8:,} more" if len(users) > 8 else "")
    found = [
        ("people", f"{len(users):,}: {some}"),
        ("from, to (UTC)", f"{iso_time(table['time'].min())}, {iso_time(table['time'].max())}"),
        ("released points", f"{len(drawn):,}; {len(table) - len(drawn):,} moments were withheld"),
        ("policy", f"{settings.policy}: hides between {_joined(settings)}"),
        ("ε of a release", _span(epsilons)),
        ("noise", f"{settings.mechanism}, {'exact on a computer' if table['exact'].all() else 'in floating point'}"),
        ("places of the map", f"{model.size:,} ({type(model.space).__name__.lower()}), every {model.step:g} s"),
        ("what the model promises to those it was learned from", promise if isinstance(promise, str) else "not known"),
        ("settings, model", f"SHA-256 {settings.content_hash[:16]}, {model.content_hash[:16]}"),
    ]
    return tuple(found)


def _span(epsilons: Sequence[float]) -> str:
    if not epsilons:
        return "nothing was drawn"
    low, high = epsilons[0], epsilons[-1]
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
