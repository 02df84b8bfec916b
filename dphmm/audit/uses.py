"""Three uses of released locations: monitoring, epidemic analysis and contact tracing.

The uses are those of Cao, Takagi, Xiao, Xiong and Yoshikawa, *PANDA: Policy-aware Location Privacy for Epidemic
Surveillance* (arXiv:2005.00186). The definitions of the errors and the transmission model are those of this package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_integers
from dphmm.errors import InvalidInputError, PolicyError
from dphmm.formatting import Result, exported
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy
from dphmm.validation import Integers, Interval, PositiveInt, check_arguments

# The quantiles of a two-sided 95 % interval.
_QUANTILES = (0.025, 0.975)
# The bootstrap is fixed: two settings that are compared are evaluated on identical samples of users.
_SEED = 0


@dataclass(frozen=True, eq=False)
class UseMetric(Result):
    """A measure with its 95 % bootstrap interval over the users of the sample.

    Parameters
    ----------
    value
        The measure. NaN if it is not defined, as is the precision if no co-location was found.
    low, high
        The percentile interval. Whole users are resampled. It describes other samples of equally many users, not the
        noise of another run, and is too narrow for few users. NaN if the measure is undefined in all samples.
    """

    value: float = field(metadata=exported())
    low: float = field(metadata=exported())
    high: float = field(metadata=exported())


@dataclass(frozen=True, eq=False)
class UsesAudit(Result):
    """Errors of three uses of releases, compared with the true locations. Private.

    Parameters
    ----------
    num_users, num_timesteps
        Size of the sample.
    num_contacts
        The number of true co-locations of patients, from which the recall is computed.
    monitoring_error
        The sum over areas and periods of the absolute error of the mean number of users, divided by the sum of the true
        means. Areas without users count in the numerator, so the error is defined where a true count is zero.
        If all releases are withheld, it is 1. It is 2 if all users are reported in wrong, empty areas.
    reproduction_number, released_reproduction_number
        The reproduction number of the true and of the released locations, see `compute_reproduction_number`.
    reproduction_error
        The released reproduction number divided by the true one, minus 1. Negative values are underestimates. NaN if
        no users meet.
    tracing_precision, tracing_recall
        The share of co-locations found in the releases that are true, and the share of true co-locations that are
        found. A co-location is a pair of users, at least one of them a patient, at the same state and timestep.
    """

    num_users: int = field(metadata=exported())
    num_timesteps: int = field(metadata=exported())
    num_contacts: int = field(metadata=exported())
    monitoring_error: UseMetric = field(metadata=exported())
    reproduction_number: float = field(metadata=exported())
    released_reproduction_number: float = field(metadata=exported())
    reproduction_error: UseMetric = field(metadata=exported())
    tracing_precision: UseMetric = field(metadata=exported())
    tracing_recall: UseMetric = field(metadata=exported())


@check_arguments
def compute_reproduction_number(
    states: npt.ArrayLike,
    transmission: Annotated[float, Interval(0, 1)] = 0.05,
    infectious_steps: PositiveInt = 24,
    slots: npt.ArrayLike | None = None,
) -> float:
    """Compute the expected number of infections that one infectious user causes.

    The model is a contact model of the SEIR family. An infectious user infects each susceptible user who is at the same
    state, independently with probability `transmission` at every timestep, and recovers after `infectious_steps`
    timesteps. All other users are susceptible. A user who meets another at ``n`` of these timesteps therefore infects
    them with probability ``1 - (1 - transmission) ** n``. The number is the sum over the other users, averaged over the
    infectious user and over all intervals of `infectious_steps` timesteps. A latent period shifts the interval and
    does not change the average.

    Parameters
    ----------
    states
        ``(U, T)``: the state of each user at each timestep, negative without a location. Such users meet nobody.
    transmission
        The probability of an infection per contact and timestep.
    infectious_steps
        The number of timesteps for which a user is infectious. At most the number from the first to the last.
    slots
        ``(T,)``: the increasing timesteps of the columns. At timesteps between them no user has a location. Defaults to
        consecutive timesteps.

    Returns
    -------
    float
        From 0 to ``U - 1``. If all users always meet, ``(U - 1) * (1 - (1 - transmission) ** infectious_steps)``.

    Raises
    ------
    InvalidInputError
        If `states` has fewer than two users, or covers fewer timesteps than `infectious_steps`, or `slots` do not
        increase.

    Examples
    --------
    >>> compute_reproduction_number([[0, 0], [0, 1], [0, 0]], transmission=0.5, infectious_steps=2)
    1.1666666666666667
    """
    users = _as_states(states, "states")
    steps = _as_slots(slots, users, infectious_steps)
    return float(_compute_infections(users, steps, transmission, infectious_steps).sum() / len(users))


@check_arguments
def open_visited_states(policy: PolicyLike, visited: npt.ArrayLike) -> PolicyGraph:
    """Return the policy that contact tracing uses once a user is diagnosed.

    The states that the patient visited lose their edges and become open: the engine releases them unchanged, which
    finds all users there. The price is that every user at such a state discloses it exactly, including users who did
    not meet the patient, and that any other release discloses that the user is not at one of these states.

    Parameters
    ----------
    policy
        The policy before the diagnosis.
    visited
        ``(V,)``: the indices of the states that the patient visited. They are public afterwards.

    Returns
    -------
    PolicyGraph
        The updated policy. Other states may lose their last edge. Unlike open states, the engine protects them by its
        repair if it can.

    Raises
    ------
    PolicyError
        If a state does not exist.

    Examples
    --------
    >>> from dphmm import PolicyGraph
    >>> updated = open_visited_states(PolicyGraph.complete(4), [3])
    >>> updated.edge_array().tolist(), updated.open.tolist()
    ([[0, 1], [0, 2], [1, 2]], [False, False, False, True])
    """
    graph = as_policy(policy, len(policy))
    states = as_integers(visited, "visited", PolicyError)
    edges = graph.edge_array()
    kept = edges[~np.isin(edges, states).any(axis=1)]
    return PolicyGraph.from_edges(graph.size, kept).with_open(np.union1d(states, np.flatnonzero(graph.open)))


@check_arguments
def audit_uses(
    true: npt.ArrayLike,
    released: npt.ArrayLike,
    *,
    areas: npt.ArrayLike | None = None,
    patients: npt.ArrayLike | None = None,
    transmission: Annotated[float, Interval(0, 1)] = 0.05,
    infectious_steps: PositiveInt = 24,
    slots: npt.ArrayLike | None = None,
    period_steps: PositiveInt = 1,
    resamples: Annotated[int, Integers(100)] = 1000,
) -> UsesAudit:
    """Compare monitoring, epidemic analysis and contact tracing from releases with the truth.

    For contact tracing, PANDA updates the policy once a user is diagnosed, see `open_visited_states`.

    Parameters
    ----------
    true
        ``(U, T)``: the true state of each user at each timestep, negative without a location in the region.
    released
        ``(U, T)``: the states of the releases or of the estimates, negative if the timestep was withheld. A release
        where there is no true location is an error of all three uses.
    areas
        ``(N,)``: the area of each state, for monitoring. Defaults to one area per state.
    patients
        The indices of diagnosed users, for contact tracing. Defaults to all users.
    transmission, infectious_steps, slots
        See `compute_reproduction_number`.
    period_steps
        The number of timesteps over which the counts of monitoring are averaged, such as those of an hour. Periods
        begin at multiples of it.
    resamples
        The number of bootstrap samples of users. Two copies of one user in a sample do not meet.

    Returns
    -------
    UsesAudit
        The result. Private.

    Raises
    ------
    InvalidInputError
        If the shapes differ, there are fewer than two users, there is no true location, a state has no area, a patient
        is not a user, or slots do not increase.
    """
    actual = _as_states(true, "true")
    sent = _as_states(released, "released")
    if actual.shape != sent.shape:
        raise InvalidInputError(f"released must have the shape of true, {actual.shape}, got {sent.shape}")
    if not (actual >= 0).any():
        raise InvalidInputError("true must contain at least one location, got only negative states")
    columns = _as_slots(slots, actual, infectious_steps)
    is_patient = _get_patients(patients, len(actual))
    size = len(actual)
    weights = draw_user_weights(size, resamples)
    periods = columns // period_steps
    monitoring = _compute_monitoring_errors(*_get_areas(actual, sent, areas), periods, weights)
    if not np.isnan(monitoring[1:]).all():
        # Resampling adds noise to every count, which raises the absolute errors: without this shift, an interval for
        # many areas may lie above the error of every sample of users. Errors are not negative.
        shift = monitoring[0] - np.nanmean(monitoring[1:])
        monitoring[1:] = np.maximum(monitoring[1:] + shift, 0)
    infections, sent_infections = (
        _compute_infections(states, columns, transmission, infectious_steps) for states in (actual, sent)
    )
    hits, num_actual, num_sent = _count_co_locations(actual, sent)
    traced = np.triu(is_patient[:, None] | is_patient, 1)
    hits, num_actual, num_sent = (_sum_pairs(counts * traced, weights) for counts in (hits, num_actual, num_sent))
    numbers = [_sum_pairs(matrix, weights) for matrix in (infections, sent_infections)]
    return UsesAudit(
        size,
        actual.shape[1],
        round(float(num_actual[0])),
        get_use_metric(monitoring),
        float(numbers[0][0] / size),
        float(numbers[1][0] / size),
        get_use_metric(divide(numbers[1], numbers[0]) - 1),
        get_use_metric(divide(hits, num_sent)),
        get_use_metric(divide(hits, num_actual)),
    )


def draw_user_weights(size: int, resamples: int = 1000) -> FloatArray:
    """Return the number of times that each user occurs in each bootstrap sample.

    Parameters
    ----------
    size
        The number of users.
    resamples
        The number of samples.

    Returns
    -------
    ndarray of float, shape (1 + resamples, size)
        The first row is the sample itself. Equal arguments give equal weights.
    """
    samples = np.random.default_rng(_SEED).multinomial(size, np.full(size, 1 / size), resamples)
    return np.vstack([np.ones(size), samples])


def get_use_metric(values: FloatArray) -> UseMetric:
    """Return the first value with the percentile interval of the others.

    Parameters
    ----------
    values
        ``(1 + R,)``: the measure of each row of `draw_user_weights`, NaN where it is undefined.
    """
    defined = values[1:][~np.isnan(values[1:])]
    low, high = np.quantile(defined, _QUANTILES).tolist() if len(defined) else (float("nan"), float("nan"))
    return UseMetric(float(values[0]), low, high)


def _as_states(values: npt.ArrayLike, name: str) -> IntArray:
    """Return states as a matrix of integers with -1 for missing ones."""
    states = as_integers(values, name)
    if states.ndim != 2 or len(states) < 2 or not states.shape[1]:
        raise InvalidInputError(f"{name} must have two users or more and at least one timestep, got {states.shape}")
    return np.maximum(states, -1)


def _as_slots(slots: npt.ArrayLike | None, states: IntArray, infectious_steps: int) -> IntArray:
    """Return the timestep of each column, and check that they cover an infection."""
    columns = np.arange(states.shape[1]) if slots is None else as_integers(slots, "slots")
    if columns.shape != states.shape[1:] or (np.diff(columns) <= 0).any():
        raise InvalidInputError(f"slots must be {states.shape[1]} increasing integers, got shape {columns.shape}")
    covered = int(columns[-1] - columns[0]) + 1
    if infectious_steps > covered:
        raise InvalidInputError(
            f"infectious_steps must be at most the number of timesteps, {covered}, got {infectious_steps}"
        )
    return columns


def _get_patients(patients: npt.ArrayLike | None, size: int) -> BoolArray:
    """Return the mask of the patients, all users by default."""
    if patients is None:
        return np.ones(size, dtype=np.bool_)
    indices = as_integers(patients, "patients")
    if indices.ndim != 1 or not len(indices) or indices.min() < 0 or indices.max() >= size:
        raise InvalidInputError(f"patients must be indices of users from 0 to {size - 1}, got {indices.tolist()}")
    return np.isin(np.arange(size), indices)


def _get_areas(actual: IntArray, sent: IntArray, areas: npt.ArrayLike | None) -> tuple[IntArray, IntArray]:
    """Return the areas of states, with -1 for missing ones."""
    if areas is None:
        return actual, sent
    area = as_integers(areas, "areas")
    largest = int(max(actual.max(), sent.max()))
    if area.ndim != 1 or len(area) <= largest or area.min() < 0:
        raise InvalidInputError(f"areas must have a non-negative area for each state up to {largest}, got {area.shape}")
    actual_areas, sent_areas = (np.where(states >= 0, area[states], -1) for states in (actual, sent))
    return actual_areas, sent_areas


def _compute_monitoring_errors(actual: IntArray, sent: IntArray, periods: IntArray, weights: FloatArray) -> FloatArray:
    """Return the relative error of counts for each row of weights ``(R, U)``."""
    absolute = np.zeros(len(weights))
    users = np.arange(len(actual))[:, None]
    for columns in np.split(np.arange(len(periods)), np.flatnonzero(np.diff(periods)) + 1):
        # Each user's timesteps in an area, released minus true: their weighted sum is the error of the counts.
        occupied, index = np.unique(np.hstack([sent[:, columns], actual[:, columns]]), return_inverse=True)
        sent_index, true_index = np.hsplit(index.reshape(len(users), -1), 2)
        differences = np.zeros((len(users), len(occupied)))
        np.add.at(differences, (users, sent_index), 1)
        np.add.at(differences, (users, true_index), -1)
        absolute += np.abs(weights @ differences[:, occupied >= 0]).sum(axis=1)
    return divide(absolute, weights @ (actual >= 0).sum(axis=1))


def _compute_infections(states: IntArray, slots: IntArray, transmission: float, steps: int) -> FloatArray:
    """Return ``(U, U)`` mean probabilities that one user infects another."""
    size = len(states)
    infections = np.zeros((size, size))
    last = int(slots[-1]) - steps + 1
    for user in range(size):
        meets = (states == states[user]) & (states[user] >= 0)
        meets[user] = False
        columns = np.flatnonzero(meets.any(axis=0))
        sums = np.zeros((size, len(columns) + 1), dtype=np.int64)
        np.cumsum(meets[:, columns], axis=1, out=sums[:, 1:])
        # The contacts within an interval change only where its first timestep passes a contact or its end reaches one,
        # so intervals of equal contacts are evaluated once: data of years have few timesteps with contacts.
        met = slots[columns]
        starts = np.unique(np.clip(np.concatenate([slots[:1], met + 1, met - steps + 1]), slots[0], last))
        num_equal = np.diff(np.append(starts, last + 1))
        contacts = sums[:, np.searchsorted(met, starts + steps)] - sums[:, np.searchsorted(met, starts)]
        infections[user] = (1 - (1 - transmission) ** contacts) @ num_equal / (last + 1 - slots[0])
    return infections


def _count_co_locations(actual: IntArray, sent: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return ``(U, U)`` numbers of co-locations: true and released, true, and released."""
    size = len(actual)
    counts = np.zeros((3, size, size))
    for user in range(size):
        is_true = (actual == actual[user]) & (actual[user] >= 0)
        is_sent = (sent == sent[user]) & (sent[user] >= 0)
        counts[:, user] = [mask.sum(axis=1) for mask in (is_true & is_sent, is_true, is_sent)]
    return counts[0], counts[1], counts[2]


def _sum_pairs(matrix: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the sums over pairs of different users for each row of weights."""
    return np.asarray(((weights @ matrix) * weights).sum(axis=1))


def divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divide arrays of equal length, with NaN where the denominator is zero."""
    shares = np.full(len(numerator), np.nan)
    return np.asarray(np.divide(numerator, denominator, out=shares, where=denominator > 0))
