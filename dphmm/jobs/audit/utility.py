"""Utility of releases: errors, coverage of radii, mobility statistics, three uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from dphmm.arrays import FloatArray, IntArray
from dphmm.audit.empirical_epsilon import CONFIDENCE, clopper_pearson_interval
from dphmm.errors import ConfigurationError
from dphmm.formatting import Result
from dphmm.jobs.audit.uses import ReleasedUses, UsesSettings, align_users, measure_uses
from dphmm.jobs.batch.workers import Engine, Processes
from dphmm.jobs.input_data import Data, DataLike, UserBlock, iterate_blocks
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.model.synthesis import classify_hours, split_paths
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.jobs.release.stored import UserFile, UserRows, compute_slots, get_user_name, locate_user_releases
from dphmm.model import MarkovModel
from dphmm.model.mobility_statistics import Crowd, compare_crowds, jensen_shannon
from dphmm.model.radius_factors import COVERAGE, USER_COVERAGE
from dphmm.validation import check_arguments
from dphmm.writers import ReleaseTable


@dataclass(frozen=True, eq=False)
class UserUtility(Result):
    """Errors of one user's estimates. Private.

    Parameters
    ----------
    user
        The user.
    errors_km
        ``(T,)``: the distances between estimates and fixes, kilometres.
    stated_errors_km
        ``(T,)``: the published expected errors of the estimates, kilometres.
    coverage
        The share of timesteps at which the fix lies within the calibrated 90 % radius. NaN if the model has no
        calibrated radii.
    """

    user: str
    errors_km: FloatArray = field(repr=False)
    stated_errors_km: FloatArray = field(repr=False)
    coverage: float

    def _derive_fields(self) -> dict[str, Any]:
        errors = {
            "mean_stated_error_m": self.stated_errors_km.mean(),
            "mean_error_m": self.errors_km.mean(),
            "median_error_m": np.median(self.errors_km),
            "error_quantile_90_m": np.quantile(self.errors_km, 0.9),
        }
        errors_m = {name: 1000 * value for name, value in errors.items()}
        return {"user": self.user, "num_timesteps": len(self.errors_km), **errors_m, "coverage_90": self.coverage}


@dataclass(frozen=True, eq=False)
class UtilityAudit(Result):
    """Utility of releases compared with the truth. Private: it uses true locations.

    Parameters
    ----------
    users
        One element for each released user.
    measures
        Measures of `dphmm.model.mobility_statistics` between estimates and true locations at the same timesteps. They
        are divergences from 0 (equal) to 1, except ``top_places`` (a share) and ``rank_correlation``, for which 1 is
        best. Visits use all timesteps in the region. The other measures use runs of two or more consecutive timesteps
        and are missing without such runs.
    uses
        Errors of monitoring, epidemic analysis and contact tracing from the estimates. None if they were not requested.
    """

    users: tuple[UserUtility, ...] = field(repr=False)
    measures: Mapping[str, float]
    uses: ReleasedUses | None = None

    @property
    def mean_error_km(self) -> float:
        """The mean error of estimates in kilometres, with equal weight for each user."""
        return float(np.mean([user.errors_km.mean() for user in self.users]))

    @property
    def mean_stated_error_km(self) -> float:
        """The mean of the published errors in kilometres, with equal weight for each user."""
        return float(np.mean([user.stated_errors_km.mean() for user in self.users]))

    @property
    def error_correlation(self) -> float:
        """The correlation over users of the mean stated error with the mean error.

        NaN for fewer than three users.
        """
        means = np.array([(user.stated_errors_km.mean(), user.errors_km.mean()) for user in self.users])
        if len(means) < 3 or (means.std(axis=0) == 0).any():
            return float("nan")
        return float(np.corrcoef(means.T)[0, 1])

    @property
    def mean_coverage(self) -> tuple[float, float, float] | None:
        """The mean coverage of calibrated radii over users, with its interval. None without radii.

        The 99 % interval is Student's over users and inaccurate for few of them. For one user it is [0, 1].
        """
        coverage = np.array([user.coverage for user in self.users if not np.isnan(user.coverage)])
        if not len(coverage):
            return None
        half = np.inf
        if len(coverage) > 1:
            quantile = stdtrit(len(coverage) - 1, (1 + CONFIDENCE) / 2)
            half = quantile * coverage.std(ddof=1) / np.sqrt(len(coverage))
        mean = float(coverage.mean())
        return mean, max(0.0, float(mean - half)), min(1.0, float(mean + half))

    @property
    def mostly_covered(self) -> tuple[float, float, float] | None:
        """The share of users with a coverage of at least `USER_COVERAGE`, with its exact interval."""
        coverage = np.array([user.coverage for user in self.users if not np.isnan(user.coverage)])
        if not len(coverage):
            return None
        count = int((coverage >= USER_COVERAGE).sum())
        return count / len(coverage), *clopper_pearson_interval(count, len(coverage))

    def describe(self) -> str:
        """Summarize the audit in some sentences.

        Returns
        -------
        str
            Plain text.
        """
        count = len(self.users)
        text = (
            f"The mean error of estimates is {1000 * self.mean_error_km:,.0f} m, the mean stated error "
            f"{1000 * self.mean_stated_error_km:,.0f} m ({count:,} user{'s' * (count > 1)})."
        )
        coverage = self.mean_coverage
        mostly = self.mostly_covered
        if coverage is None or mostly is None:
            return f"{text} The model has no calibrated radii."
        shares, users = ([f"{100 * share:.0f}" for share in interval] for interval in (coverage, mostly))
        return (
            f"{text} The calibrated {100 * COVERAGE:.0f} % radius contains the true location at {shares[0]} % of "
            f"timesteps, averaged over users ({100 * CONFIDENCE:g} % interval {shares[1]} to {shares[2]} %). For "
            f"{users[0]} % of the users it contains the location at {100 * USER_COVERAGE:.0f} % of timesteps or more "
            f"({users[1]} to {users[2]} %)."
        )

    def _derive_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "private": True,
            "in_words": self.describe(),
            "mean_error_m": 1000 * self.mean_error_km,
            "mean_stated_error_m": 1000 * self.mean_stated_error_km,
            "error_correlation": self.error_correlation,
        }
        for name, interval in (("coverage_90", self.mean_coverage), ("users_mostly_covered", self.mostly_covered)):
            bounds = interval or (None, None, None)
            fields |= dict(zip((name, f"min_{name}", f"max_{name}"), bounds, strict=True))
        uses = {} if self.uses is None else {"uses": self.uses}
        return {**fields, "measures": self.measures, **uses, "users": self.users}


@check_arguments
def audit_utility(
    source: str | Path,
    model: Model,
    true: DataLike,
    *,
    users: Sequence[str] = (),
    uses: UsesSettings | None = None,
    engine: Engine | None = None,
    watch: ProgressCallback = suppress_progress,
) -> UtilityAudit:
    """Audit the utility of releases, as ``dphmm audit utility`` does.

    Parameters
    ----------
    source
        A result of `dphmm.jobs.release` or `dphmm.jobs.batch`, or a store of sessions, with rows in any order. Of
        several releases of a timestep the latest counts; at equal times this is the last row.
    model
        The model of the releases.
    true
        The released trajectories. The truth at a timestep is the fix itself, not its cell.
    users
        Users to include. Defaults to all released users.
    uses
        The assumptions for the errors of three uses, at least two users. Users count at the timesteps of their releases
        only, so gaps are neither contacts nor errors. Users without a release are omitted. By default the uses are not
        measured.
    engine
        Workers, such as `dphmm.jobs.batch.workers.Processes` or a Dask cluster, to which true locations are sent. They
        read the files of a batch themselves, so they must see its folder under the same path. Defaults to this process.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    UtilityAudit
        The result. Private.

    Raises
    ------
    ConfigurationError
        If there are no releases, there is no fix at the timestep of a release, or uses are requested of a single user
        or of users outside the region.
    DphmmError
        See `dphmm.jobs.read_released`, and if the model or the data are invalid.
    """
    learned = load_model(model)
    space = learned.space
    released = locate_user_releases(source, learned, users)
    if not released:
        raise ConfigurationError(f"{get_user_name(source)} must contain at least one release")
    if uses is not None and len(released) < 2:
        raise ConfigurationError("uses must have at least two released users, got 1")
    tracks = (track for track in Data.from_any(true).with_region(space).stream([]) if track.user in released)
    tasks = (
        _UtilityTask(block, tuple(released[track.user] for track in block.trajectories))
        for block in iterate_blocks(tracks)
    )
    crew = Processes(1) if engine is None or len(released) == 1 else engine
    comparisons = dict[str, _Comparison]()
    visits = np.zeros((2, space.size))
    crowds = None
    for block_comparisons, block_visits, block_crowds in watch(
        crew.run(partial(_compare_block, learned, uses is not None), tasks), "Comparing"
    ):
        comparisons |= block_comparisons
        visits += block_visits
        if block_crowds is not None:
            crowds = block_crowds if crowds is None else (crowds[0] + block_crowds[0], crowds[1] + block_crowds[1])
    for name in released:
        if name not in comparisons:
            raise _build_missing_location_error(name)
    in_order = [comparisons[name] for name in released]
    measures = {"visits": jensen_shannon(*visits)} if visits.any() else {}
    if crowds is not None:
        measures = compare_crowds(*crowds) | measures
    return UtilityAudit(
        tuple(comparison.utility for comparison in in_order),
        measures,
        None
        if uses is None
        else _measure_released_uses(
            learned, uses, [part.slots for part in in_order], [(part.states, part.estimated) for part in in_order]
        ),
    )


@dataclass(frozen=True, eq=False)
class _UtilityTask:
    """A block of users and their releases, in the order of the block."""

    block: UserBlock
    releases: tuple[UserFile | UserRows, ...]


class _Comparison(NamedTuple):
    """The utility of a user.

    If uses are measured, also the slots with the true and the estimated states.
    """

    utility: UserUtility
    slots: IntArray
    states: IntArray
    estimated: IntArray


def _compare_block(
    model: MarkovModel, keeps_states: bool, task: _UtilityTask
) -> tuple[dict[str, _Comparison], FloatArray, tuple[Crowd, Crowd] | None]:
    """Compare the users of a block, and count their visits and paths.

    The visits and crowds of estimates come first. All sums are of integers, so the blocks may be added in any order.
    """
    space = model.space
    comparisons = {}
    visits = np.zeros((2, space.size))
    runs = list[tuple[IntArray, IntArray]]()
    first_slots = []
    for trajectory, released in zip(task.block.trajectories, task.releases, strict=True):
        name = trajectory.user
        fixes = trajectory.resample(model.step)
        rows = released.read()
        # Files may be in any order, and a rewound session is not in order of time.
        order = np.argsort(rows["time"], kind="stable")
        slots = compute_slots(rows, model)[order]
        # keep the last release of each timestep
        order = order[np.append(slots[1:] != slots[:-1], True)]
        rows = ReleaseTable({column: values[order] for column, values in rows.columns.items()})
        slots = np.unique(slots)
        at = np.searchsorted(fixes.slots, slots)
        if at[-1] == len(fixes.slots) or (fixes.slots[at] != slots).any():
            raise _build_missing_location_error(name)
        estimate = [rows[f"estimate_{end}"] for end in ("latitude", "longitude")]
        truth = [fixes.latitude[at], fixes.longitude[at]]
        planes = [space.projection.to_plane(*coordinates) for coordinates in (estimate, truth)]
        errors_km = np.linalg.norm(planes[0] - planes[1], axis=1)
        coverage = _compute_coverage(errors_km, rows["calibrated_radius_90_m"] / 1000)
        utility = UserUtility(name, errors_km, rows["estimate_error_m"] / 1000, coverage)
        states = space.locate(*truth)
        estimated = space.find_nearest_states(*estimate)
        for counts, visited in zip(visits, (estimated, states), strict=True):
            counts += np.bincount(visited[states >= 0], minlength=space.size)
        for _, first, run in split_paths(0, slots, states):
            begin = int(np.searchsorted(slots, first))
            runs.append((estimated[begin : begin + len(run)], run))
            first_slots.append(first)
        kept = (slots, states, estimated) if keeps_states else (slots[:0], states[:0], estimated[:0])
        comparisons[name] = _Comparison(utility, *kept)
    if not runs:
        return comparisons, visits, None
    estimated_runs, true_runs = zip(*runs, strict=True)
    classes = classify_hours(model, np.array(first_slots), np.array([len(run) for run in true_runs]))
    crowds = (Crowd.from_paths(paths, space.points, classes) for paths in (estimated_runs, true_runs))
    return comparisons, visits, (next(crowds), next(crowds))


def _build_missing_location_error(user: str) -> ConfigurationError:
    return ConfigurationError(
        f"user {user}: true must have a location at every release; use the data that was released"
    )


def _measure_released_uses(
    model: MarkovModel, settings: UsesSettings, slots: list[IntArray], states: list[tuple[IntArray, IntArray]]
) -> ReleasedUses:
    """Measure the uses of all users, with the true and the estimated states of each."""
    true, estimated = zip(*states, strict=True)
    if all((user_states < 0).all() for user_states in true):
        raise ConfigurationError("true must have a location within the region of the model for uses, got none")
    shared, aligned = align_users(slots, list(true))
    return measure_uses(model, settings, shared, aligned, align_users(slots, list(estimated))[1])


def _compute_coverage(errors_km: FloatArray, radius: FloatArray) -> float:
    """Return the share of errors within the radius, NaN without any radius."""
    has_radius = ~np.isnan(radius)
    return float((errors_km <= radius)[has_radius].mean()) if has_radius.any() else float("nan")
