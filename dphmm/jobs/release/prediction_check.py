"""The distances of releases from their predictions, relative to the expected ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log1p

import numpy as np

from dphmm.release.engine import Releaser

# A warning requires a larger ratio.
#
# For held-out users like the training users it was 1.08 ± 0.34 (mean and standard deviation over users with at least 30
# releases, default budget), for users who were outside at half of the timesteps, with a model of users who were not,
# 2.16 ± 0.80.
MAX_DISTANCE_RATIO = 1.5

# The largest probability of a warning if all users of a run move as the model states.
#
# It holds if the noise does not depend on the state, as tables (`optimal`, `graph-exponential`) do, and no belief
# restarts at a gap, after which the user is not at a random location.
ERROR_RATE = 0.01

# Between 0 and 1: of users who move farther, a small weight needs more releases, and a large one loses more at each
# release that is near.
_WEIGHT = 0.2
# The sum over users remains finite.
_MAX_LOG = 500.0


class PredictionCheck:
    """The mean squared distance of a user's releases from their predictions.

    It is relative to the expected one. The prediction is the mean of the belief just before the release. If the user
    moves as the model states, and the noise does not depend on the state, the squared distance of the released location
    from it has the mean ``variance of the belief + mean square of the noise``, given all earlier releases. The ratio
    depends on the model and the releases only, and is public. With strong noise, it is near 1 for every user.
    """

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0
        self._log_evidence = 0.0

    @property
    def ratio(self) -> float | None:
        """The mean over releases of squared distance / expectation. None without releases."""
        return self._sum / self._count if self._count else None

    @property
    def evidence(self) -> float:
        """A positive number, the mean of which is at most 1 for users of the model.

        It is the product over releases of ``1 + w (squared distance / expectation - 1)`` with a constant ``w``. The
        mean of each factor is 1, given all earlier releases.
        """
        return exp(min(self._log_evidence, _MAX_LOG))

    def add(self, engine: Releaser) -> None:
        """Add the last timestep of an engine. Timesteps without a released location do not count."""
        if engine.last is None:
            return
        record, plan = engine.last
        if record.released is None:
            return
        points = engine.measurements.points
        # The probability that each state is released, as itself or as the surrogate of another.
        states = np.flatnonzero(plan.prior.support)
        released = engine.planner.map_to_surrogates(states, plan.constraint)
        probabilities = np.bincount(released, plan.prior.probabilities[states], len(points)).astype(np.float64)
        mean = probabilities @ points
        noise = plan.noise.mean_squared_error(probabilities) * plan.noise.query.unit**2
        expected = float(probabilities @ ((points - mean) ** 2).sum(axis=1)) + noise
        if expected > 0:
            ratio = float(((np.array(record.released) - mean) ** 2).sum()) / expected
            self._sum += ratio
            self._count += 1
            self._log_evidence += log1p(_WEIGHT * (ratio - 1))


@dataclass
class PredictionSummary:
    """The ratios and the evidence of the users of a run."""

    # The number of users with a ratio.
    num_users: int = 0
    sum_ratios: float = 0.0
    sum_evidence: float = 0.0

    @property
    def ratio(self) -> float | None:
        """The mean over users of `PredictionCheck.ratio`. None if none has one."""
        return self.sum_ratios / self.num_users if self.num_users else None

    def add(self, check: PredictionCheck) -> None:
        """Add one user."""
        if check.ratio is not None:
            self.num_users += 1
            self.sum_ratios += check.ratio
            self.sum_evidence += check.evidence

    def list_warnings(self) -> list[str]:
        """Return the warning about users unlike the model. Empty if chance explains them."""
        ratio = self.ratio
        # Its mean over users of the model has a mean of at most 1, so it exceeds 100 in at most 1 % of runs (Markov).
        if ratio is None or ratio <= MAX_DISTANCE_RATIO or ERROR_RATE * self.sum_evidence < self.num_users:
            return []
        return [
            f"the mean squared distance of releases from the model's predictions is {ratio:.2g} times the expected one "
            "(averaged over users): these users may move differently from the model, and stated errors and radii may "
            "be too small; learn a model from whole days of users like these, or use a larger region"
        ]
