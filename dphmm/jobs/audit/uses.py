"""Three uses of releases: monitoring, epidemic analysis and contact tracing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from dphmm.arrays import FloatArray, IntArray, as_integers
from dphmm.audit.uses import (
    UseMetric,
    UsesAudit,
    audit_uses,
    divide,
    draw_user_weights,
    get_use_metric,
    open_visited_states,
)
from dphmm.errors import ConfigurationError
from dphmm.flows.areas import Areas
from dphmm.formatting import Result, exported
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.model.model import MarkovModel
from dphmm.model.path_sampling import sample_contexts
from dphmm.model.point_estimate import cell_rms_distance
from dphmm.random import derive_seed
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.ledger import DAY_SECONDS
from dphmm.space.grid import Grid
from dphmm.validation import (
    Integers,
    Interval,
    PositiveInt,
    PositiveNumber,
    SeedOrGenerator,
    check_arguments,
    check_arguments_as,
)


@check_arguments_as(ConfigurationError)
@dataclass(frozen=True)
class UsesSettings(Result):
    """Assumptions of this package for the uses, see `dphmm.audit.audit_uses`.

    Parameters
    ----------
    area_cells
        The side of an area of monitoring in cells of the grid. Named places are one area each.
    transmission
        The probability of an infection per hour of contact.
    infectious_hours
        The time for which a user is infectious. Limited to the time of the data.
    """

    area_cells: Annotated[int, Integers(1)] = field(default=4, metadata=exported())
    transmission: Annotated[float, Interval(0, 1)] = field(default=0.05, metadata=exported("transmission_per_hour"))
    infectious_hours: PositiveNumber = field(default=24.0, metadata=exported())


@dataclass(frozen=True, eq=False)
class ReleasedUses(Result):
    """Errors of three uses with their assumptions. Private if the users are real.

    Parameters
    ----------
    audit
        The errors.
    settings
        The assumptions, with the infectious time that the data allow.
    """

    audit: UsesAudit
    settings: UsesSettings

    def describe(self) -> str:
        """Describe the sample and the transmission model.

        Returns
        -------
        str
            A sentence or two.
        """
        audit, settings = self.audit, self.settings
        side = settings.area_cells
        areas = "one state" if side == 1 else f"{side} × {side} cells"
        text = (
            f"Uses: {audit.num_users:,} users, {audit.num_contacts:,} true contacts to trace; areas of {areas}; "
            f"true reproduction number {audit.reproduction_number:.3g}, at "
            f"{100 * settings.transmission:g} % transmission per hour of contact and {settings.infectious_hours:g} "
            "infectious hours."
        )
        return text if audit.num_contacts else f"{text} Without contacts, contact tracing is not measured."

    def _derive_fields(self) -> dict[str, Any]:
        return {**self.audit.to_dict(), **self.settings.to_dict()}


def measure_uses(
    model: MarkovModel,
    settings: UsesSettings,
    slots: IntArray,
    true: IntArray,
    released: IntArray,
    patients: IntArray | None = None,
) -> ReleasedUses:
    """Measure the uses of released states.

    Parameters
    ----------
    model
        The model, which defines the timestep and the locations of states.
    settings
        The assumptions.
    slots
        ``(T,)``: the timesteps, increasing.
    true, released
        ``(U, T)``: the states, negative without a location and without a release.
    patients
        The indices of diagnosed users. Defaults to all.

    Returns
    -------
    ReleasedUses
        The errors. Counts of monitoring are those of an hour, or of a timestep if it is longer.

    Raises
    ------
    InvalidInputError
        As `dphmm.audit.audit_uses`.
    """
    steps_per_hour = DAY_SECONDS / 24 / model.step
    covered = int(slots[-1] - slots[0]) + 1
    infectious_steps = min(max(1, round(settings.infectious_hours * steps_per_hour)), covered)
    is_grid = isinstance(model.space, Grid)
    audit = audit_uses(
        true,
        released,
        areas=Areas.from_space(model.space, settings.area_cells).district_of if is_grid else None,
        patients=patients,
        # independent infections in each timestep that have the probability of an hour together
        transmission=1 - (1 - settings.transmission) ** (1 / steps_per_hour),
        infectious_steps=infectious_steps,
        slots=slots,
        period_steps=max(1, round(steps_per_hour)),
    )
    # Named places and segments of streets are one area each.
    area_cells = settings.area_cells if is_grid else 1
    return ReleasedUses(
        audit, replace(settings, area_cells=area_cells, infectious_hours=infectious_steps / steps_per_hour)
    )


def align_users(slots: list[IntArray], states: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Align users in time.

    Parameters
    ----------
    slots, states
        The increasing timesteps of each user, and the states at them.

    Returns
    -------
    slots : ndarray of int, shape (T,)
        The timesteps of all users.
    states : ndarray of int, shape (U, T)
        The states, -1 at timesteps of other users only.
    """
    shared = np.unique(np.concatenate(slots))
    aligned = np.full((len(slots), len(shared)), -1)
    for row, user_slots, user_states in zip(aligned, slots, states, strict=True):
        row[np.searchsorted(shared, user_slots)] = user_states
    return shared, aligned


