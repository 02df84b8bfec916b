"""Post-processing of noisy counts: from what was released and what is publicly known, at no privacy cost."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.counts.baselines import least_squares, nearest_integers
from dphmm.counts.chain_estimate import Start, filter_counts, smooth_counts
from dphmm.counts.map_estimate import integer_map, real_map
from dphmm.counts.occupancy import Prior, as_transition, first_distribution, occupancy
from dphmm.counts.stream import as_noisy, as_scales, as_whole
from dphmm.errors import ConfigurationError


@checked
def post_process(
    noisy: npt.ArrayLike,
    transition: Any,
    users: int,
    scale: npt.ArrayLike,
    prior: Prior | npt.ArrayLike = "frequency",
    integer: bool = False,
    coupled: bool | Literal["online"] = False,
) -> FloatArray | IntArray:
    """Counts that are not negative and sum to the number of users, estimated from noisy ones.

    Nothing but the noisy counts and public knowledge enters, so the result is as private as the noisy counts are.

    Parameters
    ----------
    noisy
        Noisy counts ``(T, m)``, in order of time. A row of whole numbers counts as one with discrete Laplace noise, as
        `dphmm.counts.release` draws it; any other as one with Laplace noise in real numbers.
    transition
        How each user moves from one time to the next: ``(m, m)``, dense or sparse, row-stochastic.
    users
        The number of users ``n``, which is public.
    scale
        The scale of the noise: one number, or one per time; ``2 / epsilon`` for either kind.
    prior
        What stands for the users' distribution at the first time. A distribution ``(m,)``, or

        ``"frequency"``
            learnt from the noisy counts. On its own: the normalised first row, in which places without a positive
            noisy count get zero. Coupled: all count vectors are alike at the start, so that the first row is used once.
        ``"uniform"``
            every user is in any place with the same probability.
    integer
        Return integers: on their own, the exact integer optimum; coupled, the integers nearest to the real estimate.
    coupled
        False: the most probable counts of each time on its own (Cao et al., DBSec 2023, with the exact multinomial in
        place of Stirling's formula). True: the smoother over the whole chain, which uses that the counts of successive
        times come from the same users moving. ``"online"``: the filter, which uses the past only. The coupled
        estimates are approximate posterior means, projected on the counts that are possible.

    Returns
    -------
    FloatArray or IntArray
        ``(T, m)``; zero in places that the prior and the transition matrix make impossible at that time.

    Raises
    ------
    CountError, StochasticError, BudgetError, ConfigurationError
        For counts, a matrix, scales or options that make no sense.

    Examples
    --------
    >>> post_process([[7.2, -0.8], [1.1, 4.9]], [[0.0, 1.0], [1.0, 0.0]], users=6, scale=2.0, integer=True)
    array([[6, 0],
           [0, 6]])
    """
    stream, total = as_noisy(noisy), as_whole(users)
    steps, size = stream.shape
    scales, matrix = as_scales(scale, steps), as_transition(transition, size)
    first = first_distribution(stream, prior)
    if not isinstance(coupled, (bool, str)) or coupled not in (False, True, "online"):
        raise ConfigurationError(f"coupled is {coupled!r}; give False, True or 'online'")
    if not coupled:
        log_p = occupancy(first, matrix, steps).log_probabilities
        return integer_map(stream, log_p, total, scales) if integer else real_map(stream, log_p, total, scales)[0]
    if isinstance(prior, str) and prior == "frequency":  # the first row speaks once, as a row
        first, start = np.full(size, 1.0 / size), Start.flat(size, total)
    else:
        start = Start.multinomial(first, total)
    if coupled == "online":
        means = filter_counts(stream, matrix, start, scales)
    else:
        means, _ = smooth_counts(stream, matrix, start, scales)
    possible = occupancy(first, matrix, steps).possible
    estimate = least_squares(means, total, possible)
    return nearest_integers(estimate, total, possible) if integer else estimate
