"""Conformal calibration of errors and radii of estimates, over users."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, cos, isnan, nan, pi, sin

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray
from dphmm.model.model import MarkovModel
from dphmm.model.outside_states import OutsideBelief
from dphmm.model.point_estimate import expected_distance
from dphmm.model.radius_factors import COVERAGE, HOURS_SINCE_RELEASE, USER_COVERAGE, USER_SHARE, CalibratedRadii
from dphmm.model.speed_limit import compute_spacing
from dphmm.space.trajectory import Trajectory

# Radii are not calibrated with fewer users.
MIN_USERS = 20

# Of more users, this many are simulated. The standard error of a share over them is at most 1.6 %.
MAX_USERS = 1_000

_DAY_SECONDS = 86_400
# Longer days are simulated at every second timestep, every third, and so on.
_MAX_DAY_TIMESTEPS = 96
# For each user, noise scale and release rate.
_NUM_DAYS = 2
_NUM_FOLDS = 4
# Scales of the simulated noise, in sides of cells.
_NOISE_SCALES = (2.5, 8.0, 30.0)
# Shares of timesteps with a release.
_RELEASE_RATES = (1.0, 0.1)


def compute_calibrated_radii(
    fit: Callable[[Sequence[int]], MarkovModel],
    tracks: Sequence[Trajectory],
    seed: int = 0,
    run: Callable[[Callable[[Fold], FoldErrors], Iterable[Fold]], Iterable[FoldErrors]] = map,
) -> CalibratedRadii | None:
    """Calibrate the factors of errors and radii by four-fold cross-validation over users.

    Releases of each user are simulated under a model that was learned without them, on randomly selected whole days of
    which a part was in the region: from the first fix to the last, inside and outside. A day begins at midnight of
    local mean time. Releases have planar Laplace noise with scales of 2.5, 8 and 30 cell sides, at every timestep or at
    one in ten. The factor of a radius is the smallest with which, for each scale of the noise, it contains at least
    `COVERAGE` of the timesteps on average over users, and for `USER_SHARE` of the users at least `USER_COVERAGE` of
    their timesteps. The factor of an error is the mean error over the mean expected error, of all scales together.

    Parameters
    ----------
    fit
        Learns a model without the users at some indices of `tracks`.
    tracks
        The users, at most `MAX_USERS` of a large data set.
    seed
        The seed of the fixes, the release timesteps and the noise.
    run
        Simulates the folds, in their order, such as the method ``run_in_order`` of workers. Defaults to this process.

    Returns
    -------
    CalibratedRadii or None
        None if fewer than `MIN_USERS` users are within the region.
    """
    if len(tracks) < MIN_USERS:
        return None
    simulations = run(_simulate, _build_folds(fit, tracks, seed))
    columns = ((part.classes, part.scales, part.errors, part.expected, part.owners) for part in simulations)
    classes, scales, errors, expected, owners = (np.concatenate(column) for column in zip(*columns, strict=True))
    count = len(np.unique(owners))
    if count < MIN_USERS:
        return None
    factors: list[float] = []
    error_factors: list[float] = []
    for number in range(len(HOURS_SINCE_RELEASE) + 2):
        members = classes == number
        if len(np.unique(owners[members])) < MIN_USERS:
            factors.append(max(factors, default=1.0))
            error_factors.append(max(error_factors, default=1.0))
            continue
        # The noise of a later release is not known: the factor suffices for each scale, not only on average over them.
        ratios = errors / expected
        parts = [members & (scales == scale) for scale in np.unique(scales[members])]
        factors.append(max(_find_quantile(ratios[part], owners[part]) for part in parts))
        # Users have equal weights. No adversary's best point estimate errs more than the published one, so the error
        # under the model, which is at least the adversary's, is never reduced.
        ratio = _average_over_users(errors[members], owners[members]) / _average_over_users(
            expected[members], owners[members]
        )
        error_factors.append(max(ratio, 1.0))
    return CalibratedRadii(tuple(factors), count, error_factors=tuple(error_factors))


def _average_over_users(values: FloatArray, owners: IntArray) -> float:
    """Return the mean over users of the mean of each."""
    _, user_index, counts = np.unique(owners, return_inverse=True, return_counts=True)
    return float((np.bincount(user_index, values) / counts).mean())


def _find_quantile(ratios: FloatArray, owners: IntArray) -> float:
    """Return the smallest ratio with the required coverage over timesteps and over users.

    Users have equal weights. See `COVERAGE`, `USER_SHARE` and `USER_COVERAGE`.
    """
    _, user_index, counts = np.unique(owners, return_inverse=True, return_counts=True)
    weights = 1.0 / (counts[user_index] * len(counts))
    order = np.argsort(ratios, kind="stable")
    # A sum that is below the share by rounding only counts as reached.
    reached = int(np.searchsorted(np.cumsum(weights[order]), COVERAGE * (1 - 1e-12)))
    each = [
        np.quantile(ratios[user_index == number], USER_COVERAGE, method="inverted_cdf") for number in range(len(counts))
    ]
    # The conformal quantile: rank ceil(p (n + 1)) instead of p n covers a new user who is exchangeable with these.
    user_quantile = np.sort(each)[min(ceil(USER_SHARE * (len(counts) + 1)), len(counts)) - 1]
    return float(max(ratios[order][min(reached, len(ratios) - 1)], user_quantile))


@dataclass(frozen=True, eq=False)
class _Day:
    """A day of a user's trajectory, with the noise of its simulation.

    Arrays have one entry for each timestep of the simulation with a fix: indices of timesteps ``(t,)``, ascending from
    0, locations ``(t, 2)`` in kilometres, the states to release ``(t,)``, and the noise ``(t, 2)`` in kilometres, NaN
    without a release.
    """

    user_index: int
    first_slot: int
    timesteps: IntArray
    places: FloatArray
    states: IntArray
    scale_index: int
    scale: float
    release_rate: float
    noise: FloatArray


@dataclass(frozen=True, eq=False)
class Fold:
    """The simulated days of some users, and a model that was learned without them. Private.

    Its representation, as in a worker's log, contains no location.
    """

    model: MarkovModel = field(repr=False)
    days: list[_Day] = field(repr=False)


@dataclass(frozen=True, eq=False)
class FoldErrors:
    """The errors of a fold.

    Arrays have one entry for each timestep: the index of the factor, the index of the noise scale, the error, the
    expected error, and the user.
    """

    classes: IntArray
    scales: IntArray
    errors: FloatArray
    expected: FloatArray
    owners: IntArray


def _build_folds(
    fit: Callable[[Sequence[int]], MarkovModel], tracks: Sequence[Trajectory], seed: int
) -> Iterator[Fold]:
    """Yield the folds.

    All random numbers are sampled here, so the division over workers does not change them.
    """
    rng = np.random.default_rng(seed)
    # Cross-validation: no user is simulated under a model that was fitted to their data.
    order = rng.permutation(len(tracks)).tolist()
    for number in range(_NUM_FOLDS):
        held_out = sorted(order[number::_NUM_FOLDS])
        model = fit(held_out)
        days = [day for index in held_out for day in _sample_days(model, index, tracks[index], rng)]
        days.sort(key=lambda day: -int(day.timesteps[-1]))
        _sample_noise(days, rng)
        yield Fold(model, days)


def _sample_noise(days: Sequence[_Day], rng: np.random.Generator) -> None:
    """Sample the release timesteps and the noise of all days, timestep by timestep."""
    visits = sorted((int(t), column, fix) for column, day in enumerate(days) for fix, t in enumerate(day.timesteps))
    for t, column, fix in visits:
        day = days[column]
        if t == 0 or rng.random() < day.release_rate:
            # Planar Laplace noise: a gamma-distributed radius and a uniform direction.
            length = rng.gamma(2.0, day.scale)
            angle = rng.uniform(0.0, 2 * pi)
            day.noise[fix] = length * np.array([cos(angle), sin(angle)])


def _simulate(fold: Fold) -> FoldErrors:
    """Simulate the releases of a fold, and return the error of every timestep.

    Each day is a column, and all days are simulated in parallel, timestep by timestep, each until its last fix.
    """
    model = fold.model
    days = fold.days
    results: list[tuple[int, int, float, float, int]] = []
    if days:
        points = model.space.points
        chain = model.chain_size
        folds = csr_array((np.ones(chain), (model.state_of_context, np.arange(chain))), shape=(model.size, chain))
        stride = _compute_stride(model)
        first_slots = np.array([day.first_slot for day in days])
        last_timesteps = np.array([day.timesteps[-1] for day in days])
        rows = np.stack([np.exp(model.initial_logs(int(slot))) for slot in first_slots], axis=1)
        last_release = np.zeros(len(days), dtype=np.int64)
        next_fix = np.zeros(len(days), dtype=np.int64)
        for t in range(int(last_timesteps[0]) + 1):
            # Days are sorted by length: those that have ended are the last columns.
            rows = rows[:, : int((last_timesteps >= t).sum())]
            for ahead in range(stride if t else 0):
                rows = _predict(model, rows, first_slots[: rows.shape[1]] + (stride * (t - 1) + ahead + 1))
            for column in range(rows.shape[1]):
                day = days[column]
                fix = next_fix[column]
                if day.timesteps[fix] != t:
                    continue
                next_fix[column] += 1
                noise = day.noise[fix]
                if not isnan(noise[0]):
                    far = np.linalg.norm(points - points[day.states[fix]] - noise, axis=1) / day.scale
                    posterior = rows[:, column] * np.exp(far.min() - far)[model.state_of_context]
                    if posterior.sum() > 0:
                        rows[:, column] = posterior / posterior.sum()
                        last_release[column] = t
                belief = np.asarray(folds @ rows[:, column])
                expected = expected_distance(
                    belief, points, model.space.cell_km, _get_outside_belief(model, rows[:, column])
                )
                if expected > 0:
                    error = float(np.linalg.norm(belief @ points - day.places[fix]))
                    hours = float(t - last_release[column]) * stride * model.step / 3600
                    number = 0 if day.release_rate == 1 else 1 + bisect_left(HOURS_SINCE_RELEASE, hours)
                    results.append((number, day.scale_index, error, expected, day.user_index))
    numbers, scales, errors, expectations, owners = zip(*results, strict=True) if results else ((), (), (), (), ())
    return FoldErrors(
        np.array(numbers, dtype=np.int64),
        np.array(scales, dtype=np.int64),
        np.array(errors, dtype=np.float64),
        np.array(expectations, dtype=np.float64),
        np.array(owners, dtype=np.int64),
    )


def _sample_days(model: MarkovModel, number: int, trajectory: Trajectory, rng: np.random.Generator) -> list[_Day]:
    """Sample days of one user with a fix in the region, for each scale and rate."""
    space = model.space
    track = trajectory.resample(model.step)
    is_inside = space.locate(track.latitude, track.longitude) >= 0
    if not is_inside.any():
        return []
    # Local mean time: 15 degrees are an hour.
    offset = 240.0 * float(space.projection.longitude)
    dates = np.floor((track.slots * model.step + offset) / _DAY_SECONDS).astype(np.int64)
    candidates = np.unique(dates[is_inside])
    stride = _compute_stride(model)
    planes, states = (
        of(track.latitude, track.longitude) for of in (space.projection.to_plane, space.find_nearest_states)
    )
    days = []
    side = space.cell_km or compute_spacing(space.points)
    for scale_index, scale in enumerate(_NOISE_SCALES):
        for rate in _RELEASE_RATES:
            for date in rng.choice(candidates, min(_NUM_DAYS, len(candidates)), replace=False).tolist():
                rows = np.flatnonzero(dates == date)
                # A timestep has the last fix at or before it that the previous one does not have.
                timesteps = -(-(track.slots[rows] - track.slots[rows[0]]) // stride)
                is_last = np.append(timesteps[1:] != timesteps[:-1], True)
                rows = rows[is_last]
                first_slot = int(track.slots[rows[0]])
                noise = np.full((len(rows), 2), nan)
                days.append(
                    _Day(
                        number,
                        first_slot,
                        timesteps[is_last],
                        planes[rows],
                        states[rows],
                        scale_index,
                        scale * side,
                        rate,
                        noise,
                    )
                )
    return days


def _compute_stride(model: MarkovModel) -> int:
    """Return the number of steps of the model in a timestep of the simulation."""
    return max(1, ceil(_DAY_SECONDS / (model.step * _MAX_DAY_TIMESTEPS)))


def _predict(model: MarkovModel, rows: FloatArray, slots: IntArray) -> FloatArray:
    """Propagate all columns by one step, which ends at the slot of each."""
    classes = model.get_classes(slots)
    moved = np.empty_like(rows)
    for number in np.unique(classes).tolist():
        members = classes == number
        moved[:, members] = model.one_step_operators[number].forward_product.multiply(rows[:, members])
    return moved


def _get_outside_belief(model: MarkovModel, row: FloatArray) -> OutsideBelief | None:
    """Return the belief about a user outside the region."""
    outside = model.outside
    if outside is None:
        return None
    return outside.create_belief(row[model.size :])