@dataclass(frozen=True, eq=False)
class UsesComparison(Result):
    """Uses of the releases of one setting. Private if the users are real.

    Parameters
    ----------
    settings
        The setting.
    mean_error
        The mean distance between estimates and true locations in kilometres, with equal weight for each location. The
        location is uniform in the cell of the true state, see `dphmm.model.point_estimate.Inference.mean_error`.
    uses
        Errors of the three uses, with contacts of the patients for contact tracing.
    updated_precision, updated_recall
        Precision and recall of contact tracing if all users are released with the policy updated for the patients, see
        `dphmm.audit.open_visited_states`.
    disclosed_share
        The share of the locations of all users that the updated policy discloses exactly.
    """

    settings: ReleaseSettings
    mean_error: UseMetric
    uses: ReleasedUses
    updated_precision: UseMetric
    updated_recall: UseMetric
    disclosed_share: float

    def _derive_fields(self) -> dict[str, Any]:
        return {
            "policy": self.settings.policy,
            "epsilon": self.settings.epsilon,
            "mean_error_m": {name: 1000 * value for name, value in vars(self.mean_error).items()},
            **self.uses.to_dict(),
            "updated_tracing_precision": self.updated_precision,
            "updated_tracing_recall": self.updated_recall,
            "disclosed_share": self.disclosed_share,
        }


@check_arguments
def sample_users(
    model: MarkovModel,
    num_users: Annotated[int, Integers(2)],
    steps: PositiveInt,
    first: int = 0,
    rng: SeedOrGenerator = 0,
) -> IntArray:
    """Sample the states of users from a model.

    Parameters
    ----------
    model
        The model.
    num_users, steps
        The number of users and of timesteps.
    first
        The first timestep, counted from 1970.
    rng
        Seed or generator. Equal seeds give equal users.

    Returns
    -------
    ndarray of int, shape (num_users, steps)
        The states, -1 outside the region.

    Examples
    --------
    >>> from dphmm import MarkovModel
    >>> sample_users(MarkovModel([[0.9, 0.1], [0.2, 0.8]], [0.5, 0.5]), 2, 5).shape
    (2, 5)
    """
    contexts = sample_contexts(model, num_users, steps, first, rng).astype(np.int64)
    return np.where(contexts < model.size, contexts, -1)


