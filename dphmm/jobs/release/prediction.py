"""The distances of releases from their predictions, relative to the expected ones."""

from __future__ import annotations

import numpy as np

from dphmm.release.engine import Releaser

MAX_DISTANCE_RATIO = 1.5
"""A warning is given above this ratio.

For held-out users like the training users it was 1.08 ± 0.34 (mean and standard deviation over users, default budget),
for users who were outside at half of the timesteps, with a model of users who were not, 2.16 ± 0.80.
"""


MIN_RELEASES = 30
"""The number of a user's releases from which the ratio is stated.

For simulated users of region models with 30 releases each, the ratio was 0.99 ± 0.27 (mean and standard deviation) and
above `MAX_DISTANCE_RATIO` for 3.5 % of 200 users (everyday movement, ε = 1), 1.00 ± 0.30 and 6 % of 100 (driving, ε =
1), and 1.00 ± 0.58 and 14 % of 100 (everyday, ε = 4). With fewer releases chance alone would cause more warnings.
"""


class PredictionCheck:
    """The mean squared distance of a user's releases from their predictions.

    It is relative to the expected one. The prediction is the mean of the belief just before the release. If the user
    moves as the model states, the squared distance of the released location from it has the mean ``variance of the
    belief + mean square of the noise``. The ratio depends on the model and the releases only, and is public. With
    strong noise, it is near 1 for every user.
    """

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    @property
    def ratio(self) -> float | None:
        """The mean over releases of squared distance / expectation; None below `MIN_RELEASES`."""
        return self._sum / self._count if self._count >= MIN_RELEASES else None

    def add(self, engine: Releaser) -> None:
        """Add the last timestep of an engine. Timesteps without a released location do not count."""
        if engine.last is None:
            return
        record, plan = engine.last
        if record.released is None:
            return
        points = engine.measurements.points
        probabilities = plan.prior.probabilities
        mean = probabilities @ points
        expected = float(probabilities @ ((points - mean) ** 2).sum(axis=1)) + record.expected_error**2
        if expected > 0:
            self._sum += float(((np.array(record.released) - mean) ** 2).sum()) / expected
            self._count += 1


def describe_deviation(ratio: float) -> str:
    """Return the warning about users who move differently from the model."""
    return (
        f"the mean squared distance of releases from the model's predictions is {ratio:.2g} times the expected one "
        "(averaged over users): these users may move differently from the model, and stated errors and radii may be "
        "too small; learn a model from whole days of users like these, or use a larger region"
    )
