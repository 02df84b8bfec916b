"""Conformal calibration of radii around estimates, by cross-validation over users."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, cos, pi, sin

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray
from dphmm.model.model import MarkovModel
from dphmm.model.outside_states import OutsideBelief
from dphmm.model.point_estimate import (
    COVERAGE,
    HOURS_SINCE_RELEASE,
    USER_COVERAGE,
    USER_SHARE,
    CalibratedRadii,
    expected_distance,
)
from dphmm.model.speed_limit import spacing
from dphmm.space.trajectory import Trajectory

MIN_USERS = 20
"""Radii are not calibrated with fewer users."""

_WINDOW_HOURS = 8.0
_MAX_WINDOW_TIMESTEPS = 96
# For each user, noise scale and release rate.
_NUM_WINDOWS = 3
_NUM_FOLDS = 4
# Scales of the simulated noise, in sides of cells.
_NOISE_SCALES = (2.5, 8.0, 30.0)
# Shares of timesteps with a release.
_RELEASE_RATES = (1.0, 0.1)


def compute_calibrated_radii(
    fit: Callable[[Sequence[Trajectory]], MarkovModel], tracks: Sequence[Trajectory], seed: int = 0
) -> CalibratedRadii | None:
    """Calibrate the factors of the radii by four-fold cross-validation over users.

    Releases of each user are simulated under a model that was learned without them, from randomly selected fixes for
    up to eight hours. They have planar Laplace noise with scales of 2.5, 8 and 30 cell sides, at every timestep or at
    one in ten. A factor is the smallest with which the radius contains `COVERAGE` of the timesteps on average over
    users, and for `USER_SHARE` of the users at least `USER_COVERAGE` of their timesteps.

    Parameters
    ----------
    fit
        Learns a model from a subset of the users.
    tracks
        All users.
    seed
        The seed of the fixes, the release timesteps and the noise.

    Returns
    -------
    CalibratedRadii or None
        None if fewer than `MIN_USERS` users are within the region.
    """
    if len(tracks) < MIN_USERS:
        return None
    rng = np.random.default_rng(seed)
    simulations = list[tuple[IntArray, FloatArray, IntArray]]()
    # Cross-validation: no user is simulated under a model that was fitted to their data.
    order = rng.permutation(len(tracks)).tolist()
    for fold in range(_NUM_FOLDS):
        held_out = set(order[fold::_NUM_FOLDS])
        model = fit([track for i, track in enumerate(tracks) if i not in held_out])
        simulations.append(_simulate(model, [(i, tracks[i]) for i in sorted(held_out)], rng))
    classes, ratios, owners = (np.concatenate(part) for part in zip(*simulations, strict=True))
    count = len(np.unique(owners))
    if count < MIN_USERS:
        return None
    factors: list[float] = []
    for number in range(len(HOURS_SINCE_RELEASE) + 2):
        members = classes == number
        enough = len(np.unique(owners[members])) >= MIN_USERS
        factors.append(_quantile(ratios[members], owners[members]) if enough else max(factors, default=1.0))
    return CalibratedRadii(tuple(factors), count)


def _quantile(ratios: FloatArray, owners: IntArray) -> float:
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
class _Window:
    """A window of a user's trajectory, with the noise of its simulation.

    Arrays have one entry for each timestep: slots ``(t,)``, locations ``(t, 2)`` in kilometres, NaN if unknown, and
    the states to release ``(t,)``, -1 if unknown.
    """

    user_index: int
    slots: IntArray
    places: FloatArray
    states: IntArray
    scale: float
    release_rate: float


def _simulate(
    model: MarkovModel, numbered_tracks: Sequence[tuple[int, Trajectory]], rng: np.random.Generator
) -> tuple[IntArray, FloatArray, IntArray]:
    """Simulate releases of users, and return the relative error of every timestep.

    The three arrays contain the index of the factor, error / expected error, and the user of each timestep. Each window
    is a column, and all windows are simulated in parallel, timestep by timestep. The first timestep of each window has
    a release and is not counted, because sessions start rarely and windows often.
    """
    windows = [
        window for number, trajectory in numbered_tracks for window in _sample_windows(model, number, trajectory, rng)
    ]
    results: list[tuple[int, float, int]] = []
    if windows:
        points = model.space.points
        chain = model.chain_size
        folds = csr_array((np.ones(chain), (model.state_of_context, np.arange(chain))), shape=(model.size, chain))
        stride = _stride(model)
        rows = np.stack([np.exp(model.initial_logs(int(window.slots[0]))) for window in windows], axis=1)
        last_release = np.zeros(len(windows), dtype=np.int64)
        for t in range(len(windows[0].slots)):
            for ahead in range(stride if t else 0):
                rows = _predict(model, rows, np.array([window.slots[t - 1] + ahead + 1 for window in windows]))
            for column, window in enumerate(windows):
                if window.states[t] < 0:
                    continue
                if t == 0 or rng.random() < window.release_rate:
                    # Planar Laplace noise: a gamma-distributed radius and a uniform direction.
                    length = rng.gamma(2.0, window.scale)
                    angle = rng.uniform(0.0, 2 * pi)
                    noise = length * np.array([cos(angle), sin(angle)])
                    far = np.linalg.norm(points - points[window.states[t]] - noise, axis=1) / window.scale
                    posterior = rows[:, column] * np.exp(far.min() - far)[model.state_of_context]
                    if posterior.sum() > 0:
                        rows[:, column] = posterior / posterior.sum()
                        last_release[column] = t
                belief = np.asarray(folds @ rows[:, column])
                expected = expected_distance(belief, points, model.space.cell_km, _outside(model, rows[:, column]))
                if expected > 0 and t:
                    error = float(np.linalg.norm(belief @ points - window.places[t]))
                    hours = float(t - last_release[column]) * stride * model.step / 3600
                    number = 0 if window.release_rate == 1 else 1 + bisect_left(HOURS_SINCE_RELEASE, hours)
                    results.append((number, error / expected, window.user_index))
    numbers, ratios, owners = zip(*results, strict=True) if results else ((), (), ())
    return np.array(numbers, dtype=np.int64), np.array(ratios, dtype=np.float64), np.array(owners, dtype=np.int64)


def _sample_windows(model: MarkovModel, number: int, trajectory: Trajectory, rng: np.random.Generator) -> list[_Window]:
    """Sample the windows of one user, for each noise scale and release rate."""
    space = model.space
    track = trajectory.resample(model.step)
    inside = np.flatnonzero(space.locate(track.latitude, track.longitude) >= 0)
    if not len(inside):
        return []
    stride = _stride(model)
    length = max(1, int(_WINDOW_HOURS * 3600 / (stride * model.step)))
    planes, states = (of(track.latitude, track.longitude) for of in (space.projection.to_plane, space.nearest))
    windows = []
    side = space.cell_km or spacing(space.points)
    for scale in _NOISE_SCALES:
        for rate in _RELEASE_RATES:
            for first in rng.choice(inside, min(_NUM_WINDOWS, len(inside)), replace=False).tolist():
                slots = track.slots[first] + stride * np.arange(length)
                at = np.minimum(np.searchsorted(track.slots, slots), len(track.slots) - 1)
                is_seen = track.slots[at] == slots
                where = np.where(is_seen[:, None], planes[at], np.nan)
                windows.append(_Window(number, slots, where, np.where(is_seen, states[at], -1), scale * side, rate))
    return windows


def _stride(model: MarkovModel) -> int:
    """Return the number of steps of the model in a timestep of the simulation."""
    return max(1, ceil(_WINDOW_HOURS * 3600 / (model.step * _MAX_WINDOW_TIMESTEPS)))


def _predict(model: MarkovModel, rows: FloatArray, slots: IntArray) -> FloatArray:
    """Propagate all columns by one step, which ends at the slot of each."""
    classes = model.get_classes(slots)
    moved = np.empty_like(rows)
    for number in np.unique(classes).tolist():
        members = classes == number
        moved[:, members] = model.one_step_operators[number].forward_product.multiply(rows[:, members])
    return moved


def _outside(model: MarkovModel, row: FloatArray) -> OutsideBelief | None:
    """Return the belief about a user outside the region."""
    outside = model.outside
    if outside is None:
        return None
    return OutsideBelief(outside.border, row[model.size :], outside.mean_distances, outside.mean_squares)
