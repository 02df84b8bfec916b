"""Guarantees and disclosure of releases: warnings, metrics and sentences.

Warnings state where releases disclose more than their guarantee suggests, and a remedy. `build_guarantee` assumes no
background in differential privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Literal

import numpy as np

from dphmm.formatting import (
    describe_likelihood_ratio,
    format_duration,
    format_kilometres,
    format_odds,
    format_percent,
    format_power_of_e,
    format_ratio_bound,
    format_upper_bound,
)
from dphmm.jobs.audit.target import get_state_names
from dphmm.jobs.release.costly_repair import CostlyRepair, find_costly_repair
from dphmm.jobs.release.exposure import InferenceFigure, find_most_exposed_row, summarize_exposure
from dphmm.jobs.release.stored import compute_hindsight
from dphmm.mechanisms.registry import MECHANISMS
from dphmm.policy.expression import describe_policy, find_max_radius, format_policy_label
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.settings import GRAPH_POLICY_PREFIX
from dphmm.tables import iso_time
from dphmm.writers import ReleaseTable, summarise

# A total epsilon above this within 24 hours causes a warning: e^10 is a factor of 22,026.
MAX_DAY_EPSILON = 10.0
# A posterior probability above this causes a warning: 0.5 is even odds.
MAX_POSTERIOR = 0.5


def collect_warnings(
    rows: Sequence[Mapping[str, Any]],
    policy: str,
    costly_repair: CostlyRepair | None = None,
) -> list[str]:
    """Return warnings about disclosure and accuracy, each with a remedy.

    They depend on public values only.

    Parameters
    ----------
    rows
        The rows of `dphmm.writers.summarise`, one per user.
    policy
        The policy as a string.
    costly_repair
        The repair that raised the expected error most, if by more than a tenth.

    Examples
    --------
    >>> row = {"user": "ann", "max_epsilon_24h": 288.0, "median_estimate_error_m": 130.0, "max_posterior": 0.3}
    >>> for warning in collect_warnings([row], "utility:1km"):
    ...     print(warning.partition(":")[0])
    24 hours of releases spend a total epsilon of 288 on ann, a factor of up to e^288
    the estimates of ann have a median expected error of 130 m, below the policy's radius of 1,000 m
    """
    if not rows:
        return []
    warnings = []
    row = find_most_exposed_row(rows, "max_epsilon_24h")
    if row is not None and row["max_epsilon_24h"] > MAX_DAY_EPSILON:
        level = row["max_epsilon_24h"]
        warnings.append(
            f"24 hours of releases spend a total epsilon of {format_upper_bound(level, ',')} on {row['user']}, a "
            "factor of up "
            f"to {format_power_of_e(level)}: use --window-epsilon {MAX_DAY_EPSILON:g} or a smaller epsilon ('dphmm "
            "calibrate "
            "--window-epsilon')"
        )
    posterior = InferenceFigure.find_strongest(rows, "max_posterior")
    if posterior is not None and posterior.value > MAX_POSTERIOR:
        warnings.append(
            f"{posterior.adversary} assigns up to {posterior.value_in_words} to one location of {posterior.user}: "
            "reduce epsilon ('dphmm calibrate --max-posterior') or add edges"
        )
    radius = None if policy.startswith(GRAPH_POLICY_PREFIX) else find_max_radius(policy)
    row = find_most_exposed_row(rows, "median_estimate_error_m")
    if radius is not None and row is not None and (error := row["median_estimate_error_m"]) < 1000.0 * radius:
        warnings.append(
            f"the estimates of {row['user']} have a median expected error of {error:,.0f} m, below the policy's radius "
            f"of {1000 * radius:,.0f} m: use --target-error {1000 * radius:g}m or a smaller epsilon ('dphmm calibrate "
            "--adversary-error')"
        )
    if costly_repair is not None:
        warnings.append(costly_repair.describe())
    return warnings


# The releases that a guarantee covers: those of one run in its output, or all of the users' durable sessions.
Scope = Literal["file", "folder", "session"]


def summarize_guarantee(
    rows: Sequence[Mapping[str, Any]],
    settings: ReleaseSettings,
    is_private: bool,
    scope: Scope = "file",
    max_epsilon_total: float | None = None,
    num_unprotected: int | None = None,
) -> tuple[str, str]:
    """Return a paragraph about the guarantee and one about the adversary's inference.

    Both are public.

    Parameters
    ----------
    rows
        The rows of `dphmm.writers.summarise`, one per user, at least one.
    settings
        The settings of the releases.
    is_private
        Whether the noise came from the operating system.
    scope
        The releases that the guarantee covers.
    max_epsilon_total, num_unprotected
        The largest total epsilon of a user, and the number of unprotected timesteps. Default to those of the rows; must
        be passed if the rows are only those of `select_exposure_rows`.
    """
    if max_epsilon_total is None:
        totals = [row["epsilon_total"] for row in rows if not isnan(row.get("epsilon_total", nan))]
        max_epsilon_total = max(totals, default=nan)
    if num_unprotected is None:
        num_unprotected = sum(row.get("num_unprotected", 0) for row in rows)
    guarantee = _describe_guarantee(rows, settings, scope, max_epsilon_total) if is_private else NO_GUARANTEE
    return guarantee, _describe_inference(rows, num_unprotected)


# The guarantee of releases with seeded noise.
NO_GUARANTEE = "None. The noise is seeded and can be reproduced."


def _describe_guarantee(
    rows: Sequence[Mapping[str, Any]], settings: ReleaseSettings, scope: Scope, max_epsilon_total: float
) -> str:
    schedule = settings.schedule
    where, others = _SCOPES[scope]
    conditions = _describe_conditions(settings, settings.is_exact)
    trajectories = (
        f"Take any two trajectories {_describe_support(settings, 'at every timestep')} and that the policy connects "
        "at every "
        f"timestep ({_describe_connections(settings)})."
    )
    if schedule is not None and (budget := schedule.window_epsilon) is not None:
        all_releases = (
            f": for all releases {where} the factor is at most {format_ratio_bound(max_epsilon_total)}"
            if max_epsilon_total > budget
            else ""
        )
        return (
            f"{trajectories} The releases {where} within any {format_duration(schedule.window_seconds)} are "
            f"{_format_ratio(budget, stated=True)}. Longer periods accumulate{all_releases}. {others}{conditions}"
        )
    largest = summarize_exposure(rows)["max_epsilon_24h"]
    day = ""
    if largest is not None and not isnan(largest):
        covered = f"{_describe_support(settings, 'at every timestep')} and " if settings.delta else ""
        day = (
            " The releases of a user within 24 hours have a total epsilon of at most "
            f"{format_upper_bound(largest, ',')}. For two trajectories {covered}that the policy connects at every "
            f"timestep, they are {_format_ratio(largest)}."
        )
    release = describe_likelihood_ratio(
        settings.epsilon, "from one", "from the other", _format_epsilon(settings.epsilon)
    )
    return (
        f"Take any two locations {_describe_support(settings)} and that the policy connects "
        f"({_describe_connections(settings)}). One "
        f"release is {release}. Releases accumulate without a limit.{day} {others}{conditions}"
    )


def _describe_conditions(settings: ReleaseSettings, is_exact: bool) -> str:
    """Return sentences about what a guarantee depends on, each after a space."""
    rounding = "" if is_exact else " This holds for real-valued noise; floating-point rounding is not covered."
    if settings.mechanism in MECHANISMS:
        return rounding
    return (
        f"{rounding} The guarantee depends on the privacy loss that mechanism {settings.mechanism} of another package "
        "states, which is compared with samples and not proven."
    )


# Where the releases are, and the releases that the guarantee does not cover.
_SCOPES: Mapping[Scope, tuple[str, str]] = {
    "file": (
        "in this file",
        "Other files of the same user add to this, including those of the same command, unless a session (--session) "
        "holds the budget.",
    ),
    "folder": (
        "in this folder",
        "Other folders and files of the same user add to this, including those of the same command.",
    ),
    "session": (
        "of a user's session, in this run and all others,",
        "Releases of the same user outside this session add to this.",
    ),
}


def _format_ratio(level: float, stated: bool = False) -> str:
    return describe_likelihood_ratio(level, "under one", "under the other", _format_epsilon(level) if stated else "")


def _format_epsilon(level: float) -> str:
    return f"ε = {level:,.6g}"


def _describe_inference(rows: Sequence[Mapping[str, Any]], num_unprotected: int) -> str:
    error = InferenceFigure.find_strongest(rows, "median_adversary_error_m")
    posterior = InferenceFigure.find_strongest(rows, "max_posterior")
    unprotected = (
        f" At {num_unprotected:,} other timesteps the most probable location is unprotected: it is released unchanged."
        if num_unprotected
        else ""
    )
    if error is None or posterior is None:
        return f"Not computed; use 'dphmm audit session'.{unprotected}"
    return f"{error.describe()} {posterior.describe(error)}{unprotected}"


# The rows of a table, each a tuple of strings.
Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Guarantee:
    """The guarantee and the disclosure of releases, as plain text.

    Everything in it is public.

    Parameters
    ----------
    guarantees
        Two sentences: about one release, and about all releases of the user on whom most epsilon was spent.
    disclosure
        Rows about the most exposed user: metric, its value at each timestep, and its smoothed value.
    limitations
        Sentences about what is not guaranteed.
    provenance
        Rows about how the releases were made: name and value.
    warnings
        Where the releases disclose more than their guarantee suggests, each with a remedy.
    """

    guarantees: tuple[str, str]
    disclosure: Rows
    limitations: tuple[str, ...]
    provenance: Rows
    warnings: tuple[str, ...]


def build_guarantee(table: ReleaseTable, engine: Releaser, is_private: bool | None = None) -> Guarantee:
    """Describe the guarantee and the disclosure of releases.

    Parameters
    ----------
    table
        The releases, at least one row, each user's in order of time.
    engine
        An engine of the model and the settings of the releases.
    is_private
        Whether the noise came from the operating system. None if that is unknown; the limitations then state it.
    """
    settings = engine.settings
    rows = summarise(table, hindsight=compute_hindsight(table, engine))
    top_user = max(rows, key=lambda row: row["epsilon_total"])
    return Guarantee(
        _describe_guarantees(table, settings, top_user, is_private),
        _build_disclosure_rows(table, rows),
        _describe_limitations(table, settings, is_private),
        _build_provenance_rows(table, engine),
        tuple(collect_warnings(rows, settings.policy, find_costly_repair(engine, get_state_names(engine.model.space)))),
    )


def _describe_guarantees(
    table: ReleaseTable, settings: ReleaseSettings, top_user: dict[str, Any], is_private: bool | None
) -> tuple[str, str]:
    if is_private is False:
        return (
            "There is no guarantee for a single release: its noise is seeded, and the seed removes it.",
            "There is no guarantee for all releases together. This page shows an experiment.",
        )
    conditions = _describe_conditions(settings, bool(table["is_exact"].all()))
    release = (
        f"Take any two locations {_describe_support(settings)} and that the policy connects "
        f"({_describe_connections(settings)}). A "
        "released point is "
        f"{describe_likelihood_ratio(float(table['epsilon'].max()), 'from one', 'from the other')}.{conditions}"
    )
    all_releases = (
        f"Take any two such trajectories, connected at every timestep. All {top_user['num_releases']:,} released "
        f"points of {top_user['user']}, the user with the largest total epsilon, are "
        f"{_format_ratio(top_user['epsilon_total'])}."
    )
    return release, all_releases


def _describe_support(settings: ReleaseSettings, when: str = "") -> str:
    """Return a clause about the locations that the guarantee covers.

    The surrogate of any other location may lack the policy's edges.
    """
    if settings.delta:
        clause = f", {when}," if when else ""
        return (
            f"that lie{clause} among the most probable locations of the model (all but a probability of "
            f"{settings.delta:g})"
        )
    return "that the model considers possible"


def _describe_connections(settings: ReleaseSettings) -> str:
    return (
        "its graph was provided"
        if settings.policy.startswith(GRAPH_POLICY_PREFIX)
        else describe_policy(settings.policy)
    )


_UNPROTECTED_ONLY = "no timestep is protected"


def _build_disclosure_rows(table: ReleaseTable, rows: Sequence[dict[str, Any]]) -> Rows:
    exposure = summarize_exposure(rows)
    is_smoothed = "smoothed_min_user_median_adversary_error_m" in exposure

    def format_smoothed(key: str, text: Callable[[Any], str]) -> str:
        return text(exposure[f"smoothed_{key}"]) if is_smoothed else "not computed; use 'dphmm audit session'"

    def format_distance(value: float | None) -> str:
        return _UNPROTECTED_ONLY if value is None else format_kilometres(value / 1000.0)

    is_sampled = ~table["withheld"] & ~table["unprotected"]
    users = table["user"][is_sampled]
    errors = table["component_error_m"][is_sampled]
    medians = [float(np.median(errors[users == user])) for user in np.unique(users.astype(str))]
    num_unprotected = int(table["unprotected"].sum())
    label = "unprotected timesteps, released unchanged and excluded above"
    unprotected = ((label, f"{num_unprotected:,} of {len(table):,}", ""),) if num_unprotected else ()
    estimate = "min_user_median_estimate_error_m"
    median = "min_user_median_adversary_error_m"
    minimum = "min_adversary_error_m"
    return (
        ("RMS noise of a released point (median)", format_distance(min(medians)) if medians else "none", ""),
        (
            "expected error of the published estimate (median)",
            format_distance(exposure[estimate]),
            "",
        ),
        (
            "expected error of an adversary who knows the model (median)",
            format_distance(exposure[median]),
            format_smoothed(median, format_distance),
        ),
        (
            "expected error of this adversary (minimum)",
            format_distance(exposure[minimum]),
            format_smoothed(minimum, format_distance),
        ),
        (
            "posterior probability of a single location (maximum)",
            _format_odds(exposure["max_posterior"]),
            format_smoothed("max_posterior", _format_odds),
        ),
        *unprotected,
    )


def _format_odds(probability: float | None) -> str:
    if probability is None:
        return _UNPROTECTED_ONLY
    if probability >= 1.0 - 1e-6:
        return "certain"
    return f"{format_percent(probability)} (odds {format_odds(probability)})"


def _describe_limitations(table: ReleaseTable, settings: ReleaseSettings, is_private: bool | None) -> tuple[str, ...]:
    sampled = table.select(~table["withheld"])
    sentences = []
    if is_private is None:
        sentences.append(
            "The source of the noise: the published files do not state whether it came from the operating system, and "
            "seeded noise gives no privacy."
        )
    if len(sampled):
        level = float((sampled["constrained_dp_factor"] * sampled["epsilon"]).max())
        others = int(sampled["min_degree_of_protection"].min()) - 1
        sentences.append(
            "Locations that the policy does not connect: for any two possible locations, a released point may be "
            f"{describe_likelihood_ratio(level, 'from one', 'from the other')}. At the least protected timestep, a "
            f"location was protected by {others:,} other location{'s' if others != 1 else ''}: a released point "
            "distinguishes them by no more than the guarantee for connected locations."
        )
    day = max(table["epsilon_24h"][~np.isnan(table["epsilon_24h"])], default=0.0)
    sentences.append(
        "Many releases: they accumulate, as the second sentence above states. The largest total epsilon of a user "
        f"within 24 hours was {day:.4g}. For two trajectories that the guarantee covers, the points of that day are "
        f"{_format_ratio(float(day))}."
    )
    sentences.append(
        "Other releases of the same user: this page covers the file or the store of sessions that it was made from. "
        "Releases elsewhere, including those of the same command without a session, add to both sentences."
    )
    if settings.outside == "clamp":
        sentences.append(
            "Locations outside the region: a user there is released as if at the nearest location of the region."
        )
    else:
        sentences.append("Absence from the region: timesteps outside it have no release, which reveals them.")
    sentences.append("Times and names: the file contains the recorded times and the names of users unchanged.")
    if not settings.caps:
        sentences.append(
            "Events that last, such as a visit within a week: 'dphmm audit event' computes the disclosure of one."
        )
    sentences.append(
        "The distances and odds: they are expectations under the model. They may differ for a user who does not move "
        "as the model assumes. An adversary with more knowledge, such as the user's habits, may have a smaller error."
    )
    for name, text in (
        ("unprotected", "releases of locations that the policy leaves unprotected: they are released unchanged."),
        ("singleton", "releases at timesteps with a single possible location, which no noise can protect."),
    ):
        count = int(sampled[name].sum())
        if count:
            sentences.append(f"{count:,} {text}")
    count = int((table["num_ignored_releases"] > 0).sum())
    if count:
        sentences.append(
            f"The metrics of {count:,} rows for an adversary who remembers releases before a gap: they were computed "
            "for an adversary who ignores them."
        )
    return tuple(sentences)


_MAX_LISTED_USERS = 8


def _build_provenance_rows(table: ReleaseTable, engine: Releaser) -> Rows:
    settings = engine.settings
    model = engine.model
    sampled = table.select(~table["withheld"])
    users = sorted(set(table["user"].tolist()))
    budgets = "none: every timestep was withheld"
    if len(sampled):
        low = sampled["epsilon"].min()
        high = sampled["epsilon"].max()
        budgets = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    guarantee = (model.provenance or {}).get("guarantee")
    names = ", ".join(users[:_MAX_LISTED_USERS])
    more = f" and {len(users) - _MAX_LISTED_USERS:,} more" if len(users) > _MAX_LISTED_USERS else ""
    precision = "exact in finite precision" if table["is_exact"].all() else "in floating point"
    trust = "" if settings.mechanism in MECHANISMS else "; its privacy loss is trusted, not proven"
    return (
        ("users", f"{len(users):,}: {names}{more}"),
        ("from, to (UTC)", f"{iso_time(table['time'].min())}, {iso_time(table['time'].max())}"),
        ("released points", f"{len(sampled):,}; {len(table) - len(sampled):,} timesteps were withheld"),
        ("policy", f"{format_policy_label(settings.policy)}: connects {_describe_connections(settings)}"),
        ("ε of a release", budgets),
        ("noise", f"{settings.mechanism}, {precision}{trust}"),
        ("states of the model", f"{model.size:,} ({type(model.space).__name__.lower()}), every {model.step:g} s"),
        ("guarantee for the training users", guarantee if isinstance(guarantee, str) else "unknown"),
        ("hashes of settings and model", f"SHA-256 {settings.content_hash[:16]}, {model.content_hash[:16]}"),
    )