@check_arguments
def compare_uses(
    model: Model,
    settings: Sequence[ReleaseSettings],
    states: npt.ArrayLike,
    *,
    first: int = 0,
    num_patients: PositiveInt = 1,
    uses: UsesSettings | None = None,
    rng: SeedOrGenerator = 0,
    watch: ProgressCallback = suppress_progress,
) -> tuple[UsesComparison, ...]:
    """Compare the uses of releases of several settings, on identical users and seeds.

    Every user is released at every timestep with a location. The uses are those of the estimates, as for
    `audit_utility`. At small budgets all estimates are near the model's mean, so the users seem to meet there: recall
    alone does not show that contacts are found. If a single state is possible, it is released exactly.

    Parameters
    ----------
    model
        The model, or its file, with state locations and a step.
    settings
        The settings.
    states
        ``(U, T)``: the true states of each user, such as those of `sample_users`, negative without a location.
    first
        The first timestep, counted from 1970.
    num_patients
        The number of diagnosed users, the first ones of `states`. All are diagnosed together.
    uses
        The assumptions.
    rng
        Seed or generator of the noise. Each setting has the same seed.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    tuple of UsesComparison
        One element for each setting.

    Raises
    ------
    ConfigurationError
        If there are no settings, no users, or more patients than users, or a state does not exist.
    DphmmError
        If the model or a policy is invalid, and as `dphmm.audit.audit_uses`.
    """
    seed = derive_seed(rng)
    loaded = load_model(model)
    true = as_integers(states, "states", ConfigurationError)
    if not settings:
        raise ConfigurationError("settings must have at least one element, got none")
    if true.ndim != 2 or len(true) < 2 or not (true >= 0).any() or true.max() >= loaded.size:
        raise ConfigurationError(
            f"states must have two users or more with states below {loaded.size}, got shape {true.shape}"
        )
    if num_patients > len(true):
        raise ConfigurationError(f"num_patients must be at most the number of users, {len(true)}, got {num_patients}")
    graphs = [setting.build_graph(loaded) for setting in settings]  # refused before any release
    patients = np.arange(num_patients)
    visited = np.unique(true[patients][true[patients] >= 0])
    assumptions = uses or UsesSettings()
    slots = first + np.arange(true.shape[1])
    has_location = true >= 0
    weights = draw_user_weights(len(true))
    comparisons = []
    for setting, graph in zip(settings, graphs, strict=True):
        measured = []
        for policy, title in ((graph, "Releasing"), (open_visited_states(graph, visited), "Releasing after update")):
            engine = replace(setting, allow_singleton=True).engine(loaded, policy=policy)
            users = watch(range(len(true)), title, len(true))
            released, errors = _release_users(engine, true, first, seed, users)
            measured.append((measure_uses(loaded, assumptions, slots, true, released, patients), errors))
        (before, errors), (updated, _) = measured
        comparisons.append(
            UsesComparison(
                setting,
                # a user without a location has no errors, and a sample of such users no mean
                get_use_metric(divide(weights @ errors.sum(axis=1), weights @ has_location.sum(axis=1))),
                before,
                updated.audit.tracing_precision,
                updated.audit.tracing_recall,
                float(np.isin(true, visited)[has_location].mean()),
            )
        )
    return tuple(comparisons)


def _release_users(
    engine: Releaser, true: IntArray, first: int, seed: int, users: Iterable[int]
) -> tuple[IntArray, FloatArray]:
    """Return the states nearest to the estimates ``(U, T)``, and errors in kilometres.

    Without a location, the state is -1 and the error 0.
    """
    released = np.full(true.shape, -1)
    errors = np.zeros(true.shape)
    points = engine.measurements.points
    tree = cKDTree(points)
    for user in users:
        releaser = engine.spawn(np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(user,))))
        steps = np.flatnonzero(true[user] >= 0)
        if not len(steps):
            continue
        releaser.restart(first=first + int(steps[0]))
        gaps = np.diff(steps, prepend=steps[0] - 1).tolist()
        records = [
            releaser.release(state, steps=gap) for state, gap in zip(true[user, steps].tolist(), gaps, strict=True)
        ]
        estimates = np.array([record.estimate for record in records])
        released[user, steps] = tree.query(estimates)[1]
        distances = np.linalg.norm(estimates - points[true[user, steps]], axis=1)
        errors[user, steps] = np.hypot(distances, cell_rms_distance(engine.cell))
    return released, errors
