"""Private comparison of a user's errors and movement with those that the model states.

An expected error is one of users who move as the model assumes. The owner of the true locations can check whether it is
too small for a user, and whether chance explains this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log10

import numpy as np
from scipy.special import gammaincc

from dphmm.arrays import FloatArray, IntArray
from dphmm.model.model import MarkovModel
from dphmm.model.path_sampling import PathSampler
from dphmm.release.trajectory_release import TimedRelease, locate_states
from dphmm.space import SlottedTrajectory

# The largest probability of a warning if all users of a run move as the model assumes.
ERROR_RATE = 0.01

# Numbers of steps: short ones show how far users move in a step, long ones whether they keep their direction.
_LAGS = (1, 4, 16, 64)
# The evidence of 64 blocks suffices, and more blocks would leave few simulated users for each.
_MAX_BLOCKS = 64
# Simulated users of a lag, spread over its blocks. A block has 64 or more, so that its share is at least 1/65.
_NUM_SIMULATED = 4096
# The sampler needs three numbers for each move. With 7.6 million moves it took 0.2 s to build.
_MAX_POSSIBLE_MOVES = 10_000_000
# A run with the same users has the same warning.
_SEED = 0
# Doubles end at about 1e-308.
_MAX_EXPONENT = 300


@dataclass(frozen=True, eq=False)
class UserErrors:
    """The median errors of the published estimates of a user. Private.

    Parameters
    ----------
    user
        The user.
    true_errors_m
        ``(n,)``: the distance of each estimate from the true location, metres.
    median_true_error_m, median_expected_error_m
        The medians over the user's timesteps, metres.
    p_value
        The p-value of the user's movement (`MovementCheck.compute_p_value`); 1 unless the true median is larger than
        the expected one.
    """

    user: str
    true_errors_m: FloatArray = field(repr=False)
    median_true_error_m: float
    median_expected_error_m: float
    p_value: float


class MovementCheck:
    """A comparison of true locations with a model: errors of estimates, and displacements.

    Parameters
    ----------
    model
        The model, with state locations.
    """

    def __init__(self, model: MarkovModel) -> None:
        self._model = model

    @cached_property
    def _sampler(self) -> PathSampler:
        return PathSampler(self._model, _SEED)

    def compare(self, releases: Sequence[TimedRelease], track: SlottedTrajectory) -> UserErrors:
        """Compare the true errors of a user's estimates with the published ones.

        Parameters
        ----------
        releases
            The releases of the user, at least one.
        track
            The locations of their timesteps, and of others.
        """
        plane = self._model.space.projection
        rows = np.searchsorted(track.times, np.array([release.time for release in releases]))
        truth = plane.to_plane(track.latitude[rows], track.longitude[rows])
        degrees = np.array([(release.estimate_latitude, release.estimate_longitude) for release in releases])
        errors = 1000.0 * np.linalg.norm(plane.to_plane(*degrees.T) - truth, axis=1)
        true = float(np.median(errors))
        expected = float(np.median([1000.0 * release.expected_estimate_error for release in releases]))
        p_value = self.compute_p_value(track) if true > expected else 1.0
        return UserErrors(track.user, errors, true, expected, p_value)

    def compute_p_value(self, track: SlottedTrajectory) -> float:
        """Compute the p-value of a user who moves at most as far as the model assumes.

        For each lag, the displacements from the beginning to the end of disjoint blocks are compared with simulated
        ones from the same states. Given the past, each share of simulated users who move as far is at least as large as
        a uniform variable. Therefore the negative logarithms sum to at most a gamma variable (Fisher). The smallest of
        the p-values of the lags is multiplied by their number (Bonferroni).

        In models with outside states, simulated users leave the region and return. A user outside is at the nearest
        border state. It is 1 for models with more than ten million possible moves, for which a simulation needs much
        memory.
        """
        model = self._model
        if model.num_possible_moves > _MAX_POSSIBLE_MOVES:
            return 1.0
        if model.outside is None:
            contexts, _ = locate_states(model.space, track.latitude, track.longitude, "clamp")
        else:
            # The state does not determine the next one: users outside move differently from those in the border state.
            contexts = model.outside.locate_contexts(model.space, track.latitude, track.longitude)
        return min(1.0, len(_LAGS) * min(self._compute_lag_p_value(track.slots, contexts, lag) for lag in _LAGS))

    def _compute_lag_p_value(self, slots: IntArray, contexts: IntArray, lag: int) -> float:
        begins = np.flatnonzero(((slots - slots[0]) % lag == 0) & np.isin(slots + lag, slots))
        if not len(begins):
            return 1.0
        # Evenly spaced: the selection depends on times only, never on where the user moved.
        begins = begins[np.linspace(0, len(begins) - 1, min(len(begins), _MAX_BLOCKS)).astype(np.int64)]
        ends = np.searchsorted(slots, slots[begins] + lag)
        count = _NUM_SIMULATED // len(begins)
        walkers = np.repeat(contexts[begins], count)
        for step in range(1, lag + 1):
            classes = np.repeat(self._model.get_classes(slots[begins] + step), count)
            walkers = self._sampler.step(walkers, classes)
        points = self._model.space.points[self._model.state_of_context]
        origins = points[contexts[begins]]
        simulated = np.linalg.norm(points[walkers].reshape(len(begins), count, -1) - origins[:, None], axis=2)
        moved = np.linalg.norm(points[contexts[ends]] - origins, axis=1)
        # Equal displacements in two directions differ by rounding.
        is_as_far = simulated >= moved[:, None] - 1e-9 * (1.0 + moved[:, None])
        shares = (1 + is_as_far.sum(axis=1)) / (1 + count)
        return float(gammaincc(len(begins), -np.log(shares).sum()))


@dataclass
class LargerErrors:
    """The users of a run with larger errors than expected, by the evidence of their movement.

    Private. It needs the same memory for any number of users.
    """

    num_users: int = 0
    # The number of users for each negative decimal exponent of the p-value, rounded down.
    counts: Counter[int] = field(default_factory=Counter)
    # The user with the smallest p-value.
    example: UserErrors | None = field(default=None, repr=False)

    def add(self, user: UserErrors) -> None:
        """Add one user."""
        self.num_users += 1
        self.counts[_compute_exponent(user.p_value)] += 1
        if self.example is None or user.p_value < self.example.p_value:
            self.example = user

    def list_warnings(self) -> list[str]:
        """Return the warning. Empty if chance explains the movement of every user."""
        # Bonferroni over users: each p-value is compared with the error rate divided by the number of users.
        minimum = next(k for k in range(_MAX_EXPONENT) if 10.0**-k * self.num_users <= ERROR_RATE)
        count = sum(number for exponent, number in self.counts.items() if exponent >= minimum)
        user = self.example
        if user is None or not count:
            return []
        users = "1 user" if self.num_users == 1 else f"{self.num_users:,} users"
        return [
            f"private, do not publish: {count:,} of {users} moved farther than the model assumes (chance alone "
            "causes this warning in at most 1 of 100 runs), with larger errors than stated. The "
            f"median error of the estimates of {user.user} is {user.median_true_error_m:,.0f} m, the expected one "
            f"{user.median_expected_error_m:,.0f} m. For further recordings use a model of such movement ('dphmm model "
            "blank --kind', 'dphmm learn')"
        ]


def _compute_exponent(p_value: float) -> int:
    return min(int(-log10(max(p_value, 10.0**-_MAX_EXPONENT))), _MAX_EXPONENT)
